"""Where the cells of a raster lie, for rasters whose cells are not squares.

On the sphere, places are points of unit length in space: distances between them need no seam at the date line or the
poles. Locally they are seen in an azimuthal equidistant projection, whose distances and directions from its centre are
true (Snyder 1987, *Map Projections: A Working Manual*, section 25). The ellipsoid differs by at most 0.6 %.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from geonp.errors import warn
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray
from geonp.raster.coordinate_units import unit_factor
from geonp.raster.dimensions import CF_UNITS, LATITUDES, LONGITUDES, has_coordinate
from geonp.raster.grid import Grid
from geonp.raster.tolerances import TOLERANCES


def embed(xy: Float64Array) -> Float64Array:
    """Longitudes and latitudes ``(n, 2)`` in degrees as points of the unit sphere ``(n, 3)``."""
    lon, lat = np.radians(np.asarray(xy, np.float64)).T
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)


def axes_at(middle: tuple[float, float]) -> Float64Array:
    """North, east and up at a longitude and a latitude, as rows ``(3, 3)``."""
    lon, lat = np.radians(middle)
    north = [-math.sin(lat) * math.cos(lon), -math.sin(lat) * math.sin(lon), math.cos(lat)]
    return np.array([north, [-math.sin(lon), math.cos(lon), 0.0], embed(np.array([middle]))[0]])


def flattened(places: Float64Array, middle: tuple[float, float]) -> Float64Array:
    """Offsets in degrees ``(n, 2)``, to the north and to the east, of points of the sphere ``(n, 3)``.

    They are those of an azimuthal equidistant projection around `middle`, a longitude and a latitude: 0.6 ms for 1,024
    places, 2.0 ms with ``pyproj.Proj``, which must be made for each middle.
    """
    *level, up = axes_at(middle)
    offset = places @ np.stack(level, 1)
    sine = np.linalg.norm(offset, axis=1)
    angle = np.degrees(np.arctan2(sine, places @ up))
    return np.asarray(offset * (angle / np.maximum(sine, 1e-300))[:, None])


NARROW = 0.5
"""Ratio of width to height below which cells are narrow."""


@dataclass(frozen=True, eq=False)
class Surface:
    """Places of the cells of a raster.

    Columns are counted from the one at which tiles begin, see :attr:`first_col`.

    Attributes
    ----------
    y, x : array
        Of rows ``(rows,)`` and of columns ``(cols,)``, or of all cells ``(rows, cols)``, NaN where unknown: latitudes
        and longitudes in degrees, or coordinates of a plane.
    sphere : bool
        Whether they are latitudes and longitudes.
    step : float
        Length that distances between cells are counted in, in degrees or in the unit of the plane: the height of a
        typical cell, or its width if that is smaller; of two-dimensional coordinates at most twice the width.
    width : float
        Width of a typical cell.
    periodic : bool
        Whether the last column neighbours the first.
    folded : bool
        Whether the first or the last row neighbours itself, in the opposite direction, as in tripolar grids.
    first_col : int
        Column of the raster at which tiles begin: that nearest to the prime meridian if the raster goes round the
        Earth, so that another first column does not change them.
    """

    y: FloatArray
    x: FloatArray
    sphere: bool
    step: float
    width: float
    periodic: bool = False
    folded: bool = False
    first_col: int = 0

    @property
    def curvilinear(self) -> bool:
        """Whether each cell has coordinates of its own."""
        return self.y.ndim == 2

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self.y.size, self.x.size) if self.y.ndim == 1 else (self.y.shape[0], self.y.shape[1])

    def coordinates(self, rows: Float64Array | IntArray, cols: Float64Array | IntArray) -> Float64Array:
        """X and y ``(n, 2)`` of places between cells, linearly interpolated: of a sphere, longitudes and latitudes."""
        if self.y.ndim == 1:
            x = _between(self.x, cols, 360.0 * self.periodic)
            return np.stack([x, _between(self.y, rows, 0.0)], -1)
        i, j = np.asarray(rows), np.asarray(cols)
        if self.periodic:
            j = j % self.shape[1]
        if i.dtype.kind in "iu" and j.dtype.kind in "iu":
            return np.stack([self.x[i, j], self.y[i, j]], -1).astype(np.float64)
        (n, m), top, left = self.shape, np.floor(i).astype(np.intp), np.floor(j).astype(np.intp)
        total = 0.0
        for row, col in ((0, 0), (0, 1), (1, 0), (1, 1)):
            weight = np.abs(1 - row - (i - top)) * np.abs(1 - col - (j - left))
            at = np.clip(top + row, 0, n - 1), (left + col) % m if self.periodic else np.clip(left + col, 0, m - 1)
            total = total + weight[:, None] * embed(np.stack([self.x[at], self.y[at]], -1))
        return _unembedded(np.asarray(total))

    def places(self, rows: Float64Array | IntArray, cols: Float64Array | IntArray) -> Float64Array:
        """Points in space ``(n, 3)``, or in the plane ``(n, 2)``, first along y."""
        found = self.coordinates(rows, cols)
        return embed(found) if self.sphere else found[:, ::-1]

    def offsets(self, places: Float64Array, middle: Float64Array) -> Float64Array:
        """Offsets ``(n, 2)`` of :meth:`places` from one of them, first along y, in degrees or the unit of the plane."""
        if not self.sphere:
            return np.asarray(places - middle)
        lon, lat = _unembedded(middle[None])[0].tolist()
        return flattened(places, (lon, lat))

    def radius(self, distance: float) -> float:
        """Length of the straight line in space between places at a distance."""
        return 2 * math.sin(math.radians(min(distance, 180.0)) / 2) if self.sphere else distance

    def distance(self, radius: Float64Array) -> Float64Array:
        """Distance of places from the length of the straight line between them."""
        return np.degrees(2 * np.arcsin(np.minimum(radius / 2, 1.0))) if self.sphere else radius

    def areas(self, rows: IntArray, cols: IntArray) -> Float64Array:
        """Areas ``(len(rows), len(cols))`` of cells, in squared degrees or units of the plane; NaN where unknown."""
        if self.y.ndim == 1:
            dy, dx = (np.abs(np.gradient(values)) if values.size > 1 else np.ones(1) for values in (self.y, self.x))
            high = dy * np.cos(np.radians(np.clip(self.y, -90, 90))) if self.sphere else dy
            return np.asarray(high[rows][:, None] * np.resize(dx, self.shape[1])[cols % self.shape[1]])
        i, j = np.meshgrid(rows, cols, indexing="ij")
        places = self.places(i.ravel(), j.ravel()).reshape(*i.shape, -1)
        down, right = (
            np.asarray(np.gradient(places, axis=axis)) if i.shape[axis] > 1 else np.zeros_like(places)
            for axis in (0, 1)
        )
        area = np.sqrt(np.maximum((down**2).sum(-1) * (right**2).sum(-1) - (down * right).sum(-1) ** 2, 0.0))
        return np.asarray(area * np.degrees(1.0) ** 2 if self.sphere else area)

    def placed_mask(self, rows: IntArray, cols: IntArray) -> BoolArray:
        """Cells ``(len(rows), len(cols))`` of the raster whose place is known."""
        inside = (rows >= 0)[:, None] & (self.periodic | ((cols >= 0) & (cols < self.shape[1])))
        if self.y.ndim == 1:
            return np.asarray(inside)
        known = np.isfinite(self.y[np.ix_(np.maximum(rows, 0), np.mod(cols, self.shape[1]))])
        return np.asarray(inside & known)

    def narrow_mask(self, rows: IntArray) -> BoolArray:
        """Rows whose cells are more than twice as high as wide, as those near the poles."""
        if self.y.ndim == 2 or not self.sphere or min(self.shape) < 2:
            return np.zeros(rows.size, bool)
        dy, dx = (float(np.abs(np.diff(values)).mean()) for values in (self.y, self.x))
        return np.asarray(np.cos(np.radians(self.y[np.maximum(rows, 0)])) * dx < NARROW * dy)

    @property
    def even(self) -> bool:
        """Whether rows and columns are parallels and meridians, or lines of a plane, in steps of nearly one length."""
        if self.y.ndim == 2 or min(self.shape) < 2:
            return False
        steps = (np.diff(values) for values in (self.y, self.x))
        return all(float(np.ptp(step)) <= TOLERANCES.step * abs(float(step.mean())) for step in steps)

    def steps(self, rows: IntArray) -> tuple[float, float]:
        """Mean lengths of the steps down and to the right in some rows, -1 outside, in degrees or units of the plane.

        Negative to the south and to the west. Rows and columns must be :attr:`even`.
        """
        dy, dx = (float(np.diff(values).mean()) for values in (self.y, self.x))
        middle = float(self.y[rows[rows >= 0]].mean())
        return dy, dx * math.cos(math.radians(middle)) if self.sphere else dx

    def columns_within(self, rows: tuple[int, int], distance: float) -> int:
        """Columns on both sides of a cell of some rows that hold all cells within a distance; all where it must be."""
        n_rows, n_cols = self.shape
        if self.y.ndim == 2:
            reach = math.ceil(min(distance / self.step, n_rows))
            across_fold = self.folded and (rows[0] < reach or rows[1] > n_rows - reach)
            return n_cols if across_fold else math.ceil(min(distance / self.width, n_cols))
        step = float(np.abs(np.diff(self.x)).min(initial=np.inf))
        if not self.sphere:
            return math.ceil(min(distance / step, n_cols))
        highest = float(np.abs(self.y[max(rows[0], 0) : rows[1]]).max(initial=0.0))
        if highest + distance >= 89.0:
            return n_cols
        widest = math.degrees(math.asin(math.sin(math.radians(distance)) / math.cos(math.radians(highest))))
        return min(math.ceil(widest / step), n_cols)


def surface_of(obj: xr.DataArray | xr.Dataset, grid: Grid) -> Surface | None:
    """The places of the cells of a raster on `grid`; None if its cells are squares, or where they lie is unknown."""
    if (found := _geolocation(obj, grid)) is not None:
        return _curvilinear(*found)
    if not all(grid.placed) or min(grid.shape) < 1:
        return None
    y, x = (_values(obj, grid, axis) for axis in (0, 1))
    dy, dx = (float(np.abs(np.diff(values)).mean()) if values.size > 1 else 0.0 for values in (y, x))
    if not (dy and dx):
        return None
    if not grid.geographic:
        known = grid.crs is not None or any(factor != 1.0 for factor in grid.factors)
        if not known or (all(grid.even) and abs(dx / dy - 1) <= TOLERANCES.square):
            return None
        return Surface(y, x, sphere=False, step=min(dy, dx), width=dx)
    if np.abs(y).max() > 90 + dy / 2 or np.ptp(x) > 360 + dx:
        return None
    wide = dx * np.cos(np.radians(np.clip(y, -90.0, 90.0))) / dy
    if all(grid.even) and np.abs(wide - 1).max() <= TOLERANCES.square and not grid.periodic_x:
        return None
    first_col = 0
    if grid.periodic_x:
        dx = 360.0 / x.size
        # a quarter of a step to the east, so that rounded longitudes choose the same column
        first_col = int(np.abs((x - dx / 4 + 180.0) % 360.0 - 180.0).argmin())
        # the same numbers in whichever order the columns are stored
        x = np.sign(x[-1] - x[0]) * dx * np.arange(x.size)
    return Surface(y, x, sphere=True, step=min(dy, dx), width=dx, periodic=grid.periodic_x, first_col=first_col)


def _values(obj: xr.DataArray | xr.Dataset, grid: Grid, axis: int) -> Float64Array:
    """The coordinate of rows or columns in the units of the CRS, exactly even if it nearly is, and unwrapped."""
    if grid.even[axis]:
        return np.asarray(grid.origin[axis] + grid.spacing[axis] * np.arange(grid.shape[axis]))
    dim = grid.dims[axis]
    values = obj.coords[dim].values.astype(np.float64) * grid.factors[axis]
    return np.unwrap(values, period=360.0) if grid.geographic and axis else np.asarray(values)


def _geolocation(obj: xr.DataArray | xr.Dataset, grid: Grid) -> tuple[FloatArray, FloatArray] | None:
    """Latitudes and longitudes of all cells, if they say more than the coordinates of rows and columns."""
    dims = grid.dims
    lengths = [obj.coords[dim].attrs for dim in dims if has_coordinate(obj, dim)]
    projected = any(str(attrs.get("standard_name", "")).startswith("projection_") for attrs in lengths)
    if (all(grid.placed) and (grid.crs is not None or projected)) or (grid.geographic and all(grid.placed)):
        return None
    found = []
    for names, axis, standard in ((LATITUDES, "y", "latitude"), (LONGITUDES, "x", "longitude")):
        coordinate = _named(obj, dims, names, CF_UNITS[axis], standard)
        if coordinate is None:
            return None
        found.append(coordinate)
    if any(coordinate.ndim > 2 for coordinate in found):
        first = [c.isel({dim: 0 for dim in c.dims if dim not in dims}) for c in found]
        if not all(bool(((c == one) | (c.isnull() & one.isnull())).all()) for c, one in zip(found, first, strict=True)):
            warn(
                f"{found[0].name!r} and {found[1].name!r} change along {found[0].dims[0]!r}: distances are counted in "
                f"cells. To fill by true distances, fill each slice on its own: obj.isel({{{found[0].dims[0]!r}: 0}})."
            )
            return None
        found = first
    lat, lon = (c.transpose(*dims).values * unit_factor(c, None, geographic=True) for c in found)
    lat, lon = (c if c.dtype.kind == "f" else c.astype(np.float64) for c in (lat, lon))
    known = placed_cells(lat, lon)
    return np.where(known, lat, np.nan), np.where(known, lon, np.nan)


def placed_cells(lat: FloatArray, lon: FloatArray) -> BoolArray:
    """Mask of the cells whose place is known.

    Not so are those beyond the poles and, if there are many, those at 0, 0 or -1, -1, which NEMO writes for the land
    that its processors leave out.
    """
    known = np.isfinite(lat) & np.isfinite(lon) & (np.abs(lat) <= 90.001) & (np.abs(lon) <= 540)
    for mark in (0.0, -1.0):
        marked = (lat == mark) & (lon == mark)
        if np.count_nonzero(marked) > TOLERANCES.repeats:
            known &= ~marked
    return np.asarray(known)


def _named(
    obj: xr.DataArray | xr.Dataset, dims: tuple[Hashable, Hashable], names: set[str], units: set[str], standard: str
) -> xr.DataArray | None:
    """The coordinate along both dimensions that is called so, or has the CF attributes."""
    coordinates: dict[Hashable, xr.DataArray] = dict(obj.coords.items())
    for name, coord in coordinates.items():
        attrs = coord.attrs
        said = str(attrs.get("standard_name", "")) == standard or str(attrs.get("units", "")).lower() in units
        if set(dims) <= set(coord.dims) and coord.dtype.kind in "iuf" and (said or str(name).lower() in names):
            return coord
    return None


def _curvilinear(lat: FloatArray, lon: FloatArray) -> Surface | None:
    """The surface of two-dimensional latitudes and longitudes; None for those that do not differ."""
    if min(lat.shape) < 2:
        return None
    places = embed(np.stack([lon.ravel(), lat.ravel()], -1)).reshape(*lat.shape, 3)
    with np.errstate(invalid="ignore"):
        sides = [np.degrees(np.linalg.norm(np.diff(places, axis=axis), axis=-1)) for axis in (0, 1)]
        dy, dx = (_median(side) for side in sides)
        if not (dy > 0 and dx > 0):
            return None
        joined = _median(np.degrees(np.linalg.norm(places[:, 0] - places[:, -1], axis=-1))) < 2 * dx
        ends = (places[end] for end in (0, -1))
        folded = any(_median(np.degrees(np.linalg.norm(row - row[::-1], axis=-1))) < 2 * max(dy, dx) for row in ends)
    step = min(dy, 2 * dx)
    return Surface(lat, lon, sphere=True, step=step, width=dx, periodic=bool(joined), folded=bool(folded))


def _median(lengths: FloatArray) -> float:
    known = lengths[np.isfinite(lengths)]
    return float(np.median(known)) if known.size else math.nan


def _between(values: FloatArray, index: Float64Array | IntArray, turn: float) -> Float64Array:
    """Values between those of whole numbers; after the last one comes the first, a `turn` farther, unless it is 0."""
    if not turn:
        return np.asarray(np.interp(index, np.arange(values.size), values))
    after = values[0] + np.copysign(turn, values[-1] - values[0])
    return np.asarray(np.interp(np.mod(index, values.size), np.arange(values.size + 1), np.append(values, after)))


def _unembedded(places: Float64Array) -> Float64Array:
    """Longitudes and latitudes ``(n, 2)`` of directions in space ``(n, 3)``."""
    x, y, z = places.T
    return np.asarray(np.degrees(np.stack([np.arctan2(y, x), np.arctan2(z, np.hypot(x, y))], 1)))
