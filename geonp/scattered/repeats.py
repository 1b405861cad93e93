"""Several rows of a table at one place: refused if a column such as a date distinguishes them, or combined."""

from __future__ import annotations

import datetime
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from geonp.errors import InputError, warn
from geonp.io.measurements import Table
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray
from geonp.raster.dates import dates_of_numbers

Repeats = Literal["mean", "keep"]
"""What is done with several rows of one place."""
REPEATS: tuple[str, ...] = get_args(Repeats)
"""Its values."""


@dataclass(frozen=True)
class RepeatSettings:
    """Settings of columns that distinguish rows of one place."""

    times: tuple[str, ...] = (
        *("time", "times", "date", "dates", "datetime", "timestamp", "epoch", "utc", "gmt", "mjd", "julian"),
        *("year", "years", "yr", "yyyy", "month", "months", "mon", "day", "days", "doy", "yday", "yyyymmdd"),
        *("week", "hour", "hours", "hr", "minute", "second", "season", "quarter", "decade", "dekad"),
        *("datum", "zeit", "jahr", "monat", "tag", "stunde", "fecha", "tiempo", "mes", "hora", "dia", "annee"),
        *("mois", "jour", "heure", "anno", "mese", "giorno", "ano"),
    )
    """Words in names of times."""
    parts: tuple[str, ...] = (
        *("year", "years", "yr", "yyyy", "month", "months", "mon", "doy", "yday", "jahr", "monat", "annee", "mois"),
        *("anno", "mese", "ano", "mes"),
    )
    """Those of parts of a date that are numbers of different fields."""
    levels: tuple[str, ...] = (
        *("depth", "level", "levels", "lev", "plev", "layer", "horizon", "z", "height", "altitude", "alt"),
        *("elevation", "pressure", "pres"),
    )
    """Words in names of the third coordinate."""
    depths: tuple[str, ...] = ("depth", "depths", "layer", "horizon", "plev")
    """Those of them that are chosen, whereas a station has the elevation that it has."""
    beside: tuple[str, ...] = (
        *("of", "the", "local", "obs", "observation", "sample", "sampling", "sampled", "survey", "start", "end"),
        *("begin", "first", "last", "top", "bottom", "upper", "lower", "from", "to", "m", "cm", "km", "hpa", "pa"),
        *("db", "dbar", "iso", "decimal", "no", "number", "id", "measured", "measurement", "visit", "collection"),
    )
    """Words beside these in names of times and levels that are no integers."""
    replicates: tuple[str, ...] = (
        *("id", "index", "no", "n", "row", "replicate", "rep", "repeat", "duplicate", "sample", "comment", "comments"),
        *("remark", "remarks", "note", "notes", "quality", "qc", "flag", "status", "observer", "operator", "count"),
    )
    """Words in names of columns in which repeated measurements of one quantity differ."""
    one_field: datetime.timedelta = datetime.timedelta(days=2)
    """Measurements of a longer time make one field with a warning."""


SETTINGS = RepeatSettings()

_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_TIME = re.compile(
    r"(\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([T ]+\d.*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}(\s.*)?|\d{1,2}:\d{2}(:\d{2}.*)?"
    rf"|\d{{1,2}}[-. ]*{_MONTH}[-., ]*\d{{2,4}}.*|{_MONTH}[-., ]*(\d{{1,2}}[-., ]+)?\d{{4}}.*"
    r"|\d{4}[- ]?([qw]\d{1,2}))",
    re.IGNORECASE,
)


def combined(
    table: Table,
    geographic: bool,
    repeats: Repeats | None,
    errors: Float64Array | None,
) -> tuple[Table, Float64Array | None]:
    """A table with the rows of each place combined, and its known errors.

    Raises InputError by default if rows of one place differ in a time, a depth or another column; always for classes to
    be averaged, and other values of `repeats`.

    Parameters
    ----------
    table : Table
        Rows of several of its times are not combined.
    geographic : bool
        Whether the places are longitudes and latitudes in degrees.
    repeats : {"mean", "keep"}, optional
        ``"mean"`` averages the finite values of each place, and ``"keep"`` leaves all rows. By default, copies are left
        out (:func:`_copies`), and otherwise all are left, both with a warning. Measurements of several days at
        different places have one, too.
    errors : array, optional
        Known standard errors of the rows, which are those of the one column of values.
    """
    if repeats not in (None, *REPEATS):
        raise InputError(f"repeats must be {' or '.join(map(repr, REPEATS))}, got {repeats!r}")
    place = numbers_of_places(table.xy, geographic)
    if table.times is not None:
        place = pd.MultiIndex.from_arrays([place, table.times.of_rows]).factorize()[0]
    if repeats == "mean":
        return _averaged(table, place, errors)
    if repeats is None:
        copies = _copies(table, place)
        for name in table.values:
            _check(table, name, place, copies)
        if copies.any():
            warn(
                f"{copies.sum()} rows repeat the values of another row of their place, and are left out as copies: as "
                "measurements of their own they would make standard errors far too small. If they are measurements of "
                "their own, say so with repeats='keep' (--repeats keep)."
            )
            table, errors = table.at(~copies), None if errors is None else errors[~copies]
        if table.times is None:
            _warn_of_days(table)
        _warn_of_depths(table)
    return table, errors


