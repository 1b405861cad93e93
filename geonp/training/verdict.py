"""What an adapted model is judged by: tasks of held-out tiles, some of which choose among weights, the others judge."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from geonp import student
from geonp.errors import InputError
from geonp.nn.heads import tail_of
from geonp.prediction import Predictor
from geonp.training.crops import Crop, CropTask, Hiding, held_out_tasks
from geonp.training.tasks import collate

__all__ = ["Judge", "appoint", "clearly_less", "make_batch", "mean", "weighted_crps"]

LEAST_CELLS = 500
"""Observed cells below which nothing reliable can be learned or said about a raster."""

LEAST_TILES = 6
"""Tiles with held-out cells below which no judgement is made."""

HELD_OUT_TASKS = 144
BATCH_SIZE = 8

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Judge:
    """Tasks of held-out tiles, in batches: some tiles choose, the others judge."""

    predictor: Predictor
    choosing: list[Batch]
    judging: list[Batch]

    @property
    def cells(self) -> int:
        """Predictions that the verdict rests on."""
        return sum(int(batch["target_mask"].sum()) for batch in self.judging)

    def choice(self, network: nn.Module) -> Tensor:
        """Of each of the tiles that choose, as of those that judge."""
        return self._of(network, self.choosing)

    def verdict(self, network: nn.Module) -> Tensor:
        """Weighted sum of CRPS and sum of weights, float64, of each of the tiles that judge: ``(tiles, 2)``."""
        return self._of(network, self.judging)

    @torch.no_grad()
    def _of(self, network: nn.Module, batches: list[Batch]) -> Tensor:
        device, rows = self.predictor.device, []
        # in the precision of filling
        autocast = torch.autocast(device.split(":")[0], torch.bfloat16, enabled=self.predictor.precision == "bf16")
        for batch in ({key: value.to(device) for key, value in batch.items()} for batch in batches):
            with autocast:
                rows.append(weighted_crps(network, batch).cpu())
        _, tile = torch.cat([batch["tile"] for batch in batches]).unique(return_inverse=True)
        return torch.zeros(int(tile.max()) + 1, 2, dtype=torch.float64).index_add_(0, tile, torch.cat(rows))


def weighted_crps(network: nn.Module, batch: Batch) -> Tensor:
    """Weighted sum of CRPS, in the units of the raster, and sum of weights, float64, of each task: ``(batch, 2)``."""
    predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
    found = (predicted.mean, predicted.stddev, tail_of(predicted), batch["mean"][..., None])
    loc, width, tail, truth = (t[..., 0].double().cpu().numpy() for t in found)
    crps = torch.from_numpy(student.crps(truth, loc, width, tail)).to(batch["scale"]) * batch["scale"][:, None]
    return torch.stack([(crps * batch["weight"]).sum(1), batch["weight"].sum(1)], 1)


def mean(sums: Tensor) -> float:
    """Weighted mean from sums and weights ``(n, 2)``."""
    total, weight = sums.sum(0).tolist()
    return float(total / weight)


def appoint(crops: list[Crop], hiding: Hiding, predictor: Predictor, rng: np.random.Generator) -> Judge:
    """Divide the held-out tiles into those that choose, a third, and those that judge."""
    neighbourhood = predictor.neighbourhood
    n_targets = neighbourhood.tile_px**2
    found = held_out_tasks(crops, neighbourhood, hiding, n_targets, HELD_OUT_TASKS, rng)
    tasks = [task for task in found if hiding.weigh(task.distance).any()]
    tiles = list(dict.fromkeys(task.tile for task in tasks))
    cells = sum(int(np.count_nonzero(crop.observed_mask | crop.held_out_mask)) for crop in crops)
    if cells < LEAST_CELLS or len(tiles) < LEAST_TILES:
        raise InputError(
            f"too little is observed to adapt to: got {cells} observed cells and {len(tiles)} tiles with differing "
            f"values to judge by, expected at least {LEAST_CELLS} and {LEAST_TILES}; give more of the raster or more "
            "slices of it, or use the model as it is"
        )
    choosers = set(tiles[: len(tiles) // 3])
    parts = ([task for task in tasks if (task.tile in choosers) == chooses] for chooses in (True, False))
    choosing, judging = (
        [
            make_batch(part[i : i + BATCH_SIZE], hiding, neighbourhood.n_context, n_targets)
            for i in range(0, len(part), BATCH_SIZE)
        ]
        for part in parts
    )
    return Judge(predictor, choosing, judging)


def make_batch(tasks: list[CropTask], hiding: Hiding, n_context: int, n_targets: int) -> Batch:
    """Tasks as tensors, with the weight of each target, zero for padding, and each task's scale and tile."""
    batch = {key: torch.from_numpy(value) for key, value in collate(list(tasks), n_context, n_targets).items()}
    weight = torch.zeros(len(tasks), n_targets, dtype=torch.float64)
    for row, task in zip(weight, tasks, strict=True):
        row[: task.distance.size] = torch.from_numpy(hiding.weigh(task.distance))
    scale = torch.tensor([task.scale for task in tasks], dtype=torch.float64)
    return {**batch, "weight": weight, "scale": scale, "tile": torch.tensor([task.tile for task in tasks])}


def clearly_less(after: Tensor, before: Tensor) -> bool:
    """Whether the CRPS over all tiles fell by more than two standard errors of its change."""
    change = after[:, 0] - before[:, 0]
    return bool(change.sum() < -2 * math.sqrt(change.numel()) * change.std())
