"""Tasks to pretrain on: synthetic random fields with simulated gaps, seen as filling will see a raster.

A field is a sum of Gaussian random fields with Matern-like spectra, often with noise and a linear trend. About half of
the fields stay Gaussian; for these the exact conditional distribution of the targets, given the context, is computed
from the covariance that made the field, and serves as the training target. It has the same optimum as a sampled value
and less noise. The others are warped, modulated, cut by sharp boundaries, resampled, transformed or quantised; their
targets are the values themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft, linalg, ndimage

from geonp import gaps
from geonp.points import Neighbourhood, box_of, halo_for, overlaps, select_context, standardise

__all__ = ["RasterPrior", "Task", "collate", "reached", "sample_task"]

Array = npt.NDArray[np.float32]
Range = tuple[float, float]


@dataclass(frozen=True)
class RasterPrior:
    """What fields and gaps are drawn. Ranges are log-uniform, lengths in cells, amplitudes in standard deviations."""

    smoothness: Range = (0.2, 4.0)
    length: Range = (1.2, 160.0)
    anisotropy: float = 0.5
    smoothing: Range = (0.4, 5.0)
    p_smoothing: float = 0.33
    noise: Range = (0.003, 0.7)
    p_noise: float = 0.5
    trend: Range = (0.2, 4.0)
    p_trend: float = 0.3
    p_gaussian: float = 0.45
    p_uneven: float = 0.45
    p_scattered: float = 0.35  # of random gaps
    p_domain: float = 0.3
    p_wide: float = 0.12
    p_small_tile: float = 0.25
    gap_weights: dict[str, float] = field(
        default_factory=lambda: {"random": 0.3, "clouds": 0.32, "stripes": 0.18, "swath": 0.06, "blocks": 0.14}
    )


@dataclass(frozen=True)
class Task:
    """One tile: context and targets, and what is known of the targets.

    ``xc (n_c, 2)``, ``yc (n_c,)``, ``xt (n_t, 2)``; `mean` and `variance` ``(n_t,)`` are the exact conditional moments
    of a new measurement where `exact`, else the measured value and zero. Standardised by the context; x = (row, col) in
    cells from the middle of the tile.
    """

    xc: Array
    yc: Array
    xt: Array
    mean: Array
    variance: Array
    exact: bool
    kind: str


@dataclass(frozen=True)
class _Field:
    """Measured values on a window, and their covariance by offset (on a torus) if the field is Gaussian."""

    values: npt.NDArray[np.float64]
    covariance: npt.NDArray[np.float64] | None
    noise: float
    trend: float


def sample_task(rng: np.random.Generator, prior: RasterPrior, neighbourhood: Neighbourhood, n_targets: int) -> Task:
    """Draw one task; the number of context points and of targets varies up to their limits."""
    wide = rng.random() < prior.p_wide
    halo = neighbourhood.reach_px if wide else neighbourhood.halos_px[0]
    tile = neighbourhood.tile_px // 2 if rng.random() < prior.p_small_tile else neighbourhood.tile_px
    size = tile + 2 * halo
    while True:
        kind, observed, domain = _observed(rng, prior, size, wide)
        missing = domain & ~observed
        own = _only(missing, halo)
        if not own.any() or np.count_nonzero(observed) < neighbourhood.min_context:
            continue
        sample = _sample_field(rng, prior, size, fft.next_fast_len(2 * size if wide else max(2 * size, 256), real=True))
        window = _only(observed, halo - halo_for(observed, neighbourhood) if wide else 0)
        ranks = rng.random(observed.shape, dtype=np.float32)
        context = select_context(window, ranks, box_of(own), neighbourhood)
        targets = rng.permutation(np.flatnonzero(missing & reached(observed, halo, neighbourhood)))[:n_targets]
        # nothing is to be learned from equal values
        if np.ptp(sample.values.ravel()[context]) > 0:
            scattered = kind == "random" and rng.random() < prior.p_scattered
            return _as_task(sample, context, targets, size, kind, _turn(rng) if scattered else None)


def _turn(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Rotation and shrinking of coordinates, so that a sparse lattice looks like scattered positions."""
    angle, scale = rng.uniform(0, 2 * np.pi), _log_uniform(rng, (0.25, 1.0))
    return scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _only(mask: npt.NDArray[np.bool_], frame: int) -> npt.NDArray[np.bool_]:
    """`mask` without what lies in a frame of so many cells."""
    inside = np.zeros_like(mask)
    inside[frame : mask.shape[0] - frame, frame : mask.shape[1] - frame] = True
    return mask & inside


