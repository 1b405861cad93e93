"""What of a job is done: a folder of small records beside its output, so that nothing finished is ever done twice.

``<output>.journal/job.json`` says what the job is: a hash of each thing that its result depends on. ``created`` says
that the output is ready for units to be written to. Each finished one leaves ``units/<key>.json``, written after its
cells; a record that was cut off counts as none. Local folders and object stores alike, by fsspec.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fsspec

from geonp.errors import InputError, OutputError

__all__ = ["Journal", "Record", "identity", "writing"]

Record = dict[str, Any]
"""What is noted of a finished unit: JSON."""

_EXPLAINED = {
    "geonp": "the version of geonp",
    "input": "the input",
    "model": "the model",
    "parameters": "an option",
    "layout": "the chunks of the output",
}


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Turn what file systems raise into one OutputError that says what is kept."""
    try:
        yield
    except OutputError:
        raise
    except Exception as error:
        raise OutputError(
            f"Stopped while writing {url!r}: {error}. What is finished is kept: check the disk or the connection, and "
            "go on with resume (--resume)."
        ) from error


def identity(url: str, options: Mapping[str, Any] | None = None) -> str:
    """Hash of the names, sizes and times (object stores: tags) of all files at `url`; no content is read."""
    fs, root = fsspec.core.url_to_fs(url, **(options or {}))
    found = {root: fs.info(root)} if fs.isfile(root) else fs.find(root, detail=True)
    files = sorted(
        (name.removeprefix(root), info["size"], str(info.get("ETag") or info.get("mtime") or info.get("LastModified")))
        for name, info in found.items()
    )
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


@dataclass(frozen=True)
class Journal:
    """The records of one job.

    Attributes
    ----------
    url : str
        Of the output; the journal lies beside it.
    options : mapping
        Of its file system. They may hold secrets: they are neither shown nor written.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def job(self) -> dict[str, str] | None:
        """What the job is that this journal belongs to; None where there is none."""
        fs, root = self._place()
        try:
            found: dict[str, str] = json.loads(fs.cat_file(f"{root}/job.json"))
        except (FileNotFoundError, ValueError):
            return None
        return found

    def begin(self, job: Mapping[str, str]) -> None:
        """Start anew: forget all records, and write what the job is."""
        with writing(self.url):
            self.remove()
            fs, root = self._place()
            fs.makedirs(f"{root}/units", exist_ok=True)
            fs.pipe_file(f"{root}/job.json", json.dumps(dict(job), indent=1).encode())

    def created(self) -> bool:
        """Whether the output has been created, so that units may be written to it."""
        fs, root = self._place()
        return bool(fs.exists(f"{root}/created"))

    def note_created(self) -> None:
        """Note that the output has been created.

        Raises
        ------
        OutputError
            When it can't be written.
        """
        self._write("created", b"")

    def require_same(self, job: Mapping[str, str]) -> None:
        """Check that the journal belongs to this very job.

        Raises
        ------
        InputError
            Naming what differs.
        """
        stored = self.job() or {}
        changed = [text for key, text in _EXPLAINED.items() if stored.get(key) != job.get(key)]
        if changed:
            raise InputError(
                f"{self.url!r} was begun by another job: {' and '.join(changed)} changed since, so that its two parts "
                "would not fit. Resume with what it was begun with, or begin anew with overwrite (--overwrite)."
            )

    def record(self, key: str, record: Record) -> None:
        """Note that a unit is finished.

        Raises
        ------
        OutputError
            When it can't be written.
        """
        self._write(f"units/{key}.json", json.dumps(record).encode())

    def records(self) -> dict[str, Record]:
        """All finished units by key."""
        fs, root = self._place()
        found = {}
        files = fs.find(f"{root}/units")
        # fsspec takes no files for a missing one
        for name, text in (fs.cat(files, on_error="omit") if files else {}).items():
            try:
                found[name.rpartition("/")[2].removesuffix(".json")] = json.loads(text)
            except ValueError:
                continue
        return found

    def progress(self) -> dict[str, int] | None:
        """How far the job is: ``units``, and how many of them are ``finished`` and ``failed``; None without a job."""
        job = self.job()
        if job is None:
            return None
        records = self.records().values()
        failed = sum("error" in record for record in records)
        return {"units": int(job["units"]), "finished": len(records) - failed, "failed": failed}

    def remove(self) -> None:
        """Remove the journal, where there is one."""
        fs, root = self._place()
        # first what makes it one: half of it must not look like a job
        if fs.exists(f"{root}/job.json"):
            fs.rm_file(f"{root}/job.json")
        if fs.exists(root):
            fs.rm(root, recursive=True)

    def _write(self, name: str, content: bytes) -> None:
        with writing(self.url):
            fs, root = self._place()
            fs.pipe_file(f"{root}/{name}", content)

    def _place(self) -> tuple[Any, str]:
        fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        fs.invalidate_cache()
        return fs, f"{root.rstrip('/')}.journal"
