"""Where a raster is missing: a census of its gaps, and simulators of the gaps that sensors leave.

The simulators return boolean arrays ``(y, x)`` in which True = *missing*; everywhere else in geonp a name that ends in
``_mask`` means True = observed. All are pure functions of their arguments and the generator that they are given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft, ndimage

from geonp.errors import InputError

__all__ = [
    "SIMULATORS",
    "GapCensus",
    "block_gaps",
    "census",
    "cloud_gaps",
    "random_gaps",
    "simulate",
    "stripe_gaps",
    "swath_gaps",
]

BoolArray = npt.NDArray[np.bool_]
Shape = tuple[int, int]


@dataclass(frozen=True)
class GapCensus:
    """How much of a raster is missing, and how far its gaps reach.

    Attributes
    ----------
    cells, missing : int
        All cells, and those without a value.
    gaps : int
        Connected gaps (edges touch).
    largest : int
        Cells of the largest gap.
    farthest_px : float
        Distance in cells from the most remote missing cell to its nearest observation; ``inf`` without one.
    """

    cells: int
    missing: int
    gaps: int
    largest: int
    farthest_px: float

    @property
    def share(self) -> float:
        """Missing cells as a share of all, 0 to 1."""
        return self.missing / self.cells if self.cells else 0.0


def census(observed_mask: BoolArray) -> GapCensus:
    """Count the gaps of one ``(y, x)`` slice; `observed_mask` is True where there is a value."""
    missing = ~observed_mask
    labels, gaps = ndimage.label(missing)
    if not gaps:
        return GapCensus(observed_mask.size, 0, 0, 0, 0.0)
    largest = int(np.bincount(labels.ravel())[1:].max())
    farthest = float(ndimage.distance_transform_edt(missing).max()) if observed_mask.any() else float("inf")
    return GapCensus(observed_mask.size, int(missing.sum()), int(gaps), largest, farthest)


def random_gaps(shape: Shape, fraction: float, rng: np.random.Generator) -> BoolArray:
    """Cells missing independently of each other, each with probability `fraction`."""
    _check_fraction(fraction)
    return rng.random(shape, dtype=np.float32) < fraction


def cloud_gaps(shape: Shape, fraction: float, rng: np.random.Generator, scale: float = 20.0) -> BoolArray:
    """Clouds: the lowest `fraction` of a random field with ragged edges, exact to a cell.

    The field has a Matern-like spectrum ``(1 + (scale k)^2)^-1.5``: clouds some `scale` cells across with wisps at
    every smaller size.
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
        Distance between stripes, cells.
    angle : float, optional
        Direction of the stripes, radians from the x axis; a random tilt of up to 15 degrees when not given.
    wedge : float
        0 for stripes of one width; towards 1 they thin out to nothing at one side, as Landsat's do at mid-swath.
    """
    _check_fraction(fraction)
    angle = rng.uniform(-0.26, 0.26) if angle is None else angle
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    across = (y * np.cos(angle) - x * np.sin(angle)) / period + rng.random()
    along = (x * np.cos(angle) + y * np.sin(angle)) / max(shape)
    along = np.abs(along - along.min()) / max(float(np.ptp(along)), 1e-9)
    width = fraction * (1 + wedge * (2 * along - 1))
    return np.asarray(np.abs((across % 1.0) - 0.5) < width / 2)


def swath_gaps(shape: Shape, fraction: float, rng: np.random.Generator) -> BoolArray:
    """What lies between two passes of a satellite: wide straight bands in a random direction."""
    _check_fraction(fraction)
    period = rng.uniform(0.5, 1.5) * max(shape)
    return stripe_gaps(shape, fraction, rng, period=period, angle=rng.uniform(0, np.pi), wedge=0.0)


def block_gaps(shape: Shape, fraction: float, rng: np.random.Generator, size: float = 16.0) -> BoolArray:
    """Rectangles of about `size` cells a side, log-normally spread, until `fraction` of the raster is missing."""
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
"""The gap simulators by the names that recipes and the command line use."""


def simulate(kind: str, shape: Shape, fraction: float, rng: np.random.Generator) -> BoolArray:
    """Gaps of one `kind` of :data:`SIMULATORS` with its default options; True = missing."""
    if kind not in SIMULATORS:
        raise InputError(f"unknown kind of gaps {kind!r}: expected one of {sorted(SIMULATORS)}")
    return SIMULATORS[kind](shape, fraction, rng)


def _check_fraction(fraction: float) -> None:
    if not 0.0 <= fraction <= 1.0:
        raise InputError(f"the fraction of missing cells must lie between 0 and 1, got {fraction!r}")
