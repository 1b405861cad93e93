"""Chunks that a Zarr store does not hold, whose cells have the fill value: zeros, or cells that were never written."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
import zarr

from geonp.errors import warn
from geonp.raster.dimensions import data_variables
from geonp.raster.nodata import NODATA

UNWRITTEN = "unwritten_chunks"
"""Encoding of a variable: the number of chunks that its store does not hold, of all, and the value of their cells."""


@dataclass(frozen=True)
class UnwrittenSettings:
    """Settings of the search for chunks that were never written."""

    listed: int = 2**16
    """Arrays of more chunks are not checked: listing them would take long."""
    read: int = 16
    """Number of chunks in which the fill value is looked for: where it is a value, Zarr leaves out chunks of it."""


_SETTINGS = UnwrittenSettings()


def note_unwritten(ds: xr.Dataset, store: Any, group: str = "") -> xr.Dataset:
    """Note in the encoding of the rasters of `ds`, which is not decoded, how many chunks the store lacks.

    Nothing is noted where the fill value is NaN, a declared nodata value, or a value of other cells.
    """
    doubted = [
        name for name, da in ds.variables.items() if da.ndim >= 2 and da.dtype.kind in "iuf" and _fills_with_values(da)
    ]
    if doubted:
        arrays: Any = zarr.open_group(store, mode="r", path=group, use_consolidated=False)
        for name in doubted:
            with suppress(Exception):  # of damaged chunks, which are an error once they are read
                array = arrays[str(name)]
                if missing := _missing(array):
                    ds.variables[name].encoding[UNWRITTEN] = (missing, array.nchunks, array.fill_value or 0)
    return ds


def _fills_with_values(da: xr.Variable) -> bool:
    """Whether cells with the fill value of an array count as values, see :mod:`geonp.io.nodata`."""
    declared = [number for key in NODATA for number in np.ravel(da.attrs.get(key, []))]
    if "serializer" not in da.encoding:  # of format 2, where a fill value is declared
        return not declared
    fill = da.encoding.get("fill_value", 0)
    if declared or da.dtype.itemsize == 1:
        return bool(fill == fill and not np.isin(fill, declared).any())
    return bool(fill == 0)


def _missing(array: Any) -> int:
    """Number of chunks that are not in the store; 0 if it holds none, or the fill value is a value."""
    if not 1 < array.nchunks <= _SETTINGS.listed or not 0 < (held := array.nchunks_initialized) < array.nchunks:
        return 0
    grid = [-(-size // side) for size, side in zip(array.shape, array.chunks, strict=True)]
    order = np.random.default_rng(0).permutation(array.nchunks)[: _SETTINGS.read]
    for place in np.transpose(np.unravel_index(order, grid)):
        cells = array[tuple(slice(n * side, (n + 1) * side) for n, side in zip(place, array.chunks, strict=True))]
        equal = cells == (array.fill_value or 0)
        if equal.any() and not equal.all():
            return 0
    return int(array.nchunks - held)


def warn_of_unwritten(ds: xr.Dataset) -> None:
    """Warn of rasters whose store lacks chunks."""
    for name, da in data_variables(ds).items():
        if UNWRITTEN in da.encoding:
            missing, whole, value = da.encoding[UNWRITTEN]
            warn(
                f"{name}: the store does not hold {missing:,} of its {whole:,} chunks, whose cells count as {value:g}, "
                f"the fill value: they hold {value:g} alone, or were never written. If they were never written, give "
                f"nodata={value:g} (--nodata {value:g})."
            )
