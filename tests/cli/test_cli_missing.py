"""Values under flags on the command line: layers of the input and of other files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
import xarray as xr
from rasterio.transform import from_origin

import geonp

from ..commands import says, with_warnings

SIDE = 24
CLOUD = np.zeros((SIDE, SIDE), bool)
CLOUD[6:10, 8:14] = True
VALUES = (1000 + 10 * np.add.outer(np.arange(SIDE), np.arange(SIDE))).astype(np.uint16)


def write(path: Path, bands: dict[str, np.ndarray], nodata: float | None = 0, step: float = 10) -> Path:
    first = next(iter(bands.values()))
    profile = {"crs": "EPSG:32633", "transform": from_origin(5e5, 5e6, step, step), "nodata": nodata}
    shape = {"count": len(bands), "height": first.shape[0], "width": first.shape[1], "dtype": first.dtype}
    with rasterio.open(path, "w", driver="GTiff", **shape, **profile) as file:
        file.write(np.stack(list(bands.values())))
        file.descriptions = tuple(bands)
    return path


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Two bands and their scene classification in one file, the latter also in files of its own."""
    scl = np.where(CLOUD, 9, 4).astype(np.uint16)
    write(tmp_path / "scl20.tif", {"scl": scl[::2, ::2].astype(np.uint8)}, None, step=20)
    flags = xr.Dataset({"scl": (("y", "x"), scl), "other": (("y", "x"), 0 * scl)})
    flags.assign_coords(y=5e6 - 5 - 10 * np.arange(SIDE), x=5e5 + 5 + 10 * np.arange(SIDE)).to_netcdf(
        tmp_path / "flags.nc", engine="netcdf4"
    )
    return write(
        tmp_path / "s2.tif", {"B03": np.where(CLOUD, 9999, VALUES), "B04": np.where(CLOUD, 9000, VALUES), "SCL": scl}
    )


@pytest.mark.parametrize(
    ("conditions", "bands"),
    [
        (["SCL=8,9"], ()),
        (["sentinel-2"], ()),
        (["SCL=cloud_high_probability"], (1, 2)),
        (["{}/s2.tif:3=9"], (1, 2)),
        (["{}/s2.tif:SCL=9"], (1, 2)),
        (["{}/scl20.tif=8,9"], (1, 2)),
        (["{}/flags.nc:scl=9", "{}/flags.nc:other"], (1, 2)),
    ],
)
@pytest.mark.parametrize("name", ["out.tif", "out.zarr"])
@pytest.mark.filterwarnings("ignore:The layer 'scl' has 12 x 12 cells")
def test_layers(scene: Path, model: str, conditions: list[str], bands: tuple[int, ...], name: str) -> None:
    out = scene.with_name(name)
    given = [part for text in conditions for part in ("--gaps-where", text.format(scene.parent))]
    summary = json.loads(says("fill", scene, out, *given, *(f"-b{n}" for n in bands), "--model", model, "--json", "-q"))
    assert summary["cells_filled"] == 2 * CLOUD.sum()
    if name == "out.tif":
        with rasterio.open(out) as file:
            assert [text.split()[-1] for text in file.descriptions[:2]] == ["B03", "B04"]
            found = file.read([1, 2])
    else:
        found = xr.open_zarr(out)["s2"].values
    assert (found[:, ~CLOUD] == VALUES[~CLOUD]).all()
    assert found.max() < 3000


def test_python_and_the_command_line_agree_on_errors(scene: Path, model: str) -> None:
    said = says("fill", scene, scene.with_name("b.tif"), "--gaps-where", "SLC=3", "--model", model, code=1)
    assert "The raster has no layer 'SLC' for the condition 'SLC=3': expected one of s2, B03, B04, SCL." in said
    said = says("fill", scene, scene.with_name("b.tif"), "--gaps-where", f"{scene}=3", "--model", model, code=1)
    assert "got B03, B04, SCL, 1, 2, 3, expected one. Name it: FILE:VARIABLE, FILE:BAND or FILE:DESCR" in said


def test_the_output_keeps_apart_from_the_layers(scene: Path, model: str) -> None:
    store = scene.with_name("flags.zarr")
    xr.open_dataset(scene.with_name("flags.nc"), engine="netcdf4").to_zarr(store)
    given = ("--overwrite", "-b1", "--gaps-where", f"{store}:scl=9", "--model", model)
    assert "layer of flags" in says("fill", scene, store, *given, code=1)


