"""Counts of rare events, filled as counts and as numbers: CRPS, totals and standard errors on simulated Poisson counts.

Run as ``python benchmarks/counts.py [--side 96] [--seeds 3]``. The rate of a field is constant, or the exponential of a
Gaussian field of length 8 cells with a standard deviation of 1 (*clusters*). Cells are hidden at random.

* *numbers*: ``as_="numbers"``.
* *frequencies*: the frequencies of all observed counts, in every cell.

CRPS is the mean of 99 quantile scores. The total is that of the hidden cells over the true one; z is the error over the
standard error, root mean square. Numbers are means over the seeds, ratios are ratios of these.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy import ndimage

import geonp

Array = npt.NDArray[np.float64]
CASES = (
    *((mean, clusters, 0.5) for clusters in (False, True) for mean in (0.03, 0.1, 0.3, 2.0)),
    (0.2, True, 0.1),
    (0.2, True, 0.9),
)
"""Mean count, whether there are clusters, and share of hidden cells."""
LENGTH = 8.0
LEVELS = np.arange(1, 100) / 100


@dataclass(frozen=True)
class Scores:
    """Scores of the hidden cells of a field."""

    crps: float
    rmse: float
    total: float
    z: float


def poisson(rng: np.random.Generator, side: int, mean: float, clusters: bool) -> Array:
    """Counts ``(side, side)``."""
    rate = np.full((side, side), mean)
    if clusters:
        field = ndimage.gaussian_filter(rng.standard_normal((side, side)), LENGTH / np.sqrt(2), mode="wrap")
        rate *= np.exp(field / field.std() - 0.5)
    return rng.poisson(rate).astype(np.float64)


def scores(truth: Array, mean: Array, error: Array, quantiles: Array) -> Scores:
    """Scores of predictions ``(n,)`` with quantiles ``(levels, n)``."""
    levels = LEVELS[:, None]
    crps = (2 * ((truth < quantiles) - levels) * (quantiles - truth)).mean()
    off = mean - truth
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.sqrt(np.mean(np.where(off == 0, 0.0, off / error) ** 2))
    return Scores(float(crps), float(np.sqrt(np.mean(off**2))), float(mean.sum() / truth.sum()), float(z))


def filled(counts: Array, hidden: npt.NDArray[np.bool_], as_: Literal["counts", "numbers"]) -> Scores:
    """Scores of a fill."""
    raster = xr.DataArray(np.where(hidden, np.nan, counts).astype(np.float32), dims=("y", "x"), name="n")
    out = geonp.infill(raster, as_=as_, quantiles=LEVELS.tolist())
    quantiles = out["n_quantile"].transpose("quantile", "y", "x").values[:, hidden]
    return scores(counts[hidden], out["n"].values[hidden], out["n_standard_error"].values[hidden], quantiles)


def frequencies(counts: Array, hidden: npt.NDArray[np.bool_]) -> Scores:
    """Scores of the distribution of the observed counts."""
    known, n = counts[~hidden], np.count_nonzero(hidden)
    quantiles = np.quantile(known, LEVELS, method="inverted_cdf")[:, None].repeat(n, 1)
    return scores(counts[hidden], np.full(n, known.mean()), np.full(n, known.std()), quantiles)


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=96, help="number of rows and columns")
    parser.add_argument("--seeds", type=int, default=3, help="number of simulations of each case")
    arguments = parser.parse_args()
    print(
        "| mean | clusters | hidden | CRPS over numbers | over frequencies | RMSE over numbers | over frequencies "
        "| total | numbers | z | numbers |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for mean, clusters, share in CASES:
        every: dict[str, list[Scores]] = {"counts": [], "numbers": [], "frequencies": []}
        for seed in range(arguments.seeds):
            rng = np.random.default_rng(seed)
            counts = poisson(rng, arguments.side, mean, clusters)
            hidden = rng.random(counts.shape) < share
            every["counts"].append(filled(counts, hidden, "counts"))
            every["numbers"].append(filled(counts, hidden, "numbers"))
            every["frequencies"].append(frequencies(counts, hidden))
        of = {
            name: {key: float(np.mean([getattr(one, key) for one in found])) for key in ("crps", "rmse", "total", "z")}
            for name, found in every.items()
        }
        pairs = ((key, other) for key in ("crps", "rmse") for other in ("numbers", "frequencies"))
        ratios = [f"{of['counts'][key] / of[other][key]:.3f}" for key, other in pairs]
        ends = [f"{of[name][key]:.2f}" for key in ("total", "z") for name in ("counts", "numbers")]
        case = f"{mean:g}", "yes" if clusters else "no", f"{share:.0%}"
        print(f"| {' | '.join((*case, *ratios, *ends))} |", flush=True)


if __name__ == "__main__":
    main()
