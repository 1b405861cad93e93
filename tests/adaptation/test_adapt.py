"""Adapting a model to a raster: what it may see, what it returns and what it refuses."""

from __future__ import annotations

import itertools
import json
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from scipy import ndimage

import geonp
from geonp.adaptation import adapt as adapting
from geonp.adaptation import clock, crops, search, validation
from geonp.adaptation.adapt import Adapted, adapt
from geonp.adaptation.crops import Crop, CropTask, Masking, draw_task, fit_masking, hold_out, read_crops
from geonp.adaptation.surroundings import Surroundings
from geonp.adaptation.validation import Scores, hide_held_out
from geonp.errors import InputError, OutputError
from geonp.fill.options import FillOptions
from geonp.fill.request import prepare
from geonp.inference import checkpoint
from geonp.inference.context import Neighbourhood
from geonp.nn.models import build
from geonp.raster import gaps

from ..commands import cli

HOOD = Neighbourhood(tile_px=8, halos_px=(8, 16), n_context=32, min_context=4)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """Use one thread, which is faster for small networks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(wide_tiles: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with standard errors 7 times as wide, which a few steps of training correct."""
    network, card = checkpoint.load_model(wide_tiles)
    network = deepcopy(network)
    network.head.correction[-1].bias.data[1] += 2.0  # type: ignore[union-attr, index, operator]
    file = tmp_path_factory.mktemp("wide") / "tiny.safetensors"
    known = {key: value for key, value in card.model_dump().items() if key not in {"parameters", "sha256", "format"}}
    checkpoint.save(network, file, **known)
    return str(file)


