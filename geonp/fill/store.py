"""Fill a raster of any size into a Zarr store, unit by unit, on threads or a cluster; interrupted jobs can continue.

A unit is one or more whole stored chunks of all results of one variable, or a shard if the store is sharded. Finished
units are noted in a journal.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Unpack

import dask
import xarray as xr
from dask.delayed import Delayed

from geonp.errors import InputError, OutputError, redacted, require_callable, warn
from geonp.fill.fingerprint import digest, fingerprint, require_unchanged, values_of
from geonp.fill.gaps import packed_domain, packed_size_masks
from geonp.fill.infill import template, warpings_of
from geonp.fill.layout import Layout, checked_layout
from geonp.fill.measurements import with_measurements
from geonp.fill.options import FillOptions
from geonp.fill.plan import FillPlan, planned, processes_bytes
from geonp.fill.report import Report, check_observed, failures, tally
from geonp.fill.request import Request, prepare
from geonp.fill.session import fill_session
from geonp.fill.signatures import FillKeywords, takes_fill_options
from geonp.fill.units import COUNTED, Field, Unit, Work, units_of
from geonp.fill.variables import Raster
from geonp.fill.workers import Pool, executor, processes, run
from geonp.inference.warping import Warping
from geonp.io.conventions import with_conventions
from geonp.io.engines import Session, is_session
from geonp.io.journal import Journal, Record
from geonp.io.location import is_remote, require_apart, resolved
from geonp.io.output import for_files
from geonp.io.stores import Store
from geonp.io.tags import warn_of_tags
from geonp.raster.covariates import Covariate, require_values
from geonp.raster.parts import MEMORY, PARTS
from geonp.raster.variable import Variable

logger = logging.getLogger(__name__)

JOB = "geonp_job"
"""Attribute of the root of a complete store: the hash of the fingerprint of the job that made it."""


@takes_fill_options
def fill_store(
    obj: Raster,
    target: str | os.PathLike[str] | Session,
    *,
    chunks: int | None = None,
    unit: int | None = None,
    shards: bool = False,
    zarr_format: Literal[2, 3] = 3,
    resume: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    progress: Callable[[Record, int, int], object] | None = None,
    **options: Unpack[FillKeywords],
) -> Report:
    """Fill a raster into a Zarr store, as :func:`geonp.infill` does, unit by unit and in bounded memory.

    A model of classes cannot fill unit by unit.

    The store is created first. Until it is complete it is marked as unfinished, and has a journal beside it,
    ``<target>.journal``.

    Parameters
    ----------
    obj : DataArray or Dataset
        Best opened by :func:`geonp.open_raster` with ``chunks=None``: each unit then reads its part of the file, also
        on the workers of a cluster.
    target : str, path or session
        Path or URL of the store, such as ``s3://bucket/out.zarr``. Or a writable session of Icechunk, which is
        committed at the end: it is filled in threads of this process and not resumed, so that of the options for stores
        only `chunks` is taken.
    chunks : int, optional
        Rows and columns of a stored chunk. By default those of a unit.
    unit : int, optional
        Rows and columns of a unit of work, which is filled and written as a whole; a multiple of `chunks`. By default
        `chunks`; if neither is given, chosen such that every core has several units.
    shards : bool
        Store each unit as one shard, which holds its chunks.
    zarr_format : {3, 2}
        GDAL before 3.11 reads format 2 only.
    resume : bool
        Continue an unfinished store. Start a new one if there is none; do nothing if it is complete.
    overwrite : bool
        Remove what is at `target`, and start a new store.
    workers : int, optional
        Number of processes to start on this machine, at most one per core. By default units run on the cluster of the
        Dask client of this process, or in threads if it has none.
    scheduler : str, optional
        Address of a running Dask scheduler.
    storage_options, source_options : mapping, optional
        Options of the file systems of `target` and of the file that `obj` was opened from, for fsspec. They are neither
        logged nor stored.
    progress : callable, optional
        Called after each unit with its record, the number of finished units, and the number of all units.
    **options
        Options of the fill, as of :func:`geonp.infill`.

    Returns
    -------
    Report
        Numbers of cells by variable, and units that failed.

    Raises
    ------
    InputError, ModelError, CheckpointError
        Before anything is written: as :func:`geonp.infill`, for a layout in which units share chunks, and for a resumed
        job that differs from the one that started the store. At the end: for a variable without any observed cell; the
        store is then removed.
    OutputError
        If `target` exists, cannot be written, or is being written by another job. Finished units are kept.
    ClusterError
        Before anything is written: if no scheduler answers, or workers cannot be started. Later: if the cluster is
        lost. Finished units are kept.

    Examples
    --------
    >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
    >>> dem = dem.where((dem < 20) | (dem > 24))
    >>> report = geonp.fill_store(dem, "filled.zarr")
    >>> report.variables["height"]["filled"]
    141
    >>> dict(xr.open_zarr("filled.zarr").sizes)
    {'y': 24, 'x': 32}
    """
    if is_session(target):
        own = {"unit": unit, "shards": shards, "resume": resume, "overwrite": overwrite, "workers": workers}
        if given := [name for name, value in {**own, "scheduler": scheduler}.items() if value]:
            raise InputError(
                f"an Icechunk session is filled and committed as a whole: got {', '.join(given)}, expected none of "
                f"{', '.join([*own, 'scheduler'])}"
            )
        return fill_session(obj, target, chunks, **options)  # type: ignore[arg-type]
    assert isinstance(target, str | os.PathLike)
    _check_call(progress, resume=resume, overwrite=overwrite)
    request = with_measurements(_prepared(obj, FillOptions.of(options, "fill_store")))
    for covariate in request.covariates:
        if not covariate.known_errors:
            require_values(covariate)
    layout = checked_layout(_cells(request), chunks=chunks, unit=unit, shards=shards, zarr_format=zarr_format)
    warpings = {name: _computed(warping) for name, warping in warpings_of(request).items()}
    fields = tuple(
        replace(_field(request, v, layout.unit), warping=warpings.get(v.name))
        for v in sorted(request.variables, key=lambda v: str(v.name))
    )
    job = fingerprint(request, layout, values := values_of(request, source_options), warpings)
    store = _store_elsewhere(request, os.fspath(target), storage_options, job, overwrite=overwrite)
    journal = Journal(store.url, store.options)
    units = list(units_of(fields))
    if _is_complete(store, journal, job, resume=resume, overwrite=overwrite) and not journal.exists():
        return Report({}, len(units), len(units), {})
    with (
        journal.owned(take_over=resume or overwrite) as journal,
        executor(workers, scheduler, request.job.predictor.device) as pool,
    ):
        # read before anything is written, in case they cannot be read
        source = _source_store(request, source_options)
        fields = tuple(replace(field, size_masks=packed_size_masks(request, field.variable)) for field in fields)
        work = Work(fields, packed_domain(request), request.job, store, journal, request.options.bare, source)
        done = _begin(request, work, job, layout, resume=resume, overwrite=overwrite)
        if done is None:
            return Report({}, len(units), len(units), {})
        report = _fill_units(work, units, done, pool, progress)
        require_unchanged(request, values, source_options)
        if not report.failed:
            _finish(report, work, job, masked=request.options.mask is not None)
    return report


def _check_call(progress: object, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise InputError(
            "resume cannot be combined with overwrite: got both (--resume, --overwrite), expected one of them. resume "
            "continues an unfinished store, and starts a new one if there is none; overwrite starts it again."
        )
    require_callable(progress)


def _computed(warping: Any) -> Warping:
    """The map of a variable, read at once."""
    if isinstance(warping, Delayed):
        with dask.config.set(scheduler="synchronous"):
            warping = warping.compute()
    assert isinstance(warping, Warping)
    return warping


def _fill_units(
    work: Work,
    units: list[Unit],
    done: dict[str, Record],
    pool: Pool,
    progress: Callable[[Record, int, int], object] | None,
) -> Report:
    """Fill the units that are not done, and note them in `done`."""
    reused = len(done)
    logger.info("%s: filling %d units, %d are done", redacted(work.store.url), len(units), reused)
    todo, start = [unit for unit in units if unit.key not in done], time.monotonic()
    # units whose surroundings could not be read are filled again, in case they can be read now
    for again in (False, True):
        if again:
            logger.info("%d units could not read all cells around them, and are filled again", len(todo))
        for unit, record in run(work, todo, *pool):
            done[unit.key] = record
            logger.debug("unit %s: %s", unit.key, record.get("error") or f"{record['filled']:,} cells filled")
            if progress is not None:
                progress(record, len(done), len(units))
        todo = [unit for unit in units if "unread" in done[unit.key]]
        failed = sum("error" in record for record in done.values())
        if failed or not todo:
            break
    seconds = time.monotonic() - start
    logger.info("%s: %d of %d units failed, after %.0f s", redacted(work.store.url), failed, len(units), seconds)
    return Report(tally(work.fields, units, done), len(units), reused, failures(work.fields, units, done))


def plan_store(
    obj: Raster, options: FillOptions, *, chunks: int | None = None, unit: int | None = None, workers: int | None = None
) -> FillPlan:
    """Plan what :func:`fill_store` will do; see :func:`geonp.plan`."""
    request = _prepared(obj, options)
    side = checked_layout(_cells(request), chunks=chunks, unit=unit, shards=False, zarr_format=3).unit
    plan = planned(request, {variable.name: _field(request, variable, side).chunks for variable in request.variables})
    if workers is None:
        return plan
    # each worker loads the libraries, and uses threads instead of processes
    replaced = processes_bytes(plan.batches, plan.device, samples=options.samples > 0)
    others = processes(workers) * MEMORY.libraries - replaced
    return replace(plan, peak_bytes=plan.peak_bytes + others)


def _prepared(obj: Raster, options: FillOptions) -> Request:
    request = prepare(obj, options)
    if request.card.classes:
        raise InputError(
            f"the model {request.card.name} predicts classes, which are not filled into a store unit by unit: fill "
            "with infill(...) and write its result with to_zarr, or geonp fill to .nc"
        )
    return request


def _cells(request: Request) -> int:
    return sum(variable.source.size for variable in request.variables)


def _field(request: Request, variable: Variable, side: int) -> Field:
    shape, source = request.grid.shape, variable.source
    chunks = dict.fromkeys(variable.spatial, side)
    # covariates that change are held for all slices of a unit
    beside = request.beside(variable)
    held = 1 + sum(bool(covariate.variable.leading) for covariate in beside)
    room = max(1, PARTS.cells // (held * min(side, shape[0]) * min(side, shape[1])))
    for dim in reversed(variable.leading):
        chunks[dim] = min(room, source.sizes[dim])
        room = max(1, room // source.sizes[dim])
    # workers need no coordinates, which may be as large as the raster
    bare = replace(variable, source=xr.DataArray(source.variable, name=source.name))
    return Field(bare, request.outputs(variable), chunks, tuple(map(_bare, beside)))


def _bare(covariate: Covariate) -> Covariate:
    """A covariate without coordinates, for workers."""
    variable = covariate.variable
    source = xr.DataArray(variable.source.variable, name=variable.name)
    return replace(covariate, variable=replace(variable, source=source))


def _source_store(request: Request, source_options: Any) -> Store | None:
    """The store that all variables are read from by their names; None for other files."""
    source = request.ds.encoding.get("source")
    if not isinstance(source, str):
        return None
    store = Store(resolved(source), dict(source_options or {}))
    names = [str(variable.name) for variable in request.variables]
    return store if store.exists() and all(map(store.has_array, names)) else None


def _store_elsewhere(request: Request, target: str, options: Any, job: dict[str, str], *, overwrite: bool) -> Store:
    """The store to write, after checks that neither it nor its journal replaces anything else."""
    store = Store(resolved(target), dict(options or {}), digest(job))
    encodings = {"input": (request.ds.encoding, *(da.encoding for da in request.ds.variables.values()))}
    if isinstance(request.options.mask, xr.DataArray):
        encodings["mask"] = (request.options.mask.encoding,)
    if request.flags is not None and request.flags.sources:
        encodings["layer of flags"] = tuple(layer.encoding for _, layer in request.flags.sources)
    if request.covariates:
        encodings["covariate"] = tuple(covariate.variable.source.encoding for covariate in request.covariates)
    for what, found in encodings.items():
        for source in {encoding["source"] for encoding in found if isinstance(encoding.get("source"), str)}:
            require_apart(store.url, {what: source})
    if (model := os.fspath(request.options.model)).endswith(".safetensors"):
        require_apart(store.url, {"model": model, "card of the model": model.removesuffix(".safetensors") + ".json"})
    if overwrite and not is_remote(target) and os.path.islink(target.removeprefix("file://").rstrip("/")):
        raise OutputError(
            f"The output is a link: got {target!r}, which leads to {store.url!r}, and overwriting would remove what is "
            "there. Give that path itself, or remove the link."
        )
    Journal(store.url, store.options).require_own()
    return store


def _is_complete(store: Store, journal: Journal, job: dict[str, str], *, resume: bool, overwrite: bool) -> bool:
    """Whether the store to resume is complete; an error if neither it nor a new one can be written."""
    exists, begun = store.exists(), journal.job() is not None
    if resume and exists and begun:
        journal.require_same(job)
        return False
    if resume and exists:
        if store.attributes().get(JOB) == digest(job):
            return True
        raise InputError(
            f"Nothing to resume: {store.url!r} has no journal, and was not made by this job. Choose another output, or "
            "start a new one with overwrite (--overwrite)."
        )
    if exists and not overwrite and not (resume and begun):
        how = "Continue with resume (--resume)" if begun else "Choose another name"
        raise OutputError(f"The output exists: {store.url!r}. {how}, or pass overwrite (--overwrite).")
    if not begun and store.occupied():
        raise OutputError(
            f"{store.url!r} is not a Zarr store, and not empty: it is left as it is. Choose another name, or remove it."
        )
    return False


def _begin(
    request: Request,
    work: Work,
    job: dict[str, str],
    layout: Layout,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Record] | None:
    """Records of the units that are finished, without any in a new store; None if the store is complete."""
    store, journal, fields = work.store, work.journal, work.fields
    # another job may have ended or begun since this was asked first
    if _is_complete(store, journal, job, resume=resume, overwrite=overwrite):
        journal.remove()
        return None
    if resume and store.exists() and journal.created():
        store.sweep()
        records = {key: record for key, record in journal.records().items() if set(record) >= {*COUNTED, "seen"}}
        return {key: record for key, record in records.items() if not {"error", "unread"} & set(record)}
    filled = template(request, {f.variable.name: f.warping for f in fields if f.warping})
    ready = with_conventions(for_files(filled, request.grid), request.grid)
    warn_of_tags(ready)
    made = {output.name: field for field in fields for output in field.outputs}
    for name, field in made.items():
        ready[name].encoding.update(layout.encoding(ready[name], field.chunks, field.variable.spatial))
    store.require_storable(ready, layout.zarr_format)
    journal.begin({**job, "units": str(sum(1 for _ in units_of(fields)))})
    store.create(ready, list(made), layout.zarr_format)
    journal.note_created()
    return {}


def _finish(report: Report, work: Work, job: dict[str, str], *, masked: bool) -> None:
    """Mark the store as complete; remove it if a variable has no observed cell."""
    store, journal = work.store, work.journal
    journal.require_owner()
    for name, counts in report.variables.items():
        try:
            check_observed(name, counts["cells"], counts["observed"])
        except InputError:
            store.remove()
            journal.remove()
            raise
    store.complete({JOB: digest(job)})
    journal.remove()
    for name, counts in report.variables.items():
        if masked and counts["missing"] and not counts["filled"]:
            warn(
                f"{name}: no missing cell was filled within the mask (--mask). If there are any, it must be True, or "
                "not 0, in the observed cells around them, too."
            )
