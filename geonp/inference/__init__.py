"""One window: context in, prediction out. Tiling, context, prediction, blending, checkpoints and cores.

Rasters and networks meet here. It may import `raster`, `io` and `nn`.
"""

import lazy_loader as _lazy

# public as geonp.student
__getattr__, __dir__, __all__ = _lazy.attach(__name__, submodules=["student"])
