"""Joint samples: errors of the tiles of a fill, simulated from shared noise and blended, and samples made of them.

The simulated errors have the correlations of the local Gaussian processes of the tiles
(:mod:`geonp.nn.simulation`), and variance one. Where tiles overlap, errors are blended as predictions are. That would
lessen their variance, which is restored: it falls by how far the errors of the tiles differ, and that is estimated from
:attr:`JointSettings.pilots` samples that are drawn for this alone. Then each error becomes the quantile of the
predictive distribution at its normal score, so that samples have the distributions of the fill (a Gaussian copula).

Another driver, say of means over cells of another grid, needs the joint errors of a chunk: :func:`errors_of`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from scipy import special

from geonp.inference import student
from geonp.inference.noise import Noise
from geonp.inference.parallel import on_cores
from geonp.inference.predictor import Predictor, one_thread
from geonp.inference.stitching import Tile, batches, pad
from geonp.raster.arrays import AnyIntArray, Float32Array, FloatArray


@dataclass(frozen=True)
class JointSettings:
    """Settings of joint samples."""

    pilots: int = 16
    """Samples that the variance that blending takes is estimated from."""
    most_targets: int = 4096
    """Largest number of targets that are simulated together, which bounds the memory."""


JOINT = JointSettings()

Weighted = tuple[AnyIntArray, FloatArray, FloatArray]
"""Where errors go ``(n_t,)``, their weights there ``(n_t,)``, and the errors ``(n_t, n)`` with variance one."""


@dataclass(frozen=True, eq=False)
class Patch:
    """A tile whose targets stand for the places where errors are simulated.

    Attributes
    ----------
    tile : Tile
        What the model reads. Its amplitudes and noise at a target are those of all places near to it.
    x : array
        Places of targets and context, in this order, ``(n, d)``.
    cells : array of int
        Numbers that identify each, ``(n, numbers)``.
    near : array of int
        Number of a target of the tile for each place ``(n_t,)``.
    jacobian : array
        Derivatives of the coordinates of the model by places, ``(2, d)``.
    targets : array of int
        Where the errors go, ``(n_t,)``.
    weights : array
        Blending weights ``(n_t,)``.
    finest : float
        Length of a cell.
    """

    tile: Tile
    x: FloatArray
    cells: AnyIntArray
    near: AnyIntArray
    jacobian: FloatArray
    targets: AnyIntArray
    weights: FloatArray
    finest: float = 1.0


@dataclass(frozen=True)
class Simulator:
    """Simulates the errors of a batch of patches; picklable.

    Attributes
    ----------
    predictor : Predictor
    noise : Noise
    period : float or None
        Distance after which the last coordinate of places repeats.
    unit : float
        Length that scales are counted from, the same for all patches.
    """

    predictor: Predictor
    noise: Noise
    period: float | None = None
    unit: float = 1.0

    def __call__(self, patches: Sequence[Patch]) -> list[FloatArray]:
        """Errors of each patch ``(n_t, n)``, with variance one."""
        from geonp.nn.simulation import Places, simulate

        points = pad([patch.tile for patch in patches], self.predictor)
        process, found = self.predictor.process(points), []
        with one_thread():
            for k, patch in enumerate(patches):
                n_c, first = len(patch.tile.xc), points.xt.shape[1]
                index = np.concatenate([patch.near, first + np.arange(n_c)])
                places = Places(
                    patch.x, patch.jacobian, tuple(patch.cells.T), n_c, self.period, self.unit, patch.finest
                )
                found.append(simulate(process, k, index, places, self.noise))
        return found


def joint_errors(
    patches: Sequence[Patch], size: int, simulator: Simulator, expected: int = 0, others: Iterable[Weighted] = ()
) -> Float32Array:
    """Blended errors ``(n, size)`` with variance one, NaN where there is no patch.

    The noise of the simulator has ``JOINT.pilots`` more samples than `n`; these come first. `others` are errors of
    other predictions, simulated from the same noise.
    """
    total = np.zeros((simulator.noise.n, size), np.float32)
    squares, weight = np.zeros(size), np.zeros(size)
    of_patches = ((patch.targets, patch.weights, errors) for patch, errors in _simulated(patches, simulator, expected))
    for targets, weights, errors in itertools.chain(of_patches, others):
        total[:, targets] += np.float32(weights) * errors.T
        squares[targets] += weights * (errors[:, : JOINT.pilots] ** 2).mean(1)
        weight[targets] += weights
    with np.errstate(invalid="ignore", divide="ignore"):
        total /= np.float32(weight)
        # the mean of squares less the square of the mean is how far the errors of tiles differ
        lost = squares / weight - (total[: JOINT.pilots] ** 2).mean(0)
    total = total[JOINT.pilots :]
    total /= np.float32(np.sqrt(np.clip(1 - lost, 0.05, 1.0)))
    return total


def _simulated(patches: Sequence[Patch], simulator: Simulator, expected: int) -> Iterator[tuple[Patch, FloatArray]]:
    under_way = deque[list[Patch]]()
    by_tile = {id(patch.tile): patch for patch in patches}

    def groups() -> Iterator[list[Patch]]:
        for batch in batches((patch.tile for patch in patches), simulator.predictor.batch_size):
            under_way.append([by_tile[id(tile)] for tile in batch])
            yield under_way[-1]

    for found in on_cores(simulator, groups(), simulator.predictor.device, expected):
        yield from zip(under_way.popleft(), found, strict=True)


def samples_of(errors: FloatArray, mean: FloatArray, deviation: FloatArray, tail: FloatArray) -> FloatArray:
    """Values of predictive distributions ``(cells,)`` at joint errors ``(n, cells)``, which are normal scores."""
    heavy = tail >= student.LIGHTEST
    scaled = errors.astype(np.float64)
    df = 1 / np.maximum(tail, student.LIGHTEST)
    scaled[:, heavy] = _student_scores(scaled[:, heavy], df[heavy]) * np.sqrt(1 - 2 / df[heavy])
    return np.asarray(mean + deviation * scaled)


def _student_scores(scores: FloatArray, df: FloatArray) -> FloatArray:
    """Quantiles of Student distributions at the probabilities of normal scores, precise on both sides."""
    below = special.stdtrit(df, special.ndtr(-np.abs(scores)))
    return np.asarray(-np.sign(scores) * below)


def nearest(places: FloatArray, targets: FloatArray) -> AnyIntArray:
    """Number of the target that is nearest to each place."""
    return np.asarray(scipy.spatial.cKDTree(targets).query(places)[1], np.intp)
