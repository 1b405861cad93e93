"""Rasters with measurements in their gaps: SST under clouds with simulated buoys, which have an offset and noise.

Run as ``python benchmarks/with_points.py [--data ../shared/data] [--synthetic] [--seeds 3]``. Buoys measure the raster
at random places between the centres of cells. Methods were chosen on the synthetic fields.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from scipy import ndimage

import geonp
from geonp.evaluation.kriging import fit, krige
from geonp.evaluation.metrics import score
from geonp.raster.gaps import simulate

Array = npt.NDArray[np.float64]
Moments = tuple[Array, Array, Array]

OFFSET, NOISE = 0.4, 0.15
"""Of the buoys, in standard deviations of the field."""
GAPS = {"clouds": 0.4, "blocks": 0.4}


def fields(folder: Path, size: int, synthetic: bool) -> Iterator[tuple[str, Array]]:
    """Names and fields without gaps."""
    if synthetic:
        rng = np.random.default_rng(42)
        for smooth in (2.0, 4.0, 8.0):
            noise = rng.standard_normal((size + 64, size + 64))
            part = ndimage.gaussian_filter(noise, smooth)[32:-32, 32:-32]
            rough = ndimage.gaussian_filter(noise, smooth / 3)[32:-32, 32:-32]
            yield f"synthetic {smooth:g}", part / part.std() + 0.2 * rough / rough.std()
        return
    with xr.open_dataset(folder / "sst_ostia_global_0p25_2017-06-05_07.nc") as ds:
        sst = ds[next(name for name, one in ds.data_vars.items() if one.ndim == 3)].isel(time=0).values
    found = 0
    for row in range(0, sst.shape[0] - size, size):
        for col in range(0, sst.shape[1] - size, size):
            part = sst[row : row + size, col : col + size].astype(np.float64)
            if np.isfinite(part).all():
                found += 1
                if found % 6 == 1:
                    yield f"SST {row},{col}", part


def buoys(field: Array, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Measurements of a field at random places."""
    y, x = rng.uniform(0, np.array(field.shape)[:, None] - 1, (2, n))
    values = ndimage.map_coordinates(field, [y, x], order=1)
    spread = field.std()
    values = values + OFFSET * spread + NOISE * spread * rng.standard_normal(n)
    return pd.DataFrame({"x": x, "y": y, "value": values})


def alone(raster: xr.DataArray, points: pd.DataFrame) -> Moments:
    """The raster without measurements."""
    return moments(geonp.infill(raster, tails=True))


def both(raster: xr.DataArray, points: pd.DataFrame) -> Moments:
    """The raster with measurements."""
    return moments(geonp.infill(raster, points=points, tails=True))


def points_alone(raster: xr.DataArray, points: pd.DataFrame) -> Moments:
    """The measurements without the raster, and without its level."""
    return moments(geonp.interpolate(points, raster, tails=True))


def kriged(raster: xr.DataArray, points: pd.DataFrame) -> Moments:
    """Cells and measurements in one ordinary kriging, once the offset at observed cells is removed."""
    values, at = raster.values.astype(np.float64), points[["y", "x"]].to_numpy()
    known = ndimage.map_coordinates(values, at.T, order=1)
    shifted = points["value"].to_numpy() - np.nanmedian(points["value"] - known)
    sites = np.argwhere(np.isfinite(values)).astype(float)
    rng = np.random.default_rng(0)
    model = fit(sites, values[np.isfinite(values)], rng)
    missing = np.isnan(values)
    mean, error = values.copy(), np.zeros_like(values)
    every = np.concatenate([sites, at]), np.concatenate([values[~missing], shifted])
    mean[missing], error[missing] = krige(*every, np.argwhere(missing).astype(float), model)
    return mean, error, np.zeros_like(mean)


def moments(filled: xr.Dataset) -> Moments:
    """Mean, standard error and tail."""
    mean, error, tail = (filled[f"value{end}"].values.astype(np.float64) for end in ("", "_standard_error", "_tail"))
    return mean, error, tail


METHODS = {"raster alone": alone, "points alone": points_alone, "both, kriging": kriged, "both": both}


def main() -> None:
    """Print CRPS, RMSE and coverage of all methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--buoys", type=int, default=150)
    parser.add_argument("--fields", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    arguments = parser.parse_args()
    print("| field | gaps | method | CRPS | RMSE | within 95 % interval |\n|---|---|---|---:|---:|---:|")
    every: dict[str, list[tuple[float, float, float]]] = {}
    for k, (name, field) in enumerate(fields(arguments.data, arguments.size, arguments.synthetic)):
        if k == arguments.fields:
            break
        for kind, share in GAPS.items():
            for seed in range(arguments.seeds):
                rng = np.random.default_rng([seed, k])
                gaps = simulate(kind, field.shape, share, rng)
                points = buoys(field, arguments.buoys, rng)
                y, x = (np.arange(n, dtype=float) for n in field.shape)
                values = np.where(gaps, np.nan, field / field.std())
                raster = xr.DataArray(values, {"y": y, "x": x}, ("y", "x"), name="value")
                points["value"] /= field.std()
                for method in arguments.methods:
                    mean, error, tail = METHODS[method](raster, points)
                    found = score(field / field.std(), mean, error, gaps, tail)
                    row = found.crps, found.rmse, found.coverage(0.95)
                    every.setdefault(method, []).append(row)
                    print(f"| {name} | {kind} | {method} | {row[0]:.4f} | {row[1]:.4f} | {row[2]:.3f} |", flush=True)
    for method, rows in every.items():
        crps, rmse, inside = np.array(rows).T
        mean = np.exp(np.log(crps).mean()), np.exp(np.log(rmse).mean()), inside.mean()
        print(f"| mean | | {method} | {mean[0]:.4f} | {mean[1]:.4f} | {mean[2]:.3f} |")


if __name__ == "__main__":
    main()
