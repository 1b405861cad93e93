"""Polygons as masks: cells whose centre they hold, whatever CRS, file or convention of longitudes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rioxarray  # noqa: F401
import xarray as xr
from pyproj import Transformer

from geonp.errors import InputError, MissingExtraError, MissingFileError
from geonp.fill.domain import domain_of
from geonp.io.polygon_regions import Polygons, cells_of, read_polygons
from geonp.io.polygons import is_vector, polygon_mask
from geonp.io.tables import read_points
from geonp.raster.grid import Grid

geopandas = pytest.importorskip("geopandas")
pyogrio = pytest.importorskip("pyogrio")
shapely = pytest.importorskip("shapely")


def grid_of(crs: str | None, x: np.ndarray, y: np.ndarray) -> Grid:
    array = xr.DataArray(np.zeros((y.size, x.size)), {"y": y, "x": x}, ("y", "x"))
    return Grid.from_xarray(array if crs is None else array.rio.write_crs(crs))


UTM = grid_of("EPSG:32633", 500_005 + 10.0 * np.arange(40), 5_000_295 - 10.0 * np.arange(30))
INSIDE = np.zeros((30, 40), bool)
INSIDE[5:12, 8:20] = True
BOX = shapely.box(500_080, 5_000_180, 500_200, 5_000_250)


def write(path: Path, shapes: list[Any], crs: str | None, layer: str | None = None, **options: Any) -> Path:
    kind = shapes[0].geom_type
    pyogrio.raw.write(
        path, shapely.to_wkb(shapes), field_data=[], fields=[], geometry_type=kind, crs=crs, layer=layer, **options
    )
    return path


def moved(shape: Any, crs: str) -> Any:
    move = Transformer.from_crs("EPSG:32633", crs, always_xy=True).transform
    return shapely.transform(shape, lambda xy: np.stack(move(*xy.T), axis=1))


@pytest.mark.parametrize(
    ("name", "crs"),
    [("a.gpkg", "EPSG:32633"), ("a.shp", "EPSG:3035"), ("a.geojson", "EPSG:4326"), ("a.fgb", "EPSG:3857")],
)
def test_cells_whose_centre_lies_in_a_polygon(tmp_path: Path, name: str, crs: str) -> None:
    path = write(tmp_path / name, [moved(BOX, crs)], crs)
    np.testing.assert_array_equal(polygon_mask(path, UTM), INSIDE)
    np.testing.assert_array_equal(domain_of(str(path), UTM), INSIDE)


def test_rows_from_south_to_north_and_other_longitudes(tmp_path: Path) -> None:
    degrees = grid_of(None, 340.5 + np.arange(40), -9.5 + np.arange(20))
    degrees = Grid.from_xarray(
        xr.DataArray(np.zeros((20, 40)), {"lat": -9.5 + np.arange(20), "lon": 340.5 + np.arange(40)}, ("lat", "lon"))
    )
    path = write(tmp_path / "a.geojson", [shapely.box(-5, 2, 7, 6)], "EPSG:4326")
    expected = np.zeros((20, 40), bool)
    expected[12:16, 15:27] = True
    np.testing.assert_array_equal(polygon_mask(path, degrees), expected)


@pytest.mark.parametrize("turns", [-3, -2, -1, 1, 2, 3])
def test_longitudes_may_be_any_number_of_turns_away(turns: int) -> None:
    """Those of more than one turn held no cell; nor did those of one on a raster in another CRS."""
    raster = xr.DataArray(
        np.zeros((20, 40)), {"lat": -9.5 + np.arange(20), "lon": 340.5 + np.arange(40)}, ("lat", "lon")
    )
    grid, here = Grid.from_xarray(raster), shapely.box(-5, 2, 7, 6)
    away = shapely.transform(here, lambda xy: xy + np.array([360 * turns, 0]))
    expected = np.zeros((20, 40), bool)
    expected[12:16, 15:27] = True
    np.testing.assert_array_equal(polygon_mask(geopandas.GeoSeries([away], crs=4326), grid), expected)
    found = cells_of(Polygons.of([away, here]), raster, grid)
    np.testing.assert_array_equal(found.row, np.tile(np.nonzero(expected)[0], 2))
    np.testing.assert_array_equal(found.col, np.tile(np.nonzero(expected)[1], 2))
    near = shapely.transform(moved(BOX, "EPSG:4326"), lambda xy: xy + np.array([360 * turns, 0]))
    np.testing.assert_array_equal(polygon_mask(geopandas.GeoSeries([near], crs=4326), UTM), INSIDE)


@pytest.mark.parametrize(
    "lat",
    [
        np.degrees(2 * np.arctan(np.exp(np.linspace(2.5, -2.5, 60))) - np.pi / 2),  # rows of a Mercator map
        np.geomspace(1, 85, 30),
    ],
)
def test_edges_are_straight_where_rows_are_not_evenly_spaced(lat: np.ndarray) -> None:
    """They were straight among the numbers of rows, so that a region had as many wrong cells as cells."""
    lon = np.arange(0, 120.0, 2.5)
    raster = xr.DataArray(np.zeros((lat.size, lon.size)), {"lat": lat, "lon": lon}, ("lat", "lon"))
    south, north = lat.min() + 0.01, lat.max() - 0.01
    polygon = shapely.Polygon([(10, south), (90, north), (100, north), (30, south)])
    found, inside = cells_of(Polygons.of([polygon]), raster, Grid.from_xarray(raster)), np.zeros(raster.shape, bool)
    inside[found.row, found.col] = True
    centres = shapely.points(*np.meshgrid(lon, lat))
    clear = shapely.distance(polygon.exterior, centres) > 0.01
    np.testing.assert_array_equal(inside[clear], shapely.contains(polygon, centres)[clear])


def test_polygons_of_the_whole_world_on_a_projected_raster(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gpkg", [shapely.box(-180, -90, 180, 90)], "EPSG:4326")
    assert polygon_mask(path, UTM).all()


@pytest.mark.parametrize("first", [-180.0, 0.0])
@pytest.mark.parametrize(
    ("crs", "shape"),
    [
        ("EPSG:3832", shapely.box(2e6, -2e6, 4.5e6, 2e6)),  # across the date line
        ("EPSG:3413", shapely.box(-2e6, -2e6, 2e6, 2e6)),  # the North Pole and what is around it
        ("EPSG:3413", shapely.box(-3e6, -3e6, 3e6, 3e6).difference(shapely.box(-1e6, -1e6, 1e6, 1e6))),
        ("EPSG:3413", shapely.box(-3e6, -3e6, 3e6, 3e6).difference(shapely.box(-2e6, 1e6, -1e6, 2e6))),
        ("EPSG:3031", shapely.box(-3e6, -3e6, 3e6, 3e6)),
    ],
)
def test_polygons_across_the_date_line_and_around_poles(crs: str, shape: Any, first: float) -> None:
    lon, lat = first + 1.5 + 3.0 * np.arange(120), 88.5 - 3.0 * np.arange(60)
    array = xr.DataArray(np.zeros((60, 120)), {"lat": lat, "lon": lon}, ("lat", "lon")).rio.write_crs("EPSG:4326")
    frame, grid = geopandas.GeoDataFrame(geometry=[shape, None], crs=crs), Grid.from_xarray(array)
    x, y = Transformer.from_crs("EPSG:4326", crs, always_xy=True).transform(*np.meshgrid(lon, lat))
    inside = shapely.contains_xy(shape, *np.where(np.isfinite([x, y]), [x, y], 1e20))
    np.testing.assert_array_equal(polygon_mask(frame, grid), inside)
    found = cells_of(Polygons.of(frame), array, grid)
    assert (found.region == 0).all()
    np.testing.assert_array_equal(np.stack([found.row, found.col], 1), np.argwhere(inside))


def test_layers_holes_and_frames(tmp_path: Path) -> None:
    ring = shapely.difference(BOX, shapely.box(500_100, 5_000_200, 500_120, 5_000_220))
    expected = INSIDE.copy()
    expected[8:10, 10:12] = False
    path = write(tmp_path / "a.gpkg", [shapely.box(0, 0, 1, 1)], "EPSG:32633", layer="other")
    write(path, [ring], "EPSG:32633", layer="lakes", append=True)
    np.testing.assert_array_equal(polygon_mask(f"{path}:lakes", UTM), expected)
    with pytest.raises(InputError, match="has 2 layers: got no layer, expected FILE:LAYER with one of other, lakes"):
        polygon_mask(path, UTM)
    frame: Any = SimpleNamespace(geometry=[ring], crs="EPSG:32633", to_crs=None)
    np.testing.assert_array_equal(domain_of(frame, UTM), expected)


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="crs"):
        path = write(tmp_path / "none.shp", [BOX], None)
    with pytest.raises(InputError, match="cannot be placed: it has no CRS, expected one in both"):
        polygon_mask(path, UTM)
    path = write(tmp_path / "a.gpkg", [BOX], "EPSG:32633")
    with pytest.raises(InputError, match="cannot be placed: the raster has no CRS"):
        polygon_mask(path, grid_of(None, np.arange(9.0), np.arange(9.0)))
    with pytest.raises(InputError, match="leaves nothing to fill: none of its 1 polygons holds the centre of a cell"):
        polygon_mask(path, grid_of("EPSG:32633", np.arange(9.0), np.arange(9.0)))
    with pytest.raises(InputError, match="must hold polygons: got Point"):
        polygon_mask(write(tmp_path / "b.gpkg", [shapely.Point(1, 1)], "EPSG:32633"), UTM)
    (tmp_path / "bad.geojson").write_text(json.dumps({"type": "nothing"}))
    with pytest.raises(InputError, match="cannot be read"):
        polygon_mask(tmp_path / "bad.geojson", UTM)
    with pytest.raises(MissingFileError, match=r"No such file: got .*nowhere.gpkg"):
        polygon_mask(tmp_path / "nowhere.gpkg", UTM)
    frame = SimpleNamespace(geometry=[BOX], crs="EPSG:0", to_crs=None)
    with pytest.raises(InputError, match="has a CRS that is not understood: got 'EPSG:0'"):
        polygon_mask(frame, UTM)
    with pytest.raises(InputError, match=r"the mask 'mask.tif' is not a file of polygons, expected one of .gpkg"):
        domain_of("mask.tif", UTM)
    monkeypatch.setitem(sys.modules, "pyogrio", None)
    with pytest.raises(MissingExtraError, match="'vector' of geonp"):
        polygon_mask(path, UTM)


@pytest.mark.parametrize("name", ["a.gpkg", "a.shp", "a.geojson", "a.gml"])
@pytest.mark.parametrize("read", [lambda path: polygon_mask(path, UTM), read_polygons, read_points])
def test_texts_that_refer_to_other_files_are_refused(tmp_path: Path, name: str, read: Any) -> None:
    secret = write(tmp_path / "secret.gpkg", [BOX], "EPSG:32633")
    layer = f'<OGRVRTLayer name="secret"><SrcDataSource>{secret}</SrcDataSource></OGRVRTLayer>'
    (tmp_path / name).write_text(f"<OGRVRTDataSource>{layer}</OGRVRTDataSource>")
    with pytest.raises(InputError, match="is text that refers to other files or URLs"):
        read(tmp_path / name)


def test_files_are_known_by_their_names() -> None:
    assert all(map(is_vector, ["a.GPKG", "a.gpkg:lakes", Path("b.shp")]))
    assert not any(map(is_vector, ["a.tif", "a.nc:mask", None, xr.DataArray(0)]))
