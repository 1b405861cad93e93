"""CF attributes and encoding of a filled raster."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import xarray as xr
from pyproj import CRS

from geonp.errors import InputError
from geonp.raster.crs import cf_attrs, grid_mapping_name, with_cf_crs
from geonp.raster.dimensions import data_variables
from geonp.raster.grid import Grid
from geonp.raster.nodata import NODATA, PACKING, packing, require_packing, valid_limits

_CF = "CF-1.11"  # the first with units_metadata

UNNAMED = "value"
"""Name of the filled variable of a DataArray without a name."""


THEMATIC = {"LAYER_TYPE": "thematic"}
"""Attribute of a raster of classes whose palette or table of categories is not in the array, named as in GDAL."""

_FLAGS = ("flag_values", "flag_masks", "flag_meanings")
_CLASS_NAMES = re.compile(r"area_type|land_cover_lccs|region|soil_type|(.*[ _])?flag")
"""CF standard names of classes; ``status_flag`` also modifies others."""

PACKED_BANDS = "packed_bands"
"""Encoding of floats whose bands were packed by different scales and offsets: a mapping of ``dtype`` and ``_FillValue``
as stored, and of ``bands``, which maps the number of a band to its scale and offset."""


GDAL_METADATA = "gdal_metadata"
"""Encoding of rasters of GDAL with what their file says beside the values, see :mod:`geonp.io.tags`."""

ASCENDS = "ascends"
"""Encoding of a coordinate of a raster of GDAL: whether it ascends in the file. A GeoTIFF out has the same order."""


def as_dataset(obj: xr.DataArray | xr.Dataset) -> xr.Dataset:
    """A raster as a Dataset; the variable of an array without a name is called :data:`UNNAMED`.

    Raises InputError for an array with the name of one of its coordinates.
    """
    if isinstance(obj, xr.Dataset):
        return obj
    name = UNNAMED if obj.name is None else obj.name
    if name in obj.coords:
        raise InputError(
            f"The array has the name of one of its coordinates: got {name!r}, expected another name. Rename it, for "
            f"example da.rename('values'), or drop the coordinate, da.drop_vars({name!r})."
        )
    return obj.to_dataset(name=name)


class FillFlag(IntEnum):
    """Origin of the value of a cell, as stored in ``<name>_fill_flag``."""

    OBSERVED = 0
    """Given in the input, unchanged."""
    FILLED = 1
    """Predicted by the model."""
    BEYOND_LIMIT = 2
    """Left empty: observed cells are too far (``max_distance``, or the reach of the context) or too few."""
    OUTSIDE_DOMAIN = 3
    """Left empty: outside the domain given as mask."""
    FAILED = 4
    """Left empty: could not be read or computed. Only in stores; other fills raise an error."""
    FILLED_ACROSS = 5
    """Predicted from other slices alone, because too few of its own observations are within reach (`empty_slices`)."""

    @classmethod
    def used(cls, *, empty_slices: bool) -> list[FillFlag]:
        """The flags that a fill may give."""
        return [flag for flag in cls if empty_slices or flag is not cls.FILLED_ACROSS]


class Kind(StrEnum):
    """Kind of the values of a variable, which decides how their gaps are filled."""

    NUMBERS = "numbers"
    CLASSES = "classes"
    DIRECTIONS = "directions"
    COUNTS = "counts"


def flag_meanings_of(attrs: Mapping[Any, Any]) -> list[str]:
    """CF ``flag_meanings``: words separated by blanks, or, as others write them, by commas, or a list of texts."""
    given = attrs.get("flag_meanings", "")
    return given.replace(",", " ").split() if isinstance(given, str) else [str(text) for text in np.ravel(given)]


def class_attrs(attrs: Mapping[Any, Any]) -> dict[Any, Any]:
    """The attributes that say that values are classes: CF flags and standard names, or :data:`THEMATIC`."""
    flags = () if has_special_flags(attrs) else _FLAGS
    return {
        key: value
        for key, value in attrs.items()
        if key in flags
        or (key in THEMATIC and str(value).lower() == THEMATIC[key])
        or (key == "standard_name" and _CLASS_NAMES.fullmatch(str(value)))
    }


def has_special_flags(attrs: Mapping[Any, Any]) -> bool:
    """Whether all ``flag_values`` are beyond the valid range: they name missing cells of numbers, such as land."""
    flags = np.ravel(np.asarray(attrs.get("flag_values", ())))
    limits = np.ravel(np.asarray(attrs.get("valid_range", (attrs.get("valid_min"), attrs.get("valid_max")))))
    if not flags.size or flags.dtype.kind not in "iuf" or limits.size != 2 or "flag_masks" in attrs:
        return False
    try:
        low, high = limits.astype(np.float64)  # NaN of None
    except (TypeError, ValueError):
        return False
    if low > high:  # bytes of files without unsigned ones
        flags, high = flags % 2.0 ** (8 * flags.dtype.itemsize), high % 2.0 ** (8 * flags.dtype.itemsize)
    return bool(((flags < low) | (flags > high)).all())


def dataset_attrs(attrs: Mapping[Any, Any], line: str, model: str, version: str, sha256: str) -> dict[Any, Any]:
    """Attributes of a filled Dataset: its own, ``Conventions``, a new line of ``history``, and the model.

    An older version of the CF conventions is raised to the one that defines all attributes of the results.
    """
    earlier = str(attrs.get("history", "")).rstrip("\n")
    conventions, known = re.subn(r"CF-1\.(\d|10)(?!\d)", _CF, str(attrs.get("Conventions", _CF)))
    if not known and "CF-" not in conventions:
        conventions = f"{_CF}, {conventions}"
    return {
        **attrs,
        "Conventions": conventions,
        "history": f"{earlier}\n{line}" if earlier else line,
        "geonp_model": model,
        "geonp_model_version": version,
        "geonp_weights_sha256": sha256,
    }


def kept_encoding(source: xr.DataArray, nodata: tuple[float, ...]) -> dict[str, Any]:
    """Encoding of filled values that all file formats support, with one nodata value in ``_FillValue``.

    Floats packed as integers without a nodata value get an integer beyond their valid range as nodata value. Without
    such a range they are stored as floats: empty cells have no integer. So are those whose bands rioxarray has unpacked
    by different scales and offsets. Signed integers that stand for unsigned ones (``_Unsigned``) become unsigned.
    """
    said = {key: source.encoding[key] for key in (GDAL_METADATA,) if key in source.encoding}
    require_packing(source.name, source.encoding)
    encoding = said | {key: source.encoding[key] for key in ("dtype", PACKED_BANDS) if key in source.encoding}
    encoding |= {key: np.ravel(source.encoding[key])[0] for key in PACKING if key in source.encoding}
    mapping = source.encoding.get("grid_mapping", source.attrs.get("grid_mapping", grid_mapping_name(source)))
    if mapping is not None:
        encoding["grid_mapping"] = mapping
    if source.dtype.kind in "iu":
        if encoding.get("dtype", source.dtype) != source.dtype:  # integers decoded by _Unsigned
            del encoding["dtype"]
        return encoding
    encoded = [np.ravel(source.encoding[key])[0] for key in NODATA if np.size(source.encoding.get(key, []))]
    fill = encoded[0] if encoded else next(iter(nodata), None)
    if fill is not None:
        encoding["_FillValue"] = fill
    stored = np.dtype(encoding.get("dtype", source.dtype))
    if fill is not None and stored.kind == "f" and abs(float(fill)) > float(np.finfo(stored).max):
        encoding["_FillValue"] = stored.type(np.nan)  # no value of the dtype
    if stored.kind in "iu" and not encoded and fill is not None:  # `fill` is in units of unpacked values
        fill = round((fill - encoding.get("add_offset", 0.0)) / encoding.get("scale_factor", 1.0))
        encoding["_FillValue"] = fill
    turned = stored.kind == {"true": "i", "false": "u"}.get(str(source.encoding.get("_Unsigned")).lower())
    if turned and stored.kind == "i":
        stored = encoding["dtype"] = np.dtype(f"u{stored.itemsize}")
        encoding |= {} if fill is None else {"_FillValue": stored.type(int(fill) % 2 ** (8 * stored.itemsize))}
    elif turned:
        fill = None
    if stored.kind in "iu" and fill is None and not turned:
        fill = _unused(source, stored)
        encoding |= {} if fill is None else {"_FillValue": stored.type(fill)}
    by_band = not set(PACKING) & set(encoding) and {"scales", "offsets"} & set(source.encoding)
    if stored.kind in "iu" and (fill is None or by_band):
        encoding = {key: value for key, value in encoding.items() if key in ("grid_mapping", GDAL_METADATA)}
    return encoding


def _unused(source: xr.DataArray, stored: np.dtype[Any]) -> int | None:
    """The smallest or largest integer of packed values if it lies beyond their valid range; None if both are valid."""
    scale, offset = packing(source.encoding)
    low, high = sorted((limit - offset) / scale for limit in valid_limits(source))
    ends = int(np.iinfo(stored).min), int(np.iinfo(stored).max)
    return next((end for end in ends if not low - 0.5 <= end <= high + 0.5), None)


def ancillary_names(da: xr.DataArray | xr.Variable, among: Iterable[Hashable] = ()) -> list[str]:
    """Names in the CF attribute ``ancillary_variables``; those of `among` may hold blanks."""
    return listed_names(da.attrs.get("ancillary_variables", da.encoding.get("ancillary_variables", "")), among)


def listed_names(text: object, among: Iterable[Hashable] = ()) -> list[str]:
    """Names that an attribute lists between blanks; the longest of `among` where they hold blanks themselves."""
    known = {tuple(str(name).split()): str(name) for name in among}
    most, words, names = max(map(len, known), default=1), str(text).split(), list[str]()
    while words:
        size = next((size for size in range(most, 1, -1) if tuple(words[:size]) in known), 1)
        names.append(known.get(tuple(words[:size]), words[0]))
        words = words[size:]
    return names


def describing_names(ds: xr.Dataset) -> set[Hashable]:
    """Names of the variables that others link by the CF attribute ``ancillary_variables``."""
    return {name for da in data_variables(ds).values() for name in ancillary_names(da, ds.variables)}


def with_crs_of_each(ds: xr.Dataset) -> xr.Dataset:
    """A Dataset whose grid mapping is a coordinate, which its variables have when they are taken out of it."""
    mapping = grid_mapping_name(ds)
    return ds if mapping is None else ds.set_coords(mapping)


def with_grid_mapping(obj: Any) -> Any:
    """A raster with its CRS as a grid mapping, also if an attribute declares it."""
    obj = with_cf_crs(obj)
    crs = Grid.from_xarray(obj).crs
    if crs is None or grid_mapping_name(obj) is not None:
        return obj
    return obj.assign_coords(spatial_ref=((), 0, cf_attrs(CRS(crs))))
