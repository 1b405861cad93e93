"""Rows of a table that meet conditions, such as one date of a station network."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError, warn
from geonp.io.frames import levels_of
from geonp.raster.arrays import Array, BoolArray


def selected(points: pd.DataFrame | xr.Dataset, conditions: Iterable[tuple[str, str]]) -> pd.DataFrame | xr.Dataset:
    """The rows of a table whose columns, or the part of a Dataset whose coordinates, have these values.

    A dimension without a coordinate is selected by number, from 0.
    Conditions are names of columns and values. Rows meet one condition of each column that has any. Values are compared
    as numbers, times or text, by the type of the column. A time may be given by its first parts, as in ``2020-07``. A
    variable on rows and columns, such as the quality of the cells of a swath, hides values instead.
    Warns of values that no row has. Raises InputError if no row is left, and for a column that does not exist.
    """
    wanted: dict[str, list[str]] = {}
    for name, text in conditions:
        wanted.setdefault(name, []).append(text)
    for name, texts in wanted.items():
        found = points if isinstance(points, xr.Dataset) else points.reset_index(levels_of(points))
        columns = list(map(str, {**found.variables, **found.sizes} if isinstance(found, xr.Dataset) else found.columns))
        if name not in columns:
            raise InputError(f"No column {name!r} to select by: got {', '.join(columns)}. Correct --where.")
        values = np.asarray(found[name].values)
        equal = {text: _equal(values.ravel(), text) for text in texts}
        if absent := [text for text, mask in equal.items() if not mask.any()]:
            known = ", ".join(map(str, pd.unique(values.ravel())[:5]))
            message = f"No row has {name}={' or '.join(absent)}: got values such as {known}. Correct --where."
            if len(absent) == len(equal):
                raise InputError(message)
            warn(message)
        mask = np.any([*equal.values()], axis=0)
        if not isinstance(points, xr.Dataset):
            points = points[mask]
        elif points[name].ndim == 1:
            points = points.isel({points[name].dims[0]: mask})
        else:
            points = _hidden(points, points[name].copy(data=mask.reshape(values.shape)))
    return points


def _hidden(points: xr.Dataset, mask: xr.DataArray) -> xr.Dataset:
    """The same Dataset without the values of cells that are not in the mask."""
    inside = {name: one for name, one in points.data_vars.items() if {*mask.dims} <= {*one.dims}}
    return points.assign({name: one.where(mask) for name, one in inside.items()})


def _equal(values: Array, text: str) -> BoolArray:
    try:
        if values.dtype.kind == "M":
            time = np.datetime64(text)
            return np.asarray(values.astype(time.dtype) == time)
        if values.dtype.kind in "iuf":
            return np.asarray(np.isclose(values.astype(np.float64), float(text), rtol=1e-9, atol=0))
    except ValueError:
        return np.zeros(values.shape, bool)
    if values.dtype.kind == "b":
        text = text.capitalize()
    equal = np.array([str(value).strip() == text for value in values], bool)
    if not equal.any() and re.fullmatch(r"\d{4}(-\d\d){0,2}", text):  # the first parts of a time that is text
        equal = np.array([re.match(rf"{text}(?!\d)", str(value).strip()) is not None for value in values], bool)
    return equal
