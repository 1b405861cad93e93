"""Polygons from files and objects, and the cells of a grid that are inside of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from pyproj import CRS
from rasterio import Affine
from rasterio.features import rasterize

from geonp.errors import InputError, from_extra, warn
from geonp.io.polygon_crs import moved, turns_onto
from geonp.io.polygons import refuse_references
from geonp.raster.arrays import Float64Array
from geonp.raster.grid import Grid
from geonp.raster.regions import Regions

_POLYGONS = {"Polygon", "MultiPolygon"}


@dataclass(frozen=True, eq=False)
class Polygons:
    """Polygons with names.

    Attributes
    ----------
    geometries : sequence
        Of shapely.
    names : sequence
    crs : str or None
        Coordinate reference system, in any form that pyproj accepts.
    """

    geometries: Sequence[Any]
    names: Sequence[Any]
    crs: Any

    @classmethod
    def of(cls, given: Any) -> Polygons:
        """Polygons of a GeoDataFrame, a GeoSeries, a mapping from names to geometries, or a sequence of geometries.

        Raises InputError for what is none of these, or holds something else than polygons.
        """
        with from_extra("vector"):
            from shapely import Polygon
            from shapely.geometry import shape
        series = getattr(given, "geometry", given) if hasattr(given, "crs") else given
        if hasattr(series, "index") and hasattr(series, "values") and not isinstance(series, Mapping):
            names, geometries = list(series.index), list(series.values)
        elif isinstance(given, Mapping):
            names, geometries = list(given), list(given.values())
        else:
            geometries = list(given) if isinstance(given, (Sequence, np.ndarray)) else [given]
            names = list(range(len(geometries)))
        geometries = [Polygon() if geometry is None else geometry for geometry in geometries]
        if not geometries:
            raise InputError(f"there are no regions: got an empty {type(given).__name__}, expected some polygons")
        if not all(hasattr(g, "__geo_interface__") or isinstance(g, Mapping) for g in geometries):
            raise InputError(
                f"regions are polygons, a raster of labels, or block sizes: got {type(given).__name__}, expected a "
                "GeoDataFrame, shapely polygons, a DataArray, or numbers of cells"
            )
        found = cls([shape(getattr(g, "__geo_interface__", g)) for g in geometries], names, getattr(given, "crs", None))
        return found._checked()

    def _checked(self) -> Polygons:
        if other := sorted({g.geom_type for g in self.geometries} - _POLYGONS):
            raise InputError(f"regions must be polygons, got geometries of type {', '.join(other)}")
        return self


def read_polygons(path: str | os.PathLike[str], column: str | None = None, layer: str | None = None) -> Polygons:
    """Read the polygons of a file that GDAL opens: GeoPackage, GeoJSON, shapefile and others.

    Raises MissingExtraError without the extra ``vector``. Raises InputError if the file cannot be read, has no such
    column, or holds no polygons.

    Parameters
    ----------
    path : str or path
    column : str, optional
        Column with the names of the polygons. By default the one called ``name``, or else the first one, whose entries
        are texts that all differ, else the numbers of the features, from 0.
    layer : str, optional
        Layer of a file of several.
    """
    with from_extra("vector"):
        import pyogrio
        import shapely
    refuse_references(path)
    try:
        meta, _, wkb, columns = pyogrio.raw.read(os.fspath(path), layer=layer)
    except Exception as error:  # of pyogrio, which has several classes
        raise InputError(f"{os.fspath(path)!r} cannot be read as polygons: {error}") from error
    names = list(meta["fields"])
    if column is not None and column not in names:
        raise InputError(f"{os.fspath(path)!r} has no column {column!r}: expected one of {', '.join(names) or 'none'}")
    chosen = [values for name, values in zip(names, columns, strict=True) if name == column]
    called = [values for name, values in zip(names, columns, strict=True) if name.lower() == "name"]
    chosen += [
        values for values in [*called, *columns] if values.dtype == object and len(set(values.tolist())) == len(values)
    ]
    geometries = shapely.from_wkb(wkb)
    kept = np.array([g is not None and not g.is_empty for g in geometries], bool)
    if not kept.any():
        raise InputError(f"{os.fspath(path)!r} has no polygons: its {len(geometries)} features have no geometry")
    labels = chosen[0][kept].tolist() if chosen else np.flatnonzero(kept).tolist()
    return Polygons(geometries[kept].tolist(), labels, meta["crs"])._checked()


def cells_of(
    polygons: Polygons, raster: xr.DataArray | xr.Dataset, grid: Grid, *, all_touched: bool = False
) -> Regions:
    """The cells of each polygon: those whose centre is inside, or all that it touches.

    Longitudes of polygons and of the grid may differ by whole turns. Raises InputError if the polygons have a CRS and
    the raster does not, or the raster has no coordinates.
    """
    import shapely

    y, x = _axes(raster, grid)
    steps = np.abs(np.concatenate([np.diff(y), np.diff(x)]))
    cells, partial = [], []
    for name, polygon in zip(polygons.names, _in_crs(polygons, grid), strict=True):
        # where rows or columns are not evenly spaced, straight edges are curves among their numbers
        geometry = polygon if all(grid.even) else shapely.segmentize(polygon, steps[steps > 0].min())
        turns = turns_onto(polygon, x.min() - steps.max(), x.max() + steps.max()) if grid.geographic else (0.0,)
        placed = [shapely.transform(geometry, lambda xy, x=x - turn: _positions(xy, x, y)) for turn in turns]
        whole = [shapely.make_valid(one) for one in placed]
        share = sum(shapely.clip_by_rect(one, 0, 0, *grid.shape[::-1]).area for one in whole) / (whole[0].area or 1.0)
        partial += [f"{name} ({share:.0%})"] if 0 < share < 0.99 else []
        cells.append(np.unique(np.concatenate([_inside(one, grid.shape, all_touched) for one in placed])))
    if partial:
        shown = ", ".join(partial[:5]) + (", ..." if len(partial) > 5 else "")
        warn(
            f"{len(partial)} of {len(cells)} regions lie only partly in the raster, and only this part counts: {shown}"
        )
    region = np.repeat(np.arange(len(cells)), [part.size for part in cells])
    row, col = np.divmod(np.concatenate(cells), grid.shape[1])
    return Regions(polygons.names, region, row, col)


def _inside(geometry: Any, shape: tuple[int, int], all_touched: bool) -> npt.NDArray[np.int64]:
    """Flat indices of the cells of a geometry, whose coordinates are columns and rows; cell i is from i to i + 1."""
    if geometry.is_empty:
        return np.empty(0, np.int64)
    left, top, right, bottom = geometry.bounds
    first = max(int(np.floor(top)), 0), max(int(np.floor(left)), 0)
    rows, cols = (
        min(int(np.ceil(end)), size) - start for end, size, start in zip((bottom, right), shape, first, strict=True)
    )
    if rows <= 0 or cols <= 0:
        return np.empty(0, np.int64)
    affine = Affine.translation(first[1], first[0])
    burnt = rasterize([geometry], (rows, cols), transform=affine, all_touched=all_touched, dtype=np.uint8)
    row, col = np.nonzero(burnt)
    return np.asarray((row + first[0]) * shape[1] + col + first[1], np.int64)


def _axes(raster: xr.DataArray | xr.Dataset, grid: Grid) -> tuple[Float64Array, Float64Array]:
    """Coordinates of rows and columns in units of the CRS."""
    if not all(grid.placed):
        raise InputError(
            "polygons need a raster with coordinates: got none along "
            f"{' and '.join(repr(d) for d, p in zip(grid.dims, grid.placed, strict=True) if not p)}"
        )
    found = []
    for axis, (values, step) in enumerate(zip(grid.centres(raster), grid.spacing, strict=True)):
        if axis == 1 and grid.geographic:
            # longitudes that wrap, as from 359 to 0
            values = np.unwrap(values, period=360.0)
        found.append(values if values.size > 1 else np.append(values, values + step))
    return found[0], found[1]


def _positions(xy: Float64Array, x: Float64Array, y: Float64Array) -> Float64Array:
    """Columns and rows ``(n, 2)`` of places; 0.5 is the centre of the first one."""
    return np.stack([_along(xy[:, 0], x), _along(xy[:, 1], y)], -1)


def _along(places: Float64Array, centres: Float64Array) -> Float64Array:
    """Positions along one dimension, linear between the centres of cells and beyond the first and the last one."""
    number = np.arange(centres.size) + 0.5
    if centres[-1] < centres[0]:
        return centres.size - _along(places, centres[::-1])
    found = np.interp(places, centres, number)
    before, after = np.minimum(places - centres[0], 0.0), np.maximum(places - centres[-1], 0.0)
    return np.asarray(found + before / (centres[1] - centres[0]) + after / (centres[-1] - centres[-2]))


def _in_crs(polygons: Polygons, grid: Grid) -> Sequence[Any]:
    """The geometries in the CRS of the grid."""
    import shapely

    if polygons.crs is None:
        return polygons.geometries
    source = CRS.from_user_input(polygons.crs)
    if grid.system is None:
        raise InputError(
            f"the polygons are in {source.name}, and the raster declares no CRS: write it to the raster, for example "
            "with rioxarray's write_crs"
        )
    target = CRS.from_user_input(grid.system)
    if source.equals(target, ignore_axis_order=True):
        return polygons.geometries
    found = moved(np.array(polygons.geometries), source, target, geographic=grid.geographic)
    if not np.isfinite(shapely.get_coordinates(found)).all():
        raise InputError(
            f"the polygons cannot be transformed from {source.name} to {target.name}: some of their points do not "
            "exist there. Clip them to the raster, or correct the CRS."
        )
    return list(found)
