"""Squares: the tiles of scattered observations, and the context of each.

A square is split if it and its surroundings hold too many observations, so the sides of squares follow their density.
The model sees distances in sixteenths of a side: observations are as dense for it everywhere as in its training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.spatial import cKDTree

from geonp.errors import InputError
from geonp.inference.covariates import Layer
from geonp.inference.thinning import curve, start_of, thinned
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray, IntArray
from geonp.raster.surface import embed as on_sphere
from geonp.raster.surface import flattened


@dataclass(frozen=True)
class SquareSettings:
    """Settings of the squares. A unit is the distance that the model sees as one cell."""

    side_units: int = 16
    """Side of a square, as that of the tiles in training."""
    overlap_units: float = 8.0
    """Largest distance to which predictions extend into neighbouring squares."""
    most_inside: int = 96
    """A square with more observations is split: a context of 256 has room for them and for some around them."""
    most_around: int = 320
    """A square is split if the square of twice its side, around it, holds more observations."""
    average_inside: int = 64
    """Observations in a square of average density, well below `most_inside`, so that chance does not split it."""
    candidates: int = 1024
    """Number of observations that the context is chosen from at each density: the nearest of all, and, farther away, of
    a quarter of them, a sixteenth, ..."""
    finest_units: float = 0.25
    """Length of a cell of joint samples: variation within is noise of single places."""
    most: int = 2**18
    """Largest number of the largest squares."""
    curve_steps: int = 2**16
    """Side of the lattice on which observations are ordered along a curve."""
    shared_deg: float = 15.0
    """Largest distance of observations from their middle, in degrees, for one map of all: lengths there are 1 % off."""
    shared_reach_deg: float = 30.0
    """Largest distance from the middle of observations at which squares are seen in this map."""
    mapped_deg: float = 45.0
    """Largest distance of observations from their middle for joint samples in one conformal map, on which lengths there
    are 17 % larger than in the middle: a sum of noise has a sixth of the terms that it has in space."""
    narrowest: float = 0.05
    """Smallest ratio of a degree of longitude to one of latitude, so that squares at the poles keep a width."""


SQUARES = SquareSettings()


@dataclass(frozen=True, eq=False)
class Observations:
    """Values at places.

    Attributes
    ----------
    xy : array
        Coordinates ``(n, 2)``.
    values : array
        Finite values ``(n,)``.
    geographic : bool
        True if the coordinates are longitudes and latitudes in degrees, False if they are plane coordinates.
    seed : int
        Seed for sampling distant context points.
    covariates : tuple of Layer
        Covariates ``(n,)``, NaN where unknown.
    errors : array, optional
        Known standard errors of the values ``(n,)``.
    """

    xy: Float64Array
    values: FloatArray
    geographic: bool
    seed: int = 0
    covariates: tuple[Layer, ...] = ()
    errors: Float64Array | None = None

    @cached_property
    def tree(self) -> cKDTree:
        """Tree of the places in the plane, or on the unit sphere."""
        return cKDTree(embed(self.xy, self.geographic))

    @cached_property
    def sparser(self) -> list[tuple[IntArray, cKDTree]]:
        """All observations, every fourth, every sixteenth, ..., until few are left: indices, and trees of the places.

        Every part of the plane keeps its share, since they are counted along a curve.
        """
        order, levels = along_curve(self.xy, self.values), [(np.arange(len(self.xy)), self.tree)]
        while len(levels[-1][0]) > SQUARES.candidates:
            order = order[1::4]
            levels.append((order, cKDTree(self.tree.data[order])))
        return levels

    @cached_property
    def flat(self) -> cKDTree:
        """Tree of the coordinates, with periodic longitudes."""
        return _flat_tree(self.xy, self.geographic)

    def distance(self, xy: Float64Array) -> Float64Array:
        """Distances ``(n,)`` of places ``(n, 2)`` from the nearest observation, in the unit of the coordinates."""
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
        """X and y of the centre."""
        return self.x + self.side / 2, self.y + self.side / 2

    @property
    def unit(self) -> float:
        """Distance that the model sees as one, in the unit of the coordinates."""
        return self.side / SQUARES.side_units


def embed(xy: Float64Array, geographic: bool) -> Float64Array:
    """Places as points in the plane ``(n, 2)``, or on the unit sphere ``(n, 3)``."""
    return on_sphere(xy) if geographic else np.asarray(xy, np.float64)


def project(xy: Float64Array, middle: tuple[float, float], geographic: bool) -> Float64Array:
    """Offsets from `middle` ``(n, 2)``, y first, in the unit of the coordinates."""
    if not geographic:
        return np.asarray((xy - np.array(middle))[:, ::-1])
    return flattened(on_sphere(xy), middle)


def squares_of(observations: Observations, bounds: tuple[float, float, float, float]) -> list[Square]:
    """The squares whose predictions cover the places within `bounds` (west, south, east, north).

    Squares do not depend on the bounds, which only select them: predictions in parts are the same. Raises InputError if
    the bounds are so wide beside the places of the measurements that no memory holds the squares.
    """
    x, y, side = root_of(observations)
    west, south, east, north = bounds
    if not observations.geographic:
        lowest = np.floor((np.array([west, south]) - [x, y]) / side - 0.5)
        highest = np.floor((np.array([east, north]) - [x, y]) / side + 0.5)
        if not np.prod(highest - lowest + 1) <= SQUARES.most:
            (left, bottom), (right, top) = observations.xy.min(0), observations.xy.max(0)
            raise InputError(
                "the places to predict reach too far beyond the measurements: got x from "
                f"{west:g} to {east:g} and y from {south:g} to {north:g}, expected some around those of the "
                f"measurements, from {left:g} to {right:g} and {bottom:g} to {top:g}; check that both are in one CRS "
                "and unit (crs=..., --crs)"
            )
        first, last = lowest.astype(int), highest.astype(int)
        open_ = np.array([(i, j) for i in range(first[0], last[0] + 1) for j in range(first[1], last[1] + 1)], float)
        open_ = open_ * side + [x, y]
    else:
        open_ = np.array([[x, y]])
    squares: list[Square] = []
    widest = _widest(observations)
    while len(open_):
        open_ = open_[_reaches(open_, side, bounds, observations.geographic)]
        if not len(open_):
            break
        inside, around = (_count(observations, open_ + side / 2, radius) for radius in (side / 2, side))
        # places that coincide are not split beyond the resolution of float64
        resolved = side > 1e-9 * max(abs(x), abs(y), 1.0)
        crowded = (inside > SQUARES.most_inside) | (around > SQUARES.most_around)
        split = (crowded | ((side > widest) & (around > 0))) & resolved
        squares += [Square(float(a), float(b), side) for a, b in open_[~split]]
        side /= 2
        open_ = np.concatenate([open_[split] + np.array([i, j]) * side for i in (0, 1) for j in (0, 1)])
    return squares


def frames_of(observations: Observations, squares: Sequence[Square], n_context: int) -> list[Square]:
    """The square whose context and centre are used in place of each square.

    If all observations are the context of all squares, those of one side differ only in the origin of the map. They are
    then read as one, in the middle of all observations. On the sphere, only where one map does for all.
    """
    if len(observations.xy) > n_context:
        return list(squares)
    if not observations.geographic:
        x, y = (observations.xy.min(0) + observations.xy.max(0)) / 2
        near = [True] * len(squares)
    else:
        x, y = middle_of(observations)
        middles = np.array([square.middle for square in squares]).reshape(-1, 2)
        every = [project(xy, (x, y), geographic=True) for xy in (observations.xy, middles)]
        far, near = (np.linalg.norm(offset, axis=1) for offset in every)
        near = (near <= SQUARES.shared_reach_deg) & (far.max() <= SQUARES.shared_deg)
    return [
        Square(float(x) - square.side / 2, float(y) - square.side / 2, square.side) if one else square
        for square, one in zip(squares, near, strict=True)
    ]


def middle_of(observations: Observations) -> tuple[float, float]:
    """Longitude and latitude of the mean of all places in space."""
    x, y, z = embed(observations.xy, geographic=True).mean(0)
    return math.degrees(math.atan2(y, x)), math.degrees(math.atan2(z, math.hypot(x, y)))


def root_of(observations: Observations) -> tuple[float, float, float]:
    """Corner and side of the largest square, or of one square of a lattice of such squares in the plane."""
    if observations.geographic:
        return -180.0, -180.0, 360.0
    low = observations.xy.min(0)
    return float(low[0]), float(low[1]), _widest(observations)


def _widest(observations: Observations) -> float:
    """Largest side of squares near observations: one holds all of them, or as many as a square of average density."""
    extent, most = np.ptp(observations.xy, axis=0), 1.0
    if observations.geographic:
        lon, lat = np.sort(np.mod(observations.xy[:, 0], 360.0)), observations.xy[:, 1]
        around = 360.0 - np.diff(lon, append=lon[0] + 360.0).max()
        extent, most = np.array([around * np.cos(np.radians(lat)).mean(), extent[1]]), 360.0
    # places on a line have an area, too
    area = float(np.prod(np.maximum(extent, 1e-3 * extent.max())))
    side = math.sqrt(SQUARES.average_inside * area / len(observations.xy)) if area > 0 else most
    return side * 2.0 ** math.ceil(math.log2(max(float(extent.max()) / side, 1.0)))


def _reaches(
    corners: Float64Array, side: float, bounds: tuple[float, float, float, float], geographic: bool
) -> BoolArray:
    west, south, east, north = bounds
    overlap = side / SQUARES.side_units * SQUARES.overlap_units
    x, y = corners.T
    in_y = (y - overlap <= north) & (y + side + overlap >= south)
    if not geographic:
        return np.asarray(in_y & (x - overlap <= east) & (x + side + overlap >= west))
    # longitudes are periodic
    ahead = np.mod(x - overlap - west, 360.0) <= east - west
    return np.asarray(in_y & (ahead | (np.mod(west - (x - overlap), 360.0) <= side + 2 * overlap)))


def _flat_tree(xy: Float64Array, geographic: bool) -> cKDTree:
    if not geographic:
        return cKDTree(xy)
    wrapped = np.stack([np.mod(xy[:, 0], 360.0), xy[:, 1]], 1)
    wrapped[wrapped[:, 0] >= 360.0, 0] = 0.0
    return cKDTree(wrapped, boxsize=np.array([360.0, 0.0]))


def _count(observations: Observations, middles: Float64Array, radius: float) -> IntArray:
    """Numbers of observations in squares of side ``2 * radius`` around `middles`."""
    if observations.geographic:
        middles = np.stack([np.mod(middles[:, 0], 360.0), middles[:, 1]], 1)
    return np.asarray(observations.flat.query_ball_point(middles, radius, p=np.inf, return_length=True), np.intp)


def square_context(
    observations: Observations, square: Square, n_context: int, thinning: float
) -> tuple[IntArray, Float64Array]:
    """Choose the context of a square: all near observations, and a share of the others that falls with distance.

    As for rasters, by :func:`geonp.inference.thinning.thinned`, with distances from the square in its units.

    Returns
    -------
    tuple of array
        Indices ``(k,)`` and offsets from the centre of the square, in its units ``(k, 2)``.
    """
    near, share = candidates_of(observations, square, n_context)
    offset = project(observations.xy[near], square.middle, observations.geographic) / square.unit
    half = SQUARES.side_units / 2 * np.array([1.0, _narrowing(square, observations.geographic)])
    distance = np.linalg.norm(np.maximum(np.abs(offset) - half, 0.0), axis=1)
    order = along_curve(offset, observations.values[near])
    if len(order) > n_context:
        start = start_of(observations.seed)
        order = order[thinned(distance[order], n_context, thinning, start, share[order])]
    return near[order], offset[order]


def candidates_of(observations: Observations, square: Square, n_context: int) -> tuple[IntArray, FloatArray]:
    """Indices of the observations that a context is chosen from, and how many each stands for."""
    here = embed(np.array([square.middle]), observations.geographic)[0]
    indices, shares, reached = [], [], -1.0
    for level, (index, tree) in enumerate(observations.sparser):
        k = min(max(SQUARES.candidates, n_context), len(index))
        distance, near = (np.atleast_1d(found) for found in tree.query(here, k))
        beyond = distance > reached
        indices.append(index[near[beyond]])
        shares.append(np.full(np.count_nonzero(beyond), 4.0**level))
        reached = float(distance[-1])
    return np.concatenate(indices), np.concatenate(shares)


def along_curve(offset: Float64Array, values: FloatArray) -> IntArray:
    """Order of places ``(n, 2)`` along a curve; does not depend on the order in which they are given."""
    fraction = (offset - offset.min(0)) / max(float(np.ptp(offset, axis=0).max()), 1e-300)
    rows, cols = (fraction * SQUARES.curve_steps).astype(np.int64).T
    return np.lexsort((values, *offset.T, curve(rows, cols)))


def _narrowing(square: Square, geographic: bool) -> float:
    return max(math.cos(math.radians(square.middle[1])), SQUARES.narrowest) if geographic else 1.0


def blend_weights(xy: Float64Array, distance: Float64Array, square: Square, geographic: bool) -> Float64Array:
    """Weights ``(n,)`` of the predictions of a square at places ``(n, 2)``; those of neighbours of one side sum to one.

    Predictions extend into neighbours by half a unit more than the `distance` of a place from the nearest observation:
    squares agree next to observations that both read, and differ most far from all observations.
    """
    overlap = np.minimum(0.5 + distance / square.unit, SQUARES.overlap_units)
    weights = np.ones(len(xy))
    for axis, start in enumerate((square.x, square.y)):
        narrow = _narrowing(square, geographic) if axis == 0 else 1.0
        from_middle = xy[:, axis] - (start + square.side / 2)
        if geographic and axis == 0:
            from_middle = np.mod(from_middle + 180.0, 360.0) - 180.0
        depth = (SQUARES.side_units / 2 - np.abs(from_middle) / square.unit) * narrow
        reach = np.minimum(overlap, SQUARES.overlap_units * narrow)
        weights *= np.clip((depth + reach) / (2 * reach), 0.0, 1.0)
    return weights


def grouped(targets: Float64Array, squares: Sequence[Square], geographic: bool) -> list[IntArray]:
    """Indices of the targets ``(n, 2)`` that the predictions of each square may cover."""
    tree = _flat_tree(targets, geographic)
    middles = np.array([square.middle for square in squares])
    if geographic:
        middles[:, 0] = np.mod(middles[:, 0], 360.0)
    reach = np.array([square.unit * (SQUARES.side_units / 2 + SQUARES.overlap_units) for square in squares])
    return [np.sort(np.asarray(i, np.intp)) for i in tree.query_ball_point(middles, reach, p=np.inf)]
