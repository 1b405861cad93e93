"""
Soil with terrain and satellite bands as covariates
===================================================

Clay in the topsoil of 111 hectares in Mato Grosso, 112 samples (MG.112 of LimeSoDa). Quantities that are known
everywhere help between the samples: the electrical resistivity of the soil, the altitude and two satellite bands.
"""

import LimeSoDa
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import geonp

data = LimeSoDa.load_dataset("MG.112")
table = pd.concat([data["Dataset"], data["Coordinates"].set_index(data["Dataset"].index)], axis=1)
table = table.rename(columns={"x_32721": "x", "y_32721": "y", "Clay_target": "clay"})
covariates = ["ERa", "Altitude", "B04", "B11"]

# %%
# Every third sample is held out, and predicted without and with the covariates.

held = np.arange(len(table)) % 3 == 0
known, places = table[~held], table[held]
found = {
    "Without covariates": geonp.interpolate(known[["x", "y", "clay"]], places[["x", "y"]], values="clay"),
    "With covariates": geonp.interpolate(
        known[["x", "y", "clay", *covariates]], places[["x", "y", *covariates]], values="clay", covariates=covariates
    ),
}

# %%
# Where the resistivity is high, there is little clay. The held-out samples have a ring. With the covariates, their RMSE
# is two thirds of that without. Covariates do not always help: :func:`geonp.cross_validate` scores your measurements
# with and without them.

figure, axes = plt.subplots(2, 2, figsize=(9, 7.6), layout="constrained")
maps = {"clay": ("Clay, measured (%)", "YlOrBr"), "ERa": ("Electrical resistivity (ohm m)", "viridis_r")}
for axis, (column, (title, colours)) in zip(axes[0], maps.items(), strict=True):
    points = axis.scatter(table["x"], table["y"], c=table[column], s=90, cmap=colours)
    axis.scatter(places["x"], places["y"], s=90, facecolor="none", edgecolor="black", lw=0.8)
    axis.set(title=title, aspect="equal", xticks=[], yticks=[])
    figure.colorbar(points, ax=axis)
for axis, (title, result) in zip(axes[1], found.items(), strict=True):
    mean, error = result["clay"].values, result["clay_standard_error"].values
    axis.errorbar(places["clay"], mean, 1.96 * error, fmt="o", ms=5, lw=0.8, color="#2a788e", ecolor="#9ecae1")
    axis.plot([10, 65], [10, 65], color="black", lw=0.8)
    rmse = float(np.sqrt(np.mean((mean - places["clay"]) ** 2)))
    axis.set(title=f"{title}: RMSE {rmse:.1f} %", xlabel="measured (%)", ylabel="predicted (%), 95 % interval")
    axis.set(xlim=(10, 65), ylim=(5, 70))
plt.show()
