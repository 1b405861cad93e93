"""
A class map under clouds
========================

Zones of elevation as a map of five classes. The mean of two classes is no class, so each missing cell gets the most
probable of the classes around it, with its probability.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data
from matplotlib.colors import ListedColormap

import geonp  # noqa: F401  (registers .geonp)
from geonp.raster.gaps import cloud_gaps

elevation = np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))["elevation"][:112, 140:300]
zones = np.digitize(elevation, np.quantile(elevation, [0.2, 0.4, 0.6, 0.8])).astype("int16")
attrs = {"flag_values": np.arange(5, dtype="int16"), "flag_meanings": "plain foot slope ridge summit", "_FillValue": -1}
truth = xr.DataArray(zones, dims=("y", "x"), name="zone", attrs=attrs)
missing = cloud_gaps(truth.shape, 0.35, np.random.default_rng(3))
filled = truth.where(~missing, -1).geonp.infill()

right = (filled["zone"] == truth).values[missing]
probability = filled["zone_probability"].values[missing]
print(f"correct in {right.mean():.0%} of the hidden cells, expected in {probability.mean():.0%}")

# %%
colours = ListedColormap(["#31688e", "#35b779", "#b5de2b", "#d8a657", "#f7f4ea"])
figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
maps = {"Observed": truth.where(~missing), "Filled": filled["zone"], "Truth": truth}
for axis, (title, values) in zip(axes.flat, maps.items(), strict=False):
    axis.imshow(values, cmap=colours, vmin=-0.5, vmax=4.5, interpolation="nearest")
    axis.set(title=title, xticks=[], yticks=[])
image = axes[1, 1].imshow(filled["zone_probability"].where(missing), cmap="magma", vmin=0.2, vmax=1)
axes[1, 1].set(title="Probability of the class", xticks=[], yticks=[])
figure.colorbar(image, ax=axes[1, 1])
plt.show()
