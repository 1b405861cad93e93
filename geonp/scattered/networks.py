"""Measurements of a network at several times, as one process in space and time, see :mod:`geonp.inference.space_time`.

A station without a measurement today is known from its other days, and from its neighbours. In large networks the
predictions of neighbouring squares, each from the stations around it, are blended, as for a single time.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
from dask.delayed import delayed
from scipy.spatial.distance import cdist, pdist

from geonp.inference.censoring import uncensored
from geonp.inference.covariates import Layer, columns
from geonp.inference.kernel import FillJob, result_dtype
from geonp.inference.space_time import PROCESS, Conditioned, Data, SpaceTimeCovariance, fit
from geonp.inference.stitching import blended
from geonp.inference.warping import Warping
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.scattered.across_times import ACROSS_TIMES, Moments
from geonp.scattered.prediction import INTERPOLATION, limited, parts_of
from geonp.scattered.squares import Observations, along_curve, embed, middle_of, project, square_context
from geonp.scattered.targets import Target, crossed


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of the process of a network, chosen on daily maxima at stations, ERA5, and drawn processes."""

    stations: int = 128
    """Largest number of stations that are seen together. With 256, CRPS of networks of 200 was 0 to 14 % higher."""
    context: int = 1024
    """Number of measurements that a time is predicted from. Half of their times are the nearest ones, the others are
    spread over a wider range, ever more sparsely. With 512, or the nearest times alone, CRPS was 1 to 5 % higher."""
    reach: int = 8
    """Width of that range, relative to the number of times."""
    shared: float = 0.125
    """Share of the nearest times that have the same context."""
    kept: int = 16
    """Number of contexts that are kept in memory, of 8 MiB each."""
    fitted: int = 800
    """Number of measurements of each group that determines the covariance. With 400, standard errors were a fifth too
    large in winter."""
    groups: int = 2
    """Number of these groups, which are spread over places and times."""
    together: int = 80
    """Number of neighbouring stations of a group."""
    least_times: int = 4
    """Least number of times that a time is predicted from."""
    few: float = 4.0
    """Standard errors from the `n` measurements of one time are multiplied by ``1 + few / n``, since the covariance of
    few measurements is hardly known."""
    seen: float = 1.15
    """Factor of such standard errors where levels are a covariate: those of stations partly know the measurements that
    they are a covariate of. Without it and the spread of :func:`mixed`, 91 % of the hidden values of drawn networks of
    100 stations were within the 95 % intervals, with both 95 %."""
    least_error: float = 0.5
    """Lower limit of such a standard error, relative to that of the process."""
    least_change: float = 1e-3
    """Lower limit of the standard deviation at a place, relative to that of all measurements."""
    censored: int = 256
    """Number of neighbouring measurements at bounds that are estimated together."""


NETWORK = NetworkSettings()


@dataclass(frozen=True)
class _Units:
    """Mean of the measurements, standard deviation of those at a place, and units of lengths and lags."""

    loc: float
    scale: float
    length: float
    step: float


@dataclass(frozen=True, eq=False)
class _Columns:
    """Covariates in units of their spread, and the variances of their errors ``(n, p)``, 1 where unknown."""

    values: FloatArray
    unknown: FloatArray

    @classmethod
    def none(cls, n: int) -> _Columns:
        return cls(np.zeros((n, 0)), np.zeros((n, 0)))

    @classmethod
    def of(cls, column: FloatArray, loc: FloatArray, scale: FloatArray) -> _Columns:
        """Of values and their standard errors ``(2, n, p)``."""
        missing = np.isnan(column[0])
        errors = np.nan_to_num(column[1] / scale) ** 2
        return cls(np.where(missing, 0.0, (column[0] - loc) / scale), np.where(missing, 1.0, errors))

    def at(self, index: IntArray) -> _Columns:
        return _Columns(self.values[index], self.unknown[index])


