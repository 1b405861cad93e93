"""Batches on all cores of this machine: on threads at first, on processes once there are enough batches.

A batch is thousands of short calls, between which Python's lock lets one thread run at a time: on two cores, two
threads fill 1.3 times as fast as one, two processes twice as fast. But a process takes seconds to start, and memory. So
threads do small jobs and begin large ones. Results are the same. All chunks being filled share threads and processes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import dask
import dask.threaded
from dask.system import CPU_COUNT

from geonp.errors import warn

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class ProcessSettings:
    """When processes start and end, and the memory that they take."""

    start_after: int = 64
    """Number of expected batches from which processes start. One core computes 64 in 8 to 10 s; two processes need
    about as long to start and compute them."""
    idle_s: float = 60.0
    """Processes without work end after this time."""
    max_failures: int = 8
    """Processes are given up after this many items that failed in them but not in a thread."""
    bytes_each: int = 250 * 2**20
    """Upper bound of the memory for libraries and a model, without the code that all processes share."""


PROCESSES = ProcessSettings()

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # memory grows with the size of the batches; loky would take that for a leak and replace the process
    "LOKY_MAX_MEMORY_LEAK_SIZE": str(2**62),
}
"""Environment of each process, which has one core."""


def on_cores(function: Callable[[T], U], items: Iterable[T], device: str, expected: int) -> Iterator[U]:
    """``map(function, items)``, on a CPU with all cores.

    Twice as many items as there are cores are submitted at a time, so a raster of one chunk keeps the cores as busy as
    one of many.

    Parameters
    ----------
    function : callable
        Picklable, as are its items and results. Its exceptions are raised here.
    items : iterable
        Iterated in the calling thread.
    device : str
        The device that `function` computes on. A GPU has one thread, which computes an item at a time, since its memory
        holds one batch; the next ones are prepared meanwhile.
    expected : int
        Approximate number of items; processes start if there are enough of them.

    Yields
    ------
    object
        The results, in the order of the items.
    """
    if device.partition(":")[0] != "cpu":
        return _in_order(function, items, 2, _threads_of(1, device))
    cores, worker = _cores()
    with _LOCK:
        processes = shared_processes(os.getpid(), cores)
    processes.expect(expected)
    return _in_order(function, items, 2 * cores, _threads_of(cores, worker), processes)


def number_of_cores() -> int:
    """Number of items computed at a time: Dask's setting ``num_workers``, by default the cores open to this process.

    In a worker of a Dask cluster, the number of its threads.
    """
    return _cores()[0]


def number_of_processes(expected: int) -> int:
    """Number of processes that start for `expected` items; 0 if threads do them.

    Processes do not start on a single core, in the workers of a cluster, which have threads of their own, or in
    processes that multiprocessing started, since others work beside them.
    """
    cores, worker = _cores()
    alone = not worker and multiprocessing.parent_process() is None and not multiprocessing.current_process().daemon
    return cores if alone and cores > 1 and expected >= PROCESSES.start_after else 0


def peak_bytes() -> int | None:
    """Peak memory of this process and, on Linux, of the processes that it has started; None on Windows.

    Files mapped into memory, such as libraries, are shared, and counted only for this process.
    """
    if sys.platform == "win32":
        return None
    import resource

    # macOS counts bytes; Linux counts kibibytes, and includes the peak of the process that started this one
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    started = (_status_bytes(process.pid) for process in multiprocessing.active_children())
    return _status_bytes("self").get("VmHWM", own) + sum(
        max(0, status["VmHWM"] - status["RssFile"] - status["RssShmem"]) for status in started if "VmHWM" in status
    )


def _status_bytes(pid: int | str | None) -> dict[str, int]:
    """Memory of a process by the names of Linux; empty if it has ended. psutil does not report peaks on Linux."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # it has ended, or this is not Linux
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: 1024 * int(value.split()[0]) for name, _, value in pairs if "kB" in value}


def _cores() -> tuple[int, str]:
    """Number of cores for this task, and the address of the Dask worker that runs it, if any."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        try:
            worker = get_worker()
        except ValueError:
            pass
        else:
            return worker.state.nthreads, worker.address
    return dask.config.get("num_workers", None) or CPU_COUNT, ""


_LOCK = threading.Lock()
"""Held while pools are looked up: lru_cache may call a function twice for two threads."""


def _forget_threads() -> None:
    """Let a forked process start threads of its own: it has inherited pools and locks, but no thread that serves them.

    Dask's pool is of Dask, which does not notice a fork, and waits for ever.
    """
    global _LOCK
    _LOCK = threading.Lock()
    dask.threaded.default_pool = None
    dask.threaded.pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


@lru_cache(maxsize=16)
def _threads(pid: int, n: int, of: str) -> ThreadPoolExecutor:
    """Threads of the process `pid`, and of a worker or a GPU; a forked process has none of its parent's."""
    return ThreadPoolExecutor(n, thread_name_prefix="geonp-model")


