"""Covariates on the command line: files, variables, other grids, and where a colon belongs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rioxarray
import xarray as xr

import geonp
from geonp.cli.covariates import split
from geonp.errors import InputError

from ..commands import says, with_warnings

pytestmark = pytest.mark.usefixtures("few_patches")

SHAPE = (26, 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gappy temperature beside its elevation in ``t.nc``, the elevation in ``dem.tif`` and more in ``more.nc``."""
    path = tmp_path_factory.mktemp("covariates")
    rng = np.random.default_rng(0)
    dem = 500 + 300 * rng.standard_normal(SHAPE).astype(np.float32)
    t = 15 - 0.0065 * dem + np.sin(np.arange(SHAPE[1]) / 8).astype(np.float32)
    x, y = 500_000 + 30.0 * np.arange(SHAPE[1]), 5_200_000 - 30.0 * np.arange(SHAPE[0])
    coords, dims = {"y": y, "x": x}, ("y", "x")
    gappy = np.where(rng.random(SHAPE) < 0.4, np.nan, t)
    ds = xr.Dataset({"t": (dims, gappy), "own": (dims, dem)}, coords).rio.write_crs("EPSG:32633")
    ds.to_netcdf(path / "t.nc", engine="netcdf4")
    ds["own"].rename("dem").rio.to_raster(path / "dem.tif")
    more = xr.Dataset({"noise": (dims, rng.standard_normal(SHAPE)), "dem": (dims, dem)}, coords)
    more.rio.write_crs("EPSG:32633").to_netcdf(path / "more.nc", engine="netcdf4")
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> xr.Dataset:
    with xr.open_dataset(folder / "t.nc", engine="netcdf4", decode_coords="all") as ds:
        return ds["t"].load().geonp.infill(covariates=ds["own"].load().rename("dem"))


def same(found: xr.Dataset, expected: xr.Dataset) -> None:
    scale = float(expected["t_standard_error"].max())
    for name in ("t", "t_standard_error"):
        np.testing.assert_allclose(found[name].values, expected[name].values, atol=1e-3 * scale)


@pytest.mark.parametrize(
    ("output", "covariate", "label"),
    [("out.zarr", "dem.tif", "dem"), ("out.nc", "more.nc:dem", "dem"), ("out.zarr", "own", "own")],
)
def test_outputs_are_those_of_python_and_name_the_covariates(
    folder: Path, tmp_path: Path, expected: xr.Dataset, output: str, covariate: str, label: str
) -> None:
    given = covariate if covariate == "own" else folder / covariate
    says("fill", folder / "t.nc", tmp_path / output, "--variable", "t", "--covariate", given, "-q")
    with geonp.open_raster(tmp_path / output) as found:
        same(found.load(), expected)
        assert found.attrs["geonp_covariates"] == label
        assert "own" not in found  # it was not asked for as an output


def test_geotiff_names_the_covariates_too(folder: Path, tmp_path: Path, expected: xr.Dataset) -> None:
    given = ("--covariate", folder / "dem.tif", "--covariate", folder / "more.nc:noise")
    says("fill", folder / "t.nc", tmp_path / "out.tif", "--variable", "t", *given, "-q")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.tags()["geonp_covariates"] == "dem noise"
        error = np.abs(file.read(1) - expected["t"].values)
    assert error.mean() < 0.3 * float(expected["t_standard_error"].max())


def test_bands_are_chosen_by_number_or_description(folder: Path, tmp_path: Path, expected: xr.Dataset) -> None:
    with rasterio.open(folder / "dem.tif") as file:
        profile, dem = file.profile | {"count": 2}, file.read(1)
    with rasterio.open(tmp_path / "two.tif", "w", **profile) as file:
        file.write(np.stack([0 * dem, dem]))
        file.descriptions = ("flat", "height")
    for band, label in (("2", "two_2"), ("height", "height")):
        given = ("--variable", "t", "--covariate", f"{tmp_path}/two.tif:{band}", "-q")
        says("fill", folder / "t.nc", tmp_path / f"{band}.nc", *given)
        with geonp.open_raster(tmp_path / f"{band}.nc") as found:
            same(found.load(), expected)
            assert found.attrs["geonp_covariates"] == label


