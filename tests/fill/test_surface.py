"""Rasters whose cells are no squares are filled by true distances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pytest
import rioxarray  # noqa: F401  (registers the accessor rio)
import xarray as xr

from geonp.fill.infill import infill
from geonp.fill.plan import plan
from geonp.fill.store import fill_store
from geonp.inference.context import Neighbourhood
from geonp.inference.ground import Ground
from geonp.raster.grid import Grid
from geonp.raster.metadata import FillFlag
from geonp.raster.surface import placed_cells, surface_of

pytestmark = pytest.mark.usefixtures("float32")


def field(shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Smooth waves, 60 % of them observed."""
    y, x = np.indices(shape)
    rng = np.random.default_rng(1)
    waves = 10 + 3 * np.cos(0.3 * y) * np.sin(0.2 * x) + 0.1 * rng.standard_normal(shape)
    return np.where(rng.random(shape) < 0.6, waves, np.nan).astype(np.float32)


def assert_same(one: xr.Dataset, other: xr.Dataset) -> None:
    """Equal but for the rounding of float32."""
    np.testing.assert_array_equal(one.a_fill_flag.values, other.a_fill_flag.values)
    for name in ("a", "a_standard_error"):
        np.testing.assert_allclose(one[name].values, other[name].values, rtol=1e-4, atol=1e-4)


def globe(step: float = 7.5, first: float = 0.0) -> xr.DataArray:
    """A raster of the whole Earth, with a gap at the north pole."""
    lat, lon = np.arange(90 - step / 2, -90, -step), first + np.arange(0, 360, step)
    values = field((lat.size, lon.size))
    values[:3] = np.nan
    return xr.DataArray(values, {"lat": lat, "lon": lon}, ("lat", "lon"), "a")


def curved(raster: xr.DataArray) -> xr.DataArray:
    """The same raster with latitudes and longitudes on both dimensions."""
    lat, lon = xr.broadcast(raster.lat, raster.lon)
    there = {"lat": (("y", "x"), lat.values), "lon": (("y", "x"), lon.values)}
    return xr.DataArray(raster.values, there, ("y", "x"), raster.name)


@pytest.mark.parametrize("columns", [1, 29])
def test_the_fill_of_a_rolled_globe_is_rolled(wide_tiles: str, tmp_path: Path, columns: int) -> None:
    whole = globe()
    one = infill(whole, model=wide_tiles)
    rolled = whole.roll(lon=columns, roll_coords=True)
    back: dict[str, Any] = {"lon": -columns, "roll_coords": True}
    assert_same(one, infill(rolled, model=wide_tiles).roll(**back))
    lazy = infill(rolled.chunk(lat=10, lon=20), model=wide_tiles)
    assert lazy.a.chunks == rolled.chunk(lat=10, lon=20).chunks
    assert_same(one, lazy.compute().roll(**back))
    fill_store(rolled.to_dataset(), str(tmp_path / "out.zarr"), model=wide_tiles, unit=16)
    assert_same(one, xr.open_zarr(tmp_path / "out.zarr").compute().roll(**back))


def test_cells_with_coordinates_of_their_own_are_filled_as_those_of_rows_and_columns(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Neighbourhood, "fine", property(lambda self: self))  # in the same tiles
    cut = xr.DataArray(field((16, 16)), {"lat": 50 - np.arange(16.0), "lon": np.arange(16.0)}, ("lat", "lon"), "a")
    cut = cut.where(np.random.default_rng(0).random(cut.shape) < 0.15)  # as few as a context holds
    one, other = infill(cut, model=model), infill(curved(cut), model=model)
    apart = np.abs(one.a.values - other.a.values) / np.maximum(one.a_standard_error.values, 1e-6)
    assert np.nanmax(apart) < 0.01
    radians = curved(cut)
    radians = radians.assign_coords(
        {n: (radians.dims, np.radians(radians[n].values), {"units": "radians"}) for n in ("lat", "lon")}
    )
    np.testing.assert_allclose(infill(radians, model=model).a, other.a, rtol=1e-4)
    in_cells = infill(curved(cut).drop_vars(["lat", "lon"]), model=model)
    assert np.abs(one.a.values - in_cells.a.values).max() > 0.05


