"""Rasters and tables as people have them, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
import xarray as xr
from rasterio.transform import from_origin

from ..commands import cli, with_warnings

GAPS = np.zeros((12, 14), bool)
GAPS[3:6, 4:8] = True
VALUES = np.add.outer(np.arange(12.0), np.arange(14.0))


def write_nc(path: Path, values: np.ndarray, attrs: dict[str, object] | None = None, **coords: object) -> Path:
    dims = ("time", "lat", "lon")[-values.ndim :]
    places = {"lat": 50 - 0.5 * np.arange(12), "lon": 5 + 0.5 * np.arange(14)}
    xr.Dataset({"a": (dims, values, attrs or {})}, {**places, **coords}).to_netcdf(path, engine="netcdf4")
    return path


def test_nodata_beyond_2_to_the_53(tmp_path: Path, model: str) -> None:
    nodata = 2**60 + 1
    source = write_nc(tmp_path / "a.nc", np.where(GAPS, nodata, VALUES.astype("i8")))
    done = with_warnings("fill", source, tmp_path / "b.nc", "--nodata", nodata, "--model", model)
    assert done.startswith("Filled 12 cells")
    with xr.open_dataset(tmp_path / "b.nc", engine="netcdf4", decode_cf=False) as found:
        assert found["a"].attrs["_FillValue"] == nodata
        assert found["a"].max() < 30


def test_nodata_that_geotiff_rounds_is_named(tmp_path: Path, model: str) -> None:
    values = np.where(GAPS, -(2**63), VALUES.astype("i8"))
    about = {"width": 14, "height": 12, "count": 1, "dtype": "int64", "transform": from_origin(0, 12, 1, 1)}
    with rasterio.open(tmp_path / "a.tif", "w", nodata=-(2**63), **about) as file:
        file.write(values, 1)
    with rasterio.open(tmp_path / "a.tif") as file:
        assert file.nodata == -9  # as GDAL reads the tag -9.2e+18
    text = with_warnings("fill", tmp_path / "a.tif", tmp_path / "b.nc", "--model", model)
    assert "a: 12 observed cells hold -9223372036854775808, far from all other values" in text
    given = ["--nodata", text.partition("(--nodata ")[2].partition(",")[0], "--model", model, "--values-only"]
    assert "Filled 12 cells" in with_warnings("fill", tmp_path / "a.tif", tmp_path / "c.nc", *given)
    for target, warned in (("d.tif", True), ("d.nc", False)):
        text = with_warnings("fill", tmp_path / "a.tif", tmp_path / target, *given, "--max-gap", 1)
        assert ("GDAL reads the nodata value -9223372036854775808 of 64-bit integers" in text) is warned


def test_nodata_that_geotiff_cannot_hold_is_named(tmp_path: Path, model: str) -> None:
    source = write_nc(tmp_path / "a.nc", np.where(GAPS, 2**63 - 1, VALUES.astype("i8")))
    options = ["--nodata", 2**63 - 1, "--model", model, "--values-only"]
    text = with_warnings("fill", source, tmp_path / "b.tif", *options, code=1)
    assert "a GeoTIFF cannot hold the nodata value 9223372036854775807 of int64, which is rounded to" in text
    assert not (tmp_path / "b.tif").exists()


@pytest.mark.parametrize("name", ["b.nc", "b.zarr", "b.tif"])
@pytest.mark.parametrize(
    ("units", "calendar"), [("years since 2000-01-01", "standard"), ("months since 1960-01-01", "360_day")]
)
def test_times_that_no_reader_decodes_do_not_stop_a_fill(
    tmp_path: Path, model: str, name: str, units: str, calendar: str
) -> None:
    time = ("time", [0.5, 1.5], {"units": units, "calendar": calendar})
    source = write_nc(tmp_path / "a.nc", np.where(GAPS, np.nan, np.stack([VALUES, VALUES])), time=time)
    assert "Filled 24 cells" in with_warnings("fill", source, tmp_path / name, "--model", model)
    if name != "b.tif":
        engine = "zarr" if name == "b.zarr" else "netcdf4"
        with xr.open_dataset(tmp_path / name, engine=engine, decode_times=False) as found:
            assert (found["time"].values.tolist(), found["time"].attrs["units"]) == ([0.5, 1.5], units)


def test_a_collar_is_named_and_can_be_left(tmp_path: Path, model: str) -> None:
    rows, cols = np.mgrid[:30, :30]
    values = np.where(abs(rows - 15) + abs(cols - 15) < 13, rows + 0.1 * cols, np.nan)
    values[14:16, 14:16] = np.nan
    xr.Dataset({"a": (("y", "x"), values)}).to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    done = with_warnings("fill", tmp_path / "a.nc", tmp_path / "b.nc", "--model", model)
    assert "Warning: a: 587 of 591 filled cells lie outside the footprint" in done
    for name in ("c.nc", "c.zarr"):
        done = with_warnings("fill", tmp_path / "a.nc", tmp_path / name, "--model", model, "--holes")
        assert "Filled 4 cells, left 587 empty (587 outside domain)" in done
        assert "Warning" not in done


def test_values_alone_keep_their_dtype_in_a_geotiff(tmp_path: Path, model: str) -> None:
    values = np.where(GAPS, -9, VALUES).astype("i2")
    source = write_nc(tmp_path / "a.nc", values, {"_FillValue": np.int16(-9), "ancillary_variables": "b"})
    assert "Filled 12 cells" in with_warnings("fill", source, tmp_path / "b.tif", "--model", model, "--values-only")
    with rasterio.open(tmp_path / "b.tif") as file:
        assert (file.count, file.dtypes, file.nodata) == (1, ("int16",), -9)
        np.testing.assert_array_equal(file.read(1)[~GAPS], values[~GAPS])
        assert (file.read(1) != -9).all()
    with_warnings("fill", source, tmp_path / "b.nc", "--model", model, "--values-only")
    with xr.open_dataset(tmp_path / "b.nc", engine="netcdf4") as found:
        assert (list(found), found["a"].attrs) == (["a"], {"ancillary_variables": "b"})
    refused = cli("fill", source, tmp_path / "b.zarr", "--values-only", "--resume", code=2)
    assert "need an OUT that ends in .zarr" in refused.output


def test_info_says_where_cells_with_places_of_their_own_lie(tmp_path: Path) -> None:
    lat, lon = np.meshgrid(60.0 - np.arange(5), 10.0 + np.arange(6), indexing="ij")
    places = {"lat": (("line", "pixel"), lat + 0.1 * lon), "lon": (("line", "pixel"), lon)}
    xr.Dataset({"a": (("line", "pixel"), np.ones((5, 6)))}, places).to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    facts = json.loads(with_warnings("info", tmp_path / "a.nc", "--json"))
    assert (facts["latitudes"], facts["longitudes"]) == ([57.0, 61.5], [10.0, 15.0])
    assert facts["cell"] is None
    assert facts["first_centre"] is None


def test_info_warns_of_undeclared_nodata(tmp_path: Path) -> None:
    source = write_nc(tmp_path / "a.nc", np.where(GAPS, 99999, VALUES))
    assert "a: 12 observed cells hold 99999, far from all other values" in with_warnings("info", source)


def test_info_does_not_doubt_what_describes_another_variable(tmp_path: Path, model: str) -> None:
    xr.Dataset({"a": (("y", "x"), VALUES)}).where(~GAPS).geonp.infill(model=model, tails=True).to_netcdf(
        tmp_path / "a.nc"
    )
    assert "far from all other values" not in with_warnings("info", tmp_path / "a.nc")


def test_several_nodata_values_of_packed_cells(tmp_path: Path, model: str) -> None:
    stored = (100 * np.add.outer(np.arange(12), np.arange(15))).astype("i2")
    stored[3:5, 4:6], stored[8, 9] = -999, -888
    packing = {"missing_value": np.array([-999, -888], "i2"), "scale_factor": np.float32([0.01]), "add_offset": 5.0}
    xr.Dataset({"a": (("y", "x"), stored, packing)}).to_netcdf(tmp_path / "a.nc")
    for name in ("out.nc", "out.zarr", "out.tif"):
        assert "Filled 5 cells" in with_warnings("fill", tmp_path / "a.nc", tmp_path / name, "--model", model)
    out = xr.load_dataset(tmp_path / "out.nc")
    seen = (stored != -999) & (stored != -888)
    np.testing.assert_allclose(out.a.values[seen], 5 + 0.01 * stored[seen], rtol=1e-6)
    assert (out.a.values[~seen] > 4).all()


@pytest.mark.parametrize(("key", "value"), [("scale_factor", 0.0), ("scale_factor", np.nan), ("add_offset", "five")])
def test_scales_that_unpack_nothing_are_named(tmp_path: Path, model: str, key: str, value: object) -> None:
    file = tmp_path / "a.nc"
    attrs = {"_FillValue": np.int16(-1), key: value}
    xr.Dataset({"a": (("y", "x"), np.zeros((4, 5), "i2"), attrs), "b": (("y", "x"), np.ones((4, 5)))}).to_netcdf(file)
    refused = with_warnings("fill", file, tmp_path / "out.nc", "--model", model, code=1)
    assert f"Variable 'a' cannot be unpacked: got {key} {value}, expected a finite number" in refused
    with_warnings("info", file, "--variable", "b")
