"""Squares for scattered observations: every place is covered, context is near, projections keep distances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geonp.errors import InputError
from geonp.scattered.squares import (
    SQUARES,
    Observations,
    Square,
    blend_weights,
    candidates_of,
    frames_of,
    grouped,
    project,
    square_context,
    squares_of,
)


def scattered(n: int, *, geographic: bool, seed: int = 0, clustered: bool = False) -> Observations:
    rng = np.random.default_rng(seed)
    xy = rng.uniform([-180, -90], [180, 90], (n, 2)) if geographic else rng.uniform(0, 1e5, (n, 2))
    if clustered:
        xy[: n // 2] = xy[0] + rng.normal(0, 0.01 if geographic else 30.0, (n // 2, 2))
        xy[:, 1] = np.clip(xy[:, 1], -90, 90) if geographic else xy[:, 1]
    return Observations(xy, rng.standard_normal(n), geographic)


def bounds_of(places: np.ndarray) -> tuple[float, float, float, float]:
    return (*places.min(0).tolist(), *places.max(0).tolist())


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("geographic", [False, True])
def test_every_place_is_covered_and_squares_follow_the_density(geographic: bool, clustered: bool) -> None:
    observations = scattered(3000, geographic=geographic, clustered=clustered)
    places = scattered(2000, geographic=geographic, seed=1).xy
    squares = squares_of(observations, bounds_of(places))
    total = np.zeros(len(places))
    distance = observations.distance(places)
    for square, index in zip(squares, grouped(places, squares, geographic), strict=True):
        total[index] += blend_weights(places[index], distance[index], square, geographic)
    assert total.min() > 0.4
    if not clustered and not geographic:
        assert np.isclose(total, 1).mean() > 0.9  # neighbours of one size add up to one
    sides = {square.side for square in squares}
    assert (len(sides) > 5) == clustered or geographic
    inside = [
        np.sum(np.all((observations.xy >= [s.x, s.y]) & (observations.xy < [s.x + s.side, s.y + s.side]), 1))
        for s in squares
    ]
    assert max(inside) <= SQUARES.most_inside


def test_the_part_of_a_region_has_the_same_squares() -> None:
    observations = scattered(2000, geographic=False)
    whole = set(squares_of(observations, (0.0, 0.0, 1e5, 1e5)))
    assert set(squares_of(observations, (2e4, 3e4, 4e4, 5e4))) < whole


def test_squares_with_the_same_context_are_read_as_one() -> None:
    region = scattered(150, geographic=False)
    region = Observations(region.xy / 1e4 + [5, 45], region.values, geographic=True)
    for observations, bounds in ((scattered(150, geographic=False), (0.0, 0.0, 1e5, 1e5)), (region, (5, 45, 15, 55))):
        squares = squares_of(observations, bounds)
        sides = [square.side for square in squares]
        frames = [frame for frame in frames_of(observations, squares, 256) if frame.side == min(sides)]
        assert sides.count(min(sides)) == len(frames) > 1
        assert len(set(frames)) == 1
        assert frames_of(observations, squares, 128) == squares  # each has a context of its own
    globe = scattered(150, geographic=True)
    squares = squares_of(globe, (-180.0, -90.0, 180.0, 90.0))
    assert frames_of(globe, squares, 256) == squares  # no map shows the whole Earth


def test_places_out_of_all_reach_are_refused_before_memory_is_full() -> None:
    degrees = Observations(np.random.default_rng(0).uniform(5, 9, (60, 2)), np.arange(60.0), geographic=False)
    with pytest.raises(InputError, match=r"reach too far beyond the measurements: got x from 900000.*--crs"):
        squares_of(degrees, (9e5, 6.3e6, 1.1e6, 6.5e6))
    with pytest.raises(InputError, match="reach too far"):
        squares_of(degrees, (0.0, 0.0, 1e300, np.inf))


@pytest.mark.parametrize("west", [5.0, 176.0, -4.0])
@pytest.mark.parametrize("n", [20, 90])
def test_few_measurements_of_a_region_have_squares_of_its_size(n: int, west: float) -> None:
    """Not of the size of the Earth, of which 90 measurements in 8 degrees are one place; few squares are far away."""
    rng = np.random.default_rng(0)
    xy = rng.uniform([west, 47], [west + 10, 55], (n, 2))
    xy[:, 0] = (xy[:, 0] + 180) % 360 - 180
    observations = Observations(xy, rng.standard_normal(n), geographic=True)
    squares = squares_of(observations, (-180.0, -90.0, 180.0, 90.0))
    assert len(squares) < 60
    near = [square for square, i in zip(squares, grouped(xy, squares, geographic=True), strict=True) if i.size]
    assert 5 < max(square.side for square in near) < (30 if n == 20 else 12)


@pytest.mark.parametrize("middle", [(0.0, 0.0), (179.9, 10.0), (30.0, 89.5)])
def test_distances_on_the_sphere_are_kept(middle: tuple[float, float]) -> None:
    """One degree along the meridian, across the date line and over the pole."""
    lon, lat = middle
    over = (lon, lat + 1) if lat + 1 <= 90 else (lon + 180, 180 - lat - 1)
    beside = (lon + 1 / np.cos(np.radians(lat)), lat)
    beside = ((beside[0] + 180) % 360 - 180, beside[1])
    offset = project(np.array([over, beside, middle]), middle, geographic=True)
    np.testing.assert_allclose(offset[0], [1, 0], atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(offset[1]), 1, atol=0.02 if lat < 80 else 0.6)
    np.testing.assert_allclose(offset[2], 0, atol=1e-9)


def test_context_is_all_that_is_near_and_some_of_what_is_far() -> None:
    observations = scattered(5000, geographic=False)
    square = squares_of(observations, (4e4, 4e4, 4e4, 4e4))[0]
    chosen, offset = square_context(observations, square, 256, 3.0)
    assert len(set(chosen)) == 256
    inside = np.flatnonzero(
        np.all(
            (observations.xy >= [square.x, square.y]) & (observations.xy <= np.add([square.x, square.y], square.side)),
            1,
        )
    )
    assert set(inside) <= set(chosen)
    distance = np.linalg.norm(offset, axis=1)
    assert np.median(distance) < 25 < distance.max()
    np.testing.assert_allclose(offset[:, ::-1] * square.unit + square.middle, observations.xy[chosen])


@pytest.mark.parametrize("geographic", [False, True])
def test_context_beside_a_dense_swath_is_as_wide_as_beside_a_sparse_one(geographic: bool) -> None:
    """The 1,024 observations nearest to the gap lie within a twentieth of the length of the dense swath."""
    rng = np.random.default_rng(0)
    swath = rng.uniform([0, -40], [5, 40], (40_000, 2))
    square = Square(12.0, -2.0, 4.0)
    spread = []
    for n in (1_000, 40_000):
        observations = Observations(swath[:n], np.zeros(n), geographic)
        offset = square_context(observations, square, 256, 3.5)[1] * square.unit
        spread.append(offset[:, 0].std())
        near, share = candidates_of(observations, square, 256)
        assert len(set(near)) == len(near) <= 4 * SQUARES.candidates
        assert share.sum() == pytest.approx(n, rel=0.05)
    assert spread[1] == pytest.approx(spread[0], rel=0.15)
    assert spread[0] > 8


@settings(deadline=None, max_examples=20)
@given(st.integers(4, 600), st.integers(0, 2**32 - 1))
def test_the_order_of_observations_does_not_matter(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    observations = scattered(n, geographic=False, seed=seed)
    # some places have been measured twice
    observations.xy[: n // 3] = observations.xy[n // 3 : 2 * (n // 3)]
    order = rng.permutation(n)
    shuffled = Observations(observations.xy[order], observations.values[order], False)
    square = squares_of(observations, (0.3, 0.4, 0.3, 0.4))[0]
    (chosen, offset), (again, same) = (square_context(o, square, 100, 3.0) for o in (observations, shuffled))
    np.testing.assert_array_equal(order[again], chosen)
    np.testing.assert_array_equal(same, offset)


@pytest.mark.parametrize("xy", [np.zeros((5, 2)), np.array([[i, 2.0 * i] for i in range(9)]), np.ones((300, 2))])
def test_places_on_a_line_or_all_the_same_are_no_trap(xy: np.ndarray) -> None:
    observations = Observations(xy.astype(float), np.arange(len(xy), dtype=float), False)
    squares = squares_of(observations, (-1.0, -1.0, 3.0, 3.0))
    assert 0 < len(squares) < 5000
