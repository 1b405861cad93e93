"""Tables of measurements at places."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyproj
import xarray as xr
from pyproj.exceptions import CRSError

from geonp.errors import InputError, warn
from geonp.io.column_units import bracketed, units_of, warn_of_other_units
from geonp.io.tables import with_places
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray
from geonp.raster.coordinate_units import in_degrees
from geonp.raster.grid import Grid
from geonp.raster.times import Times, times_of


@dataclass(frozen=True)
class TableSettings:
    """Settings of tables."""

    unit_words: tuple[str, ...] = (
        "deg",
        "degs",
        "degree",
        "degrees",
        "decimal",
        "dd",
        "n",
        "e",
        "north",
        "east",
        "wgs84",
        "nav",
        "site",
        "station",
    )
    """Words in names of longitudes and latitudes that say little, such as their unit in ``Longitude (deg)``."""
    length_words: tuple[str, ...] = ("m", "km", "metre", "metres", "meter", "meters", "utm", "coord", "coordinate")
    """Such words in names of plane coordinates, as in ``Easting (m)``."""
    number_words: tuple[str, ...] = (
        *("id", "ids", "fid", "gid", "oid", "objectid", "station", "stations", "site", "stn", "wmo", "code", "number"),
        *("no", "nr", "index", "row", "year", "month", "day", "hour", "doy", "date", "yyyymmdd"),
    )
    """Words in names of columns of integers that number stations or times, which are not measured."""

    longitudes: tuple[str, ...] = ("lon", "longitude", "long", "lng")
    """Names of columns of longitudes, in any case."""
    latitudes: tuple[str, ...] = ("lat", "latitude")
    """Names of columns of latitudes."""
    x_names: tuple[str, ...] = (*longitudes, "x", "easting", "east")
    """Names of columns of the coordinate x."""
    y_names: tuple[str, ...] = (*latitudes, "y", "northing", "north")
    """Names of columns of the coordinate y."""
    other_unit: float = 30.0
    """A grid as many times as wide as the measurements, none of which lies near, is in another unit."""


TABLES = TableSettings()


@dataclass(frozen=True, eq=False)
class Table:
    """A table of measurements.

    Attributes
    ----------
    xy : array
        Places ``(n, 2)``.
    values : mapping
        Columns of values ``(n,)`` by name.
    x, y : str
        Names of the columns of coordinates.
    attrs : mapping
        Attributes of columns by name.
    covariates : DataFrame
        Columns of covariates.
    others : DataFrame
        All other columns, such as a date.
    times : Times or None
        The time of each row, see :meth:`timed`.
    crs : optional
        Coordinate reference system of the places, if the table says it.
    """

    xy: Float64Array
    values: Mapping[str, FloatArray]
    x: str
    y: str
    attrs: Mapping[str, Mapping[Hashable, Any]]
    covariates: pd.DataFrame
    others: pd.DataFrame
    times: Times | None = None
    crs: Any = None

    def at(self, rows: BoolArray) -> Table:
        """Some of the rows."""
        values = {name: column[rows] for name, column in self.values.items()}
        beside, others = self.covariates[rows].reset_index(drop=True), self.others[rows].reset_index(drop=True)
        times = None if self.times is None else self.times.at(np.flatnonzero(rows))
        return replace(self, xy=self.xy[rows], values=values, covariates=beside, others=others, times=times)

    @property
    def named_degrees(self) -> bool:
        """Whether the coordinates are named longitude and latitude."""
        return _plain(self.x) in TABLES.longitudes and _plain(self.y) in TABLES.latitudes

    def usable(self, name: str) -> BoolArray:
        """Mask of the rows with a finite place and a finite value in a column."""
        return np.asarray(np.isfinite(self.values[name]) & np.isfinite(self.xy).all(1))

    def timed(self, name: str, every: str | None = None) -> Table:
        """The table with the times in a column that was read with it, or with periods of a length that they lie in.

        Raises InputError for no such column, and as :func:`geonp.raster.times.times_of`.
        """
        if name not in self.covariates:
            columns = ", ".join([*self.values, *map(str, self.others.columns)])
            raise InputError(f"the table has no column {name!r} of times, got {columns} beside the coordinates")
        return replace(self, times=times_of(self.covariates[name], every))

    def check_distance(self, x: Float64Array, y: Float64Array, geographic: bool) -> None:
        """Warn if no place lies within the range of the target or as far again around it.

        Raises InputError if that range, in the plane, is moreover so wide beside that of the places that these are in
        another unit.
        """
        spans = [(low - (high - low), high + (high - low)) for low, high in ((a.min(), a.max()) for a in (x, y))]
        lon, lat = self.xy[np.isfinite(self.xy).all(1)].T
        if geographic:
            lon = (lon - spans[0][0]) % 360 + spans[0][0]
        near = [(low <= values) & (values <= high) for (low, high), values in zip(spans, (lon, lat), strict=True)]
        if lon.size and min(np.ptp(x), np.ptp(y)) > 0 and not (near[0] & near[1]).any():
            message = (
                f"no measurement lies near the places to predict: got {self.x!r} from {lon.min():g} to {lon.max():g} "
                f"and {self.y!r} from {lat.min():g} to {lat.max():g}, expected some around {x.min():g} to {x.max():g} "
                f"and {y.min():g} to {y.max():g}. Check that both are in one CRS and unit (crs=..., --crs)."
            )
            if not geographic and max(np.ptp(x), np.ptp(y)) > TABLES.other_unit * max(np.ptp(lon), np.ptp(lat)) > 0:
                raise InputError(message)
            warn(message)


def read_table(
    points: pd.DataFrame | xr.Dataset,
    values: str | Sequence[str] | None,
    x: str | None,
    y: str | None,
    covariates: Collection[str] = (),
    *,
    crossed: bool = False,
    units: str | Sequence[str] | None = None,
) -> Table:
    """Read the columns of a table; `values` may be empty, for places without measurements.

    Of `covariates`, those that are columns are read. With `crossed`, a Dataset may have several dimensions, such as
    stations and times, whose combinations are rows. A column ``temp [degC]`` of values is named ``temp`` and has the
    units degC; `units`, of all columns of values or of each, take precedence. Raises InputError for columns that do not
    exist, are not numeric, or cannot be guessed, and other numbers of units.
    """
    points, attrs, crs = as_frame(points, crossed=crossed)
    columns = [str(name) for name in points.columns]
    points = points.set_axis(columns, axis=1)
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise InputError(f"the table has several columns {twice[0]!r}: expected different names; rename one")
    short = bracketed(columns)
    whole = {name: column for column, (name, _) in short.items()}
    names = None if values is None else [whole.get(n, n) for n in ([values] if isinstance(values, str) else values)]
    given = [x, y, *(names or ())]
    if unknown := [name for name in given if name is not None and name not in columns]:
        raise InputError(f"the table has no column {unknown[0]!r}, got {columns}")
    x, y = _coordinate(columns, x, TABLES.x_names, "x"), _coordinate(columns, y, TABLES.y_names, "y")
    if _plain(x) in TABLES.latitudes or _plain(y) in TABLES.longitudes:
        raise InputError(
            f"x must be the longitude and y the latitude: got x={x!r} and y={y!r}; exchange them or rename the columns"
        )
    if names is None:
        names = [_only_numeric(points.drop(columns=[x, y, *covariates], errors="ignore"))]
    for name in (x, y, *names):
        if points[name].dtype.kind not in "iuf":
            text = _first_text(points[name])
            held = points[name].dtype if text is None else f"{text!r}"
            raise InputError(f"column {name!r} holds {held}, expected numbers such as -6.25; leave missing cells empty")
    if both := [name for name in names if name in (x, y)]:
        raise InputError(
            f"column {both[0]!r} is a coordinate: expected another column to interpolate, one of {columns}"
        )
    if both := [name for name in covariates if name in (x, y, *names)]:
        raise InputError(
            f"the covariate {both[0]!r} is a coordinate or is interpolated itself: expected another column, one of "
            f"{columns}"
        )
    points = points.rename(columns={name: short[name][0] for name in names if name in short})
    found = [short.get(name, (name, "")) for name in names]
    names = [name for name, _ in found]
    own = {name: unit or str(attrs.get(name, {}).get("units", "")) for name, unit in found}
    given_units = units_of(units, names) or {name: unit for name, unit in found if unit}
    warn_of_other_units({name: (own[name], unit) for name, unit in given_units.items()})
    attrs = attrs | {name: {**attrs.get(name, {}), "units": unit} for name, unit in given_units.items()}
    xy = points[[x, y]].to_numpy(np.float64)
    beside = points[[name for name in covariates if name in columns]]
    others = points.drop(columns=list({x, y, *names, *beside.columns}))
    return Table(xy, {name: points[name].to_numpy() for name in names}, x, y, attrs, beside, others, crs=crs)


def as_frame(
    points: pd.DataFrame | xr.Dataset, *, crossed: bool = False
) -> tuple[pd.DataFrame, dict[str, Mapping[Hashable, Any]], Any]:
    """A table as a DataFrame, with the attributes of its columns and its CRS, if it says one.

    The points of a GeoDataFrame become columns lon and lat, or x and y if its CRS is projected. Raises InputError for
    anything else than a table, geometries that are no points, and, unless `crossed`, a Dataset of several dimensions.
    """
    if isinstance(points, xr.Dataset):
        attrs: dict[str, Mapping[Hashable, Any]] = {str(k): dict(v.attrs) for k, v in points.variables.items()}
        return _along_rows(points, crossed), attrs, None
    if not isinstance(points, pd.DataFrame):
        raise InputError(
            f"points must be a pandas DataFrame or an xarray Dataset, got {type(points).__name__}; "
            "create one: pandas.DataFrame({'x': x, 'y': y, 'value': values})"
        )
    if type(points).__name__ != "GeoDataFrame":
        return points, {n: {"units": u} for n, u in points.attrs.get("units", {}).items()}, points.attrs.get("crs")
    geometry: Any = points.geometry
    known = ~(geometry.isna() | geometry.is_empty)
    if other := sorted(set(geometry[known].geom_type) - {"Point"}):
        raise InputError(
            f"the geometries of the table must be points, got {', '.join(other)}; replace them, for example by their "
            "centroids: points.set_geometry(points.centroid)"
        )
    xy = np.full((len(points), 2), np.nan)
    xy[known] = np.stack([geometry[known].x, geometry[known].y], 1)
    return with_places(pd.DataFrame(points.drop(columns=geometry.name)), xy, geometry.crs), {}, geometry.crs


def _along_rows(points: xr.Dataset, crossed: bool) -> pd.DataFrame:
    """The variables of a Dataset along the dimension of measurements, without text of fixed length and dropped axes."""
    points = points.squeeze()
    texts = [name for name, array in points.variables.items() if array.dtype.kind in "SU" and array.ndim > 1]
    points = points.drop_vars(texts)
    placed = [
        name
        for name, array in points.variables.items()
        if len(array.dims) == len(points.sizes) and _plain(str(name)) in (*TABLES.x_names, *TABLES.y_names)
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


def _only_numeric(points: pd.DataFrame) -> str:
    numeric = [str(name) for name in points.columns if points[name].dtype.kind in "iuf"]
    if len(numeric) > 1:
        numbers = [
            name for name in numeric if points[name].dtype.kind in "iu" and _words(name) & {*TABLES.number_words}
        ]
        numeric = [name for name in numeric if name not in numbers] or numeric
    if len(numeric) == 1:
        return numeric[0]
    texts = (
        f", and {name!r} holds {text!r}, which is no number such as -6.25"
        for name in points
        if (text := _first_text(points[name])) is not None
    )
    raise InputError(
        "choose the columns to interpolate with values=... (--value): the table has "
        f"{f'numeric columns {numeric}' if numeric else 'no numeric column'} beside the coordinates{next(texts, '')}"
    )


def _first_text(column: Any) -> str | None:
    """The first entry of a column that is a text but not a number."""
    if column.dtype.kind != "O":
        return None
    return next((v for v in column[pd.to_numeric(column, errors="coerce").isna()] if isinstance(v, str)), None)


def _coordinate(columns: list[str], given: str | None, names: tuple[str, ...], axis: str) -> str:
    if given is not None:
        return given
    named = [column for column in columns if column.lower() in names]
    named = named or [column for column in columns if _plain(column) in names]
    if len(named) != 1:
        raise InputError(
            f"name the column of the coordinate {axis} with {axis}=... (--{axis}): expected one of {', '.join(names)}, "
            f"got {named or columns}"
        )
    return named[0]


def _plain(name: str) -> str:
    """Name of a column in lower case; of coordinates without words such as units, as in ``Lon_deg``."""
    words = _words(name)
    for known, ignored in (
        ({*TABLES.longitudes, *TABLES.latitudes}, TABLES.unit_words),
        ({*TABLES.x_names, *TABLES.y_names} - {*TABLES.longitudes, *TABLES.latitudes}, TABLES.length_words),
    ):
        kept = words - {*ignored}
        if len(kept) == 1 and kept <= known:
            return kept.pop()
    return name.strip().lower()


def _words(name: str) -> set[str]:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name.strip())
    return set(re.findall(r"[a-z0-9]+", spaced.lower()))


def crs_of(crs: Any) -> pyproj.CRS:
    """The coordinate reference system that a user gave."""
    try:
        return pyproj.CRS.from_user_input(crs)
    except CRSError as error:
        raise InputError(f"crs is unknown: got {crs!r}, expected e.g. 'EPSG:4326' ({error})") from error


def transformed(table: Table, crs: Any, grid: Grid | None) -> Table:
    """The table with its places in the CRS of a grid and the units of its coordinates, degrees if it is geographic.

    Raises InputError for an unknown `crs`, a `crs` although the target has none, longitudes and latitudes for a grid in
    lengths or of a rotated pole that has no CRS, or latitudes beyond the poles.

    Parameters
    ----------
    table
    crs
        CRS of the places. By default that of the table, or that of the grid and in its units, or EPSG:4326 if the
        columns are named longitude and latitude and the grid has another kind of coordinates: projected ones, those of
        a rotated pole, or longitudes in grads or from another meridian than Greenwich. A projected one of a table of
        places is that of both tables.
    grid
        Grid of the target, or None for a table of places with the same columns.
    """
    crs = table.crs if crs is None else crs
    target = None if grid is None else grid.crs
    geographic = table.named_degrees if grid is None else grid.geographic
    goal = None if target is None else pyproj.CRS.from_wkt(target)
    others = goal is not None and (goal.is_derived or (goal.is_geographic and not in_degrees(goal)))
    if table.named_degrees and crs is None and goal is None and grid is not None and grid.needs_crs:
        raise InputError(
            f"the places are longitudes and latitudes, but {grid.y_dim!r} and {grid.x_dim!r} of the grid are not, and "
            "it has no CRS: add one, e.g. at.rio.write_crs('EPSG:32633')"
        )
    own = crs
    if crs is None and table.named_degrees and goal is not None and (others or not geographic):
        own = "EPSG:4326"
    if own is not None:
        source = crs_of(own)
        if grid is None and not geographic and not source.is_geographic:
            goal = source
        if goal is None and not geographic:
            raise InputError(
                "the places have a crs, but the grid has none: add one, e.g. at.rio.write_crs('EPSG:32633')"
            )
        if table.named_degrees and not source.is_geographic:
            raise InputError(
                f"columns {table.x!r} and {table.y!r} are degrees, but crs is {source.name}, which is projected: leave "
                "crs (--crs) out; for a grid in this CRS give a raster with that grid (at=..., --like)"
            )
        goal = goal or pyproj.CRS.from_epsg(4326)
        xy = table.xy
        if source != goal:
            xy = np.stack(pyproj.Transformer.from_crs(source, goal, always_xy=True).transform(*xy.T), 1)
            known = table.xy[np.isfinite(table.xy).all(1)]
            if len(known) and not np.isfinite(xy).any():
                raise InputError(
                    f"no place of the table lies in its crs, {source.name}: got {table.x} and {table.y} such as "
                    f"{known[0].tolist()}. Correct crs (--crs)."
                )
        if grid is not None and not geographic:
            xy = xy / np.array(grid.factors[::-1])
        table = replace(table, xy=xy)
    if geographic and np.nanmax(np.abs(table.xy[:, 1]), initial=0.0) > 90:
        raise InputError(
            f"column {table.y!r} holds a latitude of {np.nanmax(np.abs(table.xy[:, 1])):g}, expected -90 to 90; "
            "check whether x and y are exchanged, and the crs of the places (crs=...)"
        )
    return table
