"""The predictive distribution against scipy and scoringrules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Normal, StudentT

from geonp.errors import InputError
from geonp.inference import student
from geonp.inference.warping import Warping
from geonp.nn.heads import KRIGING, tail_of

TAILS = st.one_of(st.just(0.0), st.floats(student.LIGHTEST, KRIGING.max_tail))


def reference(mean: float, deviation: float, tail: float) -> stats.rv_frozen:
    """The distribution by its usual parameters."""
    return stats.t(1 / tail, mean, deviation * math.sqrt(1 - 2 * tail)) if tail else stats.norm(mean, deviation)


def arrays(*numbers: float) -> list[np.ndarray]:
    return [np.array(number) for number in numbers]


@given(st.floats(-5, 5), st.floats(0.01, 10), TAILS, st.floats(0.01, 0.99))
def test_against_scipy(mean: float, deviation: float, tail: float, level: float) -> None:
    of, expected = arrays(mean, deviation, tail), reference(mean, deviation, tail)
    assert expected.std() == pytest.approx(deviation)
    assert student.quantile(level, *of) == pytest.approx(expected.ppf(level), rel=1e-6, abs=1e-9)
    low, high = expected.interval(level)
    assert 2 * student.half_width(*of[1:], level) == pytest.approx(high - low, rel=1e-6)


@given(st.floats(-5, 5), st.floats(0.01, 10), TAILS, st.floats(-20, 20))
def test_crps_against_scoringrules(scoringrules: Any, mean: float, deviation: float, tail: float, y: float) -> None:
    expected = (
        scoringrules.crps_t(y, 1 / tail, mean, deviation * math.sqrt(1 - 2 * tail))
        if tail
        else scoringrules.crps_normal(y, mean, deviation)
    )
    assert student.crps(np.array(y), *arrays(mean, deviation, tail)) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("warping", [None, Warping(lower=0.0, lower_power=0.5)])
def test_cells_without_a_prediction_have_none_and_observed_cells_their_value(warping: Warping | None) -> None:
    of = student.Distribution(np.array([2.0, np.nan, 2.0]), np.array([0.5, np.nan, 0.0]), np.array([0.1, np.nan, 0.0]))
    of = replace(of, warping=warping)
    rng = np.random.default_rng(0)
    for found in (
        of.mean(),
        of.std(),
        of.median(),
        of.sf(1.0),
        of.cdf(1.0),
        of.ppf(0.9),
        of.rvs(rng),
        of.crps(of.mean()),
    ):
        assert np.isnan(found).tolist() == [False, True, False]
    value = of.median()[2]
    assert (of.mean()[2], of.ppf(0.9)[2], of.rvs(rng)[2]) == (pytest.approx(value), value, value)
    assert (of.std()[2], of.crps(np.full(3, value + 3.0))[2]) == pytest.approx((0.0, 3.0), abs=1e-6)


def test_integers_that_stay_empty_have_no_distribution() -> None:
    values = xr.DataArray(np.array([[7, -99]], np.int16), dims=("y", "x"), attrs={"_FillValue": np.int16(-99)})
    parts = {"a_standard_error": (("y", "x"), [[2.0, np.nan]]), "a_tail": (("y", "x"), [[0.1, np.nan]])}
    of = student.Distribution.of(xr.Dataset({"a": values, **parts}), "a")
    for found in (of.mean(), of.median(), of.ppf(0.5)):
        np.testing.assert_array_equal(found, [[7, np.nan]])


def test_small_probabilities_and_levels() -> None:
    of = student.Distribution(np.zeros(2), np.ones(2), np.array([0.0, 0.1]))
    expected = [reference(0, 1, tail).cdf(-12) for tail in (0.0, 0.1)]
    np.testing.assert_allclose(of.cdf(-12), expected, rtol=1e-6)
    np.testing.assert_allclose(of.sf(12), expected, rtol=1e-6)
    for wrong in (of.ppf, of.interval):
        with pytest.raises(InputError, match="a number from 0 to 1, got 95"):
            wrong(95)
    with pytest.raises(InputError, match="a number from 0 to 1, got"):
        of.ppf(np.array([0.1, 0.9]))  # type: ignore[arg-type]


def test_a_light_tail_is_a_normal_distribution() -> None:
    y = np.linspace(-6, 6, 25)
    near, normal = (student.crps(y, *arrays(0.5, 1.5, tail)) for tail in (student.LIGHTEST, 0.0))
    np.testing.assert_allclose(near, normal, atol=0.02)


@pytest.mark.parametrize("tail", [0.0, 0.1, 0.2, KRIGING.max_tail])
def test_95_percent_lie_within_1_96_standard_deviations(tail: float) -> None:
    assert np.diff(reference(0, 1, tail).cdf([-1.96, 1.96])) == pytest.approx(0.95, abs=0.005)


def test_tails_of_distributions() -> None:
    heavy = StudentT(torch.tensor([4.0, 10.0]), torch.zeros(2), torch.ones(2))
    assert tail_of(heavy).tolist() == pytest.approx([0.25, 0.1])
    assert tail_of(Normal(torch.zeros(2), torch.ones(2))).tolist() == [0, 0]
