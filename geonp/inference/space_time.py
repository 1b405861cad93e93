"""A Gaussian process of places and times, for measurements of the same places at several times.

Its covariance is a sum of products of a covariance in space and one in time (De Iaco, Myers and Posa 2001, Statistics &
Probability Letters 52, 21-28), see :data:`TERMS`; for each period that the times span, of a periodic process (MacKay
1998, *Introduction to Gaussian processes*, equation 47) that fades over some periods; of the variance of the slope on
each covariate; and that of the noise. The parameters are those of greatest posterior density.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from geonp.raster.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Term:
    """A product of an exponential covariance in space and one in time, with medians of the priors of its parameters.

    Attributes
    ----------
    variance : float
        Relative to that of the changes at a place.
    length : float or None
        Length in space, relative to the median distance of places; 0 for the same place alone, None for all places.
    memory : float or None
        Length in time, in median steps; None for all times.
    smooth : bool
        Whether the covariance in time is a Matern one of smoothness 3/2.
    """

    variance: float
    length: float | None = None
    memory: float | None = None
    smooth: bool = False


TERMS = (
    Term(0.5, length=1.0),
    Term(0.2, length=0.0),
    Term(0.3, memory=5.0),
    Term(0.3, length=1.0, memory=8.0, smooth=True),
    Term(0.3, length=0.5, memory=1.5),
    Term(0.05, length=0.0, memory=3.0),
)
"""Levels of regions and of places, changes of all places, slow and fast ones of regions, and those of a place."""


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of the process."""

    periodic: tuple[float, float, float, float] = (0.3, 1.0, 1.0, 6.0)
    """Medians of the variance of a periodic process, its length in space, its length as in MacKay's equation, and the
    number of periods over which it fades."""
    slope: float = 0.3
    """Median of the variance of the slope on a covariate of variance 1."""
    noise: float = 0.05
    """Median of the variance of the noise."""
    same: float = 1e-6
    """Places that are less than this apart, relative to the median distance, are the same."""
    iterations: int = 15
    """Largest number of steps of the optimiser."""
    jitter: float = 1e-6
    """Keeps matrices positive definite."""


PROCESS = ProcessSettings()

Factor = tuple[FloatArray, list[FloatArray]]
"""Values of a term or of a factor of it, and their derivatives by the logarithms of its parameters."""


@dataclass(frozen=True, eq=False)
class Data:
    """Measurements that are seen together, in the units of the process.

    Attributes
    ----------
    distance : array
        Distances of ``m`` places ``(m, m)``.
    lag : array
        Lags of ``t`` times ``(t, t)``.
    place, time : array of int
        Those of ``n`` measurements ``(n,)``.
    values : array
        ``(n,)``.
    variance : array
        Variances of their errors ``(n,)``.
    covariates, unknown : array
        Covariates ``(n, p)``, and the variances of their errors, 1 where a covariate is unknown.
    """

    distance: FloatArray
    lag: FloatArray
    place: IntArray
    time: IntArray
    values: FloatArray
    variance: FloatArray
    covariates: FloatArray
    unknown: FloatArray


