"""Windows of reanalysis fields hold what the file holds, standardised by the training region."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import geonp  # noqa: F401
from geonp.adaptation.adapt import adapt
from geonp.errors import InputError, ModelError, RecipeError
from geonp.inference import checkpoint
from geonp.inference.context import Neighbourhood
from geonp.training.data.reanalysis import GRAVITY, Reanalysis, ReanalysisSettings
from geonp.training.loop import train
from geonp.training.recipe import Recipe, load
from geonp.training.sources import VALIDATION_SEED, draw

from ...commands import cli

SHARED = Path("/work/shared/data")
README = Path(__file__).parents[3] / "README.md"

THREE_STEPS = [
    *("model.config.dim=8", "model.config.heads=2", "model.config.n_pseudo=4", "training.batch_size=2"),
    *("training.steps=3", "training.validation_batches=1", "data.area=[]", "data.test_area=[]"),
    "data.stride=1",
]
"""Overrides of the recipe for a short run on all of a small file."""


def field(times: int = 60, longitude: float = -3.0) -> xr.Dataset:
    """Temperatures that tell where and when they are: hour + 1000 latitude + 100,000 longitude."""
    time = np.datetime64("2019-03-01", "ns") + np.arange(times) * np.timedelta64(1, "h")
    lat, lon = 50 - 0.25 * np.arange(20), longitude + 0.25 * np.arange(24)
    t2m = np.arange(times)[:, None, None] + 1e3 * lat[:, None] + 1e5 * lon
    z = GRAVITY * (lat[:, None] * lon)
    dims = ("time", "latitude", "longitude")
    return xr.Dataset({"t2m": (dims, t2m), "z": (dims[1:], z)}, {"time": time, "latitude": lat, "longitude": lon})


@pytest.fixture
def path(tmp_path: Path) -> str:
    field().to_netcdf(tmp_path / "field.nc")
    return str(tmp_path / "field.nc")


def undone(data: Reanalysis, x: torch.Tensor, y: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and temperatures in their own units."""
    scales = data.scales()
    n = x.shape[-1]
    return x.double().numpy() * scales.x[1, :n] + scales.x[0, :n], y.double().numpy() * scales.y[1] + scales.y[0]


def test_windows_hold_what_the_file_holds(path: str) -> None:
    data = Reanalysis(path=path)
    batch = data.batch(0, 0, 3)
    n_c, n_t = batch["xc"].shape[1], batch["xt"].shape[1]
    assert n_c + n_t == 5 * 15 * 15
    assert 0.01 * 1125 - 1 <= n_c <= 0.3 * 1125 + 1
    x, y = undone(data, torch.cat([batch["xc"], batch["xt"]], 1), torch.cat([batch["yc"], batch["yt"]], 1))
    hours = x[..., 0] - (np.datetime64("2019-03-01") - np.datetime64("2000-01-01")) / np.timedelta64(1, "h")
    assert y[..., 0] == pytest.approx(hours + 1e3 * x[..., 1] + 1e5 * x[..., 2], abs=3)
    assert x[..., 3] == pytest.approx(x[..., 1] * x[..., 2], abs=0.05)
    for task, places in zip(hours.round(), x, strict=True):
        assert (np.diff(np.unique(task)) == 6).all()
        assert len(np.unique(task)) == 5
        assert len(np.unique(places[:, 1].round(2))) == len(np.unique(places[:, 2].round(2))) == 15
    assert len({task.min() for task in hours}) > 1
    assert {tuple(np.unique(p[:, 1].round(2))) for p in x[1:]} == {tuple(np.unique(x[0][:, 1].round(2)))}


