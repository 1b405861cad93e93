"""Kernel-based attention bias: coordinate differences -> one number a head.

The paper's bias (TNP-KR, arXiv 2411.12502v2, equation 4, after TISA) is a small network of radial basis functions of
the distance, with its own parameters in every layer and head. :class:`DictionaryBias` keeps the form and shares the
basis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["DictionaryBias", "KernelDictionary", "RBFBias", "dictionary_bias", "rbf_bias"]


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
    distance = torch.where(squared > 0, squared.clamp_min(1e-24).sqrt(), 0.0)[:, None]
    out = torch.zeros(()).to(distance)
    for i in range(a.shape[1]):
        ai, bi, ci = (t[:, i, None, None] for t in (a, b, c))
        out = out + ai * torch.exp(-bi.abs() * (distance - ci).square())
    return out


class RBFBias(nn.Module):
    """The paper's bias: `bases` radial basis functions for each head, own parameters in each layer.

    Deviation: with the published initialisation (a = b = 1, c = 0) the bases of a head receive equal gradients and stay
    equal for ever. By default the widths are spread over a factor of 64 instead; ``spread=False`` is the published one.
    """

    def __init__(self, heads: int, bases: int = 5, *, spread: bool = True) -> None:
        super().__init__()
        widths = torch.logspace(-3, 3, bases, base=2.0) if spread and bases > 1 else torch.ones(bases)
        self.a = nn.Parameter(torch.ones(heads, bases))
        self.b = nn.Parameter(widths.expand(heads, bases).clone())
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

    @property
    def size(self) -> int:
        """Number of kernels."""
        return len(self.scales) + len(self.directional_scales) * self.projections.shape[0]

    @torch.no_grad()
    def forward(self, xq: Tensor, xk: Tensor) -> Tensor:
        """Every kernel of every pair: ``(batch, n_q, d_x), (batch, n_k, d_x) -> (batch, size, n_q, n_k)``.

        No gradient flows to the locations.
        """
        # bfloat16 would round coordinates to cells, also where scan attention asks for the kernels of a block
        with torch.autocast(xq.device.type, enabled=False):
            pq, pk = xq @ self.projections.T, xk @ self.projections.T
        squared = (pq.mT[:, :, :, None] - pk.mT[:, :, None, :]).square_()
        distance = squared[:, : self.d_x].sum(1)
        out = squared.new_empty(xq.shape[0], self.size, xq.shape[1], xk.shape[1])
        for i, s in enumerate(self.scales):
            torch.mul(distance, -0.5 / s**2, out=out[:, i])
        directional = out[:, len(self.scales) :].unflatten(1, (len(self.directional_scales), self.projections.shape[0]))
        for i, s in enumerate(self.directional_scales):
            torch.mul(squared, -0.5 / s**2, out=directional[:, i])
        # the floor keeps clear of subnormal numbers, which cost many times as much
        return out.clamp_min_(-40.0).exp_()


def dictionary_bias(kernels: Tensor, amplitudes: Tensor) -> Tensor:
    """Combine kernels ``(batch, size, n_q, n_k)`` by `amplitudes` ``(heads, size)`` to ``(batch, heads, n_q, n_k)``."""
    batch, size, n_q, n_k = kernels.shape
    # bmm with an expanded left side: matmul would fold the batch and copy the kernels.
    rows = amplitudes.to(kernels.dtype).expand(batch, -1, -1)
    return torch.bmm(rows, kernels.reshape(batch, size, n_q * n_k)).view(batch, -1, n_q, n_k)


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

    def forward(self, kernels: Tensor) -> Tensor:
        """Bias from the kernels of all pairs, ``(batch, heads, n_q, n_k)``."""
        return dictionary_bias(kernels, self.amplitudes)
