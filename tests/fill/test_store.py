"""Filling a Zarr store unit by unit: the same result however it is cut, scheduled, stopped and gone on with."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import multiprocessing
import os
import pickle
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import dask
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
import zarr
from fsspec.implementations.local import LocalFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rasterio import Affine
from zarr.storage import _local

import geonp
from geonp.errors import ClusterError, InputError, OutputError, PredictionError
from geonp.fill import region
from geonp.fill.infill import infill
from geonp.fill.options import FillOptions
from geonp.fill.region import VariableSource
from geonp.fill.report import Report
from geonp.fill.request import prepare
from geonp.fill.store import fill_store, plan_store
from geonp.inference import checkpoint, parallel, predictor
from geonp.io.files import open_raster
from geonp.io.journal import Journal
from geonp.io.output import write_raster
from geonp.io.owner import OwnerSettings
from geonp.io.stores import Store
from geonp.nn.tnp_kr import TNPKR
from geonp.raster.metadata import FillFlag, Kind

from ..commands import cli

pytestmark = pytest.mark.usefixtures("float32")


def field(shape: tuple[int, ...] = (60, 75), dtype: str = "f4", seed: int = 0) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    y, x = np.indices(shape[-2:])
    values = 20 + 5 * np.sin(y / 5) + 4 * np.cos(x / 7) + rng.standard_normal(shape)
    # in a few tiles, but in each quarter and in units of any usual side
    missing = (rng.random(shape) < 0.4) & (y % 24 < 5) & (x % 24 < 5)
    missing[..., 20:30, 30:45] = True
    attrs = {"units": "m"}
    if dtype.startswith("i"):
        values, attrs = np.where(missing, -99, np.rint(values)), {**attrs, "_FillValue": np.dtype(dtype).type(-99)}
    else:
        values = np.where(missing, np.nan, values)
    dims = ("time", "y", "x")[-len(shape) :]
    coords = {"y": np.arange(shape[-2])[::-1] * 30.0, "x": np.arange(shape[-1]) * 30.0}
    return xr.Dataset({"a": (dims, values.astype(dtype), attrs)}, coords)


def written(ds: xr.Dataset, path: Path, **options: Any) -> Path:
    ds.to_zarr(path, zarr_format=3, consolidated=False, **options)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(field(), tmp_path / "in.zarr", encoding={"a": {"chunks": (20, 25)}})


@pytest.fixture(scope="module")
def model(wide_tiles: str) -> str:
    """Any model will do: one with few tiles."""
    return wide_tiles


def lazily(path: Path) -> xr.Dataset:
    return open_raster(path, chunks=None)


@pytest.fixture(scope="module")
def expected(model: str, float32: None) -> xr.Dataset:
    """The fill of `source` in memory."""
    return infill(field(), model=model)


@pytest.fixture(scope="module")
def unbroken(model: str, float32: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The store that an unbroken fill of `source` gives, by its chunks and the scheduler; made once."""
    folder = tmp_path_factory.mktemp("unbroken")
    source = written(field(), folder / "in.zarr", encoding={"a": {"chunks": (20, 25)}})

    @cache
    def filled(chunks: int | None = None, **where: str) -> Path:
        out = folder / f"{chunks}{len(where)}.zarr"
        fill_store(lazily(source), out, model=model, **({} if chunks is None else {"chunks": chunks}), **where)
        return out

    return filled


def stored(path: Path) -> dict[str, bytes]:
    """All files of a store by name, without what names the time and the files of its job."""
    found = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    root = json.loads(found["zarr.json"])
    for part in (root, root.get("consolidated_metadata") or {}):
        for name in ("history", "geonp_job"):
            part.get("attributes", {}).pop(name, None)
    return {**found, "zarr.json": json.dumps(root, sort_keys=True).encode()}


def assert_filled(path: Path, expected: xr.Dataset) -> None:
    with xr.open_zarr(path, mask_and_scale=False) as ds:
        for name in expected.data_vars:
            np.testing.assert_allclose(ds[name].values, expected[name].values, rtol=2e-5, atol=1e-6, err_msg=str(name))
            assert ds[name].dims == expected[name].dims
            assert ds[name].dtype == expected[name].dtype


@pytest.mark.parametrize("stored", ["i2", "u1", "f4"])
def test_values_beyond_their_valid_range_are_missing_in_files(model: str, tmp_path: Path, stored: str) -> None:
    low, high = (15, 25)
    values = np.nan_to_num(field().a.values, nan=0.0).astype(stored)
    beyond = (values < low) | (values > high)
    attrs = {"valid_range": np.array([low, high], stored), "units": "K"}
    xr.Dataset({"a": (("y", "x"), values, attrs)}).to_netcdf(tmp_path / "in.nc")
    fill_store(open_raster(tmp_path / "in.nc"), tmp_path / "out.zarr", model=model, max_distance=6)
    expected = infill(open_raster(tmp_path / "in.nc"), model=model, max_distance=6)
    with xr.open_zarr(tmp_path / "out.zarr", mask_and_scale=False) as out:
        flag = out.a_fill_flag.values
        np.testing.assert_array_equal(flag == FillFlag.OBSERVED, ~beyond)
        filled = flag == FillFlag.FILLED
        assert filled.any()
        assert (flag == FillFlag.BEYOND_LIMIT).any()
        assert ((out.a.values[filled] >= low) & (out.a.values[filled] <= high)).all()
        np.testing.assert_allclose(out.a.values, expected.a.values, rtol=2e-5)


