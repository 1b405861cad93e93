"""The map of bounded values that fits the data best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from geonp.errors import warn
from geonp.inference.censoring import expect, neighbourly, weights_of
from geonp.inference.warping import WARPING, Warping
from geonp.raster.arrays import BoolArray, FloatArray


@dataclass(frozen=True, eq=False)
class Sample:
    """Observations near to each other: places ``(n, 2)`` and values ``(n,)``."""

    places: FloatArray
    values: FloatArray


def fitted(samples: Sequence[Sample], lower: float, upper: float) -> Warping:
    """The map whose latent values are most likely normal around the means of their neighbours.

    The composite likelihood is that of each observation given its neighbours, with one variance in each sample, because
    tiles are standardised one by one; observations at a bound are censored. For symmetric data the powers are near 1.
    If several values are nearest to a bound, as those in steps are, their distance is the most likely onset.
    """
    values = np.concatenate([np.empty(0), *(sample.values for sample in samples)]).astype(np.float64)
    warn_of_values_beyond(values, lower, upper)
    inner = values[(values > lower) & (values < upper)]
    warping = Warping(lower, upper)
    if inner.size:
        distance = inner - lower if math.isfinite(lower) else upper - inner
        scale = upper - lower if warping.both else float(distance.mean())
        reach = float(distance.max()) / scale
        onsets = {
            "lower_onset": _onset(inner - lower, values <= lower) / scale,
            "upper_onset": _onset(upper - inner, values >= upper) / scale,
        }
        warping = replace(warping, scale=scale, reach=reach, **onsets)
    elif warping.both:
        warping = replace(warping, scale=upper - lower)
    if inner.size >= WARPING.least_values:
        known = [(sample, weights_of(sample.places)) for sample in samples if sample.values.size > 1]

        def likelihood(one: Warping) -> float:
            one = _with_piles(one, values)
            return sum(_log_likelihood(sample, weights, one) for sample, weights in known)

        sides = [side for side in ("lower", "upper") if math.isfinite(getattr(warping, side))]
        for side in (*sides, *sides[: len(sides) - 1]):
            warping = _best(warping, side, values, likelihood)
    return _with_piles(warping, values)


def warn_of_values_beyond(values: FloatArray, lower: float, upper: float) -> None:
    """Warn of bounds that many values are beyond, as of fractions where values are percentages."""
    beyond = values[(values < lower) | (values > upper)]
    if beyond.size > WARPING.beyond * values.size:
        warn(
            f"{beyond.size / values.size:.0%} of the values lie beyond the bounds {lower:g} to {upper:g}, such as "
            f"{beyond[0]:g}, and count as the nearest bound. Check that bounds and values have one unit."
        )


def _onset(distances: FloatArray, at_bound: BoolArray) -> float:
    """Onset of a bound from the distances of other values; 0 unless values are reported in steps."""
    nearest = float(distances.min())
    in_steps = at_bound.any() and np.count_nonzero(distances == nearest) > 1
    return WARPING.onset * nearest if in_steps else 0.0


def _best(warping: Warping, side: str, values: FloatArray, likelihood: Callable[[Warping], float]) -> Warping:
    """The map with the most likely power of one bound, to 0.05, and knee, if observations are at the bound."""
    scores: dict[Warping, float] = {}

    def best(one: Warping, **numbers: Sequence[float]) -> Warping:
        names = [f"{side}_{name}" for name in numbers]
        combined = itertools.product(*numbers.values())
        tried = [one, *(replace(one, **dict(zip(names, each, strict=True))) for each in combined)]
        for each in tried:
            if each not in scores:
                scores[each] = likelihood(each)
        return max(tried, key=scores.__getitem__)

    def refined(one: Warping, *steps: float) -> Warping:
        for step in steps:
            power = getattr(one, f"{side}_power")
            one = best(one, power=[round(max(power - step, WARPING.least_power), 2), round(min(power + step, 1.0), 2)])
        return one

    plain = refined(best(warping, power=np.linspace(WARPING.least_power, 1.0, 4).tolist()), 0.1, 0.05)
    distances = (values - warping.lower if side == "lower" else warping.upper - values) / warping.scale
    if not (distances <= 0).any():
        return plain
    knees = WARPING.onset * np.quantile(distances[distances > 0], WARPING.knees, method="lower")
    one = best(plain, knee=knees.tolist(), slope=WARPING.slopes)
    slope = getattr(one, f"{side}_slope")
    one = refined(best(one, slope=[slope / 2, min(2 * slope, 1.0)]), 0.2, 0.1, 0.05)
    # two more numbers must be worth it, by the Bayesian information criterion
    return one if scores[one] - scores[plain] > math.log(values.size) else plain


def _with_piles(warping: Warping, values: FloatArray) -> Warping:
    """The map with the expectations of censored values: of a normal distribution fitted to all values."""
    latent = warping.to_latent(values)
    low, high = warping.piled(latent)
    ends = warping.ends
    if not (low.any() or high.any()):
        return replace(warping, lower_pile=ends[0], upper_pile=ends[1])
    spread = float(latent.std()) or 1.0
    latent = np.where(low, ends[0] - spread, np.where(high, ends[1] + spread, latent))
    variance = np.zeros_like(latent)
    for _ in range(4 * WARPING.iterations):
        mean = latent.mean()
        deviation = math.sqrt(np.mean((latent - mean) ** 2 + variance)) or 1.0
        expect(latent, variance, np.full_like(latent, mean), deviation, low, high, ends)
    piles = [float(latent[pile].mean()) if pile.any() else end for pile, end in zip((low, high), ends, strict=True)]
    return replace(warping, lower_pile=piles[0], upper_pile=piles[1])


def _log_likelihood(sample: Sample, weights: FloatArray, warping: Warping) -> float:
    latent = warping.to_latent(sample.values.astype(np.float64))
    low, high = warping.piled(latent)
    inner = ~(low | high)
    if not inner.any():
        return 0.0
    start = warping.without_neighbours(latent)
    found = neighbourly(start, weights, low, high, warping.ends)
    z = (latent - found.around) / found.deviation
    total = np.sum(warping.log_slope(sample.values[inner].astype(np.float64)) - z[inner] ** 2 / 2)
    total -= np.count_nonzero(inner) * math.log(found.deviation)
    total += special.log_ndtr(z[low]).sum() + special.log_ndtr(-z[high]).sum()
    return float(total)
