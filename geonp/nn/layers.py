"""Building blocks shared by the families: multilayer perceptrons and the kernel-regression block of TNP-KR."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["MLP", "Attend", "KRBlock", "MultiHeadAttention", "masked_mean"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(q, k, v) -> (batch, heads, n_q, d_v)``: how one layer attends, its bias and masks included."""


class MLP(nn.Sequential):
    """Linear layers of the given `widths` with GELU (tanh approximation) between them and a linear end."""

    def __init__(self, *widths: int) -> None:
        layers: list[nn.Module] = []
        for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
            if i:
                layers.append(nn.GELU(approximate="tanh"))
            linear = nn.Linear(n_in, n_out)
            nn.init.trunc_normal_(linear.weight, std=n_in**-0.5)
            nn.init.zeros_(linear.bias)
            layers.append(linear)
        super().__init__(*layers)


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

    def forward(self, queries: Tensor, keys: Tensor, attend: Attend) -> Tensor:
        """``(batch, n_q, dim), (batch, n_k, dim) -> (batch, n_q, dim)``."""
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.to_q(queries), self.to_k(keys), self.to_v(keys))
        )
        out: Tensor = self.to_out(attend(q, k, v).transpose(1, 2).flatten(2))
        return out


class KRBlock(nn.Module):
    """Kernel-regression block (TNP-KR, arXiv 2411.12502, algorithm 2): targets and context read the same context.

    One layer norm, one attention module and one feed-forward network serve both streams. The two attention calls share
    weights and keys, so they are one call on the concatenated queries, targets first; the keys that targets read are
    not yet updated by this block.
    """

    def __init__(self, dim: int, heads: int, qk_dim: int, v_dim: int, v_hidden: int, ff_dim: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(dim, eps=1e-6)
        self.attention = MultiHeadAttention(dim, heads, qk_dim, v_dim, v_hidden)
        self.norm_ff = nn.LayerNorm(dim, eps=1e-6)
        self.ff = MLP(dim, ff_dim, dim)

    def forward(self, tokens: Tensor, n_targets: int, attend: Attend) -> Tensor:
        """``(batch, n_targets + n_context, dim)``, targets first, to the same shape."""
        normed = self.norm_attention(tokens)
        tokens = tokens + self.attention(normed, normed[:, n_targets:], attend)
        out: Tensor = tokens + self.ff(self.norm_ff(tokens))
        return out


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Mean over the points that `mask` keeps: ``(batch, n, dim), (batch, n) -> (batch, dim)``; zeros without any."""
    kept = torch.where(mask[..., None], tokens, 0.0)
    return kept.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
