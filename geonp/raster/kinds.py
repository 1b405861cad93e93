"""Kinds of values of a variable: numbers, classes or directions."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError, warn
from geonp.raster.arrays import FloatArray
from geonp.raster.metadata import GDAL_METADATA, Kind, class_attrs, flag_meanings_of, has_special_flags
from geonp.raster.nodata import is_packed, nodata_values, other_packing
from geonp.raster.units import measure_of


@dataclass(frozen=True)
class ClassSettings:
    """Largest numbers of classes."""

    named: int = 32
    """Integers that attributes name, but do not list, are classes if they have at most this many distinct values."""
    window: int = 256
    """Classes of a window that is filled."""
    indicators: int = 8
    """Indicators that a covariate of classes is split into, tile by tile."""


CLASSES = ClassSettings()

_CLASSES = re.compile(
    r"(land|world|glob)[ _-]?(cover|use)|lulc|crop[ _-]?(type|class)|(soil|vegetation|forest|rock)[ _-]?(type|class)"
    r"|quality[ _-]flag|(^|[_\W])(lccs|igbp|nlcd|corine|clc|class|classes|category|categories|biomes?"
    r"|ecoregions?|k[oö]ppen|lithology|qa|bqa|scl|fmask|bitmask|flags?|cloud[ _-]?mask)([_\W\d]|$)|(^|[_\W])lc_type",
    re.IGNORECASE,
)
"""Names of classes and of bit fields."""
_DIRECTION = re.compile(
    r"direction(?!al)|azimuth|(^|[_\W])(aspect|w?dir|wd|wdir\d*|bearing|heading)([_\W]|$)", re.IGNORECASE
)
_MISSING = re.compile(
    r"(no|null)_?(data|value)(_value)?|missing(_(data|value)s?)?|fill(_?value)?|null|void", re.IGNORECASE
)
"""Names of classes of missing cells."""
_PHASE = re.compile(r"(?<!unwrapped)(^|[_\W])phase(lag)?([_\W]|$)", re.IGNORECASE)
"""Names of phases, such as those of tides, which turn as directions do, unless they are unwrapped."""
_RADIANS = re.compile(r"rad(ian)?s?", re.IGNORECASE)
_DEGREES = re.compile(
    r"(deg(r|ree)?s?|°)([ _]?[tn]|[ _,(]+(true|t|north|clockwise|cw|from|relative|compass|gmt)\b.*)?", re.IGNORECASE
)
_ANGLE = frozenset({("rad", 1)})


def is_classes(da: xr.DataArray | xr.Variable) -> bool:
    """Whether values are classes: CF flags, or a GDAL raster with a palette or categories."""
    return bool(class_attrs(da.attrs))


_AUXILIARY = re.compile(
    r"(.*[_\W])?(dem|dsm|dtm|elevation|altitude|height|orography|topography|slope|aspect|hillshade|geoid"
    r"|mask|msk|prob|probability|probabilities|confidence|clp|clm|cld|cldprb|cloud_?\w*|snw|qa|qc|quality|flags?|angle"
    r"|azimuth|zenith)([_\W\d].*)?"
)
"""Names of layers that stand beside observations."""


def is_auxiliary(da: xr.DataArray) -> bool:
    """Whether a variable is, by its names, terrain, geometry or quality rather than what was observed under clouds."""
    names = (str(da.name or ""), str(da.attrs.get("standard_name", "")))
    return any(_AUXILIARY.fullmatch(name.lower()) for name in names)


def is_direction(name: Hashable, attrs: Mapping[Any, Any]) -> bool:
    """Whether values are directions in degrees, by CF ``standard_name``, or else by name and units."""
    return _DEGREES.fullmatch(_units(attrs)) is not None and _is_named(_DIRECTION, name, attrs)


def _other_units(name: Hashable, attrs: Mapping[Any, Any]) -> str:
    """The units of directions that are not in degrees, which are not converted; empty for all other variables."""
    units = _units(attrs)
    if _DEGREES.fullmatch(units) or not _is_named(_DIRECTION, name, attrs):
        return ""
    measure = measure_of(units)
    if measure is not None and measure.dims != _ANGLE:
        return ""
    return "radians" if _RADIANS.fullmatch(units) else repr(units)


def _units(attrs: Mapping[Any, Any]) -> str:
    return str(attrs.get("units") or "degree").strip()


def _is_named(pattern: re.Pattern[str], name: Hashable, attrs: Mapping[Any, Any]) -> bool:
    standard = attrs.get("standard_name")
    texts = [standard] if standard else [name, attrs.get("long_name", "")]
    return any(pattern.search(str(text)) for text in texts)


def warn_of_directions(variables: Mapping[Hashable, Mapping[Any, Any]]) -> None:
    """Warn of the variables, attributes by name, that are directions."""
    if found := [str(k) for k, attrs in variables.items() if is_direction(k, attrs) or _other_units(k, attrs)]:
        warn(
            f"{', '.join(found)}: directions are filled as numbers, and the mean of 350 and 10 degrees is 180. Fill "
            "their sines and cosines instead, and take the direction from both: np.degrees(np.arctan2(sin, cos)) % 360."
        )


def kind_of(da: xr.DataArray, as_: str | None, circular: bool) -> Kind:
    """The kind of the values of a variable: given by `as_` and `circular`, otherwise by their metadata."""
    if as_ is not None:
        return Kind(as_)
    if circular:
        return Kind.DIRECTIONS
    if is_classes(da) and not _counts(da):
        if "flag_masks" in da.attrs:
            raise InputError(
                f"Variable {da.name!r} holds bit fields (flag_masks), which cannot be filled: expected numbers or "
                "classes. Leave it out (--variable), or take its values for classes (as_='classes', --as classes)."
            )
        if is_packed(da.encoding) or is_packed(da.attrs):
            raise InputError(
                f"Variable {da.name!r} has flags, as classes, but is packed (scale_factor, add_offset), as numbers "
                "are. For numbers, give as_='numbers' (--as numbers), and hide the flags: missing="
                f"'{da.name}={','.join(flag_meanings_of(da.attrs))}' (--gaps-where). For classes, give as_='classes' "
                "(--as classes)."
            )
        return Kind.CLASSES
    if not is_direction(da.name or "", da.attrs):
        _warn_of_angles(da)
        _warn_of_classes(da)
        _warn_of_special_flags(da)
        _warn_of_other_packing(da)
        return Kind.NUMBERS
    if da.attrs.get("standard_name") or da.attrs.get("units"):
        return Kind.DIRECTIONS
    warn(
        f"{da.name}: directions are filled as numbers, and the mean of 350 and 10 degrees is 180. If these are "
        "directions in degrees, say so with circular=True (--circular), or by the attribute units."
    )
    return Kind.NUMBERS


def _warn_of_angles(da: xr.DataArray) -> None:
    """Warn of directions that are not in degrees, and of phases."""
    name = da.name or ""
    if units := _other_units(name, da.attrs):
        how = f": np.degrees(ds[{da.name!r}])" if units == "radians" else f", and set their units: ds[{da.name!r}]"
        warn(
            f"{da.name}: directions in {units} are filled as numbers, and the mean of two directions around north is "
            f"south. Convert them to degrees{how}.assign_attrs(units='degree')."
        )
    elif da.attrs.get("units") and _DEGREES.fullmatch(_units(da.attrs)) and _is_named(_PHASE, name, da.attrs):
        warn(
            f"{da.name}: phases are filled as numbers, and the mean of 350 and 10 degrees is 180. Unless they are "
            "unwrapped, fill them as directions: circular=True (--circular)."
        )


def _counts(da: xr.DataArray) -> bool:
    """Whether integers in memory that attributes only name have too many distinct values for classes."""
    if set(class_attrs(da.attrs)) != {"flag_meanings"} or not da.variable._in_memory:
        return False
    return np.unique(da.values).size > CLASSES.named


def _warn_of_classes(da: xr.DataArray) -> None:
    """Warn of integers without a unit that are named like classes, though no attribute says so."""
    stored = np.dtype(da.encoding.get("dtype", da.dtype))
    if (
        stored.kind not in "iu"
        or is_packed(da.encoding)
        or is_packed(da.attrs)
        or "units" in da.attrs
        or is_classes(da)
    ):
        return
    if found := _class_names(da.name, da.attrs.get("long_name"), *_described(da)):
        warn(
            f"{found[0]}: filled as numbers, though the name is that of classes or flags, and the mean of two classes "
            "is another class. If these are classes, say so with as_='classes' (--as classes), or leave them out "
            "(--variable, --bidx); if they are numbers, with as_='numbers' (--as numbers)."
        )


def _warn_of_special_flags(da: xr.DataArray) -> None:
    """Warn of flags such as land and clouds beyond the valid range of numbers, all of which are filled."""
    fill = da.encoding.get("_FillValue", da.attrs.get("_FillValue"))
    named = zip(flag_meanings_of(da.attrs), flag_values_of(da), strict=False)
    names = [name for name, value in named if value != fill and not _MISSING.fullmatch(name)]
    if names and has_special_flags(da.attrs):
        warn(
            f"{da.name}: cells of {', '.join(names)} are filled, since these flags are beyond the valid range, and "
            "count as missing. To leave some of them empty, give a mask (mask=, --mask); if all are meant, say so with "
            "as_='numbers' (--as numbers)."
        )


def _warn_of_other_packing(da: xr.DataArray) -> None:
    """Warn of integers whose scale and offset have other names than those of CF, so that they stay packed."""
    stored = np.dtype(da.encoding.get("dtype", da.dtype))
    if stored.kind not in "iu" or is_packed(da.encoding) or is_packed(da.attrs):
        return
    if found := other_packing(da.attrs):
        said = ", ".join(f"{key}={value:g}" for key, value in found.items())
        warn(
            f"{da.name}: filled as stored, though its attributes {said} may say how to unpack it, which only "
            "scale_factor and add_offset do. Bounds, known errors and results are in stored values. For units, rename "
            "the attributes in the file (ncrename -a), or compute the values before."
        )


def _described(da: xr.DataArray) -> list[object]:
    """Descriptions of the bands of an array, as GDAL has read them."""
    bands = da.encoding.get(GDAL_METADATA, {}).get("bands", {})
    kept = np.ravel(da.coords["band"].values).tolist() if "band" in da.coords else list(bands)
    return [bands[number].get("description") for number in kept if number in bands]


def _class_names(*names: object) -> list[str]:
    """Those of some names that are names of classes or flags."""
    return [str(name) for name in names if name is not None and _CLASSES.search(str(name))]


def is_named_as_classes(da: xr.DataArray) -> bool:
    """Whether an array is, by its own names, one of classes or flags."""
    return bool(_class_names(da.name, da.attrs.get("long_name")))


def warn_of_class_column(name: str, values: FloatArray, attrs: Mapping[Hashable, Any]) -> None:
    """Warn of whole numbers without a unit in a column that is named like classes."""
    if "units" not in attrs and _CLASSES.search(name) and (values == np.rint(values)).all():
        warn(
            f"{name}: interpolated as numbers, though the name is that of classes or flags, and the mean of two "
            "classes is another class. If these are classes, interpolate a column of 0 and 1 for each, as made by "
            f"pd.get_dummies(points[{name!r}], dtype=float)."
        )


def flag_values_of(da: xr.DataArray) -> tuple[float, ...]:
    """CF ``flag_values`` in their order; empty if there are none, or none that are numbers.

    In files without unsigned integers, values above 127 are written as negative ones.
    """
    given = da.attrs.get("flag_values", ())
    given = given.replace(",", " ").split() if isinstance(given, str) else given
    try:
        values = np.asarray(given, np.float64).ravel()
    except (TypeError, ValueError):
        return ()
    stored = np.dtype(da.encoding.get("dtype", da.dtype))
    if stored.kind == "u" or str(da.encoding.get("_Unsigned")).lower() == "true":
        values = np.where(values < 0, values + 2.0 ** (8 * stored.itemsize), values)
    return tuple(values.tolist())


def categories_of(da: xr.DataArray, observed: FloatArray | None, nodata: float | None) -> tuple[float, ...]:
    """The classes of a variable, ascending: those `observed`, or if it is lazy those of its ``flag_values``.

    Raises InputError for a lazy variable without ``flag_values``.
    """
    if observed is not None:
        return tuple(np.unique(observed[np.isfinite(observed)]).tolist())
    missing = set(nodata_values(da, nodata))
    listed = tuple(sorted({value for value in flag_values_of(da) if value not in missing}))
    if not listed:
        raise InputError(
            f"The classes of {da.name!r} must be known before it is read to give the probabilities of all of them: got "
            "no flag_values. Give it this attribute, load it with .load(), write another format than Zarr, or leave "
            "out class_probabilities (--class-probabilities)."
        )
    return listed


def warn_of_missing_class(da: xr.DataArray, label: str, nodata: Collection[float]) -> None:
    """Warn of a class that is called as missing cells, such as ``no_data``, and counts as observed."""
    named = zip(flag_meanings_of(da.attrs), flag_values_of(da), strict=False)
    found = {value: name for name, value in named if _MISSING.fullmatch(name) and value not in nodata}
    for value, name in found.items():
        if not da.variable._in_memory or (da.values == value).any():
            warn(
                f"{label}: the class {value:g} is called {name!r}, and counts as observed, so that its cells are not "
                f"filled, and others may be filled with it. If they are missing, give nodata={value:g} (--nodata "
                f"{value:g})."
            )


def category_labels(da: xr.DataArray, categories: tuple[float, ...]) -> npt.NDArray[np.generic]:
    """Names of classes: CF ``flag_meanings`` if there is one for each of the ``flag_values``, or else the values."""
    meanings, listed = flag_meanings_of(da.attrs), flag_values_of(da)
    named = dict(zip(listed, meanings, strict=False))
    if len(meanings) == len(listed) and set(categories) <= set(named):
        return np.array([named[value] for value in categories])
    values = np.array(categories)
    return values.astype(np.int64) if (values == np.rint(values)).all() else values