def test_a_band_of_a_file_is_one_for_all_bands_of_the_raster(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    dem = rng.standard_normal(SHAPE)
    bands = np.stack([np.where(rng.random(SHAPE) < 0.4, -9999, dem), 2 * dem, np.ones(SHAPE)]).astype(np.float32)
    profile = {"driver": "GTiff", "height": SHAPE[0], "width": SHAPE[1], "dtype": "float32", "nodata": -9999}
    place = {"crs": "EPSG:32633", "transform": rasterio.transform.from_origin(5e5, 5.2e6, 30, 30)}
    for name, part in (("many.tif", bands), ("one.tif", bands[:1]), ("dem.tif", bands[1:2])):
        with rasterio.open(tmp_path / name, "w", count=len(part), **profile, **place) as file:
            file.write(part)
            file.descriptions = ("t", "height", "error") if len(part) == 3 else ("",)
    given = ("-q", "--values-only", "--covariate")
    says("fill", tmp_path / "one.tif", tmp_path / "expected.tif", *given, tmp_path / "dem.tif")
    says("fill", tmp_path / "many.tif", tmp_path / "out.tif", "-b", 1, *given, f"{tmp_path}/many.tif:2")
    says("fill", tmp_path / "many.tif", tmp_path / "own.tif", "-b", 1, *given, "height")
    says("fill", tmp_path / "many.tif", tmp_path / "all.tif", *given, f"{tmp_path}/many.tif:2")
    expected = rasterio.open(tmp_path / "expected.tif").read(1)
    for name in ("out.tif", "own.tif", "all.tif"):
        np.testing.assert_allclose(rasterio.open(tmp_path / name).read(1), expected, atol=1e-5)
    says("fill", tmp_path / "many.tif", tmp_path / "e.tif", "-b", 1, "-q", "--errors", f"{tmp_path}/many.tif:3")


def test_bands_of_a_covariate_beside_bands_of_the_raster(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    values, height = np.where(rng.random((2, *SHAPE)) < 0.4, -9999, rng.standard_normal(SHAPE)), rng.random((2, *SHAPE))
    profile = {"driver": "GTiff", "height": SHAPE[0], "width": SHAPE[1], "dtype": "float32", "nodata": -9999}
    place = {"crs": "EPSG:32633", "transform": rasterio.transform.from_origin(5e5, 5.2e6, 30, 30)}
    files = {"two.tif": (values, ("red", "nir")), "one.tif": (values[:1], ("",)), "dem.tif": (height, ("dem", "slope"))}
    for name, (bands, descriptions) in files.items():
        with rasterio.open(tmp_path / name, "w", count=len(bands), **profile, **place) as file:
            file.write(bands.astype(np.float32))
            file.descriptions = descriptions
    given = ("-q", "--values-only", "--covariate", tmp_path / "dem.tif")
    says("fill", tmp_path / "one.tif", tmp_path / "expected.tif", *given)
    says("fill", tmp_path / "two.tif", tmp_path / "out.tif", "-b", 1, *given)
    expected, found = (rasterio.open(tmp_path / name).read(1) for name in ("expected.tif", "out.tif"))
    np.testing.assert_array_equal(found, expected)
    said = with_warnings("fill", tmp_path / "two.tif", tmp_path / "both.tif", *given[1:])
    assert "other names along 'band': got dem, slope, expected red, nir" in said


def test_a_box_cuts_the_covariate_too(folder: Path, tmp_path: Path) -> None:
    box = (500_100, 5_199_400, 500_700, 5_199_900)
    with geonp.open_raster(folder / "t.nc", bbox=box) as ds:
        expected = ds[["t"]].load().geonp.infill(covariates=ds["own"].load())
    says("fill", folder / "t.nc", tmp_path / "a.nc", "--variable=t", "--covariate", folder / "dem.tif", "--bbox", *box)
    # a box of the raster means nothing to a covariate in another CRS
    with rasterio.open(folder / "dem.tif") as file:
        whole = rioxarray.open_rasterio(file).squeeze("band", drop=True)
    whole.rio.reproject("EPSG:4326", resolution=3e-5).rio.to_raster(tmp_path / "geographic.tif")
    given = ("--variable=t", "--covariate", tmp_path / "geographic.tif", "--bbox", *box)
    assert "differ in" in says("fill", folder / "t.nc", tmp_path / "b.nc", *given, code=1)
    says("fill", folder / "t.nc", tmp_path / "b.nc", *given, "--covariate-resampling", "nearest")
    for name in ("a.nc", "b.nc"):
        with geonp.open_raster(tmp_path / name) as found:
            scale = float(expected["t_standard_error"].max())
            np.testing.assert_allclose(found["t"].values, expected["t"].values, atol=1e-3 * scale)


def test_plan_and_resume(folder: Path, tmp_path: Path) -> None:
    command = ("fill", folder / "t.nc", tmp_path / "out.zarr", "--variable", "t", "--covariate")
    assert "peak_bytes" in says(*command, folder / "dem.tif", "--dry-run")
    assert "peak_bytes" in says(*command, "own", "--dry-run")
    assert not (tmp_path / "out.zarr").exists()
    says(*command, folder / "more.nc:dem", "-q")
    says(*command, folder / "more.nc:dem", "-q", "--resume")
    message = says(*command, folder / "more.nc:noise", "--resume", code=1)
    assert "was not made by this job" in message


@pytest.mark.parametrize("output", ["out.zarr", "out.nc"])
def test_another_grid_is_refused_or_resampled(folder: Path, tmp_path: Path, output: str) -> None:
    x, y = 499_000 + 90.0 * np.arange(40), 5_201_000 - 90.0 * np.arange(40)
    wave = np.sin(x / 700) + np.cos(y / 500)[:, None]
    coarse = xr.DataArray(wave, {"y": y, "x": x}, ("y", "x"), "wave").rio.write_crs("EPSG:32633")
    coarse.rio.to_raster(tmp_path / "coarse.tif")
    command = ("fill", folder / "t.nc", tmp_path / output, "--variable", "t", "--covariate", tmp_path / "coarse.tif")
    message = says(*command, code=1)
    assert "differ in shape" in message
    assert "--covariate-resampling bilinear" in message
    says(*command, "-q", "--covariate-resampling", "bilinear")
    with xr.open_dataset(folder / "t.nc", engine="netcdf4", decode_coords="all") as ds:
        expected = ds["t"].load().geonp.infill(covariates=coarse, covariate_resampling="bilinear")
        same(ds["t"].geonp.infill(covariates=coarse.interp(x=ds.x, y=ds.y)), expected)
    with geonp.open_raster(tmp_path / output) as found:
        same(found.load(), expected)


def test_errors_of_observations_are_read_as_covariates_are(folder: Path, tmp_path: Path) -> None:
    with xr.open_dataset(folder / "t.nc", engine="netcdf4", decode_coords="all") as ds:
        ds = ds.load()
    sigma = (ds["own"] * 0 + np.where(np.arange(SHAPE[1]) < 9, 2.0, 0.1)).rename("sigma")
    sigma.to_netcdf(tmp_path / "sigma.nc", engine="netcdf4")
    given = ("--variable", "t", "--errors", f"{tmp_path}/sigma.nc:sigma", "-q")
    says("fill", folder / "t.nc", tmp_path / "out.zarr", *given)
    with geonp.open_raster(tmp_path / "out.zarr") as found:
        same(found.load(), ds["t"].geonp.infill(errors=sigma))


def test_object_stores(folder: Path, tmp_path: Path, expected: xr.Dataset) -> None:
    with geonp.open_raster(folder / "more.nc") as ds:
        ds.load().to_zarr("memory://bucket/more.zarr", mode="w")
    given = ("--covariate", "memory://bucket/more.zarr:dem")
    says("fill", folder / "t.nc", tmp_path / "out.zarr", "--variable", "t", *given, "-q")
    with geonp.open_raster(tmp_path / "out.zarr") as found:
        same(found.load(), expected)


def test_evaluate_scores_the_model_with_and_without(folder: Path) -> None:
    given = ("--covariate", folder / "more.nc:dem", "--covariate", "own", "--baseline", "regression_kriging")
    printed = json.loads(says("evaluate", folder / "t.nc", "--variable", "t", *given, "--holdout", "random", "--json"))
    assert list(printed["scores"]) == ["geonp + covariates", "geonp", "regression_kriging"]
    assert printed["scores"]["geonp + covariates"]["crps"] < 0.6 * printed["scores"]["geonp"]["crps"]
    assert printed["selection"] == "with the covariates dem, own"
    assert "needs covariates" in says("evaluate", folder / "t.nc", *given[-2:], code=1)


def test_what_is_no_covariate_is_named(folder: Path, tmp_path: Path) -> None:
    def refused(covariate: object) -> str:
        return says("fill", folder / "t.nc", tmp_path / "out.nc", "--covariate", covariate, code=1)

    assert "No such covariate: got 'lai', expected a file, FILE:VARIABLE" in refused("lai")
    assert "input: 't', 'own'" in refused(folder / "nothing.tif")
    lai = refused(folder / "more.nc:lai")
    assert "No variable or band 'lai' in " in lai
    assert "expected one of noise, dem" in lai
    assert "No band 3" in refused(folder / "dem.tif:3")


@pytest.mark.parametrize(
    ("text", "file", "part"),
    [
        ("a.tif", "a.tif", {}),
        ("a.nc:lai", "a.nc", {"variables": ["lai"]}),
        ("a.nc:group/lai", "a.nc", {"variables": ["group/lai"]}),
        ("a.tif:2", "a.tif", {"bands": [2]}),
        ("b.nc:lai", "b.nc:lai", {}),
        ("c:d.tif", "c:d.tif", {}),
        ("c:d.tif:1", "c:d.tif", {"bands": [1]}),
        ("NETCDF:a.nc:lai", "NETCDF:a.nc:lai", {}),
        ("http://host:80/x.tif", "http://host:80/x.tif", {}),
        ("http://host:80", "http://host:80", {}),
        ("http://host:80/y.tif:red", "http://host:80/y.tif", {"variables": ["red"]}),
        ("s3://bucket/y.zarr:lai", "s3://bucket/y.zarr", {"variables": ["lai"]}),
        ("s3://bucket/with:colon.tif", "s3://bucket/with:colon.tif", {}),
    ],
)
def test_a_colon_parts_a_variable_only_where_the_rest_exists(
    text: str, file: str, part: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.tif", "a.nc", "c:d.tif"):
        Path(name).touch()

    def opened(place: str) -> None:
        if place not in {"http://host:80/x.tif", "s3://bucket/with:colon.tif"}:
            raise InputError(place)

    assert split(text, opened) == (file, part)


def test_selected_slices_are_those_of_other_files_too(folder: Path, tmp_path: Path) -> None:
    times = np.datetime64("2020-06-15", "ns") + np.arange(0, 90, 30).astype("timedelta64[D]")
    with xr.open_dataset(folder / "t.nc", engine="netcdf4", decode_coords="all") as ds:
        one = ds.load()
    t = one["t"] + xr.DataArray([0.0, 1.0, 2.0], {"time": times}, ("time",), "t")
    t = t.transpose("time", "y", "x")
    own = one["own"].expand_dims(time=times)
    cloud = xr.zeros_like(own, "i1").rename("cloud")
    cloud[1, 2:5, 3:6] = 1
    for da in (t, own, cloud):
        da.to_dataset(name=da.name).to_netcdf(tmp_path / f"{da.name}.nc", engine="netcdf4")
    given = ("--covariate", tmp_path / "own.nc", "--gaps-where", f"{tmp_path}/cloud.nc:cloud")
    says("fill", tmp_path / "t.nc", tmp_path / "out.nc", "--select", "time=2020-07", *given)
    with geonp.open_raster(tmp_path / "out.nc") as found:
        assert found.time.values.tolist() == times[1:2].tolist()
        same(found.load(), t[1:2].where(cloud[1:2] == 0).geonp.infill(covariates=own[1:2]))
    assert "expected DIM=LABEL" in says("fill", tmp_path / "t.nc", tmp_path / "b.nc", "--select", "time", code=2)
