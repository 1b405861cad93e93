"""The tiles of a window: targets, context and blending weights of each, as the model reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from geonp.inference.censoring import without_piles
from geonp.inference.context import framed
from geonp.inference.covariates import Columns, Layer, columns, known_errors, with_slices
from geonp.inference.far import NO_BLOCKS, FarContext, block_sums, reaches_far
from geonp.inference.measurements import Measured, Measurements, NearMeasurements
from geonp.inference.predictor import Predictor
from geonp.inference.stack import STACK, backgrounds
from geonp.inference.stitching import Tile, blend_weights, overlaps
from geonp.inference.tiling import depths, groups, within_tiles
from geonp.raster.arrays import BoolArray, FloatArray, IntArray
from geonp.raster.windows import Window, shown_once

if TYPE_CHECKING:
    from geonp.inference.kernel import FillJob


def far_of(
    read: Callable[[], FloatArray] | None,
    missing: BoolArray,
    context_mask: BoolArray,
    chunk: Window,
    job: FillJob,
    covariates: Sequence[Layer] = (),
) -> FarContext | None:
    """Far context of the tiles of a chunk; None where no gap is wide, or nothing can read far context."""
    neighbourhood, window = job.predictor.neighbourhood, job.window(chunk)
    # blocks have no covariates, and those of censored values are neither censored nor observed
    usable = job.warping is None and all(layer.known_errors for layer in covariates)
    if read is None or not usable or not neighbourhood.far:
        return None
    depth = depths(context_mask)
    if not reaches_far(depth, missing, job.core(chunk), neighbourhood.tile_px):
        return None
    sums = block_sums(read(), job.far_window(chunk), neighbourhood)
    first, period = np.array([window.row, window.col]), job.shape[1] if job.periodic else None
    return FarContext(sums, depth, first, neighbourhood, job.seed, period)


def tiles_of(
    values: FloatArray,
    context_mask: BoolArray,
    missing: BoolArray,
    wanted: BoolArray,
    chunk: Window,
    job: FillJob,
    stack: tuple[FloatArray, FloatArray] | None = None,
    covariates: Sequence[Layer] = (),
    far: FarContext | None = None,
    points: NearMeasurements | None = None,
) -> list[Tile]:
    """Tiles with wanted cells and enough context, in ascending order of their number of targets.

    With a `stack`, the values of this slice and of others, tiles see a regression on the latter.
    """
    neighbourhood, ground = job.predictor.neighbourhood, job.ground(chunk, context_mask)
    px, width = neighbourhood.tile_px, missing.shape[1]
    period = job.shape[1] if job.periodic else None
    tiles, overlap, frame = [], overlaps(context_mask, neighbourhood), job.margins(chunk)
    inner = np.s_[:, frame[1] - job.frame : width - frame[1] + job.frame]
    for corners in groups(missing[inner], context_mask[inner], job.frame, neighbourhood):
        members, box = frame + corners, np.array([corners.min(0), corners.max(0) + px]) + frame
        # a tile off the lattice holds a single gap, and overlaps with no other
        overlap_px = 0 if (corners % px).any() else neighbourhood.overlap_px
        patch = framed(box, overlap_px)
        shares = [blend_weights(overlap[patch], member - box[0], px, overlap_px) for member in members]
        weights = wanted[patch] * np.sum(shares, 0)
        t_row, t_col = np.nonzero(weights)
        if not t_row.size:
            continue
        gap_mask = within_tiles(members - box[0], missing[framed(box, 0)], px)
        plane = ground.plane(box, gap_mask)
        places, means = far.of(box, gap_mask) if far is not None and plane.square else NO_BLOCKS
        measured = np.empty(0, np.intp) if points is None else points.near(box, neighbourhood.thinning)
        cells = replace(neighbourhood, n_context=neighbourhood.n_context - means.size)
        context = ground.context(box, gap_mask, plane, cells, job.seed)
        enough = context.size + means.size >= neighbourhood.min_context
        if not enough and context.size + means.size + measured.size < neighbourhood.min_context:
            continue
        errors = known_errors(covariates, context, values.ravel()[context])
        targets = (t_row + patch[0].start) * width + t_col + patch[1].start
        read = np.stack(np.divmod(context, width), -1)
        tile = Tile(
            np.concatenate([ground.locations(read, plane), ground.locations(places, plane)]),
            np.concatenate([values.ravel()[context], means]).astype(values.dtype, copy=False),
            ground.locations(np.stack(np.divmod(targets, width), -1), plane),
            targets,
            weights[t_row, t_col],
            covariates=columns(covariates, *_with_cells(context, targets, points, measured, read=not enough)),
            errors=None if errors is None else np.pad(errors, (0, means.size)),
            cells=np.concatenate([read, places]),
        )
        tile = without_piles(tile, job.warping, job.predictor)
        if points is not None and measured.size:
            there = points.points.at(measured)
            beside = _conditioned if enough else _with_more_context
            tile = beside(tile, there, ground.locations(there.places, plane))
        if stack is None:
            tiles.append(tile)
        else:
            tiles += _beside_stack(tile, context, missing, box, patch, stack, period, job.predictor)
    return sorted((tile for tile in tiles if tile.targets.size), key=lambda tile: len(tile.xt))


def tiles_beside(
    values: FloatArray,
    context_mask: BoolArray,
    missing: BoolArray,
    wanted: BoolArray,
    chunk: Window,
    job: FillJob,
    others: FloatArray,
) -> list[Tile]:
    """The tiles of :func:`tiles_of` that see a regression on other slices ``(slices, ...)``."""
    known = np.isfinite(others).any(0)
    stack = np.where(context_mask, values, np.nan), others
    return tiles_of(values, context_mask & known, missing, wanted & known, chunk, job, stack)


def _beside_stack(
    tile: Tile,
    context: IntArray,
    missing: BoolArray,
    box: IntArray,
    patch: tuple[slice, slice],
    stack: tuple[FloatArray, FloatArray],
    period: int | None,
    predictor: Predictor,
) -> Iterator[Tile]:
    """The parts of the tile of a box and its patch that see regressions on slices; `context` are its cells."""
    own, others = stack[0], stack[1].reshape(len(stack[1]), -1)
    m_row, m_col = np.nonzero(missing[patch])
    gap = (m_row + patch[0].start) * missing.shape[1] + m_col + patch[1].start
    # a tile far from the observations of its slice compares slices where these are
    for reach in (STACK.frame_px, predictor.neighbourhood.reach_px):
        around = framed(box, reach)
        own_values = np.where(shown_once(~np.isnan(own[around]), period), own[around], np.nan)
        if pairs := backgrounds(own_values, stack[1][:, *around], others[:, context], others[:, gap]):
            break
    place = np.searchsorted(gap, tile.targets)
    for close, whole in pairs:
        # of all cells of the gap, which do not depend on the chunk
        predicted = gap[np.isfinite(whole)]
        if not predicted.size:
            continue
        known = np.isfinite(others[:, predicted]).mean(1) >= STACK.known
        slices = others[np.ix_(known, context)], others[np.ix_(known, tile.targets)]
        yield _beside_slices(tile, (close, whole[place]), slices, predictor)


def _with_cells(
    context: IntArray,
    targets: IntArray,
    points: NearMeasurements | None,
    measured: IntArray,
    *,
    read: bool,
) -> tuple[IntArray, IntArray]:
    """Cells whose covariates context and targets have: measurements, read or not, have those of the nearest cells."""
    if points is None:
        return context, targets
    nearest = points.cells[measured]
    return (np.concatenate([context, nearest]), targets) if read else (context, np.concatenate([nearest, targets]))


def _with_more_context(tile: Tile, there: Measurements, locations: FloatArray) -> Tile:
    """A tile with measurements at `locations` in its context, which has few cells; it has their covariates already."""
    errors = np.zeros(len(tile.xc)) if tile.errors is None else tile.errors
    return replace(
        tile,
        xc=np.concatenate([tile.xc, locations]),
        yc=np.concatenate([tile.yc, there.values]).astype(tile.yc.dtype, copy=False),
        errors=np.concatenate([errors, there.errors]),
    )


def _conditioned(tile: Tile, there: Measurements, locations: FloatArray) -> Tile:
    """A tile whose predictions are conditioned on measurements at `locations`; it has their covariates already."""
    measured = Measured(there.values, there.errors, there.offset_error)
    return replace(tile, xt=np.concatenate([locations, tile.xt]), measured=measured)


def _beside_slices(
    tile: Tile, background: tuple[FloatArray, FloatArray], slices: tuple[FloatArray, FloatArray], predictor: Predictor
) -> Tile:
    """The part of a tile whose targets have a background; it has no targets if its context has too little of it.

    The background is subtracted. A model that can use covariates gets the slices, too: their effect may vary in space.

    Parameters
    ----------
    background : tuple of array
        Values of the regression at context and targets of the tile, NaN where there is none.
    slices : tuple of array
        Values there of the slices that nearly the whole gap knows, ``(slices, n)``.
    """
    near, kept = np.isfinite(background[0]), np.isfinite(background[1])
    kept &= np.count_nonzero(near) >= predictor.neighbourhood.min_context
    own = tile.covariates
    if own is not None:
        own = Columns(own.context[:, near], own.targets[:, kept])
    if predictor.covariates and len(slices[0]):
        own = with_slices(own, slices[0][:, near], slices[1][:, kept])
    return Tile(
        tile.xc[near],
        tile.yc[near],
        tile.xt[kept],
        tile.targets[kept],
        tile.weights[kept],
        (background[0][near], background[1][kept]),
        own,
        None if tile.errors is None else tile.errors[near],
        cells=None if tile.cells is None else tile.cells[near],
        estimated=tile.estimated,
    )
