"""Bounding boxes cut from rasters, in any convention of longitudes."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.raster.arrays import Array, Float64Array, IntArray
from geonp.raster.dimensions import has_coordinate
from geonp.raster.grid import Grid
from geonp.raster.tolerances import TOLERANCES


def select_box(ds: xr.Dataset, bbox: tuple[float, float, float, float]) -> xr.Dataset:
    """The cells whose centre lies in a box.

    Raises InputError if the box holds no cell, has two parts with a gap between them, or a dimension has no coordinate.

    Parameters
    ----------
    ds : Dataset
    bbox : tuple of float
        ``(west, south, east, north)`` in the units of the coordinates. Longitudes may be of any convention, and a box
        whose east is less than its west crosses the antimeridian. The longitudes of the result are those of the box.

    Returns
    -------
    Dataset
        Rows and columns in the order of `ds`. A box across the first column of a raster that goes round the Earth
        begins with its last columns.
    """
    grid = Grid.from_xarray(ds)
    west, south, east, north = bbox
    turn = 360.0 / grid.factors[1] if grid.geographic else None
    if turn is not None and west > east:
        east += turn * np.ceil((west - east) / turn)
    for dim, low, high in ((grid.y_dim, south, north), (grid.x_dim, west, east)):
        if not has_coordinate(ds, dim):
            raise InputError(
                f"A bounding box cannot be used: the dimension {dim!r} has no coordinate, as in swaths and rotated "
                "rasters. Add one, or select rows and columns with ds.isel or gdal_translate -srcwin."
            )
        values = ds.coords[dim].values
        cells, places = _inside(values, low, high, turn if dim == grid.x_dim else None)
        if cells.size == 0:
            raise InputError(
                f"The bounding box holds no cell: got {low:g} to {high:g} along {dim!r}, expected a part of "
                f"{values.min():g} to {values.max():g}. Give west south east north in the raster's own coordinates."
            )
        if dim == grid.x_dim and turn is not None:
            _require_adjacent(values, places, turn)
        contiguous = (np.diff(cells) == 1).all()
        shift = places - values[cells]
        ds = ds.isel({dim: slice(int(cells[0]), int(cells[-1]) + 1) if contiguous else cells})
        if shift.any():
            ds = _shifted(ds, dim, shift)
    return ds


def _inside(values: Array, low: float, high: float, turn: float | None) -> tuple[IntArray, Array]:
    """Indices of the coordinates from `low` to `high` and their values there, modulo `turn` if they go round."""
    inside_mask = (values >= low) & (values <= high)
    if turn is None:
        cells = np.flatnonzero(inside_mask)
        return cells, values[cells]
    offsets = (values.astype(np.float64) - low + TOLERANCES.box * turn) % turn - TOLERANCES.box * turn
    cells = np.flatnonzero(offsets <= high - low + TOLERANCES.box * turn)
    if inside_mask[cells].all():
        return cells, values[cells]
    # where the box continues on the other side of the raster, or the raster crosses the edge of the box
    seams = (np.diff(cells) > 1) | (np.abs(np.diff(offsets[cells])) > turn / 2)
    if (breaks := np.flatnonzero(seams)).size:
        cells = np.roll(cells, -int(breaks[0]) - 1)
    _, first = np.unique(np.round(offsets[cells] / turn, 9), return_index=True)
    cells = cells[np.sort(first)]  # without a repeated cyclic column
    return cells, values[cells] + turn * np.round((low + offsets[cells] - values[cells]) / turn)


def _require_adjacent(values: Array, places: Array, turn: float) -> None:
    """Check that the longitudes of a box have no larger gap than twice those of the raster."""
    largest = np.abs(np.diff(np.unwrap(values.astype(np.float64), period=turn))).max(initial=0.0)
    gaps = np.abs(np.diff(np.unwrap(places.astype(np.float64), period=turn)))
    if gaps.size and gaps.max() > 2 * largest:
        at = int(gaps.argmax())
        raise InputError(
            f"The bounding box holds two parts of the raster with a gap between them: got no column between "
            f"{places[at]:g} and {places[at + 1]:g}, expected neighbouring columns. Give one box for each part."
        )


def _shifted(ds: xr.Dataset, dim: Hashable, shift: Float64Array) -> xr.Dataset:
    """Add whole turns to a coordinate and to its bounds."""
    for name in (dim, ds.coords[dim].attrs.get("bounds")):
        if name in ds.variables:
            old = ds[name]
            dtype = old.dtype if old.dtype.kind == "f" else np.dtype(np.float64)
            new = (old.variable + xr.Variable((dim,), shift)).transpose(*old.dims).astype(dtype)
            ds = (
                ds.assign({name: (old.dims, new.data, old.attrs)})
                if name != dim
                else ds.assign_coords({dim: (dim, new.data, old.attrs)})
            )
    return ds
