from __future__ import annotations

import datetime
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.io.doubtful_times import warn_of_doubtful_times
from geonp.io.measurements import read_table
from geonp.raster.times import times_of
from geonp.scattered.across_times import _listed

DAYS = pd.date_range("2020-07-01", periods=5)
ON_THE_THIRD = ["2020-01-03T06:00", "2020-01-03T12:00", "2020-01-03T18:00"]


@pytest.fixture(scope="module")
def stations() -> pd.DataFrame:
    """Daily values at 24 stations: a plane, a level for each day, and a large offset for each station."""
    rng = np.random.default_rng(3)
    x, y = rng.uniform(0, 12, (2, 24))
    offset, level = 3 * rng.standard_normal(24), rng.standard_normal(len(DAYS))
    values = 0.2 * x + level[:, None] + offset + 0.1 * rng.standard_normal((len(DAYS), 24))
    rows = {"date": np.repeat(DAYS, 24), "x": np.tile(x, 5), "y": np.tile(y, 5), "value": values.ravel()}
    return pd.DataFrame(rows)


def test_other_times_tell_what_a_station_is_like(stations: pd.DataFrame) -> None:
    hidden = np.random.default_rng(0).random(len(stations)) < 0.1
    known, wanted = stations[~hidden], stations[hidden].sample(frac=1, random_state=1)
    found = geonp.interpolate(known, wanted[["x", "date", "y"]], values="value", time="date")
    error = found["value"].values - wanted["value"].to_numpy()
    # a station alone says nothing of another one
    assert np.sqrt(np.mean(error**2)) < 0.8
    assert found["value_standard_error"].max() < 2
    np.testing.assert_array_equal(found["date"], wanted["date"])
    assert found.attrs["geonp_time"] == "date"


def test_a_covariate_that_changes_is_that_of_the_time(stations: pd.DataFrame) -> None:
    rng = np.random.default_rng(5)
    table = stations.assign(cover=rng.standard_normal(len(stations)))
    table["value"] += 2 * table["cover"]
    known = table[rng.random(len(table)) > 0.5]

    def found(step: int) -> xr.Dataset:
        wanted = table.drop(columns="value")[::step]
        return geonp.interpolate(known[::step], wanted, values="value", time="date", covariates=["cover"])

    # the first row of a place has nothing to say about its other days
    xr.testing.assert_allclose(found(1).drop_attrs(), found(-1)[{"point": slice(None, None, -1)}].drop_attrs())


def test_times_to_predict_are_given_as_dates_months_and_years(stations: pd.DataFrame) -> None:
    at = geonp.lattice((0, 0, 12, 12), 3)
    assert times_of(stations["date"]).within(["2020-07-02", "2020-07", "2020"], "at_times")[0] == 1
    hours = times_of(pd.Series(pd.date_range("2019-12-31T12:00", periods=5, freq="6h")))
    assert hours.within(["2020-01-01", "2019-12-31T18:00"], "at_times").tolist() == [2, 3, 4, 1]
    maps = geonp.interpolate(stations, at, time="date", at_times=["2020-07-02", datetime.date(2020, 7, 4)])
    assert maps["value"].dims == ("date", "y", "x")
    np.testing.assert_array_equal(maps["date"], DAYS[[1, 3]])
    # another place has a level of its own, of standard deviation 3
    assert 2 < float(maps["value_standard_error"].mean()) < 4
    with pytest.raises(InputError, match="at_times has no entries"):
        geonp.interpolate(stations, at, time="date", at_times=[])


