"""Draw the figure of docs/guide/covariates.md and print its table, from real rasters with cells hidden.

Run as ``python examples/covariates_figure.py [--data ../shared/data] [--out docs/guide/covariates.jpg] [--only NAME]``.
The data are those of `benchmarks/accuracy.py` and `benchmarks/beside.py`, which are not part of the repository.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.colors import LightSource
from matplotlib.figure import Figure
from numpy.typing import NDArray

from geonp.evaluation.comparison import Comparison
from geonp.evaluation.scored import OURS, WITH_COVARIATES

REGRESSION = "regression_kriging"
GAPS = (("clouds", 0.4), ("random", 0.9))
HEADINGS = ("raster", "covariates", "gaps", "CRPS", "with", "ratio", "regression kriging", "95 %", "95 % with")


@dataclass(frozen=True)
class Case:
    """A raster and its covariates."""

    name: str
    beside: str
    raster: xr.DataArray
    covariates: Any
    options: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    """Evaluate every case, print a row for each, and draw the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--out", type=Path, default=Path("docs/guide/covariates.jpg"), help="picture to write")
    parser.add_argument("--only", help="the case of this name alone")
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADINGS)} |\n|---|---|---|---:|---:|---:|---:|---:|---:|")
    drawn = False
    for case in cases(arguments.data):
        if arguments.only not in (None, case.name):
            continue
        for holdout, fraction in GAPS:
            found = evaluated(case, holdout, fraction)
            print(f"| {case.name} | {case.beside} | {holdout} {fraction:.0%} | {row(found)} |", flush=True)
            if not drawn:
                draw(found, np.asarray(case.covariates)).savefig(arguments.out, dpi=100, pil_kwargs={"quality": 85})
                drawn = True


def cases(folder: Path) -> Iterator[Case]:
    """Rasters with covariates that say much, something and nothing."""
    temperature, elevation = (
        opened(folder / name)[variable].isel(lat=slice(190, 318), lon=slice(120, 270)).astype(np.float32).load()
        for name, variable in (
            ("tmax_gridmet_conus_2019-01-21.nc", "air_temperature"),
            ("elevation_on_gridmet_conus.nc", "elevation"),
        )
    )
    yield Case("temperature, 4 km", "elevation", temperature, elevation)
    coarse = elevation.coarsen(lat=4, lon=4, boundary="trim").mean()
    yield Case("temperature, 4 km", "elevation, 16 km", temperature, coarse, {"covariate_resampling": "bilinear"})
    shifted = elevation.roll(lon=75).rename("shifted")
    yield Case("temperature, 4 km", "elevation of another place", temperature, shifted)
    t2m = opened(folder / "era5_t2m_uk_2019-03_hourly.nc")["t2m"].isel(time=252, drop=True).astype(np.float32).load()
    surface = opened(folder / "era5_geopotential_global_0p25.nc")["geopotential"]
    yield Case("temperature, 25 km", "geopotential of the surface", t2m, surface, {"covariate_resampling": "bilinear"})
    bands = opened(folder / "sentinel2_6band_200x300.nc")["reflectance"].isel(y=slice(0, 128), x=slice(0, 128))
    bands = bands.astype(np.float32).load()
    yield Case("red band, 10 m", "blue and green bands", bands[2].drop_vars("band", errors="ignore"), bands[:2])
    slovenia = opened(folder / "ndvi_sentinel2_slovenia_clouds_2015_2017.nc")
    clear = int(slovenia["cloud_mask"].mean(("y", "x")).values.argmin())
    ndvi = slovenia["ndvi"].isel(time=clear, drop=True).astype(np.float32).load()
    cover = slovenia["landcover"].assign_attrs(flag_values=np.unique(slovenia["landcover"])).load()
    yield Case("NDVI, 10 m", "land cover", ndvi, cover)


def opened(file: Path) -> xr.Dataset:
    """A file of the folder."""
    return xr.open_dataset(file, engine="netcdf4")


def evaluated(case: Case, holdout: str, fraction: float) -> Comparison:
    """The model with and without covariates, and regression kriging, on one draw of gaps."""
    options: dict[str, Any] = {"holdout": holdout, "fraction": fraction, "baselines": [REGRESSION], **case.options}
    found: Comparison = case.raster.geonp.evaluate(covariates=case.covariates, **options)
    return found


def row(found: Comparison) -> str:
    """CRPS without and with covariates, ratios to that without, and coverage of the 95 % intervals."""
    alone, beside, regression = (found.scores[name] for name in (OURS, WITH_COVARIATES, REGRESSION))
    ratios = " | ".join(f"{scores.crps / alone.crps:.2f}" for scores in (beside, regression))
    shares = " | ".join(f"{scores.coverage(0.95):.1%}" for scores in (alone, beside))
    return f"{alone.crps:.3g} | {beside.crps:.3g} | {ratios} | {shares}"


def draw(found: Comparison, covariate: NDArray[np.floating]) -> Figure:
    """The raster with gaps, the covariate and the truth, over the fills and the standard error."""
    truth, known = found.test.truth, np.isfinite(found.test.values)
    low, high = np.nanquantile(truth, [0.01, 0.99])
    style: dict[str, Any] = {"vmin": low, "vmax": high, "cmap": "RdYlBu_r"}
    alone, beside = found.predictions[OURS], found.predictions[WITH_COVARIATES]
    spread = np.where(known, np.nan, beside.error)
    shaded = LightSource(315, 40).hillshade(covariate, vert_exag=0.001)
    panels: list[tuple[str, NDArray[np.floating], dict[str, Any]]] = [
        ("Temperature under clouds", found.test.values, style),
        ("Covariate: elevation", shaded, {"cmap": "gray"}),
        ("Truth", truth, style),
        (f"Filled without: CRPS {found.scores[OURS].crps:.2f} K", alone.mean, style),
        (f"Filled with elevation: CRPS {found.scores[WITH_COVARIATES].crps:.2f} K", beside.mean, style),
        ("Standard error with elevation, K", spread, {"cmap": "plasma", "vmin": 0}),
    ]
    figure = plt.figure(figsize=(11, 5.4), layout="constrained")
    for axis, (title, values, how) in zip(figure.subplots(2, 3).flat, panels, strict=True):
        image = axis.imshow(values, interpolation="nearest", origin="lower" if found.y_up else "upper", **how)
        axis.set(xticks=[], yticks=[], facecolor="0.85")
        axis.set_title(title, fontsize=10)
        if how.get("cmap") != "gray":
            figure.colorbar(image, ax=axis, shrink=0.8)
    return figure


if __name__ == "__main__":
    main()
