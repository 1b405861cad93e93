"""Filled values to the dtype of their raster: rounding, and limits of integers and of packed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from geonp.errors import InputError
from geonp.raster.arrays import Array, BoolArray
from geonp.raster.nodata import UNLIMITED, holds
from geonp.raster.tolerances import TOLERANCES

Fit = Callable[..., Array]
"""Type of the functions that :func:`fitting` returns."""


def fitting(
    dtype: np.dtype[Any],
    nodata: tuple[float, ...],
    encoding: Mapping[str, Any],
    limits: tuple[float, float] = UNLIMITED,
) -> Fit:
    """A picklable function ``(values, filled_mask, source)`` that converts filled values to the dtype of a raster.

    Filled cells become values within `limits` that integers, or packed integers, can represent. Integers take all other
    cells from `source`, the stored raster, which floats do not need.

    Parameters
    ----------
    dtype
        dtype of the raster in memory.
    nodata
        Nodata values, which no filled cell may get.
    encoding
        Encoding of the result: ``dtype``, ``scale_factor``, ``add_offset`` and ``_FillValue``, as far as they are set.
    limits
        Smallest and largest valid value, in the units of the raster in memory.
    """
    if dtype.kind in "iu":
        return partial(_filled_integers, nodata=nodata, limits=limits)
    if lattice := lattice_of(dtype, encoding):
        (offset, scale), stored = lattice, np.dtype(encoding["dtype"])
        fill = (float(encoding["_FillValue"]),)
        low, high = sorted((limit - offset) / scale for limit in limits)
        packing = {"stored": stored, "nodata": fill, "scale": scale, "offset": offset}
        return partial(_within_packing, dtype=dtype, limits=(low, high), **packing)
    return partial(_floats, dtype=dtype, limits=limits)


def lattice_of(dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> tuple[float, float] | None:
    """Offset and step of the values that a raster can hold when it is stored as integers; None if as floats."""
    if dtype.kind in "iu":
        return 0.0, 1.0
    if np.dtype(encoding.get("dtype", dtype)).kind not in "iu":
        return None
    return float(encoding.get("add_offset", 0.0)), float(encoding.get("scale_factor", 1.0))


def _floats(
    values: Array,
    filled_mask: BoolArray,
    source: Array | None = None,
    *,
    dtype: np.dtype[Any],
    limits: tuple[float, float],
) -> Array:
    with np.errstate(over="ignore"):  # only filled cells, which are clipped next, lie beyond the dtype
        result = values.astype(dtype)
    least, most = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    low, high = np.float64(max(limits[0], least)), np.float64(min(limits[1], most))
    if limits != UNLIMITED or dtype.itemsize < values.dtype.itemsize:
        result[filled_mask] = np.clip(values[filled_mask], low, high)
    return result


def _filled_integers(
    values: Array, filled_mask: BoolArray, source: Array, *, nodata: tuple[float, ...], limits: tuple[float, float]
) -> Array:
    result = source.copy()
    result[filled_mask] = nearest_integers(values[filled_mask], source.dtype, nodata, limits)
    return result


def _within_packing(
    values: Array,
    filled_mask: BoolArray,
    source: Array | None = None,
    *,
    dtype: np.dtype[Any],
    stored: np.dtype[Any],
    nodata: tuple[float, ...],
    scale: float,
    offset: float,
    limits: tuple[float, float],
) -> Array:
    """Move filled values that ``offset + scale * integer`` cannot represent; do not round the others.

    Raises
    ------
    InputError
        If it cannot represent an observed value.
    """
    _require_packed(values[~filled_mask], stored, nodata, scale, offset)
    packed = (values[filled_mask].astype(np.float64) - offset) / scale
    integers = nearest_integers(packed, stored, nodata, limits)
    result = values.astype(dtype)
    result[filled_mask] = np.where(integers == np.rint(packed), values[filled_mask], offset + scale * integers)
    return result


def _require_packed(
    observed: Array, stored: np.dtype[Any], nodata: tuple[float, ...], scale: float, offset: float
) -> None:
    """Check that the dtype in which observed values are stored can hold them, which writers do not."""
    info, known = np.iinfo(stored), observed[np.isfinite(observed)].astype(np.float64)
    packed = np.rint((known - offset) / scale)
    wrong = (packed < info.min) | (packed > info.max) | np.isin(packed, nodata)
    if wrong.any():
        low, high = sorted((info.min * scale + offset, info.max * scale + offset))
        raise InputError(
            f"An observed value cannot be stored: got {known[wrong][0]:g}, expected {low:g} to {high:g} and no nodata, "
            f"for {stored} with scale_factor {scale:g} and add_offset {offset:g}. The encoding may be that of another "
            "file, as after concatenation. Remove it with drop_encoding()."
        )


def nearest_integers(
    values: Array, dtype: np.dtype[Any], nodata: tuple[float, ...], limits: tuple[float, float] = UNLIMITED
) -> Array:
    """Nearest integers of a dtype to finite floats, within limits and different from nodata values."""
    taken = {int(value) for value in nodata if holds(dtype, value)}
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    # limits beyond the dtype leave no value observed, and none to fill
    low = min(max(least, math.ceil(limits[0] - TOLERANCES.limit)), most) if limits[0] > least else least
    high = max(min(most, math.floor(limits[1] + TOLERANCES.limit)), least) if limits[1] < most else most
    while low in taken:
        low += 1
    while high in taken:
        high -= 1
    rounded = np.rint(values.astype(np.float64))
    # float64 does not represent the ends of 64-bit integers: they are set as integers
    result: Array = np.where(rounded >= high, dtype.type(high), dtype.type(low))
    inside = (rounded > low) & (rounded < high)
    result[inside] = rounded[inside].astype(dtype)
    for value in sorted(taken):
        if low < value < high:
            up, down = value + 1, value - 1
            while up in taken:
                up += 1
            while down in taken:
                down -= 1
            found = result == value
            result[found] = np.where(values[found] >= value, dtype.type(up), dtype.type(down))
    return result


def exceeds(values: Array, threshold: float) -> BoolArray:
    """Whether values are above a threshold, and not by rounding: 0.1 is 0.100000001 in float32."""
    rounding = 2 * np.finfo(values.dtype).eps * abs(threshold) if values.dtype.kind == "f" else 0.0
    return np.asarray(values > np.float64(threshold + rounding))
