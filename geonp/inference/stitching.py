"""From tiles to blended predictions: tiles are batched, padded, predicted and summed with their weights.

Rasters and scattered measurements take this path. Joint samples share its batches.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from geonp.errors import PredictionError
from geonp.inference.batches import padded_size, tiles_per_batch
from geonp.inference.context import Neighbourhood, standardise
from geonp.inference.covariates import Columns, padded
from geonp.inference.measurements import Measured
from geonp.inference.parallel import on_cores
from geonp.inference.predictor import Points, Predictor
from geonp.inference.tiling import depths
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Tile:
    """Context and targets that the model reads together.

    Attributes
    ----------
    xc, xt : array
        Locations of the context ``(n_c, 2)`` and of the targets ``(n_t, 2)`` relative to the middle of the tile, first
        along y: in cells on rasters, in sixteenths of the side of a square for measurements.
    yc : array
        ``(n_c,)``: values of the context.
    targets : array of int
        ``(n_t,)``: where the predictions go in the stitched result.
    weights : array
        ``(n_t,)``: blending weights of the predictions.
    background : tuple of array, optional
        Values ``(n_c,)`` and ``(n_t,)`` that are subtracted from the context and added to the predicted means.
    covariates : Columns, optional
        Covariates of context and targets.
    errors : array, optional
        Known standard errors of the context ``(n_c,)``.
    classes : array, optional
        Classes of the context, ascending; `yc` are their numbers.
    cells : array, optional
        Rows and columns of the context in the window ``(n_c, 2)``.
    measured : Measured, optional
        Measurements that the predictions are conditioned on. Their places come before those of the targets in `xt`.
    scattered : bool
        Whether points may be far closer to each other than the cells of a raster; the same for all tiles of a fill.
    estimated : bool
        Whether values at bounds are estimates, with `errors`; the same for all tiles of a fill.
    """

    xc: FloatArray
    yc: FloatArray
    xt: FloatArray
    targets: IntArray
    weights: FloatArray
    background: tuple[FloatArray, FloatArray] | None = None
    covariates: Columns | None = None
    errors: FloatArray | None = None
    classes: FloatArray = field(default_factory=lambda: np.empty(0))
    cells: FloatArray | None = None
    measured: Measured | None = None
    scattered: bool = False
    estimated: bool = False


def in_batches(tiles: Iterable[Tile], size: int) -> list[list[Tile]]:
    """The batches of tiles in ascending order of their number of targets.

    Those of one shape are grouped first, so that incomplete batches are summed in the order of their tiles.
    """
    groups = itertools.groupby(tiles, key=lambda tile: padded_size(len(tile.xt)))
    return [batch for _, group in groups for batch in batches(group, size)]


def batches(tiles: Iterable[Tile], size: int) -> Iterator[list[Tile]]:
    """Group tiles that are padded to the same number of targets, up to `size` small tiles in a batch.

    Tiles are taken one by one; incomplete batches come last.
    """
    waiting: dict[int, list[Tile]] = {}
    for tile in tiles:
        n_t = padded_size(len(tile.xt))
        waiting.setdefault(n_t, []).append(tile)
        if len(waiting[n_t]) == tiles_per_batch(size, n_t):
            yield waiting.pop(n_t)
    yield from waiting.values()


def pad(batch: list[Tile], predictor: Predictor) -> Points:
    """Standardise the values of a batch of tiles and pad them to one shape.

    Padded context is masked. Padded targets repeat the last one, because models are faster when all points lie on a
    lattice.
    """
    size, n_c, n_t = len(batch), predictor.neighbourhood.n_context, padded_size(len(batch[0].xt))
    xc, xt = np.zeros((size, n_c, 2), np.float32), np.zeros((size, n_t, 2), np.float32)
    yc, mask = np.zeros((size, n_c, 1), np.float32), np.zeros((size, n_c), bool)
    loc, scale = np.zeros(size), np.ones(size)
    errors = np.zeros((size, n_c), np.float32) if any(tile.errors is not None for tile in batch) else None
    for k, tile in enumerate(batch):
        n = len(tile.xc)
        background = None if tile.background is None else tile.background[0]
        values = standardise(tile.yc, predictor.standard, background)
        xc[k, :n], yc[k, :n, 0], mask[k, :n] = tile.xc, values.z, True
        xt[k] = np.pad(tile.xt, ((0, n_t - len(tile.xt)), (0, 0)), mode="edge")
        loc[k], scale[k] = values.loc, values.scale
        if errors is not None and tile.errors is not None:
            errors[k, :n] = tile.errors / values.scale
    covariates = padded([tile.covariates for tile in batch], n_c, n_t)
    measured = _measured(batch, loc, scale)
    return Points(
        xc=xc,
        yc=yc,
        xt=xt,
        mask=mask,
        loc=loc,
        scale=scale,
        covariates=covariates,
        errors=errors,
        measured=measured,
        scattered=batch[0].scattered,
        estimated=batch[0].estimated,
    )


def _measured(batch: list[Tile], loc: FloatArray, scale: FloatArray) -> Measured | None:
    """Standardised measurements of a batch; None without any."""
    most = max(0 if tile.measured is None else len(tile.measured.values) for tile in batch)
    if not most:
        return None
    (values, errors), offset_error = np.full((2, len(batch), most), np.nan, np.float32), np.zeros(len(batch))
    for k, tile in enumerate(batch):
        if tile.measured is not None:
            n = len(tile.measured.values)
            values[k, :n] = (tile.measured.values - loc[k]) / scale[k]
            errors[k, :n] = tile.measured.errors / scale[k]
            offset_error[k] = tile.measured.offset_error / scale[k]
    return Measured(values, errors, offset_error)


def predict(groups: Iterable[list[Tile]], predictor: Predictor, expected: int = 0) -> Iterator[tuple[Tile, FloatArray]]:
    """Each tile with its outputs ``(outputs, n_t)``, computed on all cores.

    `expected` is about how many batches will come; many start processes, see
    :func:`~geonp.inference.parallel.on_cores`.
    """
    under_way = deque[list[Tile]]()

    def points() -> Iterator[Points]:
        for batch in groups:
            under_way.append(batch)
            yield pad(batch, predictor)

    for outputs in on_cores(predictor.rooted(), points(), predictor.device, expected):
        for k, tile in enumerate(under_way.popleft()):
            of_tile = outputs[:, k, len(tile.xt) - tile.targets.size : len(tile.xt)]
            if tile.background is not None:
                of_tile[0] += tile.background[1]
            yield tile, of_tile


def stitch(
    groups: Iterable[list[Tile]], size: int, predictor: Predictor, expected: int, name: Callable[[Tile], str]
) -> Float64Array:
    """Weighted sums of the outputs of all tiles, and of their weights, for `size` places: ``(outputs + 1, size)``.

    `name` says in errors where a tile lies. Raises PredictionError when the model returns a value that is not finite.
    """
    total = np.zeros((predictor.outputs + 1, size))
    for tile, outputs in predict(groups, predictor, expected):
        if not np.isfinite(outputs).all():
            raise PredictionError(
                f"the model returned values that are not finite {name(tile)}: correct covariates whose values there "
                "are far from all others, such as nodata values; without these, please report it with the data there"
            )
        total[:-1, tile.targets] += tile.weights * outputs
        total[-1, tile.targets] += tile.weights
    return total


def blended(total: FloatArray) -> Float64Array:
    """Weighted means of all outputs ``(outputs, size)`` from the sums of :func:`stitch`; NaN where there is no tile.

    Of standard errors the mean is an upper bound: the errors of neighbouring tiles stem from the same data, and the
    standard error of their mean equals the mean of their standard errors if they are fully correlated.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(total[:-1] / total[-1])


def blend_weights(overlap: IntArray, corner: IntArray, px: int, frame: int) -> FloatArray:
    """Weights of the predictions of the tile at `corner`, of `px` cells, in a patch: a box with a frame around it.

    Tiles overlap at each cell of the patch to the distance `overlap`, see :func:`overlaps`. The weights of all tiles
    sum to one in cells where neighbouring tiles overlap equally far.
    """
    down, right = (np.arange(n) - frame - start + 0.5 for n, start in zip(overlap.shape, corner, strict=True))
    depths = np.minimum(down, px - down)[:, None], np.minimum(right, px - right)
    ramps = (np.clip((depth + overlap) / np.maximum(2 * overlap, 1), 0.0, 1.0) for depth in depths)
    return np.asarray(next(ramps) * next(ramps))


def overlaps(observed_mask: BoolArray, neighbourhood: Neighbourhood) -> IntArray:
    """Distance to which tiles overlap at each cell, so that their predictions blend without a seam, in cells.

    One cell more than the chessboard distance from the nearest observation, at most ``overlap_px``: tiles agree next to
    observations that both read, and differ most far from all observations.
    """
    return np.asarray(np.minimum(depths(observed_mask), neighbourhood.overlap_px - 1) + 1)
