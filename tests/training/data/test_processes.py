"""Synthetic processes: what is drawn has the covariance that it should, and the exact prediction is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import kernels as reference
from torch.distributions import Normal

from geonp.training.data.processes import GaussianProcess, MixedProcess, covariance

KERNELS = {
    "rbf": reference.RBF(0.7),
    "matern12": reference.Matern(0.7, nu=0.5),
    "matern32": reference.Matern(0.7, nu=1.5),
    "matern52": reference.Matern(0.7, nu=2.5),
    "periodic": reference.ExpSineSquared(0.7, 1.3),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("d_x", [1, 2])
def test_kernels_are_those_of_scikit_learn(kernel: str, d_x: int) -> None:
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=(7, d_x)), rng.normal(size=(5, d_x))
    assert covariance(kernel, x, other, 0.7, 1.3) == pytest.approx(KERNELS[kernel](x, other))


def test_the_periodic_process_of_te_tnp_has_the_kernel_of_gpytorch() -> None:
    """Whose default lengthscale is not squared, as in the published code."""
    kernels = pytest.importorskip("gpytorch").kernels
    x = torch.linspace(-3, 3, 31, dtype=torch.float64)[:, None]
    theirs = kernels.PeriodicKernel().double()
    theirs.period_length = 1.7
    ours = covariance("periodic", x.numpy(), x.numpy(), MixedProcess().length_periodic, 1.7)
    assert ours == pytest.approx(theirs(x).to_dense().detach().numpy())


def nll(moments: tuple[torch.Tensor, torch.Tensor], yt: torch.Tensor) -> float:
    return -float(Normal(*moments).log_prob(yt.double()).mean())


def test_a_batch_of_tnp_kr_is_as_specified() -> None:
    batch = GaussianProcess().batch(0, 0, 200)
    counts = batch["context_mask"].sum(1)
    assert counts.min() == 3
    assert counts.max() == 49
    assert (batch["context_mask"][:, :-1] >= batch["context_mask"][:, 1:]).all()
    assert (batch["xt"] == batch["xt"][:1]).all()
    assert batch["xt"].shape == (200, 150, 1)
    assert torch.equal(batch["xc"], batch["xt"][:, :49])
    assert batch["xt"][0, 50:, 0].numpy() == pytest.approx(np.linspace(-2, 2, 100))
    noise = batch["yc"] - batch["yt"][:, :49]
    assert float(noise.std()) == pytest.approx(0.1, rel=0.05)


def test_each_batch_has_its_own_lengthscale() -> None:
    """Estimated from correlations at a distance of 0.4; those of one batch differ by some percent."""
    lengths = []
    for i in range(8):
        grid = GaussianProcess().batch(0, i, 400)["yt"][:, 50:, 0].double()
        correlation = (grid[:, 10:] * grid[:, :-10]).mean() / grid.square().mean()
        lengths.append(0.4 / math.sqrt(-2 * math.log(correlation)) if correlation > 0 else 0.0)
    assert np.mean(lengths) == pytest.approx(0.3, abs=0.15)
    assert np.std(lengths) > 0.05


def test_two_dimensions() -> None:
    batch = GaussianProcess(d_x=2, n_random=128, n_grid=16, n_context=(12, 127)).batch(3, 1, 4)
    assert batch["xt"].shape == (4, 384, 2)
    assert batch["xc"].shape == (4, 127, 2)
    assert float(batch["xt"].abs().max()) == 2.0


@pytest.mark.parametrize("process", [GaussianProcess(), GaussianProcess(kernel="periodic"), MixedProcess()])
def test_batches_are_functions_of_seed_and_number(process: GaussianProcess | MixedProcess) -> None:
    one, again, other, seeded = (process.batch(*key, 3) for key in [(1, 5), (1, 5), (1, 6), (2, 5)])
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert all(one["yt"].shape != b["yt"].shape or not torch.equal(one["yt"], b["yt"]) for b in (other, seeded))


def test_the_exact_process_is_calibrated_and_cannot_be_beaten() -> None:
    """Its standardised errors are standard normal, and no other mean or scale has a lower NLL."""
    for process in (GaussianProcess(kernel="matern32"), MixedProcess()):
        z, scores = [], {(shift, widen): [] for shift in (0.0, 0.2) for widen in (0.8, 1.0, 1.25)}
        for i in range(30):
            mean, scale = process.exact(0, i, 4)
            yt = process.batch(0, i, 4)["yt"]
            z.append(((yt - mean) / scale).flatten())
            for shift, widen in scores:
                scores[shift, widen].append(nll((mean + shift * scale, widen * scale), yt))
        squares = torch.cat(z).square().mean()
        assert float(squares) == pytest.approx(1.0, abs=0.1)
        assert min(scores, key=lambda key: np.mean(scores[key])) == (0.0, 1.0)


def test_the_exact_prediction_is_that_of_scikit_learn() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor

    process = GaussianProcess()
    batch = process.batch(0, 0, 2)
    mean, scale = process.exact(0, 0, 2)
    length = np.random.default_rng([0, 0]).beta(3, 7)
    n = int(batch["context_mask"][0].sum())
    regressor = GaussianProcessRegressor(reference.RBF(length), alpha=0.01 + 1e-5, optimizer=None)
    regressor.fit(batch["xc"][0, :n].double(), batch["yc"][0, :n, 0].double())
    expected, deviation = regressor.predict(batch["xt"][0].double(), return_std=True)
    # the process's own white noise of 1e-5 is all that differs
    assert mean[0, :, 0].numpy() == pytest.approx(expected, abs=5e-3)
    assert scale[0, :, 0].numpy() == pytest.approx(deviation, abs=5e-3)


def test_a_batch_of_te_tnp_is_as_specified() -> None:
    counts = [MixedProcess(n_targets=1).batch(0, i, 1)["xc"].shape[1] for i in range(300)]
    assert stats.kstest(counts, stats.randint(1, 65).cdf).pvalue > 0.01
    batches = [MixedProcess().batch(0, i, 2) for i in range(8)]
    assert all(b["xt"].shape == (2, 128, 1) for b in batches)
    assert max(float(b["xc"].abs().max()) for b in batches) <= 2.0 < max(float(b["xt"].abs().max()) for b in batches)
    assert not torch.equal(batches[0]["xt"][0], batches[0]["xt"][1])


def test_a_shift_moves_locations_and_nothing_else() -> None:
    here, there = MixedProcess().batch(0, 2, 3), MixedProcess(shift=50.0).batch(0, 2, 3)
    assert torch.equal(here["yt"], there["yt"])
    assert torch.allclose(here["xt"] + 50, there["xt"])
    assert torch.allclose(here["xc"] + 50, there["xc"])
    for one, other in zip(MixedProcess().exact(0, 2, 3), MixedProcess(shift=50.0).exact(0, 2, 3), strict=True):
        assert torch.equal(one, other)


def test_functions_with_parameters_of_their_own_are_batches_of_one() -> None:
    process = GaussianProcess(kernel="periodic", shared=False)
    batch, (mean, scale) = process.batch(3, 2, 4), process.exact(3, 2, 4)
    for i in range(4):
        alone = GaussianProcess(kernel="periodic").batch(3, 8 + i, 1)
        assert all(torch.equal(batch[key][i], alone[key][0]) for key in batch)
        own_mean, own_scale = GaussianProcess(kernel="periodic").exact(3, 8 + i, 1)
        assert torch.equal(mean[i], own_mean[0])
        assert torch.equal(scale[i], own_scale[0])
    assert not torch.equal(batch["xt"][0], batch["xt"][1])
