"""
Larger than memory: chunks, and the plan
========================================

A dask array is filled chunk by chunk, when it is computed. Chunks do not change the result. ``plan`` predicts the
number of tiles and the peak memory of a fill before it starts.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data

import geonp  # noqa: F401  (registers .geonp)
from geonp.raster.gaps import swath_gaps

elevation = np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))["elevation"][:128, :128]
truth = xr.DataArray(elevation.astype("float32"), dims=("y", "x"), name="elevation", attrs={"units": "m"})
raster = truth.where(~swath_gaps(truth.shape, 0.2, np.random.default_rng(1)))

lazy = raster.chunk({"y": 43, "x": 43})
print(lazy.geonp.plan())
filled = lazy.geonp.infill()
filled

# %%
whole = raster.geonp.infill()
difference = float(np.abs(filled["elevation"] - whole["elevation"]).max())
print(f"largest difference between chunks of 43 x 43 cells and one chunk: {difference:.4f} m")

figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
shown = {"Observed": raster, "Filled in 9 chunks": filled["elevation"], "Truth": truth}
for axis, (title, values) in zip(axes, shown.items(), strict=True):
    image = axis.imshow(values, cmap="gist_earth", vmin=200, vmax=1000)
    axis.set(title=title, xticks=[], yticks=[])
for line in (42.5, 85.5):
    axes[1].axhline(line, color="white", lw=0.5, ls=":")
    axes[1].axvline(line, color="white", lw=0.5, ls=":")
figure.colorbar(image, ax=axes, label="elevation (m)")
plt.show()
