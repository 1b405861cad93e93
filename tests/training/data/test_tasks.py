"""Synthetic tasks: the exact conditional is that of the field that was drawn, and tasks look like tiles in use."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geonp.inference.context import Neighbourhood
from geonp.raster import gaps
from geonp.training.data import fields, tasks
from geonp.training.data.fields import RasterPrior, _terrain, sample_field
from geonp.training.data.tasks import Task, collate, sample_task

NEIGHBOURHOOD = Neighbourhood(tile_px=8, halos_px=(8, 16), n_context=32)
N_TARGETS = 20


@pytest.fixture(scope="module")
def sampled() -> list[Task]:
    rng = np.random.default_rng(0)
    return [sample_task(rng, RasterPrior(p_scattered=0.0), NEIGHBOURHOOD, N_TARGETS) for _ in range(300)]


# --- fields -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torus", [16, 27, 48, 75])
def test_spectra_have_unit_variance(torus: int) -> None:
    rng = np.random.default_rng(torus)
    for _ in range(20):
        density = fields.spectral_density(rng, RasterPrior(), torus)
        assert density.shape == (torus, torus // 2 + 1)
        assert (density >= 0).all()
        covariance = np.fft.irfft2(density, s=(torus, torus))
        assert covariance[0, 0] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("torus", [16, 27])
def test_the_covariance_table_is_that_of_the_fields(torus: int) -> None:
    rng = np.random.default_rng(2)
    density = fields.spectral_density(rng, RasterPrior(length=(2.0, 3.0), anisotropy=1.0, p_isotropic=0.0), torus)
    table = np.fft.irfft2(density, s=(torus, torus))
    n = 4000
    products = []
    for _ in range(n):
        field = fields.field_of(rng, density).astype(np.float64)
        products.append(np.fft.irfft2(np.abs(np.fft.rfft2(field)) ** 2, s=field.shape) / field.size)
    error = np.std(products, axis=0) / math.sqrt(n)
    assert (np.abs(np.mean(products, 0) - table) < 5 * error).all()
    # an anisotropic one, or a transposed table would pass as well
    assert np.abs(table - table.T).max() > 20 * error.max()


def conditionals(
    prior: RasterPrior, n: int, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """z-scores of the field at three targets, shares of variance explained, and the nearest values."""
    rng, size = np.random.default_rng(seed), 24
    z, explained, near = [], [], []
    for _ in range(n):
        sample = sample_field(rng, prior, size, 2 * size)
        assert sample.covariance is not None
        cells = rng.permutation(size * size)
        context, targets = np.sort(cells[:40]), cells[40:43]
        mean, variance = tasks.conditional_moments(sample, context, targets, size)
        values = sample.values.ravel()
        z.append((values[targets] - mean) / np.sqrt(variance))
        total = 1 + sample.noise**2
        explained.append(1 - variance / total)
        places = np.stack(np.divmod(np.arange(size * size), size), -1)
        distance = ((places[targets][:, None] - places[context][None]) ** 2).sum(-1)
        near.append(values[context][distance.argmin(1)] / (1 + abs(values[context]).max()))
    return np.array(z), np.array(explained), np.array(near)


@pytest.mark.parametrize("p_noise", [0.0, 1.0])
@pytest.mark.parametrize("p_trend", [0.0, 1.0])
def test_the_conditional_is_exact(p_noise: float, p_trend: float) -> None:
    prior = RasterPrior(length=(2.0, 12.0), noise=(0.5, 1.0), p_gaussian=1.0, p_noise=p_noise, p_trend=p_trend)
    n = 1200
    z, explained, near = conditionals(prior, n, seed=int(2 * p_noise + p_trend))
    # the mean over the targets of a field counts as one draw: they are correlated
    assert abs(z.mean(1).mean()) < 5 * z.mean(1).std() / math.sqrt(n)
    square = (z**2).mean(1)
    assert square.mean() == pytest.approx(1, abs=5 * square.std() / math.sqrt(n))
    assert 5 * square.std() / math.sqrt(n) < 0.2
    # nothing that the context tells is left in the error, and the context tells something
    product = (z * near).mean(1)
    assert abs(product.mean()) < 5 * product.std() / math.sqrt(n)
    if p_trend == 0:
        assert explained.mean() > 0.2


def test_observations_without_noise_are_reproduced() -> None:
    rng = np.random.default_rng(0)
    sample = sample_field(rng, RasterPrior(length=(2.0, 3.0), p_gaussian=1, p_noise=0, p_trend=0), 16, 32)
    cells = np.arange(0, 256, 7)
    mean, variance = tasks.conditional_moments(sample, cells, cells[:5], 16)
    np.testing.assert_allclose(mean, sample.values.ravel()[cells[:5]], atol=1e-3)
    assert variance.max() < 1e-4


def test_fields_that_are_not_gaussian_have_no_covariance_and_are_finite() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        sample = sample_field(rng, RasterPrior(p_gaussian=0.0), 24, 48)
        assert sample.covariance is None
        assert np.isfinite(sample.values).all()
        assert np.ptp(sample.values) > 0


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_every_kind_of_gap_and_of_field_appears(sampled: list[Task]) -> None:
    assert {task.kind for task in sampled} == set(gaps.SIMULATORS) == set(RasterPrior().gap_weights)
    exact = np.mean([task.exact for task in sampled])
    assert abs(exact - RasterPrior().p_gaussian) < 5 * math.sqrt(0.25 / len(sampled))
    sizes = {len(task.xc) for task in sampled}
    assert max(sizes) == NEIGHBOURHOOD.n_context
    assert min(sizes) < NEIGHBOURHOOD.n_context
    reach = max(np.abs(task.xc).max() for task in sampled)
    assert 8 + 4 < reach <= 16 + 4


def test_tasks_look_like_tiles_in_use(sampled: list[Task]) -> None:
    targets = NEIGHBOURHOOD.tile_px / 2 + NEIGHBOURHOOD.overlap_px
    context = NEIGHBOURHOOD.tile_px / 2 + NEIGHBOURHOOD.reach_px
    for task in sampled:
        n_c, n_t = len(task.xc), len(task.xt)
        assert NEIGHBOURHOOD.min_context <= n_c <= NEIGHBOURHOOD.n_context
        assert 1 <= n_t <= N_TARGETS
        assert [a.shape for a in (task.xc, task.yc, task.xt, task.mean, task.variance)] == [
            (n_c, 2),
            (n_c,),
            (n_t, 2),
            (n_t,),
            (n_t,),
        ]
        assert all(a.dtype == np.float32 for a in (task.xc, task.yc, task.xt, task.mean, task.variance))
        assert all(np.isfinite(a).all() for a in (task.yc, task.mean, task.variance))
        # cells lie half a cell off the middle of a tile of even size
        assert (np.abs(np.concatenate([task.xc, task.xt]) % 1) == 0.5).all()
        assert np.abs(task.xt).max() < targets
        assert np.abs(task.xc).max() < context
        places = {tuple(x) for x in np.concatenate([task.xc, task.xt]).tolist()}
        assert len(places) == n_c + n_t
        assert task.yc.mean() == pytest.approx(0, abs=1e-4)
        assert task.yc.std() == pytest.approx(1, abs=1e-4)
        assert (task.variance > 0).all() if task.exact else (task.variance == 0).all()


@pytest.mark.parametrize("p_gaussian", [0.0, 1.0])
def test_targets_are_in_units_of_the_context(p_gaussian: float) -> None:
    size = 16
    sample = sample_field(np.random.default_rng(0), RasterPrior(p_gaussian=p_gaussian), size, 2 * size)
    sample = replace(sample, values=100 + 7 * sample.values, covariance=None if p_gaussian == 0 else sample.covariance)
    context, targets = np.arange(0, 256, 9), np.array([1, 130])
    task = tasks.task_of(sample, context, targets, size, "blocks", None)
    values = sample.values.ravel()
    loc, scale = values[context].mean(), values[context].std()
    mean, variance = values[targets], np.zeros(2)
    if p_gaussian:
        mean, variance = tasks.conditional_moments(sample, context, targets, size)
    np.testing.assert_allclose(task.yc, (values[context] - loc) / scale, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(task.mean, (mean - loc) / scale, rtol=1e-5)
    np.testing.assert_allclose(task.variance, variance / scale**2 + 1e-6 * p_gaussian, rtol=1e-5)
    assert task.xt.tolist() == [[-7.5, -6.5], [0.5, -5.5]]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_a_task_is_a_function_of_the_generator(seed: int) -> None:
    one, other = (sample_task(np.random.default_rng(seed), RasterPrior(), NEIGHBOURHOOD, 9) for _ in range(2))
    for field in ("xc", "yc", "xt", "mean", "variance"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    assert (one.exact, one.kind) == (other.exact, other.kind)


@pytest.mark.parametrize("kind", sorted(gaps.SIMULATORS))
def test_the_prior_chooses_the_gaps(kind: str) -> None:
    prior = replace(RasterPrior(), gap_weights={kind: 1.0})
    rng = np.random.default_rng(0)
    assert {sample_task(rng, prior, NEIGHBOURHOOD, 5).kind for _ in range(5)} == {kind}


# --- batches ----------------------------------------------------------------------------------------------------------


def test_collate_pads_and_masks(sampled: list[Task]) -> None:
    batch = collate(sampled, NEIGHBOURHOOD.n_context, N_TARGETS)
    n = len(sampled)
    assert {key: value.shape for key, value in batch.items()} == {
        "xc": (n, 32, 2),
        "yc": (n, 32, 1),
        "context_mask": (n, 32),
        "xt": (n, 20, 2),
        "mean": (n, 20),
        "variance": (n, 20),
        "target_mask": (n, 20),
        "exact": (n,),
    }
    assert all(np.isfinite(value).all() for value in batch.values())
    for i, task in enumerate(sampled):
        context, targets = batch["context_mask"][i], batch["target_mask"][i]
        assert context.tolist() == [True] * len(task.xc) + [False] * (32 - len(task.xc))
        assert targets.tolist() == [True] * len(task.xt) + [False] * (20 - len(task.xt))
        np.testing.assert_array_equal(batch["xc"][i][context], task.xc)
        np.testing.assert_array_equal(batch["yc"][i][context][:, 0], task.yc)
        np.testing.assert_array_equal(batch["xt"][i][targets], task.xt)
        np.testing.assert_array_equal(batch["mean"][i][targets], task.mean)
        np.testing.assert_array_equal(batch["variance"][i][targets], task.variance)
        assert batch["exact"][i] == task.exact
    assert (batch["variance"][~batch["target_mask"]] == 1).all()


def test_terrain_has_sharp_ridges_and_no_sharp_valleys() -> None:
    """The curvature across the crests is far stronger than that of anything that is low."""
    curvature = []
    for seed in range(6):
        z = _terrain(np.random.default_rng(seed), RasterPrior(), 256).astype(np.float64)
        assert abs(z.mean()) < 1e-3
        assert abs(z.std() - 1) < 1e-3
        bend = np.roll(z, 1, 0) + np.roll(z, -1, 0) + np.roll(z, 1, 1) + np.roll(z, -1, 1) - 4 * z
        curvature.append(-np.quantile(bend, 0.001) / np.quantile(bend, 0.999))
    assert np.median(curvature) > 1.2
