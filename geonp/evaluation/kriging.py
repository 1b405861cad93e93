"""Local ordinary kriging with a Matern covariance fitted to the raster itself, the strongest classical baseline.

The parameters are fitted by maximum likelihood on patches of observed cells. They are the same for all patches; the
mean of each patch and the common variance are profiled out (Stein 1999, *Interpolation of Spatial Data*, section 6.4).
Each gap cell is then predicted from its nearest observed cells. Distances are in cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.spatial import KDTree

from geonp.raster.arrays import FloatArray, IntArray

SMOOTHNESS = (0.5, 1.5, 2.5)
"""Smoothnesses nu that :func:`fit` chooses from: those whose covariance is elementary."""


@dataclass(frozen=True)
class KrigingSettings:
    """Settings of the prediction and of the fit."""

    neighbours: int = 48
    batch: int = 1024  # systems solved together: 20 MB at 48 neighbours
    patches: int = 24
    patch_cells: int = 256  # a patch is drawn from so many nearest cells, so that it holds short and long distances
    patch_sample: int = 96
    start: tuple[float, float] = (1.5, -4.0)  # logarithms of the length in cells and of the nugget
    lower: tuple[float, float] = (-2.0, -16.0)  # beyond these bounds, parameters are not identifiable
    upper: tuple[float, float] = (7.0, 3.0)
    iterations: int = 60
    tolerance: float = 0.1  # of the deviance: far below its sampling error
    spacing: float = 1.5  # median distance of neighbouring measurements: start and bounds are those of cells
    jitter: float = 1e-8  # keeps the matrices of smooth covariances positive definite in float64


SETTINGS = KrigingSettings()


@dataclass(frozen=True)
class Matern:
    """A Matern covariance with a nugget.

    Attributes
    ----------
    smoothness : float
        nu, one of :data:`SMOOTHNESS`.
    length : float
        Length scale in cells, as in Rasmussen & Williams (2006), equation 4.14.
    variance : float
        Variance of the field, in squared units of the raster.
    nugget : float
        Variance of the noise as a multiple of `variance`.
    """

    smoothness: float
    length: float
    variance: float
    nugget: float

    def correlation(self, distance: FloatArray) -> FloatArray:
        """Correlation of the field at a distance in cells, without the nugget."""
        r = math.sqrt(2 * self.smoothness) / self.length * distance
        polynomial = {0.5: 1.0, 1.5: 1 + r, 2.5: 1 + r + r**2 / 3}[self.smoothness]
        return np.asarray(polynomial * np.exp(-r))


def krige_gaps(values: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Means and standard errors of `values` ``(y, x)`` whose gaps, NaN, are kriged, in their units.

    The covariance is fitted to patches of the observed cells that `rng` draws. Errors are those of a new measurement,
    and 0 where observed.
    """
    missing = np.isnan(values)
    sites, known = np.argwhere(~missing).astype(float), values[~missing].astype(float)
    mean, error = values.copy(), np.zeros_like(values)
    mean[missing], error[missing] = krige(sites, known, np.argwhere(missing).astype(float), fit(sites, known, rng))
    return mean, error


