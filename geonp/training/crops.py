"""Tasks from a raster's own observed cells: parts of it in memory, what is held out of them, and what is hidden anew.

What is hidden has the shape of the raster's own gaps, moved onto observed cells, or of simulated ones. Held-out cells
are hidden first and for good: no task to train on sees them, neither as targets nor as context.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from dask.base import compute
from scipy import ndimage

from geonp import gaps
from geonp.points import Neighbourhood, box_of, halo_for, select_context, standardise
from geonp.tiling import tiles_with
from geonp.training.tasks import Task

__all__ = ["Crop", "CropTask", "draw_task", "held_out_tasks", "hide_parts", "read_crops"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating[Any]]

CROP_PX = 512
"""Largest side of a part of the raster that is read."""

MAX_CELLS = 4 * 2**20
"""Cells that are read and kept at most: a larger raster is represented by parts of it, chosen at random."""

MAX_CROPS = 256
READ_TOGETHER = 16

SIMULATED = ("clouds", "random", "blocks", "stripes")
"""What is hidden where the raster has hardly any gaps, and now and then elsewhere."""

HARDLY_ANY = 0.01
"""Share of missing cells below which a part of a raster is said to have hardly any gaps."""

P_SIMULATED = 0.1
HIDDEN_SHARE = 0.2
ATTEMPTS = 50
MOVES = 32


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
    """

    variable: Hashable
    values: FloatArray
    domain_mask: BoolArray
    observed_mask: BoolArray
    held_out_mask: BoolArray

    @property
    def missing(self) -> BoolArray:
        """True where the raster could have a value, and has none: the shapes of its own gaps."""
        return self.domain_mask & np.isnan(self.values)


@dataclass(frozen=True)
class CropTask(Task):
    """A task whose values are ``loc + scale * z`` in the units of the raster."""

    loc: float
    scale: float


def read_crops(
    arrays: Mapping[Hashable, xr.DataArray], domain: Any, held_out: float, rng: np.random.Generator
) -> list[Crop]:
    """Parts of slices, chosen at random, of about :data:`MAX_CELLS` cells in all, in memory; some cells are held out.

    What lies beyond the edge of a part counts as missing, also where the raster goes round the Earth.

    Parameters
    ----------
    arrays : mapping of name to DataArray
        Their last two dimensions are ``(rows, cols)``; NaN where missing; NumPy or dask. Only what is chosen is
        computed.
    domain : array of bool or None
        ``(rows, cols)``, NumPy or dask, True where values may be.
    held_out : float
        Share of the observed cells of each part to hold out, about.
    """
    places = [
        (name, index, window)
        for name, array in arrays.items()
        for index in np.ndindex(array.shape[:-2])
        for window in itertools.product(*(_stretches(n) for n in array.shape[-2:]))
    ]
    order = [places[i] for i in rng.permutation(len(places))[: 4 * MAX_CROPS]]
    crops: list[Crop] = []
    for start in range(0, len(order), READ_TOGETHER):
        if len(crops) >= MAX_CROPS or sum(crop.values.size for crop in crops) >= MAX_CELLS:
            break
        chosen = order[start : start + READ_TOGETHER]
        parts = [arrays[name].data[(*index, *window)] for name, index, window in chosen]
        masks = [None if domain is None else domain[window] for *_, window in chosen]
        for (name, *_), values, mask in zip(chosen, *compute(parts, masks), strict=True):
            crop = _crop(name, values, np.ones(values.shape, bool) if mask is None else mask, held_out, rng)
            if crop.observed_mask.any():
                crops.append(crop)
    return crops


