"""Attention biases by kernels of the coordinate difference of a query and a key.

:class:`RBFBias` is that of TNP-KR (arXiv 2411.12502v2, equation 4, after TISA): radial basis functions of the distance
with their own parameters in each layer and head. :class:`DictionaryBias` shares one basis, :class:`KernelDictionary`,
among layers and heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from geonp.nn.blocks import BLOCKS, LOG2E, pair_blocks
from geonp.nn.lattice import gaussian_sums, lattice_differences


def rbf_bias(xq: Tensor, xk: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Bias ``sum_i a[h,i] exp(-|b[h,i]| (d - c[h,i])^2)`` of the Euclidean distance d, ``(batch, heads, n_q, n_k)``.

    Locations are ``(batch, n_q, d_x)`` and ``(batch, n_k, d_x)``; a, b and c are ``(heads, bases)``.
    """
    squared = (xq[:, :, None] - xk[:, None]).square().sum(-1)
    # the inner lower bound gives coincident points a gradient of zero instead of NaN
    distance = torch.where(squared > 0, squared.clamp_min(1e-24).sqrt(), 0.0)
    out: Tensor = _RBF.apply(distance, a, b, c)  # type: ignore[no-untyped-call]
    return out


class _RBF(torch.autograd.Function):
    """Exponents and all gradients are small matrix products with ``[d^2, d, 1]``, instead of a graph of many steps."""

    @staticmethod
    def forward(ctx: Any, distance: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        out = distance.new_empty(distance.shape[0], a.shape[0], *distance.shape[1:])
        n_blocks, saved = 0, list[Tensor]()
        for tasks, rows, *saved in _rbf_blocks(distance, b, c):
            n_blocks += 1
            basis = saved[1]
            block = (a[:, None] @ basis.unflatten(1, a.shape))[:, :, 0]
            out[tasks, :, rows] = block.unflatten(2, distance[tasks, rows].shape[1:])
        # a single block, the usual case in scan attention, is saved for the backward pass
        ctx.single = n_blocks == 1
        ctx.save_for_backward(distance, a, b, c, *(saved if ctx.single else ()))
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        distance, a, b, c, *saved = ctx.saved_tensors
        everything = slice(None)
        blocks = [(everything, everything, *saved)] if ctx.single else _rbf_blocks(distance, b, c)
        grad_distance = torch.zeros_like(distance) if ctx.needs_input_grad[0] else None
        moments = a.new_zeros(a.shape[0], 3, a.shape[1])
        slopes = _rbf_coefficients(b, c)[:, :2].unflatten(0, a.shape) * a[..., None]
        for tasks, rows, powers, basis in blocks:
            grad_block, basis = grad[tasks, :, rows].flatten(2), basis.unflatten(1, a.shape)
            moments += ((grad_block[:, :, None] * powers[:, None]) @ basis.mT).sum(0)
            if grad_distance is not None:
                by_square, by_distance = ((slopes.mT @ basis) * grad_block[:, :, None]).sum(1).unbind(1)
                total = 2 * powers[:, 1] * by_square + by_distance
                grad_distance[tasks, rows] = total.view_as(distance[tasks, rows])
        by_square, by_distance, grad_a = moments.unbind(1)
        grad_b = a * b.sign() * (2 * c * by_distance - by_square - c.square() * grad_a)
        return grad_distance, grad_a, grad_b, 2 * a * b.abs() * (by_distance - c * grad_a)


def _rbf_coefficients(b: Tensor, c: Tensor) -> Tensor:
    """Coefficients of ``d^2``, ``d`` and 1 in ``-|b| (d - c)^2``, ``(heads * bases, 3)``."""
    b = b.abs()
    return torch.stack([-b, 2 * b * c, -b * c.square()], -1).flatten(0, 1)


def _rbf_blocks(distance: Tensor, b: Tensor, c: Tensor) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Slices of batch and queries, powers ``(tasks, 3, pairs)`` and bases ``(tasks, heads * bases, pairs)``."""
    coefficients = _rbf_coefficients(b, c) * LOG2E
    batch, n_q, n_k = distance.shape
    for tasks, rows in pair_blocks(batch, n_q, n_k, distance.device.type, BLOCKS.scan):
        d = distance[tasks, rows].flatten(1)
        powers = torch.stack([d.square(), d, torch.ones_like(d)], 1)
        # the lower bound avoids subnormal numbers, which are many times slower
        yield tasks, rows, powers, torch.matmul(coefficients, powers).clamp_min_(-115.0).exp2_()


class RBFBias(nn.Module):
    """The bias of the paper: `bases` radial basis functions for each head, with own parameters in each layer.

    Deviation: with the published initialisation (a = b = 1, c = 0) all bases of a head receive the same gradient and
    stay equal. Here they start from `widths`, as ``exp(-d^2 / (2 width^2))``; by default b is spread over a factor of
    64.
    """

    def __init__(self, heads: int, bases: int = 5, widths: Sequence[float] = ()) -> None:
        super().__init__()
        rates = 0.5 * torch.tensor(tuple(widths)) ** -2 if widths else torch.logspace(-3, 3, bases, base=2.0)
        bases = len(rates)
        self.a = nn.Parameter(torch.ones(heads, bases))
        self.b = nn.Parameter(rates.expand(heads, bases).clone())
        self.c = nn.Parameter(torch.zeros(heads, bases))

    def forward(self, xq: Tensor, xk: Tensor) -> Tensor:
        """Bias of all pairs, ``(batch, heads, n_q, n_k)``."""
        return rbf_bias(xq, xk, self.a, self.b, self.c)


class KernelDictionary(nn.Module):
    """A fixed set of Gaussian kernels of coordinate differences, shared by the heads and layers of a model.

    For each scale s of `scales` there is a kernel of the distance, ``exp(-|xq - xk|^2 / (2 s^2))``. For each scale of
    `directional_scales` there is one of each direction u, ``exp(-(u . (xq - xk))^2 / (2 s^2))``: the axes and the
    diagonals of each pair of axes. They distinguish directions, which a distance can't.

    Deviation from the paper: fixed kernels with learned amplitudes instead of learned kernels. They are computed once
    for each batch instead of once in each layer and head.
    """

    projections: Tensor
    rates: Tensor
    directional_rates: Tensor

    def __init__(self, d_x: int, scales: Sequence[float], directional_scales: Sequence[float]) -> None:
        super().__init__()
        eye = torch.eye(d_x)
        diagonals = [
            (eye[i] + sign * eye[j]) / math.sqrt(2) for i in range(d_x) for j in range(i + 1, d_x) for sign in (1, -1)
        ]
        directions = torch.stack([*eye, *diagonals]) if directional_scales else eye
        self.register_buffer("projections", directions, persistent=False)
        self.scales, self.directional_scales = tuple(scales), tuple(directional_scales)
        self.d_x = d_x
        for name, widths in (("rates", scales), ("directional_rates", directional_scales)):
            self.register_buffer(name, -0.5 * LOG2E * torch.tensor(tuple(widths)) ** -2.0, persistent=False)

    @property
    def size(self) -> int:
        """Number of kernels."""
        return len(self.scales) + len(self.directional_scales) * self.projections.shape[0]

    @torch.no_grad()
    def forward(self, xq: Tensor, xk: Tensor) -> Tensor:
        """All kernels of all pairs, ``(batch, n_q, d_x), (batch, n_k, d_x) -> (batch, size, n_q, n_k)``.

        No gradient flows to the locations.
        """
        out = xq.new_empty(xq.shape[0], self.size, xq.shape[1], xk.shape[1])
        for tasks, rows, kernels in self.blocks(xq, xk):
            out[tasks, :, rows] = kernels
        return out

    @torch.no_grad()
    def blocks(self, xq: Tensor, xk: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Slices of the batch and of the queries, and their kernels, in :func:`~geonp.nn.blocks.pair_blocks`."""
        # bfloat16 would round coordinates to whole cells
        with torch.autocast(xq.device.type, enabled=False):
            pq, pk = (xq @ self.projections.T).mT, (xk @ self.projections.T).mT
            for tasks, rows in pair_blocks(len(xq), xq.shape[1], xk.shape[1], xq.device.type, BLOCKS.bias):
                squared = (pq[tasks, :, rows, None] - pk[tasks, :, None]).square_()
                yield tasks, rows, self._kernels(squared.flatten(2)).unflatten(2, squared.shape[2:])

    @torch.no_grad()
    def sums(self, xq: Tensor, xk: Tensor, values: Tensor) -> Tensor:
        """Kernel-weighted sums over the keys of `values` ``(batch, n_k, n)``, ``(batch, size, n_q, n)``.

        Each task is summed on its grid if it has one (:func:`~geonp.nn.lattice.gaussian_sums`), else over all pairs.
        """
        gaussians = (self.scales, self.projections, self.directional_scales)
        with torch.autocast(xq.device.type, enabled=False):
            on_grid = [gaussian_sums(*task, *gaussians) for task in zip(xq, xk, values, strict=True)]
            rest = [task for task, sums in enumerate(on_grid) if sums is None]
            by_pairs = xq.new_empty(len(rest), self.size, xq.shape[1], values.shape[-1])
            for tasks, rows, kernels in self.blocks(xq[rest], xk[rest]):
                by_pairs[tasks, :, rows] = _weighted_sums(kernels, values[rest][tasks])
        remaining = iter(by_pairs)
        return torch.stack([next(remaining) if sums is None else sums for sums in on_grid])

    def at(self, differences: Tensor) -> Tensor:
        """Kernels ``(size, n)`` of differences ``(n, d_x)``."""
        return self._kernels((self.projections @ differences.mT).square_())

    def _kernels(self, squared: Tensor) -> Tensor:
        """Kernels ``(..., size, n)`` of squared projections ``(..., directions, n)``."""
        n, rates = len(self.scales), self.directional_rates.to(squared)[:, None, None]
        out = squared.new_empty(*squared.shape[:-2], self.size, squared.shape[-1])
        distance = squared[..., :1, :]
        for i in range(1, self.d_x):
            distance = distance + squared[..., i : i + 1, :]
        torch.mul(distance, self.rates.to(squared)[:, None], out=out[..., :n, :])
        if len(rates):
            torch.mul(squared[..., None, :, :], rates, out=out[..., n:, :].unflatten(-2, (len(rates), -1)))
        # the lower bound avoids subnormal numbers, which are many times slower
        return out.clamp_min_(-58.0).exp2_()


def _weighted_sums(kernels: Tensor, values: Tensor) -> Tensor:
    """``kernels @ values`` by its transpose: products with few rows are four times as fast as with few columns."""
    return (values.mT.contiguous()[:, None] @ kernels.mT).mT


def dictionary_bias(kernels: Tensor, amplitudes: Tensor) -> Tensor:
    """Sum of kernels ``(batch, size, n_q, n_k)`` weighted by `amplitudes` ``(heads, size)``, for each head."""
    batch, size, n_q, n_k = kernels.shape
    # matmul would fold the batch and copy the kernels
    rows = amplitudes.to(kernels.dtype).expand(batch, -1, -1)
    return torch.bmm(rows, kernels.reshape(batch, size, n_q * n_k)).view(batch, -1, n_q, n_k)


def shared_bias(
    dictionary: KernelDictionary, xq: Tensor, xk: Tensor, amplitudes: Tensor, values: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Biases of several layers at once, and :meth:`KernelDictionary.sums`, without holding the kernels of all pairs.

    Parameters
    ----------
    dictionary : KernelDictionary
        Kernels that the layers share.
    xq, xk : Tensor
        ``(batch, n_q, d_x)`` and ``(batch, n_k, d_x)``.
    amplitudes : Tensor
        ``(layers, heads, size)``; the only argument that receives gradients.
    values : Tensor
        ``(batch, n_k, n)``.
    dtype : torch.dtype
        Data type of the biases.

    Returns
    -------
    tuple of Tensor
        ``(batch, layers, heads, n_q, n_k)`` and ``(batch, size, n_q, n)``.
    """
    bias, sums = _SharedBias.apply(dictionary, xq, xk, amplitudes.flatten(0, 1), values, dtype)  # type: ignore[no-untyped-call]
    return bias.unflatten(1, amplitudes.shape[:2]), sums


class _SharedBias(torch.autograd.Function):
    """Kernels are computed block by block, and again in the backward pass: faster than writing and reading them all.

    On a lattice they are computed once for each coordinate difference, and biases are looked up.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dictionary: KernelDictionary,
        xq: Tensor,
        xk: Tensor,
        amplitudes: Tensor,
        values: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        ctx.dictionary, ctx.differences = dictionary, lattice_differences(xq, xk)
        ctx.save_for_backward(xq, xk, amplitudes)
        batch, n_q, n_k = xq.shape[0], xq.shape[1], xk.shape[1]
        bias = xq.new_empty(batch, len(amplitudes), n_q, n_k, dtype=dtype)
        if ctx.differences is not None:
            table = (amplitudes @ dictionary.at(ctx.differences.values)).to(dtype)
            # torch looks up 16-bit numbers in several rows at once at a third to a tenth of the speed
            parts = (slice(None),) if table.element_size() > 2 else range(len(table))
            for task, index in zip(bias.flatten(2), ctx.differences.index.flatten(1), strict=True):
                for i in parts:
                    torch.index_select(table[i], -1, index, out=task[i])
            sums = dictionary.sums(xq, xk, values)
        else:
            sums = xq.new_empty(batch, dictionary.size, n_q, values.shape[-1])
            rounded = amplitudes.to(dtype)
            for tasks, rows, kernels in dictionary.blocks(xq, xk):
                sums[tasks, :, rows] = _weighted_sums(kernels, values[tasks])
                kernels, block = kernels.flatten(2).to(dtype), bias[tasks, :, rows]
                torch.bmm(rounded.expand(len(kernels), -1, -1), kernels, out=block.view(*block.shape[:2], -1))
        ctx.mark_non_differentiable(sums)
        return bias, sums

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, None, None, Tensor, None, None]:
        xq, xk, amplitudes = ctx.saved_tensors
        if ctx.differences is not None:
            kernels = ctx.dictionary.at(ctx.differences.values)
            by_difference = kernels.new_zeros(len(amplitudes), kernels.shape[1])
            for grad, index in zip(grad_outputs[0].flatten(2), ctx.differences.index.flatten(1), strict=True):
                by_difference.scatter_add_(1, index.long().expand(len(amplitudes), -1), grad.to(kernels))
            return None, None, None, by_difference @ kernels.mT, None, None
        grad_amplitudes = torch.zeros_like(amplitudes)
        for tasks, rows, kernels in ctx.dictionary.blocks(xq, xk):
            grad = grad_outputs[0][tasks, :, rows].flatten(2).to(kernels)
            grad_amplitudes += (grad @ kernels.flatten(2).mT).sum(0)
        return None, None, None, grad_amplitudes, None, None


class DictionaryBias(nn.Module):
    """Amplitudes ``(heads, size)`` of one layer for the kernels of a shared :class:`KernelDictionary`.

    Each head starts with another preferred scale, which breaks the symmetry between heads.
    """

    def __init__(self, heads: int, dictionary: KernelDictionary) -> None:
        super().__init__()
        start = torch.zeros(heads, dictionary.size)
        for head in range(heads):
            start[head, round(head * (len(dictionary.scales) - 1) / max(heads - 1, 1))] = 2.0
        self.amplitudes = nn.Parameter(start + 0.05 * torch.randn_like(start))
