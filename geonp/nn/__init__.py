"""Neural processes in PyTorch: attention, biases, heads and the families that geonp ships.

They work on tensors and know no raster: no xarray, dask, zarr or files. They may import `geonp.errors`.
"""
