"""Times of measurements, as tables write them."""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from pandas.tseries.frequencies import to_offset

from geonp.errors import InputError, warn
from geonp.raster.arrays import Array, BoolArray, IntArray
from geonp.raster.dates import dates_of_numbers
from geonp.raster.positions import periods, positions

_TIME = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?)?)?")
"""A time or its first parts."""
ZONE = re.compile(r"\d[T ].*\d[+-]\d\d:?\d\d$")
"""The difference from UTC after a time."""


@dataclass(frozen=True, eq=False)
class Times:
    """Times of rows.

    Attributes
    ----------
    values : array
        Different times ``(k,)``, ascending.
    of_rows : array of int
        The time of each row, as an index into `values`; -1 where it is unknown.
    attrs : mapping
        Attributes of times that are numbers, such as their units.
    name : str
        Name of the column that they are read from.
    every : str or None
        Length of the periods whose beginnings they are.
    """

    values: Array
    of_rows: IntArray
    attrs: Mapping[Hashable, Any] = field(default_factory=dict)
    name: str = ""
    every: str | None = None

    def positions(self) -> tuple[float, ...]:
        """Positions of the times, of which only the differences matter."""
        if self.values.dtype.kind in "MO":
            return positions(xr.DataArray(self.values, {"time": self.values}, ("time",)), "time")
        return tuple(self.values.astype(np.float64).tolist())

    def periods(self) -> tuple[float, ...]:
        """The periods that the times span, in the units of their positions; none of times that are numbers."""
        if self.values.dtype.kind not in "MO":
            return ()
        return periods(xr.DataArray(self.values, {"time": self.values}, ("time",)), "time")

    def at(self, rows: IntArray) -> Times:
        """The times of some rows."""
        return replace(self, of_rows=self.of_rows[rows])

    def including(self, wanted: Sequence[Any], name: str) -> Times:
        """These times and others between them, which no row has; `name` says in errors what the `wanted` ones are.

        Years, months and ranges as text add none. Raises InputError for a time before or after all of these.
        """
        single = [time for time in wanted if not self._is_period(time)]
        if not single:
            return self
        asked = np.asarray(self._parsed(single, name))
        outside = pd.isna(asked)
        outside[~outside] = (asked[~outside] < self.values[0]) | (asked[~outside] > self.values[-1])
        if outside.any():
            raise InputError(
                f"{name} has {_said(single[int(outside.argmax())])}, expected times between the first and the last of "
                f"the measurements, {_said(self.values[0])} and {_said(self.values[-1])}"
            )
        values = np.unique(np.concatenate([self.values, asked]))
        index = np.append(np.searchsorted(values, self.values), -1)
        return replace(self, values=values, of_rows=index[self.of_rows])

    def within(self, wanted: Sequence[Any], name: str) -> IntArray:
        """Indices of some times, as of :meth:`index`; a year, a month or a day as text stands for all times in it.

        So does ``first/last``, both included, and ``first/last/step`` for those a number of steps after the first.
        Warns of steps without a time. Raises InputError for a range that is none, or without a time.
        """
        found: list[int] = []
        for time in [wanted] if isinstance(wanted, str) else wanted:
            if isinstance(time, str) and "/" in time:
                found += self._between(time, name).tolist()
                continue
            found += self._inside(time) or self.index([time], name).tolist()
        return np.array(list(dict.fromkeys(found)), np.intp)

    def _inside(self, time: Any) -> list[int]:
        """Indices of the times of a year, a month or a day that is given as text."""
        part = isinstance(time, str) and self.values.dtype.kind in "MO" and re.fullmatch(r"\d{4}(-\d\d){0,2}", time)
        return [i for i, value in enumerate(self.values) if part and re.match(rf"{time}(?!\d)", str(value))]

    def _is_period(self, time: Any) -> bool:
        """Whether a text is a range, a year, a month, or a day with times."""
        if not isinstance(time, str) or self.values.dtype.kind not in "MO":
            return False
        return "/" in time or re.fullmatch(r"\d{4}(-?\d\d)?", time) is not None or bool(self._inside(time))

    def _between(self, text: str, name: str) -> IntArray:
        """Indices of the times of a range."""
        first, last, step = (*(part.strip() for part in text.split("/")), "")[:3]
        try:
            if text.count("/") > 2 or (text.count("/") == 2 and not step):
                raise ValueError
            inside = compared(self.values, operator.ge, first) & compared(self.values, operator.le, last)
            at = self.values[inside]
            stepped = np.ones(at.size, bool) if not step else _on_steps(at, first, step)
        except (ValueError, TypeError):
            raise InputError(
                f"{name} has {text!r}, expected a range FIRST/LAST or FIRST/LAST/STEP, both ends included, such as "
                "1990-07-01/1990-07-10 or 1990-07/1990-09/7D"
            ) from None
        if not stepped.any():
            known = f"{_said(self.values[0])} to {_said(self.values[-1])}"
            raise InputError(f"{name} has {text!r}, in which no measurement has a time: expected times from {known}")
        return np.flatnonzero(inside)[stepped]

    def index(self, wanted: Sequence[Any], name: str) -> IntArray:
        """Indices of some times; `name` says in errors what they are. Raises InputError for a time without a row."""
        parsed = self._parsed(wanted, name)
        found = pd.Index(self.values).get_indexer(parsed)
        if (found < 0).any():
            known = ", ".join(map(_said, self.values[:3])) + (", ..." if self.values.size > 3 else "")
            raise InputError(
                f"{name} has {_said(np.asarray(parsed)[found < 0][0])}, which no measurement has: expected times of "
                f"the table, {known}"
            )
        return np.asarray(found, np.intp)

    def _parsed(self, wanted: Sequence[Any], name: str) -> Any:
        """Times as these are, or the beginnings of the periods that they lie in."""
        asked = pd.Series(list(wanted))
        if all(isinstance(time, str) and time.isdecimal() for time in wanted):
            asked = asked.astype(np.int64)
        if self.values.dtype.kind in "iuf":
            return self._numbers(asked, name)
        parsed = parsed_times(asked, name)
        if parsed.dtype.kind in "iuf" and parsed.notna().any():
            raise InputError(
                f"{name} has the number {parsed.dropna().iloc[0]:g}, expected times such as those of the measurements, "
                f"{_said(self.values[0])} to {_said(self.values[-1])}; decode numbers with units: xr.decode_cf(ds)"
            )
        if self.values.dtype.kind == "O" and parsed.dtype.kind == "M":
            return in_calendar(parsed, self.values[0])
        if self.values.dtype.kind == "M" and parsed.dtype.kind == "O":  # cftime
            parsed = pd.to_datetime(parsed.map(str, na_action="ignore"), errors="coerce")
        return parsed if self.every is None else parsed.dt.floor(self.every)

    def _numbers(self, asked: pd.Series[Any], name: str) -> Any:
        """Numbers as these times are; of times, by their units, such as ``days since 2000-01-01``."""
        units, calendar = str(self.attrs.get("units", "")), str(self.attrs.get("calendar", "standard"))
        dated = asked.dtype.kind == "M"
        numbers = pd.Series(np.full(len(asked), np.nan)) if dated else pd.to_numeric(asked, errors="coerce")
        if " since " not in units or not (numbers.isna() & asked.notna()).any():
            return numbers
        coding = {"units": units, "calendar": calendar, "dtype": np.dtype(np.float64)}
        dates = parsed_times(asked, name).to_numpy()
        try:
            return pd.Series(xr.conventions.encode_cf_variable(xr.Variable("time", dates, encoding=coding)).values)
        except ValueError as error:
            raise InputError(
                f"{name} has a day that the calendar {calendar} of the measurements lacks: {error}"
            ) from None