@pytest.fixture(autouse=True)
def bold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a high learning rate, since the weights are random, few validations, and rasters of few tiles."""
    set_learning_rate(monkeypatch, 5e-3)
    monkeypatch.setattr(validation, "SETTINGS", replace(validation.SETTINGS, min_tiles=4))


def set_learning_rate(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    monkeypatch.setattr(adapting, "SETTINGS", replace(adapting.SETTINGS, learning_rate=rate, validations=2))


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
    """CRPS of a fill of cells that the adaptation saw, to compare two models."""
    from scipy.stats import norm

    hidden = np.zeros(field.shape, bool)
    hidden[22:30, 8:20] = True
    out = geonp.infill(field.where(~hidden), model=model)
    truth, mean, error = (a.values[hidden] for a in (field, out["t2m"], out["t2m_standard_error"]))
    z = (truth - mean) / error
    return float(np.mean(error * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - np.pi**-0.5)))


@pytest.fixture(scope="module")
def adapted(model: str, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """The model adapted to the raster in 20 steps."""
    with pytest.MonkeyPatch.context() as patch:
        set_learning_rate(patch, 5e-3)
        return adapt(raster(), out=tmp_path_factory.mktemp("adapted") / "my.safetensors", model=model, steps=20, seed=1)


def test_a_model_that_does_not_fit_the_raster_gets_better(model: str, adapted: Adapted) -> None:
    assert adapted.improved
    assert 0 < adapted.steps <= 20
    assert adapted.after < 0.95 * adapted.before
    assert crps_of_hidden(raster(), adapted) < crps_of_hidden(raster(), model)


def test_the_checkpoint_is_one_like_any_other(model: str, tmp_path: Path) -> None:
    file = tmp_path / "my.safetensors"
    found = raster().geonp.adapt(out=file, model=model, steps=20, closer=False, seed=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.json", "my.safetensors"]
    base, card = checkpoint.load_card(model), checkpoint.load_card(str(file))
    assert (card.name, card.neighbourhood, card.config) == ("my", base.neighbourhood, base.config)
    training = card.training
    assert (training["base"], training["base_sha256"]) == (base.name, base.sha256)
    assert (training["raster"], training["seed"], training["steps"]) == ("t2m", 3, found.steps)
    assert 0 < training["minutes"] < 10
    assert card.scores == {"crps_before": found.before, "crps_after": found.after, "slowdown": 1.0}
    filled = raster().geonp.infill(model=found)
    assert filled.attrs["geonp_weights_sha256"] == card.sha256
    assert filled["t2m"].notnull().all()


def test_an_adapted_model_can_be_passed_wherever_a_model_is_taken(adapted: Adapted, tmp_path: Path) -> None:
    sha256 = checkpoint.load_card(str(adapted.file)).sha256
    filled = geonp.infill(raster(), model=adapted)
    assert filled.attrs["geonp_weights_sha256"] == sha256
    assert geonp.plan(raster(), model=adapted).tiles > 0
    raster().chunk().geonp.fill_store(tmp_path / "out.zarr", model=adapted)
    with xr.open_zarr(tmp_path / "out.zarr") as stored:
        assert stored.attrs["geonp_weights_sha256"] == sha256
        np.testing.assert_allclose(stored["t2m"], filled["t2m"], rtol=1e-6)
    rows, cols = np.nonzero(np.isfinite(raster().values))
    table = pd.DataFrame({"x": cols, "y": rows, "t2m": raster().values[rows, cols]}).iloc[::9]
    cells = raster().assign_coords(x=np.arange(56.0), y=np.arange(48.0))
    assert geonp.interpolate(table, at=cells, model=adapted).attrs["geonp_weights_sha256"] == sha256
    assert raster().geonp.evaluate(model=adapted, baselines=()).model["weights_sha256"] == sha256
    again = adapt(raster(), out=tmp_path / "again.safetensors", model=adapted, steps=1, closer=False)
    assert checkpoint.load_card(str(again.file)).training["base_sha256"] == sha256


def far_sighted(model: str, folder: Path) -> str:
    """The tiny model with tiles so large that the context of one is thinned out over all of it."""
    network, card = checkpoint.load_model(model)
    known = {key: value for key, value in card.model_dump().items() if key not in {"parameters", "sha256", "format"}}
    hood = {**known["neighbourhood"], "tile_px": 32, "halos_px": [8, 16], "n_context": 12, "merge": 1}
    checkpoint.save(network, folder / "far.safetensors", **{**known, "neighbourhood": hood})
    return str(folder / "far.safetensors")


def test_a_smaller_neighbourhood_is_chosen_where_it_is_better(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights stay as they are: smaller tiles with as much context improve the fill."""
    set_learning_rate(monkeypatch, 0.0)
    rough = raster(shape=(112, 112))
    far = far_sighted(model, tmp_path)
    found = adapt(rough, out=tmp_path / "close.safetensors", model=far, steps=6)
    assert found.improved
    assert (found.steps, found.slowdown > 0) == (0, True)
    base, card = checkpoint.load_card(far), checkpoint.load_card(str(found.file))
    assert card.neighbourhood in search.smaller(base.neighbourhood)
    assert card.scores["slowdown"] == found.slowdown
    weights = [checkpoint.load_model(name)[0].state_dict() for name in (far, str(found.file))]
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())
    # the hash covers the neighbourhood
    assert card.sha256 != base.sha256
    assert crps_of_hidden(rough, found) < crps_of_hidden(rough, far)
    kept = adapt(rough, out=tmp_path / "same.safetensors", model=far, steps=6, closer=False)
    assert not kept.improved
    assert kept.slowdown == 1
    assert checkpoint.load_card(str(kept.file)).neighbourhood == base.neighbourhood


def test_a_model_of_another_family_is_adapted(card_fields: dict[str, Any], tmp_path: Path) -> None:
    fields = {**card_fields, "name": "mean", "architecture": "cnp", "config": {"d_x": 2}}
    torch.manual_seed(0)
    checkpoint.save(build("cnp", fields["config"]), tmp_path / "mean.safetensors", **fields)
    options = {"model": tmp_path / "mean.safetensors", "steps": 60, "closer": False}
    found = adapt(raster(shape=(80, 96)), out=tmp_path / "my.safetensors", **options)
    assert found.improved
    assert checkpoint.load_card(str(found.file)).architecture == "cnp"


def test_neighbourhoods_become_smaller_and_smaller() -> None:
    found = search.smaller(Neighbourhood(tile_px=16, n_context=256, merge=2))
    assert [(each.merge, each.tile_px, each.n_context) for each in found] == [(1, 16, 256), (1, 8, 256), (1, 8, 128)]
    assert len(search.smaller(Neighbourhood(merge=1))) == 2


