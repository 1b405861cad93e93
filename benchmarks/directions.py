"""Directions in degrees: filled as unit vectors, beside kriging of their sines and cosines.

Run as ``python benchmarks/directions.py [--side 96] [--seeds 2]``. Directions are those of the gradient of smoothed
real fields, as an aspect or a geostrophic wind. RMSE and circular standard deviations are in degrees; coverage is the
share of true directions within 1.96 circular standard deviations.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import accuracy
import numpy as np
import xarray as xr
from accuracy import Field, geometric
from scipy import ndimage

import geonp
from geonp.evaluation.baselines import predict
from geonp.evaluation.holdout import HoldOut, hide_simulated

FIELDS = ("SST OSTIA", "gridMET tmax", "ERA5 orography", "DEM Jacksboro")
GAPS = (("random", 0.9), ("clouds", 0.4))
SMOOTHING = 3.0


def directions(field: Field) -> Field:
    """Direction of the gradient of a smoothed field, from 0 to 360 degrees."""
    by_row, by_col = np.gradient(ndimage.gaussian_filter(field.astype(np.float64), SMOOTHING))
    return np.asarray(np.degrees(np.arctan2(by_col, by_row)) % 360, np.float32)


def by_components(test: HoldOut) -> Field:
    """Directions from sines and cosines that are kriged."""
    angle = np.radians(test.values)
    sine, cosine = (predict("kriging", part, np.random.default_rng(0))[0] for part in (np.sin(angle), np.cos(angle)))
    return np.asarray(np.degrees(np.arctan2(sine, cosine)), np.float32)


def rmse(filled: Field, test: HoldOut) -> float:
    """Root mean square of the smaller angle between filled and true directions."""
    off = (filled - test.truth + 180) % 360 - 180
    return float(np.sqrt(np.square(off[test.hidden]).mean()))


def main() -> None:
    """Print a row for each field and kind of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--side", type=int, default=96, help="largest number of rows and columns of a cut")
    parser.add_argument("--seeds", type=int, default=2, help="number of simulations of each kind of gaps")
    arguments = parser.parse_args()
    accuracy.SIDE = arguments.side
    print("| field | gaps | RMSE | kriging | as numbers | ratio to kriging | coverage |")
    print("|---|---|---:|---:|---:|---:|---:|")
    ratios = []
    for name in FIELDS:
        truth = directions(accuracy.FIELDS[name](arguments.data))
        for kind, fraction in GAPS:
            found, kriged, plain, inside = [], [], [], []
            for seed in range(arguments.seeds):
                test = hide_simulated(truth, kind, fraction, np.random.default_rng(seed))
                raster = xr.DataArray(test.values, dims=("y", "x"), name="d")
                out = geonp.infill(raster, circular=True)
                found.append(rmse(out["d"].values, test))
                plain.append(rmse(geonp.infill(raster, as_="numbers")["d"].values, test))
                kriged.append(rmse(by_components(test), test))
                off = np.abs((out["d"].values - truth + 180) % 360 - 180)
                inside.append((off < 1.96 * out["d_standard_error"].values)[test.hidden].mean())
            ratios.append(float(np.mean(found) / np.mean(kriged)))
            print(
                f"| {name} | {kind} {fraction:.0%} | {np.mean(found):.1f} | {np.mean(kriged):.1f} "
                f"| {np.mean(plain):.1f} | {ratios[-1]:.3f} | {np.mean(inside):.3f} |",
                flush=True,
            )
    print(f"\nRMSE relative to kriging, geometric mean: {geometric(ratios):.3f}")


if __name__ == "__main__":
    main()