@dataclass(frozen=True, eq=False)
class SpaceTimeCovariance:
    """A covariance in space and time: logarithms of the parameters, and the periods, in the units of lags."""

    logs: FloatArray
    periods: Sequence[float] = ()

    def _parameters(self) -> tuple[list[tuple[Term, float, list[float]]], list[list[float]], FloatArray, float]:
        """Terms, their variances and their other parameters; those of the periods; slopes; noise."""
        *values, noise = np.exp(self.logs)
        rest = iter(values)
        terms = [(term, next(rest), [next(rest) for _ in range(_n_parameters(term) - 1)]) for term in TERMS]
        periodic = [[next(rest) for _ in PROCESS.periodic] for _ in self.periods]
        return terms, periodic, np.array(list(rest)), noise + PROCESS.jitter

    @property
    def noise(self) -> float:
        """Variance of the noise."""
        return self._parameters()[-1]

    @property
    def slopes(self) -> FloatArray:
        """Variances of the slopes on the covariates ``(p,)``."""
        return self._parameters()[-2]

    @property
    def prior(self) -> float:
        """Variance of a measurement whose covariates are 0."""
        terms, periodic, _, noise = self._parameters()
        return sum(variance for _, variance, _ in terms) + sum(variance for variance, *_ in periodic) + noise

    def in_space(self, distance: FloatArray) -> list[Factor]:
        """The factors of all terms at distances, with their variances."""
        terms, periodic, *_ = self._parameters()
        found: list[Factor] = []
        for term, variance, others in terms:
            if term.length is None:
                factor: Factor = np.ones_like(distance), []
            elif term.length == 0:
                factor = (distance < PROCESS.same).astype(np.float64), []
            else:
                factor = _exponential(distance / others[0])
            found.append(_times(variance, factor))
        return found + [_times(variance, _exponential(distance / length)) for variance, length, *_ in periodic]

    def in_time(self, lag: FloatArray) -> list[Factor]:
        """The factors of all terms at lags."""
        terms, periodic, *_ = self._parameters()
        found: list[Factor] = []
        for term, _, others in terms:
            if term.memory is None:
                found.append((np.ones_like(lag), []))
                continue
            r = lag / others[-1]
            found.append(_matern(r) if term.smooth else _exponential(r))
        for (_, _, length, fading), period in zip(periodic, self.periods, strict=True):
            phase, faded = 2 * np.sin(np.pi / period * lag) ** 2 / length**2, lag / (fading * period)
            value = np.exp(-phase - faded)
            found.append((value, [2 * value * phase, value * faded]))
        return found

    def terms(self, data: Data) -> list[Factor]:
        """Each term of the covariance of measurements, and its derivatives by its own logarithms, in their order."""
        found: list[Factor] = []
        factors = self.in_space(data.distance), self.in_time(data.lag)
        for (space, by_space), (time, by_time) in zip(*factors, strict=True):
            in_space, in_time = _between(space, data.place), _between(time, data.time)
            value = in_space * in_time
            derivatives = [_between(each, data.place) * in_time for each in by_space]
            derivatives += [in_space * _between(each, data.time) for each in by_time]
            found.append((value, [value, *derivatives]))
        return found

    def of(self, data: Data, terms: Iterable[FloatArray] | None = None) -> FloatArray:
        """Covariance matrix of measurements; with the values of its :meth:`terms` if they are known already."""
        value = (data.covariates * self.slopes) @ data.covariates.T
        for term in self._values(data) if terms is None else terms:
            value += term
        value[np.diag_indices_from(value)] += self.noise + data.variance + data.unknown @ self.slopes
        return value

    def _values(self, data: Data) -> Iterator[FloatArray]:
        factors = self.in_space(data.distance), self.in_time(data.lag)
        for (space, _), (time, _) in zip(*factors, strict=True):
            yield _between(space, data.place) * _between(time, data.time)


def fit(data: Sequence[Data], periods: Sequence[float], level: float) -> SpaceTimeCovariance:
    """The parameters of greatest posterior density, for independent groups of measurements.

    Priors are log-normal, of standard deviation 1; the median of the variance of levels is at least `level`.
    """
    medians = [x for term in TERMS for x in (term.variance, term.length, term.memory) if x]
    medians[0] = max(medians[0], level)
    n_covariates = data[0].covariates.shape[1]
    medians += [*PROCESS.periodic * len(periods), *[PROCESS.slope] * n_covariates, PROCESS.noise]
    start = np.log(medians)

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        covariance = SpaceTimeCovariance(logs, periods)
        value, gradient = 0.5 * float(np.sum((logs - start) ** 2)), logs - start
        for one in data:
            terms = covariance.terms(one)
            lower, failed = scipy.linalg.lapack.dpotrf(covariance.of(one, (term for term, _ in terms)), lower=True)
            if failed:
                return math.inf, np.zeros_like(logs)
            triangle, _ = scipy.linalg.lapack.dpotri(lower, lower=True)
            inverse = np.tril(triangle) + np.tril(triangle, -1).T
            weights = inverse @ one.values
            score = inverse - np.outer(weights, weights)
            slopes = [
                v * (c @ score @ c + score.diagonal() @ u)
                for v, c, u in zip(covariance.slopes, one.covariates.T, one.unknown.T, strict=True)
            ]
            by_terms = [np.vdot(score, each) for _, derivatives in terms for each in derivatives]
            gradient = gradient + 0.5 * np.array([*by_terms, *slopes, np.trace(score) * math.exp(logs[-1])])
            value += 0.5 * float(one.values @ weights) + float(np.log(lower.diagonal()).sum())
        return value, gradient

    bounds = [(at - 6, at + 6) for at in start]
    options: Any = {"maxiter": PROCESS.iterations, "ftol": 1e-6}
    best = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return SpaceTimeCovariance(best.x, periods)