def _threads_of(n: int, of: str) -> ThreadPoolExecutor:
    with _LOCK:
        return _threads(os.getpid(), n, of)


@lru_cache(maxsize=4)
def shared_processes(pid: int, cores: int) -> ModelProcesses:
    """Processes started by the process `pid`; a forked process cannot use its parent's."""
    return ModelProcesses(cores)


def _in_order(
    function: Callable[[T], U],
    items: Iterable[T],
    ahead: int,
    threads: ThreadPoolExecutor,
    processes: ModelProcesses | None = None,
) -> Iterator[U]:
    """Results in the order of the items, of which `ahead` are submitted at a time."""
    submitted = deque[tuple[T, Future[U], bool]]()

    def submit(item: T) -> None:
        future = None if processes is None else processes.submit(function, item)
        submitted.append((item, future or threads.submit(function, item), future is not None))

    def result(item: T, future: Future[U], in_process: bool) -> U:
        try:
            return future.result()
        except Exception as error:
            if not in_process or processes is None:
                raise
            value = threads.submit(function, item).result()  # raises if the item is at fault
            processes.failed(error)
            return value

    try:
        for item in items:
            submit(item)
            if len(submitted) == ahead:
                yield result(*submitted.popleft())
        while submitted:
            yield result(*submitted.popleft())
    finally:
        for _, future, _ in submitted:
            future.cancel()


class ModelProcesses:
    """Processes for all threads of this process. They start once there is enough work; loky ends them when idle.

    Only one thread talks to loky. KeyboardInterrupt is raised in the main thread; in the midst of loky's functions it
    would leave locks held and work uncounted, and the interpreter would never exit.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.dispatcher = ThreadPoolExecutor(1, "geonp-processes", _block_interrupts)
        self.lock = threading.Lock()
        self.executor: Executor | None = None
        self.warm_ups: list[Future[None]] = []
        self.expected = 0
        self.used = time.monotonic()
        self.given_up = False
        self.failures = 0

    def expect(self, items: int) -> None:
        """Count items that will come; the count starts again, and so do processes, after a long time without work."""
        with self.lock:
            if time.monotonic() - self.used > PROCESSES.idle_s:
                self.expected, self.warm_ups = 0, []
            self.expected += items
            self.used = time.monotonic()

    def submit(self, function: Callable[[T], U], item: T) -> Future[U] | None:
        """Compute an item in a process; None while no process is ready."""
        with self.lock:
            self.used = time.monotonic()
            if self.given_up or not number_of_processes(self.expected):
                return None
            try:
                if self.executor is None:
                    self.executor = self.dispatcher.submit(process_executor, self.cores).result()
                if not self.warm_ups:
                    logger.info("starting %d processes for %d batches", self.cores, self.expected)
                    # every process imports, loads and compiles before the first result is waited for
                    self.warm_ups = [self._dispatch(_warm_up, function, item) for _ in range(self.cores)]
                if all(warm_up.done() for warm_up in self.warm_ups):
                    return self._dispatch(function, item)
                return None
            except Exception as error:  # whatever the system refuses, threads can do the work
                problem = error
        self.give_up(problem)
        return None

    def failed(self, error: Exception) -> None:
        """Count an item that failed in a process but not in a thread; give up broken processes, or after several."""
        with self.lock:
            self.failures += 1
            last = self.failures >= PROCESSES.max_failures
        if last or isinstance(error, BrokenExecutor):
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Use threads from now on, and warn once. Processes killed for their memory would be killed again."""
        with self.lock:
            known, self.given_up = self.given_up, True
        if not known:
            warn(
                f"geonp continues on threads, more slowly, because its processes failed: {type(error).__name__}: "
                f"{str(error).strip().partition(chr(10))[0]}",
                RuntimeWarning,
            )

    def _dispatch(self, function: Callable[..., U], *arguments: object) -> Future[U]:
        assert self.executor is not None
        return self.dispatcher.submit(self.executor.submit, function, *arguments).result()


def process_executor(processes: int) -> Executor:
    """Processes that start with the first item, end when idle or with this process, and start again when needed."""
    from loky import ProcessPoolExecutor

    arguments = {"timeout": PROCESSES.idle_s, "initializer": _begin, "initargs": (os.getpid(),), "env": _ENVIRONMENT}
    return ProcessPoolExecutor(processes, **arguments)  # type: ignore[no-any-return]


def _block_interrupts() -> None:
    """Let processes started by this thread ignore Ctrl-C while they import, which would print tracebacks."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _begin(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it, even if it is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


def _warm_up(function: Callable[[T], U], item: T) -> None:
    function(item)
