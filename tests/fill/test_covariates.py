"""Fills with covariates: what they are worth, what they do not depend on, and what is refused."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import xarray as xr
from pyproj import CRS

import geonp
from geonp.errors import InputError
from geonp.evaluation.holdout import hide_simulated
from geonp.evaluation.metrics import score

SHAPE = (32, 40)
MODEL = "tnpkr-sa"


def rough(seed: int) -> npt.NDArray[np.float32]:
    """A rough field, which its surroundings say little about."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    smooth = np.sin(x / 7 + seed) + np.cos(y / 9)
    return (smooth + rng.standard_normal(SHAPE)).astype(np.float32)


def elevation_of(seed: int) -> xr.DataArray:
    """Elevation in metres."""
    return xr.DataArray(500 + 300 * rough(seed), dims=("y", "x"), name="dem")


def temperature_of(elevation: xr.DataArray) -> xr.DataArray:
    """Temperature that falls with elevation."""
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    field = 15 - 0.0065 * elevation + np.sin(x / 15) + np.cos(y / 11)
    return field.astype(np.float32).rename("t")


def half_of(truth: xr.DataArray, seed: int) -> xr.DataArray:
    return truth.where(np.random.default_rng(seed).random(SHAPE) >= 0.5)


@pytest.fixture(scope="module")
def elevation() -> xr.DataArray:
    return elevation_of(1)


@pytest.fixture(scope="module")
def truth(elevation: xr.DataArray) -> xr.DataArray:
    return temperature_of(elevation)


@pytest.fixture(scope="module")
def gappy(truth: xr.DataArray) -> xr.DataArray:
    return half_of(truth, 2)


def crps(filled: xr.Dataset, truth: xr.DataArray, gappy: xr.DataArray) -> float:
    return score(truth.values, filled["t"].values, filled["t_standard_error"].values, np.isnan(gappy.values)).crps


@pytest.fixture(scope="module")
def accurate(gappy: xr.DataArray, elevation: xr.DataArray) -> xr.Dataset:
    return gappy.geonp.infill(covariates=elevation)


@pytest.fixture(scope="module")
def filled(gappy: xr.DataArray, elevation: xr.DataArray, drift_model: str) -> xr.Dataset:
    """By a small model, for whatever must be the same with any."""
    return gappy.geonp.infill(covariates=elevation, model=drift_model)


def same(a: xr.Dataset, b: xr.Dataset, within: float = 1e-3) -> None:
    """Check that two fills are the same but for rounding, in standard errors."""
    scale = float(a["t_standard_error"].max())
    for name in ("t", "t_standard_error"):
        np.testing.assert_allclose(b[name].values, a[name].values, rtol=0, atol=within * scale)


def test_covariate_explains_what_surroundings_do_not(
    accurate: xr.Dataset, truth: xr.DataArray, gappy: xr.DataArray
) -> None:
    assert crps(accurate, truth, gappy) < 0.5 * crps(gappy.geonp.infill(), truth, gappy)
    inside = np.abs(accurate["t"] - truth) <= 1.96 * accurate["t_standard_error"]
    assert 0.9 <= float(inside.values[np.isnan(gappy.values)].mean()) <= 1.0
    assert accurate.attrs["geonp_covariates"] == "dem"


def test_covariate_far_from_all_others_gives_a_large_error_there_alone(
    accurate: xr.Dataset, truth: xr.DataArray, gappy: xr.DataArray, elevation: xr.DataArray
) -> None:
    row, col = np.argwhere(np.isnan(gappy.values))[400]
    odd = gappy.geonp.infill(covariates=xr.where(truth == truth[row, col], 1e7, elevation).rename("dem"))
    there = odd.isel(y=row, x=col)
    assert there["t_standard_error"] > 10
    # the temperature of that elevation, not of the ground
    assert abs(there["t"] - (truth[row, col] - 0.0065 * (1e7 - elevation[row, col]))) < 3 * there["t_standard_error"]
    elsewhere = np.ones(SHAPE, bool)
    elsewhere[row, col] = False
    np.testing.assert_allclose(odd["t"].values[elsewhere], accurate["t"].values[elsewhere], atol=1e-3)


