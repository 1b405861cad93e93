"""Rows of a table that meet conditions, such as one date of a station network."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError
from geonp.raster.arrays import Array, BoolArray


def selected(points: pd.DataFrame | xr.Dataset, conditions: Mapping[str, str]) -> pd.DataFrame | xr.Dataset:
    """The rows of a table whose columns, or the part of a Dataset whose coordinates, have these values.

    Values are compared as numbers, times or text, by the type of the column. A time may be given by its first parts, as
    in ``2020-07``. Raises InputError for a column that does not exist or is not one-dimensional, and if no row is left.
    """
    for name, text in conditions.items():
        columns = list(map(str, points.variables if isinstance(points, xr.Dataset) else points.columns))
        if name not in columns or (isinstance(points, xr.Dataset) and points[name].ndim != 1):
            raise InputError(f"No column {name!r} to select by: got {', '.join(columns)}. Correct --where.")
        values = np.asarray(points[name].values)
        mask = _equal(values, text)
        if not mask.any():
            known = ", ".join(map(str, pd.unique(values)[:5]))
            raise InputError(f"No row has {name}={text}: got values such as {known}. Correct --where.")
        points = points.isel({points[name].dims[0]: mask}) if isinstance(points, xr.Dataset) else points[mask]
    return points


def _equal(values: Array, text: str) -> BoolArray:
    try:
        if values.dtype.kind == "M":
            time = np.datetime64(text)
            return np.asarray(values.astype(time.dtype) == time)
        if values.dtype.kind in "iuf":
            return np.asarray(np.isclose(values.astype(np.float64), float(text), rtol=1e-9, atol=0))
    except ValueError:
        return np.zeros(values.shape, bool)
    equal = np.array([str(value).strip() == text for value in values], bool)
    if not equal.any() and re.fullmatch(r"\d{4}(-\d\d){0,2}", text):  # the first parts of a time that is text
        equal = np.array([re.match(rf"{text}(?!\d)", str(value).strip()) is not None for value in values], bool)
    return equal
