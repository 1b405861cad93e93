"""Scattered measurements: cross-validation on weather stations, and speed and memory for 100,000 points.

Run as ``python benchmarks/points.py [--points 100000] [--size 1000] [--model tnpkr-sa]``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator, RBFInterpolator

import geonp
from geonp.evaluation.kriging import fit, krige
from geonp.evaluation.metrics import score
from geonp.inference.parallel import peak_bytes
from geonp.scattered.lattices import lattice

SHARED = Path(__file__).parents[2] / "shared" / "data"
STATIONS = {
    "DWD, temperature": ("stations_dwd_germany_temp.csv", "temp_c"),
    "Texas, temperature": ("stations_texas_2018-02-26.csv", "air_temperature_c"),
    "Texas, wind eastwards": ("stations_texas_2018-02-26.csv", "wind_speed_east_knots"),
    "Texas, wind northwards": ("stations_texas_2018-02-26.csv", "wind_speed_north_knots"),
}
FOLDS = 10

Array = npt.NDArray[np.float64]


def main() -> None:
    """Run both benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--points", type=int, default=100_000, help="number of points of the speed benchmark; 0 skips it"
    )
    parser.add_argument("--size", type=int, default=1000, help="rows and columns of its grid")
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    arguments = parser.parse_args()
    if SHARED.is_dir():
        stations(arguments.model)
    if arguments.points:
        many(arguments.points, arguments.size, arguments.model)


def stations(model: str) -> None:
    """Print the scores of ten-fold cross-validation on weather stations, which no model was trained on."""
    print("| stations | method | RMSE | CRPS | within 95 % interval | 50 % |\n|---|---|---:|---:|---:|---:|")
    for title, (file, column) in STATIONS.items():
        table = pd.read_csv(SHARED / file).rename(columns={"longitude": "lon", "latitude": "lat"})
        folds = np.array_split(np.random.default_rng(0).permutation(len(table)), FOLDS)
        for name, predict in {"geonp": geonp_at, "kriging": kriging_at, "thin-plate spline": spline_at}.items():
            total = None
            for fold in folds:
                known, hidden = table.drop(table.index[fold]), table.iloc[fold]
                truth = hidden[column].to_numpy(np.float64)
                mean, error, tail = predict(known, hidden, column, model)
                scores = score(truth, mean, error, np.ones(len(truth), bool), tail)
                total = scores if total is None else total + scores
            assert total is not None
            shares = f"{total.coverage(0.95):.1%} | {total.coverage(0.5):.1%}"
            print(f"| {title}: {len(table)} | {name} | {total.rmse:.3f} | {total.crps:.3f} | {shares} |")
    print()


def geonp_at(known: pd.DataFrame, hidden: pd.DataFrame, column: str, model: str) -> tuple[Array, Array, Array]:
    """Mean, standard error and tail by geonp."""
    out = geonp.interpolate(known, hidden[["lon", "lat"]], values=column, model=model, tails=True)
    mean, error, tail = (out[column + part].values for part in ("", "_standard_error", "_tail"))
    return mean, error, tail


def kriging_at(known: pd.DataFrame, hidden: pd.DataFrame, column: str, _: str) -> tuple[Array, Array, Array]:
    """Mean, standard error and tail by ordinary kriging with a covariance fitted by maximum likelihood."""
    sites, targets = plane(known, known), plane(hidden, known)
    values = known[column].to_numpy(np.float64)
    mean, error = krige(sites, values, targets, fit(sites, values, np.random.default_rng(0)))
    return mean, error, np.zeros(len(mean))