def test_times_that_no_row_has_lie_between_those_of_the_table() -> None:
    days = times_of(pd.Series(pd.to_datetime(["2020-01-01T00:00", "2020-01-03T06:00", "2020-01-03T18:00", None])))
    asked = ["2020-01-02", "2020-01-03", "2020-01", "2020-01-01/2020-01-03", pd.Timestamp("2020-01-03T12:00")]
    every = days.including(asked, "at_times")
    np.testing.assert_array_equal(every.values, np.array(["2020-01-01", "2020-01-02", *ON_THE_THIRD], "datetime64[us]"))
    assert every.of_rows.tolist() == [0, 2, 4, -1]
    assert every.within(asked[:2], "at_times").tolist() == [1, 2, 3, 4]
    in_days = times_of(pd.Series(pd.to_datetime(["2020-01-01T05:00", "2020-01-02T01:00"])), every="1D")
    assert in_days.index([datetime.datetime(2020, 1, 2, 12)], "at_times").tolist() == [1]
    cf = times_of(pd.Series([cftime.DatetimeNoLeap(2000, 2, day) for day in (1, 28)]))
    assert cf.including(["2000-02-05T12:00"], "at_times").values[1] == cftime.DatetimeNoLeap(2000, 2, 5, 12)
    assert days.including([cftime.DatetimeGregorian(2020, 1, 2)], "at_times").values.size == 4
    numbers = times_of(pd.Series([1.0, 2.0, 5.0]))
    np.testing.assert_array_equal(numbers.including([3, "4", "2.5"], "at_times").values, [1, 2, 2.5, 3, 4, 5])
    assert times_of(pd.Series([1, 2, 5])).including([2.5], "at_times").values.tolist() == [1, 2, 2.5, 5]
    for wrong in ([0.5], ["x"], [np.nan]):
        with pytest.raises(InputError, match=f"at_times has {wrong[0]}, expected times between .* 1.0 and 5.0"):
            numbers.including(wrong, "at_times")
    with pytest.raises(InputError, match="at_times has NaT, expected times between"):
        days.including([pd.NaT], "at_times")


@pytest.mark.parametrize(("calendar", "last"), [("standard", 3), ("noleap", 2)])
def test_times_are_given_in_the_units_and_the_calendar_of_the_measurements(calendar: str, last: int) -> None:
    """A crash of NumPy, or an error that named nanoseconds."""
    coded = xr.DataArray([0, 1, last], dims="time", attrs={"units": "days since 2020-02-27", "calendar": calendar})
    days = xr.decode_cf(xr.Dataset({"time": coded}))["time"]
    dated, numbers = times_of(pd.Series(days)), replace(times_of(pd.Series(coded)), attrs=coded.attrs)
    for times in (dated, numbers):
        assert times.index(_listed(coded[2]), "at_times").tolist() == [2]
        for asked in (coded, days, days.values):
            assert times.index(_listed(asked), "at_times").tolist() == [0, 1, 2]
        for time in (np.datetime64("2020-03-01"), "2020-03-01", pd.Timestamp("2020-03-01")):
            found = times.including([time], "at_times")
            assert (len(found.values), found.index([time], "at_times").tolist()) == (3, [2])
    assert numbers.including(["2020-02-28T12:00"], "at_times").values.tolist() == [0, 1, 1.5, last]
    with pytest.raises(InputError, match=r"at_times has the number 3, expected times such as .*: xr.decode_cf"):
        dated.index([3], "at_times")
    with pytest.raises(InputError, match="'at_times' holds '2020-02-30', expected times"):
        dated.including(["2020-02-30"], "at_times")
    with pytest.raises(InputError, match=r"at_times has 2020-03-01.*, expected times between .* 0 and"):
        times_of(pd.Series(coded)).including(["2020-03-01"], "at_times")


def test_a_day_that_the_calendar_of_the_measurements_lacks_is_refused() -> None:
    times = times_of(pd.Series(xr.date_range("2020-02-27", periods=4, calendar="noleap", use_cftime=True)))
    with pytest.raises(InputError, match="at_times has 2020-02-29, expected times between"):
        times.including(["2020-02-29"], "at_times")
    numbers = replace(times_of(pd.Series([0, 1])), attrs={"units": "days since 2020-02-28", "calendar": "noleap"})
    with pytest.raises(InputError, match="at_times has a day that the calendar noleap of the measurements lacks"):
        numbers.including(["2020-02-29"], "at_times")


