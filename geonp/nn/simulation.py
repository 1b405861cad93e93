"""Conditional simulation of local Gaussian processes that neighbouring tasks draw from the same noise.

Each mixture of Matern kernels is a mixture of Gaussian kernels of all scales: with t from a gamma distribution of shape
nu, the mean of ``exp(-r^2 / (4 t))`` is the Matern correlation of smoothness nu at r. The scales are sorted into bands
of half an octave, the same everywhere. The field of a band is white noise on a lattice, smoothed by a Gaussian with the
metric of the task (a moving average; Oliver 1995). So tasks with similar parameters have similar fields where they
overlap, however far apart they were made, and no lattice is finer than a band needs.

The simulated errors of a task are those of kriging: the field at the targets, less what kriging predicts of it from the
field and the noise at the context (Journel and Huijbregts 1978, section VII.A.1).

Around the Earth the lattices repeat, and so do the fields. The covariance of such a field is the sum over all images of
a point, one for each turn, relative to its variance. Kriging has the same covariance: its weights would amplify a
difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from geonp.nn.blocks import BLOCKS, LOG2E
from geonp.nn.process import LocalProcess
from geonp.raster.arrays import AnyIntArray, Float32Array, FloatArray


@dataclass(frozen=True)
class SimulationSettings:
    """Accuracy of the fields."""

    nodes: float = 1.2
    """Nodes of the lattice of a band per standard deviation of its smoothing; the covariance then is exact to 1e-5."""
    reach: float = 4.0
    """Radius to which noise is summed, in standard deviations of the smoothing."""
    least: float = 0.42
    """Bands with a smaller standard deviation, in cells, are noise of single cells."""
    share: float = 1e-4
    """Bands with a smaller share of the variance of their mixture are left out, and so are fields whose share of the
    variance is smaller at every point."""
    longest: float = 12.0
    """Largest ratio of the axes of an ellipse; longer ones are cut."""
    shift: float = 0.04
    """Added to log2 of a squared scale: between two bands, the variogram at short distances would be 3 % too large."""
    ridge: float = 1e-6
    """Added to the noise of the context, relative to the variance: the weights of kriging amplify rounding errors."""
    constant: float = 0.5
    """Bands whose correlation falls by less than exp(-this) along a whole circle are constant along it, to 1e-8."""
    least_log: float = -20.0
    """Logarithm of the correlation with an image that is left out."""


SIMULATION = SimulationSettings()

_TRENDS, _CELLS, _BANDS, _MOST_BANDS = 0, 1, 2, 256
"""Numbers of the lattices of trends, of the noise of cells and of the first band, and the range of bands."""


class WhiteNoise(Protocol):
    """Noise as of :class:`geonp.inference.noise.Noise`."""

    @property
    def n(self) -> int:
        """Number of samples."""

    def at(self, lattice: int, nodes: Sequence[AnyIntArray]) -> tuple[Float32Array, npt.NDArray[np.int32]]:
        """Noise of the blocks that hold some nodes ``(m, n)``, and for each node its row there."""

    def around(
        self, lattice: int, nodes: AnyIntArray, offsets: AnyIntArray, period: int | None
    ) -> tuple[Float32Array, npt.NDArray[np.int32]]:
        """Noise ``(m, n)``, and its rows for the nodes at all offsets from each of some nodes."""


@dataclass(frozen=True, eq=False)
class Places:
    """Where the points of a task lie.

    Attributes
    ----------
    x : array
        Places of targets and context, in this order, on a plane or in space, ``(n, d)``.
    jacobian : array
        Derivatives of the coordinates of the model by these places, ``(d_x, d)``.
    cells : sequence of array of int
        Numbers that identify a measurement, whose noise they seed, ``(n,)`` for each
        of at most three numbers.
    n_context : int
        Number of points of the context.
    period : float or None
        Distance after which the last coordinate repeats.
    unit : float
        Length that bands are counted from; the same in all tasks.
    finest : float
        Length of a cell, of which :attr:`SimulationSettings.least` is a multiple.
    """

    x: FloatArray
    jacobian: FloatArray
    cells: Sequence[AnyIntArray]
    n_context: int
    period: float | None = None
    unit: float = 1.0
    finest: float = 1.0


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Bands of one mixture: the metric with largest eigenvalue one, numbers of bands and their variances, and rest."""

    metric: FloatArray
    bands: AnyIntArray
    variances: FloatArray
    white: float


