"""What holds for every raster: observations are kept, and chunks, batches, order, units and place change nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from geonp.fill import request
from geonp.fill.infill import infill
from geonp.inference import checkpoint, predictor
from geonp.raster.metadata import FillFlag

pytestmark = pytest.mark.usefixtures("float32")

few = settings(max_examples=12)
seeds = st.integers(0, 2**16)
sides = st.integers(1, 30)


def field(shape: tuple[int, int], seed: int) -> npt.NDArray[np.float64]:
    """Smooth waves with some noise, of mean 10 and spread 3 or so."""
    rng = np.random.default_rng(seed)
    y, x = np.indices(shape)
    waves = sum(np.cos(a * y + b * x + c) for a, b, c in rng.uniform(-0.7, 0.7, (4, 3)) * (1, 1, 9))
    return np.asarray(10 + 2 * waves + 0.3 * rng.standard_normal(shape))


def observed_cells(shape: tuple[int, int], seed: int, share: float = 0.6) -> npt.NDArray[np.bool_]:
    """Cells observed at random, at least four where there is room for them, with a hole in the middle."""
    rng = np.random.default_rng(seed + 1)
    mask = rng.random(shape) < share
    mask[shape[0] // 3 : shape[0] // 2, shape[1] // 4 : shape[1] // 2] = False
    mask.ravel()[rng.permutation(mask.size)[:4]] = True
    return mask


def raster(shape: tuple[int, int], seed: int, dtype: str = "f4", **options: Any) -> xr.DataArray:
    values = np.where(observed_cells(shape, seed, **options), field(shape, seed), np.nan)
    return xr.DataArray(values.astype(dtype), dims=("y", "x"), name="a")


def assert_same(one: xr.Dataset, other: xr.Dataset, tolerance: float = 1e-4) -> None:
    """Equal flags and observations; values and standard errors equal to `tolerance` of the standard error.

    The default is what float32 sums, taken in another order, leave of a value.
    """
    np.testing.assert_array_equal(one.a_fill_flag.values, other.a_fill_flag.values)
    error = one.a_standard_error.values.astype(np.float64)
    for name in ("a", "a_standard_error"):
        a, b = one[name].values.astype(np.float64), other[name].values.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        # float32 results are rounded to 6e-8 of their size
        allowed = np.where(error > 0, tolerance * error + 2e-7 * np.abs(a), 0.0)
        worst = np.max(np.abs(a - b) / np.where(error > 0, error, 1.0), initial=0.0, where=~np.isnan(a))
        assert (np.abs(a - b) <= allowed)[~np.isnan(a)].all(), f"{name} differs by {worst:.2g} standard errors"


# --- observations and flags -------------------------------------------------------------------------------------------


@few
@given(sides, sides, seeds, st.sampled_from(["f4", "f8"]), st.floats(0.02, 0.98))
def test_observed_cells_are_identical_and_missing_ones_filled_or_flagged(
    model: str, ny: int, nx: int, seed: int, dtype: str, share: float
) -> None:
    source = raster((ny, nx), seed, dtype, share=share)
    before = source.copy(deep=True)
    out = infill(source, model=model)
    xr.testing.assert_identical(source, before)
    observed = np.isfinite(source.values)
    value, error, flag = out.a.values, out.a_standard_error.values, out.a_fill_flag.values
    assert value.dtype == error.dtype == source.dtype
    assert value[observed].tobytes() == source.values[observed].tobytes()
    np.testing.assert_array_equal(flag == FillFlag.OBSERVED, observed)
    np.testing.assert_array_equal(error == 0, observed)
    enough = observed.sum() >= 4
    # up to 30 cells across, everything is in reach of a tile somewhere, but not of every tile
    filled = flag == FillFlag.FILLED
    assert filled.any() == (enough and not observed.all())
    if max(ny, nx) <= 16 and enough:
        np.testing.assert_array_equal(filled, ~observed)
    assert np.isfinite(value[filled]).all()
    assert (error[filled] > 0).all()
    rest = ~observed & ~filled
    assert (flag[rest] == FillFlag.BEYOND_LIMIT).all()
    assert np.isnan(value[rest]).all()
    assert np.isnan(error[rest]).all()


@few
@given(sides, sides, seeds, st.sampled_from(["i2", "u1", "i4"]), st.booleans())
def test_integers_keep_their_observations_and_nodata(
    model: str, ny: int, nx: int, seed: int, dtype: str, declared: bool
) -> None:
    observed = observed_cells((ny, nx), seed)
    values = np.where(observed, np.rint(field((ny, nx), seed)) + 30, 7).astype(dtype)
    values[observed & (values == 7)] = 8
    source = xr.DataArray(values, dims=("y", "x"), name="a", attrs={"_FillValue": 7} if declared else {})
    out = infill(source, model=model, **({} if declared else {"nodata": 7}))
    flag = out.a_fill_flag.values
    assert out.a.dtype == values.dtype
    np.testing.assert_array_equal(out.a.values[observed], values[observed])
    np.testing.assert_array_equal(flag == FillFlag.OBSERVED, observed)
    filled = flag == FillFlag.FILLED
    assert (out.a.values[filled] != 7).all()
    assert (out.a.values[~observed & ~filled] == 7).all()
    assert out.a_standard_error.dtype == (np.float64 if dtype == "i4" else np.float32)
    # rounded to the nearest integer, of what floats would give
    floats = infill(xr.DataArray(np.where(observed, values, np.nan), dims=("y", "x"), name="a"), model=model)
    off = np.abs(floats.a.values[filled] - out.a.values[filled])
    assert (off <= 0.5 + 1e-3).all() or 7 in np.rint(floats.a.values[filled])


# --- chunks, batches, order -------------------------------------------------------------------------------------------

lattices = st.lists(st.integers(1, 13), min_size=1, max_size=4)


@few
@given(
    lattices,
    lattices,
    seeds,
    st.sampled_from([1, 2, 5, 64]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 2.5, 40.0]),
)
def test_chunks_and_batches_change_nothing(
    model: str,
    y_chunks: list[int],
    x_chunks: list[int],
    seed: int,
    batch_size: int,
    transposed: bool,
    periodic: bool,
    max_distance: float | None,
) -> None:
    shape = (sum(y_chunks), sum(x_chunks))
    source = raster(shape, seed, share=0.3)
    if periodic:
        source = source.rename(y="lat", x="lon").assign_coords(lon=np.arange(shape[1]) * 360 / shape[1])
    y_dim, x_dim = source.dims
    whole = infill(source, model=model, max_distance=max_distance, batch_size=4)
    chunked = source.chunk({y_dim: tuple(y_chunks), x_dim: tuple(x_chunks)})
    if transposed:
        chunked = chunked.transpose()
    out = infill(chunked, model=model, max_distance=max_distance, batch_size=batch_size)
    for name in out.data_vars:
        assert out[name].dims == chunked.dims
        assert out[name].chunks == chunked.chunks
    assert_same(whole, out.compute().transpose(y_dim, x_dim))


def test_chunks_of_one_cell_and_of_any_shape_change_nothing(model: str) -> None:
    source = raster((9, 11), 3)
    whole = infill(source, model=model)
    for chunks in ({"y": 1, "x": 1}, {"y": 1, "x": 11}, {"y": 9, "x": 1}, {"y": (1, 7, 1), "x": (10, 1)}):
        assert_same(whole, infill(source.chunk(chunks), model=model).compute())


boxes = st.tuples(st.integers(0, 63), st.integers(0, 79), st.integers(1, 12), st.integers(1, 12))


@pytest.fixture(scope="module")
def wide(model: str, card_fields: dict[str, Any]) -> str:
    """A checkpoint whose windows reach farther than its squares of tiles: it has tiles around single gaps."""
    network, _ = checkpoint.load_model(model)
    file = Path(model).with_name("wide.safetensors")
    neighbourhood = {**card_fields["neighbourhood"], "halos_px": [8, 24], "merge": 2}
    checkpoint.save(network, file, **{**card_fields, "neighbourhood": neighbourhood})
    return str(file)


@settings(max_examples=10)
@given(st.lists(boxes, min_size=1, max_size=8), st.sampled_from([11, 16, 31, 64]), st.sampled_from([9, 16, 33, 80]))
def test_gaps_between_tiles_are_filled_the_same_however_they_are_chunked(
    wide: str, gaps: list[tuple[int, int, int, int]], height: int, width: int
) -> None:
    source = xr.DataArray(field((64, 80), len(gaps)).astype("f4"), dims=("y", "x"), name="a")
    for row, col, rows, cols in gaps:
        source[row : row + rows, col : col + cols] = np.nan
    whole = infill(source, model=wide, batch_size=4)
    assert_same(whole, infill(source.chunk(y=height, x=width), model=wide, batch_size=4).compute())


def coarse(*args: Any) -> Any:
    """:func:`geonp.inference.predictor.resolve` as on a GPU that works in bfloat16."""
    found, card = predictor.resolve(*args)
    return replace(found, precision="bf16"), card


def test_chunks_and_batches_change_little_in_bfloat16(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than bfloat16 itself does: its kernels for other shapes round otherwise."""
    source = raster((40, 33), seed=0)
    exact = infill(source, model=model)
    monkeypatch.setattr(request, "resolve", coarse)
    whole = infill(source, model=model, batch_size=16)
    with pytest.raises(AssertionError):
        assert_same(exact, whole)  # it is bfloat16 indeed
    for chunks, batch_size in (({"y": 7, "x": 33}, 1), ({"y": 16, "x": 8}, 4), ({"y": 40, "x": (3, 1, 29)}, 16)):
        assert_same(whole, infill(source.chunk(chunks), model=model, batch_size=batch_size).compute(), 0.15)


