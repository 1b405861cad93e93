"""Training losses, and scores on held-out tasks, for exact conditional moments, sampled values and classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from geonp.inference.student import crps, half_width
from geonp.nn import models
from geonp.nn.drift import Covariates
from geonp.nn.heads import tail_of
from geonp.raster.arrays import Float64Array
from geonp.training.batch import Batch
from geonp.training.patches import patch_loss

NORMAL_95 = 1.959964
"""Half-width of the 95 % interval of a normal distribution, in standard deviations."""


class Objective(nn.Module):
    """Loss of a network on a batch, as a module that :mod:`lightning_fabric` can replicate over devices.

    For batches with the ``mean`` and ``variance`` of their targets, :func:`expected_nll` plus `mean_weight` times
    :func:`mean_distance`. For batches with sampled values ``yt``, :func:`geonp.nn.models.loss`: the model's own loss,
    or the mean negative log density. For small gaps, :func:`geonp.training.patches.patch_loss`.
    """

    def __init__(self, network: nn.Module, precision: str = "float32", mean_weight: float = 0.0) -> None:
        super().__init__()
        self.network, self.precision, self.mean_weight = network, precision, mean_weight

    def forward(self, batch: Batch) -> Tensor:
        """Scalar loss of a batch of :func:`geonp.training.sources.draw`."""
        if "squares" in batch:
            return patch_loss(self.network, batch)
        points, mask = (batch["xc"], batch["yc"], batch["xt"]), batch["context_mask"]
        # Fabric's own autocast would also round the coordinates
        with torch.autocast(mask.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            if "yt" in batch:
                return models.loss(self.network, *points, batch["yt"], mask)
            predicted = self.network(*points, mask, **beside(batch))
        nll = expected_nll(predicted, batch)
        return nll + self.mean_weight * mean_distance(predicted, batch) if self.mean_weight else nll


def beside(batch: Batch) -> dict[str, Any]:
    """The covariates and known errors of a batch, as arguments of a network; none where it has none."""
    if "known_error" not in batch:
        return {}
    parts = (batch[f"covariates_{name}"] for name in ("context", "targets", "context_error", "target_error"))
    return {"covariates": Covariates(*parts), "errors": batch["known_error"]}


def expected_nll(predicted: Distribution, batch: Batch) -> Tensor:
    """Negative log density, in expectation over targets from N(mean, variance), averaged over targets and tasks.

    Sampled values have a variance of zero. If the batch has a ``weight`` for each target, the weighted mean of all
    targets is returned.
    """
    nll = _expected_nll(predicted, batch["mean"], batch["variance"])
    if "weight" in batch:
        return (nll * batch["weight"]).sum() / batch["weight"].sum()
    weight = batch["target_mask"].float()
    return ((nll * weight).sum(-1) / weight.sum(-1).clamp_min(1)).mean()


def _expected_nll(predicted: Distribution, mean: Tensor, variance: Tensor) -> Tensor:
    nodes, weights = (torch.from_numpy(a).to(mean) for a in _gauss_hermite(8))
    values = mean + variance.sqrt() * nodes[:, None, None]
    return -(predicted.log_prob(values[..., None])[..., 0] * weights[:, None, None]).sum(0)


def mean_distance(predicted: Distribution, batch: Batch) -> Tensor:
    """Mean over targets of ``sqrt(1 + d^2) - 1``, with d the error of the predicted mean in context deviations."""
    distance = (1 + (predicted.mean[..., 0] - batch["mean"]).square()).sqrt() - 1
    weight = batch["target_mask"].float()
    return ((distance * weight).sum(-1) / weight.sum(-1).clamp_min(1)).mean()


def relative_crps(predicted: Distribution, batch: Batch) -> Tensor:
    """CRPS of normal predictions over its expectation if they were calibrated; both are summed over the batch.

    Computed in the units of the raster, so that tasks that vary more count for more. The batch has a ``weight`` for
    each target and a ``scale`` for each task; its ``variance`` is not used.
    """
    deviation = predicted.stddev[..., 0]
    z = (batch["mean"] - predicted.mean[..., 0]) / deviation
    density = torch.exp(-0.5 * z.square()) * math.sqrt(2 / math.pi)
    crps = deviation * (z * torch.erf(z * math.sqrt(0.5)) + density - 1 / math.sqrt(math.pi))
    weight = batch["weight"] * batch["scale"][:, None]
    return (crps * weight).sum() / (deviation.detach() * weight).sum() * math.sqrt(math.pi)


def _gauss_hermite(n: int) -> tuple[Float64Array, Float64Array]:
    """Nodes and weights of the quadrature for expectations under a standard normal distribution."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / math.sqrt(2 * math.pi)


