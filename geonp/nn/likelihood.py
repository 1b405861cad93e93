"""How likely a context is under a Gaussian process, and how much it tells about the parameters of the process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["factor_of", "information", "log_likelihood"]

DIFFERENCE = 1e-4
"""Change of a parameter by which the covariance is differentiated, in float64."""


def factor_of(kernel: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """Cholesky factor of the covariance of noisy values, float64; masked points are independent of all others."""
    pairs = mask[:, :, None] & mask[:, None, :]
    matrix = torch.where(pairs, kernel, 0.0) + torch.diag_embed(torch.where(mask, noise, 1.0).double())
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    if bool((info > 0).any()):
        ridge = 1e-4 * matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None].expand(-1, matrix.shape[-1])
        factor = torch.linalg.cholesky(matrix + torch.diag_embed(torch.where(info[:, None] > 0, ridge, 0.0)))
    return factor


@torch.no_grad()
def log_likelihood(kernel: Tensor, noise: Tensor, yc: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log density of a context under the process up to a constant, mean over channels, and its derivatives.

    All per context point. The derivatives are those of Rasmussen & Williams (2006), equation 5.9: for a quarter of the
    cost of differentiating the factor.

    Returns
    -------
    tuple of Tensor
        ``(batch,)``, and the derivatives by the kernel ``(batch, n, n)`` and by the noise ``(batch, n)``.
    """
    factor = factor_of(kernel, noise, mask)
    y = torch.where(mask[..., None], yc, 0.0).double()
    weights = torch.cholesky_solve(y, factor)
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    count = mask.sum(1).clamp_min(1)
    likelihood = -0.5 * ((y * weights).sum(1).mean(-1) + log_determinant) / count
    slope = 0.5 * (weights @ weights.mT / y.shape[-1] - torch.cholesky_inverse(factor)) / count[:, None, None]
    slope = torch.where(mask[:, :, None] & mask[:, None, :], slope, 0.0)
    return likelihood.float(), slope, slope.diagonal(dim1=-2, dim2=-1).to(noise)


@torch.no_grad()
def information(covariance: Callable[[Tensor], tuple[Tensor, Tensor]], raw: Tensor, mask: Tensor) -> Tensor:
    """Fisher information of the parameters of a process with mean zero, per point of a context, ``(batch, p, p)``.

    ``tr(K^-1 K_i K^-1 K_j) / 2`` over the number of points, K_i the derivative of the covariance K of noisy values by
    parameter i (Mardia & Marshall 1984, equation 2.3), by finite differences.

    Parameters
    ----------
    covariance : callable
        Parameters ``(n, p)``, float64, to the kernel ``(n, points, points)`` and the noise variance ``(n, points)``;
        n is ``batch * (p + 1)``, the tasks of the batch in turn.
    raw : Tensor
        ``(batch, p)``.
    mask : Tensor
        Of the points, ``(batch, points)``.
    """
    raw = raw.double()
    steps = torch.cat([raw.new_zeros(1, raw.shape[1]), DIFFERENCE * torch.eye(raw.shape[1]).to(raw)])
    kernel, noise = covariance((raw + steps[:, None]).flatten(0, 1))
    kernel = (kernel + torch.diag_embed(noise.double())).unflatten(0, (len(steps), -1))
    kernel = torch.where(mask[:, :, None] & mask[:, None, :], kernel, 0.0)
    factor = factor_of(kernel[0], torch.zeros_like(noise[: len(raw)]), mask)
    change = (kernel[1:] - kernel[:1]) / DIFFERENCE
    half = torch.linalg.solve_triangular(factor, change, upper=False)
    whole = torch.linalg.solve_triangular(factor, half.mT, upper=False).flatten(2).transpose(0, 1)
    products: Tensor = whole @ whole.mT
    return 0.5 * products / mask.sum(1).clamp_min(1)[:, None, None]
