"""Points that a covariance is fitted to and conditioned on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from geonp.nn.lattice import PairDifferences, symmetric_differences
from geonp.nn.layers import masked_mean


def bounded_noise(local: Tensor, trusted_mask: Tensor | None) -> Tensor:
    """Raw log amplitude and log noise of points ``(batch, n, 2)``, the latter at most zero where they are trusted."""
    if trusted_mask is None:
        return local
    amplitude, noise = local.unbind(-1)
    return torch.stack([amplitude, torch.where(trusted_mask, noise.clamp_max(0.0), noise)], -1)


def with_even_amplitude(local: Tensor, of_context: Tensor, mask: Tensor, even_mask: Tensor | None) -> Tensor:
    """Raw log amplitude and log noise of points ``(batch, n, 2)``, with the mean amplitude of their context.

    Only in the tasks in which `even_mask` ``(batch,)`` is True. `of_context` ``(batch, n_c, 2)`` holds those of the
    context, and `mask` ``(batch, n_c)`` is True where it is observed.
    """
    if even_mask is None or not bool(even_mask.any()):
        return local
    mean = masked_mean(of_context[..., :1], mask)[:, None].expand(-1, local.shape[1], -1)
    return torch.cat([torch.where(even_mask[:, None, None], mean, local[..., :1]), local[..., 1:]], -1)


@dataclass(frozen=True)
class Observations:
    """Context points that a covariance model is fitted to.

    Attributes
    ----------
    local : Tensor
        Raw log amplitude and log noise of each point, ``(batch, n, 2)``.
    x, y : Tensor
        Locations ``(batch, n, d_x)`` and values ``(batch, n, d_y)``.
    mask : Tensor
        ``(batch, n)``, True where observed.
    trusted_mask : Tensor or None
        ``(batch, n)``, True where the noise of a point is at most that of all points. If None, it is so nowhere.
    error_variance : Tensor or None
        Known error variance of each value, ``(batch, n)``, in addition to the estimated noise.
    even_mask : Tensor or None
        ``(batch,)``, True where all points have the same amplitude. If None, it is so nowhere.
    """

    local: Tensor
    x: Tensor
    y: Tensor
    mask: Tensor
    trusted_mask: Tensor | None = field(default=None, kw_only=True)
    error_variance: Tensor | None = field(default=None, kw_only=True)
    even_mask: Tensor | None = field(default=None, kw_only=True)

    def with_errors(self, noise: Tensor) -> Tensor:
        """The sum of an estimated noise variance ``(batch, n)`` and the known error variance."""
        return noise if self.error_variance is None else noise + self.error_variance

    @property
    def bounded_local(self) -> Tensor:
        """Raw log amplitude and log noise, bounded where a point is trusted, float64, ``(batch, n, 2)``."""
        return bounded_noise(self.local.double(), self.trusted_mask)

    def trusting(self, trusted_mask: Tensor | None) -> Self:
        """The same points, others of which are trusted; the same object if None."""
        if trusted_mask is None:
            return self
        return self._at_same_places(replace(self, trusted_mask=trusted_mask))

    def trusting_as(self, other: Self, mask: Tensor) -> Self:
        """The same points, trusted as in `other` where a `mask` ``(batch, 1)`` is True."""
        if self.trusted_mask is None or other.trusted_mask is None:
            return self
        return self.trusting(torch.where(mask, other.trusted_mask, self.trusted_mask))

    def with_even_amplitude(self, mask: Tensor) -> Self:
        """The same points, all with their mean amplitude in the tasks in which a `mask` ``(batch,)`` is True."""
        local = with_even_amplitude(self.local, self.local, self.mask, mask)
        return self._at_same_places(replace(self, local=local, even_mask=mask))

    def _at_same_places(self, points: Self) -> Self:
        points.__dict__["differences"] = self.differences
        return points

    @cached_property
    def differences(self) -> PairDifferences:
        """Coordinate differences of all pairs, float64."""
        return symmetric_differences(self.x.double())

    def nearest(self, n: int) -> Self:
        """The `n` points nearest to the centre of a context in :func:`outside_in_order`."""
        return self._every(n, self.mask.new_ones(len(self.mask)).long())

    def thinned(self, n: int) -> Self:
        """About `n` points at regular steps of a context in :func:`outside_in_order`."""
        return self._every(n, (self.mask.sum(1) / n).ceil().clamp_min(1).long())

    def _every(self, n: int, stride: Tensor) -> Self:
        """At most `n` points, counted in steps of `stride` ``(batch,)`` from the last one backwards."""
        steps = torch.arange(min(n, self.mask.shape[1]), device=self.mask.device)
        index = self.mask.shape[1] - 1 - steps * stride[:, None]
        return self.at(index.clamp_min(0), index >= 0)

    def at(self, index: Tensor, mask: Tensor) -> Self:
        """The points `index` ``(batch, m)``, masked where `mask` is False."""
        local, x, y = (t.gather(1, index[..., None].expand(-1, -1, t.shape[-1])) for t in (self.local, self.x, self.y))
        trusted, error = (None if t is None else t.gather(1, index) for t in (self.trusted_mask, self.error_variance))
        mask = self.mask.gather(1, index) & mask
        return replace(self, local=local, x=x, y=y, mask=mask, trusted_mask=trusted, error_variance=error)


def outside_in_order(x: Tensor, mask: Tensor) -> Tensor:
    """Indices that sort points ``(batch, n, d_x)`` from the farthest to the nearest to their centroid, masked first.

    The reverse of the middle-out order of Guinness (2018). On a lattice many distances are equal; the axes are weighted
    slightly differently, so that rounding does not decide the order.
    """
    x = torch.where(mask[..., None], x, 0.0).double()
    x = x - masked_mean(x, mask)[:, None]
    axis = torch.arange(1, x.shape[-1] + 1, device=x.device) * math.sqrt(2)
    distance = (x.square() * (1 + 1e-4 * axis) + x * (1e-4 * axis.square())).sum(-1)
    return torch.where(mask, distance, torch.inf).argsort(dim=1, descending=True, stable=True)
