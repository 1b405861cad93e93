"""Grids: dimensions, spacing and CRS of rasters, and how often a fill reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr
from pyproj import CRS

from geonp.errors import InputError
from geonp.raster.boxes import select_box
from geonp.raster.crs import crs_name, grid_mapping_name, with_cf_crs
from geonp.raster.grid import Grid
from geonp.raster.surface import surface_of

from ..commands import cli

SHARED = Path(__file__).parents[3] / "shared" / "data"


def raster(y_dim: str = "y", x_dim: str = "x", shape: tuple[int, int] = (3, 4), **coords: object) -> xr.DataArray:
    return xr.DataArray(np.zeros(shape, "float32"), dims=(y_dim, x_dim), coords=coords)


def with_crs(da: xr.DataArray, crs: str, **attrs: str) -> xr.DataArray:
    return da.assign_coords(spatial_ref=xr.Variable((), 0, {"crs_wkt": CRS.from_user_input(crs).to_wkt(), **attrs}))


@pytest.mark.parametrize(
    ("y_dim", "x_dim"),
    [
        ("y", "x"),
        ("lat", "lon"),
        ("latitude", "longitude"),
        ("Y", "X"),
        ("Latitude", "Longitude"),
        # of other communities
        ("northing", "easting"),
        ("nav_lat", "nav_lon"),
        ("south_north", "west_east"),
        ("YDim", "XDim"),
        ("eta_rho", "xi_rho"),
        ("nj", "ni"),
        ("rows", "cols"),
        ("row", "column"),
        ("number_of_lines", "pixels_per_line"),
        ("downtrack", "crosstrack"),
    ],
)
def test_dimensions_are_found_by_name(y_dim: str, x_dim: str) -> None:
    upright = raster(y_dim, x_dim)
    turned = upright.transpose()
    for da in (upright, turned, upright.expand_dims(time=2), turned.expand_dims(time=2)):
        grid = Grid.from_xarray(da)
        assert (grid.y_dim, grid.x_dim, grid.shape) == (y_dim, x_dim, (3, 4))


@pytest.mark.parametrize(
    ("y_attrs", "x_attrs"),
    [
        ({"axis": "Y"}, {"axis": "X"}),
        ({"standard_name": "projection_y_coordinate"}, {"standard_name": "projection_x_coordinate"}),
        ({"standard_name": "grid_latitude"}, {"standard_name": "grid_longitude"}),
        ({"units": "degrees_north"}, {"units": "degrees_east"}),
    ],
)
def test_dimensions_are_found_by_cf_attributes(y_attrs: dict[str, str], x_attrs: dict[str, str]) -> None:
    da = raster("north", "east", north=("north", [3, 2, 1], y_attrs), east=("east", [1, 2, 3, 4], x_attrs))
    assert Grid.from_xarray(da.to_dataset(name="a")).y_dim == "north"
    assert Grid.from_xarray(da.transpose()).x_dim == "east"


def test_dimensions_of_a_curvilinear_grid() -> None:
    latitude = (("j", "i"), np.ones((3, 4)), {"standard_name": "latitude"})
    grid = Grid.from_xarray(raster("j", "i", nav_lat=latitude))
    assert (grid.y_dim, grid.x_dim, grid.spacing, grid.regular) == ("j", "i", (1.0, 1.0), False)


def test_attributes_and_latitudes_count_more_than_names_of_other_communities() -> None:
    da = raster("row", "col", row=("row", [1, 2, 3], {"axis": "X"}), col=("col", [4, 3, 2, 1], {"axis": "Y"}))
    assert (Grid.from_xarray(da).y_dim, Grid.from_xarray(da).x_dim) == ("col", "row")
    stack = xr.DataArray(np.zeros((2, 3, 4)), dims=("j", "i", "k"), coords={"lat": (("i", "k"), np.ones((3, 4)))})
    assert (Grid.from_xarray(stack).y_dim, Grid.from_xarray(stack).x_dim) == ("i", "k")


def test_latitudes_that_change_in_time_show_the_spatial_dimensions() -> None:
    latitude = (("Time", "sn", "we"), np.ones((2, 3, 4)), {"units": "degree_north"})
    grid = Grid.from_xarray(raster("sn", "we").to_dataset(name="a").assign_coords(XLAT=latitude))
    assert (grid.y_dim, grid.x_dim, grid.shape, grid.regular) == ("sn", "we", (3, 4), False)


def test_no_spatial_dimensions() -> None:
    with pytest.raises(
        InputError, match=r"got dimensions \('time', 'station'\), expected a pair named y/x.*obj\.rename"
    ):
        Grid.from_xarray(raster("time", "station"))
    with pytest.raises(InputError, match=r"got dimensions \(none\)"):
        Grid.from_xarray(xr.DataArray(1.0))
    with pytest.raises(InputError, match=r"has no cells: got shape \(0, 4\)"):
        Grid.from_xarray(raster(shape=(0, 4)))


def test_spacing_and_origin_keep_their_signs() -> None:
    grid = Grid.from_xarray(raster("lat", "lon", lat=[50.0, 49.5, 49.0], lon=[350.0, 351, 352, 353]))
    assert (grid.spacing, grid.origin) == ((-0.5, 1.0), (50.0, 350.0))
    assert grid.regular
    assert grid.geographic
    bare = Grid.from_xarray(raster())
    assert (bare.spacing, bare.origin, bare.regular, bare.geographic) == ((1.0, 1.0), (0.0, 0.0), True, False)


@pytest.mark.parametrize("lon", [[358.0, 359, 0, 1], [178.0, 179, -180, -179], [1.0, 0, 359, 358]])
def test_longitudes_that_wrap_go_on(lon: list[float]) -> None:
    step = lon[1] - lon[0]
    grid = Grid.from_xarray(raster("lat", "lon", lat=[50.0, 49.5, 49.0], lon=lon))
    assert (grid.spacing, grid.origin, grid.regular) == ((-0.5, step), (50.0, lon[0]), True)
    with pytest.raises(InputError, match="'x' is not in order"):
        Grid.from_xarray(raster(x=lon))
    world = Grid.from_xarray(raster("lat", "lon", (3, 360), lon=np.roll(np.arange(360.0), 90)))
    assert world.periodic_x


@pytest.mark.parametrize(
    ("lon", "in_order"),
    [
        ([0.5, 325.5, 330.5, 355.5], [325.5, 330.5, 355.5, 360.5]),
        ([-179.0, -178, 177, 178], [177.0, 178, 181, 182]),
        ([170.0, -170, 175, -175], [170.0, 175, 185, 190]),
    ],
)
def test_longitudes_in_two_parts_are_refused_with_the_way_to_join_them(lon: list[float], in_order: list[float]) -> None:
    obj = raster("lat", "lon", lon=lon)
    with pytest.raises(InputError, match="'lon' is not in order") as refused:
        Grid.from_xarray(obj)
    advice = re.search(r"Sort them with (assign_coords.*?sortby\('lon'\)),", str(refused.value))
    assert advice is not None
    joined = eval(f"obj.{advice[1]}", {"obj": obj})
    assert joined["lon"].values.tolist() == in_order
    assert Grid.from_xarray(joined).origin[1] == in_order[0]


def test_presence_and_evenness_of_coordinates_are_recorded() -> None:
    grid = Grid.from_xarray(raster(x=[0.0, 1, 2, 4]))
    assert (grid.placed, grid.even) == ((False, True), (True, False))
    assert Grid.from_xarray(raster(y=["a", "b", "c"], x=[0.0, 1, 2, 3])).placed == (False, True)


def test_uneven_spacing_is_recorded() -> None:
    assert not Grid.from_xarray(raster(y=[0.0, 1.0, 2.1])).regular
    assert Grid.from_xarray(raster(y=[0.0, 1.0, 2.001])).regular
    fine = np.linspace(-124.0, -67.0, 4000).astype("float32")
    assert Grid.from_xarray(raster(shape=(3, 4000), x=fine)).regular


def test_coordinates_must_be_finite_but_need_not_be_numbers() -> None:
    with pytest.raises(InputError, match=r"The coordinate 'y' has values that are not finite.*drop_vars\('y'\)"):
        Grid.from_xarray(raster(y=[0.0, np.nan, 2.0]))
    assert Grid.from_xarray(raster(y=["a", "b", "c"])).spacing == (1.0, 1.0)


@pytest.mark.parametrize(
    ("count", "step", "name", "periodic"),
    [
        (360, 1.0, "lon", True),
        (1440, 0.25, "lon", True),
        (361, 1.0, "lon", False),
        (359, 1.0, "lon", False),
        (180, 1.0, "lon", False),
        (1, 360.0, "lon", False),
        (360, -1.0, "lon", True),
        (360, 1.0, "x", False),
    ],
)
def test_columns_around_the_earth(count: int, step: float, name: str, periodic: bool) -> None:
    y_dim = "lat" if name == "lon" else "y"
    for start in (-180.0, 0.0):
        da = raster(y_dim, name, (2, count), **{name: start + step * np.arange(count)})
        assert Grid.from_xarray(da).periodic_x == periodic


def test_crs_decides_what_is_geographic() -> None:
    da = raster(shape=(2, 36), x=np.arange(0.0, 360, 10))
    assert not Grid.from_xarray(da).periodic_x
    assert Grid.from_xarray(with_crs(da, "EPSG:4326")).periodic_x
    assert not Grid.from_xarray(with_crs(da, "EPSG:32633")).periodic_x


def test_crs_is_read_where_grid_mapping_points() -> None:
    ds = xr.Dataset({"a": raster(), "crs": xr.Variable((), 0, CRS.from_epsg(3035).to_cf())})
    assert Grid.from_xarray(ds).crs is None
    for mapping in ("crs", "crs: x y"):
        ds["a"].attrs["grid_mapping"] = mapping
        assert grid_mapping_name(ds) == "crs"
        assert CRS.from_wkt(Grid.from_xarray(ds).crs).to_epsg() == 3035
    del ds["crs"].attrs["crs_wkt"]
    assert "Azimuthal" in Grid.from_xarray(ds).crs
    assert crs_name(CRS.from_epsg(3035).to_wkt()) == "ETRS89-extended / LAEA Europe (EPSG:3035)"


def test_arithmetic_keeps_the_crs(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": raster()}).assign_coords(lambert=((), 0, CRS.from_epsg(3035).to_cf()))
    ds["a"].encoding["grid_mapping"] = "lambert"
    ds.to_netcdf(tmp_path / "in.nc")
    with xr.open_dataset(tmp_path / "in.nc", decode_coords="all") as opened:
        changed = opened["a"].where(opened["a"] >= 0) * 1
        assert "grid_mapping" not in changed.encoding
        for one in (changed, opened + 1):
            assert CRS.from_wkt(Grid.from_xarray(one).crs).to_epsg() == 3035
        assert grid_mapping_name(changed.assign_coords(wgs84=((), 0, {"crs_wkt": "WGS 84"}))) is None


def test_crs_in_an_attribute_of_that_name() -> None:
    da = raster()
    da.attrs["crs"] = "+init=epsg:32633"
    for obj in (da, da.to_dataset(name="a"), xr.Dataset({"b": da.drop_attrs()}, attrs=da.attrs)):
        crs = Grid.from_xarray(obj).crs
        assert crs is not None
        assert CRS.from_wkt(crs).to_epsg() == 32633
    assert CRS.from_wkt(str(Grid.from_xarray(with_crs(da, "EPSG:3035")).crs)).to_epsg() == 3035
    da.attrs["crs"] = "+init=epsg:4326 +no_defs"
    assert CRS.from_wkt(str(Grid.from_xarray(da).crs)).to_epsg() == 4326
    for text in ("somewhere", "WGS84", "lat/lon", "EPSG:5773", "EPSG:999999", ""):
        da.attrs["crs"] = text
        assert Grid.from_xarray(da).crs is None
    bare = raster().drop_attrs()
    for obj in (  # a stack of STAC items keeps its coordinates in arithmetic, and no attributes
        bare.assign_attrs(crs=32633),
        bare.assign_attrs(esri_pe_string=CRS.from_epsg(32633).to_wkt("WKT1_ESRI")),
        bare.assign_coords(epsg=32633),
        bare.assign_attrs(crs="WGS84").assign_coords({"proj:code": "EPSG:32633"}),
    ):
        assert CRS.from_wkt(str(Grid.from_xarray(obj).crs)).to_epsg() == 32633
    assert Grid.from_xarray(bare.assign_coords(epsg=0)).crs is None


def test_crs_that_cannot_be_read() -> None:
    da = raster().assign_coords(spatial_ref=xr.Variable((), 0, {"crs_wkt": "PROJCS[nonsense"}))
    with pytest.raises(InputError, match=r"The CRS in variable 'spatial_ref' cannot be read: got 'PROJCS\[nonsense'"):
        Grid.from_xarray(da)
    known = {"crs_wkt": "unknown", "grid_mapping_name": "latitude_longitude", "earth_radius": 6.371e6}
    assert Grid.from_xarray(da.assign_coords(spatial_ref=xr.Variable((), 0, known))).geographic


@pytest.mark.parametrize(("dtype", "even"), [("f4", True), ("f8", False)])
def test_coordinates_are_even_to_within_the_rounding_of_their_dtype(dtype: str, even: bool) -> None:
    y = (4_100_000.3 - 10.0 * np.arange(40)).astype("f4")  # to within 0.25 m, of steps of 10 m
    y[20] += 0.25
    grid = Grid.from_xarray(raster(shape=(40, 4), y=y.astype(dtype), x=[0.0, 10, 20, 30]))
    assert grid.even == (even, True)
    assert grid.spacing[0] == pytest.approx(-10, abs=0.25 / 39)


def test_sizes_must_be_known() -> None:
    values = dask.array.ones((4, 5), chunks=2)
    with pytest.raises(InputError, match=r"The size of 'y' is unknown.*compute_chunk_sizes"):
        Grid.from_xarray(xr.DataArray(values[values[:, 0] > 0], dims=("y", "x")))


def test_one_cell_takes_its_size_from_the_geotransform() -> None:
    da = with_crs(raster(shape=(1, 1), y=[85.0], x=[15.0]), "EPSG:32633", GeoTransform="0 30 0 100 0 -30")
    assert Grid.from_xarray(da).spacing == (-30.0, 30.0)
    assert Grid.from_xarray(raster(shape=(1, 1), y=[85.0], x=[15.0])).spacing == (1.0, 1.0)


def test_same_grid() -> None:
    here = Grid.from_xarray(with_crs(raster(y=[3.0, 2, 1], x=[0.0, 1, 2, 3]), "EPSG:32633"))
    here.require_same(here, "mask")
    here.require_same(Grid.from_xarray(raster()), "mask")
    even = xr.DataArray(np.ones((9, 3)), {"y": np.arange(9.0), "x": [0, 1, 2]}, ("y", "x"))
    uneven = even.assign_coords(y=[0, 0.1, 0.2, 0.3, 0.5, 1, 2, 4, 8])
    Grid.from_xarray(uneven).require_same(Grid.from_xarray(uneven), "mask")
    with pytest.raises(InputError, match=r"of an inner cell: got \(0\.2, 0\.0\), expected \(2\.0, 0\.0\)"):
        Grid.from_xarray(even).require_same(Grid.from_xarray(uneven), "mask")
    other_shape = Grid.from_xarray(raster(shape=(4, 3)))
    with pytest.raises(InputError, match=r"The mask and the raster differ in shape: got \(4, 3\), expected \(3, 4\)"):
        here.require_same(other_shape, "mask")
    other_crs = Grid.from_xarray(with_crs(raster(y=[3.0, 2, 1], x=[0.0, 1, 2, 3]), "EPSG:4326"))
    with pytest.raises(InputError, match=r"differ in CRS: got WGS 84 \(EPSG:4326\), expected .*32633"):
        here.require_same(other_crs, "mask")
    upside_down = Grid.from_xarray(raster(y=[1.0, 2, 3], x=[0.0, 1, 2, 3]))
    with pytest.raises(
        InputError,
        match=r"differ in the centre \(y, x\) of the first cell: got \(1\.0, 0\.0\), expected \(3\.0, 0\.0\)",
    ):
        here.require_same(upside_down, "mask")
    # an origin of (0, 0) is a place, not the lack of coordinates
    origin = Grid.from_xarray(raster(y=[0.0, 1, 2], x=[0.0, 1, 2, 3]))
    for first, second in ((origin, upside_down), (upside_down, origin)):
        with pytest.raises(InputError, match="The mask and the raster differ in the centre"):
            first.require_same(second, "mask")
    one = Grid.from_xarray(raster(x=[5.0, 6, 7, 8]))
    with pytest.raises(InputError, match="The mask and the raster differ in the centre"):
        one.require_same(origin, "mask")


def test_a_missing_crs_is_named_where_grids_differ() -> None:
    utm = with_crs(raster(y=[5e6 + 20, 5e6 + 10, 5e6], x=5e5 + 10.0 * np.arange(4)), "EPSG:32633")
    bare = raster(y=[3.0, 2, 1], x=[0.0, 1, 2, 3])
    own, other, named = map(Grid.from_xarray, (utm, bare, bare.rename(y="lat", x="lon")))
    said = (
        r"differ in the centre .* The dem declares no CRS, and the raster is in WGS 84 / UTM zone 33N \(EPSG:32633\):"
    )
    with pytest.raises(InputError, match=said):
        own.require_same(other, "dem")
    with pytest.raises(
        InputError, match=r"The raster declares no CRS, and the dem is in .*: if the raster is in another"
    ):
        other.require_same(own, "dem")
    with pytest.raises(
        InputError, match=r"in shape.* The dem declares no CRS, and the raster is in longitudes and lat"
    ):
        named.require_same(Grid.from_xarray(raster(y=[3.0, 2], x=[0.0, 1, 2, 3], shape=(2, 4))), "dem")
    for one, two in ((own, named), (other, Grid.from_xarray(bare.assign_coords(x=bare.x + 9)))):
        with pytest.raises(InputError, match=r"in the same order\.$"):
            one.require_same(two, "dem")


def test_cells_between_those_of_the_raster_are_said() -> None:
    here = Grid.from_xarray(raster(y=[3.0, 2, 1], x=[0.0, 1, 2, 3]))
    here.require_same(Grid.from_xarray(raster(y=[3.05, 2.05, 1.05], x=[0.0, 1, 2, 3])), "mask")
    corners = Grid.from_xarray(raster(y=[3.5, 2.5, 1.5], x=[0.0, 1, 2, 3]))
    with pytest.warns(UserWarning, match="The cells of the mask lie up to 0.5 cells from those of the raster"):
        here.require_same(corners, "mask")
    here.require_same(corners, "mask", warns=False)
    assert here.shifts(corners).tolist() == [[0.5, 0.0]] * 5


def test_bounds_are_the_outer_edges_of_the_cells() -> None:
    x = [0.0, 1, 2, 3]
    assert Grid.from_xarray(raster(y=[2.0, 1, 0], x=x)).bounds == (-0.5, -0.5, 3.5, 2.5)
    assert Grid.from_xarray(raster(y=[0.0, 1, 5], x=x)).bounds is None
    assert Grid.from_xarray(raster(y=[2.0, 1, 0])).bounds is None


def test_reading_a_grid_computes_nothing(computes_nothing: Any) -> None:
    with computes_nothing():
        assert Grid.from_xarray(raster(y=[0.0, 1, 2]).chunk(1)).shape == (3, 4)


@pytest.fixture
def grids_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Dimensions of each raster whose grid is read."""
    read: list[tuple[Any, ...]] = []
    original = Grid.from_xarray

    def counted(obj: xr.DataArray | xr.Dataset) -> Grid:
        read.append(tuple(obj.dims))
        return original(obj)

    monkeypatch.setattr(Grid, "from_xarray", counted)
    return read


