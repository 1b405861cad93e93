"""The covariance model: score and Fisher information against their definitions, and the order of a context."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from geonp.nn.observations import Observations, bounded_noise, outside_in_order
from geonp.nn.process import CovarianceModel

MASK = torch.tensor([[True] * 12, [False] * 4 + [True] * 8])


def points(d_x: int, *, lattice: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Locations, local parameters and values of two tasks."""
    generator = torch.Generator().manual_seed(d_x)
    x = torch.randint(0, 4, (2, 12, d_x), generator=generator).float()
    if not lattice:
        x = 4 * torch.rand(2, 12, d_x, generator=generator)
    return x, 0.5 * torch.randn(2, 12, 2, generator=generator), torch.randn(2, 12, 2, generator=generator)


def noisy(model: CovarianceModel, raw: Tensor, local: Tensor, x: Tensor) -> Tensor:
    """Covariance of the noisy values of one task."""
    kernel, _, noise = model.covariance(raw[None], local[None], local[None], x[None], x[None])
    return (kernel + torch.diag_embed(noise))[0]


@pytest.mark.parametrize("lattice", [True, False])
@pytest.mark.parametrize("d_x", [1, 2, 3])
def test_score_is_the_gradient_of_the_log_likelihood(d_x: int, lattice: bool) -> None:
    model = CovarianceModel(d_x, (1.0, 4.0))
    x, local, y = points(d_x, lattice=lattice)
    raw = torch.randn(2, model.n_raw, generator=torch.Generator().manual_seed(1)).double()
    likelihood, score, _ = model.score(model.linearise(raw), Observations(local, x, y, MASK))
    for i, kept in enumerate(MASK):
        start = raw[i].clone().requires_grad_()
        covariance = noisy(model, start, local[i, kept], x[i, kept])
        density = torch.distributions.MultivariateNormal(torch.zeros(int(kept.sum())).double(), covariance)
        constant = 0.5 * torch.log(torch.tensor(2 * torch.pi))
        expected = density.log_prob(y[i, kept].double().mT).mean() / kept.sum() + constant
        torch.testing.assert_close(likelihood[i], expected.detach().float())
        torch.testing.assert_close(score[i], torch.autograd.grad(expected, start)[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("d_x", [1, 2, 3])
def test_fisher_information_equals_its_definition(d_x: int) -> None:
    """With exact derivatives of the covariance of the observed points."""
    model = CovarianceModel(d_x, (1.0, 4.0))
    x, local, y = points(d_x, lattice=False)
    raw = torch.randn(2, model.n_raw, generator=torch.Generator().manual_seed(2)).double()
    information = model.fisher_information(model.linearise(raw), Observations(local, x, y, MASK))
    for i, kept in enumerate(MASK):
        observed = local[i, kept], x[i, kept]
        derivative = torch.autograd.functional.jacobian(lambda r, p=observed: noisy(model, r, *p), raw[i])
        inverse = torch.linalg.inv(noisy(model, raw[i], *observed))
        expected = torch.einsum("ab,bci,cd,daj->ij", inverse, derivative, inverse, derivative) / (2 * kept.sum())
        torch.testing.assert_close(information[i], expected, rtol=1e-5, atol=1e-9)


def test_covariances_are_positive_definite() -> None:
    torch.manual_seed(1)
    model, x = CovarianceModel(2, (3.0, 24.0)), torch.rand(3, 40, 2) * 30
    local = torch.randn(3, 40, 2)
    kernel, variance, noise = model.covariance(3 * torch.randn(3, model.n_raw), local, local, x, x)
    assert float(torch.linalg.eigvalsh(kernel).min()) > -1e-6
    torch.testing.assert_close(kernel.diagonal(dim1=1, dim2=2), variance, rtol=1e-5, atol=1e-5)
    assert (noise >= model.noise_floor).all()


def test_a_point_is_trusted_if_the_others_say_so() -> None:
    """Whether it was trusted or not: its own noise is replaced."""
    model = CovarianceModel(2, (1.0, 4.0), doubtful=1.0)
    x, local, y = points(2, lattice=True)
    local = local + torch.tensor([0.0, 1.0])
    trusted_mask = torch.arange(x.shape[1]).expand(2, -1) % 3 > 0
    raw = torch.zeros(2, model.n_raw).double()
    observations = Observations(local, x, y, MASK, trusted_mask=trusted_mask)
    found = model.score(model.linearise(raw), observations)[2]
    assert found is not None
    for i, kept in enumerate(MASK):
        for j in kept.nonzero()[:, 0].tolist():
            one = trusted_mask[i].clone()
            one[j] = True
            covariance = noisy(model, raw[i], bounded_noise(local[i], one)[kept], x[i, kept])
            precision, values = torch.linalg.inv(covariance), y[i, kept].double()
            k = int(kept[:j].sum())
            residual = ((precision @ values)[k] / precision[k, k].sqrt()).abs().max()
            assert bool(found[i, j]) == bool(residual <= 1)
    assert 0 < int((found & MASK).sum()) < int(MASK.sum())
    assert model.score(model.linearise(raw), Observations(local, x, y, MASK))[2] is None


def test_masked_points_have_no_effect_on_the_score() -> None:
    model = CovarianceModel(2, (1.0, 4.0))
    x, local, y = points(2, lattice=True)
    at = model.linearise(torch.zeros(2, model.n_raw))
    changed = torch.where(MASK[..., None], x, 3.0), torch.where(MASK[..., None], y, 9.0)
    expected, actual = (model.score(at, Observations(local, *p, MASK)) for p in ((x, y), changed))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shift", [-50.0, 0.0, 7.5])
@given(seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_order_of_a_context_does_not_depend_on_rounding(shift: float, seed: int) -> None:
    """Lattice cells at equal distances keep their order wherever the origin is."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(81, 30, replace=False)
    x = torch.tensor(np.stack(np.divmod(cells, 9), -1), dtype=torch.float32)[None] - 4.5
    mask = torch.tensor(rng.random((1, 30)) < 0.8)
    order = outside_in_order(x, mask)
    assert torch.equal(order, outside_in_order(x + shift, mask))
    assert torch.equal(order, outside_in_order(torch.where(mask[..., None], x, torch.nan), mask))
    n_masked = int((~mask).sum())
    assert not mask[0, order[0, :n_masked]].any()
    permutation = torch.from_numpy(rng.permutation(30))
    permuted = permutation[outside_in_order(x[:, permutation], mask[:, permutation])[0]]
    assert torch.equal(permuted[n_masked:], order[0, n_masked:])


def test_parts_of_a_context_are_its_nearest_points_and_every_other_one() -> None:
    x = torch.arange(9.0)[None, :, None].expand(2, -1, -1)
    mask = torch.tensor([[True] * 9, [False] * 5 + [True] * 4])
    context = Observations(torch.zeros(2, 9, 2), x, x, mask)
    assert context.nearest(3).x[0, :, 0].tolist() == [8, 7, 6]
    thinned = context.thinned(5)
    assert thinned.x[0, thinned.mask[0], 0].tolist() == [8, 6, 4, 2, 0]
    assert thinned.x[1, thinned.mask[1], 0].tolist() == [8, 7, 6, 5]
