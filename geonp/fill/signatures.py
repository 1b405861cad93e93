"""Signatures and descriptions of functions that take the options of a fill, from :class:`FillOptions`."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import xarray as xr

from geonp.fill.options import Bounds, FillOptions
from geonp.raster.arrays import BoolArray

if TYPE_CHECKING:
    from geonp.fill.missing import MissingLike
    from geonp.raster.covariates import CovariateLike

Function = TypeVar("Function", bound=Callable[..., object])


class FillKeywords(TypedDict, total=False):
    """The fields of :class:`FillOptions` as keyword arguments; a test compares them."""

    model: str | os.PathLike[str]
    missing: MissingLike | Sequence[MissingLike] | None
    mask: xr.DataArray | BoolArray | str | os.PathLike[str] | None
    holes: bool
    max_gap: int | None
    max_distance: float | None
    device: str | None
    batch_size: int | None
    seed: int
    nodata: float | None
    quantiles: Sequence[float]
    tails: bool
    exceed: Sequence[float]
    statistic: Literal["mean", "median"]
    bounds: Bounds | None
    samples: int
    across: Hashable | Sequence[Hashable] | None
    empty_slices: bool
    covariates: CovariateLike | Sequence[CovariateLike] | None
    covariate_resampling: str | None
    errors: CovariateLike | None
    points: Any
    point_errors: str | None
    smooth: bool
    as_: Literal["numbers", "classes", "counts"] | None
    class_probabilities: bool
    circular: bool


def takes_fill_options(function: Function) -> Function:
    """Show the options that a function takes as ``**options`` in its signature and in its docstring.

    In the latter, they replace the entry ``**options``.
    """
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in fields(FillOptions)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    entry = re.search(r"^( *)\*\*options\n.*\n", function.__doc__ or "", re.MULTILINE)
    if function.__doc__ and entry:  # there are no docstrings with python -OO
        function.__doc__ = function.__doc__.replace(entry[0], indent(_described(), entry[1]))
    return function


def _described() -> str:
    """Parameters in the docstring of :class:`FillOptions`."""
    (text,) = re.findall(r"Parameters\n-+\n(.*?\n)\n", inspect.getdoc(FillOptions) or "", re.DOTALL) or [""]
    return str(text)


def described() -> dict[str, str]:
    """Description of each option by name, from the docstring of :class:`FillOptions`."""
    lines = re.findall(r"^(\w+) : .*\n((?:    .*\n)+)", _described(), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in lines}
