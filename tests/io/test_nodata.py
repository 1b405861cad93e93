"""Nodata values as files declare them: of another dtype than the values, unpacked, beside NaN, or in Zarr alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from geonp.errors import InputError
from geonp.io.files import open_raster
from geonp.io.output import write_raster
from geonp.io.stores import with_fill_values
from geonp.raster.metadata import kept_encoding
from geonp.raster.nodata import observed

GAPS = np.zeros((6, 8), bool)
GAPS[2:4, 3:6] = True
VALUES = np.add.outer(np.arange(6.0), np.arange(8.0))


def write(path: Path, stored: np.ndarray, **attrs: Any) -> Path:
    ds = xr.Dataset({"a": (("lat", "lon"), stored, attrs)}, {"lat": 50.0 - np.arange(6), "lon": np.arange(8.0)})
    encoding: dict[str, Any] = {} if "_FillValue" in attrs else {"_FillValue": None}
    ds.to_netcdf(path, engine="netcdf4", encoding={"a": encoding})
    return path


@pytest.mark.parametrize(
    ("dtype", "nodata", "attrs"),
    [
        ("f4", -999.9, {"missing_value": np.float64(-999.9)}),
        ("f4", -999.9, {"missing_value": np.float64(-999.9), "_FillValue": np.float32(1e20)}),
        ("i2", -9999, {"missing_value": np.float32(-999.9), "scale_factor": 0.1}),
        ("i2", -9999, {"missing_value": np.float64(-9999.0)}),
        ("f4", -9999, {"nodata": "-9999.0", "_FillValue": np.float32(np.nan)}),
        ("f4", -9999, {"nodatavals": [-9999.0, -9999.0], "_FillValue": np.float32(np.nan)}),
    ],
)
def test_declared_values_are_compared_as_they_are_stored(
    tmp_path: Path, dtype: str, nodata: float, attrs: dict[str, Any]
) -> None:
    found = open_raster(write(tmp_path / "a.nc", np.where(GAPS, nodata, VALUES).astype(dtype), **attrs))["a"]
    np.testing.assert_array_equal(observed(found).isnull(), GAPS)
    np.testing.assert_allclose(found.values[~GAPS], VALUES[~GAPS] * attrs.get("scale_factor", 1))


def test_zeros_are_no_nodata_value_that_float32_rounds_to_0() -> None:
    tiny = np.finfo(np.float64).tiny
    found = xr.DataArray([[0.0, 1.0], [tiny, -0.0]], dims=("y", "x"), attrs={"_FillValue": tiny})
    np.testing.assert_array_equal(observed(found).isnull(), [[False, False], [True, False]])


@pytest.mark.parametrize("name", ["b.nc", "b.zarr"])
@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_several_nodata_values_are_written_as_one(tmp_path: Path, name: str, dtype: str) -> None:
    stored = np.where(GAPS, -99, VALUES).astype(dtype)
    stored[0, 0], stored[0, 1] = -9999, -7
    several = {"missing_value": np.array([-99, -7], dtype), "_FillValue": np.dtype(dtype).type(-9999)}
    for attrs in (several, {"missing_value": np.array([-99, -7, -9999], dtype)}):
        ds = open_raster(write(tmp_path / "a.nc", stored, **attrs)).load()
        write_raster(ds, tmp_path / name, overwrite=True)
        found = observed(open_raster(tmp_path / name)["a"])
        np.testing.assert_array_equal(found, np.where(stored < 0, np.nan, stored))
        (tmp_path / "a.nc").unlink()


def test_nan_given_by_the_user_is_the_only_nodata_value(tmp_path: Path) -> None:
    file = write(tmp_path / "a.nc", np.where(GAPS, -9999, VALUES), nodata="-9999.0")
    assert not observed(open_raster(file, nodata=np.nan)["a"]).isnull().any()


@pytest.mark.parametrize(("dtype", "fill", "missing"), [("i2", -9999, True), ("f4", -9999, True), ("i2", 0, False)])
def test_the_fill_value_of_zarr_is_nodata_unless_it_is_0(
    tmp_path: Path, dtype: str, fill: float, missing: bool
) -> None:
    ds = xr.Dataset({"a": (("lat", "lon"), np.where(GAPS, fill, VALUES + 1).astype(dtype))})
    encoding = {"fill_value": np.dtype(dtype).type(fill), "_FillValue": None}
    ds.to_zarr(tmp_path / "a.zarr", zarr_format=3, encoding={"a": encoding}, consolidated=False)
    found = open_raster(tmp_path / "a.zarr")["a"]
    np.testing.assert_array_equal(observed(found, None if missing else np.nan).isnull(), GAPS & missing)
    assert (found.encoding.get("default_fill") is not None) == (missing and dtype == "i2")


def test_fill_values_that_xarray_leaves_out_are_read(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.ones((2, 3), "i2"))})
    ds.to_zarr(tmp_path / "a.zarr", group="g", zarr_format=3, encoding={"a": {"fill_value": -7}}, consolidated=False)
    bare = xr.open_zarr(tmp_path / "a.zarr", group="g", consolidated=False)
    bare["a"].encoding.pop("fill_value", None)  # as before version 2026.7
    found = with_fill_values(bare, tmp_path / "a.zarr", "g")
    assert found["a"].encoding["fill_value"] == -7


def test_zeros_in_format_2_are_named_where_the_fill_value_is_0(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    array = group.create_array("a", shape=(2, 2), dtype="f4", attributes={"_ARRAY_DIMENSIONS": ["y", "x"]})
    array[:] = [[0, 1], [np.nan, 2]]
    with pytest.warns(UserWarning, match=r"^a: cells with 0 count as missing.*give nodata=nan"):
        assert int(open_raster(tmp_path / "a.zarr")["a"].isnull().sum()) == 2
    assert int(open_raster(tmp_path / "a.zarr", nodata=np.nan)["a"].isnull().sum()) == 1
    array.attrs["_FillValue"] = 2.0  # which xarray replaces by the default
    assert open_raster(tmp_path / "a.zarr")["a"].isnull().values.tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["f4", "i2"])
@pytest.mark.parametrize("chunks", [None, "auto"])
def test_chunks_that_were_never_written_are_said(tmp_path: Path, zarr_format: Any, dtype: str, chunks: Any) -> None:
    """They read as 0, also in stores that declare another nodata value."""
    names = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}} if zarr_format == 2 else {"dimension_names": ["y", "x"]}
    options: Any = {"shape": (8, 8), "chunks": (4, 4), "dtype": dtype, "fill_value": None, **names}
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=zarr_format)
    array = group.create_array("a", **options)
    array[:4] = np.arange(1, 33).reshape(4, 8)
    said = r"^a: the store does not hold 2 of its 4 chunks, whose cells count as 0, the fill value.*--nodata 0"
    with pytest.warns(UserWarning, match=said):
        assert not open_raster(tmp_path / "a.zarr", chunks=chunks)["a"].isnull().any()
    assert int(observed(open_raster(tmp_path / "a.zarr", chunks=chunks, nodata=0)["a"]).isnull().sum()) == 32
    array[0, 0] = 0  # then zeros are values, and Zarr leaves out chunks of them
    open_raster(tmp_path / "a.zarr", chunks=chunks)
    if zarr_format == 3:
        del group["a"]
        group.create_array("a", **{**options, "fill_value": -9}, overwrite=True)[:4] = 1
        assert int(observed(open_raster(tmp_path / "a.zarr", chunks=chunks)["a"]).isnull().sum()) == 32


@pytest.mark.parametrize(
    ("limits", "low", "high"),
    [({"valid_min": -0.2, "valid_max": np.int32(1)}, -0.2, 1), ({"valid_range": np.array([0, 5], "i2")}, 0, 5e-4)],
)
def test_a_float_limit_says_that_both_are_of_unpacked_values(
    tmp_path: Path, limits: dict[str, Any], low: float, high: float
) -> None:
    stored = np.where(GAPS, -9999, VALUES * 1000 - 3000).astype("i2")
    found = open_raster(write(tmp_path / "a.nc", stored, _FillValue=np.int16(-9999), scale_factor=1e-4, **limits))["a"]
    unpacked = stored * 1e-4
    np.testing.assert_array_equal(observed(found).isnull(), GAPS | (unpacked < low - 1e-9) | (unpacked > high + 1e-9))


@pytest.mark.parametrize("given", [{"valid_range": np.array([0, 255], "i2")}, {"valid_min": 1, "valid_max": 220}])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_bytes_whose_valid_range_is_that_of_unsigned_ones_are_unsigned(
    tmp_path: Path, given: dict[str, Any], scale: float | None
) -> None:
    unsigned = np.where(GAPS, 0, VALUES * 17 + 10).astype("u1")
    attrs = {**given, **({} if scale is None else {"scale_factor": scale})}
    file = write(tmp_path / "a.nc", unsigned.view("i1"), _FillValue=np.int8(0), **attrs)
    values = observed(open_raster(file)["a"])
    np.testing.assert_array_equal(values.isnull(), GAPS)
    assert float(values.max()) == unsigned.max() * (scale or 1) > 127 * (scale or 1)
    given_255 = open_raster(write(tmp_path / "b.nc", np.where(GAPS, -1, 5).astype("i1"), **attrs), nodata=255)["a"]
    np.testing.assert_array_equal(observed(given_255).isnull(), GAPS)


def test_packed_integers_of_16_bits_stay_signed_for_a_range_of_unpacked_values(tmp_path: Path) -> None:
    stored = np.where(GAPS, -9999, VALUES).astype("i2")
    attrs = {"_FillValue": np.int16(-9999), "scale_factor": 10.0, "valid_range": np.array([0, 40000], "i4")}
    assert "_Unsigned" not in open_raster(write(tmp_path / "a.nc", stored, **attrs))["a"].encoding


def test_scale_and_offset_that_are_text_are_numbers(tmp_path: Path) -> None:
    stored = np.where(GAPS, -1000, VALUES).astype("i2")
    file = write(tmp_path / "a.nc", stored, scale_factor="0.01", add_offset="2.0", missing_value="-1000")
    for nodata in (None, -1000):
        found = open_raster(file, nodata=nodata)["a"]
        np.testing.assert_array_equal(found.isnull(), GAPS)
        np.testing.assert_allclose(found.values[~GAPS], VALUES[~GAPS] * 0.01 + 2)


@pytest.mark.parametrize(
    "limits",
    [
        {"valid_range": "0, 12"},
        {"valid_range": "[0.f 12.0f]"},
        {"valid_min": "0.0", "valid_max": "12"},
        {"valid_range": ["0", "12"]},
    ],
)
@pytest.mark.parametrize("dtype", ["f4", "i2"])
def test_limits_that_are_text_are_numbers(tmp_path: Path, limits: dict[str, Any], dtype: str) -> None:
    stored = np.where(GAPS, [-5, 120] * 4, VALUES).astype(dtype)
    found = open_raster(write(tmp_path / "a.nc", stored, **limits))["a"]
    np.testing.assert_array_equal(observed(found).isnull(), GAPS)
    in_memory = xr.DataArray(stored, dims=("y", "x"), attrs=limits)
    in_memory.encoding["dtype"] = stored.dtype
    np.testing.assert_array_equal(observed(in_memory).isnull(), GAPS)


@pytest.mark.parametrize("limits", ["0 - 500 N", "", "0 to 12"])
def test_limits_that_are_other_text_are_ignored(tmp_path: Path, limits: str) -> None:
    assert not observed(open_raster(write(tmp_path / "a.nc", VALUES - 5, valid_range=limits))["a"]).isnull().any()


@pytest.mark.parametrize(
    "name", ["FillValue", "NoDataValue", "no_data_value", "MissingValue", "_fillvalue", "CodeMissingValue", "nodata"]
)
@pytest.mark.parametrize(("dtype", "scale"), [("f4", None), ("i2", None), ("i2", 0.5), ("u2", 0.5)])
def test_nodata_values_of_other_names(tmp_path: Path, name: str, dtype: str, scale: float | None) -> None:
    stored = np.where(GAPS, 0, VALUES + 1).astype(dtype)
    packing = {} if scale is None else {"scale_factor": scale}
    for n, given in enumerate(("0", stored.dtype.type(0))):
        found = open_raster(write(tmp_path / f"{n}.nc", stored, **packing, **{name: given}))["a"]
        np.testing.assert_array_equal(observed(found).isnull(), GAPS)
        in_memory = xr.DataArray(stored, dims=("y", "x"), attrs={name: given, **packing})
        np.testing.assert_array_equal(observed(in_memory).isnull(), GAPS)
        assert name not in observed(in_memory).attrs
    np.testing.assert_allclose(observed(found).values[~GAPS], stored[~GAPS] * (scale or 1))


@pytest.mark.parametrize("key", ["_FillValue", "missing_value"])
@pytest.mark.parametrize(("dtype", "scale"), [("f4", None), ("i2", None), ("i2", 0.5)])
def test_nodata_values_of_the_file(tmp_path: Path, key: str, dtype: str, scale: float | None) -> None:
    """Files of moorings of NOAA declare them once, for all variables."""
    stored = np.where(GAPS, -99, VALUES + 1).astype(dtype)
    packing = {} if scale is None else {"scale_factor": scale}
    with xr.open_dataset(write(tmp_path / "a.nc", stored, **packing), decode_cf=False) as ds:
        ds.load().assign_attrs({key: -99.0}).to_netcdf(tmp_path / "b.nc")
        ds.assign_attrs({key: 0.0}).to_netcdf(tmp_path / "c.nc")
    found = observed(open_raster(tmp_path / "b.nc")["a"])
    np.testing.assert_array_equal(found.isnull(), GAPS)
    np.testing.assert_allclose(found.values[~GAPS], stored[~GAPS] * (scale or 1))
    if dtype == "f4":
        assert not observed(open_raster(tmp_path / "c.nc")["a"]).isnull().any()


def test_scales_of_levels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unpacked: got scale_factor \[0\.01 0\.1 \], expected a finite number"):
        open_raster(write(tmp_path / "a.nc", VALUES.astype("i2"), scale_factor=[0.01, 0.1]))


def test_words_under_other_names_of_nodata_are_no_numbers(tmp_path: Path) -> None:
    file = write(tmp_path / "a.nc", VALUES, fill="none", nodata="see quality", MissingValue="-1")
    np.testing.assert_array_equal(observed(open_raster(file)["a"]), VALUES)


@pytest.mark.parametrize("limits", [{"ValidRange": [1.0, 13.0]}, {"ValidMin": 1.0, "Valid_Max": 13.0}])
def test_limits_of_other_names(tmp_path: Path, limits: dict[str, Any]) -> None:
    stored = np.where(GAPS, [0, 99] * 4, VALUES + 1).astype("f4")
    found = open_raster(write(tmp_path / "a.nc", stored, **limits))["a"]
    np.testing.assert_array_equal(observed(found).isnull(), GAPS)


@pytest.mark.parametrize("given", ["-9999, 0", "-9999.f,0.f", ["-9999.", "0."]])
def test_several_nodata_values_in_a_text_are_numbers(tmp_path: Path, given: Any) -> None:
    stored = np.where(GAPS, [-9999, 0] * 4, VALUES + 1)
    for file in (write(tmp_path / "a.nc", stored.astype(dtype), missing_value=given) for dtype in ("f4", "i2")):
        np.testing.assert_array_equal(observed(open_raster(file)["a"]).isnull(), GAPS)
    in_memory = xr.DataArray(stored, dims=("y", "x"), attrs={"missing_value": given})
    np.testing.assert_array_equal(observed(in_memory).isnull(), GAPS)


def test_signed_bytes_that_say_so_stay_packed(tmp_path: Path) -> None:
    stored = np.where(GAPS, -128, VALUES).astype("i1")
    file = write(tmp_path / "a.nc", stored, _FillValue=np.int8(-128), scale_factor=0.5, _Unsigned="false")
    found = open_raster(file)["a"]
    assert kept_encoding(found, ())["dtype"] == np.int8
