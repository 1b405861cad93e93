"""Sizes of batches: how tiles are padded, and how many of them are predicted together."""

from __future__ import annotations

from dataclasses import dataclass

from geonp.inference.context import Neighbourhood


@dataclass(frozen=True)
class BatchSettings:
    """How tiles are padded and how many of them are predicted together."""

    buckets: tuple[int, ...] = (32, 64, 96, 128, 192, 256, 320, 384, 512, 768)
    """Numbers of targets that tiles are padded to. There are few, because only tiles of one shape share a batch."""
    step: int = 64
    """Step between the buckets above the largest of these."""
    cpu_size: int = 4
    """Largest number of tiles in a batch on a CPU; larger batches exceed its caches."""
    gpu_size: int = 128
    """Largest number of tiles in a batch on a GPU."""
    memory: float = 0.25
    """Largest share of the free memory for a batch."""
    cpu_pair_bytes: int = 60
    """Upper bound of the memory for a pair of points on a CPU, which holds the pairs of one tile at a time."""
    gpu_pair_bytes: int = 300
    """The same on a GPU."""


BATCHES = BatchSettings()


def batch_bytes(neighbourhood: Neighbourhood, tiles: int, device: str) -> int:
    """Upper bound of the memory of a forward pass, in proportion to the pairs of points."""
    n_c, frame = neighbourhood.n_context, 2 * neighbourhood.overlap_px
    single, merged = (neighbourhood.tile_px + frame) ** 2, (neighbourhood.tile_px * neighbourhood.merge + frame) ** 2
    each = BATCHES.cpu_pair_bytes if device.partition(":")[0] == "cpu" else BATCHES.gpu_pair_bytes
    return each * n_c * max(tiles * (n_c + min(BATCHES.buckets[-1], single)), n_c + merged)


def tiles_per_batch(size: int, n_t: int) -> int:
    """Number of tiles of `n_t` targets that take about as much memory as `size` ordinary ones."""
    return min(size, max(1, size * BATCHES.buckets[-1] // n_t))


def padded_size(targets: int) -> int:
    """Number of targets that `targets` are padded to."""
    return next((b for b in BATCHES.buckets if targets <= b), -(-targets // BATCHES.step) * BATCHES.step)