def test_swaths_are_filled_alike_in_chunks_and_not_where_their_place_is_unknown(wide_tiles: str) -> None:
    y, x = np.indices((40, 36)).astype(float)
    lat, lon = 60 + 0.4 * y + 0.1 * x, 170 + 0.9 * x - 0.3 * y + 0.02 * x**2
    lat[5:9, 30:], lon[5:9, 30:] = np.nan, np.nan
    values = field((40, 36))
    places = {"lat": (("along_track", "across_track"), lat), "lon": (("along_track", "across_track"), lon)}
    swath = xr.DataArray(values, places, ("along_track", "across_track"), "a")
    one = infill(swath, model=wide_tiles, max_distance=3)
    assert_same(one, infill(swath.chunk(along_track=16, across_track=11), model=wide_tiles, max_distance=3).compute())
    outside = one.a_fill_flag == FillFlag.OUTSIDE_DOMAIN
    np.testing.assert_array_equal(outside, np.isnan(lat) & np.isnan(values))
    # samples see the same places
    drawn = infill(swath, model=wide_tiles, samples=3).a_sample
    assert np.isfinite(drawn.where(~outside)).sum() == 3 * (~outside).sum()


@pytest.mark.parametrize("mark", [0.0, -1.0])
def test_places_that_nemo_writes_for_left_out_land_are_unknown(mark: float, wide_tiles: str) -> None:
    y, x = np.indices((24, 30)).astype(float)
    lat, lon = 40 + 0.2 * y + 0.1 * x, -30 + 0.25 * x - 0.1 * y
    values = field((24, 30))
    values[2:8, 3:12] = np.nan

    def filled(unknown: float) -> xr.Dataset:
        places = [np.where((y >= 2) & (y < 8) & (x >= 3) & (x < 12), unknown, c) for c in (lat, lon)]
        coords = dict(zip(("nav_lat", "nav_lon"), ((("y", "x"), c) for c in places), strict=True))
        return infill(xr.DataArray(values, coords, ("y", "x"), "a"), model=wide_tiles)

    one = filled(mark)
    assert (one.a_fill_flag[2:8, 3:12] == FillFlag.OUTSIDE_DOMAIN).all()
    np.testing.assert_array_equal(one.a, filled(np.nan).a)
    assert placed_cells(np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.0, 0.0])).all()  # a column that is there twice


@pytest.mark.parametrize("width", [1.0, 1.25, 2.0])
def test_cells_at_the_largest_distance_are_filled(model: str, width: float) -> None:
    values = np.add.outer(np.arange(20.0), np.arange(24.0))
    values[5:15, 4:20] = np.nan
    places = {"y": 5e6 - 1e3 * np.arange(20), "x": 5e5 + 1e3 * width * np.arange(24)}
    source = xr.DataArray(values, places, ("y", "x"), "a").rio.write_crs("EPSG:32633")
    filled = infill(source, model=model, max_distance=3).a_fill_flag == FillFlag.FILLED
    assert filled[5:10, 12].values.tolist() == [True] * 3 + [False] * 2
    assert int(filled[10, :12].sum()) == 3 // width


@pytest.mark.parametrize("width", [1.0, 2.0])
def test_an_infinite_largest_distance_leaves_no_cell_out(model: str, width: float) -> None:
    values = np.add.outer(np.arange(8.0), np.arange(9.0))
    values[2:6, 2:7] = np.nan
    places = {"y": 5e6 - 1e3 * np.arange(8), "x": 5e5 + 1e3 * width * np.arange(9)}
    source = xr.DataArray(values, places, ("y", "x"), "a").rio.write_crs("EPSG:32633")
    assert infill(source, model=model, max_distance=np.inf).a.notnull().all()


