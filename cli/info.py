"""``geonp info IN``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from geonp.raster.parts import PARTS

from .missing import gaps_where, read_missing
from .options import bands, crs, file_system, nodata, opening, place, variables
from .show import echo, table, to_json

if TYPE_CHECKING:
    import xarray as xr

    from geonp.raster.grid import Grid


@dataclass(frozen=True)
class CensusSettings:
    """Which variables are counted in part."""

    cells: int = 2**30
    """Largest number of cells that are all counted."""
    sampled_cells: int = 2**27
    """Number of cells that are counted of a larger variable."""
    slices: int = 2**14
    """Largest number of slices that are all counted."""
    sampled_slices: int = 2**7
    """Number of slices that are counted of a variable with more."""


CENSUS = CensusSettings()


@click.command()
@click.argument("source", metavar="IN")
@bands
@variables
@place
@crs
@nodata
@gaps_where
@click.option("--storage-option", "storage", multiple=True, metavar="NAME=VALUE", help="As for geonp fill.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(source: str, storage: tuple[str, ...], as_json: bool, missing: tuple[str, ...], **settings: Any) -> None:
    """Describe the raster IN: grid, missing cells, gaps.

    It also says which variables would be filled. In a variable with more than a billion cells or 16,384 slices, only
    evenly spaced rows or slices are counted. For an unfinished result of geonp fill, the progress is printed.
    """
    import numpy as np

    from geonp.io.files import open_raster
    from geonp.io.gdal import little_cache
    from geonp.io.journal import Journal
    from geonp.io.sources import may_be_store, readable
    from geonp.raster.crs import crs_name
    from geonp.raster.grid import Grid
    from geonp.raster.surface import surface_of

    storage_options = file_system(storage)
    with readable(source):
        progress = Journal(source, storage_options).progress() if may_be_store(source) else None
    if progress is not None:
        echo(to_json(progress) if as_json else table(_labelled(progress)))
        return
    where = opening(settings) | {"chunks": None}
    ds = open_raster(source, storage_options=storage_options, **where)
    ds, conditions = read_missing(missing, ds, source, where, storage_options)
    grid = Grid.from_xarray(ds)
    facts: dict[str, Any] = {
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
    surface = surface_of(ds, grid)
    if not all(grid.placed):  # the grid has numbers of cells only
        facts |= {"cell": None, "first_centre": None}
    if surface is not None and surface.curvilinear:
        extents = {"latitudes": surface.y, "longitudes": surface.x}
        facts |= {name: [float(np.nanmin(of)), float(np.nanmax(of))] for name, of in extents.items()}
    with readable(source), little_cache():
        ds, fates, flags = _fates(ds, grid, conditions)
        described = {}
        for name, da in ds.data_vars.items():
            found = described[str(name)] = _describe(da, grid, doubted=fates[name][0])
            found["would_be_filled"], found["because"] = fates[name]
            if found["would_be_filled"] and flags.masks:  # the dtype may have been widened to hide values
                found["dtype"] = str(flags.ds[name].encoding.get("dtype", flags.ds[name].dtype))
            if found["would_be_filled"]:
                found |= _why(found, flags.flagged(flags.ds[name]) if flags.masks else None, grid)
    if as_json:
        echo(to_json({**facts, "variables": described}))
        return
    echo(table(_labelled(facts)))
    for name, description in described.items():
        because, filled = description.pop("because"), description.pop("would_be_filled")
        description["would be filled"] = f"{'yes' if filled else 'no'}, {because}"
        if "nodata" in description and "missing" not in description:
            description["nodata"] = "not declared (--nodata)"
        echo(f"\n{name}\n" + table(_labelled(description), indent="  "))


def _fates(ds: xr.Dataset, grid: Grid, missing: list[Any] | None) -> tuple[xr.Dataset, dict[Any, Any], Any]:
    """The raster without what flags hide, and whether geonp fill would fill each variable, and why."""
    from geonp.errors import InputError
    from geonp.fill.missing import Flags, with_gaps
    from geonp.raster.dimensions import data_variables
    from geonp.raster.kinds import is_classes
    from geonp.raster.metadata import describing_names
    from geonp.raster.variable import number_variables, off_grid, passed_classes

    names: list[Any] = []
    flags = Flags(ds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that others pass through is said here
            ds, names, flags, _ = with_gaps(ds, missing, None)
    except InputError:
        if missing:
            raise
    names = names or passed_classes(ds, grid)
    ancillary = describing_names(ds)
    numbers, elsewhere = number_variables(ds, grid), off_grid(ds, grid, names)

    def reason(name: Any, da: xr.Variable) -> str:
        if name in flags.layers:
            return "its flags apply to other variables"
        if name in elsewhere:
            return "on another grid (choose it alone: --variable)"
        if not grid.spans(da) or da.dtype.kind not in "iuf":
            return "no numbers on rows and columns"
        if name in ancillary or (name not in numbers and not is_classes(da)):
            return "it describes another variable"
        if is_classes(da):
            return "classes, while other variables are numbers (choose it alone: --variable)"
        if name in numbers and flags.masks and da.dtype.kind == "f":
            return "the flags apply to other variables (choose it alone: --variable)"
        return "integers without a nodata value, unlike others (--nodata, --variable)"

    fates = {
        name: (name in names, "" if name in names else reason(name, da)) for name, da in data_variables(ds).items()
    }
    return ds, fates, flags


def _why(found: dict[str, Any], flagged: xr.DataArray | None, grid: Grid) -> dict[str, Any]:
    """Whether the gaps of a variable would be filled, and why."""
    missing = found.get("missing")
    if missing is None:
        return {"would_be_filled": True, "because": "with the nodata value of --nodata"}
    if not missing:
        return {"would_be_filled": False, "because": "nothing is missing"}
    if flagged is None or "counted_cells" in found:
        return {"would_be_filled": True, "because": f"{missing:,} cells are missing"}
    slices = flagged.transpose(..., *grid.dims)
    marked = sum(
        int(slices[index].isel({grid.y_dim: part}).values.sum()) for index, parts in _parts(slices) for part in parts
    )
    return {
        "would_be_filled": True,
        "because": f"{missing:,} cells are missing, {marked:,} of them by flags",
        "flagged": marked,
    }


def _describe(da: xr.DataArray, grid: Grid, *, doubted: bool) -> dict[str, Any]:
    """Dimensions, stored dtype and nodata of a variable, and the census of its gaps if it is a raster of numbers.

    Warns of values that may be missing ones if they are `doubted`.
    """
    from geonp.raster.nodata import UNLIMITED, stored_nodata, valid_limits

    description: dict[str, Any] = {
        "dimensions": {str(dim): size for dim, size in da.sizes.items()},
        "dtype": str(da.encoding.get("dtype", da.dtype)),
        "units": str(da.attrs["units"]) if "units" in da.attrs else None,
    }
    if da.dtype.kind not in "iuf" or not grid.spans(da):
        return description
    nodata, limits = stored_nodata(da), valid_limits(da)
    if limits != UNLIMITED:
        description["valid_range"] = [_number(limit) for limit in limits]
    description["nodata"] = None if nodata is None else _number(nodata)
    undeclared = da.dtype.kind in "iu" and nodata is None and limits == UNLIMITED
    return description if undeclared or not da.size else {**description, **_gaps(da, grid, doubted=doubted)}


def _number(value: float) -> float | str:
    """`value`, or its name if JSON has no such number: nan, inf or -inf."""
    return value if math.isfinite(value) else str(value)


def _gaps(da: xr.DataArray, grid: Grid, *, doubted: bool) -> dict[str, Any]:
    """Census of the gaps in all slices of a variable, read in parts of limited size."""
    import numpy as np

    from geonp.raster.gaps import census, census_of_strips
    from geonp.raster.nodata import reader
    from geonp.raster.sentinels import Extremes, sentinels_of, suspects, warn_of_sentinels

    read, slices = reader(da), da.transpose(..., *grid.dims)
    ends: list[float] = []
    extremes: list[Extremes] = []
    infinite, sentinels = 0, sentinels_of(da)

    def observed(part: xr.DataArray) -> Any:
        nonlocal infinite
        stored = part.values
        values = read(stored)
        infinite += int(np.isinf(stored).sum())
        missing = np.isnan(values)
        if not missing.all():
            ends.extend(
                float(str(end)) for end in (np.nanmin(values), np.nanmax(values))
            )  # float32 0.11, not 0.10999999940395355
            extremes.append(Extremes.of(values, sentinels))
        return ~missing

    if da.size > CENSUS.cells or math.prod(slices.shape[:-2]) > CENSUS.slices:
        masks = map(observed, _sampled(slices))
        pairs = [(mask.size, mask.size - int(np.count_nonzero(mask))) for mask in masks]
        cells, missing = map(sum, zip(*pairs, strict=True))
        found: dict[str, Any] = {"counted_cells": cells}
    else:
        counts, within = [], 0
        for index, slice_parts in _parts(slices):
            if len(slice_parts) > 1:
                strips = (observed(slices[index][part]) for part in slice_parts)
                counted, uncertain = census_of_strips(strips, grid.shape)
                counts.append(counted)
                within = max(within, uncertain)
            else:
                counts += map(census, observed(slices[index]).reshape(-1, *grid.shape))
        missing, cells = sum(gaps.missing for gaps in counts), sum(gaps.cells for gaps in counts)
        farthest = max(gaps.farthest_px for gaps in counts)
        found = {
            "gaps": sum(gaps.gaps for gaps in counts),
            "largest_gap": max(gaps.largest for gaps in counts),
            "farthest_from_data": round(farthest, 2) if np.isfinite(farthest) else None,
            **({"farthest_within": within} if within else {}),
        }
    if doubted:
        warn_of_sentinels(da, suspects(extremes))
    return {
        "least": min(ends) if ends else None,
        "greatest": max(ends) if ends else None,
        "missing": missing,
        "missing_share": round(missing / cells, 6),
        "infinite": infinite,
        **found,
    }


def _parts(slices: xr.DataArray) -> Iterator[tuple[Any, list[slice]]]:
    """Indices of the leading dimensions, of several small slices or of one, and the strips of rows to read it in."""
    import numpy as np

    *lead, height, width = slices.shape
    rows = _rows(slices)
    strips = [slice(row, min(row + rows, height)) for row in range(0, height, rows)]
    together = max(1, PARTS.cells // max(1, height * width)) if lead else 1
    for index in np.ndindex(*lead[:-1]):
        for first in range(0, lead[-1], together) if lead else (0,):
            yield (*index, slice(first, first + together) if len(strips) == 1 else first)[: len(lead)], strips


def _rows(slices: xr.DataArray) -> int:
    """Number of rows of a strip: whole stored chunks, if they are small enough."""
    width = max(1, slices.shape[-1])
    chunk = slices.encoding.get("preferred_chunks", {}).get(slices.dims[-2], 1)
    rows = max(1, PARTS.cells // width)
    return rows if not isinstance(chunk, int) or chunk > 4 * rows else max(rows // chunk, 1) * chunk


def _sampled(slices: xr.DataArray) -> Iterator[xr.DataArray]:
    """Evenly spaced strips of all slices, at most as many cells and strips in all as :class:`CensusSettings` says."""
    *lead, height, width = slices.shape
    rows = min(_rows(slices), height)
    n = math.prod(lead) * -(-height // rows)
    few = CENSUS.sampled_slices if math.prod(lead) > CENSUS.slices else n
    wanted = min(n, few, max(1, CENSUS.sampled_cells // (rows * width)))
    for k in range(wanted):
        number, strip = divmod(k * n // wanted, -(-height // rows))
        index: list[int] = []
        for size in reversed(lead):
            number, position = divmod(number, size)
            index.insert(0, position)
        columns = slice(None) if width <= PARTS.cells else slice(0, PARTS.cells)
        yield slices[(*index, slice(strip * rows, (strip + 1) * rows), columns)]


_IN_CELLS = {"largest_gap", "farthest_from_data", "farthest_within"}
"""Facts that are numbers of cells."""


def _labelled(facts: dict[str, Any]) -> dict[str, str | None]:
    """Facts by their names in words, as text: lengths and sizes of gaps with their unit."""
    texts = {key: _text(value) for key, value in facts.items()}
    return {
        key.replace("_", " "): f"{text} cells" if key in _IN_CELLS and text is not None else text
        for key, text in texts.items()
    }


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
