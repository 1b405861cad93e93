"""Neighbouring slices as predictors: what is learned from them, when they are no help, and on every path."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import cftime
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from scipy import ndimage

from geonp.errors import InputError
from geonp.evaluation.compare import evaluate
from geonp.evaluation.scored import OURS, WITH_SLICES
from geonp.fill.infill import infill
from geonp.fill.plan import plan
from geonp.fill.region import VariableSource
from geonp.fill.store import fill_store
from geonp.inference.stack import STACK, background, backgrounds, beside, combined
from geonp.inference.student import crps
from geonp.io.files import open_raster
from geonp.raster.metadata import FillFlag
from geonp.raster.parts import PartSettings

from ..commands import cli

pytestmark = pytest.mark.usefixtures("float32")

Array = npt.NDArray[np.float64]


def rough(rng: np.random.Generator, *shape: int) -> Array:
    """A field of standard deviation 1 with a grain of about two cells."""
    field = ndimage.gaussian_filter(rng.normal(size=shape), 2.0, mode="wrap", axes=(-2, -1))
    return np.asarray(field / field.std())


def gaps(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.bool_]:
    """A third of the cells of each slice, in blobs of some twelve cells."""
    field = ndimage.gaussian_filter(rng.normal(size=shape), 6.0, mode="wrap", axes=(-2, -1))
    return field > np.quantile(field, 2 / 3, axis=(-2, -1), keepdims=True)


def stack(own: float, slices: int = 5, size: int = 64, seed: int = 0) -> tuple[xr.DataArray, Array]:
    """A pattern that all slices share, each of its own contrast and level, and so much that each has alone."""
    rng = np.random.default_rng(seed)
    shared = rough(rng, size, size)
    contrast, level = rng.uniform(0.5, 2, (2, slices, 1, 1))
    truth = contrast * (shared + own * rough(rng, slices, size, size)) + 10 * level
    values = np.where(gaps(rng, slices, size, size), np.nan, truth)
    return xr.DataArray(values, dims=("time", "y", "x"), name="a"), truth


def scores(filled: xr.Dataset, truth: Array, counted: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Mean CRPS over the standard deviation of each slice, and how often the 95 % interval holds the truth."""
    mean, error, tail = (filled[name].values[counted] for name in ("a", "a_standard_error", "a_tail"))
    spread = np.broadcast_to(truth.std((1, 2), keepdims=True), truth.shape)[counted]
    inside = np.abs(truth[counted] - mean) <= 1.96 * error
    return float((crps(truth[counted], mean, error, tail) / spread).mean()), float(inside.mean())


