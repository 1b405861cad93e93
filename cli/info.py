"""``geonp info IN``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from .options import bands, file_system, number, opening, place, variables
from .show import table, to_json

if TYPE_CHECKING:
    import xarray as xr

    from geonp.raster.grid import Grid

__all__ = ["info"]


@click.command()
@click.argument("source", metavar="IN")
@bands
@variables
@place
@click.option("--nodata", type=number, help="Stored value of missing cells, used instead of the declared one.")
@click.option("--storage-option", "storage", multiple=True, metavar="NAME=VALUE", help="As for geonp fill.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(source: str, storage: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Describe the raster IN: its grid, and the missing cells and gaps of each variable.

    For an unfinished result of geonp fill, print its progress.
    """
    from geonp.io.files import open_raster
    from geonp.io.journal import Journal
    from geonp.io.sources import may_be_store, readable
    from geonp.raster.grid import Grid, crs_name

    storage_options = file_system(storage)
    progress = None
    with readable(source):
        if may_be_store(source):
            progress = Journal(source, storage_options).progress()
    if progress is not None:
        click.echo(to_json(progress) if as_json else table(_labelled(progress)))
        return
    ds = open_raster(source, storage_options=storage_options, **opening(settings))
    grid = Grid.from_xarray(ds)
    facts = {
        "rows": grid.shape[0],
        "columns": grid.shape[1],
        "dimensions": [str(grid.y_dim), str(grid.x_dim)],
        "cell": list(grid.spacing),
        "first_centre": list(grid.origin),
        "bounds": None if grid.bounds is None else list(grid.bounds),
        "crs": None if grid.crs is None else crs_name(grid.crs),
        "around_the_earth": grid.periodic_x,
        "evenly_spaced": grid.regular,
    }
    with readable(source):
        described = {str(name): _describe(da, grid) for name, da in ds.data_vars.items()}
    if as_json:
        click.echo(to_json({**facts, "variables": described}))
        return
    click.echo(table(_labelled(facts)))
    for name, description in described.items():
        if "nodata" in description and "missing" not in description:
            description["nodata"] = "not declared (--nodata)"
        click.echo(f"\n{name}\n" + table(_labelled(description), indent="  "))


def _describe(da: xr.DataArray, grid: Grid) -> dict[str, Any]:
    """Dimensions, stored dtype and nodata of a variable, and the census of its gaps if it is a raster of numbers."""
    from geonp.raster.nodata import UNLIMITED, stored_nodata, valid_limits

    description: dict[str, Any] = {
        "dimensions": {str(dim): size for dim, size in da.sizes.items()},
        "dtype": str(da.encoding.get("dtype", da.dtype)),
        "units": str(da.attrs["units"]) if "units" in da.attrs else None,
    }
    if da.dtype.kind not in "iuf" or not {grid.y_dim, grid.x_dim} <= set(da.dims):
        return description
    nodata, limits = stored_nodata(da), valid_limits(da)
    if limits != UNLIMITED:
        description["valid_range"] = [_number(limit) for limit in limits]
    description["nodata"] = None if nodata is None else _number(nodata)
    undeclared = da.dtype.kind in "iu" and nodata is None and limits == UNLIMITED
    return description if undeclared else {**description, **_gaps(da, grid)}


def _number(value: float) -> float | str:
    """`value`, or its name if JSON has no such number: nan, inf or -inf."""
    return value if math.isfinite(value) else str(value)


def _gaps(da: xr.DataArray, grid: Grid) -> dict[str, Any]:
    """Census of the gaps in all slices of a variable, with one slice in memory at a time."""
    import numpy as np

    from geonp.raster.gaps import census
    from geonp.raster.nodata import reader

    read, slices = reader(da), da.transpose(..., grid.y_dim, grid.x_dim)
    counts, ends, infinite = [], [], 0
    for index in np.ndindex(slices.shape[:-2]):
        stored = slices[index].values
        values = read(stored)
        infinite += int(np.isinf(stored).sum())
        counts.append(census(~np.isnan(values)))
        if not np.isnan(values).all():
            ends += [np.nanmin(values), np.nanmax(values)]
    missing, cells = sum(gaps.missing for gaps in counts), sum(gaps.cells for gaps in counts)
    farthest = max(gaps.farthest_px for gaps in counts)
    return {
        "least": float(min(ends)) if ends else None,
        "greatest": float(max(ends)) if ends else None,
        "missing": missing,
        "missing_share": round(missing / cells, 6),
        "infinite": infinite,
        "gaps": sum(gaps.gaps for gaps in counts),
        "largest_gap": max(gaps.largest for gaps in counts),
        "farthest_from_data": round(farthest, 2) if np.isfinite(farthest) else None,
    }


def _labelled(facts: dict[str, Any]) -> dict[str, str | None]:
    return {key.replace("_", " "): _text(value) for key, value in facts.items()}


def _text(value: object) -> str | None:
    """A value as text: integers with separators, lists and mappings without brackets."""
    match value:
        case None:
            return None
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.10g}"
        case dict():
            return ", ".join(f"{key} {_text(size)}" for key, size in value.items())
        case list():
            return ", ".join(str(_text(item)) for item in value)
        case _:
            return str(value)