def test_ranges_of_times_and_their_steps() -> None:
    hours = times_of(pd.Series(pd.date_range("1990-06-30T12:00", periods=8, freq="6h")))
    assert hours.within("1990-07-01/1990-07-01", "at_times").tolist() == [2, 3, 4, 5]
    assert hours.within(["1990-07-01T12:00/1990-07-03"], "at_times").tolist() == [4, 5, 6, 7]
    assert hours.within(["1990-06-30T12:00/1990-07/P1D", "1990-07-01"], "at_times").tolist() == [0, 4, 2, 3, 5]
    assert hours.within("1990-06/1990-07/12h", "at_times").tolist() == [0, 2, 4, 6]  # from the first of June
    years = times_of(pd.Series([1990, 1991, 1996, 2000]))
    assert years.within("1991/1999", "at_times").tolist() == [1, 2]
    with pytest.warns(UserWarning, match="No measurement has a time at 1 of the steps of 5 from 1980"):
        assert years.within("1980/2000/5", "at_times").tolist() == [0, 3]
    days = times_of(pd.Series(xr.date_range("1990-02-27", periods=4, calendar="360_day", use_cftime=True)))
    assert days.within("1990-02-29/1990-03", "at_times").tolist() == [2, 3]
    assert days.within("1990-02-27/1990-03/2D", "at_times").tolist() == [0, 2]
    for wrong in ("1990-07-01/", "today/1990", "1990/1991/1D/2", "1990/1991/-1D", "1990/1991/1X", "1990/1991/"):
        with pytest.raises(InputError, match=r"expected a range FIRST/LAST or FIRST/LAST/STEP"):
            hours.within([wrong], "at_times")
    with pytest.raises(InputError, match=r"no measurement has a time: expected times from 1990-06-30 12:00:00 to"):
        hours.within(["1991-07-01/1991-07-10"], "at_times")


def test_lazy_grids_and_datasets_of_stations_and_times_give_the_same(stations: pd.DataFrame) -> None:
    # each day has its own stations, so that the others know more somewhere
    moving = stations[np.random.default_rng(5).random(len(stations)) < 0.6]
    at = geonp.lattice((0, 0, 12, 12), 2)
    done: list[tuple[int, int]] = []
    expected = geonp.interpolate(moving, at, time="date", at_times=DAYS[:2], progress=lambda *n: done.append(n))
    assert done == [(1, 2), (2, 2)]
    lazy = geonp.interpolate(moving, at.chunk({"y": 3, "x": 4}), time="date", at_times=DAYS[:2])
    assert lazy["value"].chunks is not None
    np.testing.assert_allclose(lazy["value"], expected["value"], rtol=1e-5)
    cube = moving.assign(station=moving.groupby(["x", "y"]).ngroup()).set_index(["date", "station"]).to_xarray()
    places = stations.groupby(["x", "y"]).ngroup()
    where = stations.assign(station=places).groupby("station")[["x", "y"]].first()
    cube = cube.drop_vars(["x", "y"]).assign_coords(
        {name: ("station", where.loc[cube["station"].values, name].to_numpy()) for name in ("x", "y")}
    )
    again = geonp.interpolate(cube, at, values="value", time="date", at_times=DAYS[:2])
    np.testing.assert_allclose(again["value"], expected["value"], rtol=1e-5)
    assert "units" not in again["date"].attrs
    lead = cube.assign_coords(date=np.arange(cube.sizes["date"]))
    lead["date"].attrs = {"units": "hours", "bounds": "date_bounds"}
    hours = geonp.interpolate(lead, at, values="value", time="date", at_times=[0, 1])
    assert hours["date"].attrs == {"units": "hours"}
    assert hours["date"].values.tolist() == [0, 1]


