"""TE-TNP's Kolmogorov flow: velocities of windows of simulated two-dimensional turbulence.

Run as ``python benchmarks/papers/kolmogorov.py --steps 5000``. The flows are simulated by
:mod:`geonp.training.data.turbulence`, not those of the paper (Rozet and Louppe 2023): fewer trajectories, and another
solver of the same equation. A multi-task Gaussian process is fitted to the first ``--gp-tasks`` test tasks; the paper
removes its extreme values, here its median is printed too.
"""

from __future__ import annotations

import math
import statistics
import time

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tables import (
    COST,
    TEST_SEED,
    arguments,
    budget,
    cost,
    mean_and_error,
    publish,
    read_scores,
    run,
    table,
    write_scores,
)
from torch import Tensor, nn

from geonp.inference import checkpoint
from geonp.nn.zoo.gp import MultitaskGP
from geonp.training.data.kolmogorov import KolmogorovFlow
from geonp.training.recipe import Recipe, load

SIZES = {
    "CNP": {"encoder": [32] * 6, "decoder": [32] * 5},
    "RCNP": {"dim": 32},
    "PT-TNP": {"dim": 32, "heads": 4, "n_pseudo": 64},
    "TE-PT-TNP": {"dim": 32, "heads": 4, "n_pseudo": 64},
}
"""Models and their widths, section F.3, with as many heads of attention as in the published configuration."""

FITTED = "multi-task GP, fitted to each task"
PUBLISHED = {
    FITTED: "0.48 ± 0.02",
    "CNP": "-0.97 ± 0.01",
    "RCNP": "0.16 ± 0.02",
    "PT-TNP": "0.63 ± 0.003",
    "TE-PT-TNP": "0.92 ± 0.03",
}
"""Log-likelihood, TE-TNP (ICML 2024), table 2, with 64 pseudo-tokens."""


@torch.no_grad()
def scores(network: nn.Module, recipe: Recipe, batches: int) -> dict[str, list[float]]:
    """Log-likelihood a value of every test batch."""
    assert isinstance(recipe.data, KolmogorovFlow)
    data, found = recipe.data.held_out(), []
    for i in range(batches):
        batch = data.batch(TEST_SEED, i, recipe.training.batch_size)
        predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
        found.append(float(predicted.log_prob(batch["yt"]).mean()))
    return {"log_likelihood": found}


def curl(velocity: Tensor) -> Tensor:
    """Vorticity ``(rows, columns)`` of velocities ``(rows, columns, 2)`` by central differences."""
    u, v = velocity.unbind(-1)
    step = 2 * math.pi / 64
    return torch.gradient(v, spacing=step, dim=1)[0] - torch.gradient(u, spacing=step, dim=0)[0]


@torch.no_grad()
def figure(networks: dict[str, nn.Module], data: KolmogorovFlow, file: str, fraction: float = 0.1) -> None:
    """Vorticity of the middle frame of a test block, true and of the predicted velocities (figure 5)."""
    side, rng = data.window, np.random.default_rng(5)
    x, y = data.held_out().blocks(rng, 1)
    known = torch.from_numpy(rng.permutation(side**3)[: round(fraction * side**3)])
    fields = {"truth": y} | {name: network(x[:, known], y[:, known], x).mean for name, network in networks.items()}
    drawing = Figure(figsize=(2.2 * len(fields), 2.4), layout="constrained")
    shown = {name: curl(field.view(side, side, side, 2)[side // 2]) for name, field in fields.items()}
    limit = float(shown["truth"].abs().max())
    for axes, (name, field) in zip(drawing.subplots(1, len(fields)), shown.items(), strict=True):
        axes.imshow(field, origin="lower", cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.set_title(name.partition(",")[0], fontsize=9)
        axes.set_axis_off()
    FigureCanvasAgg(drawing).print_figure(file, dpi=90)


def main() -> None:
    parser = arguments(__doc__ or "", ["kolmogorov"], SIZES, test_batches=30)
    parser.add_argument("--gp-tasks", type=int, default=16)
    parser.add_argument("--gp-steps", type=int, default=1000)
    given = parser.parse_args()
    every = max(1, given.steps // 10)
    overrides = [f"training.validate_every={every}", "training.validation_batches=4", "training.save_every_s=60"]
    found = run(given, lambda network, recipe: scores(network, recipe, given.test_batches), overrides, SIZES)
    recipe = load("kolmogorov", [*given.set, *([f"training.batch_size={given.batch_size}"] * bool(given.batch_size))])
    assert isinstance(recipe.data, KolmogorovFlow)
    rows = [
        [label, mean_and_error(row["log_likelihood"]), "-", PUBLISHED[label], *cost(row)]
        for label, row in found.items()
    ]
    asked = {name: str(getattr(given, name)) for name in ("gp_tasks", "gp_steps", "set")}
    kept = given.out / "kolmogorov-gp.json"
    if given.gp_tasks and not read_scores(kept, asked) and not given.only_print:
        alone = recipe.model_copy(update={"training": recipe.training.model_copy(update={"batch_size": 1})})
        start = time.process_time()
        fitted: dict[str, object] = dict(scores(MultitaskGP(steps=given.gp_steps), alone, given.gp_tasks))
        fitted["minutes"] = (time.process_time() - start) / 60
        write_scores(kept, fitted, asked)
    if fitted := read_scores(kept, asked):
        each = fitted["log_likelihood"]
        paid = [f"{len(each)} tasks", f"{fitted['minutes']:.1f} to fit and score"]
        rows.append([FITTED, mean_and_error(each), f"{statistics.median(each):.3f}", PUBLISHED[FITTED], *paid])
    if rows:
        head = table(["model", "log-likelihood", "median", "paper, table 2", *COST], rows)
        text = (
            f"{recipe.data.n_trajectories} simulated trajectories to train and {recipe.data.n_held_out} to test (the "
            "paper: 819 and 102). Log-likelihood of each velocity component; the process is fitted by "
            f"{given.gp_steps:,} steps (the paper: 1,000):"
        )
        parts = [budget(given, paper=(500_000, 8)), text, head]
        if not given.only_print:
            networks = {
                label: checkpoint.load_model(f"{row['folder']}/kolmogorov.safetensors")[0]
                for label, row in found.items()
            }
            networks["multi-task GP"] = MultitaskGP(steps=min(given.gp_steps, 200))
            folder = given.pages or given.out
            folder.mkdir(parents=True, exist_ok=True)
            figure(networks, recipe.data, str(folder / "kolmogorov-vorticity.png"))
        parts.append("![Vorticity of the true and of the predicted velocities](kolmogorov-vorticity.png)")
        parts.append("The middle frame of a test block with a tenth of the cells as context (figure 5).")
        publish(given, found, "kolmogorov", *parts)


if __name__ == "__main__":
    main()
