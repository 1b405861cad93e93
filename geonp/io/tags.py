"""Metadata of GDAL rasters: units, tags and colours of bands, and domains such as RPCs.

A GeoTIFF out keeps it. The encoding :data:`~geonp.raster.metadata.GDAL_METADATA` of a variable holds it until then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rasterio
import xarray as xr
from rasterio.enums import ColorInterp

from geonp.errors import warn
from geonp.io.layouts import read_layout
from geonp.raster.dimensions import data_variables
from geonp.raster.metadata import GDAL_METADATA

_BAND_TAGS = ("standard_name", "cell_methods")
_STALE = re.compile(r"STATISTICS_|GRIB_|NETCDF_|OVR_|_FillValue$|scale_factor$|add_offset$")
_COUNTED = r"<GDALRasterAttributeTable(?:(?!</GDALR).)*<Usage>1</Usage>.*?</GDALRasterAttributeTable>"
_LAYOUT = re.compile(r"IMAGE_STRUCTURE|rio_|DERIVED_SUBDATASETS|SUBDATASETS|GEOLOCATION|COLOR_PROFILE|TIFF$|xml:|json:")


def read_tags(file: rasterio.DatasetReader, numbers: Sequence[int], masked: str | None) -> dict[str, Any]:
    """Read the metadata of the bands `numbers`; `masked` is the dtype of integers whose missing cells a mask marks."""
    # each of these reads all bands, of which there may be thousands
    units, colours, descriptions = file.units, file.colorinterp, file.descriptions
    return {
        "shape": file.shape,
        "masked": masked,
        "layout": read_layout(file),
        "domains": {name: file.tags(ns=name) for name in file.tag_namespaces() if not _LAYOUT.match(name)},
        "bands": {
            n: {
                "tags": {key: value for key, value in file.tags(n).items() if not _STALE.match(key)},
                "description": descriptions[n - 1],
                "unit": units[n - 1],
                "colour": colours[n - 1].name,
                **({"palette": file.colormap(n)} if colours[n - 1] == ColorInterp.palette else {}),
            }
            for n in numbers
        },
    }


def layer_tags(da: xr.DataArray, layer: xr.DataArray) -> Mapping[str, Any]:
    """Metadata of the band that a layer of `da` was; empty if it was none."""
    bands: Mapping[int, Mapping[str, Any]] = da.encoding.get(GDAL_METADATA, {}).get("bands", {})
    number = layer.coords["band"].item() if "band" in layer.coords else next(iter(bands), 0)
    return bands.get(number, {}) if "band" in layer.coords or len(bands) == 1 else {}


def write_tags(
    file: rasterio.io.DatasetWriter, ds: xr.Dataset, layers: Sequence[tuple[str, xr.DataArray, Mapping[str, Any]]]
) -> None:
    """Write tags, units and colours of a file and its layers: description, array, and what :func:`layer_tags` gives."""
    tags = {key: value for key, value in ds.attrs.items() if isinstance(value, str | int | float)}
    if len(str(tags.get("NODATA_VALUES")).split()) != file.count:  # GDAL wants one for each band
        tags.pop("NODATA_VALUES", None)
    if file.crs is None:  # rioxarray takes a tag of this name for the CRS, and cannot open a file with another text
        tags.pop("crs", None)
    file.update_tags(**tags)
    for said in (da.encoding.get(GDAL_METADATA) for da in data_variables(ds).values()):
        for name, domain in said["domains"].items() if said is not None and said["shape"] == file.shape else ():
            file.update_tags(ns=name, **domain)
    for band, (description, da, about) in enumerate(layers, start=1):
        file.set_band_description(band, description)
        file.set_band_unit(band, str(about.get("unit") or da.attrs.get("units", "")))
        own = {key: da.attrs[key] for key in _BAND_TAGS if key in da.attrs}
        file.update_tags(band, **{**about.get("tags", {}), **own})
    colours = [ColorInterp[about.get("colour", "undefined")] for _, _, about in layers]
    if {ColorInterp.red, ColorInterp.alpha} & set(colours):
        file.colorinterp = colours
    if len(layers) == 1 and "palette" in layers[0][2] and file.dtypes[0] in ("uint8", "uint16"):
        file.write_colormap(1, layers[0][2]["palette"])


def write_categories(path: Path, layers: Sequence[tuple[str, xr.DataArray, Mapping[str, Any]]]) -> None:
    """Write the names of categories and attribute tables of layers beside a GeoTIFF, where GDAL keeps them.

    Tables with counts of cells, which filling changes, are left out with a warning.
    """
    bands, sidecar = [], path.with_name(f"{path.name}.aux.xml")
    for band, (_, _, about) in enumerate(layers, start=1):
        kept, counted = re.subn(_COUNTED, "", about.get("categories", ""), flags=re.DOTALL)
        if counted:
            warn(f"Left out of the GeoTIFF: the attribute table of band {band}, which counts cells.")
        if kept:
            bands.append(f'<PAMRasterBand band="{band}">{kept}</PAMRasterBand>')
    if bands:
        text = sidecar.read_text(encoding="utf-8") if sidecar.exists() else "<PAMDataset></PAMDataset>"
        sidecar.write_text(text.replace("</PAMDataset>", "".join([*bands, "</PAMDataset>"])), encoding="utf-8")


def warn_of_tags(ds: xr.Dataset) -> None:
    """Warn of metadata that NetCDF and Zarr do not keep.

    These are domains, palettes and names of categories, and tags and units that differ between bands.
    """
    lost: set[str] = set()
    for said in (da.encoding.get(GDAL_METADATA) for da in data_variables(ds).values()):
        if said is not None:
            lost |= set(said["domains"])
            lost |= {key for about in said["bands"].values() for key in ("palette", "categories") if key in about}
            bands = [{**about["tags"], "unit": about["unit"]} for about in said["bands"].values()]
            lost |= {key for about in bands for key in about if any(other.get(key) != about[key] for other in bands)}
    if lost:
        warn(f"Left out of the output, because only a GeoTIFF (.tif) keeps it: {', '.join(sorted(lost))}.")
