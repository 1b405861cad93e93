"""Names and units of the columns of a table: which are coordinates, and words that say what a column is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from geonp.errors import InputError, warn
from geonp.raster.units import measure_of


@dataclass(frozen=True)
class TableSettings:
    """Settings of tables."""

    unit_words: tuple[str, ...] = (
        *("deg", "degs", "degree", "degrees", "decimal", "dd", "n", "e", "north", "east"),
        *("wgs84", "nav", "site", "station"),
    )
    """Words in names of longitudes and latitudes that say little, such as their unit in ``Longitude (deg)``."""
    length_words: tuple[str, ...] = ("m", "km", "metre", "metres", "meter", "meters", "utm", "coord", "coordinate")
    """Such words in names of plane coordinates, as in ``Easting (m)``."""
    number_words: tuple[str, ...] = (
        *("id", "ids", "fid", "gid", "oid", "objectid", "station", "stations", "site", "stn", "wmo", "code", "number"),
        *("no", "nr", "index", "row", "year", "month", "day", "hour", "doy", "date", "yyyymmdd"),
    )
    """Words in names of columns of integers that number stations or times, which are not measured."""

    longitudes: tuple[str, ...] = ("lon", "longitude", "long", "lng")
    """Names of columns of longitudes, in any case."""
    latitudes: tuple[str, ...] = ("lat", "latitude")
    """Names of columns of latitudes."""
    x_names: tuple[str, ...] = (*longitudes, "x", "easting", "east")
    """Names of columns of the coordinate x."""
    y_names: tuple[str, ...] = (*latitudes, "y", "northing", "north")
    """Names of columns of the coordinate y."""
    quality: tuple[str, ...] = ("qc", "qa", "qf", "quality", "flag", "flags", "qcflag", "qualityflag", "good", "bad")
    """Words in names of quality flags, such as ``temp_qc`` beside ``temp``."""
    beside_quality: tuple[str, ...] = ("level", "control", "code", "value", "bits", "mask", "w", "woce", "is")
    """Words beside these."""
    number: str = r"\s*[<>≤≥~]?\s*[-+]?(\d{1,3}(,\d{3})+(\.\d+)?|\d*[.,]?\d+)(e[-+]?\d+)?\s*[%*?]?[A-Za-z]{0,3}\s*"
    """Pattern of a number with a qualifier, a flag or a unit."""
    numbers: float = 0.25
    """A column of texts is measured if more than this part of them are such numbers."""
    other_unit: float = 30.0
    """A grid as many times as wide as the measurements, none of which lies near, is in another unit."""


TABLES = TableSettings()


def coordinate(
    columns: list[str], given: str | None, names: tuple[str, ...], axis: str, described: Sequence[str] = ()
) -> str:
    """The column of a coordinate, which is given, has one of some names, or else is `described` as one.

    Raises InputError for none, or several.
    """
    if given is not None:
        return given
    named = [column for column in columns if column.lower() in names]
    named = named or [column for column in columns if plain(column) in names]
    named = named or [column for column in columns if column in described]
    if len(named) != 1:
        raise InputError(
            f"name the column of the coordinate {axis} with {axis}=... (--{axis}): expected one of {', '.join(names)}, "
            f"got {named or columns}"
        )
    return named[0]


def plain(name: str) -> str:
    """Name of a column in lower case; of coordinates without words such as units, as in ``Lon_deg``."""
    said = words(name)
    for known, ignored in (
        ({*TABLES.longitudes, *TABLES.latitudes}, TABLES.unit_words),
        ({*TABLES.x_names, *TABLES.y_names} - {*TABLES.longitudes, *TABLES.latitudes}, TABLES.length_words),
    ):
        kept = said - {*ignored}
        if len(kept) == 1 and kept <= known:
            return kept.pop()
    return name.strip().lower()


def words(name: str) -> set[str]:
    """The words of a name in lower case, also of one such as ``stationId``."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name.strip())
    return set(re.findall(r"[a-z0-9]+", spaced.lower()))


def is_quality_of(column: str, name: str) -> bool:
    """Whether a column is, by its name, the quality of another, as ``temp_qc`` or ``quality_level`` of ``temp``."""
    said = words(column)
    return bool(said & {*TABLES.quality}) and said - {*TABLES.quality, *TABLES.beside_quality} <= words(name)


def bracketed(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Names and units of the columns named as ``temp [degC]``, where no other column has this name."""
    matches = {column: re.fullmatch(r"(.*\S)\s*\[([^\[\]]+)\]", column) for column in columns}
    found = {column: (match[1], match[2].strip()) for column, match in matches.items() if match}
    names = [found.get(column, (column,))[0] for column in columns]
    return {column: pair for column, pair in found.items() if names.count(pair[0]) == 1}


def units_of(units: str | Sequence[str] | None, names: Sequence[str]) -> dict[str, str]:
    """Given units of columns of values by name. Raises InputError for neither one nor as many units as columns."""
    if units is None:
        return {}
    each = [units] if isinstance(units, str) else list(units)
    if len(each) not in (1, len(names)):
        raise InputError(
            f"units (--units) must be given once, or for each column of values: got {', '.join(each)} for "
            f"{', '.join(names)}"
        )
    return dict(zip(names, each * (len(names) // len(each)), strict=True))


def warn_of_other_units(units: dict[str, tuple[str, str]]) -> None:
    """Warn of columns whose own units are replaced by others, by name: own and given units."""
    for name, (own, given) in units.items():
        if own and own != given:
            warn(
                f"column {name!r} has the units {own!r}, and {given!r} (units, --units) replaces them: values are not "
                "converted. Leave the option out, or convert the column first."
            )


def warn_of_unknown_units(units: dict[str, str], *, option: bool) -> None:
    """Warn of units of columns that are none, such as of a misspelt one; `option` is whether they were given as one."""
    for name, unit in units.items():
        if unit and measure_of(unit) is None:
            where = "Check units (--units)" if option else "Correct the header, or give units=... (--units)"
            warn(
                f"column {name!r} has the units {unit!r}, which are not known, and are the units of the result as they "
                f"are. {where}, unless they are meant so."
            )
