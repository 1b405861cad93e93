"""Slices with few observations, filled across time with and without the prediction of `inference/nearly_empty.py`.

Run as ``python benchmarks/nearly_empty.py [--only NDVI]``. Stacks have up to 12 slices, each with 30 % under clouds of
its own. In three slices in turn, only some random cells are left, or a strip of columns. RMSE and CRPS are of the other
cells of this slice, in its standard deviations; ratios are geometric means over the three slices.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from scipy.ndimage import gaussian_filter

from geonp.inference.student import crps

Array = npt.NDArray[np.float32]

GAPS = (("random", 0.003), ("random", 0.01), ("strip", 0.01), ("strip", 0.05))
"""What is left of a slice, and its share of the cells or columns."""


def era5(folder: Path, hours: int) -> xr.DataArray:
    """Temperature of the British Isles, every so many hours."""
    with xr.open_dataset(folder / "era5_t2m_uk_2019-03_hourly.nc") as ds:
        return ds["t2m"][(12 if hours == 24 else 0) :: hours][:12].load()


def ndvi(folder: Path) -> xr.DataArray:
    """NDVI of Slovenia, dates without clouds."""
    with xr.open_dataset(folder / "ndvi_sentinel2_slovenia_clouds_2015_2017.nc") as ds:
        return ds["ndvi"][ds["ndvi"].notnull().mean(("y", "x")).values > 0.9][:12].load()


def rain(folder: Path) -> xr.DataArray:
    """Hourly rain of the hurricane Florence."""
    with xr.open_dataset(folder / "precip_stageiv_florence_2018-09.nc") as ds:
        values = next(array for array in ds.data_vars.values() if array.ndim == 3).values[6:18]
    hours = pd.date_range("2018-09-12", periods=len(values), freq="h")
    return xr.DataArray(values, {"time": hours}, ("time", "y", "x"), "rain")


def bands(folder: Path) -> xr.DataArray:
    """Six bands of Sentinel-2."""
    with xr.open_dataset(folder / "sentinel2_6band_200x300.nc") as ds:
        return next(array for array in ds.data_vars.values() if array.ndim == 3)[:, :96, :96].load()


STACKS: dict[str, Callable[[Path], xr.DataArray]] = {
    "ERA5, 6 h": lambda folder: era5(folder, 6),
    "ERA5, 24 h": lambda folder: era5(folder, 24),
    "NDVI": ndvi,
    "rain": rain,
    "Sentinel-2": bands,
}


def kept(shape: tuple[int, int], kind: str, share: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """The cells that are left of a slice."""
    if kind == "random":
        return rng.random(shape) < share
    width = max(1, round(shape[1] * share))
    first = rng.integers(0, shape[1] - width + 1)
    return np.broadcast_to((np.arange(shape[1]) >= first) & (np.arange(shape[1]) < first + width), shape)


def scores(stack: xr.DataArray, k: int, truth: Array) -> tuple[list[float], list[float]]:
    """RMSE, CRPS and coverage of the 95 % intervals of slice `k`, without and with the prediction."""
    found = []
    for combine in (False, True):
        with nullcontext() if combine else patch("geonp.fill.region._combine_nearly_empty", lambda *_: None):
            lazy = stack.chunk({stack.dims[0]: 1}).geonp.infill(across=stack.dims[0], tails=True)
            filled = lazy.isel({stack.dims[0]: k}).compute(scheduler="synchronous")
        scored = np.isfinite(truth) & (filled[f"{stack.name}_fill_flag"].values == 1)
        mean, error, tail = (filled[f"{stack.name}{end}"].values[scored] for end in ("", "_standard_error", "_tail"))
        away, unit = mean - truth[scored], float(np.nanstd(truth))
        each = crps(truth[scored], mean, error, tail) / unit
        found.append(
            [float(np.sqrt(np.mean(away**2))) / unit, each.mean(), float(np.mean(np.abs(away) < 1.96 * error))]
        )
    return found[0], found[1]


def main() -> None:
    """Print the scores of each stack and kind of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--only", nargs="*", default=list(STACKS), choices=STACKS, help="names of stacks")
    arguments = parser.parse_args()
    print("| stack | left | cells | RMSE ratio | CRPS before | now | ratio | 95 % before | now |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in arguments.only:
        stack = STACKS[name](arguments.data).astype(np.float32).reset_coords(drop=True)
        truth, rng = stack.values, np.random.default_rng(5)
        fields = [gaussian_filter(rng.standard_normal(truth.shape[1:]), 6) for _ in truth]
        cloudy = np.where([field > np.quantile(field, 0.7) for field in fields], np.nan, truth)
        slices = np.unique(np.linspace(2, len(truth) - (3 if len(truth) > 6 else 2), 3).round().astype(int))
        for kind, share in GAPS:
            each = []
            for k in slices:
                left = kept(truth.shape[1:], kind, share, rng)
                values = cloudy.copy()
                values[k] = np.where(left, truth[k], np.nan)
                each.append(scores(stack.copy(data=values), int(k), truth[k]))
            (rmse, crps_before, held), (rmse_now, crps_now, held_now) = np.moveaxis(np.array(each), 0, -1)
            means = [float(np.exp(np.mean(np.log(part)))) for part in (rmse_now / rmse, crps_before, crps_now)]
            ratio, before, now = means
            print(
                f"| {name} | {kind} {100 * share:g} % | {int(left.sum())} | {ratio:.3f} | {before:.3f} | {now:.3f} | "
                f"{now / before:.3f} | {held.mean():.3f} | {held_now.mean():.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
