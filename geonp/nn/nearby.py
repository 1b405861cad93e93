"""Small gaps among many observations: one covariance for a block of tiles, conditioned on the nearest observations.

Cells next to their observations screen all others (Stein 2002), so a small factorisation replaces that of a whole
context, and a covariance that was read nearby replaces that of the gap itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.distributions import StudentT

from geonp.nn.covariance import matern_mixture
from geonp.nn.heads import KRIGING, residual_sizes
from geonp.nn.layers import MLP
from geonp.nn.likelihood import Conditional, condition
from geonp.nn.process import LocalProcess, soft_clamp

__all__ = ["NEARBY", "NearbyCorrection", "NearbySettings", "Patch", "Prediction", "Reading", "readings_of"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class NearbySettings:
    """Squares of cells that share their observations. Weights are trained with them: other values need others."""

    side_px: int = 4
    """Side of a square."""
    n_context: int = 64
    """Number of its observations: those nearest to it."""
    reach_px: int = 10
    """Largest distance of these from the square, along rows and columns."""
    outlying: float = 6.0
    """Size of a leave-one-out residual, in robust deviations, from which an observation is less certain than others."""
    rounds: int = 3
    """How often outlying observations are looked for."""
    choice_px: int = 16
    """Side of the tiles whose squares use one reading: the one by which observations of two of them are likeliest."""
    df: float = 4.0
    """Degrees of freedom of this likelihood, so that single values do not decide."""

    @property
    def widest_px(self) -> int:
        """Largest difference of two cells of a square and its observations, along rows and columns."""
        return 2 * self.reach_px + self.side_px


NEARBY = NearbySettings()
"""The settings in use."""


@dataclass(frozen=True)
class Reading:
    """A stationary process of standardised values, as it was read from a context.

    Attributes
    ----------
    covariance : array
        At differences of rows and columns of up to :attr:`NearbySettings.widest_px` cells, ``(n, n)``.
    noise : float
        Variance of the noise.
    loc, scale : float
        What the values were standardised by.
    """

    covariance: FloatArray
    noise: float
    loc: float
    scale: float


@torch.no_grad()
def readings_of(process: LocalProcess, mask: BoolArray, loc: FloatArray, scale: FloatArray) -> list[Reading]:
    """The stationary processes of a batch, with the median amplitude and noise of each context.

    `mask` ``(batch, n_c)`` is that of the context, the last points of the process.
    """
    steps = torch.arange(-NEARBY.widest_px, NEARBY.widest_px + 1.0, dtype=torch.float64)
    differences = torch.cartesian_prod(steps, steps) @ torch.linalg.cholesky(process.metric)
    kernel = matern_mixture(differences, torch.zeros_like(differences[:, :, :1]), process.weights)[..., 0]
    first, found = process.noise.shape[1] - mask.shape[1], []
    for k, known in enumerate(torch.from_numpy(mask)):
        amplitude, noise = process.amplitudes[k, first:, 0][known].median(), process.noise[k, first:][known].median()
        covariance = kernel[k] * amplitude.square() + process.trends[k, 0].square().sum()
        table = covariance.view(len(steps), len(steps)).numpy()
        found.append(Reading(table, float(noise), float(loc[k]), float(scale[k])))
    return found


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
    """

    values: FloatArray
    missing: BoolArray
    corners: IntArray
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class _Squares:
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
    """

    context: Tensor
    targets: Tensor
    y: Tensor
    radius: Tensor
    depth: Tensor
    places: Tensor
    tile: Tensor

    def at(self, index: Tensor) -> _Squares:
        """Some of the squares."""
        return replace(self, **{field.name: getattr(self, field.name)[index] for field in fields(self)})


@dataclass(frozen=True)
class _Processes:
    """Readings of squares: `covariance` ``(readings, n, n)``; `noise`, `loc` and `scale` ``(readings, 1)``.

    `chosen` ``(squares,)`` is the number of the reading of each square.
    """

    covariance: Tensor
    noise: Tensor
    loc: Tensor
    scale: Tensor
    chosen: Tensor

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> _Processes:
        """All readings, of which none is chosen yet."""
        tables = torch.from_numpy(np.stack([reading.covariance for reading in readings]))
        numbers = torch.tensor([[r.noise, r.loc, r.scale] for r in readings], dtype=torch.float64)
        noise, loc, scale = numbers.split(1, 1)
        return cls(tables, noise, loc, scale, torch.empty(0, dtype=torch.long))

    def standardised(self, squares: _Squares) -> Tensor:
        """Values of the context, ``(squares, n_c, 1)``."""
        return ((squares.y - self.loc[self.chosen]) / self.scale[self.chosen])[..., None]

    def between(self, squares: _Squares, context_only: bool = False) -> Tensor:
        """Covariance of targets and context, in this order, with the context, ``(squares, n_t + n_c, n_c)``."""
        every = squares.context if context_only else torch.cat([squares.targets, squares.context], 1)
        size = self.covariance[0].numel()
        first = size * self.chosen[:, None] + size // 2
        return self.covariance.take(every[:, :, None] + (first - squares.context)[:, None])

    @property
    def variance(self) -> Tensor:
        """Prior variance, ``(squares, 1)``."""
        return self.covariance[self.chosen, NEARBY.widest_px, NEARBY.widest_px][:, None]


@dataclass(frozen=True)
class Prediction:
    """Predictions of squares conditioned on their observations, before the correction.

    Attributes
    ----------
    mean, scale : Tensor
        Conditional mean and standard deviation of new measurements, standardised, ``(n, n_t)``.
    features : Tensor
        What the correction reads, ``(n, n_t, n_features)``.
    places : Tensor
        Flat indices of the targets in the patch, ``(n, n_t)``.
    loc, unit : Tensor
        What the values were standardised by, ``(n, 1)``.
    """

    mean: Tensor
    scale: Tensor
    features: Tensor
    places: Tensor
    loc: Tensor
    unit: Tensor


class NearbyCorrection(nn.Module):
    """The learned correction of predictions from the nearest observations with a covariance that was read elsewhere.

    It scales the standard deviation and sets the tail, as the correction of
    :class:`~geonp.nn.heads.KrigingHead` does, from the residuals of the observations and from what they share with
    the targets.
    """

    n_features = 15

    mean: Tensor
    deviation: Tensor

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.mlp = MLP(self.n_features, hidden, hidden, 2)
        nn.init.normal_(list(self.mlp.parameters())[-2], std=1e-3)
        self.register_buffer("mean", torch.zeros(self.n_features))
        self.register_buffer("deviation", torch.ones(self.n_features))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Factor of the standard deviation and tail, for features ``(..., n_features)``."""
        standard = ((features - self.mean) / self.deviation).clamp(-5.0, 5.0)
        log_ratio, tail = self.mlp(standard).unbind(-1)
        return torch.exp(soft_clamp(log_ratio, KRIGING.max_log_ratio)), KRIGING.max_tail * torch.sigmoid(tail)

    def corrected(self, prediction: Prediction) -> StudentT:
        """Student distributions of standardised values, ``(n, n_t)``."""
        ratio, tail = self(prediction.features)
        deviation = prediction.scale * ratio * (1 - 2 * tail).sqrt()
        return StudentT(1 / tail, prediction.mean, deviation, validate_args=False)

    @torch.no_grad()
    def predict(self, patch: Patch) -> FloatArray:
        """Mean, standard deviation and tail of the missing cells of the squares, ``(3, rows, cols)``, NaN elsewhere."""
        found = predict(patch)
        ratio, tail = self(found.features)
        out = torch.full((3, patch.missing.size), torch.nan, dtype=torch.float64)
        moments = found.mean * found.unit + found.loc, found.scale * ratio * found.unit, tail
        out[:, found.places] = torch.stack([moment.double() for moment in moments])
        return out.view(3, *patch.missing.shape).numpy()


