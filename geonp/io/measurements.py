"""Tables of measurements at places."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyproj
import xarray as xr
from pyproj.exceptions import CRSError

from geonp.errors import InputError, warn
from geonp.io.columns import (
    TABLES,
    bracketed,
    coordinate,
    plain,
    units_of,
    warn_of_other_units,
    warn_of_unknown_units,
    words,
)
from geonp.io.frames import SELECTED, as_frame, levels_of
from geonp.io.ragged import by_sample
from geonp.raster.arrays import BoolArray, Float64Array, FloatArray
from geonp.raster.coordinate_units import in_degrees, parse_unit
from geonp.raster.grid import Grid
from geonp.raster.nodata import is_packed, without
from geonp.raster.times import Times, times_of


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
    selected : tuple of str
        Columns by which rows were selected before.
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
    selected: tuple[str, ...] = ()

    def at(self, rows: BoolArray) -> Table:
        """Some of the rows."""
        values = {name: column[rows] for name, column in self.values.items()}
        beside, others = self.covariates[rows].reset_index(drop=True), self.others[rows].reset_index(drop=True)
        times = None if self.times is None else self.times.at(np.flatnonzero(rows))
        return replace(self, xy=self.xy[rows], values=values, covariates=beside, others=others, times=times)

    @property
    def named_degrees(self) -> bool:
        """Whether the coordinates are named longitude and latitude, or have these CF standard names."""
        axes = (self.x, TABLES.longitudes, "longitude"), (self.y, TABLES.latitudes, "latitude")
        return all(plain(name) in names or name in _described(self.attrs, standard) for name, names, standard in axes)

    def usable(self, name: str) -> BoolArray:
        """Mask of the rows with a finite place and a finite value in a column."""
        return np.asarray(np.isfinite(self.values[name]) & np.isfinite(self.xy).all(1))

    def timed(self, name: str | None, every: str | None = None) -> Table:
        """The table with the times in a column that was read with it, or with periods of a length that they lie in.

        The table itself if no column is named. Raises InputError for no such column, and as
        :func:`geonp.raster.times.times_of`.
        """
        if name is None:
            return self
        if name not in self.covariates:
            columns = ", ".join([*self.values, *map(str, self.others.columns)])
            raise InputError(f"the table has no column {name!r} of times, got {columns} besides the coordinates")
        times = times_of(self.covariates[name], every)
        kept = without(self.attrs.get(name, {}), ("bounds", "climatology")) if times.values.dtype.kind in "iuf" else {}
        return replace(self, times=replace(times, attrs=kept))

    def check_distance(self, x: Float64Array, y: Float64Array, geographic: bool) -> None:
        """Warn if no place lies within the ranges of the target or as far around them as the larger one is wide.

        Raises InputError if that range, in the plane, is moreover so wide beside that of the places that these are in
        another unit.
        """
        reach = max(np.ptp(x), np.ptp(y))
        spans = [(a.min() - reach, a.max() + reach) for a in (x, y)]
        lon, lat = self.xy[np.isfinite(self.xy).all(1)].T
        turned = (lon - spans[0][0]) % 360 + spans[0][0] if geographic else lon
        near = [(low <= values) & (values <= high) for (low, high), values in zip(spans, (turned, lat), strict=True)]
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

    Of `covariates`, those that are columns are read, ``height [m]`` also by the name ``height``. With `crossed`, a
    Dataset may have several dimensions, such as stations and times, whose combinations are rows. A column
    ``temp [degC]`` of values is named ``temp`` and has the units degC; `units`, of all columns of values or of each,
    take precedence. Raises InputError for columns that do not exist, are not numeric, or cannot be guessed, and other
    numbers of units.
    """
    selected = tuple(map(str, getattr(points, "attrs", {}).get(SELECTED, ())))
    source = by_sample(points) if isinstance(points, xr.Dataset) else points
    frame, attrs, crs = as_frame(source, crossed=crossed or _selects_cells(source, selected))
    levels, points = list(map(str, levels_of(points))), frame
    columns = [str(name) for name in points.columns]
    points = points.set_axis(columns, axis=1)
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise InputError(f"the table has several columns {twice[0]!r}: expected different names; rename one")
    called, units_beside = _named_in_short(columns, covariates)
    points, attrs = points.rename(columns=called), attrs | units_beside
    columns = [called.get(name, name) for name in columns]
    short = bracketed(columns)
    whole = {name: column for column, (name, _) in short.items()}
    x, y = (name if name is None else str(name) for name in (x, y))
    several = isinstance(values, Iterable) and not isinstance(values, str)
    names = None if values is None else [whole.get(n, n) for n in map(str, values if several else [values])]
    if unknown := [name for name in (x, y, *(names or ())) if name is not None and name not in columns]:
        raise InputError(f"the table has no column {unknown[0]!r}, got {columns}")
    x = coordinate(columns, x, TABLES.x_names, "x", _described(attrs, "longitude"))
    y = coordinate(columns, y, TABLES.y_names, "y", _described(attrs, "latitude"))
    if plain(x) in TABLES.latitudes or plain(y) in TABLES.longitudes:
        raise InputError(
            f"x must be the longitude and y the latitude: got x={x!r} and y={y!r}; exchange them or rename the columns"
        )
    if names is None:
        names = [_only_numeric(points.drop(columns=[x, y, *covariates, *levels], errors="ignore"))]
    _require_numbers(points, (x, y, *names))
    if again := [name for name in names if names.count(name) > 1]:
        raise InputError(f"values (--value) has the column {again[0]!r} twice: expected each column once")
    if both := [name for name in names if name in (x, y)]:
        raise InputError(
            f"column {both[0]!r} is a coordinate: expected another column to interpolate, one of {columns}"
        )
    if isinstance(source, xr.Dataset):
        _require_places(source, x, y, names)
    if both := [name for name in covariates if name in (x, y, *names)]:
        raise InputError(
            f"the covariate {both[0]!r} is a coordinate or is interpolated itself: expected another column, one of "
            f"{columns}"
        )
    points = points.rename(columns={name: short[name][0] for name in names if name in short})
    found = [short.get(name, (name, "")) for name in names]
    names = [name for name, _ in found]
    attrs = _with_units(attrs, found, units, in_header=not isinstance(source, xr.Dataset))
    xy = _places(points[[x, y]], attrs)
    beside = points[[name for name in covariates if name in columns]]
    others = points.drop(columns=list({x, y, *names, *beside.columns}))
    found_values = {name: points[name].to_numpy() for name in names}
    return Table(xy, found_values, x, y, attrs, beside, others, crs=crs, selected=selected)


