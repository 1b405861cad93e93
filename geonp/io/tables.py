"""Files of measurements: text, Parquet, vector files with points, and NetCDF or Zarr along one dimension."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import GeonpError, InputError, from_extra, reason
from geonp.io.columns import TABLES
from geonp.io.decoding import decoded
from geonp.io.frames import as_frame, in_text, points_of, with_cell_times, with_places
from geonp.io.groups import open_cells
from geonp.io.nodata import measured, numbered, retyped
from geonp.io.polygons import VECTOR_FILES, refuse_references
from geonp.io.ragged import by_sample
from geonp.io.sources import PARQUET_FILES, TABLE_FILES
from geonp.io.stores import Store
from geonp.io.text import TEXT_FILES, read_text
from geonp.raster.arrays import Float64Array

_CELL_FILES = (".nc", ".nc4", ".he5", ".h5", ".zarr")


def is_table(path: Path) -> bool:
    """Whether a file holds measurements at places: by its name, or by coordinates x and y along one dimension."""
    if path.name.lower().endswith(TABLE_FILES):
        return True
    if path.suffix.lower() not in _CELL_FILES:
        return False
    try:
        with _opened(path) as ds:
            named = {str(name).lower(): array.dims for name, array in ds.variables.items()}
    except (OSError, ValueError):
        return False  # its error is that of a raster
    x, y = (next((named[name] for name in names if name in named), ()) for names in (TABLES.x_names, TABLES.y_names))
    return len(x) == 1 and x == y


def read_points(path: Path) -> pd.DataFrame | xr.Dataset:
    """Read a table from a file, whose ending says how.

    Of vector files and GeoParquet, points become columns lon and lat, or x and y if their CRS is projected; the CRS is
    kept as ``attrs["crs"]``. Raises InputError for another ending, a file that cannot be read, and geometries that are
    no points. Raises MissingExtraError without the extra ``parquet`` or ``vector``, for such files.
    """
    if re.match(r"\w\w+:/", str(path)) and not path.exists():
        raise InputError(f"{path} is not a file: got a URL, expected a table on this machine; download it first")
    readers: dict[tuple[str, ...], Callable[[Path], pd.DataFrame | xr.Dataset]] = {
        TEXT_FILES: read_text,
        PARQUET_FILES: _parquet,
        VECTOR_FILES: _vector,
        _CELL_FILES: lambda file: with_cell_times(measured(_opened(file)).load()),
    }
    for endings, reader in readers.items():
        if path.name.lower().endswith(endings):
            try:
                points: pd.DataFrame | xr.Dataset = in_text(reader(path))
                return points
            except GeonpError:
                raise
            except (ValueError, OSError, RuntimeError) as error:
                raise InputError(f"{path} cannot be read as a table: {reason(error)}") from error
    known = ", ".join(ending for endings in readers for ending in endings)
    raise InputError(f"{path} is not a table that can be read: got {path.suffix!r}, expected {known}")


def read_all(paths: Sequence[Path]) -> pd.DataFrame | xr.Dataset:
    """Read tables, one below the other; of Datasets, all cells.

    Raises InputError as :func:`read_points`, and for files that differ in their columns, units or CRS.
    """
    tables = [read_points(path) for path in paths]
    if len(tables) == 1:
        return tables[0]
    parts = [as_frame(table, crossed=True) for table in tables]
    frames, attrs, systems = zip(*parts, strict=True)
    for path, frame, about, crs in zip(paths, frames, attrs, systems, strict=True):
        _require_same(path, paths[0], "columns", sorted(map(str, frame)), sorted(map(str, frames[0])))
        _require_same(path, paths[0], "units", _units(about), _units(attrs[0]))
        _require_same(path, paths[0], "CRS", crs, systems[0])
    whole: pd.DataFrame = pd.concat(frames, ignore_index=True)
    if systems[0] is not None or not attrs[0]:
        whole.attrs["crs"] = systems[0]
        return whole
    ds = xr.Dataset.from_dataframe(whole.rename_axis("row"))
    for name in ds.data_vars:
        ds[name].attrs = dict(attrs[0].get(str(name), {}))
    return ds.drop_vars("row")


def _opened(path: Path) -> xr.Dataset:
    zarr = path.suffix.lower() == ".zarr"
    return by_sample(decoded(numbered(retyped(Store(str(path)).open()))) if zarr else open_cells(path))


def _parquet(path: Path) -> pd.DataFrame:
    """A Parquet file, or GeoParquet of points."""
    with from_extra("parquet", "pyarrow"):
        from pyarrow import parquet
    table: pd.DataFrame = pd.read_parquet(path, engine="pyarrow")
    schema = parquet.read_schema(path)
    exact = [field.name for field in schema if str(field.type).startswith("decimal") and field.name in table]
    table = table.astype(dict.fromkeys(exact, np.float64))
    metadata = schema.metadata or {}
    if b"geo" not in metadata:
        return table
    geo = json.loads(metadata[b"geo"])
    name = geo["primary_column"]
    column = geo["columns"][name]
    crs = column.get("crs", "OGC:CRS84")  # which GeoParquet has if it names none
    if column["encoding"] == "WKB":
        return with_places(table.drop(columns=name), _points(table[name].to_numpy(), path), crs)
    if column["encoding"].lower() != "point":
        raise InputError(f"{path} must hold points, got {column['encoding']}; replace them, e.g. by their centroids")
    places = [[(point or {}).get(axis, np.nan) for axis in "xyz"] for point in table[name]]
    return with_places(table.drop(columns=name), np.array(places, np.float64).reshape(-1, 3), crs)


def _vector(path: Path) -> pd.DataFrame:
    """The points of the first layer of a vector file, with their attributes."""
    with from_extra("vector"):
        import pyogrio
    refuse_references(path)
    if len(pyogrio.list_layers(path)) > 1:
        layers = ", ".join(pyogrio.list_layers(path)[:, 0])
        raise InputError(f"{path} has several layers, {layers}: expected one; write it to a separate file")
    about, _, geometry, fields = pyogrio.raw.read(path, datetime_as_string=True)
    table = pd.DataFrame(dict(zip(about["fields"], fields, strict=True)))
    if geometry is None:
        return table
    return with_places(table, _points(geometry, path), about["crs"])


def _points(geometry: Any, path: Path) -> Float64Array:
    """Places ``(n, 3)`` of geometries as well-known binary, NaN where there is none."""
    with from_extra("vector", "shapely"):
        import shapely
    return points_of(shapely.from_wkb(geometry), path)


def _units(attrs: Any) -> dict[str, str]:
    return {name: str(about["units"]) for name, about in attrs.items() if "units" in about}


def _require_same(path: Path, first: Path, what: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise InputError(f"{path} has other {what} than {first}: got {got}, expected {expected}; open them separately")
