"""Measurements beside a raster: read from a table, placed among its cells, and compared with it once."""

from __future__ import annotations

import datetime
import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError, warn
from geonp.fill.region import VariableSource
from geonp.fill.request import Request, require_covariates
from geonp.fill.surroundings import Region
from geonp.inference.measurements import Measurements
from geonp.inference.places import fill_places
from geonp.io.columns import bracketed, words
from geonp.io.doubtful_rows import warn_of_doubtful_rows
from geonp.io.measurements import Table, read_table, transformed
from geonp.raster.arrays import Array, Float64Array, IntArray
from geonp.raster.grid import Grid
from geonp.raster.metadata import Kind
from geonp.raster.nodata import packing
from geonp.raster.positions import times_along
from geonp.raster.times import in_calendar, parsed_times, times_of
from geonp.raster.units import measure_of, require_error_units
from geonp.raster.variable import Variable
from geonp.raster.windows import CHUNKS, Window


@dataclass(frozen=True)
class ErrorSettings:
    """Settings of the estimate of errors of measurements."""

    compared: int = 200
    """Number of measurements that are compared with predictions from the raster alone."""
    least: int = 5
    """Smallest number of them from which their error is estimated."""
    steps: int = 64
    """Standard errors that are tried, from a thousandth of the spread of the differences up to it."""
    one_slice: datetime.timedelta = datetime.timedelta(days=2)
    """Measurements of one slice that are farther apart in time, from it or from each other, come with a warning."""
    part_px: int = 256
    """Cells of the side of a part of the raster whose measurements are compared together: a window that fits memory."""


ERRORS = ErrorSettings()


def with_measurements(request: Request) -> Request:
    """The request with the measurements of its options in the job, offset removed; reads what lies around some of them.

    Raises InputError for tables that cannot be used, options that do not go with measurements, and too few of them to
    estimate their errors from. Raises ModelError for a model without covariates and known errors.
    """
    options = request.options
    if options.points is None:
        if options.point_errors is not None:
            raise InputError(f"point_errors needs points: got {options.point_errors!r} without a table of measurements")
        return request
    variable, table = _read(request)
    _check(request, variable)
    points = _placed(request, variable, table)
    _warn_of_times(variable.source, table)
    errors = None if options.point_errors is None else _errors(table, options.point_errors)
    factor, shift, converted = _conversion(variable, table)
    scale, offset = packing(variable.source.attrs)
    points = replace(points, values=(factor * points.values + shift - offset) / scale)
    errors = None if errors is None else abs(factor / scale) * errors
    known = np.flatnonzero(np.isfinite(points.values) & np.isfinite(points.places).all(1))
    if errors is not None:
        whole, known = known.size, known[np.isfinite(errors[known])]
        if whole > known.size:
            warn(
                f"{whole - known.size} rows of points have no finite standard error in {options.point_errors!r}, and "
                "are not used. Give them one, such as the largest one."
            )
    points = replace(points, errors=np.zeros(len(points.values)) if errors is None else errors).at(known)
    points = _without_copies(points)
    offset, offset_error, error = _compared(request, variable, points, estimated=errors is None)
    if abs(offset) > float(np.ptp(points.values)) > 0:
        warn(
            f"points differ from {variable.label!r} by {offset:+.4g} on average, which is more than their range. This "
            "offset is removed; check that both have one unit (other differences of units are not removed)."
        )
    used = np.full(points.values.size, error) if errors is None else points.errors
    points = replace(points, values=points.values - offset, errors=used, offset_error=offset_error)
    text = f"{used.size}{converted}, offset {offset:.4g} removed, standard error {np.median(used):.3g}"
    attrs = {"geonp_points": text}
    return replace(request, job=replace(request.job, points=points), ds=request.ds.assign_attrs(attrs))


def _without_copies(points: Measurements) -> Measurements:
    """The measurements without copies, which take the room of others in a tile; warns of them.

    None are copies if rows of one place and slice differ anywhere: then equal rows may agree by chance.
    """
    where = pd.DataFrame(np.concatenate([points.places, points.slices], 1))
    copies = where.assign(value=points.values, error=points.errors).duplicated().to_numpy()
    if not copies.any() or (copies != where.duplicated().to_numpy()).any():
        return points
    warn(f"{copies.sum()} rows of points repeat another row, as of files that were joined twice, and are not used.")
    return points.at(~copies)


