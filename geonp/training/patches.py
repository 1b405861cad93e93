"""Loss and scores of the correction for small gaps, on batches of :mod:`geonp.training.data.small_gaps`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import StudentT

from geonp.inference.student import half_width
from geonp.nn.heads import Kriged, KrigingHead
from geonp.nn.nearby import NearbyCorrection, predict, readings_of
from geonp.nn.squares import NEARBY, Patch
from geonp.training.batch import Batch


@dataclass(frozen=True)
class PatchSettings:
    """Settings of the loss."""

    largest: float = 50.0
    """Largest negative log density that counts: values far from a process with little noise say nothing about others.
    """


PATCHES = PatchSettings()


def patch_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Mean negative log density of the cells of all patches; gradients flow to the correction only."""
    return _cells(network, batch)[0].clamp_max(PATCHES.largest).mean()


@torch.no_grad()
def patch_scores(network: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Mean negative log density ``nll``, and ``coverage_95`` of the predicted intervals, over cells."""
    nll, inside = (torch.cat(parts) for parts in zip(*(_cells(network, batch) for batch in batches), strict=True))
    return {
        "nll": round(float(nll.clamp_max(PATCHES.largest).mean()), 5),
        "coverage_95": round(float(inside.mean()), 5),
    }


def _cells(network: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Negative log density of each cell, in conditional standard deviations, and whether it is in its interval."""
    head = network.head
    assert isinstance(head, KrigingHead)
    assert isinstance(head.nearby, NearbyCorrection)
    with torch.no_grad():
        device = next(network.parameters()).device
        predicted = network(*(batch[key].to(device) for key in ("xc", "yc", "xt", "context_mask")))
        assert isinstance(predicted, Kriged)
        process = predicted.process().cpu()
    mask, loc, scale = (batch[key].cpu().numpy() for key in ("context_mask", "loc", "scale"))
    readings, n = readings_of(process, mask, loc, scale), len(batch["values"])
    nll, inside = [], []
    for k in range(n):
        values, missing, squares, truth = (batch[key][k].cpu() for key in ("values", "missing", "squares", "truth"))
        corners = NEARBY.side_px * squares.nonzero().numpy()
        candidates = tuple(readings[4 * k : 4 * (k + 1)])
        found = predict(Patch(values.numpy(), missing.numpy(), corners, candidates))
        deviation, tail = (t.double().cpu() for t in head.nearby(found))
        distribution = StudentT(1 / tail, found.mean.double(), deviation * (1 - 2 * tail).sqrt(), validate_args=False)
        z = (truth.flatten()[found.places] - found.loc) / found.unit
        # the last target of a square is repeated
        once = torch.ones_like(found.places, dtype=torch.bool)
        once[:, 1:] = found.places[:, 1:] != found.places[:, :-1]
        nll.append((-distribution.log_prob(z) - found.scale.log())[once].float())
        half = half_width(deviation.detach().numpy(), tail.detach().numpy(), 0.95)
        inside.append(((z - found.mean).abs() <= torch.from_numpy(half))[once].float())
    return torch.cat(nll), torch.cat(inside)
