"""Units of work that nothing else depends on: read a window of the source, fill it, write whole stored chunks.

Each reads what it needs itself, so that a cluster moves no data between its workers, a lost worker costs no more than
the units that it was at, and memory does not grow with the raster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import dask
import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import PredictionError
from geonp.inference.kernel import Filled, Job, fill_window, quantile_of, record
from geonp.inference.stack import beside, read_with
from geonp.io.journal import Journal, Record
from geonp.io.stores import Store
from geonp.raster.casting import Fit
from geonp.raster.metadata import FillFlag
from geonp.raster.nodata import Reader
from geonp.raster.windows import Piece, Window, pieces

__all__ = ["Field", "Unit", "Work", "fail_unit", "fill_unit", "units_of"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Field:
    """A variable to be filled.

    Attributes
    ----------
    name : hashable
    source : Variable
        Unread, without coordinates.
    spatial : tuple
        Its dimensions of rows and of columns.
    read : callable
        Makes numbers of stored values; see :class:`geonp.raster.nodata.Reader`.
    fit : callable
        Gives filled values its dtype; see :func:`geonp.raster.casting.fitting`.
    empty : float
        What stands for an empty cell in it.
    chunks : mapping of dimension to int
        Cells of a unit along each dimension.
    """

    name: Hashable
    source: xr.Variable
    spatial: tuple[Hashable, Hashable]
    read: Reader
    fit: Fit
    empty: float
    chunks: Mapping[Hashable, int]

    @property
    def leading(self) -> tuple[Hashable, ...]:
        """Its other dimensions, in order."""
        return tuple(dim for dim in self.source.dims if dim not in self.spatial)


@dataclass(frozen=True, eq=False)
class Unit:
    """Cells of one variable that are filled and written together.

    Attributes
    ----------
    field : int
        Which of the variables.
    region : mapping of dimension to slice
    key : str
        Its name in the journal: variable and chunk.
    """

    field: int
    region: Mapping[Hashable, slice]
    key: str


@dataclass(frozen=True, eq=False)
class Work:
    """All that units have in common; picklable, and small where the source is a file."""

    fields: tuple[Field, ...]
    domain: Any
    job: Job
    store: Store
    journal: Journal
    quantiles: tuple[float, ...]
    tails: bool

    def gentler(self) -> Work:
        """The same work with half of the tiles in a forward pass."""
        predictor = self.job.predictor
        smaller = replace(predictor, batch_size=max(1, predictor.batch_size // 2))
        return replace(self, job=replace(self.job, predictor=smaller))


def units_of(fields_: tuple[Field, ...]) -> Iterator[Unit]:
    """All units, variable by variable, in the order of their chunks."""
    for i, field in enumerate(fields_):
        dims = field.source.dims
        sizes = [field.source.sizes[dim] for dim in dims]
        counts = [-(-size // field.chunks[dim]) for dim, size in zip(dims, sizes, strict=True)]
        for place in itertools.product(*map(range, counts)):
            region = {
                dim: slice(k * field.chunks[dim], min((k + 1) * field.chunks[dim], size))
                for dim, k, size in zip(dims, place, sizes, strict=True)
            }
            yield Unit(i, region, ".".join(map(str, (i, *place))))


def fill_unit(work: Work, unit: Unit) -> Record:
    """Fill one unit, write it, note it in the journal, and return what was noted.

    Where its own cells can't be read, or the model returns values that are not finite, the unit is written as failed:
    its missing cells are empty and flagged so, and ``error`` of the record says why. Where cells around it can't be
    read, it is filled without them, and the record is marked ``unread``.

    Raises
    ------
    OutputError
        When the unit can't be written.
    """
    with dask.config.set(scheduler="synchronous"):
        return _write(work, unit, *_filled(work, unit))


def fail_unit(work: Work, unit: Unit, reason: str) -> Record:
    """Write one unit as failed, all of its cells empty, and return what was noted."""
    return _write(work, unit, *_failed(work, unit, reason))


def _write(work: Work, unit: Unit, parts: Array, raw: Array, noted: Record) -> Record:
    field = work.fields[unit.field]
    arrays = {"": field.fit(parts["value"], parts["flag"] == FillFlag.FILLED, raw)}
    arrays["_standard_error"] = parts["standard_error"].astype(parts["value"].dtype)
    arrays["_fill_flag"] = parts["flag"]
    if work.tails:
        arrays["_tail"] = parts["tail"]
    order = [(*field.leading, *field.spatial).index(dim) for dim in field.source.dims]
    stored = {f"{field.name}{ending}": array.transpose(order) for ending, array in arrays.items()}
    if work.quantiles:
        levels = [quantile_of(parts, q).transpose(order) for q in work.quantiles]
        stored[f"{field.name}_quantile"] = np.stack(levels)
    work.store.write(stored, unit.region)
    found = {**noted, **_counts(parts["flag"])}
    work.journal.record(unit.key, found)
    return found


def _counts(flag: npt.NDArray[np.int8]) -> Record:
    tally = np.bincount(flag.ravel(), minlength=len(FillFlag))
    return {"cells": flag.size, **{member.name.lower(): int(tally[member]) for member in FillFlag}}


def _filled(work: Work, unit: Unit) -> tuple[Array, Array, Record]:
    """Result with the fields of `Filled`, the source's own values, and what is to be noted of the reading."""
    field, job = work.fields[unit.field], work.job
    rows, cols = (unit.region[dim] for dim in field.spatial)
    chunk = Window(rows.start, rows.stop, cols.start, cols.stop)
    lead = [unit.region[dim] for dim in field.leading]
    shape = (*(s.stop - s.start for s in lead), *chunk.shape)
    try:
        raw = _read(field, lead, rows, cols)
        core = field.read(raw)
    except MemoryError:
        raise
    except Exception as error:  # what readers of files raise has no common class
        return _failed(work, unit, _reason(error))
    infinite = int(np.isinf(raw).sum()) if raw.dtype.kind == "f" else 0
    noted: Record = {"infinite": infinite, "seen": _seen(field, lead, core)}
    out = np.empty(shape, record(core.dtype))
    if np.isfinite(core).all():
        for name, values in (("value", core), ("standard_error", 0), ("tail", 0), ("flag", FillFlag.OBSERVED)):
            out[name] = values
        return out, raw, noted
    window, domain, complete = _window(work, field, lead, chunk, core.dtype)
    others, read = _others(work, field, lead, chunk, window)
    if not (complete and read):
        noted["unread"] = True
    for index in np.ndindex(shape[:-2]):
        try:
            filled = fill_window(window[index], domain, chunk, job, others(index))
        except PredictionError as error:
            noted["error"] = _reason(error)
            empty = np.isnan(core[index])
            errors = np.where(empty, np.nan, 0).astype(core.dtype)
            flag = np.where(empty, FillFlag.FAILED, FillFlag.OBSERVED).astype(np.int8)
            filled = Filled(core[index], errors, errors.astype(np.float32), flag)
        for part in fields(filled):
            out[part.name][index] = getattr(filled, part.name)
    return out, raw, noted


