"""Where a raster is read from, and errors of readers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rasterio.errors import NotGeoreferencedWarning

from geonp.errors import GeonpError, InputError, reason

__all__ = ["NETCDF", "readable"]

NETCDF = (".cdf", ".nc", ".nc4")
"""Extensions of NetCDF files, for output too."""


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Convert the errors of readers, of whatever type, to an InputError about the raster at `place`."""
    try:
        with warnings.catch_warnings():
            # geonp works in cells, and needs no georeference
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            yield
    except (GeonpError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"Not a raster that can be read: got {place!r}, expected GeoTIFF or another GDAL raster, NetCDF "
            f"({', '.join(NETCDF)}) or Zarr. The reader reports: {reason(error)}. Is the file complete?"
        ) from error