def gappy() -> xr.Dataset:
    values = np.random.default_rng(0).random((20, 24)).astype("float32")
    values[5:9, 5:9] = np.nan
    coords = {"y": -np.arange(20.0), "x": np.arange(24.0)}
    da = with_crs(xr.DataArray(values, coords, ("y", "x")), "EPSG:32633")
    return xr.Dataset({"a": da, "b": da.transpose()})


def test_a_fill_reads_the_grid_of_the_raster_and_of_the_mask_once(grids_read: list[tuple[Any, ...]]) -> None:
    ds = gappy()
    mask = ds["a"].isnull().rename("mask").transpose("x", "y") | True
    filled = ds.geonp.infill(mask=mask)
    assert not filled["a"].isnull().any()
    assert grids_read == [("y", "x"), ("x", "y")]


def test_a_fill_from_file_to_store_reads_the_grid_once(grids_read: list[tuple[Any, ...]], tmp_path: Path) -> None:
    gappy().to_netcdf(tmp_path / "in.nc")
    cli("fill", tmp_path / "in.nc", tmp_path / "out.zarr")
    assert len(grids_read) == 1


@pytest.mark.skipif(not SHARED.exists(), reason="needs the sample rasters beside the checkout")
@pytest.mark.parametrize(
    ("file", "shape", "periodic", "regular"),
    [
        ("sst_ostia_global_0p25_2017-06-05_07", (720, 1440), True, True),
        ("era5_geopotential_global_0p25", (721, 1440), True, True),
        ("chlorophyll_olci_northsea_2017", (1000, 2000), False, True),
        ("tmax_gridmet_conus_2019-01-21", (585, 1386), False, True),
        ("sst_nemo_orca1_curvilinear_2015-01", (330, 360), False, False),
    ],
)
def test_sample_rasters(file: str, shape: tuple[int, int], periodic: bool, regular: bool) -> None:
    with xr.open_dataset(SHARED / f"{file}.nc", engine="netcdf4") as ds:
        grid = Grid.from_xarray(ds)
    assert (grid.shape, grid.periodic_x, grid.regular) == (shape, periodic, regular)


