"""Counts in a window: the distribution of each missing cell, from the probabilities of the counts around it."""

from __future__ import annotations

import numpy as np

from geonp.errors import InputError
from geonp.inference.classes import probabilities_of
from geonp.inference.kernel import FillJob, Inputs
from geonp.raster.arrays import FloatArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window


def fill_counts(inputs: Inputs, chunk: Window, job: FillJob) -> StructArray:
    """Fill the missing cells of a chunk from the probability of each count, as that of a class.

    What the probabilities of a cell leave, where all counts around it are equal, is that of one more. Raises InputError
    for values that are no counts, and as :func:`geonp.inference.classes.fill_classes`.
    """
    observed = inputs.values[inputs.domain_mask & np.isfinite(inputs.values)]
    if wrong := observed[(observed < 0) | (observed != np.rint(observed))][:1].tolist():
        raise InputError(
            f"Counts must be whole numbers of at least 0: got {wrong[0]:g}. Fill them as numbers (as_='numbers', --as "
            "numbers)."
        )
    result, probabilities = probabilities_of(inputs, chunk, job)
    found = list(probabilities)
    if not found:
        return result
    filled = np.isfinite(found[0][1])
    seen = np.array([one for one, _ in found])
    counts = np.union1d(seen, seen + 1)
    of_each = np.zeros((counts.size, np.count_nonzero(filled)))
    of_each[np.searchsorted(counts, seen)] = [probability[filled] for _, probability in found]
    # never certain: a standard error of 0 is that of an observation
    unseen, more = np.maximum(1 - of_each.sum(0), 1e-6), np.searchsorted(counts, counts[of_each.argmax(0)] + 1)
    of_each[more, np.arange(more.size)] += unseen
    of_each /= of_each.sum(0)
    mean, below = counts @ of_each, of_each.cumsum(0)

    def quantile(level: float) -> FloatArray:
        return np.asarray(counts[np.minimum((below < level).sum(0), len(counts) - 1)])

    result["flag"][filled] = FillFlag.FILLED
    result["value"][filled] = quantile(0.5) if job.statistics.median else mean
    result["standard_error"][filled] = np.sqrt(((counts[:, None] - mean) ** 2 * of_each).sum(0))
    result["tail"][filled] = 0.0
    for k, level in enumerate(job.statistics.levels):
        result["quantile"][filled, k] = quantile(level)
    for k, threshold in enumerate(job.statistics.thresholds):
        result["exceedance"][filled, k] = of_each[counts > threshold].sum(0)
    return result
