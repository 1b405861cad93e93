"""
A portrait from a tenth of its pixels
=====================================

geonp also fills pictures: a portrait of Rear Admiral Grace Hopper (US Navy, from matplotlib), of which one pixel in ten
is known.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data

import geonp  # noqa: F401  (registers .geonp)

picture = plt.imread(get_sample_data("grace_hopper.jpg", asfileobj=False))[40:440:3, 60:460:3].mean(axis=2)
truth = xr.DataArray(picture.astype("float32"), dims=("y", "x"), name="grey")
known = np.random.default_rng(0).random(truth.shape) < 0.1
filled = truth.where(known).geonp.infill()

# %%
figure, axes = plt.subplots(1, 4, figsize=(13, 3.7), layout="constrained")
shown = {"One pixel in ten": truth.where(known), "Filled": filled["grey"], "Truth": truth}
for axis, (title, values) in zip(axes, shown.items(), strict=False):
    axis.imshow(values, cmap="gray", vmin=0, vmax=255)
    axis.set_title(title)
axes[3].imshow(filled["grey_standard_error"], cmap="magma")
axes[3].set_title("Standard error")
for axis in axes:
    axis.set(xticks=[], yticks=[])
plt.show()
