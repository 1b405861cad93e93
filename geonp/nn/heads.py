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
    need be neither stationary nor equally noisy. One learned step along the gradient of the likelihood of the
    `n_refine` context points nearest to the middle sharpens it. The process is then conditioned on the context exactly,
    in float64. A last MLP, which also sees how well the process predicts each context point from the others, shifts the
    conditional mean by a multiple of the conditional standard deviation and rescales the latter: what a Gaussian
    process can't express (edges, skewed or quantised values).

    Deviation from the paper, whose head is :class:`GaussianHead`: softmax attention averages, and interpolation of
    smooth fields needs the precise cancelling weights of a linear solve. It costs ``2 n_c^3 / 3 + n_c^2 n_t``
    multiplications, so it is for a bounded context. The prediction includes the noise of a new measurement.
    """

    noise_floor = 1e-5  # of the variance of the standardised context: what float32 covariances can resolve

    def __init__(
        self,
        dim: int,
        d_x: int,
        d_y: int,
        hidden: int,
        n_summary: int = 0,
        n_refine: int = 128,
        lengths: tuple[float, ...] = (3.0, 24.0),
    ) -> None:
        super().__init__()
        self.n_refine = n_refine
        self.d_x, self.d_y = d_x, d_y
        self.n_shape = d_x + d_x * (d_x - 1) // 2
        self.lengths = lengths
        n_raw = len(lengths) * (self.n_shape + 5) + 2
        self.covariance = MLP(dim + n_summary, hidden, n_raw)
        self.refinement = MLP(dim + n_summary + 2 * n_raw + 1, hidden, n_raw)
        self.local = MLP(dim, 2)
        self.correction = MLP(dim + 1 + 3 * d_y, hidden, 2 * d_y)
        for mlp in (self.covariance, self.refinement, self.local, self.correction):
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
        pooled = torch.cat([masked_mean(context, mask), summary], -1)
        local = self.local(torch.cat([targets, context], 1))
        raw = self._refined(self.covariance(pooled), pooled, local[:, n_t:], xc, yc, mask)
        kernel, prior, noise = self._process(raw, local, local[:, n_t:], torch.cat([xt, xc], 1), xc)
        loc, var, surprise = _condition(kernel, prior[:, :n_t], noise[:, n_t:], yc, mask)
        scale = (var + noise[:, :n_t]).sqrt()[..., None]
        features = torch.cat([targets, scale.log(), loc, *_misfit(kernel[:, :n_t], surprise, mask)], -1)
        shift, log_ratio = self.correction(features).chunk(2, -1)
        return Normal(loc + scale * shift, scale * torch.exp(3.0 * torch.tanh(log_ratio / 3.0)), validate_args=False)

    def _refined(self, raw: Tensor, pooled: Tensor, local: Tensor, xc: Tensor, yc: Tensor, mask: Tensor) -> Tensor:
        """Covariance parameters after a learned step that sees the gradient of the log likelihood at `raw`."""
        # from the middle of the context, not of the targets: what is asked must not change the answer
        distance = torch.where(mask, (xc - masked_mean(xc, mask)[:, None]).square().sum(-1), torch.inf)
        near = distance.topk(min(self.n_refine, xc.shape[1]), largest=False, sorted=False).indices
        x, y, points = (t.detach().gather(1, near[..., None].expand(-1, -1, t.shape[-1])) for t in (xc, yc, local))
        kept = mask.gather(1, near)
        with torch.enable_grad():
            start = raw.detach().requires_grad_()
            kernel, _, noise = self._process(start, points, points, x, x)
            likelihood = _log_likelihood(kernel, noise, y, kept) / kept.sum(1).clamp_min(1)
            (gradient,) = torch.autograd.grad(likelihood.sum(), start)
        known = torch.cat([torch.asinh(10 * gradient), start.detach(), likelihood.detach()[:, None]], -1)
        step: Tensor = self.refinement(torch.cat([pooled, known], -1))
        return raw + step

    def _process(
        self, raw: Tensor, local_q: Tensor, local_k: Tensor, xq: Tensor, xk: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Covariance ``(batch, n_q, n_k)``, and the variance and the noise variance of the former ``(batch, n_q)``."""
        amplitude_q, amplitude_k = (torch.exp(1.5 * torch.tanh(t[..., 0] / 1.5)) for t in (local_q, local_k))
        noise = self.noise_floor + torch.exp(-4.0 + 10.0 * torch.tanh((raw[:, -1:] + local_q[..., 1]) / 10.0))
        constant = F.softplus(raw[:, -2])[:, None]
        kernel, variance = self._kernel(xq, xk, raw[:, :-2])
        kernel = kernel * amplitude_q[:, :, None] * amplitude_k[:, None] + constant[:, :, None]
        return kernel, amplitude_q.square() * variance[:, None] + constant, noise

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


