"""Results follow CF, and GDAL's own programs read what is written."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rioxarray  # noqa: F401  (registers .rio)
import xarray as xr

import geonp


@pytest.fixture
def raster() -> xr.Dataset:
    values = np.add.outer(np.arange(20.0), np.arange(24.0)).astype("float32")
    values[5:9, 5:9] = np.nan
    lat = ("lat", np.linspace(50, 45, 20), {"standard_name": "latitude", "units": "degrees_north"})
    lon = ("lon", np.linspace(-10, -4, 24), {"standard_name": "longitude", "units": "degrees_east"})
    attrs = {"standard_name": "sea_surface_temperature", "units": "degC"}
    ds = xr.Dataset({"sst": (("lat", "lon"), values, attrs)}, {"lat": lat, "lon": lon})
    return ds.rio.write_crs("EPSG:4326")


def test_all_that_is_added_has_a_name_and_differences_are_marked(raster: xr.Dataset, model: str) -> None:
    every = {"quantiles": [0.1, 0.9], "exceed": [12], "samples": 2, "tails": True, "bounds": (-5, None)}
    stations = pd.DataFrame({"lon": [-9.0, -8, -7, -6, -5], "lat": [46.0, 49, 47, 48, 46], "t": [1.0, 2, 3, 4, 5]})
    zones = xr.DataArray([[0, 1, 1, -1], [0, 0, 1, 1]] * 4, dims=("y", "x"), name="zone").astype("int16")
    zones.attrs = {"flag_values": np.arange(2, dtype="int16"), "flag_meanings": "a b", "_FillValue": -1}
    results = [
        raster.geonp.infill(model=model, **every),
        geonp.interpolate(stations, at=raster, model=model, values="t", quantiles=[0.5]),
        zones.geonp.infill(class_probabilities=True).drop_vars(["zone", "x", "y"], errors="ignore"),
    ]
    grids = [geonp.lattice(*grid).coords for grid in (((-10, 45, -4, 50), 1, 4326), ((0, 0, 900, 900), 90, 32632))]
    added = [result.drop_vars(["sst", "lat", "lon"], errors="ignore").variables for result in results]
    for variables in (*added, *grids):
        nameless = [
            name for name, variable in variables.items() if not {"long_name", "grid_mapping_name"} & set(variable.attrs)
        ]
        assert nameless == []
    assert results[0]["sst_standard_error"].attrs["units_metadata"] == "temperature: difference"


@pytest.mark.skipif(shutil.which("gdalinfo") is None, reason="needs gdal-bin")
@pytest.mark.parametrize("name", ["out.tif", "out.nc", "out.zarr"])
def test_gdalinfo_reads_values_georeference_and_nodata(
    raster: xr.Dataset, model: str, tmp_path: Path, name: str
) -> None:
    filled = raster.geonp.infill(model=model)
    if name.endswith(".zarr"):
        raster.geonp.fill_store(tmp_path / name, model=model, zarr_format=2)  # before 3.11, GDAL reads this one only
        source = f'ZARR:"{tmp_path / name}":/sst'
    else:
        geonp.write_raster(filled, tmp_path / name)
        source = f'NETCDF:"{tmp_path / name}":sst' if name.endswith(".nc") else str(tmp_path / name)
    done = subprocess.run(
        ["gdalinfo", "-json", "-stats", source], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["size"] == [24, 20]
    assert found["bands"][0]["maximum"] == pytest.approx(42, abs=0.01)
    corner = found["geoTransform"][0], found["geoTransform"][3]
    assert corner == pytest.approx((-10 - 3 / 23, 50 + 2.5 / 19), abs=1e-3)
    # its reader of Zarr takes no grid mapping for one before 3.9
    assert name.endswith(".zarr") or "WGS 84" in json.dumps(found["coordinateSystem"])
