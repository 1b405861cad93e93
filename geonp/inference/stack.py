"""Neighbouring slices of a stack as predictors of a slice, as the days before and after a cloudy day.

Where another slice has a value, a regression on the neighbouring slices gives a background, from all cells around a
tile. The model predicts the residual, so standard errors are those of the residual; if it can, with the slices as
covariates, whose effect may vary in space. Cell by cell, the kernel weighs this prediction and the one from the slice
alone, see :func:`combined`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial import KDTree

from geonp.raster.arrays import BoolArray, Float64Array, FloatArray


@dataclass(frozen=True)
class StackSettings:
    """Settings of the regression on neighbouring slices, chosen on the stacks of ``benchmarks/across.py``."""

    slices: int = 8
    """Largest number of neighbouring slices that are read along a dimension."""
    frame_px: int = 32
    """Width of the frame around a tile in which slices are compared, in cells."""
    lag_px: int = 2
    """Distance of the cells whose differences are compared: levels of smooth fields correlate by chance."""
    sparse: float = 0.1
    """If slices share fewer pairs of cells at this distance for each common cell, nearest common cells are compared."""
    nearest: int = 3
    """Number of these that each common cell is compared with."""
    block_px: int = 16
    """Side of the blocks that are treated as independent."""
    min_blocks: int = 4
    """Slices that share fewer blocks are not used."""
    max_doubt: float = 2.5
    """Slopes smaller than this many standard errors are set to zero; larger ones are shrunk."""
    decisive: float = 0.1
    """Slices with a smaller share of the largest weight at a cell do not define its group."""
    groups: int = 3
    """Largest number of groups of targets, by the slices that know them, with a regression of their own."""
    known: float = 0.95
    """Share of the cells of a group that a slice must know to be their covariate."""
    sharpness: float = 8.0
    """Power of the ratio of standard errors by which :func:`combined` weighs two predictions. The mean of both errors
    is at most 4 % above the smaller one. A jump between the predictions is spread over cells whose ratio is near 1."""
    tolerance: float = 0.2
    """Targets are split into groups only if slice coverage differs between context and targets by more than this."""


STACK = StackSettings()


@dataclass(frozen=True)
class Across:
    """A dimension along which slices are filled from each other.

    Attributes
    ----------
    dim : hashable
    positions : tuple of float
        Position of each slice, of which only the differences matter, such as times.
    periods : tuple of float
        Periods that the slices span, such as a year.
    """

    dim: Hashable
    positions: tuple[float, ...]
    periods: tuple[float, ...] = ()


def first_positioned(across: Sequence[Across]) -> Across | None:
    """The first dimension whose slices have positions, such as times, if any."""
    return next((dim for dim in across if dim.positions), None)


def beside(index: int, positions: Sequence[float], slices: int | None = None) -> list[int]:
    """The neighbouring slices of a slice: the nearest by position, in ascending order; `slices` or fewer.

    Of slices as far away, the nearest by index are taken, and of these the earlier one.
    """
    numbers = np.arange(len(positions))
    order = np.lexsort((np.abs(numbers - index), np.abs(np.asarray(positions) - positions[index])))
    return sorted(order[order != index][: STACK.slices if slices is None else slices].tolist())


@dataclass(frozen=True)
class Background:
    """A local regression of a slice on others.

    Each other slice predicts ``level + slope * value``. The background is `scale` times the weighted mean of the
    predictions by the slices that a cell has. `level`, `slope` and `weight` are arrays ``(slices,)``.
    """

    level: FloatArray
    slope: FloatArray
    weight: FloatArray
    scale: float

    def __call__(self, others: FloatArray) -> FloatArray:
        """The background from values ``(slices, ...)``; NaN where all of them are NaN."""
        column = (-1, *[1] * (others.ndim - 1))
        known = np.isfinite(others)
        weight = np.where(known, self.weight.reshape(column), 0.0)
        each = np.where(known, self.level.reshape(column) + self.slope.reshape(column) * others, 0.0)
        total = weight.sum(0)
        with np.errstate(invalid="ignore"):
            return np.asarray(self.scale * (weight * each).sum(0) / np.where(total > 0, total, np.nan))


def background(values: FloatArray, others: FloatArray) -> Background | None:
    """Regress a slice ``(rows, cols)`` on others ``(slices, rows, cols)`` in one patch; None if none is correlated.

    Slopes are estimated from differences of near cells, so that the residual is as flat as possible, and shrunk by
    their uncertainty. Weights are inverse squares of the mean squared residuals. The scale is the slope on the weighted
    mean.
    """
    values, others = values.astype(float), others.astype(float)
    slope, residual = _regress(values, others)
    used = slope != 0
    if not used.any():
        return None
    both = np.isfinite(others) & np.isfinite(values)
    level = np.where(both, values - slope[:, None, None] * others, 0).sum((1, 2)) / np.maximum(both.sum((1, 2)), 1)
    weight = np.zeros(len(others))
    weight[used] = (residual[used].min() / residual[used]) ** 2
    mean = Background(level, slope, weight, 1.0)
    scale, _ = _regress(values, mean(others)[None])
    return replace(mean, scale=float(scale[0])) if scale[0] else None


def backgrounds(
    values: FloatArray, others: FloatArray, context: FloatArray, targets: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Backgrounds of the context and the targets of a tile, for groups of targets that are known to the same slices.

    Residuals must be as large at the context as at the targets, or standard errors would be too small: a slice with the
    same gap must not be used around the gap either. So targets are grouped by the slices that dominate their
    background, and the regression of each group uses only these. That of targets beyond the largest groups leaves out
    slices that no target knows.

    Parameters
    ----------
    values, others : array
        As for :func:`background`.
    context, targets : array
        Values of the others at the context and at the targets, ``(slices, n)``.

    Returns
    -------
    list
        For each group the backgrounds of the context ``(n_context,)`` and of the targets ``(n_targets,)``, NaN where
        there is none. Each target is in at most one group.
    """
    regression = background(values, others)
    if regression is None:
        return []
    in_context, in_targets = (np.isfinite(known) & (regression.weight > 0)[:, None] for known in (context, targets))
    pairs, rest = [], in_targets.any(0)
    if rest.any() and np.abs(in_context.mean(1) - in_targets[:, rest].mean(1)).max() > STACK.tolerance:
        weight = in_targets * regression.weight[:, None]
        decisive = weight >= STACK.decisive * np.maximum(weight.max(0), 1e-300)
        codes = 2 ** np.arange(len(others)) @ decisive
        groups, counts = np.unique(codes[rest], return_counts=True)
        for group in groups[np.argsort(-counts, kind="stable")][: STACK.groups]:
            same = rest & (codes == group)
            rest = rest & ~same
            used = decisive[:, same][:, 0]
            if (own := background(values, others[used])) is not None:
                pairs.append((own(context[used]), np.where(same, own(targets[used]), np.nan)))
    if rest.any():
        used = (regression.weight == 0) | in_targets.any(1)
        left = regression if used.all() else background(values, others[used])
        if left is not None:
            pairs.append((left(context[used]), np.where(rest, left(targets[used]), np.nan)))
    return pairs


