"""Windows of hourly reanalysis fields: the ERA5 benchmark of TE-TNP."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from pydantic import Field
from torch import Tensor

from geonp.errors import RecipeError
from geonp.inference.context import Neighbourhood
from geonp.io.stores import unfinished
from geonp.training.data.constraints import Count, FractionRange

__all__ = ["GRAVITY", "Reanalysis", "Scales"]

Batch = dict[str, Tensor]
Array = npt.NDArray[np.float32]
Area = tuple[float, float, float, float]
Side = Annotated[int, Field(ge=2)]

GRAVITY = 9.80665
"""Geopotential over elevation, m s-2."""
EVEN_TOLERANCE = 0.01
"""How much of a cell steps of latitude or longitude may differ by."""
MOST_DRAWS = 10_000
"""How often a block may be drawn again for its valid cells."""


@dataclass(frozen=True)
class Scales:
    """Means and standard deviations of the training region and period that everything is standardised by.

    Attributes
    ----------
    x : array
        ``(2, 4)``: mean and standard deviation of hours, latitude, longitude and elevation.
    y : tuple of float
        Of temperature, K.
    """

    x: npt.NDArray[np.float64]
    y: tuple[float, float]


@dataclass(frozen=True)
class Reanalysis:
    """Temperatures of windows in space and time, as in TE-TNP (ICML 2024, section F.4), from a Zarr store or NetCDF.

    A task is a block of `window` frames, rows and columns; frames are `step_h` hours apart. Its inputs are time,
    latitude, longitude and elevation. All tasks of a batch share the block in space and the fraction of cells that are
    context; their times differ. All other cells are targets. Everything is standardised by the training region.

    Attributes
    ----------
    path : str
        What ``geonp fetch era5`` made: ``t2m (time, latitude, longitude)`` and the geopotential ``z``.
    geopotential : str
        Another file with the geopotential, where `path` has none.
    area, test_area : tuple of float
        North, west, south, east of training and of held-out windows. Empty: all there is. Of several `test_area` the
        held-out batches take turns.
    period, test_period : tuple of str
        First and last day of training and of held-out windows. Empty: all there is.
    window : tuple of int
        Frames, rows, columns.
    fraction : tuple of float
        Smallest and largest fraction of the cells of a window that are context.
    min_valid : int
        A block with fewer valid cells than this, in its first frame times its frames, is drawn again.
    elevation : bool
        Whether elevation is an input.
    split : str
        Which of the windows are drawn.

    Notes
    -----
    The published figures were made from WFDE5, 0.5 degree and land only, probably with consecutive hours instead of
    frames 6 hours apart.
    """

    kind: Literal["era5"] = "era5"
    path: str = ""
    geopotential: str = ""
    area: Area | tuple[()] = ()
    period: tuple[str, str] | tuple[()] = ()
    test_area: Area | tuple[Area, ...] = ()
    test_period: tuple[str, str] | tuple[()] = ()
    window: tuple[Count, Side, Side] = (5, 15, 15)
    step_h: Count = 6
    fraction: FractionRange = (0.01, 0.3)
    min_valid: Count = 100
    elevation: bool = True
    split: Literal["train", "test"] = "train"

    @property
    def dimensions(self) -> dict[str, int]:
        """What a model of these data must be built with."""
        return {"d_x": 3 + self.elevation, "d_y": 1}

    @property
    def areas(self) -> tuple[Area | tuple[()], ...]:
        """Where windows of the split lie, at least one area; one that is empty is all there is."""
        area: Any = self.area if self.split == "train" else self.test_area
        several = bool(area) and not isinstance(area[0], float | int)
        return tuple(area) if several else (area,)

    def held_out(self) -> Reanalysis:
        """The same data, of which the held-out windows are drawn."""
        return replace(self, split="test")

    def check(self) -> None:
        """See that the data are there.

        Raises
        ------
        RecipeError
            Naming the key that is wrong.
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
                if (most := int(_room(split, area).max())) < self.min_valid:
                    cells = self.window[0] * self.window[1] * self.window[2]
                    raise RecipeError(
                        f"data.{f'{prefix}area' if cells >= self.min_valid else 'min_valid'}: no {kind} window has "
                        f"{self.min_valid} valid cells, at most {most} of its {cells}; choose another area, a larger "
                        "data.window or a smaller data.min_valid"
                    )

    def scales(self) -> Scales:
        """What inputs and values are standardised by."""
        return _scales(replace(self, split="train"))

    def fingerprint(self) -> str:
        """A hash of all that training sees, wherever its files lie."""
        region, digest = _region(replace(self, split="train"), self.area), hashlib.sha256()
        for part in (region.hours, region.latitude, region.longitude, region.values, region.elevation):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def seen_through(self, neighbourhood: Neighbourhood) -> Neighbourhood:
        """How filling reads a slice of a raster on the same grid, in the units of training.

        Differences of time and, as filling knows no elevation, of elevation are zero.
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
        mask = torch.ones(size, n_c, dtype=torch.bool)
        return {"xc": xs[:, :n_c], "yc": ys[:, :n_c], "context_mask": mask, "xt": xs[:, n_c:], "yt": ys[:, n_c:]}

    def _windows(
        self, rng: np.random.Generator, size: int, area: Area | tuple[()]
    ) -> tuple[npt.NDArray[np.float64], Array]:
        """Inputs ``(size, n, 3 or 4)`` and temperatures ``(size, n, 1)`` of the valid cells of windows."""
        n, *sides = self.window
        region, room = _region(self, area), _room(self, area)
        hours, values, elevation = region.hours, region.values, region.elevation
        last = len(hours) - (n - 1) * self.step_h
        for _ in range(MOST_DRAWS):
            row, col = (rng.integers(m - k, endpoint=True) for m, k in zip(values.shape[1:], sides, strict=True))
            block = (slice(row, row + sides[0]), slice(col, col + sides[1]))
            frames = rng.integers(last, size=size)[:, None] + self.step_h * np.arange(n)
            if room[row, col] < self.min_valid:
                continue
            y = values[frames, *block]
            valid = np.isfinite(y).all((0, 1)) & np.isfinite(elevation[block])
            if valid.sum() * n >= self.min_valid:
                break
        else:
            raise RecipeError(
                f"data.{_PREFIX[self.split]}area: none of {MOST_DRAWS} {self.split} windows had {self.min_valid} valid "
                "cells; choose another area or period, or a smaller data.min_valid"
            )
        grids = np.meshgrid(region.latitude[block[0]], region.longitude[block[1]], indexing="ij")
        columns = [hours[frames][..., None], *(grid[valid] for grid in (*grids, elevation[block]))]
        kept = columns if self.elevation else columns[:-1]
        shape = (size, n, int(valid.sum()))
        x = np.stack([np.broadcast_to(column, shape) for column in kept], -1)
        return x.reshape(size, -1, len(kept)), y[..., valid].reshape(size, -1, 1)


_PREFIX = {"train": "", "test": "test_"}
"""What the names of the keys of a split begin with."""


@dataclass(frozen=True, eq=False)
class _Region:
    """An area and period: hours since 2000, degrees, temperature ``(time, row, column)``, K, and elevation, m."""

    hours: npt.NDArray[np.float64]
    latitude: npt.NDArray[np.float64]
    longitude: npt.NDArray[np.float64]
    values: Array
    elevation: Array


@lru_cache(maxsize=8)
def _region(data: Reanalysis, area: Area | tuple[()]) -> _Region:
    """One of the areas of a split, in its period."""
    ds = _of_period(_open(data), data)
    if area:
        north, west, south, east = area
        inside = (ds["latitude"] <= north) & (ds["latitude"] >= south)
        ds = ds.sel(latitude=inside, longitude=(ds["longitude"] >= west) & (ds["longitude"] <= east))
    _require_even(ds, data)
    hours = (ds["time"].values - np.datetime64("2000-01-01")) / np.timedelta64(1, "h")
    uneven = np.flatnonzero(np.abs(np.diff(hours) - 1) > 1e-6)
    if uneven.size:
        first, second = ds["time"].values[uneven[0] : uneven[0] + 2].astype("datetime64[m]")
        raise RecipeError(
            f"data.path: the times of {data.path} are not hourly: {second} follows on {first}; complete them, or "
            f"choose data.{_PREFIX[data.split]}period without the break"
        )
    values = ds["t2m"].transpose("time", "latitude", "longitude").values.astype(np.float32)
    elevation = (ds["z"].transpose("latitude", "longitude").values / GRAVITY).astype(np.float32)
    return _Region(hours, ds["latitude"].values, ds["longitude"].values, values, elevation)


def _require_even(ds: xr.Dataset, data: Reanalysis) -> None:
    for axis, advice in (("latitude", "without the break"), ("longitude", "on one side of 180 degrees")):
        values = ds[axis].values.astype(np.float64)
        steps = np.diff(values)
        if not steps.size:
            continue
        usual = float(np.median(steps))
        worst = int(np.argmax(np.abs(steps - usual)))
        if abs(steps[worst] - usual) > EVEN_TOLERANCE * abs(usual):
            raise RecipeError(
                f"data.{_PREFIX[data.split]}area: the {axis}s of the {data.split} windows are not evenly spaced: "
                f"{values[worst + 1]:g} follows on {values[worst]:g}, expected steps of {usual:g} degrees; choose an "
                f"area {advice}"
            )


@lru_cache(maxsize=8)
def _room(data: Reanalysis, area: Area | tuple[()]) -> npt.NDArray[np.intp]:
    """How many valid cells the window at each first row and column has, at most; of one of the areas of a split."""
    n, *sides = data.window
    region = _region(data, area)
    valid = np.isfinite(region.values).any(0) & np.isfinite(region.elevation)
    sums = np.pad(valid.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    down, across = sides
    found = sums[down:, across:] - sums[:-down, across:] - sums[down:, :-across] + sums[:-down, :-across]
    return np.asarray(n * found, np.intp)


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
    """``t2m`` and ``z`` with longitudes from -180 to 180, rising."""
    ds = _read(data.path, "data.path")
    if not np.issubdtype(getattr(ds.indexes.get("time"), "dtype", object), np.datetime64):
        raise RecipeError(
            f"data.path: {data.path} has no dates along a dimension time, expected the hours of t2m as geonp fetch "
            "era5 makes them"
        )
    other = _read(data.geopotential, "data.geopotential") if data.geopotential else ds
    names = [name for name in ("z", "geopotential") if name in other]
    if "t2m" not in ds or (data.elevation and not names):
        raise RecipeError(
            f"data.path: {data.path} has {', '.join(map(str, ds.data_vars))}, expected t2m and z as geonp fetch era5 "
            "makes them; the geopotential may come from another file, data.geopotential"
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
            f"give it as {key}=PATH"
        )
    engine: Any = "zarr" if Path(path).is_dir() else "netcdf4"
    try:
        ds = xr.open_dataset(path, engine=engine, chunks=None)
    except Exception as error:  # of netCDF4, zarr, its codecs and xarray
        raise RecipeError(
            f"{key}: {path} cannot be read: {error}; expected a Zarr store or NetCDF file as geonp fetch era5 makes it"
        ) from error
    if problem := unfinished(path, ds.attrs):
        raise RecipeError(f"{key}: {problem}")
    missing = [axis for axis in ("latitude", "longitude") if axis not in ds.indexes]
    if missing:
        raise RecipeError(
            f"{key}: {path} has no coordinate {missing[0]} along a dimension of that name, expected latitude and "
            "longitude as geonp fetch era5 makes them"
        )
    return ds.assign_coords(longitude=(ds["longitude"].astype(float) + 180) % 360 - 180).sortby("longitude")


@lru_cache(maxsize=8)
def _scales(data: Reanalysis) -> Scales:
    region = _region(data, data.area)
    inputs = (region.hours, region.latitude, region.longitude, region.elevation)
    columns = [np.asarray(a, np.float64).ravel() for a in inputs]
    # flat land and a single hour have no spread
    x = np.array([[np.nanmean(c) for c in columns], [np.nanstd(c) or 1.0 for c in columns]])
    y = region.values.astype(np.float64)
    return Scales(x, (float(np.nanmean(y)), float(np.nanstd(y))))
