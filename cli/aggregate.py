"""``geonp aggregate IN REGIONS --out TABLE``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .covariates import covariates, errors, opener, read_beside
from .missing import mask_option, read_mask
from .options import bounds_option, file_system, fill_option, nodata, opening, overwrite, part, quiet, storage_option
from .progress import computing
from .show import echo


@click.command()
@click.argument("source", metavar="IN")
@click.argument("regions", metavar="[REGIONS]", required=False)
@click.option("--blocks", type=click.IntRange(min=1), help="Rows and columns of blocks of cells, instead of REGIONS.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The .csv or .parquet to write. Default: the table is printed."
)
@click.option(
    "--statistic",
    type=click.Choice(["mean", "sum", "integral", "fraction"]),
    default="mean",
    show_default=True,
    help="Mean or sum of the values, sum times the areas of cells, or fraction of the area above --threshold.",
)
@click.option("--threshold", type=float, help="Value to exceed, for --statistic fraction.")
@click.option(
    "--name",
    "names",
    metavar="COLUMN",
    help="Column with the names of REGIONS. Default: name, or the first column of text.",
)
@click.option("--layer", help="Layer of REGIONS.")
@click.option(
    "--all-touched", is_flag=True, help="Count all cells that a polygon touches, not only those whose centre is inside."
)
@click.option(
    "--samples",
    type=click.IntRange(min=2),
    default=200,
    show_default=True,
    help="Joint samples to draw, if IN has none: with 200, a standard error is known to within 5 %.",
)
@part
@nodata
@click.option(
    "--across",
    metavar="DIM",
    multiple=True,
    default=None,
    help="Dimension along which slices are filled from each other; repeatable. Default: those of the fill of IN.",
)
@fill_option("empty_slices", is_flag=True)
@mask_option
@fill_option("max_distance", type=float)
@bounds_option()
@covariates
@errors
@fill_option("model")
@fill_option("device")
@fill_option("seed", type=int, show_default=True)
@storage_option
@overwrite
@quiet
def aggregate(
    source: str,
    regions: str | None,
    blocks: int | None,
    out: Path | None,
    mask: str | None,
    storage: tuple[str, ...],
    overwrite: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Compute means or sums of regions of the raster IN.

    Each has its standard error. IN is the result of geonp fill, or a raster with gaps, which is filled first. REGIONS
    is a file of polygons (GeoPackage, GeoJSON, shapefile), which may overlap, or a raster of labels on the grid of IN.
    The standard errors account for the correlation of errors between cells, by joint samples: those in IN (geonp fill
    --samples), or samples drawn for the table. Observed cells count as known, without error.
    """
    from geonp.fill.aggregate import aggregate as aggregated
    from geonp.io.table_output import check_table, write_table

    if (regions is None) == (blocks is None):
        raise click.UsageError("Give either REGIONS or --blocks.")
    if out is not None:
        check_table(out, overwrite=overwrite)
    where, storage_options = opening(settings), file_system(storage)
    ds = opener(storage_options)(source, **where)
    settings |= read_beside(settings, ds, source, where, storage_options)
    settings["mask"] = read_mask(mask, where["bbox"], storage_options)
    # what is not given is read from the attributes of a filled raster
    given = {
        name: value
        for name, value in settings.items()
        if value is not None and not (isinstance(value, tuple) and not value)
    }
    context = click.get_current_context()
    if context.get_parameter_source("model") is not click.core.ParameterSource.COMMANDLINE:
        given.pop("model", None)
    with computing(not quiet):
        table = aggregated(ds, regions if blocks is None else blocks, **given)
    if out is None:
        echo(table.to_csv(index=False).rstrip())
        return
    write_table(table, out, overwrite=overwrite)
    if not quiet:
        echo(f"Wrote {len(table):,} rows: {out}")
