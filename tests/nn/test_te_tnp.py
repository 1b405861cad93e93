"""TE-TNP and TE-PT-TNP against their equations, pair by pair; memory of inference; options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonp.nn import te_tnp
from geonp.nn.te_tnp import TEPTTNP, TETNP, PseudoLocations, TEBlock

SMALL: dict[str, Any] = {"dim": 16, "heads": 4, "blocks": 2}


def perturbed(network: nn.Module) -> nn.Module:
    for p in network.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return network.eval()


def task(n_c: int = 6, n_t: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    xc, xt = (torch.rand(1, n, 2, generator=g) * 4 - 2 for n in (n_c, n_t))
    return xc, torch.randn(1, n_c, 1, generator=g), xt


def block_by_equations(block: TEBlock, zq: Tensor, xq: Tensor, zk: Tensor, xk: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 7, 8 and 10 for every query, one pair at a time: ``(n, dim)`` tokens, ``(n, d_x)`` locations."""
    heads, q, k = block.heads, block.norm_attention(zq), block.norm_attention(zk)
    q, k, v = (m.unflatten(1, (heads, -1)) for m in (block.to_q(q), block.to_k(k), block.to_v(k)))
    tokens, locations = [], []
    for n in range(len(zq)):
        score = []
        for m in range(len(zk)):
            dots = (q[n] * k[m]).sum(-1) / q.shape[-1] ** 0.5
            score.append(nn.Sequential(*block.rho)(torch.cat([xq[n] - xk[m], dots])))
        weight = torch.exp(torch.stack(score))
        weight = weight / weight.sum(0)
        read = block.to_out(sum(weight[m][:, None] * v[m] for m in range(len(zk))).flatten())
        z = zq[n] + read
        tokens.append(z + block.ff(block.norm_ff(z)))
        step = torch.zeros_like(xq[n])
        if block.phi is not None:
            step = sum((xq[n] - xk[m]) * nn.Sequential(*block.phi)(weight[m]) for m in range(len(zk))) / len(zk)
        locations.append(xq[n] + step)
    return torch.stack(tokens), torch.stack(locations)


def flagged(y: Tensor, flag: float) -> Tensor:
    return torch.cat([y, torch.full_like(y[:, :1], flag)], 1)


def te_tnp_by_equations(network: TETNP, xc: Tensor, yc: Tensor, xt: Tensor) -> Tensor:
    z, t = network.embed(flagged(yc, 0.0)), network.embed(flagged(torch.zeros(len(xt), 1).to(yc), 1.0))
    for block in network.blocks:
        (z, xc), (t, xt) = block_by_equations(block, z, xc, z, xc), block_by_equations(block, t, xt, z, xc)
    return network.head.mlp(t)


