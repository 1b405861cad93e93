"""Kernel-based attention bias: coordinate differences -> one number a head.

The paper's bias (TNP-KR, arXiv 2411.12502v2, equation 4, after TISA) is a small network of radial basis functions of
the distance, with its own parameters in every layer and head. :class:`DictionaryBias` keeps the form and shares the
basis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from geonp.nn.blocks import BLOCKS, LOG2E, pair_blocks
from geonp.nn.lattice import gaussian_sums, lattice_differences

__all__ = ["DictionaryBias", "KernelDictionary", "RBFBias", "dictionary_bias", "rbf_bias", "shared_bias"]


def rbf_bias(xq: Tensor, xk: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Bias ``sum_i a[h,i] exp(-|b[h,i]| (d - c[h,i])^2)`` of the Euclidean distance d.

    Parameters
    ----------
    xq, xk : Tensor
        ``(batch, n_q, d_x)`` and ``(batch, n_k, d_x)``.
    a, b, c : Tensor
        ``(heads, bases)`` each.

    Returns
    -------
    Tensor
        ``(batch, heads, n_q, n_k)``.
    """
    squared = (xq[:, :, None] - xk[:, None]).square().sum(-1)
    # The inner floor gives coincident points a gradient of zero instead of NaN.
    distance = torch.where(squared > 0, squared.clamp_min(1e-24).sqrt(), 0.0)
    out: Tensor = _RBF.apply(distance, a, b, c)  # type: ignore[no-untyped-call]
    return out


