"""Executors of units: threads of this process, or the workers of a Dask cluster."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from dask.system import CPU_COUNT

from geonp.errors import ClusterError, GeonpError, InputError, from_extra, reason, warn
from geonp.fill.units import Unit, Work, fail_unit, fill_unit
from geonp.io.journal import Record

logger = logging.getLogger(__name__)

MAX_RETRIES = 2
"""Number of times that a unit is tried again after running out of memory, each time with half the batch size."""

Submit = Callable[[Any, Unit], "Future[Record]"]
"""Submits a unit of shared work."""

Pool = tuple[Submit, int, Callable[[Work], Any]]
"""What :func:`executor` yields."""


def processes(workers: int) -> int:
    """Number of processes started for `workers`: at most one per core."""
    if not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers must be the number of processes to start, at least 1, got {workers!r}")
    return min(workers, CPU_COUNT)


@contextmanager
def executor(workers: int | None, scheduler: str | None, device: str) -> Iterator[Pool]:
    """Open an executor: a local cluster of `workers` processes, a running `scheduler`, the Dask client, or threads.

    Raises ClusterError if no scheduler answers. Raises MissingExtraError if ``distributed`` is needed but not
    installed.

    Yields
    ------
    submit : callable
        Submits a unit, and returns its future.
    width : int
        Number of units to submit at a time.
    share : callable
        Sends the work that units share to the workers; `submit` takes its result.
    """
    if workers is None and scheduler is None and not _has_client():
        threads = CPU_COUNT if device == "cpu" else 2
        pool = ThreadPoolExecutor(threads, thread_name_prefix="geonp")
        logger.info("units are filled in %d threads", threads)
        try:
            yield (lambda work, unit: pool.submit(fill_unit, work, unit)), threads, lambda work: work
        except BaseException as error:
            # units that have started are finished, except after Ctrl-C
            pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
            raise
        pool.shutdown()
        return
    with from_extra("distributed", "distributed"):
        from distributed import Client, get_client
        from distributed.comm.addressing import resolve_address
    with ExitStack() as stack:
        if scheduler is not None:
            try:
                resolve_address(scheduler)  # a client with a wrong address would wait a minute for its end
                client = stack.enter_context(Client(scheduler, set_as_default=False))
            except (OSError, TimeoutError, ValueError) as error:
                raise ClusterError(
                    f"No Dask scheduler answers at {scheduler!r}: {error}. Expected the address that it printed at its "
                    "start, such as tcp://127.0.0.1:8786."
                ) from error
        elif workers is not None:
            n = processes(workers)
            if n < workers:
                warn(f"{n} workers are started instead of {workers}: one for each core.")
            client = stack.enter_context(Client(stack.enter_context(_local_cluster(n)), set_as_default=False))
        else:
            client = get_client()
        # unlike scattered data, a task runs again if the worker that holds its result is lost
        pool = stack.enter_context(client.get_executor(pure=False))

        def submit(work: Any, unit: Unit) -> Future[Record]:
            return pool.submit(fill_unit, work, unit, key=f"fill_unit-{unit.key}-{uuid4().hex}")  # type: ignore[no-any-return]

        threads = sum(client.nthreads().values())
        logger.info("units are filled by the Dask cluster at %s, in %d threads", client.scheduler.address, threads)
        yield submit, 2 * max(1, threads), partial(client.submit, _same, pure=False)


def _local_cluster(n: int) -> Any:
    """Start `n` processes, if the system grants the two queues of each: otherwise distributed waits without end."""
    from distributed import LocalCluster
    from distributed.utils import get_mp_context

    try:
        for queue in [get_mp_context().Queue() for _ in range(2 * n)]:
            queue.close()
        return LocalCluster(n_workers=n, threads_per_worker=CPU_COUNT // n, dashboard_address=":0")
    except Exception as error:
        raise ClusterError(
            f"The workers cannot be started on this machine: {reason(error)}. Leave workers (--workers) out: "
            "threads fill the units, too. In a container, /dev/shm must be writable."
        ) from error


def _has_client() -> bool:
    if "distributed" not in sys.modules:
        return False
    from distributed import get_client

    try:
        get_client()
    except ValueError:
        return False
    return True


def _same(work: Work) -> Work:
    return work


def run(
    work: Work, units: list[Unit], submit: Submit, width: int, share: Callable[[Work], Any]
) -> Iterator[tuple[Unit, Record]]:
    """Fill units, `width` at a time, and yield each with its record once it is finished, in any order.

    A unit that runs out of memory is tried again with smaller batches, at most `MAX_RETRIES` times, and then written as
    failed. Raises ClusterError if the cluster is lost. Raises GeonpError if a unit raises one, for example because it
    cannot be written.
    """
    shared = [share(work)]  # with the batch size of each attempt
    waiting, pending = iter(units), dict[Future[Record], tuple[Unit, int]]()
    try:
        while True:
            for unit in itertools.islice(waiting, width - len(pending)):
                pending[submit(shared[0], unit)] = unit, 0
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                unit, attempt = pending.pop(future)
                try:
                    record = future.result()
                except GeonpError:
                    raise
                except CancelledError as error:
                    raise ClusterError(
                        "The cluster is lost: its scheduler does not answer. Finished units are kept: start a "
                        "cluster, and continue with resume (--resume)."
                    ) from error
                except Exception as error:
                    if not (isinstance(error, MemoryError) or type(error).__name__ == "KilledWorker"):
                        raise
                    if attempt < MAX_RETRIES:
                        logger.info("unit %s ran out of memory; trying again with smaller batches", unit.key)
                        if attempt + 1 == len(shared):
                            work = work.halved()
                            shared.append(share(work))
                        pending[submit(shared[attempt + 1], unit)] = unit, attempt + 1
                        continue
                    record = fail_unit(work, unit, "out of memory, even with small batches")
                yield unit, record
    except GeonpError as error:
        if not isinstance(error, ClusterError):
            # workers finish units that have started, even cancelled ones, and would write beside a resumed job
            wait(pending)
        raise
    finally:
        for future in pending:
            future.cancel()
