"""The command line with files, names, streams and machines that are odd: a message, never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rioxarray  # noqa: F401  (registers .rio)
import xarray as xr
from click.testing import CliRunner
from rasterio.windows import Window
from tqdm import tqdm
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import GzipCodec, ZstdCodec

from geonp.cli.app import main
from geonp.cli.info import CensusSettings
from geonp.cli.show import notes_may_fail, printable
from geonp.errors import InputError
from geonp.raster.gaps import census
from geonp.raster.parts import PartSettings

from ..commands import cli

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

GEONP = Path(sys.executable).with_name("geonp")


def geonp(*arguments: object, code: int = 0) -> str:
    """What a command prints, run in this process."""
    return cli(*arguments, code=code).output


@pytest.fixture
def ds() -> xr.Dataset:
    values = np.random.default_rng(0).random((12, 12))
    values[4:7, 4:7] = np.nan
    return xr.Dataset({"a": (("y", "x"), values)}, {"y": np.arange(12.0), "x": np.arange(12.0)})


def test_attributes_cannot_act_on_a_terminal(tmp_path: Path, ds: xr.Dataset) -> None:
    ds["a"].attrs["units"] = "m\x1b]0;owned\x07\x1b[2J\u202e\n  nodata  5"
    ds.rename(a="a\x1b[31m").to_zarr(tmp_path / "in.zarr", zarr_format=2)
    printed = geonp("info", tmp_path / "in.zarr")
    assert not set(printed) & set("\x1b\x07\u202e")
    assert r"m\x1b]0;owned\x07\x1b[2J\u202e\n  nodata  5" in printed
    assert printable("a\tb\nc \udcff\x9b") == "a\tb\nc \\udcff\\x9b"
    assert "\x1b" not in geonp("fill", tmp_path / "no\x1b[2J.tif", tmp_path / "out.tif", code=1)


def test_summaries_have_no_secrets_of_urls(tmp_path: Path) -> None:
    url = "https://me:hunter2@127.0.0.1:1/a.tif?X-Amz-Signature=hunter2"
    for command in (("fill", url, tmp_path / "out.tif"), ("info", url), ("evaluate", url)):
        printed = geonp(*command, code=1)
        assert "127.0.0.1:1/a.tif" in printed
        assert "hunter2" not in printed
    url = url.replace(".tif", ".csv")
    assert "hunter2" not in geonp("info", "s3://b/a.zarr", "--storage-option", "secret:hunter2", code=2)
    raster = tmp_path / "raster.nc"
    xr.Dataset({"a": (("y", "x"), np.eye(9))}).to_netcdf(raster)
    assert "hunter2" not in geonp("grid", url, tmp_path / "out.nc", "--resolution", 1, code=2)
    assert "hunter2" not in geonp("fill", raster, tmp_path / "out.nc", "--points", url, code=1)


def test_no_output_lies_in_the_input(tmp_path: Path, ds: xr.Dataset) -> None:
    ds.to_zarr(tmp_path / "in.zarr")
    for out in ("in.zarr/out.nc", "in.zarr/a/out.tif", "in.zarr/out.zarr"):
        printed = geonp("fill", tmp_path / "in.zarr", tmp_path / out, code=1)
        assert "The input and the output contain one another" in printed
    assert "contain one another" in geonp(
        "fill", tmp_path / "in.zarr", tmp_path / "out.tif", "--flags-to", tmp_path / "in.zarr/flags.tif", code=1
    )


@pytest.mark.parametrize("option", ["--like", "--gaps-where", "--covariate", "--errors"])
@pytest.mark.parametrize("out", ["other.tif", "out.tif"])
def test_outputs_replace_nothing_that_is_read_beside(tmp_path: Path, ds: xr.Dataset, option: str, out: str) -> None:
    other = tmp_path / "other.tif"
    for path in (tmp_path / "in.tif", other):
        ds["a"].rio.write_crs("EPSG:32633").rio.to_raster(path)
    before = other.read_bytes()
    command = ["fill", tmp_path / "in.tif", tmp_path / out, option, f"{other}:1>9" if "where" in option else other]
    flags = ["--flags-to", other] if out == "out.tif" else []
    printed = geonp(*command, *flags, "--overwrite", code=1)
    assert "and the output are the same" in printed
    assert other.read_bytes() == before


@pytest.mark.parametrize("what", ["table", "raster of --like", "covariate"])
def test_grids_replace_nothing_that_is_read(tmp_path: Path, ds: xr.Dataset, model: str, what: str) -> None:
    paths = {"table": "points.nc", "raster of --like": "like.nc", "covariate": "h.nc"}
    xr.Dataset({name: ("row", np.arange(9.0)) for name in ("x", "y", "t")}).to_netcdf(tmp_path / "points.nc")
    for name in ("like.nc", "h.nc"):
        ds[["a"]].rename(a="h").to_netcdf(tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    options = ["--like", tmp_path / "like.nc", "--model", model, "--overwrite"]
    options += ["--covariate", tmp_path / "h.nc"] if what == "covariate" else []
    printed = geonp("grid", tmp_path / "points.nc", tmp_path / paths[what], *options, code=1)
    assert f"The {what} and the output are the same" in printed
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize("closed", ["2>&- >&-", "2>/dev/full"])
def test_streams_may_be_closed(tmp_path: Path, ds: xr.Dataset, model: str, closed: str) -> None:
    ds.rename(a="höhe").to_netcdf(tmp_path / "in.nc")
    command = f"{GEONP} fill {tmp_path}/in.nc {tmp_path}/out.nc --model {model} -v {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert not out["höhe"].isnull().any()


def test_streams_may_be_in_ascii(tmp_path: Path, ds: xr.Dataset, model: str) -> None:
    """As with PYTHONIOENCODING=ascii: standard output is strict, and standard error writes escapes."""
    ds.rename(a="höhe").to_netcdf(tmp_path / "in.nc")
    source, out = str(tmp_path / "in.nc"), str(tmp_path / "out.nc")
    for command in (["info", source], ["fill", source, out, "--model", model, "-v"]):
        done = CliRunner(charset="ascii").invoke(main, command, catch_exceptions=False)
        assert "Traceback" not in done.output
        assert done.exit_code == 0, done.output
        assert r"h\xf6he" in done.output
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert not out["höhe"].isnull().any()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_full_streams(tmp_path: Path, ds: xr.Dataset) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115  (closing it fails)
    with redirect_stderr(full), notes_may_fail():
        assert list(tqdm(range(2), mininterval=0)) == [0, 1]
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert subprocess.run(f"{GEONP} fill 2>/dev/full", shell=True, timeout=60).returncode == 2
    ds.to_netcdf(tmp_path / "in.nc")
    done = subprocess.run(f"{GEONP} info {tmp_path}/in.nc >/dev/full", shell=True, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Standard output cannot be written: No space left on device.")


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of bytes")
def test_names_may_be_of_another_encoding_or_too_long(tmp_path: Path, ds: xr.Dataset, model: str) -> None:
    name = os.fsdecode(os.fsencode(str(tmp_path)) + b"/h\xf6he.nc")  # Latin-1
    for place in ("in.nc", "a.nc"):
        ds.to_netcdf(tmp_path / place)
    os.rename(tmp_path / "in.nc", name)
    for command in (("info", name), ("fill", name, tmp_path / "out.nc", "--model", model)):
        done = CliRunner().invoke(main, list(map(str, command)))
        assert not done.exception or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code == 0 or "\\udcf6" in done.output
        assert done.exit_code == 0 or "not in UTF-8" in done.output
    for target in (name, name.replace(".nc", ".tif")):
        assert "not in UTF-8" in geonp("fill", tmp_path / "a.nc", target, "--model", model, "--overwrite", code=1)
    long = tmp_path / ("x" * 300 + ".nc")
    os.rename(name, tmp_path / "in.nc")
    for target in (long, long.with_suffix(".tif"), long.with_suffix(".zarr"), tmp_path / ("y" * 250 + ".tif")):
        assert "too long" in geonp("fill", tmp_path / "in.nc", target, "--model", model, code=1)
    assert "too long" in geonp("info", long, code=1)
    assert "Error: " in geonp("models", "show", long.with_suffix(".safetensors"), code=1)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs SIGHUP")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_ends_a_fill_unless_it_is_ignored(tmp_path: Path, model: str, ignored: bool) -> None:
    side = 64 if ignored else 160  # which takes long enough to be interrupted
    values = np.random.default_rng(0).random((side, side))
    values[::2] = np.nan
    xr.Dataset({"a": (("y", "x"), values)}).to_netcdf(tmp_path / "in.nc")
    command = [GEONP, "fill", tmp_path / "in.nc", tmp_path / "out.tif", "--model", model, "--json"]
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(1, handler)
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.tif.*/draft-out.tif")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    printed, message = process.communicate(timeout=120)
    left = sorted(path.name for path in tmp_path.iterdir())
    if ignored:
        assert json.loads(printed)["cells_filled"] == 64 * 32
        assert left == ["in.nc", "out.tif"]
    else:
        assert message.startswith("Interrupted")
        assert (process.returncode, left) == (130, ["in.nc"])


def write_sparse(path: Path, side: int) -> Path:
    """A GeoTIFF without any block, but one in its middle."""
    profile = {"width": side, "height": side, "count": 1, "dtype": "uint8", "nodata": 0, "tiled": True}
    with rasterio.open(path, "w", driver="GTiff", BIGTIFF="YES", SPARSE_OK="TRUE", **profile) as file:
        file.write(np.full((1, 100, 100), 5, np.uint8), window=Window(side // 2, side // 2, 100, 100))
    return path


@pytest.mark.parametrize("side", [6000, 200_000])
def test_info_needs_little_memory_for_rasters_of_any_size(tmp_path: Path, side: int) -> None:
    write_sparse(tmp_path / "in.tif", side)
    geonp("info", write_sparse(tmp_path / "small.tif", 300))  # imports what it needs
    tracemalloc.start()
    described = json.loads(geonp("info", tmp_path / "in.tif", "--json"))["variables"]["in"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300 * 2**20
    if side == 6000:
        assert (described["missing"], described["gaps"], described["largest_gap"]) == (side**2 - 10_000, 1, 35_990_000)
        assert abs(described["farthest_from_data"] - 3000 * 2**0.5) <= described["farthest_within"] < 10
    else:
        assert 2**26 < described["counted_cells"] <= 2**27
        assert "gaps" not in described


def test_info_reads_many_bands_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 4, (500, 9, 7), dtype=np.uint8)
    profile = {"driver": "GTiff", "width": 7, "height": 9, "count": 500, "dtype": "uint8", "nodata": 0}
    with rasterio.open(tmp_path / "in.tif", "w", **profile) as file:
        file.write(values)
    xr.Dataset({"in": (("u", "v", "y", "x"), values.reshape(20, 25, 9, 7), {"_FillValue": 0})}).to_netcdf(
        tmp_path / "in.nc"
    )
    monkeypatch.setattr("geonp.cli.info.PARTS", PartSettings(cells=20 * 9 * 7))
    counts = [census(values[i] > 0) for i in range(500)]
    for name in ("in.tif", "in.nc"):
        described = json.loads(geonp("info", tmp_path / name, "--json"))["variables"]["in"]
        assert described["missing"] == (values == 0).sum()
        assert (described["least"], described["greatest"]) == (1, 3)
        assert described["gaps"] == sum(one.gaps for one in counts)
        assert described["largest_gap"] == max(one.largest for one in counts)
        assert described["farthest_from_data"] == round(max(one.farthest_px for one in counts), 2)


def test_endpoints_that_are_down_are_named(tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    down = ["--storage-option", "endpoint_url=http://127.0.0.1:1", "--storage-option", "secret=hunter2"]
    down += ["--storage-option", "key=k", "--storage-option", 'config_kwargs={"retries": {"max_attempts": 0}}']
    for command in (["info", "s3://b/a.zarr", *down], ["info", "https://127.0.0.1:1/a.tif"]):
        printed = geonp(*command, code=1)
        assert "127.0.0.1" in printed
        assert "hunter2" not in printed


@pytest.mark.parametrize("name", ["out.tif", "out.nc"])
@pytest.mark.parametrize("codec", [ZstdCodec(), GzipCodec()])
def test_damaged_chunks_are_said_to_be_damaged(
    tmp_path: Path, ds: xr.Dataset, model: str, name: str, codec: BytesBytesCodec
) -> None:
    ds.to_zarr(tmp_path / "in.zarr", zarr_format=3, consolidated=False, encoding={"a": {"compressors": codec}})
    (chunk,) = (path for path in (tmp_path / "in.zarr" / "a").rglob("*") if path.is_file() and path.name != "zarr.json")
    chunk.write_bytes(chunk.read_bytes()[:-7])
    said = geonp("fill", tmp_path / "in.zarr", tmp_path / name, "--model", model, code=1)
    assert "Error: A file cannot be read or written: " in said
    assert "It may be damaged: copy or download it again" in said
    assert not (tmp_path / name).exists()
    said = geonp("fill", tmp_path / "in.zarr", tmp_path / "out.zarr", "--model", model, code=1)
    assert "1 of 1 units failed; their cells are empty and flagged" in said
    assert "--empty-slices" not in said


def test_info_counts_some_of_very_many_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros((40, 6, 8), np.float32)
    values[:, 2, 3:5] = np.nan
    values[:5] = np.nan  # of 8 slices, every fifth, one
    xr.Dataset({"a": (("time", "y", "x"), values)}).to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    found = json.loads(geonp("info", tmp_path / "a.nc", "--json"))["variables"]["a"]
    assert (found["missing"], found["gaps"]) == (5 * 48 + 35 * 2, 40)
    monkeypatch.setattr("geonp.cli.info.CENSUS", CensusSettings(slices=39, sampled_slices=8))
    found = json.loads(geonp("info", tmp_path / "a.nc", "--json"))["variables"]["a"]
    assert (found["counted_cells"], found["missing"]) == (8 * 48, 48 + 7 * 2)


def test_exceptions_that_libraries_ignore_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ignored:
        def __del__(self) -> None:
            raise ValueError("undecodable")

    def opened(*_: object, **__: object) -> None:
        Ignored()
        sys.excepthook(ValueError, ValueError("as Cython prints it"), None)
        raise InputError("no raster")

    monkeypatch.setattr("geonp.io.files.open_raster", opened)
    assert geonp("info", "GTIFF_DIR:1:a.tif", code=1) == "Error: no raster\n"
