"""Kernel statistics of a context: density of the observations, variogram and local means, at several scales."""

from __future__ import annotations

import torch
from torch import Tensor

from geonp.nn.layers import with_unknown_targets


def moments(yc: Tensor, mask: Tensor) -> Tensor:
    """1, y^2 (mean over channels) and y of the observed context points, 0 elsewhere: ``(batch, n_c, 2 + d_y)``.

    Their kernel-weighted sums give all statistics of this module.
    """
    return mask[..., None] * torch.cat([torch.ones_like(yc[..., :1]), yc.square().mean(-1, keepdim=True), yc], -1)


def context_statistics(sums: Tensor, yc: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log density of the observations and log variogram for each kernel, scaled to about unit variance.

    Targets have no values, so their variogram entries are zero.

    Parameters
    ----------
    sums : Tensor
        Kernel-weighted sums of :func:`moments` around targets and context, in this order, see
        :meth:`geonp.nn.bias.KernelDictionary.sums`: ``(batch, size, n_t + n_c, 2 + d_y)``.
    yc, mask : Tensor
        Context values ``(batch, n_c, d_y)``, finite also where masked, and mask ``(batch, n_c)``, True where observed.

    Returns
    -------
    tuple of Tensor
        Around each point ``(batch, n_t + n_c, 2 size)``, and over the whole context ``(batch, 2 size)``.
    """
    size, n_t = sums.shape[1], sums.shape[2] - yc.shape[1]
    density, squares = _pair_sums(sums, with_unknown_targets(yc, n_t)[0])
    local = torch.cat([_log_density(density), _log_variogram(squares, density)], -1)
    local[:, :n_t, size:] = 0.0
    # without the pair of each point with itself, whose kernel is one
    pairs = ((density[:, n_t:] - 1.0) * mask[..., None]).sum(1)
    total = (squares[:, n_t:] * mask[..., None]).sum(1)
    mean_density = pairs / mask.sum(1, keepdim=True).clamp_min(1)
    return local, torch.cat([_log_density(mean_density), _log_variogram(total, pairs)], -1)


def context_means(sums: Tensor) -> Tensor:
    """Kernel-weighted means of the context values around each point, ``(batch, n_q, size * d_y)``; 0 far from all.

    `sums` are the kernel-weighted sums of :func:`moments`, ``(batch, size, n_q, 2 + d_y)``.
    """
    density, _, first = sums.split([1, 1, sums.shape[-1] - 2], -1)
    means: Tensor = first / (density + 0.01)
    return means.transpose(1, 2).flatten(2)


def _pair_sums(sums: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the context of w and of w (y - y')^2 for each kernel w, ``(batch, n_q, size)`` each.

    `sums` are those of :func:`moments`, y the `values` of the queries ``(batch, n_q, d_y)``. The square is expanded,
    so that one matrix product over all kernels is enough.
    """
    density, second, first = sums[..., 0], sums[..., 1], sums[..., 2:]
    squares = values.square().mean(-1)[:, None] * density - 2 * (values[:, None] * first).mean(-1) + second
    return density.mT, squares.mT.clamp_min(0.0)


def _log_density(density: Tensor) -> Tensor:
    return 0.3 * torch.log(density.clamp_min(0.0) + 0.01)


def _log_variogram(squares: Tensor, density: Tensor) -> Tensor:
    return 0.25 * (torch.log(squares / density.clamp_min(1e-3) + 1e-6) + 4.0)
