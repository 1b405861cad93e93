"""``geonp evaluate IN``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .covariates import covariates, read_beside
from .evaluate_points import POINT_OPTIONS, RASTER_OPTIONS, evaluated_points, point_options
from .files import require_all_apart
from .missing import gaps_where, read_missing
from .options import as_numbers, bbox, bounds_option, fill_option, nodata, opening, place, quiet, select, slice_index
from .show import echo, in_terminal, to_json

if TYPE_CHECKING:
    from geonp.evaluation.comparison import Comparison

HOLDOUTS = ("clouds", "blocks", "stripes", "swath", "random", "gaps", "slice")
"""Kinds of hold-outs of rasters."""

POINT_HOLDOUTS = ("random", "one", "blocks", "stations", "periods")
"""Kinds of hold-outs of measurements."""


@click.command()
@click.argument("source", metavar="IN")
@click.option(
    "--holdout",
    type=click.Choice([*HOLDOUTS, *POINT_HOLDOUTS[3:], "one"]),
    help=f"Cells or measurements to hide. In a raster: {', '.join(HOLDOUTS)}; gaps are those of the raster, moved, and "
    f"slice is a whole slice. In a table: {', '.join(POINT_HOLDOUTS)}. Default: clouds; in a table, random.",
)
@click.option("--fraction", type=float, default=0.25, show_default=True, help="Share of cells to hide.")
@click.option("-b", "--bidx", "band", type=int, help="Band to evaluate, from 1. Default: the first.")
@click.option("--variable", help="Variable to evaluate. Default: the first.")
@place
@slice_index("Slice to evaluate, from 0; repeatable. Default: 0.")
@bbox
@select
@as_numbers
@click.option(
    "--size", type=int, default=512, show_default=True, help="Largest number of rows and of columns evaluated."
)
@nodata
@gaps_where
@point_options
@click.option("--baseline", "baselines", multiple=True, help="Method to compare with; repeatable. Default: all.")
@fill_option("model")
@click.option(
    "--across",
    metavar="DIM",
    multiple=True,
    default=None,
    help="Dimension whose neighbouring slices the model uses, such as time, or variables; repeatable.",
)
@fill_option("empty_slices", is_flag=True)
@bounds_option()
@covariates
@fill_option("device")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed for the hold-out.")
@click.option(
    "--report", type=click.Path(path_type=Path), help="Also write a page (.html) with maps, curves and tables."
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="Also draw maps of fill and errors (.png, .jpg, .pdf, .svg).",
)
@quiet
@click.option(
    "--progress/--no-progress",
    default=None,
    help="Print the name of each method as it starts. Default: in a terminal, unless --quiet.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def evaluate(
    source: str,
    holdout: str | None,
    baselines: tuple[str, ...],
    report: Path | None,
    picture: Path | None,
    predictions: Path | None,
    quiet: bool,
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Compare the model with classical methods on IN.

    A part of IN is hidden and predicted by all methods. IN is a raster, or a table of measurements as for geonp grid.
    In a raster, one slice of one variable is evaluated; if it is larger than --size, the window with the most observed
    cells (for --holdout gaps, with the share of observed cells nearest to one half). In a table, each measurement is
    predicted from the other folds. With covariates or other slices, the model is scored with and without them, and
    compared with methods that use them: regression kriging, linear interpolation in time, harmonic and Whittaker
    smoothing, and DINEOF.
    """
    from geonp.io.table_output import check_table, write_table
    from geonp.io.tables import is_table

    points = is_table(Path(source))
    _check_options(click.get_current_context(), points, holdout)
    if report is not None:
        from geonp.evaluation.report import check_report

        check_report(report)
    if picture is not None:
        from geonp.fill.picture import check_picture

        check_picture(picture, overwrite=True)
    if predictions is not None:
        check_table(predictions, overwrite=True)
    outputs = [path for path in (report, picture, predictions) if path is not None]
    require_all_apart(outputs, [("input", source), ("model", settings["model"])])
    settings["holdout"] = holdout or ("random" if points else "clouds")
    settings["baselines"] = baselines or None
    if in_terminal() and not quiet if progress is None else progress:
        settings["progress"] = lambda step: echo(f"{step} ...", err=True)
    wrong_kind = RASTER_OPTIONS if points else POINT_OPTIONS
    settings = {name: value for name, value in settings.items() if name not in wrong_kind}
    comparison: Any = evaluated_points(Path(source), settings) if points else _evaluated(source, settings)
    if as_json or not quiet:  # before the report, which may fail
        echo(to_json({"input": source, **comparison.to_dict()}) if as_json else comparison)
    written = {"Report": report, "Picture": picture, "Predictions": predictions}
    if report is not None:
        from geonp.evaluation.report import write_report

        write_report(comparison, report, title=Path(source).name)
    if picture is not None:
        from geonp.fill.picture import save_picture

        save_picture(comparison.plot(), picture)
    if predictions is not None:
        write_table(comparison.to_frame(), predictions, overwrite=True)
    lines = [f"{what}: {path}" for what, path in written.items() if path is not None]
    if lines and not (as_json or quiet):
        echo("\n" + "\n".join(lines))


def _check_options(context: click.Context, points: bool, holdout: str | None) -> None:
    """Refuse options of the other kind of input."""
    kind, others = ("a table", RASTER_OPTIONS) if points else ("a raster", POINT_OPTIONS)
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in others and context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[-1]} does not apply to IN, which is {kind}. Leave it out.")
    holdouts = POINT_HOLDOUTS if points else HOLDOUTS
    if holdout is not None and holdout not in holdouts:
        raise click.UsageError(f"IN is {kind}: got --holdout {holdout}, expected one of {', '.join(holdouts)}.")
    without = {"slice": ("fraction", "the whole slice is hidden"), "one": ("folds", "each measurement is one")}
    name, why = without.get(holdout or "", ("", ""))
    if name and context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--{name} does not apply to --holdout {holdout}: {why}. Leave it out.")


def _evaluated(source: str, settings: dict[str, Any]) -> Comparison:
    """Evaluate a raster; `settings` are options of :func:`geonp.evaluate`, and of the command."""
    from geonp.evaluation.compare import evaluate as run
    from geonp.io.files import open_raster

    where, index = opening(settings), settings.pop("index")
    variable, band = settings.pop("variable"), settings.pop("band")
    where["variables"], where["bands"] = (None if one is None else [one] for one in (variable, band))
    ds = open_raster(source, **where)
    if "variables" in (settings["across"] or ()) and variable is not None:
        where["variables"] = None
        every = open_raster(source, **where)
        first = next(iter(ds.data_vars))  # without the name of a group
        ds = every[[first, *(name for name in every.data_vars if name != first)]]
    ds, settings["missing"] = read_missing(settings["missing"], ds, source, where)
    settings |= read_beside(settings, ds, source, where)
    return run(ds, index=index, **settings)
