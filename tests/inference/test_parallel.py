"""Batches share the cores in threads, and in processes once there are enough of them, which changes no result."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import torch
import xarray as xr
from dask.system import CPU_COUNT

from geonp import errors, infill
from geonp.errors import GeonpError, MissingExtraError
from geonp.inference import parallel
from geonp.inference.context import Neighbourhood
from geonp.inference.parallel import number_of_processes, on_cores, peak_bytes
from geonp.inference.predictor import Points, Predictor, resolve

# --- threads ----------------------------------------------------------------------------------------------------------


def at_once(n: int = 4, device: str = "cpu") -> list[int]:
    """How many calls of :func:`on_cores` were running when each began."""
    lock, running = threading.Lock(), 0

    def call(_: int) -> int:
        nonlocal running
        with lock:
            running += 1
            seen = running
        time.sleep(0.05)
        with lock:
            running -= 1
        return seen

    return list(on_cores(call, range(n), device, n))


def test_all_cores_work_at_once_and_give_results_in_order() -> None:
    met = threading.Barrier(CPU_COUNT)

    def call(i: int) -> int:
        met.wait(timeout=30)
        return i

    assert list(on_cores(call, range(3 * CPU_COUNT), "cpu", 3 * CPU_COUNT)) == list(range(3 * CPU_COUNT))
    assert max(at_once(4 * CPU_COUNT)) <= CPU_COUNT


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_dask_may_be_told_to_use_fewer(device: str) -> None:
    assert max(at_once(2 * CPU_COUNT)) == CPU_COUNT
    with dask.config.set(num_workers=1):
        assert at_once(4, device) == [1] * 4


def test_results_are_let_go() -> None:
    class Result:
        pass

    found: list[weakref.ref[Result]] = []
    results = on_cores(lambda _: Result(), range(50), "cpu", 50)
    for _ in range(45):
        found.append(weakref.ref(next(results)))
    assert sum(reference() is not None for reference in found) <= 1


def test_a_device_is_given_one_batch_after_the_other_by_its_own_thread() -> None:
    threads = on_cores(lambda _: threading.current_thread(), range(9), "cuda", 9)
    assert set(threads) == {threading.current_thread()}


def test_nothing_more_is_begun_after_an_error() -> None:
    begun = []

    def call(i: int) -> int:
        begun.append(i)
        time.sleep(0.002)
        if i == 2:
            raise MemoryError("no room")
        return i

    results = on_cores(call, range(5000), "cpu", 5000)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(MemoryError, match="no room"):
        next(results)
    assert at_once(1) == [1]
    assert len(begun) < 2500


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_cores_of_its_own() -> None:
    assert at_once(1) == [1]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert len(pool.apply_async(at_once).get(timeout=60)) == 4


def test_a_dask_worker_keeps_to_its_own_threads() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert client.submit(at_once).result(timeout=60) == [1] * 4


# --- processes --------------------------------------------------------------------------------------------------------


def children() -> set[int | None]:
    """The processes that were started for models."""
    return {process.pid for process in multiprocessing.active_children() if "Loky" in process.name}


def until_ready(n: int = 2) -> set[int]:
    """Process numbers of the workers, which are started if need be."""

    def call(_: int) -> int:
        time.sleep(0.05)
        return os.getpid()

    found = set[int]()
    for pid in on_cores(call, range(10**4), "cpu", 10**4):
        found |= {pid} - {os.getpid()}
        if len(found) == n:
            return found
    raise AssertionError("no worker became ready")


@pytest.fixture(scope="module")
def shared() -> Iterator[parallel._Processes]:
    """Two processes for all of these tests: they take seconds to start."""
    with pytest.MonkeyPatch.context() as patch, dask.config.set(num_workers=2):
        patch.setattr(parallel, "START_AFTER", 1)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            patch.setenv(name, "2")
        until_ready()
        patch.setattr(parallel, "START_AFTER", 10**9)
        yield parallel._processes(os.getpid(), 2)


@pytest.fixture
def processes(shared: parallel._Processes, monkeypatch: pytest.MonkeyPatch) -> parallel._Processes:
    monkeypatch.setattr(parallel, "START_AFTER", 1)
    assert not shared.lost
    return shared


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[parallel._Processes]:
    """Processes of its own for a test that ends them."""
    monkeypatch.setattr(parallel, "START_AFTER", 1)
    found = parallel._Processes(2)
    monkeypatch.setattr(parallel, "_processes", lambda *_: found)
    with dask.config.set(num_workers=2):
        yield found
    found._let_go()


def points(n: int, seed: int = 0) -> list[Points]:
    """Batches of tiles for the shipped model, of several sizes."""
    rng = np.random.default_rng(seed)
    found = []
    for size, n_c, n_t in zip((1, 2, 4, 4) * n, (256, 100, 256, 31) * n, (32, 96, 320, 768) * n, strict=True):
        xc = rng.integers(-20, 20, (size, n_c, 2)).astype(np.float32)
        xt = rng.integers(-8, 8, (size, n_t, 2)).astype(np.float32)
        yc = rng.standard_normal((size, n_c, 1)).astype(np.float32)
        mask = rng.random((size, n_c)) < 0.9
        found.append(Points(xc, yc, mask, xt, np.arange(size) + 280.0, np.full(size, 3.0)))
    return found[:n]


def test_the_shipped_model_predicts_the_same_bits_in_a_process(
    processes: parallel._Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, _ = resolve("tnpkr-sa", "cpu", None)
    batches = points(8)

    def call(batch: Points) -> tuple[Any, int, int]:
        return predictor(batch), os.getpid(), torch.get_num_threads()

    elsewhere, pids, threads = zip(*on_cores(call, batches, "cpu", 8), strict=True)
    assert set(pids) <= children()
    assert set(threads) == {1}
    monkeypatch.setattr(parallel, "START_AFTER", 10**9)
    here, pids, _ = zip(*on_cores(call, batches, "cpu", 8), strict=True)
    assert set(pids) == {os.getpid()}
    for a, b in zip(elsewhere, here, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_raster_is_filled_the_same_by_processes(
    processes: parallel._Processes, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    z[5:30, 7:21] = np.nan
    raster = xr.DataArray(z, dims=("y", "x"), name="z")
    given: list[bool] = []
    submit = parallel._Processes.submit

    def counted(self: parallel._Processes, *args: Any) -> Any:
        future = submit(self, *args)
        given.append(future is not None)
        return future

    monkeypatch.setattr(parallel._Processes, "submit", counted)
    elsewhere = infill(raster, model=model, device="cpu", tails=True)
    assert given
    assert all(given)
    monkeypatch.setattr(parallel, "START_AFTER", 10**9)
    here = infill(raster, model=model, tails=True)
    for name in ("z", "z_standard_error", "z_tail", "z_fill_flag"):
        np.testing.assert_array_equal(elsewhere[name], here[name])


def test_items_are_taken_a_few_ahead_of_results_which_keep_their_order(processes: parallel._Processes) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for i in range(60):
            taken = i + 1
            yield i

    def call(i: int) -> tuple[int, int]:
        time.sleep(0.02 * (i % 3))
        return i, os.getpid()

    pids = set()
    for n, (i, pid) in enumerate(on_cores(call, items(), "cpu", 60)):
        assert i == n
        assert taken <= n + 2 * 2
        pids.add(pid)
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_several_threads_share_the_processes(processes: parallel._Processes) -> None:
    def call(i: int) -> tuple[int, int]:
        return i, os.getpid()

    def one(start: int) -> list[tuple[int, int]]:
        return list(on_cores(call, range(start, start + 50), "cpu", 50))

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(one, range(0, 600, 100)))
    assert [[i for i, _ in part] for part in found] == [list(range(n, n + 50)) for n in range(0, 600, 100)]
    assert {pid for part in found for _, pid in part} <= children()


@pytest.mark.parametrize("error", [MemoryError("no room"), MissingExtraError("gpytorch", "gp"), ZeroDivisionError()])
def test_an_error_of_the_model_reaches_the_caller_and_ends_nothing(
    processes: parallel._Processes, error: Exception
) -> None:
    def call(i: int) -> int:
        if i == 5:
            raise error
        return i

    results = on_cores(call, range(9), "cpu", 9)
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(type(error)) as caught:
        next(results)
    assert str(caught.value) == str(error)
    assert not processes.lost
    assert until_ready() <= children()


def test_the_keyboard_leaves_idle_processes_alone(processes: parallel._Processes) -> None:
    first = until_ready()
    for pid in first:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    assert until_ready() == first


def test_errors_travel() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, GeonpError)]
    assert len(classes) > 5
    for kind in classes:
        error = kind("package", "extra") if kind is MissingExtraError else kind("what is wrong")
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is kind
        assert str(back) == str(error)


def test_the_memory_of_processes_is_counted(processes: parallel._Processes) -> None:
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = peak_bytes()
    assert found is not None
    assert own + 2 * 30e6 < found < own + len(multiprocessing.active_children()) * 1e9


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux")
def test_the_memory_of_the_process_that_started_this_one_is_not_counted() -> None:
    taken = np.ones(2**28, np.uint8)
    code = "from geonp.inference.parallel import peak_bytes; print(peak_bytes())"
    found = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    own = peak_bytes()
    assert own is not None
    assert 10e6 < found < own - taken.nbytes / 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_nothing_is_started_for_little_nor_where_others_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "START_AFTER", 64)
    with dask.config.set(num_workers=3):
        assert [number_of_processes(n) for n in (0, 63, 64, 10**6)] == [0, 0, 3, 3]
    with dask.config.set(num_workers=1):
        assert number_of_processes(10**6) == 0
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply_async(number_of_processes, (10**6,)).get(timeout=60) == 0


def test_long_work_in_threads_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its items are expected now and then, longer apart than idle processes wait."""
    processes = parallel._Processes(2)
    monkeypatch.setattr(parallel, "IDLE_S", 0.2)
    monkeypatch.setattr(parallel, "START_AFTER", 1000)
    for _ in range(4):
        processes.expect(16)
        for _ in range(3):
            time.sleep(0.1)
            assert processes.submit(abs, 1) is None
    assert processes.expected == 64


