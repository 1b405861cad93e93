"""Zarr stores, local or on an object store: read lazily, written whole, or created first and written region by region.

A store that is written region by region has an attribute that marks it as unfinished until all of it is written.
"""

from __future__ import annotations

import json
import re
import struct
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask.array as da
import numcodecs.blosc
import numcodecs.compat
import numpy as np
import xarray as xr
import zarr
from netCDF4 import default_fillvals

from geonp.errors import InputError, OutputError, reason
from geonp.io.decoding import AMBIGUOUS
from geonp.io.location import connect, is_remote, remove, resolved, writing
from geonp.io.steady import SteadyStore
from geonp.io.unwritten import note_unwritten
from geonp.raster.arrays import Array
from geonp.raster.crs import grid_mapping_name

UNFINISHED = "geonp_unfinished"
"""Attribute of the root of an unfinished store: ``"true"``, or the command that writes it if not ``geonp fill``."""

_MARKERS = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
_ENCODING = ("dtype", "_FillValue", "scale_factor", "add_offset", "_Unsigned")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{11}=")
"""Eight bytes, as xarray writes numbers to attributes of Zarr 3."""

_opened: dict[str, dict[str, _Target]] = {}


@dataclass(frozen=True)
class _Target:
    array: zarr.Array[Any]
    dims: tuple[str, ...]
    encoding: dict[str, Any]


def _refuse_cut_chunks() -> None:
    """Make Blosc refuse a chunk whose header says that it is longer than it is, behind whose end it would read.

    This ends the process (numcodecs 0.16.6). Zarr calls this one method for both of its formats.
    """
    decode = numcodecs.blosc.Blosc.decode

    @wraps(decode)
    def checked(self: numcodecs.blosc.Blosc, buf: Any, out: Any = None) -> Any:
        data = numcodecs.compat.ensure_contiguous_ndarray(buf).view("u1")
        length = int.from_bytes(data[12:16].tobytes(), "little") if data.size >= 16 else 16
        if length > data.size:
            raise InputError(
                f"damaged chunk: got {data.size:,} bytes, but its header says {length:,}; copy or download it again"
            )
        return decode(self, buf, out)

    if not hasattr(decode, "__wrapped__"):
        numcodecs.blosc.Blosc.decode = checked


_refuse_cut_chunks()


def unfinished(url: str, attributes: Mapping[Any, Any]) -> str:
    """Text that says how to finish the store at `url`, if its `attributes` mark it as unfinished; else empty."""
    match attributes.get(UNFINISHED):
        case None:
            return ""
        case "true":
            return f"{url!r} is an unfinished result of geonp fill: finish it with resume (--resume), or remove it."
        case command:
            return f"{url!r} is an unfinished result of {command}: run the same command again to finish it."


def to_zarr(ds: xr.Dataset, path: Any, **options: Any) -> None:
    """Write a Dataset by :meth:`xarray.Dataset.to_zarr`, without Zarr's warnings about what it has yet to standardise.

    These are consolidated metadata of format 3, which other readers expect and warn about if missing, and strings of
    fixed length and bytes, which are stored as strings of variable length. The value of a CF grid mapping variable has
    no meaning: text becomes 0, which all readers can open. The fill value of integers in format 3 is their nodata
    value, or that of NetCDF: GDAL takes it for missing, and 0 is a value. That of floats is NaN, as xarray has it from
    version 2026.7 on.
    """
    mapping = grid_mapping_name(ds)
    ds = ds.copy().assign(
        {
            name: (da.dims, np.int32(0), da.attrs) if name == mapping and da.ndim == 0 else _text(da)
            for name, da in ds.variables.items()
            if da.dtype.kind in "UTS" or (name == mapping and da.dtype.kind == "O")
        }
    )
    if options.get("zarr_format") == 3:
        for da in ds.variables.values():
            stored = np.dtype(da.encoding.get("dtype", da.dtype))
            if stored.kind == "f":
                da.encoding.setdefault("fill_value", np.nan)
            if stored.kind in "iu" and da.ndim:
                default = default_fillvals.get(f"{stored.kind}{stored.itemsize}")
                da.encoding["fill_value"] = da.encoding.get("_FillValue", da.attrs.get("_FillValue", default))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        warnings.filterwarnings("ignore", AMBIGUOUS)
        warnings.filterwarnings("ignore", "saving variable .* as an integer dtype")  # packed coordinates have no NaN
        try:
            ds.to_zarr(path, **options)
        except TypeError as error:
            if said := _unstorable(ds):
                raise OutputError(said) from error
            raise


