"""Which cells of a raster are missing, and its values as floats that say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError

__all__ = [
    "NODATA",
    "PACKING",
    "UNLIMITED",
    "VALID",
    "Reader",
    "cellwise",
    "declared_nodata",
    "empty_value",
    "holds",
    "observed",
    "reader",
    "require_real",
    "stored_nodata",
    "valid_limits",
    "without",
]

NODATA = ("_FillValue", "missing_value")
"""CF attributes that name the value of missing cells."""

VALID = ("valid_range", "valid_min", "valid_max")
"""CF attributes that say which values are data."""

PACKING = {"scale_factor": 1.0, "add_offset": 0.0}
"""CF attributes of packed values, and what holds without them."""


UNLIMITED = (-np.inf, np.inf)
"""Limits between which all values lie."""


def holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether an array of the real ``dtype`` can hold ``value``; integers hold no NaN."""
    if dtype.kind == "f":
        return True
    info = np.iinfo(dtype)
    return float(value).is_integer() and info.min <= value <= info.max


def declared_nodata(da: xr.DataArray) -> tuple[float, ...]:
    """Values that mark missing cells in the values of ``da`` as they are in memory; empty where none is declared.

    Read from ``_FillValue`` and ``missing_value`` in attrs, and for integers in encoding too: floats with such an
    encoding have been decoded, so that NaN already stands where the value was.

    Raises
    ------
    InputError
        Where a declared value is not a number.
    """
    sources = [da.attrs, da.encoding] if da.dtype.kind in "iu" else [da.attrs]
    values = [value for attrs in sources for key in NODATA for value in np.atleast_1d(attrs.get(key, []))]
    try:
        return tuple(dict.fromkeys(float(value) for value in values))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Variable {da.name!r} declares a missing value that is no number: got {values!r}. "
            f"Correct its attribute _FillValue or missing_value."
        ) from error


def stored_nodata(da: xr.DataArray) -> float | None:
    """Nodata value of ``da`` as stored in its file, before decoding; None if none is declared."""
    values = [da.encoding.get("_FillValue"), *declared_nodata(da)]
    return next((float(value) for value in values if value is not None), None)


def valid_limits(da: xr.DataArray) -> tuple[float, float]:
    """Least and greatest value that the CF attributes ``valid_range``, or ``valid_min`` and ``valid_max``, allow.

    In the units of the values of ``da`` as they are in memory, infinite where nothing is said. Limits that are integers
    are about integers: of packed values about those that are stored (CF conventions 2.5.1 and the attribute conventions
    of NetCDF). So they say nothing of floats of which the encoding, and with it the packing, was lost on the way. What
    is no number says nothing either, nor does a range whose ends are not in order.
    """
    given = np.ravel(np.asarray(da.attrs.get("valid_range", []), object)).tolist()
    if len(given) != 2:
        given = [da.attrs.get("valid_min"), da.attrs.get("valid_max")]
    ends = [_end(da, end) for end in given]
    told = [end for end in ends if end is not None]
    if not told or (told[0] > told[-1] and type(told[0]) is type(told[-1])):
        return UNLIMITED
    # what is open stays so in other units, whose order may be the other one
    low, high = sorted(
        _in_memory(da, open_ if end is None else end, isinstance(told[0] if end is None else end, int))
        for end, open_ in zip(ends, UNLIMITED, strict=True)
    )
    return low, high


def _end(da: xr.DataArray, given: Any) -> float | None:
    """One end of a valid range, an int if it is about integers; None where it says nothing."""
    numbers = np.ravel(np.asarray(given))
    if numbers.size != 1 or numbers.dtype.kind not in "iuf" or np.isnan(numbers[0]):
        return None
    number: float = numbers[0].item()
    if isinstance(number, int):
        stored = da.encoding.get("dtype")
        if stored is None and da.dtype.kind == "f":
            return None
        if number < 0 and str(da.encoding.get("_Unsigned")).lower() == "true":
            number += 2 ** (8 * np.dtype(stored or da.dtype).itemsize)
    return number


def _in_memory(da: xr.DataArray, end: float, of_integers: bool) -> float:
    """One end of a valid range in the units of the values in memory."""
    if da.dtype.kind == "f":
        scale, offset = _packing(da.encoding) if "dtype" in da.encoding else (1.0, 0.0)
        stored = np.dtype(da.encoding.get("dtype", da.dtype))
        return end * scale + offset if of_integers or stored.kind == "f" else float(end)
    scale, offset = _packing(da.attrs)
    # to the integer that was meant, if rounding was all that moved it
    return float(end) if of_integers else round((end - offset) / scale, 6)


def _packing(attrs: Mapping[Any, Any]) -> tuple[float, float]:
    """Scale and offset, which JSON may hold as lists."""
    scale, offset = (float(np.ravel(attrs.get(key, default))[0]) for key, default in PACKING.items())
    return scale or 1.0, offset


