"""Speed and accuracy of fills with the code and weights of another revision and with these, in alternating runs.

Run as ``python benchmarks/against.py REVISION [--size 512] [--repeats 3]`` in a git checkout, on idle cores. A process
of its own fills each raster, after a small one that loads the model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from speed import rough

from geonp.raster import gaps

CHILD = """
import sys, time
import numpy as np, xarray as xr
import geonp
array = xr.DataArray(np.load(sys.argv[1]), dims=("y", "x"), name="field")
geonp.infill(array[:96, :96])
start = time.perf_counter()
filled = geonp.infill(array)
print(time.perf_counter() - start)
np.save(sys.argv[2], np.stack([filled["field"].values, filled["field_standard_error"].values]))
"""


def masks(size: int, rng: np.random.Generator) -> dict[str, npt.NDArray[np.bool_]]:
    """Missing cells of each kind."""
    isolated = np.zeros((size, size), bool)
    for row in range(20, size - 8, 64):
        for col in range(20, size - 8, 64):
            isolated[row : row + 8, col : col + 8] = True
    return {
        "10 % at random": rng.random((size, size)) < 0.1,
        "50 % at random": rng.random((size, size)) < 0.5,
        "90 % at random": rng.random((size, size)) < 0.9,
        "30 % under clouds": gaps.cloud_gaps((size, size), 0.3, rng, scale=30),
        "gaps of 8 x 8 cells": isolated,
    }


def fill(tree: Path, array: Path) -> tuple[float, npt.NDArray[np.float32]]:
    """Seconds of a fill with the code in `tree`, and its values and standard errors."""
    out = array.with_suffix(".out.npy")
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", CHILD, str(array), str(out)]
    printed = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True).stdout
    return float(printed.split()[-1]), np.load(out)


def main() -> None:
    """Print a table: times here over those of the revision, the least of all repeats, and RMSE and coverage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--size", type=int, default=512, help="rows and columns of the raster")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    here, rng = Path(__file__).parents[1], np.random.default_rng(0)
    field = rough(arguments.size, rng)
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "tree"
        git = ["git", "-C", str(here), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", there, arguments.revision], check=True)
        try:
            print("| gaps | time | cells a second | RMSE | coverage before | coverage |")
            print("|---|---:|---:|---:|---:|---:|", flush=True)
            for name, missing in masks(arguments.size, rng).items():
                array = Path(folder) / "array.npy"
                np.save(array, np.where(missing, np.nan, field).astype(np.float32))
                runs = [(fill(there, array), fill(here, array)) for _ in range(arguments.repeats)]
                before, after = (min(run[k][0] for run in runs) for k in (0, 1))
                filled = [result for _, result in runs[0]]
                errors = [(values - field)[missing] for values, _ in filled]
                rmse = np.sqrt(np.mean(errors[1] ** 2) / np.mean(errors[0] ** 2))
                covered = [
                    np.mean(np.abs(error) < 1.96 * result[1][missing])
                    for error, result in zip(errors, filled, strict=True)
                ]
                coverage = " | ".join(f"{share:.3f}" for share in covered)
                print(
                    f"| {name} | {after / before:.2f} | {missing.sum() / after:,.0f} | {rmse:.3f} | {coverage} |",
                    flush=True,
                )
        finally:
            subprocess.run([*git, "remove", "--force", there], check=True)


if __name__ == "__main__":
    main()
