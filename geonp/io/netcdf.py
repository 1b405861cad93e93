"""NetCDF out, whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from geonp.io.attributes import storable
from geonp.io.decoding import AMBIGUOUS

_COMPRESSION = {"zlib": True, "complevel": 1}  # the fastest level


def write_netcdf(ds: xr.Dataset, path: Path, model: Any = "NETCDF4") -> None:
    """Compute `ds`, whose encoding is changed, and write it to `path`, a file of this kind of NetCDF.

    Raises OSError if the library cannot write it, for example because the disk is full.
    """
    for da in ds.data_vars.values():
        if da.dtype == np.float16:  # which NetCDF has not
            da.encoding["dtype"] = np.dtype("float32")
        if da.ndim and da.dtype.kind in "iuf" and "zlib" not in da.encoding and model.startswith("NETCDF4"):
            da.encoding.update(_COMPRESSION)
    growing = [dim for dim in ds.encoding.get("unlimited_dims", ()) if dim in ds.dims]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", AMBIGUOUS)
            storable(ds).to_netcdf(path, engine="netcdf4", format=model, unlimited_dims=growing)
    except RuntimeError as error:
        if not str(error).startswith("NetCDF: "):
            raise
        raise OSError(str(error)) from error
