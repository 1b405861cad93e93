"""Joint samples at places, from the local Gaussian processes of the squares."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from geonp.inference.joint import fill_samples, noise_of
from geonp.inference.kernel import FillJob
from geonp.inference.simulation import JOINT, Patch, Simulator, joint_errors
from geonp.inference.stitching import Tile
from geonp.raster.arrays import Float64Array, IntArray, StructArray
from geonp.raster.surface import axes_at
from geonp.scattered.squares import SQUARES, Observations, Square, embed, middle_of, root_of

_STEP = 2.0**-24
"""Places nearer to each other, relative to the side of the largest square, have the same noise."""


def draw_samples(
    result: StructArray,
    tiles: Iterator[tuple[Square, Tile, IntArray]],
    places: Float64Array,
    observations: Observations,
    job: FillJob,
) -> None:
    """Draw the samples of the results at `places` ``(n, 2)``, in place.

    Parameters
    ----------
    result : array
        ``(n,)``, with the fields of :func:`geonp.inference.kernel.result_dtype`.
    tiles : iterator
        Each tile with its square and the numbers of its context.
    """
    _, _, side = root_of(observations)
    axes = _map_of(observations)
    patches = [_patch(square, tile, chosen, places, observations, side, axes) for square, tile, chosen in tiles]
    largest = side / SQUARES.side_units
    unit = np.radians(largest) if observations.geographic else largest
    simulator = Simulator(job.predictor, noise_of(job, JOINT.pilots + job.samples), None, float(unit))
    fill_samples(result, joint_errors(patches, len(places), simulator, len(patches)))


def _patch(
    square: Square,
    tile: Tile,
    chosen: IntArray,
    places: Float64Array,
    observations: Observations,
    side: float,
    axes: Float64Array | None,
) -> Patch:
    """A tile with its places in the plane, first along y, in space, or on the map with the given `axes`."""
    there = places[tile.targets]
    every = np.concatenate([there, observations.xy[chosen]])
    cells = np.zeros((len(every), 3), np.int64)
    # targets have the noise of their place, measurements of their number
    cells[: len(there), :2] = np.rint(there / (side * _STEP))
    cells[len(there) :, 2] = chosen + 1
    if observations.geographic:
        unit = np.radians(square.unit)
        x, jacobian = embed(every, geographic=True), axes_at(square.middle)[:2] / unit
        if axes is not None:
            x, jacobian = on_map(x, axes), jacobian @ from_map(embed(np.array([square.middle]), True)[0], axes)
    else:
        unit = square.unit
        x, jacobian = every[:, ::-1], np.eye(2) / unit
    near = np.arange(len(there))
    return Patch(tile, x, cells, near, jacobian, tile.targets, tile.weights, float(SQUARES.finest_units * unit))


def _map_of(observations: Observations) -> Float64Array | None:
    """North, east and up in the middle of one map of all observations; None in a plane, or where they are too wide."""
    if not observations.geographic:
        return None
    axes = axes_at(middle_of(observations))
    up = embed(observations.xy, geographic=True) @ axes[2]
    return axes if up.min() >= np.cos(np.radians(SQUARES.mapped_deg)) else None


def on_map(points: Float64Array, axes: Float64Array) -> Float64Array:
    """Stereographic projection ``(n, 2)`` of points of the unit sphere ``(n, 3)``, to the north and to the east."""
    *offset, up = (points @ axes.T).T
    # the opposite point is infinitely far away
    return np.asarray(np.stack(offset, 1) * (2 / np.maximum(1 + up, 1e-6))[:, None])


def from_map(point: Float64Array, axes: Float64Array) -> Float64Array:
    """Derivatives ``(3, 2)`` of points in space by their places on the map, at one of them."""
    x = on_map(point[None], axes)[0]
    ahead = 4 * np.eye(3)[:, :2] - 2 * np.outer(axes @ point + np.array([0.0, 0.0, 1.0]), x)
    return np.asarray(axes.T @ ahead / (4 + x @ x))
