"""Fills with known errors of the observations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.evaluation.metrics import score

SHAPE = (32, 32)


@pytest.fixture(scope="module")
def truth() -> xr.DataArray:
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    field = 3 * np.sin(x / 9) + 2 * np.cos(y / 7 + x / 20)
    return xr.DataArray(field.astype(np.float32), dims=("y", "x"), name="t")


@pytest.fixture(scope="module")
def errors() -> xr.DataArray:
    """Standard errors: half of the observations are exact, the others are useless."""
    good = np.random.default_rng(1).random(SHAPE) < 0.5
    return xr.DataArray(np.where(good, 0.02, 3.0).astype(np.float32), dims=("y", "x"), name="err")


@pytest.fixture(scope="module")
def gappy(truth: xr.DataArray, errors: xr.DataArray) -> xr.DataArray:
    rng = np.random.default_rng(2)
    noisy = truth + errors * rng.standard_normal(SHAPE).astype(np.float32)
    return noisy.where(rng.random(SHAPE) < 0.4).rename("t")


def crps(filled: xr.Dataset, truth: xr.DataArray, gappy: xr.DataArray) -> float:
    hidden = np.isnan(gappy.values)
    return score(truth.values, filled["t"].values, filled["t_standard_error"].values, hidden).crps


def test_observations_with_large_errors_count_less(
    gappy: xr.DataArray, errors: xr.DataArray, truth: xr.DataArray
) -> None:
    found = gappy.geonp.infill(errors=errors)
    assert crps(found, truth, gappy) < 0.6 * crps(gappy.geonp.infill(), truth, gappy)
    np.testing.assert_array_equal(found["t"].values[~np.isnan(gappy.values)], gappy.values[~np.isnan(gappy.values)])
    hidden = np.isnan(gappy.values)
    inside = np.abs(found["t"] - truth).values <= 1.96 * found["t_standard_error"].values
    assert inside[hidden].mean() > 0.9
    assert found.attrs["geonp_errors"] == "err"


@pytest.mark.parametrize("scales", [(0.01, 0.002), (0.01, None), (None, 0.002), (-0.01, 0.002)])
def test_errors_and_values_may_be_packed(
    gappy: xr.DataArray, errors: xr.DataArray, scales: tuple[float | None, float | None]
) -> None:
    one = gappy.geonp.infill(errors=errors)
    of_values, of_errors = (1.0 if scale is None else scale for scale in scales)
    attrs = [{} if scale is None else {"scale_factor": scale} for scale in scales]
    values, known = gappy / of_values, errors / of_errors
    two = values.assign_attrs(attrs[0]).geonp.infill(errors=known.assign_attrs(attrs[1]))
    np.testing.assert_allclose(of_values * two["t"].values, one["t"].values, atol=0.01)
    np.testing.assert_allclose(abs(of_values) * two["t_standard_error"], one["t_standard_error"], rtol=0.1)


def test_units_do_not_matter(gappy: xr.DataArray, errors: xr.DataArray) -> None:
    one, two = gappy.geonp.infill(errors=errors), (100 * gappy).geonp.infill(errors=100 * errors)
    np.testing.assert_allclose(two["t"].values, 100 * one["t"].values, atol=0.1)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(
    ("values", "own", "said"),
    [
        ("m", "cm", "Multiply the errors by 0.01"),
        ("degC", "degF", "Multiply the errors by 0.555556"),
        ("m", "%", "neither variances nor relative errors"),
        ("K", "K2", "neither variances nor relative errors"),
        ("degC", "K", ""),
        ("m", "sigma", ""),
    ],
)
def test_errors_are_in_the_units_of_the_values(
    gappy: xr.DataArray, errors: xr.DataArray, drift_model: str, values: str, own: str, said: str, table: bool
) -> None:
    def fill() -> xr.Dataset:
        if not table:
            given = errors.assign_attrs(units=own)
            return gappy.assign_attrs(units=values).geonp.infill(errors=given, model=drift_model)
        ds = xr.Dataset({f"t [{values}]": gappy, f"err [{own}]": errors})
        rows = ds.assign_coords(x=np.arange(32.0), y=np.arange(32.0)).to_dataframe().reset_index()
        return geonp.interpolate(rows, geonp.lattice((0, 0, 8, 8), 4), values="t", errors="err", model=drift_model)

    if said:
        with pytest.raises(InputError, match=said):
            fill()
    else:
        assert fill()["t_standard_error"].max() > 0


def test_dask_stores_and_names_give_the_same(gappy: xr.DataArray, errors: xr.DataArray, tmp_path: Path) -> None:
    one = gappy.geonp.infill(errors=errors)
    lazy = gappy.chunk(y=17).geonp.infill(errors=errors.chunk(x=21)).compute()
    ds = xr.Dataset({"t": gappy, "err": errors})
    named = ds.geonp.infill(errors="err")
    xr.testing.assert_identical(named["err"], ds["err"])
    geonp.fill_store(ds, tmp_path / "out.zarr", chunks=32, errors="err")
    for other in (lazy, named, xr.open_zarr(tmp_path / "out.zarr").compute()):
        for name in ("t", "t_standard_error"):
            np.testing.assert_allclose(other[name].values, one[name].values, atol=1e-4)


def test_with_covariates(gappy: xr.DataArray, errors: xr.DataArray, truth: xr.DataArray) -> None:
    dem = xr.DataArray(np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32), dims=("y", "x"), name="dem")
    field = (truth + 4 * dem).rename("t")
    raster = (gappy + 4 * dem).rename("t")
    both = raster.geonp.infill(errors=errors, covariates=dem)
    assert crps(both, field, raster) < 0.7 * crps(raster.geonp.infill(covariates=dem), field, raster)
    assert crps(both, field, raster) < 0.7 * crps(raster.geonp.infill(errors=errors), field, raster)


@pytest.mark.parametrize("lazy", [False, True])
def test_missing_errors_are_zero(gappy: xr.DataArray, errors: xr.DataArray, lazy: bool, drift_model: str) -> None:
    some, plain = errors.where(errors > 1), gappy.geonp.infill(errors=errors.where(errors > 1, 0.0), model=drift_model)
    shown = gappy.chunk(y=19) if lazy else gappy
    with pytest.warns(UserWarning, match=r"Some observations have no known error, and count as exact.*\.isnull"):
        found = shown.geonp.infill(errors=some, model=drift_model).compute()
    np.testing.assert_allclose(found["t"], plain["t"], atol=1e-5)
    shown.geonp.infill(errors=some.where(gappy.notnull()).fillna(0.02), model=drift_model).compute()  # says nothing


@pytest.mark.parametrize("error", [1e6, 1e20])
def test_errors_far_beyond_all_values_are_said(
    gappy: xr.DataArray, errors: xr.DataArray, error: float, drift_model: str
) -> None:
    some = errors.where(np.arange(SHAPE[1]) > 4, error)
    with pytest.warns(UserWarning, match="Some known errors are far beyond the other errors and all values"):
        gappy.geonp.infill(errors=some, model=drift_model)


def test_the_truth_of_observations_is_estimated(
    gappy: xr.DataArray, errors: xr.DataArray, truth: xr.DataArray, drift_model: str, tmp_path: Path
) -> None:
    ds = xr.Dataset({"t": gappy.assign_attrs(ancillary_variables="n err"), "err": errors, "n": errors})
    ds["err"].attrs["standard_name"] = "air_temperature standard_error"
    plain, smooth = (ds.geonp.infill(errors="auto", smooth=smooth) for smooth in (False, True))
    assert plain.attrs["geonp_errors"] == "err"
    seen, noisy = ~np.isnan(gappy.values), (errors > 1).values
    np.testing.assert_array_equal(plain["t"].values[seen], gappy.values[seen])
    np.testing.assert_array_equal(smooth["t"].values[~seen], plain["t"].values[~seen])
    off = np.abs(smooth["t"] - truth).values
    assert np.square(off[seen & noisy]).mean() < 0.05 * np.square((gappy - truth).values[seen & noisy]).mean()
    error = smooth["t_standard_error"].values
    assert (error[seen] > 0).all()
    assert (error[seen] < errors.values[seen]).all()
    assert (off < 1.96 * error)[seen & noisy].mean() > 0.9
    assert (smooth["t_fill_flag"].values[seen] == 0).all()
    eager, lazy = (part.geonp.infill(errors="err", smooth=True, model=drift_model) for part in (ds, ds.chunk(y=19)))
    np.testing.assert_allclose(lazy["t"], eager["t"], atol=1e-3)
    # also where nothing is missing
    whole = ds.isel(y=slice(0, 16), x=slice(0, 16)).fillna({"t": truth[:16, :16]})
    whole["t"].attrs = ds["t"].attrs
    geonp.fill_store(whole, tmp_path / "out.zarr", errors="auto", smooth=True, model=drift_model)
    with xr.open_zarr(tmp_path / "out.zarr") as stored:
        assert (stored["t_standard_error"].values > 0).all()
    with pytest.raises(InputError, match=r"needs known errors .* got errors=None"):
        gappy.geonp.infill(smooth=True)
    with pytest.raises(InputError, match="No standard error of t is linked: got ancillary_variables 'n', expected one"):
        ds.drop_vars("err").geonp.infill(errors="auto")
    with pytest.raises(InputError, match="smooth=True cannot be combined with bounds: got bounds of 't'"):
        ds.geonp.infill(errors="err", smooth=True, bounds=(-100, 100))


def test_infinite_errors_are_those_of_no_observation(
    gappy: xr.DataArray, errors: xr.DataArray, drift_model: str
) -> None:
    """They would count as missing errors, which are zero."""
    known = errors.where(gappy.notnull(), np.inf)
    found = gappy.geonp.infill(errors=known, model=drift_model)
    np.testing.assert_array_equal(found["t"], gappy.geonp.infill(errors=errors, model=drift_model)["t"])
    bad, lazy = xr.full_like(errors, np.inf), gappy.chunk(y=19)
    with pytest.raises(InputError, match=r"must be finite: got infinite ones of \d+ observations.*missing=np\.isinf"):
        gappy.geonp.infill(errors=bad, model=drift_model)
    with pytest.raises(InputError, match="must be finite"):
        lazy.geonp.infill(errors=bad.chunk(y=19), model=drift_model).compute()


def test_errors_that_cannot_be_used_are_refused(gappy: xr.DataArray, errors: xr.DataArray) -> None:
    with pytest.raises(InputError, match="must not be negative: got -3"):
        gappy.geonp.infill(errors=-errors)
    with pytest.raises(InputError, match="must not be negative: got -3"):
        gappy.chunk(y=19).geonp.infill(errors=-errors.chunk(y=19)).compute()
    with pytest.raises(InputError, match=r"must be a DataArray or the name of a variable of the raster: got 0\.1"):
        gappy.geonp.infill(errors=0.1)
    with pytest.raises(InputError, match="belong to one variable: got 1 arrays of errors and 2 variables to fill"):
        xr.Dataset({"t": gappy, "u": gappy + 1}).geonp.infill(errors=errors)
    with pytest.raises(InputError, match="array of known errors 'err' and the raster differ in shape"):
        gappy.geonp.infill(errors=errors[1:])
    with pytest.raises(InputError, match="array of known errors 'err' has no rows and columns"):
        gappy.geonp.infill(errors=errors[0])
    with pytest.raises(InputError, match="trained without"):
        gappy.geonp.infill(errors=errors, model="te-pt-tnp")
