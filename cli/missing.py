"""The options ``--gaps-where`` and ``--mask``."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .covariates import cut, only_layer, opener, read_part, split
from .options import fill_option

if TYPE_CHECKING:
    import xarray as xr

    from geonp.raster.flags import Expression

gaps_where = fill_option(
    "missing",
    "--gaps-where",
    multiple=True,
    metavar="CONDITION",
    help="Condition under which values count as missing, such as SCL=3,8,9, SCL=cloud_shadow, QA_PIXEL&0b11010, "
    "cloud_prob>40 or cloud_mask (not zero), or a preset: landsat-c2, sentinel-2 or modis. The layer, here SCL, is a "
    "variable or band of IN, FILE, FILE:VARIABLE, FILE:BAND or FILE:DESCRIPTION; repeatable.",
)
"""Conditions under which values count as missing."""
mask_option = fill_option(
    "mask",
    metavar="MASK",
    help="Valid domain: FILE, FILE:VARIABLE, FILE:BAND or FILE:DESCRIPTION of a raster that is 0 where cells "
    "are not valid, or FILE or FILE:LAYER of polygons (GeoPackage, GeoJSON, shapefile) that contain the centres of "
    "valid cells.",
)
"""The valid domain."""


def read_mask(
    text: str | None, bbox: tuple[float, float, float, float] | None, storage_options: Mapping[str, Any] | None = None
) -> xr.DataArray | str | None:
    """Read the mask of a raster file, cut to the bounding box; polygons are read later, onto the grid of the raster."""
    from geonp.io.polygons import is_vector

    if text is None or is_vector(text):
        return text
    opened = opener(storage_options)
    return only_layer(cut(read_part(*split(text, opened), opened), bbox), f"The mask {text!r}")


def read_missing(
    texts: Sequence[str] | None,
    ds: xr.Dataset,
    source: str,
    where: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[xr.Dataset, list[Any] | None]:
    """Find the layers of conditions: in the raster, in bands and variables of its file that were not chosen, in others.

    Parameters
    ----------
    texts : sequence of str
        The conditions.
    ds : Dataset
        The raster, opened from `source` by the options `where` of :func:`geonp.io.files.open_raster`.
    storage_options : mapping, optional
        Options of the file system of URLs.

    Returns
    -------
    ds : Dataset
        The raster without the bands that are layers.
    missing : list or None
        The conditions as :func:`geonp.infill` takes them.
    """
    if not texts:
        return ds, None
    from geonp.errors import InputError
    from geonp.fill.missing import find_layer, is_measured, without_bands
    from geonp.raster.flags import Condition, layer_of, parsed

    opened = opener(storage_options, chunks=where.get("chunks", "auto"))

    def found(expression: Expression) -> tuple[xr.DataArray, Mapping[Hashable, int] | None]:
        """The layer of an expression, and its place among the bands of the raster; None if it is not in `ds`."""
        try:
            return find_layer(expression, ds)
        except InputError:
            if expression.layer and os.path.exists(split(expression.layer, opened)[0].removeprefix("file://")):
                return _of_file(expression, opened, where), None
            if not (where.get("variables") or where.get("bands")):
                raise
            return find_layer(expression, opened(source, **{**where, **_WHOLE}))[0], None

    missing: list[Any] = []
    bands: set[tuple[Hashable, int]] = set()
    measured: list[Hashable] = []
    for text in texts:
        expression = parsed(text, lambda name: layer_of(ds, name) is not None or os.path.exists(name))
        layer, place = found(expression)
        missing.append(text if place is not None and not place else Condition(expression, layer))
        bands |= set((place or {}).items())
        measured += [layer.name] if place and is_measured(expression, layer) else []
    return without_bands(ds, bands, measured), missing


_WHOLE = {"variables": None, "bands": None, "nodata": None}
"""Options of :func:`geonp.io.files.open_raster` of all that a file has."""


def _of_file(expression: Expression, opened: Callable[..., xr.Dataset], where: Mapping[str, Any]) -> xr.DataArray:
    """A layer of another file, which exists."""
    ds = read_part(*split(expression.layer, opened), opened)
    ds = cut(ds, where.get("bbox"), where.get("select"))
    return only_layer(ds, f"{expression.layer!r} in the condition {expression.text!r}")
