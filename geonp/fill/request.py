"""What is asked of a fill, checked once, before any work starts: variables, grid, domain, model and options."""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import CheckpointError, InputError, ModelError, warn
from geonp.fill.bounds import bounds_of
from geonp.fill.kinds import check_kinds, check_model, names_of, results_of, variable_of
from geonp.fill.missing import Flags, flags_of, hidden
from geonp.fill.options import FillOptions
from geonp.fill.outputs import Output, outputs
from geonp.inference import checkpoint
from geonp.inference.context import Neighbourhood
from geonp.inference.kernel import FillJob
from geonp.inference.predictor import resolve
from geonp.inference.stack import STACK, Across
from geonp.io.polygons import VECTOR_FILES, is_vector, polygon_mask
from geonp.raster.covariates import (
    Covariate,
    CovariateLike,
    arrays_of,
    covariates_of,
    errors_of,
    linked_errors,
    named,
    taken_by,
)
from geonp.raster.grid import Grid
from geonp.raster.metadata import UNNAMED, Kind, ancillary_names
from geonp.raster.nodata import declared_nodata
from geonp.raster.places import warn_of_places
from geonp.raster.positions import periods, positions
from geonp.raster.surface import surface_of
from geonp.raster.variable import Variable, class_variables, off_grid, passed_classes, passed_integers

__all__ = ["Raster", "Request", "covariates_on", "domain_of", "load_job", "normalise", "prepare", "require_covariates"]

Raster = xr.DataArray | xr.Dataset
"""What can be filled."""


VARIABLES = "variables"
"""Name in `across` of the variables of a Dataset, unless it has such a dimension."""


@dataclass(frozen=True, eq=False)
class Request:
    """A checked request: what the options and the metadata of the raster say, in plain parts.

    Attributes
    ----------
    variables : tuple of Variable
        Those that will be filled.
    domain : array or None
        ``(rows, columns)``, NumPy or dask: True where the raster is valid.
    card : Card
        The card of the model.
    flags : Flags or None
        Where the values of `ds` were hidden.
    """

    ds: xr.Dataset
    grid: Grid
    variables: tuple[Variable, ...]
    domain: Any
    job: FillJob
    card: checkpoint.Card
    options: FillOptions
    covariates: tuple[Covariate, ...] = ()
    bounds: Mapping[Hashable, tuple[float, float]] = field(default_factory=dict)
    flags: Flags | None = None

    def beside(self, variable: Variable) -> tuple[Covariate, ...]:
        """The covariates of a variable, and the other variables as slices if it is filled across these."""
        others = [other for other in self.variables if other is not variable and other.kind is Kind.NUMBERS]
        if not any(a.dim == VARIABLES for a in self.job.across) or VARIABLES in variable.leading:
            others = []
        # a variable that changes along more dimensions has no slice beside this one
        others = [other for other in others if set(other.leading) <= set(variable.leading)]
        return (*self.covariates, *(Covariate(other, slice=True) for other in others[: STACK.slices]))

    def outputs(self, variable: Variable) -> tuple[Output, ...]:
        """The arrays that come out for a variable."""
        return outputs(variable, self.options, bounded=variable.name in self.bounds)


