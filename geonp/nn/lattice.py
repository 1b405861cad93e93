"""Points on a common lattice: functions of a coordinate difference are computed once for each distinct difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from geonp.nn.blocks import LOG2E


@dataclass(frozen=True)
class LatticeLimits:
    """Where a lattice is worth using, from timings on a CPU."""

    cells_per_query: int = 8
    """Grid cells for each query up to which sums at all cells of the grid are faster than at the queries only."""
    scattered_pairs: int = 2**20
    """Pairs of scattered queries and keys that are held at once; of more, the caller computes blocks."""
    work_ratio: int = 4
    """Distinct differences, and pairs of positions on a line, for each pair of points, up to which they are used."""
    table_size: int = 2**24
    """Most distinct differences: integers up to it are exact in float32."""


LATTICE = LatticeLimits()
"""The limits in use."""


@dataclass(frozen=True)
class PairDifferences:
    """Distinct coordinate differences, one of any two opposite ones, and the one of each pair: for even functions.

    Attributes
    ----------
    values : Tensor
        Differences ``(n, d_x)`` shared by all tasks, or ``(batch, n, d_x)``.
    index : Tensor
        Position in `values` of each pair's difference, ``(batch or 1, n_q, n_k)``, int32.
    """

    values: Tensor
    index: Tensor

    def to_pairs(self, table: Tensor) -> Tensor:
        """Look up function values ``(batch, n)`` of the differences for all pairs: ``(batch, n_q, n_k)``."""
        index = self._flat_index(len(table))
        return table.flatten().index_select(0, index.flatten()).view(index.shape)

    def sum_pairs(self, pairs: Tensor) -> Tensor:
        """Sum ``(batch, n_q, n_k)`` over the pairs of each difference: ``(batch, n)``, without gradients.

        If each task has its own differences (:func:`symmetric_differences`), `pairs` must be symmetric.
        """
        n = self.values.shape[-2]
        if self.values.ndim == 3:
            triangle, counts = self._triangle
            return pairs.detach().flatten().index_select(0, triangle).view(counts.shape).mul_(counts)
        total = torch.bincount(self._flat_index(len(pairs)).flatten(), pairs.detach().flatten(), len(pairs) * n)
        return total.view(len(pairs), n).to(pairs)

    @cached_property
    def _triangle(self) -> tuple[Tensor, Tensor]:
        """Flat positions of the lower triangles of all tasks, and how many pairs each entry stands for, two or one."""
        n = self.index.shape[-1]
        rows, cols = torch.tril_indices(n, n, dtype=torch.int32, device=self.index.device)
        starts = torch.arange(len(self.values), dtype=torch.int32, device=rows.device)[:, None] * n**2
        positions = (rows * n + cols + starts).flatten()
        return positions, torch.where(rows == cols, 1.0, 2.0).to(self.values).expand(len(starts), -1)

    def _flat_index(self, batch: int) -> Tensor:
        """Positions of the pairs in the concatenated tables of all tasks."""
        starts = torch.arange(batch, device=self.index.device, dtype=torch.int32) * self.values.shape[-2]
        return self.index + starts[:, None, None]


@torch.no_grad()
def symmetric_differences(x: Tensor) -> PairDifferences:
    """Differences of all pairs of points ``(batch, n, d_x)``: distinct ones on a lattice, else one for each pair."""
    differences, n = lattice_differences(x, x), x.shape[1]
    if differences is not None and len(differences.values) <= n * (n + 1) // 2:
        return differences
    rows, cols = torch.tril_indices(n, n, device=x.device)
    index = torch.empty(1, n, n, dtype=torch.int32, device=x.device)
    index[0, rows, cols] = index[0, cols, rows] = torch.arange(len(rows), dtype=torch.int32, device=x.device)
    return PairDifferences(x.index_select(1, rows) - x.index_select(1, cols), index)


@torch.no_grad()
def lattice_differences(xq: Tensor, xk: Tensor) -> PairDifferences | None:
    """Distinct differences of queries ``(batch, n_q, d_x)`` and keys ``(batch, n_k, d_x)`` that are whole numbers.

    None if they are not whole numbers, if there are too many of them, and on a GPU, which computes faster than it looks
    up.
    """
    relative = _whole_numbers(xq, xk)
    if relative is None:
        return None
    queries, keys = relative
    # by the keys only: the targets of a call should not change the rounding of the results
    if bool(((2 * (keys.amax(1) - keys.amin(1)) + 1).prod(-1) > 2 * xk.shape[1] ** 2).any()):
        return None
    extents = torch.maximum(queries.amax(1) - keys.amin(1), keys.amax(1) - queries.amin(1)).amax(0).tolist()
    sizes = [2 * int(extent) + 1 for extent in extents]
    if math.prod(sizes) > min(LATTICE.work_ratio * xq.shape[1] * xk.shape[1], LATTICE.table_size):
        return None
    strides = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], dtype=xq.dtype)
    position_q, position_k = ((x @ strides).to(torch.int32) for x in (queries, keys))
    # counted from the zero difference, in the middle of the box
    index = (position_q[:, :, None] - position_k[:, None]).abs_()
    ranges = (torch.arange(-extent if i else 0, extent + 1, dtype=xq.dtype) for i, extent in enumerate(extents))
    values = torch.cartesian_prod(*ranges).view(-1, len(sizes))
    return PairDifferences(values[math.prod(sizes[1:]) // 2 :], index)


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

    On a grid a Gaussian is a product of one of the rows and one of the columns, so that all sums are a few small matrix
    products. The last queries, if they are the keys, are summed separately from the others. Takes one task at a time,
    so that the other tasks of a batch don't change the rounding of the results.

    Parameters
    ----------
    xq, xk, values : Tensor
        ``(n_q, 2)``, ``(n_k, 2)`` and ``(n_k, n)``.
    scales, directional_scales : sequence of float
        Standard deviations of the Gaussians.
    directions : Tensor
        ``(n_directions, 2)``. Each row is a multiple of whole numbers; the two axes come first.

    Returns
    -------
    Tensor or None
        ``(len(scales) + len(directional_scales) * n_directions, n_q, n)``. None if the differences of locations are not
        whole numbers, if the locations or their lines are too many and too scattered, and on a GPU.
    """
    relative = _whole_numbers(xq, xk) if xq.shape[-1] == 2 else None
    if relative is None:
        return None
    queries, keys = relative
    units = directions.abs().amax(1)
    # positions of the points projected on each direction, which are whole numbers too
    q, k = ((x @ (directions / units[:, None]).T).round().T for x in relative)
    sizes = [[int(n) for n in x.amax(1) - x.amin(1) + 1] for x in (q, k)]
    max_pairs = LATTICE.work_ratio * len(xq) * len(xk)
    if any(n_q * n_k > max_pairs for n_q, n_k in zip(*sizes, strict=True)):
        return None
    rates = -0.5 * torch.tensor([*scales, *directional_scales], dtype=values.dtype) ** -2
    isotropic, directional = rates.split([len(scales), len(directional_scales)])
    n_t = len(xq) - len(xk) if torch.equal(xq[len(xq) - len(xk) :], xk) else len(xq)
    values = values.mT.contiguous()
    parts = queries.split([n_t, len(xq) - n_t])
    if any(len(part) * len(xk) > LATTICE.scattered_pairs and not _is_dense(part) for part in parts):
        return None
    sums = [torch.cat([_isotropic_sums(part, keys, values, isotropic) for part in parts], 1)]
    by_direction = []
    for i in range(len(directions) if directional_scales else 0):
        (first_q, first_k), (n_q, n_k) = (q[i].amin(), k[i].amin()), (n[i] for n in sizes)
        differences = torch.arange(n_q)[:, None] + (first_q - first_k) - torch.arange(n_k)
        weights = _exponentials(differences.square_(), directional * units[i] ** 2)
        line = values.new_zeros(len(values), n_k).index_add_(1, (k[i] - first_k).long(), values)
        by_direction.append((line @ weights.mT)[:, :, (q[i] - first_q).long()].mT)
    if by_direction:
        sums.append(torch.stack(by_direction, 1).flatten(0, 1))
    return torch.cat(sums)


