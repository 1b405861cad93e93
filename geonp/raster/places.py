"""Places that cannot be right: coordinates that are none of the CRS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

from geonp.errors import warn
from geonp.raster.crs import crs_name
from geonp.raster.dimensions import has_coordinate
from geonp.raster.grid import Grid
from geonp.raster.tolerances import TOLERANCES

_LEAST, _MOST = 3.0, 10.0
"""Degrees beyond the area of use of a CRS, which are as many as it is wide between these limits, up to which places
are not doubted."""

_COARSE, _LEAST_LATITUDE = 5.0, 15.0
"""Steps of coarser grids, and rows nearer to 0, are not taken for degrees where nothing says so."""


def misplaced(grid: Grid) -> str:
    """Why the coordinates of a grid cannot be those of its CRS; empty if they can."""
    numbered = all(abs(step) == 1 for step in grid.spacing) and not grid.geographic
    if not all(grid.placed) or numbered:  # numbers of cells, not places
        return ""
    (south, north), (west, east) = (
        sorted((first, first + step * (n - 1)))
        for first, step, n in zip(grid.origin, grid.spacing, grid.shape, strict=True)
    )
    got = f"x from {west:g} to {east:g} and y from {south:g} to {north:g}"
    if grid.geographic:
        return f"got {got}, expected degrees" if max(-south, north) > 90 + abs(grid.spacing[0]) / 2 else ""
    crs = None if grid.crs is None else CRS.from_wkt(grid.crs)
    if crs is None or not crs.is_projected:
        return ""
    if -360 <= west <= east <= 360 and -90 <= south <= north <= 90 and max(map(abs, grid.spacing)) < 10:
        return f"got {got} in {crs_name(grid.crs or '')}, which look like degrees"
    if _is_thousandth(crs, (west, south, east, north)):
        return f"got {got} in {crs_name(grid.crs or '')}, which look like kilometres"
    area = _area_of_use(crs)
    xs, ys = [west, east, west, east, (west + east) / 2], [south, south, north, north, (south + north) / 2]
    places = Transformer.from_crs(crs, _degrees(crs), always_xy=True).transform(xs, ys)
    if area is not None and not any(_near(area, lon, lat) for lon, lat in zip(*places, strict=True)):
        where = f"longitudes from {area.west:g} to {area.east:g} and latitudes from {area.south:g} to {area.north:g}"
        return f"got {got}, expected {where}, the area of use of {crs_name(grid.crs or '')}"
    return ""


def warn_of_places(grid: Grid, degrees: tuple[str, str] | None = None) -> None:
    """Warn of coordinates that cannot be those of the CRS, or may be degrees although there is none.

    Columns of `degrees` are longitudes and latitudes of measurements on the grid.
    """
    if why := misplaced(grid):
        warn(f"The coordinates cannot be those of the CRS: {why}. Check the CRS and the units of the coordinates.")
    elif degrees is not None and grid.crs is None and not grid.geographic:
        warn(
            f"The grid has no CRS, and {degrees[0]!r} and {degrees[1]!r} are taken as coordinates of a plane, in which "
            "a degree of longitude is as long as one of latitude. For distances on the sphere, give the grid a CRS: "
            "geonp.lattice(..., crs='EPSG:4326'), or at.rio.write_crs('EPSG:4326')."
        )
    elif (got := _likely_degrees(grid)) and not grid.geographic:
        warn(
            f"The raster has no CRS, and its coordinates, {got}, may be longitudes and latitudes: its cells count as "
            "squares. If so, give crs='EPSG:4326' (--crs EPSG:4326; obj.rio.write_crs('EPSG:4326') in memory)."
        )


def _likely_degrees(grid: Grid) -> str:
    """The ranges of coordinates without a CRS that may be degrees, since they do not begin at 0; empty for others."""
    if grid.crs is not None or grid.needs_crs or not all(grid.placed) or min(grid.shape) < 2:
        return ""
    spans = [
        sorted((first, first + step * (n - 1)))
        for first, step, n in zip(grid.origin, grid.spacing, grid.shape, strict=True)
    ]
    (south, north), (west, east) = spans
    fractions = any(step % 1 for step in grid.spacing) and max(map(abs, grid.spacing)) <= _COARSE
    within = -90 <= south < north <= 90 and -180 <= west < east <= 360
    # begin or end near 0, or are around it
    local = any(min(abs(low), abs(high), abs(low + high)) <= 0.1 * (high - low) for low, high in spans)
    apart = not local or east - west > 350
    if not (fractions and within and apart) or max(north, -south) < _LEAST_LATITUDE:
        return ""
    return f"x from {west:g} to {east:g} and y from {south:g} to {north:g}"


def warn_of_near_repeats(obj: xr.DataArray | xr.Dataset, grid: Grid) -> None:
    """Warn of rows or columns that differ by rounding alone, as of files whose coordinates were written differently."""
    for dim in grid.dims:
        if obj.sizes[dim] < 3 or not has_coordinate(obj, dim) or obj[dim].dtype.kind != "f":
            continue
        values = obj[dim].values.astype(np.float64)
        steps = np.abs(np.diff(values))
        rounding = float(np.spacing(np.float32(np.abs(values).max())))
        if n := int(np.count_nonzero(steps <= min(rounding, TOLERANCES.joined * steps.max()))):
            warn(
                f"The coordinate {str(dim)!r} has {n} pairs of neighbours that differ by rounding alone, such as "
                f"{values[steps.argmin()]:.10g} and {values[steps.argmin() + 1]:.10g}, as after joining files whose "
                f"coordinates are written differently. Each is filled. Give the files the same coordinates before: "
                f"ds.assign_coords({dim}=other[{str(dim)!r}]), and join them with join='exact'."
            )


def _near(area: Any, lon: float, lat: float) -> bool:
    """Whether a place is in an area of use or as far from it as scenes and national mappings are.

    They keep the zone of UTM that most of them is in, often for all of the next zone.
    """
    if not (math.isfinite(lon) and math.isfinite(lat)):
        return False
    width = (area.east - area.west) % 360 or 360.0
    beyond = (lon - area.west + (360 - width) / 2) % 360 - (360 - width) / 2
    margin = min(max(width, _LEAST), _MOST)
    return bool(-margin <= beyond <= width + margin and area.south - _MOST <= lat <= area.north + _MOST)


def _is_thousandth(crs: CRS, bounds: tuple[float, float, float, float]) -> bool:
    """Whether bounds are outside of the area of use of a CRS, but a thousand times them are inside."""
    area = _area_of_use(crs)
    if area is None or area.west > area.east:
        return False
    try:
        limits = Transformer.from_crs(_degrees(crs), crs, always_xy=True).transform_bounds(*area.bounds)
    except ProjError:
        return False
    return not _within(bounds, limits) and _within([1000 * bound for bound in bounds], limits)


def _within(bounds: Sequence[float], limits: Sequence[float]) -> bool:
    (west, south, east, north), (left, bottom, right, top) = bounds, limits
    return left <= west and east <= right and bottom <= south and north <= top


def _degrees(crs: CRS) -> CRS:
    """CRS of the area of use of another: WGS 84, or longitudes and latitudes of another planet."""
    earth = CRS.from_epsg(4326)
    try:
        Transformer.from_crs(crs, earth)
    except ProjError:  # of another celestial body
        return crs.geodetic_crs or earth
    return earth


def _area_of_use(crs: CRS) -> Any:
    """Area of use of a CRS; None if it is unknown."""
    code = crs.to_epsg()
    return CRS.from_epsg(code).area_of_use if code else crs.area_of_use
