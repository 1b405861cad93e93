"""The shipped model's fill shows no borders of tiles; ``benchmarks/seams.py`` measures it on more fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from geonp.fill.infill import infill
from geonp.inference.checkpoint import load_card
from geonp.inference.places import PLACES
from geonp.raster import gaps

MODEL = "tnpkr-sa"
SIDE = 96


def test_gradients_across_the_borders_of_tiles_are_no_steeper_than_inside() -> None:
    tile_px = load_card(MODEL).neighbourhood.tile_px
    rng = np.random.default_rng(5)
    field = rough(rng)
    gap = gaps.cloud_gaps(field.shape, 0.5, rng, scale=50.0)
    filled = infill(xr.DataArray(np.where(gap, np.nan, field), dims=("y", "x"), name="a"), model=MODEL).a.values
    # the bar of the benchmark is 1.02; of so few borders some 0.05 are chance
    assert steeper(filled, gap, np.arange(1, SIDE) % tile_px == 0) < 1.1


def test_nor_are_those_of_a_fill_between_the_cells_of_a_wide_gap() -> None:
    y, x = np.mgrid[:SIDE, :SIDE]
    gap = np.hypot(y - 48, x - 46) < 30
    da = xr.DataArray(np.where(gap, np.nan, rough(np.random.default_rng(5))), dims=("y", "x"), name="a")
    da = da.assign_coords(y=y[:, 0], x=x[0])
    between = {name: (name, np.arange(20.5, 76)) for name in ("y", "x")}
    found = infill(da, at=xr.Dataset(coords=between), model=MODEL)
    deep = np.hypot(found.y - 48, found.x - 46).values < 27
    border = (np.round(found.y.values[1:] + 0.5) % PLACES.side_px) == 0
    assert steeper(found.a_standard_error.values, deep, border) < 1.15
    assert steeper(found.a.values, deep, border) < 1.1


def rough(rng: np.random.Generator) -> Any:
    """A field with detail of all sizes."""
    k = np.hypot(np.fft.fftfreq(2 * SIDE)[:, None], np.fft.rfftfreq(2 * SIDE)[None, :])
    white = np.fft.rfft2(rng.standard_normal((2 * SIDE, 2 * SIDE)))
    return np.fft.irfft2(white * (1 + (60 * k) ** 2) ** -1.1)[:SIDE, :SIDE]


def steeper(values: Any, gap: Any, border: Any) -> float:
    """Gradients in a gap across borders of tiles, divided by those elsewhere."""
    steps: tuple[list[float], list[float]] = ([], [])
    for v, g in ((values, gap), (values.T, gap.T)):
        both = g[1:] & g[:-1]
        across = np.broadcast_to(border[:, None], both.shape)
        for found, where in zip(steps, (both & across, both & ~across), strict=True):
            found.extend(np.abs(np.diff(v, axis=0))[where])
    return float(np.mean(steps[0]) / np.mean(steps[1]))
