from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import rasterio
import rasterio.shutil
import xarray as xr
from rasterio.transform import from_origin

from geonp.errors import InputError, MissingFileError
from geonp.fill.options import FillOptions
from geonp.fill.request import prepare
from geonp.io.files import open_raster
from geonp.io.location import identity
from geonp.io.output import write_raster
from geonp.raster.grid import Grid
from geonp.raster.positions import DAY, positions
from geonp.raster.variable import number_variables

from ..commands import says

VALUES = np.where(np.arange(30).reshape(5, 6) % 7 == 0, -99, np.arange(30).reshape(5, 6)).astype("i2")
DECODED = np.where(VALUES == -99, np.nan, VALUES)


def write_tif(path: Path, values: np.ndarray = VALUES, **options: object) -> Path:
    profile = {"height": 5, "width": 6, "count": 1, "dtype": values.dtype, "nodata": -99, "crs": "EPSG:32633"}
    with rasterio.open(path, "w", driver="GTiff", transform=from_origin(0, 50, 10, 10), **profile, **options) as file:
        file.write(values, 1)
    return path


def write_groups(path: Path, *, dimensions: bool = True) -> Path:
    """Two groups with values, and one with latitudes and longitudes without attributes."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("line", 5)
        file.createDimension("pixel", 6)
        for path_, dtype, values in (
            ("science/a", "i2", VALUES),
            ("science/b", "i2", VALUES),
            ("quality/b", "i2", VALUES),
            ("place/latitude", "f4", np.tile(np.linspace(51, 50, 5)[:, None], 6)),
            ("place/longitude", "f4", np.tile(np.linspace(5, 6, 6), (5, 1))),
        ):
            variable = file.createVariable(path_, dtype, ("line", "pixel"), fill_value=np.array(-99, dtype))
            variable[:] = values
    return path


def only(ds: xr.Dataset) -> xr.DataArray:
    (da,) = ds.data_vars.values()
    return da


def test_netcdf_is_known_by_its_content(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("lat", "lon"), DECODED)}, {"lat": np.arange(5.0), "lon": np.arange(6.0)})
    for suffix, version in ((".h5", "NETCDF4"), ("+.nc", "NETCDF4"), (".grd", "NETCDF3_64BIT"), ("", "NETCDF4")):
        path = tmp_path / f"x{suffix}"
        ds.to_netcdf(tmp_path / "x.nc", engine="netcdf4", format=version)
        shutil.move(tmp_path / "x.nc", path)
        found = open_raster(path)
        assert (list(found), found["a"].dims, found["lat"].values.tolist()) == (["a"], ("lat", "lon"), [0, 1, 2, 3, 4])
        np.testing.assert_array_equal(found["a"], DECODED)


def test_the_only_group_with_a_raster_is_opened(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("lat", 5)
        file.createVariable("lat", "f8", ("lat",))[:] = [5, 4, 3, 2, 1]
        inner = file.createGroup("outer").createGroup("inner")
        inner.createDimension("lon", 6)
        inner.createVariable("a", "i2", ("lat", "lon"), fill_value=np.int16(-99))[:] = VALUES
    found = open_raster(tmp_path / "x.nc")
    np.testing.assert_array_equal(found["a"], DECODED)
    assert found["lat"].values.tolist() == [5, 4, 3, 2, 1]  # of the root


@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
@pytest.mark.parametrize(
    "where", [{"variables": ["science/a"]}, {"variables": ["a"]}, {"group": "/science", "variables": ["a"]}]
)
def test_a_variable_in_a_group_has_the_coordinates_beside_it(
    tmp_path: Path, name: str, where: dict[str, object]
) -> None:
    path = write_groups(tmp_path / "x.nc")
    if name == "x.zarr":
        with xr.open_datatree(path, engine="netcdf4", decode_cf=False) as tree:
            tree.to_zarr(tmp_path / name, zarr_format=2)
    found = open_raster(tmp_path / name, **where)
    assert list(found) == ["a"]
    np.testing.assert_array_equal(found["a"], DECODED)
    assert found["a"].encoding["_FillValue"] == -99
    assert {"latitude", "longitude"} <= set(found["a"].coords)
    assert found["latitude"].values[:, 0].tolist() == [51, 50.75, 50.5, 50.25, 50]
    assert Grid.from_xarray(found).regular is False


def test_groups_of_places_are_no_rasters(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("line", 5)
        file.createDimension("pixel", 6)
        for name in ("science/a", "place/latitude", "place/longitude"):
            file.createVariable(name, "f4", ("line", "pixel"))[:] = VALUES
    found = open_raster(tmp_path / "x.nc")
    assert (list(found), set(found.coords)) == (["a"], {"latitude", "longitude"})


def test_groups_that_could_be_meant_are_listed(tmp_path: Path) -> None:
    path = write_groups(tmp_path / "x.nc")
    with pytest.raises(InputError, match=r"several groups: got .*'science' \(a, b\); .*expected one\. .*--group"):
        open_raster(path)
    with pytest.raises(InputError, match=r"several groups: got 'science' \(a, b\); 'quality' \(b\), expected one"):
        open_raster(path, variables=["b"])
    with pytest.raises(InputError, match=r"No group 'none' in .*: got 'science' \(a, b\);"):
        open_raster(path, group="none")
    with pytest.raises(InputError, match=r"in several groups: got 'quality', 'science', expected one"):
        open_raster(path, variables=["science/a", "quality/b"])
    with pytest.raises(InputError, match="No variable 'c'"):
        open_raster(path, group="science", variables=["c"])


@pytest.mark.parametrize("name", ["NETCDF:{}:/science/a", "netcdf:{}:science/a", 'NETCDF:"{}":/science/a'])
def test_a_variable_can_be_named_as_gdal_does(tmp_path: Path, name: str) -> None:
    path = write_groups(tmp_path / "x.nc")
    found = open_raster(name.format(path), chunks=None)
    np.testing.assert_array_equal(found["a"], DECODED)
    assert found.encoding["source"] == str(path)
    assert identity(found.encoding["source"]) == identity(str(path))


def test_rasters_of_hdf5_without_dimensions_are_read_by_gdal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_groups(tmp_path / "x.h5")
    opened = xr.open_dataset

    def nameless(*arguments: object, **options: object) -> xr.Dataset:
        ds = opened(*arguments, **options)
        return (
            ds.rename({dim: f"phony_dim_{i}" for i, dim in enumerate(ds.dims)})
            if options["engine"] != "rasterio"
            else ds
        )

    monkeypatch.setattr(xr, "open_dataset", nameless)
    for given in ({"path": path, "variables": ["science/a"]}, {"path": f"HDF5:{path}://science/a"}):
        found = open_raster(**given)
        assert (list(found), found["a"].dims) == (["a"], ("y", "x"))
        np.testing.assert_array_equal(found["a"].values, DECODED)


def test_every_directory_of_a_tiff_can_be_read(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "x.tif")
    write_tif(path, (VALUES + 100).astype("i2"), APPEND_SUBDATASET="YES")
    with pytest.warns(UserWarning, match=r"contains 2 rasters, and the first is read\. Others: GTIFF_DIR:2:"):
        first = open_raster(path)
    np.testing.assert_array_equal(only(first), DECODED)
    second = open_raster(f"GTIFF_DIR:2:{path}", chunks=None)
    assert only(second).values.max() == 129
    assert second.encoding["source"] == str(path)


@pytest.mark.parametrize(
    "name",
    ["a.zip", "zip://{}/a.zip!z.tif", "/vsizip/{}/a.zip/z.tif", "a.tar.gz", "tar://{}/a.tar.gz!z.tif", "z.tif.gz"],
)
def test_rasters_in_archives(tmp_path: Path, name: str) -> None:
    path = write_tif(tmp_path / "z.tif")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, "z.tif")
        archive.writestr("readme.txt", "about")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(path, "z.tif")
    (tmp_path / "z.tif.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    found = open_raster(name.format(tmp_path) if "{" in name else tmp_path / name)
    np.testing.assert_array_equal(only(found), DECODED)
    assert Path(found.encoding["source"]).is_file()
    if "{" in name:
        assert list(found) == ["z"]


def test_archives_of_several_rasters_list_them(tmp_path: Path) -> None:
    for names, message in (
        (["a.tif", "b/c.tif"], r"holds 2 rasters: got zip://.*a\.zip!a\.tif, zip://.*!b/c\.tif, expected one\. Name"),
        (["a.txt"], r"holds 0 rasters: got a\.txt, expected one\. Unpack it first"),
        (["a.nc"], r"NetCDF can only be read from a local file: got .*a\.nc'\. Download or unpack it first"),
    ):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name in names:
                archive.writestr(name, "x")
        with pytest.raises(InputError, match=message):
            open_raster(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["none.tif", "none.h5", "none.zarr", "none.zip", "none"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingFileError, match="No such raster: got"):
        open_raster(tmp_path / name)


@pytest.mark.parametrize("calendar", ["360", "360_day"])  # months of 360_day can be decoded, and not encoded
def test_times_and_other_numbers_that_cannot_be_decoded_stay_as_they_are(tmp_path: Path, calendar: str) -> None:
    times = {"units": "months since 1960-01-01", "calendar": calendar}
    ds = xr.Dataset(
        {
            "a": (("T", "Y", "X"), np.ones((2, 3, 4))),
            "b": ("T", [1.0, 2.0], {"units": "fortnights since noon"}),
            "crs": ((), 7, {"add_offset": "none", "scale_factor": 2.0}),
        },
        {"T": ("T", [0.5, 1.5], times), "day": ("T", [0, 1], {"units": "days since 2000-01-01"})},
    )
    ds.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    found = open_raster(tmp_path / "x.nc")
    write_raster(found, tmp_path / "y.nc")
    assert open_raster(tmp_path / "y.nc")["T"].values.tolist() == [0.5, 1.5]
    assert found["T"].values.tolist() == [0.5, 1.5]
    assert (found["T"].attrs["units"], found["b"].attrs["units"]) == (times["units"], "fortnights since noon")
    assert found["day"].values[1] == np.datetime64("2000-01-02")
    assert (int(found["crs"]), found["crs"].attrs["add_offset"]) == (7, "none")


def test_packed_times_and_times_before_the_reform_are_read_without_warnings(tmp_path: Path) -> None:
    since = {"units": "days since 0001-01-01"}
    ds = xr.Dataset(
        {"a": (("t", "y", "x"), np.ones((2, 3, 4)))},
        {
            "t": ("t", np.array([0, 1], "i2"), {**since, "add_offset": 400_000.0}),
            "day": ("t", np.array([2, 3], "i2"), {**since, "add_offset": 732_403.0}),
        },
    )
    ds.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    found = open_raster(tmp_path / "x.nc")
    assert [(time.year, time.dayofyr) for time in found["t"].values] == [(1096, 53), (1096, 54)]
    assert found["day"].dt.year.values.tolist() == [2006, 2006]


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_year_without_zeros_is_read_and_written_without_a_warning_of_xarray(tmp_path: Path, suffix: str) -> None:
    times = ("time", [0, 1], {"units": "days since 1-1-1", "calendar": "standard"})
    xr.Dataset({"a": (("time", "y", "x"), np.ones((2, 3, 4)))}, {"time": times}).to_netcdf(tmp_path / "a.nc")
    write_raster(open_raster(tmp_path / "a.nc"), tmp_path / f"b{suffix}")
    assert [str(day) for day in open_raster(tmp_path / f"b{suffix}").time.values] == [
        "0001-01-01 00:00:00",
        "0001-01-02 00:00:00",
    ]


def test_bounds_of_coordinates_stay_and_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    ds = xr.Dataset(
        {"a": (("t", "y", "x"), np.ones((2, 3, 4))), "b": 1, "t_bnds": (("t", "n"), [[0, 1], [1, 2]])},
        {"t": ("t", [0, 1], {"units": "days since 2000-01-01", "bounds": "t_bnds"})},
    )
    ds.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    with netCDF4.Dataset(tmp_path / "x.nc", "a") as file:
        pair = file.createCompoundType(np.dtype([("p", "f4"), ("q", "i4")]), "pair")
        file.createVariable("records", pair, ("y",))
        file.createVariable("ragged", file.createVLType(np.float32, "list"), ("y", "x"))
        kinds = file.createEnumType(np.uint8, "kinds", {"sea ice": 1, "land": 4, "none": 255})
        file.createVariable("cover", kinds, ("y", "x"), fill_value=255)[:2] = [[1, 4, 1, 1], [4, 4, 4, 1]]
    assert set(open_raster(tmp_path / "x.nc", variables=["a"]).data_vars) == {"a", "t_bnds"}
    with pytest.warns(UserWarning, match="Left out") as warned:
        found = open_raster(tmp_path / "x.nc")
    assert [str(warning.message) for warning in warned] == [
        "Left out: 'records', whose values are records of several numbers.",
        "Left out: 'ragged', whose values are arrays of variable length.",
    ]
    assert not {"records", "ragged"} & set(found)
    cover = open_raster(tmp_path / "x.nc", variables=["cover"])["cover"].load().geonp.infill()["cover"]
    assert not cover.encoding["dtype"].metadata
    assert cover.attrs["flag_meanings"] == "sea_ice land none"
    assert set(np.unique(cover)) == {1, 4}


def test_latitudes_beside_known_dimensions_are_places_and_no_values(tmp_path: Path) -> None:
    lat, lon = np.meshgrid(np.linspace(60, 40, 4), np.linspace(0, 20, 5), indexing="ij")
    places = {"nav_lat": (("y", "x"), lat, {"bounds": "corners"}), "nav_lon": (("y", "x"), lon)}
    corners = {"corners": (("y", "x", "vertex"), np.full((4, 5, 4), np.nan))}  # unknown on land, and never filled
    corners["cell_area"] = (("y", "x"), np.full((4, 5), np.nan))
    ssh = {"ssh": (("y", "x"), np.ones((4, 5)), {"cell_measures": "area: cell_area"})}
    xr.Dataset({**ssh, **places, **corners}).to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    found = open_raster(tmp_path / "x.nc")
    assert number_variables(found, Grid.from_xarray(found)) == list(ssh)
    assert says("info", tmp_path / "x.nc").count("no, it describes another variable") == 2
    found = found.drop_vars(list(corners))
    assert list(found) == ["ssh"]
    assert {"nav_lat", "nav_lon"} <= set(found.coords)
    assert list(open_raster(tmp_path / "x.nc", variables=["nav_lat"])) == ["nav_lat"]


def test_variables_that_are_not_asked_for_may_be_damaged(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.ones((3, 4))), "bad": ("x", np.arange(4.0), {"scale_factor": "none"})})
    ds.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    assert list(open_raster(tmp_path / "x.nc", variables=["a"])) == ["a"]
    with pytest.raises(InputError, match="No variable 'b': the raster has 'a', 'bad'"):
        open_raster(tmp_path / "x.nc", variables=["b"], chunks=None)


def test_dimensions_can_be_named(tmp_path: Path) -> None:
    dims = ("p", "q", "r")
    ds = xr.Dataset({"a": (dims, np.arange(24.0).reshape(2, 3, 4))}, {"q": [30, 20, 10], "r": [1.0, 2.0, 3.0, 4.0]})
    ds.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    found = open_raster(tmp_path / "x.nc", y_dim="q", x_dim="r")
    assert (found["a"].dims, found["y"].values.tolist()) == (("p", "y", "x"), [30, 20, 10])
    np.testing.assert_array_equal(found["a"], ds["a"])
    for y_dim, x_dim, message in (("q", "none", "No dimension 'none': got dimensions"), ("q", "q", "twice")):
        with pytest.raises(InputError, match=message):
            open_raster(tmp_path / "x.nc", y_dim=y_dim, x_dim=x_dim)


def test_latitudes_that_are_no_coordinates_show_the_dimensions(tmp_path: Path) -> None:
    latitude = np.tile(np.linspace(51, 50, 5)[:, None], 6)
    ds = xr.Dataset({"a": (("p", "q"), DECODED), "lat": (("p", "q"), latitude), "lon": (("p", "q"), latitude)})
    ds.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    found = open_raster(tmp_path / "x.nc")
    assert (list(found), set(found.coords)) == (["a"], {"lat", "lon"})
    assert Grid.from_xarray(found).y_dim == "p"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """URL of a server of the files in a folder, in a process of its own, because GDAL holds the lock of Python."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        port = re.search(r"port (\d+)", running.stdout.readline())
        assert port is not None
        yield f"http://127.0.0.1:{port[1]}"
        running.terminate()


