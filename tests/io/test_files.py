from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import cftime
import dask
import dask.array
import numpy as np
import pandas as pd
import psutil
import pyproj
import pytest
import rasterio
import rasterio.shutil
import rioxarray  # noqa: F401  (the accessor rio)
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import from_origin

import geonp
from geonp.errors import InputError, MissingFileError, OutputError
from geonp.io import owner
from geonp.io.files import open_raster
from geonp.io.output import check_output, write_raster
from geonp.io.table_output import write_table
from geonp.raster.grid import Grid
from geonp.raster.nodata import observed

from ..commands import says

SHARED = Path(__file__).parents[3] / "shared" / "data"
FORMATS = ("x.tif", "x.nc", "x.zarr")
NODATA = {"uint8": 255, "uint16": 0, "int16": -32768, "int32": -9999, "float32": -9999.0, "float64": float("nan")}


def write_tif(path: Path, values: np.ndarray, nodata: float | None = None, **profile: object) -> Path:
    bands = values if values.ndim == 3 else values[None]
    count, height, width = bands.shape
    options = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_200_000, 30, 30), **profile}
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=count, dtype=bands.dtype, nodata=nodata, **options
    ) as file:
        file.write(bands)
    return path


def stored_bands(path: Path) -> tuple[np.ndarray, dict[str, object]]:
    with rasterio.open(path) as file:
        return file.read(), {
            "crs": file.crs,
            "nodata": file.nodata,
            "transform": file.transform,
            "dtype": file.dtypes[0],
        }


@st.composite
def stored_rasters(draw: st.DrawFn) -> tuple[np.ndarray, float]:
    dtype = draw(st.sampled_from(sorted(NODATA)))
    shape = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.integers(1, 200, shape).astype(dtype)
    values[rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = NODATA[dtype]
    return values, NODATA[dtype]


@settings(max_examples=25)
@given(stored_rasters(), st.permutations(["nc", "zarr", "tif"]), st.sampled_from(["EPSG:32633", "EPSG:4326"]))
def test_values_dtype_nodata_and_crs_survive_any_chain_of_formats(
    raster: tuple[np.ndarray, float], formats: list[str], crs: str
) -> None:
    values, nodata = raster
    with tempfile.TemporaryDirectory() as folder:
        step = write_tif(Path(folder) / "start.tif", values, nodata, crs=crs, transform=from_origin(10, 50, 0.5, 0.25))
        before, tags = stored_bands(step)
        for i, kind in enumerate([*formats, "tif"]):
            ds = open_raster(step)
            assert list(ds.data_vars) == ["start"]
            np.testing.assert_array_equal(
                ds["start"].isnull(), values != values if nodata != nodata else values == nodata
            )
            step = Path(folder) / f"{i}.{kind}"
            write_raster(ds, step)
        after, final = stored_bands(step)
    np.testing.assert_array_equal(after, before)
    assert final["crs"] == tags["crs"] == rasterio.CRS.from_string(crs)
    assert final["dtype"] == tags["dtype"]
    assert final["transform"].almost_equals(tags["transform"], precision=1e-9)
    np.testing.assert_equal(final["nodata"], tags["nodata"])


@pytest.mark.parametrize("name", ["x.nc", "x.tif", "x.zarr"])
def test_gdal_opens_what_was_written(tmp_path: Path, name: str) -> None:
    source = write_tif(tmp_path / "in.tif", np.arange(6, dtype="int16").reshape(2, 3), nodata=5)
    # GDAL reads the final Zarr format 3 from release 3.11 on.
    options = {"zarr_format": "2"} if name.endswith("zarr") else {}
    write_raster(open_raster(source), tmp_path / name, creation_options=options)
    values, tags = stored_bands(tmp_path / name)
    expected, truth = stored_bands(source)
    np.testing.assert_array_equal(values, expected)
    assert tags == truth


@pytest.mark.parametrize("zarr_format", ["2", "3"])
def test_zarr_formats(tmp_path: Path, zarr_format: str) -> None:
    ds = open_raster(write_tif(tmp_path / "in.tif", np.ones((4, 4), "float32")))
    write_raster(ds, tmp_path / "x.zarr", creation_options={"ZARR_FORMAT": zarr_format})
    assert (tmp_path / "x.zarr" / "zarr.json").exists() == (zarr_format == "3")
    with xr.open_zarr(tmp_path / "x.zarr") as plain:  # without a warning
        np.testing.assert_array_equal(plain["in"], ds["in"])
    again = open_raster(tmp_path / "x.zarr").load()
    again.x.attrs, again.y.attrs = {}, {}
    xr.testing.assert_identical(again, ds.load())
    with pytest.raises(InputError, match=r"No Zarr format '4': expected 2 or 3"):
        write_raster(ds, tmp_path / "y.zarr", creation_options={"zarr_format": "4"})


def test_opening_and_selecting_is_lazy(tmp_path: Path, computes_nothing: Any) -> None:
    path = write_tif(tmp_path / "in.tif", np.arange(5000, dtype="float32").reshape(50, 100))

    with computes_nothing():
        ds = open_raster(path, bbox=(500_000, 5_199_000, 501_000, 5_200_000), chunks=16)
    assert dict(ds.sizes) == {"y": 33, "x": 33}
    assert ds["in"].chunks == ((16, 16, 1), (16, 16, 1))


def test_bbox_keeps_cells_whose_centre_is_inside(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": (("lat", "lon"), np.arange(24.0).reshape(4, 6))})
    ds = ds.assign_coords(lat=[40.0, 30, 20, 10], lon=[0.0, 60, 120, 180, 240, 300])
    write_raster(ds, tmp_path / "x.nc")
    cut = open_raster(tmp_path / "x.nc", bbox=(60, 15, 180, 30))
    assert cut["lat"].values.tolist() == [30, 20]
    assert cut["lon"].values.tolist() == [60, 120, 180]
    with pytest.raises(InputError, match=r"holds no cell: got -50 to -10 along 'lon', expected a part of 0 to 300"):
        open_raster(tmp_path / "x.nc", bbox=(-50, 15, -10, 30))


def test_bands_are_one_variable(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "three bands.tif", np.arange(12, dtype="uint8").reshape(3, 2, 2), nodata=0)
    ds = open_raster(path)
    assert ds["three_bands"].dims == ("band", "y", "x")
    kept = open_raster(path, bands=[3, 1])["three_bands"]
    np.testing.assert_array_equal(kept, ds["three_bands"].values[[2, 0]])
    with pytest.raises(InputError, match=r"No band 0, 4: the raster has bands 1 to 3"):
        open_raster(path, bands=[0, 2, 4])


def test_what_a_file_says_of_itself_and_its_bands_survives(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "in.tif", np.arange(12, dtype="int16").reshape(3, 2, 2), nodata=-1)
    with rasterio.open(path, "r+") as file:
        file.descriptions = "red", None, "near infrared"
        file.units = "K", "K", "K"
        file.update_tags(SENSOR="OLI", AREA_OR_POINT="Point")
    ds = open_raster(path)
    assert ds["in"].attrs["units"] == "K"
    assert ds["in"].coords["band_name"].values.tolist() == ["red", "band 2", "near infrared"]
    assert ds.attrs["SENSOR"] == "OLI"
    for name in FORMATS:
        write_raster(ds, tmp_path / name)
        again = open_raster(tmp_path / name)
        ending = "in " if name == "x.tif" else ""
        expected = [ending + band for band in ("red", "band 2", "near infrared")]
        assert again.coords["band_name"].values.tolist() == expected
        assert again.attrs["SENSOR"] == "OLI"
    # in chunks, the names are lazy too
    write_raster(open_raster(path, chunks=1), tmp_path / "chunked.tif")
    for name in ("x.tif", "chunked.tif"):
        with rasterio.open(tmp_path / name) as file:
            assert file.descriptions == ("in red", "in band 2", "in near infrared")
    with rasterio.open(tmp_path / "x.tif") as file:
        assert file.units == ("K", "K", "K")
        assert file.tags()["SENSOR"] == "OLI"


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_rasters_without_georeference_keep_their_rows(tmp_path: Path) -> None:
    values = np.arange(6, dtype="float32").reshape(2, 3)
    path = write_tif(tmp_path / "in.tif", values, crs=None, transform=None)
    write_raster(open_raster(path), tmp_path / "out.tif")
    stored, tags = stored_bands(tmp_path / "out.tif")
    np.testing.assert_array_equal(stored[0], values)
    assert (tags["crs"], tags["transform"]) == (None, rasterio.Affine.identity())


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_ground_control_points_survive(tmp_path: Path) -> None:
    points = [
        GroundControlPoint(row, col, 10.0 + col, 50.0 - row, 0.0) for row, col in ((0, 0), (0, 3), (2, 0), (2, 3))
    ]
    path, values = tmp_path / "in.tif", np.arange(6, dtype="float32").reshape(2, 3)
    with rasterio.open(path, "w", driver="GTiff", height=2, width=3, count=1, dtype="float32") as file:
        file.write(values, 1)
        file.gcps = points, CRS.from_epsg(4326)
    write_raster(open_raster(path), tmp_path / "out.tif", driver="GTiff")
    with rasterio.open(tmp_path / "out.tif") as file:
        np.testing.assert_array_equal(file.read(1), values)
        gcps, crs = file.gcps
        assert [(p.row, p.col, p.x, p.y) for p in gcps] == [(p.row, p.col, p.x, p.y) for p in points]
        assert crs.to_epsg() == 4326
        assert file.transform.is_identity


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_geotiff_of_uneven_cells_lies_nowhere_and_says_so(tmp_path: Path) -> None:
    coords = {"lat": [50.0, 49.0, 47.0], "lon": [1.0, 2.0]}
    ds = xr.Dataset({"a": (("lat", "lon"), np.arange(6.0).reshape(3, 2))}, coords)
    ds = ds.assign_coords(crs=xr.Variable((), 0, {"crs_wkt": CRS.from_epsg(4326).to_wkt()}))
    ds["a"].attrs["grid_mapping"] = "crs"
    with pytest.warns(UserWarning, match=r"x.tif is written without georeference: its cells are not evenly"):
        write_raster(ds, tmp_path / "x.tif")
    with rasterio.open(tmp_path / "x.tif") as file:
        assert (file.crs, file.transform) == (None, rasterio.Affine.identity())


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_crs_without_coordinates_is_kept(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.arange(6.0).reshape(2, 3), {"grid_mapping": "crs"})})
    ds = ds.assign_coords(crs=xr.Variable((), 0, {"crs_wkt": CRS.from_epsg(32633).to_wkt()}))
    write_raster(ds, tmp_path / "x.tif")
    assert stored_bands(tmp_path / "x.tif")[1]["crs"].to_epsg() == 32633


