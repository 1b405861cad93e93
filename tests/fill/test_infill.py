"""infill() and plan(): what goes in, what comes out, what is refused, and that lazy is lazy."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import shapely
import torch
import xarray as xr
from pyproj import CRS
from xarray.backends import BackendArray
from xarray.core.indexing import LazilyIndexedArray
from xarray.indexes import RangeIndex

import geonp
from geonp.errors import CheckpointError, InputError, ModelError, PredictionError
from geonp.fill.infill import infill
from geonp.fill.outputs import filled_names, values_only
from geonp.fill.plan import FillPlan, plan
from geonp.inference import checkpoint, parallel, predictor, student
from geonp.inference.context import Neighbourhood
from geonp.inference.predictor import Points, Predictor
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import CHUNKS

pytestmark = pytest.mark.usefixtures("float32")

OUTPUTS = ["a", "a_standard_error", "a_fill_flag"]


def raster(shape: tuple[int, int] = (12, 20), dtype: str = "f4", name: str | None = "a") -> xr.DataArray:
    """A slope with a hole and a few single gaps; coordinates in metres, rows from north to south."""
    y, x = np.indices(shape)
    values = (y + 2.0 * x).astype(dtype)
    values[3:7, 4:9] = np.nan
    values[::5, ::6] = np.nan
    coords = {"y": 1000.0 - 10.0 * np.arange(shape[0]), "x": 500_000.0 + 10.0 * np.arange(shape[1])}
    return xr.DataArray(values, coords, ("y", "x"), name, {"units": "m", "long_name": "height"})


def with_crs(obj: Any, code: int) -> Any:
    return obj.assign_coords(spatial_ref=xr.Variable((), 0, {"crs_wkt": CRS.from_epsg(code).to_wkt()}))


@pytest.fixture
def unused_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where anything is sent to the model."""

    def called(*_: object) -> None:
        raise AssertionError("the model was called")

    monkeypatch.setattr(Predictor, "__call__", called)


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_a_very_smooth_field_is_filled_to_a_few_millionths() -> None:
    """As stream functions and pressures of models are; amplitudes of single points made errors 40 times as large."""
    y, x = np.mgrid[:48, :48]
    truth = np.sin(x / 9 + y / 23) * np.cos(y / 7) + 0.3 * np.sin(x / 15)
    gap_mask = np.random.default_rng(0).random(truth.shape) < 0.3
    out = infill(xr.DataArray(np.where(gap_mask, np.nan, truth), dims=("y", "x"), name="a"))
    error = (out.a.values - truth)[gap_mask] / truth.std()
    assert np.sqrt((error**2).mean()) < 3e-5
    assert np.median(out.a_standard_error.values[gap_mask]) / truth.std() < 2e-4


def test_the_result_describes_itself(model: str, card_fields: dict[str, Any]) -> None:
    source = with_crs(raster(), 32633)
    out = infill(source, model=model)
    assert list(out) == OUTPUTS
    assert out.a.attrs == {"units": "m", "long_name": "height", "ancillary_variables": "a_standard_error a_fill_flag"}
    assert out.a_standard_error.attrs["units"] == "m"
    assert out.a_fill_flag.attrs["flag_meanings"].split()[:2] == ["observed", "filled"]
    assert out.a_fill_flag.dtype == np.int8
    for name in OUTPUTS:
        xr.testing.assert_identical(out[name].coords.to_dataset(), source.coords.to_dataset())
    assert out.attrs["geonp_model"] == card_fields["name"]
    assert out.attrs["geonp_model_version"] == card_fields["version"]
    assert len(out.attrs["geonp_weights_sha256"]) == 64
    [line] = out.attrs["history"].splitlines()
    assert line.endswith("geonp infill: a filled by tiny 1")
    np.testing.assert_array_equal(out.a_fill_flag == FillFlag.FILLED, np.isnan(source))


@pytest.mark.parametrize("lazy", [False, True])
def test_quantiles_and_tails(model: str, lazy: bool) -> None:
    source = raster()
    options = {"model": model, "quantiles": [0.025, 0.5, 0.95], "tails": True}
    out = (source.chunk({"y": 5, "x": 20}) if lazy else source).geonp.infill(**options)
    assert list(out) == ["a", "a_standard_error", "a_quantile", "a_tail", "a_fill_flag"]
    assert all((array.chunks is not None) == lazy for array in out.values())
    out = out.compute()
    moments = [out[name].values.astype(float) for name in ("a", "a_standard_error", "a_tail")]
    quantile = out["a_quantile"]
    assert quantile.dims == ("quantile", "y", "x")
    assert quantile.dtype == source.dtype
    assert quantile.attrs == {"long_name": "height, quantile", "units": "m"}
    assert {"a_quantile", "a_tail"} < set(out["a"].attrs["ancillary_variables"].split())
    for level in options["quantiles"]:
        np.testing.assert_allclose(
            quantile.sel(quantile=level), student.quantile(level, *moments), rtol=1e-5, atol=1e-5
        )
    known = source.notnull()
    np.testing.assert_array_equal(quantile.values[:, known.values], [source.values[known.values]] * 3)
    gaps = ~known.values
    assert (np.diff(quantile.values, axis=0) > 0)[:, gaps].all()
    assert (out["a_tail"].values > 0)[gaps].all()


@pytest.mark.parametrize("wrong", [[0.0], [1.0], [5], ["a"], 0.5, "0.5"])
def test_wrong_quantiles_are_refused_by_name(wrong: Any) -> None:
    refused(raster(), "quantiles must be a sequence of numbers between 0 and 1", quantiles=wrong)


def test_a_variable_in_the_way_of_a_quantile_is_refused(model: str) -> None:
    ds = xr.Dataset({"a": raster(), "a_quantile": raster(name=None)})
    refused(ds, "a_quantile", quantiles=[0.05], model=model)


