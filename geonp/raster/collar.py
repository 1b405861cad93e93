"""The collar of a raster: missing cells around the footprint of the data, as the corners of a tilted scene."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from geonp.raster.arrays import BoolArray
from geonp.raster.windows import Window


@dataclass(frozen=True)
class Ends:
    """First and last observed column of each row of a window, and first and last observed row of each column."""

    window: Window
    columns: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

    @classmethod
    def of(cls, observed_mask: BoolArray, window: Window) -> Ends:
        """The ends of a mask ``(rows, cols)``, as positions in the raster."""
        found = []
        for mask, start in ((observed_mask, window.col), (observed_mask.T, window.row)):
            end = start + mask.shape[1] - 1
            first, last = np.full(len(mask), start, np.int64), np.full(len(mask), end, np.int64)
            inner = ~(mask[:, 0] & mask[:, -1])  # most parts are observed at their sides
            if inner.any():
                part = mask[inner]
                some = part.any(1)
                first[inner] = np.where(some, start + part.argmax(1), np.iinfo(np.int64).max)
                last[inner] = np.where(some, end - part[:, ::-1].argmax(1), -1)
            found.append((first, last))
        return cls(window, *found)


def cells_outside(parts: Iterable[Ends], shape: tuple[int, int]) -> int:
    """Number of cells with observed cells on one side at most, in their row and in their column.

    The parts are windows that cover a slice of this shape. One without observed cells has no footprint.
    """
    far = np.iinfo(np.int64).max
    west, east = np.full(shape[0], far), np.full(shape[0], -1)
    north, south = np.full(shape[1], far), np.full(shape[1], -1)
    for part in parts:
        rows, cols = slice(part.window.row, part.window.row_end), slice(part.window.col, part.window.col_end)
        west[rows], east[rows] = np.minimum(west[rows], part.columns[0]), np.maximum(east[rows], part.columns[1])
        north[cols], south[cols] = np.minimum(north[cols], part.rows[0]), np.maximum(south[cols], part.rows[1])
    if (east < 0).all():
        return 0
    columns, count = np.arange(shape[1]), 0
    for row in np.flatnonzero((west > 0) | (east < shape[1] - 1)):
        beside = (columns < west[row]) | (columns > east[row])
        count += int((beside & ((row < north) | (row > south))).sum())
    return count


@dataclass(frozen=True)
class Footprint:
    """Where the slices of a raster are observed, from their parts in any order, a bit for each cell.

    Attributes
    ----------
    ends : dict
        For each slice and window, where the observed cells end.
    seen : dict
        For each window, the cells that a slice observes, packed.
    """

    ends: dict[Hashable, dict[Window, Ends]] = field(default_factory=dict)
    seen: dict[Window, npt.NDArray[np.uint8]] = field(default_factory=dict)

    def add(self, number: Hashable, window: Window, observed_mask: BoolArray) -> None:
        """Add a part of a slice; the same part may come again."""
        bits, ends = np.packbits(observed_mask), Ends.of(observed_mask, window)
        with _lock:
            self.ends.setdefault(number, {})[window] = ends
            self.seen[window] = self.seen[window] | bits if window in self.seen else bits

    def outside(self, shape: tuple[int, int]) -> int:
        """Number of cells outside the footprint of their slice, see :func:`cells_outside`."""
        return sum(cells_outside(windows.values(), shape) for windows in self.ends.values())

    def never(self) -> int:
        """Number of cells of all slices that no slice observes."""
        cells = sum(math.prod(window.shape) for window in self.seen)
        return len(self.ends) * (cells - sum(int(np.unpackbits(bits).sum()) for bits in self.seen.values()))

    def never_in(self, rows: BoolArray, columns: BoolArray) -> bool:
        """Whether no slice observes any of the cells in some rows and columns."""
        for window, bits in self.seen.items():
            part = np.ix_(rows[window.row : window.row_end], columns[window.col : window.col_end])
            if np.unpackbits(bits, count=math.prod(window.shape)).reshape(window.shape)[part].any():
                return False
        return True


_lock = threading.Lock()
