"""Fill the window around a chunk: the one kernel that everything else schedules, the same however a raster is cut.

:func:`fill_window` is a pure function of NumPy arrays and of a small picklable job.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.errors import PredictionError
from geonp.inference import student
from geonp.inference.context import Neighbourhood, halo_for, overlaps, select_context
from geonp.inference.parallel import on_cores
from geonp.inference.predictor import Predictor, Tile, batches, bucket, buckets_up_to, gather, together
from geonp.inference.stack import FRAME_PX, backgrounds
from geonp.inference.thinning import start_of
from geonp.inference.tiling import MARGIN_PX, between, groups, support
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window, aligned, grown, indices, shown_once

__all__ = ["Classified", "Filled", "Job", "classify_window", "fill_window", "most_batches", "quantile_of", "record"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Job:
    """What every chunk of one variable needs to know; picklable and small.

    Attributes
    ----------
    predictor : Predictor
    shape : tuple of int
        ``(rows, columns)`` of the raster.
    periodic : bool
        Whether its last column neighbours the first.
    max_distance : float or None
        Cells farther than this from every observation, in cells, are left empty.
    seed : int
        Of the choice among far context.
    across : hashable or None
        The dimension along which slices tell about each other, see :mod:`geonp.inference.stack`.
    """

    predictor: Predictor
    shape: tuple[int, int]
    periodic: bool
    max_distance: float | None
    seed: int
    across: Hashable | None = None

    @property
    def frame(self) -> int:
        """Width of the frame around whole tiles that is read: context, what `max_distance` looks at, and `across`."""
        farthest = min(self.max_distance or 0.0, max(self.shape))
        compared = 0 if self.across is None else FRAME_PX
        return max(self.predictor.neighbourhood.reach_px, int(np.ceil(farthest)), compared)

    def window(self, chunk: Window) -> Window:
        """What is read to fill `chunk`: the tiles that predict its cells, with the frame around them."""
        neighbourhood = self.predictor.neighbourhood
        # the tile around a gap may begin its side ahead of the gap's last cell, and must be seen whole
        predicted = grown(chunk, MARGIN_PX + max(neighbourhood.overlap_px, neighbourhood.tile_px))
        return grown(aligned(predicted, neighbourhood.tile_px * neighbourhood.merge), self.frame)

    def cells(self, chunk: Window) -> tuple[IntArray, IntArray]:
        """Raster rows and columns of :meth:`window`; -1 outside the raster."""
        window = self.window(chunk)
        rows = indices(window.row, window.row_end, self.shape[0])
        return rows, indices(window.col, window.col_end, self.shape[1], periodic=self.periodic)


@dataclass(frozen=True)
class Filled:
    """One chunk: values, standard errors, tails (:mod:`geonp.inference.student`) and flags, each ``(rows, cols)``."""

    value: FloatArray
    standard_error: FloatArray
    tail: FloatArray
    flag: npt.NDArray[np.int8]


@dataclass(frozen=True)
class Classified:
    """One chunk of classes: their numbers, the probability of each ``(rows, cols, classes)``, and flags."""

    value: FloatArray
    probability: npt.NDArray[np.float32]
    flag: npt.NDArray[np.int8]


def record(dtype: np.dtype[Any], classes: int = 0) -> np.dtype[Any]:
    """The fields of :class:`Filled` for a raster of floats of this dtype; of :class:`Classified` for `classes`."""
    if classes:
        return np.dtype([("value", dtype), ("probability", np.float32, (classes,)), ("flag", np.int8)])
    return np.dtype([("value", dtype), ("standard_error", dtype), ("tail", np.float32), ("flag", np.int8)])


def quantile_of(parts: npt.NDArray[np.void], level: float) -> FloatArray:
    """The quantile of a result with the fields of :class:`Filled`, in the dtype of its values."""
    found = student.quantile(level, parts["value"], parts["standard_error"], parts["tail"])
    return np.asarray(found, parts["value"].dtype)


def fill_window(
    values: FloatArray, domain_mask: BoolArray, chunk: Window, job: Job, others: FloatArray | None = None
) -> Filled:
    """Fill the missing cells of a chunk from the window around it: the one kernel that everything else schedules.

    Parameters
    ----------
    values : array
        ``job.window(chunk).shape``: NaN where missing or outside the raster.
    domain_mask : array
        True where a value may be; cells outside are neither filled nor used as context.
    others : array, optional
        ``(slices, rows, cols)`` of the window in other slices, which tell about this one: see
        :mod:`geonp.inference.stack`.

    Raises
    ------
    PredictionError
        When the model returns a value that is not finite.
    """
    core, flag, predicted = _predicted(values, domain_mask, chunk, job, others)
    observed = ~np.isnan(values)
    value = values.copy()
    error = np.where(observed, 0.0, np.nan).astype(values.dtype)
    tail = error.astype(np.float32)
    if predicted is not None:
        filled = flag == FillFlag.FILLED
        value[filled], error[filled], tail[filled] = predicted[:, filled]
    return Filled(value[core], error[core], tail[core], flag[core])


def classify_window(values: FloatArray, domain_mask: BoolArray, chunk: Window, job: Job) -> Classified:
    """Fill the missing cells of a chunk with the most probable class; as :func:`fill_window`, of numbers of classes."""
    core, flag, predicted = _predicted(values, domain_mask, chunk, job)
    value = values.copy()
    probability = (values[..., None] == np.arange(job.predictor.classes)).astype(np.float32)
    probability[np.isnan(values)] = np.nan
    if predicted is not None:
        filled = flag == FillFlag.FILLED
        probability[filled] = predicted[:, filled].T
        value[filled] = predicted[:, filled].argmax(0)
    return Classified(value[core], probability[core], flag[core])


def most_batches(missing: BoolArray, observed: BoolArray, chunk: Window, job: Job) -> int:
    """How many batches fill the missing cells of a chunk, at most; from masks of the window around it."""
    window, neighbourhood = job.window(chunk), job.predictor.neighbourhood
    px, lap = neighbourhood.tile_px, neighbourhood.overlap_px
    first = np.array([chunk.row - window.row, chunk.col - window.col]) - MARGIN_PX
    last = np.array([chunk.row_end - window.row, chunk.col_end - window.col]) + MARGIN_PX
    found: list[int] = []
    for corners in groups(missing, observed, job.frame, neighbourhood):
        patch = np.array([corners.min(0) - lap, corners.max(0) + px + lap]) + job.frame
        inside = np.s_[*(slice(*ends) for ends in np.clip(patch, first, last).T)]
        n = int(np.count_nonzero(missing[inside]))
        found += [bucket(n)] if n else []
    # the last batch of each bucket may hold a single tile
    full = sum(1 / together(job.predictor.batch_size, n_t) for n_t in found)
    return min(len(found), int(full) + buckets_up_to(max(found, default=0)))


def _predicted(
    values: FloatArray, domain_mask: BoolArray, chunk: Window, job: Job, others: FloatArray | None = None
) -> tuple[tuple[slice, slice], npt.NDArray[np.int8], FloatArray | None]:
    """Where the chunk lies in its window, the flags, and what is predicted ``(outputs, rows, cols)``, if anything."""
    window, (rows, cols) = job.window(chunk), job.cells(chunk)
    core = np.s_[
        chunk.row - window.row : chunk.row_end - window.row, chunk.col - window.col : chunk.col_end - window.col
    ]
    observed = ~np.isnan(values)
    missing, context_mask = domain_mask & ~observed, domain_mask & observed
    fillable = missing & _near(context_mask, job.max_distance)
    flag = np.where(observed, FillFlag.OBSERVED, np.where(domain_mask, FillFlag.BEYOND_LIMIT, FillFlag.OUTSIDE_DOMAIN))
    flag = flag.astype(np.int8)
    if not fillable[core].any():
        return core, flag, None
    supported = support(fillable, rows, cols)
    if others is not None:
        others = np.where(domain_mask, others, np.nan)
        told = np.isfinite(others).any(0)
        # what varies slowly inside gaps is what the others do not tell
        supported |= fillable & told
    wanted = _wanted(fillable, supported, core)
    predicted = _predict(_tiles(context_mask, missing, wanted, job), values, rows, cols, job)
    if others is not None:
        stack = np.where(context_mask, values, np.nan), others
        tiles = _tiles(context_mask & told, missing, wanted & told, job, stack)
        together = _predict(tiles, values, rows, cols, job)
        # where others have gaps of their own, at the shores of this one, they may tell less than it does alone
        surer = (together[1] < predicted[1]) | (np.isfinite(together[1]) & np.isnan(predicted[1]))
        predicted = np.where(surer, together, predicted)
    between(predicted, fillable, supported, rows, cols)
    flag[fillable & np.isfinite(predicted[0])] = FillFlag.FILLED
    return core, flag, predicted


def _near(context_mask: BoolArray, max_distance: float | None) -> BoolArray:
    if max_distance is None or not context_mask.any():
        return np.full(context_mask.shape, max_distance is None)
    return np.asarray(ndimage.distance_transform_edt(~context_mask) <= max_distance)


def _wanted(fillable: BoolArray, supported: BoolArray, core: tuple[slice, slice]) -> BoolArray:
    """The supported cells of the core, and those around it that its other cells are interpolated from."""
    ahead = tuple(slice(s.start - MARGIN_PX, s.stop + MARGIN_PX) for s in core)
    wanted = np.zeros_like(supported)
    wanted[ahead] = supported[ahead]
    inside = np.zeros_like(supported)
    inside[core] = (fillable & ~supported)[core]
    used = ndimage.binary_dilation(inside, np.ones((3, 3), bool), iterations=MARGIN_PX) if inside.any() else inside
    used[core] = True
    return wanted & used


def _predict(tiles: list[Tile], values: FloatArray, rows: IntArray, cols: IntArray, job: Job) -> FloatArray:
    """Blended outputs of the model ``(outputs, rows, cols)`` for the targets of all tiles, NaN elsewhere."""
    neighbourhood, total = job.predictor.neighbourhood, np.zeros((job.predictor.outputs + 1, values.size))
    # the numbers of classes stay what they are
    standard = (0.0, 1.0) if job.predictor.classes else neighbourhood.standard

    grouped = list(batches(tiles, job.predictor.batch_size))
    points = (gather(batch, values, neighbourhood.n_context, standard) for batch in grouped)
    results = on_cores(job.predictor.rooted(), points, job.predictor.device, len(grouped))
    for batch, predicted in zip(grouped, results, strict=True):
        for k, tile in enumerate(batch):
            found = predicted[:, k, : tile.targets.size]
            if tile.background is not None:
                found[0] += tile.background[1]
            if not np.isfinite(found).all():
                row, col = rows[tile.targets[0] // cols.size], cols[tile.targets[0] % cols.size]
                raise PredictionError(
                    f"the model returned values that are not finite for the tile around row {row}, column {col}; "
                    "please report it with the data around this tile"
                )
            total[:-1, tile.targets] += tile.weights * found
            total[-1, tile.targets] += tile.weights
    # Errors of neighbouring tiles stem from the same data: the mean of their standard deviations bounds that of
    # their mean from above, and is reached when they are fully correlated.
    with np.errstate(invalid="ignore"):
        return np.asarray(total[:-1] / total[-1]).reshape(-1, *values.shape)


def _tiles(
    context_mask: BoolArray,
    missing: BoolArray,
    wanted: BoolArray,
    job: Job,
    stack: tuple[FloatArray, FloatArray] | None = None,
) -> list[Tile]:
    """The groups of tiles that have wanted cells and enough context, rising in the number of the former.

    With a `stack`, the values and those of other slices, those that the latter tell about.
    """
    neighbourhood, frame = job.predictor.neighbourhood, job.frame
    px, reach = neighbourhood.tile_px, neighbourhood.reach_px
    period = job.shape[1] if job.periodic else None
    width = missing.shape[1]
    found = []
    reached = overlaps(context_mask, neighbourhood)
    for corners in groups(missing, context_mask, frame, neighbourhood):
        members, box = frame + corners, np.array([corners.min(0), corners.max(0) + px]) + frame
        # off the lattice it is for a single gap
        lap = 0 if (corners % px).any() else neighbourhood.overlap_px
        patch = _around(box, lap)
        weights = wanted[patch] * np.sum(
            [_blend_weights(reached[patch], member - box[0], px, lap) for member in members], 0
        )
        t_row, t_col = np.nonzero(weights)
        if not t_row.size:
            continue
        near = shown_once(context_mask[_around(box, reach)], period)
        halo = halo_for(near, neighbourhood)
        surroundings, cut = _around(box, halo), reach - halo
        near = near[cut : near.shape[0] - cut, cut : near.shape[1] - cut]
        own = np.zeros_like(near)
        for row, col in halo + members - box[0]:
            own[row : row + px, col : col + px] = True
        chosen = select_context(near, own & missing[surroundings], neighbourhood, start_of(job.seed))
        if chosen.size < neighbourhood.min_context:
            continue
        c_row, c_col = np.divmod(chosen, near.shape[1])
        tile = Tile(
            (c_row + surroundings[0].start) * width + c_col + surroundings[1].start,
            (t_row + patch[0].start) * width + t_col + patch[1].start,
            weights[t_row, t_col],
            ((box[0, 0] + box[1, 0] - 1) / 2, (box[0, 1] + box[1, 1] - 1) / 2),
        )
        if stack is None:
            found.append(tile)
            continue
        m_row, m_col = np.nonzero(missing[patch])
        gap = (m_row + patch[0].start) * width + m_col + patch[1].start
        around = _around(box, FRAME_PX)
        values, others = stack[0][around], stack[1][:, *around]
        values = np.where(shown_once(~np.isnan(values), period), values, np.nan)
        found += _told(tile, gap, (values, others), stack[1].reshape(len(others), -1), neighbourhood)
    return sorted(found, key=lambda tile: tile.targets.size)


def _told(
    tile: Tile, gap: IntArray, patch: tuple[FloatArray, FloatArray], others: FloatArray, neighbourhood: Neighbourhood
) -> list[Tile]:
    """The tile with what `others` ``(slices, cells)`` tell about it, in as many as are to be told apart.

    How they tell is learned from a `patch` around it, values and those of others. It depends on all missing cells of
    the tile, its `gap` (flat indices, rising), whichever of them are targets.
    """
    found = []
    place = np.searchsorted(gap, tile.targets)
    for context, whole in backgrounds(*patch, others[:, tile.context], others[:, gap]):
        near, targets = np.isfinite(context), whole[place]
        told = np.isfinite(targets)
        if np.count_nonzero(near) >= neighbourhood.min_context and told.any():
            cells, weights = tile.targets[told], tile.weights[told]
            pair = context[near], targets[told]
            found.append(Tile(tile.context[near], cells, weights, tile.middle, pair))
    return found


def _around(box: IntArray, px: int) -> tuple[slice, slice]:
    """A box (its first and last corner) with a frame of so many cells."""
    (top, left), (bottom, right) = box.tolist()
    return slice(top - px, bottom + px), slice(left - px, right + px)


def _blend_weights(reached: IntArray, corner: IntArray, px: int, frame: int) -> FloatArray:
    """Weight of a tile's prediction of each cell of a patch: a frame around a box, in which the tile has a corner.

    The weights of all tiles add up to one in the cells where neighbours agree how far to reach.
    """
    down, across = (np.arange(n) - frame - start + 0.5 for n, start in zip(reached.shape, corner, strict=True))
    depths = np.minimum(down, px - down)[:, None], np.minimum(across, px - across)
    ramps = (np.clip((depth + reached) / np.maximum(2 * reached, 1), 0.0, 1.0) for depth in depths)
    return np.asarray(next(ramps) * next(ramps))
