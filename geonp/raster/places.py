"""Places that cannot be right: coordinates that are none of the CRS."""

from __future__ import annotations

from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

from geonp.errors import warn
from geonp.raster.grid import Grid, crs_name

__all__ = ["misplaced", "warn_of_places"]


def misplaced(grid: Grid) -> str:
    """Why the coordinates of a grid cannot be those of its CRS; empty if they can."""
    if not all(grid.placed) or all(abs(step) == 1 for step in grid.spacing):  # numbers of cells are no places
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
    bounds = _area(crs)
    if bounds is not None and (east < bounds[0] or west > bounds[2] or north < bounds[1] or south > bounds[3]):
        expected = f"x from {bounds[0]:.0f} to {bounds[2]:.0f} and y from {bounds[1]:.0f} to {bounds[3]:.0f}"
        return f"got {got}, expected {expected}, the area of use of {crs_name(grid.crs or '')}"
    return ""


def warn_of_places(grid: Grid) -> None:
    """Warn of coordinates that cannot be those of the CRS."""
    if why := misplaced(grid):
        warn(f"The coordinates cannot be those of the CRS: {why}. Check the CRS and the units of the coordinates.")


def _area(crs: CRS) -> tuple[float, float, float, float] | None:
    """Bounds of the area of use of a projected CRS in its units; None if they are unknown."""
    code = crs.to_epsg()
    area = CRS.from_epsg(code).area_of_use if code else crs.area_of_use
    if area is None or area.west > area.east:
        return None
    try:
        return Transformer.from_crs(4326, crs, always_xy=True).transform_bounds(*area.bounds)
    except ProjError:
        return None
