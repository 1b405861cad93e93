"""CF attributes and encoding of a filled raster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import xarray as xr

from geonp.raster.casting import UNLIMITED, holds
from geonp.raster.grid import grid_mapping_name
from geonp.raster.nodata import NODATA, PACKING, VALID, without

__all__ = [
    "UNNAMED",
    "FillFlag",
    "ancillary_names",
    "dataset_attrs",
    "kept_encoding",
    "result_attrs",
    "value_attrs",
]

UNNAMED = "value"
"""Name of the filled variable of a DataArray without a name."""

_TEMPERATURE_UNITS = {"k", "kelvin", "degc", "celsius", "degree_celsius", "degrees_celsius", "degf", "fahrenheit"}


class FillFlag(IntEnum):
    """Origin of the value of a cell, as stored in ``<name>_fill_flag``."""

    OBSERVED = 0
    """Given in the input, unchanged."""
    FILLED = 1
    """Predicted by the model."""
    BEYOND_LIMIT = 2
    """Left empty: farther from an observed cell than ``max_distance`` or than the context reaches."""
    OUTSIDE_DOMAIN = 3
    """Left empty: outside the valid domain that the mask gives."""
    FAILED = 4
    """Left empty because it could not be read or computed. Only in stores: other fills stop with an error."""


def dataset_attrs(attrs: Mapping[Any, Any], line: str, model: str, version: str, sha256: str) -> dict[Any, Any]:
    """Attributes of a filled Dataset: those given, ``Conventions``, a line of ``history`` and the model's identity."""
    earlier = str(attrs.get("history", "")).rstrip("\n")
    return {
        "Conventions": "CF-1.11",
        **attrs,
        "history": f"{earlier}\n{line}" if earlier else line,
        "geonp_model": model,
        "geonp_model_version": version,
        "geonp_weights_sha256": sha256,
    }


def kept_encoding(source: xr.DataArray, markers: tuple[float, ...]) -> dict[str, Any]:
    """Encoding of the filled values that every file format can take, with one nodata value, in ``_FillValue``.

    An integer encoding of floats without a nodata value is left out, because it has no value for empty cells.
    """
    encoding = {key: source.encoding[key] for key in ("dtype", *PACKING) if key in source.encoding}
    mapping = source.encoding.get("grid_mapping", source.attrs.get("grid_mapping", grid_mapping_name(source)))
    if mapping is not None:
        encoding["grid_mapping"] = mapping
    if source.dtype.kind in "iu":
        if encoding.get("dtype", source.dtype) != source.dtype:  # signed integers that were read as unsigned
            del encoding["dtype"]
        return encoding
    encoded = [source.encoding[key] for key in NODATA if key in source.encoding]
    fill = encoded[0] if encoded else next(iter(markers), None)
    if fill is not None:
        encoding["_FillValue"] = fill
    stored = np.dtype(encoding.get("dtype", source.dtype))
    if stored.kind in "iu" and not encoded and fill is not None:  # in the units of the values
        fill = round((fill - encoding.get("add_offset", 0.0)) / encoding.get("scale_factor", 1.0))
        encoding["_FillValue"] = fill
    if stored.kind in "iu" and (fill is None or "_Unsigned" in source.encoding):
        encoding = {key: value for key, value in encoding.items() if key == "grid_mapping"}
    return encoding


def value_attrs(
    source: xr.DataArray,
    markers: tuple[float, ...],
    limits: tuple[float, float],
    encoding: Mapping[str, Any],
    ancillary: Sequence[str],
) -> dict[Any, Any]:
    """Attributes of the filled values, with the names of the `ancillary` results; `encoding` is what they will have."""
    # a valid range refers to stored values
    stored = np.dtype(source.encoding.get("dtype", source.dtype))
    kept = stored == encoding.get("dtype", source.dtype)
    attrs = without(source.attrs, (*NODATA, "grid_mapping", *(() if kept else VALID)))
    if source.dtype.kind in "iu" and not kept and limits != UNLIMITED:
        info = np.iinfo(source.dtype)
        attrs["valid_range"] = np.clip(limits, info.min, info.max).astype(source.dtype)
    held = [source.dtype.type(marker) for marker in markers if holds(source.dtype, marker)]
    if source.dtype.kind in "iu" and held:
        attrs["_FillValue"] = held[0]
    names = dict.fromkeys([*ancillary_names(source), *ancillary])
    return {**attrs, "ancillary_variables": " ".join(names)}


def result_attrs(source: xr.DataArray, label: str, result: str) -> dict[str, Any]:
    """Attributes of a result beside the values: of ``standard_error``, ``fill_flag``, ``probability`` and so on.

    `label` stands for the ``long_name`` of the source if it has none.
    """
    title = source.attrs.get("long_name", label)
    if result == "standard_error":
        return _error_attrs(source, title)
    if result == "fill_flag":
        return {
            "long_name": f"{title} fill flag",
            "standard_name": "status_flag",
            "flag_values": np.array([int(member) for member in FillFlag], dtype=np.int8),
            "flag_meanings": " ".join(member.name.lower() for member in FillFlag),
        }
    if result == "tail":
        return {"long_name": f"{title}, inverse degrees of freedom of the Student distribution", "units": "1"}
    if result == "probability":
        return {"long_name": f"{title}, probability of each class", "units": "1"}
    kept = {key: source.attrs[key] for key in ("units", "units_metadata", *PACKING) if key in source.attrs}
    return {"long_name": f"{title}, {'joint sample' if result == 'sample' else result}", **kept}


def _error_attrs(source: xr.DataArray, title: str) -> dict[str, Any]:
    attrs: dict[str, Any] = {"long_name": f"{title} standard error"}
    if "standard_name" in source.attrs:
        attrs["standard_name"] = f"{source.attrs['standard_name']} standard_error"
    if "units" in source.attrs:
        attrs["units"] = source.attrs["units"]
        if str(attrs["units"]).lower() in _TEMPERATURE_UNITS:
            attrs["units_metadata"] = "temperature: difference"
    if "scale_factor" in source.attrs:  # stored values: a difference has the scale, but no offset
        attrs["scale_factor"] = abs(source.attrs["scale_factor"])
    return attrs


def ancillary_names(da: xr.DataArray) -> list[str]:
    """Names in the CF attribute ``ancillary_variables``."""
    return str(da.attrs.get("ancillary_variables", da.encoding.get("ancillary_variables", ""))).split()