def test_what_is_under_clouds_is_no_truth(scene: Path, model: str) -> None:
    given = ("--gaps-where", "SCL=9", "-b", 2, "--model", model, "--baseline", "nearest", "--json")
    scores = json.loads(says("evaluate", scene, *given))
    assert scores["observed_cells"] == SIDE**2 - CLOUD.sum()


def test_masks_are_variables_bands_and_polygons(scene: Path, model: str) -> None:
    pyogrio, shapely = pytest.importorskip("pyogrio"), pytest.importorskip("shapely")
    valid = np.ones((SIDE, SIDE), np.uint8)
    valid[:8] = 0
    y, x = 5e6 - 5 - 10 * np.arange(SIDE), 5e5 + 5 + 10 * np.arange(SIDE)
    masks = xr.Dataset({"land": (("y", "x"), 1 - valid), "sea": (("y", "x"), valid)}, {"y": y, "x": x})
    masks.to_netcdf(scene.with_name("masks.nc"), engine="netcdf4")
    wkb = shapely.to_wkb([shapely.box(5e5, 5e6 - 240, 5e5 + 240, 5e6 - 80)])
    gpkg = scene.with_name("sea.gpkg")
    pyogrio.raw.write(gpkg, wkb, field_data=[], fields=[], geometry_type="Polygon", crs="EPSG:32633", layer="sea")
    with rasterio.open(scene) as file:
        profile = file.profile | {"count": 2, "dtype": "uint8", "nodata": None}
    with rasterio.open(scene.with_name("masks.tif"), "w", **profile) as file:
        file.write(np.stack([1 - valid, valid]))
        file.descriptions = ("land", "sea")
    given = ("--gaps-where", "SCL=9", "-b", 1, "--model", model, "--json", "-q", "--overwrite")
    for mask in ("masks.nc:sea", "sea.gpkg", "sea.gpkg:sea", "masks.tif:2", "masks.tif:sea"):
        summary = json.loads(says("fill", scene, scene.with_name("c.tif"), *given, "--mask", scene.with_name(mask)))
        assert (summary["cells_filled"], summary["variables"]["s2"]["outside_domain"]) == (12, 12), mask
    said = says("fill", scene, scene.with_name("c.tif"), *given, "--mask", scene.with_name("masks.nc"), code=1)
    assert "got land, sea, expected one. Name it: FILE:VARIABLE" in said
    store = scene.with_name("masks.zarr")
    masks.to_zarr(store)
    assert "mask" in says("fill", scene, store, *given, "--mask", f"{store}:sea", code=1)
    assert store.exists()


def test_holes_and_sizes(scene: Path, model: str) -> None:
    given = ("--gaps-where", "SCL=9", "-b", 1, "--model", model, "--json", "-q", "--overwrite")
    for option, filled in ((("--max-gap", 3), 0), (("--max-gap", 4), 24), (("--holes",), 24)):
        summary = json.loads(says("fill", scene, scene.with_name("c.tif"), *given, *option))
        assert summary["cells_filled"] == filled, option


def test_info_and_plans_say_what_would_be_filled_and_why(scene: Path, model: str) -> None:
    says("fill", scene, scene.with_name("c.nc"), "--gaps-where", "SCL=9", "--model", model, "-q")
    facts = json.loads(says("info", scene, "--gaps-where", "SCL=9", "--json"))["variables"]["s2"]
    assert (facts["missing"], facts["flagged"], facts["would_be_filled"]) == (48, 48, True)
    assert facts["because"] == "48 cells are missing, 48 of them by flags"
    assert "would be filled     no, nothing is missing" in says("info", scene, "-b1", "-b2")
    said = says("info", scene.with_name("flags.nc"), "--gaps-where", "scl=9")
    assert "would be filled  no, its flags apply to other variables" in said
    planned = ("--model", model, "--dry-run")
    for name in ("d.zarr", "d.nc"):
        plan = json.loads(says("fill", scene, scene.with_name(name), *planned, "--gaps-where", "SCL=9", "--json"))
        assert (plan["missing"], plan["flagged"]) == ({"s2": 48}, {"s2": 48})
        assert "48 cells of s2, 48 by flags" in says("fill", scene, name, *planned, "--gaps-where", "SCL=9")
        assert "nothing in s2" in says("fill", scene, name, *planned, "-b1")


