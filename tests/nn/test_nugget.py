"""Noise between close measurements: what is moved, and what the shipped model finds of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from geonp.inference import checkpoint
from geonp.nn.likelihood import log_density
from geonp.nn.nugget import with_nugget, without_known_errors
from geonp.nn.observations import Observations
from geonp.nn.process import CovarianceModel


def field(noise: float, n: int, n_targets: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scattered places ``(1, n, 2)``, standardised values of an exponential process with noise, and the exact errors
    of predictions at the last places."""
    generator = torch.Generator().manual_seed(seed)
    x = 16 * torch.rand(n + n_targets, 2, generator=generator, dtype=torch.float64)
    kernel = (1 - noise) * torch.exp(-torch.cdist(x, x) / 4) + noise * torch.eye(len(x))
    y = torch.linalg.cholesky(kernel) @ torch.randn(len(x), 1, generator=generator, dtype=torch.float64)
    inverse = torch.linalg.inv(kernel[:n, :n])
    error = (1 - ((kernel[n:, :n] @ inverse) * kernel[n:, :n]).sum(1)).sqrt()
    y, scale = y[:n] - y[:n].mean(), y[:n].std()
    return x.float()[None], (y / scale).float()[None], error / scale


def observations(model: CovarianceModel) -> tuple[Tensor, Observations]:
    """Raw parameters and noisy observations of two tasks, some of which are masked."""
    generator = torch.Generator().manual_seed(0)
    x = 8 * torch.rand(2, 60, 2, generator=generator)
    local = 0.3 * torch.randn(2, 60, 2, generator=generator)
    raw = 0.5 * torch.randn(2, model.n_raw, generator=generator).double()
    raw[:, -1] = -8.0
    mask = torch.arange(60) < torch.tensor([[60], [45]])
    return raw, Observations(local, x, torch.randn(2, 60, 1, generator=generator), mask)


def likelihood(model: CovarianceModel, raw: Tensor, context: Observations) -> Tensor:
    fields, rest = model.fields(raw, context)
    return log_density(fields.sum(1) + rest, model.noise(raw, context), context.y, context.mask)


