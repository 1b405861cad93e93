"""The benchmarks of the papers' tables: one budget for all, what is finished is not done again, and true regrets."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.distributions import Categorical, Normal

FOLDER = Path(__file__).parents[1] / "benchmarks" / "papers"


@pytest.fixture(scope="module")
def papers() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules `tables` and `bayesopt`, as scripts of their folder see them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import bayesopt
        import tables

        yield tables, bayesopt
    for name in ("tables", "bayesopt", "shift", "sir", "era5"):
        sys.modules.pop(name, None)


class Known(nn.Module):
    """Predicts ``(x - 1)^2``, sure of it."""

    def forward(self, xc: torch.Tensor, yc: torch.Tensor, xt: torch.Tensor) -> Normal:
        return Normal((xt - 1).square(), torch.full_like(xt, 1e-3))


def test_a_model_that_knows_the_function_has_no_regret(papers: tuple[ModuleType, ModuleType]) -> None:
    _, bayesopt = papers
    x = torch.linspace(-2, 2, 81)[torch.randperm(81, generator=torch.Generator().manual_seed(0))]
    x = x.expand(3, -1)[..., None]
    for acquire in (bayesopt.expected_improvement, bayesopt.confidence_bound):
        assert bayesopt.regret(Known(), x, (x - 1).square(), acquire, steps=1).tolist() == [0, 0, 0]
    # and one that is asked for nothing has that of what was known
    expected = (x[:, :10] - 1).square().amin((1, 2)) - (x - 1).square().amin((1, 2))
    assert torch.equal(bayesopt.regret(Known(), x, (x - 1).square(), bayesopt.confidence_bound, steps=0), expected)


def test_expected_improvement_is_an_expectation(papers: tuple[ModuleType, ModuleType]) -> None:
    _, bayesopt = papers
    for mean, scale, best in ((0.3, 0.5, 0.1), (-1.0, 0.2, 0.0), (2.0, 1.0, 0.0)):
        got = bayesopt.expected_improvement(*(torch.tensor([[v]], dtype=torch.float64) for v in (mean, scale, best)), 1)
        density = stats.norm(mean, scale + 1e-5).pdf
        expected, _ = integrate.quad(lambda y, d=density, b=best: max(b - y, 0) * d(y), -10, best)
        assert float(got) == pytest.approx(expected, rel=1e-4)


def test_a_table_is_made_once(papers: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    tables, _ = papers
    given = tables.arguments("", ["gp1d_rbf"], ["CNP", "CANP"], test_batches=3).parse_args(
        ["--steps", "2", "--batch-size", "2", "--out", str(tmp_path), "--pages", str(tmp_path / "pages")]
    )
    overrides = ["training.validation_batches=1"]

    def score(network: nn.Module, recipe: object) -> dict[str, float]:
        return tables.nll(network, recipe, given.test_batches)

    found = tables.run(given, score, overrides)
    assert set(found) == {"CNP", "CANP"}
    assert found["CNP"]["exact"] == found["CANP"]["exact"] < found["CNP"]["nll"]
    text = tables.report(found, {"paper, table 3": {"CNP": -0.1}})
    assert text.count("\n") == 3
    assert "| 2 x 2 |" in text
    tables.publish(given, found, "rbf", tables.budget(given), text)
    page = (tmp_path / "pages" / "rbf.md").read_text()
    assert "2 steps of 2 tasks for every model, 0.00013 % of the tasks that the paper trained on (100,000 x 32)" in page
    assert "all are scored on the same 6 test tasks." in page
    assert text in page
    assert "(rbf.png)" in page
    assert (tmp_path / "pages" / "rbf.png").read_bytes().startswith(b"\x89PNG")

    def never(*_: object) -> dict[str, float]:
        raise AssertionError("scored again")

    assert tables.run(given, never, overrides) == found
    given.only_print, given.models = True, ["CNP", "NP"]
    tables.run(given, never, overrides)
    assert tables.unfinished(given) == ["Unfinished: NP (no run)."]
    given.only_print, given.models = False, ["CNP", "CANP"]
    # scores of another number of batches are others, but their models are trained
    given.test_batches = 4
    again = tables.run(given, score, overrides)
    assert again["CNP"]["nll"] != found["CNP"]["nll"]
    assert again["CNP"]["minutes"] == found["CNP"]["minutes"]


def test_scores_are_means_over_seeds(papers: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    tables, _ = papers
    parser = tables.add_seeds(tables.arguments("", ["gp1d_rbf"], ["CNP"], test_batches=2))
    given = parser.parse_args(["--steps", "1", "--batch-size", "2", "--out", str(tmp_path), "--seeds", "2"])

    def score(network: nn.Module, recipe: object) -> dict[str, float]:
        return tables.nll(network, recipe, given.test_batches)

    found = tables.run(given, score, ["training.validation_batches=1"])["CNP"]
    given.seeds = 1
    first = tables.run(given, score, [])["CNP"]
    other = tables.read_scores(Path(first["folder"], "seed-1", "scores.json"), {"test_batches": "2"})
    assert first["nll"] != other["nll"]
    assert first["exact"] == other["exact"], "all are scored on the same tasks"
    assert found["nll"] == pytest.approx((first["nll"] + other["nll"]) / 2)
    assert found["spread"] == pytest.approx(abs(first["nll"] - other["nll"]) / 2**0.5)
    assert f"| {found['spread']:.3f} | 1 x 2 |" in tables.report({"CNP": found}, {})
    given.seeds, given.only_print = 3, True
    assert tables.run(given, score, []) == {}
    assert tables.unfinished(given) == ["Unfinished: CNP, seed 2 (no run)."]
    assert "means over 3 training seeds (0 to 2)" in tables.budget(given)


def test_models_are_scored_on_images_that_training_does_not_see(papers: tuple[ModuleType, ModuleType]) -> None:
    tables, _ = papers
    recipe = tables.variant("images_digits", "CNP", [], {"min_scale": 0.05})
    seen: list[torch.Tensor] = []

    class Watching(nn.Module):
        def forward(self, xc: torch.Tensor, yc: torch.Tensor, xt: torch.Tensor, mask: torch.Tensor) -> Normal:
            seen.append(yc)
            return Normal(torch.zeros_like(xt[..., :1]), 1.0)

    tables.nll(Watching(), recipe, 2)
    held_out = recipe.data.held_out()
    expected = [held_out.batch(tables.TEST_SEED, i, recipe.training.batch_size)["yc"] for i in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("size", [8, 1])
def test_every_batch_is_of_another_epidemic(papers: tuple[ModuleType, ModuleType], size: int) -> None:
    """A network that knows the context and nothing else: targets that are context are told apart."""
    tables, _ = papers
    import sir

    from geonp.training.data.epidemics import Epidemic

    data = Epidemic(side=16, frames=9, n_context=(20, 40), n_targets=100)
    recipe = tables.variant("sir", "CNP", [f"training.batch_size={size}"], {"likelihood": "categorical"})
    recipe = recipe.model_copy(update={"data": data})
    seen: list[torch.Tensor] = []

    class Certain(nn.Module):
        def forward(self, xc: torch.Tensor, yc: torch.Tensor, xt: torch.Tensor, mask: torch.Tensor) -> Categorical:
            seen.append(yc)
            logits = torch.zeros(*xt.shape[:2], 3)
            n = min(xt.shape[1], yc.shape[1])
            logits[:, :n] = 1e3 * (yc * mask[..., None])[:, :n]
            return Categorical(logits=logits)

    found = sir.class_nll(Certain(), recipe, 3)
    assert found["missing"] == pytest.approx(math.log(3), rel=1e-5)
    assert 0 < found["nll"] < found["missing"]
    sampled = sir.class_nll(Certain(), recipe, 3, sample=5)
    assert sampled["nll"] == pytest.approx(found["nll"], rel=1e-5), "the share of the context stays what it is"
    deals = max(1, 9 // size)
    assert all(torch.equal(yc, data.batch(tables.TEST_SEED, i * deals, size)["yc"]) for i, yc in enumerate(seen[:3]))


@pytest.mark.skipif(not Path("../shared/data/era5_t2m_uk_2019-03_hourly.nc").exists(), reason="needs the shared data")
def test_era5_is_scored_on_later_days_and_elsewhere(papers: tuple[ModuleType, ModuleType]) -> None:
    tables, _ = papers
    import era5

    overrides = [f"data.path={era5.SHARED}/era5_t2m_uk_2019-03_hourly.nc", "training.batch_size=2"]
    overrides += [f"data.geopotential={era5.SHARED}/era5_geopotential_global_0p25.nc"]
    recipe = tables.variant("era5_british_isles", "CNP", overrides, era5.SIZES["CNP"])

    class Standard(nn.Module):
        def forward(self, xc: torch.Tensor, yc: torch.Tensor, xt: torch.Tensor, mask: torch.Tensor) -> Normal:
            return Normal(torch.zeros_like(xt[..., :1]), 1.0)

    found = era5.scores(Standard(), recipe, 3)
    assert {name: len(values) for name, values in found.items()} == {"training area": 3, "test area": 3}
    assert found["training area"] != found["test area"]
    assert recipe.data.test_area[1] > recipe.data.area[3]  # no column of cells is in both
    sets = era5.sets(recipe.data)
    assert sets["training area"].test_period[0] > recipe.data.period[1]
    assert sets["test area"].test_period == recipe.data.period


def test_the_paper_s_regions_are_in_the_recipe(
    papers: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, _ = papers
    import era5

    said = era5.described(tables.variant("era5", "CNP", [], era5.SIZES["CNP"]).data)
    assert "training area 42 to 53 N, 8 to 28 E, all days; test area 1 42 to 53 N, -4 to 8 E" in said
    monkeypatch.setattr("sys.argv", ["era5.py", "--data", "nowhere.zarr"])
    era5.main()
    told = capsys.readouterr().err
    assert "# era5: skipped, no file nowhere.zarr; it needs hourly 2 m temperature" in told
    assert "geonp fetch era5 --area 62 -4 42 28" in told


def test_the_nll_of_the_exact_process_is_that_of_the_table(papers: tuple[ModuleType, ModuleType]) -> None:
    """A network that is the exact process scores what the column says."""
    tables, _ = papers
    recipe = tables.variant("gp1d_rbf", "CNP", ["training.batch_size=4"])

    class Exact(nn.Module):
        number = 0

        def forward(self, *_: torch.Tensor) -> Normal:
            self.number += 1
            return Normal(*(m.float() for m in recipe.data.exact(tables.TEST_SEED, self.number - 1, 4)))

    scores = tables.nll(Exact(), recipe, 3)
    assert scores["nll"] == pytest.approx(scores["exact"], abs=1e-3)
    assert math.isfinite(scores["error"])


@pytest.mark.parametrize(
    ("label", "config", "constant"),
    [
        ("TE-TNP", {"dim": 16, "heads": 2, "blocks": 2}, True),
        ("TE-PT-TNP", {"dim": 16, "heads": 2, "blocks": 2, "n_pseudo": 8}, True),
        ("TNP-KR-SA, invariant", {"dim": 16, "heads": 2, "blocks": 2, "qk_dim": 16, "v_dim": 16, "v_hidden": 0}, True),
        ("TNP-D", {}, False),
        ("CNP", {}, False),
    ],
)
def test_shifts_are_seen_by_models_that_know_places_alone(
    papers: tuple[ModuleType, ModuleType], label: str, config: dict[str, int], constant: bool
) -> None:
    """Whatever the weights: the log-likelihood is constant to 0.01 for shifts up to 100, or it is not."""
    from geonp.nn.models import build

    tables, _ = papers
    import shift

    torch.manual_seed(0)
    recipe = tables.variant("gp1d_shift", label, ["training.batch_size=2"], config)
    found = shift.shifted(build(recipe.model.architecture, recipe.model.config).eval(), recipe, 2)
    by_shift = [found[f"{s:g}"] for s in shift.SHIFTS]
    assert (max(by_shift) - min(by_shift) < 0.01) == constant


def test_every_model_of_the_tables_can_be_built(papers: tuple[ModuleType, ModuleType]) -> None:
    from geonp.nn.models import build

    tables, _ = papers
    for label in tables.MODELS:
        model = tables.variant("gp1d_rbf", label, []).model
        assert sum(p.numel() for p in build(model.architecture, model.config).parameters()) > 100_000
