"""TNP-KR's SIR epidemics: classes of cells at one budget, and zero-shot on larger lattices.

Run as ``python benchmarks/papers/sir.py --steps 5000 --sides 64 128 256``. Larger lattices have the same distance of
cells; all their cells are targets, as in the paper.
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import torch
from tables import arguments, nll, plot, report, run, table
from torch import nn

from geonp.training.epidemics import Epidemic
from geonp.training.recipe import Recipe

PUBLISHED = {"TNP-KR-SA, invariant": 0.190, "TNP-D": 0.191, "ConvCNP": 0.196}
"""NLL at 64 x 64 and 100,000 steps, arXiv 2411.12502 version 2; SA at 1024 x 1024: 0.307."""

LARGER = {
    128: Epidemic(side=128, extent=4.0, frames=50, n_context=(512, 2047), n_targets=0),
    256: Epidemic(side=256, extent=8.0, frames=75, n_context=(2048, 8191), n_targets=0),
    1024: Epidemic(side=1024, extent=32.0, frames=200, n_context=(31744, 131071), n_targets=0),
}
"""The paper's larger lattices."""


@torch.no_grad()
def scores(network: nn.Module, recipe: Recipe, batches: int, sides: list[int], larger: int) -> dict[str, float]:
    """NLL at 64 x 64 on `batches` batches, and on `larger` frames of every other side."""
    out = nll(network, recipe, batches)
    single = recipe.training.model_copy(update={"batch_size": 1})
    for side in sides:
        if side in LARGER:
            start = time.perf_counter()
            other = recipe.model_copy(update={"data": replace(LARGER[side]), "training": single})
            out[str(side)] = nll(network, other, larger)["nll"]
            out[f"{side}_s"] = (time.perf_counter() - start) / larger
            out[f"{side}_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return out


def main() -> None:
    parser = arguments(__doc__ or "", ["sir"], PUBLISHED)
    parser.add_argument("--sides", type=int, nargs="*", default=[64, 128, 256], choices=[64, *LARGER])
    parser.add_argument("--larger-frames", type=int, default=10)
    given = parser.parse_args()
    found = run(
        given,
        lambda network, recipe: scores(network, recipe, given.test_batches, given.sides, given.larger_frames),
        [f"training.validate_every={max(1, given.steps // 20)}", "training.save_every_s=60"],
        {"likelihood": "categorical"},
    )
    if found:
        print(report(found, PUBLISHED))
        plot(found, given.out / f"sir-{given.steps}.png", "sir")
        sides = [str(side) for side in given.sides if side in LARGER]
        rows = [
            [label, *(f"{r[s]:.3f}, {r[s + '_s']:.1f} s, {r[s + '_gb']:.1f} GB" if s in r else "-" for s in sides)]
            for label, r in found.items()
        ]
        print("\nZero-shot: NLL, seconds a frame, peak memory.\n")
        print(table(["model", *(f"{side} x {side}" for side in sides)], rows))


if __name__ == "__main__":
    main()
