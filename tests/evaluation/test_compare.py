"""Evaluation on one raster: hold-outs, no leakage of hidden cells, scores, and the text of the result."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from pyproj import CRS
from scipy import ndimage

from geonp.errors import InputError, ModelError
from geonp.evaluation.baselines import METHODS, predict
from geonp.evaluation.compare import evaluate
from geonp.evaluation.comparison import Comparison
from geonp.evaluation.holdout import hide, hide_simulated
from geonp.evaluation.metrics import LEVELS, score
from geonp.evaluation.report import render
from geonp.evaluation.scored import OURS, RANKED, WITH_BOTH, WITH_COVARIATES, WITH_SLICES, Prediction
from geonp.evaluation.slices import choose_slice, moments
from geonp.fill.infill import infill
from geonp.raster.gaps import SIMULATORS
from geonp.raster.positions import DAY, positions
from geonp.raster.windows import Window

pytestmark = pytest.mark.usefixtures("few_patches")

Y, X = np.mgrid[:40, :48].astype(np.float32)
FIELD = np.sin(X / 6) + np.cos(Y / 8) + 0.02 * np.random.default_rng(1).standard_normal(X.shape, np.float32)
DATES = ["2020-01-01_00:00:00", "2020-01-02_00:00:00", "2020-01-03_00:00:00", "2020-01-31_00:00:00"]


def raster(values: np.ndarray = FIELD, gap: bool = True) -> xr.DataArray:
    values = values.copy()
    if gap:
        values[20:24, 20:25] = np.nan
    coords = {"y": np.arange(values.shape[0])[::-1], "x": np.arange(values.shape[1])}
    return xr.DataArray(values, coords, ("y", "x"), "height", {"units": "m"})


@pytest.fixture(scope="module")
def comparison(model: str) -> Comparison:
    result: Comparison = raster().geonp.evaluate(model=model, fraction=0.3, seed=3)
    return result


def test_all_methods_fill_the_same_hidden_cells(comparison: Comparison) -> None:
    assert list(comparison.predictions) == list(comparison.scores) == [OURS, *METHODS]
    assert comparison.test.hidden.sum() == pytest.approx(0.3 * 1900, rel=0.1)
    for p in comparison.predictions.values():
        assert np.isfinite(p.mean).all()
        known = np.isfinite(comparison.test.values)
        np.testing.assert_array_equal(p.mean[known], comparison.test.values[known])
        assert p.seconds > 0


def test_predictions_are_those_of_the_methods(comparison: Comparison, model: str) -> None:
    filled = raster().copy(data=comparison.test.values).geonp.infill(model=model, seed=3)
    np.testing.assert_array_equal(comparison.predictions[OURS].mean, filled["height"])
    np.testing.assert_array_equal(comparison.predictions[OURS].error, filled["height_standard_error"])
    mean, error = predict("kriging", comparison.test.values, np.random.default_rng(3))
    np.testing.assert_array_equal(comparison.predictions["kriging"].mean, mean)
    np.testing.assert_array_equal(comparison.predictions["kriging"].error, error)


def test_the_model_may_be_a_path(comparison: Comparison, model: str) -> None:
    class Adapted:  # like the result of geonp.adapt
        def __fspath__(self) -> str:
            return model

    for path in (Path(model), Adapted()):
        again = raster().geonp.evaluate(model=path, fraction=0.3, seed=3, baselines=[])
        np.testing.assert_array_equal(again.predictions[OURS].mean, comparison.predictions[OURS].mean)
        assert again.model == comparison.model


def test_no_prediction_sees_what_is_hidden(comparison: Comparison, model: str) -> None:
    altered = raster().where(~comparison.test.hidden, 1e6)
    again = evaluate(altered, model=model, fraction=0.3, seed=3)
    np.testing.assert_array_equal(again.test.hidden, comparison.test.hidden)
    for method, p in comparison.predictions.items():
        np.testing.assert_array_equal(again.predictions[method].mean, p.mean)
        np.testing.assert_array_equal(again.predictions[method].error, p.error)
    assert again.scores[OURS].rmse > 1e5 > comparison.scores[OURS].rmse


def test_scores_are_those_of_the_hidden_cells_and_the_sum_of_their_parts(comparison: Comparison) -> None:
    for method, p in comparison.predictions.items():
        whole = score(comparison.test.truth, p.mean, p.error, comparison.test.hidden, p.tail)
        assert comparison.scores[method].as_dict() == pytest.approx(whole.as_dict())
        assert sum(s.cells for s in comparison.by_distance[method].values()) == whole.cells
        assert comparison.reliability(method, LEVELS) == pytest.approx([whole.coverage(level) for level in LEVELS])


def test_distance_is_to_the_nearest_cell_left_observed(comparison: Comparison) -> None:
    sites = np.argwhere(np.isfinite(comparison.test.values))
    targets = np.argwhere(comparison.test.hidden)
    nearest = np.linalg.norm(targets[:, None] - sites, axis=-1).min(axis=1)
    np.testing.assert_allclose(comparison.distance_px[comparison.test.hidden], nearest)
    cells = {name: s.cells for name, s in comparison.by_distance[OURS].items()}
    assert cells["0 to 1"] == (nearest == 1).sum()
    assert cells["2 to 4"] == ((nearest > 2) & (nearest <= 4)).sum()


def test_the_result_describes_the_evaluation(comparison: Comparison) -> None:
    assert comparison.setting.startswith("height (m): 40 x 48 cells. Simulated gaps (clouds) hide ")
    assert (comparison.units, comparison.y_up, comparison.window) == ("m", False, Window(0, 40, 0, 48))
    values = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert values["observed_cells"] == 1900
    assert values["hidden_cells"] == values["scored_cells"] == values["scores"]["linear"]["cells"]
    assert values["scores"][OURS]["rmse"] == comparison.scores[OURS].rmse
    assert values["winners"] == comparison.winners
    assert values["model"] == "tiny"
    assert repr(comparison) == f"{comparison.setting}\n\n{comparison.table()}\n\n{comparison.verdict}"
    setting, verdict = html.escape(comparison.setting), html.escape(comparison.verdict)
    shown = comparison._repr_html_()
    assert shown.startswith(f'<p>{setting}</p>\n<pre style="white-space: pre; ')  # lines of a table are not wrapped
    assert shown.endswith(f"{html.escape(comparison.table())}</pre>\n<p>{verdict}</p>")
    top, _, bottom = comparison.table().partition("\n\n")
    rows = [line.split() for line in top.splitlines()]
    assert [row[0] for row in rows] == ["method", OURS, *METHODS]
    assert float(rows[1][1]) == pytest.approx(comparison.scores[OURS].rmse, rel=1e-2)
    heading, *lines = bottom.splitlines()
    covered = [f"{s.coverage(0.95):.1%}" for s in comparison.by_distance[OURS].values()]
    assert lines[-1].split() == ["95%", "interval", "of", OURS, *covered]
    assert heading == "CRPS (m) by distance to the nearest observation:"
    assert len({len(line) for line in lines}) == len({len(line) for line in top.splitlines()}) == 1


def test_rows_grow_to_the_north_of_a_raster_that_begins_in_the_south(model: str) -> None:
    assert evaluate(raster().sortby("y"), model=model, baselines=["nearest"]).y_up


def test_maps_have_the_coordinates_of_the_evaluated_part(model: str) -> None:
    degrees = {"y": 50 - 0.1 * np.arange(40), "x": 5 + 0.1 * np.arange(48)}
    dem = raster().assign_coords(degrees).rename(y="lat", x="lon")
    frame = evaluate(dem, model=model, size=32, baselines=["nearest"]).frame
    assert frame.degrees
    assert frame.extent == pytest.approx((5.75, 8.95, 46.45, 49.65))
    plain = raster().drop_vars(["y", "x"], errors="ignore")
    assert evaluate(plain, model=model, size=32, baselines=["nearest"]).frame.labels == ("column", "row")


def handmade(**errors: float) -> Comparison:
    """A comparison of methods with constant errors and standard errors of one."""
    truth = np.zeros((4, 4), np.float32)
    test = hide(truth, np.eye(4, dtype=bool))
    ones = np.ones_like(truth)
    predictions = {name: Prediction(wrong * ones, ones, 0 * ones, 0.1) for name, wrong in errors.items()}
    place: dict[str, Any] = {"shape": (4, 4), "window": Window(0, 4, 0, 4), "y_up": False}
    what: dict[str, Any] = {"holdout": "random", "fraction": 0.25, "seed": 0, "model": {"model": "none"}}
    return Comparison(name="a", units="", selection="", test=test, predictions=predictions, **place, **what)


def test_a_baseline_that_wins_is_named() -> None:
    lost = handmade(geonp=2.0, nearest=3.0, linear=1.0)
    assert lost.winners == dict.fromkeys(RANKED, "linear")
    assert lost.verdict.startswith("linear beats geonp by RMSE (1 against 2), MAE (1 against 2), CRPS (")
    assert "is the best" not in lost.verdict
    assert lost.to_dict()["verdict"] == lost.verdict


def test_a_model_that_wins_is_named() -> None:
    won = handmade(geonp=1.0, nearest=3.0)
    assert won.verdict.startswith("geonp is the best by RMSE, MAE, CRPS, log score and interval score. The 95% ")
    assert won.verdict.endswith("cover 100.0% of the hidden cells.")


def test_losses_are_named_before_victories() -> None:
    mixed = handmade(geonp=1.0, nearest=0.5)
    wide = replace(mixed.predictions["nearest"], error=np.full((4, 4), 50.0, np.float32))
    mixed = replace(mixed, predictions={**mixed.predictions, "nearest": wide})
    assert mixed.winners["rmse"] == "nearest"
    assert mixed.winners["crps"] == OURS
    assert 0 == mixed.verdict.index("nearest beats geonp by RMSE") < mixed.verdict.index("geonp is the best by CRPS")


def test_other_slices_that_change_nothing_neither_lower_nor_raise() -> None:
    alike = handmade(**{WITH_SLICES: 1.0, OURS: 1.0, "nearest": 3.0})
    assert alike.verdict.endswith("Other slices do not change the CRPS.")


def test_an_enormous_log_score_is_short() -> None:
    sure = handmade(geonp=1.0, nearest=1.0)
    narrow = replace(sure.predictions["nearest"], error=np.full((4, 4), 1e-9, np.float32))
    table = replace(sure, predictions={**sure.predictions, "nearest": narrow}).table()
    assert "5.000e+17" in table
    assert max(map(len, table.splitlines())) < 120


def test_a_difference_of_less_than_a_hundredth_is_no_victory() -> None:
    assert set(handmade(geonp=1.0, nearest=1.0).winners.values()) == {"nearest"}
    for ours, theirs in ((1.0, 1.0), (1.0, 1.003), (1.003, 1.0)):
        alike = handmade(geonp=ours, nearest=theirs, linear=3.0)
        titles = "RMSE, MAE, CRPS, log score and interval score"
        assert alike.verdict.startswith(f"geonp is about as good as nearest by {titles}. The 95% ")
        assert not alike.beaten
    assert handmade(geonp=1.02, nearest=1.0).beaten


@pytest.mark.parametrize("holdout", SIMULATORS)
def test_simulated_gaps_are_hidden(holdout: str, model: str) -> None:
    comparison = evaluate(raster(), holdout=holdout, fraction=0.2, seed=5, model=model, baselines=["nearest"])
    expected = hide_simulated(raster().values, holdout, 0.2, np.random.default_rng(5))
    np.testing.assert_array_equal(comparison.test.hidden, expected.hidden)
    assert f"Simulated gaps ({holdout}) hide {expected.hidden.sum()} of 1,900 observed cells" in comparison.setting


def test_own_gaps_are_moved_until_half_of_the_fraction_is_hidden(model: str) -> None:
    comparison = evaluate(raster(), holdout="gaps", fraction=0.1, model=model, baselines=["nearest"])
    assert 0.05 * 1900 <= comparison.test.hidden.sum() <= 0.1 * 1900
    assert "The raster's own gaps, moved, hide " in comparison.setting


def test_own_gaps_keep_their_shape(model: str) -> None:
    comparison = evaluate(raster(), holdout="gaps", fraction=0.01, model=model, baselines=["nearest"])
    parts, _ = ndimage.label(comparison.test.hidden)
    assert all(len(range(*s[0].indices(40))) <= 4 for s in ndimage.find_objects(parts))
    assert all(len(range(*s[1].indices(48))) <= 5 for s in ndimage.find_objects(parts))


def test_seeds_decide_what_is_hidden(comparison: Comparison, model: str) -> None:
    other = evaluate(raster(), fraction=0.3, seed=4, model=model, baselines=["nearest"])
    assert (other.test.hidden != comparison.test.hidden).any()


def test_the_best_covered_cut_is_evaluated_and_nothing_else_is_read(model: str) -> None:
    def unread() -> da.Array:
        def fail(block: np.ndarray) -> np.ndarray:
            raise AssertionError("this part was read")

        return da.zeros((40, 8), np.float32, chunks=-1).map_blocks(fail, dtype=np.float32, meta=np.empty((0, 0), "f4"))

    holes = FIELD[:, :16].copy()
    holes[20:] = np.nan
    full = da.from_array(FIELD[:, :16])
    parts = [full, unread(), da.from_array(holes), unread(), full]
    wide = xr.DataArray(da.concatenate(parts, axis=1), dims=("y", "x"))
    comparison = evaluate(wide, size=16, model=model, baselines=["nearest"])
    assert comparison.window == Window(12, 28, 0, 16)
    assert "a window of 16 x 16 cells, rows 12 to 27 and columns 0 to 15 of 40 x 64" in comparison.setting
    np.testing.assert_array_equal(comparison.test.truth, FIELD[12:28, :16])
    gaps = evaluate(wide, size=16, holdout="gaps", model=model, baselines=["nearest"])
    assert gaps.window == Window(12, 28, 24, 40)


def test_one_slice_of_one_variable_is_evaluated(model: str) -> None:
    times = np.array(["2020-01-01", "2020-01-02T06:30:21.834255872"], "datetime64[ns]")
    cube = xr.concat([raster(), raster() + 5], xr.Variable("time", times))
    ds = xr.Dataset({"flag": raster().astype(str), "height": cube.transpose("x", "time", "y")})
    options: dict[str, Any] = {"model": model, "baselines": ["nearest"]}
    first, second = ds.geonp.evaluate(**options), ds.geonp.evaluate(index={"time": 1}, **options)
    assert (first.name, first.selection, second.selection) == ("height", "time 2020-01-01", "time 2020-01-02T06:30:21")
    np.testing.assert_array_equal(second.test.truth, raster() + 5)
    np.testing.assert_array_equal(first.test.truth, raster())
    assert evaluate(cube.drop_vars("time"), **options).setting.startswith("height (m), time=0: 40 x 48")


def test_the_crs_and_the_times_may_be_variables_beside_the_evaluated_one() -> None:
    """Cells counted as square, and dates as evenly spaced, unlike in a fill."""
    degrees = {"y": np.linspace(70, 66.1, 40), "x": np.linspace(10, 14.7, 48)}
    crs = xr.DataArray(0, attrs=CRS.from_epsg(4326).to_cf())
    field = xr.DataArray(FIELD, degrees, ("y", "x"), attrs={"grid_mapping": "crs"})
    ds = xr.Dataset({"height": field, "crs": crs})
    comparison = evaluate(ds, holdout="blocks", baselines=[])
    gaps = ds.assign(height=field.copy(data=comparison.test.values))
    np.testing.assert_array_equal(comparison.predictions[OURS].mean, infill(gaps)["height"])
    stack = xr.Dataset({"height": (("Time", "y", "x"), np.stack([FIELD] * 4)), "Times": ("Time", np.array(DATES, "S"))})
    variable = choose_slice(stack, {}, None, [], None).variable
    assert np.diff(positions(variable, "Time")).tolist() == [DAY, DAY, 28 * DAY]


def test_cells_that_were_filled_and_slices_that_are_not_there_are_said(model: str) -> None:
    """Filled cells were scored as observed, and across had no effect, without a word."""
    with pytest.warns(UserWarning, match="height was filled by geonp before"):
        evaluate(infill(raster(), model=model), model=model, baselines=[])
    with pytest.warns(UserWarning, match="across='time' has no effect: the raster has one slice along it"):
        evaluate(raster().expand_dims("time"), model=model, baselines=[], across="time")
    with pytest.warns(UserWarning, match="across='time' has no effect"):
        infill(raster().expand_dims("time"), model=model, across="time")


def test_scores_of_packed_values_have_no_units(model: str) -> None:
    """The units are those of the unpacked values: errors of 50 stored values of 0.01 m were said to be of 50 m."""
    packed = (
        (raster().fillna(-99) * 100)
        .astype("int16")
        .assign_attrs(units="m", scale_factor=0.01, _FillValue=np.int16(-9900))
    )
    found = evaluate(packed, model=model, baselines=["nearest"])
    assert (found.units, found.to_dict()["units"]) == ("", "")
    assert found.setting.startswith("height: ")


def test_cells_that_the_model_leaves_empty_are_counted_and_not_scored(model: str) -> None:
    # the tiny model sees 16 cells far from a tile of 8
    island = np.full((80, 80), np.nan, np.float32)
    island[:6], island[60:] = 1 + FIELD[:6, :1], FIELD[:20, :1]
    options: dict[str, Any] = {"holdout": "blocks", "fraction": 0.9, "seed": 1, "baselines": ["nearest"]}
    comparison = evaluate(raster(island, gap=False), model=model, **options)
    left = comparison.test.hidden.sum() - comparison.scored.sum()
    assert left > 0
    assert comparison.scores["nearest"].cells == comparison.scored.sum() == comparison.to_dict()["scored_cells"]
    assert f"geonp leaves {left:,} of them empty; these are not scored." in comparison.setting
    # other slices reach all of them, but the model alone does not
    cube = xr.concat([raster(FIELD[:1, :1] + 0 * np.nan_to_num(island), gap=False)] * 5, "time").copy()
    cube[2] = island
    both = evaluate(cube, model=model, across="time", empty_slices=True, index={"time": 2}, **options)
    assert np.isfinite(both.predictions[WITH_SLICES].mean[both.test.hidden]).all()
    assert both.scores[WITH_SLICES].cells == both.scores[OURS].cells == comparison.scored.sum()
    assert f"geonp leaves {left:,} of them empty; these are not scored." in both.setting


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holdout": "rain"}, "Unknown hold-out: got 'rain', expected one of random, clouds"),
        ({"fraction": 1.5}, "Wrong fraction: got 1.5, expected a share to hide between 0 and 1"),
        ({"fraction": 0.0}, "Wrong fraction: got 0.0"),
        ({"baselines": ["linear", "magic"]}, "Unknown baseline: got magic, expected some of nearest, linear"),
        ({"seed": -1}, "Wrong seed: got -1, expected an integer of at least 0"),
        ({"baselines": "linear"}, r"baselines must be a sequence of names: got 'linear', .* \['linear'\]"),
        ({"size": 10.5}, "Wrong size: got 10.5, expected a number of rows"),
        ({"index": {"time": True}}, "No slice time=True"),
        ({"size": 1}, "Wrong size: got 1, expected a number of rows and columns to evaluate, at least 2"),
        ({"index": {"time": 0}}, "No slice time=0: expected none, it is one slice. Correct the index."),
        ({"holdout": "gaps"}, "'height' has no gaps to move: got 0 missing of 1920 cells.*choose another"),
        ({"fraction": 1e-9, "holdout": "random"}, "Nothing of 'height' can be scored with the hold-out 'random': 0 of"),
        ({"index": {"y": 1}}, "No slice y=1"),
        ({"index": {"time": "2020-01-01"}}, "No slice time=2020-01-01"),
    ],
)
def test_errors_say_what_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(raster(gap=False), **options)


def test_an_index_out_of_range_names_the_range() -> None:
    with pytest.raises(InputError, match="No slice time=2: expected time=0 to 1"):
        evaluate(xr.concat([raster(), raster()], "time"), index={"time": 2})


def test_a_slice_without_observations_is_refused() -> None:
    message = r"'height' has no observed cell: all 1920 of rows 0 to 39 and columns 0 to 47 are missing.*choose another"
    with pytest.raises(InputError, match=message):
        evaluate(raster(np.full_like(FIELD, np.nan)))
    with pytest.raises(InputError, match="has no observed cell"):
        evaluate(raster(np.full_like(FIELD, -9), gap=False), nodata=-9)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ModelError, match="nonesuch"):
        evaluate(raster(), model="nonesuch")


def covered() -> xr.Dataset:
    """A field that falls with a rough elevation and rises on wet ground, both known everywhere."""
    rng = np.random.default_rng(4)
    dem, wet = rng.standard_normal(X.shape).astype(np.float32), rng.random(X.shape) < 0.4
    ds = raster(FIELD - 0.5 * dem + wet).to_dataset(name="height")
    flags = {"flag_values": np.array([1, 2], np.int8), "flag_meanings": "dry wet"}
    return ds.assign(dem=(("y", "x"), dem), ground=(("y", "x"), (1 + wet).astype(np.int8), flags))


def test_covariates_are_compared_with_the_fill_without_and_with_regression_kriging() -> None:
    found = covered().geonp.evaluate(covariates=["dem", "ground"], baselines=["regression_kriging", "kriging"], seed=1)
    assert list(found.scores) == [WITH_COVARIATES, OURS, "regression_kriging", "kriging"]
    crps = {method: scores.crps for method, scores in found.scores.items()}
    assert crps[WITH_COVARIATES] < 0.5 * crps[OURS]
    assert crps["regression_kriging"] < 0.5 * crps["kriging"]
    assert found.selection == "with the covariates dem, ground"
    change = 1 - crps[WITH_COVARIATES] / crps[OURS]
    assert found.verdict.endswith(f"Covariates lower the CRPS by {change:.1%}.")
    assert f"{OURS} + covariates" in found.table()
    hidden = covered().assign(height=raster().copy(data=found.test.values))
    filled = hidden.geonp.infill(covariates=["dem", "ground"], seed=1)
    np.testing.assert_allclose(found.predictions[WITH_COVARIATES].mean, filled["height"], atol=1e-4)
    page = render(found)
    assert "Filled by geonp + covariates" in page


def test_covariates_are_read_in_the_cut_and_in_the_slice_alone() -> None:
    def unread(block: np.ndarray) -> np.ndarray:
        raise AssertionError("this part was read")

    ds = covered().drop_vars("ground")
    dem = ds["dem"].variable.chunk(x=24).data
    other = da.zeros_like(dem).map_blocks(unread, dtype=np.float32, meta=np.empty((0, 0), "f4"))
    beyond = other[:, :24]
    stack = da.stack([other, da.concatenate([beyond, dem[:, 24:]], axis=1)])
    gappy = ds["height"].where(ds.x >= 24)
    cube = xr.concat([gappy - 1, gappy], xr.Variable("time", [0, 1])).rename("height")
    covariate = xr.DataArray(stack, cube.coords, cube.dims, "dem")
    options: dict[str, Any] = {"index": {"time": 1}, "size": 20, "baselines": [], "seed": 1}
    found = evaluate(cube, covariates=covariate, **options)
    assert found.window.col >= 24
    assert found.scores[WITH_COVARIATES].crps < 0.8 * found.scores[OURS].crps


def test_covariates_along_the_neighbouring_slices() -> None:
    ds = covered()
    cube = xr.concat([ds["height"] - 1, ds["height"]], xr.Variable("time", [0, 1]))
    dem = xr.concat([ds["dem"] * 0, ds["dem"]], xr.Variable("time", [0, 1]))
    found = evaluate(cube, covariates=dem, across="time", index={"time": 1}, baselines=["regression_kriging"], size=24)
    assert "with neighbouring slices along time, with the covariate dem" in found.selection
    assert list(found.scores) == [WITH_BOTH, WITH_SLICES, WITH_COVARIATES, OURS, "regression_kriging"]
    assert found.scores[WITH_COVARIATES].crps < 0.9 * found.scores[OURS].crps
    assert found.scores[WITH_BOTH].crps < 0.9 * found.scores[OURS].crps
    # the covariate of this slice, not of the other one
    assert found.scores["regression_kriging"].crps < 0.9 * found.scores[OURS].crps


def test_other_variables_are_seen_in_the_cut_and_in_the_slice_alone() -> None:
    ds = covered().drop_vars(["dem", "ground"])
    other = xr.concat([ds["height"] * 0, 3 - 2 * ds["height"]], xr.Variable("time", [0, 1]))
    cube = xr.Dataset({"height": xr.concat([ds["height"] * 0, ds["height"]], other.time), "depth": other})
    options: dict[str, Any] = {"index": {"time": 1}, "size": 24, "baselines": [], "nodata": -9.0}
    found = evaluate(cube, across="variables", **options)
    assert found.selection == "time 1, with the other variables"
    assert found.scores[WITH_SLICES].crps < 0.5 * found.scores[OURS].crps
    both = evaluate(cube, across=("time", "variables"), **options)
    assert both.selection == "time 1, with neighbouring slices along time and the other variables"
    with pytest.raises(InputError, match="No slices along across='variables': expected 'time'"):
        evaluate(cube["height"], across="variables")


def test_a_whole_slice_is_hidden() -> None:
    steps = np.arange(9)
    cube = xr.concat([raster(FIELD + 0.5 * k, gap=False) for k in steps], xr.Variable("time", steps)).isel(x=slice(24))
    options: dict[str, Any] = {"across": "time", "index": {"time": 4}, "holdout": "slice"}
    found = evaluate(cube, empty_slices=True, **options)
    assert list(found.scores) == [WITH_SLICES, "linear_across", "whittaker", "dineof"]
    assert found.scores["linear_across"].rmse < 1e-6
    assert found.scores[WITH_SLICES].rmse < 0.1
    assert found.scores[WITH_SLICES].cells == cube[0].size
    assert "All 960 observed cells of the slice are hidden" in found.setting
    page = render(found)
    assert "over 32" in page
    assert "The hidden slice" in page
    with pytest.raises(InputError, match=r"got empty_slices=False\. Give across='time' and empty_slices=True"):
        evaluate(cube, **options)
    with pytest.raises(InputError, match=r"none of them has enough observations in other slices\. Take a stack"):
        evaluate(cube[3:6], empty_slices=True, **options | {"index": {"time": 1}})
    with pytest.raises(InputError, match="harmonic needs across, and a stack that spans a year or several days"):
        evaluate(cube, empty_slices=True, baselines=["harmonic"], **options)


@pytest.mark.parametrize("across", [None, "time", "variables"])
def test_empty_slices_need_other_slices(across: str | None) -> None:
    one = raster().expand_dims("time")
    for holdout in ("slice", "clouds"):
        with pytest.raises(InputError, match=r"got none along across=.*, expected a dimension with several slices"):
            evaluate(one.to_dataset().assign(b=one), holdout=holdout, across=across, empty_slices=True)


def test_empty_slices_beside_the_evaluated_one_are_no_stack(model: str) -> None:
    cube = xr.concat([raster(), raster() * np.nan], "time")
    found = evaluate(cube, model=model, across="time")
    assert list(found.scores) == [WITH_SLICES, OURS, *METHODS]
    with pytest.raises(InputError, match=r"The model fills none of the .* hidden cells"):
        evaluate(cube, model=model, across="time", holdout="slice", empty_slices=True)


def test_a_lazy_fill_is_computed_once() -> None:
    calls = []

    def fill() -> np.ndarray:
        calls.append(1)
        return np.ones((3, 2, 2))

    results = da.from_delayed(dask.delayed(fill)(), (3, 2, 2), float)
    names = ("height", "height_standard_error", "height_tail")
    filled = xr.Dataset({n: (("y", "x"), results[k]) for k, n in enumerate(names)})
    mean, error, tail, _ = moments(filled, "height")
    assert (mean.sum(), error.sum(), tail.sum(), len(calls)) == (4, 4, 4, 1)


def test_covariates_that_cannot_be_used_are_refused() -> None:
    ds = covered()
    with pytest.raises(InputError, match="'height' itself, which the hidden cells could be read from"):
        evaluate(ds["height"], covariates=ds["height"].copy(deep=True))
    with pytest.raises(InputError, match=r"expected some of nearest.*regression_kriging needs covariates"):
        evaluate(ds["height"], baselines=["regression_kriging"])
    stack = ds["dem"].expand_dims(time=[0, 1])
    whole = xr.Dataset({"height": ds["height"], "dem": stack, "other": stack})
    with pytest.raises(InputError, match="'dem' varies along 'time', but 'height' does not"):
        evaluate(whole[["height", "dem"]], covariates="dem")


@pytest.mark.filterwarnings("error")
def test_codes_of_classes_are_doubted(model: str) -> None:
    patches = np.random.default_rng(0).choice([2, 3, 7, 11, 18], (12, 12)).repeat(4, 0).repeat(4, 1)
    with pytest.raises(UserWarning, match="evaluated as numbers, but holds 5 distinct whole numbers from 2 to 18, and"):
        raster(patches.astype(float)).drop_attrs().geonp.evaluate(model=model)


@pytest.mark.filterwarnings("error")
def test_rare_events_are_doubted(model: str) -> None:
    events = np.random.default_rng(0).poisson(0.1, (48, 48)).astype(float)
    with pytest.raises(UserWarning, match=r"evaluated as numbers, but 9\d% of the observed values are 0, and .*counts"):
        raster(events).drop_attrs().geonp.evaluate(model=model)
