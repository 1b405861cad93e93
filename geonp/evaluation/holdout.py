"""Hold-outs shaped like real gaps: cells are hidden from a raster and their truth is kept aside.

Hiding random cells beside observed ones flatters every method. What is hidden here has the shape of the gaps that
sensors leave (:mod:`geonp.raster.gaps`), or of the raster's own gaps, moved onto cells whose values are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.errors import InputError
from geonp.raster.gaps import simulate

__all__ = ["HoldOut", "hide", "hide_like_own_gaps", "hide_simulated"]

FloatArray = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]

ATTEMPTS = 50


@dataclass(frozen=True)
class HoldOut:
    """A raster with cells hidden from it, each array ``(y, x)``.

    Attributes
    ----------
    values : array of float
        The raster to fill: NaN where it was missing before, and where a cell is hidden.
    truth : array of float
        The raster as it was.
    hidden : array of bool
        True for the cells to score: hidden from `values`, known in `truth`.
    """

    values: FloatArray
    truth: FloatArray
    hidden: BoolArray


def hide(truth: FloatArray, missing: BoolArray) -> HoldOut:
    """Hide the cells of `truth` where `missing` is True.

    Raises
    ------
    InputError
        When the shapes differ, or nothing or everything that is known would be hidden.
    """
    if truth.shape != missing.shape:
        raise InputError(f"the gaps have shape {missing.shape}, the raster {truth.shape}: they must be equal")
    known = np.isfinite(truth)
    hidden = known & missing
    if not hidden.any() or not (known & ~missing).any():
        raise InputError(f"{hidden.sum()} of {known.sum()} known cells would be hidden: some must be, and not all")
    return HoldOut(np.where(missing, np.nan, truth).astype(truth.dtype, copy=False), truth, hidden)


def hide_simulated(truth: FloatArray, kind: str, fraction: float, rng: np.random.Generator) -> HoldOut:
    """Hide gaps of one `kind` of :data:`geonp.raster.gaps.SIMULATORS` that cover about `fraction` of the raster."""
    return hide(truth, simulate(kind, (truth.shape[0], truth.shape[1]), fraction, rng))


def hide_like_own_gaps(truth: FloatArray, rng: np.random.Generator, share: float = 0.25) -> HoldOut:
    """Hide known cells in the shape of the raster's own gaps.

    The gaps are moved by a random offset, wrapping around at the edges. Whole connected parts of what then covers
    known cells are hidden, in random order, up to `share` of the known cells, and at least one.

    Parameters
    ----------
    truth : array of float
        ``(y, x)``, NaN where missing; must have gaps.
    rng : numpy.random.Generator
        Source of the offset and the order.
    share : float
        Largest share of the known cells to hide, unless the first part exceeds it by itself.

    Raises
    ------
    InputError
        When no offset was found that hides some known cells and not all, as in a raster without gaps.
    """
    known = np.isfinite(truth)
    for _ in range(ATTEMPTS):
        rows, columns = rng.integers(truth.shape)
        moved = np.roll(~known, (int(rows), int(columns)), axis=(0, 1)) & known
        hidden = _some_parts(moved, share * known.sum(), rng)
        if 0 < hidden.sum() < known.sum():
            return hide(truth, hidden | ~known)
    raise InputError(f"moving the {(~known).sum()} missing cells hides none or all of the {known.sum()} known ones")


def _some_parts(cells: BoolArray, budget: float, rng: np.random.Generator) -> BoolArray:
    """Connected parts of `cells` in random order, until another would exceed `budget` cells; one at least."""
    parts, count = ndimage.label(cells)
    order = rng.permutation(count) + 1
    sizes = np.bincount(parts.ravel(), minlength=count + 1)[order]
    taken = max(1, int(np.searchsorted(np.cumsum(sizes), budget, side="right")))
    return np.isin(parts, order[:taken])
