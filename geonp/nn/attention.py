"""Attention as pure functions: dense, by scan, by random features, by a deep kernel, and translation equivariant.

Scan attention is equations 6 to 8 of the second TNP-KR paper (arXiv 2411.12502v2): queries and keys are visited in
blocks, a running maximum and a running sum renormalise what has been accumulated, and neither the scores nor the bias
of more than one block pair exists at a time. The backward pass recomputes them block by block from the stored log-sum
of exponentials, so that memory is constant there too (the published code rematerialises each block instead).

Performer attention and deep kernel attention multiply keys with values before queries, so their cost is linear in both.
Translation-equivariant attention (TE-TNP, ICML 2024) runs a network over every pair; only a bounded number of pairs
exists at a time, in the backward pass too.

Shapes: queries ``(batch, heads, n_q, d_k)``, keys ``(batch, heads, n_k, d_k)``, values ``(batch, heads, n_k, d_v)``,
locations ``(batch, n, d_x)``, key masks ``(batch, n_k)`` with True = attend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from geonp.nn.blocks import SCAN_PAIRS, pair_blocks

__all__ = [
    "BiasFunction",
    "PairFunction",
    "deep_kernel_attention",
    "dense_attention",
    "masked_locations",
    "orthogonal_features",
    "performer_attention",
    "scan_attention",
    "te_attention",
]

BiasFunction = Callable[..., Tensor]
"""``(xq, xk, *parameters) -> (batch, heads, n_q, n_k)``: the bias of one block pair, differentiable."""

PairFunction = Callable[[Tensor], Tensor]
"""Features of pairs ``(batch, n, pairs)`` to others: a network that sees each pair alone."""

FLOOR = -1e30
"""Added to the scores of masked keys: below all others, and finite."""

TE_PAIRS = 2**14
"""Pairs in a block of translation-equivariant attention on a CPU, if no gradients are wanted: for its cache."""


def masked_locations(x: Tensor, key_mask: Tensor) -> Tensor:
    """Locations ``(batch, n, d_x)`` with others in place of those that the mask drops, which may hold anything.

    Those of the tasks that keep them, if they agree, so that all tasks of a batch have the same locations if what they
    keep allows it, and their biases are computed once; else zeros.
    """
    keep = key_mask[..., None]
    if bool(keep.all()):
        return x
    x = torch.where(keep, x, 0.0)
    first = x.gather(0, key_mask.byte().argmax(0)[None, :, None].expand(1, -1, x.shape[2]))
    return torch.where(keep, x, first.detach()) if bool(((x == first) | ~keep).all()) else x


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
    k, v = _zero_masked(k, key_mask).contiguous(), _zero_masked(v, key_mask).contiguous()
    xk = masked_locations(xk, key_mask)
    if not (xq.requires_grad or xk.requires_grad) and all(bool((x == x[:1]).all()) for x in (xq, xk)):
        # blocks hold all tasks then: of a layout of its own each would be copied
        q, xq, xk = q.contiguous(), xq[:1], xk[:1]
    out: Tensor = _ScanAttention.apply(q, k, v, xq, xk, key_mask, bias, block_q, block_k, *parameters)  # type: ignore[no-untyped-call]
    return out


def orthogonal_features(n_features: int, d_k: int) -> Tensor:
    """Random directions of FAVOR+, ``(n_features, d_k)``: orthogonal in blocks of `d_k`, of length ``sqrt(d_k)``."""
    blocks: list[Tensor] = [torch.linalg.qr(torch.randn(d_k, d_k))[0].mT for _ in range(-(-n_features // d_k))]
    return torch.cat(blocks)[:n_features] * math.sqrt(d_k)


def performer_attention(q: Tensor, k: Tensor, v: Tensor, features: Tensor, key_mask: Tensor) -> Tensor:
    """Softmax attention estimated by positive random features (FAVOR+; equation 1 of TNP-KR v2), in linear cost.

    ``exp(q.k / sqrt(d_k))`` is the mean over the rows w of `features` of ``exp(w.q' - |q'|^2/2) exp(w.k' - |k'|^2/2)``
    with ``x' = x / d_k^(1/4)``. Deviation: the published code can overflow. Here each feature's largest exponent over
    the keys moves to the queries' side, and each query's largest is then dropped, as both cancel: no exponent is above
    zero and every denominator is at least one.

    Parameters
    ----------
    q, k, v, key_mask : Tensor
        See the module's docstring.
    features : Tensor
        ``(n_features, d_k)``, of :func:`orthogonal_features`.

    Returns
    -------
    Tensor
        ``(batch, heads, n_q, d_v)``; zeros for a query all of whose keys are masked.
    """
    scale = q.shape[-1] ** -0.25
    k, v = _zero_masked(k, key_mask) * scale, _zero_masked(v, key_mask)
    # the queries' -|q'|^2/2 cancels in the ratio
    log_q, log_k = q * scale @ features.mT, k @ features.mT - k.square().sum(-1, keepdim=True) / 2
    log_k = torch.where(key_mask[:, None, :, None], log_k, -torch.inf)
    largest = log_k.detach().amax(2, keepdim=True)
    largest = torch.where(torch.isinf(largest), 0.0, largest)
    feature_k = torch.exp(log_k - largest)
    log_q = log_q + largest
    feature_q = torch.exp(log_q - log_q.detach().amax(-1, keepdim=True))
    total = feature_q @ feature_k.sum(2)[..., None]
    return (feature_q @ (feature_k.mT @ v)) / torch.where(total > 0, total, 1.0)


def deep_kernel_attention(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor) -> Tensor:
    """Mean of the values weighted by ``q.k`` as it is (equation 9 of TNP-KR v2): neither softmax nor denominator.

    ``(batch, n_q, d_k), (batch, n_k, d_k), (batch, n_k, d_v), (batch, n_k) -> (batch, n_q, d_v)``.
    """
    keep = key_mask[..., None]
    v = torch.where(keep, v, 0.0) / keep.sum(1, keepdim=True).clamp_min(1)
    return q @ (torch.where(keep, k, 0.0).mT @ v)


def te_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    xq: Tensor,
    xk: Tensor,
    rho: PairFunction,
    phi: PairFunction | None,
    key_mask: Tensor,
    *,
    max_pairs: int = 2**20,
) -> tuple[Tensor, Tensor]:
    """Translation-equivariant attention (TE-TNP, equations 7, 8 and 10) and the step that it gives the queries.

    The score of a pair and head is ``rho([xq - xk, q.k / sqrt(d_k)])``; the step is the mean over the keys of
    ``(xq - xk) phi(weights)`` with the softmax weights of all heads. Queries are visited some at a time and recomputed
    in the backward pass, so that what is kept for at most `max_pairs` pairs, or for one query's, exists at once.

    Parameters
    ----------
    q, k, v, xq, xk, key_mask : Tensor
        See the module's docstring.
    rho : PairFunction
        ``(batch, d_x + heads, pairs) -> (batch, heads, pairs)``, see :class:`geonp.nn.layers.PairMLP`.
    phi : PairFunction, optional
        ``(batch, heads, pairs) -> (batch, d_x, pairs)``, as in the published code; equation 10 has one factor for all
        coordinates. Without it the step is zero.

    Returns
    -------
    tuple of Tensor
        ``(batch, heads, n_q, d_v)`` and ``(batch, n_q, d_x)``; both zero where all keys are masked.
    """
    kept, n_kept = None, key_mask.numel()
    if not bool(key_mask.all()):
        k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
        xk = torch.where(key_mask[..., None], xk, 0.0)
        kept = key_mask.flatten().nonzero()[:, 0]
        n_kept = len(kept)
    n_keys = key_mask.sum(-1).clamp_min(1)[:, None, None]
    if not torch.is_grad_enabled() and q.device.type == "cpu":
        max_pairs = min(max_pairs, TE_PAIRS)
    # of all pairs, masked ones too, there is some eight times less than what the networks make of those that are kept
    rows = max(1, max_pairs // max(1, n_kept, key_mask.numel() // 8))

    def attend(q: Tensor, xq: Tensor) -> tuple[Tensor, Tensor]:
        return _te_block(q, k, v, xq, xk, rho, phi, kept, n_keys)

    pieces = list(zip(q.split(rows, 2), xq.split(rows, 1), strict=True))
    if len(pieces) > 1 and torch.is_grad_enabled():
        parts = [checkpoint(attend, *piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
    else:
        parts = [attend(*piece) for piece in pieces]
    outs, steps = zip(*parts, strict=True)
    return torch.cat(outs, 2), torch.cat(steps, 1)


def _te_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    xq: Tensor,
    xk: Tensor,
    rho: PairFunction,
    phi: PairFunction | None,
    kept: Tensor | None,
    n_keys: Tensor,
) -> tuple[Tensor, Tensor]:
    difference = xq.mT[..., None] - xk.mT[:, :, None]
    dots = (q * q.shape[-1] ** -0.5) @ k.mT
    # A finite floor keeps rows without any key free of NaN; what such rows weigh is zero.
    weight = _of_pairs(rho, torch.cat([difference, dots], 1), kept, torch.finfo(dots.dtype).min / 2).softmax(-1)
    if phi is None:
        return weight @ v, torch.zeros_like(xq)
    return weight @ v, (difference * _of_pairs(phi, weight, kept, 0.0)).sum(-1).mT / n_keys


def _of_pairs(function: PairFunction, pairs: Tensor, kept: Tensor | None, fill: float) -> Tensor:
    """`function` of pairs ``(batch, n, n_q, n_k)``; with `kept`, numbers of keys of all tasks, `fill` at the others."""
    batch, _, n_q, n_k = pairs.shape
    if kept is None:
        spread: Tensor = function(pairs.flatten(2)).unflatten(2, (n_q, n_k))
        return spread
    columns = pairs.permute(1, 2, 0, 3).flatten(2).index_select(2, kept)
    found = function(columns.flatten(1)[None])[0].unflatten(1, (n_q, len(kept)))
    whole = found.new_full((*found.shape[:2], batch * n_k), fill).index_copy(2, kept, found)
    out: Tensor = whole.unflatten(2, (batch, n_k)).permute(2, 0, 1, 3)
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
        log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.bias, ctx.block_q, ctx.block_k = bias, block_q, block_k
        # on a GPU the fused kernels round the bias to the precision of the queries
        ctx.fused = k.shape[2] <= block_k and (q.dtype == torch.float32 or q.device.type == "cpu")
        if ctx.fused:
            fused = _with_floor(q * scale, k, v, mask)
            for part, at, rows in _scan_blocks(q, k, xq, block_q, block_k):
                out[part, :, rows] = _fused(*fused, part, rows, bias(xq[at, rows], xk[at], *parameters), v.shape[-1])
            ctx.save_for_backward(q, k, v, xq, xk, key_mask, out, log_sum, *parameters)
            return out
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
                grad_score = (grad_rows @ v[part, :, cols].mT).float().sub_(delta[part, :, rows]).mul_(weight)
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
        for _, rows in pair_blocks(1, q.shape[2], len(q) * n_k, q.device.type, 2 * SCAN_PAIRS, block_q):
            yield every, every, rows
        return
    for part, rows in pair_blocks(len(q), q.shape[2], n_k, q.device.type, SCAN_PAIRS, block_q):
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
    return (
        torch.cat([q, torch.ones_like(q[..., :1])], -1),
        torch.cat([k, floor], -1),
        torch.cat([v, torch.zeros_like(v[..., :1])], -1),
    )


def _zero_masked(t: Tensor, key_mask: Tensor) -> Tensor:
    return torch.where(key_mask[:, None, :, None], t, 0.0)
