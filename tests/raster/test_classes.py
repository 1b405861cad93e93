"""Rasters of classes are filled with the most probable one, beside the probability of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import rasterio
import rasterio.shutil
import torch
import xarray as xr
from rasterio.transform import from_origin

import geonp
from geonp.errors import InputError
from geonp.fill.options import FillOptions
from geonp.fill.variables import normalise
from geonp.inference import checkpoint
from geonp.nn.models import build
from geonp.raster.kinds import is_classes
from geonp.raster.variable import class_reader

from ..commands import cli, with_warnings

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
    with pytest.raises(
        InputError, match="quantiles, tails, samples, exceed and bounds need numbers, but the model predicts classes"
    ):
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
    done = cli("fill", source, target, "--model", model)
    assert f"Filled {int((raster == 0).sum())} cells" in done.stdout
    with xr.open_dataset(target, engine="zarr" if ending == ".zarr" else "netcdf4", mask_and_scale=False) as out:
        assert out["state"].isin([10, 20, 30]).all()
        np.testing.assert_allclose(out["state_probability"].sum("category"), 1.0, rtol=1e-5)


def test_plans(raster: xr.DataArray, model: str) -> None:
    plan = raster.geonp.plan(model=model)
    assert plan.result_bytes == raster.size * (2 * 4 + 3 * 4 + 1)


CLASSES = np.array([11, 21, 41, 200], np.uint8)


@pytest.fixture
def cover() -> tuple[xr.DataArray, npt.NDArray[np.uint8]]:
    """A smooth class map with missing cells, 0; and without."""
    y, x = np.mgrid[:40, :48]
    truth = CLASSES[np.digitize(np.sin(y / 9) + np.cos(x / 8), [-0.6, 0.2, 1.0])]
    values = np.where(np.random.default_rng(1).random(truth.shape) < 0.6, 0, truth).astype(np.uint8)
    # files without unsigned integers have negative flag values
    attrs = {"flag_values": CLASSES.astype(np.int8), "flag_meanings": "water urban forest ice", "_FillValue": 0}
    return xr.DataArray(values, {"y": -np.arange(40.0), "x": np.arange(48.0)}, ("y", "x"), "cover", attrs), truth


def test_a_model_of_numbers_fills_classes(cover: tuple[xr.DataArray, npt.NDArray[np.uint8]], tmp_path: Path) -> None:
    raster, truth = cover
    missing = (raster == 0).values
    out = raster.geonp.infill(class_probabilities=True)
    assert list(out) == ["cover", "cover_class_probability", "cover_probability", "cover_fill_flag"]
    assert out["cover"].dtype == np.uint8
    np.testing.assert_array_equal(out["cover"].values[~missing], raster.values[~missing])
    assert (out["cover"].values == truth)[missing].mean() > 0.93
    assert out.attrs["geonp_classes"] == "cover"
    assert "cover filled as classes by tnpkr-sa" in out.attrs["history"]
    every, probability = out["cover_class_probability"], out["cover_probability"].values
    assert list(out["category"].values) == ["water", "urban", "forest", "ice"]
    np.testing.assert_allclose(every.sum("category"), 1.0, rtol=1e-5)
    assert (every.values[:, missing] > 0).all()
    np.testing.assert_allclose(every.max("category"), probability, atol=2e-3)
    hit = (out["cover"].values == truth)[missing]
    assert abs(probability[missing].mean() - hit.mean()) < 0.03
    plan = raster.geonp.plan(class_probabilities=True)
    assert plan.result_bytes == raster.size * (2 * 4 + 4 * 4 + 1)
    lazy = raster.chunk(y=17, x=30).geonp.infill(class_probabilities=True)
    assert lazy["cover"].chunks == ((17, 17, 6), (30, 18))
    np.testing.assert_allclose(lazy["cover_class_probability"], every, atol=1e-4)
    raster.geonp.fill_store(tmp_path / "out.zarr", unit=32)
    with xr.open_zarr(tmp_path / "out.zarr", mask_and_scale=False) as stored:
        np.testing.assert_array_equal(stored["cover"], out["cover"])
        np.testing.assert_allclose(stored["cover_probability"], probability, atol=1e-4)


def test_only_observed_classes_come_out(cover: tuple[xr.DataArray, npt.NDArray[np.uint8]]) -> None:
    raster, _ = cover
    single = raster.where(raster != 41, 0).where(raster != 21, 0).astype(np.uint8).assign_attrs(raster.attrs)
    out = single[:, :12].geonp.infill(class_probabilities=True)
    assert set(np.unique(out["cover"])) <= {11, 200}
    assert out.sizes["category"] == len(np.unique(single[:, :12])) - 1
    # of a single class nothing else can be filled, with Laplace's probability
    one = raster.where(raster == 11, 0).astype(np.uint8).assign_attrs(raster.attrs).geonp.infill()
    n = min(int((raster == 11).sum()), 256)
    filled = one["cover_fill_flag"].values == 1
    assert (one["cover"].values[filled] == 11).all()
    np.testing.assert_allclose(one["cover_probability"].values[filled], (n + 1) / (n + 2), rtol=1e-6)


def test_the_choice_of_classes_or_numbers(cover: tuple[xr.DataArray, npt.NDArray[np.uint8]], tmp_path: Path) -> None:
    raster, _ = cover
    numbers = raster.geonp.infill(as_="numbers")
    assert "cover_standard_error" in numbers
    plain = raster.drop_attrs().assign_attrs(_FillValue=0)[:16, :16]
    assert "cover_standard_error" in plain.geonp.infill()
    assert list(plain.geonp.infill(as_="classes")) == ["cover", "cover_probability", "cover_fill_flag"]
    floats = raster.where(raster > 0)[:16, :16].assign_attrs(standard_name="area_type")
    assert floats.geonp.infill()["cover"].isin(CLASSES).all()
    # without a nodata value, what is not listed is missing
    silent = raster.drop_attrs().assign_attrs(flag_values=CLASSES)[:16, :16]
    assert (silent.geonp.infill()["cover_fill_flag"] == (silent == 0)).all()
    many = plain.copy(data=np.arange(256, dtype=np.uint8).reshape(16, 16)).assign_attrs(flag_meanings="a b")
    assert "cover_standard_error" in many.geonp.infill()
    for options in ({"quantiles": [0.5]}, {"covariates": plain}, {"across": "y"}, {"errors": plain}, {"samples": 2}):
        with pytest.raises(InputError, match=f"{next(iter(options))} cannot be used with classes: got 'cover'"):
            raster.geonp.infill(**options)
    with pytest.raises(InputError, match="class_probabilities needs classes: got cover, which are filled as numbers"):
        plain.geonp.infill(class_probabilities=True)
    with pytest.raises(InputError, match=r"'classes' or 'counts'.*got 'flags' with circular=False"):
        raster.geonp.infill(as_="flags")
    plain_head = {**CONFIG, "d_y": 1, "likelihood": "gaussian"}
    about = {"name": "plain", "version": "1", "description": "for tests", "training": {}, "scores": {}}
    file = tmp_path / "plain.safetensors"
    network = build("tnp-kr", plain_head)
    checkpoint.save(network, file, architecture="tnp-kr", config=plain_head, neighbourhood=NEIGHBOURHOOD, **about)
    with pytest.raises(InputError, match="the model plain cannot fill classes: got 'cover'"):
        raster.geonp.infill(model=str(file))
    with pytest.raises(InputError, match="must be known before it is read to give the probabilities of all of them"):
        plain.chunk().geonp.infill(as_="classes", class_probabilities=True)
    with pytest.raises(InputError, match="holds bit fields"):
        raster.assign_attrs(flag_masks=[1, 2]).geonp.infill()
    with pytest.raises(InputError, match="Variable 'cover' holds classes, not numbers: got flag_values"):
        raster.geonp.evaluate()


@pytest.mark.parametrize("lazy", [False, True])
def test_a_class_that_is_called_no_data_is_said(lazy: bool) -> None:
    """As in the land cover of ESA's Climate Change Initiative, which declares no nodata value."""
    codes = np.where(np.eye(8) > 0, 0, 10).astype(np.uint8)
    attrs = {"flag_values": np.array([0, 10], np.uint8), "flag_meanings": "no_data cropland"}
    da = xr.DataArray(codes, dims=("y", "x"), name="lccs", attrs=attrs)
    da = da.chunk() if lazy else da
    with pytest.warns(UserWarning, match="lccs: the class 0 is called 'no_data', and counts as observed.*--nodata 0"):
        normalise(da, FillOptions())
    for said in (FillOptions(nodata=0), FillOptions(nodata=9, as_="numbers")):
        normalise(da, said)
    normalise(da.assign_attrs(_FillValue=np.uint8(0)), FillOptions())


