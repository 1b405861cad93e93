"""Slices selected by their coordinates, such as the dates of a month."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError
from geonp.raster.arrays import Float64Array, IntArray
from geonp.raster.grid import Grid
from geonp.raster.positions import times_along
from geonp.raster.tolerances import TOLERANCES

Label = str | float | None
"""A coordinate; None leaves a range open."""

_OPEN = -np.inf, np.inf
_AMBIGUOUS = re.compile(r"\d{1,2}[-./]\d")
"""Dates that begin with a day or a month."""


def select_labels(ds: xr.Dataset, wanted: Mapping[Hashable, tuple[Label, Label]]) -> xr.Dataset:
    """The slices whose coordinates lie in ranges, both ends included.

    Parameters
    ----------
    ds : Dataset
    wanted : mapping
        First and last coordinate by dimension, not those of rows and columns. A year, a month or a day as text stands
        for all times in it. A dimension without coordinate has positions from 0, and times if another coordinate
        along it has any.

    Returns
    -------
    Dataset
        With all dimensions of `ds`, and in its order.

    Raises
    ------
    InputError
        For an unknown dimension, rows or columns, a range without a slice, and labels of another kind than the
        coordinates.
    """
    grid = Grid.from_xarray(ds)
    others = [str(dim) for dim in ds.dims if dim not in grid.dims]
    for dim, (first, last) in wanted.items():
        if str(dim) not in others:
            hint = "Select rows and columns with bbox (--bbox)." if dim in ds.dims else "Check its name."
            raise InputError(
                f"select (--select) must name dimensions of slices: got {str(dim)!r}, expected "
                f"{' or '.join(map(repr, others)) or 'none, for there are none'}. {hint}"
            )
        index = _index(ds, dim, first, last)
        cells = _between(index, str(dim), first, last)
        if not cells.size:
            shown = ", ".join(map(str, index[:3])) + (", ..." if len(index) > 3 else "")
            raise InputError(
                f"No slice lies in the range of select (--select): got {_said(first, last)} along {str(dim)!r}, "
                f"expected some of {shown}"
            )
        whole = cells.size == cells[-1] - cells[0] + 1
        ds = ds.isel({dim: slice(int(cells[0]), int(cells[-1]) + 1) if whole else cells})
    return ds


def _index(ds: xr.Dataset, dim: Hashable, first: Label, last: Label) -> pd.Index:
    """The labels of slices: their positions, or times if they have any, where a dimension has no coordinate."""
    index = ds.get_index(dim)
    given = [str(end) for end in (first, last) if end is not None]
    if dim in ds.indexes or all(end.isdecimal() and int(end) < index.size for end in given):
        return index
    times = times_along(ds, dim)
    return index if times is None or times.dtype.kind == "m" else xr.DataArray(times, dims="time").to_index()


def _said(first: Label, last: Label) -> str:
    if first == last:
        return str(first)
    if first is None:
        return f"all up to {last}"
    return f"all from {first} on" if last is None else f"{first} to {last}"


def _between(index: pd.Index, dim: str, first: Label, last: Label) -> IntArray:
    """Positions of labels in a range, ascending."""
    if isinstance(index, pd.DatetimeIndex | xr.CFTimeIndex):
        known = np.flatnonzero(index.notna())
        order = known[index[known].argsort(kind="stable")]
        try:
            ends: list[Any] = [None if end is None else str(end) for end in (first, last)]
            if any(_AMBIGUOUS.match(end or "") for end in ends):  # pandas takes 02.01.2020 for the first of February
                raise ValueError
            found = index[order].slice_indexer(*ends)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"select (--select) must be times along {dim!r}: got {_said(first, last)}, expected for example 2020, "
                "2020-07, 2020-07-31 or 2020-07-31T12:00"
            ) from error
        return np.sort(order[found])
    if index.dtype.kind in "iuf":
        try:
            low, high = (
                end if value is None else _number(value) for value, end in zip((first, last), _OPEN, strict=True)
            )
        except ValueError as error:
            raise InputError(
                f"select (--select) must be numbers along {dim!r}: got {_said(first, last)}, expected for example "
                f"{index[0]}"
            ) from error
        values = index.to_numpy()
        slack = _slack(values.astype(np.float64)) if values.dtype.kind == "f" else 0
        return np.flatnonzero((values + slack >= low) & (values - slack <= high))
    if first != last or first is None:
        raise InputError(
            f"select (--select) must be one label along {dim!r}: got {_said(first, last)}, expected for example "
            f"{index[0]}"
        )
    return np.flatnonzero([str(label) == str(first) for label in index])


def _number(label: str | float) -> float:
    """An int if it is one, because float64 does not represent large ones, such as times in nanoseconds."""
    try:
        return int(label) if isinstance(label, str) else label
    except ValueError:
        return float(label)


def _slack(values: Float64Array) -> Float64Array:
    """How far a number may be from each label that it means; less than half of the step to the next label."""
    steps = np.diff(np.unique(values[np.isfinite(values)]))
    return np.asarray(np.minimum(TOLERANCES.label * np.abs(values), steps.min(initial=np.inf) / 4))
