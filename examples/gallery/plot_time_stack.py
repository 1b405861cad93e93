"""
Clouds in a stack of dates
==========================

Five days of air temperature over North America, every six hours (NCEP reanalysis, from hvsampledata). A cloud hides
the middle of one of them; the other dates are complete. With ``across="time"`` the gap is filled from them and from
its surroundings.
"""

import hvsampledata
import matplotlib.pyplot as plt
import numpy as np

import geonp  # noqa: F401  (registers .geonp)

stack = hvsampledata.air_temperature("xarray")["air"].load().astype("float32")
date = 9
raster = stack.copy()
raster[date, 5:19, 12:40] = np.nan

alone = raster.isel(time=[date]).geonp.infill()["air"][0]
filled = raster.geonp.infill(across="time").isel(time=date)
truth, gap = stack[date], raster[date].isnull()

# %%
# The dates before and after predict most of what is under the cloud.

for name, values in {"alone": alone, "across time": filled["air"]}.items():
    error = float(np.sqrt(((values - truth).where(gap) ** 2).mean()))
    print(f"root mean square error {name}: {error:.2f} K")

figure, axes = plt.subplots(2, 2, figsize=(10, 6), layout="constrained", sharex=True, sharey=True)
shown = {"Observed": raster[date], "Filled alone": alone, "Filled across time": filled["air"], "Truth": truth}
for axis, (title, values) in zip(axes.flat, shown.items(), strict=True):
    image = axis.contourf(truth.lon, truth.lat, values, levels=np.arange(235, 306, 5), cmap="RdYlBu_r", extend="both")
    axis.set_title(title)
figure.colorbar(image, ax=axes, label="air temperature (K)")
plt.show()