def _stretches(cells: int) -> list[slice]:
    """Even parts of a dimension of so many cells, none longer than :data:`CROP_PX`."""
    edges = np.linspace(0, cells, -(-cells // CROP_PX) + 1).astype(int)
    return [slice(int(start), int(stop)) for start, stop in itertools.pairwise(edges)]


def _crop(
    name: Hashable, values: FloatArray, domain_mask: BoolArray, held_out: float, rng: np.random.Generator
) -> Crop:
    known = domain_mask & np.isfinite(values)
    hidden = _held_out(known, domain_mask & ~known, domain_mask, held_out, rng)
    return Crop(name, np.where(known, values, np.nan).astype(values.dtype), domain_mask, known & ~hidden, hidden)


def _held_out(
    known_mask: BoolArray, missing: BoolArray, domain_mask: BoolArray, share: float, rng: np.random.Generator
) -> BoolArray:
    """Known cells under gaps that are moved again and again, until they are half of the `share`, at least."""
    hidden = np.zeros_like(known_mask)
    known = int(known_mask.sum())
    for attempt in range(MOVES):
        so_far = int(hidden.sum())
        if 2 * so_far >= share * known:
            break
        if _hardly_any(missing, domain_mask) or 2 * attempt >= MOVES:
            pattern = _simulated(known_mask.shape, rng)
        else:
            turned = missing[:: rng.choice([-1, 1]), :: rng.choice([-1, 1])]
            pattern = np.roll(turned, [int(rng.integers(n)) for n in missing.shape], axis=(0, 1))
        rest = (share * known - so_far) / (known - so_far)
        more = hidden | hide_parts(pattern, known_mask & ~hidden, rest, rng)
        # a gap so large that too little would be left to learn from is moved once more
        if more.sum() < 1.5 * share * known:
            hidden = more
    return hidden


def _hardly_any(missing: BoolArray, domain_mask: BoolArray) -> bool:
    return bool(missing.sum() < HARDLY_ANY * domain_mask.sum())


def _simulated(shape: tuple[int, ...], rng: np.random.Generator) -> BoolArray:
    return gaps.simulate(str(rng.choice(SIMULATED)), (shape[0], shape[1]), float(rng.uniform(0.1, 0.6)), rng)


def hide_parts(pattern: BoolArray, known_mask: BoolArray, share: float, rng: np.random.Generator) -> BoolArray:
    """Connected parts of what `pattern` covers of the known cells, each kept by chance: about `share` of all known.

    All of them where that is less. So compact gaps stay whole, and scattered ones do not leave a context that is much
    sparser than the raster itself.
    """
    covered = pattern & known_mask
    parts, count = ndimage.label(covered)
    keep = share * int(known_mask.sum()) / max(int(covered.sum()), 1)
    return np.asarray(np.r_[False, rng.random(count) < keep][parts])


def draw_task(
    crops: list[Crop], neighbourhood: Neighbourhood, n_targets: int, rng: np.random.Generator
) -> CropTask | None:
    """A tile somewhere around an observed cell, with gaps laid upon it; turned and mirrored at random.

    None where :data:`ATTEMPTS` tiles had too little context or equal values.
    """
    weights = np.array([np.count_nonzero(crop.observed_mask) for crop in crops], float)
    size, reach = neighbourhood.tile_px, neighbourhood.reach_px
    for _ in range(ATTEMPTS):
        crop = crops[int(rng.choice(len(crops), p=weights / weights.sum()))]
        anchor = _any_cell(crop.observed_mask, rng)
        inside = rng.integers(size, size=2) + reach
        top, left = (int(i) for i in anchor - inside)
        observed = _square(crop.observed_mask, top, left, size + 2 * reach)
        if rng.random() < P_SIMULATED or _hardly_any(crop.missing, crop.domain_mask):
            pattern = _simulated(observed.shape, rng)
        else:
            top_of_gap, left_of_gap = (int(i) for i in _any_cell(crop.missing, rng) - inside)
            pattern = _square(crop.missing, top_of_gap, left_of_gap, size + 2 * reach)
        hidden = hide_parts(pattern, observed, HIDDEN_SHARE, rng)
        task = _task(crop, (top, left), observed & ~hidden, hidden, neighbourhood, n_targets, rng)
        if task is not None:
            return _turned(task, rng)
    return None


def _any_cell(mask: BoolArray, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    return np.array(np.unravel_index(rng.choice(np.flatnonzero(mask)), mask.shape))


def held_out_tasks(
    crops: list[Crop], neighbourhood: Neighbourhood, n_targets: int, rng: np.random.Generator
) -> Iterator[CropTask]:
    """Tiles of the lattice of filling that have held-out cells, in random order; their context is what was left."""
    size, reach = neighbourhood.tile_px, neighbourhood.reach_px
    places = []
    for crop in crops:
        rows, cols = (-(-n // size) * size for n in crop.held_out_mask.shape)
        whole_tiles = np.zeros((rows, cols), bool)
        whole_tiles[: crop.held_out_mask.shape[0], : crop.held_out_mask.shape[1]] = crop.held_out_mask
        places += [(crop, (i * size - reach, j * size - reach)) for i, j in tiles_with(whole_tiles, size)]
    for i in rng.permutation(len(places)):
        crop, (top, left) = places[i]
        observed = _square(crop.observed_mask, top, left, size + 2 * reach)
        hidden = _square(crop.held_out_mask, top, left, size + 2 * reach)
        # each of them once: what a tile predicts of its neighbours is theirs
        own = _frame(hidden, reach)
        task = _task(crop, (top, left), observed, own, neighbourhood, n_targets, rng)
        if task is not None:
            yield task


def _square(mask: BoolArray, top: int, left: int, side: int) -> BoolArray:
    """A square of `mask` that begins at `top`, `left`; False where it reaches beyond."""
    out = np.zeros((side, side), bool)
    first_row, first_col = max(top, 0), max(left, 0)
    part = mask[first_row : max(top + side, 0), first_col : max(left + side, 0)]
    row, col = first_row - top, first_col - left
    out[row : row + part.shape[0], col : col + part.shape[1]] = part
    return out


def _frame(mask: BoolArray, width: int) -> BoolArray:
    """`mask` without what lies in a frame of this width."""
    inside = np.zeros_like(mask)
    inner = np.s_[width : mask.shape[0] - width, width : mask.shape[1] - width]
    inside[inner] = mask[inner]
    return inside


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
    missing = _frame(_square(crop.domain_mask, *corner, side) & ~seen_mask, reach)
    targets = np.flatnonzero(_frame(hidden, reach - neighbourhood.overlap_px))
    if not missing.any() or not (missing & hidden).any():
        return None
    near_mask = _frame(seen_mask, reach - halo_for(seen_mask, neighbourhood))
    context = select_context(near_mask, rng.random(seen_mask.shape, dtype=np.float32), box_of(missing), neighbourhood)
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
        standard.loc,
        standard.scale,
    )


def _turned(task: CropTask, rng: np.random.Generator) -> CropTask:
    """One of the eight ways to turn and mirror a tile."""
    order = rng.permutation(2)
    signs = rng.choice(np.array([-1, 1], np.float32), 2)
    return replace(task, xc=task.xc[:, order] * signs, xt=task.xt[:, order] * signs)
