"""From the chunks of a raster to filled chunks: one task each, the same answer however the raster is chunked.

Dask only schedules :func:`geonp.inference.kernel.fill_window`. Each task reads the edges of its neighbours' chunks
itself, so that no chunk is ever reshaped.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from geonp.inference.kernel import Classified, Filled, Job, classify_window, fill_window, most_batches, record
from geonp.inference.stack import SLICES, beside, read_with
from geonp.raster.classes import ClassReader
from geonp.raster.nodata import Reader
from geonp.raster.windows import Piece, Window, pieces

__all__ = ["count_batches", "fill_chunks", "task_bytes"]

FloatArray = npt.NDArray[np.floating]
Blocks = list[list[npt.NDArray[Any]]]


def fill_chunks(
    data: da.Array, domain: da.Array | None, job: Job, read: Reader | ClassReader, axis: int | None = None
) -> da.Array:
    """One task a chunk, each reading its neighbours' edges itself: a lazy array of the fields of `Filled`.

    Of `Classified` for a model of classes (see :mod:`geonp.inference.kernel`). `data` are as they are stored, rows and
    columns last: each task does to what it sees of them what `read` says, so that nothing but the source is behind it.
    Where slices tell about each other along an `axis`, it reads those beside its own, too.
    """
    name = "geonp-fill-" + tokenize(data.name, None if domain is None else domain.name, job, read, axis)
    dtype = record(read.dtype, job.predictor.classes)
    y_chunks, x_chunks = data.chunks[-2:]
    graph: dict[Any, Any] = {}
    for (i, j), chunk in _windows(y_chunks, x_chunks):
        rows, cols = job.cells(chunk)
        down, across = pieces(rows, y_chunks), pieces(cols, x_chunks)
        masks = None if domain is None else [[(domain.name, a.chunk, b.chunk) for b in across] for a in down]
        for lead in itertools.product(*(range(n) for n in data.numblocks[:-2])):
            along = None if axis is None else _Along.of(axis, data.chunks[axis], lead[axis])
            places = [lead] if along is None else [(*lead[:axis], k, *lead[along.axis + 1 :]) for k in along.blocks]
            stack = [[[(data.name, *place, a.chunk, b.chunk) for b in across] for a in down] for place in places]
            graph[(name, *lead, i, j)] = (_fill_chunk, stack, masks, chunk, down, across, job, read, along)
    sources: list[Any] = [data] if domain is None else [data, domain]
    layers = HighLevelGraph.from_collections(name, graph, dependencies=sources)
    return da.Array(layers, name, data.chunks, dtype=dtype)


@dataclass(frozen=True)
class _Along:
    """Along the leading dimension `axis` of `size` slices: those of a chunk, its `own`, and where others are read.

    `blocks` are the numbers of the chunks that hold them, `starts` those of the first slices of these.
    """

    axis: int
    size: int
    own: range
    blocks: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, axis: int, chunks: tuple[int, ...], block: int) -> _Along:
        """Of one of the chunks."""
        edges = [0, *itertools.accumulate(chunks)]
        own, size = range(edges[block], edges[block + 1]), edges[-1]
        wanted = read_with(own, size)
        blocks = tuple(k for k in range(len(chunks)) if edges[k] < wanted.stop and edges[k + 1] > wanted.start)
        return cls(axis, size, own, blocks, tuple(edges[k] for k in blocks))


def _fill_chunk(
    stack: list[Blocks],
    masks: Blocks | None,
    chunk: Window,
    down: list[Piece],
    across: list[Piece],
    job: Job,
    read: Reader | ClassReader,
    along: _Along | None,
) -> npt.NDArray[np.void]:
    """Fill every slice of one chunk from its own and its neighbours' blocks, and those of other slices."""
    window = job.window(chunk)
    domain = np.zeros(window.shape, bool)
    _assemble(domain, masks, down, across, ())
    own = [range(n) for n in stack[0][0][0].shape[:-2]]
    if along is not None:
        own[along.axis] = along.own

    @lru_cache(maxsize=1 if along is None else SLICES + 1)
    def seen(index: tuple[int, ...]) -> FloatArray:
        blocks = stack[0]
        if along is not None:
            k = bisect_right(along.starts, index[along.axis]) - 1
            blocks, index = stack[k], _moved(index, along.axis, index[along.axis] - along.starts[k])
        values = np.full(window.shape, np.nan, read.dtype)
        _assemble(values, blocks, down, across, index, read)
        return values

    out = np.empty((*map(len, own), *chunk.shape), record(read.dtype, job.predictor.classes))
    for place, index in zip(np.ndindex(out.shape[:-2]), itertools.product(*own), strict=True):
        filled: Filled | Classified
        if job.predictor.classes:
            filled = classify_window(seen(index), domain, chunk, job)
        else:
            near = [] if along is None else beside(index[along.axis], along.size)
            others = [seen(_moved(index, along.axis, k)) for k in near] if along is not None else []
            filled = fill_window(seen(index), domain, chunk, job, np.stack(others) if others else None)
        for field in fields(filled):
            out[field.name][place] = getattr(filled, field.name)
    return out


