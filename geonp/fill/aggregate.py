"""Statistics of regions of a filled raster, with standard errors that account for the spatial correlation of errors."""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
from dask.base import compute
from dask.delayed import Delayed, delayed
from pyproj import CRS

from geonp.errors import InputError, ModelError, warn
from geonp.fill.infill import infill
from geonp.fill.options import Bounds
from geonp.fill.outputs import unbanded
from geonp.fill.region_cells import regions_of, warn_of_regions
from geonp.fill.region_sums import Sums
from geonp.fill.variables import Raster
from geonp.inference.checkpoint import load_card
from geonp.raster.arrays import AnyIntArray, BoolArray, FloatArray
from geonp.raster.covariates import CovariateLike, named
from geonp.raster.crs import cf_attrs, geotransform
from geonp.raster.grid import Grid
from geonp.raster.metadata import FillFlag, as_dataset, listed_names
from geonp.raster.nodata import is_packed
from geonp.raster.parts import PARTS
from geonp.raster.regions import Regions, cell_areas

STATISTICS = ("mean", "sum", "integral", "fraction")
"""Statistics of the values of a region."""

COLUMNS = ("variable", "region", "value", "standard_error", "cells", "filled", "empty")
"""Columns of the result beside those of the dimensions of slices."""


@dataclass(frozen=True)
class AggregateSettings:
    """Numbers of joint samples."""

    samples: int = 200
    """Number of samples for means over cells: chance then changes a standard error by 5 %."""
    fewest: int = 30
    """With fewer samples in a file, standard errors are rough."""


AGGREGATE = AggregateSettings()


def aggregate(
    obj: Raster,
    regions: Any,
    statistic: Literal["mean", "sum", "integral", "fraction"] = "mean",
    *,
    threshold: float | None = None,
    names: str | None = None,
    layer: str | None = None,
    all_touched: bool = False,
    samples: int = 200,
    model: str | os.PathLike[str] | None = None,
    across: Hashable | Sequence[Hashable] | None = None,
    empty_slices: bool = False,
    mask: xr.DataArray | BoolArray | None = None,
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    nodata: float | None = None,
    bounds: Bounds | None = None,
    covariates: CovariateLike | Sequence[CovariateLike] | None = None,
    covariate_resampling: str | None = None,
    errors: CovariateLike | None = None,
) -> pd.DataFrame:
    """Compute means, sums or fractions of regions, each with its standard error.

    The errors of neighbouring cells are correlated, so the standard error of a mean is larger than independent errors
    would give. It is the standard deviation of the statistic in joint samples of the raster (see `samples` of
    :class:`geonp.fill.options.FillOptions`).

    Parameters
    ----------
    obj : DataArray or Dataset
        A result of :func:`geonp.infill`, or a raster with gaps, which is filled first. If the result has samples, these
        are used; if not, its observed cells are filled again to draw them.
    regions : GeoDataFrame, polygons, DataArray, path, int or tuple of int
        Polygons, as a GeoDataFrame, a mapping from names to shapely geometries, a sequence of these, or a file
        (GeoPackage, GeoJSON, shapefile); labels on the grid of the raster, an array or a file, where 0, NaN and nodata
        are no region; or the rows and columns of blocks of cells. Polygons may overlap, and be in another CRS.
    statistic : {"mean", "sum", "integral", "fraction"}
        Statistic of the values of the cells in a region: their mean, weighted by the areas of cells where these
        differ; their sum; their sum times the areas of cells, in square metres on longitudes and latitudes, else in
        square units of the CRS; or the fraction of the area whose values exceed `threshold`.
    threshold : float, optional
        Value to exceed, in the units of the values, for ``"fraction"``.
    names : str, optional
        Column with the names of the regions in a file or a GeoDataFrame. By default ``name`` or the first column of
        text whose entries all differ in a file, and the index in a GeoDataFrame.
    layer : str, optional
        Layer of a file of polygons.
    all_touched : bool
        Use all cells that a polygon touches, not only those whose centre is inside.
    samples : int
        Number of samples to draw if the raster has none. With 200, a standard error has a random error of 5 %.
    model : str or path, optional
        Model to fill and draw with. By default the one that filled the raster, or ``tnpkr-sa``.
    across : hashable or sequence of hashable, optional
        As for :func:`geonp.infill`. By default the dimensions that a filled raster was filled across.
    empty_slices : bool
        As for :func:`geonp.infill`. Always True for a raster that was filled so.
    mask, max_distance, device, batch_size, seed, nodata, bounds, covariates, covariate_resampling, errors
        As for :func:`geonp.infill`. For a filled raster, give those that it was filled with.

    Returns
    -------
    DataFrame
        A row for each variable, slice and region: ``value``, ``standard_error``, the numbers of ``cells`` with a value,
        of ``filled`` cells among them, and of ``empty`` cells, which are left out. Observed cells count as known
        without error; the value of a filled cell is that of a new measurement.

    Raises
    ------
    InputError
        For regions that cannot be placed on the raster, or a filled raster whose errors cannot be drawn again.

    Examples
    --------
    >>> rain = xr.DataArray(np.add.outer(np.arange(8.0), np.arange(12.0)), dims=("y", "x"), name="rain")
    >>> geonp.aggregate(rain.where(rain != 9), (8, 12))[["region", "value", "filled"]].round(1)
      region  value  filled
    0    0,0    9.0       8
    """
    _check(statistic, threshold, samples)
    every = {
        "model": model,
        "across": across,
        "empty_slices": empty_slices or None,
        "mask": mask,
        "max_distance": max_distance,
        "device": device,
        "batch_size": batch_size,
        "seed": seed,
        "nodata": nodata,
        "bounds": bounds,
        "covariates": covariates,
        "covariate_resampling": covariate_resampling,
        "errors": errors,
    }
    options = {name: value for name, value in every.items() if value is not None}
    filled, labels = _filled(obj, samples, options)
    grid = Grid.from_xarray(filled)
    if taken := [dim for label in labels for dim in filled[label].dims if dim in COLUMNS]:
        raise InputError(
            f"the dimension {taken[0]!r} has the name of a column of the result: got {taken[0]!r}, expected another "
            f"name. Rename it: obj.rename({{{taken[0]!r}: 'other'}})."
        )
    found = regions_of(regions, filled, grid, names, layer, all_touched=all_touched)
    found.require_cells(grid)
    warn_of_regions(found)
    _warn_of_packed(filled, labels)
    weights = _weights(filled, grid, found, statistic)
    tables = [_table(filled, label, grid, found, weights, statistic, threshold) for label in labels]
    out = pd.concat(tables, ignore_index=True)
    out.attrs = {"statistic": statistic, **({} if threshold is None else {"threshold": threshold})}
    return out


