"""Directions in degrees, whose arithmetic mean is wrong across 360 degrees."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from geonp.errors import warn

_DIRECTION = re.compile(r"direction|azimuth|(^|[_\W])(aspect|w?dir|wd|wdir\d*|bearing|heading)([_\W]|$)", re.IGNORECASE)
_RADIANS = re.compile(r"rad(ian)?s?", re.IGNORECASE)
_DEGREES = re.compile(r"deg(ree)?s?([ _](true|t))?$|°$", re.IGNORECASE)


def is_direction(name: Hashable, attrs: Mapping[Any, Any]) -> bool:
    """Whether values are directions in degrees, by CF ``standard_name``, or else by name and units."""
    return _DEGREES.match(str(attrs.get("units", "degree")).strip()) is not None and _is_named(name, attrs)


def is_in_radians(name: Hashable, attrs: Mapping[Any, Any]) -> bool:
    """Whether values are directions in radians, which are not converted."""
    return _RADIANS.fullmatch(str(attrs.get("units")).strip()) is not None and _is_named(name, attrs)


def _is_named(name: Hashable, attrs: Mapping[Any, Any]) -> bool:
    standard = attrs.get("standard_name")
    texts = [standard] if standard else [name, attrs.get("long_name", "")]
    return any(_DIRECTION.search(str(text)) for text in texts)


def warn_of_directions(variables: Mapping[Hashable, Mapping[Any, Any]]) -> None:
    """Warn of the variables, attributes by name, that are directions."""
    if found := [str(k) for k, attrs in variables.items() if is_direction(k, attrs) or is_in_radians(k, attrs)]:
        warn(
            f"{', '.join(found)}: directions are filled as numbers, and the mean of 350 and 10 degrees is 180. Fill "
            "their sines and cosines instead, and take the direction from both: np.degrees(np.arctan2(sin, cos)) % 360."
        )
