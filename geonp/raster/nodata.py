"""Nodata values and valid ranges: values as they are stored to floats with NaN in missing cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.raster.arrays import Array, BoolArray

NODATA = ("_FillValue", "missing_value")
"""CF attributes with the nodata value."""

OTHER_NODATA = (
    *("fillvalue", "nodata", "nodatavals", "nodatavalue", "fillval", "missingvalue", "missingval", "missingdata"),
    *("codemissingvalue", "invalidvalue", "badvalue", "badvaluescaled", "undef", "fill"),
)
"""Other names of attributes with the nodata value, in lower case and without signs.

So call it odc, datacube, older versions of xarray, tools of HDF5, and satellites such as GPM, OMI and FengYun.
"""

DEFAULT_FILL = "default_fill"
"""Encoding of integers from NetCDF without a nodata value: what the library wrote into cells that were never set."""

_NETCDF_FLOAT = 9.9692099683868690e36
"""Default fill value of floats in NetCDF: cells that were never written."""

VALID = ("valid_range", "valid_min", "valid_max")
"""CF attributes with the range of valid values."""

PACKING = {"scale_factor": 1.0, "add_offset": 0.0}
"""CF attributes of packed values, and their defaults."""

EXACT = 2**53
"""float64 represents all integers up to this."""

_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan)([fFdDbBsSlL]?)", re.IGNORECASE)
"""A number as text, with the letter of its type in CDL."""

UNLIMITED = (-np.inf, np.inf)
"""Limits that all values are within."""


def units_in_memory(attrs: Mapping[Any, Any]) -> str:
    """Units of the values in memory: none of packed values, whose units are those of the unpacked ones."""
    return "" if is_packed(attrs) else str(attrs.get("units", ""))


def is_packed(attrs: Mapping[Any, Any]) -> bool:
    """Whether a scale or an offset stands beside values; those of 1 and 0, which rioxarray gives to all, are none."""
    return packing(attrs) != (1.0, 0.0)


def holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether an integer or float dtype can represent a value; integers cannot represent NaN."""
    if dtype.kind == "f":
        return True
    info = np.iinfo(dtype)
    return float(value).is_integer() and info.min <= value <= info.max


def declared_nodata(da: xr.DataArray) -> tuple[float, ...]:
    """Nodata values that a raster declares for its values in memory; empty if there are none.

    They are read from ``_FillValue`` and ``missing_value`` in attrs, and for integers also in encoding; without these,
    or if they are NaN, which xarray writes for floats without one, from the first of :data:`OTHER_NODATA` in attrs.
    Floats with another encoded nodata value have been decoded and hold NaN instead. Large integers stay integers,
    because float64 does not represent all of 64 bits. Raises InputError if a CF attribute is not a number, or the
    attribute ``nodatavals`` differs between bands.
    """
    sources = [da.attrs, da.encoding] if da.dtype.kind in "iu" else [da.attrs]
    values = [value for attrs in sources for key in NODATA for value in stated(attrs.get(key, []))]
    try:
        encoded = [as_number(value) for key in NODATA for value in np.atleast_1d(da.encoding.get(key, []))]
        numbers = tuple(dict.fromkeys(map(as_number, values)))
        if (numbers and da.dtype.kind in "iu") or not all(map(np.isnan, (*numbers, *encoded))):
            return numbers
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Variable {da.name!r} declares nodata values that are not numbers: got {values!r}. Correct the attribute "
            "_FillValue or missing_value."
        ) from error
    return _other_nodata(da) or numbers


def _other_nodata(da: xr.DataArray) -> tuple[float, ...]:
    for key in other_nodata_keys(da.attrs):
        given = [value for value in stated(da.attrs[key]) if value is not None]
        try:
            values = {repr(number): number for number in map(as_number, given)}
        except (TypeError, ValueError):  # a word: no convention says that it is a number
            continue
        if len(values) > 1:
            raise InputError(
                f"Variable {da.name!r} declares different nodata values by band: got {key}={given}, expected one. Give "
                "it with nodata=, or replace missing cells by NaN first, band by band, with da.where(...)."
            )
        if values:
            return tuple(values.values())
    return ()