@pytest.mark.parametrize("seed", [2, 3])
def test_fields_have_no_edge_where_other_times_begin_to_help(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 16, (2, 240))
    second = rng.integers(0, 2, 240)
    value = 3 * np.sin(x / 3) + np.cos(y) + 2.0 * second + 0.05 * rng.standard_normal(240)
    table = pd.DataFrame({"x": x, "y": y, "value": value, "date": DAYS[second]})
    seen = (second == 1) | (x < 5)
    at = geonp.lattice((0, 7.99, 16, 8.01), 0.02)
    found = geonp.interpolate(table[seen], at, values="value", time="date", at_times=DAYS[:1])
    assert (
        abs(float(found["value"][0, 0].sel(x=15, method="nearest") - (3 * np.sin(5) + np.cos(8)))) < 0.5
    )  # from the second day
    # the field changes by up to 0.02 from one place to the next; with a threshold there were steps of 0.06
    assert float(np.abs(found["value"].diff("x")).max()) < 0.03
    assert float(np.abs(found["value_standard_error"].diff("x")).max()) < 0.015


def test_large_networks_are_predicted_in_squares_without_edges() -> None:
    rng = np.random.default_rng(0)
    n, days = 200, DAYS[:3]
    (x, y), level = rng.uniform(0, 28, (2, n)), 0.5 * rng.standard_normal(n)
    values = [
        3 * np.sin((x + 2 * day) / 6) + np.cos(y / 4) + day + level + 0.05 * rng.standard_normal(n) for day in range(3)
    ]
    table = pd.DataFrame(
        {"date": np.repeat(days, n), "x": np.tile(x, 3), "y": np.tile(y, 3), "value": np.ravel(values)}
    )
    seen = rng.random(len(table)) < 0.8
    found = geonp.interpolate(table[seen], geonp.lattice((0, 13.99, 28, 14.01), 0.02), time="date", at_times=days[1:2])
    truth = 3 * np.sin((found["x"] + 2) / 6) + np.cos(14 / 4) + 1
    assert float(np.sqrt(((found["value"][0, 0] - truth) ** 2).mean())) < 0.4
    # the field changes by up to 0.01 from one place to the next
    assert float(np.abs(found["value"].diff("x")).max()) < 0.03
    assert float(np.abs(found["value_standard_error"].diff("x")).max()) < 0.015


def test_fields_have_no_edge_where_the_measurements_of_all_times_end() -> None:
    rng = np.random.default_rng(2)
    (x, y), day = rng.uniform(0, 16, (2, 240)), rng.integers(0, 4, 240)
    value = 3 * np.sin(x / 3) + np.cos(y) + 2.0 * day + 0.05 * rng.standard_normal(240)
    table = pd.DataFrame({"x": x, "y": y, "value": value, "date": DAYS[day]})
    seen = (x < 6) & ((day > 0) | (x < 4.5))
    at = geonp.lattice((0, 7.99, 16, 8.01), 0.05)
    found = geonp.interpolate(table[seen], at, values="value", time="date", at_times=DAYS[:1])
    # a step of the field or of its standard error is a step of their slopes, too: 0.0094 and 0.0069 with means of times
    assert float(np.abs(found["value"].diff("x", 1).diff("x", 1)).max()) < 0.003
    assert float(np.abs(found["value_standard_error"].diff("x", 1).diff("x", 1)).max()) < 0.003


@pytest.mark.parametrize("grid", [True, False])
@pytest.mark.parametrize("width", [12, 6])
def test_what_other_days_measured_is_known(width: float, grid: bool) -> None:
    """A narrow swath a day over a field whose level changes by 0.5; those of width 6 have no place in common."""
    x, y = (a.ravel() for a in np.meshgrid(np.arange(0, 60, 2.0), np.arange(0, 20, 2.0)))
    truth, across = 10 * np.sin(x / 8) + np.cos(y / 6), x - y / 2
    noise = 0.1 * np.random.default_rng(0).standard_normal((5, len(x)))
    swaths = [np.abs(across - 12 * day) < width for day in range(5)]
    rows = pd.concat(
        pd.DataFrame({"date": DAYS[day], "x": x[seen], "y": y[seen], "value": (truth + noise[day])[seen] + 0.5 * day})
        for day, seen in enumerate(swaths)
    )
    far = np.abs(across) > width + 1
    if grid:
        at = xr.DataArray(np.zeros((10, 30)), coords={"y": np.unique(y), "x": np.unique(x)}, dims=("y", "x"))
        found = geonp.interpolate(rows, at, time="date", at_times=DAYS[:1]).stack(point=("date", "y", "x"))[
            {"point": far}
        ]
    else:
        found = geonp.interpolate(rows, pd.DataFrame({"date": DAYS[0], "x": x[far], "y": y[far]}), time="date")
    error = found["value"].values - truth[far]
    assert np.sqrt(np.mean(error**2)) < 1.2  # of the day alone 4.3 and 9.5
    assert np.mean(np.abs(error) < 1.96 * found["value_standard_error"].values) > 0.9


