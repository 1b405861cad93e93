"""Polygons of vector files, or of a GeoDataFrame, as masks on the grid of a raster.

GDAL burns them: a cell is inside if its centre is.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import xarray as xr
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError
from rasterio import Affine
from rasterio.features import rasterize

from geonp.errors import InputError, MissingFileError, from_extra, reason
from geonp.io.polygon_crs import moved, turned
from geonp.raster.crs import crs_name
from geonp.raster.grid import Grid

VECTOR_FILES = (".gpkg", ".geojson", ".json", ".shp", ".fgb", ".kml", ".gml", ".shp.zip")
"""Endings of the names of vector files."""


def is_vector(place: object) -> bool:
    """Whether a path is that of a vector file, or of a layer in one, ``FILE:LAYER``."""
    if not isinstance(place, (str, os.PathLike)):
        return False
    file = os.fspath(place)
    return file.lower().endswith(VECTOR_FILES) or file.rpartition(":")[0].lower().endswith(VECTOR_FILES)


def refuse_references(path: str | os.PathLike[str]) -> None:
    """Check that a vector file is not a text that makes GDAL read other files or send requests, such as a VRT.

    Raises InputError for such a file, unless its extension says so.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(2**16)
    except OSError:
        return
    if b"<OGR" in head and not os.fspath(path).lower().endswith((".vrt", ".xml")):
        raise InputError(
            f"{os.fspath(path)!r} is text that refers to other files or URLs: got a VRT or the like, expected a file "
            "with geometries of its own. If you trust it, convert it, for example with ogr2ogr."
        )


def polygon_mask(polygons: Any, grid: Grid) -> xr.DataArray:
    """Mask ``(rows, columns)``, True in cells whose centre lies in a polygon.

    Raises InputError for a file that cannot be read, geometries that are no polygons, a CRS that is missing or unknown,
    a raster whose cells are not evenly spaced, and polygons without any cell. Raises MissingFileError if there is no
    such file. Raises MissingExtraError without the extra ``vector``.

    Parameters
    ----------
    polygons : str, path or GeoDataFrame
        A GeoPackage, GeoJSON, shapefile or another vector file, ``FILE:LAYER`` for one of several layers; or an object
        with ``geometry`` and ``crs``.
    grid : Grid
        The grid of the raster. Polygons are transformed to its CRS.
    """
    with from_extra("vector"):
        import pyogrio
        import shapely
    if isinstance(polygons, (str, os.PathLike)):
        what, given, crs = os.fspath(polygons), *_read(os.fspath(polygons), pyogrio, shapely)
    else:
        what, given, crs = "polygons", np.asarray(polygons.geometry), polygons.crs
    shapes = shapely.make_valid(given[~(shapely.is_missing(given) | shapely.is_empty(given))])
    if not len(shapes) or not (shapely.get_dimensions(shapes) == 2).all():
        kinds = sorted({str(each.geom_type) for each in shapes})
        raise InputError(f"The mask {what!r} must hold polygons: got {', '.join(kinds) or 'no geometries'}.")
    if not (grid.regular and all(grid.placed)):
        raise InputError(
            "Polygons need a raster with evenly spaced coordinates: got cells that are not, or have none. Give a mask "
            "on its grid."
        )
    shapes = _transformed(shapes, crs, grid, what, shapely)
    if grid.geographic and grid.bounds:  # longitudes of any convention
        shapes = turned(shapes, *grid.bounds[::2])
    inside = np.zeros(grid.shape, bool)
    if len(shapes):
        inside = rasterize(list(shapes), grid.shape, transform=Affine(*grid.affine), dtype="uint8").astype(bool)
    if not inside.any():
        raise InputError(
            f"The mask {what!r} leaves nothing to fill: none of its {len(given)} polygons holds the centre of a cell. "
            f"Check its CRS, and the place of the raster, {grid.bounds}."
        )
    return xr.DataArray(inside, dims=grid.dims)


def _read(place: str, pyogrio: Any, shapely: Any) -> tuple[Any, Any]:
    """Geometries and CRS of a layer."""
    file, layer = place, None
    if not place.lower().endswith(VECTOR_FILES):
        file, _, layer = place.rpartition(":")
    if not os.path.exists(file):
        raise MissingFileError(f"No such file: got {file!r}, expected polygons. Check mask (--mask).")
    refuse_references(file)
    try:
        names = [str(name) for name, _ in pyogrio.list_layers(file)]
        if layer not in (None, *names) or (layer is None and len(names) > 1):
            raise InputError(
                f"The mask {file!r} has {len(names)} {'layer' if len(names) == 1 else 'layers'}: got "
                f"{'no layer' if layer is None else repr(layer)}, expected FILE:LAYER with one of {', '.join(names)}."
            )
        meta, _, geometries, _ = pyogrio.raw.read(file, layer=layer, columns=[], force_2d=True)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"The mask {file!r} cannot be read: {reason(error)}.") from error
    return shapely.from_wkb(geometries), meta["crs"]


def _transformed(shapes: Any, crs: Any, grid: Grid, what: str, shapely: Any) -> Any:
    """Polygons in the CRS of the raster."""
    target = grid.system
    if crs is None or target is None:
        raise InputError(
            f"The mask {what!r} cannot be placed: {'it' if crs is None else 'the raster'} has no CRS, expected one in "
            "both. Write it into the file, for example with ogr2ogr -a_srs or rio.write_crs('EPSG:...')."
        )
    try:
        source, wanted = CRS.from_user_input(crs), CRS.from_user_input(target)
    except CRSError as error:
        raise InputError(f"The mask {what!r} has a CRS that is not understood: got {crs!r}.") from error
    if source.equals(wanted, ignore_axis_order=True):
        return shapes
    # what is far from the raster may not exist in its CRS
    west, south, east, north = Transformer.from_crs(wanted, source, always_xy=True).transform_bounds(*grid.bounds or ())
    if np.isfinite([west, south, east, north]).all() and west < east:
        pad = 0.1 * max(east - west, north - south)
        shapes = turned(shapes, west - pad, east + pad) if source.is_geographic else shapes
        shapes = shapely.clip_by_rect(shapes, west - pad, south - pad, east + pad, north + pad)
        shapes = shapes[~shapely.is_empty(shapes)]
    if not len(shapes):
        return shapes
    found = moved(shapes, source, wanted, geographic=grid.geographic)
    if not np.isfinite(shapely.get_coordinates(found)).all():
        raise InputError(
            f"The mask {what!r} cannot be transformed from {crs_name(source.to_wkt())} to "
            f"{crs_name(wanted.to_wkt())}: some of its points do not exist there. Clip it to the raster, or correct "
            "the CRS."
        )
    return found