def _isotropic_sums(queries: Tensor, keys: Tensor, values: Tensor, rates: Tensor) -> Tensor:
    """Sums of `values` ``(n, n_k)`` weighted by ``exp(rate * squared distance)``, ``(n_rates, n_q, n)``.

    Dense queries are summed at all cells of their grid, where the exponential is a product of rows and columns.
    """
    if not len(queries):
        return values.new_empty(len(rates), 0, len(values))
    if not _is_dense(queries):
        squared_y, squared_x = ((queries[:, None, i] - keys[:, i]).square_() for i in range(2))
        return _exponentials(squared_y.add_(squared_x), rates) @ values.mT
    first, (n_rows, n_cols) = queries.amin(0), (queries.amax(0) - queries.amin(0) + 1).long().tolist()
    by_row, by_col = (
        _exponentials((first[i] + torch.arange(n)[:, None] - keys[:, i]).square_(), rates)
        for i, n in enumerate((n_rows, n_cols))
    )
    sums = (by_row[:, None] * values[:, None]).flatten(1, 2) @ by_col.mT
    cells = (queries - first).long()
    at_queries: Tensor = sums.unflatten(1, (-1, n_rows)).flatten(2)[:, :, cells[:, 0] * n_cols + cells[:, 1]]
    return at_queries.mT


def _is_dense(queries: Tensor) -> bool:
    """Whether queries fill enough of their bounding box for sums at all of its cells."""
    return bool((queries.amax(0) - queries.amin(0) + 1).prod() <= LATTICE.cells_per_query * len(queries))


def _exponentials(squared: Tensor, rates: Tensor) -> Tensor:
    # the lower bound avoids subnormal numbers, which are many times slower
    return (squared * (rates * LOG2E)[:, None, None]).clamp_min_(-58.0).exp2_()


def _whole_numbers(xq: Tensor, xk: Tensor) -> tuple[Tensor, Tensor] | None:
    """Locations relative to each task's smallest key coordinates if all are whole numbers and on a CPU, else None."""
    if xq.device.type != "cpu" or not xq.numel() or not xk.numel():
        return None
    smallest = xk.amin(-2, keepdim=True)
    queries, keys = xq - smallest, xk - smallest
    return (queries, keys) if all(bool((x == x.round()).all()) for x in (queries, keys)) else None
