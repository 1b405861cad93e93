"""Scores of models on held-out cells: half of the tiles select a candidate (validation), the others test it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from geonp.adaptation.crops import Crop, Masking, distances
from geonp.errors import InputError, PredictionError
from geonp.inference import student
from geonp.inference.context import Neighbourhood
from geonp.inference.covariates import Layer
from geonp.inference.kernel import FillJob, Inputs, fill_window
from geonp.inference.predictor import resolve
from geonp.inference.stack import Across
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray
from geonp.raster.windows import Window


@dataclass(frozen=True)
class ValidationSettings:
    """Size of the hold-out."""

    min_cells: int = 500  # observed cells below which scores of a raster are not reliable
    min_tiles: int = 6  # tiles with held-out cells, half of them for the test
    max_squares: int = 128  # squares of merged tiles that are filled for each candidate


SETTINGS = ValidationSettings()


@dataclass(frozen=True)
class Scores:
    """CRPS of a model on the held-out cells.

    Attributes
    ----------
    sums : array
        Weighted sum of the CRPS, and sum of the weights, of each tile, ``(tiles, 2)``; the first is infinite if the
        model fails.
    validation_mask : array of bool
        Tiles for validation, ``(tiles,)``; the others are for the test.
    """

    sums: Float64Array
    validation_mask: BoolArray

    @property
    def validation(self) -> float:
        """Mean CRPS on the tiles for validation."""
        return _mean(self.sums[self.validation_mask])

    @property
    def test(self) -> float:
        """Mean CRPS on the tiles for the test."""
        return _mean(self.sums[~self.validation_mask])

    def clearly_below(self, other: Scores) -> bool:
        """Whether the test CRPS is lower, and the CRPS of all tiles by two standard errors of the change.

        A few tiles may dominate the mean: with less evidence, worse weights were accepted.
        """
        if not self.test < other.test:
            return False
        change = (self.sums - other.sums)[:, 0]
        return bool(change.sum() < -2 * math.sqrt(change.size) * change.std(ddof=1))


def _mean(sums: Float64Array) -> float:
    total, weight = sums.sum(0)
    return float(total / weight) if weight > 0 else math.inf


@dataclass(frozen=True)
class _Part:
    """A crop ``(rows, cols)`` without its held-out cells, of which the `hidden` ones are scored.

    `truth` and `distance` from the nearest observed cell are ``(n,)``, row and column of the `tile` are ``(n, 2)``.
    """

    values: FloatArray
    domain_mask: BoolArray
    hidden: BoolArray
    truth: FloatArray
    distance: IntArray
    tile: IntArray
    others: Mapping[str, FloatArray]
    covariates: tuple[Layer, ...]


@dataclass(frozen=True)
class HoldOut:
    """Crops without their held-out cells, to be filled like the raster and scored.

    Attributes
    ----------
    parts : list
        The crops.
    tile, weight : array
        Index of the tile and weight of each hidden cell of all parts, ``(n,)``.
    validation_mask : array of bool
        As in :class:`Scores`.
    device : str
        Device to fill on.
    """

    parts: list[_Part]
    tile: IntArray
    weight: FloatArray
    validation_mask: BoolArray
    device: str

    @property
    def dims(self) -> list[str]:
        """Dimensions along which other slices were read."""
        return list(dict.fromkeys(dim for part in self.parts for dim in part.others))

    @property
    def cells(self) -> int:
        """Number of cells of the test."""
        return int(np.count_nonzero(~self.validation_mask[self.tile]))

    def score(self, model: Path) -> Scores:
        """Fill with a checkpoint and score the hidden cells."""
        try:
            crps = np.concatenate([_crps(part, model, self.device) for part in self.parts])
        except (PredictionError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            crps = np.full(self.tile.size, math.inf)
        # some cells are too far from data to be filled by any model
        scored = ~np.isnan(crps) & (self.weight > 0)
        tile, weight = self.tile[scored], self.weight[scored]
        sums = [np.bincount(tile, amount, self.validation_mask.size) for amount in (weight * crps[scored], weight)]
        return Scores(np.stack(sums, 1), self.validation_mask)


def _crps(part: _Part, model: Path, device: str) -> FloatArray:
    """CRPS of each hidden cell; NaN if it is not filled."""
    predictor, card = resolve(os.fspath(model), device, None)
    (rows, cols), across = part.values.shape, card.neighbourhood.across
    stacked = (Across(across, ()),) if across else ()
    job = FillJob(predictor, (rows, cols), periodic=False, max_distance=None, seed=0, across=stacked)
    chunk = Window(0, rows, 0, cols)
    window = job.window(chunk)
    frame = [(-window.row, window.row_end - rows), (-window.col, window.col_end - cols)]
    values = np.pad(part.values, frame, constant_values=np.nan)
    others = part.others.get(across)
    if others is not None:
        others = np.pad(others, [(0, 0), *frame], constant_values=np.nan)
    layers = [_padded(layer, frame) for layer in part.covariates]
    filled = fill_window(Inputs(values, np.pad(part.domain_mask, frame), others, layers), chunk, job)
    moments = (filled[name][part.hidden].astype(float) for name in ("value", "standard_error", "tail"))
    return student.crps(part.truth, *moments)


def _padded(layer: Layer, frame: list[tuple[int, int]]) -> Layer:
    """A covariate that is unknown around the crop."""
    values, errors = (
        None if part is None else np.pad(part, frame, constant_values=np.nan) for part in (layer.values, layer.errors)
    )
    assert values is not None
    return replace(layer, values=values, errors=errors)


def hide_held_out(
    crops: list[Crop], masking: Masking, neighbourhood: Neighbourhood, device: str, rng: np.random.Generator
) -> HoldOut:
    """Hide the held-out cells of some squares of tiles, half of the tiles for validation, the others for the test.

    Raises InputError if there are too few observed cells or tiles.
    """
    px, side = neighbourhood.tile_px, neighbourhood.tile_px * neighbourhood.merge
    differing = [crop for crop in crops if np.ptp(crop.values[~np.isnan(crop.values)]) > 0]
    # crops with other slices suffice if there are any
    differing = [crop for crop in differing if crop.others] or differing
    corners = [(n, i, j) for n, crop in enumerate(differing) for i, j in _squares(crop, side)]
    chosen = [corners[k] for k in rng.permutation(len(corners))[: SETTINGS.max_squares]]
    squares = {n: [(i, j) for m, i, j in chosen if m == n] for n in sorted({n for n, *_ in chosen})}
    parts = [_part(differing[n], within, side, px) for n, within in squares.items()]
    tile = np.concatenate([np.zeros((0, 3), int), *(np.insert(part.tile, 0, n, 1) for n, part in enumerate(parts))])
    tile = np.unique(tile, axis=0, return_inverse=True)[1].reshape(-1)
    distance = np.concatenate([np.zeros(0, np.intp), *(part.distance for part in parts)])
    weight = masking.for_targets(distance).weights(distance)
    cells, tiles = sum(int(np.count_nonzero(~np.isnan(crop.values))) for crop in crops), tile.max(initial=-1) + 1
    if cells < SETTINGS.min_cells or tiles < SETTINGS.min_tiles:
        raise InputError(
            f"too little data to adapt to: got {cells} observed cells and {tiles} tiles whose values vary, expected "
            f"at least {SETTINGS.min_cells} and {SETTINGS.min_tiles}; use more of the raster, or the model as it is"
        )
    validation_mask = np.zeros(tiles, bool)
    validation_mask[rng.permutation(tiles)[: tiles // 2]] = True
    return HoldOut(parts, tile, weight, validation_mask, device)


def require_others(covariates: Sequence[str], crops: Sequence[Crop]) -> None:
    """Check that no covariate holds the values of the crops, which the held-out cells could be read from."""
    for number, name in enumerate(covariates):
        pairs = [
            (crop.covariates[number].values[crop.observed_mask], crop.values[crop.observed_mask]) for crop in crops
        ]
        if pairs and all(np.array_equal(*pair) for pair in pairs):
            raise InputError(
                f"the covariate {name!r} is the raster itself, which the held-out cells could be read from: leave it "
                "out, or give another variable"
            )


def _squares(crop: Crop, side: int) -> list[tuple[int, int]]:
    """Corners of the squares with held-out cells."""
    return [(i * side, j * side) for i, j in np.unique(np.argwhere(crop.held_out_mask) // side, axis=0).tolist()]


def _part(crop: Crop, squares: list[tuple[int, int]], side: int, px: int) -> _Part:
    """Part of which only some squares are filled."""
    chosen = np.zeros(crop.values.shape, bool)
    for i, j in squares:
        chosen[i : i + side, j : j + side] = True
    hidden = crop.held_out_mask & chosen
    row, col = np.nonzero(hidden)
    values = np.where(crop.held_out_mask, np.nan, crop.values).astype(crop.values.dtype)
    return _Part(
        values,
        crop.observed_mask | (crop.domain_mask & chosen),
        hidden,
        crop.values[hidden].astype(np.float64),
        distances(crop.observed_mask)[hidden],
        np.stack([row, col], 1) // px,
        crop.others,
        crop.covariates,
    )
