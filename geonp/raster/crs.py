"""A CRS as the attributes of a variable, and its name."""

from __future__ import annotations

import warnings
from typing import Any

from pyproj import CRS

LOST_IN_CF = "angle from rectified to skew grid parameter lost"
"""Beginning of a warning of pyproj: what the CF attributes of an oblique Mercator lack is in the WKT beside them."""


def cf_attrs(crs: CRS) -> dict[str, Any]:
    """The attributes of a CF grid mapping variable, with the WKT, where CF and where GDAL look for it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", LOST_IN_CF)
        return {**crs.to_cf(), "spatial_ref": crs.to_wkt()}


def crs_name(wkt: str) -> str:
    """Name of a CRS to print, such as ``WGS 84 / UTM zone 33N (EPSG:32633)``."""
    crs = CRS.from_wkt(wkt)
    code = crs.to_epsg()
    return f"{crs.name} (EPSG:{code})" if code else str(crs.name)
