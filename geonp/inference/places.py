"""Predictions at places between the cells of a raster: the kernel of fills onto other grids."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from geonp.inference.batches import padded_size, tiles_per_batch
from geonp.inference.censoring import latent, without_piles
from geonp.inference.context import framed
from geonp.inference.far import NO_BLOCKS, FarContext
from geonp.inference.kernel import FillJob, result_dtype, within
from geonp.inference.stitching import Tile, batches, blended, overlaps, stitch
from geonp.inference.tiles import far_of
from geonp.raster.arrays import BoolArray, FloatArray, IntArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window


@dataclass(frozen=True)
class PlaceSettings:
    """Settings of tiles of places, in cells."""

    side_px: int = 8
    """Side of a tile. The context of a wider one would have no room for the observed cells around it."""
    exact_px: float = 1e-4
    """A place this near to the centre of an observed cell has its value."""
    most_targets: int = 3072
    """Largest number of targets in a forward pass, which bounds its memory."""


PLACES = PlaceSettings()


def fill_places(
    values: FloatArray,
    domain_mask: BoolArray,
    chunk: Window,
    job: FillJob,
    places: FloatArray,
    far: Callable[[], FloatArray] | None = None,
) -> StructArray:
    """Predict at places in a chunk, from the window around it.

    Raises PredictionError when the model returns a value that is not finite.

    Parameters
    ----------
    values, domain_mask, far
        As of :class:`geonp.inference.kernel.Inputs`.
    chunk, job
        As of :func:`geonp.inference.kernel.fill_window`.
    places : array
        ``(n, 2)``: rows and columns in the raster, with fractions: cells of the chunk are nearest to them.

    Returns
    -------
    array
        ``(n,)``, with the fields of :func:`geonp.inference.kernel.result_dtype`. At the centres of observed cells these
        are their values; of all others the predictions are of a new measurement. With a `warping`, they are latent.
    """
    window = job.window(chunk)
    if job.surface is not None:
        domain_mask = domain_mask & job.surface.placed_mask(*job.lattice(chunk))
    core = job.core(chunk)
    places = places - np.array([chunk.row - core[0].start, chunk.col - core[1].start])
    cells = np.rint(places).astype(np.intp)
    at = tuple(cells.T)
    observed_mask = np.isfinite(values)
    context_mask = domain_mask & observed_mask
    result = np.zeros(len(places), result_dtype(values.dtype, job))
    exact = observed_mask[at] & (np.abs(places - cells) < PLACES.exact_px).all(1)
    for name in ("value", "standard_error", "tail"):
        result[name] = np.where(exact, values[at] if name == "value" else 0.0, np.nan)
    allowed = job.near(chunk, context_mask)[at]
    result["flag"] = np.select(
        [exact, ~domain_mask[at]], [FillFlag.OBSERVED, FillFlag.OUTSIDE_DOMAIN], FillFlag.BEYOND_LIMIT
    )
    wanted = np.flatnonzero(~exact & domain_mask[at] & allowed)
    if not wanted.size:
        return result
    beyond = far_of(far, domain_mask & ~observed_mask, context_mask, chunk, job)
    latent_values, _ = latent(values, (), job.warping)
    tiles = list(_tiles(latent_values, context_mask, places, wanted, chunk, job, beyond))
    expected = sum(1 / tiles_per_batch(job.predictor.batch_size, padded_size(tile.targets.size)) for tile in tiles)

    def name_of(tile: Tile) -> str:
        return f"near row, column = {tuple((places[tile.targets[0]] + (window.row, window.col)).tolist())}"

    tiles.sort(key=lambda tile: tile.targets.size)
    groups = batches(tiles, job.predictor.batch_size)
    predicted = blended(stitch(groups, len(places), job.predictor, round(expected), name_of))
    filled = np.isfinite(predicted[0])
    result["flag"][filled] = FillFlag.FILLED
    for name, outputs in zip(("value", "standard_error", "tail"), predicted, strict=True):
        result[name][filled] = within(outputs[filled], result[name].dtype)
    return result


def _tiles(
    values: FloatArray,
    context_mask: BoolArray,
    places: FloatArray,
    wanted: IntArray,
    chunk: Window,
    job: FillJob,
    far: FarContext | None,
) -> Iterator[Tile]:
    """The tiles of places in a window; they lie on a lattice that is fixed to the raster."""
    side, width, window = PLACES.side_px, values.shape[1], job.window(chunk)
    ground, every = job.ground(chunk, context_mask), np.ones((PLACES.side_px, PLACES.side_px), bool)
    neighbourhood = job.predictor.neighbourhood
    reach = overlaps(context_mask, neighbourhood)[tuple(np.rint(places[wanted]).astype(np.intp).T)]
    for corner, index, weights in _members(places[wanted], reach, window):
        box = np.array([corner, corner + side])
        if not ground.has_places(box, every):  # beyond the edge of the raster
            continue
        gap_mask = ~context_mask[framed(box, 0)]
        plane = ground.plane(box, every)
        blocks, means = far.of(box, gap_mask) if far is not None and plane.square and gap_mask.any() else NO_BLOCKS
        around = replace(neighbourhood, n_context=neighbourhood.n_context - means.size)
        context = ground.context(box, every, plane, around, job.seed)
        if context.size + means.size < neighbourhood.min_context:
            continue
        read = np.stack(np.divmod(context, width), -1)
        xc = np.concatenate([ground.locations(read, plane), ground.locations(blocks, plane)])
        yc = np.concatenate([values.ravel()[context], means]).astype(values.dtype, copy=False)
        for part in np.array_split(np.arange(index.size), -(-index.size // PLACES.most_targets)):
            targets = wanted[index[part]]
            xt = ground.locations(places[targets], plane)
            yield without_piles(Tile(xc, yc, xt, targets, weights[part]), job.warping, job.predictor)


def _members(places: FloatArray, overlap: IntArray, window: Window) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
    """First cell of each tile in the window, the places that it predicts, and the weights of these predictions.

    Tiles overlap at each place to the distance `overlap`, see :func:`geonp.inference.stitching.overlaps`, at most half
    a tile. The weights of the up to four tiles that predict a place sum to one.
    """
    side = PLACES.side_px
    lap = np.minimum(overlap / side, 0.5)[:, None]
    position = (places + np.array([window.row, window.col]) + 0.5) / side
    own = np.floor(position).astype(np.intp)
    depth = position - own
    parts = []
    for step in itertools.product((-1, 0, 1), repeat=2):
        # the weight of a tile falls from one to zero across the border that a place is near
        inside = np.minimum(depth - step, 1 + np.array(step) - depth)
        weights = np.prod(np.clip((inside + lap) / (2 * lap), 0.0, 1.0), 1)
        index = np.flatnonzero(weights)
        parts.append((own[index] + step, index, weights[index]))
    tiles, index, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    unique, number = np.unique(tiles, axis=0, return_inverse=True)
    order = np.argsort(number.ravel(), kind="stable")
    ends = np.searchsorted(number.ravel()[order], np.arange(len(unique) + 1))
    for tile, first, last in zip(unique, ends[:-1], ends[1:], strict=True):
        chosen = order[first:last]
        yield tile * side - np.array([window.row, window.col]), index[chosen], weights[chosen]
