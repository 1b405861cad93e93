"""Small networks: stations that miss runs of days, beside means of stations and days.

Run as ``python benchmarks/networks.py [--data ../shared/data] [--stations 7 12 30 80] [--seeds 3]``. Networks are the
stations nearest to one of the daily maxima (NOAA), cells of ERA5 at random, hour by hour, and draws of processes in
space and time with levels of stations; all have 40 times. Each station misses an eighth to three eighths of them, in
runs of up to 20. *Means* are those of stations and times, by least squares; *lines* are linear in time at each station,
with the error of leaving out one time. *Alone* is geonp without other times, where a time has four measurements.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from whole_dates import scores

import geonp

Array = npt.NDArray[np.float64]
Moments = tuple[Array, Array]

TIMES = 40
SHARE = 0.25
LONGEST = 20


def noaa(folder: Path, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Daily maxima at the stations nearest to one of them."""
    with xr.open_dataset(folder / "stations_noaa_us_tmax_daily_1990_1993.nc") as ds:
        often = ds.isel(station=(ds["tmax"].notnull().mean("time") > 0.9).values).load()
    xy = np.stack([often["lat"], often["lon"] * np.cos(np.radians(39.0))], 1)
    near = np.argsort(((xy - rng.choice(xy)) ** 2).sum(1))[:n]
    first = rng.integers(often.sizes["time"] - TIMES)
    part = often["tmax"].isel(station=near, time=slice(first, first + TIMES))
    return part.to_dataframe("value").reset_index().rename(columns={"lon": "x", "lat": "y"})


