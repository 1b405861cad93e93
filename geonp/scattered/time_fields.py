"""Fields of several times: each from its own measurements and, where others know more, from those around it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

import dask.array as da
import numpy as np

from geonp.inference.covariates import Layer
from geonp.inference.kernel import FillJob, as_read
from geonp.inference.stack import beside
from geonp.raster.arrays import Float64Array, FloatArray, IntArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.scattered.across_times import ACROSS_TIMES, Asked, Moments, steady
from geonp.scattered.prediction import Question, answered, limited, predicted
from geonp.scattered.repeats import numbers_of_places
from geonp.scattered.squares import Observations
from geonp.scattered.targets import Target, of_places

MOMENTS = "value", "standard_error"
"""Fields of a result that other times use."""

Known = tuple[Any, Any]
"""Values and standard errors at places, NaN where unknown."""


def predicted_across(
    asked: Asked,
    moments: Moments,
    target: Target,
    layers: Sequence[Layer],
    job: FillJob,
    progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Results of :func:`~geonp.scattered.prediction.predicted` in the shape of ``asked.template(target)``.

    Times with too few measurements stay empty, but others use them. `layers` are the covariates of the target.
    """
    of_times = _on_grid if target.on_grid else _at_places
    found: list[Any] = []
    for parts in of_times(asked, moments, target, layers, job):
        found += parts
        if progress is not None:
            progress(len(found), asked.wanted.size)
    if target.template.chunks is not None:
        return da.stack(found)
    if asked.place_times is None:
        return np.stack(found).reshape(-1, *target.template.shape)
    out = np.empty(len(asked.place_times), found[0].dtype)
    for index, values in zip(asked.rows(target).values(), found, strict=True):
        out[index] = values
    return out


def _on_grid(
    asked: Asked, moments: Moments, target: Target, layers: Sequence[Layer], job: FillJob
) -> Iterator[list[Any]]:
    """The field of each wanted time, one by one."""
    inner = replace(job, max_distance=None)
    stations = _AtStations(moments, {}, moments.places, moments.layers, asked.wanted, inner)

    @lru_cache(2 * max(ACROSS_TIMES.windows))
    def alone(time: int) -> Any:
        return predicted(target, moments.parts[time], layers, inner)

    def known(time: int) -> Known:
        found = alone(time) if moments.usable(time, job) else _empty(target, moments.parts[time])
        return tuple(_flat(found[name], target) for name in MOMENTS)

    for time in asked.wanted.tolist():
        part = moments.parts[time]
        if not moments.usable(time, job):
            yield [_empty(target, part)]
            continue
        own = alone(time) if job.max_distance is None else predicted(target, part, layers, job)
        windows = _windows(moments, time)
        if not windows:
            yield [own]
            continue
        if window := _pooled_times(moments, time, job):
            pool = _pooled(moments, window)
            (near_pool,) = answered([Question(part.xy, pool, part.covariates)], inner)
            there_pool = predicted(target, pool, layers, inner)
            changed = predicted(target, _differences(part, near_pool), layers, inner)
            yield [_blockwise(_summed, target, own, there_pool, changed)]
            continue
        stations.find([time, *windows[-1]])
        at_stations = [[stations.at(other, moments.stations[time]) for other in window] for window in windows]
        change = _change(part.values, at_stations[-1])
        near = [_mean(of, change) for of in at_stations]
        there = [_mean([known(other) for other in window], change) for window in windows]
        ratio = _excess(near[-1].errors, there[-1].errors) / _flat(own["standard_error"], target)
        part = replace(part, covariates=(*part.covariates, *near))
        across = predicted(target, part, (*layers, *there), job)
        yield [_blockwise(_mixed, target, own, across, ratio.reshape(own.shape))]


