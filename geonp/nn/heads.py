"""From features to a distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F

from geonp.nn.layers import MLP, masked_mean

__all__ = ["GaussianHead", "KrigingHead"]


class GaussianHead(nn.Module):
    """The paper's head: an MLP to mean and raw scale, ``scale = min_scale + (1 - min_scale) softplus(raw)``."""

    def __init__(self, dim: int, hidden: int, d_y: int, min_scale: float = 0.0) -> None:
        super().__init__()
        self.mlp = MLP(dim, hidden, dim, 2 * d_y)
        self.min_scale = min_scale

    def forward(self, targets: Tensor) -> Normal:
        """Features ``(batch, n_t, dim)`` to a normal distribution of shape ``(batch, n_t, d_y)``."""
        loc, raw = self.mlp(targets).chunk(2, -1)
        return Normal(loc, self.min_scale + (1 - self.min_scale) * F.softplus(raw), validate_args=False)


class KrigingHead(nn.Module):
    """Kriging with a covariance that the network reads from the data, and the network's correction of it.

    The averaged features of the context and statistics of the whole of it (its variogram) give the covariance of a
    local Gaussian process: two anisotropic kernels, each a mixture of Matern 1/2, 3/2, 5/2 and 7/2, plus an unknown
    constant (as in ordinary kriging). Each point's own features give its amplitude and its noise, so that the process
    need be neither stationary nor equally noisy. The process is conditioned on the context exactly, in float64. A last
    MLP shifts the conditional mean by a multiple of the conditional standard deviation and rescales the latter: what
    a Gaussian process can't express (edges, skewed or quantised values).

    Deviation from the paper, whose head is :class:`GaussianHead`: softmax attention averages, and interpolation of
    smooth fields needs the precise cancelling weights of a linear solve. It costs ``n_c^3 / 3 + n_c^2 n_t``
    multiplications, so it is for a bounded context. The prediction includes the noise of a new measurement.
    """

    noise_floor = 1e-5  # of the variance of the standardised context: what float32 covariances can resolve

    def __init__(
        self, dim: int, d_x: int, d_y: int, hidden: int, n_summary: int = 0, lengths: tuple[float, ...] = (3.0, 24.0)
    ) -> None:
        super().__init__()
        self.d_x, self.d_y = d_x, d_y
        self.n_shape = d_x + d_x * (d_x - 1) // 2
        self.lengths = lengths
        self.covariance = MLP(dim + n_summary, hidden, len(lengths) * (self.n_shape + 5) + 2)
        self.local = MLP(dim, 2)
        self.correction = MLP(dim + 1 + d_y, hidden, 2 * d_y)
        for mlp in (self.covariance, self.local, self.correction):
            # the last weights and biases: all tasks start with the same covariance and no correction
            nn.init.normal_(list(mlp.parameters())[-2], std=1e-3)

    def forward(
        self, targets: Tensor, context: Tensor, xt: Tensor, xc: Tensor, yc: Tensor, mask: Tensor, summary: Tensor
    ) -> Normal:
        """Features, locations, standardised values and mask of the context to the distribution of the targets.

        ``(batch, n_t, dim), (batch, n_c, dim), (batch, n_t, d_x), (batch, n_c, d_x), (batch, n_c, d_y), (batch, n_c)``
        and ``(batch, n_summary)`` to a normal distribution of shape ``(batch, n_t, d_y)``. Masked values must be
        finite.
        """
        # Rounding an amplitude to bfloat16 would perturb the values it multiplies: the head works in float32.
        with torch.autocast(targets.device.type, enabled=False):
            return self._predict(targets.float(), context.float(), xt, xc, yc, mask, summary)

    def _predict(
        self, targets: Tensor, context: Tensor, xt: Tensor, xc: Tensor, yc: Tensor, mask: Tensor, summary: Tensor
    ) -> Normal:
        n_t = targets.shape[1]
        raw = self.covariance(torch.cat([masked_mean(context, mask), summary], -1))
        local = self.local(torch.cat([targets, context], 1))
        amplitude = torch.exp(1.5 * torch.tanh(local[..., 0] / 1.5))
        noise = self.noise_floor + torch.exp(-4.0 + 10.0 * torch.tanh((raw[:, -1:] + local[..., 1]) / 10.0))
        constant = F.softplus(raw[:, -2])[:, None]
        kernel, variance = self._kernel(torch.cat([xt, xc], 1), xc, raw[:, :-2])
        kernel = kernel * amplitude[:, :, None] * amplitude[:, None, n_t:] + constant[:, :, None]
        prior = amplitude.square() * variance[:, None] + constant
        loc, var = _condition(kernel, prior[:, :n_t], noise[:, n_t:], yc, mask)
        scale = (var + noise[:, :n_t]).sqrt()[..., None]
        features = torch.cat([targets, scale.log(), loc], -1)
        shift, log_ratio = self.correction(features).chunk(2, -1)
        return Normal(loc + scale * shift, scale * torch.exp(3.0 * torch.tanh(log_ratio / 3.0)), validate_args=False)

    def _kernel(self, xq: Tensor, xk: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Covariance ``(batch, n_q, n_k)`` of the stationary part and its variance ``(batch,)``."""
        total, variance = raw.new_zeros(()), raw.new_zeros(())
        for length, part in zip(self.lengths, raw.chunk(len(self.lengths), -1), strict=True):
            shape, weight, smoothness = torch.split(part, [self.n_shape, 1, 4], -1)
            pq, pk = (x @ self._whitening(shape, length) for x in (xq, xk))
            squared = [(pq[..., i, None] - pk[:, None, :, i]).square() for i in range(self.d_x)]
            r = (sum(squared[1:], squared[0]) + 1e-12).sqrt()
            p = torch.softmax(smoothness, -1)[..., None, None]
            b = p[:, 1] + p[:, 2] + p[:, 3]
            c = p[:, 2] / 3 + 0.4 * p[:, 3]
            w = torch.exp(4.0 * torch.tanh(weight / 4.0)) / len(self.lengths)
            total = total + w[..., None] * torch.exp(-r) * (1 + r * (b + r * (c + r * (p[:, 3] / 15))))
            variance = variance + w[:, 0]
        return total, variance

    def _whitening(self, shape: Tensor, length: float) -> Tensor:
        """Lower-triangular ``(batch, d_x, d_x)`` matrix that turns coordinate differences into scaled ones."""
        scales, skew = torch.split(shape, [self.d_x, self.n_shape - self.d_x], -1)
        matrix = torch.diag_embed(torch.ones_like(scales))
        rows, cols = torch.tril_indices(self.d_x, self.d_x, -1)
        matrix[:, rows, cols] = 2.0 * torch.tanh(skew / 2.0)
        return matrix * (torch.exp(-3.0 * torch.tanh(scales / 3.0)) / length)[:, None, :]


def _condition(kernel: Tensor, prior: Tensor, noise: Tensor, yc: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(batch, n_t, d_y)`` and variance ``(batch, n_t)`` of a Gaussian process, given its context.

    `kernel` is ``(batch, n_t + n_c, n_c)``, the variance of the targets before conditioning `prior`.
    """
    n_t = prior.shape[1]
    kernel = torch.where(mask[:, None, :], kernel, 0.0).double()
    k_tc, k_cc = kernel[:, :n_t], torch.where(mask[:, :, None], kernel[:, n_t:], 0.0)
    diagonal = torch.where(mask, noise, 1.0).double()
    k_cc = k_cc + torch.diag_embed(diagonal)
    factor, info = torch.linalg.cholesky_ex(k_cc)
    if bool((info > 0).any()):
        ridge = 1e-4 * k_cc.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None].expand_as(diagonal)
        factor = torch.linalg.cholesky(k_cc + torch.diag_embed(torch.where(info[:, None] > 0, ridge, 0.0)))
    right = torch.cat([k_tc.mT, torch.where(mask[..., None], yc, 0.0).double()], -1)
    solved = torch.linalg.solve_triangular(factor, right, upper=False)
    weights, values = solved[..., :n_t], solved[..., n_t:]
    loc = (weights.mT @ values).float()
    return loc, (prior - weights.square().sum(1).float()).clamp_min(0.0)