@pytest.mark.parametrize("name", ["{}/z.tif", "/vsicurl/{}/z.tif"])
def test_rasters_behind_urls(tmp_path: Path, server: str, name: str) -> None:
    write_tif(tmp_path / "z.tif")
    found = open_raster(name.format(server))
    np.testing.assert_array_equal(only(found), DECODED)
    before = identity(found.encoding["source"])
    assert identity(found.encoding["source"]) == before
    os.utime(tmp_path / "z.tif", (1e9, 1e9))
    assert identity(found.encoding["source"]) != before


@pytest.mark.parametrize("name", ["none.tif", "none.zarr", "none.nc"])
def test_what_a_server_does_not_have(server: str, name: str) -> None:
    with pytest.raises((InputError, MissingFileError), match=f"got .*{name}"):
        open_raster(f"{server}/{name}")


def test_a_changed_source_of_a_vrt_changes_its_identity(tmp_path: Path) -> None:
    write_tif(tmp_path / "z.tif")
    rasterio.shutil.copy(tmp_path / "z.tif", tmp_path / "z.vrt", driver="VRT")
    for name in (f"{tmp_path / 'z.vrt'}", f"vrt://{tmp_path / 'z.tif'}?bands=1", f"GTIFF_DIR:1:{tmp_path / 'z.tif'}"):
        before = identity(name)
        assert identity(name) == before
        with (tmp_path / "z.tif").open("ab") as file:
            file.write(b"0")
        assert identity(name) != before


