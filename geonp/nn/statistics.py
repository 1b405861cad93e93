"""What a context says about its field before any weights: density of observations and variogram, kernel by kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from geonp.nn.bias import KernelDictionary

__all__ = ["context_statistics"]


def context_statistics(
    dictionary: KernelDictionary,
    xq: Tensor,
    xc: Tensor,
    yc: Tensor,
    mask: Tensor,
    kernels: Tensor | None = None,
    step: int = 1024,
) -> tuple[Tensor, Tensor]:
    """Log density of observations and log variogram by kernel, each of about unit scale.

    A function of differences of locations alone. Nothing is known of the values of targets, so there is no variogram
    around them.

    Parameters
    ----------
    dictionary : KernelDictionary
    xq : Tensor
        Locations of targets and context, in this order, ``(batch, n_t + n_c, d_x)``.
    xc, yc, mask : Tensor
        The context: ``(batch, n_c, d_x)``, ``(batch, n_c, d_y)`` and ``(batch, n_c)``, True = observed. What the
        others hold must be finite.
    kernels : Tensor, optional
        ``dictionary(xq, xc)``, where it is at hand.
    step : int
        Points around which kernels exist at a time otherwise.

    Returns
    -------
    tuple of Tensor
        Around each point ``(batch, n_t + n_c, 2 size)``, and of the whole context ``(batch, 2 size)``.
    """
    n_t, step = xq.shape[1] - xc.shape[1], xq.shape[1] if kernels is not None else step
    values = torch.cat([yc.new_zeros(yc.shape[0], n_t, yc.shape[2]), yc], 1)
    sums = [
        _pair_sums(dictionary(xq[:, i : i + step], xc) if kernels is None else kernels, v, yc, mask)
        for i in range(0, xq.shape[1], step)
        for v in [values[:, i : i + step]]
    ]
    density, squares = (torch.cat(part, 1) for part in zip(*sums, strict=True))
    local = torch.cat([_log_density(density), _log_variogram(squares, density)], -1)
    local[:, :n_t, dictionary.size :] = 0.0
    # without the pair of each point with itself, whose kernel is one
    pairs = ((density[:, n_t:] - 1.0) * mask[..., None]).sum(1)
    differences = (squares[:, n_t:] * mask[..., None]).sum(1)
    mean_density = pairs / mask.sum(1, keepdim=True).clamp_min(1)
    return local, torch.cat([_log_density(mean_density), _log_variogram(differences, pairs)], -1)


def _pair_sums(kernels: Tensor, values: Tensor, yc: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the context of w and of w (y - y')^2 for kernels w: ``(batch, n_q, size)`` each."""
    keep = mask[..., None].to(yc)
    square = yc.square().mean(-1, keepdim=True)
    sums = kernels @ torch.cat([keep, keep * square, keep * yc], -1)[:, None]
    density, second, first = sums[..., 0], sums[..., 1], sums[..., 2:]
    # the square expanded, so that it is one matrix product over all kernels
    squares = values.square().mean(-1)[:, None] * density - 2 * (values[:, None] * first).mean(-1) + second
    return density.mT, squares.mT.clamp_min(0.0)


def _log_density(density: Tensor) -> Tensor:
    return 0.3 * torch.log(density.clamp_min(0.0) + 0.01)


def _log_variogram(squares: Tensor, density: Tensor) -> Tensor:
    return 0.25 * (torch.log(squares / density.clamp_min(1e-3) + 1e-6) + 4.0)
