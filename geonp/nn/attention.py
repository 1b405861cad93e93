"""Attention as pure functions: dense attention with a ready bias, and scan attention, which computes it on the fly.

Scan attention is equations 6 to 8 of the second TNP-KR paper (arXiv 2411.12502v2): queries and keys are visited in
blocks, a running maximum and a running sum renormalise what has been accumulated, and neither the scores nor the bias
of more than one block pair exists at a time. The backward pass recomputes them block by block from the stored log-sum
of exponentials, so that memory is constant there too (the published code rematerialises each block instead).

Shapes: queries ``(batch, heads, n_q, d_k)``, keys ``(batch, heads, n_k, d_k)``, values ``(batch, heads, n_k, d_v)``,
locations ``(batch, n, d_x)``, key masks ``(batch, n_k)`` with True = attend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["BiasFunction", "dense_attention", "scan_attention"]

BiasFunction = Callable[..., Tensor]
"""``(xq, xk, *parameters) -> (batch, heads, n_q, n_k)``: the bias of one block pair, differentiable."""


def dense_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key_mask: Tensor | None = None) -> Tensor:
    """Softmax attention with a ready bias: the reference for :func:`scan_attention`.

    Masked keys contribute nothing, whatever they hold; a query all of whose keys are masked returns zeros.

    Returns
    -------
    Tensor
        ``(batch, heads, n_q, d_v)``.
    """
    if key_mask is None or bool(key_mask.all()):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if bias is None else bias.to(q.dtype))
    keep = key_mask[:, None, None, :]
    k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
    bias = q.new_zeros(()) if bias is None else bias.to(q.dtype)
    # A finite floor keeps rows without any key free of NaN; they are zeroed below.
    score_bias = bias + torch.where(keep, 0.0, torch.finfo(q.dtype).min / 2).to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=score_bias)
    return torch.where(key_mask.any(-1)[:, None, None, None], out, 0.0)


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
        Block sizes; the extra memory is ``batch * heads * block_q * block_k``.

    Returns
    -------
    Tensor
        ``(batch, heads, n_q, d_v)``; zeros for a query all of whose keys are masked.
    """
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block sizes must be at least 1, got block_q={block_q}, block_k={block_k}")
    if key_mask is None:
        key_mask = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
    k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
    xk = torch.where(key_mask[..., None], xk, 0.0)
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
        scale = q.shape[-1] ** -0.5
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
        for rows in _blocks(q.shape[2], block_q):
            scaled = q[:, :, rows] * scale
            peak = q.new_full(scaled.shape[:3], -torch.inf, dtype=torch.float32)
            total = torch.zeros_like(peak)
            mean = q.new_zeros(*scaled.shape[:3], v.shape[-1], dtype=torch.float32)
            for cols in _blocks(k.shape[2], block_k):
                score = _score(scaled, k[:, :, cols], bias(xq[:, rows], xk[:, cols], *parameters), key_mask[:, cols])
                new_peak = torch.maximum(peak, score.amax(-1))
                # exp(-inf - finite) = 0 renormalises; a row without keys so far keeps a finite reference.
                reference = torch.where(torch.isinf(new_peak), 0.0, new_peak)
                weight = torch.exp(score - reference[..., None])
                decay = torch.exp(peak - reference)
                total = total * decay + weight.sum(-1)
                mean = mean * decay[..., None] + (weight.to(v.dtype) @ v[:, :, cols]).float()
                peak = new_peak
            has_keys = total > 0
            out[:, :, rows] = (mean / torch.where(has_keys, total, 1.0)[..., None]).to(out.dtype)
            log_sum[:, :, rows] = torch.where(has_keys, peak + total.clamp_min(1e-38).log(), torch.inf)
        ctx.save_for_backward(q, k, v, xq, xk, key_mask, out, log_sum, *parameters)
        ctx.bias, ctx.block_q, ctx.block_k = bias, block_q, block_k
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        q, k, v, xq, xk, key_mask, out, log_sum, *parameters = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_xq, grad_xk = torch.zeros_like(xq), torch.zeros_like(xk)
        grad_parameters = [torch.zeros_like(p) for p in parameters]
        delta = (grad * out).sum(-1, keepdim=True).float()
        for rows in _blocks(q.shape[2], ctx.block_q):
            scaled = q[:, :, rows] * scale
            for cols in _blocks(k.shape[2], ctx.block_k):
                with torch.enable_grad():
                    leaves = [t.detach().requires_grad_() for t in (xq[:, rows], xk[:, cols], *parameters)]
                    block_bias = ctx.bias(*leaves)
                score = _score(scaled, k[:, :, cols], block_bias.detach(), key_mask[:, cols])
                weight = torch.exp(score - log_sum[:, :, rows, None])
                grad_rows = grad[:, :, rows]
                grad_v[:, :, cols] += weight.to(grad.dtype).mT @ grad_rows
                grad_score = weight * ((grad_rows @ v[:, :, cols].mT).float() - delta[:, :, rows])
                grad_score = grad_score.to(q.dtype)
                grad_q[:, :, rows] += (grad_score @ k[:, :, cols]) * scale
                grad_k[:, :, cols] += grad_score.mT @ scaled
                if not block_bias.requires_grad:
                    continue
                parts = torch.autograd.grad(block_bias, leaves, grad_score.to(block_bias.dtype), allow_unused=True)
                sums = (grad_xq[:, rows], grad_xk[:, cols], *grad_parameters)
                for whole, part in zip(sums, parts, strict=True):
                    if part is not None:
                        whole += part
        return grad_q, grad_k, grad_v, grad_xq, grad_xk, None, None, None, None, *grad_parameters


def _blocks(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _score(scaled: Tensor, k: Tensor, bias: Tensor, key_mask: Tensor) -> Tensor:
    return torch.where(key_mask[:, None, None], (scaled @ k.mT).float() + bias.float(), -torch.inf)


def _zero_masked(t: Tensor, key_mask: Tensor) -> Tensor:
    return torch.where(key_mask[:, None, :, None], t, 0.0)
