"""A CRS as the attributes of a variable."""

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