def test_standardisation_is_that_of_the_training_region(path: str) -> None:
    data = Reanalysis(path=path, area=(50.0, -3.0, 46.0, 0.8), period=("2019-03-01", "2019-03-02"))
    part = field().sel(latitude=slice(50, 46), longitude=slice(-3, 0.8), time=slice("2019-03-01", "2019-03-02"))
    scales = data.scales()
    assert scales.y == pytest.approx((float(part["t2m"].mean()), float(part["t2m"].std())), rel=1e-4)
    assert scales.x[:, 1] == pytest.approx([float(part["latitude"].mean()), float(part["latitude"].std())])
    assert scales.x[:, 3] == pytest.approx([float(f) / GRAVITY for f in (part["z"].mean(), part["z"].std())], rel=1e-4)
    held_out = replace(data, test_area=(50.0, -1.0, 45.0, 3.0), test_period=("2019-03-02", "2019-03-03")).held_out()
    assert held_out.scales().y == scales.y
    x, _ = undone(data, held_out.batch(0, 0, 2)["xt"], torch.zeros(1))
    assert x[..., 2].min() >= -1.01
    assert x[..., 0].min() % 24 >= 0
    assert x[..., 0].min() >= data.scales().x[0, 0]


def test_cells_without_data_are_left_out(tmp_path: Path) -> None:
    ds = field()
    sea = (ds["longitude"] > 0) & (ds["latitude"] > 48)
    ds.assign(t2m=ds["t2m"].where(~sea)).to_netcdf(tmp_path / "land.nc")
    data = Reanalysis(path=str(tmp_path / "land.nc"))
    counts = set()
    for i in range(6):
        batch = data.batch(0, i, 2)
        counts.add(batch["xc"].shape[1] + batch["xt"].shape[1])
        assert all(torch.isfinite(t).all() for t in batch.values())
        x, _ = undone(data, torch.cat([batch["xc"], batch["xt"]], 1), torch.zeros(1))
        assert not ((x[..., 2] > 0.01) & (x[..., 1] > 48.01)).any()
    assert min(counts) < 1125


def test_zarr_other_geopotential_and_longitudes_to_360(path: str, tmp_path: Path) -> None:
    ds = field()
    ds[["t2m"]].to_zarr(tmp_path / "t2m.zarr")
    world = ds[["z"]].rename(z="geopotential")
    world.assign_coords(longitude=world["longitude"] % 360).sortby("longitude").to_netcdf(tmp_path / "z.nc")
    one = Reanalysis(path=str(tmp_path / "t2m.zarr"), geopotential=str(tmp_path / "z.nc")).batch(0, 0, 2)
    expected = Reanalysis(path=path).batch(0, 0, 2)
    assert all(torch.allclose(one[key].float(), expected[key].float(), atol=1e-5) for key in one)


def test_a_stride_of_two_reads_every_second_row_and_column(tmp_path: Path) -> None:
    world = field(longitude=-9.0)
    wide = xr.concat([world.assign_coords(longitude=world["longitude"] + 6 * i) for i in range(2)], "longitude")
    tall = xr.concat([wide.assign_coords(latitude=wide["latitude"] - 5 * i) for i in range(2)], "latitude")
    tall["z"] = tall["z"].isel(time=0) if "time" in tall["z"].dims else tall["z"]
    tall.to_netcdf(tmp_path / "tall.nc")
    data = Reanalysis(path=str(tmp_path / "tall.nc"), area=(50.0, -8.75, 42.0, 2.0), stride=2)
    x, _ = undone(data, data.batch(0, 0, 1)["xt"], torch.zeros(1))
    for degrees, first in ((x[0, :, 1], 50.0), (x[0, :, 2], -8.75)):
        steps = (np.unique(degrees.round(3)) - first) / 0.5
        assert steps == pytest.approx(steps.round(), abs=1e-3)
    assert data.on_grid(Neighbourhood()).spacing == pytest.approx((-0.5, 0.5))


