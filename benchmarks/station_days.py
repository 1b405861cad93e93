"""Measurements in space and time: daily maxima at stations, with hidden station-days and hidden stations.

Run as ``python benchmarks/station_days.py [--data ../shared/data] [--days 40] [--model tnpkr-sa]``. A tenth of the
station-days and a tenth of the stations are hidden. The settings of ``scattered/across_times.py`` were chosen on 1991;
the periods here are of 1992 and 1993. Space-time kriging is that of ``whole_dates.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from whole_dates import kriging_at, scores

import geonp

Array = npt.NDArray[np.float64]
Score = tuple[float, float, float]

PERIODS = {"summer": "1992-06-15", "winter": "1993-01-10"}
MARGIN = 16
"""Days before and after, which are known and not scored."""
SHARE = 0.1
KM_PER_DEGREE = 111.2


def periods(folder: Path, days: int) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name of each period, and its measurements with a margin."""
    with xr.open_dataset(folder / "stations_noaa_us_tmax_daily_1990_1993.nc") as ds:
        for name, first in PERIODS.items():
            start = int(ds.indexes["time"].get_loc(first)) - MARGIN
            part = ds["tmax"].isel(time=slice(start, start + days + 2 * MARGIN))
            yield name, part.to_dataframe().reset_index().dropna(subset=["tmax"])


def hide(table: pd.DataFrame, rng: np.random.Generator) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the hidden station-days and of the rows of hidden stations."""
    stations = table["station"].unique()
    lost = table["station"].isin(rng.choice(stations, round(SHARE * len(stations)), replace=False)).to_numpy()
    return (rng.random(len(table)) < SHARE) & ~lost, lost


def compared(table: pd.DataFrame, seed: int, model: str) -> dict[tuple[str, str], Score]:
    """Scores by what is hidden and method."""
    rng = np.random.default_rng(seed)
    of_days, of_stations = hide(table, rng)
    day = (table["time"] - table["time"].min()).dt.days.to_numpy(np.float64)
    scored = (day >= MARGIN) & (day <= day.max() - MARGIN)
    known = table[~of_days & ~of_stations]
    found = {}
    for what, mask in (("station-days", of_days & scored), ("stations", of_stations & scored)):
        wanted = table[mask]
        truth = wanted["tmax"].to_numpy(np.float64)
        columns = ["time", "lon", "lat"]
        with_time = geonp.interpolate(
            known[[*columns, "tmax"]], wanted[columns], values="tmax", time="time", tails=True, model=model
        )
        found[what, "geonp, time"] = scores(truth, *moments(with_time))
        parts = []
        for time, rows in wanted.groupby("time"):
            that_day = known.loc[known["time"] == time, ["lon", "lat", "tmax"]]
            one = moments(geonp.interpolate(that_day, rows[["lon", "lat"]], tails=True, model=model))
            parts.append(pd.DataFrame(dict(zip("abc", one, strict=True)), index=rows.index))
        found[what, "geonp, each day alone"] = scores(truth, *pd.concat(parts).loc[wanted.index].to_numpy().T)
        values = known["tmax"].to_numpy(np.float64)
        kriged = kriging_at(plane(known), day[~of_days & ~of_stations], values, plane(wanted), day[mask], rng)
        found[what, "space-time kriging"] = scores(truth, *kriged)
    return found


def moments(result: xr.Dataset) -> tuple[Array, Array, Array]:
    """Mean, standard error and tail."""
    mean, error, tail = (result[f"tmax{end}"].values.astype(np.float64) for end in ("", "_standard_error", "_tail"))
    return mean, error, tail


def plane(table: pd.DataFrame) -> Array:
    """Places in units of 50 km, about those of cells."""
    lat = table["lat"].to_numpy(np.float64)
    return np.stack([lat, table["lon"].to_numpy(np.float64) * np.cos(np.radians(39.0))], 1) * KM_PER_DEGREE / 50


def main() -> None:
    """Print the scores of all methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--days", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--model", default="tnpkr-sa")
    arguments = parser.parse_args()
    print("| period | hidden | method | CRPS (F) | RMSE (F) | within 95 % interval |")
    print("|---|---|---|---:|---:|---:|")
    for name, table in periods(arguments.data, arguments.days):
        of_seeds = [compared(table, seed, arguments.model) for seed in range(arguments.seeds)]
        for what, method in of_seeds[0]:
            crps, rmse, inside = np.mean([one[what, method] for one in of_seeds], 0)
            print(f"| {name} | {what} | {method} | {crps:.3f} | {rmse:.3f} | {inside:.3f} |", flush=True)


if __name__ == "__main__":
    main()
