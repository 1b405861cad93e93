"""Search for the neighbourhood with which a model reads a raster best, before its weights are trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from geonp.adaptation.validation import HoldOut, Scores
from geonp.inference import checkpoint
from geonp.inference.context import Neighbourhood


@dataclass(frozen=True)
class SearchSettings:
    """Stopping and acceptance of the search."""

    max_ratio: float = (
        0.95  # of the CRPS of a candidate to that of the model: smaller gains are not worth a slower fill
    )
    max_time: float = 0.3  # fraction of the time after which no candidate is begun


SETTINGS = SearchSettings()


@dataclass(frozen=True)
class Candidate:
    """Weights and a neighbourhood, with their scores.

    Attributes
    ----------
    network : Module
        The weights, on the CPU.
    neighbourhood : Neighbourhood
        How the candidate reads a raster.
    scores : Scores
        CRPS on the held-out cells.
    seconds : float
        Time of the fill that was scored.
    step : int
        Number of training steps of the weights.
    """

    network: nn.Module
    neighbourhood: Neighbourhood
    scores: Scores
    seconds: float
    step: int


@dataclass(frozen=True)
class Search:
    """Scores candidates on a hold-out; they are written as checkpoints with the `card` of the model."""

    hold_out: HoldOut
    card: checkpoint.Card

    def score(self, network: nn.Module, neighbourhood: Neighbourhood, step: int = 0) -> Candidate:
        """Score a copy of a network with a neighbourhood."""
        network = deepcopy(network).cpu().eval()
        fields = self.card.model_dump(exclude={"parameters", "sha256", "neighbourhood"})
        with TemporaryDirectory() as folder:
            file = Path(folder) / "candidate.safetensors"
            checkpoint.save(network, file, **fields, neighbourhood=asdict(neighbourhood))
            start = time.monotonic()
            scores = self.hold_out.score(file)
        return Candidate(network, neighbourhood, scores, time.monotonic() - start, step)


def search_neighbourhood(
    search: Search, own: Candidate, dims: Sequence[str], *, closer: bool, done: Callable[[], float]
) -> Candidate:
    """Best candidate with the model's weights and another neighbourhood, or the model's `own`.

    First regression on other slices along one of `dims` is tried, then, if `closer`, :func:`smaller` neighbourhoods.
    None is begun when more than ``SETTINGS.max_time`` of the time is `done`.
    """
    best = own
    # a model with fixed units cannot predict residuals
    for dim in dims if not own.neighbourhood.standard else ():
        if done() < SETTINGS.max_time:
            best = min(best, search.score(own.network, replace(own.neighbourhood, across=dim)), key=_crps)
    if _crps(best) > SETTINGS.max_ratio * _crps(own) or not best.scores.clearly_below(own.scores):
        best = own
    base = best
    for neighbourhood in smaller(base.neighbourhood) if closer else ():
        if done() < SETTINGS.max_time:
            best = min(best, search.score(own.network, neighbourhood), key=_crps)
    return best if _crps(best) < SETTINGS.max_ratio * _crps(base) else base


def smaller(neighbourhood: Neighbourhood) -> list[Neighbourhood]:
    """Smaller and smaller neighbourhoods: tiles that are not merged, tiles of half the side, and half the context."""
    single = replace(neighbourhood, merge=1)
    small = replace(single, tile_px=max(neighbourhood.tile_px // 2, 1))
    fewer = replace(small, n_context=max(neighbourhood.n_context // 2, neighbourhood.min_context))
    return [each for each in dict.fromkeys((single, small, fewer)) if each != neighbourhood]


def _crps(candidate: Candidate) -> float:
    return candidate.scores.validation
