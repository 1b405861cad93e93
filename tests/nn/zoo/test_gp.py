"""Gaussian processes of GPyTorch against textbook formulas, and the error without GPyTorch."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from geonp.errors import MissingExtraError
from geonp.nn.zoo import gp


def task(d_y: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    xc, xt = (torch.rand(2, n, 1, generator=g) * 4 for n in (14, 5))
    phases = torch.arange(d_y) * 0.4
    return xc, torch.sin(2 * xc + phases) + 0.05 * torch.randn(2, 14, d_y, generator=g), xt


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(MissingExtraError, match=r"'gpytorch' is not installed.*pip install 'geonp\[gp\]'"):
        gp.GP()


def test_prediction_is_the_conditional_distribution_of_the_fitted_process(monkeypatch: pytest.MonkeyPatch) -> None:
    gpytorch = pytest.importorskip("gpytorch")
    x, y, xt = (t[0].double() for t in task())
    models: list[torch.nn.Module] = []
    prediction_mode = gpytorch.models.ExactGP.eval
    monkeypatch.setattr(gpytorch.models.ExactGP, "eval", lambda self: models.append(self) or prediction_mode(self))
    fitted = gp.GP(steps=20)(x[None], y[None], xt[None])
    loc, scale, model = fitted.loc[0, :, 0], fitted.scale[0, :, 0], models[0]
    length, size = model.covariance.base_kernel.lengthscale.item(), model.covariance.outputscale.item()
    noise, mean = model.likelihood.noise.item(), model.mean.constant.item()

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return size * torch.exp(-0.5 * ((a - b.T) / length) ** 2)

    gain = kernel(xt, x) @ torch.linalg.inv(kernel(x, x) + noise * torch.eye(14))
    torch.testing.assert_close(loc, mean + gain @ (y[:, 0] - mean), rtol=1e-5, atol=1e-5)
    variance = size + noise - (gain * kernel(xt, x)).sum(1)
    torch.testing.assert_close(scale, variance.sqrt(), rtol=1e-4, atol=1e-5)


def test_a_fitted_process_recovers_a_sine() -> None:
    pytest.importorskip("gpytorch")
    xc, yc, xt = task()
    out = gp.GP(steps=60)(xc, yc, xt)
    assert (out.loc - torch.sin(2 * xt)).abs().max() < 0.25
    assert (out.loc - torch.sin(2 * xt)).abs().mean() < 0.1


def test_masked_equals_dropped() -> None:
    pytest.importorskip("gpytorch")
    xc, yc, xt = task()
    mask = torch.arange(14).expand(2, 14) < 10
    dirty = torch.where(mask[..., None], yc, torch.nan)
    model = gp.GP(steps=5)
    torch.testing.assert_close(model(xc, dirty, xt, mask).loc, model(xc[:, :10], yc[:, :10], xt).loc)
    with pytest.raises(ValueError, match="at least one context point in every task"):
        model(xc, yc, xt, torch.zeros_like(mask))


def test_multitask_process_equals_the_single_one_for_one_channel() -> None:
    """And recovers two correlated channels."""
    pytest.importorskip("gpytorch")
    xc, yc, xt = task(2)
    out = gp.MultitaskGP(steps=40)(xc, yc, xt)
    assert out.loc.shape == out.scale.shape == (2, 5, 2)
    expected = torch.sin(2 * xt + torch.arange(2) * 0.4)
    assert (out.loc - expected).abs().mean() < 0.15
    alone, single = gp.MultitaskGP(steps=5)(xc, yc[..., :1], xt), gp.GP(steps=5)(xc, yc[..., :1], xt)
    assert torch.equal(alone.loc, single.loc)