def test_elevation_can_be_left_out(path: str) -> None:
    batch, full = Reanalysis(path=path, elevation=False).batch(0, 0, 2), Reanalysis(path=path).batch(0, 0, 2)
    assert torch.equal(batch["xt"], full["xt"][..., :3])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], r"data\.path: no data at '': .*; make one with geonp fetch era5, and pass it as data\.path=PATH"),
        (["data.path={path}", "data.geopotential=none.nc"], r"data\.geopotential: no data at 'none.nc'"),
        (["data.path={path}", "data.area=[50,-3,49,3]"], r"data\.area: the train windows need \(25, 15, 15\) hours"),
        (["data.path={path}", 'data.test_period=["2019-03-02","2019-03-02"]'], r"data\.test_period: the test windows"),
        (["data.path={path}", "data.test_area=[50,-3,49,3]"], r"data\.test_area: the test windows need \(25, 15, 15\)"),
        (
            ["data.path={path}", "data.test_area=[[50,-3,40,3],[50,-3,49,3]]"],
            r"data\.test_area: the test windows need .* there are \(60, 5, 24\)",
        ),
        (
            ["data.path={path}", "data.window=[1,8,8]"],
            r"data\.min_valid: .* 64 ",
        ),
        (
            ["data.path={path}", 'data.period=["march","april"]'],
            r"data\.period: got \['march', 'april'\], expected its first",
        ),
        (["data.path={path}", 'data.test_period=["2019-03-01","2019-03-32"]'], r"data\.test_period: got .*03-32"),
        (["data.path={readme}"], r"data\.path: .*README\.md cannot be read: .*; expected a store or NetCDF file"),
        (["data.path={folder}"], r"data\.path: .* cannot be read: "),
        (["data.path={path}", "data.geopotential={readme}"], r"data\.geopotential: .*README\.md cannot be read"),
        (["data.area=[1,2,3]"], r"data\.area"),
        (["data.elevation=false"], r"model\.config\.d_x: got 4, but the data have 3"),
    ],
)
def test_wrong_data_are_named_before_anything_starts(
    overrides: list[str], message: str, path: str, tmp_path: Path
) -> None:
    given = [
        "data.area=[]",
        "data.test_area=[]",
        "data.stride=1",
        *(override.format(path=path, readme=README, folder=tmp_path) for override in overrides),
    ]
    with pytest.raises(RecipeError, match=message):
        train(load("era5", given), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def refused(ds: xr.Dataset, folder: Path, *overrides: str) -> str:
    """What `geonp train` says of such data before anything starts."""
    ds.to_zarr(folder / "field.zarr")
    given = [f"data.path={folder / 'field.zarr'}", "data.area=[]", "data.test_area=[]", "data.stride=1", *overrides]
    with pytest.raises(RecipeError) as error:
        train(load("era5", given), folder / "run")
    return str(error.value)


def test_an_unfinished_store_is_not_trained_on(tmp_path: Path) -> None:
    said = refused(field().assign_attrs(geonp_unfinished="geonp fetch era5"), tmp_path)
    assert "is an unfinished result of geonp fetch era5: run the same command again to finish it" in said
    assert said.startswith("data.path: ")


def test_hours_that_are_not_contiguous_are_refused_where_they_are_used(tmp_path: Path) -> None:
    ds = field(times=120)
    broken = ds.isel(time=[*range(60), *range(63, 120)])
    said = refused(broken, tmp_path)
    assert (
        "are not hourly: 2019-03-03T11:00 is followed by 2019-03-03T15:00; complete them, or choose data.period" in said
    )
    said = refused(broken, tmp_path / "test", 'data.period=["2019-03-01","2019-03-02"]')
    assert "choose data.test_period without the gap" in said
    whole = Reanalysis(path=str(tmp_path / "field.zarr"), period=("2019-03-01", "2019-03-02"))
    whole.batch(0, 0, 2)
    assert "not hourly" in refused(ds.isel(time=slice(None, None, 3)), tmp_path / "thirds")


def test_hours_in_any_order_are_put_in_order(path: str, tmp_path: Path) -> None:
    ds = field()
    ds.isel(time=np.random.default_rng(0).permutation(60)).to_netcdf(tmp_path / "mixed.nc")
    one, expected = (Reanalysis(path=p).batch(0, 0, 2) for p in (str(tmp_path / "mixed.nc"), path))
    assert all(torch.equal(one[key], expected[key]) for key in one)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.drop_vars("latitude"), "has no coordinate latitude along a dimension of that name"),
        (lambda ds: ds.rename(time="hour"), "has no dates along a dimension time"),
        (lambda ds: ds.assign_coords(time=np.arange(60)), "has no dates along a dimension time"),
    ],
)
def test_files_of_other_coordinates_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    assert message in refused(change(field()), tmp_path)


