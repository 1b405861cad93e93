"""
Soil with terrain and satellite bands as covariates
===================================================

pH of the topsoil of a field in Brandenburg, 250 samples (BB.250 of LimeSoDa). What is known everywhere helps between
the samples: the electrical resistivity of the soil, its altitude and a vegetation index.
"""

import LimeSoDa
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import geonp

data = LimeSoDa.load_dataset("BB.250")
table = pd.concat([data["Dataset"], data["Coordinates"].set_index(data["Dataset"].index)], axis=1)
table = table.rename(columns={"x_25833": "x", "y_25833": "y", "pH_target": "pH"})
covariates = ["ERa", "Altitude", "NDVI", "G_Total_Counts"]

# %%
# Every third sample is kept aside.

held = np.arange(len(table)) % 3 == 0
known, places = table[~held], table[held]
found = {
    "without covariates": geonp.interpolate(known[["x", "y", "pH"]], places[["x", "y"]], values="pH"),
    "with covariates": geonp.interpolate(
        known[["x", "y", "pH", *covariates]], places[["x", "y", *covariates]], values="pH", covariates=covariates
    ),
}

figure, axes = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained", sharex=True, sharey=True)
for axis, (title, result) in zip(axes, found.items(), strict=True):
    mean, error = result["pH"].values, result["pH_standard_error"].values
    axis.errorbar(places["pH"], mean, 1.96 * error, fmt="o", ms=4, lw=0.6, color="#2a788e", ecolor="#9ecae1")
    axis.plot([5, 8], [5, 8], color="black", lw=0.8)
    rmse = float(np.sqrt(np.mean((mean - places["pH"]) ** 2)))
    axis.set(title=f"pH {title}: RMSE {rmse:.2f}", xlabel="measured", ylabel="predicted, 95 % interval")
plt.show()
