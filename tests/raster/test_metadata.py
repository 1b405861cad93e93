from __future__ import annotations

import warnings
from typing import Any

import dask.array
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.raster.grid import Grid
from geonp.raster.kinds import kind_of
from geonp.raster.metadata import Kind, dataset_attrs, listed_names
from geonp.raster.nodata import declared_nodata, empty_value, observed, valid_limits
from geonp.raster.variable import fill_variables

MODEL = ("m", "1", "abc")
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def fillable(ds: xr.Dataset, nodata: float | None = None) -> list[Any]:
    return fill_variables(ds, Grid.from_xarray(ds), nodata)


def raster(values: Any, dtype: str = "float32", **attrs: Any) -> xr.DataArray:
    return xr.DataArray(np.atleast_2d(np.array(values, dtype)), dims=("y", "x"), name="t", attrs=attrs)


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


@pytest.mark.parametrize(
    ("attrs", "missing"),
    [
        ({"nodata": -9999.0}, [-9999]),
        ({"nodata": np.float32(-9999)}, [-9999]),
        ({"nodata": "-9999"}, [-9999]),
        ({"fill_value": -9999, "nodata": 1e20}, [-9999]),
        ({"nodatavals": (-9999.0,)}, [-9999]),
        ({"nodatavals": [-9999, -9999]}, [-9999]),
        ({"_FillValue": 1e20, "nodata": -9999}, [1e20]),
        ({"_FillValue": [1e20, -9999]}, [-9999, 1e20]),
        ({"nodata": "none"}, []),
        ({"nodata": None}, []),
        ({"nodata": np.nan}, []),
    ],
)
def test_attributes_of_other_libraries(attrs: dict[str, Any], missing: list[float]) -> None:
    values = [-9999.0, 1e20, 7.0]
    expected = [np.nan if value in missing else value for value in values]
    seen = observed(raster(values, **attrs))
    np.testing.assert_array_equal(seen, np.array([expected], "f4"))
    assert seen.attrs == {}


def test_other_attributes_follow_the_encoding() -> None:
    decoded = raster([0.0, 5.0], nodata=0)
    decoded.encoding["_FillValue"] = -1
    np.testing.assert_array_equal(observed(decoded), decoded)
    assert declared_nodata(raster([0, 5], "uint16", nodata=0)) == (0,)
    with pytest.raises(InputError, match=r"different nodata values by band: got nodatavals=\[-1.0, -2.0\].*nodata="):
        observed(raster([0.0], nodatavals=(-1.0, -2.0)))


def test_nodata_that_a_writer_rounded() -> None:
    lowest = float(np.finfo("f4").min)
    written = -3.40282306073709652508e38
    np.testing.assert_array_equal(observed(raster([lowest, -1e38, 2], _FillValue=written)), raster([np.nan, -1e38, 2]))
    # text of few digits, and float32 read as float64
    np.testing.assert_array_equal(observed(raster([-9999.9, -9999.8], nodata="-9999.9")), raster([np.nan, -9999.8]))
    wide = raster([np.float32(1e20), 1e19, 3], "float64", _FillValue=1e20)
    np.testing.assert_array_equal(observed(wide), raster([np.nan, 1e19, 3], "float64"))
    np.testing.assert_array_equal(observed(raster([1e-9, 0, -1e-30], _FillValue=0.0)), raster([1e-9, np.nan, -1e-30]))


def test_cells_that_netcdf_never_wrote() -> None:
    for dtype in ("float32", "float64"):
        da = raster([9.969209968386869e36, 1.0], dtype)
        np.testing.assert_array_equal(observed(da), raster([np.nan, 1.0], dtype))


@pytest.mark.parametrize("attr", ["_FillValue", "missing_value", "nodata"])
def test_nodata_beyond_float64(attr: str) -> None:
    for dtype, value in (("int64", 2**63 - 1), ("int64", 2**53 + 1), ("uint64", 2**64 - 1), ("int64", -(2**63))):
        near = value - 1 if value > 0 else value + 1
        da = raster([value, near, 5], dtype, **{attr: np.dtype(dtype).type(value)})
        assert declared_nodata(da) == (value,)
        assert empty_value(da, declared_nodata(da)) == value
        np.testing.assert_array_equal(np.isnan(observed(da)), [[True, False, False]])
        np.testing.assert_array_equal(np.isnan(observed(da.drop_attrs(), nodata=value)), [[True, False, False]])


