"""Joint samples of the missing cells of a raster: each cell is drawn given the data and the cells drawn before it.

This is :func:`geonp.nn.sampling.sample` on a lattice. Every cell has its own context, chosen as in a fill, from the
observed cells and those drawn so far. The models predict new measurements, noise included, from measurements, so draws
are fed back as they are, and samples include the noise.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.errors import InputError
from geonp.inference import student
from geonp.inference.censoring import without_piles
from geonp.inference.context import choose_context
from geonp.inference.kernel import FillJob
from geonp.inference.stitching import Tile, batches, predict
from geonp.inference.warping import Warping
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window

__all__ = ["MAX_CELLS", "MAX_GAP", "sample_chunks", "sample_slice"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]

MAX_GAP = 256
"""Largest gap, in cells: draws follow one after another, and the errors of each are data of the next."""

MAX_CELLS = 4096
"""Largest number of cells drawn in a slice: each takes a forward pass for each sample."""


def sample_chunks(
    data: da.Array, result: da.Array, domain: da.Array | None, job: FillJob, n: int, name: str, warping: Any = None
) -> da.Array:
    """Joint samples of each spatial slice, ``(n, ...)`` before the dimensions of `data`; lazy, one task a slice.

    Parameters
    ----------
    data : dask array
        ``(..., rows, cols)``, NaN where missing.
    result : dask array
        Shape of `data`, with the fields of :func:`geonp.inference.kernel.result_dtype`: filled cells are sampled.
    domain : dask array, optional
        ``(rows, cols)``, True where a cell may be context.
    name : str
        Name of the variable, so that no two variables have the same draws.
    warping : Warping or dask Delayed, optional
        Map of bounded values.
    """
    lead = data.ndim - 2
    whole = dict(enumerate([*[1] * lead, -1, -1]))
    mask = da.ones(data.shape[-2:], dtype=bool) if domain is None else domain
    values, flags = data.rechunk(whole), result["flag"].rechunk(whole)

    def draw(
        values: FloatArray,
        flags: npt.NDArray[np.int8],
        mask: BoolArray,
        warping: Warping | None,
        block_id: tuple[int, ...],
    ) -> FloatArray:
        own = replace(job, warping=warping)
        rng = np.random.default_rng([zlib.crc32(name.encode()), abs(job.seed), *block_id[1 : 1 + lead]])
        index = (0,) * lead
        samples = sample_slice(values[index], flags[index] == FillFlag.FILLED, mask, own, n, rng)
        return samples.reshape(n, *values.shape)

    chunks = ((n,), *values.chunks)
    made: da.Array = da.map_blocks(
        draw,
        values,
        flags,
        mask.rechunk(-1),
        warping,
        dtype=data.dtype,
        chunks=chunks,
        new_axis=0,
        meta=np.empty((0,), data.dtype),
    )
    return made


def sample_slice(
    values: FloatArray, wanted: BoolArray, domain_mask: BoolArray, job: FillJob, n: int, rng: np.random.Generator
) -> FloatArray:
    """Draw the `wanted` cells of one slice `n` times, jointly, in another random order each time.

    Parameters
    ----------
    values, wanted, domain_mask : array
        ``(rows, cols)``: NaN where missing; True for cells to draw; True where a cell may be context.
    job : FillJob
        The job of the whole raster.
    rng : numpy.random.Generator
        Source of all randomness.

    Returns
    -------
    array
        ``(n, rows, cols)`` in the dtype of `values`: observed cells unchanged, NaN where nothing was drawn.

    Raises
    ------
    InputError
        When a gap has more than :data:`MAX_GAP` cells, or all gaps together more than :data:`MAX_CELLS`.
    """
    _require_small(wanted)
    chunk = Window(0, values.shape[0], 0, values.shape[1])
    window, (rows, cols) = job.window(chunk), job.cells(chunk)
    latent = values if job.warping is None else job.warping.to_latent(values)
    inside = (rows >= 0)[:, None] & (cols >= 0)
    # one copy of the raster for each sample
    padded = np.where(inside & domain_mask[np.ix_(rows, cols)], latent[np.ix_(rows, cols)], np.nan)
    drawn = np.repeat(padded[None], n, 0)
    known = ~np.isnan(drawn)
    cells = np.argwhere(wanted)
    paths = [rng.permutation(cells) for _ in range(n)]
    out = np.repeat(values[None], n, 0)
    for step in range(len(cells)):
        places = [path[step] for path in paths]
        tiles = [_tile(drawn[s], known[s], s, place - (window.row, window.col), job) for s, place in enumerate(places)]
        predicted = np.empty((3, n))
        for tile, outputs in predict(batches(tiles, job.predictor.batch_size), job.predictor):
            predicted[:, tile.targets] = outputs
        new = student.draw(rng, *predicted)
        for s, (row, col) in enumerate(places):
            # the window of a periodic raster shows a cell several times
            seen = np.ix_([s], rows == row, cols == col)
            out[s, row, col] = drawn[seen] = new[s]
            known[seen] = True
    if job.warping is not None:
        out[:, wanted] = job.warping.inside(job.warping.to_values(out[:, wanted]), out.dtype)
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


def _tile(drawn: FloatArray, known: BoolArray, sample: int, cell: npt.NDArray[np.intp], job: FillJob) -> Tile:
    """A tile whose only target is a cell of the window of one sample, with the context that a fill would choose."""
    px = job.predictor.neighbourhood.tile_px
    corner, own = cell - cell % px, np.zeros((px, px), bool)
    own[tuple(cell - corner)] = True
    period = job.shape[1] if job.periodic else None
    box = np.array([corner, corner + px])
    context = choose_context(known, box, own, job.predictor.neighbourhood, job.seed, period)
    locations = np.stack(np.divmod(context, known.shape[1]), -1) - cell.astype(float)
    tile = Tile(locations, drawn.ravel()[context], np.zeros((1, 2)), np.array([sample]), np.ones(1))
    return without_piles(tile, job.warping, job.predictor)
