"""Transformers without pseudo-tokens: TNP-D, TNP-ND, TNP-A (Nguyen & Grover 2022) and EQTNP (Feng et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, LowRankMultivariateNormal, MultivariateNormal, Normal
from torch.nn import functional as F

from geonp.nn.attention import dense_attention
from geonp.nn.heads import GaussianHead, VarianceHead
from geonp.nn.layers import MLP, PostNormBlock, PreNormBlock, drop_masked, plain_attention


class TNPD(nn.Module):
    """TNP-D: post-norm blocks in which context and targets attend to the context.

    Tokens are ``MLP([x, y])`` with y = 0 for targets. Default widths are those of the comparison in TNP-KR (arXiv
    2411.12502v2). Context and targets share all weights and attend to the context as it was before the block. This
    equals the masked attention of the published model without the products that the mask discards, and costs
    ``O(n_c^2 + n_c n_t)`` instead of ``O((n_c + n_t)^2)``.
    """

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        dim: int = 64,
        heads: int = 4,
        blocks: int = 6,
        qk_dim: int = 128,
        v_dim: int = 64,
        v_hidden: int = 128,
        ff_dim: int = 256,
        embed_hidden: tuple[int, ...] = (256, 128),
        min_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_y = d_y
        self.embed = MLP(d_x + d_y, *embed_hidden, dim, relu=True)
        self.blocks = nn.ModuleList(PostNormBlock(dim, heads, qk_dim, v_dim, v_hidden, ff_dim) for _ in range(blocks))
        self.head = GaussianHead(dim, 256, d_y, min_scale)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        return self.head.forward(self._encode(xc, yc, xt, context_mask))

    def _encode(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None) -> Tensor:
        """Tokens of the targets after the last block, ``(batch, n_t, dim)``."""
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        unknown = yc.new_zeros(*xt.shape[:2], self.d_y)
        tokens: Tensor = self.embed(torch.cat([torch.cat([xt, unknown], -1), torch.cat([xc, yc], -1)], 1))
        for block in self.blocks:
            tokens = block(tokens, tokens[:, xt.shape[1] :], plain_attention(context_mask))
        return tokens[:, : xt.shape[1]]


class TNPND(TNPD):
    """TNP-ND: TNP-D with a joint normal distribution of the targets.

    In `mix_blocks` further blocks the targets attend to each other, and an MLP gives each value `rank` factors F. The
    covariance is ``F F'`` plus a diagonal (``covariance="lowrank"``), or ``L L'`` with L the lower triangle of ``F F'``
    plus a diagonal (``"cholesky"``), which depends on the order of the targets. Costs ``O(n_c^2 + n_c n_t + n_t^2)``.

    Deviation: the diagonal is the scale of the head, so that no variance vanishes.
    """

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        rank: int = 20,
        mix_blocks: int = 2,
        covariance: str = "cholesky",
        dim: int = 64,
        heads: int = 4,
        ff_dim: int = 256,
        min_scale: float = 0.0,
        blocks: int = 6,
        qk_dim: int = 128,
        v_dim: int = 64,
        v_hidden: int = 128,
        embed_hidden: tuple[int, ...] = (256, 128),
    ) -> None:
        if covariance not in ("cholesky", "lowrank"):
            raise ValueError(f'covariance must be "cholesky" or "lowrank", got {covariance!r}')
        widths = {"qk_dim": qk_dim, "v_dim": v_dim, "v_hidden": v_hidden}
        super().__init__(
            d_x=d_x,
            d_y=d_y,
            dim=dim,
            heads=heads,
            blocks=blocks,
            ff_dim=ff_dim,
            embed_hidden=embed_hidden,
            min_scale=min_scale,
            **widths,
        )
        self.covariance = covariance
        self.mix = nn.ModuleList(PostNormBlock(dim, heads, ff_dim=ff_dim, **widths) for _ in range(mix_blocks))
        self.factors = MLP(dim, 256, d_y * rank, relu=True)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Marginals of :meth:`joint`: shapes and mask as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        joint = self.joint(xc, yc, xt, context_mask)
        loc, scale = (t.unflatten(-1, (-1, self.d_y)) for t in (joint.mean, joint.stddev))
        return Normal(loc, scale, validate_args=False)

    def joint(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Distribution:
        """Multivariate normal of all targets and channels, of event shape ``(n_t * d_y,)``, channels fastest."""
        tokens = self._encode(xc, yc, xt, context_mask)
        marginal = self.head.forward(tokens)
        loc, diagonal = marginal.loc.flatten(1), marginal.scale.flatten(1) + 1e-4
        for block in self.mix:
            tokens = block(tokens, tokens, plain_attention())
        factors = self.factors(tokens).unflatten(-1, (self.d_y, -1)).flatten(1, 2)
        if self.covariance == "lowrank":
            return LowRankMultivariateNormal(loc, factors, diagonal.square(), validate_args=False)
        lower = (factors @ factors.mT).tril() + torch.diag_embed(diagonal)
        return MultivariateNormal(loc, scale_tril=lower, validate_args=False)

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Negative joint log density of the target values ``(batch, n_t, d_y)``, divided by their number."""
        density: Tensor = self.joint(xc, yc, xt, context_mask).log_prob(yt.flatten(1))
        return -density.mean() / yt[0].numel()


