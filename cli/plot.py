"""``geonp plot IN [OUT]``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import bbox, opening, overwrite, place, quiet, select, slice_index
from .show import echo

if TYPE_CHECKING:
    from collections.abc import Hashable


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="[OUT]", required=False, type=click.Path(path_type=Path))
@click.option("--variable", help="Variable to draw. Default: the first that was filled.")
@slice_index("Position of the slice along a dimension, from 0; repeatable. Default: a strip of slices.")
@click.option(
    "--slices", type=click.IntRange(min=1), default=6, show_default=True, help="Largest number of slices in a strip."
)
@place
@bbox
@select
@overwrite
@quiet
def plot(
    source: str,
    target: Path | None,
    variable: str | None,
    index: dict[Hashable, int],
    slices: int,
    overwrite: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Draw a filled raster IN as a picture OUT. Default of OUT: IN with the extension .png.

    The picture shows observations, filled values, standard errors and flags. For a stack it is a strip of several
    slices, for a raster that is no result of geonp it shows the values only. OUT is a .png, .jpg, .webp, .pdf or .svg.
    """
    from geonp.fill.picture import check_picture, save_picture
    from geonp.fill.picture import plot as drawn
    from geonp.io.files import open_raster
    from geonp.io.location import is_remote

    if target is None:
        place = Path(source.rstrip("/"))
        target = (Path(place.name) if is_remote(source) else place).with_suffix(".png")
    check_picture(target, overwrite=overwrite)
    ds = open_raster(source, **opening(settings))
    figure = drawn(ds, variable=variable, index=index, slices=slices)
    save_picture(figure, target)
    if not quiet:
        echo(f"Drew {target}")
