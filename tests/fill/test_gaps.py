"""Gaps are filled or left as a whole: the same in memory, in any chunks, and by units of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.fill import gaps
from geonp.raster.gap_masks import GapRule
from geonp.raster.metadata import FillFlag
from geonp.raster.parts import PartSettings

SHAPE = (2, 40, 44)


@pytest.fixture(scope="module")
def stack() -> xr.Dataset:
    """Two slices with gaps of several sizes across the borders of all chunks, and a corner that none of them sees."""
    y, x = np.mgrid[:40, :44]
    rng = np.random.default_rng(0)
    values = np.stack([np.sin(y / 8) + np.cos(x / 9)] * 2).astype("f4") + 0.1 * rng.standard_normal(SHAPE).astype("f4")
    values[:, y + x < 14] = np.nan
    values[0, 12:20, 10:30] = values[0, 20:33, 26:29] = np.nan  # wide, with a tail
    values[0, 35:38, 5:20] = values[1, 12:16, 12:17] = np.nan
    values[1, 30:, 40:] = np.nan  # at the edge, but seen by the other slice
    return xr.Dataset({"a": (("time", "y", "x"), values)})


CASES: list[dict[str, Any]] = [
    {"holes": True},
    {"max_gap": 3},
    {"max_gap": 5, "holes": True},
    {"max_gap": 4, "mask": np.arange(44) < np.full((40, 1), 42)},
]


def expected(stack: xr.Dataset, holes: bool = False, max_gap: int | None = None, mask: Any = True) -> np.ndarray:
    """Where cells are filled."""
    missing = np.isnan(stack["a"].values) & mask
    inside = GapRule(holes=True)(missing.all(0)) if holes else np.ones(SHAPE[1:], bool)
    kept = [GapRule(max_gap=max_gap)(each) for each in missing]
    return missing & inside & np.stack(kept)


@pytest.mark.parametrize("options", CASES)
def test_the_same_gaps_are_filled_however_the_raster_is_cut(
    stack: xr.Dataset, options: dict[str, Any], model: str, tmp_path: Path, computes_nothing: Any
) -> None:
    wanted = expected(stack, **options)
    assert 0 < wanted.sum() < np.isnan(stack["a"].values).sum()
    fills = {"memory": stack.geonp.infill(model=model, **options)}
    with computes_nothing():
        lazy = stack.chunk({"time": 1, "y": 17, "x": 15}).geonp.infill(model=model, **options)
        assert lazy["a"].chunks == ((1, 1), (17, 17, 6), (15, 15, 14))
    fills["dask"] = lazy.compute()
    stack.to_netcdf(tmp_path / "in.nc", engine="netcdf4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "PARTS", PartSettings(cells=44 * 7))
        opened = geonp.open_raster(tmp_path / "in.nc", chunks=None)
        geonp.fill_store(opened, tmp_path / "out.zarr", chunks=16, model=model, **options)
    fills["store"] = xr.open_zarr(tmp_path / "out.zarr").load()
    for how, found in fills.items():
        flag = found["a_fill_flag"].values
        np.testing.assert_array_equal(flag == FillFlag.FILLED, wanted, how)
        np.testing.assert_array_equal(flag == FillFlag.OUTSIDE_DOMAIN, np.isnan(stack["a"].values) & ~wanted)
        np.testing.assert_allclose(found["a"].values, fills["memory"]["a"].values, atol=1e-4)


def test_slices_too_large_for_memory_are_refused(
    stack: xr.Dataset, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "PARTS", PartSettings(slice_cells=40 * 44 - 1))
    for options in ({"holes": True}, {"max_gap": 3}):
        with pytest.raises(InputError, match=r"got 40 x 44 cells, expected at most 1,759\. .* fill_store"):
            stack.geonp.infill(model=model, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_gap": 0}, "max_gap must be a number of cells, at least 1, got 0"),
        ({"max_gap": 2.5}, "max_gap must be a number of cells, at least 1, got 2.5"),
        ({"holes": 1}, "holes must be True or False, got 1"),
        (
            {"max_gap": 3, "across": "time", "empty_slices": True},
            "empty_slices cannot be combined with max_gap, .*: got max_gap=3",
        ),
    ],
)
def test_what_is_refused(stack: xr.Dataset, model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        stack.geonp.infill(model=model, **options)


def test_the_memory_of_the_plan_grows_with_the_slice(stack: xr.Dataset, model: str) -> None:
    plans = [stack.geonp.plan(model=model, **options).peak_bytes for options in ({}, {"max_gap": 3})]
    assert plans[1] - plans[0] >= 40 * 44 * 9
