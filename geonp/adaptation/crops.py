"""Training tasks from the observed cells of a raster, and the cells that are held out from them.

A task hides cells of one tile and of a frame around it only, so that its context is as dense as in a fill. It hides
either single cells, or the cells under a patch of the raster's own gaps. Targets are weighted such that their distances
from the context are distributed as those of the missing cells. Some cells are held out in the same way for validation:
no training task has them as targets or context.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
from dask.base import compute
from scipy import ndimage

from geonp.adaptation.surroundings import Surroundings, beside_task
from geonp.inference.context import Neighbourhood, halo_for, select_context, standardise
from geonp.inference.covariates import Layer, columns
from geonp.raster import gaps
from geonp.raster.arrays import BoolArray, FloatArray, IntArray
from geonp.training.data.tasks import Task, predicted_mask, without_frame


@dataclass(frozen=True)
class CropSettings:
    """How much of a raster is read, and how cells are hidden.

    Sides and distances are in cells; distances are king's moves (the chessboard metric).
    """

    crop_px: int = 512  # largest side of a crop
    max_cells: int = 4 * 2**20  # cells to read in total: a larger raster is represented by random parts
    max_other_cells: int = 2**24  # cells to read from other slices, about: 64 MiB of float32
    max_crops: int = 256
    read_together: int = 16  # crops in one dask computation
    min_missing: float = 0.01  # fraction of missing cells below which gaps are simulated
    simulated: tuple[str, ...] = ("clouds", "random", "blocks", "stripes")
    single_cells: tuple[float, float] = (0.05, 0.2)  # range of the fraction of cells that is hidden one by one
    frame_px: int = 32  # frame around a tile in which patches of gaps are hidden, too
    bins: tuple[int, ...] = (1, 2, 3, 5, 8, 12)  # lower edges of the distances between targets and context
    max_weight: float = 5.0  # of a target, which limits the influence of rare distances
    samples: int = 48  # tasks from which the distances of targets are estimated
    passes: int = 4  # over the squares of a crop, until enough cells are held out
    attempts: int = 50  # tiles to try for a task


SETTINGS = CropSettings()


@dataclass(frozen=True)
class Crop:
    """Part of one slice of a raster, each array ``(rows, cols)``.

    Attributes
    ----------
    variable : hashable
        Name of the variable.
    values : array of float
        NaN where missing or outside the domain.
    domain_mask : array of bool
        Valid domain.
    observed_mask : array of bool
        Cells to train on.
    held_out_mask : array of bool
        Observed cells for validation, disjoint from `observed_mask`.
    others : mapping of str to array
        Values of other slices ``(slices, rows, cols)``, by the dimension along which they lie; empty if not read.
    covariates : tuple of Layer
        Co-located fields.
    """

    variable: Hashable
    values: FloatArray
    domain_mask: BoolArray
    observed_mask: BoolArray
    held_out_mask: BoolArray
    others: Mapping[str, FloatArray] = field(default_factory=dict)
    covariates: tuple[Layer, ...] = ()

    @property
    def missing(self) -> BoolArray:
        """True where the valid domain has no value."""
        return self.domain_mask & np.isnan(self.values)


@dataclass(frozen=True)
class CropTask(Task):
    """A task whose values are ``loc + scale * z`` in the units of the raster.

    Attributes
    ----------
    distance : array of int
        King's moves from each target to the nearest observed cell, ``(n_t,)``.
    """

    distance: IntArray
    loc: float
    scale: float


@dataclass(frozen=True)
class Masking:
    """Cells to hide in tasks, and weights of the targets.

    Attributes
    ----------
    gaps : tuple of array
        Masks to draw patches from, True where missing.
    p_patch : float
        Probability of masking a patch rather than single cells.
    wanted, drawn : array
        Fractions of the targets in each of the ``SETTINGS.bins``: of the missing cells, and of tasks.
    """

    gaps: tuple[BoolArray, ...]
    p_patch: float
    wanted: FloatArray
    drawn: FloatArray

    def weights(self, distance: IntArray) -> FloatArray:
        """Weights of targets of tasks at these distances."""
        return np.minimum(self.wanted / np.maximum(self.drawn, 1e-9), SETTINGS.max_weight)[_bin(distance)]

    def for_targets(self, distance: IntArray) -> Masking:
        """Copy for a set of targets that has these distances."""
        return replace(self, drawn=_fractions(distance))


def read_crops(
    arrays: Mapping[Hashable, xr.DataArray],
    domain: Any,
    rng: np.random.Generator,
    surroundings: Surroundings | None = None,
) -> list[Crop]:
    """Read random parts of slices into memory, about ``SETTINGS.max_cells`` cells in total.

    Arrays ``(..., rows, cols)`` of each variable are NaN where missing. Cells beyond the edge of a crop count as
    missing, also if the raster is periodic in longitude. By default other slices along all dimensions are read beside
    them.
    """
    surroundings = surroundings or Surroundings(arrays)
    windows = [
        (name, index, window)
        for name, array in arrays.items()
        for index in np.ndindex(array.shape[:-2])
        for window in itertools.product(*(_intervals(n) for n in array.shape[-2:]))
    ]
    order = [windows[i] for i in rng.permutation(len(windows))[: 4 * SETTINGS.max_crops]]
    crops: list[Crop] = []
    other_cells = 0
    for start in range(0, len(order), SETTINGS.read_together):
        if len(crops) >= SETTINGS.max_crops or sum(crop.values.size for crop in crops) >= SETTINGS.max_cells:
            break
        chosen = order[start : start + SETTINGS.read_together]
        parts = [arrays[name].data[(*index, *window)] for name, index, window in chosen]
        masks = [None if domain is None else domain[window] for *_, window in chosen]
        for (name, index, window), values, mask in zip(chosen, *compute(parts, masks), strict=True):
            inside = np.ones(values.shape, bool) if mask is None else mask
            known = inside & np.isfinite(values)
            kept = np.where(known, values, np.nan).astype(values.dtype)
            if known.any():
                others = {}
                if other_cells < SETTINGS.max_other_cells:
                    others = surroundings.others(name, index, window, inside)
                other_cells += sum(values.size for values in others.values())
                layers = surroundings.layers(name, index, window)
                crops.append(Crop(name, kept, inside, known, np.zeros_like(known), others, layers))
    return crops


def _intervals(cells: int) -> list[slice]:
    """Divide a dimension into nearly equal intervals of at most ``SETTINGS.crop_px`` cells."""
    edges = np.linspace(0, cells, -(-cells // SETTINGS.crop_px) + 1).astype(int)
    return [slice(int(start), int(stop)) for start, stop in itertools.pairwise(edges)]


def hold_out(crops: list[Crop], masking: Masking, fraction: float, side: int, rng: np.random.Generator) -> list[Crop]:
    """Hold out about this fraction of the observed cells of each crop, in random squares of this side."""
    return [_held_out(crop, masking, fraction * np.count_nonzero(crop.observed_mask), side, rng) for crop in crops]


def _held_out(crop: Crop, masking: Masking, cells: float, side: int, rng: np.random.Generator) -> Crop:
    observed, out = crop.observed_mask, np.zeros_like(crop.observed_mask)
    squares = np.stack(np.meshgrid(*(np.arange(0, n, side) for n in out.shape), indexing="ij"), -1).reshape(-1, 2)
    for i, j in (corner for _ in range(SETTINGS.passes) for corner in rng.permutation(squares)):
        if np.count_nonzero(out) >= cells:
            break
        square = np.s_[i : i + side, j : j + side]
        pattern = _patch(masking, side, 0, rng) if rng.random() < masking.p_patch else _single_cells((side, side), rng)
        out[square] |= observed[square] & pattern[: out.shape[0] - i, : out.shape[1] - j]
    return replace(crop, observed_mask=observed & ~out, held_out_mask=out)


def fit_masking(crops: list[Crop], neighbourhood: Neighbourhood, rng: np.random.Generator) -> Masking:
    """Fit the kind of masking and the weights to the distances of the missing cells from the data.

    Missing cells at distances that no target of a task can have are ignored.
    """
    missing = [crop.missing for crop in crops]
    valid = sum(np.count_nonzero(crop.domain_mask) for crop in crops)
    if sum(map(np.count_nonzero, missing)) < SETTINGS.min_missing * valid:
        missing = [_simulated(crop.values.shape, rng) & crop.domain_mask for crop in crops]
    wanted = _fractions(
        np.concatenate(
            [[0], *(distances(crop.domain_mask & ~gap)[gap] for crop, gap in zip(crops, missing, strict=True))]
        ),
        neighbourhood.tile_px // 2 + SETTINGS.frame_px,
    )
    # simulated gaps of a few cells may be empty
    masks = tuple(gap for gap in missing if gap.any()) or (np.ones((1, 1), bool),)
    few, patch = (
        _fractions(np.concatenate([[0], *(task.distance for task in _sample(crops, neighbourhood, kind, rng))]))
        for kind in (Masking(masks, p, wanted, wanted) for p in (0.0, 1.0))
    )
    # the smallest chi-squared distance, and so the weights nearest to 1
    p_patch = min(np.linspace(0, 1, 11), key=lambda p: (wanted**2 / (p * patch + (1 - p) * few + 1e-3)).sum())
    return Masking(masks, float(p_patch), wanted, p_patch * patch + (1 - p_patch) * few)


def _sample(
    crops: list[Crop], neighbourhood: Neighbourhood, masking: Masking, rng: np.random.Generator
) -> Iterator[CropTask]:
    for _ in range(SETTINGS.samples):
        task = draw_task(crops, neighbourhood, masking, neighbourhood.tile_px**2, rng)
        if task is None:
            return
        yield task


def distances(observed_mask: BoolArray) -> IntArray:
    """King's moves from each cell to the nearest observed one; the size of the array if there is none."""
    if not observed_mask.any():
        return np.full(observed_mask.shape, max(observed_mask.shape))
    return np.asarray(ndimage.distance_transform_cdt(~observed_mask, "chessboard"), np.intp)


