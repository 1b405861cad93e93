"""Classical methods that fill the gaps of one raster, each with a standard error, as baselines for geonp.

Every method takes a ``(y, x)`` array with NaN in the gaps and keeps the observed cells. Distances are in cells. Only
kriging has standard errors of its own. Those of the others are estimated by cross-validation, as a careful user would:
the root mean square residual by distance to the nearest observation (see :func:`with_errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from rasterio.fill import fillnodata
from scipy import ndimage
from scipy.interpolate import LinearNDInterpolator, RBFInterpolator
from scipy.spatial import KDTree, QhullError

from geonp.errors import InputError
from geonp.evaluation.holdout import hide_like_own_gaps
from geonp.evaluation.kriging import krige_gaps, regression_krige_gaps
from geonp.inference.covariates import Layer
from geonp.raster.arrays import Array, FloatArray

Fill = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class BaselineSettings:
    """Settings of the methods: those of common practice, not tuned to any raster."""

    idw_neighbours: int = 16
    idw_power: float = 2.0  # Shepard's
    spline_neighbours: int = 48  # as many as kriging has
    rounds: int = 3  # hold-outs that standard errors are estimated from
    classes_per_octave: int = 2  # classes of distance for a doubling of the distance


SETTINGS = BaselineSettings()


def nearest(values: FloatArray) -> FloatArray:
    """Fill each gap cell with the value of its nearest observed cell."""
    index = ndimage.distance_transform_edt(np.isnan(values), return_distances=False, return_indices=True)
    return np.asarray(values[tuple(index)])


def linear(values: FloatArray) -> FloatArray:
    """Interpolate linearly on a Delaunay triangulation of the observed cells; nearest outside of their convex hull.

    Only observed cells beside a gap or at the edge of the raster are triangulated. No other cell is a corner of a
    triangle that contains a gap cell: the circumcircle of such a triangle is empty and wider than a cell's diagonal, so
    a neighbour of each corner lies inside it.
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


def inverse_distance(values: FloatArray) -> FloatArray:
    """Average the nearest observed cells, as :func:`weighted_by_distance` does."""
    missing = np.isnan(values)
    filled = values.copy()
    filled[missing] = weighted_by_distance(np.argwhere(~missing), values[~missing], np.argwhere(missing))
    return filled


def weighted_by_distance(sites: Array, known: FloatArray, wanted: Array) -> FloatArray:
    """Means of the values of the nearest sites, weighted by ``distance ** -power`` (Shepard, 1968).

    Sites ``(n, d)``, their values ``(n,)``, and the places to predict ``(m, d)``. At a site, its value.
    """
    neighbours = np.arange(1, min(SETTINGS.idw_neighbours, len(sites)) + 1)
    found: Any = KDTree(sites).query(wanted, k=neighbours)
    distance, index = found
    # relative to the nearest, since powers of small distances overflow
    nearest = np.maximum(distance[:, :1], 1e-12 * np.ptp(sites))
    weights = np.maximum(distance / nearest, 1.0) ** -SETTINGS.idw_power
    return np.asarray((weights * known[index]).sum(axis=1) / weights.sum(axis=1))


def thin_plate(values: FloatArray) -> FloatArray:
    """Fit a thin-plate spline with a linear trend to the nearest observed cells of each gap cell.

    :func:`linear` fills all gaps if the neighbours of any gap cell lie on one line, which does not determine a trend.
    """
    missing = np.isnan(values)
    sites = np.argwhere(~missing).astype(float)
    filled = values.copy()
    try:
        neighbours = min(SETTINGS.spline_neighbours, len(sites))
        spline = RBFInterpolator(sites, values[~missing], neighbors=neighbours, kernel="thin_plate_spline")
        filled[missing] = spline(np.argwhere(missing).astype(float))
    except (np.linalg.LinAlgError, ValueError):  # ValueError: fewer than three cells
        return linear(values)
    return filled


FILLS: dict[str, Fill] = {
    "nearest": nearest,
    "linear": linear,
    "gdal": gdal,
    "inverse_distance": inverse_distance,
    "thin_plate": thin_plate,
}
"""Methods without standard errors of their own, by name."""

METHODS = (*FILLS, "kriging")
"""Names of the methods of :func:`predict` that need no covariates."""

ACROSS = "linear_across"
"""Name of the method that interpolates linearly between other slices or times."""

REGRESSION = "regression_kriging"
"""Name of the method of :func:`predict` that uses covariates."""


def drawn_from(seed: int) -> np.random.Generator:
    """The generator of a seed; raises InputError for anything but an integer of at least 0."""
    if not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"Wrong seed: got {seed!r}, expected an integer of at least 0.")
    return np.random.default_rng(int(seed))


