"""Whole dates hidden: filled from the other dates by geonp, and by what people use.

Run as ``python benchmarks/whole_dates.py [--seeds 3] [--only NDVI] [--cells 400]``. An eighth of the dates is hidden,
none of them the first or the last. Some cells of each are scored, the same by all methods. CRPS and RMSE are in
standard deviations of the stack, ratios are geometric means over the seeds. *Linear* has no standard errors, so that
its CRPS is its mean absolute error; *linear, errors* has the root mean square error of leaving out one date after the
other. Harmonic and Whittaker smoothing have theirs from residuals and from cross-validation. *Kriging* is local
space-time kriging by a product-sum covariance of exponential functions fitted by maximum likelihood.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.optimize import minimize
from scipy.spatial import KDTree

import geonp
from geonp.inference.student import crps, half_width
from geonp.raster.positions import periods, positions

Array = npt.NDArray[np.float64]
Moments = tuple[Array, Array]

NEIGHBOURS = 96
PATCHES, PATCH_CELLS = 8, 130
DAY = 86_400e6


def ndvi(folder: Path) -> xr.DataArray:
    """NDVI of Slovenia, cloudy cells missing, without dates that are nearly empty."""
    with xr.open_dataset(folder / "ndvi_sentinel2_slovenia_clouds_2015_2017.nc") as ds:
        array = ds["ndvi"].where(ds["cloud_mask"] == 0).astype(np.float32).load()
    return array[np.isfinite(array).sum(("y", "x")).values >= 1000]


def era5(folder: Path) -> xr.DataArray:
    """Temperature of the British Isles, every sixth hour of ten days."""
    with xr.open_dataset(folder / "era5_t2m_uk_2019-03_hourly.nc") as ds:
        return ds["t2m"][:240:6].astype(np.float32).load()


STACKS: dict[str, Callable[[Path], xr.DataArray]] = {"NDVI": ndvi, "ERA5 UK": era5}


def linear(times: Array, series: Array, at: Array) -> Moments:
    """Linear between the nearest dates that observe a cell; the error is that of leaving out one date."""
    mean = np.empty((len(at), series.shape[1]))
    squares = []
    for cell, values in enumerate(series.T):
        t, z = times[np.isfinite(values)], values[np.isfinite(values)]
        mean[:, cell] = np.interp(at, t, z)
        weight = (t[1:-1] - t[:-2]) / np.maximum(t[2:] - t[:-2], 1e-9)
        squares.append((z[1:-1] - (1 - weight) * z[:-2] - weight * z[2:]) ** 2)
    return mean, np.full_like(mean, np.sqrt(np.concatenate(squares).mean()))


def harmonic(times: Array, series: Array, at: Array, period: float) -> Moments:
    """Two harmonics of the year or the day, by least squares in each cell."""
    design, there = (_harmonics(t, period) for t in (times, at))
    mean, left, free = np.empty((len(at), series.shape[1])), 0.0, 0
    for cell, values in enumerate(series.T):
        known = np.isfinite(values)
        slopes = np.linalg.lstsq(design[known], values[known])[0]
        mean[:, cell] = there @ slopes
        left += float(np.sum((values[known] - design[known] @ slopes) ** 2))
        free += max(int(known.sum()) - design.shape[1], 0)
    return mean, np.full_like(mean, np.sqrt(left / free))


def _harmonics(times: Array, period: float) -> Array:
    angles = 2 * np.pi / period * np.outer(times, [1, 2])
    return np.column_stack([np.ones_like(times), np.cos(angles), np.sin(angles)])


def whittaker(times: Array, series: Array, at: Array) -> Moments:
    """Second differences penalised on a grid of the shortest step (Eilers 2003), by leave-one-out cross-validation."""
    step = np.diff(np.unique(times))
    step = step[step > 0.02 * np.median(step)].min()
    first = min(times.min(), at.min())
    where, there = (np.round((t - first) / step).astype(int) for t in (times, at))
    size = max(where.max(), there.max()) + 1
    differences = np.diff(np.eye(size), 2, axis=0)
    penalty = differences.T @ differences

    def smoothed(strength: float, cells: Array) -> tuple[Array, float]:
        mean, squares = np.empty((len(at), cells.shape[1])), []
        for cell, values in enumerate(cells.T):
            known = np.isfinite(values)
            place = where[known]
            weights = np.bincount(place, minlength=size)
            inverse = np.linalg.inv(np.diag(weights.astype(float)) + strength * penalty)
            fit = inverse @ np.bincount(place, values[known], size)
            mean[:, cell] = fit[there]
            squares.append(((values[known] - fit[place]) / (1 - inverse[place, place])) ** 2)
        return mean, float(np.sqrt(np.concatenate(squares).mean()))

    strength = min(10.0 ** np.arange(-2, 6), key=lambda one: smoothed(one, series[:, ::20])[1])
    mean, error = smoothed(strength, series)
    return mean, np.full_like(mean, error)


def kriging(times: Array, values: Array, at: Array, cells: list[Array], rng: np.random.Generator) -> list[Moments]:
    """:func:`kriging_at` from the known cells of some dates; `cells` are the places ``(n, 2)`` of each date in `at`."""
    date, *place = np.nonzero(np.isfinite(values))
    sites, known = np.column_stack(place).astype(float), values[date, place[0], place[1]]
    sizes = [len(places) for places in cells]
    mean, error = kriging_at(sites, times[date], known, np.concatenate(cells), np.repeat(at, sizes), rng)
    ends = np.cumsum(sizes)[:-1]
    return list(zip(np.split(mean, ends), np.split(error, ends), strict=True))


def kriging_at(sites: Array, when: Array, known: Array, targets: Array, at: Array, rng: np.random.Generator) -> Moments:
    """Ordinary kriging of targets ``(m, 2)`` at times ``(m,)`` from the nearest observations in space and time."""
    logs, variance = _product_sum(sites, when, known, float(np.median(np.diff(np.unique(when)))), rng)
    stretch = np.exp(logs[0] - logs[1])
    tree = KDTree(np.column_stack([sites, when * stretch]))
    found = []
    for part in np.array_split(np.arange(len(targets)), -(-len(targets) // 500)):
        _, index = tree.query(np.column_stack([targets[part], at[part] * stretch]), k=NEIGHBOURS)
        near, then = sites[index], when[index]
        lags = np.linalg.norm(near[:, :, None] - near[:, None], axis=-1), np.abs(then[:, :, None] - then[:, None])
        system = np.ones((len(part), NEIGHBOURS + 1, NEIGHBOURS + 1))
        system[:, :-1, :-1] = _covariance(logs, *lags) + (np.exp(logs[2]) + 1e-8) * np.eye(NEIGHBOURS)
        system[:, -1, -1] = 0
        right = np.ones((len(part), NEIGHBOURS + 1))
        apart = np.linalg.norm(near - targets[part][:, None], axis=-1), np.abs(then - at[part][:, None])
        right[:, :-1] = _covariance(logs, *apart)
        weights = np.linalg.solve(system, right[..., None])[..., 0]
        left = np.maximum(1 + np.exp(logs[2]) - (weights * right).sum(1), 0)
        found.append(((weights[:, :-1] * known[index]).sum(1), np.sqrt(variance * left)))
    mean, error = (np.concatenate(part) for part in zip(*found, strict=True))
    return mean, error


def _covariance(logs: Array, distance: Array, lag: Array) -> Array:
    """Product-sum of exponential functions, of variance 1: ``logs`` of two lengths, the noise and two odds."""
    space, time = np.exp(-distance / np.exp(logs[0])), np.exp(-lag / np.exp(logs[1]))
    odds = np.exp(np.clip(logs[3:5], -8, 8))
    own, other = odds / (1 + odds.sum())
    return own * space + other * time + (1 - own - other) * space * time


def _product_sum(sites: Array, when: Array, known: Array, step: float, rng: np.random.Generator) -> tuple[Array, float]:
    """Parameters of greatest likelihood over some patches in space and time, and the variance."""
    patches = []
    for _ in range(PATCHES):
        centre = rng.integers(len(known))
        reach = rng.choice([3, 8, 20])
        near = np.abs(when - when[centre]) <= 5 * step
        near &= np.abs(sites - sites[centre]).max(1) <= reach
        chosen = np.flatnonzero(near)
        patches.append(rng.choice(chosen, min(PATCH_CELLS, len(chosen)), replace=False))

    def deviance(logs: Array) -> tuple[float, float]:
        logs = np.clip(logs, [-2, np.log(step) - 5, -12, -8, -8], [7, np.log(step) + 6, 1, 8, 8])
        quadratic, log_determinant, n = 0.0, 0.0, 0
        for patch in patches:
            lags = (
                np.linalg.norm(sites[patch][:, None] - sites[patch], axis=-1),
                np.abs(when[patch][:, None] - when[patch]),
            )
            factor = np.linalg.cholesky(_covariance(logs, *lags) + (np.exp(logs[2]) + 1e-8) * np.eye(len(patch)))
            white, ones = np.linalg.solve(
                factor, np.stack([known[patch] - known[patch].mean(), np.ones(len(patch))], 1)
            ).T
            white = white - ones * (white @ ones) / (ones @ ones)
            quadratic, n = quadratic + float(white @ white), n + len(patch)
            log_determinant += 2 * float(np.log(np.diag(factor)).sum())
        return log_determinant + n * np.log(quadratic / n), quadratic / n

    start = np.array([2.3, np.log(3 * step), -4, 0, 0])
    best = minimize(lambda logs: deviance(logs)[0], start, method="Nelder-Mead", options={"maxiter": 150, "fatol": 0.5})
    return best.x, deviance(best.x)[1]


def scores(truth: Array, mean: Array, error: Array, tail: Array | float = 0.0) -> tuple[float, float, float]:
    """CRPS, RMSE and coverage of the 95 % interval."""
    tails = np.broadcast_to(tail, mean.shape)
    inside = np.abs(truth - mean) <= half_width(error, tails, 0.95)
    return (
        float(crps(truth, mean, error, tails).mean()),
        float(np.sqrt(np.mean((truth - mean) ** 2))),
        float(inside.mean()),
    )


def compared(array: xr.DataArray, seed: int, n_cells: int) -> dict[str, tuple[float, float, float]]:
    """Scores of all methods for one choice of dates."""
    rng = np.random.default_rng(seed)
    n = array.sizes["time"]
    dates = np.sort(rng.choice(np.arange(1, n - 1), round(n / 8), replace=False))
    values = array.values.astype(float)
    hidden = values.copy()
    hidden[dates] = np.nan
    times = np.array(positions(array, "time")) / DAY
    kept = np.setdiff1d(np.arange(n), dates)
    period = (periods(array, "time") or (365.25 * DAY,))[0] / DAY
    every = [np.argwhere(np.isfinite(values[k])) for k in dates]
    cells = [found[rng.choice(len(found), min(n_cells, len(found)), replace=False)] for found in every]
    truth = np.concatenate([values[k][tuple(places.T)] for k, places in zip(dates, cells, strict=True)])
    lazy = geonp.infill(
        array.copy(data=hidden.astype(np.float32)).chunk({"time": 1}), across="time", empty_slices=True, tails=True
    )
    filled = lazy.isel(time=dates).compute()

    def of(name: str) -> Array:
        parts = filled[f"{array.name}{name}"].values.astype(float)
        return np.concatenate([part[tuple(places.T)] for part, places in zip(parts, cells, strict=True)])

    found = {"geonp": scores(truth, of(""), of("_standard_error"), of("_tail"))}
    moments: dict[str, list[Moments]] = {"linear": [], "linear, errors": [], "harmonic": [], "Whittaker": []}
    for k, places in zip(dates, cells, strict=True):
        series, at = hidden[kept][:, *places.T], times[[k]]
        mean, error = (part[0] for part in linear(times[kept], series, at))
        moments["linear"].append((mean, np.full_like(error, 1e-9)))
        moments["linear, errors"].append((mean, error))
        moments["harmonic"].append(tuple(part[0] for part in harmonic(times[kept], series, at, period)))  # type: ignore[arg-type]
        moments["Whittaker"].append(tuple(part[0] for part in whittaker(times[kept], series, at)))  # type: ignore[arg-type]
    moments["kriging"] = kriging(times[kept], hidden[kept], times[dates], cells, rng)
    for method, parts in moments.items():
        found[method] = scores(truth, *(np.concatenate(part) for part in zip(*parts, strict=True)))
    spread = float(np.nanstd(values))
    return {method: (score / spread, rmse / spread, inside) for method, (score, rmse, inside) in found.items()}


def main() -> None:
    """Print a table of all stacks and methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--seeds", type=int, default=3, help="choices of dates")
    parser.add_argument("--cells", type=int, default=400, help="cells of each date that are scored")
    parser.add_argument("--only", nargs="*", default=list(STACKS), choices=STACKS, help="names of stacks")
    arguments = parser.parse_args()
    print("\n| stack | method | CRPS | RMSE | 95 % | geonp's CRPS / this |")
    print("|---|---|---:|---:|---:|---:|")
    for name in arguments.only:
        array = STACKS[name](arguments.data)
        found = [compared(array, seed, arguments.cells) for seed in range(arguments.seeds)]
        for method in found[0]:
            mean = np.mean([one[method] for one in found], 0)
            ratio = np.exp(np.mean([np.log(one["geonp"][0] / one[method][0]) for one in found]))
            print(f"| {name} | {method} | {mean[0]:.3f} | {mean[1]:.3f} | {mean[2]:.3f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
