"""Zarr stores, local or on an object store, that are created first and then written region by region.

Until all of it is written, the root of a store says that it is unfinished.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr

from geonp.errors import OutputError
from geonp.io.journal import writing

__all__ = ["UNFINISHED", "Store", "check_writable", "is_remote", "unfinished"]

UNFINISHED = "geonp_unfinished"
"""Attribute of the root of a store that is not yet complete; names the command that makes it if not geonp fill."""

_MARKS = ("zarr.json", ".zgroup", ".zmetadata")
_ENCODING = ("dtype", "_FillValue", "scale_factor", "add_offset", "_Unsigned")

_opened: dict[str, dict[str, _Target]] = {}


@dataclass(frozen=True)
class _Target:
    array: zarr.Array[Any]
    dims: tuple[str, ...]
    encoding: dict[str, Any]


def is_remote(url: str) -> bool:
    """Whether `url` names an object store or another remote file system."""
    return "://" in url and not url.startswith(("file://", "local://"))


def check_writable(folder: Path, expected: str, *, make: bool = False) -> None:
    """See that a local folder can be written to, before any work is done for what it is to hold; `make` it if asked.

    Raises
    ------
    OutputError
        Which ends in what is `expected`, a sentence.
    """
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OutputError(f"Cannot write to the folder {str(folder)!r}: {error.strerror}. {expected}") from error


def unfinished(url: str, attributes: Mapping[Any, Any]) -> str:
    """What is wrong with the store at `url` if it is unfinished by its attributes; empty if it is complete."""
    match attributes.get(UNFINISHED):
        case None:
            return ""
        case "true":
            return f"{url!r} is an unfinished result of geonp fill: finish it with --resume, or remove it."
        case command:
            return f"{url!r} is an unfinished result of {command}: run the same command again to finish it."


@dataclass(frozen=True)
class Store:
    """A Zarr store.

    Attributes
    ----------
    url : str
        A path, or a URL that fsspec knows.
    options : mapping
        Of its file system. They may hold secrets: they are neither shown nor written.
    job : str
        What it was created for: a process that has written to another store of this name opens this one anew.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    job: str = ""

    def exists(self) -> bool:
        """Whether there is a Zarr store."""
        fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        return any(fs.exists(f"{root}/{mark}") for mark in _MARKS)

    def is_at(self, place: str) -> bool:
        """Whether a path or URL is this store's."""
        if is_remote(self.url) or is_remote(place):
            return self.url.rstrip("/") == place.rstrip("/")
        paths = (Path(text.removeprefix("file://").removeprefix("local://")) for text in (self.url, place))
        return len({path.resolve() for path in paths}) == 1

    def occupied(self) -> bool:
        """Whether there is something else: a file, or a folder that holds any but no Zarr store."""
        fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        return not self.exists() and fs.exists(root) and (not fs.isdir(root) or bool(fs.ls(root)))

    def consolidated(self) -> bool:
        """Whether it has the consolidated metadata of Zarr format 2; format 3 keeps them where all readers look."""
        fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        return bool(fs.exists(f"{root}/.zmetadata"))

    def attributes(self) -> dict[str, Any]:
        """Attributes of its root."""
        return dict(self._group("r").attrs)

    def remove(self) -> None:
        """Remove it, where there is one."""
        fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        # first what makes it one: half of it must not look like a store
        for mark in _MARKS:
            if fs.exists(f"{root}/{mark}"):
                fs.rm_file(f"{root}/{mark}")
        if fs.exists(root):
            fs.rm(root, recursive=True)

    def sweep(self) -> None:
        """Remove what a killed process may have left: files that Zarr had not yet given their names."""
        if not is_remote(self.url):
            fs, root = fsspec.core.url_to_fs(self.url, **self.options)
            for name in fs.find(root):
                if name.endswith(".partial"):
                    fs.rm_file(name)

    def create(self, ds: xr.Dataset, later: Sequence[Hashable], zarr_format: Any) -> None:
        """Write all metadata, coordinates and variables, but the values of those that :meth:`write` brings `later`.

        They are dask arrays, of which nothing is computed. What was there is removed.

        Raises
        ------
        OutputError
            When it cannot be written.
        """
        _opened.pop(self._key(), None)
        # Zarr has settled how to store strings of variable, not of fixed length.
        ds = ds.assign({name: da.astype(object) for name, da in ds.variables.items() if da.dtype.kind in "UT"})
        ds = ds.assign_attrs({UNFINISHED: "true"})
        with writing(self.url), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Consolidated metadata")
            to: Any = {"consolidated": False, "storage_options": dict(self.options) or None}
            self.remove()
            # with its attribute from its first file on
            at = {"zarr_format": zarr_format, "storage_options": to["storage_options"]}
            zarr.create_group(self.url, attributes={UNFINISHED: "true"}, **at)
            ds.to_zarr(self.url, mode="a", compute=False, zarr_format=zarr_format, **to)
            rest = [name for name, da in ds.variables.items() if name not in later and da.chunks is not None]
            if rest:
                ds[rest].drop_vars([name for name in ds.coords if name not in rest]).to_zarr(self.url, mode="r+", **to)

    def write(self, arrays: Mapping[str, npt.NDArray[Any]], region: Mapping[Hashable, slice]) -> None:
        """Write decoded values of some variables to a region, whose edges are those of stored chunks (or shards).

        Dimensions that `region` does not name are written whole.

        Raises
        ------
        OutputError
            When they cannot be written.
        """
        with writing(self.url):
            for name, values in arrays.items():
                target = self._targets()[name]
                variable = xr.Variable(target.dims, values, encoding=target.encoding)
                stored = xr.conventions.encode_cf_variable(variable, name=name)
                target.array[tuple(region.get(dim, slice(None)) for dim in target.dims)] = np.asarray(stored.values)

    def complete(self, attributes: Mapping[str, Any]) -> None:
        """Say that it is complete, and give its root further attributes.

        Raises
        ------
        OutputError
            When it cannot be written.
        """
        with writing(self.url), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Consolidated metadata")
            group = self._group("r+")
            kept = {key: value for key, value in group.attrs.items() if key != UNFINISHED}
            group.attrs.put({**kept, **attributes})
            zarr.consolidate_metadata(group.store)
        _opened.pop(self._key(), None)

    def _group(self, mode: Any) -> zarr.Group:
        return zarr.open_group(self.url, mode=mode, use_consolidated=False, storage_options=dict(self.options) or None)

    def _targets(self) -> dict[str, _Target]:
        """The arrays to write to, opened once a process."""
        if self._key() not in _opened:
            group = self._group("r+")
            how: Any = {"consolidated": False, "storage_options": dict(self.options) or None}
            ds = xr.open_zarr(self.url, chunks=None, decode_timedelta=False, **how)
            _opened[self._key()] = {
                str(name): _Target(
                    group[str(name)],  # type: ignore[arg-type]
                    tuple(map(str, da.dims)),
                    {key: da.encoding[key] for key in _ENCODING if key in da.encoding},
                )
                for name, da in ds.data_vars.items()
            }
        return _opened[self._key()]

    def _key(self) -> str:
        return json.dumps([self.url, dict(self.options), self.job], sort_keys=True, default=str)