def regression_krige_gaps(
    values: FloatArray, columns: Sequence[FloatArray], rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """As :func:`krige_gaps`, of the residuals of a regression by least squares on covariates without gaps.

    Of Hengl et al. (2004, Geoderma 120, 75-93). The standard error is that of the kriged residuals: the error of the
    coefficients, which is small where many cells are observed, is not added.
    """
    missing = np.isnan(values)
    centred = [column - column[~missing].mean() for column in columns]
    design = np.stack([np.ones(values.shape), *(c / (c[~missing].std() or 1.0) for c in centred)], -1)
    trend = design @ np.linalg.lstsq(design[~missing], values[~missing])[0]
    mean, error = krige_gaps(values - trend, rng)
    return np.where(missing, mean + trend, values).astype(values.dtype), error.astype(values.dtype)


def krige(
    sites: FloatArray, known: FloatArray, targets: FloatArray, model: Matern, neighbours: int = SETTINGS.neighbours
) -> tuple[FloatArray, FloatArray]:
    """Means and standard errors ``(m,)`` of new measurements by ordinary kriging, in the units of the `known` values.

    Sites ``(n, 2)`` and targets ``(m, 2)`` are in cells. Each target is predicted from the `neighbours` nearest sites.
    At a site, without a nugget, the mean is its value and the error 0.
    """
    tree = KDTree(sites)
    count = min(neighbours, len(sites))
    parts = []
    for start in range(0, len(targets), SETTINGS.batch):
        target = targets[start : start + SETTINGS.batch]
        distance, index = tree.query(target, k=np.arange(1, count + 1))
        parts.append(_solve(sites[index], known[index], np.asarray(distance), model))
    mean, error = np.concatenate(parts, axis=1)
    return mean, error


def _solve(sites: FloatArray, known: FloatArray, distance: FloatArray, model: Matern) -> FloatArray:
    """Solve the kriging systems of a batch: mean and error ``(2, m)``.

    `sites` is ``(m, k, 2)``; `known` values and `distance` to the target are ``(m, k)``.
    """
    batch, count = known.shape
    system = np.ones((batch, count + 1, count + 1))
    system[:, :count, :count] = _covariance(sites, model)
    system[:, count, count] = 0
    right = np.ones((batch, count + 1))
    right[:, :count] = model.correlation(distance)
    weights = np.linalg.solve(system, right[..., None])[..., 0]
    centre = known.mean(axis=1, keepdims=True)
    mean = centre[:, 0] + (weights[:, :count] * (known - centre)).sum(axis=1)
    relative_variance = 1 + model.nugget - (weights * right).sum(axis=1)
    return np.stack([mean, np.sqrt(model.variance * np.maximum(relative_variance, 0))])


def _covariance(sites: FloatArray, model: Matern) -> FloatArray:
    """Correlation matrices ``(..., k, k)`` of sites ``(..., k, 2)``, nugget included."""
    distance = np.linalg.norm(sites[..., :, None, :] - sites[..., None, :, :], axis=-1)
    return model.correlation(distance) + (model.nugget + SETTINGS.jitter) * np.eye(sites.shape[-2])


def fit(sites: FloatArray, known: FloatArray, rng: np.random.Generator) -> Matern:
    """Fit a Matern covariance with a nugget by maximum likelihood, over all of :data:`SMOOTHNESS`.

    Sites ``(n, 2)`` are in cells; `rng` draws the patches of them that are fitted to.
    """
    patches = _patches(sites, rng)
    return fit_patches(sites[patches], known[patches])


def fit_patches(patch_sites: FloatArray, patch_values: FloatArray) -> Matern:
    """Fit a covariance to patches, sites ``(patches, k, d)`` and values ``(patches, k)``, as :func:`fit` does."""
    if np.ptp(patch_values) == 0:
        return Matern(SMOOTHNESS[0], 1.0, 0.0, 1.0)

    def deviance(log_parameters: FloatArray, smoothness: float) -> float:
        return _profile(patch_sites, patch_values, _unit_matern(smoothness, log_parameters))[0]

    options: Any = {"maxiter": SETTINGS.iterations, "fatol": SETTINGS.tolerance}
    fits = {nu: minimize(deviance, SETTINGS.start, (nu,), method="Nelder-Mead", options=options) for nu in SMOOTHNESS}
    smoothness = min(fits, key=lambda nu: float(fits[nu].fun))
    model = _unit_matern(smoothness, fits[smoothness].x)
    return replace(model, variance=_profile(patch_sites, patch_values, model)[1])


def _patches(sites: FloatArray, rng: np.random.Generator) -> IntArray:
    """Indices ``(patches, cells)`` of sites: random samples of the nearest sites of random centres."""
    near = min(SETTINGS.patch_cells, len(sites))
    centres = sites[rng.integers(len(sites), size=SETTINGS.patches)]
    index = KDTree(sites).query(centres, k=np.arange(1, near + 1))[1]
    return np.asarray(rng.permuted(index, axis=1)[:, : SETTINGS.patch_sample])


def _unit_matern(smoothness: float, log_parameters: FloatArray) -> Matern:
    """Matern of unit variance from the logarithms of its length and its nugget, clipped to their bounds."""
    length, nugget = np.exp(np.clip(log_parameters, SETTINGS.lower, SETTINGS.upper))
    return Matern(smoothness, float(length), 1.0, float(nugget))


def _profile(sites: FloatArray, known: FloatArray, model: Matern) -> tuple[float, float]:
    """Deviance (-2 log likelihood up to a constant) over the patches, and the variance that minimises it."""
    factor = np.linalg.cholesky(_covariance(sites, model))
    columns = np.stack([known - known.mean(axis=1, keepdims=True), np.ones_like(known)], axis=-1)
    white, ones = np.moveaxis(np.linalg.solve(factor, columns), -1, 0)
    white -= ones * ((white * ones).sum(axis=1) / (ones**2).sum(axis=1))[:, None]
    variance = float((white**2).sum() / known.size)
    log_determinant = 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum()
    return float(log_determinant + known.size * math.log(max(variance, 1e-300))), variance
