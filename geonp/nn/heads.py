"""From features to a distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal, StudentT
from torch.nn import functional as F

from geonp.nn.layers import MLP, masked_mean
from geonp.nn.likelihood import factor_of
from geonp.nn.process import Family, Sample

__all__ = ["Classifier", "GaussianHead", "KrigingHead", "LatentClassifier", "VarianceHead", "gaussian", "tail_of"]

N_RINGS = 4
"""Groups of context points by distance from the middle, whose misfit the correction sees."""

HOLD = 0.004
"""Weight, per point of the context, of the squared way from where scoring steps start, beside the information."""

N_INFORMATION = 64
"""Points of a context, spread over it, whose information stands for that of all."""

LONGEST_STEP = 1.0
"""Of a covariance parameter, in one scoring step."""

HEAVIEST_TAIL = 0.3
"""Bound of the inverse degrees of freedom: below it, 1.96 standard deviations hold 94.5 to 95.5 %."""


def tail_of(predicted: Distribution) -> Tensor:
    """Inverse degrees of freedom of Student distributions: 0 for normal ones."""
    return 1 / predicted.df if isinstance(predicted, StudentT) else torch.zeros_like(predicted.mean)


def gaussian(raw: Tensor, min_scale: float = 0.0) -> Normal:
    """``(..., 2 d_y)`` to a normal distribution: ``scale = min_scale + (1 - min_scale) softplus(raw)``, in float32."""
    loc, raw = raw.float().chunk(2, -1)
    return Normal(loc, min_scale + (1 - min_scale) * F.softplus(raw), validate_args=False)


class Classifier(nn.Module):
    """A model of numbers as one of classes: the means that it predicts are the logits of its `d_y` classes.

    Context values are one-hot, ``(batch, n_c, d_y)``. Of a mixture, the probabilities are averaged. The network is
    built for numbers, with a scale beside each mean, which nothing reads here: some hundred weights.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Categorical:
        """Predict the classes of targets ``(batch, n_t)`` from context: see :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        return classes(self.network(xc, yc, xt, context_mask))


class LatentClassifier(Classifier):
    """A :class:`Classifier` whose network has a latent variable, and so a bound to be trained by."""

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Negative evidence bound a target, as of :class:`geonp.nn.zoo.cnp.NP`; `yt` are classes, ``(batch, n_t)``."""
        bound: Tensor = self.network.bound(  # type: ignore[operator]
            (xc, yc), (xt, F.one_hot(yt, yc.shape[-1]).to(yc)), lambda found: classes(found).log_prob(yt), context_mask
        )
        return bound


def classes(predicted: Distribution) -> Categorical:
    """The classes whose logits are the means that a network predicts, ``(..., d_y)``."""
    if isinstance(predicted, MixtureSameFamily):
        chances = predicted.component_distribution.mean.float().log_softmax(-2)
        return Categorical(logits=chances.logsumexp(-1), validate_args=False)
    return Categorical(logits=predicted.mean.float(), validate_args=False)


class GaussianHead(nn.Module):
    """The paper's head: an MLP to mean and raw scale, ``scale = min_scale + (1 - min_scale) softplus(raw)``."""

    def __init__(self, dim: int, hidden: int, d_y: int, min_scale: float = 0.0) -> None:
        super().__init__()
        self.mlp = MLP(dim, hidden, dim, 2 * d_y)
        self.min_scale = min_scale

    def forward(self, targets: Tensor) -> Normal:
        """Features ``(batch, n_t, dim)`` to a normal distribution of shape ``(batch, n_t, d_y)``."""
        return gaussian(self.mlp(targets), self.min_scale)


class VarianceHead(nn.Module):
    """The head of the TE-TNP paper: an MLP to mean and raw variance, ``scale = min_scale + sqrt(softplus(raw))``."""

    def __init__(self, dim: int, d_y: int, hidden_layers: int = 2, min_scale: float = 0.0) -> None:
        super().__init__()
        self.mlp = MLP(*[dim] * (hidden_layers + 1), 2 * d_y, relu=True)
        self.min_scale = min_scale

    def forward(self, raw: Tensor) -> Normal:
        """Outputs ``(batch, n_t, 2 d_y)`` of `mlp` to a normal distribution of shape ``(batch, n_t, d_y)``."""
        loc, raw = raw.float().chunk(2, -1)
        # the root of nothing would have an infinite slope
        return Normal(loc, self.min_scale + F.softplus(raw).clamp_min(1e-12).sqrt(), validate_args=False)


