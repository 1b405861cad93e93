"""Means of regions of exact Gaussian processes: coverage of their intervals, and their standard errors.

Run as ``python benchmarks/regions.py [--model tnpkr-sa] [--fields 14] [--samples 200]``. Fields are draws of the
processes of ``benchmarks/exact.py``, 64 x 64 cells under clouds; regions are blocks of several sizes with a missing
cell, up to the whole raster. *Coverage* is that of intervals of 1.96 standard errors, in per cent. *Error* is the
geometric mean of the standard errors over those of the exact process, of which the other columns are quantiles.
*Unknown mean* is the same over those of the exact process whose mean is unknown, as it is to a fill.
*Joint* is the same over the standard errors that follow from those of the cells with the exact correlations.
*Independent* is that of errors which are taken to be independent, over the exact ones.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xarray as xr
from exact import KERNELS, Process, draw_process
from samples import draw_field

from geonp.fill.aggregate import aggregate
from geonp.fill.infill import infill
from geonp.raster import gaps

Array = npt.NDArray[np.float64]

SIDE = 64
SIZES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, eq=False)
class Found:
    """Of blocks of one size: errors of their means, standard errors, and other standard errors, see the module."""

    error: Array
    standard_error: Array
    exact: Array
    unknown_mean: Array
    joint: Array
    independent: Array


def posterior(process: Process, missing: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Exact covariance of the missing cells given the others, nugget included; and errors of an unknown mean.

    The latter are those for which the covariance is larger by their outer product (ordinary kriging).
    """
    known, unknown = (np.argwhere(mask).astype(float) for mask in (~missing, missing))
    inner = process.covariance(known, known) + process.nugget * np.eye(len(known))
    across = process.covariance(known, unknown)
    prior = process.covariance(unknown, unknown) + process.nugget * np.eye(len(unknown))
    weights = np.linalg.solve(inner, np.column_stack([across, np.ones(len(known))]))
    of_mean = (1 - across.T @ weights[:, -1]) / np.sqrt(weights[:, -1].sum())
    return np.asarray(prior - across.T @ weights[:, :-1]), np.asarray(of_mean)


def measure(number: int, samples: int, model: str) -> dict[int, Found]:
    """Means of the blocks of one field."""
    rng = np.random.default_rng([number, 9])
    process = draw_process(rng, KERNELS[number % len(KERNELS)], number // len(KERNELS) % 2 == 1)
    truth = draw_field(rng, process, SIDE)
    missing = gaps.simulate("clouds", truth.shape, 0.4, rng)
    array = xr.DataArray(np.where(missing, np.nan, truth), dims=("y", "x"), name="a")
    filled = infill(array, model=model, samples=samples)
    (covariance, of_mean), found = posterior(process, missing), {}
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation)
    for size in SIZES:
        table = aggregate(filled, size)
        row, col = np.indices(truth.shape) // size
        block = row * -(-SIDE // size) + col
        shares = (block[missing][None] == np.arange(len(table))[:, None]) / size**2
        exact = np.sqrt(np.einsum("ri,ij,rj->r", shares, covariance, shares, optimize=True))
        unknown_mean = np.hypot(exact, shares @ of_mean)
        of_cells = shares * filled.a_standard_error.values[missing].astype(float)
        alone = np.sqrt((of_cells**2).sum(1))
        joint = np.sqrt(np.einsum("ri,ij,rj->r", of_cells, correlation, of_cells, optimize=True))
        of = np.bincount(block.ravel(), truth.ravel()) / size**2
        some = table.filled.values > 0
        values = (table.value.values - of, table.standard_error.values, exact, unknown_mean, joint, alone)
        found[size] = Found(*(part[some] for part in values))
    return found


def main() -> None:
    """Fill all fields, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--fields", type=int, default=14)
    parser.add_argument("--samples", type=int, default=200)
    arguments = parser.parse_args()
    found = [measure(i, arguments.samples, arguments.model) for i in range(arguments.fields)]
    print("| cells | regions | coverage | error | lowest tenth | highest tenth | unknown mean | joint | independent |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for size in SIZES:
        of = [one[size] for one in found]
        error, own, exact, unknown_mean, joint, alone = (
            np.concatenate([getattr(one, name) for one in of])
            for name in ("error", "standard_error", "exact", "unknown_mean", "joint", "independent")
        )
        ratio = np.log(own / exact)
        cells = [size**2, error.size, f"{100 * (np.abs(error) < 1.96 * own).mean():.1f}", f"{np.exp(ratio.mean()):.2f}"]
        cells += [f"{np.exp(np.quantile(ratio, q)):.2f}" for q in (0.1, 0.9)]
        for top, bottom in ((own, unknown_mean), (own, joint), (alone, exact)):
            cells.append(f"{np.exp(np.log(top / bottom).mean()):.2f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
