"""Draw the figure of docs/guide/classes.md from real rasters with cells hidden.

Run as ``python examples/classes_figure.py [--data ../shared/data] [--out docs/guide/classes.jpg]``. The land
cover is that of `benchmarks/classes.py`, which is not part of the repository.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import ndimage

import geonp
from geonp.raster.gaps import simulate

Array = NDArray[np.floating[Any]]
CLASSES = ["tab:olive", "tab:brown", "forestgreen", "yellowgreen", "tab:red", "tab:blue"]
FRACTION = 0.4


def main() -> None:
    """Fill a land cover and directions under clouds, and draw both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--out", type=Path, default=Path("docs/guide/classes.jpg"), help="picture to write")
    arguments = parser.parse_args()
    cover, aspect = land_cover(arguments.data), directions()
    draw(filled(cover), filled(aspect)).savefig(arguments.out, dpi=100, pil_kwargs={"quality": 85})


def land_cover(folder: Path) -> xr.DataArray:
    """Land cover of six classes in Slovenia, 10 m."""
    file = folder / "ndvi_sentinel2_slovenia_clouds_2015_2017.nc"
    with xr.open_dataset(file, engine="netcdf4") as ds:
        cover = ds["landcover"].load().reset_coords(drop=True)
    return cover.assign_attrs(flag_values=np.unique(cover), _FillValue=-1).rename("cover")


def directions() -> xr.DataArray:
    """Direction in which smoothed terrain that ships with matplotlib rises: an aspect."""
    with np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as file:
        terrain = file["elevation"][:128, :128].astype(np.float64)
    by_row, by_col = np.gradient(ndimage.gaussian_filter(terrain, 4.0))
    aspect = (np.degrees(np.arctan2(by_col, by_row)) % 360).astype(np.float32)
    return xr.DataArray(aspect, dims=("y", "x"), name="aspect", attrs={"units": "degree"})


def filled(truth: xr.DataArray) -> dict[str, xr.DataArray]:
    """The truth, the raster under simulated clouds, and the results of its fill, by the endings of their names."""
    rows, cols = truth.shape
    clouds = simulate("clouds", (rows, cols), FRACTION, np.random.default_rng(3))
    raster = truth.where(~clouds, truth.attrs.get("_FillValue", np.nan)).astype(truth.dtype)
    out = geonp.infill(raster)
    found = {str(name).removeprefix(f"{truth.name}"): array for name, array in out.data_vars.items()}
    return {"truth": truth, "clouds": xr.DataArray(clouds), **found}


def draw(cover: dict[str, xr.DataArray], aspect: dict[str, xr.DataArray]) -> Figure:
    """A row for each: under clouds, filled, the truth, and how sure the fill is."""
    figure = plt.figure(figsize=(11.5, 5.8), layout="constrained")
    axes = figure.subplots(2, 4)
    values = np.unique(cover["truth"])
    numbered = {key: np.searchsorted(values, cover[key].values).astype(float) for key in ("truth", "")}
    classes: dict[str, Any] = {"cmap": ListedColormap(CLASSES[: len(values)]), "vmin": -0.5, "vmax": len(values) - 0.5}
    turning: dict[str, Any] = {"cmap": "twilight", "vmin": 0, "vmax": 360}
    circular = aspect["truth"].values, aspect[""].values
    for row, found, (truth, fill), style, ending, title in (
        (axes[0], cover, (numbered["truth"], numbered[""]), classes, "_probability", "Probability of the class"),
        (axes[1], aspect, circular, turning, "_standard_error", "Circular standard deviation"),
    ):
        hidden = found["clouds"].values
        wrong = (truth != fill) if row[0] is axes[0, 0] else np.abs((truth - fill + 180) % 360 - 180) > 30
        right = 1 - wrong[hidden].mean()
        what = "Classes" if row[0] is axes[0, 0] else "Directions in degrees"
        measure = f"{right:.0%} right" if row[0] is axes[0, 0] else f"{right:.0%} within 30 degrees"
        sure: dict[str, Any] = {"cmap": "viridis", "vmin": 0, "vmax": 1 if row[0] is axes[0, 0] else 90}
        panels: list[tuple[str, Array, dict[str, Any]]] = [
            (f"{what}, under clouds", np.where(hidden, np.nan, truth), style),
            (f"Filled: {measure}", fill, style),
            ("Truth", truth, style),
            (title, np.where(hidden, found[ending].values, np.nan), sure),
        ]
        for axis, (label, shown, how) in zip(row, panels, strict=True):
            image = axis.imshow(shown, interpolation="nearest", **how)
            axis.set(xticks=[], yticks=[], facecolor="0.85")
            axis.set_title(label, fontsize=10)
            if how is not classes and label not in ("Truth", f"{what}, under clouds"):
                figure.colorbar(image, ax=axis, shrink=0.7)
    return figure


if __name__ == "__main__":
    main()
