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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
import torch
import xarray as xr
from dask.system import CPU_COUNT

from geonp import errors, infill
from geonp.errors import GeonpError, MissingExtraError
from geonp.inference import parallel
from geonp.inference.context import Neighbourhood
from geonp.inference.parallel import ProcessSettings, number_of_processes, on_cores, peak_bytes
from geonp.inference.predictor import Points, Predictor, resolve

# --- threads ----------------------------------------------------------------------------------------------------------


def threads(n: int = 4, device: str = "cpu") -> list[int]:
    """The threads in which :func:`on_cores` calls."""
    return list(on_cores(lambda _: threading.get_ident(), range(n), device, n))


def meet(n: int) -> None:
    """Calls that wait for each other, `n` of them."""
    met = threading.Barrier(n)
    assert list(on_cores(lambda i: met.wait(timeout=30) * 0 + i, range(3 * n), "cpu", 3 * n)) == list(range(3 * n))


def test_all_cores_work_at_once_and_give_results_in_order() -> None:
    meet(CPU_COUNT)
    assert len(set(threads(20 * CPU_COUNT))) <= CPU_COUNT


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_the_number_of_workers_of_dask_is_that_of_threads(device: str) -> None:
    with dask.config.set(num_workers=1):
        assert len(set(threads(8, device))) == 1
    with dask.config.set(num_workers=CPU_COUNT + 1):
        meet(CPU_COUNT + 1)


def test_results_are_let_go() -> None:
    class Result:
        pass

    found: list[weakref.ref[Result]] = []
    results = on_cores(lambda _: Result(), range(50), "cpu", 50)
    for _ in range(45):
        found.append(weakref.ref(next(results)))
    assert sum(reference() is not None for reference in found) <= 1


def test_a_device_is_given_one_batch_after_the_other_while_the_next_is_prepared() -> None:
    prepared = [threading.Event() for _ in range(9)]

    def items() -> Iterator[int]:
        for i in range(9):
            prepared[i].set()
            yield i

    def call(i: int) -> threading.Thread:
        assert i == 8 or prepared[i + 1].wait(60)
        return threading.current_thread()

    threads = {*on_cores(call, items(), "cuda", 9), *on_cores(call, items(), "cuda", 9)}
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_nothing_more_is_begun_after_an_error() -> None:
    taken = []

    def items() -> Iterator[int]:
        for i in range(5000):
            taken.append(i)
            yield i

    def call(i: int) -> int:
        if i == 2:
            raise MemoryError("no room")
        return i

    results = on_cores(call, items(), "cpu", 5000)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(MemoryError, match="no room"):
        next(results)
    assert len(taken) <= 3 + 2 * CPU_COUNT
    assert threads(1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_cores_of_its_own() -> None:
    assert threads(1)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert len(pool.apply_async(threads).get(timeout=60)) == 4


def test_a_dask_worker_keeps_to_its_own_threads() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        assert len(set(client.submit(threads, 8).result(timeout=60))) == 1


# --- processes --------------------------------------------------------------------------------------------------------


def children() -> set[int | None]:
    """The processes that were started for models."""
    return {process.pid for process in multiprocessing.active_children() if "Loky" in process.name}


def ended(pid: int | None) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(pids: Iterable[int | None]) -> bool:
    """Whether processes end within a minute."""
    deadline = time.monotonic() + 60
    while not all(map(ended, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return all(map(ended, pids))


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
def pool() -> Iterator[None]:
    """Two processes for all of these tests, as they take seconds to start."""
    with pytest.MonkeyPatch.context() as patch, dask.config.set(num_workers=2):
        patch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=1))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            patch.setenv(name, "2")
        until_ready()
        patch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=10**9))
        yield


@pytest.fixture
def processes(pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=1))


@pytest.fixture
def own_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other processes, for a test that ends them."""
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=1))
    processes = parallel.ModelProcesses(2)
    monkeypatch.setattr(parallel, "shared_processes", lambda *_: processes)
    with dask.config.set(num_workers=2):
        yield
    if processes.executor is not None:
        processes.executor.shutdown(wait=False)


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(parallel, "time", clock)
    return clock


class AtOnce(Executor):
    """Stands in for processes: computes in the thread that submits, which is the one that would talk to loky."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def stand_in(own_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes, but a stand-in that is ready at once."""
    monkeypatch.setattr(parallel, "process_executor", lambda _: AtOnce())


THREADS, PROCESSES = "geonp-model", "geonp-processes"


def where(_: object = None) -> str:
    """Where a call runs: in the threads of this process, or in the stand-in for processes."""
    return threading.current_thread().name.partition("_")[0]


