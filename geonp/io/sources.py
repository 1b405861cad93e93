"""Sources of rasters: files, datasets in files, archives and stores; and errors of readers.

A name is that of a file, a store, a URL, a file in an archive, or a dataset inside a file as GDAL names it, such as
``NETCDF:file.nc:variable``.
"""

from __future__ import annotations

import re
import tarfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from rasterio.errors import NotGeoreferencedWarning

from geonp.errors import GeonpError, InputError, MissingFileError, reason
from geonp.io.engines import engine_of
from geonp.io.location import is_remote
from geonp.io.polygons import VECTOR_FILES
from geonp.io.stores import Store
from geonp.io.text import TEXT_FILES

NETCDF = (".cdf", ".nc", ".nc4")
"""Extensions of NetCDF files, for output too."""
PARQUET_FILES = (".parquet", ".geoparquet", ".pq")
"""Endings of the names of Parquet files."""
TABLE_FILES = (*TEXT_FILES, *PARQUET_FILES, *VECTOR_FILES)
"""Endings of the names of files that hold tables, and never rasters."""

_NETCDF = (b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF\r\n\x1a\n")  # NetCDF 3, 5 and 4
_TIFF = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
_HANDLERS = {"zip": "/vsizip/", "tar": "/vsitar/", "gzip": "/vsigzip/"}
_ARCHIVES = {".zip": "zip", ".tar": "tar", ".tgz": "tar", ".tar.gz": "tar", ".gz": "gzip"}
_RASTERS = (".tif", ".tiff", ".vrt", ".img", ".jp2", ".asc", ".grd", ".bil", ".dem", ".hgt", ".png", ".grib", ".grib2")


@dataclass(frozen=True)
class Source:
    """The source of a raster.

    Attributes
    ----------
    reader
        The library that reads it.
    path
        What this library opens.
    variable
        Path of a variable in the file, such as ``group/name``; empty for all of them.
    """

    reader: Literal["zarr", "netcdf", "gdal", "grib", "kerchunk", "icechunk"]
    path: str
    variable: str = ""

    def as_hdf5(self, paths: Sequence[str]) -> Source:
        """The same file, or the variable at the only path, read by GDAL's HDF5 driver."""
        name = paths[0].strip("/").replace(" ", "_") if len(paths) == 1 else ""
        return Source("gdal", f'HDF5:"{self.path}"://{name}' if name else self.path)

    @property
    def file(self) -> str:
        """The local file that holds the raster, which may be an archive, or else the path or URL."""
        bare = re.sub(r"^(/vsi\w+/)+", "", self.path)
        inner = re.sub(r'^[A-Za-z]\w+:(?!//)(\d+:)?"?|"?:.*$', "", self.path)
        parents = [str(parent) for parent in Path(bare).parents]
        return next((name for name in (self.path, bare, inner, *parents) if Path(name).is_file()), self.path)


def source_of(place: str, options: dict[str, Any]) -> Source:
    """Find out what the name of a raster refers to; `options` are those of the file system of a URL.

    Raises MissingFileError if there is no such file. Raises InputError if an archive holds no raster, or several, or
    for a NetCDF file that is not a local one.
    """
    scheme, rest = _parts(place)
    if place.startswith("/vsi") or scheme == "vrt" or "+" in scheme:
        return _gdal(re.sub(r"^/vsicurl/(?=https?://)", "", place))
    if scheme in _HANDLERS and rest:
        archive, _, member = rest.partition("!")
        return _gdal(f"{_HANDLERS[scheme]}{archive}/{member.lstrip('/')}".rstrip("/"))
    if re.match(r"[A-Za-z]\w+:(?!//)", place) and not Path(place).exists():
        return _subdataset(place)
    if is_remote(place):
        return _remote(place, scheme, options)
    return _local(place)


def _parts(place: str) -> tuple[str, str]:
    """The scheme of a URL, and what follows; a path has no scheme, but may contain a ``+``."""
    scheme, mark, rest = place.partition("://")
    return (scheme, rest) if mark else ("", place)


def may_be_store(place: str) -> bool:
    """Whether a name may be that of a Zarr store: no archive, dataset inside a file, or URL of a raster file."""
    scheme, _ = _parts(place)
    special = place.startswith("/vsi") or scheme in {"vrt", *_HANDLERS} or "+" in scheme
    return not special and not re.match(r"[A-Za-z]\w+:(?!//)", place) and not place.lower().endswith(_RASTERS)


def _gdal(path: str) -> Source:
    if path.lower().removesuffix(".gz").endswith(NETCDF):
        raise InputError(f"NetCDF can only be read from a local file: got {path!r}. Download or unpack it first.")
    return Source("gdal", path)


def _subdataset(place: str) -> Source:
    """A dataset inside a file; of NetCDF by the netCDF library, which keeps its coordinates."""
    driver, _, rest = place.partition(":")
    match = re.fullmatch(r'"?(?P<path>.+?)"?:/{0,2}(?P<variable>[^:"]+)', rest)
    if match and driver.lower() in {"netcdf", "hdf5"} and Path(match["path"]).is_file():
        return Source("netcdf", match["path"], match["variable"])
    return Source("gdal", place)


def _remote(place: str, scheme: str, options: dict[str, Any]) -> Source:
    path = re.split(r"[?#]", place)[0].rstrip("/").lower()
    is_raster = path.endswith(_RASTERS) or (scheme in {"http", "https"} and not path.endswith((".zarr", *NETCDF)))
    if not is_raster and Store(place, options).exists():
        return Source("zarr", place)
    if path.endswith(".zarr") or not (is_raster or PurePosixPath(path).suffix):
        raise MissingFileError(
            f"No such raster: got {place!r}, expected a file or a Zarr folder. Check the URL and storage_options "
            "(--storage-option)."
        )
    return _gdal(place)


def _local(place: str) -> Source:
    path = Path(place.removeprefix("file://").removeprefix("local://"))
    if path.is_dir() and (path.suffix.lower() == ".zarr" or Store(str(path)).exists()):
        return Source("zarr", place)
    if not path.exists():
        raise MissingFileError(f"No such raster: got {place!r}, expected a file or a Zarr folder. Check the path.")
    if not (path.is_dir() or path.is_file()):  # readers would wait for ever, and could not be interrupted
        raise InputError(f"{place!r} is neither a file nor a folder: got a pipe or a device. Write it to a file first.")
    name = path.name.lower()
    if (engine := engine_of(path)) is not None:
        return Source(engine, str(path))
    if _begins(path, _NETCDF) or (name.endswith(NETCDF) and not _begins(path, _TIFF)):
        return Source("netcdf", str(path))
    for suffix, kind in () if path.is_dir() else _ARCHIVES.items():
        if name.endswith(suffix) and suffix == (".tar.gz" if name.endswith(".tar.gz") else suffix):
            return _archive(path, kind)
    return Source("zarr" if path.suffix.lower() == ".zarr" else "gdal", str(path))


def _begins(path: Path, marks: tuple[bytes, ...]) -> bool:
    """Whether a file begins with one of some marks of formats, whatever its name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8).startswith(marks)


def _archive(path: Path, kind: str) -> Source:
    """The only raster in an archive."""
    if kind == "gzip":
        return _gdal(f"/vsigzip/{path}")
    if kind == "zip":
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    else:
        with tarfile.open(path) as tar:
            names = tar.getnames()
    rasters = [name for name in names if name.lower().endswith((*_RASTERS, *NETCDF))]
    if len(rasters) == 1:
        return _gdal(f"{_HANDLERS[kind]}{path}/{rasters[0]}")
    listed = ", ".join(f"{kind}://{path}!{name}" for name in rasters[:20])
    raise InputError(
        f"{str(path)!r} holds {len(rasters)} rasters: got {listed or ', '.join(names[:20]) or 'no files'}, expected "
        f"one. {'Name one of them.' if rasters else 'Unpack it first.'}"
    )


_HEADERS = (".sgrd", ".hdr", ".rdc", ".prj", ".tfw")
_CELLS = (".sdat", ".img", ".dat", ".bil", ".bip", ".bsq", ".flt", ".bin", ".raw", ".rst", ".tif", ".tiff", "")
"""Endings of files that describe cells, and of the files that hold them."""


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Convert the errors of readers, of whatever type, to an InputError about the raster at `place`."""
    try:
        with warnings.catch_warnings():
            # geonp works in cells, and needs no georeference
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            yield
    except (GeonpError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"Not a raster that can be read: got {place!r}, expected GeoTIFF or another GDAL raster, NetCDF "
            f"({', '.join(NETCDF)}) or Zarr. The reader reports: {reason(error)}. {_hint(place)}"
        ) from error


def _hint(place: str) -> str:
    """What to do about a file that cannot be read."""
    if place.lower().endswith(TABLE_FILES):
        return "Tables of measurements are for geonp grid and geonp evaluate."
    path = Path(place)
    if path.suffix.lower() in _HEADERS and path.parent.is_dir():
        beside = [one for one in path.parent.iterdir() if one.stem == path.stem and one.suffix.lower() in _CELLS]
        named = f": {str(min(beside))!r}" if beside else ""
        return f"It describes cells that are in another file of its folder. Give that file{named}."
    if _begins(path, (b"<!", b"<html", b"<HTML")):
        return "It is a web page, such as an error or login page. Download the file again."
    if _begins(path, (b"\x0e\x03\x13\x01",)):
        return "It is HDF4, which GDAL in the wheels of rasterio does not read, and that of conda-forge does."
    return "Is the file complete?"
