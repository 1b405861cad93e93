"""aggregate(): means and sums of regions, their standard errors, and what regions may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import pytest
import shapely
import xarray as xr
from rasterio import Affine
from scipy import ndimage

from geonp.errors import InputError
from geonp.fill.aggregate import aggregate
from geonp.fill.infill import infill
from geonp.inference.predictor import Predictor
from geonp.io.files import open_raster
from geonp.io.output import write_raster
from geonp.raster.grid import Grid
from geonp.raster.regions import cell_areas

from ..commands import cli
from .test_samples import field, known_process, posterior  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("float32")


def raster(lat: bool = False) -> xr.DataArray:
    """A gap of 8 x 8 cells in 16 x 20, with coordinates 10 m apart, north up, or on latitudes."""
    source = field((16, 20), np.s_[4:12, 6:14])
    if lat:
        return source.rename(y="lat", x="lon").assign_coords(lat=60.0 - np.arange(16), lon=np.arange(20.0))
    return source.assign_coords(y=155.0 - 10 * np.arange(16), x=5.0 + 10 * np.arange(20)).rio.write_crs("EPSG:32633")


def test_integers_that_stay_empty_are_left_out(model: str) -> None:
    """They hold the nodata value, which counted: the mean of values around 10 was below -20."""
    whole = (10 + raster()).round()
    gappy = whole.copy()
    gappy[:, :7] = np.nan
    stored = gappy.fillna(-99).astype(np.int16).assign_attrs(_FillValue=np.int16(-99))
    for samples in (0, 64):
        filled = infill(stored, model=model, max_distance=2, samples=samples)
        table = aggregate(filled, 20, samples=4, model=model)
        known = filled.a.where(filled.a_fill_flag <= 1)
        assert table.value[0] == pytest.approx(float(known.mean()))
        assert np.isfinite(table.standard_error[0])
        assert table["empty"][0] == int((filled.a_fill_flag == 2).sum()) > 0


@pytest.mark.usefixtures("known_process")
def test_standard_errors_are_those_of_a_known_process(model: str) -> None:
    """Of blocks of 4 cells and the whole raster, in which observed cells are known; a second fill draws the errors."""
    source = raster()
    filled = infill(source, model=model)
    _, covariance = posterior(source)
    for size in (2, 4, 20):
        table = aggregate(filled, size, samples=400, model=model)
        row, col = (part // size for part in np.indices(source.shape))
        block = row * -(-20 // size) + col
        cells = np.bincount(block.ravel())
        shares = (block[4:12, 6:14].ravel()[None] == np.arange(len(table))[:, None]) / cells[:, None]
        exact = np.sqrt(np.einsum("ri,ij,rj->r", shares, covariance, shares))
        of = table.filled.values > 0
        np.testing.assert_allclose(table.standard_error.values[of] / exact[of], 1, atol=0.2)
        assert np.log(table.standard_error.values[of] / exact[of]).mean() == pytest.approx(0, abs=0.1)
        assert (table.standard_error.values[~of] == 0).all()
        means = np.bincount(block.ravel(), filled.a.values.ravel()) / cells
        np.testing.assert_allclose(table.value, means, rtol=1e-6)
        assert table.cells.tolist() == cells.tolist()


def test_samples_in_the_raster_are_used_with_a_warning_if_few(model: str) -> None:
    filled = infill(raster(), model=model, samples=5)
    with pytest.warns(UserWarning, match="has 5 samples, which determine a standard error to within 35 %"):
        table = aggregate(filled, (16, 20))
    own = filled.a_sample.values.mean((1, 2))
    assert table.standard_error[0] == pytest.approx(own.std(ddof=1), rel=1e-6)


def test_options_without_effect_on_a_raster_with_samples_are_named(wide_tiles: str) -> None:
    filled = infill(raster(), model=wide_tiles, samples=30)
    with pytest.warns(UserWarning, match=r"^max_distance, samples: no effect, because .* has 30 samples"):
        table = aggregate(filled, 8, model=wide_tiles, max_distance=3.0, seed=1, samples=50)
    with pytest.warns(UserWarning, match=r"^model: no effect"):
        aggregate(filled, 8, model="tnpkr-sa")
    pd.testing.assert_frame_equal(table, aggregate(filled, 8, seed=0, samples=200))


def test_samples_of_other_units_than_the_values_are_refused(model: str) -> None:
    filled = infill(raster(), model=model, samples=64)
    with pytest.raises(InputError, match="The samples are not those of the values, which were changed after the fill"):
        aggregate(filled.assign(a=1.8 * filled.a + 32), 8)
    other = filled.assign({name: 10 * filled[name] for name in ("a", "a_sample", "a_standard_error")})
    one, ten = aggregate(filled, 8), aggregate(other, 8)
    np.testing.assert_allclose(ten[["value", "standard_error"]], 10 * one[["value", "standard_error"]], rtol=1e-4)


def test_a_raster_with_gaps_is_filled_first(wide_tiles: str) -> None:
    stack = xr.concat([raster(), raster() + 1], "time").assign_coords(time=pd.date_range("2020", periods=2))
    table = stack.geonp.aggregate((8, 10), samples=4, model=wide_tiles)
    assert list(table) == ["variable", "time", "region", "value", "standard_error", "cells", "filled", "empty"]
    assert table.region.tolist() == ["0,0", "0,1", "1,0", "1,1"] * 2
    later = aggregate(infill(stack, model=wide_tiles), (8, 10), samples=4, model=wide_tiles)
    np.testing.assert_allclose(table.value, later.value, rtol=1e-5)
    np.testing.assert_allclose(table.standard_error, later.standard_error, rtol=1e-3)


def test_the_fill_of_a_raster_with_gaps_is_computed_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, flags and samples each filled it anew, which took three times as long."""
    predictions: list[int] = []
    predict = Predictor.__call__

    def counted(*args: Any, **options: Any) -> Any:
        predictions.append(1)
        return predict(*args, **options)

    monkeypatch.setattr(Predictor, "__call__", counted)
    infill(raster(), model=model, samples=4)
    once = len(predictions)
    aggregate(raster(), 8, samples=4, model=model)
    assert len(predictions) == 2 * once > 0


