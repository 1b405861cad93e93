"""--values-only: a file comes back as it came, but for what was missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import netCDF4
import numcodecs
import numpy as np
import pytest
import rasterio
import xarray as xr
import zarr
from rasterio.enums import ColorInterp, Resampling

import geonp
from geonp.io import geotiff as geotiff_module

from ..commands import cli, with_warnings

SIDE = 48
Y, X = np.mgrid[:SIDE, :SIDE]
GAP = np.zeros((SIDE, SIDE), bool)
GAP[10:14, 20:25] = True
FIELD = np.rint(1000 + 40 * np.sin(X / 5.0) + 30 * np.cos(Y / 4.0))


def geotiff(path: Path, bands: list[np.ndarray[Any, Any]], **profile: Any) -> Path:
    settings = {"driver": "GTiff", "height": SIDE, "width": SIDE, "count": len(bands), "dtype": bands[0].dtype}
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(10 / 3, 0, 500_000.1, 0, -10 / 3, 5_200_000.7)}
    with rasterio.open(path, "w", **{**settings, **place, **profile}) as file:
        file.write(np.stack(bands))
    return path


def said(path: Path) -> dict[str, Any]:
    """What gdalinfo prints, without history and provenance."""
    with rasterio.open(path) as file:
        tags = {key: text for key, text in file.tags().items() if key != "history" and not key.startswith("geonp_")}
        found = ("descriptions", "units", "scales", "offsets", "colorinterp")
        return {
            **file.profile,
            **{key: getattr(file, key) for key in found},
            "tags": [tags, *(file.tags(n) for n in file.indexes)],
            "structure": file.tags(ns="IMAGE_STRUCTURE"),
            "overviews": [file.overviews(n) for n in file.indexes],
            "masks": file.mask_flag_enums,
            "palette": file.colormap(1) if file.colorinterp[0] == ColorInterp.palette else None,
        }


def dem(folder: Path) -> Path:
    values = np.where(GAP, -32768, FIELD).astype("int16")
    path = geotiff(
        folder / "dem.tif",
        [values],
        nodata=-32768,
        tiled=True,
        blockxsize=32,
        blockysize=16,
        compress="LZW",
        predictor=2,
    )
    with rasterio.open(path, "r+") as file:
        file.set_band_unit(1, "m")
        file.update_tags(AREA_OR_POINT="Point", SOURCE="SRTM")
        file.build_overviews([2, 4], Resampling.average)
    return path


def reflectance(folder: Path) -> Path:
    """Bands of different scales and offsets, one of them complete, in strips."""
    bands = [np.where(GAP, 0, FIELD + n).astype("uint16") for n in range(2)] + [FIELD.astype("uint16")]
    path = geotiff(
        folder / "s2.tif", bands, nodata=0, blockysize=5, compress="DEFLATE", predictor=2, interleave="pixel"
    )
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (1e-4, 2e-4, 1e-4), (-0.1, 0.0, -0.1)
        file.descriptions = ("B02", None, "B08")
        file.update_tags(1, WAVELENGTH="490")
    return path


def masked(folder: Path) -> Path:
    """Bytes whose gaps an internal mask marks."""
    path = folder / "rgb.tif"
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        geotiff(path, [(FIELD / 5).astype("uint8")] * 3, compress="ZSTD", interleave="pixel", photometric="RGB")
        with rasterio.open(path, "r+") as file:
            file.write_mask(~GAP)
    return path


def palette(folder: Path) -> Path:
    path = geotiff(folder / "cover.tif", [np.where(GAP, 255, 1 + X // 20).astype("uint8")], nodata=255)
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {1: (200, 0, 0, 255), 2: (0, 200, 0, 255), 3: (0, 0, 200, 255)})
    return path


@pytest.mark.parametrize("make", [dem, reflectance, masked, palette])
def test_a_geotiff_comes_back_as_it_came(make: Any, tmp_path: Path, model: str) -> None:
    source, target = make(tmp_path), tmp_path / "out.tif"
    with_warnings("fill", source, target, "--values-only", *([] if make is palette else ["--model", model]))
    assert said(target) == said(source)
    with rasterio.open(source) as before, rasterio.open(target) as after:
        np.testing.assert_array_equal(after.read()[:, ~GAP], before.read()[:, ~GAP])
        assert (after.read_masks(1) == 255).all()


_ORDERS = {
    "south up": rasterio.Affine(30, 0, 500_000, 0, 30, 5_200_000),
    "east first": rasterio.Affine(-30, 0, 500_000, 0, -30, 5_200_000),
    "both": rasterio.Affine(-30, 0, 500_000, 0, 30, 5_200_000),
    "rotated": rasterio.Affine(25, 10, 500_000, 10, -25, 5_200_000),
}


@pytest.mark.parametrize("transform", _ORDERS.values(), ids=_ORDERS)
@pytest.mark.parametrize("options", [(), ("--values-only",), ("--values-only", "--driver", "COG")], ids=" ".join)
def test_rows_and_columns_come_back_in_the_order_of_the_file(
    transform: rasterio.Affine, options: tuple[str, ...], tmp_path: Path, model: str
) -> None:
    values = np.where(GAP, -32768, FIELD).astype("int16")
    source = geotiff(tmp_path / "in.tif", [values], nodata=-32768, transform=transform)
    paths = [tmp_path / name for name in ("out.tif", "errors.tif", "flags.tif")]
    beside = ("--errors-to", paths[1], "--flags-to", paths[2])
    with_warnings("fill", source, paths[0], "--model", model, *beside, *options)
    for path in paths:
        with rasterio.open(path) as file:
            assert file.transform == transform
            found = file.read(1)
        same = {"out.tif": values, "flags.tif": GAP, "errors.tif": found}[path.name]
        np.testing.assert_array_equal(found[~GAP], same[~GAP])
        assert (found[GAP] > 0).all()


@pytest.mark.parametrize("nodata", [0, 4095])
def test_integers_of_twelve_bits_stay_so(nodata: int, tmp_path: Path, model: str) -> None:
    """A slope that rises to the largest integer at a gap is not filled beyond it, nor with nodata."""
    slope = np.minimum(4094, 4095 + 40 - np.hypot(Y - 12, X - 22) * 8)
    values = np.where(GAP, nodata, slope).astype("uint16")
    source, target = geotiff(tmp_path / "in.tif", [values], nodata=nodata, NBITS=12), tmp_path / "out.tif"
    with_warnings("fill", source, target, "--values-only", "--model", model)
    with rasterio.open(target) as file:
        assert file.tags(1, ns="IMAGE_STRUCTURE")["NBITS"] == "12"
        found = file.read(1)
    np.testing.assert_array_equal(found[~GAP], values[~GAP])
    assert ((found[GAP] > 3900) & (found[GAP] != nodata)).all()


def test_white_stays_the_smallest_value(tmp_path: Path, model: str) -> None:
    values = np.where(GAP, 255, 100).astype("uint8")
    source, target = geotiff(tmp_path / "in.tif", [values], nodata=255, PHOTOMETRIC="MINISWHITE"), tmp_path / "out.tif"
    with_warnings("fill", source, target, "--values-only", "--model", model)
    with rasterio.open(target) as file:
        assert file.tags(ns="IMAGE_STRUCTURE")["MINISWHITE"] == "YES"
        assert file.read(1)[~GAP].tolist() == values[~GAP].tolist()


def test_values_of_a_filled_raster_stay_within_its_bits(tmp_path: Path) -> None:
    source, target = geotiff(tmp_path / "in.tif", [FIELD.astype("uint16")], nodata=4095, NBITS=12), tmp_path / "out.tif"
    ds = geonp.open_raster(source)
    values = np.where(GAP, 5000.0, FIELD).astype("float32")
    values[0, 0] = np.nan
    geonp.write_raster(ds.copy(data={"in": values}), target, like=ds)
    with rasterio.open(target) as file:
        found = file.read(1)
    np.testing.assert_array_equal(found, np.where(np.isnan(values), 4095, np.minimum(values, 4094)))


def test_filled_integers_avoid_the_nodata_value(tmp_path: Path) -> None:
    """A plane of -1 and 1 around a gap is filled with 0, which is nodata: it becomes a neighbour."""
    values = np.where(GAP, 0, np.where((X + Y) % 2, 1, -1)).astype("int16")
    source, target = geotiff(tmp_path / "in.tif", [values], nodata=0), tmp_path / "out.tif"
    with_warnings("fill", source, target, "--values-only")
    with rasterio.open(target) as file:
        assert set(np.unique(file.read(1)[GAP])) <= {-1, 1}


def test_errors_and_flags_lie_in_files_of_their_own(tmp_path: Path, model: str) -> None:
    source, whole = dem(tmp_path), tmp_path / "whole.nc"
    paths = [tmp_path / name for name in ("out.tif", "errors.tif", "flags.tif")]
    with_warnings("fill", source, whole, "--model", model)
    output = with_warnings("fill", source, paths[0], "--model", model, "--errors-to", paths[1], "--flags-to", paths[2])
    assert all(str(path) in output for path in paths)
    expected = geonp.open_raster(whole)
    found = [geonp.open_raster(path) for path in paths]
    assert [list(ds.data_vars) for ds in found] == [["dem"], ["dem_standard_error"], ["dem_fill_flag"]]
    for ds, (name, da) in zip(found, expected.data_vars.items(), strict=True):
        np.testing.assert_array_equal(ds[name].values, da.values)
    with rasterio.open(paths[0]) as values, rasterio.open(paths[2]) as flags:
        assert (values.dtypes, flags.dtypes) == (("int16",), ("uint8",))
    refused = cli("fill", source, "o.tif", "--errors-to", "e.tif", "--flags-to", "e.tif", code=2)
    assert "--flags-to and --errors-to are the same file" in refused.output


def test_of_several_files_all_appear_or_none(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target, errors = dem(tmp_path), tmp_path / "out.tif", tmp_path / "errors.nc"
    earlier = source.read_bytes()
    for path in (target, errors):
        path.write_bytes(earlier)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("geonp.io.output.write_netcdf", fail)
    options = ("--model", model, "--values-only", "--errors-to", errors, "--overwrite")
    assert "Nothing was changed" in with_warnings("fill", source, target, *options, code=1)
    assert (target.read_bytes(), errors.read_bytes()) == (earlier, earlier)
    assert sorted(tmp_path.iterdir()) == sorted([source, target, errors])


@pytest.mark.parametrize("change", ["written", "gone", "covariate"])
def test_an_input_that_changes_while_it_is_filled_gives_no_file(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source, covariate = dem(tmp_path), tmp_path / "slope.nc"
    slope = geonp.open_raster(source).dem.rename("slope").drop_attrs()
    (slope.fillna(0) + slope.x).to_netcdf(covariate)
    before = sorted(tmp_path.iterdir())

    def write(*args: Any) -> None:
        geotiff_module.write_geotiff(*args)
        if change == "gone":
            source.unlink()
        else:
            os.utime(source if change == "written" else covariate, (0, 0))

    monkeypatch.setattr("geonp.io.output.write_geotiff", write)
    options = ("--model", "tnpkr-sa", "--covariate", covariate) if change == "covariate" else ("--model", model)
    said = with_warnings("fill", source, tmp_path / "out.tif", *options, code=1)
    assert "The input changed while it was filled" in said
    assert sorted(tmp_path.iterdir()) == [file for file in before if change != "gone" or file != source]


def test_values_only_of_the_bands_of_a_geotiff(tmp_path: Path, model: str) -> None:
    source, target = dem(tmp_path), tmp_path / "out.tif"
    with_warnings("fill", source, target, "--model", model)
    alone = geonp.values_only(geonp.open_raster(target))
    assert list(alone) == ["dem"]
    np.testing.assert_array_equal(alone.dem.values[~GAP], FIELD[~GAP])


def packed(path: Path, layout: dict[str, Any], **options: Any) -> Path:
    """A packed variable with a gap, a complete one of integers, and one without rows and columns."""
    data = np.stack([np.where(GAP, np.nan, 280 + FIELD / 100), 281 + FIELD / 100])
    ds = xr.Dataset(
        {
            "t": (("time", "y", "x"), data, {"units": "K"}),
            "quality": (("y", "x"), X.astype("int8")),
            "station": ("time", np.array([7, 8], "int16")),
        },
        {"time": [0.0, 36.0], "y": np.arange(SIDE)[::-1] * 100.0, "x": np.arange(SIDE) * 100.0},
    )
    for coord in ds.coords.values():
        coord.encoding["_FillValue"] = None
    ds.time.attrs["units"] = "hours since 2019-12-31"
    ds.t.encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -9999, **layout}
    if path.suffix == ".nc":
        ds.to_netcdf(path, engine="netcdf4", unlimited_dims=["time"])
    else:
        ds.to_zarr(path, consolidated=False, **options)
    return path


def test_netcdf_comes_back_as_it_came(tmp_path: Path, model: str) -> None:
    layout = {"zlib": True, "complevel": 7, "shuffle": False, "fletcher32": True, "chunksizes": (1, 24, 16)}
    source, target = packed(tmp_path / "in.nc", layout), tmp_path / "out.nc"
    with_warnings("fill", source, target, "--values-only", "--model", model)
    with netCDF4.Dataset(source) as before, netCDF4.Dataset(target) as after:
        assert list(after.variables) == list(before.variables)
        for file in (before, after):
            file.set_auto_maskandscale(False)
        assert after.dimensions["time"].isunlimited()
        for name, variable in before.variables.items():
            other = after[name]
            assert (other.dtype, other.dimensions, other.chunking()) == (
                *(variable.dtype, variable.dimensions),
                variable.chunking(),
            )
            assert other.filters() == variable.filters()
            assert {key: other.getncattr(key) for key in variable.ncattrs()} == variable.__dict__
            there = variable[:] != -9999
            np.testing.assert_array_equal(other[:][there], variable[:][there])
        assert (after["t"][:] != -9999).all()


def everything(path: Path, model: Any) -> Path:
    """Both nodata attributes, one of them, none; characters, scalars, bounds and coordinates as others write them."""
    with netCDF4.Dataset(path, "w", format=model) as file:
        sizes = {"time": None, "lat": SIDE, "lon": SIDE, "strlen": 7, "nv": 2}
        for dim, size in sizes.items():
            file.createDimension(dim, size)
        stored = {
            "lat": ("f4", ("lat",), 50 - np.arange(SIDE) * 0.125, {"units": "degrees_north", "_FillValue": -999}),
            "lon": ("f4", ("lon",), 5 + np.arange(SIDE) * 0.125, {"units": "degrees_east"}),
            "height": ("f8", (), 2.0, {"units": "m"}),
            "time": ("f8", ("time",), [0, 36], {"units": "hours since 1900-01-01 00:00:0.0", "bounds": "time_bnds"}),
            "time_bnds": ("f8", ("time", "nv"), [[-1, 1], [35, 37]], {}),
            "name": ("S1", ("time", "strlen"), netCDF4.stringtochar(np.array(["first", "second"], "S7")), {}),
            "both": (
                "i2",
                ("time", "lat", "lon"),
                np.stack([np.where(GAP, -9, FIELD)] * 2),
                {"_FillValue": -9, "missing_value": np.int16(-9), "scale_factor": 0.5, "coordinates": "height name"},
            ),
            "two": (
                "f4",
                ("lat", "lon"),
                np.where(GAP, 1e20, FIELD),
                {"_FillValue": -99, "missing_value": np.float32(1e20)},
            ),
            "one": ("f8", ("lat", "lon"), np.where(GAP, -99, FIELD), {"missing_value": -99.0}),
            "none": ("f4", ("lat", "lon"), np.where(GAP, np.nan, FIELD), {}),
        }
        for name, (dtype, dims, values, attrs) in stored.items():
            fill = attrs.pop("_FillValue", None)
            variable = file.createVariable(name, dtype, dims, fill_value=fill)
            variable.set_auto_maskandscale(False)
            variable.setncatts(attrs)
            variable[...] = values
        if model == "NETCDF4":
            file.createGroup("quality").note = "good"
    return path


@pytest.mark.parametrize("kind", ["NETCDF4", "NETCDF4_CLASSIC", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET"])
def test_attributes_dimensions_and_kind_of_netcdf_come_back(kind: str, tmp_path: Path, model: str) -> None:
    source, target = everything(tmp_path / "in.nc", kind), tmp_path / "out.nc"
    output = with_warnings("fill", source, target, "--values-only", "--model", model)
    assert ("Left out of out.nc: the group quality of the input." in output) == (kind == "NETCDF4")
    with netCDF4.Dataset(source) as before, netCDF4.Dataset(target) as after:
        assert after.data_model == kind
        assert {n: (d.size, d.isunlimited()) for n, d in after.dimensions.items()} == {
            n: (d.size, d.isunlimited()) for n, d in before.dimensions.items()
        }
        for file in (before, after):
            file.set_auto_maskandscale(False)
        assert set(after.variables) == set(before.variables)
        for name, variable in before.variables.items():
            other = after[name]
            assert (other.dtype, other.dimensions, other.__dict__) == (
                *(variable.dtype, variable.dimensions),
                variable.__dict__,
            )
            there = np.broadcast_to(~GAP if "lat" in variable.dimensions[-2:-1] else True, variable.shape)
            np.testing.assert_array_equal(other[...][there], variable[...][there])
        for name in ("both", "two", "one", "none"):
            assert (np.abs(after[name][...][..., GAP] - 1000) < 100).all()


def test_what_an_old_kind_of_netcdf_cannot_hold_is_written_as_netcdf_4(tmp_path: Path) -> None:
    ds = geonp.open_raster(everything(tmp_path / "in.nc", "NETCDF3_CLASSIC"))[["one"]]
    for dtype, kind in (("uint16", "NETCDF4"), ("int64", "NETCDF4"), ("int32", "NETCDF3_CLASSIC")):
        other = ds.assign(number=ds.one.fillna(0).astype(dtype).drop_attrs())
        geonp.write_raster(other, tmp_path / "out.nc", like=ds, overwrite=True)
        with netCDF4.Dataset(tmp_path / "out.nc") as file:
            assert (file.data_model, file["number"].dtype) == (kind, dtype)


def test_signed_bytes_that_stand_for_unsigned_ones_stay_signed(tmp_path: Path, model: str) -> None:
    source, target = tmp_path / "in.nc", tmp_path / "out.nc"
    stored = np.where(GAP, 255, FIELD - 900).astype("uint8").view("int8")
    with netCDF4.Dataset(source, "w") as file:
        for name in ("y", "x"):
            file.createDimension(name, SIDE)
        variable = file.createVariable("t", "i1", ("y", "x"), fill_value=np.int8(-1))
        variable.set_auto_maskandscale(False)
        variable.setncatts({"_Unsigned": "true", "scale_factor": 0.5, "valid_range": np.array([0, -2], "i1")})
        variable[:] = stored
    with_warnings("fill", source, target, "--values-only", "--model", model)
    with netCDF4.Dataset(target) as file:
        file.set_auto_maskandscale(False)
        attrs, found = file["t"].__dict__, file["t"][:]
    assert (found.dtype, attrs["_Unsigned"], attrs["valid_range"].tolist()) == (np.int8, "true", [0, -2])
    np.testing.assert_array_equal(found[~GAP], stored[~GAP])
    assert (found != -1).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_comes_back_as_it_came(zarr_format: int, tmp_path: Path, model: str) -> None:
    other: dict[str, Any] = {"shards": (1, 40, 32)}
    if zarr_format == 2:
        other = {"dtype": np.dtype(">i2"), "filters": [numcodecs.Delta(dtype=">i2")]}
    layout = {"chunks": (1, 20, 16), **other}
    source, target = packed(tmp_path / "in.zarr", layout, zarr_format=zarr_format), tmp_path / "out.zarr"
    with_warnings("fill", source, target, "--values-only", "--model", model)
    before, after = zarr.open_group(source, mode="r"), zarr.open_group(target, mode="r")
    assert sorted(after) == sorted(before)
    for name in before:
        old, new = before[name], after[name]
        assert (new.metadata.zarr_format, new.chunks, new.shards) == (zarr_format, old.chunks, old.shards)
        assert (new.dtype, new.compressors) == (old.dtype.newbyteorder("="), old.compressors)
        np.testing.assert_array_equal(new[:][old[:] != -9999], old[:][old[:] != -9999])
    assert (after["t"][:] != -9999).all()


def test_values_only_of_a_result_in_memory(model: str) -> None:
    da = xr.DataArray(np.where(GAP, np.nan, FIELD), dims=("y", "x"), name="t", attrs={"ancillary_variables": "quality"})
    filled = da.geonp.infill(model=model, quantiles=[0.1, 0.9], exceed=[1000.0])
    alone = filled.geonp.values_only()
    assert (list(alone), list(alone.coords)) == (["t"], [])
    assert alone["t"].attrs == {"ancillary_variables": "quality"}
    xr.testing.assert_equal(alone["t"], filled["t"])
    assert "t_quantile" in filled["t"].attrs["ancillary_variables"]
    with pytest.raises(geonp.InputError, match=r"no variable that was filled.*expected the result of infill"):
        da.to_dataset().geonp.values_only()


def test_results_that_values_only_leaves_out_are_refused(tmp_path: Path) -> None:
    source = geotiff(tmp_path / "dem.tif", [np.where(GAP, -1, FIELD).astype("int16")], nodata=-1)
    given = ("fill", source, tmp_path / "out.tif", "--values-only")
    for option, value in (("--quantile", 0.9), ("--exceed", 1010), ("--samples", 2)):
        assert f"--values-only leaves out what {option} asks for" in cli(*given, option, value, code=2).stderr
    assert not (tmp_path / "out.tif").exists()
