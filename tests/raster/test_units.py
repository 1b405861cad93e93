"""Units of values: which texts are units, and their conversions."""

from __future__ import annotations

import pytest

from geonp.raster.units import measure_of


@pytest.mark.parametrize(
    ("own", "other", "value", "expected"),
    [
        ("degC", "K", 10.0, 283.15),
        ("K", "deg. C", 283.15, 10.0),
        ("°F", "degree_Celsius", 50.0, 10.0),
        ("F", "C", 212.0, 100.0),
        ("Celsius", "celsius", 4.0, 4.0),
        ("degC/km", "K m-1", 6.5, 0.0065),
        ("ft", "m", 10.0, 3.048),
        ("m s-1", "km/h", 10.0, 36.0),
        ("knots", "m/s", 10.0, 5.144444),
        ("hPa", "Pa", 1013.0, 101300.0),
        ("millibars", "hPa", 1013.0, 1013.0),
        ("mb", "kPa", 1000.0, 100.0),
        ("inHg", "hPa", 30.0, 1015.917),
        ("mg m-3", "µg/L", 2.0, 2.0),
        ("mg/m³", "kg m**-3", 2.0, 2e-6),
        ("umol kg⁻¹", "mmol/kg", 2000.0, 2.0),
        ("mg C m-2 d-1", "g C/(m^2 day)", 500.0, 0.5),
        ("W/(m2 sr)", "mW m-2 sr-1", 1.0, 1000.0),
        ("mm per day", "m yr-1", 1.0, 0.3652425),
        ("kg m-2 s-1", "g m-2 d-1", 1e-6, 86.4),
        ("%", "1", 35.0, 0.35),
        ("percent", "per mille", 3.5, 35.0),
        ("10^6 cells/l", "cells mL-1", 1.0, 1000.0),
        ("MWh", "GJ", 1.0, 3.6),
        ("uM", "mol m-3", 5.0, 0.005),
        ("kilograms", "g", 1.0, 1000.0),
        ("degrees", "radian", 180.0, 3.14159265),
        ("0.1 mm", "cm", 5.0, 0.05),
        ("hpa", "hPa", 1.0, 1.0),
    ],
)
def test_units_of_one_quantity(own: str, other: str, value: float, expected: float) -> None:
    units = measure_of(own), measure_of(other)
    assert units[0] is not None
    assert units[1] is not None
    assert units[0].dims == units[1].dims
    factor, offset = units[0].converted_to(units[1])
    assert factor * value + offset == pytest.approx(expected, rel=1e-6)
    factor, offset = units[1].converted_to(units[0])
    assert factor * expected + offset == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "sized"),
    [
        *((text, True) for text in ("1", "-", "fraction", "m", "m/s/s", "m2", "K", "W m-2", "J/(kg K)", "S/m")),
        *((text, True) for text in ("1e-3", "ppb", "kt", "Mt", "ha", "dbar", "degrees_true", "in/hr", "g kg-1", "kPa")),
        *((text, False) for text in ("psu", "PSU", "dBZ", "counts", "pH", "NTU", "people/km2", "mg N l-1", "DU")),
    ],
)
def test_texts_that_are_units(text: str, sized: bool) -> None:
    unit = measure_of(text)
    assert unit is not None
    assert unit.sized is sized


@pytest.mark.parametrize("text", ["banana", "max", "raw", "celsuis", "m per banana", "deg north-east", "€", "K@2m"])
def test_texts_that_are_no_units(text: str) -> None:
    assert measure_of(text) is None


def test_other_quantities_have_other_dimensions() -> None:
    texts = "K", "m", "m s-1", "Pa", "psu", "1", "g m-3", "mg C m-3", "W m-2", "degrees"
    assert len({measure.dims for text in texts if (measure := measure_of(text)) is not None}) == len(texts)
