"""
Failed scan lines in the bands of an image
==========================================

Red, green and blue of a Landsat scene (from hvsampledata). Different scan lines are missing in each band. With
``across="band"``, each band is filled with the help of the others.
"""

import hvsampledata
import matplotlib.pyplot as plt
import numpy as np

import geonp  # noqa: F401  (registers .geonp)
from geonp.raster.gaps import stripe_gaps

scene = hvsampledata.landsat_rgb("rioxarray")
truth = next(iter(scene.data_vars.values())).isel(y=slice(30, 158), x=slice(50, 200)).load().astype("float32")
truth.name = "landsat"
rng = np.random.default_rng(1)
missing = np.stack([stripe_gaps(truth.shape[1:], 0.4, rng, angle=-0.2 + 0.02 * band) for band in range(3)])
raster = truth.where(~missing)

filled = raster.geonp.infill(across="band")["landsat"]

# %%
# Where all three bands are missing, cells are predicted from their surroundings.


def rgb(values):
    """An image for matplotlib; missing values are black."""
    low, high = np.percentile(truth, [1, 99])
    return np.nan_to_num(np.clip((values.transpose("y", "x", "band").values - low) / (high - low), 0, 1))


figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
for axis, (title, values) in zip(axes, {"Observed": raster, "Filled": filled, "Truth": truth}.items(), strict=True):
    axis.imshow(rgb(values))
    axis.set(title=title, xticks=[], yticks=[])
plt.show()
