"""Interrupts that take effect at the end of a training step, so that the saved state is that of a complete step."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from types import FrameType

# Windows has no SIGHUP, which is sent when a terminal is closed
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def deferred(one_of_several: bool = False) -> Iterator[Event]:
    """Context in which the first signal that would raise KeyboardInterrupt only sets an event; the second raises it.

    Signals that are ignored or terminate the process keep doing so. With `one_of_several` processes that train
    together, all signals only set the event, since their parent decides.
    """
    interrupted = Event()

    def record(*_: object) -> None:
        if interrupted.is_set() and not one_of_several:
            raise KeyboardInterrupt
        interrupted.set()

    with _handled_by(record, all_signals=one_of_several):
        yield interrupted


@contextmanager
def forwarded() -> Iterator[None]:
    """Context in which the first signal that would raise KeyboardInterrupt is sent to the child processes instead.

    An error after it is a KeyboardInterrupt: the signal ends processes that have not begun to train.
    """
    interrupted = Event()

    def send(*_: object) -> None:
        children = multiprocessing.active_children()
        if interrupted.is_set() or not children:
            raise KeyboardInterrupt
        interrupted.set()
        for process in children:
            process.terminate()

    with _handled_by(send):
        try:
            yield
        except Exception as error:
            if interrupted.is_set():
                raise KeyboardInterrupt from error
            raise


def reset_in_worker() -> None:
    """Reset the handlers that a process for batches inherits from the training process, which ends it itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], all_signals: bool = False) -> Iterator[None]:
    if current_thread() is not main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    replaced = {number: old for number, old in handlers.items() if all_signals or callable(old)}
    try:
        for number in replaced:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in replaced.items():
            signal.signal(number, old or signal.SIG_DFL)  # None: not set from Python
