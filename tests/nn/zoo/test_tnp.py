"""TNP-D, TNP-ND, TNP-A, EQTNP, PT-TNP and LBANP against their equations in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from geonp.nn.zoo.pt_tnp import LBANP, PTTNP
from geonp.nn.zoo.tnp import EQTNP, TNPA, TNPD, TNPND

from .test_cnp import build, close, doubled, task

KR: dict[str, Any] = {"dim": 16, "heads": 4, "blocks": 2, "qk_dim": 16, "v_dim": 8, "v_hidden": 12, "ff_dim": 32}
P2: dict[str, Any] = {"dim": 16, "heads": 4, "blocks": 3}


def attention(module: nn.Module, queries: Tensor, keys: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Equation 2 and 3 of TE-TNP: multi-head softmax attention of ``(n, dim)`` tokens."""
    q, k, v = (t.unflatten(1, (module.heads, -1)) for t in (module.to_q(queries), module.to_k(keys), module.to_v(keys)))
    weight = torch.exp(torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5)
    if allowed is not None:
        weight = weight * allowed
    return module.to_out(torch.einsum("hnm,mhv->nhv", weight / weight.sum(-1, keepdim=True), v).flatten(1))


def post_norm(block: nn.Module, queries: Tensor, keys: Tensor, allowed: Tensor | None = None) -> Tensor:
    z = block.norm_attention(queries + attention(block.attention, queries, keys, allowed))
    return block.norm_ff(z + block.ff(z))


def pre_norm(block: nn.Module, queries: Tensor, keys: Tensor) -> Tensor:
    z = queries + attention(block.attention, block.norm_attention(queries), block.norm_attention(keys))
    return z + block.ff(block.norm_ff(z))


def tnp_d(network: TNPD, xc: Tensor, yc: Tensor, xt: Tensor) -> Tensor:
    """Tokens of the targets: the published form, one sequence with a mask."""
    n_c = len(xc)
    z = network.embed(torch.cat([torch.cat([xc, yc], 1), torch.cat([xt, 0 * xt[:, :1]], 1)]))
    allowed = torch.zeros(len(z), len(z)).double()
    allowed[:, :n_c] = 1
    for block in network.blocks:
        z = post_norm(block, z, z, allowed)
    return z[n_c:]


def pre_norm_models(network: nn.Module, xc: Tensor, yc: Tensor, xt: Tensor) -> Tensor:
    """Raw outputs of EQTNP, PT-TNP and LBANP."""
    z = network.embed(torch.cat([xc, yc, torch.ones_like(yc)], 1))
    t = network.embed(torch.cat([xt, torch.zeros_like(xt)], 1))
    if isinstance(network, EQTNP):
        for context, read in zip(network.context, network.read, strict=True):
            z = pre_norm(context, z, z)
            t = pre_norm(read, t, z)
        return network.head.mlp(t)
    u = network.pseudo
    for i, (gather, read) in enumerate(zip(network.gather, network.read, strict=True)):
        u = pre_norm(gather, u, z)
        if isinstance(network, LBANP):
            u = pre_norm(network.exchange[i], u, u)
        elif i < len(network.exchange):
            z = pre_norm(network.exchange[i], z, u)
        t = pre_norm(read, t, u)
    return network.head.mlp(t)


@pytest.mark.parametrize("kind", [TNPD, TNPA])
def test_tnp_d_equals_its_equations(kind: type[TNPD]) -> None:
    """TNP-A given the context only is TNP-D."""
    network, inputs = build(kind, **KR), task()
    actual = network(*inputs)
    loc, raw = network.double().head.mlp(tnp_d(network, *doubled(*inputs))).chunk(2, -1)
    close(actual.loc[0], loc)
    close(actual.scale[0], torch.log1p(raw.exp()))


@pytest.mark.parametrize(("kind", "n"), [(EQTNP, None), (PTTNP, 3), (LBANP, 3)])
def test_pre_norm_models_equal_their_equations(kind: type[nn.Module], n: int | None) -> None:
    network, inputs = build(kind, **P2, **({"n_pseudo": n} if n else {})), task()
    actual = network(*inputs)
    loc, raw = pre_norm_models(network.double(), *doubled(*inputs)).chunk(2, -1)
    close(actual.loc[0], loc)
    close(actual.scale[0], torch.log1p(raw.exp()).sqrt())


