"""Tiles become batches of few shapes, whose padding changes nothing."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
import weakref

import dask
import numpy as np
import pytest
from dask.system import CPU_COUNT

from geonp.prediction import TARGET_BUCKETS, Tile, batches, bucket, gather, on_cores, together

WIDTH = 60


def tile(n_t: int, n_c: int = 9, first: int = 0) -> Tile:
    cells = np.arange(n_t + n_c) + first
    return Tile(cells[:n_c], cells[n_c:], np.ones(n_t), (0.5, 7.5))


def test_a_batch_holds_tiles_of_one_bucket_and_fewer_of_large_ones() -> None:
    sizes = [1, 30, 32, 33, 64, 500, 760, 768, 769, 1024, 1500, 3000]
    found = [[t.targets.size for t in batch] for batch in batches([tile(n) for n in sizes], 4)]
    assert list(itertools.chain(*found)) == sizes
    assert found == [[1, 30, 32], [33, 64], [500], [760, 768], [769], [1024], [1500], [3000]]
    assert [together(4, n) for n in (32, 768, 1024, 1536, 3072, 10**6)] == [4, 4, 3, 2, 1, 1]


def test_buckets_hold_what_is_put_into_them_and_little_more() -> None:
    for n in range(1, 3000):
        assert n <= bucket(n) <= max(64, (1.5 if n < 700 else 1.2) * n)
    assert len({bucket(n) for n in range(1, 1025)}) == len(TARGET_BUCKETS) + 2


def test_padding_repeats_cells_and_tiles() -> None:
    values = np.random.default_rng(0).normal(280.0, 5.0, (40, WIDTH))
    batch = [tile(20), tile(32, first=300), tile(7, n_c=4, first=500)]
    points = gather(batch, values, 9)
    assert points.xt.shape == (4, 32, 2)
    assert points.xc.shape == (4, 9, 2)
    for i, t in enumerate([*batch, batch[-1]]):
        places = np.stack(np.divmod(t.targets, WIDTH), -1) - (0.5, 7.5)
        np.testing.assert_array_equal(points.xt[i, : len(places)], places)
        np.testing.assert_array_equal(points.xt[i, len(places) :], np.broadcast_to(places[-1], (32 - len(places), 2)))
        assert points.mask[i].sum() == t.context.size
        known = points.loc[i] + points.scale[i] * points.yc[i, points.mask[i], 0]
        np.testing.assert_allclose(known, values.ravel()[t.context], rtol=1e-6)


# --- cores ------------------------------------------------------------------------------------------------------------


def at_once(n: int = 4, device: str = "cpu") -> list[int]:
    """How many calls of :func:`on_cores` were running when each began."""
    lock, running = threading.Lock(), 0

    def call(_: int) -> int:
        nonlocal running
        with lock:
            running += 1
            seen = running
        time.sleep(0.05)
        with lock:
            running -= 1
        return seen

    return list(on_cores(call, range(n), device))


def test_all_cores_work_at_once_and_give_results_in_order() -> None:
    met = threading.Barrier(CPU_COUNT)

    def call(i: int) -> int:
        met.wait(timeout=30)
        return i

    assert list(on_cores(call, range(3 * CPU_COUNT), "cpu")) == list(range(3 * CPU_COUNT))
    assert max(at_once(4 * CPU_COUNT)) <= CPU_COUNT


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_dask_may_be_told_to_use_fewer(device: str) -> None:
    assert max(at_once(2 * CPU_COUNT)) == CPU_COUNT
    with dask.config.set(num_workers=1):
        assert at_once(4, device) == [1] * 4


def test_results_are_let_go() -> None:
    class Result:
        pass

    found: list[weakref.ref[Result]] = []
    results = on_cores(lambda _: Result(), range(50), "cpu")
    for _ in range(45):
        found.append(weakref.ref(next(results)))
    assert sum(reference() is not None for reference in found) <= 1


def test_a_device_is_given_one_batch_after_the_other_by_its_own_thread() -> None:
    threads = on_cores(lambda _: threading.current_thread(), range(9), "cuda")
    assert set(threads) == {threading.current_thread()}


def test_nothing_more_is_begun_after_an_error() -> None:
    begun = []

    def call(i: int) -> int:
        begun.append(i)
        time.sleep(0.002)
        if i == 2:
            raise MemoryError("no room")
        return i

    results = on_cores(call, range(5000), "cpu")
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(MemoryError, match="no room"):
        next(results)
    assert at_once(1) == [1]
    assert len(begun) < 2500


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_cores_of_its_own() -> None:
    assert at_once(1) == [1]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert len(pool.apply_async(at_once).get(timeout=60)) == 4


def test_a_dask_worker_keeps_to_its_own_threads() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert client.submit(at_once).result(timeout=60) == [1] * 4
