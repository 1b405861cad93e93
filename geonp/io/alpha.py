"""Alpha bands: they mark missing cells where they are 0, and come back with the values."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import rasterio
import rioxarray
import xarray as xr
from rasterio.enums import ColorInterp
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from geonp.errors import warn
from geonp.raster.arrays import Array
from geonp.raster.casting import nearest_integers
from geonp.raster.dimensions import has_coordinate
from geonp.raster.grid import Grid
from geonp.raster.nodata import observed


@dataclass(frozen=True)
class AlphaSettings:
    """What tells an alpha band from one of values."""

    sample: int = 256
    """Rows and columns in the middle that are looked at: about one block."""


_ALPHA = AlphaSettings()


def alpha_bands(file: rasterio.DatasetReader) -> list[int]:
    """Numbers of the alpha bands beside values."""
    found = [n for n, colour in enumerate(file.colorinterp, 1) if colour == ColorInterp.alpha]
    return found if len(found) < file.count else []


def as_values(file: rasterio.DatasetReader) -> str:
    """The command that lets GDAL take all alpha bands for values."""
    colours = ("undefined" if colour.name == "alpha" else colour.name for colour in file.colorinterp)
    return f"rio edit-info {file.name} --colorinterp {','.join(colours)}"


def warn_of_alpha(file: rasterio.DatasetReader) -> None:
    """Warn if most of an alpha band is neither 0 nor opaque: GDAL calls the fourth band of bytes alpha by default."""
    for number in alpha_bands(file):
        top, left = (max(0, (size - _ALPHA.sample) // 2) for size in file.shape)
        with suppress(RasterioError):  # a damaged file fails when it is read
            sample = file.read(
                number, window=Window(left, top, *(min(_ALPHA.sample, size) for size in file.shape[::-1]))
            )
            between = (sample != 0) & (sample != sample.max())
            if 2 * between.sum() > sample.size:
                warn(
                    f"Band {number} of {file.name!r} is an alpha band: it marks missing cells by 0, and is not filled. "
                    "But most of its values are neither 0 nor opaque. If it is a band of values, such as near "
                    f"infrared, correct the file: {as_values(file)}"
                )


def with_alpha(layers: Sequence[xr.DataArray], dtype: np.dtype[Any], grid: Grid, alpha: Any) -> list[xr.DataArray]:
    """Bands as integers, 0 where they are missing, and an alpha band, which is 0 where one of them is.

    `alpha` says which band it was, see :func:`_stored`.
    """
    result = [
        xr.apply_ufunc(
            as_integers, layer.drop_attrs(), dtype.type(0), False, dask="parallelized", output_dtypes=[dtype]
        )
        for layer in layers
    ]
    seen = layers[0].notnull()
    for layer in layers[1:]:
        seen = seen & layer.notnull()
    return [*result, _alpha(seen, dtype, grid, alpha)]


def alpha_beside(values: xr.DataArray, dtype: np.dtype[Any], grid: Grid, alpha: Any) -> xr.DataArray:
    """An alpha band beside bands with a nodata value, which is 0 where all bands of `values` are missing."""
    bands = [dim for dim in values.dims if dim not in grid.dims]
    return _alpha(observed(values).notnull().any(bands), dtype, grid, alpha)


def _alpha(seen: xr.DataArray, dtype: np.dtype[Any], grid: Grid, alpha: Any) -> xr.DataArray:
    """0 where a cell is not `seen`, what was stored where that is not 0, and as opaque as any cell was elsewhere."""
    before = None if alpha is None else _stored(seen, grid, alpha)
    shown: Any = np.iinfo(dtype).max if dtype.kind in "iu" else 1
    if before is not None:
        shown = xr.where(before.data == 0, before.max().compute().item() or shown, before.data)
    found: xr.DataArray = (seen * shown).astype(dtype)
    return found


def _stored(cells: xr.DataArray, grid: Grid, alpha: Mapping[str, Any]) -> xr.DataArray | None:
    """The band ``number`` of the file ``path`` in some cells; None, with a warning, if it does not have them."""
    dims = {"y": grid.y_dim, "x": grid.x_dim}
    with warnings.catch_warnings(), suppress(RasterioError, OSError, LookupError):
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        file: Any = rioxarray.open_rasterio(alpha["path"], chunks={}, cache=False)
        band: xr.DataArray = (
            file.sel(band=alpha["number"], drop=True).drop_vars("spatial_ref", errors="ignore").rename(dims)
        )
        placed = {dim: cells.coords[dim].values for dim in dims.values() if has_coordinate(cells, dim)}
        band = band.sel(placed) if placed else band
        if band.shape == cells.shape:
            return band
    warn(f"The alpha band of {alpha['path']!r} cannot be read again: all cells with a value become opaque.")
    return None


def as_integers(values: Array, fill: np.integer[Any], avoid: bool = True) -> Array:
    """The nearest integers, which are not `fill` if this is to be avoided, and `fill` in place of NaN."""
    missing = np.isnan(values)
    result = np.full(values.shape, fill)
    result[~missing] = nearest_integers(values[~missing], fill.dtype, (int(fill),) if avoid else ())
    return result