def points(n: int, seed: int = 0) -> list[Points]:
    """Batches of tiles for the shipped model, of several sizes."""
    rng = np.random.default_rng(seed)
    found = []
    for size, n_c, n_t in zip((1, 2, 4, 4) * n, (256, 100, 256, 31) * n, (32, 96, 320, 768) * n, strict=True):
        xc = rng.integers(-20, 20, (size, n_c, 2)).astype(np.float32)
        xt = rng.integers(-8, 8, (size, n_t, 2)).astype(np.float32)
        yc = rng.standard_normal((size, n_c, 1)).astype(np.float32)
        mask = rng.random((size, n_c)) < 0.9
        loc, scale = np.arange(size) + 280.0, np.full(size, 3.0)
        found.append(Points(xc=xc, yc=yc, xt=xt, mask=mask, loc=loc, scale=scale))
    return found[:n]


def test_the_shipped_model_predicts_the_same_bits_in_a_process(
    processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, _ = resolve("tnpkr-sa", "cpu", None)
    batches = points(4)

    def call(batch: Points) -> tuple[Any, int, int]:
        return predictor(batch), os.getpid(), torch.get_num_threads()

    elsewhere, pids, threads = zip(*on_cores(call, batches, "cpu", 4), strict=True)
    assert set(pids) <= children()
    assert set(threads) == {1}
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=10**9))
    here, pids, _ = zip(*on_cores(call, batches, "cpu", 4), strict=True)
    assert set(pids) == {os.getpid()}
    for a, b in zip(elsewhere, here, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_raster_is_filled_the_same_by_processes(
    processes: None, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    z[5:30, 7:21] = np.nan
    raster = xr.DataArray(z, dims=("y", "x"), name="z")
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "__call__", None)  # of this process
        elsewhere = infill(raster, model=model, device="cpu", tails=True)
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=10**9))
    here = infill(raster, model=model, tails=True)
    for name in ("z", "z_standard_error", "z_tail", "z_fill_flag"):
        np.testing.assert_array_equal(elsewhere[name], here[name])


def test_items_are_taken_a_few_ahead_of_results_which_keep_their_order(processes: None) -> None:
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


def test_several_threads_share_the_processes(processes: None) -> None:
    def call(i: int) -> tuple[int, int]:
        return i, os.getpid()

    def one(start: int) -> list[tuple[int, int]]:
        return list(on_cores(call, range(start, start + 50), "cpu", 50))

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(one, range(0, 600, 100)))
    assert [[i for i, _ in part] for part in found] == [list(range(n, n + 50)) for n in range(0, 600, 100)]
    assert {pid for part in found for _, pid in part} <= children()


@pytest.mark.parametrize("error", [MemoryError("no room"), MissingExtraError("gpytorch", "gp"), ZeroDivisionError()])
def test_an_error_of_the_model_reaches_the_caller_and_ends_nothing(processes: None, error: Exception) -> None:
    def call(i: int) -> int:
        if i == 5:
            raise error
        return i

    results = on_cores(call, range(9), "cpu", 9)
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(type(error)) as caught:
        next(results)
    assert str(caught.value) == str(error)
    assert until_ready() <= children()


def test_the_keyboard_leaves_idle_processes_alone(processes: None) -> None:
    first = until_ready()
    for pid in first:
        os.kill(pid, signal.SIGINT)
    done, _ = psutil.wait_procs([psutil.Process(pid) for pid in first], timeout=0.3)
    assert not done
    assert until_ready() == first


def test_errors_travel() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, GeonpError)]
    assert len(classes) > 5
    for kind in classes:
        error = kind("package", "extra") if kind is MissingExtraError else kind("what is wrong")
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is kind
        assert str(back) == str(error)


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
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=64))
    with dask.config.set(num_workers=3):
        assert [number_of_processes(n) for n in (0, 63, 64, 10**6)] == [0, 0, 3, 3]
    with dask.config.set(num_workers=1):
        assert number_of_processes(10**6) == 0
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply_async(number_of_processes, (10**6,)).get(timeout=60) == 0


