"""Mixtures of stationary covariances of many pairs of points, in blocks that fit a processor's cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from geonp.nn.blocks import BLOCKS, LOG2E, pair_blocks

N_KERNELS = 5
"""Matern 1/2, 3/2, 5/2, 7/2, and the Gaussian with the curvature of the last at zero."""

MAX_SQUARED = 6400.0
"""Squared distance at which all kernels are cut off: beyond it they would be subnormal, ten times slower to compute."""


def matern_mixture(xq: Tensor, xk: Tensor, weights: Tensor) -> Tensor:
    """Sum over mixtures of ``w0 M12(r) + w1 M32(r) + w2 M52(r) + w3 M72(r) + w4 exp(-r^2 / 10)``.

    r is the distance of a query from a key and M a Matern correlation, ``exp(-r)`` times a polynomial (Rasmussen &
    Williams 2006, equation 4.17, with length scales of ``sqrt(2 nu)``). Differentiable with respect to all arguments;
    nothing of the size of the pairs is saved for the backward pass.

    Parameters
    ----------
    xq, xk : Tensor
        Locations in units of the length scales, ``(batch, mixtures, n_q, d_x)`` and ``(batch, mixtures, n_k, d_x)``.
    weights : Tensor
        ``(batch, mixtures, 5)``.

    Returns
    -------
    Tensor
        ``(batch, n_q, n_k)``.
    """
    covariance: Tensor = _MaternMixture.apply(xq, xk, polynomial(weights))  # type: ignore[no-untyped-call]
    return covariance


def polynomial(weights: Tensor) -> Tensor:
    """Coefficients a, b, c, d, e of ``exp(-r) (a + b r + c r^2 + d r^3) + e exp(-r^2 / 10)``."""
    m12, m32, m52, m72, gaussian = weights.unbind(-1)
    linear = m32 + m52 + m72
    return torch.stack([m12 + linear, linear, m52 / 3 + 0.4 * m72, m72 / 15, gaussian], -1)


@dataclass(frozen=True)
class MixtureTerms:
    """Values of mixtures at coordinate differences, and the parts of their derivatives.

    Attributes
    ----------
    value : Tensor
        Sum of the mixtures, ``(batch, n)``.
    basis : Tensor
        Derivative by each coefficient of :func:`polynomial`, ``(batch, mixtures, 5, n)``.
    slope : Tensor
        Derivative by half of the squared distance, ``(batch, mixtures, n)``.
    products : Tensor
        Derivative of half of the squared distance by each entry of the metric, ``(..., n_entries, n)``.
    """

    value: Tensor
    basis: Tensor
    slope: Tensor
    products: Tensor

    def gradient(self, by_value: Tensor) -> Tensor:
        """Chain rule: derivatives ``(batch, n)`` by `value` to those by coefficients and metrics, ``(batch, p)``."""
        by_coefficient = (self.basis @ by_value[:, None, :, None])[..., 0]
        by_metric = (self.slope * by_value[:, None]) @ self.products.mT
        return torch.cat([by_coefficient, by_metric], -1).flatten(1)

    def derivatives(self) -> Tensor:
        """Derivatives of `value` by coefficients and metric of each mixture, ``(batch, p, n)``."""
        by_metric = self.slope[:, :, None] * self.products[..., None, :, :]
        return torch.cat([self.basis, by_metric], 2).flatten(1, 2)


def mixture_terms(coefficients: Tensor, metric: Tensor, differences: Tensor) -> MixtureTerms:
    """The mixtures of :func:`matern_mixture` with their derivatives, outside of autograd.

    Parameters
    ----------
    coefficients : Tensor
        Of :func:`polynomial`, ``(batch, mixtures, 5)``.
    metric : Tensor
        Lower triangles, row by row, of the matrices of the squared distances, ``(batch, mixtures, n_entries)``.
    differences : Tensor
        Coordinate differences, ``(n, d_x)`` for all tasks or ``(batch, n, d_x)``.
    """
    d_x = differences.shape[-1]
    x = differences.unbind(-1)
    products = torch.stack([x[i] * x[j] * (0.5 if i == j else 1.0) for i in range(d_x) for j in range(i + 1)], -2)
    squared = (2 * metric @ products).clamp_(1e-12, MAX_SQUARED)
    basis = squared.new_empty(*squared.shape[:2], N_KERNELS, squared.shape[2])
    r = squared.sqrt()
    torch.mul(r, -LOG2E, out=basis[:, :, 0]).exp2_()
    for i in range(1, 4):
        torch.mul(basis[:, :, i - 1], r, out=basis[:, :, i])
    torch.mul(squared, -0.1 * LOG2E, out=(gaussian := basis[:, :, 4])).exp2_()
    a, b, c, d, e = coefficients.unbind(2)
    by_distance = torch.stack([b - a, 2 * c - b, 3 * d - c, -d], -1)[:, :, None]
    slope = (by_distance @ basis[:, :, :4])[:, :, 0].div_(r).addcmul_(gaussian, e[..., None], value=-0.2)
    value = coefficients.flatten(1)[:, None] @ basis.flatten(1, 2)
    return MixtureTerms(value[:, 0], basis, slope, products)


class _MaternMixture(torch.autograd.Function):
    """The mixture in place, with a third of the passes over memory that autograd would make."""

    @staticmethod
    def forward(ctx: Any, xq: Tensor, xk: Tensor, coefficients: Tensor) -> Tensor:
        ctx.save_for_backward(xq, xk, coefficients)
        out = xq.new_empty(xq.shape[0], xq.shape[2], xk.shape[2])
        for tasks, rows in pair_blocks(len(xq), xq.shape[2], xk.shape[2], xq.device.type, BLOCKS.covariance):
            r, decay, gaussian = _radial(xq[tasks, :, rows], xk[tasks])
            a, b, c, d, e = coefficients[tasks, ..., None, None].unbind(2)
            value = (r * d).add_(c)
            for coefficient in (b, a):
                torch.addcmul(coefficient, value, r, out=value)
            torch.sum(value.mul_(decay).addcmul_(gaussian, e), 1, out=out[tasks, rows])
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        xq, xk, coefficients = ctx.saved_tensors
        grad_q, grad_k, grad_coefficients = (torch.zeros_like(t) for t in ctx.saved_tensors)
        for tasks, rows in pair_blocks(len(xq), xq.shape[2], xk.shape[2], xq.device.type, BLOCKS.covariance):
            q, k = xq[tasks, :, rows], xk[tasks]
            r, grad, gaussian = _radial(q, k)
            a, b, c, d, e = coefficients[tasks, ..., None, None].unbind(2)
            grad.mul_(grad_outputs[0][tasks, None, rows])
            gaussian.mul_(grad_outputs[0][tasks, None, rows])
            # derivative by half of the squared distance
            slope = (r * -d).add_(3 * d - c).mul_(r).add_(2 * c - b).mul_(r).add_(b - a).mul_(grad).div_(r)
            slope.sub_(gaussian * (0.2 * e))
            sums = [grad.sum((-2, -1)), *(grad.mul_(r).sum((-2, -1)) for _ in range(3)), gaussian.sum((-2, -1))]
            grad_coefficients[tasks] += torch.stack(sums, -1)
            grad_q[tasks, :, rows] = q * slope.sum(-1, keepdim=True) - slope @ k
            grad_k[tasks] += k * slope.sum(-2)[..., None] - slope.mT @ q
        return grad_q, grad_k, grad_coefficients


def _radial(xq: Tensor, xk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distance r, ``exp(-r)`` and ``exp(-r^2 / 10)`` of all pairs, ``(batch, mixtures, n_q, n_k)`` each."""
    squared = (xq[..., :, None, 0] - xk[..., None, :, 0]).square_()
    for i in range(1, xq.shape[-1]):
        squared.add_((xq[..., :, None, i] - xk[..., None, :, i]).square_())
    gaussian = (squared.clamp_max_(MAX_SQUARED) * (-0.1 * LOG2E)).exp2_()
    # the offset keeps the slope of r finite at zero
    r = squared.add_(1e-12).sqrt_()
    return r, (r * -LOG2E).exp2_(), gaussian
