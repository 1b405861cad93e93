"""Very smooth fields: their covariance has no rough part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from geonp.inference import checkpoint
from geonp.nn import smoothness
from geonp.nn.likelihood import log_density
from geonp.nn.observations import Observations, outside_in_order, with_even_amplitude
from geonp.nn.process import CovarianceModel
from geonp.nn.smoothness import SmoothnessSettings, smoother

LENGTH = 4.0


def field(seed: int, noise: float = 1e-3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Locations and values around a gap of 12 x 12 cells in a Gaussian covariance's field, and exact errors there."""
    rng = np.random.default_rng(seed)
    cells = torch.cartesian_prod(*[torch.arange(20.0, dtype=torch.float64)] * 2)
    covariance = torch.exp(-torch.cdist(cells, cells).square() / (2 * LENGTH**2)) + noise**2 * torch.eye(len(cells))
    values = torch.linalg.cholesky(covariance) @ torch.from_numpy(rng.standard_normal(len(cells)))
    gap = ((cells - 9.5).abs() < 6).all(1)
    seen, hidden = (torch.nonzero(mask)[:, 0] for mask in (~gap, gap))
    weights = torch.linalg.solve(covariance[seen][:, seen], covariance[seen][:, hidden])
    exact = (1 + noise**2 - (weights * covariance[seen][:, hidden]).sum(0)).sqrt()
    return cells[seen].float(), values[seen, None].float(), cells[hidden].float(), exact


def as_read(model: CovarianceModel) -> Tensor:
    """Parameters as the network reads them: a Matern 7/2 with a little of a longer Matern 3/2."""
    raw = model.with_kernel(torch.zeros(1, model.n_raw).double(), 3, 0.8)
    raw = model.scaled(raw, 1, torch.tensor([0.5]))
    kernels = raw.shape[1] - 2 - 5
    raw[:, kernels : kernels + 5] = torch.tensor([0.0, 7.0, 0.0, 0.0, 0.0])
    raw[:, -1] = -9.0
    return raw


def context(seed: int, noise: float = 1e-3) -> Observations:
    """A field as a context."""
    xc, yc, _, _ = field(seed, noise)
    mask = torch.ones(1, len(xc), dtype=torch.bool)
    order = outside_in_order(xc[None], mask)[0]
    return Observations(torch.zeros(1, len(xc), 2), xc[None, order], yc[None, order], mask)


def density(model: CovarianceModel, raw: Tensor, points: Observations) -> float:
    """Log likelihood per point."""
    fields, rest = model.fields(raw, points)
    value = log_density(fields.sum(1) + rest, model.noise(raw, points), points.y, points.mask)
    return float(value) / points.mask.sum()


def test_a_rough_part_is_left_out_where_the_field_is_far_more_likely_without_it() -> None:
    """A rough field, and one with noise, keep their parameters."""
    model = CovarianceModel(2, (2.0, 6.0))
    raw, points = as_read(model), context(0)
    found, changed_mask, _ = smoother(model, raw, points, 128, model.fields)
    assert changed_mask.tolist() == [True]
    assert density(model, found, points) > density(model, raw, points) + 0.2
    before, after = (model.process(r, points.local).weights[0] for r in (raw, found))
    assert after[1].sum() < 0.11 * before[1].sum()
    assert after[0, :3].sum() < 1e-3 * after[0].sum()
    noisy = context(0, 0.3)
    assert smoother(model, raw, noisy, 128, model.fields)[0] is raw
    rough = model.with_kernel(raw, 1, 1.0)
    assert smoother(model, rough, points, 128, model.fields)[0] is rough


