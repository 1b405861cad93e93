"""One region of a variable: read what surrounds it and fill it, slice by slice.

Dask tasks and units of stores differ only in their :class:`Source`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

import numpy as np

from geonp.errors import PredictionError, reason
from geonp.fill.domain import read_domain
from geonp.fill.surroundings import Index, Placement, Region
from geonp.inference.classes import fill_classes
from geonp.inference.counts import fill_counts
from geonp.inference.covariates import Layer
from geonp.inference.directions import fill_directions
from geonp.inference.error_field import FieldErrors
from geonp.inference.joint import draw_samples
from geonp.inference.kernel import FillJob, Inputs, as_read, fill_window, result_dtype, within
from geonp.inference.nearly_empty import Stacked, combine_nearly_empty, errors_of_empty
from geonp.inference.series import SERIES, predict_slice
from geonp.inference.smoothing import fill_smooth
from geonp.inference.stack import STACK, first_positioned
from geonp.raster.arrays import Array, BoolArray, IntArray
from geonp.raster.covariates import Covariate
from geonp.raster.metadata import FillFlag, Kind
from geonp.raster.variable import Variable
from geonp.raster.windows import Piece, Window, pieces

logger = logging.getLogger(__name__)

Cells = tuple[IntArray, IntArray]

FILLS = {
    Kind.NUMBERS: fill_window,
    Kind.CLASSES: fill_classes,
    Kind.DIRECTIONS: fill_directions,
    Kind.COUNTS: fill_counts,
}
"""The function that fills a window, by what the values are."""

PREDICTED = ("value", "standard_error", "tail")
"""The fields of a prediction of numbers."""


class Source(Protocol):
    """Reads a region and the window around it. Slices are indexed as in the whole variable."""

    def own(self) -> Array:
        """Values of the region as floats, NaN where missing: ``(..., rows, cols)``."""

    def domain_mask(self, index: Index) -> BoolArray:
        """Mask of the valid domain of one slice in the window; False outside the raster."""

    def window(self, index: Index) -> Array:
        """Values of one slice in the window as floats; NaN where missing and outside the raster."""

    def covariates(self, index: Index) -> list[Layer]:
        """Covariates of one slice in the window, with their gaps filled where that is possible."""

    def far(self, index: Index) -> Array:
        """Values of one slice in the far window as floats; NaN where missing, outside the raster or the domain."""


def fill_region(region: Region, source: Source, job: FillJob, *, keep_going: bool = False) -> tuple[Array, str]:
    """Fill a region of a variable.

    Raises PredictionError when the model fails, unless `keep_going`.

    Returns
    -------
    result : array
        ``region.shape``, with the fields of :func:`geonp.inference.kernel.result_dtype`.
    error : str
        With `keep_going`, the last error of the model: the missing cells of these slices are flagged as failed.
    """
    own, failure = source.own(), ""
    if np.isfinite(own).all() and not job.smooth:
        return as_read(own, FillFlag.OBSERVED, job), failure
    result = np.empty(own.shape, result_dtype(own.dtype, job))
    fill = fill_smooth if job.smooth else FILLS[job.kind]
    nearly_empty = region.positioned and fill is fill_window and not (job.points or job.predictor.classes)
    held = 1 + STACK.slices * len(region.beside) + SERIES.slices * len(region.series)
    window = lru_cache(maxsize=held)(source.window)
    for place, index in zip(np.ndindex(own.shape[:-2]), itertools.product(*region.lead), strict=True):
        layers, domain_mask = source.covariates(index), source.domain_mask(index)
        others = [window(other) for other in region.neighbours(index)]
        others = others if job.warping is None else [job.warping.to_latent(other) for other in others]
        others += [layer.values for layer in layers if layer.slice]
        known = [layer for layer in layers if not layer.slice]
        try:
            stack = np.stack(others) if others else None
            inputs = Inputs(window(index), domain_mask, stack, known, partial(source.far, index))
            filled = fill(inputs, region.chunk, job.at(index))
            errors: list[FieldErrors] = []
            if nearly_empty and not any(layer.known_errors for layer in known):
                errors += _combine_nearly_empty(filled, inputs, region, index, window, job)
            if region.series:
                errors += _fill_from_others(filled, region, index, window, domain_mask, job)
            if job.samples:
                draw_samples(filled, inputs, region.chunk, replace(job, noise=(*job.noise, *index)), errors)
        except PredictionError as error:
            if not keep_going:
                raise
            failure = described(error)
            flag = np.where(np.isnan(own[place]), FillFlag.FAILED, FillFlag.OBSERVED).astype(np.int8)
            filled = as_read(own[place], flag, job)
        result[place] = filled
    return result, failure


def _fill_from_others(
    filled: Array, region: Region, index: Index, window: Callable[[Index], Array], domain_mask: BoolArray, job: FillJob
) -> list[FieldErrors]:
    """Fill cells of a slice that no observation of it reaches from the same cells in other slices, in place.

    With samples, also their errors.
    """
    empty = filled["flag"] == FillFlag.BEYOND_LIMIT
    if not empty.any() or job.series is None:
        return []
    ((axis, _),), informing, core = region.series, region.informing(index), job.core(region.chunk)
    others = _slices([window(other) for other in informing], domain_mask, job)
    positions, wanted = np.array(job.series.positions), np.zeros(domain_mask.shape, bool)
    wanted[core] = empty
    places = positions[[other[axis] for other in informing]]
    predicted = predict_slice(
        others, places, positions[index[axis]], job.series.periods, wanted, job.window(region.chunk)
    )[(slice(None), *core)]
    done = np.isfinite(predicted[0])
    filled["flag"][done] = FillFlag.FILLED_ACROSS
    for name, outputs in zip(PREDICTED, predicted, strict=True):
        filled[name][done] = within(outputs[done], filled[name].dtype)
    if not job.samples or not done.any():
        return []
    wanted[core] = done
    return errors_of_empty(
        others, places - positions[index[axis]], job.series.periods, wanted, job.window(region.chunk)
    )


def _combine_nearly_empty(
    filled: Array, inputs: Inputs, region: Region, index: Index, window: Callable[[Index], Array], job: FillJob
) -> list[FieldErrors]:
    """Combine predictions where a slice has few observations with those from other slices and these few, in place.

    Returns the errors of the latter.
    """
    done, near, dim = (
        filled["flag"] == FillFlag.FILLED,
        region.positioned_neighbours(index),
        first_positioned(job.across),
    )
    if not done.any() or not near or dim is None:
        return []
    own, *others = _slices([inputs.values, *map(window, near)], inputs.domain_mask, job)
    ((axis, _),), positions, wanted = region.positioned, np.array(dim.positions), np.zeros(own.shape, bool)
    wanted[job.core(region.chunk)] = done
    alone = np.full((len(PREDICTED), *wanted.shape), np.nan)
    alone[:, wanted] = [filled[name][done] for name in PREDICTED]
    lags = positions[[other[axis] for other in near]] - positions[index[axis]]
    stacked = Stacked(own, np.stack(others), lags)
    both, errors = combine_nearly_empty(alone, stacked, dim.periods, wanted, job.window(region.chunk))
    for name, outputs in zip(PREDICTED, both, strict=True):
        filled[name][done] = within(outputs[wanted], filled[name].dtype)
    return errors


def _slices(windows: Sequence[Array], domain_mask: BoolArray, job: FillJob) -> Array:
    """Windows of slices ``(slices, rows, cols)``, NaN outside of the domain; latent values of bounded ones."""
    values = np.stack([np.where(domain_mask, each, np.nan) for each in windows])
    return values if job.warping is None else job.warping.without_neighbours(job.warping.to_latent(values))


def assemble(
    out: Array, rows: Sequence[Piece], cols: Sequence[Piece], read: Callable[[int, int], Array | bool]
) -> None:
    """Put the pieces of a window ``(..., rows, cols)`` into their places; ``read(i, j)`` gives one of them."""
    for (i, a), (j, b) in itertools.product(enumerate(rows), enumerate(cols)):
        out[..., a.offset : a.offset + a.stop - a.start, b.offset : b.offset + b.stop - b.start] = read(i, j)


@dataclass(frozen=True, eq=False)
class VariableSource:
    """A :class:`Source` of an array in memory, a file or a store; each region is read at once.

    What cannot be read around the region is treated as missing, see `complete`.

    Attributes
    ----------
    region, job
    mask : array or None
        The domain ``(rows, cols)`` of the whole raster, NumPy or dask.
    chunks : tuple of int
        Rows and columns of the parts that are read one by one after an error.
    beside : tuple of Covariate
        The covariates.
    far_complete : list of bool
        For each far window that was read, whether all of it could be.
    size_masks : mapping or None
        For each slice of the variable, a mask ``(rows, cols)`` that is False in gaps larger than `max_gap`.
    """

    variable: Variable
    region: Region
    job: FillJob
    mask: Any
    chunks: tuple[int, int]
    beside: tuple[Covariate, ...] = ()
    far_complete: list[bool] = field(default_factory=list)
    size_masks: Mapping[Index, Any] | None = None

    @cached_property
    def stored(self) -> Array:
        """Stored values of the region, rows and columns last; errors of readers are raised as they are."""
        chunk = self.region.chunk
        return self.stored_values(self.region.lead, range(chunk.row, chunk.row_end), range(chunk.col, chunk.col_end))

    def own(self) -> Array:
        """See :class:`Source`."""
        return self.variable.read(self.stored)

    def domain_mask(self, index: Index) -> BoolArray:
        """See :class:`Source`."""
        return self._domain_mask if self.size_masks is None else self._domain_mask & self._cut(self.size_masks[index])

    @cached_property
    def _domain_mask(self) -> BoolArray:
        return self._domain(self._cells)

    def far(self, index: Index) -> Array:
        """See :class:`Source`; what cannot be read is treated as missing."""
        cells = self.job.far_cells(self.region.chunk)
        values, complete = self.windows_of(tuple(range(n, n + 1) for n in index), cells)
        self.far_complete.append(complete)
        return np.where(self._domain(cells), values.reshape(values.shape[-2:]), np.nan)

    @cached_property
    def _cells(self) -> Cells:
        return self.job.cells(self.region.chunk)

    def _domain(self, cells: Cells) -> BoolArray:
        return self._cut(self.mask, cells)

    def _cut(self, whole: Any, cells: Cells | None = None) -> BoolArray:
        """Some cells of a mask of the raster, by default those of the window; True inside the raster if it is None."""
        cells = self._cells if cells is None else cells
        mask, (rows, cols) = np.zeros((cells[0].size, cells[1].size), bool), self._pieces(self.job.shape, cells)

        def read(i: int, j: int) -> Any:
            a, b = rows[i], cols[j]
            return whole is None or read_domain(whole, slice(a.start, a.stop), slice(b.start, b.stop))

        assemble(mask, rows, cols, read)
        return mask

    def window(self, index: Index) -> Array:
        """See :class:`Source`."""
        windows, _ = self._windows
        if index not in windows:
            # few regions need the slices that inform an empty one
            windows[index], self._later[index] = self._read_slice(index)
        return windows[index]

    def covariates(self, index: Index) -> list[Layer]:
        """See :class:`Source`."""
        first = [part.start for part in self.region.lead]
        return [place.layer(result[place.within(index, first)]) for place, result in self.beside_windows]

    @cached_property
    def beside_windows(self) -> list[tuple[Placement, Array]]:
        """Each covariate in the window of all slices, its gaps filled; errors of readers are raised as they are."""
        rows, cols = self._pieces(self.job.shape, self._cells)
        found = []
        for covariate in self.beside:
            place = Placement.of(covariate, self.variable)
            lead = tuple(self.region.lead[axis] for axis in place.axes)
            shape = (*map(len, lead), *self.job.window(self.region.chunk).shape)
            result = unknown(shape, result_dtype(covariate.variable.read.dtype))

            def filled(i: int, j: int, covariate: Covariate = covariate, lead: tuple[range, ...] = lead) -> Array:
                part = Region(lead, Window(rows[i].start, rows[i].stop, cols[j].start, cols[j].stop))
                return fill_covariate(covariate, part, self.job, self.mask, self.chunks)

            assemble(result, rows, cols, filled)
            found.append((place, result))
        return found

    @property
    def complete(self) -> bool:
        """Whether all windows could be read."""
        return self._windows[1] and all(self._later.values()) and all(self.far_complete)

    @cached_property
    def _later(self) -> dict[Index, bool]:
        """Whether each slice that was read later could be read."""
        return {}

    def _read_slice(self, index: Index) -> tuple[Array, bool]:
        values, complete = self.windows_of(tuple(range(k, k + 1) for k in index), self._cells)
        return values[(0,) * len(index)], complete

    @cached_property
    def _windows(self) -> tuple[dict[Index, Array], bool]:
        """The windows of all slices that are used, by index, and whether all could be read."""
        parts = [(self.region.lead, self.windows_of(self.region.lead, self._cells))]
        parts += [part for lead in self.region.around for part in self._read_neighbours(lead)]
        windows = {
            index: values[place]
            for lead, (values, _) in parts
            for place, index in zip(np.ndindex(values.shape[:-2]), itertools.product(*lead), strict=True)
        }
        return windows, all(complete for _, (_, complete) in parts)

    def _read_neighbours(self, lead: tuple[range, ...]) -> list[tuple[tuple[range, ...], tuple[Array, bool]]]:
        """Windows of neighbouring slices, at once if possible: an unreadable one does not affect the others."""
        read = self.windows_of(lead, self._cells)
        if read[1]:
            return [(lead, read)]
        alone = [tuple(range(k, k + 1) for k in index) for index in itertools.product(*lead)]
        return [(one, self.windows_of(one, self._cells)) for one in alone]

    def windows_of(self, lead: tuple[range, ...], cells: Cells) -> tuple[Array, bool]:
        """Some cells of some slices, in as few reads as possible, or chunk by chunk after an error."""
        values = np.full((*map(len, lead), cells[0].size, cells[1].size), np.nan, self.variable.read.dtype)
        complete = self._read_pieces(values, lead, self.job.shape, cells)
        return values, complete or self._read_pieces(values, lead, self.chunks, cells)

    def _read_pieces(self, values: Array, lead: tuple[range, ...], size: tuple[int, int], cells: Cells) -> bool:
        """Read cells in parts of `size` rows and columns; NaN and False where a part cannot be read."""
        rows, cols = self._pieces(size, cells)
        complete = True

        def read(i: int, j: int) -> Any:
            nonlocal complete
            parts = [
                range(p.chunk * n + p.start, p.chunk * n + p.stop)
                for p, n in zip((rows[i], cols[j]), size, strict=True)
            ]
            try:
                return self.variable.read(self.stored_values(lead, *parts))
            except MemoryError:
                raise
            except Exception as error:  # readers of files raise errors of no common class
                logger.info("%s: cells around a region cannot be read: %s", self.variable.name, described(error))
                complete = False
                return np.nan

        assemble(values, rows, cols, read)
        return complete

    def _pieces(self, size: tuple[int, int], cells: Cells) -> tuple[list[Piece], list[Piece]]:
        """The parts of a window by rows and by columns, in a raster cut into chunks of `size`."""
        rows, cols = (
            pieces(index, (*(part,) * (n // part), *(n % part,) * (n % part > 0)))
            for index, n, part in zip(cells, self.job.shape, size, strict=True)
        )
        return rows, cols

    def stored_values(self, lead: tuple[range, ...], rows: range, cols: range) -> Array:
        """Values of the variable as they are stored, ``(*leading, rows, columns)``."""
        variable = self.variable
        dims = (*variable.leading, *variable.spatial)
        parts = {dim: slice(part.start, part.stop) for dim, part in zip(dims, (*lead, rows, cols), strict=True)}
        source = variable.source.variable
        values = np.asarray(source.isel(parts).values)
        return values.transpose([source.dims.index(dim) for dim in dims])


def fill_covariate(covariate: Covariate, region: Region, job: FillJob, mask: Any, chunks: tuple[int, int]) -> Array:
    """A region of a covariate with gaps filled from itself, as by :func:`fill_region`; classes and errors as read."""
    source = VariableSource(covariate.variable, region, alone(job), mask, chunks)
    if covariate.as_read:
        return as_read(source.own(), FillFlag.OBSERVED)
    return fill_region(region, source, source.job)[0]


def alone(job: FillJob) -> FillJob:
    """The job that fills the gaps of a covariate from itself."""
    numbers = replace(job, kind=Kind.NUMBERS, categories=(), warping=None, smooth=False, samples=0, points=None)
    return replace(numbers, across=(), empty_slices=False, max_distance=None)


def unknown(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A result without any value."""
    return as_read(np.full(shape, np.nan, dtype["value"]), FillFlag.OUTSIDE_DOMAIN)


def described(error: Exception) -> str:
    """Class, text and causes of an error, for a record."""
    name, text = type(error).__name__, reason(error)
    return (text if text.startswith(name) else f"{name}: {text}")[:300]
