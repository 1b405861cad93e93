"""ERA5 from the Copernicus Climate Data Store: 2 m temperature and surface geopotential, a month a request, to Zarr."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import FetchError, InputError, MissingExtraError, OutputError

__all__ = ["Area", "fetch", "months"]

Area = tuple[float, float, float, float]
"""North, west, south, east, degrees."""

DATASET = "reanalysis-era5-single-levels"
VARIABLES = ("2m_temperature", "geopotential")
PLAUSIBLE_K = (150.0, 350.0)
"""Temperatures of the air that a file may hold."""

_ATTRS: dict[str, dict[str, str]] = {
    "t2m": {"standard_name": "air_temperature", "long_name": "2 metre temperature", "units": "K"},
    "z": {"standard_name": "surface_geopotential", "long_name": "geopotential of the surface", "units": "m2 s-2"},
    "latitude": {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"},
    "longitude": {"standard_name": "longitude", "units": "degrees_east", "axis": "X"},
    "time": {"standard_name": "time", "axis": "T"},
}
_ATTRS["z"]["comment"] = "divide by 9.80665 m s-2 for the elevation"
_GLOBAL = {
    "Conventions": "CF-1.11",
    "title": "ERA5 hourly 2 m temperature",
    "source": f"Copernicus Climate Data Store, {DATASET}",
    "license": "contains modified Copernicus Climate Change Service information",
}


@dataclass(frozen=True)
class Month:
    """The wanted days of one month: `first` to `last`, both included."""

    first: date
    last: date

    @property
    def name(self) -> str:
        """Such as ``2019-03``."""
        return f"{self.first:%Y-%m}"

    @property
    def hours(self) -> Any:
        """Every hour of these days, as datetime64."""
        return np.arange(np.datetime64(self.first, "h"), np.datetime64(self.last, "h") + 24).astype("datetime64[ns]")

    def request(self, area: Area) -> dict[str, Any]:
        """What is asked of the data store."""
        days = [f"{day:02d}" for day in range(self.first.day, self.last.day + 1)]
        return {
            "product_type": ["reanalysis"],
            "variable": list(VARIABLES),
            "year": [f"{self.first:%Y}"],
            "month": [f"{self.first:%m}"],
            "day": days,
            "time": [f"{hour:02d}:00" for hour in range(24)],
            "area": list(area),
            "data_format": "netcdf",
            "download_format": "unarchived",
        }


def months(start: date, end: date) -> Iterator[Month]:
    """The months from `start` to `end`, both days included, the first and last of them perhaps in part."""
    while start <= end:
        following = (start.replace(day=1) + timedelta(days=32)).replace(day=1)
        yield Month(start, min(following - timedelta(days=1), end))
        start = following


def fetch(
    area: Area,
    start: date,
    end: date,
    out: Path,
    *,
    tries: int = 3,
    wait_s: float = 120.0,
    report: Callable[[str], None] = lambda _: None,
) -> Path:
    """Download hourly ERA5 to the Zarr store `out`, month by month; a run that was cut off goes on where it stopped.

    Credentials come from where cdsapi looks for them (``CDSAPI_URL`` and ``CDSAPI_KEY``, or ``~/.cdsapirc``) and are
    never logged. Each file is checked (its hours, area and values) before it is added to the store; what is done is
    noted in ``<out>.journal.json``, and the file that is being downloaded lies beside it.

    Parameters
    ----------
    area : tuple of float
        North, west, south, east; degrees, on the 0.25 degree grid.
    start, end : date
        First and last day, both included.
    tries : int
        How often a month is asked for before giving up; the client itself repeats single requests as often.
    wait_s : float
        The longest pause between looks at a request, and the pause before another try.
    report : callable
        Told in a line what is being done.

    Returns
    -------
    Path
        The store: ``t2m (time, latitude, longitude)``, K, and the surface geopotential ``z (latitude, longitude)``,
        m2 s-2, with CF metadata.

    Raises
    ------
    InputError
        For an area or a period that cannot be.
    FetchError
        Where the data store refuses, fails, or sends files that are not what was asked for.
    OutputError
        When `out` holds something else.
    MissingExtraError
        Where cdsapi is not installed, which the extra ``geonp[era5]`` brings.
    """
    _check_request(area, start, end)
    wanted = list(months(start, end))
    asked = {"area": list(area), "start": str(start), "end": str(end)}
    journal = out.with_name(out.name + ".journal.json")
    done = _done(out, journal, asked)
    if len(done) == len(wanted):
        return out
    client = _client(tries, wait_s)
    for month in wanted:
        if month.name in done:
            continue
        report(f"{month.name}: asking for {month.first} to {month.last}")
        part = out.with_name(f"{out.name}.{month.name}.nc")
        fields = _month(client, month, area, part, tries, report)
        if not done:
            _note(journal, {**asked, "done": []})
            _create(fields, [hour for each in wanted for hour in each.hours], out)
        first = int(np.searchsorted(_times(out), month.hours[0]))
        region: Any = {"time": slice(first, first + len(month.hours))}
        fields[["t2m"]].drop_vars(["latitude", "longitude"]).to_zarr(out, region=region, consolidated=True)
        done.append(month.name)
        _note(journal, {**asked, "done": done})
        part.unlink()
        report(f"{month.name}: added to {out}")
    return out


def _check_request(area: Area, start: date, end: date) -> None:
    north, west, south, east = area
    if not (-90 <= south < north <= 90 and -180 <= west < east <= 360 and east - west <= 360):
        raise InputError(f"the area must be north west south east in degrees, got {north} {west} {south} {east}")
    if not date(1940, 1, 1) <= start <= end:
        raise InputError(f"ERA5 has days from 1940-01-01 on, got start {start}, end {end}; expected start <= end")


def _done(out: Path, journal: Path, asked: dict[str, Any]) -> list[str]:
    """Months that the store holds already."""
    if not journal.exists():
        if out.exists():
            raise OutputError(f"{out} exists and was not made by this command: choose another name, or remove it")
        return []
    noted = json.loads(journal.read_text(encoding="utf-8"))
    months_ = list(noted.pop("done"))
    if noted != asked:
        raise OutputError(f"{out} holds {noted}, but {asked} was asked for: choose another name for it")
    return months_ if out.exists() else []


def _note(journal: Path, content: dict[str, Any]) -> None:
    temporary = journal.with_suffix(".tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    os.replace(temporary, journal)


def _client(tries: int, wait_s: float) -> Any:
    try:
        import cdsapi
    except ImportError as error:
        raise MissingExtraError("cdsapi", "era5") from error

    def silent(*_: object, **__: object) -> None:
        """The client would log its key at the level of debugging."""

    try:
        return cdsapi.Client(
            quiet=True,
            progress=False,
            retry_max=tries,
            sleep_max=wait_s,
            info_callback=silent,
            debug_callback=silent,
        )
    except Exception as error:  # cdsapi raises plain Exception where url or key are missing
        raise FetchError(
            "no credentials for the Climate Data Store: expected its url and your key in ~/.cdsapirc, or in CDSAPI_URL "
            "and CDSAPI_KEY; see https://cds.climate.copernicus.eu/how-to-api"
        ) from error


def _month(client: Any, month: Month, area: Area, part: Path, tries: int, report: Callable[[str], None]) -> xr.Dataset:
    """The checked fields of a month; what an earlier run left is used if it is whole."""
    problem = ""
    for _ in range(tries + part.exists()):
        if not part.exists():
            try:
                client.retrieve(DATASET, month.request(area), str(part))
            except Exception as error:  # of requests, multiurl and the client, which has classes of its own
                problem = _refusal(error, client)
                if _final(error):
                    raise FetchError(f"{month.name}: {problem}") from None
                report(f"{month.name}: {problem}")
                continue
        try:
            return _checked(part, month, area)
        except (FetchError, OSError, ValueError, KeyError) as error:
            problem = f"the file that came is not what was asked for: {error}"
            report(f"{month.name}: {problem}")
            part.unlink(missing_ok=True)
    raise FetchError(f"{month.name}: {problem}; asked {tries} times, run the same command again later") from None


def _final(error: Exception) -> bool:
    """Whether asking again cannot help: the data store refused, or tried and failed."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return (400 <= status < 500 and status != 429) or type(error).__name__ == "ProcessingFailedError"


