"""Bounds of values: which variables have them, the map that follows from the data, and results mapped to values."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.delayed import delayed

from geonp.errors import InputError
from geonp.fill.options import Bounds, FillOptions
from geonp.inference import student
from geonp.inference.warping import Warping
from geonp.inference.warping_fit import Sample, fitted
from geonp.raster.arrays import Array
from geonp.raster.casting import exceeds
from geonp.raster.metadata import FillFlag
from geonp.raster.nodata import UNLIMITED
from geonp.raster.variable import Variable

logger = logging.getLogger(__name__)

Limits = tuple[float, float]


@dataclass(frozen=True)
class SampleSettings:
    """Settings of the sample of a raster from which the map is chosen."""

    side_px: int = 32
    """Side of a window."""
    windows: int = 64
    """Largest number of windows."""
    cells: int = 256
    """Largest number of observed cells of a window: the size of a context."""


SAMPLE = SampleSettings()


def bounds_of(asked: Bounds | None, variables: Sequence[Variable]) -> dict[Hashable, Limits]:
    """Bounds of each variable that has any, in the units of its values in memory.

    Raises InputError for names of no variable, and for variables without a valid range where that is asked for.
    """
    if asked is None:
        return {}
    names = [str(variable.name) for variable in variables]
    if isinstance(asked, Mapping):
        if unknown := sorted(str(name) for name in asked if str(name) not in names):
            raise InputError(
                f"bounds must name variables that are filled: got {', '.join(unknown)}, expected some of "
                f"{', '.join(names)}"
            )
        given = {str(name): pair for name, pair in asked.items()}
    else:
        given = dict.fromkeys(names, asked)
    found: dict[Hashable, Limits] = {}
    for variable in variables:
        pair = given.get(str(variable.name))
        if pair is None:
            continue
        if pair == "valid_range":
            if variable.limits == UNLIMITED:
                raise InputError(
                    f"the variable {variable.name!r} declares no valid_range, valid_min or valid_max to take as its "
                    "bounds: give them as numbers, like bounds=(0, None) (--bounds 0,)"
                )
            found[variable.name] = variable.limits
        else:
            low, high = pair
            found[variable.name] = (-math.inf if low is None else low, math.inf if high is None else high)
    for name, limits in found.items():
        logger.info("%s: values within bounds, %s", name, _in_words(limits))
    return found


def said(options: FillOptions, bounds: Mapping[Hashable, Limits]) -> dict[str, str]:
    """Attributes of a result that say what values are, and within which bounds."""
    attrs: dict[str, str] = {} if options.statistic == "mean" else {"geonp_statistic": options.statistic}
    if bounds:
        attrs["geonp_bounds"] = "; ".join(f"{name}: {_in_words(limits)}" for name, limits in bounds.items())
    return attrs


def _in_words(limits: Limits) -> str:
    low, high = limits
    if math.isinf(high):
        return f"at least {low:g}"
    return f"at most {high:g}" if math.isinf(low) else f"{low:g} to {high:g}"


def warping_of(variable: Variable, limits: Limits) -> Any:
    """The map of a variable within bounds; a dask ``Delayed`` of it if the variable is lazy.

    It follows from up to 64 windows of 32 x 32 cells, spread evenly, and does not depend on the chunks.
    """
    source = variable.spatial_last
    parts = [source[index].data for index in sample_windows(source.shape)]
    if source.chunks is None:
        return _fitted([np.asarray(part) for part in parts], variable.read, *limits)
    return delayed(_fitted)(parts, variable.read, *limits)


def sample_windows(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Indices of windows spread evenly over the slices, rows and columns; all windows of a small raster."""
    side, sizes = SAMPLE.side_px, shape[-2:]
    slices, counts = math.prod(shape[:-2]), [-(-size // side) for size in sizes]
    total = slices * math.prod(counts)
    if total <= SAMPLE.windows:
        places = list(itertools.product(range(slices), *map(range, counts)))
    else:
        # points of a Kronecker sequence cover the cube evenly
        root = 1.2207440846057596
        fractions = (np.arange(1, SAMPLE.windows + 1)[:, None] * root ** -np.arange(1.0, 4.0) + 0.5) % 1.0
        places = list(dict.fromkeys(map(tuple, (fractions * [slices, *counts]).astype(int).tolist())))
    for number, row, col in places:
        lead = tuple(map(int, np.unravel_index(number, shape[:-2]))) if shape[:-2] else ()
        yield (*lead, slice(row * side, (row + 1) * side), slice(col * side, (col + 1) * side))


def _fitted(parts: Sequence[Array], read: Any, lower: float, upper: float) -> Warping:
    return fitted([_sample_of(read(np.asarray(part))) for part in parts], lower, upper)


def _sample_of(values: Array) -> Sample:
    """The observations of a window, every n-th of them if there are many."""
    cells = np.argwhere(np.isfinite(values))
    cells = cells[:: -(-len(cells) // SAMPLE.cells) or 1]
    return Sample(cells.astype(np.float64), values[tuple(cells.T)])


def mapped_dtype(dtype: np.dtype[Any], options: FillOptions) -> np.dtype[Any]:
    """The fields of a result of bounded values: those of an unbounded one, and what follows from the map."""
    value, quantiles, thresholds = dtype["value"], len(options.quantiles), len(options.exceed)
    own = [(name, dtype[name]) for name in dtype.names or ()]
    latent = [("latent", value), ("latent_error", value)]
    return np.dtype([*own, *latent, ("quantile", value, (quantiles,)), ("exceedance", np.float32, (thresholds,))])


def mapped(result: Any, warping: Any, options: FillOptions) -> Any:
    """A result whose predictions are latent, with the distributions of the values, see :func:`mapped_dtype`.

    All values and quantiles lie within the bounds. With a Delayed `warping`, the result must be lazy; a lazy one stays
    so.
    """
    dtype = mapped_dtype(result.dtype, options)
    if isinstance(result, da.Array):
        meta = np.empty((0,) * result.ndim, dtype)
        return da.map_blocks(mapped, result, warping, options, dtype=dtype, meta=meta)
    out = np.empty(result.shape, dtype)
    for name in result.dtype.names or ():
        out[name] = result[name]
    values, filled = result["value"], np.isin(result["flag"], (FillFlag.FILLED, FillFlag.FILLED_ACROSS))
    out["latent"] = np.where(filled, values, warping.to_latent(values))
    out["latent_error"] = result["standard_error"]
    out["quantile"] = values[..., None]
    location, deviation, tail = (result[name][filled].astype(np.float64) for name in _MOMENTS)
    of = student.Distribution(location, deviation, tail, warping)
    mean, spread = student.moments(of.location, of.deviation, of.tail, warping)
    out["value"][filled] = warping.inside(of.median() if options.statistic == "median" else mean, values.dtype)
    out["standard_error"][filled] = spread
    for k, level in enumerate(options.quantiles):
        out["quantile"][filled, k] = warping.inside(of.ppf(level), values.dtype)
    for k, threshold in enumerate(options.exceed):
        out["exceedance"][..., k] = np.where(np.isnan(values), np.nan, exceeds(values, threshold))
        out["exceedance"][filled, k] = of.sf(threshold)
    for k in range(options.samples):
        out["sample"][filled, k] = warping.inside(warping.to_values(result["sample"][filled, k]), values.dtype)
    return out


_MOMENTS = ("value", "standard_error", "tail")


def warping_array(variable: Variable, warping: Any) -> xr.DataArray:
    """The numbers that define a map, lazy if it is."""
    names = Warping.names()
    numbers = (
        warping.numbers()
        if isinstance(warping, Warping)
        else da.from_delayed(delayed(Warping.numbers)(warping), (len(names),), np.float64)
    )
    title = variable.source.attrs.get("long_name", variable.label)
    along = xr.Variable("warping", names, {"long_name": "number of the map"})
    attrs = {"long_name": f"{title}, map from latent values to values"}
    return xr.DataArray(numbers, {"warping": along}, ("warping",), attrs=attrs)
