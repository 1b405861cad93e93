"""The variables of a raster to be filled, of numbers or of classes, with everything their metadata declares."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.raster.casting import Fit, fitting
from geonp.raster.dimensions import is_coordinate
from geonp.raster.grid import Grid
from geonp.raster.metadata import UNNAMED, ancillary_names, class_attrs, kept_encoding
from geonp.raster.nodata import (
    UNLIMITED,
    Reader,
    declared_nodata,
    empty_value,
    nodata_values,
    reader,
    require_real,
    valid_limits,
)

__all__ = [
    "ClassReader",
    "Variable",
    "class_reader",
    "class_variables",
    "fill_variables",
    "is_classes",
    "labels",
    "off_grid",
    "passed_classes",
    "passed_integers",
    "require_numbers",
]

_FEW = 4
"""Largest number of vertices of a cell, or of rows of a matrix, which are no grid."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable to be filled.

    Attributes
    ----------
    name : hashable
        Name in the Dataset.
    source : DataArray
        Stored values with attributes and encoding, possibly lazy.
    spatial : tuple
        Dimensions of rows and columns, or the only dimension of scattered places.
    nodata : tuple of float
        Nodata values.
    limits : tuple of float
        Smallest and largest valid value.
    read : callable
        Converts stored values to floats, or to class indices, with NaN in missing cells.
    fit : callable
        Converts filled values to the dtype of `source`, see :func:`geonp.raster.casting.fitting`.
    empty : float
        Value of empty cells in that dtype.
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
        cls, source: xr.DataArray, spatial: tuple[Hashable, ...], nodata: float | None = None, *, classes: bool = False
    ) -> Variable:
        """Read the metadata of an array; `nodata` replaces the declared nodata value.

        Raises
        ------
        InputError
            For dtypes, flag values or nodata values that cannot be used.
        """
        values = nodata_values(source, nodata)
        encoding, limits = kept_encoding(source, values), valid_limits(source)
        read: Reader | ClassReader
        fit: Fit
        if classes:
            read, fit = class_reader(source, nodata), partial(_flagged, np.ravel(source.attrs["flag_values"]))
        else:
            require_numbers(source)
            read, fit = reader(source, nodata), fitting(source.dtype, values, encoding, limits)
        empty = empty_value(source, values)
        return cls(source.name, source, spatial, values, limits, read, fit, empty, encoding)

    @property
    def label(self) -> str:
        """Name of the filled variable and prefix of the other results."""
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
    """Names of the variables to fill, in order: integers and floats on both spatial dimensions.

    Ancillary variables (standard errors, flags) and CF flag variables are not filled. Integers without a declared
    nodata value are usually quality layers: they are filled only if `nodata` is given, or if there are no others.

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
        and not is_classes(da)
    ]
    if not names:
        for da in ds.data_vars.values():
            require_numbers(da)
        got = "; ".join(f"{name!r} {da.dims} {da.dtype}" for name, da in ds.data_vars.items()) or "no variables"
        raise InputError(
            f"No variable can be filled: got {got}; expected integers or floats on the dimensions "
            f"({grid.y_dim!r}, {grid.x_dim!r}). Convert the variable, for example ds['name'].astype('float32')."
        )
    if nodata is not None:
        return names
    declared = [name for name in names if ds[name].dtype.kind == "f" or declared_nodata(ds[name])]
    return declared or [name for name in names if valid_limits(ds[name]) != UNLIMITED] or names


def passed_integers(ds: xr.Dataset, grid: Grid, filled: Sequence[Hashable]) -> list[Hashable]:
    """Integer variables that would be filled if a nodata value were given."""
    return [name for name in fill_variables(ds, grid, np.nan) if name not in filled]


def is_classes(da: xr.DataArray) -> bool:
    """Whether values are classes: CF flags, or a GDAL raster with a palette or categories."""
    return bool(class_attrs(da.attrs))


def require_numbers(da: xr.DataArray) -> None:
    """Check that values are not classes, whose mean is no class.

    Raises
    ------
    InputError
        If they are, naming the attribute that says so.
    """
    if found := class_attrs(da.attrs):
        what = "a palette or table of categories" if "LAYER_TYPE" in found else ", ".join(map(str, found))
        raise InputError(
            f"Variable {da.name!r} holds classes, not numbers: got {what}, expected quantities. A model of numbers "
            "would invent classes: use a model of classes (--model), choose other variables (--variable), or fill them "
            "as numbers all the same with --as-numbers, in Python by geonp.open_raster(..., as_numbers=True) or by "
            "deleting the attributes that say so."
        )


def passed_classes(ds: xr.Dataset, grid: Grid) -> list[Hashable]:
    """Names of variables of classes on both spatial dimensions that describe no other variable."""
    ancillary = {name for da in ds.data_vars.values() for name in ancillary_names(da)}
    return [
        name
        for name, da in ds.data_vars.items()
        if {grid.y_dim, grid.x_dim} <= set(da.dims)
        and is_classes(da)
        and "flag_masks" not in da.attrs
        and name not in ancillary
        and not str(da.attrs.get("standard_name", "")).endswith(("status_flag", "quality_flag"))
    ]


def off_grid(ds: xr.Dataset, grid: Grid, filled: Sequence[Hashable]) -> list[Hashable]:
    """Numeric variables on rows and columns other than those of the grid, such as bands of another resolution.

    These have two dimensions that neither are leading dimensions of the `filled` variables nor have the few entries of
    bounds and matrices. Coordinates in two dimensions, and what an attribute ``bounds`` names, are left out.
    """
    spatial = {grid.y_dim, grid.x_dim}
    leading = {dim for name in filled for dim in ds[name].dims} - spatial
    bounds = {variable.attrs.get("bounds", variable.encoding.get("bounds")) for variable in ds.variables.values()}
    return [
        name
        for name, da in ds.data_vars.items()
        if da.dtype.kind in "iuf"
        and not spatial <= set(da.dims)
        and sum(dim not in leading and size > _FEW for dim, size in da.sizes.items()) >= 2
        and name not in bounds
        and not is_coordinate(da)
    ]


def class_variables(ds: xr.Dataset, grid: Grid, classes: int) -> list[Hashable]:
    """Names of the variables with as many CF ``flag_values`` as the model has classes, in order.

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
    """Number of ``flag_values``; some writers store them as text, such as ``"0, 1, 2"``."""
    given = da.attrs.get("flag_values", ())
    return len(given.replace(",", " ").split()) if isinstance(given, str) else np.size(given)


