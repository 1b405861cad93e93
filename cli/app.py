"""The group of commands, and how errors become messages and exit codes.

Exit codes: 0 done, 1 error, 2 wrong usage. Results go to stdout; progress, notes and errors to stderr. The modules of
the commands import click alone at the top, so that ``--help`` loads no torch.
"""

from __future__ import annotations

from typing import Any

import click

from geonp.errors import GeonpError

from .evaluate import evaluate
from .fill import fill
from .info import info
from .models import models
from .train import recipes, train

__all__ = ["main"]


class _Group(click.Group):
    """Commands whose GeonpError is printed as one message."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except GeonpError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="geonp", message="geonp %(version)s")
def main() -> None:
    """Fill gaps in rasters with a pretrained transformer neural process and honest standard errors."""


for command in (evaluate, fill, info, models, recipes, train):
    main.add_command(command)
