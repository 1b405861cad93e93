"""Whole rasters: `infill` for arrays in memory or dask, `fill_store` for Zarr stores of any size.

It schedules `inference`. It may import everything to its left in the layer rule, but not `training`.
"""
