"""Gaussian process algebra against textbook formulas with explicit inverses."""

from __future__ import annotations

import numpy as np
import torch

from geonp.nn.likelihood import condition, effective_number, log_likelihood


def test_conditioning_equals_the_textbook_formulas() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 5, (12, 2))
    k = np.exp(-np.linalg.norm(x[:, None] - x[None], axis=-1))
    y, noise = rng.standard_normal(9), rng.uniform(0.05, 0.2, 9)
    inverse = np.linalg.inv(k[3:, 3:] + np.diag(noise))
    kernel, prior = (torch.tensor(a)[None] for a in (k[:, 3:], np.ones(3)))
    noise_t, y_t = (torch.tensor(a, dtype=torch.float32)[None] for a in (noise, y[:, None]))
    actual = condition(kernel, prior, noise_t, y_t, torch.ones(1, 9, dtype=torch.bool))
    np.testing.assert_allclose(actual.mean[0, :, 0], k[:3, 3:] @ inverse @ y, atol=1e-5)
    expected = 1.0 - np.einsum("ij,jk,ik->i", k[:3, 3:], inverse, k[:3, 3:])
    np.testing.assert_allclose(actual.variance[0], expected, atol=1e-5)

    def residual(i: int, others: slice) -> float:
        """Standardised residual of context point i predicted from other ones."""
        weights = k[3 + i, 3:][others] @ np.linalg.inv((k[3:, 3:] + np.diag(noise))[others, others])
        return (y[i] - weights @ y[others]) / np.sqrt(1.0 + noise[i] - weights @ k[3 + i, 3:][others])

    np.testing.assert_allclose(actual.leave_one_out[0, 0, 0], residual(0, slice(1, 9)), atol=1e-4)
    np.testing.assert_allclose(actual.innovation[0, 8, 0], residual(8, slice(0, 8)), atol=1e-4)


def test_conditioning_survives_a_singular_covariance() -> None:
    kernel, prior = torch.ones(1, 4, 3).double(), torch.ones(1, 1).double()
    given = condition(kernel, prior, torch.zeros(1, 3), torch.ones(1, 3, 1), torch.ones(1, 3).bool())
    torch.testing.assert_close(given.mean, torch.ones(1, 1, 1), atol=1e-3, rtol=0)
    assert 0 <= float(given.variance) < 1e-3


def test_derivative_of_the_log_likelihood_equals_autograd() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(2, 7, 2).double() * 3, torch.randn(2, 7, 1)
    mask = torch.tensor([[True] * 7, [False] * 2 + [True] * 5])
    kernel, noise = torch.exp(-torch.cdist(x, x)), torch.rand(2, 7).double() + 0.1

    def likelihood(k: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        per_task = []
        for i, keep in enumerate(mask):
            covariance = k[i][keep][:, keep] + torch.diag(n[i][keep])
            density = torch.distributions.MultivariateNormal(torch.zeros(len(covariance)).double(), covariance)
            constant = 0.5 * len(covariance) * np.log(2 * np.pi)
            per_task.append((density.log_prob(y[i, keep, 0].double()) + constant) / len(covariance))
        return torch.stack(per_task)

    leaves = kernel.requires_grad_(), noise.requires_grad_()
    expected = likelihood(*leaves)
    by_kernel, by_noise = torch.autograd.grad(expected.sum(), leaves)
    found = log_likelihood(kernel.detach(), noise.detach(), y, mask)
    derivative = found.derivative
    torch.testing.assert_close(found.value, expected.detach().float())
    torch.testing.assert_close(derivative + derivative.mT, by_kernel + by_kernel.mT)
    torch.testing.assert_close(derivative.diagonal(dim1=1, dim2=2), by_noise)


def test_the_effective_number_of_parameters_of_slopes() -> None:
    columns = np.linalg.qr(np.random.default_rng(0).standard_normal((9, 3)))[0]
    variance, noise = np.array([1e6, 2.0, 1e-6]), np.where(np.arange(12) < 9, 0.5, np.nan)
    drift = np.zeros((12, 12))
    drift[:9, :9] = columns * variance @ columns.T
    part, noise_t = (torch.tensor(a)[None] for a in (drift, noise))
    number = effective_number(part, part, noise_t, torch.tensor(noise > 0)[None])
    np.testing.assert_allclose(number, np.sum(variance / (variance + 0.5)), rtol=1e-6)