def _refusal(error: Exception, client: Any) -> str:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    text = " ".join(str(error).split()).replace(str(client.key), "<key>")[:300]
    if status == 401:
        return "the Climate Data Store does not know the key, or it has expired: get a new one from your profile there"
    if status == 403:
        return f"the Climate Data Store refused, perhaps as the licence of {DATASET} was not accepted: {text}"
    if status == 429:
        return "the Climate Data Store limits the rate of requests"
    return f"the Climate Data Store failed: {text or type(error).__name__}"


def _checked(part: Path, month: Month, area: Area) -> xr.Dataset:
    """The fields of a file, named and described, if it holds the hours and the area and values that can be.

    Raises
    ------
    FetchError
        Saying what is wrong with it.
    """
    with xr.open_dataset(part, engine="netcdf4") as stored:
        names = {"valid_time": "time", "geopotential": "z"}
        ds = stored.rename({old: new for old, new in names.items() if old in stored.variables}).load()
    missing = [name for name in ("t2m", "z", "time", "latitude", "longitude") if name not in ds.variables]
    if missing:
        raise FetchError(f"it has no {', '.join(missing)}")
    if ds["time"].shape != month.hours.shape or (ds["time"].values.astype("datetime64[ns]") != month.hours).any():
        raise FetchError(f"it has {ds.sizes['time']} hours, expected the {len(month.hours)} of the days asked for")
    north, west, south, east = area
    latitude, longitude = ds["latitude"].values, ds["longitude"].values
    ends = np.array([latitude.max() - north, latitude.min() - south, longitude.min() - west, longitude.max() - east])
    ends[2:] = (ends[2:] + 180) % 360 - 180
    if (np.abs(ends) > 0.25).any():
        raise FetchError(
            f"it spans {latitude.max():g} {longitude.min():g} {latitude.min():g} {longitude.max():g}, "
            f"expected {north:g} {west:g} {south:g} {east:g}"
        )
    low, high = PLAUSIBLE_K
    if not bool(((ds["t2m"] >= low) & (ds["t2m"] <= high)).all()) or not bool(np.isfinite(ds["z"]).all()):
        raise FetchError(f"it has values that are missing, or temperatures beyond {low:g} to {high:g} K")
    still = ds["z"].isel(time=0, drop=True) if "time" in ds["z"].dims else ds["z"]
    coords = {name: ds[name] for name in ("time", "latitude", "longitude")}
    return _described(xr.Dataset({"t2m": ds["t2m"].astype(np.float32), "z": still.astype(np.float32)}, coords))


