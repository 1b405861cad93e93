"""ConvCNP against its equations in float64, and its grid."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from geonp.nn.zoo import convcnp
from geonp.nn.zoo.convcnp import ConvCNP

SMALL: dict[str, Any] = {"channels": 6, "density": 4.0, "blocks": 2, "kernel_size": 3, "head_layers": 2}


def build(**options: Any) -> ConvCNP:
    torch.manual_seed(0)
    network = ConvCNP(**{**SMALL, **options})
    for p in network.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return network.eval()


def task(d_x: int, n_c: int = 8, n_t: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    xc, xt = (torch.rand(1, n, d_x, generator=g) * 2 - 1 for n in (n_c, n_t))
    return xc, torch.randn(1, n_c, 1, generator=g), xt


def by_equations(network: ConvCNP, xc: Tensor, yc: Tensor, xt: Tensor) -> Tensor:
    """Raw outputs, from a list of cells and a Gaussian kernel of the distance of each pair."""
    d_x, points = xc.shape[1], torch.cat([xc, xt])
    axes = []
    for i in range(d_x):
        first, last = math.floor(points[:, i].min() * 4) - 2, math.ceil(points[:, i].max() * 4) + 2
        axes.append(torch.arange(first, last + 1).double() / 4)
    cells = torch.cartesian_prod(*axes).view(-1, d_x)

    def kernel(a: Tensor, b: Tensor, log_length: Tensor) -> Tensor:
        squared = (a[:, None] - b[None]).square().sum(-1)
        return torch.exp(-squared / (2 * torch.exp(log_length) ** 2))

    density = kernel(cells, xc, network.log_length_in[0]).sum(1)
    signal = kernel(cells, xc, network.log_length_in[1]) @ yc[:, 0] / (density + 1e-4)
    grid = network.project(torch.stack([density, signal]).view(1, 2, *map(len, axes)))
    for block in network.blocks:
        out = grid
        for i in range(2):
            shape = (1, -1, *[1] * d_x)
            out = (out * block.weights[i].view(shape) + block.biases[i].view(shape)).clamp_min(0)
            out = block.pointwise[i](block.depthwise[i](out))
        grid = grid + out
    grid = network.finish(grid)[0].flatten(1)
    weight = kernel(xt, cells, network.log_length_out[0])
    return network.head(weight / weight.sum(1, keepdim=True) @ grid.T)


@pytest.mark.parametrize("d_x", [1, 2])
def test_predictions_equal_the_equations_in_float64(d_x: int) -> None:
    network, inputs = build(d_x=d_x), task(d_x)
    actual = network(*inputs)
    loc, raw = by_equations(network.double(), *(t[0].double() for t in inputs)).chunk(2, 1)
    torch.testing.assert_close(actual.loc[0], loc.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.scale[0], torch.log1p(raw.exp()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("d_x", [1, 2])
def test_equivariance_is_exact_for_whole_cells_and_approximate_otherwise(d_x: int) -> None:
    network, (xc, yc, xt) = build(d_x=d_x), task(d_x)
    here = network(xc, yc, xt).loc
    torch.testing.assert_close(network(xc + 2.5, yc, xt + 2.5).loc, here, rtol=1e-4, atol=1e-5)
    part = (network(xc + 0.1, yc, xt + 0.1).loc - here).abs().max()
    assert 1e-6 < part < 0.1 * here.std() + 0.1


def test_predictions_do_not_depend_on_chunks_of_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = build(), task(2, n_t=11)
    whole = network(*inputs).loc
    monkeypatch.setattr(convcnp, "TARGET_CHUNK", 3)
    torch.testing.assert_close(network(*inputs).loc, whole, rtol=1e-5, atol=1e-6)


def test_a_huge_grid_is_refused() -> None:
    xc, yc, xt = task(2)
    with pytest.raises(ValueError, match="cells, expected at most 4194304: lower the density of"):
        build()(xc * 1e5, yc, xt)


def test_three_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="d_x must be 1 or 2, got 3"):
        ConvCNP(d_x=3)
