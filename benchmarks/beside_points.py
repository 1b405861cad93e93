"""Scattered measurements with covariates: weather stations with elevation, and soil samples with sensor data.

Each method predicts every measurement once, from the other folds. Run as
``python benchmarks/beside_points.py [--stations] [--soil SET ...] [--model tnpkr-sa]``; the soil sets are those of the
package LimeSoDa (Schmidinger et al. 2024, CC BY-SA 4.0), which must be installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import geonp
from geonp.evaluation.metrics import Scores, score

SHARED = Path(__file__).parents[2] / "shared" / "data"
SETS = ["B.204", "BB.250", "G.104", "G.150", "MG.112", "MGS.101", "SP.231"]
MOST = 16
COMPONENTS = 8
FOLDS = 10

Array = npt.NDArray[np.float64]
Prediction = tuple[Array, Array, Array]
Method = Callable[[pd.DataFrame, pd.DataFrame, list[str], str], Prediction]


def main() -> None:
    """Print the scores of all methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stations", action="store_true", help="NOAA stations, with the elevation of a raster")
    parser.add_argument("--soil", nargs="*", default=[], metavar="SET", help=f"LimeSoDa sets, such as {' '.join(SETS)}")
    parser.add_argument("--days", type=int, default=6)
    parser.add_argument("--methods", nargs="*", default=[], metavar="METHOD", help="default: all")
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    arguments = parser.parse_args()
    methods = {name: METHODS[name] for name in ["geonp alone", *arguments.methods]} if arguments.methods else METHODS
    print("| data | n | covariates | method | CRPS, relative | RMSE, relative | within 95 % interval |")
    print("|---|---:|---:|---|---:|---:|---:|")
    if arguments.stations:
        report("NOAA stations, daily maxima", [list(stations(arguments.days))], arguments.model, methods)
    for name in arguments.soil:
        report(name, list(soil(name)), arguments.model, methods)


Fold = tuple[pd.DataFrame, pd.DataFrame, list[str]]
"""Measurements, hidden ones, both with columns x, y and value, and names of covariates."""


def stations(days: int) -> Iterator[Fold]:
    """Random tenths of the stations on some days, with the elevation of the raster at the stations."""
    tmax = xr.open_dataset(SHARED / "stations_noaa_us_tmax_daily_1990_1993.nc")["tmax"]
    dem = xr.open_dataset(SHARED / "elevation_on_gridmet_conus.nc")["elevation"]
    rng = np.random.default_rng(0)
    for day in np.linspace(0, tmax.sizes["time"], days, endpoint=False).astype(int):
        table = tmax.isel(time=day).to_dataframe().dropna()[["lon", "lat", "tmax"]].reset_index(drop=True)
        at = {name: xr.DataArray(table[name].to_numpy(), dims="point") for name in ("lon", "lat")}
        table["elevation"] = dem.interp(at, method="linear").values
        table = table.rename(columns={"tmax": "value"})
        for fold in np.array_split(rng.permutation(len(table)), FOLDS):
            yield table.drop(table.index[fold]), table.iloc[fold], ["elevation"]


def soil(name: str) -> Iterator[list[Fold]]:
    """For each soil property, the given folds, with the first 16 covariates, or the first components of spectra."""
    from LimeSoDa import load_dataset

    data = load_dataset(name)
    table, folds = data["Dataset"].reset_index(drop=True), np.asarray(data["Folds"]).ravel()
    properties = [column for column in table if column.endswith("_target")]
    covariates = table.drop(columns=properties)
    xy = data["Coordinates"].to_numpy(np.float64)
    for of in properties:
        made = []
        for fold in np.unique(folds):
            hidden = folds == fold
            known = covariates
            if covariates.shape[1] > 2 * MOST:
                spread = PCA(COMPONENTS).fit(covariates[~hidden])
                known = pd.DataFrame(spread.transform(covariates)).add_prefix("component")
            known = known.iloc[:, :MOST]
            whole = known.assign(x=xy[:, 0], y=xy[:, 1], value=table[of])
            made.append((whole[~hidden], whole[hidden], list(known.columns)))
        yield made