@pytest.mark.parametrize("gap", [False, True])
def test_likely_nodata_of_a_covariate_is_named_once(
    gappy: xr.DataArray, elevation: xr.DataArray, drift_model: str, gap: bool, recwarn: pytest.WarningsRecorder
) -> None:
    wrong = elevation.copy(data=elevation.values.copy()).rename("dem")
    wrong.values[3, 4:9] = -99999
    if gap:
        wrong.values[10:12, 10:12] = np.nan
    warnings.simplefilter("always")
    geonp.infill(gappy, covariates=wrong, model=drift_model)
    found = [str(one.message) for one in recwarn if "far from all other values" in str(one.message)]
    assert len(found) == 1
    assert found[0].startswith("dem: 5 observed cells hold -99999")
    assert found[0].endswith("for those of a covariate, declare it in its file.")


def test_irrelevant_covariate_is_harmless(truth: xr.DataArray, gappy: xr.DataArray) -> None:
    noise = xr.DataArray(np.random.default_rng(5).standard_normal(SHAPE), dims=("y", "x"), name="noise")
    assert crps(gappy.geonp.infill(covariates=noise), truth, gappy) < 1.03 * crps(gappy.geonp.infill(), truth, gappy)


def test_order_units_and_offsets_do_not_matter(gappy: xr.DataArray, elevation: xr.DataArray, drift_model: str) -> None:
    other = xr.DataArray(rough(3), dims=("y", "x"), name="other")
    one = gappy.geonp.infill(covariates=[elevation, other], model=drift_model)
    two = gappy.geonp.infill(covariates=[1e5 - 7 * other, (elevation * 3.28).rename("feet")], model=drift_model)
    same(one, two, 3e-3)  # float32 has few digits left beside 1e5


def test_variables_of_the_raster_are_covariates_by_name(
    gappy: xr.DataArray, elevation: xr.DataArray, filled: xr.Dataset, drift_model: str
) -> None:
    ds = xr.Dataset({"t": gappy, "dem": elevation})
    found = ds.geonp.infill(covariates="dem", model=drift_model)
    same(filled, found, 0.0)
    xr.testing.assert_identical(found["dem"], ds["dem"])
    assert "dem_standard_error" not in found
    same(filled, ds.geonp.infill(covariates=ds["dem"], model=drift_model), 0.0)


def test_fill_is_lazy_and_does_not_depend_on_chunks(
    gappy: xr.DataArray, elevation: xr.DataArray, filled: xr.Dataset, drift_model: str
) -> None:
    lazy = gappy.chunk(y=20, x=33).geonp.infill(covariates=elevation.chunk(y=31, x=17), model=drift_model)
    assert lazy["t"].chunks == ((20, 12), (33, 7))
    same(filled, lazy.compute())


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_store_holds_the_same(
    gappy: xr.DataArray, elevation: xr.DataArray, drift_model: str, tmp_path: Path, share: float
) -> None:
    options = {"covariates": elevation.where(np.random.default_rng(8).random(SHAPE) >= share), "model": drift_model}
    geonp.fill_store(gappy, tmp_path / "out.zarr", chunks=32, **options)
    same(gappy.geonp.infill(**options), xr.open_zarr(tmp_path / "out.zarr").compute())


def test_store_holds_a_lazy_covariate_of_the_raster_without_its_times(
    gappy: xr.DataArray, elevation: xr.DataArray, drift_model: str, tmp_path: Path
) -> None:
    ds = xr.Dataset({"t": gappy.expand_dims(time=[0.0, 1.0]), "dem": elevation}).chunk(y=20)
    options = {"covariates": "dem", "exceed": [12.0], "model": drift_model}
    geonp.fill_store(ds, tmp_path / "out.zarr", chunks=32, **options)
    found, expected = xr.open_zarr(tmp_path / "out.zarr").compute(), ds.geonp.infill(**options).compute()
    same(expected, found)
    xr.testing.assert_equal(found["dem"], expected["dem"])


