"""Covariates on other grids: resampled in memory, on dask and from files alike, by window, in any CRS."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
import rioxarray  # noqa: F401  (registers .rio)
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.io.warp import resampled
from geonp.raster.covariates import RESAMPLINGS
from geonp.raster.grid import Grid
from geonp.raster.windows import ChunkSettings


def plane(lat: np.ndarray, lon: np.ndarray, name: str = "dem") -> xr.DataArray:
    """Degrees of longitude plus ten times those of latitude, without a CRS."""
    return xr.DataArray(lon + 10 * lat[:, None], {"lat": lat, "lon": lon}, ("lat", "lon"), name)


def raster(lat: np.ndarray, lon: np.ndarray) -> Grid:
    return Grid.from_xarray(plane(lat, lon))


FINE = plane(np.arange(55, 44, -0.1), np.arange(-2, 12, 0.1))
COARSE = raster(np.arange(50.0, 46, -0.5), np.arange(1.0, 7, 0.5))


@pytest.mark.parametrize("method", RESAMPLINGS)
def test_a_plane_is_reproduced(method: str) -> None:
    found = resampled(FINE, COARSE, method)
    lat, lon = np.arange(50.0, 46, -0.5), np.arange(1.0, 7, 0.5)
    off = 0.31 * 11 if method in {"mode", "min", "max"} else 1e-4  # the corners of a cell
    np.testing.assert_allclose(found.values, plane(lat, lon).values, atol=off)


def test_a_raster_on_the_grid_stays_as_it_is() -> None:
    assert resampled(FINE, Grid.from_xarray(FINE), "average") is FINE


def test_a_raster_of_half_a_cell_beside_is_resampled() -> None:
    """As where one has the centres of cells, and the other their corners."""
    beside = FINE.assign_coords(lat=FINE.lat + 0.05)
    found = resampled(beside, Grid.from_xarray(FINE), "bilinear")
    np.testing.assert_allclose(found.values[1:-1] - FINE.values[1:-1], -0.5, atol=1e-4)


def test_finer_cells_are_interpolated_between_coarser_ones() -> None:
    coarse = plane(np.arange(56.0, 43, -1), np.arange(-4.0, 15))
    found = resampled(coarse, Grid.from_xarray(FINE), "bilinear")
    np.testing.assert_allclose(found.values, FINE.values, atol=1e-5)


def test_cells_outside_and_missing_ones_are_missing() -> None:
    holed = FINE.where((FINE.lat < 49) | (FINE.lon > 4))
    wide = raster(np.arange(60.0, 46, -0.5), np.arange(1.0, 7, 0.5))
    found = resampled(holed, wide, "nearest").values
    lat, lon = np.arange(60.0, 46, -0.5)[:, None], np.arange(1.0, 7, 0.5)
    away = np.abs(lat - 49) > 0.2
    expected = (lat < 55.05) & ((lat < 49) | (lon > 4.05))
    assert (np.isfinite(found) == expected)[(away & (np.abs(lon - 4) > 0.2))].all()


@pytest.mark.parametrize("shift", [360.0, -360.0])
def test_longitudes_may_be_of_any_convention(shift: float) -> None:
    moved = FINE.assign_coords(lon=FINE.lon + shift)
    np.testing.assert_allclose(resampled(moved, COARSE, "bilinear"), resampled(FINE, COARSE, "bilinear"), atol=1e-4)


def test_a_raster_across_the_seam_of_a_global_covariate() -> None:
    lat, lon = np.arange(60.0, 30, -1), np.arange(0.0, 360)
    wave = xr.DataArray(np.cos(np.deg2rad(lon)) + 0 * lat[:, None], {"lat": lat, "lon": lon}, ("lat", "lon"), "wave")
    east = np.arange(-5.25, 5, 0.5)
    found = resampled(wave, raster(np.arange(50.0, 45, -0.5), east), "bilinear").values
    np.testing.assert_allclose(found, np.broadcast_to(np.cos(np.deg2rad(east)), found.shape), atol=1e-3)


def test_another_crs() -> None:
    x, y = np.arange(400_000.0, 600_000, 10_000), np.arange(5_400_000.0, 5_300_000, -10_000)
    utm = xr.DataArray(np.zeros((y.size, x.size)), {"y": y, "x": x}, ("y", "x")).rio.write_crs("EPSG:32632")
    wide = plane(np.arange(52, 44, -0.05), np.arange(4, 14, 0.05))
    found = resampled(wide, Grid.from_xarray(utm), "bilinear")
    expected = wide.rename(lat="y", lon="x").rio.write_crs("EPSG:4326").rio.reproject_match(utm, resampling=1)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-3)
    assert np.isfinite(found.values).all()


def test_windows_of_another_crs_do_not_depend_on_each_other() -> None:
    x, y = np.arange(400_000.0, 700_000, 1000), np.arange(5_500_000.0, 5_300_000, -1000)
    utm = xr.DataArray(np.zeros((y.size, x.size)), {"y": y, "x": x}, ("y", "x")).rio.write_crs("EPSG:32632")
    lat, lon = np.arange(50.5, 46.5, -0.01), np.arange(7, 12.5, 0.01)
    rough = plane(lat, lon).copy(data=np.random.default_rng(0).standard_normal((lat.size, lon.size)))
    grid = Grid.from_xarray(utm)
    whole = resampled(rough, grid, "bilinear").values
    lazy = resampled(rough.chunk(lat=90), grid, "bilinear")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("geonp.io.warp.CHUNKS", ChunkSettings(largest_px=70))
        parts = resampled(rough.chunk(lat=90), grid, "bilinear")
    np.testing.assert_allclose(lazy.values, whole, atol=1e-5)
    np.testing.assert_allclose(parts.values, whole, atol=1e-5)
    assert np.nanstd(whole) > 0.3


@pytest.mark.parametrize("method", ["bilinear", "average"])
def test_dask_and_files_give_the_same_and_stay_lazy(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = xr.concat([FINE, -FINE.where(FINE.lon < 5)], xr.Variable("time", [3, 4])).astype(np.float32)
    grid = raster(np.arange(50.0, 46, -0.11), np.arange(1.0, 7, 0.11))
    expected = resampled(stack, grid, method)
    stack.to_dataset(name="dem").to_netcdf(tmp_path / "dem.nc", engine="netcdf4")
    monkeypatch.setattr("geonp.io.warp.CHUNKS", ChunkSettings(largest_px=16))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed")

    with dask.config.set(scheduler=refuse):
        lazy = resampled(stack.chunk(time=1, lat=30), grid, method)
    np.testing.assert_allclose(lazy.values, expected.values, atol=1e-3)
    with geonp.open_raster(tmp_path / "dem.nc", chunks=None) as ds:
        stored = resampled(ds["dem"], grid, method)
        assert stored.chunks is None
        part = stored.isel(time=1, lat=slice(20, 33), lon=slice(30, 5, -2))
        np.testing.assert_allclose(part.values, expected[1, 20:33, 30:5:-2].values, atol=1e-3)
        np.testing.assert_allclose(stored[:, 7].values, expected[:, 7].values, atol=1e-3)
    assert list(stored.time) == [3, 4]


@pytest.mark.parametrize(("step", "instead"), [(0.5, "mode"), (0.02, "nearest")])
def test_classes_are_not_averaged(step: float, instead: str) -> None:
    cover = FINE.copy(data=np.where(FINE > 490, 7, 3).astype(np.int16)).assign_attrs(flag_values=[3, 7])
    with pytest.warns(UserWarning, match=f"classes, which are resampled by '{instead}': got 'bilinear'"):
        found = resampled(cover, raster(np.arange(50, 48, -step), np.arange(1, 3, step)), "bilinear")
    assert set(np.unique(found)) == {3, 7}


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (FINE.assign_coords(lon=FINE.lon + 90), "no place in common: got bounds"),
        (FINE.drop_vars("lon"), "cells are not evenly spaced or have no coordinates"),
        (FINE.rename(lat="y", lon="x").assign_coords(x=FINE.lon.values * 1e3), "only the raster has a CRS"),
    ],
)
def test_grids_that_cannot_be_resampled_are_refused(array: xr.DataArray, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        resampled(array, COARSE, "bilinear")
