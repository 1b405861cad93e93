"""The commands and the code of the guides, of the README and of the first fill run as they are written."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from click.testing import CliRunner
from rasterio.transform import from_origin

import geonp
from geonp.cli.app import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ["index.md", "first-fill.md", *sorted(f"guide/{path.name}" for path in (DOCS / "guide").glob("*.md"))]
ELSEWHERE = {"guide/index.md", "guide/clouds.md", "guide/measurements.md", "guide/swaths.md"}
"""A page without commands, one with a test of its own, and two whose grids take a minute."""
SIDE = 16
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def gap(values: np.ndarray, fill: float = np.nan) -> np.ndarray:
    values = values.copy()
    values[..., 5:8, 6:10] = fill
    return values


def field() -> np.ndarray:
    y, x = np.mgrid[:SIDE, : SIDE + 2]
    return (300 + 40 * np.sin(y / 4) + 10 * np.cos(x / 3)).astype(np.float32)


def write_tif(name: str, values: np.ndarray, nodata: float, step: float = 30) -> None:
    profile = {"crs": "EPSG:32633", "transform": from_origin(5e5, 5e6, step, step), "nodata": nodata}
    with rasterio.open(name, "w", "GTiff", *values.shape[::-1], 1, dtype=values.dtype, **profile) as file:
        file.write(values, 1)


def write_nc(name: str, dims: tuple[str, ...] = ("lat", "lon"), **variables: tuple[np.ndarray, dict[str, Any]]) -> None:
    coords: dict[str, Any] = {"lat": np.linspace(46, 42, SIDE), "lon": np.linspace(-8, -3.5, SIDE + 2)}
    if "time" in dims:
        coords["time"] = np.datetime64("2020-07-01", "ns") + np.arange(12) * np.timedelta64(1, "D")
    ds = xr.Dataset({key: (dims, values, attrs) for key, (values, attrs) in variables.items()}, coords)
    ds.to_netcdf(name, engine="netcdf4")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> Path:
    """The files that the pages name, small."""
    pyogrio, shapely = pytest.importorskip("pyogrio"), pytest.importorskip("shapely")
    monkeypatch.chdir(tmp_path)
    high, kelvin = gap(field(), -9999), {"units": "K"}
    for name in ("dem.tif", "input.tif"):
        write_tif(name, high, -9999)
    write_tif("srtm.tif", field() + 1, -9999)
    write_tif("grid.tif", field(), -9999, step=20)
    write_tif("nlcd.tif", gap((field() // 15).astype(np.uint8), 0), 0)
    for name, variable in (("sst.nc", "sst"), ("input.nc", "sst")):
        write_nc(name, **{variable: (gap(field()), kelvin)})
    write_nc("t2m.nc", t2m=(gap(field()), kelvin), elevation=(field(), {"units": "m"}))
    write_nc("oisst.nc", sst=(gap(field()), kelvin), err=(gap(np.full_like(field(), 0.2)), kelvin))
    write_nc("rain.nc", rain=(gap(np.maximum(field() - 300, 0)), {"units": "mm"}))
    write_nc("lai.nc", lai=(field() / 100, {}))
    write_nc("wind.nc", direction=(gap(field() % 360), {"units": "degree"}))
    flags = {"flag_values": np.arange(4, dtype=np.int8), "flag_meanings": "a b c d", "_FillValue": np.int8(-1)}
    write_nc("quality.nc", quality=(gap((field() // 30 % 4).astype(np.int8), -1), flags))
    dates = gap(np.stack([field() / 400 + 0.01 * k for k in range(12)]))
    write_nc("ndvi.nc", ("time", "lat", "lon"), ndvi=(dates, {}))
    rng = np.random.default_rng(0)
    places = pd.DataFrame(rng.uniform((-6, 43), (-5, 44), (20, 2)), columns=["lon", "lat"])
    places.assign(temp_c=10 + places["lat"] / 10).to_csv("stations.csv", index=False)
    wkb = shapely.to_wkb([shapely.box(5e5, 5e6 - 300, 5e5 + 300, 5e6)])
    options = {"geometry_type": "Polygon", "crs": "EPSG:32633"}
    pyogrio.raw.write("basins.gpkg", wkb, field_data=[np.array(["a"])], fields=["name"], **options)
    for suffix in (".safetensors", ".json"):
        shutil.copyfile(Path(model).with_suffix(suffix), f"my{suffix}")
    return tmp_path


def names_of(page: str) -> dict[str, Any]:
    """What the code of a page takes for granted."""
    if page == "guide/files.md":
        icechunk = pytest.importorskip("icechunk")
        return {"repository": icechunk.Repository.create(icechunk.in_memory_storage())}
    given: dict[str, Any] = {"xr": xr, "geonp": geonp}
    if page == "guide/classes.md":
        pd.read_csv("stations.csv").assign(sigma=0.1).to_csv("stations.csv", index=False)
        given["ds"] = xr.open_dataset("wind.nc", engine="netcdf4")
    if page == "guide/covariates.md":
        dem = geonp.open_raster("lai.nc").rename(lai="dem").rio.write_crs("EPSG:4326")
        geonp.write_raster(dem, "dem.tif", overwrite=True)
        given |= {"stations": pd.read_csv("stations.csv").assign(elevation=500.0 + np.arange(20)), "grid": dem}
    return given


def lines_of(blocks: list[tuple[str, str]]) -> list[list[str]]:
    return [shlex.split(line, comments=True) for language, body in blocks if not language for line in body.splitlines()]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
@pytest.mark.filterwarnings("ignore")
def test_the_commands_and_the_code_run(page: str, folder: Path) -> None:
    blocks = FENCE.findall((DOCS / page).read_text(encoding="utf-8"))
    blocks = [(language, body) for language, body in blocks if "toctree" not in body and language != "grid"]
    namespace = names_of(page)
    for language, body in blocks:
        if language == "python":
            code = "\n".join(line for line in body.splitlines() if ".adapt(" not in line)
            exec(compile(code, page, "exec"), namespace)
    commands = [words for words in lines_of(blocks) if words]
    assert commands or namespace
    for _, *words in commands:
        if words[0] == "adapt":  # takes minutes, here and in Python, and has tests of its own
            continue
        words += ["--overwrite"] if words[0] in {"aggregate", "fill", "grid", "plot"} else []
        words += ["--baseline", "nearest"] if words[0] == "evaluate" and "--across" not in words else []
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, (words, done.stderr)
