"""Measurements of several times: a field for each, which profits from those of the times around it.

A station that has no measurement today is known from its other days: from what is usual there, and from yesterday.
Means of the nearest times, over short and long windows, are covariates of a time, as elevation would be. Where a place
has no measurement, its value in the field of that time alone stands in, with its standard error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError
from geonp.inference.covariates import Layer
from geonp.inference.kernel import FillJob, result_dtype
from geonp.inference.stack import beside
from geonp.raster.arrays import Float64Array, FloatArray, IntArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.raster.times import Times
from geonp.scattered.prediction import predicted
from geonp.scattered.repeats import numbers_of_places
from geonp.scattered.squares import Observations
from geonp.scattered.targets import Target, of_places


@dataclass(frozen=True)
class TimeSettings:
    """Settings of the use of other times, chosen on two months of 1991 of daily maxima at stations."""

    windows: tuple[int, ...] = (2, 8, 32)
    """Numbers of nearest times whose means are covariates. With the eight alone, CRPS was 5 % higher."""
    better: tuple[float, float] = (0.84, 0.59)
    """Ratios to the standard error of the time itself between which the weight of other times rises from 0 to 1, of the
    standard error of their mean beyond that which it has at the measurements. A regression on it holds where it is as
    certain as there: at other days of a station, or where swaths of other days are as near as to those of the day."""


ACROSS_TIMES = TimeSettings()

MOMENTS = "value", "standard_error"
"""Fields of a result that other times use."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Which times are predicted where.

    Attributes
    ----------
    name : str
        Name of the dimension or coordinate of times.
    times : Times
        Those of the measurements.
    wanted : array of int
        Those that are predicted, as indices.
    place_times : array of int or None
        The time of each place of a table that has times, else None: all places are predicted at all times.
    """

    name: str
    times: Times
    wanted: IntArray
    place_times: IntArray | None

    @classmethod
    def of(cls, name: str, at_times: Sequence[Any] | None, times: Times, target: Target) -> Asked:
        """Times of a table that are predicted at a target; same parameters as :func:`geonp.interpolate`."""
        if target.table is None or name not in target.table.others:
            wanted = np.arange(len(times.values)) if at_times is None else times.index(at_times, "at_times")
            return cls(name, times, wanted, None)
        if at_times is not None:
            raise InputError(f"the table at has the times {name!r}: leave at_times out, or drop this column")
        place_times = times.index(target.table.others[name].tolist(), f"column {name!r} of the table at")
        return cls(name, times, np.unique(place_times), place_times)

    @property
    def maps(self) -> int:
        """Number of results for each place."""
        return self.wanted.size if self.place_times is None else 1

    def template(self, target: Target) -> xr.DataArray:
        """The dimensions and coordinates of the result."""
        if self.place_times is not None:
            return target.template.assign_coords({self.name: ("point", self.times.values[self.place_times])})
        return target.template.expand_dims({self.name: self.times.values[self.wanted]})

    def predicted(self, moments: Moments, target: Target, layers: Sequence[Layer], job: FillJob) -> Any:
        """Results in the shape of :meth:`template`; `layers` are the covariates of the target."""
        if self.place_times is None:
            of = target, layers
            found = fields(moments, self.wanted, lambda _: of, job)
            return (np if target.template.chunks is None else da).stack(found)
        rows = {int(time): np.flatnonzero(self.place_times == time) for time in self.wanted}

        def target_of(time: int) -> tuple[Target, list[Layer]]:
            index = rows[time]
            places = of_places(target.places[index], geographic=target.geographic)
            return places, [layer.at(index) for layer in layers]

        found = fields(moments, self.wanted, target_of, job)
        out = np.empty(len(self.place_times), found[0].dtype)
        for index, values in zip(rows.values(), found, strict=True):
            out[index] = values
        return out


@dataclass(frozen=True, eq=False)
class Moments:
    """Measurements of a column, at all times.

    Attributes
    ----------
    parts : list of Observations
        Those of each time, with the covariates given by the user.
    stations : list of array of int
        The place of each measurement, as an index into `places`.
    places : Target
        All places with a measurement.
    layers : sequence of Layer
        Covariates there.
    positions : tuple of float
        Positions of the times.
    """

    parts: list[Observations]
    stations: list[IntArray]
    places: Target
    layers: Sequence[Layer]
    positions: tuple[float, ...]

    @classmethod
    def of(cls, parts: Sequence[Observations], times: Times) -> Moments:
        """From the measurements of each time. Covariates at a place are those of its first row that knows them."""
        xy, geographic = np.concatenate([part.xy for part in parts]), parts[0].geographic
        station = numbers_of_places(xy, geographic)
        first = np.unique(station, return_index=True)[1]
        layers = []
        for columns in zip(*(part.covariates for part in parts), strict=True):
            values = pd.Series(np.concatenate([layer.values for layer in columns])).groupby(station).first()
            layers.append(replace(columns[0], values=values.to_numpy()))
        ends = np.cumsum([len(part.xy) for part in parts])[:-1]
        places = of_places(xy[first], geographic=geographic)
        return cls(list(parts), np.split(station, ends), places, layers, times.positions())

    def usable(self, time: int, job: FillJob) -> bool:
        """Whether a time has enough measurements for a field."""
        return self.parts[time].values.size >= job.predictor.neighbourhood.min_context


def fields(
    moments: Moments, wanted: IntArray, target_of: Callable[[int], tuple[Target, Sequence[Layer]]], job: FillJob
) -> list[Any]:
    """The results of :func:`~geonp.scattered.prediction.predicted` at some of the times.

    Times with too few measurements stay empty, but others use them.

    Parameters
    ----------
    moments : Moments
    wanted : array of int
        The times, as indices.
    target_of : callable
        Where to predict a time, and the covariates there.
    job : FillJob
    """
    inner = replace(job, max_distance=None)
    at_stations = _Recent(lambda time, _: _at_stations(moments, time, inner))
    alone = _Recent(lambda time, of: predicted(of[0], moments.parts[time], of[1], inner))
    at_target = _Recent(lambda time, of: _at_target(moments, time, of, at_stations, alone, inner))
    found = []
    for time, of in ((int(time), target_of(int(time))) for time in wanted):
        if moments.usable(time, job):
            # of a grid, other times use it, too
            own = alone(time, of) if job.max_distance is None else predicted(of[0], moments.parts[time], of[1], job)
            found.append(_field(moments, time, of, own, at_stations, at_target, job))
        else:
            found.append(_empty(of[0], moments.parts[time]))
    return found


class _Recent:
    """Results of a function of a time and a target, of which the recent ones are kept."""

    def __init__(self, function: Callable[[int, Any], Any]) -> None:
        self._function, self._kept = function, OrderedDict[tuple[int, int], tuple[Any, Any]]()

    def __call__(self, time: int, of: Any = None) -> Any:
        key = time, id(of)
        if key not in self._kept:
            # the target is kept, too, so that no other one gets its id
            self._kept[key] = of, self._function(time, of)
            if len(self._kept) > 2 * max(ACROSS_TIMES.windows):
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key][1]


def _at_stations(moments: Moments, time: int, job: FillJob) -> tuple[Float64Array, Float64Array]:
    """Value and standard error at all places: the mean of the measurements, or a prediction from this time alone."""
    part, size = moments.parts[time], len(moments.places.y)
    count = np.bincount(moments.stations[time], minlength=size)
    with np.errstate(invalid="ignore"):
        values = np.bincount(moments.stations[time], part.values, size) / np.where(count, count, np.nan)
    errors, unknown = np.zeros(size), np.flatnonzero(count == 0)
    if unknown.size and moments.usable(time, job):
        places = of_places(moments.places.places[unknown], geographic=moments.places.geographic)
        found = predicted(places, part, [layer.at(unknown) for layer in moments.layers], job)
        values[unknown], errors[unknown] = found["value"], found["standard_error"]
    return values, errors


def _at_target(
    moments: Moments,
    time: int,
    of: tuple[Target, Sequence[Layer]],
    at_stations: _Recent,
    alone: _Recent,
    job: FillJob,
) -> tuple[Any, Any]:
    """Value and standard error at the places of a target: those of a station there, or a prediction."""
    target, layers = of
    usable = moments.usable(time, job)
    if target.on_grid and not usable:
        empty = _empty(target, moments.parts[time])
        return tuple(_flat(empty[name], target) for name in MOMENTS)
    if target.on_grid:
        found = alone(time, of)
        return tuple(_flat(found[name], target) for name in MOMENTS)
    size = len(moments.places.y)
    station = numbers_of_places(np.concatenate([moments.places.places, target.places]), moments.places.geographic)[
        size:
    ]
    elsewhere = np.flatnonzero(station >= size)
    values, errors = (array[station.clip(max=size - 1)] for array in at_stations(time))
    values[elsewhere] = np.nan
    if elsewhere.size and usable:
        places = of_places(target.places[elsewhere], geographic=target.geographic)
        found = predicted(places, moments.parts[time], [layer.at(elsewhere) for layer in layers], job)
        values[elsewhere], errors[elsewhere] = found["value"], found["standard_error"]
    return values, errors


def _field(
    moments: Moments,
    time: int,
    of: tuple[Target, Sequence[Layer]],
    alone: Any,
    at_stations: _Recent,
    at_target: _Recent,
    job: FillJob,
) -> Any:
    """The field of a time from its own measurements, `alone`, and where others know more, from those around it."""
    target, layers = of
    part, lazy = moments.parts[time], target.template.chunks is not None
    near, there = [], []
    for window in sorted({min(window, len(moments.parts) - 1) for window in ACROSS_TIMES.windows} - {0}):
        others = beside(time, moments.positions, window)
        near.append(_mean([at_stations(other) for other in others]).at(moments.stations[time]))
        there.append(_mean([at_target(other, of) for other in others]))
    if not there:
        return alone
    ratio = _excess(near[-1].errors, there[-1].errors) / _flat(alone["standard_error"], target)
    if not lazy and not (ratio < ACROSS_TIMES.better[0]).any():
        return alone
    across = predicted(target, replace(part, covariates=(*part.covariates, *near)), (*layers, *there), job)
    if lazy:
        return da.map_blocks(_mixed, alone, across, ratio, dtype=alone.dtype)
    return _mixed(alone, across, ratio.reshape(alone.shape))


def _excess(near: Any, there: Any) -> Any:
    """Standard errors of the mean of other times at a target beyond their rms at the measurements, `near`."""
    known = near[np.isfinite(near)]
    usual = float(np.mean(known**2)) if known.size else 0.0
    return np.sqrt(np.maximum(there**2 - usual, 0.0))


def _mixed(alone: StructArray, across: StructArray, ratio: FloatArray) -> StructArray:
    """Weighted means of two fields, without an edge where one replaces the other.

    `ratio` is that of :attr:`TimeSettings.better`. The standard error is the mean of both, because the errors of one
    place are correlated.
    """
    none, all_ = np.log(ACROSS_TIMES.better)
    with np.errstate(divide="ignore"):
        share = np.clip((np.log(ratio) - none) / (all_ - none), 0.0, 1.0)
    weight = np.where(np.isfinite(ratio), share**2 * (3 - 2 * share), 0.0)
    out = alone.copy()
    for name in (*MOMENTS, "tail"):
        # the exact values at both ends, also where one of them is not finite
        both = (1 - weight) * alone[name] + weight * across[name]
        out[name] = np.where(weight == 0, alone[name], np.where(weight == 1, across[name], both))
    return out


def _mean(of: Sequence[tuple[Any, Any]]) -> Layer:
    """The mean of the values of several times, where they are known, and its standard error.

    Errors of one place at several times are taken as equal: it is the same stations that are far away.
    """
    values, errors = (np.stack(part) for part in zip(*of, strict=True))
    known = np.isfinite(values)
    count = np.where(known.any(0), known.sum(0), np.nan)
    square = np.where(known, errors**2, 0.0).sum(0) * (known & (errors > 0)).sum(0) / count**2
    return Layer(np.where(known, values, 0.0).sum(0) / count, np.sqrt(square))


def _flat(array: Any, target: Target) -> Any:
    """The array in the shape of predictions: that of a lazy grid, otherwise ``(n,)``."""
    return array.ravel() if target.template.chunks is None else array


def _empty(target: Target, part: Observations) -> Any:
    """A field without values."""
    empty = np.zeros((), result_dtype(np.result_type(part.values.dtype, np.float32)))
    for name in (*MOMENTS, "tail"):
        empty[name] = np.nan
    empty["flag"] = FillFlag.BEYOND_LIMIT
    chunks = target.template.chunks
    if chunks is None:
        return np.broadcast_to(empty, target.template.shape)
    return da.full(target.template.shape, empty, dtype=empty.dtype, chunks=chunks)
