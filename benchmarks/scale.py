"""Overhead of filling a large raster: time of planning it and of copying observed cells, over that of a plain copy.

Run as ``python benchmarks/scale.py [--side 8192] [--gaps 0.001] [--gap-side 8]``. Times are ratios within this run;
memory is the peak of a fresh process and its children. ``--flat 10000 40000`` instead fills rasters of these sides,
1 % of them missing in squares of 100 x 100 cells, and prints the measured and the planned peaks.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

CHUNK = 1024


def make(path: Path, side: int, gaps: float, gap: int = 8) -> None:
    """Write a smooth float32 raster with square gaps of `gap` x `gap` cells, chunk by chunk."""
    array = zarr.create_array(
        path / "a", shape=(side, side), chunks=(CHUNK, CHUNK), dtype="f4", dimension_names=("y", "x"), fill_value=np.nan
    )
    zarr.open_group(path, mode="a")
    rng = np.random.default_rng(0)
    for row in range(0, side, CHUNK):
        for col in range(0, side, CHUNK):
            y, x = np.ogrid[row : row + CHUNK, col : col + CHUNK]
            block = (np.sin(y / 40) + np.cos(x / 55) + 0.01 * rng.standard_normal((CHUNK, CHUNK))).astype("f4")
            for i, j in rng.integers(0, CHUNK - gap, (round(gaps * CHUNK**2 / gap**2), 2)):
                block[i : i + gap, j : j + gap] = np.nan
            array[row : row + CHUNK, col : col + CHUNK] = block[: side - row, : side - col]


def copy(source: Path, target: Path, _: str) -> None:
    """Read and write every chunk with xarray and dask."""
    xr.open_zarr(source, consolidated=False).to_zarr(target, consolidated=False)


def fill(source: Path, target: Path, model: str) -> None:
    """Fill the raster."""
    from geonp.fill.store import fill_store
    from geonp.io.files import open_raster

    fill_store(open_raster(source, chunks=None), target, chunks=CHUNK, model=model)


def begin(source: Path, target: Path, model: str) -> None:
    """Prepare a fill up to its first unit."""
    from geonp.fill.store import fill_store
    from geonp.fill.workers import run
    from geonp.io.files import open_raster

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    import geonp.fill.store

    geonp.fill.store.run = stop
    try:
        fill_store(open_raster(source, chunks=None), target, chunks=CHUNK, model=model)
    except KeyboardInterrupt:
        geonp.fill.store.run = run


def measured(job: Callable[[Path, Path, str], None], source: Path, target: Path, model: str) -> tuple[float, float]:
    """Seconds, without imports, and peak MiB of a job in a fresh process and its children."""
    command = [sys.executable, __file__, "--job", job.__name__, str(source), str(target), model]
    seconds, mib = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(f"{target}.journal", ignore_errors=True)
    return float(seconds), float(mib)


def measure(job: str, source: str, target: str, model: str) -> None:
    """Run one job, and print its seconds and peak MiB for :func:`measured`."""
    from geonp.inference.parallel import peak_bytes

    start = time.perf_counter()
    {"copy": copy, "fill": fill, "begin": begin}[job](Path(source), Path(target), model)
    print(time.perf_counter() - start, (peak_bytes() or 0) / 2**20)


def print_flat(sides: list[int], model: str) -> None:
    """Print the measured and the planned peaks for rasters of several sides."""
    from geonp.fill.options import FillOptions
    from geonp.fill.store import plan_store
    from geonp.io.files import open_raster

    print("| side | peak MiB | planned | seconds |\n|---:|---:|---:|---:|")
    for side in sides:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "gaps")
            make(source, side, 0.01, 100)
            plan = plan_store(open_raster(source, chunks=None), FillOptions(model=model), chunks=CHUNK)
            seconds, mib = measured(fill, source, Path(folder, "out.zarr"), model)
        print(f"| {side:,} | {mib:.0f} | {plan.peak_bytes / 2**20:.0f} | {seconds:.0f} |", flush=True)


def main() -> None:
    """Print the costs of planning and of filling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=8192, help="rows and columns of the raster to fill")
    parser.add_argument("--gaps", type=float, default=0.001, help="share of missing cells")
    parser.add_argument("--gap-side", type=int, default=8, help="rows and columns of each gap")
    parser.add_argument("--planned", type=int, default=316_000, help="rows and columns of the raster to plan")
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--flat", type=int, nargs="+", help="only compare the peak memory for rasters of these sides")
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        return measure(*arguments.job)
    if arguments.flat:
        return print_flat(arguments.flat, arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, side, gaps in (("full", arguments.side, 0.0), ("gaps", arguments.side, arguments.gaps)):
            make(root / name, side, gaps, arguments.gap_side)
        array = zarr.create_array(
            root / "vast" / "a",
            shape=(arguments.planned,) * 2,
            chunks=(CHUNK, CHUNK),
            dtype="f4",
            dimension_names=("y", "x"),
            fill_value=np.nan,
        )
        units = array.nchunks
        zarr.open_group(root / "vast", mode="a")
        plain, plain_mib = measured(copy, root / "full", root / "out.zarr", arguments.model)
        full, full_mib = measured(fill, root / "full", root / "out.zarr", arguments.model)
        some, some_mib = measured(fill, root / "gaps", root / "out.zarr", arguments.model)
        plan, plan_mib = measured(begin, root / "vast", root / "out.zarr", arguments.model)
    print("| job | time / plain copy | peak MiB |\n|---|---:|---:|")
    for name, seconds, mib in (
        (f"copy of {arguments.side} x {arguments.side} cells", plain, plain_mib),
        ("fill of it, without gaps", full, full_mib),
        (f"fill of it, {arguments.gaps:.2%} missing in squares of {arguments.gap_side}", some, some_mib),
    ):
        print(f"| {name} | {seconds / plain:.2f} | {mib:.0f} |")
    print(
        f"\nBefore the first of {units:,} units of {arguments.planned**2:,} cells: "
        f"{1000 * plan / units:.3f} s for each "
        f"1,000 units, peak {plan_mib:.0f} MiB"
    )


if __name__ == "__main__":
    main()
