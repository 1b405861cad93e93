"""Joint samples of gaps: their variogram within gaps and across tile borders, their distribution, and their cost.

Run as ``python benchmarks/samples.py [--model tnpkr-sa] [--fields 14] [--samples 20] [--picture samples.png]``, from
anywhere in the repository; with ``--data FOLDER`` also on real rasters.

Synthetic fields are exact draws of the processes of ``benchmarks/exact.py`` under clouds; each row is of one kernel.
The variogram of a field is the mean of half the squared difference of two missing cells along rows and columns. Those
of samples and of the truth are each divided by the variogram of the process, averaged over the fields, and compared;
for real rasters, divided by that of the whole raster. *Borders* are pairs of cells on both sides of a tile border,
relative to all pairs at distance 1, likewise for samples and truth. *Mean*, *deviation* and *apart* are of samples as
normal scores of the distributions of the fill: mean, standard deviation, and the largest difference of their
distribution from the normal one. *Cost* is the CPU time of the samples over that of the fill.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dask
import numpy as np
import numpy.typing as npt
import xarray as xr
from exact import KERNELS, Process, draw_process
from scipy import special

import geonp
from geonp import student
from geonp.raster import gaps

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

LAGS = (1, 2, 4, 8, 16)
TILE = 16
REAL = ("dem_oetztal_srtm_3arcsec.tif", "sst_ostia_global_0p25_2017-06-05_07.nc", "tmax_gridmet_conus_2019-01-21.nc")


@dataclass(frozen=True, eq=False)
class Case:
    """A raster without gaps, its missing cells, and the variogram at :data:`LAGS` that others are divided by."""

    name: str
    values: Array
    missing: BoolArray
    expected: Array


def draw_field(rng: np.random.Generator, process: Process, side: int) -> Array:
    """A draw of a process, by circulant embedding."""
    size = 8 * side
    steps = np.minimum(np.arange(size), size - np.arange(size)) * np.where(np.arange(size) <= size // 2, 1, -1)
    offsets = np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2).astype(float)
    covariance = process.covariance(np.zeros((1, 2)), offsets).reshape(size, size)
    power = np.maximum(np.fft.fft2(covariance).real, 0)
    white = rng.standard_normal((size, size)) + 1j * rng.standard_normal((size, size))
    field = np.fft.fft2(np.sqrt(power / size**2) * white).real[:side, :side]
    return np.asarray(field + np.sqrt(process.nugget) * rng.standard_normal((side, side)))


def synthetic(fields: int, side: int) -> Iterator[Case]:
    """Draws of each kernel under clouds."""
    for i in range(fields):
        kernel = KERNELS[i % len(KERNELS)]
        rng = np.random.default_rng([i, 7])
        process = draw_process(rng, kernel, i // len(KERNELS) % 2 == 1)
        lags = np.array([[lag, 0.0] for lag in LAGS] + [[0.0, lag] for lag in LAGS])
        variance = process.covariance(np.zeros((1, 2)), np.zeros((1, 2)))[0, 0] + process.nugget
        expected = variance - process.covariance(np.zeros((1, 2)), lags)[0].reshape(2, -1).mean(0)
        missing = gaps.simulate("clouds", (side, side), 0.45, rng)
        yield Case(kernel, draw_field(rng, process, side), missing, expected)


def real(folder: Path, side: int) -> Iterator[Case]:
    """Cuts of real rasters under clouds."""
    for number, name in enumerate(REAL):
        ds = geonp.open_raster(str(folder / name))
        array = ds[next(iter(ds.data_vars))]
        array = array.isel(dict.fromkeys(array.dims[:-2], 0))
        row, col = ((size - side) // 2 for size in array.shape)
        values = array.values[row : row + side, col : col + side].astype(float)
        missing = gaps.simulate("clouds", values.shape, 0.45, np.random.default_rng([number, 8]))
        missing &= np.isfinite(values)
        expected = variograms(values[None], np.isfinite(values))
        yield Case(name.partition("_2")[0].partition(".")[0], values, missing, expected)


def pairs(values: Array, mask: BoolArray, lag: int, border: bool = False) -> float:
    """Mean of half the squared differences of cells of the mask; `values` ``(n, rows, cols)``."""
    total, count = 0.0, 0
    for of, where in ((values, mask), (values.swapaxes(1, 2), mask.T)):
        both = where[lag:] & where[:-lag]
        if border:
            both = both & (np.arange(lag, len(where)) % TILE == 0)[:, None]
        differences = (of[:, lag:] - of[:, :-lag])[:, both]
        total, count = total + float((differences**2).sum()) / 2, count + differences.size
    return total / max(count, 1)


def variograms(values: Array, mask: BoolArray) -> Array:
    """Variogram at each of :data:`LAGS`."""
    return np.array([pairs(values, mask, lag) for lag in LAGS])


def scores_of(out: xr.Dataset, missing: BoolArray) -> Array:
    """Normal scores of the samples ``(n, cells)`` under the distributions of the fill."""
    of = [out[f"a{part}"].values[missing].astype(np.float64) for part in ("", "_standard_error", "_tail")]
    drawn = out["a_sample"].values[:, missing]
    below, above = student.cdf(drawn, *of), student.sf(drawn, *of)
    return np.asarray(np.where(below < 0.5, special.ndtri(below), -special.ndtri(above)))


def measure(case: Case, samples: int, model: str) -> tuple[Array, Array, float, Array]:
    """Relative variograms of samples and truth with that across borders, ``(2, lags + 1)``, scores and cost."""
    array = xr.DataArray(np.where(case.missing, np.nan, case.values), dims=("y", "x"), name="a")
    start = time.process_time()
    geonp.infill(array, model=model)
    middle = time.process_time()
    out = geonp.infill(array, model=model, samples=samples, tails=True)
    cost = (time.process_time() - 2 * middle + start) / (middle - start)
    rows = []
    for values in (out["a_sample"].values.astype(float), case.values[None]):
        border = pairs(values, case.missing, 1, border=True) / pairs(values, case.missing, 1)
        rows.append([*variograms(values, case.missing) / case.expected, border])
    return np.array(rows), scores_of(out, case.missing), cost, out["a_sample"].values


def row(name: str, found: list[tuple[Array, Array, float, Array]]) -> str:
    """Row of the table of some cases."""
    ratios = np.mean([one[0] for one in found], 0)
    relative = ratios[0] / ratios[1]
    scores = [one[1] for one in found]
    every = np.sort(np.concatenate([one.ravel() for one in scores]))
    apart = np.abs(special.ndtr(every) - (np.arange(every.size) + 0.5) / every.size).max()
    cells = [name, *(f"{v:.2f}" for v in relative), f"{every.mean():.3f}", f"{every.std():.3f}", f"{apart:.3f}"]
    return f"| {' | '.join([*cells, f'{np.mean([one[2] for one in found]):.1f}'])} |"


def draw_picture(case: Case, drawn: Array, target: Path) -> None:
    """Truth, gaps and two samples."""
    import matplotlib.pyplot as plt

    shown = (("truth", case.values), ("gaps", np.where(case.missing, np.nan, case.values)))
    shown += tuple((f"sample {k}", drawn[k]) for k in range(2))
    figure, axes = plt.subplots(1, 4, figsize=(16, 4.2))
    low, high = np.nanquantile(case.values, [0.005, 0.995])
    for axis, (name, values) in zip(axes, shown, strict=True):
        axis.imshow(values, vmin=low, vmax=high)
        axis.set_title(name)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(target, dpi=80)
    plt.close(figure)


def main() -> None:
    """Fill and draw all cases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--fields", type=int, default=14, help="number of synthetic fields")
    parser.add_argument("--side", type=int, default=128, help="rows and columns of each field")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--data", type=Path, help="folder of the real rasters")
    parser.add_argument("--picture", type=Path, help="stem of pictures to draw, one for each case")
    arguments = parser.parse_args()
    dask.config.set(num_workers=1)  # other processes would not be counted
    cases = list(synthetic(arguments.fields, arguments.side))
    cases += list(real(arguments.data, arguments.side)) if arguments.data else []
    heads = [*(f"lag {lag}" for lag in LAGS), "borders", "mean", "deviation", "apart", "cost"]
    print(f"| field | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}", flush=True)
    found: dict[str, list[tuple[Array, Array, float, Array]]] = {}
    for number, case in enumerate(cases):
        result = measure(case, arguments.samples, arguments.model)
        found.setdefault(case.name, []).append(result)
        if arguments.picture:
            picture = arguments.picture.with_name(f"{arguments.picture.stem}-{number}.png")
            draw_picture(case, result[3], picture)
    for name, some in found.items():
        print(row(name, some), flush=True)
    print(row("**all synthetic**", [one for name, some in found.items() if name in KERNELS for one in some]))


if __name__ == "__main__":
    main()
