"""Epidemics on a lattice: the SIR benchmark of TNP-KR, simulated in torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from geonp.training.data.constraints import CountRange, Positive

__all__ = ["INFECTED", "RECOVERED", "SUSCEPTIBLE", "Epidemic", "simulate"]

INFECTED, RECOVERED, SUSCEPTIBLE = 0, 1, 2
"""Classes, in the order of the papers' code."""

Batch = dict[str, Tensor]


def simulate(
    first: Tensor, infection: Tensor, recovery: Tensor, steps: int, generator: torch.Generator, reach: int = 4
) -> Tensor:
    """Run epidemics, all cells of all of them at once.

    In a step a susceptible cell is infected with the probability ``infection * sum of 1 / distance^2`` over infected
    cells of the window of ``2 reach + 1`` around it, at most 1, and an infected one recovers with the probability
    `recovery`, for good. All cells change together; there is nothing beyond the border.

    Parameters
    ----------
    first : Tensor
        Classes at the start, ``(batch, rows, columns)``.
    infection, recovery : Tensor
        ``(batch,)``.

    Returns
    -------
    Tensor
        Classes, ``(batch, steps + 1, rows, columns)``, uint8, the start included.
    """
    offset = torch.arange(-reach, reach + 1, dtype=torch.float32)
    squared = offset[:, None] ** 2 + offset**2
    window = torch.where(squared > 0, 1 / squared.clamp_min(1), 0.0)[None, None]
    state, frames = first.to(torch.uint8), [first.to(torch.uint8)]
    rate, healing = infection.float()[:, None, None], recovery.float()[:, None, None]
    for _ in range(steps):
        infected = state == INFECTED
        pressure = F.conv2d(infected[:, None].float(), window, padding=reach)[:, 0]
        chance = torch.rand(state.shape, generator=generator)
        caught = (state == SUSCEPTIBLE) & (chance < rate * pressure)
        healed = infected & (chance < healing)
        state = state.masked_fill(healed, RECOVERED).masked_fill(caught, INFECTED)
        frames.append(state)
    return torch.stack(frames, 1)


@dataclass(frozen=True)
class Epidemic:
    """The SIR benchmark of TNP-KR: fill frames of an epidemic in, from few of its cells.

    A trajectory has an infection rate from Beta(2, 8), a recovery rate from the inverse gamma distribution (5, 0.4) and
    1 to 4 first infections. Its frames, the start included, are shuffled and dealt to batches; time is no input. The
    frames of a batch share their target cells; context is the first of these, another number of them in each frame.

    Attributes
    ----------
    side : int
        Rows and columns of the lattice.
    extent : float
        Its coordinates go from ``-extent`` to ``extent`` along both axes.
    frames : int
        Of a trajectory.
    n_context : tuple of int
        Fewest and most context cells.
    n_targets : int
        Target cells, the context included; 0 for all cells.
    """

    kind: Literal["sir"] = "sir"
    side: Annotated[int, Field(gt=1)] = 64
    extent: Positive = 2.0
    frames: Annotated[int, Field(gt=1)] = 25
    n_context: CountRange = (128, 511)
    n_targets: Annotated[int, Field(ge=0)] = 1024

    @property
    def dimensions(self) -> dict[str, int]:
        """What a model of these data must be built with."""
        return {"d_x": 2, "d_y": 3}

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` frames of one trajectory, see :func:`geonp.training.sources.draw`."""
        deals = max(1, self.frames // size)
        frames = _trajectory(self, seed, index // deals)
        rng = np.random.default_rng([seed, index // deals, 1])
        chosen = np.resize(rng.permutation(self.frames), deals * size)[index % deals * size :][:size]
        rng = np.random.default_rng([seed, index, 2])
        cells = torch.from_numpy(rng.permutation(self.side**2)[: self.n_targets or None])
        fewest, most = self.n_context
        counts = torch.from_numpy(rng.integers(fewest, most, size, endpoint=True))
        axis = torch.linspace(-self.extent, self.extent, self.side)
        x = torch.stack([axis[cells // self.side], axis[cells % self.side]], -1).expand(size, -1, -1)
        classes = frames[torch.from_numpy(chosen)].flatten(1)[:, cells].long()
        return {
            "xc": x[:, :most],
            "yc": F.one_hot(classes[:, :most], 3).float(),
            "context_mask": torch.arange(min(most, len(cells))) < counts[:, None],
            "xt": x,
            "yt": classes,
        }


@lru_cache(maxsize=2)
def _trajectory(epidemic: Epidemic, seed: int, number: int) -> Tensor:
    """Frames of one trajectory, ``(frames, side, side)``."""
    rng = np.random.default_rng([seed, number, 0])
    infection, recovery = rng.beta(2.0, 8.0), 0.4 / rng.gamma(5.0)
    first = torch.full((1, epidemic.side**2), SUSCEPTIBLE)
    first[0, torch.from_numpy(rng.choice(epidemic.side**2, rng.integers(1, 5), replace=False))] = INFECTED
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    rate, healing = (torch.tensor([value]) for value in (infection, recovery))
    return simulate(first.view(1, epidemic.side, -1), rate, healing, epidemic.frames - 1, generator)[0]
