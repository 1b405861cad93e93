"""Synthetic rasters with many small gaps, from which :class:`geonp.nn.nearby.NearbyCorrection` learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.inference.context import Neighbourhood
from geonp.inference.ground import SquareCells
from geonp.inference.nearby import BLOCKS, blocks_of, reading_tile
from geonp.inference.predictor import Predictor
from geonp.inference.stitching import Tile, pad
from geonp.nn.squares import NEARBY
from geonp.raster.arrays import BoolArray, FloatArray
from geonp.training.data.constraints import FractionRange, PositiveRange, Probability
from geonp.training.data.fields import RasterPrior, log_uniform, sample_field


@dataclass(frozen=True)
class SmallGaps:
    """Fields of the recipe's `prior` of two by two blocks, whose readings predict the quarter of a block between them.

    Attributes
    ----------
    missing : tuple of float
        Share of missing cells, log-uniform.
    p_specks, p_holes : float
        Probabilities that gaps are specks of up to 4 x 4 cells, and holes, instead of single cells.
    hole : tuple of float
        Size of holes in cells, log-uniform.
    p_flat, flat : float, tuple of float
        Probability that a part of the field is flat, as sea beside islands: its lowest values, of this share, are
        equal.
    p_wrong, wrong : float, tuple of float
        Probability that some observations are wrong, by 2 to 10 standard deviations, and their share.
    """

    kind: Literal["small_gaps"] = "small_gaps"
    missing: PositiveRange = (0.02, 0.25)
    p_specks: Probability = 0.25
    p_holes: Probability = 0.4
    hole: PositiveRange = (4.0, 40.0)
    p_flat: Probability = 0.2
    flat: FractionRange = (0.2, 0.95)
    p_wrong: Probability = 0.2
    wrong: PositiveRange = (0.002, 0.03)

    def draw(
        self, rng: np.random.Generator, prior: RasterPrior, neighbourhood: Neighbourhood, n: int
    ) -> dict[str, npt.NDArray[np.generic]]:
        """A batch of `n` fields.

        Returns
        -------
        dict of array
            The contexts of four readings for each field, ``(4 n, ...)``: ``xc``, ``yc``, ``xt``, ``context_mask``, and
            ``loc`` and ``scale``. The patches ``(n, ...)``: ``values`` with their frame, ``missing``, the ``squares``
            that are predicted, and ``truth``.
        """
        found = self._fields(rng, prior, neighbourhood)
        fields = [next(found) for _ in range(n)]
        predictor = Predictor("", "", "cpu", "float32", n, neighbourhood)
        points = pad([tile for tiles, _ in fields for tile in tiles], predictor)
        patches = {key: np.stack([patch[key] for _, patch in fields]) for key in fields[0][1]}
        standard = {"loc": points.loc, "scale": points.scale}
        return {"xc": points.xc, "yc": points.yc, "xt": points.xt, "context_mask": points.mask, **standard, **patches}

    def _fields(
        self, rng: np.random.Generator, prior: RasterPrior, neighbourhood: Neighbourhood
    ) -> Iterator[tuple[list[Tile], dict[str, npt.NDArray[np.generic]]]]:
        """Tiles that are read, and the patch, of one field after the other."""
        px, reach, margin = neighbourhood.tile_px, neighbourhood.reach_px, NEARBY.reach_px
        block, size = px * BLOCKS.tiles, 2 * px * BLOCKS.tiles + 2 * px
        half, frame = block // 2, np.array([reach, reach])
        while True:
            truth = sample_field(rng, prior, size, 2 * size).values
            if rng.random() < self.p_flat:
                truth = np.maximum(truth, np.quantile(truth, rng.uniform(*self.flat)))
            missing, wrong = self._missing(rng, truth.shape), truth.copy()
            if rng.random() < self.p_wrong:
                at = rng.random(truth.shape) < log_uniform(rng, self.wrong)
                wrong[at] += truth.std() * rng.choice([-1, 1], at.sum()) * rng.uniform(2, 10, at.sum())
            # around the blocks, less than the reach is known
            edge = reach - px
            values = np.pad(np.where(missing, np.nan, wrong), edge, constant_values=np.nan)
            gaps = np.pad(missing, edge)
            known = ~np.isnan(values)
            blocks = blocks_of(gaps, known, frame, px, np.full(len(values), True))
            first = px + half
            quarter, inner = np.s_[half // NEARBY.side_px : block // NEARBY.side_px], np.s_[first : first + half]
            squares = blocks.squares[quarter, quarter] & _differ(truth[inner, inner])
            if not (blocks.read.all() and squares.any()):
                continue
            ground = SquareCells(known, None)
            corners = np.argwhere(blocks.read)
            tiles = [reading_tile(values, gaps, corner, blocks, ground, neighbourhood, 0)[0] for corner in corners]
            # constant context cannot be standardised
            if min(np.ptp(tile.yc) for tile in tiles) > 0:
                around = np.s_[first + edge - margin : first + edge + half + margin]
                patch = {"values": values[around, around], "missing": missing[inner, inner], "squares": squares}
                yield tiles, {**patch, "truth": truth[inner, inner]}

    def _missing(self, rng: np.random.Generator, shape: tuple[int, ...]) -> BoolArray:
        """Single cells, specks or holes."""
        share, kind = log_uniform(rng, self.missing), rng.random()
        if kind < self.p_holes:
            return holes(rng, shape, share, self.hole)
        if kind >= self.p_holes + self.p_specks:
            return np.asarray(rng.random(shape) < share)
        rows, cols = rng.integers(1, 5, 2)
        return ndimage.binary_dilation(rng.random(shape) < share / (rows * cols), np.ones((rows, cols), bool))


def _differ(values: FloatArray) -> BoolArray:
    """Squares that differ, or the cells within a square's side of them: nothing is learned where all are equal."""
    width = 2 * NEARBY.side_px + 1
    differs = ndimage.maximum_filter(values, width) > ndimage.minimum_filter(values, width)
    rows, cols = (n // NEARBY.side_px for n in values.shape)
    return np.asarray(differs.reshape(rows, NEARBY.side_px, cols, NEARBY.side_px).any((1, 3)))


def holes(rng: np.random.Generator, shape: tuple[int, ...], share: float, sizes: tuple[float, float]) -> BoolArray:
    """Holes until `share` of the cells are missing, each of so many cells, log-uniform.

    A hole grows from a cell by random neighbours of its cells, across the edges of the raster.
    """
    missing = np.zeros(shape, bool)
    steps = ((0, 1), (1, 0), (0, -1), (-1, 0))
    while missing.mean() < share:
        start = tuple(int(n) for n in rng.integers(0, shape))
        hole, size = [start], int(log_uniform(rng, sizes))
        while len(hole) < size:
            row, col = hole[rng.integers(len(hole))]
            down, right = steps[rng.integers(4)]
            cell = (row + down) % shape[0], (col + right) % shape[1]
            if cell not in hole:
                hole.append(cell)
        missing[tuple(np.transpose(hole))] = True
    return missing
