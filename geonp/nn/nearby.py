"""Small gaps among many observations: one covariance for a block of tiles, conditioned on the nearest observations.

Cells next to their observations screen all others (Stein 2002), so a small factorisation replaces that of a whole
context, and a covariance that was read nearby replaces that of the gap itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import StudentT

from geonp.nn.covariance import matern_mixture
from geonp.nn.heads import KRIGING
from geonp.nn.layers import MLP
from geonp.nn.likelihood import Conditional, condition
from geonp.nn.process import LocalProcess, soft_clamp
from geonp.nn.residuals import residual_sizes
from geonp.nn.squares import NEARBY, Patch, Reading, SquareBatch, squares_of
from geonp.raster.arrays import BoolArray, FloatArray


@torch.no_grad()
def readings_of(process: LocalProcess, mask: BoolArray, loc: FloatArray, scale: FloatArray) -> list[Reading]:
    """The stationary processes of a batch, with the median amplitude and noise of each context.

    `mask` ``(batch, n_c)`` is that of the context, the last points of the process.
    """
    first, found = process.noise.shape[1] - mask.shape[1], []
    for k, known in enumerate(torch.from_numpy(mask)):
        amplitude, noise = process.amplitudes[k, first:, 0][known].median(), process.noise[k, first:][known].median()
        numbers = amplitude, process.trends[k, 0].square().sum(), noise, loc[k], scale[k]
        found.append(Reading(process.metric[k].numpy(), process.weights[k].numpy(), *map(float, numbers)))
    return found


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
    def of(cls, patch: Patch) -> _Processes:
        """All readings of a patch, of which none is chosen yet."""
        every = [[r.amplitude, r.constant, r.noise, r.loc, r.scale, r.unit] for r in patch.readings]
        amplitude, constant, noise, loc, scale, unit = torch.tensor(every, dtype=torch.float64).split(1, 1)
        metric, weights = (
            torch.from_numpy(np.stack([getattr(r, name) for r in patch.readings])) for name in ("metric", "weights")
        )
        cells = torch.arange(-NEARBY.widest_px, NEARBY.widest_px + 1.0, dtype=torch.float64)
        steps = torch.cartesian_prod(*(cells * step for step in patch.steps)) / unit[:, None]
        x = steps[:, None] @ torch.linalg.cholesky(metric)
        kernel = matern_mixture(x, torch.zeros_like(x[:, :, :1]), weights)[..., 0]
        covariance = (kernel * amplitude.square() + constant).unflatten(1, (len(cells), len(cells)))
        return cls(covariance, noise, loc, scale, torch.empty(0, dtype=torch.long))

    def standard(self, squares: SquareBatch) -> tuple[Tensor, Tensor]:
        """What the values of squares are standardised by, ``(squares, 1)``: by their own if those read are equal."""
        loc, scale = self.loc[self.chosen], self.scale[self.chosen]
        equal = scale < NEARBY.smallest * squares.spread
        return torch.where(equal, squares.middle, loc), torch.where(equal, squares.spread, scale)

    def standardised(self, squares: SquareBatch) -> Tensor:
        """Values of the context, ``(squares, n_c, 1)``."""
        loc, scale = self.standard(squares)
        return ((squares.y - loc) / scale)[..., None]

    def between(self, squares: SquareBatch, context_only: bool = False) -> Tensor:
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
        Conditional mean of new measurements, and their standard deviation times the mean size of the residuals of the
        observations, standardised, ``(n, n_t)``.
    least : Tensor
        Smallest standard deviation after the correction, ``(n, n_t)``. Where most residuals are zero, as beside islands
        in a flat sea, their mean says little of the others.
    features : Tensor
        What the correction reads, ``(n, n_t, n_features)``.
    places : Tensor
        Flat indices of the targets in the patch, ``(n, n_t)``.
    loc, unit : Tensor
        What the values were standardised by, ``(n, 1)``.
    """

    mean: Tensor
    scale: Tensor
    least: Tensor
    features: Tensor
    places: Tensor
    loc: Tensor
    unit: Tensor


_TYPICAL = (
    *((-2.3, 1.7), (0.6, 0.5)),  # log standard deviation, log of one and the size of the mean
    *((0.2, 0.6), (-0.8, 0.4), (0.2, 0.4), (-0.8, 0.4)),  # residuals around the target, and all, over their mean size
    *((0.2, 0.8),) * 4,  # innovations, nearest first, over this size
    *((0.0, 0.6), (0.1, 0.4), (1.65, 0.15)),  # log of this size, outlying observations, radius
    *((-5.0, 2.7), (5.0, 3.6), (1.0, 0.2)),  # log shares of the noise and of the prior variance, depth
)
"""Mean and standard deviation of each feature on synthetic rasters, which they are standardised by."""


