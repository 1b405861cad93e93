"""infill(samples=n): the joint distribution of a known process, the marginals of the fill, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.fill import samples
from geonp.fill.infill import infill
from geonp.fill.plan import plan
from geonp.fill.store import fill_store
from geonp.inference.predictor import Points, Predictor
from geonp.raster.metadata import FillFlag

pytestmark = pytest.mark.usefixtures("float32")

Array = npt.NDArray[np.float64]
LENGTH, NOISE = 3.0, 0.1


def kernel(a: Array, b: Array) -> Array:
    return np.exp(-np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)) / LENGTH)


def exact(_: Predictor, points: Points) -> Array:
    """Predictions of a known process: zero mean, exponential covariance, noise of variance `NOISE`."""
    out = np.zeros((3, len(points.xt), points.xt.shape[1]))
    for i, keep in enumerate(points.mask):
        xc, y = points.xc[i, keep].astype(float), points.yc[i, keep, 0] * points.scale[i] + points.loc[i]
        across = kernel(points.xt[i].astype(float), xc)
        gain = np.linalg.solve(kernel(xc, xc) + NOISE * np.eye(len(y)), across.T).T
        out[0, i], out[1, i] = gain @ y, np.sqrt(1 + NOISE - (gain * across).sum(1))
    return out


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


def test_samples_have_the_joint_distribution_of_a_known_process(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 30 cells fit into one context, so nothing but the number of samples limits the agreement."""
    monkeypatch.setattr(Predictor, "__call__", exact)
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


def test_marginals_are_those_of_the_fill() -> None:
    """Of the shipped model, whichever cells of a gap are drawn first; neighbours vary together."""
    y, x = np.indices((16, 16))
    values = np.sin(x / 3) + np.cos(y / 4) + 0.1 * np.random.default_rng(0).standard_normal((16, 16))
    values[6:8, 7:9] = np.nan
    source, n = xr.DataArray(values, dims=("y", "x"), name="a"), 40
    out = infill(source, samples=n, batch_size=32)
    gaps = np.isnan(values)
    drawn, mean, error = out.a_sample.values[:, gaps], out.a.values[gaps], out.a_standard_error.values[gaps]
    assert np.abs((drawn.mean(0) - mean) / error).max() < 4.5 / np.sqrt(n)
    assert np.abs(np.log(drawn.std(0) / error)).max() < 4.5 / np.sqrt(2 * n)


@pytest.mark.parametrize("lazy", [False, True])
def test_the_result_describes_itself(model: str, lazy: bool) -> None:
    source = field((12, 20), np.s_[3:5, 4:7]).astype("f4")
    stack = xr.concat([source, source], "time").assign_coords(time=[0, 1])
    out = (stack.chunk({"x": 7, "time": 2}) if lazy else stack).geonp.infill(model=model, samples=3, quantiles=[0.5])
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
    whole = infill(stack, model=model, samples=3).a_sample
    np.testing.assert_array_equal(drawn, whole, "the same draws however it is chunked")
    assert (infill(stack, model=model, samples=3, seed=1).a_sample != whole).values[:, ~known].all()


def test_around_a_globe_cells_see_draws_across_the_seam(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watch(self: Predictor, points: Points) -> Array:
        seen.append(points.mask.sum())
        return exact(self, points)

    monkeypatch.setattr(Predictor, "__call__", watch)
    source = field((3, 8), np.s_[1:2, 0:1]).rename(y="lat", x="lon")
    source = source.assign_coords(lon=np.arange(8) * 45.0, lat=np.arange(3.0))
    source[1, 7] = np.nan
    infill(source, model=model, samples=1)
    assert seen[-2:] == [22, 23]


def test_what_filling_leaves_empty_is_not_drawn(model: str) -> None:
    source = field((12, 30), np.s_[:, 10:])
    domain = np.ones(source.shape, bool)
    domain[0] = False
    out = infill(source, model=model, samples=1, max_distance=2, mask=domain)
    np.testing.assert_array_equal(np.isnan(out.a_sample[0]), np.isnan(out.a))
    assert (out.a_fill_flag == FillFlag.FILLED).sum() == 22


@pytest.mark.usefixtures("model")
def test_gaps_that_are_too_large_are_told(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = field((20, 20), np.s_[2:19, 3:19])
    with pytest.raises(
        InputError, match=r"that at row 2, column 3 has 272 cells.*at most 256.*max_distance.*quantiles"
    ):
        infill(source, model=model, samples=1)
    monkeypatch.setattr(samples, "MAX_CELLS", 3)
    with pytest.raises(InputError, match="too many cells for samples: got 4 in one slice, expected at most 3"):
        infill(field((12, 12), np.s_[2:4, 3:5]), model=model, samples=1)


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_wrong_numbers_of_samples_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="samples must be the number of joint samples, 0 or more, got"):
        infill(field((4, 4), np.s_[1:2, 1:2]), samples=wrong)


def test_a_store_that_is_filled_in_parts_takes_none(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"whole slices.*samples=2.*infill\(samples"):
        fill_store(field((4, 4), np.s_[1:2, 1:2]).to_dataset(), tmp_path / "a.zarr", model=model, samples=2)


def test_the_plan_counts_them(model: str) -> None:
    source = field((12, 12), np.s_[5:7, 5:7])
    few, many = plan(source, model=model), plan(source, model=model, samples=5)
    assert many.result_bytes - few.result_bytes == 5 * source.nbytes
