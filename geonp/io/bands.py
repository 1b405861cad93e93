"""Bands of a GDAL raster: which cells GDAL takes for missing, and scale and offset of each band."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
import xarray as xr
from rasterio._err import CPLE_BaseError
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import NodataShadowWarning, NotGeoreferencedWarning, RasterioError
from rasterio.io import MemoryFile
from xarray.backends import BackendArray
from xarray.core import indexing

from geonp.errors import InputError
from geonp.io.alpha import alpha_bands, as_integers, as_values
from geonp.raster.arrays import Array
from geonp.raster.elementwise import elementwise
from geonp.raster.metadata import PACKED_BANDS, THEMATIC
from geonp.raster.nodata import EXACT, PACKING, holds

_BAND = re.compile(r'<VRTRasterBand [^>]*\bband="(\d+)".*?</VRTRasterBand>', re.DOTALL)
_CATEGORIES = re.compile(
    r"<CategoryNames>.*?</CategoryNames>"
    r"|<GDALRasterAttributeTable(?![^>]*athematic).*?</GDALRasterAttributeTable>",
    re.DOTALL,
)
_CLASSIFIED = {"VS_BOOLEAN", "VS_NOMINAL", "VS_ORDINAL", "VS_LDD"}
"""Value scales of PCRaster whose values are classes; GDAL keeps them as a tag of the file in other formats."""


@dataclass(frozen=True)
class Bands:
    """Metadata of the bands of a file that are read.

    Attributes
    ----------
    numbers : list of int
        Numbers of the bands, counted from 1.
    dtypes : list of str
        Dtypes of these bands.
    nodata, scales, offsets : list of float
        Nodata value of each band, None where there is none; scale and offset.
    masked : bool
        Whether a mask or an alpha band, of a band or of the file, marks missing cells.
    classes : bool
        Whether a palette, category names or the type of the layer say that the values are classes.
    single : bool
        Whether the file has no other bands of values.
    alpha : tuple of int
        Numbers of alpha bands.
    alpha_applied : bool
        Whether GDAL masks by them.
    categories : mapping
        Names of categories and attribute tables of classes by number of the band, as XML of GDAL.
    """

    numbers: list[int]
    dtypes: list[str]
    nodata: list[float | None]
    scales: list[float]
    offsets: list[float]
    masked: bool
    classes: bool
    single: bool
    alpha: tuple[int, ...] = ()
    alpha_applied: bool = False
    categories: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, file: rasterio.DatasetReader, path: str, chosen: Sequence[int] | None) -> Bands:
        """Read the metadata of the `chosen` bands, by default of all but those of alpha, which are masks.

        Raises InputError for a band that does not exist or is one of alpha, and for bands of different dtypes.
        """
        # each of these attributes of rasterio reads all bands, of which there may be thousands
        flags, interpretations, dtypes = file.mask_flag_enums, file.colorinterp, file.dtypes
        alpha = alpha_bands(file)
        # GDAL masks by the alpha band of one or of three bands without a nodata value
        applied = any(MaskFlags.alpha in kinds for kinds in flags)
        numbers = [n for n in file.indexes if n not in alpha] if chosen is None else list(chosen)
        if missing := [n for n in numbers if not 1 <= n <= file.count]:
            raise InputError(
                f"No band {', '.join(map(str, missing))}: the raster has bands 1 to {file.count}. Correct bands "
                "(--bidx)."
            )
        if masks := [n for n in numbers if n in alpha]:
            others = ", ".join(str(n) for n in file.indexes if n not in alpha)
            raise InputError(
                f"Band {', '.join(map(str, masks))} is an alpha band, which says where the others are missing: "
                f"expected bands of values, {others}. Correct bands (--bidx). If it is a band of values, correct the "
                "file: "
                f"{as_values(file)}"
            )
        dtypes, flags, interpretations, nodata, scales, offsets = (
            [values[n - 1] for n in numbers]
            for values in (dtypes, flags, interpretations, file.nodatavals, file.scales, file.offsets)
        )
        if len(set(dtypes)) > 1:
            got = ", ".join(f"{n} {dtype}" for n, dtype in zip(numbers, dtypes, strict=True))
            raise InputError(
                f"The bands of {path!r} have different dtypes: got {got}, expected one dtype. Choose bands that agree "
                "with bands (--bidx)."
            )
        tags = [file.tags(n) for n in numbers]
        named = _categories(path) if np.dtype(dtypes[0]).kind in "iu" else {}
        categories = {n: named[n] for n in numbers if n in named}
        return cls(
            numbers,
            dtypes,
            nodata,
            scales,
            offsets,
            bool(alpha)
            or any(
                not {MaskFlags.all_valid, MaskFlags.nodata} & set(kinds) or MaskFlags.per_dataset in kinds
                for kinds in flags
            ),
            ColorInterp.palette in interpretations
            or any(str(t.get("LAYER_TYPE", "")).lower() == "thematic" for t in [file.tags(), *tags])
            or file.tags().get("PCRASTER_VALUESCALE") in _CLASSIFIED
            or os.path.exists(f"{path}.vat.dbf")  # False for a name that is too long
            or bool(categories),
            file.count - len(alpha) == 1,
            tuple(alpha),
            applied,
            categories,
        )

    @property
    def one_nodata(self) -> bool:
        """Whether all bands have the same nodata value, or none."""
        return len({repr(value) for value in self.nodata}) == 1

    @property
    def one_packing(self) -> bool:
        """Whether all bands have the same scale and offset."""
        return len(set(zip(self.scales, self.offsets, strict=True))) == 1

    @property
    def inexact_nodata(self) -> bool:
        """Whether a nodata value is one of floats, which GDAL compares with a tolerance."""
        return self.dtypes[0].startswith("float") and any(value is not None for value in self.nodata)

    @property
    def wide_nodata(self) -> bool:
        """Whether a nodata value is an integer that float64, in which it is reported, cannot hold."""
        return self.dtypes[0] in {"int64", "uint64"} and any(abs(value or 0) >= EXACT for value in self.nodata)

    @property
    def masked_dtype(self) -> str | None:
        """Dtype of integers whose missing cells a mask marks, and no nodata value; None for all other bands."""
        unmarked = self.masked and all(value is None for value in self.nodata)
        return self.dtypes[0] if unmarked and np.dtype(self.dtypes[0]).kind in "iu" else None

    def stored_alpha(self, path: str) -> dict[str, Any] | None:
        """Where the alpha band is; None if there is none."""
        return {"path": path, "number": self.alpha[0]} if self.alpha else None

    def described(self, da: xr.DataArray) -> xr.DataArray:
        """`da` with nodata value, scale and offset in attrs if they are those of all bands, and without if not.

        Integers cannot hold bands of which these differ, and nodata values that they cannot hold have no effect.
        """
        fill, dtype = self.nodata[0], np.dtype(self.dtypes[0])
        result, known = da.copy(), ("_FillValue", *PACKING)
        result.attrs = {key: value for key, value in da.attrs.items() if key not in ("scales", "offsets", *known)}
        one = self.one_nodata and self.one_packing
        gone = ("rasterio_dtype", *known, *(() if one and not self.masked_dtype else ("dtype",)))
        result.encoding = {key: value for key, value in da.encoding.items() if key not in gone}
        if one and fill is not None and holds(dtype, fill):
            result.attrs["_FillValue"] = da.attrs["_FillValue"] if self.wide_nodata else dtype.type(fill)
        if self.one_packing:
            result.attrs |= dict(zip(PACKING, (self.scales[0], self.offsets[0]), strict=True))
        return result

    def thematic(self, da: xr.DataArray) -> xr.DataArray:
        """`da` with the attribute that says that its values are classes, where they are."""
        return da.assign_attrs(THEMATIC) if self.classes else da

    def marked(self, da: xr.DataArray, masked: xr.DataArray) -> xr.DataArray:
        """64-bit integers ``(band, y, x)`` with a nodata value that float64 can hold where `masked` is NaN."""
        value = np.dtype(self.dtypes[0]).type(EXACT - 1)
        made = elementwise(partial(_marked, value=value), value.dtype, da.variable, masked.variable)
        return _replaced(da, made._data).assign_attrs(_FillValue=value)

    def opaque(self, da: xr.DataArray, alpha: xr.DataArray) -> xr.DataArray:
        """Floats ``(band, y, x)`` with NaN where one of the alpha bands ``(band, y, x)`` is 0."""
        return _replaced(da, indexing.LazilyIndexedArray(_Opaque(da.variable, alpha.variable)))

    def unpacked(self, da: xr.DataArray) -> xr.DataArray:
        """`da` ``(band, y, x)`` in the units of each band, as float64, with the encoding :data:`PACKED_BANDS`."""
        scales, offsets = (xr.Variable(("band",), np.array(each)) for each in (self.scales, self.offsets))
        result = _replaced(da, elementwise(_unpacked, np.float64, da.variable, scales, offsets)._data)
        encoding = dict(zip(self.numbers, zip(self.scales, self.offsets, strict=True), strict=True))
        fill = self.nodata[0] if self.one_nodata else None
        result.encoding[PACKED_BANDS] = {"dtype": self.dtypes[0], "_FillValue": fill, "bands": encoding}
        return result


def packed(da: xr.DataArray, stored: Mapping[str, Any], *, integers: bool) -> xr.DataArray:
    """One band that :meth:`Bands.unpacked` has unpacked, in stored units, with its scale and offset as attributes.

    `stored` is its encoding :data:`~geonp.raster.metadata.PACKED_BANDS`. With `integers` the dtype is that in which it
    was stored, otherwise one of floats.
    """
    scale, offset = stored["bands"][int(da.coords["band"])]
    # float64 has 16 digits: rounding removes what unpacking added
    values: xr.DataArray = ((da - offset) / scale).round(6)
    if integers:
        fill = np.dtype(stored["dtype"]).type(stored["_FillValue"])
        integer = xr.apply_ufunc(as_integers, values, fill, dask="parallelized", output_dtypes=[fill.dtype])
        values = integer.assign_attrs(_FillValue=fill)
    return values.assign_attrs({**da.attrs, **values.attrs, "scale_factor": scale, "add_offset": offset})


def _categories(path: str) -> dict[int, str]:
    """Names of categories and tables of classes by band; rasterio has access to them by their text in a VRT only."""
    with MemoryFile(ext="vrt") as described:
        rasterio.shutil.copy(path, described.name, driver="VRT")
        described.seek(0)
        text = described.read().decode("utf-8", "replace")
    found = {int(band[1]): "".join(_CATEGORIES.findall(band[0])) for band in _BAND.finditer(text)}
    return {number: xml for number, xml in found.items() if xml}


def with_palettes(ds: xr.Dataset) -> xr.Dataset:
    """Mark arrays that rioxarray has opened as classes where their file says so; rioxarray does not read it."""
    found = {}
    for name, da in ds.data_vars.items():
        path, dtype = (da.encoding.get(key) for key in ("source", "rasterio_dtype"))
        if isinstance(path, str) and dtype is not None and np.dtype(dtype).kind in "iu":
            with warnings.catch_warnings(), suppress(RasterioError, CPLE_BaseError, InputError):
                warnings.simplefilter("ignore", NotGeoreferencedWarning)
                with rasterio.open(path) as file:
                    if Bands.of(file, path, None).classes:
                        found[name] = da.assign_attrs(THEMATIC)
    return ds.assign(found)


def _replaced(da: xr.DataArray, values: Any) -> xr.DataArray:
    """`da` with other, lazy values."""
    result = da.copy(data=values)
    result.encoding = dict(da.encoding)
    return result


def _unpacked(values: Array, scale: Array, offset: Array) -> Array:
    """Values in the units of their bands."""
    return values.astype(np.float64) * scale + offset


def _marked(values: Array, masked: Array, value: np.integer[Any]) -> Array:
    """Integers with one value wherever another array has NaN."""
    return np.where(np.isnan(masked), value, values)


class _Opaque(BackendArray):
    """Floats ``(band, y, x)`` with NaN wherever a band of another array is 0, which are read when they are indexed."""

    def __init__(self, source: xr.Variable, alpha: xr.Variable) -> None:
        self.source, self.alpha, self.shape, self.dtype = source, alpha, source.shape, source.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Array:
        seen = self.alpha[:, *key[1:]].values.all(axis=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NodataShadowWarning)  # that the alpha band is not applied: it is, here
            values = self.source[key].values
        return np.where(seen, values, np.nan).astype(self.dtype)
