"""Probabilities of classes from a model of numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from geonp.inference import checkpoint
from geonp.nn.indicators import class_probabilities, predicts_classes
from geonp.nn.models import build


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return checkpoint.load_model("tnpkr-sa")[0]


@pytest.fixture
def task() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Places of a context of three classes in stripes, its indicators, places of targets, and the mask."""
    generator = torch.Generator().manual_seed(0)
    xc, xt = (20 * torch.rand(1, n, 2, generator=generator) for n in (60, 30))
    number = (xc[..., 0] / 7).long().clamp(0, 2)
    return xc, torch.nn.functional.one_hot(number, 3).float(), xt, torch.ones(1, 60, dtype=torch.bool)


def test_probabilities_are_coherent(network: nn.Module, task: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    xc, indicators, xt, mask = task
    found = class_probabilities(network, xc, indicators, xt, mask)
    assert found.shape == (1, 30, 3)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), torch.full((1, 30), 61 / 62, dtype=torch.float64))
    likely = (xt[..., 0] / 7).long().clamp(0, 2)
    assert (found.argmax(-1) == likely).float().mean() > 0.85


def test_the_order_of_classes_and_what_is_absent_do_not_matter(
    network: nn.Module, task: tuple[Tensor, Tensor, Tensor, Tensor]
) -> None:
    xc, indicators, xt, mask = task
    found = class_probabilities(network, xc, indicators, xt, mask)
    turned = class_probabilities(network, xc, indicators[..., [2, 0, 1]], xt, mask)
    torch.testing.assert_close(turned, found[..., [2, 0, 1]], atol=1e-5, rtol=0)
    # a class without an observation, and masked points of another one
    more_x = torch.cat([xc, xc[:, :4] + 0.5], 1)
    more = torch.cat([torch.nn.functional.pad(indicators, (0, 1)), torch.eye(4)[None, 3:].expand(1, 4, 4)], 1)
    padded = class_probabilities(network, more_x, more, xt, torch.nn.functional.pad(mask, (0, 4)))
    torch.testing.assert_close(padded[..., :3], found, atol=1e-4, rtol=0)
    assert (padded[..., 3] < 1e-6).all()


def test_models_that_predict_classes(network: nn.Module) -> None:
    assert predicts_classes(network)
    assert not predicts_classes(build("tnp-d", {"dim": 8, "heads": 1, "blocks": 1}))
