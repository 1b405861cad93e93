"""Measurements beside the cells of a raster, which the predictions of a tile are conditioned on.

Points in a gap, such as buoys under clouds, know what the cells around it do not. The model reads the cells only: it
takes noisy measurements among exact values for a rough field. It predicts at the measurements, too, and the predictions
of the tile are then conditioned on them (:mod:`geonp.nn.update`). What they measure may differ from the raster by an
offset, which is estimated from many of them and subtracted before (:mod:`geonp.fill.measurements`); its remaining error
is a drift term that all measurements of a tile share.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np

from geonp.inference.thinning import curve, start_of, thinned
from geonp.raster.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class MeasurementSettings:
    """Which measurements count."""

    reach_px: float = 56.0
    """Largest distance from a tile, in cells."""
    most: int = 24
    """Largest number for a tile."""
    detail_px: int = 16
    """Cells as near as this to a measurement are predicted one by one, also deep in a gap."""


MEASUREMENTS = MeasurementSettings()


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements at places in a raster.

    Attributes
    ----------
    variable : hashable
        Name of the variable that they measure.
    places : array
        Rows and columns with fractions ``(n, 2)``.
    values, errors : array
        Values and their standard errors ``(n,)``, in the units of the variable.
    slices : array of int
        Position of their slice along each leading dimension ``(n, d)``.
    offset_error : float
        Standard error of the offset from the raster that was subtracted from all values.
    """

    variable: Hashable
    places: FloatArray
    values: FloatArray
    errors: FloatArray
    slices: IntArray
    offset_error: float = 0.0

    def at(self, rows: BoolArray | IntArray) -> Measurements:
        """Some of them."""
        arrays = self.places[rows], self.values[rows], self.errors[rows], self.slices[rows]
        return Measurements(self.variable, *arrays, self.offset_error)

    def of_slice(self, index: tuple[int, ...]) -> Measurements:
        """The measurements of one slice."""
        return self.at((self.slices == np.array(index, np.intp)).all(1))


@dataclass(frozen=True, eq=False)
class Measured:
    """Measurements at the first targets of a tile ``(m,)``, or of a batch of tiles ``(batch, m)``, NaN for padding.

    Attributes
    ----------
    values, errors : array
        Values and their standard errors.
    offset_error : float or array
        Standard error of the offset of all of a tile.
    """

    values: FloatArray
    errors: FloatArray
    offset_error: float | FloatArray


@dataclass(frozen=True, eq=False)
class NearMeasurements:
    """Measurements in a window, with places relative to its first cell; `seed` samples them where there are many."""

    points: Measurements
    shape: tuple[int, ...]
    seed: int

    @classmethod
    def of(
        cls, points: Measurements | None, rows: IntArray, cols: IntArray, period: int | None, seed: int
    ) -> NearMeasurements | None:
        """The measurements within a window of these rows and columns, -1 outside of the raster; None if there are none.

        Columns of a raster with a `period` repeat.
        """
        if points is None or not points.values.size:
            return None
        first = [int(numbers[k] - k) for numbers in (rows, cols) for k in np.flatnonzero(numbers >= 0)[:1]]
        places, shape = points.places - np.array(first), (rows.size, cols.size)
        if period is not None:
            places[:, 1] = (places[:, 1] - (cols.size - period) / 2) % period + (cols.size - period) / 2
        inside = ((places > -0.5) & (places < np.array(shape) - 0.5)).all(1)
        return cls(replace(points, places=places).at(inside), shape, seed) if inside.any() else None

    @property
    def cells(self) -> IntArray:
        """Flat indices of the nearest cells in the window ``(n,)``."""
        row, col = np.rint(self.points.places).astype(np.intp).T
        return np.asarray(row * self.shape[1] + col)

    def around(self) -> BoolArray:
        """Mask of the cells of the window that are predicted in detail."""
        mask = np.zeros(self.shape, bool)
        px = MEASUREMENTS.detail_px
        for row, col in np.unique(np.rint(self.points.places).astype(np.intp), axis=0).tolist():
            mask[max(row - px, 0) : row + px + 1, max(col - px, 0) : col + px + 1] = True
        return mask

    def near(self, box: IntArray, thinning: float) -> IntArray:
        """Numbers of those that are used by the tiles in a box, first corner and end ``(2, 2)`` in the window."""
        middle, half = (box[0] + box[1] - 1) / 2, (box[1] - box[0]) / 2
        offset = self.points.places - middle
        distance = np.linalg.norm(np.maximum(np.abs(offset) - half, 0.0), axis=1)
        found = np.flatnonzero(distance <= MEASUREMENTS.reach_px)
        if found.size <= MEASUREMENTS.most:
            return found
        # along a curve on a lattice of sixteenths of a cell that is fixed to the box
        fine = np.rint(16 * (offset[found] + half + MEASUREMENTS.reach_px)).astype(np.int64)
        order = found[np.lexsort((self.points.values[found], *fine.T, curve(*fine.T)))]
        return np.sort(order[thinned(distance[order], MEASUREMENTS.most, thinning, start_of(self.seed))])
