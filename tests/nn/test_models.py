"""Properties of every architecture: shapes, masks, permutations, translations, gradients, sizes, learning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from geonp.nn.models import ARCHITECTURES, build, loss, translation_equivariant

DOCS = Path(__file__).parents[2] / "docs" / "models.md"

TRANSFORMER = {"dim": 16, "heads": 2, "blocks": 2}
KR = {**TRANSFORMER, "qk_dim": 16, "v_dim": 16, "v_hidden": 16, "ff_dim": 32, "embed_hidden": (32,)}
POOLED = {"encoder": (32, 16), "decoder": (32, 32)}
LATENT = {**POOLED, "latent": (32, 16), "n_latents": 4}
BOOTSTRAP = {"encoder": (32, 16), "decoder": (16, 32, 32), "n_bootstraps": 2}
LOCATED = {"locate": (16, 16)}
SMALL: dict[str, dict[str, Any]] = {
    "tnp-kr": {**KR, "embed_x": False},
    "te-tnp": TRANSFORMER,
    "te-pt-tnp": {**TRANSFORMER, "n_pseudo": 4},
    "te-pt-tnp on rasters": {
        **TRANSFORMER,
        "n_pseudo": 4,
        "pair_dim": 8,
        "unit": 2.0,
        "head": "kriging",
        "embed_hidden": (32,),
        "scales": (1.0, 4.0),
        "directional_scales": (2.0,),
        "n_refine": 8,
        "refine_steps": 2,
    },
    "pt-tnp": {**TRANSFORMER, "n_pseudo": 4},
    "lbanp": {**TRANSFORMER, "n_pseudo": 4},
    "tnp-d": KR,
    "tnp-nd": {**KR, "rank": 4, "mix_blocks": 1},
    "tnp-a": KR,
    "eqtnp": TRANSFORMER,
    "cnp": POOLED,
    "np": LATENT,
    "anp": {**LATENT, **LOCATED},
    "canp": {**POOLED, **LOCATED},
    "bnp": BOOTSTRAP,
    "banp": {**BOOTSTRAP, **LOCATED},
    "rcnp": {"dim": 16, "hidden_layers": 2},
    "convcnp": {"channels": 16, "density": 4.0, "blocks": 2, "kernel_size": 5, "head_layers": 2},
}
EQUIVARIANT = {"tnp-kr", "te-tnp", "te-pt-tnp", "te-pt-tnp on rasters", "rcnp", "convcnp"}
"""Translation equivariant with the options above; ConvCNP for whole cells of its grid, such as a shift of 3."""

every = pytest.mark.parametrize("name", list(SMALL))


def architecture(name: str) -> str:
    return name.partition(" ")[0]


def model(name: str, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    network = build(architecture(name), {**SMALL[name], **more})
    # away from the initialisation, where biases are zero
    for p in network.parameters():
        p.data += 0.05 * torch.randn_like(p)
    return network.eval()


def task(n_c: int = 12, n_t: int = 5, d_y: int = 1, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    xc, xt = (torch.rand(2, n, 2, generator=g) * 4 - 2 for n in (n_c, n_t))
    return xc, torch.randn(2, n_c, d_y, generator=g), xt


def assert_close(a: Distribution, b: Distribution, tolerance: float = 1e-4) -> None:
    for one, other in ((a.mean, b.mean), (a.stddev, b.stddev)):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def padded(t: Tensor, poison: float, n: int = 4) -> Tensor:
    return torch.cat([t, torch.full((len(t), n, t.shape[2]), poison)], 1)


def test_every_architecture_is_tested() -> None:
    assert set(map(architecture, SMALL)) == set(ARCHITECTURES)


@every
@pytest.mark.parametrize("d_y", [1, 2])
def test_shape_of_the_prediction(name: str, d_y: int) -> None:
    xc, yc, xt = task(d_y=d_y)
    out = model(name, d_y=d_y)(xc, yc, xt)
    values = torch.zeros(2, 5, d_y)
    assert out.mean.shape == out.stddev.shape == out.log_prob(values).shape == out.sample().shape == values.shape
    assert (out.stddev > 0).all()
    assert torch.equal(out.mean, model(name, d_y=d_y)(xc, yc, xt).mean), "a prediction must be a function of its inputs"


@every
@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_masked_equals_dropped(name: str, poison: float) -> None:
    network, (xc, yc, xt) = model(name), task()
    mask = torch.arange(16).expand(2, 16) < 12
    assert_close(network(padded(xc, poison), padded(yc, poison), xt, mask), network(xc, yc, xt))


@every
def test_contexts_of_a_batch_may_differ_in_size(name: str) -> None:
    """Up to a tolerance for ConvCNP, whose grid ends at a margin around the points of the batch."""
    network, (xc, yc, xt) = model(name), task()
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    both = network(xc, yc, xt, mask)
    alone = network(xc[1:, :7], yc[1:, :7], xt[1:])
    tolerance = 1e-2 if name == "convcnp" else 1e-4
    torch.testing.assert_close(both.mean[1:], alone.mean, rtol=tolerance, atol=tolerance)


@every
def test_predictions_do_not_depend_on_the_order_of_the_context(name: str) -> None:
    network, (xc, yc, xt) = model(name), task()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    assert_close(network(xc[:, order], yc[:, order], xt), network(xc, yc, xt))
    yc = yc.flip(1)
    assert (network(xc, yc, xt).mean - network(xc[:, order], yc, xt).mean).abs().max() > 1e-3


@every
def test_translations(name: str) -> None:
    network, (xc, yc, xt) = model(name), task()
    xc, xt = (x.mul(64).round() / 64 for x in (xc, xt))  # exact after the shift
    here, there = network(xc, yc, xt), network(xc + 3, yc, xt + 3)
    if name in EQUIVARIANT:
        assert_close(here, there)
    else:
        assert (here.mean - there.mean).abs().max() > 1e-3


@every
def test_translation_equivariant_matches_the_models(name: str) -> None:
    assert translation_equivariant(architecture(name), SMALL[name]) == (name in EQUIVARIANT - {"convcnp"})
    assert not translation_equivariant("tnp-kr", KR)


@pytest.mark.parametrize("name", [name for name in SMALL if name != "tnp-nd"])
def test_targets_do_not_attend_to_each_other(name: str) -> None:
    """Except for the correlated targets of TNP-ND. The additional target is within the grid of ConvCNP."""
    network, (xc, yc, xt) = model(name), task()
    inner = torch.cat([xt, xt.mean(1, keepdim=True)], 1)
    few, more = network(xc, yc, xt), network(xc, yc, inner)
    torch.testing.assert_close(more.mean[:, :5], few.mean, rtol=1e-4, atol=1e-4)


@every
def test_masked_values_do_not_change_gradients(name: str) -> None:
    network, (xc, yc, xt) = model(name).train(), task()
    mask, gradients = torch.arange(16).expand(2, 16) < 12, []
    for poison in (0.0, float("nan")):
        torch.manual_seed(0)
        network.zero_grad()
        loss(network, padded(xc, poison), padded(yc, poison), xt, torch.ones(2, 5, 1), mask).backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    for clean, dirty in zip(*gradients, strict=True):
        torch.testing.assert_close(clean, dirty)


@every
def test_every_parameter_learns(name: str) -> None:
    network, (xc, yc, xt) = model(name).train(), task()
    loss(network, xc, yc, xt, torch.ones(2, 5, 1)).backward()
    idle = [key for key, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # biases that are added to all keys cancel in the softmax
    assert [key for key in idle if not key.endswith(("to_k.0.bias", "to_k.bias", "rho.4.bias"))] == []


@every
def test_an_empty_context_gives_finite_predictions(name: str) -> None:
    xc, yc, xt = task()
    out = model(name)(xc * torch.nan, yc * torch.nan, xt, torch.zeros(2, 12, dtype=torch.bool))
    assert torch.isfinite(out.mean).all()
    assert torch.isfinite(out.stddev).all()


@pytest.mark.parametrize(
    ("name", "config", "published"),
    [
        ("tnp-d", {}, 499_000),
        ("cnp", {}, 512_000),
        ("np", {}, 546_000),
        ("bnp", {}, 545_000),
        ("anp", {}, 497_000),
        ("canp", {}, 530_000),
        ("banp", {}, 563_000),
        ("convcnp", {}, 509_000),
        ("convcnp", {"d_x": 2}, 520_000),
        ("te-tnp", {}, 750_000),
        ("te-pt-tnp", {"dim": 32, "heads": 4, "n_pseudo": 128, "d_x": 4}, 150_000),
        ("te-pt-tnp", {"n_pseudo": 32}, 2_160_000),
    ],
)
def test_published_size(name: str, config: dict[str, Any], published: int) -> None:
    network = build(name, {"d_x": 1, **config})
    count = sum(p.numel() for p in network.parameters())
    # the published code also has parts that are not used: the last step of the targets and last block of the context
    unused = {"te-tnp": ["blocks.0.phi"], "te-pt-tnp": ["read.0.phi", "spread.0"]}.get(name, [])
    count += sum(p.numel() for part in unused for p in network.get_submodule(part).parameters())
    assert abs(count / published - 1) < 0.02


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("n_c", "n_t"), [(5, 0), (0, 4), (0, 0)])
def test_context_and_targets_may_be_empty(name: str, n_c: int, n_t: int) -> None:
    with torch.no_grad():
        predicted = model(name)(torch.randn(2, n_c, 2), torch.randn(2, n_c, 1), torch.randn(2, n_t, 2))
    assert predicted.mean.shape == (2, n_t, 1)
    assert bool(predicted.mean.isfinite().all())


def test_the_documented_sizes_are_right() -> None:
    """docs/models.md has a row for each architecture, with its number of parameters."""
    rows = re.findall(
        r"^\| `([a-z-]+)`([^|]*)\|.*\| ([\d,]+) \|[^|]*\|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {name for name, *_ in rows} == set(ARCHITECTURES)
    for name, variant, count in rows:
        config = {"attention": variant.strip()} if variant.strip() else {}
        if variant.strip() == "performer":
            config |= {"v_dim": 128, "v_hidden": 0, "embed_hidden": (512, 128)}
        parameters = build(name, {"d_x": 1, **config}).parameters()
        assert sum(p.numel() for p in parameters) == int(count.replace(",", "")), name


def waves(seed: int) -> tuple[Tensor, Tensor]:
    """Sines of random phase and amplitude on [-2, 2]: ``(16, 32, 1)`` locations and values."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(16, 32, 1, generator=g) * 4 - 2
    phase, size = torch.rand(16, 1, 1, generator=g) * 6.28, 0.5 + torch.rand(16, 1, 1, generator=g)
    return x, size * torch.sin(1.5 * x + phase)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_two_hundred_steps_beat_the_mean_of_the_context(name: str) -> None:
    torch.manual_seed(0)
    # one block is enough, and fast
    network = build(architecture(name), {**SMALL[name], **({"blocks": 1} if "blocks" in SMALL[name] else {}), "d_x": 1})
    optimiser, scores = torch.optim.Adam(network.parameters(), 3e-3, fused=True), []
    for step in range(200):
        x, y = waves(step)
        inputs = x[:, :16], y[:, :16], x[:, 16:]
        optimiser.zero_grad()
        loss(network, *inputs, y[:, 16:]).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
    network.eval()
    for step in range(200, 210):
        x, y = waves(step)
        constant = Normal(y[:, :16].mean(1, keepdim=True), y[:, :16].std(1, keepdim=True))
        with torch.no_grad():
            predicted = network(x[:, :16], y[:, :16], x[:, 16:])
        scores.append([-p.log_prob(y[:, 16:]).mean() for p in (predicted, constant)])
    nll, constant_nll = torch.tensor(scores).mean(0).tolist()
    assert nll < constant_nll - 0.1


