"""Input and output on an object store: a server with the API of S3, some of whose requests fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from geonp.errors import InputError, MissingFileError, OutputError
from geonp.fill.infill import infill
from geonp.fill.store import fill_store
from geonp.io.files import open_raster
from geonp.io.journal import Journal

from ..commands import cli

moto_server = pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

pytestmark = [
    pytest.mark.usefixtures("float32"),
    # of botocore and moto
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

SECRET = "never-to-be-seen"


class Flaky:
    """A WSGI application that answers "slow down" to some requests for objects."""

    def __init__(self, app: Any) -> None:
        self.app, self.every, self.count, self.failed = app, 0, 0, 0
        self.lock = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        with self.lock:
            self.count += 1
            fail = self.every and self.count % self.every == 0
            self.failed += bool(fail)
        if fail:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
        return self.app(environ, start_response)


@pytest.fixture(scope="module")
def flaky() -> Iterator[Flaky]:
    from werkzeug.serving import make_server

    app = Flaky(moto_server.DomainDispatcherApplication(moto_server.create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    app.port = server.server_port  # type: ignore[attr-defined]
    yield app
    server.shutdown()
    thread.join()


@pytest.fixture(scope="module")
def options(flaky: Flaky) -> dict[str, Any]:
    return {
        "key": "testing",
        "secret": SECRET,
        "endpoint_url": f"http://127.0.0.1:{flaky.port}",  # type: ignore[attr-defined]
        "anon": False,
    }


@pytest.fixture(scope="module")
def source(options: dict[str, Any]) -> xr.Dataset:
    fs = fsspec.filesystem("s3", **options)
    fs.mkdir("rasters")
    rng = np.random.default_rng(0)
    y, x = np.indices((40, 50))
    values = 20 + 5 * np.sin(y / 5) + 4 * np.cos(x / 7) + rng.standard_normal((40, 50))
    values[rng.random(values.shape) < 0.2] = np.nan
    ds = xr.Dataset({"a": (("y", "x"), values.astype("f4"))})
    ds.to_zarr("s3://rasters/in.zarr", storage_options=options, zarr_format=3, consolidated=False)
    return ds


def files(options: dict[str, Any], root: str) -> dict[str, bytes]:
    fs = fsspec.filesystem("s3", **options)
    fs.invalidate_cache()
    contents: dict[str, bytes] = fs.cat(fs.find(root))
    return contents


def test_a_store_is_filled_although_requests_fail(
    model: str, source: xr.Dataset, options: dict[str, Any], flaky: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    # clients wait before they ask again, for a random share of a second or more: here, not at all
    monkeypatch.setattr("botocore.retryhandler.random", SimpleNamespace(random=lambda: 0.0))
    flaky.every = 20
    given = open_raster("s3://rasters/in.zarr", chunks=None, storage_options=options)
    how: dict[str, Any] = {"storage_options": options, "source_options": options, "model": model}
    report = fill_store(given, "s3://rasters/out.zarr", chunks=16, **how)
    flaky.every = 0
    assert flaky.failed >= 5
    assert (report.failed, report.units) == ({}, 12)
    with xr.open_zarr("s3://rasters/out.zarr", storage_options=options) as ds:
        expected = infill(source, model=model)
        for name in expected:
            np.testing.assert_allclose(ds[name].values, expected[name].values, rtol=2e-5, atol=1e-6)
    assert not any(SECRET.encode() in text for text in files(options, "rasters/out.zarr").values())
    assert Journal("s3://rasters/out.zarr", options).job() is None
    with pytest.raises(OutputError, match="The output exists"):
        fill_store(given, "s3://rasters/out.zarr", chunks=16, **how)


def test_references_lead_to_a_store_with_its_options(
    model: str, options: dict[str, Any], source: xr.Dataset, tmp_path: Path
) -> None:
    hdf = pytest.importorskip("kerchunk.hdf")
    local, references = tmp_path / "a.nc", tmp_path / "a.json"
    source.to_netcdf(local, engine="netcdf4")
    fsspec.filesystem("s3", **options).put(str(local), "rasters/a.nc")
    with local.open("rb") as file:
        found = hdf.SingleHdf5ToZarr(file, "s3://rasters/a.nc", inline_threshold=0).translate()
    references.write_text(json.dumps(found))
    local.unlink()
    for chunks in ("auto", None):
        ds = open_raster(references, chunks=chunks, storage_options=options)
        np.testing.assert_array_equal(ds["a"], source["a"])
    given = [f"--storage-option={name}={json.dumps(value)}" for name, value in options.items()]
    cli("fill", str(references), str(tmp_path / "out.zarr"), "--model", model, *given)
    cli("fill", str(references), str(tmp_path / "out.nc"), "--model", model, *given)
    for name in ("out.zarr", "out.nc"):
        assert open_raster(tmp_path / name)["a"].notnull().all()
        assert SECRET.encode() not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_the_command_line_resumes_on_a_store_and_keeps_secrets(
    model: str, source: xr.Dataset, options: dict[str, Any]
) -> None:
    class StoppedError(Exception):
        pass

    def stop(_: object, done: int, total: int) -> None:
        if done == 4:
            raise StoppedError

    given = open_raster("s3://rasters/in.zarr", chunks=None, storage_options=options)
    how: dict[str, Any] = {"storage_options": options, "source_options": options, "model": model}
    with pytest.raises(StoppedError):
        fill_store(given, "s3://rasters/cli.zarr", chunks=16, progress=stop, **how)
    assert not any(SECRET.encode() in text for text in files(options, "rasters/cli.zarr.journal").values())
    with pytest.raises(InputError, match="unfinished result"):
        open_raster("s3://rasters/cli.zarr", storage_options=options)
    storage = [f"--storage-option={k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items()]

    def geonp(*arguments: str) -> dict[str, Any]:
        done = cli(*arguments, "--json", *storage)
        assert SECRET not in done.output
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    filled = geonp(
        *("fill", "s3://rasters/in.zarr", "s3://rasters/cli.zarr", "--chunks", "16", "--model", model, "--resume")
    )
    assert filled["variables"]["a"]["missing"] == int(source.a.isnull().sum())
    assert geonp("info", "s3://rasters/cli.zarr")["variables"]["a"]["missing"] == 0


def test_a_missing_store_is_named(options: dict[str, Any], source: xr.Dataset) -> None:
    with pytest.raises(MissingFileError, match=r"s3://rasters/none\.zarr"):
        open_raster("s3://rasters/none.zarr", storage_options=options)
