"""Heads: from features of the targets to a distribution of their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal, StudentT
from torch.nn import functional as F

from geonp.nn.layers import MLP, masked_mean
from geonp.nn.likelihood import Conditional, condition
from geonp.nn.nugget import with_nugget
from geonp.nn.observations import Observations, bounded_noise, outside_in_order, with_even_amplitude
from geonp.nn.process import CovarianceModel, LocalProcess, soft_clamp
from geonp.nn.residuals import residual_sizes, ring_sizes
from geonp.nn.scoring import SCORING, prior_of, scoring_step, step_inputs, with_gradient
from geonp.nn.smoothness import less_likely, smoother


def tail_of(predicted: Distribution) -> Tensor:
    """Inverse degrees of freedom of a Student distribution; 0 for a normal one."""
    return 1 / predicted.df if isinstance(predicted, StudentT) else torch.zeros_like(predicted.mean)


def gaussian(raw: Tensor, min_scale: float = 0.0) -> Normal:
    """Normal distribution from ``(..., 2 d_y)``: ``scale = min_scale + (1 - min_scale) softplus(raw)``, in float32."""
    loc, raw = raw.float().chunk(2, -1)
    return Normal(loc, min_scale + (1 - min_scale) * F.softplus(raw), validate_args=False)


class Classifier(nn.Module):
    """Classification with any model of numbers: its predicted means are the logits of `d_y` classes.

    Context values are one-hot, ``(batch, n_c, d_y)``. The probabilities of a mixture's components are averaged. The
    scales that the network also predicts are not used.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Categorical:
        """Predict the classes of the targets, ``(batch, n_t)``: see :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        return _categorical(self.network(xc, yc, xt, context_mask))


class LatentClassifier(Classifier):
    """A :class:`Classifier` whose network has a latent variable and is trained by an evidence bound."""

    def loss(self, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None) -> Tensor:
        """Negative evidence bound per target, see :meth:`geonp.nn.zoo.cnp.NP.bound`; classes `yt` ``(batch, n_t)``."""
        targets = xt, F.one_hot(yt, yc.shape[-1]).to(yc)
        bound: Tensor = self.network.bound(  # type: ignore[operator]
            (xc, yc), targets, lambda predicted: _categorical(predicted).log_prob(yt), context_mask
        )
        return bound


def _categorical(predicted: Distribution) -> Categorical:
    """Classes whose logits are the predicted means, ``(..., d_y)``."""
    if isinstance(predicted, MixtureSameFamily):
        log_probabilities = predicted.component_distribution.mean.float().log_softmax(-2)
        return Categorical(logits=log_probabilities.logsumexp(-1), validate_args=False)
    return Categorical(logits=predicted.mean.float(), validate_args=False)


class GaussianHead(nn.Module):
    """The head of the TNP-KR papers: an MLP to mean and raw scale, see :func:`gaussian`."""

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
        # the square root has an infinite slope at zero
        return Normal(loc, self.min_scale + F.softplus(raw).clamp_min(1e-12).sqrt(), validate_args=False)


class Kriged(StudentT):
    """A prediction of a kriging head.

    Attributes
    ----------
    process : callable
        Gives the Gaussian process at targets and context before the correction.
    log_density : Tensor
        Log density of each context value given all others, ``(batch, n_c)``, in the order of
        :func:`~geonp.nn.observations.outside_in_order`.
    """

    def __init__(self, predicted: StudentT, process: Callable[[], LocalProcess], log_density: Tensor) -> None:
        super().__init__(predicted.df, predicted.loc, predicted.scale, validate_args=False)
        self.process, self.log_density = process, log_density


@dataclass(frozen=True)
class KrigingSettings:
    """Fixed numbers of :class:`KrigingHead`. Weights are trained with them: other values need other weights."""

    n_rings: int = 4
    """Rings of context points by distance from the centroid, whose residuals the correction reads."""
    max_log_ratio: float = 3.0
    """Bound of the learned log factor of the predicted scale."""
    most_read: float = 20.0
    """Largest conditional mean, in standard deviations of the context, and log scale that the correction reads."""
    min_tail: float = 1e-6
    """Least inverse degrees of freedom."""
    max_tail: float = 0.3
    """Bound of the inverse degrees of freedom: below it, 1.96 standard deviations contain 94.5 to 95.5 %."""
    most_tail: float = 0.4
    """The same for few context points: below it, they contain at most 96.8 %."""
    n_trained: int = 256
    """Context points that the correction was trained with. It knows how uncertain the variance of so many is."""


KRIGING = KrigingSettings()
"""The settings of all kriging heads."""


class KrigingHead(nn.Module):
    """Local kriging with a covariance that the network reads from the context, and a learned correction.

    1. An MLP of the mean context features and of `summary`, the variogram of the whole context, gives the raw
       parameters of a :class:`~geonp.nn.process.CovarianceModel`: two anisotropic Matern mixtures, an unknown constant
       as in ordinary kriging, and a noise variance. A linear layer of each point's features gives its amplitude and
       noise relative to these, so that the process may be non-stationary and heteroscedastic.
    2. `refine_steps` learned steps read the score, the gradient of the log likelihood, of `n_refine` context points: of
       those nearest to the centroid and, in every second step, of as many from all of the context. `whole_steps`
       further ones read the score of the whole context.
    3. `scoring_steps` steps of Fisher scoring maximise the likelihood of the whole context times a normal prior, which
       each step learns and which starts centred on the result of 2. `thinned_steps` steps with the prior of the first
       come before them, on `n_refine` points thinned from the context, at about a fifth of the cost.
    4. The process is conditioned on the context exactly, in float64.
    5. A last MLP shifts the conditional mean by a multiple of the standard deviation, rescales the latter and sets the
       degrees of freedom of a Student distribution, for what a Gaussian process can't express: edges, skewed or
       quantised values. It also reads the leave-one-out residuals around the target, and in rings the residuals of
       predictions from points farther out only, as in a gap.

    Deviation from the TNP-KR papers, whose head is :class:`GaussianHead`: softmax attention averages, and interpolating
    smooth fields needs the exact, partly negative weights of a linear solve. A solve costs ``2 n_c^3 / 3 + n_c^2 n_t``
    multiplications, so the head is for a bounded context. The prediction includes the noise of a new measurement.

    With `outliers`, a point is noisier than the process only where its leave-one-out residual contradicts the others:
    the network alone takes isolated peaks for noise. Each likelihood of the whole context looks for them.

    `nearby` is a correction for small gaps, if the model has one (:class:`~geonp.nn.nearby.NearbyCorrection`).

    Related work (amortised kriging, neural Vecchia approximations, BSA-TNP) is cited in ``docs/kriging-head.md``.
    """

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
        self.outliers, self.thinned_steps = False, 0
        self.nearby: nn.Module | None = None
        self.model = CovarianceModel(d_x, tuple(lengths))
        n_raw = self.model.n_raw
        self.covariance = MLP(dim + n_summary, hidden, n_raw)
        self.refinements = nn.ModuleList(
            MLP(dim + n_summary + 2 * n_raw + 1, hidden, n_raw) for _ in range(refine_steps + whole_steps)
        )
        self.priors = nn.ModuleList(
            MLP(dim + n_summary + 2 * n_raw + 1, hidden, 2 * n_raw) for _ in range(scoring_steps)
        )
        self.local = MLP(dim, 2)
        self.correction = MLP(dim + 1 + (5 + KRIGING.n_rings) * d_y, hidden, 3 * d_y)
        for mlp in (self.covariance, *self.refinements, *self.priors, self.local, self.correction):
            # small last weights: all tasks start with the same covariance and without a correction
            nn.init.normal_(list(mlp.parameters())[-2], std=1e-3)

    def forward(
        self,
        targets: Tensor,
        context: Tensor,
        xt: Tensor,
        xc: Tensor,
        yc: Tensor,
        mask: Tensor,
        summary: Tensor,
        scattered: bool = False,
    ) -> Kriged:
        """Predict new measurements at the targets.

        Parameters
        ----------
        targets, context : Tensor
            Features ``(batch, n_t, dim)`` and ``(batch, n_c, dim)``.
        xt, xc : Tensor
            Locations ``(batch, n_t, d_x)`` and ``(batch, n_c, d_x)``.
        yc, mask : Tensor
            Standardised context values ``(batch, n_c, d_y)``, finite also where masked, and the mask ``(batch, n_c)``,
            True where observed.
        summary : Tensor
            Statistics of the whole context, ``(batch, n_summary)``.
        scattered : bool
            Whether points may be far closer to each other than the cells of a raster. If there are scoring steps, noise
            is looked for before them that the network does not see (:func:`~geonp.nn.nugget.with_nugget`).

        Returns
        -------
        Kriged
            A Student distribution of shape ``(batch, n_t, d_y)``.
        """
        # float32 also under autocast: in bfloat16 the rounding error of an amplitude would perturb the values
        with torch.autocast(targets.device.type, enabled=False):
            targets, context = targets.float(), context.float()
            n_t = targets.shape[1]
            order = outside_in_order(xc, mask)[..., None]
            context, xc, yc = (t.gather(1, order.expand(-1, -1, t.shape[-1])) for t in (context, xc, yc))
            mask = mask.gather(1, order[..., 0])
            pooled = torch.cat([masked_mean(context, mask), summary], -1)
            local = self.local(torch.cat([targets, context], 1))
            observations = Observations(local[:, n_t:].detach(), xc, yc, mask, trusted_mask=self._trusted(mask))
            raw, observations = self._raw_parameters(pooled, observations)
            raw, observations = self.fisher_scoring(raw, pooled, observations, scattered)
            local = with_even_amplitude(local, local[:, n_t:], mask, observations.even_mask)
            local = bounded_noise(local, with_targets(observations.trusted_mask, n_t))
            kernel, prior, noise = self.model.covariance(raw, local, local[:, n_t:], torch.cat([xt, xc], 1), xc)
            given = condition(kernel, prior[:, :n_t], noise[:, n_t:], yc, mask)
            out = self._corrected(targets, given, given.mean, kernel[:, :n_t].float(), noise[:, :n_t].float(), mask)
            process = partial(self.model.process, raw, unsorted(local, order[..., 0]))
            return Kriged(out, process, log_density_of(given))

    def _corrected(
        self,
        targets: Tensor,
        given: Conditional,
        mean: Tensor,
        kernel: Tensor,
        noise: Tensor,
        mask: Tensor,
        n_used: Tensor | None = None,
    ) -> StudentT:
        """The learned correction; `mean` is the conditional mean that it reads, `kernel` and `noise` the targets'.

        `n_used` context points ``(batch,)`` tell nothing about the variance, as effects were fitted to them.
        """
        scale = (given.variance + noise).sqrt()[..., None]
        near, overall = residual_sizes(kernel, given.leave_one_out, mask)
        rings = ring_sizes(given.innovation, mask, KRIGING.n_rings).expand(-1, targets.shape[1], -1)
        # far beyond the covariates of the context both may be of any size
        read = [scale.log().clamp_max(KRIGING.most_read), mean.clamp(-KRIGING.most_read, KRIGING.most_read)]
        features = torch.cat([targets, *read, near, overall, rings], -1)
        shift, log_ratio, tail = self.correction(features).chunk(3, -1)
        # positive: the variance of infinite degrees of freedom would be NaN
        tail = (KRIGING.max_tail * torch.sigmoid(tail)).clamp_min(KRIGING.min_tail)
        deviation = scale * torch.exp(soft_clamp(log_ratio, KRIGING.max_log_ratio))
        n, n_trained = mask.sum(1), KRIGING.n_trained
        if n_used is not None:
            deviation = deviation * variance_factor(n, n_used).sqrt().to(deviation)[:, None, None]
            n = n - n_used
        # the scale parameter of a Student distribution is smaller than its standard deviation
        parameter = deviation * (1 - 2 * tail).sqrt()
        # the variance of n points has n - 1 degrees of freedom
        few = 1 / (n - 1).clamp_min(1) - 1 / (n_trained - 1)
        tail = (tail + few.clamp_min(0.0).to(tail)[:, None, None]).clamp_max(KRIGING.most_tail)
        return StudentT(1 / tail, given.mean + scale * shift, parameter, validate_args=False)

    def _trusted(self, mask: Tensor) -> Tensor | None:
        """The points that are trusted at first: all, if the head looks for outliers."""
        return torch.ones_like(mask) if self.outliers else None

    def _raw_parameters(self, pooled: Tensor, context: Observations) -> tuple[Tensor, Observations]:
        """Raw covariance parameters ``(batch, n_raw)``, predicted and refined, and the context with outliers marked."""
        raw: Tensor = self.covariance(pooled)
        parts = context.nearest(self.n_refine), context.thinned(self.n_refine)
        for i, refinement in enumerate(self.refinements):
            part = parts[i % 2] if i < self.refine_steps else context
            likelihood, score, trusted_mask = self.model.score(self.model.linearise(raw), part)
            raw = raw + refinement(step_inputs(pooled, raw, likelihood, score.float()))
            if part is context:
                context = context.trusting(trusted_mask)
        return raw, context

    @property
    def scoring(self) -> list[tuple[int, bool]]:
        """Of each scoring step the index of its prior, and whether it reads only a part of the context."""
        return [(0, True)] * self.thinned_steps + [(i, False) for i in range(len(self.priors))]

    def fisher_scoring(
        self, raw: Tensor, pooled: Tensor, context: Observations, scattered: bool = False
    ) -> tuple[Tensor, Observations]:
        """Sharpen raw covariance parameters by regularised Fisher scoring, after searches for what it does not find.

        These are :func:`~geonp.nn.smoothness.smoother` and, if `scattered`, :func:`~geonp.nn.nugget.with_nugget`.
        A step solves ``(I + P) step = score + P (centre + start - raw)`` with the Fisher information I of
        :attr:`KrigingSettings.n_information` points and the learned precision P and centre of the prior. Gradients flow
        to `raw` and to the priors.

        Parameters
        ----------
        raw : Tensor
            Start, ``(batch, n_raw)``.
        pooled : Tensor
            Mean context features and summary, ``(batch, dim + n_summary)``.
        context : Observations
            The whole context, in :func:`~geonp.nn.observations.outside_in_order`.
        scattered : bool
            As of :meth:`forward`.

        Returns
        -------
        tuple
            Raw parameters ``(batch, n_raw)``, and the context with outliers marked.
        """
        if not self.priors:
            return raw, context
        raw = raw.double()
        found, smooth_mask, context = smoother(self.model, raw, context, self.n_refine, self.model.fields)
        if scattered:
            found = with_nugget(self.model, found, context, self.model.fields(found, context))
        raw = with_gradient(found, raw)
        start, first = raw, context
        part, few = context.thinned(self.n_refine), context.thinned(SCORING.n_information)
        for i, is_thinned in self.scoring:
            at = self.model.linearise(raw)
            likelihood, score, trusted_mask = self.model.score(at, part if is_thinned else context)
            outputs = self.priors[i](step_inputs(pooled, raw.float(), likelihood, score.float()))
            pull, precision = prior_of(outputs, (start - raw).detach())
            raw = raw + scoring_step(self.model.fisher_information(at, few), score, pull, precision)
            if not is_thinned:
                context = context.trusting(trusted_mask)
                few = context.thinned(SCORING.n_information)
        fits = (raw, context, self.model.fields), (start, first, self.model.fields)
        undone_mask = less_likely(self.model, *fits, smooth_mask)[:, None]
        return torch.where(undone_mask, start, raw).float(), context.trusting_as(first, undone_mask)


def variance_factor(n: Tensor, n_used: Tensor) -> Tensor:
    """Factor of a variance about which `n_used` of `n` context points tell nothing, relative to that in training."""
    n_trained = KRIGING.n_trained
    most = n.clamp_max(n_trained)
    return most / (most - n_used) * (n_trained - n_used) / n_trained


def log_density_of(given: Conditional, factor: Tensor | None = None) -> Tensor:
    """Log density of each context value given all others ``(batch, n_c)``, without its constant.

    Their variances are multiplied by a `factor` ``(batch,)``.
    """
    more = given.precision.new_ones(1, 1) if factor is None else factor[:, None]
    return 0.5 * ((given.precision / more).log() - given.leave_one_out.double().square().mean(-1) / more)


def with_targets(trusted_mask: Tensor | None, n_t: int) -> Tensor | None:
    """The mask of targets, which are all trusted, and context."""
    return None if trusted_mask is None else F.pad(trusted_mask, (n_t, 0), value=True)


def unsorted(points: Tensor, order: Tensor) -> Tensor:
    """Points ``(batch, n_t + n_c, k)`` with the context in its own order, from one in the given `order`."""
    n_t = points.shape[1] - order.shape[1]
    back = order.argsort(1)[..., None].expand(-1, -1, points.shape[-1])
    return torch.cat([points[:, :n_t], points[:, n_t:].gather(1, back)], 1)
