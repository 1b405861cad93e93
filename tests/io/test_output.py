"""What writing a raster refuses, and what it leaves when a library fails."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import rasterio
import rasterio.shutil
import xarray as xr
from pyproj import CRS
from rasterio.errors import RasterioError
from rasterio.windows import Window

from geonp.errors import InputError, OutputError
from geonp.io.attributes import storable
from geonp.io.files import open_raster
from geonp.io.output import write_raster


@pytest.fixture
def ds() -> xr.Dataset:
    values = np.arange(24.0).reshape(3, 2, 4)
    return xr.Dataset({"a": (("band", "y", "x"), values)}, {"y": [1.0, 0.0], "x": np.arange(4.0), "band": [1, 2, 3]})


@pytest.mark.parametrize("name", ["out.nc", "out.zarr"])
def test_bands_are_chosen_in_every_format(ds: xr.Dataset, tmp_path: Path, name: str) -> None:
    write_raster(ds, tmp_path / name)
    np.testing.assert_array_equal(open_raster(tmp_path / name, bands=[3, 1])["a"], ds["a"].isel(band=[2, 0]))
    with pytest.raises(InputError, match="No band 0, 4: the raster has bands 1 to 3"):
        open_raster(tmp_path / name, bands=[0, 2, 4])


def test_bytes_become_text() -> None:
    assert storable(xr.Dataset(attrs={"place": "Malmö".encode()})).attrs == {"place": "Malmö"}


def test_flags_have_the_type_of_the_values(tmp_path: Path) -> None:
    attrs = {"flag_values": [0, 1], "flag_meanings": "dry wet"}  # as Zarr gives them: JSON has one type of integers
    write_raster(xr.Dataset({"a": (("y", "x"), np.zeros((2, 3), np.int8), attrs)}), tmp_path / "a.nc")
    with xr.open_dataset(tmp_path / "a.nc", engine="netcdf4") as stored:
        assert stored["a"].attrs["flag_values"].dtype == np.int8
    too_large = xr.Dataset({"a": (("y", "x"), np.zeros((2, 3), np.int8), {"flag_values": [0, 300]})})
    assert storable(too_large)["a"].attrs["flag_values"] == [0, 300]


@pytest.mark.parametrize(
    ("name", "function", "error", "expected"),
    [
        ("out.nc", "xarray.Dataset.to_netcdf", RuntimeError("NetCDF: HDF error"), OutputError),
        ("out.nc", "xarray.Dataset.to_netcdf", RuntimeError("a bug"), RuntimeError),
        ("out.tif", "rasterio.shutil.copy", RasterioError("Write failed"), OutputError),
        ("out.tif", "geonp.io.output.write_geotiff", RasterioError("Write failed"), OutputError),
        ("out.tif", "geonp.io.output.write_geotiff", RasterioError("Read failed"), InputError),
    ],
)
def test_nothing_is_left_when_a_library_fails(
    ds: xr.Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    function: str,
    error: Exception,
    expected: type[Exception],
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(function, fail)
    with pytest.raises(expected, match=str(error)):
        write_raster(ds, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_geotiff_with_other_cells_than_were_written_is_refused(
    ds: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = rasterio.shutil.copy

    def damaging(source: Path, target: Path, **options: Any) -> None:
        copy(source, target, **options)
        with rasterio.open(target, "r+") as file:
            file.write(np.full((2, 4), 99.0), 2)

    monkeypatch.setattr(rasterio.shutil, "copy", damaging)
    with pytest.raises(
        OutputError,
        match=r"was not written completely: got other cells in rows .* of band 2 than.* Nothing was changed",
    ):
        write_raster(ds, tmp_path / "out.tif", driver="GTiff")
    assert list(tmp_path.iterdir()) == []


def test_bands_are_written_without_the_blocks_of_others(
    ds: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing many interleaved bands one after the other takes time with the square of their number."""
    copy, drafts = rasterio.shutil.copy, []

    def noting(source: Path, target: Path, **options: Any) -> None:
        with rasterio.open(source) as file:
            drafts.append(file.interleaving.name)
        copy(source, target, **options)

    monkeypatch.setattr(rasterio.shutil, "copy", noting)
    for driver in ("COG", "GTiff"):
        write_raster(ds, tmp_path / f"{driver}.tif", driver=driver)
        with rasterio.open(tmp_path / f"{driver}.tif") as file:
            assert file.interleaving.name == "pixel"
            np.testing.assert_array_equal(file.read(), ds["a"])
    assert drafts == ["band", "band"]


@pytest.mark.parametrize("lossy", [False, True])
def test_a_single_cell_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lossy: bool) -> None:
    """Chunks and blocks of the file differ; with a lossy compression, the draft has the wrong cell."""
    values = np.random.default_rng(0).integers(0, 255, (530, 1040), np.uint8)
    ds = xr.Dataset({"a": (("y", "x"), values)}, {"y": np.arange(530.0)[::-1], "x": np.arange(1040.0)}).chunk(300)
    copy = rasterio.shutil.copy

    def damaging(source: Path, target: Path, **options: Any) -> None:
        copy(source, target, **options)
        with rasterio.open(source if lossy else target, "r+") as file:
            file.write(1 - values[529:, 1039:], 1, window=Window(1039, 529, 1, 1))

    options = {"COMPRESS": "JPEG"} if lossy else {}
    write_raster(ds, tmp_path / "whole.tif", driver="GTiff", creation_options=options)
    monkeypatch.setattr(rasterio.shutil, "copy", damaging)
    with pytest.raises(OutputError, match=r"other cells in rows \(512, 530\) and columns \(1024, 1040\) of band 1"):
        write_raster(ds, tmp_path / "out.tif", driver="GTiff", creation_options=options)


