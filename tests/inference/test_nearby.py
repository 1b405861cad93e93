"""Small gaps among many observations: readings of blocks, and squares conditioned on their nearest observations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import ndimage

import geonp
from geonp.errors import PredictionError
from geonp.inference.checkpoint import load_model
from geonp.inference.nearby import blocks_of
from geonp.inference.predictor import Predictor
from geonp.inference.student import half_width
from geonp.nn.nearby import predict
from geonp.nn.squares import NEARBY, Patch, Reading
from geonp.training.data.small_gaps import holes

FRAME = 112


def exponential(length: float, noise: float = 1e-4) -> Reading:
    """The process with covariance exp(-distance / length)."""
    return Reading(np.eye(2)[None] / length**2, np.eye(1, 5), 1.0, 0.0, noise, 3.0, 2.0)


def patch_of(readings: tuple[Reading, ...], length: float, seed: int = 0) -> tuple[Patch, np.ndarray]:
    """A patch of 16 x 16 cells with 20 % gaps, and the field that it shows, drawn from a process."""
    rng, n = np.random.default_rng(seed), 16 + 2 * NEARBY.reach_px
    cells = np.argwhere(np.ones((n, n), bool))
    covariance = np.exp(-np.hypot(*(cells[:, None] - cells).transpose(2, 0, 1)) / length) + 1e-4 * np.eye(len(cells))
    field = 3 + 2 * (np.linalg.cholesky(covariance) @ rng.standard_normal(len(cells))).reshape(n, n)
    missing = rng.random(field.shape) < 0.2
    inside = slice(NEARBY.reach_px, -NEARBY.reach_px)
    corners = NEARBY.side_px * np.argwhere(np.ones((4, 4), bool))
    corners = corners[[missing[inside, inside][i : i + 4, j : j + 4].any() for i, j in corners]]
    return Patch(np.where(missing, np.nan, field), missing[inside, inside], corners, readings), field


def test_square_is_conditioned_on_its_64_nearest_observations() -> None:
    patch, _ = patch_of((exponential(8.0),), 8.0)
    found = predict(replace(patch, corners=patch.corners[:1]))
    (row, col), reach = patch.corners[0], NEARBY.reach_px
    known = np.argwhere(~np.isnan(patch.values)) - reach
    beyond = np.hypot(*np.maximum(np.maximum([row, col] - known, known - [row + 3, col + 3]), 0).T)
    centre = np.hypot(*(known - [row + 1.5, col + 1.5]).T)
    near = known[np.lexsort((centre, beyond))[:64]]
    targets = np.argwhere(patch.missing[row : row + 4, col : col + 4]) + np.array([row, col])

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-np.hypot(*(a[:, None] - b).transpose(2, 0, 1)) / 8)

    inverse = np.linalg.inv(covariance(near, near) + 1e-4 * np.eye(64))
    weights, y, n = covariance(targets, near) @ inverse, (patch.values[tuple((near + reach).T)] - 3) / 2, len(targets)
    np.testing.assert_allclose(found.mean[0, :n], weights @ y, rtol=1e-4)
    variance = 1 + 1e-4 - (weights * covariance(targets, near)).sum(1)
    # Rasmussen & Williams (2006), equation 5.12
    residual = (inverse @ y) / np.sqrt(np.diag(inverse))
    size = np.abs(residual).mean() * np.sqrt(np.pi / 2)
    np.testing.assert_allclose(found.scale[0, :n], size * np.sqrt(variance), rtol=1e-4)


@pytest.mark.parametrize("true", [0, 1])
def test_likeliest_reading_is_chosen(true: int) -> None:
    lengths = 1.5, 30.0
    readings = tuple(exponential(length) for length in lengths)
    patch, _ = patch_of(readings, lengths[true], seed=true)
    alone = predict(replace(patch, readings=(readings[true],)))
    torch.testing.assert_close(predict(patch).mean, alone.mean)


def test_reading_of_equal_values_says_nothing_of_others() -> None:
    """A flat sea, whose values have no scale, beside a coast."""
    patch, field = patch_of((exponential(8.0),), 8.0)
    sea = replace(exponential(8.0), loc=0.0, scale=1e-30)
    values, land = patch.values.copy(), np.s_[NEARBY.reach_px + 8 :]
    values[: land.start] = np.where(np.isnan(values[: land.start]), np.nan, 0.0)
    found = predict(replace(patch, values=values, readings=(sea,)))
    y = found.mean * found.unit + found.loc
    on_land = found.places >= 9 * 16
    truth = torch.from_numpy(field[10:-10, 10:-10].ravel())[found.places]
    z = ((y - truth) / (found.scale * found.unit))[on_land]
    assert 0.5 < z.square().mean().sqrt() < 2.0
    # the two squares that choose are on land, whatever their order
    other = exponential(8.0)
    for readings in ((sea, other), (other, sea)):
        chosen = predict(replace(patch, values=values, readings=readings))
        torch.testing.assert_close(chosen.mean, predict(replace(patch, values=values, readings=(other,))).mean)


def test_islands_of_a_flat_sea_are_not_filled_as_sea_without_error() -> None:
    """As in elevation: 68 m off with a standard error of 1e-38 m, before."""
    rng, n = np.random.default_rng(0), 128
    y, x = np.mgrid[:n, :n]
    field = np.zeros((n, n))
    for row, col in rng.uniform(6, n - 6, (10, 2)):
        field += np.maximum(np.exp(-((y - row) ** 2 + (x - col) ** 2) / 12) - 0.3, 0) * rng.uniform(-100, 100)
    missing = rng.random(field.shape) < 0.1
    filled = geonp.infill(xr.DataArray(np.where(missing, np.nan, field), dims=("y", "x"), name="elevation"))
    differs = ndimage.maximum_filter(np.where(missing, 0, abs(field)), 5) > 0
    error = abs(filled["elevation"].values - field)[missing & differs]
    standard_error = filled["elevation_standard_error"].values[missing & differs]
    assert standard_error.min() > 1e-6
    assert np.quantile(error / standard_error, 0.98) < 6


@pytest.mark.parametrize("share", [0.04, 0.1])
def test_intervals_hold_in_small_holes_of_smooth_fields(share: float) -> None:
    rng = np.random.default_rng(7)
    field = ndimage.gaussian_filter(rng.standard_normal((200, 200)), 3.0)
    missing = holes(rng, field.shape, share, (4.0, 40.0))
    filled = geonp.infill(xr.DataArray(np.where(missing, np.nan, field), dims=("y", "x"), name="a"), tails=True)
    a, error, tail = (filled[name].values[missing] for name in ("a", "a_standard_error", "a_tail"))
    assert 0.9 < np.mean(np.abs(a - field[missing]) < half_width(error, tail, 0.95)) < 0.985


def test_contradicted_observation_hardly_counts() -> None:
    patch, field = patch_of((exponential(8.0),), 8.0)
    row, col = np.argwhere(~np.isnan(patch.values[12:24, 12:24]))[40] + 12
    wrong = patch.values.copy()
    wrong[row, col] += 40.0
    network, _ = load_model("tnpkr-sa")
    before, after = (network.head.nearby.predict(replace(patch, values=v)) for v in (patch.values, wrong))
    inside = slice(NEARBY.reach_px, -NEARBY.reach_px)
    moved = np.nanmax(np.abs(after[0] - before[0]) / before[1])
    assert 0 < moved < 2
    error = np.abs(after[0] - field[inside, inside]) / after[1]
    assert np.mean(error[np.isfinite(error)] < 1.96) > 0.9


def test_only_blocks_with_many_small_gaps_are_read() -> None:
    rng = np.random.default_rng(0)
    missing = np.zeros((128 + 2 * FRAME, 192 + 2 * FRAME), bool)
    block = missing[FRAME:-FRAME, FRAME:-FRAME]
    block[:64, :64] = rng.random((64, 64)) < 0.1
    block[:64, 72:128] = rng.random((64, 56)) < 0.95  # few observations
    block[0:16:8, 130] = True  # one tile with small gaps
    block[64:, :64] = rng.random((64, 64)) < 0.1
    block[84:92, 20:28] = True  # a wide gap in a block with small ones
    found = blocks_of(missing, ~missing, np.array([FRAME, FRAME]), 16, np.full(len(missing), True))
    np.testing.assert_array_equal(found.read, [[True, False, False], [True, False, False]])
    inside = found.mask[FRAME:-FRAME, FRAME:-FRAME]
    np.testing.assert_array_equal(inside[:64, :64], block[:64, :64])
    assert not inside[80:96, 16:32].any()
    np.testing.assert_array_equal(inside[96:, :64], block[96:, :64])


def test_chunks_do_not_change_small_gaps() -> None:
    rng = np.random.default_rng(1)
    row, col = np.mgrid[:66, :80]
    # readings differ, and so does the one that a tile chooses
    rough = 0.3 * rng.standard_normal(row.shape).cumsum(0)
    field = np.where(row + col > 70, rough, 5 * np.sin(col / 7) + np.cos(row / 9)).astype(np.float32)
    missing = rng.random(field.shape) < 0.1
    missing[30:40, 40:50] = True
    gappy = xr.DataArray(np.where(missing, np.nan, field), dims=("y", "x"), name="a")
    whole = geonp.infill(gappy)
    parts = geonp.infill(gappy.chunk({"y": (13, 20, 33), "x": (9, 41, 30)})).compute()
    deviation = whole["a_standard_error"].values[missing]
    assert np.abs(parts["a"].values - whole["a"].values)[missing].max() <= 1e-3 * deviation.max()
    np.testing.assert_allclose(parts["a_standard_error"].values[missing], deviation, rtol=1e-3)
    error = (whole["a"].values - field)[missing] / deviation
    assert 0.9 < np.mean(np.abs(error) < 1.96) < 0.99


def test_values_that_are_not_finite_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Predictor, "fill_patch", lambda self, patch: np.full((3, *patch.missing.shape), np.nan))
    gappy = np.random.default_rng(0).standard_normal((64, 64))
    gappy[3::6, 4::6] = np.nan
    with pytest.raises(PredictionError, match="not finite at row 3, column 4; please report it"):
        geonp.infill(xr.DataArray(gappy, dims=("y", "x"), name="a"))
