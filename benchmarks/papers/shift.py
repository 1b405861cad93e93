"""TE-TNP's shift experiment: log-likelihood when all locations move away from where training saw them.

Run as ``python benchmarks/papers/shift.py --steps 5000``. An equivariant model cannot tell; the others leave what they
know. The same tasks are scored at every shift.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from tables import COST, SPREAD, add_seeds, arguments, budget, cost, nll, publish, run, table
from torch import nn

from geonp.training.recipe import Recipe

SHIFTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Those of the paper up to 1."""

PUBLISHED = {
    "CNP": "-0.69 (table 5, by the order of rows)",
    "RCNP": "-0.58 (table 5, by the order of rows)",
    "ConvCNP": "-0.46 (table 5)",
    "TE-TNP": "-0.50 (table 5, a merged row)",
    "TE-PT-TNP": "-0.44 (section F.5, table 7, 32 pseudo-tokens)",
}
"""Log-likelihood without a shift, TE-TNP (ICML 2024), after up to 500,000 steps of 16 tasks.

In the text that we have, table 5 lacks the names of its first six rows, and those of TE-TNP and TE-PT-TNP are merged.
"""

MODELS = ["CNP", "RCNP", "ConvCNP", "TNP-D", "PT-TNP", "TNP-KR-SA, invariant", "TE-TNP", "TE-PT-TNP"]


@torch.no_grad()
def shifted(network: nn.Module, recipe: Recipe, batches: int) -> dict[str, float]:
    """Log-likelihood of noisy targets at every shift, and the exact process's."""
    out = {}
    for shift in SHIFTS:
        moved = recipe.model_copy(update={"data": replace(recipe.data, shift=shift)})
        out[f"{shift:g}"] = -nll(network, moved, batches)["nll"]
    return {**out, **{key: value for key, value in nll(network, recipe, batches).items() if key != "steps"}}


def shown(value: float | None) -> str:
    """A cell of the table."""
    return "-" if value is None else f"{value:.3f}" if value > -1e3 else f"{value:.1e}"


def main() -> None:
    given = add_seeds(arguments(__doc__ or "", ["gp1d_shift"], MODELS)).parse_args()
    given.shifts = SHIFTS
    every = max(1, given.steps // 10)
    found = run(
        given,
        lambda network, recipe: shifted(network, recipe, given.test_batches),
        [f"training.validate_every={every}", "training.validation_batches=16", "training.save_every_s=60"],
        asked=("test_batches", "shifts"),
    )
    if found:
        keys = [f"{shift:g}" for shift in SHIFTS]
        rows = [
            [
                label,
                *(shown(row.get(key)) for key in keys),
                f"{-row['exact']:.3f}",
                PUBLISHED.get(label, "-"),
                *([f"{row['spread']:.3f}"] if "spread" in row else []),
                *cost(row),
            ]
            for label, row in found.items()
        ]
        spread = [SPREAD] * (given.seeds > 1)
        head = table(["model", *keys, "exact process", "paper, unshifted", *spread, *COST], rows)
        missing = any(key not in row for row in found.values() for key in keys)
        text = f"Log-likelihood a target by shift{' (-: not scored for every seed)' if missing else ''}:"
        publish(given, found, "gp1d_shift", budget(given, paper=(500_000, 16)), text, head)


if __name__ == "__main__":
    main()
