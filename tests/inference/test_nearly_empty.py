"""Slices with few observations: predicted from other slices and these, on every path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from scipy.optimize import approx_fprime
from scipy.spatial.distance import cdist
from scipy.special import gammaln

from geonp.fill.infill import infill
from geonp.inference import error_field, nearly_empty
from geonp.inference.error_field import ErrorField, fit, krige
from geonp.inference.nearly_empty import NEARLY_EMPTY, Stacked, combine_nearly_empty
from geonp.inference.series import SERIES, SeriesCovariance, left_out
from geonp.raster.windows import Window

from ..commands import cli

pytestmark = pytest.mark.usefixtures("float32")

Array = npt.NDArray[np.float64]

LOGS = np.log([0.3, 0.5, 4.0, 0.2, 20.0, 0.1, 5.0])


def drawn(seed: int, slices: int = 9, side: int = 28) -> Array:
    """A process in time and space with a separable covariance, and levels of cells."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(*[np.arange(side)] * 2, indexing="ij"), -1).reshape(-1, 2)
    space = 0.3 + np.exp(-((cdist(cells, cells) / 12) ** 1.5)) + 0.02 * np.eye(side**2)
    lag = np.abs(np.subtract.outer(np.arange(slices), np.arange(slices)))
    time = np.exp(-lag / 2)
    changes = np.linalg.cholesky(time) @ rng.normal(size=(slices, side**2)) @ np.linalg.cholesky(space).T
    level = np.linalg.cholesky(space) @ rng.normal(size=side**2)
    return np.asarray(10 + 3 * level + changes).reshape(slices, side, side)


def predicted(values: Array, k: int, few: npt.NDArray[np.bool_]) -> Array:
    """Slice `k` of which a few cells are observed, from predictions that know nothing."""
    own, others = np.where(few, values[k], np.nan), np.delete(values, k, 0)
    alone = np.stack([np.full(few.shape, 0.0), np.full(few.shape, 1e6), np.full(few.shape, 0.1)])
    stack = Stacked(own, others, np.delete(np.arange(len(values)), k) - float(k))
    return combine_nearly_empty(alone, stack, [], ~few, Window(0, few.shape[0], 0, few.shape[1]))[0]


def test_a_few_observations_say_what_the_errors_are_and_intervals_hold() -> None:
    z, errors, whole = [], [], []
    for seed in range(6):
        values, k = drawn(seed), 4
        few = np.zeros(values.shape[1:], bool)
        few[tuple(np.random.default_rng(seed).integers(0, 28, (2, 12)))] = True
        none = predicted(values, k, np.zeros_like(few))
        mean, error, tail = predicted(values, k, few)
        assert (tail[~few] < 0.1).all()
        z.append(((mean - values[k]) / error)[~few])
        errors.append(np.sqrt(np.mean((mean - values[k])[~few] ** 2)))
        whole.append(np.sqrt(np.mean((none[0] - values[k])[~few] ** 2)))
    assert np.mean(errors) < 0.75 * np.mean(whole)
    assert 0.8 < np.sqrt(np.mean(np.concatenate(z) ** 2)) < 1.15
    assert 0.92 < np.mean(np.abs(np.concatenate(z)) < 1.96) < 0.98


def test_units_do_not_matter() -> None:
    values = drawn(3)
    few = np.zeros(values.shape[1:], bool)
    few[5, ::4] = True
    mean, error, _ = predicted(values, 2, few)[:, ~few]
    other, its_error, _ = predicted(values * 1e4 - 3e5, 2, few)[:, ~few]
    np.testing.assert_allclose(other, mean * 1e4 - 3e5, rtol=1e-4, atol=1.0)
    np.testing.assert_allclose(its_error, error * 1e4, rtol=1e-3)


