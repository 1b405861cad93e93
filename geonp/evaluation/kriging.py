"""Local ordinary kriging with a Matern covariance fitted to the raster itself: the strongest classical baseline.

Parameters are fitted by maximum likelihood on patches of the observed cells, the same for all patches, with the mean of
each patch and the common variance profiled out (Stein 1999, *Interpolation of Spatial Data*, section 6.4). Each gap
cell is then predicted from its nearest observed cells. Distances are in cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.spatial import KDTree

__all__ = ["SMOOTHNESS", "Matern", "fit", "krige", "krige_gaps"]

FloatArray = npt.NDArray[np.floating[Any]]

SMOOTHNESS = (0.5, 1.5, 2.5)
"""Smoothnesses nu that :func:`fit` chooses from: those whose covariance is elementary."""

NEIGHBOURS = 48
PATCHES, PATCH_CELLS, PATCH_SAMPLE = 24, 256, 96
BATCH = 1024
JITTER = 1e-8


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
    """Fit a covariance to the observed cells of `values` and krige its gaps.

    Parameters
    ----------
    values : array of float
        ``(y, x)``, NaN in the gaps.
    rng : numpy.random.Generator
        Source of the patches that the covariance is fitted to.

    Returns
    -------
    mean, error : array of float
        ``(y, x)``, in the units of `values`; `error` is that of a new measurement, zero where observed.
    """
    missing = np.isnan(values)
    sites, known = np.argwhere(~missing).astype(float), values[~missing].astype(float)
    mean, error = values.copy(), np.zeros_like(values)
    mean[missing], error[missing] = krige(sites, known, np.argwhere(missing).astype(float), fit(sites, known, rng))
    return mean, error


def krige(
    sites: FloatArray, known: FloatArray, targets: FloatArray, model: Matern, neighbours: int = NEIGHBOURS
) -> tuple[FloatArray, FloatArray]:
    """Predict new measurements by ordinary kriging from the nearest sites.

    Parameters
    ----------
    sites, targets : array of float
        ``(n, 2)`` and ``(m, 2)``: coordinates in cells.
    known : array of float
        ``(n,)``: values at the sites.
    model : Matern
        Covariance.
    neighbours : int
        How many of the nearest sites a target is predicted from, at most.

    Returns
    -------
    mean, error : array of float
        ``(m,)``, in the units of `known`. At a site, without a nugget, they are its value and zero.
    """
    tree = KDTree(sites)
    count = min(neighbours, len(sites))
    parts = []
    for start in range(0, len(targets), BATCH):
        target = targets[start : start + BATCH]
        distance, index = tree.query(target, k=np.arange(1, count + 1))
        parts.append(_solve(sites[index], known[index], np.asarray(distance), model))
    mean, error = np.concatenate(parts, axis=1)
    return mean, error


def _solve(sites: FloatArray, known: FloatArray, distance: FloatArray, model: Matern) -> FloatArray:
    """Solve the kriging systems of a batch: sites (m, k, 2), known and distance (m, k) to mean and error (2, m)."""
    batch, count = known.shape
    system = np.ones((batch, count + 1, count + 1))
    system[:, :count, :count] = _covariance(sites, model)
    system[:, count, count] = 0
    right = np.ones((batch, count + 1))
    right[:, :count] = model.correlation(distance)
    weights = np.linalg.solve(system, right[..., None])[..., 0]
    centre = known.mean(axis=1, keepdims=True)
    mean = centre[:, 0] + (weights[:, :count] * (known - centre)).sum(axis=1)
    share = 1 + model.nugget - (weights * right).sum(axis=1)
    return np.stack([mean, np.sqrt(model.variance * np.maximum(share, 0))])


def _covariance(sites: FloatArray, model: Matern) -> FloatArray:
    """Correlation matrices (..., k, k), nugget included, of sites (..., k, 2)."""
    distance = np.linalg.norm(sites[..., :, None, :] - sites[..., None, :, :], axis=-1)
    return model.correlation(distance) + (model.nugget + JITTER) * np.eye(sites.shape[-2])


def fit(sites: FloatArray, known: FloatArray, rng: np.random.Generator) -> Matern:
    """Fit a Matern covariance with a nugget by maximum likelihood.

    Parameters
    ----------
    sites : array of float
        ``(n, 2)``: coordinates in cells.
    known : array of float
        ``(n,)``: values at the sites.
    rng : numpy.random.Generator
        Source of the patches: samples of the nearest sites of random ones.

    Returns
    -------
    Matern
        The likeliest over all of :data:`SMOOTHNESS`.
    """
    patches = _patches(sites, rng)
    located, observed = sites[patches], known[patches]
    if np.ptp(observed) == 0:
        return Matern(SMOOTHNESS[0], 1.0, 0.0, 1.0)

    def deviance(parameters: FloatArray, smoothness: float) -> float:
        return _profile(located, observed, _unscaled(smoothness, parameters))[0]

    found = [
        (
            minimize(deviance, x0=[1.5, -4.0], args=(nu,), method="Nelder-Mead", options={"maxiter": 60, "fatol": 0.1}),
            nu,
        )
        for nu in SMOOTHNESS
    ]
    best, smoothness = min(found, key=lambda item: float(item[0].fun))
    model = _unscaled(smoothness, best.x)
    variance = _profile(located, observed, model)[1]
    return Matern(smoothness, model.length, variance, model.nugget)


def _patches(sites: FloatArray, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Indices (patches, cells) of sites: random samples of the nearest sites of random centres."""
    near = min(PATCH_CELLS, len(sites))
    centres = sites[rng.integers(len(sites), size=PATCHES)]
    index = KDTree(sites).query(centres, k=np.arange(1, near + 1))[1]
    return np.asarray(rng.permuted(index, axis=1)[:, :PATCH_SAMPLE])


def _unscaled(smoothness: float, parameters: FloatArray) -> Matern:
    """Matern of unit variance from the logarithms of its length and its nugget, kept where they can be told."""
    length, nugget = np.exp(np.clip(parameters, [-2.0, -16.0], [7.0, 3.0]))
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
