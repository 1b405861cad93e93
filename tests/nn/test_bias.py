"""Kernels shared by the layers of a model, evaluated block by block."""

from __future__ import annotations

import pytest
import torch

from geonp.nn import bias
from geonp.nn.bias import KernelDictionary, dictionary_bias, shared_bias

SCALES, DIRECTIONAL = (1.0, 8.0), (4.0,)


@pytest.mark.parametrize("block", [1, 40, 2**13])
def test_shared_biases_are_those_of_each_layer(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    dictionary = KernelDictionary(2, SCALES, DIRECTIONAL)
    generator = torch.Generator().manual_seed(0)
    xq, xk, values = (torch.randn(2, n, k, generator=generator) for n, k in ((9, 2), (7, 2), (7, 3)))
    amplitudes = torch.randn(4, 3, dictionary.size, generator=generator).requires_grad_()
    kernels = dictionary(xq, xk)
    monkeypatch.setattr(bias, "BLOCK_PAIRS", block)
    found, sums = shared_bias(dictionary, xq, xk, amplitudes, values, torch.float32)
    expected = torch.stack([dictionary_bias(kernels, layer) for layer in amplitudes], 1)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(sums, torch.einsum("bsqk,bkn->bsqn", kernels, values))
    slope = torch.randn(found.shape, generator=generator)
    torch.testing.assert_close(*(torch.autograd.grad(b, amplitudes, slope)[0] for b in (found, expected)))


@pytest.mark.parametrize("d_x", [1, 2, 3])
def test_kernels_are_gaussians_of_distances_and_of_single_directions(d_x: int) -> None:
    dictionary = KernelDictionary(d_x, SCALES, DIRECTIONAL)
    difference = torch.tensor([0.7, -1.1, 0.4])[:d_x]
    kernels = dictionary(difference[None, None], torch.zeros(1, 1, d_x))[0, :, 0, 0]
    full = [torch.exp(-0.5 * difference.square().sum() / s**2) for s in SCALES]
    along = [torch.exp(-0.5 * (u @ difference).square() / 16) for u in dictionary.projections]
    torch.testing.assert_close(kernels, torch.stack([*full, *along]))
    assert len(dictionary.projections) == d_x**2