@torch.no_grad()
def scores(network: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Scores on held-out synthetic tasks.

    Returns
    -------
    dict
        ``nll`` over all tasks; over tasks whose exact process is known, ``kl``, the mean divergence of the prediction
        from the process, ``crps_ratio``, the mean CRPS over that of the process, and ``coverage_95`` of the predicted
        interval.
    """
    device = next(network.parameters()).device
    nll, divergence, predicted_crps, exact_crps, coverage = [], [], [], [], []
    for batch in ({key: value.to(device) for key, value in b.items()} for b in batches):
        predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"], **beside(batch))
        mean, variance, keep = batch["mean"], batch["variance"], batch["target_mask"] & batch["exact"][:, None]
        nll.append(float(expected_nll(predicted, batch)))
        entropy = 0.5 * torch.log(2 * math.pi * math.e * variance.clamp_min(1e-30))
        divergence.append((_expected_nll(predicted, mean, variance) - entropy)[keep])
        of = (predicted.mean[..., 0] - mean, predicted.stddev[..., 0], tail_of(predicted)[..., 0], variance.sqrt())
        offset, deviation, tail, exact = (t[keep].double().cpu().numpy() for t in of)
        predicted_crps.append(expected_crps(offset, deviation, tail, exact))
        exact_crps.append(exact / math.sqrt(math.pi))
        half = half_width(deviation, tail, 0.95)
        coverage.append(special.ndtr((offset + half) / exact) - special.ndtr((offset - half) / exact))
    return {
        "nll": round(float(np.mean(nll)), 5),
        "kl": round(float(torch.cat(divergence).mean()), 5),
        "crps_ratio": round(float(np.concatenate(predicted_crps).sum() / np.concatenate(exact_crps).sum()), 5),
        "coverage_95": round(float(np.concatenate(coverage).mean()), 5),
    }


def expected_crps(
    offset: Float64Array, deviation: Float64Array, tail: Float64Array, exact: Float64Array
) -> Float64Array:
    """Expected CRPS of Student distributions (:mod:`geonp.inference.student`) for observations from N(0, exact^2)."""
    nodes, weights = _gauss_hermite(32)
    by_node = [w * crps(exact * node, offset, deviation, tail) for node, w in zip(nodes, weights, strict=True)]
    return np.asarray(sum(by_node))


@torch.no_grad()
def sampled_scores(network: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Scores on held-out tasks with sampled targets.

    Returns
    -------
    dict
        ``nll``, the mean over targets. For numbers also ``rmse`` and ``coverage_95``, the fraction of targets within
        1.96 predicted standard deviations of the mean; for classes ``accuracy``, the fraction whose most probable class
        is the true one.
    """
    device = next(network.parameters()).device
    rows = [_sampled(network, {key: value.to(device) for key, value in batch.items()}) for batch in batches]
    out = {key: math.fsum(row[key] for row in rows) / len(rows) for key in rows[0]}
    if "mse" in out:
        out["rmse"] = math.sqrt(out.pop("mse"))
    return {key: round(value, 5) for key, value in out.items()}


def _sampled(network: nn.Module, batch: Batch) -> dict[str, float]:
    predicted, yt = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"]), batch["yt"]
    nll = {"nll": -float(predicted.log_prob(yt).mean())}
    if isinstance(predicted, Categorical):
        return {**nll, "accuracy": float((predicted.logits.argmax(-1) == yt).float().mean())}
    error = (predicted.mean - yt).abs()
    inside = (error <= NORMAL_95 * predicted.stddev).float().mean()
    return {**nll, "mse": float(error.square().mean()), "coverage_95": float(inside)}