def test_windows_of_fewer_cells_than_must_be_valid_are_refused(path: str) -> None:
    said = r"data\.min_valid: no train window has 100 valid cells, at most 64 of its 64; .* a smaller data\.min_valid"
    with pytest.raises(RecipeError, match=said):
        Reanalysis(path=path, window=(1, 8, 8)).check()


def test_areas_of_the_sea_are_refused(tmp_path: Path) -> None:
    ds = field()
    sea = (ds["longitude"] > -2.9) | (ds["latitude"] < 49)
    said = refused(ds.assign(t2m=ds["t2m"].where(~sea)), tmp_path)
    assert "data.area: no train window has 100 valid cells, at most 25 of its 1125; choose another area" in said


def test_areas_across_the_antimeridian_are_refused(tmp_path: Path) -> None:
    field(longitude=178.0).to_netcdf(tmp_path / "t2m.nc")
    data = Reanalysis(path=str(tmp_path / "t2m.nc"))
    said = (
        r"data\.area: the longitudes of the train .* is followed by 178, .*; choose an area on one side of 180 degrees"
    )
    with pytest.raises(RecipeError, match=said):
        data.check()
    east = (50.0, -180.0, 40.0, -170.0)
    with pytest.raises(RecipeError, match=r"data\.test_area: the longitudes of the test windows"):
        replace(data, area=east, window=(5, 8, 8)).check()
    replace(data, area=east, test_area=east, window=(5, 8, 8)).check()


def test_latitudes_with_a_break_are_refused(tmp_path: Path) -> None:
    field().isel(latitude=[*range(8), *range(9, 20)]).to_netcdf(tmp_path / "t2m.nc")
    with pytest.raises(RecipeError, match=r"data\.area: the latitudes of the train .*without the gap"):
        Reanalysis(path=str(tmp_path / "t2m.nc")).check()


@pytest.mark.parametrize("window", ["[9,1,15]", "[9,15,1]"])
def test_windows_of_one_row_or_column_are_refused(window: str) -> None:
    with pytest.raises(RecipeError, match=r"data\.window\.[12]: Input should be greater than or equal to 2, got 1"):
        load("era5", [f"data.window={window}"])


def test_cells_that_are_never_valid_together_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geonp.training.data.reanalysis.SETTINGS", ReanalysisSettings(max_draws=20))
    ds = field()
    ds.assign(t2m=ds["t2m"].where(ds["time"].dt.hour % 2 == 0).where(ds["time"].dt.hour % 4 == 0)).to_netcdf(
        tmp_path / "rare.nc"
    )
    data = Reanalysis(path=str(tmp_path / "rare.nc"), step_h=1)
    data.check()
    with pytest.raises(RecipeError, match=r"data\.area: none of 20 train windows had 100 valid cells"):
        data.batch(0, 0, 2)


def test_held_out_batches_take_turns_among_areas(path: str) -> None:
    """Western and northern Europe in the recipe; one area alone is as good."""
    areas = ((50.0, -3.0, 46.0, 0.75), (50.0, -1.0, 45.0, 3.0))
    data = replace(load("era5").data, path=path, stride=1, area=(), test_area=areas, window=(5, 15, 15))
    alone = [replace(data, test_area=area).held_out() for area in areas]
    for i in range(4):
        got, expected = data.held_out().batch(0, i, 2), alone[i % 2].batch(0, i, 2)
        assert all(torch.equal(got[key], expected[key]) for key in got)
    assert all(torch.equal(value, data.batch(0, 1, 2)[key]) for key, value in alone[0].batch(0, 1, 2).items()) is False


