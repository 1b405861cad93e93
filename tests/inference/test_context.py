"""Context is chosen by place alone, near before far; standardisation is equivariant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from geonp.errors import InputError
from geonp.inference.context import Neighbourhood, halo_for, select_context, standardise
from geonp.inference.stitching import overlaps
from geonp.inference.thinning import curve, start_of, thinned
from geonp.raster.grid import Grid

NEIGHBOURHOOD = Neighbourhood(tile_px=8, halos_px=(4, 8, 16), n_context=20)
SIDE = NEIGHBOURHOOD.tile_px + 2 * NEIGHBOURHOOD.reach_px
seeds = st.integers(0, 2**32 - 1)
windows = hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=24))


# --- curve ------------------------------------------------------------------------------------------------------------


def test_the_curve_goes_through_every_cell_once_and_quarter_by_quarter() -> None:
    place = curve(np.arange(64)[:, None], np.arange(64))
    np.testing.assert_array_equal(np.sort(place, axis=None), np.arange(64**2))
    for side in (2, 8, 32):
        squares = place.reshape(64 // side, side, 64 // side, side) // side**2
        assert (squares == squares[:, :1, :, :1]).all()


def test_the_curve_distinguishes_the_farthest_cells() -> None:
    far = np.arange(2**31 - 4, 2**31)
    assert np.unique(curve(far[:, None], far)).size == 16


def test_seeds_begin_to_count_at_places_far_from_each_other() -> None:
    for first in (0, -10, 2**53, 2**63 - 10, -(10**400)):
        starts = np.sort([start_of(first + i) for i in range(20)])
        assert starts[0] >= 0
        assert starts[-1] < 1
        assert np.diff(starts).min() > 0.25 / 20


# --- halos ------------------------------------------------------------------------------------------------------------


@given(seeds, st.floats(0, 0.2))
def test_halo_is_the_narrowest_with_enough_context(seed: int, density: float) -> None:
    observed = np.random.default_rng(seed).random((SIDE, SIDE)) < density
    inside = {
        halo: np.count_nonzero(observed[16 - halo : SIDE - 16 + halo, 16 - halo : SIDE - 16 + halo])
        for halo in (4, 8, 16)
    }
    enough = [halo for halo, n in inside.items() if n >= NEIGHBOURHOOD.n_context]
    assert halo_for(observed, NEIGHBOURHOOD) == (enough[0] if enough else 16)


def test_every_halo_is_used() -> None:
    observed = np.zeros((SIDE, SIDE), bool)
    assert halo_for(observed, NEIGHBOURHOOD) == 16
    observed[8, 8:28] = True
    assert halo_for(observed, NEIGHBOURHOOD) == 8
    observed[8, 8:28], observed[20, 12:28] = False, True
    assert halo_for(observed, NEIGHBOURHOOD) == 16
    observed[21, 12:16] = True
    assert halo_for(observed, NEIGHBOURHOOD) == 4
    assert halo_for(observed, replace(NEIGHBOURHOOD, halos_px=(16,))) == 16


# --- context ----------------------------------------------------------------------------------------------------------


@given(windows, seeds, st.integers(1, 60))
def test_context_is_observed_bounded_rising_and_deterministic(
    observed: npt.NDArray[np.bool_], seed: int, n_context: int
) -> None:
    neighbourhood, start = replace(NEIGHBOURHOOD, n_context=n_context), start_of(seed)
    corner = at(observed.shape, [(0, 0)])
    chosen = select_context(observed, corner, neighbourhood, start)
    assert chosen.size == min(n_context, observed.sum())
    assert (np.diff(chosen) > 0).all()
    assert observed.ravel()[chosen].all()
    np.testing.assert_array_equal(chosen, select_context(observed, corner, neighbourhood, start))


def at(shape: tuple[int, ...], cells: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """These cells alone as a mask."""
    mask = np.zeros(shape, bool)
    mask[tuple(np.transpose(cells))] = True
    return mask


def distances(targets: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Brute force: from each cell to the nearest target."""
    cells = np.indices(targets.shape).reshape(2, -1).T
    away = np.sqrt(((cells[:, None] - np.argwhere(targets)[None]) ** 2).sum(-1))
    return np.asarray(away.min(1)).reshape(targets.shape)


