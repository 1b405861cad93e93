"""Covariates of a raster: co-located fields on its grid, static or along dimensions that they share with it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from geonp.errors import InputError, warn
from geonp.raster.arrays import FloatArray
from geonp.raster.grid import Grid
from geonp.raster.kinds import is_classes
from geonp.raster.metadata import ancillary_names, class_attrs, with_crs_of_each
from geonp.raster.nodata import UNLIMITED, declared_nodata, packing, valid_limits
from geonp.raster.parts import PARTS
from geonp.raster.sentinels import Extremes, sentinels_of, suspects, warn_of_sentinels
from geonp.raster.tolerances import TOLERANCES
from geonp.raster.units import require_error_units
from geonp.raster.variable import ErrorReader, Variable

MAX_COVARIATES = 16
"""Largest number of covariates."""

RESAMPLINGS = ("nearest", "bilinear", "cubic", "cubic_spline", "lanczos", "average", "mode", "min", "max", "med")
"""Methods of GDAL that resample a covariate onto the grid of the raster."""

CovariateLike = Hashable | xr.DataArray | xr.Dataset
"""A covariate as it is given: the name of a variable of the raster, or an array or Dataset on its grid."""


@dataclass(frozen=True, eq=False)
class Covariate:
    """A covariate of a raster.

    Attributes
    ----------
    variable : Variable
        Its values: dimensions shared with the raster, then rows and columns, named as in the raster.
    classes : bool
        Whether the values are numbers of classes.
    known_errors : bool
        Whether the values are no covariate, but the known standard errors of the observations.
    slice : bool
        Whether the values are no covariate, but another slice of the same stack, such as another variable.
    """

    variable: Variable
    classes: bool = False
    known_errors: bool = False
    slice: bool = False

    @property
    def as_read(self) -> bool:
        """Whether gaps stay unknown."""
        return self.classes or self.known_errors or self.slice

    def axes(self, of: Variable) -> tuple[int, ...]:
        """Positions of its leading dimensions among those of a variable that is filled."""
        return tuple(of.leading.index(dim) for dim in self.variable.leading)


def named(given: CovariateLike | Sequence[CovariateLike] | None) -> list[CovariateLike]:
    """The covariates that are given, one by one."""
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def taken_by(given: Sequence[CovariateLike], ds: xr.Dataset) -> list[Hashable]:
    """Names of the variables of the raster that are covariates, by name or as the arrays themselves."""
    names: list[Hashable] = []
    for one in given:
        if not isinstance(one, (xr.DataArray, xr.Dataset)):
            names.append(one)
            continue
        arrays = one.data_vars.values() if isinstance(one, xr.Dataset) else [one]
        names += [a.name for a in arrays if a.name in ds.data_vars and a.variable._data is ds[a.name].variable._data]
    return [name for name in names if name in ds.data_vars]


def covariates_of(given: Sequence[CovariateLike], ds: xr.Dataset, grid: Grid) -> tuple[Covariate, ...]:
    """Check covariates against the raster `ds`.

    Each variable of a Dataset, and each entry along dimensions that the raster does not have, is a covariate. Raises
    InputError for an unknown name, an array on another grid, dtypes other than numbers, labels along a shared dimension
    that differ from those of the raster, or more than :data:`MAX_COVARIATES`.
    """
    found = [
        _covariate(part, grid) for array in arrays_of(given, ds) for part in _parts(_placed(array, ds, grid), ds.dims)
    ]
    require_few(
        len(found), "each variable of a Dataset, and each entry along a dimension that the raster lacks, is one"
    )
    return tuple(found)


def elsewhere(raster: xr.DataArray | xr.Dataset) -> Iterator[tuple[Covariate, Grid]]:
    """The covariates of a raster on a grid of its own: each variable, and each entry along other dimensions.

    Raises InputError for dtypes other than numbers, and variables without rows and columns.
    """
    for array in arrays_of([raster], xr.Dataset()):
        grid = Grid.from_xarray(array)
        for part in _parts(array, grid.dims):
            yield _covariate(part, grid), grid


def require_few(n: int, counted: str) -> None:
    """Check that there are at most :data:`MAX_COVARIATES`; `counted` says what counts as one."""
    if n > MAX_COVARIATES:
        raise InputError(
            f"There are too many covariates: got {n}, expected at most {MAX_COVARIATES}. Choose those that matter: "
            f"{counted}."
        )


def errors_of(
    given: CovariateLike | None, ds: xr.Dataset, grid: Grid, variables: Sequence[Variable]
) -> list[Covariate]:
    """Check the known standard errors of the observations of a raster, as :func:`covariates_of`; none or one.

    Raises InputError for errors that cannot be used, and for a raster with several variables to fill.
    """
    if given is None:
        return []
    if not isinstance(given, (xr.DataArray, xr.Dataset)) and (not isinstance(given, Hashable) or given not in ds):
        raise InputError(
            f"Known errors must be a DataArray or the name of a variable of the raster: got {given!r}. For one error "
            "of all observations give xr.full_like(raster, error)."
        )
    arrays = list(arrays_of([given], ds))
    if len(arrays) != 1 or len(variables) != 1:
        raise InputError(
            f"Known errors belong to one variable: got {len(arrays)} arrays of errors and {len(variables)} variables "
            "to fill, expected one of each. Choose one."
        )
    array = placed(arrays[0], ds, grid, covariate_name(arrays[0], "array of known errors"))
    part, *others = _parts(array, ds.dims)
    if others or is_classes(part):
        raise InputError(
            f"Known errors must be numbers on the dimensions of the raster: got {arrays[0].dims}, expected at most "
            f"{variables[0].source.dims}. Select one entry along the others."
        )
    require_error_units(str(part.name), part.attrs.get("units"), variables[0].source.attrs.get("units"))
    variable, (scale, offset) = as_numbers(part, grid), packing(part.attrs)
    unit = abs(packing(variables[0].source.attrs)[0])  # of the values as they are stored
    read = ErrorReader(variable.read, scale / unit, offset / unit)
    return [Covariate(replace(variable, read=read), known_errors=True)]


def linked_errors(ds: xr.Dataset, variables: Sequence[Variable]) -> Hashable:
    """Name of the variable that ``ancillary_variables`` links as the standard error of a variable.

    Raises InputError if there is none.
    """
    linked = [name for variable in variables for name in ancillary_names(variable.source, ds.variables) if name in ds]
    for name in linked:
        if str(ds[name].attrs.get("standard_name", "")).endswith("standard_error"):
            return name
    raise InputError(
        f"No standard error of {', '.join(variable.label for variable in variables)} is linked: got "
        f"ancillary_variables {', '.join(map(repr, linked)) or 'without any variable'}, expected one with a "
        "standard_name that ends in standard_error. Name the variable of the errors."
    )


def check_values(covariate: Covariate, raster: Variable) -> bool:
    """Check the values of a covariate in memory; False if it is constant, and so of no use.

    Warns of values that are likely nodata: predictions from them are far from all others. Raises InputError if it has
    no value anywhere, or is the variable that is filled.
    """
    name, source = covariate.variable.label, covariate.variable.source
    values = covariate.variable.read(source.values)
    known = values[np.isfinite(values)]
    if covariate.known_errors:
        if (known < 0).any():
            raise InputError(f"Known errors must not be negative: got {known.min():g} in {name!r}. Correct them.")
        if np.isinf(values).any():
            observed_mask = xr.DataArray(np.isfinite(raster.read(raster.source.values)), dims=raster.source.dims)
            require_finite(int((observed_mask & xr.DataArray(np.isinf(values), dims=source.dims)).sum()))
        return True
    if not known.size:
        raise _empty(covariate)
    if not covariate.classes:
        warn_of_sentinels(source, suspects([Extremes.of(source.values[np.isfinite(values)], sentinels_of(source))]))
    constant = is_constant(name, known, classes=covariate.classes)
    own = raster.source
    if source.sizes == own.sizes and np.array_equal(values, raster.read(raster.spatial_last.values), equal_nan=True):
        raise InputError(
            f"The covariate {name!r} is {raster.label!r} itself, with the same gaps. Leave it out, or give another "
            "variable."
        )
    return not constant


def is_constant(name: str, known: FloatArray, *, classes: bool) -> bool:
    """Whether the known values of a covariate are constant, and so of no use, to the model too; warns if they are."""
    constant = bool(np.ptp(known) <= TOLERANCES.constant * np.abs(known).max())
    if constant:
        nearly = "" if classes else f" ({known[0]:g} to within a millionth)"
        remedy = " If smaller differences matter, subtract its mean." if nearly else ""
        warn(f"The covariate {name!r} is constant{nearly}, so it carries no information and is ignored.{remedy}")
    return constant


def require_finite(infinite: int) -> None:
    """Check that no observation has an infinite error; `infinite` is the number of those that have."""
    if infinite:
        raise InputError(
            f"Known errors must be finite: got infinite ones of {infinite} observations. Hide these observations, of "
            "which nothing is known: missing=np.isinf(errors)."
        )


def require_values(covariate: Covariate) -> None:
    """Check that a covariate that may not be in memory has a value: it is read in parts up to the first one.

    Raises InputError if it has no value anywhere.
    """
    source = covariate.variable.spatial_last
    *lead, height, width = source.shape
    stored = source.encoding.get("preferred_chunks", {})
    row, cols = (stored.get(dim, size) for dim, size in zip(source.dims[-2:], (1, width), strict=True))
    rows = max(1, PARTS.cells // (row * cols)) * row
    starts = itertools.product(np.ndindex(*lead), range(0, height, rows), range(0, width, cols))
    parts = (source[(*k, slice(i, i + rows), slice(j, j + cols))] for k, i, j in starts)
    if not any(np.isfinite(covariate.variable.read(part.values)).any() for part in parts):
        raise _empty(covariate)


def _empty(covariate: Covariate) -> InputError:
    return InputError(
        f"The covariate {covariate.variable.label!r} has no value anywhere: got {covariate.variable.source.size:,} "
        "missing cells. Check its nodata value, or leave it out."
    )


def covariate_name(array: xr.DataArray, what: str = "covariate") -> str:
    """Name of an array in errors."""
    return what if array.name is None else f"{what} {array.name!r}"


def has_classes(array: xr.DataArray) -> bool:
    """Whether the values of a covariate are numbers of classes."""
    return is_classes(array) or array.dtype == bool


def arrays_of(given: Sequence[CovariateLike], ds: xr.Dataset) -> Iterator[xr.DataArray]:
    """The covariates as arrays: names are those of variables of the raster `ds`.

    Raises InputError for an unknown name, or dtypes other than numbers.
    """
    for array in _unpacked(given, ds):
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"The {covariate_name(array)} has dtype {array.dtype}, expected numbers or booleans. Convert it, or "
                "leave it out."
            )
        yield array


def _unpacked(given: Sequence[CovariateLike], ds: xr.Dataset) -> Iterator[xr.DataArray]:
    for one in given:
        if isinstance(one, xr.Dataset):
            for array in with_crs_of_each(one).data_vars.values():
                if "source" in one.encoding:
                    array.encoding.setdefault("source", one.encoding["source"])
                yield array
        elif isinstance(one, xr.DataArray):
            yield one
        elif isinstance(one, Hashable) and one in ds.variables:
            yield with_crs_of_each(ds)[one]
        else:
            raise InputError(
                f"A covariate must be a DataArray, a Dataset or the name of a variable of the raster: got {one!r}, "
                f"expected one of {', '.join(map(repr, ds.data_vars)) or 'no names, as the raster has no variables'}."
            )


def _placed(array: xr.DataArray, ds: xr.Dataset, grid: Grid) -> xr.DataArray:
    name = covariate_name(array)
    _require_cells(array, grid, name, "Leave it out: within a slice it is constant.")
    try:
        grid.require_same(Grid.from_xarray(array), name, warns=False)
    except InputError as error:
        raise InputError(
            f"{error} To have it resampled: covariate_resampling='bilinear' (--covariate-resampling bilinear)."
        ) from None
    return placed(array, ds, grid, name)


def _require_cells(array: xr.DataArray, grid: Grid, name: str, remedy: str) -> None:
    """Raise InputError for an array of fewer than two dimensions."""
    if array.ndim < 2:
        raise InputError(
            f"The {name} has no rows and columns: got dimensions ({', '.join(map(repr, array.dims)) or 'none'}), "
            f"expected {grid.y_dim!r} and {grid.x_dim!r}. {remedy}"
        )


def placed(array: xr.DataArray, ds: xr.Dataset, grid: Grid, name: str) -> xr.DataArray:
    """An array with the names of rows and columns of the raster `ds`, checked against its grid and labels.

    Raises InputError if they differ; `name` says what the array is.
    """
    _require_cells(array, grid, name, "Give it these dimensions.")
    other = Grid.from_xarray(array)
    grid.require_same(other, name)
    array = array.rename({other.y_dim: grid.y_dim, other.x_dim: grid.x_dim})
    for dim in set(array.dims) & set(ds.dims) - set(grid.dims):
        if array.sizes[dim] != ds.sizes[dim] or (
            dim in array.indexes and dim in ds.indexes and not array.indexes[dim].equals(ds.indexes[dim])
        ):
            got, expected = _labels(array, dim), _labels(ds, dim)
            if got == expected:  # at the ends
                pairs = [*zip(array.indexes[dim], ds.indexes[dim], strict=True)]
                n = next((n for n, (one, other) in enumerate(pairs) if one != other), 0)  # or other types of times
                got, expected = f"{pairs[n][0]!r} as entry {n}", repr(pairs[n][1])
            raise InputError(
                f"The {name} and the raster differ along {dim!r}: got {got}, expected {expected}. Select the same "
                f"labels, for example with reindex({dim}=raster.{dim}, method='nearest'), or drop the dimension."
            )
        theirs, own = _names(array, dim), _names(ds, dim)
        if theirs and own and theirs != own:
            warn(
                f"The {name} and the raster have other names along {dim!r}: got {', '.join(theirs)}, expected "
                f"{', '.join(own)}. Each is used beside the one of its number. To use one of them beside all, select "
                f"it: FILE:{theirs[0]} on the command line."
            )
    return array


def _names(obj: xr.DataArray | xr.Dataset, dim: Hashable) -> list[str]:
    """Names of the entries along a dimension, such as descriptions of bands; empty without any."""
    for coord in obj.coords.values():
        if coord.dims == (dim,) and coord.dtype.kind in "OU":
            return list(map(str, coord.values))
    return []


def _labels(obj: xr.DataArray | xr.Dataset, dim: Hashable) -> str:
    size = obj.sizes[dim]
    if dim not in obj.indexes:
        return f"{size} entries"
    return f"{size} entries, {obj.indexes[dim][0]} to {obj.indexes[dim][-1]}"


def _parts(array: xr.DataArray, dims: Collection[Hashable]) -> Iterator[xr.DataArray]:
    """The array, or its entries along dimensions other than `dims`."""
    extra = [dim for dim in array.dims if dim not in dims]
    sizes = [array.sizes[dim] for dim in extra]
    for place in itertools.product(*map(range, sizes)):
        part = array.isel(dict(zip(extra, place, strict=True)), drop=True)
        numbers = "_".join(str(n + 1) for n, size in zip(place, sizes, strict=True) if size > 1)
        yield part.rename(f"{array.name}_{numbers}") if numbers else part


def _covariate(part: xr.DataArray, grid: Grid) -> Covariate:
    return Covariate(as_numbers(part, grid), has_classes(part))


def as_numbers(part: xr.DataArray, grid: Grid) -> Variable:
    """A covariate on `grid` as numbers, those of classes too."""
    # scalar coordinates, such as the time of a slice, say which part of a file it is
    bare, kept = part.transpose(..., *grid.dims), {*part.dims, *part.xindexes}
    bare = bare.drop_vars([name for name, coord in part.coords.items() if coord.ndim and name not in kept])
    bare = bare.astype(np.uint8) if bare.dtype == bool else bare
    bare.attrs = {key: value for key, value in part.attrs.items() if key not in class_attrs(part.attrs)}
    bare.encoding = dict(part.encoding)
    # integers that declare nothing have no gaps
    silent = bare.dtype.kind in "iu" and not declared_nodata(bare) and valid_limits(bare) == UNLIMITED
    return Variable.of(bare, grid.dims, np.nan if silent else None)
