"""Dimensions by their names, and coordinates that cannot be those of the CRS."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest
import rioxarray  # noqa: F401  (registers the accessor rio)
import xarray as xr

from geonp.errors import InputError
from geonp.fill.infill import infill
from geonp.fill.options import FillOptions
from geonp.fill.variables import normalise
from geonp.raster.boxes import select_box
from geonp.raster.dimensions import spatial_dims
from geonp.raster.grid import Grid
from geonp.raster.places import misplaced, warn_of_places


@pytest.mark.parametrize(
    "dims",
    [
        ("latitudes", "longitudes"),
        ("lat_0", "lon_0"),
        ("g0_lat_0", "g0_lon_1"),
        ("grid_yt", "grid_xt"),
        ("YDim:MOD_Grid", "XDim:MOD_Grid"),
        ("rows", "cols"),
        ("eta_rho", "xi_rho"),
        ("nj", "ni"),
        ("Northing", "Easting"),
        ("south_north_stag", "west_east"),
        ("HEIGHT", "WIDTH"),
        ("ROW", "COL"),
        ("Row", "Column"),
        ("Lat", "Long"),
        ("Lines", "Pixels"),
        ("scanline", "ground_pixel"),
    ],
)
def test_dimensions_whose_names_are_alike(dims: tuple[str, str]) -> None:
    array = xr.DataArray(np.zeros((2, 3, 4)), dims=("day", *dims))
    assert spatial_dims(array) == dims
    assert spatial_dims(array.transpose(*dims[::-1], "day")) == dims


def test_dimensions_that_are_not_alike_are_refused() -> None:
    with pytest.raises(InputError, match=r"No spatial dimensions found: got dimensions \('day', 'level'\)"):
        spatial_dims(xr.DataArray(np.zeros((2, 3)), dims=("day", "level")))


@pytest.mark.parametrize(
    ("y", "x", "crs", "why"),
    [
        ([50.0, 40.0], [5.0, 15.0], 3857, "in WGS 84 / Pseudo-Mercator .* look like degrees"),
        (
            [4600.0, 4599.97],
            [500.0, 500.03],
            32633,
            "in WGS 84 / UTM zone 33N .* which look like kilometres",
        ),
        ([5.4e6, 5.3e6], [1.4e5, 1.5e5], 32633, ""),  # at 10 degrees east, in the zone to the west
        ([5.4e6, 5.3e6], [-4e5, -3.9e5], 32633, "longitudes from 12 to 18 and .*, the area of use of WGS 84 / UTM"),
        ([6.5e6, 6.4e6], [1.1e6, 1.2e6], 32632, "longitudes from 6 to 12 and .*, the area of use of WGS 84 / UTM"),
        ([1.55e7, 1.54e7], [5e5, 6e5], 32733, "latitudes from -80 to 0, the area of use of WGS 84 / UTM"),
        ([4.6e6, 4.5e6], [5e5, 6e5], 4326, r"and y from 4\.5e\+06 to 4\.6e\+06, expected degrees"),
        ([4.6e6, 4.5e6], [5e5, 6e5], 32633, ""),
        ([90.0, -90.0], [0.0, 180.0], 4326, ""),
        ([96.0, 89.0], [5.0, 12.0], 4326, "y from 89 to 96, expected degrees"),  # steps of a degree
        ([107.0, 100.0], [200.0, 207.0], 32633, ""),  # numbers of cells
    ],
)
def test_coordinates_that_are_none_of_the_crs_are_named(
    model: str, y: list[float], x: list[float], crs: int, why: str
) -> None:
    ys, xs = np.linspace(*y, 8), np.linspace(*x, 8)
    array = xr.DataArray(np.add.outer(ys, xs), {"y": ys, "x": xs}, ("y", "x"), "a").rio.write_crs(crs)
    if why:
        with pytest.warns(UserWarning, match=f"The coordinates cannot be those of the CRS: .*{why}"):
            infill(array, model=model)
    assert bool(misplaced(Grid.from_xarray(array))) is bool(why)


@pytest.mark.parametrize("step", [4, -4])
def test_a_box_around_the_earth_has_the_longitudes_that_were_asked_for(step: int) -> None:
    lon = np.arange(-180.0, 180, 4)[:: int(np.sign(step))]
    ds = xr.Dataset({"a": (("lat", "lon"), np.stack([np.cos(np.radians(lon))] * 2))}, {"lat": [1, 0], "lon": lon})
    found = select_box(ds, (0, -5, 360, 5))
    assert (found.lon.diff("lon") == step).all()
    assert (found.lon.min(), found.lon.max()) == (0, 356)
    np.testing.assert_allclose(found.a[0], np.cos(np.radians(found.lon)), atol=1e-12)


@pytest.mark.parametrize(("x", "doubted"), [(500_000.0, False), (500.0, False), (1.0, True)])
def test_places_on_other_planets(x: float, doubted: bool) -> None:
    """PROJ transforms no place of another celestial body to WGS 84."""
    coords = {"y": x * (9.0 - np.arange(6) / 10), "x": x * (1 + np.arange(7) / 10)}
    raster = xr.DataArray(np.zeros((6, 7)), coords, ("y", "x")).rio.write_crs("IAU_2015:49910")
    assert bool(misplaced(Grid.from_xarray(raster))) is doubted
    raster[2, 3] = np.nan
    if not doubted:
        assert np.isfinite(infill(raster)["value"].values).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_that_differ_by_rounding_alone_are_said(dtype: str) -> None:
    """As after joining files of which one has latitudes in single precision: each row was filled twice."""
    lat = np.linspace(50, 47, 31)
    files = [
        xr.DataArray(np.ones((1, 31, 4)), {"time": [n], "lat": at}, ("time", "lat", "lon"), name="t")
        for n, at in enumerate((lat, lat.astype(dtype).astype("f8")))
    ]
    joined = xr.concat(files, "time", join="outer").to_dataset()
    said = "'lat' has .. pairs of neighbours that differ by rounding alone.*join='exact'"
    with pytest.warns(UserWarning, match=said) if dtype == "f4" else contextlib.nullcontext():
        normalise(joined, FillOptions())


@pytest.mark.parametrize(
    ("x", "y", "doubted"),
    [
        (5 + 0.25 * np.arange(9), 45 - 0.25 * np.arange(7), True),
        (-179.75 + 0.5 * np.arange(720), 89.75 - 0.5 * np.arange(360), True),
        (-25 + 0.25 * np.arange(280), 72 - 0.25 * np.arange(150), True),
        (0.5 * np.arange(90), 0.5 * np.arange(70), False),
        (5 + 0.25 * np.arange(90), -30 + 0.5 * np.arange(121), False),
        (5 + 0.25 * np.arange(9), 4 - 0.25 * np.arange(7), False),
        (5.0 + np.arange(9), 45.0 - np.arange(7), False),
        (500 + 0.25 * np.arange(9), 45 - 0.25 * np.arange(7), False),
    ],
)
def test_likely_degrees_without_a_crs_come_with_a_warning(x: np.ndarray, y: np.ndarray, doubted: bool) -> None:
    raster = xr.DataArray(np.zeros((y.size, x.size)), {"y": y, "x": x}, ("y", "x"))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_places(Grid.from_xarray(raster))
        warn_of_places(Grid.from_xarray(raster.rename(y="lat", x="lon")))
    assert ["may be longitudes and latitudes" in str(one.message) for one in found[: 1 + doubted]] == [True] * doubted
