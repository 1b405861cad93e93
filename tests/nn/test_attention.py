"""Scan attention equals dense attention for all blocks and masks; other attention functions equal their formulas."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from geonp.nn import bias, layers
from geonp.nn.attention import (
    deep_kernel_attention,
    dense_attention,
    masked_locations,
    orthogonal_features,
    performer_attention,
    te_attention,
)
from geonp.nn.bias import rbf_bias
from geonp.nn.layers import PairMLP, TanhGELU
from geonp.nn.scan import scan_attention

B, H, D, DV = 2, 3, 8, 5


def problem(n_q: int, n_k: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Random inputs, all of which require gradients."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype).requires_grad_()

    return {
        "q": draw(B, H, n_q, D),
        "k": draw(B, H, n_k, D),
        "v": draw(B, H, n_k, DV),
        "xq": draw(B, n_q, 2),
        "xk": draw(B, n_k, 2),
        "a": draw(H, 4),
        "b": draw(H, 4),
        "c": draw(H, 4),
    }


def run(p: dict[str, torch.Tensor], mask: torch.Tensor | None, blocks: tuple[int, int] | None) -> list[torch.Tensor]:
    """Output and the gradients of all inputs, by scan attention, or by dense attention without blocks."""
    for t in p.values():
        t.grad = None
    rbf = (p["a"], p["b"], p["c"])
    if blocks is None:
        xk = p["xk"] if mask is None else torch.where(mask[..., None], p["xk"], 0.0)
        out = dense_attention(p["q"], p["k"], p["v"], rbf_bias(p["xq"], xk, *rbf), mask)
    else:
        inputs = (p["q"], p["k"], p["v"], p["xq"], p["xk"])
        out = scan_attention(*inputs, rbf_bias, rbf, mask, block_q=blocks[0], block_k=blocks[1])
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out.detach(), *(t.grad.clone() for t in p.values())]


def assert_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    n_q=st.integers(1, 20),
    n_k=st.integers(1, 20),
    block_q=st.integers(1, 24),
    block_k=st.integers(1, 24),
    keep=st.floats(0.0, 1.0),
    seed=st.integers(0, 99),
)
def test_scan_equals_dense(n_q: int, n_k: int, block_q: int, block_k: int, keep: float, seed: int) -> None:
    p = problem(n_q, n_k, seed)
    mask = torch.rand(B, n_k, generator=torch.Generator().manual_seed(seed)) <= keep
    assert_equal(run(p, mask, (block_q, block_k)), run(p, mask, None))
    assert_equal(run(p, None, (block_q, block_k)), run(p, None, None))


@pytest.mark.parametrize("keep", [1.0, 0.6])
@pytest.mark.parametrize("block_k", [8, 64])
def test_scan_in_bfloat16_keeps_the_bias_exact(keep: float, block_k: int) -> None:
    """Large biases, whose rounding would change the weights by several per cent."""
    p = problem(9, 40)
    mask = torch.rand(B, 40, generator=torch.Generator().manual_seed(1)) <= keep
    q, k, v = (p[n].detach().bfloat16() for n in "qkv")
    score = torch.linspace(300, 310, B * H * 9 * 40).view(B, H, 9, 40)
    x = torch.arange(40.0).expand(B, -1)[..., None]

    def bias(xq: torch.Tensor, xk: torch.Tensor) -> torch.Tensor:
        return score[:, :, xq[0, :, 0].long()][..., xk[0, :, 0].long()]

    out = scan_attention(q, k, v, x[:, :9], x, bias, (), mask, block_k=block_k)
    expected = dense_attention(q.float(), k.float(), v.float(), score, mask)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)


def test_a_fully_masked_block_has_no_effect() -> None:
    p = problem(6, 12)
    mask = torch.ones(B, 12, dtype=torch.bool)
    mask[:, 4:8] = False
    assert_equal(run(p, mask, (3, 4)), run(p, mask, None))


def test_queries_without_any_key_get_zeros_and_no_gradient() -> None:
    p = problem(6, 12)
    mask = torch.ones(B, 12, dtype=torch.bool)
    mask[0] = False
    for blocks in (None, (4, 4), (4, 12)):
        out, *gradients = run(p, mask, blocks)
        assert (out[0] == 0).all()
        assert (out[1] != 0).all()
        assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("poison", [1e4, float("nan"), float("inf")])
@pytest.mark.parametrize("blocks", [None, (4, 5), (4, 12)])
def test_masked_values_have_no_effect(poison: float, blocks: tuple[int, int] | None) -> None:
    clean, dirty = problem(6, 12), problem(6, 12)
    mask = torch.ones(B, 12, dtype=torch.bool)
    mask[:, 9:] = False
    with torch.no_grad():
        for name in ("k", "v"):
            dirty[name][:, :, 9:] = poison
        dirty["xk"][:, 9:] = poison
    first, second = run(clean, mask, blocks), run(dirty, mask, blocks)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("blocks", [(4, 5), (99, 99)])
@pytest.mark.parametrize("shared", [True, False])
def test_tasks_at_the_same_locations_share_their_biases(blocks: tuple[int, int], shared: bool) -> None:
    """The bias is computed once for tasks whose observed locations agree; masked locations may hold anything."""
    p = problem(6, 12)
    mask = torch.arange(12) < torch.tensor([[5], [12]])
    xq, xk = (p.pop(name).detach()[:1].repeat(B, 1, 1) for name in ("xq", "xk"))
    xk[0, 9] = torch.nan
    if not shared:
        xk[0, 3, 1] += 0.5
    parameters, tasks = (p["a"], p["b"], p["c"]), []

    def counted(xq: torch.Tensor, xk: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        tasks.append(len(xq))
        return rbf_bias(xq, xk, *parameters)

    results = []
    for scan in (True, False):
        for t in p.values():
            t.grad = None
        if scan:
            out = scan_attention(
                p["q"], p["k"], p["v"], xq, xk, counted, parameters, mask, block_q=blocks[0], block_k=blocks[1]
            )
        else:
            clean = torch.where(mask[..., None], xk, 0.0)
            out = dense_attention(p["q"], p["k"], p["v"], rbf_bias(xq, clean, *parameters), mask)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        results.append([out.detach(), *(t.grad.clone() for t in p.values())])
    assert_equal(*results)
    assert set(tasks) == ({1} if shared else {B})


def test_gradients_of_shared_locations_are_separate() -> None:
    p = problem(6, 12)
    p["xk"] = p["xk"].detach()[:1].repeat(B, 1, 1).requires_grad_()
    p["xq"] = p["xq"].detach()[:1].repeat(B, 1, 1).requires_grad_()
    mask = torch.arange(12) < torch.tensor([[5], [12]])
    assert_equal(run(p, mask, (4, 5)), run(p, mask, None))
    masked_locations(p["xk"], mask)[1].sum().backward()
    assert (p["xk"].grad[1] != 0).all()


def test_masked_locations_become_those_of_other_tasks_or_zero() -> None:
    x = torch.randn(1, 5, 2).repeat(3, 1, 1)
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 1, 0], [1, 1, 1, 1, 0]], dtype=torch.bool)
    dirty = torch.where(mask[..., None], x, torch.nan)
    assert torch.equal(masked_locations(dirty, mask)[:, :4], x[:, :4])
    assert (masked_locations(dirty, mask)[:, 4] == 0).all()
    assert masked_locations(x, torch.ones_like(mask)) is x
    dirty[0, 0] += 1.0
    assert torch.equal(masked_locations(dirty, mask), torch.where(mask[..., None], dirty, 0.0))


def test_masked_keys_have_no_effect_beside_very_small_scores() -> None:
    q, v = torch.ones(1, 1, 1, 1), torch.tensor([[[[1.0], [2.0], [5.0]]]])
    k = torch.tensor([[[[-200.0], [-300.0], [0.0]]]])
    x, mask = torch.zeros(1, 3, 2), torch.tensor([[True, True, False]])

    def none(xq: torch.Tensor, xk: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, 1, xq.shape[1], xk.shape[1])

    for block in (1, 2, 3):
        assert float(scan_attention(q, k, v, x[:, :1], x, none, (), mask, block_k=block)) == 1.0


@pytest.mark.parametrize("block", [2, 3, 12])
def test_a_bias_may_exclude_pairs(block: int) -> None:
    p = problem(6, 12)
    q, k, v, xq, xk = (p[name].detach() for name in ("q", "k", "v", "xq", "xk"))
    xq, xk = (torch.arange(float(n))[None, :, None].expand(B, -1, 1) for n in (6, 12))

    def later(xq: torch.Tensor, xk: torch.Tensor) -> torch.Tensor:
        return torch.where(xk[:, None, :, 0] < xq[:, :, None, 0] + 4, -torch.inf, 0.0)[:, None].expand(-1, H, -1, -1)

    expected = dense_attention(q, k, v, later(xq, xk))
    torch.testing.assert_close(scan_attention(q, k, v, xq, xk, later, block_q=block, block_k=block), expected)


def test_scores_that_differ_by_much_are_exact() -> None:
    p = problem(6, 12)
    with torch.no_grad():
        p["q"] *= 60
        p["v"] *= 0.01
    mask = torch.arange(12) < torch.tensor([[5], [12]])
    for blocks in ((3, 4), (99, 99)):
        for one, other in zip(run(p, mask, blocks), run(p, mask, None), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_memory_of_the_backward_pass_does_not_grow_with_the_keys() -> None:
    """Autograd saves inputs, output and one number for each query and head, nothing of size n_q times n_k."""
    saved: list[int] = []
    p = problem(64, 4096)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        scan_attention(
            p["q"], p["k"], p["v"], p["xq"], p["xk"], rbf_bias, (p["a"], p["b"], p["c"]), block_q=16, block_k=16
        )
    assert max(saved) <= B * H * 4096 * D
    assert max(saved) < B * H * 64 * 4096 // 4


def test_block_sizes_are_checked() -> None:
    p = problem(2, 2)
    with pytest.raises(ValueError, match="at least 1, got block_q=0"):
        run(p, None, (0, 4))


def test_gradients_against_finite_differences() -> None:
    p = problem(3, 5, dtype=torch.float64)
    # the running sums are float32: the tolerance is theirs
    inputs = [p[name] for name in ("q", "k", "v", "xq", "xk", "a", "b", "c")]
    dense = torch.autograd.gradcheck(
        lambda q, k, v, xq, xk, a, b, c: dense_attention(q, k, v, rbf_bias(xq, xk, a, b, c)), inputs
    )
    assert dense


def test_rbf_bias_equals_its_formula_for_every_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(11, 13, dtype=torch.float64)
    inputs = [p[name] for name in ("xq", "xk", "a", "b", "c")]
    xq, xk, a, b, c = inputs
    distance = torch.cdist(xq, xk, compute_mode="donot_use_mm_for_euclid_dist")[:, None, None]
    a, b, c = (t[:, :, None, None] for t in (a, b, c))
    expected = (a * torch.exp(-b.abs() * (distance - c) ** 2)).sum(2)
    grad = torch.linspace(-1, 1, expected.numel()).double().view_as(expected)
    expected_gradients = torch.autograd.grad(expected, inputs, grad)
    for pairs in (2**16, 40, 1):
        monkeypatch.setattr(bias, "BLOCKS", replace(bias.BLOCKS, scan=pairs))
        actual = rbf_bias(*inputs)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(torch.autograd.grad(actual, inputs, grad), expected_gradients)


def test_performer_attention_converges_to_softmax_attention() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, n, D) / 2 for n in (6, 9, 9))
    mask = torch.arange(9).expand(B, 9) < 7
    exact = dense_attention(q, k, v, None, mask)
    # normal features are unbiased, orthogonal ones of one length almost
    for features, tolerance in ((torch.randn(2**15, D), 0.01), (orthogonal_features(64, D), 0.05)):
        assert float((performer_attention(q, k, v, features, mask) - exact).abs().mean()) < tolerance
    assert float((performer_attention(q, k, v, orthogonal_features(1, D), mask) - exact).abs().mean()) > 0.05


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_performer_attention_equals_its_formula_and_never_overflows(size: float) -> None:
    """The published feature map overflows float32 for large activations; here it is computed in float64."""
    torch.manual_seed(0)
    q, k, v, features = *(torch.randn(B, H, n, D).double() for n in (6, 9, 9)), orthogonal_features(16, D).double()
    q, k = q * size, k * size
    mask = torch.arange(9).expand(B, 9) < 7
    out = torch.zeros(B, H, 6, D).double()
    for b, h, i in itertools.product(range(B), range(H), range(6)):
        log = torch.stack([features @ (q[b, h, i] + k[b, h, j]) / D**0.25 for j in range(7)])
        log = log - k[b, h, :7].square().sum(-1, keepdim=True) / D**0.5 / 2
        weight = torch.exp(log - log.max()).sum(1)
        out[b, h, i] = (weight / weight.sum()) @ v[b, h, :7]
    single = performer_attention(q.float(), k.float(), v.float(), features.float(), mask)
    torch.testing.assert_close(performer_attention(q, k, v, features, mask), out, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(single, out.float(), rtol=1e-3, atol=1e-3)


def test_random_features_are_orthogonal_and_of_equal_length() -> None:
    features = orthogonal_features(20, D)
    torch.testing.assert_close(features[:D] @ features[:D].mT, D * torch.eye(D), atol=1e-4, rtol=0)
    assert features.shape == (20, D)


def test_deep_kernel_attention_equals_a_sum_of_outer_products() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(B, 6, D), torch.randn(B, 9, D), torch.randn(B, 9, DV)
    mask = torch.arange(9).expand(B, 9) < 7
    expected = torch.einsum("bid,bjd,bjv->biv", q, k[:, :7], v[:, :7]) / 7
    torch.testing.assert_close(deep_kernel_attention(q, k, v, mask), expected, rtol=1e-4, atol=1e-5)


def te_problem(n_q: int = 7, n_k: int = 9) -> tuple[dict[str, torch.Tensor], PairMLP, PairMLP]:
    p = problem(n_q, n_k)
    torch.manual_seed(0)
    return {n: p[n] for n in ("q", "k", "v", "xq", "xk")}, PairMLP(2 + H, 8, H), PairMLP(H, 8, 2)


def test_te_attention_equals_its_equations_pair_by_pair() -> None:
    p, rho, phi = te_problem()
    q, k, v, xq, xk = (t.detach().double() for t in p.values())
    rho, phi = rho.double(), phi.double()
    mask = torch.arange(9).expand(B, 9) < 6
    out, step = te_attention(q, k, v, xq, xk, rho, phi, mask)
    rho, phi = torch.nn.Sequential(*rho), torch.nn.Sequential(*phi)
    for b, i in itertools.product(range(B), range(7)):
        score = [
            rho(torch.cat([xq[b, i] - xk[b, j], torch.stack([q[b, h, i] @ k[b, h, j] for h in range(H)]) / D**0.5]))
            for j in range(6)
        ]
        weight = torch.stack(score).softmax(0)
        torch.testing.assert_close(out[b, :, i], torch.einsum("jh,hjv->hv", weight, v[b, :, :6]))
        steps = torch.stack([(xq[b, i] - xk[b, j]) * phi(weight[j]) for j in range(6)])
        torch.testing.assert_close(step[b, i], steps.mean(0))


@pytest.mark.parametrize("max_pairs", [1, 20, 40])
def test_te_attention_does_not_depend_on_the_block_size(max_pairs: int) -> None:
    mask = torch.arange(9).expand(B, 9) < 7
    results = []
    for size in (10**6, max_pairs):
        p, rho, phi = te_problem()
        out, step = te_attention(*p.values(), rho, phi, mask, max_pairs=size)
        (out.square().sum() + step.square().sum()).backward()
        leaves = [*p.values(), *rho.parameters(), *phi.parameters()]
        results.append([out.detach(), step.detach(), *(t.grad for t in leaves)])
    assert_equal(*results)


def test_gelu_equals_torch_with_and_without_gradients() -> None:
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([0.0, -1e4, 1e4, float("nan")])])
    expected = torch.nn.functional.gelu(x.double(), approximate="tanh").float()
    before = x.clone()
    with torch.no_grad():
        torch.testing.assert_close(TanhGELU()(x), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(TanhGELU()(x.requires_grad_()), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert torch.autograd.gradcheck(TanhGELU(), torch.linspace(-3, 3, 7).double().requires_grad_())


@pytest.mark.parametrize("widths", [(5, 3), (5, 8, 3), (5, 16, 7, 3), (2, 4, 4, 4, 1)])
@pytest.mark.parametrize("block", [1, 64, 10**6])
def test_pair_mlp_equals_its_layers_for_every_block_size(
    widths: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "BLOCKS", replace(layers.BLOCKS, features=block))
    torch.manual_seed(0)
    network = PairMLP(*widths).double()
    columns = torch.randn(B, 11, widths[0], dtype=torch.float64).mT.requires_grad_()
    grad = torch.randn(B, widths[-1], 11, dtype=torch.float64)
    leaves = [columns, *network.parameters()]
    out, expected = network(columns), torch.nn.Sequential(*network)(columns.mT).mT
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out, leaves, grad), torch.autograd.grad(expected, leaves, grad))
    with torch.no_grad():
        torch.testing.assert_close(network(columns), expected)


def test_te_attention_saves_no_activations_of_pairs() -> None:
    """Autograd saves tensors of the size of the points; activations of the pairs are recomputed."""
    p, rho, phi = te_problem(64, 512)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        out, _ = te_attention(*p.values(), rho, phi, torch.ones(B, 512).bool(), max_pairs=2048)
    assert max(saved) <= B * H * 512 * D < B * 64 * 512
    out.sum().backward()


@pytest.mark.parametrize("n_observed", [1, 100, 512])
def test_te_attention_computes_observed_pairs_only_and_in_blocks(n_observed: int) -> None:
    p, rho, phi = te_problem(64, 512)
    columns: list[int] = []

    def counted(pairs: torch.Tensor) -> torch.Tensor:
        columns.append(pairs.shape[0] * pairs.shape[2])
        return rho(pairs)

    mask = (torch.arange(512) < n_observed).expand(B, 512)
    te_attention(*(t.detach() for t in p.values()), counted, phi, mask, max_pairs=2048)
    assert sum(columns) == B * 64 * n_observed
    assert max(columns) <= 2048
    assert len(columns) >= B * 64 * 512 / (8 * 2048)


@pytest.mark.parametrize(("n_q", "n_k"), [(3, 0), (0, 3)])
def test_te_attention_without_queries_or_keys(n_q: int, n_k: int) -> None:
    p, rho, phi = te_problem(n_q, n_k)
    for mask in (torch.ones(B, n_k, dtype=torch.bool), torch.zeros(B, n_k, dtype=torch.bool)):
        out, step = te_attention(*p.values(), rho, phi, mask)
        assert out.shape == (B, H, n_q, DV)
        assert (out == 0).all()
        assert torch.equal(step, torch.zeros(B, n_q, 2))


@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_te_attention_ignores_masked_keys(poison: float) -> None:
    p, rho, phi = te_problem()
    mask = torch.arange(9).expand(B, 9) < 7
    observed = {n: t.detach()[..., :7, :] if n in {"k", "v", "xk"} else t.detach() for n, t in p.items()}
    expected = te_attention(*observed.values(), rho, phi, mask[:, :7])
    for n in ("k", "v", "xk"):
        p[n].data[..., 7:, :] = poison
    assert_equal(list(te_attention(*p.values(), rho, phi, mask)), list(expected))
    out, step = te_attention(*p.values(), rho, phi, torch.zeros_like(mask))
    assert (out == 0).all()
    assert (step == 0).all()