@dataclass(frozen=True)
class ClassReader:
    """Converts stored values to class indices, the positions in `flag_values`; other values become NaN."""

    flag_values: tuple[float, ...]
    dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Class indices, in the shape of `values`."""
        out = np.full(values.shape, np.nan, self.dtype)
        for index, value in enumerate(self.flag_values):
            out[values == value] = index
        return out


def class_reader(da: xr.DataArray, nodata: float | None = None) -> ClassReader:
    """The :class:`ClassReader` of an array with CF ``flag_values``.

    Raises
    ------
    InputError
        If the flag values are not distinct numbers, or one of them is the nodata value.
    """
    require_real(da)
    given = da.attrs["flag_values"]
    try:
        flag_values = np.asarray(given, np.float64).ravel().tolist()
    except (TypeError, ValueError):
        flag_values = []
    if not flag_values or len(set(flag_values)) < len(flag_values):
        raise InputError(
            f"The flag_values of {da.name!r} must be distinct numbers: got {given!r}. Correct the attribute, for "
            f"example to np.array([0, 1, 2], {str(da.dtype)!r})."
        )
    missing = nodata_values(da, nodata)
    if both := sorted(set(flag_values) & set(missing)):
        raise InputError(
            f"{both[0]:g} is both a class (flag_values) and the nodata value of {da.name!r}: cells filled with this "
            "class would be missing. Give another nodata value, or use a model without this class."
        )
    return ClassReader(tuple(flag_values))


def labels(da: xr.DataArray) -> npt.NDArray[Any]:
    """Names of the classes: the flag meanings if there are as many as flag values, otherwise the flag values."""
    meanings, values = str(da.attrs.get("flag_meanings", "")).split(), np.ravel(da.attrs["flag_values"])
    return np.array(meanings) if len(meanings) == len(values) else values


def _flagged(
    flag_values: npt.NDArray[Any], index: npt.NDArray[Any], filled_mask: npt.NDArray[np.bool_], source: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """`source` with the flag values of the class indices in the filled cells."""
    chosen = flag_values[np.where(filled_mask, index, 0).astype(np.intp)].astype(source.dtype)
    return np.where(filled_mask, chosen, source)
