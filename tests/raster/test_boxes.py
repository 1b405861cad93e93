"""Bounding boxes in any convention of longitudes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.io.files import open_raster
from geonp.raster.boxes import select_box
from geonp.raster.grid import Grid


def world(first: float, count: int = 36, step: float = 10.0, dtype: str = "float64") -> xr.Dataset:
    """Rows at 20, 10, ... -20 degrees; each value is its longitude from 0 to 360."""
    lon = (first + step * np.arange(count)).astype(dtype)
    values = np.broadcast_to(lon % 360, (5, count))
    return xr.Dataset({"a": (("lat", "lon"), values)}, {"lat": 20.0 - 10 * np.arange(5), "lon": lon})


@pytest.mark.parametrize("first", [0.0, -180.0, -90.0, 360.0])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize(
    ("west", "east", "expected"),
    [
        (-20, 20, [-20, -10, 0, 10, 20]),
        (340, 380, [340, 350, 360, 370, 380]),
        (340, 20, [340, 350, 360, 370, 380]),
        (160, 200, [160, 170, 180, 190, 200]),
        (160, -160, [160, 170, 180, 190, 200]),
        (-200, -160, [-200, -190, -180, -170, -160]),
        (-45, -25, [-40, -30]),
        (315, 335, [320, 330]),
        (40, 50, [40, 50]),
    ],
)
def test_longitudes_of_any_convention(first: float, dtype: str, west: float, east: float, expected: list[int]) -> None:
    cut = select_box(world(first, dtype=dtype), (west, -10, east, 10))
    assert cut["lon"].values.tolist() == expected
    assert cut["lat"].values.tolist() == [10, 0, -10]
    np.testing.assert_array_equal(cut["a"], np.broadcast_to(np.mod(expected, 360), (3, len(expected))))
    assert Grid.from_xarray(cut).regular


def test_descending_longitudes_stay_so() -> None:
    cut = select_box(world(0).isel(lon=slice(None, None, -1)), (-20, -10, 20, 10))
    assert cut["lon"].values.tolist() == [20, 10, 0, -10, -20]
    assert cut["a"].values[0].tolist() == [20, 10, 0, 350, 340]


@pytest.mark.parametrize(("first", "box"), [(0.0, (-20, 20)), (-180.0, (160, 200))])
def test_a_repeated_column_comes_once(first: float, box: tuple[float, float]) -> None:
    cut = select_box(world(first, count=37), (box[0], -10, box[1], 10))
    assert cut["lon"].values.tolist() == list(range(box[0], box[1] + 1, 10))


@pytest.mark.parametrize("box", [(-180, 180), (0, 360), (-180, -180 + 359)])
def test_the_whole_world_is_kept(box: tuple[float, float]) -> None:
    cut = select_box(world(5), (box[0], -90, box[1], 90))
    assert sorted(cut["a"].values[0]) == list(range(5, 360, 10))


def test_bounds_of_longitudes_move_along() -> None:
    ds = world(5)
    ds["lon"].attrs["bounds"] = "lon_bnds"
    ds["lon_bnds"] = (("lon", "bnds"), ds["lon"].values[:, None] + [-5.0, 5.0])
    cut = select_box(ds, (-20, -10, 20, 10))
    np.testing.assert_array_equal(cut["lon_bnds"], cut["lon"].values[:, None] + [-5.0, 5.0])


def test_boxes_that_are_refused() -> None:
    region = world(20, count=32)  # 20 to 330 degrees
    with pytest.raises(InputError, match=r"two parts of the raster with a gap .* no column between -30 and 20"):
        select_box(region, (-40, -10, 30, 10))
    with pytest.raises(InputError, match=r"holds no cell: got -25 to 15 along 'lon', expected a part of 20 to 330"):
        select_box(region, (-25, -10, 15, 10))
    projected = region.rename(lat="y", lon="x")
    with pytest.raises(InputError, match=r"holds no cell: got -40 to 10 along 'x'"):
        select_box(projected, (-40, -10, 10, 10))


def test_a_box_across_the_first_column_of_a_file_is_lazy(tmp_path: Path) -> None:
    world(0).to_netcdf(tmp_path / "world.nc")
    for chunks in (None, "auto"):
        cut = open_raster(tmp_path / "world.nc", bbox=(-20, -10, 20, 10), chunks=chunks)  # type: ignore[arg-type]
        assert cut["a"].chunks is not None or not cut["a"].variable._in_memory
        assert cut["a"].values[0].tolist() == [340, 350, 0, 10, 20]


def test_no_box_is_cut_without_coordinates() -> None:
    with pytest.raises(InputError, match="A bounding box cannot be used: the dimension 'lat' has no coordinate"):
        select_box(world(0.0).drop_vars("lat"), (0, 0, 20, 20))
