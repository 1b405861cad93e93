"""Columns of times whose numbers are no times: dates in another order, and parts of dates."""

from __future__ import annotations

import pandas as pd

from geonp.errors import warn
from geonp.io.columns import words
from geonp.io.measurements import Table
from geonp.raster.dates import order_of_dates

_PARTS = (
    ("year", "years", "yr", "yyyy", "jahr", "annee", "anno", "ano"),
    ("month", "months", "mon", "monat", "mois", "mese", "mes"),
    ("day", "days", "doy", "yday", "dom", "date", "tag", "jour", "giorno", "dia"),
    ("hour", "hours", "hr", "hh", "stunde", "heure", "ora", "hora"),
    ("minute", "minutes", "min"),
)
"""Words in names of parts of times, from years on."""
_BESIDE = {"of", "the", "local", "utc", "gmt", "obs", "number", "no"}
"""Words beside them."""


def warn_of_doubtful_times(table: Table) -> None:
    """Warn of times that are numbers, if these are dates such as 31012020, or days beside columns of months or years.

    The fields would be those of other times, or in another order.
    """
    if table.times is None or table.times.values.dtype.kind not in "iuf" or table.times.values.size < 2:
        return
    name, numbers = table.times.name, table.times.values
    if (numbers % 1 == 0).all() and (text := order_of_dates(numbers)):
        digits = 8 if "Y" in text else 6
        warn(
            f"the times {name!r} are numbers such as {numbers[0]:.0f}, and their differences count as time. If they "
            f"are dates, make them such: pd.to_datetime(points[{name!r}].astype(str).str.zfill({digits}), "
            f"format={text!r})."
        )
    part, others = _part(name), pd.concat([table.covariates, table.others], axis=1)
    coarser = [str(column) for column in others if 0 <= _part(str(column)) < part and others[column].nunique() > 1]
    if coarser:
        warn(
            f"the times {name!r} are a part of a date, and rows differ in {', '.join(map(repr, coarser))}: fields of "
            f"equal {name!r} are one, and their order is that of its numbers. Make one column of all parts, such as "
            "pd.to_datetime(points[['year', 'month', 'day']]), and give it as time (--time)."
        )


def _part(name: str) -> int:
    """Which part of a time a column is by its name, from 0 for years; -1 if it is none."""
    said = words(name) - _BESIDE
    known = [n for n, names in enumerate(_PARTS) if said & {*names}]
    return known[-1] if known and said <= {word for names in _PARTS for word in names} else -1
