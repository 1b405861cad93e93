from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import LinearNDInterpolator

from geonp.errors import InputError
from geonp.evaluation.baselines import (
    FILLS,
    METHODS,
    REGRESSION,
    Fill,
    gdal,
    inverse_distance,
    linear,
    nearest,
    predict,
    thin_plate,
)
from geonp.evaluation.metrics import score
from geonp.inference.covariates import Layer
from geonp.raster.gaps import cloud_gaps

pytestmark = pytest.mark.usefixtures("few_patches")

Y, X = np.mgrid[:32, :40].astype(float)
PLANE = 3 * Y - 2 * X + 5
GAPS = cloud_gaps(PLANE.shape, 0.3, np.random.default_rng(5), scale=6)
INNER = GAPS & (Y > 8) & (Y < 24) & (X > 8) & (X < 32)


def cut(truth: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    return np.where(gaps, np.nan, truth)


def test_nearest_takes_the_nearest_cell() -> None:
    values = np.array([[1.0, np.nan, np.nan, np.nan, 9.0]])
    np.testing.assert_array_equal(nearest(values)[0, [1, 3]], [1.0, 9.0])


@pytest.mark.parametrize("fill", [linear, thin_plate])
def test_a_plane_is_reproduced(fill: Fill) -> None:
    np.testing.assert_allclose(fill(cut(PLANE, INNER)), PLANE, atol=1e-9)


def test_linear_needs_only_the_rims_of_the_gaps() -> None:
    values = cut(np.random.default_rng(2).normal(size=Y.shape), INNER)
    everything = LinearNDInterpolator(np.argwhere(~INNER), values[~INNER])(np.argwhere(INNER))
    same = np.isclose(linear(values)[INNER], everything)
    assert same.mean() > 0.8  # the rest are squares, which have two triangulations


def test_linear_falls_back_to_nearest() -> None:
    line = np.array([[1.0, np.nan, 3.0, np.nan]])
    np.testing.assert_array_equal(linear(line), nearest(line))
    np.testing.assert_array_equal(thin_plate(line), nearest(line))
    outside = cut(PLANE, X > 30)
    np.testing.assert_array_equal(linear(outside)[:, 35], PLANE[:, 30])


def test_thin_plate_falls_back_to_linear_where_neighbours_lie_on_one_line() -> None:
    tracks = np.full((100, 40), np.nan)
    tracks[:, 5], tracks[:, 35] = 1.0, 4.0
    np.testing.assert_array_equal(thin_plate(tracks), linear(tracks))
    assert thin_plate(tracks)[50, 25] == pytest.approx(3.0)


def test_inverse_distance_by_hand() -> None:
    values = np.array([[0.0, np.nan, np.nan, 10.0]])
    assert inverse_distance(values)[0, 1] == pytest.approx(10 * 0.25 / 1.25)


def test_gdal_fills_a_constant_and_keeps_the_type() -> None:
    values = cut(np.full(PLANE.shape, 7.0), GAPS).astype(np.float32)
    assert gdal(values).dtype == np.float32
    np.testing.assert_allclose(gdal(values), 7.0, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_observed_cells_are_untouched_and_gaps_get_an_error(method: str, dtype: type) -> None:
    values = cut(PLANE + np.sin(Y), GAPS).astype(dtype)
    mean, error = predict(method, values, np.random.default_rng(0))
    assert mean.dtype == error.dtype == dtype
    np.testing.assert_array_equal(mean[~GAPS], values[~GAPS])
    assert (error[~GAPS] == 0).all()
    assert (error[GAPS] > 0).all()
    assert np.isfinite(mean).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_raster_without_gaps_comes_back(method: str) -> None:
    mean, error = predict(method, PLANE, np.random.default_rng(0))
    np.testing.assert_array_equal(mean, PLANE)
    assert not error.any()


@pytest.mark.parametrize("method", FILLS)
def test_errors_of_independent_noise_cover_what_they_say(method: str) -> None:
    rng = np.random.default_rng(11)
    truth = rng.normal(size=(96, 96))
    gaps = cloud_gaps(truth.shape, 0.2, rng, scale=6)
    mean, error = predict(method, cut(truth, gaps), rng)
    assert score(truth, mean, error, gaps).coverage(0.95) == pytest.approx(0.95, abs=0.03)


def test_errors_grow_with_the_distance() -> None:
    values = cut(PLANE, (np.abs(Y - 16) < 6) & (np.abs(X - 20) < 6))
    _, error = predict("nearest", values, np.random.default_rng(1))
    profile = error[16, 15:21]
    assert (np.diff(profile) >= 0).all()
    assert profile[-1] > profile[0]


def test_a_seed_gives_one_answer() -> None:
    first, second = (predict("nearest", cut(PLANE, GAPS), np.random.default_rng(4)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match="unknown method 'spline': expected one of"):
        predict("spline", PLANE, np.random.default_rng(0))
    with pytest.raises(InputError, match=r"two observed cells at least, got shape \(2, 2\)"):
        predict("nearest", np.full((2, 2), np.nan), np.random.default_rng(0))


def test_regression_kriging_by_hand() -> None:
    rng = np.random.default_rng(0)
    numbers, classes = rng.standard_normal((20, 24)), rng.integers(1, 4, (20, 24)).astype(float)
    truth = 5 + 3 * numbers + np.array([0.0, 1.0, -2.0])[classes.astype(int) - 1]
    values = np.where(rng.random(truth.shape) < 0.5, np.nan, truth)
    layers = [Layer(numbers), Layer(classes, classes=True), Layer(np.full(truth.shape, np.nan))]
    mean, error = predict(REGRESSION, values, rng, layers)
    np.testing.assert_allclose(mean, truth, atol=1e-6)
    assert error.max() < 1e-6
    holed = np.where(rng.random(truth.shape) < 0.2, np.nan, numbers)
    mean, error = predict(REGRESSION, values, rng, [Layer(holed), layers[1]])
    known = np.isnan(values) & np.isfinite(holed)
    assert 0.2 < np.abs(mean - truth)[known].mean() < np.abs(mean - truth)[np.isnan(holed) & np.isnan(values)].mean()
    assert 0.5 < ((mean - truth) / np.where(error > 0, error, np.nan))[np.isnan(values)].std() < 1.5