def stated(given: Any) -> list[Any]:
    """Numbers of an attribute, also of text as in ``0.f, 100.f`` or ``[0 100]``; what is no number stays as it is."""
    items = np.ravel(np.asarray(given, object)).tolist()
    values = [item.item() if isinstance(item, np.generic) else item for item in items]
    if not any(isinstance(value, str) for value in values):
        return values
    words = [word for value in values for word in re.split(r"[\s,;]+", str(value).strip(" \t\n\0[](){}"))]
    found = [_NUMBER.fullmatch(word) for word in words]
    numbers = [float(each[1]) if each[2] in ("f", "F", "d", "D") else _number(each[1]) for each in found if each]
    return numbers if len(numbers) == len(words) else values


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def as_number(value: Any) -> float:
    """A nodata value: an int if it is an integer that float64 may not represent, otherwise a float."""
    large = isinstance(value, (int, np.integer)) and abs(int(value)) >= EXACT
    return int(value) if large else float(value)


def nodata_values(da: xr.DataArray, nodata: float | None) -> tuple[float, ...]:
    """Values of missing cells: `nodata` if given, otherwise the declared ones, or the default of NetCDF integers."""
    if nodata is not None:
        return (as_number(nodata),)
    default = da.encoding.get(DEFAULT_FILL) if da.dtype.kind in "iu" else None
    return declared_nodata(da) or (() if default is None else (as_number(default),))


def stored_nodata(da: xr.DataArray) -> float | None:
    """Nodata value of a raster as stored in its file, before decoding; None if it declares none."""
    values = [da.encoding.get("_FillValue"), *declared_nodata(da)]
    return next((as_number(value) for value in values if value is not None), None)


def other_nodata_keys(attrs: Mapping[Any, Any]) -> tuple[str, ...]:
    """The attributes with a nodata value beside those of CF, in the order of :data:`OTHER_NODATA`."""
    plain = {key: _plain(key) for key in attrs if key not in NODATA}
    known = {key: OTHER_NODATA.index(name) for key, name in plain.items() if name in OTHER_NODATA}
    return tuple(sorted(known, key=known.__getitem__))


def _plain(key: object) -> str:
    return re.sub(r"[^a-z]", "", str(key).lower())


def limit_keys(attrs: Mapping[Any, Any]) -> dict[str, str]:
    """The attributes of valid limits by their CF name, which may be written otherwise, as in ``ValidRange``."""
    plain = {_plain(key): key for key in attrs}
    return {name: key for name in VALID if (key := name if name in attrs else plain.get(_plain(name))) is not None}


def valid_limits(da: xr.DataArray) -> tuple[float, float]:
    """Smallest and largest value that the CF attributes ``valid_range``, or ``valid_min`` and ``valid_max``, allow.

    The limits are in the units of the values in memory, and infinite if nothing is declared. Integer limits refer to
    integers, for packed values to the stored ones (CF conventions 2.5.1, NetCDF attribute conventions), unless the
    other limit is a float. They are ignored for floats without encoding, whose packing is lost. Limits that are not
    finite numbers or not in order are also ignored.
    """
    keys = limit_keys(da.attrs)
    given = stated(da.attrs[keys["valid_range"]]) if "valid_range" in keys else []
    if len(given) != 2:
        given = [da.attrs.get(keys.get(name)) for name in ("valid_min", "valid_max")]
        given = [one[0] if len(one) == 1 else None for one in map(stated, given)]
    limits = [_limit(da, limit) for limit in given]
    declared = [limit for limit in limits if limit is not None]
    if not declared or declared[0] > declared[-1]:
        return UNLIMITED
    of_integers = all(isinstance(limit, int) for limit in declared)
    # a negative scale_factor exchanges the limits
    low, high = sorted(
        _in_memory(da, infinite if limit is None else limit, of_integers)
        for limit, infinite in zip(limits, UNLIMITED, strict=True)
    )
    return low, high


def _limit(da: xr.DataArray, given: Any) -> float | None:
    """A valid limit, an int if it refers to integers; None if it is to be ignored."""
    numbers = np.ravel(np.asarray(given))
    if numbers.size != 1 or numbers.dtype.kind not in "iuf" or not np.isfinite(numbers[0]):
        return None
    number: float = numbers[0].item()
    if isinstance(number, int):
        stored = da.encoding.get("dtype")
        if stored is None and da.dtype.kind == "f":
            return None
        if number < 0 and str(da.encoding.get("_Unsigned")).lower() == "true":
            number += 2 ** (8 * np.dtype(stored or da.dtype).itemsize)
    return number


