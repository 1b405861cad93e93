"""Training of the correction for small gaps."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy import ndimage

from geonp.inference.checkpoint import load_model
from geonp.training.data.small_gaps import holes
from geonp.training.objective import Objective
from geonp.training.patches import patch_scores
from geonp.training.recipe import load
from geonp.training.sources import draw

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_correction_alone_learns_from_small_gaps(device: str) -> None:
    recipe = load("tnpkr_sa_small_gaps", ["training.batch_size=1"])
    batch = draw(recipe, 3, 0)
    torch.testing.assert_close(batch, draw(recipe, 3, 0), equal_nan=True)
    assert batch["squares"].shape == (1, 8, 8)
    in_squares = batch["missing"][0].unflatten(0, (8, 4)).unflatten(2, (8, 4)).any(3).any(1)
    assert batch["squares"].any()
    assert not (batch["squares"][0] & ~in_squares).any()
    network = deepcopy(load_model("tnpkr-sa")[0]).to(device)
    assert 0.8 < patch_scores(network, [batch])["coverage_95"] <= 1
    correction = network.head.nearby
    weights = [torch.zeros_like(parameter).requires_grad_() for parameter in correction.mlp.parameters()]
    names = [name for name, _ in correction.mlp.named_parameters(prefix="network.head.nearby.mlp")]
    objective = Objective(network)
    there = {key: value.to(device) for key, value in batch.items()}
    loss = torch.func.functional_call(objective, dict(zip(names, weights, strict=True)), (there,))
    loss.backward()
    assert weights[-1].grad.abs().min() > 0


def test_holes_have_their_sizes() -> None:
    missing = holes(np.random.default_rng(0), (300, 300), 0.002, (4.0, 40.0))
    gaps, n = ndimage.label(np.tile(missing, (2, 2)))
    sizes = np.bincount(gaps.ravel())[1:]
    # holes at an edge go on at the other one
    of_whole = np.array([gaps[row + 300 * (row < 150), col + 300 * (col < 150)] for row, col in np.argwhere(missing)])
    sizes = sizes[np.unique(of_whole) - 1]
    assert n >= len(sizes) > 5
    assert 4 <= sizes.min() <= 10
    assert 20 < sizes.max() <= 80  # two may touch
    assert 0.002 <= missing.mean() < 0.002 + 40 / 300**2
