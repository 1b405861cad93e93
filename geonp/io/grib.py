"""GRIB files by cfgrib, as groups of variables that have their attributes and coordinates in common.

A file of a forecast holds fields on many kinds of levels, and instantaneous values beside means, with one name. A group
has those of one kind, such as ``isobaricInhPa`` or ``surface/instant``. A variable whose coordinates differ from those
of the others of its group, such as wind at 10 m beside temperature at 2 m, is a group of its own within it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import xarray as xr

from geonp.errors import InputError, reason, warn

LEFT_OUT = "left_out"
"""Encoding of a Dataset: names of variables that its file holds, and it does not."""


class Grib:
    """A GRIB file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._known: dict[str, tuple[dict[str, Any], dict[str, int]]] | None = None

    def open(self, chunks: Any = None, group: str = "") -> xr.Dataset:
        """Open without decoding; as dask arrays unless `chunks` is None.

        The root is empty if fields differ in what must be equal in a Dataset. Raises InputError for a file with
        damaged messages.
        """
        keys = self._groups()[group][0] if group else {}
        options: Any = {"decode_cf": False, "chunks": None if chunks is None else {}, "cache": False}
        with _logged() as records:
            try:
                filters = {"indexpath": "", "filter_by_keys": keys}
                ds = xr.open_dataset(self.path, engine="cfgrib", backend_kwargs=filters, **options)
            except ValueError as error:
                if group or _differing(error) is None:
                    raise
                return xr.Dataset()
        left_out = []
        for record in records:
            reported = record.exc_info and record.exc_info[1]
            if reported and "corrupted" in record.msg:
                raise InputError(
                    f"{self.path!r} is damaged: cfgrib reports: {reason(reported)}. Copy or download it again."
                )
            if reported and isinstance(record.args, tuple):
                left_out.append(f"{group}/{record.args[1]}".lstrip("/"))
            else:
                warn(f"{self.path!r}: cfgrib reports: {record.getMessage()}")
        ds.encoding[LEFT_OUT] = left_out
        return ds

    def members(self) -> Mapping[str, Mapping[str, int]]:
        """The groups and their variables."""
        return {path: names for path, (_, names) in self._groups().items()}

    def _groups(self) -> dict[str, tuple[dict[str, Any], dict[str, int]]]:
        """Keys that select the fields of each group, and its variables with their numbers of dimensions."""
        if self._known is None:
            cfgrib = import_module("cfgrib.dataset")
            with _logged():
                index = cfgrib.open_fileindex(cfgrib.messages.FileStream(self.path), indexpath="")
                self._known = _split(index, {}, "")
        return self._known


def _split(index: Any, keys: dict[str, Any], path: str) -> dict[str, tuple[dict[str, Any], dict[str, int]]]:
    """The groups of the fields that `keys` select; see :meth:`Grib._groups`."""
    chosen = index.subindex(keys)
    try:
        variables = import_module("cfgrib.dataset").open_from_index(chosen, errors="ignore").variables
    except ValueError as error:
        if (found := _differing(error)) is None:
            raise
        key, filters = found
        groups: dict[str, tuple[dict[str, Any], dict[str, int]]] = {}
        for one in filters:
            if list(index.subindex(one).iter_index()):
                groups |= _split(index, one, f"{path}/{one[key]}".lstrip("/"))
        return groups
    fields = {name: variable for name, variable in variables.items() if "GRIB_paramId" in variable.attributes}
    groups = {path: (keys, {name: len(variable.dimensions) for name, variable in fields.items()})}
    shown = {variable.attributes["GRIB_paramId"] for variable in fields.values()}
    for number in sorted(set(chosen["paramId"]) - shown) if fields else ():
        for inner, (own, names) in _split(index, {**keys, "paramId": number}, "").items():
            name = next(iter(names))
            groups["/".join(filter(None, (path, name, inner)))] = (own, names)
    return groups


def _differing(error: ValueError) -> tuple[str, list[dict[str, Any]]] | None:
    """The key in which fields of a Dataset would differ, and what selects those with each value; None otherwise."""
    if type(error).__name__ != "DatasetBuildError" or len(error.args) != 3:
        return None
    return error.args[1], error.args[2]


class _Log(logging.Handler):
    """Keeps records, which cfgrib writes with a traceback of what it leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)


@contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    """What cfgrib reports."""
    logger, log = logging.getLogger("cfgrib"), _Log()
    before, logger.propagate = logger.propagate, False
    logger.addHandler(log)
    try:
        yield log.records
    finally:
        logger.removeHandler(log)
        logger.propagate = before