def _read(request: Request) -> tuple[Variable, Table]:
    """The variable that is measured, and the table."""
    options, names = request.options, {str(variable.name): variable for variable in request.variables}
    apart = {str(dim) for variable in request.variables for dim in variable.leading}
    given = options.points
    columns = [str(name) for name in (given.variables if isinstance(given, xr.Dataset) else given)]
    columns = [bracketed(columns).get(name, (name, ""))[0] for name in columns]
    measured = [name for name in names if name in columns]
    if len(measured) > 1 or (not measured and len(names) > 1):
        raise InputError(
            f"points measure one variable: got columns {', '.join(columns)} and the variables {', '.join(names)}, "
            "expected one column with the name of one of them; fill the variables one by one, or drop columns"
        )
    beside = [*apart, *([] if options.point_errors is None else [options.point_errors])]
    table = read_table(given, measured or None, None, None, beside, crossed=bool(apart & {*columns}))
    if len(table.values) != 1:
        raise InputError(f"points have one column of values: got {', '.join(table.values) or 'none'}")
    warn_of_doubtful_rows(table)
    (name,) = measured or names
    return names[name], transformed(table, None, request.grid)


def _conversion(variable: Variable, table: Table) -> tuple[float, float, str]:
    """Factor and offset from the units of measurements to those of a variable, and the words that say so, or none.

    Raises InputError for units of another quantity. Warns of different units of which one is not known.
    """
    (name,) = table.values
    own, goal = (str(attrs.get("units", "")) for attrs in (table.attrs.get(name, {}), variable.source.attrs))
    if not own or not goal or own == goal:
        return 1.0, 0.0, ""
    units = measure_of(own), measure_of(goal)
    said = f"the column {name!r} of points has the units {own!r}, and {variable.label!r} has {goal!r}"
    if units[0] is not None and units[1] is not None:
        if units[0].dims == units[1].dims:
            factor, shift = units[0].converted_to(units[1])
            same = math.isclose(factor, 1.0, rel_tol=1e-9) and math.isclose(shift, 0.0, abs_tol=1e-9)
            return factor, shift, "" if same else f", converted from {own}"
        if units[0].sized and units[1].sized:
            raise InputError(
                f"{said}, which is another quantity, so that points (--points) cannot be used: give measurements of "
                f"{variable.label!r}, or correct the units in the header or attributes of one of the two."
            )
    warn(f"{said}, and whether these are the same is not known: points (--points) are used without conversion.")
    return 1.0, 0.0, ""


def _check(request: Request, variable: Variable) -> None:
    options, job = request.options, request.job
    used = {
        "across": bool(job.across),
        "samples": bool(options.samples),
        "smooth": options.smooth,
        "bounds": bool(request.bounds),
        "classes, counts or directions": variable.kind is not Kind.NUMBERS or bool(request.card.classes),
    }
    if found := [name for name, value in used.items() if value]:
        raise InputError(f"points cannot be combined with {', '.join(found)}: leave one of the two out")
    require_covariates(request.card, 1)


def _placed(request: Request, variable: Variable, table: Table) -> Measurements:
    """The measurements at rows, columns and slices of the raster; NaN outside of it."""
    grid, (values,) = request.grid, table.values.values()
    places = np.stack([_index(request.ds, grid, axis, table.xy[:, 1 - axis]) for axis in (0, 1)], 1)
    slices = np.zeros((len(places), len(variable.leading)), np.intp)
    for k, dim in enumerate(variable.leading):
        found = _slices(variable.source, dim, table)
        slices[:, k], places[found < 0] = np.maximum(found, 0), np.nan
    inside = np.isfinite(places).all(1)
    if not inside.any():
        raise InputError(
            f"none of the {len(places)} points lies in the raster: check their coordinates and CRS, and their times"
        )
    if lost := int((~inside & np.isfinite(values)).sum()):
        warn(f"{lost} of {len(places)} points lie outside of the raster or far from its slices, and are not used.")
    return Measurements(variable.name, places, values.astype(np.float64), np.zeros(len(places)), slices)


