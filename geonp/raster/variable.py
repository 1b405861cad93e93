"""A variable to be filled, of numbers or of CF flag values, with all that its metadata says; found once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.raster.casting import Fit, fitting
from geonp.raster.grid import Grid
from geonp.raster.metadata import UNNAMED, ancillary_names, kept_encoding
from geonp.raster.nodata import UNLIMITED, Reader, declared_nodata, empty_value, reader, require_real, valid_limits

__all__ = [
    "ClassReader",
    "Variable",
    "class_reader",
    "class_variables",
    "fill_variables",
    "labels",
    "passed_integers",
]


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable to be filled.

    Attributes
    ----------
    name : hashable
        Its name in the Dataset.
    source : DataArray
        Values as they are stored, with attributes and encoding; not read yet if it is lazy.
    spatial : tuple
        Dimensions of rows and of columns; of places, their only dimension.
    nodata : tuple of float
        Values that mark missing cells.
    limits : tuple of float
        Smallest and largest valid value.
    read : callable
        Converts stored values to floats, or to numbers of classes, with NaN where missing.
    fit : callable
        Converts filled values to the dtype of `source`, see :func:`geonp.raster.casting.fitting`.
    empty : float
        What an empty cell holds in that dtype.
    encoding : mapping
        Encoding of the result.
    """

    name: Hashable
    source: xr.DataArray
    spatial: tuple[Hashable, ...]
    nodata: tuple[float, ...]
    limits: tuple[float, float]
    read: Reader | ClassReader
    fit: Fit
    empty: float
    encoding: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        source: xr.DataArray,
        spatial: tuple[Hashable, ...],
        nodata: float | None = None,
        *,
        classes: bool = False,
    ) -> Variable:
        """Read the metadata of an array; `nodata` replaces the nodata value that it declares.

        Raises
        ------
        InputError
            For dtypes, flag values or nodata values that cannot be used.
        """
        markers = declared_nodata(source) if nodata is None else (float(nodata),)
        encoding, limits = kept_encoding(source, markers), valid_limits(source)
        read: Reader | ClassReader
        fit: Callable[..., npt.NDArray[Any]]
        if classes:
            read, fit = class_reader(source, nodata), _restoring(source)
        else:
            read, fit = reader(source, nodata), fitting(source.dtype, markers, encoding, limits)
        empty = empty_value(source, markers)
        return cls(source.name, source, spatial, markers, limits, read, fit, empty, encoding)

    @property
    def label(self) -> str:
        """Name of the filled variable, and the beginning of the names of the other results."""
        return UNNAMED if self.name is None else str(self.name)

    @property
    def leading(self) -> tuple[Hashable, ...]:
        """Dimensions other than rows and columns, in order."""
        return tuple(dim for dim in self.source.dims if dim not in self.spatial)

    @property
    def spatial_last(self) -> xr.DataArray:
        """The stored values with rows and columns as the last two dimensions."""
        return self.source.transpose(*self.leading, *self.spatial)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the leading dimensions, then rows and columns."""
        return tuple(self.source.sizes[dim] for dim in (*self.leading, *self.spatial))

    @property
    def slices(self) -> int:
        """Number of spatial slices."""
        return math.prod(self.shape[:-2])


def fill_variables(ds: xr.Dataset, grid: Grid, nodata: float | None = None) -> list[Hashable]:
    """Names of the variables of ``ds`` to fill: real numbers on both spatial dimensions, in the order of ``ds``.

    Ancillary variables (standard errors, flags) and CF flag variables are not filled. Integers that declare no nodata
    value are usually quality layers: they are filled only if `nodata` is given, or if no other variable can be filled.

    Raises
    ------
    InputError
        If there is none, naming each variable with its dimensions and dtype.
    """
    ancillary = {name for da in ds.data_vars.values() for name in ancillary_names(da)}
    names = [
        name
        for name, da in ds.data_vars.items()
        if {grid.y_dim, grid.x_dim} <= set(da.dims)
        and da.dtype.kind in "iuf"
        and name not in ancillary
        and not {"flag_values", "flag_masks"} & set(da.attrs)
    ]
    if not names:
        got = "; ".join(f"{name!r} {da.dims} {da.dtype}" for name, da in ds.data_vars.items()) or "no variables"
        raise InputError(
            f"No variable can be filled: got {got}; expected real numbers on the dimensions "
            f"({grid.y_dim!r}, {grid.x_dim!r}). Convert the variable, for example ds['name'].astype('float32')."
        )
    declared = [name for name in names if ds[name].dtype.kind == "f" or nodata is not None or declared_nodata(ds[name])]
    return declared or [name for name in names if valid_limits(ds[name]) != UNLIMITED] or names


def passed_integers(ds: xr.Dataset, grid: Grid, filled: list[Hashable]) -> list[Hashable]:
    """Integer variables that would be filled if a nodata value were given."""
    return [name for name in fill_variables(ds, grid, np.nan) if name not in filled]


def class_variables(ds: xr.Dataset, grid: Grid, classes: int) -> list[Hashable]:
    """Names of the variables of ``ds`` with as many CF ``flag_values`` as there are `classes`, in the order of ``ds``.

    Status flags (``standard_name = "status_flag"``) describe other variables and are not filled.

    Raises
    ------
    InputError
        If there is none, naming each variable with its number of flag values.
    """
    spatial = {grid.y_dim, grid.x_dim}
    names = [
        name
        for name, da in ds.data_vars.items()
        if spatial <= set(da.dims) and _n_classes(da) == classes and da.attrs.get("standard_name") != "status_flag"
    ]
    if not names:
        got = "; ".join(f"{name!r} with {_n_classes(da)}" for name, da in ds.data_vars.items())
        raise InputError(
            f"No variable can be filled by a model of {classes} classes: got {got or 'no variables'}, expected one "
            f"with {classes} flag_values on ({grid.y_dim!r}, {grid.x_dim!r}). Give the variable the CF attributes "
            "flag_values and flag_meanings, in the order of the model's classes."
        )
    return names


def _n_classes(da: xr.DataArray) -> int:
    """Number of ``flag_values``, also of a text such as ``"0, 1, 2"``, as some writers leave them."""
    given = da.attrs.get("flag_values", ())
    return len(given.replace(",", " ").split()) if isinstance(given, str) else np.size(given)


@dataclass(frozen=True)
class ClassReader:
    """Converts stored values to numbers of classes: indices into `known`, and NaN for all other values."""

    known: tuple[float, ...]
    dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Numbers of classes, in the shape of `values`."""
        out = np.full(values.shape, np.nan, self.dtype)
        for number, value in enumerate(self.known):
            out[values == value] = number
        return out


