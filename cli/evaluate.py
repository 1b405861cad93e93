"""``geonp evaluate IN``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .show import to_json

if TYPE_CHECKING:
    from collections.abc import Hashable

    from geonp.evaluation.comparison import Comparison

__all__ = ["evaluate"]

HOLDOUTS = ("clouds", "blocks", "stripes", "swath", "random", "gaps")


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.option(
    "--holdout",
    type=click.Choice(HOLDOUTS),
    default="clouds",
    show_default=True,
    help="What is hidden: simulated gaps, or the raster's own gaps, moved elsewhere.",
)
@click.option("--fraction", type=float, default=0.25, show_default=True, help="Share that is hidden.")
@click.option("-b", "--bidx", "band", type=int, help="Band to evaluate, from 1. Default: the first.")
@click.option("--variable", help="Variable to evaluate. Default: the first.")
@click.option("--index", multiple=True, metavar="DIM=N", help="Slice to evaluate, from 0; repeatable. Default: 0.")
@click.option("--bbox", type=float, nargs=4, metavar="W S E N", help="Only this box, in the raster's coordinates.")
@click.option("--size", type=int, default=512, show_default=True, help="Cut a raster of more rows or columns.")
@click.option("--nodata", type=float, help="Stored value of missing cells, instead of the declared one.")
@click.option("--baseline", "baselines", multiple=True, help="Method to compare with; repeatable. Default: all.")
@click.option("--model", default="tnpkr-sa", show_default=True, help="Name or path of the model.")
@click.option("--across", metavar="DIM", help="Let the model see the slices beside it along this dimension.")
@click.option("--device", help="cpu, cuda, ... Default: a GPU if there is one.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of what is hidden.")
@click.option(
    "--report", type=click.Path(path_type=Path), help="Write a page (.html) with maps, curves and tables too."
)
@click.option("--progress/--no-progress", default=None, help="Name each method as it begins. Default: in a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def evaluate(
    source: Path,
    band: int | None,
    variable: str | None,
    index: tuple[str, ...],
    bbox: tuple[float, float, float, float] | None,
    nodata: float | None,
    baselines: tuple[str, ...],
    report: Path | None,
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Hide observed cells of the raster IN, fill them with the model and with classical methods, and score the fills.

    One slice of one variable is evaluated; of a raster larger than --size, the cut with the most observed cells (for
    --holdout gaps, with the evenest share of observed and missing ones). When a classical method wins, it is said so.
    """
    from geonp.io.files import open_raster

    position: dict[Hashable, int] = dict(_position(text) for text in index)
    if report is not None:
        from geonp.evaluation.report import check_report

        check_report(report)
    ds = open_raster(
        source,
        variables=None if variable is None else [variable],
        bands=None if band is None else [band],
        bbox=bbox,
        nodata=nodata,
    )
    from geonp.evaluation.compare import evaluate as run

    if baselines:
        settings["baselines"] = baselines
    if sys.stderr.isatty() if progress is None else progress:
        settings["progress"] = lambda method: click.echo(f"{method} ...", err=True)
    found = run(ds, index=position, **settings)
    if report is not None:
        from geonp.evaluation.report import write_report

        write_report(found, report, title=source.name)
    click.echo(to_json({"input": str(source), **found.to_dict()}) if as_json else _text(found, report))


def _position(text: str) -> tuple[str, int]:
    dim, _, number = text.partition("=")
    if not (dim and number.isdecimal()):
        raise click.BadParameter(
            f"got {text!r}, expected DIM=N with a position from 0, as time=3", param_hint="--index"
        )
    return dim, int(number)


def _text(found: Comparison, report: Path | None) -> str:
    return f"{found}\n\nReport: {report}" if report else str(found)
