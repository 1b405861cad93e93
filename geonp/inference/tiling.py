"""Tiles: which squares of missing cells are predicted together, and which cells of wide gaps are interpolated.

Tiles lie on a lattice that is fixed to the raster. Chunks and batches do not move them, so they do not change a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.inference.context import Neighbourhood
from geonp.raster.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class TilingSettings:
    """Which tiles are filled together and which cells are interpolated; distances in chessboard distance."""

    near_px: int = 2
    """Tiles are filled together only if one context holds all observations this near to their missing cells."""
    shallow_px: int = 10
    """Tiles with missing cells deeper in a gap are filled alone: each needs the observations around it."""
    second_px: int = 4
    """Depth in a gap beyond which only every second row and column is predicted."""
    fourth_px: int = 12
    """Depth in a gap beyond which only every fourth row and column is predicted."""
    margin_px: int = 3
    """Largest distance between an interpolated cell and the cells from which it is interpolated."""


TILING = TilingSettings()


def groups(missing: BoolArray, observed: BoolArray, frame: int, neighbourhood: Neighbourhood) -> list[IntArray]:
    """Group the tiles that have missing cells: each group is filled together, with one context.

    Each square of ``2 x 2`` tiles is divided into as few groups as possible, as evenly as possible. The context of a
    group must have room for all observations within ``TILING.near_px`` of its missing cells. No missing cell of a
    group of several tiles may lie deeper in a gap than ``TILING.shallow_px``. Squares of ``4 x 4`` up to
    ``merge x merge`` tiles are tried before, as a whole. A gap that is no larger than a tile, but crosses the borders
    of squares without another gap, gets a tile around it. Only such tiles are off the lattice.

    Parameters
    ----------
    missing, observed : array
        Masks with a frame of `frame` cells. The area inside consists of whole squares of ``merge x merge`` tiles.

    Returns
    -------
    list of array of int
        For each group the first rows and columns of its tiles, ``(n, 2)``, relative to the area inside.
    """
    px, merge, lap = neighbourhood.tile_px, neighbourhood.merge, min(TILING.near_px, frame)
    near = observed & (ndimage.distance_transform_cdt(~missing, "chessboard") <= lap)
    count = np.pad(near, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    inside = np.s_[frame : missing.shape[0] - frame, frame : missing.shape[1] - frame]
    lone, missing = _lone(missing, frame, px, px * merge)
    open_ = any_in(missing[inside], px)
    deep = any_in((missing & (depths(observed) > TILING.shallow_px))[inside], px)
    result: list[IntArray] = []
    while merge > 2:
        side = px * merge
        starts = [frame - lap + np.arange(0, n * px, side) for n in open_.shape]
        room = rectangle_sums(count, [(start, start + side + 2 * lap) for start in starts]) <= neighbourhood.n_context
        for i, j in np.argwhere(room & ~any_in(deep, merge) & any_in(open_, merge)):
            square = open_[i * merge : (i + 1) * merge, j * merge : (j + 1) * merge]
            result.append(np.argwhere(square) + np.array([i, j]) * merge)
            square[:] = False
        merge //= 2
    if merge == 2:
        result += _partition(open_, deep, count, frame - lap, lap, neighbourhood)
    else:
        result += list(np.argwhere(open_)[:, None])
    return [px * tiles for tiles in result] + list(lone[:, None])


def _lone(missing: BoolArray, frame: int, px: int, side: int) -> tuple[IntArray, BoolArray]:
    """First cells ``(n, 2)`` of tiles around lone gaps that squares of `side` cells would cut, and the other gaps.

    A lone gap is at most `px` cells wide, in squares without another gap. Gaps that reach into the frame belong to
    another window; the frame must be wider than a square.
    """
    if frame <= side:
        return np.empty((0, 2), np.intp), missing
    labels = _crossing(missing, frame, side)
    boxes = np.array([[(s.start, s.stop) for s in box] for box in ndimage.find_objects(labels)], np.intp)
    boxes = boxes.reshape(-1, 2, 2) - frame
    first, last = boxes[..., 0], boxes[..., 1]
    low, high = first // side * side, -(-last // side) * side
    in_window = (high > 0).all(1) & (low < np.array(missing.shape) - 2 * frame).all(1)
    lone = np.flatnonzero(in_window & (last - first <= px).all(1))
    count = np.pad(missing, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    (top, left), (bottom, right) = (low[lone] + frame).T, (high[lone] + frame).T
    inside = count[bottom, right] - count[top, right] - count[bottom, left] + count[top, left]
    lone = lone[inside == np.bincount(labels.ravel(), minlength=len(boxes) + 1)[lone + 1]]
    others = np.ones(len(boxes) + 1, bool)
    others[lone + 1] = False
    starts = np.clip((first + last - px) // 2, low, high - px)[lone]
    whole = (starts >= 0) & (starts + px <= np.array(missing.shape) - 2 * frame)
    return starts[whole.all(1)], missing & others[labels]


def _crossing(missing: BoolArray, frame: int, side: int) -> npt.NDArray[np.int32]:
    """Labels, from one, of the gaps that lie in several squares of `side` cells; zero elsewhere."""
    labels, n = ndimage.label(missing, np.ones((3, 3)))
    crosses = np.zeros(n + 1, bool)
    for lines in (labels, labels.T):
        # rows, then columns, on both sides of the borders of squares
        begin = np.arange(frame % side or side, len(lines), side)
        here, before = lines[begin], np.pad(lines[begin - 1], ((0, 0), (1, 1)))
        # diagonal neighbours belong to the same gap
        for shift in range(3):
            crosses[here[here == before[:, shift : shift + here.shape[1]]]] = True
    crosses[0] = False
    return (crosses.cumsum(dtype=np.int32) * crosses)[labels]


def _partition(
    open_: BoolArray, deep: BoolArray, count: IntArray, first: int, lap: int, neighbourhood: Neighbourhood
) -> list[IntArray]:
    """Groups of the tiles in each square of 2 x 2; `count` are cumulative sums, `first` is where the frame starts."""
    px = neighbourhood.tile_px
    # a tile and its frame cover two of three bands of rows, and of columns
    edges = np.array([0, px, px + 2 * lap, 2 * (px + lap)])
    bounds = [first + np.arange(0, n * px, 2 * px)[:, None] + edges for n in open_.shape]
    bands = rectangle_sums(count, [(bound[:, :-1].ravel(), bound[:, 1:].ravel()) for bound in bounds])
    bands = bands.reshape(-1, 3, bounds[1].shape[0], 3)
    members = np.array([[s >> tile & 1 for tile in range(4)] for s in range(16)], bool)
    covered = np.zeros((16, 3, 3), bool)
    for tile in range(4):
        i, j = divmod(tile, 2)
        covered[members[:, tile], i : i + 2, j : j + 2] = True
    near = np.einsum("sij,yixj->syx", covered.astype(int), bands)
    present, excluded = (
        sum(mask[i::2, j::2] << 2 * i + j for i in range(2) for j in range(2)) for mask in (open_, deep)
    )
    fits = (near <= neighbourhood.n_context) & (np.arange(16)[:, None, None] & excluded == 0)
    fits |= (members.sum(1) < 2)[:, None, None]
    sets = [np.array([part & present for part in parts]) for parts in _PARTITIONS]
    # the fewest groups; among equals those with most room in the fullest context
    cost = [(s > 0).sum(0) * (count.max() + 1) + np.take_along_axis(near, s, 0).max(0) for s in sets]
    allowed = [np.take_along_axis(fits, s, 0).all(0) for s in sets]
    best = np.argmin([np.where(a, c, np.inf) for a, c in zip(allowed, cost, strict=True)], 0)
    return [
        np.argwhere(members[part].reshape(2, 2)) + 2 * np.array([i, j])
        for i, j in np.argwhere(present)
        for part in sets[best[i, j]][:, i, j]
        if part
    ]


def _set_partitions(members: tuple[int, ...]) -> list[list[int]]:
    """All set partitions of single bits; each set is the sum of its bits."""
    if not members:
        return [[]]
    first, ways = members[0], _set_partitions(members[1:])
    joined = [[*way[:i], way[i] | first, *way[i + 1 :]] for way in ways for i in range(len(way))]
    return joined + [[first, *way] for way in ways]


_PARTITIONS = _set_partitions((1, 2, 4, 8))
"""The fifteen ways to divide the tiles of a square into groups."""


def any_in(mask: BoolArray, px: int) -> BoolArray:
    """Whether any cell of each square of `px` cells is True."""
    ny, nx = mask.shape
    return np.asarray(mask.reshape(ny // px, px, nx // px, px).any((1, 3)))


def depths(observed: BoolArray) -> IntArray:
    """Distance of each cell from the nearest observation in chessboard distance; very large where there is none."""
    if not observed.any():
        return np.full(observed.shape, np.iinfo(np.intp).max)
    return np.asarray(ndimage.distance_transform_cdt(~observed, "chessboard"), np.intp)


def rectangle_sums(count: IntArray, bounds: Sequence[tuple[IntArray, IntArray]]) -> IntArray:
    """Sums over rectangles from cumulative sums; `bounds` are first and last rows, then first and last columns."""
    ends = [count[np.ix_(rows, cols)] for rows in bounds[0] for cols in bounds[1]]
    return np.asarray(ends[3] - ends[2] - ends[1] + ends[0])


def support(fillable: BoolArray, rows: IntArray, cols: IntArray) -> BoolArray:
    """Cells that are predicted by the model; :func:`between` interpolates the other fillable cells.

    Predictions vary slowly deep inside a gap. Every second row and column is predicted at more than four cells from the
    rim of the gap, and every fourth at more than twelve. This lattice is fixed to the raster.

    Parameters
    ----------
    fillable : array
        ``(len(rows), len(cols))`` of a window.
    rows, cols : array
        Raster indices of the window, see :func:`geonp.raster.windows.indices`.
    """
    # the lattice need not continue across the seam of a periodic raster
    inside = fillable & (cols > 0)[None, :]
    depth = ndimage.distance_transform_cdt(np.pad(inside, 1), "chessboard")[1:-1, 1:-1]
    second, fourth = (((rows % n == 0)[:, None] & (cols % n == 0)[None, :]) for n in (2, 4))
    return np.asarray(fillable & ((depth <= TILING.second_px) | second & (depth <= TILING.fourth_px) | fourth))


def between(values: FloatArray, fillable: BoolArray, supported: BoolArray, rows: IntArray, cols: IntArray) -> None:
    """Interpolate `values` ``(..., len(rows), len(cols))`` bilinearly, in place, where :func:`support` is False."""
    open_ = np.stack(np.nonzero(fillable & ~supported))
    # cells at the rim of the window lack neighbours; they are never part of a chunk
    open_ = open_[:, ((open_ >= 2) & (open_ < np.array(fillable.shape)[:, None] - 2)).all(0)]
    for step in (2, 1):
        odd_row, odd_col = rows[open_[0]] % (2 * step) != 0, cols[open_[1]] % (2 * step) != 0
        turn = (rows[open_[0]] % step == 0) & (cols[open_[1]] % step == 0) & (odd_row | odd_col)
        (i, j), di, dj = open_[:, turn], step * odd_row[turn], step * odd_col[turn]
        corners = [values[..., i + a * di, j + b * dj] for a in (-1, 1) for b in (-1, 1)]
        values[..., i, j] = sum(corners[1:], corners[0]) / 4


def near(context_mask: BoolArray, max_distance: float | None) -> BoolArray:
    """Cells within `max_distance` of an observation; all cells if it is None."""
    if max_distance is None or not context_mask.any():
        return np.full(context_mask.shape, max_distance is None)
    return np.asarray(ndimage.distance_transform_edt(~context_mask) <= max_distance)


def wanted_cells(fillable: BoolArray, supported: BoolArray, core: tuple[slice, slice]) -> BoolArray:
    """The supported cells of the core, and those around it that its other cells are interpolated from."""
    inside = np.zeros_like(supported)
    inside[core] = (fillable & ~supported)[core]
    used = (
        ndimage.binary_dilation(inside, np.ones((3, 3), bool), iterations=TILING.margin_px) if inside.any() else inside
    )
    used[core] = True
    return supported & used


def within_tiles(corners: IntArray, mask: BoolArray, px: int) -> BoolArray:
    """`mask` of a box, False outside of the tiles that begin at `corners`."""
    own = np.zeros_like(mask)
    for row, col in corners:
        own[row : row + px, col : col + px] = True
    return own & mask
