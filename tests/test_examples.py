"""The examples run as a user would run them."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr

import geonp

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example as a script, in this process, and returns what it prints."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [*map(str, arguments)])
        main = runpy.run_path(sys.argv[0])["main"]
        assert not main()
        return capsys.readouterr().out

    return run


def test_a_batch_job_fills_a_store_and_is_resumed(
    tmp_path: Path, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    # workers in this process need not import torch
    local = partial(distributed.LocalCluster, processes=False, dashboard_address=":0")
    monkeypatch.setattr(distributed, "LocalCluster", local)
    values = np.add.outer(np.sin(np.arange(40) / 5), np.arange(60) / 10).astype(np.float32)
    values[10:20, 30:40] = np.nan
    xr.Dataset({"a": (("y", "x"), values)}).to_zarr(tmp_path / "in.zarr")
    job = (EXAMPLES / "cluster.py", tmp_path / "in.zarr", tmp_path / "out.zarr", "--jobs", 2)
    assert "1 units, 0 of them from before" in run(*job)
    with xr.open_zarr(tmp_path / "out.zarr") as filled:
        assert int((filled["a_fill_flag"] == 1).sum()) == 100
    assert "1 units, 1 of them from before" in run(*job[:-1], 1)


def test_the_job_script_for_slurm_asks_for_what_was_asked(run: Callable[..., str]) -> None:
    pytest.importorskip("dask_jobqueue")
    asked = "--where", "slurm", "--show", "--cores", 4, "--walltime", "01:00:00"
    # another scheduler may have the usual port
    with dask.config.set({"jobqueue.slurm.scheduler-options": {"dashboard_address": ":0"}}):
        script = run(EXAMPLES / "cluster.py", "in", "out", *asked)
    assert {"#SBATCH -t 01:00:00", "#SBATCH --cpus-per-task=4"} <= set(script.splitlines())
    assert "--lifetime 2700s" in script


def test_the_figure_of_the_design_page_is_drawn(
    tmp_path: Path, wide_tiles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = runpy.run_path(str(EXAMPLES / "design_figure.py"))["main"]
    infill = geonp.infill
    monkeypatch.setattr(geonp, "infill", lambda raster, model: infill(raster, model=wide_tiles))
    monkeypatch.setitem(main.__globals__, "SHAPE", (256, 288))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "design.png")])
    main()
    assert (tmp_path / "design.png").read_bytes().startswith(b"\x89PNG")


def test_the_guide_to_classes_has_its_picture(tmp_path: Path) -> None:
    guide = runpy.run_path(str(EXAMPLES / "classes_figure.py"))
    y, x = np.mgrid[:24, :24]
    attrs = {"flag_values": np.arange(3, dtype=np.int16), "_FillValue": -1}
    cover = xr.DataArray((x // 9).astype(np.int16), dims=("y", "x"), name="cover", attrs=attrs)
    aspect = xr.DataArray((5.0 * (x + y) - 60) % 360, dims=("y", "x"), name="aspect", attrs={"units": "degree"})
    figure = guide["draw"](guide["filled"](cover), guide["filled"](aspect))
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert sum(title.startswith("Filled: ") for title in titles) == 2
    figure.savefig(tmp_path / "classes.png", dpi=40)
    assert (tmp_path / "classes.png").stat().st_size > 10_000


@pytest.mark.usefixtures("few_patches")
def test_the_guide_to_covariates_has_its_row_and_its_picture(tmp_path: Path) -> None:
    guide = runpy.run_path(str(EXAMPLES / "covariates_figure.py"))
    covariate = np.random.default_rng(0).standard_normal((24, 30)).astype(np.float32)
    raster = xr.DataArray(covariate + np.arange(30.0, dtype=np.float32), dims=("y", "x"))
    case = guide["Case"]("raster", "covariate", raster, raster.copy(data=covariate).rename("dem"))
    found = guide["evaluated"](case, "random", 0.3)
    numbers = guide["row"](found).split(" | ")
    assert len(numbers) == len(guide["HEADINGS"]) - 3
    assert float(numbers[2]) == pytest.approx(float(numbers[1]) / float(numbers[0]), abs=0.02)
    assert float(numbers[2]) < 0.5
    guide["draw"](found, covariate).savefig(tmp_path / "covariates.png", dpi=30)
    assert (tmp_path / "covariates.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore:The .shapely.ops.transform:DeprecationWarning")  # by odc-stac
def test_a_stac_catalogue_becomes_a_filled_cube(
    tmp_path: Path, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("odc.stac")
    monkeypatch.chdir(tmp_path)
    assert "1617 cells filled, 0 empty" in run(EXAMPLES / "stac_cube.py", "folder")
    with xr.open_zarr("folder/ndvi.zarr") as cube:
        assert cube.ndvi.dims == ("time", "y", "x")
        assert cube.ndvi_standard_error.max() < 0.2
