"""Nodata values as files declare them: of another dtype than the values, unpacked, beside NaN, or in Zarr alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from geonp.io.files import open_raster
from geonp.io.stores import with_fill_values
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
@pytest.mark.filterwarnings("ignore:variable 'a' has multiple fill values")
def test_declared_values_are_compared_as_they_are_stored(
    tmp_path: Path, dtype: str, nodata: float, attrs: dict[str, Any]
) -> None:
    found = open_raster(write(tmp_path / "a.nc", np.where(GAPS, nodata, VALUES).astype(dtype), **attrs))["a"]
    np.testing.assert_array_equal(observed(found).isnull(), GAPS)
    np.testing.assert_allclose(found.values[~GAPS], VALUES[~GAPS] * attrs.get("scale_factor", 1))


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
