"""``geonp evaluate POINTS``: the options of measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .covariates import read_covariate
from .options import together

if TYPE_CHECKING:
    from geonp.evaluation.cross_validation import CrossValidation

RASTER_OPTIONS = (
    *("fraction", "band", "variable", "group", "index", "bbox", "select", "as_numbers", "size", "nodata", "missing"),
    *("across", "covariate_resampling", "empty_slices"),
)
"""Options that tables do not have."""

_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "value": click.option("--value", help="Column to evaluate. Default: the only one."),
    "units": click.option("--units", help="Units of the values. Default: those in a header such as temp [degC]."),
    "where": click.option(
        "--where",
        multiple=True,
        metavar="CONDITION",
        help="Use only rows that meet this, such as date=2020-07, depth<10, quality!=4 or flags&2=0. Repeatable: rows "
        "meet all conditions, but of several COLUMN=VALUE for one column, one.",
    ),
    "folds": click.option(
        "--folds", type=click.IntRange(min=2), default=10, show_default=True, help="Number of folds."
    ),
    "block_size": click.option(
        "--block-size",
        type=float,
        help="Side of a block, in km for longitudes and latitudes. Default: about four blocks per fold.",
    ),
    "time": click.option(
        "--time",
        metavar="COLUMN",
        help="Column of times. Each is predicted with the help of the others, as in geonp grid.",
    ),
    "at_times": click.option(
        "--at-times",
        multiple=True,
        metavar="TIME",
        help="Score only this time, those of a month such as 2020-07, or those of a range such as "
        "2020-07-01/2020-07-10; repeatable.",
    ),
    "every": click.option(
        "--every", metavar="LENGTH", help="Length of a period, such as 1D or 6h, whose measurements are of one time."
    ),
    "errors": click.option("--errors", metavar="COLUMN", help="Column of known standard errors."),
    "repeats": click.option(
        "--repeats", type=click.Choice(["mean", "keep"]), help="Average the rows of each location, or keep all."
    ),
    "crs": click.option(
        "--crs",
        help="CRS of IN. Default: that declared by a raster; for points WGS 84 if they are longitudes and latitudes.",
    ),
    "max_distance": click.option("--max-distance", type=float, help="Largest distance to a measurement."),
    "predictions": click.option(
        "--predictions",
        type=click.Path(path_type=Path),
        help="Also write all measurements and their predictions as a table (.csv, .parquet). The column "
        "scored is True for those that are scored: at the times of --at-times, and predicted by every method.",
    ),
}
POINT_OPTIONS = tuple(name for name in _OPTIONS if name != "crs")
"""Options that rasters do not have."""


point_options = together(*_OPTIONS.values())
"""The options of measurements."""


def evaluated_points(source: Path, settings: dict[str, Any]) -> CrossValidation:
    """Evaluate a table; `settings` are options of :func:`geonp.cross_validate`, and of the command."""
    from geonp.evaluation.cross_validate import cross_validate
    from geonp.io.tables import read_points
    from geonp.scattered.selection import selected

    table = selected(read_points(source), settings.pop("where"))
    covariates = [read_covariate(text) for text in settings.pop("covariates")]
    return cross_validate(
        table,
        values=settings.pop("value"),
        x=settings.pop("x_dim"),
        y=settings.pop("y_dim"),
        at_times=settings.pop("at_times") or None,
        covariates=covariates or None,
        **settings,
    )
