"""
Voids in an elevation model
===========================

Stripes like those of Landsat 7 and clouds hide a third of the terrain around the Jacksboro fault, Tennessee (USGS,
from matplotlib). geonp fills them, with a standard error for each cell.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data
from matplotlib.colors import LightSource

import geonp  # noqa: F401  (registers .geonp)
from geonp.raster.gaps import cloud_gaps, stripe_gaps

elevation = np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))["elevation"][:192, :256]
truth = xr.DataArray(elevation.astype("float32"), dims=("y", "x"), name="elevation", attrs={"units": "m"})
rng = np.random.default_rng(7)
missing = stripe_gaps(truth.shape, 0.22, rng, angle=-0.17) | cloud_gaps(truth.shape, 0.15, rng)
raster = truth.where(~missing)

# %%
# One call fills the raster. Observed cells keep their values bit by bit.

filled = raster.geonp.infill()
filled

# %%
# The root mean square error of the hidden cells is about equal to their standard errors.

error = (filled["elevation"] - truth).values[missing]
expected = filled["elevation_standard_error"].values[missing]
print(f"root mean square error {np.sqrt((error**2).mean()):.1f} m, expected {np.sqrt((expected**2).mean()):.1f} m")
print(f"{(np.abs(error) < 1.96 * expected).mean():.1%} of the errors are within 1.96 standard errors")

# %%
# Shaded relief would show seams between tiles.

light = LightSource(azdeg=315, altdeg=45)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
for axis, (title, values) in zip(axes, [("With gaps", raster), ("Filled", filled["elevation"])], strict=False):
    shade = light.shade(np.nan_to_num(values.values, nan=400), plt.cm.gist_earth, vert_exag=0.06, vmin=200, vmax=1000)
    shade[values.isnull().values] = (1, 1, 1, 1)
    axis.imshow(shade)
    axis.set_title(title)
image = axes[2].imshow(filled["elevation_standard_error"], cmap="magma")
axes[2].set_title("Standard error")
figure.colorbar(image, ax=axes[2], label="m", shrink=0.9)
for axis in axes:
    axis.set_xticks([])
    axis.set_yticks([])
plt.show()
