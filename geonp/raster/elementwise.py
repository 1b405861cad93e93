"""Functions of the cells of arrays, as lazy as these are: in memory, on dask, or where a file is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from geonp.raster.arrays import Array


def is_lazy(variable: xr.Variable) -> bool:
    """Whether values are read from a file when they are indexed, without dask."""
    return not variable._in_memory and variable.chunks is None


def elementwise(function: Callable[..., Any], dtype: Any, first: xr.Variable, *others: xr.Variable) -> xr.Variable:
    """Apply a picklable function to the cells of variables, with a result of `dtype`.

    All dimensions of the others are dimensions of the first. The result is as lazy as `first`, in its chunks.
    """
    if is_lazy(first):
        return xr.Variable(first.dims, indexing.LazilyIndexedArray(_Elementwise(function, dtype, first, others)))
    if first.chunks is None:
        inputs = [first, *(xr.Variable(other.dims, np.asarray(other.values)) for other in others)]
    else:
        inputs = [first, *(other.chunk({dim: first.chunksizes[dim] for dim in other.dims}) for other in others)]
    made: xr.Variable = xr.apply_ufunc(function, *inputs, dask="parallelized", output_dtypes=[dtype])
    return made.transpose(*first.dims)


def parts_of(variable: xr.Variable) -> list[Any]:
    """Which cells of its files a lazy variable reads: dimensions without coordinates do not say so."""
    found: list[Any] = []
    data: Any = variable._data
    while isinstance(data, indexing.ExplicitlyIndexed | BackendArray):
        array: Any = getattr(data, "array", None)
        if isinstance(key := getattr(data, "key", None), indexing.ExplicitIndexer):
            found.append([_cells(one, length) for one, length in zip(key.tuple, array.shape, strict=True)])
        values = vars(data).values() if isinstance(data, BackendArray) and hasattr(data, "__dict__") else ()
        flat = (one for value in values for one in (value if isinstance(value, tuple) else (value,)))
        found += [parts_of(one) for one in flat if isinstance(one, xr.Variable)]
        data = array
    return found


def _cells(key: Any, length: int) -> Any:
    """The same for all ways to write a slice."""
    if not isinstance(key, slice):
        return np.asarray(key)
    cells = range(*key.indices(length))
    return cells.start, cells.step, len(cells)


class _Elementwise(BackendArray):
    """The result of a function, which reads the cells that it needs when it is indexed."""

    def __init__(
        self, function: Callable[..., Any], dtype: Any, first: xr.Variable, others: tuple[xr.Variable, ...]
    ) -> None:
        self.function, self.first, self.others = function, first, others
        self.shape, self.dtype = first.shape, np.dtype(dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._get)

    def _get(self, key: tuple[Any, ...]) -> Array:
        parts = dict(zip(self.first.dims, key, strict=True))
        own = self.first.isel(parts)
        sizes = dict(zip(own.dims, own.shape, strict=True))
        beside = (other.isel({dim: parts[dim] for dim in other.dims}).set_dims(sizes) for other in self.others)
        return np.asarray(self.function(np.asarray(own.values), *(np.asarray(part.values) for part in beside)))