def test_too_few_measurements_of_other_places_are_no_field() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 10, (2, 42))
    rows = pd.DataFrame({"date": DAYS[[0] * 40 + [1] * 2], "x": x, "y": y, "value": np.sin(x / 3)})
    found = geonp.interpolate(rows, pd.DataFrame({"x": [5.0], "y": [5.0], "date": DAYS[:1]}), time="date")
    np.testing.assert_allclose(found["value"], np.sin(5 / 3), atol=0.1)


def test_a_network_is_known_at_times_with_few_measurements(stations: pd.DataFrame) -> None:
    few = stations[(stations["date"] != DAYS[2]) | (stations.index % 12 == 0)]
    hidden = stations[~stations.index.isin(few.index)]
    found = geonp.interpolate(few, hidden.drop(columns="value"), values="value", time="date")
    error = found["value"].values - hidden["value"].to_numpy()
    # the level of the day is known from two stations, to about 0.1
    assert np.sqrt(np.mean(error**2)) < 0.4
    assert 0.1 < found["value_standard_error"].min() < found["value_standard_error"].max() < 0.6
    assert (found["value_fill_flag"] == 1).all()
    with pytest.raises(InputError, match="3 measurements with a finite value and place in different places, expected"):
        geonp.interpolate(stations[stations.groupby(["x", "y"]).ngroup() < 3], hidden, values="value", time="date")


def test_a_network_is_known_at_a_time_without_measurements(stations: pd.DataFrame) -> None:
    known = stations.assign(value=stations["value"].where(stations["date"] != DAYS[2]))
    hidden = stations[stations["date"] == DAYS[2]]
    found = geonp.interpolate(known, hidden.drop(columns="value"), values="value", time="date")
    error = found["value"].values - hidden["value"].to_numpy()
    # the levels of stations are known to about 0.1, that of the day, of standard deviation 1, is not
    assert np.std(error) < 0.3
    assert (np.abs(error) < 3 * found["value_standard_error"].values).all()
    assert 0.3 < found["value_standard_error"].min() < found["value_standard_error"].max() < 2
    without_rows = geonp.interpolate(known[known["date"] != DAYS[2]], hidden.drop(columns="value"), time="date")
    xr.testing.assert_equal(without_rows.drop_attrs(), found.drop_attrs())
    far = geonp.interpolate(known, hidden.drop(columns="value"), values="value", time="date", max_distance=20)
    assert np.isnan(far["value"]).all()
    assert (far["value_fill_flag"] == 2).all()


def test_times_of_moving_places_with_few_measurements_stay_empty() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 10, (2, 42))
    rows = pd.DataFrame({"date": DAYS[[0] * 40 + [1] * 2], "x": x, "y": y, "value": np.sin(x / 3)})
    with pytest.warns(UserWarning, match="fewer than 4 measurements at 1 of 2 times, left empty"):
        found = geonp.interpolate(rows, geonp.lattice((0, 0, 12, 12), 4), time="date")
    assert np.isnan(found["value"][1]).all()
    assert (found["value_fill_flag"][1] == 2).all()


