"""Fill gaps in rasters with a pretrained transformer neural process and honest standard errors.

::

    import geonp, xarray as xr

    filled = xr.open_dataset("sst.nc", engine="netcdf4").geonp.infill()
    grid = geonp.interpolate(stations, at=filled)  # a table of measurements
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from geonp.accessor import GeonpAccessor
from geonp.errors import GeonpError

if TYPE_CHECKING:
    from geonp.fill.infill import infill
    from geonp.scattered.interpolate import interpolate

    __version__: str

_SUBMODULES = {"nn": "geonp.nn", "student": "geonp.inference.student", "training": "geonp.training"}
"""Modules that the documentation names; the others are internal."""

__all__ = ["GeonpAccessor", "GeonpError", "__version__", "infill", "interpolate"]


def __getattr__(name: str) -> Any:
    """Load what needs torch or rasterio at its first use, so that ``import geonp`` stays fast."""
    if name == "infill":
        from geonp.fill.infill import infill

        return infill
    if name == "interpolate":
        from geonp.scattered.interpolate import interpolate

        return interpolate
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(_SUBMODULES[name])
    if name == "__version__":
        from importlib.metadata import version

        return version("geonp")
    raise AttributeError(f"module 'geonp' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, the lazy ones among them."""
    return sorted({*globals(), *__all__, *_SUBMODULES})