def test_integers_without_nodata_stay_integers_until_it_is_given(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "in.tif", np.array([[0, 1], [2, 255]], dtype="uint8"))
    assert open_raster(path)["in"].dtype == np.uint8
    given_one = open_raster(path, nodata=0)["in"]
    assert given_one.isnull().values.tolist() == [[True, False], [False, False]]
    assert given_one.encoding["_FillValue"] == 0
    with pytest.raises(
        InputError, match=r"cannot have nodata -9999: it holds uint8, expected an integer from 0 to 255"
    ):
        open_raster(path, nodata=-9999)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("declared", [None, 3])
def test_nodata_nan_says_that_no_integer_is_missing(tmp_path: Path, name: str, declared: int | None) -> None:
    values = np.array([[1, 2, 3]], "int16")
    write_raster(open_raster(write_tif(tmp_path / "in.tif", values, nodata=declared)), tmp_path / f"in-{name}")
    ds = open_raster(tmp_path / f"in-{name}", nodata=float("nan"))
    assert ds["in"].dtype == np.int16
    np.testing.assert_array_equal(observed(ds["in"]), values)
    write_raster(ds, tmp_path / name)
    again = open_raster(tmp_path / name)["in"]
    assert "_FillValue" not in again.encoding | again.attrs
    np.testing.assert_array_equal(again, values)


@pytest.mark.parametrize("name", ["x.nc", "x.zarr", "x.tif"])
def test_nodata_replaces_the_declared_one(tmp_path: Path, name: str) -> None:
    write_raster(open_raster(write_tif(tmp_path / "in.tif", np.array([[1, 2, 3]], "int16"), nodata=1)), tmp_path / name)
    da = open_raster(tmp_path / name, nodata=3)["in"]
    np.testing.assert_array_equal(da, [[1, 2, np.nan]])


def test_mask_bands_mark_missing_cells(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "in.tif", np.array([[1, 2], [3, 4]], dtype="uint8"))
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(np.array([[255, 0], [255, 255]], dtype="uint8"))
    np.testing.assert_array_equal(open_raster(path)["in"], [[1, np.nan], [3, 4]])


def test_scale_and_offset_are_applied_and_kept(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "in.tif", np.array([[0, 10, -1]], dtype="int16"), nodata=-1)
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = [0.5], [100.0]
    ds = open_raster(path)
    np.testing.assert_array_equal(ds["in"], [[100, 105, np.nan]])
    write_raster(ds, tmp_path / "out.tif", driver="GTiff")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert (file.scales, file.offsets, file.nodata) == ((0.5,), (100.0,), -1)
        np.testing.assert_array_equal(file.read(1), [[0, 10, -1]])


def filled_dataset(dtype: str, nodata: float) -> xr.Dataset:
    values = xr.DataArray(np.array([[1.0, 2.0, np.nan]], "float32"), dims=("y", "x"), attrs={"units": "m"})
    values.encoding = {"dtype": np.dtype(dtype), "_FillValue": nodata}
    error = xr.DataArray(np.array([[0.0, 0.25, np.nan]], "float32"), dims=("y", "x"))
    flag = xr.DataArray(np.array([[0, 1, 2]], "int8"), dims=("y", "x"))
    ds = xr.Dataset({"h": values, "h_standard_error": error, "h_fill_flag": flag})
    return ds.assign_coords(y=[0.0], x=[0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("dtype", "declared", "expected"), [("uint16", 0, np.nan), ("int16", -9999, -9999), ("float32", 1e20, np.nan)]
)
def test_geotiff_of_a_filled_raster_has_described_bands(
    tmp_path: Path, dtype: str, declared: float, expected: float
) -> None:
    write_raster(filled_dataset(dtype, declared), tmp_path / "x.tif")
    with rasterio.open(tmp_path / "x.tif") as file:
        assert file.descriptions == ("h", "h_standard_error", "h_fill_flag")
        assert file.units == ("m", None, None)
        assert file.driver == "GTiff"
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        np.testing.assert_equal(file.nodata, expected)
        value, error, flag = file.read(masked=True)
    assert value.tolist() == [[1, 2, None]]
    assert error.tolist() == [[0, 0.25, None]]
    assert flag.tolist() == [[0, 1, 2]]


def test_geotiff_of_integers_alone_keeps_their_dtype(tmp_path: Path) -> None:
    write_raster(filled_dataset("uint16", 0)[["h"]], tmp_path / "x.tif")
    values, tags = stored_bands(tmp_path / "x.tif")
    assert (values.tolist(), tags["dtype"], tags["nodata"]) == ([[[1, 2, 0]]], "uint16", 0)


def test_rasters_without_coordinates_are_read_and_written(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.arange(6.0).reshape(2, 3))})
    for name in FORMATS:
        write_raster(ds, tmp_path / name)
        np.testing.assert_array_equal(open_raster(tmp_path / name)["a"], ds["a"])