def class_reader(da: xr.DataArray, nodata: float | None = None) -> ClassReader:
    """The :class:`ClassReader` of an array with CF ``flag_values``.

    Raises
    ------
    InputError
        If the flag values are not distinct numbers, or one of them is the nodata value.
    """
    require_real(da)
    markers = declared_nodata(da) if nodata is None else (float(nodata),)
    given = da.attrs["flag_values"]
    try:
        known = np.asarray(given, np.float64).ravel()
    except (TypeError, ValueError):
        known = np.empty(0)
    if not known.size or len(set(known.tolist())) < known.size:
        raise InputError(
            f"The flag_values of {da.name!r} must be numbers that differ: got {given!r}. Correct the attribute, for "
            f"example to np.array([0, 1, 2], {str(da.dtype)!r})."
        )
    if missing := sorted(set(known.tolist()) & set(markers)):
        raise InputError(
            f"{missing[0]:g} is a class of {da.name!r} (flag_values) and its nodata value too: cells filled with it "
            "would look missing. Give another nodata value, or leave the class out of a model of fewer classes."
        )
    return ClassReader(tuple(known.tolist()))


def labels(da: xr.DataArray) -> npt.NDArray[Any]:
    """Names of the classes: the flag meanings if there is one for each flag value, otherwise the flag values."""
    meanings, values = str(da.attrs.get("flag_meanings", "")).split(), np.ravel(da.attrs["flag_values"])
    return np.array(meanings) if len(meanings) == len(values) else values


def _restoring(da: xr.DataArray) -> Fit:
    """A function ``(numbers, filled_mask, source)`` that writes flag values into the filled cells of `source`."""
    return partial(_restored, np.ravel(da.attrs["flag_values"]))


def _restored(
    known: npt.NDArray[Any], number: npt.NDArray[Any], filled_mask: npt.NDArray[np.bool_], source: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    chosen = known[np.where(filled_mask, number, 0).astype(np.intp)].astype(source.dtype)
    return np.where(filled_mask, chosen, source)
