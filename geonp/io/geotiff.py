"""GeoTIFF out, band by band."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import rasterio
import rasterio.shutil
import rioxarray  # noqa: F401  (registers the accessor rio)
import xarray as xr
from rasterio import Affine
from rasterio._err import CPLE_BaseError
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from geonp.errors import InputError, OutputError, reason, warn
from geonp.io.alpha import alpha_beside, with_alpha
from geonp.io.bands import packed
from geonp.io.intact import require_intact, unwritten, write_blocks
from geonp.io.layouts import add_overviews, bits_of, creation_of, layout_of, within_bits
from geonp.io.tags import layer_tags, write_categories, write_tags
from geonp.raster.arrays import Array
from geonp.raster.crs import geotransform
from geonp.raster.dimensions import has_coordinate
from geonp.raster.grid import Grid
from geonp.raster.kinds import is_classes, is_direction
from geonp.raster.metadata import ASCENDS, GDAL_METADATA, PACKED_BANDS
from geonp.raster.nodata import EXACT, PACKING, UNLIMITED, declared_nodata, empty_value, observed, valid_limits
from geonp.raster.tolerances import TOLERANCES

DRIVERS = {
    "COG": {"COMPRESS": "DEFLATE", "OVERVIEW_RESAMPLING": "NEAREST"},  # averages of flags have no meaning
    "GTiff": {"COMPRESS": "DEFLATE", "TILED": "YES"},
}
"""GDAL drivers that write a GeoTIFF, with their default creation options."""

# The options that `gdalinfo --format` lists for each driver in GDAL 3.10 and 3.11: rasterio has no access to them.
_SHARED_OPTIONS = """BIGTIFF COMPRESS GEOTIFF_VERSION INTERLEAVE JXL_ALPHA_DISTANCE JXL_DISTANCE JXL_EFFORT JXL_LOSSLESS
    MAX_Z_ERROR MAX_Z_ERROR_OVERVIEW NBITS NUM_THREADS PREDICTOR SPARSE_OK"""
_OPTIONS = {
    "COG": """ADD_ALPHA ALIGNED_LEVELS BLOCKSIZE EXTENT LEVEL OVERVIEWS OVERVIEW_COMPRESS OVERVIEW_COUNT
        OVERVIEW_PREDICTOR OVERVIEW_QUALITY OVERVIEW_RESAMPLING QUALITY RES RESAMPLING STATISTICS TARGET_SRS
        TILING_SCHEME WARP_RESAMPLING ZOOM_LEVEL ZOOM_LEVEL_STRATEGY""",
    "GTiff": """ALPHA BLOCKXSIZE BLOCKYSIZE COLOR_TABLE_MULTIPLIER COPY_SRC_OVERVIEWS DISCARD_LSB ENDIANNESS
        GEOTIFF_KEYS_FLAVOR JPEGTABLESMODE JPEG_QUALITY LZMA_PRESET PHOTOMETRIC PIXELTYPE PROFILE RPB RPCTXT
        SOURCE_ICC_PROFILE SOURCE_PRIMARIES_BLUE SOURCE_PRIMARIES_GREEN SOURCE_PRIMARIES_RED SOURCE_WHITEPOINT
        STREAMABLE_OUTPUT TFW TIFFTAG_TRANSFERFUNCTION_BLUE TIFFTAG_TRANSFERFUNCTION_GREEN
        TIFFTAG_TRANSFERFUNCTION_RED TIFFTAG_TRANSFERRANGE_BLACK TIFFTAG_TRANSFERRANGE_WHITE TILED WEBP_LEVEL
        WEBP_LOSSLESS ZLEVEL ZSTD_LEVEL""",
}

_COMPRESSIONS = {"NONE", "DEFLATE", "LZW", "ZSTD", "LZMA", "JPEG", "WEBP", "JXL", "LERC", "LERC_DEFLATE", "LERC_ZSTD"}


def creation_options_of(driver: str) -> set[str]:
    """Names of the creation options of a driver of :data:`DRIVERS`, in capitals."""
    return set(f"{_SHARED_OPTIONS} {_OPTIONS[driver]}".split())


def transform(ds: xr.Dataset, grid: Grid) -> Affine | None:
    """Affine transform from (column, row) to the outer corner of a cell; None if cells are not evenly spaced.

    Own code, because ``ds.rio.transform`` does not check that cells are even, and needs dimensions named x and y.
    """
    if all(has_coordinate(ds, dim) for dim in grid.dims):
        found = Affine(*grid.affine)
        written = _written_transform(ds)
        # coordinates are rounded: the transform that they follow from is exact
        same = written is not None and found.almost_equals(
            written, TOLERANCES.same_cells * min(map(abs, grid.spacing)) / max(grid.shape)
        )
        return (written if same else found) if grid.regular else None
    return _written_transform(ds)


def _written_transform(ds: xr.Dataset) -> Affine | None:
    terms = geotransform(ds)
    return None if terms is None else Affine.from_gdal(*terms)


def write_geotiff(
    ds: xr.Dataset, grid: Grid, path: Path, driver: str, options: Mapping[str, str], like: xr.Dataset | None = None
) -> None:
    """Compute `ds`, on `grid`, and write it to `path`, by a draft in the same folder, which the caller removes.

    What GDAL has written is read back, see :mod:`geonp.io.intact`.

    Variables and their slices along other dimensions are bands, in order, described by name. Rows are written from
    north to south, and columns from west to east, unless the file that they are from has another order. With `like`,
    they have the descriptions and the layout of the file that this was opened from.
    :func:`geonp.io.output.write_raster` describes the parameters. Raises InputError for a variable that is not real or
    lacks a spatial dimension, or an unknown compression. Raises OutputError if GDAL refuses the creation options, or
    what it wrote cannot be read back.
    """
    layout = {} if like is None else layout_of(like)
    average = like is not None and not any(is_classes(da) or is_direction(str(n), da.attrs) for n, da in like.items())
    kept = creation_of(layout, driver) if layout else {}
    kept |= {"OVERVIEW_RESAMPLING": "AVERAGE"} if average and driver == "COG" else {}
    options = {**DRIVERS[driver], **kept, **options}
    _require_compression(driver, options)
    ds = _ordered(ds, grid)
    grid = Grid.from_xarray(ds)
    layers, mask = _encoded_layers(ds, grid), None
    if like is not None:
        layers = [(about.get("description", label), *rest, about) for label, *rest, about in layers]
    if layout.get("mask") and layers[-1][2].get("colour") == "alpha":
        *layers, (_, mask, _) = layers
    first = layers[0][1]
    bits = 0 if "NBITS" in options else bits_of(layout, first)
    if bits:
        layers = [(label, within_bits(layer, bits), about) for label, layer, about in layers]
    affine, gcps = transform(ds, grid), first.rio.get_gcps()
    unplaced = affine is None and not gcps and not grid.regular
    if unplaced:
        warn(
            f"{path.name} is written without georeference: its cells are not evenly spaced, as those of a GeoTIFF must "
            "be. Write .nc or .zarr to keep the coordinates."
        )
    profile = {
        "height": grid.shape[0],
        "width": grid.shape[1],
        "count": len(layers),
        "dtype": first.dtype,
        "nodata": first.attrs.get("_FillValue"),
        "crs": None if unplaced or gcps else grid.crs or _assumed_crs(grid),
        "transform": None if gcps else affine,
    }
    draft = path.with_name(f"draft-{path.name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        _require_nodata(path, first)
        _create(draft, profile, ds, layers, gcps=(gcps, grid.crs) if gcps else None)
        _warn_of_nodata(draft, path, first)
        # Blocks are written as they are computed; the copy compresses them once and adds the overviews of a COG.
        arrays = [dask.array.asarray(da.data) for _, da, _ in layers]
        parts = write_blocks(draft, arrays, None if mask is None else dask.array.asarray(mask.data))
        write_categories(draft, layers)
        try:
            # overviews of a COG are in temporary files before
            with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True, COG_TMP_COMPRESSION="NONE"):
                rasterio.shutil.copy(draft, path, driver=driver, **options, **({"NBITS": str(bits)} if bits else {}))
                if layout.get("overviews") and driver == "GTiff":
                    add_overviews(path, layout["overviews"], average=average)
        except (RasterioError, CPLE_BaseError) as error:
            raise OutputError(
                f"GDAL cannot write {path.name!r} as {driver}: {error}. Check creation_options (--co)."
            ) from error
        require_intact(path, draft, parts, options)


def _assumed_crs(grid: Grid) -> str | None:
    """WGS 84 for longitudes and latitudes without a CRS, whose names a GeoTIFF does not keep."""
    bounds = grid.bounds if grid.geographic else None
    on_earth = bounds is not None and max(map(abs, bounds[1::2])) <= 90 + abs(grid.spacing[0])
    return "EPSG:4326" if on_earth else None


def _create(
    draft: Path,
    profile: Mapping[str, Any],
    ds: xr.Dataset,
    layers: Sequence[tuple[str, xr.DataArray, Mapping[str, Any]]],
    *,
    gcps: tuple[Any, Any] | None,
) -> None:
    """Create a GeoTIFF without values, with tags, scales and offsets; `gcps` are control points and their CRS."""
    try:
        # blocks of interleaved bands would be read and written again for each band
        layout = {"tiled": True, "INTERLEAVE": "BAND", "BIGTIFF": "IF_SAFER"}
        with rasterio.open(draft, "w", driver="GTiff", **layout, **profile) as file:
            if gcps is not None:
                file.gcps = gcps
            write_tags(file, ds, layers)
            file.scales = [da.attrs.get("scale_factor", 1.0) for _, da, _ in layers]
            file.offsets = [da.attrs.get("add_offset", 0.0) for _, da, _ in layers]
    except (RasterioError, CPLE_BaseError, TypeError) as error:  # rasterio reads what it has created
        raise unwritten(f"GDAL reports: {reason(error)}") from error
    # an error now, instead of after hours of filling
    whole = profile["height"] * profile["width"] * profile["count"] * np.dtype(profile["dtype"]).itemsize
    if (size := draft.stat().st_size) < whole:
        raise unwritten(f"got {size:,} bytes, expected at least {whole:,}")


def _require_nodata(path: Path, layer: xr.DataArray) -> None:
    """Check that a nodata value of 64-bit integers stays one of them as the float that rasterio writes."""
    nodata = layer.attrs.get("_FillValue")
    if nodata is not None and layer.dtype.kind in "iu" and int(float(nodata)) > np.iinfo(layer.dtype).max:
        raise OutputError(
            f"{path.name}: a GeoTIFF cannot hold the nodata value {nodata} of {layer.dtype}, which is rounded to "
            f"{float(nodata):.0f}: expected at most {EXACT}. Write .nc or .zarr, which keep it."
        )


def _warn_of_nodata(draft: Path, path: Path, layer: xr.DataArray) -> None:
    """Warn of a nodata value of 64-bit integers that rasterio writes as a float: GDAL reads its first digits alone."""
    nodata = layer.attrs.get("_FillValue")
    if nodata is None or layer.dtype.kind not in "iu":
        return
    with rasterio.open(draft) as file:
        if file.nodata != float(nodata):
            warn(
                f"{path.name}: GDAL reads the nodata value {nodata} of 64-bit integers in a GeoTIFF as "
                f"{file.nodata:g}, so that cells without a value are read as values. Write .nc or .zarr, which keep it."
            )


def _ordered(ds: xr.Dataset, grid: Grid) -> xr.Dataset:
    """`ds` with rows and columns in the order of the file of GDAL it is from; of others, from north-west."""
    axes = [
        (dim, step, ds[dim].encoding.get(ASCENDS, ascends))
        for dim, step, ascends in zip(grid.dims, grid.spacing, (False, True), strict=True)
        if has_coordinate(ds, dim)
    ]
    return ds.isel({dim: slice(None, None, -1) for dim, step, ascends in axes if (step > 0) != ascends})


def _encoded_layers(ds: xr.Dataset, grid: Grid) -> list[tuple[str, xr.DataArray, Mapping[str, Any]]]:
    """The bands as they are stored: description, array, and what :func:`geonp.io.tags.layer_tags` gives.

    Bands that were packed or masked stay integers if there are no others.
    """
    stored = _with_common_encoding(ds, grid)
    packings = [da.encoding.get(PACKED_BANDS) for da in ds.data_vars.values()]
    integers = (
        packings[0] is not None and packings[0]["_FillValue"] is not None and packings.count(packings[0]) == len(ds)
    )
    layers = [
        (label, layer if packing is None else packed(layer, packing, integers=integers), layer_tags(ds[name], layer))
        for packing, (name, da) in zip(packings, stored.items(), strict=True)
        for label, layer in _layers(name, da, grid)
    ]
    values = next(iter(ds.data_vars.values()))
    said, dtype = values.encoding.get(GDAL_METADATA, {}), layers[0][1].dtype
    masked, alpha = said.get("masked"), said.get("alpha")
    if len(ds) > 1:
        return layers
    if masked is not None and dtype.kind == "f":
        *bands, last = with_alpha([layer for _, layer, _ in layers], np.dtype(masked), grid, alpha)
        layers = [(label, layer, about) for (label, _, about), layer in zip(layers, bands, strict=True)]
    elif alpha is not None:
        last = alpha_beside(values, dtype, grid, alpha)
    else:
        return layers
    return [*layers, ("alpha", last, {"colour": "alpha"})]


def _require_compression(driver: str, options: Mapping[str, str]) -> None:
    """Check the compression: GDAL ignores an unknown one."""
    methods = _COMPRESSIONS | ({"PACKBITS"} if driver == "GTiff" else set())
    method = options.get("COMPRESS", "NONE")
    if method.upper() not in methods:
        raise InputError(
            f"Unknown compression: got {method}, expected one of {', '.join(sorted(methods))}. Correct the option "
            "COMPRESS (--co)."
        )


def _with_common_encoding(ds: xr.Dataset, grid: Grid) -> dict[Hashable, xr.DataArray]:
    """Encode all variables with one dtype and one nodata value: their own if these agree, else as floats."""
    for name, da in ds.data_vars.items():
        if da.dtype.kind not in "iufb" or not grid.spans(da):
            raise InputError(
                f"A GeoTIFF cannot hold variable {name!r}: got {da.dtype} on {da.dims}, expected real numbers on "
                f"({grid.y_dim!r}, {grid.x_dim!r}). Choose other variables (--variable), or write .zarr or .nc."
            )
    own = {name: _encoded(_with_nodata(da)) for name, da in ds.data_vars.items()}
    encodings = {(da.dtype, *(repr(da.attrs.get(key)) for key in ("_FillValue", *PACKING))) for da in own.values()}
    if len(encodings) == 1:
        return own
    unpacked = [da.attrs for da in own.values() if "_FillValue" in da.attrs and "scale_factor" not in da.attrs]
    negative = [float(fill) for fill in {attrs["_FillValue"] for attrs in unpacked} if fill < 0]
    nodata = negative[0] if len(negative) == 1 else np.nan
    floats = {name: _as_floats(da) for name, da in ds.data_vars.items()}
    dtype = np.result_type(*(da.dtype for da in floats.values()))
    for da in floats.values():
        da.encoding = {"dtype": dtype, "_FillValue": dtype.type(nodata)}
    return {name: _encoded(da) for name, da in floats.items()}


def _encoded(da: xr.DataArray) -> xr.DataArray:
    variable = xr.conventions.encode_cf_variable(da.variable)
    # rasterio has neither float16 nor the order of bytes of other machines, as of FITS files
    dtype = np.dtype(np.float32) if variable.dtype == np.float16 else variable.dtype.newbyteorder("=")
    return da.copy(data=variable.data.astype(dtype, copy=False)).assign_attrs(variable.attrs)


def _with_nodata(da: xr.DataArray) -> xr.DataArray:
    """Numbers with a nodata value in cells beyond their valid range, of which GDAL does not know."""
    if da.dtype.kind not in "iuf" or valid_limits(da) == UNLIMITED:
        return da
    nodata = declared_nodata(da)
    if da.dtype.kind == "f":  # NaN is encoded as the nodata value, unless the values are as they are stored
        value = da.dtype.type(da.attrs.get("_FillValue", np.nan))
        nodata = (value,)
    else:
        value = da.dtype.type(empty_value(da, nodata))
    found = da.where(observed(da).notnull(), value)
    found.encoding = da.encoding
    return found if value in nodata else found.assign_attrs(_FillValue=value)


def _as_floats(da: xr.DataArray) -> xr.DataArray:
    if da.dtype.kind == "f" or declared_nodata(da) or valid_limits(da) != UNLIMITED:
        return observed(da)
    return da.astype(np.float64 if da.dtype.itemsize > 2 else np.float32)


def _layers(name: Hashable, da: xr.DataArray, grid: Grid) -> Iterator[tuple[str, xr.DataArray]]:
    """Two-dimensional slices of `da` with their descriptions, such as ``ndvi time=2015-07-11``."""
    dims = [dim for dim in da.dims if dim not in grid.dims]
    for index in np.ndindex(*(da.sizes[dim] for dim in dims)):
        layer = da.isel(dict(zip(dims, index, strict=True))).transpose(*grid.dims)
        band_name = layer.coords.get("band_name")
        labels = [
            str(band_name.values[()])
            if band_name is not None and dim == "band"
            else f"{dim}={_label(layer.coords[dim].values) if dim in layer.coords else i}"
            for dim, i in zip(dims, index, strict=True)
        ]
        yield " ".join([str(name), *labels]), layer


def _label(value: Array) -> object:
    """Value of a coordinate; a time as ISO 8601, without trailing zeros."""
    return np.datetime_as_string(value, unit="auto") if value.dtype.kind == "M" else value.item()
