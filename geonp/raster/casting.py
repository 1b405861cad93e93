"""Filled values in the dtype of their raster: integers, packed or not, hold no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from geonp.raster.nodata import UNLIMITED

__all__ = ["Fit", "fitting"]

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Fit = Callable[..., Array]
"""What :func:`fitting` gives."""

_EXACT = 2**53


def fitting(
    dtype: np.dtype[Any],
    markers: tuple[float, ...],
    encoding: Mapping[str, Any],
    limits: tuple[float, float] = UNLIMITED,
) -> Fit:
    """A function of arrays ``(values, filled_mask, source)``, picklable, that gives values the dtype of a raster.

    The filled ones become values within `limits` that its integers, or those of its encoding, can hold. The third
    array, the raster itself, is needed for integers alone: the others are taken from it.

    Parameters
    ----------
    dtype
        Of the raster in memory.
    markers
        Its nodata values, which no filled cell may get.
    encoding
        How it will be stored: ``dtype``, ``scale_factor``, ``add_offset`` and ``_FillValue``, as far as they are set.
    limits
        Least and greatest valid value, in the units of the raster in memory.
    """
    stored = np.dtype(encoding.get("dtype", dtype))
    if dtype.kind in "iu":
        return partial(_filled_integers, markers=markers, limits=limits)
    if stored.kind in "iu":
        scale, offset = float(encoding.get("scale_factor", 1.0)), float(encoding.get("add_offset", 0.0))
        fill = (float(encoding["_FillValue"]),)
        low, high = sorted((end - offset) / scale for end in limits)
        packed = partial(_within_packing, stored=stored, markers=fill, scale=scale, offset=offset)
        return partial(packed, dtype=dtype, limits=(low, high))
    return partial(_as_dtype, dtype=dtype, limits=limits)


def _as_dtype(
    values: Array,
    filled_mask: BoolArray,
    source: Array | None = None,
    *,
    dtype: np.dtype[Any],
    limits: tuple[float, float],
) -> Array:
    result = values.astype(dtype)
    if limits != UNLIMITED:
        result[filled_mask] = np.clip(result[filled_mask], *limits)
    return result


def _filled_integers(
    values: Array, filled_mask: BoolArray, source: Array, *, markers: tuple[float, ...], limits: tuple[float, float]
) -> Array:
    """``source`` with the filled cells rounded to its integers."""
    result = source.copy()
    result[filled_mask] = _nearest_integers(values[filled_mask], source.dtype, markers, limits)
    return result


def _within_packing(
    values: Array,
    filled_mask: BoolArray,
    source: Array | None = None,
    *,
    dtype: np.dtype[Any],
    stored: np.dtype[Any],
    markers: tuple[float, ...],
    scale: float,
    offset: float,
    limits: tuple[float, float],
) -> Array:
    """Move those filled cells that ``offset + scale * integer`` cannot hold; leave the others unrounded."""
    packed = (values[filled_mask].astype(np.float64) - offset) / scale
    integers = _nearest_integers(packed, stored, markers, limits)
    result = values.astype(dtype)
    result[filled_mask] = np.where(integers == np.rint(packed), values[filled_mask], offset + scale * integers)
    return result


def _nearest_integers(
    values: Array, dtype: np.dtype[Any], markers: tuple[float, ...], limits: tuple[float, float]
) -> npt.NDArray[np.float64]:
    """Round to integers within the limits that ``dtype`` holds and that are no marker; exact in float64."""
    info = np.iinfo(dtype)
    # what is off by less was rounded
    least, greatest = np.ceil(limits[0] - 1e-6), np.floor(limits[1] + 1e-6)
    low, high = max(info.min, -_EXACT, least), min(info.max, _EXACT, greatest)
    while low in markers:
        low += 1
    while high in markers:
        high -= 1
    result = np.clip(np.rint(values.astype(np.float64)), low, high)
    for marker in markers:
        aside = np.where(values >= marker, marker + 1, marker - 1)
        result = np.where(result == marker, aside, result)
    return result