def test_covariate_from_a_file_is_read_by_units(
    gappy: xr.DataArray,
    elevation: xr.DataArray,
    filled: xr.Dataset,
    drift_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    distributed = pytest.importorskip("distributed")
    # in this process, which starts no other that imports torch; what it computes is sent over a socket
    here = partial(distributed.LocalCluster, processes=False, protocol="tcp")
    monkeypatch.setattr(distributed, "LocalCluster", here)
    elevation.to_dataset().to_zarr(tmp_path / "dem.zarr")
    with geonp.open_raster(tmp_path / "dem.zarr") as dem:
        geonp.fill_store(gappy, tmp_path / "out.zarr", chunks=32, covariates=dem, workers=1, model=drift_model)
    same(filled, xr.open_zarr(tmp_path / "out.zarr").compute())


def test_job_with_another_covariate_is_not_resumed(
    gappy: xr.DataArray, elevation: xr.DataArray, drift_model: str, tmp_path: Path
) -> None:
    options = {"chunks": 32, "model": drift_model}

    class StoppedError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        geonp.fill_store(gappy, tmp_path / "out.zarr", covariates=elevation, progress=stop, **options)
    with pytest.raises(InputError, match="input"):
        geonp.fill_store(gappy, tmp_path / "out.zarr", covariates=elevation + 1, resume=True, **options)
    geonp.fill_store(gappy, tmp_path / "out.zarr", covariates=elevation, resume=True, **options)


@pytest.mark.parametrize("loaded", [False, True])
def test_job_with_another_date_of_the_same_files_is_not_resumed(
    gappy: xr.DataArray, elevation: xr.DataArray, drift_model: str, tmp_path: Path, loaded: bool
) -> None:
    """Of the raster or of a covariate: name, shape and attributes are the same, and so is the file."""
    dates, options = xr.Variable("time", [0, 1]), {"chunks": 32, "model": drift_model}
    xr.concat([gappy, gappy + 1], dates).to_netcdf(tmp_path / "t.nc")
    xr.concat([elevation, elevation + 1], dates).to_netcdf(tmp_path / "dem.nc")

    class StoppedError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StoppedError

    with xr.open_dataset(tmp_path / "t.nc") as t, xr.open_dataset(tmp_path / "dem.nc") as dem:
        if loaded:
            t, dem = t.load(), dem.load()
        first, second = ((t["t"].isel(time=n), dem["dem"].isel(time=n)) for n in (0, 1))
        with pytest.raises(StoppedError):
            geonp.fill_store(first[0], tmp_path / "out.zarr", covariates=first[1], progress=stop, **options)
        for raster, covariate in ((second[0], first[1]), (first[0], second[1])):
            with pytest.raises(InputError, match="input"):
                geonp.fill_store(raster, tmp_path / "out.zarr", covariates=covariate, resume=True, **options)
        geonp.fill_store(first[0], tmp_path / "out.zarr", covariates=first[1], resume=True, **options)


def test_plan_and_units_count_covariates(gappy: xr.DataArray, elevation: xr.DataArray) -> None:
    stack = gappy.expand_dims(time=3)
    alone, static, changing = (
        stack.geonp.plan(covariates=c).peak_bytes for c in (None, elevation, elevation.expand_dims(time=3))
    )
    assert alone < static <= changing


def test_gaps_of_covariates_are_filled(
    gappy: xr.DataArray, elevation: xr.DataArray, truth: xr.DataArray, accurate: xr.Dataset
) -> None:
    known = elevation.where(np.random.default_rng(4).random(SHAPE) < 0.7)
    found = gappy.geonp.infill(covariates=known)
    alone = gappy.geonp.infill()
    assert crps(accurate, truth, gappy) < crps(found, truth, gappy) < 0.85 * crps(alone, truth, gappy)
    # a target without a covariate is less certain
    missing = np.isnan(gappy.values)
    blind, seeing = missing & np.isnan(known.values), missing & np.isfinite(known.values)
    error = found["t_standard_error"].values
    assert error[blind].mean() > 1.5 * error[seeing].mean()


def test_classes_are_indicators(truth: xr.DataArray) -> None:
    classes = np.random.default_rng(6).integers(0, 3, SHAPE)
    effect = np.array([0.0, 3.0, -2.0])[classes]
    field = (truth + effect).astype(np.float32)
    hidden = np.random.default_rng(7).random(SHAPE) < 0.5
    cover = xr.DataArray(
        np.array([3, 1, 2], np.int16)[classes],
        dims=("y", "x"),
        name="cover",
        attrs={"flag_values": np.array([1, 2, 3], np.int16), "flag_meanings": "water grass wood"},
    )
    gappy = field.where(~hidden)
    alone, found = gappy.geonp.infill(), gappy.geonp.infill(covariates=cover)
    assert crps(found, field, gappy) < 0.75 * crps(alone, field, gappy)


def test_covariate_may_change_along_a_shared_dimension(
    gappy: xr.DataArray, elevation: xr.DataArray, filled: xr.Dataset, drift_model: str
) -> None:
    stack = xr.concat([gappy, gappy + 1], xr.Variable("time", [0, 1]))
    other = xr.DataArray(rough(9), dims=("y", "x"))
    changing = xr.concat([elevation, other], xr.Variable("time", [0, 1])).rename("dem")
    found = stack.geonp.infill(covariates=changing, model=drift_model)
    same(filled, found.isel(time=0), 0.0)
    same((gappy + 1).geonp.infill(covariates=other.rename("dem"), model=drift_model), found.isel(time=1), 0.0)
    lazy = stack.chunk(time=2, y=30).geonp.infill(covariates=changing.chunk(time=1), model=drift_model).compute()
    same(found, lazy)


def test_entries_of_other_dimensions_are_covariates(
    gappy: xr.DataArray, elevation: xr.DataArray, filled: xr.Dataset, drift_model: str
) -> None:
    single = elevation.expand_dims("band")
    same(filled, gappy.geonp.infill(covariates=single, model=drift_model), 0.0)
    double = xr.concat([elevation, -2 * elevation], "band").transpose("y", "x", "band")
    found = gappy.geonp.infill(covariates=double, model=drift_model)
    assert found.attrs["geonp_covariates"] == "dem_1 dem_2"


def test_harmless_in_wide_gaps_of_a_covariate() -> None:
    """On average over four fields."""
    ratios = []
    for seed in range(1, 5):
        elevation = elevation_of(seed)
        truth = temperature_of(elevation)
        hole = xr.zeros_like(truth, bool)
        hole[7:25, 11:29] = True
        wide, known = truth.where(~hole), elevation.where(~hole)
        holed = half_of(wide, seed + 1)
        alone, found = holed.geonp.infill(), holed.geonp.infill(covariates=known)
        ratios.append(crps(found, truth, wide) / crps(alone, truth, wide))
    assert np.mean(ratios) < 1.1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda dem: dem[:-1], "differ in shape.*covariate_resampling"),
        (lambda dem: dem.assign_coords(y=np.arange(32.0) + 7), "differ in the centre"),
        (lambda dem: dem.where(dem > 1e9), "no value anywhere"),
        (lambda dem: dem[:, 0], r"'dem' has no rows and columns: got dimensions \('y'\), expected 'y' and 'x'"),
        (lambda dem: dem.astype(str), "dtype.*expected numbers"),
        (lambda dem: "dem", "DataArray, a Dataset or the name.*'t'"),
        (lambda dem: dem.expand_dims(band=17), "too many covariates: got 17, expected at most 16"),
    ],
)
def test_covariates_that_cannot_be_used_are_refused(
    gappy: xr.DataArray, elevation: xr.DataArray, change: object, problem: str
) -> None:
    raster = gappy.assign_coords(y=np.arange(32.0), x=np.arange(40.0))
    with pytest.raises(InputError, match=problem):
        raster.geonp.infill(covariates=change(elevation))  # type: ignore[operator]


