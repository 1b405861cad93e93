"""Scan attention: softmax attention with a bias that is computed from locations block by block.

Equations 6 to 8 of TNP-KR (arXiv 2411.12502v2): queries and keys are visited in blocks, a running maximum and sum
renormalise the accumulated values, and the scores and biases of only one block exist at a time. The backward pass
recomputes them from the stored log-sum-exp, so its memory is constant too; the published code rematerialises each block
instead. If all keys fit one block, nothing has to be renormalised, and torch's fused kernel does the forward pass.
``torch.nn.attention.flex_attention`` can't replace it: it has no backward pass on a CPU (torch 2.13).

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

BiasFunction = Callable[..., Tensor]
"""``(xq, xk, *parameters) -> (batch, heads, n_q, n_k)``: the bias of one block, differentiable."""

MASKED_SCORE = -1e30
"""Added to the scores of masked keys. It is finite, so that a query without keys does not become NaN."""


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
    """Softmax attention with a bias computed from locations, block by block, in constant memory.

    Equals ``dense_attention(q, k, v, bias(xq, xk, *parameters), key_mask)`` for all block sizes, in its output and in
    the gradients with respect to `q`, `k`, `v`, `xq`, `xk` and `parameters`.

    Parameters
    ----------
    q, k, v, xq, xk, key_mask : Tensor
        See :mod:`geonp.nn.attention`. Masked keys, NaN included, have no effect.
    bias : BiasFunction
        A pure function of its arguments, as the backward pass calls it again.
    parameters : tuple of Tensor
        Further arguments of `bias`, which receive gradients.
    block_q, block_k : int
        Largest block sizes. On a CPU blocks are smaller (:class:`~geonp.nn.blocks.BlockSizes`), elsewhere the extra
        memory is ``batch * heads * block_q * block_k``.

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
        # blocks then contain all tasks; without a contiguous layout each block would be copied
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
        scale, keep = q.shape[-1] ** -0.5, _key_factors(key_mask)
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        ctx.bias, ctx.block_q, ctx.block_k = bias, block_q, block_k
        # on a GPU the fused kernels round the bias to the precision of the queries
        ctx.fused = k.shape[2] <= block_k and (q.dtype == torch.float32 or q.device.type == "cpu")
        if ctx.fused:
            fused = _with_mask_feature(q * scale, k, v, keep)
            for tasks, at, rows in _scan_blocks(q, k, xq, block_q, block_k):
                out[tasks, :, rows] = _fused(*fused, tasks, rows, bias(xq[at, rows], xk[at], *parameters), v.shape[-1])
            ctx.save_for_backward(q, k, v, xq, xk, key_mask, out, q.new_empty(0), *parameters)
            return out
        log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
        for tasks, at, rows in _scan_blocks(q, k, xq, block_q, block_k):
            scaled = q[tasks, :, rows] * scale
            peak = q.new_full(scaled.shape[:3], MASKED_SCORE, dtype=torch.float32)
            total = torch.zeros_like(peak)
            mean = q.new_zeros(*scaled.shape[:3], v.shape[-1], dtype=torch.float32)
            for cols in _blocks(k.shape[2], block_k):
                block_bias = bias(xq[at, rows], xk[at, cols], *parameters)
                block_keep = None if keep is None else keep[tasks, ..., cols]
                score = _score(scaled, k[tasks, :, cols], block_bias, block_keep)
                new_peak = torch.maximum(peak, score.amax(-1))
                weight = _weight(score, new_peak, block_keep)
                decay = torch.exp(peak - new_peak)
                total = total * decay + weight.sum(-1)
                mean = mean * decay[..., None] + (weight.to(v.dtype) @ v[tasks, :, cols]).float()
                peak = new_peak
            has_keys = total > 0
            out[tasks, :, rows] = (mean / torch.where(has_keys, total, 1.0)[..., None]).to(out.dtype)
            log_sum[tasks, :, rows] = torch.where(has_keys, peak + total.clamp_min(1e-38).log(), torch.inf)
        ctx.save_for_backward(q, k, v, xq, xk, key_mask, out, log_sum, *parameters)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        q, k, v, xq, xk, key_mask, out, log_sum, *parameters = ctx.saved_tensors
        scale, keep = q.shape[-1] ** -0.5, _key_factors(key_mask)
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_xq, grad_xk = torch.zeros_like(xq), torch.zeros_like(xk)
        grad_parameters = [torch.zeros_like(p) for p in parameters]
        delta = (grad * out).sum(-1, keepdim=True).float()
        needs_grad = (*ctx.needs_input_grad[3:5], *ctx.needs_input_grad[9:])
        for tasks, at, rows in _scan_blocks(q, k, xq, ctx.block_q, ctx.block_k):
            scaled = q[tasks, :, rows] * scale
            for cols in _blocks(k.shape[2], ctx.block_k):
                with torch.enable_grad():
                    leaves = [
                        t.detach().requires_grad_(needed)
                        for t, needed in zip((xq[at, rows], xk[at, cols], *parameters), needs_grad, strict=True)
                    ]
                    block_bias = ctx.bias(*leaves)
                block_keep = None if keep is None else keep[tasks, ..., cols]
                score = _score(scaled, k[tasks, :, cols], block_bias.detach(), block_keep)
                if ctx.fused:
                    weight = _weight(score, score.amax(-1), block_keep)
                    weight.div_(weight.sum(-1, keepdim=True).clamp_min(1e-38))
                else:
                    weight = _weight(score, log_sum[tasks, :, rows], block_keep)
                grad_rows = grad[tasks, :, rows]
                grad_v[tasks, :, cols] += weight.to(grad.dtype).mT @ grad_rows
                grad_score = (grad_rows @ v[tasks, :, cols].mT).float()
                # with these weights, which unlike the fused kernel's are not rounded, the rows sum to zero exactly
                shift = (grad_score * weight).sum(-1, keepdim=True) if ctx.fused else delta[tasks, :, rows]
                grad_score = grad_score.sub_(shift).mul_(weight)
                grad_score = grad_score.to(q.dtype)
                grad_q[tasks, :, rows] += (grad_score @ k[tasks, :, cols]) * scale
                grad_k[tasks, :, cols] += grad_score.mT @ scaled
                if not block_bias.requires_grad:
                    continue
                if len(block_bias) < len(grad_score):
                    grad_score = grad_score.sum(0, keepdim=True)
                sums = (grad_xq[at, rows], grad_xk[at, cols], *grad_parameters)
                used = [(total, leaf) for total, leaf in zip(sums, leaves, strict=True) if leaf.requires_grad]
                grads = torch.autograd.grad(
                    block_bias, [leaf for _, leaf in used], grad_score.to(block_bias.dtype), allow_unused=True
                )
                for (total, _), block_grad in zip(used, grads, strict=True):
                    if block_grad is not None:
                        total += block_grad
        return grad_q, grad_k, grad_v, grad_xq, grad_xk, None, None, None, None, *grad_parameters


