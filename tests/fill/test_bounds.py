"""infill(bounds=..., exceed=..., statistic=...): all results are of one distribution within the bounds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import xarray as xr
from rasterio.transform import from_origin
from torch import Tensor

import geonp
from geonp.errors import InputError
from geonp.fill import bounds
from geonp.fill.infill import infill
from geonp.fill.plan import plan
from geonp.fill.store import fill_store
from geonp.nn.drift_head import Prepared
from geonp.raster.nodata import units_in_memory

from ..commands import cli

pytestmark = [pytest.mark.usefixtures("float32"), pytest.mark.filterwarnings("ignore:.*of the observed values")]

ASKED: dict[str, Any] = {"quantiles": [0.025, 0.5, 0.975], "exceed": [0, 1], "tails": True}


def rain(shape: tuple[int, ...] = (28, 32), share: float = 0.4, seed: int = 0) -> xr.DataArray:
    """A field of which a part is zero, with gaps."""
    rng = np.random.default_rng(seed)
    y, x = np.indices(shape[-2:])
    latent = np.sin(y / 6) + np.cos(x / 7) + 0.2 * rng.standard_normal(shape)
    values = np.maximum(latent, 0).astype("f4") ** 2
    values[rng.random(shape) < share] = np.nan
    return xr.DataArray(values, dims=("time", "y", "x")[-len(shape) :], name="rain", attrs={"units": "mm"})


@pytest.fixture(scope="module")
def filled(float32: None) -> xr.Dataset:
    """A fill by the shipped model."""
    return rain().geonp.infill(bounds=(0, None), samples=0, **ASKED)


def test_all_results_lie_within_the_bounds(filled: xr.Dataset) -> None:
    source = rain()
    gaps = np.isnan(source.values)
    assert float(filled.rain.min()) >= 0
    assert float(filled.rain_quantile.min()) >= 0
    np.testing.assert_array_equal(filled.rain.values[~gaps], source.values[~gaps])
    assert (source.geonp.infill().rain < 0).any()
    assert filled.attrs["geonp_bounds"] == "rain: at least 0"
    assert filled.rain_exceedance.attrs["units"] == "1"
    assert filled.threshold.attrs["units"] == "mm"
    assert "rain_exceedance" in filled.rain.attrs["ancillary_variables"]


def test_all_results_are_of_one_distribution(filled: xr.Dataset) -> None:
    of = geonp.student.Distribution.of(filled, "rain")
    np.testing.assert_allclose(of.mean(), filled.rain, atol=1e-3)
    np.testing.assert_allclose(of.std(), filled.rain_standard_error, atol=1e-3)
    for level in ASKED["quantiles"]:
        np.testing.assert_allclose(of.ppf(level), filled.rain_quantile.sel(quantile=level), atol=1e-3)
    for threshold in ASKED["exceed"]:
        np.testing.assert_allclose(of.sf(threshold), filled.rain_exceedance.sel(threshold=threshold), atol=1e-3)
    observed = filled.rain_fill_flag == 0
    truth = (filled.rain > 1).where(observed)
    np.testing.assert_array_equal(filled.rain_exceedance.sel(threshold=1).where(observed), truth)


def test_the_median_on_request(filled: xr.Dataset) -> None:
    median = rain().geonp.infill(bounds=(0, None), statistic="median", **ASKED)
    gaps = median.rain_fill_flag == 1
    np.testing.assert_allclose(median.rain.where(gaps), median.rain_quantile.sel(quantile=0.5).where(gaps), rtol=1e-6)
    assert (median.rain < filled.rain).where(gaps).mean() > 0.3  # skewed
    xr.testing.assert_identical(median.rain_standard_error, filled.rain_standard_error)
    assert median.attrs["geonp_statistic"] == "median"


def test_lazy_chunked_and_stored_alike(model: str, tmp_path: Path, computes_nothing: Callable[[], Any]) -> None:
    asked = {"bounds": (0, None), "model": model, **ASKED}
    filled = rain().geonp.infill(**asked)
    with computes_nothing():
        lazy = rain().chunk(y=13, x=17).geonp.infill(**asked)
    assert list(lazy) == list(filled)
    assert all(array.chunks is not None for array in lazy.values())
    fill_store(rain().to_dataset(), tmp_path / "out.zarr", chunks=16, **asked)
    with xr.open_zarr(tmp_path / "out.zarr") as stored:
        for other in (lazy.compute(), stored.compute()):
            for name, array in filled.items():
                np.testing.assert_allclose(other[name], array, rtol=1e-3, atol=1e-4, err_msg=str(name))
            assert geonp.student.Distribution.of(other, "rain").warping is not None


def test_another_map_is_another_job(model: str, tmp_path: Path) -> None:
    source = rain().to_dataset()
    options = {"model": model, "chunks": 16}
    fill_store(source, tmp_path / "out.zarr", bounds=(0, None), **options)
    again = fill_store(source, tmp_path / "out.zarr", bounds=(0, None), resume=True, **options)
    assert again.reused == again.units
    with pytest.raises(InputError, match="not made by this job"):
        fill_store(source, tmp_path / "out.zarr", bounds=(0, 9), resume=True, **options)


def test_samples_lie_within_the_bounds(model: str) -> None:
    source = rain((16, 20), share=0.2)
    out = source.geonp.infill(model=model, bounds=(0, None), samples=3)
    sample = out.rain_sample.transpose("sample", ...)
    assert float(sample.min()) >= 0
    gaps = np.isnan(source.values)
    assert (sample.values[:, ~gaps] == source.values[~gaps]).all()
    assert sample.values[:, gaps].std(0).max() > 0


def test_slices_across_and_known_errors_have_bounds_too(drift_model: str) -> None:
    source = rain((3, 24, 24))
    errors = xr.full_like(source, 0.1).rename("sigma")
    for options in ({"across": "time"}, {"errors": errors}):
        out = source.geonp.infill(bounds=(0, None), quantiles=[0.025], model=drift_model, **options)
        assert float(out.rain.min()) >= 0
        assert float(out.rain_quantile.min()) >= 0
        assert not out.rain.isnull().any()


@pytest.mark.parametrize("bounds_", [None, (0, None)])
@pytest.mark.parametrize("across", [None, "time"])
def test_estimates_of_values_at_the_bounds_are_no_inexact_measurements(
    bounds_: tuple[float, None] | None, across: str | None, drift_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network sees all values if some are estimates, see Prepared.seen_mask."""
    found = set()
    seen_mask = Prepared.seen_mask

    def spy(prepared: Prepared, mask: Tensor, estimated: bool) -> Tensor:
        found.add(estimated)
        return seen_mask(prepared, mask, estimated)

    monkeypatch.setattr(Prepared, "seen_mask", spy)
    source = rain((3, 28, 32))
    infill(source, bounds=bounds_, across=across, errors=xr.full_like(source, 0.1), model=drift_model)
    assert found == {bounds_ is not None}


