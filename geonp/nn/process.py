"""The covariance model of a local Gaussian process, with the score and the Fisher information of its parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from geonp.nn.covariance import N_KERNELS, MixtureTerms, matern_mixture, mixture_terms, polynomial
from geonp.nn.lattice import lattice_differences
from geonp.nn.layers import masked_mean
from geonp.nn.likelihood import Likelihood, fisher_information, log_likelihood
from geonp.nn.observations import Observations, bounded_noise
from geonp.raster.arrays import FloatArray


def soft_clamp(x: Tensor, limit: float) -> Tensor:
    """Smoothly bound `x` to ``(-limit, limit)``, with slope one at zero."""
    return limit * torch.tanh(x / limit)


@dataclass(frozen=True)
class LocalProcess:
    """A Gaussian process with the covariance ``(A A') k + F F'`` at targets and context, in this order, float64.

    Attributes
    ----------
    metric : Tensor
        Of each mixture, ``(batch, mixtures, d_x, d_x)``: k is a function of the distances ``(d' metric d)^(1/2)``.
    weights : Tensor
        Of the kernels of each mixture, ``(batch, mixtures, 5)``, see :func:`~geonp.nn.covariance.matern_mixture`.
    amplitudes : Tensor
        A: what independent fields with the covariance k are multiplied by, ``(batch, n, fields)``.
    trends : Tensor
        F: what independent standard normal numbers are multiplied by, ``(batch, n, numbers)``.
    noise : Tensor
        Noise variance of each point, known errors included, ``(batch, n)``.
    """

    metric: Tensor
    weights: Tensor
    amplitudes: Tensor
    trends: Tensor
    noise: Tensor

    @classmethod
    def stationary(cls, metric: FloatArray, weights: FloatArray, constant: float, noise: float) -> LocalProcess:
        """One task with one point, with the variances of a random constant and of the noise.

        Metrics ``(mixtures, d_x, d_x)`` and weights ``(mixtures, 5)`` are arrays.
        """
        of_point = np.ones((1, 1)), np.full((1, 1), math.sqrt(constant)), np.full(1, noise)
        return cls(*(torch.from_numpy(each[None]) for each in (metric, weights, *of_point)))

    def cpu(self) -> LocalProcess:
        """The process on the CPU."""
        return replace(self, **{name: tensor.cpu() for name, tensor in vars(self).items()})

    def covariance(self, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Covariance of some points at `x` ``(batch, n, d_x)`` with others, without noise; numbers of points."""
        whitening = torch.linalg.cholesky(self.metric)
        places = x.double()[:, None] @ whitening
        kernel = matern_mixture(places[:, :, rows], places[:, :, columns], self.weights)
        kernel.mul_(self.amplitudes[:, rows] @ self.amplitudes[:, columns].mT)
        return kernel.add_(self.trends[:, rows] @ self.trends[:, columns].mT)

    @property
    def variance(self) -> Tensor:
        """Variance of each point without noise, ``(batch, n)``."""
        return self.amplitudes.square().sum(-1) * self.weights.sum((1, 2))[:, None] + self.trends.square().sum(-1)


@dataclass(frozen=True)
class Linearisation:
    """Natural parameters of a :class:`CovarianceModel` at some raw ones, and their Jacobian.

    Attributes
    ----------
    natural, jacobian : Tensor
        ``(batch, n_natural)`` and ``(batch, n_natural, n_raw)``, float64.
    """

    natural: Tensor
    jacobian: Tensor


@dataclass(frozen=True)
class CovarianceModel:
    """Anisotropic Matern mixtures plus a random constant, with an amplitude and a noise variance at each point.

    The covariance of points i and j is ``a_i a_j sum_m k_m(x_i - x_j) + c``, plus the noise variance of i where
    ``i = j``. Each k_m is a mixture of five kernels (:func:`~geonp.nn.covariance.matern_mixture`) of one anisotropic
    distance; c is the prior variance of an unknown constant, as in ordinary kriging.

    *Raw* parameters ``(batch, n_raw)`` are unbounded numbers of about unit scale, which a network can predict. *Local*
    ones ``(batch, n, 2)`` are the log amplitude and log noise of each point relative to them. *Natural* parameters are
    those of which the covariance is a linear function, except for the metrics: for each mixture the coefficients of
    :func:`~geonp.nn.covariance.polynomial` and the entries of the metric, then c and the log noise.

    Everything is float64, as the inverse of a smooth covariance amplifies the rounding errors of float32 to the size of
    a standard error. The fields with defaults are part of the model: weights are trained with them.
    """

    d_x: int
    """Number of coordinates."""
    lengths: tuple[float, ...]
    """Length scale of each mixture at zero raw parameters."""
    noise_floor: float = 1e-8
    """Smallest noise variance of standardised values, above the rounding error of float32."""
    max_log_length: float = 3.0
    """Bound of the log factor of a length scale, by :func:`soft_clamp`: a factor of 20."""
    max_shear: float = 2.0
    """Bound of the entries below the diagonal of the whitening matrix."""
    max_log_variance: float = 4.0
    """Bound of the log variance of a mixture."""
    max_log_amplitude: float = 1.5
    """Bound of the log amplitude of a point."""
    log_noise: float = -4.0
    """Log noise variance at zero raw parameters."""
    max_log_noise: float = 2.0
    """Upper bound of the log noise variance."""
    doubtful: float = 3.0
    """Leave-one-out residual, in standard deviations, above which an observation may be noisier than the process."""
    log_odds: float = 14.0
    """Log odds of a kernel that a mixture has nearly alone."""
    step: float = 1e-5
    """Step of the central differences of :meth:`linearise`."""

    @property
    def n_raw(self) -> int:
        """Number of raw parameters."""
        return len(self.lengths) * (self._n_metric + 1 + N_KERNELS) + 2

    @property
    def _n_metric(self) -> int:
        """Number of entries of a symmetric matrix."""
        return self.d_x * (self.d_x + 1) // 2

    def covariance(
        self, raw: Tensor, local_q: Tensor, local_k: Tensor, xq: Tensor, xk: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Covariance of queries and keys, differentiable with respect to `raw`, `local_q` and `local_k`.

        Returns
        -------
        tuple of Tensor
            Covariance ``(batch, n_q, n_k)`` without noise, variance and noise variance of the queries ``(batch, n_q)``.
        """
        raw, local_q, local_k, xq, xk = (t.double() for t in (raw, local_q, local_k, xq, xk))
        amplitude_q, amplitude_k = self._amplitude(local_q), self._amplitude(local_k)
        whitening, weights, constant = self._split(raw)
        kernel = self._stationary(xq, xk, whitening, weights).mul(amplitude_q[:, :, None]).mul(amplitude_k[:, None])
        variance = amplitude_q.square() * weights.sum((1, 2))[:, None] + constant
        return kernel.add(constant[:, :, None]), variance, self._noise(raw[:, -1:], local_q)

    @torch.no_grad()
    def process(self, raw: Tensor, local: Tensor) -> LocalProcess:
        """The process of :meth:`covariance` at the points of `local`."""
        raw, local = raw.double(), local.double()
        whitening, weights, constant = self._split(raw)
        trends = constant.sqrt()[:, None].expand(-1, local.shape[1], -1)
        amplitudes, noise = self._amplitude(local)[..., None], self._noise(raw[:, -1:], local)
        return LocalProcess(whitening @ whitening.mT, weights, amplitudes, trends, noise)

    @torch.no_grad()
    def fields(self, raw: Tensor, observations: Observations) -> tuple[Tensor, Tensor]:
        """Covariance of observations by each mixture, ``(batch, mixtures, n, n)``, and by the constant, float64."""
        amplitude = self._amplitude(observations.bounded_local)
        _, _, constant = self._split(raw)
        products = amplitude[:, :, None] * amplitude[:, None]
        return self._correlations(raw, observations) * products[:, None], constant[:, :, None]

    def noise(self, raw: Tensor, observations: Observations) -> Tensor:
        """Noise variance of observations, ``(batch, n)``, float64."""
        return self._noise(raw[:, -1:], observations.bounded_local)

    @torch.no_grad()
    def moved_to_noise(self, raw: Tensor, mixture: int, share: float, observations: Observations) -> Tensor:
        """Raw parameters with a share of a mixture's variance, averaged over the observations, moved to the noise."""
        square = masked_mean(self._amplitude(observations.bounded_local).square()[..., None], observations.mask)
        noise = torch.exp(raw[:, -1] + self.log_noise) + share * self._split(raw)[1][:, mixture].sum(-1) * square[:, 0]
        raw = self.scaled(raw, mixture, torch.full_like(noise, 1 - share))
        raw[:, -1] = noise.log() - self.log_noise
        return raw

    @torch.no_grad()
    def scaled(self, raw: Tensor, mixture: int, factor: Tensor) -> Tensor:
        """Raw parameters with the variance of a mixture multiplied by a `factor` ``(batch,)``, as far as it may be."""
        column, limit = mixture * (self._n_metric + 1 + N_KERNELS) + self._n_metric, self.max_log_variance
        log_variance = soft_clamp(raw[:, column], limit) + factor.log()
        raw = raw.clone()
        raw[:, column] = limit * torch.atanh((log_variance / limit).clamp(-0.999, 0.999))
        return raw

    @torch.no_grad()
    def rough_share(self, raw: Tensor) -> Tensor:
        """Share of the Matern 1/2 and 3/2 in the first mixture, ``(batch,)``."""
        weights = self._split(raw)[1][:, 0]
        return weights[:, :2].sum(-1) / weights.sum(-1)

    @torch.no_grad()
    def with_kernel(self, raw: Tensor, kernel: int, factor: float) -> Tensor:
        """Raw parameters whose first mixture has nearly one `kernel` alone, and lengths multiplied by a `factor`."""
        raw, end = raw.clone(), self._n_metric + 1 + N_KERNELS
        raw[:, end - N_KERNELS : end] = self.log_odds * (torch.arange(N_KERNELS).to(raw) == kernel)
        limit = self.max_log_length
        log_length = soft_clamp(raw[:, : self.d_x], limit) + math.log(factor)
        raw[:, : self.d_x] = limit * torch.atanh((log_length / limit).clamp(-0.999, 0.999))
        return raw

    @torch.no_grad()
    def linearise(self, raw: Tensor) -> Linearisation:
        """Natural parameters and their Jacobian with respect to the raw ones, by central differences.

        There are about a hundred entries. Automatic differentiation would take more calls than the rest of a scoring
        step.
        """
        raw = raw.double()
        steps = torch.eye(raw.shape[1]).to(raw) * self.step
        points = torch.cat([raw[:, None], raw[:, None] + steps, raw[:, None] - steps], 1)
        natural, up, down = (
            self._natural(points.flatten(0, 1)).unflatten(0, points.shape[:2]).split([1, len(steps), len(steps)], 1)
        )
        return Linearisation(natural[:, 0], ((up - down) / (2 * self.step)).mT)

    @torch.no_grad()
    def score(self, at: Linearisation, observations: Observations) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log likelihood per point, ``(batch,)``, and its gradient with respect to the raw parameters, float64.

        The third is the mask of the points that are to be :meth:`trusted`. The memory is about ten float64 numbers for
        each pair of points and mixture.
        """
        local, differences, natural = observations.bounded_local, observations.differences, at.natural
        amplitude, noise = self._amplitude(local), self._noise(natural[:, -1:], local)
        terms = self._terms(natural, differences.values)
        kernel = differences.to_pairs(terms.value)
        kernel.mul_(amplitude[:, :, None]).mul_(amplitude[:, None]).add_(natural[:, -2, None, None])
        likelihood = log_likelihood(kernel, observations.with_errors(noise), observations.y, observations.mask)
        by_kernel = likelihood.derivative
        by_noise = by_kernel.diagonal(dim1=1, dim2=2) * self._noise_slope(natural[:, -1:], local, noise)
        by_constant_and_noise = torch.stack([by_kernel.sum((1, 2)), by_noise.sum(1)], 1)
        by_kernel.mul_(amplitude[:, :, None]).mul_(amplitude[:, None])
        gradient = torch.cat([terms.gradient(differences.sum_pairs(by_kernel)), by_constant_and_noise], 1)
        trusted_mask = self.trusted(natural[:, -1:], observations, likelihood)
        return likelihood.value, (gradient[:, None] @ at.jacobian)[:, 0], trusted_mask

    @torch.no_grad()
    def trusted(self, log_noise: Tensor, observations: Observations, likelihood: Likelihood) -> Tensor | None:
        """Points whose leave-one-out residual is at most :attr:`doubtful` standard deviations, ``(batch, n)``.

        The deviation is the one that a point would have if it were trusted, so that trust can be regained. None if
        observations are not checked.
        """
        if observations.trusted_mask is None:
            return None
        local = observations.local.double()
        trusted = bounded_noise(local, torch.ones_like(observations.mask))
        more = self._noise(log_noise, observations.bounded_local) - self._noise(log_noise, trusted)
        variance = (likelihood.variance - more).clamp_min(self.noise_floor)
        return likelihood.residual.abs().amax(-1) <= self.doubtful * variance.sqrt()

    @torch.no_grad()
    def fisher_information(self, at: Linearisation, observations: Observations) -> Tensor:
        """Fisher information of the raw parameters per point, ``(batch, n_raw, n_raw)``, float64."""
        local, x, natural = observations.bounded_local, observations.x.double(), at.natural
        amplitude, noise = self._amplitude(local), self._noise(natural[:, -1:], local)
        differences = x[:, :, None] - x[:, None]
        terms = self._terms(natural, differences.flatten(1, 2))
        amplitudes = (amplitude[:, :, None] * amplitude[:, None]).flatten(1)
        kernel = (terms.value * amplitudes).view(differences.shape[:3]) + natural[:, -2, None, None]
        by_noise = torch.diag_embed(self._noise_slope(natural[:, -1:], local, noise))
        derivatives = terms.derivatives().mul_(amplitudes[:, None]).unflatten(2, differences.shape[1:3])
        derivatives = torch.cat([derivatives, torch.ones_like(kernel)[:, None], by_noise[:, None]], 1)
        return at.jacobian.mT @ fisher_information(kernel, noise, derivatives, observations.mask) @ at.jacobian

    def _split(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whitening ``(batch, mixtures, d_x, d_x)``, weights ``(batch, mixtures, 5)`` and constant ``(batch, 1)``."""
        sizes = [self._n_metric, 1, N_KERNELS]
        shape, variance, logits = raw[:, :-2].unflatten(-1, (len(self.lengths), -1)).split(sizes, -1)
        variance = torch.exp(soft_clamp(variance, self.max_log_variance)) / len(self.lengths)
        return self._whitening(shape), variance * torch.softmax(logits, -1), F.softplus(raw[:, -2:-1])

    def _whitening(self, shape: Tensor) -> Tensor:
        """Lower-triangular ``(batch, mixtures, d_x, d_x)`` matrices from coordinate differences to scaled ones."""
        log_lengths, shear = torch.split(shape, [self.d_x, self._n_metric - self.d_x], -1)
        matrix = torch.diag_embed(torch.ones_like(log_lengths))
        rows, cols = torch.tril_indices(self.d_x, self.d_x, -1)
        matrix[..., rows, cols] = soft_clamp(shear, self.max_shear)
        lengths = log_lengths.new_tensor(self.lengths)[:, None]
        return matrix * (torch.exp(-soft_clamp(log_lengths, self.max_log_length)) / lengths)[..., None, :]

    def _stationary(self, xq: Tensor, xk: Tensor, whitening: Tensor, weights: Tensor) -> Tensor:
        """Sum of the mixtures ``(batch, n_q, n_k)``, on a lattice computed once for each coordinate difference."""
        differences = lattice_differences(xq, xk)
        if differences is None:
            return matern_mixture(xq[:, None] @ whitening, xk[:, None] @ whitening, weights)
        x = differences.values @ whitening
        return differences.to_pairs(matern_mixture(x, torch.zeros_like(x[..., :1, :]), weights)[..., 0])

    def _correlations(self, raw: Tensor, observations: Observations) -> Tensor:
        """Covariance of observations by each mixture at amplitudes of one, ``(batch, mixtures, n, n)``."""
        x, (whitening, weights, _) = observations.x.double(), self._split(raw)
        parts = zip(whitening.split(1, 1), weights.split(1, 1), strict=True)
        return torch.stack([self._stationary(x, x, *part) for part in parts], 1)

    def _natural(self, raw: Tensor) -> Tensor:
        """Natural parameters, ``(batch, mixtures * (5 + n_metric) + 2)``."""
        whitening, weights, constant = self._split(raw)
        rows, cols = torch.tril_indices(self.d_x, self.d_x)
        metric = (whitening @ whitening.mT)[..., rows, cols]
        return torch.cat([torch.cat([polynomial(weights), metric], -1).flatten(1), constant, raw[:, -1:]], 1)

    def _terms(self, natural: Tensor, differences: Tensor) -> MixtureTerms:
        mixtures = natural[:, :-2].unflatten(1, (len(self.lengths), -1))
        coefficients, metric = mixtures.split([N_KERNELS, self._n_metric], -1)
        return mixture_terms(coefficients, metric, differences)

    def _noise(self, log_noise: Tensor, local: Tensor) -> Tensor:
        """Noise variance of each point, ``(batch, n)``."""
        log_noise = log_noise + local[..., 1]
        excess = F.softplus(log_noise - (self.max_log_noise - self.log_noise))
        return self.noise_floor + torch.exp(log_noise + self.log_noise - excess)

    def _noise_slope(self, log_noise: Tensor, local: Tensor, noise: Tensor) -> Tensor:
        """Derivative of :meth:`_noise` with respect to the log noise, ``(batch, n)``."""
        margin = self.max_log_noise - self.log_noise
        return (noise - self.noise_floor) * torch.sigmoid(margin - log_noise - local[..., 1])

    def _amplitude(self, local: Tensor) -> Tensor:
        return torch.exp(soft_clamp(local[..., 0], self.max_log_amplitude))
