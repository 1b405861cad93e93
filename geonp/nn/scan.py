"""Scan attention: softmax attention whose bias is computed from locations block by block.

Equations 6 to 8 of the second TNP-KR paper (arXiv 2411.12502v2): queries and keys are visited in blocks, a running
maximum and a running sum renormalise what has been accumulated, and neither the scores nor the bias of more than one
block pair exists at a time. The backward pass recomputes them block by block from the stored log-sum of exponentials,
so that memory is constant there too (the published code rematerialises each block instead). Where all keys fit one
block, nothing has to be renormalised, and a fused kernel does the forward pass.

Shapes are those of :mod:`geonp.nn.attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from geonp.nn.attention import masked_locations, zero_masked
from geonp.nn.blocks import BLOCKS, pair_blocks

__all__ = ["BiasFunction", "scan_attention"]

BiasFunction = Callable[..., Tensor]
"""``(xq, xk, *parameters) -> (batch, heads, n_q, n_k)``: the bias of one block pair, differentiable."""

FLOOR = -1e30
"""Added to the scores of masked keys: below all others, and finite."""


def scan_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    xq: Tensor,
    xk: Tensor,
    bias: BiasFunction,
    parameters: tuple[Tensor, ...] = (),
    key_mask: Tensor | None = None,
    *,
    block_q: int = 1024,
    block_k: int = 1024,
) -> Tensor:
    """Softmax attention whose bias is computed from locations, block by block, in constant memory.

    Equal to ``dense_attention(q, k, v, bias(xq, xk, *parameters), key_mask)`` for every block size, in outputs and in
    the gradients with respect to `q`, `k`, `v`, `xq`, `xk` and `parameters`.

    Parameters
    ----------
    q, k, v, xq, xk, key_mask : Tensor
        See the module's docstring. What masked keys hold, NaN included, has no effect.
    bias : BiasFunction
        Must depend on nothing but its arguments: the backward pass calls it again.
    parameters : tuple of Tensor
        Passed to `bias`; they receive gradients.
    block_q, block_k : int
        Block sizes, at most: on a CPU they stay in its cache. The extra memory is ``batch * heads * block_q * block_k``
        elsewhere.

    Returns
    -------
    Tensor
        ``(batch, heads, n_q, d_v)``; zeros for a query all of whose keys are masked.
    """
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block sizes must be at least 1, got block_q={block_q}, block_k={block_k}")
    if key_mask is None:
        key_mask = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
    k, v = zero_masked(k, key_mask).contiguous(), zero_masked(v, key_mask).contiguous()
    xk = masked_locations(xk, key_mask)
    if not (xq.requires_grad or xk.requires_grad) and all(bool((x == x[:1]).all()) for x in (xq, xk)):
        # blocks hold all tasks then: of a layout of its own each would be copied
        q, xq, xk = q.contiguous(), xq[:1], xk[:1]
    out: Tensor = _ScanAttention.apply(q, k, v, xq, xk, key_mask, bias, block_q, block_k, *parameters)  # type: ignore[no-untyped-call]
    return out


class _ScanAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        xq: Tensor,
        xk: Tensor,
        key_mask: Tensor,
        bias: BiasFunction,
        block_q: int,
        block_k: int,
        *parameters: Tensor,
    ) -> Tensor:
        scale, mask = q.shape[-1] ** -0.5, _Mask(key_mask)
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        ctx.bias, ctx.block_q, ctx.block_k = bias, block_q, block_k
        # on a GPU the fused kernels round the bias to the precision of the queries
        ctx.fused = k.shape[2] <= block_k and (q.dtype == torch.float32 or q.device.type == "cpu")
        if ctx.fused:
            fused = _with_floor(q * scale, k, v, mask)
            for part, at, rows in _scan_blocks(q, k, xq, block_q, block_k):
                out[part, :, rows] = _fused(*fused, part, rows, bias(xq[at, rows], xk[at], *parameters), v.shape[-1])
            ctx.save_for_backward(q, k, v, xq, xk, key_mask, out, q.new_empty(0), *parameters)
            return out
        log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
        for part, at, rows in _scan_blocks(q, k, xq, block_q, block_k):
            scaled = q[part, :, rows] * scale
            peak = q.new_full(scaled.shape[:3], FLOOR, dtype=torch.float32)
            total = torch.zeros_like(peak)
            mean = q.new_zeros(*scaled.shape[:3], v.shape[-1], dtype=torch.float32)
            for cols in _blocks(k.shape[2], block_k):
                block_bias = bias(xq[at, rows], xk[at, cols], *parameters)
                score = _score(scaled, k[part, :, cols], block_bias, mask[part, cols])
                new_peak = torch.maximum(peak, score.amax(-1))
                weight = _weight(score, new_peak, mask[part, cols])
                decay = torch.exp(peak - new_peak)
                total = total * decay + weight.sum(-1)
                mean = mean * decay[..., None] + (weight.to(v.dtype) @ v[part, :, cols]).float()
                peak = new_peak
            has_keys = total > 0
            out[part, :, rows] = (mean / torch.where(has_keys, total, 1.0)[..., None]).to(out.dtype)
            log_sum[part, :, rows] = torch.where(has_keys, peak + total.clamp_min(1e-38).log(), torch.inf)
        ctx.save_for_backward(q, k, v, xq, xk, key_mask, out, log_sum, *parameters)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        q, k, v, xq, xk, key_mask, out, log_sum, *parameters = ctx.saved_tensors
        scale, mask = q.shape[-1] ** -0.5, _Mask(key_mask)
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_xq, grad_xk = torch.zeros_like(xq), torch.zeros_like(xk)
        grad_parameters = [torch.zeros_like(p) for p in parameters]
        delta = (grad * out).sum(-1, keepdim=True).float()
        wanted = (*ctx.needs_input_grad[3:5], *ctx.needs_input_grad[9:])
        for part, at, rows in _scan_blocks(q, k, xq, ctx.block_q, ctx.block_k):
            scaled = q[part, :, rows] * scale
            for cols in _blocks(k.shape[2], ctx.block_k):
                with torch.enable_grad():
                    leaves = [
                        t.detach().requires_grad_(needed)
                        for t, needed in zip((xq[at, rows], xk[at, cols], *parameters), wanted, strict=True)
                    ]
                    block_bias = ctx.bias(*leaves)
                score = _score(scaled, k[part, :, cols], block_bias.detach(), mask[part, cols])
                if ctx.fused:
                    weight = _weight(score, score.amax(-1), mask[part, cols])
                    weight.div_(weight.sum(-1, keepdim=True).clamp_min(1e-38))
                else:
                    weight = _weight(score, log_sum[part, :, rows], mask[part, cols])
                grad_rows = grad[part, :, rows]
                grad_v[part, :, cols] += weight.to(grad.dtype).mT @ grad_rows
                grad_score = (grad_rows @ v[part, :, cols].mT).float()
                # by these weights, which are not rounded as those of the fused kernel are, sums of rows vanish
                shift = (grad_score * weight).sum(-1, keepdim=True) if ctx.fused else delta[part, :, rows]
                grad_score = grad_score.sub_(shift).mul_(weight)
                grad_score = grad_score.to(q.dtype)
                grad_q[part, :, rows] += (grad_score @ k[part, :, cols]) * scale
                grad_k[part, :, cols] += grad_score.mT @ scaled
                if not block_bias.requires_grad:
                    continue
                if len(block_bias) < len(grad_score):
                    grad_score = grad_score.sum(0, keepdim=True)
                sums = (grad_xq[at, rows], grad_xk[at, cols], *grad_parameters)
                pairs = [(whole, leaf) for whole, leaf in zip(sums, leaves, strict=True) if leaf.requires_grad]
                found = torch.autograd.grad(
                    block_bias, [leaf for _, leaf in pairs], grad_score.to(block_bias.dtype), allow_unused=True
                )
                for (whole, _), piece in zip(pairs, found, strict=True):
                    if piece is not None:
                        whole += piece
        return grad_q, grad_k, grad_v, grad_xq, grad_xk, None, None, None, None, *grad_parameters


def _scan_blocks(q: Tensor, k: Tensor, xq: Tensor, block_q: int, block_k: int) -> Iterator[tuple[slice, slice, slice]]:
    """Tasks, the locations of which these are, and queries: all tasks at once where they share their locations."""
    n_k, every = min(block_k, k.shape[2]), slice(None)
    if len(xq) < len(q):
        for _, rows in pair_blocks(1, q.shape[2], len(q) * n_k, q.device.type, 2 * BLOCKS.scan, block_q):
            yield every, every, rows
        return
    for part, rows in pair_blocks(len(q), q.shape[2], n_k, q.device.type, BLOCKS.scan, block_q):
        yield part, part, rows


def _blocks(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


class _Mask:
    """Which keys to attend to, as numbers to multiply weights and to add to scores; None where all are."""

    def __init__(self, key_mask: Tensor) -> None:
        self.keep = None if bool(key_mask.all()) else key_mask.float()[:, None, None]

    def __getitem__(self, place: tuple[slice, slice]) -> Tensor | None:
        return None if self.keep is None else self.keep[place[0], :, :, place[1]]


def _score(scaled: Tensor, k: Tensor, bias: Tensor, keep: Tensor | None) -> Tensor:
    score = (scaled @ k.mT).float().add_(bias)
    return score if keep is None else score.add_((1 - keep) * FLOOR)


def _weight(score: Tensor, reference: Tensor, keep: Tensor | None) -> Tensor:
    # exponentials of infinity and those that underflow take 20 to 200 times as long as others
    weight = score.sub_(reference[..., None]).clamp_min_(-80.0).exp_()
    return weight if keep is None else weight.mul_(keep)


def _fused(q: Tensor, k: Tensor, v: Tensor, part: slice, rows: slice, bias: Tensor, d_v: int) -> Tensor:
    """Attention of some queries to all keys, scores scaled already."""
    with torch.autocast(q.device.type, enabled=False):
        out = F.scaled_dot_product_attention(q[part, :, rows], k[part], v[part], attn_mask=bias.float(), scale=1.0)
    return out[..., :d_v]


def _with_floor(q: Tensor, k: Tensor, v: Tensor, mask: _Mask) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with one more feature, which adds :data:`FLOOR` to the scores of masked keys.

    Adding it to the bias would make one for each task and head of what tasks share.
    """
    if mask.keep is None:
        return q, k, v
    floor = ((1 - mask.keep) * FLOOR).mT.to(k.dtype).expand(*k.shape[:3], 1)
    found = [
        torch.cat(pair, -1)
        for pair in ((q, torch.ones_like(q[..., :1])), (k, floor), (v, torch.zeros_like(v[..., :1])))
    ]
    # kernels of GPUs want multiples of 8
    pad = 0 if q.device.type == "cpu" else -found[0].shape[-1] % 8
    q, k, v = (F.pad(t, (0, pad)) for t in found)
    return q, k, v