def _at_places(
    asked: Asked, moments: Moments, target: Target, layers: Sequence[Layer], job: FillJob
) -> Iterator[list[StructArray]]:
    """The results of each wanted time, at its places, of several times together."""
    rows = asked.rows(target)
    stations = _AtStations(moments, rows, target, layers, asked.wanted, replace(job, max_distance=None))
    together = max(1, min(ACROSS_TIMES.together, ACROSS_TIMES.most_places // len(target.places)))
    for first in range(0, asked.wanted.size, together):
        times = asked.wanted[first : first + together].tolist()
        moving = {time: window for time in times if (window := _pooled_times(moments, time, job))}
        windows = {time: [] if time in moving else _windows(moments, time) for time in times}
        stations.find([*times, *(other for of in windows.values() for window in of[-1:] for other in window)])
        out, questions, mixed = {}, [], []
        for time in times:
            part, index = moments.parts[time], rows[time]
            if not moments.usable(time, job):
                out[time] = _empty(of_places(target.places[index], geographic=target.geographic), part)
                continue
            out[time] = own = limited(stations.alone(time), part, target.places[index], job)
            if not windows[time]:
                continue
            at_stations, at_places = (
                [[stations.at(other, at) for other in window] for window in windows[time]]
                for at in (moments.stations[time], stations.number[index])
            )
            change = _change(part.values, at_stations[-1])
            near, there = ([_mean(of, change) for of in at] for at in (at_stations, at_places))
            ratio = _excess(near[-1].errors, there[-1].errors) / own["standard_error"]
            part = replace(part, covariates=(*part.covariates, *near))
            questions.append(Question(target.places[index], part, [*(layer.at(index) for layer in layers), *there]))
            mixed.append((time, ratio))
        for (time, ratio), across in zip(mixed, answered(questions, job), strict=True):
            out[time] = _mixed(out[time], across, ratio)
        for time, (others, changed) in _changed_at(moving, moments, target, rows, layers, job).items():
            out[time] = _summed(out[time], others, changed)
        yield [*out.values()]


def _changed_at(
    moving: dict[int, list[int]],
    moments: Moments,
    target: Target,
    rows: dict[int, IntArray],
    layers: Sequence[Layer],
    job: FillJob,
) -> dict[int, tuple[StructArray, StructArray]]:
    """At the places of some times, what the other times of their windows give, and the field of the differences."""
    pooled, differences = [], []
    for time, window in moving.items():
        part, index = moments.parts[time], rows[time]
        columns = [a.joined(b.at(index)) for a, b in zip(part.covariates, layers, strict=True)]
        pooled.append(Question(np.concatenate([part.xy, target.places[index]]), _pooled(moments, window), columns))
    given = []
    for time, both in zip(moving, answered(pooled, replace(job, max_distance=None)), strict=True):
        part, index = moments.parts[time], rows[time]
        near, there = both[: len(part.xy)], both[len(part.xy) :]
        given.append(there)
        columns = [layer.at(index) for layer in layers]
        differences.append(Question(target.places[index], _differences(part, near), columns))
    return dict(zip(moving, zip(given, answered(differences, job), strict=True), strict=True))


def _pooled_times(moments: Moments, time: int, job: FillJob) -> list[int]:
    """The nearest other times, where few places of a time are measured at others, as of swaths and buoys; else none."""
    others = next(iter(_windows(moments, time)[-1:]), [])
    if not others or not moments.usable(time, job):
        return []
    known = np.concatenate([moments.stations[other] for other in others])
    nearest = beside(time, moments.positions, min(ACROSS_TIMES.pooled, len(others)))
    enough = sum(moments.parts[other].values.size for other in nearest) >= job.predictor.neighbourhood.min_context
    moving = np.isin(moments.stations[time], known).mean() < ACROSS_TIMES.fixed
    return nearest if enough and moving else []


def _pooled(moments: Moments, times: Sequence[int]) -> Observations:
    """The measurements of several times as those of one."""
    parts = [moments.parts[time] for time in times]
    errors = [part.errors for part in parts if part.errors is not None]
    covariates = [reduce(Layer.joined, columns) for columns in zip(*(part.covariates for part in parts), strict=True)]
    return replace(
        parts[0],
        xy=np.concatenate([part.xy for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        covariates=tuple(covariates),
        errors=np.concatenate(errors) if errors else None,
    )


def _differences(part: Observations, others: StructArray) -> Observations:
    """Differences of measurements from what other times give at their places, with the errors of both."""
    own = 0.0 if part.errors is None else part.errors
    errors = np.hypot(others["standard_error"].astype(np.float64), own)
    return replace(part, values=(part.values - others["value"]).astype(part.values.dtype), errors=errors)


def _summed(alone: StructArray, others: StructArray, changed: StructArray) -> StructArray:
    """The field of other times and that of the differences from it, in a weighted mean with a field `alone`."""
    across = changed.copy()
    across["value"] = others["value"] + changed["value"]
    across["standard_error"] = np.hypot(others["standard_error"], changed["standard_error"])
    return _mixed(alone, across)


def _blockwise(function: Callable[..., Any], target: Target, *fields: Any) -> Any:
    """A function of fields at a target, lazy on a lazy grid."""
    if target.template.chunks is None:
        return function(*fields)
    return da.map_blocks(function, *fields, dtype=fields[0].dtype)


def _windows(moments: Moments, time: int) -> list[list[int]]:
    """The other times of each window, the largest last; none if all of their places are measured at the time itself."""
    sizes = sorted({min(window, len(moments.parts) - 1) for window in ACROSS_TIMES.windows} - {0})
    windows = [beside(time, moments.positions, size) for size in sizes]
    others = (moments.stations[other] for window in windows[-1:] for other in window)
    return windows if any(np.setdiff1d(other, moments.stations[time]).size for other in others) else []


class _AtStations:
    """What each time alone knows at the stations and at the places of a table that the times around it need.

    Attributes
    ----------
    number : array of int
        The number of each place of the table. Numbers of stations come first.
    """

    def __init__(
        self,
        moments: Moments,
        rows: dict[int, IntArray],
        target: Target,
        layers: Sequence[Layer],
        wanted: IntArray,
        job: FillJob,
    ) -> None:
        self.moments, self.rows, self.target, self.layers, self.job = moments, rows, target, layers, job
        n = len(moments.places.y)
        self._xy, self._layers, self.number = moments.places.places, moments.layers, np.arange(0)
        if rows:
            every, first = np.concatenate([self._xy, target.places]), np.arange(n)
            number = numbers_of_places(every, moments.places.geographic)
            first = np.unique(number, return_index=True)[1]
            self._xy, self.number = every[first], number[n:]
            new = [steady(layer, self.number, len(first)).at(np.arange(n, len(first))) for layer in layers]
            self._layers = [of_station.joined(layer) for of_station, layer in zip(moments.layers, new, strict=True)]
        self._needed: dict[int, list[IntArray]] = {}
        for time in wanted.tolist():
            here = [moments.stations[time], *([self.number[rows[time]]] if rows else [])]
            windows = [] if _pooled_times(moments, time, job) else _windows(moments, time)[-1:]
            for other in next(iter(windows), []):
                self._needed.setdefault(other, []).extend(here)
        self._kept = OrderedDict[int, tuple[Float64Array, Float64Array, StructArray | None]]()

    def find(self, times: Sequence[int]) -> None:
        """Predict at some times, unless that is done, in shared batches."""
        new = [time for time in dict.fromkeys(times) if time not in self._kept]
        questions, asked = [], []
        for time in new:
            part, rows = self.moments.parts[time], self.rows.get(time, np.arange(0))
            count = np.bincount(self.moments.stations[time], minlength=len(self._xy))
            with np.errstate(invalid="ignore"):
                values = np.bincount(self.moments.stations[time], part.values, len(self._xy)) / count
            errors = np.zeros(len(self._xy))
            self._kept[time] = values, errors, None
            needed = np.zeros(len(self._xy), bool)
            for index in self._needed.get(time, []):
                needed[index] = True
            unknown = np.flatnonzero(needed & (count == 0))
            if unknown.size + rows.size and self.moments.usable(time, self.job):
                places = np.concatenate([self._xy[unknown], self.target.places[rows]])
                there = [a.at(unknown).joined(b.at(rows)) for a, b in zip(self._at(rows), self.layers, strict=True)]
                questions.append(Question(places, part, there))
                asked.append((time, unknown))
        for (time, unknown), found in zip(asked, answered(questions, self.job), strict=True):
            values, errors, _ = self._kept[time]
            values[unknown], errors[unknown] = (found[name][: unknown.size] for name in MOMENTS)
            self._kept[time] = values, errors, found[unknown.size :]
        for time in times:
            self._kept.move_to_end(time)
        while len(self._kept) > max(2 * max(ACROSS_TIMES.windows), len(set(times))):
            self._kept.popitem(last=False)

    def _at(self, rows: IntArray) -> list[Layer]:
        """The covariates at all places, at a time that these rows of the table to predict are of."""
        found = []
        for layer, of_rows in zip(self._layers, self.layers, strict=True):
            values = layer.values.copy()
            if rows.size:
                changing = rows[np.isnan(values[self.number[rows]])]
                values[self.number[changing]] = of_rows.values[changing]
            found.append(replace(layer, values=values))
        return found

    def at(self, time: int, index: IntArray) -> Known:
        """Value and standard error at some places: the mean of the measurements there, or a prediction."""
        values, errors, _ = self._kept[time]
        return values[index], errors[index]

    def alone(self, time: int) -> StructArray:
        """The prediction at the places of a time from its own measurements."""
        found = self._kept[time][2]
        assert found is not None
        return found


def _excess(near: Any, there: Any) -> Any:
    """Standard errors of the mean of other times at a target beyond those of a quarter of the measurements, `near`.

    They are at least the latter: where hardly any measurement has a mean that is known, no regression on it is.
    """
    known = near[np.isfinite(near)]
    usual = float(np.quantile(known, ACROSS_TIMES.usual)) ** 2 if known.size else 0.0
    return np.sqrt(np.maximum(there**2 - usual, usual))


def _mixed(alone: StructArray, across: StructArray, ratio: FloatArray | None = None) -> StructArray:
    """Weighted means of two fields, without an edge where one becomes better than the other.

    `ratio` is that of :attr:`TimeSettings.better`. Where other times know a place hardly better than its own time, this
    bounds what follows from them: the errors of their means are one error. The standard error is the mean of both,
    because the errors of one place are correlated.
    """
    if ratio is not None:
        least = np.fmin(ratio, 1.0) * alone["standard_error"]
        across = across.copy()
        across["standard_error"] = np.where(least > across["standard_error"], least, across["standard_error"])
    none, all_ = ACROSS_TIMES.better
    own, other = (field["standard_error"].astype(np.float64) ** ACROSS_TIMES.power for field in (alone, across))
    with np.errstate(invalid="ignore", divide="ignore"):
        sure = own / (own + other)
        known = 0.0 if ratio is None else np.clip((none - ratio) / (none - all_), 0.0, 1.0)
    weight = 1 - (1 - np.nan_to_num(sure)) * (1 - np.nan_to_num(known))
    out = alone.copy()
    for name in (*MOMENTS, "tail"):
        # the exact values at both ends, also where one of them is not finite
        both = (1 - weight) * alone[name] + weight * across[name]
        out[name] = np.where(weight == 0, alone[name], np.where(weight == 1, across[name], both))
    return out


def _change(now: FloatArray, of: Sequence[Known]) -> float:
    """Mean square of the differences between measurements and the values of other times there, beyond their errors.

    A difference ``d`` with the standard error ``e`` has the weight ``(change + e**2)**-2``, the inverse of the variance
    of ``d**2`` up to a factor.
    """
    values, errors = (np.stack(part) for part in zip(*of, strict=True))
    known = np.isfinite(values)
    square, variance = ((values - now)[known] ** 2).astype(np.float64), errors[known].astype(np.float64) ** 2
    least = max(ACROSS_TIMES.least_change * float(np.var(now)), float(np.finfo(np.float32).tiny))
    change = max(float(square.mean()), least) if square.size else least
    for _ in range(ACROSS_TIMES.steps):
        weight = (change / (change + variance)) ** 2
        change = max(float((weight * (square - variance)).sum() / weight.sum()), least) if square.size else least
    return change


def _mean(of: Sequence[Known], change: float) -> Layer:
    """The mean of the values of several times, where they are known, and its standard error.

    The weights are inverse variances, to which the `change` from one time to another is added: a measurement of another
    day has a larger weight than an extrapolation. Errors of one place at several times are taken as equal, because the
    same stations are far away.
    """
    values, errors = (np.stack(part) for part in zip(*of, strict=True))
    known = np.isfinite(values)
    square = np.where(known, errors, 0.0) ** 2
    weight = np.where(known, change / (change + square), 0.0)
    share = weight / np.where(known.any(0), weight.sum(0), np.nan)
    error = np.sqrt((share**2 * square).sum(0) * (known & (errors > 0)).sum(0))
    return Layer((share * np.where(known, values, 0.0)).sum(0), error)


def _flat(array: Any, target: Target) -> Any:
    """The array in the shape of predictions: that of a lazy grid, otherwise ``(n,)``."""
    return array.ravel() if target.template.chunks is None else array


def _empty(target: Target, part: Observations) -> Any:
    """A field without values."""
    empty = as_read(np.full((), np.nan, np.result_type(part.values.dtype, np.float32)), FillFlag.BEYOND_LIMIT)
    chunks = target.template.chunks
    if chunks is None:
        return np.broadcast_to(empty, target.template.shape)
    return da.full(target.template.shape, empty, dtype=empty.dtype, chunks=chunks)