def test_variable_itself_is_no_covariate(gappy: xr.DataArray) -> None:
    with pytest.raises(InputError, match="'t' itself"):
        gappy.geonp.infill(covariates=gappy.copy(deep=True))


def test_covariate_without_values_is_named(
    gappy: xr.DataArray, elevation: xr.DataArray, filled: xr.Dataset, drift_model: str, tmp_path: Path
) -> None:
    both = [elevation, xr.full_like(elevation, np.nan).rename("empty")]
    with pytest.raises(InputError, match="The covariate 'empty' has no value anywhere"):
        gappy.geonp.infill(covariates=both)
    with pytest.raises(InputError, match="The covariate 'empty' has no value anywhere"):
        geonp.fill_store(gappy, tmp_path / "out.zarr", chunks=32, covariates=both)
    assert not (tmp_path / "out.zarr").exists()
    lazy = gappy.chunk(y=20).geonp.infill(covariates=[one.chunk(y=20) for one in both], model=drift_model)
    with pytest.warns(UserWarning, match="empty has no value anywhere"):
        found = lazy.compute()
    same(filled, found)


def test_constant_covariate_is_ignored_with_a_warning(
    gappy: xr.DataArray, elevation: xr.DataArray, drift_model: str
) -> None:
    with pytest.warns(UserWarning, match="constant"):
        found = gappy.geonp.infill(covariates=xr.full_like(elevation, 3.0), model=drift_model)
    with pytest.warns(UserWarning, match=r"constant \(1e\+09 to within a millionth\).*subtract its mean"):
        gappy.geonp.infill(covariates=elevation / 1e4 + 1e9, model=drift_model)
    same(gappy.geonp.infill(model=drift_model), found)


