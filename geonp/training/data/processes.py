"""Tasks from Gaussian processes with known parameters: the synthetic benchmarks of the papers.

A batch is a function of seed and index alone, so that runs resume exactly and all models see the same tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from scipy import linalg
from torch import Tensor

from geonp.raster.arrays import Float64Array
from geonp.training.batch import Batch, split_at
from geonp.training.data.constraints import Count, CountRange, Interval, Positive, PositiveRange

Kernel = Literal["rbf", "matern12", "matern32", "matern52", "periodic"]
"""Kernels of unit variance; see :func:`covariance`."""

Moments = tuple[Tensor, Tensor]
"""Mean and standard deviation of the targets under the exact process, ``(batch, n_t, 1)`` each, float64."""


def covariance(
    kernel: Kernel, x: Float64Array, other: Float64Array, length: float, period: float = 1.0
) -> Float64Array:
    """Covariance ``(..., n, m)`` of unit variance between points ``(..., n, d)`` and ``(..., m, d)``.

    With the Euclidean distance d: rbf ``exp(-d^2 / 2 l^2)``; Matern 1/2, 3/2 and 5/2; periodic
    ``exp(-2 sin^2(pi d / p) / l^2)``.
    """
    d = np.sqrt(((x[..., :, None, :] - other[..., None, :, :]) ** 2).sum(-1))
    if kernel == "periodic":
        return np.asarray(np.exp(-2 * np.sin(np.pi * d / period) ** 2 / length**2))
    if kernel == "rbf":
        return np.asarray(np.exp(-0.5 * (d / length) ** 2))
    order = {"matern12": 1, "matern32": 3, "matern52": 5}[kernel]
    r = math.sqrt(order) * d / length
    polynomial = {1: 1.0, 3: 1 + r, 5: 1 + r + r**2 / 3}[order]
    return np.asarray(polynomial * np.exp(-r))


@dataclass(frozen=True)
class GaussianProcess:
    """The benchmarks of TNP-KR (arXiv 2411.12502) in one and two dimensions.

    Targets are `n_random` uniform locations in ``[-extent, extent]^d_x`` and a regular grid; the first of the random
    locations are context, as many as drawn for each function. All functions of a batch share locations and parameters.
    Noise is added to context values only: targets are values of the function itself.

    Attributes
    ----------
    d_x : int
        Number of dimensions of the locations.
    kernel : str
        Kernel of unit variance.
    extent : float
        Half of the side of the domain.
    n_random, n_grid : int
        Number of uniform locations, and of grid points along each axis.
    n_context : tuple of int
        Minimum and maximum number of context points.
    noise : float
        Standard deviation of the noise of context values.
    length : tuple of float
        Parameters of the Beta distribution of lengthscales.
    period : tuple of float
        Range of the period of the periodic kernel.
    jitter : float
        Variance of the white noise that is part of the function.
    shared : bool
        If false, each function of a batch has its own locations and parameters: the same tasks, but the gradients of
        batches vary less. A deviation from the paper, for training.
    """

    kind: Literal["gp"] = "gp"
    d_x: Literal[1, 2] = 1
    kernel: Kernel = "rbf"
    extent: Positive = 2.0
    n_random: Count = 50
    n_grid: Count = 100
    n_context: CountRange = (3, 49)
    noise: Positive = 0.1
    length: tuple[Positive, Positive] = (3.0, 7.0)
    period: PositiveRange = (0.5, 2.0)
    jitter: Annotated[float, Field(ge=1e-9)] = 1e-5  # less, and smooth covariances have no Cholesky factor
    shared: bool = True

    @property
    def dimensions(self) -> dict[str, int]:
        """Options that a model of these data must have."""
        return {"d_x": self.d_x, "d_y": 1}

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` tasks, see :func:`geonp.training.sources.draw`."""
        if not self.shared:
            alone = [replace(self, shared=True).batch(seed, index * size + i, 1) for i in range(size)]
            return {key: torch.cat([batch[key] for batch in alone]) for key in alone[0]}
        x, _, values, counts, noise = self._draw(seed, index, size)
        xs = torch.from_numpy(x).float().expand(size, -1, -1)
        most = self.n_context[1]
        return {
            "xc": xs[:, :most],
            "yc": torch.from_numpy(values[:, :most] + noise).float()[..., None],
            "context_mask": torch.arange(most) < torch.from_numpy(counts)[:, None],
            "xt": xs,
            "yt": torch.from_numpy(values).float()[..., None],
        }

    def exact(self, seed: int, index: int, size: int) -> Moments:
        """Predict all targets of the same batch by the process that it was drawn from."""
        if not self.shared:
            alone = [replace(self, shared=True).exact(seed, index * size + i, 1) for i in range(size)]
            return torch.cat([mean for mean, _ in alone]), torch.cat([scale for _, scale in alone])
        _, k, values, counts, noise = self._draw(seed, index, size)
        moments = [_condition(k, y[:n] + e[:n], self.noise) for y, e, n in zip(values, noise, counts, strict=True)]
        mean, scale = (torch.from_numpy(np.stack(part))[..., None] for part in zip(*moments, strict=True))
        return mean, scale

    def _draw(
        self, seed: int, index: int, size: int
    ) -> tuple[Float64Array, Float64Array, Float64Array, npt.NDArray[np.int64], Float64Array]:
        """Draw locations, covariance, functions ``(size, n)``, numbers of context points, and noise of the context."""
        rng = np.random.default_rng([seed, index])
        length, period = rng.beta(*self.length), rng.uniform(*self.period)
        axis = np.linspace(-self.extent, self.extent, self.n_grid)
        grid = np.stack(np.meshgrid(*[axis] * self.d_x, indexing="ij"), -1).reshape(-1, self.d_x)
        x = np.concatenate([rng.uniform(-self.extent, self.extent, (self.n_random, self.d_x)), grid])
        k = covariance(self.kernel, x, x, length, period) + self.jitter * np.eye(len(x))
        values = rng.standard_normal((size, len(x))) @ linalg.cholesky(k, check_finite=False)
        fewest, most = self.n_context
        counts = rng.integers(fewest, most, size, endpoint=True)
        return x, k, values, counts, self.noise * rng.standard_normal((size, most))


