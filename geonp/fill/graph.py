"""The dask graph of a fill: one task a chunk, which reads the edges of its neighbours' chunks itself.

No chunk is ever reshaped, and the result does not depend on how the raster is chunked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from geonp.fill.region import BlockSource, Region, fill_region
from geonp.inference.kernel import FillJob, most_batches, result_dtype
from geonp.inference.stack import read_with
from geonp.raster.classes import ClassReader
from geonp.raster.nodata import Reader
from geonp.raster.windows import Window, pieces

__all__ = ["count_batches", "fill_chunks"]


def fill_chunks(
    data: da.Array, domain: da.Array | None, job: FillJob, read: Reader | ClassReader, axis: int | None = None
) -> da.Array:
    """A lazy array with the fields of :func:`geonp.inference.kernel.result_dtype`, in the chunks of `data`.

    Parameters
    ----------
    data : dask array
        Stored values ``(..., rows, cols)``; `read` converts them to floats in each task.
    domain : dask array or None
        ``(rows, cols)``: True where a value may be.
    axis : int or None
        Leading dimension along which neighbouring slices are read too.
    """
    name = "geonp-fill-" + tokenize(data.name, None if domain is None else domain.name, job, read, axis)
    y_chunks, x_chunks = data.chunks[-2:]
    edges = [[0, *itertools.accumulate(sizes)] for sizes in data.chunks[:-2]]
    graph: dict[Any, Any] = {}
    for (i, j), chunk in _windows(y_chunks, x_chunks):
        rows, cols = (pieces(*of) for of in zip(job.cells(chunk), (y_chunks, x_chunks), strict=True))
        masks = None if domain is None else [[(domain.name, a.chunk, b.chunk) for b in cols] for a in rows]
        for block in itertools.product(*(range(n) for n in data.numblocks[:-2])):
            lead = tuple(range(edge[k], edge[k + 1]) for edge, k in zip(edges, block, strict=True))
            numbers, starts, size = [block], (), 0
            if axis is not None:
                size, edge = edges[axis][-1], edges[axis]
                wanted = read_with(lead[axis], size)
                along = [k for k in range(len(edge) - 1) if edge[k] < wanted.stop and edge[k + 1] > wanted.start]
                numbers = [(*block[:axis], k, *block[axis + 1 :]) for k in along]
                starts = tuple(edge[k] for k in along)
            stack = [[[(data.name, *number, a.chunk, b.chunk) for b in cols] for a in rows] for number in numbers]
            region, own = Region(lead, chunk, axis, size), (data.name, *block, i, j)
            graph[(name, *block, i, j)] = (_fill, region, job, read, own, stack, starts, masks, rows, cols)
    sources: list[Any] = [data] if domain is None else [data, domain]
    layers = HighLevelGraph.from_collections(name, graph, dependencies=sources)
    return da.Array(layers, name, data.chunks, dtype=result_dtype(read.dtype, job.predictor.classes))


def _fill(region: Region, job: FillJob, *parts: Any) -> npt.NDArray[np.void]:
    return fill_region(region, BlockSource(region, job, *parts), job)[0]


def count_batches(missing: npt.NDArray[np.bool_], chunks: Sequence[tuple[int, ...]], job: FillJob) -> int:
    """Upper bound of the batches that fill a slice, from its mask of missing cells ``(rows, cols)`` and its chunks."""
    total = 0
    for _, chunk in _windows(*chunks):
        if missing[chunk.row : chunk.row_end, chunk.col : chunk.col_end].any():
            rows, cols = job.cells(chunk)
            within = (rows >= 0)[:, None] & (cols >= 0)
            there = missing[np.ix_(rows, cols)]
            total += most_batches(within & there, within & ~there, chunk, job)
    return total


def _windows(y_chunks: tuple[int, ...], x_chunks: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], Window]]:
    """The numbers of each chunk along both dimensions, and its cells."""
    bounds = [list(itertools.pairwise(itertools.accumulate(sizes, initial=0))) for sizes in (y_chunks, x_chunks)]
    for (i, rows), (j, cols) in itertools.product(*map(enumerate, bounds)):
        yield (i, j), Window(*rows, *cols)