def test_other_labels_along_a_shared_dimension_are_refused(gappy: xr.DataArray, elevation: xr.DataArray) -> None:
    stack = xr.concat([gappy, gappy + 1], xr.Variable("time", [0, 1]))
    changing = xr.concat([elevation, elevation], xr.Variable("time", [1, 2]))
    with pytest.raises(InputError, match="differ along 'time': got 2 entries, 1 to 2, expected 2 entries, 0 to 1"):
        stack.geonp.infill(covariates=changing)
    times = pd.date_range("2020-01-01", periods=3)
    stack = xr.concat([gappy] * 3, xr.Variable("time", times))
    for labels, said in (
        (times[[0, 0, 2]], r"got Timestamp\('2020-01-01 .* as entry 1, expected Timestamp\('2020-01-02"),
        (xr.date_range("2020-01-01", periods=3, use_cftime=True), r"got cftime.* as entry 0, expected Timestamp"),
    ):
        with pytest.raises(InputError, match=f"differ along 'time': {said}"):
            stack.geonp.infill(covariates=xr.concat([elevation] * 3, xr.Variable("time", labels)))


def test_model_without_covariates_is_refused(gappy: xr.DataArray, elevation: xr.DataArray) -> None:
    with pytest.raises(InputError, match="te-pt-tnp was trained without covariates and known errors"):
        gappy.geonp.infill(covariates=elevation, model="te-pt-tnp")


def test_samples_are_drawn_from_the_process_with_covariates(gappy: xr.DataArray, elevation: xr.DataArray) -> None:
    """Their errors vary together as errors do, not as the field: neighbours in the gap share less with a covariate."""
    errors = []
    for covariates in (None, elevation):
        out = gappy.geonp.infill(covariates=covariates, samples=40)
        scores = ((out.t_sample - out.t) / out.t_standard_error).values[:, np.isnan(gappy.values)]
        assert (scores**2).mean() == pytest.approx(1, abs=0.25)
        errors.append((out.t_sample - out.t).values.std())
    assert errors[1] < 0.7 * errors[0]


