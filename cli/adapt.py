"""``geonp adapt IN --out OUT``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .fill import read_mask
from .show import to_json

if TYPE_CHECKING:
    from geonp.adaptation.adapt import Adapted

__all__ = ["adapt"]


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="OUT", help="Checkpoint to write (.safetensors)."
)
@click.option("--minutes", type=float, default=5.0, show_default=True, help="Time to take, at most.")
@click.option("--steps", type=int, help="Take so many training steps instead, however long it takes.")
@click.option("--closer/--no-closer", default=True, show_default=True, help="Also try closer looks, which take longer.")
@click.option("-b", "--bidx", "bands", multiple=True, type=int, help="Band to learn, from 1; repeatable. Default: all.")
@click.option("--variable", "variables", multiple=True, help="Variable to learn; repeatable. Default: all.")
@click.option("--bbox", type=float, nargs=4, metavar="W S E N", help="Only this box, in the raster's coordinates.")
@click.option("--nodata", type=float, help="Stored value of missing cells, instead of the declared one.")
@click.option("--mask", type=click.Path(path_type=Path), help="Raster of the valid domain: cells with 0 are left out.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--model", default="tnpkr-sa", show_default=True, help="Name or path of the model to begin with.")
@click.option("--device", help="cpu, cuda, ... Default: a GPU if there is one.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of what is held out.")
@click.option("--progress/--no-progress", default=None, help="Show how it goes. Default: in a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def adapt(
    source: Path,
    bands: tuple[int, ...],
    variables: tuple[str, ...],
    bbox: tuple[float, float, float, float] | None,
    nodata: float | None,
    mask: Path | None,
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a model further on the observed cells of the raster IN, and write it to OUT.

    OUT is a checkpoint like any other: geonp fill IN --model OUT. Some observed cells are kept out of the training to
    score the model before and after; when nothing clearly better is found, which is common, OUT holds the model as it
    was, and it is said so.
    """
    from geonp.io.files import open_raster

    ds = open_raster(source, variables=variables or None, bands=bands or None, bbox=bbox, nodata=nodata)
    settings["mask"] = None if mask is None else read_mask(mask, bbox)
    from geonp.adaptation.adapt import adapt as run

    if sys.stderr.isatty() if progress is None else progress:
        settings["progress"] = _show
    found = run(ds, **settings)
    summary = {"input": str(source), **asdict(found), "file": str(found.file), "improved": found.improved}
    click.echo(to_json(summary) if as_json else _sentence(found))


def _show(done: float, ratio: float) -> None:
    click.echo(f"{done:4.0%} done: CRPS {ratio:.3f} times the model's", err=True)


def _sentence(found: Adapted) -> str:
    units = f" {found.units}" if found.units else ""
    setting = f"{found.cells:,} held-out cells, in {found.minutes:.1f} minutes: {found.file}"
    if not found.improved:
        return f"Nothing clearly better was found, the model is kept: CRPS {found.before:.4g}{units} on {setting}"
    change = 1 - found.after / found.before
    slower = f"; a fill takes {found.slowdown:.1f} times as long" if found.slowdown > 1.2 else ""
    how = f"; slices tell about each other along {found.across}{slower}" if found.across else slower
    return f"CRPS {found.before:.4g} before, {found.after:.4g}{units} after ({change:.1%} less) on {setting}{how}"
