"""Fill real terrain that lost stripes and clouds, score it beside classical methods, and draw it: `make demo`.

The terrain is the one that matplotlib ships: elevation around the Jacksboro fault, Tennessee, on a grid of 3 seconds of
arc (USGS, public domain). Everything is written to the folder `demo/`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import rioxarray  # noqa: F401  (registers .rio)
import xarray as xr
from matplotlib.cbook import get_sample_data
from matplotlib.colors import LightSource
from matplotlib.figure import Figure
from numpy.typing import NDArray

from geonp.evaluation.baselines import predict
from geonp.evaluation.holdout import HoldOut, hide
from geonp.evaluation.metrics import score
from geonp.raster.gaps import cloud_gaps, stripe_gaps

FOLDER = Path("demo")
SEED = 7
BASELINES = ("nearest", "linear", "gdal")

Prediction = tuple[NDArray[np.floating], ...]  # mean, standard error and, for Student distributions, tail
Kinds = dict[str, NDArray[np.bool_]]


def main() -> None:
    """Cut gaps, fill them with the command line tool, print the scores and save the picture."""
    FOLDER.mkdir(exist_ok=True)
    terrain = load_terrain()
    test, kinds = cut_gaps(terrain.values)
    source, target = FOLDER / "input.tif", FOLDER / "out.zarr"
    terrain.copy(data=test.values).rio.write_nodata(-9999, encoded=True).rio.to_raster(source)

    predictions = {"geonp": fill(source, target)}
    predictions |= {name: predict(name, test.values, np.random.default_rng(SEED)) for name in BASELINES}
    print(table(test, kinds, predictions))

    draw(test, *predictions["geonp"][:2], terrain.rio.bounds()).savefig(FOLDER / "demo.png", dpi=110)
    print(f"\nPicture: {FOLDER / 'demo.png'}")


def load_terrain() -> xr.DataArray:
    """Read the elevation model: metres on longitude and latitude, the first row in the north."""
    with np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as file:
        elevation, west, north = file["elevation"].astype(np.float32), float(file["xmin"]), float(file["ymin"])
    step = 3 / 3600
    x = west + step * (np.arange(elevation.shape[1]) + 0.5)
    y = north - step * (np.arange(elevation.shape[0]) + 0.5)
    attrs = {"long_name": "elevation", "units": "m"}
    return xr.DataArray(elevation, {"y": y, "x": x}, ("y", "x"), "elevation", attrs).rio.write_crs("EPSG:4269")


def cut_gaps(truth: NDArray[np.float32]) -> tuple[HoldOut, Kinds]:
    """Hide stripes like those of Landsat 7 since 2003, and clouds; say which cell is lost to which."""
    rng = np.random.default_rng(SEED)
    stripes = stripe_gaps(truth.shape, 0.22, rng, angle=-0.17)
    clouds = cloud_gaps(truth.shape, 0.15, rng)
    return hide(truth, stripes | clouds), {"all": stripes | clouds, "stripes": stripes & ~clouds, "clouds": clouds}


def fill(source: Path, target: Path) -> Prediction:
    """Run `geonp fill` as a user would, and read what it wrote."""
    command = Path(sys.executable).with_name("geonp")
    subprocess.run([command, "fill", source, target, "--overwrite", "--tails", "--json"], check=True)
    with xr.open_zarr(target) as filled:
        mean, error, tail = (filled[f"elevation{part}"].values.squeeze() for part in ("", "_standard_error", "_tail"))
    return mean, error, tail


def table(test: HoldOut, kinds: Kinds, predictions: dict[str, Prediction]) -> str:
    """Scores over the hidden cells as a Markdown table."""
    lines = [
        "| hidden cells | method | RMSE (m) | MAE (m) | CRPS (m) | within 95 % interval |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind, cells in kinds.items():
        for name, (mean, error, *tail) in predictions.items():
            s = score(test.truth, mean, error, cells & test.hidden, *tail)
            title = f"{kind}: {s.cells:,}"
            scores = f"{s.rmse:8.2f} | {s.mae:7.2f} | {s.crps:8.2f} | {s.coverage(0.95):20.1%}"
            lines.append(f"| {title:15} | {name:8} | {scores} |")
    return "\n".join(lines)


def draw(
    test: HoldOut, mean: NDArray[np.floating], error: NDArray[np.floating], bounds: tuple[float, float, float, float]
) -> Figure:
    """Draw the raster with gaps, filled, its standard error and the actual error."""
    west, south, east, north = bounds
    aspect = 1 / np.cos(np.radians((south + north) / 2))
    relief = {"vmin": float(test.truth.min()), "vmax": float(test.truth.max()), "cmap": "gist_earth"}
    actual = np.where(test.hidden, mean - test.truth, np.nan)
    limit = float(np.nanquantile(np.abs(actual), 0.99))
    panels = [
        ("With gaps", test.values, relief, "elevation (m)"),
        ("Filled by geonp", mean, relief, "elevation (m)"),
        ("Standard error", np.where(test.hidden, error, np.nan), {"vmin": 0, "cmap": "viridis"}, "standard error (m)"),
        ("Actual error", actual, {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}, "filled minus truth (m)"),
    ]
    figure, axes = plt.subplots(2, 2, figsize=(11, 9.4), layout="constrained", sharex=True, sharey=True)
    for axis, (title, values, style, label) in zip(axes.flat, panels, strict=True):
        image = axis.imshow(values, extent=(west, east, south, north), aspect=aspect, **style)
        shade = hillshade(mean if values is mean else test.truth)
        if values is test.values:
            shade[np.isnan(values)] = 1  # white, as paper
        axis.imshow(shade, extent=(west, east, south, north), aspect=aspect, alpha=0.35)
        axis.set_title(title, loc="left", weight="bold")
        figure.colorbar(image, ax=axis, label=label, shrink=0.85)
    figure.supxlabel("longitude (degrees)")
    figure.supylabel("latitude (degrees)")
    return figure


def hillshade(elevation: NDArray[np.floating]) -> NDArray[np.floating]:
    """Grey relief (y, x, 3) under light from the north-west."""
    metres = 92.6  # 3 seconds of arc
    shade = LightSource(azdeg=315, altdeg=45).hillshade(elevation, dx=metres, dy=metres)
    return np.dstack([shade] * 3)


if __name__ == "__main__":
    main()
