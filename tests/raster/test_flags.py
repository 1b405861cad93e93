"""Conditions are what numpy says of the same values, and presets what the published tables say."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from geonp.errors import InputError
from geonp.raster.flags import layer_of, parsed
from geonp.raster.presets import PRESETS

CF = {
    "flag_masks": np.array([1, 6, 6, 6], np.uint8),
    "flag_values": np.array([1, 2, 4, 6], np.uint8),
    "flag_meanings": "fill cloud_low cloud_high cloud.certain",
}


def holds(text: str, values: Any, attrs: dict[str, Any] | None = None, name: str = "QA") -> np.ndarray:
    """Where a condition on a layer ``QA`` holds."""
    layer = xr.DataArray(np.asarray(values), dims="x", name=name, attrs=attrs or {})
    return parsed(text, lambda known: known == name).on(layer)(layer.values)


numbers = st.lists(st.integers(0, 255), min_size=1, max_size=4)


@given(values=numbers, wanted=numbers, kind=st.sampled_from(["u1", "i2", "i8", "u8", "f4"]))
def test_equal_to_some(values: list[int], wanted: list[int], kind: str) -> None:
    array, text = np.array(values, kind), ",".join(map(str, wanted))
    assert (holds(f"QA={text}", array) == np.isin(array, wanted)).all()
    assert (holds(f"QA != {text}", array) == ~np.isin(array, wanted)).all()


@given(values=numbers, mask=st.integers(0, 255), value=st.integers(0, 255), write=st.sampled_from([bin, hex, str]))
def test_bits(values: list[int], mask: int, value: int, write: Any) -> None:
    for kind in ("u1", "i4", "f8"):
        array = np.array(values, kind)
        assert (holds(f"QA&{write(mask)}", array) == ((np.array(values) & mask) != 0)).all()
        assert (holds(f"QA & {write(mask)} = {write(value)}", array) == ((np.array(values) & mask) == value)).all()


@given(values=st.lists(st.floats(-2, 2, width=32), min_size=1), limit=st.floats(-2, 2, width=16))
def test_comparisons(values: list[float], limit: float) -> None:
    array = np.array([*values, np.nan], np.float32)
    for sign, compare in ((">", operator.gt), (">=", operator.ge), ("<", operator.lt), ("<=", operator.le)):
        assert (holds(f"QA{sign}{limit}", array) == compare(array, limit)).all()


def test_a_layer_alone_holds_where_it_is_not_zero_and_known() -> None:
    assert holds("QA", [0.0, 1.0, -1.0, np.nan]).tolist() == [False, True, True, False]
    assert holds("QA", np.array([True, False])).tolist() == [True, False]


def test_limits_of_packed_layers_are_doubted() -> None:
    with pytest.warns(UserWarning, match=r"'QA>0.4' compares stored values: QA is packed .* xr.decode_cf"):
        assert holds("QA>0.4", [0, 1, 50], {"scale_factor": 0.01}).tolist() == [False, True, True]
    assert holds("QA>0.4", [0, 1, 50], {"scale_factor": 1.0, "add_offset": 0.0}).tolist() == [False, True, True]
    assert holds("QA=50", [0, 1, 50], {"scale_factor": 0.01}).tolist() == [False, False, True]


@pytest.mark.parametrize("kind", ["S1", "U1", "O", "bytes"])
def test_characters_are_the_numbers_that_they_write(kind: str) -> None:
    values = np.array([["1", "4", " "], ["3", "A", "4"]], "S1" if kind == "bytes" else kind)
    values = values.astype(object) if kind == "bytes" else values
    for text, expected in (
        ("QA=4", [0, 1, 0, 0, 0, 1]),
        ("QA=3,4", [0, 1, 0, 1, 0, 1]),
        ("QA!=1", [0, 1, 1, 1, 1, 1]),
        ("QA>=3", [0, 1, 0, 1, 0, 1]),
        ("QA&1", [1, 0, 0, 1, 0, 0]),
        ("QA", [1, 1, 0, 1, 0, 1]),
    ):
        layer = xr.DataArray(values, dims=("y", "x"), name="QA")
        found = parsed(text, lambda known: known == "QA").on(layer)(layer.values)
        assert found.shape == (2, 3)
        assert found.ravel().astype(int).tolist() == expected, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("QA=fill", [0, 1, 0, 0, 0, 1]),
        ("QA=cloud_low,cloud.certain", [0, 0, 1, 0, 1, 1]),
        ("QA=cloud_high", [0, 0, 0, 1, 0, 0]),
        ("QA!=cloud_high,fill", [1, 0, 1, 0, 1, 0]),
    ],
)
def test_cf_flags_by_name(text: str, expected: list[int]) -> None:
    assert holds(text, [0, 1, 2, 4, 6, 7], CF).astype(int).tolist() == expected


def test_cf_flags_of_single_bits_and_of_values() -> None:
    bits = {"flag_masks": "1b, 2b, 8b".replace("b", ""), "flag_meanings": "land cloud ice"}
    assert holds("QA=cloud,ice", [1, 2, 9, 12], bits).tolist() == [False, True, True, True]
    for meanings in ("clear cloud unset", "clear, cloud, unset", ["clear", "cloud", "unset"]):
        classes = {"flag_values": np.array([1, 2, -127], "i1"), "flag_meanings": meanings}
        assert holds("QA=cloud,unset", np.array([1, 2, -127], "i1"), classes).tolist() == [False, True, True]


def test_flags_decoded_to_floats_keep_their_fill_value() -> None:
    layer = xr.DataArray(np.array([np.nan, 3.0, 4.0], "f4"), dims="x", name="QA")
    layer.encoding = {"_FillValue": 1, "dtype": np.dtype("u2")}
    for text, expected in (("QA=1", [1, 0, 0]), ("QA&0b1", [1, 1, 0]), ("QA!=3,4", [1, 0, 0]), ("QA>3.5", [0, 0, 1])):
        assert parsed(text, lambda name: False).on(layer)(layer.values).astype(int).tolist() == expected, text


LANDSAT = {
    1: True,  # fill
    21824: False,  # clear, no confidence but low: the usual value over land
    21952: False,  # clear and water
    30048: False,  # snow, with high confidence
    22280: True,  # cloud with high confidence
    22018: True,  # dilated cloud
    23888: True,  # cloud shadow with high confidence
    54596: True,  # cirrus with high confidence
    21824 | 1 << 9: False,  # the bits 8-9 say medium and high confidence; bit 3 is not set
}
SEN2COR = {0: True, 1: True, 2: False, 3: True, 4: False, 5: False, 6: False, 7: False, 8: True, 9: True, 10: True}
MODIS = {
    0b0000000000001000: False,  # clear land
    0b0000000000001001: True,  # cloudy
    0b0000000000001010: True,  # mixed
    0b0000000000001011: False,  # not set, assumed clear
    0b0000000000001100: True,  # cloud shadow
    0b0000000100001000: False,  # small cirrus
    0b0000001000001000: True,  # average cirrus
    0b0000010000001000: True,  # internal cloud algorithm
    0b0000000011001000: False,  # high aerosol
    0b0001000000001000: False,  # snow
    0b0010000000001000: True,  # adjacent to cloud
    65535: True,  # fill
}


@pytest.mark.parametrize(
    ("preset", "table"), [("landsat-c2", LANDSAT), ("sentinel-2", SEN2COR | {11: False}), ("modis", MODIS)]
)
def test_presets_are_the_published_tables(preset: str, table: dict[int, bool]) -> None:
    found = holds(f"QA={preset}", np.array(list(table), np.uint16))
    assert dict(zip(table, found.tolist(), strict=True)) == table


def test_names_of_a_preset_where_the_file_has_none() -> None:
    values = np.array([1 << 3, 0b01 << 8, 0b11 << 8, 0b11 << 14], np.uint16)
    assert holds("QA_PIXEL=cloud_confidence_high", values, name="QA_PIXEL").tolist() == [False, False, True, False]
    assert holds("scl=thin_cirrus", [9, 10], name="scl").tolist() == [False, True]
    assert holds("q=cloud", [1 << 3, 1 << 4], name="LC09_L2SP_193027_20240601_02_T1_QA_PIXEL").tolist() == [True, False]
    assert holds("q=snow", [11, 4], name="T32TPT_20240601T101559_SCL_20m").tolist() == [True, False]
    with pytest.raises(InputError, match="has no flag 'snow'"):
        holds("q=snow", [11, 4], name="scale")
    assert all(set(preset.missing) <= set(preset.flags) for preset in PRESETS.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("QA=", "is not understood: expected LAYER, LAYER=3,8"),
        ("=3", "is not understood"),
        ("QA=clouds", "The layer 'QA' has no flag 'clouds': expected a number, or one of fill, cloud_low"),
        ("QA>fill", "needs numbers: got 'fill' for the layer 'QA'"),
        ("QA>1,2", "compares with several values: expected one number"),
        ("QA&fill", "needs bits after &: got 'fill', expected an integer .* Flags by name are written QA=fill"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        holds(text, [0], CF)


def test_names_of_files_may_have_signs_of_the_grammar() -> None:
    text = "/data/year=2020/scl.tif:SCL=3,8"
    expression = parsed(text, lambda name: False)
    assert (expression.layer, expression.values) == ("/data/year=2020/scl.tif:SCL", ("3", "8"))
    assert parsed("/data/year=2020.zarr", lambda name: name.startswith("/data")).layer == "/data/year=2020.zarr"


def test_layers_are_variables_and_bands_by_description() -> None:
    names = {"band": [1, 2], "band_name": ("band", np.array(["B02", "SCL"], object))}
    ds = xr.Dataset({"s2": (("band", "x"), [[5, 6], [3, 4]]), "qa": ("x", [1, 2])}, names)
    layer, place = layer_of(ds, "SCL") or (None, {})
    assert layer is not None
    assert (layer.values.tolist(), layer.name, place) == ([3, 4], "SCL", {"band": 1})
    assert (layer_of(ds, "qa") or ({}, None))[1] == {}
    assert layer_of(ds, "B03") is None


@pytest.mark.parametrize("scale", [np.float32(0.01), 0.004])
def test_names_of_flags_beside_packed_numbers(scale: Any) -> None:
    """They are of stored values, and the numbers of conditions of those in memory."""
    attrs = {"scale_factor": scale, "add_offset": -0.08, "flag_values": [7, 254], "flag_meanings": "lake sea"}
    ds = xr.decode_cf(xr.Dataset({"sic": ("x", np.array([7, 100, 254], "u1"), attrs)}))
    for text, expected in (("sic=sea", [0, 0, 1]), ("sic!=lake", [0, 1, 1]), ("sic>0.2", [0, 1, 1])):
        assert parsed(text, lambda _: False).on(ds["sic"])(ds["sic"].values).tolist() == expected
