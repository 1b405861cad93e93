"""Counts of rare events: the distribution of each missing cell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
import xarray as xr

import geonp
from geonp.errors import InputError

from ..commands import says

MEAN, SIDE = 0.2, 48


@pytest.fixture(scope="module")
def truth() -> xr.DataArray:
    values = np.random.default_rng(0).poisson(MEAN, (SIDE, SIDE)).astype(np.float32)
    return xr.DataArray(values, dims=("y", "x"), name="strikes")


@pytest.fixture(scope="module")
def gappy(truth: xr.DataArray) -> xr.DataArray:
    return truth.where(np.random.default_rng(1).random(truth.shape) < 0.5)


@pytest.fixture(scope="module")
def filled(gappy: xr.DataArray) -> xr.Dataset:
    return gappy.geonp.infill(as_="counts", quantiles=[0.1, 0.95], exceed=[0, 1])


def test_totals_errors_and_probabilities_are_those_of_the_process(
    truth: xr.DataArray, gappy: xr.DataArray, filled: xr.Dataset
) -> None:
    hidden = np.isnan(gappy.values)
    assert filled.attrs["geonp_counts"] == "strikes"
    assert 0.8 < filled["strikes"].values[hidden].mean() / truth.values[hidden].mean() < 1.2
    z = (filled["strikes"] - truth).values[hidden] / filled["strikes_standard_error"].values[hidden]
    assert 0.8 < np.sqrt(np.mean(z**2)) < 1.3
    at_least_one = filled["strikes_exceedance"].sel(threshold=0).values
    assert abs(at_least_one[hidden].mean() - (truth.values[hidden] > 0).mean()) < 0.03
    np.testing.assert_array_equal(at_least_one[~hidden], truth.values[~hidden] > 0)
    quantiles = filled["strikes_quantile"].transpose("quantile", "y", "x").values
    assert set(np.unique(quantiles[:, hidden])) <= {0, 1, 2, 3, 4}
    # one or more is in the upper twentieth exactly where it is likelier than that
    np.testing.assert_array_equal((quantiles[1] > 0)[hidden], at_least_one[hidden] > 0.05)
    np.testing.assert_array_equal(filled["strikes"].values[~hidden], truth.values[~hidden])
    assert (filled["strikes_standard_error"].values[~hidden] == 0).all()


def test_dask_stores_and_files_give_the_same(gappy: xr.DataArray, filled: xr.Dataset, tmp_path: Path) -> None:
    given = {"as_": "counts", "quantiles": [0.1, 0.95], "exceed": [0, 1]}
    xr.testing.assert_allclose(gappy.chunk(y=23, x=17).geonp.infill(**given).compute(), filled, atol=1e-4)
    geonp.fill_store(gappy, tmp_path / "out.zarr", **given)
    with xr.open_zarr(tmp_path / "out.zarr") as stored:
        for name in filled.data_vars:
            np.testing.assert_allclose(stored[name].values, filled[name].values, atol=1e-4)
    packed = gappy.fillna(255).astype(np.uint8).values
    profile = {"driver": "GTiff", "height": SIDE, "width": SIDE, "count": 1, "dtype": "uint8", "nodata": 255}
    place = {"crs": "EPSG:32633", "transform": rasterio.transform.from_origin(5e5, 5.2e6, 30, 30)}
    with rasterio.open(tmp_path / "in.tif", "w", **profile, **place) as file:
        file.write(packed, 1)
    says("fill", tmp_path / "in.tif", tmp_path / "out.tif", "--as", "counts", "-q")
    with rasterio.open(tmp_path / "out.tif") as file:
        np.testing.assert_allclose(file.read(1), filled["strikes"].values, atol=1e-4)  # means, not whole numbers


def test_the_median_is_a_count(gappy: xr.DataArray, filled: xr.Dataset) -> None:
    median = gappy.geonp.infill(as_="counts", statistic="median")["strikes"].values
    assert set(np.unique(median)) <= set(range(6))
    likely = filled["strikes_exceedance"].sel(threshold=0).values
    np.testing.assert_array_equal(median[likely < 0.49], 0)


def test_sums_of_regions_have_standard_errors(truth: xr.DataArray, filled: xr.Dataset) -> None:
    sums = filled.geonp.aggregate(12, statistic="sum")  # warnings are errors
    expected = truth.values.reshape(4, 12, 4, 12).sum((1, 3)).ravel()
    z = (sums["value"].values - expected) / sums["standard_error"].values
    assert 0.7 < np.sqrt(np.mean(z**2)) < 1.4


def test_what_are_no_counts_is_refused(gappy: xr.DataArray) -> None:
    with pytest.raises(InputError, match=r"whole numbers of at least 0: got 0\.5"):
        (gappy + 0.5).geonp.infill(as_="counts")
    with pytest.raises(InputError, match="whole numbers of at least 0: got -1"):
        (gappy - 1).geonp.infill(as_="counts")
    outside = xr.ones_like(gappy, bool)
    outside[0, 0] = False
    assert (xr.where(outside, gappy, -1).rename("a").geonp.infill(as_="counts", mask=outside)["a"] >= -1).all()
    with pytest.raises(InputError, match="samples cannot be used with counts"):
        gappy.geonp.infill(as_="counts", samples=2)
    with pytest.raises(InputError, match="across cannot be used with counts"):
        gappy.expand_dims(time=2).geonp.infill(as_="counts", across="time")
    with pytest.warns(UserWarning, match="mean counts are rounded to int16"):
        gappy.fillna(-1).astype(np.int16).geonp.infill(as_="counts", nodata=-1)
