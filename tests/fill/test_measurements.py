"""Measurements beside a raster: in its gaps, with an offset and errors of their own."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.fill.measurements import _conversion, _slices, _warn_of_times
from geonp.io.measurements import read_table
from geonp.raster.variable import Variable

from ..commands import cli, says


def field(y: Any, x: Any) -> Any:
    return np.sin(x / 5) * np.cos(y / 4) + 0.02 * x


@pytest.fixture(scope="module")
def raster(float32: None) -> xr.DataArray:
    """A field with a gap on the left, and nothing missing but a cell far on the right."""
    y, x = np.arange(48.0), np.arange(104.0)
    values = field(y[:, None], x)
    values[8:40, 6:34] = np.nan
    values[24, 103] = np.nan
    return xr.DataArray(values, {"y": y, "x": x}, ("y", "x"), name="sst")


@pytest.fixture(scope="module")
def buoys() -> pd.DataFrame:
    """Places in and around the gap; they measure 0.5 too much, with an error of 0.05."""
    rng = np.random.default_rng(1)
    y, x = rng.uniform([[4], [2]], [[44], [38]], (2, 40))
    return pd.DataFrame({"x": x, "y": y, "sst": field(y, x) + 0.5 + 0.05 * rng.standard_normal(40)})


@pytest.fixture(scope="module")
def filled(raster: xr.DataArray, buoys: pd.DataFrame, drift_model: str) -> xr.Dataset:
    """By a small model: the same whatever the layout, but not good."""
    return geonp.infill(raster, points=buoys, model=drift_model)


def test_gaps_are_filled_from_cells_and_measurements(
    raster: xr.DataArray, buoys: pd.DataFrame, drift_model: str
) -> None:
    filled, alone = geonp.infill(raster, points=buoys), geonp.infill(raster)
    gap = np.isnan(raster.values)
    gap[:, 60:] = False
    off = [(one["sst"].values - field(raster.y.values[:, None], raster.x.values))[gap] for one in (filled, alone)]
    rmse = [float(np.sqrt(np.mean(part**2))) for part in off]
    assert rmse[0] < 0.3 * rmse[1]
    assert 0.85 < np.mean(np.abs(off[0]) < 1.96 * filled["sst_standard_error"].values[gap]) <= 1
    text = filled.attrs["geonp_points"]
    assert float(text.split("offset ")[1].split()[0]) == pytest.approx(0.5, abs=0.04)
    assert float(text.split("error ")[1]) == pytest.approx(0.05, abs=0.025)
    with pytest.warns(
        UserWarning, match=r"points differ from 'sst' by \+33\..* on average, .* check that both have one unit"
    ):
        geonp.infill(raster, points=buoys.assign(sst=32 + 1.8 * buoys["sst"]), model=drift_model)
    # what is observed, and tiles without measurements in reach, do not change
    observed = np.isfinite(raster.values)
    np.testing.assert_array_equal(filled["sst"].values[observed], raster.values[observed])
    np.testing.assert_allclose(filled["sst"][24, 103], alone["sst"][24, 103], rtol=1e-5)


def test_copies_of_rows_are_used_once(
    raster: xr.DataArray, buoys: pd.DataFrame, filled: xr.Dataset, drift_model: str
) -> None:
    with pytest.warns(UserWarning, match="80 rows of points repeat another row"):
        twice = geonp.infill(raster, points=pd.concat([buoys] * 3), model=drift_model)
    assert twice.attrs["geonp_points"] == filled.attrs["geonp_points"]
    np.testing.assert_allclose(twice["sst"], filled["sst"], atol=2e-5)
    again = buoys.assign(sst=buoys["sst"] + 0.05 * np.random.default_rng(2).standard_normal(40))
    again.loc[:3, "sst"] = buoys["sst"][:4]  # by chance
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repeated = geonp.infill(raster, points=pd.concat([buoys, again]), model=drift_model)
    assert repeated.attrs["geonp_points"].startswith("80,")


def test_measurements_beside_packed_values_are_in_units(
    raster: xr.DataArray, buoys: pd.DataFrame, drift_model: str
) -> None:
    packed = xr.DataArray((raster - 2) / 0.01, attrs={"scale_factor": 0.01, "add_offset": 2.0}).rename("sst")
    options = {"points": buoys.assign(sigma=0.05), "point_errors": "sigma", "model": drift_model}
    stored, plain = (geonp.infill(one, **options) for one in (packed, raster))
    np.testing.assert_allclose(0.01 * stored["sst"] + 2, plain["sst"], atol=1e-4)
    np.testing.assert_allclose(0.01 * stored["sst_standard_error"], plain["sst_standard_error"], atol=1e-4)


@pytest.mark.parametrize(
    ("coords", "column", "said"),
    [
        ({}, pd.date_range("2020-01-01", periods=40, freq="6h"), "2020-01-01 to 2020-01-10 .*'time'.*all are used. If"),
        ({}, np.arange(20200101, 20200141), None),  # 40 is no day
        ({}, np.repeat([20200101, 20200105], 20), "2020-01-01 to 2020-01-05"),
        ({}, ["2020-01-01T06:00Z"] * 40, None),
        ({"time": np.datetime64("2019-07-01", "ns")}, ["2020-01-01"] * 40, "all are used for 2019-07-01, the time of"),
        ({"time": np.datetime64("2020-01-02", "ns")}, ["2020-01-01"] * 40, None),
        ({"time": ("time", [np.datetime64("2019-07-01", "ns")])}, ["2020-01-01"] * 40, "all are used for 2019-07-01"),
        ({"time": ("time", pd.to_datetime(["2019-07-01", "2020-01-01"]))}, ["2020-01-01"] * 40, None),  # are matched
        ({"depth": 5.0}, ["near"] * 40, None),
    ],
)
def test_measurements_of_other_times_in_one_slice_are_warned_of(
    raster: xr.DataArray, buoys: pd.DataFrame, coords: Any, column: Any, said: str | None
) -> None:
    source = raster.expand_dims(time=coords["time"][1]) if isinstance(coords.get("time"), tuple) else raster
    source = source if source.ndim == 3 else source.assign_coords(coords)
    table = read_table(buoys.assign(time=column), "sst", None, None, source.dims[:-2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _warn_of_times(source, table)
    assert [bool(re.search(str(said), str(one.message))) for one in caught] == [True] * (said is not None)


def test_chunks_and_stores_change_nothing(
    raster: xr.DataArray, buoys: pd.DataFrame, filled: xr.Dataset, drift_model: str, tmp_path: Path
) -> None:
    lazy = geonp.infill(raster.chunk({"y": 48, "x": 40}), points=buoys, model=drift_model)
    assert lazy["sst"].chunks is not None
    np.testing.assert_allclose(lazy["sst"], filled["sst"], atol=2e-5)
    raster.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    buoys.to_csv(tmp_path / "b.csv", index=False)
    arguments = ["fill", tmp_path / "a.nc", tmp_path / "o.zarr", "--points", tmp_path / "b.csv", "--chunks", 48]
    cli(*arguments, "--model", drift_model)
    stored = xr.open_zarr(tmp_path / "o.zarr")
    np.testing.assert_allclose(stored["sst"], filled["sst"], atol=2e-5)
    assert stored.attrs["geonp_points"] == filled.attrs["geonp_points"]


def test_holes_are_filled_alike_in_memory_and_in_stores(
    raster: xr.DataArray, buoys: pd.DataFrame, drift_model: str, tmp_path: Path
) -> None:
    """In memory, measurements in gaps at the edge had no part in the offset."""
    edge = raster.where((raster.x > 10) & ((raster.x != 60) | (raster.y != 20)))
    found = geonp.infill(edge, points=buoys, holes=True, model=drift_model)
    assert np.isnan(found["sst"][20, 5])
    geonp.fill_store(edge, tmp_path / "o.zarr", points=buoys, holes=True, model=drift_model)
    stored = xr.open_zarr(tmp_path / "o.zarr")
    assert stored.attrs["geonp_points"] == found.attrs["geonp_points"]
    np.testing.assert_array_equal(stored["sst"], found["sst"])


def test_measurements_are_converted_to_the_units_of_the_raster(
    raster: xr.DataArray, buoys: pd.DataFrame, drift_model: str, tmp_path: Path
) -> None:
    cut, table = raster[:, :48], buoys.assign(e=0.1)
    options = {"point_errors": "e", "model": drift_model}
    known = geonp.infill(cut, points=table, **options)
    some = pd.concat([table, table[:2].assign(sst=40.0, e=np.nan)])
    with pytest.warns(UserWarning, match="2 rows of points have no finite standard error in 'e', and are not used"):
        xr.testing.assert_identical(geonp.infill(cut, points=some, **options)["sst"], known["sst"])
    kelvin = (cut + 273.15).assign_attrs(units="K")
    fahrenheit = table.assign(sst=32 + 1.8 * table["sst"], e=0.18).rename(columns={"sst": "sst [degF]"})
    found = geonp.infill(kelvin, points=fahrenheit, **options)
    np.testing.assert_allclose(found["sst"] - 273.15, known["sst"], atol=2e-3)
    np.testing.assert_allclose(found["sst_standard_error"], known["sst_standard_error"], rtol=0.02, atol=2e-3)
    assert found.attrs["geonp_points"].startswith("40, converted from degF, offset 0.")
    kelvin.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    buoys.rename(columns={"sst": "sst [m/s]"}).to_csv(tmp_path / "b.csv", index=False)
    refused = says("fill", tmp_path / "a.nc", tmp_path / "o.nc", "--points", tmp_path / "b.csv", code=1)
    text = (
        "'sst' of points has the units 'm/s', and 'sst' has 'K', which is another quantity, so that points (--points)"
    )
    assert text in refused.replace("\n", " ")


@pytest.mark.parametrize(
    ("units", "own", "expected", "text"),
    [
        ("degC", "celsius", (1.0, 0.0), ""),
        ("K", "degC", (1.0, 273.15), ", converted from degC"),
        ("", "K", (1.0, 0.0), ""),
    ],
)
def test_units_that_are_written_otherwise_are_the_same(
    units: str, own: str, expected: tuple[float, float], text: str
) -> None:
    variable = Variable.of(
        xr.DataArray(np.zeros((2, 2)), dims=("y", "x"), name="a", attrs={"units": units}), ("y", "x")
    )
    table = read_table(pd.DataFrame({"x": [0.0], "y": [0.0], f"a [{own}]": [1.0]}), None, None, None)
    factor, shift, said = _conversion(variable, table)
    assert (factor, shift) == pytest.approx(expected)
    assert said == text
    psu = read_table(pd.DataFrame({"x": [0.0], "y": [0.0], "a [psu]": [1.0]}), None, None, None)
    one = Variable.of(variable.source.assign_attrs(units="1"), ("y", "x"))
    with pytest.warns(UserWarning, match="units 'psu', and 'a' has '1', and whether these are the same is not known"):
        assert _conversion(one, psu) == (1.0, 0.0, "")


def test_each_slice_has_its_own_measurements(raster: xr.DataArray, buoys: pd.DataFrame) -> None:
    days = pd.date_range("2020-01-01", periods=2)
    cut = raster[:, :60]
    stack = xr.concat([cut, cut], pd.Index(days, name="time"))
    exact = field(buoys["y"], buoys["x"]) + 0.5
    table = buoys.assign(sst=exact, time=days[1] + pd.Timedelta("5h"), known=0.002)
    found = geonp.infill(stack, points=table, point_errors="known")["sst"]
    truth = field(cut.y.values[:, None], cut.x.values)
    rmse = np.sqrt(((found - truth) ** 2).mean(("y", "x")))
    assert rmse[1] < 0.3 * rmse[0] < 0.3 * 0.025
    np.testing.assert_allclose(found[0], geonp.infill(cut)["sst"], atol=2e-5)


def test_dates_of_measurements_find_slices_whose_times_are_written_otherwise(
    raster: xr.DataArray, buoys: pd.DataFrame
) -> None:
    """As numbers with units, which a raster that is not decoded has, texts, or in another calendar."""
    days = pd.date_range("2020-02-27", "2020-03-01")
    numbers = np.arange(len(buoys)) % 4
    table = read_table(buoys.assign(time=days[numbers]), "sst", None, None, ["time"])
    coded = xr.DataArray([0, 1, 2, 3], dims="time", attrs={"units": "days since 2020-02-27"})
    for labels in (coded, days.strftime("%Y-%m-%d"), pd.PeriodIndex(days, freq="D")):
        stack = xr.concat([raster] * 4, "time", join="exact").assign_coords(time=labels)
        assert _slices(stack, "time", table).tolist() == numbers.tolist()
    lacking = xr.date_range("2020-02-27", periods=4, calendar="noleap", use_cftime=True)
    found = _slices(stack.assign_coords(time=lacking), "time", table)
    assert found.tolist() == np.array([0, 1, -1, 2])[numbers].tolist()
    with pytest.raises(InputError, match=r"differ in kind: got datetime64.* and int64"):
        _slices(stack.assign_coords(time=range(4)), "time", table)


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_slices_at_lengths_of_time_are_found_in_any_unit_of_numpy(
    raster: xr.DataArray, buoys: pd.DataFrame, unit: str
) -> None:
    """Counts of one unit were compared with those of another: all measurements were those of the first slice."""
    hours = np.array([0, 6, 12], "m8[h]")
    stack = xr.concat([raster] * 3, pd.Index(hours.astype(f"m8[{unit}]"), name="step"))
    numbers = np.arange(len(buoys)) % 3
    table = buoys.assign(step=pd.to_timedelta(6 * numbers, "h"))
    assert _slices(stack, "step", read_table(table, "sst", None, None, ["step"])).tolist() == numbers.tolist()
    with pytest.raises(InputError, match="differ in kind: got int64 and timedelta64"):
        _slices(stack, "step", read_table(buoys.assign(step=6 * numbers), "sst", None, None, ["step"]))


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({"x": 1e4}, {}, "none of the 40 points lies in the raster"),
        ({"sst": "a"}, {}, "expected numbers"),
        ({}, {"samples": 1}, "points cannot be combined with samples"),
        ({}, {"points": None, "point_errors": "e"}, "point_errors needs points"),
        ({}, {"point_errors": "e"}, "must be a column of numbers"),
    ],
)
def test_what_cannot_be_used_is_refused(
    raster: xr.DataArray, buoys: pd.DataFrame, change: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InputError, match=text):
        geonp.infill(raster, **{"points": buoys.assign(**change), **options})
    with pytest.raises(InputError, match="expected a column 'time' in points"):
        geonp.infill(xr.concat([raster] * 2, pd.Index([1, 2], name="time")), points=buoys)
