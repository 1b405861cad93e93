"""Where to predict: the cells of a grid, or places in a table."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import psutil
import xarray as xr

from geonp.errors import InputError
from geonp.io.columns import TABLES
from geonp.io.measurements import Table, read_places
from geonp.io.table_output import results_of
from geonp.raster.arrays import Float64Array
from geonp.raster.crs import grid_mapping_name
from geonp.raster.grid import Grid
from geonp.raster.metadata import with_grid_mapping
from geonp.raster.parts import MEMORY
from geonp.raster.surface import placed_cells


@dataclass(frozen=True)
class Target:
    """Where to predict.

    Attributes
    ----------
    template : DataArray
        With the dimensions and coordinates of the result; lazy if the result is.
    x, y : array
        Coordinates of columns and rows of a grid, or of single places.
    table : Table or None
        The table of places, if there is one.
    """

    template: xr.DataArray
    x: Float64Array
    y: Float64Array
    on_grid: bool
    geographic: bool
    grid: Grid | None
    table: Table | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns; of single places, one column."""
        return (len(self.y), len(self.x)) if self.on_grid else (len(self.y), 1)

    @cached_property
    def places(self) -> Float64Array:
        """X and y of all places ``(n, 2)``."""
        return crossed(self.y, self.x) if self.on_grid else np.stack([self.x, self.y], 1)

    def check_memory(self, n_values: int, n_covariates: int, n_times: int = 1) -> None:
        """Check that a result in memory fits into the memory of this machine."""
        held = MEMORY.place + MEMORY.result * (n_times - 1)
        needed = (held * n_values + 8 * n_covariates) * self.template.size
        if self.template.chunks is None and needed > (available := psutil.virtual_memory().total):
            raise InputError(
                f"{self.template.size:.3g} places take {needed / 2**30:,.0f} GiB, but {available / 2**30:,.0f} GiB are "
                "available: choose a coarser resolution (--resolution), or a chunked grid, at.chunk(1024), to compute "
                "and write the result lazily"
            )

    def check_names(self, names: Collection[str], dimensions: Mapping[str | None, object]) -> None:
        """Check that no column of values has the name of a coordinate or of another variable of the result.

        Of further `dimensions`, those count that the result has, which is true of their values.
        """
        taken = {
            *map(str, (*self.template.coords, *self.template.dims)),
            *(dim for dim, has in dimensions.items() if has),
        }
        for name in names:
            if name in taken or any(one != name and results_of([one]).fullmatch(name) for one in names):
                raise InputError(
                    f"the column {name!r} has the name of a coordinate or of another variable of the result: rename "
                    f"it, e.g. points.rename(columns={{{name!r}: 'value'}})"
                )


def crossed(y: Float64Array, x: Float64Array) -> Float64Array:
    """All places of a grid, x and y, ``(len(y) * len(x), 2)``."""
    return np.stack([np.tile(x, len(y)), np.repeat(y, len(x))], 1)


def of_places(xy: Float64Array, *, geographic: bool) -> Target:
    """Single places ``(n, 2)`` to predict."""
    template = xr.DataArray(np.zeros(len(xy)), dims=("point",))
    return Target(template, xy[:, 0], xy[:, 1], on_grid=False, geographic=geographic, grid=None)


def target_of(
    at: xr.DataArray | xr.Dataset | pd.DataFrame, table: Table, covariates: Sequence[str] = (), crs: Any = None
) -> Target:
    """Where to predict, from a raster or a table of places, which is moved to the CRS of the measurements in `table`.

    That is `crs`, if it is given. Raises InputError for grids without coordinates, and tables without a place or with
    places that are not finite.
    """
    if isinstance(at, pd.DataFrame):
        places, moved = read_places(at, table, covariates, crs)
        if not len(moved.xy) or not np.isfinite(moved.xy).all():
            raise InputError(
                f"the table at has {len(moved.xy)} places, {int((~np.isfinite(moved.xy).all(1)).sum())} of them not "
                "finite, expected at least one, all finite; drop the others, e.g. at.dropna()"
            )
        template = xr.DataArray(
            np.zeros(len(places.xy)),
            {places.x: ("point", places.xy[:, 0]), places.y: ("point", places.xy[:, 1])},
            ("point",),
        )
        lon, lat = moved.xy.T
        return Target(template, lon, lat, on_grid=False, geographic=table.named_degrees, grid=None, table=places)
    if not isinstance(at, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"at must be a raster, whose grid is used, or a table of places, got {type(at).__name__}; "
            "geonp.lattice(bounds, resolution) creates a grid"
        )
    raster: xr.DataArray | xr.Dataset = with_grid_mapping(at)
    grid = Grid.from_xarray(raster)
    missing = [dim for dim in grid.dims if dim not in raster.coords or raster.coords[dim].ndim != 1]
    if missing:
        return _curvilinear(raster, grid, table, missing[0])
    y, x = (raster.coords[dim].values.astype(np.float64) for dim in grid.dims)
    if grid.geographic:
        y, x = y * grid.factors[0], x * grid.factors[1]
    chunks = dict(zip(raster.chunksizes, raster.chunksizes.values(), strict=True))
    shape = (len(y), len(x))
    lazy = grid.y_dim in chunks and grid.x_dim in chunks
    data: Any = (
        da.zeros(shape, chunks=(chunks[grid.y_dim], chunks[grid.x_dim])) if lazy else np.broadcast_to(0.0, shape)
    )
    kept: dict[Hashable, Any] = {name: c for name, c in raster.coords.items() if set(c.dims) <= set(grid.dims)}
    mapping = grid_mapping_name(raster)
    if mapping is not None:  # it may be a variable beside the others
        kept[mapping] = raster[mapping].variable
    template = xr.DataArray(data, kept, grid.dims, attrs={} if mapping is None else {"grid_mapping": mapping})
    return Target(template, x, y, on_grid=True, geographic=grid.geographic, grid=grid)


def _curvilinear(at: xr.DataArray | xr.Dataset, grid: Grid, table: Table, missing: Hashable) -> Target:
    """The cells of a grid whose longitudes and latitudes are two-dimensional coordinates, as single places."""
    dims = grid.dims
    found = {name: c.transpose(*dims) for name, c in at.coords.items() if set(c.dims) == set(dims)}
    lon, lat = (
        next((c for c in found.values() if {c.attrs.get("standard_name"), c.attrs.get("units"), c.name} & known), None)
        for known in ({*TABLES.longitudes, "degrees_east"}, {*TABLES.latitudes, "degrees_north"})
    )
    if lon is None or lat is None or not table.named_degrees:
        raise InputError(
            f"the grid in at has no coordinate {missing!r}, expected one for rows and one for columns, or longitudes "
            "and latitudes on both for a table with columns lon and lat; for any other cells give a table of their "
            "places (at=, --at)"
        )
    x, y = (c.values.astype(np.float64).ravel() for c in (lon, lat))
    if not (known := placed_cells(y, x)).all():
        first = np.flatnonzero(~known)[0]
        others = "dropna()" if np.isnan(x[first] + y[first]) else f"query('{lat.name} != {y[first]:g}')"
        raise InputError(
            f"{lon.name!r} and {lat.name!r} of the grid are no place in {np.count_nonzero(~known)} cells, such as "
            f"({x[first]:g}, {y[first]:g}): expected one for each cell. Give a table of the others, for example "
            f"at.coords.to_dataset().to_dataframe().{others}"
        )
    template = xr.DataArray(np.zeros(grid.shape), found, dims)
    return Target(template, x, y, on_grid=False, geographic=True, grid=None)