def report(title: str, groups: list[list[Fold]], model: str, methods: dict[str, Method]) -> None:
    """Print scores relative to geonp without covariates: geometric means over groups of folds."""
    totals: dict[str, list[Scores]] = {}
    for folds in groups:
        for name, method in methods.items():
            total = None
            for known, hidden, covariates in folds:
                truth = hidden["value"].to_numpy(np.float64)
                mean, error, tail = method(known, hidden, covariates, model)
                scores = score(truth, mean, error, np.ones(len(truth), bool), tail)
                total = scores if total is None else total + scores
            assert total is not None
            totals.setdefault(name, []).append(total)
    n = sum(len(hidden) for _, hidden, _ in groups[0])
    for name, found in totals.items():
        pairs = list(zip(found, totals["geonp alone"], strict=True))
        crps = np.exp(np.mean([np.log(one.crps / alone.crps) for one, alone in pairs]))
        rmse = np.exp(np.mean([np.log(one.rmse / alone.rmse) for one, alone in pairs]))
        inside = np.mean([scores.coverage(0.95) for scores in found])
        print(
            f"| {title} | {n} | {len(groups[0][0][2])} | {name} | {crps:.3f} | {rmse:.3f} | {inside:.1%} |", flush=True
        )


def geonp_alone(known: pd.DataFrame, hidden: pd.DataFrame, _: list[str], model: str) -> Prediction:
    """The model without covariates."""
    return geonp_with(known, hidden, [], model)


def geonp_with(known: pd.DataFrame, hidden: pd.DataFrame, covariates: list[str], model: str) -> Prediction:
    """The model with covariates."""
    place = coordinates(known)
    out = geonp.interpolate(
        known[[*place, "value", *covariates]],
        hidden[[*place, *covariates]],
        values="value",
        covariates=covariates or None,
        model=model,
        tails=True,
    )
    mean, error, tail = (out["value" + part].values.astype(np.float64) for part in ("", "_standard_error", "_tail"))
    return mean, error, tail


def process_alone(known: pd.DataFrame, hidden: pd.DataFrame, _: list[str], model: str) -> Prediction:
    """A Gaussian process without covariates."""
    return regression_kriging(known, hidden, [], model)


def regression_kriging(known: pd.DataFrame, hidden: pd.DataFrame, covariates: list[str], _: str) -> Prediction:
    """A linear drift by generalised least squares, and a Gaussian process of its residuals."""
    design, there = (
        np.column_stack([np.ones(len(t)), (t[covariates] - known[covariates].mean()) / known[covariates].std()])
        for t in (known, hidden)
    )
    values, covariance = known["value"].to_numpy(np.float64), np.eye(len(known))
    for _step in range(2):
        weighted = np.linalg.solve(covariance, design)
        slopes = np.linalg.lstsq(weighted.T @ design, weighted.T @ values, rcond=None)[0]
        process = fitted(known, values - design @ slopes)
        covariance = process.kernel_(process.X_train_)
    return with_drift(process, hidden, there @ slopes, known)


def forest_kriging(known: pd.DataFrame, hidden: pd.DataFrame, covariates: list[str], _: str) -> Prediction:
    """A random forest of covariates and places, and a Gaussian process of its out-of-bag residuals."""
    columns = [*covariates, *coordinates(known)]
    values = known["value"].to_numpy(np.float64)
    forest = RandomForestRegressor(100, oob_score=True, min_samples_leaf=2, max_features=1 / 3, random_state=0)
    forest.fit(known[columns], values)
    return with_drift(fitted(known, values - forest.oob_prediction_), hidden, forest.predict(hidden[columns]), known)


def fitted(known: pd.DataFrame, residuals: Array) -> GaussianProcessRegressor:
    """A Gaussian process of residuals, fitted by maximum likelihood; its standard errors include the noise."""
    kernel = ConstantKernel() * Matern(10.0, (0.3, 300.0), nu=1.5) + WhiteKernel(0.3)
    return GaussianProcessRegressor(kernel, normalize_y=True).fit(plane(known, known), residuals)


def with_drift(
    process: GaussianProcessRegressor, hidden: pd.DataFrame, drift: Array, known: pd.DataFrame
) -> Prediction:
    """A drift and the process of what remains."""
    mean, error = process.predict(plane(hidden, known), return_std=True)
    return drift + mean, error, np.zeros(len(mean))


def coordinates(table: pd.DataFrame) -> list[str]:
    """Names of the columns of coordinates."""
    return ["lon", "lat"] if "lon" in table else ["x", "y"]


def plane(places: pd.DataFrame, of: pd.DataFrame) -> Array:
    """Coordinates in a plane, in units of a third of the mean distance of neighbours."""
    names = coordinates(of)
    scale = np.array([np.cos(np.radians(of["lat"].mean())) if "lat" in names else 1.0, 1.0])
    area = np.prod(np.ptp(of[names].to_numpy(np.float64) * scale, axis=0))
    return np.asarray(places[names].to_numpy(np.float64) * scale / np.sqrt(area / len(of)) * 3)


METHODS: dict[str, Method] = {
    "geonp alone": geonp_alone,
    "geonp": geonp_with,
    "GP alone": process_alone,
    "linear drift and GP": regression_kriging,
    "random forest and GP": forest_kriging,
}

if __name__ == "__main__":
    main()
