"""Classical methods that fill a slice of a stack from the other slices, each with a standard error.

None of them has a standard error of its own. It is measured as a careful user would: the root mean square error of
observed cells of the slice, predicted in the same way. A slice without any lends its place to the one nearest to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from geonp.evaluation.baselines import linear
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray


@dataclass(frozen=True)
class AcrossSettings:
    """Settings of the methods: those of common practice, not tuned to any stack."""

    harmonics: int = 2  # of the year and of the day
    strengths: tuple[float, ...] = tuple(10.0**k for k in range(-3, 6))  # of the penalty of Whittaker's smoother
    sample: int = 256  # series that the strength is chosen by
    batch: int = 4096  # series solved together
    most_modes: int = 16
    cells: int = 20_000  # that the number of modes is chosen by
    held_out: float = 0.25  # share of the observed cells of the slice that the number of modes is chosen by
    tolerance: float = 1e-3  # change of the missing values, in standard deviations, at which modes have converged
    iterations: int = 60


SETTINGS = AcrossSettings()


@dataclass(frozen=True, eq=False)
class Stack:
    """The other slices of a stack.

    Attributes
    ----------
    others : array
        ``(slices, y, x)``, NaN where missing; at least one value is not.
    positions, position : array ``(slices,)``, float
        Positions of the others and of the slice, such as times.
    periods : tuple of float
        Periods that the positions span, such as a year.
    """

    others: FloatArray
    positions: Float64Array
    position: float
    periods: tuple[float, ...] = ()

    @property
    def nearest(self) -> int:
        """The slice nearest to the one that is filled."""
        return int(np.abs(self.positions - self.position).argmin())

    def instead(self) -> tuple[FloatArray, Stack]:
        """The nearest slice, and the stack without it that it is filled from."""
        k = self.nearest
        rest = np.arange(len(self.positions)) != k
        return self.others[k], Stack(self.others[rest], self.positions[rest], float(self.positions[k]), self.periods)


def predict_across(
    method: str, values: FloatArray, stack: Stack, rng: np.random.Generator
) -> tuple[Float64Array, Float64Array]:
    """Fill the gaps of a slice ``(y, x)`` from the others of a stack by one of :data:`ACROSS_METHODS`.

    Means and standard errors are in the units of the values; the error is 0 where observed. Cells that no other slice
    observes are interpolated linearly in space. Where a method predicts none, all are the mean of the stack. `rng`
    draws the cells that the number of modes is chosen by; :data:`HARMONIC` needs periods.
    """
    predicted, error = ACROSS_METHODS[method](values, stack, rng)
    known = np.where(np.isfinite(values), values, predicted)
    if not np.isfinite(known).any():
        known = np.full(known.shape, np.nanmean(stack.others))
    mean = linear(known)
    return np.asarray(mean, np.float64), np.where(np.isnan(values), error, 0.0)


def _of_series(predict: Callable[[Stack], Float64Array]) -> Callable[[FloatArray, Stack, np.random.Generator], Any]:
    """A method that predicts each cell from its own series, with its root mean square error."""

    def method(values: FloatArray, stack: Stack, rng: np.random.Generator) -> tuple[Float64Array, float]:
        predicted = predict(stack)
        residual = predicted - values
        if not np.isfinite(residual).any():
            truth, rest = stack.instead()
            residual = predict(rest) - truth if len(rest.positions) else residual
        known = residual[np.isfinite(residual)]
        error = np.sqrt(np.mean(known**2)) if known.size else np.nanstd(stack.others)
        return predicted, float(error)

    return method


def _linear(stack: Stack) -> Float64Array:
    """Linear between the nearest slices before and after that observe a cell, constant beyond the last of them."""
    known, lag = np.isfinite(stack.others), np.asarray(stack.positions) - stack.position
    distances, found = [], []
    for side in (lag <= 0, lag > 0):
        distance = np.where(known & side[:, None, None], np.abs(lag)[:, None, None], np.inf)
        nearest = distance.argmin(0)[None]
        distances.append(np.take_along_axis(distance, nearest, 0)[0])
        found.append(np.where(np.isfinite(distances[-1]), np.take_along_axis(stack.others, nearest, 0)[0], np.nan))
    (before, after), (first, second) = distances, found
    with np.errstate(invalid="ignore"):
        weight = np.where(np.isinf(after), 0.0, np.where(np.isinf(before), 1.0, before / (before + after)))
    return np.where(np.isinf(after), first, np.where(np.isinf(before), second, first + weight * (second - first)))


def _harmonic(stack: Stack) -> Float64Array:
    """Harmonics of the periods, by least squares; NaN in cells with too few observations for them."""
    design, there = (_harmonics(t, stack.periods) for t in (stack.positions, np.array([stack.position])))
    out = np.full(stack.others.shape[1:], np.nan)
    for cells, series in _batches(stack.others):
        known = np.isfinite(series)
        enough = known.sum(1) > design.shape[1]
        gram = np.einsum("cs,si,sj->cij", known * 1.0, design, design) + 1e-9 * np.eye(design.shape[1])
        right = np.where(known, series, 0.0) @ design
        found = np.linalg.solve(gram, right[..., None])[..., 0] @ there[0]
        out.ravel()[cells] = np.where(enough, found, np.nan)
    return out


def _harmonics(positions: Float64Array, periods: tuple[float, ...]) -> Float64Array:
    angles = [2 * np.pi * k * positions / period for period in periods for k in range(1, SETTINGS.harmonics + 1)]
    return np.stack([np.ones_like(positions), *map(np.cos, angles), *map(np.sin, angles)], -1)


def _whittaker(stack: Stack) -> Float64Array:
    """Whittaker's smoother (Eilers, Analytical Chemistry 75, 2003) with second differences divided by their steps.

    The strength of the penalty is that of the smallest leave-one-out error of some series.
    """
    where, place = np.unique(np.append(stack.positions, stack.position), return_inverse=True)
    target, count = int(place[-1]), np.zeros((len(stack.positions), where.size))
    count[np.arange(len(stack.positions)), place[:-1]] = 1.0
    steps = np.diff(where) / (np.median(np.diff(where)) if where.size > 1 else 1.0)
    bends = np.zeros((max(where.size - 2, 0), where.size))
    for k, (left, right) in enumerate(itertools.pairwise(steps)):
        slopes = np.array([1 / left, -1 / left - 1 / right, 1 / right])
        bends[k, k : k + 3] = slopes * np.sqrt(2 / (left + right))
    penalty = bends.T @ bends
    sample = next(_batches(stack.others, SETTINGS.sample))[1]
    strength = min(SETTINGS.strengths, key=lambda one: _left_out(sample, count, one * penalty))
    out = np.full(stack.others.shape[1:], np.nan)
    for cells, series in _batches(stack.others):
        known = np.isfinite(series)
        patterns, which = np.unique(known, axis=0, return_inverse=True)
        aim = np.zeros((where.size, 1))
        aim[target] = 1.0
        weights = np.linalg.solve(_systems(patterns, count, strength * penalty), aim[None])[..., 0] @ count.T
        level = _levels(series)
        departures = np.where(known, series - level, 0.0)
        out.ravel()[cells] = level[:, 0] + (weights[which.ravel()] * departures).sum(1)
    return out


def _systems(known: BoolArray, count: Float64Array, penalty: Float64Array) -> Float64Array:
    """Normal equations ``(n, places, places)``; a weak pull to the mean where observations determine no line."""
    identity = np.eye(count.shape[1])
    return (known @ count)[:, :, None] * identity + penalty + 1e-6 * identity


def _levels(series: Float64Array) -> Float64Array:
    known = np.isfinite(series)
    return np.asarray(np.where(known, series, 0.0).sum(1, keepdims=True) / np.maximum(known.sum(1, keepdims=True), 1))


def _left_out(series: Float64Array, count: Float64Array, penalty: Float64Array) -> float:
    """Mean square error of leaving out one value after the other."""
    known, level, place = np.isfinite(series), _levels(series), count.argmax(1)
    inverse = np.linalg.inv(_systems(known, count, penalty))
    fit = level + np.einsum("cij,cj->ci", inverse, np.where(known, series - level, 0.0) @ count)
    influence = np.diagonal(inverse, axis1=1, axis2=2)[:, place]
    errors = (np.where(known, series, 0.0) - fit[:, place]) / np.maximum(1 - influence, 1e-6)
    return float((errors[known] ** 2).mean()) if known.any() else np.inf


def _dineof(values: FloatArray, stack: Stack, rng: np.random.Generator) -> tuple[Float64Array, float]:
    """DINEOF (Beckers and Rixen, Journal of Atmospheric and Oceanic Technology 20, 2003).

    The number of modes is that of the smallest error of cells that are held out: of a part of the observed cells of
    the slice, or of all cells of the nearest one if it has none.
    """
    every = np.concatenate([values[None], stack.others]).reshape(len(stack.others) + 1, -1).astype(np.float32)
    cells = np.isfinite(every).any(0)
    every = every[:, cells]
    mean, spread = float(np.nanmean(every, dtype=np.float64)), float(np.nanstd(every, dtype=np.float64)) or 1.0
    every, observed = (every - mean) / spread, np.isfinite(every)
    part = np.s_[:, :: -(-every.shape[1] // SETTINGS.cells)]
    modes, error = _best_modes(every[part], 1 + stack.nearest, rng)
    found = np.where(observed, every, 0.0)
    for n in range(1, modes + 1):  # each number of modes starts from the last one
        found = _converged(found, ~observed, n)
    out = np.full(values.size, np.nan)
    out[cells] = mean + spread * found[0]
    return out.reshape(values.shape), spread * error


def _best_modes(every: FloatArray, nearest: int, rng: np.random.Generator) -> tuple[int, float]:
    """The number of modes with the smallest root mean square error of cells that are held out, and this error."""
    observed, held = np.isfinite(every), np.zeros(every.shape, bool)
    held[0] = observed[0] & (rng.random(every.shape[1]) < SETTINGS.held_out)
    if not held.any():
        held[nearest] = observed[nearest]
    kept, errors = observed & ~held, [np.inf]
    filled = np.where(kept, every, 0.0)
    for modes in range(1, min(SETTINGS.most_modes, len(every) - 1) + 1):
        filled = _converged(filled, ~kept, modes)
        errors.append(float(np.sqrt(np.mean((filled - every)[held] ** 2))))
        if len(errors) > 3 and errors[-1] > errors[-2] > errors[-3]:
            break
    best = int(np.argmin(errors[1:])) + 1 if len(errors) > 1 else 1
    return best, min(errors) if len(errors) > 1 else 1.0


def _converged(filled: FloatArray, missing: BoolArray, modes: int) -> FloatArray:
    """Replace missing values by the sum of the leading modes, until they change no more."""
    for _ in range(SETTINGS.iterations):
        vectors = np.linalg.eigh(filled @ filled.T)[1][:, -modes:]
        new = np.where(missing, vectors @ (vectors.T @ filled), filled)
        change = np.sqrt(np.mean((new - filled)[missing] ** 2)) if missing.any() else 0.0
        filled = new
        if change < SETTINGS.tolerance:
            break
    return filled


def _batches(others: FloatArray, most: int | None = None) -> Iterator[tuple[IntArray, Float64Array]]:
    """Cells that any slice observes, at most `most`, as flat indices, and their series ``(n, slices)``."""
    series = others.reshape(len(others), -1)
    cells = np.flatnonzero(np.isfinite(series).any(0))
    if most is not None:
        cells = cells[np.unique(np.linspace(0, max(cells.size - 1, 0), most).astype(int))[: cells.size]]
    for start in range(0, max(cells.size, 1), SETTINGS.batch):
        part = cells[start : start + SETTINGS.batch]
        yield part, series[:, part].T.astype(np.float64)


HARMONIC = "harmonic"
"""Name of the method that needs periods."""

ACROSS_METHODS: dict[str, Callable[[FloatArray, Stack, np.random.Generator], tuple[Float64Array, float]]] = {
    "linear_across": _of_series(_linear),
    HARMONIC: _of_series(_harmonic),
    "whittaker": _of_series(_whittaker),
    "dineof": _dineof,
}
"""Methods that fill a slice from other slices, by name."""
