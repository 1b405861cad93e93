"""The options of a fill are the same everywhere, and wrong values are refused with their reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from geonp.accessor import GeonpAccessor
from geonp.errors import InputError
from geonp.fill.infill import infill
from geonp.fill.options import FillOptions
from geonp.fill.plan import plan
from geonp.fill.signatures import FillKeywords, described
from geonp.fill.store import fill_store

Signature = list[tuple[str, Any, str]]

FIELDS: Signature = [(option.name, option.default, str(option.type)) for option in fields(FillOptions)]
FUNCTIONS: list[Callable[..., object]] = [
    infill,
    plan,
    fill_store,
    GeonpAccessor.infill,
    GeonpAccessor.plan,
    GeonpAccessor.fill_store,
]


def parameters(function: Callable[..., object]) -> Signature:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.default, p.annotation) for p in found if p.kind is p.KEYWORD_ONLY]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_signatures_hold_the_options(function: Callable[..., object]) -> None:
    assert parameters(function)[-len(FIELDS) :] == FIELDS


def test_keywords_are_the_options() -> None:
    keywords = {name: kind.__forward_arg__ for name, kind in FillKeywords.__annotations__.items()}
    assert keywords == {name: kind for name, _, kind in FIELDS}


class Received(Exception):  # noqa: N818
    """Ends a call once its options are known."""


@pytest.mark.parametrize("name", ["infill", "plan", "fill_store"])
def test_every_option_is_passed_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = next(each for each in FUNCTIONS if each.__qualname__ == name)

    def receive(options: object, function: str) -> None:
        raise Received(options, function)

    monkeypatch.setattr(FillOptions, "of", receive)
    given = {option: object() for option, *_ in FIELDS}
    with pytest.raises(Received) as caught:
        function(xr.DataArray(), *(["out.zarr"] if name == "fill_store" else []), **given)
    assert caught.value.args == (given, name)


@pytest.mark.parametrize(
    "function",
    [each for each in FUNCTIONS if each is not GeonpAccessor.plan],
    ids=lambda function: function.__qualname__,
)
def test_docstrings_describe_the_options_in_the_same_words(function: Callable[..., object]) -> None:
    text = " ".join(str(inspect.getdoc(function)).split())
    assert list(described()) == [option.name for option in fields(FillOptions)]
    assert [name for name, words in described().items() if words not in text] == []


def test_the_model_is_a_string_whatever_path_it_was_given_as() -> None:
    assert FillOptions(model=Path("my.safetensors")).model == "my.safetensors"


def test_options_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        FillOptions().seed = 1


def test_an_empty_list_of_covariates_is_none() -> None:
    """Classes refused it."""
    assert FillOptions(covariates=[]).covariates is FillOptions(covariates=()).covariates is None


def test_quantiles_may_be_an_array() -> None:
    assert FillOptions(quantiles=np.array([0.1, 0.9])).quantiles == (0.1, 0.9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, r"model must be a name or the path of a .safetensors file, got 3"),
        ({"max_distance": 0}, "max_distance must be a positive number, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1 tile, got 0"),
        ({"batch_size": 1.5}, "batch_size must be at least 1 tile, got 1.5"),
        ({"seed": "a"}, "seed must be an integer, got 'a'"),
        ({"nodata": "x"}, "nodata must be a number, got 'x'"),
        ({"quantiles": 0.5}, "quantiles must be a sequence of numbers between 0 and 1"),
        ({"quantiles": [0, 0.5]}, "quantiles must be a sequence of numbers between 0 and 1"),
        ({"quantiles": [0.5, 0.9, 0.5]}, r"quantiles must differ from each other, got \[0.5, 0.9, 0.5\]"),
        ({"tails": 1}, "tails must be True or False, got 1"),
        ({"samples": True}, "samples must be the number of joint samples, 0 or more, got True"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FillOptions(**options)


def test_a_fingerprint_knows_what_changes_the_result() -> None:
    known = FillOptions().fingerprint()
    assert FillOptions(batch_size=2, device="cpu").fingerprint() == known
    for changed in (FillOptions(seed=1), FillOptions(tails=True), FillOptions(across="time"), FillOptions(nodata=0)):
        assert changed.fingerprint() != known


def test_an_option_that_is_none_is_refused_in_the_name_of_the_function(tmp_path: Path) -> None:
    """Python named the class of the options, which no user calls, and not the option that was meant."""
    da = xr.DataArray(np.full((8, 8), np.nan), dims=("y", "x"), name="a")
    meant: dict[str, Any] = {"quantile": [0.1]}
    with pytest.raises(
        TypeError, match=r"^infill\(\) got an unexpected keyword .*'quantile'; did you mean 'quantiles'\?$"
    ):
        da.geonp.infill(**meant)
    with pytest.raises(TypeError, match=r"^plan\(\) .* 'covariate'; did you mean 'covariates'\?$"):
        da.geonp.plan(covariate=da)
    with pytest.raises(TypeError, match=r"^fill_store\(\) got an unexpected keyword argument 'zzz'$"):
        da.geonp.fill_store(tmp_path / "a.zarr", zzz=1)