def test_what_other_slices_tell_makes_means_more_certain(tmp_path: Path) -> None:
    """Filled across slices they are drawn across them, also those of a slice that was empty."""
    rng = np.random.default_rng(0)
    own = 0.1 * rng.standard_normal((8, 24, 24)) + np.linspace(-1, 1, 8)[:, None, None]
    values = ndimage.gaussian_filter(rng.standard_normal((24, 24)), 3) * 10 + own
    values[5], values[2, 4:16, 4:16] = np.nan, np.nan
    coords = {"time": np.arange(8.0), "y": np.arange(24.0), "x": np.arange(24.0)}
    stack = xr.DataArray(values.astype("f4"), coords, ("time", "y", "x"), name="a")
    alone, across = (
        aggregate(part, 24, samples=40, across=dim).set_index("time")
        for part, dim in ((stack[2:3], None), (stack, "time"))
    )
    assert across.standard_error[2] < 0.6 * alone.standard_error[2]
    assert np.isnan(across.standard_error[5])
    filled = infill(stack, across="time", empty_slices=True)
    later = aggregate(filled, 24, samples=40).set_index("time")
    assert later.standard_error[2] == pytest.approx(across.standard_error[2], rel=1e-3)
    assert 0.1 < later.standard_error[5] / float(filled.a_standard_error[5].mean()) < 0.95
    source, out = tmp_path / "stack.nc", tmp_path / "table.csv"
    write_raster(stack, source)
    cli("aggregate", source, "--blocks", 24, "--samples", 2, "--across", "time", "--out", out)
    assert pd.read_csv(out).value[2] == pytest.approx(across.value[2], rel=1e-5) != alone.value[2]


