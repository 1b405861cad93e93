"""Rasters of classes: CF flag variables as numbers of classes and back, with the probability of each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.raster.grid import Grid
from geonp.raster.metadata import UNNAMED, FillFlag, append_history, flag_attrs, kept_encoding
from geonp.raster.nodata import cellwise, declared_nodata, require_real

__all__ = ["ClassReader", "annotate_classes", "class_reader", "class_variables", "codes", "labels"]


def class_variables(ds: xr.Dataset, n_classes: int) -> list[Hashable]:
    """Names of the variables of ``ds`` with `n_classes` CF ``flag_values`` on both spatial dimensions, in its order.

    Status flags (``standard_name = "status_flag"``) tell of other variables and pass through.

    Raises
    ------
    InputError
        Where there is none, naming each variable with what it has.
    """
    grid = Grid.from_xarray(ds)
    spatial = {grid.y_dim, grid.x_dim}
    names = [
        name
        for name, da in ds.data_vars.items()
        if spatial <= set(da.dims) and _n_classes(da) == n_classes and da.attrs.get("standard_name") != "status_flag"
    ]
    if not names:
        got = "; ".join(f"{name!r} with {_n_classes(da)}" for name, da in ds.data_vars.items())
        raise InputError(
            f"No variable can be filled by a model of {n_classes} classes: got {got or 'no variables'}, expected one "
            f"with {n_classes} flag_values on ({grid.y_dim!r}, {grid.x_dim!r}). Give the variable the CF attributes "
            "flag_values and flag_meanings, in the order of the model's classes."
        )
    return names


def _n_classes(da: xr.DataArray) -> int:
    """How many flag values there are; of those in a text, as some writers leave them, too."""
    given = da.attrs.get("flag_values", ())
    return len(given.replace(",", " ").split()) if isinstance(given, str) else np.size(given)


def codes(da: xr.DataArray, nodata: float | None = None) -> xr.DataArray:
    """``da`` as numbers of its classes, 0 for the first flag value, and NaN at every missing cell; lazy as ``da`` is.

    Missing are NaN, the nodata value, declared or given, and everything that is no flag value. float32.
    """
    read = class_reader(da, nodata)
    return cellwise(read, da, dtype=read.dtype)


@dataclass(frozen=True)
class ClassReader:
    """How values as they are stored become numbers of classes: places among `known`, and NaN for all others."""

    known: tuple[float, ...]
    dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Numbers of the same shape."""
        out = np.full(values.shape, np.nan, self.dtype)
        for number, value in enumerate(self.known):
            out[values == value] = number
        return out


def class_reader(da: xr.DataArray, nodata: float | None = None) -> ClassReader:
    """The function of arrays that :func:`codes` applies, which may also be read piece by piece.

    Raises
    ------
    InputError
        For flag values that are no different numbers, or of which one is the nodata value.
    """
    require_real(da)
    markers = declared_nodata(da) if nodata is None else (float(nodata),)
    given = da.attrs["flag_values"]
    try:
        known = np.asarray(given, np.float64).ravel()
    except (TypeError, ValueError):
        known = np.empty(0)
    if not known.size or len(set(known.tolist())) < known.size:
        raise InputError(
            f"The flag_values of {da.name!r} must be numbers that differ: got {given!r}. Correct the attribute, for "
            f"example to np.array([0, 1, 2], {str(da.dtype)!r})."
        )
    if missing := sorted(set(known.tolist()) & set(markers)):
        raise InputError(
            f"{missing[0]:g} is a class of {da.name!r} (flag_values) and its nodata value too: what is filled with it "
            "would look missing. Give another nodata value, or leave the class out of a model of fewer classes."
        )
    return ClassReader(tuple(known.tolist()))


def labels(da: xr.DataArray) -> npt.NDArray[Any]:
    """Names of the classes: the flag meanings, where there is one for each value, else the values."""
    meanings, values = str(da.attrs.get("flag_meanings", "")).split(), np.ravel(da.attrs["flag_values"])
    return np.array(meanings) if len(meanings) == len(values) else values


def annotate_classes(
    filled: xr.DataArray,
    probability: xr.DataArray,
    flag: xr.DataArray,
    *,
    source: xr.DataArray,
    provenance: Mapping[str, str],
    history_line: str,
    nodata: float | None = None,
    attrs: Mapping[Any, Any] | None = None,
) -> xr.Dataset:
    """Join a classification to a Dataset that says of itself, by the CF conventions, what it holds; lazy as they are.

    Parameters
    ----------
    filled
        Numbers of classes, NaN at the cells left empty.
    probability
        Of each class, along a first dimension ``category``.
    flag
        One :class:`~geonp.raster.metadata.FillFlag` per cell.
    source
        The array before filling, whose dtype, attributes and encoding are kept, and whose own values wherever nothing
        was filled.
    provenance
        Attributes of the Dataset.
    history_line, nodata, attrs
        As in :func:`geonp.raster.metadata.annotate`.

    Returns
    -------
    Dataset
        ``<name>``, ``<name>_probability`` (float32) along the coordinate ``category``, ``<name>_fill_flag`` (int8).
    """
    name = UNNAMED if source.name is None else str(source.name)
    markers = declared_nodata(source) if nodata is None else (float(nodata),)
    encoding = kept_encoding(source, markers)
    mapping = {key: value for key, value in encoding.items() if key == "grid_mapping"}
    restored = partial(_restored, np.ravel(source.attrs["flag_values"]))
    values = cellwise(restored, filled, flag, source, dtype=source.dtype)
    added = [f"{name}_probability", f"{name}_fill_flag"]
    ancillary = dict.fromkeys([*str(source.attrs.get("ancillary_variables", "")).split(), *added])
    kept = {key: value for key, value in source.attrs.items() if key != "grid_mapping"}
    values.attrs, values.encoding = {**kept, "ancillary_variables": " ".join(ancillary)}, encoding
    probability = probability.astype(np.float32).assign_coords(category=labels(source))
    title = source.attrs.get("long_name", name)
    probability.attrs = {"long_name": f"{title}, probability of each class", "units": "1"}
    code = flag.astype(np.int8)
    code.attrs = flag_attrs(source, name)
    probability.encoding, code.encoding = dict(mapping), dict(mapping)
    about = {"Conventions": "CF-1.11", **append_history(attrs or {}, history_line), **provenance}
    coords = {**source.coords, "category": probability["category"]}
    return xr.Dataset({name: values, added[0]: probability, added[1]: code}, coords, about)


def _restored(
    known: npt.NDArray[Any], number: npt.NDArray[Any], flag: npt.NDArray[np.int8], source: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Flag values where classes were filled in, the source's own values elsewhere."""
    filled = flag == FillFlag.FILLED
    chosen = known[np.where(filled, number, 0).astype(np.intp)].astype(source.dtype)
    return np.where(filled, chosen, source)