def _bin(distance: IntArray) -> IntArray:
    return np.maximum(np.searchsorted(SETTINGS.bins, distance, side="right") - 1, 0)


def _fractions(distance: IntArray, farthest: int | None = None) -> FloatArray:
    """Fraction of the distances in each bin."""
    within = distance[(distance > 0) & (distance <= (farthest or distance.max(initial=0)))]
    return np.bincount(_bin(within), minlength=len(SETTINGS.bins)) / max(within.size, 1)


def _simulated(shape: tuple[int, ...], rng: np.random.Generator) -> BoolArray:
    return gaps.simulate(str(rng.choice(SETTINGS.simulated)), (shape[0], shape[1]), float(rng.uniform(0.1, 0.6)), rng)


def draw_task(
    crops: list[Crop], neighbourhood: Neighbourhood, masking: Masking, n_targets: int, rng: np.random.Generator
) -> CropTask | None:
    """Draw a tile around an observed cell, hide some of its cells, and rotate and mirror it at random.

    None if ``SETTINGS.attempts`` tiles had too little context or constant values.
    """
    sizes = np.array([np.count_nonzero(crop.observed_mask) for crop in crops], float)
    size, reach = neighbourhood.tile_px, neighbourhood.reach_px
    for _ in range(SETTINGS.attempts if crops else 0):
        crop = crops[int(rng.choice(len(crops), p=sizes / sizes.sum()))]
        corner = _corner(crop.observed_mask, size, reach, rng)
        observed = _square(crop.observed_mask, *corner, size + 2 * reach)
        hidden = observed & _hidden(masking, neighbourhood, rng)
        task = _task(crop, corner, observed & ~hidden, hidden, neighbourhood, n_targets, rng)
        if task is not None:
            return _transformed(task, rng)
    return None


