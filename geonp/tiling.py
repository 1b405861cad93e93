"""Tiles: a lattice fixed to the grid, in which every cell has exactly one owner, and the windows read to fill it.

Neither Dask chunks nor batches move a tile, so that they can't change a result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from dask.system import CPU_COUNT
from scipy import ndimage

from geonp.points import Neighbourhood

__all__ = [
    "CHUNK_PX",
    "MARGIN_PX",
    "Piece",
    "Window",
    "aligned",
    "between",
    "chunk_side",
    "grown",
    "indices",
    "pieces",
    "shown_once",
    "squares",
    "support",
    "tiles_with",
]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]

DEEP_PX = (4, 12)
"""Deeper in a gap than so many cells, every second and every fourth cell is predicted, the others interpolated."""

MARGIN_PX = 3
"""How far from a cell those lie that it may be interpolated from."""

NEXT_PX = 2
"""How far from missing cells, in king's moves, tiles must see all observations to be merged."""

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


def aligned(window: Window, tile_px: int) -> Window:
    """The smallest union of tiles that holds `window`; its last row and column of tiles may stick out of the raster."""
    return Window(
        window.row // tile_px * tile_px,
        -(-window.row_end // tile_px) * tile_px,
        window.col // tile_px * tile_px,
        -(-window.col_end // tile_px) * tile_px,
    )


def grown(window: Window, px: int) -> Window:
    """`window` with a frame of `px` cells."""
    return Window(window.row - px, window.row_end + px, window.col - px, window.col_end + px)


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


def tiles_with(cells: BoolArray, tile_px: int) -> list[tuple[int, int]]:
    """Rows and columns of the tiles that hold a True; `cells` begins on the lattice, its sides whole tiles."""
    ny, nx = cells.shape
    any_ = cells.reshape(ny // tile_px, tile_px, nx // tile_px, tile_px).any((1, 3))
    return [(int(i), int(j)) for i, j in zip(*np.nonzero(any_), strict=True)]


def squares(
    missing: BoolArray, observed: BoolArray, frame: int, neighbourhood: Neighbourhood
) -> list[tuple[int, int, int]]:
    """First row and column and the side of squares with missing cells: of single tiles, and of several merged into one.

    A square of ``2 x 2``, ``4 x 4``, up to ``merge x merge`` tiles is filled at once if its context has room for all
    observations next to its missing cells (:data:`NEXT_PX`), and none of these lies deep in a gap (:data:`DEEP_PX`),
    where each tile sees shores of its own.

    Parameters
    ----------
    missing, observed : array
        With a frame of so many cells; what is inside begins on the lattice of the largest squares, its sides whole
        ones. Rows and columns count from there.
    """
    px, height, width = neighbourhood.tile_px, missing.shape[0] - 2 * frame, missing.shape[1] - 2 * frame
    lap = min(NEXT_PX, frame)
    near = observed & (ndimage.distance_transform_cdt(~missing, "chessboard") <= lap)
    deep = missing & (_distance(observed) > DEEP_PX[1])
    counts = [(np.pad(mask, ((1, 0), (1, 0))).cumsum(0).cumsum(1), n) for mask, n in ((near, lap), (deep, 0))]
    open_, found = missing[frame : frame + height, frame : frame + width].copy(), []
    side = px * neighbourhood.merge
    while side > px:
        n_near, n_deep = (_sums(count, frame - n, side + 2 * n, side, (height, width)) for count, n in counts)
        for i, j in tiles_with(open_, side):
            if n_near[i, j] <= neighbourhood.n_context and not n_deep[i, j]:
                found.append((i * side, j * side, side))
                open_[i * side : (i + 1) * side, j * side : (j + 1) * side] = False
        side //= 2
    return [*found, *((i * px, j * px, px) for i, j in tiles_with(open_, px))]


def _distance(observed: BoolArray) -> IntArray:
    """From each cell to the nearest observation in king's moves; very far where there is none."""
    if not observed.any():
        return np.full(observed.shape, np.iinfo(np.intp).max)
    return np.asarray(ndimage.distance_transform_cdt(~observed, "chessboard"), np.intp)


def _sums(count: IntArray, first: int, size: int, step: int, extent: tuple[int, int]) -> IntArray:
    """Sums over squares of side `size` that begin at `first` and every `step` cells after it, from cumulative ones."""
    rows, cols = (first + np.arange(0, n, step) for n in extent)
    ends = [count[np.ix_(a, b)] for a in (rows, rows + size) for b in (cols, cols + size)]
    return np.asarray(ends[3] - ends[2] - ends[1] + ends[0])


def support(fillable: BoolArray, rows: IntArray, cols: IntArray) -> BoolArray:
    """Which of the cells to fill are predicted; :func:`between` interpolates the others.

    Deep inside a gap predictions vary slowly, so that a lattice of them is enough: every second cell in rows and
    columns at more than four cells from the rim of what is filled, every fourth at more than twelve. The lattice is
    fixed to the raster.

    Parameters
    ----------
    fillable : array
        ``(len(rows), len(cols))`` of a window.
    rows, cols : array
        Raster indices of the window, see :func:`indices`.
    """
    # where a periodic raster closes, its lattice may not
    inside = fillable & (cols > 0)[None, :]
    depth = ndimage.distance_transform_cdt(np.pad(inside, 1), "chessboard")[1:-1, 1:-1]
    near, deep = DEEP_PX
    second, fourth = (((rows % n == 0)[:, None] & (cols % n == 0)[None, :]) for n in (2, 4))
    return np.asarray(fillable & ((depth <= near) | second & (depth <= deep) | fourth))


def between(values: FloatArray, fillable: BoolArray, supported: BoolArray, rows: IntArray, cols: IntArray) -> None:
    """Interpolate `values` ``(..., len(rows), len(cols))`` bilinearly, in place, where :func:`support` left them."""
    open_ = np.stack(np.nonzero(fillable & ~supported))
    # what lies beyond the window has no neighbours to be interpolated from
    open_ = open_[:, ((open_ >= 2) & (open_ < np.array(fillable.shape)[:, None] - 2)).all(0)]
    for step in (2, 1):
        odd_row, odd_col = rows[open_[0]] % (2 * step) != 0, cols[open_[1]] % (2 * step) != 0
        turn = (rows[open_[0]] % step == 0) & (cols[open_[1]] % step == 0) & (odd_row | odd_col)
        (i, j), di, dj = open_[:, turn], step * odd_row[turn], step * odd_col[turn]
        corners = [values[..., i + a * di, j + b * dj] for a in (-1, 1) for b in (-1, 1)]
        values[..., i, j] = sum(corners[1:], corners[0]) / 4
