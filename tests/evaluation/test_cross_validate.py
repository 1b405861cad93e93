"""Cross-validation of measurements: folds, what predictions see, baselines, and the command."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import geonp
from geonp.cli.app import main
from geonp.cli.evaluate import POINT_HOLDOUTS
from geonp.errors import InputError
from geonp.evaluation.folds import FOLDS, folds_of
from geonp.evaluation.report import render
from geonp.evaluation.scored import OURS, WITH_COVARIATES
from geonp.scattered.repeats import numbers_of_places


def table(stations: int = 24, times: int = 1, seed: int = 0) -> pd.DataFrame:
    """A plane with noise, with one value that is wrong, at the places of stations on some days."""
    rng = np.random.default_rng(seed)
    x, y = (np.tile(rng.uniform(0, 20, stations), times) for _ in "xy")
    day = np.repeat(pd.date_range("2020-01-01", periods=times), stations)
    value = x + 2 * y + 0.1 * rng.standard_normal(x.size)
    value[3] += 30
    frame = pd.DataFrame({"lon": x, "lat": y, "height": rng.standard_normal(x.size), "value": value})
    return frame if times == 1 else frame.assign(day=day)


def folds(kind: str, frame: pd.DataFrame, **options: Any) -> Any:
    xy = frame[["lon", "lat"]].to_numpy()
    when = pd.factorize(frame["day"])[0] if "day" in frame else None
    return folds_of(kind, 4, xy, numbers_of_places(xy, False), when, np.random.default_rng(0), **options)


def test_folds_hide_what_belongs_together() -> None:
    frame = table(times=8)
    station, day = (frame.groupby(name).ngroup().to_numpy() for name in (["lon", "lat"], "day"))
    assert np.bincount(folds("random", frame)).tolist() == [48] * 4
    assert len(np.unique(folds("one", frame))) == len(frame)
    of_stations = folds("stations", frame)
    assert all(len(np.unique(of_stations[station == one])) == 1 for one in range(24))
    blocks = folds("blocks", frame, block_size=5.0)
    block = (frame[["lon", "lat"]] - frame[["lon", "lat"]].min()).floordiv(5.0).groupby(["lon", "lat"]).ngroup()
    assert pd.Series(blocks).groupby(block.to_numpy()).nunique().eq(1).all()
    default = folds("blocks", frame)
    assert pd.Series(default).groupby(station).nunique().eq(1).all()
    assert len(np.unique(default)) == 4
    periods = folds("periods", frame)
    of_first = periods[station == 0][np.argsort(day[station == 0])]
    assert of_first.reshape(4, 2).std(1).max() == 0
    assert len(np.unique(of_first)) == 4
    assert len({int(periods[(station == one) & (day == 0)][0]) for one in range(24)}) > 1
    repeated = pd.concat([table(), table()])
    random = folds("random", repeated)
    assert (random[:24] == random[24:]).all()


def test_a_doubtful_place_is_named_once(model: str, recwarn: pytest.WarningsRecorder) -> None:
    frame = table(12).assign(lat=lambda rows: rows["lat"] + 40)
    frame.loc[5, ["lon", "lat"]] = 0.0
    warnings.simplefilter("always")
    geonp.cross_validate(frame, values="value", baselines=["nearest"], folds=3, model=model)
    assert len([one for one in recwarn if "lie at lon=0, lat=0, far from all others" in str(one.message)]) == 1


@pytest.mark.parametrize("options", [{}, {"time": "day", "holdout": "stations"}], ids=["one-time", "times"])
def test_no_prediction_sees_its_own_fold(options: dict[str, Any], float32: None) -> None:
    frame = table(12, 2) if options else table()
    options = {"values": "value", "folds": 3, **options}
    before = geonp.cross_validate(frame, **options)
    fold = before.measurements["fold"].to_numpy()
    changed = geonp.cross_validate(frame.assign(value=frame["value"] + 100.0 * (fold == 1)), **options)
    assert before.scored.all()
    for method, prediction in before.predictions.items():
        # the parameters of kriging are those of all measurements
        if method != "kriging":
            np.testing.assert_array_equal(prediction.mean[fold == 1], changed.predictions[method].mean[fold == 1])
            assert (prediction.mean[fold != 1] != changed.predictions[method].mean[fold != 1]).any(), method


def test_baselines_know_a_plane_and_the_nearest_value(model: str) -> None:
    frame = table().assign(value=lambda f: f["lon"] + 2 * f["lat"])
    found = geonp.cross_validate(frame, values="value", holdout="one", model=model, crs="EPSG:4326")
    xy = frame[["lon", "lat"]].to_numpy()
    apart = np.linalg.norm(xy[:, None] - xy, axis=-1) + 1e9 * np.eye(len(xy))
    share = (found.predictions["nearest"].mean == frame["value"].to_numpy()[apart.argmin(1)]).mean()
    assert share > 0.9  # distances on the sphere are not quite those of degrees
    assert np.abs(found.predictions["thin_plate"].mean - frame["value"]).max() < 1.0
    assert found.scores["thin_plate"].rmse < 0.1 * found.scores["nearest"].rmse
    assert found.distance_unit == "km"
    np.testing.assert_allclose(found.distance, 111.2 * apart.min(1), rtol=0.07)


def test_inverse_distances_weigh_the_other_measurements(float32: None) -> None:
    x, value = np.array([0.0, 1.0, 3.0, 7.0, 13.0, 14.0]), np.array([1.0, 2.0, 6.0, 5.0, 8.0, 7.0])
    frame = pd.DataFrame({"x": x, "y": 0.0, "value": value})
    found = geonp.cross_validate(frame, values="value", holdout="one", baselines=["inverse_distance"])
    expected = np.average(np.delete(value, 1), weights=np.delete(x - 1, 1) ** -2.0)
    assert found.predictions["inverse_distance"].mean[1] == pytest.approx(expected)


def test_missing_station_days_are_known_from_the_days_around_them(drift_model: str, float32: None) -> None:
    frame = table(times=6).assign(value=lambda f: f["value"] + f["day"].dt.day)
    options: dict[str, Any] = {"values": "value", "time": "day", "baselines": ["linear_across"], "model": drift_model}
    found = geonp.cross_validate(frame, holdout="random", at_times=["2020-01-03"], **options)
    assert int(found.wanted.sum()) == 24
    assert (found.measurements.loc[found.scored, "day"] == "2020-01-03").all()
    assert found.scores["linear_across"].rmse < 0.5
    frame = found.to_frame()
    assert (frame["scored"] == (frame["day"] == "2020-01-03")).all()
    error = (frame["predicted"] - frame["value"])[frame["scored"]]
    assert np.sqrt(np.mean(error**2)) == pytest.approx(found.scores[OURS].rmse)


def test_asked_times_are_those_of_the_column_although_other_times_have_no_values(
    drift_model: str, float32: None
) -> None:
    """The measurements of the day before were scored."""
    frame = table(times=4)
    frame.loc[frame["day"] == "2020-01-02", "value"] = np.nan
    options: dict[str, Any] = {"time": "day", "baselines": [], "model": drift_model}
    found = geonp.cross_validate(frame, values="value", at_times=["2020-01-03"], **options)
    assert (found.measurements.loc[found.wanted, "day"] == "2020-01-03").all()
    assert found.wanted.sum() == 24


def test_values_between_uneven_times_are_linear_in_time(drift_model: str, float32: None) -> None:
    """They were linear in the number of the time."""
    frame = table(times=4).assign(day=lambda f: f["day"].replace("2020-01-04", "2020-04-01"))
    frame["value"] = 2.0 * frame["day"].dt.day_of_year + frame["lon"]
    options: dict[str, Any] = {"time": "day", "holdout": "periods", "folds": 4, "baselines": ["linear_across"]}
    found = geonp.cross_validate(frame, values="value", at_times=["2020-01-03"], model=drift_model, **options)
    np.testing.assert_allclose(found.predictions["linear_across"].mean[found.wanted], frame["value"][found.wanted])


def test_a_time_with_one_measurement_is_not_scored(drift_model: str, float32: None) -> None:
    """Its distance to others, which it does not have, ended in a ValueError."""
    frame = table(times=4)
    found = geonp.cross_validate(frame.iloc[:73], values="value", time="day", folds=3, model=drift_model)
    assert found.scored.tolist() == [True] * 72 + [False]
    assert np.isfinite([scores.crps for scores in found.scores.values()]).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"holdout": "clouds"}, "expected one of random, one, blocks, stations, periods"),
        ({"holdout": "periods"}, r"needs times: name their column, time=\.\.\. \(--time\)"),
        ({"seed": -1}, "Wrong seed: got -1, expected an integer of at least 0"),
        ({"folds": 1}, "Wrong number of folds: got 1, expected an integer of at least 2"),
        ({"folds": 2.5}, "Wrong number of folds: got 2.5"),
        ({"holdout": "blocks", "block_size": 0.0}, "Wrong block_size: got 0.0, expected a positive length"),
        ({"block_size": 4.0}, r"block_size .* is for the hold-out 'blocks': got 4.0 with 'random'"),
        ({"max_distance": 1e-6}, "None of the 24 measurements of 'value' can be predicted from the other folds"),
        ({"folds": 25}, "fewer places and times than folds: got 24 and folds=25"),
        ({"baselines": ["regression_kriging"]}, "regression_kriging needs covariates"),
        ({"at_times": [1]}, "at_times needs time"),
        ({"values": "height", "time": "value", "baselines": ["nearest"]}, "None of the 24 measurements of 'height'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(options: dict[str, Any], text: str, model: str) -> None:
    with pytest.raises(InputError, match=text):
        geonp.cross_validate(table(), **{"values": "value", "model": model, **options})
    with pytest.raises(InputError, match=r"Evaluate measurements with geonp\.cross_validate"):
        geonp.evaluate(table())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["distance", "nearest"])
def test_measurements_that_are_called_as_a_result(name: str, model: str) -> None:
    """Scores were those of distances."""
    with pytest.raises(InputError, match=f"the column '{name}' has the name of a result of the evaluation: rename it"):
        geonp.cross_validate(table().rename(columns={"value": name}), values=name, model=model)


def test_degrees_that_are_not_called_so_are_refused(model: str) -> None:
    """The error was about a grid, which a cross-validation does not have."""
    with pytest.raises(InputError, match="WGS 84 is in degrees: rename the columns 'x' and 'y' to lon and lat"):
        geonp.cross_validate(table().rename(columns={"lon": "x", "lat": "y"}), values="value", crs=4326, model=model)


def test_classes_and_known_errors_are_used_by_all_who_can(float32: None) -> None:
    frame = table(32).assign(kind=lambda f: np.where(f.index % 3 == 0, "wood", "lake"), sigma=0.1)
    frame["value"] += 20.0 * (frame["kind"] == "wood")
    options: dict[str, Any] = {"values": "value", "errors": "sigma", "covariates": "kind"}
    found = geonp.cross_validate(frame, baselines=["kriging", "regression_kriging"], folds=2, **options)
    assert found.scores["regression_kriging"].mae < 0.5 * found.scores["kriging"].mae
    assert found.scores[WITH_COVARIATES].mae < 0.5 * found.scores[OURS].mae
    assert "with the covariate kind" in found.selection
    assert "with the known errors sigma" in found.selection


def test_what_is_doubtful_in_a_fold_alone_is_no_warning(drift_model: str, float32: None) -> None:
    frame = table(12).assign(kind=["only"] + ["lake"] * 6 + ["wood"] * 5)
    frame.loc[1, ["lon", "lat"]], frame.loc[2, ["lon", "lat"]] = (50.0, 50.0), (50.1, 50.1)
    options: dict[str, Any] = {"values": "value", "baselines": ["nearest"], "model": drift_model}
    geonp.cross_validate(frame, holdout="one", covariates="kind", **options)
    geonp.cross_validate(frame, holdout="blocks", block_size=25.0, **options)


def test_the_command_prints_scores_and_writes_pages_and_tables(tmp_path: Path, drift_model: str, float32: None) -> None:
    source, report, out = tmp_path / "a.csv", tmp_path / "a.html", tmp_path / "p.csv"
    table().to_csv(source, index=False)
    options = ["--value", "value", "--covariate", "height", "--folds", "3", "--model", drift_model]
    run = CliRunner().invoke
    done = run(main, ["evaluate", str(source), *options, "--report", str(report), "--predictions", str(out), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["scores"]) == [
        *("geonp + covariates", "geonp", "nearest", "linear", "inverse_distance"),
        *("thin_plate", "kriging", "regression_kriging"),
    ]
    assert found["scores"]["geonp"]["cells"] == 24
    assert found["doubtful"][0]["value"] == pytest.approx(table()["value"][3], rel=1e-5)
    written = pd.read_csv(out)
    np.testing.assert_allclose(written["value"], table()["value"])
    assert written["scored"].all()
    error = np.sqrt(np.mean((written["predicted"] - written["value"]) ** 2))
    assert found["scores"]["geonp + covariates"]["rmse"] == pytest.approx(error)
    assert "Farthest outside of their 95% intervals" in report.read_text()
    refused = run(main, ["evaluate", str(source), *options, "--predictions", str(source)])
    assert "The input and the output are the same" in refused.stderr
    assert len(pd.read_csv(source)) == 24
    refused = run(main, ["evaluate", str(source), "--fraction", "0.1"])
    assert "--fraction does not apply to IN, which is a table" in refused.stderr
    refused = run(main, ["evaluate", str(source), "--holdout", "one", "--folds", "3"])
    assert "--folds does not apply to --holdout one: each measurement is one" in refused.stderr
    assert refused.exit_code == 2
    assert set(FOLDS) == set(POINT_HOLDOUTS)


def test_text_from_tables_is_escaped(model: str) -> None:
    page = render(geonp.cross_validate(table().rename(columns={"value": "<b>"}), values="<b>", folds=2, model=model))
    assert "<b>" not in page


def test_measurements_of_one_period_are_of_one_time(drift_model: str, tmp_path: Path) -> None:
    days = table(times=3).rename(columns={"day": "time"})
    hours = days.assign(time=days["time"] + pd.to_timedelta(np.arange(len(days)) % 24, "h"))
    asked: dict[str, Any] = {"values": "value", "time": "time", "baselines": ["nearest", "linear_across"], "folds": 3}
    asked["model"] = drift_model
    expected, found = geonp.cross_validate(days, **asked), geonp.cross_validate(hours, every="1D", **asked)
    pd.testing.assert_frame_equal(found.to_frame(), expected.to_frame())
    with pytest.raises(InputError, match=r"every needs time: name the column of times, time=\.\.\. \(--time\)"):
        geonp.cross_validate(days.drop(columns="time"), values="value", every="1D")
    hours.to_csv(tmp_path / "hours.csv", index=False)
    arguments = ["evaluate", str(tmp_path / "hours.csv"), "--value", "value", "--time", "time", "--every", "1D"]
    arguments += [
        "--baseline",
        "nearest",
        "--baseline",
        "linear_across",
        "--folds",
        "3",
        "--json",
        "--model",
        drift_model,
    ]
    said = json.loads(CliRunner().invoke(main, arguments, catch_exceptions=False).stdout)
    for scores in ((reported := found.to_dict()["scores"]), said["scores"]):
        for one in scores.values():
            del one["seconds"]
    assert said["scores"] == reported
