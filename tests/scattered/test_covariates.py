"""interpolate() with covariates: what they are worth, what they do not depend on, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyproj
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import geonp
from geonp.errors import InputError
from geonp.raster.covariates import elsewhere
from geonp.scattered.fields import Field, Frame
from geonp.scattered.lattices import lattice

from ..commands import cli

N = 150


def height(x: Any, y: Any) -> Any:
    """Elevation in metres, rougher than the measurements are dense."""
    return 500 + 300 * np.sin(1.3 * x) * np.cos(1.1 * y)


def warmth(x: Any, y: Any) -> Any:
    return 15 - 0.0065 * height(x, y) + np.sin(x / 9)


def on(at: xr.DataArray, function: Any, name: str) -> xr.DataArray:
    """A function of the coordinates of a grid."""
    return at.copy(data=function(*np.meshgrid(at.x, at.y))).rename(name)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 30, (2, N))
    t = warmth(x, y) + 0.1 * rng.standard_normal(N)
    return pd.DataFrame({"x": x, "y": y, "elevation": height(x, y), "t": t})


@pytest.fixture(scope="module")
def grid() -> xr.DataArray:
    return lattice((0, 0, 30, 30), 3)


@pytest.fixture(scope="module")
def dem() -> xr.DataArray:
    return on(lattice((-1, -1, 31, 31), 0.125), height, "elevation")


@pytest.fixture(scope="module")
def found(float32: None, table: pd.DataFrame, grid: xr.DataArray) -> xr.Dataset:
    at = grid.to_dataset(name="mask").assign(elevation=on(grid, height, "elevation"))
    return geonp.interpolate(table, at, covariates=["elevation"])


def off(a: xr.Dataset, b: xr.Dataset) -> float:
    """Largest difference of two results in standard errors."""
    differences = [np.abs(a[name].values - b[name].values).max() for name in ("t", "t_standard_error")]
    return float(max(differences) / a["t_standard_error"].values.max())


def rmse(out: xr.Dataset, grid: xr.DataArray) -> float:
    return float(np.sqrt(((out["t"] - on(grid, warmth, "t")) ** 2).mean()))


def test_covariate_explains_what_other_places_do_not(
    found: xr.Dataset, table: pd.DataFrame, grid: xr.DataArray
) -> None:
    alone = geonp.interpolate(table[["x", "y", "t"]], grid)
    assert rmse(found, grid) < 0.15 * rmse(alone, grid)
    assert float(found["t_standard_error"].mean()) < 0.3 * float(alone["t_standard_error"].mean())
    assert found.attrs["geonp_covariates"] == "elevation"
    assert "geonp_covariates" not in alone.attrs


def test_raster_on_another_grid_is_read_at_measurements_and_targets(
    found: xr.Dataset, table: pd.DataFrame, grid: xr.DataArray, dem: xr.DataArray
) -> None:
    without = table[["x", "y", "t"]]
    read = geonp.interpolate(without, grid, covariates=dem)
    assert rmse(read, grid) < 1.5 * rmse(found, grid)
    places = pd.DataFrame({"x": grid.x.values, "y": grid.y.values})
    at_places = geonp.interpolate(without, places, covariates=dem)
    np.testing.assert_allclose(at_places["t"], np.diagonal(read["t"].values), atol=1e-3)


def test_table_of_places_has_columns_too(found: xr.Dataset, table: pd.DataFrame, grid: xr.DataArray) -> None:
    places = pd.DataFrame({"x": grid.x.values, "y": grid.y.values}).assign(elevation=lambda t: height(t.x, t.y))
    out = geonp.interpolate(table, places, covariates="elevation")
    np.testing.assert_allclose(out["t"], np.diagonal(found["t"].values), atol=1e-3)


def test_lazy_grid_reads_nothing_and_gives_the_same(
    found: xr.Dataset, table: pd.DataFrame, grid: xr.DataArray, dem: xr.DataArray
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("computed")

    at = grid.chunk(y=4, x=7)
    own = at.to_dataset(name="mask").assign(elevation=on(grid, height, "elevation").chunk(y=4, x=7))
    with dask.config.set(scheduler=refuse):
        lazy = geonp.interpolate(table, own, covariates="elevation")
    assert lazy["t"].chunks == ((4, 4, 2), (7, 3))
    assert off(found, lazy.compute()) < 1e-3
    read = geonp.interpolate(table[["x", "y", "t"]], at, covariates=dem.chunk(y=50))
    assert off(geonp.interpolate(table[["x", "y", "t"]], grid, covariates=dem), read.compute()) < 1e-3


def test_order_units_and_offsets_do_not_matter(table: pd.DataFrame) -> None:
    other = np.random.default_rng(1).standard_normal(N)
    both = table.assign(other=other)
    known, hidden = both[30:], both[:30].drop(columns="t")
    one = geonp.interpolate(known, hidden, values="t", covariates=["elevation", "other"])

    def changed(t: pd.DataFrame) -> pd.DataFrame:
        return t.assign(elevation=3.28 * t.elevation, other=1e5 - 7 * t.other)

    two = geonp.interpolate(changed(known), changed(hidden), values="t", covariates=["other", "elevation"])
    assert off(one, two) < 1e-3


def test_unknown_covariates_are_left_out_where_they_are_unknown(table: pd.DataFrame) -> None:
    known, hidden = table[40:].copy(), table[:40].drop(columns="t")
    truth = warmth(hidden.x, hidden.y)
    alone = geonp.interpolate(known[["x", "y", "t"]], hidden[["x", "y"]])
    known.loc[known.index[::5], "elevation"] = np.nan
    blind = np.arange(40) % 2 == 0
    half = geonp.interpolate(known, hidden.assign(elevation=hidden.elevation.where(~blind)), covariates="elevation")
    error = np.abs(half["t"].values - truth.to_numpy())
    assert np.isfinite(half["t"]).all()
    assert error[~blind].mean() < 0.3 * error[blind].mean()
    spread = half["t_standard_error"].values
    assert spread[~blind].mean() < 0.5 * spread[blind].mean()
    assert spread[blind].mean() < 1.3 * alone["t_standard_error"].values[blind].mean()


def test_classes_are_texts_booleans_or_flags(table: pd.DataFrame) -> None:
    rng = np.random.default_rng(3)
    names = np.array(["grass", "water", "wood"])[rng.integers(0, 3, N)]
    values = table.t + pd.Series(names).map({"grass": 0.0, "water": 6.0, "wood": -5.0})
    both = table[["x", "y"]].assign(t=values, cover=names)
    known, hidden = both[30:], both[:30].drop(columns="t")
    texts = geonp.interpolate(known, hidden, covariates="cover")
    alone = geonp.interpolate(known[["x", "y", "t"]], hidden[["x", "y"]])
    assert float(texts["t_standard_error"].mean()) < 0.6 * float(alone["t_standard_error"].mean())
    numbers = known.assign(cover=known["cover"].map({"grass": 1, "water": 2, "wood": 3})).to_xarray()
    numbers["cover"].attrs = {"flag_values": np.array([1, 2, 3]), "flag_meanings": "grass water wood"}
    flags = geonp.interpolate(
        numbers.drop_vars("index"),
        hidden.assign(cover=hidden["cover"].map({"grass": 1, "water": 2, "wood": 3})),
        values="t",
        covariates="cover",
    )
    assert off(texts, flags) < 1e-4
    wood = [t.assign(cover=t.cover == "wood") for t in (known, hidden)]
    assert geonp.interpolate(*wood, covariates="cover").attrs["geonp_covariates"] == "cover"
    with pytest.warns(UserWarning, match=r"'cover' has no class in common .*: got 'grass', 'w.*' and 'GRASS'|'W"):
        geonp.interpolate(known, hidden.assign(cover=hidden["cover"].str.upper()), covariates="cover")


def test_covariates_and_errors_are_named_without_units(table: pd.DataFrame) -> None:
    known, hidden = table[30:].assign(sigma=0.5), table[:30].drop(columns="t")
    expected = geonp.interpolate(known, hidden, values="t", covariates="elevation", errors="sigma")
    known, hidden = (t.rename(columns={"elevation": "elevation [m]", "sigma": "sigma [K]"}) for t in (known, hidden))
    found = geonp.interpolate(known, hidden, values="t", covariates="elevation", errors="sigma")
    xr.testing.assert_identical(found["t"], expected["t"])


def test_other_units_in_column_and_raster_are_warned_of(
    table: pd.DataFrame, grid: xr.DataArray, dem: xr.DataArray
) -> None:
    feet = table.assign(elevation=3.28 * table.elevation)
    with pytest.warns(UserWarning, match=r"column 'elevation' and the raster 'elevation' differ.*standard deviation"):
        geonp.interpolate(feet, grid[:2, :2], covariates=dem)


def test_raster_in_another_crs_is_read_at_longitudes_and_latitudes() -> None:
    utm = on(lattice((4e5, 5.5e6, 5e5, 5.6e6), 500, "EPSG:32632"), lambda x, y: y - 5.5e6, "northing")
    ((covariate, on_grid),) = elsewhere(utm)
    field = Field.of(covariate, on_grid, Frame("EPSG:4326", True, (1.0, 1.0)))
    read = field.at(np.array([[8.9, 50.0], [8.2, 50.3], [30.0, 50.0]]))
    northing = pyproj.Proj("EPSG:32632")([8.9, 8.2], [50.0, 50.3])[1]
    np.testing.assert_allclose(read[:2], np.subtract(northing, 5.5e6), atol=1e-6)
    assert np.isnan(read[2])


def test_global_raster_is_read_across_its_seam() -> None:
    lon = np.arange(0.0, 360.0, 10.0)
    raster = xr.DataArray(
        np.tile(np.cos(np.deg2rad(lon)), (3, 1)), {"lat": [10.0, 0.0, -10.0], "lon": lon}, ("lat", "lon")
    )
    ((covariate, on_grid),) = elsewhere(raster)
    field = Field.of(covariate, on_grid, Frame("EPSG:4326", True, (1.0, 1.0)))
    read = field.at(np.array([[-5.0, 0.0], [355.0, 3.0], [-180.0, 14.0], [0.0, 15.1]]))
    between = (1 + np.cos(np.deg2rad(10))) / 2
    np.testing.assert_allclose(read, [between, between, -1.0, np.nan])


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_part_of_a_raster_gives_what_the_whole_gives(data: st.DataObject) -> None:
    """Values at the centres of cells are exact, and gaps are unknown where they weigh more than half."""
    rows, cols = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    values = np.random.default_rng(0).standard_normal((rows, cols))
    values[data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))] = np.nan
    down = data.draw(st.sampled_from([1, -1]))
    raster = xr.DataArray(values, {"y": 5.0 * np.arange(rows)[::down], "x": 2.0 * np.arange(cols)}, ("y", "x"))
    ((covariate, on_grid),) = elsewhere(raster)
    field = Field.of(covariate, on_grid, Frame(None, False, (1.0, 1.0)))
    centres = np.stack(np.meshgrid(raster.x, raster.y), -1).reshape(-1, 2)
    np.testing.assert_array_equal(field.at(centres), values.ravel())
    some = centres[data.draw(st.integers(0, len(centres) - 1)) :] + np.array([0.3, -0.7])
    np.testing.assert_array_equal(field.around(some).at(some), field.at(some))


@pytest.mark.parametrize(
    ("covariates", "message"),
    [
        ("depth", "'depth' is unknown at the measurements: expected a column of the table of this name, or a raster"),
        ("elevation", "'elevation' is unknown where to predict: expected a variable of this name in at, or a raster"),
        ("t", "covariate 't' is a coordinate or is interpolated itself"),
        (["elevation", "elevation"], "covariate 'elevation' is given twice"),
        ([f"band{n}" for n in range(40)], "too many covariates: got 40, expected at most 16.*principal components"),
        (3, "a covariate must be the name of a column, a DataArray or a Dataset: got 3"),
        (
            xr.DataArray(np.zeros((3, 3)), dims=("y", "x"), name="bare"),
            "'bare' cannot be read at places",
        ),
        (lattice((100, 0, 130, 30), 1).rename("far"), "'far' has no value at any measurement.*its CRS and nodata"),
        (lattice((0, 0, 30, 30), 1, "EPSG:4326").rename("d"), "the CRS of the measurements is unknown.*--crs"),
    ],
)
def test_covariates_that_cannot_be_used_are_refused(
    table: pd.DataFrame, grid: xr.DataArray, covariates: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        geonp.interpolate(table, grid, values="t", covariates=covariates)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("high", r"'extra' holds 'high', expected numbers, as in the raster"),
        (pd.Timestamp("2020-01-01"), r"'extra' holds Timestamp.*expected numbers"),
    ],
)
def test_columns_that_are_no_numbers_are_refused_beside_a_raster(
    table: pd.DataFrame, grid: xr.DataArray, dem: xr.DataArray, column: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        geonp.interpolate(table.assign(extra=column), grid, values="t", covariates=dem.rename("extra"))


def test_variable_itself_and_models_without_covariates_are_refused(
    table: pd.DataFrame, grid: xr.DataArray, dem: xr.DataArray
) -> None:
    same = table.assign(copy=table.t)
    with pytest.raises(InputError, match=r"'copy' is 't' itself"):
        geonp.interpolate(same, same, values="t", covariates="copy")
    with pytest.raises(
        InputError, match=r"'months' has 3 entries at each place, along \('month', .*expected one; select"
    ):
        geonp.interpolate(table, grid.expand_dims(month=3).rename("months"), values="t", covariates="months")
    with pytest.raises(InputError, match="te-pt-tnp was trained without covariates and known errors: got 1"):
        geonp.interpolate(table, grid, covariates=dem, model="te-pt-tnp")


def test_constant_covariate_is_ignored_with_a_warning(table: pd.DataFrame) -> None:
    flat = table.assign(flat=1e8 + np.arange(len(table)) / len(table))  # float32 would hold one value
    with pytest.warns(UserWarning, match="'flat' is constant"):
        found = geonp.interpolate(flat, flat[:5], values="t", covariates="flat")
    assert off(geonp.interpolate(flat, flat[:5], values="t"), found) < 1e-6
    with pytest.warns(UserWarning, match=r"'flat' is constant, so it carries no information and is ignored\.$"):
        geonp.interpolate(flat.assign(flat="sand"), flat.assign(flat="sand")[:5], values="t", covariates="flat")


def test_likely_nodata_of_a_covariate_is_named(table: pd.DataFrame) -> None:
    wrong = table.assign(h=np.where(table.index < 2, -9999.0, table.index))
    with pytest.warns(UserWarning, match=r"column 'h' holds -9999, far from all other values, in 2 rows.*h!=-9999"):
        geonp.interpolate(wrong, wrong[5:7], values="t", covariates="h")


def test_covariate_at_few_measurements_is_ignored_with_a_warning(table: pd.DataFrame) -> None:
    few = table[:7].assign(h=np.arange(7.0))
    at = table[7:12].assign(h=3.0)
    with pytest.warns(UserWarning, match=r"'h' is known at 7 measurements of 't', and is ignored: expected at least 8"):
        found = geonp.interpolate(few, at, values="t", covariates="h")
    assert off(geonp.interpolate(few, at, values="t"), found) < 1e-6
    enough = table[:8].assign(h=np.arange(8.0))
    assert off(geonp.interpolate(enough, at, values="t"), geonp.interpolate(enough, at, values="t", covariates="h")) > 0


def test_places_in_a_projected_crs_read_a_raster_of_longitudes_and_latitudes(table: pd.DataFrame) -> None:
    metres = table.assign(x=4e5 + 1e3 * table.x, y=5.5e6 + 1e3 * table.y)
    dem = lattice((7.0, 49.0, 9.0, 51.0), 0.05, "EPSG:4326")
    dem = dem.copy(data=np.add.outer(10 * dem.lat.values, dem.lon.values)).rename("slope")
    out = geonp.interpolate(metres, metres[:6], values="t", covariates=dem, crs="EPSG:32632")
    assert out.attrs["geonp_covariates"] == "slope"


def test_curvilinear_grid_has_its_own_variables(table: pd.DataFrame) -> None:
    stations = table.rename(columns={"x": "lon", "y": "lat"})
    lon, lat = np.meshgrid(np.arange(2.0, 28, 5), np.arange(3.0, 28, 6))
    lat = lat + lon / 10
    at = xr.Dataset(
        {"elevation": (("j", "i"), height(lon, lat))},
        {
            "lon": (("j", "i"), lon, {"units": "degrees_east"}),
            "lat": (("j", "i"), lat, {"units": "degrees_north"}),
        },
    )
    out = geonp.interpolate(stations, at, covariates="elevation")
    assert np.abs(out["t"].values - warmth(lon, lat)).mean() < 0.2


def test_measurements_with_large_known_errors_count_less(table: pd.DataFrame) -> None:
    rng = np.random.default_rng(5)
    known, hidden = table[["x", "y"]][30:], table[["x", "y"]][:30]
    sigma = np.where(rng.random(len(known)) < 0.5, 0.02, 3.0)
    smooth = [np.sin(t.x / 9) + np.cos(t.y / 7) for t in (known, hidden)]
    noisy = known.assign(t=smooth[0] + sigma * rng.standard_normal(len(known)), sigma=sigma)
    alone = geonp.interpolate(noisy, hidden, values="t")
    found = geonp.interpolate(noisy, hidden, errors="sigma")
    apart = [np.abs(out["t"].values - smooth[1].to_numpy()) for out in (found, alone)]
    assert apart[0].mean() < 0.7 * apart[1].mean()
    assert np.mean(apart[0] < 1.96 * found["t_standard_error"].values) > 0.85
    assert found.attrs["geonp_errors"] == "sigma"
    stored = xr.Dataset.from_dataframe(noisy.assign(t=100 * noisy.t, sigma=1000 * noisy.sigma).rename_axis("row"))
    stored["t"].attrs, stored["sigma"].attrs = {"scale_factor": 0.01}, {"scale_factor": 0.001}
    packed = geonp.interpolate(stored.drop_vars("row"), hidden, values="t", errors="sigma")
    np.testing.assert_allclose(packed["t"], 100 * found["t"], atol=0.5)
    times = noisy.assign(t=100 * noisy.t, sigma=100 * noisy.sigma)
    np.testing.assert_allclose(geonp.interpolate(times, hidden, errors="sigma")["t"], 100 * found["t"], atol=0.5)


def test_known_errors_that_cannot_be_used_are_refused(table: pd.DataFrame, grid: xr.DataArray) -> None:
    bare = table[["x", "y", "t"]]
    with pytest.raises(InputError, match="known errors 'sigma' are not a numeric column of the table"):
        geonp.interpolate(bare, grid, errors="sigma")
    with pytest.raises(InputError, match="known errors must not be negative: got -1 in 'sigma'"):
        geonp.interpolate(bare.assign(sigma=-1.0), grid, errors="sigma")
    with pytest.raises(
        InputError, match="known errors must be finite: got 1 infinite ones in 'sigma'; leave these rows"
    ):
        geonp.interpolate(bare.assign(sigma=np.where(np.arange(len(bare)) == 3, np.inf, 1.0)), grid, errors="sigma")
    with pytest.raises(InputError, match="known errors are of one column: got 2 to interpolate, t, u"):
        geonp.interpolate(bare.assign(sigma=1.0, u=bare.t), grid, values=["t", "u"], errors="sigma")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (np.nan, "3 rows have no known error in 'sigma', and count as exact.*fillna"),
        (1e6, "3 rows have known errors of up to 1e.06 in 'sigma', far beyond the other errors and all values"),
    ],
)
def test_known_errors_that_are_likely_unknown_are_said(
    table: pd.DataFrame, grid: xr.DataArray, error: float, said: str
) -> None:
    doubtful = table[["x", "y", "t"]].assign(sigma=np.where(np.arange(len(table)) < 3, error, 0.1))
    with pytest.warns(UserWarning, match=said):
        geonp.interpolate(doubtful, grid, errors="sigma")


def grid_command(folder: Path, *options: str, code: int = 0) -> str:
    """Output of ``geonp grid`` with the table and the raster in a folder."""
    return cli("grid", folder / "t.csv", folder / "out.nc", "--overwrite", *options, code=code).output


def test_the_command_reads_covariates(
    table: pd.DataFrame, grid: xr.DataArray, dem: xr.DataArray, tmp_path: Path
) -> None:
    table.to_csv(tmp_path / "t.csv", index=False)
    xr.Dataset({"elevation": dem, "other": -dem}).to_netcdf(tmp_path / "dem.nc")
    raster, lattice_options = str(tmp_path / "dem.nc"), ("--resolution", "3", "--bounds", "0", "0", "30", "30")
    output = grid_command(tmp_path, *lattice_options, "--covariate", f"elevation={raster}:elevation", "--json")
    assert '"covariates": "elevation"' in output
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert rmse(out, grid) < 0.15
        assert out.attrs["geonp_covariates"] == "elevation"
    output = grid_command(
        tmp_path, *lattice_options, "--covariate", f"{raster}:other", "--value", "t", "--errors", "elevation"
    )
    with xr.open_dataset(tmp_path / "out.nc") as out:
        assert (out.attrs["geonp_covariates"], out.attrs["geonp_errors"]) == ("other", "elevation")
    output = grid_command(tmp_path, *lattice_options, "--covariate", f"dem={raster}", "--value", "t", code=1)
    assert "has 2 variables: got 'elevation', 'other'" in output
    assert f"--covariate dem={raster}:elevation" in output
    output = grid_command(tmp_path, *lattice_options, "--covariate", "elevation", code=1)
    assert "'elevation' is unknown where to predict" in output
    assert "--covariate elevation=raster.tif" in output
    output = grid_command(tmp_path, "--like", raster, "--covariate", "depth", "--value", "t", code=1)
    assert "'depth' is unknown at the measurements" in output


def test_intervals_of_few_measurements_hold_with_many_covariates() -> None:
    inside = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        table = pd.DataFrame(rng.standard_normal((120, 8))).add_prefix("c")
        table["x"], table["y"] = rng.uniform(0, 10, (2, 120))
        table["v"] = np.sin(table["x"]) + table["c0"] + 0.3 * rng.standard_normal(120)
        hidden, names = table[20:], [f"c{k}" for k in range(8)]
        found = geonp.interpolate(table[:20], hidden.drop(columns="v"), values="v", covariates=names)
        inside.append(np.abs(found["v"].values - hidden["v"]) < 1.96 * found["v_standard_error"].values)
    # 0.80 if the measurements that the effects are fitted to counted for the variance, too
    assert np.mean(inside) > 0.9
