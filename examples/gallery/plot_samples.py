"""
Possible terrains: joint samples
================================

A filled gap is a mean, and smoother than terrain, so slopes computed from it are too small. Joint samples are possible
terrains: their slopes are realistic, and the spread of the slopes is their uncertainty.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data
from matplotlib.colors import LightSource

import geonp  # noqa: F401  (registers .geonp)

elevation = np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))["elevation"][110:190, 150:270]
truth = xr.DataArray(elevation.astype("float32"), dims=("y", "x"), name="elevation")
missing = np.zeros(truth.shape, bool)
missing[15:65, 30:90] = True
filled = truth.where(~missing).geonp.infill(samples=12)


def slope(values):
    """Mean slope in the gap, in metres per cell."""
    return np.hypot(*np.gradient(values))[missing].mean()


samples = filled["elevation_sample"].transpose("sample", "y", "x").values
print(f"slope in the gap: truth {slope(truth.values):.1f}, mean {slope(filled['elevation'].values):.1f}")
print(f"samples {np.mean([slope(one) for one in samples]):.1f} m per cell")

# %%
light = LightSource(azdeg=315, altdeg=45)
figure, axes = plt.subplots(2, 3, figsize=(11, 5.2), layout="constrained")
shown = {"Truth": truth.values, "Filled (mean)": filled["elevation"].values}
shown |= {f"Sample {number + 1}": samples[number] for number in range(4)}
for axis, (title, values) in zip(axes.flat, shown.items(), strict=True):
    axis.imshow(light.shade(values, plt.cm.gist_earth, vert_exag=0.06, vmin=200, vmax=1100))
    axis.add_patch(plt.Rectangle((30, 15), 60, 50, fill=False, color="white", lw=0.8))
    axis.set(title=title, xticks=[], yticks=[])
plt.show()
