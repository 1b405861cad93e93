"""Building blocks shared by the families: perceptrons, attention modules and the blocks that transformers stack."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from geonp.nn.attention import deep_kernel_attention, dense_attention, masked_locations

__all__ = [
    "MLP",
    "Attend",
    "DeepKernelAttention",
    "KRBlock",
    "MultiHeadAttention",
    "PairMLP",
    "PostNormBlock",
    "PreNormBlock",
    "TanhGELU",
    "drop_masked",
    "in_chunks",
    "masked_mean",
    "plain_attention",
]

COLUMN_BLOCK = 2**17
"""Features of one layer in a block of :class:`PairMLP` with gradients on a CPU: half a mebibyte, for its cache."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(q, k, v) -> (batch, heads, n_q, d_v)``: how one layer attends, its bias and masks included."""


class TanhGELU(nn.Module):
    """GELU, tanh approximation: ``x sigmoid(2 u)``, where it is ``x (1 + tanh(u)) / 2``.

    In float32 without gradients that takes half of the time of torch's on a CPU.
    """

    rate = 2 * math.sqrt(2 / math.pi)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to each number."""
        if x.requires_grad or x.dtype != torch.float32 or x.device.type != "cpu":
            return F.gelu(x, approximate="tanh")
        twice = x.square().mul_(0.044715 * self.rate).add_(self.rate).mul_(x)
        return twice.sigmoid_().mul_(x)


class MLP(nn.Sequential):
    """Linear layers of the given `widths` with GELU (tanh approximation) or ReLU between them and a linear end."""

    def __init__(self, *widths: int, relu: bool = False) -> None:
        layers: list[nn.Module] = []
        for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
            if i:
                layers.append(nn.ReLU() if relu else TanhGELU())
            linear = nn.Linear(n_in, n_out)
            nn.init.trunc_normal_(linear.weight, std=n_in**-0.5)
            nn.init.zeros_(linear.bias)
            layers.append(linear)
        super().__init__(*layers)


class PairMLP(MLP):
    """:class:`MLP` with ReLU over columns, ``(batch, n, pairs) -> (batch, m, pairs)``.

    Of many pairs with few features each, columns take a third to a half of the time of rows. With gradients they pass
    in blocks, on a CPU of what fits its cache, and activations are computed again in the backward pass: less time than
    storing them takes (0.6 of it for widths of 32, 0.8 of 128), and no memory beyond inputs, outputs and a block.
    """

    def __init__(self, *widths: int) -> None:
        super().__init__(*widths, relu=True)

    def forward(self, columns: Tensor) -> Tensor:
        """Apply the layers to each column."""
        if torch.is_grad_enabled() and not torch.is_autocast_enabled(columns.device.type):
            out: Tensor = _Columns.apply(columns, *self.parameters())  # type: ignore[no-untyped-call]
            return out
        for layer in self:
            if isinstance(layer, nn.Linear):
                columns = torch.baddbmm(layer.bias[:, None], layer.weight.expand(len(columns), -1, -1), columns)
            else:
                columns = columns.relu_()
        return columns


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, *layers: Tensor) -> Tensor:
        ctx.save_for_backward(columns, *layers)
        out = columns.new_empty(len(columns), len(layers[-1]), columns.shape[2])
        for part, to in zip(_column_blocks(columns, layers), _column_blocks(out, layers), strict=True):
            to.copy_(torch.addmm(layers[-1][:, None], layers[-2], _activations(part, layers)[-1].T))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        columns, *layers = ctx.saved_tensors
        grads = [torch.zeros_like(t) for t in layers]
        grad_columns = torch.empty_like(columns)
        blocks = (_column_blocks(t, layers) for t in (columns, grad, grad_columns))
        for part, above, to in zip(*blocks, strict=True):
            seen, rows = _activations(part, layers), above.T
            for i in range(len(seen) - 1, 0, -1):
                grads[2 * i].addmm_(rows.T, seen[i])
                grads[2 * i + 1].add_(rows.sum(0))
                rows = (rows @ layers[2 * i]).mul_(seen[i].sign_())
            # of two transposes BLAS makes inner products over pairs, at a third of the speed
            grads[0].add_((part @ rows).T)
            grads[1].add_(rows.sum(0))
            to.copy_(layers[0].T @ rows.T)
        return grad_columns, *grads


def _column_blocks(columns: Tensor, layers: Sequence[Tensor]) -> Iterator[Tensor]:
    """Views of some columns of one task at a time."""
    on_cpu = columns.device.type == "cpu"
    size = COLUMN_BLOCK // max(len(t) for t in layers) if on_cpu else columns.shape[2]
    for task in columns:
        yield from task.split(max(1, size), 1)


def _activations(columns: Tensor, layers: Sequence[Tensor]) -> list[Tensor]:
    """What each layer reads, in rows, in which products with gradients are fastest; weights and biases in turn."""
    seen = [columns.T]
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        seen.append(torch.addmm(bias, seen[-1], weight.T).relu_())
    return seen


class MultiHeadAttention(nn.Module):
    """Projections around an attention function: heads of ``qk_dim / heads`` and ``v_dim / heads`` features.

    `v_hidden` > 0 puts a ReLU layer of that width into the value projection, as the published scan-attention model has.
    """

    def __init__(self, dim: int, heads: int, qk_dim: int, v_dim: int, v_hidden: int = 0) -> None:
        super().__init__()
        if qk_dim % heads or v_dim % heads:
            raise ValueError(f"qk_dim and v_dim must be multiples of heads, got {qk_dim}, {v_dim} and {heads}")
        self.heads = heads
        self.to_q, self.to_k = MLP(dim, qk_dim), MLP(dim, qk_dim)
        self.to_v = nn.Sequential(MLP(dim, v_hidden), nn.ReLU(), MLP(v_hidden, v_dim)) if v_hidden else MLP(dim, v_dim)
        self.to_out = MLP(v_dim, dim)

    def forward(self, queries: Tensor, keys: Tensor, attend: Attend, values: Tensor | None = None) -> Tensor:
        """``(batch, n_q, dim), (batch, n_k, dim) -> (batch, n_q, dim)``; `values` are read at the keys, or are they."""
        q, k, v = (
            t.unflatten(-1, (self.heads, t.shape[-1] // self.heads)).transpose(1, 2)
            for t in (self.to_q(queries), self.to_k(keys), self.to_v(keys if values is None else values))
        )
        out: Tensor = self.to_out(attend(q, k, v).transpose(1, 2).flatten(2))
        return out


class DeepKernelAttention(nn.Module):
    """Deep kernel attention (TNP-KR, arXiv 2411.12502v2, equation 9): a learned kernel of locations and tokens.

    One network phi embeds queries and keys together with their locations, another, psi, the values; a layer norm takes
    the place of the softmax's denominator and of the output projection. Locations enter as they are, so the model is
    not translation invariant.
    """

    def __init__(self, dim: int, d_x: int, hidden: int = 128) -> None:
        super().__init__()
        self.phi = MLP(dim + d_x, hidden, hidden)
        self.psi = MLP(dim, hidden, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, queries: Tensor, keys: Tensor, xq: Tensor, xk: Tensor, key_mask: Tensor) -> Tensor:
        """Tokens ``(batch, n_q, dim)`` and ``(batch, n_k, dim)``, their locations and the keys' mask to queries'."""
        scale = queries.shape[-1] ** -0.25
        q, k = (self.phi(torch.cat([x, z], -1)) * scale for x, z in ((xq, queries), (xk, keys)))
        out: Tensor = self.norm(deep_kernel_attention(q, k, self.psi(keys), key_mask))
        return out


class KRBlock(nn.Module):
    """Kernel-regression block (TNP-KR, arXiv 2411.12502, algorithm 2): targets and context read the same context.

    One layer norm, one attention module and one feed-forward network serve both streams. The two attention calls share
    weights and keys, so they are one call on the concatenated queries, targets first; the keys that targets read are
    not yet updated by this block. `attention` is a :class:`MultiHeadAttention` or a :class:`DeepKernelAttention`.
    """

    def __init__(self, dim: int, ff_dim: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(dim, eps=1e-6)
        self.attention = attention
        self.norm_ff = nn.LayerNorm(dim, eps=1e-6)
        self.ff = MLP(dim, ff_dim, dim)

    def forward(self, tokens: Tensor, n_targets: int, *how: Attend | Tensor) -> Tensor:
        """``(batch, n_targets + n_context, dim)``, targets first, to the same shape.

        `how` is what the attention module takes after queries and keys.
        """
        normed = self.norm_attention(tokens)
        tokens = tokens + self.attention(normed, normed[:, n_targets:], *how)
        out: Tensor = tokens + self.ff(self.norm_ff(tokens))
        return out


class PreNormBlock(nn.Module):
    """Attention and feed-forward network, each behind a layer norm and beside a skip connection; ReLU.

    Queries and keys share the first norm, as in the code of TE-TNP (ICML 2024).
    """

    def __init__(self, dim: int, heads: int, ff_dim: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_ff = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim, heads, dim, dim)
        self.ff = MLP(dim, ff_dim, dim, relu=True)

    def forward(self, queries: Tensor, keys: Tensor, attend: Attend) -> Tensor:
        """``(batch, n_q, dim), (batch, n_k, dim) -> (batch, n_q, dim)``."""
        queries = queries + self.attention(self.norm_attention(queries), self.norm_attention(keys), attend)
        out: Tensor = queries + self.ff(self.norm_ff(queries))
        return out


class PostNormBlock(nn.Module):
    """Attention and feed-forward network, a layer norm after each sum with the skip connection; ReLU.

    The order of the original transformer and of TNP-D; see :class:`MultiHeadAttention` for the widths.
    """

    def __init__(self, dim: int, heads: int, qk_dim: int, v_dim: int, v_hidden: int, ff_dim: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads, qk_dim, v_dim, v_hidden)
        self.ff = MLP(dim, ff_dim, dim, relu=True)
        self.norm_attention, self.norm_ff = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)

    def forward(self, queries: Tensor, keys: Tensor, attend: Attend) -> Tensor:
        """``(batch, n_q, dim), (batch, n_k, dim) -> (batch, n_q, dim)``."""
        queries = self.norm_attention(queries + self.attention(queries, keys, attend))
        out: Tensor = self.norm_ff(queries + self.ff(queries))
        return out


def plain_attention(key_mask: Tensor) -> Attend:
    """Softmax attention (equation 3 of TE-TNP) to the keys that `key_mask`, ``(batch, n_k)``, keeps."""
    return lambda q, k, v: dense_attention(q, k, v, None, key_mask)


def origin(xc: Tensor, xt: Tensor) -> Tensor:
    """A point of each task that others are counted from, ``(batch, 1, d_x)``: a target, for exact differences from it.

    Without targets a context point; without any points none, ``(batch, 0, d_x)``.
    """
    return (xt if xt.shape[1] else xc)[:, :1]


def drop_masked(xc: Tensor, yc: Tensor, context_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Context with other numbers for what the mask drops, NaN included, and the mask; without one, all is kept."""
    if context_mask is None:
        return xc, yc, torch.ones(xc.shape[:2], dtype=torch.bool, device=xc.device)
    yc = torch.where(context_mask[..., None], yc, 0.0)
    return masked_locations(xc, context_mask), yc, context_mask


def in_chunks(function: Callable[[Tensor], Tensor], points: Tensor, size: int) -> Tensor:
    """``function(points)`` for a function of each point alone, `size` points ``(batch, n, ...)`` at a time."""
    return torch.cat([function(part) for part in points.split(size, 1)], 1)


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Mean over the points that `mask` keeps: ``(batch, n, dim), (batch, n) -> (batch, dim)``; zeros without any."""
    kept = torch.where(mask[..., None], tokens, 0.0)
    return kept.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
