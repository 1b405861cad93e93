"""Windows of Kolmogorov flow in space and time: the turbulence benchmark of TE-TNP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from geonp.training.batch import Batch, Split, split_at
from geonp.training.data.constraints import Count, CountRange
from geonp.training.data.turbulence import Turbulence, trajectory

SIDE = 64
"""Cells of a trajectory along x and y, and its frames."""

EXTENT = 3.0
"""Inputs are in [-3, 3]."""

PUBLISHED = Turbulence()
"""The equation of the paper's data."""


@dataclass(frozen=True)
class KolmogorovFlow(Split):
    """Velocities of windows of simulated flows, as in TE-TNP (ICML 2024, section F.3).

    A trajectory has 64 frames of 64 x 64 cells, 0.2 time units apart. A task is a cubic block of one of them. Inputs
    are x, y and time, scaled to [-3, 3] over a trajectory; values are the two components of velocity. Context cells are
    drawn at random, as many for each task of a batch.

    The paper has the 819 trajectories of Rozet and Louppe (2023) to train, here `n_trajectories` are simulated by
    :mod:`geonp.training.data.turbulence`, which takes about 6 s of a core each; a process simulates them once.

    Attributes
    ----------
    n_trajectories, n_held_out : int
        Number of trajectories for training, and of held-out ones.
    window : int
        Cells of a block along x and y, and its frames.
    n_context : tuple of int
        Minimum and maximum number of context points.
    n_targets : int
        Number of target points, drawn from the others; 0 for all.
    flow : Turbulence
        Equation and its solution.
    split : str
        ``"train"`` or ``"test"``, the held-out trajectories.
    """

    kind: Literal["kolmogorov"] = "kolmogorov"
    n_trajectories: Count = 32
    n_held_out: Count = 8
    window: Annotated[int, Field(ge=2, le=SIDE)] = 16
    n_context: CountRange = (1, 500)
    n_targets: Annotated[int, Field(ge=0)] = 1000
    flow: Turbulence = PUBLISHED
    split: Literal["train", "test"] = "train"
    dimensions: ClassVar = {"d_x": 3, "d_y": 2}  # options that a model of these data must have

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` tasks, see :func:`geonp.training.sources.draw`."""
        rng = np.random.default_rng([seed, index])
        x, y = self.blocks(rng, size)
        n_c, cells = int(rng.integers(*self.n_context, endpoint=True)), self.window**3
        kept = min(n_c + self.n_targets, cells) if self.n_targets else cells
        order = torch.from_numpy(rng.permuted(np.tile(np.arange(cells), (size, 1)), axis=1)[:, :kept])[..., None]
        xs, ys = (values.gather(1, order.expand(-1, -1, values.shape[-1])) for values in (x, y))
        return split_at(xs, ys, n_c)

    def blocks(self, rng: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(size, window^3, 3)`` and velocities ``(size, window^3, 2)`` of random blocks, frame by frame."""
        first, last = (0, self.n_trajectories) if self.split == "train" else (self.n_trajectories, self.n_held_out)
        axis = torch.linspace(-EXTENT, EXTENT, SIDE)
        inputs, values = [], []
        for _ in range(size):
            flow = _trajectory(self.flow, first + int(rng.integers(last)))
            at = [
                slice(start, start + self.window) for start in rng.integers(SIDE - self.window, size=3, endpoint=True)
            ]
            time, rows, columns = at
            grid = torch.meshgrid(axis[time], axis[rows], axis[columns], indexing="ij")
            inputs.append(torch.stack([grid[2], grid[1], grid[0]], -1).flatten(0, 2))
            values.append(flow[time, :, rows, columns].permute(0, 2, 3, 1).flatten(0, 2))
        return torch.stack(inputs), torch.stack(values)


@lru_cache(maxsize=2048)
def _trajectory(flow: Turbulence, number: int) -> Tensor:
    """Velocities ``(64, 2, 64, 64)`` of one trajectory, 2 MiB."""
    return trajectory(flow, number, frames=SIDE, side=SIDE)
