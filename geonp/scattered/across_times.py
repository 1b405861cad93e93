"""Measurements of several times: a field for each, which profits from those of the times around it.

A station that has no measurement today is known from its other days: those of a network are one process in space and
time, see :mod:`geonp.scattered.networks`.

Swaths and drifting buoys measure other places each time. All other measurements of the window make one field, and the
differences of a time from it another: their sum is the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.inference.kernel import FillJob
from geonp.raster.arrays import IntArray
from geonp.raster.positions import times_along
from geonp.raster.times import Times
from geonp.scattered.repeats import numbers_of_places
from geonp.scattered.squares import Observations
from geonp.scattered.targets import Target, of_places


@dataclass(frozen=True)
class TimeSettings:
    """Settings of the use of other times, chosen on two months of 1991 of daily maxima at stations."""

    together: int = 16
    """Number of times that are predicted together at places: their tiles share batches."""
    most_places: int = 2**18
    """Largest number of places of these times."""
    fixed: float = 0.5
    """Smallest share of measurements whose places are measured at other times, too, in a network."""
    most_stations: int = 2**14
    """Largest number of places of a network, which takes more time for each than swaths do."""
    pooled: int = 8
    """Number of nearest times whose measurements make one field where places move."""
    power: int = 4
    """The weights of the field of a time alone and of that of other times are as these powers of the inverse standard
    errors. With a threshold, fields had edges of up to 4 K over the pole, where the swaths of all days end at one
    place."""


ACROSS_TIMES = TimeSettings()


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
            if at_times is None:
                return cls(name, times, np.arange(len(times.values)), None)
            asked = _listed(at_times)
            times = times.including(asked, "at_times")
            return cls(name, times, times.within(asked, "at_times"), None)
        if at_times is not None:
            raise InputError(f"the table at has the times {name!r}: leave at_times out, or drop this column")
        asked, column = target.table.others[name].tolist(), f"column {name!r} of the table at"
        times = times.including(asked, column)
        place_times = times.index(asked, column)
        return cls(name, times, np.unique(place_times), place_times)

    @property
    def maps(self) -> int:
        """Number of results for each place."""
        return self.wanted.size if self.place_times is None else 1

    def template(self, target: Target) -> xr.DataArray:
        """The dimensions and coordinates of the result."""
        values, attrs = self.times.values, dict(self.times.attrs)
        if self.place_times is not None:
            return target.template.assign_coords({self.name: ("point", values[self.place_times], attrs)})
        template = target.template.expand_dims({self.name: self.wanted.size})
        return template.assign_coords({self.name: (self.name, values[self.wanted], attrs)})

    def rows(self, target: Target) -> dict[int, IntArray]:
        """The places of a target that are predicted at each of the wanted times, as indices."""
        if self.place_times is None:
            every = np.arange(len(target.places))
            return dict.fromkeys(self.wanted.tolist(), every)
        return {time: np.flatnonzero(self.place_times == time) for time in self.wanted.tolist()}


def _listed(at_times: Any) -> Sequence[Any]:
    """Times one by one; those of an array of xarray as their units say."""
    if not isinstance(at_times, xr.DataArray):
        return [at_times] if isinstance(at_times, str) else at_times
    values, times = at_times.values.ravel(), None
    if " since " in str(at_times.attrs.get("units")):
        coordinate = ("time", values, at_times.attrs)
        times = times_along(xr.DataArray(values, {"time": coordinate}, "time"), "time")
    return list(values if times is None else times)


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
    positions : tuple of float
        Positions of the times.
    periods : tuple of float
        Periods that these span.
    """

    parts: list[Observations]
    stations: list[IntArray]
    places: Target
    positions: tuple[float, ...]
    periods: tuple[float, ...]

    @classmethod
    def of(cls, parts: Sequence[Observations], times: Times) -> Moments:
        """From the measurements of each time."""
        xy, geographic = np.concatenate([part.xy for part in parts]), parts[0].geographic
        station = numbers_of_places(xy, geographic)
        first = np.unique(station, return_index=True)[1]
        ends = np.cumsum([len(part.xy) for part in parts])[:-1]
        places = of_places(xy[first], geographic=geographic)
        return cls(list(parts), np.split(station, ends), places, times.positions(), times.periods())

    def usable(self, time: int, job: FillJob) -> bool:
        """Whether a time has enough measurements for a field, which in a network differ."""
        values = self.parts[time].values
        enough = values.size >= job.predictor.neighbourhood.min_context
        return enough and not (self.network and values.min() == values.max())

    @cached_property
    def network(self) -> bool:
        """Whether most places are measured at several times, and are not too many."""
        count = np.bincount(np.concatenate(self.stations))
        again = count[count > 1].sum() >= ACROSS_TIMES.fixed * count.sum()
        return bool(again) and len(self.parts) > 1 and len(count) <= ACROSS_TIMES.most_stations
