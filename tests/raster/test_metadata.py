from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from geonp.errors import InputError
from geonp.io.files import open_raster, write_raster
from geonp.raster.metadata import UNNAMED, FillFlag, annotate, append_history, fill_variables
from geonp.raster.nodata import declared_nodata, empty_value, observed, valid_limits

MODEL = {"model_name": "m", "model_version": "1", "weights_hash": "abc", "history_line": "filled"}
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def raster(values: Any, dtype: str = "float32", **attrs: Any) -> xr.DataArray:
    return xr.DataArray(np.atleast_2d(np.array(values, dtype)), dims=("y", "x"), name="t", attrs=attrs)


def joined(source: xr.DataArray, prediction: float, nodata: float | None = None) -> xr.Dataset:
    """`source` with all its missing cells filled by `prediction`, but the last one of them left empty."""
    values = observed(source, nodata)
    missing = values.isnull().values
    empty = np.zeros_like(missing)
    empty.flat[np.flatnonzero(missing)[-1:]] = True
    filled = values.where(~missing, prediction).where(~empty).astype(values.dtype)
    error = values.copy(data=np.where(missing, 0.5, 0.0)).where(~empty)
    flag = values.copy(data=np.where(empty, FillFlag.BEYOND_LIMIT, missing.astype("int64")))
    return annotate(filled, error, flag, source=source, nodata=nodata, **MODEL)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
    + [(name, "float32" if name.endswith(("t8", "t16")) else "float64") for name in INTEGERS],
)
def test_dtype_of_observed_values_holds_them_exactly(dtype: str, expected: str) -> None:
    limits = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype)
    da = raster([limits.max, 5, 0], dtype, _FillValue=0)
    assert observed(da).dtype == expected
    np.testing.assert_array_equal(observed(da).values[0, :2], da.values[0, :2].astype(expected))


def test_missing_cells() -> None:
    da = raster(
        [1.5, np.nan, np.inf, -np.inf, -9999, 1e20], _FillValue=-9999.0, missing_value=np.float32(1e20), units="K"
    )
    seen = observed(da)
    np.testing.assert_array_equal(seen, [[1.5] + [np.nan] * 5])
    assert seen.attrs == {"units": "K"}
    assert seen.name == "t"
    np.testing.assert_array_equal(observed(da, nodata=1.5).values[0, [0, 4]], [np.nan, -9999])
    assert "_FillValue" in da.attrs


def test_nodata_is_compared_in_the_dtype_of_the_raster() -> None:
    np.testing.assert_array_equal(observed(raster([-9999.9, 0.1]), nodata=-9999.9), raster([np.nan, 0.1]))
    lowest = float(np.finfo("float32").min)
    np.testing.assert_array_equal(observed(raster([lowest, 1]), nodata=lowest), raster([np.nan, 1]))
    np.testing.assert_array_equal(observed(raster([1, 2], "uint8"), nodata=-9999), raster([1, 2]))
    np.testing.assert_array_equal(observed(raster([1, 2], "uint8"), nodata=np.nan), raster([1, 2]))


def test_encoding_declares_the_nodata_of_integers_but_not_of_decoded_floats() -> None:
    integers, floats = raster([0, 1], "int16"), raster([0, 1])
    for da in (integers, floats):
        da.encoding["_FillValue"] = 0
    assert declared_nodata(integers) == (0.0,)
    assert declared_nodata(floats) == ()
    np.testing.assert_array_equal(observed(integers), raster([np.nan, 1]))
    np.testing.assert_array_equal(observed(floats), floats)


def test_integers_without_nodata_are_refused() -> None:
    with pytest.raises(InputError, match=r"'t' holds integers \(int16\) and declares no nodata.*nodata= .*--nodata"):
        observed(raster([0, 1], "int16"))


# --- valid range ------------------------------------------------------------------------------------------------------

PACKED = {"dtype": np.dtype("int16"), "scale_factor": 0.01, "add_offset": 5.0}
UNSIGNED = {"dtype": np.dtype("int8"), "_Unsigned": "true"}
FLOATS = {"dtype": np.dtype("float32")}