def _check(statistic: str, threshold: float | None, samples: int) -> None:
    if statistic not in STATISTICS:
        raise InputError(f"statistic must be one of {', '.join(STATISTICS)}, got {statistic!r}")
    if (statistic == "fraction") != (threshold is not None):
        raise InputError(
            f"statistic='fraction' and threshold need each other: got {statistic!r} with threshold={threshold!r}"
        )
    if threshold is not None and np.isnan(threshold):
        raise InputError("threshold (--threshold) must be a number, got NaN, which no value exceeds")
    if not isinstance(samples, (int, np.integer)) or isinstance(samples, bool) or samples < 2:
        raise InputError(f"samples must be at least 2 for a standard error, got {samples!r}")


def _weights(filled: xr.Dataset, grid: Grid, found: Regions, statistic: str) -> FloatArray:
    """The weight of each pair of a region and a cell: the area of the cell, where areas differ or are asked for."""
    areas = None
    if statistic == "integral" or (statistic != "sum" and (grid.geographic or not grid.regular)):
        areas = cell_areas(filled, grid, found.row, found.col)
    if areas is None and statistic == "integral":
        raise InputError(
            "statistic='integral' needs the areas of cells: got a raster whose cells have no known place. Give it "
            "coordinates, or take statistic='sum' (--statistic sum), and multiply it by the area of a cell."
        )
    if statistic == "integral" and 1 in grid.shape and geotransform(filled) is None:
        raise InputError(
            f"statistic='integral' needs the areas of cells: got {grid.shape[0]} x {grid.shape[1]} cells, whose "
            "coordinates do not tell how large they are. Take statistic='sum' (--statistic sum), and multiply it by "
            "the area of a cell, or set the geotransform, with rio.write_transform(...)."
        )
    return np.ones(found.row.size) if areas is None else areas


def _warn_of_packed(filled: xr.Dataset, labels: Sequence[str]) -> None:
    if packed := [label for label in labels if is_packed(filled[label].attrs)]:
        warn(
            f"{', '.join(packed)}: packed (scale_factor, add_offset), so that statistics and threshold are of stored "
            "values. To have them in the units, decode the raster before, with xr.decode_cf."
        )


