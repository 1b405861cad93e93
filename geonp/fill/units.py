"""Units of work of a store: each reads a window of the source, fills it and writes whole stored chunks.

Units exchange no data. A cluster moves nothing between its workers, a lost worker costs only the units it was working
on, and memory does not grow with the raster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np

from geonp.errors import InputError
from geonp.fill.bounds import mapped
from geonp.fill.doubts import Glance
from geonp.fill.options import FillOptions
from geonp.fill.outputs import Output
from geonp.fill.region import VariableSource, described, fill_region
from geonp.fill.surroundings import Index, Region
from geonp.inference.kernel import FillJob, as_read
from geonp.inference.warping import Warping
from geonp.io.journal import Journal, Record
from geonp.io.stores import Store
from geonp.raster.arrays import Array
from geonp.raster.covariates import Covariate
from geonp.raster.gap_masks import PackedMask
from geonp.raster.metadata import FillFlag
from geonp.raster.variable import Variable
from geonp.raster.windows import Window

COUNTED = ("cells", *(flag.name.lower() for flag in FillFlag.used(empty_slices=False)), "infinite")
"""Numbers of cells in the record of a unit, see :func:`census`."""


@dataclass(frozen=True, eq=False)
class Field:
    """A variable to fill into a store.

    Attributes
    ----------
    variable : Variable
        The variable; its source is lazy and has no coordinates.
    outputs : tuple of Output
        The arrays to write.
    chunks : mapping of dimension to int
        Number of cells of a unit along each dimension.
    covariates : tuple of Covariate
        Covariates, and other variables as slices.
    warping : Warping or None
        Map of bounded values.
    size_masks : mapping or None
        For each slice a mask that is False in gaps larger than `max_gap`.
    """

    variable: Variable
    outputs: tuple[Output, ...]
    chunks: Mapping[Hashable, int]
    covariates: tuple[Covariate, ...] = ()
    warping: Warping | None = None
    size_masks: Mapping[Index, PackedMask] | None = None


@dataclass(frozen=True, eq=False)
class Unit:
    """Cells of a variable that are filled and written together.

    Attributes
    ----------
    field : int
        Index of the variable.
    region : mapping of dimension to slice
        The cells.
    key : str
        Name in the journal: indices of the variable and of the chunk along each dimension.
    """

    field: int
    region: Mapping[Hashable, slice]
    key: str


@dataclass(frozen=True, eq=False)
class Work:
    """Data that all units share; picklable, and small if the source is a file.

    Attributes
    ----------
    fields, domain, job, store, journal, options
    source : Store or None
        The Zarr store that the variables are read from, if it is one.
    """

    fields: tuple[Field, ...]
    domain: Any
    job: FillJob
    store: Store
    journal: Journal
    options: FillOptions
    source: Store | None = None

    def require_input(self, field: Field) -> None:
        """Check that the array of a field exists: the chunks of one that has vanished would be read as missing."""
        name = str(field.variable.name)
        if self.source is not None and not self.source.has_array(name):
            raise InputError(
                f"The input vanished while it was read: got no array {name!r} in {self.source.url!r}. Check the mount "
                "or the connection."
            )

    def halved(self) -> Work:
        """The same work with half the batch size."""
        predictor = self.job.predictor
        smaller = replace(predictor, batch_size=max(1, predictor.batch_size // 2))
        return replace(self, job=replace(self.job, predictor=smaller))


def units_of(fields: tuple[Field, ...]) -> Iterator[Unit]:
    """All units, by variable, in the order of their chunks."""
    for number, field in enumerate(fields):
        sizes = field.variable.source.sizes
        counts = [range(-(-size // field.chunks[dim])) for dim, size in sizes.items()]
        for index in itertools.product(*counts):
            region = {
                dim: slice(k * field.chunks[dim], min((k + 1) * field.chunks[dim], size))
                for k, (dim, size) in zip(index, sizes.items(), strict=True)
            }
            yield Unit(number, region, ".".join(map(str, (number, *index))))


def fill_unit(work: Work, unit: Unit) -> Record:
    """Fill a unit, write it, record it in the journal, and return the record.

    If its cells cannot be read, or the model returns values that are not finite, the unit is written as failed: its
    missing cells are empty and flagged, and the record contains the reason as ``error``. If surrounding cells cannot be
    read, the unit is filled without them, and the record contains ``unread``. Raises OutputError if the unit cannot be
    written, or another job has taken over the store.
    """
    field = work.fields[unit.field]
    job = replace(work.job.of(field.variable), warping=field.warping)
    sources = _sources(work, unit, job)
    with dask.config.set(scheduler="synchronous"):
        try:
            work.require_input(field)
            own = _joined([source.own() for source in sources])
            complete = (np.isfinite(own).all() and not work.job.smooth) or all(
                source.beside_windows is not None and source.complete for source in sources
            )
            work.require_input(field)
        except MemoryError:
            raise
        except Exception as error:  # readers of files raise errors of no common class
            return fail_unit(work, unit, described(error))
        try:
            parts = [fill_region(source.region, source, job, keep_going=True) for source in sources]
            if any(source.far_complete for source in sources):
                work.require_input(field)
        except InputError as error:  # of the mask, or an input that vanished
            return fail_unit(work, unit, described(error))
        result, failure = _joined([part for part, _ in parts]), next((why for _, why in parts if why), "")
        # far windows and the slices that inform an empty one are read as they are needed
        complete = complete and bool(np.isfinite(own).all() or all(source.complete for source in sources))
        note: Record = {} if complete else {"unread": True}
        if failure:
            note["error"] = failure
        return _write(work, unit, result, _joined([source.stored for source in sources]), note)


def _sources(work: Work, unit: Unit, job: FillJob) -> list[VariableSource]:
    """The parts of a unit, see :meth:`geonp.inference.kernel.FillJob.parts`."""
    field, region = work.fields[unit.field], _region(work, unit)
    chunks = tuple(field.chunks[dim] for dim in field.variable.spatial)
    return [
        VariableSource(
            field.variable,
            replace(region, chunk=part),
            job,
            work.domain,
            chunks,  # type: ignore[arg-type]
            field.covariates,
            size_masks=field.size_masks,
        )
        for part in job.parts(region.chunk)
    ]


def _joined(parts: list[Array]) -> Array:
    """Parts of a unit side by side; a single one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def fail_unit(work: Work, unit: Unit, why: str) -> Record:
    """Write a unit as failed, with all of its cells empty, and return its record."""
    variable, shape = work.fields[unit.field].variable, _region(work, unit).shape
    stored = np.full(shape, variable.empty, variable.source.dtype)
    result = as_read(np.full(shape, np.nan, variable.read.dtype), FillFlag.FAILED, work.job.of(variable))
    return _write(work, unit, result, stored, {"error": why})


