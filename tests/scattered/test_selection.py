"""Rows of tables that meet conditions, and Datasets of measurements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.io.measurements import read_table
from geonp.scattered.selection import selected

TABLE = pd.DataFrame({"x": [0, 1, 0, 1], "y": [0, 0, 0, 0], "day": ["1", "1", "2", "2"], "depth": [0.5, 1, 0.5, 1]})
TABLE["good"] = TABLE["depth"] > 0.5
TABLE["kept"] = [True, None, False, True]
TABLE["flags"] = [1, 3, 2, 4]
TABLE["when"] = np.array(["2020-06-30T00", "2020-06-30T12", "2020-07-01T00", "2020-08-31T00"], "M8[ns]")
TABLE["date"] = TABLE["when"].dt.strftime("%Y-%m-%d")
TABLE["local"] = (TABLE["when"] + pd.Timedelta("14h")).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
TABLE["zoned"] = [time.isoformat() for time in TABLE["local"]]
TABLE["month"] = TABLE["when"].dt.to_period("M")


@pytest.mark.parametrize(
    ("conditions", "rows"),
    [
        (["day=2"], [2, 3]),
        (["good=true"], [1, 3]),
        (["good=1"], [1, 3]),
        (["good!=0"], [1, 3]),
        (["kept=true"], [0, 3]),
        (["kept!=1"], [1, 2]),
        (["local=2020-07-01"], [1, 2]),
        (["local>=2020-07-01T12"], [2, 3]),
        (["local=2020-06-30 23:00:00+09:00"], [0]),
        (["zoned=2020-07-01"], [1, 2]),  # as those of the column of times: the first parts of the text were compared
        (["zoned!=2020-07-01"], [0, 3]),
        (["zoned>=2020-07-01T12"], [2, 3]),
        (["zoned=2020-06-30T14:00Z"], [0]),
        (["month=2020-07"], [2]),
        (["depth=1"], [1, 3]),
        (["day=2", "depth=0.50"], [2]),
        (["day=1", "depth=0.5", "day=2"], [0, 2]),
        (["day=1,2", "depth=0.5"], [0, 2]),
        (["depth<1"], [0, 2]),
        (["depth >= 1", "day!=2"], [1]),
        (["depth>0.4", "depth<=0.5"], [0, 2]),
        (["flags&2"], [1, 2]),
        (["flags&0b10=0"], [0, 3]),
        (["when>2020-06"], [2, 3]),
        (["when<=2020-06"], [0, 1]),
        (["when>=2020-06-30T12:00", "when<2020-08"], [1, 2]),
        (["date>=2020-07-01"], [2, 3]),
    ],
)
def test_rows_by_number_or_text(conditions: list[str], rows: list[int]) -> None:
    assert selected(TABLE, conditions).index.tolist() == rows


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_numbers_of_sites_that_differ_by_little_are_different(dtype: Any) -> None:
    sites = np.array([393109104464500, 393109104464501, 393109104474500]).astype(dtype)
    table = pd.DataFrame({"site": sites, "t": [0.1 * 3, 0.3, 0.31]})
    assert selected(table, ["site=393109104464500"]).index.tolist() == [0]
    assert selected(table, ["site!=393109104464500"]).index.tolist() == [1, 2]
    assert selected(table, ["t=0.3"]).index.tolist() == [0, 1]


def test_stations_at_a_time() -> None:
    times = np.array(["2020-01-31T12", "2020-02-01T12"], "M8[ns]")
    stations = {"x": ("station", [0.0, 1.0, 2.0]), "y": ("station", [0.0, 0.0, 1.0])}
    name = ("station", "letter"), np.full((3, 4), b"a")
    ds = xr.Dataset(
        {"t": (("time", "station"), np.arange(6.0).reshape(2, 3)), "name": name}, {**stations, "time": times}
    )
    with pytest.raises(InputError, match=r"dimensions \('time', 'station'\), expected one.*--where time="):
        read_table(ds, None, None, None)
    for text in ("2020-02", "2020-02-01", "2020-02-01T12"):
        table = read_table(selected(ds, [f"time={text}"]), None, None, None)
        assert table.values["t"].tolist() == [3, 4, 5]
    table = read_table(selected(ds.drop_vars("time"), ["time=1"]), None, None, None)
    assert table.values["t"].tolist() == [3, 4, 5]


def test_cells_of_a_swath_by_their_quality() -> None:
    cells, at = np.arange(6.0).reshape(1, 2, 3), {d: (("nj", "ni"), np.ones((2, 3))) for d in ("lat", "lon")}
    quality = np.array([[[5, 2, 5], [0, 5, 4]]])
    dims = ("time", "nj", "ni")
    ds = xr.Dataset({"sst": (dims, cells), "quality": (dims, quality), "row": ("nj", [7, 8])}, at)
    best = selected(ds, ["quality=5"])
    np.testing.assert_array_equal(best["sst"], [[[0, np.nan, 2], [np.nan, 4, np.nan]]])
    assert (best["row"].dims, best["row"].dtype, best["lat"].dims) == (("nj",), ds["row"].dtype, ("nj", "ni"))
    good = selected(ds, ["quality=5", "quality=4", "row=8"])
    np.testing.assert_array_equal(good["sst"], [[[np.nan, 4, 5]]])


def test_flags_of_a_swath_by_name_and_bits() -> None:
    at = {d: (("nj", "ni"), np.ones((2, 3))) for d in ("lat", "lon")}
    names = {"flag_values": [0, 4, 5], "flag_meanings": "none acceptable best"}
    quality = (("nj", "ni"), np.array([[5, 0, 5], [0, 5, 4]], np.int8), names)
    flags = (("nj", "ni"), np.array([[0, 0, 2], [3, 1, 4]], np.int16))
    ds = xr.Dataset({"sst": (("nj", "ni"), np.arange(6.0).reshape(2, 3)), "quality": quality, "flags": flags}, at)
    for conditions, expected in (
        (["quality=best"], [0, 2, 4]),
        (["quality=best,acceptable", "flags&2=0"], [0, 4, 5]),
        (["quality!=none", "flags&2"], [2]),
        (["quality>=4", "sst>1"], [2, 4, 5]),
    ):
        found = selected(ds, conditions)["sst"].values
        assert found[np.isfinite(found)].tolist() == expected


def test_levels_of_profiles_by_their_pressure() -> None:
    """As of Argo: places have one dimension, pressures and values two."""
    places = {"LONGITUDE": ("N_PROF", [1.0, 2.0, 3.0]), "LATITUDE": ("N_PROF", [40.0, 41.0, 42.0])}
    dims, pressures = ("N_PROF", "N_LEVELS"), np.array([[4.0, 9, 14], [3, 8, 13], [12, 17, np.nan]])
    ds = xr.Dataset({"TEMP": (dims, 20 - pressures), "PRES": (dims, pressures)}, places)
    with pytest.raises(InputError, match=r"dimensions \('N_PROF', 'N_LEVELS'\), expected one"):
        read_table(ds, "TEMP", None, None)
    for conditions, expected in (("PRES<5", {1: 16, 2: 17}), ("PRES>10", {1: 6, 2: 7, 3: 8})):
        table = read_table(selected(ds, [conditions, "PRES<15"]), "TEMP", None, None)
        used = table.usable("TEMP")
        assert dict(zip(table.xy[used, 0], table.values["TEMP"][used], strict=True)) == expected


def test_columns_with_units_in_their_names_and_empty_cells() -> None:
    table = pd.DataFrame({"x": [0, 1, 2], "depth [m]": [5.0, np.nan, 20.0], "a>b": ["p, q", "p", "q"]})
    assert selected(table, ["depth<10"]).index.tolist() == [0]
    assert selected(table, ["depth [m]>=5"]).index.tolist() == [0, 2]
    assert selected(table, ["depth!=5"]).index.tolist() == [1, 2]  # an empty cell equals nothing
    assert selected(table, ["a>b=p, q"]).index.tolist() == [0]


def test_one_of_several_values_that_no_row_has() -> None:
    with pytest.warns(UserWarning, match="No row has day=3: got values such as 1, 2"):
        assert selected(TABLE, ["day=1", "day=3"]).index.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (["no=1"], "No column 'no' to select by: got x, y, day, depth, good"),
        (["day=3", "day=4"], "No row has day=3 or 4: got values such as 1, 2"),
        (["depth=deep"], "No row has depth=deep: got values such as 0.5, 1.0"),
        (["depth>3"], "No row has depth>3: got values such as 0.5, 1.0"),
        (["depth!=deep"], "'depth!=deep' needs numbers for the column 'depth': got 'deep', and values such as 0.5"),
        (["depth<deep"], "'depth<deep' compares with a number or a time: got 'deep', .* 'depth' that holds 0.5"),
        (["when<20200701"], "compares with a number or a time: got '20200701', .* 'when' that holds 2020-06-30"),
        (["day>1"], "compares with a number or a time: got '1', and a column 'day' that holds 1"),
        (["good!=yes"], "'good!=yes' needs true or false for the column 'good': got 'yes', and values such as False"),
        (["good>0"], "compares with a number or a time"),
        (["good&1"], "'good&1' tests bits: expected integers in the column 'good'"),
        (["depth"], "'depth' is no condition: expected COLUMN=VALUE, .*COLUMN!=VALUE"),
        (["depth>"], "'depth>' is no condition"),
        (["no<1"], "No column 'no' to select by: got x, y"),
    ],
)
def test_conditions_that_nothing_meets(conditions: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        selected(TABLE, conditions)
