"""The cores of this machine, which all chunks under way share batch by batch: in threads, and then in processes.

A batch is thousands of short calls, between which Python's lock lets one thread run at a time: on two cores two threads
fill 1.3 times as fast as one, and two processes twice as fast. But a process takes seconds to start and memory of its
own, so threads do small jobs, and begin larger ones. What is computed is the same either way.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import dask
from dask.system import CPU_COUNT

from geonp.errors import warn

__all__ = [
    "START_AFTER",
    "WORKER_BYTES",
    "memory_bytes",
    "number_of_cores",
    "number_of_processes",
    "on_cores",
    "peak_bytes",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

START_AFTER = 64
"""Items expected in all before processes start. So many batches are 8 to 10 seconds of one core; two processes need
about as long to start and to do them."""

IDLE_S = 60.0
"""Processes without work end after so many seconds."""

MOST_FAILURES = 8
"""So many items that only processes failed at are the fault of these."""

WORKER_BYTES = 250 * 2**20
"""What a process takes for libraries and a model, an upper bound, beside the code that all processes share."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # batches grow with their tiles: that is no leak, for which loky would start another process
    "LOKY_MAX_MEMORY_LEAK_SIZE": str(2**62),
}
"""Of each process: it has one core."""


def on_cores(function: Callable[[T], U], items: Iterable[T], device: str, expected: int) -> Iterator[U]:
    """``map(function, items)``, on a CPU on all cores, which everything under way shares.

    So a raster of one chunk keeps the cores as busy as one of many. At any time twice as many items as there are cores
    are under way.

    Parameters
    ----------
    function : callable
        Picklable, as are its items and results. What it raises is raised here.
    items : iterable
        Taken in the calling thread.
    device : str
        What `function` computes on; with a GPU it is called in the calling thread, for one item after the other,
        whichever thread it is of.
    expected : int
        How many items there will be: enough of them make processes start.
    """
    if device.partition(":")[0] != "cpu":
        return map(partial(_alone, function), items)
    return _in_order(function, items, expected)


def number_of_cores() -> int:
    """How many items are computed at once: Dask's setting ``num_workers``, else the cores that this process may use.

    In a worker of a Dask cluster as many as it has threads.
    """
    return _cores()[0]


def number_of_processes(expected: int) -> int:
    """How many processes so many items start, or 0.

    None for one core, nor in a worker of a cluster, which has threads of its own, nor in a process that multiprocessing
    started, as there are others beside it.
    """
    cores, worker = _cores()
    alone = not worker and multiprocessing.parent_process() is None and not multiprocessing.current_process().daemon
    return cores if alone and cores > 1 and expected >= START_AFTER else 0


def peak_bytes() -> int | None:
    """Most memory that this process has taken, and on Linux the processes that it started; None on Windows.

    Files that are mapped into memory, as the code of libraries, are shared, and counted for this process alone.
    """
    if sys.platform == "win32":
        return None
    import resource

    # macOS counts bytes, Linux kibibytes, and among them those of the process that started this one
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    started = (_status_bytes(process.pid) for process in multiprocessing.active_children())
    return _status_bytes("self").get("VmHWM", own) + sum(
        max(0, kept["VmHWM"] - kept["RssFile"] - kept["RssShmem"]) for kept in started if "VmHWM" in kept
    )


def memory_bytes() -> float:
    """Of this machine; infinite where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not Unix
        return math.inf


def _status_bytes(pid: int | str | None) -> dict[str, int]:
    """What Linux tells of a process's memory; nothing when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # it has ended, or this is not Linux
        return {}
    return {
        name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if "kB" in rest
    }


def _cores() -> tuple[int, str]:
    """How many cores there are for this task, and the Dask worker, if any, that they are of."""
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
_GPU = threading.Lock()


def _alone(function: Callable[[T], U], item: T) -> U:
    """Its memory is for one batch at a time."""
    with _GPU:
        return function(item)


