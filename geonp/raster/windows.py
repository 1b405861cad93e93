"""Windows of a raster, and the chunks that hold their cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dask.system import CPU_COUNT

from geonp.raster.arrays import BoolArray, IntArray


@dataclass(frozen=True)
class ChunkSettings:
    """Settings of the chunks that geonp chooses."""

    smallest_px: int = 256
    """Smallest side, so that reading the surroundings of a chunk takes little of the time."""
    largest_px: int = 1024
    """Largest side, which bounds the memory of a task."""
    step_px: int = 128
    """Sides are multiples of this, and so of most sizes of tiles."""
    per_core: int = 4
    """Number of chunks for each core, so that all cores finish at about the same time."""


CHUNKS = ChunkSettings()


@dataclass(frozen=True)
class Window:
    """Half-open ranges of rows and columns, which may extend beyond the raster."""

    row: int
    row_end: int
    col: int
    col_end: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.row_end - self.row, self.col_end - self.col

    def aligned(self, tile_px: int) -> Window:
        """The smallest window of whole tiles that contains the window."""
        rows = self.row // tile_px * tile_px, -(-self.row_end // tile_px) * tile_px
        return Window(*rows, self.col // tile_px * tile_px, -(-self.col_end // tile_px) * tile_px)

    def grown(self, px: int, cols: int | None = None) -> Window:
        """The window with a frame of `px` cells, or of so many columns on its sides."""
        cols = px if cols is None else cols
        return Window(self.row - px, self.row_end + px, self.col - cols, self.col_end + cols)

    def shifted(self, cols: int) -> Window:
        """The window moved by some columns."""
        return Window(self.row, self.row_end, self.col + cols, self.col_end + cols)


@dataclass(frozen=True)
class Piece:
    """Part of a chunk along one dimension: cells `start` to `stop` of `chunk` are at `offset` in the window."""

    chunk: int
    start: int
    stop: int
    offset: int


def chunk_side(cells: int) -> int:
    """Side of the chunks of a raster, from its number of cells in all slices; see :class:`ChunkSettings`."""
    side = math.sqrt(cells / (CHUNKS.per_core * CPU_COUNT))
    return int(np.clip(-(-side // CHUNKS.step_px) * CHUNKS.step_px, CHUNKS.smallest_px, CHUNKS.largest_px))


def indices(start: int, stop: int, size: int, *, periodic: bool = False) -> IntArray:
    """Raster index of each window cell along one dimension, -1 outside; a periodic dimension repeats."""
    i = np.arange(start, stop)
    return i % size if periodic else np.where((i >= 0) & (i < size), i, -1)


def shown_once(mask: BoolArray, period: int | None) -> BoolArray:
    """`mask` of a periodic raster, False for all but the ``period`` columns in the middle: each cell occurs once."""
    if period is None or mask.shape[1] <= period:
        return mask
    first = (mask.shape[1] - period) // 2
    once = np.zeros_like(mask)
    once[:, first : first + period] = mask[:, first : first + period]
    return once


def pieces(index: IntArray, chunks: Sequence[int]) -> list[Piece]:
    """Parts of chunks that hold the cells of `index`, in the order of the window; see :func:`indices`."""
    edges = np.concatenate([[0], np.cumsum(chunks)])
    chunk = np.where(index >= 0, np.searchsorted(edges, index, side="right") - 1, -1)
    breaks = np.flatnonzero((np.diff(chunk) != 0) | (np.diff(index) != 1) & (chunk[1:] >= 0)) + 1
    parts = []
    for start, stop in zip(np.r_[0, breaks], np.r_[breaks, index.size], strict=True):
        c = int(chunk[start])
        if c >= 0:
            first = int(index[start] - edges[c])
            parts.append(Piece(c, first, first + int(stop - start), int(start)))
    return parts