def _unstorable(ds: xr.Dataset) -> str:
    """Text that names the first attribute that JSON cannot hold; empty if there is none."""
    for owner, attrs in [("ds", ds.attrs), *((f"ds[{name!r}]", one.attrs) for name, one in ds.variables.items())]:
        for key, value in attrs.items():
            try:
                json.dumps(value, default=lambda part: part.tolist())
            except (AttributeError, TypeError, ValueError):
                kind = type(value).__name__
                return f"{owner}.attrs[{key!r}] is a {kind}, which Zarr cannot hold: del {owner}.attrs[{key!r}]"
    return ""


def stored_once(ds: xr.Dataset, path: Path) -> xr.Dataset:
    """Compute the dask arrays of `ds` together into a new store, and give `ds` with what is stored there instead."""
    found = {name: variable for name, variable in ds.variables.items() if variable.chunks is not None}
    even = {name: tuple(map(max, variable.chunks)) for name, variable in found.items()}  # type: ignore[arg-type]
    sources = [da.asarray(variable.data).rechunk(even[name]) for name, variable in found.items()]
    group = zarr.create_group(path)
    names = [f"{number}" for number in range(len(sources))]  # those of variables may be no names of files
    targets = [
        group.create_array(name, shape=each.shape, dtype=each.dtype, chunks=each.chunksize)
        for name, each in zip(names, sources, strict=True)
    ]
    da.store(sources, targets, lock=False)  # type: ignore[arg-type]
    # Zarr says that the order of bytes is little, where NumPy says that it is that of the machine
    held = [
        da.from_zarr(target).map_blocks(np.asarray, meta=np.empty((0,) * each.ndim, each.dtype))
        for each, target in zip(sources, targets, strict=True)
    ]
    return ds.assign({name: found[name].copy(data=data) for name, data in zip(found, held, strict=True)})


def with_fill_values(ds: xr.Dataset, store: Any, group: str = "") -> xr.Dataset:
    """Add the fill values of Zarr 3 to the encoding of `ds`, which xarray leaves out before version 2026.7.

    In Zarr 2, an attribute ``_FillValue`` takes precedence over a fill value of 0, the default, by which xarray
    replaces it.
    """
    # only arrays of format 3 have a serializer
    unfilled = any("serializer" in da.encoding and "fill_value" not in da.encoding for da in ds.variables.values())
    replaced = [
        name
        for name, da in ds.variables.items()
        if "serializer" not in da.encoding and da.ndim and da.attrs.get("_FillValue") == 0
    ]
    if unfilled or replaced:
        arrays = dict(zarr.open_group(store, mode="r", path=group, use_consolidated=False).arrays())
        for name in ds.variables if unfilled else ():
            ds.variables[name].encoding["fill_value"] = arrays[str(name)].fill_value
        for name in replaced:
            attrs = ds.variables[name].attrs
            attrs["_FillValue"] = arrays[str(name)].attrs.get("_FillValue", attrs["_FillValue"])
    return ds


def _nameless(place: str) -> str:
    """Text that says how to read an array without names of its dimensions."""
    return (
        f"{place!r} is a Zarr array without the names of its dimensions: expected a group as xarray writes it. Write "
        f"one: xr.Dataset({{'name': (('y', 'x'), zarr.open_array({place!r})[:])}}).to_zarr(...)."
    )


def _text(variable: xr.Variable) -> xr.Variable:
    """Text of variable length."""
    if variable.dtype.kind != "S":
        return variable.astype(object)
    decoded = np.char.decode(np.asarray(variable.values), "utf-8", "replace").astype(object)
    return xr.Variable(variable.dims, decoded, variable.attrs)