def _region(work: Work, unit: Unit) -> Region:
    variable = work.fields[unit.field].variable
    rows, cols = (unit.region[dim] for dim in variable.spatial)
    lead = tuple(range(unit.region[dim].start, unit.region[dim].stop) for dim in variable.leading)
    return Region.of(variable, lead, Window(rows.start, rows.stop, cols.start, cols.stop), work.job)


def _write(work: Work, unit: Unit, result: Array, stored: Array, note: Record) -> Record:
    field = work.fields[unit.field]
    dims = (*field.variable.leading, *field.variable.spatial)
    order = [dims.index(dim) for dim in field.variable.source.dims]
    arrays = {}
    if field.warping is not None:
        result = mapped(result, field.warping, work.options)
    for output in field.outputs:
        values, extra = output.from_result(result, stored), output.along is not None
        arrays[output.name] = values.transpose([*range(extra), *(n + extra for n in order)])
    work.journal.require_owner()
    work.store.write(arrays, unit.region)
    observed_mask, source = result["flag"] == FillFlag.OBSERVED, field.variable.source
    parts = math.prod(-(-size // field.chunks[dim]) for dim, size in source.sizes.items())
    record = {
        **note,
        **census(result["flag"], stored, _region(work, unit).lead, field.variable.shape[:-2]),
        "glance": Glance.at(stored, observed_mask, field.variable, parts).as_json(),
    }
    work.journal.record(unit.key, record)
    return record


def census(flag: Array, stored: Array, lead: tuple[range, ...], sizes: tuple[int, ...]) -> Record:
    """Numbers of cells of a region ``(*leading, rows, cols)``, and the indices of its slices with an observed cell.

    The region has the slices `lead` along the leading dimensions of the variable, which have `sizes`.
    """
    by_flag = np.bincount(flag.ravel(), minlength=len(FillFlag))
    numbers = np.arange(math.prod(sizes)).reshape(sizes)[tuple(slice(part.start, part.stop) for part in lead)]
    return {
        "cells": flag.size,
        **{flag.name.lower(): int(by_flag[flag]) for flag in FillFlag.used(empty_slices=False)},
        "filled": int(by_flag[FillFlag.FILLED] + by_flag[FillFlag.FILLED_ACROSS]),
        "infinite": int(np.isinf(stored).sum()) if stored.dtype.kind == "f" else 0,
        "seen": np.atleast_1d(numbers[(flag == FillFlag.OBSERVED).any((-2, -1))]).tolist(),
    }
