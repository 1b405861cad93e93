"""What the values of a recipe must be beyond their types, so that impossible ones are named before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from geonp.inference.context import Neighbourhood
from geonp.training.data.epidemics import Epidemic
from geonp.training.data.fields import RasterPrior
from geonp.training.data.images import Digits
from geonp.training.data.processes import GaussianProcess, MixedProcess
from geonp.training.data.reanalysis import Reanalysis

__all__ = ["of_data", "of_neighbourhood", "of_prior"]

RANGES = ("n_context", "fraction", "context_range", "target_range")
"""Keys of data that hold a smallest and a largest value; some kinds have more."""

MOST_LOCATIONS = 10_000
"""Of a function of a Gaussian process: their covariances are a matrix of 800 MB, whose root is taken."""

LEAST_JITTER = 1e-9
"""Of a function's variance, which is one: with less, float64 finds no root of a smooth covariance."""

MOST_CELLS = 2**31
"""Of all frames of an epidemic, a byte each."""


def of_data(data: object) -> Iterator[str]:
    """What is wrong with the values of a kind of data, a sentence each that begins with the key."""
    more = {GaussianProcess: ("period",), MixedProcess: ("length",)}.get(type(data), ())
    for key in (*RANGES, *more):
        low, high = getattr(data, key, (0, 0))
        if low > high:
            yield f"data.{key}: got {[low, high]}, but the first is the smaller; turn them round"
    if isinstance(data, GaussianProcess) and data.n_context[1] > data.n_random:
        yield (
            f"data.n_context: got {list(data.n_context)}, but context is taken from the {data.n_random} random "
            "locations; choose fewer, or more data.n_random"
        )
    if isinstance(data, GaussianProcess) and data.n_random + data.n_grid**data.d_x > MOST_LOCATIONS:
        key, n = ("n_random", data.n_random) if data.n_random > MOST_LOCATIONS else ("n_grid", data.n_grid)
        yield f"data.{key}: got {n}, but functions are drawn exactly, at {MOST_LOCATIONS} locations at most; take fewer"
    if isinstance(data, GaussianProcess) and data.jitter < LEAST_JITTER:
        yield f"data.jitter: got {data.jitter}, but roots of covariances need {LEAST_JITTER} at least; take more"
    if isinstance(data, MixedProcess) and data.n_context[1] + data.n_targets > MOST_LOCATIONS:
        key = "n_context" if data.n_context[1] > MOST_LOCATIONS else "n_targets"
        got = [*data.n_context] if key == "n_context" else data.n_targets
        yield f"data.{key}: got {got}, but fields are drawn exactly, at {MOST_LOCATIONS} locations at most; take fewer"
    if isinstance(data, Epidemic) and data.side**2 * data.frames > MOST_CELLS:
        key, n = ("frames", data.frames) if data.side**2 <= MOST_CELLS else ("side", data.side)
        yield f"data.{key}: got {n}, but all frames of an epidemic have {MOST_CELLS:,} cells at most; take fewer"
    if isinstance(data, GaussianProcess) and data.kernel == "periodic" and data.d_x > 1:
        yield "data.kernel: got periodic, which is a covariance in one dimension only; set data.d_x=1"
    if isinstance(data, Digits | Reanalysis) and data.split != "train":
        yield f"data.split: got {data.split}, but recipes train on train; what is held out scores them"
    if isinstance(data, Epidemic | Digits):
        cells = min(data.n_targets or data.side**2, data.side**2) if isinstance(data, Epidemic) else data.n_targets
        if data.n_context[0] > cells:
            yield f"data.n_context: got {list(data.n_context)}, but there are {cells} cells to choose from; take fewer"
    if isinstance(data, Reanalysis):
        yield from _of_windows(data)
        yield from _of_areas(data)


def _of_windows(data: Reanalysis) -> Iterator[str]:
    cells, largest = math.prod(data.window), data.fraction[1]
    if min(data.window[1:]) < 2:
        yield f"data.window: got {list(data.window)}, expected frames and at least 2 rows and 2 columns; choose more"
    if data.min_valid > cells:
        yield f"data.min_valid: got {data.min_valid}, but a window has {cells} cells; choose fewer"
    if data.fraction[0] < 0 or max(1, round(largest * data.min_valid)) >= data.min_valid:
        yield (
            f"data.fraction: got {list(data.fraction)}, expected from 0 to less than 1, so that some of the "
            f"{data.min_valid} cells (data.min_valid) of the smallest window are left as targets"
        )


def _of_areas(data: Reanalysis) -> Iterator[str]:
    held_out: Any = data.test_area
    several = bool(held_out) and not isinstance(held_out[0], float | int)
    for key, areas in (("area", (data.area,)), ("test_area", held_out if several else (held_out,))):
        for area in filter(None, areas):
            north, west, south, east = area
            if north <= south or west >= east:
                yield f"data.{key}: got {[north, west, south, east]}, expected north, west, south, east: put them so"


def of_prior(prior: RasterPrior) -> Iterator[str]:
    """What is wrong with the ranges, probabilities and weights of the fields and gaps that are drawn."""
    for key in (field.name for field in fields(prior)):
        value = getattr(prior, key)
        if isinstance(value, tuple) and not 0 < value[0] <= value[1]:
            yield f"prior.{key}: got {list(value)}, expected the smallest and the largest value, both above 0"
        if key.startswith("p_") and not 0 <= value <= 1:
            yield f"prior.{key}: got {value}, expected a probability from 0 to 1"
    kinds, weights = RasterPrior().gap_weights, prior.gap_weights
    if unknown := sorted(set(weights) - set(kinds)):
        yield f"prior.gap_weights.{unknown[0]}: there are no such gaps, expected some of {', '.join(kinds)}"
    if min(weights.values(), default=0) < 0 or sum(weights.values()) <= 0:
        yield f"prior.gap_weights: got {weights}, expected weights of at least 0, one of them above it"


def of_neighbourhood(neighbourhood: Neighbourhood, d_x: int) -> Iterator[str]:
    """What is wrong with how a checkpoint of a model with `d_x` inputs is to read a raster."""
    smallest = {"tile_px": 2, "n_context": 1, "min_context": 1, "overlap_px": 0}
    for key, least in smallest.items():
        if getattr(neighbourhood, key) < least:
            yield f"neighbourhood.{key}: got {getattr(neighbourhood, key)}, expected at least {least}"
    if neighbourhood.min_context > neighbourhood.n_context:
        yield f"neighbourhood.min_context: got {neighbourhood.min_context}, expected at most n_context"
    if neighbourhood.thinning <= 0:
        yield f"neighbourhood.thinning: got {neighbourhood.thinning}, expected a number above 0"
    halos = neighbourhood.halos_px
    if not halos or halos[0] < 0 or list(halos) != sorted(set(halos)):
        yield f"neighbourhood.halos_px: got {list(halos)}, expected rising widths"
    if neighbourhood.axes and {len(axis) for axis in neighbourhood.axes} != {2}:
        yield "neighbourhood.axes: expected two numbers, along rows and columns, for each input of the model"
    if neighbourhood.axes and len(neighbourhood.axes) != d_x:
        yield f"neighbourhood.axes: got {len(neighbourhood.axes)}, expected one for each of the model's {d_x} inputs"
    if neighbourhood.standard and neighbourhood.standard[1] <= 0:
        yield f"neighbourhood.standard: got {list(neighbourhood.standard)}, expected a deviation above 0"
