"""Gain from neighbouring slices: slices filled alone, with ``across=``, and by interpolation along the stack.

Run as ``python benchmarks/across.py [--only NDVI] [--scored 6]``. Gaps are random in each slice; persistent gaps are
the same in three consecutive slices. Numbers are means over the scored slices; RMSE and CRPS are in standard deviations
of each slice. The interpolation is linear between the nearest slices that observe a cell, constant beyond the last, and
has no standard errors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import accuracy
import numpy as np
import pandas as pd
import xarray as xr
from adapt import STACKS, hidden

import geonp
from geonp.evaluation.holdout import HoldOut
from geonp.evaluation.metrics import score

GAPS = ("clouds", "persistent", "random")


def stack(truth: accuracy.Field, kind: str, rng: np.random.Generator) -> list[HoldOut]:
    """Hold-outs of all slices with enough observed cells."""
    if kind != "persistent":
        return hidden(truth, kind, rng)
    apart = hidden(truth, "clouds", rng)
    same = [apart[i - i % 3].hidden for i in range(len(apart))]
    return [
        HoldOut(np.where(gap, np.nan, test.truth).astype(np.float32), test.truth, gap & np.isfinite(test.truth))
        for test, gap in zip(apart, same, strict=True)
    ]


def main() -> None:
    """Print the scores of each stack and kind of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--only", nargs="*", default=list(STACKS), choices=STACKS, help="names of stacks")
    parser.add_argument("--gaps", nargs="*", default=list(GAPS), choices=GAPS, help="kinds of gaps")
    parser.add_argument("--side", type=int, default=256, help="largest number of rows and columns of a cut")
    parser.add_argument("--scored", type=int, default=6, help="largest number of slices of a stack that are scored")
    arguments = parser.parse_args()
    accuracy.SIDE = arguments.side
    print(
        "| stack | gaps | slices | RMSE interpolated | alone | across | CRPS alone | across | ratio | 95 % | across |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for seed, name in enumerate(arguments.only):
        truth = STACKS[name](arguments.data)
        for kind in arguments.gaps:
            tests = stack(truth, kind, np.random.default_rng(seed))
            array = xr.DataArray(np.stack([test.values for test in tests]), dims=("slice", "y", "x"), name="field")
            chosen = np.unique(np.linspace(0, len(tests) - 1, min(arguments.scored, len(tests))).round().astype(int))
            flat = pd.DataFrame(array.values.reshape(len(tests), -1))
            along = flat.interpolate(limit_direction="both").to_numpy().reshape(array.shape)
            fills = {"alone": geonp.infill(array[chosen], tails=True)}
            lazy = geonp.infill(array.chunk({"slice": 1}), tails=True, across="slice")
            fills["across"] = lazy.isel(slice=chosen).compute()
            rows = []
            for place, k in enumerate(chosen):
                test, spread = tests[k], float(np.nanstd(tests[k].truth))
                counted = test.hidden & np.isfinite(along[k])
                row = [np.sqrt(np.mean((along[k] - test.truth)[counted] ** 2)) / spread]
                scores = []
                for fill in fills.values():
                    parts = (fill[f"field{ending}"].values[place] for ending in ("", "_standard_error", "_tail"))
                    mean, error, tail = parts
                    scores.append(score(test.truth, mean, error, counted & np.isfinite(mean), tail))
                rows.append(row + [s.rmse / spread for s in scores] + [s.crps / spread for s in scores])
                rows[-1] += [np.log(scores[1].crps / scores[0].crps), *(s.coverage(0.95) for s in scores)]
            means = np.mean(rows, 0)
            means[5] = np.exp(means[5])
            print(f"| {name} | {kind} | {len(tests)} | {' | '.join(f'{mean:.3f}' for mean in means)} |", flush=True)


if __name__ == "__main__":
    main()
