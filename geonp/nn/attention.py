"""Attention as pure functions: dense, with random features, with a deep kernel, and translation equivariant.

Performer and deep kernel attention multiply keys with values before queries, so their cost is linear in both.
Translation-equivariant attention (TE-TNP, ICML 2024) applies a network to every pair, of which only a bounded number
exists at a time, also in the backward pass.

Shapes: queries ``(batch, heads, n_q, d_k)``, keys ``(batch, heads, n_k, d_k)``, values ``(batch, heads, n_k, d_v)``,
locations ``(batch, n, d_x)``, key masks ``(batch, n_k)``, True where attended to.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from geonp.nn.blocks import BLOCKS

PairFunction = Callable[[Tensor], Tensor]
"""A network applied to each pair: features ``(batch, n, pairs)`` to ``(batch, m, pairs)``."""


def masked_locations(x: Tensor, key_mask: Tensor) -> Tensor:
    """Locations ``(batch, n, d_x)`` with finite values in place of masked ones.

    If the observed locations of all tasks agree, masked ones are filled in from the other tasks, so that all tasks have
    the same locations and scan attention computes their biases once; otherwise they become zero.
    """
    keep = key_mask[..., None]
    if bool(keep.all()):
        return x
    x = torch.where(keep, x, 0.0)
    shared = x.gather(0, key_mask.byte().argmax(0)[None, :, None].expand(1, -1, x.shape[2]))
    return torch.where(keep, x, shared.detach()) if bool(((x == shared) | ~keep).all()) else x


def zero_masked(t: Tensor, key_mask: Tensor) -> Tensor:
    """Keys or values ``(batch, heads, n_k, d)`` with zeros in place of masked ones."""
    return torch.where(key_mask[:, None, :, None], t, 0.0)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key_mask: Tensor | None = None) -> Tensor:
    """Softmax attention with an additive bias that broadcasts to ``(batch, heads, n_q, n_k)``.

    Masked keys, NaN included, have no effect.

    Returns
    -------
    Tensor
        ``(batch, heads, n_q, d_v)``; zeros for a query all of whose keys are masked.
    """
    if key_mask is None or bool(key_mask.all()):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if bias is None else bias.to(q.dtype))
    keep = key_mask[:, None, None, :]
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    bias = q.new_zeros(()) if bias is None else bias.to(q.dtype)
    # a finite score, as a row of -inf would become NaN; rows without keys are set to zero below
    score_bias = bias + torch.where(keep, 0.0, torch.finfo(q.dtype).min / 2).to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=score_bias)
    return torch.where(key_mask.any(-1)[:, None, None, None], out, 0.0)


def orthogonal_features(n_features: int, d_k: int) -> Tensor:
    """Random features of FAVOR+ ``(n_features, d_k)``, of length ``sqrt(d_k)`` and orthogonal in blocks of `d_k`."""
    blocks: list[Tensor] = [torch.linalg.qr(torch.randn(d_k, d_k))[0].mT for _ in range(-(-n_features // d_k))]
    return torch.cat(blocks)[:n_features] * math.sqrt(d_k)


def performer_attention(q: Tensor, k: Tensor, v: Tensor, features: Tensor, key_mask: Tensor) -> Tensor:
    """Softmax attention estimated with positive random features (FAVOR+; equation 1 of TNP-KR v2), at linear cost.

    ``exp(q.k / sqrt(d_k))`` is the mean over the rows w of `features` of ``exp(w.q' - |q'|^2/2) exp(w.k' - |k'|^2/2)``
    with ``x' = x / d_k^(1/4)``. Deviation: the published code can overflow. Here the largest exponent of each feature
    over the keys is moved to the queries, and the largest of each query is then dropped, as both cancel in the ratio.
    So no exponent is positive, and every denominator is at least one.

    Parameters
    ----------
    q, k, v, key_mask : Tensor
        See the module's docstring.
    features : Tensor
        ``(n_features, d_k)``, see :func:`orthogonal_features`.

    Returns
    -------
    Tensor
        ``(batch, heads, n_q, d_v)``; zeros for a query all of whose keys are masked.
    """
    scale = q.shape[-1] ** -0.25
    k, v = zero_masked(k, key_mask) * scale, zero_masked(v, key_mask)
    # -|q'|^2/2 cancels in the ratio
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
    """Mean of the values weighted by ``q.k``, without softmax or denominator (equation 9 of TNP-KR v2).

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
    """Translation-equivariant attention (TE-TNP, equations 7, 8 and 10), with the step of the queries' locations.

    The scores of a pair are ``rho([xq - xk, q.k / sqrt(d_k)])``, one for each head. The step is the mean over the keys
    of ``(xq - xk) phi(weights)`` with the softmax weights of all heads. Queries are processed in blocks and recomputed
    in the backward pass, so that activations of at most `max_pairs` pairs, or of one query, exist at a time.

    Parameters
    ----------
    q, k, v, xq, xk, key_mask : Tensor
        See the module's docstring.
    rho : PairFunction
        ``(batch, d_x + heads, pairs) -> (batch, heads, pairs)``, see :class:`geonp.nn.layers.PairMLP`.
    phi : PairFunction, optional
        ``(batch, heads, pairs) -> (batch, d_x, pairs)``, as in the published code; equation 10 has one factor for all
        coordinates. The step is zero without it.
    max_pairs : int
        Pairs of observed keys in a block.

    Returns
    -------
    tuple of Tensor
        ``(batch, heads, n_q, d_v)`` and ``(batch, n_q, d_x)``; both zero where all keys are masked.
    """
    observed, n_observed = None, key_mask.numel()
    if not bool(key_mask.all()):
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
        xk = torch.where(key_mask[..., None], xk, 0.0)
        observed = key_mask.flatten().nonzero()[:, 0]
        n_observed = len(observed)
    n_keys = key_mask.sum(-1).clamp_min(1)[:, None, None]
    if not torch.is_grad_enabled() and q.device.type == "cpu":
        max_pairs = min(max_pairs, BLOCKS.translation_equivariant)
    # a masked pair needs about an eighth of the memory of an observed one, on which the networks run
    rows = max(1, max_pairs // max(1, n_observed, key_mask.numel() // 8))

    def attend(q: Tensor, xq: Tensor) -> tuple[Tensor, Tensor]:
        difference = xq.mT[..., None] - xk.mT[:, :, None]
        dots = (q * q.shape[-1] ** -0.5) @ k.mT
        # a finite score, as a row of -inf would become NaN; the values of rows without keys are zero
        masked_score = torch.finfo(dots.dtype).min / 2
        weight = _apply_to_pairs(rho, torch.cat([difference, dots], 1), observed, masked_score).softmax(-1)
        if phi is None:
            return weight @ v, torch.zeros_like(xq)
        return weight @ v, (difference * _apply_to_pairs(phi, weight, observed, 0.0)).sum(-1).mT / n_keys

    blocks = list(zip(q.split(rows, 2), xq.split(rows, 1), strict=True))
    if len(blocks) > 1 and torch.is_grad_enabled():
        results = [checkpoint(attend, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    else:
        results = [attend(*block) for block in blocks]
    outs, steps = zip(*results, strict=True)
    return torch.cat(outs, 2), torch.cat(steps, 1)


def _apply_to_pairs(function: PairFunction, pairs: Tensor, observed: Tensor | None, fill: float) -> Tensor:
    """Apply `function` to pairs ``(batch, n, n_q, n_k)`` of observed keys; the result is `fill` for the others.

    `observed` are indices of keys, counted through all tasks; None if no key is masked.
    """
    batch, _, n_q, n_k = pairs.shape
    if observed is None:
        result: Tensor = function(pairs.flatten(2)).unflatten(2, (n_q, n_k))
        return result
    columns = pairs.permute(1, 2, 0, 3).flatten(2).index_select(2, observed)
    values = function(columns.flatten(1)[None])[0].unflatten(1, (n_q, len(observed)))
    result = values.new_full((*values.shape[:2], batch * n_k), fill).index_copy(2, observed, values)
    result = result.unflatten(2, (batch, n_k)).permute(2, 0, 1, 3)
    return result
