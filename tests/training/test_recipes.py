"""Every shipped recipe runs, resumes at the exact step, and publishes a checkpoint that predicts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import geonp  # noqa: F401
from geonp.errors import InputError, MissingExtraError, RecipeError
from geonp.inference import checkpoint
from geonp.nn.models import build
from geonp.training import loop, objective
from geonp.training.loop import train
from geonp.training.optimisers import learning_rate
from geonp.training.recipe import Recipe, Training, load
from geonp.training.sources import draw

from .test_loop import PowerCutError, curve

TINY_KR = {"dim": 16, "heads": 2, "blocks": 1, "qk_dim": 16, "v_dim": 16, "v_hidden": 0, "ff_dim": 16}
TINY_RUN = ["training.steps=3", "training.batch_size=2", "training.validation_batches=1", "training.validate_every=2"]

SHIPPED = {
    "gp1d_rbf": [f"model.config.{key}={value}" for key, value in TINY_KR.items()],
    "gp1d_periodic": [f"model.config.{key}={value}" for key, value in TINY_KR.items()],
    "gp1d_matern32": [f"model.config.{key}={value}" for key, value in TINY_KR.items()],
    "gp2d_rbf": [f"model.config.{key}={value}" for key, value in TINY_KR.items()],
    "sir": [*(f"model.config.{key}={value}" for key, value in TINY_KR.items()), "data.side=16", "data.n_targets=200"],
    "era5": [
        "model.config.dim=8",
        "model.config.heads=2",
        "model.config.n_pseudo=4",
        "model.config.blocks=1",
        "data.area=[]",
        "data.test_area=[]",
        "data.stride=1",
    ],
    "kolmogorov": [
        *("model.config.dim=8", "model.config.heads=2", "model.config.n_pseudo=4", "model.config.blocks=1"),
        *("data.window=4", "data.n_context=[1,20]", "data.n_trajectories=1", "data.n_held_out=1"),
        *("data.flow.side=16", "data.flow.step=0.2"),
    ],
    "images_digits": [f"model.config.{key}={value}" for key, value in TINY_KR.items()],
    "images_photographs": [f"model.config.{key}={value}" for key, value in TINY_KR.items()],
    "images_translated": [
        *("model.config.dim=8", "model.config.heads=2", "model.config.n_pseudo=4", "model.config.blocks=1"),
        *("data.n_targets=50", "data.fraction=[0.01,0.02]"),
    ],
    "gp1d_shift": ["model.config.dim=16", "model.config.heads=2", "model.config.blocks=1"],
}
"""Overrides with which a run of each recipe takes about a second."""

TINY_RASTER = {
    "tnpkr_sa_raster": ["dim=16", "heads=2", "blocks=1", "qk_dim=16", "v_dim=16", "ff_dim=16", "n_refine=8"],
    "tnpkr_sa_paper": ["dim=16", "heads=2", "blocks=1", "qk_dim=16", "v_dim=16", "v_hidden=0", "ff_dim=16"],
    "tnpkr_sa_second": ["dim=16", "heads=2", "blocks=1", "qk_dim=16", "v_dim=16", "ff_dim=16", "n_refine=8"],
    "te_pt_tnp_raster": ["dim=16", "heads=2", "blocks=1", "n_pseudo=4", "pair_dim=4"],
}
"""Options of models with which a run of the raster recipes takes seconds."""


def tiny(name: str, *overrides: str) -> Recipe:
    return load(name, [*TINY_RUN, *SHIPPED[name], *overrides])


def reanalysis(file: str) -> None:
    """Write a small file like those of `geonp fetch era5`."""
    rng = np.random.default_rng(0)
    coords = {
        "time": np.datetime64("2019-03-01", "ns") + np.arange(30) * np.timedelta64(1, "h"),
        "latitude": 50 - 0.25 * np.arange(16),
        "longitude": 0.25 * np.arange(16),
    }
    t2m = (("time", "latitude", "longitude"), 280 + rng.normal(size=(30, 16, 16)))
    z = (("latitude", "longitude"), 1000 * rng.random((16, 16)))
    xr.Dataset({"t2m": t2m, "z": z}, coords).to_netcdf(file)


def run_with_power_cuts(recipe: Recipe, out: Path, device: str = "cpu") -> Path:
    """Train with an interruption after every step; return the checkpoint."""

    def cut(step: int, options: Training) -> float:
        if step > cuts:
            raise PowerCutError
        return learning_rate(step, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "learning_rate", cut)
        for cuts in range(recipe.training.steps - 1):
            torch.rand(cuts + 1)  # another process would have other random numbers
            with pytest.raises(PowerCutError):
                train(recipe, out, resume=cuts > 0, workers=0, progress=False, device=device)
        cuts += 1
        return train(recipe, out, resume=True, workers=0, progress=False, device=device)


RANDOM = {
    "gp1d_periodic": ["model.architecture=np", "model.config.latent=[16,16]"],  # each step draws a latent variable
    "gp1d_matern32": ["model.architecture=bnp"],  # each step draws bootstraps
}
"""Other models for recipes, whose steps draw random numbers."""

RUNS = [*SHIPPED.items(), *RANDOM.items()]


@pytest.mark.parametrize(("name", "options"), RUNS, ids=[*SHIPPED, *(f"{name}, random" for name in RANDOM)])
def test_three_steps_of_each_recipe_resume_as_if_unbroken(
    name: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["data.path=field.nc"] if name == "era5" else []
    if files:
        monkeypatch.chdir(tmp_path)
        reanalysis("field.nc")
    recipe = load(name, [*TINY_RUN, *options, "training.save_every_s=1e-9", *files])
    broken = run_with_power_cuts(recipe, tmp_path / "broken")
    straight = train(recipe, tmp_path / "straight", workers=0, progress=False, device="cpu")

    rows = curve(straight.parent)
    assert [row["step"] for row in rows] == ["2", "3"]
    assert curve(broken.parent) == rows
    (one, card), (other, twin) = (checkpoint.load_model(str(file)) for file in (straight, broken))
    assert card.scores == twin.scores
    resumed = other.state_dict()
    assert all(torch.equal(value, resumed[key]) for key, value in one.state_dict().items())
    assert math.isfinite(card.scores["nll"])
    assert card.training["data"]["kind"] == recipe.data.kind
    assert (straight.parent / "curve.png").read_bytes().startswith(b"\x89PNG")
    batch = draw(recipe, 1, 0)
    with torch.no_grad():
        predicted = one(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
    assert torch.isfinite(predicted.log_prob(batch["yt"])).all()


@pytest.mark.parametrize("name", SHIPPED)
def test_recipes_run_in_bfloat16(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["data.path=field.nc"] if name == "era5" else []
    if files:
        monkeypatch.chdir(tmp_path)
        reanalysis("field.nc")
    short = ["training.steps=2", "training.precision=bf16"]
    card = checkpoint.load_card(str(train(tiny(name, *files, *short), tmp_path, workers=0, progress=False)))
    assert math.isfinite(card.scores["nll"])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", TINY_RASTER)
def test_the_raster_recipes_run(name: str, precision: str, tmp_path: Path) -> None:
    small = [f"model.config.{option}" for option in TINY_RASTER[name]]
    run = [*TINY_RUN, "prior.p_gaussian=1.0", f"training.precision={precision}", "training.start=", *small]
    file = train(load(name, run), tmp_path, workers=0, progress=False)
    assert set(checkpoint.load_card(str(file)).scores) == set(loop.SCORES["raster"])

    rng = np.random.default_rng(0)
    truth = np.cumsum(rng.normal(size=(32, 32)), 0)
    raster = xr.DataArray(np.where(rng.random((32, 32)) < 0.2, np.nan, truth), dims=("y", "x"), name="v")
    out = raster.geonp.infill(model=file)
    missing = np.isnan(raster)
    assert np.isfinite(out["v"]).all()
    assert bool((out["v_standard_error"] > 0).where(missing, True).all())
    xr.testing.assert_equal(out["v"].where(~missing), raster)


def test_the_checkpoint_of_the_sir_recipe_fills_states(tmp_path: Path) -> None:
    recipe = tiny("sir")
    file = train(recipe, tmp_path, workers=0, progress=False)
    batch = draw(recipe, 0, 5)
    place = ((batch["xt"][0] + 2) * 15 / 4).round().long()
    state = np.full((16, 16), 255, np.uint8)
    state[place[:60, 0], place[:60, 1]] = batch["yt"][0, :60]
    attrs = {"flag_values": np.arange(3, dtype=np.uint8), "flag_meanings": "infected recovered susceptible"}
    raster = xr.DataArray(state, {"y": -np.arange(16.0), "x": np.arange(16.0)}, ("y", "x"), "state", attrs)
    out = raster.geonp.infill(model=str(file), nodata=255)
    assert (out["state"] < 3).all()
    assert int((out["state_fill_flag"] == 1).sum()) == 16 * 16 - 60
    np.testing.assert_allclose(out["state_probability"].sum("category"), 1, rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_gpu_trains_and_resumes_as_if_unbroken(precision: str, tmp_path: Path) -> None:
    recipe = tiny("gp1d_rbf", "training.save_every_s=1e-9", f"training.precision={precision}")
    broken = run_with_power_cuts(recipe, tmp_path / "broken", "cuda")
    straight = train(recipe, tmp_path / "straight", device="cuda", workers=0, progress=False)
    # sums on a GPU are in no fixed order
    tolerance = {"rtol": 0, "atol": 1e-4 if precision == "float32" else 1e-2}
    losses = ([float(row["loss"]) for row in curve(file.parent)] for file in (straight, broken))
    np.testing.assert_allclose(*losses, **tolerance)
    (one, card), (other, twin) = (checkpoint.load_model(str(file)) for file in (straight, broken))
    assert math.isfinite(card.scores["nll"])
    assert twin.scores["nll"] == pytest.approx(card.scores["nll"], abs=tolerance["atol"])
    torch.manual_seed(recipe.training.seed)
    start = build(recipe.model.architecture, recipe.model.config).state_dict()
    for key, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[key], **tolerance)
    assert any(not torch.equal(value, start[key]) for key, value in one.state_dict().items())


def test_all_recipes_are_run() -> None:
    shipped = {path.stem for path in (Path(__file__).parents[2] / "recipes").glob("*.toml")}
    assert shipped == {*SHIPPED, *TINY_RASTER, "era5_british_isles", "tnpkr_sa_small_gaps"}
    # the same but for its regions and days
    europe, isles = load("era5"), load("era5_british_isles")
    assert (europe.model, europe.training) == (isles.model, isles.training)


# --- overrides that concern the data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.noise=-1", r"data\.noise: Input should be greater than 0"),
        ("data.nois=1", r"data\.nois: Unexpected keyword argument"),
        ("data.kernel=linear", r"data\.kernel: Input should be 'rbf', 'matern12'"),
        ("data.kind=gq", r"data: Input tag 'gq' found using 'kind' does not match any of the expected tags: 'raster'"),
        ("prior.noise=[0.1,0.2]", "prior: only for data.kind raster or small_gaps, got gp"),
        ("training.optimiser=sgd", r"training\.optimiser: Input should be 'adamw' or 'yogi'"),
        ("model.config.d_x=2", r"model\.config\.d_x: got 2, but the data have 1"),
    ],
)
def test_a_wrong_key_of_the_data_is_named(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load("gp1d_rbf", [override])


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("gp1d_rbf", "data.n_context=[40,3]", r"data\.n_context: got \[40, 3\], expected the minimum first"),
        ("gp1d_rbf", "data.n_context=[3,200]", r"data\.n_context: got \[3, 200\], expected at most data\.n_random=50"),
        ("gp1d_rbf", "data.period=[2,1]", r"data\.period: got \[2\.0, 1\.0\], expected the minimum first"),
        ("gp1d_rbf", 'data.noise="0.1"', r"data\.noise: Input should be a valid number, got '0\.1'"),
        ("gp1d_shift", "data.length=[4,1]", r"data\.length: got \[4\.0, 1\.0\], expected the minimum first"),
        ("gp1d_shift", "data.n_context=[9,1]", r"data\.n_context: got \[9, 1\]"),
        ("gp1d_shift", "data.target_range=[3,-3]", r"data\.target_range: got \[3\.0, -3\.0\]"),
        ("sir", "data.n_context=[600,500]", r"data\.n_context: got \[600, 500\], expected the minimum first"),
        ("sir", "data.side=8", r"data\.n_context: got \[128, 511\], but there are 64 cells to choose from"),
        ("images_digits", "data.n_context=[65,66]", r"data\.n_context: got \[65, 66\], but there are 64 cells"),
        ("images_digits", "data.n_targets=true", r"data\.n_targets: Input should be a valid integer"),
        ("era5", "data.fraction=[0.9,1.5]", r"data\.fraction\.1: Input should be less than 1, got 1\.5"),
        ("era5", "data.fraction=[-0.1,0.5]", r"data\.fraction\.0: Input should be greater .* 0, got -0\.1"),
        ("era5", "data.min_valid=2000", r"data\.min_valid: got 2000, but a window has 1125 cells"),
    ],
)
def test_impossible_values_of_the_data_are_named(name: str, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(name, [override])


def test_runs_of_other_data_are_not_resumed(tmp_path: Path) -> None:
    train(tiny("gp2d_rbf"), tmp_path, workers=0, progress=False)
    with pytest.raises(RecipeError, match=r"data\.noise was 0\.1, now is 0\.2; restore what differs"):
        train(tiny("gp2d_rbf", "data.noise=0.2"), tmp_path, resume=True, workers=0, progress=False)


# --- the published weights --------------------------------------------------------------------------------------------


def test_the_best_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[dict[str, Any]] = []

    def fake(network: torch.nn.Module, _: object) -> dict[str, float]:
        kept.append({key: value.cpu().clone() for key, value in network.state_dict().items()})
        return {"nll": [2.0, 1.0, 3.0][len(kept) - 1], "rmse": 0.0, "coverage_95": 0.0}

    monkeypatch.setattr(loop, "sampled_scores", fake)
    recipe = tiny("gp2d_rbf", "training.validate_every=1")
    network, card = checkpoint.load_model(str(train(recipe, tmp_path / "best", workers=0, progress=False)))
    assert card.scores["nll"] == 1.0
    assert all(torch.equal(value, kept[1][key]) for key, value in network.state_dict().items())
    kept.clear()
    last = tiny("gp2d_rbf", "training.validate_every=1", "training.keep=last")
    network, card = checkpoint.load_model(str(train(last, tmp_path / "last", workers=0, progress=False)))
    assert card.scores["nll"] == 3.0
    assert all(torch.equal(value, kept[2][key]) for key, value in network.state_dict().items())


def test_scores_of_sampled_values() -> None:
    class Fixed(torch.nn.Linear):
        def forward(self, *_: torch.Tensor) -> torch.distributions.Normal:
            return torch.distributions.Normal(torch.tensor([[[0.0], [0.0]]]), torch.tensor([[[1.0], [2.0]]]))

    batch = {key: torch.zeros(1) for key in ("xc", "yc", "xt", "context_mask")}
    batch["yt"] = torch.tensor([[[3.0], [-1.0]]])
    expected = (math.log(2 * math.pi) + 9 / 2 + math.log(2) + 1 / 8) / 2
    assert objective.sampled_scores(Fixed(1, 1), [batch, batch]) == pytest.approx(
        {"nll": expected, "rmse": math.sqrt(5), "coverage_95": 0.5}, abs=1e-5
    )


# --- devices ----------------------------------------------------------------------------------------------------------


def test_devices_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot train on 999 devices of kind 'cpu': this machine has"):
        train(tiny("gp2d_rbf"), tmp_path, device="cpu", devices=999)
    with pytest.raises(InputError, match="of kind 'abacus': this machine has 0; choose cpu or cuda"):
        train(tiny("gp2d_rbf"), tmp_path, device="abacus")


def test_without_its_extra_training_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lightning_fabric", None)
    with pytest.raises(MissingExtraError, match=r"geonp\[train\]"):
        train(tiny("gp2d_rbf"), tmp_path)


def test_two_processes_train_as_one_on_both_batches(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of the gradients of equal batches is the gradient of their union."""
    recipe = tiny("gp2d_rbf", "training.keep=last")
    file = train(recipe, tmp_path / "two", workers=0, progress=False, device="cpu", devices=2)
    assert capfd.readouterr() == ("", "")

    def union(recipe: Recipe, seed: int, index: int) -> dict[str, torch.Tensor]:
        batches = [draw(recipe, seed, 2 * index + rank) for rank in range(2)]
        return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}

    monkeypatch.setattr(loop, "draw", union)
    other = train(recipe, tmp_path / "one", workers=0, progress=False, device="cpu")
    together, alone = (checkpoint.load_model(str(path))[0].state_dict() for path in (file, other))
    assert all(torch.allclose(together[key], alone[key], atol=1e-5) for key in alone)
    assert [row["step"] for row in curve(tmp_path / "two")] == ["2", "3"]
