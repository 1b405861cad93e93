"""The options of fields beside the raster: ``--covariate``, ``--covariate-resampling``, ``--errors``."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from geonp.raster.covariates import RESAMPLINGS

from .options import fill_option, may_be_remote, together

if TYPE_CHECKING:
    import xarray as xr

covariates = together(
    fill_option(
        "covariates",
        "--covariate",
        multiple=True,
        metavar="COVARIATE",
        help="Co-located field that is known in the gaps, such as elevation for temperature: FILE, "
        "FILE:VARIABLE, FILE:BAND, FILE:DESCRIPTION, or a variable of IN, which is then not filled; repeatable.",
    ),
    fill_option("covariate_resampling", type=click.Choice(RESAMPLINGS)),
)
"""Covariates, and how they are resampled."""

errors = fill_option(
    "errors",
    metavar="ERRORS",
    help="Known standard errors of the observations, in their units: FILE, FILE:VARIABLE, FILE:BAND, FILE:DESCRIPTION, "
    "a variable of IN, which is then not filled, or auto, for those that the CF attribute ancillary_variables links.",
)
"""Standard errors of the observations."""


def opener(storage_options: Mapping[str, Any] | None = None, **defaults: Any) -> Callable[..., xr.Dataset]:
    """:func:`geonp.io.files.open_raster` with defaults, and with `storage_options` for URLs and references to them."""
    from geonp.io.files import open_raster

    def opened(place: str, **options: Any) -> xr.Dataset:
        options = {**defaults, "storage_options": storage_options if may_be_remote(place) else None, **options}
        return open_raster(place, **options)

    return opened


def read_beside(
    settings: Mapping[str, Any],
    ds: xr.Dataset,
    source: str,
    where: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Open the covariates, errors and points of a command, cut to the bounding box of the raster unless resampled.

    Parameters
    ----------
    settings : mapping
        The options of :func:`covariates`, and `errors` and `points`, if the command has them.
    ds : Dataset
        The raster, opened from `source` by the options `where` of :func:`geonp.io.files.open_raster`.
    storage_options : mapping, optional
        Options of the file system of URLs.
    """
    from geonp.errors import InputError, MissingFileError

    opened = opener(storage_options, chunks=where.get("chunks", "auto"))

    def read(text: str, bbox: tuple[float, float, float, float] | None) -> Hashable | xr.Dataset:
        if text in ds.variables:
            return text
        if (where.get("variables") or where.get("bands")) and not os.path.exists(text):
            with suppress(InputError, MissingFileError):  # no variable or band of the input
                return read_part(source, {"variables": [text]}, partial(opened, **{**where, "bands": None}))
        try:
            found = read_part(*split(text, opened), opened)
        except MissingFileError as error:
            names = ", ".join(map(repr, map(str, ds.data_vars)))
            raise MissingFileError(
                f"No such covariate: got {text!r}, expected a file, FILE:VARIABLE, FILE:BAND, FILE:DESCRIPTION, or a "
                f"variable of the input: {names}. Check --covariate and --errors."
            ) from error
        return cut(_on_grid(found), bbox, where["select"])

    def apart(covariate: Hashable | xr.Dataset) -> Hashable | xr.Dataset:
        """Bands beside the only one of the raster are a covariate each."""
        if isinstance(covariate, Hashable) or ds.sizes.get("band") != 1 or covariate.sizes.get("band", 1) == 1:
            return covariate
        return covariate.rename(band="layer")

    box = where["bbox"] if settings["covariate_resampling"] is None else None
    found: dict[str, Any] = {"covariates": [apart(read(text, box)) for text in settings["covariates"]] or None}
    if settings.get("errors") is not None:
        text = settings["errors"]
        found["errors"] = text if text == "auto" else read(text, where["bbox"])
    if settings.get("points") is not None:
        from geonp.io.tables import read_points

        found["points"] = read_points(Path(settings["points"]))
    return found


def split(text: str, opened: Callable[[str], Any]) -> tuple[str, dict[str, Any]]:
    """The file of a covariate, and the variable or band after a colon; only what is before it need exist.

    Colons also occur in URLs, in names of GDAL such as ``NETCDF:file.nc:variable``, and in names of files.
    """
    from geonp.errors import GeonpError
    from geonp.io.location import is_remote

    file, colon, part = text.rpartition(":")
    if not (colon and file and part) or os.path.exists(text):
        return text, {}
    if is_remote(file):
        if "/" not in file.partition("://")[2]:  # a port, not a variable
            return text, {}
        try:
            opened(text)
        except GeonpError:
            pass
        else:
            return text, {}
    elif not os.path.exists(file.removeprefix("file://")):
        return text, {}
    return file, {"bands": [int(part)]} if part.isdecimal() else {"variables": [part]}


