"""Points on a common lattice: what depends on the difference of two locations alone is computed once for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from geonp.nn.blocks import LOG2E

__all__ = ["Differences", "differences", "gaussian_sums", "symmetric"]

DENSE = 8
"""Cells of a grid for each query in it up to which sums at all cells take less time than at the queries alone."""

SPARSE_PAIRS = 2**20
"""Pairs of scattered queries and keys that are held at once; of more, others evaluate some at a time."""

FAR = 4
"""How far queries may lie from the keys before they are too far: in multiples of the work of evaluating all pairs."""


@dataclass(frozen=True)
class Differences:
    """Differences that queries and keys may have, and which of them each pair has: of any two opposite ones, one.

    So they are for even functions.

    Attributes
    ----------
    values : Tensor
        Of all tasks ``(n, d_x)``, or of each its own ``(batch, n, d_x)``.
    index : Tensor
        ``(batch or 1, n_q, n_k)``, int32.
    """

    values: Tensor
    index: Tensor

    def of_pairs(self, table: Tensor) -> Tensor:
        """What `table` ``(batch, n)`` of each task holds for its pairs: ``(batch, n_q, n_k)``."""
        index = self._places(len(table))
        return table.flatten().index_select(0, index.flatten()).view(index.shape)

    def sums(self, pairs: Tensor) -> Tensor:
        """Sums over the pairs ``(batch, n_q, n_k)`` that have each difference: ``(batch, n)``, without gradients.

        Where each task has differences of its own, those of points and themselves, `pairs` must be symmetric.
        """
        n = self.values.shape[-2]
        if self.values.ndim == 3:
            once, times = self._pairs
            return pairs.detach().flatten().index_select(0, once).view(times.shape).mul_(times)
        total = torch.bincount(self._places(len(pairs)).flatten(), pairs.detach().flatten(), len(pairs) * n)
        return total.view(len(pairs), n).to(pairs)

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Of points and themselves: where the pairs of all tasks are, and how many there are of each, two or one."""
        n = self.index.shape[-1]
        rows, cols = torch.tril_indices(n, n, dtype=torch.int32, device=self.index.device)
        starts = torch.arange(len(self.values), dtype=torch.int32, device=rows.device)[:, None] * n**2
        once = (rows * n + cols + starts).flatten()
        return once, torch.where(rows == cols, 1.0, 2.0).to(self.values).expand(len(starts), -1)

    def _places(self, batch: int) -> Tensor:
        """Places of the pairs in the tables of all tasks, one after the other."""
        starts = torch.arange(batch, device=self.index.device, dtype=torch.int32) * self.values.shape[-2]
        return self.index + starts[:, None, None]


