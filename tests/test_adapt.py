"""Adapting a model to a raster: what it may see, what it returns and what it refuses."""

from __future__ import annotations

import itertools
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
import torch
import xarray as xr
from click.testing import CliRunner
from scipy import ndimage

import geonp
from geonp import checkpoint, gaps
from geonp.cli.app import main
from geonp.errors import InputError, OutputError
from geonp.nn.models import build
from geonp.points import Neighbourhood
from geonp.training import adapt as adapting
from geonp.training import crops
from geonp.training.adapt import adapt
from geonp.training.crops import Crop, CropTask, Hiding, draw_task, held_out_tasks, hiding_for, read_crops
from geonp.training.verdict import clearly_less

HOOD = Neighbourhood(tile_px=8, halos_px=(8, 16), n_context=32, min_context=4)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Keep these small networks in one thread, which is faster, and give back what was set."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with standard errors 2.7 times as wide: something that a raster can teach it in a few steps."""
    network, card = checkpoint.load_model(model)
    network = deepcopy(network)
    network.head.correction[-1].bias.data[1] += 1.0  # type: ignore[union-attr, index, operator]
    file = tmp_path_factory.mktemp("wide") / "tiny.safetensors"
    known = {key: value for key, value in card.model_dump().items() if key not in {"parameters", "sha256", "format"}}
    checkpoint.save(network, file, **known)
    return str(file)


@pytest.fixture(autouse=True)
def bold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the tests are random: let them learn fast."""
    monkeypatch.setattr(adapting, "LEARNING_RATE", 2e-2)


def smooth(shape: tuple[int, int] = (48, 56), seed: int = 0) -> np.ndarray:
    """A field with two clouds in it."""
    rng = np.random.default_rng(seed)
    field = ndimage.gaussian_filter(rng.standard_normal(shape), 3.0)
    field = (280 + 5 * field / field.std()).astype(np.float32)
    field[10:18, 12:24] = field[30:36, 30:40] = np.nan
    return field


def raster(**kwargs: Any) -> xr.DataArray:
    return xr.DataArray(smooth(**kwargs), dims=("y", "x"), name="t2m", attrs={"units": "K"})


def crps_of_hidden(field: xr.DataArray, model: Any) -> float:
    """CRPS of a fill of further cells that the adaptation saw: for a comparison of two models only."""
    from scipy.stats import norm

    hidden = np.zeros(field.shape, bool)
    hidden[22:30, 8:20] = True
    out = geonp.infill(field.where(~hidden), model=model)
    truth, mean, error = (a.values[hidden] for a in (field, out["t2m"], out["t2m_standard_error"]))
    z = (truth - mean) / error
    return float(np.mean(error * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - np.pi**-0.5)))


def test_a_model_that_does_not_fit_the_raster_gets_better(model: str, tmp_path: Path) -> None:
    found = adapt(raster(), out=tmp_path / "my.safetensors", model=model, steps=40)
    assert found.improved
    assert 0 < found.steps <= 40
    assert found.after < 0.95 * found.before
    assert crps_of_hidden(raster(), found) < crps_of_hidden(raster(), model)


def test_the_checkpoint_is_one_like_any_other(model: str, tmp_path: Path) -> None:
    file = tmp_path / "my.safetensors"
    found = raster().geonp.adapt(out=file, model=model, steps=20, seed=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.json", "my.safetensors"]
    base, card = checkpoint.load_card(model), checkpoint.load_card(str(file))
    assert (card.name, card.neighbourhood, card.config) == ("my", base.neighbourhood, base.config)
    training = card.training
    assert (training["base"], training["base_sha256"]) == (base.name, base.sha256)
    assert (training["raster"], training["seed"], training["steps"]) == ("t2m", 3, found.steps)
    assert 0 < training["minutes"] < 10
    assert card.scores == {"crps_before": found.before, "crps_after": found.after}
    filled = raster().geonp.infill(model=found)
    assert filled.attrs["geonp_weights_sha256"] == card.sha256
    assert filled["t2m"].notnull().all()


def test_on_a_raster_unlike_its_training_the_head_climbs(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is learned here: what gets better does so by the scoring steps, which the checkpoint asks for."""
    monkeypatch.setattr(adapting, "LEARNING_RATE", 0.0)
    monkeypatch.setattr(adapting, "SCORING_STEPS", 5)
    wide = raster(shape=(256, 256))
    network, card = checkpoint.load_model(model)
    plain_head, file = deepcopy(network), str(tmp_path / "plain.safetensors")
    for weights in plain_head.head.correction[-1].parameters():  # type: ignore[union-attr, index]
        weights.data.zero_()
    # it takes this field for one of far longer correlations
    plain_head.head.covariance[-1].bias.data[:-2].view(2, -1)[:, :2] += 2.0  # type: ignore[union-attr, index, operator]
    known = {key: value for key, value in card.model_dump().items() if key not in {"parameters", "sha256", "format"}}
    checkpoint.save(plain_head, Path(file), **known)
    found = adapt(wide, out=tmp_path / "climbs.safetensors", model=file, steps=2)
    assert found.improved
    assert found.steps == 0
    network, card = checkpoint.load_model(str(found.file))
    assert card.config["scoring_steps"] == adapting.SCORING_STEPS
    assert all(torch.equal(network.state_dict()[name], value) for name, value in plain_head.state_dict().items())
    # the same weights, but another model
    assert card.sha256 != checkpoint.load_card(file).sha256
    plain, climbed = (geonp.infill(wide, model=which) for which in (file, found))
    assert not np.array_equal(plain["t2m"], climbed["t2m"])


