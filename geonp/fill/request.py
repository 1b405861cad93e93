"""What is asked of a fill, checked once, before any work starts: variables, grid, domain, model and options."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import CheckpointError, InputError, ModelError, warn
from geonp.fill.options import FillOptions
from geonp.inference import checkpoint
from geonp.inference.kernel import Job
from geonp.inference.predictor import resolve
from geonp.raster.classes import class_reader, class_variables, codes
from geonp.raster.grid import Grid
from geonp.raster.metadata import fill_variables
from geonp.raster.nodata import declared_nodata, observed
from geonp.raster.windows import CHUNK_PX

__all__ = [
    "Raster",
    "Request",
    "chunks_in_memory",
    "domain_of",
    "load_job",
    "normalise",
    "prepare",
    "spatial_last",
    "values_of",
    "without_data",
]

Raster = xr.DataArray | xr.Dataset
"""What can be filled."""


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
    options : FillOptions
    """

    ds: xr.Dataset
    names: list[Hashable]
    results: list[str]
    grid: Grid
    domain: Any
    job: Job
    card: checkpoint.Card
    options: FillOptions


def prepare(obj: Raster, options: FillOptions) -> Request:
    """Check a raster against the options of a fill; reads coordinates and weights, no values.

    Raises
    ------
    InputError, ModelError, CheckpointError
        As :func:`geonp.infill`.
    """
    classes = _classes(options.model)
    if classes and (options.quantiles or options.tails or options.samples):
        raise InputError("quantiles, tails and samples are of numbers, and the model predicts classes: leave them out")
    results = ["probability", "fill_flag"] if classes else options.results
    nodata, across = options.nodata, options.across
    ds, names, grid = normalise(obj, results, classes, nodata)
    for name in names if classes else ():
        class_reader(ds[name], nodata)  # for its errors, while nothing has begun
    if options.quantiles:
        _check_scales(ds, names)
    if before := [name for name in names if "geonp_model" in ds.attrs and f"{name}_fill_flag" in ds]:
        warn(
            f"{', '.join(map(str, before))} was filled by geonp before: what was filled then counts as observed now, "
            "without error. Fill what was observed: ds[name].where(ds[f'{name}_fill_flag'] == 0).",
        )
    if across is not None:
        _check_across(across, ds, names, grid, classes, options.samples)
    domain = None if options.mask is None else domain_of(options.mask, grid)
    job, card = load_job(grid.shape, options, periodic=grid.periodic_x)
    neighbourhood = job.predictor.neighbourhood.on(grid)
    if across is not None and neighbourhood.standard:
        raise InputError(
            f"the model {card.name} reads values in units of its own, not what one slice has beyond others: got "
            f"across={across!r}, expected None, or another model, for example tnpkr-sa"
        )
    if across is None and not options.samples and not neighbourhood.standard:
        across = neighbourhood.across or None
    job = replace(job, across=across, predictor=replace(job.predictor, neighbourhood=neighbourhood))
    return Request(ds, names, results, grid, domain, job, card, options)


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


def load_job(shape: tuple[int, int], options: FillOptions, *, periodic: bool = False) -> tuple[Job, checkpoint.Card]:
    """Load the model, and collect what each window needs of the options."""
    predictor, card = resolve(os.fspath(options.model), options.device, options.batch_size)
    return Job(predictor, shape, periodic, options.max_distance, int(options.seed)), card


def _classes(model: str | os.PathLike[str]) -> int:
    """How many classes the model has; 0 for models of numbers, and for what is no model, which is refused later."""
    try:
        return checkpoint.load_card(os.fspath(model)).classes
    except (CheckpointError, ModelError):
        return 0


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
        warn(
            f"{', '.join(map(str, whole))}: integers without a declared nodata value pass through as they are. If "
            "cells of theirs are missing, give the value with nodata= (--nodata).",
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


def values_of(asked: Request, array: xr.DataArray) -> xr.DataArray:
    """What the model reads of a variable: numbers, or numbers of classes, NaN where missing, rows and columns last."""
    read = codes if asked.card.classes else observed
    return spatial_last(read(array, asked.options.nodata), asked.grid)


def without_data(array: xr.DataArray, cut: Mapping[Hashable, int] | None = None) -> xr.DataArray:
    """`array` as a dask array, chunked as it will be filled, none of which is ever computed."""
    chunks: Any = array.chunks or chunks_in_memory(array.shape)
    if cut is not None:
        chunks = tuple(cut[dim] for dim in array.dims)
    return array.copy(data=da.zeros(array.shape, chunks=chunks, dtype=array.dtype))


def chunks_in_memory(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks in which an array in memory is filled: slice by slice, and parts of large slices."""
    return (*(1,) * (len(shape) - 2), *(min(n, CHUNK_PX[1]) for n in shape[-2:]))


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