def test_equal_measurements_are_said_to_tell_nothing_about_errors(stations: pd.DataFrame) -> None:
    at = geonp.lattice((0, 0, 12, 12), 6)
    dry = stations.assign(value=stations["value"].where(stations["date"] != DAYS[1], 0.0))
    # other days tell how values differ
    assert (geonp.interpolate(dry, at, time="date", at_times=DAYS[1:2])["value_standard_error"] > 0.5).all()
    with pytest.warns(UserWarning, match=r"'value' are equal \(0\), .* with standard errors of 0"):
        found = geonp.interpolate(stations.assign(value=0.0), at, time="date", at_times=DAYS[:2])
    assert (found["value_standard_error"] < 1e-6).all()
    assert (found["value"] == 0).all()
    with pytest.warns(UserWarning, match=r"'value' are equal \(0\)"):
        geonp.interpolate(dry[dry["date"] == DAYS[1]], at, values="value")
    moving = dry.assign(x=np.random.default_rng(0).uniform(0, 12, len(dry)))
    with pytest.warns(UserWarning, match=r"'value' are equal at 1 of 2 times \(0\)"):
        geonp.interpolate(moving, at, values="value", time="date", at_times=DAYS[:2])


@pytest.mark.parametrize(
    ("column", "first"),
    [
        (["2020-07-01T06:00", "2020-07-02"], np.datetime64("2020-07-01T06:00")),
        (["2020-07-01T06:00+02:00", "2020-07-02T00:00Z"], np.datetime64("2020-07-01T04:00")),
        ([20200701, 20200702], np.datetime64("2020-07-01")),
        ([201912, 202001], np.datetime64("2019-12-01")),
        ([2019365.0, 2020001.0], np.datetime64("2019-12-31")),
        ([2020063023, 2020070100], np.datetime64("2020-06-30T23")),
        ([202006302359, 202007010000], np.datetime64("2020-06-30T23:59")),
        ([202001312300, 202001312400], np.datetime64("2020-01-31T23")),
        ([202012, 202013], 202012),
        ([1593561600, 1593561601], 1593561600),
        ([2019, 2020], 2019),
        ([0.5, 1.5], 0.5),
        ([datetime.date(2020, 7, 1), datetime.date(2020, 7, 2)], np.datetime64("2020-07-01")),
        (xr.date_range("2020-02-29", periods=2, calendar="360_day", use_cftime=True).to_list(), None),
    ],
)
def test_times_are_read_as_people_write_them(column: list[object], first: object) -> None:
    times = times_of(pd.Series([*column, None], name="when"))
    assert times.of_rows.tolist() == [0, 1, -1]
    assert first is None or times.values[0] == first
    days = {
        20200701: 1.0,
        201912: 31.0,
        2019365.0: 1.0,
        2020063023: 1 / 24,
        202006302359: 1 / 1440,
        202001312300: 1 / 24,
    }
    steps = {2019: 1, 0.5: 1, 202012: 1, 1593561600: 1, **{time: 86_400e6 * length for time, length in days.items()}}
    step = steps.get(column[0], times.positions()[1])  # type: ignore[call-overload]
    assert np.diff(times.positions()) == pytest.approx(step)
    assert times.index(column[:1], "at_times").tolist() == [0]
    if isinstance(column[0], int):
        assert times.index([str(column[0])], "at_times").tolist() == [0]


@pytest.mark.parametrize("dtype", ["timestamp[ms][pyarrow]", "timestamp[s, tz=UTC][pyarrow]", "int64[pyarrow]"])
def test_times_of_arrow_are_those_of_numpy(dtype: str) -> None:
    column = (
        pd.Series([20200701, 20200702]) if "int" in dtype else pd.Series(pd.to_datetime(["2020-07-01", "2020-07-02"]))
    )
    column = column.dt.tz_localize("UTC") if "tz" in dtype else column
    times = times_of(column.astype(dtype).reindex([0, 1, 2]))
    assert times.of_rows.tolist() == [0, 1, -1]
    assert times.values.dtype.kind == "M"
    assert times.values[1] == np.datetime64("2020-07-02")


