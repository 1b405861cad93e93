"""Local Gaussian processes with a drift of covariates and with known errors of the observations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from geonp.nn.drift import Columns, Variances
from geonp.nn.layers import masked_mean
from geonp.nn.likelihood import condition, fisher_information, log_likelihood
from geonp.nn.observations import Observations
from geonp.nn.process import CovarianceModel, Linearisation, LocalProcess

Scale = tuple[Tensor, Tensor]
"""Variances of the effects of covariates, and of the stationary part of a field."""


@dataclass(frozen=True)
class DriftObservations(Observations):
    """Context points with covariates."""

    columns: Columns

    def at(self, index: Tensor, mask: Tensor) -> Self:
        """The points `index` ``(batch, m)``, masked where `mask` is False."""
        return replace(super().at(index, mask), columns=self.columns.at(index))


@dataclass(frozen=True)
class DriftModel(CovarianceModel):
    """A :class:`~geonp.nn.process.CovarianceModel` with the drift of :class:`~geonp.nn.drift.Variances`.

    The parameters of the drift are the logarithms of these variances, `raw_drift` ``(batch, p, 3)``.
    """

    def drift_covariance(
        self,
        raw: Tensor,
        variances: Variances,
        local: tuple[Tensor, Tensor],
        x: tuple[Tensor, Tensor],
        columns: tuple[Columns, Columns],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Same as :meth:`covariance` with a drift, of pairs of queries and keys; also differentiable by `variances`."""
        raw, local_q, local_k, xq, xk = (t.double() for t in (raw, *local, *x))
        amplitude_q, amplitude_k = self._amplitude(local_q), self._amplitude(local_k)
        whitening, weights, constant = self._split(raw)
        factor = amplitude_q[:, :, None] * amplitude_k[:, None] + variances.spatial(*columns)
        kernel = (
            self._stationary(xq, xk, whitening, weights) * factor + variances.drift(*columns) + constant[:, :, None]
        )
        spatial, drift = variances.at(columns[0])
        variance = (amplitude_q.square() + spatial) * weights.sum((1, 2))[:, None] + drift + constant
        return kernel, variance, self._noise(raw[:, -1:], local_q)

    @torch.no_grad()
    def drift_process(
        self, raw: Tensor, variances: Variances, local: Tensor, columns: Columns, error_variance: Tensor
    ) -> LocalProcess:
        """The process of :meth:`drift_covariance` at some points, with known error variances ``(batch, n)``."""
        plain = self.process(raw, local)
        slope, curve, varying, effect = (
            v.sqrt()[:, None] for v in (variances.slope, variances.curve, variances.varying, variances.effect)
        )
        # covariate by covariate, so that further ones, with which batches are padded, do not change the order
        drift = torch.cat([(columns.value * slope)[..., None], columns.curves * curve[..., None]], -1).flatten(2)
        spatial = torch.stack([columns.value * varying, columns.error * effect], -1).flatten(2)
        return replace(
            plain,
            amplitudes=torch.cat([plain.amplitudes, spatial], -1),
            trends=torch.cat([plain.trends, drift], -1),
            noise=plain.noise + error_variance,
        )

    @torch.no_grad()
    def drift_fields(self, raw: Tensor, observations: DriftObservations, variances: Variances) -> tuple[Tensor, Tensor]:
        """Same as :meth:`fields` with a drift, whose covariance is added to that of the constant."""
        amplitude, columns = self._amplitude(observations.bounded_local), observations.columns
        _, _, constant = self._split(raw)
        factor = amplitude[:, :, None] * amplitude[:, None] + variances.spatial(columns, columns)
        rest = variances.drift(columns, columns) + constant[:, :, None]
        return self._correlations(raw, observations) * factor[:, None], rest

    @torch.no_grad()
    def drift_score(
        self, at: Linearisation, raw_drift: Tensor, scale: Scale, observations: DriftObservations
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Log likelihood per point ``(batch,)``, and its gradients: of the raw parameters, and of `raw_drift`.

        The last is the mask of the points that are to be :meth:`trusted`. `scale` are the constants of
        :meth:`~geonp.nn.drift.Variances.of`.
        """
        variances, columns = Variances.of(raw_drift, *scale), observations.columns
        local, differences, natural = observations.bounded_local, observations.differences, at.natural
        amplitude, noise = self._amplitude(local), self._noise(natural[:, -1:], local)
        terms = self._terms(natural, differences.values)
        correlation = differences.to_pairs(terms.value)
        factor = amplitude[:, :, None] * amplitude[:, None] + variances.spatial(columns, columns)
        kernel = (correlation * factor).add_(variances.drift(columns, columns)).add_(natural[:, -2, None, None])
        likelihood = log_likelihood(kernel, observations.with_errors(noise), observations.y, observations.mask)
        by_kernel = likelihood.derivative
        by_noise = by_kernel.diagonal(dim1=1, dim2=2) * self._noise_slope(natural[:, -1:], local, noise)
        rest = torch.stack([by_kernel.sum((1, 2)), by_noise.sum(1)], 1)
        by_slope = _quadratic(by_kernel, columns.value)
        by_curve = _quadratic(by_kernel, columns.curves.flatten(2)).unflatten(1, columns.curves.shape[2:]).sum(-1)
        correlation.mul_(by_kernel)
        by_drift = torch.stack([by_slope, by_curve, _quadratic(correlation, columns.value)], -1)
        gradient = torch.cat([terms.gradient(differences.sum_pairs(by_kernel.mul_(factor))), rest], 1)
        by_drift *= Variances.change(raw_drift, scale[1])
        trusted_mask = self.trusted(natural[:, -1:], observations, likelihood)
        return likelihood.value, (gradient[:, None] @ at.jacobian)[:, 0], by_drift, trusted_mask

    @torch.no_grad()
    def drift_information(
        self, at: Linearisation, raw_drift: Tensor, scale: Scale, observations: DriftObservations
    ) -> Tensor:
        """Fisher information per point of the raw parameters, then of `raw_drift`, ``(batch, m, m)``."""
        variances, columns = Variances.of(raw_drift, *scale), observations.columns
        local, x, natural = observations.bounded_local, observations.x.double(), at.natural
        amplitude, noise = self._amplitude(local), self._noise(natural[:, -1:], local)
        apart = x[:, :, None] - x[:, None]
        terms = self._terms(natural, apart.flatten(1, 2))
        correlation = terms.value.view(apart.shape[:3])
        factor = amplitude[:, :, None] * amplitude[:, None] + variances.spatial(columns, columns)
        kernel = correlation * factor + variances.drift(columns, columns) + natural[:, -2, None, None]
        by_noise = torch.diag_embed(self._noise_slope(natural[:, -1:], local, noise))
        changes = terms.derivatives().mul_(factor.flatten(1)[:, None]).unflatten(2, apart.shape[1:3])
        changes = torch.cat([changes, torch.ones_like(kernel)[:, None], by_noise[:, None]], 1)
        values = _products(columns.value)
        curves = columns.curves.movedim(2, 1) @ columns.curves.permute(0, 2, 3, 1)
        by_drift = torch.stack([values, curves, correlation[:, None] * values], 2)
        by_drift = (by_drift * Variances.change(raw_drift, scale[1])[..., None, None]).flatten(1, 2)
        every = torch.cat([changes, by_drift], 1)
        found = fisher_information(kernel, observations.with_errors(noise), every, observations.mask)
        n_natural, n = at.jacobian.shape[1:]
        chain = found.new_zeros(len(found), found.shape[1], n + by_drift.shape[1])
        chain[:, :n_natural, :n] = at.jacobian
        chain[:, n_natural:, n:] = torch.eye(by_drift.shape[1]).to(found)
        return chain.mT @ found @ chain

    @torch.no_grad()
    def scale(self, effect: Tensor, raw: Tensor) -> Scale:
        """Variances of effects ``(batch, p)``, and that of the stationary part of the field, ``(batch, 1)``."""
        return effect.detach(), self._split(raw.double())[1].sum((1, 2))[:, None]

    @torch.no_grad()
    def effects(self, raw: Tensor, variances: Variances, observations: DriftObservations) -> Tensor:
        """Mean square of the effect of each covariate in the data, given the data, ``(batch, p)``."""
        x, local, columns, mask = observations.x, observations.bounded_local, observations.columns, observations.mask
        kernel, _, noise = self.drift_covariance(raw, variances, (local, local), (x, x), (columns, columns))
        whitening, weights, _ = self._split(raw.double())
        correlation = self._stationary(x.double(), x.double(), whitening, weights)[:, None]
        values, curves = _products(columns.value), columns.curves.movedim(2, 1)
        slope, curve, varying = (v[..., None, None] for v in (variances.slope, variances.curve, variances.varying))
        each = (slope + varying * correlation) * values + curve * (curves @ curves.mT)
        prior = each.diagonal(dim1=2, dim2=3).flatten(1)
        given = condition(
            torch.cat([each.flatten(1, 2), kernel], 1), prior, observations.with_errors(noise), observations.y, mask
        )
        squares = (given.mean.square().mean(-1) + given.variance).unflatten(1, each.shape[1:3])
        return masked_mean(squares.mT, mask).double()


def _quadratic(matrix: Tensor, columns: Tensor) -> Tensor:
    """``c' A c`` of each column, ``(batch, n, n)`` and ``(batch, n, m)`` to ``(batch, m)``."""
    return ((matrix @ columns) * columns).sum(1)


def _products(columns: Tensor) -> Tensor:
    """``c c'`` of each column, ``(batch, n, m)`` to ``(batch, m, n, n)``."""
    each = columns.mT
    return each[..., :, None] * each[..., None, :]