def _described(ds: xr.Dataset) -> xr.Dataset:
    ds = ds.drop_vars([name for name in ds.coords if name not in _ATTRS])
    for name, variable in ds.variables.items():
        variable.attrs, variable.encoding = dict(_ATTRS[str(name)]), {}
    ds.attrs = dict(_GLOBAL)
    return ds


def _create(fields: xr.Dataset, hours: list[Any], out: Path) -> None:
    """A store of the whole period, of missing values yet, replacing what an earlier run left unfinished."""
    shape = (len(hours), *fields["t2m"].shape[1:])
    empty = xr.DataArray(np.full(shape, np.nan, np.float32), dims=("time", "latitude", "longitude"))
    coords = {"time": np.array(hours), "latitude": fields["latitude"], "longitude": fields["longitude"]}
    whole = _described(xr.Dataset({"t2m": empty, "z": fields["z"]}, coords))
    chunks = (min(shape[0], 240), *shape[1:])
    encoding = {"t2m": {"chunks": chunks}, "time": {"units": "hours since 1900-01-01", "dtype": "int64"}}
    whole.to_zarr(out, mode="w", encoding=encoding, consolidated=True)


def _times(out: Path) -> Any:
    with xr.open_zarr(out) as ds:
        return ds["time"].values.astype("datetime64[ns]")
