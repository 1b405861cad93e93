"""Fill a raster of any size into a Zarr store, unit by unit: on threads or a cluster, and after any interruption.

A unit is a chunk of the output (a shard, where it is sharded) of one variable with all that is made of it. Units are
written whole and noted in a journal, so that a job that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from dask.base import tokenize

from geonp.errors import InputError, OutputError
from geonp.fill.infill import LIBRARIES_BYTES, FillPlan, planned, processes_bytes, template
from geonp.fill.request import FillOptions, Raster, Request, prepare
from geonp.fill.units import Field, Unit, Work, units_of
from geonp.fill.workers import executor, processes, run
from geonp.io.files import for_files
from geonp.io.journal import Journal, Record, identity
from geonp.io.stores import Store
from geonp.raster.casting import fitting
from geonp.raster.metadata import FillFlag, kept_encoding
from geonp.raster.nodata import declared_nodata, empty_value, reader, valid_limits
from geonp.raster.windows import chunk_side

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["Report", "fill_store", "plan_store"]

UNIT_CELLS = 2**22
"""Cells of a unit, at most, when slices along another dimension share it."""

JOB = "geonp_job"
"""Attribute of the root of a complete store: the hash of the job that made it."""

COUNTED = ("cells", *(member.name.lower() for member in FillFlag), "infinite")
"""Numbers of cells in a record."""

LAYOUT_OPTIONS = {"zarr_format", "chunk", "sharded"}


@dataclass(frozen=True)
class Report:
    """What became of a job.

    Attributes
    ----------
    variables : mapping
        Cells by name of the variable: ``cells``, ``observed``, ``filled``, ``beyond_limit``, ``outside_domain``,
        ``failed``, ``infinite`` and ``missing`` (all but the observed); and its ``slices`` along other dimensions, of
        them ``empty_slices`` without any observed cell. Empty if the store was complete before.
    units, reused : int
        All units, and how many of them were finished before this call.
    failed : mapping of str to str
        Units that failed, by key, and why. The store is unfinished, and resuming tries them again.
    """

    variables: Mapping[str, Mapping[str, int]]
    units: int
    reused: int
    failed: Mapping[str, str]


def fill_store(
    obj: Raster,
    target: str | os.PathLike[str],
    *,
    chunks: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    creation_options: Mapping[str, str] | None = None,
    progress: Callable[[Record, int, int], object] | None = None,
    **options: Unpack[FillOptions],
) -> Report:
    """Fill a raster into a Zarr store, as :func:`geonp.fill.infill.infill` does, in memory that does not grow with it.

    The store is created at once and says that it is unfinished until all of it is written. Beside it lies a journal,
    ``<target>.journal``, until then.

    Parameters
    ----------
    obj : DataArray or Dataset
        As from :func:`geonp.io.files.open_raster` with ``chunks=None``: each unit reads its part of it, from the
        workers of a cluster too.
    target : str or path
        Of a Zarr store: a path, or a URL such as ``s3://bucket/out.zarr``.
    chunks : int, optional
        Rows and columns of a unit; by default some units for each core, of whole tiles.
    resume : bool
        Go on with an unfinished store; begin where there is none, and do nothing where it is complete.
    overwrite : bool
        Remove what is at `target`, and begin anew.
    workers : int, optional
        Start so many processes on this machine, at most one for each core. By default the cluster of this process's
        Dask client, if it has one, else threads.
    scheduler : str, optional
        Address of a running Dask scheduler.
    storage_options, source_options : mapping, optional
        Of the file systems of `target` and of the file that `obj` was opened from, for fsspec. Never logged or stored.
    creation_options : mapping, optional
        ``zarr_format`` (``"3"`` or ``"2"``), ``chunk`` (rows and columns of a stored chunk; by default the unit's) and
        ``sharded`` (``"yes"``: each unit is one shard).
    progress : callable, optional
        Called after each unit with its record, the number of finished ones, and that of all.
    **options
        Those of :func:`geonp.fill.infill.infill`.

    Raises
    ------
    InputError, ModelError, CheckpointError
        Before anything is written: for what :func:`geonp.fill.infill.infill` refuses, for a layout that parallel
        writers could corrupt, and for a job to resume that differs from the one that began it. At the end: for a
        variable without any observed cell; its store is removed.
    OutputError
        Where `target` exists, or cannot be written; what is finished is kept.
    ClusterError
        When the cluster is lost; what is finished is kept.
    """
    asked = _prepared(obj, options)
    layout = _layout(asked, chunks, creation_options or {})
    fields_ = tuple(_field(asked, name, layout.side) for name in sorted(asked.names, key=str))
    job = _job(asked, layout, source_options, options)
    store = Store(os.fspath(target), dict(storage_options or {}), _digest(job))
    journal = Journal(store.url, store.options)
    _check_elsewhere(asked, store)
    units = list(units_of(fields_))
    done = _begin(asked, store, journal, job, layout, fields_, resume=resume, overwrite=overwrite)
    if done is None:
        return Report({}, len(units), len(units), {})
    todo = [unit for unit in units if unit.key not in done]
    work = Work(fields_, asked.domain, asked.job, store, journal, asked.quantiles, asked.tails)
    reused = len(done)
    with executor(workers, scheduler, asked.job.predictor.device) as (submit, width, shared):
        # a second time what had to do without cells that could not be read, in case they can be now
        for _ in range(2):
            for unit, record in run(work, todo, submit, width, shared):
                done[unit.key] = record
                if progress is not None:
                    progress(record, len(done), len(units))
            todo = [unit for unit in units if "unread" in done[unit.key]]
            if any("error" in record for record in done.values()):
                break
    report = Report(_tally(fields_, units, done), len(units), reused, _failures(fields_, units, done))
    if not report.failed:
        _finish(report, store, journal, job)
    return report


def plan_store(
    obj: Raster, *, chunks: int | None = None, workers: int | None = None, **options: Unpack[FillOptions]
) -> FillPlan:
    """What :func:`fill_store` will do with the same arguments; see :func:`geonp.fill.infill.plan`."""
    asked = _prepared(obj, options)
    side = _layout(asked, chunks, {}).side
    found = planned(asked, {name: _field(asked, name, side).chunks for name in asked.names})
    if workers is None:
        return found
    # each worker has libraries of its own, and threads instead of processes
    others = processes(workers) * LIBRARIES_BYTES - processes_bytes(found.batches, found.device)
    return replace(found, peak_bytes=found.peak_bytes + others)


def _prepared(obj: Raster, options: FillOptions) -> Request:
    asked = prepare(obj, **options)
    if asked.card.classes:
        raise InputError(
            f"the model {asked.card.name} predicts classes, which are not filled into a store unit by unit: fill with "
            "infill(...) and write its result with to_zarr, or geonp fill to .nc"
        )
    if asked.samples:
        raise InputError(
            f"samples are drawn from whole slices, but a store is filled part by part: got samples={asked.samples}, "
            "expected none here; use infill(samples=...) and write its result"
        )
    return asked


@dataclass(frozen=True)
class _Layout:
    side: int
    chunk: int
    sharded: bool
    zarr_format: int


def _layout(asked: Request, chunks: int | None, options: Mapping[str, str]) -> _Layout:
    """Check how the output is cut: no two units may share a stored chunk."""
    unknown = sorted(set(options) - LAYOUT_OPTIONS)
    if unknown:
        expected = ", ".join(sorted(LAYOUT_OPTIONS))
        raise InputError(
            f"Unknown creation option: got {', '.join(unknown)}, expected some of {expected}. Correct --co."
        )
    zarr_format, sharded = options.get("zarr_format", "3"), options.get("sharded", "no").lower()
    if zarr_format not in {"2", "3"}:
        raise InputError(f"No Zarr format {zarr_format!r}: expected 2 or 3. Correct zarr_format (--co).")
    if sharded not in {"yes", "no"} or (sharded == "yes" and zarr_format == "2"):
        raise InputError(
            f"Wrong sharded={options['sharded']!r} (--co): expected yes or no, and Zarr format 3, as format 2 has no "
            "shards."
        )
    cells = sum(asked.ds[name].size for name in asked.names)
    side = chunk_side(cells) if chunks is None else chunks
    chunk = options.get("chunk", str(side))
    if side < 1 or not chunk.isdigit() or int(chunk) < 1 or side % int(chunk):
        raise InputError(
            f"The stored chunks don't divide the units: got chunk={chunk} (--co) and units of {side} cells (--chunks), "
            f"but units that share a stored chunk would overwrite each other's. Choose a divisor of {side}."
        )
    return _Layout(side, int(chunk), sharded == "yes", int(zarr_format))


def _field(asked: Request, name: Hashable, side: int) -> Field:
    source, grid = asked.ds[name], asked.grid
    markers = declared_nodata(source) if asked.nodata is None else (float(asked.nodata),)
    chunks = {grid.y_dim: side, grid.x_dim: side}
    room = max(1, UNIT_CELLS // (min(side, grid.shape[0]) * min(side, grid.shape[1])))
    for dim in reversed([dim for dim in source.dims if dim not in chunks]):
        chunks[dim] = min(room, source.sizes[dim])
        room = max(1, room // source.sizes[dim])
    fit = fitting(source.dtype, markers, kept_encoding(source, markers), valid_limits(source))
    return Field(
        name,
        source.variable,
        (grid.y_dim, grid.x_dim),
        reader(source, asked.nodata),
        fit,
        empty_value(source, markers),
        chunks,
    )


def _job(asked: Request, layout: _Layout, source_options: Any, options: Mapping[str, Any]) -> dict[str, str]:
    """A hash of each thing that the result depends on."""
    source = asked.ds.encoding.get("source")
    # some readers give variables in no particular order
    variables = sorted(
        (str(name), da.dims, da.shape, str(da.dtype), sorted(map(str, da.attrs.items())))
        for name, da in asked.ds.variables.items()
    )
    axes = {str(dim): asked.ds[dim].values for dim in sorted(asked.ds.dims, key=str) if dim in asked.ds.coords}
    lazy = all(asked.ds[name].chunks is None for name in asked.names)
    if isinstance(source, str) and lazy:
        values = identity(source, source_options)
    else:
        values = tokenize(*(asked.ds[name].data for name in sorted(asked.names, key=str)))
    predictor, job = asked.job.predictor, asked.job
    parameters = (job.seed, job.max_distance, job.across, asked.nodata, asked.quantiles, asked.tails)
    return {
        "geonp": version("geonp"),
        "input": tokenize(variables, axes, values),
        "model": tokenize(predictor.sha256, predictor.precision, predictor.device.split(":")[0]),
        "parameters": tokenize(*parameters, asked.domain),
        "layout": tokenize(layout),
    }


def _check_elsewhere(asked: Request, store: Store) -> None:
    """See that the output is not the input, of which nothing would be left to read."""
    found = (asked.ds.encoding, *(da.encoding for da in asked.ds.variables.values()))
    sources = {encoding["source"] for encoding in found if isinstance(encoding.get("source"), str)}
    if any(store.is_at(source) for source in sources):
        raise InputError(
            f"The input and the output are one: got {store.url!r} for both, expected another name for the output. "
            "Fill into a new store, and rename it."
        )


def _begin(
    asked: Request,
    store: Store,
    journal: Journal,
    job: dict[str, str],
    layout: _Layout,
    fields_: tuple[Field, ...],
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Record] | None:
    """The records of the units that need not be done again; None where the store is complete."""
    exists, begun = store.exists(), journal.job() is not None
    if resume and exists and begun:
        journal.require_same(job)
        if journal.created():
            store.sweep()
            return {key: record for key, record in journal.records().items() if not {"error", "unread"} & set(record)}
    elif resume and exists:
        if store.attributes().get(JOB) == _digest(job):
            journal.remove()
            return None
        raise InputError(
            f"Nothing to resume: {store.url!r} has no journal, and was not made by this job. Choose another output, or "
            "begin anew with overwrite (--overwrite)."
        )
    if exists and not overwrite and not (resume and begun):
        how = "Go on with resume (--resume)" if begun else "Choose another name"
        raise OutputError(f"The output exists: {store.url!r}. {how}, or pass overwrite (--overwrite).")
    if not begun and store.occupied():
        raise OutputError(
            f"{store.url!r} is no Zarr store, and is not empty: it stays as it is. Choose another name, or remove it."
        )
    ready = for_files(template(asked))
    endings = ("", *(f"_{result}" for result in asked.results))
    made = {f"{field.name}{ending}": field for field in fields_ for ending in endings}
    for name, field in made.items():
        ready[name].encoding.update(_stored_chunks(ready[name], field, layout))
    journal.begin({**job, "units": str(sum(1 for _ in units_of(fields_)))})
    store.create(ready, list(made), layout.zarr_format)
    journal.note_created()
    return {}


def _stored_chunks(array: xr.DataArray, field: Field, layout: _Layout) -> dict[str, tuple[int, ...]]:
    """Encoding of a result whose units are those of `field`; a dimension that only it has is not cut."""
    unit = {dim: min(field.chunks.get(dim, size), size) for dim, size in array.sizes.items()}
    chunks = tuple(min(layout.chunk, n) if dim in field.spatial else n for dim, n in unit.items())
    # a shard is a whole number of chunks, though the raster may end within it
    shards = tuple(-(-n // chunk) * chunk for n, chunk in zip(unit.values(), chunks, strict=True))
    return {"chunks": chunks, **({"shards": shards} if layout.sharded else {})}


def _digest(job: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(job), sort_keys=True).encode()).hexdigest()


def _tally(fields_: tuple[Field, ...], units: list[Unit], done: Mapping[str, Record]) -> dict[str, dict[str, int]]:
    """Sums of the records by variable."""
    found = {}
    for i, field in enumerate(fields_):
        records = [done[unit.key] for unit in units if unit.field == i and unit.key in done]
        slices = int(np.prod([field.source.sizes[dim] for dim in field.leading]))
        counts = {key: sum(record.get(key, 0) for record in records) for key in COUNTED}
        counts["missing"] = counts["cells"] - counts["observed"]
        seen = {index for record in records for index in record.get("seen", [])}
        found[str(field.name)] = {**counts, "slices": slices, "empty_slices": slices - len(seen)}
    return found


def _failures(fields_: tuple[Field, ...], units: list[Unit], done: Mapping[str, Record]) -> dict[str, str]:
    """Which units failed, where they are, and why: those that could not be filled, else those filled with less."""
    found = {unit: done[unit.key]["error"] for unit in units if "error" in done[unit.key]}
    if not found:
        less = "cells around could not be read, though later they could"
        found = {unit: less for unit in units if "unread" in done[unit.key]}
    places = {
        unit.key: ", ".join(f"{dim}={part.start}:{part.stop}" for dim, part in unit.region.items()) for unit in found
    }
    return {unit.key: f"{fields_[unit.field].name}[{places[unit.key]}]: {why}" for unit, why in found.items()}


def _finish(report: Report, store: Store, journal: Journal, job: dict[str, str]) -> None:
    """Declare the store complete, unless there was nothing to fill it from."""
    for name, counts in report.variables.items():
        if not counts["observed"]:
            store.remove()
            journal.remove()
            raise InputError(
                f"Variable {name!r} has no observed cell: all {counts['cells']} are missing, expected at least one "
                f"observed. Check the nodata value (--nodata) and --bbox, or leave the variable out (--variable)."
            )
    store.complete({JOB: _digest(job)})
    journal.remove()
