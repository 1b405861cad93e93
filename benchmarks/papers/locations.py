"""Gain from the moving locations of TE-PT-TNP for bimodal inputs (TE-TNP, section F.5, table 7).

Run as ``python benchmarks/papers/locations.py [--steps 2000]``. Two models that differ in ``move_locations`` and
``locate`` (both on, as in the paper, or both off) are trained on the same tasks of section F.1 for the same number of
steps. They are scored on the same test tasks, with inputs as in training, and from U(-4, -1) or U(1, 4) with equal
probability (equation 44). Deviations: smaller models and shorter training than in the paper (width 32, two layers, 16
pseudo-tokens, 64 targets a task).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import torch
from tables import table
from torch import Tensor, nn

from geonp.nn.models import build, loss
from geonp.training.data.processes import MixedProcess, covariance

NOISE = 0.2
BATCH = 16
N_TARGETS = 64
CONFIG = {"d_x": 1, "dim": 32, "heads": 4, "blocks": 2, "n_pseudo": 16, "max_pairs": 2**18}
SWITCHES = {"on": {}, "off": {"move_locations": False, "locate": False}}
PUBLISHED = {"uniform": "-0.44 ± 0.01 / -0.46 ± 0.01", "bimodal": "-0.67 ± 0.01 / -0.76 ± 0.01"}
"""Log-likelihood, TE-TNP (ICML 2024), table 7."""

Inputs = Callable[[int, float], Tensor]
"""``(n, half width) -> (BATCH, n, 1)``."""


def uniform(n: int, half: float) -> Tensor:
    """Uniform inputs between -half and half."""
    return (torch.rand(BATCH, n, 1) * 2 - 1) * half


def bimodal(n: int, _: float) -> Tensor:
    """Inputs from 1 to 4 or from -4 to -1."""
    return (1 + 3 * torch.rand(BATCH, n, 1)) * (2 * torch.randint(2, (BATCH, n, 1)) - 1)


def kernel(kind: str, length: float, x: Tensor) -> Tensor:
    """Covariance ``(batch, n, n)`` of points `x` ``(batch, n, 1)``; `length` is the period of a periodic kernel."""
    x = x.double().numpy()
    if kind == "periodic":
        return torch.from_numpy(covariance(kind, x, x, MixedProcess.length_periodic, length))
    return torch.from_numpy(covariance(kind, x, x, length))


def batch(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and values of context and targets, with one kernel, length and context size for the batch."""
    n_c = int(torch.randint(1, 65, ()))
    x = torch.cat([inputs(n_c, 2.0), inputs(N_TARGETS, 3.0)], 1)
    length = 10 ** float(torch.empty(()).uniform_(-0.602, 0.602))
    drawn = MixedProcess.kernels[int(torch.randint(3, ()))]
    k = kernel(drawn, length, x) + 1e-5 * torch.eye(x.shape[1]).double()
    f = torch.linalg.cholesky(k) @ torch.randn(BATCH, x.shape[1], 1).double()
    y = f.float() + NOISE * torch.randn(x.shape)
    return x[:, :n_c], y[:, :n_c], x[:, n_c:], y[:, n_c:]


def train(seed: int, steps: int) -> dict[str, nn.Module]:
    """Networks of all :data:`SWITCHES`, trained on the same batches; print their losses every 100 steps."""
    networks = {}
    for name, switches in SWITCHES.items():
        torch.manual_seed(seed)
        networks[name] = build("te-pt-tnp", {**CONFIG, **switches}).train()
    torch.manual_seed(seed)
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
    return {name: network.eval() for name, network in networks.items()}


@torch.no_grad()
def score(networks: dict[str, nn.Module], inputs: Inputs, batches: int) -> tuple[float, float, float, float]:
    """Mean log density with moving and with fixed locations, mean difference, and its standard error over batches."""
    torch.manual_seed(10_000)
    found: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(batches):
        xc, yc, xt, yt = batch(inputs)
        for name, network in networks.items():
            found[name].append(float(network(xc, yc, xt).log_prob(yt).mean()))
    on, off = found["on"], found["off"]
    # the tasks of a batch share a kernel and are not independent
    gains = [a - b for a, b in zip(on, off, strict=True)]
    return fmean(on), fmean(off), fmean(gains), stdev(gains) / math.sqrt(batches)


def main() -> None:
    """Train each seed and write the table of section F.5."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--test", type=int, default=128, help=f"number of test batches of {BATCH} tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pages", type=Path, default=Path("runs/papers"), help="folder of the table")
    given = parser.parse_args()
    rows = []
    for seed in given.seeds:
        networks = train(seed, given.steps)
        for label, inputs in (("uniform", uniform), ("bimodal", bimodal)):
            on, off, gain, error = score(networks, inputs, given.test)
            rows.append([label, seed, f"{on:.3f}", f"{off:.3f}", f"{gain:+.3f} ± {error:.3f}", PUBLISHED[label]])
    head = ["inputs", "seed", "locations move", "fixed", "difference, paired", "paper: move / fixed (table 7)"]
    text = (
        f"Moving locations of TE-PT-TNP (TE-TNP, section F.5): log-likelihood a target after {given.steps:,} steps of "
        f"{BATCH} tasks (the paper: up to 500,000 of 16), on {given.test * BATCH:,} test tasks. Both models have "
        f"{CONFIG['n_pseudo']} pseudo-tokens (32), width {CONFIG['dim']} (128) and {CONFIG['blocks']} layers (5)."
    )
    options = f"--steps {given.steps} --test {given.test} --seeds {' '.join(map(str, given.seeds))}"
    page = [
        "# locations",
        text,
        table(head, sorted(rows, key=lambda row: row[0], reverse=True)),
        f"`python benchmarks/papers/locations.py {options}`",
    ]
    given.pages.mkdir(parents=True, exist_ok=True)
    (given.pages / "locations.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    print(page[2])


if __name__ == "__main__":
    main()
