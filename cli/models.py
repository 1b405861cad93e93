"""``geonp models``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from .show import echo, table, to_json

if TYPE_CHECKING:
    from geonp.inference.checkpoint import Card

SCORES = {
    "crps_ratio": "CRPS relative to the exact Gaussian process: {:.3f}",
    "coverage_95": "share of values within the 95 % interval: {:.1%}",
    "kl": "divergence from the exact Gaussian process: {:.3f}",
    "nll": "negative log likelihood: {:.3f}",
    "accuracy": "share of classes that are right: {:.1%}",
    "rmse": "RMSE in standard deviations: {:.3f}",
}
"""Scores of a card, the most informative first."""


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
@click.option("--json", "as_json", is_flag=True, help="Print the whole card as JSON.")
def show_model(name: str, as_json: bool) -> None:
    """Print the card of a model: its description, training, scores and limits.

    NAME is the name of the model or the path of its weights.
    """
    from geonp.inference.checkpoint import load_card

    card = load_card(name)
    echo(to_json(card.model_dump(mode="json")) if as_json else _card(card))


def _card(card: Card) -> str:
    """A card as paragraphs, without empty ones."""
    training, context = card.training, card.neighbourhood
    facts = {
        "architecture": f"{card.architecture}, {card.parameters:,} parameters",
        "reads": f"up to {context.n_context} observed cells within {max(context.halos_px)} cells of a tile",
        "values": f"{card.classes} classes" if card.classes else "numbers",
        "covariates": None if card.classes else "used" if card.uses_covariates else "not used",
    }
    took = {
        "data": card.trained_on or None,
        "steps": f"{training['steps_done']:,}" if "steps_done" in training else None,
        "time": f"{training['cpu_hours']:.1f} hours of one core" if "cpu_hours" in training else None,
        "start": training.get("start") or None,
        "choices": card.chosen_on or None,
    }
    scores = {key: text.format(card.scores[key]) for key, text in SCORES.items() if key in card.scores}
    parts = {
        "What it is": [table(facts, indent="  ")],
        "How it was trained": [table(took, indent="  ")] if any(took.values()) else [],
        "Scores on held-out tasks of its training": [f"  {text}" for text in scores.values()],
        "Limits": [f"  {text}" for text in card.limits],
    }
    sections = [f"{title}\n" + "\n".join(lines) for title, lines in parts.items() if lines]
    return "\n\n".join([f"{card.name} {card.version}\n{card.description}", *sections, f"SHA-256 {card.sha256}"])
