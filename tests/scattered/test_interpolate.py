"""interpolate(): scattered measurements to grids and places."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from pyproj import CRS
from scipy.interpolate import LinearNDInterpolator

import geonp
from geonp.errors import InputError
from geonp.inference import stitching
from geonp.io.doubtful_rows import warn_of_doubtful_rows
from geonp.io.measurements import read_table
from geonp.raster.grid import Grid
from geonp.scattered.lattices import lattice, lattice_around

from ..commands import cli, with_warnings


def wave(x: Any, y: Any) -> Any:
    return np.sin(x / 9) * np.cos(y / 7) + 0.02 * x


def measurements(n: int = 400, noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 50, (2, n))
    return pd.DataFrame({"x": x, "y": y, "value": wave(x, y) + noise * rng.standard_normal(n)})


@pytest.fixture(scope="module")
def gridded(float32: None) -> xr.Dataset:
    return geonp.interpolate(measurements(noise=0.1), lattice((0, 0, 50, 50), 2), quantiles=[0.25, 0.75], tails=True)


@pytest.fixture(scope="module")
def roughly(float32: None, drift_model: str) -> xr.Dataset:
    """The same by a small model, for what does not depend on it."""
    return geonp.interpolate(measurements(noise=0.1), lattice((0, 0, 50, 50), 2), model=drift_model)


@pytest.mark.parametrize(("name", "warns"), [("landcover", True), ("WorldCover", True), ("depth", False)])
def test_classes_in_a_table_are_not_interpolated_without_a_word(name: str, warns: bool) -> None:
    table = measurements(40).assign(value=np.arange(40) % 4).rename(columns={"value": name})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        geonp.interpolate(table, lattice((0, 0, 50, 50), 10))
    expected = f"{name}: interpolated as numbers, though the name is that of classes"
    assert any(expected in str(warning.message) for warning in caught) is warns


def test_a_grid_is_filled_with_honest_errors(gridded: xr.Dataset) -> None:
    truth = wave(gridded.x, gridded.y)
    off = gridded["value"] - truth
    table = measurements(noise=0.1)
    linear = LinearNDInterpolator(table[["x", "y"]], table["value"])(*np.meshgrid(gridded.x, gridded.y)) - truth.T
    assert float(np.sqrt((off**2).mean())) < 0.06
    assert float(np.sqrt((off**2).mean())) < 0.9 * float(np.sqrt(np.nanmean(linear**2)))
    noisy = off + 0.1 * np.random.default_rng(1).standard_normal(off.shape)
    share = float((abs(noisy) < 1.96 * gridded["value_standard_error"]).mean())
    assert 0.9 < share < 0.99
    assert (gridded["value_fill_flag"] == 1).all()
    assert set(gridded.data_vars) == {
        f"value{part}" for part in ("", "_standard_error", "_quantile", "_tail", "_fill_flag")
    }
    assert gridded["value"].attrs["ancillary_variables"].startswith("value_standard_error")
    assert "interpolate: value at 400 places" in gridded.attrs["history"]


def test_half_of_new_measurements_lie_between_the_quartiles(gridded: xr.Dataset) -> None:
    new = wave(gridded.x, gridded.y) + 0.1 * np.random.default_rng(2).standard_normal((25, 25))
    low, high = gridded["value_quantile"].transpose("quantile", ...)
    between = ((new.transpose("y", "x") > low) & (new.transpose("y", "x") < high)).mean()
    assert 0.42 < float(between) < 0.6


def test_a_lazy_grid_computes_nothing_and_gives_the_same(roughly: xr.Dataset, drift_model: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("computed")

    grid = lattice((0, 0, 50, 50), 2)
    with dask.config.set(scheduler=refuse):
        lazy = geonp.interpolate(measurements(noise=0.1), grid.chunk({"y": 10, "x": 18}), model=drift_model)
    assert lazy["value"].chunks == ((10, 10, 5), (18, 7))
    error = roughly["value_standard_error"]
    assert float((abs(lazy["value"] - roughly["value"]) / error).max()) < 1e-3
    assert float((lazy["value_standard_error"] / error - 1).__abs__().max()) < 1e-3


def test_a_table_of_places_gives_what_the_grid_gives(roughly: xr.Dataset, drift_model: str) -> None:
    places = pd.DataFrame({"x": roughly.x.values[[3, 15]], "y": roughly.y.values[[20, 7]]})
    found = geonp.interpolate(measurements(noise=0.1), places, model=drift_model)
    assert found["value"].dims == ("point",)
    expected = roughly["value"].values[[20, 7], [3, 15]]
    np.testing.assert_allclose(found["value"], expected, atol=1e-3)
    np.testing.assert_array_equal(found.x, places["x"])


def test_rows_can_come_in_any_order_and_with_gaps(roughly: xr.Dataset, drift_model: str) -> None:
    table = measurements(noise=0.1).sample(frac=1, random_state=1)
    empty = pd.DataFrame({"x": [1.0, np.nan, 3.0], "y": [1.0, 2.0, 3.0], "value": [np.nan, 1.0, np.inf]})
    found = geonp.interpolate(pd.concat([empty, table]), lattice((0, 0, 50, 50), 2), model=drift_model)
    np.testing.assert_allclose(found["value"], roughly["value"], atol=1e-4)


def test_units_and_offsets_of_places_do_not_matter(roughly: xr.Dataset, drift_model: str) -> None:
    table = measurements(noise=0.1).assign(x=lambda t: 1000 * t.x + 4e5, y=lambda t: 1000 * t.y + 5e6)
    found = geonp.interpolate(table, lattice((4e5, 5e6, 4.5e5, 5.05e6), 2000), model=drift_model)
    off = abs(found["value"].values - roughly["value"].values) / roughly["value_standard_error"].values
    assert off.max() < 0.01


def test_a_max_distance_counted_in_cells_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="max_distance=9 is less than half a cell .* whose steps are 20"):
        geonp.interpolate(measurements(30), lattice((0, 0, 80, 40), 20), max_distance=9)
    geonp.interpolate(measurements(30), lattice((0, 0, 80, 40), 20), max_distance=10)
    places = measurements(30).rename(columns={"x": "lon", "y": "lat"})
    with pytest.warns(UserWarning, match="max_distance=30000 reaches around the Earth, .* in degrees"):  # of metres
        geonp.interpolate(places, lattice((0, 0, 40, 40), 20, "EPSG:4326"), max_distance=30000)


def test_max_distance_leaves_far_cells_empty() -> None:
    found = geonp.interpolate(measurements(30), lattice((0, 0, 80, 40), 2), max_distance=6)
    flag = found["value_fill_flag"]
    assert set(np.unique(flag)) == {1, 2}
    np.testing.assert_array_equal(np.isnan(found["value"]), flag == 2)
    assert (flag.sel(x=slice(60, None)) == 2).all()


def test_longitudes_go_round() -> None:
    """Stations around the date line, as they are and turned by 180 degrees."""
    rng = np.random.default_rng(0)
    lon, lat = rng.uniform(-15, 15, 300), rng.uniform(50, 75, 300)
    value = np.sin(np.radians(lon) * 6) + lat / 10
    places = pd.DataFrame({"lon": np.linspace(-14, 14, 15), "lat": 60.0})
    here = geonp.interpolate(pd.DataFrame({"lon": lon, "lat": lat, "t": value}), places)
    there = geonp.interpolate(
        pd.DataFrame({"lon": (lon + 360) % 360 - 180, "lat": lat, "t": value}),
        places.assign(lon=(places["lon"] + 360) % 360 - 180),
    )
    turned = np.sin(np.radians(places["lon"]) * 6) + 6.0
    for found in (here, there):
        assert np.sqrt(np.mean((found["t"].values - turned) ** 2)) < 0.1
    np.testing.assert_allclose(here["t"], there["t"], atol=0.1)


def test_points_are_moved_to_the_reference_system_of_the_grid() -> None:
    rng = np.random.default_rng(0)
    lon, lat = rng.uniform(9, 10, 200), rng.uniform(50, 50.6, 200)
    table = pd.DataFrame({"lon": lon, "lat": lat, "height": 100 * lat})
    grid = lattice((5e5, 5.54e6, 5.6e5, 5.6e6), 5e3, "EPSG:32632")
    found = geonp.interpolate(table, grid)
    middle = found["height"].isel(y=6, x=6)
    assert abs(float(middle) - 100 * 50.26) < 1.5  # 27.5 km and 32.5 km from the corner
    assert found["height"].encoding["grid_mapping"] == "spatial_ref"


@pytest.mark.parametrize("form", ["variable", "coordinate", "attribute", "Zarr"])
def test_the_reference_system_of_the_grid_is_kept(form: str) -> None:
    """It was lost unless it was a coordinate called spatial_ref."""
    lattice_ = lattice((0, 0, 40, 40), 10)
    at = lattice_.to_dataset(name="z")
    if form == "Zarr":
        at.attrs["proj:code"] = "EPSG:32632"
    elif form == "attribute":
        at["z"].attrs["crs"] = "EPSG:32632"
    else:
        at["z"].attrs["grid_mapping"], at["utm"] = "utm", ((), 0, CRS.from_epsg(32632).to_cf())
        at = at.set_coords("utm") if form == "coordinate" else at
    x, y = (axis.ravel() for axis in np.mgrid[:40:8, :40:8])
    table = pd.DataFrame({"x": x, "y": y, "t": x + y, "day": np.repeat([1, 2], [12, 13])})
    for options in ({}, {"time": "day"}):
        found = geonp.interpolate(table, at, values="t", **options)
        assert all(CRS(Grid.from_xarray(found[name]).crs or "EPSG:4326").to_epsg() == 32632 for name in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.rename(columns={"x": "a"}), "name the column of the coordinate x with x="),
        (
            lambda t: t.assign(other=1.0),
            r"choose the columns to interpolate with values=.*numeric columns \['value', 'other'\]",
        ),
        (lambda t: t.assign(value="high"), "choose the columns to interpolate with values=.*no numeric column"),
        (
            lambda t: t.assign(value=["-", *["1"] * 19]),
            "no numeric column besides the coordinates, and 'value' holds '-'",
        ),
        (lambda t: t[:3], "has 3 measurements with a finite value and place, expected at least 4"),
        (lambda t: t.to_numpy(), "points must be a pandas DataFrame or an xarray Dataset, got ndarray"),
        (lambda t: t["value"], "got Series of pandas; convert it, as with compute"),
    ],
)
def test_bad_tables_are_refused(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        geonp.interpolate(change(measurements(20)), lattice((0, 0, 50, 50), 5))


def test_other_bad_input_is_refused() -> None:
    table, grid = measurements(20), lattice((0, 0, 50, 50), 5)
    with pytest.raises(InputError, match="the table has no column 'rain'"):
        geonp.interpolate(table, grid, values="rain")
    with pytest.raises(InputError, match="column 'x' is a coordinate: expected another column to interpolate"):
        geonp.interpolate(table, grid, values="x")
    with pytest.raises(InputError, match=r"values \(--value\) has the column 'value' twice: expected each column once"):
        geonp.interpolate(table, grid, values=["value", "value"])
    places = table.rename(columns={"x": "lon", "y": "lat"})
    with pytest.raises(InputError, match="x must be the longitude and y the latitude: got x='lat' and y='lon'"):
        geonp.interpolate(places, grid, x="lat", y="lon")
    with pytest.raises(
        InputError, match=r"'lon' and 'lat' are degrees, but crs is WGS 84 / UTM zone 32N, which is proj"
    ):
        geonp.interpolate(places, lattice((0, 0, 50, 50), 5, "EPSG:32632"), crs="EPSG:32632")
    with pytest.raises(InputError, match=r"at must be a raster, .* or a table of places, got tuple"):
        geonp.interpolate(table, (0, 1))  # type: ignore[arg-type]
    far = table.assign(x=table.x + 5e5)
    with pytest.raises(
        InputError, match=r"no place .* lies in its crs, WGS 84: got x and y such as \[50.*\. Correct crs"
    ):
        geonp.interpolate(far, lattice((0, 0, 50, 50), 5, "EPSG:32632"), crs="EPSG:4326")
    with pytest.raises(InputError, match="crs is unknown: got 'EPSG:x'"):
        geonp.interpolate(table, lattice((0, 0, 50, 50), 5, "EPSG:32632"), crs="EPSG:x")
    with pytest.raises(InputError, match="the places have a crs, but the grid has none"):
        geonp.interpolate(table, grid, crs="EPSG:32632")
    with pytest.raises(InputError, match=r"a latitude of 120, expected -90 to 90; check whether x and y are exchanged"):
        geonp.interpolate(table.assign(y=table.y + 120 - table.y.max()), lattice((0, 0, 9, 9), 1, "EPSG:4326"))
    with pytest.raises(InputError, match="west < east"):
        lattice((5, 0, 0, 5), 1)
    with pytest.raises(InputError, match="west < east"):
        lattice((5, 0, -10, 5), 1, "EPSG:4326")
    assert lattice((170, 0, -170, 5), 5, "EPSG:4326")["lon"].values.tolist() == [172.5, 177.5, 182.5, 187.5]
    with pytest.raises(InputError, match=r"a resolution of 1e-07 gives 2\.5e\+15 cells for bounds 0 0 5 5 in units"):
        lattice((0, 0, 5, 5), 1e-7)
    with pytest.raises(
        InputError, match=r"cells at latitude 97\.5, beyond the pole; resolution and bounds are in degrees"
    ):
        lattice((0, 50, 50, 100), 5, "EPSG:4326")
    with pytest.raises(InputError, match=r"2\.5e\+11 places take .* GiB .* at\.chunk\(1024\)"):
        geonp.interpolate(table, lattice((0, 0, 50, 50), 1e-4))
    with pytest.raises(InputError, match=r"the resolution must be a positive number, got 0"):
        lattice_around(read_table(table, None, None, None), 0, None)
    with pytest.raises(InputError, match="the table at has 2 places, 1 of them not finite"):
        geonp.interpolate(table, pd.DataFrame({"x": [1.0, np.nan], "y": [1.0, 2.0]}))


def test_a_grid_has_the_units_of_its_reference_system() -> None:
    feet, metres = (lattice((0, 0, 5, 5), 1, crs) for crs in ("EPSG:2263", "EPSG:32633"))
    assert feet.x.attrs["units"] == "US survey foot"
    assert metres.x.attrs["units"] == "m"


def test_the_command_writes_a_raster(model: str, tmp_path: Path) -> None:
    source, target = tmp_path / "points.csv", tmp_path / "grid.tif"
    columns = {"x": "lon", "y": "lat", "value": "value [degC]"}
    measurements(100).rename(columns=columns).to_csv(source, index=False)
    result = cli("grid", source, target, "--resolution", "2", "--quantile", "0.9", "--model", model)
    assert "Interpolated 100 points to 625 cells" in result.output
    with xr.open_dataset(target, engine="rasterio") as found:
        assert found.rio.crs.to_epsg() == 4326
        assert found.sizes["band"] == 4
    again = cli("grid", source, target, "--like", target, code=1)
    assert "exists" in again.output
    netcdf = tmp_path / "grid.nc"
    result = cli("grid", source, netcdf, "--like", target, "--json", "--model", model)
    with xr.open_dataset(netcdf) as found:
        assert [found[name].attrs["units"] for name in ("value", "value_standard_error")] == ["degC", "degC"]
    cli("grid", source, tmp_path / "o.nc", "--like", target, "--bounds", "0", "0", "1", "1", code=2)
    neither = cli("grid", source, tmp_path / "o.nc", code=2)
    assert "Choose the grid: --like RASTER, or --resolution with or without --bounds; or the places" in neither.output
    (tmp_path / "points.doc").write_text("no table")
    result = cli("grid", tmp_path / "points.doc", tmp_path / "o.nc", "--resolution", "1", code=1)
    assert "is not a table that can be read" in result.output


def test_the_command_predicts_at_the_places_of_a_table(tmp_path: Path) -> None:
    table = measurements(60).assign(day=np.repeat(["2020-01-01", "2020-01-02"], 30))
    places = pd.DataFrame({"value_max": ["a", "b"], "x": [3.0, 20.0], "y": [4.0, 30.0]})
    for frame, name in ((table, "points.csv"), (places, "places.csv"), (places.assign(day=1, value_tail=0), "odd.csv")):
        frame.to_csv(tmp_path / name, index=False)
    begin = ["grid", tmp_path / "points.csv", tmp_path / "out.csv", "--value", "value", "--time", "day"]
    done = cli(*begin, "--at", tmp_path / "places.csv", "--quantile", "0.9")
    assert "to 4 places in" in done.output
    found = pd.read_csv(tmp_path / "out.csv")
    assert [*found] == [
        "day",
        "value_max",
        "x",
        "y",
        "value",
        "value_standard_error",
        "value_quantile_0.9",
        "value_fill_flag",
    ]
    expected = geonp.interpolate(table, places, values="value", time="day")
    np.testing.assert_allclose(found["value"], expected["value"].values.ravel(), rtol=1e-5)
    assert [*found["value_max"]] == ["a", "b", "a", "b"]
    assert [*found["day"]] == ["2020-01-01", "2020-01-01", "2020-01-02", "2020-01-02"]
    cli(*begin[:2], tmp_path / "out.parquet", *begin[3:], "--at", tmp_path / "places.csv", "--quantile", "0.9")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out.parquet").astype(found.dtypes), found)
    begin.append("--overwrite")
    odd = cli(*begin, "--at", tmp_path / "odd.csv", code=1)
    assert (
        "columns with the names of results: day, value_tail. Rename or remove them; each place is predicted"
        in odd.output
    )
    assert pd.read_csv(tmp_path / "out.csv").equals(found)
    assert "expected a name that ends in .csv or .parquet" in cli(*begin[:2], "o.nc", "--at", begin[1], code=1).output
    assert "Choose the grid" in cli(*begin, "--at", begin[1], "--resolution", "1", code=2).output
    assert "--picture draws grids" in cli(*begin, "--at", begin[1], "--picture", "a.png", code=2).output


def test_units_are_given_or_in_the_names_of_columns() -> None:
    table = measurements(5).rename(columns={"value": "temp [degC]"})
    assert read_table(table, None, None, None).attrs["temp"]["units"] == "degC"
    table.attrs["units"] = "m"  # of no column, and no mapping as of files with a row of units
    assert read_table(table, None, None, None).attrs["temp"]["units"] == "degC"
    with pytest.warns(UserWarning, match="column 'temp' has the units 'degC', and 'K' .* values are not converted"):
        assert read_table(table, "temp", None, None, units="K").attrs["temp"]["units"] == "K"
    assert [*read_table(table.assign(temp=1.0), "temp [degC]", None, None).values] == ["temp [degC]"]
    ds = xr.Dataset.from_dataframe(table.assign(wet=1.0))
    ds["wet"].attrs = {"units": "%", "long_name": "humidity"}
    both = read_table(ds, ["wet", "temp"], None, None)
    assert both.attrs["wet"] == ds["wet"].attrs
    assert [*both.values] == ["wet", "temp"]
    with pytest.warns(UserWarning, match="has the units"):
        given = read_table(ds, ["wet", "temp"], None, None, units=["1", "degF"])
    assert given.attrs["wet"] == {"units": "1", "long_name": "humidity"}
    assert given.attrs["temp"] == {"units": "degF"}
    with pytest.raises(InputError, match="must be given once, or for each column of values: got a, b for temp"):
        read_table(table, None, None, None, units=["a", "b"])


def test_units_that_are_not_known_are_kept_with_a_warning(tmp_path: Path) -> None:
    table = measurements(5).rename(columns={"value": "temp [banana]"})
    message = r"column 'temp' has the units 'banana', which are not known, .* Correct the header, or give units="
    with pytest.warns(UserWarning, match=message):
        assert read_table(table, None, None, None).attrs["temp"]["units"] == "banana"
    with (
        pytest.warns(UserWarning, match=r"has the units 'Celsuis', which are not known, .* Check units \(--units\)"),
        pytest.warns(UserWarning, match="'banana', and 'Celsuis' .* replaces them"),
    ):
        read_table(table, None, None, None, units="Celsuis")
    source, target = tmp_path / "p.csv", tmp_path / "o.nc"
    source.write_text("lon,lat,temp\n,,degree_Celsuis\n" + "".join(f"{n},{n % 3},{n * n}.5\n" for n in range(6)))
    assert "'temp' has the units 'degree_Celsuis', which" in with_warnings("grid", source, target, "--resolution", 1)
    with xr.open_dataset(target) as found:
        assert found["temp"].attrs["units"] == "degree_Celsuis"
    for unit in ("W m-2", "µmol/kg", "PSU", "%", "cells/l"):
        read_table(measurements(5).rename(columns={"value": f"temp [{unit}]"}), None, None, None)  # without a warning


@pytest.mark.filterwarnings("always:column 'value' holds -9999")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("bom.csv", {"encoding": "utf-8-sig"}),
        ("german.csv", {"sep": ";", "decimal": ","}),
        ("semicolons.csv", {"sep": ";"}),
        ("tabs.tsv", {"sep": "\t"}),
        ("tabs.txt", {"sep": "\t"}),
    ],
)
def test_the_command_reads_tables_as_they_are_written(name: str, how: dict[str, str], tmp_path: Path) -> None:
    table = measurements(30).assign(station="0a,b")
    table.loc[[0, 7], "value"] = np.nan
    table.loc[5, "value"] = -9999.0
    table.to_csv(tmp_path / name, index=False, **how)
    command = ["grid", str(tmp_path / name), str(tmp_path / "o.nc"), "--resolution", "10"]
    done = cli(*command)
    assert done.stdout.startswith("Interpolated 28 points of 30 rows to ")
    assert "--where 'value!=-9999'" in done.stderr
    without = cli(*command[:-3], str(tmp_path / "w.nc"), *command[-2:], "--where", "value!=-9999")
    assert without.stdout.startswith("Interpolated 27 points of 29 rows to ")
    assert not without.stderr
    assert "Warning: column 'value' holds -9999, far from all other values, in 1 rows" in done.stderr.splitlines()[0]
    with pytest.warns(UserWarning, match="-9999"):
        expected = geonp.interpolate(table.dropna(), xr.open_dataset(tmp_path / "o.nc"), values="value")
    np.testing.assert_allclose(xr.open_dataset(tmp_path / "o.nc")["value"], expected["value"])


@pytest.mark.parametrize(("n", "cells"), [(300, 60), (3000, 60), (40, 200)])
def test_as_many_batches_are_expected_as_come(monkeypatch: pytest.MonkeyPatch, n: int, cells: int) -> None:
    """Few measurements for many places make many batches, too."""
    counts: list[tuple[int, int]] = []

    def count(function: Any, items: Iterable[Any], device: str, expected: int) -> Iterator[Any]:
        made = list(items)
        counts.append((expected, len(made)))
        return (np.ones((3, len(points.xc), points.xt.shape[1])) for points in made)

    monkeypatch.setattr(stitching, "on_cores", count)
    geonp.interpolate(measurements(n), lattice((0, 0, 50, 50), 50 / cells))
    expected, made = np.sum(counts, 0)
    assert made / 3 <= expected <= 2 * made + len(counts)


def test_usual_nodata_values_far_from_all_others_are_warned_of() -> None:
    table = measurements(20)
    table.loc[3:4, "value"] = -9999.0
    with pytest.warns(
        UserWarning, match="column 'value' holds -9999, far from all other values, in 2 rows, which are used"
    ):
        geonp.interpolate(table, lattice((0, 0, 50, 50), 10))
    # a depth among depths
    table["value"] = np.linspace(-11000, -5000, 20)
    table.loc[3, "value"] = -9999.0
    geonp.interpolate(table, lattice((0, 0, 50, 50), 10))


@pytest.mark.parametrize(
    ("mark", "names", "shift", "doubted"),
    [
        (0.0, ("lon", "lat"), 40.0, True),  # 0 N, 0 E
        (0.0, ("lon", "lat"), -3.0, False),  # among the others
        (0.0, ("x", "y"), 5e5, True),
        (-9999.0, ("x", "y"), 0.0, True),
    ],
)
def test_places_that_stand_for_unknown_ones(
    mark: float, names: tuple[str, str], shift: float, doubted: bool, recwarn: pytest.WarningsRecorder
) -> None:
    table = pd.DataFrame({name: shift + np.linspace(0, 9, 20) ** (k + 1) / 9**k for k, name in enumerate(names)})
    table["value"] = np.arange(20.0)
    table.loc[3, list(names)] = mark
    warn_of_doubtful_rows(read_table(table, None, None, None))
    found = [str(one.message) for one in recwarn]
    said = f"1 measurements lie at {names[0]}={mark:g}, {names[1]}={mark:g}, far from all others"
    assert [text.startswith(said) for text in found] == [True] * doubted


@pytest.mark.parametrize(("middle", "west", "east"), [(0.0, -5.0, 5.0), (180.0, 175.0, 185.0), (90.0, 85.0, 95.0)])
@pytest.mark.parametrize("turn", [0.0, 360.0])
def test_a_grid_around_places_does_not_go_round_the_globe(middle: float, west: float, east: float, turn: float) -> None:
    lon = np.linspace(middle - 4.6, middle + 4.6, 30)
    lon = lon % 360 if turn else (lon + 180) % 360 - 180
    table = pd.DataFrame({"lon": lon, "lat": np.linspace(40, 44.5, 30), "value": np.arange(30.0)})
    grid = lattice_around(read_table(table, None, None, None), 1.0, None)
    assert (grid["lon"].values[[0, -1]] - 0.5 + [0, 1]).tolist() == [west, east]
    assert grid.sizes == {"lat": 5, "lon": 10}


def test_bounds_of_measurements(float32: None, model: str, tmp_path: Path) -> None:
    table = measurements(n=150, noise=0.1)
    table["value"] = np.maximum(table["value"] - 0.2, 0)
    grid = lattice((0, 0, 50, 50), 2)
    asked: dict[str, Any] = {"quantiles": [0.025], "exceed": [0.0], "tails": True}
    out = geonp.interpolate(table, grid, bounds=(0, None), **asked)
    assert float(geonp.interpolate(table, grid, **asked)["value"].min()) < 0
    assert float(out["value"].min()) >= 0
    assert float(out["value_quantile"].min()) >= 0
    assert out.attrs["geonp_bounds"] == "value: at least 0"
    with pytest.warns(UserWarning, match=r"100% of the values lie beyond the bounds 2 to 9, such as .* count as the"):
        geonp.interpolate(table, lattice((0, 0, 50, 50), 50), bounds=(2, 9))
    of = geonp.student.Distribution.of(out, "value")
    np.testing.assert_allclose(of.mean(), out["value"], atol=1e-6)
    np.testing.assert_allclose(of.sf(0.0), out["value_exceedance"][0], atol=1e-6)
    wet = (wave(out.x, out.y).transpose(*out["value"].dims) > 0.2).values
    assert out["value_exceedance"].values[0][wet].mean() > 0.8 > 0.3 > out["value_exceedance"].values[0][~wet].mean()
    asked |= {"bounds": (0, None), "model": model}
    lazy = geonp.interpolate(table, grid.chunk(x=13), **asked)
    assert lazy["value_exceedance"].chunks is not None
    for name, array in geonp.interpolate(table, grid, **asked).items():
        np.testing.assert_allclose(lazy[name], array, rtol=1e-3, atol=1e-4, err_msg=str(name))
    table.to_csv(tmp_path / "in.csv", index=False)
    options = ["--resolution", "2", "--value-bounds", "0,", "--statistic", "median", "--exceed", "0", "--model", model]
    cli("grid", tmp_path / "in.csv", tmp_path / "out.nc", *options)
    with xr.open_dataset(tmp_path / "out.nc") as written:
        assert float(written["value"].min()) == 0
        assert written["value_exceedance"].sizes["threshold"] == 1


def test_longitudes_and_latitudes_on_a_grid_without_a_crs_come_with_a_warning() -> None:
    """Distances were those of a plane, without a word."""
    lon, lat = np.random.default_rng(0).uniform(0, 8, (2, 30))
    table = pd.DataFrame({"lon": lon, "lat": 60 + lat, "t": lon + lat})
    with pytest.warns(UserWarning, match=r"The grid has no CRS, and 'lon' and 'lat' are taken as .* crs='EPSG:4326'"):
        geonp.interpolate(table, geonp.lattice((0, 60, 8, 68), 1))
    geonp.interpolate(table, geonp.lattice((0, 60, 8, 68), 1, "EPSG:4326"))
    geonp.interpolate(table.rename(columns={"lon": "x", "lat": "y"}), geonp.lattice((0, 60, 8, 68), 1))