@pytest.mark.parametrize("variables", [None, ["T2"]])
def test_times_of_wrf_are_characters_of_a_variable(tmp_path: Path, variables: list[str] | None) -> None:
    """Of a dimension without coordinate; `across` counts days by them, and --select takes them."""
    path, days = tmp_path / "wrfout.nc", ["2020-01-01", "2020-01-02", "2020-01-09"]
    with netCDF4.Dataset(path, "w") as file:
        for name, size in (("Time", 3), ("DateStrLen", 19), ("south_north", 4), ("west_east", 5)):
            file.createDimension(name, size)
        file.createVariable("T2", "f4", ("Time", "south_north", "west_east"))[:] = np.ones((3, 4, 5))
        texts = np.array([list(f"{day}_00:00:00") for day in days], "S1")
        file.createVariable("Times", "S1", ("Time", "DateStrLen"))[:] = texts
    for chunks in (None, "auto"):
        ds = open_raster(path, chunks=chunks, variables=variables)
        assert list(ds.data_vars) == ["T2"]
        np.testing.assert_allclose(np.diff(positions(ds["T2"], "Time")) / DAY, [1, 7])
    chosen = open_raster(path, variables=variables, select={"Time": ("2020-01-02", None)})
    assert chosen["Times"].values.tolist() == [f"{day}_00:00:00".encode() for day in days[1:]]
    assert prepare(xr.open_dataset(path), FillOptions(across="Time")).job.across[0].positions == (0, DAY, 8 * DAY)
