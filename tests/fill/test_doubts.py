"""What a fill warns of in the values of a raster, in memory, on dask and in stores alike."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from dask.distributed import Client

from geonp.errors import InputError
from geonp.fill.doubts import Watch
from geonp.fill.infill import infill
from geonp.fill.store import fill_store
from geonp.io.files import open_raster
from geonp.raster.variable import Variable

VALUES = 280 + np.add.outer(np.sin(np.arange(40.0)), np.arange(40.0)).astype("f4")
VALUES[20:24, 5:9] = np.nan


def geonp_warnings(fill: Callable[[], object]) -> list[str]:
    """The warnings of geonp."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fill()
    return [str(one.message) for one in caught if str(one.message).startswith("a: ")]


def array(values: np.ndarray, **attrs: Any) -> xr.DataArray:
    return xr.DataArray(values, dims=("y", "x"), name="a", attrs=attrs)


def fills(da: xr.DataArray, tmp_path: Path, model: str) -> dict[str, Callable[[], object]]:
    chunks = {"y": 10, "x": 20}
    return {
        "memory": lambda: infill(da, model=model),
        "one block": lambda: infill(da.chunk(), model=model).compute(),
        "blocks": lambda: infill(da.chunk(chunks), model=model).compute(),
        "store": lambda: fill_store(da.chunk(chunks), tmp_path / "a.zarr", chunks=16, model=model),
    }


def test_undeclared_nodata(tmp_path: Path, model: str) -> None:
    values = VALUES.copy()
    values[3:5, 4:30] = -9999
    for how, fill in fills(array(values), tmp_path, model).items():
        (text,) = geonp_warnings(fill)
        counted = r"at least (20|32)" if how == "blocks" else "52"
        assert re.match(f"a: {counted} observed cells hold -9999, far from all other values", text), how


@pytest.mark.parametrize(("scale", "nodata"), [(1.0, "-2147483648"), (0.01, "-21474836.48")])
def test_undeclared_nodata_is_named_with_all_digits(model: str, scale: float, nodata: str) -> None:
    values = VALUES.copy()
    values[3:5, 4:30] = scale * -(2.0**31)
    da = array(values)
    da.encoding = {"dtype": np.dtype("i4"), "scale_factor": scale, "_FillValue": -1}
    (text,) = geonp_warnings(lambda: infill(da, model=model))
    assert f"give nodata={nodata} (--nodata -2147483648, as stored in the file)" in text


@pytest.mark.parametrize("offset", [0, 2**60])
def test_integers_that_floats_round(tmp_path: Path, model: str, offset: int) -> None:
    values = np.where(np.isnan(VALUES), -9, VALUES * 100).astype("i8")
    da = xr.DataArray(np.where(values > 0, values + offset, -9), dims=("y", "x"), name="a", attrs={"_FillValue": -9})
    assert (infill(da, model=model)["a"].where(da > 0, -9) == da).all()  # integers in memory stay integers
    da.to_netcdf(tmp_path / "a.nc")
    texts = geonp_warnings(lambda: infill(open_raster(tmp_path / "a.nc"), model=model).compute())
    assert [("rounded to multiples of 256, observed cells too" in text) for text in texts] == [True] * bool(offset)


def test_a_part_of_a_lazy_raster_shows_its_nodata_once(model: str) -> None:
    values = VALUES.copy()
    values[0, 0] = values[39, 39] = -99
    values[1, 1] = 0  # too usual to be doubted in a part
    filled = infill(array(values).chunk(y=10), model=model)
    assert geonp_warnings(lambda: filled.isel(y=slice(0, 10)).compute()) == [
        "a: at least 1 observed cells hold -99, far from all other values. If they are missing, give nodata=-99 "
        "(--nodata -99, as stored in the file); for those of a covariate, declare it in its file."
    ]
    (zero,) = geonp_warnings(filled.compute)
    assert zero.startswith("a: 1 observed cells hold 0, far")
    assert geonp_warnings(filled.compute) == []


def test_zeros_beside_one_other_value_are_a_state(model: str) -> None:
    assert geonp_warnings(lambda: infill(array(np.where(np.isnan(VALUES), np.nan, VALUES > 290)), model=model)) == []


def codes(*values: int) -> np.ndarray:
    """Patches of codes of classes, in an order that is not theirs."""
    patches = np.random.default_rng(0).choice(values, (10, 10)).repeat(4, 0).repeat(4, 1)
    return np.where(np.isnan(VALUES), np.nan, patches)


def test_codes_of_classes_without_a_hint(tmp_path: Path, model: str) -> None:
    for how, fill in fills(array(codes(2, 3, 7, 11, 18)), tmp_path, model).items():
        (text,) = [one for one in geonp_warnings(fill) if "classes" in one]
        assert "holds 5 distinct whole numbers from 2 to 18, and jumps among them" in text, how


