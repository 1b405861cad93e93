"""Far context of wide gaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr

import geonp
from geonp.inference.checkpoint import load_card, load_model, save
from geonp.inference.context import Neighbourhood
from geonp.inference.far import FAR, block_sums, far_context
from geonp.inference.limits import neighbourhood_errors
from geonp.raster.windows import Window

NEAR = Neighbourhood(n_context=64, far=((4, 12), (16, 12)))


def ramp(window: Window) -> npt.NDArray[np.float64]:
    """A plane, so that the mean of a block is its value at the mean place of the observed cells."""
    rows, cols = np.arange(window.row, window.row_end)[:, None], np.arange(window.col, window.col_end)
    return 1000.0 + 3.0 * rows - 2.0 * cols


def test_blocks_are_means_of_observed_cells_at_their_mean_place() -> None:
    window, rng = Window(-64, 192, -64, 192), np.random.default_rng(1)
    values = ramp(window)
    values[rng.random(values.shape) < 0.5] = np.nan
    values[:64] = np.nan
    places, means = far_context(
        block_sums(values, window, NEAR), np.array([[64, 64], [80, 80]]), NEAR, seed=0, period=None
    )
    assert means.size == 24
    # places are rounded to sixteenths of a cell
    np.testing.assert_allclose(means, 1000 + places @ [3.0, -2.0], atol=5 / 32 + 1e-9)
    assert places[:, 0].min() > 0


def test_blocks_with_few_observations_are_no_context() -> None:
    window = Window(-64, 192, -64, 192)
    values = np.where(np.random.default_rng(2).random(ramp(window).shape) < 0.1, ramp(window), np.nan)
    box, sparse = np.array([[64, 64], [80, 80]]), replace(NEAR, far=((16, 12),))
    assert far_context(block_sums(values, window, sparse), box, sparse, seed=0, period=None)[1].size == 0


def test_rough_blocks_are_no_context() -> None:
    window, box = Window(-64, 192, -64, 192), np.array([[64, 64], [80, 80]])
    noise = np.random.default_rng(3).normal(size=ramp(window).shape)
    for roughness, n in ((1.0, 24), (300.0, 0)):
        values = ramp(window) + roughness * noise
        assert far_context(block_sums(values, window, NEAR), box, NEAR, seed=0, period=None)[1].size == n


def test_a_periodic_raster_shows_no_block_twice() -> None:
    model = replace(NEAR, far=((4, 500),))
    window = Window(-128, 144, -128, 144)
    values = np.tile(np.arange(96.0), 3)[None, : window.shape[1]] + np.zeros(window.shape)
    box = np.array([[0, 0], [16, 16]])
    places, _ = far_context(block_sums(values, window, model), box, model, seed=0, period=96)
    columns = places[:, 1] % 96
    assert np.ptp(places[:, 1]) < 96
    assert len(set(zip(places[:, 0], columns, strict=True))) == len(places)
    assert len(places) == 500
    assert FAR.reach * 4 < 128


@pytest.fixture(scope="module")
def strait() -> xr.DataArray:
    """A field with a gap of 250 columns: its middle is farther from data than single cells reach."""
    rows, cols = np.arange(16.0)[:, None], np.arange(330.0)
    values = 280 + 8 * np.cos(cols / 110) + np.sin(rows / 9 + cols / 25)
    values[:, 40:290] = np.nan
    return xr.DataArray(values, dims=("y", "x"), name="sst")


@pytest.fixture(scope="module")
def far_model(drift_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small model with far context: any reads the same of it."""
    network, card = load_model(drift_model)
    fields = card.model_dump(exclude={"parameters", "sha256", "settings_sha256", "format"})
    fields["neighbourhood"] |= {"n_context": 64, "far": NEAR.far}
    file = tmp_path_factory.mktemp("far") / "far.safetensors"
    save(network, file, **fields)
    return str(file)


@pytest.fixture(scope="module")
def filled(strait: xr.DataArray, far_model: str) -> xr.Dataset:
    return geonp.infill(strait, model=far_model)


def test_the_middle_of_a_wide_gap_is_filled_from_both_shores(strait: xr.DataArray) -> None:
    filled = geonp.infill(strait)
    reach = load_card("tnpkr-sa").neighbourhood.reach_px
    beyond = filled.sst.values[:, 40 + reach + 8 : 290 - reach - 8]
    assert beyond.size
    assert np.isfinite(beyond).all()
    # east of the gap it is colder by 13 degrees: neither shore alone tells the middle
    west, east = strait.values[:, 30:40].mean(), strait.values[:, 290:300].mean()
    assert min(west, east) < beyond.mean() < max(west, east)


def test_chunks_do_not_change_wide_gaps(strait: xr.DataArray, filled: xr.Dataset, far_model: str) -> None:
    parts = geonp.infill(strait.chunk(y=10, x=100), model=far_model).compute()
    for name in ("sst", "sst_standard_error"):
        np.testing.assert_allclose(parts[name], filled[name], atol=1e-3)


def test_stores_read_the_far_shore(strait: xr.DataArray, filled: xr.Dataset, far_model: str, tmp_path: Path) -> None:
    strait.to_netcdf(tmp_path / "in.nc")
    with xr.open_dataset(tmp_path / "in.nc") as source:
        geonp.fill_store(source, tmp_path / "out.zarr", chunks=110, model=far_model)
    with xr.open_zarr(tmp_path / "out.zarr") as store:
        np.testing.assert_allclose(store.sst, filled.sst, atol=1e-4)


def test_far_values_outside_of_the_mask_are_not_read(strait: xr.DataArray, far_model: str) -> None:
    domain = xr.ones_like(strait, bool)
    domain[:, 300:] = False
    odd = strait.copy()
    odd[:, 300:] += 50
    expected = geonp.infill(strait, mask=domain, model=far_model).sst.values[:, :290]
    for obj in (odd, odd.chunk(x=110)):
        inside = geonp.infill(obj, mask=domain, model=far_model).sst.values[:, :290]
        np.testing.assert_allclose(inside, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("far", "message"),
    [(((1, 8),), "sides of blocks above 1"), (((4, 8), (6, 8)), "a multiple"), (((4, 300),), "fewer points")],
)
def test_impossible_blocks_are_refused(far: tuple[tuple[int, int], ...], message: str) -> None:
    (problem,) = neighbourhood_errors(Neighbourhood(far=far), 2)
    assert message in problem
