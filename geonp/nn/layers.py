"""Layers that the model families share: perceptrons, attention modules, transformer blocks, and masks of a context."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from geonp.nn.attention import deep_kernel_attention, dense_attention, masked_locations
from geonp.nn.blocks import BLOCKS

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(q, k, v) -> (batch, heads, n_q, d_v)``: the attention of one layer, with its bias and masks."""


class TanhGELU(nn.Module):
    """GELU in its tanh approximation, ``x (1 + tanh(u)) / 2``.

    In float32 on a CPU without gradients it is computed as ``x sigmoid(2 u)``, in half the time of ``torch.nn.GELU``.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        if x.requires_grad or x.dtype != torch.float32 or x.device.type != "cpu":
            return F.gelu(x, approximate="tanh")
        rate = 2 * math.sqrt(2 / math.pi)
        twice_u = x.square().mul_(0.044715 * rate).add_(rate).mul_(x)
        return twice_u.sigmoid_().mul_(x)


class MLP(nn.Sequential):
    """Linear layers of the given `widths` with GELU (tanh approximation) or ReLU between them.

    Weights start LeCun-normal and biases at zero as in TNP-KR's code. Deviation: TE-TNP's has PyTorch's default.
    """

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
    """:class:`MLP` with ReLU that is applied to columns, ``(batch, n, pairs) -> (batch, m, pairs)``.

    For many pairs with few features, columns take a third to a half of the time of rows. With gradients the columns are
    processed in blocks, on a CPU in ones that fit its cache, and activations are recomputed in the backward pass. This
    takes 0.6 (width 32) to 0.8 (width 128) of the time of storing them, and the memory of one block.
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
        for block, result in zip(_column_blocks(columns, layers), _column_blocks(out, layers), strict=True):
            result.copy_(torch.addmm(layers[-1][:, None], layers[-2], _activations(block, layers)[-1].T))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        columns, *layers = ctx.saved_tensors
        grads = [torch.zeros_like(t) for t in layers]
        grad_columns = torch.empty_like(columns)
        blocks = (_column_blocks(t, layers) for t in (columns, grad, grad_columns))
        for block, grad_out, grad_in in zip(*blocks, strict=True):
            inputs, rows = _activations(block, layers), grad_out.T
            for i in range(len(inputs) - 1, 0, -1):
                grads[2 * i].addmm_(rows.T, inputs[i])
                grads[2 * i + 1].add_(rows.sum(0))
                rows = (rows @ layers[2 * i]).mul_(inputs[i].sign_())
            # for two transposes BLAS computes inner products over pairs, at a third of the speed
            grads[0].add_((block @ rows).T)
            grads[1].add_(rows.sum(0))
            grad_in.copy_(layers[0].T @ rows.T)
        return grad_columns, *grads


def _column_blocks(columns: Tensor, layers: Sequence[Tensor]) -> Iterator[Tensor]:
    """Views of blocks of columns, each within one task."""
    on_cpu = columns.device.type == "cpu"
    size = BLOCKS.features // max(len(t) for t in layers) if on_cpu else columns.shape[2]
    for task in columns:
        yield from task.split(max(1, size), 1)


def _activations(columns: Tensor, layers: Sequence[Tensor]) -> list[Tensor]:
    """Inputs of each layer as rows ``(pairs, n)``; `layers` are weights and biases in turn."""
    inputs = [columns.T]
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        inputs.append(torch.addmm(bias, inputs[-1], weight.T).relu_())
    return inputs


class MultiHeadAttention(nn.Module):
    """Projections around an attention function: heads of ``qk_dim / heads`` and ``v_dim / heads`` features.

    With `v_hidden` > 0 the value projection has a hidden ReLU layer of this width, as in the published TNP-KR.
    ``torch.nn.MultiheadAttention`` has one width for queries and values, and no exchangeable attention function.
    """

    def __init__(self, dim: int, heads: int, qk_dim: int, v_dim: int, v_hidden: int = 0) -> None:
        super().__init__()
        if qk_dim % heads or v_dim % heads:
            raise ValueError(f"qk_dim and v_dim must be multiples of heads, got {qk_dim}, {v_dim} and {heads} heads")
        self.heads = heads
        self.to_q, self.to_k = MLP(dim, qk_dim), MLP(dim, qk_dim)
        self.to_v = nn.Sequential(MLP(dim, v_hidden), nn.ReLU(), MLP(v_hidden, v_dim)) if v_hidden else MLP(dim, v_dim)
        self.to_out = MLP(v_dim, dim)

    def forward(self, queries: Tensor, keys: Tensor, attend: Attend, values: Tensor | None = None) -> Tensor:
        """``(batch, n_q, dim), (batch, n_k, dim) -> (batch, n_q, dim)``; `values` default to the keys."""
        values = keys if values is None else values
        q, k, v = split_heads(self.heads, self.to_q(queries), self.to_k(keys), self.to_v(values))
        out: Tensor = self.to_out(attend(q, k, v).transpose(1, 2).flatten(2))
        return out


