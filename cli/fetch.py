"""``geonp fetch era5``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from .show import echo

_DAY = click.DateTime(formats=["%Y-%m-%d"])


@click.group()
def fetch() -> None:
    """Download training data."""


@fetch.command("era5")
@click.option("--area", type=float, nargs=4, required=True, metavar="N W S E", help="Edges of the area, in degrees.")
@click.option("--start", type=_DAY, required=True, help="First day, YYYY-MM-DD.")
@click.option("--end", type=_DAY, required=True, help="Last day, included.")
@click.option("--tries", type=click.IntRange(min=1), default=3, show_default=True, help="Attempts for each month.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Longest pause between polls, in seconds.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing on stderr.")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT.zarr")
def era5(
    area: tuple[float, float, float, float],
    start: datetime,
    end: datetime,
    tries: int,
    wait: float,
    quiet: bool,
    out: Path,
) -> None:
    """Download ERA5 2 m temperature and surface geopotential to OUT.zarr, one month per request.

    Needs an account of the Climate Data Store, with url and key in ~/.cdsapirc, or in CDSAPI_URL and CDSAPI_KEY. To
    continue an interrupted download, run the same command again.
    """
    from geonp.training.data.era5 import fetch as run

    def report(line: str) -> None:
        if not quiet:
            echo(line, err=True)

    echo(run(area, start.date(), end.date(), out, tries=tries, wait_s=wait, report=report))
