"""The request of a fill, checked once before any work starts: variables, grid, domain, model and options."""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xarray as xr

from geonp.errors import CheckpointError, InputError, ModelError, warn
from geonp.fill.bounds import bounds_of
from geonp.fill.domain import domain_of
from geonp.fill.kinds import check_kinds, check_model
from geonp.fill.missing import Flags
from geonp.fill.options import FillOptions
from geonp.fill.outputs import Output, outputs
from geonp.fill.variables import Raster, normalise
from geonp.inference import checkpoint
from geonp.inference.context import Neighbourhood
from geonp.inference.kernel import FillJob
from geonp.inference.predictor import resolve
from geonp.inference.stack import STACK, Across
from geonp.inference.student import Statistics
from geonp.raster.covariates import (
    Covariate,
    CovariateLike,
    arrays_of,
    covariates_of,
    errors_of,
    linked_errors,
    named,
)
from geonp.raster.grid import Grid
from geonp.raster.metadata import Kind
from geonp.raster.nodata import is_packed
from geonp.raster.positions import periods, positions
from geonp.raster.surface import surface_of
from geonp.raster.variable import Variable

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

    Raises InputError, ModelError or CheckpointError as :func:`geonp.infill`.
    """
    classes, across = _classes(options.model), options.dims
    if classes and (options.quantiles or options.tails or options.samples or options.exceed or options.bounds):
        raise InputError(
            "quantiles, tails, samples, exceed and bounds need numbers, but the model predicts classes: leave them out"
        )
    given, errors = named(options.covariates), options.errors
    ds, grid, variables, flags = normalise(obj, options, classes, [*given, *named(errors)])
    check_kinds(variables, options)
    errors = linked_errors(ds, variables) if isinstance(errors, str) and errors == "auto" else errors
    bounds = bounds_of(options.bounds, variables)
    if options.smooth and bounds:
        raise InputError(
            f"smooth=True cannot be combined with bounds: got bounds of {', '.join(map(repr, bounds))}. Leave one "
            "of the two out."
        )
    variables = tuple(v.within(*bounds[v.name]) if v.name in bounds else v for v in variables)
    if options.quantiles:
        _check_scales(variables)
    if options.exceed or options.bounds not in (None, "valid_range"):
        _warn_of_packed(variables)
    warn_of_refilling(ds, [variable.label for variable in variables])
    if across:
        check_across(across, variables, classes)
    domain = None if options.mask is None else domain_of(options.mask, grid)
    job, card = load_job(grid.shape, options, periodic=grid.periodic_x)
    neighbourhood = job.predictor.neighbourhood.on(grid)
    _check_card(card, neighbourhood, across, options, bounded=bool(bounds))
    if not across and not neighbourhood.standard:
        across = tuple(dim for dim in [neighbourhood.across] if dim in _neighbouring(variables))
    stack = tuple(_along(dim, variables) for dim in across)
    surface = None if neighbourhood.axes else surface_of(obj, grid)
    neighbourhood = neighbourhood.fine if surface is not None and surface.curvilinear else neighbourhood
    predictor = replace(job.predictor, neighbourhood=neighbourhood)
    job = replace(job, across=stack, predictor=predictor, smooth=options.smooth, samples=options.samples)
    periodic = job.periodic if surface is None else surface.periodic
    job = replace(job, empty_slices=options.empty_slices, surface=surface, periodic=periodic)
    if job.empty_slices and job.series is None:
        raise InputError(
            "empty_slices needs a dimension along which slices are filled from each other: got "
            f"across={options.across!r}, expected for example across='time' (--across time)"
        )
    check_model(variables, card, job)
    beside = covariates_on(grid, given, ds, options.covariate_resampling)
    if not beside and card.training.get("steps") and (names := card.training.get("covariates")):
        warn(
            f"the model {card.name} was adapted with the covariates {', '.join(names)}, and is used without any: give "
            "them to the fill, too (covariates=, --covariate)."
        )
    covariates = (*beside, *errors_of(errors, ds, grid, variables))
    if covariates:
        check_covariates(covariates, variables, card)
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
            f"the model {card.name} reads values in fixed units, not the residuals of a slice: got "
            f"across={across[0]!r}, expected None, or another model, for example tnpkr-sa"
        )
    if options.samples and card.config.get("head") not in ("kriging", "drift"):
        raise InputError(
            f"the model {card.name} predicts cells one by one, without the Gaussian process that joint samples are "
            f"drawn from: got samples={options.samples}, expected 0, or another model, for example tnpkr-sa"
        )
    if bounded and neighbourhood.standard:
        raise InputError(
            f"the model {card.name} reads values in fixed units: got bounds={options.bounds!r}, expected None, or "
            "another model, for example tnpkr-sa"
        )


def covariates_on(
    grid: Grid, given: Sequence[CovariateLike], ds: xr.Dataset, resampling: str | None
) -> tuple[Covariate, ...]:
    """The covariates of the raster `ds` on `grid`, resampled if asked; see :class:`geonp.fill.options.FillOptions`.

    Raises InputError for a resampling without covariates, and as :func:`geonp.raster.covariates.covariates_of`.
    """
    if resampling is not None:
        if not given:
            raise InputError(
                f"covariate_resampling needs covariates: got {resampling!r} without any. Give them (--covariate), or "
                "leave it out."
            )
        from geonp.io.warp import resampled

        given = [resampled(array, grid, resampling) for array in arrays_of(given, ds)]
    return covariates_of(given, ds, grid)


def warn_of_refilling(ds: xr.Dataset, labels: Sequence[str]) -> None:
    """Warn of variables that are results of a fill."""
    before = [label for label in labels if "geonp_model" in ds.attrs and f"{label}_fill_flag" in ds]
    if before:
        warn(
            f"{', '.join(before)} was filled by geonp before: its filled cells count as observed, without error. "
            "Use the observed cells only: ds[name].where(ds[f'{name}_fill_flag'] == 0)."
        )


def _along(dim: Hashable, variables: Sequence[Variable]) -> Across:
    """The positions of slices along a dimension; none for that of the variables themselves."""
    found = next((v.source for v in variables if dim in v.leading), None)
    return Across(dim, ()) if found is None else Across(dim, positions(found, dim), periods(found, dim))


def _neighbouring(variables: Sequence[Variable]) -> list[Hashable]:
    """What `across` may name: the leading dimensions, and the variables if there are several."""
    others = list(dict.fromkeys(dim for variable in variables for dim in variable.leading))
    return others + ([VARIABLES] if len(variables) > 1 and VARIABLES not in others else [])


def check_across(across: Sequence[Hashable], variables: Sequence[Variable], classes: int = 0) -> None:
    """Check that neighbouring slices along some dimensions can be used."""
    others = _neighbouring(variables)
    for dim in across:
        if dim not in others:
            raise InputError(
                f"across must be a dimension other than rows and columns: got {dim!r}, expected "
                f"{' or '.join(map(repr, others)) if others else 'none, as there is a single slice'}"
            )
        if {variable.source.sizes[dim] for variable in variables if dim in variable.leading} == {1}:
            warn_of_one_slice(dim)
    if classes:
        raise InputError(f"across cannot be combined with a model of classes: got across={across[0]!r}, expected None")


def warn_of_one_slice(dim: Hashable) -> None:
    """Warn of a dimension of `across` along which there is one slice."""
    warn(
        f"across={dim!r} has no effect: the raster has one slice along it, and no others to fill it from. Leave it "
        "out, or select more slices (--bidx, --select)."
    )


def check_covariates(covariates: Sequence[Covariate], variables: Sequence[Variable], card: checkpoint.Card) -> None:
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
    statistics = Statistics(tuple(options.quantiles), tuple(options.exceed), median=options.statistic == "median")
    return FillJob(predictor.rooted(), shape, periodic, options.max_distance, options.seed, statistics=statistics), card


def _classes(model: str | os.PathLike[str]) -> int:
    """Number of classes of the model; 0 for models of numbers, and for names of no model, which are refused later."""
    try:
        return checkpoint.load_card(os.fspath(model)).classes
    except (CheckpointError, ModelError):
        return 0


def _warn_of_packed(variables: Sequence[Variable]) -> None:
    """Warn that thresholds and bounds are compared with values as they are stored."""
    if packed := [variable.label for variable in variables if is_packed(variable.source.attrs)]:
        warn(
            f"{', '.join(packed)}: packed (scale_factor, add_offset), so that exceed and bounds are in stored values, "
            "as those of the result are. To give them in the units, decode the raster before, with xr.decode_cf."
        )


def _check_scales(variables: Sequence[Variable]) -> None:
    """Check that quantiles of stored values are quantiles of the decoded values."""
    for variable in variables:
        attrs = variable.source.attrs
        if "scale_factor" in attrs and not attrs["scale_factor"] > 0:
            raise InputError(
                f"the variable {variable.name!r} is stored with a negative scale_factor, which reverses the order of "
                "quantiles: decode it first, with xr.decode_cf or rioxarray's mask_and_scale=True"
            )