def test_integers_without_nodata_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"'t' holds integers \(int16\) without a declared nodata value.*nodata= .*--nodata"
    ):
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
        ({"valid_min": np.inf, "valid_max": 3.0}, {}, (-np.inf, 3)),
        ({"valid_range": np.array([-1.0, 4.0]), "valid_min": 9.0}, {}, (-1, 4)),
        ({"valid_range": [0, 400]}, FLOATS, (0, 400)),
        ({"valid_range": [0, 400]}, PACKED, (5, 9)),
        ({"valid_min": [0], "valid_max": np.int16(400)}, PACKED, (5, 9)),
        ({"valid_min": np.int16(-300)}, PACKED, (2, np.inf)),
        ({"valid_max": np.int16(300)}, PACKED | {"scale_factor": [-0.01]}, (2, np.inf)),
        ({"valid_range": [0, 400]}, PACKED | {"scale_factor": -0.01}, (1, 5)),
        ({"valid_range": [5.5, 6.5]}, PACKED, (5.5, 6.5)),
        ({"valid_range": [5.5, 6.5]}, PACKED | {"scale_factor": -0.01}, (5.5, 6.5)),
        ({"valid_min": 0, "valid_max": 8.5}, PACKED, (0, 8.5)),
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


def test_the_ends_of_a_valid_range_are_valid_however_they_were_unpacked() -> None:
    stored = np.arange(-500, 501, dtype="int16")[None]
    source = xr.Dataset(
        {"t": (("y", "x"), stored, {"scale_factor": 0.01, "add_offset": 273.15, "valid_range": [-300, 300]})}
    )
    decoded = xr.decode_cf(source).t
    assert decoded.dtype.kind == "f"
    np.testing.assert_array_equal(observed(decoded).isnull().values, abs(stored) > 300)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_empty_cell_of_integers_is_no_valid_one(dtype: str) -> None:
    for limits in ({"valid_max": 100}, {"valid_min": 10}, {"valid_range": [1, 100]}):
        source = raster([1], dtype, **limits)
        empty = np.full((1, 1), empty_value(source, ()), dtype)
        assert observed(source.copy(data=empty)).isnull().all()
    assert empty_value(raster([1], dtype, valid_max=100), (7.0,)) == 7


def test_integers_with_a_valid_range_are_filled_where_nothing_else_is() -> None:
    floats, told = raster([1.0]), raster([1], "int16", valid_range=[0, 3])
    assert fillable(xr.Dataset({"a": floats, "b": told})) == ["a"]
    assert fillable(xr.Dataset({"b": told, "c": raster([1], "uint8")})) == ["b"]


@pytest.mark.parametrize("dtype", ["complex64", "<U3", "datetime64[ns]", "bool", "object"])
def test_what_is_not_real_is_refused(dtype: str) -> None:
    values = np.zeros((2, 2), dtype)
    da = xr.DataArray(values, dims=("y", "x"), name="t")
    with pytest.raises(InputError, match=r"'t' cannot be filled: got dtype .*, expected integers or floats"):
        observed(da)
    with pytest.raises(InputError, match=r"No variable can be filled: got 't' \('y', 'x'\)"):
        fillable(da.to_dataset())


class Quantity:
    """Values as of pint, sparse or CuPy: no array of NumPy."""

    def __init__(self, values: npt.NDArray[np.float64]) -> None:
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, values.ndim

    def __getitem__(self, key: Any) -> Quantity:
        return Quantity(self.values[key])

    def __array_function__(self, *_: object) -> None:
        raise AssertionError("something was computed")

    __array_ufunc__ = __array_function__


