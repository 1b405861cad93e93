"""Raster files out: GeoTIFF, NetCDF, Zarr.

:func:`write_raster` writes to a temporary sibling of the output, which is renamed when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Literal

import numpy as np
import xarray as xr
from pyproj import CRS
from rasterio.errors import RasterioError

from geonp.errors import GeonpError, InputError, OutputError, reason, warn
from geonp.io.attributes import require_storable, storable, with_storable_names, with_texts
from geonp.io.conventions import with_conventions
from geonp.io.geotiff import DRIVERS, creation_options_of, transform, write_geotiff
from geonp.io.journal import Journal
from geonp.io.layouts import OTHER_GROUPS, layout_of, netcdf_model, stored_like, zarr_format_of
from geonp.io.location import check_writable, require_apart, require_no_other, resolved, sync
from geonp.io.netcdf import write_netcdf
from geonp.io.nodata import warn_of_limits
from geonp.io.owner import here, named, note, owning, runs
from geonp.io.sources import NETCDF
from geonp.io.stores import Store, stored_once, to_zarr
from geonp.io.tags import warn_of_tags
from geonp.raster.crs import cf_attrs, grid_mapping_name, with_cf_crs, without_conventions
from geonp.raster.dimensions import data_variables, has_coordinate
from geonp.raster.grid import Grid
from geonp.raster.metadata import ASCENDS, GDAL_METADATA, PACKED_BANDS, as_dataset, with_crs_of_each
from geonp.raster.nodata import holds

_GEOTIFF = {".tif", ".tiff"}
# Files that GDAL reads beside a GeoTIFF: its CRS if GeoTIFF keys cannot hold it, overviews, masks.
_SIDECARS = (".aux.xml", ".ovr", ".msk", ".msk.ovr")
_OWNER = "owner.json"  # in the folder of a draft
_ENCODING_ATTRS = ("_FillValue", "scale_factor", "add_offset")
# Writers refuse, or wrongly apply, the chunks and compressors of another format.
_PORTABLE_ENCODING = {"dtype", *_ENCODING_ATTRS, "missing_value", "_Unsigned", "grid_mapping", "units", "calendar"} | {
    ASCENDS,
    GDAL_METADATA,
    PACKED_BANDS,
}


def check_output(path: str | os.PathLike[str], *, overwrite: bool = False, driver: str | None = None) -> None:
    """Check that a raster can be written to `path`, before work starts.

    Raises OutputError for an unknown extension, one that is not of `driver`, an output that exists (unless `overwrite`;
    a folder that is not a Zarr store is never overwritten), and a folder that does not exist or is not writable.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in {".zarr", *NETCDF, *_GEOTIFF}:
        expected = ", ".join([".zarr", *NETCDF, *sorted(_GEOTIFF)])
        raise OutputError(f"Unknown output format: got {str(path)!r}, expected a name that ends in {expected}.")
    if driver is not None and (suffix not in _GEOTIFF or driver not in DRIVERS):
        raise OutputError(
            f"No driver {driver!r} for {str(path)!r}: expected {' or '.join(DRIVERS)} with .tif or .tiff. "
            f"The extension alone chooses NetCDF and Zarr."
        )
    if path.exists() and not overwrite:
        raise OutputError(
            f"The output exists: {str(path)!r}. Choose another name, pass overwrite (--overwrite), or resume an "
            "unfinished .zarr (--resume)."
        )
    # a journal says that a job was killed before it had removed what was there
    ours = path.is_dir() and (Store(str(path)).exists() or Journal(str(path)).job() or not any(path.iterdir()))
    if path.is_dir() and not (suffix == ".zarr" and ours):
        raise OutputError(f"Not overwriting {str(path)!r}: expected a Zarr store, got another folder. Remove it first.")
    check_writable(path.parent, "Expected an existing, writable folder.")
    _check_name(path)


