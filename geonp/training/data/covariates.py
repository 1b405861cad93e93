"""Covariates of synthetic fields: co-located fields of all kinds, and the values that depend on some of them.

Effects are linear in random coefficients with known variances. Where the field is Gaussian and the covariates have no
gaps, the exact conditional distribution of the targets, given the context and the covariates, is known therefore.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import fft, linalg

from geonp.inference.context import Neighbourhood, select_context
from geonp.raster.arrays import BoolArray, Float64Array, IntArray
from geonp.training.data.constraints import Count, PositiveRange, Probability
from geonp.training.data.fields import Field, RasterPrior, log_uniform, sample_field

N_KNOWN = 96
"""Known cells of a covariate that its gaps are filled from."""


@dataclass(frozen=True)
class CovariatePrior:
    """Distribution of drawn covariates and known errors; amplitudes are in standard deviations of the field.

    Attributes
    ----------
    share : float
        Share of the tasks that have covariates.
    most : int
        Covariates of a task, at most.
    p_stack : float
        Share of these tasks whose covariates are other slices of a stack: noisy views of a common field.
    p_irrelevant : float
        Probability that a covariate has no effect.
    strength : tuple of float
        Standard deviation of an effect.
    p_gaps : float
        Probability that a slice of a stack has gaps of its own; half as much for other covariates.
    p_planes : float
        Probability that the row and the column are covariates too.
    p_wide_planes : float
        Share of the tasks with wide gaps whose only covariates are the row and the column: a plane.
    p_errors : float
        Probability that the standard errors of the observations are known.
    """

    share: Probability = 0.0
    most: Count = 8
    p_stack: Probability = 0.35
    p_irrelevant: Probability = 0.45
    strength: PositiveRange = (0.15, 8.0)
    p_gaps: Probability = 0.5
    p_planes: Probability = 0.1
    p_wide_planes: Probability = 0.6
    p_errors: Probability = 0.1


@dataclass(frozen=True)
class Accompanied:
    """A field with covariates at the points of a task, the context first.

    Attributes
    ----------
    values : array
        The field with the effects and the errors of its observations, ``(size * size,)``.
    columns, errors : array
        Covariates ``(n_c + n_t, p)``, NaN where unknown, and their standard errors.
    known_error : array
        Known standard errors of the context, ``(n_c,)``.
    covariance : array or None
        What the effects and the known errors add to the covariance of all points with the context; None if it is not
        known.
    variance : array
        Its diagonal, ``(n_c + n_t,)``, without the known errors.
    """

    values: Float64Array
    columns: Float64Array
    errors: Float64Array
    known_error: Float64Array
    covariance: Float64Array | None
    variance: Float64Array


@dataclass(frozen=True)
class CovariateTile:
    """Flat indices of context and targets in a window, its missing cells, and how context is chosen."""

    size: int
    context: IntArray
    targets: IntArray
    missing: BoolArray
    neighbourhood: Neighbourhood

    @property
    def points(self) -> IntArray:
        """Flat indices of context and targets."""
        return np.concatenate([self.context, self.targets])


def accompany(
    rng: np.random.Generator,
    prior: CovariatePrior,
    fields: RasterPrior,
    sample: Field,
    context: IntArray,
    targets: IntArray,
    missing: BoolArray,
    neighbourhood: Neighbourhood,
    *,
    wide: bool = False,
) -> Accompanied:
    """Draw covariates for a field, and add their effects and errors of the observations to it.

    Parameters
    ----------
    fields : RasterPrior
        What the fields of covariates are drawn from.
    sample : Field
    context, targets : array of int
        Flat indices into the window.
    missing : array of bool
        The missing cells of the window; gaps of covariates may be the same.
    wide : bool
        Whether gaps are wide.
    """
    tile = CovariateTile(missing.shape[0], context, targets, missing, neighbourhood)
    values, n_c = sample.values.ravel().astype(np.float64), context.size
    planes = np.stack(np.divmod(tile.points, tile.size), -1).astype(np.float64)
    if wide and rng.random() < prior.p_wide_planes:
        nothing = np.zeros((tile.points.size, n_c)), np.zeros(tile.points.size)
        return Accompanied(values, planes, np.zeros_like(planes), np.zeros(n_c), *nothing)
    number = int(rng.integers(1, prior.most + 1))
    covariance, variance = np.zeros((tile.points.size, n_c)), np.zeros(tile.points.size)
    exact = True
    if rng.random() < prior.p_stack:
        values, columns, errors = _stack(rng, prior, fields, tile, values, max(number, 2))
        exact = False
    else:
        columns, errors = np.empty((tile.points.size, number)), np.zeros((tile.points.size, number))
        previous: Float64Array | None = None
        for j in range(number):
            field = _covariate(rng, fields, tile.size, previous)
            previous = field.values
            if rng.random() >= prior.p_irrelevant:
                effect = _effects(rng, previous.ravel(), tile.size) * log_uniform(rng, prior.strength)
                values = values + effect @ rng.standard_normal(effect.shape[1])
                at = effect[tile.points]
                covariance += at @ at[:n_c].T
                variance += (at**2).sum(1)
                relevant = True
            else:
                relevant = False
            columns[:, j] = previous.ravel()[tile.points]
            if field.covariance is not None and rng.random() < prior.p_gaps / 2:
                columns[:, j], errors[:, j] = with_gaps(rng, tile, previous, field.covariance, field.noise)
                exact = exact and not relevant
    if rng.random() < prior.p_planes:
        columns, errors = np.concatenate([columns, planes], 1), np.pad(errors, ((0, 0), (0, 2)))
    known_error = np.zeros(n_c)
    if rng.random() < prior.p_errors:
        known_error = log_uniform(rng, (0.05, 1.0)) * np.exp(0.7 * rng.standard_normal(n_c))
        values = values.copy()
        values[context] += known_error * rng.standard_normal(n_c)
        covariance[:n_c] += np.diag(known_error**2)
    order = rng.permutation(columns.shape[1])
    return Accompanied(
        values, columns[:, order], errors[:, order], known_error, covariance if exact else None, variance
    )


def _covariate(rng: np.random.Generator, fields: RasterPrior, size: int, previous: Float64Array | None) -> Field:
    """A field, a class of one, noise, or a field that is correlated with the `previous` covariate."""
    way = rng.random()
    if way < 0.08:
        return Field(rng.standard_normal((size, size)), None, 0.0, 0.0)
    field = _draw(rng, fields, size)
    if way < 0.3 and previous is not None:
        mixed = field.values + rng.uniform(0.3, 3.0) * previous / max(float(previous.std()), 1e-6)
        return Field(mixed, None, 0.0, 0.0)
    if way < 0.45:
        inside = field.values > np.quantile(field.values, rng.uniform(0.15, 0.85))
        return Field(inside.astype(np.float64), None, 0.0, 0.0)
    return field


def _draw(rng: np.random.Generator, fields: RasterPrior, size: int) -> Field:
    """A field without a trend, periodic on the window: nothing is asked of it beyond."""
    return sample_field(rng, replace(fields, p_trend=0.0), size, fft.next_fast_len(size, real=True))


def _effects(rng: np.random.Generator, covariate: Float64Array, size: int) -> Float64Array:
    """Functions of a covariate whose random multiples are its effect, ``(size * size, k)``, their variances one."""
    c = (covariate - covariate.mean()) / max(float(covariate.std()), 1e-6)
    way = rng.choice(["slope", "curve", "steps", "varying"], p=[0.6, 0.2, 0.1, 0.1])
    if way == "slope":
        return np.asarray(c[:, None])
    if way == "steps":
        found = [c > np.quantile(c, q) for q in rng.uniform(0.1, 0.9, rng.integers(1, 4))]
    elif way == "curve":
        bend, turn = rng.uniform(-1.5, 1.5), rng.uniform(0.8, 3.0)
        found = [c, (c**2, np.abs(c - bend), np.tanh(turn * (c - bend)), np.sin(turn * c + bend))[rng.integers(4)]]
    else:
        rows, cols = (i.ravel() / size - 0.5 for i in np.indices((size, size)))
        angle, waves = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 4.0)
        phase = 2 * np.pi * waves * (np.cos(angle) * rows + np.sin(angle) * cols)
        found = [c, c * np.sin(phase), c * np.cos(phase)]
    each = np.stack([np.asarray(f, np.float64) for f in found], -1)
    return np.asarray((each - each.mean(0)) / np.maximum(each.std(0), 1e-6) / np.sqrt(each.shape[1]))


def _stack(
    rng: np.random.Generator,
    prior: CovariatePrior,
    fields: RasterPrior,
    tile: CovariateTile,
    values: Float64Array,
    number: int,
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Values that share a field with other slices, and these with their errors."""
    size = tile.size
    # only of Gaussian fields are gaps filled with their exact errors
    gapped = rng.random() < prior.p_gaps
    fields = replace(fields, p_gaussian=1.0) if gapped else fields
    common = _draw(rng, fields, size)
    values = values + log_uniform(rng, prior.strength) * common.values.ravel()
    columns, errors = np.empty((tile.points.size, number)), np.zeros((tile.points.size, number))
    similar = rng.random() < 0.5
    own_scale = log_uniform(rng, (0.05, 2.0))
    for j in range(number):
        own = _draw(rng, fields, size)
        share, weight = own_scale * log_uniform(rng, (0.5, 2.0)), rng.choice([1.0, 1.0, 1.0, -1.0, 0.0])
        if similar:
            weight = rng.uniform(0.6, 1.2)
        slice_ = weight * common.values + share * own.values
        columns[:, j] = slice_.ravel()[tile.points]
        if gapped and common.covariance is not None and own.covariance is not None and rng.random() < 0.6:
            covariance = weight**2 * common.covariance + share**2 * own.covariance
            noise = float(np.hypot(weight * common.noise, share * own.noise))
            columns[:, j], errors[:, j] = with_gaps(rng, tile, slice_, covariance, noise)
    return values, columns, errors


