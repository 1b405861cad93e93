"""Which process writes: a note that others can read, and whether the process that wrote it still runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psutil

__all__ = ["Owner", "here", "named", "note", "owning", "runs"]

Owner = Mapping[str, Any]
"""A note of :func:`note`, as JSON; of earlier versions or damaged files, any mapping."""

_CLOCK_S = 5.0  # by which the start of a process may differ when it is read again: clocks are set
_owned: set[str] = set()  # tokens of what this process owns


def note() -> dict[str, Any]:
    """A note about this process, with a random token that identifies what it is going to own."""
    return {"token": uuid4().hex, "host": platform.node(), "pid": os.getpid(), "started": _started(os.getpid())}


@contextmanager
def owning(token: str) -> Iterator[None]:
    """Context in which this process owns what the token identifies."""
    _owned.add(token)
    try:
        yield
    finally:
        _owned.discard(token)


def runs(owner: Owner) -> bool:
    """Whether the owner is known to run: a process of this machine, and not of a job of this process that ended."""
    return here(owner) and _same_process(owner) and (owner["pid"] != os.getpid() or owner.get("token") in _owned)


def here(owner: Owner) -> bool:
    """Whether the owner is or was a process of this machine."""
    return owner.get("host") == platform.node()


def named(owner: Owner | None) -> str:
    """The owner in words."""
    return "no process" if owner is None else f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"


def _same_process(owner: Owner) -> bool:
    try:
        started = _started(int(owner["pid"]))
        return started is not None and abs(started - float(owner["started"])) < _CLOCK_S
    except (LookupError, TypeError, ValueError, OverflowError):
        return False


def _started(pid: int) -> float | None:
    """Time at which a process started, in seconds; None if there is none."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None
