"""Output of the commands: tables, JSON and messages, without terminal escapes and secrets."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any, TextIO

import click

from geonp.errors import OutputError, redacted

# Characters that move the cursor, change colours or the direction of text, and parts of undecodable file names.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class _Notes:
    """A stream whose writes may fail: its disk may be full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@contextmanager
def notes_may_fail() -> Iterator[None]:
    """Let no command end because stderr is full or closed: what is written there are notes."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # otherwise a file takes the number, and libraries print into it
            os.open(os.devnull, os.O_RDWR)
    with open(os.devnull, "w") as nowhere, redirect_stderr(_Notes(sys.stderr or nowhere)):
        yield


def echo(text: object, err: bool = False) -> None:
    """Print a line to stdout, or a note to stderr."""
    line, stream = printable(str(text)), sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        click.echo(line.encode(encoding, "backslashreplace").decode(encoding), err=err)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"Standard output cannot be written: {error.strerror}. Files are not affected.") from error


def in_terminal() -> bool:
    """Whether stderr is a terminal; it may also be closed."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def printable(text: str) -> str:
    """`text` without secrets of URLs, and with control characters, except those of lines and tabs, as escapes."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), redacted(text))


def table(rows: Mapping[str, object], indent: str = "") -> str:
    """Aligned lines of key and value, without the rows whose value is None."""
    width = max(map(len, rows), default=0)
    lines = {key: str(value).replace("\n", "\\n") for key, value in rows.items() if value is not None}
    return "\n".join(f"{indent}{key:<{width}}  {value}" for key, value in lines.items())


def to_json(value: object) -> str:
    """`value` as JSON, with null for NaN and infinities, which JSON lacks, and without secrets of URLs."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: object) -> object:
    match value:
        case str():
            return redacted(value)
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
