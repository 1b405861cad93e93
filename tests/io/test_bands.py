"""Missing cells, scales and classes of GDAL's rasters, band by band."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import rioxarray
import xarray as xr
from netCDF4 import Dataset
from rasterio.enums import ColorInterp
from rasterio.transform import from_origin

import geonp
from geonp.errors import InputError
from geonp.fill.infill import infill
from geonp.io.files import open_raster
from geonp.io.output import write_raster
from geonp.raster.grid import Grid
from geonp.raster.nodata import observed

PLACE: dict[str, Any] = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_200_000, 30, 30)}


def write_tif(path: Path, bands: Any, dtype: str, nodata: float | None = None, **profile: Any) -> Path:
    values = np.array(bands, dtype)
    count, height, width = values.shape
    shape = {"height": height, "width": width, "count": count}
    with rasterio.open(path, "w", driver="GTiff", dtype=dtype, nodata=nodata, **shape, **PLACE, **profile) as file:
        file.write(values)
    return path


def write_vrt(path: Path, bands: list[tuple[Any, str, float | None]]) -> Path:
    """A VRT of single bands: values, dtype and nodata value of each."""
    names = {"int16": "Int16", "float32": "Float32", "uint8": "Byte"}
    text = ""
    for number, (values, dtype, nodata) in enumerate(bands, start=1):
        write_tif(path.parent / f"{path.stem}{number}.tif", [values], dtype)
        declared = "" if nodata is None else f"<NoDataValue>{nodata!r}</NoDataValue>"
        text += (
            f'<VRTRasterBand dataType="{names[dtype]}" band="{number}">{declared}<SimpleSource><SourceFilename '
            f'relativeToVRT="1">{path.stem}{number}.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource>'
            "</VRTRasterBand>"
        )
    rows, columns = np.shape(bands[0][0])
    place = "<SRS>EPSG:32633</SRS><GeoTransform>500000,30,0,5200000,0,-30</GeoTransform>"
    path.write_text(f'<VRTDataset rasterXSize="{columns}" rasterYSize="{rows}">{place}{text}</VRTDataset>')
    return path


def read(path: Path, **options: Any) -> np.ndarray:
    (array,) = open_raster(path, **options).data_vars.values()
    return np.asarray(array)[0] if "bands" in options else np.asarray(array)


NAN = np.nan


@pytest.mark.parametrize("chunks", ["auto", None])
def test_each_band_has_its_own_nodata(tmp_path: Path, chunks: Any) -> None:
    path = write_vrt(tmp_path / "a.vrt", [([[1, -9, -1]], "int16", -9), ([[-9, 5, -1]], "int16", -1)])
    np.testing.assert_array_equal(read(path, chunks=chunks), [[[1, NAN, -1]], [[-9, 5, NAN]]])
    np.testing.assert_array_equal(read(path, chunks=chunks, bands=[2]), [[-9, 5, NAN]])
    np.testing.assert_array_equal(read(path, chunks=chunks, nodata=5), [[[1, -9, -1]], [[-9, NAN, -1]]])
    write_raster(open_raster(path), tmp_path / "b.tif")
    with rasterio.open(tmp_path / "b.tif") as file:
        np.testing.assert_array_equal(file.read(masked=True).filled(99), [[[1, 99, -1]], [[-9, 5, 99]]])
    part = write_vrt(tmp_path / "c.vrt", [([[1, -9, -1]], "int16", -9), ([[-9, 5, -1]], "int16", None)])
    np.testing.assert_array_equal(read(part, chunks=chunks), [[[1, NAN, -1]], [[-9, 5, -1]]])


def test_nodata_of_floats_is_compared_as_gdal_does(tmp_path: Path) -> None:
    lowest, rounded = np.finfo("f4").min, -3.40282306073709652508e38
    path = write_tif(tmp_path / "a.tif", [[[lowest, rounded, -1e30, 5]]], "float32", nodata=rounded)
    np.testing.assert_array_equal(read(path), np.array([[NAN, NAN, -1e30, 5]], "f4"))
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(np.isnan(read(path)), file.read_masks(1) == 0)


def test_masks_and_alpha_mark_missing_cells_and_are_no_values(tmp_path: Path) -> None:
    path = write_tif(
        tmp_path / "a.tif", [[[7, 8]], [[5, 6]], [[3, 4]], [[255, 0]]], "uint8", photometric="RGB", alpha="yes"
    )
    np.testing.assert_array_equal(read(path), [[[7, NAN]], [[5, NAN]], [[3, NAN]]])
    np.testing.assert_array_equal(read(path, bands=[2]), [[5, NAN]])
    with pytest.raises(
        InputError, match=r"Band 4 is an alpha band.*expected bands of values, 1, 2, 3\. Correct bands .--b"
    ):
        open_raster(path, bands=[4])
    external = write_tif(tmp_path / "b.tif", [[[7, 8]]], "float32")
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(external, "r+") as file:
        file.write_mask(np.array([[0, 255]], "uint8"))
    assert (tmp_path / "b.tif.msk").exists()
    np.testing.assert_array_equal(read(external), [[NAN, 8]])


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_an_alpha_band_that_gdal_does_not_apply_is_a_mask(tmp_path: Path, dtype: str) -> None:
    stored = np.stack([np.full((2, 3), number, dtype) for number in (7, 5, 3, 1, 9, 255)])
    stored[:, 1, 1:] = 0
    path = write_tif(tmp_path / "a.tif", stored, dtype)
    with rasterio.open(path, "r+") as file:
        file.colorinterp = [*(ColorInterp.undefined,) * 5, ColorInterp.alpha]
        assert file.read_masks(1).all()
    found = np.where(stored[-1], stored[:-1], np.nan)
    for chunks in ("auto", None):
        ds = open_raster(path, chunks=chunks)
        np.testing.assert_array_equal(ds["a"], found)
        np.testing.assert_array_equal(ds["a"][2, 1:, ::2], found[2, 1:, ::2])
    np.testing.assert_array_equal(read(path, bands=[2]), found[1])
    with pytest.raises(InputError, match="Band 6 is an alpha band"):
        open_raster(path, bands=[6])
    write_raster(open_raster(path), tmp_path / "b.tif", driver="GTiff")
    np.testing.assert_array_equal(read(tmp_path / "b.tif"), found)
    alpha = np.where(stored[-1] == 0, 0, 255)
    with rasterio.open(tmp_path / "b.tif") as file:
        np.testing.assert_array_equal(file.read(6), alpha)
    filled = open_raster(path).fillna(4)
    filled["a"].encoding = open_raster(path)["a"].encoding
    write_raster(filled, tmp_path / "filled.tif")
    with rasterio.open(tmp_path / "filled.tif") as file:
        np.testing.assert_array_equal(file.read(6), 255)  # as opaque as all others, although 65535 were in 16 bits


@pytest.mark.parametrize("nodata", [None, 0, 9])
@pytest.mark.parametrize("n_bands", [1, 3, 5])
def test_alpha_comes_back_where_it_was_and_is_opaque_where_values_were_filled(
    tmp_path: Path, nodata: int | None, n_bands: int
) -> None:
    stored = np.arange(20, 20 + 12 * (n_bands + 1), dtype="uint8").reshape(n_bands + 1, 3, 4)
    stored[-1] = [[255, 128, 255, 255], [255, 0, 255, 255], [128, 255, 255, 255]]
    if nodata is not None:
        stored[:-1, 2, 3] = nodata
    path = write_tif(tmp_path / "a.tif", stored, "uint8", nodata=nodata)
    with rasterio.open(path, "r+") as file:
        file.colorinterp = [*(ColorInterp.gray, *(ColorInterp.undefined,) * 4)[:n_bands], ColorInterp.alpha]
    ds = open_raster(path)
    missing = (stored[:-1] == (256 if nodata is None else nodata)) | (stored[-1] == 0)
    np.testing.assert_array_equal(np.isnan(ds["a"]), missing[0] if n_bands == 1 else missing)
    write_raster(ds, tmp_path / "same.tif", like=ds)
    filled = ds.where(ds["a"].notnull(), 77)
    filled["a"].encoding = ds["a"].encoding
    write_raster(filled, tmp_path / "filled.tif", like=ds)
    write_raster(filled.isel(y=[2, 1], x=slice(1, 4)), tmp_path / "part.tif")
    expected = np.where(missing, 77, stored[:-1])
    alpha = np.where(stored[-1] == 0, 255, stored[-1])
    with rasterio.open(tmp_path / "same.tif") as file:
        np.testing.assert_array_equal(file.read()[:-1], np.where(missing, nodata or 0, stored[:-1]))
        np.testing.assert_array_equal(file.read()[-1], np.where(missing[0], 0, stored[-1]))
    with rasterio.open(tmp_path / "filled.tif") as file:
        np.testing.assert_array_equal(file.read(), [*expected, alpha])
        assert file.colorinterp[-1] == ColorInterp.alpha
    with rasterio.open(tmp_path / "part.tif") as file:
        np.testing.assert_array_equal(file.read(), np.stack([*expected, alpha])[:, 1:, 1:])


def test_alpha_is_opaque_if_the_file_is_gone(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "a.tif", [[[7, 8]], [[5, 6]], [[3, 4]], [[128, 0]]], "uint8", alpha="yes")
    ds = open_raster(path).compute()
    path.unlink()
    with pytest.warns(UserWarning, match="alpha band of .* cannot be read again: all cells with a value become opaque"):
        write_raster(ds, tmp_path / "b.tif")
    with rasterio.open(tmp_path / "b.tif") as file:
        assert file.read(4).tolist() == [[255, 0]]


def test_values_in_an_alpha_band_are_warned_of(tmp_path: Path) -> None:
    """The fourth band of bytes, such as near infrared, is alpha unless its writer says otherwise."""
    path = write_tif(tmp_path / "a.tif", np.random.default_rng(0).integers(1, 255, (4, 300, 300), "u1"), "uint8")
    with pytest.warns(UserWarning, match=r"neither 0 nor opaque.* rio edit-info .*a.tif --colorinterp red,.*undefined"):
        ds = open_raster(path)
    write_raster(ds, tmp_path / "b.tif")
    with rasterio.open(path) as before, rasterio.open(tmp_path / "b.tif") as after:
        np.testing.assert_array_equal(before.read(), after.read())


def test_nodata_values_of_all_bands_are_no_mask_to_be_written(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "a.tif", [[[0, 8]], [[0, 0]]], "uint8")
    with rasterio.open(path, "r+") as file:
        file.update_tags(NODATA_VALUES="0 0")
    ds = open_raster(path)
    write_raster(ds, tmp_path / "b.tif", like=ds)
    np.testing.assert_array_equal(read(tmp_path / "b.tif"), [[[NAN, 8]], [[NAN, 0]]])


def test_bands_may_have_names(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("band", "y", "x"), np.arange(12.0).reshape(2, 2, 3))}, {"band": ["B02", "B03"]})
    ds = ds.assign_coords(y=[2.0, 1.0], x=[1.0, 2.0, 3.0])
    write_raster(ds, tmp_path / "a.tif")
    with rasterio.open(tmp_path / "a.tif") as file:
        assert file.descriptions == ("a band=B02", "a band=B03")
        np.testing.assert_array_equal(file.read(), ds["a"])


def test_nodata_values_of_all_bands_together(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "a.tif", [[[-9, 8]], [[-9, -9]]], "float32")
    with rasterio.open(path, "r+") as file:
        file.update_tags(NODATA_VALUES="-9 -9")
    found = open_raster(path)
    np.testing.assert_array_equal(found["a"], [[[NAN, 8]], [[NAN, -9]]])
    for name, ds, kept in (("b", found, "-9 -9"), ("c", found.assign(b=found["a"].isel(band=0)), None)):
        write_raster(ds, tmp_path / f"{name}.tif")
        with rasterio.open(tmp_path / f"{name}.tif") as file:
            assert file.tags().get("NODATA_VALUES") == kept
            assert file.count == len(ds) + 1


def test_an_attribute_named_crs_that_is_none(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("y", "x"), np.eye(6))}, {"y": np.arange(6.0)[::-1], "x": np.arange(6.0)}, {"crs": "time"})
    write_raster(ds, tmp_path / "a.tif")
    np.testing.assert_array_equal(open_raster(tmp_path / "a.tif")["a"], ds["a"])


@pytest.mark.parametrize("tag", ["local", "EPSG:999999", "PROJCS[", "EPSG:4326 (WGS84)"])
def test_a_tag_named_crs_that_is_none(tmp_path: Path, tag: str) -> None:
    path = write_tif(tmp_path / "a.tif", [np.eye(6)], "int16", 0)
    with rasterio.open(path, "r+") as file:
        file.crs = rasterio.CRS()
        file.update_tags(crs=tag)
    for chunks in ("auto", None):
        ds = open_raster(path, chunks=chunks)
        np.testing.assert_array_equal(observed(ds["a"]), np.where(np.eye(6), 1.0, NAN))
        assert Grid.from_xarray(ds).crs is None
        assert ds["x"][0] == 500_015
    write_raster(ds, tmp_path / "b.tif")
    with rasterio.open(tmp_path / "b.tif") as file:
        assert (file.crs, file.transform) == (None, PLACE["transform"])


def test_bands_of_different_dtypes_are_read_one_by_one(tmp_path: Path) -> None:
    path = write_vrt(
        tmp_path / "a.vrt", [([[1, -9]], "int16", -9), ([[0.5, -1]], "float32", -1), ([[3, 4]], "uint8", 4)]
    )
    for chunks in ("auto", None):
        np.testing.assert_array_equal(read(path, bands=[1], chunks=chunks), [[1, NAN]])
        np.testing.assert_array_equal(read(path, bands=[2], chunks=chunks), [[0.5, NAN]])
        np.testing.assert_array_equal(read(path, bands=[3], chunks=chunks), [[3, NAN]])
    with pytest.raises(InputError, match=r"different dtypes: got 1 int16, 2 float32, 3 uint8, expected one.*--bidx"):
        open_raster(path)
    with pytest.raises(InputError, match="No band 4: the raster has bands 1 to 3"):
        open_raster(path, bands=[4])


def test_nodata_that_the_dtype_cannot_hold_marks_nothing(tmp_path: Path) -> None:
    path = write_vrt(tmp_path / "a.vrt", [([[241, 0, 3]], "uint8", -9999)])
    np.testing.assert_array_equal(read(path), [[241, 0, 3]])


def write_scaled(path: Path) -> Path:
    write_tif(path, [[[0, 3000, 65535]], [[0, 1, 700]]], "uint16", nodata=0)
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (1e-4, 1e-2), (-0.1, -5.0)
    return path


@pytest.mark.parametrize("chunks", ["auto", None])
def test_scale_and_offset_of_each_band_are_applied(tmp_path: Path, chunks: Any) -> None:
    path = write_scaled(tmp_path / "a.tif")
    np.testing.assert_allclose(read(path, chunks=chunks), [[[NAN, 0.2, 6.4535]], [[NAN, -4.99, 2]]])
    np.testing.assert_allclose(read(path, chunks=chunks, bands=[2]), [[NAN, -4.99, 2]])
    (array,) = open_raster(path, chunks=chunks).data_vars.values()
    np.testing.assert_allclose(array.isel(band=1, x=[2, 1], y=0), [2, -4.99])
    np.testing.assert_allclose(array.isel(band=[1, 0], x=2, y=slice(0, 1)), [[2], [6.4535]])


def test_scale_and_offset_of_each_band_are_kept(tmp_path: Path) -> None:
    ds = open_raster(write_scaled(tmp_path / "a.tif"))
    (name,) = ds.data_vars
    write_raster(ds, tmp_path / "integers.tif")
    with rasterio.open(tmp_path / "integers.tif") as file:
        assert (file.scales, file.offsets, file.nodata) == ((1e-4, 1e-2), (-0.1, -5.0), 0)
        assert file.dtypes == ("uint16", "uint16")
        assert file.read().tolist() == [[[0, 3000, 65535]], [[0, 1, 700]]]
    write_raster(ds.assign(error=ds[name] * 0.5), tmp_path / "floats.tif")
    with rasterio.open(tmp_path / "floats.tif") as file:
        assert (file.scales, file.offsets) == ((1e-4, 1e-2, 1, 1), (-0.1, -5.0, 0, 0))
        np.testing.assert_array_equal(file.read([1, 2]), [[[NAN, 3000, 65535]], [[NAN, 1, 700]]])
        np.testing.assert_allclose(file.read([3, 4]), [[[NAN, 0.1, 3.22675]], [[NAN, -2.495, 1]]])


def test_filled_values_of_packed_bands_never_look_missing(tmp_path: Path) -> None:
    ds = open_raster(write_scaled(tmp_path / "a.tif"))
    (name,) = ds.data_vars
    filled = ds.fillna(-5.0)
    filled[name].encoding = ds[name].encoding
    write_raster(filled, tmp_path / "b.tif")
    with rasterio.open(tmp_path / "b.tif") as file:
        # -5 is 0 of band 2, which means missing, and below all that band 1 can hold
        assert file.read()[:, 0, 0].tolist() == [1, 1]


def test_nodata_beyond_what_floats_hold_is_recognised(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "a.tif", [[[2**53 + 1, 5, -7]]], "int64", nodata=2**53)
    # rasterio writes and reports what float64 holds, GDAL compares integers
    path.write_bytes(path.read_bytes().replace(str(2**53).encode(), str(2**53 + 1).encode()))
    np.testing.assert_array_equal(read(path), [[NAN, 5, -7]])
    np.testing.assert_array_equal(read(path, chunks=None), [[NAN, 5, -7]])


def test_cells_that_netcdf_never_wrote(tmp_path: Path) -> None:
    with Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("y", 2)
        file.createDimension("x", 2)
        for name, dtype in (("f", "f4"), ("i", "i2"), ("b", "i1")):
            file.createVariable(name, dtype, ("y", "x"))[0] = [[1, 2]]
    ds = open_raster(tmp_path / "a.nc")
    for name in ("f", "i"):
        np.testing.assert_array_equal(observed(ds[name]), [[1, 2], [NAN, NAN]])
    assert ds["i"].dtype == np.int16
    with pytest.raises(InputError, match=r"'b' holds integers \(int8\) without a declared nodata value"):
        observed(ds["b"])


def test_nodata_declared_as_text_is_a_number(tmp_path: Path) -> None:
    with Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("y", 1)
        file.createDimension("x", 3)
        for name, dtype, given in (
            ("f", "f4", "-999.0"),
            ("i", "i2", "-999"),
            ("t", "f4", "none"),
            ("h", "f4", "1e40"),
        ):
            variable = file.createVariable(name, dtype, ("y", "x"))
            variable.setncattr_string("missing_value", given)
            variable[:] = [[1, 2, -999]]
    ds = open_raster(tmp_path / "a.nc")
    for name in ("f", "i"):
        np.testing.assert_array_equal(ds[name], [[1, 2, NAN]])
    for name in ("t", "h"):
        np.testing.assert_array_equal(observed(ds[name]), [[1, 2, -999]])


@pytest.mark.filterwarnings("ignore:(Scales|Offsets) differ across bands")
@pytest.mark.parametrize("opened", [False, True])
def test_scales_of_bands_that_rioxarray_has_applied_are_not_lost(tmp_path: Path, model: str, opened: bool) -> None:
    path = write_tif(tmp_path / "a.tif", np.arange(1, 201).reshape(2, 10, 10), "int16", nodata=7)
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (0.001, 0.1), (0.0, -5.0)
    array = rioxarray.open_rasterio(path, mask_and_scale=True) if not opened else next(iter(open_raster(path).values()))
    infill(array.rename("a"), model=model).to_netcdf(tmp_path / "b.nc", engine="netcdf4")
    with xr.open_dataset(tmp_path / "b.nc", engine="netcdf4") as found:
        np.testing.assert_allclose(found["a"][:, -1, -1], [0.1, 15.0], rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_palettes_of_rasters_that_rioxarray_has_opened(tmp_path: Path, model: str, masked: bool) -> None:
    path = write_tif(tmp_path / "a.tif", [np.arange(100).reshape(10, 10) % 5], "uint8", nodata=0)
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {1: (255, 0, 0, 255)})
    classes = rioxarray.open_rasterio(path, masked=masked)
    assert "classes_probability" in infill(classes.rename("classes"), model=model)
    ds = classes.to_dataset(name="classes").assign(z=classes.drop_encoding().astype("float32").where(classes != 3))
    with pytest.warns(
        UserWarning, match="classes: classes pass through as they are, because other variables are numbers"
    ):
        assert "classes_fill_flag" not in infill(ds, model=model)
    infill(open_raster(path, as_numbers=True), model=model)


def test_names_of_categories_that_only_a_driver_knows(tmp_path: Path, model: str) -> None:
    header = ["ENVI", "samples = 5", "lines = 4", "bands = 1", "header offset = 0", "file type = ENVI Classification"]
    header += ["data type = 1", "interleave = bsq", "classes = 3", "class names = {none, water, land}"]
    (tmp_path / "a.hdr").write_text("\n".join([*header, "data ignore value = 0\n"]))
    (np.arange(20, dtype="u1") % 3).tofile(tmp_path / "a")
    assert "a_probability" in infill(open_raster(tmp_path / "a"), model=model)


def test_a_name_that_leaves_no_room_for_a_sidecar_is_read(tmp_path: Path) -> None:
    path = tmp_path / f"{'n' * 250}.tif"
    profile = {"driver": "GTiff", "height": 2, "width": 3, "count": 1, "dtype": "float32"}
    with rasterio.open(path, "w", **profile, transform=from_origin(0, 2, 1, 1)) as file:
        file.write(np.ones((1, 2, 3), "f4"))
    assert open_raster(path).sizes == {"y": 2, "x": 3}


@pytest.mark.parametrize("crs", ["EPSG:2056", "EPSG:3168"])
def test_an_oblique_mercator_is_whole_and_nothing_is_warned_of(tmp_path: Path, crs: str) -> None:
    """The CF attributes lack an angle, which is in the WKT beside them; warnings are errors here."""
    place = {"crs": crs, "transform": from_origin(2_600_000, 1_200_000, 30, 30)}
    with rasterio.open(
        tmp_path / "a.tif", "w", driver="GTiff", dtype="float32", width=5, height=4, count=1, **place
    ) as file:
        file.write(np.arange(20, dtype="f4").reshape(1, 4, 5))
    ds = open_raster(tmp_path / "a.tif")
    declared = open_raster(tmp_path / "a.tif", crs=crs)
    lattice = geonp.lattice((2_600_000, 1_199_000, 2_601_000, 1_200_000), 100, crs=crs)
    for found in (ds, declared, lattice):
        assert found.rio.crs == rasterio.crs.CRS.from_user_input(crs)
