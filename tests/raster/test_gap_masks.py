"""Gaps are filled or left as a whole, by their size and place, in whatever strips the slice is read."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from geonp.raster.gap_masks import GapRule, PackedMask, kept_mask


def slow(missing: np.ndarray, rule: GapRule) -> np.ndarray:
    """Gap by gap: by flooding, and by trying all squares."""
    rows, cols = missing.shape
    turned = np.concatenate([missing, missing, missing], 1) if rule.periodic else missing
    labels, n = ndimage.label(turned)
    kept = np.ones(turned.shape, bool)
    for gap in range(1, n + 1):
        cells = labels == gap
        edge = cells[0].any() or cells[-1].any() or (not rule.periodic and (cells[:, 0].any() or cells[:, -1].any()))
        side = 0 if rule.max_gap is None else rule.max_gap + 1
        wide = side > 0 and any(
            cells[i : i + side, j : j + side].all()
            for i in range(rows - side + 1)
            for j in range(turned.shape[1] - side + 1)
        )
        if (rule.holes and edge) or wide:
            kept[cells] = False
    # a gap that is cut by the ends of the three turns is whole in one of them
    return kept.reshape(rows, -1, cols).all(1) if rule.periodic else kept


@given(
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.3, 0.55, 0.75]),
    cuts=st.lists(st.integers(1, 13), max_size=4, unique=True),
    rule=st.builds(GapRule, st.booleans(), st.sampled_from([None, 1, 2, 3]), st.booleans()),
)
def test_gaps_are_decided_as_a_whole(seed: int, share: float, cuts: list[int], rule: GapRule) -> None:
    missing = np.random.default_rng(seed).random((14, 11)) < share
    expected = slow(missing, rule)
    strips = np.split(missing, sorted(cuts))
    found = kept_mask(strips, 14, rule)
    np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(found[3:9, 2:7], expected[3:9, 2:7])
    assert found[5:5, :].shape == (0, 11)


@pytest.mark.parametrize(("shape", "size"), [((1, 7), 1), ((3, 9), 3), ((4, 4), 4), ((2, 3), 2)])
def test_the_size_is_the_number_of_cells_across(shape: tuple[int, int], size: int) -> None:
    missing = np.zeros((20, 24), bool)
    missing[5 : 5 + shape[0], 6 : 6 + shape[1]] = True
    assert GapRule(max_gap=size)(missing).all()
    assert (GapRule(max_gap=size - 1)(missing) == ~missing).all()
    assert GapRule(holes=True)(missing).all()


def test_packed_masks_are_small_and_travel() -> None:
    mask = np.zeros((2048, 2048), bool)
    mask[300:900, 200:1500] = True
    packed = PackedMask(mask.shape)
    packed.append(0, mask[:1000])
    packed.append(1000, mask[1000:])
    sent = pickle.dumps(packed)
    assert len(sent) < mask.size / 100
    np.testing.assert_array_equal(pickle.loads(sent)[899:1001, 100:300], mask[899:1001, 100:300])