class KrigingHead(nn.Module):
    """Kriging with a covariance that the network reads from the data, and the network's correction of it.

    The averaged features of the context and statistics of the whole of it (its variogram) give the covariance of a
    local Gaussian process: two anisotropic kernels, each a mixture of Matern 1/2, 3/2, 5/2 and 7/2 and of a Gaussian,
    plus an unknown constant (as in ordinary kriging). Each point's own features give its amplitude and its noise, so
    that the process need be neither stationary nor equally noisy. `refine_steps` learned steps along the gradient of
    the likelihood of `n_refine` context points sharpen it: those nearest to the middle and, in every second step, as
    many spread over all of the context; `whole_steps` more of them see all of it. `scoring_steps` then climb the
    likelihood of the whole context by Fisher scoring, held back by a prior of the parameters that each learns: around
    where they started, until it is trained. The process is then conditioned on the context exactly, in float64. A last
    MLP shifts the conditional mean by a multiple of the conditional standard deviation, rescales the latter and makes
    the distribution a Student one: what a Gaussian process can't express (edges, skewed or quantised values). It also
    sees how well the process predicts each context point from the others, and how well from those farther out only, as
    it has to in a gap.

    Deviation from the paper, whose head is :class:`GaussianHead`: softmax attention averages, and interpolation of
    smooth fields needs the precise cancelling weights of a linear solve. It costs ``2 n_c^3 / 3 + n_c^2 n_t``
    multiplications, so it is for a bounded context. The prediction includes the noise of a new measurement.
    """

    noise_floor = 1e-8  # of the variance of the standardised context: the rounding of float32 values is below

    def __init__(
        self,
        dim: int,
        d_x: int,
        d_y: int,
        hidden: int,
        n_summary: int = 0,
        n_refine: int = 128,
        refine_steps: int = 3,
        whole_steps: int = 0,
        scoring_steps: int = 0,
        lengths: tuple[float, ...] = (3.0, 24.0),
    ) -> None:
        super().__init__()
        self.n_refine, self.refine_steps = n_refine, refine_steps
        self.family = Family(d_x, tuple(lengths), self.noise_floor)
        n_raw = self.family.size
        self.covariance = MLP(dim + n_summary, hidden, n_raw)
        self.refinements = nn.ModuleList(
            MLP(dim + n_summary + 2 * n_raw + 1, hidden, n_raw) for _ in range(refine_steps + whole_steps)
        )
        self.priors = nn.ModuleList(
            MLP(dim + n_summary + 2 * n_raw + 1, hidden, 2 * n_raw) for _ in range(scoring_steps)
        )
        self.local = MLP(dim, 2)
        self.correction = MLP(dim + 1 + (5 + N_RINGS) * d_y, hidden, 3 * d_y)
        for mlp in (self.covariance, *self.refinements, *self.priors, self.local, self.correction):
            # the last weights and biases: all tasks start with the same covariance and no correction
            nn.init.normal_(list(mlp.parameters())[-2], std=1e-3)

    def forward(
        self, targets: Tensor, context: Tensor, xt: Tensor, xc: Tensor, yc: Tensor, mask: Tensor, summary: Tensor
    ) -> StudentT:
        """Features, locations, standardised values and mask of the context to the distribution of the targets.

        ``(batch, n_t, dim), (batch, n_c, dim), (batch, n_t, d_x), (batch, n_c, d_x), (batch, n_c, d_y), (batch, n_c)``
        and ``(batch, n_summary)`` to a Student distribution of shape ``(batch, n_t, d_y)``. Masked values must be
        finite.
        """
        # Rounding an amplitude to bfloat16 would perturb the values it multiplies: the head works in float32.
        with torch.autocast(targets.device.type, enabled=False):
            return self._predict(targets.float(), context.float(), xt, xc, yc, mask, summary)

    def _predict(
        self, targets: Tensor, context: Tensor, xt: Tensor, xc: Tensor, yc: Tensor, mask: Tensor, summary: Tensor
    ) -> StudentT:
        n_t = targets.shape[1]
        order = _inwards(xc, mask)[..., None]
        context, xc, yc = (t.gather(1, order.expand(-1, -1, t.shape[-1])) for t in (context, xc, yc))
        mask = mask.gather(1, order[..., 0])
        pooled = torch.cat([masked_mean(context, mask), summary], -1)
        local = self.local(torch.cat([targets, context], 1))
        raw = self.covariance(pooled)
        whole = Sample(local[:, n_t:].detach(), xc, yc, mask)
        parts = [_part(self.n_refine, whole, spread=spread) for spread in (False, True)]
        for i, refinement in enumerate(self.refinements):
            raw = raw + self._step(refinement, raw, pooled, parts[i % 2] if i < self.refine_steps else whole)
        raw = self._climb(raw, pooled, whole)
        kernel, prior, noise = self.family.covariance(raw, local, local[:, n_t:], torch.cat([xt, xc], 1), xc)
        loc, var, surprise, innovation = _condition(kernel, prior[:, :n_t], noise[:, n_t:], yc, mask)
        scale = (var + noise[:, :n_t].float()).sqrt()[..., None]
        misfit = [*_misfit(kernel[:, :n_t].float(), surprise, mask), _by_ring(innovation, mask).expand(-1, n_t, -1)]
        features = torch.cat([targets, scale.log(), loc, *misfit], -1)
        shift, log_ratio, tail = self.correction(features).chunk(3, -1)
        tail = HEAVIEST_TAIL * torch.sigmoid(tail)
        deviation = scale * torch.exp(3.0 * torch.tanh(log_ratio / 3.0))
        # a Student distribution's own scale is below its standard deviation
        return StudentT(1 / tail, loc + scale * shift, deviation * (1 - 2 * tail).sqrt(), validate_args=False)

    def _step(self, refinement: nn.Module, raw: Tensor, pooled: Tensor, sample: Sample) -> Tensor:
        """A learned step of the covariance parameters that sees the gradient of the log likelihood at `raw`."""
        likelihood, gradient = self.family.slope(self.family.linearised(raw), sample)
        step: Tensor = refinement(_seen(pooled, raw, likelihood, gradient.float()))
        return step

    def _climb(self, raw: Tensor, pooled: Tensor, whole: Sample) -> Tensor:
        """Fisher scoring from `raw`, each step with a normal prior of its own; the information is that of some points.

        Gradients flow to `raw` and to the priors, whose centres are relative to where the first step started.
        """
        raw = start = raw.double()
        some = _part(N_INFORMATION, whole, spread=True)
        for prior in self.priors:
            here = self.family.linearised(raw)
            likelihood, gradient = self.family.slope(here, whole)
            centre, strength = prior(_seen(pooled, raw.float(), likelihood, gradient.float())).double().chunk(2, -1)
            hold = HOLD * torch.exp(3.0 * torch.tanh(strength / 3.0))
            known = self.family.information(here, some)
            found = known.isfinite().all(-1).all(-1)[:, None] & gradient.isfinite().all(-1, keepdim=True)
            # where a matrix was singular, only the prior is known
            known, gradient = torch.where(found[..., None], known, 0.0), torch.where(found, gradient, 0.0)
            pull = hold * (centre + (start - raw).detach())
            step = torch.linalg.solve(known + torch.diag_embed(hold), gradient + pull)
            raw = raw + step * (LONGEST_STEP / step.abs().amax(1, keepdim=True).clamp_min(LONGEST_STEP))
        return raw.float()


