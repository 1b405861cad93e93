"""Journal of a resumable job: a folder of small records beside its output, so that no finished unit is repeated.

``<output>.journal/job.json`` identifies the job by a hash of each thing that its result depends on. ``created`` exists
once the output is ready for units. Each finished unit has a record ``units/<key>.json``, written after its cells;
truncated records are ignored. ``owner.json`` names the only process that may write. The journal works on local folders
and on object stores.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from geonp.errors import InputError, OutputError
from geonp.io.location import connect, is_remote, remove, writing
from geonp.io.owner import OWNERS, named, note, owning, runs

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
    token : str
        Identity of the owner, if this is its journal, also on its workers; see :meth:`owned`.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    token: str = ""

    def exists(self) -> bool:
        """Whether there is a journal, which may have no job yet."""
        fs, root = self._connect()
        return bool(fs.exists(root))

    @contextmanager
    def owned(self, *, take_over: bool) -> Iterator[Journal]:
        """Own the journal in a context, and yield it: no other process can own it, and no other may write.

        A process of this machine that ended without releasing the journal, or any process of another machine, can be
        replaced by `take_over`. The one that was replaced stops at its next unit: see :meth:`require_owner`. Raises
        OutputError if another process owns the journal, or it cannot be written.
        """
        journal = self._claimed(take_over)
        try:
            with owning(journal.token):
                yield journal
        finally:
            with suppress(Exception):  # the disk or the connection may be why the job ends
                journal._release()

    def _claimed(self, take_over: bool) -> Journal:
        other = self._owner()
        if other and not other["token"]:  # cut off, or just being written
            time.sleep(OWNERS.settle_s)
            other = self._owner()
        if other and (runs(other) or not take_over):
            what = "Wait for it or end it" if runs(other) else "If it has ended, pass resume or overwrite (--resume)"
            raise OutputError(f"Another job writes {self.url!r}: got {named(other)}, expected none. {what}.")
        owner = note()
        claim = json.dumps(owner).encode()
        with writing(self.url):
            fs, root = self._connect()
            fs.makedirs(root, exist_ok=True)
            if other or is_remote(self.url):
                fs.pipe_file(f"{root}/owner.json", claim)
                time.sleep(OWNERS.settle_s)
            else:
                # of several processes, one creates the file; the others read themselves refused
                with suppress(FileExistsError), open(f"{root}/owner.json", "xb") as file:
                    file.write(claim)
        journal = replace(self, token=str(owner["token"]))
        journal.require_owner()
        return journal

    def require_owner(self) -> None:
        """Check that no other process has taken over the journal. Raises OutputError if one has."""
        other = self._owner()
        if self.token and (other or {}).get("token") != self.token:
            raise OutputError(
                f"Another job writes {self.url!r}: got {named(other)} as the owner of its journal, expected this one, "
                "which stops. Wait for the other, then start again."
            )

    def _owner(self) -> Record | None:
        """The claim of the process that owns the journal, if one does; empty if it cannot be read."""
        fs, root = self._connect()
        try:
            owner = json.loads(fs.cat_file(f"{root}/owner.json"))
        except FileNotFoundError:
            return None
        except ValueError:  # being written, or cut off
            return {"token": ""}
        return {"token": "", **owner} if isinstance(owner, dict) else {"token": ""}

    def _release(self) -> None:
        """Give up the journal, and remove it if it has no job."""
        if (self._owner() or {}).get("token") != self.token:
            return
        fs, root = self._connect()
        if fs.exists(f"{root}/job.json"):
            fs.rm_file(f"{root}/owner.json")
        else:
            self.remove()

    def job(self) -> dict[str, str] | None:
        """Hashes that identify the job; None if there is no journal."""
        fs, root = self._connect()
        try:
            job = json.loads(fs.cat_file(f"{root}/job.json"))
        except (FileNotFoundError, ValueError):
            return None
        return job if isinstance(job, dict) and str(job.get("units")).isdecimal() else None

    def require_own(self) -> None:
        """Check that what is at the place of the journal, if anything, is a journal.

        Raises OutputError if it is another file or folder, which would be removed.
        """
        fs, root = self._connect()
        if not fs.exists(root):
            return
        names = {name.rstrip("/").rpartition("/")[2] for name in fs.ls(root, detail=False)} if fs.isdir(root) else {""}
        if foreign := sorted(names - {"job.json", "created", "units", "owner.json"}):
            raise OutputError(
                f"The journal cannot be written to {root!r}: got {foreign[0]!r} there, expected nothing, or a journal "
                "of geonp. Choose another output, or move it away."
            )

    def begin(self, job: Mapping[str, str]) -> None:
        """Remove all records, and write the hashes of a new job."""
        with writing(self.url):
            fs, root = self._connect()
            for name in ("job.json", "created", "units"):  # without the first, it has no job
                if fs.exists(f"{root}/{name}"):
                    fs.rm(f"{root}/{name}", recursive=True)
            fs.makedirs(f"{root}/units", exist_ok=True)
            fs.pipe_file(f"{root}/job.json", json.dumps(dict(job), indent=1).encode())

    def created(self) -> bool:
        """Whether the output has been created, so that units can be written to it."""
        fs, root = self._connect()
        return bool(fs.exists(f"{root}/created"))

    def note_created(self) -> None:
        """Record that the output has been created.

        Raises OutputError if the record cannot be written, or another process has taken over the journal.
        """
        self._write("created", b"")

    def require_same(self, job: Mapping[str, str]) -> None:
        """Check that the journal belongs to this job.

        Raises InputError if it belongs to another one, naming the differences.
        """
        stored = self.job() or {}
        changed = [text for key, text in _EXPLAINED.items() if stored.get(key) != job.get(key)]
        if changed:
            raise InputError(
                f"{self.url!r} was started by another job: {' and '.join(changed)} changed since, so that the two "
                "parts of the result would not match. Resume with the original settings, or start again with "
                "overwrite (--overwrite). In Python, open files with chunks={}: an array that is chunked after it was "
                "opened may count as changed in each session."
            )

    def record(self, key: str, record: Record) -> None:
        """Record that a unit is finished.

        Raises OutputError if the record cannot be written, or another process has taken over the journal.
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
                record = json.loads(text)
            except ValueError:
                continue
            if _is_record(record):
                records[name.rpartition("/")[2].removesuffix(".json")] = record
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
        self.require_owner()
        with writing(self.url):
            fs, root = self._connect()
            fs.pipe_file(f"{root}/{name}", content)

    def _connect(self) -> tuple[Any, str]:
        fs, root = connect(self.url, self.options)
        fs.invalidate_cache()
        return fs, f"{root}.journal"


def _is_record(value: Any) -> bool:
    """Whether a record has what is written: numbers of cells, indices of slices, reasons of failure, and a glance."""
    if not isinstance(value, dict) or not isinstance(value.get("seen", []), list):
        return False
    counts = [count for key, count in value.items() if key not in {"seen", "error", "unread", "glance"}]
    numbers = all(type(number) is int and number >= 0 for number in (*counts, *value.get("seen", [])))
    return numbers and isinstance(value.get("error", ""), str) and _is_glance(value.get("glance", {}))


def _is_glance(value: Any) -> bool:
    """Whether this has the extremes of values, pairs of them and their numbers, and lists of numbers."""
    if not isinstance(value, dict) or not all(isinstance(part, list) for part in value.values()):
        return False
    pairs, *ends = value.get("extremes", [[], 0, 0]) or [None]
    invalid, steps = value.get("invalid", [0, 0]), value.get("steps", [0, 0, 0])
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return False
    numbers = (*ends, *itertools.chain(*pairs), *value.get("sample", []), *invalid, *steps)
    sizes = len(ends), len(invalid), len(steps)
    return sizes == (2, 2, 3) and all(isinstance(number, int | float) for number in numbers)