def test_slow_work_is_counted_too(stand_in: None, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A series of fills is one large fill, even if each of them takes longer than processes wait for work."""
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=64))

    def items() -> Iterator[int]:
        for i in range(16):
            clock.now += 40.0
            yield i

    assert [set(on_cores(where, items(), "cpu", 16)) for _ in range(3)] == [{THREADS}] * 3
    assert PROCESSES in set(on_cores(where, items(), "cpu", 16))


def test_fills_that_are_long_apart_are_not_counted_together(
    stand_in: None, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=64))
    for _ in range(6):
        assert set(on_cores(where, range(60), "cpu", 60)) == {THREADS}
        clock.now += 61.0


def test_processes_are_given_up_after_several_failures_that_only_they_have(
    stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(_: int) -> str:
        if where() == PROCESSES:
            raise MemoryError
        return where()

    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=1, max_failures=50))
    assert set(on_cores(call, range(40), "cpu", 40)) == {THREADS}
    with pytest.warns(RuntimeWarning, match="continues on threads, more slowly") as seen:
        assert set(on_cores(call, range(40), "cpu", 40)) == {THREADS}
    assert len(seen) == 1
    assert set(on_cores(where, range(40), "cpu", 40)) == {THREADS}


def test_a_model_beside_the_script_is_found_by_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    predictor = Predictor("mine.safetensors", "", "cpu", "float32", 4, Neighbourhood())
    assert predictor.rooted().model == str(tmp_path / "mine.safetensors")
    assert replace(predictor, model="tnpkr-sa").rooted().model == "tnpkr-sa"


def test_nothing_is_started_in_a_dask_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=64))
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        assert client.submit(number_of_processes, 10**6).result(timeout=60) == 0


def test_what_a_killed_process_did_is_done_here_and_the_rest_too(own_processes: None) -> None:
    here = os.getpid()

    def call(i: int) -> tuple[int, int]:
        if i == 40 and os.getpid() != here:
            os.kill(os.getpid(), 9)
        return i, os.getpid()

    until_ready()
    with pytest.warns(
        RuntimeWarning, match=r"continues on threads.*its processes failed: TerminatedWorkerError"
    ) as seen:
        found = list(on_cores(call, range(80), "cpu", 80))
    assert len(seen) == 1
    assert [i for i, _ in found] == list(range(80))
    assert found[0][1] != here
    assert {pid for _, pid in found[44:]} == {here}
    meet(2)


def test_processes_that_cannot_start_are_done_without(own_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError("no semaphores")

    monkeypatch.setattr(parallel, "process_executor", refuse)
    with pytest.warns(RuntimeWarning, match="its processes failed: OSError: no semaphores"):
        assert list(on_cores(abs, range(9), "cpu", 9)) == list(range(9))
    assert list(on_cores(abs, range(9), "cpu", 9)) == list(range(9))


def test_a_process_may_grow_and_its_memory_is_counted(own_processes: None) -> None:
    def call(i: int) -> int:
        if i == 0:
            sys.held = b"x" * 350 * 2**20  # type: ignore[attr-defined]
        time.sleep(0.2)  # loky looks at the memory every second
        return os.getpid()

    first, before = until_ready(), peak_bytes()
    assert set(on_cores(call, range(20), "cpu", 20)) == first
    assert before is not None
    assert before + 250 * 2**20 < peak_bytes() < before + 500 * 2**20


# on a busy machine an item may come just as a process ends; loky then starts another, and says so
@pytest.mark.filterwarnings("ignore:A worker stopped while some jobs were given:UserWarning")
def test_idle_processes_end_and_start_again(own_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=1, idle_s=2.0))
    first = until_ready()
    assert gone(first & children())
    monkeypatch.setattr(parallel, "PROCESSES", ProcessSettings(start_after=4, idle_s=0.0))
    assert set(on_cores(lambda _: os.getpid(), range(3), "cpu", 3)) == {os.getpid()}
    assert not first & until_ready()


def test_loky_is_called_where_no_keyboard_interrupt_is_raised(stand_in: None) -> None:
    """Always in the same thread, which is not the main thread."""
    callers = set(on_cores(lambda _: threading.current_thread().ident, range(99), "cpu", 99))
    assert len(callers) == 1
    assert not callers & {threading.main_thread().ident}


# --- ends -------------------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, time
from geonp.inference import parallel

parallel.PROCESSES = parallel.ProcessSettings(start_after=1)


def call(i):
    time.sleep(0.05)
    return os.getpid()


seen = set()
for pid in parallel.on_cores(call, range(10**5), "cpu", 10**5):
    if pid not in seen | {os.getpid()}:
        seen.add(pid)
        print(pid, flush=True)
    if len(seen) == 2 and sys.argv[1] == "end":
        break
    if len(seen) == 2 and sys.argv[1] == "leave":
        from geonp.cli.app import leave

        leave("go on.")
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


@pytest.mark.parametrize(
    ("script", "expected"), [("end", (0, "")), ("leave", (130, "Interrupted: go on.\n"))], indirect=["script"]
)
def test_interpreter_and_command_line_leave_nothing_behind(
    script: subprocess.Popen[str], expected: tuple[int, str]
) -> None:
    pids = workers_of(script)
    _, written = script.communicate(timeout=60)
    assert (script.returncode, written) == expected
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
    assert all(map(psutil.pid_exists, pids))
    script.kill()
    assert gone(pids)
