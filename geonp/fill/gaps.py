"""Which gaps are filled: holes alone, or those up to a size. All others are taken out of the domain.

In memory and on dask a slice is looked at as a whole; before a store is filled, slices are read in strips.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np

from geonp.errors import InputError
from geonp.fill.domain import read_domain
from geonp.fill.request import Request
from geonp.fill.surroundings import Index
from geonp.raster.arrays import BoolArray
from geonp.raster.gap_masks import GapRule, PackedMask, kept_mask
from geonp.raster.parts import PARTS
from geonp.raster.variable import Variable


def with_holes(request: Request) -> Request:
    """The request with a domain without gaps that touch the edge, if it is for holes alone."""
    if not request.options.holes:
        return request
    masks = [_missing(variable) for variable in request.variables]
    leading = [mask.all(axis=tuple(range(mask.ndim - 2))) for mask in masks]
    missing, rule = _and(leading), GapRule(holes=True, periodic=request.grid.periodic_x)
    inside = _whole(_and([missing, request.domain]), rule)
    return replace(request, domain=_and([inside, request.domain]))


def gap_size_mask(request: Request, variable: Variable) -> Any:
    """Mask ``(..., rows, cols)``, False in gaps larger than `max_gap`; None without it. As lazy as the variable."""
    if request.options.max_gap is None:
        return None
    return _whole(_and([_missing(variable), request.domain]), _size_rule(request))


def packed_domain(request: Request) -> Any:
    """The domain of a raster that is read in strips, without gaps that touch its edge if it is for holes alone."""
    if not request.options.holes:
        return request.domain
    rule, rows = GapRule(holes=True, periodic=request.grid.periodic_x), request.grid.shape[0]
    every = [(variable, index) for variable in request.variables for index in _slices(variable)]
    inside = kept_mask(_strips(request, every), rows, rule)
    if request.domain is None:
        return inside
    domain = PackedMask(inside.shape)
    for number, start in enumerate(inside.starts):
        strip = inside.strip(number)
        domain.append(start, strip & read_domain(request.domain, slice(start, start + len(strip))))
    return domain


def packed_size_masks(request: Request, variable: Variable) -> Mapping[Index, PackedMask] | None:
    """The masks of :func:`gap_size_mask` by slice, of a variable that is read in strips."""
    if request.options.max_gap is None:
        return None
    rule, rows = _size_rule(request), request.grid.shape[0]
    return {index: kept_mask(_strips(request, [(variable, index)]), rows, rule) for index in _slices(variable)}


def _size_rule(request: Request) -> GapRule:
    return GapRule(max_gap=request.options.max_gap, periodic=request.grid.periodic_x)


def _missing(variable: Variable) -> Any:
    return variable.observed.isnull().data


def _and(masks: Sequence[Any]) -> Any:
    """Masks together, NumPy if all are; None stands for no mask."""
    result = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result & mask
    return result


def _whole(missing: Any, rule: GapRule) -> Any:
    """The masks of slices ``(..., rows, cols)``, each looked at as a whole."""
    shape = missing.shape[-2:]
    if math.prod(shape) > PARTS.slice_cells:
        raise InputError(
            f"holes and max_gap need whole slices in memory: got {shape[0]:,} x {shape[1]:,} cells, expected at most "
            f"{PARTS.slice_cells:,}. Fill into a store, which reads them in strips: fill_store(obj, "
            "'out.zarr') (an output that ends in .zarr)."
        )
    if not isinstance(missing, da.Array):
        return _each(missing, rule)
    one = missing.rechunk((*(1,) * (missing.ndim - 2), -1, -1))
    masks = one.map_blocks(_each, rule, dtype=bool, meta=np.empty((0,) * missing.ndim, bool))
    return masks.rechunk(missing.chunks)


def _each(missing: BoolArray, rule: GapRule) -> BoolArray:
    kept = np.empty(missing.shape, bool)
    for index in np.ndindex(missing.shape[:-2]):
        kept[index] = rule(missing[index])
    return kept


def _slices(variable: Variable) -> Iterator[Index]:
    return itertools.product(*map(range, variable.shape[:-2]))


def _strips(request: Request, slices: Sequence[tuple[Variable, Index]]) -> Iterator[BoolArray]:
    """Cells that are missing in all of some slices, strip by strip, within the domain."""
    rows, cols = request.grid.shape
    height = max(1, PARTS.cells // cols)
    for start in range(0, rows, height):
        missing = np.ones((min(height, rows - start), cols), bool)
        if request.domain is not None:
            missing &= np.asarray(request.domain[start : start + height])
        for variable, index in slices:
            part = dict(zip(variable.leading, index, strict=True)) | {variable.spatial[0]: slice(start, start + height)}
            stored = variable.source.isel(part).transpose(*variable.spatial).values
            missing &= np.isnan(variable.read(stored))
        yield missing
