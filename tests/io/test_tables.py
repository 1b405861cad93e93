"""Files of measurements: each is read as the same table."""

from __future__ import annotations

import contextlib
import decimal
from pathlib import Path
from typing import Any

import geopandas
import netCDF4
import numpy as np
import pandas as pd
import pyogrio
import pytest
import shapely
import xarray as xr

from geonp.errors import InputError
from geonp.io.doubtful_rows import warn_of_doubtful_rows
from geonp.io.measurements import read_table
from geonp.io.tables import is_table, read_points
from geonp.scattered.selection import selected

FRAME = pd.DataFrame(
    {"station_id": [7, 3, 9], "lon": [9.5, 10.25, 11.0], "lat": [50.0, 51.5, 52.25], "temp": [1.5, -2.0, 0.25]}
)


def points(crs: Any = "EPSG:4326") -> Any:
    places = geopandas.points_from_xy(FRAME["lon"], FRAME["lat"], crs="EPSG:4326")
    return geopandas.GeoDataFrame(FRAME[["station_id", "temp"]], geometry=places).to_crs(crs)


@pytest.mark.parametrize(
    "ending", ["csv", "xyz", "parquet", "geoparquet", "native.geoparquet", "gpkg", "bare.gpkg", "geojson", "shp", "nc"]
)
def test_files_hold_the_same_table(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"a.{ending}"
    if ending in ("csv", "xyz"):
        FRAME.to_csv(file, index=False, sep="," if ending == "csv" else " ")
    elif ending == "parquet":
        FRAME.to_parquet(file)
    elif ending == "geoparquet":
        points().to_parquet(file)
    elif ending == "native.geoparquet":
        points().to_parquet(file, geometry_encoding="geoarrow")
    elif ending == "bare.gpkg":
        pyogrio.write_dataframe(FRAME, file)
    elif ending == "nc":
        FRAME.to_xarray().to_netcdf(file, engine="netcdf4")
    else:
        points().to_file(file)
    assert is_table(file)
    table = read_table(read_points(file), None, None, None)
    assert table.named_degrees
    np.testing.assert_allclose(table.xy, FRAME[["lon", "lat"]])
    np.testing.assert_allclose(table.values["temp"], FRAME["temp"])


@pytest.mark.parametrize("name", ["a.nc", "a.zarr"])
def test_measurements_that_a_file_says_are_missing_are_not_used(tmp_path: Path, name: str) -> None:
    lon, lat = np.array([5.0, 6, 7, 8, 9]), np.array([45.0, 46, 47, 48, netCDF4.default_fillvals["f8"]])
    ds = xr.Dataset(
        {
            "lon": ("obs", lon),
            "lat": ("obs", lat),
            "never": ("obs", np.array([1, 2, netCDF4.default_fillvals["i2"], 4, 5], "i2")),
            "text": ("obs", np.array([1, -99, 3, 4, 5], "i2"), {"missing_value": "-99"}),
            "valid": ("obs", np.array([500, 2, 3, 4, 5], "f4"), {"valid_range": np.array([0, 100], "f4")}),
        }
    )
    encoding = {key: {"_FillValue": None} for key in ds.variables}
    if name == "a.nc":
        ds.to_netcdf(tmp_path / name, engine="netcdf4", encoding=encoding)
    else:
        ds = ds.assign(never=ds["never"].assign_attrs(_FillValue=np.int16(netCDF4.default_fillvals["i2"])))
        ds.to_zarr(tmp_path / name, zarr_format=3, consolidated=False)
    table = read_table(read_points(tmp_path / name), ["never", "text", "valid"], None, None)
    usable = {key: np.flatnonzero(table.usable(key)).tolist() for key in table.values}
    assert usable == {"never": [0, 1, 3], "text": [0, 2, 3], "valid": [1, 2, 3]}


def test_crs_of_geodataframes_and_files_is_taken(tmp_path: Path) -> None:
    projected = points("EPSG:32632")
    projected.assign(easting=1.0).to_parquet(tmp_path / "a.parquet")
    for table in (
        read_table(projected, "temp", None, None),
        read_table(read_points(tmp_path / "a.parquet"), "temp", None, None),
    ):
        assert (table.x, table.y) == ("x", "y")
        assert table.crs.to_epsg() == 32632
        np.testing.assert_allclose(table.xy[:, 0], projected.geometry.x)
    with pytest.raises(InputError, match=r"the table must hold points, got Polygon; replace them.*centroids"):
        read_table(projected.set_geometry(projected.buffer(1.0)), "temp", None, None)
    projected.set_geometry(projected.buffer(1.0)).to_file(tmp_path / "b.gpkg")
    with pytest.raises(InputError, match="must hold points, got Polygon"):
        read_points(tmp_path / "b.gpkg")


def test_empty_points_and_decimals(tmp_path: Path) -> None:
    exact = points().assign(temp=[decimal.Decimal(f"{value:.2f}") for value in FRAME["temp"]])
    exact.loc[1, "geometry"] = shapely.Point()
    exact.loc[2, "geometry"] = None
    exact.to_parquet(tmp_path / "a.parquet")
    table = read_table(read_points(tmp_path / "a.parquet"), None, None, None)
    assert np.flatnonzero(np.isnan(table.xy).any(1)).tolist() == [1, 2]
    np.testing.assert_allclose(table.values["temp"], FRAME["temp"], atol=0.006)


def test_points_in_multipoints_with_a_z_and_without_a_crs(tmp_path: Path) -> None:
    plane = points("EPSG:32632").set_crs(None, allow_override=True)
    xy = np.stack([plane.geometry.x, plane.geometry.y], 1)
    frame = plane.set_geometry([shapely.MultiPoint([[*place, z]]) for z, place in enumerate(xy)])
    frame.to_parquet(tmp_path / "a.parquet")
    for found in (frame, read_points(tmp_path / "a.parquet")):
        table = read_table(found, "temp", None, None)
        assert (table.x, table.y, table.crs) == ("x", "y", None)
        np.testing.assert_allclose(table.xy, xy)
        assert table.others["z"].tolist() == [0, 1, 2]


def test_points_are_read_from_well_known_text(tmp_path: Path) -> None:
    places = points()
    places.to_csv(tmp_path / "a.csv", index=False)  # GeoDataFrames are written so
    table = read_table(read_points(tmp_path / "a.csv"), "temp", None, None)
    np.testing.assert_allclose(table.xy, FRAME[["lon", "lat"]])
    assert (table.x, table.y, table.crs) == ("lon", "lat", None)

    text = [f"SRID=32632;Point Z ({500_000 + 10 * i} {5_200_000 - i} {i})" for i in range(2)]
    frame = pd.DataFrame({"temp": [1.0, 2.0, 3.0], "geom": [*text, None]})
    table = read_table(frame, "temp", None, None)
    np.testing.assert_array_equal(table.xy, [[500_000, 5_200_000], [500_010, 5_199_999], [np.nan, np.nan]])
    assert table.crs.to_epsg() == 32632
    unknown = frame.assign(geom=frame["geom"].str.replace("32632", "0"))
    assert read_table(unknown, "temp", None, None).crs is None
    # columns of coordinates say more
    table = read_table(frame.assign(lon=7.0, lat=[50.0, 51.0, 52.0]), "temp", None, None)
    np.testing.assert_array_equal(table.xy[:, 1], [50.0, 51.0, 52.0])
    for other, message in (
        ("SRID=4326;POINT (1 2)", "points in several CRS: got EPSG:32632, EPSG:4326, expected one"),
        ("POINT (1 a)", "must hold points as well-known text, such as"),
        ("LINESTRING (0 0, 1 1)", "column 'geom' must hold points, got LineString"),
    ):
        with pytest.raises(InputError, match=message):
            read_table(frame.assign(geom=[*text, other]), "temp", None, None)
    with pytest.raises(InputError, match=r"must hold points as well-known text.* crs not found: EPSG:999999"):
        read_table(frame.assign(geom=frame["geom"].str.replace("32632", "999999")), "temp", None, None)


@pytest.mark.parametrize("name", [None, "id"])
def test_an_index_holds_columns_too(name: str | None, tmp_path: Path) -> None:
    frame = FRAME.set_index(["lon", "lat"]) if name is None else FRAME.set_index(pd.Index([0.5, 1.5, 2.5], name=name))
    frame.astype(object).to_parquet(tmp_path / "a.parquet")
    for found in (frame.astype(object), read_points(tmp_path / "a.parquet")):
        table = read_table(found, None, None, None)
        np.testing.assert_allclose(np.c_[table.xy, table.values["temp"]], FRAME[["lon", "lat", "temp"]])


def test_flags_that_are_characters_of_a_file_select_rows(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:  # as Argo has them
        file.createDimension("N_PROF", 3)
        for name in ("lon", "lat", "temp"):
            file.createVariable(name, "f8", ("N_PROF",))[:] = FRAME[name].to_numpy()
        file.createVariable("temp_qc", "S1", ("N_PROF",), fill_value=b" ")[:] = np.array([b"1", b"4", b" "])
    frame = FRAME.assign(temp_qc=[b"1", b"4", None])
    frame.to_parquet(tmp_path / "a.parquet")
    for name in ("a.nc", "a.parquet"):
        found = read_points(tmp_path / name)
        for condition, rows in (("temp_qc!=4", [0, 2]), ("temp_qc=1,4", [0, 1])):
            table = read_table(selected(found, [condition]), "temp", None, None)
            assert table.values["temp"].tolist() == FRAME["temp"][rows].tolist()
    classes = read_table(frame, "temp", None, None, ["temp_qc"]).covariates["temp_qc"]
    assert classes.dropna().tolist() == ["1", "4"]


def test_packed_coordinates_are_refused() -> None:
    packed = xr.Dataset({name: ("row", FRAME[name].to_numpy()) for name in FRAME})
    packed["lat"] = ("row", [5000, 5150, 5225], {"scale_factor": 0.01})
    with pytest.raises(
        InputError, match=r"column 'lat' is packed .*, and holds no coordinates: decode .* xr.decode_cf"
    ):
        read_table(packed, "temp", None, None)
    assert read_table(xr.decode_cf(packed), "temp", None, None).xy[:, 1].tolist() == pytest.approx([50, 51.5, 52.25])


@pytest.mark.parametrize("dataset", [False, True])
def test_columns_of_another_byte_order_are_those_of_the_machine(dataset: bool) -> None:
    turned = FRAME.assign(**{name: FRAME[name].to_numpy().astype(">f8") for name in FRAME})
    given = xr.Dataset({name: ("row", turned[name].to_numpy()) for name in turned}) if dataset else turned
    table = read_table(given, "temp", None, None, ["station_id"])
    np.testing.assert_array_equal(np.c_[table.xy, table.values["temp"]], FRAME[["lon", "lat", "temp"]])
    assert table.covariates["station_id"].duplicated().tolist() == [False] * 3  # pandas refused to compare them
    assert all(column.dtype.isnative for column in table.values.values())


@pytest.mark.parametrize(
    ("texts", "held"),
    [
        (["<0.5", "1.2", "1.3J"], "'<0.5'"),
        (["ND", "ND", "2"], "'ND'"),
        (["1.0", "2", "3"], "'1.0'"),
        (["1,234.5", "2,000", "NA"], "'1,234.5'"),
    ],
)
def test_numbers_written_as_texts_are_not_passed_over(texts: list[str], held: str) -> None:
    table = FRAME.assign(soil="loam", no3=texts)
    with pytest.raises(InputError, match=rf"numeric columns \['temp'\] .*, and 'no3' holds (the str )?{held}"):
        read_table(table, None, None, None)
    with pytest.raises(InputError, match=rf"column 'no3' holds (the str )?{held}"):
        read_table(table, "no3", None, None)
    for name, entries in {"station_no": texts, "soil": ["loam", "clay", "B2"], "day": ["2020-01-01"] * 3}.items():
        assert [*read_table(FRAME.assign(**{name: entries}), None, None, None).values] == ["temp"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": ["degC", "degF", "degC"]}, "the rows differ in 'unit': got degC, degF, .*--where 'unit=degC'"),
        ({"EPSG code": [4326, 4267, 4326]}, "the rows differ in 'EPSG code'"),
        ({"ns": ["N", "S", "n"]}, "column 'ns' is S in 1 rows, whose 'lat' is positive"),
        ({"lon_dir": ["West", "West", "West"]}, "column 'lon_dir' is West in 3 rows, whose 'lon' is positive"),
        ({"lon_dir": ["W", "W", "W"], "lon": [-1.0, -2, -3]}, None),
        ({"wind": ["S", "W", "N"], "unit": "K", "zone": ["a", "b", "c"]}, None),
        (
            {"lon": [9, 9, 10], "lonMin": [5.5, 59.0, 0]},
            r"'lon' holds.*points\['lon'\] \+ points\['lonMin'\] / 60",
        ),
        (
            {"lat": [45, 46, 47], "Lat (minutes)": ["30", "12", "7"]},
            "'Lat .minutes.' is not used, and 'lat' holds",
        ),
        ({"lat": [45.5, 46, 47], "lat_min": [30, 12, 7]}, None),
        ({"lat": [45, 46, 47], "lat_min": [-44, 45, 46], "lon_min": [0, 0, 0]}, None),
    ],
)
def test_columns_that_say_what_numbers_mean(changes: dict[str, Any], said: str | None) -> None:
    table = read_table(FRAME.assign(**changes), "temp", None, None)
    with contextlib.nullcontext() if said is None else pytest.warns(UserWarning, match=said):
        warn_of_doubtful_rows(table)


FLAGS = pd.DataFrame({"lon": [9.0, 10.0, 11.0, 12.0], "lat": 50.0, "temp": [1.0, 2.0, 3.0, np.nan], "qc": [1, 1, 4, 9]})


@pytest.mark.parametrize("name", ["temp_qc", "TEMP_QC", "tempFlag", "quality_level", "Quality code", "flag"])
def test_rows_of_other_quality_are_said(name: str) -> None:
    table = FLAGS.rename(columns={"qc": name})
    said = f"differ in their quality '{name}' .1 in 2, 4 in 1 rows., and all are used.*--where '{name}=1'"
    with pytest.warns(UserWarning, match=said):
        warn_of_doubtful_rows(read_table(table, "temp", None, None))
    # rows were selected by them, or have one
    for chosen in (selected(table, [f"{name}!=9"]), selected(table.to_xarray(), [f"{name}!=9"]), table[:2]):
        warn_of_doubtful_rows(read_table(chosen, "temp", None, None))


def test_flags_that_ancillary_variables_name_are_quality() -> None:
    ds = FLAGS.to_xarray()
    ds["temp"].attrs["ancillary_variables"] = "dq"
    ds = ds.rename(qc="dq")
    warn_of_doubtful_rows(read_table(ds, "temp", None, None))
    ds["dq"].attrs |= {"flag_values": [1, 4, 9], "flag_meanings": "good bad missing"}
    with pytest.warns(UserWarning, match="their quality 'dq'"):
        warn_of_doubtful_rows(read_table(ds, "temp", None, None))


@pytest.mark.parametrize("name", ["salt_qc", "station_flag", "level"])
def test_flags_of_other_columns_are_not_said(name: str) -> None:
    warn_of_doubtful_rows(read_table(FLAGS.rename(columns={"qc": name}), "temp", None, None))


def test_files_that_hold_no_table_of_points_are_refused(tmp_path: Path) -> None:
    areas = points("EPSG:32632").assign(geometry=lambda frame: frame.buffer(1.0))
    areas.to_parquet(tmp_path / "areas.parquet", geometry_encoding="geoarrow")
    for layer in ("north", "south"):
        points().to_file(tmp_path / "two.gpkg", layer=layer)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "a.docx").touch()
    for name, message in {
        "https://example.org/a.csv": "is not a file: got a URL, expected a table on this machine",
        "a.docx": r"is not a table that can be read: got '\.docx', expected \.csv",
        "broken.parquet": "cannot be read as a table",
        "two.gpkg": "has several layers, north, south: expected one",
        "areas.parquet": "must hold points, got polygon; replace them",
    }.items():
        with pytest.raises(InputError, match=message):
            read_points(Path(name) if ":" in name else tmp_path / name)