def test_filling_is_better_than_the_mean(model: str) -> None:
    """Random weights still krige: a slope is continued into its gaps."""
    source = raster()
    y, x = np.indices(source.shape)
    gaps = np.isnan(source.values)
    error = (infill(source, model=model).a.values - (y + 2 * x))[gaps]
    assert np.sqrt(np.mean(error**2)) < 0.5 * float(source.std())


def test_a_raster_without_a_name_is_called_value(model: str) -> None:
    out = infill(raster(name=None), model=model)
    assert list(out) == ["value", "value_standard_error", "value_fill_flag"]
    assert out.attrs["history"].endswith("geonp infill: value filled by tiny 1")


def test_indexes_of_every_kind_are_kept(model: str) -> None:
    """A MultiIndex as of ``stack``, an index that is no list of labels, and none."""
    places = pd.MultiIndex.from_product([[2020], [1, 2]], names=("year", "month"))
    stack = raster().expand_dims(time=2).assign_coords(xr.Coordinates.from_pandas_multiindex(places, "time"))
    columns = xr.Coordinates.from_xindex(RangeIndex.arange(0.0, 20.0, 1.0, dim="x"))
    source = stack.drop_vars("x").assign_coords(columns).drop_indexes("y")
    for lazy in (False, True):
        out = infill(source.chunk(x=7) if lazy else source, model=model, quantiles=[0.5])
        assert out.indexes["time"].equals(places)
        assert isinstance(out.xindexes["x"], RangeIndex)
        assert set(out.xindexes) == {*source.xindexes, "quantile"}
    assert len(out.geonp.plot().axes) > 2
    table = out.geonp.aggregate((12, 20), model=model, samples=30)
    assert table["time"].tolist() == places.tolist()
    assert "nearest" in source.geonp.evaluate(model=model, across="time", baselines=["nearest"]).scores


def test_a_name_that_is_no_string_becomes_one(model: str) -> None:
    out = infill(raster().rename(None).to_dataset(name=7), model=model)
    assert list(out) == ["7", "7_standard_error", "7_fill_flag"]


@pytest.mark.usefixtures("unused_model")
@pytest.mark.parametrize("lazy", [False, True])
def test_a_raster_without_gaps_comes_back(model: str, lazy: bool) -> None:
    source = raster().fillna(1.0)
    out = infill(source.chunk(x=7) if lazy else source, model=model).compute()
    np.testing.assert_array_equal(out.a, source)
    assert not out.a_standard_error.any()
    assert not out.a_fill_flag.any()


@pytest.mark.parametrize("lazy", [False, True])
def test_infinities_are_missing(model: str, lazy: bool) -> None:
    source = raster()
    holes = source.copy()
    holes[1, 1:4] = [np.inf, -np.inf, np.nan]
    expected = source.copy()
    expected[1, 1:4] = np.nan
    out = infill(holes.chunk(y=5) if lazy else holes, model=model).compute()
    same = infill(expected, model=model)
    assert (abs(out.a - same.a) <= 1e-5 * same.a_standard_error).all()
    assert (out.a_fill_flag[1, 1:4] == FillFlag.FILLED).all()


def test_float16_is_kept_and_predicted_in_float32(model: str) -> None:
    source = raster().astype("f2")
    out = infill(source, model=model)
    assert (out.a.dtype, out.a_standard_error.dtype) == (np.float16, np.float32)
    observed = np.isfinite(source.values)
    assert out.a.values[observed].tobytes() == source.values[observed].tobytes()


