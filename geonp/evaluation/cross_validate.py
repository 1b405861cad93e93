"""Cross-validate measurements: predict those of each fold from the others, by the model and by classical methods."""

from __future__ import annotations

import os
import time as clock
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError, require_callable
from geonp.evaluation.baselines import ACROSS, REGRESSION, drawn_from, requested
from geonp.evaluation.bounded import Parts, cut_off, limits_of
from geonp.evaluation.cross_validation import RESULTS, CrossValidation
from geonp.evaluation.folds import SETTINGS, folds_of
from geonp.evaluation.metrics import require_scorable
from geonp.evaluation.points import POINT_METHODS, Sites, detrended, errors_by_distance, fitted, kriged, predicted
from geonp.evaluation.scored import OURS, WITH_COVARIATES, Prediction
from geonp.fill.bounds import Limits
from geonp.fill.options import Bounds, FillOptions
from geonp.inference.checkpoint import load_card
from geonp.inference.student import Distribution
from geonp.inference.warping import Warping
from geonp.inference.warping_fit import warn_of_values_beyond
from geonp.io.doubtful_rows import warn_of_doubtful_rows
from geonp.io.doubtful_times import warn_of_doubtful_times
from geonp.io.measurements import read_table, transformed
from geonp.raster.arrays import BoolArray, Float64Array, IntArray
from geonp.raster.covariates import CovariateLike
from geonp.raster.nodata import UNLIMITED
from geonp.raster.times import times_of
from geonp.raster.variable import Variable
from geonp.scattered.covariates import PointCovariate, beside, errors_of, wanted
from geonp.scattered.fields import Frame
from geonp.scattered.interpolate import interpolate
from geonp.scattered.repeats import Repeats, combined, numbers_of_places
from geonp.scattered.targets import target_of


