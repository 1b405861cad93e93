"""HDF-EOS5: dimensions and attributes of the fields of swaths, of which NetCDF does not know.

A text in the file says the dimensions of each field; attributes have names of their own. Grids are read by GDAL, which
knows their projections.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import netCDF4
import xarray as xr

_INFORMATION = "HDFEOS INFORMATION"
_FIELD = re.compile(r'(?:Geo|Data)FieldName="([^"]+)".*?DimList=\(([^)]*)\)', re.DOTALL)
_ATTRIBUTES = {
    "Units": "units",
    "Title": "long_name",
    "MissingValue": "_FillValue",
    "ScaleFactor": "scale_factor",
    "Offset": "add_offset",
}
"""Names of CF by those of HDF-EOS5, which count where an attribute of CF is not there."""


def structure_of(path: str) -> str:
    """The text that says the structure of a file of HDF-EOS5; empty for others."""
    with netCDF4.Dataset(path) as file:
        if _INFORMATION not in file.groups:
            return ""
        parts = file[_INFORMATION].variables
        return "".join(str(parts[name][...]) for name in sorted(parts) if name.startswith("StructMetadata"))


def described(ds: xr.Dataset, group: str, structure: str) -> xr.Dataset:
    """A group as NetCDF has it, with the dimensions and attributes of HDF-EOS5 if it has fields of a swath."""
    swath = re.match(r"HDFEOS/SWATHS/([^/]+)/", group)
    if swath is None:
        return ds
    block = re.search(rf'SwathName="{re.escape(swath[1])}"(.*?)END_GROUP=SWATH_', structure, re.DOTALL)
    dims = dict(_FIELD.findall(block[1])) if block else {}
    variables: dict[Hashable, xr.Variable] = {}
    for name, variable in ds.variables.items():
        named = re.findall(r'"([^"]+)"', dims.get(str(name), ""))
        field = variable.copy(deep=False)
        if len(named) == variable.ndim:
            field.dims = tuple(named)
        field.attrs = _as_cf(variable.attrs)
        variables[name] = field
    return xr.Dataset(variables, attrs=ds.attrs)


def _as_cf(attrs: dict[Any, Any]) -> dict[Any, Any]:
    known = {key: value for key, value in attrs.items() if key not in _ATTRIBUTES}
    return {_ATTRIBUTES[key]: value for key, value in attrs.items() if key in _ATTRIBUTES} | known
