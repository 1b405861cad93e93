"""
Is it better than what I use now?
=================================

``evaluate`` hides cells of your own raster, and scores geonp beside classical methods. Here: sea floor and mountains
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
# Where errors are, and how they compare with what was expected.

comparison.plot()
plt.show()