def test_polygons_overlap_come_in_other_crs_and_may_have_no_cell(wide_tiles: str, tmp_path: Path) -> None:
    source, (west, south) = raster(), (0.0, 0.0)
    given = {
        "all": shapely.box(west, south, 200, 160),
        "four": shapely.box(61, 81, 79, 99),
        "beside": shapely.box(900, 0, 999, 99),
    }
    with pytest.warns(UserWarning, match="1 of 3 regions have no cell in the raster: beside"):
        table = aggregate(source, given, "sum", samples=3, model=wide_tiles).set_index("region")
    filled = infill(source, model=wide_tiles).a.values
    assert table.cells.tolist() == [320, 4, 0]
    np.testing.assert_allclose(table.value[["all", "four"]], [filled.sum(), filled[6:8, 6:8].sum()], rtol=1e-5)
    assert np.isnan(table.value["beside"])
    with pytest.raises(
        InputError, match="none of the 1 regions has a cell of the raster: got regions outside of x from"
    ):
        aggregate(source, given["beside"], samples=3, model=wide_tiles)
    assert aggregate(source, given["four"], samples=3, model=wide_tiles, all_touched=True).cells[0] == 4
    assert aggregate(source, shapely.box(59, 81, 79, 99), samples=3, model=wide_tiles, all_touched=True).cells[0] == 6
    # the same polygons in degrees, from a file
    from pyproj import Transformer

    degrees = Transformer.from_crs("EPSG:32633", "EPSG:4326", always_xy=True)
    collection = {"type": "FeatureCollection", "features": []}
    for name in ("all", "four"):
        moved = shapely.transform(given[name], lambda xy: np.stack(degrees.transform(*xy.T), -1))
        what = {"type": "Feature", "properties": {"id": f"id of {name}", "name": name}}
        collection["features"].append({**what, "geometry": moved.__geo_interface__})
    file = tmp_path / "basins.geojson"
    file.write_text(json.dumps(collection))
    read = aggregate(source, file, "sum", samples=3, model=wide_tiles)
    assert read.region.tolist() == ["all", "four"]
    assert read.cells.tolist() == [320, 4]
    with pytest.raises(InputError, match="no column 'x': expected one of id, name"):
        aggregate(source, file, names="x", samples=3, model=wide_tiles)
    frame = geopandas.read_file(file)
    assert aggregate(source, frame, names="id", samples=3, model=wide_tiles).region.tolist() == [
        "id of all",
        "id of four",
    ]
    with pytest.raises(InputError, match="names is a column of regions: got 'x', which GeoDataFrame does not have"):
        aggregate(source, frame, names="x", samples=3, model=wide_tiles)
    with pytest.warns(UserWarning, match="several regions are called north: each has rows of its own"):
        table = aggregate(source, frame.assign(name="north"), names="name", samples=3, model=wide_tiles)
    assert table.cells.tolist() == [320, 4]


def test_labels_areas_and_fractions(model: str) -> None:
    source = raster(lat=True)
    labels = xr.zeros_like(source, int)
    labels[:, :7], labels[:8, 7:] = 3, 8
    filled = infill(source, model=model, samples=30)
    areas = cell_areas(source, Grid.from_xarray(source), *np.indices(source.shape).reshape(2, -1)).reshape(source.shape)
    ends = np.sin(np.deg2rad([60.5, 44.5]))
    assert areas.sum() == pytest.approx(np.deg2rad(20) * 6371008.8**2 * (ends[0] - ends[1]))
    table = aggregate(filled, labels)
    assert table.region.tolist() == [3, 8]
    inside = labels.values == 3
    assert table.value[0] == pytest.approx(np.average(filled.a.values[inside], weights=areas[inside]), rel=1e-5)
    integral = aggregate(filled, labels, "integral")
    assert integral.value[0] == pytest.approx((filled.a.values * areas)[inside].sum(), rel=1e-5)
    share = aggregate(filled, labels, "fraction", threshold=0.0)
    above = np.average(filled.a_sample.values[:, inside] > 0, weights=areas[inside], axis=1)
    assert share.value[0] == pytest.approx(above.mean())
    assert share.standard_error[0] == pytest.approx(above.std(ddof=1))
    sure = aggregate(filled, labels, "fraction", threshold=-1e9)
    assert (sure.filled > 0).any()
    assert sure.standard_error.tolist() == [0, 0]  # not the rounding of the mean of equal shares


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_threshold_is_not_exceeded_by_rounding(model: str, dtype: str) -> None:
    """0.3 is 0.30000001 in float32, and 3 * 0.1 is more than it in float64."""
    source = (xr.full_like(raster(), 0.1, float) * np.array([1, 3, 4, 5] * 5)).astype(dtype)
    share = aggregate(source, source.shape, "fraction", threshold=0.3, samples=2, model=model)
    assert share.value.item() == pytest.approx(0.5)


def test_samples_are_drawn_again_in_the_crs_of_the_raster() -> None:
    """The cells of a CRS that is not called spatial_ref counted as square."""
    y, x = 70.0 - 0.05 * np.arange(16), 10.0 + 0.05 * np.arange(20)
    source = raster().drop_vars("spatial_ref").drop_encoding().assign_coords(y=y, x=x)
    known = source.rio.write_crs("EPSG:4326")
    named = source.assign_attrs(grid_mapping="wgs").to_dataset().assign(wgs=known["spatial_ref"].variable)
    one, other = (aggregate(infill(each), 8, samples=8) for each in (named, known))
    pd.testing.assert_frame_equal(one, other)
    with pytest.warns(UserWarning, match="no CRS, and its coordinates, .* may be longitudes and latitudes"):
        square = aggregate(infill(source), 8, samples=8)
    assert (square.standard_error != one.standard_error).any()


