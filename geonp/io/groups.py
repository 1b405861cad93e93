"""Rasters in groups of NetCDF files and Zarr stores, which :class:`xarray.DataTree` writes too.

A group sees the coordinates of the groups above it, as in CF 2.7. Products of satellites keep latitudes and longitudes
in a group beside that of the values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import netCDF4
import numpy as np
import xarray as xr

from geonp.errors import InputError, warn
from geonp.io.decoding import decoded
from geonp.io.grib import LEFT_OUT
from geonp.io.hdfeos import described, structure_of
from geonp.io.layouts import NETCDF_MODEL, OTHER_GROUPS
from geonp.io.nodata import numbered, retyped
from geonp.io.sources import Source
from geonp.raster.dimensions import LATITUDES, LONGITUDES, data_variables, is_geolocation
from geonp.raster.metadata import class_attrs, listed_names

Members = Mapping[str, Mapping[str, int]]
"""Number of dimensions of each variable, by path of the group; that of the root is empty."""


class Tree(Protocol):
    """A file or store of groups."""

    def open(self, chunks: Any = None, group: str = "") -> xr.Dataset:
        """Open a group without decoding."""

    def members(self) -> Members:
        """All groups and variables."""


class NetCDF:
    """A NetCDF file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, chunks: Any = None, group: str = "") -> xr.Dataset:
        """Open a group without decoding; as dask arrays unless `chunks` is None.

        The dtype in the encoding of arrays of variable length is object: xarray has that of their elements. The names
        of an enumeration become CF flags: filled as numbers, it has values without a name.
        """
        options: Any = {"engine": "netcdf4", "decode_cf": False, "cache": False}
        ds = xr.open_dataset(self.path, chunks=chunks, group=group or None, **options)
        with netCDF4.Dataset(self.path) as file:
            ds.encoding |= {NETCDF_MODEL: file.data_model, OTHER_GROUPS: [g for g in file.groups if g != group]}
            for name, variable in (file[group] if group else file).variables.items():
                if isinstance(variable.datatype, netCDF4.VLType) and variable.dtype is not str:
                    ds[name].encoding["dtype"] = np.dtype(object)
                if isinstance(variable.datatype, netCDF4.EnumType) and not class_attrs(ds[name].attrs):
                    ds[name].encoding["dtype"] = np.dtype(variable.dtype.str)
                    meanings = {value: word.replace(" ", "_") for word, value in variable.datatype.enum_dict.items()}
                    ds[name].attrs["flag_values"] = np.array(list(meanings), variable.dtype)
                    ds[name].attrs["flag_meanings"] = " ".join(meanings.values())
        return described(ds, group, structure_of(self.path)) if group.startswith("HDFEOS/") else ds

    def members(self) -> Members:
        """All groups and variables."""
        found: dict[str, dict[str, int]] = {}

        def visit(group: netCDF4.Group | netCDF4.Dataset, path: str) -> None:
            found[path] = {name: len(variable.dimensions) for name, variable in group.variables.items()}
            for name, inner in group.groups.items():
                visit(inner, f"{path}/{name}".lstrip("/"))

        with netCDF4.Dataset(self.path) as file:
            visit(file, "")
        return found


def _choose_group(
    place: str, members: Members, group: str | None, variables: Sequence[str] | None
) -> tuple[str, list[str] | None]:
    """The group to open, and names of variables in it, which may be given with their group, as in ``group/name``.

    Raises InputError if there is no such group, or several could be meant, listing them.
    """
    wanted = None if variables is None else [name.strip("/") for name in variables]
    if group is None and wanted is not None and any("/" in name for name in wanted):
        groups = sorted({name.rpartition("/")[0] for name in wanted})
        if len(groups) > 1:
            raise InputError(
                f"The variables are in several groups: got {', '.join(map(repr, groups))}, expected one. Name "
                "variables of one group at a time (--variable)."
            )
        group, wanted = groups[0], [name.rpartition("/")[2] for name in wanted]
    if group is not None:
        group = group.strip("/")
        group = next((path for path in members if path.replace(" ", "_") == group), group)  # as GDAL writes blanks
        if group not in members:
            raise InputError(
                f"No group {group!r} in {place!r}: got {_listed(members)}. Correct group (--group) or variables "
                "(--variable)."
            )
        return group, wanted
    holding = [path for path, names in members.items() if _holds(names, wanted)]
    if "" in holding or not holding:
        return "", wanted
    if len(holding) > 1:
        listed = _listed({path: members[path] for path in holding})
        raise InputError(
            f"{place!r} has rasters in several groups: got {listed}, expected one. Name a group (--group), or a "
            "variable with its group (--variable group/name)."
        )
    return holding[0], wanted


