"""Paths and URLs: what is there, whether it can be written to, and how to remove it; on any file system of fsspec."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.request import Request, urlopen

import fsspec

from geonp.errors import InputError, OutputError


def is_remote(url: str) -> bool:
    """Whether `url` is on an object store or another remote file system."""
    return "://" in url and not url.startswith(("file://", "local://"))


def resolved(url: str) -> str:
    """Absolute form of a path, without links, as workers in other folders need it; a URL without slashes at its end."""
    if is_remote(url) or "::" in url:
        return url.rstrip("/")
    return str(Path(url.removeprefix("file://").removeprefix("local://")).resolve())


def require_apart(target: str, others: Mapping[str, str]) -> None:
    """Check that neither an output nor one of the files that are read, by what they are, contains the other.

    Raises InputError if one does: the output would replace the file, or count among its parts.
    """
    place = Path(resolved(target))  # on Windows, parts of paths have other separators, and no case
    for what, url in others.items():
        other = Path(resolved(url))
        if place.is_relative_to(other) or other.is_relative_to(place):
            how = "are the same" if place == other else "contain one another"
            raise InputError(
                f"The {what} and the output {how}: got {url!r} and {target!r}, expected an output elsewhere. "
                "Write to a new place, and rename it."
            )


def connect(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """File system of `url`, and the path in it; `options` are those of the file system, for fsspec."""
    fs, root = fsspec.core.url_to_fs(url, **(options or {}))
    return fs, root.rstrip("/")


def remove(fs: Any, root: str, markers: Sequence[str]) -> None:
    """Remove the folder `root`, if it exists.

    The `markers`, the files that identify it, are removed first: a partly removed folder must not look complete.
    """
    for marker in markers:
        if fs.exists(f"{root}/{marker}"):
            fs.rm_file(f"{root}/{marker}")
    if fs.exists(root):
        fs.rm(root, recursive=True)


def identity(url: str, options: Mapping[str, Any] | None = None) -> str:
    """Hash of the names, sizes and times (of URLs: ETags) of all files at `url`, whose content is not read.

    Those of folders on this machine count, too: the time of a folder says that a part of it was away for a while.
    These are all files of a raster of GDAL, such as the sources of a VRT, or the archive that holds it. Of a URL that
    GDAL alone knows, such as ``/vsis3/``, only the name counts.
    """
    if url.startswith(("http://", "https://")):
        files: Any = _of_web(url)
    elif url.startswith("/vsi") or url.lower().endswith(".vrt") or re.match(r"[A-Za-z]\w+:(?!//)|vrt://", url):
        from geonp.io.gdal import opened

        with opened(url) as file:
            files = [url, *(_of_gdal(name) for name in sorted(file.files))]
    else:
        fs, root = connect(url, options)
        fs.invalidate_cache()
        folders = not is_remote(url)
        infos = fs.find(root, detail=True, withdirs=folders) if fs.isdir(root) else {root: fs.info(root)}
        files = sorted(
            (
                name.removeprefix(root),
                info["size"],
                str(info.get("ETag") or info.get("mtime") or info.get("LastModified")),
            )
            for name, info in infos.items()
        )
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def unchanged(places: Iterable[str]) -> Callable[[], None]:
    """A check that local files are still what they are now; of other places it checks nothing.

    The check raises InputError if one has changed or is gone.
    """

    def now(place: str) -> str | None:
        with suppress(Exception):  # libraries raise errors of any class
            return identity(place)
        return None

    before = {place: now(place) for place in places if not is_remote(place)}

    def check() -> None:
        for place, found in before.items():
            if found is not None and now(place) != found:
                raise InputError(
                    f"The input changed while it was filled: got other files at {place!r} than at the beginning. "
                    "Nothing was written: start again once it is complete."
                )

    return check


def _of_gdal(name: str) -> list[Any]:
    """Name, size and time of a file as GDAL names it."""
    bare = re.sub(r"^(/vsi[a-z0-9_]+/)+", "", name)
    if bare.startswith(("http://", "https://")):
        return _of_web(bare)
    place = next((path for path in (Path(name), Path(bare), *Path(bare).parents) if path.is_file()), None)
    return [name] if place is None else [name, place.stat().st_size, str(place.stat().st_mtime)]


def _of_web(url: str) -> list[Any]:
    """URL of a file, and what its server says of its version."""
    with urlopen(Request(url, method="HEAD"), timeout=30) as answer:
        return [url, *(answer.headers.get(key) for key in ("ETag", "Last-Modified", "Content-Length"))]


def check_writable(folder: Path, expected: str, *, make: bool = False) -> None:
    """Check that a local folder can be written to, before work starts; with `make`, create it if needed.

    Raises OutputError if it cannot. The message ends with the sentence `expected`.
    """
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OutputError(f"Cannot write to the folder {str(folder)!r}: {error.strerror}. {expected}") from error


def require_no_other(path: Path) -> None:
    """Raise OutputError if there is an output at `path`, where none was before work started."""
    if path.exists():
        raise OutputError(
            f"{str(path)!r} has appeared while the output was computed, and is not replaced. Choose another name, "
            "or pass overwrite (--overwrite)."
        )


@contextmanager
def replacing(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a new file beside `path`, which replaces it if the block succeeds and is removed if it does not.

    The file is created here, so that nothing is written through a link that somebody else made, and has a name of its
    own, so that of several writers the last one wins as a whole. Raises OutputError if there is a file at `path` at the
    end, unless `overwrite`.
    """
    temporary = path.with_name(f"{path.name}.{token_hex(4)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        if not overwrite:
            require_no_other(path)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def written(path: Path, what: str, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a new file as :func:`replacing`; an OutputError says what cannot be written."""
    try:
        with replacing(path, overwrite=overwrite) as temporary:
            yield temporary
    except OSError as error:
        raise OutputError(f"Cannot write the {what} {str(path)!r}: {error}. Check the folder and the disk.") from error


def sync(path: Path) -> None:
    """Make sure that a local file, a folder's list of names, or a Zarr store has reached the disk.

    Some file systems report only now that something could not be written.
    """
    if os.name == "nt":  # which syncs neither folders nor files that are opened for reading
        return
    # opened for reading, which is enough, since folders cannot be opened otherwise
    for part in [path, *path.rglob("*")] if path.suffix == ".zarr" else [path]:
        number = os.open(part, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Convert the errors of file systems to an OutputError that says how to continue."""
    try:
        yield
    except OutputError:
        raise
    except Exception as error:
        raise OutputError(
            f"Stopped while writing {url!r}: {error}. Finished parts are kept: check the disk or the connection, "
            "then continue with resume (--resume)."
        ) from error
