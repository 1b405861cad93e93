"""Errors that geonp raises, each saying what is wrong, what was got, what was expected and what to do.

::

    GeonpError
    |-- InputError        (ValueError)         a raster, mask or option that cannot be used
    |-- MissingFileError  (FileNotFoundError)  an input that does not exist
    |-- MissingExtraError (ImportError)        a package that an extra of geonp would have installed
    |-- OutputError       (OSError)            an output that cannot or must not be written
    |-- ModelError        (ValueError)         an unknown model, or one that cannot do this task
    |-- CheckpointError   (ValueError)         weights that are damaged, altered or of another format
    |-- RecipeError       (ValueError)         a recipe with a wrong key or value
    |-- FetchError        (ConnectionError)    data that a service refused, or sent broken
    |-- PredictionError   (RuntimeError)       a model that failed, or returned values that are not finite
    `-- ClusterError      (ConnectionError)    a Dask cluster that cannot be reached, or was lost

Every class also inherits the builtin that a caller would catch.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_BETWEEN = {"geonp", "xarray", "dask", "distributed", "click"}
"""Packages whose frames may lie between the user's line and a warning."""


_SECRETS = re.compile(
    r"(?:(?<=://)|(?<=\w\w:/)(?!/))[^/\s'\"]+@|(?<![^\s'\"(])[^/\s'\"(:@]+:[^/\s'\":@]+@(?=[\w.-])"
    r"|(?<=[?&])((?:sig|[\w.-]*(?:signature|token|key|credential|secret|passw|auth)[\w.-]*)=)[^&\s'\"]+",
    re.IGNORECASE,
)
"""In a URL, or the part of one that a library names: user and password, and the values that sign a request.

A URL that was taken for a path has one slash after its scheme.
"""


def redacted(text: str) -> str:
    """`text` without the users, passwords and signatures of the URLs in it."""
    return _SECRETS.sub(lambda match: f"{match[1] or ''}***{'' if match[1] else '@'}", text)


class GeonpError(Exception):
    """Base class of all errors that geonp raises on purpose. Messages contain no passwords of URLs."""

    def __str__(self) -> str:
        return redacted(super().__str__())


class InputError(GeonpError, ValueError):
    """A raster, mask or option that cannot be used."""


class MissingFileError(GeonpError, FileNotFoundError):
    """An input file or store that does not exist."""


class MissingExtraError(GeonpError, ImportError):
    """A package that an extra of geonp installs is missing."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"The package {package!r} is not installed: expected with the extra {extra!r} of geonp. "
            f"Install it with pip install 'geonp[{extra}]'."
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return MissingExtraError, (self.package, self.extra)


@contextmanager
def from_extra(extra: str, package: str = "") -> Iterator[None]:
    """Import `package`, or several, of an extra: MissingExtraError names it, or the missing one of several."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package or error.name or extra, extra) from error


class OutputError(GeonpError, OSError):
    """An output that cannot be written, or must not be overwritten."""


class ModelError(GeonpError, ValueError):
    """An unknown model, or a model that cannot do what was asked."""


class CheckpointError(GeonpError, ValueError):
    """Weights that are missing, damaged, altered or of an unknown format."""


class RecipeError(GeonpError, ValueError):
    """A training recipe with an unknown key or a value of the wrong type."""


class FetchError(GeonpError, ConnectionError):
    """Data that a service did not deliver, or delivered damaged."""


class PredictionError(GeonpError, RuntimeError):
    """A model failed, or returned values that are not finite."""


class ClusterError(GeonpError, ConnectionError):
    """A Dask cluster that cannot be reached, or was lost."""


def reason(error: BaseException) -> str:
    """Describe an error of a library in one line: its text, or its type if the text says nothing, and its causes."""
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(texts) < 3:
        text = " ".join(str(seen).split()).rstrip(".")
        if not text or isinstance(seen, LookupError | TypeError | AttributeError | ArithmeticError):
            text = f"{type(seen).__name__}: {text}".rstrip(": ")
        if isinstance(seen, UnicodeEncodeError):  # file names are bytes; those that are no UTF-8 become surrogates
            text = f"{text}: the name is not in UTF-8, which this library needs; rename the file or folder"
        if not any(text in other for other in texts):
            texts.append(text[:500])
        seen = seen.__cause__
    return redacted("; ".join(texts))


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line, whatever lies between: a function of geonp, its accessor, dask or the command line.

    A worker of a Dask cluster also sends the warning to the clients.
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    emit = getattr(sys.modules.get("distributed.worker"), "warn", warnings.warn)
    emit(redacted(message), category, stacklevel=level)


def require_callable(progress: object) -> None:
    """Check before the work that progress can be shown."""
    if progress is not None and not callable(progress):
        raise InputError(f"progress must be a function that is called after each part: got {progress!r}; leave it out")