@torch.no_grad()
def predict(patch: Patch) -> Prediction:
    """Condition each square of a patch on its nearest observations, by the likeliest of the readings."""
    squares, processes = _squares(patch), _Processes.of(patch.readings)
    processes = replace(processes, chosen=_likeliest(squares, processes))
    given, noise, kernel = _conditioned(squares, processes)
    n_t, own_noise = squares.targets.shape[1], processes.noise[processes.chosen]
    scale = (given.variance + own_noise).sqrt()
    near, overall = residual_sizes(kernel[:, :n_t].clamp_min(0.0).float(), given.leave_one_out, _all(squares.y))
    groups = torch.log(given.innovation[..., 0].square().unflatten(1, (KRIGING.n_rings, -1)).mean(-1) + 0.01)
    outlying = torch.log1p((noise > own_noise * 1.0001).float().sum(1, keepdim=True))
    features = [
        scale.log()[..., None],
        given.mean.abs(),
        near,
        overall,
        groups[:, None].expand(-1, n_t, -1),
        torch.log(own_noise / scale.square())[..., None],
        torch.log(processes.variance / scale.square())[..., None],
        torch.cat([outlying, squares.radius[:, None]], 1)[:, None].expand(-1, n_t, -1),
        squares.depth[..., None],
    ]
    standard = processes.loc[processes.chosen], processes.scale[processes.chosen]
    return Prediction(given.mean[..., 0], scale, torch.cat(features, -1).float(), squares.places, *standard)


