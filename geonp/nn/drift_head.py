"""Kriging with covariates: a drift whose variances are chosen by the likelihood, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import StudentT
from torch.nn import functional as F

from geonp.nn.drift import N_TERMS, Columns, Covariates, Variances, standardise_covariates
from geonp.nn.drift_process import DriftModel, DriftObservations
from geonp.nn.heads import KRIGING, Kriged, KrigingHead, log_density_of, unsorted, variance_factor, with_targets
from geonp.nn.layers import MLP, masked_mean
from geonp.nn.likelihood import condition, effective_number
from geonp.nn.nugget import with_nugget, without_known_errors
from geonp.nn.observations import Observations, bounded_noise, outside_in_order, with_even_amplitude
from geonp.nn.scoring import SCORING, drift_scoring_step, prior_of, step_inputs, with_gradient
from geonp.nn.smoothness import Fields, less_likely, smoother


@dataclass(frozen=True)
class DriftSettings:
    """Fixed numbers of :class:`DriftKrigingHead`. Weights are trained with them."""

    n_rough: int = 128
    """Context points, thinned from all, that the rough drift is estimated from."""
    n_rough_information: int = 32
    """Points whose Fisher information represents these."""
    rough_steps: int = 4
    """Scoring steps of the rough drift. With three, white noise beside SST costs 1.2 % of CRPS instead of 0.9 %."""
    start: tuple[float, float, float] = (-7.0, -8.0, -9.0)
    """Log variances of slope, curve and varying slope before the first step. Steps up may be large; a step down from a
    variance that is much too large is about one: from -1, white noise beside a smooth field cost up to 5 % of CRPS."""
    prior_precision: float = 0.0002
    """Precision of the prior of a log variance, per context point, before the learned factor. The information on the
    variance of one slope is at most 0.5 in total."""
    accurate: float = 0.25
    """Share of the observations, those with the smallest known errors, that others are compared with."""
    inaccurate: float = 4.0
    """Known error variance, relative to the largest of these, above which the network does not see an observation."""
    small_error: float = 0.1
    """Known error variance, relative to the variance of the context, below which it sees all observations."""
    least_seen: int = 32
    """It sees all observations if fewer are left."""
    used: float = 2.0
    """Context points that each effective parameter of the drift uses up: one for its effect, one for the variances that
    the likelihood chose. With none, 79 % of values were within the 95 % intervals from 20 points with 8 covariates."""
    most_used: float = 0.8
    """Largest share of the context points that is used up."""
    n_point_features: int = 5
    """Features of a point that its token gets, see :attr:`Prepared.embedding`."""
    n_covariate_features: int = 4 + 2 * N_TERMS
    """Features of a covariate that the priors of its variances read, see :func:`_covariate_features`."""


DRIFT = DriftSettings()
"""The settings of all drift kriging heads."""


@dataclass(frozen=True)
class Prepared:
    """A context without its rough drift, in units of the standard deviation of the remainder.

    Attributes
    ----------
    remainder, values : Tensor
        Context values without the rough drift, standardised, and with it in the same units, ``(batch, n_c, d_y)``.
    rough : Tensor
        Rough drift of the targets in these units, ``(batch, n_t, d_y)``.
    level, scale : Tensor
        ``(batch, 1, d_y)`` and ``(batch, 1, 1)``: values in the original units are ``level + scale * values``.
    context, targets : Columns
        Standardised covariates.
    used_mask : Tensor
        ``(batch, p)``: covariates that vary in the context.
    raw_drift : Tensor
        Log variances of the drift in these units, ``(batch, p, 3)``.
    effect : Tensor
        Mean square of the effect of each covariate in these units, ``(batch, p)``.
    error_variance : Tensor
        Known error variance of each context value in these units, ``(batch, n_c)``.
    embedding : Tensor
        Added to the embeddings of targets and context, ``(batch, n_t + n_c, dim)``: a function of the rough drift, its
        prior variance, the variance due to errors of covariates and varying slopes, the known error variance, and the
        share of the standard deviation that remains. Zero without covariates and known errors.
    """

    remainder: Tensor
    values: Tensor
    rough: Tensor
    level: Tensor
    scale: Tensor
    context: Columns
    targets: Columns
    used_mask: Tensor
    raw_drift: Tensor
    effect: Tensor
    error_variance: Tensor
    embedding: Tensor

    def seen_mask(self, mask: Tensor, estimated: bool) -> Tensor:
        """Observations that the network sees: not those with much larger known errors than others, ``(batch, n_c)``.

        It would take their errors for a field of a short length. The process is conditioned on all of them. It sees all
        if those at bounds are `estimated`, with errors: without them it would not see where the field is at a bound.
        """
        if estimated:
            return mask
        known = torch.where(mask, self.error_variance, torch.nan)
        most = (DRIFT.inaccurate * torch.nanquantile(known, DRIFT.accurate, 1)).clamp_min(DRIFT.small_error)
        seen_mask = known <= most[:, None]
        return torch.where(seen_mask.sum(1, keepdim=True) >= DRIFT.least_seen, seen_mask, mask)


class DriftKrigingHead(KrigingHead):
    """:class:`~geonp.nn.heads.KrigingHead` with covariates and known errors of the observations.

    Universal kriging with normal priors of the effects (Omre and Halvorsen, Mathematical Geology 21, 1989). Their
    variances (:class:`~geonp.nn.drift.Variances`) are parameters of the covariance like all others.

    1. :meth:`prepare` estimates a rough drift by some steps of Fisher scoring from a fixed covariance, on a part of
       the context.
    2. The network reads the remainder, as it reads a field without covariates, and predicts and refines a covariance.
    3. :meth:`drift_scoring` sharpens the parameters of covariance and drift together, by the likelihood of the values.
       The steps of the variances have learned priors, which are the same function of the features of each covariate. So
       the order of the covariates does not matter, nor do signs, units and offsets.
    4. The process is conditioned on the values, so the standard error includes the uncertainty of the drift.

    Without covariates and errors it is a :class:`~geonp.nn.heads.KrigingHead`, whose weights it can start from. See
    ``docs/drift.md``.
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
        super().__init__(dim, d_x, d_y, hidden, n_summary, n_refine, refine_steps, whole_steps, scoring_steps, lengths)
        self.model: DriftModel = DriftModel(d_x, tuple(lengths))
        n = DRIFT.n_covariate_features
        self.rough_prior = MLP(n, hidden // 2, 2 * N_TERMS)
        self.drift_priors = nn.ModuleList(MLP(dim + n_summary + n, hidden, 2 * N_TERMS) for _ in range(scoring_steps))
        self.covariate_embedding = MLP(DRIFT.n_point_features, hidden // 2, dim)
        for mlp in (self.rough_prior, *self.drift_priors, self.covariate_embedding):
            # zero last weights: untrained, the likelihood alone decides
            nn.init.zeros_(list(mlp.parameters())[-2])

    def prepare(
        self, xc: Tensor, yc: Tensor, mask: Tensor, n_t: int, covariates: Covariates | None, errors: Tensor | None
    ) -> Prepared:
        """Estimate a rough drift and subtract it from the context, for `n_t` targets.

        The context is as in :meth:`drift_forward`; its `errors` are known standard errors ``(batch, n_c)``.
        """
        with torch.autocast(xc.device.type, enabled=False):
            if covariates is None:
                covariates = Covariates(xc.new_zeros(*xc.shape[:2], 0), xc.new_zeros(len(xc), n_t, 0))
            context, targets, used_mask = standardise_covariates(covariates, mask)
            error_variance = torch.zeros_like(mask, dtype=torch.float64)
            if errors is not None:
                error_variance = torch.where(mask, errors, 0.0).double().square()
            local = xc.new_zeros(*xc.shape[:2], 2)
            observations = DriftObservations(local, xc, yc, mask, context, error_variance=error_variance)
            rough, raw_drift, effect = self._rough(observations, targets, used_mask)
            remainder = torch.where(mask[..., None], yc - rough[:, n_t:], 0.0)
            level = masked_mean(remainder, mask)[:, None]
            scale = masked_mean((remainder - level).square(), mask).mean(-1)[:, None, None].sqrt().clamp_min(1e-6)
            before = masked_mean(yc.square(), mask).mean(-1)[:, None].clamp_min(1e-12).sqrt()
            # a field without covariates stays as it is, and so does a constant one
            active_mask = (used_mask.any(1) & (before[:, 0] > 1e-6))[:, None, None]
            level, scale = torch.where(active_mask, level, 0.0), torch.where(active_mask, scale, 1.0)
            raw_drift, square = raw_drift - 2 * scale.log(), scale[..., 0].square()
            effect, error_variance = effect / square, error_variance / square
            variances = Variances.of(raw_drift.detach(), effect, torch.ones_like(square))
            spatial, drift = variances.at(targets.joined(context))
            features = [
                torch.asinh(rough.mean(-1) / scale[..., 0]),
                torch.log1p(drift),
                torch.log1p(spatial),
                torch.log1p(10 * torch.cat([error_variance.new_zeros(len(xc), n_t), error_variance], 1)),
                (scale[..., 0] / before).log().expand_as(drift),
            ]
            active_mask = active_mask | (error_variance > 0).any(1)[:, None, None]
            return Prepared(
                torch.where(mask[..., None], (remainder - level) / scale, 0.0).to(yc),
                torch.where(mask[..., None], (yc - level) / scale, 0.0).to(yc),
                (rough[:, :n_t] / scale).to(yc),
                level.to(yc),
                scale.to(yc),
                context,
                targets,
                used_mask,
                raw_drift,
                effect,
                error_variance,
                torch.where(active_mask, self.covariate_embedding(torch.stack(features, -1).to(yc)), 0.0),
            )

    def drift_forward(
        self,
        targets: Tensor,
        context: Tensor,
        xt: Tensor,
        xc: Tensor,
        mask: Tensor,
        summary: Tensor,
        prepared: Prepared,
        scattered: bool = False,
    ) -> Kriged:
        """Predict new measurements at the targets from features that read ``prepared.remainder``.

        The other arguments and the result are those of :meth:`~geonp.nn.heads.KrigingHead.forward`.
        """
        with torch.autocast(targets.device.type, enabled=False):
            targets, context, n_t = targets.float(), context.float(), targets.shape[1]
            order = outside_in_order(xc, mask)
            context, xc, remainder, values = (
                t.gather(1, order[..., None].expand(-1, -1, t.shape[-1]))
                for t in (context, xc, prepared.remainder, prepared.values)
            )
            mask, error_variance = mask.gather(1, order), prepared.error_variance.gather(1, order)
            pooled = torch.cat([masked_mean(context, mask), summary], -1)
            local = self.local(torch.cat([targets, context], 1))
            known = local[:, n_t:].detach(), xc
            start = Observations(
                *known, remainder, mask, trusted_mask=self._trusted(mask), error_variance=error_variance
            )
            raw, start = self._raw_parameters(pooled, start)
            columns, trusted_mask = prepared.context.at(order), start.trusted_mask
            observations = DriftObservations(
                *known, values, mask, columns, trusted_mask=trusted_mask, error_variance=error_variance
            )
            raw, raw_drift, observations = self.drift_scoring(raw, prepared, pooled, observations, scattered)
            local = with_even_amplitude(local, local[:, n_t:], mask, observations.even_mask)
            local = bounded_noise(local, with_targets(observations.trusted_mask, n_t))
            variances = Variances.of(raw_drift, *self.model.scale(prepared.effect, raw))
            kernel, prior, noise = self.model.drift_covariance(
                raw,
                variances,
                (local, local[:, n_t:]),
                (torch.cat([xt, xc], 1), xc),
                (prepared.targets.joined(columns), columns),
            )
            given = condition(kernel, prior[:, :n_t], noise[:, n_t:] + error_variance, values, mask)
            # the drift of two points may be negatively correlated: they are no neighbours then
            near = kernel[:, :n_t].float().clamp_min(0.0)
            mean = given.mean - prepared.rough
            drift = variances.drift(columns, columns)
            n_used = self._n_used(kernel[:, n_t:], drift, noise[:, n_t:] + error_variance, mask)
            out = self._corrected(targets, given, mean, near, noise[:, :n_t].float(), mask, n_used)
            level, scale = prepared.level, prepared.scale
            every = prepared.targets.joined(prepared.context)
            errors = F.pad(prepared.error_variance, (n_t, 0))
            process = partial(self.model.drift_process, raw, variances, unsorted(local, order), every, errors)
            factor = None if n_used is None else variance_factor(mask.sum(1), n_used)
            density = log_density_of(given, factor) - scale[:, 0].double().log()
            scaled = StudentT(out.df, level + scale * out.loc, scale * out.scale, validate_args=False)
            return Kriged(scaled, process, density)

    def _n_used(self, kernel: Tensor, drift: Tensor, noise: Tensor, mask: Tensor) -> Tensor | None:
        """Number of context points that the `drift` uses up, ``(batch,)``; None if that is none of any task.

        With as many points as in training it is 0: the correction knows of them.
        """
        n = mask.sum(1)
        few_mask = n < KRIGING.n_trained
        if not bool(few_mask.any() and drift.any()):
            return None
        n_used = DRIFT.used * effective_number(kernel, drift, noise, mask)
        return torch.where(few_mask, torch.minimum(n_used, DRIFT.most_used * n), 0.0)

    def _rough(self, context: DriftObservations, targets: Columns, used_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rough drift of targets and context ``(batch, n_t + n_c, d_y)``, its log variances, and effects.

        Gradients flow to the priors of the steps through the variances alone.
        """
        raw_drift = start = torch.tensor(DRIFT.start).to(context.columns.value).expand(*used_mask.shape, -1)
        every = targets.joined(context.columns)
        if not used_mask.any():
            return context.y.new_zeros(*every.value.shape[:2], context.y.shape[2]), raw_drift, every.value[:, 0]
        part = context.at(outside_in_order(context.x, context.mask), context.mask.new_ones(1)).thinned(DRIFT.n_rough)
        thinned = part.thinned(DRIFT.n_rough_information)
        raw = part.x.new_zeros(len(part.x), self.model.n_raw).double()
        precision = torch.full_like(raw, SCORING.prior_precision)
        for _ in range(DRIFT.rough_steps):
            linear, at = self.model.linearise(raw), raw_drift.detach()
            constants = self.model.scale(at.exp().sum(-1).clamp_max(1.0), raw)
            likelihood, score, drift_score, _ = self.model.drift_score(linear, at, constants, part)
            features = _covariate_features(at, drift_score, part, used_mask, likelihood)
            drift_prior = prior_of(self.rough_prior(features), start - at, DRIFT.prior_precision)
            information = self.model.drift_information(linear, at, constants, thinned)
            step, drift_step = drift_scoring_step(
                information, score, drift_score, (-precision * raw, precision), drift_prior
            )
            raw, raw_drift = raw + step.detach(), raw_drift + drift_step
        constants = self.model.scale(raw_drift.exp().sum(-1).clamp_max(1.0), raw)
        variances = Variances.of(raw_drift.detach(), *constants)
        points = (part.local, part.local), (part.x, part.x), (part.columns, part.columns)
        kernel, _, noise = self.model.drift_covariance(raw, variances, *points)
        # conditional mean of the drift: the field around it is noise here
        cross = torch.cat([variances.drift(every, part.columns), kernel], 1)
        given = condition(cross, variances.at(every)[1], part.with_errors(noise), part.y, part.mask)
        return given.mean, raw_drift, self.model.effects(raw, variances, part)

    def drift_scoring(
        self, raw: Tensor, prepared: Prepared, pooled: Tensor, context: DriftObservations, scattered: bool = False
    ) -> tuple[Tensor, Tensor, DriftObservations]:
        """:meth:`~geonp.nn.heads.KrigingHead.fisher_scoring` of the parameters of covariance and drift together.

        Returns
        -------
        tuple
            Raw parameters ``(batch, n_raw)``, log variances of the drift ``(batch, p, 3)``, and the context with
            outliers marked.
        """
        raw, raw_drift = raw.double(), prepared.raw_drift
        if not self.priors:
            return raw.float(), raw_drift, context
        part, start_fields, found = context.thinned(self.n_refine), self._fields(raw, raw_drift, prepared), raw
        if bool((prepared.error_variance > 0).any()):
            found = without_known_errors(self.model, found, part, start_fields(found, part))
        found, smooth_mask, context = smoother(self.model, found, context, self.n_refine, start_fields)
        if scattered:
            found = with_nugget(self.model, found, context, start_fields(found, context))
        raw = with_gradient(found, raw)
        start, drift_start, first, n = raw, raw_drift, context, raw_drift.shape[1]
        part, few = context.thinned(self.n_refine), context.thinned(SCORING.n_information)
        for i, is_thinned in self.scoring:
            linear, at = self.model.linearise(raw), raw_drift.detach()
            constants, scored = self.model.scale(prepared.effect, raw), part if is_thinned else context
            likelihood, score, drift_score, trusted_mask = self.model.drift_score(linear, at, constants, scored)
            inputs = step_inputs(pooled, raw.float(), likelihood, score.float())
            features = _covariate_features(at, drift_score, scored, prepared.used_mask, likelihood)
            features = torch.cat([pooled[:, None].expand(-1, n, -1), features], -1)
            step, drift_step = drift_scoring_step(
                self.model.drift_information(linear, at, constants, few),
                score,
                drift_score,
                prior_of(self.priors[i](inputs), (start - raw).detach()),
                prior_of(self.drift_priors[i](features), drift_start.detach() - at, DRIFT.prior_precision),
            )
            raw, raw_drift = raw + step, raw_drift + drift_step
            if not is_thinned:
                context = context.trusting(trusted_mask)
                few = context.thinned(SCORING.n_information)
        fits = (raw, context, self._fields(raw, raw_drift, prepared)), (start, first, start_fields)
        undone_mask = less_likely(self.model, *fits, smooth_mask)[:, None]
        raw_drift = torch.where(undone_mask[..., None], drift_start, raw_drift)
        return torch.where(undone_mask, start, raw).float(), raw_drift, context.trusting_as(first, undone_mask)

    def _fields(self, raw: Tensor, raw_drift: Tensor, prepared: Prepared) -> Fields:
        """Covariance of observations with the variances of a drift at raw parameters."""
        variances = Variances.of(raw_drift.detach(), *self.model.scale(prepared.effect, raw))
        return partial(self.model.drift_fields, variances=variances)


KRIGING_HEADS = {"kriging": KrigingHead, "drift": DriftKrigingHead}
"""Heads that condition a Gaussian process, by the name of the option of a model."""


def drift_head(head: nn.Module) -> DriftKrigingHead:
    """`head`, if it can use covariates and known errors. Raises ValueError if it cannot."""
    if not isinstance(head, DriftKrigingHead):
        raise ValueError(
            f'covariates and errors need head="drift", but this model has a {type(head).__name__}; leave them out, '
            "or choose a model that was trained with covariates"
        )
    return head


def _covariate_features(
    raw_drift: Tensor, drift_score: Tensor, context: DriftObservations, used_mask: Tensor, likelihood: Tensor
) -> Tensor:
    """Features of each covariate for the priors of its variances, ``(batch, p, n)``, even functions of its values.

    Squashed score and log variances, mean squared error, squared correlation with the values, log number of covariates,
    and log likelihood.
    """
    mask = context.mask[..., None]
    value, y = (torch.where(mask, t, 0.0) for t in (context.columns.value, context.y.double()))
    squares = value.square().sum(1) * y.square().sum(1).mean(-1, keepdim=True)
    correlation = (value.mT @ y).square().mean(-1) / squares.clamp_min(1e-12)
    error = torch.where(mask, context.columns.error.square(), 0.0).sum(1) / mask.sum(1).clamp_min(1)
    number = used_mask.sum(1, keepdim=True).clamp_min(1).log().expand_as(error)
    each = torch.stack([error, correlation, number, likelihood[:, None].expand_as(error)], -1)
    return torch.cat([torch.asinh(10 * drift_score), raw_drift / 4, each], -1).float()
