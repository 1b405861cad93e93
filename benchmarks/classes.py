"""Classes filled without a model of classes: log loss, accuracy and reliability beside simple methods.

Run as ``python benchmarks/classes.py [--side 128] [--seeds 3] [--classes 5] [--only NAME ...]``. Class maps are a land
cover and fields cut at their quantiles. Numbers are means over the seeds of the gaps.

* *nearest*: the class of the nearest observation. Its probability is the share that makes the log loss of the hidden
  cells smallest, which no user knows; the rest goes to the frequencies of the classes.
* *majority*: the class that most of the eight nearest observations have. Their shares, smoothed by one observation with
  the frequencies of the classes, are the probabilities.

Reliability is the largest difference between the mean probability and the frequency of classes, among the tenths of
probability with at least 200 pairs of cells and classes in all seeds: of all classes, and of the most probable one.
Gaps of one map are few, so it is also given for all maps together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import accuracy
import numpy as np
import numpy.typing as npt
import xarray as xr
from accuracy import Field, geometric
from scipy.spatial import cKDTree

import geonp
from geonp.evaluation.holdout import hide_simulated
from geonp.io.files import open_raster

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
GAPS = (("random", 0.9), ("clouds", 0.4))
NEIGHBOURS = 8
ENOUGH = 200


@dataclass(frozen=True)
class Forecast:
    """Probabilities of hidden cells, ``(classes, n)``, and the number of the class that each of them has, ``(n,)``."""

    probability: Array
    truth: Index

    def log_loss(self) -> float:
        """Mean negative log probability of the true class."""
        return float(-np.log(self.probability[self.truth, np.arange(self.truth.size)]).mean())

    def accuracy(self) -> float:
        """Share of cells whose most probable class is the true one."""
        return float((self.probability.argmax(0) == self.truth).mean())


def land_cover(folder: Path) -> Field:
    """Land cover beside the NDVI of Slovenia, 101 x 100 cells of six classes."""
    name = "ndvi_sentinel2_slovenia_clouds_2015_2017.nc"
    return np.asarray(open_raster(folder / name, variables=["landcover"])["landcover"].values, np.float32)


def cut(read: Callable[[Path], Field], classes: int) -> Callable[[Path], Field]:
    """Function that reads a field, cut into so many classes of the same size."""

    def read_classes(folder: Path) -> Field:
        field = read(folder)
        known = field[np.isfinite(field)]
        inner = np.quantile(known, np.arange(1, classes) / classes)
        return np.where(np.isfinite(field), np.digitize(field, inner), np.nan).astype(np.float32)

    return read_classes


def maps(classes: int) -> dict[str, Callable[[Path], Field]]:
    """The class maps by name."""
    fields = ("SST OSTIA", "DEM Oetztal", "DEM Jacksboro")
    return {"land cover": land_cover, **{name: cut(accuracy.FIELDS[name], classes) for name in fields}}


def filled(values: Field, hidden: npt.NDArray[np.bool_]) -> Array:
    """Probabilities of each observed class in the hidden cells."""
    raster = xr.DataArray(values, dims=("y", "x"), name="c")
    out = geonp.infill(raster, as_="classes", class_probabilities=True)
    assert set(np.unique(out["c"])) <= set(np.unique(values[np.isfinite(values)]))
    return out["c_class_probability"].values[:, hidden].astype(np.float64)


def simple(values: Field, hidden: npt.NDArray[np.bool_], truth: Index, number: Index) -> dict[str, Forecast]:
    """Forecasts by the nearest observation and by the majority of several."""
    n = int(number.max()) + 1
    frequency = np.bincount(number, minlength=n)[:, None] / number.size
    _, near = cKDTree(np.argwhere(np.isfinite(values))).query(np.argwhere(hidden), k=NEIGHBOURS)
    ones = np.eye(n)[number[near]]
    nearest = [Forecast((1 - rest) * ones[:, 0].T + rest * frequency, truth) for rest in np.linspace(0.01, 0.99, 99)]
    majority = Forecast((ones.sum(1).T + frequency) / (NEIGHBOURS + 1), truth)
    return {"nearest": min(nearest, key=Forecast.log_loss), "majority": majority}


def reliability(forecasts: list[Forecast], *, best: bool) -> float:
    """Largest difference between probabilities and frequencies, of all classes or of the most probable one."""
    pairs = []
    for forecast in forecasts:
        hit = np.arange(len(forecast.probability))[:, None] == forecast.truth
        top = forecast.probability.argmax(0), np.arange(forecast.truth.size)
        pairs.append((forecast.probability[top], hit[top]) if best else (forecast.probability.ravel(), hit.ravel()))
    probability, hit = (np.concatenate(part) for part in zip(*pairs, strict=True))
    tenth = np.minimum((10 * probability).astype(int), 9)
    parts = [tenth == k for k in range(10) if np.count_nonzero(tenth == k) >= ENOUGH]
    return max(abs(float(probability[part].mean() - hit[part].mean())) for part in parts)


def main() -> None:
    """Print a row for each class map and kind of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--side", type=int, default=128, help="largest number of rows and columns of a cut")
    parser.add_argument("--seeds", type=int, default=3, help="number of simulations of each kind of gaps")
    parser.add_argument("--classes", type=int, default=5, help="classes that fields are cut into")
    parser.add_argument("--only", nargs="*", default=None, help="names of class maps")
    arguments = parser.parse_args()
    accuracy.SIDE = arguments.side
    print(
        "| class map | gaps | log loss | of nearest | of majority | accuracy | nearest | majority | reliability: all "
        "| best | s |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    ratios, every = [], dict[str, list[Forecast]]()
    for name, read in maps(arguments.classes).items():
        if arguments.only and name not in arguments.only:
            continue
        field = read(arguments.data)
        for kind, fraction in GAPS:
            found: dict[str, list[Forecast]] = {"geonp": [], "nearest": [], "majority": []}
            seconds = 0.0
            for seed in range(arguments.seeds):
                test = hide_simulated(field, kind, fraction, np.random.default_rng(seed))
                observed = np.isfinite(test.values)
                classes, number = np.unique(test.values[observed], return_inverse=True)
                hidden = test.hidden & np.isin(test.truth, classes)
                truth = np.searchsorted(classes, test.truth[hidden])
                start = time.perf_counter()
                found["geonp"].append(Forecast(filled(test.values, hidden), truth))
                seconds += time.perf_counter() - start
                for method, forecast in simple(test.values, hidden, truth, number).items():
                    found[method].append(forecast)
            loss, right = (
                {method: float(np.mean([score(f) for f in forecasts])) for method, forecasts in found.items()}
                for score in (Forecast.log_loss, Forecast.accuracy)
            )
            ratios.append(loss["geonp"] / loss["nearest"])
            every.setdefault(kind, []).extend(found["geonp"])
            print(
                f"| {name} | {kind} {fraction:.0%} | {loss['geonp']:.3f} | {ratios[-1]:.3f} "
                f"| {loss['geonp'] / loss['majority']:.3f} | {right['geonp']:.4f} | {right['nearest']:.4f} "
                f"| {right['majority']:.4f} | {reliability(found['geonp'], best=False):.3f} "
                f"| {reliability(found['geonp'], best=True):.3f} | {seconds / arguments.seeds:.1f} |",
                flush=True,
            )
    print(f"\nLog loss relative to nearest, geometric mean: {geometric(ratios):.3f}")
    for kind, forecasts in every.items():
        both = (reliability(forecasts, best=best) for best in (False, True))
        print(f"Reliability, {kind}, all maps together: {' '.join(f'{value:.3f}' for value in both)}")


if __name__ == "__main__":
    main()