def _factor(kernel: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """Cholesky factor of the covariance of noisy values, float64; masked points are independent of all others."""
    pairs = mask[:, :, None] & mask[:, None, :]
    matrix = torch.where(pairs, kernel.double(), 0.0) + torch.diag_embed(torch.where(mask, noise, 1.0).double())
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    if bool((info > 0).any()):
        ridge = 1e-4 * matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None].expand(-1, matrix.shape[-1])
        factor = torch.linalg.cholesky(matrix + torch.diag_embed(torch.where(info[:, None] > 0, ridge, 0.0)))
    return factor


def _log_likelihood(kernel: Tensor, noise: Tensor, yc: Tensor, mask: Tensor) -> Tensor:
    """Log density of the context under the process up to a constant, mean over channels: ``(batch,)``."""
    factor = _factor(kernel, noise, mask)
    values = torch.linalg.solve_triangular(factor, torch.where(mask[..., None], yc, 0.0).double(), upper=False)
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    likelihood: Tensor = -0.5 * (values.square().mean(-1).sum(-1) + log_determinant)
    return likelihood.float()


def _condition(kernel: Tensor, prior: Tensor, noise: Tensor, yc: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Condition a Gaussian process on its context.

    `kernel` is ``(batch, n_t + n_c, n_c)``, the variance of the targets before conditioning `prior`.

    Returns
    -------
    tuple of Tensor
        Mean ``(batch, n_t, d_y)`` and variance ``(batch, n_t)`` of the targets, and the error of predicting each
        context value from all others, over its standard deviation, ``(batch, n_c, d_y)``.
    """
    n_t, n_c = prior.shape[1], mask.shape[1]
    factor = _factor(kernel[:, n_t:], noise, mask)
    k_ct = torch.where(mask[:, :, None], kernel[:, :n_t].mT, 0.0).double()
    identity = torch.eye(n_c, dtype=k_ct.dtype, device=k_ct.device).expand(k_ct.shape[0], -1, -1)
    right = torch.cat([k_ct, torch.where(mask[..., None], yc, 0.0).double(), identity], -1)
    solved = torch.linalg.solve_triangular(factor, right, upper=False)
    weights, values, inverse = torch.split(solved, [n_t, yc.shape[-1], n_c], -1)
    variance = (prior - weights.square().sum(1).float()).clamp_min(0.0)
    # leave-one-out residuals from the inverse of the covariance, Rasmussen & Williams (2006), equation 5.12
    surprise = (inverse.mT @ values) / inverse.square().sum(1).sqrt()[..., None]
    return (weights.mT @ values).float(), variance, surprise.float()


def _misfit(kernel: Tensor, surprise: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log mean square of `surprise` around each target (weighted by covariance) and overall, ``(batch, n_t, d_y)``."""
    squares = torch.where(mask[..., None], surprise.square(), 0.0)
    weights = torch.where(mask[:, None], kernel, 0.0)
    near = (weights @ squares) / weights.sum(-1, keepdim=True).clamp_min(1e-6)
    overall = masked_mean(squares, mask)[:, None].expand_as(near)
    return torch.log(near + 0.01), torch.log(overall + 0.01)
