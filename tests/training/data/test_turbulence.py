"""Kolmogorov flow: exact solutions, energy balance, conservation, and tasks that depend on seed and index alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from geonp.training.data.kolmogorov import KolmogorovFlow
from geonp.training.data.turbulence import (
    Turbulence,
    advance,
    random_flow,
    spectrum_of,
    trajectory,
    velocity,
    vorticity,
)

IDEAL = Turbulence(side=32, viscosity=0.0, forcing=0.0, damping=0.0, step=0.01)
"""Neither viscosity nor force."""


def points(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    axis = torch.arange(side, dtype=torch.float64) * (2 * math.pi / side)
    return axis[:, None], axis


def vortices(y: torch.Tensor, x: torch.Tensor, k: int = 2) -> torch.Tensor:
    """Velocities of the Taylor-Green vortices."""
    return torch.stack([torch.sin(k * x) * torch.cos(k * y), -torch.cos(k * x) * torch.sin(k * y)])


def test_taylor_green_vortices_drift_with_the_mean_flow_and_decay() -> None:
    flow = replace(IDEAL, viscosity=0.05)
    y, x = points(flow.side)
    mean = torch.tensor([0.7, -0.4], dtype=torch.float64)[:, None, None]
    got = velocity(advance(spectrum_of(vortices(y, x) + mean), flow, 100), flow.side)
    expected = vortices(y + 0.4, x - 0.7) * math.exp(-2 * 4 * 0.05) + mean
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-7)


def test_the_laminar_flow_is_approached_at_the_exact_rate() -> None:
    flow = Turbulence(side=32, viscosity=0.02, forcing=1.5, wavenumber=3, damping=0.1, step=0.02)
    y, _ = points(flow.side)
    got = velocity(advance(torch.zeros(2, 32, 17, dtype=torch.complex128), flow, 100), flow.side)
    rate = 0.02 * 9 + 0.1
    expected = 1.5 / rate * (1 - math.exp(-2 * rate)) * torch.sin(3 * y)
    torch.testing.assert_close(got[0], expected.expand(-1, 32), rtol=0, atol=1e-7)
    assert got[1].abs().max() < 1e-12


def test_ideal_flow_keeps_energy_and_enstrophy() -> None:
    spectrum = random_flow(IDEAL, 1, 0, fastest=2.0).to(torch.complex128)[0]
    after = advance(spectrum, IDEAL, 100)
    assert (velocity(after, 32) - velocity(spectrum, 32)).abs().max() > 0.3
    for quantity in (lambda s: velocity(s, 32).square().sum(), lambda s: vorticity(s).square().sum()):
        torch.testing.assert_close(quantity(after), quantity(spectrum), rtol=1e-4, atol=0)


def test_energy_changes_by_what_force_viscosity_and_damping_do() -> None:
    flow = Turbulence(side=32, viscosity=0.01, step=1e-3)
    spectrum = random_flow(flow, 1, 1).to(torch.complex128)[0]
    y, _ = points(32)

    def energy(spectrum: torch.Tensor) -> float:
        return float(velocity(spectrum, 32).square().sum(0).mean() / 2)

    middle = advance(spectrum, flow, 10)
    change = (energy(advance(middle, flow, 10)) - energy(spectrum)) / (20 * flow.step)
    u = velocity(middle, 32)
    work = float((u[0] * torch.sin(4 * y)).mean())
    lost = flow.viscosity * float(vorticity(middle).square().mean()) + 2 * flow.damping * energy(middle)
    assert abs(change) > 0.01
    assert change == pytest.approx(work - lost, rel=1e-3)


def test_a_finer_grid_interpolates_and_a_coarser_one_drops_waves() -> None:
    y, x = points(32)
    spectrum = spectrum_of(vortices(y, x))
    for side in (16, 64):
        torch.testing.assert_close(velocity(spectrum, side), vortices(*points(side)), rtol=0, atol=1e-12)
    fine = spectrum_of(vortices(y, x) + vortices(y, x, 10))
    torch.testing.assert_close(velocity(fine, 16), vortices(*points(16)), rtol=0, atol=1e-12)


def test_tasks_are_blocks_of_trajectories() -> None:
    data = KolmogorovFlow(
        n_trajectories=1, n_held_out=1, window=4, n_context=(5, 9), n_targets=0, flow=Turbulence(side=16, step=0.2)
    )
    batch = data.batch(0, 3, 2)
    again = data.batch(0, 3, 2)
    assert all(torch.equal(batch[key], again[key]) for key in batch)
    n_c = batch["xc"].shape[1]
    assert 5 <= n_c <= 9
    assert batch["xt"].shape == (2, 64 - n_c, 3)
    flow = trajectory(data.flow, 0)
    x = torch.cat([batch["xc"], batch["xt"]], 1)[0]
    cells = ((x + 3) / 6 * 63).round().long()
    assert torch.equal(flow[cells[:, 2], :, cells[:, 1], cells[:, 0]], torch.cat([batch["yc"], batch["yt"]], 1)[0])
    assert len(set(map(tuple, cells.tolist()))) == 64
    held_out = data.held_out().batch(0, 3, 2)
    assert torch.equal(held_out["xc"], batch["xc"])
    assert not torch.equal(held_out["yc"], batch["yc"])
