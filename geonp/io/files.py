"""Raster files in: GeoTIFF and the other formats of GDAL, NetCDF, Zarr.

All formats are decoded by the same step (:func:`xarray.decode_cf`), so that a raster gives the same Dataset from any
format.
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import dask
import xarray as xr
from dask.system import CPU_COUNT

from geonp.errors import InputError
from geonp.io.decoding import declare_crs, decoded, renamed, with_crs
from geonp.io.engines import Engine
from geonp.io.gdal import open_gdal
from geonp.io.grib import Grib
from geonp.io.groups import NetCDF, Tree, open_tree
from geonp.io.nodata import declare_nodata, note_default_fill, numbered, retyped, warn_of_zero_fill
from geonp.io.sources import Source, readable, source_of
from geonp.io.stores import Store, unfinished
from geonp.io.unwritten import warn_of_unwritten
from geonp.raster.boxes import select_box
from geonp.raster.dimensions import data_variables
from geonp.raster.grid import Grid
from geonp.raster.labels import Label, select_labels
from geonp.raster.metadata import class_attrs
from geonp.raster.nodata import without
from geonp.raster.positions import with_times
from geonp.raster.windows import chunk_side

_CHUNK_BYTES = "16MiB"  # a 2048 x 2048 block of float32: several fit beside the model on a small machine


def open_raster(
    path: str | os.PathLike[str],
    *,
    variables: Sequence[str] | None = None,
    bands: Sequence[int] | None = None,
    bbox: tuple[float, float, float, float] | None = None,
    select: Mapping[Hashable, tuple[Label, Label]] | None = None,
    nodata: float | None = None,
    crs: str | None = None,
    as_numbers: bool = False,
    chunks: Literal["auto"] | int | Mapping[Hashable, int] | None = "auto",
    storage_options: Mapping[str, Any] | None = None,
    group: str | None = None,
    y_dim: str | None = None,
    x_dim: str | None = None,
) -> xr.Dataset:
    """Open a raster file or store lazily.

    Parameters
    ----------
    path : str or path
        GeoTIFF, COG or another raster of GDAL: a file, a URL, a file in an archive (``zip://a.zip!b.tif``), or a
        dataset in a file as GDAL names it, such as ``GTIFF_DIR:2:file.tif``; NetCDF, by its content, in a local file;
        Zarr of format 2 or 3: a folder, or a URL that fsspec knows, such as ``s3://bucket/name.zarr``; references of
        kerchunk in a ``.json`` file; the branch ``main`` of an Icechunk repository in a folder; GRIB, by cfgrib if that
        is installed.
    variables : sequence of str, optional
        Names of the variables to keep. By default all. In NetCDF, GRIB and Zarr a name may begin with that of its
        group, as in ``group/name``.
    bands : sequence of int, optional
        Bands to keep, counted from 1, if there is a dimension ``band``. By default all.
    bbox : tuple of float, optional
        Bounding box ``(west, south, east, north)`` in the coordinates of the raster. Cells whose centre is inside are
        kept. Longitudes may be of any convention, and east may be less than west across the antimeridian; the
        longitudes of the result are those of the box.
    select : mapping, optional
        First and last coordinate of the slices to keep, by dimension; None leaves a range open. A year, a month or a
        day as text stands for all times in it, as in ``{"time": ("2020-07", "2020-09")}``.
    nodata : float, optional
        Value of missing cells as stored in the file, used instead of the declared one. With NaN, no cell of an integer
        raster is missing.
    crs : str, optional
        CRS of the raster, such as ``"EPSG:32633"``, used instead of the declared one.
    as_numbers : bool
        Drop the metadata that mark values as classes (palettes and categories, CF flags and standard names), so that
        they are filled as numbers.
    chunks : "auto", int, mapping or None
        Chunks of the dask arrays: several for each core and at most 16 MiB each (``"auto"``), the rows and columns of a
        chunk, or its cells by dimension. With None, arrays are lazy arrays of xarray instead of dask arrays, which
        :func:`geonp.fill_store` reads unit by unit.
    storage_options : mapping, optional
        Options of the file system of a URL, or of URLs that a file of references leads to, for fsspec. They are never
        logged or stored.
    group : str, optional
        Path of the group to open in NetCDF, GRIB or Zarr. By default the root, or the only group with a raster, or
        with the `variables`.
    y_dim, x_dim : str, optional
        Names of the dimensions of rows and columns, if they cannot be found: see
        :meth:`geonp.raster.grid.Grid.from_xarray`. They are renamed to ``y`` and ``x``.

    Returns
    -------
    Dataset
        Missing cells are NaN if the file declares a nodata value, or `nodata` is given; the stored dtype and value are
        in ``encoding``. Integers without a nodata value stay integers, and so do times that cannot be decoded. The
        bands of a GeoTIFF are one variable, on ``(band, y, x)`` or, for a single band, ``(y, x)``. It is called after
        the description of the band or the file.

    Raises
    ------
    MissingFileError
        If there is no such file.
    InputError
        If the file is not a raster, lacks a variable, a band, cells in the bounding box or slices in a range, or has
        integers that cannot hold `nodata`; and for a Zarr store that :func:`geonp.fill_store` has not finished.

    Examples
    --------
    >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
    >>> geonp.write_raster(dem.to_dataset(), "dem.nc")
    >>> ds = geonp.open_raster("dem.nc")
    >>> dict(ds.sizes), dict(ds.chunks)
    ({'y': 24, 'x': 32}, {'y': (24,), 'x': (32,)})
    """
    place = os.fspath(path)
    options = dict(storage_options or {})
    with dask.config.set({"array.chunk-size": _CHUNK_BYTES}), readable(place):
        source = source_of(place, options)
        lazily = None if chunks is None else "auto"
        source, stored, wanted = _open_stored(source, options, lazily, variables, group, bands, nodata)
        if problem := unfinished(place, stored.attrs):
            raise InputError(problem)
        stored = retyped(stored)
        stored = numbered(stored) if nodata is None else declare_nodata(stored, nodata)
        if y_dim is not None or x_dim is not None:
            stored = renamed(stored, y_dim, x_dim)
        ds = with_crs(decoded(stored, wanted))
        ds = ds if crs is None else declare_crs(ds, crs)
        if source.reader != "gdal":
            note_default_fill(ds)
        if nodata is not None and math.isnan(nodata):
            for da in data_variables(ds).values():
                if da.dtype.kind in "iu":
                    da.encoding["_FillValue"] = nodata  # no cell is missing, for `observed`; never written
    if as_numbers:
        for da in data_variables(ds).values():
            da.attrs = without(da.attrs, tuple(class_attrs(da.attrs)))
    ds = with_times(ds)
    if wanted is not None:
        ds = _select_variables(ds, wanted)
    if nodata is None:
        warn_of_zero_fill(ds)
        warn_of_unwritten(ds)
    if bbox is not None:
        ds = select_box(ds, bbox)
    if select:
        ds = select_labels(ds, select)
    ds.encoding["source"] = source.file
    if chunks is None:
        return ds
    if chunks == "auto":
        return _split_for_cores(ds)
    if isinstance(chunks, int):
        grid = Grid.from_xarray(ds)
        chunks = {grid.y_dim: chunks, grid.x_dim: chunks}
    return ds.chunk(dict(chunks))


def _split_for_cores(ds: xr.Dataset) -> xr.Dataset:
    """Rechunk variables that have too few chunks to keep all cores busy."""
    split = {}
    for name, da in ds.data_vars.items():
        n_chunks = math.prod(len(sizes) for sizes in da.chunks or ())
        side = chunk_side(da.size)
        if da.ndim > 1 and n_chunks < 4 * CPU_COUNT and max(da.shape[-2:]) > side:
            split[name] = da.chunk(dict.fromkeys(da.dims[-2:], side))
    return ds.assign(split)


def _open_stored(
    source: Source,
    options: dict[str, Any],
    chunks: Any,
    variables: Sequence[str] | None,
    group: str | None,
    bands: Sequence[int] | None,
    nodata: float | None,
) -> tuple[Source, xr.Dataset, Sequence[str] | None]:
    """Open a raster without decoding; with what it was read from, and the names of the variables asked for."""
    if source.reader != "gdal":
        path, stored, wanted = open_tree(_tree_of(source, options), source, chunks, variables, group)
        if source.reader != "netcdf" or not any(str(dim).startswith("phony_dim_") for dim in stored.dims):
            return source, stored if bands is None else _select_bands(stored, bands), wanted
        # HDF5 without the names of dimensions that NetCDF needs
        names = wanted or [str(name) for name in stored.data_vars]
        source, variables = source.as_hdf5([f"{path}/{name}" for name in names]), None
    return source, open_gdal(source.path, chunks, bands, nodata), variables


def _tree_of(source: Source, options: dict[str, Any]) -> Tree:
    match source.reader:
        case "kerchunk" | "icechunk":
            return Engine(source.reader, source.path, options)
        case "grib":
            return Grib(source.path)
        case "zarr":
            return Store(source.path, options)
    return NetCDF(source.path)


def _select_variables(ds: xr.Dataset, variables: Sequence[str]) -> xr.Dataset:
    missing = [name for name in variables if name not in ds.data_vars]
    if missing:
        known = ", ".join(repr(name) for name in ds.data_vars) or "no other"
        raise InputError(
            f"No variable {', '.join(map(repr, missing))}: the raster has {known}. Correct variables (--variable)."
        )
    about = [{**da.attrs, **da.encoding} for da in ds[list(variables)].coords.values()]
    bounds = {str(each[key]) for each in about for key in ("bounds", "climatology") if key in each}
    return ds[[*variables, *(name for name in ds.data_vars if name in bounds - set(variables))]]


def _select_bands(ds: xr.Dataset, bands: Sequence[int]) -> xr.Dataset:
    count = ds.sizes.get("band", 1)
    missing = [band for band in bands if not 1 <= band <= count]
    if missing:
        raise InputError(
            f"No band {', '.join(map(str, missing))}: the raster has bands 1 to {count}. Correct bands (--bidx)."
        )
    return ds.isel(band=[band - 1 for band in bands]) if "band" in ds.dims else ds
