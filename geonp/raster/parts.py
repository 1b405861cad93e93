"""How much is read and computed at a time, and the memory that plans count for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PartSettings:
    """Sizes of parts. They bound the memory and change no result."""

    cells: int = 2**22
    """Cells that are read at a time, and those of a unit of several slices."""
    slice_cells: int = 2**28
    """Cells of the largest slice whose gaps or flags are looked at as a whole."""
    counted_cells: int = 2**24
    """Cells of the largest raster in memory whose gaps are counted to know whether processes will be started."""
    file_side: int = 512
    """Side of the blocks of a COG that are compared at a time."""
    file_bytes: int = 2**26
    """Memory that comparing files takes."""
    target_px: int = 512
    """Largest side of a block of another grid that is filled at a time."""
    source_px: int = 4096
    """Side of the window of the raster that such a block is made from, roughly."""
    sampled_px: int = 256
    """Rows and columns whose joint samples are aggregated at a time."""
    joint_cells: int = 2**16
    """Cells whose joint errors become values at a time."""
    student: int = 2**13
    """Distributions whose moments are computed at a time, so that their nodes fit into a cache."""
    dense: int = 64
    """Cells for each place up to which the part of a raster around all places is read at once."""


@dataclass(frozen=True)
class MemorySettings:
    """Upper bounds of memory, measured, in bytes."""

    libraries: int = 450 * 2**20
    """Python, torch and the kernels that it compiles, before any raster is read."""
    gap: int = 24
    """Each cell whose gap is measured."""
    place: int = 128
    """A predicted place, with its sums and results."""
    result: int = 32
    """The results of a place alone, which are held for each of several times."""
    simulation: int = 64 * 2**20
    """A process that draws joint samples, without the noise that it keeps."""


PARTS = PartSettings()

MEMORY = MemorySettings()