def test_input_is_not_changed_by_writing(tmp_path: Path) -> None:
    ds = open_raster(write_tif(tmp_path / "in.tif", np.ones((4, 5), "float32"))).isel(x=slice(1, 3))
    encoding, reference = dict(ds["in"].encoding), dict(ds["spatial_ref"].attrs)
    write_raster(ds, tmp_path / "x.nc")
    assert ds["in"].encoding == encoding
    assert ds["spatial_ref"].attrs == reference


def test_chunks_of_unequal_size_are_written(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.arange(70.0).reshape(7, 10))}).chunk({"y": (1, 4, 2), "x": (3, 3, 4)})
    write_raster(ds, tmp_path / "x.zarr")
    np.testing.assert_array_equal(open_raster(tmp_path / "x.zarr")["a"], ds["a"])


def test_one_cell_keeps_its_size_and_place(tmp_path: Path) -> None:
    ds = open_raster(write_tif(tmp_path / "in.tif", np.ones((1, 1), "float32")))
    write_raster(ds, tmp_path / "x.zarr")
    grid = Grid.from_xarray(open_raster(tmp_path / "x.zarr"))
    assert grid.spacing == (-30.0, 30.0)
    assert grid.origin == (5_199_985.0, 500_015.0)


def test_strings_and_dates_pass_through_zarr_and_netcdf(tmp_path: Path) -> None:
    ds = xr.Dataset(
        {"a": (("time", "y", "x"), np.ones((2, 2, 2))), "label": (("time",), np.array(["one", "two"]))},
        coords={"time": np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")},
    )
    write_raster(ds, tmp_path / "x.nc")
    xr.testing.assert_equal(open_raster(tmp_path / "x.nc").load(), ds)


@pytest.mark.parametrize("name", ["missing.tif", "missing.nc", "missing.zarr"])
def test_missing_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        MissingFileError, match=r"No such raster: got '.*missing\.\w+', expected a file or a Zarr folder"
    ):
        open_raster(tmp_path / name)


@pytest.mark.parametrize("name", ["text.tif", "text.nc", "text.csv", "folder.zarr", "folder"])
def test_not_a_raster(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("folder"):
        path.mkdir()
    else:
        path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"Not a raster that can be read: got '.*', expected GeoTIFF"):
        open_raster(path)


def test_what_a_file_holds_counts_more_than_its_name(tmp_path: Path) -> None:
    write_raster(filled_dataset("float32", -1.0)[["h"]], tmp_path / "x.tif")
    expected = open_raster(tmp_path / "x.tif").load()
    (tmp_path / "x.tif").rename(tmp_path / "x.nc")
    np.testing.assert_array_equal(*(ds.to_dataarray() for ds in (open_raster(tmp_path / "x.nc"), expected)))
    (tmp_path / "y.nc").write_text("<!DOCTYPE html><html>404</html>")
    with pytest.raises(InputError, match=r"It is a web page, .*\. Download the file again\."):
        open_raster(tmp_path / "y.nc")
    (tmp_path / "z.hdf").write_bytes(b"\x0e\x03\x13\x01" + bytes(100))
    with pytest.raises(InputError, match=r"It is HDF4, which GDAL in the wheels of rasterio does not read"):
        open_raster(tmp_path / "z.hdf")


def test_a_file_that_describes_cells(tmp_path: Path) -> None:
    for name in ("a.sgrd", "a.sdat", "a.tfw"):
        (tmp_path / name).write_text("NAME\t= a\n")
    with pytest.raises(InputError, match=r"It describes cells .* Give that file: '.*a\.sdat'\."):
        open_raster(tmp_path / "a.sgrd")


def test_no_such_variable(tmp_path: Path) -> None:
    write_raster(filled_dataset("float32", -1.0), tmp_path / "x.nc")
    with pytest.raises(InputError, match=r"No variable 'depth': the raster has 'h', 'h_standard_error', 'h_fill_flag'"):
        open_raster(tmp_path / "x.nc", variables=["h", "depth"])
    assert list(open_raster(tmp_path / "x.nc", variables=["h"]).data_vars) == ["h"]


def test_outputs_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there.nc").touch()
    (tmp_path / "mine.zarr").mkdir()
    (tmp_path / "mine.zarr" / "thesis.tex").touch()
    with pytest.raises(OutputError, match=r"The output exists: '.*there.nc'\. Choose another name, pass overwrite"):
        check_output(tmp_path / "there.nc")
    check_output(tmp_path / "there.nc", overwrite=True)
    with pytest.raises(OutputError, match=r"Not overwriting '.*mine.zarr': expected a Zarr store, got another folder"):
        check_output(tmp_path / "mine.zarr", overwrite=True)
    with pytest.raises(
        OutputError, match=r"Unknown output format: got '.*x\.grd', expected a name that ends in \.zarr"
    ):
        check_output(tmp_path / "x.grd")
    with pytest.raises(OutputError, match=r"Cannot write to the folder '.*none': No such file or directory"):
        check_output(tmp_path / "none" / "x.nc")
    with pytest.raises(OutputError, match=r"No driver 'COG' for '.*x\.nc': expected COG or GTiff with \.tif"):
        check_output(tmp_path / "x.nc", driver="COG")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that refuses even root")
