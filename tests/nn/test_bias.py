"""Attention biases: RBF, and kernels shared by the layers of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from geonp.nn import bias
from geonp.nn.bias import KernelDictionary, RBFBias, dictionary_bias, rbf_bias, shared_bias

SCALES, DIRECTIONAL = (1.0, 8.0), (4.0,)


@pytest.mark.parametrize("block", [1, 40, 2**13])
def test_shared_biases_equal_the_bias_of_each_layer(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    dictionary = KernelDictionary(2, SCALES, DIRECTIONAL)
    generator = torch.Generator().manual_seed(0)
    xq, xk, values = (torch.randn(2, n, k, generator=generator) for n, k in ((9, 2), (7, 2), (7, 3)))
    amplitudes = torch.randn(4, 3, dictionary.size, generator=generator).requires_grad_()
    kernels = dictionary(xq, xk)
    monkeypatch.setattr(bias, "BLOCKS", replace(bias.BLOCKS, bias=block))
    actual, sums = shared_bias(dictionary, xq, xk, amplitudes, values, torch.float32)
    expected = torch.stack([dictionary_bias(kernels, layer) for layer in amplitudes], 1)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(sums, torch.einsum("bsqk,bkn->bsqn", kernels, values))
    grad = torch.randn(actual.shape, generator=generator)
    torch.testing.assert_close(*(torch.autograd.grad(b, amplitudes, grad)[0] for b in (actual, expected)))


@pytest.mark.parametrize("d_x", [1, 2, 3])
def test_kernels_are_gaussians_of_the_distance_and_of_single_directions(d_x: int) -> None:
    dictionary = KernelDictionary(d_x, SCALES, DIRECTIONAL)
    difference = torch.tensor([0.7, -1.1, 0.4])[:d_x]
    kernels = dictionary(difference[None, None], torch.zeros(1, 1, d_x))[0, :, 0, 0]
    full = [torch.exp(-0.5 * difference.square().sum() / s**2) for s in SCALES]
    along = [torch.exp(-0.5 * (u @ difference).square() / 16) for u in dictionary.projections]
    torch.testing.assert_close(kernels, torch.stack([*full, *along]))
    assert len(dictionary.projections) == d_x**2


def test_rbf_bias_at_coincident_points_has_finite_gradients() -> None:
    x = torch.zeros(1, 3, 2, requires_grad=True)
    bias = RBFBias(2)
    rbf_bias(x, x, bias.a, bias.b, bias.c).sum().backward()
    assert torch.isfinite(x.grad).all()


def test_bases_of_equal_width_would_stay_equal() -> None:
    """The published initialisation gives all bases of a head the same gradient; distinct widths don't."""
    xq, xk, grad = torch.rand(1, 5, 2), torch.rand(1, 6, 2), torch.rand(1, 2, 5, 6)
    for published in (False, True):
        bias = RBFBias(2)
        if published:
            torch.nn.init.ones_(bias.b)
        bias(xq, xk).backward(grad)
        assert torch.allclose(bias.b.grad, bias.b.grad[:, :1].expand(-1, 5)) is published


def test_kernels_are_exact_in_bfloat16_too() -> None:
    dictionary = KernelDictionary(2, SCALES, DIRECTIONAL)
    x = torch.tensor([[[0.0, 0.0], [57.0, 58.0], [101.0, 99.0]]])
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = dictionary(x, x + 0.5)
    assert torch.equal(under_autocast, dictionary(x, x + 0.5))
