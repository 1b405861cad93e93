"""Synthetic random fields for pretraining, and the prior that they are drawn from.

A field is a sum of Gaussian random fields with Matern-like spectra, often with noise and a linear trend. About half of
the fields stay Gaussian. The others are warped, modulated, cut by sharp boundaries, resampled, transformed pointwise or
quantised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy import fft, ndimage

from geonp.raster.arrays import Float32Array, Float64Array
from geonp.training.data.constraints import PositiveRange, Probability


@dataclass(frozen=True)
class Raster:
    """Synthetic rasters with gaps, drawn from the recipe's `prior` and tiled by its `neighbourhood`."""

    kind: Literal["raster"] = "raster"


@dataclass(frozen=True)
class RasterPrior:
    """Prior over fields and gaps. Ranges are log-uniform, lengths in cells, amplitudes in standard deviations."""

    smoothness: PositiveRange = (0.2, 4.0)
    length: PositiveRange = (1.2, 160.0)
    anisotropy: float = 0.5
    p_isotropic: Probability = 0.4
    smoothing: PositiveRange = (0.4, 5.0)
    p_smoothing: Probability = 0.33
    noise: PositiveRange = (0.003, 0.7)
    p_noise: Probability = 0.5
    trend: PositiveRange = (0.2, 4.0)
    p_trend: Probability = 0.3
    p_gaussian: Probability = 0.45
    p_uneven: Probability = 0.45
    p_scattered: Probability = 0.35  # given random gaps
    p_domain: Probability = 0.3
    p_wide: Probability = 0.12
    p_small_tile: Probability = 0.2
    p_large_tile: Probability = 0.5
    gap_weights: dict[str, float] = field(
        default_factory=lambda: {"random": 0.3, "clouds": 0.32, "stripes": 0.18, "swath": 0.06, "blocks": 0.14}
    )


@dataclass(frozen=True)
class Field:
    """Measured values on a window; for a Gaussian field also its covariance by offset, on a torus."""

    values: Float64Array
    covariance: Float64Array | None
    noise: float
    trend: float


def log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    """Draw a number between two bounds, uniformly in its logarithm."""
    return float(np.exp(rng.uniform(np.log(bounds[0]), np.log(bounds[1]))))