@settings(max_examples=40)
@given(seeds, st.integers(5, 200), st.sampled_from([1.0, 2.0, 3.5, 8.0]))
def test_near_cells_are_all_taken_and_far_ones_thinned(seed: int, n_context: int, thinning: float) -> None:
    observed = np.random.default_rng(seed).random((30, 26)) < 0.7
    targets = at(observed.shape, [(8, 10), (9, 10), (12, 11), (20, 4)])
    observed[targets] = False
    neighbourhood = replace(NEIGHBOURHOOD, n_context=n_context, thinning=thinning)
    starts = (np.arange(200) + 0.5) / 200
    chosen = [select_context(observed, targets, neighbourhood, start) for start in starts]
    taken = np.bincount(np.concatenate(chosen), minlength=observed.size) / len(starts)
    d = distances(targets).ravel()
    # the radius up to which all are taken, by bisection
    low, high = 0.0, 1e4
    for _ in range(60):
        t = (low + high) / 2
        expected = observed.ravel() * np.minimum((t / (d + 1)) ** thinning, 1)
        low, high = (t, high) if expected.sum() < n_context else (low, t)
    np.testing.assert_allclose(taken, expected, atol=2 / len(starts))


@pytest.mark.parametrize("start", [0.0, 1e-16, 1e-12, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("thinning", [1.0, 3.5, 8.0, 20.0])
@pytest.mark.parametrize("n", [1, 53, 256])
def test_exactly_as_many_are_taken_as_asked_for(start: float, thinning: float, n: int) -> None:
    distances = (
        np.r_[np.zeros(100), np.full(1000, 1e5)],
        np.tile(np.arange(1.0, 170.0), 4),
        np.r_[np.ones(28), np.full(260, 2.0)],
        np.full(300, 1e100),
        np.geomspace(1e-6, 1e12, 300),
    )
    for distance in distances:
        chosen = thinned(distance, n, thinning, start)
        assert chosen.size == n
        assert (np.diff(chosen) > 0).all()
        assert 0 <= chosen[0] <= chosen[-1] < distance.size


def test_far_context_is_spread_more_evenly_than_by_chance() -> None:
    target = at((101, 101), [(50, 50)])
    rng = np.random.default_rng(0)
    observed = ~target & (rng.random(target.shape) < 0.5)
    counts = []
    for start in (np.arange(40) + 0.5) / 40:
        chosen = np.zeros(target.shape)
        chosen.ravel()[select_context(observed, target, replace(NEIGHBOURHOOD, n_context=400), start)] = 1
        # squares of 20 cells far from the target
        counts.append(chosen[:20, :100].reshape(20, 5, 20).sum((0, 2)))
    expected = np.mean(counts)
    # independent draws would have the variance of their mean
    assert expected > 2
    assert np.var(counts, axis=0).mean() < 0.4 * expected


@given(seeds, st.integers(0, 3), st.booleans())
def test_context_turns_with_the_window(seed: int, quarters: int, mirrored: bool) -> None:
    observed = np.random.default_rng(seed).random((24, 31)) < 0.6
    down, across = (abs(int(observed.sum(1 - axis) @ (2 * np.arange(n) - n + 1))) for axis, n in ((0, 24), (1, 31)))
    assume(down and across and down != across)
    targets = at(observed.shape, [(4, 7), (7, 5)])

    def turn(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return np.rot90(mask[::-1] if mirrored else mask, quarters)

    def chosen(mask: npt.NDArray[np.bool_], of: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        found = np.zeros(mask.size, bool)
        found[select_context(mask, of, NEIGHBOURHOOD)] = True
        return found.reshape(mask.shape)

    np.testing.assert_array_equal(chosen(turn(observed), turn(targets)), turn(chosen(observed, targets)))


# --- standardise ------------------------------------------------------------------------------------------------------

values = hnp.arrays(np.float64, st.integers(2, 40), elements=st.floats(-100, 100)).filter(lambda a: a.std() > 1e-2)


@given(values, st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6]), st.floats(-1000, 1000))
def test_standardisation_is_equivariant(a: npt.NDArray[np.float64], factor: float, shift: float) -> None:
    one, other = standardise(a), standardise(factor * (a + shift))
    np.testing.assert_allclose(other.z, one.z, atol=2e-5)
    assert other.scale == pytest.approx(factor * one.scale, rel=1e-6)
    assert other.loc == pytest.approx(factor * (one.loc + shift), abs=factor * 1e-9)


@given(values, st.sampled_from([-1000, -700, -400, 400, 700, 1000]))
def test_standardisation_of_numbers_whose_squares_float64_cannot_hold(a: npt.NDArray[np.float64], power: int) -> None:
    a = np.round(a, 3)  # none is subnormal
    one, other = standardise(a), standardise(np.ldexp(a, power))
    np.testing.assert_array_equal(other.z, one.z)
    assert (other.loc, other.scale) == (np.ldexp(one.loc, power), np.ldexp(one.scale, power))


@given(values)
def test_standardised_values_have_mean_zero_and_variance_one_and_go_back(a: npt.NDArray[np.float64]) -> None:
    s = standardise(a)
    assert s.z.dtype == np.float32
    assert s.z.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert s.z.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(s.loc + s.scale * s.z.astype(np.float64), a, atol=1e-6 * s.scale * 10)


@given(st.sampled_from([0.0, 1e-20, 273.15, -1e6, 3e38]), st.integers(1, 300), st.sampled_from(["f4", "f8"]))
def test_constants_stay_constant(constant: float, n: int, dtype: str) -> None:
    s = standardise(np.full(n, constant, dtype))
    assert s.scale > 0
    assert np.abs(s.z).max() < 1e-2
    assert s.scale <= max(1e-7 * abs(constant), 1e-30) * (1 + 1e-6)
    np.testing.assert_allclose(
        s.loc + s.scale * s.z.astype(np.float64), np.float64(np.dtype(dtype).type(constant)), rtol=1e-9
    )


def test_a_small_spread_on_a_large_offset_is_kept_in_float64() -> None:
    a = 1.7e9 + np.array([0.0, 1.0, 2.0, 5.0])
    s = standardise(a)
    assert s.scale == pytest.approx(a.std())
    np.testing.assert_allclose(s.z, standardise(a - 1.7e9).z, atol=1e-6)


def test_what_float32_cannot_resolve_is_no_spread() -> None:
    a = np.array([1e6, np.nextafter(np.float32(1e6), np.float32(2e6))], np.float32)
    assert standardise(a).scale == pytest.approx(0.1)


def test_tiles_reach_farther_to_what_is_farther_from_data() -> None:
    observed = np.zeros((9, 12), bool)
    observed[4, 2] = True
    reached = overlaps(observed, Neighbourhood(overlap_px=5))
    assert reached[4].tolist() == [3, 2, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5]
    assert reached[0, 2] == reached[0, 6] == 5
    assert (overlaps(np.zeros((3, 3), bool), Neighbourhood(overlap_px=5)) == 5).all()
    assert (overlaps(observed, Neighbourhood(overlap_px=0)) == 0).all()


TRAINED = Neighbourhood(axes=((0.0, 0.0), (-0.1, 0.0), (0.0, 0.1)), spacing=(-0.25, 0.25))


def axes_on(y_dim: str = "latitude", x_dim: str = "longitude", **coords: object) -> tuple[float, float]:
    """How much the inputs of a model for 0.25 degrees grow per row and column, in those of training."""
    sizes = {y_dim: 40, x_dim: 80}
    da = xr.DataArray(np.zeros((40, 80)), dims=(y_dim, x_dim), coords={k: v for k, v in coords.items() if k in sizes})
    axes = TRAINED.on(Grid.from_xarray(da)).axes
    return axes[1][0] / -0.1, axes[2][1] / 0.1


def test_longitudes_that_wrap_are_as_far_apart_as_those_that_do_not() -> None:
    latitude, longitude = 50 - 0.25 * np.arange(40), -10 + 0.25 * np.arange(80)
    straight = axes_on(latitude=latitude, longitude=longitude)
    assert straight == axes_on(latitude=latitude, longitude=longitude % 360) == (1.0, 1.0)
    assert axes_on(latitude=latitude[::-1], longitude=(longitude % 360)[::-1]) == (-1.0, -1.0)


@pytest.mark.parametrize("names", [("latitude", "longitude"), ("y", "x")])
def test_uneven_coordinates_are_refused(names: tuple[str, str]) -> None:
    uneven = np.r_[np.arange(40.0), 100 + np.arange(40)]
    with pytest.raises(InputError, match=rf"{names[1]}' is not evenly spaced.*drop_vars\('{names[1]}'\)"):
        axes_on(*names, **{names[1]: uneven})


def test_cells_of_a_degree_from_zero_on_are_not_taken_for_none() -> None:
    assert axes_on(latitude=np.arange(40.0), longitude=np.arange(80.0)) == (-4.0, 4.0)
    assert axes_on(longitude=np.arange(80.0)) == (1.0, 4.0)
    assert axes_on(latitude=np.arange(40.0)) == (-4.0, 1.0)
    assert axes_on("y", "x", x=np.arange(80.0)[::-1]) == (1.0, -1.0)
    assert axes_on() == (1.0, 1.0)
