"""Predictions at places from measurements: squares, tiles, a pass of the model, and their blend."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from dask.system import CPU_COUNT

from geonp.inference.batches import padded_size, tiles_per_batch
from geonp.inference.censoring import without_piles
from geonp.inference.covariates import Layer, columns
from geonp.inference.kernel import FillJob, result_dtype
from geonp.inference.stitching import Tile, batches, blended, stitch
from geonp.raster.arrays import Float64Array, IntArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.scattered.joint import draw_samples
from geonp.scattered.squares import (
    Observations,
    Square,
    blend_weights,
    choose_context,
    grouped,
    project,
    squares_of,
)
from geonp.scattered.targets import Target, crossed


@dataclass(frozen=True)
class InterpolationSettings:
    """Settings of the predictions at scattered places."""

    most_targets: int = 3072
    """Largest number of targets in a forward pass, which bounds its memory."""
    tasks_per_core: int = 8
    """Number of dask tasks for each core, so that all cores finish at about the same time."""


INTERPOLATION = InterpolationSettings()


def predicted(target: Target, observations: Observations, covariates: Sequence[Layer], job: FillJob) -> Any:
    """Results at all places of a target, fields of :func:`~geonp.inference.kernel.result_dtype`, lazy on a lazy grid.

    Parameters
    ----------
    target : Target
    observations : Observations
    covariates : sequence of Layer
        Those of the observations, at the places: lazy and in the shape of a lazy grid, else ``(n,)``. They have errors
        where those have.
    job : FillJob
    """
    dtype = result_dtype(np.result_type(observations.values.dtype, np.float32), job)
    chunks = target.template.chunks
    if chunks is None:
        places = target.places
        total = _predict_in_parallel(observations, places, covariates, job)
        result = _flagged(total, observations, places, job, dtype)
        if job.samples:
            _draw(result, observations, places, covariates, squares_of(observations, _bounds(places)), job)
        return result.reshape(target.template.shape)
    rows, cols = (da.from_array(a, chunks=c) for a, c in zip((target.y, target.x), chunks, strict=True))
    held = delayed(observations, pure=True)
    arrays = [array for layer in covariates for array in (layer.values, layer.errors) if array is not None]
    return da.map_blocks(_block, rows[:, None], cols[None, :], held, job, *arrays, dtype=dtype, chunks=chunks)


def _block(
    y: Float64Array, x: Float64Array, observations: Observations, job: FillJob, *arrays: Float64Array
) -> StructArray:
    """The results of one chunk of a lazy grid; `arrays` are values and errors of the covariates."""
    places, flat = crossed(y[:, 0], x[0]), (array.ravel() for array in arrays)
    covariates = [
        replace(layer, values=next(flat), errors=None if layer.errors is None else next(flat))
        for layer in observations.covariates
    ]
    dtype = result_dtype(np.result_type(observations.values.dtype, np.float32), job)
    squares = squares_of(observations, _bounds(places))
    total = _predict(observations, places, covariates, squares, job)
    result = _flagged(total, observations, places, job, dtype)
    if job.samples:
        _draw(result, observations, places, covariates, squares, job)
    return result.reshape(len(y), x.shape[1])


def _bounds(places: Float64Array) -> tuple[float, float, float, float]:
    (west, south), (east, north) = places.min(0), places.max(0)
    return float(west), float(south), float(east), float(north)


def _predict_in_parallel(
    observations: Observations, places: Float64Array, covariates: Sequence[Layer], job: FillJob
) -> Float64Array:
    """The sums of :func:`_predict`, with a dask task for each band of neighbouring squares."""
    squares = sorted(squares_of(observations, _bounds(places)), key=lambda square: (square.y, square.x))
    edges = np.linspace(0, len(squares), min(len(squares), INTERPOLATION.tasks_per_core * CPU_COUNT) + 1).astype(int)
    parts, covered = [], grouped(places, squares, observations.geographic)
    for first, last in itertools.pairwise(edges):
        near = np.zeros(len(places), bool)
        near[np.concatenate(covered[first:last])] = True
        parts.append((squares[first:last], np.flatnonzero(near)))
    held = delayed(observations, pure=False)
    tasks = [
        delayed(_predict)(held, places[index], [layer.at(index) for layer in covariates], part, job)
        for part, index in parts
    ]
    total = np.zeros((4, len(places)))
    for (_, index), part in zip(parts, compute(*tasks), strict=True):
        total[:, index] += part
    return total


def _predict(
    observations: Observations,
    places: Float64Array,
    covariates: Sequence[Layer],
    squares: list[Square],
    job: FillJob,
) -> Float64Array:
    """Weighted sums of mean, standard error and tail at each place, and sums of weights, ``(4, n)``.

    `covariates` are those of the observations, at the places.
    """
    layers = [layer.joined(there) for layer, there in zip(observations.covariates, covariates, strict=True)]
    covered = list(zip(squares, grouped(places, squares, observations.geographic), strict=True))
    distance = observations.distance(places)
    tiles = (
        tile
        for square, index in covered
        for tile, _ in _with_context(observations, places, distance, square, index, layers, job)
    )
    size = job.predictor.batch_size
    return stitch(
        batches(tiles, size), len(places), job.predictor, _expected(covered, size), lambda tile: _near(places, tile)
    )


def _draw(
    result: StructArray,
    observations: Observations,
    places: Float64Array,
    covariates: Sequence[Layer],
    squares: list[Square],
    job: FillJob,
) -> None:
    """Joint samples at the places of a result, in place."""
    layers = [layer.joined(there) for layer, there in zip(observations.covariates, covariates, strict=True)]
    covered = zip(squares, grouped(places, squares, observations.geographic), strict=True)
    distance = observations.distance(places)
    tiles = (
        (square, tile, chosen)
        for square, index in covered
        for tile, chosen in _with_context(observations, places, distance, square, index, layers, job)
    )
    draw_samples(result, tiles, places, observations, job)


def _near(places: Float64Array, tile: Tile) -> str:
    return f"around x, y = {tuple(places[tile.targets[0]].tolist())}"


def _expected(covered: list[tuple[Square, IntArray]], size: int) -> int:
    """Estimate of the number of batches."""
    counts = [index.size for _, index in covered if index.size]
    parts = [(-(-n // INTERPOLATION.most_targets), padded_size(min(n, INTERPOLATION.most_targets))) for n in counts]
    return math.ceil(sum(n / tiles_per_batch(size, n_t) for n, n_t in parts))


def _with_context(
    observations: Observations,
    places: Float64Array,
    distance: Float64Array,
    square: Square,
    index: IntArray,
    covariates: Sequence[Layer],
    job: FillJob,
) -> Iterator[tuple[Tile, IntArray]]:
    """The tiles of a square with the numbers of their context; the targets of each fit into a forward pass.

    `covariates` are those at the observations, then at the places.
    """
    weights = blend_weights(places[index], distance[index], square, observations.geographic)
    index, weights = index[weights > 0], weights[weights > 0]
    if not index.size:
        return
    neighbourhood = job.predictor.neighbourhood
    chosen, xc = choose_context(observations, square, neighbourhood.n_context, neighbourhood.thinning)
    for part in np.array_split(np.arange(index.size), -(-index.size // INTERPOLATION.most_targets)):
        xt = project(places[index[part]], square.middle, observations.geographic) / square.unit
        beside = columns(covariates, chosen, len(observations.xy) + index[part])
        errors = None if observations.errors is None else observations.errors[chosen]
        tile = Tile(xc, observations.values[chosen], xt, index[part], weights[part], covariates=beside, errors=errors)
        yield without_piles(tile, job.warping, job.predictor), chosen


def _flagged(
    total: Float64Array, observations: Observations, places: Float64Array, job: FillJob, dtype: np.dtype[Any]
) -> StructArray:
    """The blended predictions with the fields of a result, empty beyond `max_distance`."""
    out = np.zeros(len(places), dtype)
    near = True if job.max_distance is None else observations.distance(places) <= job.max_distance
    for name, values in zip(("value", "standard_error", "tail"), blended(total), strict=True):
        out[name] = np.where(near, values, np.nan)
    if job.samples:
        out["sample"] = np.nan
    out["flag"] = np.where(near, FillFlag.FILLED, FillFlag.BEYOND_LIMIT)
    return out
