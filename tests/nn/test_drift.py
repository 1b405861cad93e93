"""Covariates and known errors in the kriging head: equations restated in float64, and what must not matter."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from geonp.nn.drift import LOG_VARIANCE, N_CURVES, Columns, Covariates, Variances, standardise_covariates
from geonp.nn.drift_head import Prepared
from geonp.nn.drift_process import DriftModel, DriftObservations
from geonp.nn.te_tnp import TEPTTNP
from geonp.nn.tnp_kr import TNPKR

N = 12
MASK = torch.tensor([[True] * N, [False] * 3 + [True] * (N - 3)])
MODEL = DriftModel(2, (1.0, 4.0))
SMALL = {
    "dim": 16,
    "heads": 2,
    "blocks": 1,
    "qk_dim": 16,
    "v_dim": 16,
    "v_hidden": 0,
    "ff_dim": 16,
    "embed_x": False,
    "kernels": "dictionary",
    "scales": (1.0, 4.0, 16.0),
    "directional_scales": (4.0,),
    "statistics": True,
    "n_refine": 16,
    "whole_steps": 1,
    "scoring_steps": 2,
}

EFFECT = torch.tensor([[0.7, 0.2], [0.1, 0.4]]).double()
"""Variances of the effects of two covariates in two tasks."""

UNIT = torch.tensor([[1.7], [0.6]]).double()
"""Variances that they are relative to."""


def sample() -> tuple[DriftObservations, Tensor, Tensor]:
    """Two tasks with two covariates, of which the second is unknown at two points; raw parameters."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 4, (2, N, 2), generator=generator).float()
    local, y = 0.5 * torch.randn(2, N, 2, generator=generator), torch.randn(2, N, 2, generator=generator)
    values = torch.randn(2, N, 2, generator=generator)
    values[:, 4:6, 1] = torch.nan
    errors = 0.3 * torch.rand(2, N, 2, generator=generator)
    columns, _, _ = standardise_covariates(Covariates(values, values[:, :1], errors, errors[:, :1]), MASK)
    known = 0.2 * torch.rand(2, N, generator=generator).double()
    raw = torch.randn(2, MODEL.n_raw, generator=generator).double()
    return (
        DriftObservations(local, x, y, MASK, columns, error_variance=known),
        raw,
        torch.randn(2, 2, 3, generator=generator).double(),
    )


def noisy(points: DriftObservations, raw: Tensor, raw_drift: Tensor, task: int) -> Tensor:
    """Covariance of the noisy values of what is not masked in one task."""
    kept = points.mask[task]
    columns = replace(points.columns, **{k: v[task : task + 1, kept] for k, v in vars(points.columns).items()})
    local, x = points.local[task : task + 1, kept], points.x[task : task + 1, kept]
    pair = (
        raw[None],
        Variances.of(raw_drift[None], EFFECT[task : task + 1], UNIT[task : task + 1]),
        (local, local),
        (x, x),
        (columns, columns),
    )
    kernel, variance, noise = MODEL.drift_covariance(*pair)
    torch.testing.assert_close(kernel.diagonal(dim1=1, dim2=2), variance, rtol=1e-5, atol=1e-5)
    return (kernel + torch.diag_embed(noise + points.error_variance[task : task + 1, kept]))[0]


def test_the_covariance_is_that_of_the_model() -> None:
    """Entry by entry, from the definition of the field."""
    points, raw, raw_drift = sample()
    columns, variances = points.columns, Variances.of(raw_drift, EFFECT, UNIT)
    plain, _, _ = MODEL.covariance(raw, points.local, points.local, points.x, points.x)
    flat = torch.zeros_like(points.local)
    constant = torch.nn.functional.softplus(raw[:, -2])
    correlation = MODEL.covariance(raw, flat, flat, points.x, points.x)[0] - constant[:, None, None]
    pairs = (points.local, points.local), (points.x, points.x), (columns, columns)
    kernel, _, _ = MODEL.drift_covariance(raw, variances, *pairs)
    for i, k in ((0, 1), (3, 4), (4, 5), (5, 5)):
        expected = plain[0, i, k].clone()
        for j in range(2):
            ci, ck = columns.value[0, i, j], columns.value[0, k, j]
            ei, ek = columns.error[0, i, j], columns.error[0, k, j]
            b, g, h = (v[0, j] for v in (variances.slope, variances.curve, variances.varying))
            expected += b * ci * ck + g * (columns.curves[0, i, j] @ columns.curves[0, k, j])
            expected += correlation[0, i, k] * (h * ci * ck + EFFECT[0, j] / UNIT[0, 0] * ei * ek)
        torch.testing.assert_close(kernel[0, i, k], expected)