def _warn_of_days(table: Table) -> None:
    """Warn of measurements of several days, such as the swaths of a week, that make one field."""
    used = np.any([table.usable(name) for name in table.values], axis=0)
    for name, column in table.others[used].items():
        known = column.dropna()
        if pd.api.types.is_numeric_dtype(column):
            times, said = dates_of_numbers(known), _words(str(name)) & {*SETTINGS.parts}
        else:
            times, said = pd.to_datetime(known.astype(object), format="ISO8601", errors="coerce", utc=True), set()
            if times.isna().all() and _is_time(known):  # 31/01/2020
                times = pd.to_datetime(known.astype(str), format="mixed", dayfirst=True, errors="coerce", utc=True)
        days = "" if times is None or times.isna().all() else _days(times.dropna())
        every = "Days are every='1D' (--every 1D). "
        if of := days or (f"{known.nunique()} entries" if said and known.nunique() > 1 else ""):
            warn(
                f"the measurements are of {of} (column {name!r}), and make one field. {_for_each(table.others, [name])}"
                f"{days and every}If one field of all is meant, say so with "
                "repeats='keep' (--repeats keep)."
            )


def _warn_of_depths(table: Table) -> None:
    """Warn of measurements of several depths at places of their own, as of soil horizons, that make one field."""
    others = table.others[np.any([table.usable(name) for name in table.values], axis=0)]
    depths = {*SETTINGS.depths}
    named = {name: _words(str(name)) for name in others if others[name].nunique() > 1}
    found = [str(name) for name, said in named.items() if said & depths and said <= depths | {*SETTINGS.beside}]
    if found:
        warn(
            f"the measurements differ in {', '.join(map(repr, found))}, and make one field. Select those of one "
            f"(--where {_quoted(f'{found[0]}={others[found[0]].dropna().iloc[0]}')}), or take it as a covariate. If "
            "one field of all is meant, say so with repeats='keep' (--repeats keep)."
        )


def _days(times: Any) -> str:
    """The days of times; empty if they are within the span of one field."""
    apart = times.max() - times.min() > SETTINGS.one_field
    return f"{times.dt.floor('D').nunique()} days, {times.min():%Y-%m-%d} to {times.max():%Y-%m-%d}" if apart else ""


def numbers_of_places(xy: Float64Array, geographic: bool) -> IntArray:
    """A number for each place ``(n,)``, in order of appearance."""
    x = (xy[:, 0] % 360).round(9) % 360 if geographic else xy[:, 0].round(9)
    return pd.MultiIndex.from_arrays([x, xy[:, 1].round(9)]).factorize()[0]


def without_copies(table: Table, geographic: bool) -> Table:
    """The rows of a table of one time that are used by default, see :func:`combined`."""
    return table.at(~_copies(table, numbers_of_places(table.xy, geographic)))


def _copies(table: Table, place: IntArray) -> BoolArray:
    """Rows that repeat the values and covariates of an earlier row of their place, as of files that were joined twice.

    None are copies if rows of one place differ anywhere: then equal rows may be measurements that agree by chance.
    """
    used = np.any([table.usable(name) for name in table.values], axis=0)
    columns = [pd.Series(place), *map(pd.Series, table.values.values()), *(c for _, c in table.covariates.items())]
    rows = pd.concat([column.reset_index(drop=True) for column in columns], axis=1)[used]
    copies, again = rows.duplicated().to_numpy(), pd.Series(place[used]).duplicated().to_numpy()
    mask = np.zeros(place.size, bool)
    mask[used] = copies & (copies == again).all()
    return mask


def _check(table: Table, name: str, place: IntArray, copies: BoolArray) -> None:
    """Refuse several values of a column at one place, or warn of them if there are no `copies` to be left out."""
    usable = table.usable(name)
    sizes = np.bincount(place[usable])
    rows = usable & (sizes[place.clip(max=sizes.size - 1)] > 1) if sizes.size else usable
    if not (sizes > 1).any():
        return
    others, repeated = table.others.iloc[np.flatnonzero(rows)], pd.Series(place[rows])
    groups = others.groupby(repeated.to_numpy())
    varying = [column for column in others if (groups[str(column)].nunique(dropna=False) > 1).any()]
    n = int((sizes > 1).sum())
    if selecting := [column for column in varying if _tells_apart(others[column], repeated.to_numpy())]:
        first = {column: str(others[column].iloc[0]).removesuffix(" 00:00:00") for column in selecting}
        where = " ".join(f"--where {_quoted(f'{column}={value}')}" for column, value in first.items())
        raise InputError(
            f"column {name!r} has several rows at {n} places that differ in {', '.join(map(repr, selecting))}: "
            f"they are several fields, expected one. {_for_each(others, selecting)}Select the rows of one, "
            f"points[points[{selecting[0]!r}] == ...] ({where}), or average those of each place with repeats='mean' "
            "(--repeats mean); repeats='keep' uses all as repeated measurements of one quantity"
        )
    if copies.any():
        return
    values = pd.Series(table.values[name][rows]).groupby(repeated)
    apart = int((values.max() > values.min()).sum())
    beside = f", and {', '.join(map(repr, varying))} differ within places" if varying else ""
    warn(
        f"column {name!r} has several rows at {n} places ({rows.sum()} rows; values differ at {apart}){beside}: all "
        "are used together, as repeated measurements of one quantity. If they are of several times or depths, select "
        "one of them before (--where COLUMN=VALUE); repeats='mean' (--repeats mean) averages the rows of each place."
    )


