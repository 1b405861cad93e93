"""Fewer of many points: all near ones, ever fewer of the others, as evenly as they lie."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["curve", "start_of", "thinned"]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]

GOLDEN = 0x9E3779B97F4A7C15
"""The golden section of 2^64: its multiples, modulo 2^64, are spread evenly."""

SPREADING = (
    (16, 0x0000FFFF0000FFFF),
    (8, 0x00FF00FF00FF00FF),
    (4, 0x0F0F0F0F0F0F0F0F),
    (2, 0x3333333333333333),
    (1, 0x5555555555555555),
)
"""Shifts and masks that put a zero before each bit of a number of 32 bits."""


def start_of(seed: int) -> float:
    """Where :func:`thinned` begins to count, in [0, 1): another place for each seed, far from its neighbours'."""
    return ((seed * GOLDEN + 2**63) % 2**64 >> 11) / 2**53


def thinned(distance: FloatArray, n: int, thinning: float, start: float = 0.5) -> IntArray:
    """Indices, rising, of `n` of more points: all near ones and ever fewer of the others, as evenly as they lie.

    Up to a radius t all points are taken, beyond it each with probability ``(t / (d + 1))^thinning``. That is done by
    systematic sampling (Madow, Annals of Mathematical Statistics 20, 1949): the probabilities are added up along the
    order of the points, and one is taken whenever the sum passes another whole number. Where neighbours follow each
    other, as along :func:`curve`, every part of the plane gets its share; points drawn one by one would leave holes.

    Parameters
    ----------
    distance : array
        ``(points,)``, more than `n`, finite, of points that lie along a curve.
    start : float
        In [0, 1): how far the sum is from a whole number at first.
    """
    weight = ((distance.min() + 1.0) / (distance.astype(np.float64) + 1)) ** thinning
    order = np.argpartition(-weight, n - 1)
    largest = -np.sort(-weight[order[:n]])
    # the k nearest are sure to be taken where the others, in proportion to their weights, share what is left of n
    rest = weight[order[n:]].sum() + largest[::-1].cumsum()[::-1]
    left = np.arange(n, 0, -1)
    near = int(np.argmax(left * largest <= rest))
    total = np.minimum(weight * (left[near] / rest[near]), 1.0).cumsum()
    # rounding must make them neither more nor fewer
    k = np.arange(n)
    found = np.searchsorted(total, (start + k) * (total[-1] / n))
    return np.asarray(np.minimum(np.maximum.accumulate(found - k) + k, distance.size - n + k))


def curve(rows: npt.NDArray[np.integer], cols: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Places along the Z-order curve (Morton, 1966) of cells below ``2^31``, broadcast.

    What is close on the curve is mostly close in the plane.
    """
    place = np.zeros(np.broadcast_shapes(rows.shape, cols.shape), np.int64)
    for index, bit in ((rows, 1), (cols, 0)):
        spread = np.asarray(index, np.int64)
        for shift, mask in SPREADING:
            spread = (spread | spread << shift) & mask
        place |= spread << bit
    return place
