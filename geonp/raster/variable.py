"""The variables of a raster to be filled, of numbers or of classes, with everything their metadata declares."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.raster.arrays import Array, BoolArray, Float32Array
from geonp.raster.casting import Fit, fitting
from geonp.raster.dimensions import data_variables, is_coordinate
from geonp.raster.grid import Grid
from geonp.raster.kinds import flag_values_of, is_classes
from geonp.raster.metadata import (
    UNNAMED,
    Kind,
    class_attrs,
    describing_names,
    flag_meanings_of,
    kept_encoding,
    listed_names,
)
from geonp.raster.nodata import (
    UNLIMITED,
    Reader,
    converted,
    declared_nodata,
    empty_value,
    nodata_values,
    reader,
    require_real,
    valid_limits,
)

_FEW = 4
"""Largest number of vertices of a cell, or of rows of a matrix; more of them make a grid."""


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
    kind : Kind
        What the values are.
    categories : tuple of float
        Classes whose probabilities are asked for.
    sure : bool
        Whether the user has said of which kind the values are.
    """

    name: Hashable
    source: xr.DataArray
    spatial: tuple[Hashable, ...]
    nodata: tuple[float, ...]
    limits: tuple[float, float]
    read: Read
    fit: Fit
    empty: float
    encoding: Mapping[str, Any]
    kind: Kind = Kind.NUMBERS
    categories: tuple[float, ...] = ()
    sure: bool = False

    @classmethod
    def of(
        cls,
        source: xr.DataArray,
        spatial: tuple[Hashable, ...],
        nodata: float | None = None,
        *,
        classes: bool = False,
        kind: Kind = Kind.NUMBERS,
    ) -> Variable:
        """Read the metadata of an array; `nodata` replaces the declared nodata value.

        With `classes`, the values are read as numbers of classes, for a classifier. Raises InputError for dtypes, flag
        values or nodata values that cannot be used, and for a dimension without entries.
        """
        if 0 in source.shape:
            raise InputError(
                f"Variable {source.name!r} has no cells: got sizes {dict(source.sizes)}, expected at least one along "
                "each dimension. Leave it out (--variable)."
            )
        values = nodata_values(source, nodata)
        encoding, limits = kept_encoding(source, values), valid_limits(source)
        read: Read
        fit: Fit
        if kind is Kind.CLASSES:
            read, fit = _reader_of_classes(source, nodata), _as_stored
        elif classes:
            read, fit = class_reader(source, nodata), partial(_flagged, np.ravel(source.attrs["flag_values"]))
        else:
            require_numbers(source)
            read, fit = reader(source, nodata), fitting(source.dtype, values, encoding, limits)
        empty = empty_value(source, values)
        return cls(source.name, source, spatial, values, limits, read, fit, empty, encoding, kind)

    def within(self, low: float, high: float) -> Variable:
        """The variable with narrower limits of filled values."""
        limits = max(self.limits[0], low), min(self.limits[1], high)
        return replace(self, fit=fitting(self.source.dtype, self.nodata, self.encoding, limits))

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
    def observed(self) -> xr.DataArray:
        """Values as floats with NaN in missing cells, rows and columns last; as lazy as the stored values."""
        array = self.spatial_last
        found: xr.DataArray = xr.apply_ufunc(self.read, array, dask="parallelized", output_dtypes=[self.read.dtype])
        return found.drop_attrs(deep=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the leading dimensions, then rows and columns."""
        return tuple(self.source.sizes[dim] for dim in (*self.leading, *self.spatial))

    @property
    def slices(self) -> int:
        """Number of spatial slices."""
        return math.prod(self.shape[:-2])


def number_variables(ds: xr.Dataset, grid: Grid) -> list[Hashable]:
    """Names of all variables of numbers on both spatial dimensions that describe no other variable or cells."""
    describing = describing_names(ds) | _of_cells(ds)
    return [
        name
        for name, da in data_variables(ds).items()
        if grid.spans(da) and da.dtype.kind in "iuf" and name not in describing and not is_classes(da)
    ]


def _of_cells(ds: xr.Dataset) -> set[Hashable]:
    """What the CF attributes ``bounds`` and ``cell_measures`` name: corners and areas of cells."""
    about = [{**variable.encoding, **variable.attrs} for variable in ds.variables.values()]
    names = (each.get(key, "") for each in about for key in ("bounds", "cell_measures"))
    return {name for text in names for name in listed_names(text, ds.variables)}


def fill_variables(ds: xr.Dataset, grid: Grid, nodata: float | None = None) -> list[Hashable]:
    """Names of the variables to fill, in order: integers and floats on both spatial dimensions.

    Ancillary variables (standard errors, flags) and CF flag variables are not filled. Integers without a declared
    nodata value are usually quality layers: they are filled only if `nodata` is given, or if there are no others.
    Raises InputError if there is none, naming each variable with its dimensions and dtype.
    """
    names = number_variables(ds, grid)
    if not names:
        for da in ds.data_vars.values():
            require_numbers(da)
        got = "; ".join(f"{name!r} {da.dims} {da.dtype}" for name, da in data_variables(ds).items()) or "no variables"
        raise InputError(
            f"No variable can be filled: got {got}; expected integers or floats on the dimensions "
            f"({grid.y_dim!r}, {grid.x_dim!r}). {_remedy(ds, grid)}"
        )
    if nodata is not None:
        return names
    declared = [name for name in names if ds.variables[name].dtype.kind == "f" or declared_nodata(ds[name])]
    return declared or [name for name in names if valid_limits(ds[name]) != UNLIMITED] or names


def _remedy(ds: xr.Dataset, grid: Grid) -> str:
    """What to do with a Dataset none of whose variables can be filled."""
    if not ds.data_vars:
        return "There are none beside covariates, errors and flags."
    gathered = [str(name) for name, variable in ds.variables.items() if "compress" in variable.attrs]
    if gathered:
        return (
            f"The file is compressed by gathering: unpack {gathered[0]!r} with "
            f"cf_xarray.decode_compress_to_multi_index(ds, {gathered[0]!r}).unstack({gathered[0]!r})."
        )
    if spanning := [(name, da.dtype) for name, da in data_variables(ds).items() if grid.spans(da)]:
        name, dtype = spanning[0]
        return f"Convert the variable, for example {converted(f'ds[{name!r}]', dtype)}."
    return "Choose other dimensions with y_dim and x_dim (--y, --x)."


def require_numbers(da: xr.DataArray) -> None:
    """Check that values are not classes, whose mean is no class.

    Raises InputError if they are, naming the attribute that says so.
    """
    if found := class_attrs(da.attrs):
        what = "a palette or table of categories" if "LAYER_TYPE" in found else ", ".join(map(str, found))
        raise InputError(
            f"Variable {da.name!r} holds classes, not numbers: got {what}, expected quantities. Choose other variables "
            "(--variable), or treat it as numbers: open it with as_numbers=True (--as-numbers), or remove these "
            "attributes."
        )


def passed_classes(ds: xr.Dataset, grid: Grid) -> list[Hashable]:
    """Names of variables of classes on both spatial dimensions that describe no other variable."""
    ancillary = describing_names(ds)
    return [
        name
        for name, da in data_variables(ds).items()
        if grid.spans(da)
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
    leading = {dim for name in filled for dim in ds.variables[name].dims} - set(grid.dims)
    bounds = _of_cells(ds)
    return [
        name
        for name, da in data_variables(ds).items()
        if da.dtype.kind in "iuf"
        and not grid.spans(da)
        and sum(dim not in leading and size > _FEW for dim, size in da.sizes.items()) >= 2
        and name not in bounds
        and not is_coordinate(da)
    ]


def class_variables(ds: xr.Dataset, grid: Grid, classes: int) -> list[Hashable]:
    """Names of the variables with as many CF ``flag_values`` as the model has classes, in order.

    Status flags (``standard_name = "status_flag"``) describe other variables and are not filled. Raises InputError if
    there is none, naming each variable with its number of flag values.
    """
    names = [
        name
        for name, da in data_variables(ds).items()
        if grid.spans(da) and _n_classes(da) == classes and da.attrs.get("standard_name") != "status_flag"
    ]
    if not names:
        got = "; ".join(f"{name!r} with {_n_classes(da)}" for name, da in data_variables(ds).items())
        raise InputError(
            f"No variable can be filled by a model of {classes} classes: got {got or 'no variables'}, expected one "
            f"with {classes} flag_values on ({grid.y_dim!r}, {grid.x_dim!r}). Give the variable the CF attributes "
            "flag_values and flag_meanings, in the order of the model's classes."
        )
    return names


def _n_classes(da: xr.DataArray | xr.Variable) -> int:
    """Number of ``flag_values``; some writers store them as text, such as ``"0, 1, 2"``."""
    given = da.attrs.get("flag_values", ())
    return len(given.replace(",", " ").split()) if isinstance(given, str) else np.size(given)


@dataclass(frozen=True)
class ClassReader:
    """Converts stored values to class indices, the positions in `flag_values`; other values become NaN."""

    flag_values: tuple[float, ...]
    dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)

    def __call__(self, values: Array) -> Float32Array:
        """Class indices, in the shape of `values`."""
        out = np.full(values.shape, np.nan, self.dtype)
        for index, value in enumerate(self.flag_values):
            out[values == value] = index
        return out


@dataclass(frozen=True)
class ListedReader:
    """Converts stored classes to floats; values that are not listed become NaN."""

    listed: tuple[float, ...]
    dtype: np.dtype[Any]

    def __call__(self, values: Array) -> Array:
        """Floats of the same shape."""
        return np.where(np.isin(values, np.array(self.listed)), values, np.nan).astype(self.dtype)


@dataclass(frozen=True)
class ErrorReader:
    """Reads known errors: an infinite one is not missing, which would make its observation exact.

    They are multiplied by `scale`, and `offset` is added, where they or the values are packed.
    """

    read: Reader | ClassReader | ListedReader | ErrorReader
    scale: float = 1.0
    offset: float = 0.0
    __name__: ClassVar[str] = "read_errors"

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the errors."""
        return self.read.dtype

    def __call__(self, values: Array) -> Array:
        """Floats of the same shape."""
        found = np.where(np.isinf(values), values, self.read(values))
        return (self.scale * found + self.offset).astype(self.dtype)


Read = Reader | ClassReader | ListedReader | ErrorReader
"""Types of the functions that convert stored values to floats."""


def _reader_of_classes(da: xr.DataArray, nodata: float | None) -> Reader | ListedReader:
    """The reader of classes as they are stored: without a nodata value, those not in ``flag_values`` are missing."""
    silent = da.dtype.kind in "iu" and not nodata_values(da, nodata) and valid_limits(da) == UNLIMITED
    if silent and (listed := flag_values_of(da)):
        return ListedReader(listed, np.dtype(np.float64 if da.dtype.itemsize > 2 else np.float32))
    return reader(da, nodata)


def class_reader(da: xr.DataArray, nodata: float | None = None) -> ClassReader:
    """The :class:`ClassReader` of an array with CF ``flag_values``.

    Raises InputError if the flag values are not distinct numbers, or one of them is the nodata value.
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


def labels(da: xr.DataArray) -> Array:
    """Names of the classes: the flag meanings if there are as many as flag values, otherwise the flag values."""
    meanings, values = flag_meanings_of(da.attrs), np.ravel(da.attrs["flag_values"])
    return np.array(meanings) if len(meanings) == len(values) else values


def _as_stored(classes: Array, filled_mask: BoolArray, source: Array) -> Array:
    """`source` with the classes of the filled cells; floats with NaN where missing."""
    if source.dtype.kind == "f":
        return classes.astype(source.dtype)
    result = source.copy()
    result[filled_mask] = classes[filled_mask].astype(source.dtype)
    return result


def _flagged(flag_values: Array, index: Array, filled_mask: BoolArray, source: Array) -> Array:
    """`source` with the flag values of the class indices in the filled cells."""
    chosen = flag_values[np.where(filled_mask, index, 0).astype(np.intp)].astype(source.dtype)
    return np.where(filled_mask, chosen, source)
