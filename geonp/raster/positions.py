"""Positions of the slices of a stack along a dimension: times where there are any, otherwise numbers."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt
import xarray as xr

__all__ = ["positions"]


def positions(array: xr.DataArray, dim: Hashable) -> tuple[float, ...]:
    """Positions of the slices along a dimension, of which only the differences matter.

    They are times in microseconds if the coordinate of the dimension, or the only other coordinate along it, has times:
    datetime64, timedelta64, cftime of any calendar, or numbers with CF units such as ``days since 2000-01-01``.
    Otherwise, and if any time is unknown, they are 0, 1, 2, ...
    """
    along = [coord for name, coord in array.coords.items() if coord.dims == (dim,) and name != dim]
    own = [array.coords[dim]] if dim in array.coords else []
    for coords in (own, along):
        found = [times for coord in coords if (times := _times(coord)) is not None]
        if len(found) == 1:
            return tuple(found[0].tolist())
    return tuple(map(float, range(array.sizes[dim])))


def _times(coord: xr.DataArray) -> npt.NDArray[np.float64] | None:
    """Times of a coordinate since its first one; None if it has other values, or unknown times."""
    values = coord.values
    if values.dtype.kind in "iuf" and " since " in str(coord.attrs.get("units", "")):
        times = values.astype(np.float64)
    elif values.dtype.kind in "mM":
        if np.isnat(values).any():
            return None
        times = (values - values[:1]).astype("timedelta64[us]").astype(np.float64)
    elif values.dtype.kind == "O" and isinstance(coord.to_index(), xr.CFTimeIndex):
        # differences of cftime are those of its calendar
        times = (values - values[:1]).astype("timedelta64[us]").astype(np.float64)
    else:
        return None
    return times if np.isfinite(times).all() else None
