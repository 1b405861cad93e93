from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from geonp.errors import InputError
from geonp.evaluation.metrics import LEVELS, Scores, require_scorable, score

Z95 = 1.959963984540054


def one(truth: float, mean: float, error: float) -> Scores:
    return score(np.array([truth]), np.array([mean]), np.array([error]))


def test_scores_of_one_cell_in_closed_form() -> None:
    scores = one(truth=3.0, mean=5.0, error=2.0)
    density = math.exp(-0.5) / math.sqrt(2 * math.pi)
    upper = 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    assert (scores.cells, scores.rmse, scores.mae, scores.bias) == (1, 2.0, 2.0, 2.0)
    assert scores.crps == pytest.approx(2 * ((2 * upper - 1) + 2 * density - 1 / math.sqrt(math.pi)))
    assert scores.log_score == pytest.approx(0.5 + math.log(2) + 0.5 * math.log(2 * math.pi))
    assert scores.interval_score == pytest.approx(2 * Z95 * 2)
    assert [scores.coverage(level) for level in LEVELS] == [0.0, 1.0, 1.0]


def test_scores_of_a_student_distribution(scoringrules: Any) -> None:
    tail, error = 0.25, 2.0
    df, scale = 1 / tail, error * math.sqrt(1 - 2 * tail)
    scores = score(np.array([3.0]), np.array([5.0]), np.array([error]), tail=np.array([tail]))
    assert scores.log_score == pytest.approx(scoringrules.logs_t(3.0, df, 5.0, scale))
    assert scores.crps == pytest.approx(scoringrules.crps_t(3.0, df, 5.0, scale))
    half = scale * stats.t.ppf(0.975, df)
    assert scores.interval_score == pytest.approx(2 * half)
    for truth in (-3.0, 5.0, 3.0 + 3 * half):
        far = score(np.array([truth]), np.array([5.0]), np.array([error]), tail=np.array([tail]))
        assert far.interval_score == pytest.approx(scoringrules.interval_score(truth, 5.0 - half, 5.0 + half, 0.05))


def test_crps_at_the_mean_is_the_known_constant() -> None:
    assert one(0.0, 0.0, 1.0).crps == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi))


def test_interval_score_punishes_a_miss_by_its_distance() -> None:
    assert one(Z95 + 1.0, 0.0, 1.0).interval_score == pytest.approx(2 * Z95 + 2 / 0.05)


def test_zero_error_gives_the_scores_of_a_point_prediction() -> None:
    assert one(1.0, 1.0, 0.0).crps == pytest.approx(0.0, abs=1e-12)
    assert one(1.0, 4.0, 0.0).crps == pytest.approx(3.0)


def test_units_of_any_size_scale_the_scores() -> None:
    small, usual = one(1e-15, 3e-15, 1e-15), one(1.0, 3.0, 1.0)
    assert small.crps == pytest.approx(1e-15 * usual.crps)
    assert small.coverage(0.95) == usual.coverage(0.95)


@pytest.mark.parametrize("values", [[1e300, 2e300], [1e-300, 2e-300], [np.nan, -1e200]])
def test_values_whose_squares_are_no_numbers_are_refused(values: list[float]) -> None:
    require_scorable(np.array([1e-12, np.nan, 1e12]), "a")
    with pytest.raises(InputError, match=r"'a' cannot be scored: got values from .* in another unit"):
        require_scorable(np.array(values), "a")


def test_log_score_stays_finite_where_the_density_underflows() -> None:
    assert one(0.0, 100.0, 1.0).log_score == pytest.approx(5000 + 0.5 * math.log(2 * math.pi))


def test_calibrated_predictions_are_covered_as_they_say() -> None:
    rng = np.random.default_rng(7)
    mean, error = rng.normal(size=200_000), rng.lognormal(size=200_000)
    scores = score(mean + error * rng.normal(size=mean.size), mean, error)
    assert [scores.coverage(level) for level in LEVELS] == pytest.approx(LEVELS, abs=0.004)


def test_only_cells_with_a_truth_and_within_where_are_scored() -> None:
    truth = np.array([[1.0, np.nan], [3.0, 4.0]])
    where = np.array([[True, True], [True, False]])
    scores = score(truth, np.full((2, 2), 2.0), np.ones((2, 2)), where)
    assert (scores.cells, scores.bias) == (2, 0.0)


def test_nothing_scored_gives_nan() -> None:
    assert math.isnan(Scores().rmse)
    assert score(np.full(3, np.nan), np.zeros(3), np.ones(3)) == Scores()


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30), st.data())
def test_merged_parts_equal_the_whole(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(values)))
    truth = np.array(values)
    mean, error = np.roll(truth, 1), np.linspace(0.5, 3, truth.size)
    parts = [score(truth[s], mean[s], error[s]) for s in (slice(cut), slice(cut, None))]
    whole = dataclasses.asdict(score(truth, mean, error))
    for name, merged in dataclasses.asdict(sum(parts, start=Scores())).items():
        assert merged == pytest.approx(whole[name], rel=1e-9, abs=1e-9)


def test_as_dict_names_every_score() -> None:
    assert list(one(0.0, 1.0, 1.0).as_dict()) == [
        "cells",
        "rmse",
        "mae",
        "bias",
        "crps",
        "log_score",
        "interval_score",
        "coverage_50",
        "coverage_80",
        "coverage_95",
    ]


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match=r"must have one shape, got \[\(2,\), \(3,\), \(3,\), \(3,\)\]"):
        score(np.zeros(2), np.zeros(3), np.ones(3))
    with pytest.raises(InputError, match="1 of 2 scored cells have no finite mean"):
        score(np.zeros(2), np.array([0.0, np.nan]), np.ones(2))
    with pytest.raises(InputError, match="1 of 2 scored cells"):
        score(np.zeros(2), np.zeros(2), np.array([1.0, -1.0]))
    with pytest.raises(InputError, match=r"at the levels .* got 0\.9"):
        Scores().coverage(0.9)
