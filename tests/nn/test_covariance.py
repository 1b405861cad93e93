"""Mixtures of stationary covariances against the textbook formulas, in one block and in many."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from geonp.nn import covariance
from geonp.nn.covariance import N_KERNELS, matern_mixture


def textbook(xq: Tensor, xk: Tensor, weights: Tensor) -> Tensor:
    """Rasmussen & Williams (2006), equation 4.17 with lengths of sqrt(2 nu), and a Gaussian."""
    r = torch.cdist(xq, xk)
    kernels = [
        torch.exp(-r),
        torch.exp(-r) * (1 + r),
        torch.exp(-r) * (1 + r + r**2 / 3),
        torch.exp(-r) * (1 + r + 0.4 * r**2 + r**3 / 15),
        torch.exp(-(r**2) / 10),
    ]
    return sum(w[..., None, None] * k for w, k in zip(weights.unbind(-1), kernels, strict=True)).sum(1)


def arguments(n_q: int = 7, n_k: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    xq, xk = (4 * torch.rand(3, 2, n, 2, generator=generator).double() for n in (n_q, n_k))
    return xq, xk, torch.rand(3, 2, N_KERNELS, generator=generator).double()


@pytest.mark.parametrize("block", [1, 10, 2**14])
def test_mixture_equals_the_textbook_for_every_block_size(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(covariance, "BLOCKS", replace(covariance.BLOCKS, covariance=block))
    inputs = [t.requires_grad_() for t in arguments()]
    expected, actual = textbook(*inputs), matern_mixture(*inputs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)  # r = 1e-6 instead of 0
    grad = torch.randn(actual.shape, generator=torch.Generator().manual_seed(1)).double()
    for ours, theirs in zip(*(torch.autograd.grad(k, inputs, grad) for k in (actual, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_gradients_equal_finite_differences() -> None:
    assert torch.autograd.gradcheck(matern_mixture, [t.requires_grad_() for t in arguments()])


def test_coincident_points_have_the_full_variance_and_zero_gradient() -> None:
    x, _, weights = arguments()
    x = x.requires_grad_()
    kernel = matern_mixture(x, x.detach(), weights)
    torch.testing.assert_close(
        kernel.diagonal(dim1=1, dim2=2), weights.sum((1, 2))[:, None].expand(3, 7), atol=1e-5, rtol=0
    )
    (grad,) = torch.autograd.grad(kernel.diagonal(dim1=1, dim2=2).sum(), x)
    assert grad.abs().max() < 1e-9


def test_distant_points_give_no_subnormal_numbers() -> None:
    far = torch.tensor([0.0, 90.0, 1e3, 1e5]).double()[None, None, :, None] * torch.tensor([1.0, 0.0])
    kernel = matern_mixture(far, far[:, :, :1], torch.ones(1, 1, N_KERNELS).double())[0, :, 0]
    assert kernel[0] > 4.99
    assert (kernel[1:] < 1e-25).all()
    assert (kernel > math.ldexp(1.0, -1000)).all()
