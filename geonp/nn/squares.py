"""Squares of cells with the observations nearest to them, and the readings that they are conditioned by."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from geonp.raster.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class NearbySettings:
    """Squares of cells that share their observations. Weights are trained with them: other values need others."""

    side_px: int = 4
    """Side of a square."""
    n_context: int = 64
    """Number of its observations: those nearest to it."""
    reach_px: int = 10
    """Largest distance of these from the square, along rows and columns."""
    outlying: float = 12.0
    """Size of a leave-one-out residual, in robust deviations, from which an observation is less certain than others."""
    rounds: int = 3
    """How often outlying observations are looked for."""
    choice_px: int = 16
    """Side of the tiles whose squares use one reading: the one by which observations of two of them are likeliest."""
    df: float = 4.0
    """Degrees of freedom of this likelihood, so that single values do not decide."""
    least: float = 0.5
    """Smallest standard deviation relative to that which the root mean square of the residuals gives."""
    smallest: float = 1e-3
    """Smallest scale of a reading relative to the spread of the values of a tile: one of equal values says nothing of
    others."""

    @property
    def widest_px(self) -> int:
        """Largest difference of two cells of a square and its observations, along rows and columns."""
        return 2 * self.reach_px + self.side_px


NEARBY = NearbySettings()


@dataclass(frozen=True)
class Reading:
    """A stationary process of standardised values, as it was read from a context.

    Attributes
    ----------
    metric, weights : array
        Of the mixtures, ``(mixtures, 2, 2)`` and ``(mixtures, 5)``, see :class:`~geonp.nn.process.LocalProcess`.
    amplitude, constant, noise : float
        Amplitude, and the variances of the unknown constant and of the noise.
    loc, scale : float
        What the values were standardised by.
    unit : float
        Length of one in the locations of the context.
    """

    metric: FloatArray
    weights: FloatArray
    amplitude: float
    constant: float
    noise: float
    loc: float
    scale: float
    unit: float = 1.0


@dataclass(frozen=True)
class Patch:
    """Squares of cells that are predicted together.

    Attributes
    ----------
    values : array
        The patch with a frame of ``NEARBY.reach_px`` cells; NaN where there is no context. Each square has
        ``NEARBY.n_context`` values within this distance.
    missing : array of bool
        Cells of the patch that may be predicted, without the frame.
    corners : array of int
        First row and column of each square in the patch, ``(n, 2)``.
    readings : tuple of Reading
        Candidates.
    steps : tuple of float
        Lengths of the steps from row to row and from column to column, in the unit that units of readings are in.
    """

    values: FloatArray
    missing: BoolArray
    corners: IntArray
    readings: tuple[Reading, ...]
    steps: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class SquareBatch:
    """Context and targets of squares, whose cells are numbered so that differences of numbers are places in a table.

    Attributes
    ----------
    context, targets : Tensor
        Numbers of the cells, ``(n, n_c)`` and ``(n, n_t)``; the last target is repeated.
    y : Tensor
        Values ``(n, n_c)``, nearest first.
    radius : Tensor
        Log distance of the farthest observation from the middle of each square, ``(n,)``.
    depth : Tensor
        Distance of the targets from the nearest observation, along rows and columns, ``(n, n_t)``.
    places : Tensor
        Flat indices of the targets in the patch, ``(n, n_t)``.
    tile : Tensor
        Number of the tile of each square, ascending, ``(n,)``.
    middle, spread : Tensor
        Middle of the range of all values of its tile, and half of its width, ``(n, 1)``.
    """

    context: Tensor
    targets: Tensor
    y: Tensor
    radius: Tensor
    depth: Tensor
    places: Tensor
    tile: Tensor
    middle: Tensor
    spread: Tensor

    def at(self, index: Tensor) -> SquareBatch:
        """Some of the squares."""
        return replace(self, **{field.name: getattr(self, field.name)[index] for field in fields(self)})


@lru_cache(maxsize=1)
def _nearest_first() -> tuple[IntArray, IntArray, FloatArray]:
    """Rows and columns of the cells around a square, from its first cell, nearest first, and their log distances."""
    side, reach = NEARBY.side_px, NEARBY.reach_px
    steps = np.arange(-reach, side + reach)
    row, col = (a.ravel() for a in np.meshgrid(steps, steps, indexing="ij"))
    beyond = (np.maximum(np.maximum(-a, a - side + 1), 0) for a in (row, col))
    centre = np.hypot(row - (side - 1) / 2, col - (side - 1) / 2)
    order = np.lexsort((centre, np.hypot(*beyond)))
    return row[order], col[order], np.log(centre[order].clip(1.0))


def squares_of(patch: Patch) -> SquareBatch:
    """The squares of a patch, in the order of their tiles."""
    side, reach, n_c = NEARBY.side_px, NEARBY.reach_px, NEARBY.n_context
    tile = (patch.corners // NEARBY.choice_px) @ np.array([patch.missing.shape[1], 1])
    order = np.argsort(tile, kind="stable")
    tile, corners = tile[order], patch.corners[order]
    width = 2 * NEARBY.widest_px + 1
    row, col, log_distance = _nearest_first()
    r, c = (corners[:, k, None] + reach + place for k, place in enumerate((row, col)))
    near = patch.values[r, c]
    # the first n_c that are known
    index = np.argsort(np.isnan(near), axis=1, kind="stable")[:, :n_c]
    # targets: the missing cells of each square, the last one repeated
    inside_row, inside_col = np.divmod(np.arange(side * side), side)
    t_row, t_col = corners[:, :1] + inside_row, corners[:, 1:] + inside_col
    wanted = patch.missing[t_row, t_col]
    count = wanted.sum(1, keepdims=True)
    order = np.argsort(~wanted, axis=1, kind="stable")[:, : count.max()]
    order = np.take_along_axis(order, np.minimum(np.arange(count.max()), count - 1), 1)
    t_row, t_col = np.take_along_axis(t_row, order, 1), np.take_along_axis(t_col, order, 1)
    y = np.take_along_axis(near, index, 1).astype(np.float64)
    tile = np.unique(tile, return_inverse=True)[1]
    arrays = (
        row[index] * width + col[index],
        inside_row[order] * width + inside_col[order],
        y,
        log_distance[index[:, -1]],
        _depth(patch)[t_row, t_col],
        t_row * patch.missing.shape[1] + t_col,
        tile,
        *_extremes(y, tile),
    )
    return SquareBatch(*map(torch.from_numpy, arrays))


def _extremes(y: FloatArray, tile: IntArray) -> tuple[FloatArray, FloatArray]:
    """Middle of the range of the values of each tile, and half of its width, ``(n, 1)`` for its squares."""
    first = np.searchsorted(tile, np.arange(tile[-1] + 1))
    low, high = np.minimum.reduceat(y.min(1), first), np.maximum.reduceat(y.max(1), first)
    return (low / 2 + high / 2)[tile, None], (high / 2 - low / 2)[tile, None]


def _depth(patch: Patch) -> FloatArray:
    """Distance of missing cells of a patch from the nearest observation along rows and columns: 1, or 2 for more."""
    known = ~np.isnan(patch.values)
    reach = NEARBY.reach_px
    inner = known[reach - 1 : 1 - reach, reach - 1 : 1 - reach]
    rows = inner[:-2] | inner[1:-1] | inner[2:]
    beside = rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]
    return np.where(beside, 1.0, 2.0)
