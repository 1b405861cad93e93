"""Very smooth fields, whose covariance the network reads as a smooth one plus a little of a rougher one.

That little decides how well such a field is known between its observations. So do the noise, and the amplitudes, which
the network predicts for each point: a field that is a smooth one times these is as rough as they are. Scoring removes
none of them, since a covariance without one of them is hardly more likely. So all change at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from geonp.nn.likelihood import log_density
from geonp.nn.observations import Observations
from geonp.nn.process import CovarianceModel


@dataclass(frozen=True)
class SmoothnessSettings:
    """What is tried, and for which fields."""

    most_rough: float = 0.1
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
    first_noise: tuple[float, ...] = (1.0, 0.01)
    """Factors of the noise variance that are tried first."""
    noise: tuple[float, ...] = (1.0, 0.1, 0.01, 0.001)
    """Factors of the noise variance that are tried last."""
    least_gain: float = 0.05
    """Gain of the log likelihood per point that is needed, on the part and on the whole."""


SMOOTHNESS = SmoothnessSettings()

AnyObservations = TypeVar("AnyObservations", bound=Observations)
Fields = Callable[[Tensor, Observations], tuple[Tensor, Tensor]]
"""Covariance of observations at raw parameters: of each mixture ``(batch, mixtures, n, n)`` and of all else
``(batch, 1 or n, 1 or n)``."""
Fit = tuple[Tensor, Observations, Fields]
"""Raw parameters of a context, the context with outliers marked, and its covariance at raw parameters."""


@torch.no_grad()
def smoother(
    model: CovarianceModel, raw: Tensor, context: AnyObservations, n_part: int, fields: Fields
) -> tuple[Tensor, Tensor, AnyObservations]:
    """Give the first mixture one smooth kernel, the others and the noise less variance, and all points one amplitude.

    Only where the context is far more likely then.

    Parameters
    ----------
    model : CovarianceModel
    raw : Tensor
        Raw covariance parameters, ``(batch, n_raw)``, float64.
    context : Observations
        The whole context, ``n`` points, in :func:`~geonp.nn.observations.outside_in_order`.
    n_part : int
        Number of points nearest to its centre that are tried first, as they cost less.
    fields : Fields

    Returns
    -------
    tuple
        Raw parameters, ``(batch, n_raw)``, of the most likely change, or the given ones; which tasks have changed,
        ``(batch,)``; and the context with the amplitudes of these.
    """
    smooth_mask = model.rough_share(raw) < SMOOTHNESS.most_rough
    if not bool(smooth_mask.any()):
        return raw, smooth_mask, context
    part, even = context.nearest(n_part), context.with_even_amplitude(smooth_mask)
    before, few = _density(model, raw, part, fields), even.nearest(n_part)
    first, best = _most_likely(model, raw, few, fields, SMOOTHNESS.first, (SMOOTHNESS.first_left_out,))
    first, best = _quieter(model, first, few, fields, SMOOTHNESS.first_noise)
    smooth_mask = smooth_mask & ((best - before) / part.mask.sum(1).clamp_min(1) > SMOOTHNESS.least_gain)
    if not bool(smooth_mask.any()):
        return raw, smooth_mask, context
    found = torch.cat([raw[:, :-1], first[:, -1:]], 1)
    every = tuple(itertools.product(SMOOTHNESS.kernels, SMOOTHNESS.length_factors))
    found, _ = _most_likely(model, found, even, fields, every, SMOOTHNESS.left_out)
    found, best = _quieter(model, found, even, fields, SMOOTHNESS.noise)
    gain = (best - _density(model, raw, context, fields)) / context.mask.sum(1).clamp_min(1)
    smooth_mask = smooth_mask & (gain > SMOOTHNESS.least_gain)
    return torch.where(smooth_mask[:, None], found, raw), smooth_mask, context.with_even_amplitude(smooth_mask)


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
    """Raw parameters of the most likely kernel of the first mixture, and its log likelihood, ``(batch,)``.

    Kernels have factors of their lengths, and leave out `shares` of the other mixtures.
    """
    noise, (own, rest) = points.with_errors(model.noise(raw, points)), fields(raw, points)
    others, n_others = own[:, 1:].sum(1), own.shape[1] - 1
    found, best = raw, torch.full_like(raw[:, 0], -torch.inf)
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
    return found, best


def _quieter(
    model: CovarianceModel, raw: Tensor, points: Observations, fields: Fields, factors: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """Raw parameters of the most likely of some factors of the noise, and its log likelihood, ``(batch,)``."""
    own, rest = fields(raw, points)
    covariance = own.sum(1) + rest
    found, best = raw, torch.full_like(raw[:, 0], -torch.inf)
    for factor in factors:
        candidate = torch.cat([raw[:, :-1], raw[:, -1:] + math.log(factor)], 1)
        noise = points.with_errors(model.noise(candidate, points))
        value = log_density(covariance, noise, points.y, points.mask)
        better_mask = value > best
        found, best = torch.where(better_mask[:, None], candidate, found), torch.where(better_mask, value, best)
    return found, best
