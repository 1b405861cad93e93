"""Units of values, as people and CF conventions write them, and conversions between units of one quantity."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

from geonp.errors import InputError
from geonp.raster.coordinate_units import parse_unit

_PREFIXES = {
    **{"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "h": 1e2, "da": 10.0, "d": 0.1, "c": 1e-2, "m": 1e-3, "u": 1e-6},
    **{"n": 1e-9, "p": 1e-12, "tera": 1e12, "giga": 1e9, "mega": 1e6, "kilo": 1e3, "hecto": 1e2, "deci": 0.1},
    **{"centi": 1e-2, "milli": 1e-3, "micro": 1e-6, "nano": 1e-9, "pico": 1e-12},
}
_BASES = {"m", "g", "s", "K", "A", "mol", "cd", "rad"}
_SYMBOLS = {
    **{"N": "kg m s-2", "Pa": "N m-2", "J": "N m", "W": "J s-1", "Hz": "s-1", "Bq": "s-1", "C": "A s", "V": "W A-1"},
    **{"T": "V s m-2", "S": "A V-1", "F": "C V-1", "Gy": "J kg-1", "Sv": "J kg-1", "sr": "rad2", "lm": "cd sr"},
    **{"lx": "lm m-2", "l": "1e-3 m3", "L": "1e-3 m3", "M": "mol l-1", "t": "1000 kg", "eV": "1.602176634e-19 J"},
    **{"bar": "1e5 Pa", "b": "1e5 Pa", "Wh": "3600 J", "cal": "4.184 J"},
}
"""Symbols besides those of the base units that may have a prefix."""
_WORDS = {
    **{"gram": "g", "gramme": "g", "sec": "s", "second": "s", "k": "K", "kelvin": "K", "degk": "K", "degc": "K"},
    **{"degf": "0.5555555555555556 K", "mole": "mol", "newton": "N", "pascal": "Pa", "joule": "J", "watt": "W"},
    **{"hertz": "Hz", "volt": "V", "tesla": "T", "ampere": "A", "siemens": "S", "becquerel": "Bq", "ohm": "V A-1"},
    **{"litre": "l", "liter": "l", "tonne": "t", "min": "60 s", "minute": "60 s", "h": "3600 s", "hr": "3600 s"},
    **{"hour": "3600 s", "d": "86400 s", "day": "86400 s", "week": "604800 s", "month": "2629746 s"},
    **{"mon": "2629746 s", "a": "31556952 s", "y": "31556952 s", "yr": "31556952 s", "year": "31556952 s"},
    **{
        "bar": "1e5 Pa",
        "hpa": "100 Pa",
        "atm": "101325 Pa",
        "mmhg": "133.322 Pa",
        "inhg": "3386.39 Pa",
        "psi": "6894.757 Pa",
        "in": "0.0254 m",
    },
    **{"inch": "0.0254 m", "inches": "0.0254 m", "mi": "1609.344 m", "yd": "0.9144 m", "yard": "0.9144 m"},
    **{"nmi": "1852 m", "kt": "1852 m h-1", "kn": "1852 m h-1", "knot": "1852 m h-1", "mph": "1609.344 m h-1"},
    **{"kmh": "1000 m h-1", "kph": "1000 m h-1", "cfs": "0.028316846592 m3 s-1", "lb": "453.59237 g"},
    **{"pound": "453.59237 g", "oz": "28.349523125 g", "ha": "1e4 m2", "hectare": "1e4 m2", "acre": "4046.8564224 m2"},
    **{"gal": "3.785411784 l", "gallon": "3.785411784 l", "%": "1e-2", "percent": "1e-2", "pct": "1e-2"},
    **{"‰": "1e-3", "permil": "1e-3", "ppm": "1e-6", "ppmv": "1e-6", "ppb": "1e-9", "ppbv": "1e-9"},
    **dict.fromkeys(("dimensionless", "unitless", "none", "fraction", "ratio", "index"), "1"),
}
"""Other names, in lower case and in the singular."""
_SUBSTANCES = {
    *("C", "N", "P", "Si", "Fe", "S", "Chl", "chl", "chla", "CO", "CH", "NO", "O", "SO", "PO", "NH", "CaCO"),
    *("dry", "wet", "air", "water"),
}
"""What a mass or an amount is of, as in ``mg C m-3``."""
_LABELS = {
    *("psu", "pss", "ppt", "db", "dbz", "dbm", "du", "tecu", "ntu", "fnu", "ftu", "qsu", "ph", "okta", "beaufort"),
    *("count", "cell", "individual", "ind", "person", "people", "inhabitant", "item", "particle", "number", "dn"),
    *("level", "unit", "class", "pixel", "event", "colony", "cfu", "tree", "plant", "household", "usd", "eur", "vol"),
    *("thousand", "million", "asl", "agl", "msl"),
}
"""Units of scales of their own, and what is counted."""
_TEMPERATURES = {
    **dict.fromkeys(("degc", "c", "celsius", "centigrade"), (1.0, 273.15)),
    **dict.fromkeys(("degf", "f", "fahrenheit"), (5 / 9, 459.67 * 5 / 9)),
}
"""Factor and offset to kelvins."""
_DEGREES = re.compile(r"deg(?:ree)?s?[ ._]*([cfk])(?:elsius|entigrade|ahrenheit|elvin)?(?![a-z])", re.IGNORECASE)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺\u00b5\u03bc·⋅\u00d7", "0123456789-+uu   ")
_PART = re.compile(
    r"\s*(?P<per>/?)\s*(?:(?P<number>\d+(?:\.\d*)?(?:e[-+]?\d+)?)|(?P<name>[A-Za-z_%‰]+)(?P<power>[-+]?\d+)?)[\s.]*"
)


@dataclass(frozen=True)
class Measure:
    """A unit: ``factor * value + offset`` is in the base units of its dimensions.

    Attributes
    ----------
    dims : frozenset
        Base units, and labels such as ``psu``, with their powers.
    factor, offset : float
    """

    dims: frozenset[tuple[str, int]]
    factor: float
    offset: float = 0.0

    @property
    def sized(self) -> bool:
        """Whether it consists of base units alone, so that another quantity is certainly another one."""
        return all(name in _BASES for name, _ in self.dims)

    def converted_to(self, other: Measure) -> tuple[float, float]:
        """Factor and offset from values in this unit to those in another one with the same dimensions."""
        return self.factor / other.factor, (self.offset - other.offset) / other.factor


@cache
def measure_of(text: str) -> Measure | None:
    """The unit that a text such as ``degC``, ``mg m-3``, ``m/s`` or ``W/(m^2 sr)`` says; None if it is not known."""
    plain = _DEGREES.sub(lambda found: f"deg{found[1].upper()}", text.strip().replace("°", "deg"))
    if plain.lower() in _TEMPERATURES:
        return Measure(frozenset({("K", 1)}), *_TEMPERATURES[plain.lower()])
    if plain == "-":
        return Measure(frozenset(), 1.0)
    plain = re.sub(r"\bper[ -]?mill?e?\b", "permil", plain.translate(_SUPERSCRIPTS))
    plain = re.sub(r"\bper\b", "/", plain.replace("**", "^").replace("*", " "))
    plain = re.sub(r"\b10\^", "1e", plain).replace("^", "")
    plain = re.sub(r"/\s*\(([^()/]*)\)", lambda found: "/" + "/".join(found[1].split()), plain).strip("() ")
    powers, factor, at = Counter[str](), 1.0, 0
    while at < len(plain):
        part = _PART.match(plain, at)
        if part is None or (part["number"] and not float(part["number"])):
            return None
        at, sign = part.end(), -1 if part["per"] else 1
        if part["number"]:
            factor *= float(part["number"]) ** sign
            continue
        if part["name"] in _SUBSTANCES and (powers["g"] > 0 or powers["mol"] > 0):
            powers["of " + part["name"].lower()] += 1
            continue
        one, power = _named(part["name"]), sign * int(part["power"] or 1)
        if one is None:
            return None
        factor *= one.factor**power
        for name, times in one.dims:
            powers[name] += times * power
    return Measure(frozenset((name, power) for name, power in powers.items() if power), factor)


def require_error_units(name: str, of_errors: object, of_values: object) -> None:
    """Check that the units of known errors, called `name`, are those of the values, unless one of them is not known.

    Raises InputError if they differ.
    """
    own, values = measure_of(str(of_errors)), measure_of(str(of_values))
    if not of_errors or not of_values or own is None or values is None:
        return
    said = f"The known errors {name!r} have the units {str(of_errors)!r}, and the values {str(of_values)!r}"
    if own.dims == values.dims:
        factor, _ = own.converted_to(values)
        if not math.isclose(factor, 1.0, rel_tol=1e-6):
            raise InputError(f"{said}: expected those of the values. Multiply the errors by {factor:.6g}.")
    elif own.sized and values.sized:
        raise InputError(
            f"{said}: expected standard errors in those of the values, neither variances nor relative errors. Convert "
            "them, or correct the units of one of the two."
        )


def _named(name: str) -> Measure | None:
    """The unit of one name."""
    if name in _BASES:
        return Measure(frozenset({(name, 1)}), 1.0)
    word = name.lower()
    for one in (word, word.removesuffix("s")):
        if name in _SYMBOLS or one in _WORDS:
            return measure_of(_SYMBOLS.get(name) or _WORDS[one])
        if one in _LABELS:
            return Measure(frozenset({(one, 1)}), 1.0)
    for prefix, size in _PREFIXES.items():
        rest = name.removeprefix(prefix) if len(prefix) < 3 else word.removeprefix(prefix)
        known = rest in _BASES or rest in _SYMBOLS if len(prefix) < 3 else rest.removesuffix("s") in _WORDS
        if len(rest) < len(name) and known:
            found = _named(rest)
            return None if found is None else Measure(found.dims, size * found.factor)
    if (length := parse_unit(name)) is not None:
        quantity, size = length
        return Measure(frozenset({("m" if quantity == "length" else "rad", 1)}), size)
    return None