def test_the_likelihood_is_that_of_the_score() -> None:
    model = CovarianceModel(2, (1.0, 6.0))
    raw, context = observations(model)
    each, _, _ = model.score(model.linearise(raw), context)
    torch.testing.assert_close(likelihood(model, raw, context), each.double() * context.mask.sum(1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("mixture", [0, 1])
def test_variance_is_moved_and_kept_in_total(mixture: int) -> None:
    model = CovarianceModel(2, (1.0, 6.0))
    raw, context = observations(model)
    context.local.zero_()
    moved = model.moved_to_noise(raw, mixture, 0.6, context)
    (weights, noise), (less, more) = (
        (model.process(r, context.local).weights.sum(2), model.process(r, context.local).noise[:, 0])
        for r in (raw, moved)
    )
    torch.testing.assert_close(less[:, mixture], 0.4 * weights[:, mixture])
    torch.testing.assert_close(less[:, 1 - mixture], weights[:, 1 - mixture])
    # the largest noise is bounded smoothly
    torch.testing.assert_close(more - noise, 0.6 * weights[:, mixture], rtol=0.1, atol=0)


def test_noise_is_moved_where_it_is_more_likely() -> None:
    """Independent values have noise; a smooth field without noise keeps its covariance."""
    model = CovarianceModel(2, (0.5, 6.0))
    raw, context = observations(model)
    context.y[1] = torch.sin(context.x[1, :, :1] / 3)
    moved = with_nugget(model, raw, context, model.fields(raw, context))
    gain = likelihood(model, moved, context) - likelihood(model, raw, context)
    assert gain[0] > 10
    assert moved[0, -1] > raw[0, -1] + 3
    torch.testing.assert_close(moved[1], raw[1], rtol=0, atol=0)


@pytest.mark.parametrize("known_errors", [False, True])
def test_the_shipped_model_is_as_certain_as_the_exact_process_next_to_measurements(known_errors: bool) -> None:
    """On rasters, it takes noise for a field of a short length, and is too certain closer than a cell."""
    network, _ = checkpoint.load_model("tnpkr-sa")
    near, found = [], []
    for seed in range(4):
        x, y, exact = field(0.3, 200, 200, seed)
        errors = torch.full(y.shape[:2], 1e-3) if known_errors else None
        apart = torch.cdist(x[0, 200:], x[0, :200]).amin(1)
        close = apart < apart.quantile(0.15)
        with torch.no_grad():
            for scattered in (False, True):
                out = network(x[:, :200], y, x[:, 200:], errors=errors, scattered=scattered)
                near.append((out.stddev[0, close, 0].double() / exact[close]).log().mean().exp())
                found.append(out.process().noise[0, 200:].median())
    ratio, noise = torch.stack(near).view(4, 2).mean(0), torch.stack(found).view(4, 2).mean(0)
    assert ratio[0] < 0.88
    assert 0.92 < ratio[1] < 1.06
    assert noise[0] < 0.02
    assert 0.15 < noise[1] < 0.45


def test_known_errors_are_left_out_of_the_field() -> None:
    """Independent values whose errors are known have no field; a draw of the process keeps its covariance."""
    model = CovarianceModel(2, (0.5, 6.0))
    raw, context = observations(model)
    fields, rest = model.fields(raw, context)
    factor = torch.linalg.cholesky((fields.sum(1) + rest)[1] + torch.diag(model.noise(raw, context)[1]))
    context.y[1] = (factor @ context.y[1].double()).float()
    errors = torch.tensor([[1.0], [0.05]]).double().square().expand(2, 60)
    known, free = replace(context, error_variance=errors), replace(context, error_variance=torch.zeros_like(errors))
    found, same = (without_known_errors(model, raw, points, (fields, rest)) for points in (known, free))
    before, after = (model.process(r, context.local).weights.sum((1, 2)) for r in (raw, found))
    assert after[0] < 0.1 * before[0]
    assert after[1] > 0.7 * before[1]
    torch.testing.assert_close(found[:, -1], raw[:, -1], rtol=0, atol=0)
    torch.testing.assert_close(same, raw)


@pytest.mark.parametrize(("sizes", "most"), [((0.05, 1.0), 1.2), ((0.3, 0.3), 1.2), ((1.0, 1.0), 1.6)])
def test_the_shipped_model_knows_that_known_errors_are_no_field(sizes: tuple[float, float], most: float) -> None:
    """Of the cells of a smooth field 256 are observed, with errors of two sizes in standard deviations of the field."""
    network, _ = checkpoint.load_model("tnpkr-sa")
    cells = torch.cartesian_prod(*[torch.arange(24.0, dtype=torch.float64)] * 2)
    distances = math.sqrt(3) * torch.cdist(cells, cells) / 8
    covariance = (1 + distances) * torch.exp(-distances)
    factor = torch.linalg.cholesky(covariance + 1e-8 * torch.eye(len(cells)))
    ratios = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        truth = factor @ torch.randn(len(cells), generator=generator, dtype=torch.float64)
        order = torch.randperm(len(cells), generator=generator)
        seen, hidden = order[:256], order[256:]
        errors = torch.where(torch.rand(256, generator=generator) < 0.5, *sizes).double()
        values = truth[seen] + errors * torch.randn(256, generator=generator, dtype=torch.float64)
        weights = torch.linalg.solve(covariance[seen][:, seen] + torch.diag(errors**2), covariance[seen][:, hidden])
        exact = (1 - (weights * covariance[seen][:, hidden]).sum(0)).sqrt()
        level, scale = values.mean(), values.std()
        inputs = cells[seen].float(), ((values - level) / scale)[:, None].float(), cells[hidden].float()
        with torch.no_grad():
            out = network(*(t[None] for t in inputs), errors=(errors / scale).float()[None])
        ratios.append((scale * out.stddev[0, :, 0].double() / exact).log().mean().exp())
    assert 0.95 < torch.stack(ratios).mean() < most