def test_unknown_architectures_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown architecture 'gru', expected one of tnp-kr, te-tnp"):
        build("gru", {})
    with pytest.raises(TypeError, match="depth"):
        build("cnp", {"depth": 3})


@every
def test_loss_and_gradients_under_bfloat16_autocast_are_float32(name: str) -> None:
    network, (xc, yc, xt) = model(name).train(), task()
    yt = torch.randn(2, 5, 1)
    torch.manual_seed(1)
    exact = loss(network, xc, yc, xt, yt)
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = loss(network, xc, yc, xt, yt)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
    rounded.backward()
    grads = [p.grad for p in network.parameters() if p.grad is not None]
    assert all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in grads)
    assert any(g.any() for g in grads)


def test_loss_of_classes_under_bfloat16_autocast_is_float32() -> None:
    network, (xc, yc, xt) = build("cnp", {**SMALL["cnp"], "d_y": 3, "likelihood": "categorical"}), task(d_y=3)
    with torch.autocast("cpu", torch.bfloat16):
        assert loss(network, xc, yc, xt, torch.zeros(2, 5)).dtype == torch.float32


def test_loss_is_the_mean_log_density_unless_a_model_has_its_own() -> None:
    assert {name for name, kind in ARCHITECTURES.items() if hasattr(kind, "loss")} == {
        "np",
        "anp",
        "bnp",
        "banp",
        "tnp-a",
        "tnp-nd",
    }
    network, (xc, yc, xt) = model("cnp"), task()
    expected = -network(xc, yc, xt).log_prob(torch.ones(2, 5, 1)).mean()
    torch.testing.assert_close(loss(network, xc, yc, xt, torch.ones(2, 5, 1)), expected)