def _filled(obj: Raster, samples: int, options: dict[str, Any]) -> tuple[xr.Dataset, list[str]]:
    """A filled Dataset with samples, lazy, and the names of its variables."""
    ds = unbanded(as_dataset(obj))
    before = [str(name) for name in ds.data_vars if f"{name}_fill_flag" in ds]
    if not before:
        if "geonp_model" in ds.attrs:
            raise InputError(
                "the raster was filled by geonp, but has no fill flags, so that filled cells would count as "
                "observed. Give the whole result, or the raster before it was filled."
            )
        out = infill(ds.chunk(_chunks(ds)), samples=samples, **options)
        return out, [str(name) for name in out.data_vars if f"{name}_sample" in out]
    lazy = ds.chunk(_chunks(ds))
    have = [name for name in before if f"{name}_sample" in ds and "sample" in ds[f"{name}_sample"].dims]
    if have and ds.sizes["sample"] < AGGREGATE.fewest:
        warn(
            f"the raster has {ds.sizes['sample']} samples, which determine a standard error to within "
            f"{100 / np.sqrt(2 * ds.sizes['sample'] - 2):.0f} %: fill with samples=200 (--samples 200), or drop the "
            "samples, so that others are drawn"
        )
    if before == have:
        _warn_of_unused(ds, options, samples)
    for name in before:
        if name not in have:
            lazy = lazy.assign({f"{name}_sample": _again(lazy, name, samples, options).variable})
    return lazy, before


def _warn_of_unused(ds: xr.Dataset, options: Mapping[str, Any], samples: int) -> None:
    """Warn of options that would change the samples of a raster, which it has already."""
    drawing = ["device", "batch_size", "seed"]  # how, and not of what
    if Path(options.get("model", "")).stem == ds.attrs.get("geonp_model"):
        drawing.append("model")
    unused = [name for name in options if name not in drawing]
    unused += ["samples"] if samples > ds.sizes["sample"] and samples != AGGREGATE.samples else []
    if unused:
        warn(
            f"{', '.join(unused)}: no effect, because the raster has {ds.sizes['sample']} samples, which the standard "
            "errors are computed from. Leave this out, or drop the samples to draw others: ds.drop_dims('sample')."
        )


def _chunks(ds: xr.Dataset) -> dict[Hashable, int]:
    grid = Grid.from_xarray(ds)
    return {dim: min(PARTS.sampled_px, ds.sizes[dim]) if dim in grid.dims else 1 for dim in ds.dims} | (
        {"sample": -1} if "sample" in ds.dims else {}
    )


def _model_of(ds: xr.Dataset) -> str:
    """Name of the shipped model that filled a raster."""
    name = str(ds.attrs.get("geonp_model", "tnpkr-sa"))
    try:
        load_card(name)
    except ModelError as error:
        raise InputError(
            f"the raster was filled by the model {name!r}, which is not shipped: give its checkpoint (model=, "
            "--model), or fill with samples=200 (--samples 200)"
        ) from error
    return name


def _again(ds: xr.Dataset, name: str, samples: int, options: dict[str, Any]) -> xr.DataArray:
    """Samples of a filled variable, from a second fill of its observed cells.

    Their values and standard errors are those of the first fill, which may have been of the same cells given more.
    """
    flags = ds[f"{name}_fill_flag"]
    beside = [one for key in ("covariates", "errors") for one in named(options.get(key)) if isinstance(one, str)]
    if f"{name}_standard_error" not in ds:
        raise InputError(
            f"{name!r} has no standard errors ({name}_standard_error), to which joint samples are scaled: classes have "
            "none. Give all of the result of a fill of numbers, or choose other variables (--variable)."
        )
    if not (flags == FillFlag.OBSERVED).any():
        raise InputError(
            f"{name!r} has no observed cells, from which its errors could be drawn again: give the whole stack, of "
            "which the other slices belong to the errors of an empty one, or fill on the grid of the raster with "
            "samples=200 (--samples 200), and aggregate that"
        )
    source = ds[[name, *(one for one in beside if one in ds)]]
    source = source.assign({name: ds[name].where(flags == FillFlag.OBSERVED).variable})
    if (crs := Grid.from_xarray(ds).crs) is not None:  # of which the variable no longer has the name
        source = source.assign_coords(spatial_ref=((), 0, cf_attrs(CRS(crs))))
    source.attrs = {}
    if "geonp_bounds" in ds.attrs and "bounds" not in options:
        raise InputError(
            f"the raster was filled within bounds, {ds.attrs['geonp_bounds']}: give the same ones "
            "(bounds=, --bounds), or fill it with samples=200 (--samples 200)"
        )
    if lost := [key for key in ("covariates", "errors") if f"geonp_{key}" in ds.attrs and key not in options]:
        given = ", ".join(str(ds.attrs[f"geonp_{key}"]) for key in lost)
        raise InputError(
            f"the raster was filled with {' and '.join(lost)}, on which the errors depend: give the same, {given} "
            "(covariates=, errors=; --covariate, --errors), or fill it with samples=200 (--samples 200)"
        )
    before = listed_names(ds.attrs.get("geonp_across", ""), ds.dims)
    if "across" not in options and before:
        if all(dim in source[name].dims for dim in before):
            options = {**options, "across": before}
        else:
            warn(
                f"{name} was filled across {' and '.join(before)}: its errors are assumed to have the spatial "
                "correlation of a fill without across"
            )
    if "across" in options and "geonp_empty_slices" in ds.attrs:
        options = {**options, "empty_slices": True}
    if name in listed_names(ds.attrs.get("geonp_counts", ""), ds.variables):
        options = {"as_": "numbers", **options}  # counts have no samples; their standard errors scale those of numbers
    again = infill(source, samples=samples, **{"model": options.get("model") or _model_of(ds), **options})
    drawn = again[f"{name}_sample"]
    if "bounds" in options:
        return drawn
    scores = (drawn - again[name]) / again[f"{name}_standard_error"].where(flags != FillFlag.OBSERVED)
    if before:
        # an upper bound: without the other slices their correlation is not known, and is taken to be perfect
        common = np.random.default_rng(options.get("seed", 0)).standard_normal(samples)
        unknown = (flags == FillFlag.FILLED_ACROSS) & scores.isnull()
        scores = scores.where(~unknown, xr.DataArray(common, dims="sample"))
    filled: xr.DataArray = ds[name] + ds[f"{name}_standard_error"] * scores
    return filled.where(flags != FillFlag.OBSERVED, ds[name])


