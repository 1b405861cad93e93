"""Joint samples at places, from the local Gaussian processes of the squares."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from geonp.inference.joint import fill_samples, noise_of
from geonp.inference.kernel import FillJob
from geonp.inference.simulation import JOINT, Patch, Simulator, joint_errors
from geonp.inference.stitching import Tile
from geonp.raster.arrays import Float64Array, IntArray, StructArray
from geonp.scattered.squares import SQUARES, Observations, Square, embed, root_of

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
    patches = [_patch(square, tile, chosen, places, observations, side) for square, tile, chosen in tiles]
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
) -> Patch:
    """A tile with its places in the plane, first along y, or in space."""
    there = places[tile.targets]
    every = np.concatenate([there, observations.xy[chosen]])
    cells = np.zeros((len(every), 3), np.int64)
    # targets have the noise of their place, measurements of their number
    cells[: len(there), :2] = np.rint(there / (side * _STEP))
    cells[len(there) :, 2] = chosen + 1
    if observations.geographic:
        lon, lat = np.radians(square.middle)
        north = [-np.sin(lat) * np.cos(lon), -np.sin(lat) * np.sin(lon), np.cos(lat)]
        east = [-np.sin(lon), np.cos(lon), 0.0]
        unit = np.radians(square.unit)
        x, jacobian = embed(every, geographic=True), np.array([north, east]) / unit
    else:
        unit = square.unit
        x, jacobian = every[:, ::-1], np.eye(2) / unit
    near = np.arange(len(there))
    return Patch(tile, x, cells, near, jacobian, tile.targets, tile.weights, float(SQUARES.finest_units * unit))
