"""Report of a fill: numbers of cells by variable, units that failed, and warnings of extrapolation."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from geonp.errors import InputError, warn
from geonp.fill.doubts import Glance, warn_of_doubts
from geonp.fill.outputs import without_results
from geonp.fill.units import COUNTED, Field, Unit, census
from geonp.io.journal import Record
from geonp.raster.arrays import Array
from geonp.raster.collar import Footprint
from geonp.raster.continents import inland, is_of_sea
from geonp.raster.dimensions import spatial_dims
from geonp.raster.grid import Grid
from geonp.raster.metadata import FillFlag
from geonp.raster.parts import PARTS
from geonp.raster.variable import Variable
from geonp.raster.windows import Window

Counts = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Report:
    """Result of filling a store.

    Attributes
    ----------
    variables : mapping
        Numbers of cells by name of the variable: ``cells``, ``observed``, ``filled``, ``beyond_limit``,
        ``outside_domain``, ``failed``, ``infinite`` and ``missing`` (all but the observed); and of slices along other
        dimensions: ``slices``, and ``empty_slices`` without any observed cell. Empty if the store was complete before.
    units, reused : int
        Number of all units, and of those that were finished before this call.
    failed : mapping of str to str
        Reason of each unit that failed, by key. The store is unfinished; resuming tries them again.
    """

    variables: Mapping[str, Mapping[str, int]]
    units: int
    reused: int
    failed: Mapping[str, str]


def tally(fields: tuple[Field, ...], units: list[Unit], done: Mapping[str, Record]) -> Counts:
    """Sums of the records of units by variable; warns of doubtful values."""
    counts = {}
    for i, field in enumerate(fields):
        records, variable = [done[unit.key] for unit in units if unit.field == i and unit.key in done], field.variable
        counts[str(variable.name)] = sums = _sums(records, variable.slices)
        hint = sums["missing"] > 0 and field.warping is None
        warn_of_doubts(variable, map(Glance.of_record, records), hint=hint)
    return counts


def _sums(records: Iterable[Record], slices: int) -> dict[str, int]:
    """Sums of the records of a variable of so many slices."""
    records = list(records)
    sums = {key: sum(record[key] for record in records) for key in COUNTED}
    seen = {index for record in records for index in record["seen"]}
    return {**sums, "missing": sums["cells"] - sums["observed"], "slices": slices, "empty_slices": slices - len(seen)}


def failures(fields: tuple[Field, ...], units: list[Unit], done: Mapping[str, Record]) -> dict[str, str]:
    """Place and reason of the units that failed, or if there are none, of those filled without their surroundings."""
    failed = {unit: done[unit.key]["error"] for unit in units if "error" in done[unit.key]}
    if not failed:
        less = "surrounding cells could not be read"
        failed = {unit: less for unit in units if "unread" in done[unit.key]}
    places = {
        unit.key: ", ".join(f"{dim}={part.start}:{part.stop}" for dim, part in unit.region.items()) for unit in failed
    }
    return {unit.key: f"{fields[unit.field].variable.name}[{places[unit.key]}]: {why}" for unit, why in failed.items()}


def check_observed(name: str, cells: int, observed: int) -> None:
    """Check that a variable has an observed cell to be filled from. Raises InputError if it has none."""
    if not observed:
        raise InputError(
            f"Variable {name!r} has no observed cell: all {cells} are missing, expected at least one observed. Check "
            "the nodata value (--nodata) and the bounding box (--bbox), or leave the variable out (--variable)."
        )


def counted(
    source: xr.Dataset, filled: xr.Dataset, *, values_only: bool = False, elsewhere: bool = False
) -> tuple[xr.Dataset, Callable[[], Counts]]:
    """Count the cells of a lazy fill of `source` while it is computed, so that nothing is read or computed twice.

    Computing the flags of a variable without any observed cell raises InputError, before its last chunk is given. With
    `elsewhere`, the fill is on another grid than `source`, and the cells of that grid are counted.

    Returns
    -------
    filled : Dataset
        Computed in threads of this process, it notes the numbers of cells of each chunk. With `values_only`, without
        what was added to the variables of `source`.
    counts : callable
        Numbers of cells and slices by variable, as those of a :class:`Report`, once all of it was computed. Warns of
        cells that were filled outside the footprint of the data.
    """
    grid = Grid.from_xarray(filled if elsewhere else source)
    counts, noted = {}, {}
    for name in source.data_vars:
        if (flag := filled.get(f"{name}_fill_flag")) is not None:
            axes = flag.dims.index(grid.y_dim), flag.dims.index(grid.x_dim)
            data, counts[str(name)] = _counting(
                flag if elsewhere else source[name], da.asarray(flag.data), axes, elsewhere
            )
            noted[flag.name] = flag.copy(data=data).variable
            if values_only:
                values = da.map_blocks(_first, filled[name].data, data, dtype=filled[name].dtype)
                noted[name] = filled[name].copy(data=values).variable
    filled = filled.assign(noted)
    filled = without_results(filled) if values_only else filled
    return filled, lambda: {name: count() for name, count in counts.items()}


def warn_of_extrapolation(
    flags: xr.DataArray, name: str, counts: Mapping[str, int], attrs: Mapping[Any, Any] | None = None
) -> None:
    """Warn if most filled cells are not gaps in the data, from the flags of a store, read in parts.

    `attrs` are those of the variable. Nothing is read if the user has chosen where to fill, or cells are too many.
    """
    if counts["filled"] != counts["missing"] or not counts["filled"] or flags.size > PARTS.slice_cells:
        return
    _warn_of_extrapolation(flags.assign_attrs(attrs or {}), name, *_observed(flags), counts)


def warn_of_land(filled: Mapping[Hashable, xr.DataArray], variable: Variable) -> None:
    """Warn of land that is filled though a variable in memory is of the sea; `filled` are its results."""
    source, flags = variable.source, filled[f"{variable.label}_fill_flag"]
    if source.chunks is not None or not is_of_sea(source.attrs) or not (flags != FillFlag.OBSERVED).any():
        return
    if flags.isin((FillFlag.OBSERVED, FillFlag.FILLED, FillFlag.FILLED_ACROSS)).all():  # or the user has chosen where
        _warn_of_land(flags.assign_attrs(source.attrs), variable.label, _observed(flags)[0])


def _observed(flags: xr.DataArray) -> tuple[Footprint, tuple[int, int]]:
    """The footprint of the observed cells, which are read in parts, and the numbers of rows and columns."""
    footprint, slices = Footprint(), flags.transpose(..., *spatial_dims(flags))
    rows, cols = slices.shape[-2:]
    height = max(1, PARTS.cells // cols)
    for index in np.ndindex(slices.shape[:-2]):
        for start in range(0, rows, height):
            window = Window(start, min(start + height, rows), 0, cols)
            observed_mask = slices[index][start : start + height].values == FillFlag.OBSERVED
            footprint.add(index, window, observed_mask)
    return footprint, (rows, cols)


def _warn_of_extrapolation(
    array: xr.DataArray, name: str, footprint: Footprint, shape: tuple[int, int], counts: Mapping[str, int]
) -> None:
    """Warn if most filled cells lie outside the footprint of the data, or were never observed, or if some are land."""
    filled = counts["filled"]
    if not filled or filled != counts["missing"]:  # the user has chosen where
        return
    outside, slices = footprint.outside(shape), len(footprint.ends)
    times = [size for dim, size in array.sizes.items() if dim in array.coords and array[dim].dtype.kind == "M"]
    # of two dates, the same cells may be missing by chance
    never = footprint.never() if max(times, default=1) > 2 else 0
    if _warn_of_land(array, name, footprint):
        return
    if 2 * outside > filled:
        warn(
            f"{name}: {outside:,} of {filled:,} filled cells lie outside the footprint of the data, with observed "
            "cells on one side at most. To fill only the holes within the footprint: --holes (holes=True)."
        )
    elif 2 * never > filled:
        warn(
            f"{name}: {never:,} of {filled:,} filled cells are observed in none of the {slices:,} slices, such as land "
            "under sea surface temperatures. To leave such cells empty: --mask FILE (mask=)."
        )


def _warn_of_land(array: xr.DataArray, name: str, footprint: Footprint) -> bool:
    """Warn if cells on land are filled, though the variable is of the sea; whether they are."""
    land = _land(array, footprint)
    if land:
        warn(
            f"{name}: {array.attrs['standard_name']!r} is a quantity of the sea, but cells on land are filled, such as "
            f"those in {', '.join(land[:3])}. To leave land empty: --mask FILE (mask=)."
        )
    return bool(land)


def _land(array: xr.DataArray, footprint: Footprint) -> list[str]:
    """Continents on which a variable of the sea is never observed; none unless it is on longitudes and latitudes."""
    if not is_of_sea(array.attrs):
        return []
    grid = Grid.from_xarray(array)
    if not grid.geographic or not all(dim in array.coords and array[dim].ndim == 1 for dim in grid.dims):
        return []
    return [name for name, (rows, cols) in inland(*grid.centres(array)).items() if footprint.never_in(rows, cols)]


def _first(values: Array, _: Array) -> Array:
    return values


def _counting(
    source: xr.DataArray, flags: da.Array, axes: tuple[int, int], elsewhere: bool
) -> tuple[da.Array, Callable[[], dict[str, int]]]:
    """The flags of a variable, whose chunks are counted as they are computed, and the counts."""
    sizes = tuple(size for axis, size in enumerate(flags.shape) if axis not in axes)
    records: dict[tuple[Any, ...], Record] = {}  # a chunk that is computed again counts once
    footprint = Footprint()

    def count(flag: Array, stored: Array, block_info: Any) -> Array:
        place = tuple(map(tuple, block_info[0]["array-location"]))
        lead = tuple(range(*bounds) for axis, bounds in enumerate(place) if axis not in axes)
        flag_last, stored_last = (np.moveaxis(array, axes, (-2, -1)) for array in (flag, stored))
        window, slices = Window(*place[axes[0]], *place[axes[1]]), flag_last.reshape(-1, *flag_last.shape[-2:])
        for number, each in enumerate(slices):
            footprint.add((lead, number), window, each == FillFlag.OBSERVED)
        records[place] = census(flag_last, stored_last, lead, sizes)
        if len(records) == flags.npartitions and not elsewhere:
            sums = _sums(list(records.values()), 0)
            check_observed(str(source.name), sums["cells"], sums["observed"])
        return flag

    def counts() -> dict[str, int]:
        sums = _sums(records.values(), math.prod(sizes))
        if elsewhere:
            return sums | {"empty_slices": 0}
        _warn_of_extrapolation(source, str(source.name), footprint, (flags.shape[axes[0]], flags.shape[axes[1]]), sums)
        return sums

    values = da.asarray(source.data).rechunk(flags.chunks)
    counted = da.map_blocks(count, flags, values, dtype=flags.dtype, meta=np.empty((0,) * flags.ndim, flags.dtype))
    return counted, counts
