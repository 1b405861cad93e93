"""Neural processes that pool the context: CNP, NP, BNP, with attention CANP, ANP, BANP, and relational RCNP.

An encoder turns the context into features r of each target, a decoder turns ``[r, x]`` into a distribution. The encoder
is a mean or attention; NP adds a latent variable, BNP a bootstrap. Default widths are those of the comparison in TNP-KR
(arXiv 2411.12502v2), with ReLU throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence
from torch.nn import functional as F

from geonp.nn.heads import VarianceHead, gaussian
from geonp.nn.layers import MLP, MultiHeadAttention, drop_masked, in_chunks, masked_mean, plain_attention


class MeanEncoder(nn.Module):
    """Mean of ``MLP([x, y])`` over the context, the same features for all targets."""

    def __init__(self, d_in: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.mlp = MLP(d_in, *widths, relu=True)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor) -> Tensor:
        """Context with finite values, target locations and mask to features ``(batch, n_t, widths[-1])``."""
        pooled = masked_mean(self.mlp(torch.cat([xc, yc], -1)), context_mask)
        return pooled[:, None].expand(-1, xt.shape[1], -1)


class AttentiveEncoder(nn.Module):
    """Cross-attention from target to context locations; its values are ``MLP([x, y])`` after self-attention.

    Without skip connections and norms.
    """

    def __init__(self, d_x: int, d_y: int, locate: tuple[int, ...], widths: tuple[int, ...], heads: int = 8) -> None:
        super().__init__()
        dim = widths[-1]
        self.locate = MLP(d_x, *locate, relu=True)
        self.mlp = MLP(d_x + d_y, *widths, relu=True)
        self.mix = MultiHeadAttention(dim, heads, dim, dim)
        self.read = MultiHeadAttention(dim, heads, dim, dim)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor) -> Tensor:
        """Context with finite values, target locations and mask to features ``(batch, n_t, widths[-1])``."""
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

    ``z ~ Normal(loc, 0.1 + 0.9 sigmoid(raw))`` has its parameters from the mean of a second encoder over the context;
    the decoder reads ``[r, z, x]``.

    Deviation: the published comparison draws one z for each prediction. Here a prediction is the mixture over
    `n_latents` draws that are stored with the weights, so that it is a function of its inputs.
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
        r, z = self.encoder(xc, yc, xt, context_mask), self.posterior(xc, yc, context_mask)
        return _mixture(self.decode(r, z.loc + z.scale * noise, xt) for noise in self.noise)

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Negative evidence bound per target, see :meth:`bound`; target values are ``(batch, n_t, d_y)``."""
        return self.bound((xc, yc), (xt, yt), lambda predicted: predicted.log_prob(yt), context_mask)

    def bound(
        self,
        context: tuple[Tensor, Tensor],
        targets: tuple[Tensor, Tensor],
        density: Callable[[Normal], Tensor],
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Negative evidence bound: mean negative log `density` given one posterior z, plus ``KL / n_t``.

        KL is that of the posterior, given context and targets (locations and values), from the prior, given the
        context.
        """
        (xc, yc, context_mask), (xt, yt) = drop_masked(*context, context_mask), targets
        prior = self.posterior(xc, yc, context_mask)
        mask = torch.cat([context_mask, context_mask.new_ones(xt.shape[:2])], 1)
        posterior = self.posterior(torch.cat([xc, xt], 1), torch.cat([yc, yt], 1), mask)
        predicted = self.decode(self.encoder(xc, yc, xt, context_mask), posterior.rsample(), xt)
        return kl_divergence(posterior, prior).sum(-1).mean() / xt.shape[1] - density(predicted).mean()

    def posterior(self, x: Tensor, y: Tensor, mask: Tensor) -> Normal:
        """Distribution of the latent variable given points."""
        tokens = self.latent(torch.cat([x, y], -1))
        if self.mix is not None:
            tokens = self.mix(tokens, tokens, plain_attention(mask))
        loc, raw = self.to_z(masked_mean(tokens, mask)).float().chunk(2, -1)
        return Normal(loc, 0.1 + 0.9 * torch.sigmoid(raw), validate_args=False)

    def decode(self, r: Tensor, z: Tensor, xt: Tensor) -> Normal:
        """Prediction at targets given a latent variable."""
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
            d_x=d_x, d_y=d_y, encoder=encoder, latent=latent, decoder=decoder, n_latents=n_latents, min_scale=min_scale
        )
        self.encoder = AttentiveEncoder(d_x, d_y, locate, encoder)
        self.mix = MultiHeadAttention(latent[-1], 8, latent[-1], latent[-1])


class BNP(nn.Module):
    """BNP (Lee et al. 2020): CNP with bootstrapped contexts, one for each component of a mixture.

    The resampled context predicts the context. Its standardised residuals, resampled and centred, make a new context,
    whose features r' the decoder adds: ``decoder(ReLU(first([r, x]) + more(r')))``. Costs ``O(n_c + n_t)``.

    Deviation: outside of training the draws are fixed and are applied to the context sorted by its values, so that a
    prediction is a function of its inputs and does not depend on their order.
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
        """Mean of the NLL of the mixture and of the NLL without bootstrap; target values are ``(batch, n_t, d_y)``."""
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
        # the draws of a context do not depend on its padding
        draws = torch.rand(xc.shape[1], self.n_bootstraps, 2, generator=generator).to(xc.device)
        contexts = [self._resampled(xc, yc, mask, *draw.unbind(-1)) for draw in draws.unbind(1)]
        return _mixture(self._decode(hidden + self.more(self.encoder(xc, y, xt, mask))) for y in contexts)

    @torch.no_grad()
    def _resampled(self, xc: Tensor, yc: Tensor, mask: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Bootstrapped values of the context, from two resamplings by uniform random numbers ``(n_c,)``."""
        n = mask.sum(1, keepdim=True)
        pairs, residuals = ((draw * n).long().clamp_max(n - 1).clamp_min(0)[..., None] for draw in (first, second))
        x, y = (t.gather(1, pairs.expand_as(t)) for t in (xc, yc))
        predicted = self._decode(self._first(x, y, xc, mask))
        residual = ((yc - predicted.loc) / predicted.scale).gather(1, residuals.expand_as(yc))
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

    Translation equivariant, as locations enter through differences only. Costs ``O(n_c n_t)``. At most `max_pairs`
    pairs, or those of one target, pass through the network at a time; the backward pass recomputes them.

    Deviation: the decoder has as many hidden layers as the encoder, in the text two.
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
        return self.head.forward(self.head.mlp(in_chunks(encode, xt, rows, recompute=True)))


def _mixture(components: Iterable[Normal]) -> MixtureSameFamily:
    """Mixture of normal distributions with equal weights."""
    loc, scale = (torch.stack(t, -1) for t in zip(*((c.loc, c.scale) for c in components), strict=True))
    weights = Categorical(logits=torch.zeros_like(loc), validate_args=False)
    return MixtureSameFamily(weights, Normal(loc, scale, validate_args=False), validate_args=False)


def _sorted(xc: Tensor, yc: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Context and mask, sorted by values, then by locations; masked points are last."""
    keys = torch.cat([(~mask)[..., None].to(yc), yc, xc], -1)
    order = torch.arange(xc.shape[1], device=xc.device).expand(mask.shape)
    for column in reversed(keys.unbind(-1)):
        order = order.gather(1, column.gather(1, order).argsort(dim=1, stable=True))
    xc, yc = (t.gather(1, order[..., None].expand_as(t)) for t in (xc, yc))
    return xc, yc, mask.gather(1, order)
