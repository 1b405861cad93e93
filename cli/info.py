"""``geonp info IN``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from .fill import file_system
from .show import table, to_json

if TYPE_CHECKING:
    import xarray as xr

    from geonp.raster.grid import Grid

__all__ = ["info"]


@click.command()
@click.argument("source", metavar="IN")
@click.option("--nodata", type=float, help="Stored value of missing cells, instead of the declared one.")
@click.option("--storage-option", "storage", multiple=True, metavar="NAME=VALUE", help="As of geonp fill.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(source: str, nodata: float | None, storage: tuple[str, ...], as_json: bool) -> None:
    """Describe the raster IN: its grid, and of each variable how much is missing and how far its gaps reach.

    Of an unfinished result of geonp fill, tell how far it is.
    """
    from geonp.io.files import open_raster
    from geonp.io.journal import Journal
    from geonp.raster.grid import Grid

    storage_options = file_system(storage)
    progress = Journal(source, storage_options).progress()
    if progress is not None:
        click.echo(to_json(progress) if as_json else table(_labelled(progress)))
        return
    ds = open_raster(source, nodata=nodata, storage_options=storage_options)
    grid = Grid.from_xarray(ds)
    facts = {
        "rows": grid.shape[0],
        "columns": grid.shape[1],
        "dimensions": [str(grid.y_dim), str(grid.x_dim)],
        "cell": list(grid.spacing),
        "first_centre": list(grid.origin),
        "bounds": _bounds(grid),
        "crs": _crs_name(grid.crs),
        "around_the_earth": grid.periodic_x,
        "evenly_spaced": grid.regular,
    }
    variables = {str(name): _describe(da, grid) for name, da in ds.data_vars.items()}
    if as_json:
        click.echo(to_json({**facts, "variables": variables}))
        return
    click.echo(table(_labelled(facts)))
    for name, description in variables.items():
        if "nodata" in description and "missing" not in description:
            description["nodata"] = "not declared (--nodata)"
        click.echo(f"\n{name}\n" + table(_labelled(description), indent="  "))


def _describe(da: xr.DataArray, grid: Grid) -> dict[str, Any]:
    """Dimensions, stored dtype and nodata of a variable, and the census of its gaps if it is a raster of numbers."""
    from geonp.raster.casting import UNLIMITED
    from geonp.raster.nodata import declared_nodata, valid_limits

    description: dict[str, Any] = {
        "dimensions": {str(dim): size for dim, size in da.sizes.items()},
        "dtype": str(da.encoding.get("dtype", da.dtype)),
        "units": str(da.attrs["units"]) if "units" in da.attrs else None,
    }
    if da.dtype.kind not in "iuf" or not {grid.y_dim, grid.x_dim} <= set(da.dims):
        return description
    fill = da.encoding.get("_FillValue", next(iter(declared_nodata(da)), None))
    limits = valid_limits(da)
    if limits != UNLIMITED:
        description["valid_range"] = [_number(limit) for limit in limits]
    elif fill is None and da.dtype.kind in "iu":
        return {**description, "nodata": None}
    return {**description, "nodata": None if fill is None else _number(float(fill)), **_gaps(da, grid)}


def _bounds(grid: Grid) -> list[float] | None:
    """West, south, east and north, in the raster's own coordinates; None where not both dimensions have any."""
    if not all(grid.placed) or not grid.regular:
        return None
    ends = [
        sorted((first - step / 2, first + step * (n - 0.5)))
        for first, step, n in zip(grid.origin, grid.spacing, grid.shape, strict=True)
    ]
    (south, north), (west, east) = ends
    return [west, south, east, north]


def _number(value: float) -> float | str:
    """``value``, or the name of one that JSON does not know: nan, inf or -inf."""
    return value if math.isfinite(value) else str(value)


def _gaps(da: xr.DataArray, grid: Grid) -> dict[str, Any]:
    """Sum the gaps over all slices of a variable, one slice in memory at a time."""
    import numpy as np

    from geonp.raster.gaps import census
    from geonp.raster.nodata import observed

    values = observed(da).transpose(..., grid.y_dim, grid.x_dim)
    found, ends = [], []
    for index in np.ndindex(values.shape[:-2]):
        one = values[index].values
        found.append(census(~np.isnan(one)))
        ends += [end(one[~np.isnan(one)]) for end in (np.min, np.max) if not np.isnan(one).all()]
    missing, cells = sum(gaps.missing for gaps in found), sum(gaps.cells for gaps in found)
    farthest = max(gaps.farthest_px for gaps in found)
    return {
        "least": float(min(ends)) if ends else None,
        "greatest": float(max(ends)) if ends else None,
        "missing": missing,
        "missing_share": round(missing / cells, 6),
        "infinite": int(np.isinf(da).sum()),
        "gaps": sum(gaps.gaps for gaps in found),
        "largest_gap": max(gaps.largest for gaps in found),
        "farthest_from_data": round(farthest, 2) if np.isfinite(farthest) else None,
    }


def _crs_name(wkt: str | None) -> str | None:
    from geonp.raster.grid import crs_name

    return None if wkt is None else crs_name(wkt)


def _labelled(facts: dict[str, Any]) -> dict[str, str | None]:
    return {key.replace("_", " "): _text(value) for key, value in facts.items()}


def _text(value: object) -> str | None:
    """One value as people read it: cells with separators, lists and mappings without brackets."""
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
