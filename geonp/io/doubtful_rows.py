"""Rows of a table of measurements that may not mean what they are read as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from geonp.errors import warn
from geonp.io.columns import TABLES, is_quality_of, words
from geonp.io.measurements import Table
from geonp.raster.arrays import Float64Array
from geonp.raster.metadata import class_attrs, listed_names
from geonp.raster.sentinels import SENTINELS, Extremes, suspects


@dataclass(frozen=True)
class MeaningSettings:
    """Settings of columns that say what the numbers beside them mean."""

    meanings: tuple[str, ...] = (
        *("unit", "units", "uom", "parameter", "param", "pollutant", "analyte", "constituent", "characteristic"),
        *("element", "datum", "crs", "epsg", "srid", "zone", "utm"),
    )
    """Words in their names: of units, of quantities, and of reference systems."""
    beside: tuple[str, ...] = ("of", "measure", "measurement", "value", "result", "name", "code", "id", "no", "number")
    """Words beside these."""
    hemispheres: tuple[tuple[str, ...], ...] = (("W", "E", "WEST", "EAST"), ("S", "N", "SOUTH", "NORTH"))
    """Texts that say on which side of 0 a longitude and a latitude are, the negative side first."""
    minutes: tuple[str, ...] = ("m", "mm", "min", "mins", "minute", "minutes")
    """Words in names of columns of the minutes of a longitude or latitude, such as ``lon_min``."""
    flags: int = 32
    """Columns of more distinct entries are no flags."""


MEANINGS = MeaningSettings()


def warn_of_doubtful_rows(table: Table) -> None:
    """Warn of usual nodata values that are far from all other values, or are both coordinates of a place far away.

    The values are those of measurements and of covariates. Warn of columns that say that rows are in different units or
    of different quantities, or on another hemisphere.
    """
    placed = np.isfinite(table.xy).all(1)
    columns = {name: values.astype(np.float64) for name, values in table.values.items()}
    for name, column in table.covariates.items():
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            columns[str(name)] = column.to_numpy(np.float64, na_value=np.nan)
    for name, values in columns.items():
        for nodata, n in suspects([Extremes.of(values[placed])]).items():
            warn(
                f"column {name!r} holds {nodata:g}, far from all other values, in {n} rows, which are used as they "
                f"are. If they are missing, select the others: points[points[{name!r}] != {nodata:g}] "
                f"(--where '{name}!={nodata:g}')."
            )
    used = np.any([table.usable(name) for name in table.values], axis=0) if table.values else np.zeros(0, bool)
    if used.any():
        _warn_of_marks(table, table.xy[used])
        _warn_of_meanings(table, table.others[used])
        _warn_of_hemispheres(table, table.others[used], table.xy[used])
        _warn_of_minutes(table, table.others[used], table.xy[used])
    for name in table.values:
        _warn_of_quality(table, name, table.others[table.usable(name)])


def _warn_of_quality(table: Table, name: str, others: pd.DataFrame) -> None:
    """Warn of columns of quality flags by which measurements differ, and by which no rows were selected."""
    linked = listed_names(table.attrs.get(name, {}).get("ancillary_variables", ""), others.columns)
    for column, entries in others.items():
        flagged = str(column) in linked and bool(class_attrs(table.attrs.get(str(column), {})))
        is_flag = flagged or is_quality_of(str(column), name)
        counts = entries.astype(object).where(entries.notna(), "none").astype(str).str.strip().value_counts()
        if not is_flag or column in table.selected or not 1 < len(counts) <= MEANINGS.flags:
            continue
        shown = ", ".join(f"{entry} in {n}" for entry, n in counts.iloc[:5].items()) + ", ..." * (len(counts) > 5)
        warn(
            f"the rows of {name!r} differ in their quality {str(column)!r} ({shown} rows), and all are used. Select "
            f"the good ones, such as points[points[{str(column)!r}] == {_literal(entries)}] (--where "
            f"'{column}={counts.index[0]}'); if these rows are meant, leave the column out."
        )


def _literal(entries: pd.Series[Any]) -> str:
    """The most frequent entry of a column, as Python writes it."""
    known = entries.dropna().value_counts()
    return repr(known.index[:1].tolist()[0]) if len(known) else "..."


def _warn_of_meanings(table: Table, others: pd.DataFrame) -> None:
    """Warn of columns by which the numbers of some rows mean something else than those of others."""
    plane = () if table.named_degrees else ("zone", "utm")
    meanings = {*MEANINGS.meanings} - {"zone", "utm"} | {*plane}
    for name, column in others.items():
        said, entries = words(str(name)), column.dropna().astype(str).str.strip().unique()
        if said & meanings and said <= meanings | {*MEANINGS.beside} and len(entries) > 1:
            shown = ", ".join(entries[:4]) + (", ..." if len(entries) > 4 else "")
            warn(
                f"the rows differ in {name!r}: got {shown}, and are used together as one quantity in one unit and CRS. "
                f"Select the rows of one (--where '{name}={entries[0]}'), or convert the others."
            )


def _warn_of_hemispheres(table: Table, others: pd.DataFrame, xy: Float64Array) -> None:
    """Warn of longitudes or latitudes whose sign is in a column of its own."""
    if not table.named_degrees:
        return
    for name, column in others.items():
        entries = column.astype(str).str.strip().str.upper()
        for coordinate, values, sides in zip((table.x, table.y), xy.T, MEANINGS.hemispheres, strict=True):
            beyond = entries.isin(sides[::2])
            if beyond.any() and entries.isin(sides).all() and (values[beyond] > 0).all():
                warn(
                    f"column {name!r} is {column[beyond].iloc[0]} in {beyond.sum()} rows, whose {coordinate!r} is "
                    "positive, and is used as it is. If the column says its sign, make the coordinate negative there."
                )


def _warn_of_minutes(table: Table, others: pd.DataFrame, xy: Float64Array) -> None:
    """Warn of whole longitudes or latitudes whose minutes are in a column of their own."""
    axes = (table.x, xy[:, 0], {*TABLES.longitudes}), (table.y, xy[:, 1], {*TABLES.latitudes})
    for name, column in others.items():
        said, minutes = words(str(name)), pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
        for coordinate, values, named in axes:
            is_named = said & named and said & {*MEANINGS.minutes} and said <= named | {*MEANINGS.minutes}
            if is_named and not (values % 1).any() and ((minutes >= 0) & (minutes < 60)).all() and minutes.any():
                warn(
                    f"column {name!r} is not used, and {coordinate!r} holds whole numbers. If these are degrees and "
                    f"minutes, make one column of both: points[{coordinate!r}] + points[{name!r}] / 60, and - instead "
                    "of + where degrees are negative."
                )


def _warn_of_marks(table: Table, xy: Float64Array) -> None:
    """Warn of places such as 0 N, 0 E, which stand for unknown ones."""
    marked = (xy[:, 0] == xy[:, 1]) & np.isin(xy[:, 0], SENTINELS.values)
    for mark in np.unique(xy[marked, 0]):
        others = xy[~marked]
        if not len(others):
            return
        low, high = others.min(0), others.max(0)
        if np.maximum(low - mark, mark - high).max() > SENTINELS.apart * max((high - low).max(), 1e-9):
            warn(
                f"{int((xy[marked, 0] == mark).sum())} measurements lie at {table.x}={mark:g}, {table.y}={mark:g}, far "
                "from all others, and are used there. If their places are unknown, leave these rows out."
            )
