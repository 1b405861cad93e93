"""Fills onto other grids: infill(at=)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rioxarray  # noqa: F401  (registers the accessor rio)
import xarray as xr
from pyproj import Transformer

import geonp

from ..commands import cli, says


def smooth(y: Any, x: Any) -> Any:
    """A smooth field, of coordinates in kilometres."""
    return 10 * np.sin(x / 5.0) + 8 * np.cos(y / 4.0 + x / 9.0)


def raster(ny: int, nx: int, step: float = 1.0, first: float = 0.0) -> xr.DataArray:
    y, x = first + step * np.arange(ny)[::-1], first + step * np.arange(nx)
    values = smooth(y[:, None], x).astype("float32")
    return xr.DataArray(values, {"y": y, "x": x}, ("y", "x"), name="a", attrs={"units": "mm"})


def gapped(da: xr.DataArray) -> xr.DataArray:
    return da.where((abs(da.y - 12) > 4) | (abs(da.x - 15) > 4))


def test_on_its_own_grid_it_is_the_plain_fill(model: str) -> None:
    da = gapped(raster(24, 32))
    plain, same = da.geonp.infill(model=model), da.geonp.infill(at=da.coords.to_dataset(), model=model)
    xr.testing.assert_identical(same.drop_attrs(), plain.drop_attrs())


def test_a_finer_grid_of_a_smooth_field(float32: None) -> None:
    da, truth = gapped(raster(24, 32)), raster(47, 63, 0.5)
    fine = da.geonp.infill(at=truth, quantiles=[0.5], exceed=[0.0])
    assert (fine.a.dims, fine.a.dtype, fine.a.attrs["units"]) == (("y", "x"), np.float32, "mm")
    xr.testing.assert_equal(fine.coords.to_dataset()[["y", "x"]], truth.coords.to_dataset())
    on_cells = fine.isel(y=slice(None, None, 2), x=slice(None, None, 2))
    np.testing.assert_array_equal(on_cells.a.where(da.notnull()), da)
    np.testing.assert_array_equal(on_cells.a_fill_flag == 0, da.notnull())
    np.testing.assert_array_equal((on_cells.a_standard_error == 0), da.notnull())
    filled = (fine.a_fill_flag == 1).values
    error = (fine.a - truth).values[filled]
    bilinear = (da.geonp.infill().a.interp_like(truth) - truth).values[filled]
    assert np.sqrt(np.mean(error**2)) < 0.5 * np.sqrt(np.mean(bilinear**2))
    assert np.mean(np.abs(error) < 1.96 * fine.a_standard_error.values[filled]) > 0.9
    np.testing.assert_allclose(fine.a_quantile.sel(quantile=0.5), fine.a, rtol=1e-5, atol=1e-5)


def test_standard_errors_of_noisy_data_are_honest(float32: None) -> None:
    truth = raster(63, 63, 0.5)
    truth += np.random.default_rng(0).normal(0, 0.5, truth.shape).astype("float32")
    found = truth[::2, ::2].geonp.infill(at=truth)
    filled = (found.a_fill_flag == 1).values
    z = ((found.a - truth) / found.a_standard_error).values[filled]
    assert 0.9 < np.mean(np.abs(z) < 1.96) < 0.98


def test_another_crs_and_integers(model: str, tmp_path: Path) -> None:
    transformer = Transformer.from_crs("EPSG:4326", "EPSG:32633", always_xy=True)
    lat, lon = 47 + 0.02 * np.arange(24)[::-1], 15 + 0.03 * np.arange(32)
    east, north = transformer.transform(*np.meshgrid(lon, lat))
    values = np.rint(1000 + 100 * smooth((north - 5.2e6) / 2e3, (east - 5e5) / 2e3)).astype("int16")
    values[8:14, 10:16] = -1
    places = {"y": lat, "x": lon}
    source = xr.DataArray(values, places, ("y", "x"), name="dem", attrs={"_FillValue": np.int16(-1)})
    y, x = 5.25e6 - 2000 * np.arange(12), 5.05e5 + 2000 * np.arange(60)
    at = xr.DataArray(np.zeros((12, 60)), {"y": y, "x": x}, ("y", "x")).rio.write_crs("EPSG:32633")
    good, found = (source.rio.write_crs("EPSG:4326").geonp.infill(at=at, model=one) for one in ("tnpkr-sa", model))
    assert (found.dem.dtype, found.dem.dims, found.rio.crs.to_epsg()) == (np.int16, ("y", "x"), 32633)
    for declared in ({"crs": "EPSG:32633"}, {"proj:code": "EPSG:32633"}):  # was lost, or unknown
        same = at.drop_vars("spatial_ref").assign_attrs(declared)
        other = source.rio.write_crs("EPSG:4326").geonp.infill(at=same, model=model)
        assert other.rio.crs.to_epsg() == 32633
        np.testing.assert_array_equal(other.dem, found.dem)
    inside = found.dem_fill_flag == 1
    assert set(np.unique(found.dem_fill_flag)) == {1, 3}  # columns in the east lie outside of the raster
    assert (found.dem.where(~inside, 0) <= 0).all()
    truth = 1000 + 100 * smooth((y[:, None] - 5.2e6) / 2e3, (x - 5e5) / 2e3)
    error = (good.dem - truth).where(inside)
    assert float(abs(error).max()) < 30
    paths = [tmp_path / name for name in ("in.tif", "like.tif", "out.tif")]
    source.rio.write_crs("EPSG:4326").rio.to_raster(paths[0])
    at.rio.to_raster(paths[1])
    done = cli("fill", paths[0], paths[2], "--like", paths[1], "--values-only", "--model", model)
    written = geonp.open_raster(paths[2])
    np.testing.assert_array_equal(written["dem"], found.dem.where(inside))
    assert f"Filled {int(inside.sum())} cells, left {int((~inside).sum())} empty" in done.output


def test_the_target_gives_its_grid_and_not_the_time_of_its_values(model: str) -> None:
    da, at = gapped(raster(24, 32)), raster(10, 14, 2.0, 2.5)
    at = at.assign_coords(time=np.datetime64("2020-01-01", "ns"), lat=(("y", "x"), np.zeros(at.shape)))
    assert {*da.geonp.infill(at=at, model=model).coords} == {"y", "x", "lat"}
    found = da.assign_coords(time=np.datetime64("2021-01-01", "ns")).geonp.infill(at=at, support="cell", model=model)
    assert found.time == np.datetime64("2021-01-01", "ns")
    assert "time" not in da.geonp.infill(at=at, support="cell", model=model).coords


def test_means_over_coarser_cells(model: str) -> None:
    da = gapped(raster(24, 32)).expand_dims(time=2)
    at = raster(6, 10, 4.0, 1.5)  # 4 x 4 cells of the raster each, of which the columns end at 32
    plain, found = da.geonp.infill(model=model), da.geonp.infill(at=at, support="cell", samples=60, model=model)
    assert (list(found), found.a.dims, found.a.dtype) == (list(plain), ("time", "y", "x"), np.float32)
    parts = plain.isel(time=0).coarsen(y=4, x=4)
    np.testing.assert_allclose(found.a[1, :, :8], parts.mean().a, rtol=1e-5)
    mixed = (parts.max().a_fill_flag == 1).values
    np.testing.assert_array_equal(found.a_fill_flag[0, :, :8], mixed)
    np.testing.assert_array_equal(found.a_fill_flag[0, :, 8:], 3)
    error = found.a_standard_error[0, :, :8].values
    independent = np.sqrt((plain.isel(time=0).a_standard_error ** 2).coarsen(y=4, x=4).sum()).values / 16
    assert (error[~mixed] == 0).all()
    assert error[mixed].sum() > 2 * independent[mixed].sum()
    with pytest.raises(geonp.InputError, match=r"cells of the target grid contain no cell centre of the raster"):
        da.geonp.infill(at=raster(47, 63, 0.5), support="cell", model=model)
    asked: Any = {"quantiles": [0.5], "max_gap": 3, "missing": da > 3, "holes": False}
    with pytest.raises(geonp.InputError, match=r"standard errors only: got quantiles, max_gap, expected none"):
        da.geonp.infill(at=at, support="cell", model=model, **asked)


def test_means_over_cells_of_a_scene_without_its_clouds(model: str) -> None:
    """They were refused, and a cloudy scene could not be brought onto a coarser grid."""
    da, at = gapped(raster(24, 32)), raster(6, 8, 4.0, 1.5)
    clouds = (raster(24, 32) * 0).astype("int8")
    clouds[2:9, 20:27] = 1
    options: Any = {"at": at, "support": "cell", "samples": 4, "model": model}
    expected = da.where(clouds == 0).geonp.infill(**options)
    scene = xr.Dataset({"a": da, "clouds": clouds})
    assert scene.geonp.infill(missing="clouds", **options).attrs["geonp_missing"] == "clouds"
    for missing in ("clouds", clouds == 1):
        found = scene.geonp.infill(missing=missing, **options)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
    integers = (da * 100).fillna(0).astype("int16").to_dataset(name="a")
    with pytest.warns(UserWarning, match="int16 without a nodata value is filled as int32"):
        found = integers.geonp.infill(missing=(clouds == 1) | da.isnull(), **options)
    assert int((found.a_fill_flag == 1).sum()) == int((expected.a_fill_flag == 1).sum())


def test_cells_partly_outside_of_the_raster_are_said(model: str) -> None:
    da = gapped(raster(24, 32))
    with pytest.warns(
        UserWarning, match="13 of 48 cells of the target grid lie partly outside of the raster: their means"
    ):
        found = da.geonp.infill(at=raster(6, 8, 4.0, 3.5), support="cell", samples=2, model=model)
    np.testing.assert_allclose(found.a[0, 7], da[:2, 30:].mean(), rtol=1e-5)


def test_means_of_observed_integers_are_rounded_with_an_error(model: str) -> None:
    values = np.arange(24 * 32, dtype=np.int16).reshape(24, 32)
    values[:4, :4] = -1
    da = raster(24, 32).copy(data=values).assign_attrs(_FillValue=np.int16(-1))
    found = da.geonp.infill(at=raster(6, 8, 4.0, 1.5), support="cell", samples=2, model=model)
    exact = values[20:, 28:].mean()
    assert (found.a.dtype, found.a[5, 7], exact) == (np.int16, np.rint(exact), 717.5)
    assert found.a_standard_error[5, 7] == 0.5
    assert found.a_fill_flag[5, 7] == 0


def test_a_grid_whose_ends_are_those_of_the_raster_is_another_one(model: str) -> None:
    da = gapped(raster(24, 32))
    uneven = 23 - 23 * (np.arange(24) / 23) ** 1.5
    found = da.geonp.infill(at=da.coords.to_dataset().assign_coords(y=uneven), model=model)
    np.testing.assert_array_equal(found.y, uneven)
    assert found.a_fill_flag[5, 0] == 1


def test_support_that_is_none_is_refused_on_every_grid(model: str, tmp_path: Path) -> None:
    da = gapped(raster(24, 32))
    for at in (None, da, raster(6, 10, 4.0)):
        with pytest.raises(geonp.InputError, match=r"support \(--support\) must be 'point' or 'cell', got 'area'"):
            da.geonp.infill(at=at, support="area", model=model)
    with pytest.raises(geonp.InputError, match=r"support='cell' .* expected at=\.\.\. \(--like\)"):
        da.geonp.infill(support="cell", model=model)
    da.rio.write_crs("EPSG:4326").rio.to_raster(tmp_path / "a.tif")
    for out in ("b.tif", "b.zarr"):
        refused = says("fill", tmp_path / "a.tif", tmp_path / out, "--support", "cell", code=2)
        assert "--support cell means over the cells of another grid: add --like" in refused.replace("\n", " ")


def test_chunks_change_nothing_and_nothing_is_computed(model: str, computes_nothing: Any) -> None:
    times = np.arange(2)
    da = gapped(raster(24, 32)).expand_dims(time=times) + times[:, None, None].astype("float32")
    at, mask = raster(40, 50, 0.6, 0.3), np.indices((24, 32))[1] > 3
    whole = da.transpose("y", "time", "x").geonp.infill(at=at, mask=mask, max_distance=6, model=model)
    assert whole.a.dims == ("time", "y", "x")
    with computes_nothing():
        chunked = da.chunk(time=1, y=10, x=16)
        lazy = chunked.geonp.infill(at=at.chunk(y=17, x=20), mask=mask, max_distance=6, model=model)
    assert lazy.a.chunks == ((1, 1), (17, 17, 6), (20, 20, 10))
    for name, values in whole.items():
        np.testing.assert_allclose(lazy[name], values, rtol=1e-3, atol=1e-3, err_msg=str(name))
    assert {3} <= set(np.unique(whole.a_fill_flag))


def test_the_seam_of_longitudes(model: str) -> None:
    lat, lon = np.arange(-20, 21, 5.0), np.arange(0, 360, 10.0)
    values = np.cos(np.radians(lon)) + 0.01 * lat[:, None]
    da = xr.DataArray(values, {"lat": lat, "lon": lon}, ("lat", "lon"), name="a")
    at = xr.DataArray(np.zeros((3, 5)), {"lat": [-5, 0, 5], "lon": [-10.0, -5.0, 0.0, 5.0, 180.0]}, ("lat", "lon"))
    found = da.geonp.infill(at=at, model=model)
    np.testing.assert_array_equal(found.a_fill_flag, [[0, 1, 0, 1, 0]] * 3)
    np.testing.assert_array_equal(found.a[:, [0, 2, 4]], da.sel(lat=[-5, 0, 5], lon=[350, 0, 180]))
    turned = da.geonp.infill(at=at.assign_coords(lon=at.lon + 360), model=model)
    np.testing.assert_array_equal(turned.a, found.a)


def test_places_beside_the_edge_of_longitudes_and_latitudes(model: str) -> None:
    da = gapped(raster(24, 32)).rename(y="lat", x="lon").assign_coords(lat=np.linspace(50, 44.25, 24))
    da.lat.attrs["units"], da.lon.attrs["units"] = "degrees_north", "degrees_east"
    found = da.geonp.infill(at=da.coords.to_dataset().assign_coords(lat=da.lat + 0.1, lon=da.lon), model=model)
    assert not found.a.isnull().any()


def test_a_grid_outside_of_the_raster_stays_empty_with_a_warning(model: str) -> None:
    da, far = gapped(raster(24, 32)), raster(6, 8, 2.0, first=900.0)
    with pytest.warns(UserWarning, match=r"no cell of the grid at .* whose bounds are -0.5, -0.5, 31.5, 23.5\."):
        found = da.geonp.infill(at=far, model=model)
    assert found.a.isnull().all()
    assert (found.a_fill_flag == 3).all()
    with pytest.raises(geonp.InputError, match="no cell of the grid at"):
        da.geonp.infill(at=far, support="cell", model=model)
    with pytest.raises(geonp.InputError, match="4 of 4 cells of the target grid contain no cell centre of the raster"):
        da.geonp.infill(at=raster(2, 2, 0.3, 3.3), support="cell", model=model)


def test_what_other_grids_cannot_do_is_refused() -> None:
    da, at = gapped(raster(24, 32)), raster(47, 63, 0.5)
    with pytest.raises(geonp.InputError, match=r"cannot be combined with samples. Fill on the grid of the raster"):
        da.geonp.infill(at=at, samples=2)
    with pytest.raises(geonp.InputError, match=r"the grid at has no CRS, and the other grid is in .*32633"):
        da.rio.write_crs("EPSG:32633").geonp.infill(at=at)
    with pytest.raises(geonp.InputError, match=r"cells that are not evenly spaced"):
        da.assign_coords(x=np.arange(32.0) ** 2).geonp.infill(at=at)
