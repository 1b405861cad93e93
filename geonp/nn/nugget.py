"""Noise of scattered measurements, which a network that was trained on rasters takes for a field of a short length.

No two cells of a raster are closer than a cell, so noise and a field of a shorter length look alike, and the network
reads the latter. Scattered measurements may be far closer to each other and to the targets, and there the two differ.
Scoring does not find the noise: the likelihood hardly depends on the logarithm of a noise that is very small.
"""

from __future__ import annotations

import torch
from torch import Tensor

from geonp.nn.likelihood import log_density
from geonp.nn.process import CovarianceModel, Observations

SHARES = (0.03, 0.1, 0.3, 0.6, 0.9)
"""Shares of the variance of a mixture that are tried as noise."""


@torch.no_grad()
def with_nugget(
    model: CovarianceModel,
    raw: Tensor,
    context: Observations,
    covariance: tuple[Tensor, Tensor],
    error_variance: Tensor | float = 0.0,
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
    error_variance : Tensor or float
        Known error variances, ``(batch, n)``.

    Returns
    -------
    Tensor
        Raw parameters, ``(batch, n_raw)``; those of the most likely share, or the given ones.
    """
    fields, rest = covariance
    whole = fields.sum(1) + rest
    start, best = raw, log_density(whole, model.noise(raw, context) + error_variance, context.y, context.mask)
    for mixture in range(len(model.lengths)):
        for share in SHARES:
            candidate = model.moved_to_noise(start, mixture, share, context)
            noise = model.noise(candidate, context) + error_variance
            value = log_density(whole - share * fields[:, mixture], noise, context.y, context.mask)
            better_mask = value > best
            raw, best = torch.where(better_mask[:, None], candidate, raw), torch.where(better_mask, value, best)
    return raw