def test_folder_that_is_not_writable() -> None:
    with pytest.raises(OutputError, match=r"Cannot write to the folder '/proc/self'"):
        check_output("/proc/self/x.nc")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("stop", "seen"), [(KeyboardInterrupt(), None), (OSError(28, "Disk full"), "Disk full.*Nothing was")]
)
def test_an_interrupted_run_leaves_nothing_new(
    tmp_path: Path, name: str, existing: bool, stop: BaseException, seen: str | None
) -> None:
    good = xr.Dataset({"a": (("y", "x"), np.ones((4, 4)))})
    if existing:
        write_raster(good, tmp_path / name)

    def interrupt(block: np.ndarray) -> np.ndarray:
        raise stop

    broken = dask.array.ones((4, 4), chunks=2).map_blocks(interrupt, meta=np.empty((0, 0)))
    expected = OutputError if seen else KeyboardInterrupt
    with dask.config.set(scheduler="synchronous"), pytest.raises(expected, match=seen):
        write_raster(good.copy(data={"a": broken}), tmp_path / name, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [name] * existing
    if existing:
        np.testing.assert_array_equal(open_raster(tmp_path / name)["a"], good["a"])


def write_with_limit(ds: xr.Dataset, path: Path, limit: int, **options: Any) -> str:
    """Write with a limit of file sizes in a forked process; the name of the error."""
    resource = pytest.importorskip("resource")
    receive, send = multiprocessing.Pipe(duplex=False)

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            with dask.config.set(scheduler="synchronous"):  # dask's threads are not in a forked process
                write_raster(ds, path, **options)
        except Exception as error:
            send.send(f"{type(error).__name__}: {error}")
        else:
            send.send("")

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    assert receive.poll(60)
    text = receive.recv()
    process.join()
    return str(text)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize(
    ("name", "options"), [("x.nc", {}), ("x.tif", {"driver": "COG"}), ("x.tif", {"driver": "GTiff"})]
)
def test_a_file_that_cannot_be_written_is_not_announced(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    coords = {"y": np.arange(300.0)[::-1], "x": np.arange(310.0)}
    # several bands: GDAL holds back their blocks until it closes the file
    bands = {band: (("y", "x"), rng.normal(size=(300, 310)).astype("f4")) for band in "abc"}
    ds, path = xr.Dataset(bands, coords).chunk(128), tmp_path / name
    for limit in (5_000, 300_000, 800_000):
        assert write_with_limit(ds, path, limit, **options).startswith("OutputError: ")
        assert list(tmp_path.iterdir()) == []
    assert write_with_limit(ds, path, 10_000_000, **options) == ""
    read = open_raster(path)
    stored = [read[band] for band in "abc"] if len(read.data_vars) == 3 else list(next(iter(read.data_vars.values())))
    np.testing.assert_array_equal(stored, [ds[band] for band in "abc"])


@pytest.mark.parametrize("driver", ["COG", "GTiff"])
@pytest.mark.parametrize("options", [{}, {"compress": "JPEG"}])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_copy_that_lost_its_end_is_not_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Any, options: dict[str, str], kept: float
) -> None:
    values = np.random.default_rng(0).integers(0, 255, (1100, 1100), np.uint8)
    ds = xr.Dataset({"a": (("y", "x"), values)}, {"y": np.arange(1100.0)[::-1], "x": np.arange(1100.0)})
    write_raster(ds, tmp_path / "whole.tif", driver=driver, creation_options=options)
    copy = rasterio.shutil.copy

    def truncated(source: Path, target: Path, **options: Any) -> None:
        copy(source, target, **options)
        os.truncate(target, int(kept * target.stat().st_size))

    monkeypatch.setattr(rasterio.shutil, "copy", truncated)
    with pytest.raises(OutputError, match=r"not written completely.*check the space on the disk"):
        write_raster(ds, tmp_path / "x.tif", driver=driver, creation_options=options)
    assert [path.name for path in tmp_path.iterdir()] == ["whole.tif"]


@pytest.mark.parametrize(
    "options",
    [
        {"driver": "COG", "TARGET_SRS": "EPSG:3857"},
        {"driver": "GTiff", "NBITS": "4"},
        {"driver": "GTiff", "SPARSE_OK": "YES"},
    ],
)
def test_options_that_change_cells_or_leave_blocks_out_are_no_faults(tmp_path: Path, options: dict[str, str]) -> None:
    values = np.zeros((600, 600), np.uint8)
    values[:9] = 200
    ds = xr.Dataset({"a": (("y", "x"), values)}, {"y": np.linspace(50, 40, 600), "x": np.linspace(0, 10, 600)})
    driver: Any = options.pop("driver")
    write_raster(ds.rio.write_crs("EPSG:4326"), tmp_path / "x.tif", driver=driver, creation_options=options)
    with rasterio.open(tmp_path / "x.tif") as file:
        assert file.read().any()


@pytest.mark.parametrize("name", FORMATS)
def test_overwriting_replaces_the_whole_output(tmp_path: Path, name: str) -> None:
    write_raster(xr.Dataset({"a": (("y", "x"), np.ones((4, 4)))}), tmp_path / name)
    write_raster(xr.Dataset({"b": (("y", "x"), np.zeros((2, 2)))}), tmp_path / name, overwrite=True)
    ds = open_raster(tmp_path / name)
    assert list(ds.data_vars) == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_variables_off_the_grid_are_left_out_of_a_geotiff(tmp_path: Path) -> None:
    bounds = ("y", "bnds"), np.array([[0.0, 1.0], [1.0, 2.0]])
    ds = xr.Dataset({"y_bnds": bounds, "a": (("y", "x"), np.ones((2, 2)))}, {"y": [1.5, 0.5], "x": [0.5, 1.5]})
    with pytest.warns(UserWarning, match=r"Left out of the GeoTIFF: y_bnds, which is not on \(y, x\)"):
        write_raster(ds, tmp_path / "x.tif")
    assert stored_bands(tmp_path / "x.tif")[0].tolist() == [[[1, 1], [1, 1]]]
    with pytest.raises(InputError, match="A GeoTIFF cannot hold variable 'y_bnds'"):
        write_raster(ds[["y_bnds"]].assign_coords(x=ds.x), tmp_path / "y.tif")


@pytest.mark.parametrize("y", [[1.0, 0.0], [2.0, 1.0], [1.5, 0.5]])
def test_coordinates_at_the_edges_of_cells_are_warned_of(
    tmp_path: Path, y: list[float], recwarn: pytest.WarningsRecorder
) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.ones((2, 2))), "y_bnds": (("y", "bnds"), np.array([[2.0, 1.0], [1.0, 0.0]]))})
    ds = ds.assign_coords(x=[0.5, 1.5], y=("y", y, {"bounds": "y_bnds"}))
    write_raster(ds, tmp_path / "x.tif")
    said = [
        str(one.message)
        for one in recwarn
        if "'y' is at the edges of its cells according to 'y_bnds'" in str(one.message)
    ]
    assert len(said) == (y != [1.5, 0.5])


def test_attributes_that_netcdf_cannot_hold_become_text(tmp_path: Path) -> None:
    attrs = {
        "none": None,
        "stac": {"zone": [33, None]},
        "yes": True,
        "big": 2**70,
        "nested": [[1], [2]],
        "mixed": [1, "a"],
    }
    reserved = {"_NCProperties": "version=2", "CLASS": "DIMENSION_SCALE", "DIMENSION_LIST": "a"}
    kept = {"text": "ä", "numbers": [1.5, 2.5], "names": ["a", "b"], "one": 3}
    ds = xr.Dataset({"a": (("y", "x"), np.ones((2, 2)), {**attrs, **reserved, **kept})}, attrs={**attrs, "m/s": 1})
    write_raster(ds, tmp_path / "x.nc")
    text = {"none": "null", "stac": '{"zone": [33, null]}', "yes": "true", "big": str(2**70)}
    text |= {"nested": "[[1], [2]]", "mixed": '[1, "a"]'}
    with xr.open_dataset(tmp_path / "x.nc", engine="netcdf4") as stored:
        assert {key: np.asarray(v).tolist() for key, v in stored["a"].attrs.items()} == {**text, **kept}
        assert stored.attrs == {**text, "m_s": 1}
    assert ds["a"].attrs["none"] is None