@pytest.mark.parametrize(
    ("attrs", "encoding", "expected"),
    [
        ({}, {}, (-np.inf, np.inf)),
        ({"valid_min": 2.0}, {}, (2, np.inf)),
        ({"valid_max": np.float32(3)}, {}, (-np.inf, 3)),
        ({"valid_min": np.nan, "valid_max": 3.0}, {}, (-np.inf, 3)),
        ({"valid_range": np.array([-1.0, 4.0]), "valid_min": 9.0}, {}, (-1, 4)),
        ({"valid_range": [0, 400]}, FLOATS, (0, 400)),
        ({"valid_range": [0, 400]}, PACKED, (5, 9)),
        ({"valid_min": [0], "valid_max": np.int16(400)}, PACKED, (5, 9)),
        ({"valid_min": np.int16(-300)}, PACKED, (2, np.inf)),
        ({"valid_max": np.int16(300)}, PACKED | {"scale_factor": [-0.01]}, (2, np.inf)),
        ({"valid_range": [0, 400]}, PACKED | {"scale_factor": -0.01}, (1, 5)),
        ({"valid_range": [5.5, 6.5]}, PACKED, (5.5, 6.5)),
        ({"valid_range": [5.5, 6.5]}, PACKED | {"scale_factor": -0.01}, (5.5, 6.5)),
        ({"valid_min": 0, "valid_max": 8.5}, PACKED, (5, 8.5)),
        ({"valid_range": [5.5, 6.5]}, FLOATS | {"scale_factor": 2.0}, (11, 13)),
        ({"valid_range": np.array([0, -2], "int8")}, UNSIGNED, (0, 254)),
        ({"valid_max": np.int8(-2)}, UNSIGNED, (-np.inf, 254)),
        ({"valid_range": np.array([-100, 100], "int8")}, UNSIGNED | {"_Unsigned": "false"}, (-100, 100)),
        # what was packed, and has lost its encoding
        ({"valid_range": np.array([-300, 300], "int16")}, {}, (-np.inf, np.inf)),
        ({"valid_range": [-300, 300]}, {}, (-np.inf, np.inf)),
        # no ranges
        ({"valid_range": "0, 100"}, {}, (-np.inf, np.inf)),
        ({"valid_range": [1.0, 2.0, 3.0]}, {}, (-np.inf, np.inf)),
        ({"valid_min": 2.0, "valid_max": 1.0}, {}, (-np.inf, np.inf)),
    ],
)
def test_valid_limits(attrs: dict[str, Any], encoding: dict[str, Any], expected: tuple[float, float]) -> None:
    da = raster([1.0], **attrs)
    da.encoding = encoding
    assert valid_limits(da) == pytest.approx(expected)


def test_valid_limits_of_integers_that_are_read_as_they_are_stored() -> None:
    packing = {"scale_factor": 0.5, "add_offset": 1.0}
    assert valid_limits(raster([1], "int16", valid_range=[0, 100], **packing)) == (0, 100)
    assert valid_limits(raster([1], "int16", valid_range=[1.0, 51.0], **packing)) == (0, 100)
    assert valid_limits(raster([1], "int16", valid_range=[0.0, 0.3], scale_factor=0.1)) == (0, 3)
    assert valid_limits(raster([1], "int16", valid_max=0.3, scale_factor=-0.1)) == (-3, np.inf)


def test_what_is_beyond_the_valid_range_is_missing_and_nothing_is_filled_so() -> None:
    for dtype in ("float32", "float64", "int16", "uint8"):
        source = raster([10, 20, 100, 150, 200, 220], dtype, valid_range=np.array([20, 150], dtype))
        np.testing.assert_array_equal(observed(source), [[np.nan, 20, 100, 150, np.nan, np.nan]])
        out = joined(source, 151.7)
        np.testing.assert_array_equal(out.t.values[0, :5], [150, 20, 100, 150, 150])
        assert out.t.attrs["valid_range"].tolist() == [20, 150]
        # the last one stays empty
        assert observed(out.t).isnull().values.tolist() == [[False] * 5 + [True]]


def test_the_ends_of_a_valid_range_are_valid_however_they_were_unpacked() -> None:
    stored = np.arange(-500, 501, dtype="int16")[None]
    source = xr.Dataset(
        {"t": (("y", "x"), stored, {"scale_factor": 0.01, "add_offset": 273.15, "valid_range": [-300, 300]})}
    )
    decoded = xr.decode_cf(source).t
    assert decoded.dtype.kind == "f"
    np.testing.assert_array_equal(observed(decoded).isnull().values, abs(stored) > 300)


def test_filled_integers_are_neither_beyond_the_valid_range_nor_the_nodata_value() -> None:
    source = raster([9999, 20, 9999], "int16", _FillValue=np.int16(9999), valid_range=[0, 9999])
    assert joined(source, 10050).t.values[0, 0] == 9998
    assert joined(source, -3).t.values[0, 0] == 0
    floats = raster([np.nan, 20, np.nan], valid_range=[0, 100])
    floats.encoding = {"dtype": np.dtype("int16"), "scale_factor": 0.5, "_FillValue": 100}
    assert joined(floats, 60.0).t.values[0, 0] == 49.5


@pytest.mark.parametrize("fill", [{}, {"_FillValue": np.int16(-32768)}])
def test_a_valid_range_of_packed_values_is_written_with_the_packing_alone(fill: dict[str, Any], tmp_path: Path) -> None:
    stored = np.arange(-400, 401, dtype="int16")[None].repeat(2, 0)
    packing = {"scale_factor": 0.01, "add_offset": 1000.0, "valid_range": np.array([-300, 300], "i2"), **fill}
    xr.Dataset({"t": (("y", "x"), stored, packing)}).to_netcdf(tmp_path / "in.nc")
    out = joined(open_raster(tmp_path / "in.nc").t, 1000.0)
    write_raster(out, tmp_path / "out.nc")
    again = open_raster(tmp_path / "out.nc").t
    assert ("valid_range" in again.attrs) == bool(fill)
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


