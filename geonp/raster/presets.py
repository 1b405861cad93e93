"""Published tables of quality layers: their flags by name, and those under which values count as missing.

Two bits of a confidence are one flag for each of their values. Sources: USGS, Landsat 8-9 Collection 2 Level 2 Science
Product Guide, LSDS-1619, table of QA_PIXEL; ESA, Sentinel-2 Level-2A Algorithm Theoretical Basis Document, scene
classification of Sen2Cor; Vermote, Roger and Ray (2015), MODIS Surface Reflectance User's Guide, Collection 6, table of
the 1 km state QA.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A table of a quality layer.

    Attributes
    ----------
    layers : tuple of str
        Names that the layer usually has, in lower case.
    flags : mapping
        Bits, or None for all of them, and their values, by name of the flag.
    missing : tuple of str
        The flags under which values count as missing.
    """

    layers: tuple[str, ...]
    flags: Mapping[str, tuple[int | None, tuple[float, ...]]]
    missing: tuple[str, ...]

    @property
    def terms(self) -> tuple[tuple[int | None, tuple[float, ...]], ...]:
        """The flags under which values count as missing, as tests."""
        return tuple(self.flags[name] for name in self.missing)


def _bit(n: int) -> tuple[int, tuple[float, ...]]:
    return 1 << n, (1 << n,)


def _pair(n: int, value: int) -> tuple[int, tuple[float, ...]]:
    """A value of the two bits from bit `n` on."""
    return 0b11 << n, (value << n,)


_LANDSAT = (
    *("fill", "dilated_cloud", "cirrus", "cloud", "cloud_shadow", "snow", "clear", "water"),
    *("cloud_confidence", "cloud_shadow_confidence", "snow_confidence", "cirrus_confidence"),
)
_SEN2COR = (
    *("no_data", "saturated_or_defective", "dark_area", "cloud_shadow", "vegetation", "not_vegetated", "water"),
    *("unclassified", "cloud_medium_probability", "cloud_high_probability", "thin_cirrus", "snow"),
)
_LEVELS = {"low": 1, "medium": 2, "high": 3}

PRESETS = {
    "landsat-c2": Preset(
        ("qa_pixel", "pixel_qa"),
        {name: _bit(n) for n, name in enumerate(_LANDSAT[:8])}
        | {
            f"{name}_{level}": _pair(8 + 2 * n, value)
            for n, name in enumerate(_LANDSAT[8:])
            for level, value in _LEVELS.items()
        },
        ("fill", "dilated_cloud", "cirrus", "cloud", "cloud_shadow"),
    ),
    "sentinel-2": Preset(
        ("scl",),
        {name: (None, (value,)) for value, name in enumerate(_SEN2COR)},
        (
            *("no_data", "saturated_or_defective", "cloud_shadow"),
            *("cloud_medium_probability", "cloud_high_probability", "thin_cirrus"),
        ),
    ),
    "modis": Preset(
        ("state_1km", "state_1km_1", "sur_refl_state_500m"),
        {
            "fill": (None, (65535,)),
            "cloudy": _pair(0, 1),
            "mixed": _pair(0, 2),
            "cloud_shadow": _bit(2),
            "aerosol_high": _pair(6, 3),
            "cirrus_small": _pair(8, 1),
            "cirrus_average": _pair(8, 2),
            "cirrus_high": _pair(8, 3),
            "internal_cloud": _bit(10),
            "internal_fire": _bit(11),
            "snow": _bit(12),
            "adjacent_to_cloud": _bit(13),
            "internal_snow": _bit(15),
        },
        (
            *("fill", "cloudy", "mixed", "cloud_shadow", "cirrus_average", "cirrus_high"),
            *("internal_cloud", "adjacent_to_cloud"),
        ),
    ),
}
"""The tables by name, as in conditions."""


def preset_of(layer: str) -> Preset | None:
    """The table for a layer of this name, or of one that contains it as words, as files do: ``LC09_..._QA_PIXEL``."""
    words = re.sub("[^a-z0-9]+", "_", layer.lower())
    return next((p for p in PRESETS.values() if any(f"_{name}_" in f"_{words}_" for name in p.layers)), None)
