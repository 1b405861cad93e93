"""Slices without observations: predicted from the same cells in other slices, on every path."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import xarray as xr
from scipy import ndimage
from scipy.optimize import approx_fprime

from geonp.errors import InputError
from geonp.fill.infill import infill
from geonp.inference import series
from geonp.inference.series import SERIES, predict_slice
from geonp.raster.metadata import FillFlag
from geonp.raster.positions import periods, positions
from geonp.raster.windows import Window

from ..commands import cli

pytestmark = pytest.mark.usefixtures("float32")

Array = npt.NDArray[np.float64]

DAYS = np.cumsum(np.random.default_rng(0).integers(6, 20, 40)).astype(float)


def stack(seed: int = 0, side: int = 24) -> Array:
    """A season whose level, strength and date differ from place to place, and weather with a memory of ten days."""
    rng = np.random.default_rng(seed)
    level, strength, shift = (ndimage.gaussian_filter(rng.normal(size=(side, side)), 3) * 6 for _ in range(3))
    season = np.sin(2 * np.pi * (DAYS[:, None, None] / 365.25) + shift / 2) * (2 + strength)
    lag = np.abs(DAYS[:, None] - DAYS)
    weather = np.linalg.cholesky(np.exp(-lag / 10)) @ rng.normal(size=(len(DAYS), 4))
    patterns = ndimage.gaussian_filter(rng.normal(size=(4, side, side)), (0, 4, 4)) * 6
    noise = rng.normal(size=season.shape)
    return np.asarray(20 + level + season + np.einsum("tk,kyx->tyx", weather, patterns) + noise)


def predicted(values: Array, k: int, window: Window | None = None) -> Array:
    others, days = np.delete(values, k, 0), DAYS[: len(values)]
    window = window or Window(0, values.shape[1], 0, values.shape[2])
    return predict_slice(others, np.delete(days, k), days[k], [365.25], np.ones(values.shape[1:], bool), window)


def alike(slices: int, seed: int = 3) -> Array:
    """Cells of very different levels, which all change by the same amount from date to date, and a little noise."""
    rng = np.random.default_rng(seed)
    level, change = 30 * rng.normal(size=(24, 24)), np.cumsum(rng.normal(size=slices))
    return np.asarray(level + change[:, None, None] + 0.2 * rng.normal(size=(slices, 24, 24)))


# --- one slice --------------------------------------------------------------------------------------------------------


def test_a_date_is_predicted_better_than_by_its_neighbours_and_intervals_hold() -> None:
    values = stack()
    gappy = np.where(np.random.default_rng(1).random(values.shape) < 0.2, np.nan, values)
    inside, errors = [], []
    for k in range(3, 38, 2):
        mean, error, tail = predicted(gappy, k)
        weight = (DAYS[k] - DAYS[k - 1]) / (DAYS[k + 1] - DAYS[k - 1])
        linear = (1 - weight) * values[k - 1] + weight * values[k + 1]
        errors.append([np.mean((mean - values[k]) ** 2), np.mean((linear - values[k]) ** 2)])
        inside.append(np.mean(np.abs(mean - values[k]) < 1.96 * error))
        assert (tail <= 1 / SERIES.min_observed).all()
    ours, theirs = np.sqrt(np.mean(errors, 0))
    assert ours < 0.97 * theirs
    assert 0.9 < np.mean(inside) < 0.99


@pytest.mark.parametrize(("slices", "least"), [(12, 1.2), (40, 1.05)])
def test_the_last_date_is_less_certain_than_one_between_others(slices: int, least: float) -> None:
    values = stack()[:slices]
    assert predicted(values, slices - 1)[1].mean() > least * predicted(values, slices // 2)[1].mean()


def test_a_cycle_that_does_not_change_is_continued() -> None:
    rng = np.random.default_rng(6)
    months = np.arange(96.0)
    strength = 8 + rng.normal(size=(1, 12, 12))
    values = -strength * np.cos(2 * np.pi * months[:, None, None] / 12) + rng.normal(size=(96, 12, 12))
    known, window, every = months[28:92], Window(0, 12, 0, 12), np.ones((12, 12), bool)
    for k in range(92, 96):
        mean, error, _ = predict_slice(values[28:92], known, months[k], [12.0], every, window)
        assert np.sqrt(np.mean((mean - values[k]) ** 2)) < 1.3
        assert error.mean() < 2.1


def test_gradients_are_those_of_the_posterior_density(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    values = np.where(rng.random((10, 12)) < 0.3, np.nan, rng.normal(size=(10, 12)))
    times = np.sort(rng.uniform(0, 12, 12))
    kept = {}

    def minimized(loss, start, **_):  # type: ignore[no-untyped-def]
        kept.update(loss=loss, at=start + rng.normal(size=start.size) / 3)
        raise InterruptedError

    monkeypatch.setattr("scipy.optimize.minimize", minimized)
    with pytest.raises(InterruptedError):
        series.fit(values, np.abs(times[:, None] - times), [5.0])
    value, gradient = kept["loss"](kept["at"])
    assert np.isfinite(value)
    np.testing.assert_allclose(gradient, approx_fprime(kept["at"], lambda x: kept["loss"](x)[0], 1e-6), atol=1e-3)


def test_cells_are_conditioned_on_what_they_observe() -> None:
    """With gaps, as without the missing slices."""
    covariance = series.SeriesCovariance(np.log([0.5, 4, 0.3, 1, 0.2, 0.4, 1, 6, 0.1]), [6.0])
    rng = np.random.default_rng(3)
    times, values = np.arange(9.0), rng.normal(size=(2, 9))
    values[1, [2, 5]] = np.nan
    lag, to_target = np.abs(times[:, None] - times), np.abs(times - 4.4)
    mean, variance = series.condition(values, lag, to_target, covariance)
    for cell, known in enumerate(np.isfinite(values)):
        system = covariance(lag)[np.ix_(known, known)] + covariance.noise * np.eye(known.sum())
        weights = np.linalg.solve(system, covariance(to_target)[known])
        assert mean[cell] == pytest.approx(weights @ values[cell, known])
        whole = covariance(np.zeros(1))[0] + covariance.noise
        assert variance[cell] == pytest.approx(whole - weights @ covariance(to_target)[known])


def test_units_levels_and_unknown_cells() -> None:
    values = stack()
    values[:, 5, 5] = np.nan
    values[3:, 6, 6] = np.nan
    mean, error, _ = predicted(values, 10)
    assert np.isnan(mean[[5, 6], [5, 6]]).all()
    assert np.isfinite(np.delete(mean.ravel(), [5 * 24 + 5, 6 * 24 + 6])).all()
    other = predicted(1000 * values - 7, 10)
    np.testing.assert_allclose(other[:2], [1000 * mean - 7, 1000 * error], rtol=1e-3)


def test_a_window_needs_what_is_in_reach_of_its_cells() -> None:
    values = np.tile(stack(), (1, 16, 1))
    wanted = np.zeros(values.shape[1:], bool)
    wanted[170:220] = True
    others, positions_ = np.delete(values, 9, 0), np.delete(DAYS, 9)
    whole = predict_slice(others, positions_, DAYS[9], [], wanted, Window(0, 384, 0, 24))
    part = np.s_[170 - SERIES.reach_px : 220 + SERIES.reach_px]
    near = predict_slice(others[:, part], positions_, DAYS[9], [], wanted[part], Window(part.start, part.stop, 0, 24))
    np.testing.assert_array_equal(whole[:, part], near)
    assert np.isfinite(near[0]).sum() == 50 * 24


def test_there_are_no_seams_where_the_covariance_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is ten times as large in the lower half of the raster."""
    noise = np.random.default_rng(0).normal(size=(len(DAYS), 256, 6)) * np.repeat([0.02, 0.2], 128)[:, None]
    values = np.sin(DAYS / 40)[:, None, None] + noise

    def rows() -> Array:
        return np.asarray(np.log(predicted(values, 10)[1].mean(1)))

    assert np.diff(rows())[127] > 0.5, "each cell has a scale of its own"
    # without these scales, what is left is that of the squares
    monkeypatch.setattr(series, "SERIES", replace(SERIES, common_slices=1e9))
    assert np.ptp(rows()) > 1
    assert np.abs(np.diff(rows())).max() < 0.04


