"""Classical methods that predict measurements at places, each with a standard error, as baselines for geonp.

Measurements of several times are predicted from those of their time alone. Only kriging has standard errors of its
own. Those of the others are the root mean square residuals at the same distance from a measurement, in other folds
(see :func:`errors_by_distance`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.interpolate import LinearNDInterpolator, RBFInterpolator
from scipy.spatial import Delaunay, KDTree, QhullError

from geonp.evaluation.baselines import ACROSS, SETTINGS, rms_at, weighted_by_distance
from geonp.evaluation.kriging import SETTINGS as KRIGING
from geonp.evaluation.kriging import Matern, fit_patches, krige
from geonp.raster.arrays import Array, Float64Array, IntArray
from geonp.raster.regions import EARTH_RADIUS
from geonp.raster.times import Times
from geonp.scattered.squares import embed, project

EARTH_KM = EARTH_RADIUS / 1000
"""Radius of the sphere on which distances of longitudes and latitudes are measured."""


@dataclass(frozen=True, eq=False)
class Sites:
    """Measurements at places.

    Attributes
    ----------
    plane : array
        Places ``(n, 2)`` in a plane: of longitudes and latitudes, an azimuthal equidistant projection in km.
    space : array
        The same places ``(n, 2)``, or ``(n, 3)`` on a sphere, whose straight distances are those of kriging.
    values : array
        ``(n,)``.
    stations, times : array of int
        Place and time of each measurement ``(n,)``.
    positions : array
        Times ``(n,)`` of which the differences are lengths of time.
    columns : array
        Covariates ``(n, p)`` without gaps.
    """

    plane: Float64Array
    space: Float64Array
    values: Float64Array
    stations: IntArray
    times: IntArray
    positions: Float64Array
    columns: Float64Array

    @classmethod
    def of(
        cls,
        xy: Float64Array,
        geographic: bool,
        values: Float64Array,
        stations: IntArray,
        times: Times | None,
        columns: Float64Array,
    ) -> Sites:
        """From places ``(n, 2)``, longitudes and latitudes in degrees if `geographic`."""
        plane, space = xy, xy
        if geographic:
            space = embed(xy, geographic=True) * EARTH_KM
            lon, lat = np.degrees([np.arctan2(*space.mean(0)[1::-1]), np.arcsin(np.sin(np.radians(xy[:, 1])).mean())])
            plane = project(xy, (float(lon), float(lat)), geographic=True)[:, ::-1] * np.radians(1) * EARTH_KM
        of_rows, positions = np.zeros(len(xy), np.intp), np.zeros(len(xy))
        if times is not None:
            of_rows, positions = times.of_rows, np.array(times.positions())[times.of_rows]
        return cls(plane, space, values, stations, of_rows, positions, columns)

    def at(self, rows: Array) -> Sites:
        """Some of the measurements."""
        return Sites(**{name: array[rows] for name, array in vars(self).items()})

    def distinct(self) -> Sites:
        """Repeated measurements of one place and time as their mean."""
        keys = np.stack([self.stations, self.times], 1)
        first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)[1:]
        if len(first) == len(keys):
            return self
        means = np.bincount(group.ravel(), self.values) / np.bincount(group.ravel())
        return replace(self.at(first), values=means)

    def nearest(self, sites: Float64Array) -> Float64Array:
        """Distances ``(n,)`` to the nearest of some sites in the plane or in space: along the surface, if in km."""
        chord = np.asarray(KDTree(sites).query(self.space)[0])
        return 2 * EARTH_KM * np.arcsin(np.minimum(chord / (2 * EARTH_KM), 1)) if self.space.shape[1] == 3 else chord


def _nearest(known: Sites, hidden: Sites) -> Float64Array:
    return known.values[np.asarray(KDTree(known.space).query(hidden.space)[1])]


@lru_cache(maxsize=1)  # networks of stations are often the same at successive times
def _triangulated(plane: bytes) -> Delaunay:
    return Delaunay(np.frombuffer(plane).reshape(-1, 2))


def _linear(known: Sites, hidden: Sites) -> Float64Array:
    """Linear on a Delaunay triangulation; nearest outside of its hull."""
    outside = _nearest(known, hidden)
    try:
        triangles = _triangulated(known.plane.tobytes())
        inside = LinearNDInterpolator(triangles, known.values)(hidden.plane)
    except (QhullError, ValueError):  # fewer than three places, or all on one line
        return outside
    return np.asarray(np.where(np.isfinite(inside), inside, outside))


def _inverse_distance(known: Sites, hidden: Sites) -> Float64Array:
    return np.asarray(weighted_by_distance(known.space, known.values, hidden.space))


def _thin_plate(known: Sites, hidden: Sites) -> Float64Array:
    """A thin-plate spline with a linear trend through the nearest 48 places."""
    neighbours = min(SETTINGS.spline_neighbours, len(known.values))
    try:
        spline = RBFInterpolator(known.plane, known.values, neighbors=neighbours, kernel="thin_plate_spline")
        return np.asarray(spline(hidden.plane))
    except (np.linalg.LinAlgError, ValueError):  # places on one line, or fewer than three
        return _linear(known, hidden)


POINT_METHODS: dict[str, Callable[[Sites, Sites], Float64Array]] = {
    "nearest": _nearest,
    "linear": _linear,
    "inverse_distance": _inverse_distance,
    "thin_plate": _thin_plate,
}
"""Methods without standard errors of their own, by name."""


def predicted(method: str, known: Sites, hidden: Sites) -> Float64Array:
    """Predictions ``(m,)`` of one of :data:`POINT_METHODS` or of :data:`ACROSS`; NaN at times without measurements."""
    if method == ACROSS:
        return _linear_in_time(known.distinct(), hidden)
    predict = POINT_METHODS[method]
    found = np.asarray(_by_time(known, hidden, lambda here, there: predict(here, there)[None])[0])
    _triangulated.cache_clear()
    return found


def _by_time(
    known: Sites, hidden: Sites, predict: Callable[[Sites, Sites], Float64Array], parts: int = 1
) -> Float64Array:
    """Predictions ``(parts, m)`` of each time from its own measurements."""
    known, out = known.distinct(), np.full((parts, len(hidden.values)), np.nan)
    for time in np.unique(hidden.times):
        here, there = known.times == time, hidden.times == time
        if here.sum() > 1:
            out[:, there] = predict(known.at(here), hidden.at(there))
    return out


def _linear_in_time(known: Sites, hidden: Sites) -> Float64Array:
    """Linear between the nearest times before and after of the same station, else :func:`_linear` in space."""
    out = np.full(len(hidden.values), np.nan)
    order = np.lexsort((known.times, known.stations))
    station, times, values = known.stations[order], known.positions[order], known.values[order]
    for number in np.intersect1d(hidden.stations, station):
        of, there = slice(*np.searchsorted(station, [number, number + 1])), hidden.stations == number
        out[there] = np.interp(hidden.positions[there], times[of], values[of])
    never = ~np.isin(hidden.stations, station)
    out[never] = predicted("linear", known, hidden.at(never))
    return out


def fitted(sites: Sites, rng: np.random.Generator) -> tuple[Matern, float]:
    """A covariance fitted to patches of measurements, each of one time, and its unit of length.

    Repeated measurements count as their mean.
    """
    sites = sites.distinct()
    apart = np.unique(sites.space, axis=0)
    nearest: Any = KDTree(apart).query(apart, k=[2])[0] if len(apart) > 1 else 1.0
    spacing = float(np.median(nearest))
    unit = (spacing or 1.0) / KRIGING.spacing
    counts = np.bincount(sites.times)
    full = np.flatnonzero(counts[sites.times] >= min(np.median(counts[counts > 0]), KRIGING.patch_sample))
    centres = rng.choice(full, KRIGING.patches)
    size = min(KRIGING.patch_sample, int(counts[sites.times[centres]].min()))
    patches = []
    for centre in centres:
        rows = np.flatnonzero(sites.times == sites.times[centre])
        count = min(KRIGING.patch_cells, rows.size)
        near: Any = KDTree(sites.space[rows]).query(sites.space[centre], k=np.arange(1, count + 1))[1]
        patches.append(rng.permutation(rows[near])[:size])
    chosen = np.stack(patches)
    return fit_patches(sites.space[chosen] / unit, sites.values[chosen]), unit


def kriged(known: Sites, hidden: Sites, model: tuple[Matern, float]) -> Float64Array:
    """Means and standard errors ``(2, m)`` of ordinary kriging; with covariates, of the residuals of a regression.

    The regression is by least squares at each time, :data:`REGRESSION` of :mod:`geonp.evaluation.baselines`.
    """
    matern, unit = model

    def predict(here: Sites, there: Sites) -> Float64Array:
        design, wanted = (np.column_stack([np.ones(len(part.values)), part.columns]) for part in (here, there))
        slopes = np.linalg.lstsq(design, here.values)[0] if here.columns.size else np.zeros(1)
        residual = here.values - design @ slopes
        mean, error = krige(here.space / unit, residual, there.space / unit, matern)
        return np.stack([mean + wanted @ slopes, error])

    return _by_time(known, hidden, predict, parts=2)


def detrended(sites: Sites) -> Sites:
    """The residuals of the regression on covariates at each time, to which a covariance is fitted."""
    values = sites.values.copy()
    for time in np.unique(sites.times):
        rows = sites.times == time
        design = np.column_stack([np.ones(rows.sum()), sites.columns[rows]])
        values[rows] -= design @ np.linalg.lstsq(design, values[rows])[0]
    return replace(sites, values=values)


def errors_by_distance(residuals: Float64Array, distance: Float64Array, folds: IntArray) -> Float64Array:
    """Standard errors ``(n,)``: root mean square residuals in classes of distance, of all other folds.

    The classes are those of :func:`geonp.evaluation.baselines.with_errors`, relative to the smallest distance.
    """
    # a measurement may be the only one of its time
    known, out = np.isfinite(residuals) & np.isfinite(distance), np.full(len(residuals), np.nan)
    if not known.any():
        return out
    smallest = max(float(np.quantile(distance[known], 0.05)), 1e-12 * float(distance[known].max()), 1e-300)
    scaled = np.maximum(distance / smallest, 1.0)
    for fold in np.unique(folds):
        of = known & (folds != fold)
        if of.any():
            out[folds == fold] = rms_at(scaled[folds == fold], scaled[of], residuals[of])
    return out
