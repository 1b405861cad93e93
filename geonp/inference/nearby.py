"""Small gaps among many observations: the covariance is read once for a block of tiles, see :mod:`geonp.nn.nearby`.

Blocks, tiles and squares lie on lattices fixed to the raster. A block is read where many of its tiles have small gaps:
elsewhere, the tiles around the gaps are read, see :mod:`geonp.inference.tiles`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from geonp.inference.context import framed
from geonp.inference.ground import Squares
from geonp.inference.parallel import on_cores
from geonp.inference.stitching import Tile, batches, pad
from geonp.inference.tiling import depths
from geonp.nn.nearby import NEARBY, Patch, Reading

if TYPE_CHECKING:
    from geonp.inference.kernel import FillJob

__all__ = ["BLOCKS", "Blocks", "blocks_of", "fill_nearby"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class BlockSettings:
    """Which blocks are read."""

    tiles: int = 4
    """Tiles along the side of a block."""
    depth_px: int = 2
    """Largest distance of a missing cell from an observation, along rows and columns."""
    candidates: int = 4
    """Number of readings that a quarter of a block chooses from."""
    fewest: int = 4
    """Number of tiles with small gaps from which a block is read: a reading takes as long as a tile."""


BLOCKS = BlockSettings()
"""The settings in use."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Small gaps in the blocks of a window.

    Attributes
    ----------
    squares : array of bool
        Squares of ``NEARBY.side_px`` cells that are filled from the nearest observations, without the frame.
    mask : array of bool
        The missing cells of these squares, in the window.
    read : array of bool
        Blocks that are read.
    px, frame : int
        Side of a block, and width of the frame.
    """

    squares: BoolArray
    mask: BoolArray
    read: BoolArray
    px: int
    frame: int


def blocks_of(missing: BoolArray, context_mask: BoolArray, frame: int, tile_px: int) -> Blocks:
    """Find the small gaps in the blocks of a window; the area inside its frame consists of whole blocks."""
    side, px = NEARBY.side_px, tile_px * BLOCKS.tiles
    inside = (slice(frame, missing.shape[0] - frame), slice(frame, missing.shape[1] - frame))
    deep = missing & (depths(context_mask) > BLOCKS.depth_px)
    squares = _any(missing[inside], side) & ~_any(deep[inside], side)
    count = np.pad(context_mask, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    first = [frame - NEARBY.reach_px + side * np.arange(n) for n in squares.shape]
    last = [start + side + 2 * NEARBY.reach_px for start in first]
    ends = [count[np.ix_(rows, cols)] for rows in (first[0], last[0]) for cols in (first[1], last[1])]
    squares &= ends[3] - ends[2] - ends[1] + ends[0] >= NEARBY.n_context
    # one other gap needs the tile, which then fills all of its cells
    tiles = _any(squares, tile_px // side) & ~_any(_any(missing[inside], side) & ~squares, tile_px // side)
    ny, nx = (n // BLOCKS.tiles for n in tiles.shape)
    read = tiles.reshape(ny, BLOCKS.tiles, nx, BLOCKS.tiles).sum((1, 3)) >= BLOCKS.fewest
    tiles &= read.repeat(BLOCKS.tiles, 0).repeat(BLOCKS.tiles, 1)
    squares &= tiles.repeat(tile_px // side, 0).repeat(tile_px // side, 1)
    mask = np.zeros_like(missing)
    mask[inside] = missing[inside] & squares.repeat(side, 0).repeat(side, 1)
    return Blocks(squares, mask, read, px, frame)


def fill_nearby(
    values: FloatArray, context_mask: BoolArray, missing: BoolArray, wanted: BoolArray, blocks: Blocks, job: FillJob
) -> npt.NDArray[np.float64]:
    """Outputs ``(outputs, rows, cols)`` of the wanted cells of ``blocks.mask``, NaN elsewhere."""
    out = np.full((job.predictor.outputs, *values.shape), np.nan)
    half, frame, squares = blocks.px // 2, blocks.frame, blocks.squares.copy()
    inside = (slice(frame, values.shape[0] - frame), slice(frame, values.shape[1] - frame))
    squares &= _any((wanted & blocks.mask)[inside], NEARBY.side_px)
    quarters = np.argwhere(_any(squares, half // NEARBY.side_px))
    if not len(quarters):
        return out
    candidates = [_candidates(quarter, blocks.read) for quarter in quarters]
    needed = np.unique(np.concatenate(candidates), axis=0)
    readings = dict(zip(map(tuple, needed), _readings(values, context_mask, missing, needed, blocks, job), strict=True))
    known, places = np.where(context_mask, values, np.nan), []

    def patches() -> Iterator[Patch]:
        n = half // NEARBY.side_px
        for quarter, blocks_around in zip(quarters, candidates, strict=True):
            (row, col), (first_row, first_col) = n * quarter, frame + half * quarter
            corners = NEARBY.side_px * np.argwhere(squares[row : row + n, col : col + n])
            box = np.array([[first_row, first_col], [first_row + half, first_col + half]])
            patch = framed(box, 0)
            places.append(patch)
            around = known[framed(box, NEARBY.reach_px)]
            yield Patch(around, missing[patch], corners, tuple(readings[tuple(block)] for block in blocks_around))

    predictor = job.predictor.rooted()
    for k, found in enumerate(on_cores(predictor.fill_patch, patches(), predictor.device, len(quarters) // 4)):
        out[:, *places[k]] = found
    return out


def _readings(
    values: FloatArray, context_mask: BoolArray, missing: BoolArray, needed: IntArray, blocks: Blocks, job: FillJob
) -> list[Reading]:
    """The readings of the needed blocks, from the context of the tile with small gaps in the middle of each."""
    predictor, neighbourhood = job.predictor.rooted(), job.predictor.neighbourhood
    ground = Squares(context_mask, job.shape[1] if job.periodic else None)
    px, tiles = neighbourhood.tile_px, []
    with_gaps = _any(blocks.squares, px // NEARBY.side_px)
    for block in BLOCKS.tiles * needed:
        numbers = np.argwhere(with_gaps[block[0] : block[0] + BLOCKS.tiles, block[1] : block[1] + BLOCKS.tiles])
        central = np.argmin(np.hypot(*(numbers - numbers.mean(0)).T).round(6))
        corner = blocks.frame + px * (block + numbers[central])
        box = np.array([corner, corner + px])
        gap_mask = missing[framed(box, 0)]
        plane = ground.plane(box, gap_mask)
        context = ground.context(box, gap_mask, plane, neighbourhood, job.seed)
        at = ground.locations(np.stack(np.divmod(context, values.shape[1]), -1), plane)
        middle = np.zeros((1, 2), np.float32)
        tiles.append(Tile(at, values.ravel()[context], middle, np.zeros(1, np.intp), np.ones(1)))
    groups = list(batches(tiles, predictor.batch_size))
    points = (pad(group, predictor) for group in groups)
    found = on_cores(predictor.readings, points, predictor.device, len(groups))
    return [reading for of_batch in found for reading in of_batch]


def _candidates(quarter: IntArray, read: BoolArray) -> IntArray:
    """The blocks nearest to a quarter of one that are read, among it and the eight around it, ``(n, 2)``."""
    around = quarter // 2 + np.argwhere(np.ones((3, 3), bool)) - 1
    around = around[((around >= 0) & (around < np.array(read.shape))).all(1)]
    around = around[read[tuple(around.T)]]
    distance = np.hypot(*(2 * around + 0.5 - quarter).T)
    return np.asarray(around[np.argsort(distance, kind="stable")[: BLOCKS.candidates]])


def _any(mask: BoolArray, px: int) -> BoolArray:
    """Whether any cell of each square of `px` cells is True."""
    ny, nx = mask.shape
    return np.asarray(mask.reshape(ny // px, px, nx // px, px).any((1, 3)))
