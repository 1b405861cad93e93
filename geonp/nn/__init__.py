"""Neural processes in PyTorch: attention, biases, heads and the architectures of the shipped models.

They work on tensors, not on rasters: no xarray, dask, zarr or files. They may import `geonp.errors`, and the types of
arrays in `raster`.
"""