def combined(alone: Float64Array, beside: Float64Array) -> Float64Array:
    """Weighted means of two predictions, in which the one with the smaller standard error dominates.

    At the rim of a gap, slices with gaps of their own may predict worse than the slice alone. Weights are inverse
    powers (:attr:`StackSettings.sharpness`) of the standard errors, so the result has no edge where one prediction
    replaces the other. The standard error is the weighted mean of both, because the errors of one cell are correlated,
    and the spread of the two means is added, as in a mixture.

    Parameters
    ----------
    alone, beside : array
        ``(outputs, ...)``: mean, standard error and others. NaN where there is no prediction.
    """
    weight = weight_beside(alone[1], beside[1])
    both = alone + weight * (beside - alone)
    both[1] = np.hypot(both[1], np.sqrt(weight * (1 - weight)) * (beside[0] - alone[0]))
    return np.where(np.isnan(alone[1]), beside, np.where(np.isnan(beside[1]), alone, both))


def weight_beside(alone: Float64Array, beside: Float64Array) -> Float64Array:
    """Weights of the second of two predictions in :func:`combined`, by their standard errors."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weight = 1 / (1 + (beside / alone) ** STACK.sharpness)
    # both may be certain
    return np.where(np.isnan(weight), 0.5, weight)


def share_of_error(alone: Float64Array, beside: Float64Array, weight: Float64Array) -> Float64Array:
    """Share of the second of two predictions in the error of their weighted mean, from their standard errors.

    Zero where there is no second prediction, and one where there is no first one. Both may be certain.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share = weight * beside / ((1 - weight) * alone + weight * beside)
    return np.where(np.isnan(beside), 0.0, np.where(np.isnan(alone), 1.0, np.nan_to_num(share)))


