"""Draw the figure of docs/guide/values.md from real rain with cells hidden.

Run as ``python examples/values_figure.py [--data ../shared/data] [--out docs/guide/values.jpg]``. The data are those of
`benchmarks/values.py`, which are not part of the repository.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from geonp.evaluation.holdout import HoldOut, hide_simulated

HOUR = 9
THRESHOLD = 1.0


def main() -> None:
    """Hide rain under clouds, fill it with and without bounds, and draw both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--out", type=Path, default=Path("docs/guide/values.jpg"), help="picture to write")
    arguments = parser.parse_args()
    with xr.open_dataset(arguments.data / "precip_stageiv_florence_2018-09.nc", engine="netcdf4") as ds:
        truth = ds["precip"][HOUR].values
    test = hide_simulated(truth, "clouds", 0.3, np.random.default_rng(1))
    raster = xr.DataArray(test.values, dims=("y", "x"), name="rain")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the hint to ask for bounds
        plain = raster.geonp.infill(quantiles=[0.025])
    bounded = raster.geonp.infill(bounds=(0, None), quantiles=[0.025, 0.975], exceed=[THRESHOLD])
    draw(test, plain, bounded).savefig(arguments.out, dpi=100, pil_kwargs={"quality": 85})


def draw(test: HoldOut, plain: xr.Dataset, bounded: xr.Dataset) -> Figure:
    """Rain with gaps, both fills and the truth, over the quantiles and the probability of rain."""
    top = float(np.nanquantile(test.truth, 0.999))
    style: dict[str, Any] = {"norm": SymLogNorm(1.0, vmin=-top, vmax=top), "cmap": "BrBG"}
    filled = plain["rain_fill_flag"].values == 1
    below = (plain["rain"].values[filled] < 0).mean()
    lower = (plain["rain_quantile"].values[0][filled] < 0).mean()
    panels: list[tuple[str, NDArray[np.floating], dict[str, Any]]] = [
        ("Rain under clouds, mm", test.values, style),
        (f"Filled without bounds: {below:.0%} below 0", plain["rain"].values, style),
        ("Filled within bounds", bounded["rain"].values, style),
        ("Truth", test.truth, style),
        (f"2.5 % quantile without: {lower:.0%} below 0", plain["rain_quantile"].values[0], style),
        ("2.5 % quantile within bounds", bounded["rain_quantile"].values[0], style),
        ("97.5 % quantile within bounds", bounded["rain_quantile"].values[1], style),
        (f"Probability of more than {THRESHOLD:g} mm", bounded["rain_exceedance"].values[0], {"cmap": "Blues"}),
    ]
    figure = plt.figure(figsize=(11, 7.2), layout="constrained")
    for axis, (title, values, how) in zip(figure.subplots(2, 4).flat, panels, strict=True):
        image = axis.imshow(values, interpolation="nearest", origin="lower", **how)
        axis.set(xticks=[], yticks=[], facecolor="0.85")
        axis.set_title(title, fontsize=10)
        bar = figure.colorbar(image, ax=axis, shrink=0.8, orientation="horizontal")
        if "norm" in how:
            bar.set_ticks([-10, -1, 0, 1, 10], labels=["-10", "-1", "0", "1", "10"])
    return figure


if __name__ == "__main__":
    main()
