"""Tables as DataFrames, whose columns are coordinates and values."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from pyproj import CRS
from pyproj.exceptions import CRSError

from geonp.errors import InputError, from_extra, reason
from geonp.io.columns import TABLES, plain
from geonp.io.nodata import known
from geonp.io.ragged import by_sample
from geonp.raster.arrays import Float64Array
from geonp.raster.units import measure_of

_POINT = re.compile(r"\s*(SRID=\d+;)?\s*(MULTI)?POINT\b", re.IGNORECASE)
_WITH_CRS = re.compile(r"\s*(?:SRID=(\d+);)?(.*)", re.IGNORECASE | re.DOTALL)

SELECTED = "geonp_selected"
"""Attribute of a table that names the columns by which its rows were selected."""


def as_frame(
    points: pd.DataFrame | xr.Dataset, *, crossed: bool = False
) -> tuple[pd.DataFrame, dict[str, Mapping[Hashable, Any]], Any]:
    """A table as a DataFrame, with the attributes of its columns and its CRS, if it says one.

    Named levels of an index are columns, and ragged arrays lie along their samples. Missing and invalid values of a
    Dataset are NaN. The points of a GeoDataFrame become columns, as of :func:`with_places`, and so do points as
    well-known text in a table without columns of coordinates. Raises InputError for anything else than a table,
    geometries that are no points, and, unless `crossed`, a Dataset of several dimensions.
    """
    if isinstance(points, xr.Dataset):
        attrs: dict[str, Mapping[Hashable, Any]] = {str(k): dict(v.attrs) for k, v in points.variables.items()}
        return _in_own_byte_order(in_text(_along_rows(known(points), crossed))), attrs, None
    if not isinstance(points, pd.DataFrame):
        raise InputError(
            f"points must be a pandas DataFrame or an xarray Dataset, got {type(points).__name__} of "
            f"{type(points).__module__.partition('.')[0]}; convert it, as with compute() or to_pandas(), or create "
            "one: pandas.DataFrame({'x': x, 'y': y, 'value': values})"
        )
    if type(points).__name__ == "GeoDataFrame":
        geometry: Any = points.geometry
        places = points_of(geometry.to_numpy(), "the table")
        points = with_places(pd.DataFrame(points.drop(columns=geometry.name)), places, geometry.crs)
    points = _with_places_in_text(points)
    units = points.attrs.get("units")  # a text says not of which column it is
    attrs = {name: {"units": unit} for name, unit in units.items()} if isinstance(units, Mapping) else {}
    frame = _in_own_byte_order(in_text(points.reset_index(levels_of(points)).infer_objects()))
    return frame, attrs, points.attrs.get("crs")


def in_text(points: Any) -> Any:
    """A table, a DataFrame or a Dataset, whose bytes are text: NetCDF files hold characters, such as flags, so."""
    found = points.copy(deep=False)
    columns: Any = points.variables if isinstance(points, xr.Dataset) else points
    for name, column in columns.items():
        if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "SO":
            continue
        flat = pd.Series(np.asarray(column.values).ravel(), dtype=object)
        if pd.api.types.infer_dtype(flat, skipna=True) == "bytes":
            texts = flat.str.decode("utf-8", errors="replace").to_numpy().reshape(column.shape)
            found[name] = (column.dims, texts, column.attrs) if isinstance(points, xr.Dataset) else texts
    return found


def _in_own_byte_order(table: pd.DataFrame) -> pd.DataFrame:
    """A table with all columns in the byte order of the machine: pandas cannot compare others, as of FITS files."""
    kinds = {k: kind for k, kind in table.dtypes.items() if isinstance(kind, np.dtype) and not kind.isnative}
    return table.astype({k: kind.newbyteorder("=") for k, kind in kinds.items()})


def with_cell_times(points: xr.Dataset) -> xr.Dataset:
    """A Dataset with the time of each cell, where a file says it as GHRSST does: ``sst_dtime`` is added to ``time``.

    Cells without it have the time of the file.
    """
    if not {"time", "sst_dtime"} <= {*points.variables} or points["time"].size != 1 or points["time"].dtype.kind != "M":
        return points
    points = points.squeeze("time") if "time" in points.sizes else points
    apart = points["sst_dtime"]
    if apart.dtype.kind != "m":
        unit = measure_of(str(apart.attrs.get("units", "s")))
        if unit is None or unit.dims != frozenset({("s", 1)}) or apart.dtype.kind not in "iuf":
            return points
        seconds = pd.to_timedelta(unit.factor * apart.values.ravel().astype(np.float64), unit="s")
        apart = apart.copy(data=np.asarray(seconds).reshape(apart.shape))
    times = points["time"].values + apart.fillna(np.timedelta64(0, "ns")).values.astype("m8[ns]")
    return points.drop_vars("sst_dtime").assign_coords(time=(apart.dims, times, points["time"].attrs))


def levels_of(points: pd.DataFrame | xr.Dataset) -> list[Hashable]:
    """Named levels of the index of a DataFrame that are not columns, too."""
    return (
        [] if isinstance(points, xr.Dataset) else [n for n in points.index.names if n is not None and n not in points]
    )


def points_of(shapes: Any, owner: object) -> Float64Array:
    """Places ``(n, 3)`` of geometries of shapely, NaN where there is none, and for a z that points do not have.

    Raises InputError for geometries of the `owner` that are no points. Multipoints of one point are points.
    """
    with from_extra("vector", "shapely"):
        import shapely
    known = ~(shapely.is_missing(shapes) | shapely.is_empty(shapes))
    single = np.where(shapely.get_num_geometries(shapes) == 1, shapely.get_geometry(shapes, 0), shapes)[known]
    if other := sorted({str(shape.geom_type) for shape in single} - {"Point"}):
        raise InputError(
            f"{owner} must hold points, got {', '.join(other)}; replace them, for example by their centroids: "
            "points.set_geometry(points.centroid)"
        )
    places = np.full((len(shapes), 3), np.nan)
    places[known] = shapely.get_coordinates(single, include_z=True)
    return places


def with_places(table: pd.DataFrame, places: Float64Array, crs: Any) -> pd.DataFrame:
    """A table with places ``(n, 3)`` as columns lon and lat, or x and y, and the CRS in attrs.

    They are x and y if the CRS is projected, and without a CRS if they are no degrees. A z that varies is a column,
    too. Other columns of coordinates are left out.
    """
    system = None if crs is None else CRS.from_user_input(crs)
    beyond = system is None and bool((np.nanmax(np.abs(places[:, :2]), axis=0, initial=0.0) > [360.0, 90.0]).any())
    plane = ("x", "y", "easting", "northing")
    names = ("x", "y") if beyond or (system is not None and system.is_projected) else ("lon", "lat")
    table = table.drop(
        columns=[name for name in table if str(name).lower() in (*TABLES.longitudes, *TABLES.latitudes, *plane)]
    )
    table = table.assign(**dict(zip(names, places.T[:2], strict=True)))
    if len(np.unique(places[np.isfinite(places[:, 2]), 2])) > 1 and "z" not in map(str.lower, map(str, table)):
        table = table.assign(z=places[:, 2])
    table.attrs["crs"] = system
    return table


def _with_places_in_text(table: pd.DataFrame) -> pd.DataFrame:
    """A table with the places of the first column of points as well-known text, unless it has columns of coordinates.

    The text may begin with the number of a CRS, as that of PostGIS does. Raises InputError for several CRS, an unknown
    one, text that cannot be read, and other geometries.
    """
    if {plain(str(name)) for name in table} & {*TABLES.x_names, *TABLES.y_names}:
        return table
    for name, column in table.items():
        known_rows = column.dropna()
        if known_rows.empty or not (isinstance(known_rows.iloc[0], str) and _POINT.match(known_rows.iloc[0])):
            continue
        with from_extra("vector", "shapely"):
            import shapely
        parts = known_rows.astype(str).str.extract(_WITH_CRS)
        systems = {f"EPSG:{number}" for number in parts[0].dropna() if int(number)}  # 0: unknown
        if len(systems) > 1:
            got = ", ".join(sorted(systems))
            raise InputError(f"column {name!r} has points in several CRS: got {got}, expected one")
        shapes = np.full(len(table), None, object)
        try:
            shapes[column.notna().to_numpy()] = shapely.from_wkt(parts[1].to_numpy(object))
            crs = CRS.from_user_input(systems.pop()) if systems else table.attrs.get("crs")
        except (shapely.errors.ShapelyError, CRSError) as error:
            raise InputError(
                f"column {name!r} must hold points as well-known text, such as 'POINT (10.5 47.2)': {reason(error)}"
            ) from error
        return with_places(table, points_of(shapes, f"column {name!r}"), crs)
    return table


def _along_rows(points: xr.Dataset, crossed: bool) -> pd.DataFrame:
    """The variables of a Dataset along the dimension of measurements, without text of fixed length and dropped axes."""
    points = with_cell_times(by_sample(points)).squeeze()
    texts = [name for name, array in points.variables.items() if array.dtype.kind in "SU" and array.ndim > 1]
    points = points.drop_vars(texts)
    placed = [
        name
        for name, array in points.variables.items()
        if len(array.dims) == len(points.sizes) and plain(str(name)) in (*TABLES.x_names, *TABLES.y_names)
    ]
    # each cell of a swath has a place of its own
    if len(points.sizes) != 1 and not (points.sizes and (crossed or len(placed) > 1)):
        raise InputError(
            f"the Dataset of points has dimensions {tuple(map(str, points.sizes))}, expected one, along which "
            "measurements lie; for a field of each time name them, time='time' (--time time), select one entry of "
            "the others, for example ds.isel(time=0) (--where time=2020-01-01), or average those of each place with "
            "repeats='mean' (--repeats mean)"
        )
    kept = [dim for dim in points.sizes if dim in points.coords]
    return points.to_dataframe().reset_index(kept).reset_index(drop=True)