def test_of_several_crs_that_of_the_dimensions_counts() -> None:
    wgs84, osgb = ({"crs_wkt": CRS.from_epsg(code).to_wkt()} for code in (4326, 27700))
    coords = {"y": 3e5 - 30.0 * np.arange(4), "x": 4e5 + 30.0 * np.arange(5)}
    for mapping in ("wgs84: lat lon osgb: x y", "osgb: x y wgs84: lat lon"):
        ds = xr.Dataset({"a": (("y", "x"), np.zeros((4, 5)), {"grid_mapping": mapping})}, coords)
        ds = ds.assign_coords(wgs84=((), 0, wgs84), osgb=((), 0, osgb))
        assert "27700" in (Grid.from_xarray(ds).crs or "")


@pytest.mark.parametrize(
    "attrs",
    [
        {"proj4": "+proj=utm +zone=32 +datum=WGS84"},
        {"epsg_code": "EPSG:32632"},
        {"spatial_epsg": 32632},
        {"srid": "urn:ogc:def:crs:EPSG::32632"},
        {"esri_pe_string": CRS.from_epsg(32632).to_wkt("WKT1_ESRI")},
        {"inverse_flattening": 298.257, "wkt": CRS.from_epsg(32632).to_wkt()},
        {"EPSG": 32632},
        {"grid_mapping_name": "Unknown projected", "epsg": 0, "EPSG_code": "EPSG:32632"},
    ],
)
def test_a_crs_in_other_attributes_of_the_grid_mapping(attrs: dict[str, object]) -> None:
    coords = {"y": 5.2e6 - 30.0 * np.arange(4), "x": 5e5 + 30.0 * np.arange(5)}
    ds = xr.Dataset({"a": (("y", "x"), np.zeros((4, 5)), {"grid_mapping": "crs"})}, coords)
    grid = Grid.from_xarray(ds.assign_coords(crs=((), 0, attrs)))
    assert CRS.from_wkt(grid.crs or "").to_epsg() == 32632
    nothing = Grid.from_xarray(ds.assign_coords(crs=((), 0, {"proj": "unknown"})))
    assert nothing.crs is None


