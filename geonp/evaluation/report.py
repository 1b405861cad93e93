"""A comparison as one self-contained HTML page: maps, reliability curves, scores, and scores by distance.

The figures are inline SVG. Their text and axes take the colour of the page, which follows the light or dark scheme of
the reader's system.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from geonp.errors import OutputError, from_extra
from geonp.evaluation.cross_validation import CrossValidation
from geonp.evaluation.scored import OURS, VARIANTS, WITH_BOTH, WITH_COVARIATES, WITH_SLICES, Scored
from geonp.io.location import written

with from_extra("evaluate", "matplotlib"):
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEVELS = tuple(step / 20 for step in range(1, 20))  # of the reliability curves

# Distinct on white and on black, also for colour-blind readers (after Okabe & Ito).
_COLOURS = {
    OURS: "#e0562d",
    WITH_COVARIATES: "#a01d4f",
    WITH_SLICES: "#7a4fb0",
    WITH_BOTH: "#3f5bd8",
    "nearest": "#8f8f8f",
    "linear": "#4aa8dc",
    "gdal": "#17a278",
    "inverse_distance": "#cf7fae",
    "thin_plate": "#8b7fe0",
    "kriging": "#d99a1c",
    "regression_kriging": "#8c6a1c",
    "linear_across": "#3d7a5a",
    "harmonic": "#8a9a2f",
    "whittaker": "#2f8f9a",
    "dineof": "#b08d2c",
}

_INK = "#010203"  # replaced by the colour of the page's text
_STYLE: Any = {  # the type of matplotlib's parameters changes with its version
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.fonttype": "none",
    "text.parse_math": False,  # units may have a dollar sign
    "svg.hashsalt": "geonp",
}

_CSS = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c2026; --soft: #667080; --line: #d9dde3; --best: #0a7d4f; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --ink: #e4e7eb; --soft: #98a2b0; --line: #343a44; --best: #4fd39a; }
}
body { margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 68rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .5rem; font-size: 1.6rem; overflow-wrap: anywhere; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.15rem; }
p { margin: .4rem 0; max-width: 52rem; } .soft { color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }
.verdict { margin: 1.2rem 0; padding: .7rem 1rem; border-left: .3rem solid var(--best); font-weight: 600; }
.verdict.beaten { border-color: #d99a1c; }
svg { width: 100%; height: auto; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } thead th { color: var(--soft); font-weight: 500; }
.best { color: var(--best); font-weight: 700; } tr.ours td { font-weight: 600; }
"""


def check_report(path: str | Path) -> None:
    """Check that a report can be written to `path`, before the evaluation starts.

    Raises OutputError if the name does not end in .html, or its folder does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in {".html", ".htm"}:
        raise OutputError(f"Unknown report format: got {str(path)!r}, expected a name that ends in .html.")
    if not path.parent.is_dir():
        raise OutputError(f"No folder for the report: got {str(path.parent)!r}, expected an existing one. Create it.")


def write_report(comparison: Scored, path: str | Path, *, title: str | None = None) -> None:
    """Write the page of :func:`render` to `path`, replacing an existing file.

    Raises OutputError as :func:`check_report`, and if the file cannot be written.
    """
    check_report(path)
    with written(Path(path), "report") as temporary:
        temporary.write_text(render(comparison, title=title), encoding="utf-8")


def render(comparison: Scored, *, title: str | None = None) -> str:
    """Render a result of :func:`geonp.evaluate` or :func:`geonp.cross_validate` as an HTML page.

    The heading is `title`, such as a file name, by default the name of the variable.
    """
    heading = escape(comparison.name if title is None else title)
    best = {(comparison.winners[name], title) for name, title in comparison.ranked.items()}  # method and heading
    beaten = " beaten" if comparison.beaten else ""
    units = f" ({escape(comparison.units)})" if comparison.units else ""
    card = comparison.model
    model = (
        f"Model {card['model']} {card['model_version']}, weights {card['weights_sha256'][:12]}; "
        f"{comparison.note}; geonp {version('geonp')}."
    )
    things = comparison.scored_name
    with matplotlib.rc_context(_STYLE):
        maps = _svg(_place_maps(comparison) if isinstance(comparison, CrossValidation) else _maps(comparison))
        reliability, distance = (_svg(draw(comparison)) for draw in (_reliability, _by_distance))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{heading}: geonp evaluate</title>
<style>{_CSS}</style>
</head>
<body>
<h1>{heading}</h1>
<p>{escape(comparison.setting)}</p>
<p class="verdict{beaten}">{escape(comparison.verdict)}</p>
<h2>Maps</h2>
{maps}
<h2>Scores{units}</h2>
{_table(comparison.rows(), best)}
<p class="soft">Smaller is better, and the best is green; a bias should be near 0, and an interval should cover its
nominal share of the {things}. Errors are prediction minus truth.</p>
<h2>Reliability, and CRPS by distance</h2>
<div class="curves">
{reliability}
{distance}
</div>
<p class="soft">Reliability: the share of hidden {things} within the central interval of each level. Intervals are
calibrated on the diagonal, and too narrow below it.</p>
<h2>CRPS{units} by distance to the nearest observation</h2>
{_table(comparison.distance_rows(), set())}
{_doubtful(comparison) if isinstance(comparison, CrossValidation) else ""}<p class="soft">{escape(model)}</p>
</body>
</html>
"""


