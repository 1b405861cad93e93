"""Blocks of point pairs: on a CPU sized for its cache, on a GPU as large as possible."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

LOG2E = math.log2(math.e)
"""``exp(x) = exp2(LOG2E x)``: on some processors torch's exp2 takes a third to a half of the time of its exp."""


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of blocks on a CPU. They change speed and memory, and results by rounding only."""

    scan: int = 2**16
    """Pairs in scan attention. It does so much with each block that fewer calls matter more than the cache."""
    bias: int = 2**13
    """Pairs of a kernel dictionary: twenty float32 kernels of them fit a cache of 1 MiB."""
    covariance: int = 2**14
    """Pairs of a Matern mixture: four float64 arrays for each of two mixtures fit a cache of 1 MiB."""
    translation_equivariant: int = 2**14
    """Pairs in translation-equivariant attention without gradients."""
    features: int = 2**17
    """Features of one layer of :class:`~geonp.nn.layers.PairMLP` with gradients: half a mebibyte."""
    rows: int = 128
    """Places of a simulation whose covariances are computed together."""
    targets: int = 2**14
    """Targets that pass through the layers of a pseudo-token model at a time, on any device."""


BLOCKS = BlockSizes()
"""The sizes in use."""


def pair_blocks(
    batch: int, n_q: int, n_k: int, device: str, pairs: int, max_queries: int | None = None
) -> Iterator[tuple[slice, slice]]:
    """Slices of the batch and of the queries that make blocks of about `pairs` pairs on a CPU, one block elsewhere."""
    tasks, rows = batch, n_q
    if device == "cpu":
        tasks, rows = max(1, pairs // max(n_q * n_k, 1)), max(1, pairs // max(n_k, 1))
    # blocks of equal size: a small remainder would cost as many calls as a whole block
    n_blocks = -(-n_q // max(1, min(rows, max_queries or rows)))
    rows = -(-n_q // max(n_blocks, 1))
    for i in range(0, batch, max(tasks, 1)):
        for start in range(0, n_q, max(rows, 1)):
            yield slice(i, i + tasks), slice(start, min(start + rows, n_q))