# --- which slices, and what they tell ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, STACK.slices + 1, 40])
def test_the_nearest_slices_are_read(size: int) -> None:
    for index in range(size):
        found = beside(index, range(size))
        assert len(found) == len(set(found)) == min(STACK.slices, size - 1)
        assert index not in found
        farthest = max((abs(i - index) for i in found), default=0)
        left_out = [i for i in range(size) if i != index and i not in found]
        assert all(abs(i - index) > STACK.slices // 2 for i in left_out)
        assert farthest <= STACK.slices


def test_a_slope_and_a_level_are_found() -> None:
    rng = np.random.default_rng(1)
    other = rough(rng, 80, 80)
    values = 3.0 - 2.0 * other + 1e-3 * rough(rng, 80, 80)
    values[20:60, 20:60] = np.nan
    found = background(values, other[None])
    assert found is not None
    hidden = found(other[None, 20:60, 20:60]) - (3.0 - 2.0 * other[20:60, 20:60])
    # a level that all cells have in common is the model's
    assert np.std(hidden) < 0.01


def test_a_slope_is_found_from_cells_that_are_far_apart() -> None:
    rng = np.random.default_rng(15)
    other = rough(rng, 80, 80)
    places = np.unravel_index(rng.permutation(80 * 80)[:40], (80, 80))
    values = np.full((80, 80), np.nan)
    values[places] = (3.0 - 2.0 * other)[places]
    # of a hundred cells, less than one has another at the lag that dense slices are compared at
    found = background(values, np.stack([other, rough(rng, 80, 80)]))
    assert found is not None
    assert found.slope[0] == pytest.approx(-2.0, rel=1e-6)
    assert found.weight[1] < 1e-3
    np.testing.assert_allclose(found(np.stack([other, other])[:, :5]), 3.0 - 2.0 * other[:5], atol=0.02)


def test_the_better_of_two_slices_counts_most_and_either_is_enough() -> None:
    rng = np.random.default_rng(2)
    values = rough(rng, 80, 80)
    others = np.stack([values + 0.1 * rough(rng, 80, 80), values + 1.0 * rough(rng, 80, 80)])
    others[0, :, 60:] = np.nan
    others[1, :, :20] = np.nan
    others[:, :10] = np.nan
    found = background(values, others)
    assert found is not None
    back = found(others)
    assert np.isnan(back[:10]).all()
    assert np.isfinite(back[10:]).all()
    left = [np.std((values - back)[10:, columns]) for columns in (np.s_[:20], np.s_[20:60], np.s_[60:])]
    assert max(left[:2]) < 0.2
    assert left[2] < 0.9
    assert found.weight[0] > 20 * found.weight[1]


def test_targets_that_know_other_slices_have_a_context_that_knows_no_more() -> None:
    rng = np.random.default_rng(8)
    values = rough(rng, 80, 80)
    others = np.stack([values + 0.05 * rough(rng, 80, 80), values + 0.5 * rough(rng, 80, 80)])
    gap = np.zeros((80, 80), bool)
    gap[30:50, 30:50] = True
    others[0, 30:50, 30:40] = np.nan
    context, targets = others[:, ~gap], others[:, gap]
    pairs = backgrounds(np.where(gap, np.nan, values), others, context, targets)
    assert len(pairs) == 2
    known = [np.isfinite(told) for _, told in pairs]
    assert (known[0] ^ known[1]).all()
    for (near, told), which in zip(pairs, known, strict=True):
        left = np.std(values[~gap] - near), np.std((values[gap] - told)[which])
        assert 0.7 < left[1] / left[0] < 1.4
        assert left[0] == pytest.approx(0.05 if np.isfinite(targets[0, which]).all() else 0.5, rel=0.4)


def test_where_slices_lack_as_much_around_as_in_a_gap_targets_stay_together() -> None:
    rng = np.random.default_rng(9)
    values = rough(rng, 80, 80)
    others = values + 0.3 * rough(rng, 4, 80, 80)
    others[rng.random(others.shape) < 0.3] = np.nan
    gap = rng.random((80, 80)) < 0.3
    ((near, told),) = backgrounds(np.where(gap, np.nan, values), others, others[:, ~gap], others[:, gap])
    assert np.isfinite(near).mean() > 0.98
    assert np.isfinite(told).mean() > 0.98


def test_intervals_hold_where_the_most_telling_slice_has_the_same_gap() -> None:
    rng = np.random.default_rng(10)
    shared = rough(rng, 64, 64)
    truth = np.stack([shared, shared + 0.05 * rough(rng, 64, 64), shared + 0.7 * rough(rng, 64, 64)])
    gap = gaps(rng, 64, 64)
    values = truth.copy()
    values[:2, gap] = np.nan
    out = infill(xr.DataArray(values, dims=("time", "y", "x"), name="a"), tails=True, across="time")
    counted = np.zeros(truth.shape, bool)
    counted[0] = gap
    _, coverage = scores(out, truth, counted)
    assert 0.91 < coverage < 0.985


def test_a_slice_that_no_target_knows_is_not_used_around_a_gap_of_many_groups() -> None:
    rng = np.random.default_rng(12)
    truth = rough(rng, 80, 80)
    others = truth + np.array([0.02, *[0.5] * 5])[:, None, None] * rng.standard_normal((6, 80, 80))
    others[1:][gaps(rng, 5, 80, 80)] = np.nan
    gap = np.zeros((80, 80), bool)
    gap[24:56, 24:56] = True
    others[0, gap] = np.nan
    pairs = backgrounds(np.where(gap, np.nan, truth), others, others[:, ~gap], others[:, gap])
    assert len(pairs) == STACK.groups + 1
    around, inside = (np.nanstd(truth[m] - of) for m, of in zip((~gap, gap), pairs[-1], strict=True))
    assert 0.7 < around / inside < 1.4


def test_of_what_is_unrelated_next_to_nothing_is_used() -> None:
    rng = np.random.default_rng(3)
    left = []
    for _ in range(20):
        values = rough(rng, 80, 80)
        found = background(values, rough(rng, 4, 80, 80))
        left.append(0.0 if found is None else float(np.std(found(rough(rng, 4, 80, 80)))))
    assert np.mean(left) < 0.1


def test_one_prediction_takes_over_from_another_without_an_edge() -> None:
    ratio = np.geomspace(0.25, 4.0, 81)
    alone = np.stack([np.zeros(81), np.ones(81), np.zeros(81)])
    beside_slices = np.stack([np.ones(81), ratio, np.zeros(81)])
    mean, error, _ = combined(alone, beside_slices)
    np.testing.assert_allclose(mean[[0, 40, 80]], [1.0, 0.5, 0.0], atol=1e-4)
    assert np.abs(np.diff(mean)).max() < 0.08
    spread = np.sqrt(mean * (1 - mean))
    mixed = np.sqrt(error**2 - spread**2)
    assert (mixed <= 1.04 * np.minimum(ratio, 1.0)).all()
    np.testing.assert_allclose(error[[0, 40, 80]], [0.25, np.hypot(1.0, 0.5), 1.0], atol=1e-3)
    one = np.array([[2.0, 0.0], [0.5, 0.0], [0.1, 0.1]])
    none = np.full_like(one, np.nan)
    np.testing.assert_array_equal(combined(one, none), one)
    np.testing.assert_array_equal(combined(none, one), one)
    np.testing.assert_array_equal(combined(one, one), one)


def test_far_from_the_observations_of_a_slice_the_others_still_count() -> None:
    first = rough(np.random.default_rng(14), 96, 32)
    second = np.where(np.arange(96)[:, None] < 24, 0.8 * first + 5, np.nan)
    array = xr.DataArray(np.stack([first, second]), dims=("time", "y", "x"), name="v")
    values = infill(array, across="time").v.values[1]
    # beyond the frame in which a tile compares slices by default
    far = 24 + STACK.frame_px + 24
    np.testing.assert_allclose(values[far:], 0.8 * first[far:] + 5, atol=0.1)


@pytest.mark.parametrize(
    "values", [np.full((80, 80), np.nan), np.ones((80, 80)), np.where(np.eye(80) > 0, 1.0, np.nan)]
)
def test_without_cells_to_compare_there_is_no_background(values: Array) -> None:
    others = rough(np.random.default_rng(4), 2, 80, 80)
    assert background(values, others) is None
    assert background(others[0], values[None]) is None


# --- what comes out ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(float32: None, drift_model: str) -> tuple[xr.DataArray, xr.Dataset]:
    """A stack whose slices have much in common, and its fill with each other by a small model."""
    raster, _ = stack(own=0.3, slices=4, size=24)
    return raster, infill(raster, tails=True, across="time", model=drift_model)


def test_errors_shrink_and_their_intervals_hold() -> None:
    raster, truth = stack(own=0.3, slices=4, size=32)
    alone, together = infill(raster, tails=True), infill(raster, tails=True, across="time")
    counted = np.isnan(raster.values)
    (before, _), (after, coverage) = scores(alone, truth, counted), scores(together, truth, counted)
    assert after < 0.6 * before
    assert 0.91 < coverage < 0.985
    assert (together.a_fill_flag == alone.a_fill_flag).all()
    np.testing.assert_array_equal(together.a.values[~counted], raster.values[~counted])


def test_a_slice_with_few_observations_is_filled_from_the_others() -> None:
    raster, truth = stack(own=0.3, slices=4, size=56)
    raster = raster.copy(data=truth.copy())
    few = np.random.default_rng(3).random(truth.shape[1:]) < 0.01
    raster.values[1] = np.where(few, truth[1], np.nan)
    (before, _), (after, coverage) = with_and_without(raster, truth)
    assert after < 0.6 * before
    assert coverage > 0.85


def with_and_without(raster: xr.DataArray, truth: Array) -> tuple[tuple[float, float], tuple[float, float]]:
    """Scores of the missing cells of slices filled alone and with each other."""
    counted = np.isnan(raster.values)
    alone, together = infill(raster, tails=True), infill(raster, tails=True, across="time")
    return scores(alone, truth, counted), scores(together, truth, counted)


def test_slices_that_have_nothing_in_common_do_no_harm() -> None:
    (before, _), (after, coverage) = with_and_without(*stack(own=30.0, slices=4, size=56, seed=5))
    assert after < 1.02 * before
    assert coverage > 0.91


def test_smooth_slices_are_filled_no_worse_where_others_have_gaps() -> None:
    """Where the slices that are known change, the background has a step, which ruins what is smooth."""
    rng = np.random.default_rng(0)
    smooth = ndimage.gaussian_filter(rng.normal(size=(4, 32, 32)), 8.0, mode="wrap", axes=(1, 2))
    smooth /= smooth.std((1, 2), keepdims=True)
    truth = smooth[0] + 0.3 * smooth[1:]
    values = np.where(gaps(rng, *truth.shape), np.nan, truth)
    raster = xr.DataArray(values, dims=("time", "y", "x"), name="a")
    (before, _), (after, coverage) = with_and_without(raster, truth)
    assert after < 1.05 * before
    assert coverage > 0.95


def test_shores_that_the_other_slice_lacks_still_count() -> None:
    rng = np.random.default_rng(3)
    shared = ndimage.gaussian_filter(rng.normal(size=(64, 64)), 3.0)
    shared /= shared.std()
    values = np.stack([shared, shared + 1.5 * rough(rng, 64, 64)])
    gap, shore = np.zeros((2, 64, 64), bool)
    gap[24:40, 24:40] = True
    shore[16:48, 16:48] = ~gap[16:48, 16:48]
    values[0, gap] = values[1, shore] = np.nan
    raster = xr.DataArray(values, dims=("time", "y", "x"), name="a")
    alone, together = (
        infill(raster, across=across)[["a", "a_standard_error"]].isel(time=0) for across in (None, "time")
    )
    before, after = (float(each.a_standard_error.values[gap].mean()) for each in (alone, together))
    assert after < 1.05 * before


def test_errors_are_no_smaller_than_the_values_resolve() -> None:
    field = (290 + rough(np.random.default_rng(1), 48, 48)).astype(np.float32)
    values = np.stack([field, field])
    values[0, 10:20, 10:20] = np.nan
    out = infill(xr.DataArray(values, dims=("time", "y", "x"), name="a"), across="time").isel(time=0)
    np.testing.assert_allclose(out.a.values, field, atol=1e-4)
    assert out.a_standard_error.values[10:20, 10:20].min() > 1e-10


def test_where_no_other_slice_has_a_value_a_slice_is_filled_alone(drift_model: str) -> None:
    raster, truth = stack(own=0.3, slices=3, size=48, seed=6)
    same = raster.copy(data=truth).where(~np.isnan(raster[0]))
    both = (infill(same, across=across, model=drift_model).drop_attrs() for across in ("time", None))
    xr.testing.assert_equal(*both)


def test_levels_and_contrasts_of_the_others_play_no_role(
    shared: tuple[xr.DataArray, xr.Dataset], drift_model: str
) -> None:
    raster, together = shared
    factors = xr.DataArray([1.0, -3.0, 1e-3, 50.0], dims="time")
    levels = xr.DataArray([0.0, 5.0, 100.0, -2.0], dims="time")
    other = infill((raster * factors + levels).rename("a"), across="time", model=drift_model)
    error = together.a_standard_error.where(np.isnan(raster))
    assert float(np.abs((other.a - together.a) / error)[0].max()) < 0.01
    assert float(np.abs(other.a_standard_error / error - 1)[0].max()) < 0.01


def test_the_order_may_be_turned_round(shared: tuple[xr.DataArray, xr.Dataset], drift_model: str) -> None:
    raster, together = shared
    turned = infill(raster[::-1], across="time", model=drift_model)[["a", "a_standard_error"]]
    xr.testing.assert_allclose(turned.isel(time=slice(None, None, -1)), together[list(turned)], rtol=1e-4)


def test_cells_outside_of_the_domain_are_not_used(shared: tuple[xr.DataArray, xr.Dataset], drift_model: str) -> None:
    raster = shared[0]
    mask = np.ones(raster.shape[1:], bool)
    mask[:, 15:] = False
    wrong = raster.copy()
    wrong[1:, :, 15:] += np.random.default_rng(7).normal(size=(3, 24, 9))
    options = {"mask": mask, "across": "time", "batch_size": 4, "model": drift_model}
    first, second = (infill(each, **options).isel(time=0) for each in (raster, wrong))
    xr.testing.assert_equal(first.drop_attrs(), second.drop_attrs())


def test_chunks_do_not_matter(shared: tuple[xr.DataArray, xr.Dataset], drift_model: str) -> None:
    raster, together = shared
    chunks = {"time": (1, 2, 1), "y": 11, "x": 15}
    lazy = infill(raster.chunk(chunks), tails=True, across="time", model=drift_model)
    assert lazy.a.chunks == raster.chunk(chunks).chunks
    found = lazy.compute()
    error = together.a_standard_error.where(np.isnan(raster))
    assert float(np.abs((found.a - together.a) / error).max()) < 1e-3
    assert (found.a_fill_flag == together.a_fill_flag).all()


def test_each_of_other_dimensions_is_a_stack_of_its_own(
    shared: tuple[xr.DataArray, xr.Dataset], drift_model: str
) -> None:
    raster, together = shared
    both = xr.concat([raster[:, ::-1], raster], "level").transpose("time", "y", "level", "x")
    out = infill(both.chunk({"time": 2, "level": 2}), across="time", model=drift_model).compute()
    assert out.a.dims == both.dims
    found = out.a.isel(level=1).transpose("time", "y", "x")
    assert float(np.abs((found - together.a) / together.a_standard_error.where(np.isnan(raster))).max()) < 1e-3


def test_a_dataset_may_have_variables_without_the_dimension(drift_model: str) -> None:
    raster, _ = stack(own=0.3, slices=2, size=32)
    ds = xr.Dataset({"a": raster, "b": raster[0]})
    # otherwise as many tiles as free memory has room for
    out, alone = (infill(ds, across=across, batch_size=4, model=drift_model) for across in ("time", None))
    xr.testing.assert_equal(out.b.drop_attrs(), alone.b.drop_attrs())
    assert not out.a.equals(alone.a)


# --- several dimensions, variables, and times -------------------------------------------------------------------------


def test_slices_far_away_in_time_are_no_neighbours() -> None:
    near = [0, 4, 8, 12, 16, 85, 89, 93, 97, 101, 170]
    assert beside(4, near) == [0, 1, 2, 3, 5, 6, 7, 8]
    # 69 days later: those of the same season, though as many of the others have nearer indices
    assert beside(5, near) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert beside(10, near) == [2, 3, 4, 5, 6, 7, 8, 9]


def dated(raster: xr.DataArray, days: list[int], calendar: str) -> xr.DataArray:
    start = cftime.datetime(2001, 2, 27, calendar=calendar)
    return raster.assign_coords(time=[start + timedelta(days=day) for day in days])


def test_neighbours_are_the_nearest_in_time_of_any_calendar(drift_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two neighbours, the slice beside a long pause is filled from the two before it."""
    monkeypatch.setattr("geonp.inference.stack.STACK", replace(STACK, slices=2))
    raster, _ = stack(own=0.3, slices=4, size=24)

    def filled(stack: xr.DataArray) -> xr.Dataset:
        return infill(stack, across="time", model=drift_model)

    by_index, by_time, expected = map(filled, (raster, dated(raster, [0, 1, 2, 70], "360_day"), raster[:3]))
    assert not by_index.a[2].equals(by_time.a[2].drop_vars("time"))
    xr.testing.assert_equal(by_time.a[:3].drop_vars("time").drop_attrs(), expected.a.drop_attrs())
    shifted = filled(dated(raster, [0, 2, 4, 6], "noleap"))
    xr.testing.assert_equal(shifted.a.drop_vars("time").drop_attrs(), by_index.a.drop_attrs())


def crossed(size: int) -> tuple[xr.DataArray, Array]:
    """Two dates of two bands that are much alike; both dates of a band have the same gaps."""
    rng = np.random.default_rng(3)
    truth = rough(rng, 1, 1, size, size) + 0.3 * rough(rng, 2, 2, size, size)
    values = np.where(gaps(rng, 1, 2, size, size), np.nan, truth)
    return xr.DataArray(values, dims=("time", "band", "y", "x"), name="a"), truth


def test_slices_are_filled_from_both_dimensions() -> None:
    raster, truth = crossed(32)
    both, along_time = (infill(raster, tails=True, across=dims) for dims in (("time", "band"), "time"))
    counted = np.isnan(raster.values)

    def crps_of(filled: xr.Dataset) -> float:
        parts = (filled[name].values[counted] for name in ("a", "a_standard_error", "a_tail"))
        return float(crps(truth[counted], *parts).mean())

    assert crps_of(both) < 0.8 * crps_of(along_time)
    assert both.attrs["geonp_across"] == "time band"


def test_both_dimensions_are_read_on_every_path(
    tmp_path: Path, drift_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raster, _ = crossed(20)
    both = infill(raster, across=("time", "band"), model=drift_model)
    error = both.a_standard_error.where(np.isnan(raster))
    lazy = infill(raster.chunk({"time": 1, "band": 2, "y": 12}), across=["time", "band"], model=drift_model)
    assert float(np.abs((lazy.a - both.a) / error)[0].max()) < 1e-3
    monkeypatch.setattr("geonp.fill.store.PARTS", PartSettings(cells=20 * 20))
    raster.to_netcdf(tmp_path / "in.nc")
    asked = ["fill", str(tmp_path / "in.nc"), str(tmp_path / "out.zarr"), "--across", "time", "--across", "band"]
    cli(*asked, "--resume", "--model", drift_model)
    with xr.open_zarr(tmp_path / "out.zarr") as found:
        assert float(np.abs((found.a - both.a) / error).max()) < 1e-3


def test_variables_are_filled_from_each_other(tmp_path: Path, drift_model: str) -> None:
    raster, _ = stack(own=0.3, slices=3, size=20)
    ds = xr.Dataset({"a": raster[0], "b": 2 * raster[1], "c": raster[2] - 5})
    found = infill(ds, across="variables", model=drift_model)
    expected = infill(xr.concat([ds.a, ds.b, ds.c], "time"), across="time", model=drift_model).a
    for name, values in zip("abc", expected, strict=True):
        error = found[f"{name}_standard_error"].where(np.isnan(ds[name]))
        assert float(np.abs((found[name] - values) / error).max()) < 1e-3
    lazy = infill(ds.chunk({"y": 10}), across="variables", model=drift_model)
    xr.testing.assert_allclose(lazy.b.compute(), found.b, rtol=1e-4)
    fill_store(ds, tmp_path / "out.zarr", across="variables", model=drift_model)
    with xr.open_zarr(tmp_path / "out.zarr") as stored:
        xr.testing.assert_allclose(stored.c.drop_attrs(), found.c.drop_attrs(), rtol=1e-4)
    with pytest.raises(InputError, match="got 'variables', expected none, as there is a single slice"):
        infill(ds[["a"]], across="variables")


def test_variables_in_any_order_of_dimensions_are_filled_from_each_other(drift_model: str) -> None:
    """Rows were taken for columns where the raster is square, and refused where it is not."""
    raster, _ = stack(own=0.3, slices=2, size=20)
    ds = xr.Dataset({"a": raster[0], "b": 2 * raster[1]})
    expected = infill(ds, across="variables", model=drift_model)
    turned = ds.assign(b=ds.b.transpose("x", "y"))
    for chunks in (None, {"y": 10}):
        found = infill(turned if chunks is None else turned.chunk(chunks), across="variables", model=drift_model)
        xr.testing.assert_allclose(found.a.compute(), expected.a, rtol=1e-4)
        xr.testing.assert_allclose(found.b.transpose("y", "x").compute(), expected.b, rtol=1e-4)
    part = {"x": slice(0, 16)}
    expected, found = (infill(one.isel(part), across="variables", model=drift_model) for one in (ds, turned))
    xr.testing.assert_allclose(found.a, expected.a, rtol=1e-4)


# --- stores and the command line --------------------------------------------------------------------------------------


def test_a_store_holds_the_same(
    shared: tuple[xr.DataArray, xr.Dataset], tmp_path: Path, drift_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raster, together = shared
    monkeypatch.setattr("geonp.fill.store.PARTS", PartSettings(cells=2 * 15 * 15))
    raster.to_netcdf(tmp_path / "in.nc")
    source = open_raster(tmp_path / "in.nc", chunks=None)
    fill_store(source, tmp_path / "out.zarr", across="time", chunks=15, model=drift_model)
    with xr.open_zarr(tmp_path / "out.zarr") as found:
        error = together.a_standard_error.where(np.isnan(raster))
        assert float(np.abs((found.a - together.a) / error).max()) < 1e-3
        assert (found.a_fill_flag == together.a_fill_flag).all()


def test_a_job_is_resumed_only_along_the_same_dimension(
    tmp_path: Path, drift_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raster, _ = stack(own=0.3, slices=3, size=32)
    options = {"across": "time", "model": drift_model}

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("geonp.fill.store.run", stopped)
        with pytest.raises(KeyboardInterrupt):
            fill_store(raster, tmp_path / "out.zarr", **options)
    with pytest.raises(InputError, match="an option changed"):
        fill_store(raster, tmp_path / "out.zarr", model=drift_model, resume=True)
    assert fill_store(raster, tmp_path / "out.zarr", **options, resume=True).reused == 0


def test_a_slice_that_cannot_be_read_is_left_out_of_the_others(
    tmp_path: Path, drift_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raster, _ = stack(own=0.3, slices=3, size=32)
    monkeypatch.setattr("geonp.fill.store.PARTS", PartSettings(cells=32 * 32))
    read = VariableSource.stored_values

    def broken(self: VariableSource, lead: tuple[range, ...], rows: range, cols: range) -> Array:
        if 2 in lead[0]:
            raise OSError("the disk is broken")
        return read(self, lead, rows, cols)

    monkeypatch.setattr(VariableSource, "stored_values", broken)
    report = fill_store(raster, tmp_path / "out.zarr", across="time", model=drift_model)
    assert len(report.failed) == 1
    with xr.open_zarr(tmp_path / "out.zarr", consolidated=False) as found:
        assert (found.a_fill_flag[2] == FillFlag.FAILED).all()
        two = infill(raster[:2], across="time", model=drift_model)
        xr.testing.assert_allclose(found.a[:2].drop_attrs(), two.a.drop_attrs(), rtol=1e-4)


def test_the_command_line_has_it(tmp_path: Path, drift_model: str) -> None:
    raster, _ = stack(own=0.3, slices=3, size=32)
    raster.to_netcdf(tmp_path / "in.nc")
    files = str(tmp_path / "in.nc"), str(tmp_path / "out.nc")
    cli("fill", *files, "--across", "time", "--model", drift_model)
    with xr.open_dataset(files[1]) as found:
        expected = infill(raster, across="time", model=drift_model)
        xr.testing.assert_allclose(found.a.drop_attrs(), expected.a.drop_attrs(), rtol=1e-4)
    assert "got 'tome', expected 'time'" in cli("fill", *files, "--across", "tome", "--overwrite", code=1).output


def test_a_slice_is_evaluated_with_those_beside_it(tmp_path: Path) -> None:
    raster, truth = stack(own=0.3, slices=4, size=32)
    raster = raster.copy(data=np.where(np.arange(4)[:, None, None] == 2, truth, raster.values))
    together = evaluate(raster, across="time", index={"time": 2}, baselines=["linear_across"])
    assert together.selection == "time=2, with neighbouring slices along time"
    assert list(together.scores) == [WITH_SLICES, OURS, "linear_across"]
    change = 1 - together.scores[WITH_SLICES].crps / together.scores[OURS].crps
    assert change > 0.3
    assert together.verdict.endswith(f"Other slices lower the CRPS by {change:.1%}.")
    raster.to_netcdf(tmp_path / "in.nc")
    asked = ["evaluate", str(tmp_path / "in.nc"), "--index", "time=2", "--baseline", "linear", "--across", "time"]
    done = cli(*asked)
    assert "with neighbouring slices along time" in done.output
    assert together.scores[WITH_SLICES].crps < together.scores["linear_across"].crps
    with pytest.raises(InputError, match="No slices along across='band': expected 'time'"):
        evaluate(raster, across="band")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_wrong_requests_are_refused_before_any_work(tmp_path: Path) -> None:
    raster, _ = stack(own=0.3, slices=2, size=32)
    with pytest.raises(InputError, match="got 'y', expected 'time'"):
        infill(raster, across="y")
    with pytest.raises(InputError, match="expected none, as there is a single slice"):
        plan(raster[0], across="time")


def test_the_plan_counts_the_slices_beside() -> None:
    raster, _ = stack(own=0.3, slices=12, size=32)
    lazy = raster.chunk({"time": 1})
    # a model whose windows hold no blocks of small gaps in either case
    peaks = [plan(lazy, across=across, model="te-pt-tnp").peak_bytes for across in ("time", None)]
    assert peaks[0] > peaks[1]
