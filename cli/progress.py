"""Progress of a fill: a bar in a terminal, a line a minute in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from .show import echo, in_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    Show = Callable[[dict[str, Any], int, int], object]

_LINE_EVERY_S = 60.0
"""Seconds between lines of progress in a log."""


@contextmanager
def watched(shown: bool, units: str = "units") -> Iterator[Show | None]:
    """Yield a function to call after each unit, with its record and the numbers of finished units and of all units.

    `units` are called so in a log.
    """
    if not shown:
        yield None
    elif in_terminal():
        yield from _bar()
    else:
        yield _lines(units)


def computing(shown: bool) -> AbstractContextManager[Any]:
    """A bar of what Dask computes, in a terminal."""
    from dask.diagnostics.progress import ProgressBar

    return ProgressBar(out=sys.stderr, minimum=0.5) if shown and in_terminal() else nullcontext()


def _bar() -> Iterator[Show]:
    from tqdm import tqdm

    columns = "{desc} {bar} {n_fmt}/{total_fmt} {postfix}"
    with tqdm(desc="Filling", bar_format=columns, leave=False, mininterval=0) as bar:
        start, cells, remaining = time.monotonic(), 0, _Remaining()

        def show(record: dict[str, Any], done: int, total: int) -> None:
            nonlocal cells
            cells += record["filled"]
            if bar.total is None:  # units of an earlier run took no time
                bar.total, bar.initial, bar.n = total, done - 1, done - 1
            now = time.monotonic()
            left = remaining.seconds(now, done, total)
            said = "" if left is None else f" {tqdm.format_interval(left)}"
            bar.set_postfix_str(f"{cells / (now - start):,.0f} cells/s{said}", refresh=False)
            bar.update(done - bar.n)

        yield show


class _Remaining:
    """Estimate of the seconds that are left.

    What is finished first is left out: until then a model is loaded, and the first field of several times needs those
    of all times around it.
    """

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def seconds(self, now: float, done: int, total: int) -> float | None:
        """Seconds for the rest after so many units; None after the first ones."""
        since, before = self._first = self._first or (now, done)
        return None if done <= before else (now - since) / (done - before) * (total - done)


def _lines(units: str) -> Show:
    start = printed = time.monotonic()
    cells, remaining = 0, _Remaining()

    def show(record: dict[str, Any], done: int, total: int) -> None:
        nonlocal cells, printed
        cells += record["filled"]
        now = time.monotonic()
        left = remaining.seconds(now, done, total)
        if now - printed < _LINE_EVERY_S:
            return
        printed, seconds = now, now - start
        said = "" if left is None else f", {left / 60:,.0f} min left"
        rate = f"{cells:,} cells filled, {cells / seconds:,.0f} cells/s"
        echo(f"{done:,} of {total:,} {units}, {rate}{said}", err=True)

    return show