def test_rasters_are_no_tables(tmp_path: Path) -> None:
    coords = {"lat": [1.0, 2.0], "lon": [3.0, 4.0, 5.0]}
    xr.Dataset({"a": (("lat", "lon"), np.zeros((2, 3)))}, coords).to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    assert not is_table(tmp_path / "a.nc")
    assert not is_table(tmp_path / "a.tif")
    assert not is_table(tmp_path / "missing.nc")


@pytest.mark.parametrize(
    ("x", "y", "degrees"),
    [
        ("Longitude (deg)", "Latitude (deg)", True),
        ("nav_lon", "nav_lat", True),
        ("LON", "LAT", True),
        ("station_longitude", "station_latitude", True),
        ("Easting (m)", "Northing (m)", False),
        ("utm_x", "utm_y", False),
        ("x_coord", "y_coord", False),
    ],
)
def test_names_of_coordinates(x: str, y: str, degrees: bool) -> None:
    table = read_table(FRAME.rename(columns={"lon": x, "lat": y}), None, None, None)
    assert (table.x, table.y, list(table.values)) == (x, y, ["temp"])
    assert table.named_degrees is degrees


def test_coordinates_are_known_by_their_standard_names_and_may_be_in_radians() -> None:
    """As of unstructured grids of ICON."""
    ds = FRAME.rename(columns={"lon": "clon", "lat": "clat"}).to_xarray()
    for name, standard in (("clon", "longitude"), ("clat", "latitude")):
        ds[name].attrs = {"standard_name": standard, "units": "degrees"}
    table = read_table(ds, None, None, None)
    assert (table.x, table.y, table.named_degrees) == ("clon", "clat", True)
    for name in ("clon", "clat"):
        ds[name] = np.radians(ds[name]).assign_attrs({**ds[name].attrs, "units": "radian"})
    np.testing.assert_allclose(read_table(ds, None, None, None).xy, table.xy)
    np.testing.assert_allclose(table.xy, FRAME[["lon", "lat"]])


