"""The kriging head: every weight is trained, and Fisher scoring raises the likelihood."""

from __future__ import annotations

import pytest
import torch

from geonp.inference import checkpoint
from geonp.nn.heads import KrigingHead
from geonp.nn.observations import Observations


def head(scoring_steps: int) -> KrigingHead:
    torch.manual_seed(0)
    network = KrigingHead(8, 2, 1, 32, n_summary=3, n_refine=8, whole_steps=1, scoring_steps=scoring_steps)
    for p in network.parameters():
        p.data += 0.05 * torch.randn_like(p)
    return network


@pytest.mark.parametrize(("scoring_steps", "scattered"), [(0, False), (2, False), (2, True)])
def test_every_weight_is_trained(scoring_steps: int, scattered: bool) -> None:
    """Also where a search replaces the parameters that the network predicts."""
    network = head(scoring_steps)
    targets, context, summary = torch.randn(2, 9, 8), torch.randn(2, 20, 8), torch.randn(2, 3)
    xt, xc, yc = 16 * torch.rand(2, 9, 2), 16 * torch.rand(2, 20, 2), torch.randn(2, 20, 1)
    predicted = network(targets, context, xt, xc, yc, torch.ones(2, 20, dtype=torch.bool), summary, scattered)
    predicted.log_prob(torch.ones(2, 9, 1)).mean().backward()
    for name, p in network.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name
        assert (p.grad != 0).any(), name


def test_fisher_scoring_raises_the_likelihood() -> None:
    """For a context unlike the head's first guess; the third step does not lose what the first one gained."""
    network = head(scoring_steps=3)
    x = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)).expand(2, -1, -1)
    covariance = torch.exp(-((torch.cdist(x, x) / 9) ** 2)).double() + 1e-4 * torch.eye(36)
    y = (torch.linalg.cholesky(covariance) @ torch.randn(2, 36, 1).double()).float()
    context = Observations(torch.zeros(2, 36, 2), x, y, torch.ones(2, 36, dtype=torch.bool))
    raw, pooled, model = torch.zeros(2, network.model.n_raw), torch.zeros(2, 8 + 3), network.model
    priors, likelihoods = list(network.priors), []
    for n in (0, 1, 3):
        network.priors = torch.nn.ModuleList(priors[:n])
        sharpened, _ = network.fisher_scoring(raw, pooled, context)
        likelihoods.append(model.score(model.linearise(sharpened), context)[0])
    assert (likelihoods[1] > likelihoods[0] + 0.1).all()
    assert (likelihoods[2] > likelihoods[1] - 0.01).all()
    assert torch.equal(raw, torch.zeros_like(raw))


def test_only_contradicted_observations_are_noisier_than_the_process() -> None:
    """The network takes all points for noisy; one of them is wrong."""
    network = head(scoring_steps=2)
    network.local = torch.nn.Linear(8, 2)
    with torch.no_grad():
        network.local.weight.zero_()
        network.local.bias.copy_(torch.tensor([0.0, 3.0]))
    x = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))[None]
    y = torch.sin(x[..., :1] / 4) * torch.cos(x[..., 1:] / 5)
    y[0, 27] += 3
    features = torch.zeros(1, 65, 8)
    arguments = features[:, :1], features[:, 1:], x[:, :1] + 0.5, x, y, torch.ones(1, 64, dtype=torch.bool)
    noise = []
    for network.outliers in (False, True):
        noise.append(network(*arguments, torch.zeros(1, 3)).process().noise[0])
    assert (noise[0] == noise[0][0]).all()
    others = torch.arange(65) != 28
    assert (noise[1][others] == noise[1][0]).all()
    assert noise[1][28] > 10 * noise[1][0]


def test_thinned_steps_raise_the_likelihood_of_all_points() -> None:
    """From the same start, two further steps on a part of the context lead closer to the maximum for all of it."""
    network = head(scoring_steps=2)
    network.n_refine = 72
    x = torch.cartesian_prod(torch.arange(12.0), torch.arange(12.0))[None]
    y = torch.sin(x[..., :1] / 4) * torch.cos(x[..., 1:] / 5)
    context = Observations(torch.zeros(1, 144, 2), x, y, torch.ones(1, 144, dtype=torch.bool))
    likelihoods = []
    for network.thinned_steps in (0, 2):
        raw, _ = network.fisher_scoring(torch.zeros(1, network.model.n_raw), torch.zeros(1, 11), context)
        likelihoods.append(network.model.score(network.model.linearise(raw), context)[0])
    assert network.scoring == [(0, True), (0, True), (0, False), (1, False)]
    assert likelihoods[1] > likelihoods[0] + 0.1


@pytest.mark.parametrize(("n", "least"), [(5, 0.89), (8, 0.88), (64, 0.92)])
def test_intervals_of_few_points_hold(n: int, least: float) -> None:
    """Few values say little about the variance of the exponential process that they are from: 60 draws."""
    network, _ = checkpoint.load_model("tnpkr-sa")
    generator = torch.Generator().manual_seed(0)
    x = 60 * torch.rand(60, n + 30, 2, generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.exp(-torch.cdist(x, x) / 30) + 1e-6 * torch.eye(n + 30))
    y = factor @ torch.randn(60, n + 30, 1, generator=generator, dtype=torch.float64)
    y = (y - y[:, :n].mean(1, keepdim=True)) / y[:, :n].std(1, keepdim=True)
    with torch.no_grad():
        out = network(x[:, :n].float(), y[:, :n].float(), x[:, n:].float())
    inside = ((y[:, n:] - out.mean).abs() < 1.96 * out.stddev).double().mean()
    assert least < inside < 0.98