def test_the_recipe_tests_western_and_northern_europe() -> None:
    data = load("era5").data
    assert isinstance(data, Reanalysis)
    assert data.areas == ((53.0, 8.0, 42.0, 28.0),)
    assert data.held_out().areas == ((53.0, -4.0, 42.0, 8.0), (62.0, 8.0, 53.0, 28.0))
    one = load("era5", ["data.test_area=[58,-4,50,2]"]).data
    assert isinstance(one, Reanalysis)
    assert one.held_out().areas == ((58.0, -4.0, 50.0, 2.0),)
    assert Reanalysis().held_out().areas == ((),)
    recipe = load("era5")
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def uk(*overrides: str) -> Recipe:
    """The west of the British Isles and the first half of the month to train, the east to test."""
    files = (SHARED / "era5_t2m_uk_2019-03_hourly.nc", SHARED / "era5_geopotential_global_0p25.nc")
    given = [f"data.path={files[0]}", f"data.geopotential={files[1]}"]
    areas = ["data.stride=1", "data.area=[58,-10,50,-4]", "data.test_area=[58,-4,50,2]"]
    return load("era5", [*given, *areas, 'data.period=["2019-03-01","2019-03-17"]', *overrides])


@pytest.mark.skipif(not SHARED.exists(), reason="the real data are not here")
def test_real_data() -> None:
    recipe = uk()
    batch = draw(recipe, 0, 0)
    assert batch["xc"].shape[-1] == 4
    assert abs(float(batch["yt"].mean())) < 2
    x, _ = undone(recipe.data, draw(recipe, VALIDATION_SEED, 0)["xt"], torch.zeros(1))
    assert x[..., 2].min() >= -4.01
    assert -50 < x[..., 3].min() < x[..., 3].max() < 1300


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Reanalysis]:
    """The checkpoint of three steps on smooth temperatures, and its data."""
    folder = tmp_path_factory.mktemp("trained")
    ds = field()
    ds["t2m"] = 0 * ds["t2m"] + 280 + np.sin(ds["latitude"]) + np.cos(ds["longitude"])
    ds.to_netcdf(folder / "field.nc")
    recipe = load("era5", [*THREE_STEPS, f"data.path={folder / 'field.nc'}"])
    return str(train(recipe, folder / "run", workers=0, progress=False)), recipe.data


def test_a_run_resumes_with_moved_data_but_not_with_others(trained: tuple[str, Reanalysis], tmp_path: Path) -> None:
    model, data = trained
    shutil.copytree(Path(model).parent, tmp_path / "run")
    ds = xr.open_dataset(data.path).load()
    ds.to_zarr(tmp_path / "moved.zarr")
    ds["t2m"][3, 4, 5] += 1
    ds.to_netcdf(tmp_path / "other.nc")
    longer = [*THREE_STEPS, "training.steps=4"]
    with pytest.raises(
        RecipeError, match=r"another recipe: the values at data\.path or data\.geopotential have changed"
    ):
        train(load("era5", [*longer, f"data.path={tmp_path / 'other.nc'}"]), tmp_path / "run", resume=True)
    moved = load("era5", [*longer, f"data.path={tmp_path / 'moved.zarr'}"])
    assert checkpoint.load_card(str(train(moved, tmp_path / "run", resume=True, workers=0))).training["steps"] == 4