def _check_name(path: Path) -> None:
    """Check that the name of an output suits the file system and GDAL or NetCDF."""
    most = os.pathconf(path.parent, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
    if (room := most - len(os.fsencode(path.name)) - len(".journal")) < 0:
        raise OutputError(f"The name of the output is too long by {-room} bytes: {str(path)!r}. Choose a shorter one.")
    try:
        # the netCDF library is given the whole path
        str(path.absolute() if path.suffix.lower() in NETCDF else path).encode()
    except UnicodeEncodeError as error:
        raise OutputError(f"The output cannot be named {str(path)!r}: {reason(error)}.") from error


def write_raster(
    ds: xr.DataArray | xr.Dataset,
    path: str | os.PathLike[str],
    *,
    like: xr.Dataset | None = None,
    driver: Literal["COG", "GTiff"] | None = None,
    overwrite: bool = False,
    creation_options: Mapping[str, str] | None = None,
) -> None:
    """Compute `ds` and write it to `path`, which appears complete or not at all.

    All bands of a GeoTIFF have one dtype and one nodata value. If those of the variables differ, as for an integer
    raster with its standard error, all bands are floats, and the nodata value is NaN, or that of the values if it is
    negative, since no standard error or flag is. Bands are in the order of the variables and described by their names.

    Parameters
    ----------
    ds : DataArray or Dataset
        Variables on one grid; for GeoTIFF all of them on both spatial dimensions.
    path : str or path
        Output in an existing folder. The extension chooses the format: .zarr, .nc (.nc4, .cdf) or .tif (.tiff).
    like : Dataset, optional
        A raster that was opened by :func:`geonp.open_raster` from a file of the same format. The output is stored like
        this file: driver, blocks, compression and predictor, interleaving, bits, overviews, a mask, and descriptions
        of bands of a GeoTIFF; chunks, compression, nodata values, kind and unlimited dimensions of NetCDF and Zarr.
        Lossy compression is replaced by DEFLATE. Files do not say how overviews were computed: those of numbers are
        means.
    driver : {"COG", "GTiff"}, optional
        GDAL driver of a GeoTIFF. By default the driver of `like`, or else COG.
    overwrite : bool
        Replace an existing output once the new one is complete.
    creation_options : mapping of str to str, optional
        GDAL creation options of a GeoTIFF; for Zarr ``zarr_format``, ``"3"`` by default (GDAL before 3.11 reads format
        2 only).

    Raises
    ------
    OutputError
        If the format of `path` is unknown, if `path` exists and `overwrite` is not set, or if writing fails.
    InputError
        If the format cannot hold a variable, or for an unknown creation option.

    Examples
    --------
    >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
    >>> geonp.write_raster(geonp.infill(dem.where(dem < 30)), "filled.nc")
    >>> list(geonp.open_raster("filled.nc"))
    ['height', 'height_standard_error', 'height_fill_flag']
    """
    with written(ds, path, like=like, driver=driver, overwrite=overwrite, creation_options=creation_options):
        pass  # the output appears at the end of this


@contextmanager
def written(
    ds: xr.DataArray | xr.Dataset,
    path: str | os.PathLike[str],
    *,
    like: xr.Dataset | None = None,
    driver: Literal["COG", "GTiff"] | None = None,
    overwrite: bool = False,
    creation_options: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Write as :func:`write_raster` does; the output appears at the end of the context, and not if that fails.

    Nested contexts are the way to write several files, all or none.
    """
    path, ds = Path(path), as_dataset(with_cf_crs(ds))
    check_output(path, overwrite=overwrite, driver=driver)
    options = {key.upper(): value for key, value in (creation_options or {}).items()}
    _require_apart(ds, path)
    grid = Grid.from_xarray(ds)
    ds = for_files(ds, grid)
    warn_of_limits(ds)
    if path.suffix.lower() not in _GEOTIFF:
        warn_of_tags(ds)
        require_storable(ds)
        ds = with_storable_names(ds)
    with _replacing(path, overwrite=overwrite) as temporary:
        if path.suffix.lower() == ".zarr":
            _require_known(options, {"ZARR_FORMAT"}, "Zarr")
            ds = with_conventions(ds if like is None else stored_like(ds, like, "zarr"), grid)
            to_zarr(ds, temporary, mode="w", consolidated=True, zarr_format=_zarr_format(options, like))
        elif path.suffix.lower() in NETCDF:
            _require_known(options, set(), "NetCDF")
            if like is not None:
                ds = stored_like(ds, like, "netcdf")
                _warn_of_groups(like, path)
            write_netcdf(ds, temporary, netcdf_model(ds, like))
        else:
            if like is not None and "Conventions" not in like.attrs:
                ds.attrs.pop("Conventions", None)
            driver = driver or ("COG" if like is None else layout_of(like).get("driver", "COG"))
            _require_known(options, creation_options_of(driver), f"GDAL's {driver} driver")
            _warn_of_edges(ds, grid)
            write_geotiff(_on_grid(storable(ds), grid), grid, temporary, driver, options, like)
        yield


def for_files(ds: xr.Dataset, grid: Grid) -> xr.Dataset:
    """Copy of `ds` with chunks of one size, the CRS in a variable, and without the encoding of its earlier format."""
    # these may describe the raster that this one was cut from
    ds = without_conventions(with_texts(ds.copy()))
    ds = _with_axis_attrs(_with_grid_mapping(ds, grid), grid)
    even = {
        name: variable.chunk({dim: max(sizes) for dim, sizes in variable.chunksizes.items()})
        for name, variable in ds.variables.items()
        if variable.chunks is not None
    }
    ds = ds.assign(even)
    for name, variable in ds.variables.items():
        encoding = {key: value for key, value in variable.encoding.items() if key in _PORTABLE_ENCODING}
        if isinstance(encoding.get("dtype"), np.dtype) and encoding["dtype"].kind in "iuf":
            encoding["dtype"] = encoding["dtype"].newbyteorder("=")
        if name in ds.indexes:
            encoding["_FillValue"] = None
        elif variable.dtype.kind in "iu" and not holds(variable.dtype, encoding.get("_FillValue", 0)):
            del encoding["_FillValue"]
        if (several := np.ravel(encoding.get("missing_value", []))).size and encoding.get("_FillValue", 0) is not None:
            # decoded cells of all nodata values are NaN, which is written as one of them
            fill = encoding.setdefault("_FillValue", several[0])
            if not np.array_equal(several, [fill], equal_nan=several.dtype.kind == "f"):
                del encoding["missing_value"]
        linked = {key: variable.encoding[key] for key in ("bounds", "climatology") if key in variable.encoding}
        variable.attrs = {key: name for key, name in linked.items() if name in ds.variables} | variable.attrs
        variable.encoding = encoding
    mapping = grid_mapping_name(ds)
    if mapping is not None and (affine := transform(ds, grid)) is not None:
        ds[mapping].attrs["GeoTransform"] = " ".join(map(repr, affine.to_gdal()))
    return ds


def _require_apart(ds: xr.Dataset, path: Path) -> None:
    """Check that the folder at `path`, which is replaced by the output once it is complete, holds no input beside."""
    encodings = [ds.encoding, *(variable.encoding for variable in ds.variables.values())]
    for source in {str(encoding["source"]) for encoding in encodings if "source" in encoding}:
        if path.is_dir() and resolved(source) != resolved(str(path)):
            require_apart(str(path), {"input": source})


def _with_grid_mapping(ds: xr.Dataset, grid: Grid) -> xr.Dataset:
    """Add a CF grid mapping if the CRS is in an attribute, where few readers look for it."""
    if grid.crs is None or grid_mapping_name(ds) is not None:
        return ds
    crs = CRS.from_wkt(grid.crs)
    ds = ds.assign_coords(spatial_ref=((), np.int32(0), {**cf_attrs(crs), "spatial_ref": grid.crs}))
    for da in data_variables(ds).values():
        if grid.spans(da):
            da.encoding["grid_mapping"] = "spatial_ref"
    return ds


def _warn_of_edges(ds: xr.Dataset, grid: Grid) -> None:
    """Warn of coordinates that lie at the edges of cells by their CF bounds: a GeoTIFF takes them for centres."""
    for dim in grid.dims:
        name = str({**ds[dim].encoding, **ds[dim].attrs}.get("bounds"))
        if name not in ds.variables or ds[name].shape != (ds.sizes[dim], 2):
            continue
        edges = np.asarray(ds[name].values, np.float64)
        from_middle = np.abs(ds[dim].values - edges.mean(1)) / np.maximum(np.abs(np.ptp(edges, axis=1)), 1e-300)
        if np.median(from_middle) > 0.25:
            warn(
                f"The coordinate {dim!r} is at the edges of its cells according to {name!r}, but a GeoTIFF uses it as "
                "their centres: locations are off by half a cell. Shift it: "
                f"ds.assign_coords({dim}=ds[{name!r}].mean({ds[name].dims[1]!r}))."
            )


def _warn_of_groups(like: xr.Dataset, path: Path) -> None:
    """Warn of the groups of the input that the output lacks."""
    if others := like.encoding.get(OTHER_GROUPS):
        warn(
            f"Left out of {path.name}: the group{'s' if others[1:] else ''} {', '.join(others)} of the input. Fill "
            "each group with a raster into a file of its own (--group)."
        )


def _on_grid(ds: xr.Dataset, grid: Grid) -> xr.Dataset:
    """Leave out variables that a GeoTIFF cannot hold, such as bounds, times and text, unless nothing else is left."""
    ds = with_crs_of_each(ds)
    others = [name for name, da in ds.data_vars.items() if not grid.spans(da) or da.dtype.kind not in "iufb"]
    if not others or len(others) == len(ds.data_vars):
        return ds
    warn(
        f"Left out of the GeoTIFF: {', '.join(map(str, others))}, which {'are' if others[1:] else 'is'} not on "
        f"({grid.y_dim}, {grid.x_dim}) or {'no' if others[1:] else 'not'} real numbers. Write .zarr or .nc to keep all "
        "variables."
    )
    return ds.drop_vars(others)


def _with_axis_attrs(ds: xr.Dataset, grid: Grid) -> xr.Dataset:
    """Add the CF attributes of the spatial coordinates, if the CRS defines them and they have none."""
    axes = {} if grid.crs is None else {axis.get("axis"): axis for axis in CRS.from_wkt(grid.crs).cs_to_cf()}
    for dim, letter in ((grid.y_dim, "Y"), (grid.x_dim, "X")):
        if has_coordinate(ds, dim) and not ds.coords[dim].attrs and letter in axes:
            ds = ds.assign_coords({dim: ds.coords[dim].assign_attrs(axes[letter])})
    return ds


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `path`, which is removed at the end, or by the next output if this is killed."""
    _sweep(path)
    work, owner = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)), note()
    try:
        (work / _OWNER).write_text(json.dumps(owner), encoding="utf-8")
        with owning(owner["token"]):
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def held(ds: xr.Dataset, path: Path) -> Iterator[xr.Dataset]:
    """Compute `ds` once into a temporary store beside `path`, and yield it as read from there, to be used many times.

    Raises OutputError if it cannot be written.
    """
    with _draft(path) as work:
        with _as_output_errors(path):
            ds = stored_once(ds, work / "held.zarr")
        yield ds


