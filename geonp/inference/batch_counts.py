"""Upper bound of the batches that fill a chunk, for plans."""

from __future__ import annotations

import numpy as np

from geonp.inference.batches import BATCHES, padded_size, tiles_per_batch
from geonp.inference.kernel import FillJob
from geonp.inference.tiling import TILING, groups
from geonp.raster.arrays import BoolArray
from geonp.raster.windows import Window


def most_batches(missing: BoolArray, observed: BoolArray, chunk: Window, job: FillJob) -> int:
    """Upper bound of the batches that fill a chunk, from masks of the window around it."""
    window, neighbourhood = job.window(chunk), job.predictor.neighbourhood
    px, lap = neighbourhood.tile_px, neighbourhood.overlap_px
    first = np.array([chunk.row - window.row, chunk.col - window.col]) - TILING.margin_px
    last = np.array([chunk.row_end - window.row, chunk.col_end - window.col]) + TILING.margin_px
    padded: list[int] = []
    for corners in groups(missing, observed, job.frame, neighbourhood):
        patch = np.array([corners.min(0) - lap, corners.max(0) + px + lap]) + job.frame
        inside = np.s_[*(slice(*ends) for ends in np.clip(patch, first, last).T)]
        n = int(np.count_nonzero(missing[inside]))
        padded += [padded_size(n)] if n else []
    # the last batch of each bucket may hold a single tile
    full = sum(1 / tiles_per_batch(job.predictor.batch_size, n_t) for n_t in padded)
    return min(len(padded), int(full) + padded_sizes(max(padded, default=0)))


def padded_sizes(targets: int) -> int:
    """Number of buckets for tiles of at most `targets` targets."""
    return sum(b <= targets for b in BATCHES.buckets) + max(0, targets - BATCHES.buckets[-1]) // BATCHES.step
