"""Tiles become batches of few shapes, whose padding changes nothing."""

from __future__ import annotations

import itertools

import numpy as np

from geonp.inference.batch_counts import padded_sizes
from geonp.inference.batches import BATCHES, padded_size, tiles_per_batch
from geonp.inference.context import Neighbourhood
from geonp.inference.predictor import Predictor
from geonp.inference.stitching import Tile, batches, pad

WIDTH = 60


def tile(n_t: int, n_c: int = 9, first: int = 0) -> Tile:
    cells = np.arange(n_t + n_c) + first
    places = np.stack(np.divmod(cells, WIDTH), -1) - (0.5, 7.5)
    values = np.random.default_rng(first).normal(280.0, 5.0, n_c)
    return Tile(places[:n_c], values, places[n_c:], cells[n_c:], np.ones(n_t))


def test_a_batch_holds_tiles_of_one_bucket_and_fewer_of_large_ones() -> None:
    sizes = [1, 30, 32, 33, 64, 500, 760, 768, 769, 1024, 1500, 3000]
    found = sorted([t.targets.size for t in batch] for batch in batches([tile(n) for n in sizes], 4))
    assert list(itertools.chain(*found)) == sizes
    assert found == [[1, 30, 32], [33, 64], [500], [760, 768], [769], [1024], [1500], [3000]]
    assert [tiles_per_batch(4, n) for n in (32, 768, 1024, 1536, 3072, 10**6)] == [4, 4, 3, 2, 1, 1]


def test_buckets_hold_what_is_put_into_them_and_little_more() -> None:
    for n in range(1, 3000):
        assert n <= padded_size(n) <= max(64, (1.5 if n < 700 else 1.2) * n)
    assert len({padded_size(n) for n in range(1, 1025)}) == len(BATCHES.buckets) + 4 == padded_sizes(1024)


def test_padding_repeats_cells() -> None:
    predictor = Predictor("m", "", "cpu", "float32", 4, Neighbourhood(n_context=9))
    batch = [tile(20), tile(32, first=300), tile(7, n_c=4, first=500)]
    points = pad(batch, predictor)
    assert points.xt.shape == (3, 32, 2)
    assert points.xc.shape == (3, 9, 2)
    for i, t in enumerate(batch):
        n = len(t.xt)
        np.testing.assert_array_equal(points.xt[i, :n], t.xt)
        np.testing.assert_array_equal(points.xt[i, n:], np.broadcast_to(t.xt[-1], (32 - n, 2)))
        assert points.mask[i].sum() == len(t.xc)
        known = points.loc[i] + points.scale[i] * points.yc[i, points.mask[i], 0]
        np.testing.assert_allclose(known, t.yc, rtol=1e-6)