NDVI = {"valid_range": np.array([0, 250], "u1"), "flag_values": np.array([253, 254, 255], "u1")}


@pytest.mark.parametrize(
    ("attrs", "special"),
    [
        (NDVI, True),
        ({"valid_min": 0, "valid_max": 250, "flag_values": [251, 254, 255]}, True),
        ({"valid_max": np.uint8(250), "flag_values": np.uint8(254)}, True),
        ({"valid_range": np.array([0, -6], "i1"), "flag_values": np.array([-5, -1], "i1")}, True),  # up to 250
        ({"valid_range": np.array([0, 100], "i1"), "flag_values": np.array([-5, -1], "i1")}, True),
        ({"valid_range": np.array([0, 254], "u1"), "flag_values": np.array([254, 255], "u1")}, False),
        ({"valid_range": "0, 250", "flag_values": [254]}, False),
        ({"flag_values": [254, 255]}, False),
        (NDVI | {"flag_masks": [1, 2]}, False),
    ],
)
def test_flags_beyond_the_valid_range_are_special_values_of_numbers(attrs: dict[str, Any], special: bool) -> None:
    assert is_classes(xr.DataArray(np.zeros((2, 2), "u1"), attrs=attrs)) is not special


def test_numbers_with_flags_of_sea_and_clouds_are_filled_as_numbers(tmp_path: Path) -> None:
    """As NDVI of Copernicus, and sea ice of NSIDC."""
    truth = np.round(0.02 * np.add.outer(np.arange(16), np.arange(16)) / 0.004)
    stored = truth.astype("u1")
    stored[5:9, 6:10], stored[0, 0], stored[15, 15] = 254, 253, 255
    attrs = {**NDVI, "flag_meanings": "cloud sea missing", "scale_factor": 0.004, "_FillValue": np.uint8(255)}
    xr.Dataset({"ndvi": (("y", "x"), stored, attrs)}).to_netcdf(tmp_path / "a.nc")
    with pytest.warns(UserWarning, match="ndvi: cells of cloud, sea are filled, .* beyond the valid range"):
        filled = geonp.open_raster(tmp_path / "a.nc").geonp.infill()
    np.testing.assert_allclose(filled["ndvi"], 0.004 * truth, atol=0.012)
    assert int((filled["ndvi_fill_flag"] == 1).sum()) == 18
    assert 0 < float(filled["ndvi_standard_error"].max()) < 0.02
    with pytest.warns(UserWarning, match="cells of cloud, sea"):
        assert float(xr.open_dataset(tmp_path / "a.nc").geonp.infill()["ndvi"].max()) < 0.7


