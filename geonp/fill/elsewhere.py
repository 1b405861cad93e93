"""Fills onto other grids: values at the centres of the cells of a target, in any CRS, block by block."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.array.core import normalize_chunks, slices_from_chunks
from dask.delayed import delayed

from geonp.errors import InputError, warn
from geonp.fill.bounds import mapped
from geonp.fill.outputs import result_arrays
from geonp.fill.region import unknown
from geonp.fill.request import Request
from geonp.inference.kernel import FillJob, result_dtype
from geonp.inference.places import fill_places
from geonp.raster.arrays import Array
from geonp.raster.crs import grid_mapping_name
from geonp.raster.grid import Grid
from geonp.raster.mapping import Mapping as GridMapping
from geonp.raster.metadata import FillFlag, Kind, with_grid_mapping
from geonp.raster.parts import PARTS
from geonp.raster.tolerances import TOLERANCES
from geonp.raster.variable import Read, Variable
from geonp.raster.windows import Window


@dataclass(frozen=True, eq=False)
class Target:
    """A grid to fill onto, and where its cells lie in the raster."""

    at: xr.DataArray | xr.Dataset
    grid: Grid
    mapping: GridMapping

    @cached_property
    def coordinates(self) -> tuple[Array, Array]:
        """Centres of rows and of columns, in the unit of the CRS."""
        return self.grid.centres(self.at)

    @property
    def outside(self) -> str:
        """What to say of a target outside of the raster."""
        bounds = "whose bounds are " + ", ".join(f"{bound:.10g}" for bound in self.mapping.source.bounds or ())
        return f"no cell of the grid at (--like) has its centre in the raster, {bounds}. Check the CRS of both."

    def same(self) -> bool:
        """Whether the cells of the target are those of the raster, in the same order."""
        if self.mapping.crs is not None or self.grid.shape != self.mapping.source.shape:
            return False
        y, x = self.coordinates
        row, col = self.mapping(y, x[:1])[:, 0, 0], self.mapping(y[:1], x)[0, :, 1]
        apart = [np.abs(found - np.arange(found.size)).max() for found in (row, col)]
        return bool(max(apart) < TOLERANCES.same_cells)

    def without_raster(self, request: Request) -> xr.Dataset:
        """The Dataset of a request without what lies on its grid, but for the variables that are filled."""
        spatial = set(request.grid.dims)
        filled = {variable.name for variable in request.variables}
        gone = {name for name, variable in request.ds.variables.items() if spatial & set(variable.dims)} - filled
        return request.ds.drop_vars([*gone, grid_mapping_name(request.ds)], errors="ignore")

    def template(self, variable: Variable) -> xr.DataArray:
        """The variable on the target, without values."""
        dims = (*variable.leading, *self.grid.dims)
        shape = (*variable.shape[:-2], *self.grid.shape)
        # scalars, such as a time, describe the values of the target, which are not used
        coords = {name: c for name, c in self.at.coords.items() if c.ndim and set(c.dims) <= set(self.grid.dims)}
        source = variable.source
        coords |= {n: c for n, c in source.coords.items() if c.ndim and set(c.dims) <= set(variable.leading)}
        data = da.zeros(shape, dtype=source.dtype, chunks=-1)
        array = xr.DataArray(data, coords, dims, name=source.name, attrs=source.attrs)
        array.attrs.pop("grid_mapping", None)
        array.encoding = {key: value for key, value in source.encoding.items() if key != "grid_mapping"}
        if (name := grid_mapping_name(self.at)) is not None:
            array.encoding["grid_mapping"] = name
            array = array if name in array.coords else array.assign_coords({name: self.at[name]})
        return array

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Rows and columns of the blocks: the chunks of the target, or those of a moderate window of the raster."""
        dims, chunks = self.grid.dims, self.at.chunksizes
        if all(dim in chunks for dim in dims):
            return tuple(chunks[dim] for dim in dims)
        ratio = math.sqrt(math.prod(self.mapping.source.shape) / math.prod(self.grid.shape))
        side = int(np.clip(PARTS.source_px / max(ratio, 1e-9), 8, PARTS.target_px))
        return normalize_chunks((side, side), self.grid.shape)  # type: ignore[no-any-return]