# --- periods ----------------------------------------------------------------------------------------------------------


def test_periods_are_those_that_the_stack_spans_and_resolves() -> None:
    def dated(times: object) -> xr.DataArray:
        return xr.DataArray(np.zeros(len(times)), {"time": times}, "time")  # type: ignore[arg-type]

    year, day = 365.2425 * 86400e6, 86400e6
    assert periods(dated(pd.date_range("2015-07-01", periods=68, freq="13D")), "time") == (year,)
    assert periods(dated(pd.date_range("2015-07-01", periods=40, freq="6h")), "time") == (day,)
    assert periods(dated(pd.date_range("2015-07-01", periods=40, freq="12h")), "time") == ()
    assert periods(dated(np.arange(40)), "time") == ()
    assert periods(dated(xr.date_range("2001-01-30", periods=30, freq="30D", calendar="360_day")), "time") == (
        360 * day,
    )
    coded = dated([0, 30, 64])
    coded.time.attrs["units"] = "days since 2001-01-01"
    assert positions(coded, "time") == (0, 30 * day, 64 * day)
    coded.time.attrs.update(units="days since 0000-01-01", calendar="standard")  # which cftime refuses
    assert positions(coded, "time") == (0, 30 * day, 64 * day)
    coded = dated(np.arange(24) + 0.5)
    coded.time.attrs.update(units="months since 1960-01-01", calendar="360")
    assert np.diff(positions(coded, "time")) == pytest.approx(year / 12)
    assert periods(coded, "time") == (year,)
    valid = pd.to_datetime(["2001", "2002", "2003"])
    coded = dated(np.array([6, 3, 48], np.uint8)).assign_coords(valid=("time", valid))
    coded.time.attrs["units"] = "hours"
    assert positions(coded, "time") == (0, -day / 8, 42 * day / 24)
    assert positions(coded.drop_vars("time"), "time") == (0, 365 * day, 730 * day)
    for texts in (["2001-01-01", "2001-02-01T12:00Z"], [b"2001-01-01_00:00:00", b"2001-02-01_12:00:00"]):
        assert positions(dated(texts), "time") == (0, 31.5 * day)
    for names in (
        ["20010101", "20010201"],
        ["200101", "200102"],
        ["S2A_20010101_NDVI", "S2B_20010201_NDVI"],
        ["a.2001_01_01.tif", "a.2001_02_01.tif"],
        ["x20010101T1200", "x20010201T1200"],
    ):
        assert positions(dated(names), "time") == (0, 31 * day)
    for texts, days in (
        (["2001Q1", "2001Q3"], 181),
        (["2001-q1", "2001-q3"], 181),
        (["Q1 2001", "Q3 2001"], 181),
        (["2001-W01", "2001-W05"], 28),
        (["2001W017", "2001W051"], 22),
        (["Jan 2001", "March 2001"], 59),
        (["2001-Jan", "2001-Sept"], 243),
        ([b"JAN2001", b"MAR2001"], 59),
    ):
        assert positions(dated(texts), "time") == (0, days * day)
    assert positions(dated(["20010101_B1", "20010101_B2"]), "time") == (0, 1)
    assert positions(dated(["12345678", "23456789"]), "time") == (0, 1)
    for numbers, unit in (
        ([20010101, 20010201], ""),
        ([20010101, 20010201], "yyyymmdd"),
        ([200101, 200102], "1"),
        ([20010101.5, 20010201.5], "day as %Y%m%d.%f"),
    ):
        coded = dated(numbers)
        coded.time.attrs["units"] = unit
        assert positions(coded, "time") == (0, 31 * day)
    assert positions(dated([2001, 2003]).rename(time="year"), "year") == (0, 730 * day)
    assert positions(dated([2001, 2003]).rename(time="station"), "station") == (0, 1)
    assert positions(dated([850, 700]), "time") == (0, 1)
    assert positions(dated(["2001-01-01", "red"]), "time") == (0, 1)
    assert positions(dated(pd.PeriodIndex(["2001-01", "2001-04"], freq="M")), "time") == (0, 90 * day)
    zoned = pd.DatetimeIndex(["2001-03-24", "2001-03-26"]).tz_localize("Europe/Berlin")  # an hour is skipped
    assert positions(dated(zoned), "time") == (0, 47 * day / 24)
    coded = dated(np.arange(0, 900, 30))
    coded.time.attrs.update(units="days since 2001-01-01", calendar="360_day")
    assert positions(coded[[0, 1, 3]], "time") == (0, 30 * day, 90 * day)
    assert periods(coded, "time") == (360 * day,)
    with pytest.warns(UserWarning, match=r"time: 1 of 3 labels are unknown, so that its slices count as evenly spaced"):
        assert positions(dated(pd.to_datetime(["2001-01-01", None, "2003-01-01"])), "time") == (0, 1, 2)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["01/03/2020", "01/04/2020", "15/04/2020"], "dates such as 01/03/2020"),
        (["1 Mar 2020", "1 Apr 2020", "15 Apr 2020"], "dates such as 1 Mar 2020"),
        ([0, 6, 24], "0, 6, 24, ... without units"),
        ([31012020, 1022020, 2022020], "3.1012e\\+07"),
        ([0, 6, 12], ""),
        (["2020-1-5", "2020-2-5", "2020-4-5"], "dates such as 2020-1-5"),
        (["2020/01", "2020/02", "2020/04"], "dates such as 2020/01"),
        (["01/2020", "02/2020", "04/2020"], "dates such as 01/2020"),
        (["2019-W52", "2019-W53", "2020-W02"], "dates such as 2019-W52"),
        (["Red 2020", "Green 2020", "Blue 2020"], ""),
        (["spring", "summer", "autumn"], ""),
    ],
)
def test_times_that_count_as_evenly_spaced_are_said(labels: list[object], said: str) -> None:
    stack = xr.DataArray(np.zeros(3), {"time": labels}, "time")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert positions(stack, "time") == (0, 1, 2)
    expected = f"evenly spaced, though its labels are {said}"
    assert [bool(re.search(expected, str(one.message))) for one in found] == [True] * (said != "")


