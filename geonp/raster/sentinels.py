"""Usual nodata values that a raster or table does not declare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from geonp.errors import warn
from geonp.raster.arrays import Array
from geonp.raster.metadata import UNNAMED
from geonp.raster.nodata import packing

_LARGEST = (3.4e38, float(np.finfo(np.float32).max), 1.7e308, float(np.finfo(np.float64).max))
"""The largest floats, as writers round them."""


@dataclass(frozen=True)
class SentinelSettings:
    """Settings of the search for undeclared nodata values."""

    values: tuple[float, ...] = (
        *(-9999.0, -999.0, -99.0, -9999.9, -999.9, -99.9, -99999.0, -32768.0, -32767.0, -2147483648.0),
        *(9999.0, 999.0, 99999.0, 999.9, 9999.9, 32767.0, 65535.0, -999999.0, 999999.0, 9.999e20, 0.0),
        *(-99.99, 99.99, -999.99, 999.99, -9999.99, 9999.99, 99999.9, -99999.9, -6999.0, 99.9),
        *(-128.0, 255.0, 2147483647.0, -2147483647.0, 4294967295.0, -32766.0),
        *(-9999999.0, -99999999.0, -999999999.0),
        # of several, one for each reason
        *(-9998.0, -9997.0, -998.0, -997.0, -99998.0, 32766.0, 32765.0, 32764.0, 32763.0, 32762.0, 32761.0),
        *(-5555.0, -6666.0, -7777.0, -8888.0, -666.0, -777.0, -888.0),
        *(9.969209968386869e36, 1.70141e38, 9.999e33, 9.99e33, 9.9e36, -9.99e8, -9.99e33, -1.267651e30, -(2.0**63)),
        # -1000 is sea ice in HadISST; a hundred, or a million, may be measured
        *(-(10.0**exponent) for exponent in range(2, 39)),
        *(10.0**exponent for exponent in (10, *range(15, 39))),
        *(sign * largest for largest in _LARGEST for sign in (-1, 1)),
    )
    """Usual nodata values."""
    distance: float = 3.0
    """Such a value is suspect if it is farther from all others than this many times their range."""
    apart: float = 0.5
    """A place with two such coordinates is suspect if it is farther from all others than this part of their range."""
    repeats: int = 3
    """Any other value that is as far from all others is suspect if it occurs so often, as -9999 in other units does."""
    above: float = 1000.0
    """Such a value above all others must be farther away: clouds and saturated cells may have one value, too."""
    kinds: int = 10
    """The others must have at least so many distinct values: few are counts or classes."""


SENTINELS = SentinelSettings()


@dataclass(frozen=True)
class Extremes:
    """Number of cells by possible nodata value, and the least and greatest of all other values (infinite without any).

    These are the usual ones, and others that are repeated far from the rest.
    """

    counts: Mapping[float, int]
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Array, sentinels: Sequence[float] = SENTINELS.values) -> Extremes:
        """The extremes of the finite `values`. Possible nodata values are counted while they are the ends."""
        values = values[np.isfinite(values)] if values.dtype.kind == "f" else values.ravel()
        counts: dict[float, int] = {}
        while values.size:
            extremes = np.stack([values.min(), values.max()])
            with np.errstate(over="ignore"):
                close = np.isclose(extremes[:, None], np.array(sentinels), rtol=1e-6, atol=0).any(0)
                ends = [sentinel for sentinel, is_end in zip(sentinels, close, strict=True) if is_end]
                ends = ends or [float(end) for end in extremes if len(sentinels) and _is_repeated(values, end)]
                if not ends:
                    return cls(counts, *map(float, extremes))
                ends.sort(key=lambda end: float(np.abs(extremes - end).min()))
                # the same comparison: if no value were equal, this loop would not end
                equal = np.isclose(values, ends[:1], rtol=1e-6, atol=0)
            counts[ends[0]] = int(equal.sum())
            values = values[~equal]
        return cls(counts, math.inf, -math.inf)

    @classmethod
    def together(cls, parts: Iterable[Extremes]) -> Extremes:
        """The extremes of all parts."""
        counts: dict[float, int] = {}
        least, greatest = math.inf, -math.inf
        for part in parts:
            least, greatest = min(least, part.least), max(greatest, part.greatest)
            for value, n in part.counts.items():
                counts[value] = counts.get(value, 0) + n
        return cls(counts, least, greatest)


def _is_repeated(values: Array, end: np.generic) -> bool:
    """Whether the smallest or largest value occurs several times, far from all other, different ones.

    It must be rarer than the others together: there may be a slice of one value.
    """
    equal = values == end
    if not SENTINELS.repeats <= np.count_nonzero(equal) < values.size / 2:
        return False
    others = values[~equal].astype(np.float64)
    width = np.ptp(others)
    is_far = (
        float(end) < others.min() - SENTINELS.distance * width or float(end) > others.max() + SENTINELS.above * width
    )
    return bool(is_far and np.unique(others).size >= SENTINELS.kinds)


def sentinels_of(da: xr.DataArray) -> tuple[float, ...]:
    """Usual nodata values in the units of an array in memory, which packing has changed."""
    scale, offset = packing(da.encoding)
    return tuple(value * scale + offset for value in SENTINELS.values) if da.dtype.kind == "f" else SENTINELS.values


def suspects(parts: Iterable[Extremes]) -> dict[float, int]:
    """Usual nodata values far from all other values, and their numbers, over all parts of a raster or table."""
    whole = Extremes.together(parts)
    least, greatest = whole.least, whole.greatest
    if not least <= greatest:
        return {}
    margin = SENTINELS.distance * max(greatest - least, 1e-9)
    far = {value: n for value, n in whole.counts.items() if value < least - margin or value > greatest + margin}
    # of two values in all, 0 is one of two states
    return {value: n for value, n in far.items() if value or least < greatest}


def warn_of_sentinels(da: xr.DataArray, found: Mapping[float, int], *, part: bool = False) -> None:
    """Warn of the suspect values of a variable, or of a `part` of it, which count as observed."""
    scale, offset = packing(da.encoding) if da.dtype.kind == "f" else (1.0, 0.0)
    for value, n in found.items():
        given, stored = _shown(value), _shown((value - offset) / scale)
        warn(
            f"{UNNAMED if da.name is None else da.name}: {'at least ' if part else ''}{n:,} observed cells hold "
            f"{given}, far from all other values. If they are missing, give nodata={given} (--nodata {stored}, as "
            "stored in the file); for those of a covariate, declare it in its file."
        )


def _shown(value: float) -> str:
    """A value as an option takes it: integers with all digits, because they are compared exactly."""
    rounded = round(value, 6)  # packing and unpacking a value changes its last digits
    return f"{rounded:.0f}" if rounded.is_integer() and abs(rounded) <= 2.0**63 else f"{value:.10g}"
