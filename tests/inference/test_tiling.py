"""Every cell has one owner, and windows are put together from chunks exactly, whatever the shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from geonp.inference.context import Neighbourhood
from geonp.inference.tiling import TILING, between, groups, support
from geonp.raster.windows import CHUNKS, Piece, Window, chunk_side, indices, pieces, shown_once

offsets = st.integers(-40, 40)
windows = st.builds(
    lambda r, h, c, w: Window(r, r + h, c, c + w), offsets, st.integers(1, 40), offsets, st.integers(1, 40)
)


def tiles_with(cells: np.ndarray, tile_px: int) -> list[tuple[int, int]]:
    """Rows and columns of the tiles that hold a True."""
    found = groups(cells, ~cells, 0, Neighbourhood(tile_px=tile_px, merge=1))
    return [(int(i) // tile_px, int(j) // tile_px) for tiles in found for i, j in tiles]


chunkings = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@given(windows, st.integers(1, 17))
def test_aligned_is_the_smallest_union_of_tiles(window: Window, tile_px: int) -> None:
    out = window.aligned(tile_px)
    for start, stop, first, last in (
        (window.row, window.row_end, out.row, out.row_end),
        (window.col, window.col_end, out.col, out.col_end),
    ):
        assert first % tile_px == last % tile_px == 0
        assert first <= start < first + tile_px
        assert last - tile_px < stop <= last


@given(windows, st.integers(0, 30))
def test_grown_adds_a_frame(window: Window, px: int) -> None:
    out = window.grown(px)
    assert out.shape == (window.shape[0] + 2 * px, window.shape[1] + 2 * px)
    assert (out.row, out.col) == (window.row - px, window.col - px)


@given(
    hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=30)), chunkings, chunkings, st.integers(1, 11)
)
def test_every_gap_cell_has_one_owner_however_it_is_chunked(
    missing: np.ndarray, y_chunks: list[int], x_chunks: list[int], tile_px: int
) -> None:
    """Chunks fill the wanted cells of the tiles that they cut: together each missing cell exactly once."""
    missing = missing[: sum(y_chunks), : sum(x_chunks)]
    ny, nx = missing.shape
    filled = np.zeros((ny, nx), int)
    owners: dict[tuple[int, int], set[tuple[int, int]]] = {}
    y_edges, x_edges = np.cumsum([0, *y_chunks]).clip(max=ny), np.cumsum([0, *x_chunks]).clip(max=nx)
    for top, bottom in pairwise(y_edges):
        for left, right in pairwise(x_edges):
            if top == bottom or left == right:
                continue
            window = Window(int(top), int(bottom), int(left), int(right)).aligned(tile_px)
            wanted = np.zeros(window.shape, bool)
            core = np.s_[top - window.row : bottom - window.row, left - window.col : right - window.col]
            wanted[core] = missing[top:bottom, left:right]
            for i, j in tiles_with(wanted, tile_px):
                tile = np.zeros_like(wanted)
                tile[i * tile_px : (i + 1) * tile_px, j * tile_px : (j + 1) * tile_px] = True
                cells = np.argwhere(wanted & tile) + np.array([window.row, window.col])
                assert len(cells) > 0
                for y, x in cells:
                    filled[y, x] += 1
                    owners.setdefault((int(y), int(x)), set()).add(
                        (window.row // tile_px + i, window.col // tile_px + j)
                    )
    np.testing.assert_array_equal(filled, missing)
    assert owners == {(int(y), int(x)): {(int(y) // tile_px, int(x) // tile_px)} for y, x in np.argwhere(missing)}


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (3, 5), (16, 16), (17, 15)])
def test_tiles_of_any_shape(shape: tuple[int, int]) -> None:
    window = Window(0, shape[0], 0, shape[1]).aligned(16)
    wanted = np.zeros(window.shape, bool)
    wanted[: shape[0], : shape[1]] = True
    rows, columns = -(-shape[0] // 16), -(-shape[1] // 16)
    assert tiles_with(wanted, 16) == [(i, j) for i in range(rows) for j in range(columns)]
    assert tiles_with(~wanted & False, 16) == []


@given(
    st.integers(0, 999),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 300),
    st.sampled_from([0, 2, 6]),
)
def test_groups_hold_each_tile_once_and_are_as_few_and_as_even_as_their_context_allows(
    seed: int, gaps: float, share: float, merge: int, n_context: int, frame: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (32 + 2 * frame, 64 + 2 * frame)
    missing = rng.random(shape) < gaps**4
    observed = ~missing & (rng.random(shape) < share * np.linspace(0, 1, shape[1]) ** 2)
    near, lap = np.zeros(shape, bool), min(TILING.near_px, frame)
    for i, j in np.argwhere(missing):
        near[max(i - lap, 0) : i + lap + 1, max(j - lap, 0) : j + lap + 1] = True
    places = np.argwhere(observed)
    away = [min((np.abs(cell - places).max(1)), default=99) for cell in np.argwhere(missing)]
    deep = np.zeros(shape, bool)
    deep[missing] = np.array(away) > TILING.shallow_px

    def held(tiles: Iterable[tuple[int, int]], side: int = 8) -> tuple[int, bool]:
        seen, own = np.zeros(shape, bool), np.zeros(shape, bool)
        for row, col in tiles:
            seen[row + frame - lap : row + frame + side + lap, col + frame - lap : col + frame + side + lap] = True
            own[row + frame : row + frame + side, col + frame : col + frame + side] = True
        return int((near & observed & seen).sum()), bool((deep & own).any())

    def fits(tiles: Iterable[tuple[int, int]], side: int = 8) -> bool:
        count, far = held(tiles, side)
        return count <= n_context and not far

    neighbourhood = Neighbourhood(tile_px=8, merge=merge, n_context=n_context)
    found = [[tuple(tile) for tile in group.tolist()] for group in groups(missing, observed, frame, neighbourhood)]
    cells = missing[frame : frame + 32, frame : frame + 64]
    occupied = [(8 * i, 8 * j) for i, j in np.argwhere(cells.reshape(4, 8, 8, 8).any((1, 3)))]
    assert sorted(itertools.chain(*found)) == occupied
    if merge == 1:
        assert all(len(group) == 1 for group in found)
    whole = [(0, col) for col in (0, 32) if merge == 4 and fits([(0, col)], 32)]
    for corner in itertools.product(range(0, 32, 16), range(0, 64, 16)) if merge > 1 else ():
        inside = [tile for tile in occupied if (tile[0] // 16 * 16, tile[1] // 16 * 16) == corner]
        own = [group for group in found if set(group) & set(inside)]
        if (0, corner[1] // 32 * 32) in whole:
            assert len(own) <= 1
            continue
        assert all(set(group) <= set(inside) and (len(group) == 1 or fits(group)) for group in own)
        possible = (list(filter(fits_all(fits, n), assignments(inside, n))) for n in range(len(inside) + 1))
        fewest = next(filter(None, possible))
        assert len(own) == len(fewest[0])
        fullest = [max((held(group)[0] for group in way), default=0) for way in (own, *fewest)]
        assert fullest[0] == min(fullest)


def assignments(tiles: list[tuple[int, int]], n: int) -> Iterator[list[list[tuple[int, int]]]]:
    """All ways of sharing tiles out among `n` groups."""
    for labels in itertools.product(range(n), repeat=len(tiles)):
        yield [[t for t, label in zip(tiles, labels, strict=True) if label == k] for k in range(n)]


def fits_all(fits: Callable[[list[tuple[int, int]]], bool], n: int) -> Callable[[list[list[tuple[int, int]]]], bool]:
    """Whether `n` groups have each a single tile, or fit."""
    return lambda groups: len(groups) == n and all(len(group) == 1 or (group and fits(group)) for group in groups)


@pytest.mark.parametrize("merge", [0, 3, -2])
def test_tiles_merge_by_powers_of_two(merge: int) -> None:
    with pytest.raises(ValueError, match=f"power of two, got {merge}"):
        Neighbourhood(merge=merge)


@given(offsets, st.integers(1, 90), st.integers(1, 50))
def test_indices_inside_and_outside(start: int, length: int, size: int) -> None:
    got = indices(start, start + length, size)
    assert got.tolist() == [i if 0 <= i < size else -1 for i in range(start, start + length)]
    inside = got[got >= 0]
    assert np.unique(inside).size == inside.size


@given(offsets, st.integers(1, 200), st.integers(1, 50))
def test_periodic_indices_go_round(start: int, length: int, size: int) -> None:
    got = indices(start, start + length, size, periodic=True)
    assert got.tolist() == [i % size for i in range(start, start + length)]


@given(offsets, st.integers(1, 200), st.integers(1, 50))
def test_of_each_cell_the_nearest_image_is_kept(start: int, length: int, size: int) -> None:
    index = indices(start, start + length, size, periodic=True)
    kept = np.flatnonzero(shown_once(np.ones((2, length), bool), size)[1])
    assert kept.size == min(length, size)
    assert np.unique(index[kept]).size == kept.size
    off_centre = np.abs(np.arange(length) - (length - 1) / 2)
    for k in kept:
        assert off_centre[k] <= off_centre[index == index[k]].min() + 1


def test_a_mask_is_kept_where_nothing_repeats() -> None:
    mask = np.random.default_rng(0).random((3, 9)) < 0.5
    assert shown_once(mask, None) is mask
    assert shown_once(mask, 9) is mask
    np.testing.assert_array_equal(shown_once(mask, 5)[:, 2:7], mask[:, 2:7])
    assert not shown_once(mask, 5)[:, [0, 1, 7, 8]].any()


@given(chunkings, offsets, st.integers(1, 200), st.booleans())
@example([1], -3, 7, True)
def test_pieces_reassemble_any_window_from_any_chunks(
    chunks: list[int], start: int, length: int, periodic: bool
) -> None:
    size = sum(chunks)
    data = np.arange(100, 100 + size)
    index = indices(start, start + length, size, periodic=periodic)
    blocks = np.split(data, np.cumsum(chunks)[:-1])
    window = np.full(length, -1)
    writes = np.zeros(length, int)
    found = pieces(index, chunks)
    for piece in found:
        part = blocks[piece.chunk][piece.start : piece.stop]
        assert part.size == piece.stop - piece.start > 0
        window[piece.offset : piece.offset + part.size] = part
        writes[piece.offset : piece.offset + part.size] += 1
    np.testing.assert_array_equal(window, np.where(index >= 0, np.take(data, index), -1))
    np.testing.assert_array_equal(writes, index >= 0)
    assert [piece.offset for piece in found] == sorted(piece.offset for piece in found)


def test_pieces_are_as_few_as_the_chunks_and_turns_allow() -> None:
    assert pieces(indices(-2, 7, 6), (4, 2)) == [Piece(0, 0, 4, 2), Piece(1, 0, 2, 6)]
    assert pieces(indices(4, 8, 6, periodic=True), (6,)) == [Piece(0, 4, 6, 0), Piece(0, 0, 2, 2)]
    assert pieces(indices(7, 9, 6), (6,)) == []


def test_chunks_keep_the_cores_busy_within_bounds() -> None:
    sides = [chunk_side(n * n) for n in (1, 300, 2000, 4000, 100_000)]
    assert sides == sorted(sides)
    assert sides[0] == CHUNKS.smallest_px
    assert sides[-1] == CHUNKS.largest_px
    assert all(side % 128 == 0 for side in sides)


@given(st.integers(0, 2**32 - 1), st.integers(20, 60), st.integers(20, 60), st.integers(0, 9), st.floats(0.0, 0.01))
def test_what_lies_between_supported_cells_is_interpolated_from_within_the_margin(
    seed: int, ny: int, nx: int, start: int, share: float
) -> None:
    """A plane comes back exactly; no cell stays open; none is used that is farther off than the margin."""
    rng = np.random.default_rng(seed)
    fillable = rng.random((ny, nx)) >= share
    rows, cols = np.arange(start, start + ny), np.arange(1, nx + 1)
    supported = support(fillable, rows, cols)
    assert not (supported & ~fillable).any()
    plane = 3.0 * rows[:, None] - 2.0 * cols[None, :]
    values = np.where(supported, [plane, 2 * plane], np.nan)
    between(values, fillable, supported, rows, cols)
    np.testing.assert_allclose(values[:, fillable], np.array([plane, 2 * plane])[:, fillable])
    open_cells = np.argwhere(fillable & ~supported)
    if len(open_cells):
        row, col = open_cells[rng.integers(len(open_cells))]
        near = np.zeros_like(fillable)
        near[
            row - TILING.margin_px : row + TILING.margin_px + 1, col - TILING.margin_px : col + TILING.margin_px + 1
        ] = True
        alone = np.where(supported & near, [plane, plane], np.nan)
        between(alone, fillable, supported, rows, cols)
        assert np.isfinite(alone[:, row, col]).all()


def test_deep_cells_are_supported_on_a_lattice_fixed_to_the_raster() -> None:
    fillable = np.ones((80, 80), bool)
    one = support(fillable, np.arange(10, 90), np.arange(7, 87))
    other = support(fillable[:, 1:], np.arange(10, 90), np.arange(8, 87))
    np.testing.assert_array_equal(one[20:60, 25:60], other[20:60, 24:59])
    assert one[20:60, 25:60].mean() == pytest.approx(1 / 16, abs=0.02)
    assert one[:4].all()


def test_cells_beside_the_seam_of_a_periodic_raster_are_all_supported() -> None:
    cols = np.arange(60, 120) % 90
    seam = int(np.flatnonzero(cols == 0)[0])
    supported = support(np.ones((60, 60), bool), np.arange(60), cols)
    assert supported[:, seam - 4 : seam + 4].all()
    assert not supported.all()