def test_one_failure_of_a_process_ends_nothing() -> None:
    processes = parallel._Processes(2)
    for _ in range(parallel.MOST_FAILURES - 1):
        processes.failed(MemoryError())
    assert not processes.lost
    with pytest.warns(RuntimeWarning, match="goes on in threads"):
        processes.failed(MemoryError())
    assert processes.lost


def test_a_model_beside_the_script_is_found_by_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    predictor = Predictor("mine.safetensors", "", "cpu", "float32", 4, Neighbourhood())
    assert predictor.rooted().model == str(tmp_path / "mine.safetensors")
    assert replace(predictor, model="tnpkr-sa").rooted().model == "tnpkr-sa"


def test_nothing_is_started_in_a_dask_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "START_AFTER", 64)
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert client.submit(number_of_processes, 10**6).result(timeout=60) == 0


def test_what_a_killed_process_did_is_done_here_and_the_rest_too(others: parallel._Processes) -> None:
    here = os.getpid()

    def call(i: int) -> tuple[int, int]:
        if i == 40 and os.getpid() != here:
            os.kill(os.getpid(), 9)
        return i, os.getpid()

    until_ready()
    with pytest.warns(RuntimeWarning, match=r"goes on in threads.*its processes failed: TerminatedWorkerError") as seen:
        found = list(on_cores(call, range(80), "cpu", 80))
    assert len(seen) == 1
    assert [i for i, _ in found] == list(range(80))
    assert found[0][1] != here
    assert {pid for _, pid in found[44:]} == {here}
    assert others.lost
    assert at_once(4) == [1, 2, 2, 2]


