"""interpolate(): from measurements at scattered places to a grid or to other places, with a standard error for each."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from dask.base import compute
from dask.delayed import delayed
from dask.system import CPU_COUNT

from geonp.errors import InputError, PredictionError
from geonp.fill.options import FillOptions
from geonp.fill.request import load_job
from geonp.inference import student
from geonp.inference.context import standardise
from geonp.inference.kernel import Job, record
from geonp.inference.parallel import memory_bytes, on_cores
from geonp.inference.predictor import Points, bucket, together
from geonp.raster.grid import Grid
from geonp.raster.metadata import FillFlag, annotate
from geonp.scattered.squares import Observations, Square, blend_weights, grouped, near_first, project, squares_of
from geonp.scattered.tables import Table, read_table, transformed

if TYPE_CHECKING:
    from geonp.inference.checkpoint import Card

__all__ = ["interpolate"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
Target = xr.DataArray | xr.Dataset | pd.DataFrame


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
    """Predict what would be measured at the cells of a grid, or at other places, from scattered measurements.

    Nothing is fitted and nothing is averaged to cells: places are used as exactly as they are given. On longitudes and
    latitudes distances are those on the sphere, across the date line and at the poles too.

    Parameters
    ----------
    points : DataFrame or Dataset
        One row for each measurement, with columns of coordinates and of values; rows without a finite value or place
        are left out. A Dataset has variables and coordinates along one dimension.
    at : DataArray, Dataset or DataFrame
        Where to predict: the grid of a raster (its values do not matter; chunked by Dask it makes a lazy result), see
        :func:`geonp.scattered.tables.lattice`; or a table of places with the same names of coordinates.
    values : str or list of str, optional
        Columns to interpolate, each on its own; by default the only one of numbers that is no coordinate.
    x, y : str, optional
        Columns of the coordinates; by default x, lon, longitude or easting, and so on, in any case.
    crs : optional
        Of the places, anything that pyproj takes. By default that of `at`, or longitudes and latitudes (EPSG:4326) if
        the columns are called so.
    model, device, batch_size, seed, quantiles, tails
        As for :func:`geonp.fill.infill.infill`.
    max_distance : float, optional
        Leave places empty that are farther than this from every measurement, in the unit of the coordinates.

    Returns
    -------
    Dataset
        As :func:`geonp.fill.infill.infill` gives, for each column: on the grid, or along the dimension ``point``.
        Values and standard errors are those of a new measurement, its noise included, also at the places of
        measurements.

    Raises
    ------
    InputError
        For tables, grids or options that cannot be used, or fewer than four measurements.
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
    table = transformed(table, crs, target.crs, target.geographic)
    job, card = load_job(target.shape, options)
    if card.classes or card.neighbourhood.axes:
        raise InputError(
            f"the model {card.name} reads the cells of rasters alone, of classes or of the grid of its training; for "
            "scattered measurements choose another, for example tnpkr-sa"
        )
    least = job.predictor.neighbourhood.min_context
    parts = {}
    target.check_memory(len(table.values))
    table.warn_of_marks()
    for name in table.values:
        observations = table.observations(name, target.geographic, job.seed)
        if len(observations.values) < least:
            raise InputError(
                f"column {name!r} has {len(observations.values)} measurements with a finite value and place, expected "
                f"at least {least}: no honest standard error comes from less"
            )
        parts[name] = target.predict(observations, job)
    out = [_annotated(target, table, name, part, card, options) for name, part in parts.items()]
    return xr.merge(out, combine_attrs="override", compat="identical", join="exact")


MOST_TARGETS = 3072
"""Places that one pass predicts, at most: it bounds the memory of a square with many of them."""

CELL_BYTES = 128
"""Memory of one predicted place, with its sums and results."""


