"""Files from elsewhere read no other files, and errors give no secrets away."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import rasterio

from geonp.errors import InputError, MissingFileError, OutputError, redacted
from geonp.io import location
from geonp.io.files import open_raster
from geonp.io.location import replacing, require_apart

VRT = """<VRTDataset rasterXSize="4" rasterYSize="4"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>
<SourceFilename relativeToVRT="0">{}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>
</VRTDataset>"""
WMS = """<GDAL_WMS><Service name="TMS"><ServerUrl>{}/${{z}}/${{x}}/${{y}}.png</ServerUrl></Service><DataWindow>
<UpperLeftX>-180</UpperLeftX><UpperLeftY>90</UpperLeftY><LowerRightX>180</LowerRightX><LowerRightY>-90</LowerRightY>
<SizeX>64</SizeX><SizeY>64</SizeY></DataWindow><BandsCount>1</BandsCount></GDAL_WMS>"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.tif"
    profile = {"driver": "GTiff", "height": 4, "width": 4, "count": 1, "dtype": "uint8", "nodata": 0}
    with rasterio.open(path, "w", transform=rasterio.Affine(1, 0, 0, 0, -1, 4), **profile) as file:
        file.write(np.full((1, 4, 4), 7, np.uint8))
    return path


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}", asked
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.mark.parametrize("name", ["a.tif", "a.img", "a.dat", "a"])
def test_a_file_that_does_not_say_so_reads_no_other_file(tmp_path: Path, secret: Path, name: str) -> None:
    (tmp_path / name).write_text(VRT.format(secret))
    with pytest.raises(InputError, match=r"may refer to other files or URLs: .*If you trust it, give it the extension"):
        open_raster(tmp_path / name)
    with pytest.raises(InputError, match="may refer to other files"):
        open_raster(f"vrt://{tmp_path / name}?bands=1")
    (tmp_path / "a.vrt").write_text(VRT.format(secret))
    assert (open_raster(tmp_path / "a.vrt")["a"].values == 7).all()


def test_a_file_that_does_not_say_so_sends_no_requests(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    url, asked = server
    (tmp_path / "a.tif").write_text(WMS.format(url))
    with pytest.raises(InputError, match="may refer to other files or URLs"):
        open_raster(tmp_path / "a.tif").load()
    assert asked == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no https://me:pass@word@host/a.tif here", "no https://***@host/a.tif here"),
        ("'https://b.s3.com/a.tif?X-Amz-Signature=ab1&x=2'", "'https://b.s3.com/a.tif?X-Amz-Signature=***&x=2'"),
        ("https://h/a?sv=1&sig=a%2Bb&AWSAccessKeyId=x, not", "https://h/a?sv=1&sig=***&AWSAccessKeyId=*** not"),
        ("/vsicurl/https://u:p@h/a.tif", "/vsicurl/https://***@h/a.tif"),
        ("s3://bucket/a@b.zarr and me@home", "s3://bucket/a@b.zarr and me@home"),
        ('Invalid bucket name "me:pass@127.0.0.1": at 12:30 a@b', 'Invalid bucket name "***@127.0.0.1": at 12:30 a@b'),
        ("x?assign=1", "x?assign=1"),
        ("https:/u:p@h/a.csv, C:/a@b and s3:/bucket/x", "https:/***@h/a.csv, C:/a@b and s3:/bucket/x"),
    ],
)
def test_urls_are_shown_without_what_gives_access(text: str, shown: str) -> None:
    assert redacted(text) == shown
    error = OutputError(text)
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == shown


def test_errors_of_urls_give_no_secrets_away() -> None:
    with pytest.raises((InputError, MissingFileError)) as caught:
        open_raster("https://me:hunter2@127.0.0.1:1/a.tif?token=hunter2")
    assert "127.0.0.1:1/a.tif" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_files_are_replaced_whole_and_not_through_links(tmp_path: Path) -> None:
    precious, target = tmp_path / "precious", tmp_path / "card.json"
    precious.write_text("all of it")
    (tmp_path / "card.json.tmp").symlink_to(precious)
    with replacing(target) as temporary:
        temporary.write_text("new")
    assert (target.read_text(), precious.read_text()) == ("new", "all of it")
    with pytest.raises(FileNotFoundError), replacing(target) as temporary:
        temporary.with_name("none").read_text()
    assert target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.json", "card.json.tmp", "precious"]


def test_of_two_writers_of_a_file_the_last_one_wins_as_a_whole(tmp_path: Path) -> None:
    target, own = tmp_path / "a.csv", tmp_path / "a.csv.tmp"
    own.write_text("a file of the user")
    with replacing(target) as second:
        with replacing(target) as first:
            first.write_text("first")
            second.write_text("second, and longer")
        assert target.read_text() == "first"
    assert (target.read_text(), own.read_text()) == ("second, and longer", "a file of the user")
    assert len(list(tmp_path.iterdir())) == 2


def test_outputs_within_the_input_are_noticed_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "Path", PureWindowsPath)
    monkeypatch.setattr(location, "resolved", str)
    for target, how in ((r"C:\data\in.zarr\out.tif", "contain one another"), (r"c:\DATA\in.zarr", "are the same")):
        with pytest.raises(InputError, match=f"The input and the output {how}"):
            require_apart(target, {"input": r"C:\data\in.zarr"})
    require_apart(r"C:\data\in.zarr2", {"input": r"C:\data\in.zarr"})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.nc")
    for place in (tmp_path / "a.nc", Path("/dev/null")):
        with pytest.raises(InputError, match="is neither a file nor a folder: got a pipe or a device"):
            open_raster(place)
