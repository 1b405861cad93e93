"""GRIB, references of kerchunk and Icechunk repositories are opened like other rasters."""

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


def test_grib_is_read_by_cfgrib(tmp_path: Path) -> None:
    eccodes = pytest.importorskip("eccodes")
    pytest.importorskip("cfgrib")
    grid = {"latitudeOfFirst": 60, "latitudeOfLast": 49, "longitudeOfFirst": 0, "longitudeOfLast": 23}
    with (tmp_path / "a.grib2").open("wb") as file:
        for step in (0, 6):
            message = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            places = {f"{key}GridPointInDegrees": value for key, value in grid.items()}
            steps = {"iDirectionIncrementInDegrees": 1, "jDirectionIncrementInDegrees": 1, "step": step}
            gaps = {"bitmapPresent": 1, "missingValue": 9999}
            for key, value in {"Ni": 24, "Nj": 12, "shortName": "2t", **places, **steps, **gaps}.items():
                eccodes.codes_set(message, key, value)
            eccodes.codes_set_values(message, np.nan_to_num(VALUES + step, nan=9999).ravel().astype(float))
            eccodes.codes_write(message, file)
            eccodes.codes_release(message)
    ds = geonp.open_raster(tmp_path / "a.grib2")
    assert ds.t2m.dims == ("step", "latitude", "longitude")
    np.testing.assert_allclose(ds.t2m, [VALUES, VALUES + 6], atol=0.01)
    assert ds.latitude.values[[0, -1]].tolist() == [60, 49]


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
    with pytest.raises(InputError, match="filled in one go: got resume, expected none"):
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
