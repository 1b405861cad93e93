"""
Means of regions, with correlated errors
========================================

The mean elevation of blocks under clouds. Errors of neighbouring cells are correlated, so the standard error of a mean
is larger than independent errors would give. ``aggregate`` accounts for this.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data

import geonp  # noqa: F401  (registers .geonp)
from geonp.raster.gaps import cloud_gaps

elevation = np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))["elevation"][:96, 240:368]
truth = xr.DataArray(elevation.astype("float32"), dims=("y", "x"), name="elevation")
raster = truth.where(~cloud_gaps(truth.shape, 0.4, np.random.default_rng(4)))
filled = raster.geonp.infill(samples=60)
blocks = filled.geonp.aggregate(16)
blocks.head()

# %%
# Each point is a block of 16 x 16 cells; the bars are 95 % intervals.

blocks["truth"] = truth.coarsen(y=16, x=16).mean().values.ravel()
partly = blocks[blocks["filled"] > 0]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
left.imshow(raster, cmap="gist_earth", vmin=200, vmax=1100)
left.set(
    title="Elevation under clouds, and the blocks", xticks=np.arange(-0.5, 128, 16), yticks=np.arange(-0.5, 96, 16)
)
left.grid(color="grey", lw=0.6)
left.tick_params(labelbottom=False, labelleft=False, length=0)
right.errorbar(
    partly["truth"], partly["value"], 1.96 * partly["standard_error"], fmt="o", ms=4, color="#2a788e", lw=0.8
)
right.axline((500, 500), slope=1, color="black", lw=0.8)
right.set(xlabel="true mean (m)", ylabel="mean of the fill (m)", title="Means of blocks")
plt.show()