def test_a_process_has_the_same_parts_where_batches_have_more_covariates() -> None:
    """Samples of a part are seeded by its number, so further covariates of other tiles must come after it."""
    points, raw, raw_drift = sample()
    first = replace(points.columns, **{name: values[:, :, :1] for name, values in vars(points.columns).items()})
    few, many = (
        MODEL.drift_process(
            raw, Variances.of(raw_drift[:, :p], EFFECT[:, :p], UNIT), points.local, columns, points.error_variance
        )
        for p, columns in ((1, first), (2, points.columns))
    )
    assert few.amplitudes.shape[-1] == 3 < many.amplitudes.shape[-1] == 5
    torch.testing.assert_close(many.amplitudes[..., :3], few.amplitudes)
    torch.testing.assert_close(many.trends[..., : few.trends.shape[-1]], few.trends)


def test_slope_is_the_gradient_of_the_likelihood() -> None:
    points, raw, raw_drift = sample()
    likelihood, gradient, by_drift, _ = MODEL.drift_score(MODEL.linearise(raw), raw_drift, (EFFECT, UNIT), points)
    for i, kept in enumerate(MASK):
        start, start_drift = raw[i].clone().requires_grad_(), raw_drift[i].clone().requires_grad_()
        covariance = noisy(points, start, start_drift, i)
        density = torch.distributions.MultivariateNormal(torch.zeros(int(kept.sum())).double(), covariance)
        expected = density.log_prob(points.y[i, kept].double().mT).mean() / kept.sum()
        half_log = 0.5 * np.log(2 * np.pi)
        torch.testing.assert_close(likelihood[i], (expected + half_log).detach().float())
        found = torch.autograd.grad(expected, (start, start_drift))
        torch.testing.assert_close(gradient[i], found[0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(by_drift[i], found[1], rtol=1e-6, atol=1e-9)


def test_information_is_that_of_its_definition() -> None:
    points, raw, raw_drift = sample()
    found = MODEL.drift_information(MODEL.linearise(raw), raw_drift, (EFFECT, UNIT), points)
    n = raw.shape[1]
    for i, kept in enumerate(MASK):
        every = torch.cat([raw[i], raw_drift[i].flatten()])
        derivative = torch.autograd.functional.jacobian(
            lambda r, task=i: noisy(points, r[:n], r[n:].view(2, 3), task), every
        )
        inverse = torch.linalg.inv(noisy(points, raw[i], raw_drift[i], i))
        expected = torch.einsum("ab,bci,cd,daj->ij", inverse, derivative, inverse, derivative) / (2 * kept.sum())
        torch.testing.assert_close(found[i], expected, rtol=1e-5, atol=1e-8)


def test_curves_span_smooth_functions_of_a_covariate() -> None:
    """Their products sum to the Gaussian kernel of length one, where the covariate mostly is."""
    c = torch.randn(1, 400, 1, generator=torch.Generator().manual_seed(0))
    columns, _, _ = standardise_covariates(Covariates(c, c), torch.ones(1, 400, dtype=torch.bool))
    inside = columns.value[0, :, 0].abs() < 1.5
    c, curves = columns.value[0, inside, 0], columns.curves[0, inside, 0]
    assert curves.shape[-1] == N_CURVES
    expected = torch.exp(-0.5 * (c[:, None] - c).square())
    assert float((curves @ curves.T - expected).abs().max()) < 0.01


def test_variances_stay_in_their_range() -> None:
    middle, half = LOG_VARIANCE
    raw = torch.tensor([[[-1e3, middle, 1e3]]]).double()
    variances = Variances.of(raw, EFFECT[:1, :1], torch.ones(1, 1))
    for found, expected in zip((variances.slope, variances.curve, variances.varying), (-half, 0, half), strict=True):
        torch.testing.assert_close(found.log(), torch.full((1, 1), middle + expected).double())
    start = torch.randn(1, 2, 3).double().requires_grad_()
    found = Variances.of(start, EFFECT[:1], UNIT[:1])
    total = (found.slope + found.curve + found.varying).sum()
    torch.testing.assert_close(Variances.change(start.detach(), UNIT[:1]), torch.autograd.grad(total, start)[0])


def task(seed: int = 0, n_c: int = 60, n_t: int = 9, p: int = 3) -> tuple[Tensor, Tensor, Tensor, Covariates]:
    """Locations, values of a field that follows the first of some covariates, locations of targets, covariates."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.permutation(np.indices((16, 16)).reshape(2, -1).T)[: n_c + n_t].astype(np.float32))
    c = torch.from_numpy(rng.standard_normal((n_c + n_t, p)).astype(np.float32))
    y = (
        3 * c[:, 0]
        + torch.sin(x[:, 0] / 4)
        + 0.05 * torch.from_numpy(rng.standard_normal(n_c + n_t).astype(np.float32))
    )
    return x[None, :n_c], y[None, :n_c, None], x[None, n_c:], Covariates(c[None, :n_c], c[None, n_c:])


@pytest.fixture(scope="module")
def network() -> TNPKR:
    """A model whose new layers are not at their start."""
    torch.manual_seed(0)
    made = TNPKR(**SMALL, head="drift").eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if name.startswith(("head.rough_prior", "head.drift_priors", "head.covariate_embedding")):
                weights.add_(0.1 * torch.randn_like(weights))
    return made.requires_grad_(False)


def both(predicted: torch.distributions.Distribution) -> Tensor:
    """Mean and standard deviation."""
    return torch.stack([predicted.mean, predicted.stddev])


def test_without_covariates_it_is_the_kriging_head(network: TNPKR) -> None:
    plain = TNPKR(**SMALL, head="kriging").eval().requires_grad_(False)  # type: ignore[arg-type]
    plain.load_state_dict({k: v for k, v in network.state_dict().items() if k in plain.state_dict()})
    xc, yc, xt, _ = task()
    assert torch.equal(both(plain(xc, yc, xt)), both(network(xc, yc, xt)))


@pytest.mark.parametrize("value", [0.0, 7.0, float("nan")])
def test_a_covariate_without_information_changes_nothing(network: TNPKR, value: float) -> None:
    """One that is constant in the context or unknown there, whatever it is at the targets."""
    xc, yc, xt, _ = task()
    covariates = Covariates(torch.full((1, 60, 1), value), torch.randn(1, 9, 1))
    torch.testing.assert_close(
        both(network(xc, yc, xt, None, covariates)), both(network(xc, yc, xt)), rtol=1e-4, atol=1e-5
    )


def test_order_signs_units_and_offsets_do_not_matter(network: TNPKR) -> None:
    xc, yc, xt, covariates = task()
    expected = both(network(xc, yc, xt, None, covariates))
    for order in list(permutations(range(3)))[1:]:
        factor, offset = torch.tensor([-2.0, 1e3, -1e-3]), torch.tensor([5.0, -300.0, 1e-3])
        moved = [(t.double() * factor + offset)[..., list(order)] for t in (covariates.context, covariates.targets)]
        found = both(network(xc, yc, xt, None, Covariates(*moved)))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_covariate_that_explains_the_field_is_used(network: TNPKR) -> None:
    xc, yc, xt, covariates = task()
    truth = 3 * covariates.targets[0, :, 0] + torch.sin(xt[0, :, 0] / 4)
    with_it, without = network(xc, yc, xt, None, covariates), network(xc, yc, xt)
    off, off_without = ((p.mean[0, :, 0] - truth).square().mean().sqrt() for p in (with_it, without))
    assert float(off) < 0.15 < 1.5 < float(off_without)


def test_what_masked_points_hold_has_no_effect(network: TNPKR) -> None:
    xc, yc, xt, covariates = task()
    mask, errors = torch.arange(60)[None] < 50, 0.1 * torch.ones(1, 60)
    shown = Covariates(covariates.context[:, :50], covariates.targets)
    expected = both(network(xc[:, :50], yc[:, :50], xt, None, shown, errors[:, :50]))
    hole = Covariates(torch.where(mask[..., None], covariates.context, torch.nan), covariates.targets)
    dirty = torch.where(mask[..., None], yc, torch.nan), torch.where(mask, errors, torch.nan)
    found = both(network(xc, dirty[0], xt, mask, hole, dirty[1]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_errors_of_zero_are_none(network: TNPKR) -> None:
    xc, yc, xt, covariates = task()
    one, other = (both(network(xc, yc, xt, None, covariates, e)) for e in (None, torch.zeros(1, 60)))
    assert torch.equal(one, other)


def test_a_doubtful_observation_counts_less(network: TNPKR) -> None:
    """Its residual has less weight in the process: the mean moves less when the value does."""
    xc, yc, xt, covariates = task()
    changed = yc.clone()
    changed[0, 0] += 1.0
    moves = []
    for error in (0.0, 3.0):
        errors = torch.zeros(1, 60)
        errors[0, 0] = error
        one, other = (network(xc, y, xt, None, covariates, errors).mean for y in (yc, changed))
        moves.append(float((one - other).abs().max()))
    assert moves[1] < 0.5 * moves[0]


@pytest.mark.parametrize("errors", [None, 1.0])
def test_gradients_reach_all_that_is_learned(errors: float | None) -> None:
    torch.manual_seed(1)
    made = TNPKR(**SMALL, head="drift")  # type: ignore[arg-type]
    with torch.no_grad():
        for weights in made.head.parameters():
            weights.add_(0.02 * torch.randn_like(weights))
    xc, yc, xt, covariates = task()
    known = None if errors is None else torch.full((1, 60), errors)
    (-made(xc, yc, xt, None, covariates, known).log_prob(torch.zeros(1, 9, 1))).mean().backward()
    without = [name for name, weights in made.named_parameters() if weights.grad is None or not weights.grad.any()]
    assert not without


def test_covariates_need_their_head() -> None:
    xc, yc, xt, covariates = task()
    with pytest.raises(ValueError, match='need head="drift", but this model has a KrigingHead; leave them out'):
        TNPKR(**SMALL, head="kriging")(xc, yc, xt, None, covariates)  # type: ignore[arg-type]


def test_te_pt_tnp_reads_covariates_too() -> None:
    """The rough drift and the head are the same; what the trunk adds is another's."""
    torch.manual_seed(0)
    options = {"dim": 16, "heads": 2, "blocks": 1, "n_pseudo": 4, "scales": (1.0, 4.0), "scoring_steps": 2}
    made = TEPTTNP(**options, head="drift").eval().requires_grad_(False)  # type: ignore[arg-type]
    xc, yc, xt, covariates = task()
    truth = 3 * covariates.targets[0, :, 0] + torch.sin(xt[0, :, 0] / 4)
    off = (made(xc, yc, xt, None, covariates).mean[0, :, 0] - truth).square().mean().sqrt()
    assert float(off) < 0.15
    with pytest.raises(ValueError, match='need head="drift", but this model has a VarianceHead'):
        TEPTTNP(dim=16, heads=2, blocks=1, n_pseudo=4)(xc, yc, xt, None, covariates)


def test_the_network_sees_no_observations_with_much_larger_errors_than_others() -> None:
    """Padding does not count, and all are seen where errors are alike or small, or where few would be left."""
    errors = torch.ones(5, 80).double()
    errors[0, :40], errors[1, :40], errors[2, :40], errors[3, :40] = 0.05, 0.5, 0.0, 0.0
    errors[3, 40:] = 0.25
    errors[4, :20] = 0.05
    mask = torch.arange(80) < torch.tensor([80, 80, 70, 80, 80])[:, None]
    nothing = torch.zeros(0)
    columns = Columns(nothing, nothing, nothing)
    prepared = Prepared(*[nothing] * 5, columns, columns, *[nothing] * 3, errors.square(), nothing)
    seen = prepared.seen_mask(mask, estimated=False)
    assert seen.sum(1).tolist() == [40, 80, 40, 80, 80]
    assert not (seen & ~mask).any()
    assert seen[[0, 2], :40].all()
    assert prepared.seen_mask(mask, estimated=True) is mask
