"""Predictions within bounds: their distributions and scores, and those of methods that know no bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from geonp.errors import InputError
from geonp.evaluation.metrics import LEVELS, Scores
from geonp.fill.bounds import Limits, bounds_of
from geonp.fill.options import Bounds
from geonp.inference.student import Distribution, half_width
from geonp.inference.warping import Warping
from geonp.raster.arrays import BoolArray, FloatArray
from geonp.raster.kinds import is_direction
from geonp.raster.variable import Variable

Parts = Sequence[tuple[BoolArray, Distribution]]
"""Distributions within bounds and the values that each is of: every fold has a map of its own."""


def limits_of(asked: Bounds | None, variables: Sequence[Variable]) -> dict[str, Limits]:
    """Bounds of the variables that have any, by name; raises InputError as a fill does, and for directions."""
    found = {str(name): limits for name, limits in bounds_of(asked, variables).items()}
    for variable in variables:
        if str(variable.name) in found and is_direction(variable.name, variable.source.attrs):
            raise InputError(
                f"bounds cannot be combined with directions: {variable.name!r} is one. Leave out bounds (--bounds)."
            )
    return found


def cut_off(mean: FloatArray, error: FloatArray, limits: Limits) -> tuple[FloatArray, Parts]:
    """Values and normal distributions cut off at the bounds: what is beyond a bound counts as the bound.

    This never raises the error or the CRPS at a value within the bounds.
    """
    low, high = limits
    scale = (
        high - low if math.isfinite(high - low) else float(np.max(error, initial=0, where=np.isfinite(error))) or 1.0
    )
    # with powers of 1, the map is linear between the bounds
    warping = Warping(low, high, scale=scale)
    if warping.both:
        latent, width = 2 * (mean - low) / scale - 1, 2 * error / scale
    else:
        latent = (mean - low) / scale - 1 if math.isfinite(low) else 1 - (high - mean) / scale
        width = error / scale
    of = Distribution(latent, width, np.zeros_like(error), warping)
    return np.clip(mean, low, high), [(np.isfinite(mean), of)]


def score_within(truth: FloatArray, mean: FloatArray, where: BoolArray, parts: Parts) -> Scores:
    """Sums as of :func:`geonp.evaluation.metrics.score`; the log score is NaN.

    A bound has a probability, other values have densities, so that log scores of different methods are not comparable.
    True values beyond a bound count as the bound, as in a fill.
    """
    return sum((_score(*_selected(truth, where & part, of), mean[where & part]) for part, of in parts), Scores())


def covered_within(truth: FloatArray, where: BoolArray, parts: Parts, level: float) -> BoolArray:
    """Whether the central intervals of a level hold the true values, in no particular order."""
    return np.concatenate([_covered(*_selected(truth, where & part, of), level) for part, of in parts])


def beyond_within(truth: FloatArray, parts: Parts) -> FloatArray:
    """Distances of latent values from the median, as multiples of half of the central 95% interval."""
    out = np.full(truth.shape, np.nan)
    for where, whole in parts:
        y, of = _selected(truth, where, whole)
        assert of.warping is not None
        half = half_width(of.deviation, of.tail, LEVELS[-1])
        out[where] = np.abs(of.warping.to_latent(y) - of.location) / half
    return out


def _selected(truth: FloatArray, where: BoolArray, of: Distribution) -> tuple[FloatArray, Distribution]:
    assert of.warping is not None
    return np.clip(truth[where].astype(np.float64), of.warping.lower, of.warping.upper), of.at(where)


def _score(y: FloatArray, of: Distribution, mean: FloatArray) -> Scores:
    residual = mean.astype(np.float64) - y
    low, high = of.interval(LEVELS[-1])
    missed_by = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    return Scores(
        cells=y.size,
        error=float(residual.sum()),
        absolute=float(np.abs(residual).sum()),
        squared=float((residual**2).sum()),
        crps_sum=float(of.crps(y).sum()),
        log_sum=math.nan,
        interval_sum=float(np.sum(high - low + 2 * missed_by / (1 - LEVELS[-1]))),
        covered=tuple(int(_covered(y, of, level).sum()) for level in LEVELS),
    )


def _covered(y: FloatArray, of: Distribution, level: float) -> BoolArray:
    low, high = of.interval(level)
    return np.asarray((low <= y) & (y <= high))
