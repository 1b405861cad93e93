"""Where the cells of a window lie: the context of tiles by distance, and the locations that the model reads.

:class:`SquareCells` counts distances in cells. :class:`Ground` has the same methods for cells that are not square.

Where the cells of a raster are not square (:mod:`geonp.raster.surface`), the model sees the places of a tile in a plane
that touches the Earth in its middle. One unit is the side of a square of the area of its cells, so that cells are as
dense for the model as squares are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from geonp.inference.context import Neighbourhood, window_context
from geonp.inference.thinning import curve, start_of, thinned
from geonp.inference.tiling import near
from geonp.raster.arrays import BoolArray, Float32Array, Float64Array, IntArray
from geonp.raster.surface import Surface
from geonp.raster.tolerances import TOLERANCES
from geonp.raster.windows import shown_once

_FINE = 2
"""Steps of the curve along which context is sampled, for each unit."""


@dataclass(frozen=True, eq=False)
class Plane:
    """The plane of a tile.

    Attributes
    ----------
    middle : array
        Its centre, a place of :class:`~geonp.raster.surface.Surface`, or row and column in the window.
    unit : float
        Length that the model sees as one, in degrees, the unit of the raster, or cells.
    square : bool
        Whether its cells are about as wide as high.
    """

    middle: Float64Array
    unit: float
    square: bool


@dataclass(frozen=True, eq=False)
class SquareCells:
    """The cells of a window that are squares: distances are counted in cells.

    Attributes
    ----------
    context_mask : array of bool
        ``(rows, cols)``: cells that may be context.
    period : int or None
        Number of columns after which a periodic raster repeats.
    """

    context_mask: BoolArray
    period: int | None

    def has_places(self, box: IntArray, target_mask: BoolArray) -> bool:
        """See :meth:`Ground.has_places`: so has each cell, also beyond the edge."""
        return True

    def plane(self, box: IntArray, target_mask: BoolArray) -> Plane:
        """See :meth:`Ground.plane`."""
        return Plane((box[0] + box[1] - 1) / 2, 1.0, square=True)

    def locations(self, places: npt.NDArray[np.number], plane: Plane) -> Float32Array:
        """See :meth:`Ground.locations`."""
        return np.asarray(places - plane.middle, np.float32)

    def context(
        self, box: IntArray, target_mask: BoolArray, plane: Plane, neighbourhood: Neighbourhood, seed: int
    ) -> IntArray:
        """See :meth:`Ground.context`."""
        return window_context(self.context_mask, box, target_mask, neighbourhood, seed, self.period)

    def near(self, distance: float) -> BoolArray:
        """See :meth:`Ground.near`."""
        return near(self.context_mask, distance)


@dataclass(frozen=True, eq=False)
class Ground:
    """The cells of a window that are not squares: distances are true ones, on the surface of the raster.

    Attributes
    ----------
    rows, cols : array of int
        Rows of the raster, -1 outside, and columns, counted from the first of the surface; any number if it is
        periodic.
    context_mask : array of bool
        ``(rows, cols)``: cells that may be context, all with a known place.
    """

    surface: Surface
    rows: IntArray
    cols: IntArray
    context_mask: BoolArray

    @property
    def _period(self) -> int | None:
        return self.surface.shape[1] if self.surface.periodic else None

    @cached_property
    def _placed_mask(self) -> BoolArray:
        return self.surface.placed_mask(self.rows, self.cols)

    @cached_property
    def _known(self) -> tuple[IntArray, Float64Array, scipy.spatial.cKDTree]:
        """Flat indices of the context, each cell of the raster once, with their places and a tree of these."""
        index = np.flatnonzero(shown_once(self.context_mask, self._period))
        # in the order of the raster, so that it does not matter where the window begins
        row, col = np.divmod(index, self.cols.size)
        index = index[np.lexsort((self.cols[col] % self.surface.shape[1], row))]
        places = self._places(index)
        return index, places, scipy.spatial.cKDTree(places)

    @cached_property
    def _areas(self) -> Float64Array:
        """Areas of all cells of the window; 0 outside of the raster."""
        areas, (n_rows, n_cols) = np.zeros(self.context_mask.shape), self.surface.shape
        rows = (self.rows >= 0) & (self.rows < n_rows)
        cols = (self.cols >= 0) & (self.cols < n_cols) | self.surface.periodic
        areas[np.ix_(rows, cols)] = self.surface.areas(self.rows[rows], self.cols[cols])
        return areas

    def _targets(self, box: IntArray, target_mask: BoolArray) -> IntArray:
        """Flat indices of those cells of `target_mask`, in the shape of a box, that have a place."""
        row, col = np.nonzero(target_mask)
        row, col = row + box[0, 0], col + box[0, 1]
        inside = self._placed_mask[row, col]
        return np.asarray((row * self.cols.size + col)[inside], np.intp)

    def _places(self, index: IntArray) -> Float64Array:
        row, col = np.divmod(index, self.cols.size)
        return self.surface.places(self.rows[row], self.cols[col])

    def has_places(self, box: IntArray, target_mask: BoolArray) -> bool:
        """Whether any cell of `target_mask`, in the shape of a box, has a place."""
        return self._targets(box, target_mask).size > 0

    def plane(self, box: IntArray, target_mask: BoolArray) -> Plane:
        """The plane of the tiles in a box, around the cells of `target_mask`, in its shape."""
        middle = self._places(self._targets(box, target_mask)).mean(0)
        if self.surface.sphere:
            middle /= np.linalg.norm(middle)
        (top, left), (bottom, right) = box.tolist()
        areas = self._areas[top:bottom, left:right]
        areas = areas[np.isfinite(areas) & (areas > 0)]
        unit = float(np.sqrt(areas.mean())) if areas.size else self.surface.step
        square = not self.surface.narrow_mask(self.rows[top:bottom]).any()
        return Plane(middle, unit, square)

    def locations(self, places: npt.NDArray[np.number], plane: Plane) -> Float32Array:
        """Locations ``(n, 2)``, as the model reads them, of rows and columns in the window, also between cells."""
        row, col = (
            values + numbers[first] - first
            for values, numbers in zip(places.T, (self.rows, self.cols), strict=True)
            for first in [np.flatnonzero(numbers >= 0)[0]]
        )
        found = self.surface.places(row, col)
        return np.asarray(self.surface.offsets(found, plane.middle) / plane.unit, np.float32)

    def context(
        self, box: IntArray, target_mask: BoolArray, plane: Plane, neighbourhood: Neighbourhood, seed: int
    ) -> IntArray:
        """Choose the context of the tiles in a box as :func:`~geonp.inference.context.window_context`, on the surface.

        The narrow halo is in units of the tile, the widest in those of a typical cell, so that it reaches as far
        everywhere. A cell stands for its area: where cells crowd, as near the poles, fewer distant ones are read.
        """
        index, places, tree = self._known
        there = self.surface.offsets(self._places(self._targets(box, target_mask)), plane.middle)
        radius, nearest = float(np.linalg.norm(there, axis=1).max()), scipy.spatial.cKDTree(there)
        halos = [halo * plane.unit for halo in neighbourhood.halos_px[:-1]]
        for halo in [*halos, neighbourhood.reach_px * self.surface.step]:
            found = np.asarray(
                tree.query_ball_point(plane.middle, self.surface.radius(halo + radius), return_sorted=True), np.intp
            )
            if found.size >= neighbourhood.n_context or halo not in halos:
                offset = self.surface.offsets(places[found], plane.middle)
                distance = np.asarray(nearest.query(offset)[0])
                close = distance <= halo
                if np.count_nonzero(close) >= neighbourhood.n_context or halo not in halos:
                    break
        found, offset, distance = found[close], offset[close] / plane.unit, distance[close] / plane.unit
        if found.size > neighbourhood.n_context:
            order = _along_curve(offset)
            share = np.minimum(self._areas.ravel()[index[found]] / plane.unit**2, 1e3)
            share = np.where(np.isfinite(share), share, 1.0)[order]
            chosen = thinned(distance[order], neighbourhood.n_context, neighbourhood.thinning, start_of(seed), share)
            found = found[np.sort(order[chosen])]
        return np.asarray(index[found])

    def near(self, distance: float) -> BoolArray:
        """Cells of the window within a distance of the context, in cells, or at it, but for rounding."""
        close = np.zeros(self.context_mask.shape, bool)
        _, _, tree = self._known
        index = np.flatnonzero(self._placed_mask & ~self.context_mask)
        radius = self.surface.radius(distance * self.surface.step) * (1 + TOLERANCES.distance)
        close.ravel()[index] = np.isfinite(tree.query(self._places(index), distance_upper_bound=radius)[0])
        return close | self.context_mask


def _along_curve(offset: Float64Array) -> IntArray:
    """Order of places along a curve that turns with them, as that of cells in :mod:`geonp.inference.context`."""
    moment = offset.sum(0)
    offset = np.where(moment < 0, -offset, offset)
    offset = offset[:, ::-1] if abs(moment[0]) < abs(moment[1]) else offset
    rows, cols = np.floor((offset - offset.min(0)) * _FINE).astype(np.int64).T
    return np.argsort(curve(rows, cols), kind="stable")
