"""NetCDF out, whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from geonp.io.attributes import storable

_COMPRESSION = {"zlib": True, "complevel": 1}  # the fastest level


def write_netcdf(ds: xr.Dataset, path: Path) -> None:
    """Compute `ds`, whose encoding is changed, and write it to `path`.

    Raises OSError if the library cannot write it, for example because the disk is full.
    """
    for da in ds.data_vars.values():
        if da.dtype == np.float16:  # which NetCDF has not
            da.encoding["dtype"] = np.dtype("float32")
        if da.ndim and da.dtype.kind in "iuf" and "zlib" not in da.encoding:
            da.encoding.update(_COMPRESSION)
    try:
        storable(ds).to_netcdf(path, engine="netcdf4")
    except RuntimeError as error:
        if not str(error).startswith("NetCDF: "):
            raise
        raise OSError(str(error)) from error