@few
@given(st.lists(st.integers(1, 3), max_size=2), seeds, st.booleans())
def test_other_dimensions_are_looped_over(model: str, sizes: list[int], seed: int, chunked: bool) -> None:
    slices = [raster((9, 10), seed + i) for i in range(int(np.prod(sizes)))]
    dims = ("time", "band")[: len(sizes)]
    values = np.stack([s.values for s in slices]).reshape(*sizes, 9, 10)
    stack = xr.DataArray(values, dims=(*dims, "y", "x"), name="a").transpose("x", ..., "y")
    if chunked:
        stack = stack.chunk(dict(zip(dims, (2, 1), strict=False)))
    out = infill(stack, model=model).compute().transpose(*dims, "y", "x")
    for index, source in zip(np.ndindex(*sizes), slices, strict=True):
        assert_same(infill(source, model=model), out.isel(dict(zip(dims, index, strict=True))))


@pytest.mark.parametrize("share", [0.1, 0.6, 0.9])
def test_bfloat16_agrees_to_a_hundredth_of_the_standard_error(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    source = raster((64, 64), 5, share=share)
    exact = infill(source, model="tnpkr-sa")
    monkeypatch.setattr(request, "resolve", coarse)
    rounded = infill(source, model="tnpkr-sa")
    for name in ("a", "a_standard_error"):
        off = ((rounded[name] - exact[name]) / exact.a_standard_error.where(exact.a_standard_error > 0)).values
        assert 0 < np.sqrt(np.nanmean(off**2)) < 0.01


# --- units and place --------------------------------------------------------------------------------------------------


@few
@given(seeds, st.sampled_from([1e-6, 1e-3, 1.0, 1e6]), st.floats(-1000, 1000), st.sampled_from([1, -1]))
def test_units_carry_over(model: str, seed: int, factor: float, shift: float, sign: int) -> None:
    source = raster((12, 13), seed, "f8")
    one, other = infill(source, model=model), infill((source + shift) * factor, model=model)
    np.testing.assert_array_equal(one.a_fill_flag, other.a_fill_flag)
    error = one.a_standard_error.values
    allowed = 1e-3 * error + 1e-12
    assert (np.abs(other.a.values / factor - shift - one.a.values) <= allowed).all()
    assert (np.abs(other.a_standard_error.values / factor - error) <= allowed).all()


@few
@given(seeds, st.sampled_from([-7.5, 0.0, 1e6]))
def test_a_constant_is_filled_with_itself(model: str, seed: int, constant: float) -> None:
    source = raster((12, 13), seed).astype("f8") * 0 + constant
    out = infill(source, model=model)
    np.testing.assert_allclose(out.a, constant, atol=1e-5 * max(abs(constant), 1))
    assert out.a_standard_error.max() < 1e-5 * max(abs(constant), 1)


@few
@given(seeds, st.integers(1, 7), st.lists(st.integers(1, 40), min_size=1, max_size=3), st.booleans())
def test_a_rolled_globe_gives_a_rolled_result(
    model: str, unmerged_model: str, seed: int, tiles: int, chunks: list[int], distance: bool
) -> None:
    """Rolled by whole tiles (squares of merged ones): all context is taken, as its thinning depends on the place."""
    shape = (8, 64)
    rng = np.random.default_rng(seed)
    values = np.full(shape, np.nan, np.float32)
    cells = rng.permutation(values.size)[:31]
    values.ravel()[cells] = field(shape, seed).ravel()[cells]
    globe = xr.DataArray(values, dims=("lat", "lon"), coords={"lon": np.arange(64) * 5.625}, name="a")
    rolled = globe.roll(lon=8 * tiles)
    options: dict[str, Any] = {
        "model": unmerged_model if tiles % 2 else model,
        "max_distance": 6.0 if distance else None,
    }
    edges = [*np.cumsum(chunks)[np.cumsum(chunks) < 64].tolist(), 64]
    one, other = infill(globe, **options), infill(rolled.chunk(lon=tuple(np.diff([0, *edges]))), **options)
    assert_same(one.roll(lon=8 * tiles), other.compute())
    # and the seam does matter
    flat = infill(globe.drop_vars("lon").rename(lat="y", lon="x"), **options)
    assert not np.array_equal(flat.a.values, one.a.values, equal_nan=True)


@few
@given(st.integers(1, 40), seeds)
def test_no_cell_is_seen_twice_around_a_narrow_globe(model: str, nx: int, seed: int) -> None:
    source = raster((9, nx), seed).rename(y="lat", x="lon").assign_coords(lon=np.arange(nx) * 360 / nx)
    seen = 0
    call = predictor.Predictor.__call__

    def spy(self: predictor.Predictor, points: predictor.Points) -> Any:
        nonlocal seen
        for xc, mask in zip(points.xc, points.mask, strict=True):
            cells = {(row, (col + 0.5) % nx) for row, col in xc[mask].tolist()}
            assert len(cells) == mask.sum()
            seen += 1
        return call(self, points)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor.Predictor, "__call__", spy)
        out = infill(source, model=model)
    assert seen > 0 or not np.isnan(source).any()
    assert np.isfinite(out.a).all() or np.isfinite(source).sum() < 4