@pytest.mark.parametrize("covariance", ["cholesky", "lowrank"])
def test_tnp_nd_equals_its_equations(covariance: str) -> None:
    network, inputs = build(TNPND, **KR, rank=5, mix_blocks=2, covariance=covariance), task()
    yt = torch.randn(1, 4, 1)
    actual, joint, loss = network(*inputs), network.joint(*inputs), network.loss(*inputs, yt)
    t = tnp_d(network.double(), *doubled(*inputs))
    loc, raw = network.head.mlp(t).chunk(2, -1)
    for block in network.mix:
        t = post_norm(block, t, t)
    factors, diagonal = network.factors(t), torch.log1p(raw[:, 0].exp()) + 1e-4
    if covariance == "cholesky":
        lower = torch.stack([torch.stack([(factors[i] @ factors[j]) * (j <= i) for j in range(4)]) for i in range(4)])
        lower = lower + torch.diag(diagonal)
        expected = lower @ lower.T
    else:
        expected = factors @ factors.T + torch.diag(diagonal**2)
    close(joint.covariance_matrix[0], expected)
    close(actual.loc[0], loc)
    close(actual.scale[0, :, 0], expected.diagonal().sqrt())
    density = MultivariateNormal(loc[:, 0], expected).log_prob(yt[0, :, 0].double())
    close(loss, -density / 4)


def test_targets_of_tnp_nd_are_correlated() -> None:
    network, inputs = build(TNPND, **KR, rank=5), task()
    covariance = network.joint(*inputs).covariance_matrix[0]
    assert (covariance - covariance.diagonal().diag()).abs().max() > 1e-2


def test_channels_vary_fastest_in_the_joint_distribution() -> None:
    network, (xc, yc, xt) = build(TNPND, **KR, d_y=2), task()
    inputs = xc, yc.expand(-1, -1, 2), xt
    marginal, joint = network(*inputs), network.joint(*inputs)
    assert torch.equal(marginal.loc.flatten(1), joint.mean)
    assert marginal.loc.shape == (1, 4, 2)


def test_tnp_a_equals_its_equations() -> None:
    """With the published mask over context, known targets and unknown targets."""
    network, inputs, yt = build(TNPA, **KR), task(), torch.randn(1, 4, 1)
    actual, loss = network.conditional(*inputs, yt), network.loss(*inputs, yt)
    xc, yc, xt, y = doubled(*inputs, yt)
    network.double()
    z = network.embed(
        torch.cat([torch.cat([xc, yc], 1), torch.cat([xt, y], 1), torch.cat([xt, torch.zeros_like(y)], 1)])
    )
    allowed = torch.zeros(16, 16).double()
    allowed[:, :8] = 1
    for i in range(4):
        allowed[8 + i, 8 : 8 + i + 1] = 1
        allowed[12 + i, 8 : 8 + i] = 1
    for block in network.blocks:
        z = post_norm(block, z, z, allowed)
    loc, raw = network.head.mlp(z[12:]).chunk(2, -1)
    close(actual.loc[0], loc)
    close(actual.scale[0], torch.log1p(raw.exp()))
    close(loss, -torch.distributions.Normal(loc, torch.log1p(raw.exp())).log_prob(y).mean())


def test_tnp_a_attends_to_earlier_targets_only() -> None:
    network, inputs, yt = build(TNPA, **KR), task(), torch.randn(1, 4, 1)
    changed = yt.clone()
    changed[:, 2] += 1
    first, second = network.conditional(*inputs, yt).loc, network.conditional(*inputs, changed).loc
    assert torch.equal(first[:, :3], second[:, :3])
    assert (first[:, 3] - second[:, 3]).abs() > 1e-4
    torch.testing.assert_close(first[:, 0], network(*inputs).loc[:, 0])


def test_unknown_covariances_are_refused() -> None:
    with pytest.raises(ValueError, match='covariance must be "cholesky" or "lowrank", got \'full\''):
        TNPND(covariance="full")