def test_slices_with_many_observations_and_constant_ones_are_left_as_they_are() -> None:
    values = drawn(1)
    few = np.zeros(values.shape[1:], bool)
    few.ravel()[: NEARLY_EMPTY.max_observed] = True
    assert (predicted(values, 4, few)[0] == 0).all()
    few.ravel()[0] = False
    assert (predicted(values, 4, few)[0][~few] > 0).all()
    assert (predicted(np.full(values.shape, 2.0), 4, few)[0] == 0).all()


def test_observations_within_reach_are_counted() -> None:
    own = np.where(np.random.default_rng(0).random((300, 9)) < 0.1, 1.0, np.nan)
    found, reach = nearly_empty._observed_around(own), SERIES.reach_px
    expected = [np.isfinite(own[max(k - reach, 0) : k + reach + 1]).sum() for k in range(300)]
    np.testing.assert_array_equal(found, np.repeat(expected, 9).reshape(300, 9))


def test_few_observations_make_the_other_prediction_less_certain() -> None:
    """A prediction that claims to know what it does not is used less the fewer observations it is made of."""
    values, errors = drawn(4), []
    for n in (4, 12, 100):
        few = np.zeros(values.shape[1:], bool)
        few.ravel()[np.linspace(0, few.size - 1, n).astype(int)] = True
        alone = np.stack([np.full(few.shape, 30.0), np.full(few.shape, 0.15), np.full(few.shape, 0.1)])
        own, others = np.where(few, values[4], np.nan), np.delete(values, 4, 0)
        stack = Stacked(own, others, np.delete(np.arange(9), 4) - 4.0)
        mean = combine_nearly_empty(alone, stack, [], ~few, Window(0, 28, 0, 28))[0][0]
        errors.append(np.mean(np.abs(mean - values[4])[~few]))
    assert errors[0] < 0.4 * errors[2]


def test_where_few_equal_values_leave_no_doubt_other_slices_do() -> None:
    values, few = drawn(5), np.zeros((28, 28), bool)
    few[:, :3] = True
    none = np.delete(values, 4, 0)
    window, lags = Window(0, 28, 0, 28), np.delete(np.arange(9), 4) - 4.0
    certain = np.stack([np.full(few.shape, 10.0), np.full(few.shape, 1e-6), np.full(few.shape, 0.1)])
    vague = certain * np.array([1, 1e9, 1])[:, None, None]
    stack = Stacked(np.where(few, values[4], np.nan), none, lags)
    error, from_series = (combine_nearly_empty(each, stack, [], ~few, window)[0][1][~few] for each in (certain, vague))
    assert (error >= 0.35 * from_series).all()