@torch.no_grad()
def symmetric(x: Tensor) -> Differences:
    """Differences of all pairs of points ``(batch, n, d_x)``: on a lattice of those it has, else of each pair."""
    found, n = differences(x, x), x.shape[1]
    if found is not None and len(found.values) <= n * (n + 1) // 2:
        return found
    rows, cols = torch.tril_indices(n, n, device=x.device)
    index = torch.empty(1, n, n, dtype=torch.int32, device=x.device)
    index[0, rows, cols] = index[0, cols, rows] = torch.arange(len(rows), dtype=torch.int32, device=x.device)
    return Differences(x.index_select(1, rows) - x.index_select(1, cols), index)


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
    farthest = torch.maximum(queries.amax(1) - keys.amin(1), keys.amax(1) - queries.amin(1)).amax(0).tolist()
    sizes = [2 * int(far) + 1 for far in farthest]
    if math.prod(sizes) > min(FAR * xq.shape[1] * xk.shape[1], 2**24):
        return None
    strides = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], dtype=xq.dtype)
    # no number is above 2^24: they are exact in float32
    at_q, at_k = ((x @ strides).to(torch.int32) for x in (queries, keys))
    # counted from the difference of nothing, in the middle of the box
    index = (at_q[:, :, None] - at_k[:, None]).abs_()
    ranges = (torch.arange(-far if i else 0, far + 1, dtype=xq.dtype) for i, far in enumerate(farthest))
    values = torch.cartesian_prod(*ranges).view(-1, len(sizes))
    return Differences(values[math.prod(sizes[1:]) // 2 :], index)


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
    products of matrices; those at the keys themselves, the last queries, are found apart from the others. One task at a
    time: what others are in a batch must not change even a rounding.

    Parameters
    ----------
    xq, xk, values : Tensor
        ``(n_q, 2)``, ``(n_k, 2)`` and ``(n_k, n)``.
    scales, directional_scales : sequence of float
        Standard deviations of the Gaussians.
    directions : Tensor
        ``(n_directions, 2)``, each of whose rows is a multiple of whole numbers, the two axes first.

    Returns
    -------
    Tensor or None
        ``(len(scales) + len(directional_scales) * n_directions, n_q, n)``; None where locations are not whole numbers
        apart, these or their lines are too many and too scattered, or on a GPU.
    """
    found = _whole(xq, xk) if xq.shape[-1] == 2 else None
    if found is None:
        return None
    units = directions.abs().amax(1)
    lines = _Lines(*found, directions / units[:, None])
    if any(n_q * n_k > FAR * xq.shape[0] * xk.shape[0] for n_q, n_k in zip(lines.n_q, lines.n_k, strict=True)):
        return None
    rates = -0.5 * torch.tensor([*scales, *directional_scales], dtype=values.dtype) ** -2
    of_distance, of_lines = rates.split([len(scales), len(directional_scales)])
    n_t = len(xq) - len(xk) if torch.equal(xq[len(xq) - len(xk) :], xk) else len(xq)
    values = values.mT.contiguous()
    queries = found[0].split([n_t, len(xq) - n_t])
    if any(len(part) * len(xk) > SPARSE_PAIRS and not _dense(part) for part in queries):
        return None
    parts = [_round_sums(part, found[1], values, of_distance) for part in queries]
    of_all, singles = torch.cat(parts, 1), []
    for i in range(len(directions) if directional_scales else 0):
        weights = lines.gaussians(i, of_lines * units[i] ** 2)
        line = values.new_zeros(len(values), lines.n_k[i]).index_add_(1, lines.at_k[i], values)
        singles.append((line @ weights.mT)[:, :, lines.at_q[i]].mT)
    return torch.cat([of_all, torch.stack(singles, 1).flatten(0, 1)]) if singles else of_all


def _round_sums(queries: Tensor, keys: Tensor, values: Tensor, rates: Tensor) -> Tensor:
    """Sums of `values` ``(n, n_k)``, weighted by exponentials of rates times squared distances: ``(n_rates, n_q, n)``.

    At all cells of the grid of the queries, if these are dense: there an exponential is a product of one of the rows
    and one of the columns.
    """
    if not len(queries):
        return values.new_empty(len(rates), 0, len(values))
    if not _dense(queries):
        down, across = ((queries[:, None, i] - keys[:, i]).square_() for i in range(2))
        return _exponentials(down.add_(across), rates) @ values.mT
    first, (rows, cols) = queries.amin(0), (queries.amax(0) - queries.amin(0) + 1).long().tolist()
    down, across = (
        _exponentials((first[i] + torch.arange(n)[:, None] - keys[:, i]).square_(), rates)
        for i, n in enumerate((rows, cols))
    )
    weighted = (down[:, None] * values[:, None]).flatten(1, 2) @ across.mT
    place = (queries - first).long()
    found: Tensor = weighted.unflatten(1, (-1, rows)).flatten(2)[:, :, place[:, 0] * cols + place[:, 1]]
    return found.mT


def _dense(queries: Tensor) -> bool:
    """Whether queries fill enough of the grid around them: see :data:`DENSE`."""
    return bool((queries.amax(0) - queries.amin(0) + 1).prod() <= DENSE * len(queries))


def _exponentials(squared: Tensor, rates: Tensor) -> Tensor:
    # the floor keeps clear of subnormal numbers, which cost many times as much
    return (squared * (rates * LOG2E)[:, None, None]).clamp_min_(-58.0).exp2_()


class _Lines:
    """Places of queries and keys on lines ``(n_lines, 2)`` as numbers from zero on, below `n_q` and `n_k` of each."""

    def __init__(self, queries: Tensor, keys: Tensor, lines: Tensor) -> None:
        q, k = ((x @ lines.T).round().T for x in (queries, keys))
        first_q, first_k = q.amin(1, keepdim=True), k.amin(1, keepdim=True)
        self.at_q, self.at_k = (q - first_q).long(), (k - first_k).long()
        self.n_q, self.n_k = ((at.amax(1) + 1).tolist() for at in (self.at_q, self.at_k))
        self.first = first_q - first_k

    def gaussians(self, line: int, rates: Tensor) -> Tensor:
        """Exponentials of each rate times the squared difference on a line, ``(len(rates), n_q, n_k)``."""
        apart = torch.arange(self.n_q[line])[:, None] + self.first[line] - torch.arange(self.n_k[line])
        return _exponentials(apart.square_(), rates)


def _whole(xq: Tensor, xk: Tensor) -> tuple[Tensor, Tensor] | None:
    """Locations relative to each task's lowest keys if all of these are whole numbers, and on a CPU."""
    if xq.device.type != "cpu" or not xq.numel() or not xk.numel():
        return None
    origin = xk.amin(-2, keepdim=True)
    queries, keys = xq - origin, xk - origin
    return (queries, keys) if all(bool((x == x.round()).all()) for x in (queries, keys)) else None
