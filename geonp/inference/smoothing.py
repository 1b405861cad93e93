"""Estimates of the true values of observations with known errors."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from geonp.inference.kernel import FillJob, Inputs, fill_window
from geonp.raster.arrays import StructArray
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window


def fill_smooth(inputs: Inputs, chunk: Window, job: FillJob) -> StructArray:
    """Fill a chunk as :func:`geonp.inference.kernel.fill_window`, and estimate the truth of observations with errors.

    The observations of every second row and column are predicted from all others, four times, so that those next to an
    observation always count. Of a prediction with variance s^2 and an independent observation with error variance e^2
    the mean with weights ``1 / s^2`` and ``1 / e^2`` is the best estimate, with variance ``1 / (1 / s^2 + 1 / e^2)``.
    """
    values, domain_mask = inputs.values, inputs.domain_mask
    result = fill_window(inputs, chunk, job)
    known = next((layer.values for layer in inputs.covariates if layer.known_errors), np.zeros(values.shape))
    noisy, core = domain_mask & np.isfinite(values) & (known > 0), job.core(chunk)
    rows, cols = job.cells(chunk)
    for by_row, by_col in itertools.product(range(2), repeat=2):
        hidden = noisy & (rows % 2 == by_row)[:, None] & (cols % 2 == by_col)
        if not hidden[core].any():
            continue
        left = np.where(hidden, np.nan, values).astype(values.dtype)
        rest = replace(inputs, values=left, domain_mask=domain_mask & np.isfinite(values), far=None)
        found = fill_window(rest, chunk, job)
        cells = hidden[core] & (found["flag"] == FillFlag.FILLED)
        predicted, error = found[cells], known[core][cells].astype(np.float64)
        variance = predicted["standard_error"].astype(np.float64) ** 2
        share = variance / (variance + error**2)
        result["value"][cells] += (1 - share) * (predicted["value"] - values[core][cells])
        result["standard_error"][cells] = np.sqrt(share) * error
        result["tail"][cells] = (1 - share) * predicted["tail"]
    return result