def onto(request: Request, at: xr.DataArray | xr.Dataset) -> Target:
    """The target grid of a request. Raises InputError for a target without coordinates."""
    if not isinstance(at, xr.DataArray | xr.Dataset):
        raise InputError(f"at must be a DataArray or Dataset, whose grid is used: got {type(at).__name__}")
    at = with_grid_mapping(at)
    grid = Grid.from_xarray(at)
    return Target(at, grid, GridMapping.of(request.grid, grid))


def check_support(support: str, at: object) -> None:
    """Refuse a support that is none, and means over cells without a grid that has them."""
    if support not in ("point", "cell"):
        raise InputError(f"support (--support) must be 'point' or 'cell', got {support!r}")
    if support == "cell" and at is None:
        raise InputError(
            "support='cell' (--support cell) means over the cells of another grid: got no grid, expected at=... "
            "(--like). Cells of the raster itself are filled as they are: leave support out."
        )


def check_points(request: Request) -> None:
    """Check that points can be predicted.

    Raises InputError for options that need other slices, or layers on the grid of the raster.
    """
    options = request.options
    used = {
        "across": bool(request.job.across),
        "covariates and errors": bool(request.covariates),
        "samples": bool(options.samples),
        "points": options.points is not None,
        "max_gap": options.max_gap is not None,
        "counts": any(v.kind is Kind.COUNTS for v in request.variables),
        "directions": any(v.kind is Kind.DIRECTIONS for v in request.variables),
        "classes": bool(request.card.classes) or any(v.kind is Kind.CLASSES for v in request.variables),
    }
    if found := [name for name, value in used.items() if value]:
        raise InputError(
            f"a fill onto another grid (at=) cannot be combined with {', '.join(found)}. Fill on the grid of the "
            "raster, and resample the result."
        )


def filled_at(
    request: Request, target: Target, variable: Variable, warping: Any = None
) -> dict[Hashable, xr.DataArray]:
    """The results of a variable on the target: computed if the raster is in memory and the target not chunked."""
    source = variable.spatial_last
    eager = source.chunks is None and not target.at.chunksizes
    stored = da.from_array(source.values, chunks=-1, name=False) if source.chunks is None else source.data
    job = request.job.of(variable)
    result = _blocks(stored, variable.read, request.domain, target, job, warping)
    if warping is not None:
        result = mapped(result, warping, request.options.bare)
    arrays = arrays_on(request, target, variable, result)
    return dict(xr.Dataset(arrays).compute().items()) if eager else arrays


def arrays_on(request: Request, target: Target, variable: Variable, result: Any) -> dict[Hashable, xr.DataArray]:
    """The arrays of a variable on the target from a result ``(..., rows, columns)``, lazy if that is."""
    template = target.template(variable)
    there = replace(variable, source=template, spatial=target.grid.dims, encoding=_encoding(variable, template))
    if isinstance(result, da.Array):
        as_stored = da.map_blocks(_stored, result, template.dtype, variable.empty, dtype=template.dtype)
    else:
        as_stored = _stored(result, template.dtype, variable.empty)
    return result_arrays(there, request.outputs(there), result, as_stored)


def _encoding(variable: Variable, template: xr.DataArray) -> dict[str, Any]:
    kept = {key: value for key, value in variable.encoding.items() if key != "grid_mapping"}
    return kept | {key: value for key, value in template.encoding.items() if key == "grid_mapping"}


def _stored(result: Array, dtype: np.dtype[Any], empty: float) -> Array:
    """The values of observed cells in the dtype of the raster."""
    out = np.full(result.shape, empty, dtype)
    seen = result["flag"] == FillFlag.OBSERVED
    values = result["value"][seen]
    out[seen] = (np.rint(values) if dtype.kind in "iu" else values).astype(dtype)
    return out


