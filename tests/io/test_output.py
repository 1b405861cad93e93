"""What writing a raster refuses, and what it leaves when a library fails."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import xarray as xr
from rasterio.errors import RasterioError

from geonp.errors import InputError, OutputError
from geonp.io.attributes import storable
from geonp.io.files import open_raster
from geonp.io.output import write_raster


@pytest.fixture
def ds() -> xr.Dataset:
    values = np.arange(24.0).reshape(3, 2, 4)
    return xr.Dataset({"a": (("band", "y", "x"), values)}, {"y": [1.0, 0.0], "x": np.arange(4.0), "band": [1, 2, 3]})


@pytest.mark.parametrize("name", ["out.nc", "out.zarr"])
def test_bands_are_chosen_in_every_format(ds: xr.Dataset, tmp_path: Path, name: str) -> None:
    write_raster(ds, tmp_path / name)
    np.testing.assert_array_equal(open_raster(tmp_path / name, bands=[3, 1])["a"], ds["a"].isel(band=[2, 0]))
    with pytest.raises(InputError, match="No band 0, 4: the raster has bands 1 to 3"):
        open_raster(tmp_path / name, bands=[0, 2, 4])


def test_bytes_become_text() -> None:
    assert storable(xr.Dataset(attrs={"place": "Malmö".encode()})).attrs == {"place": "Malmö"}


@pytest.mark.parametrize(
    ("name", "function", "error", "expected"),
    [
        ("out.nc", "xarray.Dataset.to_netcdf", RuntimeError("NetCDF: HDF error"), OutputError),
        ("out.nc", "xarray.Dataset.to_netcdf", RuntimeError("a bug"), RuntimeError),
        ("out.tif", "rasterio.shutil.copy", RasterioError("Write failed"), OutputError),
        ("out.tif", "geonp.io.output.write_geotiff", RasterioError("Write failed"), OutputError),
        ("out.tif", "geonp.io.output.write_geotiff", RasterioError("Read failed"), InputError),
    ],
)
def test_nothing_is_left_when_a_library_fails(
    ds: xr.Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    function: str,
    error: Exception,
    expected: type[Exception],
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(function, fail)
    with pytest.raises(expected, match=str(error)):
        write_raster(ds, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