def in_calendar(times: pd.Series[Any], like: Any) -> pd.Series[Any]:
    """Times in the calendar of `like`, a time of cftime; None of days that it lacks."""

    def one(time: Any) -> Any:
        try:
            return type(like)(*time.timetuple()[:6])
        except ValueError:
            return None

    return times.map(one, na_action="ignore")


def times_of(column: pd.Series[Any], every: str | None = None) -> Times:
    """The times of the rows of a table, or the beginnings of the periods of a length, such as ``1D``, that they lie in.

    Raises InputError for texts that are no times as ISO 8601 writes them, a column without a time, and a length that
    times cannot be divided by. Warns of periods that no row lies in.
    """
    parsed = parsed_times(column, str(column.name))
    if every is not None:
        try:
            if to_offset(every).nanos <= 0:
                raise ValueError
            parsed = pd.Series(parsed).dt.floor(every)
        except (ValueError, AttributeError, TypeError):
            raise InputError(
                f"every (--every) must be a length of time for a column of dates or times: got {every!r} for "
                f"{column.name!r}, which holds {_said(parsed.iloc[0])}; expected for example '1D' or '6h'"
            ) from None
    codes, values = pd.factorize(parsed, sort=True)
    if not len(values):
        raise InputError(f"the column {column.name!r} has no time: check that it is the column of times (--time)")
    if every is not None:
        periods = round((values[-1] - values[0]) / pd.Timedelta(to_offset(every).nanos)) + 1
        if none := periods - len(values):
            warn(
                f"No row lies in {none} of the {periods} periods of {every} from {_said(values[0].to_datetime64())} to "
                f"{_said(values[-1].to_datetime64())}: they have no field."
            )
    return Times(np.asarray(values), np.asarray(codes, np.intp), name=str(column.name), every=every)


