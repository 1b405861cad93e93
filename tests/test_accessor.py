"""The methods of the accessor have the signatures of the functions, and pass everything on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import xarray as xr

import geonp
from geonp.accessor import GeonpAccessor

HOMES = {
    "infill": "geonp.fill.infill",
    "plan": "geonp.fill.plan",
    "fill_store": "geonp.fill.store",
    "values_only": "geonp.fill.outputs",
    "plot": "geonp.fill.picture",
    "aggregate": "geonp.fill.aggregate",
    "evaluate": "geonp.evaluation.compare",
    "adapt": "geonp.adaptation.adapt",
}
METHODS = [name for name in vars(GeonpAccessor) if not name.startswith("_")]


def options(function: Callable[..., object]) -> list[inspect.Parameter]:
    """All parameters but the first, which is the raster."""
    _, *others = inspect.signature(function).parameters.values()
    return others


def test_every_method_is_a_function_of_geonp() -> None:
    assert sorted(METHODS) == sorted(HOMES)


@pytest.mark.parametrize("method", METHODS)
def test_signatures_are_those_of_the_functions(method: str) -> None:
    function = getattr(import_module(HOMES[method]), method)
    ours, theirs = (inspect.signature(f).return_annotation for f in (getattr(GeonpAccessor, method), function))
    assert ours == theirs
    assert options(getattr(GeonpAccessor, method)) == options(function)
    assert not any(p.kind is p.VAR_KEYWORD for p in options(function))


@pytest.mark.parametrize("method", METHODS)
def test_everything_is_passed_on(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    monkeypatch.setattr(f"{HOMES[method]}.{method}", lambda *args, **given: received.append((args, given)))
    raster = xr.DataArray(name="a")
    positional = [object() for p in options(getattr(GeonpAccessor, method)) if p.kind is not p.KEYWORD_ONLY]
    given = {p.name: object() for p in options(getattr(GeonpAccessor, method)) if p.kind is p.KEYWORD_ONLY}
    getattr(raster.geonp, method)(*positional, **given)
    assert received == [((raster, *positional), given)]


@pytest.mark.parametrize("method", METHODS)
def test_docstrings_name_every_parameter_or_the_function_that_does(method: str) -> None:
    text = str(inspect.getdoc(getattr(GeonpAccessor, method)))
    assert f":func:`geonp.{method}`" in text
    if method != "plan":  # the options of infill, as it says
        assert [p.name for p in options(getattr(GeonpAccessor, method)) if p.name not in text] == []


def test_import_registers_the_accessor() -> None:
    assert xr.Dataset.geonp is xr.DataArray.geonp is geonp.GeonpAccessor
