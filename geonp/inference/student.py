"""The predictive distribution: a Student distribution, given by its mean, standard deviation and tail.

The tail is the inverse of the degrees of freedom: 0 for a normal distribution, and below 1/2, so that the standard
deviation is finite. All functions broadcast arrays of any shape and unit.

Libraries do not replace this module. For 100,000 distributions, ``scipy.stats.t.ppf`` takes 0.8 of the time of
:func:`quantile`, but a quarter of the results differ in the last bit, and so would fills. ``scoringrules.crps_t`` takes
0.8 of the time of :func:`crps`, but returns NaN for normal distributions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

__all__ = ["crps", "draw", "half_width", "quantile"]

FloatArray = npt.NDArray[np.floating[Any]]

LIGHTEST = 1e-4
"""Distributions with a smaller tail are treated as normal; the difference is negligible."""


def quantile(level: float, mean: FloatArray, deviation: FloatArray, tail: FloatArray) -> FloatArray:
    """Quantile of each distribution at `level`, between 0 and 1."""
    side = 1.0 if level >= 0.5 else -1.0
    return np.asarray(mean + side * half_width(deviation, tail, abs(2 * level - 1)))


def draw(rng: np.random.Generator, mean: FloatArray, deviation: FloatArray, tail: FloatArray) -> FloatArray:
    """Independent random values, one of each distribution."""
    df, scale = _student(deviation, tail)
    return np.asarray(mean + scale * rng.standard_t(df))


def half_width(deviation: FloatArray, tail: FloatArray, level: float) -> FloatArray:
    """Half of the width of the central interval with probability `level`."""
    df, scale = _student(deviation, tail)
    p = (1 + level) / 2
    return np.asarray(np.where(_heavy(tail), scale * special.stdtrit(df, p), deviation * special.ndtri(p)))


def crps(y: FloatArray, mean: FloatArray, deviation: FloatArray, tail: FloatArray) -> FloatArray:
    """Continuous ranked probability score at `y`, in the units of `y` (Jordan et al., 2019, appendix A)."""
    df, scale = _student(deviation, tail)
    z, normal = (y - mean) / scale, (y - mean) / deviation
    density = np.exp(-(df + 1) / 2 * np.log1p(z**2 / df) - 0.5 * np.log(df) - special.betaln(0.5, df / 2))
    spread = 2 * np.sqrt(df) / (df - 1) * np.exp(special.betaln(0.5, df - 0.5) - 2 * special.betaln(0.5, df / 2))
    heavy = z * (2 * special.stdtr(df, z) - 1) + 2 * density * (df + z**2) / (df - 1) - spread
    bell = np.exp(-0.5 * normal**2) / math.sqrt(2 * math.pi)
    light = normal * (2 * special.ndtr(normal) - 1) + 2 * bell - 1 / math.sqrt(math.pi)
    return np.asarray(np.where(_heavy(tail), scale * heavy, deviation * light))


def _heavy(tail: FloatArray) -> npt.NDArray[np.bool_]:
    return np.asarray(np.asarray(tail) >= LIGHTEST)


def _student(deviation: FloatArray, tail: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Degrees of freedom and scale, as in :data:`scipy.stats.t`."""
    tail = np.maximum(tail, LIGHTEST)
    return 1 / tail, deviation * np.sqrt(1 - 2 * tail)
