"""The valid domain of a fill, from an array or polygons."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import InputError, reason, warn
from geonp.io.polygons import VECTOR_FILES, is_vector, polygon_mask
from geonp.raster.arrays import BoolArray
from geonp.raster.grid import Grid
from geonp.raster.kinds import flag_values_of
from geonp.raster.metadata import flag_meanings_of
from geonp.raster.nodata import declared_nodata


def domain_of(mask: xr.DataArray | BoolArray | str | os.PathLike[str], grid: Grid) -> Any:
    """The valid domain as a boolean ``(rows, columns)`` array, NumPy or dask."""
    if is_vector(mask) or hasattr(mask, "to_crs"):
        return polygon_mask(mask, grid).values
    if isinstance(mask, (str, os.PathLike)):
        raise InputError(
            f"the mask {os.fspath(mask)!r} is not a file of polygons, expected one of {', '.join(VECTOR_FILES)}; open "
            "rasters with geonp.open_raster"
        )
    if isinstance(mask, xr.Dataset):
        raise InputError(
            f"the mask is a Dataset of {', '.join(map(repr, mask.data_vars)) or 'no variables'}, expected an array: "
            "choose one of its variables, mask[name]"
        )
    if hasattr(mask, "__geo_interface__"):
        raise InputError(
            f"the mask is a {type(mask).__name__} without a CRS, expected polygons with one: "
            "geopandas.GeoSeries([polygon], crs='EPSG:...')"
        )
    nodata: tuple[float, ...] = ()
    if isinstance(mask, xr.DataArray):
        nodata = declared_nodata(mask) if mask.dtype.kind in "iuf" else ()
        _warn_of_flags(mask)
        data = grid.layer(mask, "mask").data
    else:
        data = np.asarray(mask)
    if data.shape != grid.shape:
        raise InputError(
            f"the mask has shape {data.shape}, expected {grid.shape} (rows, columns) like the raster; "
            + (
                "it is one for all slices: select a slice of it. For a mask of each slice, fill raster.where(mask), "
                "and keep filled[name].where(mask); to flag cells of each slice as missing, use missing= (--gaps-where)"
                if data.ndim > 2
                else "crop or transpose it to the grid of the raster"
            )
        )
    if data.dtype.kind not in "biuf":
        raise InputError(f"the mask has dtype {data.dtype}, expected booleans (True = valid), or numbers (0 = invalid)")
    if data.dtype == bool:
        return data
    valid = (data != 0) & (data == data)
    for value in nodata:
        valid = valid & (data != value)
    return valid


def _warn_of_flags(mask: xr.DataArray) -> None:
    """Warn of a mask of flags such as land and sea, none of which is 0."""
    meanings = flag_meanings_of(mask.attrs)
    if meanings and mask.dtype != bool and ("flag_masks" in mask.attrs or 0 not in (flag_values_of(mask) or (0,))):
        warn(
            f"the mask holds flags ({', '.join(meanings)}), and is valid where it is not 0, whichever flag it holds. "
            "Compare it with the flags that are valid, such as mask == 1 or (mask & 1) != 0."
        )


def read_domain(domain: Any, rows: slice, columns: slice = slice(None)) -> BoolArray:
    """Some cells of a domain. Raises InputError if they cannot be read."""
    try:
        return np.asarray(domain[rows, columns])
    except MemoryError:
        raise
    except Exception as error:  # readers of files raise errors of no common class
        raise InputError(
            f"the mask cannot be read: {reason(error)}; copy it again, or compute it before, mask.compute()"
        ) from error
