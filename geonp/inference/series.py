"""Cells of a slice that no observation of it reaches, predicted from the same cells in other slices.

The series of a cell is a Gaussian process of the position of its slices, mostly time. Its covariance is a sum of

* a Matern process of smoothness 3/2 and one of smoothness 1/2, for slow and fast changes,
* for each period that the stack spans, a periodic process (MacKay 1998, *Introduction to Gaussian processes*, equation
  47) that fades over some periods: the seasons, and the hours of the day,
* the variance of the level of the cell, and that of the noise.

The parameters are those of greatest posterior density, for the series of some cells of a square and around it. Given
them, each cell is predicted from all of its observations by one solve. Some cells change more than others, so each has
a scale, estimated from the errors of its observations when they are left out, with those of all cells as a prior. The
predictive distribution is a Student distribution, since this scale is uncertain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from geonp.raster.arrays import BoolArray, FloatArray, IntArray
from geonp.raster.windows import Window


@dataclass(frozen=True)
class SeriesSettings:
    """Settings of the prediction from other slices."""

    slices: int = 64
    """Largest number of slices that are read."""
    square_px: int = 64
    """Side of the squares of a lattice that have a covariance each. A cell is predicted with those of the squares whose
    middle is less than a side away, and the predictions are blended, so that there are no seams."""
    frame_px: int = 32
    """Width of the frame around a square whose cells count for it, too, in cells."""
    cells: int = 48
    """Number of cells whose series determine the covariance."""
    min_observed: int = 4
    """Cells with fewer observations in other slices stay empty."""
    least_slices: int = 48
    """The series count together as one of at least this many slices. In a short stack, those of many cells say more
    than one of them."""
    least_change: float = 1e-4
    """Lower limit of the spread within cells, relative to that of all values."""
    periodic: tuple[float, float] = (0.4, 1.0)
    """Medians of the variance and of the length, as in MacKay's equation, of a periodic process."""
    fading: float = 6.0
    """Median of the number of periods over which a periodic process fades."""
    iterations: int = 40
    """Largest number of steps of the optimiser."""
    common_slices: float = 8.0
    """Weight of the variance of the errors of all cells in that of one, as a number of slices."""
    batch: int = 128
    """Number of systems solved together."""
    jitter: float = 1e-8
    """Keeps matrices positive definite."""

    @property
    def reach_px(self) -> int:
        """How far beyond a cell others may matter."""
        return 3 * self.square_px // 2 + self.frame_px


SERIES = SeriesSettings()

_START = {"slow": (0.3, 8.0), "fast": (0.3, 2.0), "level": (0.3,), "noise": (0.1,)}
"""Medians of the priors of variances, relative to that of the values of a cell, and of lengths, in median steps. That
of the level is at least the variance of the means of cells."""


@dataclass(frozen=True, eq=False)
class SeriesCovariance:
    """A covariance of series: logarithms of the parameters, and the periods; lags are in the units of the latter."""

    logs: FloatArray
    periods: Sequence[float]

    def __call__(self, lag: FloatArray) -> FloatArray:
        """Covariance at a lag, without the noise."""
        return np.asarray(np.sum([value for value, _ in self.terms(lag)], 0))

    @property
    def noise(self) -> float:
        """Variance of the noise."""
        return math.exp(self.logs[-1]) + SERIES.jitter

    def terms(self, lag: FloatArray) -> Iterator[tuple[FloatArray, list[FloatArray]]]:
        """Each term, and its derivatives by its own logarithms, in the order of these."""
        slow, slow_length, fast, fast_length, level, *rest = np.exp(self.logs)
        r = math.sqrt(3) / slow_length * lag
        value = slow * (1 + r) * np.exp(-r)
        yield value, [value, slow * r**2 * np.exp(-r)]
        r = lag / fast_length
        value = fast * np.exp(-r)
        yield value, [value, value * r]
        value = np.full(lag.shape, level)
        yield value, [value]
        for variance, length, fading, period in zip(rest[:-1:3], rest[1:-1:3], rest[2:-1:3], self.periods, strict=True):
            phase = 2 * np.sin(np.pi / period * lag) ** 2 / length**2
            faded = lag / (fading * period)
            value = variance * np.exp(-phase - faded)
            yield value, [value, 2 * value * phase, value * faded]


