"""Gaussian processes fitted to each task with GPyTorch: the reference of the TE-TNP paper.

GPyTorch is in the extra ``gp``. It is imported when a process is created.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from geonp.errors import from_extra
from geonp.nn.layers import drop_masked


class GP(nn.Module):
    """Exact Gaussian process: constant mean, squared-exponential kernel with a length for each coordinate, noise.

    Each task and channel is fitted separately by `steps` steps of Adam on the marginal likelihood (TE-TNP, ICML 2024,
    section F.3), in float64. There are no weights to train beforehand. Costs ``O(steps n_c^3)``. Raises
    MissingExtraError if GPyTorch is not installed.
    """

    def __init__(self, *, steps: int = 1000, learning_rate: float = 0.1) -> None:
        super().__init__()
        _require()
        self.steps, self.learning_rate = steps, learning_rate

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`.

        Each call fits anew; no gradients flow to the inputs. Every task needs a context point.
        """
        xc, yc, context_mask = drop_masked(xc.detach(), yc.detach(), context_mask)
        if not bool(context_mask.any(1).all()):
            raise ValueError("a Gaussian process needs at least one context point in every task, got a task with none")
        moments = [
            self._predict(x[mask].double(), y[mask].double(), t.double())
            for x, y, t, mask in zip(xc, yc, xt.detach(), context_mask, strict=True)
        ]
        loc, scale = (torch.stack(part).to(yc.dtype) for part in zip(*moments, strict=True))
        return Normal(loc, scale, validate_args=False)

    def _predict(self, x: Tensor, y: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of new measurements of one task, ``(n_t, d_y)``, with independent channels."""
        channels = [_fit(x, values, xt, 1, self.steps, self.learning_rate) for values in y.unbind(1)]
        loc, scale = (torch.stack(part, 1) for part in zip(*channels, strict=True))
        return loc, scale


class MultitaskGP(GP):
    """:class:`GP` with correlated channels: a fitted covariance of the channels times the kernel of the locations.

    Costs ``O(steps (n_c d_y)^3)``.
    """

    def _predict(self, x: Tensor, y: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        if y.shape[1] == 1:
            return super()._predict(x, y, xt)
        return _fit(x, y, xt, y.shape[1], self.steps, self.learning_rate)


def _require() -> Any:
    with from_extra("gp", "gpytorch"):
        import gpytorch
    return gpytorch


def _fit(x: Tensor, y: Tensor, xt: Tensor, n_tasks: int, steps: int, learning_rate: float) -> tuple[Tensor, Tensor]:
    """Fit a process to `x` ``(n, d_x)`` and `y` ``(n,)`` or ``(n, n_tasks)`` and predict new measurements at `xt`."""
    gpytorch = _require()
    with torch.enable_grad():
        model = _regression(gpytorch, x, y, n_tasks).double().train()
        evidence = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        optimiser = torch.optim.Adam(model.parameters(), learning_rate)
        for _ in range(steps):
            optimiser.zero_grad()
            loss = -evidence(model(x), y)
            loss.backward()
            optimiser.step()
    model.eval()
    with torch.no_grad():
        predicted = model.likelihood(model(xt))
        return predicted.mean, predicted.stddev


def _regression(gpytorch: Any, x: Tensor, y: Tensor, n_tasks: int) -> Any:
    single, d_x = n_tasks == 1, x.shape[1]
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=d_x)

    class Regression(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            likelihoods = gpytorch.likelihoods
            super().__init__(
                x, y, likelihoods.GaussianLikelihood() if single else likelihoods.MultitaskGaussianLikelihood(n_tasks)
            )
            constant = gpytorch.means.ConstantMean()
            self.mean = constant if single else gpytorch.means.MultitaskMean(constant, n_tasks)
            self.covariance = (
                gpytorch.kernels.ScaleKernel(kernel)
                if single
                else gpytorch.kernels.MultitaskKernel(kernel, num_tasks=n_tasks, rank=1)
            )

        def forward(self, points: Tensor) -> Any:
            distributions = gpytorch.distributions
            kind = distributions.MultivariateNormal if single else distributions.MultitaskMultivariateNormal
            return kind(self.mean(points), self.covariance(points))

    return Regression()
