"""Swaths: files of cells with places of their own, put together to daily fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.io.measurements import read_table
from geonp.io.tables import read_all
from geonp.raster.times import times_of

from ..commands import cli, says


def field(lat: Any, lon: Any) -> Any:
    return 10 + np.sin(lat) + 0.3 * lon


@pytest.fixture(scope="module")
def swaths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three overlapping swaths on two days, the second day 5 warmer."""
    folder, paths = tmp_path_factory.mktemp("swaths"), []
    for k, start in enumerate(["2020-05-01T01:30", "2020-05-01T13:30", "2020-05-02T02:00"]):
        along, across = np.arange(12)[:, None] / 3, np.arange(8) / 3
        lat, lon = 50 + along - 0.1 * across, 1.5 * (k % 2) + across + 0.1 * along
        values = field(lat, lon) + 5 * (k == 2)
        values[4:6, 3:] = np.nan
        time = pd.Timestamp(start) + pd.to_timedelta(np.arange(12), "s")
        ds = xr.Dataset({"sst": (("row", "col"), values, {"units": "degC"})}, {"time": ("row", time)})
        ds = ds.assign_coords(lat=(("row", "col"), lat), lon=(("row", "col"), lon))
        paths.append(folder / f"{k}.nc")
        ds.to_netcdf(paths[-1])
    return paths


