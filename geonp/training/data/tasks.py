"""Pretraining tasks: synthetic random fields with simulated gaps, tiled as for filling.

For a Gaussian field of :mod:`geonp.training.data.fields`, the training target is the exact conditional distribution of
the targets given the context, computed from the covariance of the field: it has the same optimum as sampled values and
less noise. For other fields the targets are the values themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import fft, linalg

from geonp.inference.context import Neighbourhood, halo_for, select_context, standardise
from geonp.inference.stitching import overlaps
from geonp.inference.tiling import groups
from geonp.raster import gaps
from geonp.raster.arrays import Array, BoolArray, Float32Array, Float64Array, IntArray
from geonp.training.data.covariates import Accompanied, CovariatePrior, accompany
from geonp.training.data.fields import Field, RasterPrior, log_uniform, sample_field


@dataclass(frozen=True)
class Task:
    """Context and targets of one tile, standardised by the context.

    Attributes
    ----------
    xc, xt : array
        Locations of context ``(n_c, 2)`` and targets ``(n_t, 2)``: (row, col) in cells from the centre of the tile.
    yc : array
        Context values, ``(n_c,)``.
    mean, variance : array
        ``(n_t,)``. If `exact`, the conditional moments of a new measurement, else the measured value and zero.
    exact : bool
        Whether the field is Gaussian, so that its conditional distribution is known.
    kind : str
        Kind of gaps.
    beside : TaskCovariates, optional
        Covariates and known errors.
    """

    xc: Float32Array
    yc: Float32Array
    xt: Float32Array
    mean: Float32Array
    variance: Float32Array
    exact: bool
    kind: str
    beside: TaskCovariates | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class TaskCovariates:
    """Covariates of a task and known errors of its context.

    Attributes
    ----------
    context, targets : array
        Covariates ``(n_c, p)`` and ``(n_t, p)``, in their own units.
    context_error, target_error : array
        Their standard errors.
    known_error : array
        Known standard errors of the context values, in the units of ``Task.yc``, ``(n_c,)``.
    """

    context: Float32Array
    targets: Float32Array
    context_error: Float32Array
    target_error: Float32Array
    known_error: Float32Array


def sample_task(
    rng: np.random.Generator,
    prior: RasterPrior,
    neighbourhood: Neighbourhood,
    n_targets: int,
    covariates: CovariatePrior | None = None,
) -> Task:
    """Draw one task with at most ``neighbourhood.n_context`` context points and `n_targets` targets."""
    wide = rng.random() < prior.p_wide
    halo = neighbourhood.reach_px if wide else neighbourhood.halos_px[0]
    px, draw = neighbourhood.tile_px, rng.random()
    single = draw >= prior.p_small_tile + prior.p_large_tile
    tile = px // 2 if draw < prior.p_small_tile else px if single else px * neighbourhood.merge
    while True:
        size = tile + 2 * halo
        kind, observed, domain = _observed(rng, prior, size, wide)
        missing = domain & ~observed
        if tile > px and not _merged(groups(missing, observed, halo, neighbourhood), tile - px):
            cut, size = (tile - px) // 2, px + 2 * halo
            observed, domain, missing = (m[cut : cut + size, cut : cut + size] for m in (observed, domain, missing))
        own = without_frame(missing, halo)
        if not own.any() or np.count_nonzero(observed) < neighbourhood.min_context:
            continue
        sample = sample_field(rng, prior, size, fft.next_fast_len(2 * size if wide else max(2 * size, 256), real=True))
        window = without_frame(observed, halo - halo_for(observed, neighbourhood) if wide else 0)
        context = select_context(window, own, neighbourhood, rng.random())
        targets = rng.permutation(np.flatnonzero(missing & predicted_mask(observed, halo, neighbourhood)))[:n_targets]
        # constant context cannot be standardised
        if np.ptp(sample.values.ravel()[context]) > 0:
            scattered = kind == "random" and rng.random() < prior.p_scattered
            rotation = _rotation(rng) if scattered else None
            if covariates is None or rng.random() >= covariates.share:
                return task_of(sample, context, targets, size, kind, rotation)
            beside = accompany(rng, covariates, prior, sample, context, targets, missing, neighbourhood, wide=wide)
            return task_of(sample, context, targets, size, kind, rotation, beside)


def _merged(corners: list[IntArray], extent: int) -> bool:
    """Whether tiles with these corners, by group, form a single group whose corners span `extent` cells."""
    return len(corners) == 1 and bool((np.ptp(corners[0], axis=0) == extent).all())


def _rotation(rng: np.random.Generator) -> Float64Array:
    """Rotation and scaling of coordinates, which makes a sparse lattice look like scattered locations."""
    angle, scale = rng.uniform(0, 2 * np.pi), log_uniform(rng, (0.25, 1.0))
    return scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def without_frame(mask: BoolArray, width: int) -> BoolArray:
    """Copy of `mask` that is False in a frame of `width` cells."""
    out = np.zeros_like(mask)
    inner = np.s_[width : mask.shape[0] - width, width : mask.shape[1] - width]
    out[inner] = mask[inner]
    return out


def predicted_mask(observed_mask: BoolArray, halo: int, neighbourhood: Neighbourhood) -> BoolArray:
    """Mask of the cells that the central tile of a window predicts: the tile itself and its overlap."""
    index = np.arange(observed_mask.shape[0])
    outside = np.maximum(np.maximum(halo - index, index - (observed_mask.shape[0] - 1 - halo)), 0)
    return np.asarray(np.maximum(outside[:, None], outside[None, :]) <= overlaps(observed_mask, neighbourhood))


def task_of(
    sample: Field,
    context: IntArray,
    targets: IntArray,
    size: int,
    kind: str,
    rotation: Float64Array | None,
    beside: Accompanied | None = None,
) -> Task:
    """The task of predicting cells `targets` of a field from its cells `context`, standardised by these."""
    values = sample.values.ravel() if beside is None else beside.values
    standard = standardise(values[context])
    exact = sample.covariance is not None and (beside is None or beside.covariance is not None)
    if exact:
        mean, variance = conditional_moments(sample, context, targets, size, beside)
    else:
        mean, variance = values[targets], np.zeros(targets.size)
    xc, xt = (np.stack(np.divmod(i, size), -1) - (size - 1) / 2 for i in (context, targets))
    if rotation is not None:
        xc, xt = xc @ rotation, xt @ rotation
    return Task(
        xc.astype(np.float32),
        standard.z,
        xt.astype(np.float32),
        ((mean - standard.loc) / standard.scale).astype(np.float32),
        (variance / standard.scale**2 + 1e-6 * exact).astype(np.float32),
        exact,
        kind,
        beside=None if beside is None else _beside(beside, context.size, standard.scale),
    )


def _beside(drawn: Accompanied, n_c: int, scale: float) -> TaskCovariates:
    columns, errors = drawn.columns.astype(np.float32), drawn.errors.astype(np.float32)
    known = (drawn.known_error / scale).astype(np.float32)
    return TaskCovariates(columns[:n_c], columns[n_c:], errors[:n_c], errors[n_c:], known)


def conditional_moments(
    sample: Field,
    context: IntArray,
    targets: IntArray,
    size: int,
    beside: Accompanied | None = None,
) -> tuple[Float64Array, Float64Array]:
    """Exact mean and variance of new measurements at `targets`, given those at `context` and the covariates."""
    assert sample.covariance is not None
    torus = sample.covariance.shape[0]
    points = np.concatenate([context, targets])
    rows, cols = np.divmod(points, size)
    n_c = context.size
    k = sample.covariance[(rows[:, None] - rows[None, :n_c]) % torus, (cols[:, None] - cols[None, :n_c]) % torus]
    centred = np.stack([rows, cols], -1) / size - 0.5
    k = k + sample.trend**2 * (centred @ centred[:n_c].T)
    k[:n_c][np.diag_indices(n_c)] += sample.noise**2 + 1e-6
    values = sample.values.ravel()
    prior = sample.covariance[0, 0] + sample.noise**2 + sample.trend**2 * (centred[n_c:] ** 2).sum(-1)
    if beside is not None:
        assert beside.covariance is not None
        values, k, prior = beside.values, k + beside.covariance, prior + beside.variance[n_c:]
    factor = linalg.cholesky(k[:n_c], lower=True, check_finite=False)
    solved = linalg.solve_triangular(factor, k[n_c:].T, lower=True, check_finite=False)
    y = linalg.solve_triangular(factor, values[context], lower=True, check_finite=False)
    return solved.T @ y, np.maximum(prior - (solved**2).sum(0), 0.0)


# --- gaps -------------------------------------------------------------------------------------------------------------


def _observed(rng: np.random.Generator, prior: RasterPrior, size: int, wide: bool) -> tuple[str, BoolArray, BoolArray]:
    """Draw the kind of gaps, the observed mask and the domain mask of one window."""
    names = list(prior.gap_weights)
    weights = np.array([prior.gap_weights[name] for name in names])
    kind = str(rng.choice(names, p=weights / weights.sum()))
    missing = _gaps(rng, kind, size, wide)
    if rng.random() < 0.1:
        missing |= _gaps(rng, str(rng.choice(names)), size, wide=False)
    domain = _domain(rng, size) if rng.random() < prior.p_domain else np.ones((size, size), bool)
    return kind, domain & ~missing, domain


def _gaps(rng: np.random.Generator, kind: str, size: int, wide: bool) -> BoolArray:
    shape = (size, size)
    if kind == "random":
        if wide:
            return gaps.random_gaps(shape, 1 - log_uniform(rng, (0.0015, 0.03)), rng)
        dense = rng.random() < 0.55
        return gaps.random_gaps(shape, rng.uniform(0.01, 0.85) if dense else rng.uniform(0.85, 0.985), rng)
    if kind == "clouds":
        fraction = rng.uniform(0.6, 0.9) if wide else rng.uniform(0.03, 0.7)
        return gaps.cloud_gaps(shape, fraction, rng, log_uniform(rng, (20.0, 80.0) if wide else (3.0, 40.0)))
    if kind == "stripes":
        angle = None if rng.random() < 0.5 else rng.uniform(0, np.pi)
        period, wedge = log_uniform(rng, (4.0, 60.0)), rng.uniform(0, 0.9)
        return gaps.stripe_gaps(shape, rng.uniform(0.05, 0.6), rng, period, angle, wedge)
    if kind == "swath":
        return gaps.swath_gaps(shape, rng.uniform(0.1, 0.6), rng)
    return gaps.block_gaps(shape, rng.uniform(0.03, 0.6), rng, log_uniform(rng, (3.0, 40.0)))


def _domain(rng: np.random.Generator, size: int) -> BoolArray:
    """Draw a domain mask: a ragged coast, a small raster within the window, or one or two edges of a large one."""
    domain, draw = np.ones((size, size), bool), rng.random()
    if draw < 0.35:
        return ~gaps.cloud_gaps((size, size), rng.uniform(0.1, 0.6), rng, log_uniform(rng, (8.0, 60.0)))
    if draw < 0.55:
        for axis in range(2):
            side = int(log_uniform(rng, (12.0, size)))
            first = rng.integers(max(size // 2 - side, 0), min(size // 2, size - side) + 1)
            np.moveaxis(domain, axis, 0)[:first] = False
            np.moveaxis(domain, axis, 0)[first + side :] = False
        return domain
    for _ in range(rng.integers(1, 3)):
        edge = int(rng.uniform(0.0, 0.48) * size)
        np.moveaxis(domain, rng.integers(2), 0)[:: rng.choice([-1, 1])][:edge] = False
    return domain


# --- batches ----------------------------------------------------------------------------------------------------------


def collate(tasks: list[Task], n_context: int, n_targets: int) -> dict[str, Array]:
    """Pad tasks to one shape: arrays ``(batch, n)`` or ``(batch, n, features)``; masks are True where not padded."""
    batch = len(tasks)
    out = {
        "xc": np.zeros((batch, n_context, 2), np.float32),
        "yc": np.zeros((batch, n_context, 1), np.float32),
        "context_mask": np.zeros((batch, n_context), bool),
        "xt": np.zeros((batch, n_targets, 2), np.float32),
        "mean": np.zeros((batch, n_targets), np.float32),
        "variance": np.ones((batch, n_targets), np.float32),
        "target_mask": np.zeros((batch, n_targets), bool),
        "exact": np.array([task.exact for task in tasks]),
    }
    for i, task in enumerate(tasks):
        n_c, n_t = len(task.xc), len(task.xt)
        out["xc"][i, :n_c], out["yc"][i, :n_c, 0], out["context_mask"][i, :n_c] = task.xc, task.yc, True
        out["xt"][i, :n_t], out["target_mask"][i, :n_t] = task.xt, True
        out["mean"][i, :n_t], out["variance"][i, :n_t] = task.mean, task.variance
    if any(task.beside is not None for task in tasks):
        out.update(_collate_beside(tasks, n_context, n_targets))
    return out


def _collate_beside(tasks: list[Task], n_context: int, n_targets: int) -> dict[str, Float32Array]:
    """Covariates padded to the largest number of a task by constant ones, which models ignore."""
    most = max(task.beside.context.shape[1] for task in tasks if task.beside is not None)
    sizes = {"context": n_context, "targets": n_targets, "context_error": n_context, "target_error": n_targets}
    out = {f"covariates_{name}": np.zeros((len(tasks), n, most), np.float32) for name, n in sizes.items()}
    out["known_error"] = np.zeros((len(tasks), n_context), np.float32)
    for i, task in enumerate(tasks):
        if task.beside is None:
            continue
        for name in sizes:
            array = getattr(task.beside, name)
            out[f"covariates_{name}"][i, : array.shape[0], : array.shape[1]] = array
        out["known_error"][i, : task.beside.known_error.size] = task.beside.known_error
    return out
