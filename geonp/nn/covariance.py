"""Mixtures of stationary covariances of many pairs of points, in blocks that stay in a processor's cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from geonp.nn.blocks import LOG2E, pair_blocks

__all__ = ["N_KERNELS", "Terms", "matern_mixture", "mixture_terms", "polynomial"]

N_KERNELS = 5
"""Matern 1/2, 3/2, 5/2, 7/2 and the Gaussian with the curvature of the last."""

FARTHEST = 6400.0
"""Squared distance beyond which all is nothing; but subnormal numbers cost ten times as much."""

BLOCK_PAIRS = 2**14
"""Pairs in a block on a CPU: four float64 arrays of that size, times two kernels, fill a cache of 1 MiB."""


def matern_mixture(xq: Tensor, xk: Tensor, weights: Tensor) -> Tensor:
    """Sum over mixtures of ``w0 M12(r) + w1 M32(r) + w2 M52(r) + w3 M72(r) + w4 exp(-r^2 / 10)``.

    M is a Matern correlation in units of its length, ``exp(-r)`` times a polynomial, r the distance of a query from a
    key. Differentiable by all arguments; it saves none of the pairs.

    Parameters
    ----------
    xq, xk : Tensor
        Locations in units of the lengths, ``(batch, mixtures, n_q, d_x)`` and ``(batch, mixtures, n_k, d_x)``.
    weights : Tensor
        ``(batch, mixtures, 5)``.

    Returns
    -------
    Tensor
        ``(batch, n_q, n_k)``.
    """
    covariance: Tensor = _Mixture.apply(xq, xk, polynomial(weights))  # type: ignore[no-untyped-call]
    return covariance


def polynomial(weights: Tensor) -> Tensor:
    """Coefficients a, b, c, d, e of ``exp(-r) (a + b r + c r^2 + d r^3) + e exp(-r^2 / 10)``."""
    half, three, five, seven, bell = weights.unbind(-1)
    long = three + five + seven
    return torch.stack([half + long, long, five / 3 + 0.4 * seven, seven / 15, bell], -1)


@dataclass(frozen=True)
class Terms:
    """Mixtures at some differences of places, and what they change by with their parameters.

    Attributes
    ----------
    value : Tensor
        The sum of the mixtures, ``(batch, n)``.
    basis : Tensor
        What each coefficient of :func:`polynomial` multiplies, ``(batch, mixtures, 5, n)``.
    slope : Tensor
        Derivative by half the square of the distance, ``(batch, mixtures, n)``.
    products : Tensor
        What each entry of a metric multiplies in that half, ``(..., n_entries, n)``.
    """

    value: Tensor
    basis: Tensor
    slope: Tensor
    products: Tensor

    def gradient(self, by_value: Tensor) -> Tensor:
        """Of a function, from that by `value`: by coefficients and metric of each mixture, ``(batch, parameters)``."""
        by_coefficient = (self.basis @ by_value[:, None, :, None])[..., 0]
        by_metric = (self.slope * by_value[:, None]) @ self.products.mT
        return torch.cat([by_coefficient, by_metric], -1).flatten(1)

    def changes(self) -> Tensor:
        """Derivatives of `value` by coefficients and metric of each mixture, ``(batch, parameters, n)``."""
        by_metric = self.slope[:, :, None] * self.products[..., None, :, :]
        return torch.cat([self.basis, by_metric], 2).flatten(1, 2)


def mixture_terms(coefficients: Tensor, metric: Tensor, places: Tensor) -> Terms:
    """The mixtures of :func:`matern_mixture` with their derivatives, without gradients.

    Parameters
    ----------
    coefficients : Tensor
        Of :func:`polynomial`, ``(batch, mixtures, 5)``.
    metric : Tensor
        Lower triangles, row by row, of the matrices that give squared distances, ``(batch, mixtures, n_entries)``.
    places : Tensor
        Differences of places, of all tasks ``(n, d_x)`` or of each ``(batch, n, d_x)``.
    """
    d_x = places.shape[-1]
    x = places.unbind(-1)
    products = torch.stack([x[i] * x[j] * (0.5 if i == j else 1.0) for i in range(d_x) for j in range(i + 1)], -2)
    squared = (2 * metric @ products).clamp_(1e-12, FARTHEST)
    basis = squared.new_empty(*squared.shape[:2], 5, squared.shape[2])
    r = squared.sqrt()
    torch.mul(r, -LOG2E, out=basis[:, :, 0]).exp2_()
    for i in range(1, 4):
        torch.mul(basis[:, :, i - 1], r, out=basis[:, :, i])
    torch.mul(squared, -0.1 * LOG2E, out=(bell := basis[:, :, 4])).exp2_()
    a, b, c, d, e = coefficients.unbind(2)
    of_decay = torch.stack([b - a, 2 * c - b, 3 * d - c, -d], -1)[:, :, None]
    slope = (of_decay @ basis[:, :, :4])[:, :, 0].div_(r).addcmul_(bell, e[..., None], value=-0.2)
    value = coefficients.flatten(1)[:, None] @ basis.flatten(1, 2)
    return Terms(value[:, 0], basis, slope, products)


class _Mixture(torch.autograd.Function):
    """The mixture in passes that work in place, a third of those that autograd would make."""

    @staticmethod
    def forward(ctx: Any, xq: Tensor, xk: Tensor, coefficients: Tensor) -> Tensor:
        ctx.save_for_backward(xq, xk, coefficients)
        out = xq.new_empty(xq.shape[0], xq.shape[2], xk.shape[2])
        for part, rows in pair_blocks(len(xq), xq.shape[2], xk.shape[2], xq.device.type, BLOCK_PAIRS):
            r, decay, bell = _radial(xq[part, :, rows], xk[part])
            a, b, c, d, e = coefficients[part, ..., None, None].unbind(2)
            value = (r * d).add_(c)
            for coefficient in (b, a):
                torch.addcmul(coefficient, value, r, out=value)
            torch.sum(value.mul_(decay).addcmul_(bell, e), 1, out=out[part, rows])
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        xq, xk, coefficients = ctx.saved_tensors
        by_q, by_k, by_coefficient = (torch.zeros_like(t) for t in ctx.saved_tensors)
        for part, rows in pair_blocks(len(xq), xq.shape[2], xk.shape[2], xq.device.type, BLOCK_PAIRS):
            q, k = xq[part, :, rows], xk[part]
            r, grad, bell = _radial(q, k)
            a, b, c, d, e = coefficients[part, ..., None, None].unbind(2)
            grad.mul_(grad_outputs[0][part, None, rows])
            bell.mul_(grad_outputs[0][part, None, rows])
            # the derivative by half the square of the distance
            slope = (r * -d).add_(3 * d - c).mul_(r).add_(2 * c - b).mul_(r).add_(b - a).mul_(grad).div_(r)
            slope.sub_(bell * (0.2 * e))
            sums = [grad.sum((-2, -1)), *(grad.mul_(r).sum((-2, -1)) for _ in range(3)), bell.sum((-2, -1))]
            by_coefficient[part] += torch.stack(sums, -1)
            by_q[part, :, rows] = q * slope.sum(-1, keepdim=True) - slope @ k
            by_k[part] += k * slope.sum(-2)[..., None] - slope.mT @ q
        return by_q, by_k, by_coefficient


def _radial(xq: Tensor, xk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distance r, ``exp(-r)`` and ``exp(-r^2 / 10)`` of all pairs, ``(batch, mixtures, n_q, n_k)`` each."""
    squared = (xq[..., :, None, 0] - xk[..., None, :, 0]).square_()
    for i in range(1, xq.shape[-1]):
        squared.add_((xq[..., :, None, i] - xk[..., None, :, i]).square_())
    bell = (squared.clamp_max_(FARTHEST) * (-0.1 * LOG2E)).exp2_()
    # no slope is infinite at a distance of zero
    r = squared.add_(1e-12).sqrt_()
    return r, (r * -LOG2E).exp2_(), bell