def reached(observed: npt.NDArray[np.bool_], halo: int, neighbourhood: Neighbourhood) -> npt.NDArray[np.bool_]:
    """The cells of a window that the tile in its middle predicts: its own, and those that its overlap reaches."""
    place = np.arange(observed.shape[0])
    outside = np.maximum(np.maximum(halo - place, place - (observed.shape[0] - 1 - halo)), 0)
    return np.asarray(np.maximum(outside[:, None], outside[None, :]) <= overlaps(observed, neighbourhood))


def _as_task(
    sample: _Field,
    context: npt.NDArray[np.intp],
    targets: npt.NDArray[np.intp],
    size: int,
    kind: str,
    turn: npt.NDArray[np.float64] | None,
) -> Task:
    values = sample.values.ravel()
    standard = standardise(values[context])
    if sample.covariance is None:
        mean, variance = values[targets], np.zeros(targets.size)
    else:
        mean, variance = _conditional(sample, context, targets, size)
    xc, xt = (np.stack(np.divmod(i, size), -1) - (size - 1) / 2 for i in (context, targets))
    if turn is not None:
        xc, xt = xc @ turn, xt @ turn
    return Task(
        xc.astype(np.float32),
        standard.z,
        xt.astype(np.float32),
        ((mean - standard.loc) / standard.scale).astype(np.float32),
        (variance / standard.scale**2 + 1e-6 * (sample.covariance is not None)).astype(np.float32),
        sample.covariance is not None,
        kind,
    )


