"""Grids made from bounds and a resolution, to interpolate to."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.io.measurements import Table, crs_of
from geonp.raster.arrays import Float64Array
from geonp.raster.crs import cf_attrs

MOST_CELLS = 2**40
"""Largest number of cells of a grid: more than the Earth has at 30 m."""


def lattice(
    bounds: tuple[float, float, float, float], resolution: float | tuple[float, float], crs: Any = None
) -> xr.DataArray:
    """Create an empty grid to interpolate to, north up.

    Parameters
    ----------
    bounds : tuple of float
        West, south, east and north edges. East and south are moved to whole cells. Longitudes from 170 to -170 are
        those across the date line, as 170 to 190.
    resolution : float or tuple of float
        Side of a cell, or its width and height.
    crs : optional
        Coordinate reference system, as accepted by pyproj. Dimensions are ``lat`` and ``lon`` if it is geographic,
        otherwise ``y`` and ``x``.

    Raises
    ------
    InputError
        For empty bounds, a resolution that is not positive or too fine, latitudes beyond the poles, or an unknown crs.

    Examples
    --------
    >>> grid = geonp.lattice((-10, 45, -4, 50), resolution=0.5, crs="EPSG:4326")
    >>> dict(grid.sizes)
    {'lat': 10, 'lon': 12}
    >>> grid["lat"].values[:2]
    array([49.75, 49.25])
    """
    west, south, east, north = bounds
    dx, dy = resolution if isinstance(resolution, tuple) else (resolution, resolution)
    if not (0 < dx < np.inf and 0 < dy < np.inf):
        raise InputError(f"the resolution must be a positive number, got {resolution}")
    system = None if crs is None else crs_of(crs)
    geographic = system is not None and system.is_geographic
    if geographic and -180 <= east < 0 < west <= 180 and west - east > 180:
        east += 360.0
    if not (np.isfinite(bounds).all() and east > west and north > south):
        raise InputError(f"the bounds must be west < east and south < north, got {west:g} {south:g} {east:g} {north:g}")
    if (cells := (east - west) / dx * (north - south) / dy) > MOST_CELLS:
        raise InputError(
            f"a resolution of {resolution} gives {cells:.2g} cells for bounds {west:g} {south:g} {east:g} {north:g} "
            "in units of the coordinates: choose a coarser resolution or smaller bounds"
        )
    x = west + dx * (np.arange(max(round((east - west) / dx), 1)) + 0.5)
    y = north - dy * (np.arange(max(round((north - south) / dy), 1)) + 0.5)
    if geographic and np.abs(y).max() > 90:
        raise InputError(
            f"the grid would have cells at latitude {y[np.abs(y).argmax()]:g}, beyond the pole; resolution and bounds "
            f"are in degrees: got {resolution} and {west:g} {south:g} {east:g} {north:g}"
        )
    attrs: list[dict[str, str]] = [{}, {}]
    if geographic:
        names = {"latitude": "degrees_north", "longitude": "degrees_east"}
        attrs = [{"long_name": name, "standard_name": name, "units": unit} for name, unit in names.items()]
    elif system is not None:
        # CF prefers "m" to the "metre" of pyproj and its CRS.cs_to_cf
        unit = "m" if system.axis_info[0].unit_name == "metre" else system.axis_info[0].unit_name
        attrs = [
            {"long_name": f"{axis} of the projection", "standard_name": f"projection_{axis}_coordinate", "units": unit}
            for axis in "yx"
        ]
    dims = ("lat", "lon") if geographic else ("y", "x")
    coords: dict[str, Any] = {dim: (dim, c, a) for dim, c, a in zip(dims, (y, x), attrs, strict=True)}
    if system is not None:
        coords["spatial_ref"] = ((), 0, cf_attrs(system))
    return xr.DataArray(np.broadcast_to(np.float32(0), (len(y), len(x))), coords, dims)


def lattice_around(
    table: Table, resolution: float, bounds: tuple[float, float, float, float] | None, crs: Any = None
) -> xr.DataArray:
    """A :func:`lattice` around the places of a table, or within `bounds`, in the CRS of the places.

    Raises InputError as for :func:`lattice`, and for a table without a finite place.
    """
    own = table.crs if crs is None else crs
    own = "EPSG:4326" if own is None and table.named_degrees else own
    places = table.xy[np.isfinite(table.xy).all(1)]
    if not len(places):
        raise InputError("the table has no row with finite coordinates")
    if table.named_degrees:
        places = np.stack([_unwrapped(places[:, 0]), places[:, 1]], 1)
    if bounds is None and 0 < resolution < np.inf:
        low, high = np.floor(places.min(0) / resolution), np.ceil(places.max(0) / resolution)
        (west, south), (east, north) = (low * resolution).tolist(), (np.maximum(high, low + 1) * resolution).tolist()
        bounds = (west, south, east, north)
    return lattice(bounds or (0.0, 0.0, 1.0, 1.0), resolution, own)


def _unwrapped(longitudes: Float64Array) -> Float64Array:
    """Longitudes in the shortest range that holds all of them, which may cross 0 or 180 degrees."""
    rising = np.unique(longitudes % 360)
    gaps = np.diff(rising, append=rising[0] + 360)
    if 360 - gaps.max() >= np.ptp(longitudes):
        return longitudes
    first = rising[(gaps.argmax() + 1) % len(rising)]
    west = (first + 180) % 360 - 180
    return np.asarray((longitudes - first) % 360 + west)
