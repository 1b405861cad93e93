"""The Zarr conventions ``proj:`` and ``spatial:``, which say CRS and transform beside the grid mapping of CF."""

from __future__ import annotations

import xarray as xr

from geonp.io.geotiff import transform
from geonp.raster.grid import Grid


def with_conventions(ds: xr.Dataset, grid: Grid) -> xr.Dataset:
    """A Dataset for Zarr that declares its CRS and its transform by these conventions, if rioxarray can write them."""
    affine = transform(ds, grid)
    try:
        from rioxarray.enum import Convention
    except ImportError:  # rioxarray before 0.22
        return ds
    if grid.crs is None or affine is None:
        return ds
    placed = ds.rio.set_spatial_dims(grid.x_dim, grid.y_dim, inplace=False)
    placed = placed.rio.write_crs(grid.crs, convention=Convention.ZARR)
    attrs = placed.rio.write_transform(affine, convention=Convention.ZARR).attrs
    return ds.assign_attrs(attrs)
