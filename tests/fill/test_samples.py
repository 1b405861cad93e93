"""infill(samples=n): the joint distribution of a known process, the marginals of the fill, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import ndimage, stats

from geonp.errors import InputError
from geonp.fill.infill import infill
from geonp.fill.plan import plan
from geonp.fill.store import fill_store
from geonp.inference.student import Distribution
from geonp.raster.metadata import FillFlag

from ..process import NOISE, Array, exponential, predict_exactly

pytestmark = pytest.mark.usefixtures("float32")

kernel = exponential(3.0)


@pytest.fixture
def known_process(monkeypatch: pytest.MonkeyPatch) -> None:
    predict_exactly(monkeypatch, 3.0)


def field(shape: tuple[int, int], gap: tuple[slice, slice], **kwargs: Any) -> xr.DataArray:
    """A draw of the process with a gap; its coordinates and attributes."""
    cells = np.stack(np.indices(shape), -1).reshape(-1, 2).astype(float)
    covariance = kernel(cells, cells) + NOISE * np.eye(len(cells))
    values = np.random.default_rng(3).multivariate_normal(np.zeros(len(cells)), covariance).reshape(shape)
    values[gap] = np.nan
    coords = {"y": np.arange(float(shape[0])), "x": np.arange(float(shape[1]))}
    return xr.DataArray(values, coords, ("y", "x"), "a", {"units": "K", "long_name": "heat"}, **kwargs)


def posterior(source: xr.DataArray) -> tuple[Array, Array]:
    values = source.values
    known, gap = (np.argwhere(m).astype(float) for m in (~np.isnan(values), np.isnan(values)))
    gain = np.linalg.solve(kernel(known, known) + NOISE * np.eye(len(known)), kernel(known, gap)).T
    covariance = kernel(gap, gap) + NOISE * np.eye(len(gap)) - gain @ kernel(known, gap)
    return gain @ values[~np.isnan(values)], covariance


@pytest.mark.usefixtures("known_process")
def test_samples_have_the_joint_distribution_of_a_known_process(model: str) -> None:
    """All 30 cells fit into one context, so nothing but the number of samples limits the agreement."""
    source = field((5, 6), np.s_[1:4, 2:4])
    n = 400
    out = infill(source, model=model, samples=n, batch_size=64)
    gaps = np.isnan(source.values)
    drawn = out.a_sample.values[:, gaps]
    mean, covariance = posterior(source)
    deviation = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(out.a.values[gaps], mean, atol=1e-6)
    # tolerances are four to five standard errors of `n` samples
    np.testing.assert_allclose((drawn.mean(0) - mean) / deviation, 0.0, atol=4.5 / np.sqrt(n))
    np.testing.assert_allclose(drawn.std(0) / deviation, 1.0, atol=4.5 / np.sqrt(2 * n))
    correlation, found = covariance / np.outer(deviation, deviation), np.corrcoef(drawn.T)
    np.testing.assert_allclose(found, correlation, atol=4.5 / np.sqrt(n))
    pairs = np.triu_indices(len(mean), 1)
    assert found[pairs].mean() == pytest.approx(correlation[pairs].mean(), abs=0.06)
    assert correlation[pairs].mean() > 0.12, "independent draws must not pass"


@pytest.mark.usefixtures("known_process")
def test_a_gap_of_many_tiles_varies_as_one(model: str) -> None:
    """Variances, the variogram also across the borders of tiles, and the variance of the mean over the gap."""
    source, n = field((32, 32), np.s_[4:28, 4:28]), 300
    out = infill(source, model=model, samples=n)
    _, covariance = posterior(source)
    error = out.a_standard_error.values[4:28, 4:28]
    np.testing.assert_allclose(error.ravel(), np.sqrt(np.diag(covariance)), rtol=0.05)
    scores = (out.a_sample - out.a).values[:, 4:28, 4:28] / error
    assert (scores**2).mean() == pytest.approx(1, abs=0.03)
    assert (scores**2).mean(0).std() < 1.4 * np.sqrt(2 / n), "no cell varies less where tiles overlap"
    deviation = np.sqrt(np.diag(covariance))
    exact_ = (covariance / np.outer(deviation, deviation)).reshape(24, 24, 24, 24)
    for lag in (1, 2, 6):
        for start, what in ((0, "all"), (4, "across borders")):
            col = np.arange(start, 24 - lag, 8) if start and lag == 1 else np.arange(24 - lag)
            col = col - 1 if start and lag == 1 else col
            expected = np.mean([1 - exact_[i, j, i, j + lag] for i in range(24) for j in col])
            found = ((scores[:, :, col + lag] - scores[:, :, col]) ** 2).mean() / 2
            assert found == pytest.approx(expected, rel=0.1), (lag, what)
    of_mean = (out.a_sample - out.a).values[:, 4:28, 4:28].mean((1, 2)).std()
    # the standard error of a standard deviation of 300 samples is 4 %
    assert of_mean == pytest.approx(np.sqrt(covariance.mean()), rel=0.15)


def test_samples_have_the_distributions_of_the_fill(model: str) -> None:
    """Of a model with heavy tails and bounded values, in a gap of several tiles."""
    source = np.exp(field((24, 24), np.s_[4:20, 4:20]))
    out = infill(source, model=model, samples=200, tails=True, bounds=(0, None))
    gaps = np.isnan(source.values)
    assert (out.a_tail.values[gaps] > 0.05).all()
    levels = Distribution.of(out, "a").cdf(out.a_sample.values)[:, gaps]
    assert (out.a_sample.values[:, gaps] >= 0).all()
    assert stats.kstest(levels.ravel(), "uniform").statistic < 0.03
    np.testing.assert_allclose(np.quantile(levels, [0.02, 0.98]), [0.02, 0.98], atol=0.015)


@pytest.mark.parametrize("lazy", [False, True])
def test_the_result_describes_itself(wide_tiles: str, lazy: bool, computes_nothing: Any) -> None:
    source = field((12, 40), np.s_[3:9, 4:37]).astype("f4")
    stack = xr.concat([source, source], "time").assign_coords(time=[0, 1])
    given = stack.chunk({"x": 7, "time": 2}) if lazy else stack
    with computes_nothing() if lazy else pytest.MonkeyPatch.context():
        out = given.geonp.infill(model=wide_tiles, samples=3, quantiles=[0.5])
    assert list(out) == ["a", "a_standard_error", "a_quantile", "a_sample", "a_fill_flag"]
    assert "a_sample" in out.a.attrs["ancillary_variables"].split()
    assert (out.a_sample.chunks is not None) == lazy
    drawn = out.a_sample.compute()
    assert drawn.dims == ("sample", "time", "y", "x")
    assert drawn.dtype == source.dtype
    assert drawn.attrs == {"long_name": "heat, joint sample", "units": "K"}
    assert drawn["sample"].attrs["standard_name"] == "realization"
    known = stack.notnull().values
    np.testing.assert_array_equal(drawn.values[:, known], [stack.values[known]] * 3)
    assert len(np.unique(drawn.values[:, ~known])) == 3 * (~known).sum(), "no two samples, slices or cells share a draw"
    more = infill(stack, model=wide_tiles, samples=5).a_sample
    np.testing.assert_allclose(drawn, more[:3], atol=1e-4, err_msg="the same, whatever the chunks and their number")
    assert (infill(stack, model=wide_tiles, samples=3, seed=1).a_sample != more[:3]).values[:, ~known].all()


@pytest.mark.usefixtures("known_process")
def test_around_a_globe_samples_are_continuous_across_the_seam(model: str) -> None:
    source = field((24, 48), np.s_[8:16, :]).roll(x=5).rename(y="lat", x="lon")
    source = source.assign_coords(lon=np.arange(48) * 7.5, lat=np.arange(24.0))
    out = infill(source, model=model, samples=100)
    scores = ((out.a_sample - out.a) / out.a_standard_error).values[:, 8:16]
    across, inside = (((scores - np.roll(scores, -1, 2)) ** 2).mean((0, 1))[col] for col in (47, slice(10, 40)))
    assert across == pytest.approx(inside.mean(), rel=0.15)
    # a tile across the seam took 5 columns for 43: errors were up to 1.7 times too large
    assert (scores**2).mean((0, 1)).max() < 1.25


def test_samples_beside_other_slices_are_of_what_these_leave_open() -> None:
    """Slices share a smooth field and have noise of their own: with the others known, the noise alone is uncertain."""
    rng = np.random.default_rng(0)
    stack = ndimage.gaussian_filter(rng.standard_normal((48, 48)), 3) * 10 + 0.3 * rng.standard_normal((2, 48, 48))
    stack[0, 19:29, 18:30] = np.nan
    source, missing = xr.DataArray(stack, dims=("time", "y", "x"), name="a"), np.isnan(stack)
    alone, beside = (infill(source, samples=60, tails=True, across=across) for across in (None, "time"))
    assert beside.attrs["geonp_across"] == "time"
    of_fill = infill(source, tails=True, across="time")
    np.testing.assert_array_equal(beside.a_standard_error, of_fill.a_standard_error)
    levels = Distribution.of(beside, "a").cdf(beside.a_sample.values)[:, missing]
    assert stats.kstest(levels.ravel(), "uniform").statistic < 0.06
    scores = (((of.a_sample - of.a) / of.a_standard_error)[:, 0, 19:29, 18:30] for of in (alone, beside))
    together = [float((of.mean(("y", "x")) ** 2).mean()) for of in scores]
    assert together[0] > 3 * together[1], "alone, the errors of the gap's 120 cells go together"
    lazy = infill(source.chunk(y=24, x=20), samples=2, across="time").a_sample
    np.testing.assert_allclose(lazy, beside.a_sample[:2], atol=1e-3)


def test_what_filling_leaves_empty_is_not_drawn(model: str) -> None:
    source = field((12, 30), np.s_[:, 10:])
    domain = np.ones(source.shape, bool)
    domain[0] = False
    out = infill(source, model=model, samples=1, max_distance=2, mask=domain)
    np.testing.assert_array_equal(np.isnan(out.a_sample[0]), np.isnan(out.a))
    assert (out.a_fill_flag == FillFlag.FILLED).sum() == 22


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_wrong_numbers_of_samples_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="samples must be the number of joint samples, 0 or more, got"):
        infill(field((4, 4), np.s_[1:2, 1:2]), samples=wrong)


def test_a_store_holds_the_same_samples(wide_tiles: str, tmp_path: Path) -> None:
    source = field((20, 24), np.s_[4:18, 3:20])
    fill_store(source.to_dataset(), tmp_path / "a.zarr", model=wide_tiles, samples=2, chunks=8)
    stored = xr.open_zarr(tmp_path / "a.zarr").a_sample
    np.testing.assert_allclose(stored, infill(source, model=wide_tiles, samples=2).a_sample, atol=1e-4)


def test_the_plan_counts_them(model: str) -> None:
    source = field((12, 12), np.s_[5:7, 5:7])
    few, many = plan(source, model=model), plan(source, model=model, samples=5)
    assert many.result_bytes - few.result_bytes == 5 * source.nbytes
    assert many.peak_bytes - few.peak_bytes > 5 * source.nbytes
