"""Which process writes: a note that others can read, and whether the process that wrote it still runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psutil

Owner = Mapping[str, Any]
"""A note of :func:`note`, as JSON; of earlier versions or damaged files, any mapping."""


@dataclass(frozen=True)
class OwnerSettings:
    """Times by which owners are recognised, in seconds."""

    settle_s: float = 1.0
    """Of processes that claim a journal at once, the last one to write its claim within this time owns it."""
    clock_s: float = 5.0
    """The start of a process may differ by this when it is read again: clocks are set."""


OWNERS = OwnerSettings()

_owned: set[str] = set()  # tokens of what this process owns


def note() -> dict[str, Any]:
    """A note about this process, with a random token that identifies its job."""
    return {"token": uuid4().hex, "host": platform.node(), "pid": os.getpid(), "started": _started(os.getpid())}


@contextmanager
def owning(token: str) -> Iterator[None]:
    """Context in which this process owns the job of a token."""
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
        return started is not None and abs(started - float(owner["started"])) < OWNERS.clock_s
    except (LookupError, TypeError, ValueError, OverflowError):
        return False


def _started(pid: int) -> float | None:
    """Time at which a process started, in seconds; None if there is none."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None
