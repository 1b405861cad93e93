from __future__ import annotations

import numpy as np
import pytest

from geonp.evaluation.kriging import SMOOTHNESS, Matern, fit, krige, krige_gaps

SITES = np.array([[0.0, 0.0], [0.0, 3.0], [4.0, 1.0], [2.0, 5.0]])
KNOWN = np.array([1.0, -2.0, 0.5, 3.0])


def sample(model: Matern, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Cells of a square and a draw of `model` at them."""
    sites = np.argwhere(np.ones((size, size), bool)).astype(float)
    distance = np.linalg.norm(sites[:, None] - sites[None], axis=-1)
    covariance = model.variance * (model.correlation(distance) + (model.nugget + 1e-8) * np.eye(len(sites)))
    return sites, np.linalg.cholesky(covariance) @ rng.normal(size=len(sites))


@pytest.mark.parametrize("nu", SMOOTHNESS)
def test_data_are_reproduced_without_a_nugget(nu: float) -> None:
    mean, error = krige(SITES, KNOWN, SITES, Matern(nu, 3.0, 4.0, 0.0))
    np.testing.assert_allclose(mean, KNOWN, atol=1e-6)
    np.testing.assert_allclose(error, 0, atol=1e-3)


def test_far_from_the_data_the_prediction_is_their_best_mean() -> None:
    model = Matern(0.5, 1e-3, 4.0, 0.5)  # no two sites are correlated
    mean, error = krige(SITES, KNOWN, np.array([[100.0, 100.0]]), model)
    assert mean[0] == pytest.approx(KNOWN.mean())
    assert error[0] == pytest.approx(np.sqrt(4 * 1.5 * (1 + 1 / len(KNOWN))))


def test_two_sites_by_hand() -> None:
    sites, known, rho = np.array([[0.0, 0.0], [0.0, 2.0]]), np.array([0.0, 4.0]), np.exp(-0.5)
    mean, error = krige(sites, known, np.array([[0.0, 1.0]]), Matern(0.5, 2.0, 1.0, 0.0))
    assert mean[0] == pytest.approx(2.0)  # by symmetry
    assert error[0] ** 2 == pytest.approx(1 - 2 * rho + (1 + rho**2) / 2, rel=1e-6)


@pytest.mark.parametrize(("nu", "value"), [(0.5, 0.36788), (1.5, 0.48336), (2.5, 0.52399)])
def test_correlation_at_one_length(nu: float, value: float) -> None:
    assert Matern(nu, 2.0, 1.0, 0.0).correlation(np.array([2.0]))[0] == pytest.approx(value, abs=1e-5)


def test_fit_finds_what_made_the_field() -> None:
    truth = Matern(1.5, 5.0, 9.0, 0.02)
    model = fit(*sample(truth, 40, np.random.default_rng(8)), np.random.default_rng(9))
    assert model.smoothness == 1.5
    assert model.length == pytest.approx(5.0, rel=0.3)
    assert model.nugget * model.variance == pytest.approx(0.18, rel=0.5)


def test_a_constant_raster_has_no_error() -> None:
    values = np.full((12, 12), 3.0)
    values[4:7, 4:7] = np.nan
    mean, error = krige_gaps(values, np.random.default_rng(0))
    np.testing.assert_allclose(mean, 3.0)
    assert not error.any()


def test_errors_are_calibrated_on_its_own_process() -> None:
    rng = np.random.default_rng(10)
    truth = sample(Matern(0.5, 8.0, 4.0, 0.05), 40, rng)[1].reshape(40, 40)
    gaps = rng.random(truth.shape) < 0.4
    mean, error = krige_gaps(np.where(gaps, np.nan, truth), rng)
    standardised = (mean - truth)[gaps] / error[gaps]
    assert np.std(standardised) == pytest.approx(1.0, abs=0.1)