def test_periodic_raster_sees_covariates_around_the_seam() -> None:
    lon, lat = np.arange(0, 360, 9.0), np.arange(-45, 46, 9.0)
    dem = np.random.default_rng(1).standard_normal((lat.size, lon.size))
    t = np.sin(np.deg2rad(lon)) + np.cos(np.deg2rad(lat))[:, None] + dem
    hidden = np.random.default_rng(2).random(t.shape) < 0.4
    coords = {"lat": lat, "lon": lon}
    raster = xr.DataArray(np.where(hidden, np.nan, t), coords, ("lat", "lon"), "t")
    covariate = xr.DataArray(dem, coords, ("lat", "lon"), "dem")
    whole = raster.geonp.infill(covariates=covariate)
    turned = (
        raster.roll(lon=11)
        .assign_coords(lon=lon)
        .geonp.infill(covariates=covariate.roll(lon=11).assign_coords(lon=lon))
    )
    back = turned.roll(lon=-11)
    np.testing.assert_allclose(back["t"].values, whole["t"].values, atol=0.35)
    missing = np.isnan(raster.values)
    assert np.abs(whole["t"].values - t)[missing].mean() < 0.5


def test_hidden_cells_of_simulated_clouds(truth: xr.DataArray, elevation: xr.DataArray) -> None:
    test = hide_simulated(truth.values, "clouds", 0.4, np.random.default_rng(0))
    gappy = truth.copy(data=test.values)
    alone, found = gappy.geonp.infill(), gappy.geonp.infill(covariates=elevation)
    assert crps(found, truth, gappy) < 0.5 * crps(alone, truth, gappy)


def test_the_crs_of_covariates_may_be_a_variable_beside_them(
    gappy: xr.DataArray, elevation: xr.DataArray, filled: xr.Dataset, drift_model: str
) -> None:
    """As xarray opens NetCDF: it was taken for a covariate."""
    utm = [xr.Variable((), 0, CRS.from_epsg(code).to_cf()) for code in (32632, 32633)]
    places = {"y": 5e6 - 10.0 * np.arange(32), "x": 5e5 + 10.0 * np.arange(40)}
    ds = gappy.assign_coords(places).assign_attrs(grid_mapping="utm").to_dataset().assign(utm=utm[0])
    beside = elevation.assign_coords(places).assign_attrs(grid_mapping="utm").to_dataset()
    same(filled, ds.geonp.infill(covariates=beside.assign(utm=utm[0]), model=drift_model))
    with pytest.raises(InputError, match="differ in CRS: got WGS 84 / UTM zone 33N"):
        ds.geonp.infill(covariates=beside.assign(utm=utm[1]), model=drift_model)


@pytest.mark.parametrize("lazy", [False, True])
def test_covariates_on_other_grids_are_resampled_if_asked(
    gappy: xr.DataArray, elevation: xr.DataArray, filled: xr.Dataset, drift_model: str, lazy: bool
) -> None:
    raster = gappy.assign_coords(y=np.arange(32.0), x=np.arange(40.0))
    wide = elevation.assign_coords(y=raster.y, x=raster.x).pad(y=3, x=2, mode="edge")
    wide = wide.assign_coords(y=np.arange(-3.0, 35), x=np.arange(-2.0, 42))
    options = {"covariate_resampling": "bilinear", "model": drift_model}
    found = raster.geonp.infill(covariates=wide.chunk(y=20) if lazy else wide, **options)
    same(filled, found)
    with pytest.raises(InputError, match="covariate_resampling needs covariates: got 'cubic' without any"):
        raster.geonp.infill(covariate_resampling="cubic")
    with pytest.raises(InputError, match=r"covariate_resampling must be one of nearest, bilinear.*got 'linear'"):
        raster.geonp.infill(covariates=wide, covariate_resampling="linear")