def te_pt_tnp_by_equations(network: TEPTTNP, xc: Tensor, yc: Tensor, xt: Tensor) -> Tensor:
    z, t = network.embed(flagged(yc, 0.0)), network.embed(flagged(torch.zeros(len(xt), 1).to(yc), 1.0))
    u, psi = network.pseudo, network.locate
    v = psi.offset + xc.mean(0)
    if psi.attention:
        q, k = psi.to_q(u).unflatten(1, (psi.heads, -1)), psi.to_k(z).unflatten(1, (psi.heads, -1))
        weight = (torch.einsum("mhd,nhd->hmn", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        v = psi.offset + torch.einsum("h,hmn,nd->md", psi.mixture.softmax(0), weight, xc)
    for i in range(len(network.gather)):
        u, v = block_by_equations(network.gather[i], u, v, z, xc)
        if i < len(network.spread):
            z, xc = block_by_equations(network.spread[i], z, xc, u, v)
        t, xt = block_by_equations(network.read[i], t, xt, u, v)
    return network.head.mlp(t)


@pytest.mark.parametrize(
    ("kind", "equations", "options"),
    [
        (TETNP, te_tnp_by_equations, {}),
        (TETNP, te_tnp_by_equations, {"move_locations": False}),
        (TEPTTNP, te_pt_tnp_by_equations, {"n_pseudo": 3}),
        (TEPTTNP, te_pt_tnp_by_equations, {"n_pseudo": 3, "move_locations": False, "locate": False}),
    ],
)
def test_predictions_equal_the_equations_in_float64(
    kind: type[nn.Module], equations: Any, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    network = perturbed(kind(**SMALL, **options))
    actual = network(*task())
    raw = equations(network.double(), *(t[0].double() for t in task()))
    loc, scale = raw[:, :1], torch.log1p(torch.exp(raw[:, 1:])).sqrt()
    torch.testing.assert_close(actual.loc[0], loc.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.scale[0], scale.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [TETNP, TEPTTNP])
def test_options_default_to_the_paper(kind: type[nn.Module]) -> None:
    network = kind(**SMALL)
    last = (network.blocks if kind is TETNP else network.read)[-1]
    assert [block for block in network.modules() if isinstance(block, TEBlock) and block.phi is None] == [last]
    assert all(psi.attention for psi in network.modules() if isinstance(psi, PseudoLocations))
    fixed = kind(**SMALL, move_locations=False)
    assert all(block.phi is None for block in fixed.modules() if isinstance(block, TEBlock))


def test_pseudo_locations_are_averages_of_context_locations() -> None:
    torch.manual_seed(0)
    xc, zc, mask = torch.rand(1, 9, 2) + 5, torch.randn(1, 9, 16), torch.ones(1, 9).bool()
    for attention in (True, False):
        psi, u = PseudoLocations(6, 16, 4, 2, attention), torch.randn(6, 16)
        average = psi(u, zc, xc, mask) - psi.offset
        assert (average > xc.amin(1)).all()
        assert (average < xc.amax(1)).all()
        assert bool((average.std(1) > 1e-4).all()) is attention


@pytest.mark.parametrize("kind", [TETNP, TEPTTNP])
def test_predictions_are_exact_far_from_the_origin(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    network, (xc, yc, xt) = perturbed(kind(**SMALL)), task()
    xc, xt = (x.mul(8).round() / 8 for x in (xc, xt))
    here, there = network(xc, yc, xt), network(xc + 2.0**18, yc, xt + 2.0**18)
    torch.testing.assert_close(here.loc, there.loc, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [TETNP, TEPTTNP])
def test_predictions_do_not_depend_on_chunks_of_targets_and_pairs(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network, inputs = perturbed(kind(**SMALL)), task(12, 7)
    whole = network(*inputs)
    monkeypatch.setattr(te_tnp, "BLOCKS", replace(te_tnp.BLOCKS, targets=4))
    for block in network.modules():
        if isinstance(block, TEBlock):
            block.max_pairs = 30
    torch.testing.assert_close(network(*inputs).loc, whole.loc, rtol=1e-5, atol=1e-5)


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the elements of the largest tensor that an operation creates."""

    largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, Tensor) and t.storage_offset() == 0:
                self.largest = max(self.largest, t.untyped_storage().nbytes() // t.element_size())
        return out


def test_memory_of_inference_does_not_grow_with_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is larger than the tokens of the points or the activations of `max_pairs` pairs."""
    monkeypatch.setattr(te_tnp, "BLOCKS", replace(te_tnp.BLOCKS, targets=2**10))
    network, n_c, n_t = TEPTTNP(**{**SMALL, "n_pseudo": 8, "max_pairs": 2**10}).eval(), 1000, 10_000
    with torch.no_grad(), LargestTensor() as recorder:
        network(*task(n_c, n_t))
    allowed = max(2**10 * 20, n_c * 20, 2**10 * 20, n_t * 2)
    assert 0 < recorder.largest <= allowed < n_t * 8 * 16 / 16


def test_gradients_reach_the_locations() -> None:
    """Through differences, weights and steps; finite also at coincident points."""
    torch.manual_seed(0)
    xc, yc, xt = task()
    xc = torch.cat([xc, xt[:, :1]], 1).requires_grad_()
    perturbed(TEPTTNP(**SMALL, n_pseudo=3))(xc, torch.cat([yc, yc[:, :1]], 1), xt).loc.sum().backward()
    assert torch.isfinite(xc.grad).all()
    assert (xc.grad != 0).any()


RASTER: dict[str, Any] = {**SMALL, "n_pseudo": 3, "head": "kriging", "scales": (1.0, 4.0), "unit": 4.0}


@pytest.mark.parametrize("options", [{"head": "kriging"}, {"scales": (1.0,)}, {"head": "normal"}])
def test_head_and_scales_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='head must be "variance", or "kriging" or "drift" with scales, got'):
        TEPTTNP(**SMALL, **options)


def test_blocks_start_as_the_identity_with_a_kriging_head() -> None:
    """So that embedding and head of another model can be transferred; trained blocks read the pseudo-tokens."""
    torch.manual_seed(0)
    network, (xc, yc, xt) = TEPTTNP(**RASTER).eval(), task()

    def predict(pseudo: Tensor) -> Tensor:
        network.pseudo.data.copy_(pseudo)
        return network(xc, yc, xt).loc

    pseudo = network.pseudo.detach().clone()
    assert torch.equal(predict(pseudo), predict(-pseudo))
    perturbed(network)
    assert not torch.equal(predict(pseudo), predict(-pseudo))


def test_kriging_is_exact_in_bfloat16_too() -> None:
    """Rounding coordinates to 8 bits would move cells."""
    torch.manual_seed(0)
    network, (xc, yc, xt) = perturbed(TEPTTNP(**RASTER)), task(20)
    exact = network(xc * 30, yc, xt * 30)
    with torch.autocast("cpu", torch.bfloat16):
        actual = network(xc * 30, yc, xt * 30)
    torch.testing.assert_close(actual.loc, exact.loc)
    torch.testing.assert_close(actual.scale, exact.scale)


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="dim must be a multiple of heads, got 10 and 3 heads"):
        TETNP(dim=10, heads=3)
