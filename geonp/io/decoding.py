"""From values as stored to those that CF attributes describe."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from pyproj import CRS
from pyproj.exceptions import CRSError

from geonp.errors import InputError, warn
from geonp.raster.crs import cf_attrs, grid_mapping_name, with_cf_crs
from geonp.raster.dimensions import data_variables
from geonp.raster.nodata import PACKING, require_packing

AMBIGUOUS = "Ambiguous reference date string"
"""How a warning of xarray begins, of a year such as 1 without zeros, which files keep as they are."""
_NAMING = ("coordinates", "grid_mapping", "formula_terms", "bounds", "climatology")
"""Attributes that name other variables."""


def renamed(stored: xr.Dataset, y_dim: str | None, x_dim: str | None) -> xr.Dataset:
    """Rename the dimensions of rows and columns to ``y`` and ``x``, with their coordinates.

    Raises InputError if there is no such dimension, or another one has its new name.
    """
    given = {name: dim for name, dim in (("y", y_dim), ("x", x_dim)) if dim is not None}
    dims = ", ".join(map(repr, stored.dims)) or "none"
    if missing := [dim for dim in given.values() if dim not in stored.dims]:
        raise InputError(
            f"No dimension {', '.join(map(repr, missing))}: got dimensions ({dims}). Correct y_dim and x_dim (--y, "
            "--x)."
        )
    if y_dim == x_dim:
        raise InputError(
            f"{y_dim!r} is given twice, expected two of the dimensions ({dims}). Correct y_dim and x_dim (--y, --x)."
        )
    if taken := [name for name in given if name in {*stored.variables, *stored.dims} - set(given.values())]:
        raise InputError(
            f"The raster has a dimension or variable {', '.join(map(repr, taken))} already: got dimensions ({dims}). "
            "Rename it, or give it as y_dim or x_dim (--y, --x)."
        )
    names = {dim: name for name, dim in given.items() if dim != name}
    return stored.rename(names)


def decoded(stored: xr.Dataset, wanted: Sequence[str] | None = None) -> xr.Dataset:
    """Decode by CF conventions; times that cannot be decoded and encoded, as months since a date, stay numbers.

    So do variables beside the rasters and their coordinates whose scale or offset is no finite number. Variables of
    records, the compound types of HDF5, and of arrays of variable length are left out with a warning.

    With `wanted`, other variables are left out unless they may be coordinates: they may be damaged. Raises InputError
    for a scale that is zero, or a scale or offset that is no finite number.
    """
    if wanted is not None and set(wanted) <= set(stored.variables):
        attrs = [stored.attrs, *(variable.attrs for variable in stored.variables.values())]
        texts = [str(each.get(key, "")) for each in attrs for key in _NAMING]
        named = {word.strip(":") for text in texts for word in text.split()}
        # times of WRF are characters of a variable
        characters = {
            name for name, variable in stored.variables.items() if variable.dtype.kind in "SU" and variable.ndim <= 2
        }
        needed = {*wanted, *stored.dims, *stored.coords, *named, *characters, "spatial_ref", "crs"}
        stored = stored.drop_vars([name for name in stored.data_vars if name not in needed])
    for what, left in (
        ("records of several numbers", [name for name, v in stored.variables.items() if v.dtype.kind == "V"]),
        (
            "arrays of variable length",
            # the strings of Zarr are objects, too, with NumPy 1
            [n for n, v in stored.variables.items() if v.encoding.get("dtype") == np.object_ and v.dtype.kind != "O"],
        ),
    ):
        if left:
            warn(f"Left out: {', '.join(map(repr, left))}, whose values are {what}.")
            stored = stored.drop_vars(left)
    kept: dict[Hashable, dict[Hashable, Any]] = {}
    for name, variable in stored.variables.items():
        if variable.dtype.kind in "iuf" and (variable.ndim >= 2 or name in stored.dims):
            require_packing(name, variable.attrs)
        if names := _undecodable(name, variable):
            kept[name] = {key: value for key, value in variable.attrs.items() if key in names}
    plain = stored.assign({name: stored[name].variable.copy(deep=False) for name in kept})
    for name, as_stored in kept.items():
        plain[name].attrs = {key: value for key, value in plain[name].attrs.items() if key not in as_stored}
    with warnings.catch_warnings():
        # its advice is an argument of a function that users of geonp do not call; geonp reads cftime
        warnings.filterwarnings("ignore", "Unable to decode time axis into full numpy.datetime64")
        warnings.filterwarnings("ignore", AMBIGUOUS)
        warnings.filterwarnings("ignore", "variable .* has multiple fill values")  # all of them are missing
        ds = xr.decode_cf(plain, decode_timedelta=False)
    for name, as_stored in kept.items():
        ds[name].attrs.update(as_stored)
    return ds


def _undecodable(name: Hashable, variable: xr.Variable) -> tuple[str, ...]:
    """Attributes with which a variable cannot be decoded."""
    if variable.dtype.kind not in "iuf":
        return ()
    try:
        require_packing(name, variable.attrs)
    except InputError:
        return tuple(PACKING)
    if " since " in str(variable.attrs.get("units")):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a trial, nothing of which is kept
                times = xr.conventions.decode_cf_variable(name, variable, decode_timedelta=False)
                xr.conventions.encode_cf_variable(times[(slice(1),) * times.ndim].load())
        except Exception:  # pandas, cftime and xarray raise several
            return ("units",)
    return ()


def declare_crs(ds: xr.Dataset, text: str) -> xr.Dataset:
    """Replace the declared CRS of all rasters, which may be none that can be read.

    Raises InputError for a text that is no CRS.
    """
    try:
        crs = CRS.from_user_input(text)
    except CRSError as error:
        raise InputError(
            f"Unknown CRS: got {text!r}, expected a code such as EPSG:32633, WKT or a PROJ string. Correct crs (--crs)."
        ) from error
    name = grid_mapping_name(ds) or "spatial_ref"
    before = ds[name].attrs if name in ds.variables else {}
    places = {key: before[key] for key in ("GeoTransform", "gcps") if key in before}
    attrs = {**cf_attrs(crs), **places}
    ds = ds.assign_coords({name: xr.Variable((), np.int32(0), attrs)})
    for da in data_variables(ds).values():
        if da.ndim >= 2:
            da.encoding["grid_mapping"] = name
    return ds


def with_crs(ds: xr.Dataset) -> xr.Dataset:
    """Make the CRS variable a coordinate, named in ``encoding``, where rioxarray looks for it."""
    ds = with_cf_crs(ds)
    name = grid_mapping_name(ds)
    if name in ds.data_vars:
        ds = ds.set_coords(name)
    for da in data_variables(ds).values():
        if "grid_mapping" in da.attrs:
            da.encoding["grid_mapping"] = da.attrs.pop("grid_mapping")
    return ds
