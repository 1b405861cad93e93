"""Exact Gaussian process algebra in float64: log likelihood, Fisher information and conditioning on a context.

Shapes: covariances ``(batch, n, n)`` without noise, noise variances ``(batch, n)``, values ``(batch, n, d_y)`` and
masks ``(batch, n)``, True where observed. A masked point has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 8
"""Rows added to each matrix before it is factorised. Without them the rows of 128 or 256 points lie a multiple of 1 KiB
apart, their columns compete for few cache lines, and the Cholesky factorisation takes twice as long."""


@dataclass(frozen=True)
class Conditional:
    """A Gaussian process conditioned on a context, float32 where not said otherwise.

    Attributes
    ----------
    mean : Tensor
        Conditional mean of the targets, ``(batch, n_t, d_y)``.
    variance : Tensor
        Conditional variance of the targets without noise, ``(batch, n_t)``.
    leave_one_out : Tensor
        Standardised residual of each context value predicted from all others, ``(batch, n_c, d_y)``.
    innovation : Tensor
        Standardised residual of each context value predicted from those before it, ``(batch, n_c, d_y)``.
    precision : Tensor
        Inverse of the variance of each context value given all others, noise included, ``(batch, n_c)``, float64.
    """

    mean: Tensor
    variance: Tensor
    leave_one_out: Tensor
    innovation: Tensor
    precision: Tensor


def condition(kernel: Tensor, prior: Tensor, noise: Tensor, yc: Tensor, mask: Tensor) -> Conditional:
    """Condition a Gaussian process with mean zero on its context.

    The `kernel` is the covariance of targets and context, in this order, with the context, ``(batch, n_t + n_c, n_c)``,
    and `prior` the variance of the targets ``(batch, n_t)``.
    """
    n_t, n_c = prior.shape[1], mask.shape[1]
    factor = _cholesky(kernel[:, n_t:], noise, mask)
    k_tc = kernel[:, :n_t] if bool(mask.all()) else torch.where(mask[:, None], kernel[:, :n_t], 0.0)
    identity = torch.eye(n_c, dtype=k_tc.dtype, device=k_tc.device).expand(k_tc.shape[0], -1, -1)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    weights, whitened = k_tc @ inverse.mT, inverse @ torch.where(mask[..., None], yc, 0.0).double()
    variance = (prior - weights.square().sum(-1)).clamp_min(0.0)
    # Rasmussen & Williams (2006), equation 5.12
    precision = inverse.square().sum(1)
    leave_one_out = (inverse.mT @ whitened) / precision.sqrt()[..., None]
    mean = weights @ whitened
    return Conditional(mean.float(), variance.float(), leave_one_out.float(), whitened.float(), precision)


def conditional_covariance(kernel: Tensor, prior: Tensor, noise: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Covariance of all targets with the first `m` of them, given a context, float64.

    Parameters
    ----------
    kernel : Tensor
        Covariance of targets and context, in this order, with these `m` targets and the context,
        ``(batch, n_t + n_c, m + n_c)``.
    prior, noise, mask : Tensor
        As of :func:`condition`.

    Returns
    -------
    tuple of Tensor
        Covariance ``(batch, n_t, m)`` and variance ``(batch, n_t)``, without noise.
    """
    n_t, m = prior.shape[1], kernel.shape[2] - mask.shape[1]
    factor = _cholesky(kernel[:, n_t:, m:], noise, mask)
    k_ct = torch.where(mask[..., None], kernel[:, :n_t, m:].mT, 0.0)
    whitened = torch.linalg.solve_triangular(factor, k_ct, upper=False)
    covariance = kernel[:, :n_t, :m] - whitened.mT @ whitened[..., :m]
    return covariance, (prior - whitened.square().sum(1)).clamp_min(0.0)