def stack(own: float, slices: int = 3, size: int = 40) -> xr.DataArray:
    """Slices that share a pattern, each with a third of its cells in gaps and something of its own."""
    rng = np.random.default_rng(0)
    shared, *alone = ndimage.gaussian_filter(rng.normal(size=(1 + slices, size, size)), 2.0, axes=(1, 2))
    fields = [np.where(gaps.simulate("clouds", (size, size), 0.3, rng), np.nan, shared + own * a) for a in alone]
    return xr.DataArray(np.stack(fields), dims=("day", "y", "x"), name="t2m")


def test_regression_on_other_slices_is_chosen_where_it_is_better(drift_model: str, tmp_path: Path) -> None:
    found = adapt(stack(own=0.3), out=tmp_path / "my.safetensors", model=drift_model, steps=4, closer=False)
    assert found.across == "day"
    assert (found.steps, found.improved) == (0, True)
    assert found.after < 0.8 * found.before
    assert checkpoint.load_card(str(found.file)).neighbourhood.across == "day"
    # a fill with it is one across days, as far as there are any
    cut = stack(own=0.3)[:, :32, :32]
    assert_same(geonp.infill(cut, model=found), geonp.infill(cut, model=drift_model, across="day"))
    assert_same(geonp.infill(cut[0], model=found), geonp.infill(cut[0], model=drift_model))
    assert geonp.infill(cut[0], model=found, samples=1)["t2m_sample"].notnull().all()


def test_a_model_that_reads_other_slices_is_trained_on_a_single_slice(model: str, tmp_path: Path) -> None:
    network, card = checkpoint.load_model(model)
    known = {key: value for key, value in card.model_dump().items() if key not in {"parameters", "sha256", "format"}}
    hood = {**known["neighbourhood"], "across": "day"}
    checkpoint.save(network, tmp_path / "across.safetensors", **{**known, "neighbourhood": hood})
    found = adapt(raster(), out=tmp_path / "my.safetensors", model=tmp_path / "across.safetensors", steps=20)
    assert found.improved
    assert found.steps > 0


def assert_same(first: xr.Dataset, second: xr.Dataset) -> None:
    for name in ("t2m", "t2m_standard_error", "t2m_fill_flag"):
        np.testing.assert_allclose(first[name].values, second[name].values, rtol=1e-5, atol=1e-6)


def test_other_variables_are_tried_if_asked(drift_model: str, tmp_path: Path) -> None:
    ds = xr.Dataset({f"band{k}": one.drop_vars("day", errors="ignore") for k, one in enumerate(stack(own=0.3))})
    options = {"model": drift_model, "steps": 1, "closer": False, "across": "variables"}
    found = adapt(ds, out=tmp_path / "my.safetensors", **options)
    assert found.across == "variables"
    assert found.after < 0.8 * found.before
    assert geonp.infill(ds.isel(x=slice(24), y=slice(24)), model=found).attrs["geonp_across"] == "variables"
    with pytest.raises(InputError, match="got 'day', expected 'variables'"):
        adapt(ds, out=tmp_path / "other.safetensors", across="day")


def test_unrelated_slices_are_not_regressed_on_each_other(drift_model: str, tmp_path: Path) -> None:
    found = adapt(stack(own=30.0), out=tmp_path / "my.safetensors", model=drift_model, steps=1, closer=False)
    assert found.across == ""


def test_steps_and_seed_decide_and_a_new_checkpoint_replaces_an_old_one(
    model: str, adapted: Adapted, tmp_path: Path
) -> None:
    file, hashes = tmp_path / "b.safetensors", []
    assert adapt(raster(), out=file, model=model, steps=np.int64(20), seed=np.int64(1)).improved
    first, second = adapted.file.read_bytes(), file.read_bytes()
    hashes.append(raster().geonp.infill(model=file).attrs["geonp_weights_sha256"])
    assert adapt(raster(), out=file, model=model, steps=20, seed=2, closer=False, overwrite=True).improved
    hashes.append(raster().geonp.infill(model=file).attrs["geonp_weights_sha256"])
    assert first == second != file.read_bytes()
    assert hashes[0] != hashes[1]


