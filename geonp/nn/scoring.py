"""Steps of Fisher scoring, with learned priors, of the parameters of a covariance and of a drift."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from geonp.nn.process import soft_clamp


@dataclass(frozen=True)
class ScoringSettings:
    """Fixed numbers of the steps. Weights are trained with them: other values need other weights."""

    n_information: int = 64
    """Context points, thinned from all, whose Fisher information represents the context."""
    prior_precision: float = 0.004
    """Precision of the prior of a raw covariance parameter, per context point, before the learned factor."""
    max_log_precision: float = 3.0
    """Bound of the log of this factor."""
    max_step: float = 1.0
    """Largest change of a raw parameter in one step."""
    max_drift_step: float = 5.0
    """Largest change of a log variance of a drift in one step."""


SCORING = ScoringSettings()


def with_gradient(found: Tensor, raw: Tensor) -> Tensor:
    """The values that a search from `raw` found, whose gradients flow to `raw`."""
    return raw + (found - raw).detach()


def scoring_step(information: Tensor, score: Tensor, pull: Tensor, precision: Tensor) -> Tensor:
    """A bounded step of Fisher scoring ``(batch, n)``; `pull` and `precision` are those of :func:`prior_of`."""
    # where a covariance was singular, only the prior counts
    valid = information.isfinite().all(-1).all(-1)[:, None] & score.isfinite().all(-1, keepdim=True)
    information, score = torch.where(valid[..., None], information, 0.0), torch.where(valid, score, 0.0)
    step: Tensor = torch.linalg.solve(information + torch.diag_embed(precision), score + pull)
    return step * (SCORING.max_step / step.abs().amax(1, keepdim=True).clamp_min(SCORING.max_step))


def prior_of(outputs: Tensor, back: Tensor, precision: float = SCORING.prior_precision) -> tuple[Tensor, Tensor]:
    """Gradient and precision of the log prior of a scoring step, float64, like `back`: its start less where it is.

    Outputs ``(..., 2 n)`` of the network are the centre and the log factor of the `precision`.
    """
    centre, log_factor = outputs.double().chunk(2, -1)
    precisions = precision * torch.exp(soft_clamp(log_factor, SCORING.max_log_precision))
    return precisions * (centre + back), precisions


def step_inputs(pooled: Tensor, raw: Tensor, likelihood: Tensor, score: Tensor) -> Tensor:
    """Inputs of a learned step: context features, squashed score, raw parameters and their log likelihood."""
    return torch.cat([pooled, torch.asinh(10 * score), raw.detach(), likelihood[:, None]], -1)


def drift_scoring_step(
    information: Tensor,
    score: Tensor,
    drift_score: Tensor,
    prior: tuple[Tensor, Tensor],
    drift_prior: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """A bounded step of the raw parameters ``(batch, n_raw)`` and of the log variances ``(batch, p, 3)``.

    Priors are those of :func:`prior_of`.
    """
    n, scores = score.shape[1], torch.cat([score, drift_score.flatten(1)], 1)
    pull, precision = (torch.cat([a, b.flatten(1)], 1) for a, b in zip(prior, drift_prior, strict=True))
    # where a covariance was singular, only the prior counts
    valid = information.isfinite().all(-1).all(-1)[:, None] & scores.isfinite().all(-1, keepdim=True)
    information, scores = torch.where(valid[..., None], information, 0.0), torch.where(valid, scores, 0.0)
    step = torch.linalg.solve(information + torch.diag_embed(precision), scores + pull)
    return _bounded(step[:, :n], SCORING.max_step), _bounded(step[:, n:], SCORING.max_drift_step).view_as(drift_score)


def _bounded(step: Tensor, limit: float) -> Tensor:
    """A step ``(batch, n)`` scaled so that no element is beyond the limit."""
    return step * (limit / step.abs().amax(1, keepdim=True).clamp_min(limit)) if step.shape[1] else step