def simulate(process: LocalProcess, k: int, points: AnyIntArray, places: Places, noise: WhiteNoise) -> FloatArray:
    """Standardised errors of the predictions of task `k`, jointly simulated.

    Parameters
    ----------
    process : LocalProcess
        Of a batch of tasks.
    points : array of int
        For each place the point of the process whose amplitude and noise it has.
    places : Places
        Of the targets and of the context.

    Returns
    -------
    array
        Errors of new measurements at the targets, with variance one, ``(n_t, n)``, float32.
    """
    n_t = len(points) - places.n_context
    index = torch.from_numpy(points)
    amplitudes, trends, noises = (values[k][index] for values in (process.amplitudes, process.trends, process.noise))
    every = zip(process.metric[k].numpy(), process.weights[k].numpy(), strict=True)
    mixtures = [_mixture(metric, weights, places) for metric, weights in every]
    squares = amplitudes.square().sum(1)
    noises = noises + squares * sum(mixture.white for mixture in mixtures)
    variance = squares * sum(float(mixture.variances.sum()) for mixture in mixtures) + trends.square().sum(1)
    noises[n_t:] += SIMULATION.ridge * variance.max()
    x = torch.from_numpy(places.x / places.unit)
    x = x - x[min(n_t, len(x) - 1)]  # there may be no context
    # float64 throughout: the inverse of a smooth covariance amplifies rounding errors
    circle = None if places.period is None else places.period / places.unit
    kernel = _correlation(x, x[n_t:], mixtures, circle) * (amplitudes @ amplitudes[n_t:].mT) + trends @ trends[n_t:].mT
    kernel[n_t:].diagonal().add_(noises[n_t:])
    factor = torch.linalg.cholesky(kernel[n_t:])
    whitened = torch.linalg.solve_triangular(factor, kernel[:n_t].mT, upper=False)
    left = (variance[:n_t] - whitened.square().sum(0)).clamp_min_(0.0) + noises[:n_t]
    weights = torch.linalg.solve_triangular(factor.mT, whitened, upper=True).mT
    measured = _measured(places, mixtures, amplitudes.float(), trends.float(), noises.float(), noise)
    errors = measured[:n_t] - weights.float() @ measured[n_t:]
    return np.asarray(errors.div_(left.clamp_min(1e-30).sqrt().float()[:, None]))


@lru_cache(maxsize=1)
def _scales() -> tuple[FloatArray, FloatArray]:
    """Squared scales t, as log2, and their shares in each of the five kernels, ``(n,)`` and ``(5, n)``."""
    log_t = np.arange(-24.0, 6.0, 1 / 16)
    t, shapes = 2.0**log_t, np.array([0.5, 1.5, 2.5, 3.5])[:, None]
    gamma = np.exp(shapes * np.log(t) - t)
    gaussian = np.zeros((1, t.size))
    # exp(-r^2 / 10)
    gaussian[0, np.abs(log_t - math.log2(2.5)).argmin()] = 1.0
    return log_t, np.concatenate([gamma / gamma.sum(1, keepdims=True), gaussian])


def _mixture(metric: FloatArray, weights: FloatArray, places: Places) -> _Mixture:
    """A mixture in bands, by places instead of coordinates of the model.

    A scale between two bands is divided between them. Scales are those along the shortest axis.
    """
    lengths, axes = np.linalg.eigh(places.jacobian.T @ metric @ places.jacobian)
    # on a sphere in space, the direction that the model does not know
    unknown = len(lengths) - len(metric)
    lengths[:unknown] = lengths[unknown]
    largest = float(lengths[-1])
    shape = (axes * np.maximum(lengths / largest, SIMULATION.longest**-2)) @ axes.T
    log_t, shares = _scales()
    # bands are numbered by log2 of the squared standard deviation of the smoothing, in units
    place = log_t - math.log2(largest * places.unit**2) + SIMULATION.shift
    below = np.floor(place).astype(np.int64)
    share, first = weights @ shares, int(below[0])
    size = int(below[-1]) - first + 2
    variances = np.bincount(below - first, share * (below + 1 - place), size)
    variances += np.bincount(below - first + 1, share * (place - below), size)
    bands = first + np.arange(size)
    white = places.unit * 2.0 ** (bands / 2) < SIMULATION.least * places.finest
    kept = ~white & (variances > SIMULATION.share * weights.sum())
    return _Mixture(shape, bands[kept], variances[kept], float(variances[white].sum()))


