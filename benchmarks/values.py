"""What bounds of the values are worth: scores relative to the same fill without them.

Run as ``python benchmarks/values.py [--seeds 3] [--only rain ndvi ...]``. Every raster is filled as it is and with its
bounds, under random gaps of 90 % and clouds of 30 %. Ratios are geometric means over the slices and seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

import geonp
from geonp.evaluation.holdout import HoldOut, hide_simulated
from geonp.inference.student import Distribution

Array = npt.NDArray[np.float64]
GAPS = (("random", 0.9), ("clouds", 0.3))
LEVELS = (np.arange(400) + 0.5) / 400
ENDS = (0.025, 0.975)
THRESHOLDS = (0.0, 1.0, 5.0)
FEWEST = 200
"""Tenths of probability with fewer cells are not judged."""


@dataclass(frozen=True)
class Case:
    """Slices of a variable and the bounds of its values."""

    name: str
    bounds: tuple[float | None, float | None]
    slices: list[Array]
    wet: bool = False


@dataclass(frozen=True)
class Result:
    """Scores of the hidden cells, and the forecasts of exceeding each threshold with what was seen."""

    crps: float
    interval: float
    rmse: float
    inside: Array
    wet: Array
    outside: int
    forecasts: list[Array]
    seen: list[Array]


def cases(folder: Path) -> Iterator[Case]:
    """Rain, vegetation index, chlorophyll, reflectance, and fractions of ice made from sea surface temperature."""

    def opened(name: str) -> xr.Dataset:
        return xr.open_dataset(folder / name, engine="netcdf4")

    rain = opened("precip_stageiv_florence_2018-09.nc")["precip"]
    yield Case("rain", (0, None), [rain[hour].values for hour in (5, 11, 17)], wet=True)
    ndvi = opened("ndvi_sentinel2_slovenia_clouds_2015_2017.nc")
    clear = np.argsort(ndvi["cloud_mask"].mean(("y", "x")).values)[:3]
    yield Case("ndvi", (-1, 1), [ndvi["ndvi"][day].values for day in clear])
    chlorophyll = opened("chlorophyll_olci_northsea_2017.nc")["conc_chl"]
    cuts = ((0, 480, 576), (3, 192, 864), (4, 864, 384))
    yield Case("chlorophyll", (0, None), [chlorophyll[t, r : r + 96, c : c + 96].values for t, r, c in cuts])
    reflectance = opened("sentinel2_6band_200x300.nc")["reflectance"]
    yield Case(
        "reflectance", (0, 10_000), [reflectance[band, 104:200, :96].values.astype(np.float32) for band in (0, 2, 4)]
    )
    sst = opened("sst_ostia_global_0p25_2017-06-05_07.nc")
    name = next(str(v) for v in sst.data_vars if sst[v].ndim == 3)
    southern = sst[name][:, 80:176, 200:296].values
    southern = southern - 273.15 if np.nanmean(southern) > 100 else southern
    # water at its freezing point of -1.8 is full of ice, warmer than 1 degree free of it
    yield Case("ice", (0, 1), [np.clip((1.0 - southern[day]) / 2.8, 0, 1) for day in (0, 2)], wet=True)


def evaluated(truth: Array, test: HoldOut, options: dict[str, Any], bounds: tuple[Any, Any]) -> Result:
    """The scores of a fill of a test raster."""
    raster = xr.DataArray(test.values.astype(np.float32), dims=("y", "x"), name="f")
    filled = raster.geonp.infill(tails=True, quantiles=ENDS, exceed=THRESHOLDS, **options)
    scored = test.hidden & (filled["f_fill_flag"].values == 1)
    y, of = truth[scored].astype(np.float64), Distribution.of(filled, "f")
    of = Distribution(of.location[scored], of.deviation[scored], of.tail[scored], of.warping)
    nodes = np.stack([of.ppf(level) for level in LEVELS], -1)
    weight = 2 * LEVELS - 1
    crps = np.abs(nodes - y[:, None]).mean(1) - (weight * nodes).mean(1)
    low, high = filled["f_quantile"].values[:, scored]
    width = high - low + 40 * np.maximum(low - y, 0) + 40 * np.maximum(y - high, 0)
    tolerance = 1e-6 * np.abs(y)
    ends = [-np.inf if bounds[0] is None else bounds[0], np.inf if bounds[1] is None else bounds[1]]
    results = np.stack([filled["f"].values[scored], low, high])
    return Result(
        crps=float(crps.mean()),
        interval=float(width.mean()),
        rmse=float(np.sqrt(np.mean((filled["f"].values[scored] - y) ** 2))),
        inside=(low - tolerance <= y) & (y <= high + tolerance),
        wet=y > 0,
        outside=int(np.count_nonzero((results < ends[0]) | (results > ends[1]))),
        forecasts=list(filled["f_exceedance"].values[:, scored]),
        seen=[y > threshold for threshold in THRESHOLDS],
    )


def reliability(results: list[Result]) -> list[float]:
    """Largest difference of forecast and frequency in the tenths of the probability to exceed each threshold."""
    found = []
    for k in range(len(THRESHOLDS)):
        p, seen = (
            np.concatenate([part[k] for part in parts])
            for parts in ([r.forecasts for r in results], [r.seen for r in results])
        )
        tenth = np.minimum((p * 10).astype(int), 9)
        there = [tenth == n for n in range(10)]
        found.append(max((abs(p[t].mean() - seen[t].mean()) for t in there if t.sum() >= FEWEST), default=np.nan))
    return found


def geometric(ratios: list[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(ratios))))


def row(case: Case, gaps: str, pairs: list[tuple[Result, Result]]) -> str:
    """A row of the table."""
    ratios = [
        geometric([getattr(new, s) / getattr(old, s) for old, new in pairs]) for s in ("crps", "interval", "rmse")
    ]
    before, after = ([pair[k] for pair in pairs] for k in (0, 1))

    def coverage(results: list[Result], *, wet: bool = False) -> str:
        return f"{np.concatenate([r.inside[r.wet] if wet else r.inside for r in results]).mean():.3f}"

    cells = [f"{ratio:.3f}" for ratio in ratios] + [coverage(before), coverage(after)]
    cells += [coverage(before, wet=True), coverage(after, wet=True)] if case.wet else ["", ""]
    cells += [f"{sum(r.outside for r in before):,}", f"{sum(r.outside for r in after):,}"]
    reliable = [f"{gap:.3f}" for gap in reliability(after)] if case.name == "rain" else [""] * 3
    return f"| {case.name} | {gaps} | {' | '.join(cells)} | {' | '.join(reliable)} |"


def main(of: Callable[[Path], Iterator[Case]] = cases) -> None:
    """Print a row for each raster and kind of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--seeds", type=int, default=3, help="number of draws of the gaps")
    parser.add_argument("--only", nargs="*", help="names of rasters")
    arguments = parser.parse_args()
    heads = ["raster", "gaps", "CRPS", "interval score", "RMSE", "95 % without", "95 %", "above 0 without", "above 0"]
    heads += ["outside without", "outside", *(f"P > {t:g}" for t in THRESHOLDS)]
    print(f"geonp {geonp.__version__}\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for case in of(arguments.data):
        if arguments.only and case.name not in arguments.only:
            continue
        for kind, fraction in GAPS:
            pairs = []
            for seed in range(arguments.seeds):
                for truth in case.slices:
                    test = hide_simulated(truth, kind, fraction, np.random.default_rng(seed))
                    options: list[dict[str, Any]] = [{}, {"bounds": case.bounds}]
                    old, new = (evaluated(truth, test, one, case.bounds) for one in options)
                    pairs.append((old, new))
            print(row(case, f"{kind} {fraction:.0%}", pairs), flush=True)


if __name__ == "__main__":
    main()