def _part(n: int, whole: Sample, *, spread: bool) -> Sample:
    """The `n` innermost points of a sorted context, or as many spread over all of it."""
    mask = whole.mask
    stride = (mask.sum(1) / n).ceil().clamp_min(1).long() if spread else mask.new_ones(len(mask)).long()
    steps = torch.arange(min(n, mask.shape[1]), device=mask.device)
    place = mask.shape[1] - 1 - steps * stride[:, None]
    return whole.at(place.clamp_min(0), place >= 0)


def _seen(pooled: Tensor, raw: Tensor, likelihood: Tensor, gradient: Tensor) -> Tensor:
    """What a learned step knows: the context, the parameters, their log likelihood and its gradient."""
    return torch.cat([pooled, torch.asinh(10 * gradient), raw.detach(), likelihood[:, None]], -1)


def _condition(
    kernel: Tensor, prior: Tensor, noise: Tensor, yc: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Condition a Gaussian process on its context.

    `kernel` is ``(batch, n_t + n_c, n_c)``, the variance of the targets before conditioning `prior`.

    Returns
    -------
    tuple of Tensor
        Mean ``(batch, n_t, d_y)`` and variance ``(batch, n_t)`` of the targets, and the errors of predicting each
        context value from all others, and from those before it only, over their standard deviations,
        ``(batch, n_c, d_y)`` each.
    """
    n_t, n_c = prior.shape[1], mask.shape[1]
    factor = factor_of(kernel[:, n_t:], noise, mask)
    k_tc = kernel[:, :n_t] if bool(mask.all()) else torch.where(mask[:, None], kernel[:, :n_t], 0.0)
    identity = torch.eye(n_c, dtype=k_tc.dtype, device=k_tc.device).expand(k_tc.shape[0], -1, -1)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    weights, values = k_tc @ inverse.mT, inverse @ torch.where(mask[..., None], yc, 0.0).double()
    variance = (prior - weights.square().sum(-1)).clamp_min(0.0).float()
    # leave-one-out residuals from the inverse of the covariance, Rasmussen & Williams (2006), equation 5.12
    surprise = (inverse.mT @ values) / inverse.square().sum(1).sqrt()[..., None]
    return (weights @ values).float(), variance, surprise.float(), values.float()


def _inwards(x: Tensor, mask: Tensor) -> Tensor:
    """Indices that sort points ``(batch, n, d_x)`` from the farthest to the nearest to their middle, masked ones first.

    The middle is that of the context and not of the targets: what is asked must not change the answer. A lattice has
    many equal distances, whose order must not depend on rounding: the axes weigh slightly differently.
    """
    place = torch.where(mask[..., None], x, 0.0).double()
    place = place - masked_mean(place, mask)[:, None]
    axis = torch.arange(1, x.shape[-1] + 1, device=x.device) * math.sqrt(2)
    distance = (place.square() * (1 + 1e-4 * axis) + place * (1e-4 * axis.square())).sum(-1)
    return torch.where(mask, distance, torch.inf).argsort(dim=1, descending=True, stable=True)


def _by_ring(innovation: Tensor, mask: Tensor) -> Tensor:
    """Log mean square of `innovation` in each of the rings of a context that is sorted by distance, ``(batch, 1, n)``.

    Masked points come first and have none.
    """
    place = torch.cumsum(mask.long(), 1) * N_RINGS - 1
    ring = place.div(mask.sum(1, keepdim=True).clamp_min(1), rounding_mode="floor").clamp(0, N_RINGS - 1)
    member = F.one_hot(ring, N_RINGS).to(innovation) * mask[..., None]
    total = member.mT @ torch.where(mask[..., None], innovation.square(), 0.0)
    return torch.log(total / member.sum(1)[..., None].clamp_min(1) + 0.01).flatten(1)[:, None]


def _misfit(kernel: Tensor, surprise: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log mean size of `surprise` around each target (weighted by covariance) and overall, ``(batch, n_t, 2 d_y)``.

    Of the squares, and of the absolute values over the root of the former: the less, the heavier are the tails.
    """
    d_y = surprise.shape[-1]
    sizes = torch.where(mask[..., None], torch.cat([surprise.square(), surprise.abs()], -1), 0.0)
    weights = torch.where(mask[:, None], kernel, 0.0)
    near = (weights @ sizes) / weights.sum(-1, keepdim=True).clamp_min(1e-6)
    means = torch.stack([near, masked_mean(sizes, mask)[:, None].expand_as(near)])
    square, absolute = torch.log(means[..., :d_y] + 0.01), torch.log(means[..., d_y:] + 0.05)
    near, overall = torch.cat([square, 4 * (absolute - square / 2)], -1)
    return near, overall