def test_packed_numbers_with_flags_are_no_classes_without_a_word() -> None:
    stored = np.full((12, 12), 60, "u1")
    stored[4:6, 4:6] = 254
    attrs = {"scale_factor": 0.25, "flag_values": np.array([253, 254], "u1"), "flag_meanings": "pole land"}
    ds = xr.decode_cf(xr.Dataset({"sic": (("y", "x"), stored, attrs)}))
    with pytest.raises(InputError, match=r"'sic' has flags, .* is packed .*missing='sic=pole,land'"):
        ds.geonp.infill()
    filled = ds.geonp.infill(as_="numbers", missing="sic=pole,land")
    assert int(filled["sic_fill_flag"].sum()) == 4
    np.testing.assert_allclose(filled["sic"], 15, atol=1e-6)


def test_a_window_of_more_classes_than_can_be_told_apart_is_refused() -> None:
    values = np.arange(2304.0).reshape(48, 48)
    values[[4, 40], [4, 40]] = np.nan
    with pytest.raises(InputError, match=r"too many classes: got \d+ different values in one window.*as_='numbers'"):
        xr.DataArray(values, dims=("y", "x"), name="kind").geonp.infill(as_="classes")


def test_classes_beside_numbers_pass_through_with_a_warning(raster: xr.DataArray) -> None:
    ds = raster.to_dataset().assign(height=raster.drop_attrs().astype("f4").where(raster > 10))
    with pytest.warns(UserWarning, match="state: classes pass through as they are.*choose them alone"):
        out = ds.geonp.infill()
    xr.testing.assert_identical(out["state"], ds["state"])
    assert "height_standard_error" in out
    ds["state"].attrs["standard_name"] = "status_flag"
    ds.geonp.infill()


