"""The commands and the code of the guides, of the README and of the first fill run as they are written."""

from __future__ import annotations

import re
import shlex
import shutil
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rasterio
import torch
import xarray as xr
from click.testing import CliRunner
from rasterio.transform import from_origin

import geonp
from geonp.cli.app import main

from .commands import cli

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = sorted(f"guide/{path.name}" for path in (DOCS / "guide").glob("*.md"))
PAGES = [
    "../README.md",
    "index.md",
    "install.md",
    "first-fill.md",
    "models.md",
    "recipes.md",
    "scaling.md",
]
PAGES += GUIDES
ELSEWHERE = {"guide/index.md", "guide/clouds.md"}
"""A page without commands, and one with a test of its own."""
NOT_HERE = re.compile(r"era5|europe\.zarr|run/sir|s3:|tcp:|^pip|^make|^python")
"""What takes a network, a cluster, or a model that is trained for hours, or has tests of its own. That targets, scripts
and options exist is checked by `test_readme.py`."""
QUICK = ["training.steps=1", "training.batch_size=2", "training.validation_batches=1"]
COARSEST = 2.5
"""Degrees of the cells of grids, which on the pages take a minute."""
SIDE = 16
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def gap(values: np.ndarray, fill: float = np.nan) -> np.ndarray:
    values = values.copy()
    values[..., 5:8, 6:10] = fill
    return values


def gaps_in_some(dates: np.ndarray) -> np.ndarray:
    """Few of the dates have a gap, since each of them takes a fill."""
    dates[::5] = gap(dates[::5])
    return dates


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
    write_tif("strikes.tif", gap((field() % 7 == 0).astype(np.uint8), 255), 255)
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
    dates = gaps_in_some(np.stack([field() / 400 + 0.01 * k for k in range(12)]))
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


def write_stations() -> None:
    """Stations on two days, three of them without a value on one; and buoys beside a raster of two days."""
    rng = np.random.default_rng(1)
    places = pd.DataFrame(rng.uniform((-6, 43), (-5, 44), (15, 2)), columns=["lon", "lat"])
    days = [places.assign(date=f"2020-07-0{day}", temp_c=9 + day + rng.normal(size=15)) for day in (1, 2)]
    days[1].loc[:2, "temp_c"] = np.nan
    pd.concat(days).to_csv("stations.csv", index=False)
    places[:3].to_csv("places.csv", index=False)
    dates = gaps_in_some(np.stack([field() + day for day in range(12)]))
    write_nc("sst.nc", ("time", "lat", "lon"), sst=(dates, {"units": "K"}))
    places.assign(time="2020-07-01", sst=300.0 + places["lat"]).to_csv("buoys.csv", index=False)


def write_swaths() -> None:
    """Two swaths of two days, with a time of each row."""
    Path("swaths").mkdir()
    for day in range(2):
        row, cell = np.mgrid[:12, :8]
        lon, lat = -47 + 0.2 * cell + 0.1 * row, 39 + 0.2 * row - 0.05 * cell
        places = {"lon": (("row", "cell"), lon), "lat": (("row", "cell"), lat)}
        time = (
            np.datetime64("2017-06-05T03:00", "ns")
            + day * np.timedelta64(1, "D")
            + np.arange(12) * np.timedelta64(1, "s")
        )
        values = (290 + lat - 39 + 0.1 * day).astype(np.float32)
        ds = xr.Dataset({"sst": (("row", "cell"), values, {"units": "K"})}, {**places, "time": ("row", time)})
        ds.to_netcdf(f"swaths/{day}.nc", engine="netcdf4")


