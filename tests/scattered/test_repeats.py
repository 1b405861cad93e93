"""Several rows of a table at one place: refused, averaged or kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

import geonp
from geonp.cli.app import main
from geonp.errors import InputError
from geonp.io.measurements import read_table
from geonp.scattered.lattices import lattice
from geonp.scattered.repeats import combined

from ..commands import cli

COPIES = 4


def repeated(column: str = "name", entry: Callable[[int], Any] = lambda copy: "a", step: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    once = pd.DataFrame({"lon": rng.uniform(-5, 5, 20), "lat": rng.uniform(40, 50, 20), "t": rng.uniform(0, 1, 20)})
    many = [once.assign(t=once["t"] + step * n, **{column: entry(n)}) for n in range(COPIES)]
    return pd.concat(many, ignore_index=True)


def check(points: pd.DataFrame) -> None:
    combined(read_table(points, "t", None, None), True, None, None)


@pytest.mark.parametrize("text", [False, True])
def test_a_week_at_different_places_makes_one_field_with_a_warning(text: bool) -> None:
    table = repeated().assign(lon=np.linspace(-5, 5, 20 * COPIES))
    times = pd.Series(pd.date_range("2020-01-01T12:00", "2020-01-07T12:00", 20 * COPIES))
    table["when"] = times.dt.strftime("%Y-%m-%dT%H:%M:%S") if text else times
    with pytest.warns(
        UserWarning, match=r"of 7 days, 2020-01-01 to 2020-01-07 \(column 'when'\).*--time when.*repeats='keep'"
    ):
        check(table)
    check(table[:20])  # two days
    for column, said in {
        "date": [f"{n % 28 + 1}/0{n % 9 + 1}/2020" for n in range(len(table))],
        "entry": [20200101 + n % 28 for n in range(len(table))],
        "Jahr": [2000 + n % 5 for n in range(len(table))],
    }.items():
        with pytest.warns(UserWarning, match=rf"of \d+ (days|entries).*\(column '{column}'\)"):
            check(table.drop(columns="when").assign(**{column: said}))
    check(table.assign(t=table["t"].where(table.index < 20)))
    with pytest.warns(UserWarning, match=r"differ in 'upper_depth', and make one field.*--where upper_depth=0\)"):
        check(table[:20].assign(upper_depth=[0, 10] * 10, snow_depth=range(20), elevation=range(20)))
    combined(read_table(table, "t", None, None), True, "keep", None)
    combined(read_table(table, "t", None, None, ["when"]).timed("when", "1D"), True, None, None)


@pytest.mark.parametrize(
    ("column", "entry"),
    [
        ("date", lambda n: f"2020-01-0{n + 1}"),
        ("sampled", lambda n: pd.Timestamp(2020, 1, n + 1)),
        ("entry", lambda n: f"0{n + 1}/02/2020"),
        ("entry", lambda n: 20200101 + n),
        ("Monat", lambda n: ("Jan", "Feb", "Mrz", "Apr")[n]),
        ("obsYear", lambda n: 2000 + n),
        ("time", lambda n: 2020.5 + n / 8),
        ("depth_cm", lambda n: 2.5 * n),
        ("pollutant", lambda n: ("NO2", "O3")[n % 2]),
        ("scenario", lambda n: n),
    ],
)
def test_rows_of_several_times_or_conditions_are_refused(column: str, entry: Callable[[int], Any]) -> None:
    table = repeated(column, entry)
    first = str(entry(0)).removesuffix(" 00:00:00")
    message = (
        rf"several rows at 20 places that differ in '{column}'.*--where {column}={first}\).*repeats='mean' \(--rep"
    )
    with pytest.raises(InputError, match=message):
        check(table)
    table["t"] = table["t"].where(table.index < 20)  # one usable row a place
    check(table)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("replicate", np.repeat(range(COPIES), 20)),
        ("sample_id", np.arange(80)),
        ("code", [f"s{n}" for n in range(80)]),
        ("humidity", np.random.default_rng(1).integers(20, 100, 80)),
        ("day_temp", np.random.default_rng(2).uniform(0, 20, 80)),
    ],
)
def test_replicates_are_used_with_a_warning(column: str, values: Any) -> None:
    table = repeated().assign(**{column: values})
    message = (
        rf"^column 't' has several rows at 20 places \(80 rows; values differ at 20\), and '{column}' differ within"
    )
    with pytest.warns(UserWarning, match=message):
        check(table)


@pytest.mark.parametrize("copies", [1, 6, 20])
def test_copies_of_rows_count_once(copies: int, tmp_path: Path) -> None:
    once, grid = repeated()[:20].assign(e=0.1, h=range(20)), lattice((-5, 40, 5, 50), 1, "EPSG:4326")
    twice = pd.concat([once, once[:copies].assign(row=1)], ignore_index=True)
    with pytest.warns(UserWarning, match=rf"^{copies} rows repeat the values of another row.*--repeats keep"):
        found = geonp.interpolate(twice, grid, values="t", errors="e")
    xr.testing.assert_equal(found, geonp.interpolate(once, grid, values="t", errors="e"))
    kept = geonp.interpolate(twice, grid, values="t", errors="e", repeats="keep")
    assert float(abs(kept.t_standard_error - found.t_standard_error).max()) > 0
    twice.to_csv(tmp_path / "a.csv", index=False)
    command = ("grid", tmp_path / "a.csv", tmp_path / "a.nc", "--resolution", 1, "--value", "t", "--overwrite")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = cli(*command)
    assert done.stdout.startswith(f"Interpolated 20 points of {20 + copies} rows to ")
    assert cli(*command, "--repeats", "keep").stdout.startswith(f"Interpolated {20 + copies} points to ")


@pytest.mark.parametrize("column", ["t", "h", "e"])
def test_rows_that_differ_at_one_place_are_no_copies(column: str) -> None:
    once = repeated()[:20].assign(e=0.1, h=range(20))
    other = once.copy()
    other.loc[3, column] += 1
    table = read_table(pd.concat([once, other], ignore_index=True), "t", None, None, ["h", "e"])
    with pytest.warns(UserWarning, match=rf"\(40 rows; values differ at {int(column == 't')}\)"):
        found, errors = combined(table, True, None, np.full(40, 0.1))
    assert errors is not None
    assert len(found.xy) == errors.size == 40


@pytest.mark.parametrize("turn", [0, 360])
def test_means_of_places_are_interpolated(turn: int) -> None:
    table, grid = repeated("date", lambda n: f"2020-01-0{n + 1}"), lattice((-5, 40, 5, 50), 1, "EPSG:4326")
    table.loc[40:, "lon"] += turn
    with pytest.raises(InputError, match=r"differ in 'date'.*--repeats mean"):
        geonp.interpolate(table, grid)
    once = table[:20].assign(t=table["t"].to_numpy().reshape(COPIES, 20).mean(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = geonp.interpolate(table, grid, values="t", repeats="mean")
        expected = geonp.interpolate(once, grid, values="t")
    np.testing.assert_allclose(found.t, expected.t, rtol=1e-6)
    np.testing.assert_allclose(found.t_standard_error, expected.t_standard_error, rtol=1e-6)


def test_means_of_the_times_of_a_period() -> None:
    """The column of times was refused as a covariate of classes."""
    table, grid = repeated("date", lambda n: f"2020-01-0{n // 2 + 1}T{6 * n:02}:00"), lattice((-5, 40, 5, 50), 2, 4326)
    daily = table.groupby([table["date"].str[:10], "lon", "lat"], as_index=False, sort=False).mean(numeric_only=True)
    daily["date"] = table["date"].str[:10].unique().repeat(20)
    found = geonp.interpolate(table, grid, values="t", time="date", every="1D", repeats="mean")
    expected = geonp.interpolate(daily, grid, values="t", time="date")
    np.testing.assert_allclose(found["t"], expected["t"], rtol=1e-6)


def test_means_of_errors_covariates_and_missing_values() -> None:
    table = pd.DataFrame(
        {"x": [0, 0, 0, 1], "y": 0, "t": [1, 3, np.nan, 5], "e": [3, 4, 9, 2], "h": [1, 2, 6, 4], "soil": list("aaab")}
    )
    read = read_table(table, "t", None, None, ["h", "soil", "e"])
    found, errors = combined(read, False, "mean", table["e"].to_numpy(float))
    assert found.values["t"].tolist() == [2, 5]
    assert errors is not None
    assert errors.tolist() == [2.5, 2]
    assert found.covariates["h"].tolist() == [3, 4]
    assert found.covariates["soil"].tolist() == ["a", "b"]
    table.loc[1, "soil"] = "b"
    with pytest.raises(InputError, match="covariate 'soil' holds classes that differ between rows of one place"):
        combined(read_table(table, "t", None, None, ["soil"]), False, "mean", None)
    with pytest.raises(InputError, match="repeats must be 'mean' or 'keep', got 'median'"):
        combined(read, False, "median", None)  # type: ignore[arg-type]


def test_command_line_refuses_selects_and_averages(tmp_path: Any) -> None:
    table = repeated("date", lambda n: f"2020-0{n + 1}-01 12:00")
    table.to_csv(tmp_path / "long.csv", index=False)
    stations = table[:20].rename_axis("station")[["lon", "lat"]].to_xarray()
    values = ("time", "station"), table["t"].to_numpy().reshape(COPIES, 20)
    times = pd.date_range("2020-01-01 12:00", periods=COPIES)
    stations.drop_vars("station").set_coords(["lon", "lat"]).assign(t=values, time=times).to_netcdf(tmp_path / "s.nc")

    def run(name: str, *options: str) -> xr.Dataset | str:
        out = tmp_path / "out.nc"
        command = ["grid", str(tmp_path / name), str(out), "--resolution", "2", "--value", "t", "--overwrite", *options]
        done = CliRunner().invoke(main, command)
        return xr.load_dataset(out) if done.exit_code == 0 else done.output

    refused = run("long.csv")
    assert isinstance(refused, str)
    assert '--where "date=2020-01-01 12:00"' in refused
    assert "--repeats mean" in refused
    refused = run("s.nc")
    assert isinstance(refused, str)
    assert "--where time=2020-01-01" in refused
    assert "--repeats mean" in refused
    for conditions in (["date=2020-03"], ["date>2020-02", "date<=2020-03"]):
        selected = run("long.csv", *(part for text in conditions for part in ("--where", text)))
        assert isinstance(selected, xr.Dataset)
        assert 2 < float(selected.t.mean()) < 3
    for name in ("long.csv", "s.nc"):
        averaged = run(name, "--repeats", "mean")
        assert isinstance(averaged, xr.Dataset)
        assert 1.5 < float(averaged.t.mean()) < 2.5
