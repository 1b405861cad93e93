"""Rows of a table that meet conditions, such as one date of a station network."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError, warn
from geonp.io.columns import bracketed
from geonp.io.frames import SELECTED, levels_of
from geonp.raster.arrays import Array, BoolArray
from geonp.raster.flags import parsed
from geonp.raster.metadata import flag_meanings_of
from geonp.raster.times import ZONE, compared, parsed_times

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_REST = re.compile(r"\s*(?:&\s*\w+\s*(?:[=!].*)?|(?P<operator>==|!=|>=|<=|=|>|<)\s*(?P<value>.*\S))\s*")
"""What follows the name of a column."""
_BOOLEANS = {"True": "True", "False": "False", "1": "True", "0": "False"}
"""Booleans as conditions write them."""


@dataclass(frozen=True)
class _Condition:
    """A condition as it is written; without an operator it tests bits."""

    text: str
    column: str
    operator: str
    value: str

    def of(self, values: xr.DataArray) -> BoolArray:
        """Mask of the values that meet it. Raises InputError for a limit or bits that values cannot have."""
        found = np.asarray(values.values)
        if not self.operator:
            if found.dtype.kind not in "iuf":
                raise InputError(f"--where {self.text!r} tests bits: expected integers in the column {self.column!r}.")
            return parsed(self.text, lambda name: False).on(values)(found)
        if self.operator not in _COMPARISONS:
            named = self.alternatives(values)
            if self.operator == "!=" and (wrong := [one for one in named if not _may_equal(values, one)]):
                kind = "true or false" if _holds_booleans(values) else "numbers"
                raise InputError(
                    f"--where {self.text!r} needs {kind} for the column {self.column!r}: got {wrong[0]!r}, and values "
                    f"such as {next(iter(found.ravel().tolist()), 'none')}. Correct --where."
                )
            equal = np.any([_equal(values, one) for one in named], axis=0)
            return np.asarray(equal if self.operator == "=" else ~equal)
        try:
            if found.dtype.kind in "OUS":
                times = parsed_times(pd.Series(found.ravel(), name=self.column), self.column)
                found = np.asarray(times.values).reshape(found.shape)
            return compared(found, _COMPARISONS[self.operator], self.value)
        except (InputError, ValueError, TypeError):
            known = next((str(one) for one in found.ravel() if not pd.isna(one)), "nothing")
            raise InputError(
                f"--where {self.text!r} compares with a number or a time: got {self.value!r}, and a column "
                f"{self.column!r} that holds {known}. Correct --where, or use = or !=."
            ) from None

    def alternatives(self, values: xr.DataArray) -> list[str]:
        """The values that are named: one, which may contain commas, or several between commas."""
        if "," not in self.value or _equal(values, self.value).any():
            return [self.value]
        return [part.strip() for part in self.value.split(",") if part.strip()]


def selected(points: pd.DataFrame | xr.Dataset, conditions: Iterable[str]) -> pd.DataFrame | xr.Dataset:
    """The rows of a table whose columns, or the part of a Dataset whose coordinates, meet conditions.

    A condition is ``COLUMN=VALUE[,VALUE...]``, also with ``!=``, a comparison with ``>``, ``>=``, ``<`` or ``<=``, or a
    test of bits as in :mod:`geonp.raster.flags`. Rows meet all of them, but of several ``=`` for one column, one.
    Values are compared as numbers, times or text, by the type of the column. A time may be given by its first parts:
    ``2020-07`` is all of July. Flags of a file have names. A column ``depth [m]`` is also called ``depth``.
    A dimension without a coordinate is selected by number, from 0. A variable on rows and columns, such as the quality
    of the cells of a swath, hides values instead. Warns of values that no row has. Raises InputError if no row is left,
    for a column that does not exist, and for what is no condition.
    """
    found = points if isinstance(points, xr.Dataset) else points.reset_index(levels_of(points))
    columns = list(map(str, {**found.variables, **found.sizes} if isinstance(found, xr.Dataset) else found.columns))
    each = [_condition(text, columns) for text in conditions]
    grouped: dict[Any, list[_Condition]] = {}
    for n, one in enumerate(each):
        grouped.setdefault(one.column if one.operator == "=" else n, []).append(one)
    for group in grouped.values():
        points = _meeting(points, group)
    if each:
        points = points.copy(deep=False)
        points.attrs[SELECTED] = [*points.attrs.get(SELECTED, ()), *{one.column: None for one in each}]
    return points


def _meeting(points: pd.DataFrame | xr.Dataset, group: Sequence[_Condition]) -> pd.DataFrame | xr.Dataset:
    """The part of a table that meets one of some conditions for a column."""
    name = group[0].column
    if isinstance(points, xr.Dataset):
        values = points[name]
    else:
        column = points.reset_index(levels_of(points))[name]
        if not isinstance(column.dtype, np.dtype) and (
            column.dtype.kind == "M" or isinstance(column.dtype, pd.PeriodDtype)
        ):
            column = parsed_times(column, name)
        values = xr.DataArray(np.asarray(column.values), dims="row", name=name)
    values = _in_utc(values)
    masks = [one.of(values) for one in group]
    if group[0].operator == "=":
        texts = [text for one in group for text in one.alternatives(values)]
        absent = [f"{name}={' or '.join(none)}"] if (none := [t for t in texts if not _equal(values, t).any()]) else []
    else:
        absent = [] if np.any(masks) else [group[0].text]
    if absent:
        known = ", ".join(map(str, pd.unique(values.values.ravel())[:5]))
        message = f"No row has {absent[0]}: got values such as {known}. Correct --where."
        if not np.any(masks):
            raise InputError(message)
        warn(message)
    mask = np.any(masks, axis=0)
    if not isinstance(points, xr.Dataset):
        return points[mask]
    if values.ndim == 1:
        return points.isel({values.dims[0]: mask})
    return _hidden(points, values.copy(data=mask))


def _in_utc(values: xr.DataArray) -> xr.DataArray:
    """Texts that say times and their difference from UTC as times in UTC, which other columns of times are in."""
    texts = values.values.ravel()
    if values.dtype.kind not in "OUS" or not all(ZONE.search(str(text)) for text in texts if not pd.isna(text)):
        return values
    try:
        return values.copy(data=parsed_times(pd.Series(texts), "").to_numpy().reshape(values.shape))
    except InputError:  # no time, or nothing at all
        return values


def _condition(text: str, columns: Sequence[str]) -> _Condition:
    """Parse a condition for one of some columns, of which names may be given without units in brackets."""
    names = {name: name for name in columns} | {short: name for name, (short, _) in bracketed(columns).items()}
    for name in sorted(names, key=len, reverse=True):
        rest = _REST.fullmatch(text[len(name) :]) if text.startswith(name) else None
        if rest is not None:
            return _Condition(text, names[name], (rest["operator"] or "").replace("==", "="), rest["value"] or "")
    other = re.match(r"(.+?)\s*(&|[=!<>])", text)
    if other is None or other[1] in names:
        raise InputError(
            f"--where {text!r} is no condition: expected COLUMN=VALUE, COLUMN=VALUE,VALUE, COLUMN!=VALUE, "
            "COLUMN>=VALUE (or >, <, <=) or COLUMN&BITS, in quotation marks."
        )
    raise InputError(f"No column {other[1]!r} to select by: got {', '.join(columns)}. Correct --where.")


def _hidden(points: xr.Dataset, mask: xr.DataArray) -> xr.Dataset:
    """The same Dataset without the values and times of cells that are not in the mask."""
    times = {name: one for name, one in points.coords.items() if one.dtype.kind == "M"}
    inside = {name: one for name, one in {**points.data_vars, **times}.items() if {*mask.dims} <= {*one.dims}}
    return points.assign({name: one.where(mask) for name, one in inside.items()})


def _may_equal(column: xr.DataArray, text: str) -> bool:
    """Whether a value is a number or a flag, if a column holds numbers, or true or false, if it holds booleans."""
    if _holds_booleans(column):
        return text.capitalize() in _BOOLEANS
    if column.dtype.kind not in "iuf" or text in flag_meanings_of(column.attrs):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _holds_booleans(column: xr.DataArray) -> bool:
    if column.dtype.kind != "O":
        return column.dtype.kind == "b"
    known = [value for value in column.values.ravel() if not pd.isna(value)]
    return bool(known) and all(isinstance(value, bool | np.bool_) for value in known)


def _equal(column: xr.DataArray, text: str) -> BoolArray:
    values: Array = np.asarray(column.values)
    try:
        if values.dtype.kind == "M":
            return compared(values, operator.eq, text)
        if values.dtype.kind in "iuf":
            if text in flag_meanings_of(column.attrs):
                return parsed(f"{column.name}={text}", lambda name: False).on(column)(values)
            return _equal_numbers(values, text)
    except ValueError:
        return np.zeros(values.shape, bool)
    if _holds_booleans(column):
        text = _BOOLEANS.get(text.capitalize(), text)
    said = [str(value).strip() for value in values.ravel()]
    equal = np.array([one == text for one in said], bool)
    if not equal.any() and re.fullmatch(r"\d{4}(-\d\d){0,2}", text):  # the first parts of a time that is text
        equal = np.array([re.match(rf"{text}(?!\d)", one) is not None for one in said], bool)
    return equal.reshape(values.shape)


def _equal_numbers(values: Array, text: str) -> BoolArray:
    """Raises ValueError if the text is no number."""
    number = float(text)
    if values.dtype.kind != "f":  # numbers of sites may have 15 digits, which differ by less than rounding
        return np.asarray(values == (int(text) if re.fullmatch(r"[-+]?\d+", text.strip()) else number))
    return np.asarray((np.abs(values - number) <= np.minimum(1e-9 * abs(number), 0.5)) | (values == number))