def _correlation(xq: Tensor, xk: Tensor, mixtures: Sequence[_Mixture], circle: float | None) -> Tensor:
    """Covariance of fields of all bands, ``(n_q, n_k)``, of places in units; the last one repeats after a circle."""
    out = xq.new_zeros(len(xq), len(xk))
    length = float(xq[:, -1].max() - xq[:, -1].min())
    # blocks of rows stay in the cache of a processor
    for rows in range(0, len(xq), BLOCKS.rows):
        apart, block = (xq[rows : rows + BLOCKS.rows, None] - xk).unbind(-1), out[rows : rows + BLOCKS.rows]
        squared, work = torch.empty_like(block), torch.empty_like(block)
        for mixture in mixtures:
            if circle is not None and _meets_itself(mixture, circle, length):
                block += _on_circle(apart, mixture, circle)
                continue
            squared.zero_()
            for i, j in np.ndindex(mixture.metric.shape):
                squared.addcmul_(apart[i], apart[j], value=float(mixture.metric[i, j]) * -LOG2E / 4)
            for band, variance in zip(mixture.bands.tolist(), mixture.variances.tolist(), strict=True):
                # numbers below the smallest normal ones would take ten times as long
                torch.mul(squared, 2.0**-band, out=work).clamp_min_(-100.0).exp2_()
                block.add_(work, alpha=variance)
    return out


def _fall(mixture: _Mixture, band: int, distance: float) -> float:
    """How far the logarithm of the correlation of a band falls within a distance along the last coordinate."""
    return float(mixture.metric[-1, -1]) * distance**2 * 2.0**-band / 4


def _meets_itself(mixture: _Mixture, circle: float, length: float) -> bool:
    """Whether a point of a task correlates with images of others, a circle away."""
    apart = max(circle - length, 0.0)
    return any(_fall(mixture, band, apart) < -SIMULATION.least_log for band in mixture.bands.tolist())


def _turns(fall: float) -> range:
    """Numbers of the images of a point at most half a circle away that correlate with it."""
    most = math.ceil(math.sqrt(-SIMULATION.least_log / fall) + 0.5)
    return range(-most, most + 1)


def _on_circle(apart: Sequence[Tensor], mixture: _Mixture, circle: float) -> Tensor:
    """Covariance of the fields of a mixture at distances along each dimension, of which the last one is a circle."""
    along, shift = mixture.metric[-1, -1], mixture.metric[-1, :-1] / mixture.metric[-1, -1]
    across = mixture.metric[:-1, :-1] - along * np.outer(shift, shift)
    turn = apart[-1] / circle
    squared = torch.zeros_like(turn)
    for i, part in enumerate(apart[:-1]):
        turn = turn + float(shift[i]) / circle * part
        for j, other in enumerate(apart[:-1]):
            squared.addcmul_(part, other, value=float(across[i, j]) / -4)
    turn -= turn.round()
    out = torch.zeros_like(turn)
    for band, variance in zip(mixture.bands.tolist(), mixture.variances.tolist(), strict=True):
        found, fall = torch.exp(squared * 2.0**-band), _fall(mixture, band, circle)
        if fall >= SIMULATION.constant:
            images = sum(torch.exp(-fall * (turn + k).square()) for k in _turns(fall))
            found *= images / sum(math.exp(-fall * k**2) for k in _turns(fall))
        out.add_(found, alpha=variance)
    return out


