"""Tasks from a raster's own observed cells: parts of it in memory, what is held out of them, and what is hidden anew.

A task hides cells of one tile and of a frame around it, and nothing beyond: so the context is as dense as in filling.
Single cells are hidden, or what a patch of the raster's own gaps covers, as deep as they are; targets are weighted so
that they lie as far from their context, on the whole, as the cells that are missing. Some cells are held out in the
same way, for good: no task to train on sees them, neither as targets nor as context.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from dask.base import compute
from scipy import ndimage

from geonp.inference.context import Neighbourhood, halo_for, select_context, standardise
from geonp.inference.stack import beside
from geonp.raster import gaps
from geonp.training.data.tasks import Task, predicted_mask, without_frame

__all__ = ["Crop", "CropTask", "Hiding", "distances", "draw_task", "hiding_for", "hold_out", "read_crops"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating[Any]]

CROP_PX = 512
"""Largest side of a part of the raster that is read."""

MAX_CELLS = 4 * 2**20
"""Cells that are read and kept at most: a larger raster is represented by parts of it, chosen at random."""

OTHER_CELLS = 2**24
"""Cells of other slices that are read and kept beside those, at most, about."""

MAX_CROPS = 256
READ_TOGETHER = 16

HARDLY_ANY = 0.01
"""Share of missing cells below which a raster is said to have hardly any gaps; simulated ones stand in for them."""

SIMULATED = ("clouds", "random", "blocks", "stripes")

FEW = (0.05, 0.2)
"""Least and greatest share of the observed cells that is hidden one by one."""

FRAME_PX = 32
"""How far around a tile a patch of gaps is hidden; of single cells, those that its predictions reach."""

BINS = (1, 2, 3, 5, 8, 12)
"""Where the groups of targets by their distance from the context begin: cells, in king's moves."""

GREATEST_WEIGHT = 5.0
SAMPLED = 48
"""Tasks of each kind that tell how far from the context its targets lie."""

PASSES = 4
"""How often cells of the same squares are held out, where those before are fewer than asked for."""

ATTEMPTS = 50


@dataclass(frozen=True)
class Crop:
    """Part of one slice of a raster, each array ``(rows, cols)``.

    Attributes
    ----------
    variable : hashable
        Its name.
    values : array of float
        NaN where missing or outside the domain.
    domain_mask : array of bool
        Where values may be.
    observed_mask : array of bool
        The cells to train on.
    held_out_mask : array of bool
        Observed cells for validation; none of them is in `observed_mask`.
    others : mapping of str to array
        By the name of each dimension along which there are others, their values there ``(slices, rows, cols)``, see
        :func:`geonp.inference.stack.beside`; empty where they were not read.
    """

    variable: Hashable
    values: FloatArray
    domain_mask: BoolArray
    observed_mask: BoolArray
    held_out_mask: BoolArray
    others: Mapping[str, FloatArray] = field(default_factory=dict)

    @property
    def missing(self) -> BoolArray:
        """True where the raster could have a value, and has none."""
        return self.domain_mask & np.isnan(self.values)


@dataclass(frozen=True)
class CropTask(Task):
    """A task whose values are ``loc + scale * z`` in the units of the raster.

    `distance` ``(n_t,)`` is that of each target from the nearest cell that is seen, in king's moves.
    """

    distance: npt.NDArray[np.intp]
    loc: float
    scale: float


@dataclass(frozen=True)
class Hiding:
    """What is hidden in tasks, and how much each target counts.

    Attributes
    ----------
    gaps : tuple of array
        Masks of gaps, True = missing, that patches are taken from.
    p_patch : float
        Probability of a patch of them; else single cells are hidden.
    wanted, found : array
        Share of the targets that should lie in each of the :data:`BINS`, and of those of tasks that do.
    """

    gaps: tuple[BoolArray, ...]
    p_patch: float
    wanted: FloatArray
    found: FloatArray

    def weigh(self, distance: npt.NDArray[np.intp]) -> FloatArray:
        """How much targets of tasks at these distances count."""
        return np.minimum(self.wanted / np.maximum(self.found, 1e-9), GREATEST_WEIGHT)[_bin(distance)]

    def among(self, distance: npt.NDArray[np.intp]) -> Hiding:
        """The same for targets that lie at these distances, all together."""
        return replace(self, found=_shares(distance))


