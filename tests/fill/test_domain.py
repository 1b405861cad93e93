"""Valid domains from arrays."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import xarray as xr

from geonp.fill.domain import domain_of
from geonp.raster.grid import Grid


@pytest.mark.parametrize(
    ("attrs", "doubted"),
    [
        ({"flag_values": np.array([1, 2], "i1"), "flag_meanings": "sea land"}, True),
        ({"flag_masks": np.array([1, 2, 4], "i1"), "flag_meanings": "water land lake"}, True),
        ({"flag_values": np.array([0, 1], "i1"), "flag_meanings": "land sea"}, False),
        ({}, False),
    ],
)
def test_masks_of_flags_that_are_never_0_are_doubted(attrs: dict[str, Any], doubted: bool) -> None:
    """As of GHRSST, where water is 1 and land 2: all cells are valid."""
    mask = xr.DataArray(np.array([[1, 2], [2, 1]], np.int8), dims=("y", "x"), attrs=attrs)
    grid = Grid.from_xarray(mask)
    with pytest.warns(UserWarning, match="mask holds flags .*land.*mask == 1") if doubted else nullcontext():
        assert domain_of(mask, grid).all()
    assert domain_of(mask == 1, grid).tolist() == [[True, False], [False, True]]
    with xr.set_options(keep_attrs=True):
        assert not domain_of(mask == 0, grid).any()
