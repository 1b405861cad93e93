"""Hold-outs shaped like real gaps: cells are hidden from a raster, and their true values are kept for scoring.

Scores of randomly hidden cells are too good, because their neighbours are observed. Hidden cells here have the shape of
the gaps that sensors leave (:mod:`geonp.raster.gaps`), or of the raster's own gaps, moved onto observed cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from geonp.errors import InputError
from geonp.raster.arrays import BoolArray, FloatArray
from geonp.raster.gaps import simulate


@dataclass(frozen=True)
class MoveSettings:
    """Settings for moving the raster's own gaps."""

    attempts: int = 50  # draws or offsets that are tried
    moves: int = 16
    enough: float = 0.5  # share of the wanted cells at which moving stops: unsplit gaps rarely meet it exactly


MOVE = MoveSettings()


@dataclass(frozen=True)
class HoldOut:
    """A raster with hidden cells, each array ``(y, x)``.

    Attributes
    ----------
    values : array of float
        Raster to fill: NaN where it was missing, and where a cell is hidden.
    truth : array of float
        Raster before hiding.
    hidden : array of bool
        True for the cells to score: NaN in `values`, observed in `truth`.
    """

    values: FloatArray
    truth: FloatArray
    hidden: BoolArray


def hide(truth: FloatArray, missing: BoolArray) -> HoldOut:
    """Hide the cells of `truth` where `missing` is True.

    Raises InputError if the shapes differ, or none or all of the observed cells would be hidden.
    """
    if truth.shape != missing.shape:
        raise InputError(f"the gaps have shape {missing.shape}, the raster {truth.shape}: they must be equal")
    observed = np.isfinite(truth)
    hidden = observed & missing
    if not hidden.any() or not (observed & ~missing).any():
        raise InputError(
            f"{hidden.sum()} of {observed.sum()} observed cells would be hidden: expected at least one, but not all"
        )
    return HoldOut(np.where(missing, np.nan, truth).astype(truth.dtype, copy=False), truth, hidden)


def hide_simulated(truth: FloatArray, kind: str, fraction: float, rng: np.random.Generator) -> HoldOut:
    """Hide simulated gaps of a `kind` of :data:`geonp.raster.gaps.SIMULATORS`, about `fraction` of the raster.

    Gaps that happen to be the raster's own, as those simulated from the same seed, are drawn again.
    """
    observed, shape = np.isfinite(truth), (truth.shape[0], truth.shape[1])
    for _ in range(MOVE.attempts):
        missing = simulate(kind, shape, fraction, rng)
        if (missing & observed).any():
            break
    return hide(truth, missing)


def hide_like_own_gaps(truth: FloatArray, rng: np.random.Generator, share: float = 0.25) -> HoldOut:
    """Hide observed cells in the shape of the raster's own gaps.

    The gaps are moved by a random offset, with wrap-around at the edges. Whole connected components of the observed
    cells that they then cover are hidden, in random order, up to `share` of the observed cells, and at least one.
    Raises InputError if no offset hides at least one observed cell and not all of them, as in a raster without gaps.

    Parameters
    ----------
    truth : array of float
        ``(y, x)``, NaN where missing; must have gaps.
    rng : numpy.random.Generator
        Source of the offset and the order.
    share : float
        Largest share of the observed cells to hide, unless the first component exceeds it by itself.
    """
    observed = np.isfinite(truth)
    for _ in range(MOVE.attempts):
        row, col = rng.integers(truth.shape)
        covered = np.roll(~observed, (int(row), int(col)), axis=(0, 1)) & observed
        hidden = _draw_components(covered, share * observed.sum(), rng)
        if 0 < hidden.sum() < observed.sum():
            return hide(truth, hidden | ~observed)
    raise InputError(
        f"moving the {(~observed).sum()} missing cells hides none or all of the {observed.sum()} observed ones"
    )


def hide_moved_gaps(truth: FloatArray, fraction: float, rng: np.random.Generator) -> HoldOut:
    """Move the gaps of `truth` several times, until they hide about `fraction` of its observed cells.

    Raises InputError as :func:`hide_like_own_gaps`.
    """
    observed = np.isfinite(truth)
    hidden = np.zeros_like(observed)
    for _ in range(MOVE.moves):
        hidden |= hide_like_own_gaps(truth, rng, fraction - hidden.sum() / observed.sum()).hidden
        if hidden.sum() >= fraction * MOVE.enough * observed.sum():
            break
    return hide(truth, hidden | ~observed)


def _draw_components(mask: BoolArray, max_cells: float, rng: np.random.Generator) -> BoolArray:
    """Connected components of `mask` in random order, at most `max_cells` together, but at least one component."""
    labels, count = ndimage.label(mask)
    order = rng.permutation(count) + 1
    sizes = np.bincount(labels.ravel(), minlength=count + 1)[order]
    n = max(1, int(np.searchsorted(np.cumsum(sizes), max_cells, side="right")))
    return np.isin(labels, order[:n])
