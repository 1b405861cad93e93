"""Windows of hourly reanalysis fields: the ERA5 benchmark of TE-TNP."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import xarray as xr
from pydantic import Field

from geonp.errors import RecipeError
from geonp.inference.context import Neighbourhood
from geonp.io.stores import unfinished
from geonp.raster.arrays import Float32Array, Float64Array, IntArray
from geonp.training.batch import Batch, Split, split_at
from geonp.training.data.constraints import Count, FractionRange

Area = tuple[float, float, float, float]
Side = Annotated[int, Field(ge=2)]

GRAVITY = 9.80665
"""Geopotential over elevation, m s-2."""


@dataclass(frozen=True)
class ReanalysisSettings:
    """Tolerances of the data."""

    spacing: float = 0.01  # relative tolerance of the spacing of latitudes and longitudes
    max_draws: int = 10_000  # blocks to draw at most until one has enough valid cells


SETTINGS = ReanalysisSettings()


@dataclass(frozen=True)
class Scales:
    """Means and standard deviations of the training region and period, for standardisation.

    Attributes
    ----------
    x : array
        Mean and standard deviation of hours, latitude, longitude and elevation, ``(2, 4)``.
    y : tuple of float
        Mean and standard deviation of temperature, K.
    """

    x: Float64Array
    y: tuple[float, float]


@dataclass(frozen=True)
class Reanalysis(Split):
    """Temperatures of windows in space and time, as in TE-TNP (ICML 2024, section F.4), from a Zarr store or NetCDF.

    A task is a block of `window` frames, rows and columns; frames are `step_h` hours apart. Inputs are time, latitude,
    longitude and elevation. Context is a random fraction of the cells, targets are all others. The tasks of a batch
    share location and fraction, and differ in time. Inputs and values are standardised by the training region.

    Attributes
    ----------
    path : str
        Output of ``geonp fetch era5``: ``t2m (time, latitude, longitude)`` and the geopotential ``z``.
    geopotential : str
        Another file with the geopotential, if `path` has none.
    area, test_area : tuple of float
        North, west, south, east of training and of held-out windows; empty for all. Held-out batches alternate between
        several `test_area`.
    period, test_period : tuple of str
        First and last day of training and of held-out windows; empty for all.
    stride : int
        Every how many rows and columns of the grid are read, from the first of the area.
    window : tuple of int
        Number of frames, rows and columns.
    fraction : tuple of float
        Minimum and maximum fraction of the cells of a window that are context.
    min_valid : int
        Minimum number of valid cells of a window.
    elevation : bool
        Whether elevation is an input.
    split : str
        ``"train"`` or ``"test"``, the held-out windows.

    Notes
    -----
    The published scores are those of WFDE5: 0.5 degrees, land only, and probably consecutive hours instead of frames 6
    hours apart.
    """

    kind: Literal["era5"] = "era5"
    path: str = ""
    geopotential: str = ""
    area: Area | tuple[()] = ()
    period: tuple[str, str] | tuple[()] = ()
    test_area: Area | tuple[Area, ...] = ()
    test_period: tuple[str, str] | tuple[()] = ()
    stride: Count = 1
    window: tuple[Count, Side, Side] = (5, 15, 15)
    step_h: Count = 6
    fraction: FractionRange = (0.01, 0.3)
    min_valid: Count = 100
    elevation: bool = True
    split: Literal["train", "test"] = "train"

    @property
    def dimensions(self) -> dict[str, int]:
        """Options that a model of these data must have."""
        return {"d_x": 3 + self.elevation, "d_y": 1}

    @property
    def areas(self) -> tuple[Area | tuple[()], ...]:
        """Areas of the split, at least one; an empty area stands for all cells."""
        area: Any = self.area if self.split == "train" else self.test_area
        several = bool(area) and not isinstance(area[0], float | int)
        return tuple(area) if several else (area,)

    def check(self) -> None:
        """Check that the data exist and have enough valid cells.

        Raises RecipeError if not; it names the key that is wrong.
        """
        needs = ((self.window[0] - 1) * self.step_h + 1, *self.window[1:])
        for split in (self, self.held_out()):
            kind, prefix = split.split, _PREFIX[split.split]
            for area in split.areas:
                shape = _region(split, area).values.shape
                if any(n < need for n, need in zip(shape, needs, strict=True)):
                    raise RecipeError(
                        f"data.{prefix}{'period' if shape[0] < needs[0] else 'area'}: the {kind} windows need {needs} "
                        f"hours, rows and columns, but there are {shape}; choose a larger one"
                    )
                if (most := int(_valid_cells(split, area).max())) < self.min_valid:
                    cells = self.window[0] * self.window[1] * self.window[2]
                    raise RecipeError(
                        f"data.{f'{prefix}area' if cells >= self.min_valid else 'min_valid'}: no {kind} window has "
                        f"{self.min_valid} valid cells, at most {most} of its {cells}; choose another area, a larger "
                        "data.window or a smaller data.min_valid"
                    )

    def scales(self) -> Scales:
        """Means and standard deviations for standardisation."""
        return _scales(replace(self, split="train"))

    def fingerprint(self) -> str:
        """Hash of the training region, whatever its path."""
        region, digest = _region(replace(self, split="train"), self.area), hashlib.sha256()
        for part in (region.hours, region.latitude, region.longitude, region.values, region.elevation):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def on_grid(self, neighbourhood: Neighbourhood) -> Neighbourhood:
        """Neighbourhood for slices of a raster on the same grid, in the units of training.

        Differences in time and elevation are zero.
        """
        region, scales = _region(replace(self, split="train"), self.area), self.scales()
        per_row, per_column = (float(a[-1] - a[0]) / (len(a) - 1) for a in (region.latitude, region.longitude))
        axes = [(0.0, 0.0), (per_row / scales.x[1, 1], 0.0), (0.0, per_column / scales.x[1, 2])]
        axes += [(0.0, 0.0)] * self.elevation
        return replace(
            neighbourhood,
            axes=tuple((float(a), float(b)) for a, b in axes),
            spacing=(per_row, per_column),
            standard=scales.y,
        )

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` windows, see :func:`geonp.training.sources.draw`."""
        rng = np.random.default_rng([seed, index])
        x, y = self._windows(rng, size, self.areas[index % len(self.areas)])
        scales, n = self.scales(), x.shape[1]
        x = (x - scales.x[0, : x.shape[-1]]) / scales.x[1, : x.shape[-1]]
        y = (y - scales.y[0]) / scales.y[1]
        n_c = max(1, round(rng.uniform(*self.fraction) * n))
        order = np.argsort(rng.random((size, n)), 1)[..., None]
        xs, ys = (torch.from_numpy(np.take_along_axis(a, order, 1)).float() for a in (x, y))
        return split_at(xs, ys, n_c)

    def _windows(
        self, rng: np.random.Generator, size: int, area: Area | tuple[()]
    ) -> tuple[Float64Array, Float32Array]:
        """Draw windows: inputs ``(size, n, 3 or 4)`` and temperatures ``(size, n, 1)`` of their valid cells."""
        n, *sides = self.window
        region, valid_cells = _region(self, area), _valid_cells(self, area)
        hours, values, elevation = region.hours, region.values, region.elevation
        last = len(hours) - (n - 1) * self.step_h
        for _ in range(SETTINGS.max_draws):
            row, col = (rng.integers(m - k, endpoint=True) for m, k in zip(values.shape[1:], sides, strict=True))
            block = (slice(row, row + sides[0]), slice(col, col + sides[1]))
            frames = rng.integers(last, size=size)[:, None] + self.step_h * np.arange(n)
            if valid_cells[row, col] < self.min_valid:
                continue
            y = values[frames, *block]
            valid = np.isfinite(y).all((0, 1)) & np.isfinite(elevation[block])
            if valid.sum() * n >= self.min_valid:
                break
        else:
            raise RecipeError(
                f"data.{_PREFIX[self.split]}area: none of {SETTINGS.max_draws} {self.split} windows had "
                f"{self.min_valid} valid cells; choose another area or period, or a smaller data.min_valid"
            )
        grids = np.meshgrid(region.latitude[block[0]], region.longitude[block[1]], indexing="ij")
        columns = [hours[frames][..., None], *(grid[valid] for grid in (*grids, elevation[block]))]
        kept = columns if self.elevation else columns[:-1]
        shape = (size, n, int(valid.sum()))
        x = np.stack([np.broadcast_to(column, shape) for column in kept], -1)
        return x.reshape(size, -1, len(kept)), y[..., valid].reshape(size, -1, 1)


