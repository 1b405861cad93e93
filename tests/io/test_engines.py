"""GRIB, HDF-EOS5, references of kerchunk and Icechunk repositories are opened like other rasters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.io.engines import engine_of
from geonp.io.tables import read_points

VALUES = 280 + np.random.default_rng(0).standard_normal((12, 24)).astype(np.float32)
VALUES[2, 3:12] = np.nan


@pytest.fixture
def netcdf(tmp_path: Path) -> Path:
    """A file with chunks and a packed variable."""
    coords = {"lat": 60.0 - np.arange(12), "lon": np.arange(24.0)}
    ds = xr.Dataset({"t2m": (("lat", "lon"), VALUES, {"units": "K"})}, coords)
    packed = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -9999, "chunksizes": (6, 12)}
    ds.to_netcdf(tmp_path / "a.nc", engine="netcdf4", encoding={"t2m": packed})
    return tmp_path / "a.nc"


def write_grib(path: Path, *fields: tuple[float, dict[str, object]]) -> None:
    """Write fields, VALUES with something added, with keys of GRIB."""
    eccodes = pytest.importorskip("eccodes")
    pytest.importorskip("cfgrib")
    grid = {"latitudeOfFirst": 60, "latitudeOfLast": 49, "longitudeOfFirst": 0, "longitudeOfLast": 23}
    places = {f"{key}GridPointInDegrees": value for key, value in grid.items()}
    steps = {"iDirectionIncrementInDegrees": 1, "jDirectionIncrementInDegrees": 1}
    gaps = {"bitmapPresent": 1, "missingValue": 9999}
    with path.open("wb") as file:
        for added, keys in fields:
            message = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            for key, value in {"Ni": 24, "Nj": 12, **places, **steps, **gaps, **keys}.items():
                eccodes.codes_set(message, key, value)
            eccodes.codes_set_values(message, np.nan_to_num(VALUES + added, nan=9999).ravel().astype(float))
            eccodes.codes_write(message, file)
            eccodes.codes_release(message)


def test_grib_is_read_by_cfgrib(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_grib(tmp_path / "a.grib2", *((step, {"shortName": "2t", "step": step}) for step in (0, 6)))
    ds = geonp.open_raster(tmp_path / "a.grib2")
    assert not caplog.records
    assert ds.t2m.dims == ("step", "latitude", "longitude")
    np.testing.assert_allclose(ds.t2m, [VALUES, VALUES + 6], atol=0.01)
    assert ds.latitude.values[[0, -1]].tolist() == [60, 49]
    (tmp_path / "b.grib2").write_bytes((tmp_path / "a.grib2").read_bytes()[:-40])
    with pytest.raises(InputError, match=r"b.grib2' is damaged: cfgrib reports: .*End of .* Copy or download"):
        geonp.open_raster(tmp_path / "b.grib2")


def test_kinds_of_levels_in_grib_are_groups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upper = {"typeOfLevel": "isobaricInhPa", "shortName": "t"}
    write_grib(
        tmp_path / "a.grib2",
        (1, {**upper, "level": 500}),
        (2, {**upper, "level": 850}),
        (3, {"typeOfLevel": "surface", "shortName": "t"}),
        (4, {"shortName": "2t"}),
        (5, {"shortName": "10u"}),
    )
    listed = r"'isobaricInhPa' \(t\); 'surface' \(t\); 'heightAboveGround' \(t2m\); 'heightAboveGround/u10' \(u10\)"
    with pytest.raises(InputError, match=rf"in several groups: got {listed}, expected one\. Name a group"):
        geonp.open_raster(tmp_path / "a.grib2")
    ds = geonp.open_raster(tmp_path / "a.grib2", group="isobaricInhPa")
    np.testing.assert_allclose(ds.t.sel(isobaricInhPa=[500, 850]), [VALUES + 1, VALUES + 2], atol=0.01)
    surface = geonp.open_raster(tmp_path / "a.grib2", variables=["surface/t"])
    np.testing.assert_allclose(surface.t, VALUES + 3, atol=0.01)
    with pytest.warns(UserWarning, match=r"Left out of .*: 'heightAboveGround/u10', whose .* \(--group heightAbove"):
        near = geonp.open_raster(tmp_path / "a.grib2", group="heightAboveGround")
    assert list(near.data_vars) == ["t2m"]
    np.testing.assert_allclose(near.t2m, VALUES + 4, atol=0.01)
    for chosen in ({"variables": ["u10"]}, {"group": "heightAboveGround/u10"}):
        wind = geonp.open_raster(tmp_path / "a.grib2", **chosen)  # type: ignore[arg-type]
        np.testing.assert_allclose(wind.u10, VALUES + 5, atol=0.01)
        assert wind.heightAboveGround == 10
    assert not caplog.records


def fields_of_hdfeos(path: Path, kind: str, structure: str, fields: dict[str, dict[str, np.ndarray]]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for group, arrays in fields.items():
            for name, values in arrays.items():
                file[f"HDFEOS/{kind}S/A/{group} Fields/{name}"] = values
        field = file[f"HDFEOS/{kind}S/A/Data Fields/NO2"]
        field.attrs.update(_FillValue=np.float32(-9999), ScaleFactor=np.float64(2), Units=np.bytes_("K"))
        file["HDFEOS INFORMATION/StructMetadata.0"] = np.bytes_(
            f'GROUP={kind.title()}Structure\nGROUP={kind}_1\n{kind.title()}Name="A"\n{structure}'
            f"END_GROUP={kind}_1\nEND_GROUP={kind.title()}Structure\nEND\n"
        )


def test_swaths_of_hdfeos_have_places(tmp_path: Path) -> None:
    path, stored = tmp_path / "a.he5", np.nan_to_num(VALUES, nan=-9999)
    lat, lon = np.meshgrid(60.0 - np.arange(12), np.arange(24.0), indexing="ij")
    listed = "".join(
        f'{kind}FieldName="{name}"\nDimList=("nTimes","nXtrack")\n'
        for kind, name in (("Geo", "Latitude"), ("Geo", "Longitude"), ("Data", "NO2"))
    )
    places = {"Latitude": lat, "Longitude": lon, "Angle": np.zeros(12)}
    fields_of_hdfeos(path, "SWATH", listed, {"Data": {"NO2": stored}, "Geolocation": places})
    for name in (str(path), f"HDF5:{path}://HDFEOS/SWATHS/A/Data_Fields/NO2"):
        ds = geonp.open_raster(name)
        np.testing.assert_array_equal(ds.NO2, 2 * VALUES)
        np.testing.assert_array_equal(ds.NO2.Latitude, lat)
        assert (ds.NO2.dims, ds.NO2.units) == (("nTimes", "nXtrack"), "K")
    cells = read_points(path)
    assert isinstance(cells, xr.Dataset)
    xr.testing.assert_equal(cells.NO2.variable, ds.NO2.variable.load())
    np.testing.assert_array_equal(cells.Longitude, lon)


def test_grids_of_hdfeos_have_places(tmp_path: Path) -> None:
    corners = "UpperLeftPointMtrs=(0.0,60000000.0)\nLowerRightMtrs=(24000000.0,48000000.0)\n"
    grid = "XDim=24\nYDim=12\nProjection=HE5_GCTP_GEO\nSphereCode=12\nGridOrigin=HE5_HDFE_GD_UL\n"
    field = (
        'GROUP=DataField\nOBJECT=DataField_1\nDataFieldName="NO2"\nDimList=("YDim","XDim")\nEND_OBJECT=DataField_1\n'
    )
    structure = f"{grid}{corners}{field}END_GROUP=DataField\n"
    path = tmp_path / "a.he5"
    fields_of_hdfeos(path, "GRID", structure, {"Data": {"NO2": np.nan_to_num(VALUES, nan=-9999)}})
    for options in ({}, {"variables": ["NO2"]}, {"group": "HDFEOS/GRIDS/A/Data Fields"}):
        ds = geonp.open_raster(path, **options)
        assert (ds.y.values[0], ds.x.values[0], ds.NO2.units) == (59.5, 0.5, "K")
        np.testing.assert_array_equal(np.isnan(ds.NO2), np.isnan(VALUES))


def test_references_of_kerchunk_are_read(netcdf: Path) -> None:
    hdf = pytest.importorskip("kerchunk.hdf")
    references = netcdf.with_suffix(".json")
    references.write_text(json.dumps(hdf.SingleHdf5ToZarr(str(netcdf)).translate()))
    found = geonp.open_raster(references)
    xr.testing.assert_equal(found.t2m.compute(), geonp.open_raster(netcdf).t2m.compute())


def test_a_session_of_icechunk_is_filled_and_committed(netcdf: Path, tmp_path: Path, model: str) -> None:
    icechunk = pytest.importorskip("icechunk")
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    repository = icechunk.Repository.create(storage)
    ds = geonp.open_raster(netcdf)
    with pytest.raises(InputError, match="filled and committed as a whole: got resume, expected none of unit"):
        geonp.fill_store(ds, repository.writable_session("main"), resume=True, model=model)
    report = geonp.fill_store(ds, repository.writable_session("main"), chunks=8, model=model)
    assert report.variables["t2m"]["filled"] == 9
    stored, expected = geonp.open_raster(tmp_path / "repository"), ds.geonp.infill(model=model)
    np.testing.assert_allclose(stored.t2m, expected.t2m, atol=0.006)  # half a step of the packed values
    np.testing.assert_allclose(stored.t2m_standard_error, expected.t2m_standard_error, rtol=1e-4)
    (latest, _) = repository.ancestry(branch="main")
    assert "geonp infill: t2m filled" in latest.message


@pytest.mark.parametrize("kind", ["kerchunk", "icechunk"])
def test_values_that_have_vanished_are_an_error_and_no_gap(netcdf: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip(kind)
    path = netcdf.with_suffix(".json")
    if kind == "kerchunk":
        hdf = pytest.importorskip("kerchunk.hdf")
        path.write_text(json.dumps(hdf.SingleHdf5ToZarr(str(netcdf), inline_threshold=0).translate()))
        ds = geonp.open_raster(path)
        netcdf.unlink()
    else:
        import icechunk

        path = tmp_path / "repository"
        session = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path))).writable_session("main")
        values = np.random.default_rng(0).normal(size=(200, 200))  # chunks that are no part of the manifest
        xr.Dataset({"a": (("y", "x"), values)}).to_zarr(session.store, consolidated=False)
        session.commit("a")
        ds = geonp.open_raster(path)
        shutil.rmtree(path / "chunks")
    with pytest.raises(InputError, match="A part of the input cannot be read: got no"):
        ds.compute()


def test_repositories_of_icechunk_2_keep_their_branches_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    assert engine_of(tmp_path) is None
    (tmp_path / "repo").touch()
    assert engine_of(tmp_path) == "icechunk"
