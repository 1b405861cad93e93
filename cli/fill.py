"""``geonp fill IN OUT``."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING, Any

import click

from .covariates import covariates, errors, opener, read_beside, split
from .files import FILES, Files, files
from .missing import gaps_where, mask_option, read_mask, read_missing
from .options import (
    distribution,
    file_system,
    fill_option,
    log_to_stderr,
    nodata,
    opening,
    overwrite,
    pair,
    part,
    quantiles,
    quiet,
    storage_option,
)
from .progress import computing, watched
from .show import echo, table, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import xarray as xr


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@part
@fill_option("as_", "--as", type=click.Choice(["numbers", "classes", "counts"]))
@fill_option("class_probabilities", is_flag=True)
@fill_option("circular", is_flag=True)
@nodata
@gaps_where
@mask_option
@fill_option("holes", is_flag=True)
@fill_option("max_gap", metavar="CELLS", type=click.IntRange(min=1))
@fill_option("max_distance", type=float)
@files
@overwrite
@click.option("--resume", is_flag=True, help="Continue an unfinished .zarr; start a new one if there is none.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Number of processes to start, for a .zarr. Default: threads."
)
@click.option("--scheduler", metavar="ADDRESS", help="Running Dask scheduler whose workers fill a .zarr.")
@storage_option
@click.option(
    "--co",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Creation option of the output format; repeatable. GDAL before 3.11 reads Zarr with zarr_format=2 only.",
)
@click.option("-f", "--driver", type=click.Choice(["COG", "GTiff"]), help="GeoTIFF driver. Default: COG.")
@fill_option("model")
@fill_option("device")
@fill_option("batch_size", type=click.IntRange(min=1))
@fill_option("seed", type=int, show_default=True)
@quantiles
@distribution()
@fill_option("tails", is_flag=True)
@fill_option("samples", type=click.IntRange(min=0))
@fill_option(
    "across",
    metavar="DIM",
    multiple=True,
    default=None,
    help="Dimension along which slices are filled from each other, such as time, or variables for those of a Dataset; "
    "repeatable.",
)
@fill_option("empty_slices", is_flag=True)
@covariates
@errors
@fill_option(
    "points",
    metavar="FILE",
    help="Scattered measurements of the variable, such as buoys, that help to fill gaps: a table, as for geonp grid.",
)
@fill_option("point_errors", metavar="COLUMN")
@fill_option("smooth", is_flag=True)
@click.option("--chunks", type=click.IntRange(min=1), help="Rows and columns of a chunk. Default: automatic.")
@quiet
@click.option("-v", "--verbose", count=True, help="Print the plan, and log messages; with -vv also those of each unit.")
@click.option("--progress/--no-progress", default=None, help="Show the progress. Default: unless --quiet.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def fill(
    source: str,
    target: str,
    mask: str | None,
    overwrite: bool,
    resume: bool,
    workers: int | None,
    scheduler: str | None,
    storage: tuple[str, ...],
    options: tuple[str, ...],
    driver: Any,
    chunks: int | None,
    quiet: bool,
    verbose: int,
    progress: bool | None,
    dry_run: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Fill the gaps of the raster IN.

    Values, standard errors and flags are written to OUT. IN is a GeoTIFF or another GDAL raster (a file, a URL,
    zip://a.zip!b.tif, or a dataset in a file as GDAL names it), NetCDF or Zarr. OUT is Zarr (.zarr), NetCDF (.nc) or
    GeoTIFF (.tif), by its extension. Observed cells do not change. NetCDF and GeoTIFF files appear once they are
    complete. Zarr stores are written unit by unit, are marked as unfinished until they are complete, and can be
    continued after any interruption (--resume). They may be on an object store (s3://bucket/name.zarr).
    """
    from geonp.errors import OutputError
    from geonp.inference.checkpoint import load_card

    start = time.perf_counter()
    log_to_stderr(0 if quiet else verbose)
    files = Files.of(target, settings)
    creation_options = dict(pair(option, "--co") for option in options)
    storage_options = file_system(storage)
    in_units = _in_units(target, load_card(settings["model"]).classes > 0, bool(resume or workers or scheduler), files)
    _require_apart(source, files, mask, settings["model"])
    files.check(source, driver, settings, overwrite=overwrite, resume=resume)
    where = opening(settings) | {"chunks": None if in_units else chunks or "auto"}
    layout = _layout(creation_options, chunks) if in_units else {}
    ds = opener(storage_options)(source, **where)
    ds = ds.compute() if settings["class_probabilities"] and not in_units else ds  # then its classes are known
    ds, settings["missing"] = read_missing(settings["missing"], ds, source, where, storage_options)
    settings["mask"] = read_mask(mask, where["bbox"], storage_options)
    settings |= read_beside(settings, ds, source, where, storage_options)
    _require_apart_from_layers(source, files, settings)
    if dry_run or verbose:
        if files.like is not None:
            echo("The plan is that of a fill on the grid of IN: what --like changes is not in it.", err=True)
        _echo_plan(lambda: _plan(ds, in_units, layout, workers, settings), as_json=as_json, alone=dry_run)
        if dry_run:
            return
    shown = not quiet if progress is None else progress
    if in_units:
        how = {"resume": resume, "workers": workers, "scheduler": scheduler, "overwrite": overwrite, **layout}
        counts, attributes, failed = _fill_store(ds, target, storage_options, shown, quiet, **how, **settings)
        files.draw_store(storage_options)
    else:
        creation = {"overwrite": overwrite, "driver": driver, "creation_options": creation_options}
        counts, attributes, failed = *_fill_file(ds, source, files, shown, quiet, creation, settings), ""
    provenance = {key: attributes[f"geonp_{key}"] for key in ("model", "model_version", "weights_sha256")}
    summary = {"input": source, **files.named, **provenance, **_summary(counts, time.perf_counter() - start)}
    if as_json or not quiet:
        echo(to_json(summary) if as_json else _sentence(summary))
    if failed:
        raise OutputError(failed)


