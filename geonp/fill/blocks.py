"""The blocks of a dask array around a region, as its :class:`~geonp.fill.region.Source`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geonp.fill.region import assemble, unknown
from geonp.fill.surroundings import Index, Placement, Region
from geonp.inference.covariates import Layer
from geonp.inference.kernel import FillJob
from geonp.raster.arrays import Array, BoolArray
from geonp.raster.variable import Read
from geonp.raster.windows import Piece

Blocks = list[list[Array]]
"""Blocks by row and column."""

FarBlocks = tuple[Blocks, Blocks | None, list[Piece], list[Piece]]
"""Blocks of stored values and of the domain, and their parts that make up a far window."""


@dataclass(frozen=True, eq=False)
class BlockSource:
    """A :class:`Source` of dask blocks.

    Attributes
    ----------
    region, job, read
        `read` converts stored values to floats.
    block : array
        The stored values of the region itself.
    stack : list
        The blocks ``[row][column]`` that the window touches, those of the region first, then those of other slices.
    starts : list of tuple of int
        First slice of each of these along the leading dimensions.
    masks : list or None
        Blocks of the domain.
    rows, cols : list of Piece
        The parts of the blocks that make up the window.
    beside : list
        For each covariate its place, and the blocks ``[row][column]`` of the result of its own fill.
    around : FarBlocks or None
        The blocks that the far window touches.
    size_mask : list or None
        Blocks of a mask of all slices of the region that is False in gaps larger than `max_gap`.
    """

    region: Region
    job: FillJob
    read: Read
    block: Array
    stack: list[Blocks]
    starts: list[Index]
    masks: Blocks | None
    rows: list[Piece]
    cols: list[Piece]
    beside: list[tuple[Placement, Blocks]]
    around: FarBlocks | None = None
    size_mask: Blocks | None = None

    def own(self) -> Array:
        """See :class:`Source`."""
        return self.read(self.block)

    def in_domain(self) -> tuple[Array, BoolArray]:
        """Stored values of the own cells within the domain, and whether they are observed."""
        observed_mask = np.isfinite(self.own())
        if self.masks is None:
            return self.block, observed_mask
        core, first = self.job.core(self.region.chunk), [lead.start for lead in self.region.lead]
        inside = [self.domain_mask(tuple(np.add(first, n).tolist()))[core] for n in np.ndindex(self.block.shape[:-2])]
        mask = np.reshape(inside, self.block.shape)
        return self.block[mask], observed_mask[mask]

    def domain_mask(self, index: Index) -> BoolArray:
        """See :class:`Source`."""
        inner = tuple(n - lead.start for n, lead in zip(index, self.region.lead, strict=True))

        def read(i: int, j: int) -> BoolArray | bool:
            mask = self.masks is None or self._cut(self.masks[i][j], i, j)
            return mask if self.size_mask is None else mask & self._cut(self.size_mask[i][j][inner], i, j)

        mask = np.zeros(self.job.window(self.region.chunk).shape, bool)
        assemble(mask, self.rows, self.cols, read)
        return mask

    def window(self, index: Index) -> Array:
        """See :class:`Source`."""
        inside = [np.subtract(index, first).tolist() for first in self.starts]
        shapes = [blocks[0][0].shape for blocks in self.stack]
        held = (all(0 <= k < n for k, n in zip(*each, strict=False)) for each in zip(inside, shapes, strict=True))
        k = list(held).index(True)
        blocks, inner = self.stack[k], tuple(inside[k])
        values = np.full(self.job.window(self.region.chunk).shape, np.nan, self.read.dtype)
        assemble(values, self.rows, self.cols, lambda i, j: self.read(self._cut(blocks[i][j][inner], i, j)))
        return values

    def covariates(self, index: Index) -> list[Layer]:
        """See :class:`Source`."""
        return [place.layer(self._result(place, blocks, index)) for place, blocks in self.beside]

    def far(self, index: Index) -> Array:
        """See :class:`Source`."""
        assert self.around is not None
        values, masks, rows, cols = self.around
        inner = tuple(n - lead.start for n, lead in zip(index, self.region.lead, strict=True))
        out = np.full(self.job.far_window(self.region.chunk).shape, np.nan, self.read.dtype)

        def read(i: int, j: int) -> Array:
            part = slice(rows[i].start, rows[i].stop), slice(cols[j].start, cols[j].stop)
            found = self.read(values[i][j][inner][part])
            return found if masks is None else np.where(masks[i][j][part], found, np.nan)

        assemble(out, rows, cols, read)
        return out

    def _result(self, place: Placement, blocks: Blocks, index: Index) -> Array:
        inner = place.within(index, [lead.start for lead in self.region.lead])
        result = unknown(self.job.window(self.region.chunk).shape, blocks[0][0].dtype)
        assemble(result, self.rows, self.cols, lambda i, j: self._cut(blocks[i][j][inner], i, j))
        return result

    def _cut(self, block: Array, i: int, j: int) -> Array:
        a, b = self.rows[i], self.cols[j]
        return block[a.start : a.stop, b.start : b.stop]
