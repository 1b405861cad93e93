"""Commands of geonp, run in the process of the tests: another one would import torch again."""

from __future__ import annotations

import warnings

from click.testing import CliRunner, Result

from geonp.cli.app import main


def cli(*arguments: object, code: int = 0) -> Result:
    """The result of a command, which must end with `code` and without a traceback."""
    done = CliRunner().invoke(main, list(map(str, arguments)), prog_name="geonp", catch_exceptions=False)
    assert done.exit_code == code, f"{arguments}: {done.output}"
    assert "Traceback" not in done.output
    return done


def says(*arguments: object, code: int = 0) -> str:
    """What a command prints; what it says on stderr alone if it must fail."""
    done = cli(*arguments, code=code)
    return done.stderr if code else done.stdout


def with_warnings(*arguments: object, code: int = 0) -> str:
    """All that a command prints, with its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        return cli(*arguments, code=code).output
