"""Bounded values as a monotone map of unbounded ones, which the model fills.

With a lower bound the map is that of Box and Cox (1964), ``u = (t^p - 1) / p``, where t is the distance from the bound
in units of its mean; with an upper bound it is mirrored, and with two bounds the maps of both are added. Power 1 leaves
values as they are. Below a knee the slope of the map is smaller, where values are rare next to a bound at which many
are: rain is seldom below the smallest amount that a radar sees. Below ``-1 / p``, or where values are reported in steps
below the first of these, the map is constant: the distribution of a value has a probability of the bound itself. Beyond
the largest value the map goes on as a line, so that means and standard deviations are finite.

The numbers of the map are chosen from the data (:mod:`geonp.inference.warping_fit`). Observations at a bound say that u
is at most, or at least, that of the bound (:mod:`geonp.inference.censoring`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

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
    knees: tuple[float, ...] = (0.01, 0.03, 0.06, 0.12, 0.2)
    """Knees that are tried: quantiles of the distances from a bound."""
    slopes: tuple[float, ...] = (0.1, 0.4)
    """Slopes below the knee that are tried; of the better one also the half and the double."""


WARPING = WarpingSettings()


@dataclass(frozen=True)
class BoxCox:
    """Transformation of Box and Cox (1964), whose derivative is multiplied by `slope` below the `knee`."""

    power: float
    knee: float = 0.0
    slope: float = 1.0

    def __call__(self, t: Any) -> Any:
        """Latent values of distances."""
        plain, knee = self._plain(t), self._plain(self.knee)
        return np.where(t < self.knee, knee + self.slope * (plain - knee), plain)

    def inverse(self, u: Float64Array) -> Float64Array:
        """Distances of latent values; 0 below those of the bound."""
        knee = self._plain(self.knee)
        u = np.where(u < knee, knee + (u - knee) / self.slope, u)
        return np.asarray(np.maximum(1 + self.power * u, 0) ** (1 / self.power))

    def derivative(self, t: Any) -> Any:
        """Change of the latent value with the distance."""
        return t ** (self.power - 1) * np.where(t < self.knee, self.slope, 1.0)

    def _plain(self, t: Any) -> Any:
        return (t**self.power - 1) / self.power


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
    lower_knee, upper_knee : float
        Distances from the bounds, in units of the scale, below which the slope of the map is multiplied.
    lower_slope, upper_slope : float
        Factors of the slope there, at most 1.
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
    lower_knee: float = 0.0
    upper_knee: float = 0.0
    lower_slope: float = 1.0
    upper_slope: float = 1.0

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

    @property
    def _side(self) -> str:
        """The side of a single bound."""
        return "lower" if math.isfinite(self.lower) else "upper"

    def _transformation(self, side: str) -> BoxCox:
        """The transformation of the distances from a bound, in units of the scale."""
        return BoxCox(*(getattr(self, f"{side}_{name}") for name in ("power", "knee", "slope")))

    @cached_property
    def _knots(self) -> tuple[FloatArray, FloatArray]:
        """Latent values and values, both ascending."""
        if self.both:
            ends = math.asin(math.sqrt(self.lower_onset)), math.acos(math.sqrt(self.upper_onset))
            t = np.sin(np.linspace(*ends, WARPING.knots)) ** 2
            latent = self._transformation("lower")(t) - self._transformation("upper")(1 - t)
            values = self.lower + self.scale * t
            values[-1] = self.upper - self.scale * self.upper_onset
            return self._with_jumps(latent, values)
        side, onset = self._side, getattr(self, f"{self._side}_onset")
        of = self._transformation(side)
        latent = np.linspace(of(onset), of(self.reach), WARPING.knots)
        t = of.inverse(latent)
        t[[0, -1]] = onset, self.reach  # not rounded: a value at the bound is the bound
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
        return float(self._transformation(self._side).derivative(self.reach) / self.scale)

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
            slope = self._transformation("lower").derivative(t) + self._transformation("upper").derivative(1 - t)
        else:
            distance = values - self.lower if self._side == "lower" else self.upper - values
            slope = self._transformation(self._side).derivative(distance / self.scale)
        return np.asarray(np.log(slope / self.scale))
