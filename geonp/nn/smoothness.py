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
    kernels: tuple[int, ...] = (3, 4)
    """Kernels that the first mixture may have alone: Matern 7/2, the Gaussian. A part of the context is tried first,
    with one change: the first of these kernels, and the lengths as they are."""
    first_left_out: float = 0.99
    """Share of the other mixtures that this change leaves out."""
    left_out: tuple[float, ...] = (0.0, 0.9, 0.99, 0.999)
    """Shares of the other mixtures that are left out."""
    length_factors: tuple[float, ...] = (0.8, 1.0, 1.25)
    """Factors of the lengths of the first mixture."""
    least_gain: float = 0.2
    """Gain of the log likelihood per point that is needed, on the part and on the whole. Real fields gain less, and
    lose accuracy with smaller gains."""


SMOOTHNESS = SmoothnessSettings()


@torch.no_grad()
def smoother(
    model: CovarianceModel,
    raw: Tensor,
    context: Observations,
    part: Observations,
    fields: Callable[[Tensor, Observations], tuple[Tensor, Tensor]],
) -> Tensor:
    """Give the first mixture one smooth kernel and the others less variance, where the context is far more likely then.

    Parameters
    ----------
    model : CovarianceModel
    raw : Tensor
        Raw covariance parameters, ``(batch, n_raw)``, float64.
    context, part : Observations
        The whole context, and the part that is tried first, as it costs less; ``n`` points each.
    fields : callable
        Covariance of observations at raw parameters: of each mixture ``(batch, mixtures, n, n)`` and of all else
        ``(batch, 1 or n, 1 or n)``.

    Returns
    -------
    Tensor
        Raw parameters, ``(batch, n_raw)``; of the most likely change, or the given ones.
    """
    smooth_mask, found = model.rough_share(raw) < SMOOTHNESS.most_rough, raw
    first = list(itertools.product(SMOOTHNESS.kernels[:1], (1.0,))), (SMOOTHNESS.first_left_out,)
    every = list(itertools.product(SMOOTHNESS.kernels, SMOOTHNESS.length_factors)), SMOOTHNESS.left_out
    for points, tried in ((part, first), (context, every)):
        if not bool(smooth_mask.any()):
            return raw
        found, gain = _most_likely(model, raw, points, fields, *tried)
        smooth_mask = smooth_mask & (gain > SMOOTHNESS.least_gain)
    return torch.where(smooth_mask[:, None], found, raw)


def _most_likely(
    model: CovarianceModel,
    raw: Tensor,
    points: Observations,
    fields: Callable[[Tensor, Observations], tuple[Tensor, Tensor]],
    kernels: list[tuple[int, float]],
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
