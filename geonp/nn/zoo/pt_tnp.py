"""PT-TNP and LBANP: transformer neural processes with a few pseudo-tokens between context and targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from geonp.nn.blocks import BLOCKS
from geonp.nn.heads import VarianceHead
from geonp.nn.layers import MLP, PreNormBlock, drop_masked, in_chunks, plain_attention


class PTTNP(nn.Module):
    """PT-TNP in the style of induced sets (Lee et al. 2019; TE-TNP, ICML 2024, section 2.3).

    Tokens are ``MLP([x, y, observed?])``. In each layer `n_pseudo` pseudo-tokens attend to the context, then the
    context and the targets to the pseudo-tokens, by softmax attention (equations 2 and 3) in separate pre-norm blocks.
    Costs ``O(n_pseudo (n_c + n_t))``.

    Deviation: the last layer does not update the context, as the update would not be used.
    """

    final_layers = 1
    """Layers at the end without an update of the context."""

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        dim: int = 128,
        heads: int = 8,
        blocks: int = 5,
        n_pseudo: int = 32,
        min_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_y = d_y

        def layers(n: int) -> nn.ModuleList:
            return nn.ModuleList(PreNormBlock(dim, heads, dim) for _ in range(n))

        self.embed = MLP(d_x + d_y + 1, dim, dim, dim, relu=True)
        self.pseudo = nn.Parameter(torch.randn(n_pseudo, dim))
        self.gather, self.read = layers(blocks), layers(blocks)
        self.exchange = layers(blocks - self.final_layers)
        self.head = VarianceHead(dim, d_y, min_scale=min_scale)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        z = self.embed(torch.cat([xc, yc, torch.ones_like(xc[..., :1])], -1))
        u = self.pseudo.expand(len(xc), -1, -1)
        pseudo_tokens = []
        for i, gather in enumerate(self.gather):
            u = gather(u, z, plain_attention(context_mask))
            if i < len(self.exchange):
                z, u = self._exchange(self.exchange[i], z, u)
            pseudo_tokens.append(u)

        def decode(x: Tensor) -> Tensor:
            t = self.embed(torch.cat([x, x.new_zeros(*x.shape[:2], self.d_y + 1)], -1))
            for read, u in zip(self.read, pseudo_tokens, strict=True):
                t = read(t, u, plain_attention())
            out: Tensor = self.head.mlp(t)
            return out

        return self.head.forward(in_chunks(decode, xt, BLOCKS.targets))

    def _exchange(self, block: nn.Module, z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Update the context tokens of one layer by the pseudo-tokens."""
        return block(z, u, plain_attention()), u


class LBANP(PTTNP):
    """LBANP (Feng et al. 2023), in the style of a perceiver: :class:`PTTNP` whose pseudo-tokens attend to themselves.

    The context tokens are not updated, as described in section 2.3 of TE-TNP.
    """

    final_layers = 0

    def _exchange(self, block: nn.Module, z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Update the pseudo-tokens of one layer by each other."""
        return z, block(u, u, plain_attention())