def test_seeds_thin_far_context_otherwise(model: str) -> None:
    source = raster((40, 40))
    one, same, other = (infill(source, model=model, seed=seed).a for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


# --- Dataset ----------------------------------------------------------------------------------------------------------


def dataset() -> xr.Dataset:
    """Two variables to fill among others that are not."""
    counts = np.where(np.isnan(raster().values), -1, 5 + np.arange(20)).astype("i2")
    return xr.Dataset(
        {
            "note": ("time", ["x", "y"]),
            "b": (("y", "x"), counts, {"_FillValue": np.int16(-1)}),
            "land": (("y", "x"), np.ones((12, 20), bool)),
            "a": raster().expand_dims(time=2).transpose("x", "time", "y"),
            "count": ("time", [1, 2]),
        },
        {**raster().coords, "time": [10, 20]},
        {"title": "test", "history": "made by hand"},
    )


def test_other_variables_pass_through_in_order(model: str) -> None:
    ds = dataset()
    out = infill(ds, model=model)
    assert list(out) == ["note", "b", "b_standard_error", "b_fill_flag", "land", *OUTPUTS, "count"]
    for name in ("note", "land", "count"):
        xr.testing.assert_identical(out[name], ds[name])
    assert out.a.dims == ds.a.dims
    for name in ("b", "a"):
        alone = infill(ds[name], model=model)
        for part in ("", "_standard_error", "_fill_flag"):
            np.testing.assert_array_equal(out[name + part], alone[name + part])
    assert out.attrs["title"] == "test"
    first, *lines = out.attrs["history"].splitlines()
    assert first == "made by hand"
    assert [line.split(" ", 1)[1] for line in lines] == [
        f"geonp infill: {name} filled by tiny 1" for name in ("b", "a")
    ]
    assert ds.attrs == dataset().attrs
    xr.testing.assert_identical(ds, dataset())


def test_a_lazy_variable_stays_lazy_beside_one_in_memory(model: str) -> None:
    ds = dataset()
    ds["a"] = ds.a.chunk(y=4)
    out = infill(ds, model=model)
    assert out.a.chunks == ds.a.chunks
    assert out.b.chunks is None
    np.testing.assert_allclose(out.a, infill(dataset(), model=model).a, rtol=1e-5)


def test_a_filled_dataset_can_be_filled_again(model: str) -> None:
    once = infill(dataset(), model=model)
    with pytest.warns(UserWarning, match="was filled by geonp before: its filled cells count as observed"):
        twice = infill(once, model=model)
    assert list(twice) == list(once)
    np.testing.assert_array_equal(twice.a, once.a)
    assert len(twice.attrs["history"].splitlines()) == 5


@pytest.mark.parametrize("obj", [raster(), dataset()], ids=["DataArray", "Dataset"])
def test_the_accessor_is_the_same(obj: xr.DataArray | xr.Dataset, model: str) -> None:
    options = {"model": model, "max_distance": 1.0, "seed": 3}
    one, other = obj.geonp.infill(**options), geonp.infill(obj, **options)
    xr.testing.assert_equal(one, other)
    assert obj.geonp.plan(**options) == plan(obj, **options)


# --- lazy -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unused_model")
def test_nothing_is_computed_before_it_is_asked_for(model: str, computes_nothing: Any) -> None:
    ds = dataset().chunk(time=1, y=(5, 1, 6), x=7)
    mask = xr.ones_like(raster(), bool).chunk(y=3)
    with computes_nothing():
        out = infill(ds, model=model, mask=mask, max_distance=3.0)
        plan(ds, model=model, mask=mask, max_distance=3.0)
        ds.geonp.infill(model=model)
        ds.b.geonp.infill(model=model)
        with pytest.raises(AssertionError, match="something was computed"):
            out.compute()
    for name in ("a", "b"):
        for part in ("", "_standard_error", "_fill_flag"):
            assert out[name + part].chunks == ds[name].chunks


def test_one_chunk_is_filled_from_its_neighbourhood_alone(model: str) -> None:
    """Far chunks are not even read."""
    source = raster((12, 200))
    whole = infill(source, model=model)
    read: set[int] = set()

    def spy(block: npt.NDArray[Any], block_info: Any) -> npt.NDArray[Any]:
        read.add(block_info[0]["array-location"][1][0])
        return block

    lazy = source.chunk(x=8)
    lazy = lazy.copy(data=lazy.data.map_blocks(spy, meta=np.empty((0, 0), "f4")))
    part = infill(lazy, model=model).isel(x=slice(96, 104)).compute()
    np.testing.assert_allclose(part.a, whole.a[:, 96:104], rtol=1e-5)
    # the squares of tiles whose predictions may reach into it, and 16 cells around these
    assert read == set(range(80 - 16, 128 + 16, 8))


def test_the_same_job_has_the_same_graph(model: str) -> None:
    lazy = raster().chunk(x=8)
    first, again, other = (infill(lazy, model=model, seed=seed) for seed in (0, 0, 1))
    assert first.a_fill_flag.data.name == again.a_fill_flag.data.name
    assert first.a_fill_flag.data.name != other.a_fill_flag.data.name


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_a_chunk_costs_one_task_and_one_for_each_result(model: str, dtype: str) -> None:
    lazy = raster().fillna(0).astype(dtype).chunk(x=8)
    lazy.attrs["_FillValue"] = 0
    n_chunks, source = len(lazy.chunks[1]), len(lazy.__dask_graph__())
    assert len(infill(lazy, model=model).__dask_graph__()) - source <= (1 + 3 + 1) * n_chunks
    (found,) = dask.optimize(infill(lazy, model=model))
    assert len(dict(found.__dask_graph__())) - source <= (1 + 3) * n_chunks


def test_the_graph_can_be_pickled_and_holds_no_weights(model: str) -> None:
    lazy = infill(raster().chunk(x=8), model=model, mask=np.ones((12, 20), bool))
    data = pickle.dumps(lazy)
    assert len(data) < 30_000
    xr.testing.assert_identical(pickle.loads(data).compute(), lazy.compute())


# --- reach and limits -------------------------------------------------------------------------------------------------


def test_cells_without_context_in_reach_stay_empty_and_unseen(
    model: str, card_fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of 8 cells see 16 cells around them, and reach 4 into their neighbours: 6 columns fill 28."""
    neighbourhood = Neighbourhood(**card_fields["neighbourhood"])
    assert (neighbourhood.tile_px, neighbourhood.reach_px, neighbourhood.overlap_px) == (8, 16, 4)
    source = raster((8, 64))
    source[:, 6:] = np.nan
    smallest = 99
    call = Predictor.__call__

    def spy(self: Predictor, points: Points) -> Any:
        nonlocal smallest
        smallest = min(smallest, points.mask.sum(1).min())
        return call(self, points)

    monkeypatch.setattr(Predictor, "__call__", spy)
    out = infill(source, model=model)
    assert smallest >= neighbourhood.min_context
    flag = out.a_fill_flag.values
    np.testing.assert_array_equal(flag[:, :6][np.isfinite(source.values[:, :6])], FillFlag.OBSERVED)
    np.testing.assert_array_equal(flag[:, 6:28], FillFlag.FILLED)
    np.testing.assert_array_equal(flag[:, 28:], FillFlag.BEYOND_LIMIT)
    assert np.isnan(out.a[:, 28:]).all()
    assert np.isnan(out.a_standard_error[:, 28:]).all()


@pytest.mark.usefixtures("unused_model")
@pytest.mark.parametrize("lazy", [False, True])
def test_too_little_context_is_never_sent_to_the_model(model: str, lazy: bool) -> None:
    source = xr.full_like(raster(), np.nan)
    source[0, :3] = 1.0
    out = infill(source.chunk(x=9) if lazy else source, model=model).compute()
    np.testing.assert_array_equal(out.a_fill_flag, np.where(np.isfinite(source), 0, FillFlag.BEYOND_LIMIT))
    np.testing.assert_array_equal(out.a, source)


@pytest.mark.usefixtures("unused_model")
def test_a_lazy_raster_without_observations_stays_empty(model: str) -> None:
    out = infill(xr.full_like(raster(), np.nan).chunk(x=9), model=model)
    with pytest.warns(UserWarning, match="a has no value anywhere"):
        out = out.compute()
    assert (out.a_fill_flag == FillFlag.BEYOND_LIMIT).all()


@pytest.mark.parametrize("far", [1e6, float("inf")])
def test_a_limit_beyond_the_raster_is_none(model: str, far: float) -> None:
    source = raster()
    out, expected = infill(source, model=model, max_distance=far), infill(source, model=model)
    np.testing.assert_allclose(out.a, expected.a, rtol=1e-5)
    np.testing.assert_array_equal(out.a_fill_flag, expected.a_fill_flag)
    assert plan(source, model=model, max_distance=far).halo_px == 20


@pytest.mark.parametrize("chunks", [{"y": 24, "x": 24}, {"y": 8, "x": 8}, {"y": 5, "x": 24}])
def test_only_tiles_with_gaps_are_computed_and_only_once(
    model: str, chunks: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = raster((24, 24)).fillna(0.0)
    source[2, 2], source[11, 20] = np.nan, np.nan
    tiles = []
    call = Predictor.__call__

    def spy(self: Predictor, points: Points) -> Any:
        tiles.append(len(points.xc))
        return call(self, points)

    monkeypatch.setattr(Predictor, "__call__", spy)
    infill(source.chunk(chunks), model=model, batch_size=1).compute()
    assert tiles == [1, 1]


def test_sparse_data_are_filled_by_fewer_tiles_whatever_the_chunks(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random((48, 80)) < 0.04, rng.standard_normal((48, 80)), np.nan)
    source = xr.DataArray(values.astype("f4"), dims=("y", "x"), name="a")
    tiles = 0
    call = Predictor.__call__

    def spy(self: Predictor, points: Points) -> Any:
        nonlocal tiles
        tiles += len(points.xc)
        return call(self, points)

    monkeypatch.setattr(Predictor, "__call__", spy)
    whole = infill(source, model=model, batch_size=1)
    assert 15 <= tiles < 60
    monkeypatch.undo()
    for chunks in ({"y": 16, "x": 16}, {"y": 7, "x": 80}):
        part = infill(source.chunk(chunks), model=model).compute()
        for name in whole:
            np.testing.assert_allclose(part[name], whole[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("merge", [1, 2])
def test_a_gap_between_tiles_is_filled_by_one_around_it_whatever_the_chunks(
    merge: int, model: str, card_fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _ = checkpoint.load_model(model)
    wide = {**card_fields["neighbourhood"], "halos_px": [8, 24], "merge": merge}
    checkpoint.save(network, tmp_path / "wide.safetensors", **{**card_fields, "neighbourhood": wide})
    model = str(tmp_path / "wide.safetensors")
    source = raster((64, 80)).fillna(0.0)
    source[13:19, 30:35] = np.nan  # across four squares
    source[31:33, 60] = np.nan  # across two, one of which has another
    source[38, 62] = np.nan
    source[45:50, 15:24] = np.nan  # larger than a tile
    tiles: list[int] = []
    call = Predictor.__call__

    def spy(self: Predictor, points: Points) -> Any:
        tiles.append(len(points.xc))
        return call(self, points)

    monkeypatch.setattr(Predictor, "__call__", spy)
    whole = infill(source, model=model, batch_size=1)
    assert sum(tiles) == plan(source, model=model, batch_size=1).batches == 1 + 2 + 4
    monkeypatch.undo()
    assert not whole.a.isnull().any()
    for chunks in ({"y": 16, "x": 16}, {"y": 15, "x": 31}, {"y": 64, "x": 4}, {"y": 5, "x": 80}):
        part = infill(source.chunk(chunks), model=model).compute()
        for name in whole:
            np.testing.assert_allclose(part[name], whole[name], rtol=1e-4, atol=1e-5)


# --- mask -------------------------------------------------------------------------------------------------------------

DOMAIN = (np.indices((12, 20)).sum(0) % 7) != 0


@pytest.mark.parametrize(
    "mask",
    [
        DOMAIN.astype("i1"),
        np.where(DOMAIN, 2.5, np.nan),
        xr.DataArray(DOMAIN, dims=("y", "x")),
        xr.DataArray(DOMAIN.T, dims=("x", "y")),
        xr.DataArray(DOMAIN[None], dims=("band", "y", "x")),
        xr.DataArray(DOMAIN, dims=("lat", "lon")).chunk(lat=5),
        xr.DataArray(DOMAIN, raster().coords, ("y", "x")),
    ],
    ids=["integers", "floats", "DataArray", "transposed", "one band", "other names, lazy", "coordinates"],
)
def test_masks_of_all_kinds(model: str, mask: Any) -> None:
    source = raster()
    expected = infill(source, model=model, mask=DOMAIN)
    assert (expected.a_fill_flag == FillFlag.OUTSIDE_DOMAIN).any()
    for obj in (source, source.chunk(y=5, x=(1, 19))):
        xr.testing.assert_allclose(infill(obj, model=model, mask=mask).compute(), expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 20), (20, 1), (1, 1)])
def test_masks_of_a_single_line(model: str, shape: tuple[int, int]) -> None:
    source = xr.DataArray(np.arange(20.0)[: np.prod(shape)].reshape(shape), dims=("y", "x"), name="a")
    source[-1, -1] = np.nan if source.size > 1 else 0.0
    out = infill(source, model=model, mask=xr.ones_like(source, bool))
    np.testing.assert_array_equal(out.a_fill_flag == FillFlag.FILLED, np.isnan(source))


# --- what a model must not do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("part", ["mean", "standard deviation"])
def test_a_prediction_that_is_not_finite_is_an_error(
    model: str, bad: float, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = raster().fillna(0.0)
    source[9, 17] = np.nan
    call = Predictor.__call__

    def broken(self: Predictor, points: Points) -> Any:
        found = call(self, points)
        found[0 if part == "mean" else 1, :, 0] = bad
        return found

    monkeypatch.setattr(Predictor, "__call__", broken)
    with pytest.raises(
        PredictionError, match=r"not finite for the tile around row 9, column 17: correct cov.*please report it"
    ):
        infill(source, model=model)


def test_what_a_model_says_of_padding_does_not_matter(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = raster().fillna(0.0)
    source[9, 17] = np.nan
    expected = infill(source, model=model)
    call = Predictor.__call__

    def broken(self: Predictor, points: Points) -> Any:
        found = call(self, points)
        found[0, :, 1:], found[1, :, 1:] = np.nan, np.inf
        return found

    monkeypatch.setattr(Predictor, "__call__", broken)
    xr.testing.assert_equal(infill(source, model=model), expected)


def test_weights_that_differ_on_a_worker_are_refused(model: str) -> None:
    found, _ = predictor.resolve(model, "cpu", 1)
    with pytest.raises(
        CheckpointError, match=r"has other weights here than where the job was created: sha256 .*expected 0"
    ):
        predictor.network_of(found.model, "0" * 64, "cpu")


# --- bad input --------------------------------------------------------------------------------------------------------


def refused(obj: Any, message: str, error: type[Exception] = InputError, **options: Any) -> None:
    """Both infill and plan refuse, the latter where it needs no data to know."""
    with pytest.raises(error, match=message):
        infill(obj, **options)
    with pytest.raises(error, match=message):
        plan(obj, **options)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (
            raster().rename(y="first", x="second").drop_vars(["first", "second"]),
            r"got dimensions \('first', 'second'\), expected a pair",
        ),
        (raster()[:0], r"no cells: got shape \(0, 20\)"),
        (raster().expand_dims("time")[:0], r"Variable 'a' has no cells: got sizes \{'time': 0, 'y': 12, 'x': 20\}"),
        (raster().astype("c8"), r"'a' cannot be filled: got dtype complex64, expected integers or floats"),
        (raster().astype("U"), r"'a' cannot be filled: got dtype <U32, expected integers or floats"),
        (raster() > 3, r"'a' cannot be filled: got dtype bool"),
        (raster().astype("m8[s]"), r"for example da / np.timedelta64\(1, 'D'\), or leave"),
        (raster().astype("M8[s]").to_dataset(), r"\(ds\['a'\] - ds\['a'\].min\(\)\) / np.timedelta64\(1, 'D'\)"),
        (raster().fillna(0).astype("i2"), r"'a' holds integers \(int16\) without a declared nodata value.*--nodata"),
        (raster(name="x"), r"has the name of one of its coordinates: got 'x', expected another name.*drop_vars\('x'\)"),
        (xr.Dataset({1: raster(), "1": raster()}), r"variables 1 and '1', but names of results are texts: rename one"),
        (xr.Dataset({"s": (("y", "x"), [["a"]])}), r"No variable can be filled: got 's' \('y', 'x'\) <U1"),
        (xr.Dataset(coords=raster().coords), "no variables; expected .* none beside covariates, errors and"),
        (
            xr.Dataset({"v": ("land", [1.0])}, {"land": ("land", [7], {"compress": "y x"}), **raster().coords}),
            r"'v' \('land',\) float64; expected .* by gathering: unpack 'land' with cf_xarray.decode_compress_to_multi",
        ),
        (
            xr.Dataset({"v": ("cell", [1.0])}, raster().coords),
            r"expected integers or floats on the dimensions \('y', 'x'\). Choose other dimensions with y_dim and x_dim",
        ),
    ],
)
@pytest.mark.usefixtures("unused_model")
def test_rasters_that_cannot_be_filled(obj: Any, message: str, lazy: bool, model: str, computes_nothing: Any) -> None:
    with computes_nothing():
        refused(obj.chunk() if lazy else obj, message, model=model)


def test_a_mask_without_observed_cells_is_doubted(model: str) -> None:
    with pytest.warns(
        UserWarning, match=r"no observed cell lies within the mask \(--mask\), so that its missing cells"
    ):
        filled = infill(raster(), model=model, mask=raster().isnull())
    assert not (filled[f"{raster().name}_fill_flag"] == FillFlag.FILLED).any()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((20, 12), bool), r"the mask has shape \(20, 12\), expected \(12, 20\) \(rows, columns\)"),
        (np.ones((2, 12, 20), bool), r"the mask has shape \(2, 12, 20\), expected \(12, 20\)"),
        (np.array(True), r"the mask has shape \(\), expected \(12, 20\)"),
        (shapely.box(0, 0, 9, 9), r"the mask is a Polygon without a CRS, expected polygons with one: geopandas"),
        (np.full((12, 20), "yes"), r"the mask has dtype <U3, expected booleans \(True = valid\)"),
        (
            xr.DataArray(np.ones((2, 12, 20)), dims=("t", "y", "x")),
            r"select a slice of it.*, fill raster.where\(mask\)",
        ),
        (
            xr.DataArray(np.ones((12, 21)), dims=("y", "x")),
            r"mask and the raster differ in shape: got \(12, 21\), expected \(12, 20\)",
        ),
        (with_crs(raster() > 0, 32634), r"mask and the raster differ in CRS.*zone 34N.*, expected .*zone 33N"),
        ((raster() > 0).assign_coords(x=raster().x + 10), r"mask and the raster differ in the centre"),
        ((raster() > 0).rename(y="a", x="b"), "No spatial dimensions found"),
    ],
)
def test_masks_that_do_not_fit(mask: Any, message: str, model: str) -> None:
    refused(with_crs(raster(), 32633), message, model=model, mask=mask)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_distance": 0}, InputError, "max_distance must be a positive number, got 0"),
        ({"max_distance": -1.5}, InputError, r"max_distance must be a positive number, got -1\.5"),
        ({"max_distance": float("nan")}, InputError, "max_distance must be a positive number, got nan"),
        ({"batch_size": 0}, InputError, "batch_size must be at least 1 tile, got 0"),
        ({"device": "abacus"}, InputError, r"device 'abacus' cannot be used here \(.*\): expected cpu, or cuda on"),
        ({"model": "tnpkr-xl"}, ModelError, "unknown model 'tnpkr-xl': expected one of"),
        ({"model": "no.safetensors"}, ModelError, r"no checkpoint at 'no\.safetensors'"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_options_that_make_no_sense(
    options: dict[str, Any], error: type[Exception], message: str, lazy: bool, model: str, computes_nothing: Any
) -> None:
    with computes_nothing():
        refused(raster().chunk() if lazy else raster(), message, error, **{"model": model, **options})


def test_a_damaged_checkpoint_is_refused_before_any_work(checkpoint_copy: Path, computes_nothing: Any) -> None:
    checkpoint_copy.write_bytes(checkpoint_copy.read_bytes()[:-4])
    with computes_nothing():
        refused(raster().chunk(), "weights are damaged or altered", CheckpointError, model=str(checkpoint_copy))


@pytest.mark.parametrize("values", [np.nan, np.inf])
def test_a_raster_without_any_observation_is_refused(values: float, model: str) -> None:
    with pytest.raises(InputError, match=r"variable 'a' has no observed cell, .* check the nodata value"):
        infill(xr.full_like(raster(), values), model=model)
    nodata = xr.full_like(raster(), -9999.0)
    with pytest.raises(InputError, match="variable 'a' has no observed cell"):
        infill(nodata, model=model, nodata=-9999)


def test_masks_of_other_cells_and_with_nodata(model: str) -> None:
    source = raster()
    coarse = xr.ones_like(source, bool).assign_coords(
        y=1000.0 - 20.0 * np.arange(12), x=500_000.0 + 20.0 * np.arange(20)
    )
    with pytest.raises(
        InputError, match=r"the centre \(y, x\) of the last cell: got \(780.0, 500380.0\), expected \(890"
    ):
        infill(source, model=model, mask=coarse)
    numbers = xr.where(xr.DataArray(DOMAIN, dims=("y", "x")), 1, 255).astype("uint8").assign_attrs(_FillValue=255)
    expected = infill(source, model=model, mask=DOMAIN)
    filled = infill(source, model=model, mask=numbers)
    # the history has the time
    xr.testing.assert_identical(filled.assign_attrs(history=expected.attrs["history"]), expected)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda a: a, {"mask": xr.Dataset({"m": raster()})}, r"the mask is a Dataset of 'm', expected an array"),
        (lambda a: a, {"nodata": "x"}, r"nodata must be a number, got 'x'"),
        (
            lambda a: a.expand_dims(quantile=2),
            {"quantiles": [0.5]},
            r"coordinate or dimension 'quantile' already, which the result needs for 'a': rename it",
        ),
        (
            lambda a: xr.Dataset({"a": a, "sample": a.fillna(0)}),
            {"samples": 2},
            r"a variable, coordinate or dimension 'sample' already, which the result needs for 'a': rename it",
        ),
        (lambda a: a.assign_coords(a_fill_flag=1), {}, r"coordinate or dimension 'a_fill_flag' already"),
        (lambda a: a.assign_coords(a_fill_flag=1).to_dataset(), {}, r"coordinate or dimension 'a_fill_flag'"),
    ],
)
def test_errors_are_raised_before_work_starts(model: str, change: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        infill(change(raster()), model=model, **options)


def test_results_of_numbers_as_stored_have_their_packing(model: str, tmp_path: Path) -> None:
    """As rioxarray opens rasters: integers, with scale and offset in attrs."""
    truth = raster() / 10 + 270
    stored = ((truth - 280) / 0.01).round().fillna(-9999).astype("int16")
    stored.attrs = {"scale_factor": 0.01, "add_offset": 280.0, "_FillValue": np.int16(-9999), "units": "K"}
    out = infill(stored.rename("a"), model=model, quantiles=[0.5])
    out.to_netcdf(tmp_path / "x.nc")
    expected = infill(truth.rename("a"), model=model, quantiles=[0.5])
    with xr.open_dataset(tmp_path / "x.nc") as found:
        for name in ("a", "a_standard_error", "a_quantile"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=0.01)
    with pytest.raises(InputError, match=r"'a' is stored with a negative scale_factor, which reverses"):
        infill(stored.assign_attrs(scale_factor=-0.01).rename("a"), model=model, quantiles=[0.5])


def test_nodata_in_the_units_of_packed_values_is_packed(model: str, tmp_path: Path) -> None:
    packed = (raster() * 10).fillna(-500).round().astype("int16")
    packed.attrs = {"units": "K", "scale_factor": 0.01, "add_offset": 270.0}
    packed.to_netcdf(tmp_path / "in.nc")
    with xr.open_dataset(tmp_path / "in.nc") as ds:
        nodata = float(ds["a"].min())
        out = infill(ds["a"].load(), model=model, nodata=nodata, max_distance=1.0)
        empty = out["a"].isnull().values
        assert 0 < empty.sum() < empty.size
        out.to_netcdf(tmp_path / "out.nc")
    with xr.open_dataset(tmp_path / "out.nc") as found:
        np.testing.assert_array_equal(found["a"].isnull(), empty)
        np.testing.assert_allclose(found["a"], out["a"], atol=0.006)


# --- plan -------------------------------------------------------------------------------------------------------------


def test_a_plan_is_made_without_reading(model: str) -> None:
    class Unreadable(BackendArray):
        shape, dtype = (3, 100, 2000), np.dtype("f4")

        def __getitem__(self, key: object) -> None:
            raise AssertionError("data was read")

    obj = xr.DataArray(LazilyIndexedArray(Unreadable()), dims=("time", "y", "x"), name="a")
    got = plan(obj, model=model, batch_size=8)
    assert isinstance(got, FillPlan)
    assert (got.variables, got.shape, got.slices) == (("a",), (100, 2000), 3)
    assert got.chunk_px[0] == 100
    assert CHUNKS.smallest_px <= got.chunk_px[1] <= CHUNKS.largest_px
    assert (got.tile_px, got.halo_px, got.n_context, got.batch_size) == (8, 16, 32, 8)
    assert got.tiles == 3 * 13 * 250
    assert got.result_bytes == 3 * 100 * 2000 * (4 + 4 + 1)
    assert (got.model, got.device) == (model, "cuda" if got.device != "cpu" else "cpu")
    assert json.loads(json.dumps(got.summary()))["tiles"] == got.tiles


def test_a_plan_counts_all_variables_and_chunks(model: str) -> None:
    got = plan(dataset().chunk(y=(5, 7), x=6), model=model)
    assert got.variables == ("b", "a")
    assert got.slices == 3
    assert got.chunk_px == (7, 6)
    small, large = (
        plan(xr.DataArray(dask.array.zeros((n, n), chunks=n), dims=("y", "x")), model=model) for n in (64, 4096)
    )
    assert large.peak_bytes - small.peak_bytes > 4096**2 * 20
    assert plan(raster(), model=model, max_distance=19.5).halo_px == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "model must be a name or the path"),
        ({"max_distance": "3"}, "max_distance must be a positive number, got '3'"),
        ({"seed": 1.5}, r"seed must be an integer, got 1\.5"),
        ({"across": {"time"}}, r"across must be the name of a dimension or a list of names, got \{'time'\}"),
        ({"across": np.array(["time"])}, "across must be a dimension other than rows and columns: got 'time'"),
        ({"device": "meta"}, "device 'meta' cannot be used here: expected cpu"),
        ({"device": "nonsense"}, r"device 'nonsense' cannot be used here \("),
    ],
)
def test_options_of_the_wrong_kind(model: str, options: dict[str, Any], message: str) -> None:
    raster = xr.DataArray(np.eye(9, dtype=np.float32), dims=("y", "x"))
    for function in (infill, plan):
        with pytest.raises(InputError, match=message):
            function(raster, **{"model": model, **options})


def test_bare_arrays_are_refused_with_the_remedy(model: str) -> None:
    with pytest.raises(InputError, match=r"got ndarray; wrap an array: xr\.DataArray"):
        infill(np.eye(9), model=model)


def test_paths_are_models_too(model: str) -> None:
    raster = xr.DataArray(np.eye(9, dtype=np.float32), dims=("y", "x"), name="z")
    assert infill(raster, model=Path(model)).z.shape == (9, 9)


def test_outputs_do_not_collide_with_variables_of_the_user(model: str) -> None:
    z = xr.DataArray(np.full((9, 9), np.nan, np.float32), dims=("y", "x"))
    z[::2] = 1.0
    ds = xr.Dataset({"z": z, "z_fill_flag": z * 0 + 7})
    with pytest.raises(InputError, match="has a variable 'z_fill_flag' already"):
        infill(ds, model=model)
    ds["z"].attrs["ancillary_variables"] = "z_fill_flag"
    assert set(np.unique(infill(ds, model=model)["z_fill_flag"])) <= {0, 1}


def test_names_with_blanks_are_found_among_ancillary_variables(model: str) -> None:
    """The attribute lists names between blanks: results of "air temp" were none of it, and filled, or in the way."""
    z = xr.DataArray(np.full((9, 9), np.nan, np.float32), dims=("y", "x"), name="air temp")
    z[::2] = 1.0
    once = infill(z, model=model)
    assert once["air temp"].attrs["ancillary_variables"] == "air temp_standard_error air temp_fill_flag"
    assert values_only(once)["air temp"].attrs == {}
    with pytest.warns(UserWarning, match="air temp was filled by geonp before"):
        assert list(infill(once, model=model)) == list(once)
    linked = z.to_dataset().assign({"air error": z, "air": z, "error": z})
    linked["air temp"].attrs["ancillary_variables"] = "air error"
    assert filled_names(infill(linked, model=model)) == ["air temp", "air", "error"]


def test_a_plan_is_printed_in_lines(model: str) -> None:
    high = raster().values > raster().median().item()
    flagged = plan(raster().to_dataset(), model=model, device="cpu", missing=high)
    lines = repr(flagged).splitlines()
    assert (lines[0], len(lines)) == ("<geonp.FillPlan>", 17)
    said = dict(line.split(maxsplit=1) for line in lines[1:])
    name = flagged.variables[0]
    assert (said["variables"], said["shape"], said["slices"]) == (name, "12 x 20", "1")
    assert said["missing"] == f"{flagged.missing[name]} cells of {name}, {flagged.flagged[name]} by flags"
    assert said["peak_bytes"] == f"{flagged.peak_bytes} ({flagged.peak_bytes / 2**20:,.1f} MiB)"
    assert "not counted" in repr(plan(raster().chunk(), model=model))


@pytest.mark.parametrize("labels", [[1, 5], ["0001", "0005"], None])
def test_final_and_preliminary_data_of_era5_are_to_be_merged(model: str, labels: list[Any] | None) -> None:
    """Files of 2023 and earlier have both along a dimension: each time was filled where only the other one has it."""
    one = raster().rename(None)
    ds = xr.concat([one, one * np.nan], "expver", join="exact").to_dataset(name="t2m")
    ds = ds if labels is None else ds.assign_coords(expver=labels)
    first, second = (
        ("ds.isel(expver=0)", "ds.isel(expver=1)")
        if labels is None
        else (f"ds.sel(expver={labels[0]!r})", f"ds.sel(expver={labels[1]!r})")
    )
    with pytest.warns(UserWarning, match=re.escape(f"Merge them before: {first}.combine_first({second}).")):
        plan(ds, model=model)
    merged = eval(f"{first}.combine_first({second})", {"ds": ds})
    assert plan(merged.drop_vars("expver", errors="ignore"), model=model).slices == 1


def test_the_predicted_peak_counts_the_slices_of_a_chunk(model: str) -> None:
    def peak(steps: int) -> int:
        array = xr.DataArray(da.zeros((steps, 512, 512), chunks=(steps, 256, 256)), dims=("time", "y", "x"), name="z")
        return plan(array, model=model).peak_bytes

    least = 99 * 256 * 256 * 8 * 3  # values and standard errors out, values in
    assert peak(100) - peak(1) > least


def test_the_predicted_peak_counts_the_processes_of_large_fills(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(side: int, **options: Any) -> int:
        array = xr.DataArray(da.zeros((side, side), chunks=(64, 64)), dims=("y", "x"), name="z")
        return plan(array, model=model, device="cpu", **options).peak_bytes

    with dask.config.set(num_workers=3):
        alone = [peak(64), peak(640)]
        monkeypatch.setattr(parallel, "PROCESSES", parallel.ProcessSettings(start_after=65))  # 64 tiles, and 6,400
        assert [peak(64), peak(640)] == [alone[0], alone[1] + 3 * parallel.PROCESSES.bytes_each]
    with dask.config.set(num_workers=1):
        assert peak(640) < alone[1]


def test_a_plan_counts_the_gaps_of_what_is_no_dask_array(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PROCESSES", parallel.ProcessSettings(start_after=20))
    full = xr.DataArray(np.zeros((2, 80, 80)), dims=("time", "y", "x"), name="z")
    few, many = full.copy(), full.copy()
    few[1, 40, 40] = np.nan
    many[:, ::4, ::4] = np.nan
    with dask.config.set(num_workers=2):
        plans = [plan(array, model=model, device="cpu", batch_size=1) for array in (full, few, many, full.chunk())]
    assert [p.batches for p in plans] == [0, 1, plans[2].tiles, plans[3].tiles]
    peaks = [p.peak_bytes for p in plans]
    assert peaks[0] == peaks[1] < min(peaks[2:])
    assert peaks[2] - peaks[1] >= 2 * parallel.PROCESSES.bytes_each


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("model", ["tnpkr-sa", "te-pt-tnp"])
def test_a_gpu_fills_as_a_cpu_does(model: str) -> None:
    rng = np.random.default_rng(0)
    values = np.cumsum(np.cumsum(rng.normal(size=(64, 64)), 0), 1)
    values[rng.random((64, 64)) < 0.5] = np.nan
    array = xr.DataArray(values, dims=("y", "x"), name="a")
    on_cpu, on_gpu = (infill(array, model=model, device=device).load() for device in ("cpu", "cuda"))
    error = on_cpu["a_standard_error"].where(np.isnan(array))
    assert float(np.sqrt((((on_gpu["a"] - on_cpu["a"]) / error) ** 2).mean())) < 0.1
    assert float(abs(np.log(on_gpu["a_standard_error"] / error)).mean()) < 0.1


def test_integers_without_nodata_pass_through_beside_others(model: str) -> None:
    ds = raster().to_dataset(name="a")
    ds["views"] = ds["a"].fillna(0).astype("i2")
    ds["when"] = ds["a"].isnull().astype("M8[s]").astype("M8[ns]")
    with (
        pytest.warns(UserWarning, match="views: integers without a declared nodata value pass through as they are"),
        pytest.warns(UserWarning, match="when: times pass through as they are, and are not filled"),
    ):
        out = infill(ds, model=model)
    assert set(out.data_vars) == {"a", "a_standard_error", "a_fill_flag", "views", "when"}
    xr.testing.assert_identical(out["when"].variable, ds["when"].variable)
    xr.testing.assert_identical(out["views"].variable, ds["views"].variable)
    assert "views_fill_flag" in infill(ds.drop_vars("when"), model=model, nodata=0)


def test_a_model_of_fixed_units_uses_no_other_slices(model: str, card_fields: dict[str, Any], tmp_path: Path) -> None:
    network, _ = checkpoint.load_model(model)
    file, neighbourhood = tmp_path / "fixed.safetensors", {**card_fields["neighbourhood"], "standard": [0.0, 1.0]}
    checkpoint.save(network, file, **{**card_fields, "neighbourhood": neighbourhood})
    stack = xr.DataArray(np.ones((2, 8, 8)), dims=("time", "y", "x"))
    with pytest.raises(InputError, match=r"tiny reads values in fixed units, .* got across='time', expected None"):
        infill(stack, model=file, across="time")


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_results_are_finite_near_the_largest_number(model: str, dtype: str) -> None:
    most = 0.99 * float(np.finfo(dtype).max)  # beyond, it is a usual nodata value
    values = np.where(np.indices((16, 16)).sum(0) % 2, most, -most).astype(dtype)
    values[4:12, 4:12] = np.nan
    filled = infill(xr.Dataset({"a": (("y", "x"), values)}), model=model, quantiles=[0.01, 0.99])
    for name in filled.data_vars:
        assert np.isfinite(filled[name]).all(), name


@pytest.mark.parametrize("power", [-1000, 1000])
def test_values_whose_squares_float64_cannot_hold(model: str, power: int) -> None:
    source = raster((24, 20)).astype("f8")
    source[8:12, 6:9] = np.nan
    one, other = (infill(array, model=model) for array in (source, source * 2.0**power))
    for name in ("a", "a_standard_error"):
        np.testing.assert_array_equal(other[name], one[name] * 2.0**power)


def test_from_the_call_to_the_network_it_is_nine_files_at_most(model: str) -> None:
    """Of all files of geonp that lie between a caller and a function, without those of networks."""
    da = xr.DataArray(np.arange(144.0).reshape(12, 12), dims=("y", "x"), name="a")
    da[4:6, 4:6] = np.nan
    longest: set[str] = set()

    def look(frame: Any, event: str, _: object) -> None:
        nonlocal longest
        files = set()
        while event == "call" and frame is not None:
            if (module := frame.f_globals.get("__name__", "")).startswith("geonp.") and ".nn." not in module:
                files.add(module)
            frame = frame.f_back
        longest = max(longest, files, key=len)

    with dask.config.set(scheduler="synchronous"):
        sys.setprofile(look)
        try:
            da.geonp.infill(model=model)
        finally:
            sys.setprofile(None)
    assert {"geonp.accessor", "geonp.fill.infill"} <= longest
    assert len(longest) <= 9, sorted(longest)
