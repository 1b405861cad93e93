"""Attention as pure functions: dense, by random features, by a deep kernel, and translation equivariant.

Performer attention and deep kernel attention multiply keys with values before queries, so their cost is linear in both.
Translation-equivariant attention (TE-TNP, ICML 2024) runs a network over every pair; only a bounded number of pairs
exists at a time, in the backward pass too.

Shapes: queries ``(batch, heads, n_q, d_k)``, keys ``(batch, heads, n_k, d_k)``, values ``(batch, heads, n_k, d_v)``,
locations ``(batch, n, d_x)``, key masks ``(batch, n_k)`` with True = attend.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

__all__ = [
    "PairFunction",
    "deep_kernel_attention",
    "dense_attention",
    "masked_locations",
    "orthogonal_features",
    "performer_attention",
    "te_attention",
    "zero_masked",
]

PairFunction = Callable[[Tensor], Tensor]
"""Features of pairs ``(batch, n, pairs)`` to others: a network that sees each pair alone."""

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


def zero_masked(t: Tensor, key_mask: Tensor) -> Tensor:
    """Keys or values ``(batch, heads, n_k, d)`` with zeros in place of those that the mask drops."""
    return torch.where(key_mask[:, None, :, None], t, 0.0)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key_mask: Tensor | None = None) -> Tensor:
    """Softmax attention with a ready bias: the reference for :func:`~geonp.nn.scan.scan_attention`.

    Masked keys contribute nothing, whatever they hold; a query all of whose keys are masked returns zeros.

    Returns
    -------
    Tensor
        ``(batch, heads, n_q, d_v)``.
    """
    if key_mask is None or bool(key_mask.all()):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if bias is None else bias.to(q.dtype))
    keep = key_mask[:, None, None, :]
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    bias = q.new_zeros(()) if bias is None else bias.to(q.dtype)
    # A finite floor keeps rows without any key free of NaN; they are zeroed below.
    score_bias = bias + torch.where(keep, 0.0, torch.finfo(q.dtype).min / 2).to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=score_bias)
    return torch.where(key_mask.any(-1)[:, None, None, None], out, 0.0)


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
    k, v = zero_masked(k, key_mask) * scale, zero_masked(v, key_mask)
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
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
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
