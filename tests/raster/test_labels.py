"""Slices are selected by their coordinates: times, numbers and text, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.raster.labels import select_labels
from geonp.raster.positions import with_times

MONTHS = pd.date_range("2020-05-01", periods=8, freq="MS")


def stack(**coords: Any) -> xr.Dataset:
    values = np.arange(8 * 3 * 4 * 5.0).reshape(8, 3, 4, 5)
    labels = {"time": MONTHS, "level": np.float32([0.1, 500, 850]), "y": np.arange(4.0), "x": np.arange(5.0)}
    return xr.Dataset({"t2m": (("time", "level", "y", "x"), values)}, labels | coords)


@pytest.mark.parametrize(
    ("wanted", "months"),
    [
        (("2020-07", "2020-07"), [7]),
        (("2020-07-01", "2020-09"), [7, 8, 9]),
        ((None, "2020-06"), [5, 6]),
        (("2020-11", None), [11, 12]),
        (("2020", "2020"), [5, 6, 7, 8, 9, 10, 11, 12]),
    ],
)
@pytest.mark.parametrize("calendar", ["standard", "360_day"])
def test_times_lie_in_a_range_of_dates(wanted: tuple[str | None, str | None], months: list[int], calendar: str) -> None:
    times = xr.date_range("2020-05-01", periods=8, freq="MS", calendar=calendar, use_cftime=calendar != "standard")
    order = [3, 0, 7, 1, 2, 6, 5, 4]
    ds = stack(time=times).isel(time=order)
    found = select_labels(ds, {"time": wanted})
    assert found.time.dt.month.values.tolist() == [5 + n for n in order if 5 + n in months]
    xr.testing.assert_identical(found, ds.sel(time=found.time))


def test_slices_of_unknown_times_are_in_no_range() -> None:
    ds = stack(time=MONTHS.where(MONTHS.month != 7))
    assert select_labels(ds, {"time": ("2020-06-15", "2020-08")}).time.dt.month.values.tolist() == [8]
    assert select_labels(ds, {"time": (None, None)}).sizes["time"] == 7
    with pytest.raises(InputError, match="No slice lies in the range of select"):
        select_labels(stack(time=MONTHS.where(MONTHS.month > 12)), {"time": ("2020-07", "2020-07")})


def test_a_dimension_without_coordinate_has_positions_or_the_times_beside_it() -> None:
    ds = stack().drop_vars("time").assign(Times=("time", MONTHS.strftime("%Y-%m-%d_%H:%M:%S").to_numpy("S19")))
    for wanted, months in ((("2020-07", "2020-08"), [7, 8]), (("2", "2"), [7]), (("0", "1"), [5, 6])):
        found = select_labels(with_times(ds), {"time": wanted})
        assert [int(text[5:7]) for text in found["Times"].values] == months
    with pytest.raises(InputError, match="must be numbers along 'time': got 2020-07"):
        select_labels(ds.drop_vars("Times"), {"time": ("2020-07", "2020-07")})


def test_numbers_are_rounded_as_float32_and_text_is_compared() -> None:
    ds = stack().assign_coords(time=list("abcdefgh"))
    found = select_labels(ds, {"level": ("0.1", "0.1"), "time": ("c", "c")})
    assert dict(found.sizes) == {"time": 1, "level": 1, "y": 4, "x": 5}
    assert found.t2m.values[0, 0, 0, 0] == 2 * 3 * 4 * 5
    assert select_labels(ds, {"level": ("400", None)}).level.values.tolist() == [500, 850]
    assert select_labels(ds.drop_vars("time"), {"time": (2, 3)}).t2m.values[:, 0, 0, 0].tolist() == [120, 180]


@pytest.mark.parametrize(
    ("labels", "wanted", "found"),
    [
        (np.arange(20200110, 20200118), ("20200115", "20200115"), [20200115]),
        (np.arange(20200110, 20200118), (20200111.5, 20200113), [20200112, 20200113]),
        (1.2e6 + np.arange(8.0), ("1200003", "1200003"), [1200003]),
        (2**60 + np.arange(8), (str(2**60 + 1), str(2**60 + 2)), [2**60 + 1, 2**60 + 2]),
        (np.arange(8, dtype="u1"), ("-3", "1"), [0, 1]),
    ],
)
def test_large_numbers_that_differ_by_little_are_different_labels(labels: Any, wanted: Any, found: list[float]) -> None:
    assert select_labels(stack(time=labels), {"time": wanted}).time.values.tolist() == found


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ({"time": ("summer", "summer")}, "must be times along 'time': got summer, expected for example 2020"),
        ({"time": ("01.07.2020", None)}, "must be times along 'time': got all from 01.07.2020 on"),
        ({"time": ("7/1/2020", "7/1/2020")}, "must be times along 'time': got 7/1/2020, expected"),
        ({"time": ("2021-06", None)}, "No slice .*got all from 2021-06 on along 'time', expected some of 2020-05-01"),
        ({"level": ("surface", "surface")}, "must be numbers along 'level': got surface"),
        ({"depth": (1, 1)}, "got 'depth', expected 'time' or 'level'"),
        ({"y": (1, 2)}, "got 'y', expected 'time' or 'level'. Select rows and columns with bbox"),
    ],
)
def test_what_cannot_be_selected_is_refused(wanted: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        select_labels(stack(), wanted)
