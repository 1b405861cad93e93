"""interpolate(): from measurements at scattered places to a grid or to other places."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError, require_callable, warn
from geonp.fill.bounds import SAMPLE, bounds_of, mapped, said, warping_array
from geonp.fill.options import Bounds, FillOptions
from geonp.fill.outputs import outputs, result_arrays
from geonp.fill.request import load_job, require_covariates
from geonp.inference.kernel import FillJob
from geonp.inference.warping import Warping
from geonp.inference.warping_fit import Sample, fitted
from geonp.io.doubtful_rows import warn_of_doubtful_rows
from geonp.io.doubtful_times import warn_of_doubtful_times
from geonp.io.measurements import Table, read_table, transformed
from geonp.raster.arrays import BoolArray, Float64Array
from geonp.raster.covariates import CovariateLike
from geonp.raster.kinds import warn_of_class_column, warn_of_directions
from geonp.raster.metadata import dataset_attrs
from geonp.raster.places import warn_of_places
from geonp.raster.variable import Variable
from geonp.scattered.across_times import Asked, Moments
from geonp.scattered.covariates import PointCovariate, beside, errors_of, wanted
from geonp.scattered.fields import Frame
from geonp.scattered.prediction import predicted
from geonp.scattered.repeats import Repeats, combined
from geonp.scattered.squares import (
    Observations,
    along_curve,
    project,
)
from geonp.scattered.targets import Target, target_of
from geonp.scattered.time_fields import predicted_across

if TYPE_CHECKING:
    from geonp.inference.checkpoint import Card


def interpolate(
    points: pd.DataFrame | xr.Dataset,
    at: xr.DataArray | xr.Dataset | pd.DataFrame,
    *,
    values: str | Sequence[str] | None = None,
    x: str | None = None,
    y: str | None = None,
    crs: Any = None,
    model: str | os.PathLike[str] = "tnpkr-sa",
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    quantiles: Sequence[float] = (),
    tails: bool = False,
    covariates: CovariateLike | Sequence[CovariateLike] | None = None,
    errors: str | None = None,
    repeats: Repeats | None = None,
    time: str | None = None,
    at_times: Sequence[Any] | None = None,
    every: str | None = None,
    exceed: Sequence[float] = (),
    statistic: Literal["mean", "median"] = "mean",
    bounds: Bounds | None = None,
    samples: int = 0,
    units: str | Sequence[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> xr.Dataset:
    """Interpolate scattered measurements to the cells of a grid or to other locations.

    Measurements are used at their exact locations, without averaging to cells. Distances between longitudes and
    latitudes are on the sphere, also across the date line and at the poles.

    Parameters
    ----------
    points : DataFrame or Dataset
        One row per measurement, with columns of coordinates, or of points as well-known text, and of values. Rows
        without a finite value or location are ignored. A Dataset has variables and coordinates along one dimension.
    at : DataArray, Dataset or DataFrame
        Where to predict: the grid of a raster, lazily if it is chunked by dask, or the locations in a table: in its own
        CRS or, with the same names of coordinates, in that of the measurements. :func:`geonp.lattice` creates a grid.
    values : str or list of str, optional
        Columns to interpolate, independently of each other. By default the only numeric column except the coordinates.
    x, y : str, optional
        Columns of the coordinates. By default x, lon, longitude or easting, and likewise for y; upper and lower case
        are not distinguished.
    crs : optional
        Coordinate reference system of the measurements, as accepted by pyproj. By default that of `at`, or EPSG:4326 if
        the columns are named longitude and latitude.
    model, device, batch_size, seed, quantiles, tails, exceed, statistic, bounds, samples
        As for :func:`geonp.infill`.
    max_distance : float, optional
        Largest distance to a measurement at which a location is predicted, in the unit of the coordinates (in
        :func:`geonp.infill`, it is counted in cells). With `time`, measurements of other times do not count.
    covariates : name, DataArray, Dataset, or sequence of these, optional
        Fields that are known at the measurements and where to predict, such as elevation for temperature; at most 16.
        A name is that of a column of the table, and of a variable or column of `at`. A raster, on any grid, is
        interpolated linearly to the locations, unless the tables have a column of its name. Columns of text and of
        booleans, and rasters of classes, are classes. A covariate that is unknown (NaN) at a location is ignored there.
        Units and order do not matter. From fewer than 256 measurements, predictions with and without them are averaged.
    errors : str, optional
        Column of known standard errors of the measurements, in their units. Measurements with larger errors count less;
        those without a known error count as exact, with a warning. Standard errors of the result are of a measurement
        without these errors.
    repeats : {"mean", "keep"}, optional
        What to do with several rows of one location: average their values, covariates and errors, or keep all as
        repeated measurements of one quantity. By default they are kept with a warning, and refused if they differ in a
        time, a depth or another column whose entries recur. With ``"mean"``, a Dataset may also have dimensions such as
        stations and times.
    time : str, optional
        Column of times: ISO 8601 texts, datetimes or numbers. Each time gets its own field, from its measurements and
        from those of other times: of a network of stations, which need not measure at all times, or of swaths and
        drifting buoys, of which times with fewer than four measurements stay empty. A Dataset may then have dimensions
        such as stations and times, and the table `at` may have a column of this name: its locations are predicted at
        these times, which a network need not have measured.
    at_times : sequence, optional
        Times to predict, between the first and the last of the table. A year, a month or a day as text stands for all
        of its times in it, and a range ``"1990-07-01/1990-07-10"`` or ``"1990-07/1990-09/7D"`` for all of them, or
        every seventh day, from its first to its last. By default all.
    every : str, optional
        Length of periods, such as ``"1D"`` or ``"6h"``: one field for each period instead of each time. The time of a
        field is the beginning of its period.
    units : str or list of str, optional
        Units of the values, or of each column, for the attributes of the result. By default those of a Dataset, or
        those in brackets in the name of a column: ``temp [degC]`` becomes the variable ``temp``.
    progress : callable, optional
        Called after each field of `time`, or after those of several times at the locations of a table, with the
        numbers of finished fields and of all.

    Returns
    -------
    Dataset
        The results of :func:`geonp.infill` for each column, on the grid or along the dimension ``point``; with `time`,
        also along a leading dimension of that name. They describe a new measurement, noise included, also at the
        locations of measurements. The attribute ``geonp_covariates`` names the covariates.

    Raises
    ------
    InputError
        For tables, grids, covariates or options that cannot be used, and fewer than four measurements.
    ModelError, CheckpointError
        For a model that does not exist or cannot be loaded.
    PredictionError
        When computed, if the model returns values that are not finite.

    Examples
    --------
    >>> stations = pd.DataFrame({"x": [1, 2, 5, 8, 9, 4], "y": [3, 9, 1, 7, 2, 6], "temp": [4, 11, 6, 15, 11, 10]})
    >>> filled = geonp.interpolate(stations, geonp.lattice((0, 0, 10, 10), resolution=2))
    >>> filled["temp"].sel(x=5, y=5).round().item()
    10.0
    """
    options = FillOptions(
        model=model,
        max_distance=max_distance,
        device=device,
        batch_size=batch_size,
        seed=seed,
        quantiles=quantiles,
        tails=tails,
        exceed=exceed,
        statistic=statistic,
        bounds=bounds,
        samples=samples,
    )
    asked = wanted(covariates, at)
    labels = [one.label for one in asked]
    _check_options(time, at_times, every, samples, progress)
    apart = [*labels, *([errors] if errors else []), *([time] if time else [])]
    table = read_table(points, values, x, y, apart, crossed=repeats == "mean" or time is not None, units=units)
    warn_of_doubtful_rows(table)
    target = target_of(at, table, labels, crs)
    target.check_names(table.values, {"quantile": quantiles, "threshold": exceed, "sample": samples, time: time})
    table = transformed(table, crs, target.grid).timed(time, every)
    table, known_errors = combined(table, target.geographic, repeats, errors_of(errors, table))
    asked_times = None if time is None or table.times is None else Asked.of(time, at_times, table.times, target)
    job, card = _job(target, options, len(asked) + (errors is not None) + (time is not None))
    target.check_memory(len(table.values), len(asked), 1 if asked_times is None else asked_times.maps)
    _warn_of_doubts(table, target, max_distance)
    known = beside(asked, table, target, Frame.of(table, crs, target.grid))
    result = _results(table, target, asked_times, (known, known_errors), (job, card), options, progress)
    used = {"geonp_covariates": " ".join(labels), "geonp_errors": errors, "geonp_time": time}
    return result.assign_attrs({name: value for name, value in used.items() if value})


def _results(
    table: Table,
    target: Target,
    asked: Asked | None,
    known: tuple[Sequence[PointCovariate], Float64Array | None],
    model: tuple[FillJob, Card],
    options: FillOptions,
    progress: Callable[[int, int], object] | None,
) -> xr.Dataset:
    """The results of all columns of values, beside covariates and errors that are known."""
    (covariates, errors), (job, card) = known, model
    there = [one.on(target) for one in covariates]
    template = target.template if asked is None else asked.template(target)
    variables = [_variable(template, table, name) for name in table.values]
    limits = bounds_of(options.bounds, variables)
    out: list[xr.Dataset] = []
    for name, variable in zip(table.values, variables, strict=True):
        parts = _observations(table, name, covariates, errors, asked, target, job.seed)
        moments = None if asked is None else Moments.of(parts, asked.times)
        _check(name, parts, asked, moments, job.predictor.neighbourhood.min_context)
        warping = fitted(_samples(parts), *limits[name]) if name in limits else None
        parts, job = [_latent(part, warping) for part in parts], job.drawing(name, warping)
        if moments is None or asked is None:
            part = predicted(target, parts[0], there, job)
        else:
            shown = None if progress is None else partial(_shown, progress, len(out), len(variables))
            part = predicted_across(asked, replace(moments, parts=parts), target, there, job, shown)
        out.append(_dataset(variable, part, warping, len(table.xy), card, options))
    merged = xr.merge(out, combine_attrs="override", compat="identical", join="exact")
    return merged.assign_attrs(said(options, limits))


def _shown(progress: Callable[[int, int], object], before: int, columns: int, done: int, fields: int) -> None:
    """Report the fields of one of several columns."""
    progress(before * fields + done, columns * fields)


def _warn_of_doubts(table: Table, target: Target, max_distance: float | None) -> None:
    """Warn of doubtful measurements, a doubtful grid, and a distance that leaves nearly all of it empty.

    Raises InputError if measurements and grid are in different units.
    """
    table.check_distance(target.x, target.y, target.geographic)
    warn_of_doubtful_times(table)
    steps = [np.abs(np.diff(axis)).min() for axis in (target.y, target.x) if target.on_grid and axis.size > 1]
    if max_distance is not None and steps and max_distance < min(steps) / 2:
        warn(
            f"max_distance={max_distance:g} is less than half a cell of the grid, so that nearly all cells stay empty. "
            f"It is in the unit of the coordinates, whose steps are {min(steps):g}."
        )
    if max_distance is not None and target.geographic and max_distance > 180:
        warn(
            f"max_distance={max_distance:g} reaches around the Earth, and limits nothing: it is in degrees, as the "
            "coordinates are. One degree of latitude is 111 km."
        )
    if target.grid is not None:
        warn_of_places(target.grid, (table.x, table.y) if table.named_degrees else None)
    warn_of_directions({name: table.attrs.get(name, {}) for name in table.values})
    for name, values in table.values.items():
        warn_of_class_column(name, values[table.usable(name)], table.attrs.get(name, {}))


def _check_options(
    time: str | None, at_times: Sequence[Any] | None, every: str | None, samples: int, progress: object
) -> None:
    """Refuse options that do not go together, and a progress that is no function."""
    require_callable(progress)
    for name, value in (("at_times", at_times), ("every", every)):
        if value is not None and time is None:
            raise InputError(f"{name} needs time: name the column of times, time=... (--time)")
    if at_times is not None and not np.size(at_times):
        raise InputError("at_times has no entries: expected times such as '2020-07-01', or None for all times")
    if samples and time is not None:
        raise InputError(
            f"joint samples are of one time: got samples={samples} with time={time!r}, expected one of them"
        )


def _job(target: Target, options: FillOptions, beside: int) -> tuple[FillJob, Card]:
    """The job and the card of the model, which can use so many covariates and known errors."""
    job, card = load_job(target.shape, options)
    if card.classes or card.neighbourhood.axes:
        raise InputError(
            f"the model {card.name} is for rasters only, of classes or on the grid of its training; for scattered "
            "measurements choose another model, for example tnpkr-sa"
        )
    require_covariates(card, beside)
    return replace(job, samples=options.samples), card


def _observations(
    table: Table,
    name: str,
    covariates: Sequence[PointCovariate],
    errors: Float64Array | None,
    asked: Asked | None,
    target: Target,
    seed: int,
) -> list[Observations]:
    """The measurements of a column at each time, with their covariates and known errors."""
    usable = table.usable(name)
    every = [usable]
    if asked is not None:
        every = [usable & (asked.times.of_rows == time) for time in range(len(asked.times.values))]
    if lost := np.count_nonzero(usable) - sum(map(np.count_nonzero, every)):
        warn(f"column {name!r} has {lost} measurements without a time, which are not used.")
    return [
        replace(
            _at_places(table, name, rows, target.geographic, seed),
            covariates=tuple(one.layer(rows) for one in covariates),
            errors=None if errors is None else errors[rows],
        )
        for rows in every
    ]


def _at_places(table: Table, name: str, rows: BoolArray, geographic: bool, seed: int) -> Observations:
    """The measurements of a column in some usable rows."""
    values = np.asarray(table.values[name][rows])
    values = values if values.dtype == np.float32 else values.astype(np.float64)
    return Observations(table.xy[rows], values, geographic, seed)


def _check(name: str, parts: Sequence[Observations], asked: Asked | None, moments: Moments | None, least: int) -> None:
    """Check that a column has enough measurements; warn of times that stay empty, and of equal measurements.

    Those of a network count together.
    """
    used, most = [part.values for part in parts], max(part.values.size for part in parts)
    where, way_out = "", ""
    if moments is not None and moments.network:
        used, most, where = [np.concatenate(used)], len(moments.places.y), " in different places"
    elif asked is not None:
        where, way_out = " at any time", "; longer periods have more: every=... (--every)"
        used = [used[time] for time in asked.wanted]
    if most < least:
        raise InputError(
            f"column {name!r} has {most} measurements with a finite value and place{where}, expected at least {least}, "
            f"as standard errors need{way_out}"
        )
    enough = [values for values in used if values.size >= least]
    if few := len(used) - len(enough):
        warn(
            f"column {name!r} has fewer than {least} measurements at {few} of {len(used)} times, left empty. "
            "Periods of several times, such as every='1D' (--every 1D), have more."
        )
    same = [values[0] for values in enough if values.min() == values.max()]
    if same:
        times = f" at {len(same)} of {len(used)} times" if len(used) > 1 else ""
        shown = ", ".join(f"{value:g}" for value in sorted(set(same))[:3])
        warn(
            f"all measurements of {name!r} are equal{times} ({shown}), and so are the predictions, with standard "
            "errors of 0. How much other values differ is not known from them."
        )


def _samples(parts: Sequence[Observations]) -> list[Sample]:
    """Measurements in groups of neighbours, at most as many as a context holds, from which a map is chosen."""
    groups = [group for part in parts if part.values.size for group in _groups(part)]
    return groups[:: -(-len(groups) // SAMPLE.windows)]


def _groups(observations: Observations) -> list[Sample]:
    middle = (float(observations.xy[:, 0].mean()), float(observations.xy[:, 1].mean()))
    offset = project(observations.xy, middle, observations.geographic)
    order = along_curve(offset, observations.values)
    chosen = np.array_split(order, -(-order.size // SAMPLE.cells))
    return [Sample(offset[group], observations.values[group]) for group in chosen]


def _latent(observations: Observations, warping: Warping | None) -> Observations:
    """Measurements as latent values, with their known errors."""
    if warping is None:
        return observations
    errors = observations.errors
    return replace(
        observations,
        values=np.asarray(warping.to_latent(observations.values)),
        errors=None if errors is None else np.asarray(warping.error_to_latent(observations.values, errors)),
    )


def _variable(template: xr.DataArray, table: Table, name: str) -> Variable:
    """The variable of the result; its values are of no interest."""
    dtype = np.float32 if table.values[name].dtype == np.float32 else np.float64
    source = template.rename(name).astype(dtype).assign_attrs({"long_name": name, **table.attrs.get(name, {})})
    return Variable.of(source, source.dims)


def _dataset(
    variable: Variable, result: Any, warping: Warping | None, places: int, card: Card, options: FillOptions
) -> xr.Dataset:
    if warping is not None:
        result = mapped(result, warping, options)
    arrays = result_arrays(variable, outputs(variable, options, bounded=warping is not None), result, result["value"])
    if warping is not None and options.tails:
        arrays[f"{variable.label}_warping"] = warping_array(variable, warping)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = f"{stamp} geonp interpolate: {variable.label} at {places} places, by {card.name} {card.version}"
    return xr.Dataset(arrays, variable.source.coords, dataset_attrs({}, line, card.name, card.version, card.sha256))
