"""A CRS as the attributes of a variable, and its name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyproj import CRS
from pyproj.exceptions import CRSError

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


def crs_of_others(attrs: Mapping[Any, Any]) -> CRS | None:
    """CRS of the first readable attribute of those in use beside CF, such as ``proj4_params`` or ``spatial_epsg``.

    Codes have such names; PROJ strings and WKT may have any, such as ``esri_pe_string``.
    """
    named = {key: re.match(r"proj4?(_|:|text|$)|(spatial_)?epsg|srid", str(key), re.I) for key in attrs}
    texts = {key: re.match(r"\+(proj|init)=|[A-Z]+(CRS|CS)\[", str(value).strip()) for key, value in attrs.items()}
    return next(filter(None, (crs_of(attrs[key]) for key in attrs if named[key] or texts[key])), None)


def crs_of(given: Any) -> CRS | None:
    """CRS of an EPSG code, a PROJ string, WKT, PROJJSON, or a mapping with some of these; None for anything else."""
    if isinstance(given, dict):
        with suppress(CRSError):
            return CRS.from_user_input(given.get("wkt") or given.get("projjson") or given)
    number = re.fullmatch(r"\d{4,6}", str(given).strip())
    text = f"EPSG:{number[0]}" if number else re.sub(r"^\+init=(\S+).*", r"\1", str(given).strip())
    if re.match(r"\w+:\d+$|urn:ogc:def:crs:|\+proj=|[A-Z]+(CRS|CS)\[", text):
        with suppress(CRSError):
            crs = CRS.from_user_input(text)
            return crs if crs.is_projected or crs.is_geographic else None
    return None
