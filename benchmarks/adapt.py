"""Gain from adapting the model to a raster: CRPS of hidden cells before and after, and the time of the adaptation.

Run as ``python benchmarks/adapt.py [--minutes 5] [--steps N] [--gaps clouds random] [--model tnpkr-sa]``. The rasters
are those of ``accuracy.py``, which led to one choice in :mod:`geonp.adaptation.adapt`: it had stopped early on two of
them, and no longer does. Adaptation does not see the hidden cells. The cuts are larger than in ``accuracy.py``, because
about a hundred tiles are needed to distinguish a few per cent from chance. Of rasters with several slices (days, bands)
all are used and scored, each with its own gaps, in standard deviations of each slice.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import accuracy
import numpy as np
import xarray as xr
from accuracy import FIELDS, Field, file_field, geometric

import geonp
from geonp.adaptation.adapt import Adapted, adapt
from geonp.evaluation.holdout import HoldOut, hide_simulated
from geonp.evaluation.metrics import Scores, score

GAPS = {"clouds": 0.3, "random": 0.9}


def ndvi(folder: Path) -> Field:
    """NDVI of all dates, with cloudy cells missing."""
    with xr.open_dataset(folder / "ndvi_sentinel2_slovenia_clouds_2015_2017.nc") as ds:
        return np.asarray(ds["ndvi"].where(ds["cloud_mask"] == 0).values, np.float32)


def temperature(folder: Path) -> Field:
    """Temperature of every sixth hour of ten days."""
    return file_field("era5_t2m_uk_2019-03_hourly.nc", "t2m", time=slice(0, 240, 6))(folder)


STACKS = {
    "SST OSTIA": file_field("sst_ostia_global_0p25_2017-06-05_07.nc", "analysed_sst", 230, 560),
    "ERA5 temperature": temperature,
    "chlorophyll": file_field("chlorophyll_olci_northsea_2017.nc", "conc_chl", 257, 582),
    "Sentinel-2 band": file_field("sentinel2_6band_200x300.nc", "reflectance"),
    "NDVI": ndvi,
}
"""Rasters of several slices, ``(slices, rows, columns)``."""

LEAST_CELLS = 1000
"""Slices with fewer observed cells are skipped."""

ENOUGH = 0.95
"""Ratio of the CRPS after to before below which adaptation counts as clearly better."""


def hidden(truth: Field, kind: str, rng: np.random.Generator) -> list[HoldOut]:
    """Hold-outs of the slices with enough observed cells."""
    slices = truth.reshape(-1, *truth.shape[-2:])
    observed = [part for part in slices if np.isfinite(part).sum() >= LEAST_CELLS and np.nanstd(part) > 0]
    return [hide_simulated(part, kind, GAPS[kind], rng) for part in observed]


def filled(raster: xr.DataArray, tests: list[HoldOut], model: str | Adapted) -> Scores:
    """Scores of a fill."""
    out = geonp.infill(raster, model=model, tails=True)
    spread = np.array([np.nanstd(test.truth) for test in tests])[:, None, None] if len(tests) > 1 else 1.0
    truth, hidden = (np.reshape([getattr(test, name) for test in tests], raster.shape) for name in ("truth", "hidden"))
    mean, error, tail = (out[f"field{ending}"].values for ending in ("", "_standard_error", "_tail"))
    return score(truth / spread, mean / spread, error / spread, hidden & np.isfinite(mean), tail)


def main() -> None:
    """Print the gain for each raster and kind of gaps, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--minutes", type=float, default=5.0, help="time for each adaptation")
    parser.add_argument("--steps", type=int, help="steps of each adaptation, instead of a time")
    parser.add_argument("--gaps", nargs="*", choices=GAPS, default=list(GAPS), help="kinds of gaps")
    parser.add_argument("--only", nargs="*", help="names of rasters; all by default")
    parser.add_argument("--side", type=int, default=1024, help="largest number of rows and columns of a cut")
    arguments = parser.parse_args()
    accuracy.SIDE = arguments.side
    print("| field | gaps | held out | steps | CRPS | after | ratio | coverage | after | minutes | slowdown | across |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    ratios: dict[str, list[float]] = {}
    for seed, (name, read) in enumerate({**FIELDS, **STACKS}.items()):
        if arguments.only and name not in arguments.only:
            continue
        try:
            truth = read(arguments.data)
        except geonp.GeonpError as error:
            print(f"skipped: {name}: {error}")
            continue
        for kind in arguments.gaps:
            tests = hidden(truth, kind, np.random.default_rng(seed))
            values = np.stack([test.values for test in tests])
            raster = xr.DataArray(values, dims=("slice", "y", "x"), name="field")
            raster = raster if truth.ndim > 2 else raster[0]
            with tempfile.TemporaryDirectory() as folder:
                options = {"model": arguments.model, "minutes": arguments.minutes, "steps": arguments.steps}
                start = time.monotonic()
                adapted = adapt(raster, out=Path(folder, "adapted.safetensors"), **options)
                minutes = (time.monotonic() - start) / 60
                before, after = (filled(raster, tests, each) for each in (arguments.model, adapted))
            ratios.setdefault(name, []).append(after.crps / before.crps)
            row = [
                f"{adapted.after / adapted.before:.3f}",
                f"{adapted.steps}",
                f"{before.crps:.4g}",
                f"{after.crps:.4g}",
            ]
            row += [f"{ratios[name][-1]:.3f}", f"{before.coverage(0.95):.3f}", f"{after.coverage(0.95):.3f}"]
            print(
                f"| {name} | {kind} {GAPS[kind]:.0%} | {' | '.join(row)} | {minutes:.1f} | {adapted.slowdown:.1f} "
                f"| {'yes' if adapted.across else ''} |",
                flush=True,
            )
    every = [ratio for both in ratios.values() for ratio in both]
    better = sum(geometric(both) < ENOUGH for both in ratios.values())
    print(
        f"\nCRPS after / before, geometric mean of {len(every)} cases: {geometric(every):.3f}; worst: {max(every):.3f}"
    )
    print(f"rasters with at least {1 - ENOUGH:.0%} less, over the kinds of gaps: {better} of {len(ratios)}")


if __name__ == "__main__":
    main()
