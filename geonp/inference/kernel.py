"""The kernel of every fill: predict the missing cells of one chunk from the window around it.

:func:`fill_window` is a pure function of NumPy arrays and a small picklable job. In-memory, dask and store fills only
schedule it, so the result does not depend on how a raster is chunked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from geonp.inference import student
from geonp.inference.censoring import latent, without_piles
from geonp.inference.context import choose_context, framed
from geonp.inference.covariates import Columns, Layer, columns, known_errors, with_slices
from geonp.inference.far import NO_BLOCKS, FarContext, block_sums, far_window, reaches_far
from geonp.inference.predictor import Predictor
from geonp.inference.series import SERIES
from geonp.inference.stack import STACK, Across, backgrounds
from geonp.inference.stitching import Tile, blend_weights, blended, in_batches, overlaps, stitch
from geonp.inference.tiling import TILING, between, depths, groups, locations, near, support, wanted_cells, within_tiles
from geonp.inference.warping import Warping
from geonp.raster.metadata import FillFlag, Kind
from geonp.raster.variable import Variable
from geonp.raster.windows import Window, indices, shown_once

__all__ = ["FillJob", "as_read", "fill_window", "quantile_of", "result_dtype", "tiles_of", "unfilled", "within"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class FillJob:
    """What every chunk of a variable needs to know; small and picklable.

    Attributes
    ----------
    shape : tuple of int
        ``(rows, columns)`` of the raster.
    periodic : bool
        Whether the last column neighbours the first.
    max_distance : float or None
        Cells farther than this from every observation, in cells, stay empty.
    seed : int
        Seed for sampling distant context points.
    across : tuple of Across
        Dimensions along which neighbouring slices are used as predictors, see :mod:`geonp.inference.stack`.
    empty_slices : bool
        Whether cells without observations in reach are predicted by :mod:`geonp.inference.series`.
    kind : Kind
        What the values of the variable are.
    categories : tuple of float
        Classes whose probabilities are asked for; empty for that of the filled class alone.
    smooth : bool
        Whether observations with known errors are replaced by estimates of the truth.
    warping : Warping or None
        Map of bounded values to latent ones, which are predicted instead.
    """

    predictor: Predictor
    shape: tuple[int, int]
    periodic: bool
    max_distance: float | None
    seed: int
    across: tuple[Across, ...] = ()
    empty_slices: bool = False
    kind: Kind = Kind.NUMBERS
    categories: tuple[float, ...] = ()
    smooth: bool = False
    warping: Warping | None = None

    def of(self, variable: Variable) -> FillJob:
        """The job of a variable."""
        return replace(self, kind=variable.kind, categories=variable.categories)

    @property
    def series(self) -> Across | None:
        """The dimension along which cells without observations in reach are predicted, if any."""
        return next((a for a in self.across if a.positions), None) if self.empty_slices else None

    @property
    def frame(self) -> int:
        """Width of the frame around whole tiles that is read for context, `max_distance` and other slices, in cells."""
        farthest = min(self.max_distance or 0.0, max(self.shape))
        compared = SERIES.reach_px if self.empty_slices else STACK.frame_px if self.across else 0
        return max(self.predictor.neighbourhood.reach_px, int(np.ceil(farthest)), compared)

    def window(self, chunk: Window) -> Window:
        """The window that is read to fill `chunk`: all tiles that predict its cells, and the frame around them."""
        neighbourhood = self.predictor.neighbourhood
        # the tile around a lone gap may begin up to one side before the last cell of the gap
        predicted = chunk.grown(TILING.margin_px + max(neighbourhood.overlap_px, neighbourhood.tile_px))
        return predicted.aligned(neighbourhood.tile_px * neighbourhood.merge).grown(self.frame)

    def cells(self, chunk: Window) -> tuple[IntArray, IntArray]:
        """Raster rows and columns of :meth:`window`; -1 outside the raster."""
        return self._indices(self.window(chunk))

    def far_window(self, chunk: Window) -> Window:
        """The window that tiles deep in a gap read means of blocks from, see :mod:`geonp.inference.far`."""
        return far_window(self.window(chunk).grown(-self.frame), self.predictor.neighbourhood)

    def far_cells(self, chunk: Window) -> tuple[IntArray, IntArray]:
        """Raster rows and columns of :meth:`far_window`; -1 outside the raster."""
        return self._indices(self.far_window(chunk))

    def _indices(self, window: Window) -> tuple[IntArray, IntArray]:
        rows = indices(window.row, window.row_end, self.shape[0])
        return rows, indices(window.col, window.col_end, self.shape[1], periodic=self.periodic)

    def core(self, chunk: Window) -> tuple[slice, slice]:
        """Where `chunk` lies in its window."""
        window = self.window(chunk)
        rows = slice(chunk.row - window.row, chunk.row_end - window.row)
        return rows, slice(chunk.col - window.col, chunk.col_end - window.col)


def result_dtype(dtype: np.dtype[Any], job: FillJob | None = None) -> np.dtype[Any]:
    """The fields of a filled cell, where `dtype` is that of the values.

    Of numbers and directions value, standard error, tail (see :mod:`geonp.inference.student`) and flag. Of classes
    value, probability, that of each of :attr:`FillJob.categories` if there are any, and flag. Of a classifier the
    number of the class, the probability of each class and flag.
    """
    value, flag = ("value", dtype), ("flag", np.int8)
    if job is not None and job.predictor.classes:
        return np.dtype([value, ("probability", np.float32, (job.predictor.classes,)), flag])
    if job is not None and job.kind is Kind.CLASSES:
        every = [("class_probability", np.float32, (len(job.categories),))] if job.categories else []
        return np.dtype([value, ("probability", np.float32), *every, flag])
    return np.dtype([value, ("standard_error", dtype), ("tail", np.float32), flag])


def quantile_of(result: npt.NDArray[np.void], level: float) -> FloatArray:
    """A quantile of the predictive distribution of each cell, in the dtype of the values."""
    quantile = student.quantile(level, result["value"], result["standard_error"], result["tail"])
    return within(quantile, result["value"].dtype)


def within(values: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
    """`values` as `dtype`, whose largest number replaces those beyond it."""
    return np.asarray(np.clip(values, np.finfo(dtype).min, np.finfo(dtype).max), dtype)


def as_read(values: FloatArray, flag: npt.NDArray[np.int8] | int, job: FillJob | None = None) -> npt.NDArray[np.void]:
    """The result for cells that keep their value, or stay empty: values as they were read, with the given flags."""
    result = np.empty(values.shape, result_dtype(values.dtype, job))
    result["value"], result["flag"] = values, flag
    missing = np.isnan(values)
    if job is not None and job.predictor.classes:
        ones = values[..., None] == np.arange(job.predictor.classes)
        result["probability"] = np.where(missing[..., None], np.nan, ones)
    elif job is not None and job.kind is Kind.CLASSES:
        result["probability"] = np.where(missing, np.nan, 1.0)
        for k, one in enumerate(job.categories):
            result["class_probability"][..., k] = np.where(missing, np.nan, values == one)
    else:
        result["standard_error"] = result["tail"] = np.where(missing, np.nan, 0.0)
    return result


def unfilled(
    values: FloatArray, domain_mask: BoolArray, core: tuple[slice, slice], job: FillJob
) -> tuple[BoolArray, BoolArray, BoolArray, npt.NDArray[np.void]]:
    """Masks of a window: missing cells, context and cells that may be filled; and its core before any is filled."""
    observed = ~np.isnan(values)
    missing, context_mask = domain_mask & ~observed, domain_mask & observed
    flag = np.where(observed, FillFlag.OBSERVED, np.where(domain_mask, FillFlag.BEYOND_LIMIT, FillFlag.OUTSIDE_DOMAIN))
    result = as_read(values[core], flag[core].astype(np.int8), job)
    return missing, context_mask, missing & near(context_mask, job.max_distance), result


def fill_window(
    values: FloatArray,
    domain_mask: BoolArray,
    chunk: Window,
    job: FillJob,
    others: FloatArray | None = None,
    covariates: Sequence[Layer] = (),
    far: Callable[[], FloatArray] | None = None,
) -> npt.NDArray[np.void]:
    """Fill the missing cells of a chunk from the window around it.

    Parameters
    ----------
    values : array
        ``job.window(chunk).shape``: NaN where missing or outside the raster; numbers of classes for a classifier.
    domain_mask : array
        Same shape: True inside the valid domain. Cells outside are neither filled nor used as context.
    chunk : Window
        Rows and columns to fill, in the raster.
    job : FillJob
        The job of the whole raster.
    others : array, optional
        ``(slices, rows, cols)``: the same window in neighbouring slices, NaN where missing, see
        :mod:`geonp.inference.stack`.
    covariates : sequence of Layer
        Co-located fields in the same window, and known errors of the observations.
    far : callable, optional
        Reads the values of ``job.far_window(chunk)``, NaN where missing or outside the domain; called for wide gaps.

    Returns
    -------
    array
        ``chunk.shape``, with the fields of :func:`result_dtype`; observed cells are unchanged. With a `warping`, the
        prediction of filled cells is of latent values.

    Raises
    ------
    PredictionError
        When the model returns a value that is not finite.
    """
    core, classes = job.core(chunk), job.predictor.classes
    missing, context_mask, fillable, result = unfilled(values, domain_mask, core, job)
    if not fillable[core].any():
        return result
    if others is not None:
        others = np.where(domain_mask, others, np.nan)
    values, covariates = latent(values, covariates, job.warping)
    # blocks have no covariates, and those of censored values are neither censored nor observed
    usable = job.warping is None and all(layer.known_errors for layer in covariates)
    beyond = None if far is None or not usable else _far(far, missing, context_mask, chunk, job)
    predicted = _predict(values, missing, context_mask, fillable, chunk, job, others, covariates, beyond)
    predicted = predicted[(slice(None), *core)]
    filled = fillable[core] & np.isfinite(predicted[0])
    result["flag"][filled] = FillFlag.FILLED
    if classes:
        result["probability"][filled] = predicted[:, filled].T
        result["value"][filled] = predicted[:, filled].argmax(0)
    else:
        for name, outputs in zip(("value", "standard_error", "tail"), predicted, strict=True):
            result[name][filled] = within(outputs[filled], result[name].dtype)
    return result


def _predict(
    values: FloatArray,
    missing: BoolArray,
    context_mask: BoolArray,
    fillable: BoolArray,
    chunk: Window,
    job: FillJob,
    others: FloatArray | None,
    covariates: Sequence[Layer],
    far: FarContext | None,
) -> FloatArray:
    """Outputs ``(outputs, rows, cols)`` for the fillable cells of the window that the chunk needs, NaN elsewhere."""
    rows, cols = job.cells(chunk)
    # only what varies slowly may be interpolated, and covariates need not
    alone = all(layer.known_errors for layer in covariates)
    supported = support(fillable, rows, cols) if alone else fillable
    if others is not None:
        known = np.isfinite(others).any(0)
        supported = supported | (fillable & known)
    wanted = wanted_cells(fillable, supported, job.core(chunk))
    tiles = tiles_of(values, context_mask, missing, wanted, job, covariates=covariates, far=far)
    predicted = _blend(tiles, values.shape, rows, cols, job)
    if others is not None:
        stack = np.where(context_mask, values, np.nan), others
        tiles = tiles_of(values, context_mask & known, missing, wanted & known, job, stack)
        from_stack = _blend(tiles, values.shape, rows, cols, job)
        # at the shores of a gap, neighbouring slices with gaps of their own may predict worse than the slice alone
        better = (from_stack[1] < predicted[1]) | (np.isfinite(from_stack[1]) & np.isnan(predicted[1]))
        predicted = np.where(better, from_stack, predicted)
    between(predicted, fillable, supported, rows, cols)
    return predicted


def _far(
    read: Callable[[], FloatArray], missing: BoolArray, context_mask: BoolArray, chunk: Window, job: FillJob
) -> FarContext | None:
    """Far context of the tiles of a chunk; None where no gap is wide, or the model reads no far context."""
    neighbourhood, window = job.predictor.neighbourhood, job.window(chunk)
    if not neighbourhood.far:
        return None
    depth = depths(context_mask)
    if not reaches_far(depth, missing, job.core(chunk), neighbourhood.tile_px):
        return None
    sums = block_sums(read(), job.far_window(chunk), neighbourhood)
    first, period = np.array([window.row, window.col]), job.shape[1] if job.periodic else None
    return FarContext(sums, depth, first, neighbourhood, job.seed, period)


def _blend(
    tiles: list[Tile], shape: tuple[int, ...], rows: IntArray, cols: IntArray, job: FillJob
) -> npt.NDArray[np.float64]:
    """Blended outputs ``(outputs, rows, cols)`` for the targets of all tiles, NaN elsewhere."""
    ordered = in_batches(tiles, job.predictor.batch_size)

    def name(tile: Tile) -> str:
        row, col = divmod(int(tile.targets[0]), cols.size)
        return f"for the tile around row {rows[row]}, column {cols[col]}"

    total = stitch(ordered, shape[0] * shape[1], job.predictor, len(ordered), name)
    return blended(total).reshape(-1, *shape)


def tiles_of(
    values: FloatArray,
    context_mask: BoolArray,
    missing: BoolArray,
    wanted: BoolArray,
    job: FillJob,
    stack: tuple[FloatArray, FloatArray] | None = None,
    covariates: Sequence[Layer] = (),
    far: FarContext | None = None,
) -> list[Tile]:
    """Tiles with wanted cells and enough context, in ascending order of their number of targets.

    With a `stack`, the values of this slice and of others, tiles see a regression on the latter.
    """
    neighbourhood, frame = job.predictor.neighbourhood, job.frame
    px, width = neighbourhood.tile_px, missing.shape[1]
    period = job.shape[1] if job.periodic else None
    tiles = []
    reached = overlaps(context_mask, neighbourhood)
    for corners in groups(missing, context_mask, frame, neighbourhood):
        members, box = frame + corners, np.array([corners.min(0), corners.max(0) + px]) + frame
        # a tile off the lattice holds a single gap, and overlaps with no other
        lap = 0 if (corners % px).any() else neighbourhood.overlap_px
        patch = framed(box, lap)
        weights = wanted[patch] * np.sum(
            [blend_weights(reached[patch], member - box[0], px, lap) for member in members], 0
        )
        t_row, t_col = np.nonzero(weights)
        if not t_row.size:
            continue
        gap_mask = within_tiles(members - box[0], missing[framed(box, 0)], px)
        places, means = NO_BLOCKS if far is None else far.of(box, gap_mask)
        cells = replace(neighbourhood, n_context=neighbourhood.n_context - means.size)
        context = choose_context(context_mask, box, gap_mask, cells, job.seed, period)
        if context.size + means.size < neighbourhood.min_context:
            continue
        middle, errors = (box[0] + box[1] - 1) / 2, known_errors(covariates, context)
        targets = (t_row + patch[0].start) * width + t_col + patch[1].start
        tile = Tile(
            np.concatenate([locations(context, width, middle), np.float32(places - middle)]),
            np.concatenate([values.ravel()[context], means]).astype(values.dtype, copy=False),
            locations(targets, width, middle),
            targets,
            weights[t_row, t_col],
            covariates=columns(covariates, context, targets),
            errors=None if errors is None else np.pad(errors, (0, means.size)),
        )
        tile = without_piles(tile, job.warping, job.predictor)
        if stack is None:
            tiles.append(tile)
            continue
        m_row, m_col = np.nonzero(missing[patch])
        gap = (m_row + patch[0].start) * width + m_col + patch[1].start
        around = framed(box, STACK.frame_px)
        own_values = np.where(shown_once(~np.isnan(stack[0][around]), period), stack[0][around], np.nan)
        others = stack[1].reshape(len(stack[1]), -1)
        pairs = backgrounds(own_values, stack[1][:, *around], others[:, context], others[:, gap])
        place = np.searchsorted(gap, targets)
        for close, whole in pairs:
            # of all cells of the gap, which do not depend on the chunk
            known = np.isfinite(others[:, gap[np.isfinite(whole)]]).mean(1) >= STACK.known
            slices = others[np.ix_(known, context)], others[np.ix_(known, targets)]
            tiles.append(_beside_slices(tile, (close, whole[place]), slices, job.predictor))
    return sorted((tile for tile in tiles if tile.targets.size), key=lambda tile: tile.targets.size)


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
    )