def cross_validate(
    points: pd.DataFrame | xr.Dataset,
    *,
    values: str | None = None,
    x: str | None = None,
    y: str | None = None,
    crs: Any = None,
    model: str | os.PathLike[str] = "tnpkr-sa",
    holdout: str = "random",
    folds: int = 10,
    block_size: float | None = None,
    baselines: Sequence[str] | None = None,
    covariates: CovariateLike | Sequence[CovariateLike] | None = None,
    errors: str | None = None,
    repeats: Repeats | None = None,
    time: str | None = None,
    at_times: Sequence[Any] | None = None,
    every: str | None = None,
    bounds: Bounds | None = None,
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    units: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> CrossValidation:
    """Predict every measurement from the others, fold by fold, by the model and by classical methods.

    The baselines are the nearest measurement, linear interpolation on a triangulation, inverse distance weighting,
    thin-plate splines, and ordinary kriging; with covariates, also regression kriging, and with `time`, linear
    interpolation of each station in time. The covariance of kriging is fitted once, to all measurements.

    Parameters
    ----------
    points, x, y, crs, errors, repeats, units
        As for :func:`geonp.interpolate`.
    values : str, optional
        The column to evaluate. By default the only numeric column except the coordinates.
    model, max_distance, device, batch_size, seed
        As for :func:`geonp.interpolate`; the seed is also that of the folds.
    holdout : str
        Measurements that form a fold, one of :data:`geonp.evaluation.folds.FOLDS`: ``"random"`` ones, ``"one"``
        (leave-one-out), those in square ``"blocks"``, of whole ``"stations"``, or of ``"periods"``: successive times,
        which differ between stations. Measurements of one location and time are always in one fold.
    folds : int
        Number of folds; ignored for ``"one"``.
    block_size : float, optional
        Side of the blocks: in km for longitudes and latitudes, else in the unit of the coordinates. By default about
        four blocks make a fold.
    baselines : sequence of str, optional
        Methods to compare with: ``nearest``, ``linear``, ``inverse_distance``, ``thin_plate``, ``kriging``, and
        ``regression_kriging`` with covariates, ``linear_across`` with `time`. By default all.
    covariates
        As for :func:`geonp.interpolate`: names of columns, and rasters that are read at the measurements. The model is
        then evaluated with and without them.
    time, at_times, every
        As for :func:`geonp.interpolate`. Only measurements at these times are scored. The baselines except
        ``linear_across`` use the measurements of the same time only.
    bounds : tuple, "valid_range" or mapping, optional
        As for :func:`geonp.infill`. The map of each fold is fitted without the hidden measurements. Scores are computed
        as by :func:`geonp.evaluate` with bounds.
    progress : callable, optional
        Called with the method and the fold before each of them starts.

    Returns
    -------
    CrossValidation
        Predictions and scores of all methods. It prints as tables.

    Raises
    ------
    InputError
        For tables, covariates or options that cannot be used, fewer than five measurements, and times that none can be
        predicted at.
    ModelError, CheckpointError
        For an unknown model, or one that cannot be loaded.

    Examples
    --------
    >>> x, y = (axis.ravel() for axis in np.mgrid[:5, :5])
    >>> stations = pd.DataFrame({"x": x, "y": y, "temp": 10 + x + 2 * y})
    >>> comparison = geonp.cross_validate(stations, folds=3, baselines=["nearest"])
    >>> comparison.scores["geonp"].rmse < comparison.scores["nearest"].rmse
    True
    """
    require_callable(progress)
    options = {"model": os.fspath(model), "max_distance": max_distance, "device": device, "batch_size": batch_size}
    data = _measured(points, (values, x, y), crs, covariates, errors, repeats, (time, every), units)
    baselines = requested(baselines, data.methods, {REGRESSION: "covariates", ACROSS: "time"})
    fold = folds_of(holdout, folds, data.sites.plane, data.sites.stations, data.times, drawn_from(seed), block_size)
    card = load_card(os.fspath(model))
    limits = limits_of(FillOptions(bounds=bounds).bounds, [data.variable]).get(data.value)
    warn_of_values_beyond(data.sites.values, *(limits or UNLIMITED))
    scored = _scored(data, time, at_times)
    run = _Run(data, fold, scored, {**options, "seed": seed}, progress, limits)
    ours = ([WITH_COVARIATES] if data.labels else []) + [OURS]
    result = CrossValidation(
        name=data.value,
        units=data.units,
        selection=data.words(time, errors),
        holdout=holdout,
        seed=seed,
        model={"model": card.name, "model_version": card.version, "weights_sha256": card.sha256},
        predictions={method: run.prediction(method) for method in (*ours, *baselines)},
        measurements=data.table.assign(fold=fold, distance=run.distance),
        x=data.x,
        y=data.y,
        time=time,
        geographic=data.geographic,
        wanted=scored,
    )
    if not result.scored.any():
        raise InputError(
            f"None of the {scored.sum()} measurements of {data.value!r} can be predicted from the other folds: a "
            "prediction needs at least four measurements of its time there. Choose more folds, another hold-out, or "
            "a larger max_distance."
        )
    return result


@dataclass(frozen=True, eq=False)
class _Measured:
    """Measurements as the methods take them: with covariates in columns, and rows that have a value."""

    frame: pd.DataFrame
    sites: Sites
    times: IntArray | None
    x: str
    y: str
    value: str
    attrs: Mapping[Hashable, Any]
    labels: tuple[str, ...]
    errors: str | None
    time: str | None
    geographic: bool

    @property
    def units(self) -> str:
        """Units of the values; may be empty."""
        return str(self.attrs.get("units", ""))

    @property
    def variable(self) -> Variable:
        """The values with their metadata."""
        values = xr.DataArray(self.sites.values[None], dims=("row", "point"), name=self.value, attrs=self.attrs)
        return Variable.of(values, values.dims)

    @property
    def table(self) -> pd.DataFrame:
        """Coordinates, time and values."""
        return self.frame[[self.x, self.y, *([self.time] if self.time else []), self.value]]

    @property
    def methods(self) -> list[str]:
        """The classical methods that these measurements allow."""
        return [*POINT_METHODS, "kriging", *([REGRESSION] if self.labels else []), *([ACROSS] if self.time else [])]

    def __post_init__(self) -> None:
        """Check that no column has the name of a result of the evaluation."""
        if taken := [name for name in self.table if name in (*RESULTS, *self.methods)]:
            raise InputError(f"the column {taken[0]!r} has the name of a result of the evaluation: rename it")

    def words(self, time: str | None, errors: str | None) -> str:
        """How the measurements are predicted."""
        parts = [f"with the help of other times ({time})"] if time else []
        parts += [f"with the covariate{'s' * (len(self.labels) > 1)} {', '.join(self.labels)}"] if self.labels else []
        parts += [f"with the known errors {errors}"] if errors else []
        return ", ".join(parts)


def _measured(
    points: pd.DataFrame | xr.Dataset,
    columns: tuple[str | None, str | None, str | None],
    crs: Any,
    covariates: CovariateLike | Sequence[CovariateLike] | None,
    errors: str | None,
    repeats: Repeats | None,
    timing: tuple[str | None, str | None],
    given_units: str | None,
) -> _Measured:
    """The measurements of a table, with the checks of :func:`geonp.interpolate`."""
    asked, (time, every) = wanted(covariates, None), timing
    if every is not None and time is None:
        raise InputError("every needs time: name the column of times, time=... (--time)")
    labels = tuple(one.label for one in asked)
    apart = [*labels, *filter(None, (errors, time))]
    table = read_table(points, *columns, apart, crossed=repeats == "mean" or time is not None, units=given_units)
    if len(table.values) > 1:
        raise InputError(f"one column is evaluated at a time: got {', '.join(table.values)}; choose it with values=...")
    (value,) = table.values
    require_scorable(table.values[value], value)
    warn_of_doubtful_rows(table)
    table = transformed(table, crs, None).timed(time, every)
    warn_of_doubtful_times(table)
    table = table.at(table.usable(value) & (True if table.times is None else table.times.of_rows >= 0))
    if len(table.xy) < SETTINGS.least:
        raise InputError(
            f"column {value!r} has {len(table.xy)} measurements with a finite value, place and time, expected at least "
            f"{SETTINGS.least}, so that each can be predicted from others"
        )
    geographic = table.named_degrees
    table, known = combined(table, geographic, repeats, errors_of(errors, table))
    made = pd.DataFrame({table.x: table.xy[:, 0], table.y: table.xy[:, 1], value: table.values[value]})
    if table.times is not None:
        made[time] = table.times.values[table.times.of_rows]
    if errors is not None:
        made[errors] = known
    at = target_of(table.covariates.reset_index(drop=True).assign(**made[[table.x, table.y]]), table, labels)
    found = beside(asked, table, at, Frame.of(table, crs, None))
    made = made.assign(**{one.label: _column(one) for one in found})
    times = None if table.times is None else table.times.of_rows
    design = np.column_stack([np.empty((len(made), 0)), *map(_design, found)])
    stations = numbers_of_places(table.xy, geographic)
    sites = Sites.of(table.xy, geographic, made[value].to_numpy(np.float64), stations, table.times, design)
    attrs = table.attrs.get(value, {})
    return _Measured(made, sites, times, table.x, table.y, value, attrs, labels, errors, time, geographic)


def _scored(data: _Measured, time: str | None, at_times: Sequence[Any] | None) -> BoolArray:
    """Mask of the measurements at the times that are asked for."""
    if at_times is None:
        return np.ones(len(data.sites.plane), bool)
    if time is None:
        raise InputError("at_times needs time: name the column of times, time=... (--time)")
    times = times_of(data.frame[time])  # fewer than those of the table, where values are missing
    return np.isin(times.of_rows, times.within(at_times, "at_times"))


def _column(one: PointCovariate) -> Any:
    """A covariate as a column of a table."""
    return pd.Categorical(one.measured) if one.classes else one.measured


def _design(one: PointCovariate) -> Float64Array:
    """The columns ``(n, p)`` of a covariate in a regression: standardised, or indicators of all classes but one."""
    if one.classes:
        classes = np.unique(one.measured[np.isfinite(one.measured)])[1:]
        indicators = [(one.measured == each) * 1.0 for each in classes]
        return np.column_stack([np.empty((len(one.measured), 0)), *indicators])
    centred = one.measured - np.nanmean(one.measured)
    return np.asarray(np.nan_to_num(centred / (np.nanstd(one.measured) or 1.0)))[:, None]


_Found = tuple[Float64Array, Warping | None]
"""Means, standard errors and tails ``(3, m)``; within bounds, also those of latent values, with the map."""


@dataclass(frozen=True, eq=False)
class _Run:
    """The setting of a cross-validation."""

    data: _Measured
    fold: IntArray
    scored: BoolArray
    options: dict[str, Any]
    progress: Callable[[str], object] | None
    limits: Limits | None

    def prediction(self, method: str) -> Prediction:
        """Predictions ``(n,)`` of a method from the other folds."""
        start = clock.perf_counter()
        out, maps = np.full((5, len(self.fold)), np.nan), []
        predict = self._predict(method)
        numbers = np.unique(self.fold[self.scored])
        for i, number in enumerate(numbers, 1):
            if self.progress is not None:
                self.progress(f"{method}: fold {i} of {len(numbers)}{_left(start, i, len(numbers))}")
            hidden = self.fold == number
            here = hidden & self.scored
            found, warping = predict(~hidden, here)
            out[: len(found), here] = found
            maps += [] if warping is None else [(here, warping)]
        if method in POINT_METHODS or method == ACROSS:
            out[1] = errors_by_distance(out[0] - self.data.sites.values, self.distance, self.fold)
            out[1, np.isnan(out[0])] = np.nan
        mean, error, tail, latent, width = out
        within: Parts = [(here, Distribution(latent, width, tail, warping)) for here, warping in maps]
        if self.limits is not None and method not in (OURS, WITH_COVARIATES):
            mean, within = cut_off(mean, error, self.limits)
        return Prediction(mean, error, tail, clock.perf_counter() - start, within)

    def _predict(self, method: str) -> Callable[[BoolArray, BoolArray], _Found]:
        """A function of masks of known and of hidden measurements."""
        sites = self.data.sites
        if method in (OURS, WITH_COVARIATES):
            return lambda known, hidden: self._ours(known, hidden, method == WITH_COVARIATES)
        if method in POINT_METHODS or method == ACROSS:
            return lambda known, hidden: _point(predicted(method, sites.at(known), sites.at(hidden)))
        part = sites if method == REGRESSION else Sites(**{**vars(sites), "columns": sites.columns[:, :0]})
        model = fitted(detrended(part), np.random.default_rng(self.options["seed"]))

        def krige(known: BoolArray, hidden: BoolArray) -> _Found:
            mean, error = kriged(part.at(known), part.at(hidden), model)
            return np.stack([mean, error, np.where(np.isfinite(mean), 0.0, np.nan)]), None

        return krige

    def _ours(self, known: BoolArray, hidden: BoolArray, with_covariates: bool) -> _Found:
        """The predictions of geonp; NaN at times of which no measurement is known."""
        data, labels = self.data, list(self.data.labels) if with_covariates else []
        at = hidden if data.times is None else hidden & np.isin(data.times, data.times[known])
        parts = ["", "_standard_error", "_tail", *([] if self.limits is None else ["_latent", "_latent_error"])]
        out, warping = np.full((len(parts), len(hidden)), np.nan), None
        if at.any():
            columns = [data.x, data.y, *labels, *([data.time] if data.time else [])]
            given = [*columns, data.value, *([data.errors] if data.errors else [])]
            with warnings.catch_warnings():
                # given for the whole table before, or of folds alone
                beside = ("no measurement lies near ", ".* has no class in common ")
                for doubt in (".*far from all ", ".* beyond the bounds ", "all measurements of ", *beside):
                    warnings.filterwarnings("ignore", doubt)
                found = interpolate(
                    data.frame.loc[known, given],
                    data.frame.loc[at, columns],
                    values=data.value,
                    x=data.x,
                    y=data.y,
                    covariates=labels or None,
                    errors=data.errors,
                    repeats="keep",
                    time=data.time,
                    tails=True,
                    bounds=self.limits,
                    **self.options,
                )
            out[:, at] = [found[f"{data.value}{part}"].values for part in parts]
            warping = None if self.limits is None else Distribution.of(found, data.value).warping
        return out[:, hidden], warping

    @cached_property
    def distance(self) -> Float64Array:
        """Distance ``(n,)`` of each measurement to the nearest of another fold, at the same time."""
        sites, out = self.data.sites, np.full(len(self.fold), np.nan)
        for time in np.unique(sites.times[self.scored]):
            now = sites.times == time
            for number in np.unique(self.fold[now & self.scored]):
                hidden = now & (self.fold == number)
                known = now & ~hidden
                if known.any():
                    out[hidden] = sites.at(hidden).nearest(sites.space[known])
        return out


def _left(start: float, i: int, n: int) -> str:
    """The time left before fold `i` of `n`, if it is worth a word."""
    seconds = (clock.perf_counter() - start) / max(i - 1, 1) * (n - i + 1)
    return f", {seconds / 60:,.0f} min left" if i > 1 and seconds >= 60 else ""


def _point(mean: Float64Array) -> _Found:
    """Predictions whose standard errors are estimated later."""
    return np.stack([mean, np.full(len(mean), np.nan), np.zeros(len(mean))]), None
