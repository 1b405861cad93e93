"""Download of ERA5 2 m temperature and surface geopotential from the Copernicus Climate Data Store to Zarr."""

from __future__ import annotations

import errno
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from geonp.errors import FetchError, InputError, OutputError, from_extra
from geonp.io.location import check_writable, replacing
from geonp.io.stores import UNFINISHED, Store
from geonp.training.data.era5_files import DATASET, Area, check_same, checked, described

_VARIABLES = ("2m_temperature", "geopotential")


@dataclass(frozen=True)
class Month:
    """The days `first` to `last` of one month, both included."""

    first: date
    last: date

    @property
    def name(self) -> str:
        """Year and month, such as ``2019-03``."""
        return f"{self.first:%Y-%m}"

    @property
    def hours(self) -> Any:
        """Every hour of these days, as datetime64."""
        first, end = np.datetime64(self.first, "ns"), np.datetime64(self.last + timedelta(days=1), "ns")
        return np.arange(first, end, np.timedelta64(1, "h"))

    def request(self, area: Area) -> dict[str, Any]:
        """Request to the data store."""
        days = [f"{day:02d}" for day in range(self.first.day, self.last.day + 1)]
        return {
            "product_type": ["reanalysis"],
            "variable": list(_VARIABLES),
            "year": [f"{self.first:%Y}"],
            "month": [f"{self.first:%m}"],
            "day": days,
            "time": [f"{hour:02d}:00" for hour in range(24)],
            "area": list(area),
            "data_format": "netcdf",
            "download_format": "unarchived",
        }


def months(start: date, end: date) -> Iterator[Month]:
    """Divide the days from `start` to `end`, both included, into months."""
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
    """Download hourly ERA5 to the Zarr store `out`, one month per request; interrupted downloads continue.

    cdsapi reads the credentials (``CDSAPI_URL`` and ``CDSAPI_KEY``, or ``~/.cdsapirc``); they are never logged. Hours,
    grid and values of each file are checked before it is added to the store. Finished months are recorded in
    ``<out>.journal.json``; files are downloaded beside it. The root of an incomplete store has the attribute
    ``geonp_unfinished``. Raises InputError for an invalid area or period. Raises FetchError if the data store refuses,
    fails, or sends files that do not match the request. Raises OutputError if `out` holds something else or cannot be
    written; checked before the first request. Raises MissingExtraError if cdsapi is not installed; the extra
    ``geonp[era5]`` installs it.

    Parameters
    ----------
    area : tuple of float
        North, west, south, east, in degrees, on the 0.25 degree grid.
    start, end : date
        First and last day, both included, at most today.
    out : Path
        The store.
    tries : int
        Number of attempts for each month; the client repeats each HTTP request as often.
    wait_s : float
        Longest pause between polls of a request, and pause before another attempt.
    report : callable
        Called with a line of text about each step.

    Returns
    -------
    Path
        The store: ``t2m (time, latitude, longitude)``, K, and the surface geopotential ``z (latitude, longitude)``,
        m2 s-2, with CF metadata.
    """
    _check_request(area, start, end)
    wanted = list(months(start, end))
    asked = {"area": list(area), "start": str(start), "end": str(end)}
    journal = out.with_name(out.name + ".journal.json")
    done = _done(out, journal, asked)
    if len(done) < len(wanted):
        expected = "Expected one that is writable or can be made; choose another for the store."
        with _without_warnings():
            client = _client(tries, wait_s)
        check_writable(out.parent, expected, make=True)
    for month in wanted:
        if month.name in done:
            continue
        report(f"{month.name}: requesting {month.first} to {month.last}")
        part = _part(out, month)
        fields = _month(client, month, area, part, _lattice(out) if done else None, tries, report)
        with _writing(out):
            if not done:
                _note(journal, {**asked, "done": []})
                create_file(fields, [hour for each in wanted for hour in each.hours], out)
            _append(fields, month, out)
            done.append(month.name)
            _note(journal, {**asked, "done": done})
            part.unlink()
        report(f"{month.name}: added to {out}")
    for month in wanted:  # left by a run that ended between recording a month and removing its file
        _part(out, month).unlink(missing_ok=True)
    finish_file(out)
    return out