class _RBF(torch.autograd.Function):
    """Exponents are one small matrix product with ``[d^2, d, 1]``, and so are all gradients: no graph of many steps."""

    @staticmethod
    def forward(ctx: Any, distance: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        out = distance.new_empty(distance.shape[0], a.shape[0], *distance.shape[1:])
        n_blocks, kept = 0, list[Tensor]()
        for part, rows, *kept in _rbf_blocks(distance, b, c):
            n_blocks += 1
            basis = kept[1]
            block = (a[:, None] @ basis.unflatten(1, a.shape))[:, :, 0]
            out[part, :, rows] = block.unflatten(2, distance[part, rows].shape[1:])
        # of a single block, as scan attention asks for, the functions are at hand on the way back
        ctx.single = n_blocks == 1
        ctx.save_for_backward(distance, a, b, c, *(kept if ctx.single else ()))
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        distance, a, b, c, *kept = ctx.saved_tensors
        every = slice(None)
        blocks = [(every, every, *kept)] if ctx.single else _rbf_blocks(distance, b, c)
        moves = ctx.needs_input_grad[0]
        grad_distance = torch.zeros_like(distance) if moves else None
        moments = a.new_zeros(a.shape[0], 3, a.shape[1])
        slopes = _rbf_coefficients(b, c)[:, :2].unflatten(0, a.shape) * a[..., None]
        for part, rows, powers, basis in blocks:
            above, basis = grad[part, :, rows].flatten(2), basis.unflatten(1, a.shape)
            moments += ((above[:, :, None] * powers[:, None]) @ basis.mT).sum(0)
            if grad_distance is not None:
                by_square, by_distance = ((slopes.mT @ basis) * above[:, :, None]).sum(1).unbind(1)
                step = 2 * powers[:, 1] * by_square + by_distance
                grad_distance[part, rows] = step.view_as(distance[part, rows])
        by_square, by_distance, grad_a = moments.unbind(1)
        grad_b = a * b.sign() * (2 * c * by_distance - by_square - c.square() * grad_a)
        return grad_distance, grad_a, grad_b, 2 * a * b.abs() * (by_distance - c * grad_a)


def _rbf_coefficients(b: Tensor, c: Tensor) -> Tensor:
    """``-|b| (d - c)^2`` as a polynomial: ``(heads * bases, 3)``, of ``d^2``, ``d`` and 1."""
    b = b.abs()
    return torch.stack([-b, 2 * b * c, -b * c.square()], -1).flatten(0, 1)


def _rbf_blocks(distance: Tensor, b: Tensor, c: Tensor) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Slices of batch and queries, powers ``(part, 3, pairs)``, functions ``(part, heads * bases, pairs)``."""
    coefficients = _rbf_coefficients(b, c) * LOG2E
    batch, n_q, n_k = distance.shape
    for part, rows in pair_blocks(batch, n_q, n_k, distance.device.type, BLOCKS.scan):
        d = distance[part, rows].flatten(1)
        powers = torch.stack([d.square(), d, torch.ones_like(d)], 1)
        # the floor keeps clear of subnormal numbers, which cost many times as much
        yield part, rows, powers, torch.matmul(coefficients, powers).clamp_min_(-115.0).exp2_()


class RBFBias(nn.Module):
    """The bias of the paper: `bases` radial basis functions for each head, with own parameters in each layer.

    Deviation: with the published initialisation (a = b = 1, c = 0) all bases of a head receive the same gradient and
    stay equal. Here the widths b start spread over a factor of 64.
    """

    def __init__(self, heads: int, bases: int = 5) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(heads, bases))
        self.b = nn.Parameter(torch.logspace(-3, 3, bases, base=2.0).expand(heads, bases).clone())
        self.c = nn.Parameter(torch.zeros(heads, bases))

    def forward(self, xq: Tensor, xk: Tensor) -> Tensor:
        """Bias of all pairs, ``(batch, heads, n_q, n_k)``."""
        return rbf_bias(xq, xk, self.a, self.b, self.c)


class KernelDictionary(nn.Module):
    """A fixed set of Gaussian kernels of coordinate differences, shared by the heads and layers of a model.

    The kernels are ``exp(-(u . (xq - xk))^2 / (2 s^2))`` for the full distance at every scale s of `scales`, and for
    single directions u (the axes and the diagonals of each pair of axes) at every scale of `directional_scales`, which
    a distance alone can't tell apart.

    Deviation from the paper: fixed kernels with learned amplitudes instead of learned kernels, because the kernels are
    then evaluated once a batch instead of once in each layer and head.
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
        """Every kernel of every pair: ``(batch, n_q, d_x), (batch, n_k, d_x) -> (batch, size, n_q, n_k)``.

        No gradient flows to the locations.
        """
        out = xq.new_empty(xq.shape[0], self.size, xq.shape[1], xk.shape[1])
        for part, rows, kernels in self.blocks(xq, xk):
            out[part, :, rows] = kernels
        return out

    @torch.no_grad()
    def blocks(self, xq: Tensor, xk: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Slices of the batch and of the queries, and their kernels: on a CPU in blocks that stay in its cache."""
        # bfloat16 would round coordinates to cells, also where scan attention asks for the kernels of a block
        with torch.autocast(xq.device.type, enabled=False):
            pq, pk = (xq @ self.projections.T).mT, (xk @ self.projections.T).mT
            for part, rows in pair_blocks(len(xq), xq.shape[1], xk.shape[1], xq.device.type, BLOCKS.bias):
                squared = (pq[part, :, rows, None] - pk[part, :, None]).square_()
                yield part, rows, self._kernels(squared.flatten(2)).unflatten(2, squared.shape[2:])

    @torch.no_grad()
    def sums(self, xq: Tensor, xk: Tensor, values: Tensor) -> Tensor:
        """Sums over the keys of `values` ``(batch, n_k, n)``, weighted by each kernel: ``(batch, size, n_q, n)``."""
        gaussians = (self.scales, self.projections, self.directional_scales)
        with torch.autocast(xq.device.type, enabled=False):
            found = [gaussian_sums(*task, *gaussians) for task in zip(xq, xk, values, strict=True)]
            left = [task for task, sums in enumerate(found) if sums is None]
            others = xq.new_empty(len(left), self.size, xq.shape[1], values.shape[-1])
            for part, rows, kernels in self.blocks(xq[left], xk[left]):
                others[part, :, rows] = _summed(kernels, values[left][part])
        by_pairs = iter(others)
        return torch.stack([next(by_pairs) if sums is None else sums for sums in found])

    def at(self, differences: Tensor) -> Tensor:
        """Kernels ``(size, n)`` of differences ``(n, d_x)``."""
        return self._kernels((self.projections @ differences.mT).square_())

    def _kernels(self, squared: Tensor) -> Tensor:
        """Kernels ``(..., size, n)`` of squared projections ``(..., directions, n)``."""
        n, rates = len(self.scales), self.directional_rates.to(squared)[:, None, None]
        out = squared.new_empty(*squared.shape[:-2], self.size, squared.shape[-1])
        whole = squared[..., :1, :]
        for i in range(1, self.d_x):
            whole = whole + squared[..., i : i + 1, :]
        torch.mul(whole, self.rates.to(squared)[:, None], out=out[..., :n, :])
        if len(rates):
            torch.mul(squared[..., None, :, :], rates, out=out[..., n:, :].unflatten(-2, (len(rates), -1)))
        # the floor keeps clear of subnormal numbers, which cost many times as much
        return out.clamp_min_(-58.0).exp2_()


def _summed(kernels: Tensor, values: Tensor) -> Tensor:
    """``kernels @ values``, where products with so few columns take four times as long as with so few rows."""
    return (values.mT.contiguous()[:, None] @ kernels.mT).mT


def dictionary_bias(kernels: Tensor, amplitudes: Tensor) -> Tensor:
    """Combine kernels ``(batch, size, n_q, n_k)`` by `amplitudes` ``(heads, size)`` to ``(batch, heads, n_q, n_k)``."""
    batch, size, n_q, n_k = kernels.shape
    # bmm with an expanded left side: matmul would fold the batch and copy the kernels.
    rows = amplitudes.to(kernels.dtype).expand(batch, -1, -1)
    return torch.bmm(rows, kernels.reshape(batch, size, n_q * n_k)).view(batch, -1, n_q, n_k)


def shared_bias(
    dictionary: KernelDictionary, xq: Tensor, xk: Tensor, amplitudes: Tensor, values: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Biases of several layers at once, and sums over the keys weighted by each kernel, never holding all kernels.

    Parameters
    ----------
    dictionary : KernelDictionary
    xq, xk : Tensor
        ``(batch, n_q, d_x)`` and ``(batch, n_k, d_x)``.
    amplitudes : Tensor
        ``(layers, heads, size)``; the one argument that a gradient flows to.
    values : Tensor
        ``(batch, n_k, n)``.
    dtype : torch.dtype
        Of the biases.

    Returns
    -------
    tuple of Tensor
        ``(batch, layers, heads, n_q, n_k)`` and ``(batch, size, n_q, n)``.
    """
    bias, sums = _SharedBias.apply(dictionary, xq, xk, amplitudes.flatten(0, 1), values, dtype)  # type: ignore[no-untyped-call]
    return bias.unflatten(1, amplitudes.shape[:2]), sums


class _SharedBias(torch.autograd.Function):
    """Kernels are evaluated block by block, and again on the way back: quicker than writing and reading all of them.

    On a lattice once for each difference; then biases are looked up.
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
        ctx.dictionary, ctx.found = dictionary, lattice_differences(xq, xk)
        ctx.save_for_backward(xq, xk, amplitudes)
        batch, n_q, n_k = xq.shape[0], xq.shape[1], xk.shape[1]
        bias = xq.new_empty(batch, len(amplitudes), n_q, n_k, dtype=dtype)
        if ctx.found is not None:
            table = (amplitudes @ dictionary.at(ctx.found.values)).to(dtype)
            # torch looks numbers of 16 bits up in several rows at once at a third to a tenth of the speed
            parts = (slice(None),) if table.element_size() > 2 else range(len(table))
            for whole, index in zip(bias.flatten(2), ctx.found.index.flatten(1), strict=True):
                for i in parts:
                    torch.index_select(table[i], -1, index, out=whole[i])
            sums = dictionary.sums(xq, xk, values)
        else:
            sums = xq.new_empty(batch, dictionary.size, n_q, values.shape[-1])
            rows = amplitudes.to(dtype)
            for part, queries, kernels in dictionary.blocks(xq, xk):
                sums[part, :, queries] = _summed(kernels, values[part])
                kernels, block = kernels.flatten(2).to(dtype), bias[part, :, queries]
                torch.bmm(rows.expand(len(kernels), -1, -1), kernels, out=block.view(*block.shape[:2], -1))
        ctx.mark_non_differentiable(sums)
        return bias, sums

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, None, None, Tensor, None, None]:
        xq, xk, amplitudes = ctx.saved_tensors
        if ctx.found is not None:
            kernels = ctx.dictionary.at(ctx.found.values)
            slope = kernels.new_zeros(len(amplitudes), kernels.shape[1])
            for grad, index in zip(grad_outputs[0].flatten(2), ctx.found.index.flatten(1), strict=True):
                slope.scatter_add_(1, index.long().expand(len(slope), -1), grad.to(slope))
            return None, None, None, slope @ kernels.mT, None, None
        gradient = torch.zeros_like(amplitudes)
        for part, queries, kernels in ctx.dictionary.blocks(xq, xk):
            slope = grad_outputs[0][part, :, queries].flatten(2).to(kernels)
            gradient += (slope @ kernels.flatten(2).mT).sum(0)
        return None, None, None, gradient, None, None


class DictionaryBias(nn.Module):
    """Amplitudes of one layer, ``(heads, size)``, for the kernels of a shared :class:`KernelDictionary`.

    The amplitudes start with a different scale preferred by each head, which breaks the symmetry between heads.
    """

    def __init__(self, heads: int, dictionary: KernelDictionary) -> None:
        super().__init__()
        start = torch.zeros(heads, dictionary.size)
        for head in range(heads):
            start[head, round(head * (len(dictionary.scales) - 1) / max(heads - 1, 1))] = 2.0
        self.amplitudes = nn.Parameter(start + 0.05 * torch.randn_like(start))
