"""Pictures: what their panels show, and where they come from."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from matplotlib.image import imread

import geonp
from geonp.fill.panels import PICTURE

from ..commands import cli

Y, X = np.mgrid[:24, :32]
GAP = (abs(Y - 10) < 3) & (abs(X - 12) < 4)
DEGREES = {
    "y": ("y", 50 - 0.1 * np.arange(24), {"units": "degrees_north"}),
    "x": ("x", 5 + 0.1 * np.arange(32), {"units": "degrees_east"}),
}


def result(values: np.ndarray[Any, Any], **attrs: Any) -> xr.Dataset:
    """A fill as it comes out: values, standard errors and flags ``(..., y, x)``."""
    dims = ("time", "y", "x")[-values.ndim :]
    flag = np.where(GAP, 1, 0) + np.zeros(values.shape, int)
    flag[..., 0, 0] = 2
    found = {"a": (dims, np.where(flag == 2, np.nan, values), attrs), "a_fill_flag": (dims, flag.astype("int8"))}
    found["a_standard_error"] = (dims, np.where(flag == 2, np.nan, np.where(flag == 1, 0.5, 0.0)))
    return xr.Dataset(found, {**DEGREES}, {"geonp_model": "tiny"})


def images(figure: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What the maps show, by their titles."""
    figure.draw_without_rendering()
    titled = {axis.get_title(loc="left"): axis for axis in figure.axes if axis.images}
    return {title: np.ma.filled(axis.images[0].get_array().astype(float), np.nan) for title, axis in titled.items()}


def test_the_four_maps_of_a_slice() -> None:
    ds = result(Y + 0.1 * X, units="mm", long_name="Rain")
    figure = ds.geonp.plot()
    found = images(figure)
    assert list(found) == ["Observed", "Filled", "Standard error", "Flag"]
    empty = ds.a_fill_flag.values == 2
    np.testing.assert_array_equal(np.isnan(found["Observed"]), GAP | empty)
    np.testing.assert_array_equal(found["Filled"], ds.a.values)
    np.testing.assert_array_equal(np.isnan(found["Standard error"]), ~GAP)
    np.testing.assert_array_equal(found["Flag"], ds.a_fill_flag.values)
    assert figure.get_suptitle() == "Rain"
    texts = [text.get_text() for axis in figure.axes for text in axis.findobj() if hasattr(text, "get_text")]
    assert {"mm", "beyond limit\n0.1%", f"filled\n{GAP.mean():.1%}"} <= set(texts)
    assert any(text.endswith("°E") for text in texts)


@pytest.mark.parametrize(("rows", "cols"), [(24, 30), (24, 24), (16, 24), (9, 32), (24, 6)])
@pytest.mark.parametrize("values_only", [False, True])
def test_labels_lie_within_the_picture_when_it_is_first_drawn(rows: int, cols: int, values_only: bool) -> None:
    ds = (
        result(Y + 2000.0, units="mm")
        .isel(y=slice(rows), x=slice(cols))
        .assign_coords(y=5_080_000 + 125.0 * np.arange(rows), x=465_000 + 125.0 * np.arange(cols))
    )
    ds = ds[["a"]] if values_only else ds
    for coords in ({}, {"y": DEGREES["y"][1][:rows], "x": DEGREES["x"][1][:cols]}):
        placed = ds.assign_coords({name: (name, at, DEGREES[name][2]) for name, at in coords.items()})
        figure = placed.geonp.plot()
        figure.draw_without_rendering()
        inches, box = figure.get_size_inches(), figure.get_tightbbox()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= inches[0]
        assert box.y1 <= inches[1]


def test_a_slice_that_stayed_empty_says_why_and_has_no_scale_of_values() -> None:
    ds = result(np.stack([Y, Y]) + 2000.0, units="mm")
    ds = ds.where(ds.time != 1).assign(a_fill_flag=ds.a_fill_flag.where(ds.time != 1, 2).astype("int8"))
    figure = ds.geonp.plot(index={"time": 1})
    assert list(images(figure)) == ["Filled", "Flag"]
    texts = {text.get_text() for axis in figure.axes for text in axis.findobj() if hasattr(text, "get_text")}
    assert "beyond limit\n100%" in texts
    assert "mm" not in texts


