"""interpolate(): from measurements at scattered places to a grid or to other places."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import psutil
import xarray as xr
from dask.base import compute
from dask.delayed import delayed
from dask.system import CPU_COUNT

from geonp.errors import InputError
from geonp.fill.options import FillOptions
from geonp.fill.outputs import outputs, result_arrays
from geonp.fill.request import load_job
from geonp.inference.kernel import FillJob, result_dtype
from geonp.inference.predictor import padded_size, tiles_per_batch
from geonp.inference.stitching import Tile, batches, blended, stitch
from geonp.raster.grid import Grid
from geonp.raster.metadata import FillFlag, dataset_attrs
from geonp.raster.variable import Variable
from geonp.scattered.squares import Observations, Square, blend_weights, choose_context, grouped, project, squares_of
from geonp.scattered.tables import Table, read_table, transformed

if TYPE_CHECKING:
    from geonp.inference.checkpoint import Card

__all__ = ["interpolate"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
Target = xr.DataArray | xr.Dataset | pd.DataFrame


@dataclass(frozen=True)
class InterpolationSettings:
    """Settings of the predictions at scattered places."""

    most_targets: int = 3072
    """Largest number of targets in a forward pass, which bounds its memory."""
    place_bytes: int = 128
    """Memory for a predicted place, with its sums and results."""
    tasks_per_core: int = 8
    """Number of dask tasks for each core, so that all cores finish at about the same time."""


INTERPOLATION = InterpolationSettings()
"""The settings in use."""


def interpolate(
    points: pd.DataFrame | xr.Dataset,
    at: Target,
    *,
    values: str | Sequence[str] | None = None,
    x: str | None = None,
    y: str | None = None,
    crs: Any = None,
    model: str | os.PathLike[str] = "tnpkr-sa",
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    quantiles: Sequence[float] = (),
    tails: bool = False,
) -> xr.Dataset:
    """Interpolate scattered measurements to the cells of a grid or to other places.

    Measurements are used at their exact places, without averaging to cells. Distances between longitudes and latitudes
    are those on the sphere, also across the date line and at the poles.

    Parameters
    ----------
    points : DataFrame or Dataset
        One row per measurement, with columns of coordinates and of values. Rows without a finite value or place are
        ignored. A Dataset has variables and coordinates along one dimension.
    at : DataArray, Dataset or DataFrame
        Where to predict: the grid of a raster, lazily if it is chunked by dask, or the places in a table with the same
        names of coordinates. :func:`geonp.lattice` creates a grid.
    values : str or list of str, optional
        Columns to interpolate, independently of each other. By default the only numeric one beside the coordinates.
    x, y : str, optional
        Columns of the coordinates. By default x, lon, longitude or easting, and likewise for y, in any case.
    crs : optional
        Coordinate reference system of the places, as accepted by pyproj. By default that of `at`, or EPSG:4326 if the
        columns are named longitude and latitude.
    model, device, batch_size, seed, quantiles, tails
        As for :func:`geonp.infill`.
    max_distance : float, optional
        Largest distance to a measurement at which a place is filled, in the unit of the coordinates.

    Returns
    -------
    Dataset
        The results of :func:`geonp.infill` for each column, on the grid or along the dimension ``point``. They
        describe a new measurement, noise included, also at the places of measurements.

    Raises
    ------
    InputError
        For tables, grids or options that cannot be used, and fewer than four measurements.
    ModelError, CheckpointError
        For a model that does not exist or cannot be loaded.
    PredictionError
        When computed, if the model returns values that are not finite.
    """
    options = FillOptions(
        model=model,
        max_distance=max_distance,
        device=device,
        batch_size=batch_size,
        seed=seed,
        quantiles=quantiles,
        tails=tails,
    )
    table = read_table(points, values, x, y)
    target = _target(at, table)
    table = transformed(table, crs, target.grid)
    table.warn_of_distance(target.x, target.y, target.geographic)
    table.warn_of_repeats(target.geographic)
    job, card = load_job(target.shape, options)
    if card.classes or card.neighbourhood.axes:
        raise InputError(
            f"the model {card.name} is for rasters only, of classes or on the grid of its training; for scattered "
            "measurements choose another model, for example tnpkr-sa"
        )
    least = job.predictor.neighbourhood.min_context
    parts = {}
    target.check_memory(len(table.values))
    table.warn_of_nodata()
    for name in table.values:
        observations = table.observations(name, target.geographic, job.seed)
        if len(observations.values) < least:
            raise InputError(
                f"column {name!r} has {len(observations.values)} measurements with a finite value and place, expected "
                f"at least {least}, as standard errors need"
            )
        parts[name] = target.predict(observations, job)
    out = [_dataset(target, table, name, part, card, options) for name, part in parts.items()]
    return xr.merge(out, combine_attrs="override", compat="identical", join="exact")


@dataclass(frozen=True)
class _Target:
    """Where to predict; `template` has the dimensions and coordinates of the result."""

    template: xr.DataArray
    x: FloatArray
    y: FloatArray
    on_grid: bool
    geographic: bool
    grid: Grid | None

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.y), len(self.x)) if self.on_grid else (len(self.y), 1)

    def check_memory(self, n_values: int) -> None:
        """Check that a result in memory fits into the memory of this machine."""
        needed = INTERPOLATION.place_bytes * self.template.size * n_values
        if self.template.chunks is None and needed > (available := psutil.virtual_memory().total):
            raise InputError(
                f"{self.template.size:.3g} places take {needed / 2**30:,.0f} GiB, but {available / 2**30:,.0f} GiB are "
                "available: choose a coarser resolution (--resolution), or a chunked grid, at.chunk(1024), to compute "
                "and write the result lazily"
            )

    def predict(self, observations: Observations, job: FillJob) -> Any:
        """A result in the shape of `template`, lazy if the template is."""
        dtype = result_dtype(np.result_type(observations.values.dtype, np.float32))
        if self.template.chunks is None:
            places = _crossed(self.y, self.x) if self.on_grid else np.stack([self.x, self.y], 1)
            total = _predict_in_parallel(observations, places, job)
            return _flagged(total, observations, places, job, dtype).reshape(self.template.shape)
        chunks = self.template.chunks
        rows, cols = (da.from_array(a, chunks=c) for a, c in zip((self.y, self.x), chunks, strict=True))
        held = delayed(observations, pure=True)
        return da.map_blocks(_block, rows[:, None], cols[None, :], held, job, dtype=dtype, chunks=chunks)


def _target(at: Target, table: Table) -> _Target:
    if isinstance(at, pd.DataFrame):
        places = read_table(at, (), table.x, table.y)
        if not len(places.xy) or not np.isfinite(places.xy).all():
            raise InputError(
                f"the table at has {len(places.xy)} places, {int((~np.isfinite(places.xy).all(1)).sum())} of them not "
                "finite, expected at least one, all finite; drop the others, e.g. at.dropna()"
            )
        template = xr.DataArray(
            np.zeros(len(places.xy)),
            {table.x: ("point", places.xy[:, 0]), table.y: ("point", places.xy[:, 1])},
            ("point",),
        )
        lon, lat = places.xy.T
        return _Target(template, lon, lat, on_grid=False, geographic=table.named_degrees, grid=None)
    if not isinstance(at, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"at must be a raster, whose grid is used, or a table of places, got {type(at).__name__}; "
            "geonp.lattice(bounds, resolution) creates a grid"
        )
    grid = Grid.from_xarray(at)
    missing = [dim for dim in (grid.y_dim, grid.x_dim) if dim not in at.coords or at.coords[dim].ndim != 1]
    if missing:
        return _curvilinear(at, grid, table, missing[0])
    y, x = (at.coords[dim].values.astype(np.float64) for dim in (grid.y_dim, grid.x_dim))
    if grid.geographic:
        y, x = y * grid.factors[0], x * grid.factors[1]
    chunks = dict(zip(at.chunksizes, at.chunksizes.values(), strict=True))
    shape = (len(y), len(x))
    lazy = grid.y_dim in chunks and grid.x_dim in chunks
    data: Any = (
        da.zeros(shape, chunks=(chunks[grid.y_dim], chunks[grid.x_dim])) if lazy else np.broadcast_to(0.0, shape)
    )
    kept = {name: c for name, c in at.coords.items() if set(c.dims) <= {grid.y_dim, grid.x_dim}}
    template = xr.DataArray(data, kept, (grid.y_dim, grid.x_dim))
    return _Target(template, x, y, on_grid=True, geographic=grid.geographic, grid=grid)


def _curvilinear(at: xr.DataArray | xr.Dataset, grid: Grid, table: Table, missing: Hashable) -> _Target:
    """The cells of a grid whose longitudes and latitudes are two-dimensional coordinates, as single places."""
    dims = (grid.y_dim, grid.x_dim)
    found = {name: c.transpose(*dims) for name, c in at.coords.items() if set(c.dims) == set(dims)}
    lon, lat = (
        next((c for c in found.values() if c.attrs.get("standard_name") == name or c.attrs.get("units") == units), None)
        for name, units in (("longitude", "degrees_east"), ("latitude", "degrees_north"))
    )
    if lon is None or lat is None or not table.named_degrees:
        raise InputError(
            f"the grid in at has no coordinate {missing!r}, expected one for rows and one for columns, or longitudes "
            "and latitudes on both for a table with columns lon and lat"
        )
    x, y = (c.values.astype(np.float64).ravel() for c in (lon, lat))
    if not np.isfinite(x + y).all():
        raise InputError(
            f"{lon.name!r} and {lat.name!r} of the grid have cells that are not finite; give a table of the others, "
            "at.coords.to_dataset().to_dataframe().dropna()"
        )
    template = xr.DataArray(np.zeros(grid.shape), found, dims)
    return _Target(template, x, y, on_grid=False, geographic=True, grid=None)


def _crossed(y: FloatArray, x: FloatArray) -> FloatArray:
    """All places of a grid, x and y, ``(len(y) * len(x), 2)``."""
    return np.stack([np.tile(x, len(y)), np.repeat(y, len(x))], 1)


def _block(y: FloatArray, x: FloatArray, observations: Observations, job: FillJob) -> npt.NDArray[np.void]:
    """The results of one chunk of a lazy grid."""
    places = _crossed(y[:, 0], x[0])
    dtype = result_dtype(np.result_type(observations.values.dtype, np.float32))
    total = _predict(observations, places, squares_of(observations, _bounds(places)), job)
    return _flagged(total, observations, places, job, dtype).reshape(len(y), x.shape[1])


def _bounds(places: FloatArray) -> tuple[float, float, float, float]:
    (west, south), (east, north) = places.min(0), places.max(0)
    return float(west), float(south), float(east), float(north)


def _predict_in_parallel(observations: Observations, places: FloatArray, job: FillJob) -> FloatArray:
    """The sums of :func:`_predict`, with a dask task for each band of neighbouring squares."""
    squares = sorted(squares_of(observations, _bounds(places)), key=lambda square: (square.y, square.x))
    edges = np.linspace(0, len(squares), min(len(squares), INTERPOLATION.tasks_per_core * CPU_COUNT) + 1).astype(int)
    parts, covered = [], grouped(places, squares, observations.geographic)
    for first, last in itertools.pairwise(edges):
        near = np.zeros(len(places), bool)
        near[np.concatenate(covered[first:last])] = True
        parts.append((squares[first:last], np.flatnonzero(near)))
    held = delayed(observations, pure=False)
    tasks = [delayed(_predict)(held, places[index], part, job) for part, index in parts]
    total = np.zeros((4, len(places)))
    for (_, index), part in zip(parts, compute(*tasks), strict=True):
        total[:, index] += part
    return total


def _predict(observations: Observations, places: FloatArray, squares: list[Square], job: FillJob) -> FloatArray:
    """Weighted sums of mean, standard error and tail at each place, and sums of weights, ``(4, n)``."""
    covered = list(zip(squares, grouped(places, squares, observations.geographic), strict=True))
    distance = observations.distance(places)
    tiles = (t for square, index in covered for t in _tiles(observations, places, distance, square, index, job))
    size = job.predictor.batch_size
    return stitch(
        batches(tiles, size), len(places), job.predictor, _expected(covered, size), lambda tile: _near(places, tile)
    )


def _near(places: FloatArray, tile: Tile) -> str:
    return f"around x, y = {tuple(places[tile.targets[0]].tolist())}"


def _expected(covered: list[tuple[Square, IntArray]], size: int) -> int:
    """Estimate of the number of batches."""
    counts = [index.size for _, index in covered if index.size]
    parts = [(-(-n // INTERPOLATION.most_targets), padded_size(min(n, INTERPOLATION.most_targets))) for n in counts]
    return math.ceil(sum(n / tiles_per_batch(size, n_t) for n, n_t in parts))


def _tiles(
    observations: Observations, places: FloatArray, distance: FloatArray, square: Square, index: IntArray, job: FillJob
) -> Iterator[Tile]:
    """The tiles of a square, which share one context; the targets of each fit into a forward pass."""
    weights = blend_weights(places[index], distance[index], square, observations.geographic)
    index, weights = index[weights > 0], weights[weights > 0]
    if not index.size:
        return
    neighbourhood = job.predictor.neighbourhood
    chosen, xc = choose_context(observations, square, neighbourhood.n_context, neighbourhood.thinning)
    for part in np.array_split(np.arange(index.size), -(-index.size // INTERPOLATION.most_targets)):
        xt = project(places[index[part]], square.middle, observations.geographic) / square.unit
        yield Tile(xc, observations.values[chosen], xt, index[part], weights[part])


def _flagged(
    total: FloatArray, observations: Observations, places: FloatArray, job: FillJob, dtype: np.dtype[Any]
) -> npt.NDArray[np.void]:
    """The blended predictions with the fields of a result, empty beyond `max_distance`."""
    out = np.zeros(len(places), dtype)
    near = True if job.max_distance is None else observations.distance(places) <= job.max_distance
    for name, values in zip(("value", "standard_error", "tail"), blended(total), strict=True):
        out[name] = np.where(near, values, np.nan)
    out["flag"] = np.where(near, FillFlag.FILLED, FillFlag.BEYOND_LIMIT)
    return out


def _dataset(target: _Target, table: Table, name: str, result: Any, card: Card, options: FillOptions) -> xr.Dataset:
    source = target.template.rename(name).astype(result.dtype["value"]).assign_attrs(table.attrs.get(name, {}))
    variable = Variable.of(source, source.dims)
    arrays = result_arrays(variable, outputs(variable, options), result, result["value"])
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = f"{stamp} geonp interpolate: {name} at {len(table.xy)} places, by {card.name} {card.version}"
    return xr.Dataset(arrays, source.coords, dataset_attrs({}, line, card.name, card.version, card.sha256))
