"""Draw the figure of docs/design.md from a real fill: the context, targets and blend weights of one group of tiles.

Run as ``python examples/design_figure.py [OUT.png]``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cbook import get_sample_data
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from scipy import ndimage

import geonp
from geonp.inference.checkpoint import load_card
from geonp.inference.context import Neighbourhood, framed, window_context
from geonp.inference.stitching import blend_weights, overlaps
from geonp.inference.tiling import groups
from geonp.raster.gaps import cloud_gaps

SHAPE = (320, 352)
SEED = 3
MODEL = "tnpkr-sa"


def main() -> None:
    """Fill a cut of the terrain that matplotlib ships, and draw one of its groups of tiles."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/design.png")
    with np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as file:
        values = file["elevation"][: SHAPE[0], : SHAPE[1]].astype(np.float32)
    values[cloud_gaps(SHAPE, 0.3, np.random.default_rng(SEED))] = np.nan
    filled = geonp.infill(xr.DataArray(values, dims=("y", "x"), name="elevation"), model=MODEL)
    draw(values, filled["elevation"].values, load_card(MODEL).neighbourhood).savefig(out, dpi=85)
    print(f"Picture: {out}")


def draw(values: NDArray[np.float32], filled: NDArray[np.float32], neighbourhood: Neighbourhood) -> Figure:
    """Three panels: the context of a group of tiles, its blend weights, and the filled raster."""
    observed, px, lap = ~np.isnan(values), neighbourhood.tile_px, neighbourhood.overlap_px
    frame = neighbourhood.reach_px
    members = frame + most_gaps(groups(~observed, observed, frame, neighbourhood), ~observed, frame, px)
    box = np.array([members.min(0), members.max(0) + px])

    targets = np.zeros_like(observed)
    for row, col in members:
        targets[row : row + px, col : col + px] = ~observed[row : row + px, col : col + px]
    context = np.zeros_like(observed)
    context.flat[window_context(observed, box, targets[framed(box, 0)], neighbourhood, 0, None)] = True
    distance = ndimage.distance_transform_edt(~targets)
    near = context & (distance < distance[observed & ~context].min())

    patch = framed(box, lap)
    reached = overlaps(observed, neighbourhood)[patch]
    weights = sum(blend_weights(reached, member - box[0], px, lap) for member in members)
    weights = np.where(~observed[patch] & (weights > 0), weights, np.nan)

    figure, axes = plt.subplots(1, 3, figsize=(13.5, 4.6), layout="constrained")
    relief = {"vmin": float(np.nanmin(filled)), "vmax": float(np.nanmax(filled)), "cmap": "gist_earth"}
    around = framed(box, neighbourhood.halos_px[0])
    show(axes[0], values, around, relief, "Context: all near cells, ever fewer distant ones")
    for cells, style, label in ((near, "k.", "near context"), (context & ~near, "rx", "far context")):
        rows, cols = np.nonzero(cells)
        axes[0].plot(cols, rows, style, markersize=3.5, label=label)
    axes[0].legend(loc="lower right", framealpha=0.9)
    show(axes[1], values, patch, relief, "Blend weights of this group's predictions")
    extent = (patch[1].start - 0.5, patch[1].stop - 0.5, patch[0].stop - 0.5, patch[0].start - 0.5)
    image = axes[1].imshow(weights, vmin=0, vmax=1, cmap="magma", extent=extent)
    figure.colorbar(image, ax=axes[1], shrink=0.85, label="weight")
    show(axes[2], filled, around, relief, "Filled: weighted means of all groups")
    for axis in axes:
        for row, col in members:
            axis.add_patch(Rectangle((col - 0.5, row - 0.5), px, px, fill=False, color="tab:blue", linewidth=1.5))
    return figure


def most_gaps(found: list[NDArray[np.intp]], missing: NDArray[np.bool_], frame: int, px: int) -> NDArray[np.intp]:
    """The corners of the group with the most missing cells among the groups with the most tiles."""

    def cells(corners: NDArray[np.intp]) -> int:
        return sum(int(missing[row : row + px, col : col + px].sum()) for row, col in corners + frame)

    return max(found, key=lambda corners: (len(corners), cells(corners)))


def show(axis: Axes, values: NDArray[np.float32], part: tuple[slice, slice], style: dict[str, Any], title: str) -> None:
    """Draw a part of a raster in its own rows and columns."""
    axis.imshow(values, **style)
    rows, cols = part
    axis.set(xlim=(cols.start - 0.5, cols.stop - 0.5), ylim=(rows.stop - 0.5, rows.start - 0.5))
    axis.set(xlabel="column", ylabel="row")
    axis.set_title(title, loc="left", fontsize=10)


if __name__ == "__main__":
    main()