def _require_apart(source: str, files: Files, mask: str | None, model: str) -> None:
    """Check that the outputs are none of the files that options name."""
    from geonp.io.files import open_raster
    from geonp.io.location import require_apart, resolved

    read = {} if mask is None else {"mask": split(mask, open_raster)[0]}
    if os.path.isdir(resolved(source)):  # a file may replace its input once it is complete
        read["input"] = source
    if model.endswith(".safetensors"):
        read["model"] = model
    if files.like is not None:
        read["raster of --like"] = str(files.like)
    for output in files.named.values():
        require_apart(output, read)
    if files.target.rstrip("/").lower().endswith(".zarr"):
        require_apart(files.target, {"input": source})


def _require_apart_from_layers(source: str, files: Files, settings: dict[str, Any]) -> None:
    """Check that the outputs are none of the files that layers are read from."""
    from geonp.io.location import require_apart

    for file, what in _layer_files(source, settings).items():
        for output in files.named.values():
            require_apart(output, {what: file})


def _layer_files(source: str, settings: dict[str, Any]) -> dict[str, str]:
    """The files beside `source` that layers are read from, and what each holds."""
    from geonp.io.location import resolved

    conditions = [condition.layer for condition in settings["missing"] or () if not isinstance(condition, str)]
    layers = {"covariate": settings["covariates"] or (), "layer of flags": conditions}
    layers["layer of errors"] = (settings.get("errors"),)
    found = {
        getattr(layer, "encoding", {}).get("source", source): what for what, given in layers.items() for layer in given
    }
    return {file: what for file, what in found.items() if resolved(file) != resolved(source)}


