"""Places of tables: their CRS and units against those of the grid, and several rows at one place."""

from __future__ import annotations

from typing import Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyproj
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.io.measurements import read_table, transformed
from geonp.raster.grid import Grid
from geonp.scattered.lattices import lattice

pytestmark = pytest.mark.usefixtures("float32")

ROTATED = {
    "grid_mapping_name": "rotated_latitude_longitude",
    "grid_north_pole_latitude": 37.5,
    "grid_north_pole_longitude": 177.5,
}
POLAR = pyproj.CRS.from_epsg(3413)


def field(lon: Any, lat: Any) -> Any:
    return 10 + np.sin(np.radians(lon) * 4) + np.cos(np.radians(lat) * 6)


def grid(crs: pyproj.CRS | None, y: Any, x: Any, dims: tuple[str, str] = ("y", "x"), **attrs: str) -> xr.DataArray:
    coords = {dim: (dim, values, attrs) for dim, values in zip(dims, (y, x), strict=True)}
    mapping = {} if crs is None else {"spatial_ref": ((), 0, crs.to_cf())}
    return xr.DataArray(np.zeros((len(y), len(x)), "f4"), coords | mapping, dims)


def lon_lat(crs: pyproj.CRS, x: Any, y: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    return pyproj.Transformer.from_crs(crs, 4326, always_xy=True).transform(x, y)  # type: ignore[no-any-return]


def rmse(found: xr.Dataset, crs: pyproj.CRS, scale: float = 1.0) -> float:
    x, y = np.meshgrid(found[found["t"].dims[1]] * scale, found[found["t"].dims[0]] * scale)
    return float(np.sqrt(np.mean((found["t"] - field(*lon_lat(crs, x, y))) ** 2)))


def stations(crs: pyproj.CRS, reach: tuple[float, float, float, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same measurements at longitudes and latitudes, and at coordinates of a CRS."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(reach[0], reach[2], 300), rng.uniform(reach[1], reach[3], 300)
    lon, lat = lon_lat(crs, x, y)
    t = field(lon, lat)
    return pd.DataFrame({"lon": lon, "lat": lat, "t": t}), pd.DataFrame({"x": x, "y": y, "t": t})


@pytest.mark.parametrize(("units", "scale"), [("km", 1e3), ("m", 1.0), ("1000 m", 1e3)])
def test_lon_lat_to_a_grid_in_any_unit(units: str, scale: float) -> None:
    y, x = (5e5 - 50e3 * np.arange(10)) / scale, (-1e6 + 50e3 * np.arange(10)) / scale
    degrees, metres = stations(POLAR, (-1.1e6, -0.1e6, -0.4e6, 0.6e6))
    target = grid(POLAR, y, x, units=units)
    for found in (geonp.interpolate(degrees, target), geonp.interpolate(metres, target, crs="EPSG:3413")):
        assert rmse(found, POLAR, scale) < 0.02
    own = metres.assign(x=metres["x"] / scale, y=metres["y"] / scale)
    assert rmse(geonp.interpolate(own, target), POLAR, scale) < 0.02


def test_lon_lat_to_a_rotated_pole() -> None:
    crs = pyproj.CRS.from_cf(ROTATED)
    target = grid(crs, -4 + 0.8 * np.arange(10), -3 + 0.8 * np.arange(10), ("rlat", "rlon"), units="degrees")
    degrees, rotated = stations(crs, (-4.0, -5.0, 6.0, 5.0))
    assert rmse(geonp.interpolate(degrees, target), crs) < 0.02
    assert rmse(geonp.interpolate(degrees, target, crs="EPSG:4326"), crs) < 0.02
    assert rmse(geonp.interpolate(rotated, target), crs) < 0.02


def test_lon_lat_to_longitudes_of_paris_in_grads() -> None:
    crs = pyproj.CRS.from_epsg(4807)
    degrees, grads = stations(crs, (-5.0, 45.0, 6.0, 55.0))
    target = grid(crs, 54 - 0.8 * np.arange(10), -4 + 0.8 * np.arange(10))
    assert rmse(geonp.interpolate(degrees, target), crs) < 0.02
    assert rmse(geonp.interpolate(grads, target), crs) < 0.02


def test_a_table_in_another_projected_crs_than_the_grid() -> None:
    degrees, _ = stations(POLAR, (-1.1e6, -0.1e6, -0.4e6, 0.6e6))
    other = pyproj.Transformer.from_crs(4326, 3995, always_xy=True).transform(degrees["lon"], degrees["lat"])
    table = pd.DataFrame({"x": other[0], "y": other[1], "t": degrees["t"]})
    target = grid(POLAR, 5e5 - 50e3 * np.arange(10), -1e6 + 50e3 * np.arange(10), units="m")
    assert rmse(geonp.interpolate(table, target, crs="EPSG:3995"), POLAR) < 0.02


@pytest.mark.parametrize(
    ("dims", "attrs"),
    [
        (("rlat", "rlon"), {"standard_name": "grid_latitude"}),
        (("y", "x"), {"units": "km"}),
        (("y", "x"), {"standard_name": "projection_y_coordinate"}),
    ],
)
def test_lon_lat_to_a_grid_that_lacks_its_crs(dims: tuple[str, str], attrs: dict[str, str]) -> None:
    degrees, _ = stations(POLAR, (-1.1e6, -0.1e6, -0.4e6, 0.6e6))
    target = grid(None, np.arange(5.0), np.arange(5.0), dims, **attrs)
    with pytest.raises(InputError, match=r"places are longitudes and latitudes, but .* no CRS: add one"):
        transformed(read_table(degrees, None, None, None), None, Grid.from_xarray(target))


@pytest.mark.parametrize("shift", [(1e6, 0.0), (0.0, 1e6)])
def test_places_far_from_the_grid_are_named(shift: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.uniform(0, 50, 30), "y": rng.uniform(0, 50, 30), "t": rng.uniform(0, 1, 30)})
    west, south = shift
    with pytest.warns(UserWarning, match=r"no measurement lies near the places to predict: got 'x' from .*--crs"):
        geonp.interpolate(table, lattice((west, south, west + 50, south + 50), 10))
    with pytest.raises(InputError, match=r"no measurement lies near the places to predict: got 'x' .* Check that both"):
        geonp.interpolate(table, lattice((west, south, west + 5000, south + 5000), 100))  # as metres are to degrees
    geonp.interpolate(table, pd.DataFrame({"x": [0.0, 50.0], "y": [-20.0, -20.1]}))  # a transect beside them


def test_a_dataset_of_stations_and_times_is_refused() -> None:
    ds = xr.Dataset({"t": (("time", "station"), np.zeros((3, 9)))}, {"lon": ("station", np.zeros(9))})
    with pytest.raises(InputError, match=r"'time', 'station'\), expected one.*ds\.isel\(time=0\)"):
        read_table(ds, None, None, None)


def curvilinear() -> xr.DataArray:
    eta, xi = np.mgrid[0:15, 0:20]
    lat, lon = 45 + 0.3 * eta + 0.02 * xi, 355 + 0.4 * xi + 0.05 * eta
    coords = {
        "nav_lat": (("eta", "xi"), lat, {"standard_name": "latitude"}),
        "nav_lon": (("eta", "xi"), lon, {"standard_name": "longitude"}),
    }
    return xr.DataArray(np.zeros(lat.shape), coords, ("eta", "xi"))


def test_places_of_a_curvilinear_grid() -> None:
    rng = np.random.default_rng(0)
    lon, lat = rng.uniform(-6, 5, 300), rng.uniform(44, 51, 300)
    table, at = pd.DataFrame({"lon": lon, "lat": lat, "t": field(lon, lat)}), curvilinear()
    found = geonp.interpolate(table, at)
    assert found["t"].dims == ("eta", "xi")
    assert float(np.sqrt(np.mean((found["t"] - field(at["nav_lon"], at["nav_lat"])) ** 2))) < 0.02
    with pytest.raises(InputError, match=r"no coordinate 'eta', .*longitudes and latitudes on both for a table"):
        geonp.interpolate(table.rename(columns={"lon": "x", "lat": "y"}), at)
    for unknown, others in ((-999.0, r"query\('nav_lat != -999'\)"), (0.0, "query"), (np.nan, "dropna")):
        within = at["nav_lat"] < at["nav_lat"].mean()
        places = at.assign_coords({name: at[name].where(within, unknown) for name in ("nav_lat", "nav_lon")})
        with pytest.raises(InputError, match=rf"'nav_lon' and 'nav_lat' of the grid are no place in .*{others}"):
            geonp.interpolate(table, places)


def test_projected_places_on_longitudes_and_latitudes_without_a_crs() -> None:
    lon, lat = np.array([5.0, 6.0]), np.array([50.0, 49.0])
    x, y = pyproj.Transformer.from_crs(4326, 32632, always_xy=True).transform(lon, lat)
    table = read_table(pd.DataFrame({"easting": x, "northing": y, "t": [1.0, 2.0]}), None, None, None)
    at = Grid.from_xarray(xr.DataArray(np.zeros((3, 3)), {"lat": [50.0, 49, 48], "lon": [5.0, 6, 7]}, ("lat", "lon")))
    np.testing.assert_allclose(transformed(table, "EPSG:32632", at).xy, np.stack([lon, lat], 1), atol=1e-6)


@pytest.mark.parametrize("measured", [4326, 32632])
@pytest.mark.parametrize("asked", [4230, 4326, 32633])
def test_places_in_another_crs_than_the_measurements(measured: int, asked: int) -> None:
    lon, lat = np.random.default_rng(0).uniform((8, 47), (10, 49), (40, 2)).T
    points = gpd.GeoDataFrame({"t": lon + 2 * lat}, geometry=gpd.points_from_xy(lon, lat, crs=4326))
    at = points[["geometry"]].iloc[::8].to_crs(asked)
    found = geonp.interpolate(points.to_crs(measured), at)
    np.testing.assert_allclose(found["t"], points["t"][::8], atol=0.01)  # in the other zone 6 degrees away
    np.testing.assert_allclose(found["x" if asked == 32633 else "lon"], at.geometry.x)


def test_places_of_other_names_and_without_a_crs() -> None:
    lon_lat_places, plane = stations(pyproj.CRS.from_epsg(32632), (4e5, 5.2e6, 6e5, 5.4e6))
    at = lon_lat_places[["lon", "lat"]].iloc[:5].rename(columns={"lon": "Longitude", "lat": "Latitude"})
    found = geonp.interpolate(plane, at, crs="EPSG:32632")
    np.testing.assert_allclose(found["t"], plane["t"][:5], atol=0.01)
    np.testing.assert_array_equal(found["Longitude"], at["Longitude"])
    with pytest.raises(InputError, match="the table has no column 'x', got"):
        geonp.interpolate(plane, at)
    with pytest.raises(InputError, match="'x' and 'y' without a CRS, expected 'lon' and 'lat'"):
        geonp.interpolate(lon_lat_places, plane[["x", "y"]])
    for lon, lat, wrong in (
        (9.0, 95.0, "latitude of 95, expected -90 to 90"),
        (9e3, 45.0, "longitude of 9000, expected"),
    ):
        with pytest.raises(InputError, match=f"holds a {wrong}"):
            geonp.interpolate(lon_lat_places, pd.DataFrame({"lon": [lon], "lat": [lat]}))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ("x", {}),
        ("spatial_ref", {}),
        ("sample", {"samples": 2}),
        (["a", "a_standard_error"], {}),
    ],
)
def test_values_that_are_called_as_a_coordinate_or_another_result(values: Any, options: dict[str, Any]) -> None:
    table = pd.DataFrame(np.arange(40.0).reshape(8, 5), columns=["e", "n", "a", "b", "c"])
    names = [values] if isinstance(values, str) else values
    table = table.rename(columns=dict(zip(("a", "b"), names, strict=False)))
    with pytest.raises(
        InputError, match=f"the column {names[-1]!r} has the name of a coordinate or of another variable"
    ):
        geonp.interpolate(table, lattice((0, 0, 8, 8), 4, "EPSG:32632"), values=values, x="e", y="n", **options)
