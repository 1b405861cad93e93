"""``rio geonp-fill``: ``geonp fill`` as a command of rasterio."""

from __future__ import annotations

import click


@click.command(
    "geonp-fill",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    short_help="Fill gaps with a pretrained model, with standard errors.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def geonp_fill(arguments: tuple[str, ...]) -> None:
    """Run ``geonp fill`` with the same arguments, help and exit codes."""
    from .app import main  # not before the command is called: rio imports all of its plugins

    main(["fill", *arguments], prog_name="geonp")