def era5(folder: Path, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Hourly temperature at some cells."""
    with xr.open_dataset(folder / "era5_t2m_uk_2019-03_hourly.nc") as ds:
        t2m = ds["t2m"].stack(station=("latitude", "longitude"))
        cells = rng.choice(t2m.sizes["station"], n, replace=False)
        first = rng.integers(t2m.sizes[t2m.dims[0]] - TIMES)
        part = t2m.isel({t2m.dims[0]: slice(first, first + TIMES), "station": cells}).load()
    values = part.values.ravel()
    rows = {"time": np.repeat(part[part.dims[0]].values, n), "station": np.tile(cells, TIMES), "value": values}
    return pd.DataFrame(rows).assign(x=np.tile(part["longitude"], TIMES), y=np.tile(part["latitude"], TIMES))


def drawn(folder: Path, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A process that is exponential in space and time, levels of stations, and noise."""
    del folder
    xy, time = 100 * rng.random((n, 2)), np.arange(TIMES)
    lag, distance = np.abs(time[:, None] - time), np.linalg.norm(xy[:, None] - xy, axis=-1)
    in_time = np.linalg.cholesky(np.exp(-lag / rng.choice([2.0, 5.0, 20.0])) + 1e-9 * np.eye(TIMES))
    in_space = np.linalg.cholesky(np.exp(-distance / rng.choice([20.0, 60.0, 150.0])) + 1e-9 * np.eye(n))
    values = in_time @ rng.standard_normal((TIMES, n)) @ in_space.T
    values += rng.choice([0.3, 1.0, 2.0]) * rng.standard_normal(n) + 0.2 * rng.standard_normal((TIMES, n))
    dates = np.repeat(pd.date_range("2000-01-01", periods=TIMES), n)
    rows = {"time": dates, "station": np.tile(np.arange(n), TIMES), "value": values.ravel()}
    return pd.DataFrame(rows).assign(x=np.tile(xy[:, 0], TIMES), y=np.tile(xy[:, 1], TIMES))


NETWORKS: dict[str, Callable[[Path, int, np.random.Generator], pd.DataFrame]] = {
    "NOAA": noaa,
    "ERA5": era5,
    "drawn": drawn,
}


def hide(table: pd.DataFrame, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Mask of the hidden rows, in runs of times at each station."""
    time, station = (pd.factorize(table[name], sort=True)[0] for name in ("time", "station"))
    hidden = np.zeros((TIMES, station.max() + 1), bool)
    for column in hidden.T:
        wanted = SHARE * rng.uniform(0.5, 1.5)
        while column.mean() < wanted:
            first = rng.integers(TIMES)
            column[first : first + rng.integers(1, LONGEST)] = True
    return hidden[time, station]


def with_geonp(known: pd.DataFrame, wanted: pd.DataFrame, time: str | None, model: str) -> Moments:
    """Predictions and standard errors with other times; without a name of `time`, of each time alone."""
    if time is None:
        # some times have measurements far from the hidden ones only
        warnings.filterwarnings("ignore", "no measurement lies near")
        out = np.full((2, len(wanted)), np.nan)
        for at, rows in wanted.groupby("time").indices.items():
            there = known[known["time"] == at]
            if len(there) >= 4:
                one = geonp.interpolate(there[["x", "y", "value"]], wanted.iloc[rows][["x", "y"]], model=model)
                out[:, rows] = one["value"], one["value_standard_error"]
        return out[0], out[1]
    columns = ["time", "x", "y"]
    found = geonp.interpolate(known[[*columns, "value"]], wanted[columns], values="value", time=time, model=model)
    return found["value"].values.astype(float), found["value_standard_error"].values.astype(float)


def means(known: pd.DataFrame, wanted: pd.DataFrame) -> Moments:
    """Means of stations and of times, by least squares."""
    of_station, of_time = (pd.Series(0.0, known[name].unique()) for name in ("station", "time"))
    for _ in range(50):
        of_station = (known["value"] - known["time"].map(of_time)).groupby(known["station"]).mean()
        of_time = (known["value"] - known["station"].map(of_station)).groupby(known["time"]).mean()
    left = known["value"] - known["station"].map(of_station) - known["time"].map(of_time)
    free = len(known) - len(of_station) - len(of_time) + 1
    found = wanted["station"].map(of_station) + wanted["time"].map(of_time)
    return found.to_numpy(), np.full(len(wanted), np.sqrt(np.sum(left**2) / free))


def lines(known: pd.DataFrame, wanted: pd.DataFrame) -> Moments:
    """Linear between the nearest times of a station."""
    mean, error = np.full((2, len(wanted)), np.nan)
    seconds = known["time"].to_numpy().astype("M8[s]").astype(float), wanted["time"].to_numpy().astype("M8[s]")
    for station, rows in wanted.groupby("station").indices.items():
        own = (known["station"] == station).to_numpy()
        t, z = seconds[0][own], known["value"].to_numpy()[own]
        mean[rows] = np.interp(seconds[1][rows].astype(float), t, z)
        weight = (t[1:-1] - t[:-2]) / (t[2:] - t[:-2])
        error[rows] = np.sqrt(np.mean((z[1:-1] - (1 - weight) * z[:-2] - weight * z[2:]) ** 2))
    return mean, error


def main() -> None:
    """Print the scores of all methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--stations", type=int, nargs="+", default=[7, 12, 30, 80])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="tnpkr-sa")
    arguments = parser.parse_args()
    print("| network | stations | method | CRPS over geonp | RMSE over geonp | within 95 % interval |")
    print("|---|---:|---|---:|---:|---:|")
    for name, draw in NETWORKS.items():
        for n in arguments.stations:
            found: dict[str, list[tuple[float, float, float]]] = {}
            for seed in range(arguments.seeds):
                rng = np.random.default_rng(seed)
                table = draw(arguments.data, n, rng).dropna(subset="value").reset_index(drop=True)
                hidden = hide(table, rng)
                known = table[~hidden]
                # other methods know nothing of times without a measurement, and of such stations
                seen = table["time"].isin(known["time"]) & table["station"].isin(known["station"])
                wanted = table[hidden & seen].reset_index(drop=True)
                truth = wanted["value"].to_numpy(np.float64)
                with_time = with_geonp(known, wanted, "time", arguments.model)
                for method, moments in (
                    ("geonp, time", with_time),
                    ("geonp, alone", with_geonp(known, wanted, None, arguments.model)),
                    ("means", means(known, wanted)),
                    ("lines", lines(known, wanted)),
                ):
                    ok = np.isfinite(moments[0]) & (moments[1] > 0)
                    own = scores(truth[ok], with_time[0][ok], with_time[1][ok])
                    crps, rmse, inside = scores(truth[ok], moments[0][ok], moments[1][ok])
                    found.setdefault(method, []).append((np.log(crps / own[0]), np.log(rmse / own[1]), inside))
            for method, values in found.items():
                crps, rmse, inside = np.mean(values, 0)
                print(
                    f"| {name} | {n} | {method} | {np.exp(crps):.2f} | {np.exp(rmse):.2f} | {inside:.3f} |", flush=True
                )


if __name__ == "__main__":
    main()