def test_worse_weights_are_never_returned(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapting, "_learning_rate", lambda _: 30.0)
    found = adapt(raster(), out=tmp_path / "my.safetensors", model=model, steps=10, closer=False)
    assert not found.improved
    assert (found.after, found.steps) == (found.before, 0)
    weights = (checkpoint.load_model(name)[0].state_dict() for name in (model, str(found.file)))
    for before, after in zip(*(w.values() for w in weights), strict=True):
        assert torch.equal(before, after)


def test_a_change_within_the_noise_is_not_an_improvement() -> None:
    validation_mask = np.arange(40) < 20
    before = np.stack([np.linspace(1, 2, 40), np.full(40, 10.0)], 1)

    def after(change: np.ndarray | float) -> Scores:
        return Scores(before + np.stack([np.broadcast_to(change, 40), np.zeros(40)], 1), validation_mask)

    own, noise = Scores(before, validation_mask), np.tile([0.1, -0.102], 20)
    assert after(noise - 0.04).clearly_below(own)
    assert not after(noise).clearly_below(own)
    assert not own.clearly_below(own)
    # an improvement on the validation tiles alone is no evidence
    assert not after(noise - np.where(validation_mask, 0.5, -0.01)).clearly_below(own)
    assert not after(np.inf).clearly_below(own)
    assert own.validation == pytest.approx(before[:20, 0].sum() / 200)
    assert own.test == pytest.approx(before[20:, 0].sum() / 200)


def test_adaptation_ends_within_its_time(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 2))
    done: list[float] = []
    found = adapt(
        raster(),
        out=tmp_path / "my.safetensors",
        model=model,
        minutes=0.5,
        progress=lambda share, _: done.append(share),
    )
    assert 0.4 < found.minutes <= 0.5
    assert done[-1] > 0.85


# --- hold-out -------------------------------------------------------------------------------------------------


def numbered() -> xr.DataArray:
    """A raster of flat indices, so that the values of a task identify its cells."""
    values = np.arange(48.0 * 56).reshape(48, 56)
    values[10:18, 12:24] = np.nan
    return xr.DataArray(values, dims=("y", "x"))


def cells_of(task: CropTask, z: np.ndarray) -> list[int]:
    numbers = task.loc + task.scale * z.astype(float)
    assert np.abs(numbers - np.rint(numbers)).max() < 0.2
    return np.rint(numbers).astype(int).tolist()


def parts(rng: np.random.Generator) -> tuple[Crop, Masking]:
    read = read_crops({"v": numbered()}, None, rng)
    bins = np.ones(len(crops.SETTINGS.bins))
    masking = Masking((read[0].missing,), 0.5, bins, bins)
    return hold_out(read, masking, 0.2, HOOD.tile_px, rng)[0], masking


def test_held_out_cells_are_in_no_task_to_train_on() -> None:
    rng = np.random.default_rng(0)
    crop, masking = parts(rng)
    assert not (crop.observed_mask & crop.held_out_mask).any()
    assert (crop.observed_mask | crop.held_out_mask == np.isfinite(numbered().values)).all()
    assert 0.2 <= crop.held_out_mask.sum() / np.isfinite(crop.values).sum() < 0.23
    seen: set[int] = set()
    for _ in range(60):
        task = draw_task([crop], HOOD, masking, 64, rng)
        assert task is not None
        context, targets = cells_of(task, task.yc), cells_of(task, task.mean)
        assert not set(context) & set(targets)
        seen |= {*context, *targets}
    assert crop.observed_mask.ravel()[list(seen)].all()
    assert len(seen) > 0.5 * crop.observed_mask.sum()


