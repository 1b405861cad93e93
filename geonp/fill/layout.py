"""How a store is cut: units of work, stored chunks and shards."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

import xarray as xr

from geonp.errors import InputError
from geonp.raster.windows import chunk_side


@dataclass(frozen=True)
class Layout:
    """A checked layout.

    Attributes
    ----------
    unit, chunk : int
        Rows and columns of a unit of work and of a stored chunk.
    shards : bool
        Whether each unit is stored as one shard.
    zarr_format : int
    """

    unit: int
    chunk: int
    shards: bool
    zarr_format: Literal[2, 3]

    def encoding(
        self, array: xr.DataArray, unit: Mapping[Hashable, int], spatial: tuple[Hashable, ...]
    ) -> dict[str, tuple[int, ...]]:
        """Encoding of an array that is written in parts of `unit` cells by dimension; others are not cut."""
        sizes = {dim: min(unit.get(dim, size), size) for dim, size in array.sizes.items()}
        chunks = tuple(min(self.chunk, n) if dim in spatial else n for dim, n in sizes.items())
        if not self.shards:
            return {"chunks": chunks}
        # a shard is a whole number of chunks, though the raster may end within it
        return {"chunks": chunks, "shards": tuple(-(-n // c) * c for n, c in zip(sizes.values(), chunks, strict=True))}


def checked_layout(
    cells: int, *, chunks: int | None, unit: int | None, shards: bool, zarr_format: Literal[2, 3]
) -> Layout:
    """Check the layout of a store of so many cells: no two units may share a stored chunk.

    Raises InputError for chunks that do not divide the units, an unknown Zarr format, or shards in format 2, which has
    none.
    """
    if zarr_format not in (2, 3):
        raise InputError(f"No Zarr format {zarr_format!r}: expected 2 or 3. Correct zarr_format (--co).")
    if shards and zarr_format == 2:
        raise InputError("Zarr format 2 has no shards: got shards=True (--co sharded=yes). Choose format 3.")
    side = next((n for n in (unit, chunks) if n is not None), chunk_side(cells))
    chunk = side if chunks is None else chunks
    whole = isinstance(side, Integral) and isinstance(chunk, Integral) and side > 0 and chunk > 0
    if not whole or side % chunk:
        raise InputError(
            f"The stored chunks do not divide the units of work: got chunks={chunk!r} and unit={side!r}, expected "
            "positive integers, the unit a multiple of the chunks, since units that share a stored chunk would "
            f"overwrite each other. {f'Choose a divisor of {side} for the chunks.' if whole else 'Correct them.'}"
        )
    return Layout(int(side), int(chunk), bool(shards), zarr_format)
