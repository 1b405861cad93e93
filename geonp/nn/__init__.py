"""Neural processes in PyTorch: no xarray, dask, zarr or files below here."""