def _measured(
    places: Places,
    mixtures: Sequence[_Mixture],
    amplitudes: Tensor,
    trends: Tensor,
    noises: Tensor,
    noise: WhiteNoise,
) -> Tensor:
    """Measurements of the process at all places, ``(n, samples)``, float32."""
    values, index = noise.at(_TRENDS, [np.arange(trends.shape[1])])
    out = trends @ torch.from_numpy(values[index])
    values, index = noise.at(_CELLS, places.cells)
    out.addcmul_(noises.sqrt()[:, None], torch.from_numpy(values[index]))
    shares = amplitudes.square() / amplitudes.square().sum(1, keepdim=True)
    for field in (shares.amax(0) > SIMULATION.share).nonzero()[:, 0].tolist():
        for number, mixture in enumerate(mixtures):
            for band, variance in zip(mixture.bands.tolist(), mixture.variances.tolist(), strict=True):
                lattice = _BANDS + (field * len(mixtures) + number) * _MOST_BANDS + band % _MOST_BANDS
                smoothed = _smoothed(places, mixture, band, variance, lattice, noise)
                out.addcmul_(amplitudes[:, field, None], torch.from_numpy(smoothed))
    return out


def _reaches(metric: FloatArray, unit: FloatArray) -> list[int]:
    """Number of nodes before and after the nearest one of a place that its sum reaches, along each dimension.

    `unit` is the distance of nodes, in standard deviations of the smoothing.
    """
    radius = SIMULATION.reach / unit + 0.5
    return [int(n) for n in np.ceil(radius * np.sqrt(np.diag(np.linalg.inv(metric))))]


def _smoothed(
    places: Places, mixture: _Mixture, band: int, variance: float, lattice: int, noise: WhiteNoise
) -> FloatArray:
    """The field of a band at all places, ``(n, samples)``: a sum of Gaussians around the nodes of its lattice."""
    deviation = places.unit * 2.0 ** (band / 2)
    step = np.full(places.x.shape[1], deviation / SIMULATION.nodes)
    around = None
    if places.period is not None:
        fall = _fall(mixture, band, places.period / places.unit)
        around = 1 if fall < SIMULATION.constant else math.ceil(places.period / step[-1])
        if around > 1:
            step[-1] = places.period / around
        fall = _fall(mixture, band, around * step[-1] / places.unit)
        variance /= sum(math.exp(-fall * k**2) for k in _turns(fall))
    scaled = places.x / step
    nearest = np.rint(scaled)
    # in units of the standard deviation of the smoothing
    unit = step / deviation
    reaches = _reaches(mixture.metric, unit)
    scale = math.sqrt(variance * math.sqrt(np.linalg.det(mixture.metric)) * unit.prod() / math.pi ** (len(unit) / 2))
    metric = mixture.metric * np.outer(unit, unit)
    offsets = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in reaches), indexing="ij"), -1).reshape(-1, len(unit))
    apart = ((offsets @ metric) * offsets).sum(1)
    kept = apart <= (SIMULATION.reach + 0.5 * unit.max()) ** 2
    here = (scaled - nearest) @ metric
    # exp(-(f - o)' M (f - o) / 2) is a product over dimensions but for a factor of each place and one of each node
    weights = scale * np.exp(-((here * (scaled - nearest)).sum(1) / 2))
    product = torch.from_numpy(weights.astype(np.float32)).view(-1, *[1] * len(reaches))
    for axis, reach in enumerate(reaches):
        factor = np.exp(here[:, axis, None] * np.arange(-reach, reach + 1)).astype(np.float32)
        shape = [len(factor), *(factor.shape[1] if k == axis else 1 for k in range(len(reaches)))]
        product = product * torch.from_numpy(factor).view(shape)
    smoothing = product.flatten(1)[:, torch.from_numpy(np.flatnonzero(kept))]
    smoothing = smoothing * torch.from_numpy(np.exp(-apart[kept] / 2).astype(np.float32))
    values, index = noise.around(lattice, nearest.astype(np.int64), offsets[kept], around)
    starts = np.arange(0, index.size + 1, index.shape[1], dtype=np.int32)
    matrix = sparse.csr_matrix((smoothing.numpy().ravel(), index.ravel(), starts), shape=(len(index), len(values)))
    return np.asarray(matrix @ values)
