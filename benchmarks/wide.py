"""Wide gaps: holes of 90 to 300 cells in complete rasters, scored by distance from the nearest observation.

Run as ``python benchmarks/wide.py [--only sst gridmet ...] [--places 2]``. Beside geonp stand the same weights without
block means (:mod:`geonp.inference.far`), linear interpolation, and ordinary kriging with the nearest six observations
of each octant. A hole lies where nearly all cells are observed; the places are drawn, not chosen.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import accuracy
import numpy as np
import numpy.typing as npt
import xarray as xr
from accuracy import file_field, geometric
from matplotlib.cbook import get_sample_data
from scipy import ndimage
from scipy.interpolate import LinearNDInterpolator

import geonp
from geonp.evaluation.kriging import Matern, fit
from geonp.inference import checkpoint, student

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

CLASSES = ((1, 4), (4, 12), (12, 32), (32, 64), (64, 999))
"""Distances from the nearest observation, in cells: above the first, at most the second."""
SAMPLE = 120
"""Cells scored in each class."""
REACH = 460
"""Cells around a hole that are read."""
RING = 90
"""Width of the ring of observations that the classical methods read."""


def jacksboro(folder: Path) -> npt.NDArray[np.float32]:
    """Terrain that matplotlib ships."""
    with np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as file:
        return np.asarray(file["elevation"], np.float32)


RASTERS: dict[str, tuple[Callable[[Path], npt.NDArray[np.float32]], tuple[int, int]]] = {
    "sst": (file_field("sst_ostia_global_0p25_2017-06-05_07.nc", "analysed_sst", time=1), (130, 250)),
    "gridmet": (file_field("tmax_gridmet_conus_2019-01-21.nc", "air_temperature"), (130, 200)),
    "orography": (file_field("era5_geopotential_global_0p25.nc", "geopotential"), (150, 300)),
    "oetztal": (file_field("dem_oetztal_srtm_3arcsec.tif", "dem_oetztal_srtm_3arcsec"), (90, 160)),
    "jacksboro": (jacksboro, (90, 140)),
    "chlorophyll": (file_field("chlorophyll_olci_northsea_2017.nc", "conc_chl", time=3), (90, 110)),
    "heaton": (file_field("heaton2018_simulated.nc", "temp_full"), (90, 130)),
}
"""Functions that read the rasters, and the sides of the two holes."""


def place(truth: npt.NDArray[np.float32], side: int, rng: np.random.Generator) -> tuple[int, int] | None:
    """First row and column of a hole in which, and around which, nearly all cells are observed."""
    known = np.pad(np.isfinite(truth).astype(np.int64), ((1, 0), (1, 0))).cumsum(0).cumsum(1)

    def share(row: int, col: int, n: int) -> float:
        return float(known[row + n, col + n] - known[row, col + n] - known[row + n, col] + known[row, col]) / n**2

    frame = 30
    corners = [
        (row, col)
        for row in range(frame, truth.shape[0] - side - frame, 10)
        for col in range(frame, truth.shape[1] - side - frame, 10)
        if share(row, col, side) > 0.97 and share(row - frame, col - frame, side + 2 * frame) > 0.9
    ]
    return corners[rng.integers(len(corners))] if corners else None


def without_blocks(folder: str) -> str:
    """A checkpoint of the shipped weights that reads no block means."""
    network, card = checkpoint.load_model("tnpkr-sa")
    file = Path(folder) / "alone.safetensors"
    about = card.model_dump(include={"architecture", "config", "training", "scores", "version", "description"})
    checkpoint.save(network, file, name="alone", neighbourhood=replace(card.neighbourhood, far=()), **about)
    return str(file)


def octants(sites: Array, known: Array, targets: Array, model: Matern) -> tuple[Array, Array]:
    """Ordinary kriging from the nearest six sites of each octant: mean and standard error of new measurements."""
    mean, error = np.empty(len(targets)), np.empty(len(targets))
    for i, target in enumerate(targets):
        apart = sites - target
        octant = np.floor((np.arctan2(apart[:, 0], apart[:, 1]) + np.pi) / (np.pi / 4)).astype(int) % 8
        distance = np.hypot(*apart.T)
        order = np.argsort(distance, kind="stable")
        near = np.concatenate([order[octant[order] == k][:6] for k in range(8)])
        lag = np.hypot(*(sites[near, None] - sites[near]).T)
        n = len(near)
        system, right = np.ones((n + 1, n + 1)), np.ones(n + 1)
        system[:n, :n] = model.correlation(lag) + (model.nugget + 1e-8) * np.eye(n)
        system[n, n], right[:n] = 0, model.correlation(distance[near])
        weights = np.linalg.solve(system, right)
        mean[i] = weights[:n] @ known[near]
        error[i] = np.sqrt(model.variance * max(1 + model.nugget - weights @ right, 1e-12))
    return mean, error


def scores(truth: Array, mean: Array, error: Array, tail: Array) -> tuple[float, float, float]:
    """Mean CRPS, root mean square error, and the share of 95 % intervals that hold the truth."""
    crps = student.crps(truth, mean, error, tail)
    covered = np.abs(truth - mean) <= student.half_width(error, tail, 0.95)
    return float(crps.mean()), float(np.sqrt(np.mean((truth - mean) ** 2))), float(covered.mean())


def hole(
    truth: npt.NDArray[np.float32], corner: tuple[int, int], side: int, alone: str
) -> tuple[list[dict[str, tuple[float, float, float]] | None], dict[str, float]]:
    """Scores of each method in each class of distance, and CPU seconds of both fills."""
    (row, col), (height, width) = corner, truth.shape
    top, left = max(row - REACH, 0), max(col - REACH, 0)
    truth = truth[top : min(row + side + REACH, height), left : min(col + side + REACH, width)]
    inside: BoolArray = np.zeros(truth.shape, bool)
    inside[row - top : row - top + side, col - left : col - left + side] = True
    values, domain = np.where(inside, np.nan, truth), np.isfinite(truth)
    distance = ndimage.distance_transform_edt(inside | ~domain)
    rng, spread, seconds = np.random.default_rng(side), float(np.nanstd(truth)), {}
    fills = {}
    for name, model in (("geonp", "tnpkr-sa"), ("alone", alone)):
        begin = time.perf_counter()
        filled = geonp.infill(
            xr.DataArray(values, dims=("y", "x"), name="v"),
            model=model,
            mask=xr.DataArray(domain, dims=("y", "x")),
            tails=True,
        )
        seconds[name] = time.perf_counter() - begin
        fills[name] = np.stack([filled[f"v{end}"].values for end in ("", "_standard_error", "_tail")]).astype(float)
    around = ndimage.binary_dilation(inside, iterations=RING) & np.isfinite(values)
    sites = np.argwhere(around).astype(float)
    known = values[around].astype(float)
    covariance = fit(sites, known, rng)
    thin = rng.permutation(len(sites))[:20000]
    linear = LinearNDInterpolator(sites[thin], known[thin])
    found: list[dict[str, tuple[float, float, float]] | None] = []
    for low, high in CLASSES:
        filled_mask = np.isfinite([fill[0] for fill in fills.values()]).all(0)
        cells = np.argwhere(inside & domain & filled_mask & (distance > low) & (distance <= high))
        if len(cells) < 20:
            found.append(None)
            continue
        cells = cells[rng.permutation(len(cells))[:SAMPLE]]
        at, targets = tuple(cells.T), cells.astype(float)
        true, none = truth[at].astype(float), np.zeros(len(cells))
        each = {name: scores(true, *fill[(slice(None), *at)]) for name, fill in fills.items()}
        each["octants"] = scores(true, *octants(sites, known, targets, covariance), none)
        straight = np.nan_to_num(linear(targets), nan=float(known.mean()))
        each["linear"] = scores(true, straight, np.full(len(cells), 1e-9), none)
        found.append({name: (crps / spread, rmse / spread, cover) for name, (crps, rmse, cover) in each.items()})
    return found, seconds


def main() -> None:
    """Print the scores of each hole and their geometric means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="*", default=list(RASTERS))
    parser.add_argument("--places", type=int, default=2)
    args = parser.parse_args()
    accuracy.SIDE = 10**6
    every: list[list[dict[str, tuple[float, float, float]]]] = [[] for _ in CLASSES]
    with tempfile.TemporaryDirectory() as folder:
        alone = without_blocks(folder)
        for name in args.only:
            read, sides = RASTERS[name]
            try:
                truth = read(args.data)
            except (OSError, KeyError, geonp.errors.GeonpError) as error:
                print(f"{name}: skipped ({error})")
                continue
            for number in range(args.places):
                side = sides[number % 2]
                corner = place(truth, side, np.random.default_rng([side, number]))
                if corner is None:
                    print(f"{name}: no place for a hole of {side} cells")
                    continue
                found, seconds = hole(truth, corner, side, alone)
                print(
                    f"{name}, {side} cells at {corner}; time {seconds['geonp'] / seconds['alone']:.2f} without blocks"
                )
                for (low, high), each, kept in zip(CLASSES, found, every, strict=True):
                    if each is not None:
                        kept.append(each)
                        text = "; ".join(f"{who} {c:.3f} {r:.3f} {p:.2f}" for who, (c, r, p) in each.items())
                        print(f"  {low}-{high}: {text}", flush=True)
    print("\nCRPS relative to no blocks; RMSE to the better of linear and octants; coverage, lowest")
    for (low, high), kept in zip(CLASSES, every, strict=True):
        if kept:
            crps = geometric([each["geonp"][0] / each["alone"][0] for each in kept])
            rmse = [each["geonp"][1] / min(each["linear"][1], each["octants"][1]) for each in kept]
            cover = [each["geonp"][2] for each in kept]
            print(
                f"{low}-{high}: {crps:.3f}; {geometric(rmse):.3f}, worst {max(rmse):.2f}; "
                f"{np.mean(cover):.3f}, {min(cover):.2f} (without blocks "
                f"{np.mean([each['alone'][2] for each in kept]):.3f}, {min(each['alone'][2] for each in kept):.2f})"
            )


if __name__ == "__main__":
    main()
