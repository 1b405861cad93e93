"""Bounded values as a monotone map of unbounded ones, which the model fills.

With a lower bound the map is that of Box and Cox (1964), ``u = (t^p - 1) / p``, where t is the distance from the bound
in units of its mean; with an upper bound it is mirrored, and with two bounds the maps of both are added. The power p of
each bound is chosen from the data, see :func:`fitted`. Power 1 leaves values as they are. Below ``-1 / p``, or where
values are reported in steps below the first of these, the map is constant: the distribution of a value has a
probability of the bound itself. Beyond the largest value the map goes on as a line, so that means and standard
deviations are finite.

Observations at a bound say that u is at most, or at least, that of the bound. They are censored: :func:`uncensored`
replaces them by their expectation given their neighbours, with its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special

from geonp.errors import warn
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray


@dataclass(frozen=True)
class WarpingSettings:
    """Settings of the map."""

    least_power: float = 0.25
    """Smallest power: the mean of the exponential of a Student distribution depends on its tail alone."""
    knots: int = 2048
    """Number of knots; the map is linear between them."""
    neighbours: int = 8
    """Distance to the neighbour of this number is the radius of the neighbourhood of an observation."""
    width: float = 0.6
    """Standard deviation of the Gaussian weights of neighbours, in radii."""
    prior: float = 0.5
    """Weight of the mean of all observations among the neighbours, each of which has at most 1."""
    least_precision: float = 0.25
    """Smallest precision of a censored observation, relative to that of its neighbours."""
    iterations: int = 12
    """Number of iterations that censored observations are estimated by."""
    onset: float = 0.99
    """Onset relative to the least distance from a bound. At 1 the likelihood is greatest, but the nearest observations
    would count as at the bound."""
    beyond: float = 0.05
    """Bounds are doubtful if more than this part of the values is beyond them."""
    least_values: int = 32
    """Samples with fewer values apart from the bounds choose no power."""


WARPING = WarpingSettings()


@dataclass(frozen=True)
class Warping:
    """A monotone map between values within bounds and unbounded, latent ones.

    Attributes
    ----------
    lower, upper : float
        Bounds of the values, infinite where there is none; at least one is finite.
    lower_power, upper_power : float
        Powers of the distances from the bounds, between 0 and 1.
    scale : float
        Unit of the distances: the difference of two bounds, or the mean distance from a single one.
    reach : float
        Largest distance from a single bound, in units of the scale; the map is linear beyond.
    lower_pile, upper_pile : float
        Expectation of the latent values of observations at the bounds, if nothing else is known.
    lower_onset, upper_onset : float
        Distances from the bounds below which no value is reported, in units of the scale; 0 if there are none. Rain in
        steps of 0.1 mm is 0 or at least 0.1.
    """

    lower: float = -math.inf
    upper: float = math.inf
    lower_power: float = 1.0
    upper_power: float = 1.0
    scale: float = 1.0
    reach: float = 1.0
    lower_pile: float = math.nan
    upper_pile: float = math.nan
    lower_onset: float = 0.0
    upper_onset: float = 0.0

    @classmethod
    def names(cls) -> list[str]:
        """Names of the numbers that define a map, in order."""
        return [field.name for field in fields(cls)]

    def numbers(self) -> Float64Array:
        """The numbers that define the map, in the order of :meth:`names`."""
        return np.array([getattr(self, name) for name in self.names()])

    @property
    def both(self) -> bool:
        """Whether there are two bounds."""
        return math.isfinite(self.lower) and math.isfinite(self.upper)

    @cached_property
    def _knots(self) -> tuple[FloatArray, FloatArray]:
        """Latent values and values, both ascending."""
        if self.both:
            ends = math.asin(math.sqrt(self.lower_onset)), math.acos(math.sqrt(self.upper_onset))
            t = np.sin(np.linspace(*ends, WARPING.knots)) ** 2
            latent = (t**self.lower_power - 1) / self.lower_power - ((1 - t) ** self.upper_power - 1) / self.upper_power
            values = self.lower + self.scale * t
            values[-1] = self.upper - self.scale * self.upper_onset
            return self._with_jumps(latent, values)
        side = "lower" if math.isfinite(self.lower) else "upper"
        power, onset = getattr(self, f"{side}_power"), getattr(self, f"{side}_onset")
        latent = np.linspace((onset**power - 1) / power, (self.reach**power - 1) / power, WARPING.knots)
        t = np.maximum(1 + power * latent, 0) ** (1 / power)
        if side == "lower":
            return self._with_jumps(latent, self.lower + self.scale * t)
        return self._with_jumps(-latent[::-1], self.upper - self.scale * t[::-1])

    def _with_jumps(self, latent: Float64Array, values: Float64Array) -> tuple[FloatArray, FloatArray]:
        """Knots with the bounds themselves where these are apart from the onsets.

        Their latent values are numbers of float32, so that a result in float32 is not rounded to beyond the jump.
        """
        if self.lower_onset:
            end = np.nextafter(latent[0].astype(np.float32), np.float32(-np.inf))
            latent, values = np.append(end, latent), np.append(self.lower, values)
        if self.upper_onset:
            end = np.nextafter(latent[-1].astype(np.float32), np.float32(np.inf))
            latent, values = np.append(latent, end), np.append(values, self.upper)
        return latent, values

    @property
    def ends(self) -> tuple[float, float]:
        """Latent values of the bounds, infinite where there is none."""
        latent, _ = self._knots
        low = float(latent[0]) if math.isfinite(self.lower) else -math.inf
        return low, float(latent[-1]) if math.isfinite(self.upper) else math.inf

    @property
    def _step(self) -> float:
        """Latent values per value beyond the reach of a single bound."""
        power = self.lower_power if math.isfinite(self.lower) else self.upper_power
        return float(self.reach ** (power - 1) / self.scale)

    def to_latent(self, values: FloatArray) -> FloatArray:
        """Latent values in the dtype of the values; NaN stays, values beyond a bound count as at the bound."""
        latent, knots = self._knots
        values = np.asarray(values)
        found = np.interp(values, knots, latent)
        if not math.isfinite(self.upper):
            found += np.maximum(values.astype(np.float64) - knots[-1], 0) * self._step
        if not math.isfinite(self.lower):
            found -= np.maximum(knots[0] - values.astype(np.float64), 0) * self._step
        return np.asarray(found, values.dtype if values.dtype.kind == "f" else np.float64)

    def to_values(self, latent: FloatArray) -> FloatArray:
        """Values within the bounds, in float64."""
        knots, values = self._knots
        found = np.interp(latent, knots, values)
        if not math.isfinite(self.upper):
            found += np.maximum(np.asarray(latent, np.float64) - knots[-1], 0) / self._step
        if not math.isfinite(self.lower):
            found -= np.maximum(knots[0] - np.asarray(latent, np.float64), 0) / self._step
        return np.asarray(found)

    def inside(self, values: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
        """`values` in a dtype whose rounding may not carry them beyond the bounds."""
        info = np.finfo(dtype)
        low, high = (np.asarray(np.clip(bound, info.min, info.max), dtype) for bound in (self.lower, self.upper))
        if low < self.lower:
            low = np.nextafter(low, dtype.type(np.inf))
        if high > self.upper:
            high = np.nextafter(high, dtype.type(-np.inf))
        return np.asarray(np.clip(np.clip(values, info.min, info.max).astype(dtype), low, high))

    def error_to_latent(self, values: FloatArray, errors: FloatArray) -> FloatArray:
        """Standard errors of latent values: half of the difference of those one standard error above and below."""
        return np.asarray((self.to_latent(values + errors) - self.to_latent(values - errors)) / 2)

    def piled(self, latent: FloatArray) -> tuple[BoolArray, BoolArray]:
        """Masks of observations at the lower and at the upper bound."""
        low, high = (np.isclose(latent, end, rtol=1e-6, atol=0) for end in self.ends)
        return np.asarray(low), np.asarray(high)

    def without_neighbours(self, latent: FloatArray) -> FloatArray:
        """Latent values with the expectations of censored ones if nothing else is known."""
        low, high = self.piled(latent)
        return np.where(low, self.lower_pile, np.where(high, self.upper_pile, latent)).astype(latent.dtype)

    def log_slope(self, values: FloatArray) -> FloatArray:
        """Logarithm of the derivative of the latent values by values apart from the bounds."""
        if self.both:
            t = (values - self.lower) / self.scale
            slope = t ** (self.lower_power - 1) + (1 - t) ** (self.upper_power - 1)
            return np.asarray(np.log(slope / self.scale))
        distance = values - self.lower if math.isfinite(self.lower) else self.upper - values
        power = self.lower_power if math.isfinite(self.lower) else self.upper_power
        return np.asarray((power - 1) * np.log(distance / self.scale) - math.log(self.scale))


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
    found = _neighbourly(start, _weights(places), low, high, warping.ends)
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
        known = [(sample, _weights(sample.places)) for sample in samples if sample.values.size > 1]

        def likelihood(one: Warping) -> float:
            one = _with_piles(one, values)
            return sum(_log_likelihood(sample, weights, one) for sample, weights in known)

        sides = [side for side in ("lower", "upper") if math.isfinite(getattr(warping, side))]
        for side in (*sides, *sides[: len(sides) - 1]):
            warping = _best(warping, f"{side}_power", likelihood)
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


def _best(warping: Warping, name: str, likelihood: Any) -> Warping:
    """The map with the most likely power of one bound, to 0.05."""
    least, found = WARPING.least_power, {}

    def tried(power: float) -> float:
        power = round(min(max(power, least), 1.0), 2)
        if power not in found:
            found[power] = likelihood(replace(warping, **{name: power}))
        return power

    for power in np.linspace(least, 1.0, 4):
        tried(float(power))
    for step in (0.1, 0.05):
        best = max(found, key=lambda power: found[power])
        tried(best - step)
        tried(best + step)
    return replace(warping, **{name: max(found, key=lambda power: found[power])})


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
        _expect(latent, variance, np.full_like(latent, mean), deviation, low, high, ends)
    piles = [float(latent[pile].mean()) if pile.any() else end for pile, end in zip((low, high), ends, strict=True)]
    return replace(warping, lower_pile=piles[0], upper_pile=piles[1])


@dataclass(frozen=True, eq=False)
class _Neighbourly:
    """Expectations and variances of observations, means of their neighbours, and their deviation from these."""

    latent: FloatArray
    variance: FloatArray
    around: FloatArray
    deviation: float


def _weights(places: FloatArray) -> FloatArray:
    """Weights ``(n, n)`` of neighbours, 0 for the observation itself."""
    squares = np.sum((places[:, None] - places[None]) ** 2, -1, dtype=np.float64)
    rank = min(WARPING.neighbours, len(places) - 1)
    radius = np.maximum(np.partition(squares, rank, axis=1)[:, rank], 1e-12)
    weights = np.exp(-squares / (2 * WARPING.width**2 * radius[:, None]))
    np.fill_diagonal(weights, 0.0)
    return np.asarray(weights)


def _neighbourly(
    start: FloatArray, weights: FloatArray, low: BoolArray, high: BoolArray, ends: tuple[float, float]
) -> _Neighbourly:
    latent, variance = start.copy(), np.zeros(len(start))
    total, censored = weights.sum(1) + WARPING.prior, low.any() or high.any()
    for step in range(WARPING.iterations if censored else 1):
        around = (weights @ latent + WARPING.prior * latent.mean()) / total
        deviation = math.sqrt(np.mean((latent - around) ** 2 + variance)) or 1e-12
        if censored and step < WARPING.iterations - 1:
            _expect(latent, variance, around, deviation, low, high, ends)
    return _Neighbourly(latent, variance, around, deviation)


def _expect(
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


def _log_likelihood(sample: Sample, weights: FloatArray, warping: Warping) -> float:
    latent = warping.to_latent(sample.values.astype(np.float64))
    low, high = warping.piled(latent)
    inner = ~(low | high)
    if not inner.any():
        return 0.0
    start = warping.without_neighbours(latent)
    found = _neighbourly(start, weights, low, high, warping.ends)
    z = (latent - found.around) / found.deviation
    total = np.sum(warping.log_slope(sample.values[inner].astype(np.float64)) - z[inner] ** 2 / 2)
    total -= np.count_nonzero(inner) * math.log(found.deviation)
    total += special.log_ndtr(z[low]).sum() + special.log_ndtr(-z[high]).sum()
    return float(total)
