"""Local Gaussian processes: their covariance, and which way and how far the likelihood of a context moves them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from geonp.nn.covariance import N_KERNELS, Terms, matern_mixture, mixture_terms, polynomial
from geonp.nn.lattice import Differences, differences, symmetric
from geonp.nn.likelihood import information, log_likelihood

__all__ = ["Family", "Linearised", "Sample"]

DIFFERENCE = 1e-5
"""Change of a raw parameter by which the natural ones are differentiated, in float64."""


@dataclass(frozen=True)
class Sample:
    """Some points of contexts.

    Attributes
    ----------
    local, x, y, mask : Tensor
        What is local ``(batch, n, 2)``, locations ``(batch, n, d_x)``, values ``(batch, n, d_y)``, and which points
        there are ``(batch, n)``.
    """

    local: Tensor
    x: Tensor
    y: Tensor
    mask: Tensor

    @cached_property
    def pairs(self) -> Differences:
        """Differences of all pairs, float64."""
        return symmetric(self.x.double())

    def at(self, index: Tensor, mask: Tensor) -> Sample:
        """The points ``(batch, n)`` of these, where `mask` has them."""
        local, x, y = (t.gather(1, index[..., None].expand(-1, -1, t.shape[-1])) for t in (self.local, self.x, self.y))
        return Sample(local, x, y, self.mask.gather(1, index) & mask)


@dataclass(frozen=True)
class Linearised:
    """Parameters of a :class:`Family`, and how the natural ones change with the raw ones.

    Attributes
    ----------
    natural, change : Tensor
        ``(batch, n_natural)`` and ``(batch, n_natural, size)``, float64.
    """

    natural: Tensor
    change: Tensor


@dataclass(frozen=True)
class Family:
    """A family of local processes: anisotropic Matern mixtures, an unknown constant, and amplitude and noise by point.

    Its parameters are *raw*, ``(batch, size)``, unbounded numbers of about unit scale. Each point has an amplitude and
    a noise of its own, *local* ``(batch, n, 2)``, relative to those that the raw parameters say. The *natural*
    parameters are those that the covariance is linear in, but for the metrics: of each mixture the coefficients of
    :func:`~geonp.nn.covariance.polynomial` and the entries of its metric, then the variance of the constant and the
    logarithm of the noise.

    All is in float64: the inverse of a smooth process's covariance would magnify float32's rounding up to a standard
    error.

    Attributes
    ----------
    d_x : int
        Coordinates.
    lengths : tuple of float
        Of the mixtures, where the raw parameters are zero.
    noise_floor : float
        Least variance of the noise, in that of the standardised context.
    """

    d_x: int
    lengths: tuple[float, ...]
    noise_floor: float

    @property
    def size(self) -> int:
        """Number of raw parameters."""
        return len(self.lengths) * (self._n_shape + 1 + N_KERNELS) + 2

    @property
    def _n_shape(self) -> int:
        return self.d_x * (self.d_x + 1) // 2

    def covariance(
        self, raw: Tensor, local_q: Tensor, local_k: Tensor, xq: Tensor, xk: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Covariance ``(batch, n_q, n_k)``, and the variance and the noise variance of the former ``(batch, n_q)``.

        Differentiable by `raw` and by what is local.
        """
        raw, local_q, local_k, xq, xk = (t.double() for t in (raw, local_q, local_k, xq, xk))
        amplitude_q, amplitude_k = _amplitude(local_q), _amplitude(local_k)
        shape, weights, constant = self._split(raw)
        kernel = self._kernel(xq, xk, shape, weights).mul(amplitude_q[:, :, None]).mul(amplitude_k[:, None])
        variance = amplitude_q.square() * weights.sum((1, 2))[:, None] + constant
        return kernel.add(constant[:, :, None]), variance, self._noise(raw[:, -1:], local_q)

    @torch.no_grad()
    def linearised(self, raw: Tensor) -> Linearised:
        """The parameters and their derivatives, these by central differences.

        They are some hundred numbers: their exact derivatives would cost more calls than all else here.
        """
        raw = raw.double()
        steps = torch.eye(raw.shape[1]).to(raw) * DIFFERENCE
        moved = torch.cat([raw[:, None], raw[:, None] + steps, raw[:, None] - steps], 1)
        natural, up, down = (
            self._natural(moved.flatten(0, 1)).unflatten(0, moved.shape[:2]).split([1, len(steps), len(steps)], 1)
        )
        return Linearised(natural[:, 0], ((up - down) / (2 * DIFFERENCE)).mT)

    @torch.no_grad()
    def slope(self, at: Linearised, sample: Sample) -> tuple[Tensor, Tensor]:
        """Log likelihood of a sample, per point ``(batch,)``, and its gradient by the raw parameters, in float64.

        It holds some ten numbers of float64 for each pair and mixture.
        """
        local, pairs, natural = sample.local.double(), sample.pairs, at.natural
        amplitude, noise = _amplitude(local), self._noise(natural[:, -1:], local)
        terms = self._terms(natural, pairs.values)
        kernel = pairs.of_pairs(terms.value)
        kernel.mul_(amplitude[:, :, None]).mul_(amplitude[:, None]).add_(natural[:, -2, None, None])
        likelihood, by_kernel = log_likelihood(kernel, noise, sample.y, sample.mask)
        by_noise = by_kernel.diagonal(dim1=1, dim2=2) * self._noise_slope(natural[:, -1:], local, noise)
        rest = torch.stack([by_kernel.sum((1, 2)), by_noise.sum(1)], 1)
        by_kernel.mul_(amplitude[:, :, None]).mul_(amplitude[:, None])
        gradient = torch.cat([terms.gradient(pairs.sums(by_kernel)), rest], 1)
        return likelihood, (gradient[:, None] @ at.change)[:, 0]

    @torch.no_grad()
    def information(self, at: Linearised, sample: Sample) -> Tensor:
        """Fisher information of the raw parameters in a sample, per point, ``(batch, size, size)`` in float64."""
        local, x, natural = sample.local.double(), sample.x.double(), at.natural
        amplitude, noise = _amplitude(local), self._noise(natural[:, -1:], local)
        apart = x[:, :, None] - x[:, None]
        terms = self._terms(natural, apart.flatten(1, 2))
        amplitudes = (amplitude[:, :, None] * amplitude[:, None]).flatten(1)
        kernel = (terms.value * amplitudes).view(apart.shape[:3]) + natural[:, -2, None, None]
        by_noise = torch.diag_embed(self._noise_slope(natural[:, -1:], local, noise))
        changes = terms.changes().mul_(amplitudes[:, None]).unflatten(2, apart.shape[1:3])
        changes = torch.cat([changes, torch.ones_like(kernel)[:, None], by_noise[:, None]], 1)
        return at.change.mT @ information(kernel, noise, changes, sample.mask) @ at.change

    def _split(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whitening ``(batch, kernels, d_x, d_x)``, weights ``(batch, kernels, 5)`` and constant ``(batch, 1)``."""
        sizes = [self._n_shape, 1, N_KERNELS]
        shape, weight, smoothness = raw[:, :-2].unflatten(-1, (len(self.lengths), -1)).split(sizes, -1)
        weights = torch.exp(4.0 * torch.tanh(weight / 4.0)) / len(self.lengths) * torch.softmax(smoothness, -1)
        return self._whitening(shape), weights, F.softplus(raw[:, -2:-1])

    def _whitening(self, shape: Tensor) -> Tensor:
        """Lower-triangular ``(batch, kernels, d_x, d_x)`` matrices from coordinate differences to scaled ones."""
        scales, skew = torch.split(shape, [self.d_x, self._n_shape - self.d_x], -1)
        matrix = torch.diag_embed(torch.ones_like(scales))
        rows, cols = torch.tril_indices(self.d_x, self.d_x, -1)
        matrix[..., rows, cols] = 2.0 * torch.tanh(skew / 2.0)
        lengths = scales.new_tensor(self.lengths)[:, None]
        return matrix * (torch.exp(-3.0 * torch.tanh(scales / 3.0)) / lengths)[..., None, :]

    def _kernel(self, xq: Tensor, xk: Tensor, whitening: Tensor, weights: Tensor) -> Tensor:
        """Covariance ``(batch, n_q, n_k)`` of the stationary part."""
        found = differences(xq, xk)
        if found is None:
            return matern_mixture(xq[:, None] @ whitening, xk[:, None] @ whitening, weights)
        places = found.values @ whitening
        return found.of_pairs(matern_mixture(places, torch.zeros_like(places[..., :1, :]), weights)[..., 0])

    def _natural(self, raw: Tensor) -> Tensor:
        """The natural parameters, ``(batch, kernels * (5 + n_shape) + 2)``."""
        whitening, weights, constant = self._split(raw)
        rows, cols = torch.tril_indices(self.d_x, self.d_x)
        metric = (whitening @ whitening.mT)[..., rows, cols]
        return torch.cat([torch.cat([polynomial(weights), metric], -1).flatten(1), constant, raw[:, -1:]], 1)

    def _terms(self, natural: Tensor, places: Tensor) -> Terms:
        of_mixtures = natural[:, :-2].unflatten(1, (len(self.lengths), -1))
        coefficients, metric = of_mixtures.split([N_KERNELS, self._n_shape], -1)
        return mixture_terms(coefficients, metric, places)

    def _noise(self, log_noise: Tensor, local: Tensor) -> Tensor:
        """Variance of the noise ``(batch, n)``, never above ``exp(2)``."""
        log_noise = log_noise + local[..., 1]
        return self.noise_floor + torch.exp(log_noise - 4.0 - F.softplus(log_noise - 6.0))

    def _noise_slope(self, log_noise: Tensor, local: Tensor, noise: Tensor) -> Tensor:
        """Derivative of the noise by its logarithm, which :meth:`_noise` bounds, ``(batch, n)``."""
        return (noise - self.noise_floor) * torch.sigmoid(6.0 - log_noise - local[..., 1])


def _amplitude(local: Tensor) -> Tensor:
    return torch.exp(1.5 * torch.tanh(local[..., 0] / 1.5))
