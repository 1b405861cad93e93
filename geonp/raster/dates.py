"""Times that are written as numbers, such as 20200131."""

from __future__ import annotations

import re
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