def _in_memory(da: xr.DataArray, limit: float, of_integers: bool) -> float:
    """A valid limit in the units of the values in memory."""
    if da.dtype.kind == "f":
        scale, offset = packing(da.encoding) if "dtype" in da.encoding else (1.0, 0.0)
        stored = np.dtype(da.encoding.get("dtype", da.dtype))
        return limit * scale + offset if of_integers or stored.kind == "f" else float(limit)
    scale, offset = packing(da.attrs)
    # rounding removes the error of the division, so that a packed integer stays one
    return float(limit) if of_integers else round((limit - offset) / scale, 6)


def packing(attrs: Mapping[Any, Any]) -> tuple[float, float]:
    """Scale and offset; JSON attributes may hold them as lists."""
    scale, offset = (float(np.ravel(attrs.get(key, default))[0]) for key, default in PACKING.items())
    return scale or 1.0, offset


def other_packing(attrs: Mapping[Any, Any]) -> dict[str, float]:
    """Attributes that may be a scale and an offset under other names than those of CF, such as ``slope``.

    Those that would change nothing are left out.
    """
    found: dict[str, float] = {}
    for key, given in attrs.items():
        name = {"offset": "addoffset", "intercept": "addoffset"}.get(_plain(key), _plain(key))
        neutral = {"addoffset": 0.0, **dict.fromkeys(("scale", "scalefactor", "slope", "gain"), 1.0)}.get(name)
        values = stated(given) if neutral is not None and key not in PACKING else []
        if len(values) == 1 and isinstance(values[0], int | float) and values[0] not in (0.0, neutral):
            found[str(key)] = values[0]
    return found


def require_packing(name: object, attrs: Mapping[Any, Any]) -> None:
    """Check scale and offset, where there are any.

    Raises InputError if they are not single finite numbers, or the scale is zero, which makes all values the same.
    """
    for key in PACKING:
        given = attrs.get(key, PACKING[key])
        values = np.ravel(np.asarray(given))
        usable = values.size == 1 and values.dtype.kind in "iuf" and np.isfinite(values[0])
        if not usable or (key == "scale_factor" and values[0] == 0):
            raise InputError(
                f"Variable {name!r} cannot be unpacked: got {key} {given}, expected a finite number"
                f"{' other than 0' if key == 'scale_factor' else ''}. Correct the attribute, or choose other variables "
                "(--variable)."
            )


def empty_value(da: xr.DataArray, nodata: tuple[float, ...]) -> float:
    """Value of an empty cell in the dtype of a raster: a nodata value, or an integer outside the valid limits.

    Zero for floats without a nodata value, whose empty cells are NaN.
    """
    low, high = valid_limits(da)
    extremes = [] if da.dtype.kind == "f" else [np.iinfo(da.dtype).min, np.iinfo(da.dtype).max]
    candidates = [value for value in nodata if holds(da.dtype, value)]
    candidates += [value for value in extremes if not low <= value <= high]
    return next(iter(candidates), 0)


def observed(da: xr.DataArray, nodata: float | None = None) -> xr.DataArray:
    """Values as floats with NaN in missing cells; lazy, with the same chunks, for dask arrays.

    Missing cells hold NaN, an infinity, a nodata value, or a value outside :func:`valid_limits`. Raises InputError for
    values that are not real numbers, and integers without a nodata value or valid limits.

    Parameters
    ----------
    da
        Integers or floats of any shape.
    nodata
        Nodata value, used instead of those that :func:`declared_nodata` finds. With a value that an integer dtype
        cannot represent, such as NaN, only cells outside the valid limits are missing.

    Returns
    -------
    DataArray
        Same shape, coordinates, name and attrs, without those of nodata values. float32 for float16, float32 and
        integers of up to 16 bits, which it represents exactly; float64 for all others.
    """
    read = reader(da, nodata)
    values: xr.DataArray = xr.apply_ufunc(read, da, dask="parallelized", output_dtypes=[read.dtype])
    return values.drop_attrs(deep=False).assign_attrs(without(da.attrs, (*NODATA, *other_nodata_keys(da.attrs))))