def _part(out: Path, month: Month) -> Path:
    """File that a month is downloaded to."""
    return out.with_name(f"{out.name}.{month.name}.nc")


def _check_request(area: Area, start: date, end: date) -> None:
    north, west, south, east = area
    if not (-90 <= south < north <= 90 and -180 <= west < east <= 360 and east - west <= 360):
        raise InputError(f"the area must be north west south east in degrees, got {north} {west} {south} {east}")
    if not date(1940, 1, 1) <= start <= end:
        raise InputError(f"ERA5 has days from 1940-01-01 on, got start {start}, end {end}; expected start <= end")
    today = datetime.now(UTC).date()
    if end > today:
        raise InputError(
            f"ERA5 has no days in the future, got end {end}; expected at most today, {today}, and preferably some days "
            "earlier, since ERA5 is published with a delay"
        )


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Convert errors of the disk."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"Stopped while writing {str(out)!r}: {error.strerror or error}. Finished months are kept: free some space "
            "or check the disk, and run the same command again."
        ) from error


def _done(out: Path, journal: Path, asked: dict[str, Any]) -> list[str]:
    """Months that the store already holds."""
    if not journal.exists():
        if out.exists():
            raise OutputError(f"{out} exists and was not made by this command: choose another name, or remove it")
        return []
    try:
        recorded = dict(json.loads(journal.read_text(encoding="utf-8")))
        done = [str(name) for name in recorded.pop("done")]
    except (ValueError, TypeError, KeyError) as error:
        raise OutputError(
            f"{journal} is empty or damaged, and with it the record of what {out} holds: remove both to start again, "
            "or choose another name"
        ) from error
    if recorded != asked:
        raise OutputError(f"{out} holds {recorded}, but {asked} was requested: choose another name")
    return done if out.exists() else []


def _note(journal: Path, content: dict[str, Any]) -> None:
    with replacing(journal) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress warnings of the client, which may contain a URL with a password, and those of zarr about metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _client(tries: int, wait_s: float) -> Any:
    with from_extra("era5", "cdsapi"):
        import cdsapi

    def silent(*_: object, **__: object) -> None:
        """Ignore a message: the client logs its key at debug level."""

    try:
        # a key with a line break, as read from a file, would appear in error messages about it
        url, key, verify = cdsapi.api.get_url_key_verify(None, None, None)
        return cdsapi.Client(
            url=url.strip(),
            key=key.strip(),
            verify=verify,
            quiet=True,
            progress=False,
            retry_max=tries,
            sleep_max=wait_s,
            info_callback=silent,
            debug_callback=silent,
            warning_callback=silent,
        )
    except Exception as error:
        if type(error) is Exception:  # raised by cdsapi if url or key is missing
            problem = "no credentials for the Climate Data Store"
        else:
            problem = f"the client of the Climate Data Store cannot be set up: {_without_secrets(str(error))}"
        raise FetchError(
            f"{problem}: expected its url and your key in ~/.cdsapirc, or in CDSAPI_URL and CDSAPI_KEY; see "
            "https://cds.climate.copernicus.eu/how-to-api"
        ) from None


def _month(
    client: Any,
    month: Month,
    area: Area,
    part: Path,
    lattice: xr.Dataset | None,
    tries: int,
    report: Callable[[str], None],
) -> xr.Dataset:
    """Download a month unless an earlier run did, and check that it is on the `lattice` of the store."""
    problem = ""
    for _ in range(tries + part.exists()):
        if not part.exists():
            try:
                with _without_warnings():
                    client.retrieve(DATASET, month.request(area), str(part))
            except Exception as error:  # requests, multiurl and the client have no common class
                if _is_disk_error(error):
                    part.unlink(missing_ok=True)
                    with _writing(part):
                        raise
                problem = _request_problem(error, client)
                if _is_final(error):
                    raise FetchError(f"{month.name}: {problem}") from None
                report(f"{month.name}: {problem}")
                continue
        try:
            fields = checked(part, month.hours, area)
            check_same(fields, lattice)
            return fields
        except Exception as error:  # for damaged files, any error of netCDF4, HDF5 and xarray
            problem = f"the downloaded file does not match the request: {error or type(error).__name__}"
            report(f"{month.name}: {problem}")
            part.unlink(missing_ok=True)
    raise FetchError(f"{month.name}: {problem}; requested {tries} times, run the same command again later") from None


