"""The group of commands, and how errors become messages and exit codes.

Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted. Results go to stdout; progress, log messages, notes and
errors to stderr. Commands import what needs torch in their functions, so that ``--help`` is fast.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from geonp.errors import GeonpError

from .adapt import adapt
from .evaluate import evaluate
from .fetch import fetch
from .fill import fill
from .grid import grid
from .info import info
from .models import models
from .train import recipes, train

__all__ = ["main"]

_ADVICE = {
    "train": "continue with --resume.",
    "fetch": "continue with the same command.",
    "fill": "continue with --resume if the output is .zarr; other outputs were not written.",
}


class _Group(click.Group):
    """Commands that print a GeonpError as one message, and end at once when interrupted."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with _termination_as_interrupt(), _warnings_as_lines():
                return super().invoke(ctx)
        except GeonpError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            _leave(_ADVICE.get(str(ctx.invoked_subcommand), "no output was written."))


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, so that unfinished files are removed; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier or signal.SIG_DFL)  # None: not set from Python


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print warnings as errors are printed, without a line of code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}", err=True)
        yield


def _leave(advice: str) -> NoReturn:
    """End the process without waiting for tiles that are being computed in threads."""
    click.echo(f"Interrupted: {advice}", err=True)
    # semaphores that are not removed would be reported as leaked
    multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
    for process in multiprocessing.active_children():
        process.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="geonp", message="geonp %(version)s")
def main() -> None:
    """Fill gaps in rasters with a pretrained transformer neural process and honest standard errors."""


for command in (adapt, evaluate, fetch, fill, grid, info, models, recipes, train):
    main.add_command(command)