def test_a_date_among_few_is_as_certain_as_cells_change() -> None:
    values = alike(8)
    mean, error, _ = predicted(values, 4)
    between = (values[3] + values[5]) / 2
    assert np.sqrt(np.mean((mean - values[4]) ** 2)) < np.sqrt(np.mean((between - values[4]) ** 2))
    # the levels of cells are known, however different they are
    assert error.mean() < 1.5 * np.std(np.diff(values, axis=0))


@pytest.mark.parametrize("change", [1e-9, 1e-6, 0.0])
def test_cells_that_hardly_change_keep_their_levels(change: float) -> None:
    level = 30 * np.random.default_rng(2).normal(size=(24, 24))
    values = level + change * np.random.default_rng(3).normal(size=(8, 24, 24))
    mean, error, _ = predicted(values, 4)
    assert np.abs(mean - level).max() < 1e-3
    assert (error > 0).all()
    assert error.max() < 1.0


# --- every path -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raster() -> xr.DataArray:
    """Dates with gaps of their own; the third and the last are empty."""
    values = stack(side=32)[:9].astype(np.float32)
    values[:, 4:9, 5:11] = np.nan
    values[1, 20:, 9:20] = np.nan
    values[[2, 8]] = np.nan
    values[:, 30, 30] = np.nan
    dates = np.datetime64("2020-01-01", "ns") + DAYS[:9].astype("timedelta64[D]")
    return xr.DataArray(values, {"time": dates}, ("time", "y", "x"), "a")