@torch.no_grad()
def effective_number(kernel: Tensor, part: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """Effective number of parameters of a `part` of a covariance, ``tr(part (kernel + noise)^-1)``, ``(batch,)``.

    As of a linear smoother (Hastie & Tibshirani 1990, section 3.5).
    """
    inverse = torch.cholesky_inverse(_cholesky(kernel, noise, mask))
    return torch.where(_pair_mask(mask), inverse * part, 0.0).sum((1, 2))


@dataclass(frozen=True)
class Likelihood:
    """Log likelihood of a context, with its derivative and leave-one-out residuals; float64 but for the value.

    Attributes
    ----------
    value : Tensor
        Log likelihood per point, without its constant, mean over channels, ``(batch,)``.
    derivative : Tensor
        With respect to the covariance of the noisy values, ``(batch, n, n)``.
    residual : Tensor
        Residual of each value predicted from all others, ``(batch, n, d_y)``.
    variance : Tensor
        Variance of these residuals, noise included, ``(batch, n)``.
    """

    value: Tensor
    derivative: Tensor
    residual: Tensor
    variance: Tensor


@torch.no_grad()
def log_likelihood(kernel: Tensor, noise: Tensor, yc: Tensor, mask: Tensor) -> Likelihood:
    """Log likelihood of a context.

    The derivative is Rasmussen & Williams (2006), equation 5.9, at a quarter of the cost of automatic differentiation
    through the Cholesky factor; the residuals are equations 5.11 and 5.12.
    """
    factor = _cholesky(kernel, noise, mask)
    y = torch.where(mask[..., None], yc, 0.0).double()
    # the transpose of a symmetric matrix has contiguous columns
    derivative = torch.cholesky_inverse(factor).mT
    weights = derivative @ y
    variance = derivative.diagonal(dim1=-2, dim2=-1).reciprocal()
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    n_points = mask.sum(1).clamp_min(1)
    likelihood = -0.5 * ((y * weights).sum(1).mean(-1) + log_determinant) / n_points
    derivative.baddbmm_(weights, weights.mT, beta=-1, alpha=1 / y.shape[-1])
    scale = (0.5 / n_points)[:, None, None]
    derivative.mul_(scale if bool(mask.all()) else scale * _pair_mask(mask))
    return Likelihood(likelihood.float(), derivative, weights * variance[..., None], variance)


@torch.no_grad()
def log_density(kernel: Tensor, noise: Tensor, yc: Tensor, mask: Tensor) -> Tensor:
    """Log likelihood of a context, without its constant, mean over channels, ``(batch,)``, float64."""
    factor = _cholesky(kernel, noise, mask)
    whitened = torch.linalg.solve_triangular(factor, torch.where(mask[..., None], yc, 0.0).double(), upper=False)
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    density: Tensor = -0.5 * (whitened.square().sum(1).mean(-1) + log_determinant)
    return density


@torch.no_grad()
def fisher_information(kernel: Tensor, noise: Tensor, derivatives: Tensor, mask: Tensor) -> Tensor:
    """Fisher information of the parameters of a process with mean zero, per context point, ``(batch, p, p)``.

    ``tr(K^-1 K_i K^-1 K_j) / 2`` divided by the number of points, where K_i is the derivative of the covariance K of
    the noisy values with respect to parameter i (Mardia & Marshall 1984, equation 2.3).

    Parameters
    ----------
    kernel, noise, mask : Tensor
        See the module's docstring.
    derivatives : Tensor
        K_i of all parameters, ``(batch, p, n, n)``.
    """
    inverse = torch.cholesky_inverse(_cholesky(kernel, noise, mask)) * _pair_mask(mask)
    # all K_i K^-1, the transposes of K^-1 K_i, in one matrix product
    products = (derivatives.flatten(1, 2) @ inverse).view_as(derivatives)
    traces: Tensor = products.flatten(2) @ products.mT.flatten(2).mT
    return 0.5 * traces / mask.sum(1).clamp_min(1)[:, None, None]


def _cholesky(kernel: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """Cholesky factor of the covariance of the noisy values; masked points are independent with variance one.

    A singular matrix gets a ridge of 1e-4 of its largest variance.
    """
    n = mask.shape[1]
    matrix = kernel if bool(mask.all()) else torch.where(_pair_mask(mask), kernel, 0.0)
    matrix = F.pad(matrix, (0, PADDING, 0, PADDING))
    noise = F.pad(torch.where(mask, noise, 1.0).double(), (0, PADDING), value=1.0)
    matrix.diagonal(dim1=-2, dim2=-1).add_(noise)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    if bool((info > 0).any()):
        ridge = 1e-4 * matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None].expand(-1, matrix.shape[-1])
        factor = torch.linalg.cholesky(matrix + torch.diag_embed(torch.where(info[:, None] > 0, ridge, 0.0)))
    return factor[:, :n, :n]


def _pair_mask(mask: Tensor) -> Tensor:
    return mask[:, :, None] & mask[:, None, :]
