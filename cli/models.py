"""``geonp models``."""

from __future__ import annotations

import re

import click

from .show import echo, table, to_json

__all__ = ["models"]


@click.group(invoke_without_command=True)
@click.pass_context
def models(context: click.Context) -> None:
    """List and describe models."""
    if context.invoked_subcommand is None:
        context.invoke(list_models)


@models.command("list")
def list_models() -> None:
    """List the models with weights, and the architectures that recipes can train."""
    from geonp.inference.checkpoint import available
    from geonp.nn.models import ARCHITECTURES

    echo("Models with weights, for --model:")
    echo(table({name: card.description for name, card in available().items()}, indent="  "))
    echo("\nArchitectures without weights, for recipes and geonp.nn.models.build:")
    summaries = {name: _plain(str(kind.__doc__).partition("\n")[0]) for name, kind in ARCHITECTURES.items()}
    echo(table(summaries, indent="  "))


def _plain(text: str) -> str:
    """A line of a docstring without markup."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("`", "")


@models.command("show")
@click.argument("name")
def show_model(name: str) -> None:
    """Print the card of a model as JSON. NAME is the name of the model or the path of its weights."""
    from geonp.inference.checkpoint import load_card

    echo(to_json(load_card(name).model_dump(mode="json")))
