"""The arrays that come out of a fill: names, dtypes, attributes, encoding, and values that every file can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from geonp.fill.options import FillOptions
from geonp.fill.outputs import outputs, result_arrays, unbanded
from geonp.inference.kernel import result_dtype
from geonp.io.files import open_raster
from geonp.io.output import write_raster
from geonp.raster.metadata import UNNAMED, FillFlag
from geonp.raster.nodata import observed
from geonp.raster.variable import Variable

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def raster(values: Any, dtype: str = "float32", **attrs: Any) -> xr.DataArray:
    return xr.DataArray(np.atleast_2d(np.array(values, dtype)), dims=("y", "x"), name="t", attrs=attrs)


def joined(source: xr.DataArray, prediction: float, nodata: float | None = None, *, empty: bool = True) -> xr.Dataset:
    """`source` with all its missing cells filled by `prediction`, but the last one of them left empty."""
    variable = Variable.of(source, source.dims, nodata)
    values = variable.read(source.values)
    missing = np.isnan(values)
    left = np.zeros_like(missing)
    left.flat[np.flatnonzero(missing)[-1:]] = empty
    result = np.zeros(values.shape, result_dtype(values.dtype))
    result["value"] = np.where(left, np.nan, np.where(missing, prediction, values))
    result["standard_error"] = np.where(left, np.nan, np.where(missing, 0.5, 0.0))
    result["flag"] = np.where(left, FillFlag.BEYOND_LIMIT, missing)
    return xr.Dataset(result_arrays(variable, outputs(variable, FillOptions()), result, source.values))


@pytest.mark.parametrize("name", ["t.2m", "air temperature", "band-1"])
def test_results_of_any_name_are_read_from_the_bands_of_a_geotiff(tmp_path: Path, name: str) -> None:
    """Names with dots, blanks and hyphens were none of a result: bands came without their errors and flags."""
    one = joined(raster([[1, np.nan, 3], [4, np.nan, 6]]).rename(name), 2.5)
    for ds, dims in ((one, ("y", "x")), (xr.concat([one, one + 1], "time", join="exact"), ("slice", "y", "x"))):
        write_raster(ds, tmp_path / "a.tif", overwrite=True)
        found = unbanded(open_raster(tmp_path / "a.tif"))
        assert list(found) == [name, f"{name}_standard_error", f"{name}_fill_flag"]
        assert found[name].dims == dims
        for key in found:
            np.testing.assert_array_equal(found[key], ds[key])


def test_what_is_beyond_the_valid_range_is_missing_and_nothing_is_filled_so() -> None:
    for dtype in ("float32", "float64", "int16", "uint8"):
        source = raster([10, 20, 100, 150, 200, 220], dtype, valid_range=np.array([20, 150], dtype))
        np.testing.assert_array_equal(observed(source), [[np.nan, 20, 100, 150, np.nan, np.nan]])
        out = joined(source, 151.7)
        np.testing.assert_array_equal(out.t.values[0, :5], [150, 20, 100, 150, 150])
        assert out.t.attrs["valid_range"].tolist() == [20, 150]
        # the last one stays empty
        assert observed(out.t).isnull().values.tolist() == [[False] * 5 + [True]]


def test_filled_integers_are_neither_beyond_the_valid_range_nor_the_nodata_value() -> None:
    source = raster([9999, 20, 9999], "int16", _FillValue=np.int16(9999), valid_range=[0, 9999])
    assert joined(source, 10050).t.values[0, 0] == 9998
    assert joined(source, -3).t.values[0, 0] == 0
    floats = raster([np.nan, 20, np.nan], valid_range=[0, 100])
    floats.encoding = {"dtype": np.dtype("int16"), "scale_factor": 0.5, "_FillValue": 100}
    assert joined(floats, 60.0).t.values[0, 0] == 49.5


@pytest.mark.parametrize("fill", [{}, {"_FillValue": np.int16(-32768)}])
def test_packed_values_with_a_valid_range_stay_packed(fill: dict[str, Any], tmp_path: Path) -> None:
    stored = np.arange(-400, 401, dtype="int16")[None].repeat(2, 0)
    packing = {"scale_factor": 0.01, "add_offset": 1000.0, "valid_range": np.array([-300, 300], "i2"), **fill}
    xr.Dataset({"t": (("y", "x"), stored, packing)}).to_netcdf(tmp_path / "in.nc")
    out = joined(open_raster(tmp_path / "in.nc").t, 1000.0)
    write_raster(out, tmp_path / "out.nc")
    again = open_raster(tmp_path / "out.nc").t
    assert again.attrs["valid_range"].tolist() == [-300, 300]
    assert (again.encoding["dtype"], again.encoding["_FillValue"]) == (np.int16, -32768)
    np.testing.assert_array_equal(observed(again).isnull(), out.t.isnull())
    assert int(out.t.isnull().sum()) == 1


@pytest.mark.parametrize("suffix", [".nc", ".zarr", ".tif"])
@pytest.mark.parametrize(
    ("dtype", "attrs"),
    [
        ("u1", {"valid_range": np.array([0, 240], "u1")}),
        ("i2", {"valid_range": np.array([0, 240], "i2"), "scale_factor": 0.5, "_FillValue": np.int16(-1)}),
        ("i2", {"valid_max": np.int16(240), "scale_factor": -0.5, "add_offset": 900.0}),
        ("f4", {"valid_range": np.array([0, 240], "f4")}),
    ],
    ids=["integers", "packed", "packed without nodata", "floats"],
)
def test_what_stays_empty_is_missing_in_files(dtype: str, attrs: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    stored = np.array([[10, 20, 240, 241, 30, 250], [11, 21, 239, 251, 31, 255]], dtype)
    xr.Dataset({"t": (("y", "x"), stored, attrs)}).to_netcdf(tmp_path / "in.nc")
    source = open_raster(tmp_path / "in.nc").t
    np.testing.assert_array_equal(observed(source).isnull(), stored > 240)
    out = joined(source, float(source[0, 0]))
    write_raster(out, tmp_path / f"out{suffix}")
    # a GeoTIFF has bands of one variable
    written = open_raster(tmp_path / f"out{suffix}")
    again = observed(written["out"][0] if suffix == ".tif" else written["t"])
    np.testing.assert_array_equal(again.isnull(), [[False] * 6, [False] * 5 + [True]])
    np.testing.assert_allclose(again.values[stored <= 240], source.values[stored <= 240])


def test_unsigned_bytes_stay_what_they_are(tmp_path: Path) -> None:
    attrs = {"_Unsigned": "true", "valid_range": np.array([0, -2], "i1")}
    stored = np.array([[0, 100, -56, -2, -1, -1]], "i1")
    xr.Dataset({"t": (("y", "x"), stored, attrs)}).to_netcdf(tmp_path / "in.nc", format="NETCDF3_CLASSIC")
    source = open_raster(tmp_path / "in.nc").t
    np.testing.assert_array_equal(observed(source), [[0, 100, 200, 254, np.nan, np.nan]])
    out = joined(source, 230.0)
    write_raster(out, tmp_path / "out.nc")
    again = open_raster(tmp_path / "out.nc").t
    np.testing.assert_array_equal(observed(again), [[0, 100, 200, 254, 230, np.nan]])


def test_names_attributes_and_encoding_of_a_filled_raster() -> None:
    source = raster([280.0, np.nan, np.nan], standard_name="sea_surface_temperature", units="K", long_name="SST")
    source = source.assign_coords(spatial_ref=0)
    source.encoding = {
        "dtype": np.dtype("float32"),
        "_FillValue": -1.0,
        "chunks": (1, 1),
        "zlib": True,
        "source": "f.nc",
    }
    ds = joined(source, 1.0, empty=False)
    assert list(ds.data_vars) == ["t", "t_standard_error", "t_fill_flag"]
    assert ds["t"].attrs == {**source.attrs, "ancillary_variables": "t_standard_error t_fill_flag"}
    assert ds["t"].encoding == {"dtype": np.dtype("float32"), "_FillValue": -1.0, "grid_mapping": "spatial_ref"}
    assert ds["t_standard_error"].attrs == {
        "long_name": "SST standard error",
        "standard_name": "sea_surface_temperature standard_error",
        "units": "K",
        "units_metadata": "temperature: difference",
    }
    assert ds["t_standard_error"].encoding == {"grid_mapping": "spatial_ref"}
    flag = ds["t_fill_flag"]
    assert (flag.dtype, flag.attrs["standard_name"]) == (np.int8, "status_flag")
    assert flag.attrs["flag_values"].tolist() == [0, 1, 2, 3, 4]
    assert flag.attrs["flag_values"].dtype == np.int8
    assert flag.attrs["flag_meanings"] == "observed filled beyond_limit outside_domain failed"


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_bounds_that_are_coordinates_are_kept(suffix: str, tmp_path: Path) -> None:
    """As with decode_coords="all", which rioxarray recommends, and of cf_xarray."""
    edges = np.stack([np.arange(9.0), np.arange(9.0) + 1], 1)
    ds = raster(np.where(np.eye(9) > 0, np.nan, 1.0)).to_dataset()
    ds = ds.assign_coords(y=edges.mean(1), x=edges.mean(1), y_bnds=(("y", "bnds"), edges))
    ds["y"].encoding["bounds"] = "y_bnds"
    filled = ds.geonp.infill()
    np.testing.assert_array_equal(filled.coords["y_bnds"], edges)
    write_raster(filled, tmp_path / f"a{suffix}")
    with xr.open_dataset(tmp_path / f"a{suffix}") as written:
        assert written["y"].attrs["bounds"] == "y_bnds"
        np.testing.assert_array_equal(written["y_bnds"], edges)


def test_attributes_that_do_not_apply_are_left_out() -> None:
    ds = joined(raster([1.0, np.nan], units="m", scale="big"), 2.0)
    assert ds["t_standard_error"].attrs == {"long_name": "t standard error", "units": "m"}
    assert joined(raster([1.0, np.nan]), 2.0)["t_standard_error"].attrs == {"long_name": "t standard error"}


def test_an_array_without_a_name() -> None:
    assert list(joined(raster([1.0, np.nan]).rename(None), 2.0)) == [
        UNNAMED,
        f"{UNNAMED}_standard_error",
        f"{UNNAMED}_fill_flag",
    ]


def test_earlier_ancillary_variables_are_kept_once() -> None:
    source = raster([1.0, np.nan], ancillary_variables="quality t_fill_flag")
    assert joined(source, 2.0)["t"].attrs["ancillary_variables"] == "quality t_fill_flag t_standard_error"


def test_nodata_in_attrs_moves_to_encoding_for_floats() -> None:
    ds = joined(raster([1.0, -9999, -9999], _FillValue=-9999.0), 2.0)
    np.testing.assert_array_equal(ds["t"], [[1, 2, np.nan]])
    assert ds["t"].encoding["_FillValue"] == -9999
    assert "_FillValue" not in ds["t"].attrs
    assert joined(raster([1.0, 7, 7]), 2.0, nodata=7)["t"].encoding["_FillValue"] == 7


@pytest.mark.parametrize("suffix", [".nc", ".zarr", ".tif"])
@pytest.mark.parametrize("attrs", [{"_FillValue": -3.4e38}, {"valid_range": [0.0, 1e6]}, {"valid_max": np.inf}])
def test_what_float16_cannot_hold_overflows_nowhere(attrs: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    """The nodata value of another dtype, or a limit, ended in a warning of NumPy, and in an infinite nodata value."""
    ds = joined(raster([[1, np.nan], [60000, np.nan]], "float16", **attrs), 1e5)
    np.testing.assert_array_equal(ds["t"], np.array([[1, np.finfo(np.float16).max], [60000, np.nan]], np.float16))
    ds = ds.assign_coords(y=[1, 0], x=[0, 1])
    write_raster(ds, tmp_path / f"a{suffix}")
    found = open_raster(tmp_path / f"a{suffix}")
    values = found["t"] if "t" in found else next(iter(found.values())).isel(band=0)
    np.testing.assert_array_equal(values, ds["t"])


def test_integers_give_integers_back() -> None:
    ds = joined(raster([5, 0, 0], "uint16", _FillValue=0), 7.6)
    assert ds["t"].dtype == np.uint16
    assert ds["t"].values.tolist() == [[5, 8, 0]]
    assert ds["t_standard_error"].dtype == np.float32
    given_one = joined(raster([5, 0, 0], "uint16"), 7.6, nodata=0)
    assert given_one["t"].values.tolist() == [[5, 8, 0]]
    assert given_one["t"].attrs["_FillValue"] == 0


def test_the_standard_error_of_integers_includes_their_rounding() -> None:
    exact = joined(raster([5.0, np.nan, np.nan]), 7.6)["t_standard_error"].values
    integers = joined(raster([5, 0, 0], "uint16", _FillValue=0), 7.6)["t_standard_error"].values
    np.testing.assert_allclose(integers, [[0, np.hypot(exact[0, 1], 0.4), np.nan]], rtol=1e-6)
    packed = raster([5.0, np.nan, np.nan])
    packed.encoding = {"dtype": np.dtype("int16"), "scale_factor": 0.5, "add_offset": 0.25, "_FillValue": -1}
    found = joined(packed, 7.6)["t_standard_error"].values
    np.testing.assert_allclose(found, [[0, np.hypot(exact[0, 1], 0.15), np.nan]], rtol=1e-6)


def test_the_outputs_of_a_chunk_of_one_cell_do_not_change_its_result() -> None:
    variable = Variable.of(raster([0], "uint16", _FillValue=0), ("y", "x"), None)
    result = np.zeros((1, 1), result_dtype(np.dtype("f4")))
    result["value"], result["standard_error"], result["tail"], result["flag"] = 1.4, 0.2, 0.2, FillFlag.FILLED
    before = result.copy()
    for output in outputs(variable, FillOptions(quantiles=[0.1, 0.9], tails=True, exceed=[1])):
        output.data(result, variable.source.values)
    np.testing.assert_array_equal(result, before)


def test_large_integers_are_not_rounded() -> None:
    large = 2**62 + 1
    assert joined(raster([large, 0, 0], "int64", _FillValue=0), 1e19)["t"].values.tolist() == [[large, 2**63 - 1, 0]]


@given(
    dtype=st.sampled_from([name for name in INTEGERS if "64" not in name]),  # floats cannot carry all of those
    prediction=st.floats(-1e6, 1e6),
    data=st.data(),
    scale=st.sampled_from([1.0, 0.01, -2.0]),
    offset=st.sampled_from([0.0, 290.0]),
)
def test_filled_cells_survive_integer_storage(
    dtype: str, prediction: float, data: st.DataObject, scale: float, offset: float
) -> None:
    limits = np.iinfo(dtype)
    nodata = data.draw(st.sampled_from([limits.min, limits.max, int(np.clip(prediction, limits.min, limits.max))]))
    stored = data.draw(hnp.arrays(dtype, (1, 4), elements=st.integers(limits.min, limits.max)))
    stored[0, 2:] = nodata
    packed = raster(stored, dtype, _FillValue=limits.dtype.type(nodata), scale_factor=scale, add_offset=offset)
    source = xr.decode_cf(packed.to_dataset())["t"]
    ds = joined(source, prediction)
    encoded = xr.conventions.encode_cf_variable(ds["t"].variable)
    assert encoded.dtype == dtype
    np.testing.assert_array_equal(
        encoded.values[stored == nodata] == nodata, [False] * (np.sum(stored == nodata) - 1) + [True]
    )
    low, high = sorted((offset + scale * float(limits.min), offset + scale * float(limits.max)))
    nearest = np.clip(prediction, low, high)
    assert abs(float(ds["t"][0, 2]) - nearest) <= 2 * abs(scale) + 1e-5 * abs(nearest)


def test_integer_encoding_without_room_for_empty_cells_is_left_out() -> None:
    source = raster([1.0, np.nan])
    source.encoding = {"dtype": np.dtype("int16"), "scale_factor": 0.1}
    assert joined(source, 2.0)["t"].encoding == {}


def test_results_of_lazy_arrays_are_lazy(computes_nothing: Any) -> None:
    source = raster(np.array([[5, 0], [6, 0]]), "int16", _FillValue=0).chunk(1)
    variable = Variable.of(source, source.dims)
    dtype = result_dtype(variable.read.dtype)
    with computes_nothing():
        result = source.data.map_blocks(lambda block: np.ones(block.shape, dtype), dtype=dtype)
        options = FillOptions(quantiles=[0.1, 0.9])
        ds = xr.Dataset(result_arrays(variable, outputs(variable, options), result, source.data))
    assert ds["t"].chunks == ((1, 1), (1, 1))
    assert ds["t_quantile"].chunks == ((2,), (1, 1), (1, 1))
    assert ds["t"].values.tolist() == [[1, 1], [1, 1]]
