"""Fields on other grids and in other CRSs, resampled onto the grid of a raster by GDAL, window by window.

``reproject_match`` of rioxarray warps whole arrays in memory, WarpedVRT of rasterio files that GDAL reads. Here each
window reads the cells it needs from any array of xarray: in memory, of dask, or of a file.
"""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from pyproj import CRS
from rasterio import Affine
from rasterio.enums import Resampling
from rasterio.warp import reproject, transform_bounds
from xarray.backends import BackendArray
from xarray.core import indexing

from geonp.errors import InputError, warn
from geonp.raster.arrays import Array
from geonp.raster.covariates import as_numbers, covariate_name, has_classes
from geonp.raster.grid import Grid
from geonp.raster.metadata import THEMATIC
from geonp.raster.tolerances import TOLERANCES
from geonp.raster.variable import Read, Variable
from geonp.raster.windows import CHUNKS

Range = tuple[int, int]

_RADIUS = 3
"""Cells that the widest kernel of GDAL, that of Lanczos, reaches; of the coarser grid."""
_TILE = 64
"""Side of the tiles that are warped one by one between CRSs, so that the result does not depend on the window: GDAL
transforms the ends and the middle of each line, and interpolates between them to within an eighth of a cell."""
_ONE_AT_A_TIME = threading.Lock()
"""rasterio silences its warnings by a filter of the whole process, so that threads would see those of each other."""
_LOCAL = str(CRS.from_epsg(3857).to_wkt())
"""Stands for the CRS of two grids that declare none."""


@dataclass(frozen=True)
class Warp:
    """How cells of a grid are computed from those of another one.

    Attributes
    ----------
    shape, size : tuple of int
        Rows and columns of the source, and of the target.
    source, target : tuple of float
        Coefficients of the affine transforms.
    source_crs, target_crs : str
        WKT.
    turn : float
        Columns of the source that go round the Earth; 0 for projected coordinates.
    method : str
        Name of a :class:`rasterio.enums.Resampling`.
    ratio : tuple of float
        Rows and columns of the source that a cell of the target covers.
    """

    shape: tuple[int, int]
    size: tuple[int, int]
    source: tuple[float, ...]
    target: tuple[float, ...]
    source_crs: str
    target_crs: str
    turn: float
    method: str
    ratio: tuple[float, float] = (1.0, 1.0)

    def places(self, rows: Range, cols: Range) -> tuple[float, float, float, float]:
        """First and last row, then first and last column of the source that a window of the target covers."""
        to_target, to_source = Affine(*self.target), ~Affine(*self.source)
        x, y = zip(to_target * (cols[0], rows[0]), to_target * (cols[1], rows[1]), strict=True)
        left, bottom, right, top = min(x), min(y), max(x), max(y)
        if self.source_crs != self.target_crs:
            left, bottom, right, top = transform_bounds(self.target_crs, self.source_crs, left, bottom, right, top)
            right += 360.0 * (self.turn > 0 and right < left)
        x, y = zip(to_source * (left, top), to_source * (right, bottom), strict=True)
        return min(y), max(y), min(x), max(x)

    def _aligned(self, axis: int, part: Range) -> Range:
        """The range of whole tiles that holds a range of rows or columns of the target."""
        if self.source_crs == self.target_crs:
            return part
        return part[0] // _TILE * _TILE, min(-(-part[1] // _TILE) * _TILE, self.size[axis])

    def window(self, rows: Range, cols: Range) -> tuple[Array, Array, Affine]:
        """Rows and columns of the source that a window of the target needs, and the transform of that window."""
        top, bottom, left, right = self.places(self._aligned(0, rows), self._aligned(1, cols))
        frame = [math.ceil(_RADIUS * max(1.0, ratio)) + 1 for ratio in self.ratio]
        first, last = math.floor(top) - frame[0], math.ceil(bottom) + frame[0]
        height, width = self.shape
        there = np.arange(max(first, 0), min(last, height))
        beside, whole = np.arange(math.floor(left) - frame[1], math.ceil(right) + frame[1]), round(self.turn)
        turns = 0.0
        if whole and width == whole:
            beside, start = beside % whole, beside[0]
        else:
            turns = round(((left + right - width) / 2) / self.turn) if self.turn else 0.0
            beside = np.round(beside - turns * self.turn).astype(int)
            beside = beside[(beside >= 0) & (beside < width)]
            start = beside[0] if beside.size else 0
        row = int(there[0]) if there.size else 0
        return there, beside, Affine(*self.source) * Affine.translation(start + turns * self.turn, row)

    def __call__(self, values: Array, affine: Affine, rows: Range, cols: Range) -> Array:
        """Resample the window ``(..., rows, columns)`` of the source; NaN outside of it."""
        (top, bottom), (left, right) = self._aligned(0, rows), self._aligned(1, cols)
        out = np.full((*values.shape[:-2], bottom - top, right - left), np.nan, values.dtype)
        exact = self.source_crs == self.target_crs
        height, width = out.shape[-2:] if exact else (_TILE, _TILE)
        corners = itertools.product(range(0, bottom - top, height), range(0, right - left, width))
        for y, x in corners if values.size else ():
            place = Affine(*self.target) * Affine.translation(left + x, top + y)
            for index in np.ndindex(values.shape[:-2]):  # together, cells count as missing only if all slices are
                if np.isfinite(values[index]).any():
                    tile = np.ascontiguousarray(out[index][y : y + height, x : x + width])
                    out[index][y : y + height, x : x + width] = self._reproject(values[index], affine, tile, place)
        return out[..., rows[0] - top : rows[1] - top, cols[0] - left : cols[1] - left]

    def _reproject(self, values: Array, affine: Affine, tile: Array, place: Affine) -> Array:
        scale = dict(zip(("YSCALE", "XSCALE"), (min(1.0, 1.0 / ratio) for ratio in self.ratio), strict=True))
        with _ONE_AT_A_TIME:
            reproject(
                np.ascontiguousarray(values),
                tile,
                src_transform=affine,
                src_crs=self.source_crs,
                src_nodata=np.nan,
                dst_transform=place,
                dst_crs=self.target_crs,
                dst_nodata=np.nan,
                resampling=Resampling[self.method],
                **scale,
            )
        return tile