@pytest.mark.parametrize("name", ["x.nc", "x.zarr", "filled.zarr"])
def test_attributes_that_json_cannot_hold_become_what_it_holds(tmp_path: Path, name: str) -> None:
    """As of STAC items and of pandas: JSON, in which Zarr keeps attributes, has neither times nor numbers of NumPy."""
    cases: list[tuple[str, Any, Any]] = [
        ("day", np.datetime64("2020-01-02"), "2020-01-02"),
        ("moment", np.datetime64("2020-01-02T03", "ns"), "2020-01-02T03:00:00.000000000"),
        ("stamp", pd.Timestamp("2020-01-02"), "2020-01-02T00:00:00"),
        ("days", np.array(["2020-01-02"], "M8[D]"), ["2020-01-02"]),
        ("lag", np.timedelta64(1, "D"), "1 days"),
        ("bytes", b"\xc3\xa4", "ä"),
        ("complex", 1j, "1j"),
        ("half", np.float16(1.5), 1.5),
        ("half_a_pair", "a\ud800", "a?"),
        ("place", Path("/a"), "/a"),
        ("mapping", {"a": np.float32(1.5), 2: [np.int64(3)]}, {"a": 1.5, "2": [3]}),
    ]
    attrs = {key: value for key, value, _ in cases}
    gappy = np.where(np.eye(6), np.nan, 1.0)
    ds = xr.Dataset({"a": (("y", "x"), gappy, attrs)}, {"y": ("y", np.arange(6.0), attrs)}, attrs)
    if name == "filled.zarr":
        geonp.fill_store(ds.chunk(), tmp_path / name)
    else:
        write_raster(ds, tmp_path / name)
    with xr.open_dataset(tmp_path / name, engine="netcdf4" if name == "x.nc" else "zarr") as found:
        for key, _, expected in cases:
            text = json.dumps(expected) if name == "x.nc" and isinstance(expected, dict) else expected
            for one in (found, found["a"], found["y"]):
                given = one.attrs[key]
                # NetCDF has no lists of one text
                assert (given if isinstance(given, dict) or not isinstance(text, list) else [*np.ravel(given)]) == text
    assert ds.attrs["day"] == np.datetime64("2020-01-02")


@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_coordinates_that_files_cannot_hold_become_text(tmp_path: Path, name: str) -> None:
    coords = {
        "item": ("y", np.array([{"id": {1}}, None], object)),
        "title": ("y", np.array(["blue", np.nan], object)),
        "mixed": ("y", np.array(["a", 2], object)),
        "day": ("y", np.array([cftime.DatetimeNoLeap(2000, 1, day) for day in (1, 2)])),
    }
    ds = xr.Dataset({"a": (("y", "x"), np.ones((2, 2)))}, coords)
    write_raster(ds, tmp_path / name)
    found = xr.open_dataset(tmp_path / name, engine="netcdf4" if name == "x.nc" else "zarr")
    assert [found[key].values.tolist() for key in ("item", "title", "mixed")] == [
        ['{"id": [1]}', ""],
        ["blue", ""],
        ["a", "2"],
    ]
    assert found["day"].values.tolist() == ds["day"].values.tolist()


@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pd.period_range("2000-01", periods=2, freq="M"), ["2000-01-01", "2000-02-01"]),
        (pd.date_range("2000-01-01", periods=2, tz="Etc/GMT-1"), ["1999-12-31T23:00", "2000-01-01T23:00"]),
        (pd.IntervalIndex.from_breaks([0, 1, 2]), ["(0, 1]", "(1, 2]"]),
        (pd.CategoricalIndex(["a", "b"]), ["a", "b"]),
    ],
)
def test_indices_of_pandas_become_what_files_hold(tmp_path: Path, name: str, labels: Any, expected: list[str]) -> None:
    write_raster(xr.DataArray(np.ones((2, 2, 2)), {"k": labels}, ("k", "y", "x"), "a"), tmp_path / name)
    with xr.open_dataset(tmp_path / name, engine="netcdf4" if name == "x.nc" else "zarr") as found:
        times = found["k"].dtype.kind == "M"
        assert list(np.datetime_as_string(found["k"], "m") if times else found["k"].values) == (
            [f"{text}T00:00" if len(text) == 10 else text for text in expected] if times else expected
        )


@pytest.mark.parametrize("name", ["x.nc", "x.zarr", "x.tif"])
def test_coordinates_of_pandas_and_python_become_what_files_hold(tmp_path: Path, name: str) -> None:
    coords = {
        "kind": ("x", pd.Categorical(["a", None])),
        "count": ("x", pd.array([1, None], "Int64")),
        "day": datetime.date(2020, 1, 1),
        "time": ("x", np.array([pd.Timestamp("2020-01-01T01:00", tz="Etc/GMT-1")] * 2, object)),
    }
    write_raster(xr.DataArray(np.ones((2, 2)), coords, ("y", "x"), "a"), tmp_path / name)
    if name == "x.tif":  # which holds no such coordinates
        return
    with xr.open_dataset(tmp_path / name, engine="netcdf4" if name == "x.nc" else "zarr") as found:
        assert found["kind"].values.tolist() == ["a", ""]
        np.testing.assert_array_equal(found["count"], [1, np.nan])
        assert found["day"].item() == found["time"].values[1].item()
        assert str(found["time"].values[0])[:16] == "2020-01-01T00:00"


@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_coordinates_that_no_file_holds_are_named(tmp_path: Path, name: str) -> None:
    """As the projection that MetPy adds."""
    da = xr.DataArray(np.ones((2, 2)), {"metpy_crs": ((), np.array(Path(), object))}, ("y", "x"), "a")
    with pytest.raises(OutputError, match=r"'metpy_crs' holds objects of Python.*ds.drop_vars\('metpy_crs'\)"):
        write_raster(da, tmp_path / name)
    assert not (tmp_path / name).exists()
    write_raster(da, tmp_path / "x.tif")


def test_levels_of_an_index_become_coordinates(tmp_path: Path) -> None:
    da = xr.DataArray(np.ones((2, 2, 2)), {"year": ("k", [1, 2]), "month": ("k", [3, 4])}, ("k", "y", "x"), "a")
    write_raster(da.set_index(k=["year", "month"]), tmp_path / "x.nc")
    with xr.open_dataset(tmp_path / "x.nc", engine="netcdf4") as found:
        assert found["month"].dims == ("k",)


def test_text_and_grid_mappings_in_zarr_can_be_read_by_others(tmp_path: Path) -> None:
    mapping = {"grid_mapping_name": "latitude_longitude"}
    ds = xr.Dataset(
        {
            "a": (("y", "x"), np.ones((2, 2)), {"grid_mapping": "crs"}),
            "crs": ((), b"", mapping),
            "names": ("y", np.array(["ä".encode(), b"b"])),
        },
        {"y": [1.5, 0.5], "x": [0.5, 1.5]},
    )
    write_raster(ds, tmp_path / "x.zarr")  # a warning of Zarr would be an error here
    stored = xr.open_zarr(tmp_path / "x.zarr", chunks=None)
    assert stored["names"].values.tolist() == ["ä", "b"]
    assert (stored["crs"].dtype, stored["crs"].item()) == (np.int32, 0)
    assert stored["crs"].attrs["grid_mapping_name"] == "latitude_longitude"