@dataclass(frozen=True)
class _Target:
    """Where to predict: `template` is an array of the right dimensions and coordinates, `x` and `y` those of it."""

    template: xr.DataArray
    x: FloatArray
    y: FloatArray
    on_grid: bool
    geographic: bool
    crs: str | None

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.y), len(self.x)) if self.on_grid else (len(self.y), 1)

    def check_memory(self, n_values: int) -> None:
        """See that what is not lazy fits into the memory of this machine."""
        needed = CELL_BYTES * self.template.size * n_values
        if self.template.chunks is None and needed > (there_is := memory_bytes()):
            raise InputError(
                f"{self.template.size:.3g} places take {needed / 2**30:,.0f} GiB of {there_is / 2**30:,.0f} that there "
                "are: choose a larger resolution (--resolution), or a grid in chunks, at.chunk(1024), to be computed "
                "and written lazily"
            )

    def predict(self, observations: Observations, job: Job) -> Any:
        """An array with the fields of :class:`~geonp.inference.kernel.Filled` like `template`, lazy as that is."""
        dtype = record(np.result_type(observations.values.dtype, np.float32))
        if self.template.chunks is None:
            places = _crossed(self.y, self.x) if self.on_grid else np.stack([self.x, self.y], 1)
            found = _flagged(_predict_in_parallel(observations, places, job), observations, places, job, dtype)
            return found.reshape(self.template.shape)
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
                "finite, expected one or more, all finite; drop the others, e.g. at.dropna()"
            )
        template = xr.DataArray(
            np.zeros(len(places.xy)),
            {table.x: ("point", places.xy[:, 0]), table.y: ("point", places.xy[:, 1])},
            ("point",),
        )
        lon, lat = places.xy.T
        return _Target(template, lon, lat, on_grid=False, geographic=table.named_degrees, crs=None)
    if not isinstance(at, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"at must be a raster (its grid is used) or a table of places, got {type(at).__name__}; "
            "geonp.scattered.tables.lattice(bounds, resolution) makes a grid"
        )
    grid = Grid.from_xarray(at)
    missing = [dim for dim in (grid.y_dim, grid.x_dim) if dim not in at.coords or at.coords[dim].ndim != 1]
    if missing:
        raise InputError(
            f"the grid in at has no one-dimensional coordinate {missing[0]!r}, expected one along each axis"
        )
    y, x = (at.coords[dim].values.astype(np.float64) for dim in (grid.y_dim, grid.x_dim))
    chunks = dict(zip(at.chunksizes, at.chunksizes.values(), strict=True))
    shape = (len(y), len(x))
    lazy = grid.y_dim in chunks and grid.x_dim in chunks
    data: Any = (
        da.zeros(shape, chunks=(chunks[grid.y_dim], chunks[grid.x_dim])) if lazy else np.broadcast_to(0.0, shape)
    )
    kept = {name: c for name, c in at.coords.items() if set(c.dims) <= {grid.y_dim, grid.x_dim}}
    template = xr.DataArray(data, kept, (grid.y_dim, grid.x_dim))
    return _Target(template, x, y, on_grid=True, geographic=grid.geographic, crs=grid.crs)


def _crossed(y: FloatArray, x: FloatArray) -> FloatArray:
    """Every place of a grid ``(len(y) * len(x), 2)``, as x and y."""
    return np.stack([np.tile(x, len(y)), np.repeat(y, len(x))], 1)


def _block(y: FloatArray, x: FloatArray, observations: Observations, job: Job) -> npt.NDArray[np.void]:
    """One chunk of a lazy grid."""
    places = _crossed(y[:, 0], x[0])
    dtype = record(np.result_type(observations.values.dtype, np.float32))
    total = _predict(observations, places, squares_of(observations, _bounds(places)), job)
    return _flagged(total, observations, places, job, dtype).reshape(len(y), x.shape[1])


def _bounds(places: FloatArray) -> tuple[float, float, float, float]:
    (west, south), (east, north) = places.min(0), places.max(0)
    return float(west), float(south), float(east), float(north)


def _predict_in_parallel(observations: Observations, places: FloatArray, job: Job) -> FloatArray:
    """Sums as of :func:`_predict`, the squares shared out among Dask's threads or workers, which share the cores."""
    squares = sorted(squares_of(observations, _bounds(places)), key=lambda square: (square.y, square.x))
    # bands of squares, so that each part has few places
    edges = np.linspace(0, len(squares), min(len(squares), 8 * CPU_COUNT) + 1).astype(int)
    parts, reached = [], grouped(places, squares, observations.geographic)
    for first, last in itertools.pairwise(edges):
        near = np.zeros(len(places), bool)
        near[np.concatenate(reached[first:last])] = True
        parts.append((squares[first:last], np.flatnonzero(near)))
    held = delayed(observations, pure=False)
    tasks = [delayed(_predict)(held, places[index], part, job) for part, index in parts]
    total = np.zeros((4, len(places)))
    for (_, index), part in zip(parts, compute(*tasks), strict=True):
        total[:, index] += part
    return total


@dataclass(frozen=True)
class _Tile:
    """Context and at most as many targets as fit into one pass: offsets in units, standardised values, weights."""

    xc: FloatArray
    yc: npt.NDArray[np.float32]
    xt: FloatArray
    loc: float
    scale: float
    index: IntArray
    weights: FloatArray
    square: Square


def _predict(observations: Observations, places: FloatArray, squares: list[Square], job: Job) -> FloatArray:
    """Weighted sums of mean, standard error and tail of each place, and the sums of weights, ``(4, n)``."""
    total, under_way = np.zeros((4, len(places))), deque[list[_Tile]]()
    reached = list(zip(squares, grouped(places, squares, observations.geographic), strict=True))

    def points() -> Iterator[Points]:
        for tiles in _batches(observations, places, reached, job):
            under_way.append(tiles)
            yield _points(tiles, job)

    expected = _expected([index.size for _, index in reached], job)
    for predicted in on_cores(job.predictor.rooted(), points(), job.predictor.device, expected):
        _add(total, under_way.popleft(), predicted)
    return total