def read_part(file: str, part: Mapping[str, Any], opened: Callable[..., xr.Dataset]) -> xr.Dataset:
    """The variables of a file; or one variable, or one band by its number or description: a layer without bands."""
    from geonp.errors import InputError
    from geonp.raster.flags import layer_of

    try:
        ds = opened(file, **part)
    except InputError:
        if "variables" not in part:
            raise
        (name,), whole = part["variables"], opened(file, variables=None)
        found = layer_of(whole, name)
        if found is None:
            raise InputError(
                f"No variable or band {name!r} in {file!r}: expected one of {', '.join(_layers(whole))}."
            ) from None
        ds = found[0].to_dataset()
        ds.encoding = whole.encoding
    if "bands" in part:
        ds = ds.rename({name: f"{name}_{part['bands'][0]}" for name in ds.data_vars})
        ds = ds.squeeze("band", drop=True) if "band" in ds.dims else ds
    return ds


def only_layer(ds: xr.Dataset, what: str) -> xr.DataArray:
    """The only variable of a file, which has one band at most. Raises InputError, in which `what` is the file."""
    from geonp.errors import InputError

    if len(ds.data_vars) != 1 or ds.sizes.get("band", 1) != 1:
        raise InputError(
            f"{what} has several layers: got {', '.join(_layers(ds))}, expected one. Name it: FILE:VARIABLE, FILE:BAND "
            "or FILE:DESCRIPTION."
        )
    (layer,) = ds.data_vars.values()
    layer.encoding.setdefault("source", ds.encoding["source"])  # which must not be overwritten
    return layer.squeeze("band" if "band" in layer.dims else (), drop=True)


def _layers(ds: xr.Dataset) -> list[str]:
    """Names of the variables of a file, if it has several, and descriptions and numbers of its bands."""
    names = [*ds.data_vars] if len(ds.data_vars) > 1 or "band" not in ds.dims else []
    bands = [label for name in ("band_name", "band") if name in ds.coords for label in ds.coords[name].values]
    return list(map(str, [*names, *bands]))


def _on_grid(ds: xr.Dataset) -> xr.Dataset:
    """The variables that can be covariates, without bounds and the like; all if there are none."""
    from geonp.raster.grid import Grid

    grid = Grid.from_xarray(ds)
    names = [name for name, da in ds.data_vars.items() if grid.spans(da) and da.dtype.kind in "biuf"]
    return ds[names] if names else ds


def cut(
    ds: xr.Dataset, bbox: tuple[float, float, float, float] | None, select: Mapping[Hashable, Any] | None = None
) -> xr.Dataset:
    """The part of another file in a bounding box, and the slices selected along its dimensions.

    All of it if the box is not on this grid, which is refused with a reason later.
    """
    from geonp.errors import InputError
    from geonp.raster.boxes import select_box
    from geonp.raster.labels import select_labels

    ds = select_labels(ds, {dim: ends for dim, ends in (select or {}).items() if dim in ds.dims})
    if bbox is None:
        return ds
    try:
        return select_box(ds, bbox)
    except InputError:
        return ds


def read_covariate(text: str) -> str | xr.DataArray | xr.Dataset:
    """A covariate NAME, FILE, or NAME=FILE; a FILE may be FILE:VARIABLE, FILE:BAND or FILE:DESCRIPTION.

    What names no existing file is the name of a column.
    """
    from geonp.errors import InputError
    from geonp.io.location import is_remote

    name, equals, place = text.partition("=")
    if not equals or "/" in name or os.path.exists(text):
        name, place = "", text
    opened = opener(chunks=None)
    file, part = split(place, opened)
    if not name and not os.path.exists(file) and not is_remote(file):
        return text
    ds = read_part(file, part, opened)
    if not name:
        return ds
    if len(ds.data_vars) != 1:
        example = quote(f"{name}={place}:{next(iter(ds.data_vars), 'variable')}")
        raise InputError(
            f"{place} has {len(ds.data_vars)} variables: got {', '.join(map(repr, ds.data_vars))}, expected one; "
            f"choose it, for example --covariate {example}"
        )
    (array,) = ds.data_vars.values()
    if "source" in ds.encoding:
        array.encoding.setdefault("source", ds.encoding["source"])
    return array.rename(name)
