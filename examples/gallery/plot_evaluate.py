"""
Compare geonp with classical methods
====================================

``evaluate`` hides cells of your own raster, and compares geonp with classical methods. Here: sea floor and mountains
around Vancouver Island (from matplotlib), with a quarter of the cells under clouds.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data

import geonp  # noqa: F401  (registers .geonp)

data = np.load(get_sample_data("topobathy.npz", asfileobj=False))
raster = xr.DataArray(data["topo"].astype("float32"), dims=("y", "x"), name="height", attrs={"units": "m"})
comparison = raster.geonp.evaluate(baselines=["nearest", "linear", "gdal", "kriging"])
print(comparison)

# %%
# The errors of geonp and of kriging, with the same colours.

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for axis, method in zip(axes, ("geonp", "kriging"), strict=True):
    error = np.where(comparison.scored, comparison.predictions[method].mean - comparison.truth, np.nan)
    image = axis.imshow(error, cmap="RdBu_r", vmin=-300, vmax=300)
    axis.set_title(f"{method}: RMSE {comparison.scores[method].rmse:.0f} m")
figure.colorbar(image, ax=axes, label="filled minus truth (m)")
plt.show()