def in_a_rotated_crs(value: float) -> xr.Dataset:
    """A raster whose CRS GDAL keeps in a sidecar of a GeoTIFF."""
    pole = {"grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 40.0}
    rotated = {"rlat": [2.0, 1.0], "rlon": [1.0, 2.0], "pole": ((), 0, {**pole, "grid_north_pole_longitude": -170.0})}
    a = xr.DataArray(np.full((2, 2), value), dims=("rlat", "rlon"), attrs={"grid_mapping": "pole"})
    return xr.Dataset({"a": a}, rotated)


def test_sidecars_of_a_geotiff_are_replaced_with_it(tmp_path: Path) -> None:
    path, sidecar = tmp_path / "x.tif", tmp_path / "x.tif.aux.xml"
    write_raster(in_a_rotated_crs(1), path)
    with rasterio.open(path) as file:
        assert pyproj.CRS.from_wkt(file.crs.to_wkt()).is_derived
    assert sidecar.exists()
    (tmp_path / "x.tif.ovr").write_text("overviews of the earlier file")
    write_raster(
        xr.Dataset({"a": (("y", "x"), np.ones((2, 2)))}, {"y": [2.0, 1.0], "x": [1.0, 2.0]}), path, overwrite=True
    )
    assert [file.name for file in tmp_path.iterdir()] == ["x.tif"]
    with rasterio.open(path) as file:
        assert file.crs is None


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_geotiff_is_never_beside_the_sidecar_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    path, sidecar, moved = tmp_path / "x.tif", tmp_path / "x.tif.aux.xml", []
    write_raster(in_a_rotated_crs(1), path)
    earlier = sidecar.read_text()

    def stop(source: Path, target: Path) -> None:
        if len(moved) == moves:
            raise KeyboardInterrupt
        moved.append(os.rename(source, target))

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_raster(in_a_rotated_crs(2).assign_attrs(title="other"), path, overwrite=True)
    assert path.exists() == (moves == 0)
    assert moves or sidecar.read_text() == earlier


@pytest.mark.parametrize(("lat", "epsg"), [((50.0, 49.0), 4326), ((90.0, -90.0), 4326), ((5e6, 4e6), None)])
def test_longitudes_and_latitudes_without_a_crs_keep_their_meaning(
    tmp_path: Path, lat: tuple[float, float], epsg: int | None
) -> None:
    write_raster(
        xr.Dataset({"a": (("lat", "lon"), np.ones((2, 2)))}, {"lat": [*lat], "lon": [5.0, 6.0]}), tmp_path / "x.tif"
    )
    with rasterio.open(tmp_path / "x.tif") as file:
        assert (file.crs and file.crs.to_epsg()) == epsg
        assert file.bounds[::2] == (4.5, 6.5)


def test_what_a_geotiff_cannot_hold_is_refused(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.ones((2, 2))), "text": (("y", "x"), np.full((2, 2), "a"))})
    with pytest.raises(InputError, match=r"A GeoTIFF cannot hold variable 'text': got <U1 on \('y', 'x'\)"):
        write_raster(ds[["text"]], tmp_path / "x.tif")
    with pytest.raises(OutputError, match=r"GDAL cannot write 'x\.tif' as COG: .*Check creation_options"):
        write_raster(ds[["a"]], tmp_path / "x.tif", creation_options={"COMPRESS": "JPEG"})
    with pytest.raises(
        InputError, match=r"Unknown creation option: got FOO, expected .* COG driver: .*BLOCKSIZE, .*--co"
    ):
        write_raster(ds[["a"]], tmp_path / "x.tif", creation_options={"FOO": "BAR", "level": "9"})
    with pytest.raises(
        InputError, match=r"Unknown compression: got packbits, expected one of DEFLATE, .*COMPRESS .--co"
    ):
        write_raster(ds[["a"]], tmp_path / "x.tif", creation_options={"compress": "packbits"})
    with pytest.raises(InputError, match=r"Unknown creation option: got LEVEL, expected .* GTiff driver: .*ZLEVEL"):
        write_raster(ds[["a"]], tmp_path / "x.tif", driver="GTiff", creation_options={"LEVEL": "9"})
    with pytest.raises(InputError, match=r"Unknown creation option: got COMPRESS, expected for Zarr: ZARR_FORMAT"):
        write_raster(ds, tmp_path / "x.zarr", creation_options={"COMPRESS": "LZW"})
    assert list(tmp_path.iterdir()) == []


def test_slices_are_bands_with_their_labels(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("time", "y", "x"), np.arange(8.0).reshape(2, 2, 2))}, coords={"time": [10, 20]})
    ds = ds.assign_coords(y=[1.0, 0.0], x=[0.0, 1.0])
    write_raster(ds.transpose("x", "time", "y"), tmp_path / "x.tif", driver="GTiff")
    with rasterio.open(tmp_path / "x.tif") as file:
        assert file.descriptions == ("a time=10", "a time=20")
        np.testing.assert_array_equal(file.read(), ds["a"])


def test_times_of_bands_are_written_as_dates(tmp_path: Path) -> None:
    times = np.array(["2020-01-01", "2020-01-02T06:30"], "datetime64[ns]")
    ds = xr.Dataset({"sst": (("time", "y", "x"), np.ones((2, 2, 2)))}, coords={"time": times})
    ds = ds.assign_coords(y=[1.0, 0.0], x=[0.0, 1.0])
    write_raster(ds, tmp_path / "x.tif")
    with rasterio.open(tmp_path / "x.tif") as file:
        assert file.descriptions == ("sst time=2020-01-01", "sst time=2020-01-02T06:30")


@pytest.mark.parametrize("driver", ["COG", "GTiff"])
def test_geotiff_is_written_from_north_to_south(tmp_path: Path, driver: Any) -> None:
    ds = xr.Dataset({"a": (("lat", "lon"), np.arange(6.0).reshape(3, 2))})
    ds = ds.assign_coords(lat=[10.0, 20.0, 30.0], lon=[5.0, 15.0]).chunk(lat=2)
    write_raster(ds, tmp_path / "x.tif", driver=driver)
    with rasterio.open(tmp_path / "x.tif") as file:
        assert file.transform == rasterio.Affine(10, 0, 0, 0, -10, 35)
        np.testing.assert_array_equal(file.read(1), ds["a"].values[::-1])
    again = open_raster(tmp_path / "x.tif")["a"]
    np.testing.assert_array_equal(again.sel(y=ds["lat"].values), ds["a"])


@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
@pytest.mark.parametrize(
    ("crs", "expected"),
    [
        ("EPSG:32633", ("projection_y_coordinate", "metre", "projection_x_coordinate", "metre")),
        ("EPSG:4326", ("latitude", "degrees_north", "longitude", "degrees_east")),
        (None, (None, None, None, None)),
    ],
)
def test_coordinates_are_described_by_the_crs(
    tmp_path: Path, name: str, crs: str | None, expected: tuple[str | None, ...]
) -> None:
    path = write_tif(tmp_path / "in.tif", np.ones((2, 3), "float32"), crs=crs, transform=from_origin(10, 50, 1, 1))
    ds = open_raster(path)
    write_raster(ds, tmp_path / name)
    assert (ds.y.attrs, ds.x.attrs) == ({}, {})
    again = open_raster(tmp_path / name)
    described = [again[dim].attrs.get(key) for dim in "yx" for key in ("standard_name", "units")]
    assert tuple(described) == expected
    assert [again[dim].attrs.get("axis") for dim in "yx"] == (["Y", "X"] if crs else [None, None])
    again.y.attrs = {"long_name": "own"}
    write_raster(again, tmp_path / f"own-{name}")
    assert open_raster(tmp_path / f"own-{name}").y.attrs == {"long_name": "own"}


@pytest.mark.skipif(not SHARED.exists(), reason="needs the sample rasters beside the checkout")
@pytest.mark.parametrize(
    "path",
    [*sorted(SHARED.glob("*.tif")), *(path for path in sorted(SHARED.glob("*.nc")) if "stations" not in path.stem)],
    ids=lambda path: path.stem,
)
def test_sample_rasters_survive_zarr(tmp_path: Path, path: Path) -> None:
    ds = open_raster(path)
    sample = ds.isel({dim: slice(0, 3) for dim in ("time", "band") if dim in ds.dims})
    write_raster(sample, tmp_path / "x.zarr")
    again = open_raster(tmp_path / "x.zarr")
    written = again.load().drop_vars([] if "spatial_ref" in sample.variables else "spatial_ref", errors="ignore")
    xr.testing.assert_equal(written, sample.load())
    assert Grid.from_xarray(again) == Grid.from_xarray(sample)


