"""Sums over the cells of regions, part by part, and the table that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from geonp.errors import InputError
from geonp.raster.arrays import AnyIntArray, BoolArray, FloatArray
from geonp.raster.casting import exceeds
from geonp.raster.metadata import FillFlag
from geonp.raster.tolerances import TOLERANCES

_FILLED = (FillFlag.FILLED, FillFlag.FILLED_ACROSS)


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the cells of regions that have a value.

    Attributes
    ----------
    regions : array of int
        Their numbers ``(k,)``.
    weights, values : array
        Sums of the weights, and of the weighted values, ``(k,)``.
    drawn : array
        Sums of the weighted values of samples ``(k, n)``, or of the weights where these exceed a threshold.
    cells, filled : array of int
        Numbers of cells with a value, and of filled ones among them, ``(k,)``.
    """

    regions: AnyIntArray
    weights: FloatArray
    values: FloatArray
    drawn: FloatArray
    cells: AnyIntArray
    filled: AnyIntArray

    @classmethod
    def of(
        cls,
        values: FloatArray,
        flags: AnyIntArray,
        drawn: FloatArray,
        region: AnyIntArray,
        cells: AnyIntArray,
        weights: FloatArray,
        threshold: float | None,
    ) -> Sums:
        """The sums of a part of a raster. Raises InputError for samples that are not of its values, as of other units.

        Parameters
        ----------
        values, flags : array
            ``(rows, cols)``.
        drawn : array
            ``(samples, rows, cols)``.
        region, cells, weights : array
            For each pair of a region and a cell their numbers, and the weight of the cell.
        threshold : float or None
        """
        flat = values.ravel()[cells].astype(np.float64)
        # integers hold the nodata value where they stay empty
        known = np.isfinite(flat) & np.isin(flags.ravel()[cells], (FillFlag.OBSERVED, *_FILLED))
        region, cells, weights, flat = region[known], cells[known], weights[known], flat[known]
        numbers, row = np.unique(region, return_inverse=True)
        used, col = np.unique(cells, return_inverse=True)
        matrix = sparse.csr_matrix((weights, (row, col)), shape=(numbers.size, used.size))
        stored = drawn.reshape(len(drawn), -1)[:, used].T
        samples = stored.astype(np.float64)
        _require_same(flat, samples[col], flags.ravel()[cells] == FillFlag.OBSERVED)
        samples = samples if threshold is None else exceeds(stored, threshold).astype(np.float64)
        filled = np.isin(flags.ravel()[cells], _FILLED)
        counts = (np.bincount(row, of, numbers.size).astype(np.int64) for of in (np.ones(row.size), filled))
        total, weighted = (np.bincount(row, of, numbers.size).astype(np.float64) for of in (weights, weights * flat))
        return cls(numbers, total, weighted, np.asarray(matrix @ samples), *counts)

    @classmethod
    def joined(cls, parts: Sequence[Sums], n_regions: int, n: int) -> Sums:
        """The sums of all parts, for every region."""
        floats: list[Any] = [np.zeros(n_regions), np.zeros(n_regions), np.zeros((n_regions, n))]
        arrays = [*floats, np.zeros(n_regions, np.int64), np.zeros(n_regions, np.int64)]
        for part in parts:
            for whole, some in zip(arrays, list(vars(part).values())[1:], strict=True):
                whole[part.regions] += some
        return cls(np.arange(n_regions), *arrays)

    def table(self, statistic: str, sizes: AnyIntArray, *, of_samples: bool) -> dict[str, Any]:
        """Columns of a table; values are those of the fill, or with `of_samples` means of the samples."""
        unit = np.where(self.cells > 0, 1.0 if statistic in ("sum", "integral") else self.weights, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = (self.drawn.mean(1) if of_samples else self.values) / unit
            error = self.drawn.std(1, ddof=1) / unit
        # without a filled cell, sums differ in rounding alone; the mean of equal ones, as of fractions, is rounded
        sure = (self.filled == 0) | (np.ptp(self.drawn, axis=1) == 0)
        error = np.where(sure & (self.cells > 0), 0.0, error)
        counts = {"cells": self.cells, "filled": self.filled, "empty": sizes - self.cells}
        return {"value": value, "standard_error": error, **counts}


def _require_same(values: FloatArray, samples: FloatArray, observed_mask: BoolArray) -> None:
    """Check that all samples ``(cells, samples)`` of observed cells are the value, unless they differ among each other.

    Raises InputError where they are not.
    """
    known = observed_mask & (np.ptp(samples, axis=1) == 0)
    apart = np.abs(samples[known, 0] - values[known])
    if (apart > TOLERANCES.samples * np.abs(values[known]).max(initial=0.0)).any():
        n = int(apart.argmax())
        raise InputError(
            "The samples are not those of the values, which were changed after the fill, as by a conversion of units: "
            f"got an observed {values[known][n]:g} with samples of {samples[known, 0][n]:g}, expected the same. "
            "Change the samples and standard errors alike, or aggregate the result as it was."
        )
