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

    columns = "{desc} {bar} {n_fmt}/{total_fmt} {postfix} {remaining}"
    with tqdm(desc="Filling", bar_format=columns, leave=False, mininterval=0) as bar:
        start, cells = time.monotonic(), 0

        def show(record: dict[str, Any], done: int, total: int) -> None:
            nonlocal cells
            cells += record["filled"]
            if bar.total is None:  # units of an earlier run took no time
                bar.total, bar.initial, bar.n = total, done - 1, done - 1
            bar.set_postfix_str(f"{cells / (time.monotonic() - start):,.0f} cells/s", refresh=False)
            bar.update(done - bar.n)

        yield show


def _lines(units: str) -> Show:
    start = printed = time.monotonic()
    cells, earlier = 0, -1

    def show(record: dict[str, Any], done: int, total: int) -> None:
        nonlocal cells, earlier, printed
        earlier = done - 1 if earlier < 0 else earlier
        cells += record["filled"]
        now = time.monotonic()
        if now - printed < _LINE_EVERY_S:
            return
        printed, seconds = now, now - start
        left = seconds / (done - earlier) * (total - done)
        echo(
            f"{done:,} of {total:,} {units}, {cells:,} cells filled, {cells / seconds:,.0f} cells/s, "
            f"{left / 60:,.0f} min left",
            err=True,
        )

    return show
