"""
A soil map from samples, and where it exceeds a limit
=====================================================

Zinc in the floodplain of the Meuse (155 samples; Rikken and Van Rijn, from scikit-gstat). Concentrations are positive
and skewed: ``bounds=(0, None)``. The last map is the probability of more than 500 mg/kg.
"""

import matplotlib.pyplot as plt
import pandas as pd
import skgstat

import geonp

places, zinc = skgstat.data.meuse(variable="zinc")["sample"]
table = pd.DataFrame({"x": places[:, 0], "y": places[:, 1], "zinc": zinc.ravel()})
grid = geonp.lattice((178400, 329500, 181600, 333800), resolution=40, crs="EPSG:28992")
soil = geonp.interpolate(table, grid, values="zinc", bounds=(0, None), exceed=[500], max_distance=150)

# %%
# The maps end 150 m from the samples: ``max_distance`` is in the unit of the coordinates, here metres.

figure, axes = plt.subplots(1, 3, figsize=(12, 5), layout="constrained", sharex=True, sharey=True)
maps = [
    ("Zinc (mg/kg)", soil["zinc"], {"cmap": "YlOrBr", "vmin": 0, "vmax": 1200}),
    ("Standard error (mg/kg)", soil["zinc_standard_error"], {"cmap": "magma"}),
    ("Probability of more than 500 mg/kg", soil["zinc_exceedance"][0], {"cmap": "RdYlGn_r", "vmin": 0, "vmax": 1}),
]
for axis, (title, values, style) in zip(axes, maps, strict=True):
    values.plot(ax=axis, cbar_kwargs={"label": "", "shrink": 0.7}, **style)
    axis.scatter(table["x"], table["y"], s=4, color="black")
    axis.set(title=title, aspect="equal", xlabel="", ylabel="")
plt.show()
