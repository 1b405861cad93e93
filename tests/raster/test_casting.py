"""Filled values at the ends of what their dtype and their model can represent."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.inference.context import standardise
from geonp.raster.casting import fitting, nearest_integers


def test_filled_floats_never_overflow() -> None:
    values, filled_mask = np.array([7e4, -7e4, 1.5, 3.0], "f4"), np.array([True, True, True, False])
    result = fitting(np.dtype("f2"), (), {})(values, filled_mask)
    assert result.dtype == np.float16
    assert result.tolist() == [65504, -65504, 1.5, 3]


def test_filled_integers_of_64_bits_are_not_clipped_to_what_floats_hold() -> None:
    values = np.array([2.0**60, -(2.0**63), 1e19, 5.4])
    assert nearest_integers(values, np.dtype("i8"), (-(2**63),)).tolist() == [2**60, 1 - 2**63, 2**63 - 1, 5]


def test_a_filled_integer_is_none_of_several_nodata_values() -> None:
    assert nearest_integers(np.array([7.2, 5.9, 9.0]), np.dtype("u1"), (7, 8, 6)).tolist() == [9, 5, 9]


def test_a_nodata_value_that_integers_cannot_hold_keeps_none_from_filled_cells() -> None:
    assert nearest_integers(np.array([0.1, 1.2]), np.dtype("i2"), (0.5,)).tolist() == [0, 1]


@pytest.mark.parametrize("limits", [(300.0, 400.0), (-5.0, -1.0)])
def test_limits_beyond_the_dtype_are_no_values_of_it(limits: tuple[float, float]) -> None:
    """Filling a store of which no value is valid ended in an OverflowError."""
    assert nearest_integers(np.zeros(0), np.dtype("u1"), (), limits).dtype == np.uint8


def test_values_of_any_magnitude_are_standardised_alike() -> None:
    values = np.array([1.0, 2.0, 4.0, 3.0])
    small = standardise(values * 1e-40)
    np.testing.assert_allclose(small.z, standardise(values).z, rtol=1e-6)
    assert small.scale == pytest.approx(1e-40 * values.std())
    assert standardise(np.zeros(4)).scale == 1e-30


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("wrong", [500.0, -32.768])
def test_observed_values_that_their_packing_cannot_hold_are_refused(lazy: bool, wrong: float) -> None:
    first = xr.DataArray(np.arange(30.0).reshape(5, 6), dims=("y", "x"), name="z")
    both = xr.concat([first, xr.full_like(first, wrong)], "t").where(first != 7)
    both.encoding = {"dtype": np.dtype("i2"), "scale_factor": 1e-3, "add_offset": 0.0, "_FillValue": -32768}
    raster = both.chunk(t=1) if lazy else both
    with pytest.raises(
        InputError, match=rf"got {wrong:g}, expected -32.768 to 32.767 and no nodata, for int16.*drop_enc"
    ):
        geonp.infill(raster).compute()
    filled = geonp.infill(raster.drop_encoding()).compute()
    np.testing.assert_array_equal(filled["z"][1].where(first != 7, wrong), wrong)
