"""Nodata values of a file that is opened: given by the caller, or implied by the file without being declared."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from netCDF4 import default_fillvals

from geonp.errors import InputError, warn
from geonp.raster.dimensions import data_variables
from geonp.raster.nodata import (
    DEFAULT_FILL,
    NODATA,
    PACKING,
    UNLIMITED,
    as_number,
    declared_nodata,
    holds,
    limit_keys,
    nodata_values,
    observed,
    other_nodata_keys,
    packing,
    reader,
    stated,
    valid_limits,
    without,
)


@dataclass(frozen=True)
class LimitSettings:
    """When a valid range is doubted rather than the values beyond it."""

    share: float = 0.5
    """A smaller share of values may be missing."""
    distinct: int = 20
    """Fewer different values may be nodata values."""


LIMITS = LimitSettings()


def retyped(stored: xr.Dataset) -> xr.Dataset:
    """Attributes as readers expect them where a file writes them otherwise.

    Scale and offset that are text become numbers. Integers are unsigned (``_Unsigned``) if their valid range begins at
    0 or above and ends beyond what signed ones hold: bytes always, as in GDAL, and others unless they are packed, whose
    range may be that of unpacked values.
    """
    ds = stored.copy()
    for da in ds.variables.values():
        for key in set(PACKING) & set(da.attrs):
            if isinstance(da.attrs[key], str) and len(given := stated(da.attrs[key])) == 1:
                with suppress(ValueError):
                    da.attrs[key] = float(given[0])
        if da.dtype.kind == "i" and "_Unsigned" not in da.attrs:
            limits = [value for key in limit_keys(da.attrs).values() for value in stated(da.attrs[key])]
            packed, most = set(PACKING) & set(da.attrs) and da.dtype.itemsize > 1, int(np.iinfo(da.dtype).max)
            whole = len(limits) == 2 and all(isinstance(limit, int) for limit in limits) and not packed
            if whole and 0 <= min(limits) <= most < max(limits) <= 2 * most + 1:
                da.attrs["_Unsigned"] = "true"
    return ds


def numbered(stored: xr.Dataset) -> xr.Dataset:
    """Convert the nodata values that a file declares to the dtype of its variable, with which readers compare values.

    Writers declare them as text, such as ``"-9999"``; as float64 that the values of float32 do not equal; or for packed
    integers as they are unpacked; or in attributes of other names, or of the file. What the dtype cannot hold is
    dropped. Of floats in Zarr without a nodata value, the fill value other than 0 is one.
    """
    ds = stored.copy()
    of_file = {key: stored.attrs[key] for key in NODATA if any(stated(stored.attrs.get(key, [])))}
    for name, da in ds.variables.items():
        if da.dtype.kind not in "iuf":
            continue
        own = [one for key in NODATA for one in stated(da.attrs.get(key, []))]
        if all(isinstance(one, float) and math.isnan(one) for one in own):
            # decoding would leave others as they are stored
            others = [{_stored(da, one) for one in stated(da.attrs[key])} for key in other_nodata_keys(da.attrs)]
            single = [one for (one, *more) in map(list, others) if one is not None and not more]
            da.attrs |= {"_FillValue": single[0]} if single else of_file if name not in ds.dims else {}
        for key in NODATA:
            given = stated(da.attrs.get(key, []))
            if given and not all(isinstance(one, float) and math.isnan(one) for one in given):
                del da.attrs[key]
                if values := [value for one in given if (value := _stored(da, one)) is not None]:
                    da.attrs[key] = values[0] if len(values) == 1 else np.array(values, da.dtype)
        fill = da.encoding.get("fill_value")
        if fill and da.dtype.kind == "f" and math.isfinite(fill) and not set(NODATA) & set(da.attrs):
            da.attrs["_FillValue"] = da.dtype.type(fill)
    return ds


def _stored(da: xr.Variable, given: object) -> np.generic | None:
    """A declared nodata value in the dtype of a variable, as it is stored; None if it can hold none such."""
    try:
        value = as_number(given)
        scale, offset = packing(da.attrs)
        turn = 2 ** (8 * da.dtype.itemsize) if "_Unsigned" in da.attrs else 0
        candidates = [value, value - turn, value + turn, round((value - offset) / scale, 3)]
        with np.errstate(over="ignore"):
            return next((da.dtype.type(one) for one in candidates if holds(da.dtype, one)), None)
    except (TypeError, ValueError, OverflowError):
        return None


def note_default_fill(ds: xr.Dataset) -> None:
    """Note the value that NetCDF, or a Zarr store, gives cells of integers that were never set.

    Of bytes, all values are data; so is 0, the usual fill value of Zarr.
    """
    for name, da in data_variables(ds).items():
        default = da.encoding.get("fill_value", default_fillvals.get(f"{da.dtype.kind}{da.dtype.itemsize}"))
        if default and da.dtype.itemsize > 1 and da.dtype.kind in "iu" and not declared_nodata(ds[name]):
            da.encoding[DEFAULT_FILL] = default


def measured(ds: xr.Dataset) -> xr.Dataset:
    """Measurements of a file that was opened, as :func:`known`; what NetCDF writes into integers counts as missing."""
    note_default_fill(ds)
    return known(ds)


def known(ds: xr.Dataset) -> xr.Dataset:
    """Measurements with NaN where attributes or encoding say that they or their places are missing or invalid.

    Integers stay integers if none is.
    """
    found = {}
    for name, da in ds.variables.items():
        if da.dtype.kind in "iuf" and name not in ds.dims:
            declared = nodata_values(ds[name], None) or valid_limits(ds[name]) != UNLIMITED
            values = observed(ds[name]).variable if da.dtype.kind == "f" or declared else da
            if da.dtype.kind == "f" or values.isnull().any():
                found[name] = values
                values.encoding = da.encoding  # by which limits of packed values are read again
    return ds.assign(found)


def warn_of_zero_fill(ds: xr.Dataset) -> None:
    """Warn of rasters in Zarr 2 whose fill value is 0, its default: readers take each 0 for missing."""
    names = [
        str(name)
        for name, da in data_variables(ds).items()
        # format 3 has both in its encoding
        if da.ndim >= 2 and "filters" in da.encoding and "fill_value" not in da.encoding
        if da.encoding.get("_FillValue") == 0
    ]
    if names:
        warn(
            f"{', '.join(names)}: cells with 0 count as missing, because 0 is the fill value, the default of Zarr 2. "
            "If zeros are values, give nodata=nan (--nodata nan)."
        )


def warn_of_limits(ds: xr.Dataset) -> None:
    """Warn of variables in memory most of whose values are beyond the valid range that is written with them."""
    for name, da in data_variables(ds).items():
        if da.dtype.kind not in "iuf" or not da._in_memory or (limits := valid_limits(ds[name])) == UNLIMITED:
            continue
        read, values = reader(ds[name]), da.values
        known = values[np.isfinite(replace(read, limits=UNLIMITED)(values))]
        beyond = known[np.isnan(read(known))]
        if beyond.size > LIMITS.share * known.size and np.unique(beyond).size >= LIMITS.distinct:
            keys = ", ".join(limit_keys(da.attrs).values())
            warn(
                f"{name}: {beyond.size / known.size:.0%} of the values are outside the valid range {limits[0]:g} to "
                f"{limits[1]:g} that its attributes declare, as after a conversion of units. Readers of the output "
                f"take them for missing. Correct or remove {keys} of ds[{name!r}].attrs."
            )


def declare_nodata(stored: xr.Dataset, nodata: float) -> xr.Dataset:
    """Replace the declared nodata value of all rasters; with NaN, that of integers is dropped.

    Raises InputError for integers that cannot hold `nodata`.
    """
    ds = stored.copy()
    for name, da in data_variables(ds).items():
        if da.ndim < 2 or da.dtype.kind not in "iuf":
            continue
        da.attrs = without(da.attrs, ("missing_value", *other_nodata_keys(da.attrs)))
        if da.dtype.kind in "iu" and math.isnan(nodata):
            da.attrs.pop("_FillValue", None)
            continue
        turn = 2 ** (8 * da.dtype.itemsize) if str(da.attrs.get("_Unsigned")).lower() == "true" else 0
        value = next((one for one in (nodata, nodata - turn) if holds(da.dtype, one)), None)
        if value is None:
            limits = np.iinfo(da.dtype)
            raise InputError(
                f"Variable {name!r} cannot have nodata {nodata:g}: it holds {da.dtype}, expected an integer from "
                f"{limits.min} to {limits.max}, or nan if none is missing. Correct nodata (--nodata)."
            )
        da.attrs["_FillValue"] = da.dtype.type(value)
    return ds
