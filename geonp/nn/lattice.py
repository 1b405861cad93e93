"""Points on a common lattice: what depends on the difference of two locations alone is computed once for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Differences", "differences", "gaussian_sums"]

WORTHWHILE = 60
"""Products of :func:`gaussian_sums` that take as long as evaluating a pair of keys, and one with a target."""

FAR = 4
"""How far queries may lie from the keys before they are too far: in multiples of the work of evaluating all pairs."""


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

    None also if there are not fewer than pairs of keys (whatever is asked, it must not change even a rounding), and on
    a GPU, which computes faster than it looks up.
    """
    found = _whole(xq, xk)
    if found is None:
        return None
    queries, keys = found
    if bool(((2 * (keys.amax(1) - keys.amin(1)) + 1).prod(-1) > 2 * xk.shape[1] ** 2).any()):
        return None
    farthest = torch.maximum(queries.amax(1) - keys.amin(1), keys.amax(1) - queries.amin(1)).amax(0)
    sizes = (2 * farthest + 1).tolist()
    if math.prod(sizes) > min(FAR * xq.shape[1] * xk.shape[1], 2**24):
        return None
    strides = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], dtype=xq.dtype)
    # no number is above 2^24: they are exact in float32
    at_q, at_k = ((x @ strides).to(torch.int32) for x in (queries, keys))
    # counted from the difference of nothing, in the middle of the box
    index = (at_q[:, :, None] - at_k[:, None]).abs_()
    ranges = (torch.arange(size, dtype=xq.dtype) for size in sizes)
    values = torch.cartesian_prod(*ranges).view(-1, len(sizes))
    values = values[len(values) // 2 :] - farthest
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
    products of matrices. One task at a time: what others are in a batch must not change even a rounding.

    Parameters
    ----------
    xq, xk, values : Tensor
        ``(n_q, 2)``, ``(n_k, 2)`` and ``(n_k, n)``.
    scales, directional_scales : sequence of float
        Standard deviations of the Gaussians.
    directions : Tensor
        ``(n_directions, 2)``, each of whose rows is a multiple of whole numbers.

    Returns
    -------
    Tensor or None
        ``(len(scales) + len(directional_scales) * n_directions, n_q, n)``; None where locations are not whole numbers
        apart, the grid is so wide that evaluating the pairs is quicker, or on a GPU.
    """
    found = _whole(xq, xk) if xq.shape[-1] == 2 else None
    if found is None:
        return None
    down, across = (_Axis(*(x[:, i] for x in found)) for i in range(2))
    products = [
        down.n_k * cols * (across.n_k + rows) for rows, cols in ((down.n_k, across.n_k), (down.n_q, across.n_q))
    ]
    if products[0] > WORTHWHILE * len(xk) ** 2 or products[1] > FAR * WORTHWHILE * len(xq) * len(xk):
        return None
    values = values.mT.contiguous()
    grid = values.new_zeros(len(values), down.n_k * across.n_k)
    grid.index_add_(1, down.at_k * across.n_k + across.at_k, values)
    by_col = grid.view(-1, across.n_k) @ across.gaussians(scales).mT
    both = down.gaussians(scales)[:, None] @ by_col.unflatten(1, (-1, down.n_k))
    parts = [both.flatten(2)[:, :, down.at_q * across.n_q + across.at_q]]
    for direction in directions:
        unit = float(direction.abs().max())
        axis = _Axis(*((x @ (direction / unit)).round() for x in found))
        line = values.new_zeros(len(values), axis.n_k).index_add_(1, axis.at_k, values)
        parts.append((line @ axis.gaussians(directional_scales, unit).mT)[:, :, axis.at_q])
    return torch.cat([parts[0], torch.stack(parts[1:], 1).flatten(0, 1)]).mT


class _Axis:
    """Whole numbers of queries and keys as places in two ranges of `n_q` and `n_k`."""

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        first_q, first_k = queries.amin(), keys.amin()
        self.at_q, self.at_k = (queries - first_q).long(), (keys - first_k).long()
        self.n_q, self.n_k = (int(at.max()) + 1 for at in (self.at_q, self.at_k))
        self.first = first_q - first_k

    def gaussians(self, scales: Sequence[float], unit: float = 1.0) -> Tensor:
        """``(len(scales), n_q, n_k)``."""
        apart = torch.arange(self.n_q)[:, None] + self.first - torch.arange(self.n_k)
        exponent = torch.stack([(apart * (unit / scale)).square() for scale in scales]) * -0.5
        # the floor keeps clear of subnormal numbers, which cost many times as much
        return exponent.clamp_min_(-40.0).exp_()


def _whole(xq: Tensor, xk: Tensor) -> tuple[Tensor, Tensor] | None:
    """Locations relative to each task's lowest keys if all of these are whole numbers, and on a CPU."""
    if xq.device.type != "cpu" or not xq.numel() or not xk.numel():
        return None
    origin = xk.amin(-2, keepdim=True)
    queries, keys = xq - origin, xk - origin
    return (queries, keys) if all(bool((x == x.round()).all()) for x in (queries, keys)) else None
