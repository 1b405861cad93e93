"""
Directions
==========

The downslope direction of smoothed terrain. The mean of 350 and 10 degrees is 0, so directions are filled as unit
vectors. Their standard error is a circular standard deviation.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data
from scipy.ndimage import gaussian_filter

import geonp  # noqa: F401  (registers .geonp)
from geonp.raster.gaps import cloud_gaps

elevation = np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))["elevation"][:100, :140]
down, right = np.gradient(gaussian_filter(elevation.astype("float32"), 4))
aspect = xr.DataArray(np.degrees(np.arctan2(-right, down)) % 360, dims=("y", "x"), name="aspect")
missing = cloud_gaps(aspect.shape, 0.35, np.random.default_rng(8))
filled = aspect.where(~missing).geonp.infill(circular=True)

# %%
figure, axes = plt.subplots(2, 2, figsize=(9, 6.6), layout="constrained")
maps = {"Observed": aspect.where(~missing), "Filled": filled["aspect"], "Truth": aspect}
for axis, (title, values) in zip(axes.flat, maps.items(), strict=False):
    image = axis.imshow(values, cmap="twilight", vmin=0, vmax=360)
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(image, ax=axes[0, 1], label="degrees", ticks=[0, 90, 180, 270, 360])
image = axes[1, 1].imshow(filled["aspect_standard_error"].where(missing), cmap="magma", vmin=0, vmax=90)
axes[1, 1].set(title="Circular standard deviation", xticks=[], yticks=[])
figure.colorbar(image, ax=axes[1, 1], label="degrees")
plt.show()