def test_measurements_in_several_groups_are_named(tmp_path: Path) -> None:
    """As the beams of ICESat-2."""
    beams = {f"gt{beam}/segments": FRAME.drop(columns="station_id").to_xarray() for beam in (1, 2)}
    xr.DataTree.from_dict(beams).to_netcdf(tmp_path / "a.nc")
    with pytest.raises(InputError, match=r"several groups: got 'gt1/segments' \(.*temp.*\); 'gt2/segments' .*group="):
        read_points(tmp_path / "a.nc")
    xr.DataTree.from_dict({"gt1/segments": beams["gt1/segments"]}).to_netcdf(tmp_path / "b.nc")
    table = read_table(read_points(tmp_path / "b.nc"), "temp", None, None)
    np.testing.assert_array_equal(table.xy, FRAME[["lon", "lat"]])


@pytest.mark.parametrize(
    ("stored", "attrs"),
    [
        (np.array([1.5, -77.7, 0.25], "f4"), {"_FillValue": np.float32(-77.7)}),
        (np.array([1.5, 77.0, 0.25]), {"valid_range": [-10.0, 10.0]}),
        (np.array([15, 254, 2], "u1"), {"valid_max": 250}),
        (np.array([15, -32, 2], "i2"), {"missing_value": np.int16(-32), "scale_factor": 0.1}),
    ],
)
def test_invalid_values_of_datasets_are_missing_as_those_of_files(
    stored: Any, attrs: dict[str, Any], tmp_path: Path
) -> None:
    places = {"lon": ("row", [9.0, 10, 11]), "lat": ("row", [50.0, 51, 52])}
    ds = xr.Dataset({"temp": ("row", stored, attrs)}, places)
    encoded = dict(ds["temp"].attrs)
    table = read_table(ds, None, None, None)
    np.testing.assert_array_equal(table.values["temp"], np.where([True, False, True], stored, np.nan))
    assert ds["temp"].attrs == encoded
    ds.to_netcdf(tmp_path / "a.nc")
    with xr.open_dataset(tmp_path / "a.nc") as opened:
        for one in (opened, read_points(tmp_path / "a.nc")):
            assert np.isfinite(read_table(one, "temp", None, None).values["temp"]).tolist() == [True, False, True]