@pytest.mark.parametrize("name", ["out.nc", "out.zarr"])
def test_land_under_a_stack_is_named(tmp_path: Path, model: str, name: str) -> None:
    values = np.random.default_rng(0).random((3, 20, 24))
    values[:, 4:12, 5:15] = values[0, 14:16, 3:9] = np.nan
    time = np.array(["2020-01-01", "2020-01-02", "2020-01-05"], "M8[ns]")
    for coords, times in (({"time": time}, True), ({}, False)):
        stack = xr.Dataset({"sst": (("time", "y", "x"), values)}, coords)
        stack.to_netcdf(source := tmp_path / f"in{times}.nc", engine="netcdf4")
        given = ("fill", source, tmp_path / f"{times}{name}", "--model", model, "--overwrite", "--no-progress")
        land = "Warning: sst: 240 of 252 filled cells are observed in none of the 3 slices, such as land"
        assert (land in with_warnings(*given)) == times


@pytest.mark.parametrize("name", ["out.nc", "out.zarr"])
def test_land_under_one_date_of_the_sea_is_named(tmp_path: Path, model: str, name: str) -> None:
    lat, lon = np.arange(40, -41, -4.0), np.arange(0, 120, 4.0)
    values = np.random.default_rng(0).random((21, 30))
    land = ((lat[:, None] > 12) & (lon < 36)) | ((lat[:, None] > 24) & (lon > 60))  # Sahara and Asia
    cloud = (abs(lat[:, None] + 20) < 8) & (abs(lon - 60) < 20)
    sst = xr.DataArray(np.where(land | cloud, np.nan, values), {"lat": lat, "lon": lon}, name="sst")
    sst.attrs["standard_name"] = "sea_surface_temperature"
    ocean = xr.DataArray((~land).astype("u1"), sst.coords, name="ocean")
    lakes = sst.copy(data=np.where(land & (values < 0.3), values, sst))
    ocean.to_netcdf(tmp_path / "mask.nc", engine="netcdf4")
    named = (
        "'sea_surface_temperature' is a quantity of the sea, but cells on land are filled, such as those in the Sahara"
    )

    def printed(raster: xr.DataArray, *options: object) -> str:
        raster.to_netcdf(tmp_path / "in.nc", engine="netcdf4")
        given = ("fill", tmp_path / "in.nc", tmp_path / name, "--model", model, "--overwrite", "--no-progress")
        return with_warnings(*given, *options)

    if name == "out.nc":
        with pytest.warns(UserWarning, match="quantity of the sea, but cells on land are filled, .* the Sahara, China"):
            geonp.infill(sst, model=model)
        geonp.infill(sst, model=model, mask=ocean.astype(bool))  # warnings are errors
        geonp.infill(lakes, model=model)
    said = printed(sst)
    assert f"{named}, China. To leave land empty: --mask FILE (mask=)." in said
    assert "filled, such as those in North America. To leave" in printed(sst.assign_coords(lon=lon + 180))
    for raster, options in (
        (sst, ("--mask", tmp_path / "mask.nc")),
        (sst.drop_attrs(), ()),
        (sst.assign_attrs(standard_name="air_pressure_at_mean_sea_level"), ()),
        (sst.sel(lat=slice(8, None)), ()),
        (lakes, ()),
    ):
        assert "quantity of the sea" not in printed(raster, *options)


def test_flags_are_in_the_group_of_the_variable(tmp_path: Path) -> None:
    """As in Sentinel-5P, which has rasters in several groups."""
    product = xr.Dataset({"no2": (("y", "x"), np.ones((8, 8))), "qa": (("y", "x"), np.eye(8))})
    source = tmp_path / "a.nc"
    xr.DataTree.from_dict({"product": product, "support": product[["no2"]]}).to_netcdf(source)
    facts = json.loads(says("info", source, "--variable", "product/no2", "--gaps-where", "qa=1", "--json"))
    assert facts["variables"]["no2"]["missing"] == 8