def test_gradients_are_those_of_the_posterior_density(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    slices = [(rng.normal(size=n), 20 * rng.random((n, 2))) for n in (7, 11)]

    def checked(loss, start, **_):  # type: ignore[no-untyped-def]
        for logs in (start, LOGS):
            found = approx_fprime(logs, lambda at: loss(at)[0], 1e-6)
            np.testing.assert_allclose(loss(logs)[1], found, rtol=1e-4, atol=1e-4)
        field, expected = ErrorField(LOGS), 0.0
        # a multivariate Student distribution, whose scale matrix is smaller than its covariance
        for z, places in slices:
            covariance = field(cdist(places, places)) + field.noise * np.eye(len(z))
            n, scale = len(z), covariance * (field.freedom - 2) / field.freedom
            half = (field.freedom + n) / 2
            expected += 0.5 * np.linalg.slogdet(scale)[1] + n / 2 * np.log(field.freedom)
            expected += half * np.log1p(z @ np.linalg.solve(scale, z) / field.freedom)
            expected += gammaln(field.freedom / 2) - gammaln(half)
        prior = (LOGS - start) / error_field._SPREAD
        assert loss(LOGS)[0] == pytest.approx(expected + 0.5 * prior @ prior)
        raise StopIteration

    monkeypatch.setattr(error_field.scipy.optimize, "minimize", checked)
    with pytest.raises(StopIteration):
        fit(slices)


def test_errors_are_kriged_exactly_and_the_scale_of_the_slice_is_between_theirs_and_that_of_others() -> None:
    rng = np.random.default_rng(2)
    field, places, targets = ErrorField(LOGS), 20 * rng.random((9, 2)), 20 * rng.random((5, 2))
    errors = 3 * rng.normal(size=9)
    mean, spread, tail = krige(errors, places, targets, field)

    def covariance(distance: Array) -> Array:
        r = np.sqrt(3) * distance / 4
        return np.asarray(0.3 + 0.5 * (1 + r) * np.exp(-r) + 0.2 * np.exp(-distance / 20))

    system, near = covariance(cdist(places, places)) + field.noise * np.eye(9), covariance(cdist(targets, places))
    np.testing.assert_allclose(mean, near @ np.linalg.solve(system, errors))
    prior = 1.0 + field.noise
    variance = prior - np.einsum("ij,ji->i", near, np.linalg.solve(system, near.T))
    scale = (5 + errors @ np.linalg.solve(system, errors)) / (5 + 9)
    np.testing.assert_allclose(spread, np.sqrt(variance * scale))
    assert tail == pytest.approx(1 / (7 + 9))
    mean, spread, tail = krige(errors[:0], places[:0], targets, field)
    assert (mean == 0).all()
    np.testing.assert_allclose(spread, np.sqrt(prior))


def test_errors_left_out_are_those_of_the_rest_of_the_series() -> None:
    rng = np.random.default_rng(4)
    covariance = SeriesCovariance(np.log([0.5, 6.0, 0.3, 2.0, 0.4, 0.1]), [])
    lag = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))
    series = rng.normal(size=(30, 6))
    series[rng.random(series.shape) < 0.3] = np.nan
    found = left_out(series, lag, covariance)
    whole = covariance(lag) + covariance.noise * np.eye(6)
    for values, each in zip(series, found, strict=True):
        known = np.isfinite(values)
        assert (np.isfinite(each) == known).all()
        for k in np.flatnonzero(known):
            rest = known & (np.arange(6) != k)
            weights = np.linalg.solve(whole[np.ix_(rest, rest)], whole[rest, k])
            variance = whole[k, k] - weights @ whole[rest, k]
            assert each[k] == pytest.approx((values[k] - weights @ values[rest]) / np.sqrt(variance))


@pytest.mark.filterwarnings("ignore:.*outside the footprint")
def test_nearly_empty_dates_are_filled_alike_on_every_path(drift_model: str, tmp_path: Path) -> None:
    values = drawn(7).astype(np.float32)
    few = np.zeros(values.shape[1:], bool)
    few[::9, ::9] = True
    truth, values[4] = values[4].copy(), np.where(few, values[4], np.nan)
    values[6, 5:15, 4:20] = np.nan
    dates = np.datetime64("2020-01-01", "ns") + np.arange(9) * np.timedelta64(1, "D")
    raster = xr.DataArray(values, {"time": dates}, ("time", "y", "x"), "a")
    found = infill(raster, across="time", model=drift_model)
    z = ((found.a - truth) / found.a_standard_error)[4].values[~few]
    assert 0.7 < np.sqrt(np.mean(z**2)) < 1.3
    lazy = infill(raster.chunk({"time": 2, "y": 20, "x": 17}), across="time", model=drift_model).compute()
    difference = (lazy.a - found.a) / found.a_standard_error.where(np.isnan(raster))
    assert float(np.abs(difference).max()) < 1e-3
    raster.to_netcdf(tmp_path / "in.nc")
    cli("fill", str(tmp_path / "in.nc"), str(tmp_path / "out.zarr"), "--across", "time", "--model", drift_model)
    with xr.open_zarr(tmp_path / "out.zarr") as stored:
        difference = (stored.a - found.a) / found.a_standard_error.where(np.isnan(raster))
        assert float(np.abs(difference).max()) < 1e-3