def _places(columns: pd.DataFrame, attrs: Mapping[str, Mapping[Hashable, Any]]) -> Float64Array:
    """Places ``(n, 2)`` in two columns. Radians, as of ICON and MPAS, become degrees."""
    in_radians = [parse_unit(attrs.get(str(name), {}).get("units")) == ("angle", 1.0) for name in columns]
    return np.where(in_radians, np.degrees(columns.to_numpy(np.float64)), columns.to_numpy(np.float64))


def _described(attrs: Mapping[str, Mapping[Hashable, Any]], standard: str) -> list[str]:
    """Columns with a CF standard name."""
    return [name for name, each in attrs.items() if each.get("standard_name") == standard]


def _selects_cells(points: pd.DataFrame | xr.Dataset, selected: Sequence[str]) -> bool:
    """Whether cells were selected, such as the upper levels of profiles, so that rows are cells."""
    return isinstance(points, xr.Dataset) and any(points[name].ndim > 1 for name in selected if name in points)


def _require_numbers(points: pd.DataFrame, names: Sequence[str]) -> None:
    """Raise InputError for a column that does not hold numbers."""
    for name in names:
        if points[name].dtype.kind not in "iuf":
            held = _held(points[name]) or points[name].dtype
            raise InputError(f"column {name!r} holds {held}, expected numbers such as -6.25; leave missing cells empty")


def _named_in_short(
    columns: Sequence[str], covariates: Collection[str]
) -> tuple[dict[str, str], dict[str, dict[Hashable, Any]]]:
    """New names of columns such as ``height [m]`` that `covariates` call ``height``, and the units of both forms."""
    called, attrs = dict[str, str](), dict[str, dict[Hashable, Any]]()
    for column, (name, unit) in bracketed(columns).items():
        if name in covariates:
            called[column] = name
        if name in covariates or column in covariates:
            attrs[called.get(column, column)] = {"units": unit}
    return called, attrs


def _require_places(points: xr.Dataset, x: str, y: str, names: Sequence[str]) -> None:
    """Raise InputError for packed places, and values along other dimensions: any combination would be a row."""
    if packed := [name for name in (x, y) if is_packed(points[name].attrs)]:
        raise InputError(
            f"column {packed[0]!r} is packed (scale_factor, add_offset), and holds no coordinates: decode the table "
            "before, with xr.decode_cf"
        )
    placed = {*points[x].dims, *points[y].dims}
    for name in names:
        if lost := [str(dim) for dim in placed - {*points[name].dims} if points.sizes[dim] > 1]:
            raise InputError(
                f"{name!r} has dimensions {tuple(map(str, points[name].dims))}, but its places, {x!r} and {y!r}, lie "
                f"along {', '.join(map(repr, sorted(lost)))}: expected values with the dimensions of their places. "
                "Give places and values one dimension, or choose other values with values=... (--value)"
            )


