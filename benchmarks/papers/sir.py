"""TNP-KR's SIR epidemics: classes of cells at one budget, and zero-shot on larger lattices.

Run as ``python benchmarks/papers/sir.py --steps 5000 --sides 64 128 256 --filled 1024``. Larger lattices have the same
distance of cells; all their cells are targets, as in the paper. In one pass a lattice of 1024 cells takes hours on a
CPU: ``--filled`` gives it to ``geonp.infill`` with the checkpoint, which reads it tile by tile, and scores the missing
cells.
"""

from __future__ import annotations

import json
import resource
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from tables import TEST_SEED, arguments, nll, plot, report, run, table
from torch import nn

import geonp
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


def filled(file: Path, side: int) -> dict[str, float]:
    """NLL of the missing cells of one frame that ``infill`` fills, its seconds and the peak memory of this process."""
    epidemic = LARGER[side]
    batch = epidemic.batch(TEST_SEED, 0, 1)
    cells = ((batch["xt"][0] / epidemic.extent + 1) / 2 * (side - 1)).round().long().numpy()
    truth = np.zeros((side, side), np.uint8)
    truth[tuple(cells.T)] = batch["yt"][0]
    missing = np.ones((side, side), bool)
    missing[tuple(cells[: int(batch["context_mask"].sum())].T)] = False
    attrs = {"flag_values": np.arange(3, dtype=np.uint8), "flag_meanings": "infected recovered susceptible"}
    array = xr.DataArray(
        np.where(missing, 255, truth), dims=("y", "x"), name="state", attrs={**attrs, "_FillValue": 255}
    )
    start = time.perf_counter()
    probability = geonp.infill(array, model=file).state_probability.transpose("y", "x", "category").values
    seconds = time.perf_counter() - start
    chance = np.take_along_axis(probability, truth[..., None].astype(int), -1)[..., 0][missing]
    return {
        "context": int((~missing).sum()),
        "nll": float(-np.log(np.maximum(chance, 1e-12)).mean()),
        "seconds": seconds,
        "gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    parser = arguments(__doc__ or "", ["sir"], PUBLISHED)
    parser.add_argument("--sides", type=int, nargs="*", default=[64, 128, 256], choices=[64, *LARGER])
    parser.add_argument("--larger-frames", type=int, default=10)
    parser.add_argument("--filled", type=int, nargs="*", default=[], choices=[*LARGER])
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
    for side in given.filled:
        # the others read locations, and know those of a lattice of 64 cells alone
        folder = Path(found["TNP-KR-SA, invariant"]["folder"])
        kept = folder / f"filled{side}.json"
        if not kept.exists():
            kept.write_text(json.dumps(filled(folder / "sir.safetensors", side)))
        numbers = json.loads(kept.read_text())
        print(f"\n{side} x {side} by infill: " + ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))


if __name__ == "__main__":
    main()