def test_exactly_the_held_out_cells_are_hidden_and_filled() -> None:
    rng = np.random.default_rng(1)
    crop, masking = parts(rng)
    held_out = hide_held_out([crop], masking, HOOD, "cpu", rng)
    (part,) = held_out.parts
    np.testing.assert_array_equal(np.isfinite(part.values), crop.observed_mask)
    np.testing.assert_array_equal(part.hidden, crop.held_out_mask)
    np.testing.assert_array_equal(part.truth, crop.values[crop.held_out_mask])
    np.testing.assert_array_equal(part.distance, ndimage.distance_transform_cdt(~crop.observed_mask)[part.hidden])
    # one number per tile, for validation or for the test
    tiles = np.stack(np.nonzero(part.hidden), 1) // HOOD.tile_px
    named = {(*tile, number) for tile, number in zip(tiles.tolist(), held_out.tile.tolist(), strict=True)}
    assert len(named) == len(set(map(tuple, tiles.tolist()))) == held_out.validation_mask.size
    assert held_out.validation_mask.sum() == held_out.validation_mask.size // 2
    assert 0 < held_out.cells < part.truth.size


def test_a_large_raster_is_scored_on_some_of_its_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "SETTINGS", replace(validation.SETTINGS, max_squares=12))
    rng = np.random.default_rng(1)
    crop, masking = parts(rng)
    (part,) = hide_held_out([crop], masking, HOOD, "cpu", rng).parts
    # other held-out cells are neither context nor targets
    np.testing.assert_array_equal(np.isfinite(part.values), crop.observed_mask)
    asked = part.domain_mask & ~crop.observed_mask
    assert asked.sum() <= 12 * HOOD.tile_px**2
    np.testing.assert_array_equal(part.hidden, asked & crop.held_out_mask)
    assert 0 < part.hidden.sum() < crop.held_out_mask.sum()


@pytest.mark.parametrize("kind", ["random", "clouds"])
def test_targets_are_as_far_from_their_context_as_missing_cells(kind: str) -> None:
    rng = np.random.default_rng(3)
    field = np.arange(96.0 * 96).reshape(96, 96)
    missing = gaps.simulate(kind, field.shape, 0.8 if kind == "random" else 0.2, rng)
    array = xr.DataArray(np.where(missing, np.nan, field), dims=("y", "x"))
    (crop,) = read_crops({"v": array}, None, rng)
    masking = fit_masking([crop], HOOD, rng)
    assert (masking.p_patch < 0.5) == (kind == "random")
    distance = np.concatenate([draw_task([crop], HOOD, masking, 64, rng).distance for _ in range(200)])
    weight = masking.weights(distance)
    real = ndimage.distance_transform_cdt(missing, "chessboard")[missing]
    for d in (1, 2):
        share = weight[distance == d].sum() / weight.sum()
        assert share == pytest.approx((real == d).sum() / (real > 0).sum(), abs=0.1)


def test_without_gaps_simulated_ones_are_hidden() -> None:
    rng = np.random.default_rng(0)
    read = read_crops({"v": numbered().fillna(1.0)}, None, rng)
    masking = fit_masking(read, HOOD, rng)
    assert masking.gaps[0].any()
    assert draw_task(read, HOOD, masking, 64, rng) is not None


def test_tiles_are_rotated_and_mirrored() -> None:
    """Distances between points are those in the raster."""
    rng = np.random.default_rng(2)
    crop, masking = parts(rng)
    orders = set()
    for _ in range(40):
        task = draw_task([crop], HOOD, masking, 64, rng)
        assert task is not None
        x, cells = np.concatenate([task.xc, task.xt]), cells_of(task, np.concatenate([task.yc, task.mean]))
        place = np.stack(np.divmod(cells, 56), -1)
        turned, original = x - x[0], place - place[0]
        np.testing.assert_array_equal((turned**2).sum(1), (original**2).sum(1))
        orders.add(tuple(np.linalg.lstsq(original, turned, rcond=None)[0].round().ravel().astype(int).tolist()))
    assert len(orders) == 8


def test_scores_of_packed_values_have_no_units(model: str, tmp_path: Path) -> None:
    packed = (raster().fillna(0) * 10).astype("int16").assign_attrs(units="K", scale_factor=0.1, _FillValue=np.int16(0))
    assert adapt(packed, out=tmp_path / "my.safetensors", model=model, steps=1, closer=False).units == ""


