"""Folds of measurements: which are hidden together and predicted from the others.

Scores of randomly hidden measurements are too good for places far from all measurements, because the neighbours of a
hidden one are known (Roberts et al. 2017, Ecography 40, 913-929). Blocks, stations and periods are hidden as a whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from geonp.errors import InputError
from geonp.raster.arrays import Float64Array, IntArray

FOLDS = {
    "random": "Random folds",
    "one": "Leave-one-out",
    "blocks": "Folds of square blocks",
    "stations": "Folds of stations",
    "periods": "Folds of periods at each station",
}
"""Kinds of folds, with the words that describe them."""


@dataclass(frozen=True)
class FoldSettings:
    """Settings of folds of measurements and of their scores."""

    blocks: int = 4
    """Number of blocks of a fold, if their size is not given."""
    least: int = 5
    """Smallest number of measurements: a prediction needs four others."""
    classes: int = 6
    """Largest number of classes of distance."""
    doubtful: int = 10
    """Number of measurements in the list of the most doubtful ones."""


SETTINGS = FoldSettings()


def folds_of(
    kind: str,
    folds: int,
    xy: Float64Array,
    stations: IntArray,
    times: IntArray | None,
    rng: np.random.Generator,
    block_size: float | None = None,
) -> IntArray:
    """The fold of each measurement ``(n,)``, numbered from 0.

    Raises InputError for an unknown kind, periods without times, a size without blocks, and fewer groups than folds.

    Parameters
    ----------
    kind : str
        One of :data:`FOLDS`. Measurements of one place and time are always in one fold.
    folds : int
        Number of folds, at least 2; ignored for leave-one-out.
    xy : array
        Places ``(n, 2)`` in a plane.
    stations : array of int
        The place of each measurement.
    times : array of int, optional
        The time of each measurement, ascending with time.
    rng : numpy.random.Generator
        Source of the order in which measurements, blocks or stations are dealt to folds.
    block_size : float, optional
        Side of a block, in the unit of `xy`. By default, about four blocks hold the places of each fold.
    """
    if kind not in FOLDS:
        raise InputError(f"Unknown hold-out of measurements: got {kind!r}, expected one of {', '.join(FOLDS)}.")
    if block_size is not None and kind != "blocks":
        raise InputError(
            f"block_size (--block-size) is for the hold-out 'blocks': got {block_size!r} with {kind!r}. Leave it out, "
            "or choose holdout='blocks' (--holdout blocks)."
        )
    if kind == "periods" and times is None:
        raise InputError("The hold-out 'periods' needs times: name their column, time=... (--time).")
    if not isinstance(folds, Integral) or folds < 2:
        raise InputError(f"Wrong number of folds: got {folds!r}, expected an integer of at least 2.")
    when = np.zeros_like(stations) if times is None else times
    if kind == "periods":
        return _periods(stations, when, folds, rng)
    if kind in ("random", "one"):
        group = np.unique(np.stack([stations, when], 1), axis=0, return_inverse=True)[1].ravel()
    elif kind == "stations":
        group = np.unique(stations, return_inverse=True)[1]
    else:
        group = _blocks(xy, SETTINGS.blocks * folds, block_size)
    groups = int(group.max()) + 1
    if kind == "one":
        return np.asarray(group, np.intp)
    if groups < folds:
        what = {"random": "places and times", "stations": "stations", "blocks": "blocks"}[kind]
        raise InputError(
            f"There are fewer {what} than folds: got {groups} and folds={folds}, expected at least as many. Choose "
            f"fewer folds (--folds){', or a smaller block_size (--block-size)' if kind == 'blocks' else ''}."
        )
    return _dealt(np.bincount(group), folds, rng)[group]


def _dealt(sizes: IntArray, folds: int, rng: np.random.Generator) -> IntArray:
    """The fold of each group: the groups in random order, larger ones first, each to the fold that holds least."""
    order = rng.permutation(sizes.size)
    order = order[np.argsort(-sizes[order], kind="stable")]
    held, fold = np.zeros(folds), np.empty(sizes.size, np.intp)
    for group in order:
        fold[group] = held.argmin()
        held[fold[group]] += sizes[group]
    return fold


def _blocks(xy: Float64Array, wanted: int, side: float | None) -> IntArray:
    """The block of each place: squares of a lattice, of such a side that about so many hold a place."""
    low, extent = xy.min(0), np.ptp(xy, axis=0)
    if side is not None and not 0 < side < np.inf:
        raise InputError(f"Wrong block_size: got {side!r}, expected a positive length in the unit of the places.")
    if side is None:
        side = math.sqrt(max(float(np.prod(extent)), 1e-6 * float(extent.max()) ** 2, 1e-300) / wanted)
        while len(np.unique(np.floor((xy - low) / side), axis=0)) < min(wanted, len(np.unique(xy, axis=0))):
            side *= 0.9
    return np.unique(np.floor((xy - low) / side), axis=0, return_inverse=True)[1].ravel()


def _periods(stations: IntArray, times: IntArray, folds: int, rng: np.random.Generator) -> IntArray:
    """The times of each station in as many runs of successive ones, which start with another fold at each station."""
    station = np.unique(stations, return_inverse=True)[1]
    first = rng.integers(folds, size=int(station.max()) + 1)
    run = (times - times.min()) * folds // (int(np.ptp(times)) + 1)
    return np.asarray((run + first[station]) % folds, np.intp)
