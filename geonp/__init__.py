"""Fill gaps in rasters with a pretrained transformer neural process, with a standard error for each cell.

::

    import geonp

    ds = geonp.open_raster("sst.nc")
    filled = ds.geonp.infill()  # or geonp.infill(ds)
    grid = geonp.interpolate(stations, at=filled)  # from a table of measurements

The names of this module are public. ``__init__.pyi`` says where they are defined; they are loaded at first use.
Everything else is internal and may change in any version.
"""

import logging as _logging
from importlib.metadata import version as _version

import lazy_loader as _lazy

from geonp.accessor import GeonpAccessor as GeonpAccessor  # registered by its import

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__version__ = _version("geonp")

_logging.getLogger(__name__).addHandler(_logging.NullHandler())
