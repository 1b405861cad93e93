"""Directions in degrees are filled as unit vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError

Truth = npt.NDArray[np.float64]


@pytest.fixture
def wind() -> tuple[xr.DataArray, Truth]:
    """Directions around north, with gaps; and without."""
    y, x = np.mgrid[:32, :32]
    truth = (25 * np.sin(y / 6) + 20 * np.cos(x / 7)) % 360
    values = np.where(np.random.default_rng(0).random(truth.shape) < 0.7, np.nan, truth)
    attrs = {"standard_name": "wind_from_direction", "units": "degree"}
    return xr.DataArray(values.astype(np.float32), dims=("y", "x"), name="wd", attrs=attrs), truth


def off(filled: xr.DataArray, truth: Truth) -> Truth:
    """Differences of angles, from -180 to 180."""
    return np.asarray((filled.values - truth + 180) % 360 - 180)


def test_north_is_crossed(wind: tuple[xr.DataArray, Truth], model: str, tmp_path: Path) -> None:
    raster, truth = wind
    missing = raster.isnull().values
    out = raster.geonp.infill()
    error = off(out["wd"], truth)[missing]
    assert np.sqrt((error**2).mean()) < 1.0
    assert float(out["wd"].min()) >= 0
    assert float(out["wd"].max()) <= 360
    assert (out["wd"].values[missing] > 300).any()
    inside = np.abs(error) < 1.96 * out["wd_standard_error"].values[missing]
    assert inside.mean() > 0.85
    assert out["wd_standard_error"].attrs["long_name"] == "wd circular standard deviation"
    assert out["wd_standard_error"].attrs["units"] == "degree"
    assert out.attrs["geonp_directions"] == "wd"
    out = raster.geonp.infill(model=model)
    lazy = raster.chunk(y=11, x=40).geonp.infill(model=model)
    np.testing.assert_allclose(off(lazy["wd"], out["wd"].values), 0, atol=1e-2)
    raster.geonp.fill_store(tmp_path / "out.zarr", model=model)
    with xr.open_zarr(tmp_path / "out.zarr") as stored:
        np.testing.assert_allclose(stored["wd_standard_error"], out["wd_standard_error"], rtol=1e-3)


def test_the_range_is_that_of_the_data(wind: tuple[xr.DataArray, Truth]) -> None:
    raster, _ = wind
    signed = ((raster + 180) % 360 - 180).drop_attrs().rename("angle")
    out = signed.geonp.infill(circular=True)
    assert float(out["angle"].min()) < -20
    assert float(out["angle"].max()) < 60
    np.testing.assert_allclose(off(out["angle"], raster.geonp.infill()["wd"].values), 0, atol=1e-2)


def test_opposite_directions_are_unknown() -> None:
    values = np.where(np.random.default_rng(1).random((24, 24)) < 0.5, 90.0, 270.0)
    values[8:16, 8:16] = np.nan
    raster = xr.DataArray(values, dims=("y", "x"), name="flow")
    assert (raster.geonp.infill(circular=True)["flow_standard_error"].values[8:16, 8:16] > 60).all()


def test_what_directions_are_filled_with(wind: tuple[xr.DataArray, Truth]) -> None:
    raster, truth = wind
    with pytest.raises(InputError, match="quantiles cannot be used with directions: got 'wd'"):
        raster.geonp.infill(quantiles=[0.5])
    for bounds in ((0, 360), {"wd": (0, 360)}):
        with pytest.raises(InputError, match="bounds cannot be used with directions: got 'wd'"):
            raster.geonp.infill(bounds=bounds)
    with pytest.raises(InputError, match=r"as_ must be .*circular=True: got 'numbers' with circular=True"):
        raster.geonp.infill(as_="numbers", circular=True)
    with pytest.warns(UserWarning, match="wd: directions are filled as numbers"):
        found = raster.geonp.evaluate(holdout="random", fraction=0.1, baselines=["nearest"])
    assert np.isfinite(found.scores["geonp"].crps)
    numbers = raster.geonp.infill(as_="numbers")
    assert "geonp_directions" not in numbers.attrs
    missing = raster.isnull().values
    assert np.abs(off(numbers["wd"], truth)[missing]).max() > 90
    # what another slice observes, and what a covariate explains
    turned = xr.concat([raster, xr.DataArray(truth.astype(np.float32), dims=("y", "x"))], "time")
    turned.attrs = raster.attrs
    alone, across = (turned.rename("wd").geonp.infill(across=dim)["wd"][0] for dim in (None, "time"))
    assert np.square(off(across, truth)[missing]).mean() < np.square(off(alone, truth)[missing]).mean()
    known = xr.DataArray(np.sin(np.radians(truth)), dims=("y", "x"), name="sine")
    out = geonp.infill(raster, covariates=known, errors=xr.full_like(raster, 0.1).rename("sigma"))
    assert np.square(off(out["wd"], truth)[missing]).mean() < 1.0
