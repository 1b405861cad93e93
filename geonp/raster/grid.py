"""The grid of a raster as a frozen value: which dimensions are spatial, how its cells lie and in which CRS."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import InputError

__all__ = ["Grid", "crs_name", "grid_mapping_name"]

_NAME_PAIRS = (("y", "x"), ("latitude", "longitude"), ("lat", "lon"))
_Y_NAMES = {"latitude", "projection_y_coordinate", "grid_latitude"}
_X_NAMES = {"longitude", "projection_x_coordinate", "grid_longitude"}
_LATITUDE_UNITS = {"degrees_north", "degree_north", "degrees_n", "degree_n"}
_LONGITUDE_UNITS = {"degrees_east", "degree_east", "degrees_e", "degree_e"}
_EVEN_TOLERANCE = 0.01  # of a cell: float32 longitudes of kilometre grids are off by up to 0.2 %
_FULL_CIRCLE = 360.0


@dataclass(frozen=True)
class Grid:
    """The horizontal lattice of a raster.

    Attributes
    ----------
    y_dim, x_dim
        Names of the vertical (row) and horizontal (column) dimensions.
    shape
        ``(ny, nx)``: rows, columns.
    spacing
        ``(dy, dx)``: signed step from one cell centre to the next, in units of the coordinates (the mean step where
        they are uneven). 1.0 along a dimension without a one-dimensional numeric coordinate; for a single cell the size
        in GDAL's GeoTransform, or 1.0. Longitudes that wrap, from 359 to 0 or from 180 to -179, are taken to go on.
    origin
        ``(y, x)`` of the centre of cell (0, 0); 0.0 along a dimension without such a coordinate.
    placed
        ``(y, x)``: True along a dimension with such a coordinate.
    even
        ``(y, x)``: True along a dimension whose coordinate is evenly spaced to within 1 % of a cell, or absent.
    crs
        Coordinate reference system as WKT, or None where the raster declares none.
    geographic
        True where the coordinates are longitudes and latitudes in degrees.
    periodic_x
        True where the columns go round the whole Earth, so that the last column neighbours the first.
    regular
        True where both dimensions are `even`, and the grid is not curvilinear. geonp works in cells, so that
        False (Gaussian latitudes, curvilinear grids) is allowed and merely recorded.
    """

    y_dim: Hashable
    x_dim: Hashable
    shape: tuple[int, int]
    spacing: tuple[float, float]
    origin: tuple[float, float]
    placed: tuple[bool, bool]
    even: tuple[bool, bool]
    crs: str | None
    geographic: bool
    periodic_x: bool
    regular: bool

    @classmethod
    def from_xarray(cls, obj: xr.DataArray | xr.Dataset) -> Grid:
        """Read the grid of a DataArray or Dataset from its dimensions, coordinates and CF attributes.

        The spatial dimensions are, in this order: ``y``/``x``, ``latitude``/``longitude`` or ``lat``/``lon`` (in any
        case); dimensions whose coordinate has CF ``axis``, ``standard_name`` or ``units`` of such a coordinate; the
        two dimensions of a two-dimensional latitude. Nothing but coordinates is read.

        Raises
        ------
        InputError
            Where there are no two spatial dimensions, or one of them has no cells.
        """
        y_dim, x_dim = _spatial_dims(obj)
        shape = (int(obj.sizes[y_dim]), int(obj.sizes[x_dim]))
        if 0 in shape:
            raise InputError(
                f"The raster has no cells: got shape {shape} (rows, columns). Select at least one of each."
            )
        dy_written, dx_written = _written_spacing(obj)
        crs = _crs_wkt(obj)
        geographic = _is_geographic(obj, x_dim, crs)
        y0, dy, y_even = _ramp(obj, y_dim, dy_written, wraps=False)
        x0, dx, x_even = _ramp(obj, x_dim, dx_written, wraps=geographic)
        circle = abs(shape[1] * abs(dx) - _FULL_CIRCLE) <= abs(dx) / 2
        return cls(
            y_dim=y_dim,
            x_dim=x_dim,
            shape=shape,
            spacing=(dy, dx),
            origin=(y0, x0),
            placed=(_has_numbers(obj, y_dim), _has_numbers(obj, x_dim)),
            even=(y_even, x_even),
            crs=crs,
            geographic=geographic,
            periodic_x=geographic and x_even and circle,
            regular=y_even and x_even and not _is_curvilinear(obj, y_dim, x_dim),
        )

    @property
    def bounds(self) -> tuple[float, float, float, float] | None:
        """West, south, east and north edge, in units of the coordinates; None without regular coordinates."""
        if not all(self.placed) or not self.regular:
            return None
        (south, north), (west, east) = (
            sorted((first - step / 2, first + step * (n - 0.5)))
            for first, step, n in zip(self.origin, self.spacing, self.shape, strict=True)
        )
        return west, south, east, north

    def require_same(self, other: Grid, what: str) -> None:
        """Check that ``other`` has the same cells as this grid: shape, first and last cell, and CRS.

        A CRS that only one of them declares, and the places along a dimension without coordinates, are not compared.

        Parameters
        ----------
        other
            Grid of a second raster, such as a mask.
        what
            Its name in the message: "mask".

        Raises
        ------
        InputError
            Naming the first property in which they differ.
        """
        if other.shape != self.shape:
            raise InputError(
                f"The {what} has another shape than the raster: got {other.shape}, expected {self.shape} "
                f"(rows, columns). Cut or reproject the {what} to the raster's grid."
            )
        if self.crs and other.crs and not _same_crs(self.crs, other.crs):
            raise InputError(
                f"The {what} has another CRS than the raster: got {crs_name(other.crs)}, expected "
                f"{crs_name(self.crs)}. Reproject the {what} to the raster's grid."
            )
        half_cell = np.abs(self.spacing) / 2
        for which, cell in (("first", (0, 0)), ("last", np.subtract(self.shape, 1))):
            ours, theirs = (np.add(grid.origin, np.multiply(cell, grid.spacing)) for grid in (self, other))
            apart = np.abs(ours - theirs) > half_cell
            if np.any(apart & np.array(self.placed) & np.array(other.placed)):
                raise InputError(
                    f"The {what} lies elsewhere than the raster: the centre (y, x) of its {which} cell is "
                    f"{tuple(theirs.tolist())}, expected {tuple(ours.tolist())}. Cut the {what} to the raster's grid, "
                    "cells of the same size, rows in the same order."
                )


def grid_mapping_name(obj: xr.DataArray | xr.Dataset) -> str | None:
    """Name of the variable that holds the CRS of ``obj``: CF ``grid_mapping``, else rioxarray's ``spatial_ref``."""
    variables = [obj.variable] if isinstance(obj, xr.DataArray) else list(obj.data_vars.values())
    for variable in variables:
        name = variable.encoding.get("grid_mapping", variable.attrs.get("grid_mapping"))
        # The extended form of CF, "crs: x y", names the coordinates too.
        plain = str(name).split(":")[0].strip()
        if plain in _attached(obj):
            return plain
    return "spatial_ref" if "spatial_ref" in _attached(obj) else None


