"""The family of local processes: slope and information of its parameters against their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from geonp.nn.process import Family, Sample

MASK = torch.tensor([[True] * 12, [False] * 4 + [True] * 8])


def points(d_x: int, *, lattice: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Locations, local features and values of two tasks."""
    generator = torch.Generator().manual_seed(d_x)
    x = torch.randint(0, 4, (2, 12, d_x), generator=generator).float()
    if not lattice:
        x = 4 * torch.rand(2, 12, d_x, generator=generator)
    return x, 0.5 * torch.randn(2, 12, 2, generator=generator), torch.randn(2, 12, 2, generator=generator)


def noisy(family: Family, raw: Tensor, local: Tensor, x: Tensor) -> Tensor:
    """Covariance of the noisy values of one task."""
    kernel, _, noise = family.covariance(raw[None], local[None], local[None], x[None], x[None])
    return (kernel + torch.diag_embed(noise))[0]


@pytest.mark.parametrize("lattice", [True, False])
@pytest.mark.parametrize("d_x", [1, 2, 3])
def test_slope_is_the_gradient_of_the_likelihood(d_x: int, lattice: bool) -> None:
    family = Family(d_x, (1.0, 4.0), 1e-8)
    x, local, y = points(d_x, lattice=lattice)
    raw = torch.randn(2, family.size, generator=torch.Generator().manual_seed(1)).double()
    likelihood, gradient = family.slope(family.linearised(raw), Sample(local, x, y, MASK))
    for i, kept in enumerate(MASK):
        start = raw[i].clone().requires_grad_()
        covariance = noisy(family, start, local[i, kept], x[i, kept])
        density = torch.distributions.MultivariateNormal(torch.zeros(int(kept.sum())).double(), covariance)
        expected = (density.log_prob(y[i, kept].double().mT).mean() / kept.sum()) + 0.5 * torch.log(
            torch.tensor(2 * torch.pi)
        )
        torch.testing.assert_close(likelihood[i], expected.detach().float())
        torch.testing.assert_close(gradient[i], torch.autograd.grad(expected, start)[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("d_x", [1, 2, 3])
def test_information_is_that_of_its_definition(d_x: int) -> None:
    """By exact derivatives of the covariance, of what is not masked alone."""
    family = Family(d_x, (1.0, 4.0), 1e-8)
    x, local, y = points(d_x, lattice=False)
    raw = torch.randn(2, family.size, generator=torch.Generator().manual_seed(2)).double()
    found = family.information(family.linearised(raw), Sample(local, x, y, MASK))
    for i, kept in enumerate(MASK):
        places = local[i, kept], x[i, kept]
        derivative = torch.autograd.functional.jacobian(lambda r, p=places: noisy(family, r, *p), raw[i])
        inverse = torch.linalg.inv(noisy(family, raw[i], *places))
        expected = torch.einsum("ab,bci,cd,daj->ij", inverse, derivative, inverse, derivative) / (2 * kept.sum())
        torch.testing.assert_close(found[i], expected, rtol=1e-5, atol=1e-9)


def test_covariances_are_positive_definite() -> None:
    torch.manual_seed(1)
    family, x = Family(2, (3.0, 24.0), 1e-8), torch.rand(3, 40, 2) * 30
    local = torch.randn(3, 40, 2)
    kernel, variance, noise = family.covariance(3 * torch.randn(3, family.size), local, local, x, x)
    assert float(torch.linalg.eigvalsh(kernel).min()) > -1e-6
    torch.testing.assert_close(kernel.diagonal(dim1=1, dim2=2), variance, rtol=1e-5, atol=1e-5)
    assert (noise >= family.noise_floor).all()


def test_what_masked_points_hold_has_no_effect() -> None:
    family = Family(2, (1.0, 4.0), 1e-8)
    x, local, y = points(2, lattice=True)
    raw = torch.zeros(2, family.size)
    moved = torch.where(MASK[..., None], x, 3.0), torch.where(MASK[..., None], y, 9.0)
    at = family.linearised(raw)
    for a, b in zip(
        family.slope(at, Sample(local, x, y, MASK)), family.slope(at, Sample(local, *moved, MASK)), strict=True
    ):
        torch.testing.assert_close(a, b)
