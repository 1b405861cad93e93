"""CNP, NP, BNP, their attentive kin CANP, ANP and BANP, and RCNP: neural processes that pool the context.

The widths are those of the comparison in TNP-KR (arXiv 2411.12502v2), ReLU throughout. An encoder turns the context
into features r of each target; a decoder turns ``[r, x]`` into a distribution. What the encoder is (mean or attention)
and what is added to it (nothing, a latent variable, a bootstrap) are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from geonp.nn.heads import VarianceHead, gaussian
from geonp.nn.layers import MLP, MultiHeadAttention, drop_masked, masked_mean, plain_attention

__all__ = ["ANP", "BANP", "BNP", "CANP", "CNP", "NP", "RCNP", "AttentiveEncoder", "MeanEncoder"]


class MeanEncoder(nn.Module):
    """The same features for all targets: the mean over the context of ``MLP([x, y])``."""

    def __init__(self, d_in: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.mlp = MLP(d_in, *widths, relu=True)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor) -> Tensor:
        """Context (masked values finite), target locations and mask to ``(batch, n_t, widths[-1])``."""
        pooled = masked_mean(self.mlp(torch.cat([xc, yc], -1)), context_mask)
        return pooled[:, None].expand(-1, xt.shape[1], -1)


class AttentiveEncoder(nn.Module):
    """Features by attention of each target's location to the context's; the values are self-attended ``MLP([x, y])``.

    Neither attention has a skip connection or a norm.
    """

    def __init__(self, d_x: int, d_y: int, locate: tuple[int, ...], widths: tuple[int, ...], heads: int = 8) -> None:
        super().__init__()
        dim = widths[-1]
        self.locate = MLP(d_x, *locate, relu=True)
        self.mlp = MLP(d_x + d_y, *widths, relu=True)
        self.mix = MultiHeadAttention(dim, heads, dim, dim)
        self.read = MultiHeadAttention(dim, heads, dim, dim)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor) -> Tensor:
        """Context (masked values finite), target locations and mask to ``(batch, n_t, widths[-1])``."""
        attend = plain_attention(context_mask)
        tokens = self.mlp(torch.cat([xc, yc], -1))
        out: Tensor = self.read(self.locate(xt), self.locate(xc), attend, self.mix(tokens, tokens, attend))
        return out


class CNP(nn.Module):
    """CNP (Garnelo et al. 2018): ``decoder([mean of encoder([x, y]), x])``. Costs ``O(n_c + n_t)``."""

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        encoder: tuple[int, ...] = (512, 256, 256, 128, 128, 128),
        decoder: tuple[int, ...] = (512, 256, 128, 128),
        min_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder: nn.Module = MeanEncoder(d_x + d_y, encoder)
        self.decoder = MLP(encoder[-1] + d_x, *decoder, 2 * d_y, relu=True)
        self.min_scale = min_scale

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        r = self.encoder(xc, yc, xt, context_mask)
        return gaussian(self.decoder(torch.cat([r, xt], -1)), self.min_scale)


class CANP(CNP):
    """CANP: CNP with attention, :class:`AttentiveEncoder`. Costs ``O(n_c^2 + n_c n_t)``."""

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        locate: tuple[int, ...] = (512, 128),
        encoder: tuple[int, ...] = (512, 256, 128),
        decoder: tuple[int, ...] = (512, 128, 128, 128),
        min_scale: float = 0.0,
    ) -> None:
        super().__init__(d_x=d_x, d_y=d_y, encoder=encoder, decoder=decoder, min_scale=min_scale)
        self.encoder = AttentiveEncoder(d_x, d_y, locate, encoder)


class NP(nn.Module):
    """NP (Garnelo et al. 2018): CNP with a latent variable z that all targets share. Costs ``O(n_c + n_t)``.

    ``z ~ Normal(loc, 0.1 + 0.9 sigmoid(raw))`` comes from the mean over the context of a second encoder; the decoder
    reads ``[r, z, x]``.

    Deviation: the published comparison draws one z a prediction. Here the distribution is the mixture over `n_latents`
    draws that are fixed with the weights, so that a prediction is a function of its inputs.
    """

    noise: Tensor

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        encoder: tuple[int, ...] = (512, 256, 128, 128, 128, 128),
        latent: tuple[int, ...] = (256, 256, 128),
        decoder: tuple[int, ...] = (256, 256, 128, 128),
        n_latents: int = 16,
        min_scale: float = 0.0,
    ) -> None:
        super().__init__()
        dim = latent[-1]
        self.encoder: nn.Module = MeanEncoder(d_x + d_y, encoder)
        self.latent = MLP(d_x + d_y, *latent, relu=True)
        self.mix: MultiHeadAttention | None = None
        self.to_z = MLP(dim, dim, 2 * dim, relu=True)
        self.decoder = MLP(encoder[-1] + dim + d_x, *decoder, 2 * d_y, relu=True)
        self.register_buffer("noise", torch.randn(n_latents, dim))
        self.min_scale = min_scale

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> MixtureSameFamily:
        """Predict targets from context: shapes and mask as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`; a mixture."""
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        r, z = self.encoder(xc, yc, xt, context_mask), self._latent(xc, yc, context_mask)
        return _mixture(self._decode(r, z.loc + z.scale * noise, xt) for noise in self.noise)

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Negative evidence bound a target: see :meth:`bound`; target values are ``(batch, n_t, d_y)``."""
        return self.bound((xc, yc), (xt, yt), lambda predicted: predicted.log_prob(yt), context_mask)

    def bound(
        self,
        context: tuple[Tensor, Tensor],
        targets: tuple[Tensor, Tensor],
        density: Callable[[Normal], Tensor],
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Mean of minus the log `density` with one z of the posterior, plus ``KL(posterior, prior) / n_t``.

        The prior sees the context, the posterior context and targets: locations and values of each.
        """
        (xc, yc, context_mask), (xt, yt) = drop_masked(*context, context_mask), targets
        prior = self._latent(xc, yc, context_mask)
        every = torch.cat([context_mask, context_mask.new_ones(xt.shape[:2])], 1)
        posterior = self._latent(torch.cat([xc, xt], 1), torch.cat([yc, yt], 1), every)
        predicted = self._decode(self.encoder(xc, yc, xt, context_mask), posterior.rsample(), xt)
        return kl_divergence(posterior, prior).sum(-1).mean() / xt.shape[1] - density(predicted).mean()

    def _latent(self, x: Tensor, y: Tensor, mask: Tensor) -> Normal:
        tokens = self.latent(torch.cat([x, y], -1))
        if self.mix is not None:
            tokens = self.mix(tokens, tokens, plain_attention(mask))
        loc, raw = self.to_z(masked_mean(tokens, mask)).chunk(2, -1)
        return Normal(loc, 0.1 + 0.9 * torch.sigmoid(raw), validate_args=False)

    def _decode(self, r: Tensor, z: Tensor, xt: Tensor) -> Normal:
        features = torch.cat([r, z[:, None].expand(-1, xt.shape[1], -1), xt], -1)
        return gaussian(self.decoder(features), self.min_scale)


class ANP(NP):
    """ANP (Kim et al. 2019): NP with attention in both encoders. Costs ``O(n_c^2 + n_c n_t)``."""

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        locate: tuple[int, ...] = (256, 128),
        encoder: tuple[int, ...] = (256, 128, 128),
        latent: tuple[int, ...] = (256, 128, 128),
        decoder: tuple[int, ...] = (256, 128, 128),
        n_latents: int = 16,
        min_scale: float = 0.0,
    ) -> None:
        super().__init__(
            d_x=d_x,
            d_y=d_y,
            encoder=encoder,
            latent=latent,
            decoder=decoder,
            n_latents=n_latents,
            min_scale=min_scale,
        )
        self.encoder = AttentiveEncoder(d_x, d_y, locate, encoder)
        self.mix = MultiHeadAttention(latent[-1], 8, latent[-1], latent[-1])


class BNP(nn.Module):
    """BNP (Lee et al. 2020): CNP that also reads bootstrapped contexts, one for each component of a mixture.

    The context is resampled and predicts itself; its residuals, standardised, resampled and centred, make a new
    context, whose features r' the decoder adds: ``decoder(ReLU(first([r, x]) + more(r')))``. Costs ``O(n_c + n_t)``.

    Deviation: outside of training the draws are fixed and fall on the context in the order of its values, so that a
    prediction is a function of its inputs, whatever their order.
    """

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        encoder: tuple[int, ...] = (512, 256, 256, 128, 128, 128),
        decoder: tuple[int, ...] = (128, 512, 256, 128, 128),
        n_bootstraps: int = 4,
        min_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder: nn.Module = MeanEncoder(d_x + d_y, encoder)
        self.first = MLP(encoder[-1] + d_x, decoder[0])
        self.more = MLP(encoder[-1], decoder[0])
        self.decoder = MLP(*decoder, 2 * d_y, relu=True)
        self.n_bootstraps, self.min_scale = n_bootstraps, min_scale

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> MixtureSameFamily:
        """Predict targets from context: shapes and mask as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`; a mixture."""
        xc, yc, context_mask = _sorted(*drop_masked(xc, yc, context_mask))
        return self._bootstrap(self._first(xc, yc, xt, context_mask), xc, yc, xt, context_mask)

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Mean of the NLL of the mixture and of the NLL without any bootstrap; targets are ``(batch, n_t, d_y)``."""
        xc, yc, context_mask = _sorted(*drop_masked(xc, yc, context_mask))
        hidden = self._first(xc, yc, xt, context_mask)
        mixture = self._bootstrap(hidden, xc, yc, xt, context_mask)
        density: Tensor = self._decode(hidden).log_prob(yt) + mixture.log_prob(yt)
        return -density.mean() / 2

    def _first(self, xc: Tensor, yc: Tensor, xt: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.first(torch.cat([self.encoder(xc, yc, xt, mask), xt], -1))
        return hidden

    def _decode(self, hidden: Tensor) -> Normal:
        return gaussian(self.decoder(F.relu(hidden)), self.min_scale)

    def _bootstrap(self, hidden: Tensor, xc: Tensor, yc: Tensor, xt: Tensor, mask: Tensor) -> MixtureSameFamily:
        generator = None if self.training else torch.Generator().manual_seed(0)
        # the draws of a context do not depend on what is padded behind it
        draws = torch.rand(xc.shape[1], self.n_bootstraps, 2, generator=generator).to(xc.device)
        contexts = [self._resampled(xc, yc, mask, *draw.unbind(-1)) for draw in draws.unbind(1)]
        return _mixture(self._decode(hidden + self.more(self.encoder(xc, y, xt, mask))) for y in contexts)

    @torch.no_grad()
    def _resampled(self, xc: Tensor, yc: Tensor, mask: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """New values at the context's locations, from two resamplings by uniform numbers ``(n_c,)``."""
        n = mask.sum(1, keepdim=True)
        chosen, shuffled = ((draw * n).long().clamp_max(n - 1).clamp_min(0)[..., None] for draw in (first, second))
        x, y = (t.gather(1, chosen.expand_as(t)) for t in (xc, yc))
        predicted = self._decode(self._first(x, y, xc, mask))
        residual = ((yc - predicted.loc) / predicted.scale).gather(1, shuffled.expand_as(yc))
        residual = residual - masked_mean(residual, mask)[:, None]
        return predicted.loc + predicted.scale * residual


class BANP(BNP):
    """BANP (Lee et al. 2020): BNP with attention, :class:`AttentiveEncoder`. Costs ``O(n_c^2 + n_c n_t)``."""

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        locate: tuple[int, ...] = (512, 128),
        encoder: tuple[int, ...] = (512, 256, 128),
        decoder: tuple[int, ...] = (128, 512, 128, 128, 128),
        n_bootstraps: int = 4,
        min_scale: float = 0.0,
    ) -> None:
        super().__init__(
            d_x=d_x, d_y=d_y, encoder=encoder, decoder=decoder, n_bootstraps=n_bootstraps, min_scale=min_scale
        )
        self.encoder = AttentiveEncoder(d_x, d_y, locate, encoder)


class RCNP(nn.Module):
    """RCNP, simple (Huang et al. 2023; TE-TNP, ICML 2024, section F.1): ``decoder(mean_c MLP([x - x_c, y_c]))``.

    Translation equivariant, as locations enter through differences only. Costs ``O(n_c n_t)``; pairs pass through the
    network at most `max_pairs` at a time (one target's at least) and again in the backward pass.
    """

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        dim: int = 128,
        hidden_layers: int = 5,
        min_scale: float = 0.0,
        max_pairs: int = 2**15,
    ) -> None:
        super().__init__()
        self.relation = MLP(d_x + d_y, *[dim] * (hidden_layers + 1), relu=True)
        self.head = VarianceHead(dim, d_y, hidden_layers, min_scale)
        self.max_pairs = max_pairs

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)

        def encode(x: Tensor) -> Tensor:
            difference = x[:, :, None] - xc[:, None]
            pairs = torch.cat([difference, yc[:, None].expand(-1, x.shape[1], -1, -1)], -1)
            total = (self.relation(pairs) * context_mask[:, None, :, None]).sum(2)
            out: Tensor = total / context_mask.sum(1).clamp_min(1)[:, None, None]
            return out

        rows = max(1, self.max_pairs // max(1, xc.shape[0] * xc.shape[1]))
        pieces = xt.split(rows, 1)
        if len(pieces) > 1 and torch.is_grad_enabled():
            encoded = [checkpoint(encode, piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
        else:
            encoded = [encode(piece) for piece in pieces]
        return self.head.forward(self.head.mlp(torch.cat(encoded, 1)))


def _mixture(components: Iterable[Normal]) -> MixtureSameFamily:
    """Mixture of normal distributions with equal weights."""
    parts = list(components)
    loc, scale = torch.stack([p.loc for p in parts], -1), torch.stack([p.scale for p in parts], -1)
    weights = Categorical(logits=torch.zeros_like(loc), validate_args=False)
    return MixtureSameFamily(weights, Normal(loc, scale, validate_args=False), validate_args=False)


def _sorted(xc: Tensor, yc: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Context and mask by values, then by locations, what is masked last."""
    keys = torch.cat([(~mask)[..., None].to(yc), yc, xc], -1)
    order = torch.arange(xc.shape[1], device=xc.device).expand(mask.shape)
    for column in reversed(keys.unbind(-1)):
        order = order.gather(1, column.gather(1, order).argsort(dim=1, stable=True))
    xc, yc = (t.gather(1, order[..., None].expand_as(t)) for t in (xc, yc))
    return xc, yc, mask.gather(1, order)
