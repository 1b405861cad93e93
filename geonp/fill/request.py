"""What is asked of a fill, checked once, before any work starts: variables, grid, domain, model and options."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import CheckpointError, InputError, ModelError
from geonp.inference import checkpoint
from geonp.inference.kernel import Job
from geonp.inference.predictor import resolve
from geonp.raster.classes import class_reader, class_variables
from geonp.raster.grid import Grid
from geonp.raster.metadata import fill_variables
from geonp.raster.nodata import declared_nodata

__all__ = [
    "FillOptions",
    "Raster",
    "Request",
    "checked_job",
    "checked_results",
    "domain_of",
    "normalise",
    "prepare",
    "spatial_last",
]

Raster = xr.DataArray | xr.Dataset
"""What can be filled."""


class FillOptions(TypedDict, total=False):
    """The options of :func:`geonp.fill.infill.infill`."""

    model: str | os.PathLike[str]
    mask: xr.DataArray | npt.NDArray[np.bool_] | None
    max_distance: float | None
    device: str | None
    batch_size: int | None
    seed: int
    nodata: float | None
    quantiles: Sequence[float]
    tails: bool
    samples: int
    across: Hashable | None


@dataclass(frozen=True, eq=False)
class Request:
    """A checked request.

    Attributes
    ----------
    ds : Dataset
    names : list
        Its variables that are to be filled.
    results : list of str
        Endings of the names of what is made for each of them, the filled one aside.
    grid : Grid
    domain : array or None
        Boolean ``(rows, columns)``, NumPy or dask: where the raster is valid.
    job : Job
    card : Card
        Of the model.
    nodata, quantiles, tails, samples
        As in :func:`geonp.fill.infill.infill`.
    """

    ds: xr.Dataset
    names: list[Hashable]
    results: list[str]
    grid: Grid
    domain: Any
    job: Job
    card: checkpoint.Card
    nodata: float | None
    quantiles: tuple[float, ...]
    tails: bool
    samples: int


def prepare(
    obj: Raster,
    *,
    model: str | os.PathLike[str] = "tnpkr-sa",
    mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    nodata: float | None = None,
    quantiles: Sequence[float] = (),
    tails: bool = False,
    samples: int = 0,
    across: Hashable | None = None,
) -> Request:
    """Check a raster and the options of :func:`geonp.fill.infill.infill`; reads coordinates and weights, no values.

    Raises
    ------
    InputError, ModelError, CheckpointError
        As :func:`geonp.fill.infill.infill`.
    """
    classes = _classes(model)
    if classes and (np.size(quantiles) or tails or samples):
        raise InputError("quantiles, tails and samples are of numbers, and the model predicts classes: leave them out")
    results = ["probability", "fill_flag"] if classes else checked_results(quantiles, tails, samples)
    if nodata is not None and not isinstance(nodata, Real):
        raise InputError(f"nodata must be a number, got {nodata!r}")
    ds, names, grid = normalise(obj, results, classes, nodata)
    for name in names if classes else ():
        class_reader(ds[name], nodata)  # for its errors, while nothing has begun
    if np.size(quantiles):
        _check_scales(ds, names)
    if before := [name for name in names if "geonp_model" in ds.attrs and f"{name}_fill_flag" in ds]:
        warnings.warn(
            f"{', '.join(map(str, before))} was filled by geonp before: what was filled then counts as observed now, "
            "without error. Fill what was observed: ds[name].where(ds[f'{name}_fill_flag'] == 0).",
            stacklevel=3,
        )
    if across is not None:
        _check_across(across, ds, names, grid, classes, samples)
    domain = None if mask is None else domain_of(mask, grid)
    job, card = checked_job(grid.shape, model, max_distance, device, batch_size, seed, periodic=grid.periodic_x)
    neighbourhood = job.predictor.neighbourhood.on(grid)
    if across is not None and neighbourhood.standard:
        raise InputError(
            f"the model {card.name} reads values in units of its own, not what one slice has beyond others: got "
            f"across={across!r}, expected None, or another model, for example tnpkr-sa"
        )
    if across is None and not samples and not neighbourhood.standard:
        across = neighbourhood.across or None
    job = replace(job, across=across, predictor=replace(job.predictor, neighbourhood=neighbourhood))
    levels = tuple(float(q) for q in quantiles)
    return Request(ds, names, results, grid, domain, job, card, nodata, levels, tails, int(samples))


def _check_across(
    across: Hashable, ds: xr.Dataset, names: Sequence[Hashable], grid: Grid, classes: int, samples: int
) -> None:
    """See that slices can tell about each other along a dimension."""
    others = list(dict.fromkeys(dim for name in names for dim in ds[name].dims if dim not in (grid.y_dim, grid.x_dim)))
    if across not in others:
        raise InputError(
            "across must be a dimension along which slices tell about each other, beside rows and columns: got "
            f"{across!r}, expected {' or '.join(map(repr, others)) if others else 'none, as there is a single slice'}"
        )
    if classes or samples:
        raise InputError(
            f"slices tell about numbers, each on its own: got across={across!r}, expected None for a model of classes, "
            "and for samples"
        )


def checked_job(
    shape: tuple[int, int],
    model: str | os.PathLike[str],
    max_distance: float | None,
    device: str | None,
    batch_size: int | None,
    seed: int,
    *,
    periodic: bool = False,
) -> tuple[Job, checkpoint.Card]:
    """Check the options that do not depend on the values, and load the model."""
    if max_distance is not None and not (isinstance(max_distance, Real) and max_distance > 0):
        raise InputError(f"max_distance must be a positive number, got {max_distance!r}")
    if not isinstance(seed, Integral):
        raise InputError(f"seed must be an integer, got {seed!r}")
    if not isinstance(model, (str, os.PathLike)):
        raise InputError(f"model must be a name or the path of a .safetensors file, got {model!r}")
    predictor, card = resolve(os.fspath(model), device, batch_size)
    return Job(predictor, shape, periodic, max_distance, int(seed)), card


def _classes(model: object) -> int:
    """How many classes the model has; 0 for models of numbers, and for what is no model, which is refused later."""
    try:
        return checkpoint.load_card(os.fspath(model)).classes  # type: ignore[call-overload]
    except (TypeError, CheckpointError, ModelError):
        return 0


def checked_results(quantiles: Sequence[float], tails: bool, samples: int = 0) -> list[str]:
    """Endings of the names of what is made for each variable, the filled one aside."""
    levels = list(quantiles) if isinstance(quantiles, (Sequence, np.ndarray)) else [None]
    if not all(isinstance(q, Real) and 0 < q < 1 for q in levels):
        raise InputError(
            f"quantiles must be a sequence of numbers between 0 and 1, like [0.05, 0.95], got {quantiles!r}"
        )
    if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 0:
        raise InputError(f"samples must be the number of joint samples, 0 or more, got {samples!r}")
    asked = {"quantile": bool(levels), "tail": tails, "sample": samples > 0}
    return ["standard_error", *(result for result, wanted in asked.items() if wanted), "fill_flag"]


def normalise(
    obj: Raster,
    results: Sequence[str] = ("standard_error", "fill_flag"),
    classes: int = 0,
    nodata: float | None = None,
) -> tuple[xr.Dataset, list[Hashable], Grid]:
    """A Dataset, the variables to fill in it, and their grid; no other variable may be called as a result of theirs.

    With `classes`, the variables are those of so many classes, see :func:`geonp.raster.classes.class_variables`.
    """
    if not isinstance(obj, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"expected an xarray DataArray or Dataset, got {type(obj).__name__}; "
            "wrap an array: xr.DataArray(array, dims=('y', 'x'))"
        )
    if isinstance(obj, xr.DataArray):
        name = "value" if obj.name is None else obj.name
        # observed() explains what is wrong with a variable of another kind
        names = [name]
        grid = Grid.from_xarray(obj)
        _check_names(obj.coords, obj.dims, name, results)
        alone = obj.to_dataset(name=name)
        return alone, class_variables(alone, classes) if classes else names, grid
    names = class_variables(obj, classes) if classes else fill_variables(obj, nodata)
    if not classes and (whole := [name for name in fill_variables(obj, math.nan) if name not in names]):
        warnings.warn(
            f"{', '.join(map(str, whole))}: integers without a declared nodata value pass through as they are. If "
            "cells of theirs are missing, give the value with nodata= (--nodata).",
            stacklevel=4,
        )
    for name in names:
        ancillary = str(obj[name].attrs.get("ancillary_variables", "")).split()
        for output in (f"{name}_{result}" for result in results):
            if output in obj.data_vars and output not in ancillary:
                raise InputError(
                    f"the Dataset has a variable {output!r} already, which the result needs for {name!r}; "
                    f"rename it, or name it in the attribute ancillary_variables of {name!r} to have it replaced"
                )
        _check_names(obj.coords, obj[name].dims, name, results)
    return obj, names, Grid.from_xarray(obj)


def _check_names(coords: Any, dims: Sequence[Hashable], name: Hashable, results: Sequence[str]) -> None:
    """See that results can be called as they are."""
    taken = [output for result in results if (output := f"{name}_{result}") in coords]
    taken += [dim for dim in ("quantile", "sample") if dim in dims and dim in results]
    if taken:
        raise InputError(
            f"the raster has a coordinate or dimension {', '.join(map(repr, taken))} already, which the result needs "
            f"for {name!r}: rename it"
        )


def _check_scales(ds: xr.Dataset, names: Sequence[Hashable]) -> None:
    """See that quantiles of numbers as stored are those of what they stand for."""
    for name in names:
        if "scale_factor" in ds[name].attrs and not ds[name].attrs["scale_factor"] > 0:
            raise InputError(
                f"the variable {name!r} is stored with a negative scale_factor, which turns quantiles around: decode "
                "it first, with xr.decode_cf or rioxarray's mask_and_scale=True"
            )


def spatial_last(array: xr.DataArray, grid: Grid) -> xr.DataArray:
    """`array` with its rows and columns as the last two dimensions."""
    return array.transpose(..., grid.y_dim, grid.x_dim)


def domain_of(mask: xr.DataArray | npt.NDArray[np.bool_], grid: Grid) -> Any:
    """The valid domain as a boolean ``(rows, columns)`` array, NumPy or dask."""
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
