"""An example for each command, printed below its help text."""

from __future__ import annotations

import click

EXAMPLES = {
    "": ("geonp info in.tif", "geonp fill in.tif out.tif"),
    "adapt": (
        "geonp adapt in.tif --out my.safetensors --minutes 5",
        "geonp fill in.tif out.tif --model my.safetensors",
    ),
    "aggregate": ("geonp aggregate filled.zarr basins.gpkg --out table.csv", "geonp aggregate filled.zarr --blocks 10"),
    "evaluate": ("geonp evaluate in.tif", "geonp evaluate in.nc --variable sst --holdout gaps --report report.html"),
    "fetch": ("geonp fetch era5 --area 62 -4 42 28 --start 2019-01-01 --end 2019-12-31 europe.zarr",),
    "fetch era5": ("geonp fetch era5 --area 62 -4 42 28 --start 2019-01-01 --end 2019-12-31 europe.zarr",),
    "fill": (
        "geonp fill dem.tif filled.tif --values-only",
        "geonp fill ndvi.nc filled.zarr --across time --gaps-where cloud_mask",
        "geonp fill rain.nc filled.nc --bounds 0, --exceed 1,10 --picture filled.png",
        "geonp fill in.zarr out.zarr --workers 8 --resume",
    ),
    "grid": (
        "geonp grid stations.csv out.tif --resolution 0.1 --value temp_c",
        "geonp grid stations.csv out.nc --like dem.tif --value temp_c --covariate elevation=dem.tif",
    ),
    "info": ("geonp info in.tif", "geonp info ndvi.nc --gaps-where cloud_mask"),
    "models": ("geonp models", "geonp models show tnpkr-sa"),
    "models list": ("geonp models list",),
    "models show": ("geonp models show tnpkr-sa", "geonp models show my.safetensors --json"),
    "plot": ("geonp plot filled.zarr", "geonp plot filled.nc picture.pdf --index time=3"),
    "recipes": ("geonp recipes", "geonp recipes cp tnpkr_sa_raster my.toml"),
    "recipes list": ("geonp recipes list",),
    "recipes cp": ("geonp recipes cp tnpkr_sa_raster my.toml",),
    "train": ("geonp train my.toml --out run", "geonp train gp1d_rbf --out run training.steps=1000"),
}
"""Examples by the words of the command after ``geonp``."""


def add_examples(command: click.Command, *words: str) -> None:
    """Print the examples of a command, and of those of a group, below their help texts."""
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        add_examples(inner, *words, name)
    lines = EXAMPLES[" ".join(words)]
    # \b keeps the lines from being wrapped
    command.epilog = "\n".join(["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)])
