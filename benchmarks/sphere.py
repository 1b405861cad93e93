"""Rasters on the round Earth: global grids up to the poles, and grids with two-dimensional coordinates.

Run as ``python benchmarks/sphere.py [--seeds 3] [--only oisst ostia nemo stageiv roll]``. Gaps have the same size in km
at all latitudes. Kriging and `interpolate` see the cells as places on the sphere. Scores are of hidden cells.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

import geonp
from geonp.evaluation.kriging import fit, krige
from geonp.evaluation.metrics import Scores, score

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Filled = tuple[Array, Array, Array]
RADIUS_KM = 6371.0
CELLS = 40_000
"""Most observed cells that kriging and `interpolate` read: the nearest to the hidden ones."""


def embedded(lat: Array, lon: Array) -> Array:
    """Places on the sphere as points in space, in km."""
    lat, lon = np.radians(lat), np.radians(lon)
    return RADIUS_KM * np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)


def clouds(places: Array, km: float, share: float, rng: np.random.Generator) -> Mask:
    """Gaps of about `km`: where a sum of random waves in space is highest."""
    total = np.zeros(places.shape[:-1])
    for _ in range(200):
        total += np.cos(places @ (rng.standard_normal(3) * 2 / km) + rng.uniform(0, 2 * np.pi))
    return np.asarray(total > np.quantile(total, 1 - share))


def by_geonp(raster: xr.DataArray, hidden: Mask, lat: Array, lon: Array) -> Filled:
    """The raster filled by geonp."""
    found = geonp.infill(raster, tails=True)
    mean, error, tail = (found[f"{raster.name}{ending}"].values for ending in ("", "_standard_error", "_tail"))
    return mean[hidden], error[hidden], tail[hidden]


def by_interpolate(raster: xr.DataArray, hidden: Mask, lat: Array, lon: Array) -> Filled:
    """The observed cells as scattered measurements."""
    seen = np.isfinite(raster.values)
    table = pd.DataFrame({"lon": lon[seen], "lat": lat[seen], "v": raster.values[seen].astype(float)})
    at = pd.DataFrame({"lon": lon[hidden], "lat": lat[hidden]})
    found = geonp.interpolate(table, at, values="v", tails=True)
    return found["v"].values, found["v_standard_error"].values, found["v_tail"].values


def by_kriging(raster: xr.DataArray, hidden: Mask, lat: Array, lon: Array) -> Filled:
    """Local kriging with the 48 nearest cells by distances in space, fitted by maximum likelihood."""
    seen, places = np.isfinite(raster.values), embedded(lat, lon)
    unit = float(np.median(np.linalg.norm(np.diff(places, axis=0), axis=-1)))
    sites, known = places[seen] / unit, raster.values[seen].astype(float)
    model = fit(sites, known, np.random.default_rng(1))
    mean, error = krige(sites, known, places[hidden] / unit, model)
    return mean, error, np.zeros_like(mean)


METHODS: dict[str, Callable[[xr.DataArray, Mask, Array, Array], Filled]] = {
    "geonp": by_geonp,
    "interpolate": by_interpolate,
    "kriging": by_kriging,
}


def oisst(folder: Path) -> Iterator[tuple[str, xr.DataArray]]:
    """The whole Earth, 2 degrees."""
    with xr.open_dataset(folder / "sst_oisst_global_2deg_1981-12-31.nc", engine="netcdf4") as ds:
        yield "OISST", ds["sst"].load()


def ostia(folder: Path) -> Iterator[tuple[str, xr.DataArray]]:
    """0.25 degrees, the north and a part of the tropics."""
    with xr.open_dataset(folder / "sst_ostia_global_0p25_2017-06-05_07.nc", engine="netcdf4") as ds:
        sst = ds["analysed_sst"].isel(time=0)
        yield "OSTIA north", sst.sel(lat=slice(60, 90)).load().drop_vars("time")
        yield "OSTIA tropics", sst.sel(lat=slice(-10, 10), lon=slice(180, 280)).load().drop_vars("time")


def nemo(folder: Path) -> Iterator[tuple[str, xr.DataArray]]:
    """A tripolar grid of an ocean model."""
    with xr.open_dataset(folder / "sst_nemo_orca1_curvilinear_2015-01.nc", engine="netcdf4") as ds:
        yield "NEMO", ds["tos"].load()


def stageiv(folder: Path) -> Iterator[tuple[str, xr.DataArray]]:
    """Rain on a polar stereographic grid, at one hour."""
    with xr.open_dataset(folder / "precip_stageiv_florence_2018-09.nc", engine="netcdf4") as ds:
        yield "Stage IV", ds["precip"].isel(time=10).load().drop_vars("time")


FIELDS = {"oisst": (oisst, 700.0), "ostia": (ostia, 120.0), "nemo": (nemo, 400.0), "stageiv": (stageiv, 25.0)}
"""Rasters, and the size of gaps in km."""


def coordinates(raster: xr.DataArray) -> tuple[Array, Array]:
    """Latitude and longitude of each cell."""
    lat, lon = (next(c for name, c in raster.coords.items() if part in str(name)) for part in ("lat", "lon"))
    lat, lon = xr.broadcast(lat, lon)
    return np.asarray(lat.values, float), np.asarray(lon.values, float)


def bands(lat: Array) -> dict[str, Mask]:
    """Cells by latitude."""
    size = np.abs(lat)
    found = {"all": size < 91, "north of 65": lat > 65, "north of 80": lat > 80, "20 to 65": (size >= 20) & (size < 65)}
    found |= {"south of -65": lat < -65, "tropics": size < 20}
    return {name: mask for name, mask in found.items() if mask.any() and (name == "all" or not mask.all())}


def compare(name: str, seeds: int, folder: Path, methods: list[str]) -> None:
    """Print a row for each raster, kind of gaps, band of latitudes and method."""
    field, km = FIELDS[name]
    for label, raster in field(folder):
        lat, lon = coordinates(raster)
        for kind, share in (("clouds", 0.4), ("random", 0.8)):
            total: dict[tuple[str, str], Scores] = {}
            seconds = dict.fromkeys(methods, 0.0)
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                gaps = rng.random(lat.shape) < share
                if kind == "clouds":
                    gaps = clouds(embedded(lat, lon), km, share, rng)
                hidden = gaps & np.isfinite(raster.values)
                left = raster.where(~gaps)
                for method in methods:
                    start = time.perf_counter()
                    filled = METHODS[method](left, hidden, lat, lon)
                    seconds[method] += time.perf_counter() - start
                    for band, mask in bands(lat).items():
                        there = mask[hidden]
                        there &= np.isfinite(filled[0])
                        truth = raster.values[hidden].astype(float)
                        one = score(truth[there], *(part[there] for part in filled[:2]), tail=filled[2][there])
                        total[band, method] = total.get((band, method), Scores()) + one
            for band in bands(lat):
                base = total[band, methods[-1]]
                for method in methods:
                    one = total[band, method]
                    if one.cells:
                        print(
                            f"| {label} | {kind} {share:.0%} | {band} | {method} | {one.cells} | {one.rmse:.4f} | "
                            f"{one.crps:.4f} | {one.crps / base.crps:.3f} | {one.coverage(0.95):.3f} | "
                            f"{seconds[method]:.0f} s |",
                            flush=True,
                        )


def roll(folder: Path) -> None:
    """Print how far the fill of a rolled raster is from the rolled fill."""
    ((_, raster),) = oisst(folder)
    gaps = clouds(embedded(*coordinates(raster)), 700.0, 0.4, np.random.default_rng(0))
    left = raster.where(~gaps)
    whole = geonp.infill(left)
    for columns in (1, 37):
        other = geonp.infill(left.roll(lon=columns, roll_coords=True)).roll(lon=-columns, roll_coords=True)
        apart = {name: float(np.abs(whole[name] - other[name]).max()) for name in ("sst", "sst_standard_error")}
        print(f"rolled by {columns} columns: largest difference {apart}", flush=True)


def main() -> None:
    """Run the chosen comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[*FIELDS, "roll"])
    parser.add_argument("--methods", nargs="+", default=[*METHODS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    print(
        "| raster | gaps | latitudes | method | cells | RMSE | CRPS | relative to the last method | coverage | time |"
    )
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|")
    for name in options.only:
        if name == "roll":
            roll(options.data)
        else:
            compare(name, options.seeds, options.data, options.methods)


if __name__ == "__main__":
    main()
