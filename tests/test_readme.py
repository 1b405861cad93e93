"""The documentation is true where that is cheap to check: code runs; commands, names, paths and links exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import numpy as np
import pytest
import torch
import xarray as xr

import geonp
from geonp.cli.app import main
from geonp.inference.checkpoint import load_card
from geonp.nn import tnp_kr
from geonp.nn.models import build

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "recipes/*.md", "benchmarks/**/*.md", "integrations/**/*.md")
    for path in ROOT.glob(pattern)
    if "generated" not in path.parts
)
CURRENT = [page for page in PAGES if page != "benchmarks/RESULTS.md"]
MOST_LINES = 120
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ACCESSOR = geonp.GeonpAccessor


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(text_of(page)) if found == language]


def spans(page: str) -> list[str]:
    """Inline code, on one line each."""
    prose = FENCE.sub("", text_of(page))
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


def commands(page: str) -> Iterator[list[str]]:
    """Commands of a page, in blocks, tables and prose, as words."""
    bodies = blocks(page, "") + blocks(page, "sh")
    lines = [line for body in bodies for line in body.replace("\\\n", " ").splitlines()]
    for line in [*lines, *spans(page)]:
        for part in re.split(r"\s(?:&&|\|)\s", line):
            if part.startswith(("geonp ", "make ", "python ")):
                yield shlex.split(part, comments=True)


def own_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The click command that the words after ``geonp`` name, and those that are left."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"geonp has no command {words[0]!r}"
        command, words = found, words[1:]
    return command, words


def names_of(command: click.Command) -> set[str]:
    given = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return given | {"-h", "--help", "--version"}


def every_option(command: click.Command) -> set[str]:
    own = names_of(command)
    return own.union(*map(every_option, command.commands.values())) if isinstance(command, click.Group) else own


def options_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}


def anchors(page: str) -> set[str]:
    """Fragments that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(page)), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def resolve(dotted: str) -> object:
    """What a dotted name stands for: a module, or an attribute of one."""
    found: object = geonp
    for depth, part in enumerate(dotted.split(".")[1:], start=2):
        if not hasattr(found, part) and isinstance(found, ModuleType):
            importlib.import_module(".".join(dotted.split(".")[:depth]))
        found = getattr(found, part)
    return found


