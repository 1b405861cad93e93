"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from geonp.errors import warn
from geonp.fill.options import FillOptions
from geonp.fill.signatures import described
from geonp.io.location import is_remote

from .show import echo

DEFAULTS = {option.name: option.default for option in fields(FillOptions)}
"""Defaults of the options of a fill, by name."""

bands = click.option("-b", "--bidx", "bands", multiple=True, type=int, help="Band, from 1; repeatable. Default: all.")
"""Bands to read."""
variables = click.option(
    "--variable", "variables", multiple=True, help="Variable, or GROUP/NAME; repeatable. Default: all."
)
"""Variables to read."""
as_numbers = click.option("--as-numbers", is_flag=True, help="Fill classes (palettes, flag_values) as numbers.")
"""Whether variables of classes count as numbers."""


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order in which help lists them."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


place = together(
    click.option(
        "--group",
        metavar="GROUP",
        help="Group of a NetCDF or GRIB file or Zarr store. Default: the only one with a raster.",
    ),
    click.option(
        "--y", "y_dim", metavar="DIM", help="Dimension of rows, if it is not recognised; named y in the output."
    ),
    click.option(
        "--x", "x_dim", metavar="DIM", help="Dimension of columns, if it is not recognised; named x in the output."
    ),
)
"""Where in a file the raster is: `group`, `y_dim` and `x_dim` of open_raster."""


