"""Journal of a resumable job: a folder of small records beside its output, so that no finished unit is repeated.

``<output>.journal/job.json`` identifies the job by a hash of each thing that its result depends on. ``created`` exists
once the output is ready for units. Each finished unit has a record ``units/<key>.json``, written after its cells;
truncated records are ignored. The journal works on local folders and on object stores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geonp.errors import InputError, OutputError
from geonp.io.location import connect, remove, writing

__all__ = ["Journal", "Record"]

Record = dict[str, Any]
"""Record of a finished unit, as JSON."""

_EXPLAINED = {
    "geonp": "the version of geonp",
    "input": "the input",
    "model": "the model",
    "parameters": "an option",
    "layout": "the chunks of the output",
}


@dataclass(frozen=True)
class Journal:
    """The records of one job.

    Attributes
    ----------
    url : str
        Path or URL of the output; the journal lies beside it.
    options : mapping
        Options of the file system, for fsspec. They may hold secrets, and are neither shown nor written.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def job(self) -> dict[str, str] | None:
        """Hashes that identify the job; None if there is no journal."""
        fs, root = self._connect()
        try:
            job: dict[str, str] = json.loads(fs.cat_file(f"{root}/job.json"))
        except (FileNotFoundError, ValueError):
            return None
        return job

    def require_own(self) -> None:
        """Check that what is at the place of the journal, if anything, is a journal.

        Raises
        ------
        OutputError
            If it is another file or folder, which would be removed.
        """
        fs, root = self._connect()
        if not fs.exists(root):
            return
        names = {name.rstrip("/").rpartition("/")[2] for name in fs.ls(root, detail=False)} if fs.isdir(root) else {""}
        if foreign := sorted(names - {"job.json", "created", "units"}):
            raise OutputError(
                f"The journal cannot be written to {root!r}: got {foreign[0]!r} there, expected nothing, or a journal "
                "of geonp. Choose another output, or move it away."
            )

    def begin(self, job: Mapping[str, str]) -> None:
        """Remove all records, and write the hashes of a new job."""
        with writing(self.url):
            self.remove()
            fs, root = self._connect()
            fs.makedirs(f"{root}/units", exist_ok=True)
            fs.pipe_file(f"{root}/job.json", json.dumps(dict(job), indent=1).encode())

    def created(self) -> bool:
        """Whether the output has been created, so that units can be written to it."""
        fs, root = self._connect()
        return bool(fs.exists(f"{root}/created"))

    def note_created(self) -> None:
        """Record that the output has been created.

        Raises
        ------
        OutputError
            If the record cannot be written.
        """
        self._write("created", b"")

    def require_same(self, job: Mapping[str, str]) -> None:
        """Check that the journal belongs to this job.

        Raises
        ------
        InputError
            If it belongs to another one, naming the differences.
        """
        stored = self.job() or {}
        changed = [text for key, text in _EXPLAINED.items() if stored.get(key) != job.get(key)]
        if changed:
            raise InputError(
                f"{self.url!r} was started by another job: {' and '.join(changed)} changed since, so the two parts of "
                "the result would not fit. Resume with the original settings, or start again with overwrite "
                "(--overwrite)."
            )

    def record(self, key: str, record: Record) -> None:
        """Record that a unit is finished.

        Raises
        ------
        OutputError
            If the record cannot be written.
        """
        self._write(f"units/{key}.json", json.dumps(record).encode())

    def records(self) -> dict[str, Record]:
        """Records of all finished units, by key."""
        fs, root = self._connect()
        records = {}
        files = fs.find(f"{root}/units")
        # fsspec's cat raises an error for an empty list
        for name, text in (fs.cat(files, on_error="omit") if files else {}).items():
            try:
                records[name.rpartition("/")[2].removesuffix(".json")] = json.loads(text)
            except ValueError:
                continue
        return records

    def progress(self) -> dict[str, int] | None:
        """Number of ``units``, and of those ``finished`` and ``failed``; None if there is no journal."""
        job = self.job()
        if job is None:
            return None
        records = self.records().values()
        failed = sum("error" in record for record in records)
        return {"units": int(job["units"]), "finished": len(records) - failed, "failed": failed}

    def remove(self) -> None:
        """Remove the journal, if there is one."""
        remove(*self._connect(), ["job.json"])

    def _write(self, name: str, content: bytes) -> None:
        with writing(self.url):
            fs, root = self._connect()
            fs.pipe_file(f"{root}/{name}", content)

    def _connect(self) -> tuple[Any, str]:
        fs, root = connect(self.url, self.options)
        fs.invalidate_cache()
        return fs, f"{root}.journal"