def test_a_geotiff_without_its_blocks_is_refused(
    ds: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(source: Path, target: Path, **_: Any) -> None:
        with rasterio.open(source) as file:
            profile = file.profile
        rasterio.open(target, "w", **{**profile, "driver": "GTiff", "SPARSE_OK": "TRUE"}).close()

    monkeypatch.setattr(rasterio.shutil, "copy", losing)
    with pytest.raises(OutputError, match="was not written completely: got no block 0, 0 of band 1"):
        write_raster(ds, tmp_path / "out.tif", driver="GTiff")
    assert list(tmp_path.iterdir()) == []


def test_a_block_that_gdal_cannot_write_is_named(
    ds: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = rasterio.open

    def full(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode == "r+":
            raise RasterioError("no space")
        return opening(path, mode, **options)

    monkeypatch.setattr(rasterio, "open", full)
    with pytest.raises(OutputError, match="was not written completely: GDAL reports: no space"):
        write_raster(ds, tmp_path / "out.tif")
    assert list(tmp_path.iterdir()) == []


def test_one_dimension_is_not_both_rows_and_columns(ds: xr.Dataset, tmp_path: Path) -> None:
    write_raster(ds, tmp_path / "out.nc")
    with pytest.raises(InputError, match="'x' is given twice, expected two of the dimensions"):
        open_raster(tmp_path / "out.nc", y_dim="x", x_dim="x")


@pytest.mark.parametrize("name", ["out.nc", "out.zarr", "out.tif"])
def test_names_that_would_be_groups_are_changed(tmp_path: Path, name: str) -> None:
    values = np.arange(12.0).reshape(3, 4)
    ds = xr.Dataset({"t/C": (("y", "x"), values), "t/C_error": (("y", "x"), values)}, {"y": [2, 1, 0], "x": range(4)})
    ds["t/C"].attrs["ancillary_variables"] = "t/C_error"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write_raster(ds, tmp_path / name)
    texts = [str(one.message) for one in caught if "Renamed" in str(one.message)]
    if name == "out.tif":
        with rasterio.open(tmp_path / name) as file:
            assert file.descriptions == ("t/C", "t/C_error")
        assert not texts
    else:
        found = open_raster(tmp_path / name)
        np.testing.assert_array_equal(found["t_C"], values)
        assert found["t_C"].attrs["ancillary_variables"] == "t_C_error"
        assert "'t/C' to 't_C'" in texts[0]
        assert list(ds) == ["t/C", "t/C_error"]


def test_changed_names_may_hold_blanks(tmp_path: Path) -> None:
    values = (("y", "x"), np.arange(12.0).reshape(3, 4))
    ds = xr.Dataset({"air t/C": values, "air t/C error": values})
    ds["air t/C"].attrs["ancillary_variables"] = "quality air t/C error"
    with pytest.warns(UserWarning, match="Renamed"):
        write_raster(ds, tmp_path / "out.nc")
    assert open_raster(tmp_path / "out.nc")["air t_C"].attrs["ancillary_variables"] == "quality air t_C error"


def test_the_crs_of_a_geotiff_may_be_in_a_variable_beside_the_others(tmp_path: Path) -> None:
    """As xarray opens NetCDF: the GeoTIFF had none."""
    crs = ((), 0, CRS.from_epsg(32633).to_cf())
    coords = {"y": 5e6 - 10.0 * np.arange(6), "x": 5e5 + 10.0 * np.arange(8)}
    ds = xr.Dataset({"t": (("y", "x"), np.ones((6, 8), "f4"), {"grid_mapping": "utm"}), "utm": crs}, coords)
    write_raster(ds, tmp_path / "a.tif")
    with rasterio.open(tmp_path / "a.tif") as file:
        assert file.crs.to_epsg() == 32633


def test_stores_declare_the_zarr_conventions_of_their_own_grid(ds: xr.Dataset, tmp_path: Path) -> None:
    """Where rioxarray can write them; those of the raster that a cut is from are not kept in any format."""
    stale = ds.rio.write_crs("EPSG:32633").assign_attrs({"spatial:shape": [999, 999], "proj:code": "EPSG:4326"})
    write_raster(stale, tmp_path / "a.nc")
    assert not [key for key in open_raster(tmp_path / "a.nc").attrs if ":" in key]
    write_raster(stale, tmp_path / "a.zarr")
    with xr.open_zarr(tmp_path / "a.zarr") as stored:
        found = {key: value for key, value in stored.attrs.items() if ":" in key}
    if find_spec("rioxarray.enum") is None:
        assert not found
    else:
        assert found["spatial:shape"] == [ds.sizes["y"], ds.sizes["x"]]
        assert "UTM zone 33N" in found["proj:wkt2"]
