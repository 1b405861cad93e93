"""The CRS of a raster: where it is declared, and how it is written."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import xarray as xr
from pyproj import CRS
from pyproj.exceptions import CRSError

from geonp.errors import InputError
from geonp.raster.dimensions import data_variables
from geonp.raster.nodata import without

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


def grid_mapping_name(obj: xr.DataArray | xr.Dataset) -> str | None:
    """Name of the variable that holds the CRS: that in CF ``grid_mapping``, or ``spatial_ref``, as in rioxarray.

    Of several in the extended form of CF, such as ``wgs84: lat lon utm: x y``, that of the dimensions. Arithmetic of
    xarray keeps the coordinate with the CRS, but not its name in the encoding: then it is the only one that holds one.
    """
    variables = [obj.variable] if isinstance(obj, xr.DataArray) else data_variables(obj).values()
    for variable in variables:
        mapping = str(variable.encoding.get("grid_mapping", variable.attrs.get("grid_mapping")))
        systems: dict[str, str] = dict(re.findall(r"([^\s:]+)\s*:([^:]*)(?=\s\S+\s*:|$)", mapping)) or {
            mapping.strip(): ""
        }
        shared = {name: len(set(of.split()) & set(variable.dims)) for name, of in systems.items()}
        if names := [name for name in shared if name in _variables(obj)]:
            return max(names, key=shared.__getitem__)
    if "spatial_ref" in _variables(obj):
        return "spatial_ref"
    scalar = {name: set(one.attrs) for name, one in obj.coords.items() if not one.ndim}
    others = [str(name) for name, attrs in scalar.items() if {"grid_mapping_name", "crs_wkt"} & attrs]
    return others[0] if len(others) == 1 else None


def with_cf_crs(obj: Any) -> Any:
    """A raster with its CRS as a CF grid mapping, if ``proj:`` of the Zarr conventions or ``_CRS`` of GDAL declare it.

    These and the attributes ``spatial:`` are dropped: a cut or another grid would make them wrong, and files of other
    formats have no use for them.
    """
    keys = ("proj:wkt2", "proj:projjson", "proj:code", "_CRS")
    given = [one.attrs[key] for key in keys for one in _all(obj) if key in one.attrs]
    if not given or grid_mapping_name(obj) is not None or (crs := crs_of(given[0])) is None:
        return obj
    return without_conventions(obj.assign_coords(spatial_ref=((), 0, cf_attrs(crs))))


def without_conventions(obj: Any) -> Any:
    """A raster without the attributes of the Zarr conventions of georeferences."""
    obj = obj.copy(deep=False)
    for one in _all(obj):
        others = [entry for entry in one.attrs.get("zarr_conventions", ()) if entry.get("name") not in _CONVENTIONS]
        kept = {key: value for key, value in one.attrs.items() if not str(key).startswith(_CONVENTIONS)}
        one.attrs = without(kept, ("zarr_conventions",)) | ({"zarr_conventions": others} if others else {})
    return obj


_CONVENTIONS = ("proj:", "spatial:", "_CRS")
"""Georeferences of Zarr: names of conventions, with which their attributes begin, and the attribute of GDAL."""


def _all(obj: xr.DataArray | xr.Dataset) -> list[Any]:
    """A raster and its variables."""
    return [obj, *(data_variables(obj).values() if isinstance(obj, xr.Dataset) else ())]


def _variables(obj: xr.DataArray | xr.Dataset) -> Mapping[Any, Any]:
    return obj.coords if isinstance(obj, xr.DataArray) else obj.variables


def geotransform(obj: xr.DataArray | xr.Dataset) -> list[float] | None:
    """The terms of GDAL's GeoTransform, the only place with the size of a single cell; None without it."""
    name = grid_mapping_name(obj)
    terms = str(_variables(obj)[name].attrs.get("GeoTransform", "")).split() if name is not None else []
    return [float(term) for term in terms] if len(terms) == 6 else None


def declared_crs(obj: xr.DataArray | xr.Dataset) -> CRS | None:
    """CRS of a raster: that of its grid mapping, or else in an attribute. Raises InputError for one that is none."""
    if (name := grid_mapping_name(obj)) is None:
        return _crs_attribute(obj)
    attrs = _variables(obj)[name].attrs
    text = attrs.get("crs_wkt") or attrs.get("spatial_ref")
    if not text and "grid_mapping_name" not in attrs:
        return crs_of_others(attrs)
    if text and "grid_mapping_name" in attrs:
        with suppress(CRSError):
            return CRS.from_user_input(str(text))
        attrs, text = {key: value for key, value in attrs.items() if value != text}, None
    try:
        return CRS.from_user_input(str(text)) if text else CRS.from_cf(dict(attrs))
    except (CRSError, KeyError) as error:
        if crs := crs_of_others(attrs):
            return crs
        raise InputError(
            f"The CRS in variable {name!r} cannot be read: got {text or dict(attrs)!r}, expected WKT in the attribute "
            f"crs_wkt, or CF grid mapping attributes. Give another one: --crs EPSG:..., rio.write_crs('EPSG:...')."
        ) from error


def _crs_attribute(obj: xr.DataArray | xr.Dataset) -> CRS | None:
    """CRS in an attribute, as older versions of xarray and ArcGIS write, or the coordinate of stacks of STAC items.

    EPSG codes, PROJ strings and WKT are read. Names such as WGS84 also occur with coordinates in metres.
    """
    codes = (obj.coords[name] for name in ("epsg", "proj:epsg", "proj:code") if name in obj.coords)
    said = [one.attrs.get(key) for one in _all(obj) for key in ("crs", "esri_pe_string")]
    given = [*said, *(code.item() for code in codes if code.ndim == 0)]
    return next(filter(None, (crs_of(one) for one in given if isinstance(one, str | int))), None)
