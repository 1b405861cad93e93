"""Progress of a fill: a bar for people, a line now and then for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["watched"]

LINE_EVERY_S = 60.0

Report = dict[str, Any]


@contextmanager
def watched(shown: bool) -> Iterator[Callable[[Report, int, int], object] | None]:
    """Give what is to be called after each unit with its record, the number of finished ones and that of all."""
    if not shown:
        yield None
    elif sys.stderr.isatty():
        yield from _bar()
    else:
        yield _Lines()


def _bar() -> Iterator[Callable[[Report, int, int], object]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Filling"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task, start, cells = progress.add_task("fill", total=None, rate=""), time.monotonic(), 0

        def show(record: Report, done: int, total: int) -> None:
            nonlocal cells
            cells += record["filled"]
            rate = f"{cells / (time.monotonic() - start):,.0f} cells/s"
            progress.update(task, completed=done, total=total, rate=rate)

        yield show


class _Lines:
    """Prints a line every :data:`LINE_EVERY_S` seconds."""

    def __init__(self) -> None:
        self.start = self.printed = time.monotonic()
        self.cells, self.first = 0, -1

    def __call__(self, record: Report, done: int, total: int) -> None:
        self.first = done - 1 if self.first < 0 else self.first
        self.cells += record["filled"]
        now = time.monotonic()
        if now - self.printed < LINE_EVERY_S:
            return
        self.printed, seconds = now, now - self.start
        left = seconds / (done - self.first) * (total - done)
        click.echo(
            f"{done:,} of {total:,} units, {self.cells:,} cells filled, {self.cells / seconds:,.0f} cells/s, "
            f"{left / 60:,.0f} min left",
            err=True,
        )
