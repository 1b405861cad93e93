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
    frames_of,
    grouped,
    project,
    square_context,
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
    context_step: int = 16
    """A context of fewer observations than the model can read is padded to a multiple of this."""


INTERPOLATION = InterpolationSettings()


@dataclass(frozen=True, eq=False)
class Part:
    """Places that the model predicts at once.

    Attributes
    ----------
    frame : Square
        The square whose context is read, and whose centre and unit are those of the model.
    index : array of int
        Numbers of the places.
    weights : array
        Blending weights of the predictions there.
    """

    frame: Square
    index: IntArray
    weights: Float64Array


@dataclass(frozen=True, eq=False)
class Question:
    """Places ``(n, 2)`` to predict from observations, with the covariates of these at the places."""

    places: Float64Array
    observations: Observations
    covariates: Sequence[Layer]


def answered(questions: Sequence[Question], job: FillJob) -> list[StructArray]:
    """Results ``(n,)`` of several predictions, whose tiles share batches."""
    if not questions:
        return []
    ends = np.cumsum([len(one.places) for one in questions])
    largest = max((one.observations for one in questions), key=lambda observations: len(observations.xy))
    fitting, n_context = _fitting(job, largest), job.predictor.neighbourhood.n_context

    def tiles() -> Iterator[Tile]:
        for one, end in zip(questions, ends, strict=True):
            layers = [a.joined(b) for a, b in zip(one.observations.covariates, one.covariates, strict=True)]
            for part in parts_of(one.observations, one.places, n_context):
                tile, _ = _with_context(one.observations, one.places, part, layers, fitting)
                yield replace(tile, targets=tile.targets + end - len(one.places))

    every, size = np.concatenate([one.places for one in questions]), job.predictor.batch_size
    expected = math.ceil(sum(1 / tiles_per_batch(size, padded_size(len(one.places))) for one in questions))
    total = stitch(batches(tiles(), size), ends[-1], fitting.predictor, expected, lambda tile: _near(every, tile))
    dtype = result_dtype(np.result_type(largest.values.dtype, np.float32), job)
    parts = np.split(total, ends[:-1], axis=1)
    return [
        _flagged(part, one.observations, one.places, job, dtype) for part, one in zip(parts, questions, strict=True)
    ]


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
        return _with_samples(total, observations, places, covariates, job).reshape(target.template.shape)
    rows, cols = (da.from_array(a, chunks=c) for a, c in zip((target.y, target.x), chunks, strict=True))
    held = delayed(observations, pure=True)
    arrays = [array for layer in covariates for array in (layer.values, layer.errors) if array is not None]
    return da.map_blocks(_block, rows[:, None], cols[None, :], held, job, *arrays, dtype=dtype, chunks=chunks)


def _block(
    y: Float64Array, x: Float64Array, observations: Observations, job: FillJob, *arrays: Float64Array
) -> StructArray:
    """The results of one chunk of a lazy grid; `arrays` are values and errors of the covariates."""
    places, flat = crossed(y[:, 0], x[0]), (array.ravel() for array in arrays)
    n_context = job.predictor.neighbourhood.n_context
    covariates = [
        replace(layer, values=next(flat), errors=None if layer.errors is None else next(flat))
        for layer in observations.covariates
    ]
    total = _predict(observations, places, covariates, parts_of(observations, places, n_context), job)
    return _with_samples(total, observations, places, covariates, job).reshape(len(y), x.shape[1])


def _bounds(places: Float64Array) -> tuple[float, float, float, float]:
    (west, south), (east, north) = places.min(0), places.max(0)
    return float(west), float(south), float(east), float(north)


def _predict_in_parallel(
    observations: Observations, places: Float64Array, covariates: Sequence[Layer], job: FillJob
) -> Float64Array:
    """The sums of :func:`_predict`, with a dask task for each band of neighbouring parts."""
    parts = parts_of(observations, places, job.predictor.neighbourhood.n_context)
    held = delayed(observations, pure=False)
    edges = np.linspace(0, len(parts), min(len(parts), INTERPOLATION.tasks_per_core * CPU_COUNT) + 1).astype(int)
    tasks, near = [], []
    for first, last in itertools.pairwise(edges):
        band = parts[first:last]
        index = np.unique(np.concatenate([part.index for part in band]))
        inside = [replace(part, index=np.searchsorted(index, part.index)) for part in band]
        near.append(index)
        tasks.append(delayed(_predict)(held, places[index], [layer.at(index) for layer in covariates], inside, job))
    total = np.zeros((4, len(places)))
    for index, band_total in zip(near, compute(*tasks), strict=True):
        total[:, index] += band_total
    return total


