"""Times that are written as numbers, such as 20200131."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.raster.arrays import Array

_NUMBERS = {6: "%Y%m", 7: "%Y%j", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Formats of times that are numbers, by their digits."""
_OTHERS = {8: ("%d%m%Y", "%m%d%Y"), 6: ("%y%m%d", "%d%m%y", "%m%d%y")}
"""Formats in which differences of numbers are no time, by the digits that they have with zeros before them."""
_MIDNIGHT = r"\d{8}240*"
"""A time that ends a day."""
_DATED = re.compile(
    r"(^|.*_)(time|times|date|dates|day|month|year|years|yr|yyyymm(dd)?|doy|yday|dayofyear|week|hour)", re.IGNORECASE
)
"""Names of dimensions whose numbers are dates."""
_UNITS = ("", "1", "yyyymm", "yyyymmdd", "yyyymmddhh", "yyyyddd", "yyyydoy")
"""Units of numbers that are dates, in lower case."""
_AS_DAYS = "day as %Y%m%d"
"""How units of absolute times of CDO begin: the fraction of a number is that of the day."""


_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_PERIODS = [
    re.compile(text, re.IGNORECASE)
    for text in (
        r"(?P<year>\d{4})[-_ ]?Q(?P<quarter>[1-4])",
        r"Q(?P<quarter>[1-4])[-_/ ]?(?P<year>\d{4})",
        r"(?P<year>\d{4})[-_ ]?W(?P<week>\d\d)(-?(?P<day>[1-7]))?",
        r"(?P<month>[a-z]{3,9})\.?[-_/ ]?(?P<year>\d{4})",
        r"(?P<year>\d{4})[-_/ ]?(?P<month>[a-z]{3,9})\.?",
    )
]
"""Quarters, weeks of ISO 8601, and months by their English names."""


def is_named_time(name: object) -> bool:
    """Whether a dimension is called as times are."""
    return _DATED.fullmatch(str(name)) is not None


def dates_of_coordinate(coord: xr.DataArray) -> Array | None:
    """Times of numbers along a dimension that is called as times: dates such as 20200131, or years; None of others."""
    unit, numbers = str(coord.attrs.get("units", "")), pd.Series(coord.values)
    if unit.startswith(_AS_DAYS):
        dates = dates_of_numbers(numbers // 1) if np.isfinite(numbers).all() else None
        return None if dates is None else (dates + pd.to_timedelta(numbers % 1, unit="D")).to_numpy()
    if unit.lower() not in _UNITS or not is_named_time(coord.name) or not np.isfinite(numbers).all():
        return None
    if (numbers % 1 == 0).all() and numbers.between(1800, 2200).all():
        numbers = numbers.astype(np.int64) * 10000 + 101
    dates = dates_of_numbers(numbers)
    return None if dates is None else np.asarray(dates.to_numpy())


def dates_of_numbers(numbers: pd.Series[Any]) -> Any:
    """Times of numbers such as 20200131, 202001, 2020031 (a year and its day) or 2020013112; None if one is no time.

    The hour 24 is the end of its day.
    """
    whole = numbers[numbers.to_numpy(np.float64) % 1 == 0].astype(np.int64).astype(str)
    digits = set(whole.str.len())
    if len(whole) < len(numbers) or len(digits) != 1 or not digits <= {*_NUMBERS}:
        return None
    ends = whole.str.fullmatch(_MIDNIGHT)
    whole = whole.where(~ends, whole.str[:8] + "00" + whole.str[10:])
    dates = pd.to_datetime(whole, format=_NUMBERS[digits.pop()], errors="coerce") + pd.to_timedelta(1 * ends, unit="D")
    return dates if dates.dt.year.between(1800, 2200).all() else None


def dates_of_periods(texts: Sequence[str]) -> Array | None:
    """Beginnings of periods such as 2020Q1, 2020-W05 or Jan 2020, all written alike; None if one is no period."""
    for pattern in _PERIODS:
        found = [pattern.fullmatch(text.strip()) for text in texts]
        if texts and (dates := [None if one is None else _beginning(one.groupdict()) for one in found]) and all(dates):
            return np.array(dates, "datetime64[ns]")
    return None


def _beginning(period: Mapping[str, str | None]) -> date | None:
    """The first day of a period; None of a week or month that does not exist, and of years that are no likely date."""
    year = int(period["year"] or 0)
    if not 1800 <= year <= 2200:
        return None
    if week := period.get("week"):
        weeks = date(year, 12, 28).isocalendar().week
        return date.fromisocalendar(year, int(week), int(period.get("day") or 1)) if 1 <= int(week) <= weeks else None
    if quarter := period.get("quarter"):
        return date(year, 3 * int(quarter) - 2, 1)
    said = str(period["month"]).lower()
    month = next((number for number, name in enumerate(_MONTHS, 1) if name.startswith(said)), None)
    return None if month is None else date(year, month, 1)


def order_of_dates(numbers: Array) -> str | None:
    """The format of dates whose numbers do not increase with time, such as ``%d%m%Y`` of 31012020; None of others."""
    texts = pd.Series(np.unique(numbers).astype(np.int64).astype(str))
    for digits, formats in _OTHERS.items():
        if len(texts) > 1 and texts.str.len().between(digits - 1, digits).all():
            padded = texts.str.zfill(digits)
            for text in formats:
                dates = pd.to_datetime(padded, format=text, errors="coerce")
                if dates.dt.year.between(1800, 2200).all():
                    return text
    return None