@dataclass(frozen=True)
class MixedProcess:
    """The synthetic benchmark of TE-TNP (ICML 2024, section F.1), and its shift experiment.

    Each batch has one kernel and one lengthscale; each task has its own locations, uniform in `context_range` and
    `target_range`. All values are noisy.

    Attributes
    ----------
    kernels : tuple of str
        Kernels to draw from with equal probability. The periodic one has a random period instead of a lengthscale,
        which is `length_periodic`: GPyTorch's default, as in the published code, whose kernel divides by it unsquared.
    length : tuple of float
        Range of lengthscales, log-uniform.
    n_context : tuple of int
        Minimum and maximum number of context points, which is drawn for each batch.
    n_targets : int
        Number of target points.
    noise : float
        Standard deviation of the noise of all values.
    shift : float
        Added to all locations; predictions of translation-equivariant models do not depend on it.
    """

    kind: Literal["gp_mixed"] = "gp_mixed"
    kernels: Annotated[tuple[Kernel, ...], Field(min_length=1)] = ("rbf", "matern52", "periodic")
    length: PositiveRange = (0.25, 4.0)
    length_periodic: Positive = math.log(2) ** 0.5
    n_context: CountRange = (1, 64)
    n_targets: Count = 128
    context_range: Interval = (-2.0, 2.0)
    target_range: Interval = (-3.0, 3.0)
    noise: Positive = 0.2
    shift: float = 0.0
    dimensions: ClassVar = {"d_x": 1, "d_y": 1}  # options that a model of these data must have

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` tasks, see :func:`geonp.training.sources.draw`."""
        x, _, values, n = self._draw(seed, index, size)
        xs = torch.from_numpy(x + self.shift).float()
        ys = torch.from_numpy(values).float()[..., None]
        return split_at(xs, ys, n)

    def exact(self, seed: int, index: int, size: int) -> Moments:
        """Predict all targets of the same batch, with noise, by the process that it was drawn from."""
        _, k, values, n = self._draw(seed, index, size)
        moments = [_condition(each, y[:n], self.noise) for each, y in zip(k, values, strict=True)]
        mean = np.stack([m[n:] for m, _ in moments])
        scale = np.stack([np.sqrt(s[n:] ** 2 + self.noise**2) for _, s in moments])
        return torch.from_numpy(mean)[..., None], torch.from_numpy(scale)[..., None]

    def _draw(self, seed: int, index: int, size: int) -> tuple[Float64Array, Float64Array, Float64Array, int]:
        """Draw locations (context first), covariance without noise, noisy values, and the number of context points."""
        rng = np.random.default_rng([seed, index])
        kernel = self.kernels[rng.integers(len(self.kernels))]
        drawn = float(np.exp(rng.uniform(*np.log(self.length))))
        n = int(rng.integers(*self.n_context, endpoint=True))
        context, targets = (
            rng.uniform(*bounds, (size, count, 1))
            for bounds, count in ((self.context_range, n), (self.target_range, self.n_targets))
        )
        x = np.concatenate([context, targets], 1)
        length, period = (self.length_periodic, drawn) if kernel == "periodic" else (drawn, 1.0)
        k = covariance(kernel, x, x, length, period)
        lower = np.linalg.cholesky(k + self.noise**2 * np.eye(x.shape[1]))
        values = (lower @ rng.standard_normal((size, x.shape[1], 1)))[..., 0]
        return x, k, values, n


def _condition(k: Float64Array, observed: Float64Array, noise: float) -> tuple[Float64Array, Float64Array]:
    """Mean and standard deviation at all points with covariance `k`, given noisy values at the first points."""
    n = len(observed)
    factor = linalg.cho_factor(k[:n, :n] + noise**2 * np.eye(n), check_finite=False)
    weights = linalg.cho_solve(factor, k[:n], check_finite=False)
    variance = np.diagonal(k) - (k[:n] * weights).sum(0)
    return weights.T @ observed, np.sqrt(np.maximum(variance, 1e-12))