def _table(rows: Sequence[Sequence[str]], best: set[tuple[str, str]]) -> str:
    headings, *body = rows
    lines = []
    for method, *values in body:
        cells = "".join(
            f'<td class="best">{escape(text)}</td>' if (method, heading) in best else f"<td>{escape(text)}</td>"
            for heading, text in zip(headings[1:], values, strict=True)
        )
        ours = ' class="ours"' if method in VARIANTS else ""
        lines.append(f"<tr{ours}><td>{escape(method)}</td>{cells}</tr>")
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{"".join(lines)}</tbody></table></div>'


def _svg(figure: Figure) -> str:
    """The figure as an SVG element in the colour of the surrounding text."""
    buffer = StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", facecolor="none", metadata=no_metadata)
    text = buffer.getvalue()
    # the ids of groups are the same in every figure, and unused
    return re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :]).replace(_INK, "currentColor")


def _maps(comparison: Any) -> Figure:
    """Maps of the raster with gaps, of the filled one, of the standard error and of the actual error."""
    rows, columns = comparison.test.truth.shape
    height = float(np.clip(9.0 * rows / columns, 3.0, 14.0))
    figure = Figure(figsize=(11, height), layout="constrained")
    for axis, panel in zip(figure.subplots(2, 2).flat, comparison.panels(), strict=True):
        origin = "lower" if comparison.y_up else "upper"
        image = axis.imshow(panel.values[0], origin=origin, interpolation="none", **panel.style)
        axis.set(title=panel.title, xticks=[], yticks=[], facecolor=(_INK, 0.12))
        axis.spines[:].set(visible=True, alpha=0.3)
        figure.colorbar(image, ax=axis, extend=panel.extend, label=panel.label).outline.set_visible(False)
    return figure


def _place_maps(validation: CrossValidation) -> Figure:
    """Maps of the measurements, the predictions, the standard errors and the actual errors, at their places."""
    frame = validation.frame
    west, east, south, north = frame.extent
    height = float(np.clip(11.0 / frame.ratio, 4.0, 14.0))
    figure = Figure(figsize=(11, height), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    for axis, panel in zip(axes.flat, validation.panels(), strict=True):
        places = panel.places
        assert places is not None
        dots = axis.scatter(
            places.x, places.y, places.size, places.values, edgecolors=_INK, linewidths=0.25, **panel.style
        )
        axis.set(title=panel.title, aspect=frame.aspect, xlim=(west, east), ylim=(south, north))
        axis.set_facecolor((_INK, 0.06))
        axis.spines[:].set(visible=True, alpha=0.3)
        axis.grid(alpha=0.15, linewidth=0.6, color=_INK)
        axis.tick_params(length=0, labelsize=8)
        axis.set_axisbelow(True)
        figure.colorbar(dots, ax=axis, extend=panel.extend, label=panel.label).outline.set_visible(False)
    return figure


def _doubtful(validation: CrossValidation) -> str:
    """The measurements farthest outside of their intervals, which may be wrong or at places unlike their neighbours."""
    frame = validation.doubtful
    if frame.empty:
        return ""
    names = {"interval_halves": "error / half interval", "standard_error": "standard error"}
    rows = [
        [names.get(name, name) for name in map(str, frame)],
        *([_text(value) for value in row] for row in frame.to_numpy()),
    ]
    return f"""<h2>Farthest outside of their 95% intervals</h2>
{_table(rows, set())}
<p class="soft">Measurements that may be wrong, or at places unlike those around them, such as summits. The last column
is the error as a multiple of half the interval.</p>
"""


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value).removesuffix(" 00:00:00")


def _reliability(comparison: Scored) -> Figure:
    figure = Figure(figsize=(5.2, 4.4), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color=_INK, alpha=0.4, linestyle=":")
    for method in comparison.predictions:
        _curve(axis, method, _LEVELS, comparison.reliability(method, _LEVELS))
    axis.set(
        xlim=(0, 1), ylim=(0, 1), xlabel="level of the interval", ylabel=f"share of the {comparison.scored_name} within"
    )
    axis.legend(frameon=False)
    return figure


def _by_distance(comparison: Scored) -> Figure:
    figure = Figure(figsize=(5.2, 4.4), layout="constrained")
    axis = figure.subplots()
    for method, parts in comparison.by_distance.items():
        _curve(axis, method, list(parts), [s.crps for s in parts.values()], marker="o", markersize=4)
    units = f" ({comparison.units})" if comparison.units else ""
    axis.set(xlabel=f"{comparison.distance_unit} to the nearest observation", ylabel=f"CRPS{units}", ylim=(0, None))
    return figure


def _curve(axis: Axes, method: str, x: Any, y: Any, **style: Any) -> None:
    ours = method in VARIANTS
    axis.plot(
        x,
        y,
        color=_COLOURS.get(method, "#8f8f8f"),
        linewidth=2.6 if ours else 1.4,
        zorder=3 if ours else 2,
        label=method,
        **style,
    )
