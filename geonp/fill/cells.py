"""Fills onto coarser grids: means over the cells of a target, with the standard errors of these means."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError, warn
from geonp.fill.aggregate import AGGREGATE, aggregate
from geonp.fill.elsewhere import Target, arrays_on
from geonp.fill.options import FillOptions
from geonp.fill.region import unknown
from geonp.fill.request import Request
from geonp.fill.variables import Raster
from geonp.inference.kernel import result_dtype
from geonp.raster.arrays import Array
from geonp.raster.casting import lattice_of
from geonp.raster.covariates import named
from geonp.raster.mapping import Mapping
from geonp.raster.metadata import FillFlag, Kind
from geonp.raster.variable import Variable


@dataclass(frozen=True)
class _CellSettings:
    """Settings of cells of a target."""

    places: int = 4
    """Number of places along each side of a cell that must lie in the raster."""


_SETTINGS = _CellSettings()


def means_at(
    obj: Raster, request: Request, target: Target, options: dict[str, Any]
) -> dict[Any, dict[Any, xr.DataArray]]:
    """Means over the cells of a target, by variable: those of all cells of the raster whose centres lie within.

    The standard errors account for the correlation of errors between cells, see :func:`geonp.aggregate`. Raises
    InputError for cells too small for a mean, variables that are not numbers, and results that means do not have.
    """
    found, usual = request.options, FillOptions()
    usable = [name for name in options if name in signature(aggregate).parameters and name != "statistic"]
    others = {name: getattr(found, name) for name in options if name not in (*usable, "missing")}
    if wrong := [
        name
        for name, value in others.items()
        if value is not None and not (isinstance(value, bool | str | tuple) and value == getattr(usual, name))
    ]:
        raise InputError(
            "means over cells (support='cell') are those of a plain fill, and have standard errors only: got "
            f"{', '.join(wrong)}, expected none of these options. Fill on the grid of the raster, and average the "
            "result with aggregate()."
        )
    if any(variable.kind is not Kind.NUMBERS for variable in request.variables):
        raise InputError(
            "means over cells (support='cell') need numbers: got classes, counts or directions; choose other variables"
        )
    labels = _labels(request, target)
    given = {name: options[name] for name in usable} | {"samples": found.samples or AGGREGATE.samples}
    table = aggregate(obj if found.missing is None else _without_hidden(request), labels, **given)
    request, out = replace(request, options=replace(found, samples=0)), {}
    for variable in request.variables:
        rows = table[table["variable"] == variable.label]
        out[variable.name] = arrays_on(request, target, variable, _result(rows, variable, target, labels))
    return out


def _without_hidden(request: Request) -> xr.Dataset:
    """The variables of a fill, and those that it reads by name, without the values that conditions hide."""
    read = [*named(request.options.covariates), *named(request.options.errors)]
    names = [variable.name for variable in request.variables]
    return request.ds[[*names, *(one for one in read if isinstance(one, str) and one in request.ds)]]


def _labels(request: Request, target: Target) -> Array:
    """For each cell of the raster the number of the cell of the target that its centre lies in, from 1; 0 for none."""
    grid, shape = request.grid, target.grid.shape
    places = Mapping.of(target.grid, grid)(*grid.centres(request.ds))
    inside = np.asarray(np.isfinite(places).all(-1))
    row, col = np.moveaxis(np.rint(np.where(inside[..., None], places, 0)).astype(np.int64), -1, 0)
    labels = np.where(inside, row * shape[1] + col + 1, 0)
    held = np.bincount(labels.ravel(), minlength=shape[0] * shape[1] + 1)[1:]
    covered = np.isfinite(target.mapping(*target.coordinates)).all(-1).ravel()
    if not (inside.any() or covered.any()):
        raise InputError(target.outside)
    if bare := int((covered & (held == 0)).sum()):
        raise InputError(
            f"{bare:,} of {int(covered.sum()):,} cells of the target grid contain no cell centre of the raster, so "
            "that they have no mean: choose larger cells, or values at points (support='point', --support point)"
        )
    if cut := int(((held > 0) & ~_whole(target)).sum()):
        warn(
            f"{cut:,} of {int((held > 0).sum()):,} cells of the target grid lie partly outside of the raster: their "
            "means, and standard errors, are those of the part inside."
        )
    return np.asarray(labels)


def _whole(target: Target) -> Array:
    """Mask of the cells of a target that lie in the raster, but for an eighth at their sides."""
    offsets = (np.arange(_SETTINGS.places) + 0.5) / _SETTINGS.places - 0.5
    y, x = target.coordinates
    sides = [np.gradient(centres) if centres.size > 1 else np.zeros(1) for centres in (y, x)]
    inside = [
        np.isfinite(target.mapping(y + down * sides[0], x + right * sides[1])).all(-1)
        for down, right in itertools.product(offsets, offsets)
    ]
    return np.asarray(np.all(inside, axis=0).ravel())


def _result(rows: pd.DataFrame, variable: Variable, target: Target, labels: Array) -> Array:
    """The rows of a table as a result ``(..., rows, columns)`` on the target."""
    size = target.grid.shape[0] * target.grid.shape[1]
    out = unknown((variable.slices, size), result_dtype(variable.read.dtype))
    index = np.unique(labels[labels > 0]) - 1
    columns = {name: rows[name].to_numpy().reshape(variable.slices, index.size) for name in ("value", "standard_error")}
    if (lattice := lattice_of(variable.source.dtype, variable.encoding)) is not None:
        offset, scale = lattice
        packed, error = (columns["value"] - offset) / scale, columns["standard_error"]
        # means of integers are rounded when they are stored, also those of observed cells
        columns["standard_error"] = np.where(packed == np.rint(packed), error, np.maximum(error, 1e-30))
    for name, values in columns.items():
        out[name][:, index] = values
    cells, filled = (rows[name].to_numpy().reshape(variable.slices, index.size) for name in ("cells", "filled"))
    out["tail"][:, index] = np.where(cells > 0, 0.0, np.nan)
    out["flag"][:, index] = np.select(
        [cells == 0, filled > 0], [FillFlag.BEYOND_LIMIT, FillFlag.FILLED], FillFlag.OBSERVED
    )
    return out.reshape(*variable.shape[:-2], *target.grid.shape)
