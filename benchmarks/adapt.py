"""What adapting the model to a raster is worth: CRPS of hidden cells before and after, and the minutes it takes.

Run as ``python benchmarks/adapt.py [--minutes 5] [--steps N] [--gaps clouds random] [--model tnpkr-sa]``. The rasters
are those of ``accuracy.py``, which led to one choice in :mod:`geonp.training.adapt`: it had stopped early on two of
them, and does so no more. What is hidden and scored here is not part of what the model is adapted to. The cuts are
larger than there: some hundred tiles are needed to tell a few per cent from chance.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import accuracy
import numpy as np
import xarray as xr
from accuracy import FIELDS, geometric

import geonp
from geonp.evaluation.holdout import HoldOut, hide_simulated
from geonp.evaluation.metrics import Scores, score
from geonp.training.adapt import Adapted, adapt

GAPS = {"clouds": 0.3, "random": 0.9}
ENOUGH = 0.95
"""A CRPS of less than so many times the model's own counts as clearly better."""


def filled(test: HoldOut, model: str | Adapted) -> Scores:
    """Scores of a fill."""
    out = geonp.infill(xr.DataArray(test.values, dims=("y", "x"), name="field"), model=model, tails=True)
    mean, error, tail = (out[f"field{ending}"].values for ending in ("", "_standard_error", "_tail"))
    return score(test.truth, mean, error, test.hidden & np.isfinite(mean), tail)


def main() -> None:
    """Adapt to each raster with each kind of gaps, print a row for each, and the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--minutes", type=float, default=5.0, help="time for each adaptation")
    parser.add_argument("--steps", type=int, help="steps of each adaptation instead")
    parser.add_argument("--gaps", nargs="*", choices=GAPS, default=list(GAPS), help="kinds of gaps")
    parser.add_argument("--only", nargs="*", help="names of rasters; all by default")
    parser.add_argument("--side", type=int, default=1024, help="cells along a side of the cuts, at most")
    arguments = parser.parse_args()
    accuracy.SIDE = arguments.side
    print("| field | gaps | held out | steps | CRPS | after | ratio | coverage | after | minutes | time of a fill |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    ratios: dict[str, list[float]] = {}
    for seed, (name, read) in enumerate(FIELDS.items()):
        if arguments.only and name not in arguments.only:
            continue
        try:
            truth = read(arguments.data)
        except geonp.GeonpError as error:
            print(f"left out: {name}: {error}")
            continue
        for kind in arguments.gaps:
            fraction = GAPS[kind]
            test = hide_simulated(truth, kind, fraction, np.random.default_rng(seed))
            with tempfile.TemporaryDirectory() as folder:
                raster = xr.DataArray(test.values, dims=("y", "x"), name="field")
                options = {"model": arguments.model, "minutes": arguments.minutes, "steps": arguments.steps}
                start = time.monotonic()
                found = adapt(raster, out=Path(folder, "adapted.safetensors"), **options)
                minutes = (time.monotonic() - start) / 60
                before, after = filled(test, arguments.model), filled(test, found)
            ratios.setdefault(name, []).append(after.crps / before.crps)
            row = [f"{found.after / found.before:.3f}", f"{found.steps}", f"{before.crps:.4g}", f"{after.crps:.4g}"]
            row += [f"{ratios[name][-1]:.3f}", f"{before.coverage(0.95):.3f}", f"{after.coverage(0.95):.3f}"]
            print(
                f"| {name} | {kind} {fraction:.0%} | {' | '.join(row)} | {minutes:.1f} | {found.slowdown:.1f} |",
                flush=True,
            )
    every = [ratio for both in ratios.values() for ratio in both]
    better = sum(geometric(both) < ENOUGH for both in ratios.values())
    print(
        f"\nCRPS after / before, geometric mean of {len(every)} cases: {geometric(every):.3f}; worst: {max(every):.3f}"
    )
    print(f"rasters with at least {1 - ENOUGH:.0%} less, over the kinds of gaps: {better} of {len(ratios)}")


if __name__ == "__main__":
    main()
