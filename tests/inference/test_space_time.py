from __future__ import annotations

import numpy as np
import pytest
import scipy
from scipy.spatial.distance import cdist

from geonp.inference import space_time
from geonp.inference.space_time import PROCESS, TERMS, Conditioned, Data, SpaceTimeCovariance, fit
from geonp.raster.arrays import Float64Array

PERIODS = (6.0,)


def medians(n_covariates: int) -> Float64Array:
    terms = [x for term in TERMS for x in (term.variance, term.length, term.memory) if x]
    return np.array([*terms, *PROCESS.periodic * len(PERIODS), *[PROCESS.slope] * n_covariates, PROCESS.noise])


def drawn(seed: int, n_covariates: int = 1, stations: int = 8, times: int = 20) -> tuple[Data, Float64Array]:
    """Measurements of three quarters of the times at stations, and the distances of these."""
    rng = np.random.default_rng(seed)
    xy = rng.random((stations, 2))
    distance, lag = cdist(xy, xy) * 2, np.abs(np.arange(times)[:, None] - np.arange(times)).astype(float)
    place, time = np.nonzero(rng.random((stations, times)) < 0.75)
    covariates = rng.standard_normal((place.size, n_covariates))
    unknown = np.where(rng.random(covariates.shape) < 0.1, 1.0, 0.0)
    data = Data(distance, lag, place, time, np.zeros(place.size), np.full(place.size, 0.01), covariates, unknown)
    matrix = covariance(n_covariates).of(data)
    values = np.linalg.cholesky(matrix) @ rng.standard_normal(place.size)
    return Data(distance, lag, place, time, values, data.variance, covariates, unknown), distance


def covariance(n_covariates: int) -> SpaceTimeCovariance:
    return SpaceTimeCovariance(np.log(medians(n_covariates)), PERIODS)


def test_the_gradient_is_that_of_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = drawn(0, n_covariates=2)
    found = {}

    def minimize(loss, start, **_):  # type: ignore[no-untyped-def]
        at = start + 0.3 * np.random.default_rng(1).standard_normal(start.size)
        found["exact"], numeric = loss(at)[1], np.empty(start.size)
        for k in range(start.size):
            step = 1e-5 * np.eye(start.size)[k]
            numeric[k] = (loss(at + step)[0] - loss(at - step)[0]) / 2e-5
        found["numeric"] = numeric
        return scipy.optimize.OptimizeResult(x=start)

    monkeypatch.setattr(space_time.scipy.optimize, "minimize", minimize)
    fit([data], PERIODS, level=0.7)
    np.testing.assert_allclose(found["exact"], found["numeric"], rtol=1e-5, atol=1e-5)


def test_predictions_are_those_of_the_joint_normal_distribution() -> None:
    data, distance = drawn(2)
    exact, n = covariance(1), len(data.values)
    # one more measurement, at the fourth place and the third time, whose covariate is 0.7 and uncertain
    place, time, covariates = (
        np.append(data.place, 3),
        np.append(data.time, 2),
        np.append(data.covariates, [[0.7]], 0),
    )
    unknown, variance = np.append(data.unknown, [[0.2]], 0), np.append(data.variance, 0.0)
    both = Data(distance, data.lag, place, time, np.zeros(n + 1), variance, covariates, unknown)
    joint = exact.of(both)
    weights = np.linalg.solve(joint[:n, :n], joint[:n, n])
    process = Conditioned(exact, data)
    mean, found = process.at(distance[:, [3]], data.lag[:, 2], np.array([[0.7]]), np.array([[0.2]]))
    np.testing.assert_allclose(mean, weights @ data.values, rtol=1e-8)
    np.testing.assert_allclose(found, joint[n, n] - weights @ joint[:n, n], rtol=1e-8)


def test_many_places_are_predicted_as_few_are() -> None:
    data, _ = drawn(3)
    rng = np.random.default_rng(0)
    distance, covariates = rng.random((8, 400)), rng.standard_normal((400, 1))
    distance[3, 5] = 0.0
    process, unknown = Conditioned(covariance(1), data), np.zeros((400, 1))
    many = process.at(distance, data.lag[:, 4], covariates, unknown)
    few = process.at(distance[:, :9], data.lag[:, 4], covariates[:9], unknown[:9])
    for one, other in zip(many, few, strict=True):
        np.testing.assert_allclose(one[:9], other, rtol=1e-8)


def test_levels_and_noise_of_drawn_networks_are_found() -> None:
    squares, n = [], 0
    for seed in range(4):
        data, distance = drawn(10 + seed, n_covariates=0, stations=12, times=30)
        first = data.time < 24
        known = Data(distance, data.lag, *(part[first] for part in (data.place, data.time, data.values, data.variance)),
                     data.covariates[first], data.unknown[first])  # fmt: skip
        process = Conditioned(fit([known], PERIODS, level=0.5), known)
        for time in range(24, 30):
            there = data.time == time
            mean, variance = process.at(
                distance[:, data.place[there]],
                data.lag[:, time],
                np.zeros((there.sum(), 0)),
                np.zeros((there.sum(), 0)),
            )
            squares.append((data.values[there] - mean) ** 2 / (variance + 0.01))
            n += there.sum()
    assert n > 150
    assert 0.7 < np.mean(np.concatenate(squares)) < 1.4
