"""What units, place and mirrors change of a fill by the shipped model, at the precision that this machine is best at.

``benchmarks/equivariance.py`` measures the same on more rasters; ``test_properties.py`` has exact variants with a tiny
model.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr

from geonp.fill.infill import infill
from geonp.raster import gaps

Array = npt.NDArray[np.float64]

MODEL = "tnpkr-sa"
SIDE = 32


@cache
def raster() -> xr.DataArray:
    """A smooth, a rough and a noisy field with clouds, float64, whose coordinates begin at half a cell."""
    rng = np.random.default_rng(3)
    square = (2 * np.pi * np.hypot(np.fft.fftfreq(2 * SIDE)[:, None], np.fft.rfftfreq(2 * SIDE)[None, :])) ** 2
    slices = []
    for nu, length, noise in ((2.5, 10.0, 0.0), (0.5, 20.0, 0.0), (1.5, 10.0, 0.3)):
        white = np.fft.rfft2(rng.standard_normal((2 * SIDE, 2 * SIDE)))
        field = np.fft.irfft2(white * (1 + length**2 * square / (2 * nu)) ** (-(nu + 1) / 2))[:SIDE, :SIDE]
        values = 10 + 3 * (field / field.std() + noise * rng.standard_normal((SIDE, SIDE)))
        slices.append(np.where(gaps.cloud_gaps((SIDE, SIDE), 0.35, rng, scale=12), np.nan, values))
    axis = np.arange(SIDE) + 0.5
    return xr.DataArray(np.stack(slices), dims=("kind", "y", "x"), coords={"y": axis, "x": axis}, name="a")


def fill(source: xr.DataArray) -> tuple[Array, Array]:
    out = infill(source, model=MODEL)
    return out.a.values, out.a_standard_error.values


@cache
def plain() -> tuple[Array, Array]:
    return fill(raster())


def moved_by(value: Array, error: Array) -> tuple[Array, Array]:
    """Changes of the filled values and of their standard errors, in the latter."""
    missing = raster().isnull().values
    before, scale = plain()
    assert np.isfinite(scale[missing]).all()
    return tuple(np.abs(new - old)[missing] / scale[missing] for new, old in ((value, before), (error, scale)))


@pytest.mark.parametrize("constant", [1.0, -1e3, 1e6])
def test_a_constant_added_to_the_values_is_added_to_the_fill(constant: float) -> None:
    value, error = fill(raster() + constant)
    assert max(d.max() for d in moved_by(value - constant, error)) < 1e-3


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_other_units_give_the_fill_in_other_units(factor: float) -> None:
    value, error = fill(raster() * factor)
    assert max(d.max() for d in moved_by(value / factor, error / factor)) < 1e-3


def test_a_million_cells_away_the_fill_is_the_same() -> None:
    source = raster()
    value, error = fill(source.assign_coords(y=source.y + 1e6, x=source.x - 1e6))
    assert max(d.max() for d in moved_by(value, error)) < 1e-3


@pytest.mark.parametrize("axis", [1, 2])
def test_a_mirrored_raster_gives_a_mirrored_fill(axis: int) -> None:
    source = raster()
    value, error = fill(source.copy(data=np.flip(source.values, axis).copy()))
    assert moved_by(np.flip(value, axis), np.flip(error, axis))[0].mean() < 0.1
