"""Epidemics on a lattice: the SIR benchmark of TNP-KR, simulated in torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from geonp.training.batch import Batch
from geonp.training.data.constraints import CountRange, Positive

INFECTED, RECOVERED, SUSCEPTIBLE = 0, 1, 2
"""Classes, in the order of the papers' code."""

WIDE = 2**18
"""Cells of a lattice from which on infections are summed by Fourier transforms, 20 times as fast. Their rounding may
change single cells, so the smaller lattices, which the papers' tables are made of, stay as they were."""


def simulate(
    first: Tensor, infection: Tensor, recovery: Tensor, steps: int, generator: torch.Generator, reach: int = 4
) -> Tensor:
    """Simulate a batch of epidemics.

    In each step, a susceptible cell is infected with probability ``min(1, infection * sum of 1 / distance^2)``, summed
    over the infected cells of the window of ``2 reach + 1`` cells around it. An infected cell recovers permanently with
    probability `recovery`. All cells change simultaneously; there are none beyond the border.

    Parameters
    ----------
    first : Tensor
        Initial classes, ``(batch, rows, columns)``.
    infection, recovery : Tensor
        Rates, ``(batch,)``.
    steps : int
        Number of steps.
    generator : Generator
        Source of random numbers.
    reach : int
        Greatest distance of infection along each axis, in cells.

    Returns
    -------
    Tensor
        Classes of all frames, the initial one included, ``(batch, steps + 1, rows, columns)``, uint8.
    """
    offset = torch.arange(-reach, reach + 1, dtype=torch.float32)
    squared = offset[:, None] ** 2 + offset**2
    window = torch.where(squared > 0, 1 / squared.clamp_min(1), 0.0)
    state, frames = first.to(torch.uint8), [first.to(torch.uint8)]
    rate, healing = infection.float()[:, None, None], recovery.float()[:, None, None]
    for _ in range(steps):
        infected = state == INFECTED
        pressure = _pressure(infected.float(), window)
        chance = torch.rand(state.shape, generator=generator)
        caught = (state == SUSCEPTIBLE) & (chance < rate * pressure)
        healed = infected & (chance < healing)
        state = state.masked_fill(healed, RECOVERED).masked_fill(caught, INFECTED)
        frames.append(state)
    return torch.stack(frames, 1)


def _pressure(infected: Tensor, window: Tensor) -> Tensor:
    """Sums of infected cells, 1 or 0, ``(batch, rows, columns)``, weighted by a symmetric window."""
    if infected[0].numel() < WIDE:
        return F.conv2d(infected[:, None], window[None, None], padding=len(window) // 2)[:, 0]
    from scipy import signal  # takes a second, and only large lattices need it

    sums = torch.from_numpy(signal.oaconvolve(infected.numpy(), window[None].numpy(), mode="same", axes=(1, 2)))
    # far from all infected cells rounding would infect others
    return torch.where(sums < window[window > 0].min() / 2, 0.0, sums)


@dataclass(frozen=True)
class Epidemic:
    """The SIR benchmark of TNP-KR: predict frames of an epidemic from few of their cells.

    A trajectory has an infection rate from Beta(2, 8), a recovery rate from the inverse gamma distribution (5, 0.4) and
    1 to 4 initial infections. Its frames, the initial one included, are shuffled and divided among batches; time is not
    an input. The frames of a batch share their target cells; the first of these are context, as many as drawn for each
    frame.

    Attributes
    ----------
    side : int
        Rows and columns of the lattice.
    extent : float
        Coordinates are from ``-extent`` to ``extent`` along both axes.
    frames : int
        Frames of a trajectory.
    n_context : tuple of int
        Minimum and maximum number of context cells.
    n_targets : int
        Number of target cells, the context included; 0 for all cells.
    """

    kind: Literal["sir"] = "sir"
    side: Annotated[int, Field(gt=1)] = 64
    extent: Positive = 2.0
    frames: Annotated[int, Field(gt=1)] = 25
    n_context: CountRange = (128, 511)
    n_targets: Annotated[int, Field(ge=0)] = 1024
    dimensions: ClassVar = {"d_x": 2, "d_y": 3}  # options that a model of these data must have

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` frames of one trajectory, see :func:`geonp.training.sources.draw`."""
        per_trajectory = max(1, self.frames // size)
        trajectory, part = divmod(index, per_trajectory)
        frames = _trajectory(self, seed, trajectory)
        rng = np.random.default_rng([seed, trajectory, 1])
        chosen = np.resize(rng.permutation(self.frames), per_trajectory * size)[part * size :][:size]
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