def empty_value(da: xr.DataArray, markers: tuple[float, ...]) -> float:
    """What stands for a missing cell in the dtype of ``da``: one of `markers`, or an integer beyond the valid limits.

    Of floats without markers it is zero, which they do not need.
    """
    low, high = valid_limits(da)
    ends = [] if da.dtype.kind == "f" else [np.iinfo(da.dtype).min, np.iinfo(da.dtype).max]
    told = [marker for marker in markers if holds(da.dtype, marker)]
    return next(iter(told + [end for end in ends if not low <= end <= high]), 0)


def observed(da: xr.DataArray, nodata: float | None = None) -> xr.DataArray:
    """``da`` as floats with NaN at every missing cell; lazy where ``da`` is a dask array, with the same chunks.

    Missing are NaN, infinities, the nodata value (the argument, or else what :func:`declared_nodata` finds), and what
    lies beyond :func:`valid_limits`.

    Parameters
    ----------
    da
        Any shape; integers or floats.
    nodata
        Value of the missing cells, instead of the declared one. A value that the dtype cannot hold, NaN among them,
        says that an integer raster has no missing cells, but for those beyond its valid limits.

    Returns
    -------
    DataArray
        Same shape, coordinates, name and attrs (without those that declare nodata). float32 for float16, float32 and
        integers of up to 16 bits, which it holds exactly; float64 for the rest.

    Raises
    ------
    InputError
        Where ``da`` holds no real numbers, or integers without any nodata value or valid range.
    """
    read = reader(da, nodata)
    values = cellwise(read, da, dtype=read.dtype)
    values.attrs = without(da.attrs, NODATA)
    return values


@dataclass(frozen=True)
class Reader:
    """How values in memory become floats of `dtype`: NaN where not finite, one of `markers`, or beyond `limits`."""

    markers: tuple[float, ...]
    dtype: np.dtype[Any]
    limits: tuple[float, float] = UNLIMITED

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Floats of the same shape."""
        with np.errstate(over="ignore"):
            missing = ~np.isfinite(values)
            for marker in self.markers:
                missing |= values == values.dtype.type(marker)
            if self.limits != UNLIMITED:
                low, high = np.array(self.limits, self.dtype)
                missing |= (values < low) | (values > high)
        return np.where(missing, np.nan, values).astype(self.dtype)


def reader(da: xr.DataArray, nodata: float | None = None) -> Reader:
    """The function of arrays that :func:`observed` applies, which may also be read piece by piece; same errors."""
    require_real(da)
    markers = declared_nodata(da) if nodata is None else (float(nodata),)
    low, high = valid_limits(da)
    if da.dtype.kind in "iu" and not markers and (low, high) == UNLIMITED:
        raise InputError(
            f"Variable {da.name!r} holds integers ({da.dtype}) and declares no nodata value, so that its missing "
            f"cells cannot be told from data. Give the value with nodata= (command line: --nodata), or nodata=nan "
            f"if none is missing, or leave the variable out."
        )
    held = tuple(marker for marker in markers if np.isfinite(marker) and holds(da.dtype, marker))
    # unpacked values are off by rounding
    packed = da.dtype.kind == "f" and np.dtype(da.encoding.get("dtype", da.dtype)).kind in "iu"
    margin = abs(_packing(da.encoding)[0]) / 2 if packed else 0.0
    return Reader(held, np.dtype(_float_dtype(da.dtype)), (low - margin, high + margin))


def cellwise(
    function: Callable[..., npt.NDArray[Any]], *arrays: xr.DataArray, dtype: np.dtype[Any] | type[np.generic]
) -> xr.DataArray:
    """``function`` of the values of arrays that agree in their dimensions: one task a chunk of the first, if any.

    Returns
    -------
    DataArray
        With the coordinates and the name of the first array, no attrs and no encoding.
    """
    first = arrays[0]
    if first.chunks is None:
        data = function(*(array.values for array in arrays))
    else:
        from dask.array import asarray

        blocks = [asarray(array.data).rechunk(first.chunks) for array in arrays]
        data = blocks[0].map_blocks(function, *blocks[1:], dtype=dtype, meta=np.empty((0,) * first.ndim, dtype))
    return xr.DataArray(xr.Variable(first.dims, data), first.coords, name=first.name)


def require_real(da: xr.DataArray) -> None:
    """Check that ``da`` holds integers or floats.

    Raises
    ------
    InputError
        For complex numbers, strings, dates, booleans and objects, naming the variable and its dtype.
    """
    if da.dtype.kind not in "iuf":
        raise InputError(
            f"Variable {da.name!r} cannot be filled: got dtype {da.dtype}, expected real numbers (integers or "
            f"floats). Convert it, for example with astype('float32'), or leave the variable out."
        )


def _float_dtype(dtype: np.dtype[Any]) -> type[np.float32] | type[np.float64]:
    wide = dtype.itemsize > (2 if dtype.kind in "iu" else 4)
    return np.float64 if wide else np.float32


def without(attrs: Mapping[Any, Any], keys: tuple[str, ...]) -> dict[Any, Any]:
    """``attrs`` but those `keys`."""
    return {key: value for key, value in attrs.items() if key not in keys}
