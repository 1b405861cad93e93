"""Nodata values of a file that is opened: those the caller gives, and those the file leaves unsaid."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import xarray as xr
from netCDF4 import default_fillvals

from geonp.errors import InputError
from geonp.raster.nodata import DEFAULT_FILL, NODATA, declared_nodata, holds

__all__ = ["declare_nodata", "note_default_fill", "numbered"]


def numbered(stored: xr.Dataset) -> xr.Dataset:
    """Convert nodata values that a file declares as text, such as ``"-9999"``, to numbers of the dtype.

    Text that is no such number is dropped: no reader can compare it with values.
    """
    ds = stored.copy()
    for da in ds.variables.values():
        for key in NODATA:
            if da.dtype.kind in "iuf" and isinstance(given := da.attrs.get(key), str):
                del da.attrs[key]
                with suppress(ValueError), np.errstate(over="ignore"):
                    if holds(da.dtype, value := float(given)):
                        da.attrs[key] = da.dtype.type(value)
    return ds


def note_default_fill(ds: xr.Dataset) -> None:
    """Note the value that NetCDF writes into cells of integers that were never set; of bytes, all values are data."""
    for da in ds.data_vars.values():
        code = f"{da.dtype.kind}{da.dtype.itemsize}"
        if code in default_fillvals and da.dtype.itemsize > 1 and da.dtype.kind in "iu" and not declared_nodata(da):
            da.encoding[DEFAULT_FILL] = default_fillvals[code]


def declare_nodata(stored: xr.Dataset, nodata: float) -> xr.Dataset:
    """Replace the declared nodata value of all rasters; with NaN, that of integers is dropped.

    Raises
    ------
    InputError
        For integers that cannot hold `nodata`.
    """
    ds = stored.copy()
    for name, da in ds.data_vars.items():
        if da.ndim < 2 or da.dtype.kind not in "iuf":
            continue
        da.attrs.pop("missing_value", None)
        if da.dtype.kind in "iu" and math.isnan(nodata):
            da.attrs.pop("_FillValue", None)
            continue
        if not holds(da.dtype, nodata):
            limits = np.iinfo(da.dtype)
            raise InputError(
                f"Variable {name!r} cannot have nodata {nodata:g}: it holds {da.dtype}, expected an integer from "
                f"{limits.min} to {limits.max}, or nan if none is missing. Correct --nodata."
            )
        da.attrs["_FillValue"] = da.dtype.type(nodata)
    return ds
