"""The commands and the code of the guide to clouds run as they are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import rasterio
import xarray as xr
from rasterio.transform import from_origin

from ..commands import cli

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "clouds.md").read_text(encoding="utf-8")
SIDE = 24


def write(name: str, bands: dict[str, np.ndarray], step: int = 10, nodata: int | None = None) -> None:
    first = next(iter(bands.values()))
    profile = {
        "nodata": nodata,
        "crs": "EPSG:32633",
        "transform": from_origin(5e5, 5e6, step, step),
        "dtype": first.dtype,
    }
    with rasterio.open(name, "w", "GTiff", *first.shape[::-1], len(bands), **profile) as file:
        file.write(np.stack(list(bands.values())))
        file.descriptions = tuple(bands)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the guide, small."""
    pyogrio, shapely = pytest.importorskip("pyogrio"), pytest.importorskip("shapely")
    monkeypatch.chdir(tmp_path)
    y, x = np.mgrid[:SIDE, :SIDE]
    cloud = np.hypot(y // 2 - 4.5, x // 2 - 5.5) < 2.3  # whole cells of 20 m
    names = ("blue", "green", "red", "nir")
    bands = {
        name: np.where(cloud, 9000, 500 + 200 * n + 5 * y + 3 * x + x * y % 7).astype("u2")
        for n, name in enumerate(names)
    }
    scl = np.where(cloud, 9, 4).astype("u2")
    write("bands.tif", bands)
    write("scene.tif", {**bands, "SCL": scl}, nodata=0)
    write("SCL.tif", {"SCL": scl[::2, ::2].astype("u1")}, step=20)
    coords = {"y": 5e6 - 5 - 10.0 * np.arange(SIDE), "x": 5e5 + 5 + 10.0 * np.arange(SIDE)}
    masks = xr.Dataset({"cloud_mask": (("y", "x"), cloud.astype("i1")), "other": (("y", "x"), scl)}, coords)
    masks.to_netcdf("masks.nc", engine="netcdf4")
    time = np.datetime64("2017-05-01", "ns") + 10 * np.arange(3) * np.timedelta64(1, "D")
    ndvi = np.stack([np.where(np.roll(cloud, 5 * k, 0), 0.0, 0.5 + 0.1 * np.sin(y / 3 + k)) for k in range(3)])
    stack = {"ndvi": ndvi, "cloud_mask": np.stack([np.roll(cloud, 5 * k, 0) for k in range(3)]).astype("i1")}
    ds = xr.Dataset({name: (("time", "y", "x"), values) for name, values in stack.items()}, {"time": time, **coords})
    ds.attrs["crs"] = "EPSG:32633"
    ds.to_netcdf("ndvi.nc", engine="netcdf4")
    wkb = shapely.to_wkb([shapely.box(5e5, 5e6 - 240, 5e5 + 240, 5e6 - 50)])
    pyogrio.raw.write("fields.gpkg", wkb, field_data=[], fields=[], geometry_type="Polygon", crs="EPSG:32633")
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*cells on another grid", "ignore:.*passed? through")
def test_the_commands_and_the_code_run(folder: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    lines = [line for language, body in blocks if not language for line in body.splitlines()]
    assert len(lines) > 6
    for line in lines:
        command, *words = shlex.split(line)
        assert command == "geonp"
        words += ["--overwrite"] if words[0] == "fill" and "--overwrite" not in words else []
        words += ["--baseline", "nearest"] if words[0] == "evaluate" else []
        if words[0] != "adapt":
            cli(*words)
    namespace: dict[str, xr.Dataset] = {}
    exec("\n".join(body for language, body in blocks if language == "python"), namespace)
    filled = namespace["filled"].compute()
    assert int((filled["ndvi_fill_flag"] == 1).sum()) > 30
    assert float(abs(filled["ndvi"]).max()) < 0.5  # nothing of the clouds