def _seen(field: Field, lead: list[slice], core: Array) -> list[int]:
    """Numbers of the slices of the variable that have an observed cell here."""
    sizes = tuple(field.source.sizes[dim] for dim in field.leading)
    numbers = np.arange(math.prod(sizes)).reshape(sizes)[tuple(lead)]
    return [int(n) for n in np.atleast_1d(numbers[np.isfinite(core).any((-2, -1))])]


def _failed(work: Work, unit: Unit, reason: str) -> tuple[Array, Array, Record]:
    """As :func:`_filled`, of a unit of which nothing is known."""
    field = work.fields[unit.field]
    shape = tuple(unit.region[dim].stop - unit.region[dim].start for dim in (*field.leading, *field.spatial))
    raw = np.full(shape, field.empty, field.source.dtype)
    out = np.empty(shape, record(field.read.dtype))
    out["value"] = out["standard_error"] = out["tail"] = np.nan
    out["flag"] = FillFlag.FAILED
    return out, raw, {"error": reason}


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:300]


def _window(
    work: Work, field: Field, lead: list[slice], chunk: Window, dtype: np.dtype[Any]
) -> tuple[Array, npt.NDArray[np.bool_], bool]:
    """Observed values ``(..., rows, cols)`` around a chunk, the domain there, and whether all of it could be read."""
    shape = work.job.window(chunk).shape
    rows, cols = work.job.cells(chunk)
    values = np.full((*(s.stop - s.start for s in lead), *shape), np.nan, dtype)
    domain = np.zeros(shape, bool)
    ny, nx = (field.source.sizes[dim] for dim in field.spatial)
    for a, b in itertools.product(pieces(rows, (ny,)), pieces(cols, (nx,))):
        place = np.s_[a.offset : a.offset + a.stop - a.start, b.offset : b.offset + b.stop - b.start]
        domain[place] = True
        if work.domain is not None:
            domain[place] = np.asarray(work.domain[a.start : a.stop, b.start : b.stop])
    complete = True
    # first in as few reads as there can be, then, where that fails, chunk by chunk
    for sizes in ((ny, nx), tuple(field.chunks[dim] for dim in field.spatial)):
        complete = True
        down, across = (pieces(i, _cuts(n, size)) for i, n, size in zip((rows, cols), (ny, nx), sizes, strict=True))
        for a, b in itertools.product(down, across):
            place = np.s_[a.offset : a.offset + a.stop - a.start, b.offset : b.offset + b.stop - b.start]
            try:
                values[(..., *place)] = field.read(_read(field, lead, *map(_slice, (a, b), sizes)))
            except MemoryError:
                raise
            except Exception:  # as above
                complete = False
        if complete:
            break
    return values, domain, complete