@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_empty_cell_of_integers_is_no_valid_one(dtype: str) -> None:
    for limits in ({"valid_max": 100}, {"valid_min": 10}, {"valid_range": [1, 100]}):
        source = raster([1], dtype, **limits)
        empty = np.full((1, 1), empty_value(source, ()), dtype)
        assert observed(source.copy(data=empty)).isnull().all()
    assert empty_value(raster([1], dtype, valid_max=100), (7.0,)) == 7


def test_integers_with_a_valid_range_are_filled_where_nothing_else_is() -> None:
    floats, told = raster([1.0]), raster([1], "int16", valid_range=[0, 3])
    assert fill_variables(xr.Dataset({"a": floats, "b": told})) == ["a"]
    assert fill_variables(xr.Dataset({"b": told, "c": raster([1], "uint8")})) == ["b"]


@pytest.mark.parametrize("dtype", ["complex64", "<U3", "datetime64[ns]", "bool", "object"])
def test_what_is_not_real_is_refused(dtype: str) -> None:
    values = np.zeros((2, 2), dtype)
    da = xr.DataArray(values, dims=("y", "x"), name="t")
    with pytest.raises(InputError, match=r"'t' cannot be filled: got dtype .*, expected real numbers"):
        observed(da)
    with pytest.raises(InputError, match=r"No variable can be filled: got 't' \('y', 'x'\)"):
        fill_variables(da.to_dataset())


def test_nodata_must_be_a_number() -> None:
    with pytest.raises(InputError, match=r"'t' declares a missing value that is no number: got \[.*'none'"):
        observed(raster([1.0], _FillValue="none"))


def test_observed_is_lazy_and_keeps_chunks(computes_nothing: Any) -> None:
    with computes_nothing():
        chunked = observed(raster(np.ones((5, 6)), "int16", _FillValue=0).chunk({"y": 2, "x": 4}))
    assert chunked.chunks == ((2, 2, 1), (4, 2))


def test_variables_to_fill() -> None:
    ds = xr.Dataset(
        {
            "series": ("time", [1.0, 2.0]),
            "label": (("y", "x"), np.full((2, 2), "a")),
            "sst": (("x", "time", "y"), np.ones((2, 2, 2)), {"ancillary_variables": "sst_error quality"}),
            "sst_error": (("y", "x"), np.ones((2, 2))),
            "quality": (("y", "x"), np.ones((2, 2), "int8")),
            "landcover": (("y", "x"), np.ones((2, 2), "int8"), {"flag_values": [0, 1]}),
            "height": (("y", "x"), np.ones((2, 2), "int16")),
        }
    )
    assert fill_variables(ds, nodata=0) == ["sst", "height"]
    # the integers have no nodata value of their own
    assert fill_variables(ds) == ["sst"]
    ds["height"].attrs["_FillValue"] = -1
    assert fill_variables(ds) == ["sst", "height"]


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
    ds = annotate(*three(source), source=source, attrs={"title": "T", "history": "made"}, **MODEL)
    assert list(ds.data_vars) == ["t", "t_standard_error", "t_fill_flag"]
    assert ds.attrs == {
        "Conventions": "CF-1.11",
        "title": "T",
        "history": "made\nfilled",
        "geonp_model": "m",
        "geonp_model_version": "1",
        "geonp_weights_sha256": "abc",
    }
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


def three(source: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    values = observed(source)
    return values.fillna(1.0), values.isnull().astype("float32"), values.isnull().astype("int64")


def test_declared_conventions_are_kept() -> None:
    source = raster([1.0, np.nan])
    ds = annotate(*three(source), source=source, attrs={"Conventions": "CF-1.6, ACDD-1.3"}, **MODEL)
    assert ds.attrs["Conventions"] == "CF-1.6, ACDD-1.3"


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


def test_integers_give_integers_back() -> None:
    ds = joined(raster([5, 0, 0], "uint16", _FillValue=0), 7.6)
    assert ds["t"].dtype == np.uint16
    assert ds["t"].values.tolist() == [[5, 8, 0]]
    assert ds["t_standard_error"].dtype == np.float32
    given_one = joined(raster([5, 0, 0], "uint16"), 7.6, nodata=0)
    assert given_one["t"].values.tolist() == [[5, 8, 0]]
    assert given_one["t"].attrs["_FillValue"] == 0


def test_large_integers_are_not_rounded() -> None:
    large = 2**62 + 1
    assert joined(raster([large, 0, 0], "int64", _FillValue=0), 1e19)["t"].values.tolist() == [[large, 2**53, 0]]


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


def test_annotate_is_lazy(computes_nothing: Any) -> None:
    source = raster(np.array([[5, 0], [6, 0]]), "int16", _FillValue=0).chunk(1)

    with computes_nothing():
        ds = annotate(*three(source), source=source, **MODEL)
    assert ds["t"].chunks == ((1, 1), (1, 1))
    assert ds["t"].values.tolist() == [[5, 1], [6, 1]]


def test_history_grows_by_lines() -> None:
    assert append_history({}, "a") == {"history": "a"}
    assert append_history({"history": "a\n", "x": 1}, "b") == {"history": "a\nb", "x": 1}
