"""Interrupts of a training on several devices."""

from __future__ import annotations

import multiprocessing
import signal

import pytest

from geonp.training import interrupts


class Process:
    """A process that had not begun to train, and fails once it is ended."""

    ended = False

    def terminate(self) -> None:
        self.ended = True


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_while_processes_start_is_no_error(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [process] * begun)

    def interrupted() -> None:
        with interrupts.forwarded():
            signal.raise_signal(signal.SIGINT)
            raise RuntimeError("process 1 was terminated")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.ended == begun


def test_other_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), interrupts.forwarded():
        raise RuntimeError("out of memory")