def _corner(mask: BoolArray, size: int, frame: int, rng: np.random.Generator) -> tuple[int, int]:
    """Corner of a random window of `size` cells and a frame, with a True cell of `mask` within the frame."""
    row, col = np.unravel_index(rng.choice(np.flatnonzero(mask)), mask.shape)
    above, left = rng.integers(size, size=2) + frame
    return int(row - above), int(col - left)


def _hidden(masking: Masking, neighbourhood: Neighbourhood, rng: np.random.Generator) -> BoolArray:
    """Mask of the cells to hide in the window of a tile."""
    size, reach = neighbourhood.tile_px, neighbourhood.reach_px
    if rng.random() < masking.p_patch:
        frame = min(SETTINGS.frame_px, reach)
        hidden = _patch(masking, size + 2 * frame, frame, rng)
    else:
        frame = neighbourhood.overlap_px
        hidden = _single_cells((size + 2 * frame,) * 2, rng)
    return np.pad(hidden, reach - frame)


def _single_cells(shape: tuple[int, ...], rng: np.random.Generator) -> BoolArray:
    return np.asarray(rng.random(shape) < rng.uniform(*SETTINGS.single_cells))


def _patch(masking: Masking, side: int, frame: int, rng: np.random.Generator) -> BoolArray:
    """Square patch of gaps with a missing cell in the square that the frame encloses."""
    sizes = np.array([np.count_nonzero(gap) for gap in masking.gaps], float)
    gap = masking.gaps[int(rng.choice(len(sizes), p=sizes / sizes.sum()))]
    patch = _square(gap, *_corner(gap, side - 2 * frame, frame, rng), side)
    patch = patch[:: rng.choice([-1, 1]), :: rng.choice([-1, 1])]
    return patch.T if rng.random() < 0.5 else patch


def _square(mask: BoolArray, top: int, left: int, side: int) -> BoolArray:
    """Square part of `mask` with corner `top`, `left`; False beyond the edges of `mask`."""
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
    """Task for the central tile of a window of `crop` with this `corner`, with the context that a fill would choose.

    Context is chosen from `seen_mask`, targets from `hidden`.
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
    in_context, in_targets = (
        np.ravel_multi_index((row + corner[0], col + corner[1]), crop.values.shape)
        for row, col in ((c_row, c_col), (t_row, t_col))
    )
    known = crop.values.ravel()[in_context]
    if not np.ptp(known) > 0:  # cannot be standardised
        return None
    standard = standardise(known)
    truth = crop.values.ravel()[in_targets].astype(np.float64)
    xc, xt = (np.stack(cells, -1) - (side - 1) / 2 for cells in ((c_row, c_col), (t_row, t_col)))
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
        beside=beside_task(columns(crop.covariates, in_context, in_targets), context.size),
    )


def _transformed(task: CropTask, rng: np.random.Generator) -> CropTask:
    """One of the eight symmetries of the square, applied to the locations of a task."""
    order = rng.permutation(2)
    signs = rng.choice(np.array([-1, 1], np.float32), 2)
    return replace(task, xc=task.xc[:, order] * signs, xt=task.xt[:, order] * signs)