def _blocks(data: da.Array, read: Read, domain: Any, target: Target, job: FillJob, warping: Any) -> da.Array:
    """A lazy result ``(..., rows, columns)`` on the target; each block reads the window of the raster it needs."""
    y, x = target.coordinates
    dtype = result_dtype(read.dtype, job)
    lead, blocks = data.numblocks[:-2], np.empty((*data.numblocks[:-2], *map(len, target.chunks)), object)
    outside = True
    for place, (rows, cols) in zip(np.ndindex(blocks.shape[-2:]), slices_from_chunks(target.chunks), strict=True):
        chunk = _chunk(target.mapping(y[rows], x[cols]))
        outside &= chunk is None
        for index, at in zip(np.ndindex(lead), slices_from_chunks(data.chunks[:-2]), strict=True):
            shape = tuple(part.stop - part.start for part in (*at, rows, cols))
            if chunk is None:
                one = delayed(unknown)(shape, dtype)
            else:
                cells = job.cells(chunk), job.far_cells(chunk)
                near, far = (_near(data[at], each) for each in cells)
                masks = [None if domain is None else _near(da.asarray(domain), each) for each in cells]
                layers = near, far if job.predictor.neighbourhood.far else None
                one = delayed(_filled)(layers, masks, read, target.mapping, y[rows], x[cols], chunk, job, warping)
            blocks[*index, *place] = da.from_delayed(one, shape, dtype=dtype)
    if outside:
        warn(target.outside)
    whole: da.Array = da.block(blocks.tolist())
    return whole


def _chunk(places: Array) -> Window | None:
    """The cells nearest to places ``(..., 2)``; None if there are none."""
    inside = places[np.isfinite(places).all(-1)]
    if not inside.size:
        return None
    (top, left), (bottom, right) = (np.rint(end).astype(int).tolist() for end in (inside.min(0), inside.max(0)))
    return Window(top, bottom + 1, left, right + 1)


def _near(data: da.Array, cells: tuple[Array, Array]) -> da.Array:
    """The cells of a window that lie in the raster, in one chunk."""
    for axis, index in zip((-2, -1), cells, strict=True):
        found = index[index >= 0]
        part: Any = found
        if (np.diff(found) == 1).all():
            part = slice(int(found[0]), int(found[-1]) + 1)
        data = data[(..., part) if axis == -1 else (..., part, slice(None))]
    whole: da.Array = data.rechunk(-1)
    return whole


def _padded(values: Array, cells: tuple[Array, Array], empty: Any) -> Array:
    """The window of which `values` are the cells that lie in the raster."""
    rows, cols = cells
    out: Array = np.full((*values.shape[:-2], rows.size, cols.size), empty, values.dtype)
    out[..., np.flatnonzero(rows >= 0)[:, None], np.flatnonzero(cols >= 0)] = values
    return out


def _filled(
    layers: tuple[Array, Array | None],
    masks: list[Array | None],
    read: Read,
    mapping: GridMapping,
    y: Array,
    x: Array,
    chunk: Window,
    job: FillJob,
    warping: Any,
) -> Array:
    """The results of a block ``(..., len(y), len(x))``."""
    near, far = layers
    job = job if warping is None else replace(job, warping=warping)
    places = mapping(y, x).reshape(-1, 2)
    inside = np.isfinite(places).all(1)
    cells, far_cells = job.cells(chunk), job.far_cells(chunk)
    domain = [
        _padded(
            np.ones((np.count_nonzero(c[0] >= 0), np.count_nonzero(c[1] >= 0)), bool) if mask is None else mask,
            c,
            False,
        )
        for mask, c in zip(masks, (cells, far_cells), strict=True)
    ]
    out = unknown((*near.shape[:-2], len(places)), result_dtype(read.dtype, job))
    for index in np.ndindex(near.shape[:-2]):
        values = _padded(read(near[index]), cells, np.nan)

        def around(index: tuple[int, ...] = index) -> Array:
            assert far is not None
            return np.where(domain[1], _padded(read(far[index]), far_cells, np.nan), np.nan)

        out[index][inside] = fill_places(values, domain[0], chunk, job, places[inside], None if far is None else around)
    return np.asarray(out.reshape(*near.shape[:-2], y.size, x.size))
