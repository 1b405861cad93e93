"""The page of a comparison: self-contained, escaped, readable in light and dark."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from geonp.errors import OutputError
from geonp.evaluation.comparison import Comparison
from geonp.evaluation.holdout import hide
from geonp.evaluation.report import check_report, render, write_report
from geonp.evaluation.scored import Prediction
from geonp.raster.windows import Window

HOSTILE = '<script>alert("1")</script> & sons.tif'
VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; every element must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def comparison(ours: float, y_up: bool = False, **options: Any) -> Comparison:
    """A comparison in which the error of the model is about `ours`, and that of the nearest neighbour about 1."""
    rng = np.random.default_rng(0)
    truth = np.add.outer(np.arange(30.0), np.arange(40.0)).astype(np.float32)
    gaps = np.zeros(truth.shape, bool)
    gaps[10:20, 10:25] = True
    noise = rng.standard_normal(truth.shape)
    predictions = {
        name: Prediction(truth + wrong * noise, np.full(truth.shape, wrong), np.zeros(truth.shape), 0.1)
        for name, wrong in (("geonp", ours), ("nearest", 1.0))
    }
    place: dict[str, Any] = {"shape": (30, 40), "window": Window(0, 30, 0, 40), "y_up": y_up}
    card = {"model": "tiny", "model_version": "1", "weights_sha256": "0123456789abcdef"}
    what: dict[str, Any] = {"holdout": "blocks", "fraction": 0.1, "seed": 0, "model": card, **place}
    names = {"name": "height", "units": "m", "selection": ""} | options
    return Comparison(test=hide(truth, gaps), predictions=predictions, **names, **what)


@pytest.fixture(scope="module")
def html() -> str:
    return render(comparison(0.5), title=HOSTILE)


def test_page_is_complete_in_itself(html: str) -> None:
    page = Page(html)
    assert page.open == []
    assert page.tags.count("svg") == 3
    assert page.tags.count("table") == 2
    assert page.tags.count("image") >= 4
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    links = [value for key, value in page.attributes if key in {"src", "href", "xlink:href"}]
    assert links
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not re.search(r"@import|url\((?!#)", html)


def test_references_within_the_page_resolve(html: str) -> None:
    attributes = Page(html).attributes
    ids = {value for key, value in attributes if key == "id"}
    used = {value[1:] for key, value in attributes if key.endswith("href") and value.startswith("#")}
    used |= set(re.findall(r"url\(#([^)]+)\)", html))
    assert used
    assert used <= ids


def test_names_are_escaped(html: str) -> None:
    assert HOSTILE not in html
    assert HOSTILE in "".join(Page(html).text)
    hostile = render(comparison(0.5, name="<b>&", units='<i>"', selection="band <u>"))
    assert not {"b", "i", "u"} & set(Page(hostile).tags)
    assert '<b>& (<i>"), band <u>: 30 x 40 cells.' in "".join(Page(hostile).text)


def test_page_holds_what_the_comparison_says(html: str) -> None:
    text = [part.strip() for part in Page(html).text]
    result = comparison(0.5)
    assert result.setting in text
    assert result.verdict in text
    for row in [*result.rows(), *result.distance_rows()]:
        assert set(row) <= set(text)
    for title in ("With gaps", "Filled by geonp", "Standard error", "Actual error", "level of the interval"):
        assert title in text
    assert any("weights 0123456789ab;" in part for part in text)


def test_a_defeat_is_marked() -> None:
    lost, won = render(comparison(2.0)), render(comparison(0.5))
    assert 'class="verdict beaten">nearest beats geonp by RMSE' in lost
    assert 'class="verdict">geonp is the best by RMSE' in won
    best = re.compile(r"<tr><td>nearest</td><td class=\"best\">")
    assert best.search(lost)
    assert not best.search(won)


def test_figures_take_the_colour_of_the_page(html: str) -> None:
    assert "currentColor" in html
    assert "#010203" not in html
    assert "#000000" not in html


def test_the_same_comparison_gives_the_same_page(html: str) -> None:
    assert render(comparison(0.5), title=HOSTILE) == html


@pytest.mark.parametrize(("y_up", "down"), [(False, ""), (True, "-")])
def test_the_north_is_up(y_up: bool, down: str) -> None:
    images = re.findall(r"<image [^>]+>", render(comparison(0.5, y_up)))
    fields = [image for image in images if 'width="40" height="30"' in image]
    signs = [re.findall(r'transform="matrix\(\S+ 0 0 (-?)', image)[0] for image in fields]
    assert signs == [down] * 4


def test_report_is_written_over_an_older_one(tmp_path: Path, html: str) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    write_report(comparison(0.5), path, title=HOSTILE)
    assert path.read_text(encoding="utf-8") == html


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"Unknown report format: got '.*in\.tif', expected .* ends in \.html"):
        check_report(tmp_path / "in.tif")
    with pytest.raises(OutputError, match=r"No folder for the report: got '.*nowhere', expected an existing one"):
        check_report(tmp_path / "nowhere" / "report.html")
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(OutputError, match=r"Cannot write the report '.*taken\.html'"):
        write_report(comparison(0.5), tmp_path / "taken.html")


def test_the_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; import geonp.evaluation.report"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: The package 'matplotlib' is not installed" in done.stderr
    assert done.stderr.strip().endswith("Install it with pip install 'geonp[evaluate]'.")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the browser chromium")
@pytest.mark.parametrize(("scheme", "page_is_light"), [("", True), ("--force-dark-mode", False)])
def test_a_browser_shows_it_in_light_and_dark(tmp_path: Path, html: str, scheme: str, page_is_light: bool) -> None:
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={tmp_path}/user"]
    target = [f"--screenshot={tmp_path}/shot.png", "--window-size=1000,1400", f"file://{tmp_path}/report.html"]
    subprocess.run([*command, *filter(None, [scheme]), *target], check=True, capture_output=True, timeout=60)
    picture = imread(tmp_path / "shot.png")[..., :3]
    corner, brightness = picture[5, 5], picture.mean(axis=2)
    assert (corner.mean() > 0.5) == page_is_light
    # text and axes stand out from the page, and the maps have colours
    assert np.abs(brightness - corner.mean()).max() > 0.6
    assert (np.ptp(picture, axis=2) > 0.3).mean() > 0.05


def test_units_are_no_formula_and_a_report_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = comparison(0.5, units=r"$\\frac{m}{$^")
    (tmp_path / "report.html").write_text("old")

    def full(self: Path, text: str, **_: Any) -> int:
        with self.open("w") as file:
            file.write(text[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OutputError, match=r"Cannot write the report .*No space left"):
            write_report(odd, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"
    write_report(odd, tmp_path / "report.html")
    assert "frac{m}{$^" in (tmp_path / "report.html").read_text()