def _conditional(
    sample: _Field, context: npt.NDArray[np.intp], targets: npt.NDArray[np.intp], size: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Exact mean and variance of new measurements at `targets`, given those at `context`."""
    assert sample.covariance is not None
    torus = sample.covariance.shape[0]
    points = np.concatenate([context, targets])
    rows, cols = np.divmod(points, size)
    n_c = context.size
    k = sample.covariance[(rows[:, None] - rows[None, :n_c]) % torus, (cols[:, None] - cols[None, :n_c]) % torus]
    centred = np.stack([rows, cols], -1) / size - 0.5
    k = k + sample.trend**2 * (centred @ centred[:n_c].T)
    k[:n_c][np.diag_indices(n_c)] += sample.noise**2 + 1e-6
    factor = linalg.cholesky(k[:n_c], lower=True, check_finite=False)
    solved = linalg.solve_triangular(factor, k[n_c:].T, lower=True, check_finite=False)
    y = linalg.solve_triangular(factor, sample.values.ravel()[context], lower=True, check_finite=False)
    prior = sample.covariance[0, 0] + sample.noise**2 + sample.trend**2 * (centred[n_c:] ** 2).sum(-1)
    return solved.T @ y, np.maximum(prior - (solved**2).sum(0), 0.0)


# --- fields -----------------------------------------------------------------------------------------------------------


def _log_uniform(rng: np.random.Generator, bounds: Range) -> float:
    return float(np.exp(rng.uniform(np.log(bounds[0]), np.log(bounds[1]))))


def _spectrum(rng: np.random.Generator, prior: RasterPrior, torus: int, length: Range | None = None) -> Array:
    """Spectral density on the half plane of `rfft2`, of unit variance: a sum of one to three Matern-like ones."""
    ky = (2 * np.pi * np.fft.fftfreq(torus))[:, None].astype(np.float32)
    kx = (2 * np.pi * np.fft.rfftfreq(torus))[None, :].astype(np.float32)
    total = np.zeros((torus, torus // 2 + 1), np.float32)
    for _ in range(rng.choice([1, 2, 3], p=[0.5, 0.35, 0.15])):
        nu, scale = _log_uniform(rng, prior.smoothness), _log_uniform(rng, length or prior.length)
        angle, stretch = rng.uniform(0, np.pi), np.exp(prior.anisotropy * abs(rng.standard_normal()) / 2)
        k1 = (np.cos(angle) * ky + np.sin(angle) * kx) * (scale * stretch)
        k2 = (np.cos(angle) * kx - np.sin(angle) * ky) * (scale / stretch)
        density = np.exp(-(nu + 1) * np.log1p((k1**2 + k2**2) / (2 * nu)))
        total += density * float(np.exp(rng.standard_normal()) / _variance(density))
    if rng.random() < prior.p_smoothing:
        # what the point spread of a sensor, or an analysis, leaves of a rough field
        total *= np.exp(-(_log_uniform(rng, prior.smoothing) ** 2) * (ky**2 + kx**2))
    return total / _variance(total)


def _variance(density: Array) -> float:
    # the half plane stands for the whole: each column for two, but the first and, of an even number, the last
    torus = density.shape[0]
    columns = density.sum(0, dtype=np.float64)
    single = float(columns[0]) + (float(columns[-1]) if torus % 2 == 0 else 0.0)
    return (2 * float(columns.sum()) - single) / float(torus**2)


def _draw(rng: np.random.Generator, density: Array, volatility: Array | None = None) -> Array:
    """A field of this spectrum; with `volatility`, white noise of that local amplitude is filtered instead."""
    torus = density.shape[0]
    noise = rng.standard_normal((torus, torus), dtype=np.float32)
    white = fft.rfft2(noise if volatility is None else noise * volatility)
    return np.asarray(fft.irfft2(white * np.sqrt(density), s=(torus, torus)), np.float32)


def _sample_field(rng: np.random.Generator, prior: RasterPrior, size: int, torus: int) -> _Field:
    density = _spectrum(rng, prior, torus)
    noise = _log_uniform(rng, prior.noise) if rng.random() < prior.p_noise else 0.0
    trend = _log_uniform(rng, prior.trend) * 2 if rng.random() < prior.p_trend else 0.0
    slope = trend * rng.standard_normal(2)
    gaussian = rng.random() < prior.p_gaussian
    uneven = not gaussian and rng.random() < prior.p_uneven
    z = _draw(rng, density, _volatility(rng, prior, torus) if uneven else None)
    if not gaussian:
        z = _deform(rng, prior, z, size, 0 if uneven else 1)
    values = z[:size, :size].astype(np.float64)
    axis = np.arange(size) / size - 0.5
    values += slope[0] * axis[:, None] + slope[1] * axis[None, :]
    values += noise * (rng.standard_normal((size, size)) if gaussian else _noise(rng, size))
    if not gaussian:
        return _Field(_quantise(rng, values) if rng.random() < 0.3 else values, None, noise, trend)
    covariance = fft.irfft2(density.astype(np.float64), s=(torus, torus))
    return _Field(values, covariance, noise, trend)


def _noise(rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
    if rng.random() < 0.7:
        return rng.standard_normal((size, size))
    return np.asarray(rng.standard_t(4, (size, size)) / np.sqrt(2.0))


def _quantise(rng: np.random.Generator, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    step = values.std() / _log_uniform(rng, (1.0, 60.0))
    return np.asarray(np.round(values / step) * step)


def _volatility(rng: np.random.Generator, prior: RasterPrior, torus: int) -> Array:
    """Local amplitude of the noise that makes a field: rough hills beside smooth plains, bursts; mean square one."""
    log = rng.uniform(0.3, 1.3) * _draw(rng, _spectrum(rng, prior, torus, (3.0, 90.0)))
    if rng.random() < 0.3:
        # single cells that stand out, as edges and peaks do: heavy tails
        log = log - 0.5 * np.log(rng.chisquare(4.0, log.shape).astype(np.float32) / 4)
    amplitude = np.exp(np.minimum(log, 4.0))
    return np.asarray(amplitude / np.sqrt((amplitude**2).mean()), np.float32)


def _deform(rng: np.random.Generator, prior: RasterPrior, z: Array, size: int, least: int) -> Array:
    """Make a field non-Gaussian or non-stationary in `least` to three ways; ``(torus, torus)``."""
    names = ["warp", "modulate", "boundary", "resample", "terrain", "pointwise", "pointwise"]
    ways = rng.permutation(names)[: rng.integers(least, 4)]
    torus, smooth = z.shape[0], (8.0, 90.0)
    for way in ways:
        before = z
        if way == "warp":
            reach = _log_uniform(rng, (2.0, 20.0))
            shift = np.stack([_draw(rng, _spectrum(rng, prior, torus, smooth)) for _ in range(2)])
            z = ndimage.map_coordinates(z, np.indices(z.shape) + reach * shift, order=1, mode="grid-wrap")
        elif way == "modulate":
            z = z * np.exp(rng.uniform(0.3, 1.2) * _draw(rng, _spectrum(rng, prior, torus, smooth)))
        elif way == "boundary":
            side = _draw(rng, _spectrum(rng, prior, torus, (4.0, 90.0)))
            other = _draw(rng, _spectrum(rng, prior, torus)) * np.exp(rng.standard_normal()) + 2 * rng.standard_normal()
            centre = side[:size, :size]
            z = np.where(side > np.quantile(centre, rng.uniform(0.2, 0.8)), z, other).astype(np.float32)
        elif way == "resample":
            factor = rng.choice([f for f in (1, 2, 3, 4) if torus % f == 0])
            coarse = z[: torus // factor, : torus // factor]
            z = ndimage.zoom(coarse, factor, order=rng.choice([1, 3]), mode="grid-wrap", grid_mode=True)
        elif way == "terrain":
            z = z * rng.uniform(0.0, 0.5) + _terrain(rng, prior, torus)
        else:
            z = _pointwise(rng, z)
        spread = float(z.std())
        flat = float(np.ptp(z[:size, :size])) <= max(1e-3 * spread, 1e-6)
        z = before if flat else (z / spread).astype(np.float32)
    return z


def _terrain(rng: np.random.Generator, prior: RasterPrior, torus: int) -> Array:
    """Ridges with ridges on their flanks and plains between them, ``(torus, torus)``.

    A ridged multifractal (Musgrave, in Ebert et al., Texturing and Modeling, 2003, chapter 16): octaves of
    ``(1 - |z| / 2)^2`` of smooth fields, each as strong as the one before it is high.
    """
    smooth = replace(prior, smoothness=(2.0, 6.0), p_smoothing=0.0)
    length, persistence = _log_uniform(rng, (15.0, 120.0)), 2 ** -rng.uniform(0.6, 1.3)
    total, weight = np.zeros((torus, torus), np.float32), np.ones((torus, torus), np.float32)
    for octave in range(5):
        scale = length / 2**octave
        octaves = _draw(rng, _spectrum(rng, smooth, torus, (scale, 1.2 * scale)))
        signal = np.maximum(1 - np.abs(octaves) / 2, 0) ** 2 * weight
        weight = np.clip(2 * signal, 0, 1)
        total += persistence**octave * signal
    return np.asarray((total - total.mean()) / max(float(total.std()), 1e-6), np.float32)


def _pointwise(rng: np.random.Generator, z: Array) -> Array:
    way = rng.choice(["exp", "ridge", "clip", "sinh", "plateau", "cap"])
    if way == "exp":
        out = np.exp(rng.uniform(0.3, 1.2) * np.clip(z, -6, 4))
    elif way == "ridge":
        out = np.abs(z + rng.standard_normal()) * rng.choice([-1.0, 1.0])
    elif way == "clip":
        out = np.maximum(z, np.quantile(z, rng.uniform(0.1, 0.7)))
    elif way == "sinh":
        out = np.sinh(rng.uniform(0.5, 1.2) * np.clip(z, -5, 5))
    elif way == "plateau":
        out = np.tanh(rng.uniform(0.7, 3.0) * z)
    else:
        out = np.minimum(z, np.quantile(z, rng.uniform(0.3, 0.9)))
    return np.asarray(out, np.float32)


# --- gaps -------------------------------------------------------------------------------------------------------------


def _observed(
    rng: np.random.Generator, prior: RasterPrior, size: int, wide: bool
) -> tuple[str, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Kind of gaps, observed mask and domain mask of one window."""
    names = list(prior.gap_weights)
    weights = np.array([prior.gap_weights[name] for name in names])
    kind = str(rng.choice(names, p=weights / weights.sum()))
    missing = _gaps(rng, kind, size, wide)
    if rng.random() < 0.1:
        missing |= _gaps(rng, str(rng.choice(names)), size, wide=False)
    domain = _domain(rng, size) if rng.random() < prior.p_domain else np.ones((size, size), bool)
    return kind, domain & ~missing, domain


def _gaps(rng: np.random.Generator, kind: str, size: int, wide: bool) -> npt.NDArray[np.bool_]:
    shape = (size, size)
    if kind == "random":
        if wide:
            return gaps.random_gaps(shape, 1 - _log_uniform(rng, (0.0015, 0.03)), rng)
        dense = rng.random() < 0.55
        return gaps.random_gaps(shape, rng.uniform(0.01, 0.85) if dense else rng.uniform(0.85, 0.985), rng)
    if kind == "clouds":
        fraction = rng.uniform(0.6, 0.9) if wide else rng.uniform(0.03, 0.7)
        return gaps.cloud_gaps(shape, fraction, rng, _log_uniform(rng, (20.0, 80.0) if wide else (3.0, 40.0)))
    if kind == "stripes":
        angle = None if rng.random() < 0.5 else rng.uniform(0, np.pi)
        period, wedge = _log_uniform(rng, (4.0, 60.0)), rng.uniform(0, 0.9)
        return gaps.stripe_gaps(shape, rng.uniform(0.05, 0.6), rng, period, angle, wedge)
    if kind == "swath":
        return gaps.swath_gaps(shape, rng.uniform(0.1, 0.6), rng)
    return gaps.block_gaps(shape, rng.uniform(0.03, 0.6), rng, _log_uniform(rng, (3.0, 40.0)))


def _domain(rng: np.random.Generator, size: int) -> npt.NDArray[np.bool_]:
    """A small raster, the edge of a large one, or a ragged coast, somewhere in the window."""
    domain, way = np.ones((size, size), bool), rng.random()
    if way < 0.35:
        return ~gaps.cloud_gaps((size, size), rng.uniform(0.1, 0.6), rng, _log_uniform(rng, (8.0, 60.0)))
    if way < 0.55:
        for axis in range(2):
            side = int(_log_uniform(rng, (12.0, size)))
            first = rng.integers(max(size // 2 - side, 0), min(size // 2, size - side) + 1)
            np.moveaxis(domain, axis, 0)[:first] = False
            np.moveaxis(domain, axis, 0)[first + side :] = False
        return domain
    for _ in range(rng.integers(1, 3)):
        edge = int(rng.uniform(0.0, 0.48) * size)
        np.moveaxis(domain, rng.integers(2), 0)[:: rng.choice([-1, 1])][:edge] = False
    return domain


# --- batches ----------------------------------------------------------------------------------------------------------


def collate(tasks: list[Task], n_context: int, n_targets: int) -> dict[str, npt.NDArray[Any]]:
    """Pad tasks to one shape: ``(batch, n, features)`` arrays and their masks, True = real."""
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
    return out