# --- limits -----------------------------------------------------------------------------------------------------------


@few
@given(st.integers(2, 16), st.integers(2, 16), seeds, st.floats(0.5, 20), st.floats(0.02, 0.3), st.booleans())
def test_max_distance_against_brute_force(
    model: str, ny: int, nx: int, seed: int, limit: float, share: float, chunked: bool
) -> None:
    """On rasters so small that everything is in reach."""
    source = raster((ny, nx), seed, share=share)
    observed = np.isfinite(source.values)
    assume(observed.sum() >= 4)
    cells = np.argwhere(np.ones_like(observed))
    distance = np.sqrt(((cells[:, None] - np.argwhere(observed)[None]) ** 2).sum(-1)).min(1).reshape(ny, nx)
    out = infill(source.chunk(y=3, x=5) if chunked else source, model=model, max_distance=limit)
    expected = np.where(observed, FillFlag.OBSERVED, FillFlag.FILLED)
    expected[distance > limit] = FillFlag.BEYOND_LIMIT
    np.testing.assert_array_equal(out.a_fill_flag, expected)
    # the limit leaves out cells, and changes no other
    unlimited = infill(source, model=model)
    assert_same(unlimited.where(distance <= limit, drop=False), out.compute().where(distance <= limit, drop=False))


@few
@given(sides, sides, seeds, st.booleans())
def test_what_lies_outside_the_domain_is_untouched_and_unused(
    model: str, ny: int, nx: int, seed: int, chunked: bool
) -> None:
    source = raster((ny, nx), seed)
    domain = observed_cells((ny, nx), seed + 7, share=0.7)
    chunks = {"y": 8, "x": 7} if chunked else {"y": ny, "x": nx}
    out = infill(source.chunk(chunks), model=model, mask=domain).compute()
    outside = ~domain
    assert out.a.values[outside].tobytes() == source.values[outside].tobytes()
    observed = np.isfinite(source.values)
    np.testing.assert_array_equal(out.a_fill_flag.values == FillFlag.OUTSIDE_DOMAIN, outside & ~observed)
    np.testing.assert_array_equal(out.a_fill_flag.values == FillFlag.OBSERVED, observed)
    assume((observed & domain).any())
    garbage = source.where(domain, np.where(np.indices((ny, nx)).sum(0) % 2, 1e30, np.nan).astype("f4"))
    again = infill(garbage.chunk(chunks), model=model, mask=domain).compute()
    for name in out.data_vars:
        np.testing.assert_array_equal(again[name].values[domain], out[name].values[domain])
