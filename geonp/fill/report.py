"""What a fill did: numbers of cells by variable, and units that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.fill.units import Field, Unit
from geonp.io.journal import Record
from geonp.raster.grid import Grid
from geonp.raster.metadata import FillFlag

__all__ = ["Report", "Tally", "check_observed", "counted", "failures", "tally"]

Array = npt.NDArray[Any]
Counts = dict[str, dict[str, int]]
Place = tuple[tuple[int, ...], tuple[int, ...]]
"""Position of a chunk: among the slices, and within one."""

COUNTED = ("cells", *(member.name.lower() for member in FillFlag), "infinite")
"""Numbers of cells in a record."""


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
    """Sums of the records of units by variable."""
    counts = {}
    for i, field in enumerate(fields):
        records = [done[unit.key] for unit in units if unit.field == i and unit.key in done]
        sums = {key: sum(record.get(key, 0) for record in records) for key in COUNTED}
        seen = {index for record in records for index in record.get("seen", [])}
        slices = field.variable.slices
        counts[str(field.variable.name)] = {
            **sums,
            "missing": sums["cells"] - sums["observed"],
            "slices": slices,
            "empty_slices": slices - len(seen),
        }
    return counts


def failures(fields: tuple[Field, ...], units: list[Unit], done: Mapping[str, Record]) -> dict[str, str]:
    """Place and reason of the units that failed, or if there are none, of those filled without their surroundings."""
    failed = {unit: done[unit.key]["error"] for unit in units if "error" in done[unit.key]}
    if not failed:
        less = "cells around could not be read, though later they could"
        failed = {unit: less for unit in units if "unread" in done[unit.key]}
    places = {
        unit.key: ", ".join(f"{dim}={part.start}:{part.stop}" for dim, part in unit.region.items()) for unit in failed
    }
    return {unit.key: f"{fields[unit.field].variable.name}[{places[unit.key]}]: {why}" for unit, why in failed.items()}


def check_observed(name: str, cells: int, observed: int) -> None:
    """Check that a variable has an observed cell to be filled from.

    Raises
    ------
    InputError
        If it has none.
    """
    if not observed:
        raise InputError(
            f"Variable {name!r} has no observed cell: all {cells} are missing, expected at least one observed. Check "
            "the nodata value (--nodata) and --bbox, or leave the variable out (--variable)."
        )


@dataclass(frozen=True)
class _Part:
    """Counts of one chunk: cells by flag, infinite cells, and which slices have an observed cell."""

    flags: Array
    infinite: int
    seen: Array


@dataclass(frozen=True)
class Tally:
    """Counts of the cells of a lazy fill, complete once all of it was computed in threads of this process.

    Attributes
    ----------
    parts : mapping
        Counts of each chunk, by name of the variable and position of the chunk.
    """

    parts: Mapping[str, dict[Place, _Part]]

    def counts(self) -> Counts:
        """Numbers of cells and slices by variable, as those of a :class:`Report`."""
        found = {}
        for name, parts in self.parts.items():
            flags = sum((part.flags for part in parts.values()), np.zeros(len(FillFlag), np.int64))
            seen: dict[tuple[int, ...], Array] = {}
            for (lead, _), part in parts.items():
                seen[lead] = part.seen | seen.get(lead, np.False_)
            slices = sum(each.size for each in seen.values())
            found[name] = {
                "cells": int(flags.sum()),
                **{member.name.lower(): int(flags[member]) for member in FillFlag},
                "infinite": sum(part.infinite for part in parts.values()),
                "missing": int(flags.sum() - flags[FillFlag.OBSERVED]),
                "slices": slices,
                "empty_slices": slices - sum(int(each.sum()) for each in seen.values()),
            }
        return found


def counted(source: xr.Dataset, filled: xr.Dataset) -> tuple[xr.Dataset, Tally]:
    """Count the cells of a lazy fill of `source` while it is computed, so that nothing is read or computed twice.

    Computing the flags of a variable without any observed cell raises InputError, before its last chunk is given.
    """
    grid = Grid.from_xarray(source)
    parts: dict[str, dict[Place, _Part]] = {}
    for name in source.data_vars:
        if (flag := filled.get(f"{name}_fill_flag")) is None:
            continue
        data = da.asarray(flag.data)
        parts[str(name)] = {}
        count = partial(
            _count,
            name=str(name),
            axes=tuple(flag.dims.index(dim) for dim in (grid.y_dim, grid.x_dim)),
            parts=parts[str(name)],
            chunks=data.npartitions,
        )
        stored = da.asarray(source[name].data).rechunk(data.chunks)
        counting = da.map_blocks(count, data, stored, dtype=data.dtype, meta=np.empty((0,) * data.ndim, data.dtype))
        filled = filled.assign({flag.name: flag.copy(data=counting)})
    return filled, Tally(parts)


def _count(
    flag: Array,
    stored: Array,
    *,
    name: str,
    axes: tuple[int, ...],
    parts: dict[Place, _Part],
    chunks: int,
    block_id: tuple[int, ...],
) -> Array:
    """Note the counts of a chunk, and return its flags."""
    lead = tuple(n for axis, n in enumerate(block_id) if axis not in axes)
    flags, seen = np.bincount(flag.ravel(), minlength=len(FillFlag)), (flag == FillFlag.OBSERVED).any(axis=axes)
    infinite = int(np.isinf(stored).sum()) if stored.dtype.kind == "f" else 0
    parts[lead, tuple(block_id[axis] for axis in axes)] = _Part(flags, infinite, seen)
    if len(parts) == chunks:
        total = np.sum([part.flags for part in list(parts.values())], axis=0)
        check_observed(name, int(total.sum()), int(total[FillFlag.OBSERVED]))
    return flag