def test_amplitudes_become_even_and_the_noise_small() -> None:
    """Of the same field twice, the second without a change because its parameters are those of a rough one."""
    model = CovarianceModel(2, (2.0, 6.0))
    raw, even = as_read(model), context(0, 1e-4)
    amplitude = 0.02 * torch.randn(1, even.x.shape[1], 1, generator=torch.Generator().manual_seed(0))
    points = replace(even, local=torch.cat([amplitude, even.local[..., 1:]], -1))
    both = (torch.cat([t, t]) for t in (points.local, points.x, points.y, points.mask))
    twice = torch.cat([raw, model.with_kernel(raw, 1, 1.0)])
    found, changed_mask, after = smoother(model, twice, Observations(*both), 128, model.fields)
    assert changed_mask.tolist() == after.even_mask.tolist() == [True, False]
    torch.testing.assert_close(after.local[0, :, 0], amplitude.mean().expand_as(after.local[0, :, 0]))
    torch.testing.assert_close(after.local[1], points.local[0])
    torch.testing.assert_close(found[1], twice[1])
    assert found[0, -1] < raw[0, -1] - 2
    of_context = points.local.expand(2, -1, -1), points.mask.expand(2, -1)
    targets = with_even_amplitude(torch.ones(2, 3, 2), *of_context, after.even_mask)
    torch.testing.assert_close(targets[:, 0], torch.tensor([[amplitude.mean(), 1.0], [1.0, 1.0]]))


def test_scoring_that_makes_the_context_less_likely_is_undone() -> None:
    """Of 256 cells among 60 x 60 in a field of the same covariance, the steps of scoring lead far away."""
    rng = np.random.default_rng(10)
    cells = torch.from_numpy(np.argwhere(np.ones((60, 60)))).double() - 29.5
    cells = cells[torch.from_numpy(rng.permutation(3600)[:320])]
    cells = cells[cells.abs().amax(1).argsort()]
    covariance = torch.exp(-torch.cdist(cells, cells).square() / (2 * LENGTH**2)) + 1e-6 * torch.eye(320).double()
    values = torch.linalg.cholesky(covariance) @ torch.from_numpy(rng.standard_normal(320))
    hidden_mask = torch.arange(320) % 5 == 2
    seen, hidden = cells[~hidden_mask], cells[hidden_mask]
    weights = torch.linalg.solve(covariance[~hidden_mask][:, ~hidden_mask], covariance[~hidden_mask][:, hidden_mask])
    error = (1 + 1e-6 - (weights * covariance[~hidden_mask][:, hidden_mask]).sum(0)).sqrt()
    network, _ = checkpoint.load_model("tnpkr-sa")
    with torch.no_grad():
        out = network(seen[None].float(), values[~hidden_mask, None][None].float(), hidden[None].float())
    assert 0.9 < (out.stddev[0, :, 0].double() / error).log().mean().exp() < 1.3


def test_one_kernel_alone_with_longer_lengths() -> None:
    """The other parameters are kept."""
    model = CovarianceModel(2, (2.0, 6.0))
    raw = torch.randn(3, model.n_raw, generator=torch.Generator().manual_seed(0)).double()
    found = model.with_kernel(raw, 4, 1.25)
    local = torch.zeros(3, 4, 2)
    before, after = model.process(raw, local), model.process(found, local)
    torch.testing.assert_close(after.weights.sum(2), before.weights.sum(2))
    assert (after.weights[:, 0, 4] > 0.999 * after.weights[:, 0].sum(1)).all()
    torch.testing.assert_close(after.metric[:, 0] * 1.25**2, before.metric[:, 0])
    torch.testing.assert_close(after.metric[:, 1], before.metric[:, 1])
    torch.testing.assert_close(after.noise, before.noise)


def test_the_shipped_model_is_nearly_as_certain_as_the_exact_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a very smooth field without noise."""
    network, _ = checkpoint.load_model("tnpkr-sa")

    def ratio() -> Tensor:
        ratios = []
        for seed in range(4):
            xc, yc, xt, exact = field(seed)
            with torch.no_grad():
                out = network(xc[None], yc[None], xt[None])
            ratios.append((out.stddev[0, :, 0].double() / exact).log().mean().exp())
        return torch.stack(ratios).mean()

    found = ratio()
    assert 0.95 < found < 1.4
    monkeypatch.setattr(smoothness, "SMOOTHNESS", SmoothnessSettings(most_rough=0.0))
    assert ratio() > 1.3 * found
