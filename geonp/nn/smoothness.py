"""Very smooth fields, whose covariance the network reads as a smooth one plus a little of a rougher one.

That little decides how well such a field is known between its observations. Scoring does not remove it: the logarithm
of a weight that is nearly zero hardly changes the likelihood. So both mixtures change at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from geonp.nn.likelihood import log_density
from geonp.nn.observations import Observations
from geonp.nn.process import CovarianceModel


@dataclass(frozen=True)
class SmoothnessSettings:
    """What is tried, and for which fields."""

    most_rough: float = 0.02
    """Share of the Matern 1/2 and 3/2 in the first mixture, below which a field may be very smooth."""
    first: tuple[tuple[int, float], ...] = ((3, 1.0), (4, 0.7), (4, 1.0))
    """What is tried first, on a part of the context: kernels with factors of the lengths of the first mixture."""
    first_left_out: float = 0.99
    """Share of the other mixtures that these leave out."""
    kernels: tuple[int, ...] = (3, 4)
    """Kernels that the first mixture may have alone: Matern 7/2, the Gaussian."""
    left_out: tuple[float, ...] = (0.0, 0.9, 0.99, 0.999)
    """Shares of the other mixtures that are left out."""
    length_factors: tuple[float, ...] = (0.64, 0.8, 1.0, 1.25)
    """Factors of the lengths of the first mixture."""
    least_gain: float = 0.2
    """Gain of the log likelihood per point that is needed, on the part and on the whole. Real fields gain less, and
    lose accuracy with smaller gains."""


SMOOTHNESS = SmoothnessSettings()

Fields = Callable[[Tensor, Observations], tuple[Tensor, Tensor]]
"""Covariance of observations at raw parameters: of each mixture ``(batch, mixtures, n, n)`` and of all else
``(batch, 1 or n, 1 or n)``."""
Fit = tuple[Tensor, Observations, Fields]
"""Raw parameters of a context, the context with outliers marked, and its covariance at raw parameters."""


@torch.no_grad()
def smoother(
    model: CovarianceModel,
    raw: Tensor,
    context: Observations,
    part: Observations,
    fields: Fields,
) -> tuple[Tensor, Tensor]:
    """Give the first mixture one smooth kernel and the others less variance, where the context is far more likely then.

    Parameters
    ----------
    model : CovarianceModel
    raw : Tensor
        Raw covariance parameters, ``(batch, n_raw)``, float64.
    context, part : Observations
        The whole context, and the part that is tried first, as it costs less; ``n`` points each.
    fields : Fields

    Returns
    -------
    tuple of Tensor
        Raw parameters, ``(batch, n_raw)``, of the most likely change, or the given ones; and which tasks have changed,
        ``(batch,)``.
    """
    smooth_mask, found = model.rough_share(raw) < SMOOTHNESS.most_rough, raw
    first = SMOOTHNESS.first, (SMOOTHNESS.first_left_out,)
    every = tuple(itertools.product(SMOOTHNESS.kernels, SMOOTHNESS.length_factors)), SMOOTHNESS.left_out
    for points, tried in ((part, first), (context, every)):
        if not bool(smooth_mask.any()):
            return raw, smooth_mask
        found, gain = _most_likely(model, raw, points, fields, *tried)
        smooth_mask = smooth_mask & (gain > SMOOTHNESS.least_gain)
    return torch.where(smooth_mask[:, None], found, raw), smooth_mask


@torch.no_grad()
def less_likely(model: CovarianceModel, fit: Fit, start: Fit, among_mask: Tensor) -> Tensor:
    """Tasks among some ``(batch,)`` whose context is less likely after scoring, `fit`, than before it, ``(batch,)``.

    A very smooth covariance is nearly singular, and a step of scoring may lead far away from it.
    """
    if not bool(among_mask.any()):
        return among_mask
    before, after = (_density(model, *one) for one in (start, fit))
    return among_mask & ~(after >= before)


def _density(model: CovarianceModel, raw: Tensor, points: Observations, fields: Fields) -> Tensor:
    """Log likelihood of points, ``(batch,)``."""
    own, rest = fields(raw.detach(), points)
    return log_density(own.sum(1) + rest, points.with_errors(model.noise(raw, points)), points.y, points.mask)


def _most_likely(
    model: CovarianceModel,
    raw: Tensor,
    points: Observations,
    fields: Fields,
    kernels: tuple[tuple[int, float], ...],
    shares: tuple[float, ...],
) -> tuple[Tensor, Tensor]:
    """Raw parameters of the most likely change, and what it gains per point, ``(batch,)``; the given ones if none does.

    Kernels have factors of their lengths.
    """
    noise, (own, rest) = points.with_errors(model.noise(raw, points)), fields(raw, points)
    others, n_others = own[:, 1:].sum(1), own.shape[1] - 1
    found, start = raw, log_density(own.sum(1) + rest, noise, points.y, points.mask)
    best = start
    for kernel, factor in kernels:
        alone = model.with_kernel(raw, kernel, factor)
        first = fields(alone, points)[0][:, 0]
        for share in shares:
            value = log_density(first + (1 - share) * others + rest, noise, points.y, points.mask)
            candidate = alone
            for mixture in range(1, n_others + 1):
                candidate = model.scaled(candidate, mixture, torch.full_like(value, 1 - share))
            better_mask = value > best
            found, best = torch.where(better_mask[:, None], candidate, found), torch.where(better_mask, value, best)
    return found, (best - start) / points.mask.sum(1).clamp_min(1)
