"""Scores of predictions, as sums that can be merged.

The score of a raster is the sum of the scores of its tiles, in any order::

    total = sum((score(truth, mean, error) for truth, mean, error in tiles), start=Scores())
    total.crps, total.coverage(0.95)

The scores are defined in Gneiting & Raftery (2007), *Strictly proper scoring rules, prediction, and estimation*. The
log score is that of ``scipy.stats.t`` (``scoringrules.logs_t`` is infinite where the density underflows). The CRPS and
the interval score are geonp's own, since scoringrules compiles for seconds whenever it is imported; the tests compare
them with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy import stats

from geonp.errors import InputError
from geonp.inference import student
from geonp.raster.arrays import BoolArray, FloatArray

LEVELS = (0.50, 0.80, 0.95)
"""Nominal levels of the central intervals whose coverage is counted; the interval score is that of the last one."""


@dataclass(frozen=True)
class ScoreSettings:
    """Numbers that keep scores finite."""

    smallest_error: float = 1e-12
    """Stands for a standard error of 0, whose log score would be infinite; of values below 1 times the largest of them.
    """
    largest: float = 1e150
    """Squares of larger values, and of values smaller than its inverse, are beyond float64."""


SCORES = ScoreSettings()


@dataclass(frozen=True)
class Scores:
    """Sums over scored cells. ``+`` adds two of them; the properties divide by the number of cells.

    Every mean is NaN if no cell was scored. Errors are prediction minus truth, in the units of the raster.

    Attributes
    ----------
    cells : int
        Number of cells scored.
    error, absolute, squared : float
        Sums of the errors, their absolute values and their squares.
    crps_sum, log_sum, interval_sum : float
        Sums of the continuous ranked probability score, the negative log density and the 95 % interval score.
    covered : tuple of int
        Cells within the central interval of each level of :data:`LEVELS`.
    """

    cells: int = 0
    error: float = 0.0
    absolute: float = 0.0
    squared: float = 0.0
    crps_sum: float = 0.0
    log_sum: float = 0.0
    interval_sum: float = 0.0
    covered: tuple[int, ...] = (0,) * len(LEVELS)

    def __add__(self, other: Scores) -> Scores:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "covered"}
        return Scores(**sums, covered=tuple(a + b for a, b in zip(self.covered, other.covered, strict=True)))

    @property
    def rmse(self) -> float:
        """Root of the mean squared error, in the units of the raster."""
        return math.sqrt(self._mean(self.squared))

    @property
    def mae(self) -> float:
        """Mean absolute error, in the units of the raster."""
        return self._mean(self.absolute)

    @property
    def bias(self) -> float:
        """Mean of prediction minus truth, in the units of the raster."""
        return self._mean(self.error)

    @property
    def crps(self) -> float:
        """Mean continuous ranked probability score, in the units of the raster; smaller is better."""
        return self._mean(self.crps_sum)

    @property
    def log_score(self) -> float:
        """Mean negative log density, in nats per cell, which depends on the units; smaller is better."""
        return self._mean(self.log_sum)

    @property
    def interval_score(self) -> float:
        """Mean score of the central 95 % interval, in the units of the raster: width plus penalties for misses."""
        return self._mean(self.interval_sum)

    def coverage(self, level: float) -> float:
        """Share of the cells within their central interval of `level`, one of :data:`LEVELS`."""
        if level not in LEVELS:
            raise InputError(f"coverage is counted at the levels {LEVELS}, got {level!r}")
        return self._mean(self.covered[LEVELS.index(level)])

    def as_dict(self) -> dict[str, float | None]:
        """All scores by name, for JSON or a table; None for a log score that is not defined."""
        names = ["rmse", "mae", "bias", "crps", "log_score", "interval_score"]
        coverages = {f"coverage_{level * 100:.0f}": self.coverage(level) for level in LEVELS}
        scores = {name: getattr(self, name) for name in names}
        scores["log_score"] = None if self.cells and math.isnan(self.log_score) else self.log_score
        return {"cells": self.cells, **scores, **coverages}

    def _mean(self, total: float) -> float:
        return total / self.cells if self.cells else math.nan


def require_scorable(values: FloatArray, name: object) -> None:
    """Check that the squares of values, which scores and classical methods need, are numbers.

    Raises InputError for values beyond 1e150, or that differ by less than 1e-150.
    """
    known = np.asarray(values, np.float64)[np.isfinite(values)]
    low, high = known.min(initial=np.inf), known.max(initial=-np.inf)
    if max(-low, high) > SCORES.largest or 0 < high / 2 - low / 2 < 1 / SCORES.largest:
        raise InputError(
            f"{name!r} cannot be scored: got values from {low:g} to {high:g}, whose squares are beyond float64. "
            "Evaluate them in another unit: divide them by a power of ten first."
        )


def score(
    truth: FloatArray,
    mean: FloatArray,
    error: FloatArray,
    where: BoolArray | None = None,
    tail: FloatArray | None = None,
) -> Scores:
    """Score predictive Student distributions.

    Raises InputError if the shapes differ, or a scored cell has no finite mean or no finite, non-negative standard
    error.

    Parameters
    ----------
    truth, mean, error : array
        True values, predicted means and predicted standard errors, of one shape and in the units of the raster.
    where : array of bool, optional
        Cells to score. Cells with NaN in `truth` are never scored.
    tail : array, optional
        Tails of the distributions (:mod:`geonp.inference.student`), of the same shape; normal ones by default.

    Returns
    -------
    Scores
        Sums over the cells, computed in float64.

    Notes
    -----
    A standard error of 0, as of an observed cell, counts as ``1e-12``, or as ``1e-12`` of the largest value if that is
    below 1, which gives the scores of a point prediction.
    """
    tail = np.zeros(np.shape(error)) if tail is None else tail
    shapes = [np.shape(array) for array in (truth, mean, error, tail)]
    if len(set(shapes)) > 1:
        raise InputError(f"truth, mean, standard error and tail must have one shape, got {shapes}")
    scored = np.isfinite(truth) if where is None else np.isfinite(truth) & where
    y, mu, sigma, tau = (np.asarray(array, np.float64)[scored] for array in (truth, mean, error, tail))
    if bad := int((~np.isfinite(mu) | ~np.isfinite(sigma) | (sigma < 0)).sum()):
        raise InputError(
            f"{bad} of {y.size} scored cells have no finite mean or no finite, non-negative standard error"
        )
    if not y.size:
        return Scores()
    sigma = np.maximum(sigma, SCORES.smallest_error * min(float(np.abs(y).max()) or 1.0, 1.0))
    residual = mu - y
    half_widths = [student.half_width(sigma, tau, level) for level in LEVELS]
    missed_by = np.maximum(np.abs(residual) - half_widths[-1], 0)
    return Scores(
        cells=y.size,
        error=float(residual.sum()),
        absolute=float(np.abs(residual).sum()),
        squared=float((residual**2).sum()),
        crps_sum=float(np.sum(student.crps(y, mu, sigma, tau))),
        log_sum=-float(np.sum(_student(mu, sigma, tau).logpdf(y))),
        interval_sum=2 * float(np.sum(half_widths[-1] + missed_by / (1 - LEVELS[-1]))),
        covered=tuple(int((np.abs(residual) <= half).sum()) for half in half_widths),
    )


def _student(mean: FloatArray, error: FloatArray, tail: FloatArray) -> Any:
    """The distributions for scipy, which takes infinite degrees of freedom for normal ones."""
    tail = np.where(tail < student.LIGHTEST, 0.0, tail)
    with np.errstate(divide="ignore"):
        return stats.t(1 / tail, mean, error * np.sqrt(1 - 2 * tail))