def parsed_times(column: pd.Series[Any], name: str) -> Any:
    """Times as datetime64 in UTC, as cftime, or as numbers."""
    if isinstance(column.dtype, pd.ArrowDtype) and column.dtype.kind in "mMO":
        column = pd.Series(column.tolist(), column.index, name=column.name)
    known = column.dropna()
    if isinstance(column.dtype, pd.PeriodDtype):
        return column.dt.to_timestamp()
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return column.dt.tz_convert("UTC").dt.tz_localize(None)
    if column.dtype.kind in "mM" or (len(known) and all(hasattr(value, "calendar") for value in known)):
        return column
    if pd.api.types.is_numeric_dtype(column):
        dates = dates_of_numbers(known)
        return column if dates is None else dates.reindex(column.index)
    if len(known) and all(isinstance(value, datetime.date) for value in known):
        return pd.to_datetime(column, utc=True).dt.tz_localize(None)
    try:
        times = pd.to_datetime(column.astype(object), format="ISO8601", utc=True)
    except (TypeError, ValueError):
        wrong = next((value for value in known if pd.isna(_iso(value))), known.iloc[0] if len(known) else None)
        raise InputError(
            f"{name!r} holds {wrong!r}, expected times such as 2020-01-31 or 2020-01-31T12:00, or numbers. Rewrite "
            "them, for example with pandas.to_datetime(..., format='%d.%m.%Y')"
        ) from None
    return times.dt.tz_localize(None)


def compared(times: Array, how: Callable[[Any, Any], Any], text: str) -> BoolArray:
    """Mask of the times, or numbers, that compare with one that is given by its first parts, such as ``2020-07``.

    All of July 2020 is equal to it, August is later. A time with its difference from UTC is compared in UTC. Raises
    ValueError for a text that is no time, or no number.
    """
    if times.dtype.kind in "iuf":
        return np.asarray(how(times, float(text)))
    time = text.strip().removesuffix("Z").replace(" ", "T")
    if ZONE.search(time):
        time = pd.Timestamp(time).tz_convert(None).isoformat()
    if _TIME.fullmatch(time) is None or times.dtype.kind not in "MO":
        raise ValueError(text)
    if times.dtype.kind == "O":  # cftime
        said = np.array([str(value).replace(" ", "T")[: len(time)] for value in times.ravel()], object)
        return np.asarray(how(said, time), bool).reshape(times.shape)
    limit = np.datetime64(time)
    return np.asarray(how(times.astype(limit.dtype), limit))


def _on_steps(times: Array, first: str, step: str) -> BoolArray:
    """Mask of ascending times a whole number of steps after the first; warns of steps without a time."""
    if times.dtype.kind in "iuf":
        number, length = (times - float(first)).astype(np.float64), float(step)
    else:
        start: Any = pd.Timestamp(first.removesuffix("Z"))
        if times.dtype.kind == "O":  # cftime
            start = type(times[0])(*start.timetuple()[:6])
        apart = [(pd.Timestamp(time) if times.dtype.kind == "M" else time) - start for time in times]
        number = np.array([one.total_seconds() for one in apart], np.float64)
        length = pd.Timedelta(step if step.startswith("P") else to_offset(step).nanos).total_seconds()
    if not length > 0:
        raise ValueError(step)
    count = np.rint(number / length)
    on = np.abs(number - count * length) <= 1e-6 * length
    if on.any() and (none := int(np.ptp(count[on])) + 1 - int(on.sum())):
        warn(f"No measurement has a time at {none} of the steps of {step} from {first}: they have no field.")
    return np.asarray(on)


def _iso(value: Any) -> Any:
    return pd.to_datetime(value, format="ISO8601", errors="coerce", utc=True)


def _said(time: Any) -> str:
    return str(pd.Timestamp(time)).removesuffix(" 00:00:00") if isinstance(time, np.datetime64) else str(time)
