"""Land where no sea is: parts of continents far from every coast, without a map of the coasts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from geonp.raster.arrays import BoolArray, Float64Array

INLAND: dict[str, tuple[float, float, float, float]] = {
    "the Sahara": (-4, 18, 26, 28),
    "central Africa": (16, -12, 27, 3),
    "Brazil": (-60, -18, -47, -6),
    "North America": (-111, 36, -95, 48),
    "Canada": (-118, 52, -101, 58),
    "Siberia": (86, 57, 124, 67),
    "China": (86, 33, 111, 47),
    "India": (76, 19, 82, 26),
    "Arabia": (43, 19, 48, 26),
    "Russia": (32, 51, 50, 56),
    "Australia": (123, -28, 139, -21),
    "Greenland": (-46, 69, -36, 77),
    "Antarctica": (-180, -90, 180, -86),
}
"""West, south, east and north of rectangles on land, in degrees: more than 100 km from the sea of OSTIA."""

_SEA = re.compile(r"sea_(surface|water|ice|floor|binary)_|.*_in_sea_water|.*_sea_water_|ocean_")


def is_of_sea(attrs: Mapping[Any, Any]) -> bool:
    """Whether the CF standard name of a variable says that it is of the sea, its surface or its ice."""
    return _SEA.match(str(attrs.get("standard_name", ""))) is not None


def inland(latitudes: Float64Array, longitudes: Float64Array) -> dict[str, tuple[BoolArray, BoolArray]]:
    """Masks of rows and of columns of the cells in each of :data:`INLAND` that a grid in degrees has."""
    found = {}
    for name, (west, south, east, north) in INLAND.items():
        rows = (latitudes >= south) & (latitudes <= north)
        columns = (longitudes - west) % 360 <= east - west
        if rows.any() and columns.any():
            found[name] = rows, columns
    return found
