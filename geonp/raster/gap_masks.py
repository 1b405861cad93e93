"""Which gaps of a slice are filled: holes alone, or those up to a size; each as a whole, however the slice is read.

A gap is a set of missing cells connected by their edges. A slice is read in strips of rows: gaps within a strip are
decided at once, and those that leave it once all strips were read. Only one strip is held at a time; the others are
packed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage, sparse

from geonp.raster.arrays import Array, BoolArray, IntArray


@dataclass(frozen=True)
class GapRule:
    """Which gaps are filled.

    Attributes
    ----------
    holes : bool
        Only those that do not touch the edge of the raster.
    max_gap : int or None
        Only those into which no square of more rows and columns than this fits.
    periodic : bool
        Whether the first and the last column are neighbours.
    """

    holes: bool = False
    max_gap: int | None = None
    periodic: bool = False

    def __call__(self, missing: BoolArray) -> BoolArray:
        """Mask of a slice ``(rows, cols)``: False in gaps that are not filled."""
        return np.asarray(kept_mask([missing], missing.shape[0], self))


@dataclass(frozen=True, eq=False)
class PackedMask:
    """A compressed mask ``(rows, cols)``, which is cut as an array is.

    Attributes
    ----------
    shape : tuple of int
    starts : list of int
        First row of each strip.
    parts : list of bytes
    """

    shape: tuple[int, int]
    starts: list[int] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    def append(self, row: int, mask: BoolArray) -> None:
        """Add the strip that begins at `row`."""
        self.starts.append(row)
        self.parts.append(zlib.compress(np.packbits(mask).tobytes(), 1))

    def strip(self, number: int) -> BoolArray:
        """One of the strips."""
        rows = [*self.starts, self.shape[0]][number + 1] - self.starts[number]
        bits = np.frombuffer(zlib.decompress(self.parts[number]), np.uint8)
        return np.unpackbits(bits, count=rows * self.shape[1]).astype(bool).reshape(rows, self.shape[1])

    def __getitem__(self, key: tuple[slice, slice]) -> BoolArray:
        """Some rows and columns."""
        first, last, _ = key[0].indices(self.shape[0])
        numbers = range(int(np.searchsorted(self.starts, first, "right")) - 1, np.searchsorted(self.starts, last))
        if first >= last:
            return np.zeros((0, self.shape[1]), bool)[:, key[1]]
        strips = np.concatenate([self.strip(number)[:, key[1]] for number in numbers])
        return strips[first - self.starts[numbers[0]] : last - self.starts[numbers[0]]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:, :].astype(dtype or bool, copy=False)


def kept_mask(strips: Iterable[BoolArray], rows: int, rule: GapRule) -> PackedMask:
    """The mask of a slice from strips of its missing cells, in order: False in gaps that are not filled.

    Holds the strips packed, at most a bit for each cell, and a few numbers for each gap on the border of two strips.
    """
    found = _Gaps(rule, rows)
    missing: PackedMask | None = None
    row = 0
    for strip in strips:
        missing = missing or PackedMask((rows, strip.shape[1]))
        missing.append(row, strip)
        found.add(strip, row)
        row += len(strip)
    assert missing is not None
    kept, bad = PackedMask(missing.shape), found.refused()
    for number, start in enumerate(missing.starts):
        labels, n = ndimage.label(missing.strip(number))
        refused = np.zeros(n + 1, bool)
        refused[bad[number]] = True
        kept.append(start, ~refused[labels])
    return kept


@dataclass(frozen=True)
class _Gaps:
    """Gaps of the strips so far: those that reach another strip have a number in the slice.

    Attributes
    ----------
    rule, rows
        The rule, and the number of rows of the slice.
    above : list
        The last rows, in which a square may begin.
    last : list
        Numbers of the gaps in the last row, -1 where observed or not numbered.
    pairs, wrong : list
        Pairs of numbers that are one gap, and numbers of gaps that are refused.
    local : list
        For each strip, the labels of gaps that are refused, of those with a number, and the first number.
    """

    rule: GapRule
    rows: int
    above: list[BoolArray] = field(default_factory=list)
    last: list[npt.NDArray[np.int64]] = field(default_factory=list)
    pairs: list[npt.NDArray[np.int64]] = field(default_factory=list)
    wrong: list[npt.NDArray[np.int64]] = field(default_factory=list)
    local: list[tuple[IntArray, IntArray, int]] = field(default_factory=list)

    @property
    def numbers(self) -> int:
        """Number of the gaps with a number."""
        return self.local[-1][1].size + self.local[-1][2] if self.local else 0

    def add(self, strip: BoolArray, row: int) -> None:
        """The gaps of the next strip."""
        labels, n = ndimage.label(strip)
        refused = np.zeros(n + 1, bool)
        if self.rule.max_gap is not None:
            refused[labels[self._wide(strip, self.rule.max_gap + 1)]] = True
        if self.rule.holes:
            edges = [labels[0]] * (row == 0) + [labels[-1]] * (row + len(strip) == self.rows)
            edges += [] if self.rule.periodic else [labels[:, 0], labels[:, -1]]
            refused[np.concatenate([*edges, [0]])] = True
        refused[0] = False
        ends = [labels[0], labels[-1], *([labels[:, 0], labels[:, -1]] if self.rule.periodic else [])]
        reaching = np.unique(np.concatenate(ends))
        reaching = reaching[reaching > 0]
        number, first = np.full(n + 1, -1, np.int64), self.numbers
        number[reaching] = first + np.arange(reaching.size)
        self.local.append((np.flatnonzero(refused), reaching, first))
        self.wrong.append(number[reaching[refused[reaching]]])
        for last in self.last:
            self._join(last, number[labels[0]])
        if self.rule.periodic:
            self._join(number[labels[:, 0]], number[labels[:, -1]])
        self.last[:] = [number[labels[-1]]]

    def _join(self, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> None:
        both = (one >= 0) & (other >= 0)
        self.pairs.append(np.unique(np.stack([one[both], other[both]]), axis=1))

    def _wide(self, strip: BoolArray, side: int) -> BoolArray:
        """The last cell of each square of missing cells with this side."""
        joined = np.concatenate([*self.above, strip])
        width = strip.shape[1]
        self.above[:] = [joined[max(len(joined) - side + 1, 0) :].copy()]
        if self.rule.periodic:
            joined = np.concatenate([joined[:, width - min(side - 1, width) :], joined], 1)
        squares = _runs(_runs(joined, side, 0), side, 1)
        return squares[len(joined) - len(strip) :, joined.shape[1] - width :]

    def refused(self) -> list[IntArray]:
        """The labels of each strip in gaps that are not filled."""
        pairs = np.concatenate([*self.pairs, np.zeros((2, 0), np.int64)], axis=1)
        graph = sparse.coo_array((np.ones(pairs.shape[1], bool), (pairs[0], pairs[1])), (self.numbers, self.numbers))
        _, part = sparse.csgraph.connected_components(graph, directed=False)
        wrong = np.isin(part, part[np.concatenate([*self.wrong, np.zeros(0, np.int64)])])
        return [
            np.union1d(refused, reaching[wrong[first : first + reaching.size]])
            for refused, reaching, first in self.local
        ]


def _runs(mask: BoolArray, n: int, axis: int) -> BoolArray:
    """Where a run of `n` True cells along an axis ends."""
    if n > mask.shape[axis]:
        return np.zeros(mask.shape, bool)
    sums = np.cumsum(mask, axis, dtype=np.int32)
    before = np.zeros_like(sums)
    after, first = [slice(None)] * mask.ndim, [slice(None)] * mask.ndim
    after[axis], first[axis] = slice(n, None), slice(None, -n)
    before[tuple(after)] = sums[tuple(first)]
    return np.asarray(sums - before == n)