def _in_units(target: str, whole: bool, needed: bool, files: Files) -> bool:
    """Whether the output is a store that is written unit by unit; a usage error where it is not, but has to be.

    Models of classes fill slices as a `whole`, and units have all results.
    """
    store = target.rstrip("/").lower().endswith(".zarr")
    found = store and not whole and not files.apart
    if needed and not found:
        raise click.UsageError(
            "--resume, --workers and --scheduler need an OUT that ends in .zarr, a model of numbers, and no "
            "--values-only, --errors-to, --flags-to or --like."
        )
    return found


def _layout(options: dict[str, str], chunks: int | None) -> dict[str, Any]:
    """Layout of a store, from creation options and --chunks."""
    from geonp.errors import InputError

    known = {"zarr_format", "chunk", "sharded"}
    if unknown := sorted(set(options) - known):
        raise InputError(
            f"Unknown creation option: got {', '.join(unknown)}, expected some of {', '.join(sorted(known))}. "
            "Correct --co."
        )
    sharded, zarr_format, chunk = (options.get(name) for name in ("sharded", "zarr_format", "chunk"))
    if (sharded or "no").lower() not in {"yes", "no"}:
        raise InputError(f"Wrong sharded={sharded!r} (--co): expected yes or no.")
    for name, value in (("zarr_format", zarr_format), ("chunk", chunk)):
        if value is not None and not value.isdecimal():
            raise InputError(f"Wrong {name}={value!r} (--co): expected a whole number.")
    return {
        "chunks": chunks if chunk is None else int(chunk),
        "unit": chunks,
        "shards": (sharded or "no").lower() == "yes",
        "zarr_format": int(zarr_format or 3),
    }


def _echo_plan(plan: Callable[[], Any], *, as_json: bool, alone: bool) -> None:
    """Print a plan; if it is not `alone`, the fill gives the same warnings after it."""
    from geonp.fill.plan import readable

    with warnings.catch_warnings():
        if not alone:
            warnings.simplefilter("ignore")
        planned = plan()
    echo(to_json(planned.summary()) if as_json else table(readable(planned)), err=not alone)


def _plan(ds: xr.Dataset, in_units: bool, layout: dict[str, Any], workers: int | None, settings: dict[str, Any]) -> Any:
    # imported here, since torch takes seconds, and a wrong path should be reported at once
    from geonp.fill.options import FillOptions

    if in_units:
        from geonp.fill.store import plan_store
        from geonp.raster.parts import PARTS

        if sum(array.size for array in ds.data_vars.values()) <= PARTS.counted_cells:
            ds = ds.compute()  # then its gaps are counted
        return plan_store(ds, FillOptions(**settings), chunks=layout["chunks"], unit=layout["unit"], workers=workers)
    from geonp.fill.plan import planned
    from geonp.fill.request import prepare

    return planned(prepare(ds, FillOptions(**settings)), count=True)


def _fill_store(
    ds: xr.Dataset, target: str, storage_options: dict[str, Any], shown: bool, quiet: bool, **options: Any
) -> tuple[dict[str, dict[str, int]], dict[str, Any], str]:
    """Write a Zarr store by whole units; counts of cells, the attributes of the output, and what failed, in words."""
    from geonp.fill.store import fill_store
    from geonp.io.location import is_remote
    from geonp.io.stores import Store

    of_target = storage_options if is_remote(target) else {}
    read = [ds, *(one for one in (*(options["covariates"] or ()), options["errors"]) if hasattr(one, "encoding"))]
    of_source = storage_options if any(is_remote(one.encoding.get("source", "")) for one in read) else {}
    with watched(shown) as each:
        report = fill_store(ds, target, storage_options=of_target, source_options=of_source, progress=each, **options)
    counts: Any = report.variables
    attributes = Store(target, of_target).attributes()
    if not quiet:
        _note(counts, attributes)
        if not report.failed:
            _warn_of_store(target, of_target, counts)
        if not counts:
            echo(f"{target} is complete: there was nothing to do.", err=True)
        elif report.reused:
            echo(f"{report.reused:,} of {report.units:,} units were finished before.", err=True)
    failed = ""
    if report.failed:
        named = "".join(f"\n  {key}: {reason}" for key, reason in report.failed.items())
        failed = (
            f"{len(report.failed)} of {report.units} units failed; their cells are empty and flagged:{named}\n"
            f"{target!r} stays unfinished. Try them again with --resume once the same input can be read, or start "
            "again with --overwrite if it has to be replaced."
        )
    return counts, attributes, failed


