"""The command `geonp evaluate`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rioxarray  # noqa: F401  (registers .rio)
import xarray as xr

from geonp.cli.evaluate import HOLDOUTS
from geonp.evaluation import compare

from ..commands import cli

pytestmark = pytest.mark.usefixtures("few_patches")


def refused(*arguments: object, code: int = 1) -> str:
    """Message of a command that must fail and print nothing else, run in this process."""
    done = cli("evaluate", *arguments, code=code)
    assert done.stdout == ""
    return done.stderr


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two times of a temperature with a gap, and a humidity without."""
    y, x = np.mgrid[:36, :44].astype(np.float32)
    field = 280 + np.sin(x / 6) + np.cos(y / 8)
    gap = field.copy()
    gap[10:14, 20:25] = np.nan
    cube = np.stack([gap, gap + 3])
    dims, coords = ("time", "y", "x"), {"time": [0, 6], "y": -y[:, 0], "x": x[0]}
    ds = xr.Dataset({"t<2>m": (dims, cube, {"units": "K"}), "humidity": (dims, np.stack([field] * 2))}, coords)
    ds.to_netcdf(tmp_path / "air.nc", engine="netcdf4")
    return tmp_path / "air.nc"


def test_it_prints_the_scores_and_writes_the_report(source: Path, model: str) -> None:
    report = source.with_name("report.html")
    options = ("--holdout", "gaps", "--fraction", 0.1, "--index", "time=1", "--progress", "--model", model)
    done = cli("evaluate", source, *options, "--report", report)
    assert done.stderr.split(" ...\n") == ["geonp", *compare.METHODS, ""]
    setting, scores, by_distance, verdict, where = done.stdout.strip().split("\n\n")
    assert setting.startswith("t<2>m (K), time 6: 36 x 44 cells. The raster's own gaps, moved, hide ")
    assert [line.split()[0] for line in scores.splitlines()] == ["method", "geonp", *compare.METHODS]
    assert by_distance.startswith("CRPS (K) by distance")
    assert " beats geonp by " in verdict  # the weights are random
    assert where == f"Report: {report}"
    page = report.read_text(encoding="utf-8")
    assert "<h1>air.nc</h1>" in page
    assert "t&lt;2&gt;m (K), time 6: 36 x 44 cells." in page


@pytest.mark.parametrize(("given", "bounds"), [((), None), (("--bounds", "278,282"), (278, 282))])
def test_json_is_what_python_gives(source: Path, model: str, given: tuple[str, ...], bounds: Any) -> None:
    options = ("--variable", "humidity", "--bbox", 5, -30, 40, 0, "--seed", 2, "--size", 30, *given)
    done = cli("evaluate", source, *options, "--baseline", "linear", "--baseline", "gdal", "--model", model, "--json")
    assert done.stderr == ""
    printed = json.loads(done.stdout)
    with xr.open_dataset(source, engine="netcdf4") as ds:
        box = ds["humidity"].isel(y=slice(0, 31), x=slice(5, 41)).load()
    expected = box.geonp.evaluate(seed=2, size=30, baselines=["linear", "gdal"], bounds=bounds, model=model).to_dict()
    assert printed.pop("input") == str(source)
    for scores in (*printed["scores"].values(), *expected["scores"].values()):
        assert scores.pop("seconds") > 0
    assert printed == expected
    assert expected["window"] == {"row": 0, "row_end": 30, "col": 3, "col_end": 33}


def test_quiet_prints_nothing(source: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geonp.cli.evaluate.in_terminal", lambda: True)
    picture = source.with_name("maps.png")
    options = ("--variable", "humidity", "--baseline", "nearest", "--model", model, "--picture", picture)
    done = cli("evaluate", source, *options, "--quiet")
    assert (done.stdout, done.stderr) == ("", "")
    assert picture.exists()


def test_band_and_nodata_select_as_in_fill(tmp_path: Path, model: str) -> None:
    y, x = np.mgrid[:30, :32]
    bands = np.stack([np.zeros_like(x), 100 + x + y]).astype("int16")
    bands[1, 5:8, 5:8] = -1
    raster = xr.DataArray(bands, {"y": -y[:, 0], "x": x[0]}, ("band", "y", "x"), "values").rio.write_crs("EPSG:32633")
    raster.rio.to_raster(tmp_path / "bands.tif")
    options = ("-b", "2", "--nodata", "-1", "--baseline", "nearest", "--model", model)
    printed = json.loads(cli("evaluate", tmp_path / "bands.tif", *options, "--json").stdout)
    assert (printed["observed_cells"], printed["selection"]) == (30 * 32 - 9, "band 2")


def test_a_variable_is_evaluated_with_the_others_beside_it(source: Path) -> None:
    options = ("--variable", "humidity", "--across", "variables", "--baseline", "linear", "--json")
    found = json.loads(cli("evaluate", source, *options).stdout)
    assert (found["variable"], found["selection"]) == ("humidity", "time 0, with the other variables")
    assert list(found["scores"]) == ["geonp + across", "geonp", "linear"]


def test_a_variable_of_a_group_is_evaluated_with_the_others_beside_it(
    source: Path, drift_model: str, tmp_path: Path
) -> None:
    """The name of the group ended in a KeyError."""
    grouped = tmp_path / "grouped.nc"
    with xr.open_dataset(source) as ds:
        ds.to_netcdf(grouped, group="air")
    options = ("--across", "variables", "--baseline", "linear", "--json", "--model", drift_model)
    found = json.loads(cli("evaluate", grouped, "--variable", "air/humidity", *options).stdout)
    plain = json.loads(cli("evaluate", source, "--variable", "humidity", *options).stdout)
    assert found["scores"]["geonp + across"]["crps"] == plain["scores"]["geonp + across"]["crps"]


def test_holdouts_are_those_of_the_library() -> None:
    assert set(HOLDOUTS) == set(compare.HOLDOUTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--report", "air.nc"), "Unknown report format: got 'air.nc', expected a name that ends in .html."),
        (("--holdout", "gaps", "--variable", "humidity"), "'humidity' has no gaps to move"),
        (("--fraction", "2"), "Wrong fraction: got 2.0"),
        (("--baseline", "magic"), "Unknown baseline: got magic"),
        (("--index", "depth=1"), "No slice depth=1: expected time=0 to 1."),
        (("--variable", "rain"), "No variable 'rain'"),
        (("--model", "nonesuch"), "nonesuch"),
    ],
)
def test_errors_say_what_is_wrong(source: Path, options: tuple[str, ...], message: str) -> None:
    text = refused(source, *options)
    assert text.startswith("Error: ")
    assert message in text


@pytest.mark.parametrize(
    "options", [("--holdout", "rain"), ("--index", "time"), ("--index", "time=-1"), ("--seed", "-1")]
)
def test_wrong_usage_exits_2(source: Path, options: tuple[str, ...]) -> None:
    assert "Usage: " in refused(source, *options, code=2)


def test_the_missing_extra_is_named(source: Path) -> None:
    code = f"""
import sys
sys.modules["matplotlib"] = None
from geonp.cli.app import main
main(["evaluate", {str(source)!r}, "--report", {str(source.with_name("report.html"))!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: The package 'matplotlib' is not installed")
    assert "pip install 'geonp[evaluate]'" in done.stderr
