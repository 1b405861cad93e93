"""The covariance in space of the errors of predictions from series, and these errors given a few of them.

Cells that :mod:`geonp.inference.series` predicts from the same cells in other slices have errors that are a field in
space. Its covariance is estimated from other slices: each of them is predicted in the same way from the rest, and its
errors are known wherever it is observed. If the process is separable in space and time, the errors of all slices have
the same covariance.

The field is the sum of an error that a slice has as a whole, a Matern process of smoothness 3/2, an exponential one and
noise. Slices differ in the size of their errors, so each has a scale of its own, with an inverse gamma distribution,
and the predictive distribution is a Student distribution. The variance of the errors also differs between cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from scipy.special import digamma, gammaln

from geonp.inference.noise import Noise
from geonp.inference.simulation import JOINT, Weighted
from geonp.raster.arrays import FloatArray, IntArray
from geonp.raster.windows import Window

if TYPE_CHECKING:
    from geonp.nn.process import LocalProcess


@dataclass(frozen=True)
class ErrorFieldSettings:
    """Settings of the covariance of errors."""

    pairs: int = 48
    """Number of cells of each slice whose errors determine their covariance, each with a cell close to it."""
    apart_px: int = 2
    """Distance of the cells of a pair, in columns."""
    min_errors: int = 24
    """Slices with fewer errors say nothing about their covariance."""
    scale_points: int = 20
    """The observations of a slice count as at most so many for its scale: those close to each other have similar
    errors."""
    iterations: int = 40
    """Largest number of steps of the optimiser."""
    jitter: float = 1e-6
    """Keeps matrices positive definite."""


ERROR_FIELD = ErrorFieldSettings()

_MEDIANS = {"whole": 0.2, "smooth": 0.4, "smooth_px": 6.0, "rough": 0.3, "rough_px": 30.0, "noise": 0.05, "beyond": 6.0}
"""Medians of the priors of variances, of lengths in cells, and of the degrees of freedom beyond two."""

_SPREAD = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 0.7])
"""Standard deviations of the logarithms."""


@dataclass(frozen=True, eq=False)
class ErrorField:
    """The covariance of the standardised errors of a slice; `logs` are the logarithms of its parameters."""

    logs: FloatArray

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the scale of a slice."""
        return 2 + math.exp(self.logs[-1])

    @property
    def noise(self) -> float:
        """Variance of the noise."""
        return math.exp(self.logs[-2]) + ERROR_FIELD.jitter

    def terms(self, distance: FloatArray) -> list[tuple[FloatArray, list[FloatArray]]]:
        """Each term at a distance, and its derivatives by its own logarithms, in the order of these."""
        whole, smooth, smooth_px, rough, rough_px = np.exp(self.logs[:5])
        r = math.sqrt(3) / smooth_px * distance
        near, far = smooth * np.exp(-r), rough * np.exp(-distance / rough_px)
        every = np.full(distance.shape, whole)
        return [
            (every, [every]),
            (near * (1 + r), [near * (1 + r), near * r**2]),
            (far, [far, far * distance / rough_px]),
        ]

    def __call__(self, distance: FloatArray) -> FloatArray:
        """Covariance at a distance, without the noise."""
        return np.asarray(np.sum([value for value, _ in self.terms(distance)], 0))

    def process(self) -> LocalProcess:
        """The field at one point, whose coordinates are rows and columns."""
        from geonp.nn.process import LocalProcess

        whole, smooth, smooth_px, rough, rough_px = np.exp(self.logs[:5])
        metric = np.array([3 / smooth_px**2, 1 / rough_px**2])[:, None, None] * np.eye(2)
        # of the Matern kernels of smoothness 1/2, 3/2, ...
        weights = np.array([[0, smooth, 0, 0, 0], [rough, 0, 0, 0, 0]])
        return LocalProcess.stationary(metric, weights, whole, self.noise)


