"""How files store their values: blocks, compression and overviews, so that another file can be written alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rasterio
import xarray as xr
from rasterio.enums import ColorInterp, MaskFlags, Resampling

from geonp.errors import warn
from geonp.raster.metadata import GDAL_METADATA
from geonp.raster.nodata import VALID

_LOSSLESS = {"DEFLATE", "LZW", "ZSTD", "LZMA", "PACKBITS", "LERC", "LERC_DEFLATE", "LERC_ZSTD"}
_LOSSY = {"JPEG", "YCbCr JPEG", "WEBP", "JXL"}
_COG_PREDICTORS = {"2": "STANDARD", "3": "FLOATING_POINT"}

_NETCDF = ("zlib", "complevel", "shuffle", "fletcher32", "chunksizes", "contiguous")
_NETCDF_FILTERS = ("zstd", "bzip2", "szip", "blosc")
_ZARR = ("chunks", "shards", "compressors")  # filters and serializers name a dtype, and may lose digits


def read_layout(file: rasterio.DatasetReader) -> dict[str, Any]:
    """The driver of a GeoTIFF, its blocks, compression, interleaving, overviews and mask; empty for other formats."""
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
    return {**options, "PREDICTOR": predictor} if predictor else options


def add_overviews(path: Any, factors: list[int], *, average: bool) -> None:
    """Add overviews to a GeoTIFF, of means or of single cells."""
    with rasterio.open(path, "r+") as file:
        palette = ColorInterp.palette in file.colorinterp
        file.build_overviews(factors, Resampling.average if average and not palette else Resampling.nearest)


def zarr_format_of(like: xr.Dataset) -> str:
    """The Zarr format of the store that a raster was opened from; 3 if it was none."""
    stored = [da.encoding for da in like.variables.values() if "compressors" in da.encoding]
    return "2" if stored and not any("serializer" in encoding for encoding in stored) else "3"


def with_chunks(ds: xr.Dataset, like: xr.Dataset, kind: str) -> xr.Dataset:
    """`ds` with the chunks and compression of the variables of `like`, if these are of the same `kind` of files.

    `kind` is ``"netcdf"`` or ``"zarr"``.
    """
    ds = ds.copy()
    for name, variable in ds.variables.items():
        of = like.variables.get(name)
        if of is None or of.dims != variable.dims or variable.ndim == 0:
            continue
        encoding = of.encoding
        if encoding.get("_Unsigned") == "true" and variable.encoding.get("dtype", variable.dtype).kind == "u":
            # stored as signed integers, with limits as signed ones
            variable.encoding |= {key: encoding[key] for key in ("dtype", "_FillValue", "_Unsigned") if key in encoding}
            variable.attrs |= {key: of.attrs[key] for key in VALID if key in of.attrs}
        kept: dict[str, Any]
        if kind == "netcdf" and "zlib" in encoding:
            kept = {key: encoding[key] for key in _NETCDF if encoding.get(key) is not None}
            sizes = kept.get("chunksizes")
            if sizes is not None:
                growing = ds.encoding.get("unlimited_dims", ())
                kept["chunksizes"] = tuple(
                    size if dim in growing else min(size, variable.sizes[dim])
                    for dim, size in zip(variable.dims, sizes, strict=True)
                )
            if method := next((key for key in _NETCDF_FILTERS if encoding.get(key)), None):
                kept["compression"] = method
            variable.encoding |= kept
        elif kind == "zarr" and "compressors" in encoding:
            kept = {key: encoding[key] for key in _ZARR if encoding.get(key) is not None}
            variable.encoding |= kept
            if variable.chunks is not None:
                parts = kept.get("shards") or kept["chunks"]
                held = (max(sizes) for sizes in variable.chunks)
                whole = {
                    dim: -(-size // part) * part for dim, size, part in zip(variable.dims, held, parts, strict=True)
                }
                ds[name] = ds[name].chunk(whole)
                ds[name].encoding = variable.encoding
    return ds