class Network:
    """The process of a network.

    Parameters
    ----------
    moments : Moments
        Its measurements.
    job : FillJob
    """

    def __init__(self, moments: Moments, job: FillJob) -> None:
        places = moments.places
        self.parts, self.job, self._periods = moments.parts, job, moments.periods
        self.stations = Observations(places.places, np.zeros(len(places.y)), places.geographic, job.seed)
        self._positions, self._station = np.array(moments.positions), np.concatenate(moments.stations)
        self._time = np.repeat(np.arange(len(self.parts)), [len(part.xy) for part in self.parts])
        found = zip(*(_without_piles(part, job.warping) for part in self.parts), strict=True)
        self._values, self._errors = (np.concatenate(part) for part in found)
        layers = zip(*(part.covariates for part in self.parts), strict=True)
        self._layers: list[Layer] = [reduce(Layer.joined, layer) for layer in layers]
        self._kept = OrderedDict[tuple[bytes, int], tuple[IntArray, IntArray, Conditioned]]()

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        values = np.result_type(np.float32, *(part.values.dtype for part in self.parts))
        return result_dtype(values, self.job)

    def fields(self, target: Target) -> Callable[[int, Sequence[Layer], Any], Any]:
        """The function whose results are those of :meth:`at` at all places of a target, lazy on a lazy grid.

        Its parameters are a time, the covariates there, and the field of the time alone or None.
        """
        chunks = target.template.chunks
        if chunks is None:
            shape = target.template.shape
            return lambda time, covariates, alone: self.at(
                target.places, time, covariates, None if alone is None else alone.ravel()
            ).reshape(shape)
        rows, cols = (da.from_array(a, chunks=c) for a, c in zip((target.y, target.x), chunks, strict=True))
        held = delayed(_with_parameters, pure=False)(self)

        def field(time: int, covariates: Sequence[Layer], alone: Any) -> Any:
            arrays = [array for layer in covariates for array in (layer.values, layer.errors) if array is not None]
            plain = [
                replace(a, values=np.empty(0), errors=a.errors if a.errors is None else np.empty(0)) for a in covariates
            ]
            parts = [rows[:, None], cols[None, :], *arrays, *([] if alone is None else [alone])]
            return da.map_blocks(
                _block, *parts, network=held, time=time, layers=plain, dtype=self._dtype, chunks=chunks
            )

        return field

    def at(
        self, places: Float64Array, time: int, covariates: Sequence[Layer], alone: StructArray | None = None
    ) -> StructArray:
        """Results ``(n,)`` of a time at places ``(n, 2)``, with the covariates there.

        They are averaged with those `alone`, from the measurements of the time.
        """
        total = np.zeros((4, len(places)))
        known, there = self._columns(covariates, len(places))
        for stations, index, weights in self._frames(places):
            found = self._predict(stations, time, places[index], known, there.at(index))
            total[:3, index] += weights * found
            total[3, index] += weights
        out = np.zeros(len(places), self._dtype)
        for name, values in zip(("value", "standard_error", "tail"), blended(total), strict=True):
            out[name] = values
        out["flag"] = FillFlag.FILLED
        out = limited(out, self.parts[time], places, self.job)
        if alone is None:
            return out
        alone = alone.copy()
        # with few measurements, they may be far too small
        alone["standard_error"] *= 1 + NETWORK.few / self.parts[time].values.size
        least = NETWORK.least_error * out["standard_error"]
        alone["standard_error"] = np.fmax(alone["standard_error"], least)
        return mixed(alone, out)

    def measured(self, places: Float64Array) -> BoolArray:
        """Mask ``(n,)`` of places ``(n, 2)`` that are those of stations."""
        distance, _ = self.stations.tree.query(embed(places, self.stations.geographic))
        return np.asarray(distance < PROCESS.same * self._length)

    def levels(self, places: Float64Array, time: int) -> Layer:
        """Levels of places ``(n, 2)``, as far as the measurements around a time tell, and their standard errors."""
        units, _ = self.parameters
        known, _ = self._columns([layer.at(np.arange(0)) for layer in self._layers], 0)
        total = np.zeros((3, len(places)))
        for stations, index, weights in self._frames(places):
            here, _, process = self._conditioned(stations, time, known)
            mean, variance = process.levels(self._distances(here, places[index]))
            total[:2, index] += weights * np.stack([mean * units.scale + units.loc, np.sqrt(variance) * units.scale])
            total[2, index] += weights
        return Layer(*blended(total))

    def _distances(self, stations: IntArray, places: Float64Array) -> Float64Array:
        """Distances ``(m, n)`` in the unit of the process."""
        here, there = (embed(xy, self.stations.geographic) for xy in (self.stations.xy[stations], places))
        return np.asarray(cdist(here, there) / self._length)

    def _frames(self, places: Float64Array) -> Iterator[tuple[IntArray, IntArray, Float64Array]]:
        """Stations that are seen together, and the places that are predicted from them, with blending weights."""
        if len(self.stations.xy) <= NETWORK.stations:
            every, stations = np.arange(len(places)), np.arange(len(self.stations.xy))
            for index in np.array_split(every, -(-every.size // INTERPOLATION.most_targets)):
                yield stations, index, np.ones(index.size)
            return
        thinning = self.job.predictor.neighbourhood.thinning
        for part in parts_of(self.stations, places, NETWORK.stations):
            stations, _ = square_context(self.stations, part.frame, NETWORK.stations, thinning)
            yield np.sort(stations), part.index, part.weights

    def _columns(self, covariates: Sequence[Layer], n: int) -> tuple[_Columns, _Columns]:
        """Covariates at the measurements, and at `n` places."""
        rows = np.arange(len(self._values))
        layers = [a.joined(b) for a, b in zip(self._layers, covariates, strict=True)]
        found = columns(layers, rows, len(rows) + np.arange(n))
        if found is None:
            return _Columns.none(len(rows)), _Columns.none(n)
        known = np.isfinite(found.context[0])
        loc = np.mean(found.context[0], 0, where=known)
        scale = np.std(found.context[0], 0, where=known)
        both = (_Columns.of(part, loc, np.where(scale > 0, scale, 1.0)) for part in (found.context, found.targets))
        return next(both), next(both)

    def _predict(
        self, stations: IntArray, time: int, places: Float64Array, known: _Columns, there: _Columns
    ) -> Float64Array:
        """Mean, standard error and tail ``(3, n)`` from the measurements of some stations."""
        units, covariance = self.parameters
        if covariance is None:
            return np.broadcast_to(np.array([[units.loc], [0.0], [0.0]]), (3, len(places)))
        here, times, process = self._conditioned(stations, time, known)
        lag = np.abs(self._positions[times] - self._positions[time]) / units.step
        mean, variance = process.at(self._distances(here, places), lag, there.values, there.unknown)
        tail = np.full(len(places), 1 / process.n)
        return np.stack([mean * units.scale + units.loc, np.sqrt(variance) * units.scale, tail])

    def _conditioned(self, stations: IntArray, time: int, known: _Columns) -> tuple[IntArray, IntArray, Conditioned]:
        """Places and times of measurements around a time, and the process given these.

        Neighbouring times of few stations share them.
        """
        units, covariance = self.parameters
        assert covariance is not None
        of_time = np.count_nonzero(np.isin(self._station, stations)) / len(np.unique(self._time))
        step = max(1, int(NETWORK.context / max(of_time, 1) * NETWORK.shared))
        middle = min(time // step * step + step // 2, len(self.parts) - 1)
        key = stations.tobytes(), middle
        found = self._kept.get(key)
        if found is None:
            rows = self._around(stations, middle, NETWORK.context)
            process = Conditioned(covariance, self._data(rows, units, known))
            found = np.unique(self._station[rows]), np.unique(self._time[rows]), process
            if len(self._kept) >= NETWORK.kept:
                self._kept.popitem(last=False)
            self._kept[key] = found
        return found

    @cached_property
    def parameters(self) -> tuple[_Units, SpaceTimeCovariance | None]:
        """Units, and the covariance in these; None if all measurements are equal."""
        values = pd.Series(self._values).groupby(self._station)
        freedom = len(self._values) - values.ngroups
        square = np.sum((self._values - values.transform("mean")) ** 2)
        # without a place that is measured twice, changes there are not known
        scale = math.sqrt(square / freedom) if freedom else 0.0
        scale = max(scale, NETWORK.least_change * float(np.std(self._values)))
        step = float(np.median(np.diff(np.unique(self._positions[np.unique(self._time)]))))
        units = _Units(float(self._values.mean()), scale, self._length, step)
        if scale == 0:
            return units, None
        known, _ = self._columns([layer.at(np.arange(0)) for layer in self._layers], 0)
        groups = [self._data(rows, units, known) for rows in self._groups()]
        level = float(np.var(values.mean())) / scale**2
        return units, fit(groups, [period / units.step for period in self._periods], level)

    @cached_property
    def _length(self) -> float:
        """Median distance of stations, of some if there are many."""
        some = np.linspace(0, len(self.stations.xy) - 1, min(len(self.stations.xy), 512)).round().astype(int)
        distances = pdist(embed(self.stations.xy[self._along_curve()[some]], self.stations.geographic))
        return float(np.median(distances[distances > 0])) if (distances > 0).any() else 1.0

    def _along_curve(self) -> IntArray:
        return along_curve(_offset(self.stations), self.stations.values)

    def _groups(self) -> list[IntArray]:
        """Groups of measurements that determine the covariance."""
        order, found = self._along_curve(), []
        n, together = len(order), min(len(order), NETWORK.together)
        for at in np.linspace(0, 1, 2 * NETWORK.groups + 1)[1::2]:
            first = round(at * (n - together))
            chosen = np.sort(order[first : first + together])
            times = np.unique(self._time[np.isin(self._station, chosen)])
            rows = self._around(chosen, int(times[round(at * (times.size - 1))]), NETWORK.fitted)
            if rows.size == len(self._values):
                return [rows]
            found.append(rows)
        return found

    def _around(self, stations: IntArray, time: int, most: int) -> IntArray:
        """Measurements of stations at the nearest times, and at some others of a wider range, about `most`."""
        rows = np.flatnonzero(np.isin(self._station, stations))
        times, which, counts = np.unique(self._time[rows], return_inverse=True, return_counts=True)
        order = np.argsort(np.abs(self._positions[times] - self._positions[time]), kind="stable")
        n = max(NETWORK.least_times, round(most / counts.mean()))
        if n < len(order):
            near, last = n // 2, min(len(order), n * NETWORK.reach) - n // 2
            far = np.unique(np.geomspace(1, last, n - near).round().astype(int)) - 1
            order = np.concatenate([order[:near], order[near:][far]])
        return rows[np.isin(which.ravel(), order)]

    def _data(self, rows: IntArray, units: _Units, known: _Columns) -> Data:
        places, place = np.unique(self._station[rows], return_inverse=True)
        times, time = np.unique(self._time[rows], return_inverse=True)
        xyz, position = embed(self.stations.xy[places], self.stations.geographic), self._positions[times] / units.step
        return Data(
            cdist(xyz, xyz) / units.length,
            np.abs(position[:, None] - position),
            place.ravel(),
            time.ravel(),
            (self._values[rows] - units.loc) / units.scale,
            (self._errors[rows] / units.scale) ** 2,
            known.values[rows],
            known.unknown[rows],
        )


def _with_parameters(network: Network) -> Network:
    """The network, whose parameters are then determined once for all chunks."""
    assert network.parameters
    return network


def _block(
    y: Float64Array, x: Float64Array, *arrays: Any, network: Network, time: int, layers: Sequence[Layer]
) -> StructArray:
    """The results of one chunk of a lazy grid, from values and errors of the covariates, and the field alone if any."""
    flat = (array.ravel() for array in arrays)
    covariates = [
        replace(layer, values=next(flat), errors=None if layer.errors is None else next(flat)) for layer in layers
    ]
    return network.at(crossed(y[:, 0], x[0]), time, covariates, next(flat, None)).reshape(len(y), x.shape[1])


def _offset(observations: Observations) -> Float64Array:
    """Offsets of observations from their middle."""
    x, y = middle_of(observations) if observations.geographic else observations.xy.mean(0)
    return project(observations.xy, (float(x), float(y)), observations.geographic)


def _without_piles(part: Observations, warping: Warping | None) -> tuple[Float64Array, Float64Array]:
    """Values and standard errors of the measurements of a time, with estimates of censored ones."""
    values = part.values.astype(np.float64)
    errors = np.zeros(len(values)) if part.errors is None else part.errors.astype(np.float64)
    if warping is None or not len(values):
        return values, errors
    offset = _offset(part)
    order = along_curve(offset, part.values)
    for group in np.array_split(order, -(-order.size // NETWORK.censored)):
        values[group], found = uncensored(values[group], offset[group], warping)
        if found is not None:
            errors[group] = found + np.where(found > 0, 0.0, errors[group])
    return values, errors


def mixed(alone: StructArray, across: StructArray) -> StructArray:
    """Weighted means of two fields, without an edge where one becomes better than the other.

    The standard error is the mean of both, because the errors of one place are correlated, and the spread of the two
    values is added, as in a mixture.
    """
    own, other = (field["standard_error"].astype(np.float64) ** ACROSS_TIMES.power for field in (alone, across))
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = np.nan_to_num(own / (own + other))
    out = alone.copy()
    for name in ("value", "standard_error", "tail"):
        # the exact values at both ends, also where one of them is not finite
        both = (1 - weight) * alone[name] + weight * across[name]
        out[name] = np.where(weight == 0, alone[name], np.where(weight == 1, across[name], both))
    apart = np.where((weight > 0) & (weight < 1), across["value"] - alone["value"], 0.0)
    out["standard_error"] = np.hypot(out["standard_error"], np.sqrt(weight * (1 - weight)) * apart)
    return out