@pytest.mark.parametrize("form", ["proj:code", "proj:wkt2", "proj:projjson", "_CRS"])
@pytest.mark.parametrize("kind", ["array", "dataset", "group"])
def test_crs_of_zarr_conventions_becomes_a_grid_mapping(form: str, kind: str) -> None:
    crs = CRS.from_epsg(32633)
    texts = {"proj:code": "EPSG:32633", "proj:wkt2": crs.to_wkt(), "proj:projjson": crs.to_json_dict()}
    value = texts.get(form, {"url": "http://www.opengis.net/def/crs/EPSG/0/32633", "wkt": crs.to_wkt()})  # of GDAL
    names = [{"name": "proj:"}, {"name": "spatial:"}, {"name": "multiscales"}]
    attrs = {"units": "m", form: value, "spatial:shape": [3, 4], "zarr_conventions": names}
    given: xr.DataArray | xr.Dataset = xr.DataArray(np.ones((3, 4)), dims=("y", "x"), name="a", attrs=attrs)
    if kind != "array":
        given = xr.Dataset({"a": given})
    if kind == "group":
        given.attrs, given["a"].attrs = attrs, {}
    found = with_cf_crs(given)
    assert found.rio.crs.to_epsg() == 32633
    holder = found["a"] if kind == "dataset" else found
    assert holder.attrs == {"units": "m", "zarr_conventions": [{"name": "multiscales"}]}
    assert "spatial_ref" not in given.coords
    assert form in (given["a"] if kind == "dataset" else given).attrs