def _with_units(
    attrs: dict[str, Mapping[Hashable, Any]],
    found: Sequence[tuple[str, str]],
    units: str | Sequence[str] | None,
    *,
    in_header: bool,
) -> dict[str, Mapping[Hashable, Any]]:
    """Attributes with the units of columns of values, whose names and units in brackets are `found`.

    Warns of units that are replaced, and of those in a header or in `units` that are not known.
    """
    own = {name: unit or str(attrs.get(name, {}).get("units", "")) for name, unit in found}
    given = units_of(units, [*own]) or {name: unit for name, unit in found if unit}
    warn_of_other_units({name: (own[name], unit) for name, unit in given.items()})
    if units is not None or in_header:
        warn_of_unknown_units(own if units is None else given, option=units is not None)
    return attrs | {name: {**attrs.get(name, {}), "units": unit} for name, unit in given.items()}


def _only_numeric(points: pd.DataFrame) -> str:
    numeric = [str(name) for name in points.columns if points[name].dtype.kind in "iuf"]
    if len(numeric) > 1:
        numbers = [name for name in numeric if points[name].dtype.kind in "iu" and words(name) & {*TABLES.number_words}]
        numeric = [name for name in numeric if name not in numbers] or numeric
    texts = {name: held for name in points if (held := _held(points[name]))}
    measured = [n for n in texts if _is_measured(points[n]) and not words(str(n)) & {*TABLES.number_words}]
    if len(numeric) == 1 and not measured:
        return numeric[0]
    said = (f", and {name!r} holds {texts[name]}, expected numbers such as -6.25" for name in [*measured, *texts])
    raise InputError(
        "choose the columns to interpolate with values=... (--value): the table has "
        f"{f'numeric columns {numeric}' if numeric else 'no numeric column'} besides the coordinates{next(said, '')}"
    )


def _held(column: Any) -> str:
    """The first entry of a column of objects that is no number, or, if all are numbers in texts, the first one."""
    if column.dtype.kind != "O" or not len(known := column.dropna()):
        return ""
    wrong = known[pd.to_numeric(known, errors="coerce").isna()]
    return f"{wrong.iloc[0]!r}" if len(wrong) else f"the {type(known.iloc[0]).__name__} {str(known.iloc[0])!r}"


def _is_measured(column: Any) -> bool:
    """Whether a column holds measurements as texts: numbers with qualifiers or units, such as ``<0.5``."""
    return bool(column.dropna().astype(str).str.fullmatch(TABLES.number).mean() > TABLES.numbers)


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
    degrees = crs is None and table.named_degrees and goal is not None and (others or not geographic)
    own = "EPSG:4326" if degrees else crs
    if own is not None:
        source = crs_of(own)
        goal = source if grid is None and not (geographic or source.is_geographic) else goal
        if goal is None and not geographic:
            raise InputError(
                f"{source.name} is in degrees: rename the columns {table.x!r} and {table.y!r} to lon and lat"
                if grid is None
                else "the places have a crs, but the grid has none: add one, e.g. at.rio.write_crs('EPSG:32633')"
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
        table = replace(table, xy=xy, crs=goal)
    if geographic:
        _require_degrees(table)
    return table


def _require_degrees(table: Table) -> None:
    limits = (table.y, "latitude", 1, 90, "-90 to 90"), (table.x, "longitude", 0, 540, "-180 to 360")
    for column, kind, axis, limit, expected in limits:
        if (most := np.nanmax(np.abs(table.xy[:, axis]), initial=0.0)) > limit:
            raise InputError(
                f"column {column!r} holds a {kind} of {most:g}, expected {expected}; "
                "check whether x and y are exchanged, and the crs of the places (crs=...)"
            )


def read_places(at: pd.DataFrame, table: Table, covariates: Collection[str], crs: Any) -> tuple[Table, Table]:
    """Places to predict at, as their table has them, and in the CRS of the measurements, which may be given.

    Without a CRS of their own, they are in that of the measurements if the coordinates have the same names, or they are
    longitudes and latitudes. Raises InputError for other places, and as :func:`read_table`.
    """
    same = {table.x, table.y} <= {*map(str, as_frame(at)[0])}
    theirs = table.crs if crs is None else crs
    goal = "EPSG:4326" if table.named_degrees else theirs
    x, y = (table.x, table.y) if same or goal is None else (None, None)
    places = read_table(at, (), x, y, covariates)
    own = (theirs if same else "EPSG:4326" if places.named_degrees else None) if places.crs is None else places.crs
    if own is None and not same:
        raise InputError(
            f"the table at has columns {places.x!r} and {places.y!r} without a CRS, expected {table.x!r} and "
            f"{table.y!r}, as the measurements have"
        )
    xy = places.xy
    if own is not None and goal is not None and crs_of(own) != crs_of(goal):
        xy = np.stack(pyproj.Transformer.from_crs(crs_of(own), crs_of(goal), always_xy=True).transform(*xy.T), 1)
    moved = replace(places, xy=xy)
    if table.named_degrees:
        _require_degrees(moved)
    return places, moved
