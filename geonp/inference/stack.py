"""What the other slices of a stack tell about one, as earlier and later days do about a day under clouds.

Each cell that another slice has gets a background: what the slice would be there if it followed the others as it does
around. The background is subtracted before the model fills, and added to what it predicts: the model sees what is new
in a slice, and its standard errors are of that. Where those of the slice alone are smaller, it is filled alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FRAME_PX", "KINDS", "SLICES", "Background", "background", "backgrounds", "beside", "read_with"]

SLICES = 8
"""How many other slices are read for one, at most: those nearest to it."""

FRAME_PX = 32
"""How far around a tile its slice is compared with the others."""

LAG_PX = 2
"""Distance of the cells whose differences are compared, cells: levels of smooth fields agree by chance."""

BLOCK_PX = 16
"""Side of the blocks that are taken for independent of each other."""

LEAST_BLOCKS = 4
"""Blocks with pairs of cells below which nothing is said of another slice."""

DOUBTED = 2.5
"""A slope of so many standard errors is not used at all, greater ones the more."""

DECISIVE = 0.1
"""Slices with less than so many times the weight of the best that a cell has are not part of what decides."""

KINDS = 3
"""Kinds of targets, by the slices that decide, that are treated apart; all others are together."""

ALIKE = 0.2
"""Targets are not parted where every slice has about as large a share of them as of the context, but for this."""

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating[Any]]


def beside(index: int, size: int) -> list[int]:
    """The other slices that are read for one of `size`: the nearest, as many before as after if there are."""
    start = max(0, min(index - SLICES // 2, size - SLICES - 1))
    return [i for i in range(start, min(start + SLICES + 1, size)) if i != index]


def read_with(own: range, size: int) -> range:
    """All slices that are read for some, themselves included."""
    return range(min([own.start, *beside(own.start, size)]), max([own.stop - 1, *beside(own.stop - 1, size)]) + 1)


@dataclass(frozen=True)
class Background:
    """How a slice follows others in one place.

    Each other slice predicts it by ``level + slope * value``; of those that a cell has, the weighted mean is taken, and
    multiplied by `scale`. All but the last are arrays ``(slices,)``.
    """

    level: FloatArray
    slope: FloatArray
    weight: FloatArray
    scale: float

    def __call__(self, others: FloatArray) -> FloatArray:
        """The background from values ``(slices, ...)``; NaN where all of them are."""
        column = (-1, *[1] * (others.ndim - 1))
        known = np.isfinite(others)
        weight = np.where(known, self.weight.reshape(column), 0.0)
        each = np.where(known, self.level.reshape(column) + self.slope.reshape(column) * others, 0.0)
        total = weight.sum(0)
        with np.errstate(invalid="ignore"):
            return np.asarray(self.scale * (weight * each).sum(0) / np.where(total > 0, total, np.nan))


def background(values: FloatArray, others: FloatArray) -> Background | None:
    """Regress a slice on others in one patch.

    Slopes are those of the differences of near cells, so that what is left is as flat as can be; they are shrunk by how
    far they might be chance. Weights are the inverse squares of the mean squares of what each leaves, and the scale
    is the slope on the weighted mean.

    Parameters
    ----------
    values : array
        ``(rows, cols)``, NaN where missing.
    others : array
        ``(slices, rows, cols)``, likewise.

    Returns
    -------
    Background or None
        None where the others tell nothing.
    """
    values, others = values.astype(float), others.astype(float)
    slope, left = _regress(values, others)
    told = slope != 0
    if not told.any():
        return None
    both = np.isfinite(others) & np.isfinite(values)
    level = np.where(both, values - slope[:, None, None] * others, 0).sum((1, 2)) / np.maximum(both.sum((1, 2)), 1)
    weight = np.zeros(len(others))
    weight[told] = (left[told].min() / left[told]) ** 2
    mean = Background(level, slope, weight, 1.0)
    scale, _ = _regress(values, mean(others)[None])
    return replace(mean, scale=float(scale[0])) if scale[0] else None


def backgrounds(
    values: FloatArray, others: FloatArray, context: FloatArray, targets: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Backgrounds of the context and of the targets of a tile, one pair for all targets that know the same slices.

    What is left must be as large at the context as at the targets, or its standard errors were too small: where a gap
    lies in the most telling slice, too, that slice must not count around the gap either. So targets are parted by the
    slices that decide their background, and each part uses these alone.

    Parameters
    ----------
    values, others : array
        As for :func:`background`.
    context, targets : array
        Values of the others ``(slices, n)`` at the cells of either.

    Returns
    -------
    list
        Pairs of arrays ``(n_context,)`` and ``(n_targets,)``, NaN where there is none; each target has one at most.
    """
    every = background(values, others)
    if every is None:
        return []
    shown, told = (np.isfinite(each) & (every.weight > 0)[:, None] for each in (context, targets))
    found, rest = [], told.any(0)
    if rest.any() and np.abs(shown.mean(1) - told[:, rest].mean(1)).max() > ALIKE:
        weight = told * every.weight[:, None]
        decisive = weight >= DECISIVE * np.maximum(weight.max(0), 1e-300)
        codes = 2 ** np.arange(len(others)) @ decisive
        kinds, counts = np.unique(codes[rest], return_counts=True)
        for kind in kinds[np.argsort(-counts, kind="stable")][:KINDS]:
            same = rest & (codes == kind)
            rest = rest & ~same
            used = decisive[:, same][:, 0]
            if (own := background(values, others[used])) is not None:
                found.append((own(context[used]), np.where(same, own(targets[used]), np.nan)))
    if rest.any():
        found.append((every(context), np.where(rest, every(targets), np.nan)))
    return found


def _regress(values: FloatArray, others: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of the differences of a slice on those of each other: slopes, and mean squares of what is left."""
    n, zz, zs, ss = _block_sums(values, others)
    blocks = np.count_nonzero(n, -1)
    pairs, total, common, own = (each.sum(-1) for each in (n, zz, zs, ss))
    told = (blocks >= LEAST_BLOCKS) & (total * own > 0)
    pairs, total, own = (np.where(told, each, 1.0) for each in (pairs, total, own))
    slope = np.where(told, common / own, 0.0)
    # robust to whatever is alike within a block (Liang and Zeger 1986)
    variance = np.sum((zs - slope[:, None] * ss) ** 2, -1) / own**2 * blocks / np.maximum(blocks - 1, 1)
    kept = np.clip(1 - DOUBTED**2 * variance / np.where(slope == 0, 1.0, slope) ** 2, 0.0, 1.0)
    left = np.maximum(total - kept * (2 - kept) * slope**2 * own, 1e-12 * total) / pairs
    return kept * slope, left


def _block_sums(values: FloatArray, others: FloatArray) -> FloatArray:
    """Over the pairs of cells in each block: their number, and products of the differences, ``(4, slices, blocks)``."""
    sums = []
    for ahead in (np.s_[..., LAG_PX:, :-LAG_PX], np.s_[..., :-LAG_PX, LAG_PX:]):
        dz, ds = (a[ahead] - a[..., :-LAG_PX, :-LAG_PX] for a in (values, others))
        both = np.isfinite(dz) & np.isfinite(ds)
        dz, ds = np.where(both, dz, 0.0), np.where(both, ds, 0.0)
        each = np.stack([both, dz * dz, dz * ds, ds * ds])
        for axis in (-2, -1):
            each = np.add.reduceat(each, range(0, each.shape[axis], BLOCK_PX), axis)
        sums.append(each.reshape(*each.shape[:2], -1))
    return np.asarray(sums[0] + sums[1])
