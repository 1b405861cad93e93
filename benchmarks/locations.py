"""Gain from the moving locations of TE-PT-TNP for bimodal inputs (TE-TNP, section F.5, table 7).

Run as ``python benchmarks/locations.py [--steps 2000]``. Two models that differ in ``move_locations`` and ``locate``
(both on, as in the paper, or both off) are trained on the same tasks of section F.1 for the same number of steps. They
are scored on the same test tasks, with inputs as in training, and from U(-4, -1) or U(1, 4) with equal probability
(equation 44). Deviations: smaller models and shorter training than in the paper (width 32, two layers, 16
pseudo-tokens, 64 targets a task).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from geonp.nn.models import build, loss

NOISE = 0.2
BATCH = 16
N_TARGETS = 64
CONFIG = {"d_x": 1, "dim": 32, "heads": 4, "blocks": 2, "n_pseudo": 16, "max_pairs": 2**18}
SWITCHES = {"on": {}, "off": {"move_locations": False, "locate": False}}

Inputs = Callable[[int, float], Tensor]
"""``(n, half width) -> (BATCH, n, 1)``."""


def uniform(n: int, half: float) -> Tensor:
    """Uniform inputs between -half and half."""
    return (torch.rand(BATCH, n, 1) * 2 - 1) * half


def bimodal(n: int, _: float) -> Tensor:
    """Inputs from 1 to 4 or from -4 to -1."""
    return (1 + 3 * torch.rand(BATCH, n, 1)) * (2 * torch.randint(2, (BATCH, n, 1)) - 1)


def kernel(kind: int, length: float, x: Tensor) -> Tensor:
    """Squared exponential, Matern 5/2, or periodic with `length` as its period: ``(batch, n, n)`` in float64."""
    x = x.double()
    d = (x - x.mT).abs()
    if kind == 0:
        return torch.exp(-0.5 * (d / length).square())
    if kind == 1:
        r = math.sqrt(5) * d / length
        return (1 + r + r.square() / 3) * torch.exp(-r)
    return torch.exp(-2 * torch.sin(math.pi * d / length).square() / 0.693**2)


def batch(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and values of context and targets, with one kernel, length and context size for the batch."""
    n_c = int(torch.randint(1, 65, ()))
    x = torch.cat([inputs(n_c, 2.0), inputs(N_TARGETS, 3.0)], 1)
    length = 10 ** float(torch.empty(()).uniform_(-0.602, 0.602))
    covariance = kernel(int(torch.randint(3, ())), length, x) + 1e-5 * torch.eye(x.shape[1]).double()
    f = torch.linalg.cholesky(covariance) @ torch.randn(BATCH, x.shape[1], 1).double()
    y = f.float() + NOISE * torch.randn(x.shape)
    return x[:, :n_c], y[:, :n_c], x[:, n_c:], y[:, n_c:]


def train(networks: dict[str, nn.Module], steps: int) -> None:
    """Train all networks on the same batches; print their losses every 100 steps."""
    optimisers = {name: torch.optim.AdamW(network.parameters(), 5e-4) for name, network in networks.items()}
    running = dict.fromkeys(networks, math.nan)
    for step in range(1, steps + 1):
        task = batch(uniform)
        for name, network in networks.items():
            value = loss(network, *task)
            optimisers[name].zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimisers[name].step()
            now = float(value.detach())
            running[name] = now if math.isnan(running[name]) else 0.99 * running[name] + 0.01 * now
        if step % 100 == 0:
            print(f"step {step}: " + ", ".join(f"{name} {value:.3f}" for name, value in running.items()), flush=True)


@torch.no_grad()
def score(networks: dict[str, nn.Module], inputs: Inputs, batches: int) -> dict[str, Tensor]:
    """Mean log density of each test task, ``(batches * BATCH,)``; the tasks are the same for all networks."""
    torch.manual_seed(10_000)
    densities: dict[str, list[Tensor]] = {name: [] for name in networks}
    for _ in range(batches):
        xc, yc, xt, yt = batch(inputs)
        for name, network in networks.items():
            densities[name].append(network(xc, yc, xt).log_prob(yt).mean((1, 2)))
    return {name: torch.cat(values) for name, values in densities.items()}


def main() -> None:
    """Train and print the table of section F.5."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--test", type=int, default=128, help=f"number of test batches of {BATCH} tasks")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    networks = {}
    for name, switches in SWITCHES.items():
        torch.manual_seed(arguments.seed)
        networks[name] = build("te-pt-tnp", {**CONFIG, **switches}).train()
    torch.manual_seed(arguments.seed)
    train(networks, arguments.steps)
    print("\n| log density a target | locations move | fixed | difference, paired |\n|---|---:|---:|---:|")
    for label, inputs in (("uniform inputs", uniform), ("bimodal inputs", bimodal)):
        on, off = score({name: network.eval() for name, network in networks.items()}, inputs, arguments.test).values()
        # the tasks of a batch share a kernel and are not independent
        gain = (on - off).view(-1, BATCH).mean(1)
        error = float(gain.std()) / math.sqrt(len(gain))
        print(
            f"| {label} | {float(on.mean()):.3f} | {float(off.mean()):.3f} | {float(gain.mean()):+.3f} ± {error:.3f} |"
        )


if __name__ == "__main__":
    main()