def _is_disk_error(error: Exception) -> bool:
    """Whether a file could not be written; errors of requests are OSErrors, too, but have no number."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    forbidden = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
    return isinstance(error, OSError) and error.errno in (*full, *forbidden)


def _is_final(error: Exception) -> bool:
    """Whether another attempt would fail again: the data store refused or failed, or its URL is invalid."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    final = {"ProcessingFailedError", "MissingSchema", "InvalidSchema", "InvalidURL"}
    return (400 <= status < 500 and status != 429) or type(error).__name__ in final


def _request_problem(error: Exception, client: Any) -> str:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    text = _without_secrets(str(error).replace(client.key, "<key>").replace(repr(client.key)[1:-1], "<key>"))
    text = " ".join(text.split())[:300]
    if status == 401:
        return "the Climate Data Store does not know the key, or it has expired: get a new one from your profile there"
    if status == 403:
        return f"the Climate Data Store refused, perhaps because the licence of {DATASET} was not accepted: {text}"
    if status == 429:
        return "the Climate Data Store limits the rate of requests"
    return f"the Climate Data Store failed: {text or f'it gave no reason ({type(error).__name__})'}"


def _without_secrets(text: str) -> str:
    """Remove user and password from URLs in `text`."""
    return re.sub(r"(?<=://)[^/\s]*@", "", text)


def create_file(fields: xr.Dataset, hours: list[Any], out: Path) -> None:
    """Create a store of missing values for the whole period, in place of that of an earlier run."""
    shape = (len(hours), *fields["t2m"].shape[1:])
    chunks = (min(shape[0], 240), *shape[1:])
    # lazy, since years of the globe do not fit into memory
    nothing = da.full(shape, np.nan, np.float32, chunks=chunks)
    empty = xr.DataArray(nothing, dims=("time", "latitude", "longitude"))
    coords = {"time": np.array(hours), "latitude": fields["latitude"], "longitude": fields["longitude"]}
    whole = described(xr.Dataset({"t2m": empty, "z": fields["z"]}, coords))
    hourly = {"units": "hours since 1900-01-01", "dtype": "int64"}
    encoding = {"t2m": {"chunks": chunks, "fill_value": np.nan}, "time": hourly}
    whole.attrs[UNFINISHED] = "geonp fetch era5"
    with _without_warnings():
        whole.to_zarr(out, mode="w", encoding=encoding, consolidated=True, compute=False)


def _append(fields: xr.Dataset, month: Month, out: Path) -> None:
    with xr.open_zarr(out) as ds:
        first = int(np.searchsorted(ds["time"].values.astype("datetime64[ns]"), month.hours[0]))
    region: Any = {"time": slice(first, first + len(month.hours))}
    with _without_warnings():
        fields[["t2m"]].drop_vars(["latitude", "longitude"]).to_zarr(out, region=region, consolidated=True)


def _lattice(out: Path) -> xr.Dataset:
    """Latitude, longitude and geopotential of the store, with its root attributes."""
    try:
        with xr.open_zarr(out) as ds:
            kept: xr.Dataset = ds[["z"]].load()
            return kept
    except Exception as error:  # zarr, its codecs and xarray have no common class
        raise OutputError(
            f"{out} cannot be read, although its journal lists finished months: {error}. Remove both to start again."
        ) from error


def finish_file(out: Path) -> None:
    """Mark the store as finished."""
    if UNFINISHED in _lattice(out).attrs:
        Store(str(out)).complete({})