def _predict(
    observations: Observations,
    places: Float64Array,
    covariates: Sequence[Layer],
    parts: Sequence[Part],
    job: FillJob,
) -> Float64Array:
    """Weighted sums of mean, standard error and tail at each place, and sums of weights, ``(4, n)``.

    `covariates` are those of the observations, at the places.
    """
    layers = [layer.joined(there) for layer, there in zip(observations.covariates, covariates, strict=True)]
    job = _fitting(job, observations)
    tiles = (_with_context(observations, places, part, layers, job)[0] for part in parts)
    size = job.predictor.batch_size
    expected = math.ceil(sum(1 / tiles_per_batch(size, padded_size(part.index.size)) for part in parts))
    return stitch(batches(tiles, size), len(places), job.predictor, expected, lambda tile: _near(places, tile))


def _fitting(job: FillJob, observations: Observations) -> FillJob:
    """The job with a context hardly longer than the observations: padding takes time, too."""
    neighbourhood, step = job.predictor.neighbourhood, INTERPOLATION.context_step
    n_context = min(neighbourhood.n_context, -(-len(observations.xy) // step) * step)
    return replace(job, predictor=replace(job.predictor, neighbourhood=replace(neighbourhood, n_context=n_context)))


def _with_samples(
    total: Float64Array,
    observations: Observations,
    places: Float64Array,
    covariates: Sequence[Layer],
    job: FillJob,
) -> StructArray:
    """The results ``(n,)`` of the sums of :func:`_predict`, with joint samples if the job has any."""
    dtype = result_dtype(np.result_type(observations.values.dtype, np.float32), job)
    result = _flagged(total, observations, places, job, dtype)
    if not job.samples:
        return result
    layers = [layer.joined(there) for layer, there in zip(observations.covariates, covariates, strict=True)]
    tiles = (
        (part.frame, *_with_context(observations, places, part, layers, job))
        for part in parts_of(observations, places, job.predictor.neighbourhood.n_context, shared=False)
    )
    draw_samples(result, tiles, places, observations, job)
    return result


def _near(places: Float64Array, tile: Tile) -> str:
    return f"around x, y = {tuple(places[tile.targets[0]].tolist())}"


def parts_of(observations: Observations, places: Float64Array, n_context: int, *, shared: bool = True) -> list[Part]:
    """The tiles that predict at `places` ``(n, 2)``; the targets of each fit into a forward pass.

    Unless `shared`, squares with the same context are read one by one.
    """
    squares = sorted(squares_of(observations, _bounds(places)), key=lambda square: (square.y, square.x))
    covered, distance = grouped(places, squares, observations.geographic), observations.distance(places)
    frames = frames_of(observations, squares, n_context) if shared else squares
    weights: dict[Square, Float64Array] = {}
    for square, frame, index in zip(squares, frames, covered, strict=True):
        if index.size:
            total = weights.setdefault(frame, np.zeros(len(places)))
            total[index] += blend_weights(places[index], distance[index], square, observations.geographic)
    parts = []
    for frame, total in weights.items():
        index = np.flatnonzero(total)
        for some in np.array_split(index, -(-index.size // INTERPOLATION.most_targets)) if index.size else ():
            parts.append(Part(frame, some, total[some]))
    return parts


def _with_context(
    observations: Observations, places: Float64Array, part: Part, covariates: Sequence[Layer], job: FillJob
) -> tuple[Tile, IntArray]:
    """A tile, and the numbers of its context. `covariates` are those at the observations, then at the places."""
    neighbourhood, square, index = job.predictor.neighbourhood, part.frame, part.index
    chosen, xc = square_context(observations, square, neighbourhood.n_context, neighbourhood.thinning)
    xt = project(places[index], square.middle, observations.geographic) / square.unit
    beside = columns(covariates, chosen, len(observations.xy) + index)
    errors = None if observations.errors is None else observations.errors[chosen]
    values = observations.values[chosen]
    tile = Tile(xc, values, xt, index, part.weights, covariates=beside, errors=errors, scattered=True)
    return without_piles(tile, job.warping, job.predictor), chosen


def _flagged(
    total: Float64Array, observations: Observations, places: Float64Array, job: FillJob, dtype: np.dtype[Any]
) -> StructArray:
    """The blended predictions with the fields of a result, empty beyond `max_distance`."""
    out = np.zeros(len(places), dtype)
    for name, values in zip(("value", "standard_error", "tail"), blended(total), strict=True):
        out[name] = values
    if job.samples:
        out["sample"] = np.nan
    out["flag"] = FillFlag.FILLED
    return limited(out, observations, places, job)


def limited(result: StructArray, observations: Observations, places: Float64Array, job: FillJob) -> StructArray:
    """Results ``(n,)``, empty beyond the `max_distance` of a job."""
    if job.max_distance is None:
        return result
    far = observations.distance(places) > job.max_distance
    for name in ("value", "standard_error", "tail"):
        result[name][far] = np.nan
    result["flag"][far] = FillFlag.BEYOND_LIMIT
    return result