def prepare(obj: Raster, options: FillOptions) -> Request:
    """Check a raster against the options of a fill; reads coordinates and weights, no values.

    Raises
    ------
    InputError, ModelError, CheckpointError
        As :func:`geonp.infill`.
    """
    classes, across = _classes(options.model), options.dims
    if classes and (options.quantiles or options.tails or options.samples or options.exceed or options.bounds):
        raise InputError(
            "quantiles, tails, samples, exceed and bounds are of numbers, and the model predicts classes: leave them "
            "out"
        )
    given, errors = named(options.covariates), options.errors
    ds, grid, variables, flags = normalise(obj, options, classes, [*given, *named(errors)])
    check_kinds(variables, options)
    errors = linked_errors(ds, variables) if isinstance(errors, str) and errors == "auto" else errors
    bounds = bounds_of(options.bounds, variables)
    if options.smooth and bounds:
        raise InputError(
            f"smooth=True is for values without bounds: got {', '.join(map(repr, bounds))}, which are bounded. Leave "
            "one of them out."
        )
    variables = tuple(v.within(*bounds[v.name]) if v.name in bounds else v for v in variables)
    if options.quantiles:
        _check_scales(variables)
    _warn_of_refilling(ds, variables)
    if across:
        _check_across(across, variables, classes, options.samples)
    domain = None if options.mask is None else domain_of(options.mask, grid)
    job, card = load_job(grid.shape, options, periodic=grid.periodic_x)
    neighbourhood = job.predictor.neighbourhood.on(grid)
    _check_card(card, neighbourhood, across, options, bounded=bool(bounds))
    if not across and not options.samples and not neighbourhood.standard:
        across = tuple(dim for dim in [neighbourhood.across] if any(dim in v.leading for v in variables))
    stack = tuple(_along(dim, variables) for dim in across)
    predictor = replace(job.predictor, neighbourhood=neighbourhood)
    job = replace(job, across=stack, predictor=predictor, smooth=options.smooth, samples=options.samples)
    surface = None if neighbourhood.axes else surface_of(obj, grid)
    periodic = job.periodic if surface is None else surface.periodic
    job = replace(job, empty_slices=options.empty_slices, surface=surface, periodic=periodic)
    if job.empty_slices and job.series is None:
        raise InputError(
            f"empty_slices fills slices from others: got across={options.across!r}, expected a dimension, such as "
            "across='time' (--across time)"
        )
    check_model(variables, card, job)
    beside = covariates_on(grid, given, ds, options.covariate_resampling)
    covariates = (*beside, *errors_of(errors, ds, grid, variables))
    if covariates:
        _check_covariates(covariates, variables, card)
    return Request(ds, grid, variables, domain, job, card, options, covariates, bounds, flags)


def _check_card(
    card: checkpoint.Card,
    neighbourhood: Neighbourhood,
    across: tuple[Hashable, ...],
    options: FillOptions,
    *,
    bounded: bool,
) -> None:
    """Check that the model can do what the options ask for."""
    if across and neighbourhood.standard:
        raise InputError(
            f"the model {card.name} reads values in units of its own, not the residuals of a slice: got "
            f"across={across[0]!r}, expected None, or another model, for example tnpkr-sa"
        )
    if options.samples and card.config.get("head") not in ("kriging", "drift"):
        raise InputError(
            f"the model {card.name} predicts cells one by one, without the Gaussian process that joint samples are "
            f"drawn from: got samples={options.samples}, expected 0, or another model, for example tnpkr-sa"
        )
    if bounded and neighbourhood.standard:
        raise InputError(
            f"the model {card.name} reads values in units of its own: got bounds={options.bounds!r}, expected None, or "
            "another model, for example tnpkr-sa"
        )


def covariates_on(
    grid: Grid, given: Sequence[CovariateLike], ds: xr.Dataset, resampling: str | None
) -> tuple[Covariate, ...]:
    """The covariates of the raster `ds` on `grid`, resampled if asked; see :class:`geonp.fill.options.FillOptions`."""
    if given and resampling is not None:
        from geonp.io.warp import resampled

        given = [resampled(array, grid, resampling) for array in arrays_of(given, ds)]
    return covariates_of(given, ds, grid)


def _warn_of_refilling(ds: xr.Dataset, variables: Sequence[Variable]) -> None:
    before = [v.label for v in variables if "geonp_model" in ds.attrs and f"{v.label}_fill_flag" in ds]
    if before:
        warn(
            f"{', '.join(before)} was filled by geonp before: what was filled then counts as observed now, "
            "without error. Fill what was observed: ds[name].where(ds[f'{name}_fill_flag'] == 0)."
        )


def _along(dim: Hashable, variables: Sequence[Variable]) -> Across:
    """The positions of slices along a dimension; none for that of the variables themselves."""
    found = next((v.source for v in variables if dim in v.leading), None)
    return Across(dim, ()) if found is None else Across(dim, positions(found, dim), periods(found, dim))


def _check_across(across: Sequence[Hashable], variables: Sequence[Variable], classes: int, samples: int) -> None:
    """Check that neighbouring slices along some dimensions can be used."""
    others = list(dict.fromkeys(dim for variable in variables for dim in variable.leading))
    others += [VARIABLES] if len(variables) > 1 and VARIABLES not in others else []
    for dim in across:
        if dim not in others:
            raise InputError(
                "across must be a dimension along which neighbouring slices are used, beside rows and columns: got "
                f"{dim!r}, expected {' or '.join(map(repr, others)) if others else 'none, as there is a single slice'}"
            )
    if classes or samples:
        raise InputError(
            f"neighbouring slices predict numbers, one cell at a time: got across={across[0]!r}, expected None for a "
            "model of classes, and for samples"
        )