def _conditioned(squares: _Squares, processes: _Processes) -> tuple[Conditional, Tensor, Tensor]:
    """Condition squares on their observations; also their noise variances and the covariance.

    Observations that the others contradict get the variance of their residual as further noise, as Student-distributed
    errors would, one in each neighbourhood at a time.
    """
    kernel, y = processes.between(squares), processes.standardised(squares)
    n, n_t = squares.targets.shape
    prior = processes.variance.expand(n, n_t)
    noise = processes.noise[processes.chosen].repeat(1, NEARBY.n_context)
    given = condition(kernel, prior, noise, y, _all(squares.y))
    open_ = torch.arange(n)
    for _ in range(NEARBY.rounds):
        residual = given.leave_one_out[open_, :, 0].double().abs()
        typical = residual.median(1, keepdim=True).values * 1.4826
        outlying = residual > NEARBY.outlying * typical.clamp_min(1.0)
        hit = outlying.any(1)
        open_, outlying, residual = open_[hit], outlying[hit], residual[hit]
        if not len(open_):
            break
        outlying &= residual >= _largest_around(residual, squares.context[open_])
        further = (residual.square() - 1) / given.precision[open_]
        noise[open_] = torch.where(outlying, noise[open_] + further, noise[open_])
        again = condition(kernel[open_], prior[open_], noise[open_], y[open_], _all(y[open_, :, 0]))
        for field in fields(Conditional):
            getattr(given, field.name)[open_] = getattr(again, field.name)
    return given, noise, kernel


def _largest_around(residual: Tensor, context: Tensor) -> Tensor:
    """Largest residual within three cells of each observation."""
    width = 2 * NEARBY.widest_px + 1
    row, col = context.div(width, rounding_mode="floor"), context % width
    squared = (row[:, :, None] - row[:, None]).square() + (col[:, :, None] - col[:, None]).square()
    return torch.where(squared <= 9, residual[:, None], 0.0).amax(2)


def _likeliest(squares: _Squares, processes: _Processes) -> Tensor:
    """Numbers of the readings of all squares ``(n,)``: of each tile, the one by which two of its squares are likeliest.

    The likelihood is that of each observation given the others of its square.
    """
    n, n_tiles = len(processes.covariance), int(squares.tile[-1]) + 1
    first = torch.searchsorted(squares.tile, torch.arange(n_tiles + 1))
    some = squares.at(torch.cat([first[:-1], first[1:] - 1]).repeat(n))
    processes = replace(processes, chosen=torch.arange(n).repeat_interleave(2 * n_tiles))
    kernel, y = processes.between(some, context_only=True), processes.standardised(some)
    noise = processes.noise[processes.chosen].expand(y.shape[:2])
    given = condition(kernel, kernel.new_zeros(len(kernel), 0), noise, y, _all(some.y))
    density = StudentT(NEARBY.df).log_prob(given.leave_one_out[..., 0].double()) + 0.5 * given.precision.log()
    each = density.mean(1) - processes.scale[processes.chosen][:, 0].log()
    best: Tensor = each.view(n, 2, n_tiles).sum(1).argmax(0)
    return best[squares.tile]


def _all(y: Tensor) -> Tensor:
    return torch.ones_like(y, dtype=torch.bool)


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


def _squares(patch: Patch) -> _Squares:
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
    arrays = (
        row[index] * width + col[index],
        inside_row[order] * width + inside_col[order],
        np.take_along_axis(near, index, 1).astype(np.float64),
        log_distance[index[:, -1]],
        _depth(patch)[t_row, t_col],
        t_row * patch.missing.shape[1] + t_col,
        np.unique(tile, return_inverse=True)[1],
    )
    return _Squares(*map(torch.from_numpy, arrays))


def _depth(patch: Patch) -> FloatArray:
    """Distance of the cells of a patch from the nearest observation along rows and columns: 0, 1, or 2 and more."""
    known = ~np.isnan(patch.values)
    reach = NEARBY.reach_px
    inner = known[reach - 1 : 1 - reach, reach - 1 : 1 - reach]
    rows = inner[:-2] | inner[1:-1] | inner[2:]
    beside = rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]
    return np.where(beside, 1.0, 2.0)