def test_numbers_without_a_unit_have_no_label() -> None:
    figure = result(Y + 0.1 * X, units="1", long_name="NDVI").geonp.plot()
    assert not {axis.get_ylabel() for axis in figure.axes if not axis.images} - {""}


def test_packed_values_are_drawn_without_the_units_of_unpacked_ones() -> None:
    ds = result(Y + 0.1 * X, units="mm", long_name="Rain", scale_factor=0.01)
    texts = [text.get_text() for axis in ds.geonp.plot().axes for text in axis.findobj() if hasattr(text, "get_text")]
    assert "mm" not in texts


@pytest.mark.parametrize(
    ("values", "attrs", "colours", "limits"),
    [
        (Y + 100.0, {}, "viridis", (100, 123)),
        (Y - 11.5, {}, "RdBu_r", (-11.5, 11.5)),
        (Y * 15.0, {"standard_name": "wind_from_direction", "units": "degree"}, "twilight", (0, 360)),
    ],
)
def test_colour_maps_suit_the_values(values: Any, attrs: Any, colours: str, limits: Any) -> None:
    (image, *_) = [axis.images[0] for axis in result(values, **attrs).geonp.plot().axes if axis.images]
    assert (image.get_cmap().name, image.get_clim()) == (colours, limits)


def test_longitudes_around_the_earth_are_divided_by_ninety() -> None:
    lat, lon = np.linspace(87.5, -87.5, 36), np.arange(0, 360, 5.0)
    coords = {"lat": ("lat", lat, {"units": "degrees_north"}), "lon": ("lon", lon, {"units": "degrees_east"})}
    figure = xr.Dataset({"a": (("lat", "lon"), np.add.outer(lat, lon))}, coords).geonp.plot()
    figure.draw_without_rendering()
    (axis,) = [axis for axis in figure.axes if axis.images]
    for which, (low, high), expected in (
        (axis.xaxis, axis.get_xlim(), ["0°", "90°E", "180°", "90°W"]),
        (axis.yaxis, axis.get_ylim(), ["60°S", "0°", "60°N"]),
    ):
        shown = zip(which.get_ticklocs(), which.get_ticklabels(), strict=True)
        assert [label.get_text() for at, label in shown if low <= at <= high] == expected


def test_a_long_name_has_lines_beside_the_note_and_north_is_up() -> None:
    name = "Total precipitation (1_Hour Accumulation) @ Ground or water surface of a very long name " * 2
    northwards = {"lat": (("y", "x"), 30 + 0.1 * Y + 0.02 * X), "lon": (("y", "x"), 5 + 0.1 * X - 0.02 * Y)}
    for lat, ends in ((northwards["lat"], (-0.5, 23.5)), ((("y", "x"), 40 - northwards["lat"][1]), (23.5, -0.5))):
        coords = northwards | {"lat": lat}
        ds = result(Y + 0.1 * X, long_name=name).drop_vars(("y", "x")).assign_coords(coords)
        figure = ds.geonp.plot()
        figure.draw_without_rendering()
        title, note = figure.texts
        assert "\n" in title.get_text()
        assert title.get_text().replace("\n", " ") == name.strip()
        assert title.get_window_extent().x1 < note.get_window_extent().x0
        assert next(axis for axis in figure.axes if axis.images).get_ylim() == ends


def test_classes_have_their_names() -> None:
    classes = np.where(X < 16, 2.0, 7.0)
    ds = result(classes, flag_values=[2, 7], flag_meanings="water bare_soil").drop_vars("a_standard_error")
    figure = ds.geonp.plot()
    np.testing.assert_array_equal(images(figure)["Filled"][1:], np.where(X < 16, 0, 1)[1:])
    labels = {text.get_text() for axis in figure.axes for text in axis.findobj() if hasattr(text, "get_text")}
    assert {"water", "bare soil"} <= labels


