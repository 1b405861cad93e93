"""Nodata values that are not declared, collars and directions: what a user is warned of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import xarray as xr

from geonp.fill.infill import infill
from geonp.fill.store import fill_store
from geonp.raster.collar import Ends, cells_outside
from geonp.raster.kinds import is_direction
from geonp.raster.sentinels import Extremes, sentinels_of, suspects
from geonp.raster.windows import Window

VALUES = np.add.outer(np.arange(12.0), np.arange(14.0))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3, -9999, -9999], {-9999.0: 2}),
        ([1, 2, 3, 99999, -9999], {99999.0: 1, -9999.0: 1}),
        ([-120.0, -99.0, 30.0], {}),
        ([-99.0, 30.0, 20.0], {-99.0: 1}),
        ([-99.0, -60.0, 30.0], {}),
        ([np.float32(1e20), 0.5, np.nan, np.inf], {1e20: 1}),
        ([np.float32(9.96921e36), 0.5, 0.7], {9.969209968386869e36: 1}),
        ([255.0, 3.0, 20.0], {255.0: 1}),
        ([-1000.0, -1000.0, -1.8, 30.0], {-1000.0: 2}),
        ([-9999.0, -9998.0, -7777.0, 1.0, 2.0], {-9999.0: 1, -9998.0: 1, -7777.0: 1}),
        ([-9.99e8, 12.0, 13.0], {-9.99e8: 1}),
        ([np.finfo(np.float64).min, 12.0, 13.0], {np.finfo(np.float64).min: 1}),
        ([np.float32(-3.4e38), 1e35, 12.0, 13.0], {-3.4e38: 1, 1e35: 1}),
        ([100.0, 1000.0, 1.0, 2.0], {}),
        ([1e7, 1.0, 2.0], {}),
        ([-1e8, 1.0, 2.0], {-1e8: 1}),
        ([-99999999.0, 1.0, 2.0], {-99999999.0: 1}),
        ([-9999.0], {}),
        ([], {}),
    ],
)
def test_usual_nodata_values_far_from_others_are_suspect(values: list[float], expected: dict[float, int]) -> None:
    assert suspects([Extremes.of(np.array(values, np.float64))]) == expected
    assert suspects(Extremes.of(np.array([value], np.float64)) for value in values) == expected


def test_repeated_values_far_from_many_others_are_suspect() -> None:
    measured = np.linspace(3.0, 40.0, 30)
    converted = np.float64(-999999 * 0.028316846592)  # in cubic feet before
    assert suspects([Extremes.of(np.append(measured, [converted] * 3))]) == {converted: 3}
    assert suspects([Extremes.of(np.append(measured, [converted] * 2))]) == {}
    assert suspects([Extremes.of(np.append(measured, [150.0] * 3))]) == {}
    assert suspects([Extremes.of(np.append(measured, [9000.0] * 3))]) == {}  # clouds
    assert suspects([Extremes.of(np.append(measured, [1234567.0] * 3))]) == {1234567.0: 3}
    assert suspects([Extremes.of(np.array([0, 0, 1, 1, 2, 2, 50, 50, 50]))]) == {}


def test_suspects_of_packed_values_are_as_stored() -> None:
    packed = xr.DataArray(np.array([[-999.9, 1.0, 2.0]]))
    packed.encoding = {"scale_factor": 0.1, "dtype": np.dtype("i2")}
    assert suspects([Extremes.of(packed.values, sentinels_of(packed))]) == {-9999 * 0.1: 1}
    assert sentinels_of(packed.astype("i2"))[0] == -9999


@pytest.mark.parametrize("dtype", ["f4", "i2"])
def test_a_fill_warns_of_undeclared_nodata(tmp_path: Path, model: str, dtype: str) -> None:
    values = VALUES.astype(dtype)
    values[3:5, 4:8] = -9999
    values[8, 9] = -1
    ds = xr.Dataset({"a": (("y", "x"), values, {"_FillValue": np.dtype(dtype).type(-1)})})
    for filled in (lambda: infill(ds, model=model), lambda: fill_store(ds, tmp_path / "a.zarr", model=model)):
        with pytest.warns(UserWarning, match=r"a: 8 observed cells hold -9999, far from all.* \(--nodata -9999"):
            filled()


@pytest.mark.parametrize("side", [3, 40])
def test_cells_outside_the_footprint(side: int) -> None:
    rows, cols = np.mgrid[:20, :30]
    observed_mask = (abs(rows - 10) + abs(cols - 15) < 9) & ~((rows == 10) & (cols == 15))
    outside = sum(
        not (observed_mask[i, :j].any() and observed_mask[i, j:].any())
        and not (observed_mask[:i, j].any() and observed_mask[i:, j].any())
        for i, j in np.ndindex(observed_mask.shape)
        if not observed_mask[i, j]
    )
    windows = [
        Window(i, min(i + side, 20), j, min(j + side, 30)) for i in range(0, 20, side) for j in range(0, 30, side)
    ]
    parts = [Ends.of(observed_mask[w.row : w.row_end, w.col : w.col_end], w) for w in windows]
    assert cells_outside(parts, observed_mask.shape) == outside > 300
    none = Ends.of(np.zeros(observed_mask.shape, bool), Window(0, observed_mask.shape[0], 0, observed_mask.shape[1]))
    assert cells_outside([none], observed_mask.shape) == 0


@pytest.mark.parametrize(
    ("name", "attrs", "expected"),
    [
        ("wd", {"standard_name": "wind_from_direction", "units": "degree"}, True),
        ("x", {"long_name": "Wave direction", "units": "degrees true"}, True),
        ("aspect", {"units": "deg"}, True),
        ("wind_dir", {}, True),
        ("sun", {"standard_name": "solar_azimuth_angle", "units": "degrees"}, True),
        ("direction", {"units": "m s-1"}, False),
        ("t", {"standard_name": "air_temperature", "units": "degree"}, False),
        ("wdx", {"units": "degrees"}, False),
        ("lat", {"units": "degrees_north"}, False),
        ("waveDp", {"standard_name": "sea_surface_wave_from_direction", "units": "degreeT"}, True),
        ("wdir", {"units": "degrees (clockwise from north)"}, True),
        ("wd", {"standard_name": "wind_from_direction", "units": ""}, True),
        ("wd", {"standard_name": "wind_from_direction", "units": "10 degrees"}, False),
        ("sprd", {"standard_name": "sea_surface_wave_directional_spread", "units": "degree"}, False),
    ],
)
def test_directions_are_known_by_name_and_units(name: str, attrs: dict[str, str], expected: bool) -> None:
    assert is_direction(name, attrs) is expected


def test_a_fill_of_directions_warns(model: str) -> None:
    array = xr.DataArray(np.where(VALUES == 9, np.nan, VALUES), dims=("y", "x"), name="wind_direction")
    with pytest.warns(UserWarning, match="wind_direction: directions are filled as numbers.*circular=True"):
        infill(array, model=model)
    with pytest.warns(UserWarning, match=r"wind_direction: directions in radians are .*'degree'\)"):
        found = infill(array.assign_attrs(units="rad", actual_range=[0.0, 8.0]), model=model)
    assert "actual_range" not in found["wind_direction"].attrs  # which the filled cells may leave
    tens = array.rename("t").assign_attrs(standard_name="wind_from_direction", units="10 degrees")
    with pytest.warns(
        UserWarning, match=r"t: directions in '10 degrees' are .* to degrees, and set their units: ds\['t'\]\."
    ):
        infill(tens, model=model)
    with pytest.warns(UserWarning, match=r"M2_phase: phases are filled as numbers.*circular=True"):
        infill(array.rename("M2_phase").assign_attrs(units="degrees"), model=model)
    aspect = array.rename("aspect").assign_attrs(units="1")  # of an image
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infill(aspect, model=model)
        infill(array.rename("unwrapped_phase").assign_attrs(units="degrees"), model=model)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_values_at_the_edge_of_the_tolerance_are_counted_or_kept(dtype: str) -> None:
    for value in (1e6, 999_998, 999_999):  # of 999999
        found = Extremes.of(np.full(3, value, dtype), (999_999,))
        assert found.counts == ({} if found.least == value else {999_999: 3})


@pytest.mark.parametrize(
    ("name", "attrs", "warned"),
    [
        ("ESA_WorldCover_10m_Map", {}, True),
        ("LC_Type1", {}, True),
        ("a", {"long_name": "Land Cover Type 1 (IGBP)"}, True),
        ("QA_PIXEL", {}, True),
        ("class_error", {"units": "%"}, False),
        ("elevation", {}, False),
        ("mask_height", {}, False),
    ],
)
@pytest.mark.parametrize("how", [None, "numbers"])
def test_integers_with_the_name_of_classes_are_filled_as_numbers_with_a_warning(
    model: str, name: str, attrs: dict[str, str], warned: bool, how: Literal["numbers"] | None
) -> None:
    values = np.where(VALUES == 9, 255, VALUES > 9).astype("u1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        infill(xr.DataArray(values, dims=("y", "x"), name=name, attrs=attrs), model=model, nodata=255, as_=how)
    assert any("the name is that of classes or flags" in str(one.message) for one in caught) == (warned and not how)