class TNPA(TNPD):
    """TNP-A: autoregressive TNP-D, whose targets also attend to the true values of the targets before them.

    :meth:`conditional` predicts each target from the context and the earlier targets, and is used in training;
    ``forward`` predicts it from the context alone. For joint samples use :func:`geonp.nn.sampling.sample`.
    """

    def conditional(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict each target from the context and the values `yt` ``(batch, n_t, d_y)`` of the targets before it.

        The sequence is context, known targets, unknown targets. All attend to the context. Known target i also attends
        to the known targets up to i, unknown target i to those before i.
        """
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        n_c, n_t = xc.shape[1], xt.shape[1]
        unknown = torch.cat([xt, torch.zeros_like(yt)], -1)
        tokens = self.embed(torch.cat([torch.cat([xc, yc], -1), torch.cat([xt, yt], -1), unknown], 1))
        key_mask = torch.cat([context_mask, context_mask.new_ones(len(xc), n_t)], 1)
        ones = torch.ones(n_t, n_t, dtype=torch.bool, device=xt.device)
        allowed = torch.cat([torch.zeros_like(ones[:1]).expand(n_c, -1), ones.tril(), ones.tril(-1)])
        bias = torch.where(F.pad(allowed, (n_c, 0), value=True), 0.0, torch.finfo(tokens.dtype).min / 2)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return dense_attention(q, k, v, bias, key_mask)

        for block in self.blocks:
            tokens = block(tokens, tokens[:, : n_c + n_t], attend)
        return self.head.forward(tokens[:, n_c + n_t :])

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Mean negative log density of target values ``(batch, n_t, d_y)``, each given the context and earlier ones."""
        density: Tensor = self.conditional(xc, yc, xt, yt, context_mask).log_prob(yt)
        return -density.mean()


class EQTNP(nn.Module):
    """EQTNP: self-attention of the context and cross-attention of the targets to it, with separate weights.

    Each layer updates the context first, and the targets attend to the result; this is the "TNP" of TE-TNP (ICML 2024,
    figure 1). Tokens are ``MLP([x, y, observed?])``, blocks are pre-norm. Costs ``O(n_c^2 + n_c n_t)``.
    """

    def __init__(
        self, *, d_x: int = 2, d_y: int = 1, dim: int = 128, heads: int = 8, blocks: int = 5, min_scale: float = 0.0
    ) -> None:
        super().__init__()
        self.d_y = d_y
        self.embed = MLP(d_x + d_y + 1, dim, dim, dim, relu=True)
        self.context = nn.ModuleList(PreNormBlock(dim, heads, dim) for _ in range(blocks))
        self.read = nn.ModuleList(PreNormBlock(dim, heads, dim) for _ in range(blocks))
        self.head = VarianceHead(dim, d_y, min_scale=min_scale)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        attend = plain_attention(context_mask)
        z = self.embed(torch.cat([xc, yc, torch.ones_like(xc[..., :1])], -1))
        t = self.embed(torch.cat([xt, xt.new_zeros(*xt.shape[:2], self.d_y + 1)], -1))
        for context, read in zip(self.context, self.read, strict=True):
            z = context(z, z, attend)
            t = read(t, z, attend)
        return self.head.forward(self.head.mlp(t))
