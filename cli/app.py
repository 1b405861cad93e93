"""The group of commands, and how errors become messages and exit codes.

Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted. Results go to stdout; progress, log messages, notes and
errors to stderr. Commands import what needs torch in their functions, so that ``--help`` is fast.
"""

from __future__ import annotations

import errno
import gc
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from geonp.errors import GeonpError, reason

from .adapt import adapt
from .aggregate import aggregate
from .evaluate import evaluate
from .examples import add_examples
from .fetch import fetch
from .fill import fill
from .grid import grid
from .info import info
from .models import models
from .plot import plot
from .show import echo, notes_may_fail, printable
from .train import recipes, train

TERMINATIONS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a command as Ctrl-C does; Windows has no SIGHUP, which is sent when a terminal is closed."""

_DEBUG = "geonp.debug"  # key of ctx.meta, which all contexts of a call share

_READERS = {
    "bz2",
    "cfgrib",
    "fsspec",
    "gzip",
    "h5py",
    "icechunk",
    "kerchunk",
    "lzma",
    "netCDF4",
    "numcodecs",
    "pandas",
    "pyogrio",
    "rasterio",
    "rioxarray",
    "s3fs",
    "zarr",
}
"""Libraries of files and of their compression."""

_ADVICE = {
    "train": "continue with --resume.",
    "fetch": "continue with the same command.",
    "fill": "continue with --resume if the output is .zarr; other outputs were not written.",
}


class _Group(click.Group):
    """Commands that print an exception as one message, and end at once when interrupted."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command, and end the process."""
        gc.set_threshold(20_000, 20, 20)  # imports make many objects that last: collecting takes a tenth of the start
        with notes_may_fail():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with _termination_as_interrupt(), warnings_as_lines(), _ignored_quietly(ctx):
                return super().invoke(ctx)
        except click.BadParameter as error:  # repeats what was typed, such as a URL
            raise click.UsageError(printable(error.format_message()), error.ctx) from error
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            leave(_ADVICE.get(str(ctx.invoked_subcommand), "no output was written."))
        except Exception as error:
            if ctx.meta.get(_DEBUG):
                raise
            raise click.ClickException(printable(_message(error, str(ctx.invoked_subcommand)))) from error


def _message(error: Exception, command: str) -> str:
    """Text of an error; libraries raise errors of any type for files that are damaged."""
    if isinstance(error, GeonpError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"geonp {command} needs more memory than is available: {reason(error)}. Select a part (--bbox)."
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"The name of a file is too long for its file system: got {error.filename!r}. Choose a shorter one."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return f"geonp {command} cannot write: {error.strerror}. Check the space on the disk, quotas and ulimit -f."
    if library := _reader_of(error):
        return (
            f"A file cannot be read or written: {library} reports: {reason(error)}. It may be damaged: copy or "
            "download it again; --debug shows the traceback."
        )
    return (
        f"geonp {command} stopped: {reason(error)}. Check that its inputs and options are complete and correct; "
        "--debug shows the traceback."
    )


def _reader_of(error: BaseException) -> str:
    """The library of files in which an exception was raised; empty if it was none."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inner = frames[-1].partition(".")[0] if frames else ""
    return inner if inner in _READERS else ""


def _add_debug(command: click.Command) -> None:
    """Add the option --debug to a command, and to the commands of a group."""
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _add_debug(inner)

    def remember(ctx: click.Context, _: click.Parameter, debug: bool) -> None:
        ctx.meta[_DEBUG] = ctx.meta.get(_DEBUG, False) or debug

    command.params.append(
        click.Option(
            ["--debug"], is_flag=True, expose_value=False, callback=remember, help="Show the traceback of an error."
        )
    )


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, so that unfinished files are removed; in the main thread only.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    numbers = [number for number in TERMINATIONS if signal.getsignal(number) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not set from Python


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as errors are printed, without a line of code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: echo(f"Warning: {message}", err=True)
        yield


@contextmanager
def _ignored_quietly(ctx: click.Context) -> Iterator[None]:
    """Print exceptions that libraries ignore, such as for undecodable messages of GDAL, with --debug only.

    Cython prints them as if they had ended the program, and then as ignored.
    """
    unraisable, uncaught = sys.unraisablehook, sys.excepthook
    sys.unraisablehook = lambda ignored: unraisable(ignored) if ctx.meta.get(_DEBUG) else None
    sys.excepthook = lambda *error: uncaught(*error) if ctx.meta.get(_DEBUG) else None
    try:
        yield
    finally:
        sys.unraisablehook, sys.excepthook = unraisable, uncaught


def leave(advice: str) -> NoReturn:
    """End the process without waiting for tiles that are being computed in threads."""
    echo(f"Interrupted: {advice}", err=True)
    # semaphores that are not removed would be reported as leaked
    multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
    for process in multiprocessing.active_children():
        process.terminate()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(130)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="geonp", message="geonp %(version)s")
def main() -> None:
    """Fill gaps in rasters with a pretrained transformer neural process, with a standard error for each cell."""


for command in (adapt, aggregate, evaluate, fetch, fill, grid, info, models, plot, recipes, train):
    main.add_command(command)
_add_debug(main)
add_examples(main)
