"""Covariates of measurements and of the places to predict: columns of tables, variables of the grid, other rasters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError, warn
from geonp.inference.covariates import Layer
from geonp.io.measurements import Table
from geonp.nn.drift import LEAST_KNOWN
from geonp.raster.arrays import BoolArray, Float64Array
from geonp.raster.covariates import Covariate, CovariateLike, elsewhere, is_constant, named, require_few
from geonp.raster.grid import Grid
from geonp.raster.known_errors import warn_of_known_errors
from geonp.raster.metadata import as_dataset, class_attrs, with_crs_of_each
from geonp.raster.nodata import packing
from geonp.raster.units import require_error_units
from geonp.scattered.fields import Field, Frame
from geonp.scattered.targets import Target

Raster = tuple[Covariate, Grid]


@dataclass(frozen=True)
class SuspicionSettings:
    """When a column and the raster of its name are suspected of showing different things."""

    range: float = 2.5
    """Ratio of standard deviations, from other units: feet and metres have 3.3."""
    classes: float = 0.5
    """Share of the places with other classes, from other numbers of classes."""


SUSPICION = SuspicionSettings()


@dataclass(frozen=True)
class Wanted:
    """A covariate as it is given: columns of this name, and the raster to read where a table has none."""

    label: str
    raster: Raster | None


@dataclass(frozen=True, eq=False)
class PointCovariate:
    """A covariate of measurements and of the places to predict.

    Attributes
    ----------
    measured : array
        ``(n,)`` at the rows of the table, NaN where unknown.
    targets : array or Field
        At the places, or the raster to read there.
    """

    label: str
    classes: bool
    measured: Float64Array
    targets: Float64Array | Field

    def on(self, target: Target) -> Layer:
        """The covariate at the places of a target, lazy on a lazy grid."""
        values: Any = self.targets
        if isinstance(values, Field):
            assert target.template.chunks is not None
            values = values.on_grid(target.y, target.x, target.template.chunks)
        return Layer(values, None, self.classes)

    def layer(self, rows: BoolArray) -> Layer:
        """The covariate of some measurements."""
        return Layer(self.measured[rows], None, self.classes)


def wanted(given: CovariateLike | Sequence[CovariateLike] | None, at: object) -> tuple[Wanted, ...]:
    """The covariates that are given: names of columns, and of variables of the raster `at`, or rasters.

    Raises InputError for anything else, names that are given twice, and too many covariates.
    """
    found: list[Wanted] = []
    for one in named(given):
        if isinstance(one, (xr.DataArray, xr.Dataset)):
            found += [Wanted(_label(covariate), (covariate, grid)) for covariate, grid in elsewhere(one)]
        elif isinstance(one, str):
            found.append(Wanted(one, _variable(at, one)))
        else:
            raise InputError(f"a covariate must be the name of a column, a DataArray or a Dataset: got {one!r}")
    labels = [one.label for one in found]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"the covariate {twice[0]!r} is given twice: got {labels}, expected different names")
    require_few(
        len(found),
        "strongly correlated columns, such as the bands of a spectrum, can be replaced by their first principal "
        "components",
    )
    return tuple(found)


def _label(covariate: Covariate) -> str:
    """The name of a raster; an array without one has no column."""
    return "covariate" if covariate.variable.name is None else covariate.variable.label


def _variable(at: object, name: str) -> Raster | None:
    """The variable of a raster with this name, or the raster itself."""
    if isinstance(at, xr.DataArray):
        at = as_dataset(at)
    if not isinstance(at, xr.Dataset) or name not in at.variables or at[name].ndim < 2:
        return None
    parts = list(elsewhere(with_crs_of_each(at)[name]))
    if len(parts) > 1:
        raise InputError(
            f"the covariate {name!r} has {len(parts)} entries at each place, along {at[name].dims}: expected one; "
            "select one, for example at[name].isel(time=0), or give the array itself, whose entries are covariates each"
        )
    return parts[0]


def beside(given: Sequence[Wanted], table: Table, target: Target, frame: Frame) -> tuple[PointCovariate, ...]:
    """The covariates at the measurements of a table and where to predict.

    Raises InputError for covariates that cannot be read at the measurements or where to predict, or have no value
    there.

    Parameters
    ----------
    given : sequence of Wanted
    table : Table
        The measurements, with their places in `frame`.
    target : Target
        Where to predict. On a lazy grid, rasters are read later.
    frame : Frame
    """
    found = tuple(_beside(one, table, target, frame) for one in given)
    for one in found:
        _check(one, table)
    return found


def errors_of(column: str | None, table: Table) -> Float64Array | None:
    """Known standard errors of the measurements of a table ``(n,)``, 0 where unknown; None without a column of them.

    Raises InputError for an unknown column, negative errors, and several columns of values.
    """
    if column is None:
        return None
    if column not in table.covariates or not pd.api.types.is_numeric_dtype(table.covariates[column]):
        raise InputError(f"the known errors {column!r} are not a numeric column of the table: expected one")
    if len(table.values) > 1:
        raise InputError(
            f"known errors are of one column: got {len(table.values)} to interpolate, {', '.join(table.values)}, "
            "expected one; choose it with values=... (--value)"
        )
    (name,) = table.values
    require_error_units(column, table.attrs.get(column, {}).get("units"), table.attrs.get(name, {}).get("units"))
    (scale, offset), (unit, _) = (packing(table.attrs.get(one, {})) for one in (column, name))
    known = (scale * table.covariates[column].to_numpy(np.float64, na_value=np.nan) + offset) / abs(unit)
    errors: Float64Array = np.nan_to_num(known, posinf=np.inf)
    if np.isinf(errors).any():
        raise InputError(
            f"known errors must be finite: got {np.isinf(errors).sum()} infinite ones in {column!r}; leave these rows "
            "out"
        )
    if (errors < 0).any():
        raise InputError(f"known errors must not be negative: got {errors.min():g} in {column!r}; correct them")
    warn_of_known_errors(known, np.where(table.usable(name), table.values[name], np.nan), column)
    return errors


def _beside(one: Wanted, table: Table, target: Target, frame: Frame) -> PointCovariate:
    label, lazy = one.label, target.template.chunks is not None
    columns = [None if t is None else t.covariates.get(label) for t in (table, target.table)]
    if one.raster is None and any(column is None for column in columns):
        where, remedy = (
            ("at the measurements", "a column of the table of this name")
            if columns[0] is None
            else ("where to predict", f"a {'variable' if target.table is None else 'column'} of this name in at")
        )
        raise InputError(
            f"the covariate {label!r} is unknown {where}: expected {remedy}, or a raster to read there "
            f"(--covariate {quote(f'{label}=raster.tif')})"
        )
    numbers, classes = _numbers(label, [column for column in columns if column is not None], one.raster)
    at_table = None if columns[0] is None else numbers.pop(0)
    at_places = numbers.pop() if numbers else None
    classes = classes or bool(class_attrs(table.attrs.get(label, {})))
    if one.raster is None:
        assert at_table is not None
        assert at_places is not None
        if classes:
            _warn_of_other_classes(label, columns)
        return PointCovariate(label, classes, at_table, at_places)
    covariate, grid = one.raster
    classes = classes or covariate.classes
    if at_table is not None and target.grid is None and target.template.shape == grid.shape and not all(grid.placed):
        # the cells of a curvilinear grid are the places
        stored = covariate.variable
        return PointCovariate(label, classes, at_table, stored.read(stored.source.values).ravel().astype(np.float64))
    field = replace(Field.of(covariate, grid, frame), classes=classes)
    if at_table is None or covariate.variable.source.chunks is None:
        read = field.at(table.xy)
        if at_table is not None:
            _warn_of_difference(label, at_table, read, classes, covariate)
    measured = read if at_table is None else at_table
    if at_places is not None:
        return PointCovariate(label, classes, measured, at_places)
    return PointCovariate(label, classes, measured, field if lazy else field.at(target.places))


def _numbers(label: str, columns: Sequence[pd.Series[Any]], raster: Raster | None) -> tuple[list[Float64Array], bool]:
    """Columns as numbers, NaN where unknown, and whether they are classes: texts are numbered in alphabetical order."""
    others = (column.dropna() for column in columns if not pd.api.types.is_numeric_dtype(column))
    text = next((value for column in others for value in column if not isinstance(value, (Real, np.bool_))), None)
    if text is None:
        arrays = [column.astype(object).to_numpy(np.float64, na_value=np.nan) for column in columns]
        classes = any(column.dtype == "category" or pd.api.types.is_bool_dtype(column) for column in columns)
        return [np.where(np.isfinite(array), array, np.nan) for array in arrays], classes
    if raster is not None or not isinstance(text, str):
        expected = "numbers, as in the raster" if raster is not None else "numbers, booleans or texts"
        raise InputError(f"the covariate {label!r} holds {text!r}, expected {expected}; leave unknown cells empty")
    codes = pd.factorize(pd.concat([column.astype(object) for column in columns]), sort=True)[0]
    numbers = np.where(codes < 0, np.nan, codes)
    return np.split(numbers, np.cumsum([len(column) for column in columns])[:-1]), True


def _warn_of_other_classes(label: str, columns: Sequence[Any]) -> None:
    """Warn if no class where to predict is one of the measurements, as in texts of another case."""
    measured, wanted = ([str(value) for value in pd.unique(column.dropna())] for column in columns)
    if measured and wanted and not {*measured} & {*wanted}:
        got = " and ".join(", ".join(map(repr, one[:3])) for one in (measured, wanted))
        warn(
            f"the covariate {label!r} has no class in common at the measurements and where to predict, and says "
            f"nothing there: got {got}. Write the classes alike in both tables."
        )


def _check(one: PointCovariate, table: Table) -> None:
    """Check the values of a covariate."""
    known = one.measured[np.isfinite(one.measured) & np.isfinite(table.xy).all(1)]
    for where, n in (
        ("at any measurement", known.size),
        ("at any place to predict", 1 if isinstance(one.targets, Field) else np.isfinite(one.targets).sum()),
    ):
        if not n:
            raise InputError(
                f"the covariate {one.label!r} has no value {where}: check its column, or that its raster covers the "
                "places, its CRS and nodata value"
            )
    is_constant(one.label, known, classes=one.classes)
    for name, values in table.values.items():
        if np.array_equal(one.measured, values, equal_nan=True):
            raise InputError(f"the covariate {one.label!r} is {name!r} itself: leave it out, or give another one")
        n = np.count_nonzero(np.isfinite(one.measured) & table.usable(name))
        if 0 < n < LEAST_KNOWN and table.times is None:
            warn(
                f"the covariate {one.label!r} is known at {n} measurements of {name!r}, and is ignored: expected at "
                f"least {LEAST_KNOWN}. Give more measurements, or leave it out of covariates= (--covariate)."
            )


def _warn_of_difference(label: str, column: Float64Array, read: Float64Array, classes: bool, raster: Covariate) -> None:
    """Warn if the column of a table and the raster have other levels or ranges, as in other units.

    Coarse rasters differ from measurements in single values, and may do so.
    """
    both = np.isfinite(column) & np.isfinite(read)
    if not both.any():
        return
    column, read = column[both], read[both]
    low, high = sorted((column.std(), read.std()))
    if classes and (share := np.mean(column != read)) > SUSPICION.classes:
        got = f"other classes at {share:.0%} of the places"
    elif not classes and (high > SUSPICION.range * low or abs(np.median(column) - np.median(read)) > high):
        got = " and ".join(f"{np.median(a):g} with a standard deviation of {a.std():g}" for a in (column, read))
    else:
        return
    file = raster.variable.source.encoding.get("source")
    warn(
        f"the column {label!r} and the raster {label!r}{f' of {file}' if file else ''} differ at the measurements: "
        f"got {got}. The column is used there, and the raster at the places to predict: check that both have one "
        "unit, such as metres, and one meaning."
    )
