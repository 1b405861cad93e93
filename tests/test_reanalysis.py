"""Windows of reanalysis fields hold what the file holds, standardised by the training region."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from click.testing import CliRunner

import geonp  # noqa: F401
from geonp import checkpoint
from geonp.cli.app import main
from geonp.errors import RecipeError
from geonp.training.loop import train
from geonp.training.reanalysis import GRAVITY, Reanalysis
from geonp.training.recipe import Recipe, load
from geonp.training.sources import VALIDATION_SEED, draw

SHARED = Path("/work/shared/data")


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


def test_elevation_can_be_left_out(path: str) -> None:
    batch, full = Reanalysis(path=path, elevation=False).batch(0, 0, 2), Reanalysis(path=path).batch(0, 0, 2)
    assert torch.equal(batch["xt"], full["xt"][..., :3])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], r"data\.path: no data at '': .*; make one with geonp fetch era5, and give it as data\.path=PATH"),
        (["data.path={path}", "data.geopotential=none.nc"], r"data\.geopotential: no data at 'none.nc'"),
        (["data.path={path}", "data.area=[50,-3,49,3]"], r"data\.area: the train windows need \(25, 15, 15\) hours"),
        (["data.path={path}", 'data.test_period=["2019-03-02","2019-03-02"]'], r"data\.period: the test windows need"),
        (["data.area=[1,2,3]"], r"data\.area"),
        (["data.elevation=false"], r"model\.config\.d_x: got 4, but the data have 3"),
    ],
)
def test_wrong_data_are_named_before_anything_starts(
    overrides: list[str], message: str, path: str, tmp_path: Path
) -> None:
    given = ["data.area=[]", "data.test_area=[]", *(override.format(path=path) for override in overrides)]
    with pytest.raises(RecipeError, match=message):
        train(load("era5", given), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def uk(*overrides: str) -> Recipe:
    """The west of the British Isles and the first half of the month to train, the east to test."""
    files = (SHARED / "era5_t2m_uk_2019-03_hourly.nc", SHARED / "era5_geopotential_global_0p25.nc")
    given = [f"data.path={files[0]}", f"data.geopotential={files[1]}"]
    areas = ["data.area=[58,-10,50,-4]", "data.test_area=[58,-4,50,2]"]
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
    small = ["model.config.dim=8", "model.config.heads=2", "model.config.n_pseudo=4", "training.batch_size=2"]
    run = ["training.steps=3", "training.validation_batches=1", f"data.path={folder / 'field.nc'}"]
    recipe = load("era5", [*small, *run, "data.area=[]", "data.test_area=[]"])
    return str(train(recipe, folder / "run", workers=0, progress=False)), recipe.data


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
    done = CliRunner().invoke(main, ["fill", str(tmp_path / "in.nc"), str(tmp_path / "out.nc"), "--model", model])
    assert done.exit_code == 0, done.output
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert np.isfinite(out["t2m"]).all()
        assert int((out["t2m_fill_flag"] == 1).sum()) == 32
