"""Predictions conditioned on measurements that the network did not read."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import StudentT

from geonp.nn.heads import Kriged, log_density_of
from geonp.nn.likelihood import condition
from geonp.nn.process import CovarianceModel
from geonp.nn.update import updated

N_C, N_T, M = 20, 7, 4
ERROR, OFFSET = 0.3, 0.2


def task() -> tuple[CovarianceModel, Tensor, Tensor, Tensor, Tensor]:
    """A covariance with amplitudes and noise of points: model, raw and local parameters, places and values."""
    generator = torch.Generator().manual_seed(0)
    model = CovarianceModel(2, (3.0, 9.0))
    raw = 0.5 * torch.randn(1, model.n_raw, generator=generator)
    local = 0.5 * torch.randn(1, N_T + N_C, 2, generator=generator)
    x, y = 6 * torch.rand(1, N_T + N_C, 2, generator=generator), torch.randn(1, N_T + N_C, 1, generator=generator)
    return model, raw, local, x, y


def test_an_update_equals_one_process_conditioned_on_all() -> None:
    """Also where padding is unknown and where the head has changed nothing but units."""
    model, raw, local, x, y = task()
    kernel, prior, noise = model.covariance(raw, local, local, x, x)
    mask = torch.arange(N_C)[None] > 2
    given = condition(kernel[:, :, N_T:], prior[:, :N_T], noise[:, N_T:], y[:, N_T:], mask)
    scale = (given.variance + noise[:, :N_T]).sqrt()[..., None].float()
    df = torch.full_like(scale, 10.0)
    predicted = StudentT(df, given.mean, scale * 0.8**0.5)
    before = Kriged(predicted, lambda: model.process(raw, local), log_density_of(given))
    values, errors = y[:, :M, 0].clone(), torch.full((1, M), ERROR)
    values[0, -1] = torch.nan
    after = updated(before, x[:, N_T:], x[:, :N_T], mask, values, errors, torch.tensor([OFFSET]))

    n = M - 1
    every = torch.cat([torch.arange(N_T), torch.arange(n), torch.arange(N_T, N_T + N_C)])
    both = kernel[:, every][:, :, every[N_T:]].clone()
    # the offset that the measurements share; theirs is no covariance with targets
    both[:, N_T : N_T + n, :n] += OFFSET**2
    noises = torch.cat([noise[:, :n] + ERROR**2, noise[:, N_T:]], 1)
    exact = condition(both, prior[:, :N_T], noises, y[:, every[N_T:]], torch.cat([torch.ones(1, n).bool(), mask], 1))
    torch.testing.assert_close(after.mean, exact.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.variance[..., 0], exact.variance + noise[:, :N_T].float(), rtol=1e-4, atol=1e-5)
    assert (after.variance < 0.9 * before.variance).any()
    torch.testing.assert_close(after.df, df)
