"""Zarr stores that may vanish while they are read, as those on a mount that is lost for a moment, and their errors.

Zarr reads a chunk that is not there as fill values. That is right where the chunk was never written, and wrong where
its store has vanished.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.abc.store import Store as ZarrStore
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, WrapperStore

from geonp.errors import GeonpError, InputError, reason

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")
_OTHERS = (*_DOCUMENTS, ".zattrs", ".zmetadata")

_TRIES = 3
"""How often a chunk on a local file system is looked for that is not there, though its array is."""


class SteadyStore(WrapperStore[ZarrStore]):
    """A store whose chunks are missing only while the document of their array is there.

    A missing chunk of a local store costs five requests more, one of another store two.
    """

    def __init__(self, store: ZarrStore) -> None:
        super().__init__(store)
        self._found: set[str] = set()

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Read a file of the store; None if it is not there.

        Raises
        ------
        InputError
            If it is that of a chunk, and its array is not there either, or if it cannot be read.
        """
        value = await self._got(key, prototype, byte_range)
        if (name := PurePosixPath(key).name) in _OTHERS:
            if value is not None and name in _DOCUMENTS:
                self._found.add(key)  # that of a group says nothing of its arrays
            return value
        for _ in range(_TRIES if isinstance(self._store, LocalStore) else 1):
            if value is not None:
                break
            await self._require_array(key)
            value = await self._got(key, prototype, byte_range)
        return value

    async def _got(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None) -> Buffer | None:
        try:
            return await self._store.get(key, prototype, byte_range)
        except (GeonpError, MemoryError):
            raise
        except Exception as error:  # stores raise errors of no common class
            raise InputError(
                f"A part of the input cannot be read: got no {key!r} of {self._store}: {reason(error)}. Check the "
                "connection, and that the files it refers to exist."
            ) from error

    async def _require_array(self, key: str) -> None:
        """Check that the document of the array of a chunk is there."""
        parents = [str(parent) for parent in PurePosixPath(key).parents]
        places = ["" if parent == "." else f"{parent}/" for parent in parents]
        known = [f"{place}{name}" for place in places for name in _DOCUMENTS if f"{place}{name}" in self._found]
        for document in known[:1] or [f"{place}{name}" for name in _DOCUMENTS for place in places]:
            if await self._store.exists(document):
                self._found.add(document)
                return
        raise InputError(
            f"The input vanished while it was read: got neither the chunk {key!r} nor its array in {self._store}. "
            "Check the mount or the connection."
        )

    def __getstate__(self) -> dict[str, Any]:
        # dask names lazy arrays by their pickles, which must not depend on what was read before
        return {**self.__dict__, "_found": set()}

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        root = getattr(self._store, "root", None)
        return str(self._store), os.path.getmtime(root) if root is not None and os.path.exists(root) else None
