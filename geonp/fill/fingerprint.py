"""Hashes of everything that the result of a job depends on, by which a resumed job is recognised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from typing import Any

import xarray as xr
from dask.base import tokenize

from geonp.errors import InputError, reason
from geonp.fill.layout import Layout
from geonp.fill.request import Request
from geonp.inference.warping import Warping
from geonp.io.location import identity, is_remote
from geonp.raster.elementwise import parts_of


def fingerprint(
    request: Request, layout: Layout, values: str, warpings: Mapping[Hashable, Warping] | None = None
) -> dict[str, str]:
    """A hash of each thing that the result depends on; `warpings` are the maps of bounded variables."""
    ds = request.ds
    # some readers give variables in no particular order
    variables = sorted(
        (str(name), da.dims, da.shape, str(da.dtype), sorted(map(str, da.attrs.items())))
        for name, da in ds.variables.items()
    )
    axes = _labels(ds)
    maps = [(str(name), warping.numbers().tolist()) for name, warping in (warpings or {}).items()]
    job, predictor = request.job, request.job.predictor
    return {
        "geonp": version("geonp"),
        "input": tokenize(variables, axes, values),
        "model": tokenize(
            predictor.sha256, repr(predictor.neighbourhood), predictor.precision, predictor.device.split(":")[0]
        ),
        "parameters": tokenize(
            sorted(request.options.fingerprint().items()), job.across, request.domain, *maps, *_points(request)
        ),
        "layout": tokenize(layout),
    }


def _points(request: Request) -> list[Any]:
    """Identity of the measurements beside the raster, if there are any."""
    points = request.job.points
    return [] if points is None else [points.places, points.values, points.errors, points.slices]


def values_of(request: Request, source_options: Any) -> str:
    """Identity of variables, covariates and flags: that of the files they are read from, if they are not in memory."""
    ds, names = request.ds, sorted((variable.name for variable in request.variables), key=str)

    @cache  # a store has many files, which all of its variables share
    def of_file(source: str) -> str:
        return identity(source, source_options if is_remote(source) else None)

    found = [_identity(ds[name], ds.encoding, of_file) for name in names]
    beside = [covariate.variable.source for covariate in request.covariates]
    known = [(a.name, a.dims, a.attrs, _labels(a), _identity(a, a.encoding, of_file)) for a in beside]
    kinds: list[Any] = [(covariate.classes, covariate.known_errors) for covariate in request.covariates]
    sources = () if request.flags is None else request.flags.sources
    # the source of a variable stands for all that was hidden in it, except by these
    kinds += [(text, layer.name, layer.dims, _labels(layer), _source(layer, ds, of_file)) for text, layer in sources]
    return str(tokenize(found, known, kinds))


def _source(layer: xr.DataArray, ds: xr.Dataset, of_file: Callable[[str], str]) -> str:
    return _identity(layer, layer.encoding if "source" in layer.encoding else ds.encoding, of_file)


def _labels(obj: xr.Dataset | xr.DataArray) -> list[tuple[str, Any]]:
    """Coordinates of at most one dimension: they say which slice and part of a file an object is."""
    found = ((str(name), coord.values) for name, coord in obj.coords.items() if coord.ndim <= 1)
    return sorted(found, key=lambda pair: pair[0])


def _identity(array: xr.DataArray, encoding: Mapping[Any, Any], of_file: Callable[[str], str]) -> str:
    source = encoding.get("source")
    # what was loaded may have been changed since
    if not isinstance(source, str) or array.variable._in_memory:
        return str(tokenize(array.data))
    if array.chunks is None:
        return str(tokenize(of_file(source), parts_of(array.variable)))
    file = None
    if not is_remote(source):
        with suppress(Exception):  # a computed array may have lost its file, and libraries raise any error
            file = of_file(source)
    # the names of dask do not tell the chunks of a store that were changed
    return str(tokenize(array.data, file))


def require_unchanged(request: Request, before: str, source_options: Any) -> None:
    """Check that the input is what it was when the job began.

    Raises InputError if it is not, or cannot be found. Only in the second case may the job be resumed.
    """
    place = request.ds.encoding.get("source")
    try:
        same = values_of(request, source_options) == before
        if not same and isinstance(place, str):
            identity(place, source_options if is_remote(place) else None)
    except OSError as error:
        raise InputError(
            f"The input vanished while it was filled: {place!r} cannot be found ({reason(error)}). The store stays "
            "unfinished: check the mount or the connection, and continue with resume (--resume)."
        ) from error
    if not same:
        raise InputError(
            f"The input changed while it was filled: got other files or folders at {place!r} than at the beginning; "
            "files that were moved away and back count as changed. The store stays unfinished, and may hold cells from "
            "before and after: start again with overwrite (--overwrite)."
        )


def digest(job: Mapping[str, str]) -> str:
    """A hash of all of them."""
    return hashlib.sha256(json.dumps(dict(job), sort_keys=True).encode()).hexdigest()