def _regress(values: FloatArray, others: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Shrunk slopes of the differences of a slice on those of each other slice, and mean squared residuals."""
    n, zz, zs, ss = _block_sums(values, others)
    blocks = np.count_nonzero(n, -1)
    pairs, total, common, own = (sums.sum(-1) for sums in (n, zz, zs, ss))
    valid = (blocks >= STACK.min_blocks) & (total * own > 0)
    pairs, total, own = (np.where(valid, sums, 1.0) for sums in (pairs, total, own))
    slope = np.where(valid, common / own, 0.0)
    # robust to correlation within a block (Liang and Zeger, 1986)
    variance = np.sum((zs - slope[:, None] * ss) ** 2, -1) / own**2 * blocks / np.maximum(blocks - 1, 1)
    kept = np.clip(1 - STACK.max_doubt**2 * variance / np.where(slope == 0, 1.0, slope) ** 2, 0.0, 1.0)
    residual = np.maximum(total - kept * (2 - kept) * slope**2 * own, 1e-12 * total) / pairs
    return kept * slope, residual


def _block_sums(values: FloatArray, others: FloatArray) -> FloatArray:
    """Number of pairs of cells in each block, and sums of products of differences: ``(4, slices, blocks)``."""
    lag, sums = STACK.lag_px, []
    for ahead in (np.s_[..., lag:, :-lag], np.s_[..., :-lag, lag:]):
        dz, ds = (a[ahead] - a[..., :-lag, :-lag] for a in (values, others))
        both = np.isfinite(dz) & np.isfinite(ds)
        dz, ds = np.where(both, dz, 0.0), np.where(both, ds, 0.0)
        blocks = np.stack([both, dz * dz, dz * ds, ds * ds])
        for axis in (-2, -1):
            blocks = np.add.reduceat(blocks, range(0, blocks.shape[axis], STACK.block_px), axis)
        sums.append(blocks.reshape(*blocks.shape[:2], -1))
    found = np.asarray(sums[0] + sums[1])
    common = np.isfinite(values) & np.isfinite(others)
    for k in np.flatnonzero(found[0].sum(-1) < STACK.sparse * np.count_nonzero(common, (1, 2))):
        found[:, k] = _sums_of_nearest(values, others[k], common[k], found.shape[-1])
    return found


def _sums_of_nearest(values: FloatArray, other: FloatArray, common: BoolArray, blocks: int) -> FloatArray:
    """As :func:`_block_sums`, of the differences of each common cell from the nearest ones: ``(4, blocks)``."""
    places = np.argwhere(common)
    if len(places) < 2:
        return np.zeros((4, blocks))
    near = KDTree(places).query(places, np.arange(2, min(STACK.nearest + 1, len(places)) + 1))[1]
    pairs = np.stack([np.arange(len(places)).repeat(near.shape[1]), near.ravel()])
    first, second = np.unique(np.sort(pairs, axis=0), axis=1)
    dz, ds = (a[common][second] - a[common][first] for a in (values, other))
    across = -(-(values.shape[1] - STACK.lag_px) // STACK.block_px)
    row, col = (np.minimum(places[first], np.array(values.shape) - STACK.lag_px - 1) // STACK.block_px).T
    return np.stack([np.bincount(row * across + col, w, blocks) for w in (np.ones_like(dz), dz * dz, dz * ds, ds * ds)])
