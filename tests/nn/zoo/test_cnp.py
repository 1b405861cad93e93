"""CNP, NP, BNP, CANP, ANP, BANP and RCNP against their equations in float64, and their random draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from geonp.nn.zoo.cnp import ANP, BANP, BNP, CANP, CNP, NP, RCNP, AttentiveEncoder

POOLED: dict[str, Any] = {"encoder": (24, 16), "decoder": (32, 24)}
LATENT: dict[str, Any] = {**POOLED, "latent": (24, 16), "n_latents": 3}
BOOTSTRAP: dict[str, Any] = {"encoder": (24, 16), "decoder": (16, 32), "n_bootstraps": 3}
LOCATED: dict[str, Any] = {"locate": (16, 16)}


def build(kind: type[nn.Module], **options: Any) -> nn.Module:
    torch.manual_seed(0)
    network = kind(**options)
    for p in network.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return network.eval()


def task(n_c: int = 8, n_t: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    xc, xt = (torch.rand(1, n, 2, generator=g) * 4 - 2 for n in (n_c, n_t))
    return xc, torch.randn(1, n_c, 1, generator=g), xt


def doubled(*tensors: Tensor) -> list[Tensor]:
    return [t[0].double() for t in tensors]


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=tolerance, atol=tolerance)


def attention(module: nn.Module, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    q, k, v = (
        t.unflatten(1, (module.heads, -1)) for t in (module.to_q(queries), module.to_k(keys), module.to_v(values))
    )
    weight = (torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return module.to_out(torch.einsum("hnm,mhv->nhv", weight, v).flatten(1))


def encoded(encoder: nn.Module, xc: Tensor, yc: Tensor, xt: Tensor) -> Tensor:
    tokens = encoder.mlp(torch.cat([xc, yc], 1))
    if isinstance(encoder, AttentiveEncoder):
        tokens = attention(encoder.mix, tokens, tokens, tokens)
        return attention(encoder.read, encoder.locate(xt), encoder.locate(xc), tokens)
    return (sum(tokens) / len(tokens)).expand(len(xt), -1)


def latent(network: NP, x: Tensor, y: Tensor) -> Normal:
    tokens = network.latent(torch.cat([x, y], 1))
    if isinstance(network, ANP):
        tokens = attention(network.mix, tokens, tokens, tokens)
    loc, raw = network.to_z(tokens.mean(0)).chunk(2)
    return Normal(loc, 0.1 + 0.9 / (1 + torch.exp(-raw)))


def normal(raw: Tensor) -> Normal:
    return Normal(raw[:, :1], torch.log1p(raw[:, 1:].exp()))


@pytest.mark.parametrize(("kind", "options"), [(CNP, POOLED), (CANP, {**POOLED, **LOCATED})])
def test_conditional_models_equal_their_equations(kind: type[nn.Module], options: dict[str, Any]) -> None:
    network, inputs = build(kind, **options), task()
    actual = network(*inputs)
    network.double()
    xc, yc, xt = doubled(*inputs)
    expected = normal(network.decoder(torch.cat([encoded(network.encoder, xc, yc, xt), xt], 1)))
    close(actual.mean[0], expected.loc)
    close(actual.stddev[0], expected.scale)


@pytest.mark.parametrize(("kind", "options"), [(NP, LATENT), (ANP, {**LATENT, **LOCATED})])
def test_latent_models_equal_their_equations(kind: type[nn.Module], options: dict[str, Any]) -> None:
    network, inputs, yt = build(kind, **options), task(), torch.randn(1, 4, 1)
    actual = network(*inputs)
    torch.manual_seed(5)
    loss = network.loss(*inputs, yt)
    network.double()
    xc, yc, xt, y = doubled(*inputs, yt)
    r, prior = encoded(network.encoder, xc, yc, xt), latent(network, xc, yc)

    def decoded(z: Tensor) -> Normal:
        return normal(network.decoder(torch.cat([r, z.expand(len(xt), -1), xt], 1)))

    parts = [decoded(prior.loc + prior.scale * noise) for noise in network.noise]
    mean = sum(p.loc for p in parts) / 3
    variance = sum(p.scale**2 + (p.loc - mean) ** 2 for p in parts) / 3
    close(actual.mean[0], mean)
    close(actual.stddev[0], variance.sqrt())
    density = torch.log(sum(p.log_prob(y).exp() for p in parts) / 3)
    close(actual.log_prob(yt)[0], density)
    posterior = latent(network, torch.cat([xc, xt]), torch.cat([yc, y]))
    torch.manual_seed(5)
    z = posterior.loc + posterior.scale * torch.randn(1, 16)[0]
    close(loss, kl_divergence(posterior, prior).sum() / 4 - decoded(z).log_prob(y).mean())


@pytest.mark.parametrize(("kind", "options"), [(BNP, BOOTSTRAP), (BANP, {**BOOTSTRAP, **LOCATED})])
def test_bootstrap_models_equal_their_equations(kind: type[nn.Module], options: dict[str, Any]) -> None:
    network, inputs, yt = build(kind, **options), task(), torch.randn(1, 4, 1)
    actual, loss = network(*inputs), network.loss(*inputs, yt)
    network.double()
    xc, yc, xt, y = doubled(*inputs, yt)
    order = yc[:, 0].argsort()
    xc, yc = xc[order], yc[order]
    draws = torch.rand(8, 3, 2, generator=torch.Generator().manual_seed(0))
    index = (draws * 8).long()

    def decoded(hidden: Tensor) -> Normal:
        return normal(network.decoder(hidden.clamp_min(0)))

    def first(x_in: Tensor, y_in: Tensor, x_out: Tensor) -> Tensor:
        return network.first(torch.cat([encoded(network.encoder, x_in, y_in, x_out), x_out], 1))

    parts, hidden = [], first(xc, yc, xt)
    for k in range(3):
        chosen, shuffled = index[:, k].T
        around = decoded(first(xc[chosen], yc[chosen], xc))
        residual = ((yc - around.loc) / around.scale)[shuffled]
        pseudo = around.loc + around.scale * (residual - residual.mean())
        parts.append(decoded(hidden + network.more(encoded(network.encoder, xc, pseudo, xt))))
    density = torch.log(sum(p.log_prob(y).exp() for p in parts) / 3)
    close(actual.mean[0], sum(p.loc for p in parts) / 3)
    close(actual.log_prob(yt)[0], density, 2e-5)
    close(loss, -(density + decoded(hidden).log_prob(y)).mean() / 2)


@pytest.mark.parametrize("max_pairs", [1, 17, 10**6])
def test_rcnp_equals_its_equation_for_every_block_size(max_pairs: int) -> None:
    network, inputs = build(RCNP, dim=16, max_pairs=max_pairs), task()
    actual = network(*inputs)
    actual.loc.sum().backward()
    gradient = network.relation[0].weight.grad.clone()
    network.double()
    network.zero_grad()
    xc, yc, xt = doubled(*inputs)
    pooled = [sum(network.relation(torch.cat([x - xc[j], yc[j]])) for j in range(8)) / 8 for x in xt]
    loc, raw = network.head.mlp(torch.stack(pooled)).chunk(2, 1)
    close(actual.loc[0], loc)
    close(actual.scale[0], torch.log1p(raw.exp()).sqrt())
    loc.sum().backward()
    close(gradient, network.relation[0].weight.grad, 1e-4)


def test_training_draws_new_bootstraps_and_latent_variables() -> None:
    inputs, yt = task(), torch.randn(1, 4, 1)
    for kind, options in ((BNP, BOOTSTRAP), (NP, LATENT)):
        network = build(kind, **options).train()
        assert network.loss(*inputs, yt) != network.loss(*inputs, yt)


def test_latent_draws_are_stored_with_the_weights() -> None:
    first, second = build(NP, **LATENT), NP(**LATENT)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(*task()).mean, second.eval()(*task()).mean)
    assert len(first.noise.unique()) == first.noise.numel()
