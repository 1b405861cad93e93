"""TNP-KR: masks, permutations, translations, blocks, and its equations restated in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal

from geonp.nn.bias import RBFBias
from geonp.nn.models import build
from geonp.nn.statistics import context_means, moments
from geonp.nn.tnp_kr import TNPKR

RASTER = {
    "dim": 32,
    "heads": 2,
    "blocks": 2,
    "qk_dim": 32,
    "v_dim": 32,
    "v_hidden": 0,
    "ff_dim": 32,
    "embed_x": False,
    "kernels": "dictionary",
    "scales": (1.0, 4.0, 16.0),
    "directional_scales": (4.0,),
    "statistics": True,
    "head": "kriging",
    "n_refine": 8,
    "whole_steps": 1,
}
SCORING = {**RASTER, "scoring_steps": 2, "outliers": True}
MEANS = {**RASTER, "statistics": False, "means": True, "head": "gaussian", "n_refine": 128, "whole_steps": 0}
PAPER = {"blocks": 2}
INVARIANT = {"blocks": 2, "embed_x": False}
DKA = {"blocks": 2, "attention": "dka"}
PERFORMER = {"blocks": 2, "attention": "performer", "v_dim": 128, "v_hidden": 0, "embed_hidden": (512, 128)}
FULL = {"blocks": 2, "attention": "full"}
NAMED = {
    "raster": RASTER,
    "scoring": SCORING,
    "means": MEANS,
    "paper": PAPER,
    "invariant": INVARIANT,
    "dka": DKA,
    "performer": PERFORMER,
    "full": FULL,
}
ALL = [pytest.param(config, id=name) for name, config in NAMED.items()]


def model(config: dict[str, object], **more: object) -> TNPKR:
    torch.manual_seed(0)
    network = build("tnp-kr", {**config, **more})
    assert isinstance(network, TNPKR)
    # away from the initialisation, where corrections and biases are almost zero
    for p in network.parameters():
        p.data += 0.05 * torch.randn_like(p)
    return network.eval()


def task(n_c: int = 20, n_t: int = 9, batch: int = 2, seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    xc = torch.rand(batch, n_c, 2, generator=g) * 16
    return xc, torch.randn(batch, n_c, 1, generator=g), torch.rand(batch, n_t, 2, generator=g) * 16


def assert_close(a: Normal, b: Normal, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(a.loc, b.loc, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.scale, b.scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("config", ALL)
def test_shapes_and_positive_scales(config: dict[str, object]) -> None:
    out = model(config)(*task())
    assert out.loc.shape == out.scale.shape == (2, 9, 1)
    assert (out.scale > 0).all()


@pytest.mark.parametrize("config", ALL)
@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_masked_equals_dropped(config: dict[str, object], poison: float) -> None:
    network = model(config)
    xc, yc, xt = task()
    padded_x = torch.cat([xc, torch.full((2, 5, 2), poison)], 1)
    padded_y = torch.cat([yc, torch.full((2, 5, 1), poison)], 1)
    mask = torch.arange(25).expand(2, 25) < 20
    assert_close(network(padded_x, padded_y, xt, mask), network(xc, yc, xt))


@pytest.mark.parametrize("config", ALL)
def test_masked_values_do_not_change_gradients(config: dict[str, object]) -> None:
    network = model(config)
    xc, yc, xt = task()
    mask = torch.arange(20).expand(2, 20) < 15
    gradients = []
    for poison in (0.0, float("nan")):
        network.zero_grad()
        dirty = torch.where(mask[..., None], yc, poison)
        network(torch.where(mask[..., None], xc, poison), dirty, xt, mask).log_prob(
            torch.ones(2, 9, 1)
        ).sum().backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("config", ALL)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_permutations(config: dict[str, object], seed: int) -> None:
    network = model(config)
    xc, yc, xt = task(seed=seed)
    g = torch.Generator().manual_seed(seed)
    context, targets = torch.randperm(20, generator=g), torch.randperm(9, generator=g)
    whole, shuffled = network(xc, yc, xt), network(xc[:, context], yc[:, context], xt[:, targets])
    assert_close(Normal(whole.loc[:, targets], whole.scale[:, targets]), shuffled, 1e-3)


@pytest.mark.parametrize("config", [RASTER, INVARIANT])
@settings(max_examples=5, deadline=None)
@given(dy=st.integers(-4096, 4096), dx=st.integers(-4096, 4096))
def test_predictions_are_translation_invariant(config: dict[str, object], dy: int, dx: int) -> None:
    network = model(config)
    xc, yc, xt = task()
    xc, xt = xc.round() + 0.0, xt.round() + 0.5
    shift = torch.tensor([float(dy), float(dx)])
    assert_close(network(xc, yc, xt), network(xc + shift, yc, xt + shift))


@pytest.mark.parametrize("config", [PAPER, DKA, PERFORMER, FULL])
def test_predictions_with_embedded_coordinates_are_not_translation_invariant(config: dict[str, object]) -> None:
    network = model(config)
    xc, yc, xt = task()
    assert (network(xc, yc, xt).loc - network(xc + 3, yc, xt + 3).loc).abs().max() > 1e-3


@pytest.mark.parametrize("config", ALL)
@pytest.mark.parametrize("block_size", [4, 7, 29])
def test_predictions_do_not_depend_on_the_block_size(config: dict[str, object], block_size: int) -> None:
    """Scan attention in blocks equals one block, or dense attention, with all pairs."""
    assert_close(model(config, block_size=block_size)(*task()), model(config)(*task()))


@pytest.mark.parametrize("config", ALL)
def test_one_context_point_is_enough(config: dict[str, object]) -> None:
    out = model(config)(*task(n_c=1))
    assert torch.isfinite(out.loc).all()
    assert torch.isfinite(out.scale).all()


@pytest.mark.parametrize("config", ALL)
def test_targets_do_not_see_each_other(config: dict[str, object]) -> None:
    network = model(config)
    xc, yc, xt = task()
    whole = network(xc, yc, xt)
    for some in (slice(0, 1), slice(2, 7)):
        assert_close(Normal(whole.loc[:, some], whole.scale[:, some]), network(xc, yc, xt[:, some]), 1e-3)
    padded = network(xc, yc, torch.cat([xt, torch.full((2, 5, 2), 40.0)], 1))
    assert_close(Normal(padded.loc[:, :9], padded.scale[:, :9]), whole, 1e-3)


@pytest.mark.parametrize(("config", "published"), [(PAPER, 501_106), (PERFORMER, 510_346), (DKA, 526_474)])
def test_published_size(config: dict[str, object], published: int) -> None:
    """For one-dimensional Gaussian processes; counted from the published configurations."""
    count = sum(p.numel() for p in TNPKR(**{**config, "d_x": 1, "blocks": 6}).parameters())
    assert count == published


def layer_by_equations(network: TNPKR, layer: int, *points: torch.Tensor) -> torch.Tensor:
    """One block in float64: `points` are locations and tokens of the queries, then of the context."""
    x, queries, xc, z = points
    block, variant = network.blocks[layer], network.attention
    a, q, k = block.attention, block.norm_attention(queries), block.norm_attention(z)
    if variant == "dka":
        kernel = a.phi(torch.cat([x, q], 1)) @ a.phi(torch.cat([xc, k], 1)).T / 8
        queries = queries + a.norm(kernel @ a.psi(k) / len(z))
        return queries + block.ff(block.norm_ff(queries))
    q, k, v = (m.unflatten(1, (4, -1)).transpose(0, 1) for m in (a.to_q(q), a.to_k(k), a.to_v(k)))
    weight = torch.exp(q @ k.mT / 32**0.5)
    if variant == "scan":
        rbf, d = network.biases[layer], torch.cdist(x, xc)
        for h, i in np.ndindex(4, 5):
            weight[h] *= torch.exp(rbf.a[h, i] * torch.exp(-rbf.b[h, i].abs() * (d - rbf.c[h, i]) ** 2))
    if variant == "performer":
        w = network.features[layer] / 32**0.25
        q, k = (torch.exp(m @ w.T - m.square().sum(-1, keepdim=True) / 32**0.5 / 2) for m in (q, k))
        weight = q @ k.mT
    queries = queries + a.to_out((weight / weight.sum(-1, keepdim=True) @ v).transpose(0, 1).flatten(1))
    return queries + block.ff(block.norm_ff(queries))


@pytest.mark.parametrize("config", [PAPER, DKA, PERFORMER, FULL])
def test_predictions_equal_the_equations_in_float64(config: dict[str, object]) -> None:
    """The second paper's equations 1 to 4 and 9 and algorithm 2 of the first, written out."""
    network = model(config).double()
    xc, yc, xt = (t[0].double() / 4 for t in task())
    flags = network.observed.weight
    z = torch.cat([flags[[1] * 20], xc, yc], 1)
    t = torch.cat([flags[[0] * 9], xt, torch.zeros(9, 1).double()], 1)
    z, t = (network.norm_in(network.embed(part)) for part in (z, t))
    for layer in range(2):
        z, t = layer_by_equations(network, layer, xc, z, xc, z), layer_by_equations(network, layer, xt, t, xc, z)
    loc, raw = network.head.mlp(network.norm_out(t)).chunk(2, -1)
    expected = Normal(loc.float(), torch.log1p(torch.exp(raw)).float())
    actual = network.float()(*(part[None].float() for part in (xc, yc, xt)))
    assert_close(Normal(actual.loc[0], actual.scale[0]), expected, 1e-5)