def names_of(page: str) -> dict[str, Any]:
    """What the code of a page takes for granted."""
    if page == "guide/files.md":
        icechunk = pytest.importorskip("icechunk")
        return {"repository": icechunk.Repository.create(icechunk.in_memory_storage())}
    given: dict[str, Any] = {"xr": xr, "geonp": geonp}
    if page == "guide/adapt.md":
        y, x = np.mgrid[:48, :56]
        write_tif("input.tif", gap((300 + 40 * np.sin(y / 4) + 10 * np.cos(x / 3)).astype(np.float32), -9999), -9999)
    if page == "scaling.md":
        geonp.open_raster("input.tif").to_zarr("in.zarr")
    if page == "models.md":
        inputs, values = torch.rand(1, 6, 2), torch.rand(1, 6, 1)
        mask = torch.ones(1, 6, dtype=torch.bool)
        given |= {"xc": inputs, "yc": values, "xt": inputs + 1, "yt": values, "context_mask": mask, "mask": mask}
    if page == "guide/swaths.md":
        write_swaths()
    if page == "guide/measurements.md":
        write_stations()
        given["sst"] = geonp.open_raster("sst.nc")["sst"]
        given["buoys"] = pd.read_csv("buoys.csv")
    if page == "guide/classes.md":
        pd.read_csv("stations.csv").assign(sigma=0.1).to_csv("stations.csv", index=False)
        given["ds"] = xr.open_dataset("wind.nc", engine="netcdf4")
        given["strikes"] = geonp.open_raster("strikes.tif")["strikes"]
    if page == "guide/covariates.md":
        dem = geonp.open_raster("lai.nc").rename(lai="dem").rio.write_crs("EPSG:4326")
        geonp.write_raster(dem, "dem.tif", overwrite=True)
        given |= {"stations": pd.read_csv("stations.csv").assign(elevation=500.0 + np.arange(20)), "grid": dem}
    return given


def lines_of(blocks: list[tuple[str, str]]) -> list[list[str]]:
    """The words of the commands, with the names of files that a shell makes of patterns.

    Blocks marked ``sh`` install things, or run in other programs: `test_readme.py` and `test_qgis.py` check these.
    """
    lines = [
        shlex.split(line, comments=True) for language, body in blocks if not language for line in body.splitlines()
    ]
    return [[name for word in words for name in (sorted(glob(word)) or [word])] for words in lines]


def test_shells_get_their_completion() -> None:
    shells = re.findall(r"_GEONP_COMPLETE=(\w+)_source", (DOCS / "install.md").read_text(encoding="utf-8"))
    assert len(shells) == 3
    for shell in shells:
        done = CliRunner().invoke(main, env={"_GEONP_COMPLETE": f"{shell}_source"}, prog_name="geonp")
        assert f"_GEONP_COMPLETE={shell}_complete" in done.stdout
    words = {"COMP_WORDS": "geonp fi", "COMP_CWORD": "1", "_GEONP_COMPLETE": "bash_complete"}
    assert CliRunner().invoke(main, env=words, prog_name="geonp").stdout == "plain,fill\n"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_patches")
def test_the_commands_and_the_code_run(page: str, folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lattice = geonp.lattice
    monkeypatch.setattr(geonp, "lattice", lambda bounds, step, crs: lattice(bounds, max(step, COARSEST), crs))
    blocks = FENCE.findall((DOCS / page).read_text(encoding="utf-8"))
    blocks = [(language, body) for language, body in blocks if "toctree" not in body and language != "grid"]
    namespace = names_of(page)
    adapt = {"model": model, "steps": 1, "closer": False, "overwrite": True}  # minutes otherwise
    for language, body in blocks:
        if language == "python" and not NOT_HERE.search(body):
            code = body.replace(".adapt(", f".adapt(**{adapt}, ")
            exec(compile(code, page, "exec"), namespace)
    commands = [words for words in lines_of(blocks) if words]
    assert commands or namespace
    for command in commands:
        if NOT_HERE.search(" ".join(command)):
            continue
        program, *words = command
        assert program == "geonp"
        words += ["--overwrite"] if words[0] in {"adapt", "aggregate", "fill", "grid", "plot"} else []
        words += ["--model", model, "--steps", "1", "--no-closer"] if words[0] == "adapt" else []
        words = [word for word in words if not word.startswith("training.")] + QUICK if words[0] == "train" else words
        words = ["1" if before == "--workers" else word for before, word in zip(["", *words], words, strict=False)]
        words += ["--baseline", "nearest"] if words[0] == "evaluate" and "--across" not in words else []
        cli(*words)
