"""Positions of the slices of a stack along a dimension: times where there are any, otherwise numbers."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import warn
from geonp.raster.arrays import Array
from geonp.raster.dates import dates_of_coordinate, dates_of_numbers, dates_of_periods, is_named_time
from geonp.raster.dimensions import has_coordinate
from geonp.raster.units import measure_of

_TEXT = re.compile(r"\d{4}-\d\d")
"""How a text begins that says a time."""
_DAY = re.compile(r"(?<!\d)(\d{4})[-_./]?(\d\d)[-_./]?(\d\d)(?:T?(\d\d)(\d\d)(\d\d)?)?(?!\d)")
"""A day, and perhaps a time, in a text."""
_DATE = re.compile(
    r"\s*(\d{1,2}[-/. ](\d{1,2}|[^\W\d]{3,9})[-/. ]\d{2,4}|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/]\d{4}$|"
    r"\d{4}[-/_]\d{1,2}$|\d{4}[-_ ]?[QW]\d)"
)
"""How a text begins that is a date in another order."""
DAY = 86_400e6
"""A day in microseconds."""


@dataclass(frozen=True)
class PeriodSettings:
    """When a stack shows a period."""

    steps: int = 3
    """A period is resolved by as many steps at least."""
    spanned: float = 1.25
    """Share of a period that a stack must span for it to be known."""


PERIODS = PeriodSettings()


def with_times(ds: xr.Dataset) -> xr.Dataset:
    """A Dataset whose times of slices are coordinates: WRF has them as texts, in a variable beside the others.

    Those are variables along a dimension without coordinate that say times.
    """
    beside = [name for name, da in ds.data_vars.items() if da.ndim == 1 and not has_coordinate(ds, da.dims[0])]
    # numbers with units of time may be measured
    found = [name for name in beside if ds[name].dtype.kind not in "biufcm" and _decoded(ds[name]) is not None]
    return ds.set_coords(found)


def positions(array: xr.DataArray, dim: Hashable) -> tuple[float, ...]:
    """Positions of the slices along a dimension, of which only the differences matter.

    They are times in microseconds if the coordinate of the dimension, or the only other coordinate along it, has times:
    datetime64, also of a time zone, timedelta64, cftime of any calendar, periods of pandas, texts such as
    ``2000-01-31``, ``2000Q1``, ``2000-W05`` or ``Jan 2000``, numbers such as 20000131 or years of a dimension called
    so, or numbers with units of time, such as ``days since 2000-01-01``, ``months since 2000-01-01``
    (30.4 days each) or ``hours``.
    Otherwise, and if a time is unknown, of which it warns, they are 0, 1, 2, ...
    """
    times = times_along(array, dim)
    if times is not None:
        return _elapsed(times)
    if has_coordinate(array, dim) and (unknown := int(np.sum(pd.isna(array.coords[dim].values)))):
        warn(
            f"{dim}: {unknown} of {array.sizes[dim]} labels are unknown, so that its slices count as evenly spaced. "
            f"Correct them, or leave these slices out: obj.isel({dim}=obj[{dim!r}].notnull())."
        )
    elif has_coordinate(array, dim) and (said := _doubtful(array.coords[dim])):
        warn(
            f"{dim}: its slices count as evenly spaced, though its labels are {said}. Make them times, such as "
            f"obj.assign_coords({dim}=pd.to_datetime(..., format=...)), or give them units, such as 'days since "
            "2000-01-01'."
        )
    return tuple(map(float, range(array.sizes[dim])))


def _doubtful(coord: xr.DataArray) -> str:
    """What the labels of a coordinate are if they are times that are not read: dates as texts, or uneven numbers."""
    labels = coord.values
    if labels.dtype.kind in "OSUT":
        texts = [label.decode(errors="replace") if isinstance(label, bytes) else str(label) for label in labels]
        return f"dates such as {texts[0]}" if texts and all(map(_DATE.match, texts)) else ""
    if labels.dtype.kind not in "iuf" or labels.size < 3 or not is_named_time(coord.name):
        return ""
    steps = np.diff(labels.astype(np.float64))
    uneven = np.ptp(steps) > 0.2 * np.abs(steps).max()  # months differ by less
    return f"{labels[0]:g}, {labels[1]:g}, {labels[2]:g}, ... without units" if uneven else ""


def periods(array: xr.DataArray, dim: Hashable) -> tuple[float, ...]:
    """The periods, a year and a day, that the positions along a dimension span and resolve, in their units.

    The year is that of the calendar.
    """
    times = times_along(array, dim)
    if times is None or times.dtype.kind == "m" or times.size < PERIODS.steps:
        return ()
    elapsed = np.unique(_elapsed(times))
    year = 365.2425 * DAY
    if times.dtype.kind == "O":
        first = times[0].replace(month=1, day=1)
        year = (first.replace(year=first.year + 1) - first).days * DAY
    step = np.median(np.diff(elapsed)) if elapsed.size > 1 else np.inf
    spanned = elapsed[-1] - elapsed[0]
    return tuple(
        period for period in (year, DAY) if PERIODS.spanned * period <= spanned and PERIODS.steps * step <= period
    )


def times_along(array: xr.DataArray | xr.Dataset, dim: Hashable) -> Array | None:
    """Times along a dimension, as datetime64, timedelta64 or cftime; None without any, or if some are unknown."""
    along = [coord for name, coord in array.coords.items() if coord.dims == (dim,) and name != dim]
    own = [array.coords[dim]] if has_coordinate(array, dim) else []
    for coords in (own, along):
        found = [times for coord in coords if (times := _decoded(coord)) is not None]
        found = [times for times in found if times.dtype.kind != "m"] or found
        if len(found) == 1:
            return found[0]
    return None


def _decoded(coord: xr.DataArray) -> Array | None:
    unit, since, _ = str(coord.attrs.get("units", "")).partition(" since ")
    if since and coord.dtype.kind in "iuf":
        with suppress(ValueError):  # of months since a date, or an unknown calendar
            coord = xr.decode_cf(xr.Dataset({"time": ("time", coord.values, coord.attrs)})).time
    index, values = _values(coord)
    if values.dtype.kind in "iuf":
        measure = measure_of(unit)
        if measure is None or measure.dims != {("s", 1)} or not np.isfinite(values).all():
            return dates_of_coordinate(coord)
        lengths = ((values.astype(np.float64) - values[:1]) * measure.factor * 1e6).round().astype("m8[us]")
        values = np.datetime64("2000-01-01") + lengths if since else lengths
    if values.dtype.kind in "SUT" or (values.dtype.kind == "O" and all(isinstance(value, str) for value in values)):
        return _read(values)
    if values.dtype.kind in "mM":
        return None if np.isnat(values).any() else values
    return values if isinstance(index, xr.CFTimeIndex) else None


def _values(coord: xr.DataArray) -> tuple[pd.Index | None, Array]:
    """The index of times or objects, and the values: periods as their beginnings, times of a zone in UTC."""
    index = coord.to_index() if coord.dtype.kind in "MO" else None
    if isinstance(index, pd.PeriodIndex):
        return index, index.to_timestamp().to_numpy()
    if isinstance(index, pd.DatetimeIndex) and index.tz is not None:
        return index, index.tz_convert(None).to_numpy()
    return index, coord.values


def _read(texts: Array) -> Array | None:
    """Times that texts say, also as WRF writes them, ``2000-01-31_12:00:00``; None if one says no time."""
    said = [text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in texts]
    if not all(_TEXT.match(text) for text in said):
        periods_ = dates_of_periods(said)
        return _within(said) if periods_ is None else periods_
    times = pd.to_datetime([text.replace("_", "T") for text in said], format="ISO8601", utc=True, errors="coerce")
    return None if times.isna().any() else times.tz_localize(None).to_numpy()


def _within(texts: Sequence[str]) -> Array | None:
    """The different times that names hold, such as ``20200131`` or ``S2A_20200131T103021_NDVI``; None if one has none.

    Texts of digits alone are read as numbers.
    """
    if texts and all(text.isdecimal() for text in texts):
        dates = dates_of_numbers(pd.Series([int(text) for text in texts]))
        return None if dates is None else np.asarray(dates.to_numpy())
    found = [_DAY.findall(text) for text in texts]
    days = ["".join(of[0]) for of in found if len(of) == 1]
    if len(days) < len(texts) or len({*days}) < len(days):
        return None
    dates = pd.to_datetime(pd.Series([day.ljust(14, "0") for day in days]), format="%Y%m%d%H%M%S", errors="coerce")
    return np.asarray(dates.to_numpy()) if dates.dt.year.between(1800, 2200).all() else None


def _elapsed(times: Array) -> tuple[float, ...]:
    """Microseconds since the first time; differences of cftime are those of its calendar."""
    return tuple((times - times[:1]).astype("timedelta64[us]").astype(np.float64).tolist())
