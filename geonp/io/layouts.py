"""How files store their values: blocks, compression and overviews, so that another file can be written alike."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping
from typing import Any

import numpy as np
import rasterio
import xarray as xr
from rasterio.enums import ColorInterp, MaskFlags, Resampling

from geonp.errors import warn
from geonp.raster.metadata import GDAL_METADATA
from geonp.raster.nodata import NODATA, VALID, without

_LOSSLESS = {"DEFLATE", "LZW", "ZSTD", "LZMA", "PACKBITS", "LERC", "LERC_DEFLATE", "LERC_ZSTD"}
_LOSSY = {"JPEG", "YCbCr JPEG", "WEBP", "JXL"}
_COG_PREDICTORS = {"2": "STANDARD", "3": "FLOATING_POINT"}

NETCDF_MODEL = "data_model"
"""Encoding of a raster of NetCDF: the kind of file, such as NETCDF3_CLASSIC."""
OTHER_GROUPS = "other_groups"
"""Encoding of a raster of NetCDF: the names of the groups that it lacks."""

_NETCDF = ("zlib", "complevel", "shuffle", "fletcher32", "chunksizes", "contiguous", "char_dim_name")
_NETCDF_FILTERS = ("zstd", "bzip2", "szip", "blosc")
_ZARR = ("chunks", "shards", "compressors")  # filters and serializers name a dtype, and may lose digits


def read_layout(file: rasterio.DatasetReader) -> dict[str, Any]:
    """The driver of a GeoTIFF, blocks, compression, interleaving, dtype, bits, overviews and mask; empty for others."""
    if file.driver not in {"GTiff", "COG"}:
        return {}
    structure, (rows, cols) = file.tags(ns="IMAGE_STRUCTURE"), file.block_shapes[0]
    others = {MaskFlags.alpha, MaskFlags.nodata}
    masks = [MaskFlags.per_dataset in kinds and not others & set(kinds) for kinds in file.mask_flag_enums]
    return {
        "driver": "COG" if structure.get("LAYOUT") == "COG" else "GTiff",
        "block": (rows, cols),
        "tiled": bool(file.profile["tiled"]),
        "compression": structure.get("COMPRESSION", "NONE"),
        "predictor": structure.get("PREDICTOR", "1"),
        "interleave": structure.get("INTERLEAVE", "BAND"),
        "inverted": structure.get("MINISWHITE") == "YES" and file.count == 1,
        "dtype": file.dtypes[0],
        "bits": int(file.tags(1, ns="IMAGE_STRUCTURE").get("NBITS", 0)),
        "overviews": file.overviews(1),
        "mask": bool(masks) and all(masks),
    }


def layout_of(like: xr.Dataset) -> Mapping[str, Any]:
    """The layout of the GeoTIFF that a raster was opened from; empty if it was none."""
    found = (da.encoding.get(GDAL_METADATA, {}).get("layout") for da in like.data_vars.values())
    return next((layout for layout in found if layout), {})


def creation_of(layout: Mapping[str, Any], driver: str) -> dict[str, str]:
    """Creation options with which GDAL's `driver` writes a GeoTIFF of the layout that :func:`read_layout` found.

    Observed cells must not change: a lossy compression becomes DEFLATE, with a warning.
    """
    method, (rows, cols) = layout["compression"], layout["block"]
    if method in _LOSSY:
        warn(f"The input has lossy compression ({method}). The output is compressed without loss (DEFLATE).")
    options = {"COMPRESS": method if method in {*_LOSSLESS, "NONE"} else "DEFLATE"}
    if driver == "COG":
        predictor = _COG_PREDICTORS.get(layout["predictor"])
        options |= {"BLOCKSIZE": str(rows)} if layout["driver"] == "COG" else {}
    else:
        predictor = layout["predictor"] if layout["predictor"] != "1" else None
        options |= {"TILED": "YES" if layout["tiled"] else "NO", "BLOCKYSIZE": str(rows), "BIGTIFF": "IF_SAFER"}
        options |= {"BLOCKXSIZE": str(cols)} if layout["tiled"] else {}
        options |= {"INTERLEAVE": layout["interleave"]}
        options |= {"PHOTOMETRIC": "MINISWHITE"} if layout["inverted"] else {}
    return {**options, "PREDICTOR": predictor} if predictor else options


def bits_of(layout: Mapping[str, Any], layer: xr.DataArray) -> int:
    """Number of bits of the unsigned integers of a GeoTIFF that a layer can be stored with, too; 0 for whole bytes."""
    bits, nodata = layout.get("bits", 0), layer.attrs.get("_FillValue", 0)
    alike = bits and layer.dtype.kind == "u" and layer.dtype == layout["dtype"] and nodata < 2**bits
    return bits if alike else 0


def within_bits(layer: xr.DataArray, bits: int) -> xr.DataArray:
    """A layer of unsigned integers whose values, but for nodata, are at most the largest of so many bits."""
    nodata = layer.attrs.get("_FillValue")
    most = layer.dtype.type(2**bits - 1 - (nodata == 2**bits - 1))
    return layer.where((layer <= most) if nodata is None else (layer <= most) | (layer == nodata), most)


def add_overviews(path: Any, factors: list[int], *, average: bool) -> None:
    """Add overviews to a GeoTIFF, of means or of single cells."""
    with rasterio.open(path, "r+") as file:
        palette = ColorInterp.palette in file.colorinterp
        file.build_overviews(factors, Resampling.average if average and not palette else Resampling.nearest)


def zarr_format_of(like: xr.Dataset) -> str:
    """The Zarr format of the store that a raster was opened from; 3 if it was none."""
    stored = [da.encoding for da in like.variables.values() if "compressors" in da.encoding]
    return "2" if stored and not any("serializer" in encoding for encoding in stored) else "3"


def netcdf_model(ds: xr.Dataset, like: xr.Dataset | None) -> str:
    """The kind of NetCDF of the file that `like` was opened from if it can hold `ds`, or else NETCDF4."""
    model = "NETCDF4" if like is None else str(like.encoding.get(NETCDF_MODEL, "NETCDF4"))
    stored = [(np.dtype(da.encoding.get("dtype") or da.dtype), da.ndim) for da in ds.variables.values()]
    # xarray writes what fits as int32 in these: flags and the like without dimensions
    classic = all(dtype.kind != "u" and (dtype != np.int64 or ndim == 0) for dtype, ndim in stored)
    return model if classic else "NETCDF4"


def stored_like(ds: xr.Dataset, like: xr.Dataset, kind: str) -> xr.Dataset:
    """`ds` stored as the variables of `like` are, if these are of the same `kind` of files.

    `kind` is ``"netcdf"`` or ``"zarr"``. What is alike are nodata values, chunks, compression, dimensions of characters
    and the text of units of time.
    """
    ds = ds.copy()
    netcdf = NETCDF_MODEL in like.encoding
    for name, variable in ds.variables.items():
        of = like.variables.get(name)
        if of is None or of.dims != variable.dims or netcdf != (kind == "netcdf"):
            continue
        _mark_missing(variable, of)
        if netcdf:
            variable.encoding |= _netcdf_layout(variable, of.encoding, ds.encoding.get("unlimited_dims", ()))
        elif "compressors" in of.encoding and variable.ndim:
            kept: dict[str, Any] = {key: of.encoding[key] for key in _ZARR if of.encoding.get(key) is not None}
            variable.encoding |= kept
            if variable.chunks is not None:
                parts = kept.get("shards") or kept["chunks"]
                held = (max(sizes) for sizes in variable.chunks)
                whole = {
                    dim: -(-size // part) * part for dim, size, part in zip(variable.dims, held, parts, strict=True)
                }
                ds[name] = ds[name].chunk(whole)
                ds[name].encoding = variable.encoding
    return _with_times_of(like, ds) if netcdf and kind == "netcdf" else ds


def _with_times_of(like: xr.Dataset, ds: xr.Dataset) -> xr.Dataset:
    """`ds` with times as numbers in the units of `like`, whose text xarray changes; those of bounds have no units."""
    found, bounds = {}, {str(of.attrs.get("bounds")) for of in like.variables.values()}
    for name, variable in ds.variables.items():
        said = like.variables[name].encoding if name in like.variables else {}
        if variable.dtype.kind != "M" or " since " not in str(said.get("units")) or "units" not in variable.encoding:
            continue
        numbers = xr.conventions.encode_cf_variable(variable, name=name)
        attrs = without(numbers.attrs, ("units", "calendar"))
        units = {key: said[key] for key in ("units", "calendar") if key in said}
        again = xr.Variable(numbers.dims, numbers.data, attrs | units)
        if xr.conventions.decode_cf_variable(name, again, decode_timedelta=False).equals(variable):
            kept = without(variable.encoding, ("units", "calendar", "_FillValue")) | {"_FillValue": None}
            found[name] = xr.Variable(again.dims, again.data, attrs if name in bounds else again.attrs, kept)
    order = [name for name in like.variables if name in ds.variables]
    return ds.assign(found)[list(dict.fromkeys([*order, *ds.variables]))]


def _mark_missing(variable: xr.Variable, of: xr.Variable) -> None:
    """Declare missing cells of a variable as those of the stored one are, if the dtypes are the same."""
    encoding = of.encoding
    if encoding.get("_Unsigned") == "true" and variable.encoding.get("dtype", variable.dtype).kind == "u":
        # stored as signed integers, with limits as signed ones
        variable.encoding |= {key: encoding[key] for key in ("dtype", "_FillValue", "_Unsigned") if key in encoding}
        variable.attrs |= {key: of.attrs[key] for key in VALID if key in of.attrs}
    dtypes = [np.dtype(each.encoding.get("dtype") or each.dtype).newbyteorder("=") for each in (variable, of)]
    declared: list[Any] = [encoding.get(key) for key in NODATA]
    fill, several = declared
    if dtypes[0] != dtypes[1]:
        return
    if fill is None and several is None:
        if dtypes[0].kind == "f":  # xarray would declare NaN
            variable.encoding.setdefault("_FillValue", None)
        return
    variable.encoding.pop("missing_value", None)
    if fill is None and np.size(several) == 1:
        variable.encoding |= {"_FillValue": None, "missing_value": np.ravel(several)[0]}
        return
    variable.encoding["_FillValue"] = np.ravel(several)[0] if fill is None else fill
    if several is not None:  # as an attribute, since xarray refuses two values
        variable.attrs["missing_value"] = several


def _netcdf_layout(variable: xr.Variable, encoding: Mapping[str, Any], growing: Collection[Hashable]) -> dict[str, Any]:
    """Encoding of a variable with the chunks, filters and dimension of characters of a stored one."""
    kept = {key: encoding[key] for key in _NETCDF if encoding.get(key) is not None}
    if (sizes := kept.get("chunksizes")) is not None:
        # characters have one dimension more as they are stored
        most = [None if dim in growing else variable.sizes[dim] for dim in variable.dims]
        kept["chunksizes"] = tuple(
            size if limit is None else min(size, limit) for size, limit in itertools.zip_longest(sizes, most)
        )
    if method := next((key for key in _NETCDF_FILTERS if encoding.get(key)), None):
        kept["compression"] = method
    if "coordinates" not in variable.attrs:
        kept["coordinates"] = encoding.get("coordinates")  # xarray would name all that fit
    return kept
