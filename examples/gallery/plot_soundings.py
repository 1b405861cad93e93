"""
A map from a few per cent of its cells
======================================

Heights and depths around Vancouver Island (from matplotlib), of which only 4 % are known, as for soundings, drill
holes or lidar shots in the cells of a raster.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data
from matplotlib.colors import TwoSlopeNorm

import geonp  # noqa: F401  (registers .geonp)

data = np.load(get_sample_data("topobathy.npz", asfileobj=False))
truth = xr.DataArray(
    data["topo"].astype("float32"),
    {"lat": data["latitude"], "lon": data["longitude"]},
    ("lat", "lon"),
    "height",
    {"units": "m"},
)
known = np.random.default_rng(0).random(truth.shape) < 0.04
filled = truth.where(known).geonp.infill()

# %%
# The coast and the mountains are reproduced between the few known cells, single peaks are not.

figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained", sharex=True, sharey=True)
style = {"cmap": "terrain", "norm": TwoSlopeNorm(0, -1400, 2000), "add_colorbar": False}
truth.where(known).plot(ax=axes[0, 0], **style)
axes[0, 0].set_title(f"Known: {known.mean():.0%} of the cells")
image = filled["height"].plot(ax=axes[0, 1], **style)
axes[0, 1].set_title("Filled")
truth.plot(ax=axes[1, 0], **style)
axes[1, 0].set_title("Truth")
error = filled["height_standard_error"].where(~known)
error.plot(ax=axes[1, 1], cmap="magma", cbar_kwargs={"label": "standard error (m)"})
axes[1, 1].set_title("Standard error")
figure.colorbar(image, ax=axes[0, 1], label="height (m)")
plt.show()
