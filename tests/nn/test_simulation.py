"""Simulated errors have the conditional covariance of their process, in the plane and on the sphere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from geonp.inference.noise import Noise
from geonp.nn.process import LocalProcess
from geonp.nn.simulation import Places, simulate
from geonp.scattered.squares import embed, project

LENGTH, NOISE = 4.0, 0.1


def correlation(distance: np.ndarray, kernel: int) -> np.ndarray:
    r = distance / LENGTH
    return [np.exp(-r), (1 + r) * np.exp(-r), np.exp(-(r**2) / 10)][kernel]


@pytest.mark.parametrize(("kernel", "sphere"), [(0, False), (1, False), (2, False), (0, True)])
def test_errors_have_the_conditional_covariance(kernel: int, sphere: bool) -> None:
    rng, n = np.random.default_rng(0), 500 if sphere else 2000  # a sphere takes six times as long
    targets = np.stack([np.linspace(-6, 6, 25), np.full(25, 0.3)], 1)
    places = np.concatenate([targets, rng.uniform(-10, 10, (24, 2))])
    middle, unit = (0.0, 35.0), 1.4
    if sphere:
        xy = places * unit * [1 / np.cos(np.radians(35)), 1] + middle
        lat = np.radians(35)
        jacobian = np.array([[-np.sin(lat), 0, np.cos(lat)], [0, 1.0, 0]]) / np.radians(unit)
        x, seen, scale = embed(xy, geographic=True), project(xy, middle, geographic=True) / unit, np.radians(unit)
    else:
        x, jacobian, seen, scale = places, np.eye(2), places, 1.0
    ones = torch.ones(1, len(x), 1, dtype=torch.float64)
    weights = torch.zeros(1, 1, 5, dtype=torch.float64)
    weights[..., (0, 1, 4)[kernel]] = 1
    metric = torch.eye(2, dtype=torch.float64)[None, None] / LENGTH**2
    process = LocalProcess(metric, weights, ones, 0 * ones, NOISE * ones[..., 0])
    cells = (np.arange(len(x)), np.zeros(len(x), int))
    of = Places(x, jacobian, cells, 24, None, float(scale), float(0.25 * scale))
    errors = simulate(process, 0, np.arange(len(x)), of, Noise((3, 4), n))
    covariance = correlation(np.linalg.norm(seen[:, None] - seen[None], axis=-1), kernel) + NOISE * np.eye(len(x))
    inner, across = covariance[25:, 25:], covariance[25:, :25]
    exact = covariance[:25, :25] - across.T @ np.linalg.solve(inner, across)
    deviation = np.sqrt(np.diag(exact))
    assert (errors**2).mean() == pytest.approx(1, abs=1.4 / np.sqrt(n))
    np.testing.assert_allclose(np.corrcoef(errors), exact / np.outer(deviation, deviation), atol=4.5 / np.sqrt(n))


def test_errors_of_a_smooth_process_are_exact() -> None:
    """The conditional variance is a millionth of the variance, as low as the ridge allows."""
    rng, n = np.random.default_rng(0), 400
    x = np.concatenate([rng.uniform(-6, 6, (40, 2)), rng.uniform(-8, 8, (256, 2))])
    ones = torch.ones(1, len(x), 1, dtype=torch.float64)
    weights = torch.zeros(1, 1, 5, dtype=torch.float64)
    weights[..., 3] = 1
    metric = torch.eye(2, dtype=torch.float64)[None, None] / 16.0**2
    process = LocalProcess(metric, weights, ones, 0 * ones, 0 * ones[..., 0])
    cells = (np.arange(len(x)), np.zeros(len(x), int))
    places = Places(x, np.eye(2), cells, 256, None, 1.0, 1.0)
    errors = simulate(process, 0, np.arange(len(x)), places, Noise((3, 4), n))
    assert (errors**2).mean() == pytest.approx(1, abs=0.1)
    assert (errors**2).mean(1).max() < 1.5


@pytest.mark.parametrize(("longest", "tilt"), [(10.0, 0.0), (30.0, 0.9), (300.0, 0.9)])
def test_errors_around_the_earth_have_variance_one_however_far_the_process_reaches(longest: float, tilt: float) -> None:
    """Fields repeat after a circle, which kriging did not know: standard errors of means were up to 1e16 too large."""
    rng, n, circle = np.random.default_rng(0), 300, 24.0
    x = np.concatenate([rng.uniform((-6, -14), (6, 14), (40, 2)), rng.uniform((-8, -16), (8, 16), (160, 2))])
    ones = torch.ones(1, len(x), 1, dtype=torch.float64)
    weights = torch.zeros(1, 1, 5, dtype=torch.float64)
    weights[..., 3] = 1
    metric = torch.tensor([[1.0, tilt], [tilt, 1.0]], dtype=torch.float64)[None, None] / longest**2
    process = LocalProcess(metric, weights, ones, 0 * ones, 0 * ones[..., 0] + 1e-5)
    cells = (np.arange(len(x)), np.zeros(len(x), int))
    places = Places(x, np.eye(2), cells, 160, circle, 1.0, 1.0)
    errors = simulate(process, 0, np.arange(len(x)), places, Noise((3, 4), n))
    assert (errors**2).mean() == pytest.approx(1, abs=0.1)
    assert (errors**2).mean(1).max() < 1.5


def test_noise_is_that_of_its_place_whatever_is_asked_for_with_it() -> None:
    rng = np.random.default_rng(0)
    nodes, offsets = rng.integers(-40, 40, (30, 2)), rng.integers(-3, 4, (10, 2))
    noise, index = Noise((1, 2), 3).around(5, nodes, offsets, 37)
    every = [nodes[:, axis, None] + offsets[:, axis] for axis in range(2)]
    apart, rows = Noise((1, 2), 6).at(5, [every[0], every[1] % 37])
    np.testing.assert_array_equal(noise[index], apart[rows][..., :3])
    other, rows = Noise((1, 2), 3).at(6, [every[0], every[1] % 37])
    assert abs(np.corrcoef(noise[index].ravel(), other[rows].ravel())[0, 1]) < 0.15