def test_a_mask_keeps_cells_out(model: str, tmp_path: Path) -> None:
    values = numbered()
    mask = np.ones(values.shape, bool)
    mask[:, :20] = False
    (crop,) = read_crops({"v": values}, mask, np.random.default_rng(0))
    assert not (crop.observed_mask | crop.held_out_mask | crop.missing)[:, :20].any()
    wrong = raster().copy()
    wrong[:, :20] = 1e9
    assert adapt(wrong, out=tmp_path / "a.safetensors", model=model, steps=2, mask=mask).before < 100


# --- rasters ----------------------------------------------------------------------------------------------------------


def test_every_slice_and_variable_is_drawn_from(model: str, tmp_path: Path) -> None:
    cube = np.stack([smooth(seed=i) for i in range(3)])
    ds = xr.Dataset(
        {"a": (("time", "y", "x"), cube), "b": (("y", "x"), 1000 * smooth(seed=9)), "n": ("time", [1, 2, 3])}
    )
    found = ds.geonp.adapt(out=tmp_path / "my.safetensors", model=model, steps=12, closer=False)
    assert (found.units, found.improved) == ("standard deviations", True)
    assert found.before < 2  # b is some 1000 times as large as a
    assert checkpoint.load_card(str(found.file)).training["raster"] == "a, b"
    read = read_crops({name: ds[name] for name in ("a", "b")}, None, np.random.default_rng(0))
    assert sorted(str(crop.variable) for crop in read) == ["a", "a", "a", "b"]


def test_of_a_large_lazy_raster_only_parts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(crops.SETTINGS, crop_px=32, max_cells=6 * 32 * 32, read_together=2)
    monkeypatch.setattr(crops, "SETTINGS", small)
    read: list[Any] = []

    def block(block_info: Any = None) -> np.ndarray:
        read.append(block_info[None]["chunk-location"])
        return np.full((32, 32), np.nan if sum(read[-1]) % 2 else sum(read[-1]), np.float32)

    lazy = da.map_blocks(block, chunks=((32,) * 40, (32,) * 40), dtype=np.float32, meta=np.empty((0, 0), np.float32))
    found = read_crops({"v": xr.DataArray(lazy, dims=("y", "x"))}, None, np.random.default_rng(0))
    assert 6 <= len(found) <= 7
    assert len(read) < 40  # of 1600, half of which are empty
    assert all(np.isfinite(crop.values).all() for crop in found)


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


@pytest.mark.parametrize("field", [raster().where(False), raster()[:20, :10], raster()[:1, :1] * 0 + 1])
def test_too_few_observed_cells(model: str, tmp_path: Path, field: xr.DataArray) -> None:
    with pytest.raises(InputError, match=r"too little data to adapt to: got \d+ observed cells .* at least 500"):
        adapt(field, out=tmp_path / "my.safetensors", model=model, steps=1)
    assert not any(tmp_path.iterdir())


@pytest.mark.filterwarnings("error")
def test_codes_of_classes_are_doubted(model: str, tmp_path: Path) -> None:
    patches = np.random.default_rng(0).choice([2, 3, 7, 11, 18], (12, 12)).repeat(4, 0).repeat(4, 1)
    field = xr.DataArray(patches.astype(float), dims=("y", "x"), name="lc")
    with pytest.raises(UserWarning, match=r"lc: adapted to as numbers, but holds 5 .* jumps among them"):
        geonp.adapt(field, out=tmp_path / "a.safetensors", model=model, minutes=0.1)


@pytest.mark.filterwarnings("error")
def test_cells_that_a_fill_has_filled_are_doubted(model: str, tmp_path: Path) -> None:
    filled = geonp.infill(raster(), model=model)
    with pytest.raises(UserWarning, match="was filled by geonp before: its filled cells count as observed"):
        geonp.adapt(filled, out=tmp_path / "a.safetensors", model=model, minutes=0.1)


def test_equal_values_teach_nothing(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="and 0 tiles whose values vary"):
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