def predict_slice(
    others: FloatArray,
    positions: FloatArray,
    position: float,
    periods: Sequence[float],
    wanted: BoolArray,
    window: Window,
) -> FloatArray:
    """Predict cells of a slice from the same cells in other slices.

    Parameters
    ----------
    others : array
        ``(slices, rows, cols)``: the other slices in a window, NaN where missing.
    positions, position : array ``(slices,)``, float
        Positions of the others and of the slice, of which only the differences matter.
    periods : sequence of float
        Periods that the stack spans, in the same units.
    wanted : array
        ``(rows, cols)``: cells to predict, at least :attr:`SeriesSettings.reach_px` from the ends of the window.
    window : Window
        Rows and columns of the window in the raster, to which the squares are fixed.

    Returns
    -------
    array
        Mean, standard error of a new measurement and tail, ``(3, rows, cols)``; NaN in cells that are not wanted, or
        have too few observations.
    """
    total, weight = np.zeros((3, *wanted.shape)), np.zeros(wanted.shape)
    for near, around, share in squares(others, wanted, window):
        found = _predict(others[:, *near][:, wanted[near]].T, others[:, *around], positions, position, periods)
        if found is not None:
            total[:, *near][:, wanted[near]] += share * found
            weight[near][wanted[near]] += share
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def squares(
    others: FloatArray, wanted: BoolArray, window: Window
) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice], FloatArray]]:
    """The squares with data that have wanted cells near them, for the arguments of :func:`predict_slice`.

    Yields
    ------
    near, around : tuple of slice
        The cells that a square predicts, and those that count for it.
    share : array
        Its shares ``(n,)`` in the predictions of the wanted ones of the former. Those of all squares sum to one.
    """
    side, frame, half = SERIES.square_px, SERIES.frame_px, SERIES.square_px // 2
    corners = [
        range(-(first % side) - side, n + side, side)
        for first, n in zip((window.row, window.col), wanted.shape, strict=True)
    ]
    for row, col in itertools.product(*corners):
        own, near, around = ((_within(row, margin), _within(col, margin)) for margin in (0, half, frame))
        # a square without data, as one outside of the raster, has no covariance of its own
        if wanted[near].any() and np.isfinite(others[:, *own]).any():
            shares = (
                _share(np.arange(n)[part], start) for n, part, start in zip(wanted.shape, near, (row, col), strict=True)
            )
            yield near, around, np.outer(*shares)[wanted[near]]


def _within(start: int, margin: int) -> slice:
    """The cells of a square that begins at `start`, and a margin."""
    return slice(max(start - margin, 0), max(start + SERIES.square_px + margin, 0))


def _share(cells: IntArray, start: int) -> FloatArray:
    """Shares of the square that begins at `start` in cells along one dimension: those of all squares sum to one."""
    middle = start + (SERIES.square_px - 1) / 2
    return np.asarray(np.maximum(1 - np.abs(cells - middle) / SERIES.square_px, 0.0))


def _predict(
    series: FloatArray, around: FloatArray, positions: FloatArray, position: float, periods: Sequence[float]
) -> FloatArray | None:
    """Mean, standard error and tail ``(3, n)`` of cells with the given series ``(n, slices)``; None without enough."""
    fitted = FittedSeries.of(around, positions, periods)
    if fitted is None:
        return None
    observed, (lag, to_target) = fitted.standardised(series), fitted.lags(positions, position)
    mean, variance = condition(observed, lag, to_target, fitted.covariance)
    # some cells change more than others
    size = sizes(left_out(observed, lag, fitted.covariance), fitted.error)
    n = np.isfinite(series).sum(1)
    freedom = n + SERIES.common_slices
    error = size * np.sqrt(variance * freedom / (freedom - 2))
    found = np.stack([mean * fitted.scale + fitted.loc, error * fitted.scale, 1 / freedom])
    return np.where(n >= SERIES.min_observed, found, np.nan)


@dataclass(frozen=True, eq=False)
class FittedSeries:
    """The covariance of the series of a square, whose values are standardised by `loc` and `scale`, lags by `step`.

    `error` is the mean square of the standardised errors of observations that are left out, at least one: where few
    slices determine the covariance, it follows them too closely.
    """

    covariance: SeriesCovariance
    loc: float
    scale: float
    step: float
    error: float

    @classmethod
    def of(cls, around: FloatArray, positions: FloatArray, periods: Sequence[float]) -> FittedSeries | None:
        """Fit the series of some cells ``(slices, rows, cols)``; None if too few have enough observations."""
        known = around.reshape(len(around), -1).T.astype(np.float64)
        counted = np.flatnonzero(np.isfinite(known).sum(1) >= SERIES.min_observed)
        if not counted.size:
            return None
        # spread evenly, whatever the chunks
        chosen = np.unique(np.linspace(0, counted.size - 1, SERIES.cells).round().astype(int))
        sample = known[counted[chosen]]
        means = np.nanmean(sample, 1)
        loc, freedom = float(np.nanmean(sample)), np.isfinite(sample).sum() - len(sample)
        # cells that hardly change would make the variance of the level too large for a matrix
        within = math.sqrt(np.nansum((sample - means[:, None]) ** 2) / freedom)
        scale = max(within, SERIES.least_change * float(np.nanstd(sample))) or 1.0
        steps = np.diff(np.unique(positions))
        step = float(np.median(steps)) if steps.size else 1.0
        lag, level = np.abs(positions[:, None] - positions) / step, float(np.var(means)) / scale**2
        standardised = (sample - loc) / scale
        covariance = fit(standardised, lag, [period / step for period in periods], level)
        error = float(np.nanmean(left_out(standardised, lag, covariance) ** 2))
        return cls(covariance, loc, scale, step, max(error, 1.0))

    def standardised(self, values: FloatArray) -> FloatArray:
        """Values in the units of the covariance."""
        return (values - self.loc) / self.scale

    def lags(self, positions: FloatArray, position: float) -> tuple[FloatArray, FloatArray]:
        """Lags between slices, and from them to one at a `position`, in the units of the covariance."""
        return np.abs(positions[:, None] - positions) / self.step, np.abs(positions - position) / self.step