def test_swaths_become_daily_fields(swaths: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "days.nc"
    options = ["--resolution", "1", "--bounds", "1", "51", "4", "53", "--time", "time", "--every", "1D"]
    cli("grid", *swaths, out, *options)
    with xr.open_dataset(out) as found:
        np.testing.assert_array_equal(found["time"], pd.to_datetime(["2020-05-01", "2020-05-02"]))
        assert found["sst_standard_error"].attrs["units"] == "degC"
        off = found["sst"] - field(found["lat"], found["lon"]) - xr.DataArray([0, 5], dims="time")
        # the second day saw the west alone: the first says how the east differs
        assert float(np.abs(off).max()) < 0.15


def test_swaths_are_targets(swaths: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "swath.nc"
    cli("grid", swaths[0], out, "--like", swaths[1])
    with xr.open_dataset(out) as found, xr.open_dataset(swaths[1]) as like:
        assert found["sst"].dims == ("row", "col")
        np.testing.assert_allclose(found["lat"], like["lat"])
        near = like["lon"] < 2.4
        assert float(np.abs(found["sst"] - field(like["lat"], like["lon"])).where(near).max()) < 0.3


def test_cells_of_swaths_are_rows_and_files_must_agree(swaths: list[Path], tmp_path: Path) -> None:
    ds = xr.open_dataset(swaths[0])
    assert len(read_table(ds, "sst", None, None).xy) == 96
    with pytest.raises(InputError, match=r"has dimensions \('row', 'col'\), expected one"):
        read_table(ds.assign_coords(lat=("row", ds["lat"].values[:, 0])), "sst", None, None)
    table = read_table(read_all(swaths), None, None, None, ["time"]).timed("time", "1D")
    assert table.times is not None
    np.testing.assert_array_equal(np.bincount(table.times.of_rows), [192, 96])
    other = tmp_path / "other.nc"
    ds.assign(sst=ds["sst"].assign_attrs(units="K")).to_netcdf(other)
    with pytest.raises(InputError, match="has other units than"):
        read_all([swaths[0], other])
    with pytest.raises(InputError, match=r"every \(--every\) must be a length of time .* got '1X' for 'time'"):
        times_of(pd.Series(ds["time"].values, name="time"), "1X")
    with pytest.raises(InputError, match=r"must be a length of time .* got '-1D' for 'time'"):
        times_of(pd.Series(ds["time"].values, name="time"), "-1D")
    apart = pd.Series(pd.to_datetime(["2020-05-01T01", "2020-05-02T13"]), name="time")
    with pytest.warns(
        UserWarning, match="No row lies in 2 of the 4 periods of 12h from 2020-05-01 to 2020-05-02 12:00"
    ):
        assert len(times_of(apart, "12h").values) == 2
    with pytest.raises(InputError, match="got '1D' for 'year', which holds 2000"):
        times_of(pd.Series([2000, 2001], name="year"), "1D")


def l2p(path: Path, start: str, lon: float) -> Path:
    """A swath as GHRSST L2P has it: packed, one time for the file, and seconds from it for each cell."""
    along, across = np.arange(12)[:, None] / 3, np.arange(8) / 3
    dims = ("time", "nj", "ni")
    lat, lon = 50 + along - 0.1 * across, lon + across + 0.1 * along
    quality = np.where(np.arange(96).reshape(1, 12, 8) % 5, 5, 2).astype("i1")
    sst = np.where(quality == 5, 280 + field(lat, lon), 250.0)
    seconds = np.broadcast_to(np.arange(12.0)[None, :, None] * 600, (1, 12, 8)).copy()
    seconds[0, 0, 0] = np.nan  # unknown: the time of the file
    at = {"units": "seconds since 1981-01-01 00:00:00", "dtype": "i4"}
    ds = xr.Dataset(
        {
            "sea_surface_temperature": (
                dims,
                sst,
                {"units": "kelvin", "standard_name": "sea_surface_skin_temperature"},
            ),
            "sst_dtime": (dims, seconds, {"units": "seconds"}),
            "sses_bias": (dims, 0 * sst + 0.1, {"units": "kelvin"}),
            "quality_level": (dims, quality, {"flag_meanings": "low best", "flag_values": np.array([2, 5], "i1")}),
        },
        {"time": ("time", pd.to_datetime([start])), "lat": (("nj", "ni"), lat), "lon": (("nj", "ni"), lon)},
    )
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    encoding = {"time": at, "sea_surface_temperature": packed, "sst_dtime": {"dtype": "i2", "_FillValue": -32768}}
    ds.to_netcdf(path, encoding=encoding)
    return path


def test_each_cell_of_a_ghrsst_swath_has_its_time(tmp_path: Path) -> None:
    files = [l2p(tmp_path / "0.nc", "2020-05-01T23:00", 0.0), l2p(tmp_path / "1.nc", "2020-05-02T12:00", 1.0)]
    expected = np.repeat(np.datetime64("2020-05-01T23:00", "ns") + np.arange(12) * np.timedelta64(600, "s"), 8)
    name, time = "sea_surface_temperature", ["time"]
    decoded = [xr.open_dataset(files[0], decode_timedelta=as_time) for as_time in (True, False)]
    for ds in (read_all(files[:1]), *decoded):
        table = read_table(ds, name, None, None, time)
        np.testing.assert_array_equal(table.covariates["time"], expected)
        np.testing.assert_array_equal(table.xy[:, 1], decoded[0]["lat"].values.ravel())
    both = read_table(read_all(files), name, None, None, time)
    np.testing.assert_array_equal(both.covariates["time"][:96], expected)
    np.testing.assert_array_equal(both.covariates["time"][96:], expected + np.timedelta64(13, "h"))


def test_the_command_makes_daily_fields_of_ghrsst_swaths(tmp_path: Path) -> None:
    files = [l2p(tmp_path / "0.nc", "2020-05-01T23:00", 0.0), l2p(tmp_path / "1.nc", "2020-05-02T12:00", 1.0)]
    out = tmp_path / "o.nc"
    options = ["--resolution", 1, "--bounds", 1, 51, 3, 53, "--time", "time", "--every", "1D"]
    refused = says("grid", *files, out, *options, code=1).replace("\n", " ")
    assert "numeric columns ['sea_surface_temperature', 'sses_bias', 'quality_level'] besides" in refused
    options += ["--value", "sea_surface_temperature", "--where", "quality_level=best"]
    summary = json.loads(says("grid", *files, out, *options, "--json"))
    assert summary["points"] == {"sea_surface_temperature": 152}
    with xr.open_dataset(out) as found:
        # the first file ends on the second day
        np.testing.assert_array_equal(found["time"], pd.to_datetime(["2020-05-01", "2020-05-02"]))
        off = found["sea_surface_temperature"] - 280 - field(found["lat"], found["lon"])
        assert float(np.abs(off).max()) < 0.5
        assert found["sea_surface_temperature"].attrs["units"] == "kelvin"
    summary = json.loads(says("grid", files[0], out, *options, "--where", "time<2020-05-02", "--overwrite", "--json"))
    assert summary["points"] == {"sea_surface_temperature": 38}