_PREFIX = {"train": "", "test": "test_"}
"""Prefix of the keys of a split."""


@dataclass(frozen=True, eq=False)
class _Region:
    """An area and period: hours since 2000, degrees, temperature ``(time, row, column)`` in K, and elevation in m."""

    hours: Float64Array
    latitude: Float64Array
    longitude: Float64Array
    values: Float32Array
    elevation: Float32Array


@lru_cache(maxsize=8)
def _region(data: Reanalysis, area: Area | tuple[()]) -> _Region:
    """Read one of the areas of a split in its period."""
    ds = _of_period(_open(data), data)
    if area:
        north, west, south, east = area
        inside = (ds["latitude"] <= north) & (ds["latitude"] >= south)
        ds = ds.sel(latitude=inside, longitude=(ds["longitude"] >= west) & (ds["longitude"] <= east))
    ds = ds.isel(latitude=slice(None, None, data.stride), longitude=slice(None, None, data.stride))
    _require_even(ds, data)
    hours = (ds["time"].values - np.datetime64("2000-01-01")) / np.timedelta64(1, "h")
    uneven = np.flatnonzero(np.abs(np.diff(hours) - 1) > 1e-6)
    if uneven.size:
        first, second = ds["time"].values[uneven[0] : uneven[0] + 2].astype("datetime64[m]")
        raise RecipeError(
            f"data.path: the times of {data.path} are not hourly: {first} is followed by {second}; complete them, "
            f"or choose data.{_PREFIX[data.split]}period without the gap"
        )
    values = ds["t2m"].transpose("time", "latitude", "longitude").values.astype(np.float32)
    elevation = (ds["z"].transpose("latitude", "longitude").values / GRAVITY).astype(np.float32)
    return _Region(hours, ds["latitude"].values, ds["longitude"].values, values, elevation)


