"""Latent values of tiles and windows: those of observations at the bounds are censored.

They are replaced by their expectations given their neighbours, with standard errors, see :func:`uncensored`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from geonp.inference.covariates import Layer
from geonp.inference.predictor import Predictor
from geonp.inference.stitching import Tile
from geonp.inference.warping import WARPING, Warping
from geonp.raster.arrays import BoolArray, FloatArray


def latent(values: FloatArray, layers: Sequence[Layer], warping: Warping | None) -> tuple[FloatArray, Sequence[Layer]]:
    """Latent values of a window, and its layers with errors of latent values as known errors; as they are if None."""
    if warping is None:
        return values, layers
    layers = [
        replace(layer, values=warping.error_to_latent(values, layer.values)) if layer.known_errors else layer
        for layer in layers
    ]
    return warping.to_latent(values), layers


def without_piles(tile: Tile, warping: Warping | None, predictor: Predictor) -> Tile:
    """A tile with estimates of censored values, and their errors if the model can use them; as it is if None."""
    if warping is None:
        return tile
    values, errors = uncensored(tile.yc, tile.xc, warping)
    if errors is None or not predictor.covariates:
        return replace(tile, yc=values, estimated=True)
    known = 0.0 if tile.errors is None else np.where(errors > 0, 0.0, tile.errors)
    return replace(tile, yc=values, errors=errors + known, estimated=True)


def uncensored(latent: FloatArray, places: FloatArray, warping: Warping) -> tuple[FloatArray, FloatArray | None]:
    """Observations ``(n,)`` at places ``(n, 2)`` with expectations instead of censored ones, and their standard errors.

    A censored observation follows a normal distribution around the weighted mean of its neighbours, cut off at the
    bound; its expectation and variance are iterated, as in an EM algorithm. If all observations are censored, they get
    the expectation without neighbours, and no errors.

    Returns
    -------
    tuple of array
        Latent values, and standard errors, 0 for observations apart from the bounds. None if there are no others.
    """
    low, high = warping.piled(latent)
    if not (low.any() or high.any()):
        return latent, None
    start = warping.without_neighbours(latent.astype(np.float64))
    if (low | high).all():
        return start, None
    found = neighbourly(start, weights_of(places), low, high, warping.ends)
    # the model combines them with the neighbours again: an observation without these, as a site of EP
    censored, prior = low | high, found.deviation**2
    precision = np.maximum(
        1 / np.maximum(found.variance[censored], 1e-12 * prior) - 1 / prior, WARPING.least_precision / prior
    )
    values, variance = found.latent.copy(), np.zeros(len(latent))
    variance[censored] = 1 / precision
    values[censored] += (found.latent - found.around)[censored] / (prior * precision)
    return values, np.sqrt(variance)


@dataclass(frozen=True, eq=False)
class Neighbourly:
    """Expectations and variances of observations, means of their neighbours, and their deviation from these."""

    latent: FloatArray
    variance: FloatArray
    around: FloatArray
    deviation: float


def weights_of(places: FloatArray) -> FloatArray:
    """Weights ``(n, n)`` of neighbours, 0 for the observation itself."""
    squares = np.sum((places[:, None] - places[None]) ** 2, -1, dtype=np.float64)
    rank = min(WARPING.neighbours, len(places) - 1)
    radius = np.maximum(np.partition(squares, rank, axis=1)[:, rank], 1e-12)
    weights = np.exp(-squares / (2 * WARPING.width**2 * radius[:, None]))
    np.fill_diagonal(weights, 0.0)
    return np.asarray(weights)


def neighbourly(
    start: FloatArray, weights: FloatArray, low: BoolArray, high: BoolArray, ends: tuple[float, float]
) -> Neighbourly:
    """Expectations of censored observations given their neighbours, iterated from `start`."""
    latent, variance = start.copy(), np.zeros(len(start))
    total, censored = weights.sum(1) + WARPING.prior, low.any() or high.any()
    for step in range(WARPING.iterations if censored else 1):
        around = (weights @ latent + WARPING.prior * latent.mean()) / total
        deviation = math.sqrt(np.mean((latent - around) ** 2 + variance)) or 1e-12
        if censored and step < WARPING.iterations - 1:
            expect(latent, variance, around, deviation, low, high, ends)
    return Neighbourly(latent, variance, around, deviation)


def expect(
    latent: FloatArray,
    variance: FloatArray,
    mean: FloatArray,
    deviation: float,
    low: BoolArray,
    high: BoolArray,
    ends: tuple[float, float],
) -> None:
    """Set censored values to the expectation and variance of normal distributions that are cut off at the bounds."""
    for mask, end, side in ((low, ends[0], 1.0), (high, ends[1], -1.0)):
        if mask.any():
            cut = np.clip(side * (end - mean[mask]) / deviation, -30.0, 30.0)
            # inverse Mills ratio
            ratio = np.exp(-(cut**2) / 2 - special.log_ndtr(cut)) / math.sqrt(2 * math.pi)
            latent[mask] = mean[mask] - side * deviation * ratio
            variance[mask] = deviation**2 * np.maximum(1 - cut * ratio - ratio**2, 1e-6)