def _attached(obj: xr.DataArray | xr.Dataset) -> Mapping[Any, Any]:
    return obj.coords if isinstance(obj, xr.DataArray) else obj.variables


def _spatial_dims(obj: xr.DataArray | xr.Dataset) -> tuple[Hashable, Hashable]:
    dims = list(obj.dims)
    by_name = {str(dim).lower(): dim for dim in dims}
    for y_name, x_name in _NAME_PAIRS:
        if y_name in by_name and x_name in by_name:
            return by_name[y_name], by_name[x_name]
    lines = [dim for dim in dims if dim in obj.coords]
    y_dim = next((dim for dim in lines if _is_axis(obj.coords[dim].attrs, "y", _Y_NAMES, _LATITUDE_UNITS)), None)
    x_dim = next((dim for dim in lines if _is_axis(obj.coords[dim].attrs, "x", _X_NAMES, _LONGITUDE_UNITS)), None)
    if y_dim is not None and x_dim is not None:
        return y_dim, x_dim
    for coord in obj.coords.values():
        if coord.ndim == 2 and _is_axis(coord.attrs, "y", _Y_NAMES, _LATITUDE_UNITS):
            return coord.dims[0], coord.dims[1]
    raise InputError(
        f"No spatial dimensions found: got dimensions ({_listed(dims)}), expected a pair named y/x, lat/lon or "
        f"latitude/longitude, or coordinates with CF axis, standard_name or units. Rename them, for example "
        f"obj.rename({{'row': 'y', 'col': 'x'}})."
    )


def _is_axis(attrs: Mapping[Any, Any], axis: str, standard_names: set[str], units: set[str]) -> bool:
    return (
        str(attrs.get("axis", "")).lower() == axis
        or str(attrs.get("standard_name", "")).lower() in standard_names
        or str(attrs.get("units", "")).lower() in units
    )


def _written_spacing(obj: xr.DataArray | xr.Dataset) -> tuple[float, float]:
    """Read ``(dy, dx)`` from GDAL's GeoTransform, the only place that gives the size of a single cell, else 1.0."""
    name = grid_mapping_name(obj)
    terms = str(_attached(obj)[name].attrs.get("GeoTransform", "")).split() if name is not None else []
    return (float(terms[5]), float(terms[1])) if len(terms) == 6 else (1.0, 1.0)