def resampled(array: xr.DataArray, grid: Grid, method: str, what: str = "") -> xr.DataArray:
    """A field on the grid of a raster: as it is if it lies there, otherwise resampled, with NaN outside of it.

    Raises InputError if a grid is not evenly spaced, only one of them has a CRS, or they have no place in common.

    Parameters
    ----------
    array : DataArray
        Numbers or classes. In memory, the result is in memory too; otherwise it is lazy, and reads what it needs.
    grid : Grid
        The grid of the raster.
    method : str
        One of :data:`geonp.raster.covariates.RESAMPLINGS`. Classes are resampled by ``nearest``, or ``mode`` if their
        cells are smaller than those of the raster.
    what : str
        What the field is, for errors. By default a covariate.
    """
    own, what = Grid.from_xarray(array), what or covariate_name(array)
    try:
        grid.require_same(own, what, warns=False)
        beside = grid.shifts(own).max() > TOLERANCES.shift and grid.regular and own.regular
    except InputError:
        beside = True
    if not beside:
        return array
    warp = _warp(own, grid, what, method)
    classes, variable = has_classes(array), as_numbers(array, own)
    if classes and method not in {"nearest", "mode"}:
        instead = "mode" if math.prod(warp.ratio) > 1.5 else "nearest"
        warn(f"The {what} holds classes, which are resampled by {instead!r}: got {method!r}, which averages.")
        warp = replace(warp, method=instead)
    source, data = variable.spatial_last, array.variable._data
    if isinstance(data, np.ndarray):
        rows, cols, affine = warp.window((0, grid.shape[0]), (0, grid.shape[1]))
        values: Any = warp(_read(variable, {}, rows, cols), affine, (0, grid.shape[0]), (0, grid.shape[1]))
    elif source.chunks is not None:
        values = _on_dask(source.data, variable.read, warp, grid.shape)
    else:
        values = indexing.LazilyIndexedArray(_Lazy(variable, warp, grid.shape))
    found = xr.DataArray(
        xr.Variable((*variable.leading, *grid.dims), values, THEMATIC if classes else {}),
        {dim: array.coords[dim] for dim in variable.leading if dim in array.coords},
        name=array.name,
    )
    found.encoding = {key: value for key, value in array.encoding.items() if key == "source"}
    return found


