"""Pairs of points in blocks: on a CPU of a few tasks or of some queries of one, for its cache, elsewhere of all."""

from __future__ import annotations

import math
from collections.abc import Iterator

__all__ = ["LOG2E", "SCAN_PAIRS", "pair_blocks"]

LOG2E = math.log2(math.e)
"""Exponents of e, times this, are those of two: torch's exp2 takes a third to a half of the time of its exp on some
processors."""

SCAN_PAIRS = 2**16
"""Pairs in a block of scan attention: it does so much in each that its calls count more than the cache."""


def pair_blocks(
    batch: int, n_q: int, n_k: int, device: str, pairs: int, most: int | None = None
) -> Iterator[tuple[slice, slice]]:
    """Slices of the batch and of the queries, `most` of these; on a CPU of about so many `pairs`."""
    tasks, step = batch, n_q
    if device == "cpu":
        tasks, step = max(1, pairs // max(n_q * n_k, 1)), max(1, pairs // max(n_k, 1))
    # equal parts: a small rest costs as many calls as a whole one
    parts = -(-n_q // max(1, min(step, most or step)))
    step = -(-n_q // max(parts, 1))
    for i in range(0, batch, max(tasks, 1)):
        for start in range(0, n_q, max(step, 1)):
            yield slice(i, i + tasks), slice(start, min(start + step, n_q))
