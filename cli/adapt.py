"""``geonp adapt IN --out OUT``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .covariates import covariates, read_beside
from .missing import gaps_where, mask_option, read_mask, read_missing
from .options import as_numbers, fill_option, nodata, opening, overwrite, part, quiet
from .show import echo, in_terminal, to_json

if TYPE_CHECKING:
    from geonp.adaptation.adapt import Adapted


@click.command()
@click.argument("source", metavar="IN")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="OUT", help="Checkpoint to write (.safetensors)."
)
@click.option("--minutes", type=float, default=5.0, show_default=True, help="Time limit.")
@click.option("--steps", type=int, help="Number of training steps, instead of a time limit.")
@click.option(
    "--closer/--no-closer", default=True, show_default=True, help="Also try smaller tiles, with which fills are slower."
)
@part
@as_numbers
@nodata
@gaps_where
@mask_option
@click.option(
    "--across",
    metavar="DIM",
    multiple=True,
    default=None,
    help="Dimension along which regression on other slices is tried, such as time, or variables; repeatable. Default: "
    "all dimensions of IN.",
)
@covariates
@overwrite
@fill_option(
    "model", help="Name of a shipped model (geonp models), or path of a .safetensors checkpoint, to start from."
)
@fill_option("device")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the hold-out and training."
)
@quiet
@click.option("--progress/--no-progress", default=None, help="Show progress. Default: in a terminal, unless --quiet.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def adapt(source: str, mask: str | None, quiet: bool, progress: bool | None, as_json: bool, **settings: Any) -> None:
    """Fine-tune a model on the observed cells of IN.

    The result is written to the checkpoint OUT. Use it with geonp fill IN --model OUT. The model is scored before and
    after training, on cells that are not used in training. If nothing clearly better is found, which is common, OUT is
    the unchanged model, and a message says so.
    """
    from geonp.io.files import open_raster

    where = opening(settings)
    ds = open_raster(source, **where)
    ds, settings["missing"] = read_missing(settings["missing"], ds, source, where)
    settings |= read_beside(settings, ds, source, where)
    settings["mask"] = read_mask(mask, where["bbox"])
    from geonp.adaptation.adapt import adapt as run

    if in_terminal() and not quiet if progress is None else progress:
        settings["progress"] = _show
    adapted = run(ds, **settings)
    summary = {"input": source, **asdict(adapted), "file": str(adapted.file), "improved": adapted.improved}
    if as_json or not quiet:
        echo(to_json(summary) if as_json else _sentence(adapted))


def _show(done: float, ratio: float) -> None:
    echo(f"{done:4.0%} done: CRPS {ratio:.3f} times the model's", err=True)


def _sentence(adapted: Adapted) -> str:
    units = f" {adapted.units}" if adapted.units else ""
    setting = f"{adapted.cells:,} held-out cells, in {adapted.minutes:.1f} minutes: {adapted.file}"
    if not adapted.improved:
        return f"Nothing clearly better was found; the model is kept: CRPS {adapted.before:.4g}{units} on {setting}"
    change = f"{1 - adapted.after / adapted.before:.1%} less"
    slower = f"; a fill takes {adapted.slowdown:.1f} times as long" if adapted.slowdown > 1.2 else ""
    how = f"; slices are regressed on each other along {adapted.across}" if adapted.across else ""
    return f"CRPS {adapted.before:.4g} before, {adapted.after:.4g}{units} after ({change}) on {setting}{how}{slower}"
