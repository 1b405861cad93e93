"""The slice of a raster that is evaluated, and the slices beside it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.evaluation.across import Stack
from geonp.evaluation.bounded import Parts
from geonp.fill.infill import infill
from geonp.fill.missing import with_gaps
from geonp.fill.request import VARIABLES, warn_of_one_slice, warn_of_refilling
from geonp.inference.series import SERIES
from geonp.inference.stack import STACK, beside
from geonp.inference.student import Distribution
from geonp.raster.arrays import FloatArray
from geonp.raster.covariates import CovariateLike, taken_by
from geonp.raster.crs import with_cf_crs
from geonp.raster.grid import Grid
from geonp.raster.kinds import is_classes, is_direction, warn_of_directions
from geonp.raster.metadata import UNNAMED, with_crs_of_each
from geonp.raster.nodata import observed
from geonp.raster.positions import periods, positions, with_times
from geonp.raster.variable import Variable, require_numbers
from geonp.raster.windows import Window

Moments = tuple[FloatArray, FloatArray, FloatArray, Parts]
"""Means, standard errors and tails, each ``(y, x)``, and distributions within bounds."""


@dataclass(frozen=True, eq=False)
class Slice:
    """One slice of a variable: the variable, its grid, and a position along each non-spatial dimension.

    `others` are further variables of numbers of the Dataset, as slices for ``across="variables"``; `declared` names
    variables whose missing cells are marked by themselves, not by `nodata`.
    """

    variable: xr.DataArray
    grid: Grid
    position: Mapping[Hashable, int]
    nodata: float | None
    others: Sequence[xr.DataArray] = ()
    declared: frozenset[Hashable] = field(default_factory=frozenset)

    @property
    def variables(self) -> list[Variable]:
        """The variable and the others, with their metadata."""
        arrays = [self.variable, *self.others]
        return [Variable.of(a, self.grid.dims, None if a.name in self.declared else self.nodata) for a in arrays]

    def near(self, dim: Hashable, slices: int | None = None) -> list[int]:
        """Positions of the slice and of its neighbours along a dimension; by default as many as a fill reads."""
        place = self.position[dim]
        return sorted([place, *beside(place, positions(self.variable, dim), slices)])

    def observed(self, position: Mapping[Hashable, int | Sequence[int]] | None = None) -> xr.DataArray:
        """The slice, or that at another `position`, as floats with NaN at missing cells; rows and columns last."""
        return self._observed(self.variable, {**self.position, **(position or {})})

    def others_at(self, position: Mapping[Hashable, int | Sequence[int]]) -> list[xr.DataArray]:
        """The other variables at the position of the slice, or at another one."""
        return [self._observed(other, {**self.position, **position}) for other in self.others]

    def _observed(self, variable: xr.DataArray, position: Mapping[Hashable, int | Sequence[int]]) -> xr.DataArray:
        part = variable.isel({dim: place for dim, place in position.items() if dim in variable.dims})
        nodata = None if variable.name in self.declared else self.nodata
        return observed(part, nodata).transpose(..., *self.grid.dims)


def choose_slice(
    obj: xr.DataArray | xr.Dataset,
    index: Mapping[Hashable, int],
    nodata: float | None,
    covariates: Sequence[CovariateLike],
    missing: object,
) -> Slice:
    """The slice at `index` of the first variable of numbers of a raster.

    Raises InputError for anything but a raster, an index out of range, or a raster without such a variable.
    """
    if not isinstance(obj, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"obj must be a raster, a DataArray or Dataset: got {type(obj).__name__}. Evaluate measurements with "
            "geonp.cross_validate(table)."
        )
    obj = with_cf_crs(obj)
    grid = Grid.from_xarray(obj)
    taken = taken_by(covariates, obj) if isinstance(obj, xr.Dataset) else []
    ds, (first, *rest), _, declared = with_gaps(obj, missing, nodata, taken)
    # the CRS and the times of the slices may be variables beside it
    variable = with_times(with_crs_of_each(ds))[first]
    warn_of_refilling(ds, [str(first)])
    require_numbers(variable)
    warn_of_directions({str(variable.name): variable.attrs})
    sizes = {dim: n for dim, n in variable.sizes.items() if dim not in grid.dims}
    for dim, position in {**dict.fromkeys(sizes, 0), **index}.items():
        if not isinstance(position, Integral) or isinstance(position, bool) or not 0 <= position < sizes.get(dim, 0):
            expected = ", ".join(f"{name}=0 to {n - 1}" for name, n in sizes.items()) or "none, it is one slice"
            raise InputError(f"No slice {dim}={position}: expected {expected}. Correct the index.")
    others = [ds[name] for name in rest if not is_classes(ds[name]) and not is_direction(name, ds[name].attrs)]
    others = [other for other in others if set(other.dims) <= set(variable.dims)][: STACK.slices]
    names = frozenset(UNNAMED if name is None else str(name) for name in declared) | frozenset(declared)
    name = UNNAMED if variable.name is None else str(variable.name)
    place = {dim: index.get(dim, 0) for dim in sizes}
    return Slice(variable.rename(name), grid, place, nodata, others, names)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """A slice with its neighbours in a window, in memory.

    With several dimensions, `ds` has the slices of all combinations, of which a fill reads those along one dimension.

    Attributes
    ----------
    name : hashable
        The variable of `ds` that is evaluated.
    dims : tuple of hashable
        What its slices are filled across.
    near : mapping
        For each dimension with neighbours, the positions of the slices of `ds` in the raster.
    place : mapping
        Position of the slice in `ds`.
    stack : Stack or None
        The slices along the first dimension, for classical methods; None across variables alone, or if all are empty.
    """

    ds: xr.Dataset
    name: Hashable
    dims: tuple[Hashable, ...]
    near: Mapping[Hashable, list[int]]
    place: Mapping[Hashable, int]
    stack: Stack | None

    @property
    def text(self) -> str:
        """The neighbours of the slice in words."""
        along = [str(dim) for dim in self.place]
        slices = [f"neighbouring slices along {' and '.join(along)}"] if along else []
        return " and ".join([*slices, *(["the other variables"] if len(self.ds.data_vars) > 1 else [])])

    def fill(self, values: FloatArray, **options: Any) -> Moments:
        """Fill the slice with these values across its neighbours."""
        ds = self.ds.assign({self.name: self.ds[self.name].variable.copy(deep=True)})
        ds[self.name][dict(self.place)] = values
        filled = infill(ds.chunk(dict.fromkeys(self.place, 1)), across=self.dims, **options)
        return moments(filled.isel(self.place), self.name)


def moments(filled: xr.Dataset, name: Hashable) -> Moments:
    """Means, standard errors, tails and distributions within bounds of a filled slice."""
    bounded = f"{name}_warping" in filled
    suffixes = ("", "_standard_error", "_tail", *(("_latent", "_latent_error", "_warping") if bounded else ()))
    names = [f"{name}{suffix}" for suffix in suffixes]
    part = filled[names].compute()  # together: dask would fill the slice again for each of them
    mean, error, tail = (part[each].values for each in names[:3])
    return mean, error, tail, [(np.isfinite(mean), Distribution.of(part, str(name)))] if bounded else ()


def neighbours_of(
    chosen: Slice, window: Window, across: Sequence[Hashable], default: str, *, empty_slices: bool
) -> Neighbours | None:
    """The neighbours that a slice is filled across in a window, or None; `default` is the dimension of the model.

    Raises InputError for a dimension that the variable does not have, and `empty_slices` without another slice along a
    dimension.
    """
    asked = across
    across = across or [dim for dim in [default] if dim in chosen.position or (dim == VARIABLES and chosen.others)]
    variables = VARIABLES in across and VARIABLES not in chosen.position
    for dim in across:
        if dim not in chosen.position and not (variables and dim == VARIABLES and chosen.others):
            known = [*chosen.position, *([VARIABLES] if chosen.others else [])]
            expected = " or ".join(map(repr, known)) or "none, it is one slice"
            raise InputError(f"No slices along across={dim!r}: expected {expected}.")
    dims = [dim for dim in across if dim in chosen.position]
    near = {dim: chosen.near(dim, SERIES.slices if empty_slices and dim == dims[0] else None) for dim in dims}
    for dim in asked:
        if len(near.get(dim, ())) == 1 and not empty_slices:
            warn_of_one_slice(dim)
    near = {dim: places for dim, places in near.items() if len(places) > 1}
    if empty_slices and not near:
        raise InputError(
            f"empty_slices fills a slice from others: got none along across={tuple(across)!r}, expected a dimension "
            "with several slices, such as across='time' (--across time)"
        )
    if not near and not variables:
        return None
    others = chosen.others_at(near) if variables else []
    ds = xr.Dataset({array.name: _cut(array, window) for array in [chosen.observed(near), *others]})
    place = {dim: places.index(chosen.position[dim]) for dim, places in near.items()}
    used = tuple(dim for dim in across if dim in near or (variables and dim == VARIABLES))
    return Neighbours(ds, chosen.variable.name, used, near, place, _stack(chosen, window, next(iter(near), None)))


def _stack(chosen: Slice, window: Window, dim: Hashable | None) -> Stack | None:
    """The slices nearest to one along a dimension, as many as classical methods use; None if all of them are empty."""
    if dim is None:
        return None
    near, place = chosen.near(dim, SERIES.slices), chosen.position[dim]
    slices = _cut(chosen.observed({dim: near}).transpose(dim, ...), window)
    where = np.array(positions(chosen.variable, dim))
    others = np.array(near) != place
    if not np.isfinite(slices.values[others]).any():
        return None
    return Stack(slices.values[others], where[near][others], float(where[place]), periods(slices, dim))


def _cut(array: xr.DataArray, window: Window) -> xr.DataArray:
    cut: xr.DataArray = array[..., window.row : window.row_end, window.col : window.col_end].compute()
    return cut