# --- layouts ----------------------------------------------------------------------------------------------------------


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    side=st.sampled_from([6, 8, 16, 24, 40]),
    parts=st.sampled_from([1, 2]),
    sharded=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_layout_is_filled_alike(
    model: str, tmp_path_factory: Any, rows: int, columns: int, side: int, parts: int, sharded: bool, seed: int
) -> None:
    ds = field((60, 75), seed=seed).isel(y=slice(20, 20 + rows), x=slice(20, 20 + columns))
    ds["a"] = ds.a.where(np.random.default_rng(seed).random(ds.a.shape) < 0.8)
    if not np.isfinite(ds.a).any():
        ds.a[0, 0] = 1.0
    out = tmp_path_factory.mktemp("layout") / "out.zarr"
    layout = {"chunks": side // parts, "unit": side, "shards": sharded}
    report = fill_store(ds, out, **layout, model=model, quantiles=[0.1, 0.9], tails=True)
    assert report.failed == {}
    assert report.variables["a"]["cells"] == rows * columns
    assert_filled(out, infill(ds, model=model, quantiles=[0.1, 0.9], tails=True))
    array = zarr.open_group(out, mode="r")["a"]
    assert (array.shards is not None) == sharded


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_other_dimensions_and_dtypes(model: str, tmp_path: Path, dtype: str, zarr_format: int) -> None:
    ds = field((3, 30, 40), dtype).assign(note=("time", np.array(["a", "b", "c"], object)))
    ds["a"] = ds.a.transpose("y", "time", "x")
    ds["a"][:, 1] = ds.a.attrs.get("_FillValue", np.nan)
    source = written(ds, tmp_path / "in.zarr")
    out = tmp_path / "out.zarr"
    report = fill_store(lazily(source), out, chunks=16, zarr_format=zarr_format, model=model)
    counts = report.variables["a"]
    assert (counts["slices"], counts["empty_slices"], counts["beyond_limit"]) == (3, 1, 1200)
    assert counts["missing"] == counts["filled"] + counts["beyond_limit"]
    expected = infill(open_raster(source).load(), model=model)
    if dtype == "i2":
        # which is what files hold
        expected["a"] = expected.a.round()
    with xr.open_zarr(out) as found:
        xr.testing.assert_allclose(found.drop_vars("note").compute(), expected.drop_vars("note"), rtol=1e-4)
        assert found.note.values.tolist() == ["a", "b", "c"]


def test_mask_and_columns_around_the_earth(model: str, tmp_path: Path) -> None:
    ds = field((30, 72)).drop_vars(["y", "x"]).rename(y="lat", x="lon")
    ds = ds.assign_coords(lat=np.linspace(60, -60, 30), lon=np.arange(0, 360, 5.0))
    ds.lat.attrs["units"], ds.lon.attrs["units"] = "degrees_north", "degrees_east"
    ds.a[10:20, [0, 1, 2, 69, 70, 71]] = np.nan
    mask = np.ones((30, 72), bool)
    mask[:5] = False
    fill_store(ds, tmp_path / "out.zarr", chunks=24, model=model, mask=mask)
    assert_filled(tmp_path / "out.zarr", infill(ds, model=model, mask=mask))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": 24, "unit": 32}, "Choose a divisor of 32"),
        ({"chunks": "x"}, "got chunks='x' and unit='x', expected positive integers"),
        ({"chunks": 8.5, "unit": 17}, "got chunks=8.5 and unit=17, expected positive integers"),
        ({"shards": True, "zarr_format": 2}, "format 2 has no shards"),
        ({"zarr_format": 4}, "No Zarr format 4: expected 2 or 3"),
        ({"quantiles": [2]}, "quantiles must be"),
        ({"chunks": 0}, "got chunks=0 and unit=0, expected positive integers"),
    ],
)
def test_what_cannot_be_written_safely_is_refused_before_anything_is(
    model: str, tmp_path: Path, source: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fill_store(lazily(source), tmp_path / "out.zarr", model=model, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["in.zarr"]


def test_memory_is_planned_for_units(model: str, source: Path) -> None:
    small, large = (plan_store(lazily(source), FillOptions(model=model, device="cpu"), chunks=n) for n in (16, 64))
    assert (small.chunk_px, large.chunk_px) == ((16, 16), (60, 64))
    assert (
        small.peak_bytes
        < large.peak_bytes
        < plan_store(lazily(source), FillOptions(model=model, device="cpu"), chunks=64, workers=3).peak_bytes
    )


def test_the_workers_of_a_cluster_start_no_processes(model: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def peak() -> int:
        return plan_store(lazily(source), FillOptions(model=model, device="cpu"), chunks=16, workers=2).peak_bytes

    alone = peak()
    monkeypatch.setattr(parallel, "PROCESSES", parallel.ProcessSettings(start_after=1))
    assert peak() == alone


# --- resuming ---------------------------------------------------------------------------------------------------------


class StoppedError(Exception):
    """Ends a job from within its progress."""


def stop_after(n: int) -> Any:
    def progress(_: object, done: int, total: int) -> None:
        if done == n:
            raise StoppedError

    return progress


def test_an_unfinished_store_says_so_and_can_be_resumed(
    model: str, tmp_path: Path, source: Path, unbroken: Callable[..., Path]
) -> None:
    out = tmp_path / "out.zarr"
    with pytest.raises(StoppedError):
        fill_store(lazily(source), out, chunks=16, model=model, progress=stop_after(7))
    with pytest.raises(InputError, match="unfinished result of geonp fill: finish it with resume"):
        open_raster(out)
    progress = Journal(str(out)).progress()
    assert progress is not None
    assert progress["units"] == 20
    assert 7 <= progress["finished"] <= 7 + (os.cpu_count() or 1)
    with pytest.raises(OutputError, match="Continue with resume"):
        fill_store(lazily(source), out, chunks=16, model=model)
    report = fill_store(lazily(source), out, chunks=16, model=model, resume=True)
    assert report.reused == progress["finished"]
    assert report.variables["a"]["cells"] == 60 * 75
    assert stored(out) == stored(unbroken(16))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr", "out.zarr"]
    again = fill_store(lazily(source), out, chunks=16, model=model, resume=True)
    assert again == Report({}, 20, 20, {})


def test_another_job_is_not_resumed(
    model: str, tmp_path: Path, source: Path, checkpoint_copy: Path, expected: xr.Dataset
) -> None:
    out = tmp_path / "out.zarr"
    with pytest.raises(StoppedError):
        fill_store(lazily(source), out, chunks=16, model=model, progress=stop_after(1))
    for changed, options in (
        ("an option", {"seed": 1}),
        ("an option", {"max_distance": 5.0}),
        ("an option", {"mask": np.ones((60, 75), bool)}),
        ("the chunks of the output", {"chunks": 32}),
    ):
        with pytest.raises(InputError, match=f"{changed} changed since"):
            fill_store(lazily(source), out, resume=True, **{"chunks": 16, "model": model, **options})
    card = checkpoint_copy.with_suffix(".json")
    fields = json.loads(card.read_text())
    fields["neighbourhood"]["n_context"] //= 2
    settings = json.dumps({key: fields[key] for key in checkpoint.HASHED_FIELDS}, sort_keys=True)
    card.write_text(json.dumps({**fields, "settings_sha256": hashlib.sha256(settings.encode()).hexdigest()}))
    with pytest.raises(InputError, match="the model changed since"):
        fill_store(lazily(source), out, chunks=16, model=str(checkpoint_copy), resume=True)
    (source / "a" / "c" / "1" / "2").touch()
    with pytest.raises(InputError, match="the input changed since"):
        fill_store(lazily(source), out, chunks=16, model=model, resume=True)
    (tmp_path / "out.zarr.journal" / "job.json").unlink()
    with pytest.raises(InputError, match="Nothing to resume"):
        fill_store(lazily(source), out, chunks=16, model=model, resume=True)
    fill_store(lazily(source), out, chunks=16, model=model, overwrite=True)
    assert_filled(out, expected)


def test_another_slice_of_a_file_is_another_job(model: str, tmp_path: Path) -> None:
    """Also where no coordinate says which one it is."""
    path = written(xr.concat([field((20, 24), seed=seed) for seed in (1, 2)], "n"), tmp_path / "in.zarr")
    out = tmp_path / "out.zarr"
    fill_store(lazily(path).isel(n=0), out, model=model)
    for other in (lazily(path).isel(n=1), lazily(path).isel(n=[0, 1]).isel(n=1)):
        with pytest.raises(InputError, match="was not made by this job"):
            fill_store(other, out, model=model, resume=True)
    same = lazily(path).isel(n=slice(0, 2), x=slice(None)).isel(n=0)
    assert not fill_store(same, out, model=model, resume=True).failed


ZYGOTE = """
import os, random, signal, sys, time
from geonp.inference import checkpoint
from geonp.fill.store import fill_store
from geonp.io.files import open_raster
from geonp.io import journal, owner
journal.OWNERS = owner.OwnerSettings(settle_s=0)  # only one process at a time takes over
source, out, model, seed = sys.argv[1:]
checkpoint.load_model(model)  # once, not in each child
rng, kills = random.Random(int(seed)), 0
while True:
    child = os.fork()
    if child == 0:
        report = fill_store(open_raster(source, chunks=None), out, chunks=10, model=model, resume=True)
        os._exit(0)
    deadline = time.monotonic() + rng.uniform(0.05, 0.5)
    while time.monotonic() < deadline and kills < 10:
        time.sleep(0.01)
    if kills < 10:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    kills += os.WIFSIGNALED(status)
    if status == 0:
        break
print(kills)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_killed_at_random_moments_the_store_is_the_same(model: str, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.zarr", tmp_path / "out.zarr"
    source = written(field((40, 45)), tmp_path / "in.zarr", encoding={"a": {"chunks": (20, 25)}})
    command = [sys.executable, "-W", "ignore", "-c", ZYGOTE]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, source, out, model, "1"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1
    fill_store(lazily(source), whole, chunks=10, model=model)
    assert_filled(out, xr.open_zarr(whole, mask_and_scale=False))
    assert set(stored(out)) == set(stored(whole))
    assert not Path(f"{out}.journal").exists()


def test_killed_before_any_of_its_files_is_written_the_store_is_the_same(
    model: str, tmp_path: Path, source: Path, expected: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each file of a fill, what lies there is copied: that is what a process killed at this moment leaves."""
    out, left_behind, lock = tmp_path / "whole" / "out.zarr", list[Path](), threading.RLock()
    out.parent.mkdir()

    def copied_before(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def write(*arguments: Any, **options: Any) -> Any:
            with lock:
                left_behind.append(tmp_path / str(len(left_behind)))
                shutil.copytree(out.parent, left_behind[-1])
                return original(*arguments, **options)

        patch.setattr(owner, name, write)

    with monkeypatch.context() as patch:
        if hasattr(_local, "_atomic_write"):
            copied_before(Path, "replace")  # with which each file of a Zarr store gets its name
        else:
            copied_before(_local, "_put")
        copied_before(Journal, "record")
        copied_before(Journal, "note_created")
        fill_store(lazily(source), out, chunks=40, model=model)
    reused = set()
    monkeypatch.setattr("geonp.io.journal.OWNERS", OwnerSettings(settle_s=0))  # nobody else claims the copies
    for folder in left_behind[::5]:
        reused.add(fill_store(lazily(source), folder / "out.zarr", chunks=40, model=model, resume=True).reused)
        assert [path.name for path in folder.iterdir()] == ["out.zarr"]
        assert stored(folder / "out.zarr") == stored(out), folder.name
    assert len(left_behind) > 20
    assert len(reused) > 2
    assert_filled(out, expected)


@pytest.mark.parametrize("opened", ["lazily", "by xarray"])
def test_a_store_is_not_filled_into_itself(
    opened: str, model: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored(source)
    (tmp_path / "link.zarr").symlink_to(source)
    monkeypatch.chdir(tmp_path)
    ds = lazily(source) if opened == "lazily" else xr.open_zarr(source, consolidated=False)
    for target in (source, "./in.zarr", "link.zarr"):
        with pytest.raises(InputError, match="The input and the output are the same"):
            fill_store(ds, target, overwrite=True, model=model)
    assert stored(source) == before


def test_a_folder_that_is_no_store_stays_as_it_is(model: str, tmp_path: Path, source: Path) -> None:
    out = tmp_path / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("all of it")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(OutputError, match=r"precious' is not a Zarr store, and not empty: it is left as it is"):
            fill_store(lazily(source), out, model=model, **options)
    assert (out / "thesis.txt").read_text() == "all of it"


def test_the_output_neither_contains_nor_lies_in_what_is_read(
    model: str, tmp_path: Path, source: Path, checkpoint_copy: Path
) -> None:
    out = written(field(), tmp_path / "out.zarr")
    inner = written(field(), out / "in.zarr")
    weights = str(checkpoint_copy.rename(out / "copy.safetensors"))
    checkpoint_copy.with_suffix(".json").rename(out / "copy.json")
    mask = lazily(inner)["a"].notnull()
    mask.encoding["source"] = str(inner)
    before = stored(out)
    cases: list[tuple[str, Path, Path, dict[str, Any]]] = [
        ("The input and the output contain one another", inner, out, {}),
        ("The input and the output contain one another", source, source / "out.zarr", {}),
        ("The mask and the output contain one another", source, out, {"mask": mask}),
        ("The mask and the output are the same", source, inner, {"mask": mask}),
        ("The model and the output contain one another", source, out, {"model": weights}),
    ]
    for text, raster, target, options in cases:
        for how in ({"overwrite": True}, {"resume": True}):
            with pytest.raises(InputError, match=text):
                fill_store(lazily(raster), target, **{"model": model, **options, **how})
    assert stored(out) == before


def test_neither_a_link_nor_a_foreign_journal_is_overwritten(
    model: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious, link = written(field(seed=1), tmp_path / "precious.zarr"), tmp_path / "link.zarr"
    before = stored(precious)
    link.symlink_to(precious)
    with pytest.raises(OutputError, match=r"The output is a link: got .*link.zarr', which leads to .*precious.zarr'"):
        fill_store(lazily(source), link, model=model, overwrite=True)
    assert stored(precious) == before
    (tmp_path / "out.zarr.journal").mkdir()
    (tmp_path / "out.zarr.journal" / "diary.txt").write_text("all of it")
    with pytest.raises(OutputError, match=r"got 'diary[.]txt' there, expected nothing, or a journal"):
        fill_store(lazily(source), tmp_path / "out.zarr", model=model, overwrite=True)
    assert (tmp_path / "out.zarr.journal" / "diary.txt").read_text() == "all of it"
    assert not (tmp_path / "out.zarr").exists()


def test_workers_write_to_the_folder_of_their_caller(
    model: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []

    def write(self: Store, *_: Any, **__: Any) -> None:
        seen.append(self.url)

    monkeypatch.setattr(Store, "write", write)
    fill_store(lazily(source), "out.zarr", model=model)
    assert set(seen) == {str(tmp_path / "out.zarr")}


@pytest.mark.parametrize("how", ["--resume", "--overwrite"])
@pytest.mark.parametrize("moment", ["removal", "creation"])
def test_the_command_line_continues_a_job_that_was_killed_before_its_store_was_there(
    model: str,
    tmp_path: Path,
    source: Path,
    unbroken: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    moment: str,
) -> None:
    out = written(field(seed=1), tmp_path / "out.zarr")

    def stop(*_: object, **__: object) -> NoReturn:
        raise StoppedError

    with monkeypatch.context() as patch:
        if moment == "removal":
            patch.setattr(LocalFileSystem, "rm", stop)
        else:
            patch.setattr("geonp.io.stores.zarr.create_group", stop)
        with pytest.raises((StoppedError, OutputError)):
            fill_store(lazily(source), out, model=model, overwrite=True)
    if moment == "creation":
        (out / "a").mkdir(parents=True)
        (out / "a" / "half").write_text("")
    assert not Store(str(out)).exists()
    cli("fill", source, out, how, "--model", model, "--quiet")
    assert stored(out) == stored(unbroken())


BARRIER = """
import os, sys, time
from geonp.errors import OutputError
from geonp.inference import checkpoint
from geonp.fill.store import fill_store
from geonp.io.files import open_raster
source, out, model, *tries = sys.argv[1:]
checkpoint.load_model(model)
for number, mode in enumerate(tries):
    target, start, children = f"{out}{number}.zarr", time.monotonic() + 0.3, []
    for seed in (1, 2):
        children.append(os.fork())
        if children[-1] == 0:
            ds = open_raster(source, chunks=None)
            time.sleep(max(0, start - time.monotonic()))
            how = {} if mode == "new" else {mode: True}
            try:
                fill_store(ds, target, chunks=20, model=model, max_distance=float(seed), **how)
            except OutputError as error:
                print(error, flush=True)
                os._exit(1)
            os._exit(0)
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_of_two_jobs_that_start_at_once_one_is_refused(model: str, tmp_path: Path) -> None:
    tries, whole = ["new"] * 2 + ["overwrite"] * 2, []
    source = written(field((40, 45)), tmp_path / "few.zarr", encoding={"a": {"chunks": (20, 25)}})
    for distance in (1.0, 2.0):
        whole.append(tmp_path / f"whole{distance:.0f}.zarr")
        fill_store(lazily(source), whole[-1], chunks=20, model=model, max_distance=distance)
    for number in range(2, 4):  # what a killed job left
        with pytest.raises(StoppedError):
            fill_store(lazily(source), tmp_path / f"{number}.zarr", model=model, progress=stop_after(1))
        owner = {"token": "gone", "host": platform.node(), "pid": os.getpid(), "started": 0.0}
        (tmp_path / f"{number}.zarr.journal" / "owner.json").write_text(json.dumps(owner))
    command = [sys.executable, "-W", "ignore", "-c", BARRIER, source, f"{tmp_path}/", model, *tries]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    refused = re.compile("Another job writes|The output exists")  # the latter if one has ended as the other begins
    assert done.returncode == 0, done.stderr
    assert [line for line in lines if line not in {"0 1", "1 0"} and not refused.match(line)] == []
    for number, codes in enumerate(line for line in lines if line in {"0 1", "1 0"}):
        assert stored(tmp_path / f"{number}.zarr") == stored(whole[codes.split().index("0")])
    assert len(lines) == 2 * len(tries)
    assert not list(tmp_path.glob("*.journal"))


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_running_job_is_not_taken_over(
    model: str, tmp_path: Path, source: Path, expected: xr.Dataset, how: str
) -> None:
    out, refused = tmp_path / "out.zarr", []

    def start_another(*_: object) -> None:
        with pytest.raises(OutputError, match=rf"Another job writes .* got process {os.getpid()} on .*Wait for it"):
            fill_store(lazily(source), out, chunks=40, model=model, **{how: True})
        refused.append(True)

    fill_store(lazily(source), out, chunks=40, model=model, progress=start_another)
    assert len(refused) == 4
    assert_filled(out, expected)


def test_a_job_on_another_machine_is_taken_over_on_request_and_stops(
    model: str, tmp_path: Path, source: Path, unbroken: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.zarr"
    nodes, finished = iter(["elsewhere"]), []
    monkeypatch.setattr("geonp.io.owner.platform.node", lambda: next(nodes, "here"))
    monkeypatch.setattr("geonp.io.journal.OWNERS", OwnerSettings(settle_s=0))

    def take_over(*_: object) -> None:
        if not finished:
            with pytest.raises(OutputError, match=r"The output exists"):
                fill_store(lazily(source), out, chunks=16, model=model)
            finished.append(fill_store(lazily(source), out, chunks=16, model=model, resume=True).reused)

    with pytest.raises(OutputError, match=r"got .* as the owner of its journal, expected this one, which stops"):
        fill_store(lazily(source), out, chunks=16, model=model, progress=take_over)
    assert finished[0] >= 1
    assert stored(out) == stored(unbroken(16))


def test_an_input_that_vanishes_for_a_moment_fails_the_units_that_read_it(
    model: str, tmp_path: Path, source: Path, unbroken: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.zarr"
    away, own = tmp_path / "away", VariableSource.own

    def flapping(self: VariableSource) -> Any:
        if (self.region.chunk.row, self.region.chunk.col) != (16, 16):
            return own(self)
        source.rename(away)
        return own(self)

    with monkeypatch.context() as patch, dask.config.set(num_workers=1):
        patch.setattr(VariableSource, "own", flapping)
        patch.setattr("geonp.fill.workers.CPU_COUNT", 1)
        report = fill_store(
            lazily(source), out, chunks=16, model=model, progress=lambda *_: away.exists() and away.rename(source)
        )
    assert "The input vanished while it was read: got neither the chunk" in report.failed["0.1.1"]
    fill_store(lazily(source), out, chunks=16, model=model, resume=True)
    assert stored(out) == stored(unbroken(16))


@pytest.mark.parametrize("what", ["a file comes", "chunks go and return", "all goes"])
@pytest.mark.parametrize("read", [None, {}], ids=["lazy", "dask"])
def test_an_input_that_changes_while_it_is_filled_leaves_the_store_unfinished(
    model: str, tmp_path: Path, source: Path, what: str, read: Any
) -> None:
    out, chunks, away = tmp_path / "out.zarr", source / "a" / "c" / "1", tmp_path / "away"

    def change(_: object, done: int, __: int) -> None:
        if what == "a file comes":
            (source / "more").write_text("x")
        elif what == "all goes":
            assert not source.exists() or source.rename(away)
        elif done == 1:  # the document of the array stays
            chunks.rename(away)
        elif done == 4:
            away.rename(chunks)

    said = "The input vanished .*--resume" if what == "all goes" else "The input changed .* again with .*--overwrite"
    with pytest.raises(InputError, match=said):
        fill_store(open_raster(source, chunks=read), out, chunks=40, model=model, progress=change)
    with pytest.raises(InputError, match="unfinished result of geonp fill"):
        open_raster(out)
    (source / "more").unlink(missing_ok=True)
    if what == "all goes":
        away.rename(source)
    advised = {"resume" if what == "all goes" else "overwrite": True}
    again = open_raster(source, chunks=read)
    assert not fill_store(again, out, chunks=40, model=model, **advised).failed  # type: ignore[arg-type]


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "5s"}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["threads", "cluster"])
def where(request: pytest.FixtureRequest) -> dict[str, str]:
    """Options that fill on threads of this process, or on the workers of a cluster."""
    return {"scheduler": request.getfixturevalue("client").scheduler.address} if request.param == "cluster" else {}


def test_a_corrupt_input_chunk_fails_its_unit_alone_until_it_is_mended(
    model: str, tmp_path: Path, source: Path, unbroken: Callable[..., Path], where: dict[str, str]
) -> None:
    whole, out = unbroken(20, **where), tmp_path / "out.zarr"
    bad = source / "a" / "c" / "1" / "2"
    good, times = bad.read_bytes(), bad.stat()
    bad.write_bytes(b"x" * len(good))
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    report = fill_store(lazily(source), out, chunks=20, model=model, **where)
    # columns 50 to 75 of rows 20 to 40 can't be read: those of units 2 and 3
    assert set(report.failed) == {"0.1.2", "0.1.3"}
    assert report.failed["0.1.2"].startswith("a[y=20:40, x=40:60]: ")
    with pytest.raises(InputError, match="unfinished"):
        open_raster(out)
    with xr.open_zarr(out, consolidated=False) as ds, xr.open_zarr(whole) as right:
        flag = ds.a_fill_flag.values
        assert (flag[20:40, 40:] == FillFlag.FAILED).all()
        assert (flag == FillFlag.FAILED).sum() == 20 * 35
        assert np.isnan(ds.a.values[20:40, 40:]).all()
        # far from what can't be read nothing differs
        np.testing.assert_array_equal(ds.a.values[:, :20], right.a.values[:, :20])
        assert np.isfinite(ds.a.values[:20]).all()
    bad.write_bytes(good)
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = fill_store(lazily(source), out, chunks=20, model=model, resume=True, **where)
    assert again.failed == {}
    assert again.reused < again.units - 2, "the neighbours of what failed are filled again"
    assert stored(out) == stored(whole)


def test_a_mask_that_cannot_be_read_fails_the_units_that_need_it(
    small_tiles: str, tmp_path: Path, source: Path
) -> None:
    mask = xr.Dataset({"m": xr.ones_like(field().a, bool)})
    written(mask, tmp_path / "mask.zarr", encoding={"m": {"chunks": (20, 25), "fill_value": False}})
    bad = tmp_path / "mask.zarr" / "m" / "c" / "2" / "0"
    good, times, out = bad.read_bytes(), bad.stat(), tmp_path / "out.zarr"

    def fill(name: Path, **options: Any) -> Any:
        valid = lazily(tmp_path / "mask.zarr").m.chunk(20)
        return fill_store(lazily(source), name, chunks=20, model=small_tiles, mask=valid, **options)

    bad.write_bytes(b"x")
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    failed = fill(out).failed
    assert "0.2.0" in failed
    assert len(failed) < 12
    assert all("the mask cannot be read: " in text for text in failed.values())
    with pytest.raises(InputError, match="unfinished"):
        open_raster(out)
    bad.write_bytes(good)
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fill(out, resume=True).failed == fill(tmp_path / "whole.zarr").failed == {}
    assert stored(out) == stored(tmp_path / "whole.zarr")


def test_resume_and_overwrite_exclude_each_other(model: str, tmp_path: Path, source: Path) -> None:
    with pytest.raises(InputError, match=r"got both \(--resume, --overwrite\), expected one of them"):
        fill_store(lazily(source), tmp_path / "out.zarr", model=model, resume=True, overwrite=True)
    assert not (tmp_path / "out.zarr").exists()


def test_a_mask_without_observed_cells_is_doubted(model: str, tmp_path: Path, source: Path) -> None:
    ds = lazily(source)
    with pytest.warns(UserWarning, match=r"a: no missing cell was filled within the mask \(--mask\). If there are any"):
        report = fill_store(ds, tmp_path / "out.zarr", model=model, mask=ds.a.isnull())
    assert not report.variables["a"]["filled"]


def test_a_prediction_that_is_not_finite_fails_its_unit(
    model: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = region.fill_window

    def broken(inputs: Any, chunk: Any, job: Any) -> Any:
        if (chunk.row, chunk.col) == (20, 20):
            raise PredictionError("the model returned values that are not finite")
        return fill(inputs, chunk, job)

    monkeypatch.setitem(region.FILLS, Kind.NUMBERS, broken)
    report = fill_store(lazily(source), tmp_path / "out.zarr", chunks=20, model=model)
    assert list(report.failed) == ["0.1.1"]
    assert "not finite" in report.failed["0.1.1"]
    with xr.open_zarr(tmp_path / "out.zarr", consolidated=False) as ds, lazily(source) as given_:
        flag, part = ds.a_fill_flag.values[20:40, 20:40], given_.a.values[20:40, 20:40]
        np.testing.assert_array_equal(flag == FillFlag.FAILED, np.isnan(part))
        np.testing.assert_array_equal(ds.a.values[20:40, 20:40], part)


@pytest.mark.parametrize("part", ["correction", "covariance"])
def test_damaged_weights_fail_the_units_that_need_them(
    part: str, tmp_path: Path, source: Path, where: dict[str, str]
) -> None:
    """What they raise, and where: in distributions, in factorisations."""
    network, card = checkpoint.load_model("tnpkr-sa")
    network = deepcopy(network)
    with torch.no_grad():
        list(getattr(network.head, part).parameters())[-1].fill_(math.nan)
    fields = card.model_dump(exclude={"parameters", "sha256"})
    checkpoint.save(network, tmp_path / "damaged.safetensors", **{**fields, "name": "damaged"})
    ds = open_raster(source).load()
    ds.a[40:] = ds.a[40:].fillna(0.0)
    fill_from = written(ds.drop_encoding(), tmp_path / "few.zarr")
    model, out = tmp_path / "damaged.safetensors", tmp_path / "out.zarr"
    report = fill_store(lazily(fill_from), out, chunks=40, model=model, **where)
    assert set(report.failed) == {"0.0.0", "0.0.1"}
    assert all("PredictionError: the model" in why for why in report.failed.values())
    with xr.open_zarr(out, consolidated=False) as filled:
        np.testing.assert_array_equal(filled.a.values, ds.a.values)


@pytest.mark.parametrize("lasts", [False, True])
def test_a_unit_that_missed_cells_around_it_is_filled_again(
    lasts: bool,
    model: str,
    tmp_path: Path,
    source: Path,
    unbroken: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that fails for a while must not leave cells that others would have, in a store that is complete."""
    whole, out, read, reads = unbroken(40), tmp_path / "out.zarr", VariableSource.stored_values, [0]
    window, around = VariableSource.windows_of, threading.local()

    def looking_around(*arguments: Any) -> Any:
        around.now = True
        try:
            return window(*arguments)
        finally:
            around.now = False

    def flaky(*arguments: Any) -> Any:
        now = getattr(around, "now", False)
        reads[0] += now
        if now and (lasts or reads[0] < 8):
            raise OSError("connection reset")
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(VariableSource, "stored_values", flaky)
        patch.setattr(VariableSource, "windows_of", looking_around)
        report = fill_store(lazily(source), out, chunks=40, model=model)
    assert reads[0] > 8
    if lasts:
        assert "surrounding cells could not be read" in report.failed["0.0.0"]
        with pytest.raises(InputError, match="unfinished"):
            open_raster(out)
        report = fill_store(lazily(source), out, chunks=40, model=model, resume=True)
    assert report.failed == {}
    assert stored(out) == stored(whole)


def test_a_full_disk_stops_the_job_and_keeps_what_is_done(
    model: str, tmp_path: Path, source: Path, expected: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write, left = tmp_path / "out.zarr", Store.write, [4]
    one_at_a_time = threading.Lock()

    def full(self: Store, *arguments: Any) -> None:
        with one_at_a_time:
            left[0] -= 1
            if left[0] < 0:
                monkeypatch.setattr(zarr.Array, "__setitem__", no_space)
            write(self, *arguments)

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", full)
        with pytest.raises(OutputError, match=r"No space left on device.*continue with resume"):
            fill_store(lazily(source), out, chunks=16, model=model)
    monkeypatch.undo()
    progress = Journal(str(out)).progress()
    assert progress is not None
    assert progress["finished"] == 4
    # undone: the precision that the module's fixture sets
    report = fill_store(lazily(source), out, chunks=16, model=model, resume=True)
    assert (report.reused, report.failed) == (4, {})
    assert_filled(out, expected)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for a few units, where the system lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", folder], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("file systems can't be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_is_really_full_loses_nothing(
    model: str, small_disk: Path, source: Path, where: dict[str, str], expected: xr.Dataset
) -> None:
    out = small_disk / "out.zarr"
    with pytest.raises(OutputError, match=r"No space left on device.*continue with resume"):
        fill_store(lazily(source), out, chunks=16, model=model, **where)
    progress = Journal(str(out)).progress()
    assert progress is not None
    assert 0 < progress["finished"] < progress["units"]
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    report = fill_store(lazily(source), out, chunks=16, model=model, resume=True)
    assert (report.reused, report.failed) == (progress["finished"], {})
    assert_filled(out, expected)


def test_too_little_memory_is_met_with_smaller_batches(
    model: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, sizes = predictor.Predictor.__call__, []

    def greedy(self: predictor.Predictor, points: Any) -> Any:
        sizes.append(self.batch_size)
        if self.batch_size > 1:
            raise MemoryError
        return call(self, points)

    monkeypatch.setattr(predictor.Predictor, "__call__", greedy)
    report = fill_store(lazily(source), tmp_path / "out.zarr", chunks=32, model=model, batch_size=4)
    assert report.failed == {}
    assert {4, 2, 1} == set(sizes)
    hungry = fill_store(lazily(source), tmp_path / "hungry.zarr", chunks=32, model=model, batch_size=16)
    assert hungry.failed["0.0.0"] == "a[y=0:32, x=0:32]: out of memory, even with small batches"
    assert len(hungry.failed) == hungry.units
    assert hungry.variables["a"]["failed"] == hungry.variables["a"]["cells"]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_errors_of_memory_are_distinguished_from_others_of_torch(
    kind: str, model: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, sizes = TNPKR.forward, []

    def greedy(self: TNPKR, xc: torch.Tensor, *others: torch.Tensor) -> Any:
        sizes.append(len(xc))
        if len(xc) > 1:
            if kind == "cuda":
                raise torch.OutOfMemoryError("CUDA out of memory")
            torch.empty(2**60)
        return call(self, xc, *others)

    monkeypatch.setattr(TNPKR, "forward", greedy)
    report = fill_store(lazily(source), tmp_path / "out.zarr", chunks=32, model=model, batch_size=2)
    assert report.failed == {}
    assert {1, 2} == set(sizes)


def test_units_too_large_to_be_read_fail(model: str, tmp_path: Path) -> None:
    def read(block: np.ndarray) -> np.ndarray:
        if block.size:
            raise MemoryError
        return block

    ds = field().chunk(y=32, x=32)
    ds["a"] = ds["a"].copy(data=ds["a"].data.map_blocks(read, meta=np.empty((0, 0), ds["a"].dtype)))
    report = fill_store(ds, tmp_path / "out.zarr", chunks=32, model=model)
    assert len(report.failed) == report.units > 1
    assert report.failed["0.0.0"] == "a[y=0:32, x=0:32]: out of memory, even with small batches"


def test_a_variable_without_observations_leaves_nothing(model: str, tmp_path: Path) -> None:
    ds = field().assign(b=lambda ds: ds.a * np.nan)
    with pytest.raises(InputError, match=r"'b' has no observed cell: all 4500 are missing"):
        fill_store(ds, tmp_path / "out.zarr", chunks=32, model=model)
    assert list(tmp_path.iterdir()) == []


# --- clusters ---------------------------------------------------------------------------------------------------------


def test_a_cluster_gives_the_same_although_a_worker_is_killed(
    model: str, tmp_path: Path, source: Path, unbroken: Callable[..., Path], client: Any
) -> None:
    out = tmp_path / "out.zarr"
    address, killed = client.scheduler.address, []

    def kill(_: object, done: int, total: int) -> None:
        if done == 3:
            killed.append(min(info["pid"] for info in client.run(lambda: {"pid": os.getpid()}).values()))
            os.kill(killed[0], signal.SIGKILL)

    report = fill_store(lazily(source), out, chunks=16, model=model, scheduler=address, progress=kill)
    assert killed
    assert (report.failed, report.units) == ({}, 20)
    with xr.open_zarr(out) as one, xr.open_zarr(unbroken(16)) as other:
        for name in one:
            np.testing.assert_allclose(one[name].values, other[name].values, rtol=1e-5, atol=1e-5)


def test_infill_on_the_workers_of_a_cluster_gives_the_same(model: str, expected: xr.Dataset, client: Any) -> None:
    out = infill(field().chunk(y=25, x=40), model=model).compute(scheduler=client.get)
    for name in expected:
        np.testing.assert_allclose(out[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=str(name))


def test_workers_that_live_on_write_to_the_store_that_there_is_now(
    model: str, tmp_path: Path, source: Path, client: Any, expected: xr.Dataset
) -> None:
    out, address = tmp_path / "out.zarr", client.scheduler.address
    for chunks in (64, 32):
        fill_store(lazily(source), out, chunks=chunks, model=model, scheduler=address, overwrite=True)
    assert zarr.open_group(out, mode="r")["a"].chunks == (32, 32)
    assert_filled(out, expected)


def test_workers_in_other_folders_load_the_model_that_a_relative_path_names(
    checkpoint_copy: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint_copy.parent)
    job = prepare(open_raster(source), FillOptions(model=checkpoint_copy.name)).job
    assert job.predictor.model == str(checkpoint_copy)


@pytest.mark.parametrize("name", ["copy.tif", "copy.zarr"])
def test_workers_in_other_folders_read_an_input_that_a_relative_path_names(
    name: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raster(open_raster(source), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(open_raster(name))
    (tmp_path / "elsewhere").mkdir()
    read = "import pickle, sys; print(float(pickle.load(sys.stdin.buffer)['a'].sum()))"
    worker = subprocess.run([sys.executable, "-c", read], input=sent, cwd=tmp_path / "elsewhere", capture_output=True)
    assert float(worker.stdout) == float(open_raster(name)["a"].sum()), worker.stderr


def test_no_more_processes_are_started_than_there_are_cores(
    model: str, tmp_path: Path, source: Path, expected: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    # in this process, which starts no other that imports torch
    monkeypatch.setattr(distributed, "LocalCluster", partial(distributed.LocalCluster, processes=False))
    monkeypatch.setattr("geonp.fill.workers.CPU_COUNT", 1)
    with pytest.warns(UserWarning, match="1 workers are started instead of 99: one for each core"):
        fill_store(lazily(source), tmp_path / "out.zarr", chunks=64, model=model, workers=99)
    assert_filled(tmp_path / "out.zarr", expected)


def test_workers_that_cannot_start_are_a_message_with_the_reason(
    model: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("distributed")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no semaphores")

    monkeypatch.setattr(multiprocessing.context.BaseContext, "Queue", refuse)
    with pytest.raises(ClusterError, match=r"The workers cannot be started on this machine: no semaphores\. Leave"):
        fill_store(lazily(source), tmp_path / "out.zarr", chunks=64, model=model, workers=1)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_tasks_on_a_cluster_are_named_by_their_units(model: str, tmp_path: Path, source: Path, client: Any) -> None:
    seen: set[str] = set()

    def note(*_: object) -> None:
        seen.update(client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks]))

    address = client.scheduler.address
    fill_store(lazily(source), tmp_path / "out.zarr", chunks=16, model=model, scheduler=address, progress=note)
    assert {"fill_unit-0.0.0", "fill_unit-0.3.4"} <= {key.rpartition("-")[0] for key in seen}


def test_a_client_is_used_without_being_named(
    model: str, tmp_path: Path, source: Path, client: Any, expected: xr.Dataset
) -> None:
    with client.as_current():
        report = fill_store(lazily(source), tmp_path / "out.zarr", chunks=32, model=model)
    assert report.failed == {}
    assert_filled(tmp_path / "out.zarr", expected)


def test_a_lost_scheduler_keeps_what_is_done(model: str, tmp_path: Path, source: Path, expected: xr.Dataset) -> None:
    distributed = pytest.importorskip("distributed")
    out = tmp_path / "out.zarr"
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    # in this process, which starts no other that imports torch
    cluster = distributed.LocalCluster(processes=False, protocol="tcp", **options)

    def lose(_: object, done: int, total: int) -> None:
        if done == 2:
            cluster.close()

    with pytest.raises(ClusterError, match=r"cluster is lost.*--resume"):
        fill_store(lazily(source), out, chunks=16, model=model, scheduler=cluster.scheduler_address, progress=lose)
    report = fill_store(lazily(source), out, chunks=16, model=model, resume=True)
    assert report.reused >= 2
    assert_filled(out, expected)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "127.0.0.1", "tcp://me@127.0.0.1:1"])
def test_a_missing_scheduler_is_reported_at_once(model: str, tmp_path: Path, source: Path, address: str) -> None:
    distributed = pytest.importorskip("distributed")
    before, shown = set(distributed.Client._instances), re.escape(address.replace("me@", "***@"))
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(ClusterError, match=f"No Dask scheduler answers at '{shown}'"),
    ):
        fill_store(lazily(source), tmp_path / "out.zarr", model=model, scheduler=address)
    assert not list(tmp_path.glob("out*"))
    new = set(distributed.Client._instances) - before
    assert not [client for client in new if client.status != "closed"]  # it would wait for a minute


def test_workers_that_the_system_refuses_are_named(
    model: str, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")

    def refused(**_: object) -> None:  # as where /dev/shm cannot be written
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(distributed, "LocalCluster", refused)
    with pytest.raises(
        ClusterError, match=r"cannot be started on this machine: .*Read-only.* Leave workers .--workers. out"
    ):
        fill_store(lazily(source), tmp_path / "out.zarr", model=model, workers=1)
    with pytest.raises(InputError, match="at least 1, got 0"):
        fill_store(lazily(source), tmp_path / "out.zarr", model=model, workers=0)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.rename(dict.fromkeys(ds.data_vars, "..")),
        lambda ds: ds.rename(dict.fromkeys(ds.data_vars, "n" * 300)),
        lambda ds: ds.rename(dict.fromkeys(ds.data_vars, "t\udce9")),
        lambda ds: ds.assign_attrs(of=object()),
        lambda ds: ds.assign_coords(of=((), object())),
    ],
)
def test_what_zarr_cannot_hold_is_refused_before_a_store_is_replaced(
    model: str, tmp_path: Path, change: Callable[[xr.Dataset], xr.Dataset]
) -> None:
    out = tmp_path / "out.zarr"
    xr.Dataset({"before": 1}).to_zarr(out, consolidated=False)
    with pytest.raises(OutputError, match=r"Zarr cannot hold the variables: .* Nothing was written"):
        fill_store(change(field()), out, model=model, overwrite=True)
    assert not list(tmp_path.glob("*.journal"))
    assert int(xr.open_zarr(out, consolidated=False)["before"]) == 1


def test_attributes_as_stackstac_has_them(tmp_path: Path) -> None:
    ds = field((6, 7))
    ds["b"] = next(iter(ds.data_vars.values())).assign_attrs(transform=Affine(30, 0, 5, 0, -30, 7))
    write_raster(ds, tmp_path / "a.zarr")
    stored = xr.open_zarr(tmp_path / "a.zarr", consolidated=False)
    assert stored["b"].attrs["transform"][:6] == [30, 0, 5, 0, -30, 7]
    ds["b"].attrs["spec"] = object()
    with pytest.raises(OutputError, match=r"ds\['b'\].attrs\['spec'\] is a object, .*: del ds\['b'\].attrs\['spec'\]"):
        write_raster(ds, tmp_path / "b.zarr")
    assert not (tmp_path / "b.zarr").exists()


@pytest.mark.parametrize("name", ["fill_store", "adapt", "evaluate", "interpolate", "cross_validate"])
def test_progress_that_cannot_be_shown_is_refused_before_the_work(model: str, tmp_path: Path, name: str) -> None:
    table = pd.DataFrame({"x": np.arange(9.0), "y": np.arange(9.0) % 3, "t": np.arange(9.0)})
    given = {
        "fill_store": (field(), tmp_path / "out.zarr"),
        "interpolate": (table, table[["x", "y"]]),
        "cross_validate": (table,),
    }
    options = {"out": tmp_path / "a.safetensors"} if name == "adapt" else {}
    with pytest.raises(InputError, match=r"progress must be a function.*got 3"):
        getattr(geonp, name)(*given.get(name, (field(),)), model=model, progress=3, **options)
    assert not list(tmp_path.iterdir())