def test_small_files_are_cut_for_the_cores(tmp_path: Path) -> None:
    values = np.arange(700 * 900, dtype=np.float32).reshape(700, 900)
    write_raster(xr.Dataset({"z": (("y", "x"), values)}), tmp_path / "z.nc")
    opened = open_raster(tmp_path / "z.nc")
    assert opened.z.data.npartitions > 1
    np.testing.assert_array_equal(opened.z, values)
    assert open_raster(tmp_path / "z.nc", chunks=2048).z.data.npartitions == 1


def test_tags_units_and_rpcs_of_bands_are_kept_in_a_geotiff_and_missed_elsewhere(tmp_path: Path) -> None:
    place = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_200_000, 30, 30)}
    size = {"height": 4, "width": 5, "count": 2, "dtype": "float32"}
    keys = ("HEIGHT_OFF", "HEIGHT_SCALE", "LAT_OFF", "LAT_SCALE", "LINE_OFF", "LINE_SCALE", "LONG_OFF", "LONG_SCALE")
    rpc = dict.fromkeys((*keys, "SAMP_OFF", "SAMP_SCALE"), "2")
    rpc |= {f"{axis}_{part}_COEFF": " ".join(["1"] * 20) for axis in ("LINE", "SAMP") for part in ("NUM", "DEN")}
    with rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", **size, **place) as file:
        file.write(np.arange(40, dtype="f4").reshape(2, 4, 5))
        file.units = ("m", "K")
        file.update_tags(1, WAVELENGTH="0.6", SENSOR="x")
        file.update_tags(2, SENSOR="x")
        file.update_tags(ns="RPC", **rpc)
    ds = open_raster(tmp_path / "a.tif")
    assert ds["a"].attrs == {"SENSOR": "x", "long_name": "a"}
    write_raster(ds.assign(error=ds["a"] * 0), tmp_path / "b.tif")
    with rasterio.open(tmp_path / "b.tif") as file:
        assert file.units == ("m", "K", None, None)
        assert [file.tags(n) for n in (1, 2, 3)] == [{"WAVELENGTH": "0.6", "SENSOR": "x"}, {"SENSOR": "x"}, {}]
        assert file.tags(ns="RPC").items() >= rpc.items()
    write_raster(ds.isel(x=slice(1, 4)), tmp_path / "c.tif")
    with rasterio.open(tmp_path / "c.tif") as file:
        assert file.tags(ns="RPC") == {}  # of other columns
    write_raster(ds.isel(y=slice(None, None, -1)), tmp_path / "d.tif")
    with rasterio.open(tmp_path / "d.tif") as file:
        assert file.tags(ns="RPC").items() >= rpc.items()  # of rows in the order of the file again
        np.testing.assert_array_equal(file.read(), ds["a"])
    for name in ("b.nc", "b.zarr"):
        with pytest.warns(UserWarning, match=r"Left out of the output, .* keeps it: RPC, WAVELENGTH, unit\."):
            write_raster(ds, tmp_path / name)


def test_bands_with_alpha_are_written_as_they_were(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, (4, 6, 7), dtype="u1")
    values[3] = 255
    values[:, 2, 3:5] = 0
    size = {"height": 6, "width": 7, "count": 4, "dtype": "uint8", "photometric": "RGB", "alpha": "YES"}
    place = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_200_000, 30, 30)}
    with rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", **size, **place) as file:
        file.write(values)
    ds = open_raster(tmp_path / "a.tif")
    write_raster(ds, tmp_path / "b.tif")
    with rasterio.open(tmp_path / "b.tif") as file:
        assert [colour.name for colour in file.colorinterp] == ["red", "green", "blue", "alpha"]
        np.testing.assert_array_equal(file.read(), values)
    write_raster(ds, tmp_path / "b.nc")
    with xr.open_dataset(tmp_path / "b.nc", engine="netcdf4") as found:
        assert found["a"].isnull().sum() == 6


def test_columns_of_a_geotiff_go_from_west_to_east(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(3, 4)
    write_raster(xr.Dataset({"a": (("y", "x"), values)}, {"y": [0, 1, 2], "x": [9, 8, 7, 6]}), tmp_path / "a.tif")
    with rasterio.open(tmp_path / "a.tif") as file:
        assert file.bounds == (5.5, -0.5, 9.5, 2.5)
        np.testing.assert_array_equal(file.read(1), values[::-1, ::-1])


@pytest.mark.parametrize("name", ["a.nc", "a.zarr"])
def test_a_crs_in_an_attribute_becomes_a_grid_mapping(tmp_path: Path, name: str) -> None:
    coords = {"y": [5_200_015.0, 5_199_985.0], "x": [500_015.0, 500_045.0]}
    write_raster(xr.Dataset({"a": (("y", "x"), np.ones((2, 2)), {"crs": "EPSG:32633"})}, coords), tmp_path / name)
    found = xr.open_dataset(tmp_path / name, engine="netcdf4" if name == "a.nc" else "zarr", decode_coords="all")
    assert found["a"].rio.crs == "EPSG:32633"


def test_integers_in_zarr_3_have_their_nodata_as_fill_value(tmp_path: Path) -> None:
    integers = np.array([[0, 1], [2, 3]], "i2")
    ds = xr.Dataset({"a": (("y", "x"), integers, {"_FillValue": np.int16(-9)}), "b": (("y", "x"), integers)})
    write_raster(ds, tmp_path / "a.zarr")
    group = zarr.open_group(tmp_path / "a.zarr", mode="r")
    assert (group["a"].fill_value, group["b"].fill_value) == (-9, -32767)
    np.testing.assert_array_equal(group["b"][:], integers)


def test_a_store_that_contains_the_input_is_not_replaced(tmp_path: Path) -> None:
    write_raster(xr.Dataset({"a": (("y", "x"), np.ones((2, 2)))}), tmp_path / "a.zarr")
    inner = tmp_path / "a.zarr" / "inner.nc"
    write_raster(xr.Dataset({"a": (("y", "x"), np.ones((2, 2)))}), inner)
    with pytest.raises(InputError, match="The input and the output contain one another"):
        write_raster(open_raster(inner), tmp_path / "a.zarr", overwrite=True)
    assert inner.exists()


@pytest.mark.parametrize("name", ["out.tif", "out.nc", "out.zarr"])
def test_drafts_of_killed_processes_are_removed_and_those_of_others_stay(tmp_path: Path, name: str) -> None:
    mine, dead = owner.note(), {**owner.note(), "started": 0.0}
    drafts = {
        ".a": dead,
        ".b": {**dead, "host": "elsewhere"},
        ".c": mine,
        ".d": {**dead, "pid": "x"},
        ".e": [dead],
        ".f": None,
    }
    for end, note in drafts.items():
        (tmp_path / f".{name}{end}").mkdir()
        (tmp_path / f".{name}{end}" / f"draft-{name}").write_text("half")
        if note is not None:
            (tmp_path / f".{name}{end}" / "owner.json").write_text(json.dumps(note))
    with owner.owning(mine["token"]):
        write_raster(filled_dataset("float32", np.nan), tmp_path / name)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [*(f".{name}{end}" for end in (".b", ".c", ".e", ".f")), name]


def test_two_jobs_do_not_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ds = tmp_path / "out.tif", filled_dataset("float32", np.nan)
    (tmp_path / ".out.tif.a").mkdir()
    parent = {"host": owner.note()["host"], "pid": os.getppid(), "started": psutil.Process(os.getppid()).create_time()}
    (tmp_path / ".out.tif.a" / "owner.json").write_text(json.dumps({"token": "x", **parent}))
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=rf"Another job writes '.*out.tif': process {os.getppid()} on "):
            write_raster(ds, path, overwrite=overwrite)
    (tmp_path / ".out.tif.a" / "owner.json").unlink()
    monkeypatch.setattr("geonp.io.output.sync", lambda _: path.write_text("of another job"))
    with pytest.raises(OutputError, match="has appeared while the output was computed, and is not replaced"):
        write_raster(ds, path)
    assert path.read_text() == "of another job"
    assert not list(tmp_path.glob(".out.tif.*/draft*"))
    with pytest.raises(OutputError, match="has appeared while the output was computed, and is not replaced"):
        write_table(pd.DataFrame({"a": [1]}), path.replace(tmp_path / "out.csv"))
    assert [file.name for file in tmp_path.glob("out*")] == ["out.csv"]
    assert (tmp_path / "out.csv").read_text() == "of another job"


