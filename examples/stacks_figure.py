"""Draw the figure of docs/guide/stacks.md, from a real stack with cells and a whole date hidden.

Run as ``python examples/stacks_figure.py [--data ../shared/data] [--out docs/guide/stacks.jpg]``. The data are those of
`benchmarks/whole_dates.py`, which are not part of the repository.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import NDArray

from geonp.evaluation.holdout import hide_simulated
from geonp.evaluation.metrics import score

CLOUDED, MISSING = 24, 37
"""Places of a date that simulated clouds hide in part, and of one that is hidden, among the clear dates."""


def main() -> None:
    """Fill the stack and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--out", type=Path, default=Path("docs/guide/stacks.jpg"), help="picture to write")
    arguments = parser.parse_args()
    draw(stack(arguments.data)).savefig(arguments.out, dpi=100, pil_kwargs={"quality": 85})


def stack(folder: Path) -> xr.DataArray:
    """NDVI of the dates that are not wholly under clouds."""
    with xr.open_dataset(folder / "ndvi_sentinel2_slovenia_clouds_2015_2017.nc", engine="netcdf4") as ds:
        ndvi = ds["ndvi"].where(ds["cloud_mask"] == 0).astype(np.float32).load()
    return ndvi[np.isfinite(ndvi).sum(("y", "x")).values >= 1000]


def draw(truth: xr.DataArray) -> Figure:
    """A date under clouds, filled alone and across time, over a missing date and the dates beside it."""
    clouds = hide_simulated(truth[CLOUDED].values, "clouds", 0.4, np.random.default_rng(0))
    values = truth.copy(deep=True)
    values[CLOUDED], values[MISSING] = clouds.values, np.nan
    alone = values[[CLOUDED]].geonp.infill(tails=True)
    lazy = values.chunk(time=1).geonp.infill(across="time", empty_slices=True, tails=True)
    across, missing = (lazy.isel(time=[k]).compute() for k in (CLOUDED, MISSING))

    def crps(filled: xr.Dataset, place: int, hidden: NDArray[np.bool_]) -> float:
        parts = (filled[f"ndvi{ending}"].values[0] for ending in ("", "_standard_error", "_tail"))
        mean, error, tail = parts
        return score(truth[place].values, mean, error, hidden & np.isfinite(mean), tail).crps

    dates = [f"{date.dt.day.item()} {date.dt.strftime('%B %Y').item()}" for date in truth.time]
    everywhere = np.isfinite(truth[MISSING].values)
    style: dict[str, Any] = {"vmin": 0.3, "vmax": 0.85, "cmap": "YlGn"}
    panels: list[tuple[str, NDArray[np.floating], dict[str, Any]]] = [
        (f"{dates[CLOUDED]}, clouds simulated", clouds.values, style),
        (f"Filled alone: CRPS {crps(alone, CLOUDED, clouds.hidden):.3f}", alone.ndvi.values[0], style),
        (f"Across time: CRPS {crps(across, CLOUDED, clouds.hidden):.3f}", across.ndvi.values[0], style),
        ("Truth", truth[CLOUDED].values, style),
        (f"The date before, {dates[MISSING - 1]}", values[MISSING - 1].values, style),
        (f"{dates[MISSING]}, hidden: CRPS {crps(missing, MISSING, everywhere):.3f}", missing.ndvi.values[0], style),
        ("Its standard error", missing.ndvi_standard_error.values[0], {"cmap": "plasma", "vmin": 0}),
        ("Truth", truth[MISSING].values, style),
    ]
    figure = plt.figure(figsize=(12.5, 6), layout="constrained")
    for axis, (title, shown, how) in zip(figure.subplots(2, 4).flat, panels, strict=True):
        image = axis.imshow(shown, interpolation="nearest", **how)
        axis.set(xticks=[], yticks=[], facecolor="0.85")
        axis.set_title(title, fontsize=9)
        figure.colorbar(image, ax=axis, shrink=0.75)
    return figure


if __name__ == "__main__":
    main()