def test_bounds_of_integers_and_of_the_valid_range(model: str) -> None:
    percent = np.clip(rain().fillna(-1) * 60, -1, 100).round().astype("i2")
    percent.attrs = {"_FillValue": np.int16(-1), "valid_range": np.array([0, 100], "i2")}
    out = percent.rename("cover").geonp.infill(model=model, bounds="valid_range", quantiles=[0.01, 0.99])
    assert out.cover.dtype == np.int16
    assert float(out.cover.min()) >= 0
    assert float(out.cover_quantile.min()) >= 0
    assert float(out.cover_quantile.max()) <= 100
    assert out.attrs["geonp_bounds"] == "cover: 0 to 100"


def test_bounds_of_one_variable(model: str) -> None:
    ds = xr.Dataset({"rain": rain(), "wind": rain(seed=1) - 0.5})
    ds["wind"].attrs = {}
    out = ds.geonp.infill(model=model, bounds={"rain": (0, None)}, tails=True)
    alone = ds.geonp.infill(model=model, tails=True)
    xr.testing.assert_equal(out.wind, alone.wind)
    assert "rain_warping" in out
    assert "wind_latent" not in out


def test_thresholds_and_bounds_of_packed_values_are_doubted(model: str) -> None:
    stored = np.arange(12 * 20, dtype=np.int16).reshape(12, 20)
    stored[3:6, 4:9] = -1
    packed = xr.DataArray(stored, dims=("y", "x"), name="a", attrs={"_FillValue": np.int16(-1), "scale_factor": 0.1})
    for options in ({"exceed": [5.0]}, {"bounds": (0, None)}):
        with pytest.warns(UserWarning, match=r"a: packed .* exceed and bounds are in stored values.*xr.decode_cf"):
            geonp.plan(packed, model=model, **options)
    geonp.plan(packed.assign_attrs(valid_min=np.int16(0)), model=model, bounds="valid_range")
    with pytest.warns(UserWarning, match="a: packed .* statistics and threshold are of stored values"):
        geonp.aggregate(packed.where(packed != -1, 0), 4, "fraction", threshold=5, samples=2, model=model)
    whole = packed.assign_attrs(scale_factor=1.0, add_offset=0.0, units="m")  # as rioxarray opens all files
    assert units_in_memory(whole.attrs) == "m"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        geonp.plan(whole, model=model, exceed=[5.0], bounds=(0, None))
    with pytest.warns(UserWarning, match="landcover: filled as numbers, though the name is that of classes"):
        geonp.plan(whole.rename("landcover").drop_attrs().assign_attrs(scale_factor=1.0, _FillValue=-1), model=model)


def test_exceedance_without_bounds(model: str) -> None:
    source = rain()
    out = source.geonp.infill(model=model, exceed=[0.5], tails=True)
    of = geonp.student.Distribution.of(out, "rain")
    np.testing.assert_allclose(of.sf(0.5), out.rain_exceedance.sel(threshold=0.5), atol=1e-5)
    xr.testing.assert_equal(out.rain, source.geonp.infill(model=model).rain)
    assert (
        plan(source, model=model, exceed=[0.5]).result_bytes
        == plan(source, model=model).result_bytes + 4 * out.rain.size
    )


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("bounds", [None, (0, None)])
def test_a_threshold_is_not_exceeded_by_rounding(model: str, bounds: Any, dtype: str) -> None:
    """0.3 is 0.30000001 in float32, and 3 * 0.1 is more than it in float64."""
    source = (rain() * 0 + np.array([1, 3, 4, 5] * 20)[: rain().sizes["x"]] * 0.1).astype(dtype)
    out = source.geonp.infill(model=model, exceed=[0.3], bounds=bounds)
    found = out.rain_exceedance.sel(threshold=0.3).where(out.rain_fill_flag == 0)
    np.testing.assert_array_equal(found, (source > 0.35).where(source.notnull()))


