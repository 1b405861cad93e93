"""Predictions of a kriging head, conditioned on measurements that the network does not read.

The network was trained on contexts whose values are nearly exact, and takes noisy ones for a rough field. So it reads
the other values only, and the process that it predicts from them is conditioned on the noisy ones afterwards.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import StudentT

from geonp.nn.heads import Kriged
from geonp.nn.likelihood import conditional_covariance


@torch.no_grad()
def updated(
    predicted: Kriged, xc: Tensor, xt: Tensor, mask: Tensor, values: Tensor, errors: Tensor, offset_error: Tensor
) -> StudentT:
    """Condition the predictions of a batch of tasks on measurements at their first targets.

    The errors of the predictions have the correlations of the process and the standard deviations of the predictions,
    which the head has corrected. A measurement differs from the process by the noise of a new measurement, by an error
    of its own, and by an offset that all of a task share, with mean zero. Degrees of freedom are kept.

    Parameters
    ----------
    predicted : Kriged
        Of the targets `xt` from the context `xc`, ``(batch, n_t, 1)``.
    xc, xt, mask : Tensor
        As of the model.
    values, errors : Tensor
        Measurements at the first `m` targets and their standard errors ``(batch, m)``, NaN for padding.
    offset_error : Tensor
        Standard deviation of the offset, ``(batch,)``.
    """
    process, n_t, m = predicted.process(), xt.shape[1], values.shape[1]
    points = torch.arange(n_t + xc.shape[1], device=xt.device)
    kernel = process.covariance(torch.cat([xt, xc], 1), points, torch.cat([points[:m], points[n_t:]]))
    prior, noise = process.variance[:, :n_t], process.noise
    covariance, variance = conditional_covariance(kernel, prior, noise[:, n_t:], mask)
    mean, total = (t[..., 0].double() for t in (predicted.mean, predicted.variance))
    ratio = (total / (variance + noise[:, :n_t])).sqrt()
    known_mask = values.isfinite() & errors.isfinite()
    covariance = torch.where(known_mask[:, None], covariance * ratio[..., None] * ratio[:, None, :m], 0.0)
    error = (ratio.square() * noise[:, :n_t])[:, :m] + errors.double().square()
    pair_mask = known_mask[..., None] & known_mask[:, None]
    between = torch.where(pair_mask, covariance[:, :m] + offset_error.double().square()[:, None, None], 0.0)
    factor = torch.linalg.cholesky(between + torch.diag_embed(torch.where(known_mask, error, 1.0)))
    innovation = torch.where(known_mask, values - mean[:, :m], 0.0)[..., None]
    gain, innovation = torch.linalg.solve_triangular(
        factor, torch.cat([covariance.mT, innovation], 2), upper=False
    ).split([n_t, 1], 2)
    mean = mean[..., None] + gain.mT @ innovation
    left = (1 - gain.square().sum(1) / total).clamp_min(0.0).sqrt()[..., None]
    return StudentT(predicted.df, mean.float(), predicted.scale * left.float(), validate_args=False)
