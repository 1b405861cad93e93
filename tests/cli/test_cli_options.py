"""Options of commands that are options of the library have the same defaults and say the same."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest
import rasterio
import xarray as xr
from click.testing import CliRunner
from rasterio.transform import from_origin

from geonp.cli.app import main
from geonp.errors import MissingFileError
from geonp.fill.options import FillOptions
from geonp.fill.signatures import described

from ..commands import cli

DEFAULTS = {option.name: option.default for option in fields(FillOptions)}


WRITTEN_DIFFERENTLY = {
    "mask",
    "missing",
    "nodata",
    "quantiles",
    "exceed",
    "bounds",
    "across",
    "covariates",
    "errors",
    "points",
}
"""Options whose values are texts on the command line, and arrays, tuples or tables in Python."""


def shared(command: str) -> dict[str, click.Parameter]:
    found = {option.name: option for option in main.commands[command].params if option.name in DEFAULTS}
    return {name: option for name, option in found.items() if isinstance(option, click.Option)}


def test_fill_has_every_option_of_the_library() -> None:
    assert set(shared("fill")) == set(DEFAULTS)


@pytest.mark.parametrize(
    ("command", "other"),
    [
        ("fill", set()),
        ("grid", {"max_distance", "covariates", "errors", "bounds"}),  # in the unit of the coordinates; of tables
        ("adapt", {"seed", "across"}),  # also for the hold-out; tried, not used
        ("evaluate", {"seed", "across", "errors", "max_distance"}),  # the latter two of tables
    ],
)
def test_defaults_and_descriptions_are_those_of_the_library(command: str, other: set[str]) -> None:
    context = click.Context(main.commands[command])
    for name, option in shared(command).items():
        if name not in other:
            assert option.get_default(context) == DEFAULTS[name], name
            assert not re.search(r"\b(None|True|False|arrays?|DataArray)\b|\(rows|`", option.help), name
            if name not in WRITTEN_DIFFERENTLY:
                first = described()[name].replace("`", "").split(". ")[0].rstrip(".")
                assert option.help.replace("--", "").startswith(first), name


@pytest.fixture
def source(tmp_path: Path) -> Path:
    values = np.add.outer(np.sin(np.arange(30.0)), np.arange(40.0)).astype("f4")
    values[3:9, 5:20] = np.nan
    coords = {"y": np.arange(30.0), "x": np.arange(40.0)}
    xr.Dataset({"a": (("y", "x"), values)}, coords).to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    return tmp_path / "in.nc"


@pytest.mark.parametrize(
    ("flags", "stages", "units"),
    [([], False, False), (["-v"], True, False), (["-vv"], True, True), (["-vvq"], False, False)],
)
def test_verbose_logs_to_stderr(source: Path, model: str, flags: list[str], stages: bool, units: bool) -> None:
    out = source.with_name("out.zarr")
    arguments = ["fill", f"{source}", f"{out}", "--model", model, "--chunks", "16", "--no-progress", *flags]
    logger = logging.getLogger("geonp")
    before = logger.level, list(logger.handlers)
    done = cli(*arguments)
    assert ("Filled" in done.stdout) == ("-vvq" not in flags)
    assert (f"{out}: filling 6 units, 0 are done" in done.stderr) == stages
    assert (done.stderr.count(" cells filled\n") == 6) == units
    assert (logger.level, logger.handlers) == before


@pytest.mark.filterwarnings("always")
def test_options_of_urls_without_one_come_with_a_warning(source: Path) -> None:
    given, said = ["--storage-option", "endpoint_url=http://127.0.0.1:1"], "--storage-option has no effect"
    assert said in cli("info", source, *given).stderr
    assert said not in cli("info", source, *given, "--gaps-where", "memory://none.nc>0", code=1).stderr


@pytest.mark.filterwarnings("always")
def test_the_plan_of_a_fill_repeats_no_warning(source: Path, model: str) -> None:
    """With -v, the plan and the fill both checked the raster, and gave each warning twice."""
    with xr.open_dataset(source, engine="netcdf4") as ds:
        ds.assign(b=ds["a"]).to_netcdf(source.with_name("two.nc"), engine="netcdf4")
    names = source.with_name("two.nc"), source.with_name("out.nc")
    for flag in ("-v", "--dry-run"):
        done = cli("fill", *names, "--model", model, "--gaps-where", "b>1", "--overwrite", flag)
        assert done.stderr.count("Warning: b: says where other variables are missing") == 1
        assert "peak_bytes" in (done.stderr if flag == "-v" else done.stdout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["compress=lzw"], "Unknown creation option: got compress, expected some of chunk, sharded, zarr_format"),
        (["sharded=maybe"], "Wrong sharded='maybe' (--co): expected yes or no"),
        (["chunk=x"], "Wrong chunk='x' (--co): expected a whole number"),
        (["zarr_format=4"], "No Zarr format 4: expected 2 or 3"),
        (["chunk=7"], "got chunks=7 and unit=16"),
    ],
)
def test_wrong_creation_options_of_stores_are_refused(
    source: Path, model: str, options: list[str], message: str
) -> None:
    given = [argument for option in options for argument in ("--co", option)]
    out = source.with_name("out.zarr")
    done = cli("fill", source, out, "--model", model, "--chunks", "16", *given, code=1)
    assert done.stdout == ""
    assert message in " ".join(done.stderr.split())
    assert not out.exists()


@pytest.fixture
def truncated(tmp_path: Path) -> Path:
    whole, cut = tmp_path / "whole.tif", tmp_path / "cut.tif"
    profile = {"height": 64, "width": 64, "count": 1, "dtype": "float32", "nodata": -9999.0}
    with rasterio.open(whole, "w", driver="GTiff", transform=from_origin(0, 64, 1, 1), **profile) as file:
        file.write(np.random.default_rng(0).normal(size=(1, 64, 64)).astype("f4"))
    cut.write_bytes(whole.read_bytes()[:9000])
    return cut


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["info", "IN"], "Not a raster that can be read: got '"),
        (["fill", "IN", "OUT.tif"], "The raster cannot be read to its end: "),
        (["fill", "IN", "OUT.nc"], "The raster cannot be read to its end: "),
        (["evaluate", "IN"], "A file cannot be read or written: "),
    ],
)
def test_errors_while_values_are_read_are_messages(
    truncated: Path, model: str, command: list[str], message: str
) -> None:
    place = {"IN": str(truncated), "OUT.tif": f"{truncated}.out.tif", "OUT.nc": f"{truncated}.out.nc"}
    given = [place.get(word, word) for word in command]
    given += [] if command[0] == "info" else ["--model", model]
    done = cli(*given, code=1)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(f"Error: {message}")
    assert "Read failed" in done.stderr
    assert sorted(path.name for path in truncated.parent.iterdir()) == ["cut.tif", "whole.tif"]


@pytest.mark.parametrize("arguments", [["--debug", "info", "none.tif"], ["info", "none.tif", "--debug"]])
def test_debug_shows_the_traceback(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, arguments)
    assert isinstance(done.exception, MissingFileError)
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("lat"), "geonp info stopped: KeyError: 'lat'. Check that its inputs"),
        (RuntimeError("NetCDF: HDF error"), "geonp info stopped: NetCDF: HDF error. Check"),
        (MemoryError(), "geonp info needs more memory than is available: MemoryError. Select a part"),
        (RecursionError("too\ndeep"), "geonp info stopped: too deep. Check"),
    ],
)
def test_every_exception_is_a_message(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("geonp.io.files.open_raster", fail)
    done = cli("info", "x.tif", code=1)
    assert done.stdout == ""
    assert done.stderr.startswith(f"Error: {message}")