def test_impossible_attention_options_are_refused() -> None:
    with pytest.raises(ValueError, match="one of scan, dka, performer, full, got 'linear'"):
        TNPKR(attention="linear")
    with pytest.raises(ValueError, match="all but scan need embed_x=True"):
        TNPKR(attention="full", embed_x=False)


def test_two_hundred_steps_beat_the_mean_of_the_context() -> None:
    # most seeds end 0.5 to 0.8 below the mean; a few, such as 0, near 0.3, where rounding decides
    torch.manual_seed(2)
    network = TNPKR(**{**RASTER, "head": "gaussian"})
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    losses = []
    for step in range(200):
        g = torch.Generator().manual_seed(step)
        x = torch.rand(8, 48, 2, generator=g) * 16
        phase, slope = torch.rand(8, 1, 1, generator=g) * 6, torch.randn(8, 1, 2, generator=g) * 0.3
        y = torch.sin((x * slope).sum(-1, keepdim=True) + phase)
        loss = -network(x[:, :32], y[:, :32], x[:, 32:]).log_prob(y[:, 32:]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        mean = Normal(y[:, :32].mean(1, keepdim=True), y[:, :32].std(1, keepdim=True))
        losses.append((float(loss.detach()), float(-mean.log_prob(y[:, 32:]).mean())))
    model_nll, mean_nll = np.mean(losses[-20:], 0)
    assert model_nll < mean_nll - 0.3


@pytest.mark.parametrize("statistics", [False, True])
def test_embedding_reads_the_local_means(statistics: bool) -> None:
    network = model(MEANS, d_y=2, statistics=statistics)
    xc, yc, xt = task()
    yc = torch.cat([yc, yc.square()], -1)
    inputs: list[torch.Tensor] = []
    network.embed.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    network.train()(xc, yc, xt)
    xc, xt = xc - xt[:, :1], xt - xt[:, :1]
    sums = network.dictionary.sums(torch.cat([xt, xc], 1), xc, moments(yc, torch.ones(2, 20, dtype=torch.bool)))
    means = context_means(sums)
    torch.testing.assert_close(inputs[0][..., -means.shape[-1] :], means)


def test_inputs_of_the_embedding_are_exact_in_bfloat16_too() -> None:
    """Rounding the values to 8 bits would hide the variogram of a smooth field, rounding coordinates its scale."""
    network = model(RASTER)
    xc, _, xt = task()
    yc = 1.0 + 1e-3 * torch.sin(xc.sum(-1, keepdim=True) / 3)
    inputs: list[torch.Tensor] = []
    network.embed.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            network(xc, yc, xt)
    exact, under_autocast = inputs
    assert torch.equal(under_autocast, exact)


def test_the_unit_divides_coordinates_and_scales_start_the_widths() -> None:
    torch.manual_seed(0)
    network = TNPKR(embed_x=False, blocks=1, unit=4.0, scales=(0.5, 2.0)).eval()
    bias = network.biases[0]
    assert isinstance(bias, RBFBias)
    torch.testing.assert_close(bias(torch.zeros(1, 1, 2), torch.tensor([[[2.0, 0.0]]]))[0, 0, 0, 0], sum_of(0.5, 2.0))
    xc, yc, xt = task()
    expected = network(xc, yc, xt).mean
    network.unit = 1.0
    torch.testing.assert_close(network(xc / 4, yc, xt / 4).mean, expected)


def sum_of(*widths: float) -> torch.Tensor:
    """Gaussians of these widths at a distance of 2."""
    return torch.exp(-2 / torch.tensor(widths).square()).sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": "matern"}, 'kernels must be "rbf", or "dictionary" with scales, got \'matern\''),
        ({"kernels": "dictionary"}, 'kernels must be "rbf", or "dictionary" with scales, got \'dictionary\''),
        ({"means": True}, 'statistics and means need the kernels of a dictionary: set kernels="dictionary"'),
        ({"head": "normal"}, 'head must be "gaussian", "kriging" or "drift", got \'normal\''),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TNPKR(**options)  # type: ignore[arg-type]