def test_a_grid_mapping_stays_beside_attributes_of_zarr_conventions() -> None:
    da = xr.DataArray(np.ones((3, 4)), dims=("y", "x"), attrs={"proj:code": "EPSG:4326"}).rio.write_crs("EPSG:32633")
    assert with_cf_crs(da) is da


def test_latitudes_of_all_cells_may_have_the_name_of_a_dimension() -> None:
    lat, lon = np.meshgrid(60.0 - 0.1 * np.arange(4), 10 + 0.2 * np.arange(6), indexing="ij")
    stored = xr.Dataset({"a": (("lat", "lon"), lat + lon)})
    ds = stored.assign_coords(lat=(("lat", "lon"), lat + 0.01 * lon), lon=(("lat", "lon"), lon + 0.01 * lat))
    grid = Grid.from_xarray(ds)
    assert grid.dims == ("lat", "lon")
    assert grid.placed == (False, False)
    assert not grid.regular
    surface = surface_of(ds, grid)
    assert surface is not None
    np.testing.assert_array_equal(surface.y, ds.lat.values)
    np.testing.assert_array_equal(surface.x, ds.lon.values)
    with pytest.raises(InputError, match=r"the dimension 'lat' has no coordinate"):
        select_box(ds, (10, 59, 11, 60))
