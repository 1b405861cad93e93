"""Epidemics follow their rules, and batches are the benchmark's."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from geonp.nn.models import build, loss
from geonp.training.data import epidemics
from geonp.training.data.epidemics import INFECTED, RECOVERED, SUSCEPTIBLE, Epidemic, _trajectory, simulate


def fixed(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def start(side: int, *cells: tuple[int, int]) -> torch.Tensor:
    first = torch.full((1, side, side), SUSCEPTIBLE)
    for row, col in cells:
        first[0, row, col] = INFECTED
    return first


def test_infection_falls_with_the_square_of_the_distance_and_does_not_wrap() -> None:
    n, rate = 4000, 0.3
    frames = simulate(start(11, (0, 5)).expand(n, -1, -1), torch.full((n,), rate), torch.zeros(n), 1, fixed())
    frequency = (frames[:, 1] == INFECTED).float().mean(0)
    rows, cols = torch.meshgrid(torch.arange(11), torch.arange(11) - 5, indexing="ij")
    squared = (rows**2 + cols**2).float()
    reached = (rows <= 4) & (cols.abs() <= 4)
    expected = torch.where(reached, rate / squared.clamp_min(1), 0.0)
    expected[0, 5] = 1.0
    assert torch.allclose(frequency, expected, atol=4 * (0.25 / n) ** 0.5)
    assert (frequency[5:] == 0).all()


def test_pressures_of_several_cells_add_up_to_certainty() -> None:
    around = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    frames = simulate(start(3, *around), torch.tensor([0.2]), torch.tensor([0.0]), 1, fixed())
    assert frames[0, 1, 1, 1] == INFECTED  # 0.2 (4 + 4 / 2) = 1.2


def test_wide_lattices_follow_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summed by Fourier transforms, an epidemic is the same but for single cells, and begins nowhere else."""
    first, rates = start(96, (40, 50), (90, 3)), (torch.tensor([0.1]), torch.tensor([0.1]))
    frames = simulate(first, *rates, 30, fixed())
    monkeypatch.setattr(epidemics, "WIDE", 0)
    found = simulate(first, *rates, 30, fixed())
    changed = (frames != found).float().mean()
    assert changed < 1e-3
    # at any rate, no infection is farther from all earlier ones than it reaches
    found = simulate(first, torch.tensor([1e6]), torch.tensor([0.5]), 3, fixed())
    near = torch.nn.functional.max_pool2d((found[:, :-1] == INFECTED).float(), 9, 1, 4) > 0
    new = (found[:, 1:] == INFECTED) & (found[:, :-1] == SUSCEPTIBLE)
    assert new.sum() > 100
    assert near[new].all()


def test_recovery_is_geometric_and_for_good() -> None:
    n = 3000
    frames = simulate(start(1, (0, 0)).expand(n, -1, -1), torch.ones(n), torch.full((n,), 0.25), 4, fixed())[..., 0, 0]
    ill = (frames == INFECTED).float().mean(0)
    assert ill.numpy() == pytest.approx(0.75 ** np.arange(5), abs=0.04)
    assert ((frames == INFECTED) | (frames == RECOVERED)).all()
    assert (frames.diff(dim=1).float() >= 0).all()


def test_thousands_of_steps_a_second() -> None:
    """Of a 64 x 64 lattice; a quarter of what was measured on a busy core."""
    first = start(64, (3, 4)).expand(64, -1, -1)
    began = time.process_time()
    simulate(first, torch.full((64,), 0.2), torch.full((64,), 0.1), 20, fixed())
    assert 64 * 20 / (time.process_time() - began) > 1000


def test_a_batch_is_the_benchmark_s() -> None:
    batch = Epidemic().batch(0, 4, 8)
    assert batch["xc"].shape == (8, 511, 2)
    assert batch["yc"].shape == (8, 511, 3)
    assert (batch["xt"].shape, batch["yt"].shape) == ((8, 1024, 2), (8, 1024))
    assert (batch["xt"] == batch["xt"][:1]).all()
    assert torch.equal(batch["yc"].argmax(-1), batch["yt"][:, :511])
    counts = batch["context_mask"].sum(1)
    assert counts.min() >= 128
    assert len(counts.unique()) > 1
    pitch = batch["xt"][0, :, 0].unique().diff()
    assert pitch.numpy() == pytest.approx(np.full(63, 4 / 63), rel=1e-4)


