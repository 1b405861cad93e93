"""``geonp evaluate IN``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .covariates import covariates, read_beside
from .missing import gaps_where, read_missing
from .options import as_numbers, bbox, fill_option, number, opening, place, slice_index
from .show import echo, in_terminal, to_json

if TYPE_CHECKING:
    from collections.abc import Hashable


__all__ = ["evaluate"]

HOLDOUTS = ("clouds", "blocks", "stripes", "swath", "random", "gaps")


@click.command()
@click.argument("source", metavar="IN")
@click.option(
    "--holdout",
    type=click.Choice(HOLDOUTS),
    default="clouds",
    show_default=True,
    help="Kind of hold-out: simulated gaps, or the raster's own gaps, moved.",
)
@click.option("--fraction", type=float, default=0.25, show_default=True, help="Share of cells to hide.")
@click.option("-b", "--bidx", "band", type=int, help="Band to evaluate, from 1. Default: the first.")
@click.option("--variable", help="Variable to evaluate. Default: the first.")
@place
@slice_index("Slice to evaluate, from 0; repeatable. Default: 0.")
@bbox
@as_numbers
@click.option(
    "--size", type=int, default=512, show_default=True, help="Largest number of rows and of columns evaluated."
)
@fill_option("nodata", type=number, help="As stored in the file.")
@gaps_where
@click.option("--baseline", "baselines", multiple=True, help="Method to compare with; repeatable. Default: all.")
@fill_option("model")
@click.option(
    "--across",
    metavar="DIM",
    multiple=True,
    default=None,
    help="Dimension whose neighbouring slices the model sees, such as time; repeatable.",
)
@covariates
@fill_option("device")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed for the hold-out.")
@click.option(
    "--report", type=click.Path(path_type=Path), help="Also write a page (.html) with maps, curves and tables."
)
@click.option("--picture", type=click.Path(path_type=Path), help="Also draw maps of the fill and its errors (.png).")
@click.option(
    "--progress/--no-progress", default=None, help="Print the name of each method as it starts. Default: in a terminal."
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def evaluate(
    source: str,
    band: int | None,
    variable: str | None,
    index: dict[Hashable, int],
    baselines: tuple[str, ...],
    report: Path | None,
    picture: Path | None,
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Hide observed cells of the raster IN, fill them by the model and by classical methods, and score the fills.

    With covariates, the model is scored with and without them, beside regression kriging. One slice of one variable
    is evaluated. Of a raster larger than --size, this is the cut with the most observed cells
    (for --holdout gaps, with the share of observed cells nearest to one half).
    """
    from geonp.io.files import open_raster

    if report is not None:
        from geonp.evaluation.report import check_report

        check_report(report)
    if picture is not None:
        from geonp.fill.picture import check_picture

        check_picture(picture, overwrite=True)
    where = opening(settings)
    where["variables"], where["bands"] = (None if one is None else [one] for one in (variable, band))
    ds = open_raster(source, **where)
    ds, settings["missing"] = read_missing(settings["missing"], ds, source, where)
    settings |= read_beside(settings, ds, source, where)
    from geonp.evaluation.compare import evaluate as run

    if baselines:
        settings["baselines"] = baselines
    if in_terminal() if progress is None else progress:
        settings["progress"] = lambda method: echo(f"{method} ...", err=True)
    comparison = run(ds, index=index, **settings)
    # before the report, which may fail
    echo(to_json({"input": source, **comparison.to_dict()}) if as_json else comparison)
    if report is not None:
        from geonp.evaluation.report import write_report

        write_report(comparison, report, title=Path(source).name)
        if not as_json:
            echo(f"\nReport: {report}")
    if picture is not None:
        from geonp.fill.picture import save_picture

        save_picture(comparison.plot(), picture)
        if not as_json:
            echo(f"Picture: {picture}")
