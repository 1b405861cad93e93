"""Cells of a GeoTIFF are written with checksums, and the finished file is read back once.

GDAL reports no errors when it flushes, copies and closes a file, such as those of a full disk.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import rasterio
from dask.base import compute
from dask.utils import get_scheduler_lock
from rasterio._err import CPLE_BaseError
from rasterio.enums import Interleaving
from rasterio.errors import RasterioError
from rasterio.windows import Window

from geonp.errors import OutputError, reason
from geonp.raster.arrays import Array
from geonp.raster.parts import PARTS

# Options with which a copy has other cells than its draft.
_CHANGING = {"ADD_ALPHA", "DISCARD_LSB", "EXTENT", "MAX_Z_ERROR", "NBITS", "RES", "TARGET_SRS", "TILING_SCHEME"}
_LOSSY = {"JPEG", "WEBP", "JXL"}


@dataclass(frozen=True)
class Part:
    """Cells that were written: those of a block in one square of ``PARTS.file_side`` cells, and their checksum.

    Band 0 is the mask of all bands.
    """

    band: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    checksum: int

    @property
    def square(self) -> tuple[int, int]:
        """Number of the square, from the top and from the left."""
        return self.rows[0] // PARTS.file_side, self.columns[0] // PARTS.file_side


def write_blocks(path: Path, arrays: Sequence[dask.array.Array], mask: dask.array.Array | None = None) -> list[Part]:
    """Compute `arrays`, the bands of the GeoTIFF at `path`, and `mask`, that of all bands, and write them to it.

    Raises OutputError if GDAL refuses to write.
    """
    bands = [*enumerate(arrays, 1), *([] if mask is None else [(0, mask.astype(bool))])]
    options: dict[str, Any] = {"path": path, "lock": get_scheduler_lock(dask.array.Array)}
    written = [
        dask.array.map_blocks(
            _write_block, array, band=band, **options, chunks=tuple((1,) * n for n in array.numblocks), meta=_NO_PARTS
        )
        for band, array in bands
    ]
    found = compute(*written)
    return [part for parts in itertools.chain(*(each.flat for each in found)) for part in parts]


_NO_PARTS = np.empty((0, 0), object)


def _write_block(block: Array, *, band: int, path: Path, lock: Any, block_info: Any) -> Array:
    """Write a block; its list of parts. The file is opened for each block, so that any process can write it."""
    (top, bottom), (left, right) = block_info[0]["array-location"]
    window = Window(left, top, right - left, bottom - top)
    with (
        lock,
        unwritten_if_gdal_fails(),
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, "r+") as file,
    ):
        if band:
            block = block.astype(file.dtypes[band - 1], copy=False)
            file.write(block, band, window=window)
        else:
            file.write_mask(block, window=window)
    parts = np.empty((1, 1), object)
    parts[0, 0] = [
        Part(band, rows, columns, _checksum(block[slice(*np.subtract(rows, top)), slice(*np.subtract(columns, left))]))
        for rows, columns in itertools.product(_cut(top, bottom), _cut(left, right))
    ]
    return parts


def _cut(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut a range where squares end."""
    cuts = [start, *range((start // PARTS.file_side + 1) * PARTS.file_side, stop, PARTS.file_side), stop]
    return list(itertools.pairwise(cuts))


def _checksum(cells: Array) -> int:
    """A number that differs for other cells; the sign of zeros and the bits of NaN do not count."""
    if cells.dtype.kind == "f":
        cells = np.where(np.isnan(cells), cells.dtype.type(np.nan), cells + cells.dtype.type(0))
    return zlib.crc32(np.ascontiguousarray(cells).data)


def require_intact(path: Path, draft: Path, parts: Sequence[Part], options: Mapping[str, str]) -> None:
    """Check that the copy of a draft has all of its blocks, and the cells that were written.

    If `options` change cells, these are looked for in the draft, and the copy is read. Raises OutputError if anything
    is missing or differs.
    """
    exact = not (_CHANGING & set(options)) and options.get("COMPRESS", "NONE").upper() not in _LOSSY
    with unwritten_if_gdal_fails(), rasterio.open(path) as copy:
        if options.get("SPARSE_OK", "NO").upper() not in {"YES", "TRUE", "ON", "1"}:
            _require_blocks(copy)
        if exact:
            return _require_cells(copy, parts)
        for top, left in itertools.product(*(range(-(-size // PARTS.file_side)) for size in copy.shape)):
            for _ in _read(copy, list(copy.indexes), (top, left)):
                pass
    with unwritten_if_gdal_fails(), rasterio.open(draft) as original:
        _require_cells(original, parts)


def _require_cells(file: rasterio.DatasetReader, parts: Sequence[Part]) -> None:
    """Check the checksums of all parts."""
    for square, group in itertools.groupby(sorted(parts, key=lambda part: part.square), lambda part: part.square):
        of: dict[int, list[Part]] = {}
        for part in group:
            of.setdefault(part.band, []).append(part)
        for band, cells in _read(file, sorted(of), square):
            for part in of[band]:
                corner = np.multiply(square, PARTS.file_side)
                rows, columns = np.subtract((part.rows, part.columns), corner[:, None])
                if _checksum(cells[slice(*rows), slice(*columns)]) != part.checksum:
                    raise unwritten(
                        f"got other cells in rows {part.rows} and columns {part.columns} of "
                        f"{f'band {band}' if band else 'the mask'} than were written"
                    )


def _read(file: rasterio.DatasetReader, bands: Sequence[int], square: tuple[int, int]) -> Iterator[tuple[int, Array]]:
    """Bands, and their cells in a square. Several are read at once: interleaved ones share their blocks."""
    side = PARTS.file_side
    top, left = square[0] * side, square[1] * side
    window = Window(left, top, min(side, file.width - left), min(side, file.height - top))
    most = max(1, PARTS.file_bytes // (side**2 * np.dtype(file.dtypes[0]).itemsize))
    if 0 in bands:
        yield 0, file.read_masks(1, window=window) > 0
    numbers = [band for band in bands if band]
    for first in range(0, len(numbers), most):
        some = numbers[first : first + most]
        yield from zip(some, file.read(some, window=window), strict=True)


def _require_blocks(file: rasterio.DatasetReader) -> None:
    """Check that all blocks are in the file, those of overviews too: GDAL reads missing ones as nodata."""
    # interleaved bands share their blocks
    bands = [1] if file.interleaving == Interleaving.pixel else range(1, file.count + 1)
    for level in (None, *range(len(file.overviews(1)))):
        with rasterio.open(file.name, **({} if level is None else {"overview_level": level})) as part:
            (rows, cols), shape = part.block_shapes[0], part.shape
        for band, y, x in itertools.product(bands, range(-(-shape[0] // rows)), range(-(-shape[1] // cols))):
            if file.get_tag_item(f"BLOCK_OFFSET_{x}_{y}", "TIFF", bidx=band, ovr=level) is None:
                raise unwritten(f"got no block {x}, {y} of band {band}")


@contextmanager
def unwritten_if_gdal_fails() -> Iterator[None]:
    """Convert the errors of GDAL to those that :func:`unwritten` gives."""
    try:
        yield
    except (RasterioError, CPLE_BaseError) as error:
        raise unwritten(f"GDAL reports: {reason(error)}") from error


def unwritten(found: str) -> OutputError:
    """The error of a GeoTIFF that is not complete."""
    return OutputError(
        f"The GeoTIFF was not written completely: {found}. Nothing was changed: check the space on the disk, quotas "
        "and the limit of file sizes (ulimit -f)."
    )