def test_processes_that_cannot_start_are_done_without(
    others: parallel._Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError("no semaphores")

    monkeypatch.setattr(parallel, "_executor", refuse)
    with pytest.warns(RuntimeWarning, match="its processes failed: OSError: no semaphores"):
        assert list(on_cores(abs, range(9), "cpu", 9)) == list(range(9))
    assert list(on_cores(abs, range(9), "cpu", 9)) == list(range(9))


def test_a_process_may_grow(others: parallel._Processes) -> None:
    def call(i: int) -> int:
        if i == 0:
            sys.held = b"x" * 350 * 2**20  # type: ignore[attr-defined]
        time.sleep(0.2)
        return os.getpid()

    first = until_ready()
    assert set(on_cores(call, range(20), "cpu", 20)) == first


def test_idle_processes_end_and_start_again(others: parallel._Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "IDLE_S", 1.0)
    first = until_ready()
    deadline = time.monotonic() + 60
    while first & children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not first & children()
    monkeypatch.setattr(parallel, "IDLE_S", 60.0)
    others.used -= 60
    monkeypatch.setattr(parallel, "START_AFTER", 4)
    assert set(on_cores(lambda _: os.getpid(), range(3), "cpu", 3)) == {os.getpid()}
    assert not first & until_ready()


def test_the_executor_is_asked_where_no_keyboard_interrupt_is_raised(
    others: parallel._Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = set()

    class Executor(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **options: Any) -> Any:
            asking.add(threading.current_thread())
            return super().submit(*arguments, **options)

        def shutdown(self, *arguments: Any, **options: Any) -> None:
            asking.add(threading.current_thread())
            super().shutdown(*arguments, **options)

    monkeypatch.setattr(parallel, "_executor", Executor)
    assert list(on_cores(lambda i: i, range(99), "cpu", 99)) == list(range(99))
    with pytest.warns(RuntimeWarning, match="enough"):
        others.give_up(RuntimeError("enough"))
    assert len(asking) == 1
    assert not asking & {threading.main_thread()}


# --- ends -------------------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, time
from geonp.inference import parallel

cores.START_AFTER = 1


def call(i):
    time.sleep(0.05)
    return os.getpid()


seen = set()
for pid in cores.on_cores(call, range(10**5), "cpu", 10**5):
    if pid not in seen | {os.getpid()}:
        seen.add(pid)
        print(pid, flush=True)
    if len(seen) == 2 and sys.argv[1] == "end":
        break
    if len(seen) == 2 and sys.argv[1] == "leave":
        from geonp.cli.app import _leave

        _leave("go on.")
"""


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A script, without a guard, that has started two processes."""
    file = tmp_path / "script.py"
    # where the tests themselves run in the background, interrupts are ignored
    heed = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    file.write_text(heed + SCRIPT)
    process = subprocess.Popen(
        [sys.executable, *(["-W", "error"] * (request.param != "leave")), str(file), request.param],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DASK_NUM_WORKERS": "2"},
        start_new_session=True,
    )
    yield process
    process.kill()
    process.communicate()


def workers_of(script: subprocess.Popen[str]) -> list[int]:
    assert script.stdout is not None
    return [int(script.stdout.readline()) for _ in range(2)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").exists() or " Z " not in Path(f"/proc/{pid}/stat").read_text()


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(alive, pids))


@pytest.mark.parametrize("script", ["end"], indirect=True)
def test_the_interpreter_ends_silently(script: subprocess.Popen[str]) -> None:
    pids = workers_of(script)
    _, written = script.communicate(timeout=60)
    assert (script.returncode, written) == (0, "")
    assert gone(pids)


@pytest.mark.parametrize("script", ["leave"], indirect=True)
def test_the_command_line_leaves_nothing_behind(script: subprocess.Popen[str]) -> None:
    pids = workers_of(script)
    _, written = script.communicate(timeout=60)
    assert (script.returncode, written) == (130, "Interrupted: go on.\n")
    assert gone(pids)


@pytest.mark.parametrize("script", ["go on"], indirect=True)
def test_the_keyboard_interrupts_only_what_it_should(script: subprocess.Popen[str]) -> None:
    pids = workers_of(script)
    os.killpg(script.pid, signal.SIGINT)
    _, written = script.communicate(timeout=60)
    assert written.count("Traceback") == 1
    assert written.splitlines()[-1] == "KeyboardInterrupt"
    assert gone(pids)


@pytest.mark.parametrize("script", ["go on"], indirect=True)
def test_no_process_outlives_a_killed_one(script: subprocess.Popen[str]) -> None:
    pids = workers_of(script)
    assert all(map(alive, pids))
    script.kill()
    assert gone(pids)
