"""Far context of wide gaps: means of blocks of cells, which represent observations that single cells do not reach.

Deep in a gap, details at the rim do not matter, and what matters lies far away. There, a part of the context are
single cells as in other tiles, and the rest are means of blocks, each at the centre of its cells. Their number falls
with distance as that of cells does, on lattices of their own. The model reads them as single cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from geonp.inference.context import Neighbourhood, select_context
from geonp.inference.thinning import start_of
from geonp.inference.tiling import TILING
from geonp.raster.arrays import BoolArray, FloatArray, IntArray
from geonp.raster.windows import Window


@dataclass(frozen=True)
class FarSettings:
    """Which blocks may be context."""

    reach: int = 28
    """Distance from the tile to which blocks are chosen, in blocks."""
    observed: float = 0.25
    """Smallest share of observed cells of a block. Blocks with fewer are no mean of their area."""
    within: float = 0.1
    """Largest share of the variance of blocks that lies within them. The model reads a mean as a cell, so the field
    must vary little within."""


FAR = FarSettings()


NO_BLOCKS = np.empty((0, 2)), np.empty(0)
"""Places and values of no block."""


@dataclass(frozen=True, eq=False)
class BlockSums:
    """Sums over the observed cells of each block of ``px x px`` cells in a window.

    Attributes
    ----------
    px : int
        Side of a block, in cells. Blocks begin at multiples of it in the raster.
    first : array of int
        Row and column of the first block, in blocks from the first one of the raster.
    sums : array
        ``(5, blocks along rows, along columns)``: number of observed cells, and the sums of their values, squared
        values, rows and columns.
    """

    px: int
    first: IntArray
    sums: FloatArray


@dataclass(frozen=True, eq=False)
class FarContext:
    """Far context of the tiles of a window.

    Attributes
    ----------
    sums : sequence of BlockSums
    depth : array of int
        Chessboard distance of each cell of the window from the nearest observation.
    first : array of int
        First row and column of the window in the raster.
    neighbourhood, seed, period
        As of :func:`far_context`.
    """

    sums: Sequence[BlockSums]
    depth: IntArray
    first: IntArray
    neighbourhood: Neighbourhood
    seed: int
    period: int | None

    def of(self, box: IntArray, target_mask: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Rows and columns ``(n, 2)`` in the window, and values ``(n,)``, of the blocks that the tiles in a box read.

        None for tiles that are not deep in a gap; `box` is in the window.
        """
        (top, left), (bottom, right) = box.tolist()
        if not (self.depth[top:bottom, left:right][target_mask] > TILING.shallow_px).any():
            return NO_BLOCKS
        places, values = far_context(self.sums, box + self.first, self.neighbourhood, self.seed, self.period)
        return places - self.first, values


def reaches_far(depth: IntArray, missing: BoolArray, core: tuple[slice, slice], px: int) -> bool:
    """Whether the tiles of the core of a window, or those next to them, have cells so deep in a gap that blocks help.

    `depth` is that of :class:`FarContext`, `px` the side of a tile.
    """
    around = tuple(slice(max(part.start - 2 * px, 0), part.stop + 2 * px) for part in core)
    return bool((depth[around] > TILING.shallow_px)[missing[around]].any())


def far_window(chunk: Window, neighbourhood: Neighbourhood) -> Window:
    """The window that the blocks of all tiles within `chunk` lie in; whole blocks of each size."""
    widest = max((px for px, _ in neighbourhood.far), default=0)
    return chunk.grown(FAR.reach * widest).aligned(max(widest, 1))


def block_sums(values: FloatArray, window: Window, neighbourhood: Neighbourhood) -> list[BlockSums]:
    """Sums of the blocks of each size in a :func:`far_window`, whose missing cells are NaN; finest blocks first."""
    observed_mask = np.isfinite(values)
    rows, cols = np.arange(window.row, window.row_end)[:, None], np.arange(window.col, window.col_end)
    finest = neighbourhood.far[0][0]
    known = np.where(observed_mask, values, np.zeros(1))
    # one after another, because the window is large
    parts = (np.where(observed_mask, of, 0.0) for of in (1.0, known, known**2, rows, cols))
    sums, side, found = np.stack([_summed(part, finest) for part in parts]), finest, []
    for px, _ in neighbourhood.far:
        sums, side = _summed(sums, px // side), px
        found.append(BlockSums(px, np.array([window.row // px, window.col // px]), sums))
    return found


def _summed(values: FloatArray, n: int) -> FloatArray:
    """Sums over ``n x n`` elements of the last two axes."""
    *lead, ny, nx = values.shape
    return np.asarray(values.reshape(*lead, ny // n, n, nx // n, n).sum((-3, -1)))


def far_context(
    sums: Sequence[BlockSums], box: IntArray, neighbourhood: Neighbourhood, seed: int, period: int | None
) -> tuple[FloatArray, FloatArray]:
    """Choose blocks as context of the tiles in a box, on the lattice of each size as cells are chosen.

    Where there are too few blocks of one size, there are more of the next.

    Parameters
    ----------
    sums : sequence of BlockSums
        For each size in ``neighbourhood.far``.
    box : array of int
        First corner of the box and its end, in the raster.
    seed : int
        Seed for sampling distant blocks.
    period : int or None
        Number of columns after which a periodic raster repeats. No block is chosen twice.

    Returns
    -------
    tuple of array
        Mean rows and columns ``(n, 2)`` of the observed cells of the chosen blocks, and their mean values ``(n,)``.
    """
    places, values = ([part] for part in NO_BLOCKS)
    spare = 0
    for level, (px, n) in zip(sums, neighbourhood.far, strict=True):
        spare += n
        first, last = box[0] // px, -(-box[1] // px)
        reach = np.full(2, FAR.reach)
        if period is not None:
            reach[1] = min(FAR.reach, max((period // px - int(last[1] - first[1])) // 2, 0))
        (top, left), (bottom, right) = (first - reach - level.first).tolist(), (last + reach - level.first).tolist()
        blocks = level.sums[:, top:bottom, left:right]
        candidates = blocks[0] >= FAR.observed * px**2
        if candidates.any():
            target_mask = np.zeros(candidates.shape, bool)
            target_mask[reach[0] : -reach[0] or None, reach[1] : -reach[1] or None] = True
            chosen = select_context(candidates, target_mask, replace(neighbourhood, n_context=spare), start_of(seed))
            count, *sums_of = blocks.reshape(len(blocks), -1)[:, chosen]
            value, square, *where = sums_of / count
            inside = float((square - value**2).mean())
            if inside > FAR.within * (inside + float(value.var())):
                spare -= n
                continue
            # differences of sixteenths of a cell are exact in float32, so that the targets of a tile do not change them
            places.append((16 * np.stack(where, -1)).round() / 16)
            values.append(value)
            spare -= chosen.size
    return np.concatenate(places), np.concatenate(values)
