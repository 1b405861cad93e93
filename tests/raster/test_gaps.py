"""The census of gaps against brute force; the simulators reach their fractions and are functions of their seed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from geonp.errors import InputError
from geonp.raster import gaps
from geonp.raster.gaps import SIMULATORS, GapCensus, census, census_of_strips, simulate

masks = hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9))
kinds = st.sampled_from(sorted(SIMULATORS))


def brute_force(observed: npt.NDArray[np.bool_]) -> GapCensus:
    cells = {(int(y), int(x)) for y, x in np.argwhere(~observed)}
    left, sizes = set(cells), []
    while left:
        stack, size = [left.pop()], 0
        while stack:
            y, x = stack.pop()
            size += 1
            neighbours = {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & left
            left -= neighbours
            stack += neighbours
        sizes.append(size)
    known = np.argwhere(observed)
    nearest = [min((math.dist(cell, k) for k in known), default=math.inf) for cell in cells]
    return GapCensus(observed.size, len(cells), len(sizes), max(sizes, default=0), max(nearest, default=0.0))


@given(masks)
def test_census_agrees_with_brute_force(observed: npt.NDArray[np.bool_]) -> None:
    got, expected = census(observed), brute_force(observed)
    assert got.farthest_px == pytest.approx(expected.farthest_px)
    counts = ("cells", "missing", "gaps", "largest")
    assert [getattr(got, name) for name in counts] == [getattr(expected, name) for name in counts]


@given(masks, st.sets(st.integers(1, 8)))
def test_census_of_strips_is_that_of_the_slice(observed: npt.NDArray[np.bool_], edges: set[int]) -> None:
    rows = [0, *sorted(edge for edge in edges if edge < len(observed)), len(observed)]
    strips = [observed[start:stop] for start, stop in itertools.pairwise(rows)]
    assert census_of_strips(strips, observed.shape) == (census(observed), 0)
    counted, within = census_of_strips(strips, observed.shape, largest_map=6)
    exact = census(observed)
    assert (counted.missing, counted.gaps, counted.largest) == (exact.missing, exact.gaps, exact.largest)
    assert math.isinf(exact.farthest_px) or abs(counted.farthest_px - exact.farthest_px) <= within
    assert math.isinf(counted.farthest_px) == math.isinf(exact.farthest_px)


def test_census_of_nothing() -> None:
    assert census(np.ones((0, 5), bool)).missing == 0
    assert census(np.zeros((2, 3), bool)) == GapCensus(6, 6, 1, 6, math.inf)


@given(kinds, st.floats(0, 1), hnp.array_shapes(min_dims=2, max_dims=2, max_side=40), st.integers(0, 2**32 - 1))
def test_simulated_gaps_are_a_function_of_the_seed(kind: str, fraction: float, shape: gaps.Shape, seed: int) -> None:
    first, second = (simulate(kind, shape, fraction, np.random.default_rng(seed)) for _ in range(2))
    assert first.shape == shape
    assert first.dtype == bool
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", sorted(SIMULATORS))
def test_other_seeds_give_other_gaps(kind: str) -> None:
    different = {simulate(kind, (64, 64), 0.4, np.random.default_rng(seed)).tobytes() for seed in range(8)}
    assert len(different) == 8


@given(kinds, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40), st.integers(0, 2**32 - 1))
def test_no_gaps_for_a_fraction_of_nothing(kind: str, shape: gaps.Shape, seed: int) -> None:
    assert not simulate(kind, shape, 0.0, np.random.default_rng(seed)).any()


@given(
    st.sampled_from(["random", "clouds", "blocks"]),
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=40),
    st.integers(0, 2**32 - 1),
)
def test_nothing_is_left_of_a_fraction_of_one(kind: str, shape: gaps.Shape, seed: int) -> None:
    assert simulate(kind, shape, 1.0, np.random.default_rng(seed)).all()


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.6])
def test_random_and_cloud_gaps_reach_their_fraction(fraction: float) -> None:
    rng = np.random.default_rng(0)
    # five standard deviations of a binomial share; clouds are cut at the very quantile
    assert abs(gaps.random_gaps((200, 200), fraction, rng).mean() - fraction) < 5 * math.sqrt(0.25 / 200**2)
    assert abs(gaps.cloud_gaps((200, 200), fraction, rng).mean() - fraction) <= 2 / 200**2


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.6])
def test_stripes_reach_their_fraction(fraction: float) -> None:
    for seed in range(5):
        got = gaps.stripe_gaps((400, 400), fraction, np.random.default_rng(seed), period=10).mean()
        assert got == pytest.approx(fraction, abs=0.02)


def test_swaths_reach_their_fraction_on_average() -> None:
    shares = [gaps.swath_gaps((60, 60), 0.3, np.random.default_rng(seed)).mean() for seed in range(300)]
    assert np.mean(shares) == pytest.approx(0.3, abs=5 * np.std(shares) / math.sqrt(300))


@given(st.floats(0.01, 0.9), st.integers(0, 2**32 - 1))
def test_blocks_stop_at_their_fraction(fraction: float, seed: int) -> None:
    missing = gaps.block_gaps((50, 50), fraction, np.random.default_rng(seed), size=1.0)
    # one block of size 1 has at most exp(0.4 * 6 sigma)^2 cells
    assert round(fraction * 2500) <= missing.sum() <= round(fraction * 2500) + 120


def test_horizontal_stripes_are_rows() -> None:
    missing = gaps.stripe_gaps((60, 40), 0.25, np.random.default_rng(0), period=20, angle=0.0, wedge=0.0)
    np.testing.assert_array_equal(missing, np.repeat(missing[:, :1], 40, 1))
    assert missing[:, 0].sum() == 15
    assert census(~missing).gaps in {3, 4}


def test_a_wedge_thins_out_to_one_side() -> None:
    missing = gaps.stripe_gaps((400, 400), 0.4, np.random.default_rng(0), period=10, angle=0.0, wedge=1.0)
    thin, thick = missing[:, :40].mean(), missing[:, -40:].mean()
    assert thin < 0.06
    assert 0.74 < thick < 0.86


def test_clouds_grow_with_their_scale() -> None:
    small, large = (gaps.cloud_gaps((128, 128), 0.4, np.random.default_rng(0), scale) for scale in (3.0, 30.0))
    assert census(~small).gaps > 5 * census(~large).gaps


@given(kinds, st.one_of(st.floats(max_value=-1e-9), st.floats(min_value=1, exclude_min=True), st.just(math.nan)))
def test_a_fraction_out_of_range_is_refused(kind: str, fraction: float) -> None:
    with pytest.raises(InputError, match=r"fraction of missing cells must lie between 0 and 1, got"):
        simulate(kind, (4, 4), fraction, np.random.default_rng(0))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown kind of gaps 'fog': expected one of \['blocks', 'clouds'"):
        simulate("fog", (4, 4), 0.5, np.random.default_rng(0))