def slice_index(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `index`, a mapping of dimensions to positions, described by `text`."""
    return click.option("--index", multiple=True, metavar="DIM=N", callback=_positions, help=text)


def _positions(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for text in texts:
        dim, _, position = text.partition("=")
        if not (dim and position.isdecimal()):
            raise click.BadParameter(f"got {text!r}, expected DIM=N with a position from 0, such as time=3")
        found[dim] = int(position)
    return found


def _ranges(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        dim, equals, labels = text.partition("=")
        first, comma, last = (part.strip() for part in labels.partition(","))
        if not (dim and equals and (first or last)) or dim in found:
            raise click.BadParameter(f"got {text!r}, expected DIM=LABEL or DIM=FIRST,LAST once for each dimension")
        found[dim] = (first or None, last or None) if comma else (first, first)
    return found


select = click.option(
    "--select",
    multiple=True,
    metavar="DIM=LABEL",
    callback=_ranges,
    help="Slices to keep, such as time=2020-07 or, from the first to the last, time=2020-07,2020-09 or level=500,; "
    "repeatable.",
)
"""Slices to read."""
bbox = click.option("--bbox", type=float, nargs=4, metavar="W S E N", help="Bounding box, in raster coordinates.")
"""Part to read."""
crs = click.option("--crs", help="CRS of the raster, such as EPSG:32633, used instead of the declared one.")
"""CRS of the raster."""
storage_option = click.option(
    "--storage-option",
    "storage",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the file system of URLs, and of those that references of kerchunk lead to, such as "
    "endpoint_url=http://localhost:9000; repeatable. Never stored.",
)
"""Access to an object store; see :func:`file_system`."""
part = together(bands, variables, place, crs, bbox, select)
"""Which part of a file is read."""
overwrite = click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
"""Whether an existing output is replaced."""
quiet = click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
"""No notes on stderr."""


def fill_option(name: str, *flags: str, help: str = "", **attributes: Any) -> Callable[[Any], Any]:
    """The option of :class:`geonp.fill.options.FillOptions` of this name, with its default.

    Its description is that of the option unless `help` is given, for values that the command line writes differently.
    """
    flag = "--" + name.replace("_", "-")
    attributes.setdefault("default", DEFAULTS[name])
    if DEFAULTS[name]:
        attributes.setdefault("show_default", True)
    return click.option(*(flags or (flag,)), name, help=help or _summary(name), **attributes)


def number(text: str) -> float:
    """A number as an int if it is written as one, so that 64-bit integers keep their digits, else as a float."""
    return int(text) if re.fullmatch(r"[-+]?\d+", text.strip()) else float(text)


def _summary(name: str) -> str:
    """The first sentence of the description of an option, and what it is by default, as plain text with flags."""
    first, *others = re.split(r"(?<=\.) (?=[A-Z`])", described().get(name, ""))
    text = " ".join([first, *(sentence for sentence in others if sentence.startswith("By default"))])
    text = re.sub(r"(?<!`)`(\w+)`(?!`)", lambda option: "--" + option[1].replace("_", "-"), text)
    return text.replace("`", "")


nodata = fill_option("nodata", type=number, help="Stored value of missing cells, used instead of the declared one.")
"""Value that says that a cell is missing."""
quantiles = fill_option(
    "quantiles",
    "--quantile",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Probability between 0 and 1 of a quantile to add, such as 0.05; repeatable.",
)
"""Quantiles to write."""


def bounds_option(name: str = "bounds") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `bounds` under this name."""
    text = (
        "Bounds of the values, such as 0, for rain (without an upper bound) and 0,1 for fractions; NAME=LOWER,UPPER "
        "for one variable; valid_range for those of the CF attributes valid_range, valid_min and valid_max. Repeatable."
    )
    flag, metavar = "--" + name.replace("_", "-"), "LOWER,UPPER"
    return click.option(flag, name, metavar=metavar, multiple=True, default=None, callback=_bounds, help=text)


def distribution(bounds: str = "bounds") -> Callable[[Any], Any]:
    """Options of the distribution of the values: `exceed`, `statistic`, and their `bounds` under this name."""
    return together(
        fill_option(
            "exceed",
            multiple=True,
            metavar="T[,T...]",
            callback=_thresholds,
            help="Thresholds, in the units of the values; for each, the probability of a larger value is added. "
            "Repeatable.",
        ),
        fill_option("statistic", type=click.Choice(["mean", "median"])),
        bounds_option(bounds),
    )


def _thresholds(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[float, ...]:
    try:
        return tuple(float(part) for text in texts for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"expected numbers separated by commas, like 1,10, got {' '.join(texts)!r}") from error


def _bounds(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> Any:
    named = dict(text.rpartition("=")[::2] for text in texts)
    if len(named) < len(texts) or (len(named) > 1 and "" in named):
        raise click.BadParameter(
            f"expected LOWER,UPPER once, or NAME=LOWER,UPPER once for each name, got {' '.join(texts)}"
        )
    found = {name: _pair_of_bounds(text) for name, text in named.items()}
    return found.get("", found or None)


def _pair_of_bounds(text: str) -> tuple[float | None, float | None] | str:
    if text.strip() == "valid_range":
        return "valid_range"
    low, comma, high = text.partition(",")
    try:
        if comma:
            return tuple(float(end) if end.strip() else None for end in (low, high))  # type: ignore[return-value]
    except ValueError:
        pass
    raise click.BadParameter(f"expected LOWER,UPPER, like 0, or 0,1 or ,100, or valid_range, got {text!r}")


class _Printable(logging.Handler):
    """Prints log messages as other messages are printed."""

    def emit(self, record: logging.LogRecord) -> None:
        echo(f"{time.strftime('%H:%M:%S')} {record.getMessage()}", err=True)


def log_to_stderr(verbose: int) -> None:
    """Print log messages of geonp to stderr until the command ends: 1 for the stages of the work, 2 for each unit."""
    if not verbose:
        return
    logger, handler = logging.getLogger("geonp"), _Printable()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)

    def restore() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    click.get_current_context().call_on_close(restore)


def opening(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the options of :func:`geonp.io.files.open_raster` out of the settings of a command.

    The group of variables becomes that of all that is read from the file, such as the layers of conditions.
    """
    names = ("bands", "variables", "group", "y_dim", "x_dim", "crs", "bbox", "select", "nodata", "as_numbers")
    taken = {name: settings.pop(name) for name in names if name in settings}
    parts = [name.strip("/").rpartition("/") for name in taken.get("variables") or ()]
    groups = {group for group, *_ in parts}
    if taken.get("group") is None and len(groups) == 1 and groups != {""}:
        taken |= {"group": parts[0][0], "variables": tuple(name for *_, name in parts)}
    return {name: None if value in ((), {}) else value for name, value in taken.items()}


def pair(option: str, hint: str) -> tuple[str, str]:
    """Name and value of an option NAME=VALUE."""
    name, equals, value = option.partition("=")
    if not (name and equals):
        # what was given may be a secret
        raise click.BadParameter(f"expected NAME=VALUE, got no {'=' if name else 'NAME'}", param_hint=hint)
    return name, value


def may_be_remote(place: str) -> bool:
    """Whether a place is a URL, or may be a file of references to URLs."""
    return is_remote(place) or place.lower().endswith(".json")


def _has_url(value: object) -> bool:
    """Whether the value of a parameter is, or may refer to, a URL, perhaps after a name."""
    if isinstance(value, (tuple, list)):
        return any(map(_has_url, value))
    return isinstance(value, str) and may_be_remote(value)


def file_system(options: tuple[str, ...]) -> dict[str, Any]:
    """Options of a file system, for fsspec. Values that are JSON, such as true or {"timeout": 5}, are decoded.

    Warns if no argument or option of the command is a URL.
    """
    found: dict[str, Any] = {}
    if options and not any(_has_url(v) for k, v in click.get_current_context().params.items() if k != "storage"):
        warn("--storage-option has no effect: it is for URLs, such as s3://bucket/in.zarr, and no file is one.")
    for option in options:
        name, value = pair(option, "--storage-option")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