def split_heads(heads: int, *projections: Tensor) -> Iterator[Tensor]:
    """``(batch, n, heads * d)`` to ``(batch, heads, n, d)``."""
    return (t.unflatten(-1, (heads, t.shape[-1] // heads)).transpose(1, 2) for t in projections)


class DeepKernelAttention(nn.Module):
    """Deep kernel attention (TNP-KR, arXiv 2411.12502v2, equation 9): a learned kernel of locations and tokens.

    A network phi embeds queries and keys with their locations, another one, psi, the values. A layer norm replaces the
    denominator of the softmax and the output projection. Locations enter directly, so it is not translation invariant.
    """

    def __init__(self, dim: int, d_x: int, hidden: int = 128) -> None:
        super().__init__()
        self.phi = MLP(dim + d_x, hidden, hidden)
        self.psi = MLP(dim, hidden, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, queries: Tensor, keys: Tensor, xq: Tensor, xk: Tensor, key_mask: Tensor) -> Tensor:
        """Queries ``(batch, n_q, dim)``, keys ``(batch, n_k, dim)``, their locations and the key mask to queries."""
        scale = queries.shape[-1] ** -0.25
        q, k = (self.phi(torch.cat([x, z], -1)) * scale for x, z in ((xq, queries), (xk, keys)))
        out: Tensor = self.norm(deep_kernel_attention(q, k, self.psi(keys), key_mask))
        return out


class KRBlock(nn.Module):
    """Kernel-regression block (TNP-KR, arXiv 2411.12502v1, algorithm 2): targets and context attend to the context.

    Both share one layer norm, one attention module and one feed-forward network, and attend to the context as it was
    before the block, so that one call on the concatenated queries is enough. `attention` is a
    :class:`MultiHeadAttention` or a :class:`DeepKernelAttention`.
    """

    def __init__(self, dim: int, ff_dim: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(dim, eps=1e-6)
        self.attention = attention
        self.norm_ff = nn.LayerNorm(dim, eps=1e-6)
        self.ff = MLP(dim, ff_dim, dim)

    def forward(self, tokens: Tensor, n_targets: int, *arguments: Attend | Tensor) -> Tensor:
        """``(batch, n_targets + n_context, dim)``, targets first, to the same shape.

        The attention module receives queries, keys and `arguments`.
        """
        normed = self.norm_attention(tokens)
        tokens = tokens + self.attention(normed, normed[:, n_targets:], *arguments)
        out: Tensor = tokens + self.ff(self.norm_ff(tokens))
        return out


class PreNormBlock(nn.Module):
    """Pre-norm transformer block with ReLU. Queries and keys share the first norm, as in the code of TE-TNP."""

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
    """Post-norm transformer block with ReLU, as in TNP-D; see :class:`MultiHeadAttention` for the widths."""

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


def plain_attention(key_mask: Tensor | None = None) -> Attend:
    """Softmax attention (equation 3 of TE-TNP) to the keys where `key_mask` ``(batch, n_k)`` is True, or to all."""
    return lambda q, k, v: dense_attention(q, k, v, None, key_mask)


def origin(others: Tensor, points: Tensor) -> Tensor:
    """Origin of relative coordinates, ``(batch, 1, d_x)``: the first of `points`, else of `others`.

    Relative coordinates are exact in float32 however far the points are from zero. Without any point it is empty.
    """
    return (points if points.shape[1] else others)[:, :1]


def drop_masked(xc: Tensor, yc: Tensor, context_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Context with finite numbers in place of masked ones, and the mask, all True by default."""
    if context_mask is None:
        return xc, yc, torch.ones(xc.shape[:2], dtype=torch.bool, device=xc.device)
    yc = torch.where(context_mask[..., None], yc, 0.0)
    return masked_locations(xc, context_mask), yc, context_mask


def with_unknown_targets(yc: Tensor, n_t: int) -> tuple[Tensor, Tensor]:
    """Values ``(batch, n_t + n_c, d_y)``, zero for targets, and flags ``(batch, n_t + n_c)``, one where observed."""
    values = torch.cat([yc.new_zeros(yc.shape[0], n_t, yc.shape[2]), yc], 1)
    return values, (torch.arange(values.shape[1], device=yc.device) >= n_t).long().expand(values.shape[:2])


def in_chunks(function: Callable[[Tensor], Tensor], points: Tensor, size: int, *, recompute: bool = False) -> Tensor:
    """Apply a function of single points to `size` points ``(batch, n, ...)`` at a time.

    With `recompute`, several chunks save no activations for the backward pass.
    """
    chunks = points.split(size, 1)
    if recompute and len(chunks) > 1 and torch.is_grad_enabled():
        results = [checkpoint(function, chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    else:
        results = [function(chunk) for chunk in chunks]
    return torch.cat(results, 1)


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Mean over the points where `mask` is True: ``(batch, n, dim), (batch, n) -> (batch, dim)``; zeros if none is."""
    observed = torch.where(mask[..., None], tokens, 0.0)
    return observed.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
