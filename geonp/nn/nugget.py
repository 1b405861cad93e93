"""Noise and known errors, which a network that was trained on rasters takes for a field of a short length.

No two cells of a raster are closer than a cell, so noise and a field of a shorter length look alike, and the network
reads the latter. Scattered measurements may be far closer to each other and to the targets, and there the two differ.
Scoring does not find the noise: the likelihood hardly depends on the logarithm of a noise that is very small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from geonp.nn.likelihood import log_density
from geonp.nn.observations import Observations
from geonp.nn.process import CovarianceModel


@dataclass(frozen=True)
class NuggetSettings:
    """Shares of the variance of a mixture that are tried."""

    noise: tuple[float, ...] = (0.03, 0.1, 0.3, 0.6, 0.9)
    """As noise."""
    known: tuple[float, ...] = (0.3, 0.6, 0.85, 0.96, 0.99)
    """As known errors."""


NUGGET = NuggetSettings()


@torch.no_grad()
def with_nugget(
    model: CovarianceModel,
    raw: Tensor,
    context: Observations,
    covariance: tuple[Tensor, Tensor],
) -> Tensor:
    """Move a share of the variance of one mixture to the noise, where this makes the context more likely.

    Parameters
    ----------
    model : CovarianceModel
    raw : Tensor
        Raw covariance parameters, ``(batch, n_raw)``, float64.
    context : Observations
        The whole context, ``n`` points.
    covariance : tuple of Tensor
        At these parameters, of each mixture ``(batch, mixtures, n, n)`` and of all else ``(batch, 1 or n, 1 or n)``.

    Returns
    -------
    Tensor
        Raw parameters, ``(batch, n_raw)``; those of the most likely share, or the given ones.
    """
    fields, rest = covariance
    whole = fields.sum(1) + rest
    noise = context.with_errors(model.noise(raw, context))
    start, best = raw, log_density(whole, noise, context.y, context.mask)
    for mixture in range(len(model.lengths)):
        for share in NUGGET.noise:
            candidate = model.moved_to_noise(start, mixture, share, context)
            noise = context.with_errors(model.noise(candidate, context))
            value = log_density(whole - share * fields[:, mixture], noise, context.y, context.mask)
            better_mask = value > best
            raw, best = torch.where(better_mask[:, None], candidate, raw), torch.where(better_mask, value, best)
    return raw


@torch.no_grad()
def without_known_errors(
    model: CovarianceModel, raw: Tensor, context: Observations, covariance: tuple[Tensor, Tensor]
) -> Tensor:
    """Leave out a share of the variance of each mixture, where known errors make the context more likely without it.

    The network sees values with their errors, and takes these for a field. Parameters and result are those of
    :func:`with_nugget`; without known errors, a task keeps its parameters.
    """
    fields, rest = covariance
    own_noise = model.noise(raw, context)
    noise = context.with_errors(own_noise)
    known_mask = (noise > own_noise).any(1)
    whole = fields.sum(1) + rest
    best = log_density(whole, noise, context.y, context.mask)
    for mixture, field in enumerate(fields.unbind(1)):
        left = torch.zeros_like(best)
        for share in NUGGET.known:
            value = log_density(whole - share * field, noise, context.y, context.mask)
            better_mask = known_mask & (value > best)
            left, best = torch.where(better_mask, share, left), torch.where(better_mask, value, best)
        raw, whole = model.scaled(raw, mixture, 1 - left), whole - left[:, None, None] * field
    return raw
