"""Training resumes at the exact step, and losses and scores are the expectations that they claim to be."""

from __future__ import annotations

import csv
import json
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import nn
from torch.distributions import Normal

from geonp.errors import CheckpointError, ModelError, RecipeError
from geonp.inference import checkpoint
from geonp.training import loop
from geonp.training.loop import train
from geonp.training.objective import expected_crps, expected_nll, mean_distance, scores
from geonp.training.optimisers import learning_rate
from geonp.training.recipe import Recipe, Training, load
from geonp.training.sources import VALIDATION_SEED, draw

STEPS = 60


class PowerCutError(Exception):
    """An error that no code expects."""


def before_step(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """Call `act` in the training process before each step, with the number of steps taken."""

    def rate(step: int, options: Training) -> float:
        act(step)
        return learning_rate(step, options)

    monkeypatch.setattr(loop, "learning_rate", rate)


def cut_before(step: int) -> Callable[[int], None]:
    def cut(done: int) -> None:
        if done == step:
            raise PowerCutError

    return cut


@pytest.fixture
def recipe(card_fields: dict[str, Any]) -> Recipe:
    """A run of a second: tiny model, batches of one task."""
    return tiny_recipe(card_fields)


def tiny_recipe(card_fields: dict[str, Any], **training: Any) -> Recipe:
    options = {
        "steps": 3,
        "batch_size": 1,
        "n_targets": 6,
        "warmup": 2,
        "precision": "float32",
        "validate_every": 25,
        "validation_batches": 4,
        "save_every_s": 1e9,
        **training,
    }
    return Recipe.model_validate(
        {
            "name": "tiny",
            "description": "for tests",
            "model": {"architecture": card_fields["architecture"], "config": card_fields["config"]},
            "neighbourhood": card_fields["neighbourhood"],
            "prior": {"p_gaussian": 0.7},
            "training": options,
        }
    )


def curve(folder: Path) -> list[dict[str, str]]:
    """Rows of the learning curve, without the time."""
    with (folder / "curve.csv").open(newline="") as handle:
        return [{k: v for k, v in row.items() if k != "cpu_hours"} for row in csv.DictReader(handle)]


def weights(file: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load_model(str(file))[0].state_dict()


@pytest.fixture(scope="module")
def unbroken(card_fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of an uninterrupted run."""
    torch.set_num_threads(1)
    return train(tiny_recipe(card_fields, steps=STEPS), tmp_path_factory.mktemp("unbroken"), workers=0, progress=False)


# --- the run ----------------------------------------------------------------------------------------------------------


def test_a_run_of_three_steps(recipe: Recipe, tmp_path: Path) -> None:
    file = train(recipe, tmp_path / "runs" / "a", workers=0, progress=False)
    assert file == tmp_path / "runs" / "a" / "tiny.safetensors"
    assert sorted(p.name for p in file.parent.iterdir()) == [
        "curve.csv",
        "curve.png",
        "state.pt",
        "tiny.json",
        "tiny.safetensors",
    ]
    [row] = curve(file.parent)
    assert tuple(row) == tuple(name for name in loop.COLUMNS + loop.SCORES["raster"] if name != "cpu_hours")
    assert row["step"] == "3"
    assert all(math.isfinite(float(value)) for value in row.values())
    network, card = checkpoint.load_model(str(file))
    assert (card.name, card.description) == ("tiny", "for tests")
    assert card.neighbourhood == recipe.neighbourhood
    assert card.config == recipe.model.config
    assert card.training["steps"] == 3
    assert card.training["prior"]["p_gaussian"] == recipe.prior.p_gaussian
    assert {key: float(row[key]) for key in ("nll", "kl", "crps_ratio", "coverage_95")} == card.scores
    assert all(torch.isfinite(p).all() for p in network.parameters())


def test_the_curve_is_written_every_fifty_steps_at_every_validation_and_at_the_end(unbroken: Path) -> None:
    rows = curve(unbroken.parent)
    # 25 and 50 are steps of validation, 60 is the last
    assert [row["step"] for row in rows] == ["25", "50", "60"]
    assert all(row["nll"] for row in rows)
    assert float(rows[2]["learning_rate"]) < float(rows[1]["learning_rate"])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_run_resumes_as_if_unbroken(
    workers: int, card_fields: dict[str, Any], unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after step 55, when step 50 was in the curve, and resumed from the state of step 45."""
    recipe = tiny_recipe(card_fields, steps=STEPS, save_every_s=1e-9)
    state = tmp_path / "state.pt"
    early: list[bytes] = []

    def act(step: int) -> None:
        if step == 45:
            early.append(state.read_bytes())
        cut_before(55)(step)

    with monkeypatch.context() as cut:
        before_step(cut, act)
        with pytest.raises(PowerCutError):
            train(recipe, tmp_path, workers=workers, progress=False)
    state.write_bytes(early[0])
    assert not list(tmp_path.glob("*.safetensors"))
    assert [row["step"] for row in curve(tmp_path)] == ["25", "50"]
    with (tmp_path / "curve.csv").open("a") as handle:
        handle.write("garbage\n5")  # a damaged row and an incomplete one
    torch.rand(7)  # another process would have other random numbers
    file = train(recipe, tmp_path, resume=True, workers=workers, progress=False)

    assert curve(tmp_path) == curve(unbroken.parent)
    expected = weights(unbroken)
    assert all(torch.equal(value, expected[key]) for key, value in weights(file).items())
    assert checkpoint.load_card(str(file)).scores == checkpoint.load_card(str(unbroken)).scores


def test_resuming_a_finished_run_publishes_the_same(recipe: Recipe, tmp_path: Path) -> None:
    first = checkpoint.load_card(str(train(recipe, tmp_path, workers=0, progress=False)))
    rows = curve(tmp_path)
    again = checkpoint.load_card(str(train(recipe, tmp_path, resume=True, workers=0, progress=False)))
    assert again == first
    assert curve(tmp_path) == rows


def test_a_run_can_be_prolonged_and_not_shortened(card_fields: dict[str, Any], tmp_path: Path) -> None:
    train(tiny_recipe(card_fields, steps=2), tmp_path, workers=0, progress=False)
    train(tiny_recipe(card_fields, steps=4), tmp_path, resume=True, workers=0, progress=False)
    assert [row["step"] for row in curve(tmp_path)] == ["2", "4"]
    with pytest.raises(RecipeError, match=r"training\.steps: got 1, but the run in .* is already at step 4"):
        train(tiny_recipe(card_fields, steps=1), tmp_path, resume=True, workers=0, progress=False)


def test_a_folder_that_holds_a_run_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path, workers=0, progress=False)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(RecipeError, match=r"already holds a run: resume it \(--resume\), or choose another folder"):
        train(recipe, tmp_path, workers=0, progress=False)
    other = recipe.model_copy(
        update={"model": recipe.model.model_copy(update={"config": {**recipe.model.config, "dim": 32}})}
    )
    with pytest.raises(RecipeError, match=r"by another recipe: model\.config\.dim was 16, now is 32; restore"):
        train(other, tmp_path, resume=True, workers=0, progress=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_resuming_an_empty_folder_starts(recipe: Recipe, tmp_path: Path) -> None:
    assert train(recipe, tmp_path, resume=True, workers=0, progress=False).is_file()


def test_another_seed_gives_other_weights(card_fields: dict[str, Any], tmp_path: Path) -> None:
    one, other = (
        weights(train(tiny_recipe(card_fields, seed=seed), tmp_path / str(seed), workers=0, progress=False))
        for seed in (0, 1)
    )
    assert not torch.equal(one["observed.weight"], other["observed.weight"])


def test_a_run_can_start_from_a_checkpoint(card_fields: dict[str, Any], model: str, tmp_path: Path) -> None:
    still = {"steps": 1, "learning_rate": 1e-30}
    file = train(tiny_recipe(card_fields, start=model, **still), tmp_path / "run", workers=0, progress=False)
    expected = weights(Path(model))
    assert all(torch.equal(value, expected[key]) for key, value in weights(file).items())
    without_card = tmp_path / "lonely.safetensors"
    without_card.write_bytes(Path(model).read_bytes())
    with pytest.raises(CheckpointError, match="the card of the checkpoint is missing"):
        train(tiny_recipe(card_fields, start=str(without_card)), tmp_path / "other", workers=0, progress=False)


@pytest.fixture
def with_nan(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Make the targets of some training batches NaN."""

    def spoil(indices: set[int]) -> None:
        def spoiled(recipe: Recipe, seed: int, index: int) -> dict[str, torch.Tensor]:
            batch = draw(recipe, seed, index)
            if seed != VALIDATION_SEED and index in indices:
                batch["mean"][:] = math.nan
            return batch

        monkeypatch.setattr(loop, "draw", spoiled)

    return spoil


def test_a_gradient_that_is_not_finite_changes_no_weight(
    card_fields: dict[str, Any], tmp_path: Path, with_nan: Callable[[set[int]], None]
) -> None:
    def trained(steps: int, name: str) -> dict[str, torch.Tensor]:
        recipe = tiny_recipe(card_fields, steps=steps, warmup=0, decay=0.0, averaging=0.0)
        return weights(train(recipe, tmp_path / name, workers=0, progress=False))

    one, two = trained(1, "one"), trained(2, "two")
    with_nan({1})
    spoiled = trained(2, "spoiled")
    assert all(torch.equal(value, one[key]) for key, value in spoiled.items())
    assert any(not torch.equal(value, two[key]) for key, value in spoiled.items())


def test_a_loss_that_is_not_finite_is_left_out_of_the_smoothed_one(
    card_fields: dict[str, Any], tmp_path: Path, with_nan: Callable[[set[int]], None]
) -> None:
    with_nan({0, 2})
    train(tiny_recipe(card_fields, steps=4, validate_every=1), tmp_path, workers=0, progress=False)
    first, second, third, fourth = (float(row["loss"]) for row in curve(tmp_path))
    assert math.isnan(first)
    assert math.isfinite(second)
    assert third == second
    assert math.isfinite(fourth)
    assert fourth != third


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def heeded() -> Iterator[None]:
    """Interrupts raise KeyboardInterrupt, which a shell takes from what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_died_before_its_first_state_leaves_nothing_in_the_curve(
    resume: bool, card_fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(card_fields, steps=4, validate_every=1)
    with monkeypatch.context() as cut:
        before_step(cut, cut_before(2))
        with pytest.raises(PowerCutError):
            train(recipe, tmp_path, workers=0, progress=False)
    assert [row["step"] for row in curve(tmp_path)] == ["1", "2"]
    train(recipe, tmp_path, resume=resume, workers=0, progress=False)
    assert [row["step"] for row in curve(tmp_path)] == ["1", "2", "3", "4"]


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupt_is_heeded_after_the_step_and_saves_the_state(
    workers: int, card_fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(card_fields, steps=6)
    straight = train(recipe, tmp_path / "straight", workers=0, progress=False)

    def interrupt(step: int) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGINT)

    out = tmp_path / "broken"
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        before_step(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, out, workers=workers, progress=False)
    assert signal.getsignal(signal.SIGINT) is handler
    assert torch.load(out / "state.pt", weights_only=True)["step"] == 3
    file = train(recipe, out, resume=True, workers=workers, progress=False)
    expected = weights(straight)
    assert all(torch.equal(value, expected[key]) for key, value in weights(file).items())
    assert curve(out) == curve(straight.parent)


@pytest.mark.usefixtures("heeded")
def test_a_second_interrupt_stops_within_a_step(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(_: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("still running")

    before_step(monkeypatch, twice)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "new" / "run", workers=0, progress=False)
    assert list(tmp_path.iterdir()) == []


# --- resumed runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", 1, r"training\.seed was 0, now is 1"),
        ("batch_size", 2, r"training\.batch_size was 1, now is 2"),
        ("optimiser", "yogi", r"training\.optimiser was 'adamw', now is 'yogi'"),
        ("precision", "bf16", r"training\.precision was 'float32', now is 'bf16'"),
        ("keep", "best", r"training\.keep was 'last', now is 'best'"),
    ],
)
def test_changes_that_would_make_another_run_are_refused(
    key: str, value: object, message: str, recipe: Recipe, tmp_path: Path, card_fields: dict[str, Any]
) -> None:
    train(recipe, tmp_path, workers=0, progress=False)
    with pytest.raises(RecipeError, match=rf"state\.pt was written by another recipe: {message}; restore"):
        train(tiny_recipe(card_fields, **{key: value}), tmp_path, resume=True, workers=0, progress=False)


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_damaged_state_is_named(kept: int, recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path, workers=0, progress=False)
    file = tmp_path / "state.pt"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(RecipeError, match=r"cannot resume from .*state\.pt \(\w+\): it is damaged.* Remove its folder"):
        train(recipe, tmp_path, resume=True, workers=0, progress=False)


def test_another_prior_or_number_of_devices_makes_another_run(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path, workers=0, progress=False)
    other = recipe.model_copy(update={"prior": replace(recipe.prior, p_gaussian=0.5)})
    with pytest.raises(RecipeError, match=r"prior\.p_gaussian was 0\.7, now is 0\.5"):
        train(other, tmp_path, resume=True, workers=0, progress=False)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    torch.save({**state, "devices": 2}, tmp_path / "state.pt")
    with pytest.raises(RecipeError, match="--devices was 2, now is 1"):
        train(recipe, tmp_path, resume=True, workers=0, progress=False)


def test_states_of_older_versions_are_resumed(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path, workers=0, progress=False)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    stored = json.loads(state["recipe"])
    del state["devices"], stored["training"]["mean_weight"], stored["prior"]["p_wide"]
    stored["training"]["momentum"] = 0.5
    torch.save({**state, "recipe": json.dumps(stored)}, tmp_path / "state.pt")
    assert train(recipe, tmp_path, resume=True, workers=0, progress=False).is_file()


def test_the_frequency_of_validation_may_change_and_the_start_may_be_gone(
    card_fields: dict[str, Any], model: str, tmp_path: Path
) -> None:
    started = tiny_recipe(card_fields, steps=2, start=model)
    train(started, tmp_path, workers=0, progress=False)
    gone = str(tmp_path / "gone.safetensors")
    later = tiny_recipe(card_fields, steps=4, start=gone, validate_every=1, save_every_s=1.0)
    train(later, tmp_path, resume=True, workers=0, progress=False)
    assert [row["step"] for row in curve(tmp_path)] == ["2", "3", "4"]
    with pytest.raises(ModelError, match="no checkpoint at"):
        train(later, tmp_path / "new", workers=0, progress=False)
    assert not (tmp_path / "new").exists()


def test_cards_hold_no_nan(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "scores", lambda *_: {"nll": math.nan, "kl": 1.0, "crps_ratio": 1.0, "coverage_95": 0.9})
    file = train(recipe, tmp_path, workers=0, progress=False)
    assert checkpoint.load_card(str(file)).scores == {"kl": 1.0, "crps_ratio": 1.0, "coverage_95": 0.9}
    assert "NaN" not in file.with_suffix(".json").read_text()


# --- batches and schedule ---------------------------------------------------------------------------------------------


def test_batches_are_functions_of_seed_and_step(card_fields: dict[str, Any]) -> None:
    recipe = tiny_recipe(card_fields, batch_size=2)
    batch, again = draw(recipe, 5, 7), draw(recipe, 5, 7)
    assert all(torch.equal(value, again[key]) for key, value in batch.items())
    for other in (draw(recipe, 5, 8), draw(recipe, 6, 7)):
        assert not torch.equal(batch["yc"], other["yc"])


@given(st.integers(1, 500), st.integers(0, 100), st.floats(0, 1))
def test_the_learning_rate_rises_stays_and_falls_to_zero(steps: int, warmup: int, decay: float) -> None:
    options = Training(steps=steps, warmup=warmup, decay=decay, learning_rate=0.5)
    rates = [learning_rate(step, options) for step in range(steps)]
    begin = steps - decay * steps
    assert all(0 < rate <= 0.5 for rate in rates)
    for step, rate in enumerate(rates):
        if step <= begin:
            assert rate == pytest.approx(0.5 * min(1, (step + 1) / max(warmup, 1)))
        elif step >= warmup:
            assert rate <= rates[step - 1]
    assert learning_rate(steps, options) == pytest.approx(
        0.0 if decay > 0 else 0.5 * min(1, (steps + 1) / max(warmup, 1))
    )


def test_the_learning_rate_by_hand() -> None:
    options = Training(steps=100, warmup=10, decay=0.4, learning_rate=1.0)
    assert [learning_rate(step, options) for step in (0, 4, 9, 59, 80)] == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.5])


# --- losses and scores ------------------------------------------------------------------------------------------------


def test_expected_nll_is_the_mean_over_samples_and_targets() -> None:
    g = torch.Generator().manual_seed(0)
    loc, scale = torch.randn(3, 4, generator=g), 0.5 + torch.rand(3, 4, generator=g)
    mean, variance = torch.randn(3, 4, generator=g), torch.rand(3, 4, generator=g)
    mask = torch.tensor([[True, True, False, False], [True] * 4, [False, True, True, False]])
    batch = {"mean": torch.where(mask, mean, 1e6), "variance": variance, "target_mask": mask}
    got = expected_nll(Normal(loc[..., None], scale[..., None]), batch)
    draws = mean + variance.sqrt() * torch.randn(200_000, 3, 4, generator=g)
    nll = -Normal(loc, scale).log_prob(draws).mean(0)
    expected = torch.stack([nll[i][mask[i]].mean() for i in range(3)]).mean()
    assert float(got) == pytest.approx(float(expected), abs=0.01)
    sampled = {**batch, "variance": torch.zeros(3, 4)}
    exact = torch.stack([-Normal(loc, scale).log_prob(mean)[i][mask[i]].mean() for i in range(3)]).mean()
    assert float(expected_nll(Normal(loc[..., None], scale[..., None]), sampled)) == pytest.approx(
        float(exact), rel=1e-5
    )


@given(st.floats(-3, 3), st.floats(0.3, 3), st.floats(0.5, 1), st.sampled_from([0.0, 0.05, 0.3]))
def test_expected_crps_against_quadrature(offset: float, deviation: float, exact: float, tail: float) -> None:
    """CRPS = integral of (F(x) - [y <= x])^2, whose expectation over y is F^2 - 2 F G + G."""
    x = np.linspace(-100, 100, 40_001)
    student = stats.t(1 / tail, offset, deviation * math.sqrt(1 - 2 * tail)) if tail else stats.norm(offset, deviation)
    f, g = student.cdf(x), stats.norm.cdf(x, 0, exact)
    expected = integrate.trapezoid(f**2 - 2 * f * g + g, x)
    got = expected_crps(*(np.array(a) for a in (offset, deviation, tail, exact)))
    assert float(got) == pytest.approx(expected, rel=5e-3)


class Oracle(nn.Module):
    """Predicts what the batch says, shifted and widened."""

    def __init__(self, batch: dict[str, torch.Tensor], shift: float, widen: float) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        exact = batch["variance"].sqrt()
        self.answer = Normal((batch["mean"] + shift * exact)[..., None], (widen * exact)[..., None])

    def forward(self, *_: torch.Tensor) -> Normal:
        return self.answer


@pytest.mark.parametrize(("shift", "widen"), [(0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (-0.5, 0.5)])
def test_scores_of_a_known_prediction(shift: float, widen: float) -> None:
    g = torch.Generator().manual_seed(0)
    batch = {
        "mean": torch.randn(4, 5, generator=g),
        "variance": 0.1 + torch.rand(4, 5, generator=g),
        "target_mask": torch.rand(4, 5, generator=g) < 0.7,
        "exact": torch.tensor([True, True, False, True]),
        **{key: torch.zeros(4, 5, 1) for key in ("xc", "yc", "xt", "context_mask")},
    }
    got = scores(Oracle(batch, shift, widen), [batch, batch])
    assert got["kl"] == pytest.approx(math.log(widen) + (1 + shift**2) / (2 * widen**2) - 0.5, abs=2e-5)
    interval = stats.norm.cdf(shift + 1.959964 * widen) - stats.norm.cdf(shift - 1.959964 * widen)
    assert got["coverage_95"] == pytest.approx(interval, abs=2e-5)
    spread = math.sqrt(1 + widen**2)
    folded = spread * (
        math.sqrt(2 / math.pi) * math.exp(-((shift / spread) ** 2) / 2)
        + shift / spread * math.erf(shift / spread / 2**0.5)
    )
    assert got["crps_ratio"] == pytest.approx(math.sqrt(math.pi) * folded - widen, abs=2e-5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.config.heads=7", r"qk_dim and v_dim must be multiples of heads"),
        ("model.config.dim=0", r"model\.config\.dim=0.*; expected options that fit together"),
        ("model.config.likelihood=count", "likelihood must be one of gaussian, categorical, got 'count'"),
    ],
)
def test_models_that_cannot_be_built_are_refused_before_anything_is_made(
    tmp_path: Path, override: str, message: str
) -> None:
    before = torch.get_rng_state()
    with pytest.raises(RecipeError, match=f"recipe tnpkr-sa: tnp-kr cannot be built with .*{message}"):
        train(load("tnpkr_sa_raster", [override]), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(torch.get_rng_state(), before)


def test_the_distance_of_the_mean_counts_as_much_as_asked(tmp_path: Path, card_fields: dict[str, Any]) -> None:
    """The first loss of a run with it is that of a run without it plus as many times the distance."""
    first = {}
    for weight in (0.0, 1.0, 3.0):
        out = tmp_path / str(weight)
        train(tiny_recipe(card_fields, steps=1, mean_weight=weight), out, workers=0, progress=False)
        first[weight] = float(curve(out)[0]["loss"])
    assert first[1.0] > first[0.0] + 1e-3
    assert first[3.0] - first[0.0] == pytest.approx(3 * (first[1.0] - first[0.0]), abs=1e-4)


def test_the_distance_of_the_mean_is_quadratic_near_and_linear_far() -> None:
    batch = {"mean": torch.tensor([[0.1, 100.0, 5.0]]), "target_mask": torch.tensor([[True, True, False]])}
    predicted = Normal(torch.zeros(1, 3, 1), torch.ones(1, 3, 1))
    assert float(mean_distance(predicted, batch)) == pytest.approx((0.005 + 99.005) / 2, rel=1e-3)
