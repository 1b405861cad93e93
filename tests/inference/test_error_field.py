"""Errors of predictions from series: their covariance, and joint samples of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.spatial.distance import cdist

from geonp.errors import InputError
from geonp.fill.aggregate import aggregate
from geonp.fill.infill import infill
from geonp.inference.error_field import ErrorField, FieldErrors
from geonp.inference.noise import Noise
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window

from ..commands import cli
from .test_nearly_empty import LOGS, Array, drawn

WINDOW = Window(100, 140, 60, 100)


@pytest.mark.parametrize("context", [[], [3, 210, 1599]])
def test_simulated_errors_have_the_correlations_of_kriging(context: list[int]) -> None:
    field, n = ErrorField(LOGS), 2000
    targets = np.array([0, 1, 2, 85, 800, 1598])
    part = FieldErrors(field, np.array(context, int), targets, np.full(6, 0.5))
    ((where, weights, errors),) = part.simulated(WINDOW, Noise((1, 2), n), None)
    assert where.tolist() == targets.tolist()
    assert weights.tolist() == [0.5] * 6
    every = np.stack(np.divmod([*targets, *context], 40), 1).astype(float)
    covariance = field(cdist(every, every)) + field.noise * np.eye(len(every))
    to, own = covariance[:6, 6:], covariance[6:, 6:]
    left = covariance[:6, :6] - to @ np.linalg.solve(own, to.T)
    expected = left / np.sqrt(np.outer(np.diag(left), np.diag(left)))
    np.testing.assert_allclose(errors @ errors.T / n, expected, atol=0.12)


def test_overlapping_windows_and_numbers_of_samples_do_not_change_the_noise() -> None:
    fields = [ErrorField(LOGS + shift) for shift in (0.0, 0.05)]
    other = Window(110, 140, 50, 100)
    one = FieldErrors(fields[0], np.array([900]), np.array([850, 851]), np.ones(2))
    near = FieldErrors(fields[1], np.array([12 * 50 + 30]), np.array([11 * 50 + 20, 11 * 50 + 21]), np.ones(2))
    ((_, _, errors),) = one.simulated(WINDOW, Noise((1, 2), 500), None)
    ((_, _, its),) = near.simulated(other, Noise((1, 2), 400), None)
    assert np.corrcoef(errors[0, :400], its[0])[0, 1] > 0.99


def stack_of(values: Array, empty: int, few: int = 0) -> xr.DataArray:
    """A stack of dates, of one of which only a few cells are observed."""
    hidden = values.copy()
    hidden[empty] = np.nan
    kept = np.random.default_rng(0).choice(values[0].size, few, replace=False)
    hidden[empty].ravel()[kept] = values[empty].ravel()[kept]
    dates = pd.date_range("2020-01-01", periods=len(values))
    return xr.DataArray(hidden, {"time": dates}, ("time", "y", "x"), "a")


@pytest.mark.parametrize("few", [0, 12])
def test_means_of_slices_with_few_or_no_observations_are_as_uncertain_as_they_say(few: int, drift_model: str) -> None:
    z, ratios, common = [], [], []
    for seed in range(2 if few else 4):
        values = drawn(seed)
        lazy = stack_of(values, 4, few).chunk({"time": 1})
        out = infill(lazy, model=drift_model, across="time", empty_slices=not few, samples=30).isel(time=4).compute()
        error = out.a_sample.std("sample")
        ratios.append(float((error / out.a_standard_error).where(out.a_fill_flag > 0).mean()))
        blocks = {"y": 14, "x": 14}
        spread = out.a_sample.coarsen(blocks).mean().std("sample")
        z.append(
            (out.a.coarsen(blocks).mean() - xr.DataArray(values[4], dims=("y", "x")).coarsen(blocks).mean()) / spread
        )
        common.append(float(spread.mean() / out.a_standard_error.mean()))
    assert np.mean(ratios) == pytest.approx(1, abs=0.08)
    assert np.mean(common) < 0.95, "errors are not perfectly correlated"
    assert 0.5 < np.sqrt(np.mean(np.square(z))) < 1.4


def test_samples_of_empty_slices_are_the_same_on_every_path(drift_model: str, tmp_path: Path) -> None:
    source = stack_of(drawn(1, side=36), 4)
    options = {"model": drift_model, "across": "time", "empty_slices": True}
    whole = infill(source, **options, samples=3)
    assert (whole.a_fill_flag[4] == FillFlag.FILLED_ACROSS).all()
    assert np.isfinite(whole.a_sample).all()
    lazy = infill(source.chunk({"time": 2, "y": 20, "x": 17}), **options, samples=2).compute()
    difference = (lazy.a_sample - whole.a_sample.isel(sample=slice(2))).isel(time=4) / whole.a_standard_error[4]
    assert float(np.abs(difference).max()) < 1e-3
    source.to_netcdf(tmp_path / "in.nc")
    asked = ["fill", tmp_path / "in.nc", tmp_path / "out.zarr", "--across", "time", "--empty-slices", "--samples", 2]
    cli(*map(str, asked), "--model", drift_model)
    with xr.open_zarr(tmp_path / "out.zarr") as found:
        difference = (found.a_sample - whole.a_sample.isel(sample=slice(2))).isel(time=4)
        assert float(np.abs(difference / whole.a_standard_error[4]).max()) < 1e-3


def test_regions_of_empty_slices_have_standard_errors(drift_model: str, tmp_path: Path) -> None:
    source = stack_of(drawn(2), 4)
    options = {"model": drift_model, "samples": 40}
    asked = aggregate(source, 28, across="time", empty_slices=True, **options).set_index("time")
    filled = infill(source, across="time", empty_slices=True, model=drift_model)
    later = aggregate(filled, 28, across="time", **options).set_index("time")
    assert later.standard_error.iloc[4] == pytest.approx(asked.standard_error.iloc[4], rel=1e-3)
    assert 0.2 < later.standard_error.iloc[4] / float(filled.a_standard_error[4].mean()) < 0.9
    source.to_netcdf(tmp_path / "in.nc")
    path = tmp_path / "table.csv"
    cli(
        "aggregate",
        tmp_path / "in.nc",
        "--blocks",
        28,
        "--across",
        "time",
        "--empty-slices",
        "--samples",
        40,
        "--out",
        path,
    )
    assert pd.read_csv(path).filled[4] == 28**2
    with pytest.raises(InputError, match="give the whole stack, of which the other slices belong"):
        aggregate(filled.isel(time=4), 28, **options)