@pytest.mark.parametrize("suffix", [".nc", ".tif", ".zarr"])
def test_the_command_line(model: str, tmp_path: Path, suffix: str) -> None:
    values = rain((24, 24)).values
    profile = {"driver": "GTiff", "dtype": "float32", "count": 1, "height": 24, "width": 24, "nodata": np.nan}
    with rasterio.open(tmp_path / "in.tif", "w", transform=from_origin(0, 24, 1, 1), crs=32633, **profile) as file:
        file.write(values, 1)
    options = ["--bounds", "0,", "--statistic", "median", "--exceed", "0,1", "--quantile", "0.1", "--model", model]
    target = tmp_path / f"out{suffix}"
    cli("fill", tmp_path / "in.tif", target, *options)
    if suffix == ".tif":
        with rasterio.open(target) as file:
            named = dict(zip(file.descriptions, file.read(), strict=True))
        assert len(named) == 6
        found = [band for name, band in named.items() if "flag" not in name]
        assert min(band.min() for band in found) >= 0
        return
    with xr.open_dataset(target, engine="zarr" if suffix == ".zarr" else "netcdf4") as out:
        name = next(str(n) for n in out if str(n).endswith("_exceedance"))
        assert out[name].sizes["threshold"] == 2
        assert float(out[name.removesuffix("_exceedance")].min()) >= 0
        assert out.attrs["geonp_statistic"] == "median"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--bounds", "zero,"], "expected LOWER,UPPER, like 0, or 0,1 or ,100, or valid_range, got 'zero,'"),
        (["--bounds", "0"], "expected LOWER,UPPER"),
        (["--bounds", "0,", "--bounds", "0,1"], "once"),
        (["--exceed", "1;2"], "expected numbers separated by commas"),
    ],
)
def test_the_command_line_refuses(tmp_path: Path, options: list[str], text: str) -> None:
    done = cli("fill", "in.tif", tmp_path / "out.tif", *options, code=2)
    assert text in done.output


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bounds": (1, 0)}, "in ascending order, got"),
        ({"bounds": (None, None)}, "bounds must be a smallest and a largest value"),
        ({"bounds": 3}, "bounds must be a smallest and a largest value"),
        ({"bounds": "valid_range"}, "declares no valid_range"),
        ({"bounds": {"snow": (0, None)}}, "bounds must name variables that are filled: got snow"),
        ({"exceed": [1, 1]}, "distinct thresholds"),
        ({"statistic": "mode"}, "statistic must be 'mean' or 'median', got 'mode'"),
    ],
)
def test_what_is_refused(model: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        infill(rain(), model=model, **options)


def test_a_pile_at_the_edge_is_a_hint(model: str) -> None:
    source = rain()
    share = float((source == 0).sum() / source.notnull().sum())
    for array, asked in (
        (source, r"the smallest.*bounds=\(0, None\)"),
        (-source, r"the largest.*bounds=\(None, -?0\)"),
    ):
        with pytest.warns(UserWarning, match=f"{share:.0%} of the observed values.*{asked}"):
            array.rename("rain").geonp.infill(model=model)


def test_a_usual_nodata_value_is_no_bound(model: str) -> None:
    source = rain() + 1
    source = source.where((source > 1) | source.isnull(), 99999)
    with pytest.warns(UserWarning, match="nodata=99999") as caught:
        source.rename("rain").geonp.infill(model=model)
    assert not any("ask for bounds" in str(one.message) for one in caught)


def test_the_command_line_gives_the_hint(model: str, tmp_path: Path) -> None:
    rain().to_dataset().to_netcdf(tmp_path / "in.nc")
    command = ["fill", str(tmp_path / "in.nc"), str(tmp_path / "out.nc"), "--model", model]
    for options, said in (([], True), (["--bounds", "0,", "--overwrite"], False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            done = cli(*command, *options)
        texts = [done.stderr, *(str(one.message) for one in caught)]
        assert any("ask for bounds=(0, None) (--bounds 0,)" in text for text in texts) == said


def test_the_sample_covers_large_rasters_evenly() -> None:
    windows = list(bounds.sample_windows((5, 3000, 4000)))
    assert len(windows) == bounds.SAMPLE.windows
    assert len({window[0] for window in windows}) == 5
    for axis, size in ((1, 3000), (2, 4000)):
        starts = np.sort([window[axis].start for window in windows])
        assert np.diff(starts, prepend=0, append=size).max() < size / 8
    assert math.prod((2, 2)) == len(list(bounds.sample_windows((64, 40))))