@lru_cache(maxsize=16)
def _threads(process: int, cores: int, worker: str) -> ThreadPoolExecutor:
    """Threads of this process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(cores, thread_name_prefix="geonp-model")


@lru_cache(maxsize=4)
def _processes(process: int, cores: int) -> _Processes:
    """Processes of this one: they are not those of a forked one."""
    return _Processes(cores)


def _in_order(function: Callable[[T], U], items: Iterable[T], expected: int) -> Iterator[U]:
    """Results in the order of the items, of which a few are under way ahead of what is asked for."""
    cores, worker = _cores()
    with _LOCK:  # a cache may make the same thing twice for two threads
        threads, processes = _threads(os.getpid(), cores, worker), _processes(os.getpid(), cores)
    processes.expect(expected)
    under_way = deque[tuple[T, Future[U], bool]]()

    def begin(item: T) -> None:
        future = processes.submit(function, item)
        under_way.append((item, future or threads.submit(function, item), future is not None))

    def result(item: T, future: Future[U], elsewhere: bool) -> U:
        try:
            return future.result()
        except Exception as error:
            if not elsewhere:
                raise
            found = threads.submit(function, item).result()  # raises what is the fault of the item
            processes.failed(error)
            return found

    try:
        for item in items:
            begin(item)
            if len(under_way) == 2 * cores:
                yield result(*under_way.popleft())
        while under_way:
            yield result(*under_way.popleft())
    finally:
        for _, future, _ in under_way:
            future.cancel()


class _Processes:
    """Processes beside this one, which its threads share: started when they are worth it, ended when they are idle.

    All that their executor is asked for it is asked in one thread: a KeyboardInterrupt, which the main thread alone
    gets, would leave its locks or its books such that the interpreter never ends.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.asking = ThreadPoolExecutor(1, "geonp-processes", _without_interrupts)
        self.lock = threading.Lock()
        self.executor: Executor | None = None
        self.rehearsals: list[Future[None]] = []
        self.expected = 0
        self.used = time.monotonic()
        self.lost = False
        self.failures = 0

    def expect(self, items: int) -> None:
        """Count items that will come: from zero, without processes, when these have been idle for long."""
        with self.lock:
            if time.monotonic() - self.used > IDLE_S:
                self._let_go()
                self.expected = 0
            self.expected += items
            self.used = time.monotonic()

    def submit(self, function: Callable[[T], U], item: T) -> Future[U] | None:
        """What a process will give for an item; None while none is ready."""
        with self.lock:
            self.used = time.monotonic()
            if self.lost or not number_of_processes(self.expected):
                return None
            try:
                if self.executor is None:
                    logger.info("%d processes start, for %d batches in all", self.cores, self.expected)
                    self.executor = self.asking.submit(_executor, self.cores).result()
                    # all of them import, load and compile before any result is waited for
                    self.rehearsals = [self._begun(_rehearse, function, item) for _ in range(self.cores)]
                if all(rehearsal.done() for rehearsal in self.rehearsals):
                    return self._begun(function, item)
                return None
            except Exception as error:  # whatever a system refuses: threads do it as well
                problem = error
        self.give_up(problem)
        return None

    def failed(self, error: Exception) -> None:
        """Count what a process could not do and this one could; broken processes, or several failures, end them all."""
        with self.lock:
            self.failures += 1
            last = self.failures >= MOST_FAILURES
        if last or isinstance(error, BrokenExecutor):
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Warn, once, that threads do the rest: processes that were killed for their memory would be again."""
        with self.lock:
            known, self.lost = self.lost, True
            self._let_go()
        if not known:
            warn(
                f"geonp goes on in threads, more slowly, as its processes failed: {type(error).__name__}: "
                f"{str(error).strip().partition(chr(10))[0]}",
                RuntimeWarning,
            )

    def _begun(self, function: Callable[..., U], *arguments: object) -> Future[U]:
        assert self.executor is not None
        return self.asking.submit(self.executor.submit, function, *arguments).result()

    def _let_go(self) -> None:
        if self.executor is not None:
            with suppress(RuntimeError):  # the interpreter ends, and with it all processes
                self.asking.submit(self.executor.shutdown, wait=False).result()
        self.executor, self.rehearsals = None, []


def _executor(processes: int) -> Executor:
    """Processes that are about to start. They end when they are idle, and with this process, however it ends."""
    from loky import ProcessPoolExecutor

    arguments = {"timeout": IDLE_S, "initializer": _begin, "initargs": (os.getpid(),), "env": ENVIRONMENT}
    return ProcessPoolExecutor(processes, **arguments)  # type: ignore[no-any-return]


def _without_interrupts() -> None:
    """Processes that this thread starts see none from the keyboard, which would print tracebacks of their imports."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _begin(parent: int) -> None:
    """Leave interrupts from the keyboard to the parent, and end when it has."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


def _rehearse(function: Callable[[T], U], item: T) -> None:
    function(item)
