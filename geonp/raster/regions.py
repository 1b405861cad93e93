"""Regions of a raster: which cells belong to each. Regions may overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.raster.arrays import AnyIntArray, Array, Float64Array
from geonp.raster.crs import geotransform
from geonp.raster.grid import Grid
from geonp.raster.nodata import declared_nodata
from geonp.raster.surface import surface_of

EARTH_RADIUS = 6_371_008.8
"""Mean radius of the Earth in metres."""


@dataclass(frozen=True, eq=False)
class Regions:
    """Regions and their cells.

    Attributes
    ----------
    names : sequence
        Names of the regions.
    region, row, col : array of int
        For each pair of a region and one of its cells the number of the region, and where the cell is.
    """

    names: Sequence[Any]
    region: AnyIntArray
    row: AnyIntArray
    col: AnyIntArray

    @property
    def sizes(self) -> AnyIntArray:
        """Number of cells of each region."""
        return np.bincount(self.region, minlength=len(self.names))

    def require_cells(self, grid: Grid) -> None:
        """Check that a region has a cell of the raster on `grid`. Raises InputError if none has."""
        if self.region.size:
            return
        ends = [(o, o + (n - 1) * step) for o, n, step in zip(grid.origin, grid.shape, grid.spacing, strict=True)]
        (y_min, y_max), (x_min, x_max) = map(sorted, ends)
        raise InputError(
            f"none of the {len(self.names)} regions has a cell of the raster: got regions outside of {grid.x_dim} from "
            f"{x_min:g} to {x_max:g} and {grid.y_dim} from {y_min:g} to {y_max:g}, or none at all. Check their CRS, "
            "and the order of their coordinates (longitude, latitude). Regions smaller than a cell may hold the centre "
            "of none: take all cells that they touch, with all_touched=True (--all-touched)."
        )


def blocks(shape: tuple[int, int], size: int | tuple[int, int]) -> Regions:
    """Blocks of `size` cells, or rows and columns, from the first row and column; the last ones may be smaller.

    Their names are ``"row,column"``, counted in blocks.
    """
    rows, cols = (size, size) if isinstance(size, (int, np.integer)) else size
    if min(rows, cols) < 1:
        raise InputError(f"blocks must have at least one cell: got {rows} x {cols}")
    row, col = np.indices(shape)
    across = -(-shape[1] // cols)
    names = [f"{i},{j}" for i in range(-(-shape[0] // rows)) for j in range(across)]
    return Regions(names, ((row // rows) * across + col // cols).ravel(), row.ravel(), col.ravel())


def labelled(labels: xr.DataArray | Array, grid: Grid) -> Regions:
    """The regions of a raster of labels: cells of one label are a region, those with 0, NaN or nodata in none.

    Raises InputError if the labels are on another grid, have more than two dimensions or are no whole numbers.
    """
    if isinstance(labels, xr.DataArray):
        values = grid.layer(labels, "regions").values
        nodata = declared_nodata(labels) if labels.dtype.kind in "iuf" else ()
    else:
        values, nodata = np.asarray(labels), ()
    if values.shape != grid.shape:
        raise InputError(
            f"the regions have shape {values.shape}, expected {grid.shape} (rows, columns) like the raster"
        )
    if values.dtype.kind not in "biuf":
        raise InputError(f"labels of regions must be whole numbers, got dtype {values.dtype}")
    inside = np.isfinite(values) & (values != 0)
    for value in nodata:
        inside &= values != value
    row, col = np.nonzero(inside)
    found = values[inside]
    if found.dtype.kind == "f" and (found != np.rint(found)).any():
        raise InputError(
            f"labels of regions must be whole numbers, got {found[found != np.rint(found)][0]}: this looks like a "
            "raster of measurements"
        )
    # the largest unsigned integers are beyond int64
    names, region = np.unique(found.astype(np.uint64 if found.dtype == np.uint64 else np.int64), return_inverse=True)
    return Regions(names.tolist(), region.ravel(), row, col)


def cell_areas(obj: xr.DataArray | xr.Dataset, grid: Grid, row: AnyIntArray, col: AnyIntArray) -> Float64Array | None:
    """Areas ``(n,)`` of cells: in square metres for longitudes and latitudes, else in square units of the CRS.

    0 for cells without a known place; None if no place is known.
    """
    surface = surface_of(obj, grid)
    if surface is not None and surface.curvilinear:
        squared_degrees = surface.areas(*map(np.arange, grid.shape))[row, col]
        return np.asarray(np.nan_to_num(squared_degrees) * (EARTH_RADIUS * np.radians(1.0)) ** 2)
    if not all(grid.placed):
        terms = geotransform(obj)
        if terms is None or grid.geographic:
            return None
        return np.full(row.size, abs(terms[1] * terms[5] - terms[2] * terms[4]))
    y, x = (_edges(obj, grid, axis) for axis in (0, 1))
    if grid.geographic:
        y, x = EARTH_RADIUS * np.sin(np.radians(np.clip(y, -90, 90))), EARTH_RADIUS * np.radians(x)
    return np.asarray(np.abs(np.diff(y))[row] * np.abs(np.diff(x))[col])


def _edges(obj: xr.DataArray | xr.Dataset, grid: Grid, axis: int) -> Float64Array:
    """Edges of rows or columns, halfway between their centres."""
    centres = grid.origin[axis] + grid.spacing[axis] * np.arange(grid.shape[axis])
    if not grid.even[axis]:
        centres = grid.centres(obj)[axis]
        centres = np.unwrap(centres, period=360.0) if axis == 1 and grid.geographic else centres
    steps = np.diff(centres) if centres.size > 1 else np.array([grid.spacing[axis]])
    return np.concatenate(
        [[centres[0] - steps[0] / 2], centres[:-1] + steps[: centres.size - 1] / 2, [centres[-1] + steps[-1] / 2]]
    )
