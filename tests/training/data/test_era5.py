"""ERA5 is fetched by the real client from a server that speaks the data store's API, through all that can go wrong."""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from geonp.errors import FetchError, InputError, MissingExtraError, OutputError
from geonp.io.files import open_raster
from geonp.training.data import era5
from geonp.training.data.era5 import fetch, months

from ...commands import cli

KEY = "0123-secret-4567"
AREA = (52.0, 0.0, 51.0, 1.5)
PERIOD = (date(2019, 2, 27), date(2019, 3, 2))


class Store(ThreadingHTTPServer):
    """A Climate Data Store on this machine; `faults` are used up one by one, by the kind of request they concern."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.requests, self.faults = (
            folder,
            [],
            {kind: [] for kind in ("execution", "results", "file", "status", "messages")},
        )
        self.looks: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api"

    def make(self, inputs: dict[str, Any]) -> Path:
        """The file that a request asks for, named as the data store names things."""
        file = self.folder / f"job{len(self.requests)}.nc"
        year, month = inputs["year"][0], inputs["month"][0]
        times = np.concatenate(
            [
                np.datetime64(f"{year}-{month}-{day}", "ns") + np.arange(24) * np.timedelta64(1, "h")
                for day in inputs["day"]
            ]
        )
        north, west, south, east = inputs["area"]
        latitude, longitude = np.arange(north, south - 0.1, -0.25), np.arange(west, east + 0.1, 0.25)
        shape = (len(times), len(latitude), len(longitude))
        hours = (times - np.datetime64("2019-01-01")) / np.timedelta64(1, "h")
        t2m = 280 + 5 * np.sin(hours[:, None, None] / 4) + latitude[:, None] / 10 + longitude
        z = np.broadcast_to(latitude[:, None] * longitude * 10, shape)
        dims = ("valid_time", "latitude", "longitude")
        xr.Dataset(
            {"t2m": (dims, t2m.astype("f4")), "z": (dims, z.astype("f4"))},
            {
                "valid_time": times,
                "latitude": latitude,
                "longitude": longitude,
                "number": 0,
                "expver": ("valid_time", ["0001"] * len(times)),
            },
        ).to_netcdf(file, encoding={"t2m": {"zlib": True, "complevel": 9, "shuffle": True}})
        return file


def damaged(data: bytes) -> bytes:
    """A file whose header is whole and whose compressed values are not."""
    start = data.index(b"\x78\xda")
    return data[: start + 2] + bytes(200) + data[start + 202 :]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def reply(self, content: Any, status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fault(self, kind: str) -> Any:
        waiting = self.server.faults[kind]
        return waiting.pop(0) if waiting else None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        inputs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
        if self.headers.get("PRIVATE-TOKEN") != KEY:
            return self.reply({"title": "Unauthorized", "detail": "operation not allowed"}, 401)
        match self.fault("execution"):
            case None:
                self.server.requests.append(inputs)
                self.server.make(inputs)
                number = len(self.server.requests)
                href = f"{self.server.url}/retrieve/v1/jobs/{number}"
                self.reply(
                    {"jobID": str(number), "status": "accepted", "links": [{"rel": "monitor", "href": href}]}, 201
                )
            case status:
                self.reply({"title": "no", "detail": "required licences not accepted"}, status)

    def do_GET(self) -> None:
        self.path = self.path.partition("?")[0]
        job = re.fullmatch(r"/api/retrieve/v1/jobs/(\d+)", self.path)
        results = re.fullmatch(r"/api/retrieve/v1/jobs/(\d+)/results", self.path)
        file = re.fullmatch(r"/files/(job\d+\.nc)", self.path)
        if "/processes/" in self.path:
            self.reply({"id": "reanalysis-era5-single-levels"})
        elif job:
            count = self.server.looks[job[1]] = self.server.looks.get(job[1], 0) + 1
            status = self.fault("status") or ["accepted", "running", "successful"][min(count, 3) - 1]
            href = f"{self.server.url}/retrieve/v1/jobs/{job[1]}"
            self.reply({"jobID": job[1], "status": status, "links": [{"rel": "self", "href": href}]})
        elif results:
            if self.fault("results"):
                return self.reply({"title": "The job has failed", "traceback": "MARS: no such field"}, 400)
            path = self.server.folder / f"job{results[1]}.nc"
            value = {"href": f"/files/{path.name}", "file:size": path.stat().st_size, "type": "application/x-netcdf"}
            self.reply({"asset": {"value": value}})
        elif file:
            self.send_file((self.server.folder / file[1]).read_bytes())
        else:
            self.reply({"messages": []}, self.fault("messages") or 200)

    def send_file(self, data: bytes) -> None:
        fault = self.fault("file") if self.command == "GET" else None
        match fault:
            case "broken":
                sent = b"x" * len(data)
            case "truncated":
                sent = data[: len(data) // 2]
            case "damaged":
                sent = damaged(data)
            case _:
                sent = data
        self.send_response(200)
        self.send_header("Content-Type", "application/x-netcdf")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(sent)
        if fault == "truncated":
            self.close_connection = True


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    folder = tmp_path / "server"
    folder.mkdir()
    with Store(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("CDSAPI_URL", server.url)
        monkeypatch.setenv("CDSAPI_KEY", KEY)
        monkeypatch.setenv("CDSAPI_RC", str(tmp_path / "no-such-file"))
        # the client waits a second before its second look, whatever it is told
        monkeypatch.setattr("ecmwf.datastores.processing.time.sleep", lambda _: None)
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "era5.zarr"


def get(out: Path, **options: Any) -> Path:
    return fetch(AREA, *PERIOD, out, **{"tries": 2, "wait_s": 0.0, **options})


def whole(out: Path) -> None:
    """The store holds what was requested, and nothing lies beside it but the journal."""
    with xr.open_zarr(out) as ds:
        assert ds["t2m"].shape == (4 * 24, 5, 7)
        assert ds["time"].values[0] == np.datetime64("2019-02-27T00")
        assert ds["time"].values[-1] == np.datetime64("2019-03-02T23")
        hours = (ds["time"] - np.datetime64("2019-01-01")) / np.timedelta64(1, "h")
        expected = 280 + 5 * np.sin(hours / 4) + ds["latitude"] / 10 + ds["longitude"]
        np.testing.assert_allclose(ds["t2m"], expected, rtol=1e-6)
        np.testing.assert_allclose(ds["z"], ds["latitude"] * ds["longitude"] * 10, rtol=1e-6)
    assert sorted(p.name for p in out.parent.iterdir() if p.name != "server") == ["era5.zarr", "era5.zarr.journal.json"]


def test_months() -> None:
    got = list(months(date(2019, 12, 30), date(2020, 2, 3)))
    assert [(m.name, m.first.day, m.last.day) for m in got] == [
        ("2019-12", 30, 31),
        ("2020-01", 1, 31),
        ("2020-02", 1, 3),
    ]
    assert len(got[1].hours) == 31 * 24


def test_a_request_a_month_queued_running_completed(store: Store, out: Path) -> None:
    lines: list[str] = []
    assert get(out, report=lines.append) == out
    whole(out)
    assert [(r["year"], r["month"], r["day"]) for r in store.requests] == [
        (["2019"], ["02"], ["27", "28"]),
        (["2019"], ["03"], ["01", "02"]),
    ]
    assert store.requests[0]["area"] == list(AREA)
    assert store.requests[0]["variable"] == ["2m_temperature", "geopotential"]
    assert min(store.looks["1"], store.looks["2"]) >= 3  # accepted, running, successful
    assert lines[-1] == f"2019-03: added to {out}"
    assert get(out) == out  # nothing is left to do
    assert len(store.requests) == 2


def test_the_store_is_described_by_the_cf_conventions(store: Store, out: Path) -> None:
    get(out)
    with xr.open_zarr(out) as ds:
        assert ds.attrs["Conventions"] == "CF-1.11"
        assert "Copernicus" in ds.attrs["license"]
        assert (ds["t2m"].attrs["standard_name"], ds["t2m"].attrs["units"]) == ("air_temperature", "K")
        assert (ds["z"].attrs["standard_name"], ds["z"].attrs["units"]) == ("surface_geopotential", "m2 s-2")
        assert ds["z"].dims == ("latitude", "longitude")
        assert ds["latitude"].attrs["units"] == "degrees_north"
        assert ds["time"].attrs["standard_name"] == "time"
        assert ds["time"].dtype == "datetime64[ns]"


@pytest.mark.parametrize("fault", ["broken", "truncated", "damaged"])
def test_a_bad_download_is_requested_again(fault: str, store: Store, out: Path) -> None:
    store.faults["file"] = [None, fault]
    get(out)
    whole(out)


def test_damaged_values_are_what_netcdf_has_an_error_of_its_own_for(store: Store, tmp_path: Path) -> None:
    file = store.make(next(months(*PERIOD)).request(AREA))
    (tmp_path / "damaged.nc").write_bytes(damaged(file.read_bytes()))
    with (
        xr.open_dataset(tmp_path / "damaged.nc", engine="netcdf4") as ds,
        pytest.raises(RuntimeError, match="HDF error"),
    ):
        ds.load()


def test_a_damaged_file_of_an_earlier_run_is_requested_again(store: Store, out: Path) -> None:
    file = store.make(next(months(*PERIOD)).request(AREA))
    out.with_name("era5.zarr.2019-02.nc").write_bytes(damaged(file.read_bytes()))
    get(out, tries=1)
    whole(out)


def test_a_service_that_only_sends_broken_files(store: Store, out: Path) -> None:
    store.faults["file"] = ["broken"] * 9
    with pytest.raises(
        FetchError, match=r"2019-02: the downloaded file does not match the request: .*; requested 2 times"
    ):
        get(out)
    assert not out.exists()


def test_years_of_the_globe_need_no_memory_before_they_come(out: Path) -> None:
    lattice = {"latitude": np.linspace(90, -90, 721), "longitude": np.arange(1440) / 4}
    hour = xr.DataArray(np.zeros((1, 721, 1440), np.float32), {**lattice, "time": [0]}, ("time", *lattice))
    fields = xr.Dataset({"t2m": hour, "z": hour[0].drop_vars("time")})
    hours = list(np.arange("1970-01-01", "2020-01-01", dtype="datetime64[h]").astype("datetime64[ns]"))
    era5.create_file(fields, hours, out)  # 1.8 TB, if it were held
    with xr.open_zarr(out, chunks={}) as ds:
        assert ds["t2m"].shape == (438_288, 721, 1440)
        assert bool(ds["t2m"][-1, :2, :2].isnull().all())


def test_a_rate_limit_and_an_outage_are_waited_for(store: Store, out: Path) -> None:
    store.faults["execution"] = [429, 503]
    get(out, tries=4)
    whole(out)


def test_a_run_resumes_after_the_month_that_failed(store: Store, out: Path) -> None:
    store.faults["results"] = [None, "failed"]
    store.faults["status"] = [None, None, None, "failed"]
    with pytest.raises(FetchError, match=r"2019-03: the Climate Data Store failed: .*MARS: no such field"):
        get(out)
    with xr.open_zarr(out) as ds:
        assert int(np.isfinite(ds["t2m"]).sum()) == 2 * 24 * 5 * 7
    assert len(store.requests) == 2
    get(out)
    whole(out)
    assert [r["month"] for r in store.requests] == [["02"], ["03"], ["03"]]


def test_a_run_that_was_cut_off_uses_what_it_had_downloaded(
    store: Store, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as cut:
        cut.setattr(xr.Dataset, "to_zarr", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get(out)
    assert (out.parent / "era5.zarr.2019-02.nc").exists()
    get(out)
    whole(out)
    assert [r["month"] for r in store.requests] == [["02"], ["03"]]


def test_a_run_that_was_cut_off_before_it_removed_a_file_removes_it(store: Store, out: Path) -> None:
    get(out)
    (out.parent / "era5.zarr.2019-02.nc").write_bytes(b"of a month that is in the store")
    get(out)
    whole(out)
    assert len(store.requests) == 2


def test_a_rejected_request_says_so(store: Store, out: Path) -> None:
    store.faults["status"] = ["rejected"]
    store.faults["results"] = ["failed"]
    with pytest.raises(FetchError, match=r"2019-02: the Climate Data Store failed: .*MARS: no such field"):
        get(out)
    assert len(store.requests) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.isel(valid_time=slice(5)), "it has 5 hours, expected the 48 of the requested days"),
        (lambda ds: ds.drop_vars("z"), "it has no z"),
        (lambda ds: ds.assign(t2m=ds["t2m"] * 0), "temperatures outside of 150 to 350 K"),
        (
            lambda ds: ds.assign_coords(longitude=ds["longitude"] + 20),
            r"it spans 52 20 51 21\.5, expected 52 0 51 1\.5",
        ),
    ],
)
def test_files_are_checked(change: Any, message: str, store: Store, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Store.make

    def other(self: Store, inputs: dict[str, Any]) -> None:
        path = make(self, inputs)
        changed = change(xr.load_dataset(path))
        path.unlink()
        changed.to_netcdf(path)

    monkeypatch.setattr(Store, "make", other)
    with pytest.raises(FetchError, match=message):
        get(out, tries=1)


def sent_changed(monkeypatch: pytest.MonkeyPatch, month: str, change: Any) -> None:
    """Let the server send something else for one month."""
    make = Store.make

    def other(self: Store, inputs: dict[str, Any]) -> Path:
        path = make(self, inputs)
        if inputs["month"] == [month]:
            changed = change(xr.load_dataset(path))
            path.unlink()
            changed.to_netcdf(path)
        return path

    monkeypatch.setattr(Store, "make", other)


def shifted(name: str, degrees: float) -> Any:
    return lambda ds: ds.assign_coords({name: ds[name] + degrees})


OTHER_GRIDS = [
    (shifted("latitude", 0.25), r"it spans 52\.25 0 51\.25 1\.5, expected 52 0 51 1\.5"),
    (shifted("longitude", -0.25), r"it spans 52 -0\.25 51 1\.25, expected 52 0 51 1\.5"),
    (
        lambda ds: ds.isel(latitude=slice(None, None, 2), longitude=slice(None, None, 2)),
        r"cells are 0\.5 to 0\.5 degrees",
    ),
    (lambda ds: ds.isel(latitude=slice(1, None)), r"it spans 51\.75 0 51 1\.5, expected 52 0 51 1\.5"),
    (lambda ds: ds.isel(latitude=slice(None, None, -1)), r"cells are -0\.25 to 0\.25 .* rows from north to south"),
    (lambda ds: ds.isel(longitude=[0, 1, 2, 4, 5, 6]), r"cells are 0\.25 to 0\.5 degrees apart"),
]


@pytest.mark.parametrize(("change", "message"), OTHER_GRIDS)
@pytest.mark.parametrize("month", ["02", "03"])
def test_files_of_another_grid_are_refused(
    month: str, change: Any, message: str, store: Store, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_changed(monkeypatch, month, change)
    with pytest.raises(FetchError, match=rf"2019-{month}: .*{message}"):
        get(out, tries=1)
    if month == "02":
        assert not out.exists()
    else:
        with xr.open_zarr(out) as ds:
            assert np.isfinite(ds["t2m"][:48]).all()
            assert np.isnan(ds["t2m"][48:]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            shifted("longitude", 0.125),
            r"its longitude has 6 values from 0\.225 to 1\.475, expected the 6 from 0\.1 to 1\.35",
        ),
        (lambda ds: ds.assign(z=ds["z"] + 100), r"its geopotential differs from the store's by 100 m2 s-2"),
    ],
)
def test_later_files_are_on_the_grid_and_the_surface_of_the_first(
    change: Any, message: str, store: Store, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_changed(monkeypatch, "03", change)
    with pytest.raises(FetchError, match=message):
        fetch((52.0, 0.1, 51.0, 1.4), *PERIOD, out, tries=1, wait_s=0.0)


def test_an_unfinished_store_says_so(store: Store, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.faults["results"] = [None, "failed"]
    with pytest.raises(FetchError):
        get(out)
    with xr.open_zarr(out) as ds:
        assert ds.attrs["geonp_unfinished"] == "geonp fetch era5"
    with pytest.raises(InputError, match="is an unfinished result of geonp fetch era5"):
        open_raster(out)
    with monkeypatch.context() as cut:
        cut.setattr("geonp.training.data.era5.finish_file", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get(out)
    get(out)
    whole(out)
    with xr.open_zarr(out) as ds:
        assert "geonp_unfinished" not in ds.attrs
        assert ds.attrs["Conventions"] == "CF-1.11"


def test_folders_are_made_and_checked_before_the_first_request(store: Store, out: Path) -> None:
    deep = out.parent / "new" / "folder" / "era5.zarr"
    get(deep)
    whole(deep)
    asked = len(store.requests)
    (out.parent / "file").touch()
    with pytest.raises(OutputError, match=r"Cannot write to the folder '.*file'.*choose another for the store"):
        get(out.parent / "file" / "era5.zarr")
    assert len(store.requests) == asked


def test_a_full_disk_is_no_failure_of_the_service(store: Store, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, target: str, **__: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("multiurl.download", full)
        with pytest.raises(
            OutputError, match=r"Stopped while writing '.*2019-02.nc': No space left on device\. .*free some space"
        ):
            get(out, tries=5)
    assert len(store.requests) == 1
    with monkeypatch.context() as disk:
        disk.setattr(xr.Dataset, "to_zarr", lambda *_, **__: full(target=str(out.parent / "server" / "x")))
        with pytest.raises(OutputError, match=r"Stopped while writing '.*era5.zarr': No space left"):
            get(out)
    get(out)
    whole(out)
    assert len(store.requests) == 3


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"area": []}', '{"done": 3}'])
def test_a_journal_that_cannot_be_read(content: str, store: Store, out: Path) -> None:
    get(out)
    out.with_name("era5.zarr.journal.json").write_text(content)
    with pytest.raises(OutputError, match=r"journal\.json is empty or damaged, .*: remove both to start again"):
        get(out)


def test_a_store_that_cannot_be_read(store: Store, out: Path) -> None:
    store.faults["results"] = [None, "failed"]
    with pytest.raises(FetchError):
        get(out)
    (out / "zarr.json").write_text("{")
    with pytest.raises(OutputError, match="cannot be read, although its journal lists finished months"):
        get(out)


def test_a_client_that_cannot_be_set_up_lacks_no_credentials(
    store: Store, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rc = tmp_path / "rc"
    rc.write_text(f"url: {store.url}\nkey: {KEY}\nverify: perhaps\n")
    monkeypatch.setenv("CDSAPI_RC", str(rc))
    monkeypatch.delenv("CDSAPI_URL")
    with pytest.raises(FetchError, match=r"the client .* cannot be set up: .*'perhaps'.*CDSAPI_KEY") as refused:
        get(out)
    assert "no credentials" not in str(refused.value)


@pytest.mark.parametrize("status", [403, 500, 404])
def test_a_password_in_the_url_is_never_shown(
    status: int, store: Store, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDSAPI_URL", store.url.replace("://", "://someone:p@ssword@"))
    store.faults["execution"] = [status] * 9
    lines: list[str] = []
    with pytest.raises(FetchError) as refused:
        get(out, report=lines.append)
    assert "ssword" not in str(refused.value) + "".join(lines)
    assert "someone" not in str(refused.value)


def test_keys_that_are_missing_or_expired(
    store: Store, out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("CDSAPI_KEY", "old-secret")
    with pytest.raises(FetchError, match="does not know the key, or it has expired") as refused:
        get(out)
    monkeypatch.delenv("CDSAPI_KEY")
    with pytest.raises(FetchError, match=r"no credentials .* ~/\.cdsapirc, or in CDSAPI_URL and CDSAPI_KEY"):
        get(out)
    assert "secret" not in str(refused.value) + caplog.text
    assert not out.exists()


@pytest.mark.parametrize("url", ["cds.example/api", "ftp://cds.example/api", "http://"])
def test_an_address_that_is_none_is_not_tried_again(
    url: str, store: Store, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDSAPI_URL", url)
    lines: list[str] = []
    with pytest.raises(FetchError, match=r"2019-02: the Climate Data Store failed: .*(URL|adapters)"):
        get(out, report=lines.append)
    assert lines == ["2019-02: requesting 2019-02-27 to 2019-02-28"]


def test_a_licence_that_was_not_accepted(store: Store, out: Path) -> None:
    store.faults["execution"] = [403]
    with pytest.raises(FetchError, match=r"perhaps because the licence .* was not accepted: .*required licences"):
        get(out)


def test_the_key_is_never_logged(store: Store, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    get(out)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_a_key_with_a_line_break_is_used_without(
    end: str, store: Store, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDSAPI_KEY", KEY + end)
    get(out)
    monkeypatch.setenv("CDSAPI_KEY", f"0123\n-secret{end}")
    with pytest.raises(FetchError) as refused:
        get(out.with_name("other.zarr"))
    assert "secret" not in str(refused.value)


def test_nothing_that_the_client_says_reaches_the_terminal(
    store: Store, out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store.faults["messages"] = [404]
    store.faults["execution"] = [503]
    monkeypatch.setenv("CDSAPI_URL", store.url.replace("://", "://someone:p@ssword@"))
    with warnings.catch_warnings():
        # as outside of tests, where they are printed
        warnings.simplefilter("always")
        get(out)
    assert not store.faults["messages"]
    assert capfd.readouterr() == ("", "")


def test_stores_of_something_else_are_left_alone(store: Store, out: Path) -> None:
    get(out)
    with pytest.raises(OutputError, match=r"but .*2019-03-01.* was requested: choose another name"):
        fetch(AREA, PERIOD[0], date(2019, 3, 1), out)
    out.with_name("era5.zarr.journal.json").unlink()
    with pytest.raises(OutputError, match="was not made by this command"):
        get(out)


@pytest.mark.parametrize(
    ("area", "end", "message"),
    [
        ((50.0, 0.0, 51.0, 1.0), PERIOD[1], "north west south east"),
        (AREA, date(2019, 1, 1), "expected start <= end"),
        (AREA, date(2999, 1, 1), r"no days in the future, got end 2999-01-01; expected at most today, 2\d\d\d-"),
    ],
)
def test_requests_that_cannot_be(area: Any, end: date, message: str, out: Path) -> None:
    with pytest.raises(InputError, match=message):
        fetch(area, PERIOD[0], end, out)


def test_without_its_extra_fetching_says_what_to_install(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cdsapi", None)
    with pytest.raises(MissingExtraError, match=r"geonp\[era5\]"):
        get(out)


def test_the_command(store: Store, out: Path) -> None:
    area = ["--area", *map(str, AREA)]
    done = cli("fetch", "era5", *area, "--start", "2019-02-27", "--end", "2019-03-02", "--wait", "0", out)
    assert done.stdout == f"{out}\n"
    assert "2019-02: requesting 2019-02-27 to 2019-02-28" in done.stderr
    whole(out)
    cli("fetch", "era5", *area, "--start", "yesterday", "--end", "2019-03-02", out, code=2)