def open_tree(
    tree: Tree, source: Source, chunks: Any, variables: Sequence[str] | None, group: str | None
) -> tuple[str, xr.Dataset, list[str] | None]:
    """The path of the group of a file or store that is meant, the group without decoding, and names of variables in it.

    Raises InputError as :func:`_choose_group`.
    """
    wanted = [source.variable] if source.variable else None if variables is None else list(variables)
    ds, path = None, ""
    if group is None:
        root = tree.open(chunks)
        found = {str(name): da.ndim for name, da in root.variables.items()}
        ds = root if _holds(found, wanted) else None
    if ds is None:
        members = tree.members()
        path, wanted = _choose_group(source.path, members, group, wanted)
        ds = _open_group(tree, members, path, chunks)
    left_out = ds.encoding.pop(LEFT_OUT, [])
    if left_out and wanted is None:
        warn(
            f"Left out of {source.path!r}: {', '.join(map(repr, left_out))}, whose coordinates differ from those of "
            f"other variables. Read them alone: group={left_out[0]!r} (--group {quote(left_out[0])})."
        )
    hidden = [str(name) for name, da in data_variables(ds).items() if da.ndim >= 2 and is_geolocation(name, da)]
    others = set(ds.data_vars) - set(hidden) if wanted is None else set(wanted)
    if hidden and others:
        ds = ds.set_coords([name for name in hidden if wanted is None or name not in wanted])
    return path, ds, wanted


def open_cells(path: Path) -> xr.Dataset:
    """Open measurements in NetCDF or HDF-EOS5; if places are in one group alone, with all that have its dimensions.

    Raises InputError if they are in several groups, as the beams of ICESat-2.
    """
    tree = NetCDF(str(path))
    root = tree.open()
    members = tree.members()
    placed = [group for group, names in members.items() if _may_locate(names)]
    if len(placed) > 1 and not root.sizes:
        raise InputError(
            f"{str(path)!r} has measurements in several groups: got "
            f"{_listed({group: members[group] for group in placed})}, expected one. Read one in Python, "
            "with xarray.open_dataset(path, group=...), or write it to a file of its own."
        )
    if len(placed) != 1 or not placed[0]:
        return decoded(numbered(retyped(root)))
    places = tree.open(None, placed[0])
    sizes = max(
        (variable.sizes for name, variable in places.variables.items() if is_geolocation(name, variable)), key=len
    )
    found: dict[Hashable, xr.Variable] = {}
    for ds in (places, *(tree.open(None, group) for group in members)):
        for name, variable in ds.variables.items():
            if variable.dims and variable.sizes.items() <= sizes.items():
                found.setdefault(name, variable)
    return decoded(numbered(retyped(xr.Dataset(found, attrs=root.attrs))))


def _open_group(tree: Tree, members: Members, group: str, chunks: Any) -> xr.Dataset:
    """Open a group with the coordinates of the groups above it, and latitudes and longitudes beside it."""
    ds, path = tree.open(chunks, group), group
    while path:
        path = path.rpartition("/")[0]
        if members.get(path):
            ds = _with_coordinates(ds, tree.open(None, path), located=False)
    if group and not any(is_geolocation(name, variable) for name, variable in ds.variables.items()):
        for other, names in members.items():
            if other != group and _may_locate(names):
                ds = _with_coordinates(ds, tree.open(None, other), located=True)
    return ds


def _may_locate(names: Mapping[str, int]) -> bool:
    """Whether a group has names of latitudes and longitudes; opening each group would be slow."""
    return any("lat" in name.lower() for name in names) and any("lon" in name.lower() for name in names)


def _holds(names: Mapping[str, int], wanted: Sequence[str] | None) -> bool:
    """Whether a group has all of the `wanted` variables, or any raster other than latitudes and longitudes."""
    if wanted is not None:
        return set(wanted) <= set(names)
    return any(ndim >= 2 and name.lower() not in LATITUDES | LONGITUDES for name, ndim in names.items())


def _with_coordinates(ds: xr.Dataset, other: xr.Dataset, *, located: bool) -> xr.Dataset:
    """Add the coordinates and grid mappings of another group that fit; with `located`, its latitudes and longitudes."""
    attrs = [da.attrs for da in ds.variables.values()]
    named = {
        word
        for each in attrs
        for key in ("coordinates", "grid_mapping")
        for word in listed_names(each.get(key), other.variables)
    }
    found = {
        name: variable
        for name, variable in other.variables.items()
        if name not in ds.variables
        and all(ds.sizes.get(dim) == size for dim, size in variable.sizes.items())
        and ((variable.ndim > 0 and is_geolocation(name, variable)) if located else (name in ds.dims or name in named))
    }
    return ds.assign_coords(found)


def _listed(members: Members) -> str:
    """Groups with their first variables, as text."""
    texts = [
        f"{path or '/'!r} ({', '.join(list(names)[:8])}{', ...' if len(names) > 8 else ''})"
        for path, names in members.items()
        if names
    ]
    return "; ".join(texts[:20]) or "no groups with variables"
