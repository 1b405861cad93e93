"""Rasters that are read at places: in any CRS, on any grid, and lazily for lazy grids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
import pyproj
import xarray as xr
from dask.delayed import delayed

from geonp.errors import InputError
from geonp.io.measurements import Table, crs_of
from geonp.raster.arrays import Float64Array, IntArray
from geonp.raster.covariates import Covariate
from geonp.raster.grid import Grid
from geonp.raster.nodata import packing
from geonp.raster.parts import PARTS
from geonp.raster.tolerances import TOLERANCES
from geonp.raster.variable import Read


@dataclass(frozen=True)
class Frame:
    """The meaning of the coordinates of all places.

    Attributes
    ----------
    crs : str or None
        Coordinate reference system as WKT, if it is known.
    geographic : bool
        True if they are longitudes and latitudes in degrees.
    factors : tuple of float
        What x and y are multiplied by to be in the unit of the CRS.
    """

    crs: str | None
    geographic: bool
    factors: tuple[float, float]

    @classmethod
    def of(cls, table: Table, crs: Any, grid: Grid | None) -> Frame:
        """The frame of a transformed table, see :func:`geonp.io.measurements.transformed`; same parameters."""
        geographic = table.named_degrees if grid is None else grid.geographic
        known = None if grid is None else grid.crs
        if known is None and geographic:
            known = "EPSG:4326"
        elif known is None and (own := table.crs if crs is None else crs) is not None:
            known = str(crs_of(own).to_wkt())
        scaled = grid is not None and not geographic
        return cls(known, geographic, grid.factors[::-1] if grid is not None and scaled else (1.0, 1.0))


@dataclass(frozen=True, eq=False)
class Field:
    """A raster that is read at places: linear between the centres of cells; of classes, the nearest cell.

    Attributes
    ----------
    data : Variable
        Stored values ``(rows, cols)``, possibly lazy; `read` and `packing` make numbers of them.
    y, x : array
        Ascending centres of rows and columns, in the unit of the CRS.
    bounds : tuple of float
        South, north, west and east edges of the whole raster.
    frame : Frame
        That of the places.
    crs : str or None
        CRS of the raster, if it is known and not that of the places.
    """

    data: xr.Variable
    read: Read
    packing: tuple[float, float]
    classes: bool
    y: Float64Array
    x: Float64Array
    bounds: tuple[float, float, float, float]
    geographic: bool
    frame: Frame
    crs: str | None

    @classmethod
    def of(cls, covariate: Covariate, grid: Grid, frame: Frame) -> Field:
        """A covariate on a grid of its own.

        Raises InputError for a grid without coordinates, and places and rasters of which only one is in degrees,
        without a CRS.
        """
        source, label = covariate.variable.source, covariate.variable.label
        if not all(grid.placed):
            raise InputError(
                f"the covariate {label!r} cannot be read at places: got a raster without coordinates "
                f"{grid.y_dim!r} and {grid.x_dim!r}, expected one for rows and one for columns; give columns instead"
            )
        own = grid.crs or ("EPSG:4326" if grid.geographic else None)
        if grid.geographic != frame.geographic and (own is None or frame.crs is None):
            what, remedy = (
                ("the measurements", "give it with crs=... (--crs)")
                if frame.crs is None
                else (f"the covariate {label!r}", "add it, e.g. covariate.rio.write_crs('EPSG:32633')")
            )
            raise InputError(f"the CRS of {what} is unknown: got coordinates other than degrees; {remedy}")
        if grid.periodic_x:
            source = source.isel({grid.x_dim: [-1, *range(grid.shape[1]), 0]})
        centres, bounds = [], []
        for axis, (dim, factor) in enumerate(zip(grid.dims, grid.factors, strict=True)):
            values = source[dim].values.astype(np.float64) * factor
            values = np.unwrap(values, period=360.0) if axis == 1 and grid.geographic else values
            if values[0] > values[-1]:
                source, values = source.isel({dim: slice(None, None, -1)}), values[::-1]
            steps = np.diff(values) if values.size > 1 else np.abs([grid.spacing[axis]])
            bounds += [
                values[0] - (0.5 + TOLERANCES.place) * steps[0],
                values[-1] + (0.5 + TOLERANCES.place) * steps[-1],
            ]
            centres.append(values)
        same = own is None or frame.crs is None or pyproj.CRS(own).equals(pyproj.CRS(frame.crs), ignore_axis_order=True)
        return cls(
            source.variable,
            covariate.variable.read,
            packing(source.attrs),
            covariate.classes,
            centres[0],
            centres[1],
            (bounds[0], bounds[1], bounds[2], bounds[3]),
            grid.geographic,
            frame,
            None if same else own,
        )

    def at(self, places: Float64Array) -> Float64Array:
        """Values ``(n,)`` at places ``(n, 2)``, NaN where unknown: outside, or mostly between missing cells."""
        near = self.around(places)
        index = near.index(places)
        inside = np.isfinite(index).all(0)
        (rows, down), (cols, right) = (
            _between(np.rint(part) if self.classes else part, size)
            for part, size in zip(index[:, inside], near.data.shape, strict=True)
        )
        values, weights = near._cells(rows[:, None], cols[None]), down[:, None] * right[None]
        known = np.isfinite(values)
        share, sums = (np.sum(part, (0, 1)) for part in (weights * known, weights * np.where(known, values, 0.0)))
        out = np.full(len(places), np.nan)
        out[inside] = np.where(share >= 0.5, sums / np.maximum(share, 0.5), np.nan)
        return out

    def _cells(self, rows: IntArray, cols: IntArray) -> Float64Array:
        """Values of single cells; reads a lazy raster as a whole only if it is not much larger than what is wanted."""
        rows, cols = np.broadcast_arrays(rows, cols)
        if self.data.size <= PARTS.dense * rows.size:
            stored = self.data.values[rows, cols]
        else:
            dims = tuple(map(str, range(rows.ndim)))
            stored = self.data[xr.Variable(dims, rows), xr.Variable(dims, cols)].values
        scale, offset = self.packing
        return self.read(stored).astype(np.float64) * scale + offset

    def around(self, places: Float64Array) -> Field:
        """The part of the raster that is read within the hull of places; reads nothing."""
        index = self.index(places)
        index = index[:, np.isfinite(index).all(0)]
        if not index.size:
            index = np.zeros((2, 1))
        first, last = np.floor(index.min(1)).astype(int) - 2, np.ceil(index.max(1)).astype(int) + 3
        if self.geographic and np.ptp(np.interp(index[1], np.arange(self.x.size), self.x)) > 180:
            # places around a pole, or on both sides of the edge of the raster
            first, last = np.zeros(2, int), np.array(self.data.shape)
        rows, cols = (slice(max(a, 0), b) for a, b in zip(first.tolist(), last.tolist(), strict=True))
        return replace(self, data=self.data[rows, cols], y=self.y[rows], x=self.x[cols])

    def index(self, places: Float64Array) -> Float64Array:
        """Rows and columns of places ``(2, n)``, with fractions; NaN outside of the raster."""
        x, y = (places * np.array(self.frame.factors)).T
        if self.crs is not None:
            x, y = pyproj.Transformer.from_crs(self.frame.crs, self.crs, always_xy=True).transform(x, y)
        south, north, west, east = self.bounds
        if self.geographic:
            x = west + np.mod(x - west, 360.0)
        inside = (south <= y) & (y <= north) & (west <= x) & (x <= east)
        found = [np.interp(a, centres, np.arange(centres.size)) for a, centres in ((y, self.y), (x, self.x))]
        return np.where(inside, found, np.nan)

    def on_grid(self, y: Float64Array, x: Float64Array, chunks: tuple[tuple[int, ...], ...]) -> da.Array:
        """Values on the grid with these coordinates, lazy: each block reads the part of the raster that it needs."""
        rows, cols = (np.split(a, np.cumsum(sizes)[:-1]) for a, sizes in zip((y, x), chunks, strict=True))
        read = delayed(_on_grid, pure=False)
        blocks = [
            [da.from_delayed(read(self.around(_outline(b, a)), b, a), (b.size, a.size), np.float64) for a in cols]
            for b in rows
        ]
        return da.block(blocks)  # type: ignore[no-any-return]


def _between(index: Float64Array, size: int) -> tuple[IntArray, Float64Array]:
    """The two cells that each index with a fraction lies between, and their weights, ``(2, n)`` each."""
    low = np.floor(index)
    return np.minimum([low, low + 1], size - 1).astype(np.intp), np.stack([low + 1 - index, index - low])


def _on_grid(field: Field, y: Float64Array, x: Float64Array) -> Float64Array:
    return field.at(np.stack([np.tile(x, y.size), np.repeat(y, x.size)], 1)).reshape(y.size, x.size)


def _outline(y: Float64Array, x: Float64Array) -> Float64Array:
    """The places around a block of cells, ``(n, 2)``."""
    across = [np.stack([x, np.full(x.size, end)], 1) for end in (y[0], y[-1])]
    down = [np.stack([np.full(y.size, end), y], 1) for end in (x[0], x[-1])]
    return np.concatenate([*across, *down])
