"""Rasters in stores of other packages, which xarray opens as Zarr: references of kerchunk, and Icechunk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import xarray as xr

from geonp.errors import MissingExtraError
from geonp.io.steady import SteadyStore
from geonp.io.stores import with_fill_values

_GRIB = (".grib", ".grib2", ".grb", ".grb2")


class Session(Protocol):
    """A writable session of Icechunk."""

    store: Any

    def commit(self, message: str) -> str:
        """Make a snapshot of what was written."""


class Engine:
    """A raster that an engine opens, as a tree of a single group.

    `options` are those of the file system that references of kerchunk lead to.
    """

    def __init__(
        self, name: Literal["kerchunk", "icechunk"], path: str, options: Mapping[str, Any] | None = None
    ) -> None:
        self.name, self.path, self.options = name, path, options or {}

    def open(self, chunks: Any = None, group: str = "") -> xr.Dataset:
        """Open without decoding; as dask arrays unless `chunks` is None."""
        options: Any = {"decode_cf": False, "chunks": None if chunks is None else {}, "cache": False}
        if self.name == "kerchunk":
            _require("kerchunk", "kerchunk")
            as_store = import_module("kerchunk.utils").refs_as_store
            store = as_store(self.path, read_only=True, remote_options=dict(self.options))  # which it changes
        else:
            _require("icechunk", "icechunk")
            import icechunk

            repository = icechunk.Repository.open(icechunk.local_filesystem_storage(self.path))
            store = repository.readonly_session("main").store
        steady: Any = SteadyStore(store)
        return with_fill_values(xr.open_dataset(steady, engine="zarr", consolidated=False, **options), steady)

    def members(self) -> Mapping[str, Mapping[str, int]]:
        """The root and its variables."""
        return {"": {str(name): variable.ndim for name, variable in self.open().variables.items()}}


def engine_of(path: Path) -> Literal["grib", "kerchunk", "icechunk"] | None:
    """The engine of a local file or folder; None for other libraries. GDAL reads GRIB if cfgrib is not installed."""
    if path.is_dir():
        # branches and tags: a folder of version 1 of the format, a file of version 2
        branches = (path / "refs").is_dir() or (path / "repo").is_file()
        return "icechunk" if branches and (path / "snapshots").is_dir() else None
    if path.suffix.lower() in _GRIB:
        return "grib" if find_spec("cfgrib") is not None else None
    if path.suffix.lower() != ".json":
        return None
    try:
        references = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return "kerchunk" if isinstance(references, dict) and ("refs" in references or ".zgroup" in references) else None


def is_session(target: object) -> bool:
    """Whether a target is a session of Icechunk."""
    return hasattr(target, "commit") and hasattr(target, "store")


def write_session(ds: xr.Dataset, session: Session, message: str) -> None:
    """Write a Dataset, chunk by chunk if it is lazy, and commit the session."""
    ds.to_zarr(session.store, mode="w", zarr_format=3, consolidated=False)
    session.commit(message)


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise MissingExtraError(package, extra)
