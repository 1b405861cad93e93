"""Draw the figure of docs/how-it-works.md: one gap in three random fields, filled without options.

Run as ``python examples/how_it_works_figure.py [docs/how-it-works.jpg]``.
"""

from __future__ import annotations

import sys
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from geonp.raster.gaps import cloud_gaps

SHAPE = (80, 100)


def main() -> None:
    """Fill the fields and save the figure."""
    draw(fields()).savefig(
        sys.argv[1] if len(sys.argv) > 1 else "docs/how-it-works.jpg", dpi=110, pil_kwargs={"quality": 88}
    )


def fields() -> dict[str, NDArray[np.float32]]:
    """Standardised random fields: smooth, rough with noise, and stretched."""
    rng = np.random.default_rng(3)
    white = rng.standard_normal((3, 2 * SHAPE[0], 2 * SHAPE[1]))
    smooth = gaussian_filter(white[0], 8)
    rough = gaussian_filter(white[1], 2.5) + 0.05 * rng.standard_normal(white[1].shape)
    stretched = gaussian_filter(white[2], (2, 14))
    rows, columns = SHAPE
    cut = {"Smooth": smooth, "Rough, with noise": rough, "Stretched": stretched}
    found = {name: field[:rows, :columns] for name, field in cut.items()}
    return {name: ((field - field.mean()) / field.std()).astype(np.float32) for name, field in found.items()}


def draw(truths: dict[str, NDArray[np.float32]]) -> Figure:
    """Each field with its gaps, filled, and its standard error: one row for each."""
    missing = cloud_gaps(SHAPE, 0.35, np.random.default_rng(5))
    figure, axes = plt.subplots(len(truths), 4, figsize=(11, 2.2 * len(truths)), layout="constrained", squeeze=False)
    for number, (name, truth) in enumerate(truths.items()):
        row = axes[number]
        filled = xr.DataArray(np.where(missing, np.nan, truth), dims=("y", "x"), name="field").geonp.infill()
        error = filled["field_standard_error"].values
        shown = [
            ("Observed", np.where(missing, np.nan, truth)),
            ("Filled", filled["field"].values),
            ("Truth", truth),
            ("Standard error", np.where(missing, error, np.nan)),
        ]
        for axis, (title, values) in zip(row, shown, strict=True):
            style: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -2.5, "vmax": 2.5}
            if title == "Standard error":
                style = {"cmap": "magma", "vmin": 0, "vmax": 1}
            image = axis.imshow(values, **style)
            axis.set(xticks=[], yticks=[], title="" if number else title)
        row[0].set_ylabel(name)
        figure.colorbar(image, ax=row[3], shrink=0.9)
    return figure


if __name__ == "__main__":
    main()