@pytest.mark.parametrize(
    ("name", "values", "attrs", "said"),
    [
        ("landcover", np.rint(VALUES / 4), {}, "and has the name of classes"),
        ("a", np.rint(VALUES / 4), {}, ""),  # neighbours differ by one
        ("a", codes(2, 3, 7, 11, 18), {"units": "years"}, ""),
        ("a", codes(*range(1, 90, 2)), {}, ""),  # too many for classes
    ],
)
def test_few_whole_numbers(
    model: str, name: str, values: np.ndarray, attrs: dict[str, str], said: str, recwarn: pytest.WarningsRecorder
) -> None:
    da = array(values, **attrs).rename(name)
    infill(da, model=model)
    found = [str(one.message) for one in recwarn if "distinct whole numbers" in str(one.message)]
    assert len(found) == bool(said)
    assert said in "".join(found)
    recwarn.clear()
    infill(da, model=model, as_="numbers")
    assert not [one for one in recwarn if "classes" in str(one.message)]


def test_rare_events(tmp_path: Path, model: str) -> None:
    rng = np.random.default_rng(0)
    counts = np.where(np.isnan(VALUES), np.nan, rng.poisson(0.15, VALUES.shape))
    for how, fill in fills(array(counts), tmp_path, model).items():
        (text,) = geonp_warnings(fill)
        assert "% of the observed values are 0, and most others lie alone" in text, how
        assert "--as counts" in text
    assert len(geonp_warnings(lambda: infill(array(np.minimum(counts, 1)), model=model))) == 1
    assert geonp_warnings(lambda: infill(array(counts), model=model, as_="numbers")) == []
    # neighbours are those in a row, wherever rows and columns are among the dimensions
    turned = array(counts).expand_dims("time").transpose("y", "x", "time")
    assert len(geonp_warnings(lambda: infill(turned, model=model))) == 1
    # patches of many are no events
    patches = rng.poisson(0.15, (10, 10)).repeat(4, 0).repeat(4, 1)
    assert geonp_warnings(lambda: infill(array(np.where(np.isnan(VALUES), np.nan, patches)), model=model)) == []


def test_a_pile_at_what_may_be_a_bound(tmp_path: Path, model: str) -> None:
    values = np.maximum(VALUES - 290, 0)
    for how, fill in fills(array(values), tmp_path, model).items():
        (text,) = geonp_warnings(fill)
        assert "% of the observed values are 0, the smallest" in text, how
    assert geonp_warnings(infill(array(values).chunk(y=10), model=model, bounds=(0, None)).compute) == []


def test_limits_that_most_values_are_beyond(tmp_path: Path, model: str) -> None:
    stored = np.where(np.isnan(VALUES), -1, 10 * VALUES).astype("i2")
    da = array(stored, _FillValue=np.int16(-1), valid_min=np.int16(200), valid_max=np.int16(2950))
    for how, fill in fills(da, tmp_path, model).items():
        (text,) = geonp_warnings(fill)
        assert "of the values are outside the valid range 200 to 2950" in text, how
    nodata = array(np.where(stored % 3, 32767, stored), _FillValue=np.int16(-1), valid_max=np.int16(32766))
    assert geonp_warnings(lambda: infill(nodata, model=model)) == []


def test_limits_that_all_values_are_beyond(model: str) -> None:
    """As of kelvins whose valid range is still that of degrees Celsius: xarray keeps attributes of sums."""
    da = array(VALUES, valid_range=np.array([-50.0, 60.0]))
    with pytest.raises(
        InputError, match=r"'a' has no observed cell.*from 279 to 320, are outside of the valid range -50 to 60"
    ):
        infill(da, model=model)
    with pytest.raises(InputError, match=r"'a' has no observed cell.*check the nodata value"):
        infill(array(np.full_like(VALUES, np.nan), valid_range=np.array([-50.0, 60.0])), model=model)


def test_a_worker_warns_of_its_blocks(model: str) -> None:
    values = VALUES.copy()
    values[3:5, 4:30] = -9999
    variable = Variable.of(array(values).chunk(y=10), ("y", "x"))
    watch = pickle.loads(pickle.dumps(replace(Watch.over(variable, 8, hint=True), pid=-1)))
    block = values[:10]
    assert geonp_warnings(lambda: watch.see((0, 0), block, np.isfinite(block))) == [
        "a: at least 52 observed cells hold -9999, far from all other values. If they are missing, give nodata=-9999 "
        "(--nodata -9999, as stored in the file); for those of a covariate, declare it in its file."
    ]
    assert geonp_warnings(lambda: watch.see((1, 0), block, np.isfinite(block))) == []


def test_the_warning_of_a_worker_reaches_the_client(model: str) -> None:
    values = VALUES.copy()
    values[3:5, 4:30] = -9999
    lazy = infill(array(values).chunk(), model=model)
    received: list[Any] = []
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as client:
        client.subscribe_topic("warn", lambda event: received.append(pickle.loads(event[1]["message"])))
        with pytest.warns(UserWarning, match="52 observed cells hold -9999"):
            lazy.compute()
        client.get_events("warn")  # after those before it
    assert received[0].startswith("a: 52 observed cells hold -9999")