def _check_covariates(covariates: Sequence[Covariate], variables: Sequence[Variable], card: checkpoint.Card) -> None:
    """Check that the model can use covariates, and that every variable has their dimensions."""
    require_covariates(card, len(covariates))
    for covariate, variable in itertools.product(covariates, variables):
        if missing := [dim for dim in covariate.variable.leading if dim not in variable.leading]:
            raise InputError(
                f"the covariate {covariate.variable.label!r} varies along {missing[0]!r}, but {variable.label!r} does "
                f"not: got dimensions {covariate.variable.source.dims}, expected at most {variable.source.dims}; "
                "select one entry, or leave one of the variables out"
            )


def require_covariates(card: checkpoint.Card, n: int) -> None:
    """Check that the model can use `n` covariates and known errors."""
    if n and not card.uses_covariates:
        raise InputError(
            f"the model {card.name} was trained without covariates and known errors: got {n}, expected none, or "
            "another model, for example tnpkr-sa"
        )


def load_job(
    shape: tuple[int, int], options: FillOptions, *, periodic: bool = False
) -> tuple[FillJob, checkpoint.Card]:
    """Load the model, and collect what each window needs of the options."""
    predictor, card = resolve(str(options.model), options.device, options.batch_size)
    return FillJob(predictor.rooted(), shape, periodic, options.max_distance, options.seed), card


def _classes(model: str | os.PathLike[str]) -> int:
    """Number of classes of the model; 0 for models of numbers, and for names of no model, which are refused later."""
    try:
        return checkpoint.load_card(os.fspath(model)).classes
    except (CheckpointError, ModelError):
        return 0


def normalise(
    obj: Raster, options: FillOptions, classes: int = 0, covariates: Sequence[CovariateLike] = ()
) -> tuple[xr.Dataset, Grid, tuple[Variable, ...], Flags]:
    """A Dataset, its grid, the variables to fill, and where they were hidden; checks that no name of a result is taken.

    With `classes`, those of a classifier, the variables are those with as many flag values, see
    :func:`geonp.raster.variable.class_variables`. Variables that are covariates or flags are not filled.
    """
    if not isinstance(obj, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"expected an xarray DataArray or Dataset, got {type(obj).__name__}; "
            "wrap an array: xr.DataArray(array, dims=('y', 'x'))"
        )
    grid = Grid.from_xarray(obj)
    if grid.repeats_x:
        warn(
            f"The last column of {grid.x_dim!r} repeats the first, 360 degrees away: both are filled on their own, and "
            f"the raster is not taken as going round. Leave it out: obj.isel({{{grid.x_dim!r}: slice(None, -1)}})."
        )
    ds = _marked(obj if isinstance(obj, xr.Dataset) else obj.to_dataset(name=UNNAMED if obj.name is None else obj.name))
    flags = flags_of(options.missing, obj, ds, grid)
    ds = flags.ds
    if isinstance(obj, xr.DataArray):
        names: list[Hashable] = class_variables(ds, grid, classes) if classes else list(ds.data_vars)
    else:
        candidates = ds.drop_vars([*taken_by(covariates, ds), *flags.layers])
        names = class_variables(candidates, grid, classes) if classes else names_of(candidates, grid, options)
        _warn_of_passed(candidates.drop_vars(flags.quality(names)), grid, names, classes)
        names = flags.reached(names)
    ds, declared = hidden(flags, names, options.nodata)
    spatial, without = (grid.y_dim, grid.x_dim), replace(options, nodata=None)
    variables = tuple(
        variable_of(ds[name], spatial, without if name in declared else options, classes) for name in names
    )
    for variable in variables:
        results = results_of(variable, options)
        if not isinstance(obj, xr.DataArray):
            _check_replaced(ds, variable.name, results)
        _check_names(ds[variable.name], variable.name, results)
    warn_of_places(grid)
    return ds, grid, variables, flags


def _marked(ds: xr.Dataset) -> xr.Dataset:
    """`ds` with the attribute of classes on what rioxarray has opened from files with palettes."""
    if not any("rasterio_dtype" in da.encoding for da in ds.data_vars.values()):
        return ds
    from geonp.io.bands import with_palettes

    return with_palettes(ds)


