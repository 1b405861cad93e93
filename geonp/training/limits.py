"""Checks of recipe values beyond their types, so that impossible ones are reported before anything starts.

Each function yields one sentence for each wrong value, which begins with the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from geonp.training.data.epidemics import Epidemic
from geonp.training.data.fields import RasterPrior
from geonp.training.data.images import Digits, Photographs
from geonp.training.data.kolmogorov import KolmogorovFlow
from geonp.training.data.processes import GaussianProcess, MixedProcess
from geonp.training.data.reanalysis import Reanalysis


@dataclass(frozen=True)
class _Limits:
    max_locations: int = 10_000  # a covariance matrix of 800 MB, which is factorised
    max_cells: int = 2**31  # all frames of an epidemic, one byte per cell


_LIMITS = _Limits()


def data_errors(data: object) -> Iterator[str]:
    """Errors in the keys of one kind of data."""
    if getattr(data, "split", "train") != "train":
        yield f"data.split: got {getattr(data, 'split', None)}, expected train: the held-out split scores models"
    checks: dict[type, Callable[[Any], Iterator[str]]] = {
        GaussianProcess: _process_errors,
        MixedProcess: _mixed_errors,
        Epidemic: _epidemic_errors,
        Digits: lambda digits: _too_few_cells(digits.n_context, digits.n_targets),
        Photographs: lambda photos: _too_few_cells(photos.n_context, photos.n_targets),
        KolmogorovFlow: lambda flow: _too_few_cells(flow.n_context[::-1], flow.window**3 - 1),
        Reanalysis: _reanalysis_errors,
    }
    if type(data) in checks:
        yield from checks[type(data)](data)


def _process_errors(data: GaussianProcess) -> Iterator[str]:
    if data.n_context[1] > data.n_random:
        yield (
            f"data.n_context: got {list(data.n_context)}, expected at most data.n_random={data.n_random}, of which "
            "context is a part; decrease it, or increase data.n_random"
        )
    if data.n_random + data.n_grid**data.d_x > _LIMITS.max_locations:
        key, n = ("n_random", data.n_random) if data.n_random > _LIMITS.max_locations else ("n_grid", data.n_grid)
        yield _too_many_locations(key, n)
    if data.kernel == "periodic" and data.d_x > 1:
        yield "data.kernel: got periodic, which is a covariance in one dimension only; set data.d_x=1"


def _mixed_errors(data: MixedProcess) -> Iterator[str]:
    if data.n_context[1] > _LIMITS.max_locations:
        yield _too_many_locations("n_context", list(data.n_context))
    elif data.n_context[1] + data.n_targets > _LIMITS.max_locations:
        yield _too_many_locations("n_targets", data.n_targets)


def _too_many_locations(key: str, got: object) -> str:
    return f"data.{key}: got {got}, but exact sampling is limited to {_LIMITS.max_locations} locations; decrease it"


def _epidemic_errors(data: Epidemic) -> Iterator[str]:
    if data.side**2 * data.frames > _LIMITS.max_cells:
        key, n = ("frames", data.frames) if data.side**2 <= _LIMITS.max_cells else ("side", data.side)
        yield f"data.{key}: got {n}, but all frames of an epidemic may have {_LIMITS.max_cells:,} cells; decrease it"
    yield from _too_few_cells(data.n_context, min(data.n_targets or data.side**2, data.side**2))


def _too_few_cells(n_context: tuple[int, int], cells: int) -> Iterator[str]:
    if n_context[0] > cells:
        yield f"data.n_context: got {list(n_context)}, but there are {cells} cells to choose from; decrease it"


def _reanalysis_errors(data: Reanalysis) -> Iterator[str]:
    cells = math.prod(data.window)
    if data.min_valid > cells:
        yield f"data.min_valid: got {data.min_valid}, but a window has {cells} cells; decrease it"
    if max(1, round(data.fraction[1] * data.min_valid)) >= data.min_valid:
        yield (
            f"data.fraction: got {list(data.fraction)}, but a window with data.min_valid={data.min_valid} valid cells "
            "would have no targets; decrease it"
        )
    for key, split in (("area", data), ("test_area", data.held_out())):
        for north, west, south, east in filter(None, split.areas):
            if north <= south or west >= east:
                yield f"data.{key}: got {[north, west, south, east]}, expected north, west, south, east in this order"


def prior_errors(prior: RasterPrior) -> Iterator[str]:
    """Errors in the weights of the kinds of gaps."""
    kinds, weights = RasterPrior().gap_weights, prior.gap_weights
    if unknown := sorted(set(weights) - set(kinds)):
        yield f"prior.gap_weights.{unknown[0]}: no such kind of gaps, expected some of {', '.join(kinds)}"
    if min(weights.values(), default=0) < 0 or sum(weights.values()) <= 0:
        yield f"prior.gap_weights: got {weights}, expected weights of at least 0, one of them above 0"
