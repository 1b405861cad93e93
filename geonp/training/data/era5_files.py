"""Files from the Climate Data Store: whether they match the request, and their CF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import FetchError

Area = tuple[float, float, float, float]
"""North, west, south, east, degrees."""

DATASET = "reanalysis-era5-single-levels"
"""Name of the dataset in the data store."""


@dataclass(frozen=True)
class _Expected:
    temperatures_k: tuple[float, float] = (150.0, 350.0)  # air temperatures on Earth, with a margin
    step: float = 0.25  # spacing of the grid, degrees
    geopotential_tolerance: float = 10.0  # between files, m2 s-2: each is packed with its own scale


_EXPECTED = _Expected()

_ATTRS: dict[str, dict[str, str]] = {
    "t2m": {"standard_name": "air_temperature", "long_name": "2 metre temperature", "units": "K"},
    "z": {"standard_name": "surface_geopotential", "long_name": "geopotential of the surface", "units": "m2 s-2"},
    "latitude": {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"},
    "longitude": {"standard_name": "longitude", "units": "degrees_east", "axis": "X"},
    "time": {"standard_name": "time", "axis": "T"},
}
_ATTRS["z"]["comment"] = "divide by 9.80665 m s-2 for the elevation"
_GLOBAL = {
    "Conventions": "CF-1.11",
    "title": "ERA5 hourly 2 m temperature",
    "source": f"Copernicus Climate Data Store, {DATASET}",
    "license": "contains modified Copernicus Climate Change Service information",
}


def checked(part: Path, hours: Any, area: Area) -> xr.Dataset:
    """Read the fields of a file, renamed and with CF metadata, and check hours, grid and values.

    Raises FetchError if the file does not match the request.
    """
    with xr.open_dataset(part, engine="netcdf4") as stored:
        names = {"valid_time": "time", "geopotential": "z"}
        ds = stored.rename({old: new for old, new in names.items() if old in stored.variables}).load()
    missing = [name for name in ("t2m", "z", "time", "latitude", "longitude") if name not in ds.variables]
    if missing:
        raise FetchError(f"it has no {', '.join(missing)}")
    if ds["time"].shape != hours.shape or (ds["time"].values.astype("datetime64[ns]") != hours).any():
        raise FetchError(f"it has {ds.sizes['time']} hours, expected the {len(hours)} of the requested days")
    _check_grid(ds["latitude"].values, ds["longitude"].values, area)
    if ds["t2m"].dims != ("time", "latitude", "longitude"):
        raise FetchError(f"its temperatures have dimensions {ds['t2m'].dims}, expected time, latitude, longitude")
    low, high = _EXPECTED.temperatures_k
    if not bool(((ds["t2m"] >= low) & (ds["t2m"] <= high)).all()) or not bool(np.isfinite(ds["z"]).all()):
        raise FetchError(f"it has missing values, or temperatures outside of {low:g} to {high:g} K")
    still = ds["z"].isel(time=0, drop=True) if "time" in ds["z"].dims else ds["z"]
    coords = {name: ds[name] for name in ("time", "latitude", "longitude")}
    return described(xr.Dataset({"t2m": ds["t2m"].astype(np.float32), "z": still.astype(np.float32)}, coords))


def _check_grid(latitude: Any, longitude: Any, area: Area) -> None:
    """Check that the cells are 0.25 degrees apart, from north to south and west to east, and cover the area."""
    step, steps = _EXPECTED.step, np.concatenate([-np.diff(latitude), np.diff(longitude)])
    if not np.allclose(steps, step, rtol=0, atol=1e-3):
        raise FetchError(
            f"its cells are {steps.min():g} to {steps.max():g} degrees apart, expected {step}, rows from north to south"
        )
    ends = np.array([latitude.max(), longitude.min(), latitude.min(), longitude.max()])
    off = ends - area
    off[1::2] = (off[1::2] + 180) % 360 - 180
    on_grid = np.abs(np.divide(area, step) - np.round(np.divide(area, step))) < 1e-3
    # around the globe, the last column is one step before the first
    on_grid[3] &= area[3] - area[1] < 360
    if (np.abs(off) > np.where(on_grid, 1e-3, step)).any():
        got, expected = (" ".join(f"{end:g}" for end in each) for each in (ends, area))
        raise FetchError(f"it spans {got}, expected {expected}")


def check_same(fields: xr.Dataset, lattice: xr.Dataset | None) -> None:
    """Check that a file has the grid and the geopotential of the store."""
    if lattice is None:
        return
    for name in ("latitude", "longitude"):
        got, expected = fields[name].values, lattice[name].values
        if not np.array_equal(got, expected):
            raise FetchError(
                f"its {name} has {len(got)} values from {got[0]:g} to {got[-1]:g}, expected the {len(expected)} from "
                f"{expected[0]:g} to {expected[-1]:g} of the store"
            )
    if (off := float(np.abs(fields["z"].values - lattice["z"].values).max())) > _EXPECTED.geopotential_tolerance:
        raise FetchError(f"its geopotential differs from the store's by {off:g} m2 s-2, expected the same surface")


def described(ds: xr.Dataset) -> xr.Dataset:
    """`ds` with CF metadata in place of its own."""
    ds = ds.drop_vars([name for name in ds.coords if name not in _ATTRS])
    for name, variable in ds.variables.items():
        variable.attrs, variable.encoding = dict(_ATTRS[str(name)]), {}
    ds.attrs = dict(_GLOBAL)
    return ds
