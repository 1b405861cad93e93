"""``geonp models``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from .show import echo, table, to_json

if TYPE_CHECKING:
    from geonp.inference.checkpoint import Card

SCORES = {
    "Scores on held-out tasks of its training": {
        "crps_ratio": "CRPS relative to the exact Gaussian process: {:.3f}",
        "coverage_95": "share of values within the 95 % interval: {:.1%}",
        "kl": "divergence from the exact Gaussian process: {:.3f}",
        "nll": "negative log likelihood: {:.3f}",
        "accuracy": "share of classes that are right: {:.1%}",
        "rmse": "RMSE in standard deviations: {:.3f}",
    },
    "Scores on real rasters, 66 cases of docs/accuracy.md": {
        "kriging_crps_ratio": "CRPS relative to local kriging fitted to the raster: {:.3f}",
        "kriging_rmse_ratio": "RMSE relative to it: {:.3f}",
        "real_coverage_95": "share of values within the 95 % interval: {:.1%}",
    },
    "Scores on held-out cells of the raster it was adapted to": {
        "crps_before": "CRPS before: {:.4g}",
        "crps_after": "CRPS after: {:.4g}",
        "slowdown": "time of a fill relative to before: {:.2g}",
    },
}
"""Scores of a card by what they were measured on, the most informative first."""


@click.group(invoke_without_command=True)
@click.pass_context
def models(context: click.Context) -> None:
    """List and describe models."""
    if context.invoked_subcommand is None:
        context.invoke(list_models)


@models.command("list")
def list_models() -> None:
    """List the shipped models and all architectures."""
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
    """Print the card of a model.

    The card has its description, training, scores and limits. NAME is the name of the model or the path of its weights.
    """
    from geonp.inference.checkpoint import load_card

    card = load_card(name)
    echo(to_json(card.model_dump(mode="json")) if as_json else _card(card))


def _with_before(text: str, training: dict[str, Any], key: str, before: str) -> str | None:
    """A number of a training as text, and that of the versions that it continued."""
    if key not in training:
        return None
    earlier = f", after {text.format(training[before])} of earlier versions" if before in training else ""
    return text.format(training[key]) + earlier


def _card(card: Card) -> str:
    """A card as paragraphs, without empty ones."""
    training, context = card.training, card.neighbourhood
    facts = {
        "architecture": f"{card.architecture}, {card.parameters:,} parameters",
        "reads": f"up to {context.n_context} observed cells within {max(context.halos_px)} cells of a tile"
        + ("; deep in gaps, means of blocks farther away, too" if context.far else ""),
        "values": f"{card.classes} classes" if card.classes else "numbers",
        "covariates": None if card.classes else "used" if card.uses_covariates else "not used",
    }
    took = {
        "data": card.trained_on or None,
        "steps": _with_before("{:,}", training, "steps_done", "steps_before"),
        "time": _with_before("{:.1f} CPU-hours", training, "cpu_hours", "cpu_hours_before"),
        "start": training.get("start") or None,
        "chosen on": card.chosen_on or None,
    }
    scores = {
        title: [f"  {text.format(card.scores[key])}" for key, text in texts.items() if key in card.scores]
        for title, texts in SCORES.items()
    }
    parts = {
        "What it is": [table(facts, indent="  ")],
        "How it was trained": [table(took, indent="  ")] if any(took.values()) else [],
        **scores,
        "Limits": [f"  {text}" for text in card.limits],
    }
    sections = [f"{title}\n" + "\n".join(lines) for title, lines in parts.items() if lines]
    return "\n\n".join([f"{card.name} {card.version}\n{card.description}", *sections, f"SHA-256 {card.sha256}"])