@pytest.mark.parametrize("chunked", [False, True])
def test_arrays_of_other_libraries_are_refused(chunked: bool) -> None:
    values: Any = Quantity(np.zeros((2, 2)))
    if chunked:
        values = dask.array.Array({("q", 0, 0): values}, "q", ((2,), (2,)), meta=Quantity(np.zeros((0, 0))))
    with pytest.raises(InputError, match=r"'t' cannot be filled: got values of .*, expected arrays of NumPy.*as_numpy"):
        observed(xr.DataArray(values, dims=("y", "x"), name="t"))


def test_nodata_must_be_a_number() -> None:
    with pytest.raises(InputError, match=r"'t' declares nodata values that are not numbers: got \[.*'none'"):
        observed(raster([1.0], _FillValue="none"))


def test_observed_is_lazy_and_keeps_chunks(computes_nothing: Any) -> None:
    with computes_nothing():
        chunked = observed(raster(np.ones((5, 6)), "int16", _FillValue=0).chunk({"y": 2, "x": 4}))
        assert observed(raster(np.ones((5, 6)), _FillValue=-9999.0).chunk({"y": 2})).chunks == ((2, 2, 1), (6,))
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
    assert fillable(ds, nodata=0) == ["sst", "height"]
    # the integers have no nodata value of their own
    assert fillable(ds) == ["sst"]
    ds["height"].attrs["_FillValue"] = -1
    assert fillable(ds) == ["sst", "height"]


def test_names_in_attributes_may_hold_blanks() -> None:
    assert listed_names("a b c", ["a", "b c", "a b c d"]) == ["a", "b c"]
    assert listed_names("a b  c", ["a b", "a b c"]) == ["a b c"]
    assert listed_names("b c a", [1, "a b"]) == ["b", "c", "a"]
    assert listed_names("") == []


def test_history_grows_by_lines() -> None:
    assert dataset_attrs({}, "a", *MODEL)["history"] == "a"
    assert dataset_attrs({"history": "a\n", "x": 1}, "b", *MODEL)["history"] == "a\nb"


def test_attributes_of_a_filled_dataset() -> None:
    assert dataset_attrs({"title": "T"}, "filled", *MODEL) == {
        "Conventions": "CF-1.11",
        "title": "T",
        "history": "filled",
        "geonp_model": "m",
        "geonp_model_version": "1",
        "geonp_weights_sha256": "abc",
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "CF-1.11"),
        ("CF-1.6, ACDD-1.3", "CF-1.11, ACDD-1.3"),
        ("CF-1.10", "CF-1.11"),
        ("CF-1.11", "CF-1.11"),
        ("CF-1.12", "CF-1.12"),
        ("COARDS", "CF-1.11, COARDS"),
    ],
)
def test_older_conventions_are_raised_to_those_of_the_results(before: str | None, after: str) -> None:
    attrs = {} if before is None else {"Conventions": before}
    assert dataset_attrs(attrs, "line", "m", "1", "0")["Conventions"] == after


@pytest.mark.parametrize(
    ("dtype", "attrs", "said"),
    [
        ("int16", {"slope": 0.01, "intercept": 2.0}, "slope=0.01, intercept=2"),
        ("uint16", {"ScaleFactor": np.array([0.1]), "Offset": 0.0}, "ScaleFactor=0.1 may"),
        ("int16", {"SCALE FACTOR": "0.01"}, "SCALE FACTOR=0.01"),
        ("int16", {"ScaleFactor": 1.0, "Offset": 0.0}, ""),
        ("int16", {"scale": "1:50000"}, ""),
        ("int16", {"scale_factor": 0.1, "slope": 0.01}, ""),
        ("float32", {"slope": 0.01}, ""),
    ],
)
def test_scales_of_other_names_than_those_of_cf_come_with_a_warning(
    dtype: str, attrs: dict[str, Any], said: str
) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert kind_of(raster([1, 2, 3], dtype, _FillValue=0, **attrs), None, False) is Kind.NUMBERS
    assert [f"though its attributes {said}" in str(one.message) for one in found] == [True] * (said != "")