@pytest.mark.parametrize("name", ["a.nc", "a.tif"])
def test_float16_becomes_float32_in_files_that_have_none(tmp_path: Path, name: str) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.arange(6, dtype="f2").reshape(2, 3))})
    write_raster(ds, tmp_path / name)
    found = open_raster(tmp_path / name)["a"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, ds["a"])


@pytest.mark.parametrize(("nodata", "stored"), [(None, -32768), (np.int16(-5), -5)])
def test_integers_beyond_their_valid_range_are_missing_in_a_geotiff_too(
    tmp_path: Path, nodata: Any, stored: int
) -> None:
    """GDAL knows no valid range: such cells, as those that a fill leaves empty, were values of the GeoTIFF."""
    attrs = {"valid_min": np.int16(0), **({} if nodata is None else {"_FillValue": nodata})}
    ds = xr.Dataset({"a": (("y", "x"), np.int16([[-900, -5, 0], [1, 2, 3]]), attrs)})
    write_raster(ds, tmp_path / "a.tif")
    found = open_raster(tmp_path / "a.tif")["a"]
    assert (found.encoding["dtype"], found.encoding["_FillValue"]) == (np.int16, stored)
    np.testing.assert_array_equal(found, [[np.nan, np.nan, 0], [1, 2, 3]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("nodata", ["none", "attribute", "encoding"])
def test_floats_beyond_their_valid_range_are_missing_in_a_geotiff_too(tmp_path: Path, nodata: str, dtype: str) -> None:
    values = np.array([[-900, np.nan, 0], [1, 2, 3]], dtype)
    ds = xr.Dataset({"a": (("y", "x"), values, {"valid_range": [0.0, 2.0]})}, {"y": [1, 0], "x": [0, 1, 2]})
    if nodata == "attribute":
        ds["a"].attrs["_FillValue"] = values.dtype.type(-5)
    elif nodata == "encoding":
        ds["a"].encoding["_FillValue"] = values.dtype.type(-5)
    write_raster(ds.chunk() if dtype == "float32" else ds, tmp_path / "a.tif")
    found = open_raster(tmp_path / "a.tif")["a"]
    np.testing.assert_array_equal(found, [[np.nan, np.nan, 0], [1, 2, np.nan]])
    with rasterio.open(tmp_path / "a.tif") as file:
        np.testing.assert_array_equal(file.nodata, np.nan if nodata == "none" else -5)
    np.testing.assert_array_equal(ds["a"], values)


@pytest.mark.parametrize("name", ["a.nc", "a.tif", "a.zarr"])
def test_a_valid_range_that_does_not_fit_the_values_is_named(tmp_path: Path, name: str) -> None:
    """After a conversion of units, readers take all values for missing."""
    places, attrs = {"y": np.arange(6.0)[::-1], "x": np.arange(10.0)}, {"valid_min": 200.0, "ValidMax": 350.0}
    kelvin = xr.DataArray(np.linspace(270, 300, 60).reshape(6, 10), places, ("y", "x"), "t", attrs)
    write_raster(kelvin, tmp_path / name)
    with pytest.warns(UserWarning, match=r"t: 100% of the values .* range 200 to 350 .* remove valid_min, ValidMax"):
        write_raster((kelvin - 273.15).assign_attrs(attrs), tmp_path / name, overwrite=True)


@pytest.mark.parametrize("name", ["a.nc", "a.tif", "a.zarr"])
@pytest.mark.parametrize("dtype", [">i2", ">f4", ">f8"])
def test_the_order_of_bytes_of_other_machines_is_written_as_that_of_this_one(
    tmp_path: Path, name: str, dtype: str
) -> None:
    """GDAL refused arrays as they come from FITS files, with the advice to look at the space on the disk."""
    values = np.arange(6, dtype=dtype).reshape(2, 3)
    ds = xr.Dataset({"a": (("y", "x"), values, {"_FillValue": values.dtype.type(5)})})
    write_raster(ds, tmp_path / name)
    found = open_raster(tmp_path / name)["a"]
    assert found.encoding["dtype"] == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(found, ds["a"].where(ds["a"] != 5))


def test_a_crs_that_is_given_replaces_one_that_cannot_be_read(tmp_path: Path) -> None:
    place = {"y": np.arange(5_200_000.0, 5_199_400, -100), "x": np.arange(500_000.0, 500_700, 100)}
    ds = xr.Dataset({"z": (("y", "x"), np.arange(42.0).reshape(6, 7), {"grid_mapping": "crs"})}, place)
    ds.coords["crs"] = xr.Variable((), 0, {"grid_mapping_name": "of_our_own", "spatial_ref": "PROJCS[nonsense"})
    ds.to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    opened = open_raster(tmp_path / "in.nc")
    with pytest.raises(InputError, match=r"cannot be read: .* Give another one: --crs EPSG:\.\.\., rio\.write_crs"):
        Grid.from_xarray(opened)
    expected = pyproj.CRS("EPSG:32633")
    assert pyproj.CRS(Grid.from_xarray(opened.rio.write_crs(32633)).crs) == expected
    known = open_raster(tmp_path / "in.nc", crs="EPSG:32633")
    assert pyproj.CRS(Grid.from_xarray(known).crs) == expected
    write_raster(known, tmp_path / "out.nc", like=known)
    assert pyproj.CRS(Grid.from_xarray(open_raster(tmp_path / "out.nc")).crs) == expected
    with pytest.raises(InputError, match=r"Unknown CRS: got 'EPSG:0', .* Correct crs \(--crs\)"):
        open_raster(tmp_path / "in.nc", crs="EPSG:0")
    for command in ("info", "evaluate"):
        arguments = ("--baseline", "nearest", "--size", "8") if command == "evaluate" else ()
        assert "--crs EPSG:..." in says(command, tmp_path / "in.nc", *arguments, code=1)
    assert "WGS 84 / UTM zone 33N (EPSG:32633)" in says("info", tmp_path / "in.nc", "--crs", "EPSG:32633")


def test_a_crs_that_is_given_keeps_the_place_of_a_geotiff(tmp_path: Path) -> None:
    transform = rasterio.Affine(25, 10, 500_000, 10, -25, 5_200_000)  # rotated: without coordinates
    size = {"height": 4, "width": 5, "count": 1, "dtype": "float32"}
    with rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", crs="EPSG:3035", transform=transform, **size) as file:
        file.write(np.arange(20, dtype="f4").reshape(1, 4, 5))
    write_raster(open_raster(tmp_path / "a.tif", crs="EPSG:32633"), tmp_path / "b.tif")
    with rasterio.open(tmp_path / "b.tif") as file:
        assert (file.crs.to_epsg(), file.transform) == (32633, transform)
