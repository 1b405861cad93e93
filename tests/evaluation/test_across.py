"""Classical methods that fill a slice from other slices."""

from __future__ import annotations

import numpy as np
import pytest

from geonp.evaluation.across import ACROSS_METHODS, Stack, predict_across

TIMES = np.array([0.0, 1, 2.5, 4, 6, 7, 9, 10, 12, 13, 15, 16.5, 18])
SLICE = 5
SHAPE = (6, 8)


def case(series: np.ndarray, rng: np.random.Generator, *, whole: bool = False) -> tuple[np.ndarray, np.ndarray, Stack]:
    """The slice with gaps, its truth and the others, a tenth of whose cells is missing, of a stack."""
    others = np.where(rng.random(series.shape) < 0.1, np.nan, series)
    rest = np.arange(len(TIMES)) != SLICE
    truth = series[SLICE]
    values = np.where(whole | (rng.random(SHAPE) < 0.4), np.nan, truth)
    return values, truth, Stack(others[rest], TIMES[rest], float(TIMES[SLICE]), (6.0,))


def test_linear_by_hand() -> None:
    """Times 0, 1, 4 around 2; a cell that only later ones observe, and one that none does."""
    others = np.array([[[1.0, np.nan, 8, np.nan]], [[2, np.nan, 9, np.nan]], [[5, 7, np.nan, np.nan]]])
    values = np.array([[np.nan, np.nan, 11.0, np.nan]])
    mean, error = predict_across(
        "linear_across", values, Stack(others, np.array([0.0, 1, 4]), 2.0), np.random.default_rng(0)
    )
    np.testing.assert_allclose(mean, [[3, 7, 11, 11]])
    np.testing.assert_allclose(error, [[2, 2, 0, 2]])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("method", "atol"), [("harmonic", 1e-6), ("whittaker", 2e-3), ("dineof", 0.02)])
def test_what_a_method_assumes_is_predicted_exactly(method: str, atol: float, *, whole: bool) -> None:
    """Harmonics of any phase; straight lines in time at irregular steps; two patterns."""
    rng = np.random.default_rng(0)
    slope, phase = rng.standard_normal(SHAPE), rng.uniform(0, 6, SHAPE)
    t = TIMES[:, None, None]
    fields = {
        "harmonic": 3 + np.cos(2 * np.pi * (t - phase) / 6) + 0.5 * np.sin(2 * np.pi * (t - phase) / 3),
        "whittaker": 100 + slope * t,
        "dineof": slope * np.sin(t) + np.cos(phase) * np.sign(np.sin(3 * t)),
    }
    values, truth, stack = case(fields[method], rng, whole=whole)
    mean, error = predict_across(method, values, stack, np.random.default_rng(1))
    if method == "dineof" and whole:  # modes say nothing of a slice without any value
        assert np.ptp(mean) < 0.2 * np.ptp(truth)
        assert error.mean() > 0.3
        return
    np.testing.assert_allclose(mean, truth, atol=atol)
    np.testing.assert_array_equal(error == 0, np.isfinite(values))
    assert error.max() < 10 * atol


@pytest.mark.parametrize("method", ACROSS_METHODS)
@pytest.mark.parametrize("whole", [False, True])
def test_standard_errors_are_those_of_the_slice(method: str, *, whole: bool) -> None:
    rng = np.random.default_rng(0)
    values, truth, stack = case(rng.standard_normal((len(TIMES), *SHAPE)) + 5, rng, whole=whole)
    mean, error = predict_across(method, values, stack, np.random.default_rng(1))
    hidden = np.isnan(values)
    assert 0.5 < np.sqrt(np.mean((mean - truth)[hidden] ** 2)) / error[hidden].mean() < 1.6


@pytest.mark.parametrize("method", ACROSS_METHODS)
def test_a_whole_slice_beside_a_single_one(method: str) -> None:
    """Too few observations for harmonics and modes, and no second slice to measure an error with."""
    other = np.random.default_rng(0).standard_normal((1, *SHAPE)) + 5
    stack = Stack(other, np.array([1.0]), 2.0, (6.0,))
    mean, error = predict_across(method, np.full(SHAPE, np.nan), stack, np.random.default_rng(1))
    np.testing.assert_allclose(mean, other.mean() if method in ("harmonic", "dineof") else other[0], atol=1e-4)
    np.testing.assert_allclose(error, other.std(), rtol=1e-4)