def _for_each(others: pd.DataFrame, selecting: Sequence[Hashable]) -> str:
    """How to make a field of each time, if they differ in one."""
    columns = (str(name) for name in selecting)
    times = [name for name in columns if {*SETTINGS.times} & _words(name) or _is_time(others[name].dropna())]
    return f"Make a field of each time with time={times[0]!r} (--time {_quoted(times[0])}). " if times else ""


def _quoted(text: str) -> str:
    return f'"{text}"' if re.search(r"\s", text) else text


def _tells_apart(column: Any, place: IntArray) -> bool:
    """Whether a column that differs between rows of one place is a time, a level or a condition, and no measurement."""
    words = _words(str(column.name))
    numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    known = column.dropna()
    whole = not numeric or bool((known.astype(np.float64) % 1 == 0).all())
    named = {*SETTINGS.times, *SETTINGS.levels} & words
    if named and (whole or words <= {*named, *SETTINGS.beside}):
        return True
    if _is_time(known):
        return True
    if words & {*SETTINGS.replicates}:
        return False
    frame = pd.DataFrame({"place": place, "value": column.to_numpy()})
    largest, distinct = frame["place"].value_counts().max(), known.nunique()
    recurs = 2 * distinct <= len(frame)
    return bool(recurs and (not numeric or (distinct <= 2 * largest and not frame.duplicated().any())))


def _words(name: str) -> set[str]:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    plain = spaced.lower().translate(str.maketrans("áàâäéèêíñóôöúüß", "aaaaeeeinooouus"))
    return {word for word in re.split(r"[^a-z]+", plain) if word}


def _is_time(known: Any) -> bool:
    """Whether values are times, or texts or numbers that look like ones."""
    if known.dtype.kind in "mM" or isinstance(known.dtype, pd.PeriodDtype):
        return True
    if pd.api.types.is_integer_dtype(known):
        return dates_of_numbers(known) is not None
    values: Sequence[Any] = [] if pd.api.types.is_numeric_dtype(known) else known.to_list()
    return bool(values) and all(
        isinstance(value, datetime.date) or hasattr(value, "calendar") or _TIME.fullmatch(str(value).strip())
        for value in values
    )


def _averaged(table: Table, place: IntArray, errors: Float64Array | None) -> tuple[Table, Float64Array | None]:
    """The means of the finite values of each place, of numeric covariates too, and the errors of these means."""
    finite = np.isfinite(table.xy).all(1)
    place, (first,) = place[finite], np.unique(place[finite], return_index=True)[1:]
    values: dict[str, FloatArray] = {}
    for name in table.values:
        column = table.values[name][finite]
        means = pd.Series(np.where(np.isfinite(column), column, np.nan), dtype=np.float64).groupby(place).mean()
        values[name] = means.to_numpy().astype(np.float32 if column.dtype == np.float32 else np.float64)
    times = [] if table.times is None else [table.times.name]  # of which a period has several
    covariates = table.covariates.drop(columns=times).iloc[np.flatnonzero(finite)].reset_index(drop=True)
    beside = {str(column): _mean_covariate(covariates[column], place) for column in covariates}
    if errors is not None:
        (column,) = table.values.values()
        squares = pd.Series(np.where(np.isfinite(column), errors**2, np.nan)[finite]).groupby(place)
        errors = np.sqrt(squares.sum().to_numpy()) / np.maximum(squares.count().to_numpy(), 1)
    rows = np.flatnonzero(finite)[first]
    averaged = replace(
        table,
        xy=table.xy[rows],
        values=values,
        covariates=pd.DataFrame(beside, index=range(rows.size)),
        others=table.others.iloc[rows],
        times=None if table.times is None else table.times.at(rows),
    )
    return averaged, errors


def _mean_covariate(column: Any, place: IntArray) -> Any:
    """The mean of a covariate at each place; of classes, the only one."""
    groups = column.groupby(place)
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return groups.mean()
    if (groups.nunique() > 1).any():
        raise InputError(
            f"the covariate {column.name!r} holds classes that differ between rows of one place: they have no mean. "
            "Select rows of one kind (--where COLUMN=VALUE), or leave the covariate out"
        )
    return groups.first()
