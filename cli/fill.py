"""``geonp fill IN OUT``."""

from __future__ import annotations

import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .show import table, to_json

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import AbstractContextManager

    import xarray as xr

__all__ = ["fill", "read_mask"]


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("-b", "--bidx", "bands", multiple=True, type=int, help="Band to fill, from 1; repeatable. Default: all.")
@click.option("--variable", "variables", multiple=True, help="Variable to fill; repeatable. Default: all.")
@click.option("--bbox", type=float, nargs=4, metavar="W S E N", help="Only this box, in the raster's coordinates.")
@click.option("--nodata", type=float, help="Stored value of missing cells, instead of the declared one.")
@click.option("--mask", type=click.Path(path_type=Path), help="Raster of the valid domain: cells with 0 stay empty.")
@click.option("--max-distance", type=float, help="Leave cells empty that are farther from data, in cells.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option(
    "--co",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Creation option of the output format; repeatable. GDAL before 3.11 reads Zarr with zarr_format=2 only.",
)
@click.option("-f", "--driver", type=click.Choice(["COG", "GTiff"]), help="GeoTIFF driver. Default: COG.")
@click.option("--model", default="tnpkr-sa", show_default=True, help="Name or path of the model.")
@click.option("--device", help="cpu, cuda, ... Default: a GPU if there is one.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Tiles in one pass. Default: by the free memory.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the choice of far context.")
@click.option(
    "--quantile",
    "quantiles",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Write this quantile too, e.g. 0.05; repeatable.",
)
@click.option("--tails", is_flag=True, help="Write the tails of the distributions too: see the README.")
@click.option("--chunks", type=click.IntRange(min=1), help="Cells of a chunk along y and x. Default: automatic.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Print the plan too.")
@click.option("--progress/--no-progress", default=None, help="Show a progress bar. Default: in a terminal.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def fill(
    source: Path,
    target: Path,
    bands: tuple[int, ...],
    variables: tuple[str, ...],
    bbox: tuple[float, float, float, float] | None,
    nodata: float | None,
    mask: Path | None,
    overwrite: bool,
    options: tuple[str, ...],
    driver: Any,
    chunks: int | None,
    quiet: bool,
    verbose: bool,
    progress: bool | None,
    dry_run: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Fill the gaps of the raster IN and write values, standard errors and flags to OUT.

    IN is a GeoTIFF or another GDAL raster, NetCDF or Zarr. OUT is Zarr (.zarr), NetCDF (.nc) or GeoTIFF (.tif), by its
    extension. Observed cells stay as they are. OUT appears when it is complete.
    """
    from geonp.storage import check_output, open_raster, write_raster

    start = time.perf_counter()
    creation_options = dict(_pair(option) for option in options)
    check_output(target, overwrite=overwrite, driver=driver)
    ds = open_raster(
        source, variables=variables or None, bands=bands or None, bbox=bbox, nodata=nodata, chunks=chunks or "auto"
    )
    settings["mask"] = None if mask is None else read_mask(mask, bbox)
    # Imported only now: torch takes seconds, and a wrong path should be told at once.
    from geonp.filling import infill, plan

    if dry_run or verbose:
        planned = plan(ds, **settings).summary()
        text = to_json(planned) if as_json else table(planned)
        click.echo(text, err=not dry_run)
    if dry_run:
        return
    filled = infill(ds, **settings)
    census = _census(ds)
    if not quiet:
        _note(census)
    with _progress(sys.stderr.isatty() and not quiet if progress is None else progress):
        write_raster(filled, target, driver=driver, overwrite=overwrite, creation_options=creation_options)
    seconds = time.perf_counter() - start
    summary = {"input": str(source), "output": str(target), **_provenance(filled), **_summary(target, census, seconds)}
    if as_json:
        click.echo(to_json(summary))
    elif not quiet:
        click.echo(_sentence(summary))


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"got {option!r}, expected NAME=VALUE", param_hint="--co")
    return name, value


def read_mask(path: Path, bbox: tuple[float, float, float, float] | None) -> xr.DataArray:
    """Read the only variable of the mask at ``path``."""
    from geonp.errors import InputError
    from geonp.storage import open_raster

    ds = open_raster(path, bbox=bbox)
    if len(ds.data_vars) != 1:
        raise InputError(
            f"The mask {str(path)!r} has {len(ds.data_vars)} variables: got {', '.join(map(repr, ds.data_vars))}, "
            f"expected one, with 0 outside the valid domain. Write it to a file of its own."
        )
    return next(iter(ds.data_vars.values()))


def _census(ds: xr.Dataset) -> dict[Hashable, dict[str, int]]:
    """Count cells, slices and what they lack in each variable; refuse one without an observed cell."""
    import numpy as np
    from dask.base import compute

    from geonp.errors import InputError
    from geonp.grid import Grid
    from geonp.metadata import fill_variables, observed

    grid = Grid.from_xarray(ds)
    names = fill_variables(ds)
    tallies = [
        (observed(ds[name]).isnull().sum([grid.y_dim, grid.x_dim]).data, (abs(ds[name].variable) == np.inf).sum().data)
        for name in names
    ]
    census = {}
    for name, (missing_of_slice, infinite) in zip(names, compute(tallies)[0], strict=True):
        missing = int(missing_of_slice.sum())
        if missing == ds[name].size:
            raise InputError(
                f"Variable {name!r} has no observed cell: all {missing} are missing, expected at least one observed. "
                f"Check --nodata and --bbox, or leave the variable out (--variable)."
            )
        census[name] = {
            "cells": ds[name].size,
            "missing": missing,
            "infinite": int(infinite),
            "slices": int(missing_of_slice.size),
            "empty_slices": int((missing_of_slice == math.prod(grid.shape)).sum()),
        }
    return census


def _note(census: dict[Hashable, dict[str, int]]) -> None:
    for name, counts in census.items():
        if counts["infinite"]:
            click.echo(f"{name}: {counts['infinite']:,} infinite values are treated as missing.", err=True)
        if empty := counts["empty_slices"]:
            have, stay = ("has", "stays") if empty == 1 else ("have", "stay")
            click.echo(
                f"{name}: {empty:,} of {counts['slices']:,} slices {have} no observed cell and {stay} empty.", err=True
            )
        if not counts["missing"]:
            click.echo(f"{name}: there are no gaps; it is copied through.", err=True)


def _progress(shown: bool) -> AbstractContextManager[Any]:
    from dask.diagnostics.progress import ProgressBar

    return ProgressBar(out=sys.stderr, minimum=0.5) if shown else nullcontext()


def _provenance(filled: xr.Dataset) -> dict[str, Any]:
    return {key: filled.attrs[f"geonp_{key}"] for key in ("model", "model_version", "weights_sha256")}


def _summary(target: Path, census: dict[Hashable, dict[str, int]], seconds: float) -> dict[str, Any]:
    """Count what became of the missing cells, from the flags in the output."""
    variables = {str(name): {**counts, **_flags(target, str(name))} for name, counts in census.items()}
    filled = sum(counts["filled"] for counts in variables.values())
    return {
        "variables": variables,
        "cells_filled": filled,
        "seconds": round(seconds, 3),
        "cells_per_second": round(filled / seconds, 1),
        "peak_memory_bytes": _peak_memory(),
    }


def _flags(target: Path, name: str) -> dict[str, int]:
    from dask.base import compute

    from geonp.metadata import FillFlag
    from geonp.storage import open_raster

    flag_name = f"{name}_fill_flag"
    ds = open_raster(target)
    if flag_name in ds:
        flags = ds[flag_name]
    else:  # the bands of a GeoTIFF
        (bands,) = ds.data_vars.values()
        flags = bands.isel(
            band=[i for i, label in enumerate(bands.attrs["long_name"]) if label.split()[0] == flag_name]
        )
    counts = compute(*((flags == member).sum() for member in FillFlag))  # in one pass over the file
    return {member.name.lower(): int(count) for member, count in zip(FillFlag, counts, strict=True)}


def _peak_memory() -> int | None:
    """Peak resident memory of this process in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    # macOS counts bytes, Linux kibibytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _sentence(summary: dict[str, Any]) -> str:
    reasons = ("beyond_limit", "outside_domain", "failed")
    empty = {key: sum(counts[key] for counts in summary["variables"].values()) for key in reasons}
    why = ", ".join(f"{count:,} {key.replace('_', ' ')}" for key, count in empty.items() if count)
    left = f", left {sum(empty.values()):,} empty ({why})" if why else ""
    memory = summary["peak_memory_bytes"]
    return (
        f"Filled {summary['cells_filled']:,} cells{left} in {summary['seconds']:.1f} s"
        f"{f' with {memory / 2**20:,.0f} MiB' if memory else ''}: {summary['output']}"
    )