class NearbyCorrection(nn.Module):
    """The learned correction of predictions from the nearest observations with a covariance that was read elsewhere.

    It scales the standard deviation and sets the tail, as the correction of
    :class:`~geonp.nn.heads.KrigingHead` does, from the residuals of the observations and from what they share with
    the targets.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.mlp = MLP(len(_TYPICAL), hidden, hidden, 2)
        nn.init.normal_(list(self.mlp.parameters())[-2], std=1e-3)
        mean, deviation = torch.tensor(_TYPICAL).mT
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Standard deviations of new measurements, standardised, and tails, ``(n, n_t)``."""
        features = ((prediction.features.to(self.mean.device) - self.mean) / self.deviation).clamp(-5.0, 5.0)
        log_ratio, tail = self.mlp(features).unbind(-1)
        ratio = torch.exp(soft_clamp(log_ratio, KRIGING.max_log_ratio))
        scale, least = prediction.scale.to(ratio.device), prediction.least.to(ratio.device)
        return torch.maximum(scale * ratio, least), KRIGING.max_tail * torch.sigmoid(tail)

    @torch.no_grad()
    def predict(self, patch: Patch) -> FloatArray:
        """Mean, standard deviation and tail of the missing cells of the squares, ``(3, rows, cols)``, NaN elsewhere."""
        found = predict(patch)
        deviation, tail = self(found)
        out = torch.full((3, patch.missing.size), torch.nan, dtype=torch.float64)
        moments = found.mean * found.unit + found.loc, deviation * found.unit, tail
        out[:, found.places] = torch.stack([moment.double() for moment in moments])
        return out.view(3, *patch.missing.shape).numpy()


@torch.no_grad()
def predict(patch: Patch) -> Prediction:
    """Condition each square of a patch on its nearest observations, by the likeliest of the readings."""
    squares, processes = squares_of(patch), _Processes.of(patch)
    processes = replace(processes, chosen=_likeliest(squares, processes))
    given, noise, kernel = _conditioned(squares, processes)
    n_t, own_noise = squares.targets.shape[1], processes.noise[processes.chosen]
    base, residual = (given.variance + own_noise).sqrt(), given.leave_one_out
    # what the residuals say of the reading, which was made elsewhere
    size = (residual.abs().mean((1, 2)) * math.sqrt(math.pi / 2)).clamp(1e-3, 1e3)[:, None]
    near, overall = residual_sizes(kernel[:, :n_t].clamp_min(0.0).float(), residual / size[..., None], _all(squares.y))
    innovation = (given.innovation[..., 0] / size).square().unflatten(1, (KRIGING.n_rings, -1)).mean(-1)
    outlying = torch.log1p((noise > own_noise * 1.0001).float().sum(1, keepdim=True))
    of_square = torch.cat([(innovation + 0.01).log(), size.log(), outlying, squares.radius[:, None]], 1)
    features = [
        torch.log(base * size)[..., None],
        given.mean.abs().log1p(),
        near,
        overall,
        of_square[:, None].expand(-1, n_t, -1),
        torch.log(own_noise / base.square())[..., None],
        torch.log(processes.variance / base.square())[..., None],
        squares.depth[..., None],
    ]
    read = torch.cat(features, -1).float()
    least = NEARBY.least * base * residual.square().mean((1, 2)).sqrt()[:, None]
    return Prediction(given.mean[..., 0], base * size, least, read, squares.places, *processes.standard(squares))


def _conditioned(squares: SquareBatch, processes: _Processes) -> tuple[Conditional, Tensor, Tensor]:
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


def _likeliest(squares: SquareBatch, processes: _Processes) -> Tensor:
    """Numbers of the readings of all squares ``(n,)``: of each tile, the one by which two of its squares are likeliest.

    The likelihood is that of each observation given the others of its square.
    """
    n, n_tiles = len(processes.covariance), int(squares.tile[-1]) + 1
    # squares of equal values are likely by any reading of equal values
    differ = squares.y.amax(1) > squares.y.amin(1)
    tells = torch.zeros(n_tiles, dtype=torch.bool).index_put((squares.tile[differ],), torch.tensor(True))
    candidates = (differ | ~tells[squares.tile]).nonzero()[:, 0]
    tile = squares.tile[candidates]
    first = torch.searchsorted(tile, torch.arange(n_tiles + 1))
    some = squares.at(candidates[torch.cat([first[:-1], first[1:] - 1])].repeat(n))
    processes = replace(processes, chosen=torch.arange(n).repeat_interleave(2 * n_tiles))
    kernel, y = processes.between(some, context_only=True), processes.standardised(some)
    noise = processes.noise[processes.chosen].expand(y.shape[:2])
    given = condition(kernel, kernel.new_zeros(len(kernel), 0), noise, y, _all(some.y))
    density = StudentT(NEARBY.df).log_prob(given.leave_one_out[..., 0].double()) + 0.5 * given.precision.log()
    each = density.mean(1) - processes.standard(some)[1][:, 0].log()
    best: Tensor = each.view(n, 2, n_tiles).sum(1).argmax(0)
    return best[squares.tile]


def _all(y: Tensor) -> Tensor:
    return torch.ones_like(y, dtype=torch.bool)
