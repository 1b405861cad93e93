"""Averages of predictions with and without covariates: few points hardly tell which covariates matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geonp.raster.arrays import FloatArray


@dataclass(frozen=True)
class AveragingSettings:
    """Settings of the weights."""

    iterations: int = 30
    """Number of steps of expectation maximisation, from equal weights."""
    prior: float = 1.0
    """Number of context points that each of the two predictions is worth beforehand."""


AVERAGING = AveragingSettings()


def averaged(alone: FloatArray, beside: FloatArray, of_alone: FloatArray, of_beside: FloatArray) -> FloatArray:
    """Moments of mixtures of two predictions, whose weights are stacked (Yao et al., Bayesian Analysis 13, 2018).

    The weights of a task maximise the density of each value of its context given all others.

    Parameters
    ----------
    alone, beside : array
        Mean, standard error and tail without and with covariates, ``(3, batch, n_t)``.
    of_alone, of_beside : array
        Log densities of the context values, ``(batch, n_c)``, NaN where there is none.
    """
    n, weight = np.isfinite(of_alone).sum(1), np.full((len(of_alone), 1), 0.5)
    ratio = np.exp(np.clip(of_alone - of_beside, -50.0, 50.0))
    for _ in range(AVERAGING.iterations):
        shares = np.nansum(weight / (weight + (1 - weight) * ratio), 1)
        weight = ((shares + AVERAGING.prior) / (n + 2 * AVERAGING.prior))[:, None]
    out = (1 - weight) * alone + weight * beside
    square = (1 - weight) * alone[1] ** 2 + weight * beside[1] ** 2
    out[1] = np.sqrt(square + weight * (1 - weight) * (beside[0] - alone[0]) ** 2)
    return np.asarray(out)