def calls(code: str) -> Iterator[tuple[str, set[str]]]:
    """Calls of the accessor and of geonp's functions in Python code: the name, and its keywords."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if re.fullmatch(rf"(\w+\.)?geonp\.\w+|{'|'.join(geonp.__all__)}", name):
                yield name, {keyword.arg for keyword in node.keywords if keyword.arg}


def sea() -> xr.Dataset:
    """A small sea surface temperature with a gap."""
    lat, lon = np.linspace(50, 45, 24), np.linspace(-10, -4, 32)
    sst = (285 + np.cos(lat)[:, None] + 0.1 * lon).astype(np.float32)
    sst[8:14, 10:20] = np.nan
    attrs = {"standard_name": "sea_surface_temperature", "units": "K"}
    return xr.Dataset({"sst": (("lat", "lon"), sst, attrs)}, {"lat": lat, "lon": lon})


def test_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= MOST_LINES


def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sea().to_netcdf("sst.nc", engine="netcdf4")
    xr.concat([sea(), sea() + 1], "time").rename(sst="ndvi").to_netcdf("ndvi.nc", engine="netcdf4")
    places = np.random.default_rng(0).uniform((-10, 45), (-4, 50), (12, 2))
    rows = [f"{lon},{lat},{10 + lat / 10}" for lon, lat in places]
    Path("stations.csv").write_text("\n".join(["lon,lat,temp_c", *rows]))
    namespace: dict[str, object] = {}
    for block in blocks("README.md", "python"):
        exec(compile(block, "README.md", "exec"), namespace)
    with xr.open_zarr("filled.zarr") as filled:
        assert {"sst", "sst_standard_error", "sst_fill_flag"} <= set(filled)
    with xr.open_zarr("dates.zarr") as dates:
        assert dates.attrs["geonp_across"] == "time"
    grid = namespace["grid"]
    assert isinstance(grid, xr.Dataset)
    assert grid["temp_c"].shape == (24, 32)
    assert grid["temp_c"].notnull().all()


@pytest.mark.parametrize("page", CURRENT)
def test_commands_and_their_options_exist(page: str) -> None:
    makefile, anywhere = text_of("Makefile"), every_option(main)
    scripts = [path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py")]
    for words in commands(page):
        if words[0] == "make":
            assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in words[1:]), words
        elif words[0] == "python" and words[1].endswith(".py"):
            # scripts of a folder may share the definitions of their options
            folder = (ROOT / words[1]).parent
            assert (ROOT / words[1]).is_file(), words
            known = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
            assert not {name for name in options_of(words[2:]) if f'"{name}"' not in known}, words
        elif words[0] == "geonp":
            command, rest = own_command(words[1:])
            assert not options_of(rest) - names_of(command), words
    alone = {name for span in spans(page) if span.startswith("--") for name in options_of(span.split())}
    assert not {name for name in alone - anywhere if not any(f'"{name}"' in script for script in scripts)}


def every_command(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from every_command(inner, *words, name)


def test_every_help_text_has_an_example() -> None:
    for words, command in every_command(main):
        examples = [shlex.split(line) for line in (command.epilog or "").splitlines() if line.startswith("  geonp")]
        assert any(example[1 : len(words) + 1] == list(words) for example in examples), words
        for example in examples:
            found, rest = own_command(example[1:])
            assert not options_of(rest) - names_of(found), example


@pytest.mark.parametrize("page", CURRENT)
def test_python_names_exist(page: str) -> None:
    code = [*blocks(page, "python"), *spans(page)]
    for name in {name for part in code for name in re.findall(r"(?<![\w./'\"-])geonp(?:\.[a-zA-Z]\w*)+", part)}:
        if not name.endswith((".md", ".py", ".git")):
            resolve(name)
    for part in code:
        assert all(hasattr(ACCESSOR, name) for name in re.findall(r"\w\.geonp\.(\w+)", part)), part
        for name, keywords in calls(part):
            owner = ACCESSOR if re.match(r"\w+\.geonp\.", name) else geonp
            parameters = inspect.signature(getattr(owner, name.rpartition(".")[2])).parameters
            assert keywords <= set(parameters), f"{page}: {part}"


@pytest.mark.parametrize("page", CURRENT)
def test_paths_exist(page: str) -> None:
    tops = "geonp|cli|recipes|tests|docs|examples|benchmarks"
    for path in (span for span in spans(page) if re.fullmatch(rf"(?:{tops})/[\w./-]*", span)):
        assert (ROOT / path).exists(), f"{page}: {path}"


@pytest.mark.parametrize("page", CURRENT)
def test_functions_are_in_the_files_that_pages_name(page: str) -> None:
    prose = " ".join(text_of(page).split())
    for name, path in re.findall(r"`(\w+)` (?:in |\()`((?:geonp|cli)/[\w/]+\.py)`", prose):
        assert re.search(rf"^(?:class |def )?{name}\b", text_of(path), flags=re.MULTILINE), f"{page}: {name} in {path}"


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    for target in LINK.findall(text_of(page)):
        if re.match(r"https?://", target):
            continue
        path, _, fragment = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if fragment:
            assert fragment in anchors(str(file.relative_to(ROOT))), f"{page}: {target}"


def test_pages_give_the_versions_and_scores_of_the_cards() -> None:
    cards = [load_card(name) for name in ("tnpkr-sa", "te-pt-tnp", "tnpkr-sa-paper")]
    accuracy, own = text_of("docs/accuracy.md"), cards[0].scores
    assert f"| {' | '.join(f'`{card.name}` {card.version}' for card in cards)} |" in accuracy
    for key, row in {
        "kriging_crps_ratio": "CRPS relative to kriging, geometric mean",
        "kriging_rmse_ratio": "RMSE relative to kriging, geometric mean",
        "real_coverage_95": "coverage of the 95 % interval, mean",
    }.items():
        values = [f"{card.scores[key]:.3f}" for card in cards]
        assert f"| {row} | {' | '.join(values)} |" in accuracy
        assert all(re.search(rf"\| {value}\b", text_of("README.md")) for value in values[:2])
    assert f"{own['kriging_crps_ratio']:.2f} times that of kriging" in text_of("docs/how-it-works.md")
    assert f"{own['real_coverage_95']:.1%}".replace("%", " % on average") in text_of("docs/guide/uncertainty.md")
    assert f"With version {cards[0].version} of `tnpkr-sa`" in text_of("docs/first-fill.md")


def test_the_reference_has_every_public_name() -> None:
    listed = set(re.findall(r"^   ([\w.]+)$", text_of("docs/api.rst"), flags=re.MULTILINE))
    methods = {f"Dataset.geonp.{name}" for name in vars(ACCESSOR) if not name.startswith("_")}
    functions = {name for name in geonp.__all__ if not isinstance(getattr(geonp, name), ModuleType)}
    assert methods | functions <= listed
    for name in listed - methods:
        resolve(f"geonp.{name}")


def test_scan_attention_runs_where_the_page_on_the_models_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("scan attention")

    monkeypatch.setattr(tnp_kr, "scan_attention", refuse)
    assert sea().geonp.infill(model="tnpkr-sa")["sst"].notnull().all()
    x, y = torch.zeros(1, 3, 1), torch.zeros(1, 3, 1)
    with pytest.raises(AssertionError, match="scan attention"):
        build("tnp-kr", {"d_x": 1, "d_y": 1})(x, y, x)


def test_what_is_wrong_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="no command 'fil'"):
        own_command(["fil", "in.tif"])
    assert options_of(["in.tif", "--resum", "-q", "-4"]) - names_of(own_command(["fill"])[0]) == {"--resum"}
    with pytest.raises(ImportError):
        resolve("geonp.nn.nothing")
    assert list(calls("ds.geonp.infill(model=m)\nother(1)")) == [("ds.geonp.infill", {"model"})]


def documented(function: object) -> set[str]:
    """The names in the section of parameters of a docstring."""
    section = re.search(r"Parameters\n-+\n(.*?)(?:\n\n\w+\n-+|\Z)", inspect.getdoc(function) or "", re.DOTALL)
    entries = re.findall(r"^(\S.*?)(?: : .*)?$", section[1] if section else "", re.MULTILINE)
    return {name for entry in entries for name in entry.split(", ")}


@pytest.mark.parametrize("owner", [geonp, ACCESSOR], ids=["geonp", "accessor"])
def test_docstrings_describe_the_parameters_of_the_signature(owner: object) -> None:
    functions = [(name, getattr(owner, name)) for name in dir(owner) if not name.startswith("_")]
    public = {name: function for name, function in functions if inspect.isfunction(function)}
    assert {"infill", "plan", "evaluate"} <= set(public)
    for name, function in public.items():
        assert documented(function) == set(inspect.signature(function).parameters) - {"self"}, name
