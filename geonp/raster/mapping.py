"""Where the cells of one grid lie among those of another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pyproj import CRS, Transformer

from geonp.errors import InputError
from geonp.raster.arrays import Float64Array
from geonp.raster.crs import crs_name
from geonp.raster.grid import Grid

_EDGE = 1e-9
"""Distance in cells by which places are moved off the outer edge, so that the nearest cell is inside."""


@dataclass(frozen=True)
class Mapping:
    """From the coordinates of a target grid to rows and columns of a source grid; picklable.

    Attributes
    ----------
    source : Grid
        A regular grid.
    crs : tuple of str or None
        CRS of the target and of the source, if they differ.
    """

    source: Grid
    crs: tuple[str, str] | None

    @classmethod
    def of(cls, source: Grid, target: Grid) -> Mapping:
        """Compare two grids.

        Raises InputError for cells that are not evenly spaced in the source, or without coordinates, and for grids of
        which only one has a CRS.
        """
        if not (source.regular and all(source.placed)):
            raise InputError(
                "only an evenly spaced raster can be filled onto another grid: got cells that are not evenly spaced, "
                f"or without coordinates {source.y_dim!r} and {source.x_dim!r}. Interpolate its cells as measurements "
                "(geonp.interpolate)."
            )
        if not all(target.placed):
            raise InputError(
                f"the grid at has no coordinates {target.y_dim!r} and {target.x_dim!r}, expected one for rows and one "
                "for columns; geonp.lattice makes a grid"
            )
        names = [grid.system for grid in (target, source)]
        if (names[0] is None) != (names[1] is None):
            what, other = ("grid at", source.crs) if names[0] is None else ("raster", target.crs)
            raise InputError(
                f"the {what} has no CRS, and the other grid is in {crs_name(other) if other else 'degrees'}: write it, "
                f"with rio.write_crs('EPSG:...'){'' if names[0] is None else ' or --crs'}"
            )
        if names[0] is None or CRS(names[0]).equals(CRS(names[1]), ignore_axis_order=True):
            return cls(source, None)
        return cls(source, (str(CRS(names[0]).to_wkt()), str(CRS(names[1]).to_wkt())))

    def __call__(self, y: Float64Array, x: Float64Array) -> Float64Array:
        """Rows and columns ``(len(y), len(x), 2)`` of the cells with these coordinates, NaN outside of the source.

        Coordinates are in the unit of the CRS. Columns of a source that goes round the Earth lie within it.
        """
        source = self.source
        x, y = (np.broadcast_to(part, (y.size, x.size)) for part in (x[None, :], y[:, None]))
        if self.crs is not None:
            x, y = Transformer.from_crs(*self.crs, always_xy=True).transform(x, y)
        (dy, dx), (y0, x0) = source.spacing, source.origin
        row, col = (np.asarray(y) - y0) / dy, (np.asarray(x) - x0) / dx
        if source.geographic:
            turn = 360.0 / abs(dx)
            col = (col + 0.5) % turn - 0.5
        with np.errstate(invalid="ignore"):
            inside = (row >= -0.5) & (row <= source.shape[0] - 0.5) & (col >= -0.5) & (col <= source.shape[1] - 0.5)
        last = np.array(source.shape) - 0.5 - _EDGE
        return np.where(inside[..., None], np.clip(np.stack([row, col], -1), _EDGE - 0.5, last), np.nan)