def test_covariates_are_read_in_tasks_and_scores_and_by_the_command(drift_model: str, tmp_path: Path) -> None:
    """The field falls with a rough covariate, which has a gap of its own and is static; the raster has two slices."""
    rng = np.random.default_rng(5)
    dem = rng.standard_normal((40, 44)).astype(np.float32)
    field = np.stack([smooth(shape=dem.shape, seed=k) - 20 * dem for k in range(2)])
    dem[3:6, 30:33] = np.nan
    ds = xr.Dataset({"t2m": (("time", "y", "x"), field), "dem": (("y", "x"), dem)})
    ds.to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    file = tmp_path / "my.safetensors"
    arguments = ("--model", drift_model, "--steps", 1, "--no-closer", "--across", "time", "--json", "--no-progress")
    done = cli("adapt", tmp_path / "in.nc", "--covariate", "dem", "--out", file, *arguments)
    found = json.loads(done.stdout)
    assert found["covariates"] == checkpoint.load_card(str(file)).training["covariates"] == ["dem"]
    assert found["before"] < 2
    card = file.with_suffix(".json")
    card.write_text(card.read_text().replace('"steps": 0', '"steps": 1'))
    without = r"my was adapted with the covariates dem, and is used without any: .*--covariate"
    with pytest.warns(UserWarning, match=without):
        geonp.plan(ds[["t2m"]], model=file)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", without)
        geonp.plan(ds, model=file, covariates="dem")
        geonp.evaluate(ds, model=file, covariates="dem", holdout="random", baselines=["nearest"])
    itself = ds.t2m.isel(time=0)
    with pytest.raises(InputError, match="the covariate 'copy' is the raster itself, which the held-out cells could"):
        adapt(itself, out=file, overwrite=True, covariates=itself.rename("copy"), steps=1)
    request = prepare(ds, FillOptions(covariates="dem"))
    around = Surroundings.of(request.variables, (), request.covariates, request.job, None)
    crop, _ = read_crops(around.arrays, None, rng, around)
    task = draw_task([crop], Neighbourhood(), fit_masking([crop], Neighbourhood(), rng), 50, rng)
    assert task is not None
    assert task.beside is not None
    values = task.loc + task.scale * np.concatenate([task.yc, task.mean])
    columns = np.concatenate([task.beside.context, task.beside.targets])[:, 0]
    assert np.corrcoef(values, columns)[0, 1] < -0.9


# --- command line -----------------------------------------------------------------------------------------------------


def test_command_and_fill_with_its_checkpoint(model: str, tmp_path: Path) -> None:
    raster().to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    mine, out = tmp_path / "my.safetensors", tmp_path / "out.nc"
    arguments = ("adapt", tmp_path / "in.nc", "--out", mine, "--model", model, "--steps", 20, "--no-closer")
    done = cli(*arguments, "--progress")
    assert done.stdout.startswith("CRPS ")
    assert "K after (" in done.stdout
    assert done.stdout.strip().endswith(f"minutes: {mine}")
    assert "% done: CRPS 0." in done.stderr
    cli("fill", tmp_path / "in.nc", out, "--model", mine, "--quiet")
    with xr.open_dataset(out, engine="netcdf4") as filled:
        assert filled["t2m"].notnull().all()
    refused = cli(*arguments, code=1)
    assert refused.stdout == ""
    assert "The output exists" in refused.stderr
    summary = json.loads(cli(*arguments, "--overwrite", "--json").stdout)
    assert summary["after"] < summary["before"]
    assert (summary["file"], summary["improved"], summary["units"]) == (str(mine), True, "K")


def test_command_says_when_nothing_better_was_found(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raster().to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    monkeypatch.setattr(adapting, "_learning_rate", lambda _: 30.0)
    arguments = ("--out", tmp_path / "my.safetensors", "--model", model, "--steps", 10, "--no-closer")
    assert cli("adapt", tmp_path / "in.nc", *arguments, "--quiet").output == ""
    done = cli("adapt", tmp_path / "in.nc", *arguments, "--overwrite")
    assert done.stdout.startswith("Nothing clearly better was found; the model is kept: CRPS ")


def test_command_without_out_is_wrong_usage(tmp_path: Path) -> None:
    cli("adapt", tmp_path / "in.nc", code=2)


def test_without_observations_every_cell_is_as_far_as_the_array_is_wide() -> None:
    assert (crops.distances(np.zeros((3, 5), bool)) == 5).all()
