"""Points on a common lattice: what depends on the difference of two locations alone is computed once for each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Differences", "differences"]


@dataclass(frozen=True)
class Differences:
    """All differences in the box of those between some queries and keys, and which of them each pair has.

    Attributes
    ----------
    values : Tensor
        ``(n, d_x)``.
    index : Tensor
        ``(batch, n_q, n_k)``, int32.
    """

    values: Tensor
    index: Tensor

    def of_pairs(self, table: Tensor) -> Tensor:
        """What `table` ``(batch, n)`` of each task holds for its pairs: ``(batch, n_q, n_k)``."""
        start = torch.arange(len(table), device=table.device, dtype=torch.int32) * table.shape[1]
        index = self.index + start[:, None, None]
        return table.flatten().index_select(0, index.flatten()).view(index.shape)


@torch.no_grad()
def differences(xq: Tensor, xk: Tensor) -> Differences | None:
    """Differences of queries ``(batch, n_q, d_x)`` from keys ``(batch, n_k, d_x)`` that are whole numbers, else None.

    None also if there are not fewer than pairs, and on a GPU, which computes faster than it looks up.
    """
    if xq.device.type != "cpu" or not xq.numel() or not xk.numel():
        return None
    origin = xk[:, :1]
    queries, keys = xq - origin, xk - origin
    if not (bool((queries == queries.round()).all()) and bool((keys == keys.round()).all())):
        return None
    first = (queries.amin(1) - keys.amax(1)).amin(0)
    sizes = ((queries.amax(1) - keys.amin(1)).amax(0) - first + 1).tolist()
    if not math.prod(sizes) < xq.shape[1] * xk.shape[1]:
        return None
    strides = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], dtype=xq.dtype)
    # whole numbers below 2^24, exact in float32
    at_q, at_k = ((x @ strides).to(torch.int32) for x in (queries - first, keys))
    values = torch.cartesian_prod(*(torch.arange(size, dtype=xq.dtype) for size in sizes)).view(-1, len(sizes)) + first
    return Differences(values, at_q[:, :, None] - at_k[:, None])