def _expected(sizes: list[int], job: Job) -> int:
    """About how many batches squares with so many places each will be."""
    parts = [(-(-size // MOST_TARGETS), bucket(min(size, MOST_TARGETS))) for size in sizes if size]
    return math.ceil(sum(n / together(job.predictor.batch_size, n_t) for n, n_t in parts))


def _batches(
    observations: Observations, places: FloatArray, reached: list[tuple[Square, IntArray]], job: Job
) -> Iterator[list[_Tile]]:
    """Tiles of one bucket, as many as are predicted together."""
    distance = observations.distance(places)
    tiles: dict[int, list[_Tile]] = {}
    for square, index in reached:
        weights = blend_weights(places[index], distance[index], square, observations.geographic)
        index, weights = index[weights > 0], weights[weights > 0]
        for tile in _tiles(observations, places, square, index, weights, job) if index.size else ():
            n_t = bucket(tile.index.size)
            waiting = tiles.setdefault(n_t, [])
            waiting.append(tile)
            if len(waiting) == together(job.predictor.batch_size, n_t):
                yield tiles.pop(n_t)
    yield from tiles.values()


def _tiles(
    observations: Observations, places: FloatArray, square: Square, index: IntArray, weights: FloatArray, job: Job
) -> list[_Tile]:
    neighbourhood = job.predictor.neighbourhood
    chosen, xc = near_first(observations, square, neighbourhood.n_context, neighbourhood.thinning)
    standard = standardise(observations.values[chosen])
    parts = np.array_split(np.arange(index.size), -(-index.size // MOST_TARGETS))
    return [
        _Tile(
            xc,
            standard.z,
            project(places[index[part]], square.middle, observations.geographic) / square.unit,
            standard.loc,
            standard.scale,
            index[part],
            weights[part],
            square,
        )
        for part in parts
    ]


def _points(tiles: list[_Tile], job: Job) -> Points:
    """Tiles of one bucket, padded."""
    size, n_t = len(tiles), bucket(tiles[0].index.size)
    n_c = job.predictor.neighbourhood.n_context
    xc, xt = np.zeros((size, n_c, 2), np.float32), np.zeros((size, n_t, 2), np.float32)
    yc, mask = np.zeros((size, n_c, 1), np.float32), np.zeros((size, n_c), bool)
    loc, scale = np.zeros(size), np.ones(size)
    for k, tile in enumerate(tiles):
        n = len(tile.xc)
        xc[k, :n], yc[k, :n, 0], mask[k, :n] = tile.xc, tile.yc, True
        xt[k, : tile.index.size] = tile.xt
        loc[k], scale[k] = tile.loc, tile.scale
    return Points(xc, yc, mask, xt, loc, scale)


def _add(total: FloatArray, tiles: list[_Tile], predicted: npt.NDArray[np.floating]) -> None:
    """Add up what was predicted for tiles."""
    for k, tile in enumerate(tiles):
        found = predicted[:, k, : tile.index.size]
        if not np.isfinite(found).all():
            raise PredictionError(
                f"the model returned values that are not finite around x, y = {tile.square.middle}; "
                "please report it with the measurements there"
            )
        total[:3, tile.index] += tile.weights * found
        total[3, tile.index] += tile.weights


def _flagged(
    total: FloatArray, observations: Observations, places: FloatArray, job: Job, dtype: np.dtype[Any]
) -> npt.NDArray[np.void]:
    """The blended prediction as records, without what lies beyond `max_distance`."""
    out = np.zeros(len(places), dtype)
    mean = total[:3] / total[3]
    near = True if job.max_distance is None else observations.distance(places) <= job.max_distance
    for name, values in zip(("value", "standard_error", "tail"), mean, strict=True):
        out[name] = np.where(near, values, np.nan)
    out["flag"] = np.where(near, FillFlag.FILLED, FillFlag.BEYOND_LIMIT)
    return out


def _annotated(target: _Target, table: Table, name: str, found: Any, card: Card, options: FillOptions) -> xr.Dataset:
    source = target.template.rename(name).astype(found.dtype["value"]).assign_attrs(table.attrs.get(name, {}))

    def shaped(data: Any) -> xr.DataArray:
        return source.copy(data=data)

    extra: dict[str, xr.DataArray] = {"tail": shaped(found["tail"])} if options.tails else {}
    if options.quantiles:
        levels = [shaped(_quantile(found, q)) for q in options.quantiles]
        extra["quantile"] = xr.concat(levels, xr.Variable("quantile", np.array(options.quantiles)), coords="minimal")
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return annotate(
        shaped(found["value"]),
        shaped(found["standard_error"]),
        shaped(found["flag"]),
        source=source,
        extra=extra,
        model_name=card.name,
        model_version=card.version,
        weights_hash=card.sha256,
        history_line=f"{stamp} geonp interpolate: {name} at {len(table.xy)} places, by {card.name} {card.version}",
    )


def _quantile(found: Any, level: float) -> Any:
    levels = student.quantile(level, found["value"], found["standard_error"], found["tail"])
    return levels.astype(found.dtype["value"])
