"""Covariates as drift terms of a Gaussian process: their values at each point, and what they add to its covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from geonp.raster.tolerances import TOLERANCES

N_CURVES = 6
"""Hermite functions that span the nonlinear effects of a covariate: 99.9 % of the variance of their kernel."""

N_TERMS = 3
"""Terms of each covariate: a slope, a curve and a slope that varies in space."""

LEAST_KNOWN = 8
"""Context points that must know a covariate; it is ignored otherwise."""

LOG_VARIANCE = (-6.0, 13.0)
"""Middle and half the width of the range of the logarithm of a variance."""


@dataclass(frozen=True)
class Covariates:
    """Co-located fields at the points of a task: elevation, other bands, other dates.

    A field with gaps of its own is best filled beforehand and given with the standard errors of that fill: what is
    unknown is not estimated here.

    Attributes
    ----------
    context, targets : Tensor
        Values ``(batch, n_c, p)`` and ``(batch, n_t, p)``, NaN where unknown, in any units.
    context_error, target_error : Tensor, optional
        Standard errors of the values, in the same units; zero by default.
    """

    context: Tensor
    targets: Tensor
    context_error: Tensor | None = None
    target_error: Tensor | None = None


@dataclass(frozen=True)
class Columns:
    """Standardised covariates at some points.

    Attributes
    ----------
    value, error : Tensor
        Values and their standard errors ``(batch, n, p)``; an unknown value is 0 with an error of 1.
    curves : Tensor
        Hermite functions of the values, ``(batch, n, p, N_CURVES)``.
    """

    value: Tensor
    error: Tensor
    curves: Tensor

    def at(self, index: Tensor) -> Columns:
        """The columns at the points `index`, ``(batch, m)``."""
        place = index[..., None].expand(-1, -1, self.value.shape[-1])
        curves = self.curves.gather(1, place[..., None].expand(-1, -1, -1, N_CURVES))
        return Columns(self.value.gather(1, place), self.error.gather(1, place), curves)

    def joined(self, other: Columns) -> Columns:
        """These points, then those of `other`."""
        mine, others = (self.value, self.error, self.curves), (other.value, other.error, other.curves)
        return Columns(*(torch.cat(pair, 1) for pair in zip(mine, others, strict=True)))


@dataclass(frozen=True)
class Variances:
    """Prior variances of the terms of each covariate, ``(batch, p)`` each.

    The field is ``a f(x) + sum_j [b_j c_j + g_j(c_j) + h_j(x) c_j + s_j (c_j - E c_j)]``: a slope b, a Gaussian process
    g of the covariate, and a slope h(x) that varies in space with the correlation of f. The last term is for the error
    of the covariate, which has that correlation too: where a covariate is unknown over an area, the process there is
    about the one that it would be without the covariate. The variance of s is that of the effect in the data and not
    the prior one: the likelihood hardly distinguishes a prior variance that is much too large from one that fits.

    Attributes
    ----------
    slope, curve : Tensor
        Of b and g.
    varying, effect : Tensor
        Of h and s, relative to the variance of the stationary part of the field.
    """

    slope: Tensor
    curve: Tensor
    varying: Tensor
    effect: Tensor

    @classmethod
    def of(cls, raw: Tensor, effect: Tensor, unit: Tensor) -> Variances:
        """From the logarithms of the first three ``(batch, p, 3)``, kept within :data:`LOG_VARIANCE`, and the last.

        `unit` is the variance of the stationary part of the field, ``(batch, 1)``: `varying` and `effect` become
        relative to it.
        """
        middle, half = LOG_VARIANCE
        slope, curve, varying = torch.exp(middle + half * torch.tanh((raw - middle) / half)).unbind(-1)
        return cls(slope, curve, varying / unit, effect / unit)

    @staticmethod
    def change(raw: Tensor, unit: Tensor) -> Tensor:
        """Derivatives of the variances by the elements of `raw`, ``(batch, p, 3)``, for a constant `unit`."""
        middle, half = LOG_VARIANCE
        bent = torch.tanh((raw - middle) / half)
        ones = torch.ones_like(unit)
        return torch.exp(middle + half * bent) * (1 - bent.square()) / torch.stack([ones, ones, unit], -1)

    def spatial(self, q: Columns, k: Columns) -> Tensor:
        """Factor of the correlation of the field beside its variance, ``(batch, n_q, n_k)``."""
        errors = (q.error * self.effect[:, None]) @ k.error.mT
        return errors + (q.value * self.varying[:, None]) @ k.value.mT

    def drift(self, q: Columns, k: Columns) -> Tensor:
        """Covariance of slopes and curves, ``(batch, n_q, n_k)``."""
        curves = (q.curves * self.curve[:, None, :, None]).flatten(2) @ k.curves.flatten(2).mT
        return curves + (q.value * self.slope[:, None]) @ k.value.mT

    def at(self, q: Columns) -> tuple[Tensor, Tensor]:
        """The diagonals of :meth:`spatial` and :meth:`drift`, ``(batch, n_q)`` each."""
        spatial = q.error.square() * self.effect[:, None] + q.value.square() * self.varying[:, None]
        drift = q.value.square() * self.slope[:, None] + q.curves.square().sum(-1) * self.curve[:, None]
        return spatial.sum(-1), drift.sum(-1)


def standardise_covariates(covariates: Covariates, mask: Tensor) -> tuple[Columns, Columns, Tensor]:
    """Covariates of context and targets in units of the former: neither their units nor their offsets matter.

    A covariate that is constant, or known at fewer than :data:`LEAST_KNOWN` points of the context, is zero everywhere.

    Returns
    -------
    tuple
        Columns of the context and of the targets, and which covariates are used, ``(batch, p)``.
    """
    context = covariates.context.double()
    known_mask = mask[..., None] & context.isfinite()
    count = known_mask.sum(1, keepdim=True)
    shown = torch.where(known_mask, context, 0.0)
    mean = shown.sum(1, keepdim=True) / count.clamp_min(1)
    spread = (torch.where(known_mask, context - mean, 0.0).square().sum(1, keepdim=True) / count.clamp_min(1)).sqrt()
    used = (spread > TOLERANCES.constant * shown.abs().amax(1, keepdim=True)) & (count >= LEAST_KNOWN)
    scale = torch.where(used, spread, 1.0)

    def columns(values: Tensor, errors: Tensor | None) -> Columns:
        value = (values.double() - mean) / scale
        error = torch.zeros_like(value) if errors is None else errors.double() / scale
        known_mask = value.isfinite() & error.isfinite()
        value = torch.where(known_mask & used, value, 0.0)
        error = torch.where(known_mask, error.clamp_max(1.0), 1.0) * used
        return Columns(value, error, _curves(value, error) * used[..., None])

    found = columns(covariates.context, covariates.context_error), columns(covariates.targets, covariates.target_error)
    return *found, used[:, 0]


def _curves(value: Tensor, error: Tensor) -> Tensor:
    """Eigenfunctions of ``exp(-(c - c')^2 / 2)`` for a standard normal c, times the roots of their eigenvalues.

    Rasmussen & Williams (2006), equations 4.38 to 4.40. They vanish where the covariate is unknown, and far beyond the
    values of the context.
    """
    a, b = 0.25, 0.5
    c = math.sqrt(a * a + 2 * a * b)
    whole = a + b + c
    x = math.sqrt(2 * c) * value
    hermite = [torch.ones_like(x), 2 * x]
    for k in range(1, N_CURVES - 1):
        hermite.append(2 * x * hermite[k] - 2 * k * hermite[k - 1])
    variances = (
        math.sqrt(2 * a / whole) * (b / whole) ** k / (math.sqrt(a / c) * 2**k * math.factorial(k))
        for k in range(N_CURVES)
    )
    scaled = [math.sqrt(variance) * h for variance, h in zip(variances, hermite, strict=True)]
    decay = torch.exp(-(c - a) * value.square().clamp_max(200.0)) * (1 - error.square())
    return torch.stack(scaled, -1) * decay[..., None]