def test_further_scoring_steps_are_as_the_last_of_the_model(
    card_fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "LEARNING_RATE", 0.0)
    monkeypatch.setattr(adapting, "SCORING_STEPS", 3)
    # whatever is judged is said to be better
    monkeypatch.setattr(adapting, "clearly_less", lambda after, before: True)
    torch.manual_seed(0)
    network = build("tnp-kr", {**card_fields["config"], "scoring_steps": 1})
    fields = {**card_fields, "config": {**card_fields["config"], "scoring_steps": 1}}
    checkpoint.save(network, tmp_path / "one.safetensors", **fields)
    adapt(raster(), out=tmp_path / "three.safetensors", model=tmp_path / "one.safetensors", steps=1)
    found: Any = checkpoint.load_model(str(tmp_path / "three.safetensors"))[0]
    priors = found.head.priors
    assert len(priors) == 3
    for prior in priors:
        assert all(torch.equal(a, b) for a, b in zip(prior.parameters(), priors[0].parameters(), strict=True))


def test_with_a_number_of_steps_it_is_deterministic(model: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.safetensors" for name in "abc"]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        assert adapt(raster(shape=(96, 112)), out=file, model=model, steps=30, seed=seed).improved
    first, second, other = (file.read_bytes() for file in files)
    assert first == second != other


def test_worse_weights_are_never_returned(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapting, "learning_rate", lambda _: 30.0)
    found = adapt(raster(), out=tmp_path / "my.safetensors", model=model, steps=10)
    assert not found.improved
    assert (found.after, found.steps) == (found.before, 0)
    weights = (checkpoint.load_model(name)[0].state_dict() for name in (model, str(found.file)))
    for before, after in zip(*(w.values() for w in weights), strict=True):
        assert torch.equal(before, after)


def test_a_change_within_the_noise_is_not_an_improvement() -> None:
    cells = torch.full((20,), 10.0, dtype=torch.float64)
    before = torch.stack([torch.linspace(1, 2, 20, dtype=torch.float64), cells], 1)
    noise = torch.tensor([0.1, -0.12] * 10, dtype=torch.float64)
    assert not clearly_less(before + torch.stack([noise, 0 * cells], 1), before)
    assert not clearly_less(before, before)
    assert clearly_less(before + torch.stack([noise - 0.1, 0 * cells], 1), before)


def test_it_stops_when_nothing_gets_better(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    monkeypatch.setattr(adapting, "learning_rate", lambda _: 30.0)
    adapt(raster(), out=tmp_path / "a.safetensors", model=model, steps=20, progress=lambda done, _: shares.append(done))
    assert shares == pytest.approx([(i + 1) / adapting.VALIDATIONS for i in range(adapting.PATIENCE)])


def test_the_time_is_kept(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(adapting, "PATIENCE", 99)
    monkeypatch.setattr(adapting, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    done: list[float] = []
    found = adapt(
        raster(), out=tmp_path / "my.safetensors", model=model, minutes=1, progress=lambda share, _: done.append(share)
    )
    assert 0.8 < found.minutes <= 1
    assert done[-1] > 0.85
    clock = adapting._Clock(1.0, None)
    clock.reserve(60.0)
    assert clock.done(0) == 1


# --- what may be seen -------------------------------------------------------------------------------------------------


def numbered() -> xr.DataArray:
    """Each cell's value is its flat index, so that the values of a task tell where they come from."""
    values = np.arange(48.0 * 56).reshape(48, 56)
    values[10:18, 12:24] = np.nan
    return xr.DataArray(values, dims=("y", "x"))


def cells_of(task: CropTask, z: np.ndarray) -> list[int]:
    numbers = task.loc + task.scale * z.astype(float)
    assert np.abs(numbers - np.rint(numbers)).max() < 0.2
    return np.rint(numbers).astype(int).tolist()


def parts(rng: np.random.Generator) -> tuple[Crop, Hiding]:
    (crop,) = read_crops({"v": numbered()}, None, 0.2, HOOD.tile_px, rng)
    return crop, Hiding((crop.missing,), 0.5, np.ones(len(crops.BINS)))


def test_held_out_cells_are_in_no_task_to_train_on() -> None:
    rng = np.random.default_rng(0)
    crop, hiding = parts(rng)
    assert not (crop.observed_mask & crop.held_out_mask).any()
    assert (crop.observed_mask | crop.held_out_mask == np.isfinite(numbered().values)).all()
    assert 0.2 <= crop.held_out_mask.sum() / np.isfinite(crop.values).sum() < 0.23
    seen: set[int] = set()
    for _ in range(60):
        task = draw_task([crop], HOOD, hiding, 64, rng)
        assert task is not None
        context, targets = cells_of(task, task.yc), cells_of(task, task.mean)
        assert not set(context) & set(targets)
        seen |= {*context, *targets}
    assert crop.observed_mask.ravel()[list(seen)].all()
    assert len(seen) > 0.5 * crop.observed_mask.sum()


def test_validation_asks_for_held_out_cells_and_hides_nothing_but_near_them() -> None:
    rng = np.random.default_rng(1)
    crop, hiding = parts(rng)
    tasks = list(held_out_tasks([crop], HOOD, hiding, HOOD.tile_px**2, 30, rng))
    tiles = {task.tile for task in tasks}
    assert len(tiles) == len(crops._lattice(crop.held_out_mask, HOOD.tile_px)) < len(tasks)
    everything = replace(HOOD, n_context=10**4, halos_px=(16,))
    for task in held_out_tasks([crop], everything, hiding, HOOD.tile_px**2, 30, rng):
        targets, context = cells_of(task, task.mean), cells_of(task, task.yc)
        assert crop.held_out_mask.ravel()[targets].all()
        row, col = (i // 8 * 8 for i in divmod(targets[0], 56))
        window = np.zeros(crop.values.shape, bool)
        window[max(row - 16, 0) : row + 24, max(col - 16, 0) : col + 24] = True
        box = np.zeros_like(window)
        box[max(row - 4, 0) : row + 12, max(col - 4, 0) : col + 12] = True
        known = np.isfinite(crop.values)
        assert set(np.flatnonzero(known & window & ~box)) <= set(context) <= set(np.flatnonzero(known & window))


@pytest.mark.parametrize("kind", ["random", "clouds"])
def test_targets_are_as_far_from_their_context_as_missing_cells(kind: str) -> None:
    rng = np.random.default_rng(3)
    field = np.arange(96.0 * 96).reshape(96, 96)
    missing = gaps.simulate(kind, field.shape, 0.8 if kind == "random" else 0.2, rng)
    array = xr.DataArray(np.where(missing, np.nan, field), dims=("y", "x"))
    (crop,) = read_crops({"v": array}, None, 0.2, HOOD.tile_px, rng)
    hiding = hiding_for([crop], HOOD, rng)
    assert (hiding.p_patch < 0.5) == (kind == "random")
    distance = np.concatenate([draw_task([crop], HOOD, hiding, 64, rng).distance for _ in range(200)])
    weight = hiding.weigh(distance)
    real = ndimage.distance_transform_cdt(missing, "chessboard")[missing]
    for d in (1, 2):
        share = weight[distance == d].sum() / weight.sum()
        assert share == pytest.approx((real == d).sum() / ((real > 0) & (real <= 8)).sum(), abs=0.1)


def test_without_gaps_simulated_ones_are_hidden() -> None:
    rng = np.random.default_rng(0)
    read = read_crops({"v": numbered().fillna(1.0)}, None, 0.2, HOOD.tile_px, rng)
    hiding = hiding_for(read, HOOD, rng)
    assert hiding.gaps[0].any()
    assert draw_task(read, HOOD, hiding, 64, rng) is not None


def test_a_tile_is_turned_as_a_whole() -> None:
    """Distances between points stay what they are in the raster."""
    rng = np.random.default_rng(2)
    crop, hiding = parts(rng)
    orders = set()
    for _ in range(40):
        task = draw_task([crop], HOOD, hiding, 64, rng)
        assert task is not None
        x, cells = np.concatenate([task.xc, task.xt]), cells_of(task, np.concatenate([task.yc, task.mean]))
        place = np.stack(np.divmod(cells, 56), -1)
        turned, original = x - x[0], place - place[0]
        np.testing.assert_array_equal((turned**2).sum(1), (original**2).sum(1))
        orders.add(tuple(np.linalg.lstsq(original, turned, rcond=None)[0].round().ravel().astype(int).tolist()))
    assert len(orders) == 8


def test_a_mask_keeps_cells_out(model: str, tmp_path: Path) -> None:
    values = numbered()
    mask = np.ones(values.shape, bool)
    mask[:, :20] = False
    (crop,) = read_crops({"v": values}, mask, 0.2, HOOD.tile_px, np.random.default_rng(0))
    assert not (crop.observed_mask | crop.held_out_mask | crop.missing)[:, :20].any()
    wrong = raster().copy()
    wrong[:, :20] = 1e9
    assert adapt(wrong, out=tmp_path / "a.safetensors", model=model, steps=2, mask=mask).before < 100


# --- rasters ----------------------------------------------------------------------------------------------------------


def test_every_slice_and_variable_is_drawn_from(model: str, tmp_path: Path) -> None:
    cube = np.stack([smooth((72, 72), seed=i) for i in range(3)])
    ds = xr.Dataset(
        {"a": (("time", "y", "x"), cube), "b": (("y", "x"), 1000 * smooth((72, 72), seed=9)), "n": ("time", [1, 2, 3])}
    )
    found = ds.geonp.adapt(out=tmp_path / "my.safetensors", model=model, steps=20)
    assert (found.units, found.improved) == ("standard deviations", True)
    assert found.before < 2  # b is some 1000 times as large as a
    assert checkpoint.load_card(str(found.file)).training["raster"] == "a, b"
    read = read_crops({name: ds[name] for name in ("a", "b")}, None, 0.2, 8, np.random.default_rng(0))
    assert sorted(str(crop.variable) for crop in read) == ["a", "a", "a", "b"]


def test_of_a_large_lazy_raster_only_parts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crops, "CROP_PX", 32)
    monkeypatch.setattr(crops, "MAX_CELLS", 6 * 32 * 32)
    monkeypatch.setattr(crops, "READ_TOGETHER", 2)
    read: list[Any] = []

    def block(block_info: Any = None) -> np.ndarray:
        read.append(block_info[None]["chunk-location"])
        return np.full((32, 32), np.nan if sum(read[-1]) % 2 else sum(read[-1]), np.float32)

    lazy = da.map_blocks(block, chunks=((32,) * 40, (32,) * 40), dtype=np.float32, meta=np.empty((0, 0), np.float32))
    found = read_crops({"v": xr.DataArray(lazy, dims=("y", "x"))}, None, 0.2, 8, np.random.default_rng(0))
    assert 6 <= len(found) <= 7
    assert len(read) < 40  # of 1600, half of which are empty
    assert all(np.isfinite(crop.values).all() for crop in found)


def test_a_new_checkpoint_in_the_place_of_an_old_one_is_the_one_used(model: str, tmp_path: Path) -> None:
    file = tmp_path / "my.safetensors"
    hashes = []
    for seed in (0, 1):
        adapt(raster(), out=file, model=model, steps=40, seed=seed, overwrite=True)
        hashes.append(raster().geonp.infill(model=file).attrs["geonp_weights_sha256"])
    assert hashes[0] != hashes[1]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0}, "minutes must be a positive number, got 0"),
        ({"minutes": float("nan")}, "minutes must be a positive number"),
        ({"steps": 0}, "steps must be a positive integer, or None"),
        ({"steps": 1.5}, "steps must be a positive integer, or None"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_wrong_options_are_named(model: str, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        adapt(raster(), out=tmp_path / "my.safetensors", model=model, **options)


def test_a_model_without_a_head_to_train_is_refused(card_fields: dict[str, Any], tmp_path: Path) -> None:
    fields = {**card_fields, "name": "mean", "architecture": "cnp", "config": {"d_x": 2}}
    checkpoint.save(build("cnp", fields["config"]), tmp_path / "mean.safetensors", **fields)
    with pytest.raises(InputError, match="mean cannot be adapted: its architecture, cnp, has no head"):
        adapt(raster(), out=tmp_path / "my.safetensors", model=tmp_path / "mean.safetensors")


@pytest.mark.parametrize("empty", [False, True])
def test_too_few_observed_cells(model: str, tmp_path: Path, empty: bool) -> None:
    field = raster().where(False) if empty else raster()[:20, :10]
    with pytest.raises(InputError, match=r"too little is observed to adapt to: got \d+ observed cells .* at least 500"):
        adapt(field, out=tmp_path / "my.safetensors", model=model, steps=1)
    assert not any(tmp_path.iterdir())


def test_equal_values_teach_nothing(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="and 0 tiles with differing values"):
        adapt(raster() * 0, out=tmp_path / "my.safetensors", model=model, steps=1)


def test_outputs_are_refused_before_anything_is_read(model: str, tmp_path: Path, computes_nothing: Any) -> None:
    (tmp_path / "old.safetensors").write_bytes(b"")
    (tmp_path / "card.json").write_bytes(b"")
    lazy = raster().chunk()
    with computes_nothing():
        for name in ("old.safetensors", "card.safetensors"):
            with pytest.raises(OutputError, match=r"The output exists: .* or pass overwrite"):
                adapt(lazy, out=tmp_path / name, model=model)
        with pytest.raises(OutputError, match=r"expected a name that ends in .safetensors"):
            adapt(lazy, out=tmp_path / "my.pt", model=model)
        with pytest.raises(OutputError, match="Expected an existing, writable folder"):
            adapt(lazy, out=tmp_path / "nowhere" / "my.safetensors", model=model)


# --- command line -----------------------------------------------------------------------------------------------------


def command(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_command_and_fill_with_its_checkpoint(model: str, tmp_path: Path) -> None:
    raster().to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    mine, out = tmp_path / "my.safetensors", tmp_path / "out.nc"
    arguments = ("adapt", tmp_path / "in.nc", "--out", mine, "--model", model, "--steps", 40)
    done = command(*arguments, "--progress")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("CRPS ")
    assert "K after (" in done.stdout
    assert done.stdout.strip().endswith(f"minutes: {mine}")
    assert "% done: CRPS 0." in done.stderr
    assert command("fill", tmp_path / "in.nc", out, "--model", mine, "--quiet").exit_code == 0
    with xr.open_dataset(out, engine="netcdf4") as filled:
        assert filled["t2m"].notnull().all()
    refused = command(*arguments)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "The output exists" in refused.stderr
    summary = json.loads(command(*arguments, "--overwrite", "--json").stdout)
    assert summary["after"] < summary["before"]
    assert (summary["file"], summary["improved"], summary["units"]) == (str(mine), True, "K")


def test_command_says_when_nothing_better_was_found(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raster().to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    monkeypatch.setattr(adapting, "learning_rate", lambda _: 30.0)
    done = command("adapt", tmp_path / "in.nc", "--out", tmp_path / "my.safetensors", "--model", model, "--steps", 10)
    assert done.exit_code == 0
    assert done.stdout.startswith("Nothing clearly better was found, the model is kept: CRPS ")


def test_command_without_out_is_wrong_usage(tmp_path: Path) -> None:
    assert command("adapt", tmp_path / "in.nc").exit_code == 2