def _warn_of_passed(ds: xr.Dataset, grid: Grid, names: Sequence[Hashable], classes: int) -> None:
    """Warn of the variables of a raster that are not among those to fill."""
    if not classes and (passed := passed_integers(ds, grid, names)):
        warn(
            f"{', '.join(map(str, passed))}: integers without a declared nodata value pass through as they are. If "
            "cells of theirs are missing, give the value with nodata= (--nodata)."
        )
    if not classes and (passed := [name for name in passed_classes(ds, grid) if name not in names]):
        warn(
            f"{', '.join(map(str, passed))}: classes beside numbers pass through as they are. To fill them, choose "
            f"them alone: ds[[{passed[0]!r}]] (--variable {passed[0]})."
        )
    if others := off_grid(ds, grid, names):
        warn(
            f"{', '.join(f'{name!r} {ds[name].dims}' for name in others)}: not on the grid of {names[0]!r} "
            f"({grid.y_dim!r}, {grid.x_dim!r}), and passed through as they are. Fill each grid on its own, for "
            f"example ds[[{others[0]!r}]] (--variable {others[0]})."
        )


def _check_replaced(ds: xr.Dataset, name: Hashable, results: Sequence[str]) -> None:
    """Check that no other variable is called as a result will be, unless it is ancillary to `name`."""
    ancillary = ancillary_names(ds[name])
    for output in (f"{name}_{result}" for result in results):
        if output in ds.data_vars and output not in ancillary:
            raise InputError(
                f"the Dataset has a variable {output!r} already, which the result needs for {name!r}; "
                f"rename it, or name it in the attribute ancillary_variables of {name!r} to have it replaced"
            )


def _check_names(array: xr.DataArray, name: Hashable, results: Sequence[str]) -> None:
    """Check that no coordinate or dimension is called as a result will be."""
    taken = [output for result in results if (output := f"{name}_{result}") in array.coords]
    along = {"quantile": "quantile", "exceedance": "threshold", "sample": "sample", "warping": "warping"}
    along |= dict.fromkeys(("probability", "class_probability"), "category")
    taken += [along[result] for result in results if along.get(result) in {*array.dims, *array.coords}]
    if taken:
        raise InputError(
            f"the raster has a coordinate or dimension {', '.join(map(repr, taken))} already, which the result needs "
            f"for {name!r}: rename it"
        )


def _check_scales(variables: Sequence[Variable]) -> None:
    """Check that quantiles of stored values are quantiles of the decoded values."""
    for variable in variables:
        attrs = variable.source.attrs
        if "scale_factor" in attrs and not attrs["scale_factor"] > 0:
            raise InputError(
                f"the variable {variable.name!r} is stored with a negative scale_factor, which turns quantiles around: "
                "decode it first, with xr.decode_cf or rioxarray's mask_and_scale=True"
            )


def domain_of(mask: xr.DataArray | npt.NDArray[np.bool_] | str | os.PathLike[str], grid: Grid) -> Any:
    """The valid domain as a boolean ``(rows, columns)`` array, NumPy or dask."""
    if is_vector(mask) or hasattr(mask, "to_crs"):
        return polygon_mask(mask, grid).values
    if isinstance(mask, (str, os.PathLike)):
        raise InputError(
            f"the mask {os.fspath(mask)!r} is no file of polygons, expected one of {', '.join(VECTOR_FILES)}; open "
            "rasters with geonp.open_raster"
        )
    if isinstance(mask, xr.Dataset):
        raise InputError(
            f"the mask is a Dataset of {', '.join(map(repr, mask.data_vars)) or 'no variables'}, expected an array: "
            "choose one of its variables, mask[name]"
        )
    nodata: tuple[float, ...] = ()
    if isinstance(mask, xr.DataArray):
        nodata = declared_nodata(mask) if mask.dtype.kind in "iuf" else ()
        mask_grid = Grid.from_xarray(mask)
        grid.require_same(mask_grid, "mask")
        spatial = (mask_grid.y_dim, mask_grid.x_dim)
        single = [dim for dim in mask.dims if dim not in spatial and mask.sizes[dim] == 1]
        data = mask.squeeze(single, drop=True).transpose(..., *spatial).data
    else:
        data = np.asarray(mask)
    if data.shape != grid.shape:
        raise InputError(
            f"the mask has shape {data.shape}, expected {grid.shape} (rows, columns) like the raster; "
            "cut or transpose it to the raster's grid"
        )
    if data.dtype.kind not in "biuf":
        raise InputError(f"the mask has dtype {data.dtype}, expected booleans (True = valid), or numbers (0 = invalid)")
    if data.dtype == bool:
        return data
    valid = (data != 0) & (data == data)
    for value in nodata:
        valid = valid & (data != value)
    return valid
