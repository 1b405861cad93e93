"""Fill a raster into a session of Icechunk: chunks are written in threads, and become visible by one commit."""

from __future__ import annotations

import math
from typing import Unpack

import xarray as xr

from geonp.errors import InputError
from geonp.fill.infill import infill
from geonp.fill.report import Report, counted
from geonp.fill.signatures import FillKeywords
from geonp.fill.variables import Raster
from geonp.io.conventions import with_conventions
from geonp.io.engines import Session, write_session
from geonp.io.output import for_files
from geonp.raster.grid import Grid
from geonp.raster.windows import chunk_side


def fill_session(obj: Raster, session: Session, chunks: int | None, **options: Unpack[FillKeywords]) -> Report:
    """Fill a raster into a session and commit it; see :func:`geonp.fill_store`.

    Raises InputError as :func:`geonp.infill`, and for a DataArray without a name. Nothing is committed then.
    """
    if isinstance(obj, xr.DataArray) and obj.name is None:
        raise InputError("a DataArray without a name cannot be stored: got name None; rename it, obj.rename('name')")
    ds = obj.to_dataset() if isinstance(obj, xr.DataArray) else obj
    grid = Grid.from_xarray(ds)
    side = chunk_side(math.prod(ds.sizes.values())) if chunks is None else chunks
    ds = ds.chunk({**dict.fromkeys(set(ds.dims) - set(grid.dims), 1), grid.y_dim: side, grid.x_dim: side})
    filled, counts = counted(ds, infill(ds, **options))
    write_session(with_conventions(for_files(filled, grid), grid), session, filled.attrs["history"].splitlines()[-1])
    units = sum(ds[name].data.npartitions for name in counts())
    return Report(counts(), units, 0, {})