def _scan_blocks(q: Tensor, k: Tensor, xq: Tensor, block_q: int, block_k: int) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of tasks, of the tasks in `xq`, and of queries; tasks that share their locations are in one block."""
    n_k, everything = min(block_k, k.shape[2]), slice(None)
    if len(xq) < len(q):
        for _, rows in pair_blocks(1, q.shape[2], len(q) * n_k, q.device.type, 2 * BLOCKS.scan, block_q):
            yield everything, everything, rows
        return
    for tasks, rows in pair_blocks(len(q), q.shape[2], n_k, q.device.type, BLOCKS.scan, block_q):
        yield tasks, tasks, rows


def _blocks(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _key_factors(key_mask: Tensor) -> Tensor | None:
    """Key mask as factors of the weights, ``(batch, 1, 1, n_k)``; None if no key is masked."""
    return None if bool(key_mask.all()) else key_mask.float()[:, None, None]


def _score(scaled: Tensor, k: Tensor, bias: Tensor, keep: Tensor | None) -> Tensor:
    score = (scaled @ k.mT).float().add_(bias)
    return score if keep is None else score.add_((1 - keep) * MASKED_SCORE)


def _weight(score: Tensor, reference: Tensor, keep: Tensor | None) -> Tensor:
    # exponentials that underflow, and those of infinity, take 20 to 200 times as long as others
    weight = score.sub_(reference[..., None]).clamp_min_(-80.0).exp_()
    return weight if keep is None else weight.mul_(keep)


def _fused(q: Tensor, k: Tensor, v: Tensor, tasks: slice, rows: slice, bias: Tensor, d_v: int) -> Tensor:
    """Attention of a block of scaled queries to all keys."""
    with torch.autocast(q.device.type, enabled=False):
        out = F.scaled_dot_product_attention(q[tasks, :, rows], k[tasks], v[tasks], attn_mask=bias.float(), scale=1.0)
    return out[..., :d_v]


def _with_mask_feature(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with one more feature, which adds :data:`MASKED_SCORE` to the scores of masked keys.

    Added to the bias instead, it would need a copy of a shared bias for each task and head.
    """
    if keep is None:
        return q, k, v
    masked = ((1 - keep) * MASKED_SCORE).mT.to(k.dtype).expand(*k.shape[:3], 1)
    features = ((q, torch.ones_like(q[..., :1])), (k, masked), (v, torch.zeros_like(v[..., :1])))
    # fused kernels on a GPU need multiples of 8 features
    pad = 0 if q.device.type == "cpu" else -(q.shape[-1] + 1) % 8
    q, k, v = (F.pad(torch.cat(pair, -1), (0, pad)) for pair in features)
    return q, k, v
