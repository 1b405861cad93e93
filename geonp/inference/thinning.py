"""Systematic sampling of points: all near ones, and a share of the others that falls with distance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from geonp.raster.arrays import FloatArray, IntArray

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: its multiples modulo 2^64 are spread evenly."""

SPREADING = (
    (16, 0x0000FFFF0000FFFF),
    (8, 0x00FF00FF00FF00FF),
    (4, 0x0F0F0F0F0F0F0F0F),
    (2, 0x3333333333333333),
    (1, 0x5555555555555555),
)
"""Shifts and masks that interleave the bits of a 32-bit number with zeros."""


def start_of(seed: int) -> float:
    """Offset of the systematic sample for a seed, in [0, 1); successive seeds give distant offsets."""
    return ((seed * GOLDEN + 2**63) % 2**64 >> 11) / 2**53


def thinned(
    distance: FloatArray, n: int, thinning: float, start: float = 0.5, share: FloatArray | None = None
) -> IntArray:
    """Choose `n` of more points: all near ones, and a share of the others that falls with distance.

    All points within a radius t are taken, and each point at a distance d beyond it with probability
    ``(t / (d + 1))^thinning``. Sampling is systematic (Madow, Annals of Mathematical Statistics 20, 1949): inclusion
    probabilities are accumulated along the order of the points, and a point is taken whenever the sum passes the next
    whole number. If the points lie along a space-filling :func:`curve`, every part of the plane gets its share, while
    independent draws would leave holes.

    Parameters
    ----------
    distance : array
        ``(points,)``, more than `n`, finite.
    start : float
        Offset of the sample, in [0, 1).
    share : array, optional
        Factors of the probabilities, such as areas that points stand for.

    Returns
    -------
    array of int
        Indices of the chosen points, ascending.
    """
    weight = ((distance.min() + 1.0) / (distance.astype(np.float64) + 1)) ** thinning
    weight = weight if share is None else weight * share
    order = np.argpartition(-weight, n - 1)
    largest = -np.sort(-weight[order[:n]])
    # the k nearest are taken for certain; the others share the rest of n in proportion to their weights
    rest = weight[order[n:]].sum() + largest[::-1].cumsum()[::-1]
    left = np.arange(n, 0, -1)
    near = int(np.argmax(left * largest <= rest))
    total = np.minimum(weight * (left[near] / rest[near]), 1.0).cumsum()
    # n distinct indices in spite of rounding
    k = np.arange(n)
    found = np.searchsorted(total, (start + k) * (total[-1] / n))
    return np.asarray(np.minimum(np.maximum.accumulate(found - k) + k, distance.size - n + k))


def curve(rows: npt.NDArray[np.integer], cols: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Positions of cells along the Z-order curve (Morton, 1966), for indices below ``2^31``; broadcast.

    Cells that are close on the curve are mostly close in the plane.
    """
    place = np.zeros(np.broadcast_shapes(rows.shape, cols.shape), np.int64)
    for index, bit in ((rows, 1), (cols, 0)):
        spread = np.asarray(index, np.int64)
        for shift, mask in SPREADING:
            spread = (spread | spread << shift) & mask
        place |= spread << bit
    return place