def _table(
    filled: xr.Dataset,
    name: str,
    grid: Grid,
    regions: Regions,
    weights: FloatArray,
    statistic: str,
    threshold: float | None,
) -> pd.DataFrame:
    """The rows of one variable."""
    values = filled[name].transpose(..., *grid.dims)
    flags = filled[f"{name}_fill_flag"].transpose(*values.dims)
    drawn = filled[f"{name}_sample"].transpose("sample", *values.dims)
    chunks = values.chunks
    assert chunks is not None
    slices = list(np.ndindex(values.shape[:-2]))
    parts = list(_parts(regions, chunks[-2:]))
    tasks = []
    for index, (where, pairs, cells) in itertools.product(slices, parts):
        given = [_whole(array.data[(*index, *where)]) for array in (values, flags)]
        given.append(_whole(drawn.data[(slice(None), *index, *where)]))
        weighted = weights[pairs]
        tasks.append(delayed(Sums.of)(*given, regions.region[pairs], cells, weighted, threshold))
    sums, rows, n = compute(*tasks), [], len(regions.names)
    of_samples = statistic == "fraction" or filled.attrs.get("geonp_statistic") == "median"
    for number, index in enumerate(slices):
        some = sums[number * len(parts) : (number + 1) * len(parts)]
        total = Sums.joined(some, n, drawn.sizes["sample"])
        places = zip(values.dims[:-2], index, strict=True)
        lead = {str(dim): np.repeat(values[dim].values[[k]] if dim in values.coords else k, n) for dim, k in places}
        found = total.table(statistic, regions.sizes, of_samples=of_samples)
        rows.append(pd.DataFrame({"variable": name, **lead, "region": regions.names, **found}))
    out = pd.concat(rows, ignore_index=True)
    if lost := np.count_nonzero(out["standard_error"].isna() & (out["cells"] > 0)):
        warn(
            f"{name}: {lost} regions have no standard error, because samples are missing in some of their cells, such "
            "as those that were filled across slices within bounds"
        )
    return out


def _whole(part: da.Array) -> Delayed:
    """A part as one task. Its tasks keep their names, so that a fill that several parts need is computed once."""
    task: Delayed = part.rechunk(-1).to_delayed(optimize_graph=False).item()
    return task


def _parts(
    regions: Regions, chunks: Sequence[tuple[int, ...]]
) -> Iterator[tuple[tuple[slice, slice], AnyIntArray, AnyIntArray]]:
    """For each chunk with cells of regions its rows and columns, and the numbers of the pairs and cells in it."""
    rows, cols = (np.cumsum([0, *sizes]) for sizes in chunks)
    i, j = (np.searchsorted(edges, of, side="right") - 1 for edges, of in ((rows, regions.row), (cols, regions.col)))
    chunk = i * (cols.size - 1) + j
    order = np.argsort(chunk, kind="stable")
    ends = np.searchsorted(chunk[order], np.arange((rows.size - 1) * (cols.size - 1) + 1))
    for number, (start, end) in enumerate(itertools.pairwise(ends.tolist())):
        if start == end:
            continue
        pairs, (a, b) = order[start:end], divmod(number, cols.size - 1)
        cells = (regions.row[pairs] - rows[a]) * (cols[b + 1] - cols[b]) + regions.col[pairs] - cols[b]
        yield (slice(rows[a], rows[a + 1]), slice(cols[b], cols[b + 1])), pairs, cells
