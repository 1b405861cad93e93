"""Polygons in another CRS, also across the date line and around the poles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from pyproj import CRS, Transformer

from geonp.raster.arrays import Float64Array

_SEGMENTS = 256
"""Number of parts of an edge as long as a polygon, before it is moved: straight lines become curves."""
_TURNS = np.array([[-360.0, 0.0], [0.0, 0.0], [360.0, 0.0]])

_Move = Callable[[Float64Array], Float64Array]


def turns_onto(shapes: Any, west: float, east: float) -> Float64Array:
    """Degrees, whole turns, by which polygons are moved to where some may lie between two longitudes; 0 comes first."""
    import shapely

    left, _, right, _ = shapely.total_bounds(shapes)
    if not np.isfinite([left, right]).all():
        return np.zeros(1)
    turns = 360.0 * np.arange(np.ceil((west - right) / 360.0), np.floor((east - left) / 360.0) + 1)
    return np.append(0.0, turns[turns != 0])


def turned(shapes: Any, west: float, east: float) -> Any:
    """Polygons ``(n,)``, and copies of them that whole turns move to where some may lie between two longitudes."""
    import shapely

    turns = [np.array([turn, 0.0]) for turn in turns_onto(shapes, west, east)]
    return np.concatenate([shapely.transform(shapes, partial(np.add, turn)) for turn in turns])


def moved(shapes: Any, source: CRS, target: CRS, *, geographic: bool) -> Any:
    """Polygons ``(n,)`` of shapely in the CRS `target`, which has longitudes in degrees if it is `geographic`.

    Edges are straight in the CRS `source`. Coordinates that do not exist in `target` are not finite.
    """
    import shapely

    left, bottom, right, top = np.reshape(shapely.bounds(shapes), (-1, 4)).T
    longest = np.nan_to_num(np.maximum(right - left, top - bottom))  # of empty ones, too
    fine = shapely.segmentize(shapes, np.where(longest > 0, longest / _SEGMENTS, 1.0))
    transformer = Transformer.from_crs(source, target, always_xy=True)

    def move(xy: Float64Array) -> Float64Array:
        return np.stack(transformer.transform(*xy.T), axis=1)

    found = shapely.transform(fine, move)
    if geographic:
        west, _, east, _ = np.reshape(shapely.bounds(found), (-1, 4)).T
        for n in np.flatnonzero((east - west > 180) & np.isfinite(east - west)):
            found[n] = _unrolled(fine[n], move, transformer)
    return found


def _unrolled(shape: Any, move: _Move, transformer: Transformer) -> Any:
    """Polygons at longitudes without jumps, that go on beyond 180 degrees, and reach a pole that they surround."""
    import shapely

    poles = np.stack(transformer.transform([0.0, 0.0], [90.0, -90.0], direction="INVERSE"), axis=1)
    parts = []
    for part in shapely.get_parts(shape):
        outer, *holes = (_ring(ring, move, poles) for ring in (part.exterior, *part.interiors))
        turned = [shapely.transform(hole, lambda xy, turn=turn: xy + turn) for hole in holes for turn in _TURNS]
        parts.append(shapely.difference(outer, shapely.union_all(turned)))
    flat = shapely.get_parts(shapely.union_all(parts))
    return shapely.union_all(flat[shapely.get_dimensions(flat) == 2])


def _ring(ring: Any, move: _Move, poles: Float64Array) -> Any:
    """The polygon within a ring; around a pole, from the ring to the pole, over a whole turn."""
    import shapely

    xy = move(shapely.get_coordinates(ring))
    xy[:, 0] = np.unwrap(xy[:, 0], period=360.0)
    xy[:, 0] -= 360.0 * np.floor((xy[:, 0].min() + 180.0) / 360.0)
    if abs(xy[-1, 0] - xy[0, 0]) < 180:
        xy[-1] = xy[0]  # to the last digit
    else:
        north = np.isfinite(poles[0]).all() and shapely.contains_xy(shapely.Polygon(ring), *poles[0])
        pole = 90.0 if north else -90.0
        xy = np.concatenate([xy, [[xy[-1, 0], pole], [xy[0, 0], pole]]])
    return shapely.make_valid(shapely.Polygon(xy))