def spline_at(known: pd.DataFrame, hidden: pd.DataFrame, column: str, _: str) -> tuple[Array, Array, Array]:
    """Mean, standard error and tail by a thin-plate spline; the error is the RMSE of a hidden tenth of the points."""
    sites, values = plane(known, known), known[column].to_numpy(np.float64)
    out = np.arange(len(values)) % 10 == 0
    off = RBFInterpolator(sites[~out], values[~out], neighbors=48)(sites[out]) - values[out]
    mean = RBFInterpolator(sites, values, neighbors=48)(plane(hidden, known))
    return mean, np.full(len(mean), float(np.sqrt(np.mean(off**2)))), np.zeros(len(mean))


def plane(places: pd.DataFrame, of: pd.DataFrame) -> Array:
    """Longitudes and latitudes projected to a plane, in units of a third of the mean distance of neighbours."""
    xy = places[["lon", "lat"]].to_numpy(np.float64) * [np.cos(np.radians(of["lat"].mean())), 1.0]
    area = np.prod(np.ptp(of[["lon", "lat"]].to_numpy(np.float64), axis=0))
    return np.asarray(xy / np.sqrt(area / len(of)) * 3)


def many(n: int, size: int, model: str) -> None:
    """Print speed, memory and accuracy for points of a random field, interpolated to a grid."""
    rng = np.random.default_rng(0)
    field = waves(rng, size)
    xy = rng.uniform(0, size, (n, 2))
    table = pd.DataFrame({"x": xy[:, 0], "y": xy[:, 1], "value": field(xy) + 0.05 * rng.standard_normal(n)})
    grid = lattice((0, 0, size, size), 1)
    geonp.interpolate(table, grid[:64, :64], model=model)
    before = (peak_bytes() or 0) / 2**20
    start = time.perf_counter()
    gridded = geonp.interpolate(table, grid, model=model)
    seconds = {"geonp": time.perf_counter() - start}
    peak = (peak_bytes() or 0) / 2**20
    places = np.stack([np.tile(grid.x.values, size), np.repeat(grid.y.values, size)], 1)
    truth, means = field(places), {"geonp": gridded["value"].values.ravel()}
    part = slice(0, places.shape[0], 20)  # kriging is slow, and predicts a twentieth
    for name, make in {
        "nearest": lambda at: NearestNDInterpolator(xy, table["value"])(at),
        "linear": lambda at: LinearNDInterpolator(xy, table["value"])(at),
        "kriging": lambda at: krige(xy, table["value"].to_numpy(), at, fit(xy, table["value"].to_numpy(), rng))[0],
    }.items():
        at = places[part] if name == "kriging" else places
        start = time.perf_counter()
        means[name] = make(at)
        seconds[name] = (time.perf_counter() - start) * len(places) / len(at)
    print(f"| {n:,} measurements to {size} x {size} | time over nearest | RMSE of the field |\n|---|---:|---:|")
    for name, mean in means.items():
        off = (mean - truth[part if len(mean) < len(truth) else slice(None)]) ** 2
        print(f"| {name} | {seconds[name] / seconds['nearest']:,.1f} | {np.sqrt(np.nanmean(off)):.4f} |")
    print(
        f"\ngeonp: {len(places) / seconds['geonp']:,.0f} cells a second, peak memory {before:,.0f} to {peak:,.0f} MiB"
    )


def waves(rng: np.random.Generator, size: int) -> Callable[[Array], Array]:
    """A random field of unit variance, as a function of position: 300 plane waves with a Matern 3/2 spectrum."""
    length = 12.0
    # the spectral density of a Matern 3/2 process in the plane is a Student density with three degrees of freedom
    scale = np.sqrt(rng.chisquare(3, 300) / 3)
    frequency = rng.standard_normal((300, 2)) / scale[:, None] / length
    phase = rng.uniform(0, 2 * np.pi, 300)

    def field(xy: Array) -> Array:
        out = np.zeros(len(xy))
        for start in range(0, len(xy), 10_000):
            cut = slice(start, start + 10_000)
            out[cut] = np.cos(xy[cut] @ frequency.T + phase).sum(1) * np.sqrt(2 / 300)
        return out

    return field


if __name__ == "__main__":
    main()
