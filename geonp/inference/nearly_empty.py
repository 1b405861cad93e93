"""A slice with few observations, predicted from other slices and from these few.

Each cell of the slice is predicted from its own series (:mod:`geonp.inference.series`). The errors of these predictions
are a field in space, whose covariance is estimated from other slices (:mod:`geonp.inference.error_field`). Simple
kriging predicts the errors of the slice from those at its few observations.

The result is combined with the prediction by the model, which is the better one where many cells are observed, and
claims too much where few are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from geonp.inference.error_field import ErrorField, FieldErrors, krige, of_errors, places_of
from geonp.inference.series import SERIES, FittedSeries, condition, left_out, sizes, squares
from geonp.inference.stack import STACK, combined, share_of_error, weight_beside
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray
from geonp.raster.windows import Window


@dataclass(frozen=True)
class NearlyEmptySettings:
    """Settings of the prediction of slices with few observations."""

    max_observed: int = 128
    """Where a slice has as many observations in a square and its frame, half of what the model reads, it is left as it
    is. With up to 256, CRPS beside a strip of NDVI rose by up to 8 %."""
    min_observed: int = 3
    """Cells with fewer observations in other slices are left as they are."""
    few: float = 20.0
    """The variance of the prediction by the model is multiplied by ``1 + (few / n)^2``, for n observations of the slice
    within reach: so few do not determine how well other slices predict (benchmarks/RESULTS.md)."""
    least_error: float = 0.35
    """Lower limit of the standard error of the model, relative to that of the prediction from series. Beside a strip
    without rain, only the other slices show that it may rain."""


NEARLY_EMPTY = NearlyEmptySettings()


@dataclass(frozen=True, eq=False)
class Stacked:
    """A slice with others in a window, NaN where missing.

    Attributes
    ----------
    own : array
        The slice, ``(rows, cols)``.
    others : array
        ``(slices, rows, cols)``.
    lags : array
        Positions of the others relative to that of the slice, ``(slices,)``.
    """

    own: FloatArray
    others: FloatArray
    lags: FloatArray

    def part(self, cells: tuple[slice, slice]) -> Stacked:
        """A part of the window."""
        return Stacked(self.own[cells], self.others[:, *cells], self.lags)


@dataclass(frozen=True, eq=False)
class _Predicted:
    """The prediction of the wanted cells of a window.

    Attributes
    ----------
    outputs : array
        Mean, standard error and tail ``(3, n)``.
    field : ErrorField
        The covariance of the errors.
    context : array
        Numbers of the cells whose errors are known.
    """

    outputs: FloatArray
    field: ErrorField
    context: IntArray


def combine_nearly_empty(
    alone: Float64Array, stack: Stacked, periods: Sequence[float], wanted: BoolArray, window: Window
) -> tuple[Float64Array, list[FieldErrors]]:
    """Combine the predictions of a slice with those from other slices and its few observations.

    Parameters
    ----------
    alone : array
        Mean, standard error and tail ``(3, rows, cols)`` of the wanted cells, as the model predicts them.
    stack : Stacked
    periods, wanted, window
        As of :func:`geonp.inference.series.predict_slice`.

    Returns
    -------
    array
        As `alone`, which is returned where the slice has many observations.
    list of FieldErrors
        The errors of the predictions from other slices, weighted by their shares in those of the combined ones.
    """
    total, weight, every = np.zeros(alone.shape), np.zeros(wanted.shape), np.zeros(wanted.shape)
    numbers, parts = np.arange(wanted.size).reshape(wanted.shape), []
    for near, around, share in squares(stack.others, wanted, window):
        every[near][wanted[near]] += share
        part = np.zeros(wanted.shape, bool)
        part[near] = wanted[near]
        predicted = _predict(stack.part(around), periods, part[around])
        if predicted is not None:
            known = np.isfinite(predicted.outputs[0])
            total[:, *near][:, wanted[near]] += share * np.where(known, predicted.outputs, 0.0)
            weight[near][wanted[near]] += share * known
            context = numbers[around].ravel()[predicted.context]
            if known.any():
                parts.append(FieldErrors(predicted.field, context, numbers[near][wanted[near]][known], share[known]))
    if not weight.any():
        return alone, []
    with np.errstate(invalid="ignore", divide="ignore"):
        beside = np.where(weight > 0, total / weight, np.nan)
        less_certain = alone.copy()
        less_certain[1] = np.maximum(alone[1], NEARLY_EMPTY.least_error * beside[1])
        less_certain[1] *= np.hypot(1, NEARLY_EMPTY.few / np.maximum(_observed_around(stack.own), 1))
        both = np.where(weight > 0, alone + weight / every * (combined(less_certain, beside) - alone), alone)
        used = weight / every * weight_beside(less_certain[1], beside[1])
        share = (share_of_error(less_certain[1], beside[1], used) / weight).ravel()
    return both, [replace(part, weights=part.weights * share[part.targets]) for part in parts]


def errors_of_empty(
    others: FloatArray, lags: FloatArray, periods: Sequence[float], wanted: BoolArray, window: Window
) -> list[FieldErrors]:
    """The errors of cells that :func:`geonp.inference.series.predict_slice` predicts from other slices alone.

    Parameters
    ----------
    others : array
        ``(slices, rows, cols)``, NaN where missing.
    lags : array
        Positions of the others relative to that of the slice, ``(slices,)``.
    periods, wanted, window
        As of :func:`geonp.inference.series.predict_slice`.
    """
    numbers, parts, every = np.arange(wanted.size).reshape(wanted.shape), [], np.zeros(wanted.shape)
    nearest, no_context = np.argsort(np.abs(lags), kind="stable")[: STACK.slices], np.empty(0, np.intp)
    for near, around, share in squares(others, wanted, window):
        if (fitted := FittedSeries.of(others[:, *around], lags, periods)) is not None:
            every[near][wanted[near]] += share
            field, _ = _error_field(fitted, others[nearest][:, *around], lags[nearest])
            parts.append(FieldErrors(field, no_context, numbers[near][wanted[near]], share))
    return [replace(part, weights=part.weights / every.ravel()[part.targets]) for part in parts]


def _predict(stack: Stacked, periods: Sequence[float], wanted: BoolArray) -> _Predicted | None:
    """Predict the wanted cells in a square and its frame.

    None if the slice has many observations there, or the other slices have too few, or do not change.
    """
    if np.count_nonzero(np.isfinite(stack.own)) >= NEARLY_EMPTY.max_observed:
        return None
    fitted = FittedSeries.of(stack.others, stack.lags, periods)
    if fitted is None:
        return None
    field, size = _error_field(fitted, stack.others, stack.lags)
    if size is None:
        return None
    series = _series(fitted, stack.others)
    observed = fitted.standardised(stack.own.ravel().astype(np.float64))
    lag, to_target = fitted.lags(stack.lags, 0.0)
    mean, variance = condition(series, lag, to_target, fitted.covariance)
    enough = np.isfinite(series).sum(1) >= NEARLY_EMPTY.min_observed
    scale = np.sqrt(variance) * size
    context, targets = np.flatnonzero(np.isfinite(observed) & enough), np.flatnonzero(wanted.ravel() & enough)
    known = ((observed - mean) / scale)[context]
    error, spread, tail = krige(known, places_of(context, wanted.shape), places_of(targets, wanted.shape), field)
    found = np.full((3, wanted.size), np.nan)
    found[0, targets] = fitted.loc + fitted.scale * (mean[targets] + scale[targets] * error)
    found[1, targets] = fitted.scale * scale[targets] * spread
    found[2, targets] = tail
    return _Predicted(found[:, wanted.ravel()], field, context)


def _observed_around(own: FloatArray) -> IntArray:
    """Number of observed cells up to :attr:`SeriesSettings.reach_px` rows and columns from each cell of a window."""
    total, ends = np.pad(np.isfinite(own), (1, 0)).cumsum(0).cumsum(1), []
    for n in own.shape:
        cells = np.arange(n)
        ends.append((np.maximum(cells - SERIES.reach_px, 0), np.minimum(cells + SERIES.reach_px + 1, n)))
    (top, bottom), (left, right) = ends
    corners = (bottom, right, 1), (top, right, -1), (bottom, left, -1), (top, left, 1)
    return np.asarray(sum(sign * total[np.ix_(row, col)] for row, col, sign in corners))


def _error_field(fitted: FittedSeries, others: FloatArray, lags: FloatArray) -> tuple[ErrorField, FloatArray | None]:
    """The covariance of the errors of cells of a window, and their sizes; None if there are none, or all are zero.

    Each slice is predicted from the rest.
    """
    series = _series(fitted, others)
    enough = np.isfinite(series).sum(1) >= NEARLY_EMPTY.min_observed
    lag, _ = fitted.lags(lags, 0.0)
    errors = np.where(enough[:, None], left_out(series, lag, fitted.covariance), np.nan)
    known = errors[np.isfinite(errors)]
    every = float(np.mean(known**2)) if known.size else 0.0
    size = sizes(errors, every) if every > 0 else None
    return of_errors(errors if size is None else errors / size[:, None], others.shape[1:]), size


def _series(fitted: FittedSeries, others: FloatArray) -> FloatArray:
    """Standardised series ``(cells, slices)``."""
    return fitted.standardised(others.reshape(len(others), -1).T.astype(np.float64))
