"""Values under clouds, shadows and other flags, which are hidden from a fill.

The raster is given a lazy view of its values with the nodata value, or NaN, in these cells. All that follows reads
this view. Which stored values are missing in themselves is decided in :mod:`geonp.raster.nodata`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from geonp.errors import InputError, warn
from geonp.io.warp import resampled
from geonp.raster.arrays import Array, BoolArray
from geonp.raster.covariates import placed
from geonp.raster.elementwise import elementwise, is_lazy
from geonp.raster.flags import Condition, Expression, layer_of, parsed
from geonp.raster.grid import Grid
from geonp.raster.kinds import is_auxiliary, is_named_as_classes
from geonp.raster.metadata import ancillary_names, as_dataset
from geonp.raster.nodata import DEFAULT_FILL, NODATA, empty_value, holds, nodata_values, valid_limits
from geonp.raster.presets import PRESETS
from geonp.raster.variable import fill_variables

MissingLike = xr.DataArray | BoolArray | str | Condition | Callable[[Any], Any]
"""What says where values are missing: an array, an expression on the variables of the raster, or a function of it."""


@dataclass(frozen=True, eq=False)
class Flags:
    """Where values of a raster count as missing.

    Attributes
    ----------
    ds : Dataset
        The raster, without the bands that are flags.
    layers : tuple of hashable
        Its variables that are flags.
    masks : tuple of DataArray
        Booleans on the grid of the raster, or floats with NaN outside of a layer on another grid, not 0 where values
        are missing.
    sources : tuple
        For each of them, the expression and the layer, by which a resumed job is compared, or the mask itself.
    measured : tuple of hashable
        Those of the `layers` that look like what was observed, see :func:`is_measured`.
    """

    ds: xr.Dataset
    layers: tuple[Hashable, ...] = ()
    masks: tuple[xr.DataArray, ...] = ()
    sources: tuple[tuple[str, xr.DataArray], ...] = ()
    measured: tuple[Hashable, ...] = ()

    def candidates(self, grid: Grid, left_out: Sequence[Hashable] = ()) -> xr.Dataset:
        """The raster without its flags and variables that are `left_out`, such as covariates.

        Flags stay where nothing else is on the grid, as with ``missing="temperature<0"`` for temperatures alone: then
        their own values are hidden.
        """
        ds = self.ds.drop_vars(list(left_out))
        layers = [name for name in self.layers if name in ds]
        others = ds.drop_vars(layers)
        about = {name for layer in layers for name in ancillary_names(ds[layer], ds.variables)}
        if not any(grid.spans(da) for name, da in others.items() if name not in about):
            return ds
        if measured := [name for name in self.measured if name in ds]:
            warn(
                f"{', '.join(map(str, measured))}: says where other variables are missing, and is not filled. To hide "
                f"and fill its own values, choose it alone: ds[[{measured[0]!r}]] "
                f"(--variable {quote(str(measured[0]))})."
            )
        return others

    def quality(self, names: Sequence[Hashable]) -> list[Hashable]:
        """Other quality layers beside those that are flags, which nobody expects to be filled."""
        found = [name for name, da in self.ds.data_vars.items() if name not in names and is_auxiliary(da)]
        return [name for name in found if name not in self.layers] if self.masks else []

    def flagged(self, array: xr.DataArray) -> xr.DataArray:
        """Where values of a variable count as missing, as lazy as the variable is."""
        masks = [mask.variable for mask in self.masks]
        return array.copy(data=elementwise(_union, bool, array.variable, *masks)._data)

    def reached(self, names: Sequence[Hashable]) -> list[Hashable]:
        """Names of the variables with all dimensions of the masks, without elevations, probabilities and the like.

        Raises InputError if there is none.
        """
        if not self.masks:
            return list(names)
        dims = {dim for mask in self.masks for dim in mask.dims}
        reached = [name for name in names if dims <= set(self.ds[name].dims)]
        found = [name for name in reached if not is_auxiliary(self.ds[name])] or reached
        if not found:
            got = "; ".join(f"{name!r} {self.ds[name].dims}" for name in names)
            raise InputError(
                f"The missing cells vary along {', '.join(sorted(map(str, dims)))}, but no variable does: got {got}. "
                "Select one entry of the mask, or reduce it, for example with mask.any('time')."
            )
        if passed := [name for name in names if name not in found]:
            warn(
                f"{', '.join(map(str, passed))}: passed through, because the flags apply to other variables: "
                f"{', '.join(map(str, found))}. To fill them, choose them alone: ds[[{passed[0]!r}]] (--variable "
                f"{passed[0]})."
            )
        return found


def flags_of(missing: object, obj: xr.DataArray | xr.Dataset, ds: xr.Dataset, grid: Grid) -> Flags:
    """Find the layers of the conditions, and test them.

    Raises InputError for a condition that is not understood, a layer or flag that does not exist, and arrays that are
    not of the raster.

    Parameters
    ----------
    missing
        See :class:`geonp.fill.options.FillOptions`.
    obj
        The raster as the user gave it, which functions are called with.
    ds, grid
        The raster as a Dataset, and its grid.
    """
    layers: list[Hashable] = []
    bands: set[tuple[Hashable, int]] = set()
    masks, sources, measured = [], [], []
    for one in () if missing is None else missing if isinstance(missing, (list, tuple)) else (missing,):
        if isinstance(one, str):
            expression = parsed(one, lambda name: layer_of(ds, name) is not None)
            layer, place = find_layer(expression, ds)
            bands |= set(place.items())
            layers += [] if place else [layer.name]
            measured += [layer.name] if is_measured(expression, layer) else []
            one = Condition(expression, layer)
        if isinstance(one, Condition):
            layer, what = one.layer, f"layer {one.layer.name!r}"
            sources.append((one.expression.text, layer))
            flagged = elementwise(one.expression.on(layer), bool, layer.variable)
            mask = xr.DataArray(flagged, layer.coords, name=layer.name)
            mask.encoding = {key: value for key, value in layer.encoding.items() if key == "source"}
        else:
            mask, what = _array(one, obj, ds, grid), "mask of missing cells"
            sources.append(("", mask))
        masks.append(_on_grid(mask, ds, grid, what))
    ds = without_bands(ds, bands, [name for name in measured if name not in layers])
    return Flags(ds, tuple(layers), tuple(masks), tuple(sources), tuple(n for n in measured if n in layers))


def without_bands(
    ds: xr.Dataset, bands: Collection[tuple[Hashable, int]], measured: Collection[Hashable] = ()
) -> xr.Dataset:
    """A raster without some bands, which are pairs of a dimension and a position, unless there are no others.

    Warns of the names of those that were `measured`.
    """
    for dim in {dim for dim, _ in bands}:
        if kept := [k for k in range(ds.sizes[dim]) if (dim, k) not in bands]:
            ds = ds.isel({dim: kept})
            if measured:
                warn(
                    f"{', '.join(map(str, measured))}: says where other bands are missing, and is left out of the "
                    "result. To hide and fill its own values, choose it alone, or give the condition as an array "
                    "(missing=; --bidx)."
                )
    return ds


def is_measured(expression: Expression, layer: xr.DataArray) -> bool:
    """Whether the layer of a condition looks like what was observed: it is compared with a limit."""
    return expression.compares and not is_auxiliary(layer) and not is_named_as_classes(layer)


def find_layer(expression: Expression, ds: xr.Dataset) -> tuple[xr.DataArray, Mapping[Hashable, int]]:
    """The layer of an expression in a raster, and its place among the bands of a variable.

    Raises InputError if there is none.
    """
    if expression.layer:
        found = layer_of(ds, expression.layer)
    else:
        names = PRESETS[expression.text].layers
        there = [str(name) for name in (*ds.variables, *_band_names(ds)) if str(name).lower() in names]
        found = layer_of(ds, there[0]) if there else None
    if found is None:
        wanted = repr(expression.layer) if expression.layer else " or ".join(map(repr, PRESETS[expression.text].layers))
        names_ = ", ".join(map(str, (*ds.data_vars, *_band_names(ds)))) or "none"
        named = f" or name the layer: NAME={expression.text}, on the command line also FILE={expression.text}"
        instead = named if not expression.layer else ""
        raise InputError(
            f"The raster has no layer {wanted} for the condition {expression.text!r}: expected one of {names_}. "
            f"Correct missing (--gaps-where),{instead or ' or give a file: FILE:VARIABLE on the command line'}."
        )
    return found


def _band_names(ds: xr.Dataset) -> list[str]:
    return [str(text) for c in ds.coords.values() if c.ndim == 1 and c.dtype.kind in "OUS" for text in c.values]


def _array(one: Any, obj: Any, ds: xr.Dataset, grid: Grid) -> xr.DataArray:
    """An array that says where values are missing, or what a function of the raster gives."""
    if callable(one) and not isinstance(one, (xr.DataArray, xr.Dataset)):
        read_later = isinstance(obj, xr.Dataset) and any(is_lazy(da.variable) for da in obj.data_vars.values())
        one = one(obj.chunk() if read_later else obj)  # functions of xarray would load what is read later
    if isinstance(one, xr.DataArray):
        array = one
    else:
        values = np.asarray(one)
        dims: tuple[Hashable, ...] = grid.dims
        dims = next((da.dims for da in ds.data_vars.values() if da.shape == values.shape and da.ndim > 2), dims)
        if values.shape != tuple(ds.sizes[dim] for dim in dims):
            raise InputError(
                f"missing has shape {values.shape}, expected that of the raster, {grid.shape} (rows, columns) or with "
                "its other dimensions."
            )
        array = xr.DataArray(values, dims=dims)
    if array.dtype != bool:
        raise InputError(
            f"missing has dtype {array.dtype}, expected booleans, True where values are missing: write a condition, "
            "such as missing=ds.SCL.isin([3, 8, 9]) or missing='SCL=3,8,9'."
        )
    return array


def _on_grid(mask: xr.DataArray, ds: xr.Dataset, grid: Grid, what: str) -> xr.DataArray:
    """A mask on the grid of the raster, of the nearest cell if it lies on another one."""
    own = Grid.from_xarray(mask)
    try:
        grid.require_same(own, what, warns=False)
    except InputError:
        numbers = xr.DataArray(elementwise(np.uint8, np.uint8, mask.variable), mask.coords, name=mask.name)
        mask = resampled(numbers, grid, "nearest", what)
        warn(
            f"The {what} has {own.shape[0]} x {own.shape[1]} cells on another grid than the raster: each of its "
            "cells takes the nearest flag."
        )
    mask = placed(mask, ds, grid, what)
    unknown = [dim for dim in mask.dims if dim not in ds.dims and mask.sizes[dim] == 1]
    return mask.squeeze(unknown, drop=True)


def hidden(flags: Flags, names: Sequence[Hashable], nodata: float | None) -> tuple[xr.Dataset, set[Hashable]]:
    """The raster with the nodata value, or NaN, where values of the variables `names` are missing.

    Returns
    -------
    ds : Dataset
        As lazy as it was.
    declared : set
        The variables that had no value for missing cells, and are widened integers with one now.
    """
    ds, declared = flags.ds, set()
    for name in names if flags.masks else ():
        array = ds[name]
        dtype, marker = _marker(array, nodata)
        masks = [mask.variable for mask in flags.masks]
        made = elementwise(_Hide(marker, dtype), dtype, array.variable, *masks)
        made.attrs, made.encoding = dict(array.attrs), dict(array.encoding)
        if dtype != array.dtype:
            declared.add(name)
            made.attrs["_FillValue"] = marker
            for key in ("dtype", DEFAULT_FILL, *NODATA):
                made.encoding.pop(key, None)
            warn(
                f"{name}: {array.dtype} without a nodata value is filled as {dtype}, with {marker:d} in cells that "
                f"stay empty. To keep {array.dtype}, choose a value that no cell has: nodata= (--nodata)."
            )
        ds = ds.assign({name: made})
    return ds, declared


def with_gaps(
    obj: xr.DataArray | xr.Dataset, missing: object, nodata: float | None, left_out: Sequence[Hashable] = ()
) -> tuple[xr.Dataset, list[Hashable], Flags, set[Hashable]]:
    """A raster whose values are hidden where they are missing, without anything of models.

    Raises InputError for a condition that cannot be used, and if there is no variable.

    Parameters
    ----------
    left_out : sequence of hashable
        Variables that are not to be filled, such as covariates.

    Returns
    -------
    ds : Dataset
    names : list of hashable
        The variables of numbers that can be filled.
    flags : Flags
    declared : set
        See :func:`hidden`.
    """
    grid = Grid.from_xarray(obj)
    ds = as_dataset(obj)
    flags = flags_of(missing, obj, ds, grid)
    candidates = flags.candidates(grid, left_out)
    names = fill_variables(candidates, grid, nodata) if isinstance(obj, xr.Dataset) else list(candidates.data_vars)
    names = flags.reached(names)
    ds, declared = hidden(flags, names, nodata)
    return ds, names, flags, declared


def _marker(array: xr.DataArray, nodata: float | None) -> tuple[np.dtype[Any], Any]:
    """The dtype and the value that marks missing cells: wider integers if none of the dtype does."""
    values = nodata_values(array, nodata)
    held = [value for value in values if np.isfinite(value) and holds(array.dtype, value)]
    if array.dtype.kind == "f":
        return array.dtype, array.dtype.type(held[0] if held else np.nan)
    if array.dtype.kind not in "iu":
        return array.dtype, np.nan  # refused later
    empty, (low, high) = empty_value(array, values), valid_limits(array)
    if held or not low <= empty <= high:
        return array.dtype, array.dtype.type(empty)
    wider = next(
        (np.dtype(f"i{n}") for n in (2, 4, 8) if np.can_cast(array.dtype, f"i{n}") and n > array.dtype.itemsize), None
    )
    if wider is None:
        raise InputError(
            f"Variable {array.name!r} has no value for missing cells: got {array.dtype} without a nodata value. Choose "
            "one that no cell has: nodata= (--nodata)."
        )
    return wider, wider.type(np.iinfo(wider).min)


@dataclass(frozen=True)
class _Hide:
    """Replaces values where a mask is neither 0 nor NaN."""

    marker: Any
    dtype: np.dtype[Any]
    __name__: ClassVar[str] = "hide"

    def __call__(self, values: Array, *masks: Array) -> Array:
        return np.where(_union(values, *masks), self.marker, values).astype(self.dtype)


def _union(values: Array, *masks: Array) -> BoolArray:
    """Where a mask is neither 0 nor NaN."""
    missing = np.zeros(values.shape, bool)
    for mask in masks:
        missing |= mask if mask.dtype == bool else (mask != 0) & (mask == mask)
    return missing
