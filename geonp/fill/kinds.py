"""Variables of numbers, classes and directions: how each is filled, and which options apply."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import xarray as xr

from geonp.errors import InputError, warn
from geonp.fill.options import RESULTS, FillOptions
from geonp.inference import checkpoint
from geonp.inference.kernel import FillJob
from geonp.raster.grid import Grid
from geonp.raster.kinds import categories_of, is_classes, kind_of, warn_of_directions, warn_of_missing_class
from geonp.raster.metadata import Kind, class_attrs
from geonp.raster.nodata import PACKING, without
from geonp.raster.variable import (
    ClassReader,
    Variable,
    fill_variables,
    number_variables,
    passed_classes,
    require_numbers,
)


def names_of(ds: xr.Dataset, grid: Grid, options: FillOptions) -> list[Hashable]:
    """Names of the variables to fill; beside numbers, classes are filled only if this is asked for.

    Raises InputError if there is none.
    """
    numbers, classes = number_variables(ds, grid), passed_classes(ds, grid)
    if options.as_ is not None:
        classes = [name for name in ds.data_vars if name in numbers or name in classes]
    elif numbers:
        classes = []
    return classes or fill_variables(ds, grid, options.nodata)


def variable_of(da: xr.DataArray, spatial: tuple[Hashable, Hashable], options: FillOptions, classes: int) -> Variable:
    """A variable to fill, and the kind of its values; with `classes`, for a classifier.

    Raises InputError for dtypes, flag values or nodata values that cannot be used.
    """
    if classes:
        return Variable.of(da, spatial, options.nodata, classes=True)
    kind = kind_of(da, options.as_, options.circular)
    if kind is Kind.NUMBERS and is_classes(da):
        da = da.copy(deep=False)
        da.attrs = without(da.attrs, tuple(class_attrs(da.attrs)))
    variable = replace(Variable.of(da, spatial, options.nodata, kind=kind), sure=options.as_ is not None)
    if kind is Kind.COUNTS:
        return _with_means(variable)
    if variable.kind is Kind.CLASSES:
        warn_of_missing_class(variable.source, variable.label, variable.nodata)
    if variable.kind is not Kind.CLASSES or not options.class_probabilities:
        return variable
    observed = variable.read(da.values) if da.variable._in_memory else None
    return replace(variable, categories=categories_of(da, observed, options.nodata))


def _with_means(variable: Variable) -> Variable:
    """A variable of counts whose filled values, which are means, are stored as floats; warns if they cannot be."""
    if variable.source.dtype.kind in "iu":
        warn(
            f"{variable.label}: the mean counts are rounded to {variable.source.dtype}, the dtype of the raster. "
            "Convert it to floats, or ask for probabilities, such as that of one or more: exceed=[0] (--exceed 0)."
        )
        return variable
    return replace(variable, encoding=without(variable.encoding, ("dtype", "_FillValue", *PACKING)))


def results_of(variable: Variable, options: FillOptions) -> list[str]:
    """Endings of the names of the results of a variable, beside its values."""
    if variable.kind is Kind.CLASSES:
        return list(RESULTS[-3 if options.class_probabilities else -2 :])
    return list(RESULTS[-2:]) if isinstance(variable.read, ClassReader) else options.results


def check_kinds(variables: Sequence[Variable], options: FillOptions) -> None:
    """Check that the options suit variables of classes and directions."""
    names = ("bounds", "quantiles", "tails", "samples", "smooth", "empty_slices", "exceed")
    numbers: dict[str, object] = {name: getattr(options, name) for name in names}
    both = {"across": options.across, "covariates": options.covariates, "errors": options.errors}
    refused: dict[Kind, dict[str, object]] = {
        Kind.NUMBERS: {},
        Kind.DIRECTIONS: numbers,
        Kind.CLASSES: numbers | both,
        Kind.COUNTS: without(numbers, ("quantiles", "exceed")) | both,
    }
    for variable in variables:
        given = refused[variable.kind]
        if given and isinstance(options.bounds, Mapping):
            named = {str(name): pair for name, pair in options.bounds.items()}
            given = given | {"bounds": named.get(str(variable.name))}
        found = [name for name, value in given.items() if value is not None and (name in both or value)]
        if found:
            raise InputError(
                f"{', '.join(found)} cannot be used with {variable.kind}: got {variable.label!r}, expected a variable "
                "of numbers. Leave them out, choose other variables (--variable), or fill it as numbers "
                "(as_='numbers', --as numbers)."
            )
    if options.class_probabilities and not any(variable.kind is Kind.CLASSES for variable in variables):
        raise InputError(
            f"class_probabilities needs classes: got {', '.join(variable.label for variable in variables)}, which "
            "are filled as numbers. Leave it out, or declare these as classes (as_='classes', --as classes)."
        )


def check_numbers(variables: Sequence[Variable]) -> None:
    """Check that there are no classes; warns of directions. Raises InputError if there is a variable of classes."""
    for variable in variables:
        require_numbers(variable.source)
    warn_of_directions({variable.label: variable.source.attrs for variable in variables})


def check_model(variables: Sequence[Variable], card: checkpoint.Card, job: FillJob) -> None:
    """Check that the model can fill classes and directions if there are any."""
    from geonp.nn.indicators import predicts_classes

    for variable in variables:
        usable = variable.kind is Kind.NUMBERS or not job.predictor.neighbourhood.standard
        if variable.kind in (Kind.CLASSES, Kind.COUNTS) and not card.classes:
            usable = usable and predicts_classes(checkpoint.load_model(job.predictor.model)[0])
        if not usable:
            raise InputError(
                f"the model {card.name} cannot fill {variable.kind}: got {variable.label!r}, expected numbers. Use "
                "another model, for example tnpkr-sa, or fill it as numbers (as_='numbers')."
            )
