"""Units of coordinates and those of the CRS."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import xarray as xr
from pyproj import CRS

from geonp.errors import InputError
from geonp.raster.coordinate_units import parse_unit, unit_factor
from geonp.raster.grid import Grid

SATELLITE = {
    "grid_mapping_name": "geostationary",
    "perspective_point_height": 35_785_831.0,
    "semi_major_axis": 6_378_137.0,
    "semi_minor_axis": 6_356_752.3,
    "latitude_of_projection_origin": 0.0,
    "longitude_of_projection_origin": 9.5,
    "sweep_angle_axis": "y",
}


def raster(crs: Any, units: str | None, y: Any, x: Any, dims: tuple[str, str] = ("y", "x")) -> xr.DataArray:
    attrs = {} if units is None else {"units": units}
    coords = {dim: (dim, values, attrs) for dim, values in zip(dims, (y, x), strict=True)}
    mapping = {} if crs is None else {"spatial_ref": ((), 0, CRS.from_user_input(crs).to_cf())}
    return xr.DataArray(np.zeros((len(y), len(x)), "float32"), coords | mapping, dims)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m", ("length", 1.0)),
        ("metre", ("length", 1.0)),
        ("km", ("length", 1e3)),
        ("Kilometers", ("length", 1e3)),
        ("1e3 m", ("length", 1e3)),
        ("1000.0 m", ("length", 1e3)),
        ("US survey foot", ("length", 1200 / 3937)),
        ("0.3048 metre", ("length", 0.3048)),
        ("rad", ("angle", 1.0)),
        ("microradian", ("angle", 1e-6)),
        ("\u00b5rad", ("angle", 1e-6)),
        ("degrees_north", ("angle", math.pi / 180)),
        ("degree", ("angle", math.pi / 180)),
        ("1", None),
        ("K", None),
        ("pixel", None),
        (None, None),
    ],
)
def test_units_are_parsed(text: object, expected: tuple[str, float] | None) -> None:
    assert parse_unit(text) == expected


@pytest.mark.parametrize(
    ("units", "crs", "factor"),
    [
        ("km", "EPSG:3413", 1e3),
        ("m", "EPSG:3413", 1.0),
        (None, "EPSG:3413", 1.0),
        ("km", "+proj=laea +lat_0=90 +units=km", 1.0),
        ("m", "+proj=laea +lat_0=90 +units=km", 1e-3),
        ("foot", "EPSG:2263", 1.0),  # US survey foot
        ("m", "EPSG:2263", 3937 / 1200),
    ],
)
def test_factor_to_a_projected_crs(units: str | None, crs: str, factor: float) -> None:
    coord = xr.DataArray([5.0, 6.0], dims="x", attrs={} if units is None else {"units": units})
    assert unit_factor(coord, CRS(crs), geographic=False) == pytest.approx(factor)


def test_scan_angles_of_a_geostationary_satellite() -> None:
    y, x = 0.1 - 5.6e-5 * np.arange(3), -0.05 + 5.6e-5 * np.arange(4)
    for units, scale in (("rad", 1.0), ("microradian", 1e6), ("degree", 180 / np.pi)):
        grid = Grid.from_xarray(raster(CRS.from_cf(SATELLITE), units, y * scale, x * scale))
        height = SATELLITE["perspective_point_height"]
        np.testing.assert_allclose(grid.origin, (0.1 * height, -0.05 * height), rtol=1e-12)
        np.testing.assert_allclose(grid.spacing, (-5.6e-5 * height, 5.6e-5 * height), rtol=1e-9)


def test_places_are_in_units_of_the_crs() -> None:
    grid = Grid.from_xarray(raster("EPSG:3413", "km", [500.0, 475, 450], [-1000.0, -975]))
    assert (grid.origin, grid.spacing, grid.factors) == ((5e5, -1e6), (-25e3, 25e3), (1e3, 1e3))
    assert grid.bounds == (-1012.5e3, 437.5e3, -962.5e3, 512.5e3)
    grid.require_same(Grid.from_xarray(raster("EPSG:3413", "m", [5e5, 475e3, 450e3], [-1e6, -975e3])), "mask")


@pytest.mark.parametrize(("crs", "units", "step"), [("EPSG:3413", "km", 25.0), (CRS.from_cf(SATELLITE), "rad", 5.6e-5)])
def test_a_layer_without_the_crs_of_the_raster_is_where_both_are_stored(crs: Any, units: str, step: float) -> None:
    """As one of a Dataset whose CRS is a variable, and no coordinate."""
    places = step * np.arange(3), step * np.arange(4)
    grid, layer = (Grid.from_xarray(raster(one, units, *places)) for one in (crs, None))
    for first, second in ((grid, layer), (layer, grid)):
        first.require_same(second, "mask")
        np.testing.assert_allclose(first.shifts(second), 0, atol=1e-9)
    beside = Grid.from_xarray(raster(None, units, places[0], places[1] + step))
    with pytest.raises(InputError, match="differ in the centre"):
        grid.require_same(beside, "mask")
    np.testing.assert_allclose(grid.shifts(beside), [[0, 1]] * 5, atol=1e-9)


def test_longitudes_in_radians_go_round() -> None:
    lon = np.radians(np.arange(0, 360, 10.0))
    grid = Grid.from_xarray(raster(None, "radians", np.radians([10.0, 0]), lon, ("lat", "lon")))
    assert grid.periodic_x
    np.testing.assert_allclose(grid.spacing, (-10, 10))


@pytest.mark.parametrize(
    ("crs", "units", "y", "x", "dims", "message"),
    [
        (
            "EPSG:32633",
            "degrees_north",
            [48.0, 47],
            [15.0, 16],
            ("lat", "lon"),
            "values in degrees_north with .*33N",
        ),
        ("EPSG:32633", "degrees", [48.0, 47], [15.0, 16], ("y", "x"), "values in degrees with .*expected lengths"),
        ("EPSG:32633", None, [48.0, 47], [15.0, 16], ("lat", "lon"), "values in degrees with .*drop_vars"),
        ("EPSG:4326", "m", [5e6, 4.9e6], [5e5, 6e5], ("y", "x"), "values in m with WGS 84, expected degrees"),
    ],
)
def test_coordinates_that_cannot_be_of_the_crs(
    crs: str, units: str | None, y: list[float], x: list[float], dims: tuple[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Grid.from_xarray(raster(crs, units, y, x, dims))


def test_a_name_alone_makes_no_degrees() -> None:
    """Metres in a CRS in metres under the names of longitude and latitude."""
    misnamed = Grid.from_xarray(raster("EPSG:32633", None, [5.3e6, 5.2e6], [5e5, 6e5], ("lat", "lon")))
    assert (misnamed.geographic, misnamed.origin) == (False, (5.3e6, 5e5))
    assert not Grid.from_xarray(raster(None, "m", [2.0, 1], [0.0, 10], ("lat", "lon"))).geographic


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("y", [3.0, 1, 2]),
        ("y", [3.0, 3, 2]),
        ("y", [1, 1, 1]),
        ("lon", [11.0, 12, 10]),
        ("lon", [170.0, -170, 175]),
    ],
)
def test_coordinates_out_of_order_or_repeated(name: str, values: list[float]) -> None:
    dims = ("lat", name) if name == "lon" else (name, "x")
    shape = (2, 3) if name == "lon" else (3, 2)
    da = xr.DataArray(np.zeros(shape), {name: values}, dims)
    with pytest.raises(InputError, match=rf"coordinate '{name}' is not in order: got .*sortby\('{name}'\)"):
        Grid.from_xarray(da)
    assert Grid.from_xarray(da.drop_vars(name)).shape == shape


def test_cells_that_float32_cannot_tell_apart_are_in_order() -> None:
    lon = (120 + 2e-6 * np.arange(40)).astype("float32")
    assert (np.diff(lon) == 0).any()
    assert Grid.from_xarray(xr.DataArray(np.zeros((2, 40)), {"lon": lon}, ("lat", "lon"))).shape == (2, 40)


def test_a_mask_may_lie_whole_turns_away() -> None:
    west = Grid.from_xarray(raster(None, "degrees", [1.0, 0], [-30.0, -29], ("lat", "lon")))
    east = Grid.from_xarray(raster(None, "degrees", [1.0, 0], [330.0, 331], ("lat", "lon")))
    west.require_same(east, "mask")