def test_context_lies_across_the_pole() -> None:
    raster = globe(first=-180.0)
    grid = Grid.from_xarray(raster)
    surface = surface_of(raster, grid)
    assert surface is not None
    rows, cols = np.arange(24), np.arange(48)
    observed = np.zeros((24, 48), bool)
    observed[1:4] = True  # three rings around the pole
    ground = Ground(surface, rows, cols, observed)
    box, gap = np.array([[0, 0], [1, 1]]), np.ones((1, 1), bool)
    plane = ground.plane(box, gap)
    neighbourhood = Neighbourhood(halos_px=(2, 3))
    found = ground.context(box, gap, plane, neighbourhood, 0)
    lat, lon = 90 - 7.5 * (found // 48 + 0.5), 7.5 * (found % 48)
    # of the spherical law of cosines, from the first cell at 86.25 N, 0 E
    a, b = np.radians(86.25), np.radians(lat)
    cosine = np.sin(a) * np.sin(b) + np.cos(a) * np.cos(b) * np.cos(np.radians(lon))
    distance = np.degrees(np.arccos(cosine))
    assert (distance <= 3 * 7.5 + 1e-9).all()
    assert (np.abs(lon - 180) < 1).any()
    offset = ground.locations(np.stack(np.divmod(found, 48), -1), plane)
    np.testing.assert_allclose(np.linalg.norm(offset, axis=1) * plane.unit, distance, rtol=1e-5)


@pytest.mark.parametrize(
    ("coords", "attrs", "square"),
    [
        ({"lat": np.linspace(-2, 2, 9), "lon": np.linspace(3, 7, 9)}, {}, True),
        ({"lat": np.linspace(58, 62, 9), "lon": np.linspace(3, 7, 9)}, {}, False),
        ({"lat": np.linspace(58, 62, 9), "lon": np.linspace(3, 11, 9)}, {}, True),
        ({"y": np.arange(9) * 30.0, "x": np.arange(9) * 90.0}, {}, True),
        ({"y": np.arange(9) * 30.0, "x": np.arange(9) * 90.0}, {"crs": "EPSG:32633"}, False),
        ({"y": np.arange(9) * 30.0, "x": np.arange(9) * 30.0}, {"crs": "EPSG:32633"}, True),
        ({"y": np.arange(9) ** 1.5, "x": np.arange(9) * 1.0}, {"crs": "EPSG:32633"}, False),
    ],
)
def test_only_cells_that_are_no_squares_have_places(
    coords: dict[str, Any], attrs: dict[str, Any], square: bool
) -> None:
    raster = xr.DataArray(da.zeros((9, 9)), coords, tuple(coords), attrs=attrs)
    assert (surface_of(raster, Grid.from_xarray(raster)) is None) == square


def test_geolocation_that_is_no_coordinate_is_warned_of(model: str) -> None:
    ds = curved(globe()).reset_coords().rename(lat="latitude")
    with pytest.warns(UserWarning, match=r"latitude, lon: filled as other .* ds\.set_coords\(\['latitude', 'lon'\]\)"):
        plan(ds, model=model)
    assert plan(ds.set_coords(["latitude", "lon"]), model=model).variables == ("a",)


@pytest.mark.parametrize("coordinates", [True, False])
def test_latitudes_of_rows_of_another_name_are_warned_of(coordinates: bool, model: str) -> None:
    named = globe().isel(lon=slice(12)).to_dataset(name="a")
    ds = named.assign(north=("lat", named.lat.values), east=("lon", named.lon.values)).drop_vars(["lat", "lon"])
    ds = ds.rename(lat="y", lon="x").rename(north="lat", east="lon")
    ds = ds.set_coords(["lat", "lon"]) if coordinates else ds
    remedy = r"ds.swap_dims\(\{'y': 'lat', 'x': 'lon'\}\); in a file: ncrename -d y,lat -d x,lon"
    with pytest.warns(UserWarning, match=rf"lat, lon: not used, because .* {remedy}"):
        plan(ds, model=model)
    plan(ds.swap_dims(y="lat", x="lon"), model=model)
    plan(named.rename(lat="y", lon="x"), model=model)


def test_geolocation_that_changes_with_time_is_warned_of(model: str) -> None:
    lat = np.linspace(0, 1, 2 * 12 * 12).reshape(2, 12, 12)
    dims = ("time", "south_north", "west_east")
    wrf = xr.DataArray(np.stack([field((12, 12))] * 2), {"XLAT": (dims, lat), "XLONG": (dims, lat)}, dims, "a")
    with pytest.warns(UserWarning, match=r"'XLAT' and 'XLONG' change along 'time': distances are counted in cells"):
        infill(wrf, model=model)


def test_geolocation_with_unknown_places_that_stays_is_used() -> None:
    lat = np.add.outer(np.linspace(10, 12, 12), np.linspace(0, 0.5, 12))
    lat[0, 0] = np.nan
    coords = {"lat": (("t", "y", "x"), np.stack([lat] * 2)), "lon": (("t", "y", "x"), np.stack([lat.T] * 2))}
    swath = xr.DataArray(np.zeros((2, 12, 12)), coords, ("t", "y", "x"), "a")
    assert surface_of(swath, Grid.from_xarray(swath)) is not None


def test_a_plan_counts_the_columns_that_are_read_at_a_pole(model: str) -> None:
    values = da.zeros((240, 720), chunks=(40, 90))
    north = xr.DataArray(values, {"lat": 30 + np.arange(240.0) / 4, "lon": np.arange(720.0) / 2}, ("lat", "lon"), "a")
    one, other = (plan(obj, model=model).peak_bytes for obj in (north, north.isel(lat=slice(None, None, -1))))
    assert one == other > plan(north.assign_coords(lat=north.lat - 30), model=model).peak_bytes
