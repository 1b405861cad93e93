"""Context is chosen by place alone, near before far; standardisation is equivariant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from geonp.errors import InputError
from geonp.grid import Grid
from geonp.points import Neighbourhood, halo_for, overlaps, rank, select_context, standardise

NEIGHBOURHOOD = Neighbourhood(tile_px=8, halos_px=(4, 8, 16), n_context=20)
SIDE = NEIGHBOURHOOD.tile_px + 2 * NEIGHBOURHOOD.reach_px
seeds = st.integers(0, 2**32 - 1)
windows = hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=24))


# --- rank -------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 80), st.integers(0, 80), st.integers(1, 20), st.integers(1, 20), st.integers(-5, 2**40))
def test_a_cell_has_the_same_rank_in_every_window(row: int, col: int, height: int, width: int, seed: int) -> None:
    whole = rank(np.arange(100), np.arange(100), seed)
    rows, cols = np.arange(row, row + height), np.arange(col, col + width)
    np.testing.assert_array_equal(rank(rows, cols, seed), whole[row : row + height, col : col + width])


def test_ranks_are_uniform_and_independent_of_their_neighbours() -> None:
    n = 400
    u = rank(np.arange(n), np.arange(n)).astype(np.float64)
    assert u.min() > 0
    assert u.max() <= 1
    counts, _ = np.histogram(u, 64, (0, 1))
    expected = n * n / 64
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_squared - 63) < 5 * np.sqrt(2 * 63)
    for a, b in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1]), (u, u.T), (u, rank(np.arange(n), np.arange(n), 1))):
        off = a != b
        assert abs(np.corrcoef(a[off], b[off])[0, 1]) < 5 / n


def test_ranks_differ_between_seeds_rows_and_columns() -> None:
    cells = np.arange(50)
    assert (rank(cells, cells, 0) != rank(cells, cells, 1)).mean() > 0.99
    assert np.unique(rank(cells, cells)).size > 0.999 * 50 * 50
    far = np.arange(2**31 - 2, 2**31 + 2)
    assert np.unique(rank(far, far)).size == 16


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
    ranks = rank(np.arange(observed.shape[0]), np.arange(observed.shape[1]), seed)
    neighbourhood = replace(NEIGHBOURHOOD, n_context=n_context)
    corner = at(observed.shape, [(0, 0)])
    chosen = select_context(observed, ranks, corner, neighbourhood)
    assert chosen.size == min(n_context, observed.sum())
    assert (np.diff(chosen) > 0).all()
    assert observed.ravel()[chosen].all()
    np.testing.assert_array_equal(chosen, select_context(observed, ranks, corner, neighbourhood))


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


@given(seeds, st.integers(5, 200), st.sampled_from([1.0, 2.0, 3.0, 8.0]))
def test_near_cells_are_all_taken_and_far_ones_thinned(seed: int, n_context: int, thinning: float) -> None:
    rng = np.random.default_rng(seed)
    observed = rng.random((30, 26)) < 0.7
    targets = at(observed.shape, [(8, 10), (9, 10), (12, 11), (20, 4)])
    observed[targets] = False
    ranks = rank(np.arange(100, 130), np.arange(7, 33), seed)
    chosen = select_context(observed, ranks, targets, replace(NEIGHBOURHOOD, n_context=n_context, thinning=thinning))
    d = distances(targets).ravel()
    key = (d + 1) * ranks.ravel().astype(np.float64) ** (1 / thinning)
    rest = np.setdiff1d(np.flatnonzero(observed), chosen)
    t = key[rest].min()
    # up to the radius t everything is taken; beyond it, those of rank below (t / (d + 1))^thinning, and no others
    assert (d[rest] + 1 >= t * (1 - 1e-6)).all()
    assert (ranks.ravel()[chosen] <= (t / (d[chosen] + 1)) ** thinning * (1 + 1e-5)).all()


def test_the_share_taken_falls_with_the_distance_as_documented() -> None:
    target = at((101, 101), [(50, 50)])
    observed = ~target
    d = distances(target).ravel()
    taken, radii = np.zeros(d.size), []
    for seed in range(60):
        ranks = rank(np.arange(101), np.arange(101), seed)
        chosen = select_context(observed, ranks, target, replace(NEIGHBOURHOOD, n_context=400))
        taken[chosen] += 1 / 60
        radii.append(((d + 1) * ranks.ravel() ** (1 / 3))[chosen].max())
    t = np.mean(radii)
    assert taken[(d > 0) & (d + 1 < min(radii))].min() == pytest.approx(1)
    for low, high in ((15, 18), (25, 30), (40, 50)):
        ring = (d >= low) & (d < high)
        assert taken[ring].mean() == pytest.approx(((t / (d[ring] + 1)) ** 3).mean(), rel=0.1)


@given(st.permutations(range(12)))
def test_context_does_not_depend_on_values_of_unobserved_ranks(order: list[int]) -> None:
    observed = np.zeros((4, 12), bool)
    observed[::2] = True
    ranks = rank(np.arange(4), np.arange(12))
    other = ranks.copy()
    other[1::2] = other[1::2][:, order]
    neighbourhood, targets = replace(NEIGHBOURHOOD, n_context=9), at(observed.shape, [(1, 3), (3, 4)])
    np.testing.assert_array_equal(
        select_context(observed, ranks, targets, neighbourhood),
        select_context(observed, other, targets, neighbourhood),
    )


@given(seeds, st.integers(0, 50), st.integers(0, 50))
def test_context_does_not_depend_on_the_window(seed: int, up: int, left: int) -> None:
    """A wider window with nothing more in it, or seen from elsewhere, gives the same cells."""
    observed = np.random.default_rng(seed).random((12, 12)) < 0.8
    rows, cols = np.arange(200, 212), np.arange(300, 312)
    targets = at(observed.shape, [(4, 7), (7, 5)])
    chosen = select_context(observed, rank(rows, cols), targets, NEIGHBOURHOOD)
    wide = np.pad(observed, ((up, 3), (left, 5)))
    wide_ranks = rank(np.arange(200 - up, 215), np.arange(300 - left, 317))
    moved = np.pad(targets, ((up, 3), (left, 5)))
    row, col = np.divmod(select_context(wide, wide_ranks, moved, NEIGHBOURHOOD), wide.shape[1])
    np.testing.assert_array_equal((row - up) * 12 + col - left, chosen)


# --- standardise ------------------------------------------------------------------------------------------------------

values = hnp.arrays(np.float64, st.integers(2, 40), elements=st.floats(-100, 100)).filter(lambda a: a.std() > 1e-2)


@given(values, st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6]), st.floats(-1000, 1000))
def test_standardisation_is_equivariant(a: npt.NDArray[np.float64], factor: float, shift: float) -> None:
    one, other = standardise(a), standardise(factor * (a + shift))
    np.testing.assert_allclose(other.z, one.z, atol=2e-5)
    assert other.scale == pytest.approx(factor * one.scale, rel=1e-6)
    assert other.loc == pytest.approx(factor * (one.loc + shift), abs=factor * 1e-9)


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
