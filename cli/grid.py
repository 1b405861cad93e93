"""``geonp grid POINTS OUT``."""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .covariates import read_covariate
from .files import require_all_apart
from .options import distribution, fill_option, overwrite, quantiles, quiet
from .progress import computing, watched
from .show import echo, to_json

if TYPE_CHECKING:
    import xarray as xr

    from geonp.io.measurements import Table


@click.command()
@click.argument(
    "points", metavar="POINTS...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=True, path_type=Path)
)
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--like", type=click.Path(exists=True, path_type=Path), help="Raster whose grid is used.")
@click.option(
    "--at",
    "places",
    type=click.Path(exists=True, path_type=Path),
    help="Table of locations to predict, with columns of the same coordinates. OUT is this table with the results as "
    "further columns, .csv or .parquet.",
)
@click.option("--resolution", nargs=1, type=float, help="Side of a cell, in the unit of the coordinates.")
@click.option(
    "--bounds",
    nargs=4,
    type=float,
    metavar="W S E N",
    help="Edges of the grid; 170 -20 -170 10 is across the date line. Default: around all points.",
)
@click.option("--value", "values", multiple=True, help="Column to interpolate; repeatable. Default: the only one.")
@click.option(
    "--units", multiple=True, help="Units of the values, or of each --value. Default: those in a header: temp [degC]."
)
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Use only rows that meet this, such as date=2020-07, depth<10, quality!=4 or flags&2=0. Repeatable: rows meet "
    "all conditions, but of several COLUMN=VALUE for one column, one.",
)
@click.option("--x", help="Column of the coordinate x. Default: x, lon, longitude or easting.")
@click.option("--y", help="Column of the coordinate y. Default: y, lat, latitude or northing.")
@click.option(
    "--covariate",
    "covariates",
    multiple=True,
    metavar="NAME[=FILE]",
    help="Quantity known at the measurements and on the grid, such as elevation: a column and a variable of --like, "
    "or a raster, which is read where the table has no such column; repeatable.",
)
@click.option("--errors", metavar="COLUMN", help="Column of known standard errors of the measurements.")
@click.option(
    "--repeats",
    type=click.Choice(["mean", "keep"]),
    help="Average the rows of each location, or keep all as repeated measurements. Default: refuse rows of "
    "several times or depths.",
)
@click.option(
    "--time",
    metavar="COLUMN",
    help="Column of times. One field is predicted for each, with the help of the other times.",
)
@click.option(
    "--at-times",
    multiple=True,
    metavar="TIME",
    help="Predict only this time of --time, those of a month such as 2020-07, of a range such as "
    "2020-07-01/2020-07-10, or each 7 days of it, 2020-07/2020-09/7D; repeatable. Default: all.",
)
@click.option(
    "--every",
    metavar="LENGTH",
    help="Length of a period, such as 1D or 6h: one field for each period instead of each time.",
)
@click.option("--crs", help="CRS of the points, such as EPSG:32633. Default: WGS 84 for longitudes and latitudes.")
@fill_option("model")
@click.option("--max-distance", type=float, help="Largest distance to a point, in the unit of the coordinates.")
@fill_option("device")
@fill_option("seed", type=int, show_default=True)
@quantiles
@distribution("value_bounds")
@fill_option("tails", is_flag=True)
@fill_option("samples", type=click.IntRange(min=0))
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="Also draw measurements and maps, or only maps if there are several times (.png, .jpg, .pdf, .svg).",
)
@overwrite
@quiet
@click.option("--progress/--no-progress", default=None, help="Show the progress. Default: unless --quiet.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def grid(
    points: tuple[Path, ...],
    target: Path,
    like: Path | None,
    places: Path | None,
    resolution: float | None,
    bounds: tuple[float, float, float, float] | None,
    values: tuple[str, ...],
    where: tuple[str, ...],
    x: str | None,
    y: str | None,
    crs: str | None,
    covariates: tuple[str, ...],
    value_bounds: Any,
    picture: Path | None,
    overwrite: bool,
    quiet: bool,
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Interpolate measurements to a grid, or to locations.

    Values, standard errors and flags are written to OUT. POINTS is a table: CSV (separated by commas, semicolons, tabs
    or blanks; with columns of coordinates, or of points such as POINT (10.5 47.2)), Parquet, GeoParquet, GeoPackage,
    GeoJSON or a shapefile of points; or NetCDF or Zarr with variables along one dimension, or of a swath with
    two-dimensional longitudes and latitudes. Several files, such as the swaths of a week, are joined to one table. The
    grid is that of another raster (--like), or has square cells (--resolution).
    Covariates are known everywhere: with --covariate elevation=dem.tif, the raster is read in the grid and, unless the
    table has a column elevation, at the measurements. With --time date, OUT has a field for each date. OUT is NetCDF
    (.nc), Zarr (.zarr) or GeoTIFF (.tif), by its extension, and appears once it is complete. With --at, it is a table.
    """
    from geonp.io.measurements import read_table
    from geonp.io.output import write_raster
    from geonp.io.table_output import check_columns, with_results, write_table
    from geonp.io.tables import read_all
    from geonp.scattered.covariates import wanted
    from geonp.scattered.lattices import lattice_around
    from geonp.scattered.selection import selected

    start = time.perf_counter()
    _check_grid(like, resolution, bounds, places, picture)
    _check_outputs(target, picture, places, overwrite=overwrite)
    outputs = [path for path in (target, picture) if path is not None]
    read = [("raster of --like", like or ""), ("table of --at", places or ""), ("model", settings["model"])]
    require_all_apart(outputs, [*(("table", path) for path in points), *read])
    table = selected(read_all(points), where)
    names = list(values) or None
    beside = [read_covariate(text) for text in covariates]
    require_all_apart(outputs, [("covariate", getattr(one, "encoding", {}).get("source", "")) for one in beside])
    at = _opened(like, places)
    apart = [*(one.label for one in wanted(beside, at)), *filter(None, (settings["errors"], settings["time"]))]
    columns = read_table(table, names, x, y, apart, crossed=settings["repeats"] == "mean" or bool(settings["time"]))
    if places is not None:
        check_columns(at, columns.values, settings["time"])
    elif at is None and resolution is not None:
        at = lattice_around(columns, resolution, bounds, crs)
    settings |= {name: settings[name] or None for name in ("at_times", "units")}
    settings |= {"bounds": value_bounds, "values": names, "x": x, "y": y, "crs": crs, "covariates": beside}
    result = _interpolated(table, at, settings, not quiet if progress is None else progress)
    if places is None:
        write_raster(result, target, overwrite=overwrite)
    else:
        write_table(with_results(at, result, settings["time"]), target, overwrite=overwrite)
    drawn: dict[str, Any] = {} if picture is None else _drawn(result, picture, columns, crs, at)
    counts = _counts(columns, result, copies=not (settings["time"] or settings["repeats"]))
    summary = {"input": ", ".join(map(str, points)), "output": str(target), **drawn, **counts}
    summary["seconds"] = round(time.perf_counter() - start, 3)
    if as_json or not quiet:
        echo(to_json(summary) if as_json else _sentence(summary))


def _check_outputs(target: Path, picture: Path | None, places: Path | None, *, overwrite: bool) -> None:
    """Check that the results can be written: as a raster, or as a table of places."""
    from geonp.fill.picture import check_picture
    from geonp.io.output import check_output
    from geonp.io.table_output import check_table

    (check_output if places is None else check_table)(target, overwrite=overwrite)
    if picture is not None:
        check_picture(picture, overwrite=overwrite)


def _opened(like: Path | None, places: Path | None) -> Any:
    """The raster of --like, or the table of --at; None without them."""
    from geonp.io.files import open_raster
    from geonp.io.frames import as_frame
    from geonp.io.tables import read_points

    if like is not None:
        return open_raster(str(like), chunks=None)
    return None if places is None else as_frame(read_points(places))[0]


def _interpolated(table: Any, at: Any, settings: dict[str, Any], shown: bool) -> xr.Dataset:
    """The result of :func:`geonp.interpolate`, with its progress: of the fields, if there are several times."""
    from geonp.scattered.interpolate import interpolate

    if settings["time"] is None:
        with computing(shown):
            return interpolate(table, at, **settings)
    with watched(shown, "fields") as show:
        if show is not None:
            cells = len(at) if hasattr(at, "columns") else math.prod([*at.sizes.values()][-2:])
            settings["progress"] = partial(show, {"filled": cells})
        return interpolate(table, at, **settings)


def _counts(columns: Table, result: xr.Dataset, *, copies: bool) -> dict[str, Any]:
    """What was read, and what was predicted with it, without rows that are left out if they are `copies`."""
    from geonp.scattered.repeats import without_copies

    read = without_copies(columns, columns.named_degrees) if copies else columns
    used = {"covariates": result.attrs["geonp_covariates"]} if "geonp_covariates" in result.attrs else {}
    return {
        "rows": len(columns.xy),
        "points": {name: int(read.usable(name).sum()) for name in columns.values},
        "places" if "point" in result.dims else "cells": int(result[next(iter(result.data_vars))].size),
        "model": result.attrs["geonp_model"],
        **used,
    }


def _sentence(summary: dict[str, Any]) -> str:
    least, most = min(summary["points"].values()), max(summary["points"].values())
    left_out = f" of {summary['rows']:,} rows" if least < summary["rows"] else ""
    n = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    files = ", ".join(summary[key] for key in ("output", "picture") if key in summary)
    where = next(f"{summary[unit]:,} {unit}" for unit in ("cells", "places") if unit in summary)
    return f"Interpolated {n} points{left_out} to {where} in {summary['seconds']:.1f} s: {files}"


def _drawn(
    result: xr.Dataset, picture: Path, columns: Table, crs: str | None, at: xr.DataArray | xr.Dataset
) -> dict[str, str]:
    """Draw the measurements of the first column and their interpolation; the name of the picture for the summary."""
    from geonp.fill.picture import plot, save_picture
    from geonp.io.measurements import transformed
    from geonp.raster.grid import Grid

    points = None
    if result[next(iter(result.data_vars))].ndim == 2:  # of one time
        table = transformed(columns, crs, Grid.from_xarray(at))
        name = next(iter(table.values))
        rows = table.usable(name)
        points = (*table.xy[rows].T, table.values[name][rows])
    save_picture(plot(result, points=points), picture)
    return {"picture": str(picture)}


def _check_grid(
    like: Path | None,
    resolution: float | None,
    bounds: tuple[float, ...] | None,
    places: Path | None,
    picture: Path | None,
) -> None:
    if bounds is not None and resolution is None:
        raise click.UsageError("--bounds needs --resolution: --like and --at have their own extent. Leave it out.")
    if sum(one is not None for one in (like, resolution, places)) != 1:
        raise click.UsageError(
            "Choose the grid: --like RASTER, or --resolution with or without --bounds; or the places: --at TABLE."
        )
    if places is not None and picture is not None:
        raise click.UsageError("--picture draws grids: leave it out with --at.")
