"""Rasters of classes are filled with the most probable one, beside the probability of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rasterio
import rasterio.shutil
import torch
import xarray as xr
from click.testing import CliRunner
from rasterio.transform import from_origin

import geonp
from geonp.cli.app import main
from geonp.errors import InputError
from geonp.inference import checkpoint
from geonp.nn.models import build
from geonp.raster.variable import class_reader

CONFIG = {
    "d_x": 2,
    "d_y": 3,
    "dim": 16,
    "heads": 2,
    "blocks": 1,
    "qk_dim": 16,
    "v_dim": 16,
    "v_hidden": 0,
    "ff_dim": 16,
}
CONFIG = {**CONFIG, "embed_x": False, "likelihood": "categorical"}
NEIGHBOURHOOD = {
    "tile_px": 8,
    "halos_px": [8, 16],
    "n_context": 32,
    "min_context": 4,
    "axes": [[0.25, 0.0], [0.0, 0.25]],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A classifier with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build("tnp-kr", CONFIG)
        for p in network.parameters():
            p.data += 0.2 * torch.randn_like(p)
    file = tmp_path_factory.mktemp("weights") / "classes.safetensors"
    about = {"name": "classes", "version": "1", "description": "for tests", "training": {}, "scores": {}}
    checkpoint.save(network, file, architecture="tnp-kr", config=CONFIG, neighbourhood=NEIGHBOURHOOD, **about)
    return str(file)


@pytest.fixture
def raster() -> xr.DataArray:
    """Land cover with the values 10, 20, 30 and missing cells, 0."""
    rng = np.random.default_rng(0)
    values = rng.choice(np.array([10, 20, 30], np.uint8), (24, 20))
    values[rng.random(values.shape) < 0.4] = 0
    attrs = {"flag_values": np.array([10, 20, 30], np.uint8), "flag_meanings": "infected recovered susceptible"}
    coords = {"y": -np.arange(24.0), "x": np.arange(20.0)}
    return xr.DataArray(values, coords, ("y", "x"), "state", {**attrs, "_FillValue": np.uint8(0), "units": "1"})


def test_numbers_of_classes(raster: xr.DataArray) -> None:
    numbers = class_reader(raster)(raster.values)
    np.testing.assert_array_equal(np.isnan(numbers), raster == 0)
    np.testing.assert_array_equal(np.nan_to_num(numbers, nan=-1) * 10 + 10, raster)
    assert np.isnan(class_reader(raster, 99)(raster.values)).sum() == (raster == 0).sum()


def test_infill_gives_classes_and_their_probabilities(raster: xr.DataArray, model: str) -> None:
    out = raster.geonp.infill(model=model)
    assert list(out.data_vars) == ["state", "state_probability", "state_fill_flag"]
    missing = raster == 0
    assert out["state"].dtype == np.uint8
    assert (out["state"] == raster).where(~missing, True).all()
    assert out["state"].isin([10, 20, 30]).all()
    assert (out["state_fill_flag"] == missing).all()
    probability = out["state_probability"]
    assert probability.dims == ("category", "y", "x")
    assert list(out["category"].values) == ["infected", "recovered", "susceptible"]
    np.testing.assert_allclose(probability.sum("category"), 1.0, rtol=1e-5)
    most = out["state"].attrs["flag_values"][probability.argmax("category").values]
    assert (most == out["state"]).all()
    assert ((probability == 1.0).any("category") == ~missing).where(~missing, True).all()
    assert out["state"].attrs["ancillary_variables"] == "state_probability state_fill_flag"
    assert out.attrs["geonp_model"] == "classes"
    assert "filled by classes 1" in out.attrs["history"]


@pytest.mark.usefixtures("float32")
def test_the_prediction_is_the_model_s(raster: xr.DataArray, model: str) -> None:
    """Of one tile whose context is all that is observed; the spacing of cells is applied."""
    small = raster[:8, :8].copy()
    small.values[np.random.default_rng(1).random(small.shape) < 0.4] = 0
    network, _ = checkpoint.load_model(model)
    row, col = np.nonzero(small.values)
    target = np.argwhere(small.values == 0)
    assert len(row) <= NEIGHBOURHOOD["n_context"]
    xc, xt = (torch.tensor(a, dtype=torch.float32)[None] * 0.25 for a in (np.stack([row, col], -1), target))
    yc = torch.nn.functional.one_hot(torch.tensor(small.values[row, col] // 10 - 1).long(), 3).float()[None]
    expected = network(xc, yc, xt).probs[0].numpy()
    got = small.geonp.infill(model=model)["state_probability"].values[:, target[:, 0], target[:, 1]].T
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert np.ptp(expected, axis=0).max() > 0.05


def test_chunks_and_laziness(raster: xr.DataArray, model: str, computes_nothing: Any) -> None:
    whole = raster.geonp.infill(model=model)
    with computes_nothing():
        lazy = raster.chunk(y=7, x=9).geonp.infill(model=model)
    assert lazy["state"].chunks == raster.chunk(y=7, x=9).chunks
    np.testing.assert_allclose(lazy["state_probability"], whole["state_probability"], atol=1e-5)
    assert (lazy["state"] == whole["state"]).all()


def test_limits_and_masks_leave_cells_empty(raster: xr.DataArray, model: str) -> None:
    raster = raster.copy()
    raster[:, 8:] = 0
    mask = np.ones(raster.shape, bool)
    mask[:4] = False
    out = raster.geonp.infill(model=model, max_distance=3, mask=mask)
    flags = out["state_fill_flag"]
    assert set(np.unique(flags)) == {0, 1, 2, 3}
    empty = flags >= 2
    assert (out["state"] == 0).where(empty, True).all()
    assert out["state_probability"].isnull().any("category").where(empty, True).all()


def test_other_dimensions_and_variables(raster: xr.DataArray, model: str) -> None:
    ds = xr.concat([raster, raster[::-1].assign_coords(y=raster["y"])], "time").to_dataset()
    ds["height"] = ("y", np.arange(24.0))
    out = ds.geonp.infill(model=model)
    assert out["state_probability"].dims == ("category", "time", "y", "x")
    one = ds["state"][1].geonp.infill(model=model)
    np.testing.assert_allclose(out["state_probability"].isel(time=1), one["state_probability"], atol=1e-5)
    assert "height" in out


def test_what_cannot_be_classified(raster: xr.DataArray, model: str, tmp_path: Path) -> None:
    plain = raster.copy()
    del plain.attrs["flag_values"]
    with pytest.raises(InputError, match="No variable can be filled by a model of 3 classes: got 'state' with 0"):
        plain.geonp.infill(model=model)
    with pytest.raises(InputError, match="quantiles, tails and samples are of numbers, and the model predicts classes"):
        raster.geonp.infill(model=model, tails=True)
    stations = pd.DataFrame({"x": np.arange(9.0), "y": np.arange(9.0), "state": 1.0})
    with pytest.raises(InputError, match="the model classes is for rasters only"):
        geonp.interpolate(stations, raster, model=model)
    with pytest.raises(InputError, match="predicts classes, which are not filled into a store unit by unit"):
        raster.geonp.fill_store(tmp_path / "out.zarr", model=model)


@pytest.mark.parametrize(
    ("values", "nodata", "message"),
    [
        ("10b, 20b, 30b", None, r"flag_values of 'state' must be distinct numbers: got '10b, 20b, 30b'.*uint8"),
        ([10, 20, 20], None, r"flag_values of 'state' must be distinct numbers: got \[10, 20, 20\]"),
        ([0, 10, 20], None, r"0 is both a class \(flag_values\) and the nodata value of 'state'"),
        ([10, 20, 30], 20, r"20 is both a class \(flag_values\) and the nodata value of 'state'"),
    ],
)
def test_flag_values_that_name_no_classes(
    values: Any, nodata: float | None, message: str, raster: xr.DataArray, model: str
) -> None:
    raster.attrs["flag_values"] = values
    for call in (raster.geonp.infill, raster.geonp.plan):
        with pytest.raises(InputError, match=message):
            call(model=model, nodata=nodata)


@pytest.mark.parametrize("ending", [".nc", ".zarr"])
def test_the_command(raster: xr.DataArray, model: str, tmp_path: Path, ending: str) -> None:
    source, target = tmp_path / "in.nc", tmp_path / f"out{ending}"
    raster.to_dataset().to_netcdf(source)
    done = CliRunner().invoke(main, ["fill", str(source), str(target), "--model", model])
    assert done.exit_code == 0, done.output
    assert f"Filled {int((raster == 0).sum())} cells" in done.stdout
    with xr.open_dataset(target, engine="zarr" if ending == ".zarr" else "netcdf4", mask_and_scale=False) as out:
        assert out["state"].isin([10, 20, 30]).all()
        np.testing.assert_allclose(out["state_probability"].sum("category"), 1.0, rtol=1e-5)


def test_plans(raster: xr.DataArray, model: str) -> None:
    plan = raster.geonp.plan(model=model)
    assert plan.result_bytes == raster.size * (2 * 4 + 3 * 4 + 1)


def test_a_model_of_numbers_fills_no_classes(raster: xr.DataArray) -> None:
    message = "Variable 'state' holds classes, not numbers: got flag_values, flag_meanings, expected.*--as-numbers"
    for call in (raster.geonp.infill, raster.geonp.plan, raster.geonp.evaluate, raster.to_dataset().geonp.infill):
        with pytest.raises(InputError, match=message):
            call()
    for attrs in ({"flag_meanings": "sea land"}, {"standard_name": "area_type"}, {"standard_name": "quality_flag"}):
        with pytest.raises(InputError, match=f"got {next(iter(attrs))}, expected quantities"):
            raster.drop_attrs().assign_attrs(attrs, _FillValue=0).geonp.infill()
    thematic = raster.drop_attrs().assign_attrs(_FillValue=0, LAYER_TYPE="thematic")
    with pytest.raises(InputError, match="got a palette or table of categories"):
        thematic.geonp.infill()
    assert "state_standard_error" in thematic.assign_attrs(LAYER_TYPE="athematic").geonp.infill()


def test_classes_beside_numbers_pass_through_with_a_warning(raster: xr.DataArray) -> None:
    ds = raster.to_dataset().assign(height=raster.drop_attrs().astype("f4").where(raster > 10))
    with pytest.warns(UserWarning, match="state: classes pass through as they are.*Use a model of classes"):
        out = ds.geonp.infill()
    xr.testing.assert_identical(out["state"], ds["state"])
    assert "height_standard_error" in out
    ds["state"].attrs["standard_name"] = "status_flag"
    ds.geonp.infill()


@pytest.mark.parametrize("how", ["palette", "LAYER_TYPE", "aux.xml", "vat.dbf", "vrt"])
def test_classes_of_gdal(raster: xr.DataArray, tmp_path: Path, how: str) -> None:
    source, target = tmp_path / "in.tif", tmp_path / "out.tif"
    rows, columns = raster.shape
    with rasterio.open(
        source,
        "w",
        driver="GTiff",
        dtype="uint8",
        nodata=0,
        width=columns,
        height=rows,
        count=1,
        transform=from_origin(500_000, 5_000_000, 30, 30),
        crs="EPSG:32633",
    ) as file:
        file.write(raster.values, 1)
        if how == "palette":
            file.write_colormap(1, {10: (9, 9, 9, 255)})
        if how == "LAYER_TYPE":
            file.update_tags(1, LAYER_TYPE="thematic")
    names = "<CategoryNames><Category>sea</Category></CategoryNames>"
    if how == "aux.xml":
        text = f'<PAMDataset><PAMRasterBand band="1">{names}</PAMRasterBand></PAMDataset>'
        (tmp_path / "in.tif.aux.xml").write_text(text)
    if how == "vat.dbf":
        (tmp_path / "in.tif.vat.dbf").write_bytes(b"")
    if how == "vrt":
        rasterio.shutil.copy(source, tmp_path / "in.vrt", driver="VRT")
        source = tmp_path / "in.vrt"
        source.write_text(source.read_text().replace("</NoDataValue>", f"</NoDataValue>{names}"))
    for command in (["fill", str(source), str(target)], ["evaluate", str(source)]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1
        assert "holds classes, not numbers: got a palette or table of categories" in done.output
    assert not target.exists()
    done = CliRunner().invoke(main, ["fill", str(source), str(target), "--as-numbers"])
    assert done.exit_code == 0, done.output
