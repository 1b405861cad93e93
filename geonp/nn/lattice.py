"""Points on a common lattice: what depends on the difference of two locations alone is computed once for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Differences", "differences", "gaussian_sums"]

WORTHWHILE = 30
"""Products of :func:`gaussian_sums` that take as long as evaluating one pair."""


@dataclass(frozen=True)
class Differences:
    """Differences that queries and keys may have, and which of them each pair has: of any two opposite ones, one.

    So they are for even functions.

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
    found = _whole(xq, xk)
    if found is None:
        return None
    queries, keys = found
    farthest = torch.maximum(queries.amax(1) - keys.amin(1), keys.amax(1) - queries.amin(1)).amax(0)
    sizes = (2 * farthest + 1).tolist()
    n = math.prod(sizes)
    if not n < 2 * xq.shape[1] * xk.shape[1]:
        return None
    strides = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], dtype=xq.dtype)
    # whole numbers below 2^24, exact in float32
    at_q, at_k = ((x @ strides).to(torch.int32) for x in (queries, keys))
    # counted from the difference of nothing, in the middle of the box
    index = (at_q[:, :, None] - at_k[:, None]).abs_()
    ranges = (torch.arange(size, dtype=xq.dtype) for size in sizes)
    values = torch.cartesian_prod(*ranges).view(-1, len(sizes))[int(n) // 2 :] - farthest
    return Differences(values, index)


@torch.no_grad()
def gaussian_sums(
    xq: Tensor,
    xk: Tensor,
    values: Tensor,
    scales: Sequence[float],
    directions: Tensor,
    directional_scales: Sequence[float],
) -> Tensor | None:
    """Sums over the keys, weighted by Gaussians of the distance and of single directions, for points of a plane.

    On a grid, a Gaussian is a product of one of the rows and one of the columns, so that all sums are few small
    products of matrices.

    Parameters
    ----------
    xq, xk, values : Tensor
        ``(batch, n_q, 2)``, ``(batch, n_k, 2)`` and ``(batch, n_k, n)``.
    scales, directional_scales : sequence of float
        Standard deviations of the Gaussians.
    directions : Tensor
        ``(n_directions, 2)``, each of whose rows is a multiple of whole numbers.

    Returns
    -------
    Tensor or None
        ``(batch, len(scales) + len(directional_scales) * n_directions, n_q, n)``; None where locations are not whole
        numbers apart, the grid is so wide that evaluating the pairs is quicker, or on a GPU.
    """
    found = _whole(xq, xk) if xq.shape[-1] == 2 else None
    if found is None:
        return None
    queries, keys = found
    (rows, cols), (q_rows, q_cols) = ((x.amax((0, 1)) - x.amin((0, 1)) + 1).tolist() for x in (keys, queries))
    if rows * q_cols * (cols + q_rows) > WORTHWHILE * xq.shape[1] * xk.shape[1]:
        return None
    values = values.mT
    down, across = (_Axis(queries[..., i], keys[..., i]) for i in range(2))
    grid = values.new_zeros(*values.shape[:2], down.n_k * across.n_k)
    grid.scatter_add_(2, (down.at_k * across.n_k + across.at_k)[:, None].expand_as(values), values)
    by_col = grid.view(-1, across.n_k) @ across.gaussians(scales).mT
    both = down.gaussians(scales)[:, None] @ by_col.unflatten(1, (-1, down.n_k))
    place = (down.at_q * across.n_q + across.at_q)[:, None]
    parts = [part.view(*values.shape[:2], -1).gather(2, place.expand(-1, values.shape[1], -1)) for part in both]
    lines = []
    for direction in directions:
        unit = float(direction.abs().max())
        axis = _Axis(*((x @ (direction / unit)).round() for x in found))
        line = values.new_zeros(*values.shape[:2], axis.n_k)
        line.scatter_add_(2, axis.at_k[:, None].expand_as(values), values)
        smooth = line @ axis.gaussians(directional_scales, unit).mT[:, None]
        lines.append([part.gather(2, axis.at_q[:, None].expand(-1, values.shape[1], -1)) for part in smooth])
    parts += [line[i] for i in range(len(directional_scales)) for line in lines]
    return torch.stack(parts, 1).mT


class _Axis:
    """Whole numbers of queries and keys ``(batch, n)`` as places in two common ranges of `n_q` and `n_k`."""

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.first_q, self.first_k = queries.amin(), keys.amin()
        self.at_q, self.at_k = (queries - self.first_q).long(), (keys - self.first_k).long()
        self.n_q, self.n_k = (int(at.max()) + 1 for at in (self.at_q, self.at_k))

    def gaussians(self, scales: Sequence[float], unit: float = 1.0) -> Tensor:
        """``(len(scales), n_q, n_k)``."""
        at = [
            torch.arange(n, device=first.device) + first
            for n, first in ((self.n_q, self.first_q), (self.n_k, self.first_k))
        ]
        squared = ((at[0][:, None] - at[1]) * unit).square()
        # the floor keeps clear of subnormal numbers, which cost many times as much
        return torch.stack([(squared * (-0.5 / scale**2)).clamp_min_(-40.0).exp_() for scale in scales])


def _whole(xq: Tensor, xk: Tensor) -> tuple[Tensor, Tensor] | None:
    """Locations relative to each task's lowest keys if all of these are whole numbers, and on a CPU."""
    if xq.device.type != "cpu" or not xq.numel() or not xk.numel():
        return None
    origin = xk.amin(1, keepdim=True)
    queries, keys = xq - origin, xk - origin
    return (queries, keys) if all(bool((x == x.round()).all()) for x in (queries, keys)) else None
