"""Gaps of a raster: a census of them, and simulators of the gaps of sensors.

The simulators return boolean arrays ``(y, x)``, True where *missing*, unlike names that end in ``_mask``. They depend
on their arguments and the random generator only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import fft, ndimage, sparse

from geonp.errors import InputError
from geonp.raster.arrays import BoolArray

Shape = tuple[int, int]


@dataclass(frozen=True)
class GapCensus:
    """Number and size of the gaps of a raster.

    Attributes
    ----------
    cells, missing : int
        Numbers of all cells and of missing cells.
    gaps : int
        Number of gaps: missing cells connected by their edges.
    largest : int
        Number of cells of the largest gap.
    farthest_px : float
        Largest distance of a missing cell from its nearest observation, in cells; ``inf`` without observations.
    """

    cells: int
    missing: int
    gaps: int
    largest: int
    farthest_px: float


def census(observed_mask: BoolArray) -> GapCensus:
    """Count the gaps of a slice ``(y, x)``."""
    missing = ~observed_mask
    labels, gaps = ndimage.label(missing)
    if not gaps:
        return GapCensus(observed_mask.size, 0, 0, 0, 0.0)
    largest = int(np.bincount(labels.ravel())[1:].max())
    farthest = float(ndimage.distance_transform_edt(missing).max()) if observed_mask.any() else float("inf")
    return GapCensus(observed_mask.size, int(missing.sum()), int(gaps), largest, farthest)


def census_of_strips(strips: Iterable[BoolArray], shape: Shape, largest_map: int = 2**22) -> tuple[GapCensus, int]:
    """Count the gaps of a slice of `shape` that does not fit in memory, from strips of its rows, in order.

    Returns
    -------
    census : GapCensus
        As :func:`census`.
    within : int
        Number of cells that `farthest_px` may differ by. It is exact, 0, if the slice has at most `largest_map` cells;
        otherwise it is measured on a map of squares of several cells, observed where one of their cells is.
    """
    side = max(1, math.ceil(math.sqrt(math.prod(shape) / largest_map)))
    seen = np.zeros([-(-size // side) for size in shape], bool)
    above, open_sizes = np.full(shape[1], -1), np.zeros(0)  # the gaps that reach the last row so far, by column
    row = missing = gaps = largest = 0
    for strip in strips:
        labels, n = ndimage.label(~strip)
        sizes = np.concatenate([open_sizes, np.bincount(labels.ravel(), minlength=n + 1)[1:]])
        joined = (above >= 0) & (labels[0] > 0)
        first, second = above[joined], open_sizes.size + labels[0, joined] - 1
        graph = sparse.coo_array((np.ones(first.size), (first, second)), (sizes.size, sizes.size))
        parts, part = sparse.csgraph.connected_components(graph, directed=False)
        totals = np.bincount(part, sizes, minlength=parts)
        last = labels[-1] > 0
        still_open, open_part = np.unique(part[open_sizes.size + labels[-1, last] - 1], return_inverse=True)
        closed = np.delete(totals, still_open)
        gaps, largest = gaps + closed.size, max(largest, int(closed.max(initial=0)))
        above = np.full(shape[1], -1)
        above[last], open_sizes = open_part, totals[still_open]
        missing += int(strip.size - np.count_nonzero(strip))
        starts = np.flatnonzero(np.diff((row + np.arange(len(strip))) // side, prepend=-1))
        some = np.logical_or.reduceat(np.logical_or.reduceat(strip, starts, 0), np.arange(0, shape[1], side), 1)
        seen[row // side : row // side + len(some)] |= some
        row += len(strip)
    gaps, largest = gaps + open_sizes.size, max(largest, int(open_sizes.max(initial=0)))
    farthest = side * float(ndimage.distance_transform_edt(~seen).max()) if seen.any() else float("inf")
    within = 2 * side if side > 1 and missing and seen.any() else 0
    return GapCensus(math.prod(shape), missing, gaps, largest, farthest if missing else 0.0), within


def random_gaps(shape: Shape, fraction: float, rng: np.random.Generator) -> BoolArray:
    """Independently missing cells, each with probability `fraction`."""
    _check_fraction(fraction)
    return rng.random(shape, dtype=np.float32) < fraction


def cloud_gaps(shape: Shape, fraction: float, rng: np.random.Generator, scale: float = 20.0) -> BoolArray:
    """Clouds: the lowest `fraction` of a rough random field, exact to a cell.

    The field has a Matern-like spectrum ``(1 + (scale k)^2)^-1.5``: clouds of about `scale` cells, with smaller
    structures of all sizes.
    """
    _check_fraction(fraction)
    ny, nx = (fft.next_fast_len(n + int(min(2 * scale, n))) for n in shape)
    noise = fft.rfft2(rng.standard_normal((ny, nx), dtype=np.float32))
    ky, kx = np.fft.fftfreq(ny)[:, None], np.fft.rfftfreq(nx)[None, :]
    spectrum = (1.0 + (2 * np.pi * scale / 3) ** 2 * (ky**2 + kx**2)) ** -1.5
    field = fft.irfft2(noise * spectrum.astype(np.float32), s=(ny, nx))[: shape[0], : shape[1]]
    return np.asarray(field <= np.quantile(field, fraction)) if fraction > 0 else np.zeros(shape, bool)


def stripe_gaps(
    shape: Shape,
    fraction: float,
    rng: np.random.Generator,
    period: float = 33.0,
    angle: float | None = None,
    wedge: float = 0.6,
) -> BoolArray:
    """Parallel stripes like those of Landsat 7 after its scan-line corrector failed.

    Parameters
    ----------
    period : float
        Distance between stripes, in cells.
    angle : float, optional
        Direction of the stripes in radians from the x axis. By default random, up to 15 degrees.
    wedge : float
        0 for stripes of constant width, 1 for stripes that narrow to nothing at one side, as Landsat's at mid-swath.
    """
    _check_fraction(fraction)
    angle = rng.uniform(-0.26, 0.26) if angle is None else angle
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    phase = (y * np.cos(angle) - x * np.sin(angle)) / period + rng.random()
    along = (x * np.cos(angle) + y * np.sin(angle)) / max(shape)
    along = np.abs(along - along.min()) / max(float(np.ptp(along)), 1e-9)
    width = fraction * (1 + wedge * (2 * along - 1))
    return np.asarray(np.abs((phase % 1.0) - 0.5) < width / 2)


def swath_gaps(shape: Shape, fraction: float, rng: np.random.Generator) -> BoolArray:
    """Gaps between the passes of a satellite: wide straight bands in a random direction."""
    _check_fraction(fraction)
    period = rng.uniform(0.5, 1.5) * max(shape)
    return stripe_gaps(shape, fraction, rng, period=period, angle=rng.uniform(0, np.pi), wedge=0.0)


def block_gaps(shape: Shape, fraction: float, rng: np.random.Generator, size: float = 16.0) -> BoolArray:
    """Rectangles with log-normal sides of about `size` cells, until `fraction` of the raster is missing."""
    _check_fraction(fraction)
    gaps = np.zeros(shape, bool)
    budget = round(fraction * gaps.size)
    for _ in range(10_000):
        if int(gaps.sum()) >= budget:
            break
        height, width = np.maximum(1, np.minimum(shape, rng.lognormal(np.log(size), 0.4, 2).astype(int)))
        row, col = rng.integers(1 - height, shape[0]), rng.integers(1 - width, shape[1])
        gaps[max(row, 0) : row + height, max(col, 0) : col + width] = True
    return gaps


SIMULATORS = {
    "random": random_gaps,
    "clouds": cloud_gaps,
    "stripes": stripe_gaps,
    "swath": swath_gaps,
    "blocks": block_gaps,
}
"""Gap simulators by name, as in recipes and on the command line."""


def simulate(kind: str, shape: Shape, fraction: float, rng: np.random.Generator) -> BoolArray:
    """Simulate gaps of a kind in :data:`SIMULATORS` with its default options; True where missing."""
    if kind not in SIMULATORS:
        raise InputError(f"unknown kind of gaps {kind!r}: expected one of {sorted(SIMULATORS)}")
    return SIMULATORS[kind](shape, fraction, rng)


def _check_fraction(fraction: float) -> None:
    if not 0.0 <= fraction <= 1.0:
        raise InputError(f"the fraction of missing cells must lie between 0 and 1, got {fraction!r}")
