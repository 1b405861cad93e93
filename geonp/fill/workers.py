"""Where units are filled: threads of this process, or the workers of a Dask cluster."""

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

from geonp.errors import ClusterError, GeonpError, MissingExtraError, warn
from geonp.fill.units import Unit, Work, fail_unit, fill_unit
from geonp.io.journal import Record

__all__ = ["executor", "processes", "run"]

logger = logging.getLogger(__name__)

MOST_RETRIES = 2
"""How often a unit that takes too much memory is tried again, with batches of half the size."""


Submit = Callable[[Any, Unit], "Future[Record]"]
"""Starts a unit of some shared work."""


def processes(workers: int) -> int:
    """How many processes are started where `workers` are asked for: no more than there are cores."""
    return min(workers, CPU_COUNT)


@contextmanager
def executor(
    workers: int | None, scheduler: str | None, device: str
) -> Iterator[tuple[Submit, int, Callable[[Work], Any]]]:
    """What fills units, how many of them are to be under way, and how the work that they share gets there.

    A new local cluster of `workers` processes, a running `scheduler`, this process's Dask client, or threads.

    Raises
    ------
    ClusterError
        When no scheduler answers.
    MissingExtraError
        Where ``distributed`` is needed and not installed.
    """
    if workers is None and scheduler is None and not _has_client():
        threads = CPU_COUNT if device == "cpu" else 2
        pool = ThreadPoolExecutor(threads, thread_name_prefix="geonp")
        logger.info("units are filled in %d threads", threads)
        try:
            yield (lambda work, unit: pool.submit(fill_unit, work, unit)), threads, lambda work: work
        except BaseException as error:
            # the units under way are finished, unless somebody waits at the keyboard
            pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
            raise
        pool.shutdown()
        return
    try:
        from distributed import Client, LocalCluster, get_client
    except ImportError as error:
        raise MissingExtraError("distributed", "distributed") from error
    with ExitStack() as stack:
        if scheduler is not None:
            try:
                client = stack.enter_context(Client(scheduler, set_as_default=False))
            except (OSError, TimeoutError, ValueError) as error:
                raise ClusterError(
                    f"No Dask scheduler answers at {scheduler!r}: {error}. Expected the address that it printed when "
                    "it started, such as tcp://127.0.0.1:8786."
                ) from error
        elif workers is not None:
            n = processes(workers)
            if n < workers:
                warn(f"{n} workers are started instead of {workers}: one for each core.")
            cluster = LocalCluster(n_workers=n, threads_per_worker=CPU_COUNT // n, dashboard_address=":0")
            client = stack.enter_context(Client(stack.enter_context(cluster), set_as_default=False))
        else:
            client = get_client()
        # a task, unlike scattered data, is made again when the worker that holds it is lost
        pool = stack.enter_context(client.get_executor(pure=False))

        def submit(work: Any, unit: Unit) -> Future[Record]:
            return pool.submit(fill_unit, work, unit, key=f"fill_unit-{unit.key}-{uuid4().hex}")  # type: ignore[no-any-return]

        threads = sum(client.nthreads().values())
        logger.info("units are filled by the Dask cluster at %s, in %d threads", client.scheduler.address, threads)
        yield submit, 2 * max(1, threads), partial(client.submit, _same, pure=False)


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
    work: Work, units: list[Unit], submit: Submit, width: int, shared: Callable[[Work], Any]
) -> Iterator[tuple[Unit, Record]]:
    """Fill units, a few at a time, and give each with its record when it is done, in no particular order.

    One that takes too much memory is tried again with smaller batches; one that still does has failed.

    Raises
    ------
    ClusterError
        When the cluster is lost.
    GeonpError
        Whatever a unit raises on purpose, such as that it cannot be written.
    """
    ways = [shared(work)]
    waiting, pending = iter(units), dict[Future[Record], tuple[Unit, int]]()
    try:
        while True:
            for unit in itertools.islice(waiting, width - len(pending)):
                pending[submit(ways[0], unit)] = unit, 0
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                unit, way = pending.pop(future)
                try:
                    record = future.result()
                except GeonpError:
                    raise
                except CancelledError as error:
                    raise ClusterError(
                        "The cluster is lost: its scheduler does not answer. What is finished is kept: start a "
                        "cluster, and go on with resume (--resume)."
                    ) from error
                except Exception as error:
                    if not (isinstance(error, MemoryError) or type(error).__name__ == "KilledWorker"):
                        raise
                    if way < MOST_RETRIES:
                        logger.info("unit %s took too much memory, and is tried again in smaller batches", unit.key)
                        if way + 1 == len(ways):
                            work = work.halved()
                            ways.append(shared(work))
                        pending[submit(ways[way + 1], unit)] = unit, way + 1
                        continue
                    record = fail_unit(work, unit, "out of memory, even with small batches")
                yield unit, record
    except GeonpError as error:
        if not isinstance(error, ClusterError):
            # as threads are waited for: a worker goes on with what is cancelled, and would write beside who resumes
            wait(pending)
        raise
    finally:
        for future in pending:
            future.cancel()