def with_gaps(
    rng: np.random.Generator, tile: CovariateTile, field: Float64Array, covariance: Float64Array, noise: float
) -> tuple[Float64Array, Float64Array]:
    """Values and standard errors of a Gaussian field at the points of a tile, filled in gaps, now and then unknown."""
    way, size = rng.random(), tile.size
    if way < 0.45:
        hidden = tile.missing
    else:
        cells = _draw(rng, RasterPrior(length=(5.0, 40.0), p_gaussian=1.0, p_noise=0.0), size).values
        hidden = cells > np.quantile(cells, rng.uniform(0.3, 0.95))
        hidden = hidden | tile.missing if way < 0.55 else hidden
    values = field.ravel()[tile.points].copy()
    errors = np.zeros(values.size)
    lost = hidden.ravel()[tile.points]
    if not lost.any() or np.count_nonzero(~hidden) < N_KNOWN:
        return values, errors
    if rng.random() < 0.15:
        values[lost] = np.nan
        return values, errors
    wanted = np.zeros(size * size, bool)
    wanted[tile.points[lost]] = True
    chosen = select_context(
        ~hidden, wanted.reshape(size, size), replace(tile.neighbourhood, n_context=N_KNOWN), rng.random()
    )
    asked, torus = tile.points[lost], covariance.shape[0]
    rows, cols = np.divmod(np.concatenate([chosen, asked]), size)
    near = slice(chosen.size)
    k = covariance[(rows[:, None] - rows[None, near]) % torus, (cols[:, None] - cols[None, near]) % torus]
    k = k.astype(np.float64)
    k[near][np.diag_indices(chosen.size)] += noise**2 + 1e-6
    factor = linalg.cholesky(k[near], lower=True, check_finite=False)
    solved = linalg.solve_triangular(factor, k[chosen.size :].T, lower=True, check_finite=False)
    known = linalg.solve_triangular(factor, field.ravel()[chosen], lower=True, check_finite=False)
    values[lost] = solved.T @ known
    errors[lost] = np.sqrt(np.maximum(covariance[0, 0] + noise**2 - (solved**2).sum(0), 1e-8))
    return values, errors
