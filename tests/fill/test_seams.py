"""The shipped model's fill shows no borders of tiles; ``benchmarks/seams.py`` measures it on more fields."""

from __future__ import annotations

import numpy as np
import xarray as xr

from geonp.fill.infill import infill
from geonp.inference.checkpoint import load_card
from geonp.raster import gaps

MODEL = "tnpkr-sa"
SIDE = 96


def test_gradients_across_the_borders_of_tiles_are_no_steeper_than_inside() -> None:
    tile_px = load_card(MODEL).neighbourhood.tile_px
    rng = np.random.default_rng(5)
    k = np.hypot(np.fft.fftfreq(2 * SIDE)[:, None], np.fft.rfftfreq(2 * SIDE)[None, :])
    white = np.fft.rfft2(rng.standard_normal((2 * SIDE, 2 * SIDE)))
    field = np.fft.irfft2(white * (1 + (60 * k) ** 2) ** -1.1)[:SIDE, :SIDE]
    gap = gaps.cloud_gaps(field.shape, 0.5, rng, scale=50.0)
    filled = infill(xr.DataArray(np.where(gap, np.nan, field), dims=("y", "x"), name="a"), model=MODEL).a.values
    steps: tuple[list[float], list[float]] = ([], [])
    for v, g in ((filled, gap), (filled.T, gap.T)):
        both = g[1:] & g[:-1]
        border = np.broadcast_to((np.arange(1, SIDE) % tile_px == 0)[:, None], both.shape)
        for found, where in zip(steps, (both & border, both & ~border), strict=True):
            found.extend(np.abs(np.diff(v, axis=0))[where])
    # the bar of the benchmark is 1.02; of so few borders some 0.05 are chance
    assert np.mean(steps[0]) / np.mean(steps[1]) < 1.1