def _require_even(ds: xr.Dataset, data: Reanalysis) -> None:
    for axis, advice in (("latitude", "without the gap"), ("longitude", "on one side of 180 degrees")):
        values = ds[axis].values.astype(np.float64)
        steps = np.diff(values)
        if not steps.size:
            continue
        usual = float(np.median(steps))
        worst = int(np.argmax(np.abs(steps - usual)))
        if abs(steps[worst] - usual) > SETTINGS.spacing * abs(usual):
            raise RecipeError(
                f"data.{_PREFIX[data.split]}area: the {axis}s of the {data.split} windows are not evenly spaced: "
                f"{values[worst]:g} is followed by {values[worst + 1]:g}, expected steps of {usual:g} degrees; choose "
                f"an area {advice}"
            )


@lru_cache(maxsize=8)
def _valid_cells(data: Reanalysis, area: Area | tuple[()]) -> IntArray:
    """Upper bound of the valid cells of the windows of an area, by their first row and column."""
    n, *sides = data.window
    region = _region(data, area)
    valid = np.isfinite(region.values).any(0) & np.isfinite(region.elevation)
    sums = np.pad(valid.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    rows, cols = sides
    per_frame = sums[rows:, cols:] - sums[:-rows, cols:] - sums[rows:, :-cols] + sums[:-rows, :-cols]
    return np.asarray(n * per_frame, np.intp)


def _of_period(ds: xr.Dataset, data: Reanalysis) -> xr.Dataset:
    key = f"{_PREFIX[data.split]}period"
    period: tuple[str, ...] = getattr(data, key)
    try:
        days = [date.fromisoformat(day).isoformat() for day in period]
    except ValueError as error:
        raise RecipeError(
            f"data.{key}: got {list(period)}, expected its first and last day, as in ['2019-03-01', '2019-03-17']"
        ) from error
    ds = ds if ds.indexes["time"].is_monotonic_increasing else ds.sortby("time")
    return ds.sel(time=slice(*days)) if days else ds


def _open(data: Reanalysis) -> xr.Dataset:
    """``t2m`` and ``z`` with increasing longitudes from -180 to 180."""
    ds = _read(data.path, "data.path")
    if not np.issubdtype(getattr(ds.indexes.get("time"), "dtype", object), np.datetime64):
        raise RecipeError(
            f"data.path: {data.path} has no dates along a dimension time, expected the hours of t2m as written by "
            "geonp fetch era5"
        )
    other = _read(data.geopotential, "data.geopotential") if data.geopotential else ds
    names = [name for name in ("z", "geopotential") if name in other]
    if "t2m" not in ds or (data.elevation and not names):
        raise RecipeError(
            f"data.path: {data.path} has {', '.join(map(str, ds.data_vars))}, expected t2m and z as written by geonp "
            "fetch era5; the geopotential may come from another file, data.geopotential"
        )
    if not names:
        return ds[["t2m"]].assign(z=xr.zeros_like(ds["t2m"].isel(time=0, drop=True)))
    surface = other[names[0]]
    surface = surface.isel(time=0, drop=True) if "time" in surface.dims else surface
    if other is not ds:
        surface = surface.reindex(latitude=ds["latitude"], longitude=ds["longitude"], method="nearest", tolerance=0.01)
    return ds[["t2m"]].assign(z=surface)


def _read(path: str, key: str) -> xr.Dataset:
    if not path or not Path(path).exists():
        raise RecipeError(
            f"{key}: no data at {path!r}: expected a Zarr store or NetCDF file; make one with geonp fetch era5, and "
            f"pass it as {key}=PATH"
        )
    engine: Any = "zarr" if Path(path).is_dir() else "netcdf4"
    try:
        ds = xr.open_dataset(path, engine=engine, chunks=None)
    except Exception as error:  # netCDF4, zarr, its codecs and xarray have no common class
        raise RecipeError(
            f"{key}: {path} cannot be read: {error}; expected a store or NetCDF file as written by geonp fetch era5"
        ) from error
    if problem := unfinished(path, ds.attrs):
        raise RecipeError(f"{key}: {problem}")
    missing = [axis for axis in ("latitude", "longitude") if axis not in ds.indexes]
    if missing:
        raise RecipeError(
            f"{key}: {path} has no coordinate {missing[0]} along a dimension of that name, expected latitude and "
            "longitude as written by geonp fetch era5"
        )
    return ds.assign_coords(longitude=(ds["longitude"].astype(float) + 180) % 360 - 180).sortby("longitude")


@lru_cache(maxsize=8)
def _scales(data: Reanalysis) -> Scales:
    region = _region(data, data.area)
    inputs = (region.hours, region.latitude, region.longitude, region.elevation)
    columns = [np.asarray(a, np.float64).ravel() for a in inputs]
    # the spread of flat land and of a single hour is zero
    x = np.array([[np.nanmean(c) for c in columns], [np.nanstd(c) or 1.0 for c in columns]])
    y = region.values.astype(np.float64)
    return Scales(x, (float(np.nanmean(y)), float(np.nanstd(y))))
