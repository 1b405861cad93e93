"""Tables of measurements at places, and grids made from bounds and a resolution."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyproj
import xarray as xr
from pyproj.exceptions import CRSError

from geonp.errors import InputError
from geonp.scattered import Observations

__all__ = ["Table", "lattice", "lattice_around", "read_table", "transformed"]

_X_NAMES = ("lon", "longitude", "long", "x", "easting", "east")
_Y_NAMES = ("lat", "latitude", "y", "northing", "north")
_DEGREES = {"lon", "longitude", "long", "lat", "latitude"}

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """Places ``(n, 2)``, columns of values ``(n,)`` by name, the names of the coordinates, attributes of columns."""

    xy: FloatArray
    values: Mapping[str, npt.NDArray[np.floating]]
    x: str
    y: str
    attrs: Mapping[str, Mapping[Hashable, Any]]

    @property
    def named_degrees(self) -> bool:
        """Whether the coordinates are called longitude and latitude."""
        return {self.x.lower(), self.y.lower()} <= _DEGREES

    def observations(self, name: str, geographic: bool, seed: int) -> Observations:
        """The finite measurements of one column."""
        keep = np.isfinite(self.values[name]) & np.isfinite(self.xy).all(1)
        values = np.asarray(self.values[name][keep])
        values = values if values.dtype == np.float32 else values.astype(np.float64)
        return Observations(self.xy[keep], values, geographic, seed)


def read_table(
    points: pd.DataFrame | xr.Dataset, values: str | Sequence[str] | None, x: str | None, y: str | None
) -> Table:
    """Find the columns of a table; `values` may be empty, for places alone.

    Raises
    ------
    InputError
        For columns that are not there, not numbers, or not to be guessed; for latitudes beyond the poles.
    """
    attrs: dict[str, Mapping[Hashable, Any]] = {}
    if isinstance(points, xr.Dataset):
        if len(points.sizes) != 1:
            raise InputError(
                f"the Dataset of points has dimensions {tuple(map(str, points.sizes))}, expected one, along which each "
                "entry is a measurement; select the others, or use ds.to_dataframe().reset_index()"
            )
        attrs = {str(name): dict(array.attrs) for name, array in points.variables.items()}
        points = points.to_dataframe().reset_index()
    if not isinstance(points, pd.DataFrame):
        raise InputError(
            f"points must be a pandas DataFrame or an xarray Dataset, got {type(points).__name__}; "
            "make one: pandas.DataFrame({'x': x, 'y': y, 'value': values})"
        )
    columns = [str(name) for name in points.columns]
    points = points.set_axis(columns, axis=1)
    x, y = _coordinate(columns, x, _X_NAMES, "x"), _coordinate(columns, y, _Y_NAMES, "y")
    names = [values] if isinstance(values, str) else values
    if names is None:
        numbers = [c for c in columns if c not in (x, y) and points[c].dtype.kind in "iuf"]
        if len(numbers) != 1:
            raise InputError(
                f"say which columns to interpolate by values=...: the table has {numbers or 'none'} of numbers "
                "beside the coordinates"
            )
        names = numbers
    for name in (x, y, *names):
        if name not in columns:
            raise InputError(f"the table has no column {name!r}, got {columns}")
        if points[name].dtype.kind not in "iuf":
            raise InputError(f"column {name!r} holds {points[name].dtype}, expected numbers")
    xy = points[[x, y]].to_numpy(np.float64)
    return Table(xy, {name: points[name].to_numpy() for name in names}, x, y, attrs)


def _coordinate(columns: list[str], given: str | None, names: tuple[str, ...], axis: str) -> str:
    if given is not None:
        return given
    found = [column for column in columns if column.lower() in names]
    if len(found) != 1:
        raise InputError(
            f"say which column is the coordinate {axis} by {axis}=...: expected one of {', '.join(names)}, got "
            f"{found or columns}"
        )
    return found[0]


def transformed(table: Table, crs: Any, target: str | None, geographic: bool) -> Table:
    """The table with its places in the reference system of the target, checked.

    Raises
    ------
    InputError
        For a `crs` that pyproj does not know, one where the target has none, or latitudes beyond the poles.
    """
    own = crs if crs is not None else ("EPSG:4326" if table.named_degrees and not geographic and target else None)
    if own is not None:
        try:
            source = pyproj.CRS.from_user_input(own)
        except CRSError as error:
            raise InputError(f"crs is not known: got {crs!r}, expected e.g. 'EPSG:4326' ({error})") from error
        if target is None and not (geographic and source.is_geographic):
            raise InputError(
                "the places have a crs, but the target has none: give the grid one, e.g. at.rio.write_crs('EPSG:32633')"
            )
        goal = pyproj.CRS.from_user_input(target or "EPSG:4326")
        if source != goal:
            moved = pyproj.Transformer.from_crs(source, goal, always_xy=True).transform(*table.xy.T)
            table = replace(table, xy=np.stack(moved, 1))
    if geographic and np.nanmax(np.abs(table.xy[:, 1]), initial=0.0) > 90:
        raise InputError(
            f"column {table.y!r} holds a latitude of {np.nanmax(np.abs(table.xy[:, 1])):g}, expected -90 to 90; "
            "are x and y exchanged, or is the crs of the places another (crs=...)?"
        )
    return table


def lattice(
    bounds: tuple[float, float, float, float], resolution: float | tuple[float, float], crs: Any = None
) -> xr.DataArray:
    """An empty grid to interpolate to: cells of `resolution` (one number, or that along x and y), north up.

    Parameters
    ----------
    bounds : tuple of float
        West, south, east and north edges; east and south move to whole cells.
    resolution : float or tuple of float
    crs : optional
        Anything that pyproj takes; longitudes and latitudes make the dimensions ``lat`` and ``lon``.

    Raises
    ------
    InputError
        For empty bounds, a resolution that is not positive, or an unknown crs.
    """
    west, south, east, north = bounds
    dx, dy = resolution if isinstance(resolution, tuple) else (resolution, resolution)
    if not (east > west and north > south and dx > 0 and dy > 0):
        raise InputError(
            f"expected bounds west < east and south < north, and a resolution above 0, got {bounds} and {resolution}"
        )
    x = west + dx * (np.arange(max(round((east - west) / dx), 1)) + 0.5)
    y = north - dy * (np.arange(max(round((north - south) / dy), 1)) + 0.5)
    try:
        system = None if crs is None else pyproj.CRS.from_user_input(crs)
    except CRSError as error:
        raise InputError(f"crs is not known: got {crs!r}, expected e.g. 'EPSG:4326' ({error})") from error
    degrees = system is not None and system.is_geographic
    dims = ("lat", "lon") if degrees else ("y", "x")
    unit = "m" if system is None or system.axis_info[0].unit_name == "metre" else system.axis_info[0].unit_name
    units = ("degrees_north", "degrees_east") if degrees else (unit, unit)
    kinds = ("latitude", "longitude") if degrees else ("projection_y_coordinate", "projection_x_coordinate")
    described = [
        {"standard_name": k, "units": u} if system is not None else {} for k, u in zip(kinds, units, strict=True)
    ]
    coords: dict[str, Any] = {dim: (dim, c, a) for dim, c, a in zip(dims, (y, x), described, strict=True)}
    if system is not None:
        coords["spatial_ref"] = ((), 0, {**system.to_cf(), "spatial_ref": system.to_wkt()})
    return xr.DataArray(np.zeros((len(y), len(x)), np.float32), coords, dims)


def lattice_around(
    table: Table, resolution: float, bounds: tuple[float, float, float, float] | None, crs: Any = None
) -> xr.DataArray:
    """:func:`lattice` of the places of a table, or of `bounds`, in the reference system of the places.

    Raises
    ------
    InputError
        As :func:`lattice`; for a table without any finite place.
    """
    own = crs if crs is not None else ("EPSG:4326" if table.named_degrees else None)
    places = table.xy[np.isfinite(table.xy).all(1)]
    if not len(places):
        raise InputError("the table has no row with a finite place")
    if bounds is None and resolution > 0:
        low, high = np.floor(places.min(0) / resolution), np.ceil(places.max(0) / resolution)
        (west, south), (east, north) = (low * resolution).tolist(), (np.maximum(high, low + 1) * resolution).tolist()
        bounds = (west, south, east, north)
    return lattice(bounds or (0.0, 0.0, 1.0, 1.0), resolution, own)