@dataclass(frozen=True)
class Store:
    """A Zarr store.

    Attributes
    ----------
    url : str
        Path, or URL that fsspec knows.
    options : mapping
        Options of the file system, for fsspec. They may hold secrets, and are neither shown nor written.
    job : str
        Identity of the job that created the store. Processes keep stores open: one that has written to another store at
        this URL opens the new one because its job differs.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    job: str = ""

    def exists(self) -> bool:
        """Whether there is a Zarr store."""
        fs, root = connect(self.url, self.options)
        return any(fs.exists(f"{root}/{marker}") for marker in _MARKERS)

    def occupied(self) -> bool:
        """Whether there is a file, or a folder that is neither empty nor a Zarr store."""
        fs, root = connect(self.url, self.options)
        return not self.exists() and fs.exists(root) and (not fs.isdir(root) or bool(fs.ls(root)))

    def members(self) -> dict[str, dict[str, int]]:
        """Number of dimensions of each array, by path of its group; that of the root is empty."""
        found: dict[str, dict[str, int]] = {"": {}}
        for path, member in sorted(self._group("r").members(max_depth=None)):
            group, _, name = path.rpartition("/")
            if isinstance(member, zarr.Array):
                found.setdefault(group, {})[name] = member.ndim
            else:
                found.setdefault(path, {})
        return found

    def open(self, chunks: Any = None, group: str = "") -> xr.Dataset:
        """Open a group without decoding, by default the root; as dask arrays unless `chunks` is None.

        Variables of text, whose size dask cannot estimate, are never dask arrays.
        """
        fs, root = connect(self.url, self.options)
        # consolidated metadata may be older than the arrays; they spare requests to a remote store in format 2
        consolidated = is_remote(self.url) and bool(fs.exists(f"{root}/.zmetadata"))
        options: Any = {**self._options, "consolidated": consolidated}
        options |= {"engine": "zarr", "decode_cf": False, "cache": False, "group": group or None}
        del options["storage_options"]
        # an absolute path, for workers in other folders
        store: Any = SteadyStore(replace(self, url=resolved(self.url))._group("r").store)
        try:
            ds = with_fill_values(xr.open_dataset(store, **options), store, group)
        except (KeyError, TypeError, ValueError, struct.error):  # also of names of NCZarr, for which xarray looks
            self._require_readable(group)
            raise
        if chunks is None:
            return note_unwritten(ds, store, group)
        texts = [str(name) for name, da in ds.variables.items() if da.dtype.kind not in "biufcmM"]
        lazy = xr.open_dataset(store, chunks=chunks, drop_variables=texts, **options)
        return note_unwritten(with_fill_values(lazy, store, group).assign(ds[texts].variables), store, group)

    def _require_readable(self, group: str) -> None:
        """Raise InputError for arrays without names of dimensions, and nodata values that xarray cannot read."""
        arrays = zarr.open_group(self._group("r").store, mode="r", path=group, use_consolidated=False).arrays()
        for name, array in arrays:
            names: Any = array.attrs.get("_ARRAY_DIMENSIONS", getattr(array.metadata, "dimension_names", None))
            if names is None or len(names) != array.ndim:
                raise InputError(_nameless(f"{self.url}/{name}"))
            fill = array.attrs.get("_FillValue")
            written = isinstance(fill, list) or _BASE64.fullmatch(str(fill)) or "_FillValue" not in array.attrs
            if array.metadata.zarr_format == 3 and array.dtype.kind in "fc" and not written:
                given = "" if fill is None else f", and give --nodata {str(fill).lower()}"
                raise InputError(
                    f"{name!r} in {self.url!r} has the attribute _FillValue {fill}, which xarray cannot read in "
                    "Zarr 3: expected the bytes of a number of 64 bits in base64. Remove it"
                    f"{given}: zarr.open_array('{self.url}/{name}').attrs.pop('_FillValue')."
                )

    def attributes(self) -> dict[str, Any]:
        """Attributes of the root."""
        return dict(self._group("r").attrs)

    def has_array(self, name: str) -> bool:
        """Whether the metadata document of an array is there, in either format."""
        fs, root = connect(self.url, self.options)
        fs.invalidate_cache()
        return any(fs.exists(f"{root}/{name}/{document}") for document in ("zarr.json", ".zarray"))

    def remove(self) -> None:
        """Remove the store, if there is one."""
        remove(*connect(self.url, self.options), _MARKERS)

    def sweep(self) -> None:
        """Remove the temporary files of killed processes."""
        if not is_remote(self.url):
            fs, root = connect(self.url, self.options)
            for name in fs.find(root):
                if name.endswith(".partial"):
                    fs.rm_file(name)

    def require_storable(self, ds: xr.Dataset, zarr_format: Any) -> None:
        """Check that Zarr can hold all names, attributes and coordinates, by writing the first cells elsewhere.

        Raises OutputError if it cannot.
        """
        try:
            for name in map(str, ds.variables):
                name.encode()  # a local name may hold bytes that are not UTF-8
                if "/" in name:
                    raise ValueError(f"got / in the name {name!r}")
            first = ds.isel(dict.fromkeys(ds.dims, slice(1)))
            with TemporaryDirectory() as folder:
                to_zarr(first, folder, mode="w", compute=False, zarr_format=zarr_format, consolidated=False)
        except Exception as error:
            raise OutputError(
                f"Zarr cannot hold the variables: {reason(error)}. Nothing was written: rename what it names, "
                "ds.rename(), or leave it out, ds.drop_vars()."
            ) from error

    def create(self, ds: xr.Dataset, later: Sequence[Hashable], zarr_format: Any) -> None:
        """Write metadata, coordinates and variables, except the values of the variables that come `later`.

        The latter are dask arrays, which are not computed; :meth:`write` writes their values. An existing store is
        removed. Raises OutputError if the store cannot be written.
        """
        _opened.pop(self._key(), None)
        ds = ds.assign_attrs({UNFINISHED: "true"})
        with writing(self.url):
            self.remove()
            # marked as unfinished from its first file on
            zarr.create_group(self.url, attributes={UNFINISHED: "true"}, zarr_format=zarr_format, **self._options)
            to_zarr(ds, self.url, mode="a", compute=False, zarr_format=zarr_format, consolidated=False, **self._options)
            now = [name for name, da in ds.variables.items() if name not in later and da.chunks is not None]
            if now:
                part = ds[now]
                part = part.drop_vars([name for name in part.coords if name not in now])
                to_zarr(part, self.url, mode="r+", consolidated=False, **self._options)

    def write(self, arrays: Mapping[str, Array], region: Mapping[Hashable, slice]) -> None:
        """Write decoded values of some variables to a region of whole chunks (or shards).

        Dimensions that `region` does not name are written whole. Raises OutputError if the values cannot be written.
        """
        with writing(self.url):
            for name, values in arrays.items():
                target = self._targets()[name]
                variable = xr.Variable(target.dims, values, encoding=target.encoding)
                stored = xr.conventions.encode_cf_variable(variable, name=name)
                target.array[tuple(region.get(dim, slice(None)) for dim in target.dims)] = np.asarray(stored.values)

    def complete(self, attributes: Mapping[str, Any]) -> None:
        """Remove the mark of an unfinished store, and add `attributes` to the root.

        Raises OutputError if the store cannot be written.
        """
        with writing(self.url), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Consolidated metadata")
            group = self._group("r+")
            kept = {key: value for key, value in group.attrs.items() if key != UNFINISHED}
            group.attrs.put({**kept, **attributes})
            zarr.consolidate_metadata(group.store)
        _opened.pop(self._key(), None)

    @property
    def _options(self) -> dict[str, Any]:
        return {"storage_options": dict(self.options) if self.options and is_remote(self.url) else None}

    def _group(self, mode: Any) -> zarr.Group:
        try:
            return zarr.open_group(self.url, mode=mode, use_consolidated=False, **self._options)
        except (zarr.errors.ContainsArrayError, FileNotFoundError) as error:
            fs, root = connect(self.url, self.options)
            if isinstance(error, FileNotFoundError) and not fs.exists(f"{root}/.zarray"):
                raise
            raise InputError(_nameless(self.url)) from error

    def _targets(self) -> dict[str, _Target]:
        """The arrays of the variables, opened once in a process."""
        if self._key() not in _opened:
            group = self._group("r+")
            options: Any = {**self._options, "decode_times": False, "consolidated": False}
            ds = xr.open_zarr(self.url, chunks=None, **options)
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