class Conditioned:
    """A process given measurements.

    Parameters
    ----------
    covariance : SpaceTimeCovariance
    known : Data
        The measurements.

    Attributes
    ----------
    n : int
        Their number.
    """

    def __init__(self, covariance: SpaceTimeCovariance, known: Data) -> None:
        self.n = len(known.values)
        self._covariance, self._known, self._slopes = covariance, known, known.covariates * covariance.slopes
        self._lower = scipy.linalg.cholesky(covariance.of(known), lower=True, overwrite_a=True)
        self._half = scipy.linalg.solve_triangular(self._lower, known.values, lower=True)

    def at(
        self, distance: FloatArray, lag: FloatArray, covariates: FloatArray, unknown: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Mean and variance ``(k,)`` of new measurements at places, all at one time.

        Parameters
        ----------
        distance : array
            Distances from the places of the measurements ``(m, k)``.
        lag : array
            Lags from their times ``(t,)``.
        covariates, unknown : array
            Covariates there ``(k, p)``, and the variances of their errors.
        """
        covariance, known = self._covariance, self._known
        in_time: list[FloatArray] = [self._slopes]
        in_space: list[FloatArray] = [covariates.T]
        for (space, _), (time, _) in zip(covariance.in_space(distance), covariance.in_time(lag), strict=True):
            rows = np.flatnonzero(space.any(1))
            if (space == space[0]).all():  # a term of all places
                rows, space = np.arange(1), space[:1]
                in_time.append(time[known.time, None])
            else:
                in_time.append(np.where(known.place[:, None] == rows, time[known.time, None], 0.0))
            in_space.append(space[rows])
        # covariances are the product of both, whose rank is less than the number of many places
        left, right = np.hstack(in_time), np.vstack(in_space)
        few = right.shape[1] <= left.shape[1]
        half = scipy.linalg.solve_triangular(self._lower, left @ right if few else left, lower=True, overwrite_b=True)
        if few:
            mean, explained = half.T @ self._half, np.einsum("nk,nk->k", half, half)
        else:
            mean, explained = (self._half @ half) @ right, np.einsum("rk,rk->k", right, (half.T @ half) @ right)
        prior = covariance.prior + (covariates**2 + unknown) @ covariance.slopes
        return mean, np.maximum(prior - explained, covariance.noise)

    def levels(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance ``(k,)`` of the levels of places at these distances from those of measurements ``(m, k)``.

        They are the sum of all terms that last for all times.
        """
        lasting = [k for k, term in enumerate(TERMS) if term.memory is None]
        spaces = [self._covariance.in_space(each) for each in (distance, np.zeros(1))]
        near, prior = (np.sum([space[k][0] for k in lasting], 0) for space in spaces)
        near = near[self._known.place]
        half = scipy.linalg.solve_triangular(self._lower, near, lower=True, overwrite_b=True)
        return half.T @ self._half, np.maximum(prior - np.einsum("nk,nk->k", half, half), PROCESS.jitter)


def _between(values: FloatArray, index: IntArray) -> FloatArray:
    """The values ``(n, n)`` of pairs, from those of their places or times."""
    return values[index][:, index]


def _n_parameters(term: Term) -> int:
    return 1 + bool(term.length) + bool(term.memory)


def _times(variance: float, factor: Factor) -> Factor:
    value, derivatives = factor
    return variance * value, [variance * each for each in derivatives]


def _exponential(r: FloatArray) -> Factor:
    """Exponential covariance, and its derivative by the logarithm of the length."""
    value = np.exp(-r)
    return value, [value * r]


def _matern(r: FloatArray) -> Factor:
    """Matern covariance of smoothness 3/2, and its derivative by the logarithm of the length."""
    r = math.sqrt(3) * r
    faded = np.exp(-r)
    return (1 + r) * faded, [r**2 * faded]
