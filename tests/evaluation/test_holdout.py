from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geonp.errors import InputError
from geonp.evaluation.holdout import hide, hide_like_own_gaps, hide_simulated
from geonp.raster.gaps import SIMULATORS, simulate


def test_hide_keeps_the_truth_aside() -> None:
    truth = np.array([[1.0, 2.0], [np.nan, 4.0]], np.float32)
    test = hide(truth, np.array([[True, False], [True, False]]))
    np.testing.assert_array_equal(test.values, np.array([[np.nan, 2.0], [np.nan, 4.0]], np.float32))
    np.testing.assert_array_equal(test.hidden, [[True, False], [False, False]])
    assert test.values.dtype == np.float32
    assert test.truth is truth


@given(st.sampled_from(sorted(SIMULATORS)), st.integers(0, 2**32 - 1))
def test_hidden_cells_are_known_and_missing(kind: str, seed: int) -> None:
    truth = np.arange(48.0 * 40).reshape(48, 40)
    truth[:5] = np.nan
    test = hide_simulated(truth, kind, 0.3, np.random.default_rng(seed))
    assert np.isfinite(truth[test.hidden]).all()
    assert np.isnan(test.values[test.hidden]).all()
    untouched = ~test.hidden
    np.testing.assert_array_equal(test.values[untouched], truth[untouched])


def test_gaps_that_are_those_of_the_raster_are_drawn_again() -> None:
    missing = simulate("clouds", (48, 40), 0.3, np.random.default_rng(0))
    test = hide_simulated(np.where(missing, np.nan, 1.0), "clouds", 0.3, np.random.default_rng(0))
    assert 0 < test.hidden.sum() < (~missing).sum()


@given(st.integers(0, 2**32 - 1))
def test_own_gaps_are_moved_whole_and_within_the_share(seed: int) -> None:
    truth = np.zeros((40, 40))
    truth[10:13, 10:14] = np.nan
    test = hide_like_own_gaps(truth, np.random.default_rng(seed))
    assert 1 <= test.hidden.sum() <= 12
    assert not (test.hidden & np.isnan(truth)).any()


def test_own_gaps_stop_at_the_share_of_the_known_cells() -> None:
    rng = np.random.default_rng(3)
    truth = np.where(rng.random((60, 60)) < 0.6, np.nan, 1.0)
    test = hide_like_own_gaps(truth, rng, share=0.1)
    assert test.hidden.sum() <= 0.1 * np.isfinite(truth).sum()


def test_two_known_cells_are_enough() -> None:
    truth = np.full((3, 3), np.nan)
    truth[0, :2] = 1.0
    assert hide_like_own_gaps(truth, np.random.default_rng(0)).hidden.sum() == 1


def test_errors_say_what_is_wrong() -> None:
    truth = np.ones((2, 3))
    with pytest.raises(InputError, match=r"the gaps have shape \(3, 2\), the raster \(2, 3\)"):
        hide(truth, np.ones((3, 2), bool))
    with pytest.raises(InputError, match="6 of 6 observed cells would be hidden"):
        hide(truth, np.ones((2, 3), bool))
    with pytest.raises(InputError, match="0 of 6 observed cells would be hidden"):
        hide(truth, np.zeros((2, 3), bool))
    with pytest.raises(InputError, match="moving the 0 missing cells hides none or all of the 6 observed ones"):
        hide_like_own_gaps(truth, np.random.default_rng(0))
