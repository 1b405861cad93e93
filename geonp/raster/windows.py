"""Windows of a raster, and the chunks that hold their cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from dask.system import CPU_COUNT

__all__ = ["CHUNK_PX", "Piece", "Window", "chunk_side", "indices", "pieces", "shown_once"]

BoolArray = npt.NDArray[np.bool_]

CHUNK_PX = (256, 1024)
"""Least and greatest side of the chunks that geonp chooses."""


@dataclass(frozen=True)
class Window:
    """Half-open ranges of rows and columns; they may reach beyond the raster."""

    row: int
    row_end: int
    col: int
    col_end: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.row_end - self.row, self.col_end - self.col

    def aligned(self, tile_px: int) -> Window:
        """The smallest union of tiles that holds the window; it may reach beyond the raster."""
        rows = self.row // tile_px * tile_px, -(-self.row_end // tile_px) * tile_px
        return Window(*rows, self.col // tile_px * tile_px, -(-self.col_end // tile_px) * tile_px)

    def grown(self, px: int) -> Window:
        """The window with a frame of `px` cells."""
        return Window(self.row - px, self.row_end + px, self.col - px, self.col_end + px)


@dataclass(frozen=True)
class Piece:
    """Part of one chunk along one dimension: cells `start` to `stop` of `chunk` lie at `offset` in the window."""

    chunk: int
    start: int
    stop: int
    offset: int


def chunk_side(cells: int) -> int:
    """Side of chunks for a raster of so many cells in all its slices.

    Some chunks for each core, but not so small that reading their surroundings takes long; whole tiles of most sizes.
    """
    side = math.sqrt(cells / (4 * CPU_COUNT))
    return int(np.clip(-(-side // 128) * 128, *CHUNK_PX))


def indices(start: int, stop: int, size: int, *, periodic: bool = False) -> npt.NDArray[np.intp]:
    """Raster index of each window cell along one dimension; -1 outside. A periodic dimension goes round and round."""
    i = np.arange(start, stop)
    return i % size if periodic else np.where((i >= 0) & (i < size), i, -1)


def shown_once(mask: BoolArray, period: int | None) -> BoolArray:
    """`mask` without those columns that show a cell again: of each cell the image nearest to the middle is kept."""
    if period is None or mask.shape[1] <= period:
        return mask
    first = (mask.shape[1] - period) // 2
    once = np.zeros_like(mask)
    once[:, first : first + period] = mask[:, first : first + period]
    return once


def pieces(index: npt.NDArray[np.intp], chunks: Sequence[int]) -> list[Piece]:
    """Which parts of which chunks hold the cells of `index`, in the window's order; see :func:`indices`."""
    edges = np.concatenate([[0], np.cumsum(chunks)])
    chunk = np.where(index >= 0, np.searchsorted(edges, index, side="right") - 1, -1)
    breaks = np.flatnonzero((np.diff(chunk) != 0) | (np.diff(index) != 1) & (chunk[1:] >= 0)) + 1
    found = []
    for start, stop in zip(np.r_[0, breaks], np.r_[breaks, index.size], strict=True):
        c = int(chunk[start])
        if c >= 0:
            first = int(index[start] - edges[c])
            found.append(Piece(c, first, first + int(stop - start), int(start)))
    return found