def _others(
    work: Work, field: Field, lead: list[slice], chunk: Window, window: Array
) -> tuple[Callable[[tuple[int, ...]], Array | None], bool]:
    """What the slices beside one of the unit hold in its `window`, by its index, and whether all could be read."""
    if work.job.across not in field.leading:
        return lambda _: None, True
    axis = field.leading.index(work.job.across)
    own, size = range(lead[axis].start, lead[axis].stop), field.source.sizes[work.job.across]
    every = read_with(own, size)

    def read(start: int, stop: int) -> tuple[Array, bool]:
        if start == stop:
            return window[(slice(None),) * axis + (slice(0),)], True
        beyond = [*lead[:axis], slice(start, stop), *lead[axis + 1 :]]
        found, _, complete = _window(work, field, beyond, chunk, window.dtype)
        if complete or stop - start == 1:
            return found, complete
        # what cannot be read of one slice must not cost those beside it
        return np.concatenate([read(n, n + 1)[0] for n in range(start, stop)], axis), False

    (before, complete), (after, complete_too) = read(every.start, own.start), read(own.stop, every.stop)
    stack = np.concatenate([before, window, after], axis)

    def others(index: tuple[int, ...]) -> Array | None:
        near = [n - every.start for n in beside(own[index[axis]], size)]
        found = [stack[(*index[:axis], n, *index[axis + 1 :])] for n in near]
        return np.stack(found) if found else None

    return others, complete and complete_too


def _cuts(size: int, chunk: int) -> tuple[int, ...]:
    return (*(chunk,) * (size // chunk), *(size % chunk,) * (size % chunk > 0))


def _slice(piece: Piece, chunk: int) -> slice:
    return slice(piece.chunk * chunk + piece.start, piece.chunk * chunk + piece.stop)


def _read(field: Field, lead: list[slice], rows: slice, cols: slice) -> Array:
    """Values as stored in the source, spatial dimensions last."""
    dims = (*field.leading, *field.spatial)
    values = np.asarray(field.source.isel(dict(zip(dims, (*lead, rows, cols), strict=True))).values)
    return values.transpose([field.source.dims.index(dim) for dim in dims])