def fit(series: FloatArray, lag: FloatArray, periods: Sequence[float], level: float = 0.0) -> SeriesCovariance:
    """The parameters of greatest posterior density.

    The series, ``(n, slices)`` with NaN where missing, count together as one of them, because they are alike, or as
    one of :attr:`SeriesSettings.least_slices` slices if they have fewer. Priors are log-normal, of standard deviation
    1. The median of the variance of the level is at least `level`.
    """
    medians = [
        *_START["slow"],
        *_START["fast"],
        max(*_START["level"], level),
        *((*SERIES.periodic, SERIES.fading) * len(periods)),
        *_START["noise"],
    ]
    start = np.log(medians)
    known = np.isfinite(series)
    values = np.where(known, series, 0.0)
    patterns, which, counts = np.unique(known, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(which.ravel(), kind="stable")
    squares = np.stack([part.T @ part for part in np.split(values[order], np.cumsum(counts)[:-1])])
    weight = max(series.shape[1], SERIES.least_slices) / known.sum()

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        covariance = SeriesCovariance(logs, periods)
        derivatives = [each for _, parts in covariance.terms(lag) for each in parts]
        systems = _systems(covariance, lag, patterns)
        inverse = np.linalg.inv(systems)
        fits = np.einsum("pij,pij->p", inverse, squares)
        score = counts[:, None, None] * inverse - inverse @ squares @ inverse
        inner = np.where(patterns[:, :, None] & patterns[:, None, :], score, 0.0).sum(0)
        gradient = [*(np.sum(inner * each) for each in derivatives), np.trace(inner) * math.exp(logs[-1])]
        value = weight / 2 * float(counts @ np.linalg.slogdet(systems)[1] + fits.sum())
        return value + 0.5 * float(np.sum((logs - start) ** 2)), weight / 2 * np.array(gradient) + logs - start

    bounds = [(at - 6, at + 6) for at in start]
    options: Any = {"maxiter": SERIES.iterations, "ftol": 1e-6}
    best = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return SeriesCovariance(best.x, periods)


def _systems(covariance: SeriesCovariance, lag: FloatArray, patterns: BoolArray) -> FloatArray:
    """Covariance matrices of the observations ``(patterns, slices, slices)``: those of missing ones are identities."""
    whole = covariance(lag) + covariance.noise * np.eye(len(lag))
    both = patterns[:, :, None] & patterns[:, None, :]
    return np.where(both, whole, np.eye(len(lag)))


def condition(
    series: FloatArray, lag: FloatArray, to_target: FloatArray, covariance: SeriesCovariance
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance ``(n,)`` of new measurements, from series ``(n, slices)`` and their lags to the target."""
    known = np.isfinite(series)
    patterns, which = np.unique(known, axis=0, return_inverse=True)
    near = np.where(patterns, covariance(to_target), 0.0)
    parts = [
        np.linalg.solve(_systems(covariance, lag, patterns[k : k + SERIES.batch]), near[k : k + SERIES.batch, :, None])
        for k in range(0, len(patterns), SERIES.batch)
    ]
    weights = np.concatenate(parts)[..., 0]
    prior = float(covariance(np.zeros(1))[0]) + covariance.noise
    variance = np.maximum(prior - (weights * near).sum(1), covariance.noise)
    which = which.ravel()
    return (weights[which] * np.where(known, series, 0.0)).sum(1), variance[which]


def left_out(series: FloatArray, lag: FloatArray, covariance: SeriesCovariance) -> FloatArray:
    """Standardised errors of each observation of series ``(n, slices)``, predicted from the rest of its series."""
    known = np.isfinite(series)
    values = np.where(known, series, 0.0)
    patterns, which = np.unique(known, axis=0, return_inverse=True)
    which, found = which.ravel(), np.empty(series.shape)
    for k in range(0, len(patterns), SERIES.batch):
        # Rasmussen & Williams (2006), equations 5.11 and 5.12
        inverse = np.linalg.inv(_systems(covariance, lag, patterns[k : k + SERIES.batch]))
        here = np.flatnonzero((which >= k) & (which < k + SERIES.batch))
        of_each = inverse[which[here] - k]
        found[here] = (of_each @ values[here][..., None])[..., 0] / np.sqrt(np.einsum("nii->ni", of_each))
    return np.where(known, found, np.nan)


def sizes(errors: FloatArray, every: float) -> FloatArray:
    """The size of the errors ``(n, slices)`` of each cell, NaN where unknown; `every` is the mean square of all."""
    known, common = np.isfinite(errors), SERIES.common_slices
    squares = np.where(known, errors, 0.0) ** 2
    return np.asarray(np.sqrt((common * every + squares.sum(1)) / (common + known.sum(1))))
