"""Units of coordinates, compared with those of the axes of a CRS."""

from __future__ import annotations

import math
import re
from typing import Literal

import numpy as np
import xarray as xr
from pyproj import CRS

from geonp.errors import InputError
from geonp.raster.crs import cf_attrs
from geonp.raster.tolerances import TOLERANCES

Quantity = Literal["angle", "length"]

_PREFIXES = {
    ("", ""): 1.0,
    ("k", "kilo"): 1e3,
    ("h", "hecto"): 1e2,
    ("c", "centi"): 1e-2,
    ("m", "milli"): 1e-3,
    ("u", "micro"): 1e-6,
}
_NAMES: tuple[tuple[Quantity, tuple[str, ...]], ...] = (
    ("length", ("m", "meter", "meters", "metre", "metres")),
    ("angle", ("rad", "radian", "radians")),
)
_UNITS: dict[str, tuple[Quantity, float]] = {
    **{
        (symbol if len(name) <= 3 else word) + name: (quantity, factor)
        for (symbol, word), factor in _PREFIXES.items()
        for quantity, names in _NAMES
        for name in names
    },
    **dict.fromkeys(("ft", "foot", "feet", "international foot"), ("length", 0.3048)),
    **dict.fromkeys(("us survey foot", "us survey feet", "us-ft", "ftus"), ("length", 1200 / 3937)),
    **dict.fromkeys(("mile", "miles"), ("length", 1609.344)),
    "degree": ("angle", math.radians(1)),
    **dict.fromkeys(("grad", "gon"), ("angle", math.pi / 200)),
    **dict.fromkeys(("arcsec", "arcsecond", "arcseconds", "arc-second"), ("angle", math.radians(1 / 3600))),
}
_DEGREES = re.compile(r"(deg|degs|degree|degrees|arc_degree|arc_degrees)([ _]?(n|s|e|w|north|south|east|west|true))?$")


def parse_unit(text: object) -> tuple[Quantity, float] | None:
    """Quantity of a unit and its size in metres or radians, such as ``("length", 1000.0)`` for ``km`` or ``1e3 m``.

    None for a unit that is unknown or of another quantity.
    """
    name = re.sub(r"[\u00b5\u03bc]", "u", str(text)).strip().lower().replace("\u00b0", "degree")
    number = re.match(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*\*?\s*(?=[a-z])", name)
    name, count = (name[number.end() :], float(number[1])) if number else (name, 1.0)
    unit = _UNITS["degree"] if _DEGREES.match(name) else _UNITS.get(name.replace("_", " "))
    return None if unit is None else (unit[0], count * unit[1])


def unit_factor(coord: xr.DataArray, crs: CRS | None, *, geographic: bool) -> float:
    """Factor from the unit of a coordinate to that of its CRS; 1.0 if the coordinate has no unit that is known.

    Scan angles in a geostationary CRS are converted to its projected coordinates, which are the angles in radians times
    the height of the satellite (CF conventions, appendix F). Raises InputError if the coordinate is an angle and the
    axes are lengths, or the reverse.

    Parameters
    ----------
    coord
        Numeric coordinate of rows or columns. Longitudes and latitudes without units count as degrees.
    crs
        CRS of the coordinate, or None.
    geographic
        Whether the axes of the CRS, or the coordinates without one, are longitudes and latitudes. They are in degrees.
    """
    projected = crs is not None and crs.is_projected
    units = coord.attrs.get("units")
    if units is None and projected and _is_degrees(coord):
        units = "degrees"
    unit = parse_unit(units)
    if unit is None or not (geographic or projected):
        return 1.0
    quantity, size = unit
    axes = crs.axis_info if crs is not None and not geographic else []
    axis_size = axes[0].unit_conversion_factor if axes else math.radians(1)
    if quantity != ("angle" if geographic else "length"):
        height = cf_attrs(crs).get("perspective_point_height") if crs is not None and quantity == "angle" else None
        if height is None:
            raise InputError(
                f"The coordinate {coord.name!r} does not fit its CRS: got values in {units} with "
                f"{'longitudes and latitudes' if crs is None else crs.name}, expected "
                f"{'degrees' if geographic else 'lengths'}. Correct the units or the CRS, or drop the CRS "
                "with drop_vars."
            )
        size *= float(height)
    factor = size / axis_size
    return 1.0 if abs(factor - 1) < TOLERANCES.unit else factor


def in_degrees(crs: CRS) -> bool:
    """Whether the longitudes of a geographic CRS are in degrees from Greenwich."""
    meridian = crs.prime_meridian
    return crs.axis_info[0].unit_name == "degree" and (meridian is None or meridian.longitude == 0)


def is_transformed(coord: xr.DataArray) -> bool:
    """Whether the attributes of a coordinate say that it is projected or of a rotated pole."""
    unit = parse_unit(coord.attrs.get("units"))
    named = str(coord.attrs.get("standard_name", "")).startswith(("projection_", "grid_"))
    return named or (unit is not None and unit[0] == "length")


def _is_degrees(coord: xr.DataArray) -> bool:
    """Whether name and values of a coordinate without units are those of longitudes or latitudes."""
    limits = {"lat": 90.0, "latitude": 90.0, "lon": 360.0, "longitude": 360.0}
    limit = limits.get(str(coord.attrs.get("standard_name", coord.name)).lower())
    return limit is not None and float(np.abs(coord.values).max()) <= limit
