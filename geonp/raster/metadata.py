"""Which variables are filled, and what a filled raster says about itself (CF attributes, encoding)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.raster.casting import UNLIMITED, Fit, fitting, holds
from geonp.raster.grid import Grid, grid_mapping_name
from geonp.raster.nodata import NODATA, PACKING, VALID, cellwise, declared_nodata, valid_limits, without

__all__ = [
    "UNNAMED",
    "FillFlag",
    "annotate",
    "append_history",
    "fill_variables",
    "flag_attrs",
    "kept_encoding",
    "provenance",
]

UNNAMED = "value"
"""Name that the variable of a DataArray without a name gets in the filled Dataset."""

_CONVENTIONS = {"Conventions": "CF-1.11"}
_TEMPERATURE_UNITS = {"k", "kelvin", "degc", "celsius", "degree_celsius", "degrees_celsius", "degf", "fahrenheit"}


class FillFlag(IntEnum):
    """Where the value of a cell comes from, as stored in ``<name>_fill_flag``."""

    OBSERVED = 0
    """Given in the input, unchanged."""
    FILLED = 1
    """Predicted by the model."""
    BEYOND_LIMIT = 2
    """Left empty: farther from an observed cell than ``max_distance`` or than the context reaches."""
    OUTSIDE_DOMAIN = 3
    """Left empty: outside the valid domain that the mask gives."""
    FAILED = 4
    """Left empty because it could not be read or computed: in stores, which go on; other fills stop with an error."""


def fill_variables(ds: xr.Dataset, nodata: float | None = None) -> list[Hashable]:
    """Names of the variables of ``ds`` to fill: real numbers on both spatial dimensions, in the order of ``ds``.

    Ancillary variables of others (standard errors, flags) and CF flag variables hold no measured field: like all other
    variables they pass through. So do, beside others, integers that declare no nodata value where none is given, as
    layers of quality usually do, even if they have a valid range.

    Raises
    ------
    InputError
        Where there is none, naming each variable with its dimensions and dtype; or where ``ds`` has no spatial
        dimensions.
    """
    grid = Grid.from_xarray(ds)
    ancillary = {name for da in ds.data_vars.values() for name in _ancillary(da)}
    names = [
        name
        for name, da in ds.data_vars.items()
        if {grid.y_dim, grid.x_dim} <= set(da.dims)
        and da.dtype.kind in "iuf"
        and name not in ancillary
        and not {"flag_values", "flag_masks"} & set(da.attrs)
    ]
    if not names:
        got = "; ".join(f"{name!r} {da.dims} {da.dtype}" for name, da in ds.data_vars.items()) or "no variables"
        raise InputError(
            f"No variable can be filled: got {got}; expected real numbers on the dimensions "
            f"({grid.y_dim!r}, {grid.x_dim!r}). Convert the variable, for example ds['name'].astype('float32')."
        )
    told = [name for name in names if ds[name].dtype.kind == "f" or nodata is not None or declared_nodata(ds[name])]
    return told or [name for name in names if valid_limits(ds[name]) != UNLIMITED] or names


def append_history(attrs: Mapping[Any, Any], line: str) -> dict[Any, Any]:
    """``attrs`` with ``line`` appended to the CF attribute ``history``."""
    earlier = str(attrs.get("history", "")).rstrip("\n")
    return {**attrs, "history": f"{earlier}\n{line}" if earlier else line}


def annotate(
    filled: xr.DataArray,
    standard_error: xr.DataArray,
    flag: xr.DataArray,
    *,
    source: xr.DataArray,
    extra: Mapping[str, xr.DataArray] | None = None,
    model_name: str,
    model_version: str,
    weights_hash: str,
    history_line: str,
    nodata: float | None = None,
    attrs: Mapping[Any, Any] | None = None,
) -> xr.Dataset:
    """Join a prediction to a Dataset that says of itself, by the CF conventions, what it holds; lazy for dask arrays.

    Filled cells are moved to the nearest value that the source's own integers, or its integer encoding, can hold:
    within their range and the valid one, and never the nodata value. All other cells are left alone.

    Parameters
    ----------
    filled
        Values with NaN at the cells left empty, in the dtype of :func:`~geonp.raster.nodata.observed`.
    standard_error
        Standard deviations in the units of ``filled``: 0 where observed, NaN where empty.
    flag
        One :class:`FillFlag` per cell.
    source
        The array before filling. Its name, attrs, coordinates, encoding and dtype are kept: the result for integers
        holds integers, with the source's own values wherever nothing was filled.
    extra
        ``quantile`` and ``sample``, each along a dimension of its name before all others, and ``tail``; any, or none.
    model_name, model_version, weights_hash
        Written to the attributes ``geonp_model``, ``geonp_model_version`` and ``geonp_weights_sha256``.
    history_line
        Appended to ``history``.
    nodata
        The value that :func:`~geonp.raster.nodata.observed` was given.
    attrs
        Attributes of the Dataset that ``source`` comes from, to be extended; ``Conventions`` only where it is absent.

    Returns
    -------
    Dataset
        ``<name>``, ``<name>_standard_error`` (the dtype of ``filled``), ``<name>_fill_flag`` (int8) and the
        `extra` ones; ``<name>`` is :data:`UNNAMED` for a source without a name.
    """
    name = UNNAMED if source.name is None else str(source.name)
    error_name, flag_name = f"{name}_standard_error", f"{name}_fill_flag"
    markers = declared_nodata(source) if nodata is None else (float(nodata),)
    encoding = kept_encoding(source, markers)
    mapping = {key: value for key, value in encoding.items() if key == "grid_mapping"}

    arrays = [filled, flag, *[source] * (source.dtype.kind in "iu")]
    fitted = partial(_fitted, fitting(source.dtype, markers, encoding, valid_limits(source)))
    values = cellwise(fitted, *arrays, dtype=source.dtype)
    more = {f"{name}_{key}": array for key, array in (extra or {}).items()}
    values.attrs = _value_attrs(source, markers, encoding, [error_name, flag_name, *more])
    values.encoding = encoding
    error = standard_error.astype(filled.dtype)
    error.attrs = _error_attrs(source, name)
    error.encoding = dict(mapping)
    code = flag.astype(np.int8)
    code.attrs = flag_attrs(source, name)
    code.encoding = dict(mapping)

    for key, array in more.items():
        array.attrs = _extra_attrs(source, name, key.removeprefix(f"{name}_"))
        array.encoding = dict(mapping)
    variables = {name: values, error_name: error, **more, flag_name: code}
    about = {**_CONVENTIONS, **append_history(attrs or {}, history_line)}
    about |= provenance(model_name, model_version, weights_hash)
    return xr.Dataset(variables, source.coords, about)


def _fitted(fit: Fit, filled: npt.NDArray[Any], flag: npt.NDArray[np.int8], *source: Any) -> npt.NDArray[Any]:
    return fit(filled, flag == FillFlag.FILLED, *source)


def provenance(model_name: str, model_version: str, weights_hash: str) -> dict[str, str]:
    """Attributes of a Dataset that say which model made it."""
    return {
        "geonp_model": model_name,
        "geonp_model_version": model_version,
        "geonp_weights_sha256": weights_hash,
    }


def flag_attrs(source: xr.DataArray, name: str) -> dict[str, Any]:
    """Attributes of the array of :class:`FillFlag` that tells of ``source``, which is called `name` in the result."""
    return {
        "long_name": f"{source.attrs.get('long_name', name)} fill flag",
        "standard_name": "status_flag",
        "flag_values": np.array([int(member) for member in FillFlag], dtype=np.int8),
        "flag_meanings": " ".join(member.name.lower() for member in FillFlag),
    }


def kept_encoding(source: xr.DataArray, markers: tuple[float, ...]) -> dict[str, Any]:
    """Choose the encoding that any file can take, with one nodata value, in ``_FillValue``.

    An integer encoding of floats without a nodata value has no room for cells that stay empty: it is left out.
    """
    encoding = {key: source.encoding[key] for key in ("dtype", *PACKING) if key in source.encoding}
    mapping = source.encoding.get("grid_mapping", source.attrs.get("grid_mapping", grid_mapping_name(source)))
    if mapping is not None:
        encoding["grid_mapping"] = mapping
    if source.dtype.kind in "iu":
        if encoding.get("dtype", source.dtype) != source.dtype:  # signed ones that were read as unsigned
            del encoding["dtype"]
        return encoding
    encoded = [source.encoding[key] for key in NODATA if key in source.encoding]
    fill = encoded[0] if encoded else next(iter(markers), None)
    if fill is not None:
        encoding["_FillValue"] = fill
    stored = np.dtype(encoding.get("dtype", source.dtype))
    if stored.kind in "iu" and not encoded and fill is not None:  # given in the units of the values
        fill = round((fill - encoding.get("add_offset", 0.0)) / encoding.get("scale_factor", 1.0))
        encoding["_FillValue"] = fill
    if stored.kind in "iu" and (fill is None or "_Unsigned" in source.encoding):
        encoding = {key: value for key, value in encoding.items() if key == "grid_mapping"}
    return encoding


def _value_attrs(
    source: xr.DataArray, markers: tuple[float, ...], encoding: Mapping[str, Any], ancillary: list[str]
) -> dict[Any, Any]:
    # a valid range is about what is stored
    stored = np.dtype(source.encoding.get("dtype", source.dtype))
    kept = stored == encoding.get("dtype", source.dtype)
    attrs = without(source.attrs, (*NODATA, "grid_mapping", *(() if kept else VALID)))
    limits = valid_limits(source)
    if source.dtype.kind in "iu" and not kept and limits != UNLIMITED:
        info = np.iinfo(source.dtype)
        attrs["valid_range"] = np.clip(limits, info.min, info.max).astype(source.dtype)
    held = [source.dtype.type(marker) for marker in markers if holds(source.dtype, marker)]
    if source.dtype.kind in "iu" and held:
        attrs["_FillValue"] = held[0]
    names = dict.fromkeys([*_ancillary(source), *ancillary])
    return {**attrs, "ancillary_variables": " ".join(names)}


def _error_attrs(source: xr.DataArray, name: str) -> dict[str, Any]:
    attrs: dict[str, Any] = {"long_name": f"{source.attrs.get('long_name', name)} standard error"}
    if "standard_name" in source.attrs:
        attrs["standard_name"] = f"{source.attrs['standard_name']} standard_error"
    if "units" in source.attrs:
        attrs["units"] = source.attrs["units"]
        if str(attrs["units"]).lower() in _TEMPERATURE_UNITS:
            attrs["units_metadata"] = "temperature: difference"
    if "scale_factor" in source.attrs:  # numbers as stored: a difference has the scale alone
        attrs["scale_factor"] = abs(source.attrs["scale_factor"])
    return attrs


def _extra_attrs(source: xr.DataArray, name: str, kind: str) -> dict[str, Any]:
    title = source.attrs.get("long_name", name)
    if kind == "tail":
        return {"long_name": f"{title}, inverse degrees of freedom of the Student distribution", "units": "1"}
    kept = {key: source.attrs[key] for key in ("units", "units_metadata", *PACKING) if key in source.attrs}
    return {"long_name": f"{title}, {'joint sample' if kind == 'sample' else kind}", **kept}


def _ancillary(da: xr.DataArray) -> list[str]:
    return str(da.attrs.get("ancillary_variables", da.encoding.get("ancillary_variables", ""))).split()
