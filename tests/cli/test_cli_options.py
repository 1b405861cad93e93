"""Options of commands that are options of the library have the same defaults and say the same."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

from geonp.cli.app import main
from geonp.fill.options import FillOptions, described

DEFAULTS = {option.name: option.default for option in fields(FillOptions)}


def shared(command: str) -> dict[str, click.Parameter]:
    found = {option.name: option for option in main.commands[command].params if option.name in DEFAULTS}
    return {name: option for name, option in found.items() if isinstance(option, click.Option)}


def test_fill_has_every_option_of_the_library() -> None:
    assert set(shared("fill")) == set(DEFAULTS)


@pytest.mark.parametrize(
    ("command", "other"),
    [
        ("fill", set()),
        ("grid", {"max_distance"}),  # in the unit of the coordinates
        ("adapt", {"seed"}),  # also for the hold-out
        ("evaluate", {"seed", "across"}),
    ],
)
def test_defaults_and_descriptions_are_those_of_the_library(command: str, other: set[str]) -> None:
    context = click.Context(main.commands[command])
    for name, option in shared(command).items():
        if name not in other:
            assert option.get_default(context) == DEFAULTS[name], name
            first = described()[name].replace("`", "").split(". ")[0].rstrip(".")
            assert option.help.startswith(first), name


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
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, "Filled" in done.stdout) == (0, "-vvq" not in flags)
    assert (f"{out}: filling 6 units of 16 x 16 cells, 0 are done" in done.stderr) == stages
    assert (done.stderr.count(" cells filled\n") == 6) == units
    logger = logging.getLogger("geonp")
    assert (logger.level, [type(handler) for handler in logger.handlers]) == (0, [logging.NullHandler])


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
    done = CliRunner().invoke(main, ["fill", f"{source}", f"{out}", "--model", model, "--chunks", "16", *given])
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in " ".join(done.stderr.split())
    assert not out.exists()
