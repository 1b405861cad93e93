"""Interrupts that wait for the end of a training step, so that what is saved then is the state of a whole step."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

__all__ = ["Asked", "awaited", "default_in_worker", "passed_on"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Asked:
    """Whether somebody asked this process to end."""

    to_end: bool = False


@contextmanager
def awaited(one_of_several: bool = False) -> Iterator[Asked]:
    """Within it a signal that would raise KeyboardInterrupt only notes that; a second one raises it.

    Signals that are ignored, or end the process at once, still do. Of several processes that train together, any signal
    is only noted, however often it comes: those who started them decide.
    """
    asked = Asked()

    def note(*_: object) -> None:
        if asked.to_end and not one_of_several:
            raise KeyboardInterrupt
        asked.to_end = True

    with _handled_by(note, everything=one_of_several):
        yield asked


@contextmanager
def passed_on() -> Iterator[None]:
    """Within it the first signal that would raise KeyboardInterrupt goes to the processes that this one started."""
    asked = Asked()

    def send(*_: object) -> None:
        if asked.to_end:
            raise KeyboardInterrupt
        asked.to_end = True
        for process in multiprocessing.active_children():
            process.terminate()

    with _handled_by(send):
        yield


def default_in_worker() -> None:
    """Undo in a process that makes batches what it took over from the one that trains, which ends it itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], everything: bool = False) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {each: signal.getsignal(each) for each in SIGNALS}
    replaced = {each: old for each, old in earlier.items() if everything or callable(old)}

    try:
        for each in replaced:
            signal.signal(each, handler)
        yield
    finally:
        for each, old in replaced.items():
            signal.signal(each, old or signal.SIG_DFL)  # None: not set from Python
