"""The command line as users meet it: by its exit codes, its messages and its files."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
import torch
import xarray as xr
from click.testing import CliRunner
from rasterio.transform import from_origin

from geonp.cli import progress
from geonp.cli.app import main
from geonp.cli.show import to_json
from geonp.inference import checkpoint
from geonp.io.files import open_raster
from geonp.training import loop
from geonp.training import recipe as recipes

from ..commands import cli

GEONP = Path(sys.executable).with_name("geonp")


def installed(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command, run by the installed script in a process of its own."""
    done = subprocess.run([GEONP, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def error(*arguments: object) -> str:
    """Message of a command, run in this process, that must fail, print nothing else and write nothing."""
    folder = next(path.parent for path in map(Path, map(str, arguments)) if path.is_absolute())
    before = sorted(folder.rglob("*"))
    done = cli(*arguments, code=1)
    assert done.stdout == ""
    assert sorted(folder.rglob("*")) == before
    return done.stderr


def write_tif(path: Path, values: np.ndarray, nodata: float | None = None, crs: str = "EPSG:32633") -> Path:
    bands = values if values.ndim == 3 else values[None]
    count, height, width = bands.shape
    size = {"count": count, "height": height, "width": width, "dtype": bands.dtype}
    place = {"crs": crs, "transform": from_origin(500_000, 5_200_000, 30, 30)}
    with rasterio.open(path, "w", driver="GTiff", nodata=nodata, **size, **place) as file:
        file.write(bands)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """40 x 50 heights in whole metres with a gap of 48 cells, marked by 0."""
    rows, columns = np.mgrid[:40, :50]
    heights = (1000 + 5 * rows + 3 * columns).astype("int16")
    heights[10:16, 20:28] = 0
    return write_tif(tmp_path / "heights.tif", heights, nodata=0)


def test_help_loads_nothing_slow() -> None:
    text = installed("--help").stdout
    assert [line.split()[0] for line in text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()] == [
        "adapt",
        "aggregate",
        "evaluate",
        "fetch",
        "fill",
        "grid",
        "info",
        "models",
        "plot",
        "recipes",
        "train",
    ]
    code = "import sys, geonp.cli.app; print({'torch', 'dask', 'rasterio', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_version() -> None:
    assert installed("--version").stdout == f"geonp {version('geonp')}\n"


@pytest.mark.parametrize(
    "arguments",
    [("fill",), ("fill", "a.tif"), ("fill", "a.tif", "b.tif", "--nodata", "zero"), ("paint",), ("train", "x")],
)
def test_wrong_usage_exits_2(arguments: tuple[str, ...]) -> None:
    assert "Usage: geonp" in cli(*arguments, code=2).stderr


@pytest.mark.parametrize("name", ["out.zarr", "out.nc"])
def test_fill_writes_values_errors_and_flags(tmp_path: Path, source: Path, model: str, name: str) -> None:
    done = cli("fill", source, tmp_path / name, "--model", model, "--quantile", 0.05, "--tails", "--json")
    assert done.stderr == ""
    summary = json.loads(done.stdout)
    assert summary["cells_filled"] == 48
    counts = {"cells": 2000, "missing": 48, "infinite": 0, "slices": 1, "empty_slices": 0}
    counts |= {"observed": 1952, "filled": 48}
    assert summary["variables"] == {"heights": {**counts, "beyond_limit": 0, "outside_domain": 0, "failed": 0}}
    assert summary["model"] == "tiny"
    assert summary["weights_sha256"] == checkpoint.load_card(model).sha256
    assert summary["seconds"] > 0
    assert 48 / summary["cells_per_second"] == pytest.approx(summary["seconds"], rel=0.01, abs=1e-3)
    assert 50e6 < summary["peak_memory_bytes"] < 4e9
    engine = "zarr" if name.endswith("zarr") else "netcdf4"
    with xr.open_dataset(tmp_path / name, engine=engine) as ds, rasterio.open(source) as file:
        truth = file.read(1, masked=True)
        assert ds["heights"].encoding["dtype"] == np.int16
        assert not ds["heights"].isnull().any()
        np.testing.assert_array_equal(ds["heights"].values[~truth.mask], truth.compressed())
        np.testing.assert_array_equal(ds["heights_fill_flag"].values == 1, truth.mask)
        np.testing.assert_array_equal(ds["heights_standard_error"].values > 0, truth.mask)
        np.testing.assert_array_equal(
            ds["heights_quantile"].sel(quantile=0.05).values < ds["heights"].values, truth.mask
        )
        np.testing.assert_array_equal(ds["heights_tail"].values > 0, truth.mask)
        assert "geonp" in ds.attrs["history"]


@pytest.mark.parametrize("name", ["out.zarr", "out.nc", "out.tif"])
def test_fill_writes_samples(tmp_path: Path, model: str, name: str) -> None:
    heights = np.add.outer(5.0 * np.arange(12), 3.0 * np.arange(14)).astype("float32")
    heights[4:6, 5:8] = np.nan
    path, out = write_tif(tmp_path / "in.tif", heights, nodata=np.nan), tmp_path / name
    cli("fill", path, out, "--model", model, "--samples", 2)
    if name.endswith("tif"):
        with rasterio.open(out) as file:
            drawn = file.read([i for i, text in zip(file.indexes, file.descriptions, strict=True) if "_sample" in text])
    else:
        with xr.open_dataset(out, engine="zarr" if name.endswith("zarr") else "netcdf4") as ds:
            assert ds["sample"].attrs["standard_name"] == "realization"
            drawn = ds["in_sample"].values
    gaps = np.isnan(heights)
    assert drawn.shape == (2, *heights.shape)
    np.testing.assert_array_equal(drawn[:, ~gaps], [heights[~gaps]] * 2)
    assert (drawn[0] != drawn[1])[gaps].all()


def test_fill_writes_geotiff(tmp_path: Path, source: Path, model: str) -> None:
    out = tmp_path / "out.tif"
    done = cli(
        "fill",
        source,
        out,
        "--model",
        model,
        "--max-distance",
        "2",
        "-f",
        "GTiff",
        "--co",
        "COMPRESS=ZSTD",
        "--progress",
    )
    assert done.stdout.startswith("Filled 40 cells, left 8 empty (8 beyond limit) in ")
    with rasterio.open(out) as file:
        assert file.descriptions == ("heights", "heights_standard_error", "heights_fill_flag")
        assert file.compression.name == "zstd"
        assert file.crs == rasterio.CRS.from_epsg(32633)
        values, _, flag = file.read(masked=True)
    assert int(values.mask.sum()) == 8
    assert np.unique(flag, return_counts=True)[1].tolist() == [1952, 40, 8]


def test_selection_mask_and_chunks(tmp_path: Path, model: str) -> None:
    rows, columns = np.mgrid[:30, :30]
    bands = np.stack([rows + columns, rows - columns]).astype("float32")
    bands[:, 10:14, 10:14] = np.nan
    land = np.ones((30, 30), "uint8")
    land[10:12] = 0
    out = tmp_path / "out.zarr"
    done = cli(
        *("fill", write_tif(tmp_path / "two.tif", bands), out, "--model", model, "-b", 2, "--chunks", 16, "--json"),
        *("--mask", write_tif(tmp_path / "land.tif", land), "--bbox", 500_000, 5_199_100, 500_600, 5_200_000),
    )
    counts = json.loads(done.stdout)["variables"]["two"]
    assert counts["cells"] == 30 * 20
    assert (counts["filled"], counts["outside_domain"]) == (8, 8)
    with xr.open_zarr(out) as ds:
        np.testing.assert_array_equal(ds["two"].isel(band=0, y=slice(0, 10)), bands[1, :10, :20])
        assert ds["two"].encoding["chunks"] == (1, 16, 16)


def test_dry_run_writes_nothing(tmp_path: Path, source: Path, model: str) -> None:
    out = tmp_path / "out.zarr"
    plan = json.loads(cli("fill", source, out, "--model", model, "--dry-run", "--json").stdout)
    assert (plan["shape"], plan["variables"]) == ([40, 50], ["heights"])
    assert plan["peak_bytes"] > 0
    lines = cli("fill", source, out, "--model", model, "--dry-run").stdout.splitlines()
    printed = dict(line.split(maxsplit=1) for line in lines)
    assert (printed["variables"], printed["shape"], printed["slices"]) == ("heights", "40 x 50", "1")
    assert printed["peak_bytes"] == f"{plan['peak_bytes']} ({plan['peak_bytes'] / 2**20:,.1f} MiB)"
    assert not out.exists()
    other = cli("fill", source, tmp_path / "out.tif", "--model", model, "--dry-run", "--like", source)
    assert "what --like changes is not in it" in other.stderr


def test_infinities_are_counted_and_reported(tmp_path: Path, model: str) -> None:
    values = np.ones((20, 20), "float32")
    values[3, 4:6] = np.inf
    path = write_tif(tmp_path / "in.tif", values)
    done = cli("fill", path, tmp_path / "out.nc", "--model", model, "--json")
    assert done.stderr == "in: 2 infinite values are treated as missing.\n"
    assert json.loads(done.stdout)["variables"]["in"]["infinite"] == 2
    assert cli("fill", path, tmp_path / "quiet.nc", "--model", model, "--quiet").stderr == ""


def test_empty_slices_are_reported(tmp_path: Path, model: str) -> None:
    values = np.ones((4, 20, 20), "float32")
    values[1] = np.nan
    values[2, 3, 4] = np.nan
    path, out = write_tif(tmp_path / "sst.tif", values), tmp_path / "out.nc"
    done = cli("fill", path, out, "--model", model, "--json")
    assert done.stderr == "sst: 1 of 4 slices has no observed cell and stays empty (see --empty-slices).\n"
    counts = json.loads(done.stdout)["variables"]["sst"]
    assert (counts["slices"], counts["empty_slices"], counts["missing"], counts["filled"]) == (4, 1, 401, 1)
    values[3] = np.nan
    done = cli("fill", write_tif(path, values), out, "--model", model, "--overwrite")
    assert done.stderr == "sst: 2 of 4 slices have no observed cell and stay empty (see --empty-slices).\n"


def test_help_says_which_zarr_gdal_reads() -> None:
    assert "GDAL before 3.11 reads Zarr with zarr_format=2 only" in " ".join(cli("fill", "--help").stdout.split())


def test_a_raster_without_gaps_is_copied_with_a_message(tmp_path: Path, model: str) -> None:
    values = np.arange(400, dtype="float32").reshape(20, 20)
    done = cli("fill", write_tif(tmp_path / "in.tif", values), tmp_path / "out.nc", "--model", model)
    assert done.stderr == "in has no gaps: it is copied unchanged.\n"
    assert done.stdout.startswith("Filled 0 cells in ")
    with xr.open_dataset(tmp_path / "out.nc", engine="netcdf4") as ds:
        np.testing.assert_array_equal(ds["in"], values)


def test_integers_without_nodata_are_copied_with_nodata_nan(tmp_path: Path, model: str) -> None:
    values = np.arange(400, dtype="int16").reshape(20, 20)
    path, out = write_tif(tmp_path / "in.tif", values), tmp_path / "out.nc"
    done = cli("fill", path, out, "--model", model, "--nodata", "nan", "--verbose")
    assert done.stderr.endswith("in has no gaps: it is copied unchanged.\n")
    with xr.open_dataset(out, engine="netcdf4") as ds:
        assert ds["in"].dtype == np.int16
        np.testing.assert_array_equal(ds["in"], values)
    assert json.loads(cli("info", path, "--nodata", "nan", "--json").stdout)["variables"]["in"]["missing"] == 0


def test_bad_paths(tmp_path: Path, source: Path) -> None:
    (tmp_path / "notes.txt").write_text("no raster")
    out = tmp_path / "out.zarr"
    assert "No such raster: got" in error("fill", tmp_path / "none.tif", out)
    text = error("fill", tmp_path / "notes.txt", out)
    assert "Not a raster that can be read: got" in text
    assert "Tables of measurements are for geonp grid and geonp evaluate" in text
    assert "Unknown output format: got" in error("fill", source, tmp_path / "out.png")
    assert "The output exists: " in error("fill", source, source)
    assert "Cannot write to the folder" in error("fill", source, tmp_path / "none" / "out.zarr")
    assert "No driver 'COG' for" in error("fill", source, out, "-f", "COG")
    assert "expected NAME=VALUE" in cli("fill", source, out, "--co", "COMPRESS", code=2).stderr


def test_bad_selections(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out.zarr"
    assert "No variable 'depth': the raster has 'heights'" in error("fill", source, out, "--variable", "depth")
    assert "No band 2: the raster has bands 1 to 1" in error("fill", source, out, "-b", "2")
    assert "The bounding box holds no cell" in error("fill", source, out, "--bbox", "0", "0", "1", "1")


def test_bad_rasters(tmp_path: Path, model: str) -> None:
    out = tmp_path / "out.zarr"
    integers = write_tif(tmp_path / "integers.tif", np.ones((4, 4), "uint8"))
    message = error("fill", integers, out)
    assert "'integers' holds integers (uint8) without a declared nodata value" in message
    assert "--nodata" in message
    unmappable = tmp_path / "series.nc"
    xr.Dataset({"a": (("time", "station"), np.ones((2, 3)))}).to_netcdf(unmappable, engine="netcdf4")
    assert "No spatial dimensions found: got dimensions ('time', 'station')" in error("fill", unmappable, out)
    complexes = write_tif(tmp_path / "complex.tif", np.ones((4, 4), "complex64"))
    assert "No variable can be filled: got 'complex' ('y', 'x') complex64" in error("fill", complexes, out)
    strings = tmp_path / "strings.nc"
    xr.Dataset({"a": (("y", "x"), np.full((2, 3), "word"))}).to_netcdf(strings, engine="netcdf4")
    assert "No variable can be filled: got 'a' ('y', 'x')" in error("fill", strings, out)
    empty = write_tif(tmp_path / "empty.tif", np.full((4, 4), np.nan, "float32"))
    assert "'empty' has no observed cell: all 16 are missing" in error("fill", empty, out, "--model", model)


def test_bad_masks(tmp_path: Path, source: Path, model: str) -> None:
    def masked_by(mask: Path) -> str:
        return error("fill", source, tmp_path / "out.zarr", "--model", model, "--mask", mask)

    assert "No such raster" in masked_by(tmp_path / "none.tif")
    small = write_tif(tmp_path / "small.tif", np.ones((4, 4), "uint8"))
    assert "The mask and the raster differ in shape: got (4, 4), expected (40, 50)" in masked_by(small)
    elsewhere = write_tif(tmp_path / "elsewhere.tif", np.ones((40, 50), "uint8"), crs="EPSG:3035")
    assert "The mask and the raster differ in CRS: got ETRS89" in masked_by(elsewhere)


def test_bad_models(source: Path, checkpoint_copy: Path) -> None:
    out = source.with_name("out.zarr")
    card = cli("models", "show", "tnpkr-sa").stdout
    assert all(part in card for part in ("388,309 parameters", "no real raster", "Limits\n", "to the raster: 0.804"))
    assert "unknown model 'gp9000'" in error("fill", source, out, "--model", "gp9000")
    weights = bytearray(checkpoint_copy.read_bytes())
    weights[-1] ^= 1
    checkpoint_copy.write_bytes(weights)
    assert "damaged or altered" in error("fill", source, out, "--model", checkpoint_copy)


def test_overwriting_needs_leave(tmp_path: Path, source: Path, model: str) -> None:
    out = tmp_path / "out.nc"
    cli("fill", source, out, "--model", model)
    assert "pass overwrite (--overwrite)" in cli("fill", source, out, "--model", model, code=1).stderr
    cli("fill", source, out, "--model", model, "--overwrite")


def test_info(source: Path) -> None:
    printed = json.loads(cli("info", source, "--json").stdout)
    assert (printed["rows"], printed["columns"]) == (40, 50)
    assert all(key.isidentifier() for facts in (printed, printed["variables"]["heights"]) for key in facts)
    assert printed["crs"] == "WGS 84 / UTM zone 33N (EPSG:32633)"
    assert printed["bounds"] == [500_000.0, 5_200_000.0 - 40 * 30, 500_000.0 + 50 * 30, 5_200_000.0]
    facts, values = printed["variables"]["heights"], open_raster(source)["heights"]
    assert (facts.pop("least"), facts.pop("greatest")) == (float(values.min()), float(values.max()))
    assert facts == {
        "dimensions": {"y": 40, "x": 50},
        "dtype": "int16",
        "units": None,
        "nodata": 0.0,
        "missing": 48,
        "missing_share": 0.024,
        "infinite": 0,
        "gaps": 1,
        "largest_gap": 48,
        "farthest_from_data": 3.0,
        "would_be_filled": True,
        "because": "48 cells are missing",
    }
    text = cli("info", source).stdout
    assert "WGS 84 / UTM zone 33N (EPSG:32633)" in text
    assert "y 40, x 50" in text
    assert "missing share  " in text
    assert "largest gap         48 cells" in text
    assert "farthest from data  3 cells" in text


def test_values_have_the_digits_that_they_are_stored_with(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "in.tif", np.array([[0.11, np.nan, 32.97, 7]], "float32"), nodata=np.nan)
    text = cli("info", path).stdout
    assert "least               0.11\n" in text
    assert "greatest            32.97\n" in text


def test_json_holds_no_nan(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    path = write_tif(tmp_path / "in.tif", np.array([[1, np.nan, np.inf]], "float32"), nodata=np.nan)
    facts = json.loads(cli("info", path, "--json").stdout, parse_constant=refuse)["variables"]["in"]
    assert (facts["nodata"], facts["missing"], facts["infinite"], facts["greatest"]) == ("nan", 2, 1, 1.0)
    assert json.loads(to_json({"a": (1.5, np.inf), "b": [{"c": np.nan}]})) == {"a": [1.5, None], "b": [{"c": None}]}


def test_info_prints_the_valid_range_and_cells_beyond_it_are_missing(tmp_path: Path) -> None:
    values = np.arange(100, dtype="i2").reshape(10, 10)
    packing = {"scale_factor": np.float32(0.1), "valid_range": np.array([10, 89], "i2")}
    xr.Dataset({"a": (("y", "x"), values, packing)}).to_netcdf(tmp_path / "in.nc")
    facts = json.loads(cli("info", tmp_path / "in.nc", "--json").stdout)["variables"]["a"]
    assert facts["valid_range"] == pytest.approx([1.0, 8.9])
    assert (facts["missing"], facts["least"], facts["greatest"]) == (20, pytest.approx(1.0), pytest.approx(8.9))


def test_info_names_undeclared_nodata(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "in.tif", np.zeros((4, 4), "uint8"))
    assert "not declared (--nodata)" in cli("info", path).stdout
    assert json.loads(cli("info", path, "--json").stdout)["variables"]["in"]["nodata"] is None
    assert json.loads(cli("info", path, "--nodata", 0, "--json").stdout)["variables"]["in"]["missing"] == 16
    assert "No such raster" in error("info", tmp_path / "none.tif")


def test_models(model: str) -> None:
    listed = cli("models").stdout
    assert listed == cli("models", "list").stdout
    assert all(name in listed for name in checkpoint.available())
    assert "`" not in listed
    assert json.loads(cli("models", "show", model, "--json").stdout)["name"] == "tiny"
    assert "unknown model 'gp9000'" in cli("models", "show", "gp9000", code=1).stderr


def test_recipes(tmp_path: Path) -> None:
    listed = cli("recipes", "list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(recipes.available())
    copied = tmp_path / "mine.toml"
    assert cli("recipes", "cp", "tnpkr_sa_raster", copied).stdout == f"{copied}\n"
    assert recipes.load(str(copied)) == recipes.load("tnpkr_sa_raster")
    assert "unknown recipe 'none'" in cli("recipes", "cp", "none", tmp_path, code=1).stderr


def test_train_refuses_what_the_recipe_does_not_know(tmp_path: Path) -> None:
    arguments = ("train", "tnpkr_sa_raster", "training.stepps=1", "--out")
    assert "training.stepps" in error(*arguments, tmp_path / "run")
    assert "unknown recipe 'none'" in error("train", "none", "--out", tmp_path / "run")
    assert "cannot read the recipe file 'none.toml': No such file" in error("train", "none.toml", "--out", tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.config.dim=0", "cannot be built with model.config.dim=0"),
        ("training.start=none.safetensors", "no checkpoint at 'none.safetensors'"),
    ],
)
def test_training_that_fails_leaves_no_empty_folder(tmp_path: Path, override: str, message: str) -> None:
    arguments = ["train", "tnpkr_sa_raster", override, "--out", str(tmp_path / "new" / "run")]
    failed = cli(*arguments, code=1)
    assert failed.stdout == ""
    assert message in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_logs_get_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress.watched(True) as each:
        assert each is not None
        for done, at in ((3, 10.0), (4, 59.0), (5, 60.0), (6, 100.0), (7, 120.0)):
            now[0] = at
            each({"filled": 1000}, done, 9)
    assert capsys.readouterr().err.splitlines() == [
        "5 of 9 units, 3,000 cells filled, 50 cells/s, 2 min left",
        "7 of 9 units, 5,000 cells filled, 42 cells/s, 1 min left",
    ]
    with progress.watched(False) as each:
        assert each is None


def test_the_first_field_says_nothing_about_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of seven days it takes as long as all others together: 36 minutes were said of 9."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress.watched(True, "fields") as each:
        assert each is not None
        for done in range(1, 8):
            now[0] = 360.0 + 90.0 * (done - 1)
            each({"filled": 90}, done, 7)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "1 of 7 fields, 90 cells filled, 0 cells/s"
    assert [line.rpartition(", ")[2] for line in lines[1:]] == [f"{n} min left" for n in (8, 6, 4, 3, 2, 0)]


def test_people_see_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with progress.watched(True) as each:
        assert each is not None
        each({"filled": 1000}, 3, 9)
    shown = capsys.readouterr().err
    assert "Filling" in shown
    assert "3/9" in shown
    assert "cells/s" in shown


FORKING = """
import sys
import torch._dynamo  # once, which optimisers would import in each process
from lightning_fabric.strategies import ddp
from geonp.cli.app import main
from geonp.training import loop
spawning = ddp.DDPStrategy
ddp.DDPStrategy = lambda start_method, **options: spawning(start_method="fork", **options)
"""
"""The command line, whose processes that train together import nothing again."""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(("stop", "devices"), [(signal.SIGINT, "1"), (signal.SIGTERM, "2")])
def test_an_interrupted_training_ends_after_its_step(tmp_path: Path, stop: signal.Signals, devices: str) -> None:
    small = ["model.architecture=cnp", "training.batch_size=1", "training.validation_batches=1"]
    often = ["training.validate_every=1", "--device", "cpu", "--devices", devices]
    program = [GEONP] if devices == "1" else [sys.executable, "-W", "ignore", "-c", FORKING + "main()"]
    arguments = [*program, "train", "gp2d_rbf", *small, *often, "--out", tmp_path / "run", "training.steps=9999"]

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "curve.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(stop)
    _, message = process.communicate(timeout=60)
    assert (process.returncode, message.splitlines()[-1]) == (130, "Interrupted: continue with --resume.")
    rows = (tmp_path / "run" / "curve.csv").read_text().splitlines()
    assert torch.load(tmp_path / "run" / "state.pt", weights_only=True)["step"] == len(rows) - 1


KILLED = """
import os, signal, time
from pathlib import Path
folder, *command = sys.argv[1:]
state = Path(folder, "killed", "state.pt")
child = os.fork()
if child == 0:
    os.setsid()
    main([*command, f"{folder}/killed"])
while not state.exists() and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
    time.sleep(0.01)
os.killpg(child, signal.SIGKILL)
assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
print(torch.load(state, weights_only=True)["step"], len(list(Path(folder, "killed").glob("*.safetensors"))))
main([*command, f"{folder}/killed", "--resume"], standalone_mode=False)
main([*command, f"{folder}/straight"], standalone_mode=False)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs groups of processes")
def test_a_killed_training_resumes_at_its_step(tmp_path: Path) -> None:
    small = ["model.architecture=cnp", "training.batch_size=2", "training.validation_batches=1", "training.steps=6"]
    often = ["training.precision=bf16", "training.validate_every=1", "training.save_every_s=0.01"]
    start = ["train", "gp1d_rbf", *small, *often, "--device", "cpu", "--devices", "2", "--workers", "0", "--out"]
    command = [sys.executable, "-W", "ignore", "-c", FORKING + KILLED, tmp_path, *start]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    step, finished = map(int, done.stdout.split()[:2])
    assert 0 < step < 6
    assert not finished
    rows = []
    for name in ("killed", "straight"):
        with (tmp_path / name / "curve.csv").open(newline="") as handle:
            rows.append([{**row, "cpu_hours": ""} for row in csv.DictReader(handle)])
    assert len(rows[0]) == 6
    assert rows[0] == rows[1]
    files = [tmp_path / name / "gp1d_rbf.safetensors" for name in ("killed", "straight")]
    one, other = (checkpoint.load_model(str(file))[0].state_dict() for file in files)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that refuses even root")
def test_training_and_recipes_refuse_folders_that_cannot_be_written() -> None:
    copied = cli("recipes", "cp", "tnpkr_sa_raster", "/proc/x.toml", code=1)
    assert copied.stdout == ""
    assert "Cannot copy the recipe to '/proc/x.toml': " in copied.stderr
    trained = cli("train", "tnpkr_sa_raster", "--out", "/proc/x", code=1)
    assert trained.stdout == ""
    assert "Cannot write to the folder '/proc/x': " in trained.stderr


@pytest.mark.parametrize(
    ("flags", "terminal", "shown"), [([], False, False), ([], True, True), (["--progress"], False, True)]
)
def test_training_shows_its_progress_in_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], terminal: bool, shown: bool
) -> None:
    options: dict[str, object] = {}
    monkeypatch.setattr(loop, "train", lambda *_, **given: options.update(given))
    monkeypatch.setattr("geonp.cli.train.in_terminal", lambda: terminal)
    cli("train", "tnpkr_sa_raster", "--out", tmp_path, *flags)
    assert options["progress"] is shown


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(
    ("stop", "name", "begun"),
    [(signal.SIGINT, "out.zarr", "out.zarr.journal/units/*"), (signal.SIGTERM, "out.tif", ".out.tif.*/draft-out.tif")],
)
def test_an_interrupted_fill_ends_at_once_and_leaves_nothing_that_looks_complete(
    tmp_path: Path, model: str, stop: signal.Signals, name: str, begun: str
) -> None:
    side, chunk = (640, 64) if name == "out.zarr" else (1200, 1200)
    values = np.random.default_rng(0).random((side, side), "float32")
    values[::2] = np.nan
    source, out = write_tif(tmp_path / "in.tif", values), tmp_path / name
    # One chunk of the GeoTIFF takes a thread many seconds, for which Python would wait before it ends.
    arguments = [GEONP, "fill", source, out, "--model", model, "--chunks", str(chunk)]

    def heed() -> None:
        # a shell lets what it starts in the background ignore interrupts
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(begun)) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    start = time.monotonic()
    process.send_signal(stop)
    _, message = process.communicate(timeout=60)
    assert time.monotonic() - start < 10  # of some 30 that a chunk takes
    advice = "continue with --resume if the output is .zarr; other outputs were not written."
    assert (process.returncode, message.strip()) == (130, f"Interrupted: {advice}")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == (["in.tif", name, f"{name}.journal"] if name == "out.zarr" else ["in.tif"])
    if name == "out.zarr":
        progress = json.loads(cli("info", out, "--json").stdout)
        assert progress["finished"] < progress["units"] == 100
        assert "finish it with resume (--resume)" in cli("fill", out, tmp_path / "again.tif", code=1).stderr


def test_the_commands_leave_the_signal_handlers_as_they_were(model: str) -> None:
    earlier = signal.getsignal(signal.SIGTERM)
    CliRunner().invoke(main, ["models", "show", model])
    assert signal.getsignal(signal.SIGTERM) is earlier
