"""Draw the figure of docs/guide/uncertainty.md from terrain under clouds.

Run as ``python examples/uncertainty_figure.py [docs/guide/uncertainty.png]``.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data
from matplotlib.figure import Figure

from geonp.raster.gaps import cloud_gaps

ROW = 88
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.975)


def main() -> None:
    """Fill the gaps and save the figure."""
    with np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as file:
        elevation = file["elevation"][60:200, 100:310].astype(np.float32)
    draw(elevation).savefig(sys.argv[1] if len(sys.argv) > 1 else "docs/guide/uncertainty.png", dpi=110)


def draw(elevation: np.ndarray) -> Figure:
    """A row through the gap with its interval and samples, above a map of the standard error and the coverage."""
    missing = cloud_gaps(elevation.shape, 0.3, np.random.default_rng(2))
    truth = xr.DataArray(elevation, dims=("y", "x"), name="elevation")
    filled = truth.where(~missing).geonp.infill(quantiles=LEVELS, samples=4)

    figure = plt.figure(figsize=(10, 6.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[1.1, 1])
    row, columns = above.subplots(), np.arange(elevation.shape[1])
    quantiles, samples = filled["elevation_quantile"].values, filled["elevation_sample"].values
    for outer, inner, shade in ((0, -1, 0.25), (3, 4, 0.35)):
        label = f"interval of {LEVELS[inner] - LEVELS[outer]:.0%}"
        row.fill_between(
            columns, quantiles[outer, ROW], quantiles[inner, ROW], color="#2a788e", alpha=shade, lw=0, label=label
        )
    for number, sample in enumerate(samples):
        row.plot(columns, sample[ROW], color="#7ad151", lw=0.8, label="joint samples" if not number else None)
    row.plot(columns, filled["elevation"].values[ROW], color="#2a788e", lw=2, label="filled")
    row.plot(columns, elevation[ROW], color="black", lw=1.2, label="truth")
    row.set(xlim=(0, columns[-1]), xlabel="column", ylabel="elevation (m)", title="A row through gaps")
    row.legend(ncols=5, frameon=False, loc="lower center", bbox_to_anchor=(0.5, -0.42))

    grid, reliability = below.subplots(1, 2)
    image = grid.imshow(filled["elevation_standard_error"].where(missing), cmap="magma")
    grid.axhline(ROW, color="grey", lw=0.8)
    grid.set(xticks=[], yticks=[], title="Standard error, and the row")
    below.colorbar(image, ax=grid, label="m")
    wanted = [high - low for low, high in zip(LEVELS[:4], LEVELS[:3:-1], strict=True)]
    pairs = zip(quantiles[:4], quantiles[:3:-1], strict=True)
    held = [np.mean(((elevation >= low) & (elevation <= high))[missing]) for low, high in pairs]
    reliability.plot([0, 1], [0, 1], color="grey", lw=0.8)
    reliability.plot(wanted, held, "o-", color="#2a788e")
    reliability.set(xlim=(0.4, 1), ylim=(0.4, 1), xlabel="level of the interval", ylabel="share of truth that it holds")
    reliability.set(title="Coverage", aspect="equal")
    return figure


if __name__ == "__main__":
    main()