def read_crops(arrays: Mapping[Hashable, xr.DataArray], domain: Any, rng: np.random.Generator) -> list[Crop]:
    """Parts of slices, chosen at random, of about :data:`MAX_CELLS` cells in all, in memory.

    What lies beyond the edge of a part counts as missing, also where the raster goes round the Earth.

    Parameters
    ----------
    arrays : mapping of name to DataArray
        Their last two dimensions are ``(rows, cols)``; NaN where missing; NumPy or dask. Only what is chosen is
        computed.
    domain : array of bool or None
        ``(rows, cols)``, NumPy or dask, True where values may be.
    """
    places = [
        (name, index, window)
        for name, array in arrays.items()
        for index in np.ndindex(array.shape[:-2])
        for window in itertools.product(*(_stretches(n) for n in array.shape[-2:]))
    ]
    order = [places[i] for i in rng.permutation(len(places))[: 4 * MAX_CROPS]]
    crops: list[Crop] = []
    beyond = 0
    for start in range(0, len(order), READ_TOGETHER):
        if len(crops) >= MAX_CROPS or sum(crop.values.size for crop in crops) >= MAX_CELLS:
            break
        chosen = order[start : start + READ_TOGETHER]
        parts = [arrays[name].data[(*index, *window)] for name, index, window in chosen]
        masks = [None if domain is None else domain[window] for *_, window in chosen]
        for (name, index, window), values, mask in zip(chosen, *compute(parts, masks), strict=True):
            inside = np.ones(values.shape, bool) if mask is None else mask
            known = inside & np.isfinite(values)
            kept = np.where(known, values, np.nan).astype(values.dtype)
            if known.any():
                others = _others(arrays[name], index, window, inside) if beyond < OTHER_CELLS else {}
                beyond += sum(values.size for values in others.values())
                crops.append(Crop(name, kept, inside, known, np.zeros_like(known), others))
    return crops


def _others(
    array: xr.DataArray, index: tuple[int, ...], window: tuple[slice, ...], inside: BoolArray
) -> dict[str, FloatArray]:
    """What other slices have in a window of one, along each dimension."""
    found = {}
    for axis, (dim, at) in enumerate(zip(array.dims, index, strict=False)):
        # a checkpoint names it
        if isinstance(dim, str) and (near := beside(at, array.shape[axis])):
            values = np.asarray(array.data[(*index[:axis], near, *index[axis + 1 :], *window)])
            found[dim] = np.where(inside & np.isfinite(values), values, np.nan).astype(array.dtype)
    return found


