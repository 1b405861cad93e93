"""Autoregressive samples: joint distribution, noise, and seeds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from geonp.nn.models import ARCHITECTURES
from geonp.nn.sampling import sample

LENGTH, NOISE = 1.0, 0.3


class Exact(nn.Module):
    """Exact predictions of a Gaussian process: new measurements, or noise-free values."""

    def __init__(self, noisy: bool) -> None:
        super().__init__()
        self.noisy, self.contexts = noisy, []

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor) -> Normal:
        def kernel(a: Tensor, b: Tensor) -> Tensor:
            return torch.exp(-0.5 * (torch.cdist(a, b) / LENGTH).square())

        keep = context_mask.double()
        self.contexts.append(int(keep[0].sum()))
        noise = torch.diag_embed(NOISE**2 * keep + 1e6 * (1 - keep))
        solved = torch.linalg.solve(kernel(xc, xc) + noise, kernel(xc, xt)).mT
        variance = 1 - (solved * kernel(xt, xc)).sum(-1, keepdim=True) + NOISE**2 * self.noisy
        return Normal(solved @ yc, variance.clamp_min(1e-9).sqrt())


def task() -> tuple[Tensor, Tensor, Tensor]:
    xc, xt = torch.tensor([[[-2.0], [1.5]]]).double(), torch.tensor([[[-0.4], [0.0], [0.9], [3.0]]]).double()
    return xc, torch.tensor([[[1.0], [-0.5]]]).double(), xt


def posterior(noisy: bool) -> tuple[Tensor, Tensor]:
    xc, yc, xt = (t[0] for t in task())
    x = torch.cat([xc, xt])
    k = torch.exp(-0.5 * (torch.cdist(x, x) / LENGTH).square())
    gain = k[2:, :2] @ torch.linalg.inv(k[:2, :2] + NOISE**2 * torch.eye(2))
    return gain @ yc[:, 0], k[2:, 2:] - gain @ k[:2, 2:] + NOISE**2 * noisy * torch.eye(4)


def test_samples_of_measurements_follow_the_joint_distribution() -> None:
    drawn = sample(Exact(True), *task(), 20_000, torch.Generator().manual_seed(0))
    assert drawn.shape == (20_000, 1, 4, 1)
    mean, covariance = posterior(True)
    torch.testing.assert_close(drawn[:, 0, :, 0].mean(0), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(drawn[:, 0, :, 0].T.cov(), covariance, atol=0.04, rtol=0)


def test_noise_is_added_to_the_context_and_not_to_the_samples() -> None:
    """Without noise, drawn values are taken for noisy ones, and the samples vary too little."""
    mean, covariance = posterior(False)
    for noise in (NOISE, 0.0):
        drawn = sample(Exact(False), *task(), 20_000, torch.Generator().manual_seed(0), noise=noise)[:, 0, :, 0]
        torch.testing.assert_close(drawn.mean(0), mean, atol=0.03, rtol=0)
        ratio = drawn.var(0) / covariance.diagonal()
        if noise:
            torch.testing.assert_close(ratio, torch.ones(4).double(), atol=0.05, rtol=0)
        else:
            assert (ratio[:3] < 0.97).all()


def test_smooth_samples_are_smoother_than_measurements() -> None:
    rough, smooth = (
        sample(Exact(True), *task(), 2000, torch.Generator().manual_seed(0), smooth=s)[:, 0, :, 0]
        for s in (False, True)
    )
    assert (smooth[:, 1] - smooth[:, 0]).var() < 0.6 * (rough[:, 1] - rough[:, 0]).var()


def test_each_target_is_given_the_context_and_earlier_targets() -> None:
    model = Exact(True)
    mask = torch.tensor([[True, False]])
    sample(model, *task(), 3, context_mask=mask)
    assert model.contexts == [1, 2, 3, 4]


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_architecture_can_be_sampled(name: str) -> None:
    torch.manual_seed(0)
    network = ARCHITECTURES[name]().eval()
    g = torch.Generator().manual_seed(0)
    xc, yc, xt = torch.rand(2, 5, 2, generator=g), torch.randn(2, 5, 1, generator=g), torch.rand(2, 3, 2, generator=g)
    mask = torch.arange(5).expand(2, 5) < 4
    before = torch.get_rng_state()
    first, again = (sample(network, xc, yc, xt, 2, torch.Generator().manual_seed(s), mask) for s in (1, 1))
    assert torch.equal(first, again)
    assert torch.equal(before, torch.get_rng_state())
    assert first.shape == (2, 2, 3, 1)
    assert torch.isfinite(first).all()
    assert (first[0] != first[1]).all()


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match="n must be at least 1 and noise not negative, got n=0, noise=0"):
        sample(Exact(True), *task(), 0)