def test_batches_deal_the_frames_of_a_trajectory() -> None:
    """Three batches of eight of its 25 frames, none twice; the fourth is of another."""
    data = Epidemic(n_targets=0, n_context=(1, 1))
    frames = Counter(bytes(frame.flatten().numpy()) for frame in _trajectory(data, 0, 0))

    def dealt(index: int) -> list[bytes]:
        batch = data.batch(0, index, 8)
        cells = ((batch["xt"][0] + 2) * 63 / 4).round().long()
        out = torch.zeros(8, 64, 64, dtype=torch.uint8)
        out[:, cells[:, 0], cells[:, 1]] = batch["yt"].to(torch.uint8)
        return [bytes(frame.flatten().numpy()) for frame in out]

    first = [frame for index in range(3) for frame in dealt(index)]
    assert len(first) == 24
    assert Counter(first) <= frames
    assert not Counter(dealt(3)) <= frames


def test_rates_are_those_of_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    from geonp.training.data import epidemics

    seen: list[tuple[float, float, int]] = []

    def note(first: torch.Tensor, infection: torch.Tensor, recovery: torch.Tensor, *_: object) -> torch.Tensor:
        seen.append((float(infection), float(recovery), int((first == INFECTED).sum())))
        return first[:, None].expand(-1, 25, -1, -1)

    monkeypatch.setattr(epidemics, "simulate", note)
    for i in range(400):
        Epidemic(side=8, n_context=(1, 8)).batch(77, i, 25)
    infection, recovery, count = np.array(seen).T
    assert stats.kstest(infection, stats.beta(2, 8).cdf).pvalue > 0.01
    assert stats.kstest(recovery, stats.invgamma(5, scale=0.4).cdf).pvalue > 0.01
    assert sorted(set(count)) == [1, 2, 3, 4]


def test_a_classifier_is_trained_by_cross_entropy() -> None:
    batch = Epidemic(side=16, n_targets=60, n_context=(5, 20)).batch(0, 0, 2)
    torch.manual_seed(0)
    config = {"d_x": 2, "d_y": 3, "likelihood": "categorical"}
    for name in ("tnp-d", "cnp", "convcnp"):
        network = build(name, config)
        given = (batch["xc"], batch["yc"], batch["xt"])
        logits = network(*given, batch["context_mask"]).logits
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["yt"].flatten())
        assert torch.allclose(loss(network, *given, batch["yt"], batch["context_mask"]), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["np", "anp"])
def test_a_latent_classifier_averages_chances_and_is_trained_by_its_bound(name: str) -> None:
    batch = Epidemic(side=16, n_targets=60, n_context=(5, 20)).batch(0, 0, 2)
    torch.manual_seed(0)
    network = build(name, {"d_x": 2, "d_y": 3, "n_latents": 4, "likelihood": "categorical"})
    (xc, yc, xt, yt), mask = (batch[key] for key in ("xc", "yc", "xt", "yt")), batch["context_mask"]
    with torch.no_grad():
        network.network.to_z[-1].weight.mul_(30)  # latent variables that matter
        logits = network.network(xc, yc, xt, mask).component_distribution.loc
        chances = network(xc, yc, xt, mask).probs
        one_hot = torch.nn.functional.one_hot(yt, 3).float()
        torch.manual_seed(1)
        bound = loss(network, xc, yc, xt, yt, mask)
        r, prior = network.network.encoder(xc, yc, xt, mask), network.network.posterior(xc, yc, mask)
        every = torch.cat([mask, torch.ones_like(yt, dtype=torch.bool)], 1)
        posterior = network.network.posterior(torch.cat([xc, xt], 1), torch.cat([yc, one_hot], 1), every)
        torch.manual_seed(1)
        drawn = network.network.decode(r, posterior.rsample(), xt).loc
    assert float(logits.std(-1).mean()) > 1e-3
    torch.testing.assert_close(chances, logits.softmax(-2).mean(-1))
    error = torch.nn.functional.cross_entropy(drawn.flatten(0, 1), yt.flatten())
    divergence = torch.distributions.kl_divergence(posterior, prior).sum(-1).mean() / xt.shape[1]
    torch.testing.assert_close(bound, error + divergence)


@pytest.mark.parametrize("name", ["bnp", "banp", "tnp-a", "tnp-nd"])
def test_models_whose_loss_is_of_numbers_cannot_be_classifiers(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has its own loss, which needs numbers: likelihood must be gaussian"):
        build(name, {"d_y": 3, "likelihood": "categorical"})


def test_an_unknown_likelihood_is_named() -> None:
    with pytest.raises(ValueError, match="likelihood must be one of gaussian, categorical, got 'poisson'"):
        build("cnp", {"likelihood": "poisson"})