@dataclass(frozen=True)
class Reader:
    """Converts values to floats of `dtype`, with NaN if not finite, in `nodata`, or outside `limits`.

    Floats are compared with the tolerance of GDAL, and always with the default fill value of NetCDF.
    """

    nodata: tuple[float, ...]
    dtype: np.dtype[Any]
    limits: tuple[float, float] = UNLIMITED
    __name__: ClassVar[str] = "read"  # dask would name tasks by the repr, in which it cannot stand a minus sign

    def __call__(self, values: Array) -> Array:
        """Floats of the same shape."""
        with np.errstate(over="ignore"):
            missing = ~np.isfinite(values)
            for value in self.nodata:
                missing |= _equal(values, value)
            if values.dtype.kind == "f" and values.dtype.itemsize > 2:
                missing |= values == values.dtype.type(_NETCDF_FLOAT)
            if self.limits != UNLIMITED:
                low, high = np.array(self.limits, self.dtype)
                missing |= (values < low) | (values > high)
        return np.where(missing, np.nan, values).astype(self.dtype)


def _equal(values: Array, nodata: float) -> BoolArray:
    """Whether values are the nodata value, which may have been rounded by a writer if it is a float.

    The tolerance is that of ``ARE_REAL_EQUAL`` in GDAL, two units in the last place. float64 may also hold what was
    rounded to float32 before.
    """
    value = values.dtype.type(nodata)
    equal: BoolArray = values == value
    if values.dtype.kind == "f" and nodata:
        equal |= np.abs(values - value) < 4 * np.finfo(values.dtype).eps * np.abs(value)
        if values.dtype == np.float64 and (rounded := np.float64(np.float32(nodata))):  # 0 if float32 cannot hold it
            equal |= values == rounded
    return equal


def reader(da: xr.DataArray, nodata: float | None = None) -> Reader:
    """The function of arrays that :func:`observed` applies; same parameters and errors."""
    require_real(da)
    values = nodata_values(da, nodata)
    low, high = valid_limits(da)
    if da.dtype.kind in "iu" and not values and (low, high) == UNLIMITED:
        raise InputError(
            f"Variable {da.name!r} holds integers ({da.dtype}) without a declared nodata value, so it is unknown which "
            "cells are missing. Give the value with nodata= (command line: --nodata), or nodata=nan if no cell is "
            "missing, or leave the variable out."
        )
    representable = tuple(value for value in values if np.isfinite(value) and holds(da.dtype, value))
    # unpacked values have rounding errors: limits move by half a step
    packed = da.dtype.kind == "f" and np.dtype(da.encoding.get("dtype", da.dtype)).kind in "iu"
    margin = abs(packing(da.encoding)[0]) / 2 if packed else 0.0
    wide = da.dtype.itemsize > (2 if da.dtype.kind in "iu" else 4)
    return Reader(representable, np.dtype(np.float64 if wide else np.float32), (low - margin, high + margin))


def require_real(da: xr.DataArray) -> None:
    """Check that a raster holds integers or floats, in arrays of NumPy.

    Raises InputError for complex numbers, strings, dates, booleans and objects, and for arrays of pint, sparse or CuPy.
    """
    held = da.variable._data
    blocks = getattr(held, "_meta", held)  # of dask
    if not isinstance(blocks, np.ndarray) and hasattr(blocks, "__array_function__"):
        raise InputError(
            f"Variable {da.name!r} cannot be filled: got values of {type(blocks).__module__}, expected arrays of "
            "NumPy. Convert it with as_numpy(), or with pint.dequantify() to keep the units."
        )
    if da.dtype.kind not in "iuf":
        raise InputError(
            f"Variable {da.name!r} cannot be filled: got dtype {da.dtype}, expected integers or floats. Convert it, "
            f"for example {converted('da', da.dtype)}, or leave the variable out."
        )


def converted(name: str, dtype: np.dtype[Any]) -> str:
    """Code that makes numbers of values; times are divided, since a cast makes -9.2e18 of NaT."""
    since = {"m": name, "M": f"({name} - {name}.min())"}.get(dtype.kind)
    return f"{name}.astype('float32')" if since is None else f"{since} / np.timedelta64(1, 'D')"


def without(attrs: Mapping[Any, Any], keys: tuple[str, ...]) -> dict[Any, Any]:
    """Attributes except those named."""
    return {key: value for key, value in attrs.items() if key not in keys}