def _stretches(cells: int) -> list[slice]:
    """Even parts of a dimension of so many cells, none longer than :data:`CROP_PX`."""
    edges = np.linspace(0, cells, -(-cells // CROP_PX) + 1).astype(int)
    return [slice(int(start), int(stop)) for start, stop in itertools.pairwise(edges)]


def hold_out(crops: list[Crop], hiding: Hiding, share: float, side: int, rng: np.random.Generator) -> list[Crop]:
    """Hold out about this share of the observed cells of each crop, hidden in squares of this side at random."""
    return [_held_out(crop, hiding, share * np.count_nonzero(crop.observed_mask), side, rng) for crop in crops]


def _held_out(crop: Crop, hiding: Hiding, cells: float, side: int, rng: np.random.Generator) -> Crop:
    observed, out = crop.observed_mask, np.zeros_like(crop.observed_mask)
    squares = np.stack(np.meshgrid(*(np.arange(0, n, side) for n in out.shape), indexing="ij"), -1).reshape(-1, 2)
    for i, j in (corner for _ in range(PASSES) for corner in rng.permutation(squares)):
        if np.count_nonzero(out) >= cells:
            break
        square = np.s_[i : i + side, j : j + side]
        pattern = _patch(hiding, side, 0, rng) if rng.random() < hiding.p_patch else _few((side, side), rng)
        out[square] |= observed[square] & pattern[: out.shape[0] - i, : out.shape[1] - j]
    return replace(crop, observed_mask=observed & ~out, held_out_mask=out)


def hiding_for(crops: list[Crop], neighbourhood: Neighbourhood, rng: np.random.Generator) -> Hiding:
    """Find what to hide for targets to lie as far from their context as the missing cells, and weights for the rest.

    Missing cells farther from all data than a task can hide any are not taken into account.
    """
    missing = [crop.missing for crop in crops]
    if sum(map(np.count_nonzero, missing)) < HARDLY_ANY * sum(np.count_nonzero(crop.domain_mask) for crop in crops):
        missing = [_simulated(crop.values.shape, rng) & crop.domain_mask for crop in crops]
    wanted = _shares(
        np.concatenate(
            [[0], *(distances(crop.domain_mask & ~gap)[gap] for crop, gap in zip(crops, missing, strict=True))]
        ),
        neighbourhood.tile_px // 2 + FRAME_PX,
    )
    masks = tuple(gap for gap in missing if gap.any())
    few, patch = (
        _shares(np.concatenate([[0], *(task.distance for task in _sample(crops, neighbourhood, kind, rng))]))
        for kind in (Hiding(masks, p, wanted, wanted) for p in (0.0, 1.0))
    )
    # the least chi-squared distance: the mildest weights
    p_patch = min(np.linspace(0, 1, 11), key=lambda p: (wanted**2 / (p * patch + (1 - p) * few + 1e-3)).sum())
    return Hiding(masks, float(p_patch), wanted, p_patch * patch + (1 - p_patch) * few)


def _sample(
    crops: list[Crop], neighbourhood: Neighbourhood, hiding: Hiding, rng: np.random.Generator
) -> Iterator[CropTask]:
    for _ in range(SAMPLED):
        task = draw_task(crops, neighbourhood, hiding, neighbourhood.tile_px**2, rng)
        if task is None:
            return
        yield task


def distances(seen_mask: BoolArray) -> npt.NDArray[np.intp]:
    """King's moves from each cell to the nearest that is seen; as many as fit where there is none."""
    if not seen_mask.any():
        return np.full(seen_mask.shape, max(seen_mask.shape))
    return np.asarray(ndimage.distance_transform_cdt(~seen_mask, "chessboard"), np.intp)


def _bin(distance: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    return np.maximum(np.searchsorted(BINS, distance, side="right") - 1, 0)


def _shares(distance: npt.NDArray[np.intp], farthest: int | None = None) -> FloatArray:
    """Share of the distances in each of the bins."""
    within = distance[(distance > 0) & (distance <= (farthest or distance.max(initial=0)))]
    return np.bincount(_bin(within), minlength=len(BINS)) / max(within.size, 1)


def _simulated(shape: tuple[int, ...], rng: np.random.Generator) -> BoolArray:
    return gaps.simulate(str(rng.choice(SIMULATED)), (shape[0], shape[1]), float(rng.uniform(0.1, 0.6)), rng)


def draw_task(
    crops: list[Crop], neighbourhood: Neighbourhood, hiding: Hiding, n_targets: int, rng: np.random.Generator
) -> CropTask | None:
    """A tile somewhere around an observed cell, with cells of it hidden; turned and mirrored at random.

    None where :data:`ATTEMPTS` tiles had too little context or equal values.
    """
    sizes = np.array([np.count_nonzero(crop.observed_mask) for crop in crops], float)
    size, reach = neighbourhood.tile_px, neighbourhood.reach_px
    for _ in range(ATTEMPTS if crops else 0):
        crop = crops[int(rng.choice(len(crops), p=sizes / sizes.sum()))]
        corner = _around(crop.observed_mask, size, reach, rng)
        observed = _square(crop.observed_mask, *corner, size + 2 * reach)
        hidden = observed & _hidden(hiding, neighbourhood, rng)
        task = _task(crop, corner, observed & ~hidden, hidden, neighbourhood, n_targets, rng)
        if task is not None:
            return _turned(task, rng)
    return None


def _around(mask: BoolArray, size: int, frame: int, rng: np.random.Generator) -> tuple[int, int]:
    """Where a window begins that has some True cell of `mask` somewhere in it, but for a frame."""
    row, col = np.unravel_index(rng.choice(np.flatnonzero(mask)), mask.shape)
    down, across = rng.integers(size, size=2) + frame
    return int(row - down), int(col - across)


def _hidden(hiding: Hiding, neighbourhood: Neighbourhood, rng: np.random.Generator) -> BoolArray:
    """What to hide in the window of a tile."""
    size, reach = neighbourhood.tile_px, neighbourhood.reach_px
    if rng.random() < hiding.p_patch:
        frame = min(FRAME_PX, reach)
        hidden = _patch(hiding, size + 2 * frame, frame, rng)
    else:
        frame = neighbourhood.overlap_px
        hidden = _few((size + 2 * frame,) * 2, rng)
    return np.pad(hidden, reach - frame)


def _few(shape: tuple[int, ...], rng: np.random.Generator) -> BoolArray:
    """Single cells."""
    return np.asarray(rng.random(shape) < rng.uniform(*FEW))


def _patch(hiding: Hiding, side: int, frame: int, rng: np.random.Generator) -> BoolArray:
    """A square patch of gaps, some cell of which is not in the frame."""
    sizes = np.array([np.count_nonzero(gap) for gap in hiding.gaps], float)
    gap = hiding.gaps[int(rng.choice(len(sizes), p=sizes / sizes.sum()))]
    patch = _square(gap, *_around(gap, side - 2 * frame, frame, rng), side)
    patch = patch[:: rng.choice([-1, 1]), :: rng.choice([-1, 1])]
    return patch.T if rng.random() < 0.5 else patch


def _square(mask: BoolArray, top: int, left: int, side: int) -> BoolArray:
    """A square of `mask` that begins at `top`, `left`; False where it reaches beyond."""
    out = np.zeros((side, side), bool)
    first_row, first_col = max(top, 0), max(left, 0)
    part = mask[first_row : max(top + side, 0), first_col : max(left + side, 0)]
    row, col = first_row - top, first_col - left
    out[row : row + part.shape[0], col : col + part.shape[1]] = part
    return out


def _task(
    crop: Crop,
    corner: tuple[int, int],
    seen_mask: BoolArray,
    hidden: BoolArray,
    neighbourhood: Neighbourhood,
    n_targets: int,
    rng: np.random.Generator,
) -> CropTask | None:
    """The tile in the middle of a window of `crop` that begins at `corner`, as filling would see it.

    `seen_mask` is what its context may come from, its targets are drawn from the cells that are `hidden`.
    """
    side, reach = seen_mask.shape[0], neighbourhood.reach_px
    missing = without_frame(_square(crop.domain_mask, *corner, side) & ~seen_mask, reach)
    targets = np.flatnonzero(hidden & predicted_mask(seen_mask, reach, neighbourhood))
    if not missing.any() or not (missing & hidden).any():
        return None
    near_mask = without_frame(seen_mask, reach - halo_for(seen_mask, neighbourhood))
    context = select_context(near_mask, missing, neighbourhood, rng.random())
    if context.size < neighbourhood.min_context:
        return None
    targets = rng.permutation(targets)[:n_targets]
    (c_row, c_col), (t_row, t_col) = np.divmod(context, side), np.divmod(targets, side)
    known = crop.values[c_row + corner[0], c_col + corner[1]]
    # nothing is to be learned from equal values
    if not np.ptp(known) > 0:
        return None
    standard = standardise(known)
    truth = crop.values[t_row + corner[0], t_col + corner[1]].astype(np.float64)
    xc, xt = (np.stack(place, -1) - (side - 1) / 2 for place in ((c_row, c_col), (t_row, t_col)))
    return CropTask(
        xc.astype(np.float32),
        standard.z,
        xt.astype(np.float32),
        ((truth - standard.loc) / standard.scale).astype(np.float32),
        np.zeros(targets.size, np.float32),
        False,
        "crop",
        distances(seen_mask)[t_row, t_col],
        standard.loc,
        standard.scale,
    )


def _turned(task: CropTask, rng: np.random.Generator) -> CropTask:
    """One of the eight ways to turn and mirror a tile."""
    order = rng.permutation(2)
    signs = rng.choice(np.array([-1, 1], np.float32), 2)
    return replace(task, xc=task.xc[:, order] * signs, xt=task.xt[:, order] * signs)