def _index(ds: xr.Dataset, grid: Grid, axis: int, at: Float64Array) -> Float64Array:
    """Rows or columns of coordinates, with fractions; NaN beyond half a cell outside of the raster."""
    dim = grid.dims[axis]
    if dim not in ds.coords or ds.coords[dim].ndim != 1 or ds.sizes[dim] < 2:
        raise InputError(f"points need a raster with coordinates: got no {dim!r} for rows or columns")
    centres = ds.coords[dim].values.astype(np.float64) * (grid.factors[axis] if grid.geographic else 1.0)
    if axis == 1 and grid.geographic:
        centres = np.unwrap(centres, period=360.0)
        at = (at - centres.min() + 180 / len(centres)) % 360 + centres.min() - 180 / len(centres)
    numbers = np.arange(len(centres), dtype=np.float64)
    if centres[0] > centres[-1]:
        centres, numbers = centres[::-1], numbers[::-1]
    ends = centres[0] - (centres[1] - centres[0]), centres[-1] + (centres[-1] - centres[-2])
    step = numbers[1] - numbers[0]
    numbers = np.concatenate([[numbers[0] - step], numbers, [numbers[-1] + step]])
    found = np.interp(at, [ends[0], *centres, ends[1]], numbers, left=np.nan, right=np.nan)
    return np.where((found > -0.5) & (found < len(centres) - 0.5), found, np.nan)


def _slices(source: xr.DataArray, dim: Hashable, table: Table) -> IntArray:
    """The nearest slice of each measurement; -1 for those farther away than half a step."""
    n = source.sizes[dim]
    if str(dim) not in table.covariates:
        if n > 1:
            raise InputError(
                f"the raster has {n} slices along {dim!r}: expected a column {str(dim)!r} in points, which says the "
                f"slice of each measurement; got {', '.join(map(str, table.others)) or 'no other column'}"
            )
        return np.zeros(len(table.xy), np.intp)
    if dim not in source.coords:
        raise InputError(f"points have a column {str(dim)!r}, but the raster has no coordinate of this name: assign it")
    times = times_of(table.covariates[str(dim)])
    if n == 1:
        return np.where(times.of_rows < 0, -1, 0)
    known, at = _along(source, dim, times.values)
    kinds = {known.dtype.kind, at.dtype.kind}
    if not (kinds <= {*"iuf"} or kinds in ({"M"}, {"m"})):
        raise InputError(
            f"the column {str(dim)!r} of points and the coordinate of the raster differ in kind: got {at.dtype} and "
            f"{known.dtype}. Convert one of the two"
        )
    if not kinds <= {*"iuf"}:  # in one unit
        known, at = (part.astype(f"{known.dtype.kind}8[ns]").astype(np.int64) for part in (known, at))
    known, at = known.astype(np.float64), at.astype(np.float64)
    apart = np.nan_to_num(np.abs(at[:, None] - known), nan=np.inf)  # of days that the calendar of the raster lacks
    nearest, step = apart.argmin(1), float(np.median(np.abs(np.diff(known))))
    found = np.where(apart.min(1) <= step / 2 * (1 + 1e-9), nearest, -1)
    return np.asarray(np.where(times.of_rows < 0, -1, found[times.of_rows]), np.intp)


def _along(source: xr.DataArray, dim: Hashable, at: Array) -> tuple[Array, Array]:
    """The coordinate of the slices, and that of measurements; if these are times, both are datetime64 or numbers.

    Times of a raster may also be numbers with units, texts, or of another calendar.
    """
    known = source.coords[dim].values
    if known.dtype.kind == "M":
        return known, pd.to_datetime(at).to_numpy()
    if at.dtype.kind != "M" or (times := times_along(source, dim)) is None or times.dtype.kind not in "MO":
        return known, at
    if times.dtype.kind == "M":
        return times, at
    dates = in_calendar(pd.Series(at), times[0])
    elapsed = [np.nan if date is None else (date - times[0]).total_seconds() for date in dates]
    return np.array([(time - times[0]).total_seconds() for time in times]), np.array(elapsed)


def _warn_of_times(source: xr.DataArray, table: Table) -> None:
    """Warn of measurements of several days, or of another day than the raster, that are used in one slice."""
    if any(source.sizes[name] > 1 for name in table.covariates if name in source.sizes):
        return
    beside = pd.concat([table.covariates, table.others], axis=1)
    own = {str(name): pd.Series(coord.values.ravel()) for name, coord in source.coords.items() if coord.size == 1}
    for name, column in beside[np.isfinite(next(iter(table.values.values())))].items():
        times = _times_in(column.dropna())
        of = own.get(str(name), pd.Series())
        apart = pd.concat([times, _times_in(of)]) if len(times) else times
        if len(times) and apart.max() - apart.min() > ERRORS.one_slice:
            beside_own = f" for {apart.iloc[-1]:%Y-%m-%d}, the {name} of the raster" if len(apart) > len(times) else ""
            warn(
                f"points are of {times.min():%Y-%m-%d} to {times.max():%Y-%m-%d} (column {name!r}), and all are used"
                f"{beside_own}. If they are not meant to be, leave out those of other times."
            )


