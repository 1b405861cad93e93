"""Values under flags count as missing, however they are said and however the raster is stored."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pytest
import xarray as xr

import geonp
from geonp.errors import InputError
from geonp.fill.fingerprint import values_of
from geonp.fill.missing import with_gaps
from geonp.fill.options import FillOptions
from geonp.fill.request import prepare
from geonp.fill.variables import normalise

SHAPE = (3, 36, 40)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> xr.Dataset:
    """An index under clouds, with a probability, a bit field, and an elevation beside it; read from a file."""
    rng = np.random.default_rng(0)
    t, y, x = np.mgrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
    probability = np.clip(np.sin(x / 6 + t) * np.cos(y / 7), 0, 1)
    clouds = probability > 0.6
    ndvi = (0.5 + 0.3 * np.sin(y / 9) + 0.05 * rng.standard_normal(SHAPE)).astype("f4")
    dims, coords = ("time", "y", "x"), {"time": [1, 2, 4], "y": 10.0 * np.arange(36), "x": 10.0 * np.arange(40)}
    flags = {"flag_values": np.array([0, 1, 3], "i1"), "flag_meanings": "clear haze cloud"}
    ds = xr.Dataset(
        {
            "ndvi": (dims, np.where(clouds, 9, ndvi).astype("f4")),
            "cloud_prob": (dims, 100 * probability),
            "scl": (dims, np.where(clouds, 3, probability > 0.4).astype("i1"), flags),
            "dem": (dims[1:], rng.standard_normal(SHAPE[1:])),
        },
        coords,
    )
    path = tmp_path_factory.mktemp("missing") / "stack.nc"
    ds.to_netcdf(path, engine="netcdf4")
    return geonp.open_raster(path, chunks=None)


@pytest.fixture(scope="module")
def clouds(stack: xr.Dataset) -> xr.DataArray:
    return (stack["cloud_prob"] > 60).load()


@pytest.fixture(scope="module")
def expected(stack: xr.Dataset, clouds: xr.DataArray, model: str) -> xr.Dataset:
    return stack["ndvi"].load().where(~clouds).geonp.infill(model=model)


WAYS: list[Any] = [
    "cloud_prob>60",
    ["scl=cloud"],
    ["scl&0b10", "scl=99"],
    lambda ds: ds["cloud_prob"] > 60,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunks", [None, {"y": 17, "x": 13}, {"time": 1}])
@pytest.mark.filterwarnings("ignore:.*passed through|.*pass through")
def test_however_it_is_said_and_chunked(
    stack: xr.Dataset, clouds: xr.DataArray, way: Any, chunks: Any, computes_nothing: Any
) -> None:
    ds = stack if chunks is None else stack.chunk(chunks)
    with computes_nothing():
        found, names, flags, _ = with_gaps(ds, way, None)
    assert names == ["ndvi"]
    assert found["ndvi"].chunks == ds["ndvi"].chunks
    assert not found["ndvi"].variable._in_memory
    np.testing.assert_array_equal(found["ndvi"].values, ds["ndvi"].where(~clouds).values)
    np.testing.assert_array_equal(flags.flagged(ds["ndvi"]).values, clouds.values)


@pytest.mark.parametrize("how", ["memory", "dask", "store", "array", "numpy"])
@pytest.mark.filterwarnings("ignore:.*passed through|.*pass through")
def test_fills_are_those_of_values_that_are_missing(
    stack: xr.Dataset, clouds: xr.DataArray, expected: xr.Dataset, model: str, tmp_path: Path, how: str
) -> None:
    if how == "store":
        report = geonp.fill_store(stack, tmp_path / "out.zarr", chunks=16, missing="scl=cloud", model=model)
        assert report.variables["ndvi"]["missing"] == int(clouds.sum())
        found = xr.open_zarr(tmp_path / "out.zarr")
        assert set(report.variables) == {"ndvi"}
    elif how == "array":
        found = stack["ndvi"].load().geonp.infill(missing=clouds, model=model)
    elif how == "numpy":
        found = stack["ndvi"].load().geonp.infill(missing=clouds.values, model=model)
    else:
        ds = stack.load() if how == "memory" else stack.chunk({"y": 16})
        found = ds.geonp.infill(missing=["scl=cloud", "cloud_prob>60"], model=model)
        assert found.attrs["geonp_missing"] == "scl=cloud; cloud_prob>60"
        xr.testing.assert_identical(found["dem"].load(), stack["dem"].load())
    np.testing.assert_array_equal(found["ndvi_fill_flag"], expected["ndvi_fill_flag"])
    np.testing.assert_allclose(found["ndvi"], expected["ndvi"], atol=1e-5)
    np.testing.assert_allclose(found["ndvi_standard_error"], expected["ndvi_standard_error"], atol=1e-5)


def test_terrain_and_quality_are_not_filled_beside_others(stack: xr.Dataset) -> None:
    with pytest.warns(UserWarning, match="^cloud_prob, dem: passed through, .* to other variables: ndvi. To fill them"):
        assert with_gaps(stack, "scl=cloud", None)[1] == ["ndvi"]
    assert with_gaps(stack[["cloud_prob", "scl"]], "scl=cloud", None)[1] == ["cloud_prob"]


def test_flags_of_twice_the_size_are_those_of_the_nearest_cell() -> None:
    rng = np.random.default_rng(0)
    fine = xr.DataArray(
        rng.random((24, 32)), {"y": 100 - 10.0 * np.arange(24), "x": 10.0 * np.arange(32)}, ("y", "x"), name="b02"
    )
    coarse = xr.DataArray(
        rng.random((12, 16)) > 0.6, {"y": 95 - 20.0 * np.arange(12), "x": 5 + 20.0 * np.arange(16)}, ("y", "x")
    )
    expected = np.where(np.kron(coarse, np.ones((2, 2), bool)), np.nan, fine)
    for array in (fine, fine.chunk({"y": 10})):
        with pytest.warns(UserWarning, match="has 12 x 16 cells on another grid than the raster"):
            found = with_gaps(array, coarse, None)[0]
        np.testing.assert_array_equal(found["b02"].values, expected)


def test_bounds_beside_lazy_flags(stack: xr.Dataset, clouds: xr.DataArray, model: str) -> None:
    ds = geonp.open_raster(stack.encoding["source"])
    options: dict[str, Any] = {"bounds": (0, 1), "model": model}
    expected = stack["ndvi"].load().geonp.infill(missing=clouds, **options)
    found = ds["ndvi"].geonp.infill(missing=ds["scl"].isin([3]), **options).compute()
    np.testing.assert_allclose(found["ndvi"], expected["ndvi"], atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "attrs", "nodata", "wider", "marker"),
    [
        ("u2", {}, None, "i4", -(2**31)),
        ("u1", {}, np.nan, "i2", -(2**15)),
        ("u2", {"_FillValue": 0}, None, "u2", 0),
        ("i2", {}, -1, "i2", -1),
        ("u1", {"valid_range": np.array([0, 200], "u1")}, None, "u1", 255),
    ],
)
def test_integers_get_a_value_for_cells_that_stay_empty(
    dtype: str, attrs: dict[str, Any], nodata: float | None, wider: str, marker: int, model: str
) -> None:
    values = (1 + np.arange(400) % 199).reshape(20, 20).astype(dtype)
    array = xr.DataArray(values, dims=("y", "x"), name="dn", attrs=attrs)
    flagged = np.zeros((20, 20), bool)
    flagged[5:8, 6:12] = True
    domain = ~flagged
    domain[5] = True
    options: dict[str, Any] = {"missing": flagged, "mask": domain, "nodata": nodata, "model": model}
    if wider != dtype:
        with pytest.warns(UserWarning, match=f"dn: {array.dtype} without a nodata value is filled as int"):
            found = array.geonp.infill(**options)
    else:
        found = array.geonp.infill(**options)
    assert found["dn"].dtype == np.dtype(wider)
    assert found["dn"].attrs.get("_FillValue", 255) == marker  # what is not valid needs no nodata value
    assert (found["dn"].values[6:8, 6:12] == marker).all()
    assert (found["dn"].values[5, 6:12] != marker).all()
    assert (found["dn"].values[~flagged] == array.values[~flagged]).all()


def test_hidden_cells_of_an_evaluation_are_never_under_clouds(
    stack: xr.Dataset, clouds: xr.DataArray, model: str
) -> None:
    with pytest.warns(UserWarning, match="passed through"):
        found = stack.geonp.evaluate(missing="scl=cloud", model=model, baselines=["nearest"])
    assert not (found.test.hidden & clouds[0].values).any()
    assert np.nanmax(found.test.values) < 9


@pytest.mark.parametrize("array", [False, True])
def test_a_condition_on_the_only_variable_hides_its_own_values(stack: xr.Dataset, array: bool) -> None:
    ds = stack[["ndvi", "dem"]].load()
    below = (ds["ndvi"] < 0.4).values
    assert 0 < below.sum() < below.size
    found, names, _, _ = with_gaps(ds["ndvi"] if array else ds[["ndvi"]], "ndvi<0.4", None)
    assert names == ["ndvi"]
    np.testing.assert_array_equal(found["ndvi"], np.where(below, np.nan, ds["ndvi"]))
    _, _, (variable,), _ = normalise(ds, FillOptions(missing="ndvi<0.4"), covariates=["dem"])
    np.testing.assert_array_equal(np.isnan(variable.read(variable.source.values)), below)


def test_a_measured_variable_that_hides_others_is_named(stack: xr.Dataset) -> None:
    ds = stack[["ndvi"]].assign(sst=stack["ndvi"] + 270)
    with pytest.warns(
        UserWarning, match=r"sst: says where other variables are missing, and is not filled.*\[\['sst'\]\]"
    ):
        _, names, _, _ = with_gaps(ds, "sst<271", None)
    assert names == ["ndvi"]


@pytest.mark.parametrize(("condition", "named"), [("B4<5", True), ("B4=5", False), ("SCL<5", False)])
def test_a_measured_band_that_hides_others_is_named(
    condition: str, named: bool, recwarn: pytest.WarningsRecorder
) -> None:
    values = np.arange(36, dtype="i2").reshape(3, 3, 4)
    ds = xr.Dataset({"a": (("band", "y", "x"), values)}, {"band_name": ("band", ["B4", "SCL", "B8"])})
    found, _, _, _ = with_gaps(ds, condition, -1)
    assert found.sizes["band"] == 2
    said = "B4: says where other bands are missing, and is left out"
    assert any(said in str(one.message) for one in recwarn) == named


def test_a_condition_on_the_only_band_hides_its_own_values() -> None:
    values = np.arange(12.0).reshape(1, 3, 4)
    ds = xr.Dataset({"a": (("band", "y", "x"), values)}, {"band_name": ("band", ["B4"])})
    found, names, _, _ = with_gaps(ds, "B4<5", None)
    assert names == ["a"]
    np.testing.assert_array_equal(found["a"], np.where(values < 5, np.nan, values))


@pytest.mark.filterwarnings("ignore:.*passed through|.*pass through")
def test_a_resumed_job_is_the_same_only_with_the_same_flags(stack: xr.Dataset, model: str) -> None:
    def identity(missing: Any) -> str:
        return values_of(prepare(stack, FillOptions(missing=missing, model=model)), None)

    assert identity("scl=cloud") == identity("scl=cloud")
    assert len({identity(one) for one in ("scl=cloud", "scl=haze", None, "cloud_prob>60", np.ones(SHAPE, bool))}) == 5


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            "SCL=3",
            "The raster has no layer 'SCL' for the condition 'SCL=3': expected one of ndvi, cloud_prob",
        ),
        ("modis", "no layer 'state_1km' or .* or name the layer: NAME=modis"),
        (np.ones((3, 3), bool), r"missing has shape \(3, 3\), expected that of the raster, \(36, 40\)"),
        (np.ones(SHAPE), "missing has dtype float64, expected booleans"),
        (lambda ds: ds["scl"], "missing has dtype int8, expected booleans"),
        (
            xr.DataArray(np.ones(SHAPE, bool), {"time": [1, 2, 3]}, ("time", "y", "x")),
            "The mask of missing cells and the raster differ along 'time'",
        ),
        (xr.DataArray(np.ones((5, *SHAPE[1:]), bool), dims=("band", "y", "x")), "The missing cells vary along band"),
    ],
)
def test_what_is_refused(stack: xr.Dataset, missing: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_gaps(stack, missing, None)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", ["ndvi_qc", "quality_level", "dq", "ndvi qc"])
def test_layers_of_quality_that_hide_nothing_are_said(stack: xr.Dataset, name: str, lazy: bool) -> None:
    ds = stack[["ndvi", "scl"]].load().rename(scl=name)
    ds["ndvi"].attrs["ancillary_variables"] = "dq"
    ds[name].attrs["standard_name"] = "quality_flag"
    shown = ds.chunk() if lazy else ds
    option = f"--gaps-where {quote(f'{name}=FLAG')}"  # as a shell takes it
    said = rf"ndvi: '{name}' says how good its values are.*\({option}\), one of clear, haze, cloud"
    with pytest.warns(UserWarning, match=said):
        names = [variable.name for variable in normalise(shown, FillOptions())[2]]
    assert names == ["ndvi"]
    normalise(shown, FillOptions(missing=f"{name}=cloud"))
    normalise(shown[["ndvi"]], FillOptions())
    normalise(ds.where(ds[name] == 0), FillOptions())  # all observed values have one quality