@dataclass(frozen=True, eq=False)
class FieldErrors:
    """Errors of cells of a window that are predicted from their series, as of a field.

    Attributes
    ----------
    field : ErrorField
    context : array
        Numbers of the cells of the window whose errors are known, ``(n_c,)``.
    targets : array
        Numbers of the predicted ones, ``(n_t,)``.
    weights : array
        Their shares in the error of the prediction of these cells, ``(n_t,)``.
    """

    field: ErrorField
    context: IntArray
    targets: IntArray
    weights: FloatArray

    def simulated(self, window: Window, noise: Noise, period: int | None) -> Iterator[Weighted]:
        """Targets, their weights and their errors ``(n_t, n)`` with variance one, in parts.

        Columns repeat after `period`. The errors of squares that overlap are made of the same noise.
        """
        from geonp.nn.simulation import Places, simulate

        process = self.field.process()
        for part in np.array_split(np.arange(self.targets.size), -(-self.targets.size // JOINT.most_targets)):
            targets = self.targets[part]
            cells = places_of(np.concatenate([targets, self.context]), window.shape)
            cells += np.array([window.row, window.col])
            row, col = np.rint(cells).astype(np.int64).T
            numbers = row, col if period is None else col % period
            places = Places(cells, np.eye(2), numbers, self.context.size, None if period is None else float(period))
            yield targets, self.weights[part], simulate(process, 0, np.zeros(len(cells), np.intp), places, noise)


def of_errors(errors: FloatArray, shape: tuple[int, ...]) -> ErrorField:
    """The covariance of errors ``(cells, slices)`` of a window, in the units of which they have a variance of one."""
    return fit([_sample(each, shape) for each in errors.T])


def places_of(cells: IntArray, shape: tuple[int, ...]) -> FloatArray:
    """Rows and columns ``(n, 2)`` of cells by their numbers."""
    return np.stack(np.unravel_index(cells, shape), 1).astype(np.float64)


def _sample(errors: FloatArray, shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Errors of pairs of cells spread evenly over a slice, and their places; none if few are known."""
    known = np.flatnonzero(np.isfinite(errors))
    cells = known[:0]
    if known.size >= ERROR_FIELD.min_errors:
        first = known[np.linspace(0, known.size - 1, ERROR_FIELD.pairs).round().astype(int)]
        cells = np.unique([first, np.minimum(first + ERROR_FIELD.apart_px, errors.size - 1)])
        cells = cells[np.isfinite(errors[cells])]
    return errors[cells], places_of(cells, shape)


def fit(slices: Sequence[tuple[FloatArray, FloatArray]]) -> ErrorField:
    """The parameters of greatest posterior density, from errors ``(n,)`` of slices at places ``(n, 2)``.

    The errors of a slice have a multivariate Student distribution.
    """
    start = np.log(list(_MEDIANS.values()))
    known = [(errors, scipy.spatial.distance.cdist(places, places)) for errors, places in slices if errors.size]

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        field, total, gradient = ErrorField(logs), 0.0, np.zeros(len(logs))
        beyond = field.freedom - 2
        for errors, distance in known:
            n, terms = len(errors), field.terms(distance)
            system = np.sum([value for value, _ in terms], 0) + field.noise * np.eye(n)
            inverse = np.linalg.inv(system)
            weights = inverse @ errors
            square, half = float(errors @ weights), (field.freedom + n) / 2
            total += 0.5 * np.linalg.slogdet(system)[1] + half * math.log1p(square / beyond) + n / 2 * math.log(beyond)
            total += gammaln(field.freedom / 2) - gammaln(half)
            score = 0.5 * inverse - half / (beyond + square) * np.outer(weights, weights)
            slope = 0.5 * math.log1p(square / beyond) - half * square / (beyond * (beyond + square)) + n / (2 * beyond)
            slope += 0.5 * (digamma(field.freedom / 2) - digamma(half))
            parts = [np.sum(score * each) for _, of_term in terms for each in of_term]
            gradient += [*parts, np.trace(score) * math.exp(logs[-2]), slope * beyond]
        prior = (logs - start) / _SPREAD
        return total + 0.5 * float(prior @ prior), gradient + prior / _SPREAD

    bounds = [(at - 5 * spread, at + 5 * spread) for at, spread in zip(start, _SPREAD, strict=True)]
    options: Any = {"maxiter": ERROR_FIELD.iterations, "ftol": 1e-6}
    best = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return ErrorField(best.x)


def krige(
    errors: FloatArray, places: FloatArray, targets: FloatArray, field: ErrorField
) -> tuple[FloatArray, FloatArray, float]:
    """Mean and standard error of standardised errors at targets ``(n, 2)``, from those at `places`; and their tail."""
    n, freedom, cdist = len(errors), field.freedom, scipy.spatial.distance.cdist
    prior = float(field(np.zeros(1))[0]) + field.noise
    if not n:
        return np.zeros(len(targets)), np.full(len(targets), math.sqrt(prior)), 1 / freedom
    factor = np.linalg.cholesky(field(cdist(places, places)) + field.noise * np.eye(n))
    near = scipy.linalg.solve_triangular(factor, field(cdist(places, targets)), lower=True)
    white = scipy.linalg.solve_triangular(factor, errors, lower=True)
    variance = np.maximum(prior - np.square(near).sum(0), field.noise)
    counted = min(n, ERROR_FIELD.scale_points)
    scale = (freedom - 2 + counted / n * float(white @ white)) / (freedom - 2 + counted)
    return near.T @ white, np.sqrt(variance * scale), 1 / (freedom + counted)
