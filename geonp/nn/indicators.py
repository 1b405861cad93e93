"""Probabilities of classes without a model of classes: indicator kriging with the covariance of a model of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from geonp.nn.heads import KrigingHead
from geonp.nn.layers import drop_masked, masked_mean, origin
from geonp.nn.likelihood import condition
from geonp.nn.observations import Observations, outside_in_order
from geonp.nn.process import CovarianceModel
from geonp.nn.scoring import SCORING, scoring_step


@dataclass(frozen=True)
class IndicatorSettings:
    """Settings of the probabilities of classes, chosen on class maps that no benchmark reports."""

    scoring_steps: int = 8
    """Steps of Fisher scoring of the likelihood of all indicators."""


INDICATORS = IndicatorSettings()


def predicts_classes(network: nn.Module) -> bool:
    """Whether a model of numbers can predict classes: its head must condition a Gaussian process."""
    return isinstance(getattr(network, "head", None), KrigingHead)


@torch.no_grad()
def class_probabilities(network: nn.Module, xc: Tensor, indicators: Tensor, xt: Tensor, mask: Tensor) -> Tensor:
    """Probability of each class at the targets, ``(batch, n_t, classes)``, by ordinary kriging of the indicators.

    All indicators have one covariance, as in median indicator kriging (Journel, Mathematical Geology 15, 1983), so one
    solve serves all classes and their predictions sum to one. It is of the family of the model's head, stationary, and
    maximises the likelihood of all indicators from the same start everywhere: the network has learned to read fields
    of numbers, and of indicators it reads a covariance that fits less well.

    A prediction m with standard error s gives two estimates of the probability: m itself, at least zero, and that the
    new indicator is above one half, ``Phi((m - 1/2) / s)``. The first is underconfident beside smooth borders, the
    second overconfident far from data, so their sum counts, divided by that of all classes. The probability that a
    target has none of the classes of its context of n points is ``1 / (n + 2)`` (Laplace's rule of succession), so
    the probabilities sum to ``(n + 1) / (n + 2)``.

    Parameters
    ----------
    network : nn.Module
        A model that :func:`predicts_classes`.
    xc, xt : Tensor
        Locations of context and targets, ``(batch, n, d_x)``.
    indicators : Tensor
        ``(batch, n_c, classes)``: 1 where the class is observed, 0 elsewhere.
    mask : Tensor
        ``(batch, n_c)``, True where observed.
    """
    head, n_t = network.head, xt.shape[1]
    assert isinstance(head, KrigingHead)
    start = origin(xc, xt)
    xc, indicators, mask = drop_masked(xc - start, indicators, mask)
    with torch.autocast(xc.device.type, enabled=False):
        order = outside_in_order(xc, mask)
        xc, indicators = (t.gather(1, order[..., None].expand(-1, -1, t.shape[-1])) for t in (xc, indicators))
        mask = mask.gather(1, order)
        shares = masked_mean(indicators.double(), mask)[:, None]
        values = torch.where(mask[..., None], indicators - shares, 0.0)
        scale = masked_mean(values.square(), mask).mean(-1)[:, None, None].sqrt().clamp_min(1e-6)
        local = xc.new_zeros(len(xc), n_t + xc.shape[1], 2)
        context = Observations(local[:, n_t:], xc, values / scale, mask)
        raw = _most_likely(head.model, context)
        kernel, prior, noise = head.model.covariance(raw, local, context.local, torch.cat([xt - start, xc], 1), xc)
        given = condition(kernel, prior[:, :n_t], noise[:, n_t:], context.y, mask)
        mean = shares + scale * given.mean
        # the sill of an indicator is its variance in the context
        sill = shares * (1 - shares) * (given.variance + noise[:, :n_t])[..., None]
        probability = mean.clamp_min(0.0) + torch.special.ndtr((mean - 0.5) / sill.sqrt().clamp_min(1e-9))
        n = mask.sum(1)[:, None, None]
        found: Tensor = probability / probability.sum(-1, keepdim=True) * ((n + 1) / (n + 2))
        return found


def _most_likely(model: CovarianceModel, context: Observations) -> Tensor:
    """Raw parameters of the stationary covariance after some steps towards the largest likelihood."""
    raw = context.y.new_zeros(len(context.y), model.n_raw)
    thinned, precision = context.thinned(SCORING.n_information), torch.full_like(raw, SCORING.prior_precision)
    for _ in range(INDICATORS.scoring_steps):
        at = model.linearise(raw)
        _, score, _ = model.score(at, context)
        raw = raw + scoring_step(model.fisher_information(at, thinned), score, -precision * raw, precision)
    return raw