def _moved(index: tuple[int, ...], axis: int, to: int) -> tuple[int, ...]:
    return (*index[:axis], to, *index[axis + 1 :])


def _assemble(
    window: npt.NDArray[Any],
    blocks: Blocks | None,
    down: list[Piece],
    across: list[Piece],
    index: tuple[int, ...],
    read: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = np.asarray,
) -> None:
    """Put what is read of the blocks into its places in `window`; True everywhere in the raster without blocks."""
    for i, a in enumerate(down):
        for j, b in enumerate(across):
            place = np.s_[a.offset : a.offset + a.stop - a.start, b.offset : b.offset + b.stop - b.start]
            window[place] = True if blocks is None else read(blocks[i][j][index][a.start : a.stop, b.start : b.stop])


def count_batches(values: FloatArray, chunks: Sequence[tuple[int, ...]], job: Job) -> int:
    """How many batches fill the missing cells of a slice ``(rows, cols)`` that is cut into these chunks, at most."""
    missing, total = np.isnan(values), 0
    for _, chunk in _windows(*chunks):
        if missing[chunk.row : chunk.row_end, chunk.col : chunk.col_end].any():
            rows, cols = job.cells(chunk)
            within = (rows >= 0)[:, None] & (cols >= 0)
            found = missing[np.ix_(rows, cols)]
            total += most_batches(within & found, within & ~found, chunk, job)
    return total


def _windows(y_chunks: tuple[int, ...], x_chunks: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], Window]]:
    """The cells of each chunk, after its place among them."""
    bounds = [list(itertools.pairwise(itertools.accumulate(sizes, initial=0))) for sizes in (y_chunks, x_chunks)]
    for (i, rows), (j, cols) in itertools.product(*map(enumerate, bounds)):
        yield (i, j), Window(*rows, *cols)


def task_bytes(chunk: tuple[int, ...], job: Job, itemsize: int) -> int:
    """Bytes that the task of a chunk takes beside batches, an upper bound: its window, its neighbours, its result."""
    slices, (rows, cols) = math.prod(chunk[:-2]), chunk[-2:]
    window = math.prod(job.window(Window(0, rows, 0, cols)).shape)
    held, kept, stacked = min(9 * rows * cols, window) if slices > 1 else 0, slices, 0
    if job.across is not None:
        # windows of all slices that are read, and copies of them; the chunks before and after may be held whole
        others = SLICES * (slices if len(chunk) > 3 else 1)
        held, kept = min(9 * rows * cols, window), 3 * slices + others
        stacked = 3 * (slices + others) * itemsize
    result = slices * rows * cols * (2 * itemsize + 5 + 4 * job.predictor.classes)
    return window * (4 * itemsize + 80 + stacked) + kept * held * itemsize + result
