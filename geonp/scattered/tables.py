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

from geonp.errors import InputError, warn
from geonp.scattered.squares import Observations

__all__ = ["Table", "lattice", "lattice_around", "read_table", "transformed"]

_X_NAMES = ("lon", "longitude", "long", "x", "easting", "east")
_Y_NAMES = ("lat", "latitude", "y", "northing", "north")
_LONGITUDES, _LATITUDES = {"lon", "longitude", "long"}, {"lat", "latitude"}
_MARKS = (-9999.0, -999.0, -99.0, -32768.0, -99999.0, 9999.0, 99999.0, 1e20)
"""Numbers that mark missing measurements in files that have no empty cells."""
_APART = 3.0
"""A mark is as many times the range of the others away from them."""

MOST_CELLS = 2**40
"""Of a grid made from a resolution: more than the Earth has at 30 m."""

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
        return self.x.lower() in _LONGITUDES and self.y.lower() in _LATITUDES

    def usable(self, name: str) -> npt.NDArray[np.bool_]:
        """Which rows have a finite value of one column, and a finite place."""
        return np.asarray(np.isfinite(self.values[name]) & np.isfinite(self.xy).all(1))

    def warn_of_marks(self) -> None:
        """Warn of numbers far from all others that usually mark missing measurements."""
        for name in self.values:
            values = self.values[name][self.usable(name)].astype(np.float64)
            for mark in _MARKS:
                found = np.isclose(values, mark, rtol=1e-6, atol=0)
                others = values[~found]
                if found.any() and others.size and np.abs(others - mark).min() > _APART * max(np.ptp(others), 1e-9):
                    warn(
                        f"column {name!r} holds {mark:g}, far from all else, in {found.sum()} rows, and it counts as "
                        "measured. Where it marks what is missing, leave such cells empty.",
                    )

    def observations(self, name: str, geographic: bool, seed: int) -> Observations:
        """The finite measurements of one column."""
        keep = self.usable(name)
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
    given = [x, y, *([values] if isinstance(values, str) else values or ())]
    if unknown := [name for name in given if name is not None and name not in columns]:
        raise InputError(f"the table has no column {unknown[0]!r}, got {columns}")
    x, y = _coordinate(columns, x, _X_NAMES, "x"), _coordinate(columns, y, _Y_NAMES, "y")
    if x.lower() in _LATITUDES or y.lower() in _LONGITUDES:
        raise InputError(
            f"x is the longitude and y the latitude: got x={x!r} and y={y!r}; exchange them, or rename the columns"
        )
    names = [values] if isinstance(values, str) else values
    if names is None:
        numbers = [c for c in columns if c not in (x, y) and points[c].dtype.kind in "iuf"]
        if len(numbers) != 1:
            texts = [f"{c!r} holds {text!r}" for c in columns if (text := _a_text(points[c])) is not None]
            raise InputError(
                f"say which columns to interpolate by values=... (--value): the table has {numbers or 'none'} of "
                f"numbers beside the coordinates{f', and {texts[0]}' if texts else ''}"
            )
        names = numbers
    for name in (x, y, *names):
        if points[name].dtype.kind not in "iuf":
            text = _a_text(points[name])
            held = points[name].dtype if text is None else f"{text!r}"
            raise InputError(f"column {name!r} holds {held}, expected numbers; leave cells without one empty")
    if both := [name for name in names if name in (x, y)]:
        raise InputError(f"column {both[0]!r} is a coordinate: expected another to interpolate, of {columns}")
    xy = points[[x, y]].to_numpy(np.float64)
    return Table(xy, {name: points[name].to_numpy() for name in names}, x, y, attrs)


def _a_text(column: Any) -> str | None:
    """The first entry of a column that is a text and no number."""
    if column.dtype.kind != "O":
        return None
    return next((v for v in column[pd.to_numeric(column, errors="coerce").isna()] if isinstance(v, str)), None)


def _coordinate(columns: list[str], given: str | None, names: tuple[str, ...], axis: str) -> str:
    if given is not None:
        return given
    found = [column for column in columns if column.lower() in names]
    if len(found) != 1:
        raise InputError(
            f"say which column is the coordinate {axis} by {axis}=... (--{axis}): expected one of {', '.join(names)}, "
            f"got {found or columns}"
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
        if table.named_degrees and not source.is_geographic:
            raise InputError(
                f"the places are in columns {table.x!r} and {table.y!r}, but their crs is {source.name}, which has no "
                "degrees: leave crs out (--crs), and for a grid in it give a raster of that grid (at=..., --like)"
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
        For empty bounds, a resolution that is not positive or too small, latitudes beyond the poles, or an unknown crs.
    """
    west, south, east, north = bounds
    dx, dy = resolution if isinstance(resolution, tuple) else (resolution, resolution)
    if not (0 < dx < np.inf and 0 < dy < np.inf):
        raise InputError(f"the resolution must be a number above 0, got {resolution}")
    if not (np.isfinite(bounds).all() and east > west and north > south):
        raise InputError(f"the bounds must be west < east and south < north, got {west:g} {south:g} {east:g} {north:g}")
    if (cells := (east - west) / dx * (north - south) / dy) > MOST_CELLS:
        raise InputError(
            f"a resolution of {resolution} makes {cells:.2g} cells of bounds {west:g} {south:g} {east:g} {north:g}; "
            "both are in the unit of the coordinates: choose a larger resolution, or smaller bounds"
        )
    x = west + dx * (np.arange(max(round((east - west) / dx), 1)) + 0.5)
    y = north - dy * (np.arange(max(round((north - south) / dy), 1)) + 0.5)
    try:
        system = None if crs is None else pyproj.CRS.from_user_input(crs)
    except CRSError as error:
        raise InputError(f"crs is not known: got {crs!r}, expected e.g. 'EPSG:4326' ({error})") from error
    degrees = system is not None and system.is_geographic
    if degrees and np.abs(y).max() > 90:
        raise InputError(
            f"the grid would have cells at latitude {y[np.abs(y).argmax()]:g}, beyond the pole; resolution and bounds "
            f"are in degrees here: got {resolution} and {west:g} {south:g} {east:g} {north:g}"
        )
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
    return xr.DataArray(np.broadcast_to(np.float32(0), (len(y), len(x))), coords, dims)


def _around(longitudes: FloatArray) -> FloatArray:
    """Longitudes that are no farther apart than they must be: across 0 or 180 degrees where all lie around it."""
    rising = np.unique(longitudes % 360)
    gaps = np.diff(rising, append=rising[0] + 360)
    if 360 - gaps.max() >= np.ptp(longitudes):
        return longitudes
    first = rising[(gaps.argmax() + 1) % len(rising)]
    west = (first + 180) % 360 - 180
    return np.asarray((longitudes - first) % 360 + west)


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
    if table.named_degrees:
        places = np.stack([_around(places[:, 0]), places[:, 1]], 1)
    if bounds is None and 0 < resolution < np.inf:
        low, high = np.floor(places.min(0) / resolution), np.ceil(places.max(0) / resolution)
        (west, south), (east, north) = (low * resolution).tolist(), (np.maximum(high, low + 1) * resolution).tolist()
        bounds = (west, south, east, north)
    return lattice(bounds or (0.0, 0.0, 1.0, 1.0), resolution, own)
