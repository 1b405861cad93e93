"""The kernel of every fill: predict the missing cells of one chunk from the window around it.

:func:`fill_window` is a pure function of NumPy arrays and a small picklable job. In-memory, dask and store fills only
schedule it, so the result does not depend on how a raster is chunked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from geonp.inference.censoring import latent
from geonp.inference.covariates import Layer
from geonp.inference.far import FarContext, far_window
from geonp.inference.ground import Ground, SquareCells
from geonp.inference.measurements import Measurements, NearMeasurements
from geonp.inference.nearby import BLOCKS, has_blocks, small_gaps
from geonp.inference.predictor import Predictor
from geonp.inference.series import SERIES
from geonp.inference.stack import STACK, Across, combined, first_positioned
from geonp.inference.stitching import Tile, blended, in_batches, stitch
from geonp.inference.student import Statistics
from geonp.inference.tiles import far_of, tiles_beside, tiles_of
from geonp.inference.tiling import TILING, between, support, wanted_cells
from geonp.inference.warping import Warping
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray, StructArray
from geonp.raster.metadata import FillFlag, Kind
from geonp.raster.surface import Surface
from geonp.raster.variable import Variable
from geonp.raster.windows import Window, indices


@dataclass(frozen=True)
class FillJob:
    """Settings that every chunk of a variable needs; small and picklable.

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
    samples : int
        Number of joint samples, see :mod:`geonp.inference.joint`.
    noise : tuple of int
        Numbers of the variable and the slice, which seed the noise of their samples.
    surface : Surface or None
        Places of the cells if they are not square: distances are then true ones, otherwise counted in cells.
    points : Measurements or None
        Measurements beside the cells of a variable, see :mod:`geonp.inference.measurements`.
    statistics : Statistics
        What is asked of the distributions of counts.
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
    samples: int = 0
    noise: tuple[int, ...] = ()
    surface: Surface | None = None
    points: Measurements | None = None
    statistics: Statistics = field(default_factory=Statistics)

    def of(self, variable: Variable) -> FillJob:
        """The job of a variable."""
        noise = (zlib.crc32(str(variable.name).encode()),)
        points = None if self.points is None or self.points.variable != variable.name else self.points
        return replace(self, kind=variable.kind, categories=variable.categories, noise=noise, points=points)

    def at(self, index: tuple[int, ...]) -> FillJob:
        """The job of a slice."""
        return self if self.points is None else replace(self, points=self.points.of_slice(index))

    def drawing(self, name: object, warping: Warping | None) -> FillJob:
        """The job of scattered measurements of this name."""
        return replace(self, warping=warping, noise=(zlib.crc32(str(name).encode()),))

    @property
    def series(self) -> Across | None:
        """The dimension along which cells without observations in reach are predicted, if any."""
        return first_positioned(self.across) if self.empty_slices else None

    @property
    def frame(self) -> int:
        """Width of the frame around whole tiles that is read for context, `max_distance` and other slices, in cells."""
        farthest = min(self.max_distance or 0.0, max(self.shape))
        compared = SERIES.reach_px if first_positioned(self.across) else STACK.frame_px if self.across else 0
        return max(self.predictor.neighbourhood.reach_px, int(np.ceil(farthest)), compared)

    @property
    def first_col(self) -> int:
        """Column of the raster at which tiles begin."""
        return 0 if self.surface is None else self.surface.first_col

    def parts(self, chunk: Window) -> list[Window]:
        """A chunk, cut at :attr:`first_col`: tiles on both sides of it do not belong to one lattice."""
        if not chunk.col < self.first_col < chunk.col_end:
            return [chunk]
        return [replace(chunk, col_end=self.first_col), replace(chunk, col=self.first_col)]

    def window(self, chunk: Window) -> Window:
        """The window that is read to fill `chunk`: all tiles that predict its cells, and the frame around them.

        Its columns are counted from :attr:`first_col`, and those of `chunk` from the first one of the raster.
        """
        predicted = self.predicted(chunk)
        if self.surface is None:
            return predicted.grown(self.frame)
        reach = max(self.predictor.neighbourhood.reach_px, self.max_distance or 0.0) * self.surface.step
        widest = self.surface.columns_within((predicted.row, predicted.row_end), reach)
        if self.periodic:
            widest = min(widest, -(-(self.shape[1] - predicted.shape[1]) // 2))
        return predicted.grown(self.frame, max(self.frame, widest))

    def margins(self, chunk: Window) -> IntArray:
        """Height and width of the frame of :meth:`window` around :meth:`predicted`."""
        inner, window = self.predicted(chunk), self.window(chunk)
        return np.array([inner.row - window.row, inner.col - window.col])

    def predicted(self, chunk: Window) -> Window:
        """The tiles that predict the cells of `chunk`, in the columns of :meth:`window`."""
        neighbourhood = self.predictor.neighbourhood
        if self.blocked:
            # a block may be filled with the reading of the next
            block = neighbourhood.tile_px * BLOCKS.tiles
            return self._own(chunk).aligned(block).grown(block)
        # the tile around a lone gap may begin up to one side before the last cell of the gap
        margin = TILING.margin_px + max(neighbourhood.overlap_px, neighbourhood.tile_px)
        return self._own(chunk).grown(margin).aligned(neighbourhood.tile_px * neighbourhood.merge)

    @property
    def blocked(self) -> bool:
        """Whether windows hold the blocks around a chunk; the same for all variables of a fill."""
        narrow = self.periodic and self.shape[1] < BLOCKS.tiles * self.predictor.neighbourhood.tile_px
        there = has_blocks(self.predictor.neighbourhood, self.surface) and not narrow
        return self.predictor.nearby and there and not self.across

    @property
    def nearby(self) -> bool:
        """Whether small gaps are filled with readings of blocks, see :mod:`geonp.inference.nearby`."""
        other = self.kind in (Kind.CLASSES, Kind.COUNTS)
        return self.blocked and not (self.smooth or self.warping or self.points or other)

    def _own(self, chunk: Window) -> Window:
        """A chunk in columns that are counted from :attr:`first_col`."""
        turn = self.shape[1] if chunk.col < self.first_col else 0
        return chunk.shifted(turn - self.first_col)

    def cells(self, chunk: Window) -> tuple[IntArray, IntArray]:
        """Raster rows and columns of :meth:`window`; -1 outside the raster."""
        return self._indices(self.window(chunk))

    def far_window(self, chunk: Window) -> Window:
        """The window that tiles deep in a gap read means of blocks from, see :mod:`geonp.inference.far`."""
        return far_window(self.predicted(chunk), self.predictor.neighbourhood)

    def far_cells(self, chunk: Window) -> tuple[IntArray, IntArray]:
        """Raster rows and columns of :meth:`far_window`; -1 outside the raster."""
        return self._indices(self.far_window(chunk))

    def _indices(self, window: Window) -> tuple[IntArray, IntArray]:
        rows, cols = self._lattice(window)
        return rows, np.where(cols < 0, -1, (cols + self.first_col) % self.shape[1])

    def lattice(self, chunk: Window) -> tuple[IntArray, IntArray]:
        """Rows and columns of :meth:`window` on the lattice of tiles, where columns begin at :attr:`first_col`."""
        return self._lattice(self.window(chunk))

    def _lattice(self, window: Window) -> tuple[IntArray, IntArray]:
        rows = indices(window.row, window.row_end, self.shape[0])
        return rows, indices(window.col, window.col_end, self.shape[1], periodic=self.periodic)

    def ground(self, chunk: Window, context_mask: BoolArray) -> Ground | SquareCells:
        """Where the cells of :meth:`window` lie, with its context."""
        if self.surface is None:
            return SquareCells(context_mask, self.shape[1] if self.periodic else None)
        return Ground(self.surface, *self.lattice(chunk), context_mask)

    def supported(self, chunk: Window, fillable: BoolArray) -> BoolArray:
        """Cells of the window that are predicted; those between them are interpolated, see :func:`support`."""
        rows, cols = self.lattice(chunk)
        found = support(fillable, rows, cols)
        return found if self.surface is None else found | (fillable & self.surface.narrow_mask(rows)[:, None])

    def near(self, chunk: Window, context_mask: BoolArray) -> BoolArray:
        """Cells of the window within `max_distance` of its context; all cells if it is None."""
        if self.max_distance is None:
            return np.full(context_mask.shape, True)
        return self.ground(chunk, context_mask).near(self.max_distance)

    def core(self, chunk: Window) -> tuple[slice, slice]:
        """Where `chunk` lies in its window."""
        window, chunk = self.window(chunk), self._own(chunk)
        rows = slice(chunk.row - window.row, chunk.row_end - window.row)
        return rows, slice(chunk.col - window.col, chunk.col_end - window.col)


def result_dtype(dtype: np.dtype[Any], job: FillJob | None = None) -> np.dtype[Any]:
    """The fields of a filled cell, where `dtype` is that of the values.

    Of numbers and directions value, standard error, tail (see :mod:`geonp.inference.student`), flag and joint samples,
    if there are any; of counts also quantiles and exceedances. Of classes value, probability, that of each of
    :attr:`FillJob.categories` if there are any, and flag. Of a classifier the number of the class, the probability of
    each class and flag.
    """
    value, flag = ("value", dtype), ("flag", np.int8)
    if job is not None and job.predictor.classes:
        return np.dtype([value, ("probability", np.float32, (job.predictor.classes,)), flag])
    if job is not None and job.kind is Kind.CLASSES:
        every = [("class_probability", np.float32, (len(job.categories),))] if job.categories else []
        return np.dtype([value, ("probability", np.float32), *every, flag])
    several: list[tuple[str, Any, tuple[int]]] = []
    if job is not None and job.kind is Kind.COUNTS:
        several += [("quantile", dtype, (len(job.statistics.levels),))]
        several += [("exceedance", np.float32, (len(job.statistics.thresholds),))]
    if job is not None and job.samples:
        several += [("sample", dtype, (job.samples,))]
    return np.dtype([value, ("standard_error", dtype), ("tail", np.float32), flag, *several])


def within(values: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
    """`values` as `dtype`, whose largest number replaces those beyond it."""
    return np.asarray(np.clip(values, np.finfo(dtype).min, np.finfo(dtype).max), dtype)


def as_read(values: FloatArray, flag: npt.NDArray[np.int8] | int, job: FillJob | None = None) -> StructArray:
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
        if job is not None and job.kind is Kind.COUNTS:
            result["quantile"] = values[..., None]
            above = values[..., None] > np.array(job.statistics.thresholds)
            result["exceedance"] = np.where(missing[..., None], np.nan, above)
        if job is not None and job.samples:
            result["sample"] = values[..., None]
        result["standard_error"] = result["tail"] = np.where(missing, np.nan, 0.0)
    return result


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a chunk is filled from.

    Attributes
    ----------
    values : array
        ``job.window(chunk).shape``: NaN where missing or outside the raster; numbers of classes for a classifier.
    domain_mask : array
        Same shape: True inside the valid domain. Cells outside are neither filled nor used as context.
    others : array, optional
        ``(slices, rows, cols)``: the same window in neighbouring slices, NaN where missing, see
        :mod:`geonp.inference.stack`.
    covariates : sequence of Layer
        Co-located fields in the same window, and known errors of the observations.
    far : callable, optional
        Reads the values of ``job.far_window(chunk)``, NaN where missing or outside the domain; called for wide gaps.
    """

    values: FloatArray
    domain_mask: BoolArray
    others: FloatArray | None = None
    covariates: Sequence[Layer] = ()
    far: Callable[[], FloatArray] | None = None


def unfilled(inputs: Inputs, chunk: Window, job: FillJob) -> tuple[BoolArray, BoolArray, BoolArray, StructArray]:
    """Masks of a window: missing cells, context and cells that may be filled; and its core before any is filled."""
    values, domain_mask, core = inputs.values, inputs.domain_mask, job.core(chunk)
    observed = ~np.isnan(values)
    if job.surface is not None:
        domain_mask = domain_mask & job.surface.placed_mask(*job.lattice(chunk))
    missing, context_mask = domain_mask & ~observed, domain_mask & observed
    flag = np.where(observed, FillFlag.OBSERVED, np.where(domain_mask, FillFlag.BEYOND_LIMIT, FillFlag.OUTSIDE_DOMAIN))
    result = as_read(values[core], flag[core].astype(np.int8), job)
    return missing, context_mask, missing & job.near(chunk, context_mask), result


def fill_window(inputs: Inputs, chunk: Window, job: FillJob) -> StructArray:
    """Fill the missing cells of a chunk, rows and columns of the raster, from the window around it.

    Raises PredictionError when the model returns a value that is not finite.

    Returns
    -------
    array
        ``chunk.shape``, with the fields of :func:`result_dtype`; observed cells are unchanged. With a `warping`, the
        prediction of filled cells is of latent values.
    """
    core, classes = job.core(chunk), job.predictor.classes
    missing, context_mask, fillable, result = unfilled(inputs, chunk, job)
    points = NearMeasurements.of(job.points, *job.cells(chunk), job.shape[1] if job.periodic else None, job.seed)
    if points is not None and job.max_distance is not None:
        near_points = context_mask.copy()
        near_points.ravel()[points.cells] = True
        fillable = missing & job.near(chunk, near_points)
    if not fillable[core].any():
        return result
    others = None if inputs.others is None else np.where(inputs.domain_mask, inputs.others, np.nan)
    values, covariates = latent(inputs.values, inputs.covariates, job.warping)
    beyond = far_of(inputs.far, missing, context_mask, chunk, job, covariates)
    predicted = _predict(values, missing, context_mask, fillable, chunk, job, others, covariates, (beyond, points))
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
    more: tuple[FarContext | None, NearMeasurements | None],
) -> FloatArray:
    """Outputs ``(outputs, rows, cols)`` for the fillable cells of the window that the chunk needs, NaN elsewhere."""
    rows, cols = job.lattice(chunk)
    # only what varies slowly may be interpolated, and covariates need not
    alone = all(layer.known_errors for layer in covariates)
    supported = job.supported(chunk, fillable) if alone else fillable
    if more[1] is not None:
        supported = supported | (fillable & more[1].around())
    if others is not None:
        supported = supported | (fillable & np.isfinite(others).any(0))
    wanted = wanted_cells(fillable, supported, job.core(chunk))
    nearby = job.nearby and not covariates
    small = small_gaps(values, context_mask, missing, wanted, chunk, job) if nearby else None
    if small is not None:
        missing, wanted = missing & ~small[0], wanted & ~small[0]
    tiles = tiles_of(
        values, context_mask, missing, wanted, chunk, job, covariates=covariates, far=more[0], points=more[1]
    )
    predicted = blend(tiles, chunk, job)
    if small is not None:
        predicted = np.where(*small, predicted)
    if others is not None:
        beside = tiles_beside(values, context_mask, missing, wanted, chunk, job, others)
        predicted = combined(predicted, blend(beside, chunk, job))
    between(predicted, fillable, supported, rows, cols)
    return predicted


def blend(tiles: list[Tile], chunk: Window, job: FillJob) -> Float64Array:
    """Blended outputs ``(outputs, rows, cols)`` of the window for the targets of all tiles, NaN elsewhere."""
    ordered, (rows, cols) = in_batches(tiles, job.predictor.batch_size), job.lattice(chunk)

    def name(tile: Tile) -> str:
        row, col = divmod(int(tile.targets[0]), cols.size)
        return f"for the tile around row {rows[row]}, column {cols[col]}"

    total = stitch(ordered, rows.size * cols.size, job.predictor, len(ordered), name)
    return blended(total).reshape(-1, rows.size, cols.size)
