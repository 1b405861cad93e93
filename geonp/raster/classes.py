"""Rasters of classes: CF flag values to numbers of classes and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.raster.casting import Fit
from geonp.raster.nodata import declared_nodata, require_real

__all__ = ["ClassReader", "class_reader", "labels", "n_classes", "restoring"]


def n_classes(da: xr.DataArray) -> int:
    """Number of ``flag_values``, also of a text such as ``"0, 1, 2"``, as some writers leave them."""
    given = da.attrs.get("flag_values", ())
    return len(given.replace(",", " ").split()) if isinstance(given, str) else np.size(given)


@dataclass(frozen=True)
class ClassReader:
    """Converts stored values to numbers of classes: indices into `known`, and NaN for all other values."""

    known: tuple[float, ...]
    dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Numbers of classes, in the shape of `values`."""
        out = np.full(values.shape, np.nan, self.dtype)
        for number, value in enumerate(self.known):
            out[values == value] = number
        return out


def class_reader(da: xr.DataArray, nodata: float | None = None) -> ClassReader:
    """The :class:`ClassReader` of an array with CF ``flag_values``.

    Raises
    ------
    InputError
        If the flag values are not distinct numbers, or one of them is the nodata value.
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
            f"{missing[0]:g} is a class of {da.name!r} (flag_values) and its nodata value too: cells filled with it "
            "would look missing. Give another nodata value, or leave the class out of a model of fewer classes."
        )
    return ClassReader(tuple(known.tolist()))


def labels(da: xr.DataArray) -> npt.NDArray[Any]:
    """Names of the classes: the flag meanings if there is one for each flag value, otherwise the flag values."""
    meanings, values = str(da.attrs.get("flag_meanings", "")).split(), np.ravel(da.attrs["flag_values"])
    return np.array(meanings) if len(meanings) == len(values) else values


def restoring(da: xr.DataArray) -> Fit:
    """A function ``(numbers, filled_mask, source)`` that writes flag values into the filled cells of `source`."""
    return partial(_restored, np.ravel(da.attrs["flag_values"]))


def _restored(
    known: npt.NDArray[Any], number: npt.NDArray[Any], filled_mask: npt.NDArray[np.bool_], source: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    chosen = known[np.where(filled_mask, number, 0).astype(np.intp)].astype(source.dtype)
    return np.where(filled_mask, chosen, source)
