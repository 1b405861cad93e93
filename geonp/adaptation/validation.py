"""What an adapted model is judged by: the fill of held-out cells; some tiles choose among models, the others judge."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from geonp.adaptation.crops import Crop, Hiding, distances
from geonp.errors import InputError, PredictionError
from geonp.inference import student
from geonp.inference.context import Neighbourhood
from geonp.inference.kernel import FillJob, fill_window
from geonp.inference.predictor import resolve
from geonp.raster.windows import Window

__all__ = ["Judge", "Verdict", "appoint"]

LEAST_CELLS = 500
"""Observed cells below which nothing reliable can be learned or said about a raster."""

LEAST_TILES = 6
"""Tiles with held-out cells below which no judgement is made."""

MAX_SQUARES = 128
"""Squares of tiles that are filled at most."""

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Verdict:
    """CRPS of a model on the hidden cells.

    Attributes
    ----------
    sums : array
        Weighted sum of CRPS and sum of weights of each tile, ``(tiles, 2)``; infinite sums where the model fails.
    choosing : array of bool
        ``(tiles,)``, the tiles that choose among models; the others judge.
    """

    sums: npt.NDArray[np.float64]
    choosing: BoolArray

    @property
    def choice(self) -> float:
        """Mean CRPS on the tiles that choose."""
        return _mean(self.sums[self.choosing])

    @property
    def crps(self) -> float:
        """Mean CRPS on the tiles that judge."""
        return _mean(self.sums[~self.choosing])

    def clearly_below(self, other: Verdict) -> bool:
        """Whether the CRPS is lower on the tiles that judge, and over all tiles by two standard errors of the change.

        The sums of few tiles may be most of the whole: with less evidence worse weights were taken for better ones.
        """
        if not self.crps < other.crps:
            return False
        change = (self.sums - other.sums)[:, 0]
        return bool(change.sum() < -2 * math.sqrt(change.size) * change.std(ddof=1))


def _mean(sums: npt.NDArray[np.float64]) -> float:
    total, weight = sums.sum(0)
    return float(total / weight) if weight > 0 else math.inf


@dataclass(frozen=True)
class _Part:
    """A part of the raster ``(rows, cols)`` with held-out cells hidden from its `values`.

    Of the `hidden` cells to score, one after the other, `truth`, `distance` from the nearest that is seen, and row and
    column of the `tile`. `others` are those of :class:`geonp.adaptation.crops.Crop`.
    """

    values: FloatArray
    domain_mask: BoolArray
    hidden: BoolArray
    truth: FloatArray
    distance: npt.NDArray[np.intp]
    tile: npt.NDArray[np.intp]
    others: Mapping[str, FloatArray]


@dataclass(frozen=True)
class Judge:
    """Parts of the raster with held-out cells hidden, to be filled as the raster will be.

    Attributes
    ----------
    parts : list
    tile, weight : array
        Number of the tile and weight of each hidden cell, one part after the other.
    choosing : array of bool
        ``(tiles,)``, see :class:`Verdict`.
    device : str
        Where to fill.
    """

    parts: list[_Part]
    tile: npt.NDArray[np.intp]
    weight: FloatArray
    choosing: BoolArray
    device: str

    @property
    def dims(self) -> list[str]:
        """Dimensions along which slices may tell about each other."""
        return list(dict.fromkeys(dim for part in self.parts for dim in part.others))

    @property
    def cells(self) -> int:
        """Predictions that are judged by."""
        return int(np.count_nonzero(~self.choosing[self.tile]))

    def __call__(self, model: Path) -> Verdict:
        """Score the fills of a checkpoint."""
        try:
            crps = np.concatenate([_crps(part, model, self.device) for part in self.parts])
        except (PredictionError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            crps = np.full(self.tile.size, math.inf)
        # some are too far from everything to be filled, whatever the model
        counted = ~np.isnan(crps) & (self.weight > 0)
        tile, weight = self.tile[counted], self.weight[counted]
        sums = [np.bincount(tile, amount, self.choosing.size) for amount in (weight * crps[counted], weight)]
        return Verdict(np.stack(sums, 1), self.choosing)


def _crps(part: _Part, model: Path, device: str) -> FloatArray:
    """CRPS of each hidden cell, NaN where it is left empty."""
    predictor, card = resolve(os.fspath(model), device, None)
    (rows, cols), across = part.values.shape, card.neighbourhood.across
    job = FillJob(predictor, (rows, cols), periodic=False, max_distance=None, seed=0, across=across or None)
    chunk = Window(0, rows, 0, cols)
    window = job.window(chunk)
    frame = [(-window.row, window.row_end - rows), (-window.col, window.col_end - cols)]
    values = np.pad(part.values, frame, constant_values=np.nan)
    others = part.others.get(across)
    if others is not None:
        others = np.pad(others, [(0, 0), *frame], constant_values=np.nan)
    found = fill_window(values, np.pad(part.domain_mask, frame), chunk, job, others)
    moments = (found[name][part.hidden].astype(float) for name in ("value", "standard_error", "tail"))
    return student.crps(part.truth, *moments)


def appoint(
    crops: list[Crop], hiding: Hiding, neighbourhood: Neighbourhood, device: str, rng: np.random.Generator
) -> Judge:
    """Hide what is held out, in some squares of tiles; half of the tiles will choose, the others judge.

    Raises
    ------
    InputError
        Where too little is observed.
    """
    px, side = neighbourhood.tile_px, neighbourhood.tile_px * neighbourhood.merge
    differing = [crop for crop in crops if np.ptp(crop.values[~np.isnan(crop.values)]) > 0]
    # where others were read for some, these are enough to judge by
    differing = [crop for crop in differing if crop.others] or differing
    places = [(n, i, j) for n, crop in enumerate(differing) for i, j in _squares(crop, side)]
    chosen = [places[k] for k in rng.permutation(len(places))[:MAX_SQUARES]]
    squares = {n: [(i, j) for m, i, j in chosen if m == n] for n in sorted({n for n, *_ in chosen})}
    parts = [_part(differing[n], corners, side, px) for n, corners in squares.items()]
    tile = np.concatenate([np.zeros((0, 3), int), *(np.insert(part.tile, 0, n, 1) for n, part in enumerate(parts))])
    tile = np.unique(tile, axis=0, return_inverse=True)[1].reshape(-1)
    distance = np.concatenate([np.zeros(0, np.intp), *(part.distance for part in parts)])
    weight = hiding.among(distance).weigh(distance)
    cells, tiles = sum(int(np.count_nonzero(~np.isnan(crop.values))) for crop in crops), tile.max(initial=-1) + 1
    if cells < LEAST_CELLS or tiles < LEAST_TILES:
        raise InputError(
            f"too little is observed to adapt to: got {cells} observed cells and {tiles} tiles with differing "
            f"values to judge by, expected at least {LEAST_CELLS} and {LEAST_TILES}; give more of the raster or more "
            "slices of it, or use the model as it is"
        )
    choosing = np.zeros(tiles, bool)
    choosing[rng.permutation(tiles)[: tiles // 2]] = True
    return Judge(parts, tile, weight, choosing, device)


def _squares(crop: Crop, side: int) -> list[tuple[int, int]]:
    """Where the squares that hold held-out cells begin."""
    return [(i * side, j * side) for i, j in np.unique(np.argwhere(crop.held_out_mask) // side, axis=0).tolist()]


def _part(crop: Crop, squares: list[tuple[int, int]], side: int, px: int) -> _Part:
    """A part as it is to be filled: only its squares."""
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
    )
