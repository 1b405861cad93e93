"""How likely a context is under a Gaussian process, and how much it tells about the parameters of the process."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["factor_of", "information", "log_likelihood"]

PADDING = 8
"""Further points of each matrix that is factorised. Where rows are a multiple of 1 KiB apart, as of 128 or 256 points,
the columns share few lines of a cache, and the factor takes twice as long."""


def factor_of(kernel: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """Cholesky factor of the covariance of noisy values, float64; masked points are independent of all others."""
    n = mask.shape[1]
    matrix = kernel if bool(mask.all()) else torch.where(mask[:, :, None] & mask[:, None, :], kernel, 0.0)
    matrix = F.pad(matrix, (0, PADDING, 0, PADDING))
    noise = F.pad(torch.where(mask, noise, 1.0).double(), (0, PADDING), value=1.0)
    matrix.diagonal(dim1=-2, dim2=-1).add_(noise)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    if bool((info > 0).any()):
        ridge = 1e-4 * matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None].expand(-1, matrix.shape[-1])
        factor = torch.linalg.cholesky(matrix + torch.diag_embed(torch.where(info[:, None] > 0, ridge, 0.0)))
    return factor[:, :n, :n]


@torch.no_grad()
def log_likelihood(kernel: Tensor, noise: Tensor, yc: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log density of a context under the process up to a constant, mean over channels, and its derivative.

    All per context point. The derivative is that of Rasmussen & Williams (2006), equation 5.9: for a quarter of the
    cost of differentiating the factor.

    Returns
    -------
    tuple of Tensor
        ``(batch,)``, and the derivative by the covariance of noisy values ``(batch, n, n)``.
    """
    factor = factor_of(kernel, noise, mask)
    y = torch.where(mask[..., None], yc, 0.0).double()
    # it is symmetric, and its columns are contiguous
    slope = torch.cholesky_inverse(factor).mT
    weights = slope @ y
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    count = mask.sum(1).clamp_min(1)
    likelihood = -0.5 * ((y * weights).sum(1).mean(-1) + log_determinant) / count
    slope.baddbmm_(weights, weights.mT, beta=-1, alpha=1 / y.shape[-1])
    slope.mul_(_of_shown_pairs(0.5 / count, mask))
    return likelihood.float(), slope


@torch.no_grad()
def information(kernel: Tensor, noise: Tensor, changes: Tensor, mask: Tensor) -> Tensor:
    """Fisher information of the parameters of a process with mean zero, per point of a context, ``(batch, p, p)``.

    ``tr(K^-1 K_i K^-1 K_j) / 2`` over the number of points, K_i the derivative of the covariance K of noisy values by
    parameter i (Mardia & Marshall 1984, equation 2.3).

    Parameters
    ----------
    kernel, noise, mask : Tensor
        Covariance without noise ``(batch, n, n)``, and of the points ``(batch, n)``.
    changes : Tensor
        The derivatives, ``(batch, p, n, n)``.
    """
    inverse = torch.cholesky_inverse(factor_of(kernel, noise, mask)) * (mask[:, :, None] & mask[:, None, :])
    # K^-1 K_i of all parameters is one product, as they are symmetric: its transpose
    products = (changes.flatten(1, 2) @ inverse).view_as(changes)
    traces: Tensor = products.flatten(2) @ products.mT.flatten(2).mT
    return 0.5 * traces / mask.sum(1).clamp_min(1)[:, None, None]


def _of_shown_pairs(scale: Tensor, mask: Tensor) -> Tensor:
    """A number of each task ``(batch,)`` where both points of a pair are shown, else zero: ``(batch, n or 1, ...)``."""
    if bool(mask.all()):
        return scale[:, None, None]
    return scale[:, None, None] * (mask[:, :, None] & mask[:, None, :])