def _warp(own: Grid, grid: Grid, what: str, method: str) -> Warp:
    for which, each in ((what, own), ("raster", grid)):
        if not (each.regular and all(each.placed)):
            raise InputError(
                f"The {what} cannot be resampled: got a {which} whose cells are not evenly spaced or have no "
                "coordinates, expected a grid of rows and columns. Interpolate it with xarray: interp_like(raster)."
            )
    crs = [own.system, grid.system]
    if (crs[0] is None) != (crs[1] is None):
        raise InputError(
            f"The {what} cannot be resampled: only {'the raster' if crs[0] is None else 'it'} has a CRS, expected one "
            "in both. Write it: array.rio.write_crs('EPSG:...')."
        )
    source, target = (str(CRS(text or _LOCAL).to_wkt()) for text in crs)
    if CRS(source).equals(CRS(target), ignore_axis_order=True):
        source = target
    turn = 360.0 / abs(own.spacing[1]) if own.geographic else 0.0
    warp = Warp(own.shape, grid.shape, own.affine, grid.affine, source, target, turn, method)
    rows, cols = (0, grid.shape[0]), (0, grid.shape[1])
    places = warp.places(rows, cols)
    if not all(map(math.isfinite, places)) or not all(part.size for part in warp.window(rows, cols)[:2]):
        raise InputError(
            f"The {what} and the raster have no place in common: got bounds {own.bounds}, expected some within those "
            f"of the raster, {grid.bounds}. Check its CRS, or leave it out."
        )
    ratio = (places[1] - places[0]) / grid.shape[0], (places[3] - places[2]) / grid.shape[1]
    return replace(warp, ratio=ratio)


def _slice(index: Array) -> Any:
    """A range of cells as a slice if it is one."""
    return slice(int(index[0]), int(index[-1]) + 1) if index.size and (np.diff(index) == 1).all() else index


def _read(variable: Variable, lead: dict[Any, Any], rows: Array, cols: Array) -> Array:
    parts = dict(zip(variable.spatial, map(_slice, (rows, cols)), strict=True))
    return np.asarray(variable.read(variable.spatial_last.isel({**lead, **parts}).values))


def _on_dask(data: da.Array, read: Read, warp: Warp, shape: tuple[int, int]) -> da.Array:
    """The resampled array in blocks, each of which depends on the cells of the source that it needs."""
    side = CHUNKS.largest_px
    edges = [[(start, min(start + side, n)) for start in range(0, n, side)] for n in shape]

    def block(rows: Range, cols: Range) -> Any:
        there, beside, affine = warp.window(rows, cols)
        size = rows[1] - rows[0], cols[1] - cols[0]
        if not (there.size and beside.size):
            return da.full((*data.shape[:-2], *size), np.nan, dtype=dtype, chunks=(*data.chunks[:-2], *size))
        near = data[..., _slice(there), :][..., _slice(beside)]
        near = near.rechunk((*data.chunks[:-2], -1, -1))
        chunks = (*data.chunks[:-2], (size[0],), (size[1],))
        return near.map_blocks(_block, read, warp, affine, rows, cols, chunks=chunks, dtype=dtype, meta=meta)

    dtype = read.dtype
    meta = np.empty((0,) * data.ndim, dtype)
    whole: da.Array = da.block([[block(rows, cols) for cols in edges[1]] for rows in edges[0]])
    return whole


def _block(values: Array, read: Read, warp: Warp, affine: Affine, rows: Range, cols: Range) -> Array:
    return warp(read(values), affine, rows, cols)


class _Lazy(BackendArray):
    """The resampled array of a file, which reads the cells that it needs when it is indexed."""

    def __init__(self, variable: Variable, warp: Warp, shape: tuple[int, int]) -> None:
        self.variable, self.warp = variable, warp
        self.shape, self.dtype = (*variable.shape[:-2], *shape), variable.read.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._get)

    def _get(self, key: tuple[int | slice, ...]) -> Array:
        lead = dict(zip(self.variable.leading, key[:-2], strict=True))
        cells = [np.atleast_1d(np.arange(n)[part]) for n, part in zip(self.shape[-2:], key[-2:], strict=True)]
        rows, cols = ((int(part.min()), int(part.max()) + 1) for part in cells)
        there, beside, affine = self.warp.window(rows, cols)
        block = self.warp(_read(self.variable, lead, there, beside), affine, rows, cols)
        block = block[..., cells[0] - rows[0], :][..., cells[1] - cols[0]]
        single = [axis for axis, part in zip((-2, -1), key[-2:], strict=True) if isinstance(part, int | np.integer)]
        return np.asarray(block.squeeze(tuple(single)) if single else block)
