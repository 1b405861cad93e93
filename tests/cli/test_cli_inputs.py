"""Rasters and tables as people have them, from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

from geonp.cli.app import main

GAPS = np.zeros((12, 14), bool)
GAPS[3:6, 4:8] = True
VALUES = np.add.outer(np.arange(12.0), np.arange(14.0))


def run(*arguments: object, fails: bool = False) -> str:
    """Output of a command, which must end without a traceback."""
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == (1 if fails else 0), done.output
    return done.output


def write_nc(path: Path, values: np.ndarray, attrs: dict[str, object] | None = None, **coords: object) -> Path:
    dims = ("time", "lat", "lon")[-values.ndim :]
    places = {"lat": 50 - 0.5 * np.arange(12), "lon": 5 + 0.5 * np.arange(14)}
    xr.Dataset({"a": (dims, values, attrs or {})}, {**places, **coords}).to_netcdf(path, engine="netcdf4")
    return path


def test_nodata_beyond_2_to_the_53(tmp_path: Path, model: str) -> None:
    nodata = 2**60 + 1
    source = write_nc(tmp_path / "a.nc", np.where(GAPS, nodata, VALUES.astype("i8")))
    done = run("fill", source, tmp_path / "b.nc", "--nodata", nodata, "--model", model)
    assert done.startswith("Filled 12 cells")
    with xr.open_dataset(tmp_path / "b.nc", engine="netcdf4", decode_cf=False) as found:
        assert found["a"].attrs["_FillValue"] == nodata
        assert found["a"].max() < 30


@pytest.mark.parametrize("name", ["b.nc", "b.zarr", "b.tif"])
@pytest.mark.parametrize(
    ("units", "calendar"), [("years since 2000-01-01", "standard"), ("months since 1960-01-01", "360_day")]
)
def test_times_that_no_reader_decodes_do_not_stop_a_fill(
    tmp_path: Path, model: str, name: str, units: str, calendar: str
) -> None:
    time = ("time", [0.5, 1.5], {"units": units, "calendar": calendar})
    source = write_nc(tmp_path / "a.nc", np.where(GAPS, np.nan, np.stack([VALUES, VALUES])), time=time)
    assert "Filled 24 cells" in run("fill", source, tmp_path / name, "--model", model)
    if name != "b.tif":
        engine = "zarr" if name == "b.zarr" else "netcdf4"
        with xr.open_dataset(tmp_path / name, engine=engine, decode_times=False) as found:
            assert (found["time"].values.tolist(), found["time"].attrs["units"]) == ([0.5, 1.5], units)
