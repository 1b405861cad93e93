"""How a model looks at a raster: what is tried before its weights are trained, and what a judge says of each look."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import nn

from geonp.adaptation.validation import Judge, Verdict
from geonp.inference import checkpoint
from geonp.inference.context import Neighbourhood

__all__ = ["Trial", "Trials", "best_look"]

CLOSER = 0.95
"""Another look is taken if its CRPS is below so many times the model's own: less would not be worth its time."""

SEARCH = 0.3
"""Share of the time after which no closer look is tried."""


def _closer(neighbourhood: Neighbourhood) -> list[Neighbourhood]:
    """Closer and closer looks: single tiles, smaller ones, and these with less context."""
    alone = replace(neighbourhood, merge=1)
    small = replace(alone, tile_px=max(neighbourhood.tile_px // 2, 1))
    fewer = replace(small, n_context=max(neighbourhood.n_context // 2, neighbourhood.min_context))
    looks = [alone, small, fewer]
    return [look for look in dict.fromkeys(looks) if look != neighbourhood]


@dataclass(frozen=True)
class Trial:
    """Weights and a look, what the judge says of them, the seconds that it took, and the steps of the weights."""

    network: nn.Module
    neighbourhood: Neighbourhood
    verdict: Verdict
    seconds: float
    step: int


class Trials:
    """Writes checkpoints into a folder, to be filled with and judged."""

    def __init__(self, folder: Path, judge: Judge, card: checkpoint.Card) -> None:
        self.folder, self.judge, self.card, self.number = folder, judge, card, 0

    def of(self, network: nn.Module, neighbourhood: Neighbourhood, step: int = 0) -> Trial:
        """Judge a network as it is now."""
        self.number += 1
        file, network = self.folder / f"{self.number}.safetensors", deepcopy(network).cpu().eval()
        fields = self.card.model_dump(exclude={"parameters", "sha256", "neighbourhood"})
        checkpoint.save(network, file, **fields, neighbourhood=asdict(neighbourhood))
        start = time.monotonic()
        return Trial(network, neighbourhood, self.judge(file), time.monotonic() - start, step)


def best_look(trials: Trials, own: Trial, dims: Sequence[str], *, closer: bool, done: Callable[[], float]) -> Trial:
    """The best look of those tried, or the model's own.

    First, whether slices tell about each other along one of `dims`; then, if `closer`, closer looks. None is begun when
    more than :data:`SEARCH` of the time is `done`.
    """
    look = own
    # a model with units of its own cannot read what values have beyond others
    for dim in dims if not own.neighbourhood.standard else ():
        if done() < SEARCH:
            look = min(look, trials.of(own.network, replace(own.neighbourhood, across=dim)), key=_choice)
    if _choice(look) > CLOSER * _choice(own) or not look.verdict.clearly_below(own.verdict):
        look = own
    base = look
    for neighbourhood in _closer(base.neighbourhood) if closer else ():
        if done() < SEARCH:
            look = min(look, trials.of(own.network, neighbourhood), key=_choice)
    return look if _choice(look) < CLOSER * _choice(base) else base


def _choice(trial: Trial) -> float:
    return trial.verdict.choice