@pytest.mark.usefixtures("float32")
def test_a_checkpoint_fills_rasters_in_the_units_of_its_training(trained: tuple[str, Reanalysis]) -> None:
    model, data = trained
    frame = xr.open_dataset(data.path)["t2m"][0].astype("f4").load()
    raster = frame.isel(latitude=slice(0, 8), longitude=slice(0, 8)).copy()
    gap = np.random.default_rng(0).random(raster.shape) < 0.4
    out = raster.where(~gap).geonp.infill(model=model)
    network, card = checkpoint.load_model(model)
    scales = data.scales()
    lat, lon = np.meshgrid(raster["latitude"], raster["longitude"], indexing="ij")
    x = np.stack([0 * lat, lat / scales.x[1, 1], lon / scales.x[1, 2], 0 * lat], -1)
    y = (raster.values - scales.y[0]) / scales.y[1]
    xc, yc, xt = (torch.tensor(a, dtype=torch.float32)[None] for a in (x[~gap], y[~gap][:, None], x[gap]))
    expected = network(xc, yc, xt)
    got = out["t2m"].values[gap], out["t2m_standard_error"].values[gap]
    assert got[0] == pytest.approx(expected.mean[0, :, 0].numpy() * scales.y[1] + scales.y[0], abs=1e-3)
    assert got[1] == pytest.approx(expected.stddev[0, :, 0].numpy() * scales.y[1], rel=1e-3)
    assert card.neighbourhood.standard == pytest.approx(scales.y)


def test_the_command_fills_with_it(trained: tuple[str, Reanalysis], tmp_path: Path) -> None:
    model, data = trained
    frame = xr.open_dataset(data.path)[["t2m"]].isel(time=slice(0, 2)).astype("f4").load()
    frame["t2m"][:, 5:9, 5:9] = np.nan
    frame.to_netcdf(tmp_path / "in.nc")
    cli("fill", tmp_path / "in.nc", tmp_path / "out.nc", "--model", model)
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert np.isfinite(out["t2m"]).all()
        assert int((out["t2m_fill_flag"] == 1).sum()) == 32


@pytest.fixture
def gappy(trained: tuple[str, Reanalysis]) -> xr.Dataset:
    """A frame of the data of training, 16 x 16 cells, with gaps."""
    frame = xr.open_dataset(trained[1].path)[["t2m"]].isel(time=0, latitude=slice(0, 16), longitude=slice(0, 16))
    frame = frame.astype("f4").load()
    return frame.where(np.random.default_rng(1).random(frame["t2m"].shape) > 0.4)


FLIPS = [{"latitude": slice(None, None, -1)}, {"longitude": slice(None, None, -1)}]


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("flip", [*FLIPS, FLIPS[0] | FLIPS[1]])
def test_the_order_of_rows_and_columns_does_not_matter(
    flip: dict[str, slice], trained: tuple[str, Reanalysis], gappy: xr.Dataset
) -> None:
    expected = gappy.geonp.infill(model=trained[0])
    got = gappy.isel(flip).geonp.infill(model=trained[0]).isel(flip)
    for name in ("t2m", "t2m_standard_error"):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5)
        assert np.array_equal(got["latitude"], expected["latitude"])
    mislabelled = gappy.assign_coords({dim: gappy[dim].values[::-1] for dim in flip})
    other = mislabelled.geonp.infill(model=trained[0])
    error = float(expected["t2m_standard_error"].max())
    assert float(np.abs(other["t2m"].values - expected["t2m"].values).max()) > 1e-4 * error


@pytest.mark.usefixtures("float32")
def test_cells_of_another_size_are_as_far_apart_as_they_are(trained: tuple[str, Reanalysis], gappy: xr.Dataset) -> None:
    """Every other cell of a raster is filled as from these cells alone, whatever its own spacing."""
    model, data = trained
    coarse = gappy.isel(latitude=slice(0, 16, 2), longitude=slice(0, 16, 2))
    alone = gappy.where(gappy["latitude"].isin(coarse["latitude"]) & gappy["longitude"].isin(coarse["longitude"]))
    expected = alone.geonp.infill(model=model).sel(latitude=coarse["latitude"], longitude=coarse["longitude"])
    got = coarse.geonp.infill(model=model)
    spacing = checkpoint.load_card(model).neighbourhood.spacing
    assert spacing == pytest.approx((-0.25, 0.25))
    np.testing.assert_allclose(got["t2m"], expected["t2m"], rtol=1e-5)
    np.testing.assert_allclose(got["t2m_standard_error"], expected["t2m_standard_error"], rtol=1e-4)
    assert data.scales().y == pytest.approx(checkpoint.load_card(model).neighbourhood.standard)


