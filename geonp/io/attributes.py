"""Attributes that every format can hold: those of Zarr, a JSON file, may be of any type and have any name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, timedelta
from numbers import Number
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from rasterio import Affine
from xarray.indexes import PandasMultiIndex

from geonp.errors import OutputError, warn
from geonp.raster.metadata import listed_names

# The netCDF library keeps these for itself, and HDF5 tools write them.
_RESERVED = {
    "CLASS",
    "DIMENSION_LABELS",
    "DIMENSION_LIST",
    "NAME",
    "REFERENCE_LIST",
    "_NCProperties",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_nc3_strict",
}
_UNSTORABLE = re.compile(r"[/\x00-\x1f\x7f]")
_NAMING = {"ancillary_variables", "coordinates"}
_FLAGS = ("flag_masks", "flag_values")
_INT64 = np.iinfo(np.int64)


def storable(ds: xr.Dataset) -> xr.Dataset:
    """Copy of `ds` whose attributes NetCDF and Zarr can hold.

    Text, real numbers, and lists of one of them stay. All else, such as None, a bool, a mapping or a nested list,
    becomes text: JSON where possible. Attributes that the netCDF library reserves are left out, and ``/`` in a name
    becomes ``_``. Flags get the type of the stored values, as CF asks for: JSON has one type of integers.
    """
    ds = ds.assign_attrs()
    ds.attrs = _attributes(ds.attrs)
    for name in ds.variables:
        ds[name].attrs = _attributes(ds[name].attrs) | _flags(ds[name].variable)
    return ds


def with_storable_names(ds: xr.Dataset) -> xr.Dataset:
    """`ds` with names of variables that NetCDF and Zarr can hold; warns of others. A ``/`` would name a group."""
    names = {name: _UNSTORABLE.sub("_", str(name)) for name in ds.variables if _UNSTORABLE.search(str(name))}
    if not names:
        return ds
    renamed = ", ".join(f"{old!r} to {new!r}" for old, new in names.items())
    warn(f"Renamed, because NetCDF and Zarr cannot hold such names: {renamed}.")
    among, ds = list(ds.variables), ds.rename(names)
    for da in ds.variables.values():
        for key in _NAMING & set(da.attrs):
            da.attrs[key] = " ".join(names.get(name, name) for name in listed_names(da.attrs[key], among))
    return ds


def require_storable(ds: xr.Dataset) -> None:
    """Raise OutputError for a variable of objects that NetCDF and Zarr cannot hold, such as ``metpy_crs`` of MetPy."""
    for name, variable in ds.variables.items():
        items = variable.values.ravel().tolist() if variable.dtype.kind == "O" and variable._in_memory else []
        if not _are_alike(items):
            raise OutputError(
                f"{name!r} holds objects of Python, which NetCDF and Zarr cannot hold: got {type(items[0]).__name__}, "
                f"expected numbers, times or texts. Leave it out: ds.drop_vars({name!r})."
            )


def with_texts(ds: xr.Dataset) -> xr.Dataset:
    """`ds` with text (JSON where needed) instead of objects that no file holds, such as the mappings of STAC items.

    Indices of pandas become what files hold: levels become coordinates, periods their beginnings, times are in UTC. So
    do attributes, such as times, bytes, complex numbers, and numbers of NumPy in mappings.
    """
    ds = ds.reset_index([name for name, index in ds.xindexes.items() if isinstance(index, PandasMultiIndex)])
    for name, index in ds.indexes.items():
        if not isinstance(ds[name].dtype, np.dtype):
            ds = ds.assign_coords({name: ds[name].variable.copy(data=_held(index))})
    extended = {name: v for name, v in ds.variables.items() if not isinstance(v.dtype, np.dtype)}  # such as categories
    ds = ds.assign({name: variable.copy(data=_held(variable.to_index())) for name, variable in extended.items()})
    texts = {}
    for name, variable in ds.variables.items():
        items = variable.values.ravel().tolist() if variable.dtype.kind == "O" and variable._in_memory else []
        if items and all(isinstance(item, date) for item in items):  # which xarray does not store, nor those of a zone
            times = pd.to_datetime(items, utc=True).tz_localize(None).to_numpy()
            texts[name] = variable.copy(data=times.reshape(variable.shape))
        elif items and not _are_alike(items):
            with suppress(TypeError):  # other objects are refused by writers
                texts[name] = variable.copy(data=_texts(variable.values))
    ds = ds.assign(texts).assign_attrs()
    holders: list[Any] = [ds, *ds.variables.values()]
    for one in holders:
        one.attrs = {key if isinstance(key, str) else str(key): in_json(value) for key, value in one.attrs.items()}
    return ds


def in_json(value: Any) -> Any:
    """The value of an attribute if JSON has it, or NumPy has it as numbers or texts, else the nearest that JSON has."""
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray):
        if value.dtype.kind in "biuU" or value.dtype in (np.float32, np.float64):
            return value
        if value.dtype.kind == "f":
            return value.astype(np.float64)
        if value.dtype.kind == "M":
            return np.datetime_as_string(np.asarray(value, value.dtype)).tolist()
        if value.dtype.kind == "m":
            return value.astype(str).tolist()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # half a pair of surrogates is no text
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return {str(key): _listed(in_json(item)) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple | Affine):  # which stackstac and rasterio call transform
        return [_listed(in_json(item)) for item in value]
    if isinstance(value, date):
        return value.isoformat()
    # writers refuse other objects, whose text may be an address in memory
    return str(value) if isinstance(value, Number | timedelta | np.generic | PathLike) else value


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _held(index: pd.Index[Any]) -> Any:
    """Values of an index of a dtype of pandas as NumPy has them."""
    if isinstance(index, pd.PeriodIndex):
        return index.to_timestamp().values
    if isinstance(index, pd.DatetimeIndex):
        return index.tz_convert("UTC").tz_localize(None).values
    if pd.api.types.is_numeric_dtype(index.dtype):
        return index.to_numpy(np.float64, na_value=np.nan)
    return np.array(["" if missing else str(label) for label, missing in zip(index, index.isna(), strict=True)], object)


def _are_alike(items: list[Any]) -> bool:
    """Whether xarray stores objects as they are: all are text, or all are numbers or times, some of which are None."""
    return all(isinstance(item, str | bytes) for item in items) or all(
        item is None or isinstance(item, Number | np.generic | date | timedelta) or hasattr(item, "calendar")
        for item in items
    )


def _texts(values: Any) -> Any:
    texts = np.empty(values.shape, object)
    for index, item in np.ndenumerate(values):
        missing = item is None or item != item
        texts[index] = "" if missing else item if isinstance(item, str) else json.dumps(item, default=_plain)
    return texts


def _plain(item: Any) -> Any:
    """What JSON has instead of a set, an array or a time."""
    if isinstance(item, set | frozenset):
        return sorted(item, key=str)
    if isinstance(item, np.ndarray | np.generic):
        return item.tolist()
    if isinstance(item, date):
        return item.isoformat()
    raise TypeError(f"no text for {type(item)}")


def _flags(variable: xr.Variable) -> dict[str, Any]:
    """``flag_values`` and ``flag_masks`` as integers of the stored type, if it holds them."""
    stored = np.dtype(variable.encoding.get("dtype") or variable.dtype)
    given = {key: np.asarray(variable.attrs[key]) for key in _FLAGS if key in variable.attrs}
    whole = {key: values for key, values in given.items() if stored.kind in "iu" and values.dtype.kind in "iu"}
    cast = {key: values.astype(stored) for key, values in whole.items()}
    return {key: values for key, values in cast.items() if np.array_equal(values, whole[key])}


def _attributes(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    names = {key: str(key).replace("/", "_").strip() for key in attrs}
    return {name: _value(attrs[key]) for key, name in names.items() if name and name not in _RESERVED}


def _value(value: Any) -> Any:
    """`value` if NetCDF and Zarr can hold it, else a text."""
    if isinstance(value, str) or _is_number(value):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.ndim <= 1:
        return value
    items = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    is_list = isinstance(items, list | tuple) and len(items) > 0
    if is_list and (all(isinstance(item, str) for item in items) or all(map(_is_number, items))):
        return value
    return json.dumps(items, default=str)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, int):
        return bool(_INT64.min <= value <= _INT64.max)
    return isinstance(value, float | np.integer | np.floating)