@contextmanager
def _replacing(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a path in a hidden sibling folder, which is moved to `path` if the block succeeds.

    Raises OutputError if something is there that was not there before, unless `overwrite`.
    """
    sidecars = [path.with_name(path.name + suffix) for suffix in _SIDECARS if path.suffix.lower() in _GEOTIFF]
    with _as_output_errors(path), _draft(path) as work:
        yield work / path.name
        sync(work / path.name)
        if not overwrite:
            require_no_other(path)
        several = any(file.exists() for sidecar in sidecars for file in (sidecar, work / sidecar.name))
        if path.is_dir() or (path.exists() and several):
            # beside the sidecars of another file, it would have another georeference or mask if this is killed here
            os.replace(path, work / "replaced")
        for sidecar in sidecars:
            sidecar.unlink(missing_ok=True)
            if (work / sidecar.name).exists():
                os.replace(work / sidecar.name, sidecar)
        os.replace(work / path.name, path)
        sync(path.parent)


@contextmanager
def _as_output_errors(path: Path) -> Iterator[None]:
    """Convert the errors of readers and of file systems."""
    try:
        yield
    except GeonpError:
        raise
    except RasterioError as error:
        if str(error).startswith("Read failed"):
            raise InputError(
                f"The raster cannot be read to its end: {reason(error)}. Copy or download it again."
            ) from error
        raise OutputError(f"Stopped while writing {str(path)!r}: {reason(error)}. Nothing was changed.") from error
    except OSError as error:
        raise OutputError(
            f"Stopped while writing {str(path)!r}: {error}. Nothing was changed: check the space on the disk, quotas "
            "and the limit of file sizes (ulimit -f)."
        ) from error


def _sweep(path: Path) -> None:
    """Remove drafts of outputs at `path` that killed processes of this machine have left.

    Raises OutputError if one belongs to a process that runs.
    """
    for file in path.parent.glob(f".{escape(path.name)}.*/{_OWNER}"):
        try:
            owner = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(owner, dict) or not here(owner):
            continue
        if not runs(owner):
            shutil.rmtree(file.parent, ignore_errors=True)
        elif owner["pid"] != os.getpid():  # which may write several files for one output
            raise OutputError(
                f"Another job writes {str(path)!r}: {named(owner)}. Wait until it has ended, or choose another name."
            )


def _zarr_format(options: Mapping[str, str], like: xr.Dataset | None) -> Literal[2, 3]:
    text = options.get("ZARR_FORMAT", "3" if like is None else zarr_format_of(like))
    if text not in {"2", "3"}:
        raise InputError(f"No Zarr format {text!r}: expected 2 or 3. Correct zarr_format (--co).")
    return 2 if text == "2" else 3


def _require_known(options: Mapping[str, str], known: set[str], writer: str) -> None:
    unknown = sorted(set(options) - known)
    if unknown:
        raise InputError(
            f"Unknown creation option: got {', '.join(unknown)}, expected for {writer}: "
            f"{', '.join(sorted(known)) or 'none'}. Correct creation_options (--co)."
        )
