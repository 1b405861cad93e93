"""Density, variogram and local means of a context against sums over all pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from geonp.nn.bias import KernelDictionary
from geonp.nn.statistics import context_means, context_statistics, moments

DICTIONARY = KernelDictionary(2, (1.0, 4.0, 16.0), (4.0,))
MASK = torch.arange(20)[None] < 17


def task(d_y: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Locations of 9 targets and 20 context points, those of the context, and its values."""
    g = torch.Generator().manual_seed(0)
    xc, yc, xt = (torch.rand(1, n, k, generator=g) * size for n, k, size in ((20, 2, 16), (20, d_y, 3), (9, 2, 16)))
    return torch.cat([xt, xc], 1), xc, yc


def test_statistics_are_the_density_and_the_variogram() -> None:
    xq, xc, yc = task()
    local, summary = context_statistics(DICTIONARY.sums(xq, xc, moments(yc, MASK)), yc, MASK)
    weights = torch.exp(-0.5 * (xc[0, :17, None] - xc[0, None, :17]).square().sum(-1) / 16.0)
    squares = (yc[0, :17, 0, None] - yc[0, None, :17, 0]).square()
    density, variogram = weights.sum(1), (weights * squares).sum(1) / weights.sum(1)
    size, tolerance = DICTIONARY.size, {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(local[0, 9:26, 1], 0.3 * torch.log(density + 0.01), **tolerance)
    torch.testing.assert_close(local[0, 9:26, size + 1], 0.25 * (torch.log(variogram + 1e-6) + 4.0), **tolerance)
    assert (local[:, :9, size:] == 0).all()
    others = weights - torch.eye(17)
    whole = 0.25 * (torch.log((others * squares).sum() / others.sum() + 1e-6) + 4.0)
    torch.testing.assert_close(summary[0, size + 1], whole, **tolerance)


def test_means_are_weighted_by_each_kernel() -> None:
    xq, xc, yc = task(d_y=2)
    means = context_means(DICTIONARY.sums(xq, xc, moments(yc, MASK)))
    kernels = DICTIONARY(xq, xc)[0, :, :, :17]
    expected = kernels @ yc[0, :17] / (kernels.sum(-1, keepdim=True) + 0.01)
    torch.testing.assert_close(means[0].unflatten(1, (-1, 2)).transpose(0, 1), expected, rtol=1e-4, atol=1e-4)
