"""Joint samples of the filled cells of a window.

Where other slices are used, the errors are those of a slice alone and beside the others, and of predictions from the
series of cells, with their shares of the standard error. All are simulated from the same noise, as the errors of
overlapping tiles are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from geonp.inference.censoring import latent
from geonp.inference.covariates import Columns
from geonp.inference.error_field import FieldErrors
from geonp.inference.kernel import FillJob, Inputs, blend, unfilled, within
from geonp.inference.noise import Noise
from geonp.inference.simulation import JOINT, Patch, Simulator, Weighted, joint_errors, nearest, samples_of
from geonp.inference.stack import share_of_error, weight_beside
from geonp.inference.stitching import Tile
from geonp.inference.tiles import far_of, tiles_beside, tiles_of
from geonp.raster.arrays import BoolArray, Float32Array, Float64Array, FloatArray, IntArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.raster.parts import PARTS
from geonp.raster.windows import Window

PREDICTED = (FillFlag.FILLED, FillFlag.FILLED_ACROSS)
"""Flags of cells that have samples."""


def draw_samples(
    result: StructArray, inputs: Inputs, chunk: Window, job: FillJob, series: Sequence[FieldErrors] = ()
) -> None:
    """Draw the samples of the filled cells of a chunk into its result of :func:`geonp.inference.kernel.fill_window`.

    `series` are errors of predictions of these cells from their series.
    """
    if not np.isin(result["flag"], PREDICTED).any():
        return
    errors = errors_of(inputs, chunk, job, series)
    fill_samples(result, errors.reshape(len(errors), -1))


def fill_samples(result: StructArray, errors: FloatArray) -> None:
    """Set the samples of the filled cells of a result from its predictions and joint errors ``(n, cells)``."""
    index = np.flatnonzero(np.isin(result["flag"], PREDICTED))
    flat = result.reshape(-1)
    for part in np.array_split(index, -(-index.size // PARTS.joint_cells) or 1):
        of = (flat[name][part].astype(np.float64) for name in ("value", "standard_error", "tail"))
        flat["sample"][part] = within(samples_of(errors[:, part], *of).T, flat["sample"].dtype)


def errors_of(inputs: Inputs, chunk: Window, job: FillJob, series: Sequence[FieldErrors] = ()) -> Float32Array:
    """Standardised errors of the filled cells of a chunk, jointly drawn, ``(job.samples, *chunk.shape)``.

    `series` are errors of predictions from series, whose weights are their shares in the errors of these cells.
    Standard normal numbers, NaN where nothing is filled. They do not depend on the chunk, beyond rounding. The error of
    a cell in the units of the values is its standard error times this.
    """
    core = job.core(chunk)
    missing, context_mask, fillable, _ = unfilled(inputs, chunk, job)
    values, covariates = latent(inputs.values, inputs.covariates, job.warping)
    beyond = far_of(inputs.far, missing, context_mask, chunk, job, covariates)
    alone = all(layer.known_errors for layer in covariates)
    supported = job.supported(chunk, fillable) if alone else fillable
    tiles = tiles_of(values, context_mask, missing, fillable, chunk, job, covariates=covariates, far=beyond)
    place = np.full(values.shape, -1, np.intp)
    place[core] = np.where(fillable[core], np.arange(chunk.shape[0] * chunk.shape[1]).reshape(chunk.shape), -1)
    if inputs.others is not None:
        others = np.where(inputs.domain_mask, inputs.others, np.nan)
        supported = supported | (fillable & np.isfinite(others).any(0))
        beside = tiles_beside(values, context_mask, missing, fillable, chunk, job, others)
        tiles = _with_shares(tiles, beside, place >= 0, chunk, job)
    patches = [_patch(tile, place, supported, job.window(chunk), job) for tile in tiles]
    patches = sorted((p for p in patches if p.targets.size), key=lambda patch: patch.tile.targets.size)
    size, noise = chunk.shape[0] * chunk.shape[1], noise_of(job, JOINT.pilots + job.samples)
    if series:
        patches = _without(patches, series, place, size)
    simulator = Simulator(job.predictor, noise, float(job.shape[1]) if job.periodic else None)
    of_series = _of_series(series, place, job.window(chunk), noise, job.shape[1] if job.periodic else None)
    return joint_errors(patches, size, simulator, len(patches), of_series).reshape(-1, *chunk.shape)


def _without(patches: list[Patch], series: Sequence[FieldErrors], place: IntArray, size: int) -> list[Patch]:
    """Patches whose weights are what the predictions from series leave of the errors of each cell."""
    total, share = np.zeros(size), np.zeros(size)
    for patch in patches:
        total[patch.targets] += patch.weights
    for part in series:
        share[place.ravel()[part.targets]] += part.weights
    return [replace(p, weights=p.weights / total[p.targets] * (1 - share[p.targets])) for p in patches]


def _of_series(
    series: Sequence[FieldErrors], place: IntArray, window: Window, noise: Noise, period: int | None
) -> Iterator[Weighted]:
    """The simulated errors of predictions from series."""
    for part in series:
        for targets, weights, errors in part.simulated(window, noise, period):
            yield place.ravel()[targets], weights, errors


def _with_shares(alone: list[Tile], beside: list[Tile], wanted: BoolArray, chunk: Window, job: FillJob) -> list[Tile]:
    """Tiles of a slice alone and beside others, weighted by their shares of the standard error of the wanted cells."""
    known = np.zeros(wanted.shape, bool)
    for tile in beside:
        known.ravel()[tile.targets] = True
    wanted = wanted & known

    def errors(tiles: list[Tile]) -> Float64Array:
        compared = [_reading(tile, wanted.ravel()[tile.targets]) for tile in tiles]
        return np.asarray(blend([tile for tile in compared if tile.targets.size], chunk, job)[1])

    own, other = errors(alone), errors(beside)
    share = share_of_error(own, other, weight_beside(own, other))
    return [
        replace(tile, weights=tile.weights * part.ravel()[tile.targets])
        for tiles, part in ((alone, 1 - share), (beside, share))
        for tile in tiles
    ]


def noise_of(job: FillJob, n: int) -> Noise:
    """The noise of a job with `n` samples."""
    key = np.random.SeedSequence([job.seed % 2**64, *job.noise]).generate_state(2, np.uint64)
    return Noise((int(key[0]), int(key[1])), n)


def _patch(tile: Tile, place: IntArray, supported: BoolArray, window: Window, job: FillJob) -> Patch:
    """The targets of a tile in the chunk, which need not be those that the model predicts.

    `place` are the numbers of the cells of the chunk in the window, and -1 elsewhere.
    """
    read = supported.ravel()[tile.targets]
    read[0] |= not read.any()
    here = place.ravel()[tile.targets] >= 0
    cells = np.stack(np.divmod(tile.targets, place.shape[1]), -1) + np.array([window.row, window.col])
    assert tile.cells is not None
    context = tile.cells + np.array([window.row, window.col])
    if job.periodic:
        middle = cells[np.linalg.norm(tile.xt, axis=1).argmin(), 1]
        for part in (cells, context):
            part[:, 1] = _nearest_turn(part[:, 1], middle, job.shape[1])
    x = np.concatenate([cells[here], context])
    numbers = np.rint(x).astype(np.int64)
    if job.periodic:
        numbers[:, 1] %= job.shape[1]
    targets = place.ravel()[tile.targets[here]]
    near = nearest(tile.xt[here], tile.xt[read])
    every = np.concatenate([cells, context]), np.concatenate([tile.xt, tile.xc])
    jacobian = np.eye(2) if job.surface is None else _jacobian(*every)
    return Patch(_reading(tile, read), x, numbers, near, jacobian, targets, tile.weights[here])


def _nearest_turn(cols: IntArray | FloatArray, middle: float, circle: int) -> IntArray | FloatArray:
    """The columns around the Earth, at most half a circle away from one of them."""
    return (cols - middle + circle / 2) % circle - circle / 2 + middle


def _jacobian(cells: FloatArray, locations: FloatArray) -> FloatArray:
    """Derivatives of locations by rows and columns, by least squares: those near the middle of the tile count most."""
    weights = 1 / (1 + np.linalg.norm(locations, axis=1, keepdims=True))
    columns = np.concatenate([cells - cells[0], np.ones((len(cells), 1))], 1)
    return np.asarray(np.linalg.lstsq(columns * weights, locations * weights)[0][:2].T)


def _reading(tile: Tile, read: BoolArray) -> Tile:
    """The tile with some of its targets."""
    columns = tile.covariates
    return replace(
        tile,
        xt=tile.xt[read],
        targets=tile.targets[read],
        weights=tile.weights[read],
        background=None if tile.background is None else (tile.background[0], tile.background[1][read]),
        covariates=None if columns is None else Columns(columns.context, columns.targets[:, read]),
    )
