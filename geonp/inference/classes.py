"""Classes in a window: the most probable one for each missing cell, and probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from geonp.errors import InputError, PredictionError
from geonp.inference.kernel import FillJob, Inputs, unfilled
from geonp.inference.stitching import Tile, in_batches, predict
from geonp.inference.tiles import tiles_of
from geonp.inference.tiling import between, support, wanted_cells
from geonp.raster.arrays import BoolArray, FloatArray, StructArray
from geonp.raster.kinds import CLASSES
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window


def fill_classes(inputs: Inputs, chunk: Window, job: FillJob) -> StructArray:
    """Fill the missing cells of a chunk with their most probable class, as :func:`geonp.inference.kernel.fill_window`.

    A tile predicts the classes that its context has, each from its indicator. A tile whose context has a single class
    needs no model. Probabilities of neighbouring tiles are blended. The probability of having none of these classes is
    shared evenly by all but the most probable of `job.categories`. Raises InputError if the window has more than
    ``CLASSES.window`` different values. Raises PredictionError when the model returns a value that is not finite.
    """
    result, probabilities = probabilities_of(inputs, chunk, job)
    best = np.full(result.shape, np.nan, inputs.values.dtype)
    of_best: FloatArray = np.zeros(result.shape)
    total: FloatArray = np.zeros(result.shape)
    every = dict.fromkeys(job.categories, total)
    for one, probability in probabilities:
        better = probability > of_best
        best[better], of_best[better] = one, probability[better]
        total = total + probability
        if one in every:
            every[one] = probability
    filled = np.isfinite(best)
    result["flag"][filled], result["value"][filled] = FillFlag.FILLED, best[filled]
    result["probability"][filled] = of_best[filled]
    if job.categories:
        rest = (1 - total) / max(len(every) - 1, 1)
        shared = [probability + np.where(best == one, 0.0, rest) for one, probability in every.items()]
        result["class_probability"][filled] = np.stack(shared, -1)[filled]
    return result


def probabilities_of(
    inputs: Inputs, chunk: Window, job: FillJob
) -> tuple[StructArray, Iterator[tuple[float, FloatArray]]]:
    """The result before any cell is filled, and each class, ascending, with its probability in the chunk.

    Probabilities are NaN where nothing is filled. Raises InputError or PredictionError as :func:`fill_classes`.
    """
    core, (rows, cols) = job.core(chunk), job.lattice(chunk)
    missing, context_mask, fillable, result = unfilled(inputs, chunk, job)

    def found() -> Iterator[tuple[float, FloatArray]]:
        if not fillable[core].any():
            return
        supported = support(fillable, rows, cols)
        wanted = wanted_cells(fillable, supported, core)
        tiles = tiles_of(inputs.values, context_mask, missing, wanted, chunk, job)
        for one, blended in _probabilities(tiles, wanted, job):
            between(blended, fillable, supported, rows, cols)
            yield one, np.where(fillable[core], blended[core], np.nan)

    return result, found()


def _probabilities(tiles: Sequence[Tile], wanted: BoolArray, job: FillJob) -> Iterator[tuple[float, FloatArray]]:
    """Each class of any context, ascending, with its probability in the wanted cells of the window, NaN elsewhere.

    Raises InputError or PredictionError as :func:`fill_classes`.
    """
    tiles = [_numbered(tile) for tile in tiles]
    classes = np.unique(np.concatenate([tile.classes for tile in tiles])) if tiles else np.empty(0)
    if classes.size > CLASSES.window:
        raise InputError(
            f"There are too many classes: got {classes.size:,} different values in one window, expected at most "
            f"{CLASSES.window}. Fill them as numbers (as_='numbers', --as numbers)."
        )
    place = np.cumsum(wanted.ravel()) - 1
    total, weights = np.zeros((classes.size, np.count_nonzero(wanted))), np.zeros(np.count_nonzero(wanted))
    for tile, probability in _predicted(tiles, job):
        targets = place[tile.targets]
        total[np.searchsorted(classes, tile.classes)[:, None], targets] += tile.weights * probability
        weights[targets] += tile.weights
    for one, sums in zip(classes.tolist(), total, strict=True):
        blended = np.full(wanted.shape, np.nan)
        with np.errstate(invalid="ignore"):
            blended[wanted] = sums / weights
        yield one, blended


def _numbered(tile: Tile) -> Tile:
    """A tile with the numbers of its classes as values."""
    classes, numbers = np.unique(tile.yc, return_inverse=True)
    return replace(tile, yc=numbers.astype(np.float32), classes=classes)


def _predicted(tiles: Sequence[Tile], job: FillJob) -> Iterator[tuple[Tile, FloatArray]]:
    """Each tile with the probabilities of its classes, ``(classes, n_t)``."""
    mixed = []
    for tile in tiles:
        if tile.classes.size > 1:
            mixed.append(tile)
        else:  # Laplace's rule of succession
            yield tile, np.full((1, tile.targets.size), (len(tile.yc) + 1) / (len(tile.yc) + 2))
    most = max((tile.classes.size for tile in mixed), default=0)
    predictor = replace(job.predictor, classes=most, indicators=True)
    ordered = in_batches(mixed, predictor.batch_size)
    for tile, probability in predict(ordered, predictor, len(ordered)):
        if not np.isfinite(probability).all():
            raise PredictionError(
                "the model returned probabilities that are not finite; please report it with the data there"
            )
        yield tile, probability[: tile.classes.size]