def spectral_density(
    rng: np.random.Generator, prior: RasterPrior, torus: int, length: tuple[float, float] | None = None
) -> Float32Array:
    """Spectral density of unit variance on the half plane of `rfft2`: a sum of one to three Matern-like densities."""
    ky = (2 * np.pi * np.fft.fftfreq(torus))[:, None].astype(np.float32)
    kx = (2 * np.pi * np.fft.rfftfreq(torus))[None, :].astype(np.float32)
    total = np.zeros((torus, torus // 2 + 1), np.float32)
    anisotropy = 0.0 if rng.random() < prior.p_isotropic else prior.anisotropy
    for _ in range(rng.choice([1, 2, 3], p=[0.5, 0.35, 0.15])):
        nu, scale = log_uniform(rng, prior.smoothness), log_uniform(rng, length or prior.length)
        angle, stretch = rng.uniform(0, np.pi), np.exp(anisotropy * abs(rng.standard_normal()) / 2)
        k1 = (np.cos(angle) * ky + np.sin(angle) * kx) * (scale * stretch)
        k2 = (np.cos(angle) * kx - np.sin(angle) * ky) * (scale / stretch)
        density = np.exp(-(nu + 1) * np.log1p((k1**2 + k2**2) / (2 * nu)))
        total += density * float(np.exp(rng.standard_normal()) / _variance(density))
    if rng.random() < prior.p_smoothing:
        # the point spread of a sensor or an analysis smooths rough fields
        total *= np.exp(-(log_uniform(rng, prior.smoothing) ** 2) * (ky**2 + kx**2))
    return total / _variance(total)


def _variance(density: Float32Array) -> float:
    # each column of the half plane counts twice, except the first and, for an even size, the last
    torus = density.shape[0]
    columns = density.sum(0, dtype=np.float64)
    single = float(columns[0]) + (float(columns[-1]) if torus % 2 == 0 else 0.0)
    return (2 * float(columns.sum()) - single) / float(torus**2)


def field_of(rng: np.random.Generator, density: Float32Array, volatility: Float32Array | None = None) -> Float32Array:
    """Draw a field with this spectrum, from white noise whose local amplitude is `volatility` (default: 1)."""
    torus = density.shape[0]
    noise = rng.standard_normal((torus, torus), dtype=np.float32)
    white = fft.rfft2(noise if volatility is None else noise * volatility)
    return np.asarray(fft.irfft2(white * np.sqrt(density), s=(torus, torus)), np.float32)


def sample_field(rng: np.random.Generator, prior: RasterPrior, size: int, torus: int) -> Field:
    """Draw a field on ``(size, size)`` cells, cut from a field that is periodic on ``(torus, torus)`` cells."""
    density = spectral_density(rng, prior, torus)
    noise = log_uniform(rng, prior.noise) if rng.random() < prior.p_noise else 0.0
    trend = log_uniform(rng, prior.trend) * 2 if rng.random() < prior.p_trend else 0.0
    slope = trend * rng.standard_normal(2)
    gaussian = rng.random() < prior.p_gaussian
    uneven = not gaussian and rng.random() < prior.p_uneven
    z = field_of(rng, density, _volatility(rng, prior, torus) if uneven else None)
    if not gaussian:
        z = _deform(rng, prior, z, size, 0 if uneven else 1)
    values = z[:size, :size].astype(np.float64)
    axis = np.arange(size) / size - 0.5
    values += slope[0] * axis[:, None] + slope[1] * axis[None, :]
    values += noise * (rng.standard_normal((size, size)) if gaussian else _noise(rng, size))
    if not gaussian:
        return Field(_quantise(rng, values) if rng.random() < 0.3 else values, None, noise, trend)
    covariance = fft.irfft2(density.astype(np.float64), s=(torus, torus))
    return Field(values, covariance, noise, trend)


def _noise(rng: np.random.Generator, size: int) -> Float64Array:
    if rng.random() < 0.7:
        return rng.standard_normal((size, size))
    return np.asarray(rng.standard_t(4, (size, size)) / np.sqrt(2.0))


def _quantise(rng: np.random.Generator, values: Float64Array) -> Float64Array:
    step = values.std() / log_uniform(rng, (1.0, 60.0))
    return np.asarray(np.round(values / step) * step)


def _volatility(rng: np.random.Generator, prior: RasterPrior, torus: int) -> Float32Array:
    """Local amplitude of mean square one for the white noise of a field: rough hills beside smooth plains, bursts."""
    log = rng.uniform(0.3, 1.3) * field_of(rng, spectral_density(rng, prior, torus, (3.0, 90.0)))
    if rng.random() < 0.3:
        # heavy tails: single outlying cells, as edges and peaks have
        log = log - 0.5 * np.log(rng.chisquare(4.0, log.shape).astype(np.float32) / 4)
    amplitude = np.exp(np.minimum(log, 4.0))
    return np.asarray(amplitude / np.sqrt((amplitude**2).mean()), np.float32)


def _deform(rng: np.random.Generator, prior: RasterPrior, z: Float32Array, size: int, n_min: int) -> Float32Array:
    """Apply `n_min` to three non-Gaussian or non-stationary deformations to a field ``(torus, torus)``."""
    names = ["warp", "modulate", "boundary", "resample", "terrain", "pointwise", "pointwise"]
    chosen = rng.permutation(names)[: rng.integers(n_min, 4)]
    torus, smooth = z.shape[0], (8.0, 90.0)
    for name in chosen:
        before = z
        if name == "warp":
            reach = log_uniform(rng, (2.0, 20.0))
            shift = np.stack([field_of(rng, spectral_density(rng, prior, torus, smooth)) for _ in range(2)])
            z = ndimage.map_coordinates(z, np.indices(z.shape) + reach * shift, order=1, mode="grid-wrap")
        elif name == "modulate":
            z = z * np.exp(rng.uniform(0.3, 1.2) * field_of(rng, spectral_density(rng, prior, torus, smooth)))
        elif name == "boundary":
            boundary = field_of(rng, spectral_density(rng, prior, torus, (4.0, 90.0)))
            other = (
                field_of(rng, spectral_density(rng, prior, torus)) * np.exp(rng.standard_normal())
                + 2 * rng.standard_normal()
            )
            level = np.quantile(boundary[:size, :size], rng.uniform(0.2, 0.8))
            z = np.where(boundary > level, z, other).astype(np.float32)
        elif name == "resample":
            factor = rng.choice([f for f in (1, 2, 3, 4) if torus % f == 0])
            coarse = z[: torus // factor, : torus // factor]
            z = ndimage.zoom(coarse, factor, order=rng.choice([1, 3]), mode="grid-wrap", grid_mode=True)
        elif name == "terrain":
            z = z * rng.uniform(0.0, 0.5) + _terrain(rng, prior, torus)
        else:
            z = _pointwise(rng, z)
        spread = float(z.std())
        flat = float(np.ptp(z[:size, :size])) <= max(1e-3 * spread, 1e-6)
        z = before if flat else (z / spread).astype(np.float32)
    return z


def _terrain(rng: np.random.Generator, prior: RasterPrior, torus: int) -> Float32Array:
    """Ridges with smaller ridges on their flanks and plains between them, ``(torus, torus)``.

    A ridged multifractal (Musgrave, in Ebert et al., Texturing and Modeling, 2003, chapter 16): octaves of
    ``(1 - |z| / 2)^2`` of smooth fields, each weighted by the height of the previous one.
    """
    smooth = replace(prior, smoothness=(2.0, 6.0), p_smoothing=0.0)
    length, persistence = log_uniform(rng, (15.0, 120.0)), 2 ** -rng.uniform(0.6, 1.3)
    total, weight = np.zeros((torus, torus), np.float32), np.ones((torus, torus), np.float32)
    for octave in range(5):
        scale = length / 2**octave
        octaves = field_of(rng, spectral_density(rng, smooth, torus, (scale, 1.2 * scale)))
        signal = np.maximum(1 - np.abs(octaves) / 2, 0) ** 2 * weight
        weight = np.clip(2 * signal, 0, 1)
        total += persistence**octave * signal
    return np.asarray((total - total.mean()) / max(float(total.std()), 1e-6), np.float32)


def _pointwise(rng: np.random.Generator, z: Float32Array) -> Float32Array:
    name = rng.choice(["exp", "ridge", "clip", "sinh", "plateau", "cap"])
    if name == "exp":
        out = np.exp(rng.uniform(0.3, 1.2) * np.clip(z, -6, 4))
    elif name == "ridge":
        out = np.abs(z + rng.standard_normal()) * rng.choice([-1.0, 1.0])
    elif name == "clip":
        out = np.maximum(z, np.quantile(z, rng.uniform(0.1, 0.7)))
    elif name == "sinh":
        out = np.sinh(rng.uniform(0.5, 1.2) * np.clip(z, -5, 5))
    elif name == "plateau":
        out = np.tanh(rng.uniform(0.7, 3.0) * z)
    else:
        out = np.minimum(z, np.quantile(z, rng.uniform(0.3, 0.9)))
    return np.asarray(out, np.float32)