def test_empty_slices_are_filled_and_say_so(raster: xr.DataArray, drift_model: str, tmp_path: Path) -> None:
    options = {"across": "time", "model": drift_model}
    whole = infill(raster, **options, empty_slices=True, quantiles=[0.1], tails=True)
    before = infill(raster, **options, quantiles=[0.1], tails=True)
    assert np.isnan(before.a[2]).all()
    kept = [0, 1, 3, 4, 5, 6, 7]
    assert whole.a[kept].equals(before.a[kept])
    assert whole.attrs["geonp_empty_slices"] == "filled across time"
    flags = whole.a_fill_flag
    assert flags.attrs["flag_meanings"].endswith("failed filled_across")
    assert "filled_across" not in before.a_fill_flag.attrs["flag_meanings"]
    # a cell that too few slices observe stays empty
    empty = np.isnan(raster[2]) & (np.isfinite(raster).sum("time") >= SERIES.min_observed)
    assert (flags[[2, 8]] == xr.where(empty, FillFlag.FILLED_ACROSS, FillFlag.BEYOND_LIMIT)).all()
    assert float(whole.a_standard_error[8].mean()) > 1.01 * float(whole.a_standard_error[2].mean())
    z = ((whole.a - stack(side=32)[:9]) / whole.a_standard_error)[[2, 8]]
    assert 0.6 < float(np.sqrt((z**2).mean())) < 1.1
    assert (whole.a_quantile[0, 2] < whole.a[2]).where(empty, True).all()
    lazy = infill(raster.chunk({"time": 2, "y": 20, "x": 17}), **options, empty_slices=True).compute()
    difference = (lazy.a - whole.a) / whole.a_standard_error.where(np.isnan(raster))
    assert float(np.abs(difference).max()) < 1e-3
    assert (lazy.a_fill_flag == flags).all()
    raster.to_netcdf(tmp_path / "in.nc")
    asked = ["fill", str(tmp_path / "in.nc"), str(tmp_path / "out.zarr"), "--across", "time", "--empty-slices"]
    done = cli(*asked, "--model", drift_model)
    assert "stay empty" not in done.output
    with xr.open_zarr(tmp_path / "out.zarr") as found:
        assert float(np.abs((found.a - whole.a) / whole.a_standard_error.where(np.isnan(raster))).max()) < 1e-3
        assert (found.a_fill_flag == flags).all()


def test_what_is_refused(raster: xr.DataArray) -> None:
    with pytest.raises(InputError, match="got across=None, expected for example across='time'"):
        infill(raster, empty_slices=True)
    with pytest.raises(InputError, match="got max_distance=3, expected one of the two"):
        infill(raster, across="time", empty_slices=True, max_distance=3)
