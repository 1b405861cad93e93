"""A process whose predictions are known, in place of a model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from geonp.inference.predictor import Points, Predictor
from geonp.nn.process import LocalProcess

Array = npt.NDArray[np.float64]
NOISE = 0.1
"""Variance of the noise of a measurement; that of the process is 1."""


def exponential(length: float) -> Callable[[Array, Array], Array]:
    """Covariance of the process between two sets of places."""
    return lambda a, b: np.exp(-np.linalg.norm(a[:, None] - b[None], axis=-1) / length)


def predict_exactly(patch: pytest.MonkeyPatch, length: float) -> None:
    """Let models predict a process with mean zero, in units that they see."""
    kernel = exponential(length)

    def predictions(_: Predictor, points: Points) -> Array:
        out = np.zeros((3, len(points.xt), points.xt.shape[1]))
        for i, keep in enumerate(points.mask):
            xc, y = points.xc[i, keep].astype(float), points.yc[i, keep, 0] * points.scale[i] + points.loc[i]
            across = kernel(points.xt[i].astype(float), xc)
            gain = np.linalg.solve(kernel(xc, xc) + NOISE * np.eye(len(y)), across.T).T
            out[0, i], out[1, i] = gain @ y, np.sqrt(1 + NOISE - (gain * across).sum(1))
        return out

    def process(_: Predictor, points: Points) -> LocalProcess:
        batch, n = len(points.xt), points.xt.shape[1] + points.xc.shape[1]
        ones = torch.ones(batch, n, 1, dtype=torch.float64)
        metric = torch.eye(2, dtype=torch.float64).expand(batch, 1, 2, 2) / length**2
        weights = torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64).expand(batch, 1, 5)
        return LocalProcess(metric, weights, ones, 0 * ones, NOISE * ones[..., 0])

    patch.setattr(Predictor, "__call__", predictions)
    patch.setattr(Predictor, "process", process)
