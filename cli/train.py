"""``geonp train RECIPE`` and ``geonp recipes``."""

from __future__ import annotations

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
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def train(recipe: str, overrides: tuple[str, ...], out: Path, resume: bool, workers: int, progress: bool) -> None:
    """Train the model of RECIPE: the name of one that ships, or a TOML file.

    Values of the recipe are overridden by arguments such as training.steps=100.
    """
    from geonp.training.loop import train as run
    from geonp.training.recipe import load

    click.echo(run(load(recipe, overrides), out, resume=resume, workers=workers, progress=progress))


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
    from geonp.training.recipe import copy

    click.echo(copy(name, destination))
