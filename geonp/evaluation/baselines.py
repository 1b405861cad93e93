"""Classical methods to fill the gaps of one raster, each with a standard error, to compare geonp with.

Every method takes a ``(y, x)`` array with NaN in its gaps and leaves the observed cells as they are. Distances are in
cells. Only kriging has a standard error of its own. The others get one that is ours: the root mean square of their
residuals by distance to the nearest observation, measured by hiding gap-shaped parts of the same raster (see
:func:`with_errors`). It is what a careful user of these methods could say about them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from rasterio.fill import fillnodata
from scipy import ndimage
from scipy.interpolate import LinearNDInterpolator, RBFInterpolator
from scipy.spatial import KDTree, QhullError

from geonp.errors import InputError
from geonp.evaluation.holdout import hide_like_own_gaps
from geonp.evaluation.kriging import krige_gaps

__all__ = ["FILLS", "METHODS", "gdal", "inverse_distance", "linear", "nearest", "predict", "thin_plate", "with_errors"]

FloatArray = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]
Fill = Callable[[FloatArray], FloatArray]


def nearest(values: FloatArray) -> FloatArray:
    """Fill each gap cell with the value of its nearest observed cell."""
    index = ndimage.distance_transform_edt(np.isnan(values), return_distances=False, return_indices=True)
    return np.asarray(values[tuple(index)])


def linear(values: FloatArray) -> FloatArray:
    """Interpolate linearly on a Delaunay triangulation of the observed cells; nearest outside their hull.

    Only observed cells beside a gap or at the edge of the raster are triangulated: a triangle that contains a gap cell
    has an empty circumcircle of a radius above half a diagonal, which covers a neighbour of each of its corners.
    """
    missing = np.isnan(values)
    rim = ~missing & ndimage.binary_dilation(missing, np.ones((3, 3), bool), border_value=True)
    try:
        interpolator = LinearNDInterpolator(np.argwhere(rim), values[rim])
    except (QhullError, ValueError):  # fewer than three cells, or all on one line
        return nearest(values)
    filled = values.copy()
    filled[missing] = interpolator(np.argwhere(missing))
    return nearest(filled)


def gdal(values: FloatArray) -> FloatArray:
    """Fill as ``gdal_fillnodata`` does: inverse distances along rays in four quadrants, unsmoothed, in float32."""
    missing = np.isnan(values)
    filled = fillnodata(
        np.where(missing, 0, values).astype(np.float32), mask=~missing, max_search_distance=float(max(values.shape))
    )
    return np.where(missing, filled, values).astype(values.dtype)


def inverse_distance(values: FloatArray, neighbours: int = 16, power: float = 2.0) -> FloatArray:
    """Average the nearest observed cells, weighted by ``distance ** -power``."""
    missing = np.isnan(values)
    sites, known = np.argwhere(~missing), values[~missing]
    distance, index = KDTree(sites).query(np.argwhere(missing), k=np.arange(1, min(neighbours, len(sites)) + 1))
    weights = distance**-power
    filled = values.copy()
    filled[missing] = (weights * known[index]).sum(axis=1) / weights.sum(axis=1)
    return filled


def thin_plate(values: FloatArray, neighbours: int = 48) -> FloatArray:
    """Fit a thin-plate spline, with a linear trend, to the nearest observed cells of each gap cell.

    Where some gap cell has all of these on one line, which leave its trend open, all are filled by :func:`linear`.
    """
    missing = np.isnan(values)
    sites = np.argwhere(~missing).astype(float)
    filled = values.copy()
    try:
        count = min(neighbours, len(sites))
        spline = RBFInterpolator(sites, values[~missing], neighbors=count, kernel="thin_plate_spline")
        filled[missing] = spline(np.argwhere(missing).astype(float))
    except (np.linalg.LinAlgError, ValueError):  # the latter for fewer than three cells
        return linear(values)
    return filled


FILLS: dict[str, Fill] = {
    "nearest": nearest,
    "linear": linear,
    "gdal": gdal,
    "inverse_distance": inverse_distance,
    "thin_plate": thin_plate,
}
"""Methods that give a mean only, by name."""

METHODS = (*FILLS, "kriging")
"""Names that :func:`predict` knows."""


def predict(method: str, values: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Fill the gaps of `values` by one of :data:`METHODS`.

    Parameters
    ----------
    method : str
        One of :data:`METHODS`.
    values : array of float
        ``(y, x)``, NaN in the gaps.
    rng : numpy.random.Generator
        Source of what is hidden to measure residuals, or of the patches that kriging is fitted to.

    Returns
    -------
    mean, error : array of float
        ``(y, x)``, in the units of `values`: filled values and standard errors, those of observed cells zero.

    Raises
    ------
    InputError
        For an unknown method, values that are not two-dimensional, or fewer than two observed cells.
    """
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}: expected one of {list(METHODS)}")
    if values.ndim != 2 or np.isfinite(values).sum() < 2:
        raise InputError(f"expected a (y, x) array with two observed cells at least, got shape {values.shape}")
    if not np.isnan(values).any():
        return values, np.zeros_like(values)
    return krige_gaps(values, rng) if method == "kriging" else with_errors(FILLS[method], values, rng)


def with_errors(
    fill: Fill, values: FloatArray, rng: np.random.Generator, rounds: int = 3
) -> tuple[FloatArray, FloatArray]:
    """Fill the gaps of `values` and give each filled cell the error that `fill` makes at its distance.

    In each of `rounds`, parts of the observed cells in the shape of the raster's own gaps are hidden and filled. The
    root mean square of the residuals is taken over classes of distance to the nearest observation, each a factor
    of sqrt(2) wide, made non-decreasing, and interpolated in the logarithm of the distance.

    Returns
    -------
    mean, error : array of float
        ``(y, x)``, in the units of `values`; `error` is zero where observed.
    """
    distances, residuals = [], []
    for _ in range(rounds):
        test = hide_like_own_gaps(values, rng)
        distances.append(_distance(test.values)[test.hidden])
        residuals.append((fill(test.values) - test.truth)[test.hidden])
    error = _by_distance(np.concatenate(distances), np.concatenate(residuals), _distance(values))
    return fill(values), np.where(np.isnan(values), error, 0).astype(values.dtype)


def _distance(values: FloatArray) -> FloatArray:
    """Distance from each cell to the nearest observed one, in cells; zero where observed."""
    return np.asarray(ndimage.distance_transform_edt(np.isnan(values)))


def _by_distance(distance: FloatArray, residual: FloatArray, wanted: FloatArray) -> FloatArray:
    """Root mean square of `residual` by `distance`, at the distances `wanted`."""
    level = np.round(2 * np.log2(distance)).astype(int)
    counts = np.bincount(level)
    used = counts > 0
    squares = np.bincount(level, residual.astype(float) ** 2)[used] / counts[used]
    spread = np.maximum.accumulate(np.sqrt(squares))
    return np.asarray(np.interp(2 * np.log2(np.maximum(wanted, 1.0)), np.flatnonzero(used), spread))
