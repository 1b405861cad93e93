"""The cells of regions in any of the forms that :func:`geonp.aggregate` takes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import InputError, warn
from geonp.fill.variables import Raster
from geonp.io.files import open_raster
from geonp.io.polygon_regions import Polygons, cells_of, read_polygons
from geonp.io.polygons import VECTOR_FILES
from geonp.raster.grid import Grid
from geonp.raster.regions import Regions, blocks, labelled


def regions_of(
    given: Any, raster: Raster, grid: Grid, names: str | None, layer: str | None, *, all_touched: bool
) -> Regions:
    """The cells of regions on the grid of a raster; same parameters as :func:`geonp.aggregate`.

    Raises InputError for what is no region, and options that have no meaning for regions of this form.
    """
    if isinstance(given, (str, os.PathLike)) and os.fspath(given).lower().endswith(VECTOR_FILES):
        return cells_of(read_polygons(given, names, layer), raster, grid, all_touched=all_touched)
    found = _cells_given(given, grid)
    of_polygons = {"names (--name)": names is not None, "all_touched (--all-touched)": all_touched}
    given_options = {"layer (--layer)": layer is not None} | (of_polygons if found is not None else {})
    if unused := [name for name, value in given_options.items() if value]:
        raise InputError(
            f"{' and '.join(unused)} cannot be used: names and all_touched apply to polygons, and layer to a file of "
            f"them, got regions of type {type(given).__name__}. Leave out what does not apply."
        )
    if found is not None:
        return found
    if names is not None:
        if names not in getattr(given, "columns", ()):
            raise InputError(f"names is a column of regions: got {names!r}, which {type(given).__name__} does not have")
        given = given.set_index(names)
    return cells_of(Polygons.of(given), raster, grid, all_touched=all_touched)


def _cells_given(given: Any, grid: Grid) -> Regions | None:
    """Regions that are labels or blocks; None if they are polygons."""
    if isinstance(given, (str, os.PathLike)):
        ds = open_raster(given)
        if len(ds.data_vars) != 1:
            raise InputError(f"{os.fspath(given)!r} has {len(ds.data_vars)} variables, expected one with labels")
        return labelled(next(iter(ds.data_vars.values())), grid)
    if isinstance(given, xr.DataArray) or (isinstance(given, np.ndarray) and given.dtype != object):
        return labelled(given, grid)
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool):
        return blocks(grid.shape, int(given))
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(n, (int, np.integer)) for n in given):
        return blocks(grid.shape, (int(given[0]), int(given[1])))
    return None


def warn_of_regions(found: Regions) -> None:
    """Warn of regions without a cell, and of regions that share a name."""
    empty = [str(name) for name, size in zip(found.names, found.sizes, strict=True) if not size]
    shared = [name for name, number in Counter(map(str, found.names)).items() if number > 1]
    if empty:
        warn(f"{len(empty)} of {len(found.names)} regions have no cell in the raster: {_first(empty)}")
    if shared:
        warn(
            f"several regions are called {_first(shared)}: each has rows of its own, which only their order tells "
            "apart. Choose a column whose entries differ (names=, --name)."
        )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
