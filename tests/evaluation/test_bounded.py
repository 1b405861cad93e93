"""Evaluation within bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import integrate, stats

import geonp
from geonp.errors import InputError
from geonp.evaluation.bounded import beyond_within, covered_within, cut_off, score_within
from geonp.evaluation.metrics import score
from geonp.evaluation.report import render
from geonp.inference.student import Distribution
from geonp.inference.warping import Warping

pytestmark = pytest.mark.usefixtures("few_patches")

HERE = np.ones(1, bool)


@pytest.mark.parametrize("limits", [(0.0, math.inf), (-math.inf, 4.0), (0.0, 4.0)])
@pytest.mark.parametrize("truth", [0.0, 0.7, 3.0, 4.0])
def test_what_is_beyond_a_bound_counts_as_the_bound(limits: tuple[float, float], truth: float) -> None:
    mean, error, y = np.array([-0.5]), np.array([1.5]), np.array([truth])
    value, parts = cut_off(mean, error, limits)
    found = score_within(y, value, HERE, parts)
    low, high = max(limits[0], -20.0), min(limits[1], 20.0)
    normal = stats.norm(-0.5, 1.5)
    crps = integrate.quad(lambda x: normal.cdf(x) ** 2, low, truth)[0]
    crps += integrate.quad(lambda x: normal.sf(x) ** 2, truth, high)[0]
    assert found.crps == pytest.approx(crps, abs=2e-3)
    assert found.crps <= score(y, mean, error).crps + 2e-3
    assert found.mae == abs(np.clip(-0.5, *limits) - truth)
    ends = np.clip(normal.ppf([0.025, 0.975]), *limits)
    missed = max(ends[0] - truth, truth - ends[1], 0)
    assert found.interval_score == pytest.approx(ends[1] - ends[0] + 40 * missed, rel=1e-4)
    assert found.coverage(0.95) == (missed == 0) == covered_within(y, HERE, parts, 0.95)[0]
    assert math.isnan(found.log_score)
    assert found.as_dict()["log_score"] is None


def test_the_crps_of_skewed_values_is_that_of_their_quantiles() -> None:
    of = Distribution(
        np.array([-0.3, 1.0]), np.array([0.8, 0.5]), np.array([0.0, 0.2]), Warping(lower=0.0, lower_power=0.4)
    )
    y = np.array([0.6, 0.0])
    quantiles = np.stack([of.ppf(level) for level in (np.arange(20_000) + 0.5) / 20_000], -1)
    crps = np.abs(quantiles - y[:, None]).mean(1) - (np.linspace(-1, 1, 20_000) * quantiles).mean(1)
    np.testing.assert_allclose(of.crps(y), crps, rtol=5e-4)
    normal = Distribution(of.location, of.deviation, of.tail)
    assert score(y, of.location, of.deviation, tail=of.tail).crps == pytest.approx(normal.crps(y).mean())
    ends = of.interval(0.95)
    both = np.ones(2, bool)
    np.testing.assert_allclose(beyond_within(ends[1], [(both, of)]), 1.0, rtol=1e-3)


def rain() -> xr.DataArray:
    y, x = np.mgrid[:32, :36]
    values = np.maximum(np.sin(x / 5) + np.cos(y / 6) + 0.2 * np.random.default_rng(0).standard_normal(x.shape), 0) ** 2
    return xr.DataArray(values.astype(np.float32), dims=("y", "x"), name="rain", attrs={"valid_min": np.float32(0)})


def test_scores_are_those_of_a_fill_within_the_bounds(model: str) -> None:
    options: dict[str, Any] = {"model": model, "bounds": (0, None)}
    found = rain().geonp.evaluate(**options, baselines=["linear", "thin_plate"])
    filled = xr.DataArray(found.test.values, dims=("y", "x"), name="rain").geonp.infill(**options, tails=True)
    of = Distribution.of(filled, "rain").at(found.scored)
    y = found.truth[found.scored].astype(np.float64)
    ours = found.scores["geonp"]
    assert ours.crps == pytest.approx(of.crps(y).mean())
    assert ours.rmse == pytest.approx(np.sqrt(np.mean((filled["rain"].values[found.scored] - y) ** 2)))
    low, high = of.interval(0.8)
    assert ours.coverage(0.8) == np.mean((low <= y) & (y <= high)) == found.reliability("geonp", [0.8])[0]
    assert found.reliability("linear", [0.95])[0] == found.scores["linear"].coverage(0.95)
    assert all(p.mean[found.scored].min() >= 0 for p in found.predictions.values())
    assert list(found.winners) == ["rmse", "mae", "crps", "interval_score"]
    assert "log score" not in found.table() + render(found)
    assert found.to_dict()["scores"]["linear"]["log_score"] is None
    declared = rain().geonp.evaluate(model=model, bounds="valid_range", baselines=["linear"])
    assert declared.scores["geonp"].crps == ours.crps


def test_slices_beside_are_filled_within_their_bounds(model: str) -> None:
    ds = xr.Dataset({"rain": rain(), "heat": rain() - 1.0})
    found = ds.geonp.evaluate(model=model, bounds={"rain": (0, None)}, across="variables", baselines=["nearest"])
    assert found.predictions["geonp + across"].within
    assert found.predictions["geonp + across"].mean[found.scored].min() >= 0


def test_measurements_are_scored_within_bounds(model: str) -> None:
    x, y = np.random.default_rng(0).uniform(0, 20, (2, 40))
    frame = pd.DataFrame({"x": x, "y": y, "rain": np.maximum(np.sin(x / 3) + 0.2 * y - 2, 0)})
    found = geonp.cross_validate(frame, values="rain", folds=3, model=model, bounds=(0, None), baselines=["kriging"])
    ours = found.predictions["geonp"]
    assert len({id(of.warping) for _, of in ours.within}) == 3
    assert min(p.mean.min() for p in found.predictions.values()) >= 0
    fold = found.measurements["fold"].to_numpy()
    known = fold != fold[0]
    again = geonp.interpolate(frame[known], frame[~known], values="rain", model=model, bounds=(0, None), tails=True)
    of = Distribution.of(again, "rain")
    (part,) = [of for where, of in ours.within if where[0]]
    assert part.at(~known).crps(found.truth[~known]).mean() == pytest.approx(of.crps(found.truth[~known]).mean(), 1e-3)
    assert (found.doubtful["interval_halves"] > 1).all()


@pytest.mark.filterwarnings("ignore:aspect. directions are filled as numbers")
def test_bounds_that_cannot_be_used_are_refused(model: str) -> None:
    with pytest.raises(InputError, match="bounds cannot be combined with directions: 'aspect' is one"):
        rain().rename("aspect").assign_attrs(units="degree").geonp.evaluate(model=model, bounds=(0, 360))
    with pytest.raises(InputError, match="bounds must name variables that are filled: got snow, expected some of rain"):
        rain().geonp.evaluate(model=model, bounds={"snow": (0, None)})
    frame = pd.DataFrame({"x": [1, 2, 3, 4, 5], "y": [1, 3, 2, 5, 4], "rain": [0.0, 1, 2, 3, 4]})
    with pytest.raises(InputError, match="declares no valid_range, valid_min or valid_max"):
        geonp.cross_validate(frame, folds=2, model=model, bounds="valid_range")
