"""Which dimensions of an array are rows and columns, by their names and the CF attributes of coordinates."""

from __future__ import annotations

import re
from collections.abc import Hashable

import xarray as xr

from geonp.errors import InputError

_NAMES = (("y", "x"), ("latitude", "longitude"), ("lat", "lon"))
# Names of dimensions without such a name or CF attributes: of map projections, models of weather, climate and ocean,
# swaths of satellites, and arrays.
_PATTERNS = (("latitude", "longitude"), ("lat", "lon"), ("y", "x"), ("row", "col"), ("eta", "xi"), ("j", "i"))
"""Parts of a name of rows, and those of the name of columns that is otherwise the same."""
# Other names of dimensions of map projections, models of weather, climate and ocean, swaths of satellites, and arrays.
_OTHER_NAMES = (
    ("northing", "easting"),
    ("xlat", "xlong"),
    ("south_north", "west_east"),
    ("south_north_stag", "west_east"),
    ("south_north", "west_east_stag"),
    ("north_south", "east_west"),
    ("number_of_lines", "pixels_per_line"),
    ("downtrack", "crosstrack"),
    ("along_track", "across_track"),
    ("rows", "columns"),
    ("row", "column"),
    ("lines", "samples"),
    ("lines", "columns"),
    ("lines", "pixels"),
    ("line", "pixel"),
    ("scanline", "ground_pixel"),
    ("lat", "long"),
    ("height", "width"),
)
LATITUDES = {"lat", "latitude", "nav_lat", "xlat", "lats"}
"""Names of latitudes, in lower case."""
LONGITUDES = {"lon", "long", "longitude", "nav_lon", "xlong", "lons"}
"""Names of longitudes, in lower case."""
_CF_NAMES = {
    "y": {"latitude", "projection_y_coordinate", "grid_latitude"},
    "x": {"longitude", "projection_x_coordinate", "grid_longitude"},
}
CF_UNITS = {
    "y": {"degrees_north", "degree_north", "degrees_n", "degree_n"},
    "x": {"degrees_east", "degree_east", "degrees_e", "degree_e"},
}
"""Units of latitudes and longitudes in CF, in lower case."""


def spatial_dims(obj: xr.DataArray | xr.Dataset) -> tuple[Hashable, Hashable]:
    """The dimensions of rows and columns; see :meth:`geonp.raster.grid.Grid.from_xarray`.

    Raises InputError if there are none.
    """
    if named := _named(obj, _NAMES):
        return named
    indexed = [dim for dim in obj.dims if has_coordinate(obj, dim)]
    y_dim, x_dim = (next((dim for dim in indexed if _is_axis(obj.coords[dim], axis)), None) for axis in "yx")
    if y_dim is not None and x_dim is not None:
        return y_dim, x_dim
    for name, coord in obj.coords.items():
        if coord.ndim >= 2 and is_latitude(name, coord):
            return coord.dims[-2], coord.dims[-1]
    if named := _alike(obj) or _named(obj, _OTHER_NAMES):
        return named
    raise InputError(
        f"No spatial dimensions found: got dimensions ({', '.join(map(repr, obj.dims)) or 'none'}), expected a pair "
        "named y/x, lat/lon or latitude/longitude, or coordinates with CF axis, standard_name or units. Rename them, "
        "obj.rename({...: 'y', ...: 'x'}), or name them with y_dim and x_dim (--y, --x). Measurements at stations or "
        "along tracks are "
        "a table: see geonp.interpolate (geonp grid)."
    )


def _named(obj: xr.DataArray | xr.Dataset, pairs: tuple[tuple[str, str], ...]) -> tuple[Hashable, Hashable] | None:
    """The dimensions that have the first of `pairs` of names, in any case."""
    by_name = {str(dim).lower(): dim for dim in obj.dims}
    return next(((by_name[y], by_name[x]) for y, x in pairs if y in by_name and x in by_name), None)


def _alike(obj: xr.DataArray | xr.Dataset) -> tuple[Hashable, Hashable] | None:
    """Two dimensions whose names differ in a pair of :data:`_PATTERNS`, such as ``ydim`` and ``xdim``.

    Numbers of dimensions may differ in names of latitudes and longitudes, as in ``g0_lat_0`` and ``g0_lon_1``.
    """
    for y_part, x_part in _PATTERNS:
        ignored = r"\d+" if y_part.startswith("lat") else "(?!)"
        by_name = {re.sub(ignored, "", str(dim).lower()): dim for dim in reversed(list(obj.dims))}
        for dim in obj.dims:
            name = re.sub(ignored, "", str(dim).lower())
            for part in re.finditer(y_part, name):
                x_name = name[: part.start()] + x_part + name[part.end() :]
                if x_name in by_name:
                    return dim, by_name[x_name]
    return None


def has_coordinate(obj: xr.DataArray | xr.Dataset, dim: Hashable) -> bool:
    """Whether a dimension has a coordinate, a value for each entry.

    A variable on several dimensions may have the name of one of them, such as latitudes of all cells.
    """
    return dim in obj.coords and obj.coords[dim].dims == (dim,)


def _is_axis(coord: xr.DataArray | xr.Variable, axis: str) -> bool:
    """Whether the CF attributes of a coordinate are those of rows, ``"y"``, or columns, ``"x"``."""
    given_axis, name, units = (str(coord.attrs.get(key, "")).lower() for key in ("axis", "standard_name", "units"))
    return given_axis == axis or name in _CF_NAMES[axis] or units in CF_UNITS[axis]


def data_variables(ds: xr.Dataset) -> dict[Hashable, xr.Variable]:
    """The data variables of a Dataset, without coordinates: to find these, xarray looks at all variables each time."""
    return {name: ds.variables[name] for name in ds.data_vars}


def is_coordinate(da: xr.DataArray | xr.Variable) -> bool:
    """Whether the CF attributes of an array are those of rows or columns, as of a two-dimensional latitude."""
    return _is_axis(da, "y") or _is_axis(da, "x")


def is_latitude(name: Hashable, coord: xr.DataArray) -> bool:
    """Whether a coordinate is called as latitudes are, or has CF attributes of rows."""
    return _is_axis(coord, "y") or str(name).lower() in LATITUDES


def is_geolocation(name: Hashable, variable: xr.Variable) -> bool:
    """Whether a variable holds latitudes or longitudes, by its name, CF ``standard_name`` or ``units``."""
    return str(name).lower() in LATITUDES | LONGITUDES or any(_is_axis(variable, axis) for axis in "yx")