def requested(asked: Sequence[str] | None, methods: Sequence[str], needs: Mapping[str, str]) -> Sequence[str]:
    """The baselines that are asked for, of `methods`; by default all of these.

    `needs` says what baselines need that are not always among the methods. Raises InputError for an unknown baseline,
    or one that needs another option.
    """
    if isinstance(asked, str):
        raise InputError(f"baselines must be a sequence of names: got {asked!r}, expected for example [{asked!r}].")
    if unknown := [method for method in asked or () if method not in methods]:
        need = "".join(f" {method} needs {needs[method]}." for method in unknown if method in needs)
        raise InputError(f"Unknown baseline: got {', '.join(unknown)}, expected some of {', '.join(methods)}.{need}")
    return methods if asked is None else asked


def predict(
    method: str, values: FloatArray, rng: np.random.Generator, covariates: Sequence[Layer] = ()
) -> tuple[FloatArray, FloatArray]:
    """Fill the gaps of `values` by one of :data:`METHODS`, or with covariates by :data:`REGRESSION`.

    Raises InputError for an unknown method, values that are not two-dimensional, or fewer than two observed cells.

    Parameters
    ----------
    method : str
        One of :data:`METHODS`, or :data:`REGRESSION`.
    values : array of float
        ``(y, x)``, NaN in the gaps.
    rng : numpy.random.Generator
        Source of the hold-outs that residuals are measured on, or of the patches that kriging is fitted to.

    covariates : sequence of Layer
        Covariates of :data:`REGRESSION`: their gaps are filled by :func:`nearest`, and classes are indicators.

    Returns
    -------
    mean, error : array of float
        ``(y, x)``, in the units of `values`: filled values and standard errors; the error is 0 where observed.
    """
    if method not in (*METHODS, REGRESSION):
        raise InputError(f"unknown method {method!r}: expected one of {[*METHODS, REGRESSION]}")
    if values.ndim != 2 or np.isfinite(values).sum() < 2:
        raise InputError(f"expected a (y, x) array with two observed cells at least, got shape {values.shape}")
    if not np.isnan(values).any():
        return values, np.zeros_like(values)
    if method == REGRESSION:
        return regression_krige_gaps(values, list(_columns(covariates)), rng)
    return krige_gaps(values, rng) if method == "kriging" else with_errors(FILLS[method], values, rng)


def _columns(covariates: Sequence[Layer]) -> Iterator[FloatArray]:
    """Covariates without gaps; those of classes as an indicator of each class but the first."""
    for layer in covariates:
        if np.isfinite(layer.values).any():
            values = nearest(layer.values) if np.isnan(layer.values).any() else layer.values
            yield from [(values == one) * 1.0 for one in np.unique(values)[1:]] if layer.classes else [values]


def with_errors(fill: Fill, values: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Fill the gaps of `values`, with the standard error that `fill` makes at each cell's distance to an observation.

    Observed cells in the shape of the raster's own gaps are hidden and filled, several times. The root mean square of
    the residuals in classes of distance to the nearest observation, each a factor of sqrt(2) wide, is made
    non-decreasing and interpolated in the logarithm of the distance. It is 0 where a cell is observed.
    """
    distances, residuals = [], []
    for _ in range(SETTINGS.rounds):
        test = hide_like_own_gaps(values, rng)
        distances.append(_distance(test.values)[test.hidden])
        residuals.append((fill(test.values) - test.truth)[test.hidden])
    error = rms_at(_distance(values), np.concatenate(distances), np.concatenate(residuals))
    return fill(values), np.where(np.isnan(values), error, 0).astype(values.dtype)


def _distance(values: FloatArray) -> FloatArray:
    """Distance from each cell to the nearest observed one, in cells; 0 where observed."""
    return np.asarray(ndimage.distance_transform_edt(np.isnan(values)))


def rms_at(targets: FloatArray, distance: FloatArray, residual: FloatArray) -> FloatArray:
    """Root mean square of the `residual` at each `distance`, interpolated to the distances `targets`."""
    octave = SETTINGS.classes_per_octave
    level = np.round(octave * np.log2(distance)).astype(int)
    counts = np.bincount(level)
    used = counts > 0
    mean_square = np.bincount(level, residual.astype(float) ** 2)[used] / counts[used]
    rms = np.maximum.accumulate(np.sqrt(mean_square))
    return np.asarray(np.interp(octave * np.log2(np.maximum(targets, 1.0)), np.flatnonzero(used), rms))