@pytest.mark.parametrize("how", ["palette", "LAYER_TYPE", "PCRaster", "aux.xml", "vat.dbf", "float", "vrt"])
def test_classes_of_gdal(raster: xr.DataArray, tmp_path: Path, how: str) -> None:
    source, target = tmp_path / "in.tif", tmp_path / "out.tif"
    rows, columns = raster.shape
    with rasterio.open(
        source,
        "w",
        driver="GTiff",
        dtype="float32" if how == "float" else "uint8",
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
        if how == "PCRaster":
            file.update_tags(PCRASTER_VALUESCALE="VS_NOMINAL")
    names = "<CategoryNames><Category>sea</Category></CategoryNames>"
    if how == "aux.xml":
        text = f'<PAMDataset><PAMRasterBand band="1">{names}</PAMRasterBand></PAMDataset>'
        (tmp_path / "in.tif.aux.xml").write_text(text)
    if how in ("vat.dbf", "float"):
        (tmp_path / "in.tif.vat.dbf").write_bytes(b"")
    if how == "vrt":
        rasterio.shutil.copy(source, tmp_path / "in.vrt", driver="VRT")
        source = tmp_path / "in.vrt"
        source.write_text(source.read_text().replace("</NoDataValue>", f"</NoDataValue>{names}"))
    done = cli("evaluate", source, code=1)
    assert "holds classes, not numbers: got a palette or table of categories" in done.output
    done = cli("fill", source, target, "--values-only")
    assert "filled as classes. To fill them as numbers: --as numbers" in done.stderr
    with rasterio.open(target) as file:
        assert file.dtypes == ("float32" if how == "float" else "uint8",)
        assert set(np.unique(file.read(1))) == {10, 20, 30}
        assert how != "palette" or file.colormap(1)[10] == (9, 9, 9, 255)
    if how in ("aux.xml", "vrt"):
        assert re.sub(r"\s", "", (tmp_path / "out.tif.aux.xml").read_text()).count(names) == 1
    if how in ("palette", "vrt"):
        lost = "palette" if how == "palette" else "categories"
        assert f"Left out of the output, because only a GeoTIFF (.tif) keeps it: {lost}" in with_warnings(
            "fill", source, tmp_path / "out.nc"
        )
    if how == "palette":
        done = cli("fill", source, target, "--overwrite", "--as", "numbers")
        with rasterio.open(target) as file:
            assert file.descriptions[1].endswith("standard_error")
