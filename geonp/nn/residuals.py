"""Sizes of residuals, which corrections of predictions read."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from geonp.nn.layers import masked_mean


def ring_sizes(innovation: Tensor, mask: Tensor, n_rings: int) -> Tensor:
    """Log mean square of the innovations in rings around the centroid, ``(batch, 1, n_rings * d_y)``.

    The context is in outside-in order, masked points first; each ring has the same number of points.
    """
    position = torch.cumsum(mask.long(), 1) * n_rings - 1
    ring = position.div(mask.sum(1, keepdim=True).clamp_min(1), rounding_mode="floor").clamp(0, n_rings - 1)
    member = F.one_hot(ring, n_rings).to(innovation) * mask[..., None]
    total = member.mT @ torch.where(mask[..., None], innovation.square(), 0.0)
    return torch.log(total / member.sum(1)[..., None].clamp_min(1) + 0.01).flatten(1)[:, None]


def residual_sizes(kernel: Tensor, residuals: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log mean size of the residuals around each target, weighted by covariance, and overall, ``(batch, n_t, 2 d_y)``.

    The size is the mean square, and the mean absolute value relative to its root: the smaller, the heavier the tails.
    """
    d_y = residuals.shape[-1]
    sizes = torch.where(mask[..., None], torch.cat([residuals.square(), residuals.abs()], -1), 0.0)
    weights = torch.where(mask[:, None], kernel, 0.0)
    near = (weights @ sizes) / weights.sum(-1, keepdim=True).clamp_min(1e-6)
    means = torch.stack([near, masked_mean(sizes, mask)[:, None].expand_as(near)])
    square, absolute = torch.log(means[..., :d_y] + 0.01), torch.log(means[..., d_y:] + 0.05)
    near, overall = torch.cat([square, 4 * (absolute - square / 2)], -1)
    return near, overall