def _has_numbers(obj: xr.DataArray | xr.Dataset, dim: Hashable) -> bool:
    return dim in obj.coords and obj.coords[dim].dtype.kind in "iuf"


def _ramp(
    obj: xr.DataArray | xr.Dataset, dim: Hashable, step_of_one: float, *, wraps: bool
) -> tuple[float, float, bool]:
    """First value, mean step and evenness of the coordinate along ``dim``, which starts again after a full circle."""
    if not _has_numbers(obj, dim):
        return 0.0, 1.0, True
    values = np.asarray(obj.coords[dim].values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(
            f"The coordinate {dim!r} holds values that are not finite; expected a number for each of its "
            f"{values.size} cells. Repair it or drop it with drop_vars({dim!r})."
        )
    if values.size == 1:
        return float(values[0]), step_of_one, True
    if wraps:
        values = np.unwrap(values, period=_FULL_CIRCLE)
    step = float(values[-1] - values[0]) / (values.size - 1)
    offset = np.abs(values - (values[0] + step * np.arange(values.size)))
    return float(values[0]), step, bool(offset.max() <= _EVEN_TOLERANCE * abs(step))


def _is_curvilinear(obj: xr.DataArray | xr.Dataset, y_dim: Hashable, x_dim: Hashable) -> bool:
    """Whether longitude and latitude are two-dimensional and the dimensions have no coordinate of their own."""
    if y_dim in obj.coords and x_dim in obj.coords:
        return False
    return any(set(coord.dims) == {y_dim, x_dim} for coord in obj.coords.values())


def _is_geographic(obj: xr.DataArray | xr.Dataset, x_dim: Hashable, crs: str | None) -> bool:
    if crs is not None:
        from pyproj import CRS

        return bool(CRS.from_wkt(crs).is_geographic)
    attrs = obj.coords[x_dim].attrs if x_dim in obj.coords else {}
    named = str(x_dim).lower() in {"lon", "longitude"}
    return named or str(attrs.get("standard_name", "")) == "longitude" or str(attrs.get("units")) in _LONGITUDE_UNITS


def _crs_wkt(obj: xr.DataArray | xr.Dataset) -> str | None:
    name = grid_mapping_name(obj)
    if name is None:
        return _crs_attribute(obj)
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    attrs = _attached(obj)[name].attrs
    written = attrs.get("crs_wkt") or attrs.get("spatial_ref")
    try:
        if written:
            return str(CRS.from_user_input(str(written)).to_wkt())
        return str(CRS.from_cf(dict(attrs)).to_wkt()) if "grid_mapping_name" in attrs else None
    except (CRSError, KeyError) as error:
        raise InputError(
            f"The CRS in variable {name!r} cannot be read: got {written or dict(attrs)!r}, expected WKT in its "
            f"attribute crs_wkt or CF grid mapping attributes. Correct it or drop it with drop_vars({name!r})."
        ) from error


def _crs_attribute(obj: xr.DataArray | xr.Dataset) -> str | None:
    """WKT of the CRS in an attribute ``crs``, as xarray once wrote: a code, PROJ's or WKT.

    No convention, so that it may be anything: names such as WGS84 are said of coordinates in metres, too.
    """
    holders = [obj, *(obj.data_vars.values() if isinstance(obj, xr.Dataset) else ())]
    told = next((crs.strip() for holder in holders if isinstance(crs := holder.attrs.get("crs"), str)), "")
    told = re.sub(r"^\+init=(\S+).*", r"\1", told)
    if not re.match(r"\w+:\d+$|\+proj=|[A-Z]+(CRS|CS)\[", told):
        return None
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    with suppress(CRSError):
        crs = CRS.from_user_input(told)
        return str(crs.to_wkt()) if crs.is_projected or crs.is_geographic else None
    return None


def _same_crs(first: str, second: str) -> bool:
    from pyproj import CRS

    return bool(CRS.from_wkt(first).equals(CRS.from_wkt(second), ignore_axis_order=True))


def crs_name(wkt: str) -> str:
    """Name of a CRS for people, such as ``WGS 84 / UTM zone 33N (EPSG:32633)``."""
    from pyproj import CRS

    crs = CRS.from_wkt(wkt)
    code = crs.to_epsg()
    return f"{crs.name} (EPSG:{code})" if code else str(crs.name)


def _listed(names: Iterable[Hashable]) -> str:
    return ", ".join(map(repr, names)) or "none"