def test_areas_are_those_of_uneven_curvilinear_and_rotated_cells(model: str) -> None:
    source = raster(lat=True)
    uneven = source.assign_coords(lat=60.0 - np.arange(16) ** 1.5, lon=np.arange(20.0) ** 2)
    y = np.sin(np.radians(np.interp(np.arange(17) - 0.5, np.arange(16), uneven.lat)))
    y[[0, -1]] = np.sin(np.radians([60.5, uneven.lat[-1] - (uneven.lat[-2] - uneven.lat[-1]) / 2]))
    x = np.radians([-0.5, *(np.arange(19) ** 2 + np.arange(1, 20) ** 2) / 2, 361 + 37 / 2])
    areas = 6371008.8**2 * np.abs(np.outer(np.diff(y), np.diff(x)))
    values = infill(uneven, model=model).a.values
    assert aggregate(uneven, 20, model=model, samples=2).value[0] == pytest.approx(np.average(values, weights=areas))
    assert aggregate(uneven, 20, "integral", model=model, samples=2).value[0] == pytest.approx((values * areas).sum())

    lat, lon = xr.broadcast(source.lat, source.lon)
    places = {"lat": (("y", "x"), lat.values), "lon": (("y", "x"), lon.values)}
    swath = xr.DataArray(source.values, places, ("y", "x"), name="a")
    for statistic in ("mean", "integral"):
        of = [aggregate(one, 8, statistic, model=model, samples=2).set_index("region") for one in (source, swath)]
        observed = of[0].filled == 0
        np.testing.assert_allclose(of[1].value[observed], of[0].value[observed], rtol=3e-3)

    bare = xr.DataArray(source.values, dims=("y", "x"), name="a")
    rotated = bare.rio.write_crs("EPSG:32633").rio.write_transform(Affine(80, 15, 0, 60, -20, 0))
    sums = aggregate(bare, 8, "sum", model=model, samples=2).value
    np.testing.assert_allclose(aggregate(rotated, 8, "integral", model=model, samples=2).value, 2500 * sums)
    with pytest.raises(InputError, match=r"'integral' needs the areas of cells: got .* no known place.*statistic sum"):
        aggregate(bare, 8, "integral", model=model, samples=2)
    coords = {"y": [5e6], "x": 5e5 + 50.0 * np.arange(8)}
    row = xr.DataArray(np.ones((1, 8)), coords, ("y", "x"), "a").rio.write_crs("EPSG:32633")
    with pytest.raises(InputError, match="got 1 x 8 cells, whose coordinates do not tell how large they are"):
        aggregate(row, 8, "integral", model=model, samples=2)
    row = row.rio.write_transform(Affine(50.0, 0.0, 5e5 - 25, 0.0, -50.0, 5e6 + 25))
    assert aggregate(row, 8, "integral", model=model, samples=2).value[0] == pytest.approx(8 * 2500)


