"""Noise of scattered measurements, where a network that was trained on rasters takes it for a field of a short length.

No two cells of a raster are closer than a cell, so noise and a field of a shorter length look alike, and the network
reads the latter. Scattered measurements may be far closer to each other and to the targets, and there the two differ.
Scoring does not find the noise: the likelihood hardly depends on the logarithm of a noise that is very small.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from geonp.nn.process import CovarianceModel, Observations

SHARES = (0.03, 0.1, 0.3, 0.6, 0.9)
"""Shares of the variance of a mixture that are tried as noise."""


@torch.no_grad()
def with_nugget(
    model: CovarianceModel, raw: Tensor, context: Observations, log_likelihood: Callable[[Tensor], Tensor]
) -> Tensor:
    """Raw covariance parameters ``(batch, n_raw)`` with more noise, where the likelihood of the context is larger so.

    A share of the variance of one mixture becomes noise. `log_likelihood` gives the log likelihood of the context
    ``(batch,)`` at raw parameters.
    """
    start, best = raw, log_likelihood(raw)
    for mixture in range(len(model.lengths)):
        for share in SHARES:
            candidate = model.moved_to_noise(start, mixture, share, context)
            value = log_likelihood(candidate)
            better_mask = value > best
            raw, best = torch.where(better_mask[:, None], candidate, raw), torch.where(better_mask, value, best)
    return raw
