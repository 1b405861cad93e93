"""From observations at scattered places to squares, the tiles of scattered data, and the context of each.

A square is split where its surroundings are full of observations, so that the sides of squares follow their density.
The model counts distances in sixteenths of a square's side: what it sees is as dense everywhere as in its training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from geonp.inference.thinning import curve, start_of, thinned

__all__ = ["OVERLAP_UNITS", "Observations", "Square", "blend_weights", "near_first", "project", "squares_of"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

SIDE_UNITS = 16
"""Side of a square in the units that its model sees."""

OVERLAP_UNITS = 8.0
"""How far the predictions of a square may reach into its neighbours, at most."""

OWN, CROWD = 96, 320
"""A square is split if it holds more observations, or twice its side does: the context has room for all of its own, and
for some around them."""

CANDIDATES = 1024
"""Nearest observations of a square that its context is chosen from."""


CURVE_STEPS = 2**16
"""Observations are put on a lattice of so many cells a side, to be ordered along a curve."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Values at places: longitudes and latitudes in degrees if `geographic`, else any plane coordinates.

    Attributes
    ----------
    xy : array
        ``(n, 2)``.
    values : array
        ``(n,)``, finite.
    geographic : bool
    seed : int
        Of the choice of far context.
    """

    xy: FloatArray
    values: FloatArray
    geographic: bool
    seed: int = 0

    @cached_property
    def tree(self) -> cKDTree:
        """Of the places in the metric that neighbours are chosen by."""
        return cKDTree(embed(self.xy, self.geographic))

    @cached_property
    def flat(self) -> cKDTree:
        """Of the coordinates themselves, longitudes going round."""
        return _flat_tree(self.xy, self.geographic)

    def distance(self, xy: FloatArray) -> FloatArray:
        """Distance of places ``(n, 2)`` from the nearest observation, in the unit of the coordinates."""
        chord = self.tree.query(embed(xy, self.geographic))[0]
        return np.asarray(np.degrees(2 * np.arcsin(np.minimum(chord / 2, 1))) if self.geographic else chord)


@dataclass(frozen=True)
class Square:
    """The square from ``(x, y)`` to ``(x + side, y + side)``, in the unit of the coordinates."""

    x: float
    y: float
    side: float

    @property
    def middle(self) -> tuple[float, float]:
        """Its x and y."""
        return self.x + self.side / 2, self.y + self.side / 2

    @property
    def unit(self) -> float:
        """What the model sees as a distance of one."""
        return self.side / SIDE_UNITS


def embed(xy: FloatArray, geographic: bool) -> FloatArray:
    """Places as points of the plane, or of the unit sphere ``(n, 3)``."""
    if not geographic:
        return np.asarray(xy, np.float64)
    lon, lat = np.radians(np.asarray(xy, np.float64)).T
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)


def project(xy: FloatArray, middle: tuple[float, float], geographic: bool) -> FloatArray:
    """Offsets from `middle` ``(n, 2)`` in the unit of the coordinates, first along y.

    Those in the plane, or on the sphere those of an azimuthal equidistant projection.
    """
    if not geographic:
        return np.asarray((xy - np.array(middle))[:, ::-1])
    lon, lat = np.radians(middle)
    east = np.array([-math.sin(lon), math.cos(lon), 0.0])
    north = np.array([-math.sin(lat) * math.cos(lon), -math.sin(lat) * math.sin(lon), math.cos(lat)])
    up = embed(np.array([middle]), geographic=True)[0]
    places = embed(xy, geographic=True)
    across = places @ np.stack([north, east], 1)
    sine = np.linalg.norm(across, axis=1)
    angle = np.degrees(np.arctan2(sine, places @ up))
    return np.asarray(across * (angle / np.maximum(sine, 1e-300))[:, None])


def squares_of(observations: Observations, bounds: tuple[float, float, float, float]) -> list[Square]:
    """The squares that hold or reach the places within `bounds` (west, south, east, north).

    The bounds only choose among them: asked for in parts, a prediction stays the same.
    """
    x, y, side = _root(observations)
    west, south, east, north = bounds
    if not observations.geographic:
        first = np.floor((np.array([west, south]) - [x, y]) / side - 0.5).astype(int)
        last = np.floor((np.array([east, north]) - [x, y]) / side + 0.5).astype(int)
        open_ = np.array([(i, j) for i in range(first[0], last[0] + 1) for j in range(first[1], last[1] + 1)], float)
        open_ = open_ * side + [x, y]
    else:
        open_ = np.array([[x, y]])
    found: list[Square] = []
    while len(open_):
        open_ = open_[_reaches(open_, side, bounds, observations.geographic)]
        if not len(open_):
            break
        own, crowd = (_count(observations, open_ + side / 2, radius) for radius in (side / 2, side))
        split = ((own > OWN) | (crowd > CROWD)) & (side > 1e-9 * max(abs(x), abs(y), 1.0))
        found += [Square(float(a), float(b), side) for a, b in open_[~split]]
        side /= 2
        open_ = np.concatenate([open_[split] + np.array([i, j]) * side for i in (0, 1) for j in (0, 1)])
    return found


def _root(observations: Observations) -> tuple[float, float, float]:
    """Corner and side of the square, or of one square of the lattice, that all others are parts of."""
    if observations.geographic:
        return -180.0, -180.0, 360.0
    xy = observations.xy
    low, extent = xy.min(0), np.ptp(xy, axis=0)
    # a square of the average density has 64 observations of its own, far from being split or joined by chance
    area = float(np.prod(np.maximum(extent, 1e-3 * extent.max())))
    side = math.sqrt(64 * area / len(xy)) if area > 0 else 1.0
    return float(low[0]), float(low[1]), side * 2.0 ** math.ceil(math.log2(max(float(extent.max()) / side, 1.0)))


def _reaches(
    corners: FloatArray, side: float, bounds: tuple[float, float, float, float], geographic: bool
) -> npt.NDArray[np.bool_]:
    west, south, east, north = bounds
    lap = side / SIDE_UNITS * OVERLAP_UNITS
    x, y = corners.T
    in_y = (y - lap <= north) & (y + side + lap >= south)
    if not geographic:
        return np.asarray(in_y & (x - lap <= east) & (x + side + lap >= west))
    # longitudes go round
    ahead = np.mod(x - lap - west, 360.0) <= east - west
    return np.asarray(in_y & (ahead | (np.mod(west - (x - lap), 360.0) <= side + 2 * lap)))


def _flat_tree(xy: FloatArray, geographic: bool) -> cKDTree:
    if not geographic:
        return cKDTree(xy)
    wrapped = np.stack([np.mod(xy[:, 0], 360.0), xy[:, 1]], 1)
    wrapped[wrapped[:, 0] >= 360.0, 0] = 0.0
    return cKDTree(wrapped, boxsize=np.array([360.0, 0.0]))


def _count(observations: Observations, middles: FloatArray, radius: float) -> IntArray:
    """How many observations lie in the squares of twice `radius` around `middles`."""
    if observations.geographic:
        middles = np.stack([np.mod(middles[:, 0], 360.0), middles[:, 1]], 1)
    found = observations.flat.query_ball_point(middles, radius, p=np.inf, return_length=True)
    return np.asarray(found, np.intp)


def near_first(
    observations: Observations, square: Square, n_context: int, thinning: float
) -> tuple[IntArray, FloatArray]:
    """Choose the context of a square: all that is near, ever less of what is far.

    By :func:`geonp.inference.thinning.thinned`, as for rasters, d the distance from the square in its units.

    Returns
    -------
    tuple of array
        Their indices ``(k,)`` and offsets from the middle of the square in its units ``(k, 2)``.
    """
    here = embed(np.array([square.middle]), observations.geographic)
    k = min(max(CANDIDATES, n_context), len(observations.xy))
    near = np.atleast_1d(observations.tree.query(here[0], k)[1]).astype(np.intp)
    offset = project(observations.xy[near], square.middle, observations.geographic) / square.unit
    half = np.array([SIDE_UNITS / 2, SIDE_UNITS / 2 * _narrowing(square, observations.geographic)])
    distance = np.linalg.norm(np.maximum(np.abs(offset) - half, 0.0), axis=1)
    order = _along(offset, observations.values[near])
    if len(order) > n_context:
        order = order[thinned(distance[order], n_context, thinning, start_of(observations.seed))]
    return near[order], offset[order]


def _along(offset: FloatArray, values: FloatArray) -> IntArray:
    """Order of places ``(n, 2)`` along a curve, whatever the order they are given in."""
    fraction = (offset - offset.min(0)) / max(float(np.ptp(offset, axis=0).max()), 1e-300)
    rows, cols = (fraction * CURVE_STEPS).astype(np.int64).T
    return np.lexsort((values, *offset.T, curve(rows, cols)))


def _narrowing(square: Square, geographic: bool) -> float:
    return max(math.cos(math.radians(square.middle[1])), 0.05) if geographic else 1.0


def blend_weights(xy: FloatArray, distance: FloatArray, square: Square, geographic: bool) -> FloatArray:
    """Weights of a square's predictions of the places ``(n, 2)``; those of neighbours of one size add up to one.

    Predictions reach half a unit farther out than a place's `distance` from the nearest observation: squares that see
    the same data agree next to it, and differ most about what is far from all.
    """
    lap = np.minimum(0.5 + distance / square.unit, OVERLAP_UNITS)
    weights = np.ones(len(xy))
    for axis, start in enumerate((square.x, square.y)):
        narrow = _narrowing(square, geographic) if axis == 0 else 1.0
        from_middle = xy[:, axis] - (start + square.side / 2)
        if geographic and axis == 0:
            from_middle = np.mod(from_middle + 180.0, 360.0) - 180.0
        depth = (SIDE_UNITS / 2 - np.abs(from_middle) / square.unit) * narrow
        reach = np.minimum(lap, OVERLAP_UNITS * narrow)
        weights *= np.clip((depth + reach) / (2 * reach), 0.0, 1.0)
    return weights


def grouped(targets: FloatArray, squares: Sequence[Square], geographic: bool) -> list[IntArray]:
    """Indices of the targets ``(n, 2)`` that each square may reach."""
    tree = _flat_tree(targets, geographic)
    middles = np.array([square.middle for square in squares])
    if geographic:
        middles[:, 0] = np.mod(middles[:, 0], 360.0)
    reach = np.array([square.unit * (SIDE_UNITS / 2 + OVERLAP_UNITS) for square in squares])
    return [np.sort(np.asarray(i, np.intp)) for i in tree.query_ball_point(middles, reach, p=np.inf)]
