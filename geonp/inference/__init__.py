"""One window: context in, prediction out. Tiling, context, prediction, blending, checkpoints and cores.

Rasters and networks meet here. It may import `raster`, `io` and `nn`.
"""
