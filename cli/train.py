"""``geonp train RECIPE`` and ``geonp recipes``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .show import table

__all__ = ["recipes", "train"]


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the run.")
@click.option("--resume", is_flag=True, help="Go on with the run in that folder.")
@click.option(
    "--workers", type=click.IntRange(min=0), default=1, show_default=True, help="Processes that make batches."
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to train."
)
@click.option(
    "--devices", type=click.IntRange(min=1), default=1, show_default=True, help="How many of them, a batch a step each."
)
@click.option("--progress/--no-progress", default=None, help="Show a progress bar. Default: in a terminal.")
def train(
    recipe: str,
    overrides: tuple[str, ...],
    out: Path,
    resume: bool,
    workers: int,
    device: str,
    devices: int,
    progress: bool | None,
) -> None:
    """Train the model of RECIPE: the name of one that ships, or a TOML file.

    Values of the recipe are overridden by arguments such as training.steps=100 or model.architecture=cnp.
    """
    from geonp.training.loop import train as run
    from geonp.training.recipe import load

    wanted = load(recipe, overrides)
    shown = sys.stderr.isatty() if progress is None else progress
    click.echo(run(wanted, out, resume=resume, workers=workers, progress=shown, device=device, devices=devices))


@click.group(invoke_without_command=True)
@click.pass_context
def recipes(context: click.Context) -> None:
    """List and copy the recipes that ship with geonp."""
    if context.invoked_subcommand is None:
        context.invoke(list_recipes)


@recipes.command("list")
def list_recipes() -> None:
    """List the recipes."""
    from geonp.training.recipe import available

    click.echo(table(available()))


@recipes.command("cp")
@click.argument("name")
@click.argument("destination", type=click.Path(path_type=Path), default=".")
def copy_recipe(name: str, destination: Path) -> None:
    """Copy recipe NAME to DESTINATION, a file or folder, to edit it and train from it."""
    from geonp.errors import OutputError
    from geonp.training.recipe import copy

    try:
        file = copy(name, destination)
    except OSError as error:
        raise OutputError(
            f"Cannot copy the recipe to {str(destination)!r}: {error.strerror}. Expected a file or a folder that can "
            f"be written; choose another."
        ) from error
    click.echo(file)