def test_longitudes_may_differ_by_a_turn(model: str) -> None:
    source = raster(lat=True)
    source = source.assign_coords(lon=350.0 + np.arange(20)).assign_coords(lon=(350.0 + np.arange(20)) % 360)
    with pytest.warns(
        UserWarning, match=r"1 of 1 regions lie only partly in the raster, and only this part counts: 0 \(53%\)"
    ):
        table = aggregate(source, shapely.box(-10.5, 40, 3.5, 70), samples=2, model=model)
    assert table.cells[0] == 16 * 14


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"statistic": "median"}, "statistic must be one of mean, sum, integral, fraction, got 'median'"),
        ({"statistic": "fraction"}, "statistic='fraction' and threshold need each other"),
        ({"statistic": "fraction", "threshold": np.nan}, "threshold .* must be a number, got NaN"),
        ({"samples": 1}, "samples must be at least 2"),
        ({"regions": geopandas.GeoDataFrame(geometry=[], crs=32633)}, "no regions: got an empty GeoDataFrame"),
        ({"regions": []}, "there are no regions: got an empty list, expected some polygons"),
        ({"regions": {"a": 1}}, "regions are polygons, a raster of labels, or block sizes: got dict"),
        ({"regions": shapely.Point(0, 0)}, "regions must be polygons, got geometries of type Point"),
        ({"regions": np.full((16, 20), 0.5)}, "labels of regions must be whole numbers, got 0.5"),
        ({"regions": 8, "layer": "a"}, r"layer \(--layer\) cannot be used: .* got regions of type int. Leave out"),
        ({"regions": (8, 8), "names": "a", "all_touched": True}, r"names .* and all_touched .* cannot be used"),
        ({"regions": shapely.box(0, 0, 9, 9), "layer": "a"}, "layer .* cannot be used: .* type Polygon"),
        ({"regions": np.ones((2, 2), int)}, r"the regions have shape \(2, 2\), expected \(16, 20\)"),
    ],
)
def test_what_is_no_region_is_refused(model: str, given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        aggregate(raster(), **{"regions": 4, "model": model, **given})


def test_a_dimension_that_is_called_as_a_column_is_refused(model: str) -> None:
    """Its labels were lost."""
    with pytest.raises(InputError, match="the dimension 'region' has the name of a column of the result"):
        aggregate(raster().expand_dims(region=[1, 2]), 4, samples=2, model=model)


def test_the_largest_labels_keep_their_sign(model: str) -> None:
    labels = np.where(np.arange(20) < 9, 1, np.full((16, 20), 2**63 + 5, np.uint64))
    assert aggregate(raster(), labels, samples=2, model=model).region.tolist() == [1, 2**63 + 5]


def test_a_filled_raster_that_cannot_be_drawn_again_says_what_to_do(model: str) -> None:
    filled = infill(np.exp(raster()), model=model, bounds=(0, None))
    with pytest.raises(InputError, match=r"filled within bounds, a: at least 0: give the same ones.*samples=200"):
        aggregate(filled, 4, samples=2, model=model)
    with pytest.raises(InputError, match=r"filled by the model 'tiny'.*model="):
        aggregate(filled, 4, samples=2, bounds=(0, None))
    assert aggregate(filled, 8, samples=2, bounds=(0, None), model=model).standard_error.notna().all()
    again = filled.assign_attrs(geonp_covariates="height")
    del again.attrs["geonp_bounds"]
    with pytest.raises(
        InputError, match=r"with covariates, on which .* give the same, height \(covariates=.*--covariate"
    ):
        aggregate(again, 4, samples=2, model=model)
    classes = infill(raster().round(), as_="classes")
    with pytest.raises(InputError, match=r"'a' has no standard errors .*: classes have none"):
        aggregate(classes, 4, samples=2)
    source = raster()
    elsewhere = infill(source, at=source.assign_coords(x=source.x + 3), model=model)
    with pytest.raises(InputError, match=r"'a' has no observed cells, .* or fill on the grid of the raster"):
        aggregate(elsewhere, 4, samples=2, model=model)
    with pytest.raises(InputError, match="but has no fill flags"):
        aggregate(filled[["a"]], 4, samples=2)


def test_a_result_in_the_bands_of_a_geotiff_is_that_result(model: str, tmp_path: Path) -> None:
    filled = infill(raster().rio.write_crs("EPSG:32633").to_dataset(name="a"), model=model)
    write_raster(filled, tmp_path / "filled.tif")
    expected = aggregate(filled, 8, samples=2, model=model)
    pd.testing.assert_frame_equal(
        aggregate(open_raster(tmp_path / "filled.tif"), 8, samples=2, model=model), expected, rtol=1e-5
    )


def test_samples_in_the_bands_of_a_geotiff_are_used(wide_tiles: str, tmp_path: Path) -> None:
    """They were left aside without a word: others were drawn, or refused for a fill within bounds."""
    filled = infill(np.exp(raster()).to_dataset(name="a"), model=wide_tiles, samples=30, bounds=(0, None))
    write_raster(filled, tmp_path / "filled.tif")
    pd.testing.assert_frame_equal(aggregate(open_raster(tmp_path / "filled.tif"), 8), aggregate(filled, 8), rtol=1e-5)
    stack = xr.concat([raster(), raster() + 1], "time").to_dataset(name="a")
    filled = infill(stack, model=wide_tiles, samples=30, quantiles=[0.1])
    write_raster(filled, tmp_path / "stack.tif")
    table = aggregate(open_raster(tmp_path / "stack.tif"), 8)
    assert table.pop("slice").unique().tolist() == ["time=0", "time=1"]
    pd.testing.assert_frame_equal(table, aggregate(filled, 8).drop(columns="time"), rtol=1e-5)


def test_the_command_writes_the_table_of_the_function(wide_tiles: str, tmp_path: Path) -> None:
    source, out = tmp_path / "filled.zarr", tmp_path / "table.csv"
    write_raster(infill(raster(), model=wide_tiles, samples=30), source)
    command = ["aggregate", source, "--blocks", 8, "--out"]
    cli(*command, out)
    expected = aggregate(open_raster(source), 8)
    pd.testing.assert_frame_equal(pd.read_csv(out), expected, check_dtype=False, rtol=1e-5)
    assert (expected.standard_error > 0).any()
    assert "The output exists" in cli(*command, out, code=1).output
    assert "Expected an existing, writable folder" in cli(*command, tmp_path / "no" / "table.csv", code=1).output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["filled.zarr", "table.csv"]
