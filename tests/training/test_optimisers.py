"""Yogi follows its equations, and the recipe's choice of optimiser and schedule is what runs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from geonp.errors import RecipeError
from geonp.training.optimisers import Yogi, freeze_all_but, learning_rate, optimiser
from geonp.training.recipe import Training


def test_yogi_is_its_equations() -> None:
    """Element by element, in Python's float64, with optax's constants."""
    g = torch.Generator().manual_seed(0)
    weights = [
        nn.Parameter(torch.randn(3, 2, generator=g).double()),
        nn.Parameter(torch.randn(2, generator=g).double()),
    ]
    expected = [w.detach().flatten().tolist() for w in weights]
    first, second = ([[start] * w.numel() for w in weights] for start in (0.0, 1e-6))
    yogi = Yogi(weights, lr=0.1, betas=(0.9, 0.999))
    for step in range(1, 6):
        for i, w in enumerate(weights):
            w.grad = torch.randn(w.shape, generator=g).double()
            for j, d in enumerate(w.grad.flatten().tolist()):
                first[i][j] = 0.9 * first[i][j] + 0.1 * d
                second[i][j] -= 0.001 * math.copysign(d * d, second[i][j] - d * d)
                mean, square = first[i][j] / (1 - 0.9**step), second[i][j] / (1 - 0.999**step)
                expected[i][j] -= 0.1 * mean / (math.sqrt(square) + 1e-3)
        yogi.step()
    for w, values in zip(weights, expected, strict=True):
        assert w.detach().flatten().tolist() == pytest.approx(values, rel=1e-12)


def test_yogi_resumes_from_its_state_and_skips_what_has_no_gradient() -> None:
    def steps(yogi: Yogi, w: nn.Parameter, n: int) -> None:
        for _ in range(n):
            yogi.zero_grad()
            (w - 3).square().sum().backward()
            yogi.step()

    one, other, idle = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    straight, broken = Yogi([one, idle], lr=0.05), Yogi([other], lr=0.05)
    steps(straight, one, 8)
    steps(broken, other, 5)
    resumed = Yogi([other], lr=0.05)
    resumed.load_state_dict(broken.state_dict())
    steps(resumed, other, 3)
    assert torch.equal(one, other)
    assert torch.equal(idle, torch.zeros(2))
    steps(straight, one, 400)
    assert one.tolist() == pytest.approx([3, 3], abs=1e-2)
    with pytest.raises(ValueError, match="Yogi takes no closure"):
        straight.step(lambda: 0.0)


def test_the_recipe_chooses() -> None:
    network = nn.Linear(3, 2)
    yogi = optimiser(network, Training(steps=1, optimiser="yogi", betas=(0.8, 0.9), learning_rate=0.5))
    assert isinstance(yogi, Yogi)
    assert yogi.param_groups[0]["betas"] == (0.8, 0.9)
    adam = optimiser(network, Training(steps=1, weight_decay=0.3))
    assert [(len(g["params"]), g["weight_decay"]) for g in adam.param_groups] == [(1, 0.3), (1, 0.0)]


def test_the_papers_schedules() -> None:
    kr = Training(steps=100, warmup=0, decay=1.0, floor=0.01, learning_rate=1e-3)
    assert [learning_rate(step, kr) for step in (0, 50, 100)] == pytest.approx([1e-3, 0.505e-3, 1e-5])
    te = Training(steps=100, warmup=0, decay=0.0, learning_rate=5e-4)
    assert {learning_rate(step, te) for step in range(100)} == {5e-4}


def test_only_named_weights_are_trained() -> None:
    torch.manual_seed(0)
    network = nn.ModuleDict({"first": nn.Linear(2, 1), "second": nn.Linear(1, 1)})
    before = {name: weights.clone() for name, weights in network.state_dict().items()}
    freeze_all_but(network, ("second",))
    steps = optimiser(network, Training(steps=1, learning_rate=0.1))
    network["second"](network["first"](torch.ones(1, 2))).sum().backward()
    steps.step()
    unchanged = {name for name, weights in network.state_dict().items() if torch.equal(weights, before[name])}
    assert unchanged == {"first.weight", "first.bias"}
    freeze_all_but(network, ())
    assert all(weights.requires_grad for weights in network.parameters())


def test_names_of_no_weights_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"training\.only: got 'third': no weight has a name that begins with it"):
        freeze_all_but(nn.ModuleDict({"first": nn.Linear(2, 1)}), ("third",))
