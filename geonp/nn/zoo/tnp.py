"""Transformers without pseudo-tokens: TNP-D, TNP-ND and TNP-A (Nguyen and Grover 2022), EQTNP (Feng et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, LowRankMultivariateNormal, MultivariateNormal, Normal
from torch.nn import functional as F

from geonp.nn.attention import dense_attention
from geonp.nn.heads import GaussianHead, VarianceHead
from geonp.nn.layers import MLP, PostNormBlock, PreNormBlock, drop_masked, plain_attention

__all__ = ["EQTNP", "TNPA", "TNPD", "TNPND"]


class TNPD(nn.Module):
    """TNP-D: tokens ``MLP([x, y])``, y = 0 for targets; post-norm blocks in which all points attend to the context.

    The widths are those of the comparison in TNP-KR (arXiv 2411.12502v2). Context and targets share all weights and
    read the context as it was before the block: the published model's attention over both, with its mask, without the
    products that the mask discards. Costs ``O(n_c^2 + n_c n_t)`` instead of the published ``O((n_c + n_t)^2)``.
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
    """TNP-ND: TNP-D whose targets are correlated, by the outer product of factors that they exchange first.

    `mix_blocks` further blocks let the targets attend to each other; an MLP gives each value `rank` factors F. The
    covariance is ``L L'`` with L the lower triangle of ``F F'`` and a diagonal (``covariance="cholesky"``, which hangs
    on the order of the targets), or ``F F'`` and a diagonal (``"lowrank"``). Costs ``O(n_c^2 + n_c n_t + n_t^2)``.

    Deviation: the head's second output, through softplus, is the diagonal that is added, so that no variance vanishes.
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
        if covariance not in {"cholesky", "lowrank"}:
            raise ValueError(f"covariance must be cholesky or lowrank, got {covariance!r}")
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
        alone = self.head.forward(tokens)
        loc, diagonal = alone.loc.flatten(1), alone.scale.flatten(1) + 1e-4
        every = plain_attention(torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device))
        for block in self.mix:
            tokens = block(tokens, tokens, every)
        factors = self.factors(tokens).unflatten(-1, (self.d_y, -1)).flatten(1, 2)
        if self.covariance == "lowrank":
            return LowRankMultivariateNormal(loc, factors, diagonal.square(), validate_args=False)
        lower = (factors @ factors.mT).tril() + torch.diag_embed(diagonal)
        return MultivariateNormal(loc, scale_tril=lower, validate_args=False)

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Negative log density of all target values ``(batch, n_t, d_y)`` together, divided by their number."""
        density: Tensor = self.joint(xc, yc, xt, context_mask).log_prob(yt.flatten(1))
        return -density.mean() / yt[0].numel()


class TNPA(TNPD):
    """TNP-A: TNP-D that also reads the true values of the targets before each target, in their order.

    ``forward`` predicts every target from the context alone; :meth:`conditional` also from the earlier targets, which
    is what the model is trained for. For joint samples feed back what was drawn: :func:`geonp.nn.sampling.sample`.
    """

    def conditional(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict target i from the context and the targets before i, ``(batch, n_t, d_y)``.

        The sequence is context, known targets, unknown targets. All attend to the context; target i also to the known
        targets up to itself when it is known, and before itself when it is not.
        """
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        n_c, n_t = xc.shape[1], xt.shape[1]
        unknown = torch.cat([xt, torch.zeros_like(yt)], -1)
        tokens = self.embed(torch.cat([torch.cat([xc, yc], -1), torch.cat([xt, yt], -1), unknown], 1))
        keys_mask = torch.cat([context_mask, context_mask.new_ones(len(xc), n_t)], 1)
        earlier = torch.ones(n_t, n_t, dtype=torch.bool, device=xt.device)
        allowed = torch.cat([torch.zeros_like(earlier[:1]).expand(n_c, -1), earlier.tril(), earlier.tril(-1)])
        bias = torch.where(F.pad(allowed, (n_c, 0), value=True), 0.0, torch.finfo(tokens.dtype).min / 2)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return dense_attention(q, k, v, bias, keys_mask)

        for block in self.blocks:
            tokens = block(tokens, tokens[:, : n_c + n_t], attend)
        return self.head.forward(tokens[:, n_c + n_t :])

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Mean negative log density of target values ``(batch, n_t, d_y)``, each given the context and those before."""
        density: Tensor = self.conditional(xc, yc, xt, yt, context_mask).log_prob(yt)
        return -density.mean()


class EQTNP(nn.Module):
    """EQTNP: self-attention of the context and cross-attention of the targets to it, each with its own weights.

    In each layer the context is updated first and the targets read the result (the rows of TE-TNP's figure 1, ICML
    2024, of which this is the "TNP"); tokens are ``MLP([x, y, observed?])``, blocks pre-norm. Costs
    ``O(n_c^2 + n_c n_t)``.
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