def _times_in(column: pd.Series[Any]) -> pd.Series[Any]:
    """The times in a column; none if it holds something else, such as numbers that are not named as times."""
    if pd.api.types.is_numeric_dtype(column) and not {"time", "date"} & {*words(str(column.name))}:
        return column[:0]
    try:
        times = parsed_times(column, str(column.name))
    except InputError:
        return column[:0]
    return times if times.dtype.kind == "M" else column[:0]


def _errors(table: Table, name: str) -> Float64Array:
    if name not in table.covariates or not pd.api.types.is_numeric_dtype(table.covariates[name]):
        raise InputError(f"point_errors must be a column of numbers of points, got {name!r}")
    (value,) = table.values
    require_error_units(name, table.attrs.get(name, {}).get("units"), table.attrs.get(value, {}).get("units"))
    errors = table.covariates[name].to_numpy(np.float64, na_value=np.nan)
    if (errors < 0).any():
        raise InputError(f"known errors must not be negative: got {np.nanmin(errors):g} in {name!r}; correct them")
    return errors


def _compared(
    request: Request, variable: Variable, points: Measurements, *, estimated: bool
) -> tuple[float, float, float]:
    """Offset of measurements from predictions from the raster alone, its standard error, and theirs.

    Differences are normal with the variance of the prediction and that of the measurement.
    """
    rng = np.random.default_rng(request.options.seed)
    chosen = points.at(np.sort(rng.permutation(len(points.values))[: ERRORS.compared]))
    job, (rows, cols) = replace(request.job.of(variable), points=None, max_distance=None), request.grid.shape
    mean, error = np.full((2, len(chosen.values)), np.nan)
    cells = np.rint(chosen.places).astype(np.intp)
    parts = np.concatenate([chosen.slices, cells // ERRORS.part_px], 1)
    for part in np.unique(parts, axis=0):
        of = np.flatnonzero((parts == part).all(1))
        (row, col), (last_row, last_col) = cells[of].min(0).tolist(), cells[of].max(0).tolist()
        chunk, at = Window(row, last_row + 1, col, last_col + 1), tuple(chosen.slices[of[0]].tolist())
        region = Region(tuple(range(n, n + 1) for n in at), chunk)
        sides = min(rows, CHUNKS.largest_px), min(cols, CHUNKS.largest_px)
        source = VariableSource(variable, region, job, request.domain, sides)
        found = fill_places(source.window(at), source.domain_mask(at), chunk, job, chosen.places[of])
        mean[of], error[of] = found["value"], found["standard_error"]
    known = np.isfinite(mean + error)
    if known.sum() < ERRORS.least and estimated:
        raise InputError(
            "the standard error of points is estimated from predictions of the raster at their places: got "
            f"{known.sum()} places with a prediction, expected at least {ERRORS.least}; give a column of standard "
            "errors, point_errors=... (--point-errors)"
        )
    if not known.any():
        return 0.0, 0.0, 0.0
    off, variance = (chosen.values - mean)[known], error[known] ** 2
    if not estimated:
        weight = 1 / np.maximum(variance + chosen.errors[known] ** 2, 1e-300)
        return float((weight * off).sum() / weight.sum()), float(weight.sum() ** -0.5), 0.0
    spread = float(np.subtract(*np.quantile(off, [0.84, 0.16])) / 2) or float(off.std())
    tried = max(spread, 1e-12) * np.geomspace(1e-3, 1.0, ERRORS.steps)
    weights = 1 / (variance + tried[:, None] ** 2)
    offsets = (weights * off).sum(1) / weights.sum(1)
    # restricted: the offset is estimated, too
    fits = (weights * (off - offsets[:, None]) ** 2 - np.log(weights)).sum(1) + np.log(weights.sum(1))
    best = int(fits.argmin())
    return float(offsets[best]), float(weights[best].sum() ** -0.5), float(tried[best])