def test_maps_of_many_times_that_do_not_fit_the_memory_are_refused(
    stations: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = geonp.lattice((0, 0, 12, 12), 1)  # 144 cells
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=144 * 200, available=2**33))
    with pytest.raises(InputError, match="144 places take"):
        geonp.interpolate(stations, at, time="date")


def test_doubtful_times_are_refused(stations: pd.DataFrame) -> None:
    at = geonp.lattice((0, 0, 12, 12), 4)
    with pytest.raises(InputError, match="'when' holds '03/04/2020', expected times such as 2020-01-31"):
        times_of(pd.Series(["03/04/2020", "04/04/2020"], name="when"))
    with pytest.raises(InputError, match="at_times has 2021-01-01, expected times between the first and the last"):
        geonp.interpolate(stations, at, time="date", at_times=["2021-01-01"])
    with pytest.raises(InputError, match=r"the table at has the times 'date': leave at_times out"):
        geonp.interpolate(stations, stations, time="date", at_times=["2020-07-01"])
    with pytest.raises(InputError, match="the table has no column 'day' of times, got value, date"):
        geonp.interpolate(stations, at, time="day")
    with pytest.raises(InputError, match="at_times needs time"):
        geonp.interpolate(stations, at, at_times=["2020-07-01"])
    with pytest.raises(InputError, match=r"time='date' \(--time date\)"):
        geonp.interpolate(stations, at)


@pytest.mark.parametrize(
    ("days", "text"),
    [
        ([31012020, 1022020], "%d%m%Y"),
        ([1312020, 2012020], "%m%d%Y"),
        ([191231, 200101], "%y%m%d"),
        ([300199, 10299], "%d%m%y"),
        ([43861, 43862], None),
        ([20200131, 20200201], None),
        ([2458849, 2458850], None),
    ],
)
def test_numbers_of_dates_in_another_order_come_with_a_warning(days: list[int], text: str | None) -> None:
    table = pd.DataFrame({"x": [0, 1, 2, 3, 4] * 2, "y": 1, "v": np.arange(10.0), "when": np.repeat(days, 5)})
    read = read_table(table, "v", None, None, ["when"]).timed("when")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_doubtful_times(read)
    expected = f"'when' are numbers such as {min(days)}, and their differences count as time.*format='{text}'"
    assert [bool(re.search(expected, str(one.message))) for one in found] == [True] * (text is not None)


def test_days_beside_months_come_with_a_warning(stations: pd.DataFrame) -> None:
    date = pd.to_datetime(stations["date"]) + pd.Timedelta("29D")
    parts = stations.drop(columns="date").assign(year=date.dt.year, month=date.dt.month, day=date.dt.day)
    at = geonp.lattice((0, 0, 12, 12), 4)
    assert parts["month"].nunique() == 2
    with pytest.warns(
        UserWarning, match=r"the times 'day' are a part of a date, and rows differ in 'month': .*\(--time"
    ):
        geonp.interpolate(parts, at, values="value", time="day")
    geonp.interpolate(parts[parts["month"] == 7].drop(columns="year"), at, values="value", time="day")


def test_stations_that_are_never_measured_are_as_uncertain_as_their_levels(float32: None) -> None:
    squares = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        places, days = rng.uniform(0, 10, (60, 2)), pd.date_range("2020-01-01", periods=12)
        level, change = np.sin(places[:, 0]) + 0.8 * rng.normal(size=60), 1.5 * rng.normal(size=12)
        values = level + change[:, None] + 0.1 * rng.normal(size=(12, 60))
        station, time = np.tile(np.arange(60), 12), days.repeat(60)
        x, y = places[station].T
        table = pd.DataFrame({"x": x, "y": y, "t": time, "v": values.ravel()})
        # without a day of each station, other days tell something of the stations of a day
        known = (station >= 10) & (rng.random(len(table)) > 0.15)
        hidden = table[station < 10]
        found = geonp.interpolate(table[known], hidden[["x", "y", "t"]], values="v", time="t")
        squares.append(((found["v"].values - hidden["v"]) / found["v_standard_error"].values) ** 2)
    assert np.sqrt(np.mean(squares)) < 1.25