def _warn_of_store(target: str, storage_options: dict[str, Any], counts: dict[str, Any]) -> None:
    """Warn if most of what was filled into a store lies outside of the data."""
    from geonp.fill.report import warn_of_extrapolation
    from geonp.io.files import open_raster

    for name, numbers in counts.items():
        flag = f"{name}_fill_flag"
        filled = open_raster(target, variables=[name, flag], chunks=None, storage_options=storage_options or None)
        warn_of_extrapolation(filled[flag], name, numbers, filled[name].attrs)


def _fill_file(
    ds: xr.Dataset,
    source: str,
    files: Files,
    shown: bool,
    quiet: bool,
    creation: dict[str, Any],
    settings: dict[str, Any],
) -> tuple[dict[str, dict[str, int]], dict[Any, Any]]:
    """Write files that appear when they are complete; counts of cells, and the attributes of the output.

    The input and the files of its layers must stay as they are.
    """
    from geonp.fill.infill import infill
    from geonp.fill.report import counted

    at = files.grid
    filled = infill(ds, at=at, support=files.support, **settings)
    filled, count = counted(ds, filled, values_only=files.single, elsewhere=at is not None)
    with computing(shown):
        files.write(filled, ds, creation, [str(ds.encoding.get("source", "")), *_layer_files(source, settings)])
    counts = count()
    if not quiet:
        _note(counts, filled.attrs)
    return counts, filled.attrs


def _note(counts_of: dict[str, dict[str, int]], attributes: Mapping[Any, Any]) -> None:
    for kind in ("classes", "directions"):
        if names := attributes.get(f"geonp_{kind}"):
            echo(f"{names}: filled as {kind}. To fill them as numbers: --as numbers.", err=True)
    for name, counts in counts_of.items():
        if counts["infinite"]:
            echo(f"{name}: {counts['infinite']:,} infinite values are treated as missing.", err=True)
        if (empty := counts["empty_slices"]) and not counts["failed"] and "geonp_empty_slices" not in attributes:
            have, stay = ("has", "stays") if empty == 1 else ("have", "stay")
            of = f"{empty:,} of {counts['slices']:,} slices"
            echo(f"{name}: {of} {have} no observed cell and {stay} empty (see --empty-slices).", err=True)
        if not counts["missing"]:
            echo(f"{name} has no gaps: it is copied unchanged.", err=True)


def _summary(counts: dict[str, dict[str, int]], seconds: float) -> dict[str, Any]:
    from geonp.inference.parallel import peak_bytes

    filled = sum(numbers["filled"] for numbers in counts.values())
    return {
        "variables": counts,
        "cells_filled": filled,
        "seconds": round(seconds, 3),
        "cells_per_second": round(filled / seconds, 1),
        "peak_memory_bytes": peak_bytes(),
    }


def _sentence(summary: dict[str, Any]) -> str:
    reasons = ("beyond_limit", "outside_domain", "failed")
    empty = {key: sum(counts[key] for counts in summary["variables"].values()) for key in reasons}
    why = ", ".join(f"{count:,} {key.replace('_', ' ')}" for key, count in empty.items() if count)
    left = f", left {sum(empty.values()):,} empty ({why})" if why else ""
    memory = summary["peak_memory_bytes"]
    written = ", ".join(summary[key] for key in FILES if key in summary)
    return (
        f"Filled {summary['cells_filled']:,} cells{left} in {summary['seconds']:.1f} s"
        f"{f' with {memory / 2**20:,.0f} MiB' if memory else ''}: {written}"
    )
