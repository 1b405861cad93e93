"""Scan attention equals dense attention: outputs and gradients, any blocks, any masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from geonp.nn.attention import dense_attention, scan_attention
from geonp.nn.bias import rbf_bias

B, H, D, DV = 2, 3, 8, 5


def problem(n_q: int, n_k: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Random inputs, all of which want gradients."""
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


def test_a_fully_masked_block_adds_nothing() -> None:
    p = problem(6, 12)
    mask = torch.ones(B, 12, dtype=torch.bool)
    mask[:, 4:8] = False
    assert_equal(run(p, mask, (3, 4)), run(p, mask, None))


def test_queries_without_any_key_get_zeros_and_no_gradient() -> None:
    p = problem(6, 12)
    mask = torch.ones(B, 12, dtype=torch.bool)
    mask[0] = False
    for blocks in (None, (4, 4)):
        out, *gradients = run(p, mask, blocks)
        assert (out[0] == 0).all()
        assert (out[1] != 0).all()
        assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("poison", [1e4, float("nan"), float("inf")])
@pytest.mark.parametrize("blocks", [None, (4, 5)])
def test_poisoned_padding_changes_nothing(poison: float, blocks: tuple[int, int] | None) -> None:
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


def test_memory_of_the_backward_pass_does_not_grow_with_the_keys() -> None:
    """What autograd keeps is the inputs, the output and one number a query and head: nothing of size n_q times n_k."""
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