@pytest.mark.usefixtures("float32")
def test_rasters_without_coordinates_are_on_the_grid_of_training(
    trained: tuple[str, Reanalysis], gappy: xr.Dataset
) -> None:
    expected = gappy.geonp.infill(model=trained[0])
    got = gappy.drop_vars(["latitude", "longitude"]).geonp.infill(model=trained[0])
    assert np.array_equal(got["t2m"].values, expected["t2m"].values)


def saved(file: Path, recipe: str, *overrides: str) -> str:
    """An untrained checkpoint of a recipe."""
    from geonp.nn.models import build

    made = load(recipe, overrides)
    checkpoint.save(
        build(made.model.architecture, made.model.config),
        file,
        name=made.name,
        version="1",
        description="",
        architecture=made.model.architecture,
        config=made.model.config,
        neighbourhood=made.neighbourhood,
        training={"data": made.model_dump(mode="json")["data"]},
        scores={},
    )
    return str(file)


AXES = "neighbourhood.axes=[[0,0],[-0.1,0],[0,0.1],[0,0]]"
CONFIG = "model.config={d_x=4}"


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        (
            "gp1d_rbf",
            [],
            r"gp1d_rbf cannot fill rasters: it has 1 coordinates as inputs, .* choose another, for example tnpkr-sa",
        ),
        ("gp2d_rbf", [], r"gp2d_rbf cannot fill rasters: it was trained on data of kind gp, .*neighbourhood\.axes"),
        ("images_digits", [], r"trained on data of kind digits"),
        ("era5", [], r"era5 cannot fill rasters: it has 4 coordinates as inputs"),
        ("era5", ["model.architecture=cnp", CONFIG, AXES], r"architecture, cnp, depends on absolute coordinates"),
        ("era5", ["model.architecture=tnp-kr", CONFIG, AXES], r"architecture, tnp-kr, depends on"),
        ("era5", ["model.architecture=pt-tnp", CONFIG, AXES], r"architecture, pt-tnp, depends on"),
    ],
)
def test_models_that_cannot_fill_say_so(
    recipe: str, overrides: list[str], message: str, gappy: xr.Dataset, tmp_path: Path
) -> None:
    model = saved(tmp_path / "model.safetensors", recipe, *overrides)
    with pytest.raises(ModelError, match=message):
        gappy.geonp.infill(model=model)
    with pytest.raises(ModelError, match=message):
        adapt(gappy, out=tmp_path / "adapted.safetensors", model=model)


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("gp2d_rbf", ["neighbourhood.axes=[[0.1,0],[0,0.1]]"]),
        ("era5", ["model.architecture=rcnp", CONFIG, AXES]),
        ("era5", ["model.architecture=tnp-kr", "model.config={d_x=4,embed_x=false}", AXES]),
    ],
)
def test_models_whose_inputs_are_known_fill(
    recipe: str, overrides: list[str], gappy: xr.Dataset, tmp_path: Path
) -> None:
    out = gappy.geonp.infill(model=saved(tmp_path / "model.safetensors", recipe, *overrides))
    assert np.isfinite(out["t2m"]).all()


def test_a_checkpoint_of_era5_cannot_be_adapted(
    trained: tuple[str, Reanalysis], gappy: xr.Dataset, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"era5 cannot be adapted: .*, for example tnpkr-sa"):
        adapt(gappy, out=tmp_path / "adapted.safetensors", model=trained[0])
