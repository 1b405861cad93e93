"""GeoTIFF and the other raster formats of GDAL, read without decoding."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rioxarray  # noqa: F401  (the engine rasterio)
import xarray as xr
from pyproj import CRS
from pyproj.exceptions import CRSError
from rasterio.errors import RasterioIOError
from rasterio.io import DatasetReader

from geonp.errors import InputError, warn
from geonp.io.alpha import warn_of_alpha
from geonp.io.bands import Bands
from geonp.io.tags import read_tags
from geonp.raster.crs import LOST_IN_CF
from geonp.raster.metadata import ASCENDS, GDAL_METADATA, UNNAMED
from geonp.raster.nodata import PACKING

# Drivers whose files hold their cells, or lie beside files of the same name that do. Others, such as VRT, WMS and PDS,
# read whatever file or URL their text names.
_SELF_CONTAINED = """AAIGrid ACE2 ADRG AIG AirSAR ARG BAG BIGGIF BLX BMP BSB BT BYN CALS COG COSAR CTable2 DDS DOQ1 DOQ2
    DTED EHdr
    EIR ELAS ENVI ESAT FAST FIT FITS GFF GIF GPKG GRASSASCIIGrid GRIB GS7BG GSAG GSBG GSC GTX GTiff GXF HDF4
    HDF4Image HDF5 HDF5Image HEIF HF2 HFA IRIS ISCE ISG JDEM JP2ECW JP2KAK JP2Lura JP2MrSID JP2OpenJPEG JPEG
    JPEGXL JPEGXR KEA L1B LAN LCP LIBERTIFF LOSLAS Leveller MBTiles MEM MFF MSGN NDF NGSGEOID NITF NOAA_B
    NSIDCbin NTv2 NWT_GRC NWT_GRD PAux PCIDSK PCRaster PNG PNM PRF R RIK RMF ROI_PAC RRASTER RST Rasterlite S102
    S104 S111 SAGA SDTS SGI SIGDEM SNAP_TIFF SNODAS SQLite SRP SRTMHGT TGA Terragen USGSDEM WEBP XPM XYZ ZMap
    netCDF"""
# Names that say that a file describes others, or that are given to a driver.
_REFERRING = re.compile(r"\.(vrt|xml|wms|wmts|wcs|mrf|gti|toc|ers|lbl|pds|til)$|^[A-Za-z]\w+:(?!//)|^vrt://", re.I)

_LOCAL = 'LOCAL_CS["unknown"]'

_STALE_TAGS = re.compile(r"STATISTICS_|GRIB_|NETCDF_|OVR_")


def opened(path: str) -> DatasetReader:
    """Open a raster with drivers that read nothing but that file, unless its name says that it describes others.

    A file from elsewhere could otherwise be named ``.tif`` and be a text that makes GDAL read other files, or send
    requests. Raises InputError for such a file.
    """
    bare = re.split(r"[?#]", path)[0]
    if path.startswith("vrt://"):
        with opened(bare.removeprefix("vrt://")):  # GDAL would open it with any driver
            return rasterio.open(path)
    if _REFERRING.search(bare) or Path(path).is_dir():
        return rasterio.open(path)
    with rasterio.Env():
        try:
            return DatasetReader(path, driver=_SELF_CONTAINED.split())
        except RasterioIOError as error:
            if "not recognized" not in str(error) or not _is_markup(bare):
                raise
            raise InputError(
                f"{path!r} is text that may refer to other files or URLs: got a format like VRT or WMS, expected a "
                "file with cells of its own. If you trust it, give it the extension of its format, such as .vrt."
            ) from error


def _is_markup(path: str) -> bool:
    """Whether a local file begins as XML or JSON."""
    try:
        with open(path, "rb") as file:
            return file.read(64).lstrip().startswith((b"<", b"{"))
    except OSError:
        return False


def little_cache() -> rasterio.Env:
    """Context in which GDAL caches 64 MiB of blocks, instead of 5 % of the memory."""
    return rasterio.Env(GDAL_CACHEMAX=2**26)


def open_gdal(
    path: str | Path, chunks: Any = "auto", bands: Sequence[int] | None = None, nodata: float | None = None
) -> xr.Dataset:
    """Open a raster lazily without decoding: values as stored, nodata and packing in attrs.

    The Dataset has one variable, on ``(band, y, x)`` or, for a single band, ``(y, x)``. Missing is what GDAL masks: the
    values are floats with NaN there if the file has masks, an alpha band (which is no band of the variable), a nodata
    value of floats, which GDAL compares with a tolerance, or different ones by band. Bands of different scales and
    offsets are in their units already, see :meth:`geonp.io.bands.Bands.unpacked`. Descriptions of several bands are the
    coordinate ``band_name``. A raster without a transform has no coordinates; ground control points stay in the
    variable of the CRS. An attribute says that the values are classes, see :data:`geonp.raster.metadata.THEMATIC`.
    Raises InputError if the file contains several rasters, or bands that cannot be read as one array, or refers to
    other files although its name does not say so.

    Parameters
    ----------
    path : str or path
        Any raster of GDAL, as GDAL names it.
    chunks : "auto" or None
        Dask arrays, or lazy arrays of xarray.
    bands : sequence of int, optional
        Bands to read, counted from 1. By default all but alpha bands.
    nodata : float, optional
        If given, the nodata values of the file do not count; the caller declares it.
    """
    with opened(str(path)) as file:
        if file.count == 0:
            raise InputError(
                f"{str(path)!r} contains several rasters: got {file.subdatasets}, expected one. Name one of them."
            )
        if len(file.subdatasets) > 1:
            others = ", ".join(file.subdatasets[1:21])
            warn(f"{str(path)!r} contains {len(file.subdatasets)} rasters, and the first is read. Others: {others}.")
            path = file.subdatasets[0]  # rioxarray would open all of them
        of = Bands.of(file, str(path), bands)
        tags, first, transform = set(file.tags()), file.tags(1), file.transform
        misnamed = file.crs is None and not _is_crs(file.tags().get("crs"))
        described = file.descriptions
        descriptions = [described[number - 1] for number in of.numbers]
        said = read_tags(file, of.numbers, of.masked_dtype)
        for number, xml in of.categories.items():
            said["bands"][number]["categories"] = xml
        warn_of_alpha(file)
        mixed = len(set(file.dtypes)) > 1
    said["alpha"] = of.stored_alpha(os.path.abspath(path) if os.path.exists(path) else str(path))
    da = _values(path, of, chunks, nodata is None, mixed, misnamed)
    attrs = {key: value for key, value in da.attrs.items() if not _STALE_TAGS.match(key)}
    file_attrs = {key: value for key, value in attrs.items() if key in tags}
    # rioxarray gives all bands the tags of the first; those of HDF5 may hold nodata and packing
    known = ("_FillValue", "missing_value", *PACKING)
    shared = dict(
        set.intersection(*({*band["tags"].items(), ("units", band["unit"])} for band in said["bands"].values()))
    )
    attrs = {k: v for k, v in attrs.items() if k not in first or k in known or shared.get(k) == first[k]}
    da.attrs = {k: v for k, v in attrs.items() if k not in tags and not (k in PACKING and v == PACKING[k])}
    da.attrs.pop("units", None)
    if units := shared.get("units") or shared.get("Units"):  # the latter in HDF-EOS5
        da.attrs["units"] = units
    if any(descriptions):
        da.attrs.pop("long_name", None)
        if not of.single:
            names = [text or f"band {n}" for n, text in zip(of.numbers, descriptions, strict=True)]
            da = da.assign_coords(band_name=("band", np.array(names, object)))
    placed = [name for name in ("y", "x") if name in da.coords]
    if transform.is_identity:
        da = da.drop_vars(placed)
    else:
        for name in placed:
            da[name].encoding[ASCENDS] = (transform.e if name == "y" else transform.a) > 0
    if of.single:
        da = da.squeeze("band", drop=True)
    label = (descriptions[0] if of.single else None) or Path(path).stem
    da.attrs.setdefault("long_name", label)
    name = re.sub(r"\W+", "_", label).strip("_")
    # a file may have the name of a coordinate
    name = UNNAMED if name in {"", *da.coords, *da.dims} else name
    da.encoding[GDAL_METADATA] = said
    return of.thematic(da).to_dataset(name=name).assign_attrs(file_attrs)


def _is_crs(tag: str | None) -> bool:
    """Whether a tag ``crs``, which rioxarray takes for the CRS of a file without one, is absent or a CRS."""
    if tag is None:
        return True
    try:
        CRS.from_user_input(tag)
    except (CRSError, ValueError):
        return False
    return True


def _values(path: str | Path, of: Bands, chunks: Any, declared: bool, mixed: bool, misnamed: bool) -> xr.DataArray:
    """The bands of a raster on ``(band, y, x)``; with `declared`, their own nodata values count.

    A raster whose tag ``crs`` is `misnamed` is read with a CRS that rioxarray can read, which is then removed.
    """
    if os.path.exists(path):  # the workers of a cluster may have another working directory
        path = os.path.abspath(path)
    masked = of.masked or (
        declared and not of.wide_nodata and (of.inexact_nodata or not (of.one_nodata and of.one_packing))
    )

    def read(masked: bool, chunks: Any, numbers: Sequence[int] = of.numbers) -> xr.DataArray:
        chosen = [f"bands={','.join(map(str, numbers))}"] if mixed else []
        given = [f"a_srs={_LOCAL}"] if misnamed else []
        place: Any = f"vrt://{path}?{'&'.join(chosen + given)}" if chosen + given else path
        options: Any = {"cache": False, "masked": masked, "mask_and_scale": False, "chunks": chunks}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(Scales|Offsets) differ across bands")
            warnings.filterwarnings("ignore", LOST_IN_CF)
            # GDAL's drivers of NetCDF and HDF5 give the variable its own name
            # before version 2026.7, xarray asks the file system for the age of each path, also of GDAL's own
            with nullcontext(place) if os.path.exists(place) else rasterio.open(place) as source:
                ds = xr.open_dataset(source, engine="rasterio", default_name="band_data", **options)
            da = ds["band_data"] if "band_data" in ds else next(iter(ds.data_vars.values()))
        return da if mixed else da.isel(band=[number - 1 for number in numbers])

    da = read(masked, chunks)
    if "dtype" in da.encoding:
        da.encoding["dtype"] = np.dtype(da.encoding["dtype"])
    layout = None if chunks is None else da.chunksizes
    if declared and of.wide_nodata and not masked:
        da = of.marked(read(False, None), read(True, None))
    if of.alpha and not of.alpha_applied:
        da = of.opaque(da if layout is None else read(True, None), read(False, None, of.alpha))
    if not of.one_packing:
        da = of.unpacked(da if layout is None or da.chunks is None else read(masked, None))
    if mixed:
        da = da.assign_coords(band=of.numbers)
    da = of.described(da)
    if misnamed:
        mapping = da.coords["spatial_ref"]
        kept = {key: mapping.attrs[key] for key in ("GeoTransform", "gcps") if key in mapping.attrs}
        da = da.assign_coords(spatial_ref=mapping.drop_attrs().assign_attrs(kept))
    return da if layout is None or da.chunks is not None else da.chunk(layout)