def test_a_stack_is_a_strip_of_dates_read_in_part() -> None:
    times = np.datetime64("2020-01-01") + np.arange(50) * np.timedelta64(1, "D")
    read: list[int] = []

    def part(block: Any, block_info: Any) -> Any:
        read.append(block_info[0]["array-location"][0][0])
        return block

    ds = result(np.add.outer(np.arange(50.0), Y)).assign_coords(time=times)
    ds["a"] = ds.a.copy(data=da.map_blocks(part, da.from_array(ds.a.values, chunks=(1, 24, 32)), dtype=float))
    figure = ds.geonp.plot(slices=3)
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_title(loc="left")]
    assert titles == ["2020-01-01", "2020-01-26", "2020-02-19"] or titles == ["2020-01-01", "2020-01-25", "2020-02-19"]
    assert len(set(read)) == 3
    assert images(ds.geonp.plot(index={"time": 49}))["Filled"][1, 0] == 50
    with pytest.raises(geonp.InputError, match=r"no slice 50 along 'time', which has 50"):
        ds.geonp.plot(index={"time": 50})


def test_bands_have_their_names_alone_and_beside_each_other() -> None:
    bands = {"band": [3, 4], "band_name": ("band", np.array(["red", "nir"], object))}
    ds = xr.Dataset({"a": (("band", "y", "x"), np.stack([Y, X]) + 0.5)}, {**DEGREES, **bands})
    assert list(images(ds.geonp.plot())) == ["red", "nir"]
    assert ds.geonp.plot(index={"band": 1}).get_suptitle() == "a, band nir"
    assert ds.isel(band=[0]).geonp.plot().get_suptitle() == "a, band red"
    assert ds.drop_vars("band_name").geonp.plot(index={"band": 1}).get_suptitle() == "a, band 4"


def test_large_rasters_are_thinned_in_bounded_memory() -> None:
    side = 6 * PICTURE.side_px
    values = da.random.default_rng(0).random((side, side), chunks=500)
    ds = xr.Dataset({"a": (("y", "x"), values)})
    tracemalloc.start()
    found = images(ds.geonp.plot())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["Values"].shape == (PICTURE.side_px, PICTURE.side_px)
    assert peak < side**2 * 8 / 2


def test_pictures_from_the_command_line(tmp_path: Path, model: str) -> None:
    source = tmp_path / "in.nc"
    xr.Dataset({"a": (("y", "x"), np.where(GAP, np.nan, Y + 0.1 * X))}, DEGREES).to_netcdf(source, engine="netcdf4")
    paths = [tmp_path / name for name in ("nc.png", "zarr.png", "tif.png", "values.png", "values.tif")]
    for target, picture, *options in (
        ("o.nc", paths[0]),
        ("o.zarr", paths[1]),
        ("o.tif", None),
        ("values.tif", paths[3], "--values-only"),
    ):
        drawn = [] if picture is None else ["--picture", picture]
        command = ["fill", source, tmp_path / target, "--model", model, *drawn, *options]
        cli(*command)
    done = cli("plot", tmp_path / "o.tif", paths[2])
    assert done.output == f"Drew {paths[2]}\n"
    first = imread(paths[0])
    for path in (paths[1], paths[3]):  # the same maps, whatever the file
        assert abs(imread(path) - first).mean() < 0.01
    refused = cli("plot", source, paths[0], code=1)
    assert "The picture exists" in refused.output


def test_a_result_in_a_geotiff_keeps_its_name_and_units(tmp_path: Path) -> None:
    """It had the name of the file, and no units: those of all bands differ from those of the flags."""
    geonp.write_raster(result(Y + 100.0, units="mm"), tmp_path / "filled-2.tif")
    again = geonp.open_raster(tmp_path / "filled-2.tif")
    figure = again.geonp.plot()
    assert figure.get_suptitle() == "a"
    labels = {axis.get_title(loc="left"): axis.child_axes[0].get_ylabel() for axis in figure.axes if axis.images}
    assert labels == {"Observed": "mm", "Filled": "mm", "Standard error": "mm", "Flag": ""}
    values = again.geonp.values_only()
    assert (list(values), values.a.attrs["units"]) == (["a"], "mm")


def test_matplotlib_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(geonp.MissingExtraError, match=r"pip install 'geonp\[plot\]'"):
        result(Y * 1.0).geonp.plot()
