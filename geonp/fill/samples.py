"""Joint samples of the missing cells of a raster: each cell is drawn given the data and what was drawn before it.

This is :func:`geonp.nn.sampling.sample` on a lattice, where every cell has a context of its own, chosen as filling
chooses it, from the observed cells and those drawn so far. The models predict new measurements, noise included, and
their contexts are measurements: what is drawn is fed back as it is, and what is returned holds that noise too.
"""

from __future__ import annotations

import zlib
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.errors import InputError
from geonp.inference import student
from geonp.inference.context import halo_for, select_context
from geonp.inference.kernel import Job
from geonp.inference.predictor import Tile, batches, gather
from geonp.inference.thinning import start_of
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window, shown_once

__all__ = ["MAX_CELLS", "MAX_GAP", "sample_chunks", "sample_slice"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]

MAX_GAP = 256
"""Cells of a gap, at most: so many draws follow from each other, and the error of each is the next one's data."""

MAX_CELLS = 4096
"""Cells to be drawn in a slice, at most: each takes a forward pass for each sample."""


def sample_chunks(data: da.Array, parts: da.Array, domain: da.Array | None, job: Job, n: int, name: str) -> da.Array:
    """Joint samples of each spatial slice, ``(n, ...)`` before the dimensions of `data`; lazy, a task a slice.

    Parameters
    ----------
    data : dask array
        ``(..., rows, cols)``, NaN where missing.
    parts : dask array
        Like `data`, the fields of :class:`~geonp.inference.kernel.Filled`: what was filled is sampled.
    domain : dask array, optional
        ``(rows, cols)``, True where a cell may be context.
    name : str
        Of the variable: no two have the same draws.
    """
    lead = data.ndim - 2
    whole = dict(enumerate([*[1] * lead, -1, -1]))
    mask = da.ones(data.shape[-2:], dtype=bool) if domain is None else domain
    values, flags = data.rechunk(whole), parts["flag"].rechunk(whole)

    def draw(values: FloatArray, flags: npt.NDArray[np.int8], mask: BoolArray, block_id: tuple[int, ...]) -> FloatArray:
        rng = np.random.default_rng([zlib.crc32(name.encode()), abs(job.seed), *block_id[1 : 1 + lead]])
        index = (0,) * lead
        found = sample_slice(values[index], flags[index] == FillFlag.FILLED, mask, job, n, rng)
        return found.reshape(n, *values.shape)

    chunks = ((n,), *values.chunks)
    made: da.Array = da.map_blocks(
        draw,
        values,
        flags,
        mask.rechunk(-1),
        dtype=data.dtype,
        chunks=chunks,
        new_axis=0,
        meta=np.empty((0,), data.dtype),
    )
    return made


def sample_slice(
    values: FloatArray, wanted: BoolArray, domain_mask: BoolArray, job: Job, n: int, rng: np.random.Generator
) -> FloatArray:
    """Draw the `wanted` cells of one slice `n` times, jointly, in another random order each time.

    Parameters
    ----------
    values, wanted, domain_mask : array
        ``(rows, cols)``: NaN where missing; what is to be drawn; True where a cell may be context.
    job : Job
        Of the whole raster.
    rng : numpy.random.Generator
        Source of all randomness.

    Returns
    -------
    array
        ``(n, rows, cols)`` in the dtype of `values`: observed cells as they are, NaN where nothing was drawn.

    Raises
    ------
    InputError
        When a gap has more than :data:`MAX_GAP` cells, or all gaps together more than :data:`MAX_CELLS`.
    """
    _require_small(wanted)
    chunk = Window(0, values.shape[0], 0, values.shape[1])
    window, (rows, cols) = job.window(chunk), job.cells(chunk)
    inside = (rows >= 0)[:, None] & (cols >= 0)
    # one copy of the raster a sample, one below the other, so that a batch may hold tiles of several
    padded = np.where(inside & domain_mask[np.ix_(rows, cols)], values[np.ix_(rows, cols)], np.nan)
    drawn = np.repeat(padded[None], n, 0)
    known = ~np.isnan(drawn)
    cells = np.argwhere(wanted)
    paths = [rng.permutation(cells) for _ in range(n)]
    out = np.repeat(values[None], n, 0)
    for step in range(len(cells)):
        places = [path[step] for path in paths]
        tiles = [_tile(known, s, place[0] - window.row, place[1] - window.col, job) for s, place in enumerate(places)]
        found = _predict(tiles, drawn.reshape(-1, drawn.shape[-1]), job)
        new = student.draw(rng, *found)
        for s, (row, col) in enumerate(places):
            # around a globe a cell is seen from both sides
            seen = np.ix_([s], rows == row, cols == col)
            out[s, row, col] = drawn[seen] = new[s]
            known[seen] = True
    return out


def _require_small(wanted: BoolArray) -> None:
    labels, _ = ndimage.label(wanted, np.ones((3, 3), bool))
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    if sizes.max() > MAX_GAP:
        row, col = np.argwhere(labels == sizes.argmax())[0]
        raise InputError(
            f"a gap is too large for samples: that at row {row}, column {col} has {sizes.max():,} cells, drawn one "
            f"after another, expected at most {MAX_GAP}; leave what is far from data empty (max_distance) or outside "
            "(mask), or ask for quantiles instead"
        )
    if sizes.sum() > MAX_CELLS:
        raise InputError(
            f"too many cells for samples: got {sizes.sum():,} in one slice, expected at most {MAX_CELLS:,}, as each is "
            "drawn on its own; cut the raster into parts, or ask for quantiles instead"
        )


def _tile(known: BoolArray, sample: int, row: int, col: int, job: Job) -> Tile:
    """One cell of the window of a sample as a target, with the context that filling would choose for it."""
    neighbourhood = job.predictor.neighbourhood
    size, reach = neighbourhood.tile_px, neighbourhood.reach_px
    top, left = row - row % size, col - col % size
    near = shown_once(
        known[sample, top - reach : top + size + reach, left - reach : left + size + reach],
        job.shape[1] if job.periodic else None,
    )
    halo = halo_for(near, neighbourhood)
    cut, side = reach - halo, size + 2 * halo
    near = near[cut : cut + side, cut : cut + side]
    first_row, first_col = top - halo, left - halo
    own = np.zeros_like(near)
    own[row - first_row, col - first_col] = True
    chosen = select_context(near, own, neighbourhood, start_of(job.seed))
    down, across = np.divmod(chosen, side)
    height, width = known.shape[1:]
    offset = sample * height
    context = (down + first_row + offset) * width + across + first_col
    target = np.array([(row + offset) * width + col])
    return Tile(context, target, np.ones(1), (row + offset, col))


def _predict(tiles: list[Tile], values: FloatArray, job: Job) -> Any:
    """Mean, standard deviation and tail of the only target of each tile, ``(3, tiles)``."""
    predictor = job.predictor
    parts = [
        predictor(gather(batch, values, predictor.neighbourhood.n_context))[:, : len(batch), 0]
        for batch in batches(tiles, predictor.batch_size)
    ]
    return np.concatenate(parts, 1)
